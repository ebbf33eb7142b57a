"""Lua's values that are not tensors: tables, objects of Torch classes, functions, tds collections.

Numbers are `float` (every Lua number is a double), strings are `bytes`, booleans `bool`, nil is `None`. Identity is
Lua's: two references to one table are one Python object; cycles are legal.

`str` of a module is what Lua's `print` shows, see `nn/texts.py`.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from itertools import chain, islice
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, cast

from attrs import field

from ..data import define, face, np
from ..text import Holder, Shown, Step, clean, counted, short
from .storage import Storage
from .tensor import Tensor

if TYPE_CHECKING:
    import torch as pytorch

    class Field:
        """Any value of a file, for type checkers: a table, an object, a tensor, a number, text, or nothing.

        The type of a field depends on the file. A checker may index a `Field`, as tables and objects are indexed, and
        use the methods of a tensor; `isinstance` narrows it to one of the classes.
        """

        shape: tuple[int, ...]
        dtype: str
        ndim: int
        nbytes: int
        numel: int
        class_name: str

        def __getattr__(self, name: str) -> Field: ...
        def __getitem__(self, key: Any) -> Field: ...
        def __setitem__(self, key: Any, value: Any) -> None: ...
        def __eq__(self, other: object) -> bool: ...
        def __hash__(self) -> int: ...
        def __contains__(self, key: object) -> bool: ...
        def __iter__(self) -> Iterator[Any]: ...
        def __len__(self) -> int: ...
        def __float__(self) -> float: ...
        def __int__(self) -> int: ...
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...
        def get(self, key: Any, default: Any = None) -> Field:
            """Return the value of a key, or `default`."""

        def keys(self) -> KeysView[Key]:
            """Return the keys."""

        def values(self) -> ValuesView[Field]:
            """Return the values."""

        def items(self) -> ItemsView[Key, Field]:
            """Return keys and values."""

        def as_list(self) -> list[Field]:
            """Return the values of 1, 2, 3, …"""

        def numpy(self) -> np.ndarray:
            """Return the elements as a numpy array."""

        def torch(self) -> pytorch.Tensor:
            """Return the elements as a PyTorch tensor."""

        def tolist(self) -> list[Any]:
            """Return the elements as Python values."""

        def item(self) -> bool | int | float | complex:
            """Return the only element as a Python value."""

        def decode(self) -> str:
            """Return the text of a string."""

else:
    Field = Any

Value = Any
"""None, bool, float, bytes, or one of `COMPOSITE`; when written also int and str."""

_MISSING = object()
"""In place of a value that is not there, as `None` is nil."""
_EXACT_INTEGERS = 2.0**53
"""Up to here each integer is a double."""
_FEW_KEYS = 2
"""Most keys of a table that are searched one by one, without an index."""
_SEARCHED = 100
"""Most fields searched for `modules` when a module is shown on one line."""


def index_key(key: Value) -> Value:
    """Return a key for a Python dict, in which, unlike in Lua, `True` is the same key as 1, and text is not its bytes.

    Numbers stay as they are: equal ones are one key in both.
    """
    kind = type(key)
    if kind is bytes or kind is float:  # nearly all keys
        return key
    if isinstance(key, bool):
        return (bool, key)
    if isinstance(key, str):
        return key.encode("utf-8", "surrogatepass")
    return key


def plain_key(key: Value) -> Value:
    """Return a key as Python shows it: `int` where a number is integral and exact, `str` where a string is UTF-8."""
    if type(key) is float:
        is_exact = -_EXACT_INTEGERS <= key <= _EXACT_INTEGERS and key.is_integer()
        return int(key) if is_exact else key
    if type(key) is bytes:
        try:
            return key.decode()
        except UnicodeDecodeError:
            return key
    return key


class _Entries(Holder):
    """The methods of a mapping, common to tables, objects and tds collections: a subclass has a table in `_table`.

    Not a subclass of `Mapping`, whose `isinstance` would slow every walk down; registered as one below.
    """

    __slots__ = ()

    def _table(self) -> Table:
        """Return the table that has the entries."""
        raise NotImplementedError

    def _inside(self) -> Iterable[tuple[Any, Any]]:
        table = self._table()
        return zip(table.raw_keys, table.raw_values)

    def __getitem__(self, key: Key) -> Field:
        return self._table()._value(key)

    def __contains__(self, key: object) -> bool:
        return self._table()._place(key) >= 0

    def __len__(self) -> int:
        return len(self._table()._positions())

    def __iter__(self) -> Iterator[Key]:
        table = self._table()
        if len(table._positions()) == len(table.raw_keys):  # no key occurs twice
            return map(plain_key, table.raw_keys)
        return (plain_key(table.raw_keys[place]) for place in table._positions().values())

    def __reversed__(self) -> Iterator[Key]:
        return reversed(list(self))

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the value of a key, or `default`."""
        table = self._table()
        place = table._place(key)
        return default if place < 0 else table.raw_values[place]

    def keys(self) -> KeysView[Key]:
        """Return the keys in the order of the file: `int` where integral, `str` where UTF-8."""
        return KeysView(cast("Mapping[Key, LuaValue]", self))

    def values(self) -> ValuesView[Field]:
        """Return the values in the order of the file."""
        return ValuesView(cast("Mapping[Key, Field]", self))

    def items(self) -> ItemsView[Key, Field]:
        """Return keys and values in the order of the file."""
        return ItemsView(cast("Mapping[Key, Field]", self))

    def as_list(self) -> list[Field]:
        """Return the values of the keys 1, 2, 3, … up to the first that is missing or nil: Lua's `ipairs`."""
        table = self._table()
        values = table.sequence()
        if values is not None:
            return values
        values = []
        while (value := table.get(len(values) + 1)) is not None:
            values.append(value)
        return values

    def __getattr__(self, name: str) -> Field:
        """Return the value of a key that is text, where the class has no attribute of that name."""
        # Names of the class's own slots arrive here only while an object is created or copied.
        if not name.startswith("__") and name not in _SLOTS:
            place = self._table()._place(name)
            if place >= 0:
                return cast("Field", self._table().raw_values[place])
        raise AttributeError(f"{type(self).__name__} has neither an attribute nor a field {name[:60]!r}")

    def __dir__(self) -> list[str]:
        keys = [key for key in self if isinstance(key, str) and key.isidentifier() and not iskeyword(key)]
        return sorted({*object.__dir__(self), *keys})

    def __str__(self) -> str:
        return _text(self)

    def _repr_html_(self) -> str:
        return _html(self)


