"""Bytes of open files that go to others, and how they are changed on their way."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from .source import ByteSource

CHUNK_BYTES = 1 << 19
"""Bytes read before they are written: they stay in the processor's cache."""
WORTH_BYTES = 1 << 20
"""From how many bytes on an extent is left to several threads."""

Done = Callable[[int], None] | None
_WORDS = {2: "H", 4: "I", 8: "Q"}
"""The codes of arrays by the bytes of their elements."""


class Buffer:
    """The memory through which bytes go from file to file, as they are.

    Attributes:
        view: where bytes of the source are put, whole elements.
    """

    view: memoryview

    def __init__(self) -> None:
        self.view = memoryview(bytearray(CHUNK_BYTES))

    def changed(self, length: int) -> memoryview:
        """Return the bytes for the target that the first `length` bytes of the view become."""
        return self.view[:length]


class _ReversingBuffer(Buffer):
    """Reverses the bytes of each word.

    The standard library's arrays do that as fast as numpy, which takes longer to load than 200 MB to copy.

    Args:
        word: bytes of a word: 2, 4 or 8.
    """

    def __init__(self, word: int) -> None:
        from array import array

        self._array = array(_WORDS[word], bytes(CHUNK_BYTES // word * word))
        self.view = memoryview(self._array).cast("B")

    def changed(self, length: int) -> memoryview:
        """Reverse the words of the whole buffer."""
        self._array.byteswap()
        return self.view[:length]


class Change:
    """A change of elements on their way from file to file.

    Attributes:
        taken: bytes of one element in the source.
        made: bytes of it in the target.
        buffer: makes the memory in which it is carried out, for one thread. `changed` of it may raise a ModelError,
            for what the target cannot hold.
    """

    def __init__(self, taken: int, made: int, buffer: Callable[[], Buffer]) -> None:
        self.taken = taken
        self.made = made
        self.buffer = buffer

    def length(self, taken: int) -> int:
        """Count of bytes that so many bytes of the source become."""
        return taken // self.taken * self.made


NO_CHANGE = Change(1, 1, Buffer)


@cache
def reversal(word: int) -> Change:
    """The change that reverses the bytes of each word of 2, 4 or 8 bytes."""
    return Change(word, word, partial(_ReversingBuffer, word))


class Extent:
    """Bytes of an open file, and what they become on their way to another.

    Attributes:
        source: what holds the bytes.
        offset: of the first byte, 0-based.
        length: in bytes.
        change: what is done with them.
        check: is given the CRC-32 of the bytes as they are in the source, and may refuse it.
    """

    def __init__(
        self, source: ByteSource, offset: int, length: int, change: Change = NO_CHANGE, check: Done = None
    ) -> None:
        self.source = source
        self.offset = offset
        self.length = length
        self.change = change
        self.check = check

    @property
    def nbytes(self) -> int:
        """Count of bytes in the target."""
        return self.change.length(self.length)
