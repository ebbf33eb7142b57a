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
from typing import Any, NamedTuple

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
_DESCRIPTOR = b"PK\x07\x08"
_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
"""Signature, version, flags, method, time, date, CRC, packed size, size; lengths of name and extra fields."""
_CENTRAL_HEADER = struct.Struct("<4sHHHHHHIIIHHHHHII")
"""Signature, two versions, flags, method, time, date, CRC, packed size, size; lengths of name, extra fields and
comment; disk, internal and external attributes, offset of the local header."""
_END_RECORD = struct.Struct("<4sHHHHIIH")
"""Signature, disk, first disk of the directory, entries here and in all, size and offset of the directory; length of
the comment."""
_END64_RECORD = struct.Struct("<4sQHHIIQQQQ")
"""Signature, length of the rest, two versions, then as in the other, with wider numbers and no comment."""
_LOCATOR64_RECORD = struct.Struct("<4sIQI")
"""Signature, disk and offset of the zip64 end record, number of disks."""
_END64_HEAD_BYTES = 12
"""Bytes of the zip64 end record that its own length does not count: its signature and the length."""
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF
_SIZES_FOLLOW, _UTF8 = 0x0008, 0x0800
"""Bits of an entry's flags: sizes and CRC follow the data; the name is in UTF-8."""
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
_MADE_BY, _NEEDED = 0x031E, 45
"""Versions in the zip64 end record that PyTorch writes: made by 3.0 on Unix; 4.5, with zip64, is needed to read it."""


@define(frozen=True)
class Member:
    """One file in an archive, as the central directory has it.

    Attributes:
        name: with its folders.
        method: `STORED`, `DEFLATED`, or another one, which is refused when the member is read.
        flags: general purpose bits.
        crc: CRC-32 of its bytes; 0 if PyTorch was configured not to compute it.
        packed: number of its bytes in the archive.
        size: number of its bytes when they are inflated; the same for a stored member.
        header: offset of its local header in the archive.
        limit: offset that the end of its bytes cannot exceed: that of the next header, or of the directory.
    """

    name: str
    method: int
    flags: int
    crc: int
    packed: int
    size: int
    header: int
    limit: int


class _End(NamedTuple):
    """What an end record says about the directory.

    Attributes:
        disk: number of the disk that the record is on, from 0.
        first_disk: number of that on which the directory begins.
        entries_here: number of the directory's entries on this disk.
        entries: number of all.
        length: of the directory, in bytes.
        start: its offset.
        place: offset of the record, at which the directory has to end.
        disks: number of disks.
    """

    disk: int
    first_disk: int
    entries_here: int
    entries: int
    length: int
    start: int
    place: int
    disks: int


