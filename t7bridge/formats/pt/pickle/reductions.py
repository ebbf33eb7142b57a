"""Calls that build values: how each is read, and to which call a value is reduced. Here Python's own and numpy's.

`register_call` (in `context`) registers what a call returns, `STATES` what a state sets, and `FORMS` the call or the
name by which a value is written. numpy itself is not needed for any of them.

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
from .context import GLOBALS, STATES, PickleContext, register_call
from .names import WEIGHTS_ONLY, is_copyreg, may_name

Scalar = str | bytes | int | float | bool | None


@define(frozen=True, eq=False)
class NamedStorage:
    """A persistent id that names a storage.

    Attributes:
        storage: the memory.
        storage_class: its class in `torch`, such as `FloatStorage`; `UntypedStorage` where the tensor states its
            element type.
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
        is_new: whether it is a call of `cls.__new__` (the opcode NEWOBJ), not of the callable itself (REDUCE).
        state: the argument of `__setstate__`; `UNSET` if there is none.
        items: items to append.
        pairs: entries to set by key.
    """

    constructor: Any
    args: Any = ()
    is_new: bool = False
    state: Any = UNSET
    items: list[Any] = field(factory=list)
    pairs: list[tuple[Any, Any]] = field(factory=list)


Form = Reduction | NamedStorage | PythonGlobal | dict[Any, Any] | list[Any] | Scalar
"""How a value is written: built, named, or as plain data."""
FORMS: dict[type, Callable[[Any, Naming], Form]] = {}
"""The form of a value, by type."""


@cache
def global_named(path: str) -> PythonGlobal:
    """Return a class or function of PyTorch, numpy or Python by its dotted name."""
    module, _, name = path.rpartition(".")
    return PythonGlobal(module, name)


def call_of(path: str, *args: Any, **parts: Any) -> Reduction:
    """Return a call of a function by its dotted name, `torch._utils._rebuild_tensor_v2`.

    Args:
        path: the dotted name.
        *args: the arguments.
        **parts: what is set after the call: `state`, `items` and `pairs` of `Reduction`.
    """
    return Reduction(global_named(path), args, **parts)


def form_of(value: Any, naming: Naming) -> Form:
    """Return how a value is written: the call that builds it, its name, or plain data.

    Args:
        value: any except builtins that have opcodes of their own.
        naming: decides which names are written.

    Raises:
        UnsupportedError: a pickle cannot represent it.
    """
    # A subclass without a form of its own has that of its nearest base class.
    for kind in type(value).__mro__:
        if kind in FORMS:
            return FORMS[kind](value, naming)
    raise UnsupportedError(f"a value of type {type(value).__name__} cannot be written to a .pt")


class Naming:
    """Decides which names of classes and functions are written into a pickle, and collects those that are not.

    Args:
        allow_foreign: whether names of other packages are written.

    Attributes:
        allow_foreign: whether names of other packages are written.
        current: the value that is written now, set by the `PickleWriter`: names are noted together with it.
        left_out_names: by each name that is not written: the values that would have it, one for each time.
        refused_names: by each name written that `torch.load(weights_only=True)` refuses: the first value that has it.
            Filled by the `PickleWriter`; empty without `allow_foreign`.
    """

    def __init__(self, allow_foreign: bool) -> None:
        self.allow_foreign = allow_foreign
        """Whether names of other packages are written."""
        self.current: Any = None
        """The value that is written now, set by the `PickleWriter`: names are noted together with it."""
        self.left_out_names: dict[str, list[Any]] = {}
        """By each name that is not written: the values that would have it, one for each time."""
        self.refused_names: dict[str, Any] = {}
        """By each name written that the safe loader refuses: the first value that has it; for the `PickleWriter`."""
        self._foreign_parts: dict[int, Any] = {}
        """By the identity of a key or a part of one: the first part in it that cannot stay in a key; None if all can.
        The value that is written keeps keys and parts alive, here and in `_texts`."""
        self._texts: dict[int, str] = {}
        """By the identity of each key that was replaced: its text, the same each time, if no other key there has it."""
        self._next_numbers: dict[str, int] = {}
        """By each text that replaced a key: the number that the next key with this text receives, from 2 on."""
        self._part_hashes: dict[int, bytes] = {}
        """The hashes of parts of keys, by identity, kept from key to key: the `marks` of `in_order`."""

    def may_write(self, name: Any) -> bool:
        """Return whether a name, or the class of an object, may be written; if not, note the value that has it.

        Args:
            name: a `PythonGlobal` or `PythonObject`; anything else is a class that a call in the file computed, and has
                no name to write.
        """
        if isinstance(name, (PythonGlobal, PythonObject)) and may_name(name, self.allow_foreign):
            return True
        self.note_left_out(getattr(name, "path", "<computed>"))
        return False

    def may_write_foreign(self, path: str) -> bool:
        """Return whether a name that the safe loader refuses may be written; if not, note the value that has it."""
        if not self.allow_foreign:
            self.note_left_out(path)
        return self.allow_foreign

    def note_left_out(self, path: str) -> None:
        """Note the value that is written now: it would have a name that is not written."""
        self.left_out_names.setdefault(path, []).append(self.current)

    def _becomes_other_type(self, part: Any) -> bool:
        """Return whether a part of a key cannot stay in the key, as its written form is a dict or list, or text.

        Dicts and lists are not keys, and a text may equal another key.
        """
        if isinstance(part, (PythonGlobal, PythonObject)):
            return not may_name(part, self.allow_foreign)
        if isinstance(part, TorchConstant):
            # The only constants whose names the safe loader refuses.
            return part.kind == "memory_format" and not self.allow_foreign
        return isinstance(part, _FOREIGN_KEYS) and not self.allow_foreign

    def elements(self, items: set[Any] | frozenset[Any]) -> list[Any]:
        """Return the elements of a set in order, as `hashable` writes them."""
        return self.hashable(in_order(items, self._part_hashes))

    def hashable(self, keys: list[Any]) -> list[Any]:
        """Return the keys of a dict, or the elements of a set, as they can be written; no two become one.

        Each stays itself, or becomes its text if a part of it is not hashable in its written form. Texts that another
        key has are numbered: `TEXT #2`, `TEXT #3`.
        """
        if all(type(key) in _UNCHANGED_KEYS for key in keys):
            return keys
        texts_among_keys = {key for key in keys if isinstance(key, str)}
        return [self._hashable(key, texts_among_keys) for key in keys]

    def _hashable(self, key: Any, texts_among_keys: set[str]) -> Any:
        """Return one key as it can be written.

        Args:
            key: the key.
            texts_among_keys: those of the same dict or set that are texts already.
        """
        if type(key) in _UNCHANGED_KEYS:
            return key
        earlier_text = self._texts.get(id(key))  # in another dict or set with this very key
        if earlier_text is not None and earlier_text not in texts_among_keys:
            return earlier_text
        text = self._replacing_text(key)
        if text is None:
            return key
        unique_text = text
        # More than one step only if another key's own text is `TEXT #2`.
        while unique_text in self._next_numbers or unique_text in texts_among_keys:
            number = self._next_numbers.get(text, 2)
            self._next_numbers[text] = number + 1
            unique_text = f"{text} #{number}"
        self._next_numbers[unique_text] = 2
        self._texts[id(key)] = unique_text
        return unique_text

    def _replacing_text(self, key: Any) -> str | None:
        """Return the text that replaces a key with a part that cannot stay in it; `None` if there is no such part."""
        foreign_part = self._first_foreign_part(key)
        if foreign_part is None:
            return None
        text = key_text(key, self._part_hashes)
        # The text of an object is its class. The arguments tell objects of one class apart.
        args = foreign_part.args if isinstance(foreign_part, PythonObject) else ()
        if args and isinstance(args, tuple):
            text += key_text(args, self._part_hashes)
        return text

    def _first_foreign_part(self, key: Any) -> Any:
        """Return the first part of a key, or the key, that cannot stay in a key; `None` if all can.

        Each part that is met is judged once: see `_foreign_parts`.
        """
        foreign_parts = self._foreign_parts
        # Depth first, with an explicit stack: keys may be nested deeper than Python recurses.
        stack = [key]
        while stack:
            part = stack.pop()
            if id(part) in foreign_parts:
                continue
            if self._becomes_other_type(part):
                foreign_parts[id(part)] = part
                continue
            inner_parts = []
            if isinstance(part, (tuple, frozenset)):
                inner_parts = [inner for inner in part if isinstance(inner, _CHANGING_PARTS)]
            # A part is judged after the parts inside it. It cannot be inside itself: such a key has no hash.
            unjudged = [inner for inner in inner_parts if id(inner) not in foreign_parts]
            if unjudged:
                stack += (part, *unjudged)
                continue
            judged_parts = [foreign_parts[id(inner)] for inner in inner_parts]
            foreign_parts[id(part)] = next((inner for inner in judged_parts if inner is not None), None)
        return foreign_parts[id(key)]


_UNCHANGED_KEYS = frozenset({str, int, bytes, float, bool, type(None)})
"""Types of keys that never change."""
_FOREIGN_KEYS = (frozenset, NumpyArray, NumpyScalar, NumpyDtype)
"""Types whose names the safe loader refuses."""
_CHANGING_PARTS = (tuple, PythonGlobal, PythonObject, TorchConstant, *_FOREIGN_KEYS)
"""Types of the parts of a key that may change."""
_PLAIN_DATA_KEYS = frozenset(("__class__", "__args__", "__kwargs__", "__state__", "__items__", "__pairs__"))
"""Keys of `plain_data`: attributes with such a name are below `__state__`."""


def plain_data(value: PythonObject) -> dict[Any, Any]:
    """Return an object as a dict of its attributes, with its class under `__class__`.

    Whatever else it is constructed from is below `__args__`, `__kwargs__`, `__items__` and `__pairs__`. Its state is
    below `__state__` if it is not attributes, or one of them has such a name.
    """
    parts: dict[Any, Any] = {"__class__": value.path}
    # The arguments of a function of `copyreg` are the class again.
    if value.args not in ((), UNSET) and not is_copyreg(value.constructor):
        parts["__args__"] = value.args
    if value.kwargs:
        parts["__kwargs__"] = value.kwargs
    attributes = value.attributes  # empty for a state that is not attributes
    if attributes and _PLAIN_DATA_KEYS.isdisjoint(attributes):
        parts.update(attributes)
    elif value.state is not UNSET and value.state is not None:
        parts["__state__"] = value.state
    if value.items:
        parts["__items__"] = value.items
    if value.pairs:
        # A list of lists, not a dict: keys of objects may be what a dict cannot have.
        parts["__pairs__"] = [list(pair) for pair in value.pairs]
    return parts


# Python's own


def _filled(context: PickleContext, target: Any, source: Any) -> Any:
    """Fill an empty dict from the argument of its constructor: a dict, or a list of pairs; return it.

    Args:
        context: is charged for the entries.
        target: a dict, an `OrderedDict`, a `DefaultDict`, or a `Counter`.
        source: the argument; for a `Counter` a dict: it counts the items of anything else.

    Returns:
        `NotImplemented` for another argument: the call then stays an inert object.
    """
    if isinstance(source, dict):
        source = list(source.items())
    if not isinstance(source, (list, tuple)):
        return NotImplemented
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in source):
        return NotImplemented
    context.work.spend(len(source))
    for key, item in source:
        context.work.check_key(target, key)
        target[key] = item
    return target


def _set_attributes(context: PickleContext, value: OrderedDict[Any, Any], state: Any) -> Any:
    """Set the attributes of an `OrderedDict`, such as `_metadata` of a state dict, and return it.

    Args:
        context: is charged for the attributes.
        value: receives them.
        state: the attributes by name; `None` if there are none.

    Raises:
        CorruptError: the state is something else, or an attribute would shadow one of the class.
    """
    if state is None:  # which CPython's BUILD ignores
        return value
    if not isinstance(state, dict):
        raise CorruptError("an OrderedDict receives a state that is not a dict")
    context.work.spend(len(state))
    for key, item in state.items():
        if type(key) is not str or hasattr(OrderedDict, key):
            raise CorruptError(f"an OrderedDict receives an attribute {key!r:.60}")
        setattr(value, key, item)
    return value


def _charged_copy(context: PickleContext, convert: Callable[[Any], Any], items: Any = ()) -> Any:
    """Return what a type or function makes of some items, and charge the copy: a file could ask for it endlessly.

    Args:
        context: is charged.
        convert: the type or function.
        items: its only argument.
    """
    context.work.spend(len(items))
    if convert in (set, frozenset):  # which hash the items, and compare those of one hash
        context.work.check_elements(items)
    return convert(items)


def _encode(context: PickleContext, text: Any, encoding: str = "utf-8") -> Any:
    """Return a text as bytes: protocol 2, which has no opcode for bytes, writes a call with their text in Latin-1.

    `NotImplemented` if it is no text.

    Args:
        context: is charged for the bytes.
        text: the text.
        encoding: by any of its names.

    Raises:
        UnsupportedError: it is an encoding that no pickler uses.
    """
    name = normalize_encoding(encoding).lower()
    codec = aliases.get(name, name)
    # Before the text is looked at, as in CPython, which would import a codec by its name.
    if codec not in ("latin_1", "utf_8", "ascii"):
        raise UnsupportedError("bytes are written as a text in an encoding that no pickler uses", expected="latin1")
    if type(text) is not str:
        return NotImplemented
    return _charged_copy(context, lambda text: text.encode(codec), text)


def _bytearray(context: PickleContext, data: Any = b"", *encoding: str) -> Any:
    """Return a bytearray of bytes, or of a text and its encoding; `NotImplemented` for anything else."""
    if not isinstance(data, (bytes, bytearray)) or encoding:
        data = _encode(context, data, *encoding)
    if data is NotImplemented:  # neither bytes nor a text
        return NotImplemented
    return _charged_copy(context, bytearray, data)


_COLLECTIONS = (list, tuple, set, frozenset)
for _kind in _COLLECTIONS:
    register_call(f"builtins.{_kind.__name__}", _COLLECTIONS, min_args=0)(
        lambda context, items=(), kind=_kind: _charged_copy(context, kind, items)
    )
for _path, _empty, _source in (
    ("builtins.dict", dict, object),
    ("collections.OrderedDict", OrderedDict, object),
    ("collections.Counter", Counter, dict),
):
    register_call(_path, _source, min_args=0)(lambda context, source=(), new=_empty: _filled(context, new(), source))
register_call("collections.defaultdict", object, object, min_args=0)(
    lambda context, factory=None, source=(): _filled(context, DefaultDict(factory), source)
)
register_call("_codecs.encode", object, str, min_args=1)(_encode)
register_call("builtins.bytes", (bytes, bytearray), min_args=0)(
    lambda context, data=b"": _charged_copy(context, bytes, data)
)
register_call("builtins.bytearray", object, str, min_args=0)(_bytearray)
register_call("builtins.complex", (int, float), (int, float), min_args=1)(lambda context, *parts: complex(*parts))
_ANY_NUMBER = 1 << 30
"""A maximum number of arguments that no call reaches."""


@register_call("copyreg.__newobj__", object, max_args=_ANY_NUMBER)
def _newobj(context: PickleContext, cls: Any, *args: Any) -> Any:
    """Return an object of a class, as the opcode NEWOBJ does; `NotImplemented` for a function of `copyreg`."""
    # A call of `copyreg` by itself only leads to the next, which a file could repeat endlessly.
    if is_copyreg(cls):
        return NotImplemented
    return context.value_of_call(cls, args, "newobj")


@register_call("copyreg.__newobj_ex__", object, object, object)
def _newobj_ex(context: PickleContext, cls: Any, args: Any, kwargs: Any) -> Any:
    """Return an object of a class, as the opcode NEWOBJ_EX does; `NotImplemented` for a function of `copyreg`."""
    if is_copyreg(cls):  # as in `_newobj`
        return NotImplemented
    return context.value_of_call(cls, args, "newobj_ex", kwargs)


# The call stays an inert object, whose first argument is its class.
register_call("copyreg._reconstructor", min_args=0, max_args=_ANY_NUMBER)(lambda context, *args: NotImplemented)
STATES[OrderedDict] = _set_attributes


def _of_object(value: PythonObject, naming: Naming) -> Form:
    """Return the call of an object as it was read; if its class is not written, a dict: see `plain_data`.

    Args:
        value: the object.
        naming: says whether its class is written, and notes it if not.
    """
    if not naming.may_write(value):
        return plain_data(value)
    constructor = value.constructor
    args = value.args
    if value.how == "newobj_ex":
        # The opcode of this name is of protocol 4; in protocol 2 the function does the same.
        constructor = global_named("copyreg.__newobj_ex__")
        args = (value.constructor, value.args, value.kwargs)
    is_new = value.how == "newobj"
    return Reduction(constructor, args, is_new=is_new, state=value.state, items=value.items, pairs=value.pairs)


def _of_frozenset(value: frozenset[Any], naming: Naming) -> Reduction:
    """Return the call for a frozenset; for a set if its name is not written, as the safe loader refuses it."""
    name = "builtins.frozenset" if naming.may_write_foreign("builtins.frozenset") else "builtins.set"
    return call_of(name, naming.elements(value))


def _of_defaultdict(value: DefaultDict, naming: Naming) -> Form:
    """Return the call for a defaultdict; a dict if its name is not written, as the safe loader refuses it."""
    if not naming.may_write_foreign("collections.defaultdict"):
        return dict(value)
    has_factory = value.factory is not None and naming.may_write(value.factory)
    args = (value.factory,) if has_factory else ()
    return call_of("collections.defaultdict", *args, pairs=list(value.items()))


FORMS.update(
    {
        OrderedDict: lambda value, _: call_of(
            "collections.OrderedDict", state=dict(vars(value)) or UNSET, pairs=list(value.items())
        ),
        DefaultDict: _of_defaultdict,
        Counter: lambda value, _: call_of("collections.Counter", pairs=list(value.items())),
        set: lambda value, naming: call_of("builtins.set", naming.elements(value)),
        frozenset: _of_frozenset,
        bytearray: lambda value, _: call_of("builtins.bytearray", bytes(value)),
        complex: lambda value, _: call_of("builtins.complex", value.real, value.imag),
        PythonGlobal: lambda value, naming: value if naming.may_write(value) else value.path,
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


def _layout(context: PickleContext, name: str) -> Any:
    """Return a layout by its name, `torch.strided`; `NotImplemented` if there is none of this name."""
    constant = CONSTANTS.get(name.removeprefix("torch."))
    if constant is None or constant.kind != "layout":
        return NotImplemented
    return constant


def _size(context: PickleContext, extents: Any = ()) -> Any:
    """Return a `torch.Size`; `NotImplemented` if an extent is not an integer of 64 bits."""
    if not all(type(extent) is int and abs(extent) < 1 << 63 for extent in extents):
        return NotImplemented
    return _charged_copy(context, TorchSize, extents)


def _device(context: PickleContext, text: str, *index: int | None) -> Any:
    """Return a device; `NotImplemented` if PyTorch has none.

    Args:
        context: of the pickle; not needed here.
        text: its name, `cuda:0`; or its type, `cuda`.
        *index: nothing or one item: the index where the text is a type; `None` for the present device.
    """
    match = _DEVICE.match(text)
    if match is None:
        return NotImplemented
    kind, index_in_text = match.groups()
    if index and index_in_text:  # PyTorch refuses two
        return NotImplemented
    number = index[0] if index else None
    if index_in_text:
        number = int(index_in_text)
    if number is not None and not 0 <= number < _MOST_DEVICES:
        return NotImplemented
    return Device(kind, number)


register_call("torch.serialization._get_layout", str)(_layout)
register_call("torch.Size", (list, tuple), min_args=0)(_size)
register_call("torch.device", str, (int, type(None)), min_args=1)(_device)


def _of_device(value: Device, _: Naming) -> Reduction:
    args = (value.type,) if value.index is None else (value.type, value.index)
    return call_of("torch.device", *args)


def _of_constant(value: TorchConstant, naming: Naming) -> Form:
    path = f"torch.{value.name}"
    if value.kind == "layout":
        return call_of("torch.serialization._get_layout", path)
    if path not in WEIGHTS_ONLY and not naming.may_write_foreign(path):
        return path
    return global_named(path)


# numpy's arrays, scalars and element types


_BYTE_ORDERS = ("<", ">", "=", "|")
"""Little, big, the machine's, and none."""


