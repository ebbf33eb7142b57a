"""Tensors that `torch.distributed` divides among processes, as one process (a rank) pickles its part of them.

Source: PyTorch 2.13 `torch/distributed/tensor/_api.py` `DTensor`, `torch/_tensor.py` `__reduce_ex__`: a wrapper class
is rebuilt by `_rebuild_wrapper_subclass` from class, dtype, size, strides, …; its part is in `_local_tensor`.
"""

from __future__ import annotations

from typing import Any

from ...data import define
from ...errors import UnsupportedError
from ...graph.python import PythonGlobal, PythonObject
from ...graph.tensor import Tensor
from ...graph.walk import walk

_CLASSES = frozenset(("DTensor", "ShardedTensor", "DistributedTensor"))
_COPIES = frozenset(("Replicate", "Shard", "_StridedShard"))
"""Placements whose parts have elements of the whole; those of `Partial` are to be added up."""


def is_distributed(name: Any) -> bool:
    """Return whether a class is that of a tensor divided among processes."""
    return isinstance(name, PythonGlobal) and name.name in _CLASSES and name.module.startswith("torch.distributed")


def whole_tensor(arguments: Any, state: Any) -> Tensor | None:
    """Return the tensor of a `DTensor` of which this process has all elements; `None` if it has not.

    Args:
        arguments: of `_rebuild_wrapper_subclass`.
        state: of the object.
    """
    attributes = _attributes(state)
    local, spec = attributes.get("_local_tensor"), attributes.get("_spec")
    placements = spec.attributes.get("placements") if isinstance(spec, PythonObject) else None
    if not isinstance(local, Tensor) or not isinstance(placements, tuple) or len(arguments) < 3:
        return None
    known = all(isinstance(each, PythonObject) and each.path.rpartition(".")[2] in _COPIES for each in placements)
    return local if known and tuple(local.shape) == arguments[2] else None


@define(eq=False)
class Part:
    """One process's part of a tensor.

    Attributes:
        value: the object in the file.
        local: the elements of the part.
        size: of the whole tensor.
        cuts: for each dimension of the grid of processes the dimension of the tensor that it divides, or `None`.
        coordinate: the place of the process in the grid, from 0.
        rank: its number.
        ranks: number of all processes.
        requires_grad: whether the tensor is trained.
    """

    value: PythonObject
    local: Tensor
    size: tuple[int, ...]
    cuts: tuple[int | None, ...]
    coordinate: tuple[int, ...]
    rank: int
    ranks: int
    requires_grad: bool


def part_of(value: Any) -> Part | None:
    """Return what an object holds of a divided tensor; `None` if it is none that can be put together."""
    args = value.args if isinstance(value, PythonObject) and isinstance(value.args, tuple) else ()
    if len(args) != 4 or not is_distributed(args[1]) or not isinstance(args[2], tuple) or len(args[2]) < 3:
        return None
    attributes = _attributes(args[3])
    local, spec = attributes.get("_local_tensor"), attributes.get("_spec")
    known = spec.attributes if isinstance(spec, PythonObject) else {}
    mesh, placements, order = (known.get(name) for name in ("mesh", "placements", "shard_order"))
    if not isinstance(mesh, PythonObject) or not isinstance(placements, tuple) or not isinstance(local, Tensor):
        return None
    size, coordinate = _numbers(args[2][2]), _numbers(mesh.attributes.get("_coordinate_on_dim"))
    ranks, rank = _ranks(mesh)
    if size is None or coordinate is None or rank is None or len(coordinate) != len(placements):
        return None
    cuts = tuple(_cut(each, len(size)) for each in placements)
    if NotImplemented in cuts or not _in_order(order):
        return None
    return Part(value, local, size, cuts, coordinate, rank, ranks, args[2][-1] is True)


def _numbers(value: Any) -> tuple[int, ...] | None:
    """Return whole numbers from 0 on; `None` for anything else."""
    known = isinstance(value, (tuple, list)) and all(type(each) is int and each >= 0 for each in value)
    return tuple(value) if known else None


def _in_order(order: Any) -> bool:
    """Return whether each dimension is divided by those of the grid in their order."""
    if not isinstance(order, tuple):
        return order is None
    entries = [each.args for each in order if isinstance(each, PythonObject) and isinstance(each.args, tuple)]
    grids = [_numbers(entry[1]) if len(entry) == 2 else None for entry in entries]
    return len(entries) == len(order) and all(grid is not None and sorted(grid) == list(grid) for grid in grids)


def _cut(placement: Any, dimensions: int) -> Any:
    """Return the dimension that a placement divides, `None` for copies, `NotImplemented` for any other placement."""
    name = placement.path.rpartition(".")[2] if isinstance(placement, PythonObject) else ""
    axis = placement.attributes.get("dim") if name == "Shard" else None
    if name == "Replicate" or (type(axis) is int and 0 <= axis < dimensions):
        return axis
    return NotImplemented


def check_whole(value: Any) -> None:
    """Refuse a value with one process's part of a tensor.

    Raises:
        UnsupportedError: there is one; the message names the process.
    """
    for visit in walk(value):
        found = visit.value
        if not isinstance(found, PythonObject):
            continue
        args = found.args if isinstance(found.args, tuple) else ()
        if is_distributed(found.cls) or any(is_distributed(each) for each in args[:2]):
            raise UnsupportedError(
                f"holds the part that {_rank(found)} has of a tensor divided among processes",
                path=visit.text(),
                hint="Put the files of all ranks into a folder, and convert the folder; or save full_tensor() of each.",
            )


def _attributes(state: Any) -> dict[Any, Any]:
    parts = state if isinstance(state, tuple) else (state,)
    return {key: item for part in parts if isinstance(part, dict) for key, item in part.items()}


def _rank(value: PythonObject) -> str:
    """Return `rank 0 of 2`, as far as the file says."""
    for visit in walk(value):
        mesh = visit.value
        if isinstance(mesh, PythonObject) and mesh.path.endswith(".DeviceMesh"):
            ranks, rank = _ranks(mesh)
            if rank is not None:
                return f"rank {rank} of {ranks}"
    return "one rank"


def _ranks(mesh: PythonObject) -> tuple[int, int | None]:
    """Return the number of processes in a `DeviceMesh`, and the number of the one that wrote it."""
    attributes = mesh.attributes
    ranks = next((attributes[name] for name in ("_rank_map", "mesh") if name in attributes), None)
    rank = attributes.get("_rank", next(iter(attributes.get("_coordinate_on_dim") or ()), None))
    known = isinstance(ranks, Tensor) and type(rank) is int
    return (ranks.numel, rank) if known else (0, None)  # type: ignore[union-attr]