class ZipArchive:
    """Reads the directory of a zip archive and finds the bytes of its members, which readers must agree about.

    Args:
        source: the archive.
        limits: resource limits.
        exact_case: whether names may differ in case alone, which PyTorch's reader does not tell apart. Without it such
            an archive is refused.

    Attributes:
        source: the argument.
        members: by name, in the order of the directory; folders are left out.
        first_entry: name of the directory's first entry, possibly a folder: PyTorch derives the root folder from it.
            Empty for an archive without entries.
        comment: the bytes after the end record, which may be any text.

    Raises:
        FormatError: it is not a valid zip archive.
    """

    def __init__(self, source: ByteSource, limits: Limits = DEFAULT_LIMITS, exact_case: bool = False) -> None:
        self.source = source
        self._exact_case = exact_case
        self._limits = limits
        self._inflation = Inflation(source.size, limits)
        """Limits the size of all inflated members together."""
        self._inflated: dict[str, ByteSource] = {}
        """The bytes of each deflated member that was read, by its name."""
        # Both are set by `_directory`; not by that of a `FolderArchive`, which has none to read.
        self.first_entry = ""
        self.comment = b""
        with about_file(source.name):
            self.members = self._directory()

    def span(self, name: str) -> tuple[ByteSource, int]:
        """Return the location of a member's bytes: a source, and an offset in it in bytes.

        Deflated members are inflated here, once, to a source of their own.

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
        # Of a stored member too: as much may be held in memory as may still be inflated. Only inflating spends it.
        if member.size > self._inflation.bytes_left:
            message = "is too large to be read into memory"
            raise self._limits.exceeded("inflate_bytes", message, **self._where(member), found=f"{member.size} bytes")
        self.check(name)
        source, offset = self.span(name)
        return source.read_exact(offset, member.size, name)

    def check(self, name: str) -> None:
        """Check the CRC-32 of one member, without holding it in memory. Deflated ones are checked when inflated.

        Raises:
            CorruptError: the bytes have another CRC-32 than the directory says.
        """
        member = self.member(name)
        source, offset = self.span(name)
        was_crc_computed = member.crc != 0  # see `_compare_crc`
        if member.method == STORED and was_crc_computed:
            self._compare_crc(member, self._computed_crc(member, source, offset))

    def _computed_crc(self, member: Member, source: ByteSource, offset: int) -> int:
        """Return the CRC-32 of a member's bytes, which are in a source from an offset on; see `span`."""
        crc = 0
        end = offset + member.size
        for position in range(offset, end, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, end - position)
            crc = crc32(source.read_exact(position, length, member.name), crc)
        return crc

    def crc_of(self, name: str) -> int:
        """Return the CRC-32 of a member, as the directory has it."""
        return self.member(name).crc

    def verify(self) -> None:
        """Check the CRC-32 of every member.

        Raises:
            CorruptError: the bytes of one have another CRC-32 than the directory says.
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
        """Return an error about a member, with its place."""
        return kind(message, **self._where(member), **facts)

    def _where(self, member: Member) -> dict[str, Any]:
        """Return the place of a member, for an error."""
        return {"file": self.source.name, "offset": member.header, "path": member.name}

    def _compare_crc(self, member: Member, crc: int) -> None:
        """Compare the CRC-32 of a member's bytes with the directory's, which may be 0: then it is not known.

        Args:
            member: as the directory describes it.
            crc: of its bytes.

        Raises:
            CorruptError: they differ.
        """
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
        """Return the members by name, in the order of the directory; set `first_entry`, and `_end` sets `comment`.

        Raises:
            CorruptError: names or places of members contradict one another, or readers would disagree about them.
            UnsupportedError: the archive is encrypted or split over several files.
            LimitError: there are too many members.
        """
        start, length, count = self._end()
        if count > self._limits.archive_members:
            raise self._limits.exceeded(
                "archive_members", "the archive has too many members", offset=start, found=f"{count}"
            )
        data = self.source.read_exact(start, length, "the archive's directory")
        entries = list(self._entries(data, start, count))
        self.first_entry = entries[0].name if entries else ""
        members = self._members(entries, start)
        # Entries of folders have no bytes, and names that end with a slash. They were checked as all others.
        return {name: member for name, member in members.items() if member.size or not name.endswith("/")}

    def _members(self, entries: list[Member], directory_start: int) -> dict[str, Member]:
        """Return the entries of the directory by name, each with the place of what follows it as its limit.

        Args:
            entries: in the order of the directory.
            directory_start: offset of the directory in the file.

        Raises:
            CorruptError: names or places of members contradict one another, or readers would disagree about them.
        """
        # A member ends before the next header at the latest, the last one before the directory. The order of headers in
        # the file may be another than that of the directory.
        headers = [*sorted(entry.header for entry in entries), directory_start]
        next_header = dict(pairwise(headers))
        if len(next_header) != len(entries):
            raise CorruptError("two members have the same offset in the archive")
        members: dict[str, Member] = {}
        folded_names: set[bytes] = set()
        for entry in entries:
            member = evolve(entry, limit=next_header[entry.header])
            self._check_name(member, members, folded_names)
            # The rest of the local header is read, and checked, with the member.
            if member.header + _LOCAL_HEADER.size + member.packed > member.limit:
                raise self._fault(member, "overlaps what follows it in the archive")
            members[member.name] = member
        return members

    def _check_name(self, member: Member, members: dict[str, Member], folded_names: set[bytes]) -> None:
        """Refuse a member whose name another one has, for this reader or for others.

        Args:
            member: the member.
            members: those before it, by name.
            folded_names: their names without case; receives that of this one.

        Raises:
            CorruptError: another has the name, or has it for readers that stop at a zero byte or ignore case.
        """
        if member.name in members:
            raise self._fault(member, "occurs twice in the archive")
        if "\0" in member.name:
            raise self._fault(member, "has a zero byte in its name, at which other readers stop")
        folded_name = _without_case(member.name)
        if folded_name in folded_names and not self._exact_case:
            raise self._fault(member, "occurs twice in the archive for PyTorch, which ignores case in names")
        folded_names.add(folded_name)

    def _end(self) -> tuple[int, int, int]:
        """Return offset and length of the directory in bytes, and the number of its entries.

        Those of the zip64 end record count, if there is one.

        Raises:
            CorruptError: the directory is not where the records say.
            UnsupportedError: the archive is split over several files.
        """
        record_start, record = self._end_record()
        _signature, *numbers, _comment_length = _END_RECORD.unpack(record)
        disks = 1  # this record does not say how many
        end = _End._make((*numbers, record_start, disks))  # in the order of its fields
        locator = self.source.read(max(0, record_start - _LOCATOR64_RECORD.size), _LOCATOR64_RECORD.size)
        if locator[:4] == _LOCATOR64:  # PyTorch writes it into small archives too
            end = self._end64(locator, record_start)
        if end.disk or end.first_disk or end.entries_here != end.entries or end.disks != 1:
            raise UnsupportedError("the archive is split over several files", offset=record_start)
        # Nothing may be between the directory and its end record, and each entry has a header at least.
        if end.start + end.length != end.place or end.entries * _CENTRAL_HEADER.size > end.length:
            raise CorruptError(
                "the archive's directory is not where it should be",
                offset=record_start,
                expected=f"{end.length} bytes at {end.start} with {end.entries} entries",
                found=f"its end at {end.place}",
            )
        return end.start, end.length, end.entries

    def _end64(self, locator: bytes, record_start: int) -> _End:
        """Return what the zip64 end record says.

        Args:
            locator: the record that says where it is.
            record_start: offset of the other end record, which is behind it.

        Raises:
            CorruptError: it is not there.
        """
        _, _, place, disks = _LOCATOR64_RECORD.unpack(locator)
        record = b""
        if place < record_start:
            record = self.source.read(place, _END64_RECORD.size)
        if len(record) < _END64_RECORD.size or record[:4] != _END64:
            raise CorruptError("the archive's directory is damaged", offset=place)
        _, record_length, _, _, *numbers = _END64_RECORD.unpack(record)
        if record_length < _END64_RECORD.size - _END64_HEAD_BYTES:
            raise CorruptError("the archive's directory is damaged", offset=place)
        return _End._make((*numbers, place, disks))

    def _end_record(self) -> tuple[int, bytes]:
        """Return the offset of the end record, and its bytes without the comment, which becomes that of the archive.

        Raises:
            CorruptError: readers could take another record for it.
            TruncatedError: there is none, or more than zeros follow it.
        """
        size = self.source.size
        # A comment has at most 65 535 bytes.
        tail_start = max(0, size - _END_RECORD.size - _FULL_16)
        tail = self.source.read(tail_start, size - tail_start)
        # PyTorch uses the last one that has room for its fields, whatever length it states for its comment.
        record = tail.rfind(_END, 0, max(0, len(tail) - _END_RECORD.size + len(_END)))
        if record < 0:
            raise _missing_directory(size)
        end = _end_of_comment(tail, record)
        if end != len(tail):
            self._check_end_before_others(tail, tail_start, record, end)
        comment_start = record + _END_RECORD.size
        self.comment = tail[comment_start:end]
        return tail_start + record, tail[record:comment_start]

    def _check_end_before_others(self, tail: bytes, tail_start: int, record: int, end: int) -> None:
        """Refuse an end record that does not end the file, unless zeros pad that, and no reader takes another record.

        Args:
            tail: the last bytes of the file.
            tail_start: offset of these in the file.
            record: offset of the end record in the tail.
            end: offset behind its comment, likewise; that may be beyond the file.

        Raises:
            CorruptError: readers could take an earlier record for it.
            TruncatedError: the comment is cut off, or more than zeros follow it.
        """
        # Other readers pass over a record whose comment does not end with the file, and would take an earlier one.
        if _has_earlier_end_record(tail, record):
            raise CorruptError(
                "the archive has two ends, and readers disagree about which one counts",
                offset=tail_start + record,
                hint="Do not trust it: such files are made to deceive.",
            )
        is_padded = end < len(tail) and not tail[end:].strip(b"\0")
        if not is_padded:
            raise _missing_directory(self.source.size)

    def _entries(self, data: bytes, start: int, count: int) -> Iterator[Member]:
        """Yield the entries of the directory, in order, each with the start of the directory as its limit.

        Args:
            data: the bytes of the directory.
            start: its offset in the file, in bytes.
            count: number of entries.

        Raises:
            CorruptError: there are fewer or more of them, or one contradicts itself.
            UnsupportedError: one is encrypted or on another disk.
        """
        position = 0
        for _ in range(count):
            member, position = self._entry(data, position, start)
            yield member
        if position != len(data):
            raise CorruptError("the archive's directory is damaged", offset=start + position)

    def _entry(self, data: bytes, position: int, start: int) -> tuple[Member, int]:
        """Return an entry of the directory, and the position behind it.

        Args:
            data: the bytes of the directory.
            position: of the entry in these.
            start: offset of the directory in the file.

        Raises:
            CorruptError: it is cut off, or contradicts itself.
            UnsupportedError: it is encrypted or on another disk.
        """
        name_start = position + _CENTRAL_HEADER.size
        if data[position : position + 4] != _CENTRAL or name_start > len(data):
            raise CorruptError("the archive's directory is damaged", offset=start + position)
        fields = _CENTRAL_HEADER.unpack_from(data, position)
        # Versions, times and internal attributes change nothing about the bytes.
        _, _, _, flags, method, _, _, crc, packed, size, *lengths_and_place = fields
        name_length, extra_length, comment_length, disk, _, attributes, header = lengths_and_place
        extra_start = name_start + name_length
        raw_name = data[name_start:extra_start]
        extra = data[extra_start : extra_start + extra_length]
        end = extra_start + extra_length + comment_length
        wide_numbers = _with_zip64_values(extra, size, packed, header)
        if wide_numbers is None:
            raise CorruptError("an entry of the archive's directory has no zip64 sizes", offset=start + end)
        size, packed, header = wide_numbers
        # The flag for UTF-8 is not set by every writer of it.
        name = raw_name.decode("utf-8", "surrogateescape")
        member = Member(name, method, flags, crc, packed, size, header, limit=start)
        self._check_entry(member, attributes, disk)
        return member, end

    def _check_entry(self, member: Member, attributes: int, disk: int) -> None:
        """Refuse an entry of the directory that PyTorch refuses, whether it is asked for or not, or reads as empty.

        Args:
            member: the entry.
            attributes: its external attributes.
            disk: number of the disk that it is on.

        Raises:
            CorruptError: it contradicts itself.
            UnsupportedError: it is encrypted or on another disk.
        """
        if attributes & _FOLDER and member.size:
            raise self._fault(member, "is marked as a folder, and PyTorch reads no bytes of it")
        # As miniz, with which PyTorch reads archives.
        if disk not in (0, 1):  # 0 is the only one; miniz takes 1, too
            raise self._fault(member, "is on another disk of an archive split over several files", UnsupportedError)
        if member.flags & _MASKED:
            raise self._fault(member, "is in an encrypted directory", UnsupportedError)
        if member.size and not member.packed:
            raise self._fault(member, "has a size, and no bytes")

    def _start(self, member: Member) -> int:
        """Return the offset of a member's bytes. The local header, which has it, must agree with the directory.

        Args:
            member: as the directory describes it.

        Raises:
            CorruptError: it does not, or the bytes overlap what follows.
            TruncatedError: the file ends inside the header.
            UnsupportedError: the member is encrypted, or compressed by another method than deflate.
        """
        data = self.source.read_exact(member.header, _LOCAL_HEADER.size, f"the header of {member.name}")
        if data[:4] != _LOCAL:
            raise self._fault(member, "has no header where the directory says")
        _, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL_HEADER.unpack(data)
        rest = self.source.read_exact(member.header + _LOCAL_HEADER.size, name_length + extra_length, "a header")
        name = rest[:name_length].decode("utf-8", "surrogateescape")
        # A header that lacks its zip64 sizes keeps those of 32 bits, which then differ from the directory's.
        size, packed = _with_zip64_values(rest[name_length:], size, packed) or (size, packed)
        numbers = zip((crc, packed, size), (member.crc, member.packed, member.size))
        # With this bit the numbers may follow the data, and are 0 here.
        if flags & _SIZES_FOLLOW:
            numbers_agree = all(in_header in (in_directory, 0) for in_header, in_directory in numbers)
        else:
            numbers_agree = all(in_header == in_directory for in_header, in_directory in numbers)
        if not numbers_agree or name != member.name or method != member.method:
            raise self._fault(member, "is described differently by its own header and by the directory")
        start: int = member.header + _LOCAL_HEADER.size + len(rest)
        if start + member.packed > member.limit:
            raise self._fault(member, "overlaps what follows it in the archive")
        self._check_method(member)
        return start

    def _check_method(self, member: Member) -> None:
        """Refuse a member whose bytes are not stored or deflated as they are. Errors as above."""
        if member.flags & _ENCRYPTED:
            raise self._fault(member, "is encrypted", UnsupportedError)
        if member.method not in (STORED, DEFLATED):
            text = f"is compressed by method {member.method}; only stored and deflated members are supported"
            raise self._fault(member, text, UnsupportedError)
        if member.method == STORED and member.packed != member.size:
            raise self._fault(member, "is stored, but its length differs from its size")

    # Deflated members

    def _inflate(self, member: Member) -> ByteSource:
        """Return the bytes of a deflated member as a source of their own: in memory, or in a temporary file.

        Raises:
            CorruptError: they cannot be inflated, or have another size or CRC-32 than the directory says.
            LimitError: they are too large for the size of the archive.
        """
        start = self._start(member)
        # Before anything is inflated. 64 bytes more, as the ratio is that of long data.
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
                # It has a descriptor of its own, so that the file lives longer than this block.
                inflated, _ = ByteSource.open(out)
        inflated.name = f"{self.source.name}: {member.name}"
        return inflated

    def _pieces(self, member: Member, start: int) -> Iterator[bytes]:
        """Yield the bytes of a deflated member piece by piece, and check its size and CRC-32 at the end.

        Args:
            member: the member.
            start: offset of its packed bytes.
        """
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)  # negative: without a header of zlib
        position = start
        end = start + member.packed
        remaining_bytes = member.size
        packed = b""
        crc = 0
        try:
            while not unpacker.eof and (packed or position < end):
                if not packed:
                    packed = self.source.read_exact(position, min(_CHUNK_BYTES, end - position), member.name)
                    position += len(packed)
                # One byte more than expected, to detect excess data. What does not fit comes with the next piece.
                piece = unpacker.decompress(packed, min(_CHUNK_BYTES, remaining_bytes + 1))
                packed = unpacker.unconsumed_tail
                remaining_bytes -= len(piece)
                if remaining_bytes < 0:
                    raise self._fault(member, "inflates to more than its size")
                crc = crc32(piece, crc)
                yield piece
        except zlib.error as error:
            raise self._fault(member, f"cannot be inflated: {error}") from error
        if not unpacker.eof or unpacker.unused_data or position < end or remaining_bytes:
            raise self._fault(member, "does not end with its deflated bytes")
        self._compare_crc(member, crc)


def _without_case(name: str) -> bytes:
    """Return a name as PyTorch compares names: miniz ignores the case of ASCII letters."""
    return name.encode("utf-8", "surrogateescape").lower()


def _missing_directory(size: int) -> TruncatedError:
    """Return the error for a file of a size in bytes that ends without the archive's directory."""
    return TruncatedError(
        "the archive's directory is missing", offset=size, hint="The file was cut off: download or copy it again."
    )


