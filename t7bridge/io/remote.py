"""A file at an address, read by ranges."""

from __future__ import annotations

import tempfile
import threading
import weakref
from _thread import allocate_lock
from collections import OrderedDict
from concurrent.futures import Future
from typing import Any

from ..errors import T7BridgeError
from .addresses import CHECK, MOST_BYTES, Copy, NoRangesError, errors_of, server_of

_BLOCK_BYTES = 1 << 14
_MOST_BLOCKS = MOST_BYTES // _BLOCK_BYTES
"""Blocks that one request asks for at most."""
_KEPT_BLOCKS = 1 << 10
"""Blocks that are kept: 16 MiB."""
_MOST_KEPT_BLOCKS = 1 << 14
"""Blocks that are kept of a file that is read whole: 256 MiB. In a larger one a reader goes from header to header."""
_MOST_RUNS = 8
_NEAR_BLOCKS = 16
"""So many blocks are fetched with those behind them rather than left out: 256 KiB take no longer than a request."""
_AHEAD = 2
"""Ranges that are under way while an earlier one is used."""


class Remote:
    """A file at an address, read by ranges through a bounded cache of blocks.

    The first request asks for the first MiB, which is all of a small file. A read elsewhere asks for the blocks that
    it needs; reads in order ask for ever more at once, as each request takes a round trip, and then for two ranges
    ahead. Files of servers without ranges, and members of archives, are copied first.

    That the file is the same all the time is checked by each answer, where these tell, and by one request at the end:
    by `check` if `deferred` is set, else after each range.

    Attributes:
        name: the address.
        size: in bytes.
        deferred: whether `check` will be called before what was read is used.

    Raises:
        MissingFileError: there is no such file.
        UnsupportedError: a library is not installed, or the address is that of a folder.
        T7BridgeError: it cannot be read.
    """

    def __init__(self, name: str, deferred: bool = False) -> None:
        self.name = name
        self.deferred = deferred
        self._lock = allocate_lock()
        self._server = server_of(name)
        self._blocks = _Blocks()
        self._runs: OrderedDict[int, int] = OrderedDict()
        """For each run of requests in order, the block that comes next, the count of blocks of the last."""
        self._requests: OrderedDict[int, tuple[int, Future[bytes]]] = OrderedDict()
        """By the first block of a range that is under way, or not needed yet: the block behind it, and its bytes."""
        self._reads_all = False
        self._is_closed = False
        self._copy: Copy | None = None
        self._is_unchecked = not self._server.vouches
        with errors_of(name, "read", hint=CHECK):
            first = self._server.begin()
            self.size = self._server.size or 0
            if isinstance(first, bytes):
                self._blocks.put(0, first)
                self._runs[len(first) // _BLOCK_BYTES] = len(first) // _BLOCK_BYTES
            else:
                self._use(first)
            self._check_range()

    def read_all(self) -> None:
        """Expect that all of the file will be read: ask for large ranges from now on, and keep them."""
        with self._lock:
            if self.size <= _MOST_KEPT_BLOCKS * _BLOCK_BYTES:
                self._reads_all = True
                self._blocks.most = _MOST_KEPT_BLOCKS

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset`; return the number of bytes, fewer than its length only at the end.

        Raises:
            T7BridgeError: the file cannot be read, or has changed.
        """
        length = min(len(buffer), self.size - offset)
        filled = 0
        with self._lock:
            while filled < length:
                if self._copy is not None:
                    return self._read_copy(offset, buffer[:length])
                place = offset + filled
                count = self._blocks.read_into(place, buffer[filled:length])
                if not count:
                    number, start = divmod(place, _BLOCK_BYTES)
                    self._fetch(number, -(-(start + length - filled) // _BLOCK_BYTES))  # rounded up
                filled += count
        return filled

    def check(self) -> None:
        """Check that the file is still the one that was opened, if anything was read since that was checked.

        Raises:
            T7BridgeError: it is not.
        """
        with self._lock:
            if self._is_unchecked:
                with errors_of(self.name, "read", hint=CHECK):
                    self._server.check()
                self._is_unchecked = False

    def close(self) -> None:
        """Close the file."""
        self._is_closed = True
        self._server.close()
        self._requests.clear()
        self._blocks.close()
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def _check_range(self) -> None:
        """Check the file after a request, unless that is done at the end."""
        if self._server.vouches:
            return
        self._is_unchecked = True
        if not self.deferred:
            self._server.check()
            self._is_unchecked = False

    def _use(self, copy: Copy) -> None:
        """Read from a copy of the whole from now on."""
        self._copy = copy
        weakref.finalize(self, copy.close)
        self.size = copy.seek(0, 2) or copy.tell()  # `seek` of Python 3.10 returns nothing
        self._requests.clear()
        self._blocks.close()

    def _read_copy(self, offset: int, buffer: memoryview) -> int:
        copy: Any = self._copy
        copy.seek(offset)
        data = copy.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _fetch(self, number: int, needed: int) -> None:
        """Ask for a block, and for others that will be needed, and keep them.

        Args:
            number: of the block.
            needed: number of blocks that will be asked for, this one first.

        Raises:
            T7BridgeError: the file cannot be read, or has changed.
        """
        if self._is_closed:
            raise T7BridgeError("has been closed", file=self.name, offset=number * _BLOCK_BYTES)
        first = self._request_with(number)
        if first is None:
            while len(self._requests) >= _AHEAD:  # of what was asked for ahead, and not used
                self._requests.popitem(last=False)
            first = self._start(number)
            self._request(first, self._count(number, needed))
        self._ask_ahead()
        _, answer = self._requests.pop(first)
        with errors_of(self.name, "read", hint=CHECK):
            try:
                self._blocks.put(first, answer.result())
            except NoRangesError:
                self._use(self._server.copy())
            else:
                self._ask_ahead()
            self._check_range()

    def _request_with(self, number: int) -> int | None:
        """Return the first block of the request that asks for a block; `None` if there is none."""
        for first, (end, _) in self._requests.items():
            if first <= number < end:
                return first
        return None

    def _start(self, number: int) -> int:
        """Return the first block to ask for, to have one: that itself, or where all are read, the first missing one."""
        if self._reads_all:
            least = max(0, number + 1 - _MOST_BLOCKS)
            while number > least and number - 1 not in self._blocks and self._request_with(number - 1) is None:
                number -= 1
        return number

    def _count(self, number: int, needed: int) -> int:
        """Return how many blocks to ask for from one on."""
        if self._reads_all:
            return _MOST_BLOCKS
        # Requests in order become twice as long each time. Between them are blocks that are there already, or are
        # left out.
        last_count = 0
        for expected in [expected for expected in self._runs if 0 <= number - expected <= _NEAR_BLOCKS]:
            last_count = max(last_count, self._runs.pop(expected))
        return min(max(needed, 2 * last_count), _MOST_BLOCKS)

    def _request(self, number: int, count: int) -> None:
        """Ask for blocks, in a thread of its own."""
        end = min(number + count, -(-self.size // _BLOCK_BYTES))
        self._runs[end] = count
        if len(self._runs) > _MOST_RUNS:
            self._runs.popitem(last=False)
        server = self._server
        answer: Future[bytes] = Future()

        def ask() -> None:
            try:
                answer.set_result(server.fetch(number * _BLOCK_BYTES, min(end * _BLOCK_BYTES, self.size)))
            except BaseException as error:
                answer.set_exception(error)

        self._requests[number] = end, answer
        # A thread that nobody waits for when the program ends, whatever the server does.
        threading.Thread(target=ask, daemon=True).start()

    def _ask_ahead(self) -> None:
        """Ask for what follows the last range, if that was one of the longest."""
        while len(self._requests) < _AHEAD:
            number, count = next(reversed(self._runs.items()))
            if count < _MOST_BLOCKS:
                return
            while number in self._blocks:
                number += 1
            if number * _BLOCK_BYTES >= self.size:
                return
            self._runs.popitem()
            self._request(number, _MOST_BLOCKS)


class _Blocks:
    """Blocks of a file, of which the oldest give way to new ones: in memory, or many in a temporary file.

    Attributes:
        most: blocks that are kept.
    """

    def __init__(self) -> None:
        self.most = _KEPT_BLOCKS
        self._file: Any = tempfile.SpooledTemporaryFile(_KEPT_BLOCKS * _BLOCK_BYTES)  # noqa: SIM115  closed below
        weakref.finalize(self, self._file.close)
        self._slots: dict[int, int] = {}
        """The place in the temporary file of each block, in blocks."""
        self._numbers: dict[int, int] = {}
        """The block at each place."""
        self._next = 0

    def __contains__(self, number: int) -> bool:
        return number in self._slots

    def put(self, number: int, data: bytes) -> None:
        """Keep blocks that follow each other, the last of which may be shorter."""
        for start in range(0, len(data), _BLOCK_BYTES):
            if number not in self._slots:
                slot = self._next
                self._next = (slot + 1) % self.most
                if slot in self._numbers:
                    del self._slots[self._numbers[slot]]
                self._numbers[slot] = number
                self._slots[number] = slot
                self._file.seek(slot * _BLOCK_BYTES)
                self._file.write(data[start : start + _BLOCK_BYTES])
            number += 1

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill the beginning of `buffer` from one block; return the number of bytes, 0 if the block is not there."""
        number, start = divmod(offset, _BLOCK_BYTES)
        slot = self._slots.get(number)
        if slot is None:
            return 0
        self._file.seek(slot * _BLOCK_BYTES + start)
        data = self._file.read(min(len(buffer), _BLOCK_BYTES - start))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Forget all blocks."""
        self._slots.clear()
        self._numbers.clear()
        self._file.close()
