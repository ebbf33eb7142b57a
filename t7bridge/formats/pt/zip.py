"""Zip archives by offset, as PyTorch and numpy write them: the location of each member's bytes, and deflated members.

Python's own `zipfile` does not expose where a member's data begin, and accepts contradictions that are refused here.
What is written has PyTorch's layout to the byte (stored members, aligned data, sizes after the data), so that its
memory mapping and its calculated offsets work.

Source: PKWARE APPNOTE 6.3.10, sections 4.3 to 4.5 (zip64 included); the layout of files that PyTorch 2.13 wrote.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from attrs import evolve

from ...data import define
from ...errors import CorruptError, T7BridgeError, TruncatedError, UnsupportedError, about_file
from ...io.copy import Extent, combine, crc32
from ...io.output import Content, Output
from ...io.source import ByteSource
from ...limits import DEFAULT_LIMITS, Inflation, Limits

STORED, DEFLATED = 0, 8
ALIGNMENT_BYTES = 64
_LOCAL, _CENTRAL = b"PK\x03\x04", b"PK\x01\x02"
_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL_HEADER = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END_RECORD = struct.Struct("<4sHHHHIIH")
_END64_RECORD = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR64_RECORD = struct.Struct("<4sIQI")
_END64_HEAD_BYTES = 12
"""Bytes of the zip64 end record that its own length does not count: its signature and the length."""
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF
_FLAGS = 0x0808  # sizes and CRC after the data; names in UTF-8
_FOLDER = 0x10
"""Bit of an entry's external attributes: the MS-DOS folder flag, which miniz honours."""
_ENCRYPTED, _MASKED = 0x61, 0x2000
"""Bits of an entry's flags: encryption, patches and strong encryption; a directory whose fields are hidden.

Source: miniz 3.0 `mz_zip_reader_read_central_dir`, `mz_zip_reader_extract_to_mem_no_alloc1`."""
_ZIP64_FIELD = 1
_PADDING_FIELD = b"FB"
"""The extra field of a local header that pads a member's data for alignment."""
_CHUNK_BYTES = 1 << 20
_SPOOL_BYTES = 1 << 25
"""Deflated members up to this size are inflated in memory, larger ones to a temporary file."""
_MAX_DEFLATE_RATIO = 1032
"""Largest ratio of deflate: a member that claims more is damaged."""


@define(frozen=True)
class Member:
    """One file in an archive, as the central directory has it.

    Attributes:
        name: with its folders.
        method: 0 stored, 8 deflated.
        flags: general purpose bits.
        crc: CRC-32 of its bytes; 0 if PyTorch was configured not to compute it.
        packed: bytes in the archive.
        size: bytes.
        header: offset of its local header.
        limit: offset that it cannot exceed: of the next header.
    """

    name: str
    method: int
    flags: int
    crc: int
    packed: int
    size: int
    header: int
    limit: int