def _has_earlier_end_record(tail: bytes, place: int) -> bool:
    """Return whether another end record precedes one, with the rest of the file as its comment.

    Args:
        tail: the last bytes of the file.
        place: of the one, in the tail.
    """
    earlier_place = tail.rfind(_END, 0, place)
    while earlier_place >= 0:
        if _end_of_comment(tail, earlier_place) == len(tail):
            return True
        earlier_place = tail.rfind(_END, 0, earlier_place)
    return False


def _end_of_comment(tail: bytes, place: int) -> int:
    """Return where the comment of an end record at a place ends, by the length in its last two bytes."""
    end = place + _END_RECORD.size
    return end + int.from_bytes(tail[end - 2 : end], "little")


def _with_zip64_values(extra: bytes, *numbers: int) -> tuple[int, ...] | None:
    """Return numbers with the 64-bit values of a zip64 extra field for those that are full; `None` if it lacks them.

    Args:
        extra: the extra fields of a header: each a kind and a length of 16 bits, and that many bytes.
        *numbers: size, packed size, and in the directory the offset of the header, of 32 bits.
    """
    wide_count = numbers.count(_FULL_32)
    if not wide_count:
        return numbers
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        position += 4
        if kind == _ZIP64_FIELD:
            if length < 8 * wide_count or position + 8 * wide_count > len(extra):
                return None
            # The field has values only for the numbers that need one, in this order. What follows them is not needed.
            values = iter(struct.unpack_from(f"<{wide_count}Q", extra, position))
            return tuple(next(values) if number == _FULL_32 else number for number in numbers)
        position += length
    return None


