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
import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from encodings import normalize_encoding
from encodings.aliases import aliases
from functools import cache
from typing import Any

from attrs import field

from ....data import define
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
    return PythonGlobal(*path.rpartition(".")[::2])


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
        self._foreign: dict[int, Any] = {}  # what becomes something else in each part of a key
        self._texts: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._marks: dict[int, bytes] = {}

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
        unique = text
        while unique in self._numbers:  # each text with the number of its next duplicate
            number = self._numbers[text] = self._numbers.get(text, 2) + 1
            unique = f"{text} #{number - 1}"
        self._numbers[unique] = 2
        self._texts[id(key)] = unique
        return unique

    def _text(self, key: Any) -> str | None:
        """Return the text of a key with a part that becomes something else; `None` for keys that are unchanged."""
        known = self._foreign
        stack = [key]
        while stack:
            part = stack[-1]
            if id(part) not in known:
                found = None
                if self._is_foreign(part):
                    found = part
                elif isinstance(part, (tuple, frozenset)):
                    inside = [each for each in part if isinstance(each, _PARTS_OF_KEYS)]
                    missing = [each for each in inside if id(each) not in known]
                    if missing:
                        stack += missing
                        continue
                    found = next((known[id(each)] for each in inside if known[id(each)] is not None), None)
                known[id(part)] = found
            stack.pop()
        first = known[id(key)]
        if first is None:
            return None
        args = first.args if isinstance(first, PythonObject) else ()
        return f"{key_text(key, self._marks)}{key_text(args, self._marks) if args and isinstance(args, tuple) else ''}"


_SIMPLE = frozenset({str, int, bytes, float, bool, type(None)})
_FOREIGN_KEYS = (frozenset, NumpyArray, NumpyScalar, NumpyDtype)
_PARTS_OF_KEYS = (tuple, PythonGlobal, PythonObject, TorchConstant, *_FOREIGN_KEYS)
_OURS = frozenset(("__class__", "__args__", "__kwargs__", "__state__", "__items__", "__pairs__"))


def plain_data(value: PythonObject) -> dict[Any, Any]:
    """Return an object as a dict that names its class."""
    parts: dict[Any, Any] = {"__class__": value.path}
    if value.args not in ((), UNSET) and not is_copyreg(value.constructor):
        parts["__args__"] = value.args
    if value.kwargs:
        parts["__kwargs__"] = value.kwargs
    attributes = value.attributes
    if attributes and _OURS.isdisjoint(attributes):
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
    if not isinstance(source, (list, tuple)) or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in source):
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
    return _copied(meaning, lambda text: text.encode(codec), text) if type(text) is str else NotImplemented


def _bytearray(meaning: PtMeaning, data: Any = b"", *encoding: str) -> Any:
    if not isinstance(data, (bytes, bytearray)) or encoding:
        data = _encode(meaning, data, *encoding)
    return data if data is NotImplemented else _copied(meaning, bytearray, data)


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
    if not naming.may(value):
        return plain_data(value)
    constructor, args = value.constructor, value.args
    if value.how == "newobj_ex":
        constructor, args = named("copyreg.__newobj_ex__"), (value.constructor, args, value.kwargs)
    return Reduction(constructor, args, value.how == "newobj", value.state, value.items, value.pairs)


def _of_frozenset(value: frozenset[Any], naming: Naming) -> Reduction:
    name = "builtins.frozenset" if naming.may_call("builtins.frozenset") else "builtins.set"
    return calls(name, naming.elements(value))


def _of_defaultdict(value: DefaultDict, naming: Naming) -> Form:
    if not naming.may_call("collections.defaultdict"):
        return dict(value)
    factory = () if value.factory is None or not naming.may(value.factory) else (value.factory,)
    return calls("collections.defaultdict", *factory, pairs=list(value.items()))


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
    found = {alias: TorchConstant("dtype", name) for alias, name in ELEMENT_NAMES.items()}
    found |= {name: TorchConstant("layout", name) for name in layouts.split()}
    found |= {f"per_{name}": TorchConstant("qscheme", f"per_{name}") for name in schemes.split()}
    formats = "contiguous_format preserve_format channels_last channels_last_3d"
    return found | {name: TorchConstant("memory_format", name) for name in formats.split()}


CONSTANTS = _constants()
GLOBALS.update((f"torch.{_name}", _constant) for _name, _constant in CONSTANTS.items())


_DEVICE = re.compile(rf"({'|'.join(DEVICE_TYPES)})(?::(0|[1-9]\d{{0,3}}))?\Z")
_MOST_DEVICES = 128
"""PyTorch's number of a device is one signed byte."""


def _layout(meaning: PtMeaning, name: str) -> Any:
    found = CONSTANTS.get(name.removeprefix("torch."))
    return found if found and found.kind == "layout" else NotImplemented


def _size(meaning: PtMeaning, extents: Any = ()) -> Any:
    if not all(type(extent) is int and abs(extent) < 1 << 63 for extent in extents):
        return NotImplemented
    return _copied(meaning, TorchSize, extents)


def _device(meaning: PtMeaning, text: str, *index: int | None) -> Any:
    match = _DEVICE.match(text)
    if match is None or (index and match[2]):
        return NotImplemented
    number = int(match[2]) if match[2] else None
    if index:
        number = index[0]
    if number is not None and not 0 <= number < _MOST_DEVICES:
        return NotImplemented
    return Device(match[1], number)


