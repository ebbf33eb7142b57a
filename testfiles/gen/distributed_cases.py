"""distributed_cases.py OUTDIR: checkpoints of torch.distributed.checkpoint, written by two processes.

OUTDIR/single       one process: views, all kinds of values
OUTDIR/rankN.pt     what torch.save writes of tensors that are divided, and that each process has whole
OUTDIR/copies.pt    a parameter that each process has whole

The values are those of `tensor(name)`: numbers counted from the length of the name.
"""
import sys, warnings
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

def tensor(name, *size):
    return torch.arange(len(name), len(name) + torch.Size(size).numel(), dtype=torch.float32).reshape(size)


def worker(rank, out):
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{out}/rendezvous", rank=rank, world_size=2)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (2,))
    copies = distribute_tensor(tensor("copies", 2, 2), mesh, [Replicate()])
    torch.save({"rows": distribute_tensor(tensor("rows", 2, 2), mesh, [Shard(0)]), "copies": copies}, f"{out}/rank{rank}.pt")
    if not rank: torch.save({"copies": torch.nn.Parameter(copies)}, f"{out}/copies.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    OUT = Path(sys.argv[1]).resolve(); OUT.mkdir(parents=True, exist_ok=True)
    mp.spawn(worker, (str(OUT),), nprocs=2)
    (OUT / "rendezvous").unlink(missing_ok=True)
    dcp.save({"model": {"turned": tensor("turned", 3, 4).t(), "half": tensor("half", 2).half(), "scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4)},
              "optim": {"state": {"0": {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}, "name": "x"}, checkpoint_id=OUT / "single")
