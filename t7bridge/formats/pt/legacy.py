"""The magic-number format of PyTorch 0.2 to 1.5, and plain pickles that hold tensors.

Five pickles follow one another: the magic number, the protocol version, information about the machine, the value, the
keys of its storages. Then the storages in that order: an int64 count and the elements, always little-endian.

Source: PyTorch 2.13 `torch/serialization.py` `_legacy_load`; PyTorch 1.0 `torch/csrc/generic/serialization.cpp`
`THPStorage_(writeFileRaw)`: whatever the value of `little_endian`, a big-endian machine swaps before it writes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ...data import define
from ...errors import (
    CorruptError,
    ForbiddenGlobalError,
    FormatError,
    LimitError,
    T7BridgeError,
    TruncatedError,
    UnknownFormatError,
)
from ...graph.dtypes import ElementType
from ...graph.python import PythonGlobal, PythonObject
from ...graph.storage import Span, Storage
from ...io.source import ByteSource
from ...limits import Limits
from .layout import LEGACY_MAGIC, LEGACY_PROTOCOL
from .pickle.globals import PtMeaning
from .pickle.unpickler import Unpickler
from .rest import Rest, read_rest
from .storages import StorageId, StorageTable, shown, text

_MAGIC_BYTES = b"\x80\x02\x8a\x0a" + LEGACY_MAGIC.to_bytes(10, "little") + b"."
_FEW_OPERATIONS = 64
NewMeaning = Callable[[StorageTable, Callable[[Any], Any] | None], PtMeaning]
"""Creates the resolver of the names in a file from its storages and the function that resolves persistent ids."""


@define(eq=False)
class Stream:
    """The content of a file of pickles.

    Attributes:
        value: of the file.
        is_legacy: whether the file begins with PyTorch's magic number.
        rest: the bytes after the value.
    """

    value: Any
    is_legacy: bool
    rest: Rest


class _NoNames:
    """The meaning of a pickle that must be a number: no name, call or state is valid."""

    def find(self, module: str, name: str) -> Any:
        raise CorruptError("a name where a number is expected")

    def make(self, constructor: Any, args: Any, how: str, kwargs: Any = None) -> Any:
        raise CorruptError("a call where a number is expected")

    def build(self, value: Any, state: Any) -> Any:
        raise CorruptError("a state where a number is expected")

    def fill(self, value: PythonObject) -> None:
        raise CorruptError("items where a number is expected")

    def persistent(self, saved_id: Any) -> Any:
        raise CorruptError("a persistent id where a number is expected")


def is_legacy(source: ByteSource, start: int, limits: Limits) -> bool:
    """Return whether a file begins with the magic number, judging by its first opcodes.

    PyTorch checks the value of the first pickle, whatever opcodes wrote it, and so does `read_stream`.
    """
    if source.read(start, len(_MAGIC_BYTES)) == _MAGIC_BYTES:
        return True
    pickle = Unpickler(source, start, source.size, _NoNames(), limits)
    pickle.restrict(_FEW_OPERATIONS)
    try:
        value = pickle.load()
    except T7BridgeError:
        return False
    return type(value) is int and value == LEGACY_MAGIC


def read_stream(source: ByteSource, start: int, limits: Limits, new_meaning: NewMeaning) -> Stream:
    """Read a file in the magic-number format, or a plain pickle.

    Args:
        source: the file.
        start: where it begins, in bytes.
        limits: resource limits.
        new_meaning: creates the resolver of the names in it.

    Raises:
        FormatError: the file is damaged.
        UnknownFormatError: it is not a pickle.
    """
    table = StorageTable(one_type=True)
    known: list[bool] = []
    meaning = new_meaning(table, lambda saved_id: _persistent(table, saved_id, bool(known)))
    pickles = Unpickler(source, start, source.size, meaning, limits)
    try:
        value = pickles.load()
    except FormatError as error:
        if source.read(start, 1) == b"\x80" or isinstance(error, (ForbiddenGlobalError, LimitError)):
            raise
        raise UnknownFormatError(
            "is not a file of PyTorch", file=source.name, expected="a zip archive, a pickle or a tar archive of PyTorch"
        ) from error
    if type(value) is not int or value != LEGACY_MAGIC:
        table.finish()
        return Stream(value, False, read_rest(pickles, source.size))
    known.append(True)
    version = pickles.load()
    if version != LEGACY_PROTOCOL:
        raise CorruptError(
            "has a protocol that no release used",
            file=source.name,
            offset=start,
            expected=str(LEGACY_PROTOCOL),
            found=shown(version),
        )
    pickles.load()  # information about the machine, unused
    value = pickles.load()
    keys = pickles.load()
    if not isinstance(keys, list):
        raise CorruptError("has no list of storage keys", file=source.name, offset=pickles.position)
    end = _place_storages(source, pickles.position, keys, table)
    pickles.skip(end - pickles.position)
    return Stream(value, True, read_rest(pickles, source.size))


def _persistent(table: StorageTable, saved_id: Any, is_legacy: bool) -> Any:
    if not is_legacy:
        raise CorruptError("the pickle refers to external data, which do not exist")
    if isinstance(saved_id, tuple) and saved_id and text(saved_id[0]) == "module":
        # A class with its source code: ("module", class, file, source).
        if len(saved_id) > 1 and isinstance(saved_id[1], PythonGlobal):
            return saved_id[1]
        raise CorruptError("a persistent id names a module that does not exist")
    return table.of_id(StorageId.parse(saved_id))


def _place_storages(source: ByteSource, position: int, keys: list[Any], table: StorageTable) -> int:
    """Locate the elements of each storage; return where the last ends."""
    table.claim_rest()
    for key in keys:
        name = text(key) or key
        storage = table.roots.get(name) if isinstance(name, (str, int)) else None
        if storage is None:
            raise CorruptError(
                "lists a storage that no tensor has", file=source.name, offset=position, found=shown(name)
            )
        span = find_elements(source, position, storage)
        table.place(name, span)
        position = span.offset + storage.nbytes
    missing = set(table.roots).difference(text(key) or key for key in keys)
    if missing:
        raise CorruptError(
            "has tensors whose storages are missing",
            file=source.name,
            offset=position,
            found=f"key {min(map(str, missing)):.60}",
        )
    table.finish()
    return position


def find_elements(source: ByteSource, position: int, storage: Storage) -> Span:
    """Locate the elements that follow a count.

    Args:
        source: the file.
        position: of the count, in bytes.
        storage: the storage; the count must be its own.

    Raises:
        TruncatedError: the file ends early.
        CorruptError: the count differs.
    """
    (count,) = struct.unpack("<q", source.read_exact(position, 8, "the size of a storage"))
    if count != storage.count:
        raise CorruptError(
            "a storage has another size than its tensors claim",
            file=source.name,
            offset=position,
            expected=f"{storage.count} elements",
            found=f"{count}",
        )
    check_room(source, position + 8, count, storage.element)
    return Span(source, position + 8, storage.element.itemsize)


def check_room(source: ByteSource, position: int, count: int, element: ElementType, end: int | None = None) -> None:
    """Check that a storage's elements are in the file.

    Raises:
        TruncatedError: the file ends early.
    """
    end = source.size if end is None else end
    if not 0 <= count * element.itemsize <= end - position:
        raise TruncatedError(
            "ends inside a storage",
            file=source.name,
            offset=position,
            expected=f"{count} elements of {element.name}",
            found=f"{end - position} bytes",
            hint="The file was cut off: download or copy it again.",
        )