_NUMBERS = [float(number) for number in range(1, 1001)]
"""The keys of short lists: one object for all tables, since each float takes memory."""


def numbers(count: int) -> list[float]:
    """Return the keys of a list of Lua: 1 to n."""
    return _NUMBERS[:count] if count <= len(_NUMBERS) else list(map(float, range(1, count + 1)))


@define(eq=False)
class Table(_Entries):
    """A Lua table: a mapping with any keys but nil, in the order of the file.

    `table["weight"]`, `table[1]` and `table[b"\\xff"]` look up; text is its UTF-8 bytes, a number the equal double, and
    `True` is not 1. `table.weight` is `table["weight"]`, unless the class itself has an attribute of that name. Keys
    are shown as `int` and `str` where they are integral and UTF-8; `raw_keys` has them in Lua's types.

    Attributes:
        raw_keys: the keys as the file has them: `float`, `bytes`, `bool` or an object. Of equal keys the last counts.
        raw_values: the value of each key.
    """

    raw_keys: list[Value] = field(factory=list)
    raw_values: list[Value] = field(factory=list)
    _index: dict[Value, int] | None = field(default=None, init=False, repr=False)
    """The position of each key, by `index_key`; `None` before many keys, or a new one, are looked up."""

    @classmethod
    def of(cls, pairs: Mapping[Any, Value] | list[tuple[Value, Value]]) -> Table:
        """Return a table of key, value pairs; text becomes bytes, integers become doubles."""
        table = cls()
        for key, value in pairs if isinstance(pairs, list) else pairs.items():
            table[key] = value
        return table

    @classmethod
    def from_list(cls, items: list[Value]) -> Table:
        """Return a table with the keys 1 to n."""
        return cls(numbers(len(items)), list(items))

    def __getstate__(self) -> tuple[list[Value], list[Value]]:
        return self.raw_keys, self.raw_values

    def __setstate__(self, state: tuple[list[Value], list[Value]]) -> None:
        self.raw_keys, self.raw_values = state
        self._index = None  # it has the identities of keys

    def _table(self) -> Table:
        return self

    def __bool__(self) -> bool:
        return bool(self.raw_keys)

    def _short(self) -> str:
        return f"Table: {counted(len(self.raw_keys), 'entry', 'entries')}"

    def _positions(self) -> dict[Value, int]:
        """Return the position of each key, by `index_key`; of a duplicate key the last counts, as in Lua."""
        if self._index is None or len(self._index) > len(self.raw_keys):
            self._index = {index_key(key): place for place, key in enumerate(self.raw_keys)}
        return self._index

    def _place(self, key: Value) -> int:
        """Return the position of a key, -1 if it is not there; few keys are searched, as an index takes memory."""
        wanted = index_key(key)
        if self._index is None and len(self.raw_keys) <= _FEW_KEYS:
            place = len(self.raw_keys) - 1  # of equal keys the last counts
            while place >= 0 and index_key(self.raw_keys[place]) != wanted:
                place -= 1
            return place
        return self._positions().get(wanted, -1)

    def _value(self, key: Value) -> Field:
        """Return the value of a key, or raise a KeyError."""
        place = self._place(key)
        if place < 0:
            raise KeyError(key)
        return cast("Field", self.raw_values[place])

    def __setitem__(self, key: Value, value: Value) -> None:
        """Set the value of a key; a new key becomes the last one.

        nil and NaN, which Lua has not as keys, are refused when the table is written.
        """
        place = self._positions().get(index_key(key))
        if place is not None:
            self.raw_values[place] = value
            return
        # `raw_keys` has Lua's types only. Values stay as they are: writers convert them.
        if isinstance(key, str):
            key = key.encode("utf-8", "surrogatepass")
        elif isinstance(key, int) and not isinstance(key, bool):
            key = float(key)
        self._positions()[index_key(key)] = len(self.raw_keys)
        self.raw_keys.append(key)
        self.raw_values.append(value)

    def raw_items(self) -> Iterator[tuple[Value, Value]]:
        """Return pairs of `raw_keys` and values, in the order of the file."""
        return zip(self.raw_keys, self.raw_values)

    def sequence(self) -> list[Value] | None:
        """Return the values in order where the keys are exactly 1 to n with n at least 1, else `None`."""
        count = len(self.raw_keys)
        if not count:
            return None
        keys = self.raw_keys
        if not all(type(key) is float or type(key) is int for key in keys):
            return None
        if keys == list(range(1, count + 1)):  # as most lists are written
            return list(self.raw_values)
        positions = self._positions()
        if len(positions) != count or any(float(number) not in positions for number in range(1, count + 1)):
            return None
        return [self.raw_values[positions[float(number)]] for number in range(1, count + 1)]


