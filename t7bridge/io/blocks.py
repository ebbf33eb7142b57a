"""Preallocation of disk blocks for bytes about to be written, where the file system supports it."""

from __future__ import annotations

import os

CAN_RESERVE = hasattr(os, "posix_fallocate") and hasattr(os, "SEEK_DATA")

_PROBE_BYTES = 1 << 16


class Blocks:
    """The blocks of a growing file.

    Writing to allocated blocks is faster.

    Args:
        file: its descriptor.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._end = 0
        self._works = CAN_RESERVE

    def reserve(self, position: int, size: int) -> None:
        """Allocate blocks beyond those allocated so far.

        Args:
            position: of the first, 0-based.
            size: number of bytes.
        """
        if not self._works or position + size <= self._end:
            return
        try:
            if not self._end:
                self._works = self._probe(position, min(size, _PROBE_BYTES))
            if self._works:
                os.posix_fallocate(self._file, position, size)
        except OSError:  # no space, or not supported: writing will report it
            self._works = False
        self._end = position + size

    def _probe(self, position: int, size: int) -> bool:
        """Return whether blocks are reserved and not written. glibc writes a byte to each where a file system cannot,
        which takes longer than all the rest; those bytes are data, and blocks that are only reserved are not."""
        os.posix_fallocate(self._file, position, size)
        here = os.lseek(self._file, 0, os.SEEK_CUR)
        try:
            os.lseek(self._file, position + size - 1, os.SEEK_DATA)
        except OSError:  # ENXIO: no data from there on
            return True
        os.lseek(self._file, here, os.SEEK_SET)
        return False
