"""Python-side values as a pickle of protocol 2, the one that PyTorch's safe loader accepts.

Foreign classes and objects are written by name, or, by default, as plain data that names them. An object becomes a dict
of its attributes, with the class under `__class__`. If it is constructed from more than attributes, or an attribute has
one of these names, the parts are under `__args__`, `__kwargs__`, `__state__`, `__items__` and `__pairs__`. A bare class
or function becomes its dotted name.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from attrs import evolve

from ....data import define
from ....errors import UnsupportedError
from ....graph.python import UNSET, DefaultDict, NumpyArray, PythonGlobal, PythonObject, in_order, key_text
from ....graph.storage import Storage
from ....graph.tensor import Tensor
from . import opcodes
from .names import WEIGHTS_ONLY, is_copyreg, may_name
from .reductions import FORMS, Global, NamedStorage, Reduction, lower

_PYTHON_3_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_BATCH = 1000
"""Entries added to a list or dict at once, as by Python's own pickler: it bounds the reader's stack."""


@define(frozen=True)
class StorageRef:
    """Reference to a storage in a pickle.

    Attributes:
        key: name of the member with its bytes, below `data/`.
        location: PyTorch's name of the device.
    """

    key: str
    location: str


@define(frozen=True)
class _Raw:
    """Opcodes to emit between values."""

    opcodes: bytes


_MARK, _APPENDS, _SETITEMS, _BUILD = map(_Raw, (opcodes.MARK, opcodes.APPENDS, opcodes.SETITEMS, opcodes.BUILD))


@define(frozen=True, eq=False)
class _End:
    """Finish a value: a tuple from the items since the mark, or a call from its constructor and arguments.

    If they refer to the value itself, they have built it already.
    """

    value: Any
    call: Reduction | None = None


class PickleWriter:
    """Writes one value as a pickle, at any nesting depth; shared objects stay shared.

    Args:
        storage_ref: returns the key and location by which the pickle names a storage.
        old: whether PyTorch 0.2 to 1.5 must be able to read it: there a storage's name has an extra part for views.
        allow_foreign: whether classes and functions of other packages are named. Otherwise their objects are written as
            plain data; see `plain`.
    """

    def __init__(
        self, storage_ref: Callable[[Storage], StorageRef], *, old: bool = False, allow_foreign: bool = False
    ) -> None:
        self._storage_ref = storage_ref
        self._old = old
        self._naming = Naming(allow_foreign)
        self.plain = self._naming.left_out
        """The foreign names that were left out, and the values that would have them."""
        self.blocking: dict[str, Any] = {}
        """The names that `torch.load(weights_only=True)` refuses, and the first value that has each."""
        self._current: Any = None
        self._constructor: Any = None
        self.tensors = 0
        """Number of tensors written so far."""
        self._out = bytearray()
        self._memo: dict[Any, int] = {}
        self._classes: dict[str, str] = {}
        """The class with which each storage is named first: PyTorch uses it for all that name it later."""
        self._alive: list[Any] = []
        self._stack: list[Any] = []

    def dumps(self, value: Any) -> bytes:
        """Return the pickle of a value.

        Args:
            value: builtins, tensors, and the values of `graph.python`, nested and shared in any way.

        Raises:
            UnsupportedError: it contains anything else.
        """
        self._out += opcodes.PROTO + b"\x02"
        self._stack.append(value)
        while self._stack:
            item = self._stack.pop()
            if type(item) is _Raw:
                self._out += item.opcodes
            elif type(item) is _End:
                self._end(item.value, item.call)
            else:
                self._save(item)
        self._out += opcodes.STOP
        return bytes(self._out)

    def _save(self, value: Any) -> None:
        out = self._out
        if value is None:
            out += opcodes.NONE
        elif value is True:
            out += opcodes.NEWTRUE
        elif value is False:
            out += opcodes.NEWFALSE
        elif isinstance(value, int):
            self._integer(value)
        elif isinstance(value, float):
            out += struct.pack(">cd", opcodes.BINFLOAT, value)
        elif isinstance(value, str):
            self._text(value)
        elif not self._get(value if isinstance(value, bytes) else id(value)):
            self._object(value)

    def _object(self, value: Any) -> None:
        out = self._out
        if isinstance(value, bytes):
            self._bytes(value)
        elif type(value) is dict:
            self._dict(value, value)
        elif type(value) is list:
            out += opcodes.EMPTY_LIST
            self._put(value)
            self._items(value)
        elif type(value) is tuple:
            if value:
                out += opcodes.MARK
                self._stack.append(_End(value))
                self._stack.extend(reversed(value))
            else:
                out += opcodes.EMPTY_TUPLE
        elif type(value) is Global:
            self._global(value.path)
        elif type(value) is NamedStorage:
            self._storage_id(value)
        else:
            self._lowered(value)

    def _lowered(self, value: Any) -> None:
        """Write a value that is built by a call, or that has a name."""
        if value is not self._constructor:
            self._current = value
        kind = type(value)
        if kind is OrderedDict or (kind is Tensor and value.extras is None):
            form = FORMS[kind](value)
        else:
            bare = self._naming.nameable(value, self._current)
            if type(bare) is str:
                self._text(bare)
                return
            if type(bare) is dict:
                self._dict(value, bare)
                return
            form = lower(bare)
        self.tensors += kind is Tensor and not value.is_parameter  # a parameter wraps a tensor
        if isinstance(form, Reduction):
            self._constructor = form.constructor
            self._call(value, form)
        else:
            self._object(form)

    def _dict(self, value: Any, entries: dict[Any, Any]) -> None:
        """Write a dict: the value itself, or its plain form."""
        self._out += opcodes.EMPTY_DICT
        self._put(value)
        self._entries(list(entries.items()))

    def _call(self, value: Any, call: Reduction) -> None:
        self._stack += (_End(value, call), call.args, call.constructor)

    def _end(self, value: Any, call: Reduction | None) -> None:
        if id(value) in self._memo:
            self._out += opcodes.POP_MARK if call is None else opcodes.POP + opcodes.POP
            self._get(id(value))
            return
        self._out += opcodes.TUPLE if call is None else opcodes.NEWOBJ if call.new else opcodes.REDUCE
        self._put(value)
        if call is not None:
            if call.state is not UNSET:
                self._stack += (_BUILD, call.state)
            self._entries(call.pairs)
            self._items(call.items)

    def _integer(self, value: int) -> None:
        if 0 <= value < 256:
            self._out += struct.pack("<cB", opcodes.BININT1, value)
        elif 0 <= value < 65536:
            self._out += struct.pack("<cH", opcodes.BININT2, value)
        elif -(2**31) <= value < 2**31:
            self._out += struct.pack("<ci", opcodes.BININT, value)
        else:
            data = value.to_bytes((~value if value < 0 else value).bit_length() // 8 + 1, "little", signed=True)
            short = len(data) < 256
            self._out += opcodes.LONG1 + bytes([len(data)]) if short else opcodes.LONG4 + struct.pack("<i", len(data))
            self._out += data

    def _text(self, value: str) -> None:
        if not self._get(("str", value)):
            data = value.encode("utf-8", "surrogatepass")
            self._out += opcodes.BINUNICODE + struct.pack("<I", len(data)) + data
            self._memoize(("str", value))

    def _bytes(self, value: bytes) -> None:
        """Write bytes: protocol 2 has none, so they are text decoded by `_codecs.encode`, as with Python's pickler."""
        self._global("_codecs encode")
        self._text(value.decode("latin1"))
        self._text("latin1")
        self._out += opcodes.TUPLE2 + opcodes.REDUCE
        self._memoize(value)

    def _global(self, name: str) -> None:
        if not self._get(("global", name)):
            module, _, word = name.partition(" ")
            path = f"{_PYTHON_3_MODULES.get(module, module)}.{word}"
            if path not in WEIGHTS_ONLY:
                self.blocking.setdefault(path, self._current)
            self._out += opcodes.GLOBAL + module.encode() + b"\n" + word.encode() + b"\n"
            self._memoize(("global", name))

    def _entries(self, entries: list[tuple[Any, Any]]) -> None:
        batches: list[Any] = []
        for start in range(0, len(entries), _BATCH):
            batches.append(_MARK)
            for key, item in entries[start : start + _BATCH]:
                batches += (self._naming.hashable(key), item)
            batches.append(_SETITEMS)
        self._stack.extend(reversed(batches))

    def _items(self, value: list[Any]) -> None:
        batches: list[Any] = []
        for start in range(0, len(value), _BATCH):
            batches += [_MARK, *value[start : start + _BATCH], _APPENDS]
        self._stack.extend(reversed(batches))

    def _storage_id(self, named: NamedStorage) -> None:
        """Write a persistent id; never memoized, as PyTorch resolves equal ids to the same storage."""
        if named.storage_class == "UntypedStorage" and self._old:
            raise UnsupportedError(
                "PyTorch 0.2 to 1.5 have no storages of this element type", hint="Use the current format."
            )
        ref = self._storage_ref(named.storage)
        if named.storage_class not in (self._classes.setdefault(ref.key, named.storage_class), "UntypedStorage"):
            raise UnsupportedError(
                "a quantized tensor, or a bare storage, shares memory with a tensor of another element type, "
                "which no .pt can hold"
            )
        self._out += opcodes.MARK
        self._text("storage")
        module = "torch.storage" if named.storage_class == "UntypedStorage" else "torch"
        self._global(f"{module} {named.storage_class}")
        self._text(ref.key)
        self._text(ref.location)
        self._integer(named.count)
        self._out += (opcodes.NONE if self._old else b"") + opcodes.TUPLE + opcodes.BINPERSID

    # The memo

    def _get(self, key: Any) -> bool:
        number = self._memo.get(key)
        if number is None:
            return False
        self._indexed(opcodes.BINGET, opcodes.LONG_BINGET, number)
        return True

    def _put(self, value: Any) -> None:
        self._alive.append(value)
        self._memoize(id(value))

    def _memoize(self, key: Any) -> None:
        number = self._memo[key] = len(self._memo)
        self._indexed(opcodes.BINPUT, opcodes.LONG_BINPUT, number)

    def _indexed(self, short: bytes, long: bytes, number: int) -> None:
        self._out += struct.pack("<cB", short, number) if number < 256 else struct.pack("<cI", long, number)