reads("torch.serialization._get_layout", str)(_layout)
reads("torch.Size", (list, tuple), least=0)(_size)
reads("torch.device", str, (int, type(None)), least=1)(_device)


def _of_constant(value: TorchConstant, naming: Naming) -> Form:
    path = f"torch.{value.name}"
    if value.kind == "layout":
        return calls("torch.serialization._get_layout", path)
    if path not in WEIGHTS_ONLY and not naming.may_call(path):
        return path
    return named(path)


# numpy's arrays, scalars and element types


def _dtype(meaning: PtMeaning, code: Any, *options: Any) -> Any:
    code = code.decode("latin1") if isinstance(code, bytes) else code
    return NumpyDtype(code[1:], code[0]) if code[:1] in tuple("<>=|") else NumpyDtype(code)


def _of_dtype(value: NumpyDtype, naming: Naming) -> Form:
    if not naming.may_call("numpy.dtype"):
        return value.code
    state = value.state or (3, value.order, None, None, None, -1, -1, _OBJECT * value.code.startswith("O"))
    return calls("numpy.dtype", value.code, False, True, state=state)


def _set_dtype_state(meaning: PtMeaning, value: NumpyDtype, state: Any) -> NumpyDtype:
    order = (*_numpy_state(state), None, None)[1]
    order = order.decode("latin1") if isinstance(order, bytes) else order
    if order not in ("<", ">", "=", "|"):
        raise CorruptError("a numpy dtype has no byte order", found=shown(order))
    _check_dtype(value, state)
    value.order, value.state = order, state
    return value


_REFERENCES, _OBJECT, _WITH_OBJECTS = 0b111, 63, 27
"""Flags of a dtype whose elements hold references, those of `object`, and of a structure with such fields."""


def _check_dtype(dtype: NumpyDtype, state: tuple[Any, ...]) -> None:
    """Refuse a state that makes numpy take numbers for references, or read behind an element: it does not check.

    Raises:
        CorruptError: it does.
    """
    kind = dtype.code[:1]
    subarray, fields, size, flags = ((*state, *[None] * 8)[place] for place in (2, 4, 5, 7))
    inside = _dtypes_inside(subarray, fields)
    whole = type(size) is int and all(
        isinstance(each, NumpyDtype) and type(at) is int and 0 <= at <= size - each.itemsize for each, at in inside
    )
    objects = any(isinstance(each, NumpyDtype) and (each.code[:1] == "O" or _has_objects(each)) for each, _ in inside)
    wanted = _OBJECT if kind == "O" else _WITH_OBJECTS if objects else 0
    flagged = type(flags) is int and (flags & wanted == wanted if wanted else not flags & _REFERENCES)
    dated = kind not in ("m", "M") or (len(state) == 9 and isinstance(state[8], tuple))
    if (inside and not whole) or not (flagged or flags is None) or not dated:
        raise CorruptError("a numpy dtype receives a state that its kind cannot have", found=shown(dtype.code))


def _dtypes_inside(subarray: Any, fields: Any) -> list[tuple[Any, Any]]:
    """Return the dtypes of fields and of a subarray, with their offsets in bytes; `None` for what is neither."""
    inside: list[tuple[Any, Any]] = []
    if isinstance(fields, dict):
        inside = [each[:2] if isinstance(each, tuple) and len(each) > 1 else (None, None) for each in fields.values()]
    if subarray is not None:
        inside.append((subarray[0] if isinstance(subarray, tuple) and subarray else None, 0))
    return inside


def _has_objects(dtype: NumpyDtype) -> bool:
    flags = dtype.state[7] if isinstance(dtype.state, tuple) and len(dtype.state) > 7 else 0
    return type(flags) is int and bool(flags & _REFERENCES)


def _numpy_state(state: Any) -> tuple[Any, ...]:
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
    tensor = tensor_of_array(array, element, "cpu") if element is not None else None
    if tensor is not None:
        return lower(tensor, naming)
    dtype = array.dtype.order + array.dtype.code
    return {"__class__": array.cls, "dtype": dtype, "shape": array.shape, "data": array.data}


def _of_scalar(value: NumpyScalar, naming: Naming) -> Form:
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
    if not naming.may_call("numpy.core.multiarray._reconstruct"):
        return _plain_array(value, naming)
    cls = PythonGlobal(*value.cls.rpartition(".")[::2])
    state = (1, value.shape, value.dtype, value.fortran, value.data)
    if not naming.may(cls):
        cls = named("numpy.ndarray")
    return calls("numpy.core.multiarray._reconstruct", cls, (0,), b"b", state=state)


def _set_array_state(meaning: PtMeaning, value: NumpyArray, state: Any) -> NumpyArray:
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
    given = dtype.args if isinstance(dtype, PythonObject) else ()
    if isinstance(given, tuple) and given and isinstance(given[0], PythonGlobal):
        return shown(given[0].path)
    cls = dtype.cls if isinstance(dtype, PythonObject) else dtype
    return shown(cls.path if cls is not None else "")


def _fill(array: NumpyArray, shape: Any, data: Any) -> NumpyArray:
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
    array.shape, array.data = tuple(shape), bytes(data) if isinstance(data, bytearray) else data
    return array


STATES[NumpyDtype], STATES[NumpyArray] = _set_dtype_state, _set_array_state
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
        Device: lambda value, _: calls(
            "torch.device", *((value.type,) if value.index is None else (value.type, value.index))
        ),
        NumpyDtype: _of_dtype,
        NumpyScalar: _of_scalar,
        NumpyArray: _of_array,
    }
)