def _dtype(context: PickleContext, code: Any, *_align_and_copy: Any) -> Any:
    """Return an element type of numpy by its code, `f4` or `<f4`. The other arguments do not change plain types."""
    if isinstance(code, bytes):  # a `str` of Python 2
        code = code.decode("latin1")
    order = code[:1]
    if order in _BYTE_ORDERS:
        return NumpyDtype(code[1:], order)
    return NumpyDtype(code)


_DTYPE_VERSION = 3
"""The version of the layout of a dtype's state that is written."""
_ORDER, _SUBARRAY, _FIELDS, _SIZE, _FLAGS, _UNIT = 1, 2, 4, 5, 7, 8
"""Places in the state of a dtype: version, byte order; subarray, names and fields; size and alignment; flags; and of
dates their unit. Source: numpy 2.4 `descriptor.c` `arraydescr_reduce`."""
_BY_CODE = -1
"""A size or alignment that the code of the type says."""


def _of_dtype(value: NumpyDtype, naming: Naming) -> Form:
    """Return the call for an element type, `numpy.dtype(code, align, copy)`, and its state.

    Args:
        value: the element type; one that was read has the state of the file, which is written as it is.
        naming: says whether names of numpy are written; if not, its code is returned.
    """
    if not naming.may_write_foreign("numpy.dtype"):
        return value.code
    state = value.state
    if not state:
        subarray = names = fields = None
        size = alignment = _BY_CODE
        flags = _FLAGS_OF_OBJECTS if value.code.startswith("O") else 0
        state = (_DTYPE_VERSION, value.order, subarray, names, fields, size, alignment, flags)
    align = False
    copy = True
    return call_of("numpy.dtype", value.code, align, copy, state=state)


