"""The files that a call reads, which none of its outputs may replace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..errors import TargetExistsError

_files: ContextVar[set[Any] | None] = ContextVar("files", default=None)
"""Device and inode, and real path, of each file read by the current call; `None` outside of calls."""


@contextmanager
def inputs_protected() -> Iterator[None]:
    """Refuse every file that the block reads as the target of an output in it, under whatever name.

    Blocks inside of others share the files of the outermost: that of a verb of the command line, or of a function.
    """
    if _files.get() is not None:
        yield
        return
    before = _files.set(set())
    try:
        yield
    finally:
        _files.reset(before)


def add_input(path: str | os.PathLike[str] | None, fd: int | None = None) -> None:
    """Add a file that is read.

    Args:
        path: of the file; `None` if only the descriptor is known.
        fd: its descriptor, if it is open.
    """
    files = _files.get()
    if files is None:
        return
    if path is not None:
        files.add(os.path.realpath(path))
    try:
        status = os.fstat(fd) if fd is not None else os.stat(path or "")
    except OSError:
        return
    files.add((status.st_dev, status.st_ino))


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a target that is an input.

    Raises:
        TargetExistsError: it is.
    """
    files = _files.get()
    if not files:
        return
    try:
        status = os.stat(path)
    except OSError:
        return
    if (status.st_dev, status.st_ino) in files or os.path.realpath(path) in files:
        raise TargetExistsError(
            "is the input file itself", file=os.fspath(path), hint="Write to another name; a file is never rewritten."
        )
