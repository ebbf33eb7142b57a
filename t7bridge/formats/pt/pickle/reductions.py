"""Calls that build values: how each is read, and to which call a value is reduced. Here Python's own and numpy's.

`reads` (in `meaning`) registers what a call returns, `STATES` what a state sets, and `FORMS` the call or the name by
which a value is written. numpy itself is not needed for any of them.

What is written is what PyTorch's safe loader takes, unless names of other packages are asked for. So other objects are
plain data: a dict of the attributes, with the class under `__class__`. If it is constructed from more than attributes,
or an attribute has one of these names, the parts are under `__args__`, `__kwargs__`, `__state__`, `__items__` and
`__pairs__`. A bare class or function becomes its dotted name, an array of numpy a tensor or a list, a frozenset a set.

Source: PyTorch 2.13 `torch/_weights_only_unpickler.py`; numpy 2.4 `numpy/_core/src/multiarray/methods.c`
(`array_reduce`, `array_setstate`), `descriptor.c` (`arraydescr_reduce`, `arraydescr_setstate`).
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from encodings import normalize_encoding
from encodings.aliases import aliases
from functools import cache
from typing import Any

from attrs import field

from ....data import define, pattern
from ....errors import CorruptError, UnsupportedError
from ....graph.dtypes import NUMPY_ELEMENTS
from ....graph.python import (
    UNSET,
    DefaultDict,
    Device,
    NumpyArray,
    NumpyDtype,
    NumpyScalar,
    PythonGlobal,
    PythonObject,
    TorchConstant,
    TorchSize,
    in_order,
    key_text,
)
from ....graph.storage import Storage
from ...fields import shown
from ..arrays import numpy_value, tensor_of_array, text_items
from ..storages import DEVICE_TYPES, ELEMENT_NAMES
from .meaning import GLOBALS, STATES, PtMeaning, reads
from .names import WEIGHTS_ONLY, is_copyreg, may_name

Scalar = str | bytes | int | float | bool | None


@define(frozen=True, eq=False)
class NamedStorage:
    """A persistent id that names a storage.

    Attributes:
        storage: the memory.
        storage_class: its class in `torch`; `UntypedStorage` where the tensor states its element type.
        count: number of elements, or of bytes where the class is untyped.
    """

    storage: Storage
    storage_class: str
    count: int


@define(frozen=True, eq=False)
class Reduction:
    """A call that builds a value, and the state set afterwards.

    Attributes:
        constructor: the callable: a `PythonGlobal`, or another value.
        args: the arguments.
        new: whether it is `cls.__new__`.
        state: the argument of `__setstate__`; `UNSET` if there is none.
        items: items to append.
        pairs: entries to set by key.
    """

    constructor: Any
    args: Any = ()
    new: bool = False
    state: Any = UNSET
    items: list[Any] = field(factory=list)
    pairs: list[tuple[Any, Any]] = field(factory=list)


Form = Reduction | NamedStorage | PythonGlobal | dict[Any, Any] | list[Any] | Scalar
"""How a value is written: built, named, or as plain data."""
FORMS: dict[type, Callable[[Any, Naming], Form]] = {}
"""The form of a value, by type."""


@cache
def named(path: str) -> PythonGlobal:
    """Return a class or function of PyTorch, numpy or Python by its dotted name."""
    module, _, name = path.rpartition(".")
    return PythonGlobal(module, name)


def calls(path: str, *args: Any, **parts: Any) -> Reduction:
    """Return a call of a function, `torch._utils._rebuild_tensor_v2`, with what is set after it, as in `Reduction`."""
    return Reduction(named(path), args, **parts)


def lower(value: Any, naming: Naming) -> Form:
    """Return the form of a value.

    Args:
        value: any except builtins that have opcodes of their own.
        naming: decides which names are written.

    Raises:
        UnsupportedError: a pickle cannot represent it.
    """
    for kind in type(value).__mro__:
        if kind in FORMS:
            return FORMS[kind](value, naming)
    raise UnsupportedError(f"a value of type {type(value).__name__} cannot be written to a .pt")


class Naming:
    """Decides which names are written.

    Args:
        allow_foreign: whether names of other packages are written.

    Attributes:
        allow_foreign: whether they are.
        current: the value that is written now: the one noted for its names.
        left_out: the names that are not written, and the values that would have them.
        blocking: the names written that `torch.load(weights_only=True)` refuses, and the first value that has each.
    """

    def __init__(self, allow_foreign: bool) -> None:
        self.allow_foreign = allow_foreign
        self.current: Any = None
        self.left_out: dict[str, list[Any]] = {}
        self.blocking: dict[str, Any] = {}
        self._foreign_parts: dict[int, Any] = {}
        """By the identity of a key or a part of one: the first part in it that becomes something else; or None."""
        self._texts: dict[int, str] = {}
        """The texts of keys, by their identities."""
        self._next_numbers: dict[str, int] = {}
        """The texts written so far, each with the number of its next duplicate."""
        self._marks: dict[int, bytes] = {}
        """Used by `in_order`."""

    def may(self, name: Any) -> bool:
        """Return whether a name may be written; if not, note the value that has it."""
        if isinstance(name, (PythonGlobal, PythonObject)) and may_name(name, self.allow_foreign):
            return True
        self.leave_out(getattr(name, "path", "<computed>"))
        return False

    def may_call(self, path: str) -> bool:
        """Return whether a name that the safe loader refuses may be written; if not, note the value that has it."""
        if not self.allow_foreign:
            self.leave_out(path)
        return self.allow_foreign

    def leave_out(self, path: str) -> None:
        """Note the value that is written now: it would have a name that is not written."""
        self.left_out.setdefault(path, []).append(self.current)

    def _is_foreign(self, part: Any) -> bool:
        """Return whether a part of a key becomes something else: a dict or a list, or equal to another key."""
        if isinstance(part, (PythonGlobal, PythonObject)):
            return not may_name(part, self.allow_foreign)
        if isinstance(part, TorchConstant):
            return part.kind == "memory_format" and not self.allow_foreign
        return isinstance(part, _FOREIGN_KEYS) and not self.allow_foreign

    def elements(self, items: set[Any] | frozenset[Any]) -> list[Any]:
        """Return the elements of a set in order, as `hashable` writes them."""
        return [self.hashable(item) for item in in_order(items, self._marks)]

    def hashable(self, key: Any) -> Any:
        """Return a key, or its text if it holds an object that becomes a dict. All texts are distinct."""
        if type(key) in _SIMPLE:
            return key
        if id(key) in self._texts:
            return self._texts[id(key)]
        text = self._text(key)
        if text is None:
            return key
        unique_text = text
        while unique_text in self._next_numbers:
            number = self._next_numbers.get(text, 2)
            self._next_numbers[text] = number + 1
            unique_text = f"{text} #{number}"
        self._next_numbers[unique_text] = 2
        self._texts[id(key)] = unique_text
        return unique_text

    def _text(self, key: Any) -> str | None:
        """Return the text of a key with a part that becomes something else; `None` for keys that are unchanged."""
        foreign_parts = self._foreign_parts
        stack = [key]
        while stack:
            part = stack[-1]
            if id(part) not in foreign_parts:
                foreign_part = None
                if self._is_foreign(part):
                    foreign_part = part
                elif isinstance(part, (tuple, frozenset)):
                    inner_parts = [inner for inner in part if isinstance(inner, _PARTS_OF_KEYS)]
                    # A part is judged after the parts inside it.
                    unjudged = [inner for inner in inner_parts if id(inner) not in foreign_parts]
                    if unjudged:
                        stack += unjudged
                        continue
                    for inner in inner_parts:
                        foreign_part = foreign_parts[id(inner)]
                        if foreign_part is not None:
                            break
                foreign_parts[id(part)] = foreign_part
            stack.pop()
        foreign_part = foreign_parts[id(key)]
        if foreign_part is None:
            return None
        text = key_text(key, self._marks)
        # The arguments tell objects of one class apart.
        args = foreign_part.args if isinstance(foreign_part, PythonObject) else ()
        if args and isinstance(args, tuple):
            text += key_text(args, self._marks)
        return text


_SIMPLE = frozenset({str, int, bytes, float, bool, type(None)})
"""Types of keys that never change."""
_FOREIGN_KEYS = (frozenset, NumpyArray, NumpyScalar, NumpyDtype)
"""Types whose names the safe loader refuses."""
_PARTS_OF_KEYS = (tuple, PythonGlobal, PythonObject, TorchConstant, *_FOREIGN_KEYS)
"""Types of the parts of a key that may change."""
_PLAIN_DATA_KEYS = frozenset(("__class__", "__args__", "__kwargs__", "__state__", "__items__", "__pairs__"))
"""Keys of `plain_data`: attributes with such a name are below `__state__`."""


def plain_data(value: PythonObject) -> dict[Any, Any]:
    """Return an object as a dict that names its class."""
    parts: dict[Any, Any] = {"__class__": value.path}
    if value.args not in ((), UNSET) and not is_copyreg(value.constructor):
        parts["__args__"] = value.args
    if value.kwargs:
        parts["__kwargs__"] = value.kwargs
    attributes = value.attributes
    if attributes and _PLAIN_DATA_KEYS.isdisjoint(attributes):
        parts.update(attributes)
    elif value.state is not UNSET and value.state is not None:
        parts["__state__"] = value.state
    if value.items:
        parts["__items__"] = value.items
    if value.pairs:
        parts["__pairs__"] = [list(pair) for pair in value.pairs]
    return parts


# Python's own


def _filled(meaning: PtMeaning, target: Any, source: Any) -> Any:
    """Return a dict filled from the constructor's argument: a dict, or a list of pairs."""
    if isinstance(source, dict):
        source = list(source.items())
    if not isinstance(source, (list, tuple)):
        return NotImplemented
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in source):
        return NotImplemented
    meaning.work.spend(len(source))
    for key, item in source:
        meaning.work.check_key(target, key)
        target[key] = item
    return target


