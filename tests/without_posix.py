"""Runs commands as they are, and others as Windows would.

That is without the calls of POSIX, and with open files that cannot be replaced or removed. Standard input has the lists
of both as JSON, each command a list of arguments; standard output gets a line for each command: the exit code, and what
was printed. Other people's libraries are imported once, for both.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

CALLS = """
    O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK SEEK_DATA SEEK_HOLE chown copy_file_range eventfd fchmod fchown
    fdatasync fork forkpty fstatvfs getegid geteuid getgid getloadavg getpgid getuid killpg lchown memfd_create mkfifo
    mknod nice posix_fadvise posix_fallocate posix_spawn posix_spawnp pread preadv pwrite pwritev sched_getaffinity
    sendfile setsid statvfs sync sysconf wait3 wait4
"""
MODULES = "fcntl grp pty pwd resource termios tty"
LIBRARIES = "h5py onnx onnxruntime onnxscript safetensors sympy torch torch.export torch.onnx torch._dynamo"
SIGNALS = "SIGHUP SIGPIPE SIGALRM SIGUSR1 SIGXFSZ"


def take_away() -> None:
    """Make the process as one of Windows, as far as that is possible on Linux."""
    import fcntl

    def is_open(path: str) -> bool:
        with contextlib.suppress(OSError):
            wanted = os.stat(path)
            for fd in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.fstat(int(fd)), wanted):
                        return True
        return False

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*paths: Any, **options: Any) -> Any:
            for path in paths:
                if is_open(path):
                    raise PermissionError(errno.EACCES, "The process cannot access the file, as it is open", path)
            return call(*paths, **options)

        return refuse

    fsync, opened = os.fsync, os.open

    def flush(fd: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        fsync(fd)

    def open_file(path: Any, *arguments: Any, **options: Any) -> int:
        if isinstance(path, str) and os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opened(path, *arguments, **options)

    os.open, os.fsync = open_file, flush  # type: ignore[assignment]
    for name in ("replace", "rename", "unlink", "remove"):
        setattr(os, name, refusing(getattr(os, name)))
    for home, names in ((os, CALLS), (signal, SIGNALS)):
        for name in names.split():
            if hasattr(home, name):
                delattr(home, name)
    for name in MODULES.split():
        sys.modules[name] = None  # type: ignore[assignment]
    from t7bridge.io import platform

    platform.IS_WINDOWS, platform.MAY_HAVE_SYNCFS = True, False


def main() -> None:
    """Run the commands."""
    as_they_are, as_windows = json.load(sys.stdin)
    for name in LIBRARIES.split():
        importlib.import_module(name)
    child = os.fork()
    if not child:
        run(as_they_are)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    take_away()
    run(as_windows)


def run(commands: list[list[str]]) -> None:
    """Run commands in this process, and answer each with a line."""
    from t7bridge import cli

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for command in commands:
        random.seed(1)
        printed = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", write_through=True)
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                code: Any = cli.main(command)
            except SystemExit as stop:
                code = stop.code
            except BaseException:
                code = traceback.format_exc()
        text = printed.buffer.getvalue().decode("cp1252")  # type: ignore[attr-defined]
        print(json.dumps([code, text]), file=answers, flush=True)


if __name__ == "__main__":
    main()
