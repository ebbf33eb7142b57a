"""Zip archives by offset: the location of each member's bytes in the file, and deflated members on demand.

Python's own `zipfile` does not expose where a member's data begin, and accepts contradictions that are refused here.

Source: PKWARE APPNOTE 6.3.10, sections 4.3 to 4.5 (zip64 included).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise

from attrs import evolve

from ....data import define
from ....errors import CorruptError, FormatError, LimitError, TruncatedError, UnsupportedError
from ....io.checksums import crc32
from ....io.source import ByteSource
from ....limits import DEFAULT_LIMITS, Limits

STORED, DEFLATED = 0, 8
_LOCAL, _CENTRAL = b"PK\x03\x04", b"PK\x01\x02"
_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_END_BYTES, _LOCAL_BYTES, _CENTRAL_BYTES = 22, 30, 46
_MAX_COMMENT_BYTES = 0xFFFF
_FOLDER = 0x10
"""Bit of an entry's external attributes: the MS-DOS folder flag, which miniz honours."""
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
        self._inflatable = max(limits.inflate_bytes, limits.inflate_ratio * source.size)
        self._starts: dict[str, int] = {}
        self._inflated: dict[str, ByteSource] = {}
        self.first = ""
        self.comment = b""
        self.members = self._directory()

    def __contains__(self, name: object) -> bool:
        return name in self.members

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
        if member.size > self._inflatable:
            raise LimitError(
                "is too large to be read into memory",
                file=self.source.name,
                offset=member.header,
                path=name,
                found=f"{member.size} bytes",
                limit="inflate_bytes",
                value=self._limits.inflate_bytes,
            )
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

    def _fault(self, member: Member, message: str, kind: type[FormatError] = CorruptError) -> FormatError:
        return kind(message, file=self.source.name, offset=member.header, path=member.name)

    def _check(self, member: Member, crc: int) -> None:
        # PyTorch writes 0 where `torch.serialization.set_crc32_options(False)` was called.
        if member.crc and crc != member.crc:
            raise CorruptError(
                "does not have its CRC-32",
                file=self.source.name,
                offset=member.header,
                path=member.name,
                expected=f"{member.crc:08x}",
                found=f"{crc:08x}",
                hint="The file was damaged after it was written.",
            )

    # The directory

    def _directory(self) -> dict[str, Member]:
        start, length, count = self._end()
        if count > self._limits.archive_members:
            raise LimitError(
                "the archive has too many members",
                file=self.source.name,
                offset=start,
                found=f"{count}",
                limit="archive_members",
                value=self._limits.archive_members,
            )
        data = self.source.read_exact(start, length, "the archive's directory")
        entries = list(self._entries(data, start, count))
        headers = [*sorted(entry.header for entry in entries), start]
        following = dict(pairwise(headers))
        if len(following) != len(entries):
            raise CorruptError("two members have the same offset in the archive", file=self.source.name)
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
            if member.header + _LOCAL_BYTES + member.packed > member.limit:
                raise self._fault(member, "overlaps what follows it in the archive")
            members[member.name] = member
        return {name: member for name, member in members.items() if member.size or not name.endswith("/")}

    def _end(self) -> tuple[int, int, int]:
        """Return offset, length and number of entries of the directory."""
        source = self.source
        tail_start = max(0, source.size - _END_BYTES - _MAX_COMMENT_BYTES)
        tail = source.read(tail_start, source.size - tail_start)
        # PyTorch uses the last one that has room for its fields, whatever length it states for its comment.
        place = tail.rfind(_END, 0, max(0, len(tail) - _END_BYTES + len(_END)))
        end = place + _END_BYTES + int.from_bytes(tail[place + 20 : place + 22], "little")
        if place >= 0 and end != len(tail):
            if _ends_before(tail, place):
                raise CorruptError(
                    "the archive has two ends, and readers disagree about which one counts",
                    file=source.name,
                    offset=tail_start + place,
                    hint="Do not trust it: such files are made to deceive.",
                )
            if end > len(tail) or tail[end:].strip(b"\0"):  # zeros pad the file, which no reader minds
                place = -1
        if place < 0:
            raise TruncatedError(
                "the archive's directory is missing",
                file=source.name,
                offset=source.size,
                hint="The file was cut off: download or copy it again.",
            )
        self.comment = tail[place + _END_BYTES : end]
        end = tail_start + place
        disk, first_disk, here, count, length, start = struct.unpack_from("<4H2I", tail, place + 4)
        behind = end
        locator = source.read(max(0, end - 20), 20)
        if locator[:4] == _LOCATOR64:  # PyTorch writes it into small archives too
            (behind,) = struct.unpack_from("<Q", locator, 8)
            record = source.read(behind, 56) if behind < end else b""
            if len(record) < 56 or record[:4] != _END64:
                raise CorruptError("the archive's directory is damaged", file=source.name, offset=behind)
            disk, first_disk, here, count, length, start = struct.unpack_from("<2I4Q", record, 16)
        if disk or first_disk or here != count:
            raise UnsupportedError("the archive is split over several files", file=source.name, offset=end)
        if start + length != behind or count * _CENTRAL_BYTES > length:
            raise CorruptError(
                "the archive's directory is not where it should be",
                file=source.name,
                offset=end,
                expected=f"{length} bytes at {start} with {count} entries",
                found=f"its end at {behind}",
            )
        return start, length, count

    def _entries(self, data: bytes, start: int, count: int) -> Iterator[Member]:
        place = 0
        for _ in range(count):
            if data[place : place + 4] != _CENTRAL or place + _CENTRAL_BYTES > len(data):
                raise CorruptError("the archive's directory is damaged", file=self.source.name, offset=start + place)
            flags, method, _, _, crc, packed, size, name_length, extra_length, comment_length = struct.unpack_from(
                "<4H3I3H", data, place + 8
            )
            attributes, header = struct.unpack_from("<2I", data, place + 38)
            place += _CENTRAL_BYTES
            raw = data[place : place + name_length]
            extra = data[place + name_length : place + name_length + extra_length]
            place += name_length + extra_length + comment_length
            wide = [size == 0xFFFFFFFF, packed == 0xFFFFFFFF, header == 0xFFFFFFFF]
            if any(wide):
                wider = _zip64(extra, wide)
                if wider is None:
                    raise CorruptError(
                        "an entry of the archive's directory has no zip64 sizes",
                        file=self.source.name,
                        offset=start + place,
                    )
                size, packed, header = (
                    new if new is not None else old for new, old in zip(wider, (size, packed, header))
                )
            # The flag for UTF-8 is not set by every writer of it.
            name = raw.decode("utf-8", "surrogateescape")
            member = Member(name, method, flags, crc, packed, size, header, start)
            if attributes & _FOLDER and size:
                raise self._fault(member, "is marked as a folder, and PyTorch reads no bytes of it")
            yield member
        if place != len(data):
            raise CorruptError("the archive's directory is damaged", file=self.source.name, offset=start + place)

    def _start(self, member: Member) -> int:
        """Return the offset of a member's bytes. The local header, which has it, must agree with the directory."""
        known = self._starts.get(member.name)
        if known is not None:
            return known
        data = self.source.read_exact(member.header, _LOCAL_BYTES, f"the header of {member.name}")
        if data[:4] != _LOCAL:
            raise self._fault(member, "has no header where the directory says")
        flags, method, _, _, crc, packed, size, name_length, extra_length = struct.unpack_from("<4H3I2H", data, 6)
        rest = self.source.read_exact(member.header + _LOCAL_BYTES, name_length + extra_length, "a header")
        name = rest[:name_length].decode("utf-8", "surrogateescape")
        wide = [size == 0xFFFFFFFF, packed == 0xFFFFFFFF, False]
        if any(wide):
            wider = _zip64(rest[name_length:], wide) or (None, None, None)
            size, packed = (old if new is None else new for new, old in zip(wider, (size, packed)))
        # With bit 3 the sizes may follow the data, and are 0 here.
        numbers = zip((crc, packed, size), (member.crc, member.packed, member.size))
        agreed = all(here == there or (flags & 8 and not here) for here, there in numbers)
        if not agreed or name != member.name or method != member.method:
            raise self._fault(member, "is described differently by its own header and by the directory")
        start: int = member.header + _LOCAL_BYTES + name_length + extra_length
        if start + member.packed > member.limit:
            raise self._fault(member, "overlaps what follows it in the archive")
        if member.flags & 1:
            raise UnsupportedError("is encrypted", file=self.source.name, offset=member.header, path=member.name)
        if member.method not in (STORED, DEFLATED):
            raise UnsupportedError(
                f"is compressed by method {member.method}; only stored and deflated members are supported",
                file=self.source.name,
                offset=member.header,
                path=member.name,
            )
        if member.method == STORED and member.packed != member.size:
            raise self._fault(member, "is stored, but its length differs from its size")
        self._starts[member.name] = start
        return start

    # Deflated members

    def _inflate(self, member: Member) -> ByteSource:
        start = self._start(member)
        if member.size > member.packed * _MAX_DEFLATE_RATIO + 64:
            raise self._fault(member, "claims a size that its packed bytes cannot have")
        self._inflatable -= member.size
        if self._inflatable < 0:
            raise LimitError(
                "would grow too large when inflated",
                file=self.source.name,
                offset=member.header,
                path=member.name,
                expected=f"at most {self._limits.inflate_ratio} times the file's size (the limit inflate_ratio), or "
                f"{self._limits.inflate_bytes} bytes (the limit inflate_bytes), of all members",
                found=f"{member.size} bytes",
                limit="inflate_ratio",
                value=self._limits.inflate_ratio,
            )
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
        if place + _END_BYTES + int.from_bytes(tail[place + 20 : place + 22], "little") == len(tail):
            return True
        place = tail.rfind(_END, 0, place)
    return False


def _zip64(extra: bytes, wanted: list[bool]) -> tuple[int | None, int | None, int | None] | None:
    """Return the wide values of a zip64 extra field: size, packed size and header offset, those that are `wanted`."""
    place = 0
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, place)
        place += 4
        if kind == 1:
            if length < 8 * sum(wanted) or place + 8 * sum(wanted) > len(extra):
                return None
            values = iter(struct.unpack_from(f"<{sum(wanted)}Q", extra, place))
            size, packed, header = (next(values) if want else None for want in wanted)
            return size, packed, header
        place += length
    return None
