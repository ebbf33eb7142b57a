"""Bytes from open files to places in another, by several threads while more is planned, in memory of one size."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from ..errors import T7BridgeError, TruncatedError, WriteError
from .crc import combine, crc32
from .source import ByteSource

PIECE_BYTES = 4 << 20
"""What one thread takes at a time."""
CHUNK_BYTES = 1 << 19
"""What is read before it is written: it stays in the processor's cache."""
WORTH_BYTES = 1 << 20
"""From how many bytes on a run is left to the threads."""
MAX_THREADS = 2
"""Threads with two megabytes between them saturate memory; more of them only wait for the file's lock."""

CAN_TRANSFER = hasattr(os, "pwrite") and hasattr(os, "preadv")

Done = Callable[[int], None] | None


class _Run:
    """Bytes that go from one place to another: where, how many, and the CRC-32 of the pieces that have arrived."""

    def __init__(self, source: ByteSource, offset: int, position: int, length: int, done: Done) -> None:
        self.source = source
        self.offset = offset
        self.position = position
        self.length = length
        self.done = done
        self.crcs: dict[int, int] = {}

    def crc(self) -> int:
        """The CRC-32 of the whole, from those of its pieces."""
        crc = 0
        for start in sorted(self.crcs):
            crc = combine(crc, self.crcs[start], min(PIECE_BYTES, self.length - start))
        return crc


class Transfers:
    """Runs of bytes on their way into one target file.

    Args:
        target: its descriptor.
        name: for messages.
    """

    def __init__(self, target: int, name: str) -> None:
        self._target = target
        self._name = name
        self._runs: list[_Run] = []
        self._current = 0
        """The run whose pieces are being taken, and where its next one starts."""
        self._next = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None

    def add(self, source: ByteSource, offset: int, position: int, length: int, done: Done = None) -> None:
        """Begin to move bytes.

        Args:
            source: an open file, which stays open until :meth:`wait`.
            offset: of the first byte there, 0-based.
            position: of the first byte in the target.
            length: in bytes.
            done: is given their CRC-32 by :meth:`wait`; without it none is computed.
        """
        with contextlib.suppress(OSError):  # a file system that cannot: then blocks are found while writing
            os.posix_fallocate(self._target, position, length)
        with self._lock:
            self._runs.append(_Run(source, offset, position, length, done))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) < min(MAX_THREADS, os.cpu_count() or 1) - 1:
            thread = threading.Thread(target=self._work)
            self._threads.append(thread)
            thread.start()

    def wait(self) -> None:
        """Move what is left, and return when everything has arrived.

        Raises:
            TruncatedError: a source has become shorter.
            WriteError: the target does not take the bytes.
        """
        try:
            self._work()
        except BaseException as error:  # an interrupt: the others must not write into a closed file
            self._error = self._error or error
        self._join()
        runs, self._runs, self._current = self._runs, [], 0
        if self._error is not None:
            raise self._error
        for run in runs:
            if run.done is not None:
                run.done(run.crc())

    def stop(self) -> None:
        """Give up what is under way; nothing writes to the target afterwards."""
        self._error = self._error or InterruptedError()
        self._join()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _take(self) -> tuple[_Run, int] | None:
        """The next piece, as its run and its start there; `None` when there is none, or somebody has failed."""
        with self._lock:
            if self._error is not None or self._current == len(self._runs):
                return None
            run, start = self._runs[self._current], self._next
            self._next += PIECE_BYTES
            if self._next >= run.length:
                self._current, self._next = self._current + 1, 0
            return run, start

    def _work(self) -> None:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            while (taken := self._take()) is not None:
                run, start = taken
                run.crcs[start] = self._piece(run, start, buffer)
        except T7BridgeError as error:
            self._error = self._error or error

    def _piece(self, run: _Run, start: int, buffer: memoryview) -> int:
        done, end, crc = start, min(start + PIECE_BYTES, run.length), 0
        while done < end:
            chunk = buffer[: min(len(buffer), end - done)]
            if run.source.read_into(run.offset + done, chunk) != len(chunk):
                raise TruncatedError("became shorter while it was read", file=run.source.name, offset=run.offset + done)
            if run.done is not None:
                crc = crc32(chunk, crc)
            write_at(self._target, chunk, run.position + done, self._name)
            done += len(chunk)
        return crc


def write_at(target: int, data: bytes | memoryview, position: int, name: str) -> None:
    """Put bytes at a place of an open file.

    Args:
        target: its descriptor.
        data: the bytes.
        position: of the first, 0-based.
        name: the file's, for messages.

    Raises:
        WriteError: the file does not take them.
    """
    written, view = 0, memoryview(data)
    try:
        while written < len(view):
            written += os.pwrite(target, view[written:], position + written)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror}", file=name, offset=position) from error