class ZipArchive:
    """Reads the directory of a zip archive and finds its members.

    Args:
        source: the archive.
        limits: resource limits.
        exact_case: whether names may differ in case alone, which PyTorch's reader does not tell apart.

    Attributes:
        members: by name, in the order of the directory; folders are left out.
        first: name of the directory's first entry, possibly a folder: PyTorch derives the root folder from it.
        comment: the bytes after the directory.

    Raises:
        FormatError: it is not a valid zip archive.
    """

    def __init__(self, source: ByteSource, limits: Limits = DEFAULT_LIMITS, exact_case: bool = False) -> None:
        self.source = source
        self._exact_case = exact_case
        self._limits = limits
        self._inflation = Inflation(source.size, limits)
        self._inflated: dict[str, ByteSource] = {}
        self.first = ""
        self.comment = b""
        with about_file(source.name):
            self.members = self._directory()

    def span(self, name: str) -> tuple[ByteSource, int]:
        """Return the location of a member's bytes: a source and an offset in it. Deflated members are inflated here.

        Raises:
            FormatError: the member does not exist, or is damaged.
            LimitError: inflating it would exceed a limit.
        """
        member = self.member(name)
        if member.method == STORED:
            return self.source.resolve(self._start(member))
        if name not in self._inflated:
            self._inflated[name] = self._inflate(member)
        return self._inflated[name], 0

    def read(self, name: str) -> bytes:
        """Return the bytes of a small member, checked.

        Raises:
            FormatError: the member does not exist, or its CRC-32 does not match.
            LimitError: it is too large for memory.
        """
        member = self.member(name)
        if member.size > self._inflation.left:
            message, found = "is too large to be read into memory", f"{member.size} bytes"
            raise self._limits.exceeded("inflate_bytes", message, **self._where(member), found=found)
        self.check(name)
        source, offset = self.span(name)
        return source.read_exact(offset, member.size, name)

    def check(self, name: str) -> None:
        """Check the CRC-32 of one member, without holding it in memory. Deflated ones are checked when inflated.

        Raises:
            CorruptError: it does not match.
        """
        member = self.member(name)
        source, offset = self.span(name)
        if member.method != STORED or not member.crc:
            return
        crc = 0
        for place in range(offset, offset + member.size, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, offset + member.size - place)
            crc = crc32(source.read_exact(place, length, member.name), crc)
        self._check(member, crc)

    def verify(self) -> None:
        """Check the CRC-32 of every member.

        Raises:
            CorruptError: one does not match.
        """
        for name in self.members:
            self.check(name)

    def member(self, name: str) -> Member:
        """Return a member.

        Raises:
            CorruptError: there is none of this name.
        """
        member = self.members.get(name)
        if member is None:
            raise CorruptError(f"the archive has no member {name}", file=self.source.name)
        return member

    def _fault(
        self, member: Member, message: str, kind: type[T7BridgeError] = CorruptError, **facts: Any
    ) -> T7BridgeError:
        return kind(message, **self._where(member), **facts)

    def _where(self, member: Member) -> dict[str, Any]:
        return {"file": self.source.name, "offset": member.header, "path": member.name}

    def _check(self, member: Member, crc: int) -> None:
        # PyTorch writes 0 where `torch.serialization.set_crc32_options(False)` was called.
        if member.crc and crc != member.crc:
            raise self._fault(
                member,
                "does not have its CRC-32",
                expected=f"{member.crc:08x}",
                found=f"{crc:08x}",
                hint="The file was damaged after it was written.",
            )

    # The directory

    def _directory(self) -> dict[str, Member]:
        start, length, count = self._end()
        if count > self._limits.archive_members:
            raise self._limits.exceeded(
                "archive_members", "the archive has too many members", offset=start, found=f"{count}"
            )
        data = self.source.read_exact(start, length, "the archive's directory")
        entries = list(self._entries(data, start, count))
        headers = [*sorted(entry.header for entry in entries), start]
        following = dict(pairwise(headers))
        if len(following) != len(entries):
            raise CorruptError("two members have the same offset in the archive")
        members: dict[str, Member] = {}
        folded: set[bytes] = set()
        self.first = entries[0].name if entries else ""
        for entry in entries:
            member = evolve(entry, limit=following.get(entry.header, 0))
            if member.name in members:
                raise self._fault(member, "occurs twice in the archive")
            if "\0" in member.name:
                raise self._fault(member, "has a zero byte in its name, at which other readers stop")
            name = _folded(member.name)
            if name in folded and not self._exact_case:
                raise self._fault(member, "occurs twice in the archive for PyTorch, which ignores case in names")
            folded.add(name)
            if member.header + _LOCAL_HEADER.size + member.packed > member.limit:
                raise self._fault(member, "overlaps what follows it in the archive")
            members[member.name] = member
        return {name: member for name, member in members.items() if member.size or not name.endswith("/")}

    def _end(self) -> tuple[int, int, int]:
        """Return offset, length and number of entries of the directory."""
        source = self.source
        tail_start = max(0, source.size - _END_RECORD.size - _FULL_16)
        tail = source.read(tail_start, source.size - tail_start)
        # PyTorch uses the last one that has room for its fields, whatever length it states for its comment.
        place = tail.rfind(_END, 0, max(0, len(tail) - _END_RECORD.size + len(_END)))
        end = place + _END_RECORD.size + int.from_bytes(tail[place + 20 : place + 22], "little")
        if place >= 0 and end != len(tail):
            if _ends_before(tail, place):
                raise CorruptError(
                    "the archive has two ends, and readers disagree about which one counts",
                    offset=tail_start + place,
                    hint="Do not trust it: such files are made to deceive.",
                )
            if end > len(tail) or tail[end:].strip(b"\0"):  # zeros pad the file, which no reader minds
                place = -1
        if place < 0:
            raise TruncatedError(
                "the archive's directory is missing",
                offset=source.size,
                hint="The file was cut off: download or copy it again.",
            )
        self.comment = tail[place + _END_RECORD.size : end]
        _, disk, first_disk, here, count, length, start, _ = _END_RECORD.unpack_from(tail, place)
        behind = end = tail_start + place
        locator = source.read(max(0, end - _LOCATOR64_RECORD.size), _LOCATOR64_RECORD.size)
        if locator[:4] == _LOCATOR64:  # PyTorch writes it into small archives too
            _, _, behind, disks = _LOCATOR64_RECORD.unpack(locator)
            record = source.read(behind, _END64_RECORD.size) if behind < end else b""
            if len(record) < _END64_RECORD.size or record[:4] != _END64:
                raise CorruptError("the archive's directory is damaged", offset=behind)
            _, rest, _, _, disk, first_disk, here, count, length, start = _END64_RECORD.unpack(record)
            if rest < _END64_RECORD.size - _END64_HEAD_BYTES:
                raise CorruptError("the archive's directory is damaged", offset=behind)
        else:
            disks = 1
        if disk or first_disk or here != count or disks != 1:
            raise UnsupportedError("the archive is split over several files", offset=end)
        if start + length != behind or count * _CENTRAL_HEADER.size > length:
            raise CorruptError(
                "the archive's directory is not where it should be",
                offset=end,
                expected=f"{length} bytes at {start} with {count} entries",
                found=f"its end at {behind}",
            )
        return start, length, count

    def _entries(self, data: bytes, start: int, count: int) -> Iterator[Member]:
        damaged = "the archive's directory is damaged"
        place = 0
        for _ in range(count):
            if data[place : place + 4] != _CENTRAL or place + _CENTRAL_HEADER.size > len(data):
                raise CorruptError(damaged, offset=start + place)
            _, _, _, flags, method, _, _, crc, packed, size, *lengths, disk, _, attributes, header = (
                _CENTRAL_HEADER.unpack_from(data, place)
            )
            name_end = place + _CENTRAL_HEADER.size + lengths[0]
            raw, extra = data[name_end - lengths[0] : name_end], data[name_end : name_end + lengths[1]]
            place += _CENTRAL_HEADER.size + sum(lengths)
            widened = _widened(extra, size, packed, header)
            if widened is None:
                text = "an entry of the archive's directory has no zip64 sizes"
                raise CorruptError(text, offset=start + place)
            size, packed, header = widened
            # The flag for UTF-8 is not set by every writer of it.
            name = raw.decode("utf-8", "surrogateescape")
            member = Member(name, method, flags, crc, packed, size, header, start)
            if attributes & _FOLDER and size:
                raise self._fault(member, "is marked as a folder, and PyTorch reads no bytes of it")
            # What miniz, with which PyTorch reads archives, refuses in any entry, whether it is asked for or not.
            if disk not in (0, 1):
                raise self._fault(member, "is on another disk of an archive split over several files", UnsupportedError)
            if flags & _MASKED:
                raise self._fault(member, "is in an encrypted directory", UnsupportedError)
            if size and not packed:
                raise self._fault(member, "has a size, and no bytes")
            yield member
        if place != len(data):
            raise CorruptError(damaged, offset=start + place)

    def _start(self, member: Member) -> int:
        """Return the offset of a member's bytes. The local header, which has it, must agree with the directory."""
        data = self.source.read_exact(member.header, _LOCAL_HEADER.size, f"the header of {member.name}")
        if data[:4] != _LOCAL:
            raise self._fault(member, "has no header where the directory says")
        _, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL_HEADER.unpack(data)
        rest = self.source.read_exact(member.header + _LOCAL_HEADER.size, name_length + extra_length, "a header")
        name = rest[:name_length].decode("utf-8", "surrogateescape")
        size, packed = _widened(rest[name_length:], size, packed) or (size, packed)
        # With bit 3 the sizes may follow the data, and are 0 here.
        numbers = zip((crc, packed, size), (member.crc, member.packed, member.size))
        agreed = all(here == there or (flags & 8 and not here) for here, there in numbers)
        if not agreed or name != member.name or method != member.method:
            raise self._fault(member, "is described differently by its own header and by the directory")
        start: int = member.header + _LOCAL_HEADER.size + len(rest)
        if start + member.packed > member.limit:
            raise self._fault(member, "overlaps what follows it in the archive")
        if member.flags & _ENCRYPTED:
            raise self._fault(member, "is encrypted", UnsupportedError)
        if member.method not in (STORED, DEFLATED):
            text = f"is compressed by method {member.method}; only stored and deflated members are supported"
            raise self._fault(member, text, UnsupportedError)
        if member.method == STORED and member.packed != member.size:
            raise self._fault(member, "is stored, but its length differs from its size")
        return start

    # Deflated members

    def _inflate(self, member: Member) -> ByteSource:
        start = self._start(member)
        if member.size > member.packed * _MAX_DEFLATE_RATIO + 64:
            raise self._fault(member, "claims a size that its packed bytes cannot have")
        self._inflation.spend(member.size, "a member", **self._where(member))
        if member.size <= _SPOOL_BYTES:
            inflated = ByteSource.from_bytes(b"".join(self._pieces(member, start)))
        else:
            import tempfile

            with tempfile.TemporaryFile() as out:
                for piece in self._pieces(member, start):
                    out.write(piece)
                out.flush()
                out.seek(0)
                inflated = ByteSource.open(out)[0]
        inflated.name = f"{self.source.name}: {member.name}"
        return inflated

    def _pieces(self, member: Member, start: int) -> Iterator[bytes]:
        unpacker = zlib.decompressobj(-15)
        place, end, left = start, start + member.packed, member.size
        pending, crc = b"", 0
        try:
            while not unpacker.eof and (pending or place < end):
                if not pending:
                    pending = self.source.read_exact(place, min(_CHUNK_BYTES, end - place), member.name)
                    place += len(pending)
                # One byte more than expected, to detect excess data.
                piece = unpacker.decompress(pending, min(_CHUNK_BYTES, left + 1))
                pending = unpacker.unconsumed_tail
                left -= len(piece)
                if left < 0:
                    raise self._fault(member, "inflates to more than its size")
                crc = crc32(piece, crc)
                yield piece
        except zlib.error as error:
            raise self._fault(member, f"cannot be inflated: {error}") from error
        if not unpacker.eof or unpacker.unused_data or place < end or left:
            raise self._fault(member, "does not end with its deflated bytes")
        self._check(member, crc)


