"""Files of PyTorch before 1.6: pickles after one another, with elements between them, and plain pickles with tensors.

The magic-number format of 0.2 to 1.5 has five pickles: the magic number, the protocol version, information about the
machine, the value, the keys of its storages. Then the storages in that order: an int64 count and the elements.

The tar layout of 0.1 has `storages`, `tensors` and `pickle` in an uncompressed archive:

- `storages`: a pickled count; for each storage a pickle (key, location, class), an int64 count and the elements; then
  a pickled list of the storages that are parts of others: (key, key of the whole, first element, elements).
- `tensors`: a pickled count; for each tensor a pickle (key, key of its storage, class), an int32 number of dimensions,
  4 unused bytes, int64 sizes and strides, and an int64 offset.
- `pickle`: the value; a persistent id is the key of a tensor or storage, or a class with its source code.

All numbers are little-endian: whatever the value of `little_endian`, a big-endian machine swaps before it writes.
Source: PyTorch 2.13 `torch/serialization.py` `_legacy_load`, `legacy_load`; PyTorch 1.0
`torch/csrc/generic/serialization.cpp` `THPStorage_(writeFileRaw)`; POSIX.1-2001 `pax`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

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
from ...graph.python import PythonGlobal
from ...graph.storage import Span, Storage
from ...graph.tensor import Tensor
from ...io.source import ByteSource
from ...limits import DEFAULT_LIMITS, Limits
from ..fields import shown
from .archive import LEGACY_MAGIC, LEGACY_PROTOCOL
from .pickle.meaning import Origin, PtMeaning
from .pickle.safe_loader import LEGACY_PARTS, NO_IDS
from .pickle.tensors import view
from .pickle.unpickler import Unpickler
from .storages import STORAGE_CLASSES, StorageTable, is_count, text

_MAGIC_BYTES = b"\x80\x02\x8a\x0a" + LEGACY_MAGIC.to_bytes(10, "little") + b"."
_FEW_OPERATIONS = 64
_BLOCK = 512
_MAX_PAX_BYTES = 1 << 20
_MEMBERS = frozenset({"sys_info", "pickle", "tensors", "storages"})
_DIGITS = re.compile(rb" *([0-7]+)[ \0]*")
_PAX_RECORD = re.compile(rb"([1-9]\d{0,6}) (?:[amc]time|[ug]id|[ug]name|comment)=")
"""The records that change neither name nor size of a member: Python 3 writes times that are not whole."""


def is_legacy(source: ByteSource, start: int, limits: Limits) -> bool:
    """Return whether a file begins with the magic number, judging by its first opcodes.

    PyTorch checks the value of the first pickle, whatever opcodes wrote it, and so does `read_stream`.
    """
    if source.read(start, len(_MAGIC_BYTES)) == _MAGIC_BYTES:
        return True
    pickle = Unpickler(source, start, source.size, PtMeaning(Origin(source, limits)))
    pickle.restrict(_FEW_OPERATIONS)
    try:
        value = pickle.load()
    except T7BridgeError:
        return False
    return type(value) is int and value == LEGACY_MAGIC


def read_stream(origin: Origin, start: int) -> tuple[Any, str, StorageTable]:
    """Read a file in the magic-number format, or a plain pickle.

    Args:
        origin: the file.
        start: where it begins, in bytes.

    Returns:
        The value, its format (`legacy` or `pickle`), and its storages.

    Raises:
        FormatError: the file is damaged.
        UnknownFormatError: it is not a pickle.
    """
    source = origin.source
    table = StorageTable(one_type=True)
    meaning = PtMeaning(origin, table)
    pickles = Unpickler(source, start, source.size, meaning)
    try:
        value = pickles.load()
    except FormatError as error:
        if source.read(start, 1) == b"\x80" or isinstance(error, (ForbiddenGlobalError, LimitError)):
            raise
        raise UnknownFormatError(
            "is not a file of PyTorch", expected="a zip archive, a pickle or a tar archive of PyTorch"
        ) from error
    is_old = type(value) is int and value == LEGACY_MAGIC
    if is_old:
        meaning.resolve = partial(_stored, table)
        version = pickles.load()
        if version != LEGACY_PROTOCOL:
            raise CorruptError(
                "has a protocol that no release used", offset=start, expected=str(LEGACY_PROTOCOL), found=shown(version)
            )
        pickles.load()  # information about the machine, unused
        meaning.id_parts = LEGACY_PARTS
        value = pickles.load()
        meaning.id_parts = NO_IDS
        _place_storages(pickles, table)
    table.finish()
    origin.notes += pickles.load_rest()
    return value, "legacy" if is_old else "pickle", table


def _stored(table: StorageTable, saved_id: Any) -> Any:
    """Return a storage; or a class with its source code: ("module", class, file, source)."""
    if isinstance(saved_id, tuple) and saved_id and text(saved_id[0]) == "module":
        if len(saved_id) > 1 and isinstance(saved_id[1], PythonGlobal):
            return saved_id[1]
        raise CorruptError("a persistent id names a module that does not exist")
    return table.of_id(saved_id)


def _place_storages(pickles: Unpickler, table: StorageTable) -> None:
    """Locate the elements of each storage, in the order of the pickled list of their keys."""
    keys = pickles.load()
    if not isinstance(keys, list):
        raise CorruptError("has no list of storage keys", offset=pickles.position)
    table.claim_rest()
    names = [text(key) or key for key in keys]
    for name in names:
        storage = table.roots.get(name) if isinstance(name, (str, int)) else None
        if storage is None:
            raise CorruptError("lists a storage that no tensor has", offset=pickles.position, found=shown(name))
        _, table.roots[name].data = _elements(pickles, storage.element, storage.count)
    missing = set(table.roots).difference(names)
    if missing:
        found = f"key {min(map(str, missing)):.60}"
        raise CorruptError("has tensors whose storages are missing", offset=pickles.position, found=found)


def _elements(pickles: Unpickler, element: ElementType, expected: int | None = None) -> tuple[int, Span]:
    """Return the number of elements that follow the last pickle, and their location; resume behind them.

    Args:
        pickles: the pickles.
        element: the type of the elements.
        expected: number of elements; None if any is right.

    Raises:
        TruncatedError: the file or member ends early.
        CorruptError: the number is another.
    """
    at = pickles.position
    (count,) = struct.unpack("<q", pickles.take(8, "the size of a storage"))
    if expected is not None and count != expected:
        raise CorruptError(
            "a storage has another size than its tensors claim",
            offset=at,
            expected=f"{expected} elements",
            found=f"{count}",
        )
    span = Span(pickles.source, pickles.position, element.itemsize)
    if not 0 <= count * element.itemsize <= pickles.end - pickles.position:
        raise TruncatedError(
            "ends inside a storage",
            offset=pickles.position,
            expected=f"{count} elements of {element.name}",
            found=f"{pickles.end - pickles.position} bytes",
            hint="The file was cut off: download or copy it again.",
        )
    pickles.skip(count * element.itemsize)
    return count, span


# The tar layout


def tar_members(source: ByteSource, limits: Limits = DEFAULT_LIMITS) -> dict[str, tuple[int, int]]:
    """Return the members of a tar archive: name → offset and length in bytes.

    What PyTorch never writes is refused where the archive may be one of PyTorch: readers disagree about such names and
    sizes.

    Raises:
        FormatError: it is damaged, or ends early.
    """
    members: dict[str, tuple[int, int]] = {}
    doubt = ("", 0, "")  # reason, place and name of the first member that PyTorch does not write
    place = 0
    while place + _BLOCK <= source.size:
        header = source.read_exact(place, _BLOCK, "a header of the archive")
        if not header.strip(b"\0"):
            break
        name, size = _header(source, place, header)
        kind = header[156:157]
        reason = _doubt(header, name, kind, name in members)
        place += _BLOCK
        if place + size > source.size:
            raise TruncatedError(
                "ends inside a member of the archive",
                offset=place,
                path=name,
                expected=f"{size} bytes",
                found=f"{source.size - place}",
            )
        if kind == b"x":
            if size > _MAX_PAX_BYTES:
                raise LimitError(
                    "the archive has an extended header of too many bytes",
                    offset=place,
                    expected=f"at most {_MAX_PAX_BYTES}, which is fixed",
                    found=f"{size}",
                )
            if not reason and not _is_plain_pax(source.read_exact(place, size, "an extended header")):
                reason = "an extended header that PyTorch does not write"
        elif kind in b"0\0":
            members[name] = (place, size)
        doubt = doubt if doubt[0] else (reason, place - _BLOCK, name)
        place += -(-size // _BLOCK) * _BLOCK
        if len(members) > limits.archive_members:
            raise limits.exceeded("archive_members", "the archive has too many members", offset=place)
    reason, place, name = doubt
    if reason and "storages" in members:  # other archives may hold anything
        raise CorruptError(
            f"has {reason}",
            offset=place,
            path=name,
            expected="sys_info, pickle, tensors and storages",
            hint="Do not unpack it: such archives are made to deceive.",
        )
    return members


def _header(source: ByteSource, place: int, header: bytes) -> tuple[str, int]:
    """Return the name and the size of a member."""
    total = sum(header) - sum(header[148:156]) + 8 * 0x20
    if _number(header[148:156]) != total:
        raise CorruptError("the archive has a damaged header", offset=place)
    size = _number(header[124:136])
    if size is None:
        raise CorruptError("a member of the archive has no size", offset=place)
    name = header[:100].partition(b"\0")[0].decode("utf-8", "replace")
    return name.removeprefix("./"), size


def _number(field: bytes) -> int | None:
    """Parse a number of a tar header: octal digits. Sizes in base 256 are of files that PyTorch 0.1 did not write."""
    digits = _DIGITS.fullmatch(field)
    return int(digits[1], 8) if digits else None


def _doubt(header: bytes, name: str, kind: bytes, is_known: bool) -> str:
    """Return what PyTorch does not write in a header; empty if it could have written it."""
    if name.startswith("/") or ".." in name.split("/"):
        return "a member that would be unpacked elsewhere"
    if kind in b"12":
        return "a link, which PyTorch never writes"
    if kind == b"x":  # `././@PaxHeader`: no pickle begins so
        return "" if header[:1] in (b".", b"P") else "an extended header of an unusual name"
    if kind not in b"0\0":
        return "a member that is not a file"
    if is_known:
        return "a duplicate member"
    if name not in _MEMBERS or header[345:500].strip(b"\0"):
        return "a member that PyTorch does not write"
    return ""


def _is_plain_pax(data: bytes) -> bool:
    """Return whether an extended header has only records that change neither name nor size."""
    place = 0
    while place < len(data):
        match = _PAX_RECORD.match(data, place)
        length = int(match[1]) if match else 0
        if not match or place + length <= match.end() or data[place + length - 1 : place + length] != b"\n":
            return False
        place += length
    return True


def _entries(pickles: Unpickler, wrong: str) -> Iterator[tuple[int, Any, Any, Any]]:
    """Yield offset, key and two further values for each of a counted number of pickles."""
    count = pickles.load()
    if not is_count(count):
        raise CorruptError("a member does not begin with a count", offset=pickles.position)
    for _ in range(count):
        at = pickles.position
        entry = pickles.load()
        if not isinstance(entry, tuple) or len(entry) != 3 or not isinstance(entry[0], (int, str)):
            raise CorruptError(wrong, offset=at)
        yield at, *entry


def _read_storages(pickles: Unpickler, table: StorageTable, known: dict[Hashable, Any]) -> None:
    """Read the storages, and those that are parts of others."""
    for at, key, location, kind in _entries(pickles, "a storage has no key, location and class"):
        element = STORAGE_CLASSES.get(kind.path) if isinstance(kind, PythonGlobal) else None
        device = text(location)
        if element is None or device is None:
            raise CorruptError("a storage has an unknown class", offset=at)
        count, span = _elements(pickles, element)
        if key in known:
            raise CorruptError("a storage occurs twice in the file", offset=at)
        known[key] = storage = table.get(key, element, count, device)
        storage.data = span
    at = pickles.position
    parts = pickles.load()
    for part in parts if isinstance(parts, (list, tuple)) else [None]:
        if not isinstance(part, tuple) or len(part) != 4 or not isinstance(part[0], (int, str)):
            raise CorruptError("the description of a part of a storage is invalid", offset=at)
        key, whole, first, count = part
        root = table.roots.get(whole) if isinstance(whole, (int, str)) else None
        if root is None:
            raise CorruptError("a storage is part of a missing one", offset=at)
        known[key] = table.part(root, first, count)
    table.finish()


def _read_tensors(pickles: Unpickler, meaning: PtMeaning, known: dict[Hashable, Any]) -> None:
    """Read the tensors."""
    for at, key, storage_key, _ in _entries(pickles, "a tensor has no key, storage and class"):
        storage = known.get(storage_key) if isinstance(storage_key, (int, str)) else None
        if not isinstance(storage, Storage):
            what = "tensor" if isinstance(storage, Tensor) else "missing storage"
            raise CorruptError(f"a tensor is on a {what}", offset=at)
        (dimensions,) = struct.unpack("<i4x", pickles.take(8, "a tensor"))
        if not 0 <= dimensions <= meaning.limits.dimensions:
            raise CorruptError(f"a tensor has {dimensions} dimensions", offset=at)
        numbers = struct.unpack(f"<{2 * dimensions + 1}q", pickles.take(16 * dimensions + 8, "a tensor"))
        size, stride, offset = numbers[:dimensions], numbers[dimensions:-1], numbers[-1]
        if not size and not storage.count:  # an empty tensor of a release that had no scalars
            size, stride, offset = (0,), (1,), 0
        known[key] = view(meaning, storage, offset, size, stride)


def _named(known: dict[Hashable, Any], saved_id: Any) -> Any:
    """Return a tensor or storage by its key, as text; or a class that comes with its source."""
    if isinstance(saved_id, tuple):
        if saved_id and isinstance(saved_id[0], PythonGlobal):
            return saved_id[0]
        raise CorruptError("a persistent id names no class")
    key: Any = text(saved_id) or saved_id
    if isinstance(key, str) and key not in known and key.lstrip("-").isdecimal() and len(key) < 30:
        key = int(key)
    if not isinstance(key, (int, str)) or key not in known:
        raise CorruptError("the pickle refers to a missing tensor", found=shown(saved_id))
    return known[key]


def read_tar(origin: Origin, start: int = 0) -> tuple[Any, str, StorageTable]:
    """Read a file in the tar layout.

    Args:
        origin: the file.
        start: where it begins: at the first byte.

    Returns:
        The value, its format (`tar`), and its storages.

    Raises:
        FormatError: the file is damaged, or is another tar archive.
    """
    source, members = origin.source, tar_members(origin.source, origin.limits)
    known: dict[Hashable, Any] = {}  # storages and tensors, by key
    table = StorageTable()
    meaning = PtMeaning(origin, table, partial(_named, known))
    missing = [name for name in ("storages", "tensors", "pickle") if name not in members]
    if missing:
        raise CorruptError(
            f"the archive has no member {missing[0]}",
            expected="a tar archive of PyTorch 0.1",
            found=", ".join(list(members)[:4]),
            hint="Unpack it, or give the address of a member: tar://MEMBER::FILE.",
        )

    def pickles(name: str) -> Unpickler:
        place, size = members[name]
        return Unpickler(source, place, place + size, meaning, name)

    _read_storages(pickles("storages"), table, known)
    _read_tensors(pickles("tensors"), meaning, known)
    last = pickles("pickle")
    value = last.load()
    origin.notes += last.load_rest("pickle")
    return value, "tar", table
