"""Python-side values as a pickle of protocol 2, the one that PyTorch's safe loader accepts."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ....data import define
from ....errors import UnsupportedError
from ....graph.python import UNSET
from ....graph.storage import Storage
from ....graph.tensor import Tensor
from .reductions import Call, Global, StorageId, lower

_BATCH = 1000
"""Entries handed to a list or dict at once, as Python's own pickler does: it bounds the reader's stack."""


@define(frozen=True)
class StorageRef:
    """How a pickle names a storage.

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


@define(frozen=True)
class _Put:
    """Remember what was just built as this object."""

    value: Any


@define(frozen=True, eq=False)
class _EndTuple:
    """Build a tuple of what was emitted since the mark, unless building its items has built it already."""

    value: tuple[Any, ...]


@define(frozen=True, eq=False)
class _EndCall:
    """Make a value of the constructor and the arguments that were emitted, then give it the rest."""

    value: Any
    call: Call


class PickleWriter:
    """Writes one value as a pickle. Nesting is as deep as the value likes; shared objects stay shared.

    Args:
        storage_ref: gives a storage the key and location that the pickle names it by.
        old: whether PyTorch 0.2 to 1.5 is to read it: there a storage's name has a last part for views.
    """

    def __init__(self, storage_ref: Callable[[Storage], StorageRef], *, old: bool = False) -> None:
        self._storage_ref = storage_ref
        self._old = old
        self.tensors = 0
        """Number of tensors written so far."""
        self._out = bytearray()
        self._memo: dict[Any, int] = {}
        self._kept: list[Any] = []
        self._stack: list[Any] = []

    def dumps(self, value: Any) -> bytes:
        """The pickle of a value.

        Args:
            value: builtins, tensors, and the values of `graph.python`, nested and shared in any way.

        Raises:
            UnsupportedError: something else is inside.
        """
        self._out += b"\x80\x02"
        self._stack.append(value)
        while self._stack:
            item = self._stack.pop()
            if type(item) is _Raw:
                self._out += item.opcodes
            elif type(item) is _Put:
                self._put(item.value)
            elif type(item) is _EndTuple:
                self._end_tuple(item.value)
            elif type(item) is _EndCall:
                self._end_call(item.value, item.call)
            else:
                self._save(item)
        self._out += b"."
        return bytes(self._out)

    def _save(self, value: Any) -> None:
        out = self._out
        if value is None:
            out += b"N"
        elif value is True:
            out += b"\x88"
        elif value is False:
            out += b"\x89"
        elif isinstance(value, int):
            self._integer(value)
        elif isinstance(value, float):
            out += struct.pack(">cd", b"G", value)
        elif isinstance(value, str):
            self._text(value)
        elif not self._get(self._identity(value)):
            self._object(value)

    @staticmethod
    def _identity(value: Any) -> Any:
        """What finds a value in the memo: equal bytes are one, other objects are themselves."""
        return value if isinstance(value, bytes) else id(value)

    def _object(self, value: Any) -> None:
        out = self._out
        if isinstance(value, bytes):
            self._bytes(value)
        elif type(value) is dict:
            out += b"}"
            self._put(value)
            self._entries(list(value.items()))
        elif type(value) is list:
            out += b"]"
            self._put(value)
            self._items(value)
        elif type(value) is tuple:
            if value:
                out += b"("
                self._stack.append(_EndTuple(value))
                self._stack.extend(reversed(value))
            else:
                out += b")"
        elif type(value) is Global:
            self._global(value.path)
        elif type(value) is StorageId:
            self._storage_id(value)
        else:
            self._lowered(value)

    def _lowered(self, value: Any) -> None:
        """A value that a call makes, or that has a name."""
        how = lower(value)
        self.tensors += isinstance(value, Tensor) and not value.is_parameter  # a parameter is made of a tensor
        if isinstance(how, Call):
            self._call(value, how)
        else:
            self._object(how)

    def _call(self, value: Any, call: Call) -> None:
        self._stack += (_EndCall(value, call), call.args, call.constructor)

    def _end_call(self, value: Any, call: Call) -> None:
        if id(value) in self._memo:  # it was made on the way, by an argument that refers to it
            self._out += b"00"
            self._get(id(value))
            return
        self._out += b"\x81" if call.new else b"R"
        self._put(value)
        if call.state is not UNSET:
            self._stack += (_Raw(b"b"), call.state)
        self._entries(call.pairs)
        self._items(call.items)

    def _integer(self, value: int) -> None:
        if 0 <= value < 256:
            self._out += struct.pack("<cB", b"K", value)
        elif 0 <= value < 65536:
            self._out += struct.pack("<cH", b"M", value)
        elif -(2**31) <= value < 2**31:
            self._out += struct.pack("<ci", b"J", value)
        else:
            data = value.to_bytes((~value if value < 0 else value).bit_length() // 8 + 1, "little", signed=True)
            head = b"\x8a" + bytes([len(data)]) if len(data) < 256 else b"\x8b" + struct.pack("<i", len(data))
            self._out += head + data

    def _text(self, value: str) -> None:
        if not self._get(("str", value)):
            data = value.encode("utf-8", "surrogatepass")
            self._out += b"X" + struct.pack("<I", len(data)) + data
            self._memoize(("str", value))

    def _bytes(self, value: bytes) -> None:
        """Protocol 2 has no bytes: they are text that `_codecs.encode` turns back, as Python's own pickler has it."""
        self._global("_codecs encode")
        self._text(value.decode("latin1"))
        self._text("latin1")
        self._out += b"\x86R"
        self._memoize(value)

    def _global(self, name: str) -> None:
        if not self._get(("global", name)):
            module, _, word = name.partition(" ")
            self._out += b"c" + module.encode() + b"\n" + word.encode() + b"\n"
            self._memoize(("global", name))

    def _entries(self, entries: list[tuple[Any, Any]]) -> None:
        batches: list[Any] = []
        for start in range(0, len(entries), _BATCH):
            batches.append(_Raw(b"("))
            for key, item in entries[start : start + _BATCH]:
                batches += (key, item)
            batches.append(_Raw(b"u"))
        self._stack.extend(reversed(batches))

    def _items(self, value: list[Any]) -> None:
        batches: list[Any] = []
        for start in range(0, len(value), _BATCH):
            batches += [_Raw(b"("), *value[start : start + _BATCH], _Raw(b"e")]
        self._stack.extend(reversed(batches))

    def _end_tuple(self, value: tuple[Any, ...]) -> None:
        if id(value) in self._memo:  # a tuple that holds itself through a list
            self._out += b"1"
            self._get(id(value))
        else:
            self._out += b"t"
            self._put(value)

    def _storage_id(self, named: StorageId) -> None:
        """A persistent id; never remembered, as PyTorch gives equal ids the same storage."""
        if named.storage_class == "UntypedStorage" and self._old:
            raise UnsupportedError(
                "PyTorch 0.2 to 1.5 have no storages of this element type", hint="Write today's format."
            )
        ref = self._storage_ref(named.storage)
        self._out += b"("
        self._text("storage")
        module = "torch.storage" if named.storage_class == "UntypedStorage" else "torch"
        self._global(f"{module} {named.storage_class}")
        self._text(ref.key)
        self._text(ref.location)
        self._integer(named.count)
        self._out += b"NtQ" if self._old else b"tQ"

    # The memo

    def _get(self, key: Any) -> bool:
        number = self._memo.get(key)
        if number is None:
            return False
        self._out += struct.pack("<cB", b"h", number) if number < 256 else struct.pack("<cI", b"j", number)
        return True

    def _put(self, value: Any) -> None:
        self._kept.append(value)
        self._memoize(id(value))

    def _memoize(self, key: Any) -> None:
        number = self._memo[key] = len(self._memo)
        self._out += struct.pack("<cB", b"q", number) if number < 256 else struct.pack("<cI", b"r", number)
