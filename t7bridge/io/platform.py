"""The calls of the operating system that not every platform has, each with a portable replacement.

POSIX reads and writes at a position; elsewhere one lock makes of seeking and reading one step. Everything else that
exists on some systems only is a no-op on the others.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import signal
import stat
import sys
import time
from _thread import allocate_lock
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..data import pattern
from ..errors import UnsupportedError

if TYPE_CHECKING:
    import subprocess

IS_WINDOWS = os.name == "nt"
MAY_HAVE_SYNCFS = sys.platform == "linux"
CLOSED_PIPE = errno.EINVAL if IS_WINDOWS else errno.EPIPE
"""`errno` of writing to a pipe that nobody reads any more."""
BINARY = getattr(os, "O_BINARY", 0)
READING = os.O_RDONLY | BINARY | getattr(os, "O_NONBLOCK", 0)
"""Flags for opening a file to read it. Without O_NONBLOCK, opening a named pipe would wait for a writer."""
STOPPING = frozenset(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name))
"""Signals that ask a process to end. On Windows SIGBREAK is what a closed window sends."""
ALONE: dict[str, Any] = {"creationflags": 0x200} if IS_WINDOWS else {"start_new_session": True}
"""Arguments of `Popen` for a process that Ctrl-C does not reach; 0x200 is CREATE_NEW_PROCESS_GROUP."""
# The second tells whether reserving does what it should, see `io.output.Blocks`.
CAN_RESERVE = hasattr(os, "posix_fallocate") and hasattr(os, "SEEK_DATA")

_seeking = allocate_lock()
"""Held while the position of any file is moved, where a system can read only there."""


@contextlib.contextmanager
def _at(fd: int, position: int) -> Iterator[None]:
    """Move the position of an open file for the block, and back: a duplicate of the descriptor may share it.

    Args:
        fd: its descriptor.
        position: in bytes, 0-based.
    """
    with _seeking:
        before = os.lseek(fd, 0, os.SEEK_CUR)
        try:
            os.lseek(fd, position, os.SEEK_SET)
            yield
        finally:
            os.lseek(fd, before, os.SEEK_SET)


def name_fault(name: str) -> str:
    """Return why no file can have a name, as no system call takes it; empty for one that a file can have."""
    if "\0" in name:
        return "its name holds a NUL character"
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # a lone surrogate, say
        return f"its name holds a character that {sys.getfilesystemencoding()} lacks"
    return ""


def link(file: str, name: str) -> None:
    """Give a file another name besides its own (a hard link).

    Raises:
        FileExistsError: the name is taken.
        OSError: the file system, or Python in a browser, has no links.
    """
    if not hasattr(os, "link"):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    os.link(file, name)


def pread(fd: int, length: int, position: int) -> bytes:
    """Return up to `length` bytes at a position of an open file, whose own position stays."""
    if hasattr(os, "pread"):
        return os.pread(fd, length, position)
    with _at(fd, position):
        return os.read(fd, length)


def pread_into(fd: int, buffer: memoryview, position: int) -> int:
    """Read bytes at a position of an open file into memory; return their number."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [buffer], position)
    data = pread(fd, len(buffer), position)
    buffer[: len(data)] = data
    return len(data)


def pwrite(fd: int, data: memoryview, position: int) -> int:
    """Write bytes at a position of an open file, whose own position stays; return the number of those written."""
    if hasattr(os, "pwrite"):
        return os.pwrite(fd, data, position)
    with _at(fd, position):
        return os.write(fd, data)