_NO_FIELDS = Table()
"""The fields of an object without any; never changed."""


@define(eq=False)
class TorchObject(_Entries):
    """An object of a Torch class, such as an nn module. A mapping of its fields; always true.

    `obj.weight` is `obj["weight"]`, unless the class itself has an attribute of that name (`obj["version"]`).

    Attributes:
        class_name: `nn.Linear`.
        version: the class version in the file; `None` if the file predates versions, which Lua takes for 0.
        fields: its fields. Most classes write just this table; `None` for an object that is not a table in Lua, such as
            a `torch.Generator`.
        payload: what a class with a layout of its own wrote besides its fields: the header of an `nn.GPU`, the raw
            bytes of a `torch.Generator`. The class's entry in the registry interprets it.
    """

    class_name: str
    version: int | None = 1
    fields: Table | None = field(factory=Table)
    payload: Any = None

    def _table(self) -> Table:
        return _NO_FIELDS if self.fields is None else self.fields

    def _inside(self) -> Iterable[tuple[Any, Any]]:
        fields = _Entries._inside(self)
        if not isinstance(self.payload, Holder):
            return fields
        return chain(((Step("<payload>"), self.payload),), fields)

    def _short(self) -> str:
        table = self._table()
        content = counted(len(table.raw_keys), "field")
        for key, value in zip(table.raw_keys[:_SEARCHED], table.raw_values):
            if key == b"modules" and isinstance(value, Table):
                content = counted(len(value.raw_keys), "module")
        return f"{clean(str(self.class_name))}: {content}"

    def __bool__(self) -> bool:
        return True

    def __setitem__(self, name: Value, value: Value) -> None:
        if self.fields is None:
            self.fields = Table()
        self.fields[name] = value


@define(eq=False)
class Upvalue(Shown):
    """A variable captured by a function.

    Attributes:
        name: the variable's name, empty where the file has none.
        value: its value.
        id: equal numbers in one file are the same variable, shared by the functions; `None` where the file has none.
    """

    name: bytes
    value: Value
    id: int | None = None

    def _short(self) -> str:
        return f"Upvalue {clean(self.name.decode('utf-8', 'backslashreplace'), 30)}: {short(self.value)}"


_TAG_TODAY = 8
"""The type tag of functions whose upvalues have names and ids."""