def _set_dtype_state(context: PickleContext, value: NumpyDtype, state: Any) -> NumpyDtype:
    """Set the byte order of an element type, keep its state for writing, and return it.

    Args:
        context: of the pickle; not needed here.
        value: the element type.
        state: a tuple, whose parts are described at `_ORDER`.

    Raises:
        CorruptError: no element type of this kind has such a state.
    """
    state = _numpy_state(state)
    order = _item(state, _ORDER)
    if isinstance(order, bytes):  # a `str` of Python 2
        order = order.decode("latin1")
    if order not in _BYTE_ORDERS:
        raise CorruptError("a numpy dtype has no byte order", found=shown(order))
    _check_dtype(value, state)
    value.order = order
    value.state = state
    return value


# Source: numpy 2.4 `numpy/_core/include/numpy/ndarraytypes.h`.
_REFERENCE_FLAGS = 0b111
"""Flags of a dtype, any of which says that its elements hold references: `NPY_ITEM_REFCOUNT`, `NPY_LIST_PICKLE` and
`NPY_ITEM_IS_POINTER`."""
_FLAGS_OF_OBJECTS = 63
"""All flags that the type `object` has: `NPY_OBJECT_DTYPE_FLAGS`."""
_FLAGS_OF_HOLDERS = 27
"""All flags that a structure or subarray receives from elements that are objects: `NPY_FROM_FIELDS`."""