def _set_attributes(meaning: PtMeaning, value: OrderedDict[Any, Any], state: Any) -> Any:
    """Set the attributes of an `OrderedDict`: `_metadata` of a state dict. None may shadow those of the class."""
    if state is None:
        return value
    if not isinstance(state, dict):
        raise CorruptError("an OrderedDict receives a state that is not a dict")
    meaning.work.spend(len(state))
    for key, item in state.items():
        if type(key) is not str or hasattr(OrderedDict, key):
            raise CorruptError(f"an OrderedDict receives an attribute {key!r:.60}")
        setattr(value, key, item)
    return value


def _copied(meaning: PtMeaning, kind: Callable[[Any], Any], items: Any = ()) -> Any:
    """Return the result of a type or function that takes time for each of its items."""
    meaning.work.spend(len(items))
    if kind in (set, frozenset):
        meaning.work.check_elements(items)
    return kind(items)


def _encode(meaning: PtMeaning, text: Any, encoding: str = "utf-8") -> Any:
    """Return the bytes that protocol 2 writes as text: one character per byte."""
    name = normalize_encoding(encoding).lower()
    codec = aliases.get(name, name)
    if codec not in ("latin_1", "utf_8", "ascii"):  # CPython would import it by its name
        raise UnsupportedError("bytes are written as a text in an encoding that no pickler uses", expected="latin1")
    if type(text) is not str:
        return NotImplemented
    return _copied(meaning, lambda text: text.encode(codec), text)


