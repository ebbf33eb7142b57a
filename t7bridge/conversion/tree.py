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
from itertools import count
from typing import Any

from attrs import field

from ..data import define
from ..graph.lua import LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor

_EXACT = 2.0**53


@define(eq=False)
class Replaced:
    """What stands for an object, and what stands beside it.

    Attributes:
        value: in place of the object.
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


class Tree:
    """Builds the Python side with an explicit stack; lists and dicts are created before their content."""

    def __init__(self, replace: Replace | None) -> None:
        self._replace = replace
        self._built: dict[int, Any] = {}
        self._kept: list[Value] = []
        self._replaced: dict[int, Replaced] = {}
        """What stands for objects that have something beside them, by the identity of each."""
        self._open: list[tuple[Any, Any, Value]] = []
        """Stack of work: a container, the key or index in it, the Lua value; the next one last."""

    def run(self, root: Value) -> Any:
        """Convert a value and everything in it."""
        result: list[Any] = [None]
        self._open.append((result, 0, root))
        while self._open:
            target, place, value = self._open.pop()
            self._put(target, place, value)
        return result[0]

    def _put(self, target: Any, place: Any, value: Value) -> None:
        target[place] = self._convert(value)
        replaced = self._replaced.get(id(value))
        if replaced is not None and isinstance(target, dict) and isinstance(place, str):
            for name, item in replaced.beside.items():
                key = wanted = f"{place}.{name}"
                numbers = count(2)
                while key in target:
                    key = f"{wanted}~{next(numbers)}"
                target[key] = None
                self._open.append((target, key, item))
            replaced.placed = True

    def _stand_in(self, value: Any, replaced: Any) -> Any:
        """Return what stands for an object."""
        if not isinstance(replaced, Replaced):
            return replaced
        if replaced.beside:
            self._replaced[id(value)] = replaced
        return replaced.value

    def _convert(self, value: Value) -> Any:
        if value is None or isinstance(value, (bool, float, int, bytes, str)):
            return plain(value)
        if isinstance(value, (Tensor, Storage)):
            return value
        built = self._built.get(id(value))
        if built is None:
            self._kept.append(value)  # so that no other value gets its identity
            built = self._built[id(value)] = self._object(value)
        return built

    def _object(self, value: Value) -> Any:
        if isinstance(value, Table):
            items = value.sequence()
            if items is not None:
                return self._list(items)
            return self._dict({}, value)
        if isinstance(value, TorchObject):
            if self._replace is not None:
                replaced = self._replace(value)
                if replaced is not None:
                    return self._stand_in(value, replaced)
            head: dict[str, Any] = {"__class__": value.class_name, "__version__": value.version}
            if value.payload is not None:
                head["__payload__"] = None
                self._open.append((head, "__payload__", value.payload))
            return self._dict(head, value.fields or Table())
        if isinstance(value, LuaFunction):
            upvalues = self._list([entry.value for entry in value.upvalue_list()])
            return {"__class__": "function", "code": value.code, "upvalues": upvalues}
        if isinstance(value, TdsHash):
            return self._dict({"__class__": value.lua_class, "__version__": value.version}, value.content)
        if isinstance(value, TdsVec):
            head = {"__class__": value.lua_class, "__version__": value.version}
            head["items"] = self._list(value.elements)
            return head
        raise TypeError(f"{type(value).__name__} is not a Lua value")

    def _list(self, items: list[Value]) -> list[Any]:
        result = [None] * len(items)
        self._open.extend((result, place, item) for place, item in reversed(list(enumerate(items))))
        return result

    def _dict(self, result: dict[Any, Any], table: Table) -> dict[Any, Any]:
        """Add a table's entries to a dict, or as a list of pairs if they cannot be its keys."""
        keys = [plain(key) for key in table.raw_keys]
        own = set(result)
        try:
            distinct = len(own | set(keys)) == len(own) + len(keys)
        except TypeError:
            distinct = False
        if not distinct or any(isinstance(key, (Table, TorchObject, LuaFunction, TdsHash, TdsVec)) for key in keys):
            result.setdefault("__class__", "table")
            result["pairs"] = self._list([Table.from_list([key, value]) for key, value in table.raw_items()])
            return result
        result.update(dict.fromkeys(keys))
        self._open.extend((result, key, value) for key, value in reversed(list(zip(keys, table.raw_values))))
        return result


def to_python(value: Value, replace: Replace | None = None) -> Any:
    """Convert a Lua value; see the module's docstring.

    Args:
        value: the result of `T7Reader.read_object`. Tensors and storages are reused, not copied.
        replace: returns what stands for a Torch object, or `None` to use its fields.

    Returns:
        Builtins with `Tensor` and `Storage` in them; shared objects are shared, cycles are cycles.
    """
    return Tree(replace).run(value)
