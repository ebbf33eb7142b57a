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

import struct
from collections.abc import Hashable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from ...data import pattern
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
from .members import LEGACY_MAGIC, LEGACY_PROTOCOL
from .pickle.context import Origin, PickleContext
from .pickle.tensors import view
from .pickle.unpickler import Unpickler
from .storages import LEGACY_PARTS, NO_IDS, STORAGE_CLASSES, StorageTable, is_count, text

_MAGIC_BYTES = b"\x80\x02\x8a\x0a" + LEGACY_MAGIC.to_bytes(10, "little") + b"."
"""The first pickle as PyTorch writes it: PROTO 2, LONG1 of 10 bytes, STOP."""
_FEW_OPERATIONS = 64
"""Opcodes that another pickle of the magic number may have; PyTorch needs three."""
_BLOCK = 512
"""Bytes of a tar header; members are padded to a multiple of it."""
_NAME = slice(0, 100)
_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)
_KIND = slice(156, 157)
_PREFIX = slice(345, 500)
"""Fields of a tar header; the prefix is that of the name, in POSIX's form."""
_FILE_KINDS = b"0\0"
"""The kinds of files, one byte each; the zero byte is that of archives before POSIX."""
_EXTENDED_HEADER = b"x"
"""The kind of an extended header, which belongs to the entry after it."""
_MAX_PAX_BYTES = 1 << 20
"""Maximum size of an extended header."""
_PYTORCH_MEMBERS = frozenset({"sys_info", "pickle", "tensors", "storages"})
"""All members that PyTorch 0.1 wrote."""
_LONGEST_KEY = 30
"""Characters of a number that is a key: of 64 bits at most."""
_DIGITS = pattern(rb" *([0-7]+)[ \0]*")
_PAX_RECORD = pattern(rb"([1-9]\d{0,6}) (?:[amc]time|[ug]id|[ug]name|comment)=")
"""The records that change neither name nor size of a member: Python 3 writes times that are not whole."""


def is_legacy(source: ByteSource, start: int, limits: Limits) -> bool:
    """Return whether a file begins with the magic number, judging by its first opcodes.

    PyTorch checks the value of the first pickle, whatever opcodes wrote it, and so does `read_stream`.

    Args:
        source: the bytes.
        start: offset of the file in them.
        limits: resource limits.
    """
    if source.read(start, len(_MAGIC_BYTES)) == _MAGIC_BYTES:
        return True
    pickle = Unpickler(source, start, source.size, PickleContext(Origin(source, limits)))
    pickle.limit_operations(_FEW_OPERATIONS)
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
    table = StorageTable(one_class_per_key=True)
    context = PickleContext(origin, table)  # which resolves no persistent ids yet: only the value may have any
    pickles = Unpickler(source, start, source.size, context)
    try:
        value = pickles.load()
    except FormatError as error:
        # Bytes that begin as a pickle of protocol 2, name what is forbidden, or have so many operations that a limit is
        # exceeded, are a pickle, and damaged. Others are any file that begins with an opcode of protocol 0.
        if source.read(start, 1) == b"\x80" or isinstance(error, (ForbiddenGlobalError, LimitError)):
            raise
        raise UnknownFormatError(
            "is not a file of PyTorch", expected="a zip archive, a pickle or a tar archive of PyTorch"
        ) from error
    is_legacy_format = type(value) is int and value == LEGACY_MAGIC
    if is_legacy_format:  # the value is only the first pickle of several
        value = _read_after_magic(pickles, context, start)
    table.complete_untyped_and_views()
    origin.notes += pickles.load_following()
    return value, "legacy" if is_legacy_format else "pickle", table


def _read_after_magic(pickles: Unpickler, context: PickleContext, start: int) -> Any:
    """Read the pickles after the magic number, and locate the storages after them; return the value.

    Args:
        pickles: positioned after the magic number.
        context: of these pickles; its storages are located.
        start: offset of the file's first byte, for errors.

    Raises:
        CorruptError: the protocol is another, or the storages are not those that the value names.
    """
    table = context.storages
    context.resolve_id = partial(_storage_or_class, table)
    version = pickles.load()
    if version != LEGACY_PROTOCOL:
        raise CorruptError(
            "has a protocol that no release used", offset=start, expected=str(LEGACY_PROTOCOL), found=shown(version)
        )
    pickles.load()  # information about the machine, unused: all numbers are little-endian
    # For the safe loader only the value may have persistent ids.
    context.id_parts = LEGACY_PARTS
    value = pickles.load()
    context.id_parts = NO_IDS
    _locate_storages(pickles, table)
    return value


