"""distributed_cases.py OUTDIR: checkpoints of torch.distributed.checkpoint, written by two processes.

OUTDIR/sharded      tensors sharded along their first or second dimension, evenly and not, beside whole ones
OUTDIR/single       one process: views, all kinds of values
OUTDIR/rankN.pt     what torch.save writes of tensors that are divided, and that each process has whole
OUTDIR/ranks        what torch.save writes in each of four processes in a grid of 2 x 2
OUTDIR/copies.pt    a parameter that each process has whole

The values are those of `tensor(name)`: numbers counted from the length of the name.
"""
import sys, warnings
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

SHARDED = {"rows": ((6, 5), 0), "columns": ((4, 6), 1), "uneven": ((5, 3), 0), "one": ((1, 4), 0), "cube": ((4, 3, 2), 2)}


def tensor(name, *size):
    return torch.arange(len(name), len(name) + torch.Size(size).numel(), dtype=torch.float32).reshape(size)


def worker(rank, out):
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{out}/rendezvous", rank=rank, world_size=2)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (2,))
    model = {name: distribute_tensor(tensor(name, *size), mesh, [Shard(dim)]) for name, (size, dim) in SHARDED.items()}
    dcp.save({"model": {**model, "whole": tensor("whole", 3, 3)}, "epoch": 7}, checkpoint_id=f"{out}/sharded")
    copies = distribute_tensor(tensor("copies", 2, 2), mesh, [Replicate()])
    torch.save({"rows": distribute_tensor(tensor("rows", 2, 2), mesh, [Shard(0)]), "copies": copies}, f"{out}/rank{rank}.pt")
    if not rank: torch.save({"copies": torch.nn.Parameter(copies)}, f"{out}/copies.pt")
    dist.destroy_process_group()


def grid(rank, out):
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{out}/rendezvous4", rank=rank, world_size=4)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    value = {"both": distribute_tensor(tensor("both", 3, 5), mesh, [Shard(0), Shard(1)]),
             "twice": distribute_tensor(tensor("twice", 7, 2), mesh, [Shard(0), Shard(0)]),
             "mixed": torch.nn.Parameter(distribute_tensor(tensor("mixed", 4, 3), mesh, [Replicate(), Shard(1)])),
             "part": distribute_tensor(tensor("part", 5), mesh["model"], [Shard(0)]),
             "few": distribute_tensor(tensor("few", 1, 2), mesh, [Shard(0), Replicate()]),
             "whole": tensor("whole", 2), "epoch": 3}
    torch.save({"model": value, "rank": rank}, f"{out}/ranks/rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    OUT = Path(sys.argv[1]).resolve(); OUT.mkdir(parents=True, exist_ok=True)
    mp.spawn(worker, (str(OUT),), nprocs=2)
    (OUT / "ranks").mkdir(exist_ok=True)
    mp.spawn(grid, (str(OUT),), nprocs=4)
    for name in ("rendezvous", "rendezvous4"): (OUT / name).unlink(missing_ok=True)
    dcp.save({"model": {"turned": tensor("turned", 3, 4).t(), "half": tensor("half", 2).half(), "scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4)},
              "optim": {"state": {"0": {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}, "name": "x"}, checkpoint_id=OUT / "single")
