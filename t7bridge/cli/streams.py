"""The standard streams: notes, hints and JSON as they are printed, and standard input as a file."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..errors import T7BridgeError
from ..io.platform import IS_WINDOWS
from ..text import printable, printable_json, printable_lines

if TYPE_CHECKING:
    import argparse

    from ..report import Note

QUIET: ContextVar[bool] = ContextVar("QUIET", default=False)
"""True if only errors are printed."""
DONE, FAILED, WRONG_USAGE = 0, 1, 2
"""Exit codes: success; a finding (a difference, a threat, a failed file); wrong usage and errors."""
_COLOURS = {"error": "31", "warning": "33", "info": "36"}
_STDIN = "standard input"
_PLAIN = {"→": ">", "×": "x", "…": "~"}
"""What stands in tables for characters that a terminal's encoding lacks, in the same width."""
_PIPE_BYTES = 1 << 20
"""Bytes that are read from standard input at a time."""


def is_styled(stream: Any) -> bool:
    """Return whether a stream is a terminal that shows colours."""
    if IS_WINDOWS and "WT_SESSION" not in os.environ:  # older terminals print escapes as they are
        return False
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _coloured(text: str, kind: str) -> str:
    """Return a text in the colour of a kind of message, if standard error shows colours."""
    return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if is_styled(sys.stderr) else text


def _has_dash(value: Any) -> bool:
    """Return whether an argument is `-`, or a list of such with one."""
    return value == "-" or (isinstance(value, list) and "-" in value)


def _copy_stdin(path: str) -> None:
    """Copy standard input to a file; if it is a redirected file, that becomes an input of the call."""
    from ..io.source import add_input

    with suppress(OSError, ValueError):  # it may have no descriptor
        add_input(path=None, fd=sys.stdin.fileno())
    with open(path, "wb") as file:
        while piece := sys.stdin.buffer.read(_PIPE_BYTES):
            file.write(piece)


def _replace_dashes(options: argparse.Namespace, names: Iterable[str], path: str) -> None:
    """Replace `-` in arguments, which may be lists, by a path.

    Args:
        options: the arguments, which are changed.
        names: those in which there is a `-`.
        path: the path.
    """
    for name in names:
        value = getattr(options, name)
        if isinstance(value, list):
            setattr(options, name, [path if item == "-" else item for item in value])
        else:
            setattr(options, name, path)


@contextmanager
def spooled(options: argparse.Namespace, names: Sequence[str]) -> Iterator[None]:
    """Copy standard input to a file where an argument is `-`, as readers need random access.

    Args:
        options: the arguments; each `-` is replaced by the file's path.
        names: the arguments that are input files.

    Raises:
        T7BridgeError: standard input is closed.
    """
    from_stdin = [name for name in names if _has_dash(getattr(options, name, None))]
    if not from_stdin:
        yield
        return
    if sys.stdin is None:
        raise T7BridgeError("is closed", file=_STDIN)
    import tempfile

    with tempfile.TemporaryDirectory(prefix="t7bridge-") as folder:
        path = os.path.join(folder, _STDIN)
        _copy_stdin(path)
        _replace_dashes(options, from_stdin, path)
        try:
            yield
        except T7BridgeError as error:
            if error.file == path:  # whose name the user has never seen
                error.file = _STDIN
            raise


def print_notes(notes: Iterable[Note]) -> None:
    """Print the notes of a report."""
    if QUIET.get():
        return
    from ..report import joined

    for note in joined(notes):
        level, _, rest = str(note).partition(": ")
        print(f"{_coloured(f't7bridge: {level}:', level)} {rest}", file=sys.stderr)


def print_hint(hint: str) -> None:
    """Print the hint of a report, if any, unless it names the temporary file with standard input."""
    if hint and not QUIET.get() and _STDIN not in hint:
        print(f"t7bridge: hint: {printable(hint)}", file=sys.stderr)


def print_json(value: Any, indent: int | None = None) -> None:
    """Print a value as JSON.

    Args:
        value: the value. With an indent, its texts must be escaped for terminals already.
        indent: spaces for each level; by default all is one line, which is flushed for the program that reads it.
    """
    import json

    text = json.dumps(value, indent=indent)
    print(printable_json(text) if indent is None else text, flush=indent is None)


def failed(message: str) -> int:
    """Print an error, and return the exit code of errors and wrong usage."""
    print(f"{_coloured('t7bridge: error:', 'error')} {printable_lines(message)}", file=sys.stderr)
    return WRONG_USAGE


def perhaps(wrong: str, choices: Sequence[str]) -> str:
    """Return a suggestion to append to a message: the choice nearest to a wrong word; empty if none is near."""
    from difflib import get_close_matches

    matches = get_close_matches(wrong, choices, 1) or get_close_matches(wrong.lower(), choices, 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def terminal_width() -> int:
    """Return the columns of the terminal, or of the variable `COLUMNS`; 80 without either."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size().columns or 80
    except OSError:  # no terminal
        return 80


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace a character that an encoding lacks: by a plain one, or its escape.

    Returns:
        As a handler of `codecs`: the text in its place, and the position from which to encode on.
    """
    if isinstance(error, UnicodeEncodeError) and error.object[error.start] in _PLAIN:
        return _PLAIN[error.object[error.start]], error.start + 1
    return codecs.backslashreplace_errors(error)


codecs.register_error("t7bridge", _plain)


@contextmanager
def standard_streams(optional: bool) -> Iterator[None]:
    """Make the standard streams print any name, and replace missing ones: Python has none where a shell closed them
    (`>&-`).

    Args:
        optional: whether printed output may be lost if standard output is closed.
    """
    out, err = sys.stdout, sys.stderr
    previous = [(stream, stream.errors) for stream in (out, err) if isinstance(stream, io.TextIOWrapper)]
    for stream, _ in previous:
        stream.reconfigure(errors="t7bridge")  # by `_plain`
    sys.stdout = out or (io.StringIO() if optional else _Closed())
    sys.stderr = err or io.StringIO()  # messages are lost: there is nobody to read them
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
        for stream, errors in previous:
            if not stream.closed:
                stream.reconfigure(errors=errors)


class _Closed(io.TextIOBase):
    """Standard output that was already closed when the program started: an error only when something is printed."""

    def write(self, text: str) -> int:
        """Raise an error."""
        raise OSError(errno.EBADF, "is closed", "standard output")

    def isatty(self) -> bool:
        """Return False."""
        return False