# Writing


@define
class WrittenMember:
    """A member that was written.

    Attributes:
        name: with the root folder.
        offset: of the local header, in bytes from the start of the archive.
        size: of the data, in bytes.
        crc: CRC-32 of the data; 0 until they are complete.
        is_complete: whether the data are complete, so that the CRC-32 is known; set by `settle`.
    """

    name: str
    offset: int
    size: int
    crc: int = 0
    is_complete: bool = False

    def settle(self, crc: int) -> None:
        """Mark the data as complete, and set their CRC-32."""
        self.crc = crc
        self.is_complete = True

    def descriptor(self) -> bytes:
        """Return the data descriptor, which follows the data."""
        # Stored data have the same size twice: packed and not.
        form = "<4sIQQ" if _is_large(self) else "<4sIII"
        return struct.pack(form, _DESCRIPTOR, self.crc, self.size, self.size)


class ZipWriter:
    """Writes stored members one after another, then the directory, as PyTorch does.

    Args:
        output: receives the archive from its position on.

    Attributes:
        members: those written so far; :meth:`settle` completes their CRCs.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._start = output.position
        """Position of the archive in the output: all offsets in the archive are counted from it."""
        self._incomplete: list[tuple[int, WrittenMember]] = []
        """Members whose data are being copied, with the positions of their descriptors."""
        self.members: list[WrittenMember] = []

    def add(self, name: str, content: Content, size: int | None = None, head: bytes = b"") -> None:
        """Write one member. Its bytes may be copied in the background: `settle` waits for them.

        Args:
            name: with the root folder.
            content: its bytes, where they are, or pieces.
            size: in bytes; needed for pieces, as the header says beforehand whether the member is a large one.
            head: bytes before the others.
        """
        if size is None:
            size = content.nbytes if isinstance(content, Extent) else len(content)  # type: ignore[arg-type]
        encoded_name = name.encode()
        member = WrittenMember(name, self._output.position - self._start, size + len(head))
        extra = _zip64_field(member) if _is_large(member) else b""
        extra += _padding(member.offset + _LOCAL_HEADER.size + len(encoded_name) + len(extra))
        # Method, times, CRC and sizes are 0: the descriptor after the data has the last two.
        self._output.write(
            _LOCAL_HEADER.pack(_LOCAL, 0, _SIZES_FOLLOW | _UTF8, 0, 0, 0, 0, 0, 0, len(encoded_name), len(extra))
        )
        self._output.write(encoded_name + extra + head)

        def when_copied(content_crc: int) -> None:
            """Complete the member by the CRC-32 of its content, without the bytes in front of it."""
            member.settle(combine(crc32(head), content_crc, member.size - len(head)) if head else content_crc)

        # It calls `when_copied` at once, or, for bytes that are copied in the background, in `settle`.
        self._output.append(content, when_copied)
        if not member.is_complete:
            # The descriptor is written with a CRC of 0 now, and again by `settle`.
            self._incomplete.append((self._output.position, member))
        self._output.write(member.descriptor())
        self.members.append(member)

    def settle(self) -> None:
        """Wait for pending copies, and write the descriptors again with the CRCs that are known now.

        Raises:
            T7BridgeError: a source has become shorter or is damaged, or the output does not accept the bytes.
        """
        self._output.wait()
        for position, member in self._incomplete:
            self._output.put(position, member.descriptor())
        self._incomplete.clear()

    def finish(self, comment: bytes = b"") -> None:
        """Write the directory and its end, after completing all members.

        Args:
            comment: the last bytes of the archive, at most 65 535.
        """
        self.settle()
        start = self._output.position - self._start
        for member in self.members:
            self._output.write(_central_header(member))
        end = self._output.position - self._start
        count = len(self.members)
        size = end - start
        record_length = _END64_RECORD.size - _END64_HEAD_BYTES
        disk = 0  # the only one
        disks = 1
        # As PyTorch does, small archives have the records of 64 bits too.
        self._output.write(
            _END64_RECORD.pack(_END64, record_length, _MADE_BY, _NEEDED, disk, disk, count, count, size, start)
        )
        self._output.write(_LOCATOR64_RECORD.pack(_LOCATOR64, disk, end, disks))
        # Numbers that do not fit are full: their values are in the record of 64 bits.
        short_count = min(count, _FULL_16)
        short_size = min(size, _FULL_32)
        short_start = min(start, _FULL_32)
        self._output.write(
            _END_RECORD.pack(_END, disk, disk, short_count, short_count, short_size, short_start, len(comment))
        )
        self._output.write(comment)


def _is_large(member: WrittenMember) -> bool:
    """Return whether size or offset of a member need 64 bits; a number of all ones says that they do."""
    return member.size >= _FULL_32 or member.offset >= _FULL_32


def _zip64_field(member: WrittenMember) -> bytes:
    """Return the sizes and the offset that do not fit 32 bits, in the order of the format."""
    numbers = [member.size, member.size] if member.size >= _FULL_32 else []
    if member.offset >= _FULL_32:
        numbers.append(member.offset)
    return struct.pack(f"<HH{len(numbers)}Q", _ZIP64_FIELD, 8 * len(numbers), *numbers)


def _padding(position: int) -> bytes:
    """Return an extra field at a position after which the data start at a multiple of the alignment."""
    start = position + len(_PADDING_FIELD) + 2  # the length of the field has 2 bytes
    length = -start % ALIGNMENT_BYTES
    return _PADDING_FIELD + struct.pack("<H", length) + b"Z" * length  # PyTorch's letter


def _central_header(member: WrittenMember) -> bytes:
    """Return the entry of a member in the directory."""
    name = member.name.encode()
    extra = _zip64_field(member) if _is_large(member) else b""
    size = min(member.size, _FULL_32)
    # Versions, method, times, comment, disk and attributes are 0.
    header = _CENTRAL_HEADER.pack(
        _CENTRAL, 0, 0, _SIZES_FOLLOW | _UTF8, 0, 0, 0, member.crc, size, size, len(name), len(extra), 0, 0, 0, 0,
        min(member.offset, _FULL_32),
    )  # fmt: skip
    return header + name + extra