def _bytearray(meaning: PtMeaning, data: Any = b"", *encoding: str) -> Any:
    """Return a bytearray of bytes, or of a text and its encoding."""
    if not isinstance(data, (bytes, bytearray)) or encoding:
        data = _encode(meaning, data, *encoding)
    if data is NotImplemented:
        return NotImplemented
    return _copied(meaning, bytearray, data)


_COLLECTIONS = (list, tuple, set, frozenset)
for _kind in _COLLECTIONS:
    reads(f"builtins.{_kind.__name__}", _COLLECTIONS, least=0)(
        lambda meaning, items=(), kind=_kind: _copied(meaning, kind, items)
    )
for _path, _empty, _source in (
    ("builtins.dict", dict, object),
    ("collections.OrderedDict", OrderedDict, object),
    ("collections.Counter", Counter, dict),
):
    reads(_path, _source, least=0)(lambda meaning, source=(), new=_empty: _filled(meaning, new(), source))
reads("collections.defaultdict", object, object, least=0)(
    lambda meaning, factory=None, source=(): _filled(meaning, DefaultDict(factory), source)
)
reads("_codecs.encode", object, str, least=1)(_encode)
reads("builtins.bytes", (bytes, bytearray), least=0)(lambda meaning, data=b"": _copied(meaning, bytes, data))
reads("builtins.bytearray", object, str, least=0)(_bytearray)
reads("builtins.complex", (int, float), (int, float), least=1)(lambda meaning, *parts: complex(*parts))
# A call of `copyreg` by itself only leads to the next, which a file could repeat endlessly.
reads("copyreg.__newobj__", object, most=1 << 30)(
    lambda meaning, cls, *args: NotImplemented if is_copyreg(cls) else meaning.make(cls, args, "newobj")
)
reads("copyreg._reconstructor", most=1 << 30, least=0)(lambda meaning, *args: NotImplemented)
reads("copyreg.__newobj_ex__", object, object, object)(
    lambda meaning, cls, *args: NotImplemented if is_copyreg(cls) else meaning.make(cls, args[0], "newobj_ex", args[1])
)
STATES[OrderedDict] = _set_attributes