def flush(path: str) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk.

    Raises:
        OSError: the disk reports an error.
    """
    if IS_WINDOWS and os.path.isdir(path):
        return  # there, folders cannot be opened, and names are written with the files
    # On Windows, only who may write may flush; elsewhere, a file without permission to write is flushed too.
    mode = os.O_RDWR | BINARY if IS_WINDOWS else os.O_RDONLY
    fd = os.open(path, mode)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def flush_file_system(folder: str) -> bool:
    """Sync a folder's file system: for many files far cheaper than syncing each.

    Returns:
        Whether the system supports it. Linux does, by `syncfs`, which unlike `sync` leaves other disks alone and
        reports write errors (man 2 syncfs).

    Raises:
        OSError: something could not be written, or the folder does not exist.
    """
    if not MAY_HAVE_SYNCFS:
        return False
    import ctypes  # not in os

    library = ctypes.CDLL(None, use_errno=True)  # the C library that this process has loaded
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


def copy_owner(fd: int, replaced: os.stat_result) -> int:
    """Copy owner and group of the file to be replaced to the new one, where the system allows it.

    Args:
        fd: descriptor of the new file.
        replaced: the status of the other.

    Returns:
        The mode for the new file: that of the other, without setuid and setgid if owner or group differ.
    """
    mode = stat.S_IMODE(replaced.st_mode)
    own = os.fstat(fd)
    if (own.st_uid, own.st_gid) != (replaced.st_uid, replaced.st_gid):
        try:
            os.fchown(fd, replaced.st_uid, replaced.st_gid)
        except (OSError, AttributeError):  # not the superuser; Windows
            # A program must not run with the rights of another owner than the one who gave it these bits.
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
    return mode


def kill(process: subprocess.Popen[bytes]) -> None:
    """End another process at once, by a signal that it cannot handle where the system has one."""
    if hasattr(signal, "SIGKILL"):
        process.kill()
    else:
        process.terminate()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def memory_limit(allowed: int | None) -> Iterator[None]:
    """Limit what this process allocates in the block, beyond what it has, where the system supports it.

    Args:
        allowed: bytes that may be allocated; `None` for no limit.

    On Linux that is `RLIMIT_DATA`, which counts allocations and not mapped files; elsewhere `RLIMIT_AS`, which counts
    both.
    """
    if allowed is None or IS_WINDOWS:
        yield
        return
    resource = import_module("resource")
    kind, used = _memory_limit_and_use(resource)
    soft, hard = resource.getrlimit(kind)
    limit = used + allowed
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(kind, (limit, hard))  # the soft limit only, which can be raised again
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def _memory_limit_and_use(resource: Any) -> tuple[int, int]:
    """Return which limit of memory is used, see `memory_limit`, and the bytes that count towards it already.

    Elsewhere than on Linux the bytes are 0, as nothing tells them.

    Args:
        resource: the module of the standard library, which Windows does not have.
    """
    try:
        return resource.RLIMIT_DATA, _allocated("self")
    except OSError:  # not Linux
        return resource.RLIMIT_AS, 0


def confine(memory: int) -> None:
    """Take from this process for good what reading a hostile file does not need, where the system can.

    It can open no file, grow none, leave no image of its memory, and allocate no more than so many bytes beyond those
    that it has (see `memory_limit`), or fewer if its parent's limit is lower.

    Args:
        memory: bytes that it may allocate.
    """
    if IS_WINDOWS:
        return
    resource = import_module("resource")
    kind_of_memory, used = _memory_limit_and_use(resource)
    limits = {
        kind_of_memory: used + memory,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: 0,
    }
    for kind, limit in limits.items():
        soft_and_hard = resource.getrlimit(kind)
        for present in soft_and_hard:
            if present != resource.RLIM_INFINITY:
                limit = min(limit, present)
        with contextlib.suppress(OSError, ValueError):  # macOS refuses some
            resource.setrlimit(kind, (limit, limit))  # the hard limit, too: it cannot be raised again


def limit_processor_time(seconds: int) -> None:
    """Have the system, if it can, end this process when it has used so many more seconds of the processor."""
    if IS_WINDOWS:
        return
    resource = import_module("resource")
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = math.ceil(time.process_time()) + seconds
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))


def _allocated(process: int | str) -> int:
    """Return the bytes of memory that a process has allocated, as Linux counts them for `RLIMIT_DATA`.

    Args:
        process: its id; `self` for this one.

    Raises:
        OSError: the process has ended, or this is not Linux.
    """
    with open(f"/proc/{process}/statm", "rb") as file:
        # The sixth number is that of pages of data and stack (man 5 proc).
        _, _, _, _, _, pages, *_ = file.read().split()
    return int(pages) * int(import_module("resource").getpagesize())


class MemoryWatch:
    """Watches a process with a `memory_limit`, and raises the limit where the process hangs at it; on Linux only.

    CPython 3.11 and later allocate a number while they unwind the stack (ceval.c, `exception_unwind`). If there is no
    memory for it, they try again for ever, and handle no signals. With a little more memory, `MemoryError` is raised.

    Args:
        pid: of the process.
    """

    _FULL_BYTES = 2 << 20
    """Most bytes left to a process at its limit: two arenas of CPython's allocator."""
    _STUCK_SECONDS = 2.0
    """Seconds without a change after which it is taken to be stuck."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._bytes_left: int | None = None
        """Bytes that the process could still allocate when it was looked at last; `None` without a limit."""
        self._changed_at = 0.0
        """When it had room last, or another number of bytes left than before, on the clock of `time.monotonic`."""

    def raise_limit_if_stuck(self) -> None:
        """Look at the process, and raise its limit if it is stuck; to be called often. It may have ended."""
        with contextlib.suppress(ImportError, OSError, ValueError):
            used = _allocated(self._pid)
            resource = import_module("resource")
            allowed, hard = resource.prlimit(self._pid, resource.RLIMIT_DATA)
            left_before = self._bytes_left
            self._bytes_left = None if allowed == resource.RLIM_INFINITY else allowed - used
            has_room = self._bytes_left is None or self._bytes_left > self._FULL_BYTES
            if has_room or self._bytes_left != left_before:
                self._changed_at = time.monotonic()
            elif time.monotonic() - self._changed_at > self._STUCK_SECONDS:
                resource.prlimit(self._pid, resource.RLIMIT_DATA, (allowed + 2 * self._FULL_BYTES, hard))


def bytes_written() -> int | None:
    """Return the bytes that this process has written so far, as counted by Linux; `None` elsewhere."""
    with contextlib.suppress(OSError, ValueError, StopIteration), open("/proc/self/io", "rb") as file:
        _, count = next(line for line in file if line.startswith(b"wchar:")).split()
        return int(count)
    return None


_FORBIDDEN = pattern(r'[<>:"|?*\x00-\x1f]|[. ]+$')
"""What no name of a file on Windows may have: characters, and dots or spaces at its end."""
_DEVICE = pattern(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])(?=\.|\s*$)", re.IGNORECASE)


def windows_name(name: str) -> str:
    """Return the name of a file, changed where Windows does not allow it (Win32, "Naming Files").

    Characters that it forbids become `_`, as do dots and spaces at the end; the name of a device gets one in front.
    """
    name = _FORBIDDEN.sub(lambda match: "_" * len(match[0]), name)
    return f"_{name}" if _DEVICE.match(name) else name


def require_torch() -> None:
    """Check that there is a PyTorch that the package works with.

    Raises:
        UnsupportedError: PyTorch is not installed, or too old.
    """
    hint = "pip install 'torch>=2.6'"
    try:
        release = import_module("torch").__version__
    except ImportError as error:
        raise UnsupportedError("PyTorch is not installed", hint=hint) from error
    if [int(part) for part in release.split(".")[:2]] < [2, 6]:
        raise UnsupportedError("PyTorch is too old", expected="release 2.6 or newer", found=release, hint=hint)


def cache_folder() -> str:
    """Return the folder for what can be computed again: `t7bridge` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "t7bridge")
