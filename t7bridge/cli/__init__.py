"""The command line: all printing and all exit codes. What a verb needs is imported only when it is used."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import Any

from ..data import face
from ..errors import T7BridgeError, T7BridgeWarning
from ..io.platform import CLOSED_PIPE, STOPPING
from ..io.progress import progress
from ..text import printable_lines
from .streams import QUIET, WRONG_USAGE, failed, spooled, standard_streams

FAILED = 1
"""Exit code of a finding: a difference, a threat, a failed file."""

VERBS = {
    "completion": "print a shell completion script",
    "convert": "convert a file of any format to any other, or to another encoding",
    "describe": "print a file's content as canonical JSON",
    "diff": "report the values that differ between two files",
    "draw": "draw a model: an interactive page, SVG, PNG, Graphviz or JSON",
    "export": "export a model to ONNX or .pt2, and check the result",
    "inspect": "summarize a file: format, layers, parameters",
    "lua": "convert a PyTorch module to a Lua Torch model and its Lua source",
    "match": "map the keys of one state dict to another model's",
    "module": "generate Python source for a model, with its weights",
    "prove": "compare each layer with what Lua Torch recorded in the same file",
    "scan": "report what a pickle would import or execute",
    "verify": "check that two files hold the same values, sharing and views",
    "zoo": "convert many files; resumable",
}


ALIASES = {"graph": "draw"}
"""Former names of verbs."""
_WRITERS = {"convert", "draw", "export", "lua", "module", "zoo"}
"""Verbs whose result is a file: they succeed even if standard output is closed, and lose what they print."""


_FILES = {"zoo"}
"""Verbs in files of their own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; those of the process by default.

    Returns:
        0 success, 1 finding (a difference, a threat, a failed file), 2 wrong usage or an error; 128 plus the signal's
        number if one ended it, 130 for Ctrl-C.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    with standard_streams(bool(arguments) and arguments[0] in _WRITERS), _signals(), _warnings():
        return _guarded(arguments)


def _guarded(arguments: Sequence[str]) -> int:
    """Run a verb; every error becomes a message and an exit code."""
    try:
        code = _verb(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        failed(str(interrupt) or "interrupted; no output was left behind")
        return 128 + signal.SIGINT
    except MemoryError:
        return failed("out of memory")
    except OSError as error:
        if error.errno == CLOSED_PIPE and not error.filename:  # no message
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        if _is_ours(error):
            return failed(str(error))
        return failed(f"{error.filename or 'standard output'}: {error.strerror}" if error.strerror else str(error))
    except Exception as error:
        if _is_ours(error):
            return failed(str(error))
        if isinstance(error, ValueError) and "null " in str(error):  # raised by open()
            return failed("a path holds a NUL character")
        if os.environ.get("T7BRIDGE_TRACEBACK"):
            raise
        return failed(
            f"internal error: {type(error).__name__}: {error}. Please report it, with what "
            "T7BRIDGE_TRACEBACK=1 in the environment prints."
        )


def _is_ours(error: Exception) -> bool:
    return isinstance(error, T7BridgeError)


def _verb(arguments: Sequence[str]) -> int:
    name = ALIASES.get(arguments[0], arguments[0]) if arguments else ""
    if name == "help" and len(arguments) == 2:
        name, arguments = ALIASES.get(arguments[1], arguments[1]), [arguments[1], "--help"]
    from ..conversion.options import options_of
    from .parser import class_of, general, parser_for

    if name not in VERBS:
        wrong = general(arguments, VERBS)
        return failed(wrong) if wrong else WRONG_USAGE
    options = parser_for(name).parse_args(arguments[1:])
    module = importlib.import_module("." + (name if name in _FILES else "verbs"), __name__)
    run = getattr(module, name)
    from ..io.source import inputs_protected

    inputs = [each.name for each in options_of(class_of(name)).values() if each.stdin]
    # Each conversion of a zoo is a call of its own.
    with (
        nullcontext() if name == "zoo" else inputs_protected(),
        spooled(options, inputs),
        _progress(name, options, inputs),
    ):
        if not options.quiet:
            return int(run(options))
        before = QUIET.set(True)
        try:
            with redirect_stdout(io.StringIO()):
                return int(run(options))
        finally:
            QUIET.reset(before)


def _progress(name: str, options: argparse.Namespace, inputs: Sequence[str]) -> AbstractContextManager[None]:
    """Return a progress bar if standard error is a terminal."""
    if options.quiet or getattr(options, "json", False) or name == "zoo" or not sys.stderr.isatty():
        return nullcontext()
    files = (os.path.basename(path) for each in inputs if isinstance(path := getattr(options, each), str))
    text = " ".join((name, *map(printable_lines, files)))
    return progress(text, str(options.source) if name == "convert" else "")


@contextmanager
def _warnings() -> Iterator[None]:
    """Print the package's warnings like the notes of a report, without deduplication."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, T7BridgeWarning):
                if QUIET.get():
                    return
                print(f"t7bridge: warning: {printable_lines(str(message))}", file=sys.stderr)
            else:
                usual(message, category, *where)

        warnings.simplefilter("always", T7BridgeWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def _signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C while a verb runs, so that partial output is removed."""
    before: list[tuple[int, Any]] = []
    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            if signal.getsignal(number) == signal.SIG_DFL:  # it stays ignored under nohup
                before.append((number, signal.signal(number, _stop)))
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _stop(number: int, frame: object) -> None:
    """Handle a signal like Ctrl-C, so that partial output is removed."""
    raise SystemExit(128 + number)


__getattr__ = face(
    __name__,
    {
        "verbs": "script",
        "parser": "arguments_of parser_for",
        "zoo": "Display clock megabytes",
    },
)
