"""State dicts in place of the nn modules of a `.t7`."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ..graph.lua import TorchObject, Value
from ..graph.show import Step
from ..graph.walk import Path
from ..nn.named import note_lost_sharing
from ..nn.state_dict import StateDict, find_modules, is_module, state_dict
from ..report import Report
from .left_out import Coverage, note_beside, note_data, place_of
from .tree import Replaced, to_python


class StateDicts:
    """Creates the state dict of each outermost nn module, once for a shared module."""

    def __init__(self, roots: list[Value], report: Report) -> None:
        self._report = report
        self._paths = {id(module): path for root in roots for path, module in find_modules(root)}
        self._replaced: list[Replaced] = []
        self.found: list[tuple[TorchObject, StateDict]] = []

    def replace(self, obj: TorchObject) -> Replaced | None:
        """Return the state dict of a module, and its tables of data; `None` for any other object."""
        if not is_module(obj):
            return None
        result = state_dict(obj, self._paths.get(id(obj), "root"))
        self._report.notes += result.notes
        self.found.append((obj, result))
        self._replaced.append(Replaced(OrderedDict(result), result.data))
        return self._replaced[-1]

    def with_data(self, value: Any) -> Any:
        """Add its data to a state dict that is the whole value, for formats that hold them in their metadata."""
        for replaced in self._replaced:
            if replaced.value is value and replaced.beside and not replaced.placed:
                replaced.placed = True
                return OrderedDict(value, **{name: to_python(item) for name, item in replaced.beside.items()})
        return value

    def note_rest(self, value: Any) -> None:
        """Note what the state dicts leave out."""
        coverage = Coverage(modules=[Path(None, Step(self._paths.get(id(obj), "root")), obj) for obj, _ in self.found])
        for (obj, result), replaced in zip(self.found, self._replaced):
            origins = (origin.tensor for origin in result.origins.values())
            coverage.reached |= {place_of(tensor) for tensor in origins if tensor is not None}
            coverage.apart |= result.data_fields
            path = self._paths.get(id(obj), "root")
            rows = [(f"{path}.{name}", obj.class_name, item) for name, item in result.data.items()]
            (note_beside if replaced.placed else note_data)(rows, self._report)
        coverage.add_notes(self._report, value)
        note_lost_sharing([state for _, state in self.found], self._report)


def state_dict_of(obj: TorchObject, report: Report | None = None, path: str = "root") -> Replaced | None:
    """Return the state dict of an nn module as `auto` mode writes it; `None` for any other object.

    Args:
        obj: any Torch object.
        report: receives the notes.
        path: path of the object, for the notes.
    """
    if not is_module(obj):
        return None
    result = state_dict(obj, path)
    if report is not None:
        report.notes.extend(result.notes)
    return Replaced(OrderedDict(result), result.data)