def _storage_or_class(table: StorageTable, saved_id: Any) -> Any:
    """Return the value of a persistent id: a storage, or a class that comes with its source.

    Args:
        table: has the storages; receives one that is new.
        saved_id: that of a storage, see `StorageTable.storage_of_id`; or ("module", class, file, source code).

    Raises:
        CorruptError: it is neither.
    """
    if isinstance(saved_id, tuple) and saved_id and text(saved_id[0]) == "module":
        _module, *others = saved_id
        cls = others[0] if others else None
        if isinstance(cls, PythonGlobal):
            return cls
        raise CorruptError("a persistent id names a module that does not exist")
    return table.storage_of_id(saved_id)


def _locate_storages(pickles: Unpickler, table: StorageTable) -> None:
    """Locate the elements of each storage, in the order of the pickled list of their keys.

    Args:
        pickles: positioned before the list, after which the elements follow.
        table: has the storages that the value names; their `data` is set.

    Raises:
        CorruptError: the list lacks a storage, or has one that no tensor names.
        TruncatedError: the file ends early.
    """
    saved_keys = pickles.load()
    if not isinstance(saved_keys, list):
        raise CorruptError("has no list of storage keys", offset=pickles.position)
    # Untyped storages become roots, too: only a root tells how many bytes follow.
    table.settle_untyped()
    keys = [text(key) or key for key in saved_keys]  # as in the ids; numbers stay as they are
    for key in keys:
        storage = table.roots.get(key) if isinstance(key, (str, int)) else None
        if storage is None:
            raise CorruptError("lists a storage that no tensor has", offset=pickles.position, found=shown(key))
        _count, storage.data = _elements(pickles, storage.element, expected=storage.count)
    missing = set(table.roots).difference(keys)
    if missing:
        first_key = min(map(str, missing))
        raise CorruptError(
            "has tensors whose storages are missing", offset=pickles.position, found=f"key {first_key:.60}"
        )


def _elements(pickles: Unpickler, element: ElementType, expected: int | None = None) -> tuple[int, Span]:
    """Return the number of elements that follow the last pickle, and their location; resume behind them.

    Args:
        pickles: positioned before the number, 8 bytes.
        element: the type of the elements.
        expected: number of elements; `None` if any is right.

    Raises:
        TruncatedError: the file or member ends early, or the number is negative.
        CorruptError: the number is another.
    """
    count_offset = pickles.position
    (count,) = struct.unpack("<q", pickles.read_bytes(8, "the size of a storage"))
    if expected is not None and count != expected:
        raise CorruptError(
            "a storage has another size than its tensors claim",
            offset=count_offset,
            expected=f"{expected} elements",
            found=f"{count}",
        )
    start = pickles.position
    size = count * element.itemsize
    if not 0 <= size <= pickles.end - start:
        raise TruncatedError(
            "ends inside a storage",
            offset=start,
            expected=f"{count} elements of {element.name}",
            found=f"{pickles.end - start} bytes",
            hint="The file was cut off: download or copy it again.",
        )
    pickles.skip(size)
    return count, Span(pickles.source, start, element.itemsize)


# The tar layout


def tar_members(source: ByteSource, limits: Limits = DEFAULT_LIMITS) -> dict[str, tuple[int, int]]:
    """Return the members of a tar archive: name → offset and length in bytes.

    What PyTorch never writes is refused where the archive may be one of PyTorch: readers disagree about such names and
    sizes.

    Args:
        source: the archive.
        limits: bound the number of members.

    Raises:
        FormatError: it is damaged, or ends early.
    """
    members: dict[str, tuple[int, int]] = {}
    # The first entry that PyTorch does not write, and why. It is refused only at the end: an archive without storages
    # is not of PyTorch, and may hold anything.
    first_unlike: tuple[_TarEntry, str] | None = None
    for entry in _tar_entries(source):
        reason = _unlike_pytorch(entry, is_duplicate=entry.name in members)
        if entry.kind == _EXTENDED_HEADER:
            extended_header = _extended_header(source, entry)  # always read: it may be too large
            if not reason and not _is_plain_pax(extended_header):
                reason = "an extended header that PyTorch does not write"
        elif entry.kind in _FILE_KINDS:
            members[entry.name] = (entry.data_start, entry.size)
        if reason and first_unlike is None:
            first_unlike = (entry, reason)
        if len(members) > limits.archive_members:
            raise limits.exceeded("archive_members", "the archive has too many members", offset=entry.end)
    if first_unlike is not None and "storages" in members:
        raise _not_of_pytorch(*first_unlike)
    return members


