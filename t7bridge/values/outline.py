"""A value as an indented outline."""

from __future__ import annotations

from collections.abc import Iterator

from ..data import define
from ..graph.keys import in_order
from ..graph.lua import LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.python import PythonObject
from ..graph.show import Holder
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import entries, step_name
from ..text import printable

_LEVELS = 100
"""Levels that are indented further."""
_LETTERS = 1000
"""Characters of a string shown."""
_SETS = (set, frozenset)
_UNNUMBERED = (tuple, frozenset)
"""Values without identity: each is expanded once, however many places share it."""
_NUMBERED = (Holder, dict, list, set)
"""Values with identity: each has a number, which later places refer to."""


def outline(root: Value, *, depth: int, items: int) -> Iterator[str]:
    """Yield the lines of an outline.

    Args:
        root: any value.
        depth: levels to show.
        items: entries to show of each table.
    """
    numbers: dict[int, int] = {}
    shown: set[int] = set()
    marks: dict[int, bytes] = {}
    stack: list[tuple[int, str, Value]] = [(0, "root", root)]
    while stack:
        level, name, value = stack.pop()
        if isinstance(value, _Rest):
            yield f"{_indent(level)}… {value.count} more"
            continue
        if isinstance(value, _UNNUMBERED):
            if id(value) in shown:
                yield printable(f"{_indent(level)}{name}: {summary(value)}{', shown above' if len(value) else ''}")
                continue
            shown.add(id(value))
        again = numbers.get(id(value)) if isinstance(value, _NUMBERED) and not isinstance(value, Storage) else None
        if again is not None:
            yield printable(f"{_indent(level)}{name}: the same as #{again}")
            continue
        mark = ""
        if isinstance(value, _NUMBERED) and not isinstance(value, Storage):
            numbers[id(value)] = len(numbers) + 1
            mark = f"  #{len(numbers)}"
        yield printable(f"{_indent(level)}{name}: {summary(value)}{mark}")
        if isinstance(value, (Tensor, Storage)):
            continue
        inside = list(_inside(value, marks))
        if level + 1 >= depth:
            if inside:
                stack.append((level + 1, "", _Rest(len(inside))))
            continue
        if len(inside) > items:
            stack.append((level + 1, "", _Rest(len(inside) - items)))
        stack.extend((level + 1, step.lstrip("."), child) for step, child in reversed(inside[:items]))


def _indent(level: int) -> str:
    """Return two spaces a level, up to a maximum: lines must not grow with the depth."""
    return "  " * min(level, _LEVELS)


@define(frozen=True)
class _Rest:
    """Marks entries that are not shown."""

    count: int


def _inside(value: Value, marks: dict[int, bytes]) -> Iterator[tuple[str, Value]]:
    """Yield the values directly inside a value; of a set, its items, ordered by `in_order` with the marks."""
    if isinstance(value, _SETS):
        return (("{}", item) for item in in_order(value, marks))
    return ((step_name(key), item) for key, item in entries(value))


def summary(value: Value) -> str:
    """Return a value in a few words."""
    if isinstance(value, Tensor):
        return _tensor_summary(value)
    if isinstance(value, Storage):
        return f"{value.element.name} storage of {value.count}"
    if isinstance(value, TorchObject):
        return value.class_name
    if isinstance(value, (TdsHash, TdsVec)):
        return value.lua_class
    if isinstance(value, LuaFunction):
        return f"function, {len(value.code)} bytes of bytecode"
    if isinstance(value, (Table, dict, list, tuple, *_SETS)):
        return f"{type(value).__name__.lower()} of {len(value)}"
    if isinstance(value, (bytes, str)):
        return _text_summary(value)
    if isinstance(value, PythonObject):
        return f"{'module' if value.is_module else 'object of'} {value.path}"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return "nil" if value is None else str(value)


def _tensor_summary(value: Tensor) -> str:
    shape = " x ".join(map(str, value.size)) or ("scalar" if value.is_scalar else "empty")
    where = f", on {value.device}" if value.device != "cpu" else ""
    view = ""
    if value.storage is not None and value.numel and (value.offset or value.storage.count != value.numel):
        view = f", view from {value.offset} of {value.storage.count}"
    return f"{value.element.name} tensor {shape}{view}{where}"


def _text_summary(value: bytes | str) -> str:
    """Return a string, cut where it is long; Lua's as Python writes it, as text where it is UTF-8."""
    cut = f"… ({len(value)} in all)" if len(value) > _LETTERS else ""
    shown = value[:_LETTERS]
    if isinstance(shown, bytes):
        text = shown.decode("utf-8", "ignore" if cut else "surrogateescape")
        whole = cut or not any("\ud800" <= char <= "\udfff" for char in text)
        return (repr(text) if whole else repr(shown)) + cut
    return shown + cut
