"""A progress bar for what takes more than two seconds; rich, which draws it, is loaded only then."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_PATIENCE_SECONDS, _REDRAW_SECONDS = 2.0, 0.2


@contextmanager
def progress(path: str, text: str, *, shown: bool = True) -> Iterator[None]:
    """Show how far the writing of a file is, where standard error is a terminal.

    Args:
        path: of the input; its size is what the output's is expected to be.
        text: what is done.
        shown: whether the user wants to see it.
    """
    if not shown or not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(done, path, text), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _written() -> int | None:
    """Bytes that the process has written so far, as Linux counts them."""
    with suppress(OSError, ValueError, StopIteration), open("/proc/self/io", "rb") as file:
        return int(next(line for line in file if line.startswith(b"wchar:")).split()[1])
    return None


def _watch(done: threading.Event, path: str, text: str) -> None:
    start = _written()
    if done.wait(_PATIENCE_SECONDS):
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        return
    total: Any = None
    with suppress(OSError):
        total = os.path.getsize(path) if start is not None else None
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        while not done.wait(_REDRAW_SECONDS):
            now = _written()
            if now is not None and start is not None and total is not None:
                bar.update(task, completed=min(now - start, total))
