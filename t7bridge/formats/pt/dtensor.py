"""Tensors that `torch.distributed` divides among processes, as one process (a rank) pickles its part of them.

Source: PyTorch 2.13 `torch/distributed/tensor/_api.py` `DTensor`, `torch/_tensor.py` `__reduce_ex__`: a wrapper class
is rebuilt by `_rebuild_wrapper_subclass` from class, dtype, size, strides, …; its part is in `_local_tensor`.
"""

from __future__ import annotations

from typing import Any

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
                hint="Save with torch.distributed.checkpoint and convert the folder, or save full_tensor() of each.",
            )


def _attributes(state: Any) -> dict[Any, Any]:
    parts = state if isinstance(state, tuple) else (state,)
    return {key: item for part in parts if isinstance(part, dict) for key, item in part.items()}


def _rank(value: PythonObject) -> str:
    """Return `rank 0 of 2`, as far as the file says."""
    for visit in walk(value):
        mesh = visit.value
        if isinstance(mesh, PythonObject) and mesh.path.endswith(".DeviceMesh"):
            attributes = mesh.attributes
            ranks = next((attributes[name] for name in ("_rank_map", "mesh") if name in attributes), None)
            rank = attributes.get("_rank", next(iter(attributes.get("_coordinate_on_dim") or ()), None))
            if isinstance(ranks, Tensor) and isinstance(rank, int):
                return f"rank {rank} of {ranks.numel}"
    return "one rank"