def _of_object(value: PythonObject, naming: Naming) -> Form:
    """Return an object as it was read, or as a dict if its class is not written."""
    if not naming.may(value):
        return plain_data(value)
    constructor = value.constructor
    args = value.args
    if value.how == "newobj_ex":
        # The opcode of this name is of protocol 4; in protocol 2 the function does the same.
        constructor = named("copyreg.__newobj_ex__")
        args = (value.constructor, value.args, value.kwargs)
    return Reduction(constructor, args, value.how == "newobj", value.state, value.items, value.pairs)


def _of_frozenset(value: frozenset[Any], naming: Naming) -> Reduction:
    name = "builtins.frozenset" if naming.may_call("builtins.frozenset") else "builtins.set"
    return calls(name, naming.elements(value))


def _of_defaultdict(value: DefaultDict, naming: Naming) -> Form:
    if not naming.may_call("collections.defaultdict"):
        return dict(value)
    has_factory = value.factory is not None and naming.may(value.factory)
    args = (value.factory,) if has_factory else ()
    return calls("collections.defaultdict", *args, pairs=list(value.items()))


FORMS.update(
    {
        OrderedDict: lambda value, _: calls(
            "collections.OrderedDict", state=dict(vars(value)) or UNSET, pairs=list(value.items())
        ),
        DefaultDict: _of_defaultdict,
        Counter: lambda value, _: calls("collections.Counter", pairs=list(value.items())),
        set: lambda value, naming: calls("builtins.set", naming.elements(value)),
        frozenset: _of_frozenset,
        bytearray: lambda value, _: calls("builtins.bytearray", bytes(value)),
        complex: lambda value, _: calls("builtins.complex", value.real, value.imag),
        PythonGlobal: lambda value, naming: value if naming.may(value) else value.path,
        PythonObject: _of_object,
    }
)


# PyTorch's constants


def _constants() -> dict[str, TorchConstant]:
    """Return the constants of `torch` by name."""
    schemes = "tensor_affine tensor_symmetric channel_affine channel_symmetric channel_affine_float_qparams"
    layouts = "strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc _mkldnn jagged"
    formats = "contiguous_format preserve_format channels_last channels_last_3d"
    constants = {alias: TorchConstant("dtype", name) for alias, name in ELEMENT_NAMES.items()}
    constants |= {name: TorchConstant("layout", name) for name in layouts.split()}
    constants |= {f"per_{name}": TorchConstant("qscheme", f"per_{name}") for name in schemes.split()}
    constants |= {name: TorchConstant("memory_format", name) for name in formats.split()}
    return constants


CONSTANTS = _constants()
GLOBALS.update((f"torch.{_name}", _constant) for _name, _constant in CONSTANTS.items())