def _check_dtype(dtype: NumpyDtype, state: tuple[Any, ...]) -> None:
    """Refuse a state with which numpy, which does not check it, would take numbers for references, or read behind an
    element.

    Raises:
        CorruptError: no dtype of this kind has such a state.
    """
    inner_dtypes = _inner_dtypes(subarray=_item(state, _SUBARRAY), fields=_item(state, _FIELDS))
    is_valid = _are_inside(inner_dtypes, size=_item(state, _SIZE))
    is_valid = is_valid and _has_fitting_flags(dtype, inner_dtypes, flags=_item(state, _FLAGS))
    if dtype.code[:1] in ("m", "M"):
        # Dates and differences of dates have one item more, with their unit.
        is_valid = is_valid and len(state) == _UNIT + 1 and isinstance(state[_UNIT], tuple)
    if not is_valid:
        raise CorruptError("a numpy dtype receives a state that its kind cannot have", found=shown(dtype.code))


def _item(state: tuple[Any, ...], position: int) -> Any:
    """Return an item of a state; None if the state is shorter."""
    return state[position] if position < len(state) else None


def _inner_dtypes(subarray: Any, fields: Any) -> list[tuple[Any, Any]]:
    """Return the dtypes inside a dtype, each with its offset in bytes; nothing is checked.

    Args:
        subarray: a pair of dtype and shape, or `None`.
        fields: by name a tuple of dtype, offset and sometimes a title; or `None`.

    Returns:
        The dtypes of the fields, then that of the subarray, at 0; `None` for each that is of another form.
    """
    dtypes: list[tuple[Any, Any]] = []
    if isinstance(fields, dict):
        for parts in fields.values():
            if isinstance(parts, tuple) and len(parts) > 1:
                dtype, offset, *_title = parts
                dtypes.append((dtype, offset))
            else:
                dtypes.append((None, None))
    if isinstance(subarray, tuple) and subarray:
        dtype, *_shape = subarray
        dtypes.append((dtype, 0))
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
    """Return whether flags mark elements as references where they are, and nowhere else.

    Args:
        dtype: the type of the elements.
        inner_dtypes: those of its fields and subarray; see `_inner_dtypes`.
        flags: of its state; `None` in an older one, which has none.
    """
    if flags is None:
        return True
    if type(flags) is not int:
        return False
    if dtype.code[:1] == "O":
        return flags & _FLAGS_OF_OBJECTS == _FLAGS_OF_OBJECTS
    if any(isinstance(inner, NumpyDtype) and _holds_objects(inner) for inner, _ in inner_dtypes):
        return flags & _FLAGS_OF_HOLDERS == _FLAGS_OF_HOLDERS
    return not flags & _REFERENCE_FLAGS


