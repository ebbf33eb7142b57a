"""Write a value of any kind in any format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..formats import LUA, NAMED, FormatSpec, home
from ..graph.lua import COMPOSITE
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..io.output import FileOutput
from ..report import Report

if TYPE_CHECKING:
    from ..formats.t7.layout import T7Layout


def _mixed(root: Any) -> bool:
    """Return whether Lua objects are inside Python dicts, lists or tuples."""
    seen: set[int] = set()
    waiting = [root] if isinstance(root, (dict, list, tuple)) else []
    while waiting:
        value = waiting.pop()
        if isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, COMPOSITE) and not isinstance(value, (Tensor, Storage)):
            return True
    return False


def write_value(output: FileOutput, value: Any, goal: FormatSpec, layout: T7Layout | None = None) -> Report:
    """Write a value of any kind in a format: Lua values as Python values where necessary, and vice versa.

    Args:
        output: the file.
        value: the result of `load`, or builtins with tensors in them.
        goal: the format.
        layout: of a `.t7`.

    Returns:
        The report, whose notes name what the format could not hold.
    """
    report = Report(target=output.path, target_format=goal.name)
    if _mixed(value) or (goal.values == LUA and not isinstance(value, (*COMPOSITE, type(None), bool, float, bytes))):
        from .lua_tree import note_nones, to_lua

        tree = to_lua(value)
        value = tree.value
        report.notes += tree.notes
        note_nones(tree, report)
    is_lua = isinstance(value, COMPOSITE)
    if goal.values == LUA:
        home(goal.name).write(output, value, layout)
        return report
    if is_lua:
        from .state_dicts import StateDicts
        from .tree import to_python

        replace = StateDicts([value], report).replace if goal.values == NAMED else None
        value = to_python(value, replace)
    if goal.values == NAMED:
        from .named_tensors import name_tensors
        from .state_dicts import note_texts

        value = name_tensors(value, goal, report)
        note_texts(home(goal.name).write(output, value), value, goal, report)
    else:
        home(goal.name).write(output, value)
    return report