_DEVICE = pattern(rf"({'|'.join(DEVICE_TYPES)})(?::(0|[1-9]\d{{0,3}}))?\Z")
_MOST_DEVICES = 128
"""PyTorch's number of a device is one signed byte."""


def _layout(meaning: PtMeaning, name: str) -> Any:
    """Return a layout by its name, `torch.strided`."""
    constant = CONSTANTS.get(name.removeprefix("torch."))
    if constant is None or constant.kind != "layout":
        return NotImplemented
    return constant


def _size(meaning: PtMeaning, extents: Any = ()) -> Any:
    """Return a `torch.Size`, of integers of 64 bits."""
    if not all(type(extent) is int and abs(extent) < 1 << 63 for extent in extents):
        return NotImplemented
    return _copied(meaning, TorchSize, extents)


def _device(meaning: PtMeaning, text: str, *index: int | None) -> Any:
    """Return a device: `cuda:0`, or its type and number."""
    match = _DEVICE.match(text)
    if match is None or (index and match[2]):
        return NotImplemented
    number = index[0] if index else None
    if match[2]:
        number = int(match[2])
    if number is not None and not 0 <= number < _MOST_DEVICES:
        return NotImplemented
    return Device(match[1], number)


reads("torch.serialization._get_layout", str)(_layout)
reads("torch.Size", (list, tuple), least=0)(_size)
reads("torch.device", str, (int, type(None)), least=1)(_device)


def _of_device(value: Device, _: Naming) -> Reduction:
    args = (value.type,) if value.index is None else (value.type, value.index)
    return calls("torch.device", *args)


def _of_constant(value: TorchConstant, naming: Naming) -> Form:
    path = f"torch.{value.name}"
    if value.kind == "layout":
        return calls("torch.serialization._get_layout", path)
    if path not in WEIGHTS_ONLY and not naming.may_call(path):
        return path
    return named(path)


# numpy's arrays, scalars and element types


_BYTE_ORDERS = ("<", ">", "=", "|")
"""Little, big, the machine's, and none."""


def _dtype(meaning: PtMeaning, code: Any, *options: Any) -> Any:
    """Return an element type of numpy by its code, `f4` or `<f4`."""
    if isinstance(code, bytes):
        code = code.decode("latin1")
    if code[:1] in _BYTE_ORDERS:
        return NumpyDtype(code[1:], code[0])
    return NumpyDtype(code)


def _of_dtype(value: NumpyDtype, naming: Naming) -> Form:
    """Return the call for an element type; its state is version 3 of the layout."""
    if not naming.may_call("numpy.dtype"):
        return value.code
    state = value.state
    if not state:
        flags = _OBJECT_FLAGS if value.code.startswith("O") else 0
        # Version, byte order; subarray, names and fields; size and alignment, as the code says; flags.
        state = (3, value.order, None, None, None, -1, -1, flags)
    return calls("numpy.dtype", value.code, False, True, state=state)


def _set_dtype_state(meaning: PtMeaning, value: NumpyDtype, state: Any) -> NumpyDtype:
    """Set the byte order of an element type, and keep its state, described in `_of_dtype`, for writing."""
    state = _numpy_state(state)
    order = _item(state, 1)
    if isinstance(order, bytes):
        order = order.decode("latin1")
    if order not in _BYTE_ORDERS:
        raise CorruptError("a numpy dtype has no byte order", found=shown(order))
    _check_dtype(value, state)
    value.order = order
    value.state = state
    return value


_REFERENCES, _OBJECT_FLAGS, _WITH_OBJECTS = 0b111, 63, 27
"""Flags of a dtype whose elements hold references, those of `object`, and of a structure with such fields."""


def _check_dtype(dtype: NumpyDtype, state: tuple[Any, ...]) -> None:
    """Refuse a state with which numpy, which does not check it, would take numbers for references, or read behind an
    element.

    Raises:
        CorruptError: it is such a state.
    """
    inner_dtypes = _inner_dtypes(subarray=_item(state, 2), fields=_item(state, 4))
    is_valid = _are_inside(inner_dtypes, _item(state, 5)) and _has_fitting_flags(dtype, inner_dtypes, _item(state, 7))
    if dtype.code[:1] in ("m", "M"):
        # Dates have one item more, with their unit.
        is_valid = is_valid and len(state) == 9 and isinstance(state[8], tuple)
    if not is_valid:
        raise CorruptError("a numpy dtype receives a state that its kind cannot have", found=shown(dtype.code))


