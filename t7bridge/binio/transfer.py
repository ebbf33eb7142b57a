"""Bytes from one open file to another, by several threads at once, in memory that does not grow."""

from __future__ import annotations

import contextlib
import os
from _thread import allocate_lock

from ..errors import T7BridgeError, TruncatedError, WriteError
from .crc import combine, crc32
from .source import ByteSource

PIECE_BYTES = 8 << 20
"""What one thread takes at a time."""
CHUNK_BYTES = 1 << 19
"""What is read before it is written: it stays in the processor's cache."""
WORTH_BYTES = 2 * PIECE_BYTES
"""From how many bytes on several threads are worth their start."""
MAX_THREADS = 2
"""Threads with two megabytes between them saturate memory; more of them only wait for the file's lock."""

CAN_TRANSFER = hasattr(os, "pwrite") and hasattr(os, "preadv")


class Transfer:
    """A run of bytes on its way from a source to a place in a target file.

    Args:
        source: an open file.
        offset: of the first byte there, 0-based.
        target: the descriptor of the target.
        position: of the first byte there.
        length: in bytes.
        name: the target's, for messages.
        check: whether the CRC-32 is wanted.
    """

    def __init__(
        self, source: ByteSource, offset: int, target: int, position: int, length: int, name: str, check: bool
    ) -> None:
        self._source = source
        self._offset = offset
        self._target = target
        self._position = position
        self._length = length
        self._name = name
        self._check = check
        self._next = 0
        self._lock = allocate_lock()
        self._crcs: dict[int, int] = {}
        self._error: BaseException | None = None

    def run(self) -> int:
        """Move the bytes.

        Returns:
            Their CRC-32, or 0 where it is not wanted.

        Raises:
            TruncatedError: the source has become shorter.
            WriteError: the target does not take the bytes.
        """
        import threading

        with contextlib.suppress(OSError):  # a file system that cannot: then blocks are found while writing
            os.posix_fallocate(self._target, self._position, self._length)
        threads = min(MAX_THREADS, os.cpu_count() or 1, 1 + self._length // WORTH_BYTES)
        others = [threading.Thread(target=self._work) for _ in range(threads - 1)]
        for thread in others:
            thread.start()
        try:
            self._work()
        except BaseException as error:  # an interrupt: the others must not write into a closed file
            self._error = self._error or error
        for thread in others:
            thread.join()
        if self._error is not None:
            raise self._error
        crc = 0
        for start in sorted(self._crcs):
            crc = combine(crc, self._crcs[start], min(PIECE_BYTES, self._length - start))
        return crc

    def _take(self) -> int | None:
        """The start of the next piece; `None` when there is none, or somebody has failed."""
        with self._lock:
            start = self._next
            self._next += PIECE_BYTES
        return start if start < self._length and self._error is None else None

    def _work(self) -> None:
        buffer = memoryview(bytearray(min(CHUNK_BYTES, self._length)))
        try:
            while (start := self._take()) is not None:
                self._crcs[start] = self._piece(start, buffer)
        except T7BridgeError as error:
            self._error = self._error or error

    def _piece(self, start: int, buffer: memoryview) -> int:
        done, end, crc = start, min(start + PIECE_BYTES, self._length), 0
        while done < end:
            chunk = buffer[: min(len(buffer), end - done)]
            if self._source.read_into(self._offset + done, chunk) != len(chunk):
                raise TruncatedError(
                    "became shorter while it was read", file=self._source.name, offset=self._offset + done
                )
            if self._check:
                crc = crc32(chunk, crc)
            self._write(chunk, self._position + done)
            done += len(chunk)
        return crc

    def _write(self, chunk: memoryview, position: int) -> None:
        written = 0
        try:
            while written < len(chunk):
                written += os.pwrite(self._target, chunk[written:], position + written)
        except OSError as error:
            raise WriteError(f"cannot be written: {error.strerror}", file=self._name, offset=position) from error