def _holds_objects(dtype: NumpyDtype) -> bool:
    """Return whether elements of a dtype are, or contain, Python objects."""
    if dtype.code[:1] == "O":
        return True
    flags = _item(dtype.state, _FLAGS) if isinstance(dtype.state, tuple) else None
    return type(flags) is int and bool(flags & _REFERENCE_FLAGS)


def _numpy_state(state: Any) -> tuple[Any, ...]:
    """Return the state of a numpy value, which is a tuple.

    Raises:
        CorruptError: the state is another value.
    """
    if not isinstance(state, tuple):
        raise CorruptError("a numpy value receives a state that is not a tuple")
    return state


def _plain_array(array: NumpyArray, naming: Naming) -> Form:
    """Return the form of an array's elements without numpy: a tensor, a list, or a dict that says what they are.

    Texts are in lists of the array's shape; Python objects of all dimensions in one list. As in any form, what is
    inside a list or a dict is written by its own form later.
    """
    if isinstance(array.data, list):  # Python objects
        return list(array.data)
    texts = text_items(array)
    if texts is not None:
        return texts
    element = NUMPY_ELEMENTS.get(array.dtype.code)
    if element is not None:
        tensor = tensor_of_array(array, element, device="cpu")
        if tensor is not None:  # `None`: its data are not bytes, which are then written as they are
            return form_of(tensor, naming)
    # Dates and records, of which there are no tensors.
    dtype = array.dtype.order + array.dtype.code
    return {"__class__": array.cls, "dtype": dtype, "shape": array.shape, "data": array.data}