def _item(state: tuple[Any, ...], position: int) -> Any:
    """Return an item of a state; None if the state is shorter."""
    return state[position] if position < len(state) else None


def _inner_dtypes(subarray: Any, fields: Any) -> list[tuple[Any, Any]]:
    """Return the dtypes of fields and of a subarray, with their offsets in bytes; `None` for what is neither."""
    dtypes: list[tuple[Any, Any]] = []
    if isinstance(fields, dict):
        for parts in fields.values():
            if isinstance(parts, tuple) and len(parts) > 1:
                dtypes.append((parts[0], parts[1]))
            else:
                dtypes.append((None, None))
    if isinstance(subarray, tuple) and subarray:
        dtypes.append((subarray[0], 0))
    elif subarray is not None:
        dtypes.append((None, 0))
    return dtypes


def _are_inside(inner_dtypes: list[tuple[Any, Any]], size: Any) -> bool:
    """Return whether fields and subarray are dtypes that lie inside an element of a size in bytes."""
    for dtype, offset in inner_dtypes:
        if type(size) is not int or not isinstance(dtype, NumpyDtype) or type(offset) is not int:
            return False
        if not 0 <= offset <= size - dtype.itemsize:
            return False
    return True


def _has_fitting_flags(dtype: NumpyDtype, inner_dtypes: list[tuple[Any, Any]], flags: Any) -> bool:
    """Return whether flags mark elements as references where they are, and nowhere else; older states have none."""
    if flags is None:
        return True
    if type(flags) is not int:
        return False
    if dtype.code[:1] == "O":
        return flags & _OBJECT_FLAGS == _OBJECT_FLAGS
    if any(isinstance(inner, NumpyDtype) and _holds_objects(inner) for inner, _ in inner_dtypes):
        return flags & _WITH_OBJECTS == _WITH_OBJECTS
    return not flags & _REFERENCES


def _holds_objects(dtype: NumpyDtype) -> bool:
    """Return whether elements of a dtype are, or contain, Python objects."""
    if dtype.code[:1] == "O":
        return True
    flags = _item(dtype.state, 7) if isinstance(dtype.state, tuple) else None
    return type(flags) is int and bool(flags & _REFERENCES)


def _numpy_state(state: Any) -> tuple[Any, ...]:
    """Return the state of a numpy value, which is a tuple.

    Raises:
        CorruptError: it is not.
    """
    if not isinstance(state, tuple):
        raise CorruptError("a numpy value receives a state that is not a tuple")
    return state


def _plain_array(array: NumpyArray, naming: Naming) -> Form:
    """Return the form of an array's elements without numpy: a tensor, a list, or a dict that says what they are."""
    if isinstance(array.data, list):
        return list(array.data)
    texts = text_items(array)
    if texts is not None:
        return texts
    element = NUMPY_ELEMENTS.get(array.dtype.code)
    if element is not None:
        tensor = tensor_of_array(array, element, "cpu")
        if tensor is not None:
            return lower(tensor, naming)
    dtype = array.dtype.order + array.dtype.code
    return {"__class__": array.cls, "dtype": dtype, "shape": array.shape, "data": array.data}


def _of_scalar(value: NumpyScalar, naming: Naming) -> Form:
    """Return the call for a scalar of numpy; without numpy, Python's number or text, or a dict."""
    if naming.may_call("numpy.core.multiarray.scalar"):
        return calls("numpy.core.multiarray.scalar", value.dtype, value.data)
    texts = text_items(value.array)
    if texts is not None:
        text: str | bytes = texts[0]
        return text
    if value.dtype.code in NUMPY_ELEMENTS and isinstance(value.data, bytes):
        number: complex | float | int | bool = numpy_value(value.array)[()].item()
        return lower(number, naming) if isinstance(number, complex) else number
    return {"__class__": "numpy.scalar", "dtype": value.dtype.order + value.dtype.code, "data": value.data}