_SIMPLE = frozenset({str, int, bytes, float, bool, type(None)})
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


class Naming:
    """Decides which names are written.

    Args:
        allow_foreign: whether names of other packages are written.

    Attributes:
        left_out: the names that are not, and the values that would have them.
    """

    def __init__(self, allow_foreign: bool) -> None:
        self._allow_foreign = allow_foreign
        self.left_out: dict[str, list[Any]] = {}
        self._foreign: dict[int, PythonObject | None] = {}  # the object that becomes a dict in each part of a key
        self._texts: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._marks: dict[int, bytes] = {}

    def may(self, name: Any, owner: Any) -> bool:
        """Return whether a name may be written; if not, note the value that has it."""
        if isinstance(name, (PythonGlobal, PythonObject)) and may_name(name, self._allow_foreign):
            return True
        self.left_out.setdefault(getattr(name, "path", "<computed>"), []).append(owner)
        return False

    def nameable(self, value: Any, owner: Any) -> Any:
        """Return a value without the names in it that must not be written: of a set, the call that builds it.

        Args:
            value: any.
            owner: the value noted for them, if they are not values of their own.
        """
        if isinstance(value, (PythonGlobal, PythonObject)):
            if not self.may(value, value):
                return value.path if isinstance(value, PythonGlobal) else plain_data(value)
        elif isinstance(value, Tensor) and value.extras is not None and value.extras.subclass is not None:
            if not self.may(value.extras.subclass, owner):
                return evolve(value, extras=evolve(value.extras, subclass=None))
        elif isinstance(value, DefaultDict) and value.factory is not None and not self.may(value.factory, owner):
            bare = DefaultDict()
            bare.update(value)
            return bare
        elif isinstance(value, NumpyArray):
            module, _, name = value.cls.rpartition(".")
            if not self.may(PythonGlobal(module, name), owner):
                return evolve(value, cls="numpy.ndarray")
        elif isinstance(value, (set, frozenset)):
            kind = "set" if isinstance(value, set) else "frozenset"
            items = [self.hashable(item) for item in in_order(value, self._marks)]
            return PythonObject(PythonGlobal("builtins", kind), "reduce", (items,))
        return value

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
        """Return the text of a key that contains an object which becomes a dict; `None` for keys that are unchanged."""
        known = self._foreign
        stack = [key]
        while stack:
            part = stack[-1]
            if id(part) not in known:
                found = None
                if isinstance(part, (tuple, frozenset)):
                    inside = [each for each in part if isinstance(each, (tuple, frozenset, PythonObject))]
                    missing = [each for each in inside if id(each) not in known]
                    if missing:
                        stack += missing
                        continue
                    found = next((known[id(each)] for each in inside if known[id(each)] is not None), None)
                elif isinstance(part, PythonObject) and not may_name(part, self._allow_foreign):
                    found = part
                known[id(part)] = found
            stack.pop()
        first = known[id(key)]
        if first is None:
            return None
        args = key_text(first.args) if first.args and isinstance(first.args, tuple) else ""
        return f"{key_text(key)}{args}"