@define(eq=False)
class LuaFunction(Holder):
    """A Lua function: kept, never executed.

    Attributes:
        code: the bytecode that `string.dump` returned.
        upvalues: the table of upvalues as in the file; `upvalue_list` reads it.
        tag: the type tag in the file: 8 today, 7 and 6 in older releases, whose upvalues have neither name nor id.
    """

    code: bytes = field(repr=False)
    upvalues: Value = None
    tag: int = _TAG_TODAY

    def _inside(self) -> Iterable[tuple[Any, Any]]:
        return ((Step("<upvalues>"), self.upvalues),)

    def _short(self) -> str:
        return f"LuaFunction: {counted(len(self.code), 'byte')} of bytecode"

    def upvalue_list(self) -> list[Upvalue]:
        """Return the upvalues in order. Source: torch7 814ea4a `File.lua` `readObject`."""
        upvalues: list[Upvalue] = []
        if not isinstance(self.upvalues, Table):
            return upvalues
        while (entry := self.upvalues.get(len(upvalues) + 1, _MISSING)) is not _MISSING:
            if self.tag == _TAG_TODAY and isinstance(entry, Table):  # with a name, and the number of a shared variable
                upvalues.append(_upvalue(entry))
            else:
                upvalues.append(Upvalue(b"", entry))
        return upvalues


def _upvalue(entry: Table) -> Upvalue:
    """Return an upvalue from its entry, whose fields may be anything in a damaged file."""
    name = entry.get("name")
    if isinstance(name, str):
        name = name.encode()
    elif not isinstance(name, bytes):
        name = b""
    number = entry.get("id")
    has_number = isinstance(number, (int, float)) and abs(number) < _EXACT_INTEGERS
    return Upvalue(name, entry.get("value"), int(number) if has_number else None)


@define(eq=False)
class TdsHash(_Entries):
    """A `tds.Hash`: a map outside Lua's memory. A mapping, as `Table`.

    Attributes:
        content: its pairs, in the order of the file.
        lua_class: `tds.Hash`, or `tds_hash` in old files.
        version: the class version in the file.
    """

    content: Table = field(factory=Table)
    lua_class: str = "tds.Hash"
    version: int | None = 0

    def _table(self) -> Table:
        return self.content

    def __bool__(self) -> bool:
        return True

    def _short(self) -> str:
        return f"{clean(str(self.lua_class))}: {counted(len(self.content.raw_keys), 'entry', 'entries')}"

    def __setitem__(self, key: Value, value: Value) -> None:
        self.content[key] = value


@define(eq=False)
class TdsVec(_Entries):
    """A `tds.Vec`: a list outside Lua's memory. A mapping of 1 to n, as a Lua list is: `vec[1]` is the first.

    `elements` has the values; `items()` are the pairs, as those of every mapping.

    Attributes:
        elements: its values, in order.
        version: the class version in the file.
    """

    elements: list[Value] = field(factory=list)
    lua_class: str = "tds.Vec"
    version: int | None = 0

    def _table(self) -> Table:
        return Table.from_list(self.elements)

    def _inside(self) -> Iterable[tuple[Any, Any]]:
        return enumerate(self.elements, 1)

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.elements)

    def __iter__(self) -> Iterator[Key]:
        return iter(range(1, len(self.elements) + 1))

    def __contains__(self, key: object) -> bool:
        return _MISSING is not self.get(cast("Key", key), _MISSING)

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the value at an index from 1 to n, or `default`."""
        if isinstance(key, bool) or not isinstance(key, (int, float)):
            return default
        if not 1 <= key <= len(self.elements) or key != int(key):
            return default
        return self.elements[int(key) - 1]

    def __getitem__(self, key: Key) -> Field:
        value: Field = self.get(key, _MISSING)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def as_list(self) -> list[Field]:
        """Return the values as a Python list."""
        return list(self.elements)

    def __getattr__(self, name: str) -> Any:
        """Raise an AttributeError: unlike those of other collections, the keys are numbers only."""
        raise AttributeError(f"TdsVec has no attribute {name[:60]!r}")

    def __dir__(self) -> list[str]:
        return list(object.__dir__(self))

    def _short(self) -> str:
        return f"{clean(str(self.lua_class))}: {counted(len(self.elements), 'element')}"


COMPOSITE = (Table, TorchObject, Tensor, Storage, LuaFunction, TdsHash, TdsVec)
"""The types of values that have an identity."""


def class_of(value: Value) -> str | None:
    """Return the name of the class that a value has in Lua, `torch.FloatTensor`; `None` where it has none."""
    if isinstance(value, (Tensor, Storage)):
        return value.lua_class or value.element.name
    if isinstance(value, TorchObject):
        return value.class_name
    return value.lua_class if isinstance(value, (TdsHash, TdsVec)) else None


Key = bool | int | float | str | bytes | Table | TorchObject | Tensor | Storage | LuaFunction | TdsHash | TdsVec
"""Types of a table's keys in iteration and lookup, for type checkers."""
LuaValue = Key | None
"""Any Lua value, for type checkers. Strings are read as `bytes`, numbers as `float`."""

