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
from .addresses import ADDRESS_HINT, MOST_BYTES, Copy, NoRangesError, errors_of, server_of

_BLOCK_BYTES = 1 << 14
"""Bytes of a block, the unit of requests and of the cache; blocks are numbered from 0."""
_MOST_BLOCKS = MOST_BYTES // _BLOCK_BYTES
"""Blocks that one request asks for at most."""
_KEPT_BLOCKS = 1 << 10
"""Blocks that are kept: 16 MiB."""
_MOST_KEPT_BLOCKS = 1 << 14
"""Blocks that are kept of a file that is read whole: 256 MiB. In a larger one a reader goes from header to header."""
_MOST_RUNS = 8
"""Runs of requests in order that are remembered: readers go through several parts of a file in turn."""
_NEAR_BLOCKS = 16
"""Blocks between two requests up to which both are of one run: 256 KiB take no longer than another request."""
_AHEAD = 2
"""Ranges that are under way while an earlier one is used."""


class Remote:
    """A file at an address, read by ranges through a bounded cache of blocks.

    The first request asks for the first MiB, which is all of a small file. A read elsewhere asks for the blocks that
    it needs; reads in order ask for ever more at once, as each request takes a round trip, and then for two ranges
    ahead. Files of servers without ranges, and members of archives, are copied first.

    Each answer has to be about the same file, where answers tell. One more request checks it at the end: in `check`, if
    `is_checked_later` is set, else after each range.

    Attributes:
        name: the address.
        size: in bytes.
        is_checked_later: whether `check` will be called before what was read is used.

    Raises:
        MissingFileError: there is no such file.
        UnsupportedError: a library is not installed, or the address is that of a folder.
        T7BridgeError: it cannot be read.
    """

    def __init__(self, name: str, is_checked_later: bool = False) -> None:
        self.name = name
        self.is_checked_later = is_checked_later
        self._lock = allocate_lock()
        self._server = server_of(name)
        self._blocks = _Blocks()
        self._runs: OrderedDict[int, int] = OrderedDict()
        """Runs, each of requests in order as a reader goes forward: by the block at which it would go on, the count of
        blocks that its last request asked for."""
        self._requests: OrderedDict[int, tuple[int, Future[bytes]]] = OrderedDict()
        """Ranges that are under way, or not needed yet: by the first block, the block behind it, and the answer."""
        self._reads_all = False
        """Whether `read_all` was called for a file that can be kept."""
        self._is_closed = False
        self._copy: Copy | None = None
        """A copy of the whole file, once that is what is read."""
        self._is_unchecked = not self._server.refuses_other_versions
        """Whether something was read since the server was last asked whether the file is the same."""
        with errors_of(name, "read", hint=ADDRESS_HINT):
            self._begin()

    def _begin(self) -> None:
        """Ask for the first blocks, or the whole where there are no ranges, and set the size."""
        bytes_or_copy = self._server.begin()
        self.size = self._server.size or 0
        if isinstance(bytes_or_copy, bytes):
            self._blocks.put(0, bytes_or_copy)
            count = len(bytes_or_copy) // _BLOCK_BYTES
            self._runs[count] = count  # a run that a request for the next block continues
        else:
            self._read_from_copy(bytes_or_copy)
        self._check_after_request()

    def read_all(self) -> None:
        """Expect that all of the file will be read: ask for large ranges from now on, and keep them.

        It changes nothing for a file that is too large to be kept.
        """
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
                if self._copy is not None:  # since the beginning, or since the last request
                    return self._read_copy(offset, buffer[:length])
                position = offset + filled
                count = self._blocks.read_into(position, buffer[filled:length])
                if not count:
                    number, start = divmod(position, _BLOCK_BYTES)
                    self._fetch(number, _blocks_of(start + length - filled))
                filled += count
        return filled

    def check(self) -> None:
        """Check that the file is still the one that was opened, if anything was read since that was checked.

        Raises:
            T7BridgeError: the file has changed.
        """
        with self._lock:
            if self._is_unchecked:
                with errors_of(self.name, "read", hint=ADDRESS_HINT):
                    self._server.check()
                self._is_unchecked = False

    def close(self) -> None:
        """Close the file, and forget its blocks; answers that are under way are dropped when they come."""
        self._is_closed = True
        self._server.close()
        self._requests.clear()
        self._blocks.close()
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def _check_after_request(self) -> None:
        """Check that the file is still the same after a request, unless `check` will be called after all of them.

        Raises:
            T7BridgeError: the file has changed.
        """
        if self._server.refuses_other_versions:  # the answer was one about the same file, or an error
            return
        self._is_unchecked = True
        if not self.is_checked_later:
            self._server.check()
            self._is_unchecked = False

    def _read_from_copy(self, copy: Copy) -> None:
        """Read from a copy of the whole file from now on, which this object closes."""
        self._copy = copy
        weakref.finalize(self, copy.close)
        self.size = copy.seek(0, 2) or copy.tell()  # `seek` of Python 3.10 returns nothing
        self._requests.clear()
        self._blocks.close()

    def _read_copy(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from the copy; return the number of bytes, fewer than its length only at the end."""
        copy: Any = self._copy
        copy.seek(offset)
        data = copy.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _fetch(self, number: int, needed: int) -> None:
        """Get a block into the cache, with others that will be needed, or a copy of the whole; wait for the answer.

        Called with the lock, as all that changes requests, runs and blocks.

        Args:
            number: of the block.
            needed: count of blocks that are needed at least, this one first.

        Raises:
            T7BridgeError: the file cannot be read, or has changed.
        """
        if self._is_closed:
            raise T7BridgeError("has been closed", file=self.name, offset=number * _BLOCK_BYTES)
        first = self._request_with(number)  # the first block of that request, which may be another block
        if first is None:
            # The oldest ones that were asked for ahead were not used: their answers are dropped.
            while len(self._requests) >= _AHEAD:
                self._requests.popitem(last=False)
            first = self._first_to_request(number)
            self._request(first, self._count_to_request(number, needed))
        # Before and after this answer is waited for, so that the connection is never idle.
        self._request_ahead()
        _end, answer = self._requests.pop(first)
        with errors_of(self.name, "read", hint=ADDRESS_HINT):
            try:
                self._blocks.put(first, answer.result())
            except NoRangesError:
                self._read_from_copy(self._server.copy())
            else:
                self._request_ahead()
            self._check_after_request()

    def _request_with(self, number: int) -> int | None:
        """Return the first block of the request under way that asks for a block; `None` if none does."""
        for first, (end, _) in self._requests.items():
            if first <= number < end:
                return first
        return None

    def _first_to_request(self, number: int) -> int:
        """Return the first block of a request that is to have the block with a number.

        That is the block itself. Of a file that is read whole, the blocks before it that are missing will be needed,
        too: the request begins with them, as far back as it can.
        """
        first = number
        if self._reads_all:
            least = max(0, number + 1 - _MOST_BLOCKS)
            while first > least and first - 1 not in self._blocks and self._request_with(first - 1) is None:
                first -= 1
        return first

    def _count_to_request(self, number: int, needed: int) -> int:
        """Return how many blocks to ask for, and forget the runs that the request continues.

        Args:
            number: of the first block that is needed.
            needed: count of blocks that are needed.
        """
        if self._reads_all:
            return _MOST_BLOCKS
        # Requests in order become twice as long each time, as each takes a round trip. The blocks between two are in
        # the cache already, or are not needed.
        continued = [next_block for next_block in self._runs if 0 <= number - next_block <= _NEAR_BLOCKS]
        last_count = 0
        for next_block in continued:
            last_count = max(last_count, self._runs.pop(next_block))
        return min(max(needed, 2 * last_count), _MOST_BLOCKS)

    def _request(self, number: int, count: int) -> None:
        """Ask for blocks, in a thread of its own; the answer is in `_requests`.

        The reader may go on behind these blocks: `_runs` has that, for the length of the next request. Of too many runs
        the oldest is forgotten: see `_MOST_RUNS`.

        Args:
            number: of the first block.
            count: of blocks; those behind the end of the file are not asked for.
        """
        end = min(number + count, _blocks_of(self.size))
        self._runs[end] = count
        self._runs.move_to_end(end)  # a run to the end of the file may have been there before
        if len(self._runs) > _MOST_RUNS:
            self._runs.popitem(last=False)
        server = self._server
        answer: Future[bytes] = Future()

        def ask() -> None:
            """Put the bytes of the range, or the error, into `answer`."""
            try:
                answer.set_result(server.fetch(number * _BLOCK_BYTES, min(end * _BLOCK_BYTES, self.size)))
            except BaseException as error:
                answer.set_exception(error)

        self._requests[number] = end, answer
        # A thread that nobody waits for when the program ends, whatever the server does.
        threading.Thread(target=ask, daemon=True).start()

    def _request_ahead(self) -> None:
        """Ask for what follows the last range, if that was one of the longest: then all is read in order, it seems.

        Nothing is asked for if as many ranges are under way as there may be, nor behind the end of the file.
        """
        while len(self._requests) < _AHEAD:
            # Of the last run the block that comes next, and how many its last request asked for.
            number, count = next(reversed(self._runs.items()))
            if count < _MOST_BLOCKS:
                return
            while number in self._blocks:
                number += 1
            if number * _BLOCK_BYTES >= self.size:
                return
            self._runs.popitem()  # which the request continues
            self._request(number, _MOST_BLOCKS)


def _blocks_of(size: int) -> int:
    """Return the number of blocks that hold some bytes; the last one may be shorter."""
    return -(-size // _BLOCK_BYTES)  # rounded up


class _Blocks:
    """A cache of blocks of a file, of which the oldest give way to new ones: in memory, or many in a temporary file.

    Attributes:
        most: blocks that are kept.
    """

    def __init__(self) -> None:
        self.most = _KEPT_BLOCKS
        self._file: Any = tempfile.SpooledTemporaryFile(_KEPT_BLOCKS * _BLOCK_BYTES)  # noqa: SIM115  closed below
        weakref.finalize(self, self._file.close)
        self._slots: dict[int, int] = {}
        """The place in the temporary file of each block, in blocks."""
        self._number_in_slot: dict[int, int] = {}
        """The block at each place."""
        self._next_slot = 0
        """The place of the next block: behind the last one comes the first again."""

    def __contains__(self, number: int) -> bool:
        """Return whether a block is in the cache."""
        return number in self._slots

    def put(self, number: int, data: bytes) -> None:
        """Keep blocks that follow each other; the last one of a file may be shorter.

        Args:
            number: of the first block.
            data: their bytes.
        """
        for start in range(0, len(data), _BLOCK_BYTES):
            if number not in self._slots:
                slot = self._next_slot
                self._next_slot = (slot + 1) % self.most
                if slot in self._number_in_slot:  # the oldest block is there
                    del self._slots[self._number_in_slot[slot]]
                self._number_in_slot[slot] = number
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
        self._number_in_slot.clear()
        self._file.close()
