"""Concurrent copying of bytes from open files into a target file, and their changes on the way.

Several threads work in constant memory, while more is planned. Checksums: CRC-32 by the fastest
implementation installed, with a rule to combine parts, and SHA-256.
"""

from __future__ import annotations

import os
import threading
import zlib
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING

from ..errors import ModelError, TruncatedError, WriteError
from .platform import cores, pwrite
from .source import ByteSource

PIECE_BYTES = 4 << 20
"""Bytes that one thread copies at a time. Pieces begin at multiples of it in the target: then the system can hold each
chunk in one large page."""
MAX_THREADS = 2
"""Threads with two megabytes between them saturate memory; more of them only wait for the file's lock."""


class ExtentCopy:
    """The copy of one extent to a position of a target, piece by piece, in any order and by any thread.

    Args:
        extent: the bytes, and their change.
        position: of the first byte in the target.
        done: is given the CRC-32 of what was written; `None` if nobody asks for it.
    """

    def __init__(self, extent: Extent, position: int, done: Done) -> None:
        self.extent = extent
        self._position = position
        self._done = done
        self._is_unchanged = extent.change is NO_CHANGE
        # `check` is given the CRC-32 of the source. Without a change it is that of the target, and one is enough.
        self._sums_source = extent.check is not None and not self._is_unchanged
        self._sums_target = done is not None or (extent.check is not None and self._is_unchanged)
        self._crcs: dict[int, tuple[int, int]] = {}
        """By the start of a piece the CRC-32 of its bytes in the source and in the target, if computed."""

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of each piece, in bytes of the source from the beginning of the extent."""
        change = self.extent.change
        length = self.extent.length
        start = 0
        while start < length:
            if self._is_unchanged:
                # Pieces end where the target has a multiple of their size: no two threads write into one page.
                end = start + PIECE_BYTES - (self._position + start) % PIECE_BYTES
            else:
                elements = max(1, PIECE_BYTES // max(change.source_bytes, change.target_bytes))
                end = start + elements * change.source_bytes
            yield start, min(end, length)
            start = end

    @property
    def has_crc(self) -> bool:
        """Whether a CRC-32 of the bytes is computed, as the extent's `check` or `done` is to be given one."""
        return self._sums_source or self._sums_target

    def copied(self, start: int, end: int, buffer: Buffer, name: str) -> Iterator[tuple[int, memoryview]]:
        """Yield what a piece becomes, in parts that are valid until the next, each with its position in the target.

        Args:
            start: of the piece: bytes of the source from the beginning of the extent, as `pieces` yields them.
            end: behind its last byte, likewise; start and end are between elements.
            buffer: of the extent's change; its `view` has whole elements, and without a change `CHUNK_BYTES`.
            name: the target's, for messages.

        Raises:
            TruncatedError: the source has become shorter than it was.
            WriteError: an element cannot be converted to the target's type.
        """
        extent = self.extent
        at = start
        source_crc = 0
        target_crc = 0
        while at < end:
            room = len(buffer.view)
            if self._is_unchanged:
                # Chunks end where the target has a multiple of their size, as pieces do: for large pages, see there.
                # Changed elements fill the whole buffer.
                room = CHUNK_BYTES - (self._position + at) % CHUNK_BYTES
            chunk = buffer.view[: min(room, end - at)]
            if extent.source.read_into(extent.offset + at, chunk) != len(chunk):
                message = "became shorter while it was read"
                raise TruncatedError(message, file=extent.source.name, offset=extent.offset + at)
            if self._sums_source:
                source_crc = crc32(chunk, source_crc)
            try:
                data = buffer.changed(len(chunk))
            except ModelError as error:
                raise unwritable(error, name) from error
            if self._sums_target:
                target_crc = crc32(data, target_crc)
            yield self._position + extent.change.length(at), data
            at += len(chunk)
        self._crcs[start] = source_crc, target_crc

    def finish(self) -> None:
        """Compute the CRC-32 of the whole from those of its pieces, and call `check` and `done`; all are copied now."""
        source_crc = 0
        target_crc = 0
        if self.has_crc:
            for start, end in self.pieces():
                of_source, of_target = self._crcs[start]
                # A CRC-32 of 0, as before the first piece, adds nothing to the next one: `combine` is spared.
                source_crc = combine(source_crc, of_source, end - start) if source_crc else of_source
                length = self.extent.change.length(end - start)
                target_crc = combine(target_crc, of_target, length) if target_crc else of_target
        if self.extent.check is not None:
            # It is given that of the source, which is the target's, and computed only for this, if bytes are unchanged.
            self.extent.check(target_crc if self._is_unchanged else source_crc)
        if self._done is not None:
            self._done(target_crc)


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
        self._copies: list[ExtentCopy] = []
        """All copies that were added: when their pieces are written, their CRC-32 are still to be checked."""
        self._pieces: deque[tuple[ExtentCopy, int, int]] = deque()
        """Pieces not yet started: of which copy, from where, to where."""
        self._error: BaseException | None = None
        """The first error in any thread; from then on no thread begins a piece."""
        self._started = 0
        """Helpers that were started, or were about to be when a signal arrived."""
        self._ended: list[None] = []
        """An item for each helper that has ended: several threads append to it, and could not all count up a number."""
        self._at_work: list[LockType] = []
        """For each helper that may have a piece, the lock that it holds. A helper whose lock is not here yet has not
        begun, and will find nothing to do after an error or when all is done."""

    def add(self, extent: Extent, position: int, done: Done = None) -> None:
        """Begin a copy.

        Args:
            extent: bytes of an open file, which stays open until :meth:`wait`.
            position: of the first byte in the target.
            done: called with the CRC-32 of the written bytes by :meth:`wait`; without it none is computed.
        """
        copy = ExtentCopy(extent, position, done)
        if copy.has_crc and extent.length >= _WORTH_ISAL:
            # Loaded here: a helper would wait for ever for a module that a signal kept the main thread from loading.
            _fast_crc32()
        self._copies.append(copy)
        self._pieces.extend((copy, start, end) for start, end in copy.pieces())
        # One thread is the caller's, which works in `wait`.
        if self._started - len(self._ended) < min(MAX_THREADS, cores()) - 1:
            self._started += 1
            threading.Thread(target=self._help).start()

    def wait(self) -> None:
        """Finish all copies.

        Raises:
            TruncatedError: a source has become shorter.
            WriteError: the target does not take the bytes, or an element cannot be converted to its type.
        """
        try:
            self._work()  # this thread takes pieces, too
        except BaseException as error:  # an interrupt, say: the others must not write into a closed file
            self._error = self._error or error
        self._join()
        # Each is finished once: more may be added, and waited for, afterwards.
        copies = self._copies
        self._copies = []
        if self._error is not None:
            raise self._error
        for copy in copies:
            copy.finish()

    def stop(self) -> None:
        """Cancel pending copies; nothing writes to the target afterwards."""
        self._error = self._error or InterruptedError()  # helpers end at an error; nobody raises this one
        self._join()

    def _join(self) -> None:
        """Wait for all helpers that may have a piece: each holds its lock until it ends."""
        for lock in list(self._at_work):
            with lock:
                pass

    def _help(self) -> None:
        """Work as a helper, in a thread of its own; keep the first error of all threads.

        `_join` waits for a lock that is held meanwhile, not for the thread: a signal may have come before the caller
        knew that it runs.
        """
        lock = allocate_lock()
        with lock:
            self._at_work.append(lock)
            try:
                self._work()
            except BaseException as error:  # `wait` raises it
                self._error = self._error or error
            finally:
                # It writes nothing more: from here on nobody needs to wait for it, and `add` may start another.
                self._at_work.remove(lock)
                self._ended.append(None)  # counts the helpers that have ended

    def _work(self) -> None:
        """Copy pieces until none is left that another thread has not begun, or an error occurs in any thread.

        An error of this thread is raised: its caller puts it into `_error`, at which the other threads end.
        """
        change: Change | None = None
        buffer: Buffer | None = None  # half a megabyte, not made before the first piece: most files have none
        while self._error is None and self._pieces:
            try:
                copy, start, end = self._pieces.popleft()
            except IndexError:  # another thread was faster
                return
            if buffer is None or copy.extent.change is not change:
                change = copy.extent.change
                buffer = change.buffer()
            for position, data in copy.copied(start, end, buffer, self._name):
                write_at(self._target, data, position, self._name)


