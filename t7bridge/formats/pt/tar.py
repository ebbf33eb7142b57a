"""The tar layout of PyTorch 0.1: `storages`, `tensors` and `pickle` in an uncompressed archive.

- `storages`: a pickled count; for each storage a pickle (key, location, class), an int64 count and the elements; then
  a pickled list of the storages that are parts of others: (key, key of the whole, first element, elements).
- `tensors`: a pickled count; for each tensor a pickle (key, key of its storage, class), an int32 number of dimensions,
  4 unused bytes, int64 sizes and strides, and an int64 offset.
- `pickle`: the value; a persistent id is the key of a tensor or storage, or a class with its source code.

All numbers are little-endian. Source: PyTorch 2.13 `torch/serialization.py` `legacy_load`; POSIX.1-2001 `pax`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Hashable
from functools import partial
from typing import Any

from ...errors import CorruptError, LimitError, TruncatedError
from ...graph.python import PythonGlobal
from ...graph.storage import Span
from ...graph.tensor import Tensor
from ...io.source import ByteSource
from ...limits import DEFAULT_LIMITS, Limits
from .legacy import NewMeaning, check_room
from .pickle.rebuild_tensors import view
from .pickle.unpickler import Unpickler
from .rest import Rest, read_rest
from .storages import StorageTable, is_count, shown, storage_element, text

_BLOCK = 512
_MAX_PAX_BYTES = 1 << 20
_MEMBERS = frozenset({"sys_info", "pickle", "tensors", "storages"})
_DIGITS = re.compile(rb" *([0-7]+)[ \0]*")
_PAX_RECORD = re.compile(rb"([1-9]\d{0,6}) (?:[amc]time|[ug]id|[ug]name|comment)=")
"""The records that change neither name nor size of a member: Python 3 writes times that are not whole."""


def tar_members(source: ByteSource, limits: Limits = DEFAULT_LIMITS) -> dict[str, tuple[int, int]]:
    """Return the members of a tar archive: name → offset and length in bytes.

    What PyTorch never writes is refused where the archive may be one of PyTorch: readers disagree about such names and
    sizes.

    Raises:
        FormatError: it is damaged, or ends early.
    """
    members: dict[str, tuple[int, int]] = {}
    doubt: CorruptError | None = None
    place = 0
    while place + _BLOCK <= source.size:
        header = source.read_exact(place, _BLOCK, "a header of the archive")
        if not header.strip(b"\0"):
            break
        name, size, kind = _header(source, place, header)
        doubt = doubt or _doubt(source, place, header, name, members)
        place += _BLOCK
        if place + size > source.size:
            raise TruncatedError(
                "ends inside a member of the archive",
                file=source.name,
                offset=place,
                path=name,
                expected=f"{size} bytes",
                found=f"{source.size - place}",
            )
        if kind == b"x":
            if size > _MAX_PAX_BYTES:
                raise LimitError(
                    "the archive has an extended header of too many bytes",
                    file=source.name,
                    offset=place,
                    expected=f"at most {_MAX_PAX_BYTES}, which is fixed",
                    found=f"{size}",
                )
            if not _is_plain_pax(source.read_exact(place, size, "an extended header")):
                doubt = doubt or _fault(source, place, name, "an extended header that PyTorch does not write")
        elif kind in b"0\0":
            members[name] = (place, size)
        place += -(-size // _BLOCK) * _BLOCK
        if len(members) > limits.archive_members:
            raise LimitError(
                "the archive has too many members",
                file=source.name,
                offset=place,
                limit="archive_members",
                value=limits.archive_members,
            )
    if doubt and "storages" in members:  # other archives may hold anything
        try:
            raise doubt
        finally:
            doubt = None  # an error refers to this frame: break the reference cycle
    return members


def _doubt(
    source: ByteSource, place: int, header: bytes, name: str, members: dict[str, tuple[int, int]]
) -> CorruptError | None:
    """Return an error for a header that PyTorch does not write; `None` if it could have written it."""
    kind = header[156:157]
    reason = ""
    if name.startswith("/") or ".." in name.split("/"):
        reason = "a member that would be unpacked elsewhere"
    elif kind in b"12":
        reason = "a link, which PyTorch never writes"
    elif kind == b"x":
        if header[:1] not in (b".", b"P"):  # `././@PaxHeader`: no pickle begins so
            reason = "an extended header of an unusual name"
    elif kind not in b"0\0":
        reason = "a member that is not a file"
    elif name in members:
        reason = "a duplicate member"
    elif name not in _MEMBERS or header[345:500].strip(b"\0"):
        reason = "a member that PyTorch does not write"
    return _fault(source, place, name, reason) if reason else None


def _fault(source: ByteSource, place: int, name: str, reason: str) -> CorruptError:
    return CorruptError(
        f"has {reason}",
        file=source.name,
        offset=place,
        path=name,
        expected="sys_info, pickle, tensors and storages",
        hint="Do not unpack it: such archives are made to deceive.",
    )


def _header(source: ByteSource, place: int, header: bytes) -> tuple[str, int, bytes]:
    total = sum(header) - sum(header[148:156]) + 8 * 0x20
    if _number(header[148:156]) != total:
        raise CorruptError("the archive has a damaged header", file=source.name, offset=place)
    size = _number(header[124:136])
    if size is None:
        raise CorruptError("a member of the archive has no size", file=source.name, offset=place)
    name = header[:100].partition(b"\0")[0].decode("utf-8", "replace")
    return name.removeprefix("./"), size, header[156:157]


def _number(field: bytes) -> int | None:
    """Parse a number of a tar header: octal digits. Sizes in base 256 are of files that PyTorch 0.1 did not write."""
    digits = _DIGITS.fullmatch(field)
    return int(digits[1], 8) if digits else None


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


class _Tar:
    def __init__(self, source: ByteSource, limits: Limits, new_meaning: NewMeaning) -> None:
        self.source = source
        self.limits = limits
        self.members = tar_members(source, limits)
        self.table = StorageTable()
        self.known: dict[Hashable, Any] = {}
        self.meaning = new_meaning(self.table, partial(_meant, self.known))

    def pickles(self, name: str) -> tuple[Unpickler, int]:
        """Return the pickles in a member, and the end of the member."""
        if name not in self.members:
            raise CorruptError(
                f"the archive has no member {name}",
                file=self.source.name,
                expected="a tar archive of PyTorch 0.1",
                found=", ".join(list(self.members)[:4]),
                hint="Unpack it first if the model is inside.",
            )
        start, size = self.members[name]
        return Unpickler(self.source, start, start + size, self.meaning, self.limits, name), start + size

    def fault(self, message: str, offset: int) -> CorruptError:
        return CorruptError(message, file=self.source.name, offset=offset)

    def read_storages(self) -> None:
        pickles, end = self.pickles("storages")
        for _ in range(self._count(pickles)):
            at = pickles.position
            entry = pickles.load()
            if not isinstance(entry, tuple) or len(entry) != 3 or not isinstance(entry[0], (int, str)):
                raise self.fault("a storage has no key, location and class", at)
            key, location, kind = entry
            element, device = storage_element(kind), text(location)
            if element is None or device is None:
                raise self.fault("a storage has an unknown class", at)
            (count,) = struct.unpack("<q", self.take(pickles, end, 8))
            check_room(self.source, pickles.position, count, element, end)
            if key in self.known:
                raise self.fault("a storage occurs twice in the file", at)
            self.known[key] = self.table.get(key, element, count, device)
            self.table.place(key, Span(self.source, pickles.position, element.itemsize))
            pickles.skip(count * element.itemsize)
        at = pickles.position
        parts = pickles.load()
        for part in parts if isinstance(parts, (list, tuple)) else [None]:
            if not isinstance(part, tuple) or len(part) != 4 or not isinstance(part[0], (int, str)):
                raise self.fault("the description of a part of a storage is invalid", at)
            key, whole, first, count = part
            root = self.table.roots.get(whole) if isinstance(whole, (int, str)) else None
            if root is None:
                raise self.fault("a storage is part of a missing one", at)
            self.known[key] = self.table.part(root, first, count)
        self.table.finish()

    def read_tensors(self) -> None:
        pickles, end = self.pickles("tensors")
        for _ in range(self._count(pickles)):
            at = pickles.position
            entry = pickles.load()
            if not isinstance(entry, tuple) or len(entry) != 3 or not isinstance(entry[0], (int, str)):
                raise self.fault("a tensor has no key, storage and class", at)
            key, storage_key, _ = entry
            if not isinstance(storage_key, (int, str)) or storage_key not in self.known:
                raise self.fault("a tensor is on a missing storage", at)
            (dimensions,) = struct.unpack("<i4x", self.take(pickles, end, 8))
            if not 0 <= dimensions <= self.limits.dimensions:
                raise self.fault(f"a tensor has {dimensions} dimensions", at)
            numbers = struct.unpack(f"<{2 * dimensions + 1}q", self.take(pickles, end, 16 * dimensions + 8))
            self.known[key] = self._view(storage_key, numbers[:dimensions], numbers[dimensions:-1], numbers[-1])

    def _view(self, key: Hashable, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Tensor:
        storage = self.known[key]
        if isinstance(storage, Tensor):
            raise CorruptError("a tensor is on a tensor", file=self.source.name)
        if not size and not storage.count:  # an empty tensor of a release that had no scalars
            return view(self.meaning, storage, 0, (0,), (1,))
        return view(self.meaning, storage, offset, size, stride)

    def _count(self, pickles: Unpickler) -> int:
        count = pickles.load()
        if not is_count(count):
            raise self.fault("a member does not begin with a count", pickles.position)
        return int(count)

    def take(self, pickles: Unpickler, end: int, count: int) -> bytes:
        """Return the bytes after the last pickle."""
        if pickles.position + count > end:
            raise TruncatedError("a member of the archive ends early", file=self.source.name, offset=pickles.position)
        data = self.source.read_exact(pickles.position, count, "a member of the archive")
        pickles.skip(count)
        return data


def _meant(known: dict[Hashable, Any], saved_id: Any) -> Any:
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


def read_tar(source: ByteSource, limits: Limits, new_meaning: NewMeaning) -> tuple[Any, Rest]:
    """Read a file in the tar layout.

    Args:
        source: the file.
        limits: resource limits.
        new_meaning: creates the resolver of the names in it.

    Returns:
        Its value, and the bytes after it in its member.

    Raises:
        FormatError: the file is damaged, or is another tar archive.
    """
    tar = _Tar(source, limits, new_meaning)
    tar.read_storages()
    tar.read_tensors()
    pickles, end = tar.pickles("pickle")
    value = pickles.load()
    return value, read_rest(pickles, end)
