"""The command line: parsers made from the options of each verb's class, all printing and all exit codes.

What a verb needs is imported only when it is used.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

from ..data import __version__, face
from ..errors import OptionError, T7BridgeError, T7BridgeWarning
from ..io.platform import CLOSED_PIPE, STOPPING
from ..text import printable_lines
from .streams import DONE, FAILED, QUIET, WRONG_USAGE, failed, perhaps, spooled, standard_streams, terminal_width

if TYPE_CHECKING:
    import argparse

VERBS = {
    "convert": "convert a file of any format to any other, or to another encoding",
    "diff": "report the values that differ between two files",
    "draw": "draw a model: an interactive page, SVG, PNG, Graphviz or JSON",
    "export": "export a model to ONNX or .pt2, and check the result",
    "inspect": "summarize a file: format, layers, parameters",
    "lua": "convert a PyTorch module to a Lua Torch model and its Lua source",
    "match": "map the keys of one state dict to another model's",
    "module": "generate Python source for a model, with its weights",
    "prove": "compare each layer with what Lua Torch recorded in the same file",
    "scan": "report what PyTorch's safe loader refuses in a file",
    "verify": "check that two files hold the same values, sharing and views",
    "zoo": "convert many files; resumable",
    # For programs and shells, after what people look for.
    "describe": "print a file's content as canonical JSON",
    "completion": "print a shell completion script",
}


SHELLS = ("bash", "zsh", "fish")
"""The shells that have a completion script."""
ALIASES = {"graph": "draw"}
"""Former names of verbs."""
_IN_FILES_OF_THEIR_OWN = ("completion", "zoo")
"""Verbs that are functions of a module of their own name; the others are in `verbs`."""
_WRITERS = {"convert", "draw", "export", "lua", "module", "zoo"}
"""Verbs whose result is a file: they succeed even if standard output is closed, and lose what they print."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; those of the process by default.

    Returns:
        0 success, 1 finding (a difference, a threat, a failed file), 2 wrong usage or an error; 128 plus the signal's
        number if one ended it, 130 for Ctrl-C.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # What these verbs print may be lost: their result is a file.
    writes_files = bool(arguments) and ALIASES.get(arguments[0], arguments[0]) in _WRITERS
    with standard_streams(optional=writes_files), _signals(), _warnings():
        return _guarded(arguments)


def _guarded(arguments: Sequence[str]) -> int:
    """Run a verb, and return its exit code; an error becomes a message and the exit code for it.

    Args:
        arguments: the command line, from the verb on.
    """
    try:
        with _plain_interruptions():
            code = _verb(arguments)
        sys.stdout.flush()  # here, where an error has a message
        return code
    except KeyboardInterrupt as interrupt:
        failed(str(interrupt) or "interrupted; no output was left behind")
        return 128 + signal.SIGINT  # as shells have it
    except MemoryError:
        return failed("out of memory")
    except OptionError as error:
        from .parsers import typed_options

        verb = ALIASES.get(arguments[0], arguments[0])
        error.message = error.spelled(typed_options(verb, arguments[1:])) or error.message
        return failed(str(error))
    except T7BridgeError as error:
        return failed(str(error))
    except OSError as error:
        return _code_of_os_error(error)
    except Exception as error:
        if isinstance(error, ValueError) and "null " in str(error):  # raised by open()
            return failed("a path holds a NUL character")
        if os.environ.get("T7BRIDGE_TRACEBACK"):
            raise
        request = "Please report it, with what T7BRIDGE_TRACEBACK=1 in the environment prints."
        return failed(f"internal error: {type(error).__name__}: {error}. {request}")


def _code_of_os_error(error: OSError) -> int:
    """Return the exit code for an error of the system, after its message."""
    if error.errno == CLOSED_PIPE and not error.filename:
        # Whoever reads our output, such as `head`, has enough: no message. Python flushes the rest when it ends, which
        # would be another error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    if not error.strerror:
        return failed(str(error))
    return failed(f"{error.filename or 'standard output'}: {error.strerror}")


def _verb(arguments: Sequence[str]) -> int:
    """Run the verb of a command line, or what needs none, and return the exit code.

    Args:
        arguments: the command line, from the verb on; without one, the general help is printed.
    """
    if len(arguments) == 2:
        first, second = arguments
        if first == "help":
            arguments = [second, "--help"]
        elif first == "completion" and second in SHELLS:
            # Without a parser, which takes longer to make than a text to print.
            print(completed(second), end="")
            return DONE
    name = ALIASES.get(arguments[0], arguments[0]) if arguments else ""
    if name not in VERBS:
        return _general(arguments)
    return _run_verb(name, arguments[1:])


def _run_verb(name: str, arguments: Sequence[str]) -> int:
    """Parse the arguments of a verb, run it, and return the exit code."""
    # The options of the verbs, which take longer to load than the general help to print.
    from ..conversion.options import options_of
    from ..io.source import inputs_protected
    from .parsers import class_of, parser_for

    options = parser_for(name).parse_args(arguments)
    module = importlib.import_module(f".{name}" if name in _IN_FILES_OF_THEIR_OWN else ".verbs", __name__)
    run = getattr(module, name)
    # The operands that may be `-`.
    inputs = [item.name for item in options_of(class_of(name)).values() if item.stdin]
    # Each conversion of a zoo is a call of its own, whose inputs are protected by itself.
    with (
        nullcontext() if name == "zoo" else inputs_protected(),
        spooled(options, inputs),
        _progress(name, options, inputs),
    ):
        return _run_quietly(run, options) if options.quiet else int(run(options))


