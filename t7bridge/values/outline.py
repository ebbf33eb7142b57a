"""A value as an indented outline, for people."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph.lua import LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import children


def outline(root: Value, *, depth: int, items: int) -> Iterator[str]:
    """Yield the lines of an outline.

    Args:
        root: any value.
        depth: levels to show.
        items: entries to show of each table.
    """
    numbers: dict[int, int] = {}
    stack: list[tuple[int, str, Value]] = [(0, "root", root)]
    while stack:
        level, name, value = stack.pop()
        if isinstance(value, _Rest):
            yield f"{'  ' * level}… {value.count} more"
            continue
        again = numbers.get(id(value)) if isinstance(value, _NUMBERED) else None
        if again is not None:
            yield f"{'  ' * level}{name}: the same as #{again}"
            continue
        mark = ""
        if isinstance(value, _NUMBERED):
            numbers[id(value)] = len(numbers) + 1
            mark = f"  #{len(numbers)}"
        yield f"{'  ' * level}{name}: {summary(value)}{mark}"
        if isinstance(value, (Tensor, Storage)):
            continue
        inside = list(children(value))
        if level + 1 >= depth:
            if inside:
                stack.append((level + 1, "", _Rest(len(inside))))
            continue
        if len(inside) > items:
            stack.append((level + 1, "", _Rest(len(inside) - items)))
        stack.extend((level + 1, step.lstrip("."), child) for step, child in reversed(inside[:items]))


class _Rest:
    """Entries that are not shown."""

    def __init__(self, count: int) -> None:
        self.count = count


_NUMBERED = (Table, TorchObject, LuaFunction, TdsHash, TdsVec, Tensor, dict, list)


def summary(value: Value) -> str:
    """A value in a few words."""
    if isinstance(value, Tensor):
        shape = " x ".join(map(str, value.size)) or ("scalar" if value.is_scalar else "empty")
        where = f", on {value.device}" if value.device != "cpu" else ""
        view = ""
        if value.storage is not None and value.numel and (value.offset or value.storage.count != value.numel):
            view = f", view from {value.offset} of {value.storage.count}"
        return f"{value.element.name} tensor {shape}{view}{where}"
    if isinstance(value, Storage):
        return f"{value.element.name} storage of {value.count}"
    if isinstance(value, TorchObject):
        return value.class_name
    if isinstance(value, (TdsHash, TdsVec)):
        return value.class_name
    if isinstance(value, LuaFunction):
        return f"function, {len(value.code)} bytes of bytecode"
    if isinstance(value, (Table, dict, list, tuple)):
        return f"{type(value).__name__.lower()} of {len(value)}"
    if isinstance(value, bytes):
        try:
            return repr(value.decode())
        except UnicodeDecodeError:
            return repr(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return "nil" if value is None else str(value)
