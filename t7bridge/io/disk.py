"""Names of incomplete outputs, fsync of complete ones, and preallocation of disk blocks where it is supported."""

from __future__ import annotations

import os
import re
import sys


def temporary_name() -> str:
    """Return a new name for an output that is not complete."""
    return f".t7bridge-{os.urandom(8).hex()}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether a file's name is a temporary one."""
    return re.fullmatch(r"\.t7bridge-[0-9a-f]{16}\.tmp", name) is not None


def flush_to_disk(path: str) -> None:
    """Wait until a file, or the files of a folder, and their names are on the disk.

    Raises:
        OSError: the disk reports an error.
    """
    inside = [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else []
    for name in (*inside, path, os.path.dirname(path) or os.curdir):
        flush(name)


def flush_file_system(folder: str) -> bool:
    """Sync a folder's file system: for many files far cheaper than syncing each.

    Returns:
        Whether the system supports it. Linux does, by `syncfs`, which unlike `sync` leaves other disks alone and
        reports write errors (man 2 syncfs).

    Raises:
        OSError: something could not be written, or the folder does not exist.
    """
    if sys.platform != "linux":
        return False
    import ctypes  # not in os

    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "syncfs"):
        return False
    fd = os.open(folder, os.O_RDONLY)
    try:
        if library.syncfs(fd):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), folder)
    finally:
        os.close(fd)
    return True


def flush(path: str) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk.

    Raises:
        OSError: the disk reports an error.
    """
    if os.path.isdir(path) and os.name == "nt":
        return  # there, folders cannot be opened, and names are written with the files
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
