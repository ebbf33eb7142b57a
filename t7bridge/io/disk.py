"""Names of incomplete outputs, and fsync of complete ones."""

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