def _of_array(value: NumpyArray, naming: Naming) -> Form:
    """Return the call for an array: an empty one of bytes, whose state, version 1 of the layout, has the rest."""
    if not naming.may_call("numpy.core.multiarray._reconstruct"):
        return _plain_array(value, naming)
    module, _, name = value.cls.rpartition(".")
    cls = PythonGlobal(module, name)
    if not naming.may(cls):
        cls = named("numpy.ndarray")
    state = (1, value.shape, value.dtype, value.fortran, value.data)
    return calls("numpy.core.multiarray._reconstruct", cls, (0,), b"b", state=state)


def _set_array_state(meaning: PtMeaning, value: NumpyArray, state: Any) -> NumpyArray:
    """Set shape, element type, order and elements of an array."""
    state = _numpy_state(state)
    if len(state) == 4:  # before version 1 of the layout
        state = (0, *state)
    if len(state) == 5 and isinstance(state[2], (PythonObject, PythonGlobal)):
        raise UnsupportedError(
            f"a numpy array has elements of a class, {_class_of_dtype(state[2])}",
            hint="Save plain arrays: one for each field of a record; texts as a list.",
        )
    if len(state) != 5 or not isinstance(state[2], NumpyDtype):
        raise CorruptError("a numpy array receives an invalid state", found=f"a tuple of {len(state)}")
    _, shape, value.dtype, fortran, data = state
    value.fortran = bool(fortran)
    # A string of Python 2 was already decoded as UTF-8, if valid.
    return _fill(value, shape, data.encode() if isinstance(data, str) else data)


def _class_of_dtype(dtype: PythonObject | PythonGlobal) -> str:
    """Return the class of elements that a dtype names, for errors."""
    cls: PythonGlobal | None
    if isinstance(dtype, PythonGlobal):
        cls = dtype
    elif isinstance(dtype.args, tuple) and dtype.args and isinstance(dtype.args[0], PythonGlobal):
        cls = dtype.args[0]
    else:
        cls = dtype.cls
    return shown(cls.path if cls is not None else "")


def _fill(array: NumpyArray, shape: Any, data: Any) -> NumpyArray:
    """Set shape and elements of an array, whose bytes must fit its shape."""
    if not isinstance(shape, (tuple, list)) or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise CorruptError("a numpy array has no shape", found=f"{type(shape).__name__}")
    count = math.prod(shape)
    if isinstance(data, (bytes, bytearray)):
        width = array.dtype.itemsize
        if width and len(data) != count * width:
            raise CorruptError(
                "a numpy array's bytes do not fit its shape", expected=f"{count * width} bytes", found=f"{len(data)}"
            )
    elif not isinstance(data, list) or len(data) != count:
        raise CorruptError("a numpy array has no elements", expected=f"{count}", found=type(data).__name__)
    array.shape = tuple(shape)
    array.data = bytes(data) if isinstance(data, bytearray) else data
    return array


STATES[NumpyDtype] = _set_dtype_state
STATES[NumpyArray] = _set_array_state
reads("numpy.dtype", (str, bytes), object, object, object, least=1)(_dtype)
reads("numpy.core.multiarray.scalar", NumpyDtype, object, least=1)(
    lambda meaning, dtype, data=b"": NumpyScalar(dtype, data.encode() if isinstance(data, str) else data)
)
# An array without elements: its state follows.
reads("numpy.core.multiarray._reconstruct", PythonGlobal, object, object, least=1)(
    lambda meaning, cls, *rest: NumpyArray(NumpyDtype("i1"), (0,), False, b"", cls.path)
)
reads("numpy.core.numeric._frombuffer", (bytes, bytearray), NumpyDtype, object, object)(
    lambda meaning, data, dtype, shape, order: _fill(NumpyArray(dtype, (0,), order == "F", b""), shape, bytes(data))
)
FORMS.update(
    {
        TorchConstant: _of_constant,
        TorchSize: lambda value, _: calls("torch.Size", tuple(value)),
        Device: _of_device,
        NumpyDtype: _of_dtype,
        NumpyScalar: _of_scalar,
        NumpyArray: _of_array,
    }
)
