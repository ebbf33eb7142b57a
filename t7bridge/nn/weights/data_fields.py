"""Fields of a module that are data of its user, such as a vocabulary: neither tensors nor options of the layer.

May import graph and errors.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ...errors import ModelError
from ...graph.lua import Table, TdsHash, TdsVec, TorchObject, Value
from ..fields import Fields
from ..mapping import Lua
from ..registry import Layer


def is_data(value: Value) -> bool:
    """Return whether a table holds strings, numbers and truth values, and nothing else, in tables of any depth."""
    seen: set[int] = set()
    stack = [value]
    found = False
    while stack:
        item = stack.pop()
        if isinstance(item, (bytes, str, float, int)):
            found = True
        elif isinstance(item, (Table, TdsHash, TdsVec)):
            if id(item) not in seen:
                seen.add(id(item))
                table = item.content if isinstance(item, TdsHash) else item
                stack.extend(table.elements if isinstance(table, TdsVec) else (*table.raw_keys, *table.raw_values))
        else:
            return False
    return found


class _Recording(Table):
    """The fields of an object, which records the names that are looked up."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.raw_keys, table.raw_values)
        self.asked: set[str] = set()

    def _positions(self) -> dict[Value, int]:
        return _Asked(super()._positions(), self.asked)


class _Asked(dict[Any, int]):
    """Positions of fields; records the keys."""

    def __init__(self, positions: dict[Any, int], asked: set[str]) -> None:
        super().__init__(positions)
        self._asked = asked

    def get(self, key: Any, default: Any = None) -> Any:
        self._record(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._record(key)
        return super().__contains__(key)

    def _record(self, key: object) -> None:
        if isinstance(key, bytes):
            self._asked.add(key.decode("utf-8", "backslashreplace"))


def options_of(obj: TorchObject, layer: Layer) -> frozenset[str]:
    """Return the fields of an object that the entry of its class reads: its options.

    Args:
        obj: the object.
        layer: the entry.
    """
    fields = _Recording(obj.fields or Table())
    copy = TorchObject(obj.class_name, obj.version, fields, obj.payload)
    module = layer.module_of(obj.class_name)
    for read in (layer.params_of, layer.note_of):
        _ask(lambda read=read: read(Fields(copy, "", layer.defaults)))
    if layer.children is not None:
        _ask(lambda: list(layer.children(copy)))
    if module is not None:
        _ask(lambda: module(Lua(copy, "", layer.defaults)))
    return frozenset(fields.asked)


def _ask(read: Any) -> None:
    """Call what reads fields, which may be missing or damaged."""
    with suppress(ModelError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
        read()