def _of_scalar(value: NumpyScalar, naming: Naming) -> Form:
    """Return the call for a scalar of numpy.

    Args:
        value: the scalar.
        naming: says whether names of numpy are written; if not, the number or text of Python is returned, or a dict for
            dates and records.
    """
    if naming.may_write_foreign("numpy.core.multiarray.scalar"):
        return call_of("numpy.core.multiarray.scalar", value.dtype, value.data)
    texts = text_items(value.array)
    if texts is not None:
        text: str | bytes = texts[0]
        return text
    if value.dtype.code in NUMPY_ELEMENTS and isinstance(value.data, bytes):
        only_element = ()  # the index of the element of an array without dimensions
        number: complex | float | int | bool = numpy_value(value.array)[only_element].item()
        # Pickles have opcodes for all numbers but complex ones.
        return form_of(number, naming) if isinstance(number, complex) else number
    return {"__class__": "numpy.scalar", "dtype": value.dtype.order + value.dtype.code, "data": value.data}


def _of_array(value: NumpyArray, naming: Naming) -> Form:
    """Return the call for an array, as numpy pickles it: an empty one of bytes, whose state has all that it is.

    Args:
        value: the array.
        naming: says whether names of numpy are written; if not, the form is that of `_plain_array`.
    """
    if not naming.may_write_foreign("numpy.core.multiarray._reconstruct"):
        return _plain_array(value, naming)
    module, _, name = value.cls.rpartition(".")
    cls = PythonGlobal(module, name)
    if not naming.may_write(cls):  # a subclass of another package becomes a plain array
        cls = global_named("numpy.ndarray")
    state = (_ARRAY_VERSION, value.shape, value.dtype, value.fortran, value.data)
    empty_shape = (0,)
    bytes_code = b"b"
    return call_of("numpy.core.multiarray._reconstruct", cls, empty_shape, bytes_code, state=state)


