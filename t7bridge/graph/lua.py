"""Lua's values that are not tensors: tables, objects of Torch classes, functions, tds collections.

Numbers are `float` (every Lua number is a double), strings are `bytes`, booleans `bool`, nil is `None`. Identity is
Lua's: two references to one table are one Python object; cycles are legal.

`str` of a module is what Lua's `print` shows: nn 8726825, the `__tostring__` of each class. Lua prints a shared module
again at each place, and never ends on a cycle; here lines and depth are limited, and `…` marks the cut.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextlib import suppress
from html import escape
from itertools import chain, islice
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, cast

from attrs import field

from ..data import define, np
from ..text import Holder, Shown, Step, clean, counted, short
from .storage import Storage
from .tensor import Tensor, elements

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
_EXACT = 2.0**53
_FEW_KEYS = 2
_SEARCHED = 100
"""Most fields searched for `modules` when a module is shown on one line."""


def index_key(key: Value) -> Value:
    """Return the key for a Python dict: Lua's `true` and `1` are different keys, Python's are not."""
    if isinstance(key, bool):
        return (bool, key)
    if isinstance(key, str):
        return key.encode("utf-8", "surrogatepass")
    return key


def plain_key(key: Value) -> Value:
    """Return a key as Python shows it: `int` where a number is integral and exact, `str` where a string is UTF-8."""
    if type(key) is float:
        return int(key) if -_EXACT <= key <= _EXACT and key.is_integer() else key
    if type(key) is bytes:
        try:
            return key.decode()
        except UnicodeDecodeError:
            return key
    return key


class _Entries(Holder):
    """The methods of a mapping, from `_table()`: common to tables, objects and `tds.Hash`.

    Not a subclass of `Mapping`, whose `isinstance` would slow every walk down; registered as one below.
    """

    __slots__ = ()

    def _table(self) -> Table:
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
        if len(table._positions()) == len(table.raw_keys):
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
        whole = table.sequence()
        found: list[Field] = []
        if whole is not None:
            return whole
        while (item := table.get(len(found) + 1)) is not None:
            found.append(item)
        return found

    def __getattr__(self, name: str) -> Field:
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


def numbers(count: int) -> list[float]:
    """Return the keys of a list of Lua: 1 to n; the small ones are the same objects each time."""
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
        """Return the position of each key; of a duplicate key the last counts, as in Lua."""
        if self._index is None or len(self._index) > len(self.raw_keys):
            self._index = {index_key(key): place for place, key in enumerate(self.raw_keys)}
        return self._index

    def _place(self, key: Value) -> int:
        """Return the position of a key, -1 if it is not there; of few keys without an index, which takes memory."""
        wanted, keys = index_key(key), self.raw_keys
        if self._index is None and len(keys) <= _FEW_KEYS:
            return max((place for place, known in enumerate(keys) if index_key(known) == wanted), default=-1)
        return self._positions().get(wanted, -1)

    def _value(self, key: Value) -> Field:
        place = self._place(key)
        if place < 0:
            raise KeyError(key)
        return cast("Field", self.raw_values[place])

    def __setitem__(self, key: Value, value: Value) -> None:
        place = self._positions().get(index_key(key))
        if place is not None:
            self.raw_values[place] = value
            return
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
        if keys == list(range(1, count + 1)):
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
        version: the class version in the file, 0 where the file predates versions.
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
        inside = _Entries._inside(self)
        return chain(((Step("<payload>"), self.payload),), inside) if isinstance(self.payload, Holder) else inside

    def _short(self) -> str:
        table = self._table()
        name, held = clean(str(self.class_name)), counted(len(table.raw_keys), "field")
        for place, key in enumerate(table.raw_keys[:_SEARCHED]):
            if key == b"modules" and isinstance(modules := table.raw_values[place], Table):
                held = counted(len(modules.raw_keys), "module")
        return f"{name}: {held}"

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
    tag: int = 8

    def _inside(self) -> Iterable[tuple[Any, Any]]:
        return ((Step("<upvalues>"), self.upvalues),)

    def _short(self) -> str:
        return f"LuaFunction: {counted(len(self.code), 'byte')} of bytecode"

    def upvalue_list(self) -> list[Upvalue]:
        """Return the upvalues in order. Source: torch7 814ea4a `File.lua` `readObject`."""
        found: list[Upvalue] = []
        if not isinstance(self.upvalues, Table):
            return found
        while (entry := self.upvalues.get(len(found) + 1, _MISSING)) is not _MISSING:
            if self.tag == 8 and isinstance(entry, Table):
                name, number = entry.get("name"), entry.get("id")
                name = name.encode() if isinstance(name, str) else name if isinstance(name, bytes) else b""
                whole = isinstance(number, (int, float)) and abs(number) < 2**53  # may be anything in a damaged file
                found.append(Upvalue(name, entry.get("value"), int(number) if whole else None))
            else:
                found.append(Upvalue(b"", entry))
        return found


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
        if isinstance(key, bool) or not isinstance(key, (int, float)) or not 1 <= key <= len(self.elements):
            return default
        return self.elements[int(key) - 1] if key == int(key) else default

    def __getitem__(self, key: Key) -> Field:
        found: Field = self.get(key, _MISSING)
        if found is _MISSING:
            raise KeyError(key)
        return found

    def as_list(self) -> list[Field]:
        """Return the values as a Python list."""
        return list(self.elements)

    def __getattr__(self, name: str) -> Any:
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

_SLOTS = frozenset(name for kind in (Table, TorchObject, TdsHash, TdsVec) for name in kind.__slots__)
for _kind in (Table, TorchObject, TdsHash, TdsVec):
    Mapping.register(_kind)


# How values print: `str` of objects and tables as Lua's `print` has it, and tables for notebooks

_LINES = 1000
_DEPTH = 60
_ENTRIES = 100
_SIZES = 20
_HTML_ENTRIES = 2000
_HTML_DEPTH = 40
_HTML_WIDE = 200

_SEQUENTIAL = frozenset(("Sequential", "LayerNormalization", "Maxout", "SpatialLPPooling"))
_BRANCHES = frozenset(("Concat", "DepthConcat", "ConcatTable", "ParallelTable", "Parallel"))
_DECORATORS = frozenset(("Decorator", "Bottle", "DontCast", "Profile", "WeightNorm", "GPU", "NaN"))


TEXTS: dict[str, Callable[[TorchObject], str]] = {}
"""The texts of registered classes after their names, by full names."""


class _Absent(Exception):
    """A field that the text needs is missing, or has another type."""


class _Formatted:
    """A field of a layer in a template: `%d` by default, otherwise as the letter after the colon says.

    `f` is `%f`, `s` what Lua's `..` writes; a digit is the size of that dimension of a tensor, 1-based, `n` its number
    of elements; `p` is a number as `%d` where it is whole, else `%f`. After `*` comes what joins the numbers of a
    LongStorage, of very many the first.
    """

    def __init__(self, value: Value) -> None:
        self._value = value

    def __format__(self, form: str) -> str:
        value = self._value
        if isinstance(value, (bytes, str)) and form == "s":
            return clean(value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value)
        if isinstance(value, Tensor) and (form == "n" or (form.isdecimal() and int(form) <= len(value.size))):
            return str(value.numel if form == "n" else value.size[int(form) - 1])
        if isinstance(value, Storage) and form[:1] == "*" and not value.element.name.startswith("float"):
            numbers = elements(Tensor(value.element, value, (value.count,), (1,)), _SIZES)
            return form[1:].join([*map(str, numbers), *["…"] * (value.count > _SIZES)])
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if form in ("s", "g"):
                return f"{value:{'.14g' if form == 's' else form}}"
            if abs(value) < 2**53:
                return (
                    f"{value:f}" if form == "f" or (form == "p" and not float(value).is_integer()) else str(int(value))
                )
        raise _Absent


class _Fields:
    """The fields of a layer, by name; `without` is a text."""

    def __init__(self, obj: TorchObject) -> None:
        self._obj = obj

    def __getitem__(self, name: str) -> str | _Formatted:
        if name == "without":
            return " without bias" if self._obj.get("bias") in (None, False) else ""
        return _Formatted(self._obj.get(name))


def _window(obj: TorchObject, axes: str, *, planes: bool, extra: str = "", always: bool = False) -> str:
    """Return kernel, step and padding: `(3 -> 8, 5x5, 2,2, 1,1)`.

    Args:
        obj: the layer.
        axes: of its fields `kW`, `dW`, `padW`: `WH` or `TWH`.
        planes: begin with `nInputPlane -> nOutputPlane`; the step is then shown only where it, or the padding, is not
            the default.
        extra: prefix of further fields, shown where one of them is present and not 0.
        always: show `extra` always.
    """
    steps, pads = [obj.get(f"d{axis}") for axis in axes], [obj.get(f"pad{axis}") for axis in axes]
    text = "({nInputPlane} -> {nOutputPlane}, " if planes else "("
    text += "x".join(f"{{k{axis}}}" for axis in axes)
    # In Lua nil ~= 0 is true, so that layers of releases without padding show their step.
    if not planes or any(step != 1 for step in steps) or any(pad != 0 for pad in pads):
        text += ", " + ",".join(f"{{d{axis}}}" for axis in axes)
    for prefix in ("pad", extra) if extra else ("pad",):
        found = [obj.get(f"{prefix}{axis}") for axis in axes]
        if any(each not in (None, 0) for each in found) or (always and prefix == extra):
            text += ", " + ",".join(f"{{{prefix}{axis}:s}}" for axis in axes)
    return text + ")"


_LINEAR = "({weight:2} -> {weight:1}){without}"
_PADS = "(l={pad_l}, r={pad_r}, t={pad_t}, b={pad_b})"
_AFTER: dict[str, tuple[str, ...]] = {
    "Linear": (_LINEAR,),
    "LinearWeightNorm": ("({inputSize} -> {outputSize}){without}",),
    "PartialLinear": ("({inputsize} -> {outputsize}){without}",),
    "Bilinear": ("({weight:2}x{weight:3} -> {weight:1}) {without}",),
    "SpatialFractionalMaxPooling": (
        "({outW}x{outH}, {poolSizeW},{poolSizeH})",
        "({ratioW}x{ratioH}, {poolSizeW},{poolSizeH})",
    ),
    "VolumetricFractionalMaxPooling": (
        "({outT}x{outW}x{outH}, {poolSizeT},{poolSizeW},{poolSizeH})",
        "({ratioT}x{ratioW}x{ratioH}, {poolSizeT},{poolSizeW},{poolSizeH})",
    ),
    **dict.fromkeys(("Dropout", "SpatialDropout", "VolumetricDropout"), ("({p:f})",)),
    "BatchNormalization": (" (2D) ({running_mean:n})",),
    "SpatialBatchNormalization": (" (4D) ({running_mean:n})",),
    "VolumetricBatchNormalization": (" (5D) ({running_mean:n})",),
    "ELU": (" (alpha:{alpha:f})",),
    "LeakyReLU": ("({negval:g})",),
    "RReLU": (" (l:{lower:f}, u:{upper:f})",),
    "Normalize": ("({p:p})",),
    "Reshape": ("({size:*x})",),
    "View": ("({size:*, })",),
    "SelectTable": ("({index:s})",),
    "Unsqueeze": ("(dim {pos:s})",),
    "UpSampling": (
        "({scale_factor}x, {mode:s})",
        "({odepth}x{oheight}x{owidth}, {mode:s})",
        "({oheight}x{owidth}, {mode:s})",
    ),
    "SpatialUpSamplingBilinear": ("({scale_factor})", "({oheight}, {owidth})"),
    **dict.fromkeys(("SpatialZeroPadding", "SpatialReflectionPadding", "SpatialReplicationPadding"), (_PADS,)),
    "WhiteNoise": (" mean: {mean:f}, std: {std:f}",),
}
"""Text after the class name; of several forms the first for which there are fields."""
_WINDOWS: dict[str, tuple[bool, str, bool]] = {
    **dict.fromkeys(("Convolution", "ConvolutionMM", "DepthWiseConvolution"), (True, "", False)),
    "DilatedConvolution": (True, "dilation", True),
    "FullConvolution": (True, "adj", False),
    **dict.fromkeys(("MaxPooling", "AveragePooling"), (False, "", False)),
    "DilatedMaxPooling": (False, "dilation", True),
}
"""Layers with a window, in two and three dimensions: whether they have planes, further fields, and shown always."""


def _after(obj: TorchObject, name: str) -> str:
    """Return the text after the class name."""
    axes = "WH" if name.startswith("Spatial") else "TWH" if name.startswith("Volumetric") else ""
    window = _WINDOWS.get(name.removeprefix("Spatial").removeprefix("Volumetric")) if axes else None
    forms = _AFTER.get(name, ("",))
    if window is not None:
        planes, extra, always = window
        form = _window(obj, axes, planes=planes, extra=extra, always=always)
        forms = (form + "{without}" if planes and axes == "WH" else form,)
    fields = _Fields(obj)
    for form in forms:
        with suppress(_Absent, TypeError, ValueError, OverflowError):  # a field is missing or has another type
            return form.format_map(fields)
    return ""


def _family(obj: TorchObject) -> tuple[str, str]:
    """Split into package and class: `("nn", "Linear")`."""
    package, _, name = str(obj.class_name).partition(".")
    return package, name


def layer_text(obj: TorchObject) -> str:
    """Return a layer on one line, as its `__tostring__` writes it, without its children: `nn.Linear(3 -> 4)`."""
    package, name = _family(obj)
    shown, own = clean(str(obj.class_name)), TEXTS.get(str(obj.class_name))
    if own is not None:
        with suppress(ArithmeticError, LookupError, TypeError, ValueError):  # a field is missing or has another type
            return shown + own(obj)
        return shown
    if shown == "nn.CReLU":
        return "CReLU()"
    name = shown if shown in _AFTER else name if package in ("nn", "cudnn") else ""
    return shown + _after(obj, name)


_Work = str | tuple[str, Value, str, int]
"""A line; or the start of the first line, what to show after it, the start of further lines, depth."""


def _module_lines(obj: TorchObject, head: str, indent: str, depth: int) -> list[_Work]:
    """Return the lines of a module; those of the modules inside it are still to be expanded."""
    package, name = _family(obj)
    if package != "nn":
        return [head + layer_text(obj)]
    modules = obj.get("modules")
    inner = modules.as_list() if isinstance(modules, Table) else None
    shown = clean(str(obj.class_name))
    if name == "MapTable":
        module = obj.get("module")
        if module is None:
            return [f"{head}{shown} {{ }}"]
        return [
            f"{head}{shown} {{",
            (indent + "  ", module, indent + "        ", depth + 1),
            indent + "}",
        ]
    if inner is None:
        return [head + layer_text(obj)]
    if name in _DECORATORS and inner:
        about = {"GPU": "device", "NaN": "id"}.get(name)
        number = obj.get(about) if about else None
        own = f"({_Formatted(number):s})" if isinstance(number, (int, float)) else ""
        return [(f"{head}{shown}{own} @ ", inner[0], indent, depth + 1)]
    if name in _SEQUENTIAL:
        arrows = "".join(f" -> ({number})" for number in range(1, min(len(inner), _LINES) + 1))
        work: list[_Work] = [
            head + "nn.Sequential {",
            f"{indent}  [input{arrows}{' -> …' if len(inner) > _LINES else ''} -> output]",
        ]
        work += [(f"{indent}  ({number}): ", item, indent + "  ", depth + 1) for number, item in enumerate(inner, 1)]
        return [*work, indent + "}"]
    if name in _BRANCHES:
        work = [f"{head}{shown} {{", indent + "  input"]
        for number, item in enumerate(inner, 1):
            last = number == len(inner)
            start = f"{indent}{'     `-> ' if last else '    |`-> '}({number}): "
            work.append((start, item, indent + ("         " if last else "    |    "), depth + 1))
        return [*work, indent + "     ... -> output", indent + "}"]
    return [head + layer_text(obj)]


def module_text(value: TorchObject) -> str:
    """Return the tree of modules, at most 1000 lines of it."""
    lines: list[str] = []
    stack: list[_Work] = [("", value, "", 0)]
    while stack:
        work = stack.pop()
        if len(lines) >= _LINES:
            lines.append("…")
            break
        if isinstance(work, str):
            lines.append(work)
            continue
        head, item, indent, depth = work
        if item is None:
            lines.append(head)
        elif depth >= _DEPTH:
            lines.append(head + "…")
        elif isinstance(item, TorchObject):
            stack += reversed(_module_lines(item, head, indent, depth))
        else:
            lines.append(head + short(item))
    return "\n".join(lines)


def _text(value: Value) -> str:
    """Return the output of `print` for a Lua object, table or collection; of tables the first entries, one per line."""
    if isinstance(value, TorchObject):
        return module_text(value)
    lines = [f"  {_key_text(key)} : {short(item)}" for key, item in islice(value._inside(), _ENTRIES)]
    left = len(value.elements if isinstance(value, TdsVec) else value._table().raw_keys) - len(lines)
    return "\n".join(["{", *lines, *[f"  … {left} more"] * (left > 0), "}"])


def _key_text(key: Value) -> str:
    if isinstance(key, (bytes, str)):
        return clean(key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key)
    return f"{key:.14g}" if isinstance(key, float) else short(key)


def _html(root: Value) -> str:
    """Return HTML of a table, an object or a `tds.Hash`, for notebooks: an expandable table of fields.

    Bounded and escaped; an object that occurs again is only named.
    """
    pieces: list[str] = []
    seen: set[int] = set()
    left = _HTML_ENTRIES
    stack: list[tuple[str, Value, int] | str] = [("", root, 0)]
    while stack:
        entry = stack.pop()
        if isinstance(entry, str):
            pieces.append(entry)
            continue
        start, value, depth = entry
        title = escape(layer_text(value) if isinstance(value, TorchObject) else short(value))
        table = value._table() if isinstance(value, (Table, TorchObject, TdsHash)) else None
        if table is None or not table.raw_keys or id(value) in seen or depth >= _HTML_DEPTH or left <= 0:
            again = " (shown above)" if id(value) in seen else ""
            shown = f"<code>{title}</code>" if isinstance(value, Tensor) else title
            pieces.append(f"<div>{start}{shown}{again}</div>")
            continue
        seen.add(id(value))
        pieces.append(f"<details{' open' * (depth == 0)}><summary>{start}{title}</summary>")
        pieces.append("<div style='margin-left:1.5em'>")
        count = min(len(table.raw_keys), _HTML_WIDE, left)
        left -= count
        more = [f"<div>… {len(table.raw_keys) - count} more</div>"] * (len(table.raw_keys) > count)
        stack += ["</div></details>", *more]
        inside = list(islice(table.raw_items(), count))
        stack += [(f"<b>{escape(_key_text(key))}</b>: ", item, depth + 1) for key, item in reversed(inside)]
    return "".join(pieces)