def unwritable(error: ModelError, name: str) -> WriteError:
    """Return the error for elements that a target cannot hold."""
    return WriteError(error.message, file=name, expected=error.expected, found=error.found, hint=error.hint)


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
    view = memoryview(data)
    written = 0
    try:
        while written < len(view):
            written += pwrite(target, view[written:], position + written)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror}", file=name, offset=position) from error


CHUNK_BYTES = 1 << 19
"""Bytes read before they are written: they stay in the processor's cache."""
WORTH_BYTES = 1 << 20
"""From how many bytes on an extent is left to several threads."""

Done = Callable[[int], None] | None
"""Is given the CRC-32 of bytes when all were copied; `None` where nobody needs it."""
_WORDS = {2: "H", 4: "I", 8: "Q"}
"""The codes of arrays by the bytes of their elements."""


class Buffer:
    """The memory through which bytes go from file to file, as they are.

    Attributes:
        view: where bytes of the source are put, whole elements.
    """

    view: memoryview

    def __init__(self, nbytes: int = CHUNK_BYTES) -> None:
        self.view = memoryview(bytearray(nbytes))

    def changed(self, length: int) -> memoryview:
        """Return the bytes for the target that the first `length` bytes of the view become; here they stay the same.

        They are valid until the view gets other bytes.
        """
        return self.view[:length]


