"""Concurrent copying from open files into a target file: several threads and constant memory, while more is planned."""

from __future__ import annotations

import os
import threading
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import TruncatedError, WriteError
from .checksums import combine, crc32
from .source import ByteSource

PIECE_BYTES = 4 << 20
"""Bytes that one thread copies at a time. Pieces begin at multiples of it in the target: then the system can hold each
chunk in one large page."""
CHUNK_BYTES = 1 << 19
"""Bytes read before they are written: they fit the processor's cache."""
WORTH_BYTES = 1 << 20
"""Minimum size of a run that is left to the threads."""
MAX_THREADS = 2
"""Threads with two megabytes between them saturate memory; more of them only wait for the file's lock."""

CAN_TRANSFER = hasattr(os, "pwrite") and hasattr(os, "preadv")

Done = Callable[[int], None] | None
_WORDS = {2: "H", 4: "I", 8: "Q"}
"""The type codes of arrays by the size of their elements."""


class Buffer:
    """The memory that copied bytes pass through, in which the bytes of each word can be reversed.

    The standard library's arrays do this as fast as numpy, which takes longer to load than 200 MB to copy.

    Args:
        word: bytes of a word: 2, 4 or 8, or 1 if nothing is reversed.
    """

    def __init__(self, word: int = 1) -> None:
        self.word = word
        self._array: Any = None
        if word == 1:
            self.view = memoryview(bytearray(CHUNK_BYTES))
            return
        from array import array

        self._array = array(_WORDS[word], bytes(CHUNK_BYTES))
        self.view = memoryview(self._array).cast("B")

    def reverse(self) -> None:
        """Reverse the bytes of each word."""
        if self._array is not None:
            self._array.byteswap()


class _Run:
    """Bytes to copy from one place to another: position, length, and the CRC-32 of the pieces copied so far."""

    def __init__(self, source: ByteSource, offset: int, position: int, length: int, done: Done, word: int = 1) -> None:
        self.source = source
        self.offset = offset
        self.position = position
        self.length = length
        self.done = done
        self.word = word
        self.crcs: dict[int, int] = {}

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of each piece, in bytes from the beginning of the run."""
        start = 0
        while start < self.length:
            end = min(start + PIECE_BYTES - (self._aligned + start) % PIECE_BYTES, self.length)
            yield start, end
            start = end

    @property
    def _aligned(self) -> int:
        """Return the position of the run, or 0 where pieces must not cut words."""
        return self.position if self.word == 1 else 0

    def room(self, start: int) -> int:
        """Return the number of bytes read at once from an offset in the run."""
        return CHUNK_BYTES - (self._aligned + start) % CHUNK_BYTES

    def crc(self) -> int:
        """Return the CRC-32 of the whole from those of its pieces."""
        crc = 0
        for start, end in self.pieces():
            crc = combine(crc, self.crcs[start], end - start)
        return crc


class Transfers:
    """Pending copies into one target file.

    A signal may end any step of the main thread. So nothing here is a lock that could stay locked: pieces are taken
    from a deque, and each helper signals its end by a lock of its own.

    Args:
        target: its descriptor.
        name: for messages.
    """

    def __init__(self, target: int, name: str) -> None:
        self._target = target
        self._name = name
        self._runs: list[_Run] = []
        self._pieces: deque[tuple[_Run, int, int]] = deque()
        """Pieces not yet started: runs, and the start and end of a piece of them."""
        self._error: BaseException | None = None
        self._started = 0
        """Helpers that were started, or were about to be when a signal arrived."""
        self._ended: list[None] = []
        self._at_work: list[LockType] = []
        """For each helper that may have a piece the lock that it holds. One that is missing here has not begun, and
        finds nothing to do after an error or when all is done."""

    def add(
        self, source: ByteSource, offset: int, position: int, length: int, done: Done = None, word: int = 1
    ) -> None:
        """Begin a copy.

        Args:
            source: an open file, which stays open until :meth:`wait`.
            offset: of the first byte there, 0-based.
            position: of the first byte in the target.
            length: in bytes.
            done: called with the CRC-32 by :meth:`wait`; without it none is computed.
            word: bytes of the words whose bytes are reversed on the way.
        """
        run = _Run(source, offset, position, length, done, word)
        self._runs.append(run)
        self._pieces.extend((run, start, end) for start, end in run.pieces())
        if self._started - len(self._ended) < min(MAX_THREADS, os.cpu_count() or 1) - 1:
            self._started += 1
            threading.Thread(target=self._help).start()

    def wait(self) -> None:
        """Finish all copies.

        Raises:
            TruncatedError: a source has become shorter.
            WriteError: the target does not accept the bytes.
        """
        try:
            self._work()
        except BaseException as error:  # an interrupt, say: the others must not write into a closed file
            self._error = self._error or error
        self._join()
        runs, self._runs = self._runs, []
        if self._error is not None:
            raise self._error
        for run in runs:
            if run.done is not None:
                run.done(run.crc())

    def stop(self) -> None:
        """Cancel pending copies; nothing writes to the target afterwards."""
        self._error = self._error or InterruptedError()
        self._join()

    def _join(self) -> None:
        for lock in list(self._at_work):
            with lock:
                pass

    def _help(self) -> None:
        lock = allocate_lock()
        with lock:
            self._at_work.append(lock)
            try:
                self._work()
            except BaseException as error:  # `wait` raises it
                self._error = self._error or error
            finally:
                self._at_work.remove(lock)
                self._ended.append(None)

    def _work(self) -> None:
        buffer = Buffer()
        while self._error is None and self._pieces:
            try:
                run, start, end = self._pieces.popleft()
            except IndexError:  # another thread was faster
                return
            if run.word != buffer.word:
                buffer = Buffer(run.word)
            run.crcs[start] = self._piece(run, start, end, buffer)

    def _piece(self, run: _Run, start: int, end: int, buffer: Buffer) -> int:
        done, crc = start, 0
        while done < end:
            chunk = buffer.view[: min(run.room(done), end - done)]
            if run.source.read_into(run.offset + done, chunk) != len(chunk):
                raise TruncatedError("became shorter while it was read", file=run.source.name, offset=run.offset + done)
            buffer.reverse()
            if run.done is not None:
                crc = crc32(chunk, crc)
            write_at(self._target, chunk, run.position + done, self._name)
            done += len(chunk)
        return crc


def write_at(target: int, data: bytes | memoryview, position: int, name: str) -> None:
    """Write bytes at a position of an open file.

    Args:
        target: its descriptor.
        data: the bytes.
        position: of the first byte, 0-based.
        name: the file's, for messages.

    Raises:
        WriteError: the file does not accept them.
    """
    written, view = 0, memoryview(data)
    try:
        while written < len(view):
            written += os.pwrite(target, view[written:], position + written)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror}", file=name, offset=position) from error