# The attributes of the classes with entries, which are no keys of these.
_SLOTS = frozenset(name for kind in (Table, TorchObject, TdsHash, TdsVec) for name in kind.__slots__)
for _kind in (Table, TorchObject, TdsHash, TdsVec):
    Mapping.register(_kind)


# How values print: `str` of objects and tables as Lua's `print` has it, and tables for notebooks

_PRINTED_ENTRIES = 100
"""Most entries printed of a table."""
_HTML_ENTRIES = 2000
"""Most entries of the HTML of a value, at all depths together."""
_HTML_DEPTH = 40
"""Most levels of tables inside one another in it."""
_HTML_ENTRIES_OF_ONE = 200
"""Most entries of each table and object in it."""

_printed = face("t7bridge", {"nn.texts": "layer_text module_text"})
"""Return a function of `nn.texts` by its name; the module, which knows what Lua prints of layers, is loaded then."""


def _text(value: Value) -> str:
    """Return the output of `print` for a Lua object, table or collection; of tables the first entries, one per line."""
    if isinstance(value, TorchObject):  # its class says how it prints, or Lua's `print` names it
        return cast("str", _printed("module_text")(value))
    lines = [f"  {_key_text(key)} : {short(item)}" for key, item in islice(value._inside(), _PRINTED_ENTRIES)]
    count = len(value.elements) if isinstance(value, TdsVec) else len(value._table().raw_keys)
    omitted = count - len(lines)
    if omitted > 0:
        lines.append(f"  … {omitted} more")
    return "\n".join(["{", *lines, "}"])


def _key_text(key: Value) -> str:
    """Return a key as Lua's `print` has it, a number with 14 digits as by its `%.14g`; bounded, and escaped."""
    if isinstance(key, bytes):
        key = key.decode("utf-8", "backslashreplace")
    if isinstance(key, str):
        return clean(key)
    return f"{key:.14g}" if isinstance(key, float) else short(key)


def _html_title(value: Value) -> str:
    """Return HTML of a value in one line, without what is in it."""
    from html import escape

    title = escape(_printed("layer_text")(value) if isinstance(value, TorchObject) else short(value))
    return f"<code>{title}</code>" if isinstance(value, Tensor) else title


def _html(root: Value) -> str:
    """Return HTML of a table, an object or a `tds.Hash`, for notebooks: an expandable table of fields.

    Bounded and escaped; an object that occurs again is only named.
    """
    from html import escape

    html: list[str] = []
    opened: set[int] = set()
    """Identities of the values whose entries are shown."""
    entries_left = _HTML_ENTRIES
    # What is to be written, the next one last: values with the HTML of their keys and their depth, or HTML as it is.
    stack: list[tuple[str, Value, int] | str] = [("", root, 0)]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            html.append(item)
            continue
        key_html, value, depth = item
        title = _html_title(value)
        table = value._table() if isinstance(value, (Table, TorchObject, TdsHash)) else None
        is_opened = id(value) in opened
        has_room = depth < _HTML_DEPTH and entries_left > 0
        if table is None or not table.raw_keys or is_opened or not has_room:  # one line
            again = " (shown above)" if is_opened else ""
            html.append(f"<div>{key_html}{title}{again}</div>")
            continue
        opened.add(id(value))
        is_open = " open" if depth == 0 else ""
        html.append(f"<details{is_open}><summary>{key_html}{title}</summary>")
        html.append("<div style='margin-left:1.5em'>")
        count = min(len(table.raw_keys), _HTML_ENTRIES_OF_ONE, entries_left)
        entries_left -= count
        # The last one is taken from the stack first.
        stack.append("</div></details>")
        if len(table.raw_keys) > count:
            stack.append(f"<div>… {len(table.raw_keys) - count} more</div>")
        pairs = list(islice(table.raw_items(), count))
        stack += [(f"<b>{escape(_key_text(key))}</b>: ", inner, depth + 1) for key, inner in reversed(pairs)]
    return "".join(html)
