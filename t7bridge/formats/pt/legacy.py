"""The magic-number format of PyTorch 0.2 to 1.5, and plain pickles that hold tensors.

Five pickles follow one another: the magic number, the protocol version, facts about the machine, the value, the keys
of its storages. Behind them stand the storages in that order: an int64 count and the elements, always little-endian.

Source: PyTorch 2.13 `torch/serialization.py` `_legacy_load`; PyTorch 1.0 `torch/csrc/generic/serialization.cpp`
`THPStorage_(writeFileRaw)`: whatever `little_endian` in the facts says, a big-endian machine swaps before it writes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ...errors import CorruptError, ForbiddenGlobalError, FormatError, TruncatedError, UnknownFormatError
from ...graph.dtypes import ElementType
from ...graph.python import PythonGlobal
from ...graph.storage import Span, Storage
from ...io.source import ByteSource
from ...limits import Limits
from .layout import LEGACY_MAGIC, LEGACY_PROTOCOL
from .pickle.globals import PtMeaning
from .pickle.unpickler import Unpickler
from .storages import StorageId, StorageTable, shown, text

_MAGIC_BYTES = b"\x8a\x0a" + LEGACY_MAGIC.to_bytes(10, "little")
NewMeaning = Callable[[StorageTable, Callable[[Any], Any] | None], PtMeaning]
"""What the names in a file mean, given its storages and what gives the value of a persistent id."""


def is_legacy(head: bytes) -> bool:
    """Whether a file begins with the magic number: after the mark of the protocol, and of a frame in protocol 4."""
    return _MAGIC_BYTES in head[:32]


def read_legacy(source: ByteSource, start: int, limits: Limits, new_meaning: NewMeaning) -> Any:
    """Read a file in the magic-number format.

    Args:
        source: the file.
        start: where it begins, in bytes.
        limits: what it may cost.
        new_meaning: gives the names in it a meaning.

    Returns:
        Its value.

    Raises:
        FormatError: the file is damaged.
    """
    table = StorageTable()
    meaning = new_meaning(table, lambda saved_id: _persistent(table, saved_id))
    pickles = Unpickler(source, start, source.size, meaning, limits)
    if pickles.load() != LEGACY_MAGIC:
        raise CorruptError("does not begin with PyTorch's magic number", file=source.name, offset=start)
    version = pickles.load()
    if version != LEGACY_PROTOCOL:
        raise CorruptError(
            "is of a protocol that no release had",
            file=source.name,
            offset=start,
            expected=str(LEGACY_PROTOCOL),
            found=shown(version),
        )
    pickles.load()  # facts about the machine, which nothing depends on
    value = pickles.load()
    keys = pickles.load()
    if not isinstance(keys, list):
        raise CorruptError("has no list of storage keys", file=source.name, offset=pickles.position)
    _place_storages(source, pickles.position, keys, table)
    return value


def _persistent(table: StorageTable, saved_id: Any) -> Any:
    if isinstance(saved_id, tuple) and saved_id and text(saved_id[0]) == "module":
        # A class with its source code: ("module", class, file, source).
        if len(saved_id) > 1 and isinstance(saved_id[1], PythonGlobal):
            return saved_id[1]
        raise CorruptError("a persistent id names a module, and none is there")
    return table.of_id(StorageId.parse(saved_id))


def _place_storages(source: ByteSource, position: int, keys: list[Any], table: StorageTable) -> None:
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
            "has tensors whose storages are not there",
            file=source.name,
            offset=position,
            found=f"key {min(map(str, missing)):.60}",
        )
    table.finish()


def find_elements(source: ByteSource, position: int, storage: Storage) -> Span:
    """Find a count and the elements behind it.

    Args:
        source: the file.
        position: of the count, in bytes.
        storage: whose elements they are; the count must be its own.

    Raises:
        TruncatedError: the file ends before.
        CorruptError: the count is another.
    """
    (count,) = struct.unpack("<q", source.read_exact(position, 8, "the size of a storage"))
    if count != storage.count:
        raise CorruptError(
            "a storage has another size than the tensors on it say",
            file=source.name,
            offset=position,
            expected=f"{storage.count} elements",
            found=f"{count}",
        )
    check_room(source, position + 8, count, storage.element)
    return Span(source, position + 8, storage.element.itemsize)


def check_room(source: ByteSource, position: int, count: int, element: ElementType, end: int | None = None) -> None:
    """Check that a storage's elements are there.

    Raises:
        TruncatedError: the file ends before.
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


def read_pickle(source: ByteSource, start: int, limits: Limits, new_meaning: NewMeaning) -> Any:
    """Read a plain pickle. What follows it in the file, if anything, is not looked at.

    Raises:
        FormatError: it is damaged.
        UnknownFormatError: it is none at all.
    """
    table = StorageTable()
    meaning = new_meaning(table, None)
    try:
        value = Unpickler(source, start, source.size, meaning, limits).load()
    except FormatError as error:
        if source.read(start, 1) == b"\x80" or isinstance(error, ForbiddenGlobalError):
            raise
        raise UnknownFormatError(
            "is no file of PyTorch", file=source.name, expected="a zip archive, a pickle or a tar archive of PyTorch"
        ) from error
    table.finish()
    return value
