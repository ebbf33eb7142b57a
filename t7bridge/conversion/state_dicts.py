"""State dicts in place of the nn modules of a `.t7`."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ..graph.lua import TorchObject, Value
from ..graph.tensor import Tensor
from ..nn.weights.compact import note_excess
from ..nn.weights.left_out import note_left_out
from ..nn.weights.lost_sharing import note_lost_sharing
from ..nn.weights.state_dict import StateDict, find_modules, is_module, state_dict
from ..report import Report


class StateDicts:
    """Creates the state dict of each outermost nn module, once for a shared module."""

    def __init__(self, roots: list[Value], report: Report) -> None:
        self._report = report
        self._paths = {id(module): path for root in roots for path, module in find_modules(root)}
        self.found: list[tuple[TorchObject, StateDict]] = []

    def replace(self, obj: TorchObject) -> Any:
        """Return the state dict of a module; `None` for any other object."""
        if not is_module(obj):
            return None
        result = state_dict(obj, self._paths.get(id(obj), "root"))
        self._report.notes += result.notes
        self.found.append((obj, result))
        return OrderedDict(result.tensors)

    def note_rest(self, value: Any, compact: bool) -> None:
        """Note what the state dicts leave out, and what the storages hold beyond what is used."""
        note_left_out(self.found, self._report)
        note_lost_sharing([state for _, state in self.found], self._report)
        if not compact:
            note_excess(value, self._report)


def state_dict_of(
    obj: TorchObject, report: Report | None = None, path: str = "root"
) -> OrderedDict[str, Tensor] | None:
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
    return OrderedDict(result.tensors)