def _not_of_pytorch(entry: _TarEntry, reason: str) -> CorruptError:
    """Return the error for an archive with an entry that PyTorch does not write, and why: see `_unlike_pytorch`."""
    return CorruptError(
        f"has {reason}",
        offset=entry.header_start,
        path=entry.name,
        expected="sys_info, pickle, tensors and storages",
        hint="Do not unpack it: such archives are made to deceive.",
    )


class _TarEntry(NamedTuple):
    """One entry of a tar archive: a header, and bytes after it.

    Attributes:
        header: its bytes.
        header_start: its offset in the archive.
        name: of the member, without `./` before it.
        kind: the type flag, one byte: `_FILE_KINDS`, `_EXTENDED_HEADER` or another.
        size: number of bytes after the header.
    """

    header: bytes
    header_start: int
    name: str
    kind: bytes
    size: int

    @property
    def data_start(self) -> int:
        """Offset of the first byte after the header."""
        return self.header_start + _BLOCK

    @property
    def end(self) -> int:
        """Offset of the next header, as the bytes are padded to whole blocks."""
        padding = -self.size % _BLOCK
        return self.data_start + self.size + padding


def _tar_entries(source: ByteSource) -> Iterator[_TarEntry]:
    """Yield the entries of a tar archive, up to a header of zeros or the end of the file.

    Raises:
        CorruptError: a header is damaged.
        TruncatedError: the file ends inside an entry.
    """
    position = 0
    while position + _BLOCK <= source.size:
        header = source.read_exact(position, _BLOCK, "a header of the archive")
        if not header.strip(b"\0"):
            return
        name, size = _name_and_size(position, header)
        entry = _TarEntry(header, position, name, header[_KIND], size)
        if entry.data_start + size > source.size:
            raise TruncatedError(
                "ends inside a member of the archive",
                offset=entry.data_start,
                path=name,
                expected=f"{size} bytes",
                found=f"{source.size - entry.data_start}",
            )
        yield entry
        position = entry.end


def _extended_header(source: ByteSource, entry: _TarEntry) -> bytes:
    """Return the content of an extended header, which says more about the entry after it.

    Args:
        source: the archive.
        entry: the extended header, an entry of its own.

    Raises:
        LimitError: it is larger than any that is needed.
    """
    if entry.size > _MAX_PAX_BYTES:
        raise LimitError(
            "the archive has an extended header of too many bytes",
            offset=entry.data_start,
            expected=f"at most {_MAX_PAX_BYTES}, which is fixed",
            found=f"{entry.size}",
        )
    return source.read_exact(entry.data_start, entry.size, "an extended header")


def _name_and_size(start: int, header: bytes) -> tuple[str, int]:
    """Return the name of a member, and its size in bytes, from its header.

    Args:
        start: offset of the header in the file, for errors.
        header: its bytes.

    Raises:
        CorruptError: the checksum does not match, or there is no size.
    """
    # The checksum is that of the header with spaces in its own place.
    checksum = header[_CHECKSUM]
    if _octal_number(checksum) != sum(header) - sum(checksum) + sum(b" " * len(checksum)):
        raise CorruptError("the archive has a damaged header", offset=start)
    size = _octal_number(header[_SIZE])
    if size is None:
        raise CorruptError("a member of the archive has no size", offset=start)
    name = header[_NAME].partition(b"\0")[0].decode("utf-8", "replace")
    return name.removeprefix("./"), size


def _octal_number(field: bytes) -> int | None:
    """Parse a number of a tar header: octal digits. `None` for others: PyTorch 0.1 wrote no sizes in base 256."""
    digits = _DIGITS.fullmatch(field)
    return int(digits[1], 8) if digits else None


