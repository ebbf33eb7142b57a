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
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import Any, NoReturn

from ..text import printable_lines

DONE, FAILED, WRONG_USAGE = 0, 1, 2
"""Exit codes: done; something was found, a difference, a threat, a file that failed; wrong usage or an error."""

VERBS = {
    "completion": "print what completes verbs and options in a shell",
    "convert": "convert a file of any format to any other, or to another encoding",
    "describe": "print what a file holds as canonical JSON",
    "export": "write a model as ONNX or .pt2, checked at once",
    "diff": "say which values of two files differ, and by how much",
    "draw": "draw a model: a page to walk in, SVG, Graphviz, or the graph as data",
    "inspect": "print what a file holds, for people",
    "lua": "write a PyTorch module as a Lua Torch model, and as the Lua source that builds it",
    "match": "find out which key of a state dict is which of another model's",
    "module": "write a model as Python source that needs only PyTorch, with its weights",
    "prove": "compare each layer with what Lua Torch recorded in the same file",
    "scan": "say what files would do in readers that trust them",
    "verify": "check that two files hold the same values, sharing and views",
    "zoo": "convert thousands of files, and resume where it was stopped",
}


ALIASES = {"graph": "draw"}
"""Names that verbs had before."""
_WRITERS = {"convert", "draw", "export", "lua", "module", "zoo"}
"""Verbs whose result is a file: they succeed where standard output is closed, and what they say beside it is lost."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; those of the process where not given.

    Returns:
        0 done, 1 something was found (a difference, a threat, a file that failed), 2 wrong usage or an error; 128 and
        the signal's number where one has ended it, 130 for Ctrl-C.
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
    name = ALIASES.get(arguments[0], arguments[0]) if arguments else ""
    if name == "help" and len(arguments) == 2:
        name, arguments = ALIASES.get(arguments[1], arguments[1]), [arguments[1], "--help"]
    if name not in VERBS:
        from .usage import general

        wrong = general(arguments, VERBS)
        return _fail(wrong) if wrong else WRONG_USAGE
    verb = importlib.import_module(f".{name}", __name__)
    options = parser_for(name, verb).parse_args(arguments[1:])
    from .shared import QUIET, spooled

    inputs = getattr(verb, "INPUTS", ())
    with spooled(options, inputs), _progress(name, options, inputs):
        if not options.quiet:
            return int(verb.run(options))
        before = QUIET.set(True)
        try:
            with redirect_stdout(io.StringIO()):
                return int(verb.run(options))
        finally:
            QUIET.reset(before)


def _progress(name: str, options: argparse.Namespace, inputs: Sequence[str]) -> AbstractContextManager[None]:
    """A progress bar, where somebody sees it."""
    if options.quiet or getattr(options, "json", False) or name == "zoo" or not sys.stderr.isatty():
        return nullcontext()
    from .progress import progress

    text = " ".join((name, *(printable_lines(os.path.basename(str(getattr(options, each)))) for each in inputs)))
    return progress(text, str(options.src) if name == "convert" else "")


def parser_for(name: str, verb: Any) -> argparse.ArgumentParser:
    """The parser of a verb's arguments.

    Args:
        name: of the verb.
        verb: its module: `add_arguments`, and `EXAMPLES`, lines for the help.
    """
    examples = getattr(verb, "EXAMPLES", ())
    parser = _Parser(
        f"t7bridge {name}",
        description=verb.__doc__,
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples) if examples else None,
        formatter_class=_formatter,
    )
    verb.add_arguments(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only; the exit code says the rest")
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser whose errors name the option that was perhaps meant."""

    def error(self, message: str) -> NoReturn:
        """End with 2 and the message."""
        if message.startswith("unrecognized arguments: "):
            wrong = message.removeprefix("unrecognized arguments: ").split()[0].partition("=")[0]
            from .usage import perhaps

            message += perhaps(wrong, list(self._option_string_actions))
        self.print_usage(sys.stderr)
        self.exit(WRONG_USAGE, f"t7bridge: error: {printable_lines(message)}\n")


@contextmanager
def _warnings() -> Iterator[None]:
    """Print warnings of the package as the notes of a report are printed, each time."""
    from ..errors import T7BridgeWarning

    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, T7BridgeWarning):
                from .shared import QUIET

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


class _Formatter(argparse.HelpFormatter):
    """Lines of examples stay lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return super()._fill_text(text, width, indent)


def _formatter(prog: str) -> argparse.HelpFormatter:
    """argparse makes one for each option, only to check it, and would load all of `shutil` for the width."""
    width = os.environ.get("COLUMNS", "")
    if not width.isdecimal():
        try:
            width = str(os.get_terminal_size().columns)
        except OSError:  # no terminal
            width = "80"
    return _Formatter(prog, width=int(width) - 2)


def _stop(number: int, frame: object) -> None:
    """End like Ctrl-C does, so that what is half written is removed."""
    raise SystemExit(128 + number)


def _fail(message: str) -> int:
    from .shared import coloured

    print(f"{coloured('t7bridge: error:', 'error')} {printable_lines(message)}", file=sys.stderr)
    return WRONG_USAGE
