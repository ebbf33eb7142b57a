"""The command line: all printing and all exit codes are here. One file a verb, loaded when it is asked for."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..text import printable_lines

DONE, FAILED, WRONG_USAGE = 0, 1, 2

VERBS = {
    "convert": "convert a file to .pt, to .t7, or to another encoding",
    "describe": "print what a file holds as canonical JSON",
    "export": "write a model as ONNX or .pt2, checked at once",
    "diff": "say which values of two files differ, and by how much",
    "graph": "draw a model as SVG, or for Graphviz",
    "inspect": "print what a file holds, for people",
    "lua": "write a PyTorch module as a Lua Torch model, and as the Lua source that builds it",
    "match": "find out which key of a state dict is which of another model's",
    "module": "write a model as Python source that needs only PyTorch, with its weights",
    "prove": "compare each layer with what Lua Torch recorded in the same file",
    "scan": "say what files would do in readers that trust them",
    "verify": "check that two files hold the same values, sharing and views",
    "zoo": "convert thousands of files, and go on where it was stopped",
}


_WRITERS = {"convert", "draw", "export", "graph", "lua", "module", "zoo"}
"""Verbs whose result is a file: they succeed where standard output is closed, and what they say beside it is lost."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; those of the process where not given.

    Returns:
        0 done, 1 something failed, 2 wrong usage; 128 and the signal's number where one has ended it.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    with _streams(bool(arguments) and arguments[0] in _WRITERS), _signals(), _warnings():
        return _guarded(arguments)


def _guarded(arguments: Sequence[str]) -> int:
    """Run a verb; every error becomes a message and an exit code."""
    try:
        code = _verb(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of a pipe has gone: not an error, but nothing more can be printed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt as interrupt:
        _fail(str(interrupt) or "interrupted; no output was left behind")
        return 128 + signal.SIGINT
    except MemoryError:
        return _fail("out of memory")
    except OSError as error:
        if _is_ours(error):
            return _fail(str(error))
        return _fail(f"{error.filename or 'standard output'}: {error.strerror or error}")
    except Exception as error:
        if _is_ours(error):
            return _fail(str(error))
        if isinstance(error, ValueError) and "null " in str(error):  # what open() says of a path
            return _fail("a path holds a NUL character")
        if os.environ.get("T7BRIDGE_TRACEBACK"):
            raise
        return _fail(
            f"internal error: {type(error).__name__}: {error}. Please report it, with what "
            "T7BRIDGE_TRACEBACK=1 in the environment prints."
        )


def _is_ours(error: Exception) -> bool:
    from ..errors import T7BridgeError

    return isinstance(error, T7BridgeError)


def _verb(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] not in VERBS:
        return _general(arguments)
    verb = importlib.import_module(f".{arguments[0]}", __name__)
    parser = argparse.ArgumentParser(f"t7bridge {arguments[0]}", description=verb.__doc__, formatter_class=_formatter)
    verb.add_arguments(parser)
    return int(verb.run(parser.parse_args(arguments[1:])))


@contextmanager
def _warnings() -> Iterator[None]:
    """Print warnings of the package as the notes of a report are printed, each time."""
    from ..errors import T7BridgeWarning

    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, T7BridgeWarning):
                print(f"t7bridge: warning: {printable_lines(str(message))}", file=sys.stderr)
            else:
                usual(message, category, *where)

        warnings.simplefilter("always", T7BridgeWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def _signals() -> Iterator[None]:
    """End by SIGTERM and SIGHUP like by Ctrl-C, so that what is half written is removed, as long as a verb runs."""
    before: list[tuple[int, Any]] = []
    if threading.current_thread() is threading.main_thread():
        for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
            if signal.getsignal(number) == signal.SIG_DFL:  # nohup has it ignored, and means it
                before.append((number, signal.signal(number, _stop)))
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def _streams(optional: bool) -> Iterator[None]:
    """Streams that print every name, and that exist: Python has none where a shell closed them (`>&-`).

    Args:
        optional: whether what is printed may be lost where standard output is closed.
    """
    out, err = sys.stdout, sys.stderr
    modes = [(each, each.errors) for each in (out, err) if isinstance(each, io.TextIOWrapper)]
    for each, _ in modes:
        each.reconfigure(errors="backslashreplace")
    sys.stdout = out or (io.StringIO() if optional else _Closed())
    sys.stderr = err or io.StringIO()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
        for each, errors in modes:
            if not each.closed:
                each.reconfigure(errors=errors)


class _Closed(io.TextIOBase):
    """Standard output that was closed by whoever started the program: an error only for what prints."""

    def write(self, text: str) -> int:
        """Refuse."""
        raise OSError(errno.EBADF, "is closed, and there is something to print", "standard output")

    def isatty(self) -> bool:
        """Nobody looks."""
        return False


def _formatter(prog: str) -> argparse.HelpFormatter:
    """argparse makes one for each option, only to check it, and would load all of `shutil` for the width."""
    width = os.environ.get("COLUMNS", "")
    if not width.isdecimal():
        try:
            width = str(os.get_terminal_size().columns)
        except OSError:  # no terminal
            width = "80"
    return argparse.HelpFormatter(prog, width=int(width) - 2)


def _stop(number: int, frame: object) -> None:
    """End like Ctrl-C does, so that what is half written is removed."""
    raise SystemExit(128 + number)


def _fail(message: str) -> int:
    print(f"t7bridge: error: {printable_lines(message)}", file=sys.stderr)
    return FAILED


def _general(arguments: Sequence[str]) -> int:
    """What does not name a verb: help, the version, or wrong usage."""
    from ..version import __version__

    width = max(map(len, VERBS))
    parser = argparse.ArgumentParser(
        prog="t7bridge",
        description="Carries Lua Torch .t7 files to PyTorch and PyTorch weights back to Lua.",
        epilog="verbs:\n"
        + "\n".join(f"  {verb:{width}}  {text}" for verb, text in VERBS.items())
        + "\n\n't7bridge VERB --help' says more. Exit codes: 0 done, 1 something failed, 2 wrong usage.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"t7bridge {__version__}")
    parser.add_argument("verb", choices=VERBS, metavar="VERB", help="what to do")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="its arguments")
    if not arguments:
        parser.print_help(sys.stderr)
        return WRONG_USAGE
    parser.parse_args(arguments)
    return WRONG_USAGE