def _unlike_pytorch(entry: _TarEntry, is_duplicate: bool) -> str:
    """Return what PyTorch does not write in a header, for a message; empty if it could have written it.

    Args:
        entry: with the header.
        is_duplicate: whether an earlier member has the name.
    """
    if entry.name.startswith("/") or ".." in entry.name.split("/"):
        return "a member that would be unpacked elsewhere"
    if entry.kind in b"12":  # hard and symbolic links
        return "a link, which PyTorch never writes"
    if entry.kind == _EXTENDED_HEADER:
        # `././@PaxHeader` or `PaxHeaders`: no pickle begins so, should a reader take the archive for one.
        has_usual_name = entry.header[:1] in (b".", b"P")
        return "" if has_usual_name else "an extended header of an unusual name"
    if entry.kind not in _FILE_KINDS:
        return "a member that is not a file"
    if is_duplicate:
        return "a duplicate member"
    if entry.name not in _PYTORCH_MEMBERS or entry.header[_PREFIX].strip(b"\0"):
        return "a member that PyTorch does not write"
    return ""


def _is_plain_pax(data: bytes) -> bool:
    """Return whether an extended header has only records that change neither name nor size."""
    position = 0
    while position < len(data):
        match = _PAX_RECORD.match(data, position)
        if match is None:
            return False
        # A record begins with its length, which counts itself, and ends with a newline.
        end = position + int(match[1])
        if end <= match.end() or data[end - 1 : end] != b"\n":
            return False
        position = end
    return True


def _entries(pickles: Unpickler, message: str) -> Iterator[tuple[int, Any, Any, Any]]:
    """Yield the entries of `storages` or `tensors`: a pickled count, then a pickle of three values for each.

    The user of an entry reads what follows its pickle before the next is taken.

    Args:
        pickles: positioned before the count.
        message: of the error for a pickle of another form.

    Yields:
        Offset of the pickle in bytes, key, and the two other values.
    """
    count = pickles.load()
    if not is_count(count):
        raise CorruptError("a member does not begin with a count", offset=pickles.position)
    for _ in range(count):
        offset = pickles.position
        entry = pickles.load()
        if not isinstance(entry, tuple) or len(entry) != 3:
            raise CorruptError(message, offset=offset)
        key, second, third = entry
        if not isinstance(key, (int, str)):
            raise CorruptError(message, offset=offset)
        yield offset, key, second, third


def _read_storages(pickles: Unpickler, table: StorageTable, values: dict[Hashable, Any]) -> None:
    """Add the storages of a file to the values by key, then those that are parts of others.

    Args:
        pickles: those of the member `storages`, with the elements between them.
        table: receives the storages.
        values: receives the storages and the parts.
    """
    for offset, key, location, kind in _entries(pickles, "a storage has no key, location and class"):
        element = STORAGE_CLASSES.get(kind.path) if isinstance(kind, PythonGlobal) else None
        device = text(location)
        if element is None or device is None:
            raise CorruptError("a storage has an unknown class", offset=offset)
        count, span = _elements(pickles, element)
        if key in values:
            raise CorruptError("a storage occurs twice in the file", offset=offset)
        storage = table.get(key, element, count, device)
        storage.data = span
        values[key] = storage
    _read_parts_of_storages(pickles, table, values)
    table.complete_untyped_and_views()  # the parts have their bytes only now


def _read_parts_of_storages(pickles: Unpickler, table: StorageTable, values: dict[Hashable, Any]) -> None:
    """Add the storages that are parts of others, of which there is a pickled list after the storages.

    Args:
        pickles: positioned before the list.
        table: has the storages of which they are parts.
        values: receives the parts. A part may have the key of a storage, which it then replaces.
    """
    offset = pickles.position
    parts = pickles.load()
    invalid = CorruptError("the description of a part of a storage is invalid", offset=offset)
    if not isinstance(parts, (list, tuple)):
        raise invalid
    for part in parts:
        if not isinstance(part, tuple) or len(part) != 4:
            raise invalid
        key, root_key, first_element, count = part
        if not isinstance(key, (int, str)):
            raise invalid
        root = table.roots.get(root_key) if isinstance(root_key, (int, str)) else None
        if root is None:
            raise CorruptError("a storage is part of a missing one", offset=offset)
        values[key] = table.part(root, first_element, count)