def _run_quietly(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a verb without what it prints, but errors; return the exit code."""
    token = QUIET.set(True)
    try:
        with redirect_stdout(io.StringIO()):
            return int(run(options))
    finally:
        QUIET.reset(token)


def completed(shell: str) -> str:
    """Return the completion script for a shell, which `write_scripts` has written beside this module."""
    path = os.path.join(os.path.dirname(__file__), f"completion.{shell}")
    with open(path, encoding="utf-8") as script:
        return script.read()


def _progress(name: str, options: argparse.Namespace, inputs: Sequence[str]) -> AbstractContextManager[None]:
    """Return a context with a progress bar, or without one where it would disturb, or nobody would see it.

    Args:
        name: of the verb.
        options: the arguments.
        inputs: names of the arguments that are input files.
    """
    # A zoo has a display of its own.
    if options.quiet or getattr(options, "json", False) or name == "zoo" or not sys.stderr.isatty():
        return nullcontext()
    paths = [getattr(options, operand) for operand in inputs]
    files = [printable_lines(os.path.basename(path)) for path in paths if isinstance(path, str)]
    from ..io.progress import progress

    # Only of `convert` is the file written about as large as the one read: its size is the end of the bar.
    path = str(options.source) if name == "convert" else ""
    return progress(" ".join((name, *files)), path)


@contextmanager
def _warnings() -> Iterator[None]:
    """Print the package's warnings in the block like the notes of a report, each one of them."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, T7BridgeWarning):
                if QUIET.get():
                    return
                print(f"t7bridge: warning: {printable_lines(str(message))}", file=sys.stderr)
            else:
                usual(message, category, *where)

        # By default, Python shows a warning once for each line of code that warns.
        warnings.simplefilter("always", T7BridgeWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def _signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C while a verb runs, so that partial output is removed."""
    before: list[tuple[int, Any]] = []
    if threading.current_thread() is threading.main_thread():  # only this thread may set them
        for number in STOPPING:
            if signal.getsignal(number) == signal.SIG_DFL:  # it stays ignored under nohup
                before.append((number, signal.signal(number, _stop)))
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def _plain_interruptions() -> Iterator[None]:
    """Raise what a signal raised while a class was made: up to 3.11, Python makes it the cause of a RuntimeError.

    The members of a class are told its name in `__set_name__`, whose exceptions Python replaced, these too.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, (KeyboardInterrupt, SystemExit)):
            raise error.__cause__ from None
        raise


def _stop(number: int, frame: object) -> None:
    """Handle a signal by an exception, as Ctrl-C is, so that partial output is removed; exit as a shell has it."""
    raise SystemExit(128 + number)


_USAGE = "usage: t7bridge [-h] [--version] VERB ..."
_HELP = """
Convert Lua Torch .t7 files to PyTorch, and PyTorch models back to Lua.

options:
  -h, --help  show this help message and exit
  --version   show program's version number and exit

verbs:
{}

Run 't7bridge help VERB' for details. Exit codes: 0 success; 1 finding (a
difference, a threat, a failed file); 2 wrong usage or error; 130 interrupted."""


def _help() -> str:
    """Return the general help, which is made for 80 columns, wrapped where a terminal is narrower."""
    longest = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:{longest}}  {text}" for verb, text in VERBS.items())
    text = f"{_USAGE}\n{_HELP.format(verbs)}"
    width = terminal_width()
    if width >= 80:
        return text
    import textwrap

    lines: list[str] = []
    for line in text.split("\n"):
        indent = ""
        if line.startswith("  "):
            # A row of a list: a name, at least two spaces, and a text. What continues the row begins below the text.
            _, _, row_text = line.strip().partition("  ")
            indent = " " * (len(line) - len(row_text.lstrip()))
        lines += textwrap.wrap(line, width, subsequent_indent=indent) or [""]
    return "\n".join(lines)


def _general(arguments: Sequence[str]) -> int:
    """Run a command line without a valid verb: print help, the version, or what is wrong. It needs no parser.

    Returns:
        The exit code.
    """
    if not arguments:
        print(_help(), file=sys.stderr)
        return WRONG_USAGE
    first = arguments[0]
    if first == "help":  # of an unknown verb, or of none
        first = arguments[1] if len(arguments) > 1 else "--help"
    # As in argparse, the first letters of an option are enough; `--` alone is none.
    if first == "-h" or (len(first) > 2 and "--help".startswith(first)):
        print(_help())
        return DONE
    if len(first) > 2 and "--version".startswith(first):
        print(f"t7bridge {__version__}")
        return DONE
    print(_USAGE, file=sys.stderr)
    if first.startswith("-"):
        return failed("a VERB comes first; t7bridge --help lists them")
    return failed(f"unknown verb {first!r}{perhaps(first, list(VERBS)) or '; t7bridge --help lists them'}")


__getattr__ = face(
    __name__,
    {
        "parsers": "arguments_of class_of parser_for",
        "completion": "script write_scripts",
        "zoo": "Display clock megabytes",
    },
)
