"""Lua's values that are not tensors: tables, objects of Torch classes, functions, tds collections.

Numbers are `float` (every Lua number is a double), strings are `bytes`, booleans `bool`, nil is `None`. Identity is
Lua's: two references to one table are one Python object; cycles are legal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import field

from ..data import define
from .storage import Storage
from .tensor import Tensor

Value = Any
"""None, bool, float, bytes, or one of `COMPOSITE`; when written also int and str."""

_MISSING = object()


def index_key(key: Value) -> Value:
    """What finds a key in a Python dict: Lua's `true` and `1` are different keys, Python's are not."""
    if isinstance(key, bool):
        return (bool, key)
    if isinstance(key, str):
        return key.encode()
    return key


@define(eq=False)
class Table:
    """A Lua table: any values but nil as keys, in the order of the file.

    `table["weight"]`, `table[1]` and `table[b"\\xff"]` look up; text stands for its UTF-8 bytes, a number for the
    equal double.

    Attributes:
        keys: the keys.
        values: the value of each key.
    """

    keys: list[Value] = field(factory=list)
    values: list[Value] = field(factory=list)
    _index: dict[Value, int] | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(cls, pairs: dict[Any, Value] | list[tuple[Value, Value]]) -> Table:
        """A table of key, value pairs; text becomes bytes, integers become doubles."""
        table = cls()
        for key, value in pairs.items() if isinstance(pairs, dict) else pairs:
            table[key] = value
        return table

    @classmethod
    def from_list(cls, items: list[Value]) -> Table:
        """A table with the keys 1 to n."""
        return cls([float(number) for number in range(1, len(items) + 1)], list(items))

    def _positions(self) -> dict[Value, int]:
        """Where each key stands; of a key that stands twice the last counts, as it would in Lua."""
        if self._index is None or len(self._index) > len(self.keys):
            self._index = {index_key(key): place for place, key in enumerate(self.keys)}
        return self._index

    def get(self, key: Value, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        place = self._positions().get(index_key(key))
        return default if place is None else self.values[place]

    def __getitem__(self, key: Value) -> Any:
        place = self._positions().get(index_key(key))
        if place is None:
            raise KeyError(key)
        return self.values[place]

    def __setitem__(self, key: Value, value: Value) -> None:
        place = self._positions().get(index_key(key))
        if place is not None:
            self.values[place] = value
            return
        if isinstance(key, str):
            key = key.encode()
        elif isinstance(key, int) and not isinstance(key, bool):
            key = float(key)
        self._positions()[index_key(key)] = len(self.keys)
        self.keys.append(key)
        self.values.append(value)

    def __contains__(self, key: Value) -> bool:
        return index_key(key) in self._positions()

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Value]:
        return iter(self.keys)

    def items(self) -> Iterator[tuple[Value, Value]]:
        """The pairs in the order of the file."""
        return zip(self.keys, self.values)

    def as_list(self) -> list[Value] | None:
        """The values in order where the keys are just 1 to n and n is at least 1, else `None`."""
        count = len(self.keys)
        if not count:
            return None
        keys = self.keys
        if not all(type(key) is float or type(key) is int for key in keys):
            return None
        if keys == list(range(1, count + 1)):
            return list(self.values)
        positions = self._positions()
        if len(positions) != count or any(float(number) not in positions for number in range(1, count + 1)):
            return None
        return [self.values[positions[float(number)]] for number in range(1, count + 1)]


@define(eq=False)
class TorchObject:
    """An object of a Torch class that lives in Lua: an nn module, say.

    Attributes:
        class_name: `nn.Linear`.
        version: the class version in the file, 0 where it was written before there were any.
        fields: its fields. Most classes write just this table; `None` for what is no table in Lua either, such as a
            `torch.Generator`.
        payload: what a class with a layout of its own wrote beside its fields: the header of an `nn.GPU`, the raw
            bytes of a `torch.Generator`. Its class in the registry knows what it means.
    """

    class_name: str
    version: int | None = 1
    fields: Table | None = field(factory=Table)
    payload: Any = None

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, or `default`."""
        return default if self.fields is None else self.fields.get(name, default)

    def __getitem__(self, name: str) -> Any:
        if self.fields is None:
            raise KeyError(name)
        return self.fields[name]

    def __setitem__(self, name: str, value: Value) -> None:
        if self.fields is None:
            self.fields = Table()
        self.fields[name] = value

    def __contains__(self, name: str) -> bool:
        return self.fields is not None and name in self.fields


@define(eq=False)
class Upvalue:
    """A variable that a function took from outside.

    Attributes:
        name: the variable's name, empty where the file has none.
        value: its value.
        id: equal numbers in one file are one variable, shared by the functions; `None` where the file has none.
    """

    name: bytes
    value: Value
    id: int | None = None


@define(eq=False)
class LuaFunction:
    """A Lua function: kept, never run.

    Attributes:
        code: what `string.dump` gave: the bytecode.
        upvalues: the table of upvalues as it stands in the file; `upvalue_list` reads it.
        tag: the type tag in the file: 8 today, 7 and 6 in older releases, whose upvalues have neither name nor id.
    """

    code: bytes = field(repr=False)
    upvalues: Value = None
    tag: int = 8

    def upvalue_list(self) -> list[Upvalue]:
        """The upvalues in order. Source: torch7 814ea4a `File.lua` `readObject`."""
        found: list[Upvalue] = []
        if not isinstance(self.upvalues, Table):
            return found
        while (entry := self.upvalues.get(len(found) + 1, _MISSING)) is not _MISSING:
            if self.tag == 8 and isinstance(entry, Table):
                name, number = entry.get("name"), entry.get("id")
                name = name.encode() if isinstance(name, str) else name if isinstance(name, bytes) else b""
                whole = isinstance(number, (int, float)) and abs(number) < 2**53  # a damaged file has anything here
                found.append(Upvalue(name, entry.get("value"), int(number) if whole else None))
            else:
                found.append(Upvalue(b"", entry))
        return found


@define(eq=False)
class TdsHash:
    """A `tds.Hash`: a map outside Lua's memory.

    Attributes:
        content: its pairs, in the order of the file.
        class_name: `tds.Hash`, or `tds_hash` in old files.
        version: the class version in the file.
    """

    content: Table = field(factory=Table)
    class_name: str = "tds.Hash"
    version: int | None = 0


@define(eq=False)
class TdsVec:
    """A `tds.Vec`: a list outside Lua's memory.

    Attributes:
        items: its elements.
        version: the class version in the file.
    """

    items: list[Value] = field(factory=list)
    class_name: str = "tds.Vec"
    version: int | None = 0


COMPOSITE = (Table, TorchObject, Tensor, Storage, LuaFunction, TdsHash, TdsVec)
"""The kinds of value that have an identity."""
