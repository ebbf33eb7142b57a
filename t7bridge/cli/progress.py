"""A progress bar for operations of more than two seconds; rich, which draws it, is loaded only then."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_PATIENCE_SECONDS, _REDRAW_SECONDS = 2.0, 0.2


@contextmanager
def progress(text: str, path: str = "") -> Iterator[None]:
    """Show activity on standard error until the verb ends or prints.

    Args:
        text: description of the operation.
        path: of the input, if the output will have about the same size: the bar then shows the fraction done.
    """
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(done, text, path, sys.stderr), daemon=True)
    thread.start()

    def end() -> None:
        done.set()
        thread.join()

    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Watched(out, end), _Watched(err, end)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
        end()


class _Watched:
    """A stream whose first output removes the bar, as both share a terminal."""

    def __init__(self, stream: Any, end: Any) -> None:
        self._stream = stream
        self._end = end

    def write(self, text: str) -> int:
        """Remove the bar, and write to the stream."""
        self._end()
        return int(self._stream.write(text))

    def writelines(self, lines: Any) -> None:
        """Remove the bar, and write to the stream."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            self._end()
        return getattr(self._stream, name)


def _written() -> int | None:
    """Return the bytes that the process has written so far, as counted by Linux."""
    with suppress(OSError, ValueError, StopIteration), open("/proc/self/io", "rb") as file:
        return int(next(line for line in file if line.startswith(b"wchar:")).split()[1])
    return None


def _watch(done: threading.Event, text: str, path: str, terminal: Any) -> None:
    start = _written() if path else None
    if done.wait(_PATIENCE_SECONDS):
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        return
    total: Any = None
    with suppress(OSError):
        total = os.path.getsize(path) if start is not None else None
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()]
    if total is not None:
        columns.insert(2, TaskProgressColumn())
    with Progress(*columns, console=Console(file=terminal), transient=True, **_ALONE) as bar:
        task = bar.add_task(text, total=total)
        while not done.wait(_REDRAW_SECONDS):
            now = _written() if total is not None else None
            if now is not None and start is not None:
                bar.update(task, completed=min(now - start, total))


_ALONE: dict[str, Any] = {"redirect_stdout": False, "redirect_stderr": False}
"""The streams stay as they are: printing removes the bar."""
