"""The zip container as PyTorch writes it: stored members, aligned data, sizes after the data.

The layout is PyTorch's to the byte, so that its memory mapping and its calculated offsets work. Source: the layout of
files that PyTorch 2.13 wrote, and the application notes of the zip format (APPNOTE 6.3, 4.3 to 4.5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Union

from ....data import define
from ....io.changes import Extent
from ....io.checksums import combine, crc32
from ....io.output import Output
from ..layout import ALIGNMENT_BYTES, PADDING_FIELD

_FLAGS = 0x0808  # sizes and CRC after the data; names in UTF-8
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF
_ZIP64_FIELD = 1
_LOCAL_HEADER = struct.Struct("<IHHHHHIIIHH")
_CENTRAL_HEADER = struct.Struct("<IHHHHHHIIIHHHHHII")
_END = struct.Struct("<IHHHHIIH")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<IIQI")


@define(frozen=True, eq=False)
class Headed:
    """Bytes of an open file behind others, as a member's data.

    Attributes:
        head: the others.
        extent: where the bytes are, and their change.
    """

    head: bytes
    extent: Extent


@define
class WrittenMember:
    """A member that was written.

    Attributes:
        name: with the root folder.
        offset: of the local header, in bytes.
        size: of the data, in bytes.
        crc: CRC-32 of the data.
        settled: whether the data are complete, so that the CRC-32 is known.
    """

    name: str
    offset: int
    size: int
    crc: int = 0
    settled: bool = False

    def settle(self, crc: int) -> None:
        """Mark the data as complete."""
        self.crc, self.settled = crc, True

    def descriptor(self) -> bytes:
        """Return the data descriptor, which follows the data."""
        return struct.pack("<IIQQ" if _is_large(self) else "<IIII", 0x08074B50, self.crc, self.size, self.size)


Content = Union[bytes, Extent, Headed, "Iterable[bytes | memoryview]"]


class ZipWriter:
    """Writes members one after another, then the directory.

    Attributes:
        members: those written so far; :meth:`settle` completes their CRCs.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._start = output.position
        self._unsettled: list[tuple[int, WrittenMember]] = []
        """Members whose data are being copied, with the positions of their descriptors."""
        self.members: list[WrittenMember] = []

    def add(self, name: str, content: Content, size: int | None = None) -> None:
        """Write one member.

        Args:
            name: with the root folder.
            content: its bytes, where they are, or pieces.
            size: in bytes; needed for pieces, as the header says beforehand whether the member is a large one.
        """
        if isinstance(content, bytes):
            size = len(content)
        elif isinstance(content, Extent):
            size = content.nbytes
        elif isinstance(content, Headed):
            size = len(content.head) + content.extent.nbytes
        assert size is not None
        encoded = name.encode()
        member = WrittenMember(name, self._output.position - self._start, size)
        extra = _zip64_field(member) if _is_large(member) else b""
        extra += _padding(member.offset + _LOCAL_HEADER.size + len(encoded) + len(extra))
        self._output.write(_LOCAL_HEADER.pack(0x04034B50, 0, _FLAGS, 0, 0, 0, 0, 0, 0, len(encoded), len(extra)))
        self._output.write(encoded + extra)
        self._data(member, content)
        if not member.settled:
            self._unsettled.append((self._output.position, member))
        self._output.write(member.descriptor())
        self.members.append(member)

    def _data(self, member: WrittenMember, content: Content) -> None:
        if isinstance(content, Extent):
            self._output.copy(content, member.settle)
            return
        if isinstance(content, Headed):
            head, length = crc32(content.head), content.extent.nbytes
            self._output.write(content.head)
            self._output.copy(content.extent, lambda crc: member.settle(combine(head, crc, length)))
            return
        crc = 0
        for piece in (content,) if isinstance(content, bytes) else content:
            crc = crc32(piece, crc)
            self._output.write(piece)
        member.settle(crc)

    def settle(self) -> None:
        """Wait for pending copies, and write what depends on them.

        Raises:
            T7BridgeError: a source has become shorter or is damaged, or the output does not accept the bytes.
        """
        self._output.wait()
        for position, member in self._unsettled:
            self._output.put(position, member.descriptor())
        self._unsettled.clear()

    def finish(self, comment: bytes = b"") -> None:
        """Write the directory, and a comment of at most 65 535 bytes."""
        self.settle()
        start = self._output.position - self._start
        for member in self.members:
            self._output.write(_central_header(member))
        end = self._output.position - self._start
        count, size = len(self.members), end - start
        self._output.write(_END64.pack(0x06064B50, _END64.size - 12, 0x031E, 45, 0, 0, count, count, size, start))
        self._output.write(_LOCATOR64.pack(0x07064B50, 0, end, 1))
        short = min(count, _FULL_16)
        sizes = (min(size, _FULL_32), min(start, _FULL_32), len(comment))
        self._output.write(_END.pack(0x06054B50, 0, 0, short, short, *sizes) + comment)


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
    return PADDING_FIELD + struct.pack("<H", length) + b"Z" * length


def _central_header(member: WrittenMember) -> bytes:
    name = member.name.encode()
    extra = _zip64_field(member) if _is_large(member) else b""
    size = min(member.size, _FULL_32)
    header = _CENTRAL_HEADER.pack(
        0x02014B50, 0, 0, _FLAGS, 0, 0, 0, member.crc, size, size, len(name), len(extra), 0, 0, 0, 0,
        min(member.offset, _FULL_32),
    )  # fmt: skip
    return header + name + extra
