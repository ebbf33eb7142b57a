"""The table of operations: ATen operation → its composition of Lua layers. `operations/` fills it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..data import define


@define(frozen=True, eq=False)
class Operation:
    """An entry of the table.

    Attributes:
        names: the operations, `aten.relu.default`.
        lua: the Lua layers that it becomes, for the documentation.
        build: builds it; receives the builder and the arguments by their names in ATen.
        note: a note for the user.
    """

    names: tuple[str, ...]
    lua: str
    build: Callable[..., Any]
    note: str = ""


OPERATIONS: dict[str, Operation] = {}


def operation(names: str, lua: str, note: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the builder of some operations.

    Args:
        names: ATen's names without `aten.`, separated by spaces: `relu.default relu_.default`.
        lua: the Lua layers, for the documentation.
        note: a note for the user.
    """

    def decorate(build: Callable[..., Any]) -> Callable[..., Any]:
        entry = Operation(tuple(f"aten.{name}" for name in names.split()), lua, build, note)
        OPERATIONS.update(dict.fromkeys(entry.names, entry))
        return build

    return decorate