class _ReversingBuffer(Buffer):
    """A buffer that reverses the bytes of each word.

    The standard library's arrays do that as fast as numpy, which takes longer to load than 200 MB to copy.

    Args:
        word: bytes of a word: 2, 4 or 8.
    """

    def __init__(self, word: int) -> None:
        from array import array

        self._array = array(_WORDS[word], bytes(CHUNK_BYTES // word * word))
        self.view = memoryview(self._array).cast("B")

    def changed(self, length: int) -> memoryview:
        """Return the first `length` bytes of the view with each word reversed.

        The words of the whole buffer are, those behind in vain: arrays reverse all or none.
        """
        self._array.byteswap()
        return self.view[:length]


class Change:
    """A change of elements on their way from file to file.

    Attributes:
        source_bytes: bytes of one element in the source.
        target_bytes: bytes of it in the target.
        buffer: makes the memory in which it is carried out, for one thread. `changed` of it may raise a ModelError,
            for what the target cannot hold.
    """

    def __init__(self, source_bytes: int, target_bytes: int, buffer: Callable[[], Buffer]) -> None:
        self.source_bytes = source_bytes
        self.target_bytes = target_bytes
        self.buffer = buffer

    def length(self, length: int) -> int:
        """Return the number of bytes in the target that so many bytes of the source become."""
        return length // self.source_bytes * self.target_bytes


NO_CHANGE = Change(source_bytes=1, target_bytes=1, buffer=Buffer)


@cache
def reversal(word: int) -> Change:
    """Return the change that reverses the bytes of each word of 2, 4 or 8 bytes: one object for each size."""
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


if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["combine", "crc32", "digest", "sha256"]

_WORTH_ISAL = 1 << 16
"""Bytes from which isal, three times as fast as zlib, is worth loading it: most files have no storage of that size."""
_POLYNOMIAL = 0xEDB88320
"""The polynomial of CRC-32 (ISO 3309), lowest power first."""


def crc32(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """Return the CRC-32 of bytes that follow others, whose CRC-32 is `value`."""
    return zlib.crc32(data, value) if len(data) < _WORTH_ISAL else _fast_crc32()(data, value)


@cache
def _fast_crc32() -> Callable[[bytes | bytearray | memoryview, int], int]:
    """Return the fastest implementation on this platform; all have the same results."""
    try:
        from isal.isal_zlib import crc32
    except ImportError:  # no wheel for this platform
        return zlib.crc32
    return crc32


def combine(first: int, second: int, length: int) -> int:
    """Return the CRC-32 of two consecutive runs of bytes from those of each.

    Args:
        first: CRC-32 of the first run.
        second: CRC-32 of the second.
        length: bytes of the second.
    """
    return _product(_shift(length), first) ^ second


def _product(first: int, second: int) -> int:
    """Return the product of two polynomials over GF(2), modulo that of CRC-32; as numbers, whose bits are coefficients.

    Args:
        first: one of them.
        second: the other; as for numbers, the order makes no difference.
    """
    # Bits are reversed: the highest is the coefficient of 1. `second` is multiplied by x from step to step, and added
    # for each power of x that `first` has.
    product = 0
    bit = 1 << 31
    while bit:
        if first & bit:
            product ^= second
        second = (second >> 1) ^ (_POLYNOMIAL if second & 1 else 0)
        bit >>= 1
    return product


@cache
def _shift(length: int) -> int:
    """Return x to the power of 8 times `length`, by which a CRC-32 is multiplied when so many bytes follow."""
    # By squaring. Bits are reversed, as in `_product`: the highest is that of 1, the next that of x.
    power = 1 << 31  # 1
    square = 1 << 23  # x to the eighth: a byte
    while length:
        if length & 1:
            power = _product(square, power)
        square = _product(square, square)
        length >>= 1
    return power


def sha256(data: bytes | memoryview = b"") -> _Hash:
    """Return a SHA-256 of `data` that can be updated."""
    import hashlib  # here, as loading it takes longer than converting most files

    return hashlib.sha256(data)


def digest(path: str | os.PathLike[str] | ByteSource) -> tuple[str, int]:
    """Return SHA-256 in hexadecimal and size in bytes of a file.

    Of a folder, they are the SHA-256 of the names and checksums of all that is in it, in the order of the names, and
    the size of all its files together.

    Args:
        path: of the file or folder, or a source of bytes, which is read from its first byte.

    Raises:
        OSError: it cannot be read.
    """
    checksum = sha256()
    size = 0
    if isinstance(path, ByteSource):
        while piece := path.read(size, 1 << 20):
            checksum.update(piece)
            size += len(piece)
        return checksum.hexdigest(), size
    if os.path.isdir(path):
        for name in sorted(os.listdir(path)):
            inner, count = digest(os.path.join(path, name))
            checksum.update(f"{name}\0{inner}\n".encode("utf-8", "surrogateescape"))
            size += count
        return checksum.hexdigest(), size
    with open(path, "rb", buffering=0) as file:
        # A small first piece: most files are small, and a large buffer would be allocated each time.
        while piece := file.read(1 << 20 if size else 1 << 16):
            checksum.update(piece)
            size += len(piece)
    return checksum.hexdigest(), size