_ARRAY_VERSION = 1
"""The version of the layout of an array's state: this, shape, dtype, whether the order is Fortran's, and elements."""


def _set_array_state(context: PickleContext, value: NumpyArray, state: Any) -> NumpyArray:
    """Set shape, element type, order and elements of an array, and return it.

    Args:
        context: of the pickle; not needed here.
        value: the array.
        state: a tuple, whose parts are described at `_ARRAY_VERSION`.

    Raises:
        UnsupportedError: its element type is of a class that is not known here, such as that of records.
        CorruptError: the state is invalid, or the elements do not fit the shape.
    """
    state = _numpy_state(state)
    if len(state) == 4:  # before version 1 of the layout, without the version
        state = (0, *state)
    if len(state) != 5:
        raise CorruptError("a numpy array receives an invalid state", found=f"a tuple of {len(state)}")
    # The version is dropped: the parts are the same in both, and numpy itself has no other.
    _version, shape, dtype, fortran, data = state
    # A type of elements that stayed inert: not a `numpy.dtype` of a code, which is read as `NumpyDtype`.
    if isinstance(dtype, (PythonObject, PythonGlobal)):
        raise UnsupportedError(
            f"a numpy array has elements of a class, {_class_of_dtype(dtype)}",
            hint="Save plain arrays: one for each field of a record; texts as a list.",
        )
    if not isinstance(dtype, NumpyDtype):
        raise CorruptError("a numpy array receives an invalid state", found=f"a tuple of {len(state)}")
    value.dtype = dtype
    value.fortran = bool(fortran)
    if isinstance(data, str):  # a `str` of Python 2, whose bytes happened to be UTF-8, and were decoded
        data = data.encode()
    return _set_elements(value, shape, data)


