"""Lua values as Python-side values: the content of a `.pt` made from a `.t7` in `tree` mode.

| Lua | Python |
| --- | --- |
| number | int where integral and exact, else float |
| string | str where valid UTF-8, else bytes |
| table with the keys 1 to n | list |
| other table | dict |
| table whose keys cannot be those of a dict | `{"__class__": "table", "pairs": [[key, value], …]}` |
| Torch object | dict of `__class__`, `__version__` and its fields |
| function | `{"__class__": "function", "code": bytes, "upvalues": […]}` |
| tensor, storage | the same; a PyTorch storage for a storage outside of tensors |
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count
from typing import Any

from attrs import field

from ..data import define
from ..graph.lua import COMPOSITE, LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import Fill, Path, Rebuilder, fill_dict, fill_list

_EXACT = 2.0**53


@define(eq=False)
class Replaced:
    """What stands for an object, and what stands beside it.

    Attributes:
        value: in place of the object; a `Fill` where its content is still to be converted.
        beside: values that go into the dict that holds the object, under `<its key>.<name>`.
        placed: whether they did; not where the object is the root, or in a list.
    """

    value: Any
    beside: dict[str, Any] = field(factory=dict)
    placed: bool = False


Replace = Callable[[TorchObject], Any]
"""Returns what stands for an object, a `Replaced` where something stands beside it; `None` to use its fields."""


def plain(value: Value) -> Any:
    """Return a Lua scalar as the equal Python value."""
    if type(value) is float:
        if value.is_integer() and abs(value) <= _EXACT and (value or str(value) == "0.0"):
            return int(value)
        return value
    if type(value) is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


class Tree(Rebuilder):
    """Builds the Python side; lists and dicts are created before their content."""

    def __init__(self, replace: Replace | None = None) -> None:
        super().__init__()
        self._replace = replace
        self._replaced: dict[int, Replaced] = {}
        """What stands for objects that have something beside them, by the identity of each."""

    def scalar(self, value: Any, path: Path | None, key: Any) -> Any:
        """Return Python's scalar."""
        return plain(value)

    def put(self, target: Any, place: Any, made: Any, value: Any) -> None:
        """Put what a value became at its place, and what stands beside it."""
        target[place] = made
        replaced = self._replaced.get(id(value)) if self._replaced else None
        if replaced is not None and isinstance(target, dict) and isinstance(place, str):
            replaced.placed = True
            for name, item in replaced.beside.items():
                key = wanted = f"{place}.{name}"
                numbers = count(2)
                while key in target:
                    key = f"{wanted}~{next(numbers)}"
                target[key] = self.run(item)

    def stand_in(self, value: Any, replaced: Any) -> Any:
        """Return what stands for an object."""
        if not isinstance(replaced, Replaced):
            return replaced
        if replaced.beside:
            self._replaced[id(value)] = replaced
        made = replaced.value
        if isinstance(made, Fill):
            replaced.value = made.value
        return made

    def make(self, value: Value, path: Path) -> Any:
        """Return the list or dict that a value becomes."""
        if isinstance(value, Table):
            items = value.sequence()
            return self._dict({}, value) if items is None else fill_list(items)
        if isinstance(value, TorchObject):
            replaced = self._replace(value) if self._replace is not None else None
            if replaced is not None:
                return self.stand_in(value, replaced)
            head: dict[str, Any] = {"__class__": value.class_name, "__version__": value.version}
            if value.payload is None:
                return self._dict(head, value.fields or Table())
            payload = fill_dict(head, ["__payload__"], [value.payload])
            return Fill(head, chain(payload.parts, self._dict(head, value.fields or Table()).parts))
        if isinstance(value, LuaFunction):
            upvalues = [entry.value for entry in value.upvalue_list()]
            return _list_in({"__class__": "function", "code": value.code}, "upvalues", upvalues)
        if isinstance(value, (TdsHash, TdsVec)):
            head = {"__class__": value.lua_class, "__version__": value.version}
            if isinstance(value, TdsVec):
                return _list_in(head, "items", value.elements)
            return self._dict(head, value.content)
        if isinstance(value, (Tensor, Storage)):
            return value
        raise TypeError(f"{type(value).__name__} is not a Lua value")

    def _dict(self, result: dict[Any, Any], table: Table) -> Fill:
        """Add a table's entries to a dict, or as a list of pairs if they cannot be its keys."""
        keys = [plain(key) for key in table.raw_keys]
        own = set(result)
        try:
            distinct = len(own | set(keys)) == len(own) + len(keys)
        except TypeError:
            distinct = False
        if not distinct or any(isinstance(key, COMPOSITE) and not isinstance(key, (Tensor, Storage)) for key in keys):
            result.setdefault("__class__", "table")
            return _list_in(result, "pairs", [Table.from_list([key, value]) for key, value in table.raw_items()])
        return fill_dict(result, keys, table.raw_values)


def _list_in(result: dict[Any, Any], key: str, items: list[Value]) -> Fill:
    """Return a dict with a list, to be filled from items, under a key."""
    inner = fill_list(items)
    result[key] = inner.value
    return Fill(result, inner.parts)


def to_python(value: Value, replace: Replace | None = None) -> Any:
    """Convert a Lua value; see the module's docstring.

    Args:
        value: the result of `T7Reader.read_object`. Tensors and storages are reused, not copied.
        replace: returns what stands for a Torch object, or `None` to use its fields.

    Returns:
        Builtins with `Tensor` and `Storage` in them; shared objects are shared, cycles are cycles.
    """
    return Tree(replace).run(value)
