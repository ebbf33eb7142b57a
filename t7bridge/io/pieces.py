"""Consecutive pieces of other sources as one source."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from ..errors import T7BridgeError
from .source import ByteSource

Piece = tuple[ByteSource, int, int]
"""A source, an offset in it, and a length, both in bytes."""


class PiecesSource(ByteSource):
    """A source made of consecutive pieces of others.

    Args:
        name: for messages.
        pieces: in order.
    """

    def __init__(self, name: str, pieces: Iterable[Piece]) -> None:
        self._pieces = [piece for piece in pieces if piece[2]]
        self._starts: list[int] = []
        size = 0
        for _, _, length in self._pieces:
            self._starts.append(size)
            size += length
        super().__init__(name, size)

    def read(self, offset: int, length: int) -> bytes:
        """See `ByteSource.read`."""
        parts = []
        for source, start, count in self._parts(offset, length):
            part = source.read(start, count)
            parts.append(part)
            if len(part) < count:
                break
        return b"".join(parts)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """See `ByteSource.read_into`."""
        done = 0
        for source, start, count in self._parts(offset, len(buffer)):
            got = source.read_into(start, buffer[done : done + count])
            done += got
            if got < count:
                break
        return done

    def mapped(self, offset: int, length: int) -> memoryview:
        """Return the bytes; copied, unless they are in one piece."""
        parts = self._parts(offset, length)
        if len(parts) == 1 and parts[0][2] == length:
            source, start, count = parts[0]
            return source.mapped(start, count)
        return memoryview(self.read_exact(offset, length, "its data"))

    def _parts(self, offset: int, length: int) -> list[Piece]:
        """Yield the parts of pieces that cover a range."""
        parts = []
        number = bisect_right(self._starts, offset) - 1
        while length > 0 and 0 <= number < len(self._pieces):
            source, start, size = self._pieces[number]
            inside = offset - self._starts[number]
            count = min(length, size - inside)
            if count > 0:
                parts.append((source, start + inside, count))
            offset, length, number = offset + count, length - count, number + 1
        return parts

    def close(self) -> None:
        """Close the sources of all pieces."""
        for source in {id(piece[0]): piece[0] for piece in self._pieces}.values():
            source.close()

    def _open_fd(self, offset: int) -> int:
        raise T7BridgeError("is not a single file", file=self.name, offset=offset)
