"""A progress bar on standard error, on terminals and in notebooks, for operations of more than two seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .platform import bytes_written
from .source import sizes

_PATIENCE_SECONDS, _REDRAW_SECONDS = 2.0, 0.2
_WIDE = 30
"""Characters of the bar."""
_one = threading.Lock()


def in_notebook() -> bool:
    """Return whether a kernel of Jupyter runs this program."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@contextmanager
def progress(text: str, path: str = "") -> Iterator[None]:
    """Show activity on standard error until the verb ends or prints.

    Args:
        text: description of the operation.
        path: of the input, if the output will have about the same size: the bar then shows the fraction done.
    """
    done = threading.Event()
    terminal = _Cell() if in_notebook() else sys.stderr
    thread = threading.Thread(target=_watch, args=(done, text, path, terminal), daemon=True)
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


class _Cell:
    """A display in a notebook's cell, which shows the last line only: a saved stream would hold all of them."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._shown: Any = None

    def write(self, line: str) -> None:
        """Replace the line."""
        data = {"text/plain": line.strip("\r ")}
        if self._shown is None:
            self._shown = sys.modules["IPython"].display.display(data, raw=True, display_id=True)
        else:
            self._shown.update(data, raw=True)

    def flush(self) -> None:
        """Do nothing: what is displayed is shown."""


def _watch(done: threading.Event, text: str, path: str, terminal: Any) -> None:
    """Draw the bar until a verb is done; see `progress`. It grows with the bytes written, or else moves."""
    from shutil import get_terminal_size

    began = time.monotonic()
    written_before = bytes_written() if path else None
    if done.wait(_PATIENCE_SECONDS) or not _one.acquire(blocking=False):  # a verb within another has no bar of its own
        return
    total: int | None = None
    if written_before is not None:
        total = sizes.get(path)
        with suppress(OSError):  # no local file
            total = os.path.getsize(path)
    mark = "━" if "utf" in str(getattr(terminal, "encoding", "")).lower() else "#"
    width_of_text = max(get_terminal_size().columns - _WIDE - 18, 8)  # beside the bar, the share and the seconds
    step = 0
    line = ""
    with suppress(OSError, ValueError):  # a closed terminal
        while not done.wait(_REDRAW_SECONDS):
            step += 1
            status = f"{time.monotonic() - began:.0f} s"
            if total and written_before is not None:
                written = (bytes_written() or written_before) - written_before
                share = min(written / total, 1.0)
                bar = mark * int(share * _WIDE)
                status = f"{share:4.0%}  {status}"
            else:
                bar = " " * (step % (_WIDE - 5)) + mark * 5
            line = f"\r{text[:width_of_text]}  {bar:{_WIDE}}  {status}"
            terminal.write(line)
            terminal.flush()
        terminal.write("\r" + " " * len(line) + "\r")
        terminal.flush()
    _one.release()