def _folded(name: str) -> bytes:
    """Return a name as PyTorch compares names: miniz ignores the case of ASCII letters."""
    return name.encode("utf-8", "surrogateescape").lower()


def _ends_before(tail: bytes, place: int) -> bool:
    """Return whether another end record precedes one, with the rest of the file as its comment."""
    place = tail.rfind(_END, 0, place)
    while place >= 0:
        if place + _END_RECORD.size + int.from_bytes(tail[place + 20 : place + 22], "little") == len(tail):
            return True
        place = tail.rfind(_END, 0, place)
    return False


def _widened(extra: bytes, *numbers: int) -> tuple[int, ...] | None:
    """Return numbers with the values of a zip64 extra field for those that need one; `None` if it lacks them.

    Args:
        extra: the extra fields of a header.
        *numbers: size, packed size, and offset of the header.
    """
    wanted = numbers.count(_FULL_32)
    place = 0 if wanted else len(extra)
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, place)
        place += 4
        if kind == _ZIP64_FIELD:
            if length < 8 * wanted or place + 8 * wanted > len(extra):
                return None
            values = iter(struct.unpack_from(f"<{wanted}Q", extra, place))
            return tuple(next(values) if number == _FULL_32 else number for number in numbers)
        place += length
    return None if wanted else numbers


