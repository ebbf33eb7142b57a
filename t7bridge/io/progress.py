"""A progress bar on standard error, on terminals and in notebooks, for operations of more than two seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .platform import bytes_written
from .source import sizes

_PATIENCE_SECONDS = 2.0
"""Seconds before the bar appears."""
_REDRAW_SECONDS = 0.2
"""Seconds between two drawings of it."""
_BAR_CHARACTERS = 30
_MOVING_CHARACTERS = 5
"""Characters of what moves through a bar that knows no end."""
_shown = threading.Lock()
"""Held by the one bar that is shown."""
_steps = [0, 0]
"""Steps done and steps in all of the operation that runs; 0 and 0 if it does not count any."""


def count_steps(done: int, total: int) -> None:
    """Tell the bar, if there is one, how much of an operation is done.

    Args:
        done: number of steps.
        total: that of all.
    """
    _steps[:] = done, total


def in_notebook() -> bool:
    """Return whether a kernel of Jupyter runs this program."""
    ipython = sys.modules.get("IPython")  # not imported: a notebook has it already
    get_shell = getattr(ipython, "get_ipython", None)
    return get_shell is not None and hasattr(get_shell(), "kernel")


@contextmanager
def progress(text: str, path: str = "") -> Iterator[None]:
    """Show a bar on standard error during the block, until something is printed in it.

    Args:
        text: description of the operation.
        path: of the input, if the output will have about the same size: the bar then shows the fraction done. Empty
            for a bar that only moves.
    """
    done = threading.Event()
    count_steps(0, 0)  # those of an earlier operation
    terminal = _Cell() if in_notebook() else sys.stderr
    thread = threading.Thread(target=_watch, args=(done, text, path, terminal), daemon=True)
    thread.start()

    def end() -> None:
        """Remove the bar, and wait until it is gone."""
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
    """A standard stream whose first output removes the bar, as both share a terminal.

    Args:
        stream: what writes to the terminal.
        end: removes the bar, if there is still one.
    """

    def __init__(self, stream: Any, end: Callable[[], None]) -> None:
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
        """Return anything else of the stream."""
        if name == "buffer":  # bytes will be written to it
            self._end()
        return getattr(self._stream, name)


class _Cell:
    """A display in a notebook's cell, which shows the last line only; a notebook would save all lines of a stream."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._display: Any = None
        """IPython's handle of the display, once there is one."""

    def write(self, line: str) -> None:
        """Replace the line."""
        data = {"text/plain": line.strip("\r ")}
        if self._display is None:
            self._display = sys.modules["IPython"].display.display(data, raw=True, display_id=True)
        else:
            self._display.update(data, raw=True)

    def flush(self) -> None:
        """Do nothing: what is displayed is shown."""


def _watch(done: threading.Event, text: str, path: str, terminal: Any) -> None:
    """Draw the bar until an operation is done, and remove it then; runs in a thread, see `progress`.

    Args:
        done: set when the operation is done, and as soon as it prints something.
        text: description of the operation.
        path: of the input; empty, or one whose size is unknown, for a bar that only moves.
        terminal: what to write to.
    """
    from shutil import get_terminal_size

    began = time.monotonic()
    written_before = bytes_written() if path else None
    if done.wait(_PATIENCE_SECONDS):
        return
    if not _shown.acquire(blocking=False):  # an operation within another has no bar of its own
        return
    # Only a system that counts what a process has written shows how far it is.
    total = None if written_before is None else _size_of(path)
    mark = "━" if "utf" in str(getattr(terminal, "encoding", "")).lower() else "#"
    # Beside the bar, there are 18 characters for spaces, the share and the seconds.
    width_of_text = max(get_terminal_size().columns - _BAR_CHARACTERS - 18, 8)

    def line_of(step: int) -> str:
        """Return the line of a drawing, by its number."""
        share = _share_done(total, written_before)
        status = f"{time.monotonic() - began:.0f} s"
        if share is not None:
            status = f"{share:4.0%}  {status}"
        return f"\r{text[:width_of_text]}  {_bar(mark, step, share):{_BAR_CHARACTERS}}  {status}"

    with suppress(OSError, ValueError):  # a closed terminal
        _draw(done, terminal, line_of)
    _shown.release()


def _draw(done: threading.Event, terminal: Any, line_of: Callable[[int], str]) -> None:
    """Write lines over one another until an operation is done, and then spaces over the last one.

    Args:
        done: set when the operation is done.
        terminal: what to write to.
        line_of: returns the line of a drawing, by its number.
    """
    step = 0
    line = ""
    while not done.wait(_REDRAW_SECONDS):
        step += 1
        line = line_of(step)
        terminal.write(line)
        terminal.flush()
    terminal.write("\r" + " " * len(line) + "\r")
    terminal.flush()


def _share_done(total: int | None, written_before: int | None) -> float | None:
    """Return which share of an operation is done, from 0 to 1: of its bytes, or else of its steps; `None` if unknown.

    Args:
        total: the bytes that it will write, about; 0 or `None` if that is unknown.
        written_before: what the process had written when it began; `None` if the system does not count it.
    """
    if total and written_before is not None:
        written = (bytes_written() or written_before) - written_before
        return min(written / total, 1.0)  # an output may be larger than the input
    steps_done, steps = _steps
    return steps_done / steps if steps else None


def _bar(mark: str, step: int, share: float | None) -> str:
    """Return the marks of the bar: as many as the share that is done, or, if that is not known, a few that move.

    Args:
        mark: the character of which it is made.
        step: the number of the drawing.
        share: from 0 to 1; `None` if it is not known.
    """
    if share is not None:
        return mark * int(share * _BAR_CHARACTERS)
    start = step % (_BAR_CHARACTERS - _MOVING_CHARACTERS)
    return " " * start + mark * _MOVING_CHARACTERS


def _size_of(path: str) -> int | None:
    """Return the bytes of an input, a path or an address that was opened; `None` if they are not known."""
    with suppress(OSError):  # an address
        return os.path.getsize(path)
    return sizes.get(path)
