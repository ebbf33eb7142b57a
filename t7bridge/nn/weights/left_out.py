"""Fields of a model that a state dict leaves out: gradients, outputs, temporary buffers.

May import graph and report.
"""

from __future__ import annotations

from collections import Counter

from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...graph.walk import Visit, walk
from ...report import Report
from .named import StateDict

_NAMED = 6


def note_left_out(models: list[tuple[TorchObject, StateDict]], report: Report) -> None:
    """Note how many tensors of models are in no state dict, and in which fields they are.

    Args:
        models: modules and their state dicts.
        report: receives the note.
    """
    kept = {
        _view(tensor)
        for _, result in models
        for origin in result.origins.values()
        for tensor in (origin.tensor,)
        if tensor is not None
    }
    fields: Counter[str] = Counter()
    seen: set[int] = set()
    stored = 0
    storages = {view[0] for view in kept}
    for model, _ in models:
        for visit in walk(model):
            tensor = visit.value
            if not isinstance(tensor, Tensor) or not tensor.numel or id(tensor) in seen or _view(tensor) in kept:
                continue
            seen.add(id(tensor))
            fields[_field(visit)] += 1
            if tensor.storage is not None and id(tensor.storage) not in storages:
                storages.add(id(tensor.storage))
                stored += tensor.storage.nbytes
    if not fields:
        return
    named = [f"{name} {times}" for name, times in fields.most_common(_NAMED)]
    rest = sum(fields.values()) - sum(times for _, times in fields.most_common(_NAMED))
    more = f", others {rest}" if rest else ""
    report.note(
        "info",
        f"{fields.total()} tensors ({stored} bytes) are not part of a state dict and are left out: "
        f"{', '.join(named)}{more}; --mode tree keeps them",
        code="left-out",
        count=fields.total(),
    )


def _view(tensor: Tensor) -> tuple[object, ...]:
    return id(tensor.storage), tensor.offset, tensor.size, tensor.stride


def _field(visit: Visit) -> str:
    """Return the name of the field that contains a tensor, also inside a table."""
    step: Visit | None = visit
    while step is not None:
        if step.step.startswith("."):
            return step.step[1:]
        step = step.parent
    return visit.step