def _class_of_dtype(dtype: PythonObject | PythonGlobal) -> str:
    """Return the class of elements that a dtype names, for errors.

    Args:
        dtype: the class itself, a call of `numpy.dtype` with it, or an instance of a class of dtypes.
    """
    cls: PythonGlobal | None
    if isinstance(dtype, PythonGlobal):
        cls = dtype
    elif isinstance(dtype.args, tuple) and dtype.args and isinstance(dtype.args[0], PythonGlobal):
        cls = dtype.args[0]
    else:
        cls = dtype.cls
    return shown(cls.path if cls is not None else "")


def _set_elements(array: NumpyArray, shape: Any, data: Any) -> NumpyArray:
    """Set shape and elements of an array, which must fit each other, and return it.

    Args:
        array: with its element type.
        shape: the new shape.
        data: the elements: bytes, or a list of objects.

    Raises:
        CorruptError: shape and elements do not fit, or are invalid.
    """
    if not isinstance(shape, (tuple, list)) or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise CorruptError("a numpy array has no shape", found=f"{type(shape).__name__}")
    count = math.prod(shape)
    if isinstance(data, (bytes, bytearray)):
        width = array.dtype.itemsize  # 0 if the code does not say it, as for records: then any bytes are kept
        if width and len(data) != count * width:
            raise CorruptError(
                "a numpy array's bytes do not fit its shape", expected=f"{count * width} bytes", found=f"{len(data)}"
            )
    elif not isinstance(data, list) or len(data) != count:  # pickled objects are a list
        raise CorruptError("a numpy array has no elements", expected=f"{count}", found=type(data).__name__)
    array.shape = tuple(shape)
    array.data = bytes(data) if isinstance(data, bytearray) else data
    return array


STATES[NumpyDtype] = _set_dtype_state
STATES[NumpyArray] = _set_array_state
register_call("numpy.dtype", (str, bytes), object, object, object, min_args=1)(_dtype)
register_call("numpy.core.multiarray.scalar", NumpyDtype, object, min_args=1)(
    lambda context, dtype, data=b"": NumpyScalar(dtype, data.encode() if isinstance(data, str) else data)
)
# An array without elements: its state follows.
register_call("numpy.core.multiarray._reconstruct", PythonGlobal, object, object, min_args=1)(
    lambda context, cls, *rest: NumpyArray(NumpyDtype("i1"), shape=(0,), fortran=False, data=b"", cls=cls.path)
)


@register_call("numpy.core.numeric._frombuffer", (bytes, bytearray), NumpyDtype, object, object)
def _from_buffer(context: PickleContext, data: bytes | bytearray, dtype: NumpyDtype, shape: Any, order: Any) -> Any:
    """Return an array with these bytes as elements; the order is `C` (row by row) or `F` (column by column)."""
    empty = NumpyArray(dtype, shape=(0,), fortran=order == "F", data=b"")
    return _set_elements(empty, shape, bytes(data))


FORMS.update(
    {
        TorchConstant: _of_constant,
        TorchSize: lambda value, _: call_of("torch.Size", tuple(value)),
        Device: _of_device,
        NumpyDtype: _of_dtype,
        NumpyScalar: _of_scalar,
        NumpyArray: _of_array,
    }
)