# Writing


@define
class WrittenMember:
    """A member that was written.

    Attributes:
        name: with the root folder.
        offset: of the local header, in bytes.
        size: of the data, in bytes.
        crc: CRC-32 of the data.
        is_complete: whether the data are complete, so that the CRC-32 is known.
    """

    name: str
    offset: int
    size: int
    crc: int = 0
    is_complete: bool = False

    def settle(self, crc: int) -> None:
        """Mark the data as complete."""
        self.crc, self.is_complete = crc, True

    def descriptor(self) -> bytes:
        """Return the data descriptor, which follows the data."""
        return struct.pack("<IIQQ" if _is_large(self) else "<IIII", 0x08074B50, self.crc, self.size, self.size)


class ZipWriter:
    """Writes members one after another, then the directory.

    Attributes:
        members: those written so far; :meth:`settle` completes their CRCs.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._start = output.position
        self._incomplete: list[tuple[int, WrittenMember]] = []
        """Members whose data are being copied, with the positions of their descriptors."""
        self.members: list[WrittenMember] = []

    def add(self, name: str, content: Content, size: int | None = None, head: bytes = b"") -> None:
        """Write one member.

        Args:
            name: with the root folder.
            content: its bytes, where they are, or pieces.
            size: in bytes; needed for pieces, as the header says beforehand whether the member is a large one.
            head: bytes before the others.
        """
        if size is None:
            size = content.nbytes if isinstance(content, Extent) else len(content)  # type: ignore[arg-type]
        encoded = name.encode()
        member = WrittenMember(name, self._output.position - self._start, size + len(head))
        extra = _zip64_field(member) if _is_large(member) else b""
        extra += _padding(member.offset + _LOCAL_HEADER.size + len(encoded) + len(extra))
        self._output.write(_LOCAL_HEADER.pack(_LOCAL, 0, _FLAGS, 0, 0, 0, 0, 0, 0, len(encoded), len(extra)))
        self._output.write(encoded + extra + head)
        self._output.append(content, lambda crc: member.settle(combine(crc32(head), crc, size) if head else crc))
        if not member.is_complete:
            self._incomplete.append((self._output.position, member))
        self._output.write(member.descriptor())
        self.members.append(member)

    def settle(self) -> None:
        """Wait for pending copies, and write what depends on them.

        Raises:
            T7BridgeError: a source has become shorter or is damaged, or the output does not accept the bytes.
        """
        self._output.wait()
        for position, member in self._incomplete:
            self._output.put(position, member.descriptor())
        self._incomplete.clear()

    def finish(self, comment: bytes = b"") -> None:
        """Write the directory, and a comment of at most 65 535 bytes."""
        self.settle()
        start = self._output.position - self._start
        for member in self.members:
            self._output.write(_central_header(member))
        end = self._output.position - self._start
        count, size = len(self.members), end - start
        wide = (_END64_RECORD.size - 12, 0x031E, 45, 0, 0, count, count, size, start)
        self._output.write(_END64_RECORD.pack(_END64, *wide))
        self._output.write(_LOCATOR64_RECORD.pack(_LOCATOR64, 0, end, 1))
        short = min(count, _FULL_16)
        sizes = (min(size, _FULL_32), min(start, _FULL_32), len(comment))
        self._output.write(_END_RECORD.pack(_END, 0, 0, short, short, *sizes) + comment)


def _is_large(member: WrittenMember) -> bool:
    return member.size >= _FULL_32 or member.offset >= _FULL_32


def _zip64_field(member: WrittenMember) -> bytes:
    """Return the sizes and the offset that do not fit 32 bits, in the order of the format."""
    numbers = [member.size, member.size] if member.size >= _FULL_32 else []
    if member.offset >= _FULL_32:
        numbers.append(member.offset)
    return struct.pack(f"<HH{len(numbers)}Q", _ZIP64_FIELD, 8 * len(numbers), *numbers)


def _padding(position: int) -> bytes:
    """Return an extra field after which the data start at a multiple of the alignment."""
    start = position + 4
    length = -start % ALIGNMENT_BYTES
    return _PADDING_FIELD + struct.pack("<H", length) + b"Z" * length


def _central_header(member: WrittenMember) -> bytes:
    name = member.name.encode()
    extra = _zip64_field(member) if _is_large(member) else b""
    size = min(member.size, _FULL_32)
    header = _CENTRAL_HEADER.pack(
        _CENTRAL, 0, 0, _FLAGS, 0, 0, 0, member.crc, size, size, len(name), len(extra), 0, 0, 0, 0,
        min(member.offset, _FULL_32),
    )  # fmt: skip
    return header + name + extra
