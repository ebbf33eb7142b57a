"""Calls that build values: how each is read, and to which call a value is reduced. Here Python's own and numpy's.

`reads` (in `meaning`) registers what a call returns, `STATES` what a state sets, and `FORMS` the call or the name by
which a value is written. numpy itself is not needed for any of them.

Source: PyTorch 2.13 `torch/_weights_only_unpickler.py`; numpy 2.4 `numpy/_core/src/multiarray/methods.c`
(`array_reduce`, `array_setstate`), `descriptor.c` (`arraydescr_reduce`, `arraydescr_setstate`).
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from encodings import normalize_encoding
from encodings.aliases import aliases
from typing import Any

from attrs import field

from ....data import define
from ....errors import CorruptError, UnsupportedError
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
)
from ....graph.storage import Storage
from ...fields import shown
from ..storages import ELEMENT_NAMES
from .meaning import GLOBALS, STATES, PtMeaning, reads
from .names import is_copyreg

_PYTHON_2_MODULES = {"builtins": "__builtin__", "copyreg": "copy_reg"}
"""Protocol 2 names of modules that Python 3 renamed."""


@define(frozen=True)
class Global:
    """A name in a pickle.

    Attributes:
        path: module and name, with a space between.
    """

    path: str


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
        constructor: the callable: a `Global`, or another value.
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


Form = Reduction | Global | NamedStorage
"""How a value is written."""
FORMS: dict[type, Callable[[Any], Form]] = {}
"""The form of a value, by type."""


def calls(path: str, *args: Any, **parts: Any) -> Reduction:
    """Return a call of a function, `torch._utils _rebuild_tensor_v2`, with what is set after it, as in `Reduction`."""
    return Reduction(Global(path), args, **parts)


def lower(value: Any) -> Form:
    """Return the form of a value.

    Args:
        value: any except builtins that have opcodes of their own.

    Raises:
        UnsupportedError: a pickle cannot represent it.
    """
    for kind in type(value).__mro__:
        if kind in FORMS:
            return FORMS[kind](value)
    raise UnsupportedError(f"a value of type {type(value).__name__} cannot be written to a .pt")


def named(module: str, name: str) -> Global:
    """Return a name as protocol 2 writes it: two lines of text.

    Raises:
        UnsupportedError: it does not fit on a line.
    """
    if any(mark in word for word in (module, name) for mark in "\n\r "):
        raise UnsupportedError(
            "a class or function has a name that a pickle cannot write", found=f"{module}.{name}"[:80]
        )
    return Global(f"{_PYTHON_2_MODULES.get(module, module)} {name}")


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


def _of_object(value: Any) -> Reduction:
    constructor, args = value.constructor, value.args
    if value.how == "newobj_ex":
        constructor, args = Global("copy_reg __newobj_ex__"), (value.constructor, args, value.kwargs)
    return Reduction(constructor, args, value.how == "newobj", value.state, value.items, value.pairs)


FORMS.update(
    {
        OrderedDict: lambda value: calls(
            "collections OrderedDict", state=dict(vars(value)) or UNSET, pairs=list(value.items())
        ),
        DefaultDict: lambda value: calls(
            "collections defaultdict",
            *(() if value.factory is None else (value.factory,)),
            pairs=list(value.items()),
        ),
        Counter: lambda value: calls("collections Counter", pairs=list(value.items())),
        bytearray: lambda value: calls("__builtin__ bytearray", bytes(value)),
        complex: lambda value: calls("__builtin__ complex", value.real, value.imag),
        PythonGlobal: lambda value: named(value.module, value.name),
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


def _layout(meaning: PtMeaning, name: str) -> Any:
    found = CONSTANTS.get(name.removeprefix("torch."))
    return found if found and found.kind == "layout" else NotImplemented


def _device(meaning: PtMeaning, text: str, *index: int | None) -> Any:
    kind, _, number = text.partition(":")
    return Device(kind, index[0] if index else int(number) if number.isdecimal() else None)


reads("torch.serialization._get_layout", str)(_layout)
reads("torch.Size", (list, tuple), least=0)(lambda meaning, extents=(): _copied(meaning, TorchSize, extents))
reads("torch.device", str, (int, type(None)), least=1)(_device)


# numpy's arrays, scalars and element types


def _dtype(meaning: PtMeaning, code: Any, *options: Any) -> Any:
    code = code.decode("latin1") if isinstance(code, bytes) else code
    return NumpyDtype(code[1:], code[0]) if code[:1] in tuple("<>=|") else NumpyDtype(code)


def _of_dtype(value: NumpyDtype) -> Reduction:
    state = value.state or (3, value.order, None, None, None, -1, -1, _OBJECT * value.code.startswith("O"))
    return calls("numpy dtype", value.code, False, True, state=state)


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


def _of_array(value: NumpyArray) -> Reduction:
    module, _, name = value.cls.rpartition(".")
    state = (1, value.shape, value.dtype, value.fortran, value.data)
    return calls("numpy.core.multiarray _reconstruct", named(module, name), (0,), b"b", state=state)


def _set_array_state(meaning: PtMeaning, value: NumpyArray, state: Any) -> NumpyArray:
    state = _numpy_state(state)
    if len(state) == 4:  # before version 1 of the layout
        state = (0, *state)
    if len(state) != 5 or not isinstance(state[2], NumpyDtype):
        raise CorruptError("a numpy array receives an invalid state", found=f"a tuple of {len(state)}")
    _, shape, value.dtype, fortran, data = state
    value.fortran = bool(fortran)
    # A string of Python 2 was already decoded as UTF-8, if valid.
    return _fill(value, shape, data.encode() if isinstance(data, str) else data)


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
        TorchConstant: lambda value: (
            calls("torch.serialization _get_layout", f"torch.{value.name}")
            if value.kind == "layout"
            else named("torch", value.name)
        ),
        TorchSize: lambda value: calls("torch Size", tuple(value)),
        Device: lambda value: calls(
            "torch device", *((value.type,) if value.index is None else (value.type, value.index))
        ),
        NumpyDtype: _of_dtype,
        NumpyScalar: lambda value: calls("numpy.core.multiarray scalar", value.dtype, value.data),
        NumpyArray: _of_array,
    }
)