def _read_tensors(pickles: Unpickler, context: PickleContext, values: dict[Hashable, Any]) -> None:
    """Add the tensors of a file to the values by key, which has the storages.

    Args:
        pickles: those of the member `tensors`, with sizes, strides and offsets between them.
        context: has the limits.
        values: storages by key; receives the tensors.
    """
    for entry_offset, key, storage_key, _class in _entries(pickles, "a tensor has no key, storage and class"):
        storage = values.get(storage_key) if isinstance(storage_key, (int, str)) else None
        if not isinstance(storage, Storage):
            what = "tensor" if isinstance(storage, Tensor) else "missing storage"
            raise CorruptError(f"a tensor is on a {what}", offset=entry_offset)
        # A number of 32 bits, and 4 bytes that are not used. The class is dropped: the storage has the element type.
        (dimensions,) = struct.unpack("<i4x", pickles.read_bytes(8, "a tensor"))
        if not 0 <= dimensions <= context.limits.dimensions:
            raise CorruptError(f"a tensor has {dimensions} dimensions", offset=entry_offset)
        # Numbers of 64 bits: the sizes, the strides and the offset.
        count = 2 * dimensions + 1
        numbers = struct.unpack(f"<{count}q", pickles.read_bytes(8 * count, "a tensor"))
        size = numbers[:dimensions]
        stride = numbers[dimensions:-1]
        offset = numbers[-1]
        if not size and not storage.count:  # an empty tensor of a release that had no scalars
            size = (0,)
            stride = (1,)
            offset = 0
        values[key] = view(context, storage, offset, size, stride)


def _value_or_class(values: dict[Hashable, Any], saved_id: Any) -> Any:
    """Return the value of a persistent id: a tensor or storage; or a class that comes with its source.

    Args:
        values: the tensors and storages by their keys.
        saved_id: a key, as text; or a tuple of a class and its source code.

    Raises:
        CorruptError: there is no such value.
    """
    if isinstance(saved_id, tuple):
        cls = saved_id[0] if saved_id else None
        if isinstance(cls, PythonGlobal):
            return cls
        raise CorruptError("a persistent id names no class")
    key: Any = text(saved_id) or saved_id
    # The tar's members of storages and tensors have the same keys as numbers: addresses. Longer texts are none, and
    # `int` takes long for them.
    is_number = isinstance(key, str) and key.removeprefix("-").isdecimal() and len(key) < _LONGEST_KEY
    if is_number and key not in values:
        key = int(key)
    if not isinstance(key, (int, str)) or key not in values:
        raise CorruptError("the pickle refers to a missing tensor", found=shown(saved_id))
    return values[key]


def _require_members(names: Iterable[str]) -> None:
    """Refuse a tar archive without all members that PyTorch reads, by the names that it has.

    Raises:
        CorruptError: it lacks one.
    """
    names = list(names)
    for name in ("storages", "tensors", "pickle"):
        if name not in names:
            raise CorruptError(
                f"the archive has no member {name}",
                expected="a tar archive of PyTorch 0.1",
                found=", ".join(names[:4]),
                hint="Unpack it, or give the address of a member: tar://MEMBER::FILE.",
            )


def read_tar(origin: Origin, start: int = 0) -> tuple[Any, str, StorageTable]:
    """Read a file in the tar layout.

    Args:
        origin: the file.
        start: ignored, as a tar archive always begins at the first byte; it is there as in `read_stream`.

    Returns:
        The value, its format (`tar`), and its storages.

    Raises:
        FormatError: the file is damaged, or is another tar archive.
    """
    source = origin.source
    members = tar_members(source, origin.limits)
    _require_members(members)
    values: dict[Hashable, Any] = {}  # storages and tensors, by key
    table = StorageTable()
    context = PickleContext(origin, table, partial(_value_or_class, values))

    def pickles_of(name: str) -> Unpickler:
        """Return a reader of the pickles in a member."""
        member_start, size = members[name]
        return Unpickler(source, member_start, member_start + size, context, name)

    # Tensors refer to storages, and the value to both.
    _read_storages(pickles_of("storages"), table, values)
    _read_tensors(pickles_of("tensors"), context, values)
    pickle = pickles_of("pickle")
    value = pickle.load()
    origin.notes += pickle.load_following("pickle")
    return value, "tar", table
