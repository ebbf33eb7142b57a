"""The command line: parsers made from the options of each verb's class, all printing and all exit codes.

What a verb needs is imported only when it is used.
"""

from __future__ import annotations

import argparse
import importlib
import io
import math
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import Any, NoReturn

from attrs import evolve, fields

import t7bridge

from ..conversion.options import REQUIRED, Option, options_of
from ..data import __version__, face
from ..errors import T7BridgeError, T7BridgeWarning
from ..io.platform import CLOSED_PIPE, STOPPING
from ..io.progress import progress
from ..io.source import inputs_protected
from ..limits import DEFAULT_LIMITS, Limits
from ..text import printable_lines
from .streams import FAILED, QUIET, WRONG_USAGE, failed, spooled, standard_streams

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
    "scan": "report what PyTorch's safe loader refuses in a file",
    "verify": "check that two files hold the same values, sharing and views",
    "zoo": "convert many files; resumable",
}


ALIASES = {"graph": "draw"}
"""Former names of verbs."""
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
    except T7BridgeError as error:
        return failed(str(error))
    except OSError as error:
        if error.errno == CLOSED_PIPE and not error.filename:  # no message
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        return failed(f"{error.filename or 'standard output'}: {error.strerror}" if error.strerror else str(error))
    except Exception as error:
        if isinstance(error, ValueError) and "null " in str(error):  # raised by open()
            return failed("a path holds a NUL character")
        if os.environ.get("T7BRIDGE_TRACEBACK"):
            raise
        return failed(
            f"internal error: {type(error).__name__}: {error}. Please report it, with what "
            "T7BRIDGE_TRACEBACK=1 in the environment prints."
        )


def _verb(arguments: Sequence[str]) -> int:
    """Parse a command line, run its verb, and return the exit code."""
    if len(arguments) == 2 and arguments[0] == "help":
        arguments = [arguments[1], "--help"]
    name = ALIASES.get(arguments[0], arguments[0]) if arguments else ""
    if name not in VERBS:
        message = _general(arguments)
        return failed(message) if message else WRONG_USAGE
    options = parser_for(name).parse_args(arguments[1:])
    module = importlib.import_module(".zoo" if name == "zoo" else ".verbs", __name__)
    run = getattr(module, name)
    inputs = [item.name for item in options_of(class_of(name)).values() if item.stdin]
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
    paths = [getattr(options, operand) for operand in inputs]
    files = [printable_lines(os.path.basename(path)) for path in paths if isinstance(path, str)]
    # Only of `convert` is the file written about as large as the one read: its size is the end of the bar.
    return progress(" ".join((name, *files)), str(options.source) if name == "convert" else "")


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


# Parsers

_FUNCTIONS = {"lua": "write_lua", "module": "write_module", "zoo": "convert_zoo"}
"""The functions of Python that have another name than their verb."""


def class_of(verb: str) -> Any:
    """Return the class with the options and operands of a verb: that of its function."""
    if verb == "completion":
        return importlib.import_module(".verbs", __package__).Completion
    return getattr(t7bridge, _FUNCTIONS.get(verb, verb)).request


def arguments_of(options: argparse.Namespace, verb: str) -> dict[str, Any]:
    """Return the arguments of a verb's function."""
    values = {name: getattr(options, name) for name, item in options_of(class_of(verb)).items() if item.python}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def parser_for(verb: str) -> argparse.ArgumentParser:
    """Return the parser of a verb's arguments; its help describes all of them."""
    request = class_of(verb)
    parser = _Parser(
        f"t7bridge {verb}",
        add_help=False,
        description=request.__doc__,
        epilog=_examples(request, len(getattr(request, "EXAMPLES", ()))),
        formatter_class=_formatter,
    )
    parser.add_argument("-h", "--help", action=_Help, help="show the arguments that most calls need")
    parser.add_argument("--help-all", action=_HelpAll, help="show all arguments")
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for item in options_of(request).values():
        if item.group not in groups:
            groups[item.group] = parser.add_argument_group(item.group)
        _add(groups[item.group], item)
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only; see the exit code")
    parser.set_defaults(verb=verb)
    return parser


def _examples(request: Any, count: int) -> str | None:
    """Return the first examples of a verb's class as the end of its help."""
    lines = getattr(request, "EXAMPLES", ())[:count]
    if not lines:
        return None
    return "\n".join(["examples:", *(f"  {line}" for line in lines)])


def _short_help(verb: str) -> str:
    """Return the help of a verb with its operands, the options in `COMMON` of its class, and two examples.

    Of a class without `COMMON`, whose options are few, all are shown.
    """
    request = class_of(verb)
    options = options_of(request)
    common = getattr(request, "COMMON", tuple(options))
    shown = [item for item in options.values() if item.is_operand]
    shown += [options[name] for name in common if not options[name].is_operand]
    parser = _Parser(
        f"t7bridge {verb}",
        add_help=False,
        description=request.__doc__,
        formatter_class=_formatter,
    )
    # One list: headings pay off where all options are listed.
    arguments = parser.add_argument_group("arguments")
    for item in shown:
        _add(arguments, evolve(item, flags=_usual_spellings(item)))
    others = len(options) - len(shown)
    parser.usage = _usage(parser)
    parser.epilog = _examples(request, 2)
    more = f"\n--help-all lists {others} more options.\n" if others else ""
    return parser.format_help() + more


def _usual_spellings(option: Option) -> tuple[str, ...]:
    """Return the spellings of an option up to the first long one: the others are those of earlier releases."""
    for count, spelling in enumerate(option.flags, 1):
        if spelling.startswith("--"):
            return option.flags[:count]
    return option.flags


class _Help(argparse.Action):
    """Print the short help of a verb."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        """Print, and exit with 0."""
        print(_short_help(parser.get_default("verb")), end="")
        parser.exit()


class _HelpAll(_Help):
    """Print the help with all options."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        """Print, and exit with 0."""
        parser.print_help()
        parser.exit()


def _add(parser: argparse._ActionsContainer, option: Option) -> None:
    """Add an option or operand to a parser."""
    required = option.default is REQUIRED
    settings: dict[str, Any] = {"default": None if required else option.default, "help": option.help}
    if option.choices:
        settings["choices"] = option.choices
    else:
        settings["metavar"] = option.metavar or option.name.upper()
    if option.kind == "flag":
        settings = {"default": option.default, "help": option.help}
        settings["action"] = "store_false" if option.default else "store_true"
    elif option.kind.startswith("limits"):
        settings |= {"action": _SetLimit, "const": option.kind == "limits or files"}
        parser.set_defaults(limit=None)
    else:
        settings["type"] = _TYPES.get(option.kind, str)
    if option.kind == "list":
        settings |= {"action": "append", "default": list(option.default)}
    if option.nargs is not None:
        settings["nargs"] = option.nargs
    if option.is_operand:
        parser.add_argument(option.name, **settings)
    else:
        parser.add_argument(*option.spellings(), dest=option.name, required=required, **settings)


class _SetLimit(argparse.Action):
    """Change one of the resource limits: `objects=100`. With `const`, a number alone is one of files."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, text: Any, option: str | None = None) -> None:
        """Set `limits`, or `limit`; or print the names of the limits with their defaults."""
        names = [field.name for field in fields(Limits)]
        if text == "help":
            width = max(map(len, names))
            for name in names:
                print(f"{name:{width}}  {getattr(DEFAULT_LIMITS, name)}")
            raise SystemExit(0)
        name, _, value = text.rpartition("=")
        if self.const and not name and value.isdecimal():
            namespace.limit = int(value)
        elif self.const and (name not in names or not value.isdecimal()):
            listed = "=N, ".join(names)
            raise argparse.ArgumentError(self, f"{text!r} is neither a number of files nor one of {listed}=N")
        elif (name or value) not in names:
            raise argparse.ArgumentError(self, f"unknown limit {name or value!r}; the limits are {', '.join(names)}")
        elif not name or not value.isdecimal():
            raise argparse.ArgumentError(self, f"{name or value} needs a whole number: {name or value}=1000000")
        else:
            namespace.limits = evolve(namespace.limits, **{name: int(value)})


class _Parser(argparse.ArgumentParser):
    """A parser whose errors suggest a similarly spelled option."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2 and the message."""
        if message.startswith("unrecognized arguments: "):
            wrong = message.removeprefix("unrecognized arguments: ").split()[0].partition("=")[0]
            if wrong.startswith("-"):
                message += _perhaps(wrong, list(self._option_string_actions))
        print(f"usage: {_usage(self)}; --help-all lists the options", file=sys.stderr)
        raise SystemExit(failed(message.replace(": invalid _", ": invalid ")))  # the name of a function


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage of a verb in one line, without its options: `t7bridge zoo [OPTION]... SRC...`."""
    forms = {"?": "[{}]", "*": "[{}...]", "+": "{}..."}
    operands = [action for action in parser._actions if not action.option_strings]
    texts = [forms.get(str(operand.nargs), "{}").format(operand.metavar or operand.dest) for operand in operands]
    return " ".join([parser.prog, "[OPTION]...", *texts])


class _Formatter(argparse.HelpFormatter):
    """A help formatter that keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return super()._fill_text(text, width, indent)


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Return the formatter; argparse makes one per option just to check it, and would load `shutil` for the width."""
    width = os.environ.get("COLUMNS", "")
    if not width.isdecimal():
        try:
            width = str(os.get_terminal_size().columns)
        except OSError:  # no terminal
            width = "80"
    return _Formatter(prog, width=int(width) - 2)


def _perhaps(wrong: str, choices: Sequence[str]) -> str:
    """Return a did-you-mean suggestion to append to a message; empty if there is none."""
    from difflib import get_close_matches

    matches = get_close_matches(wrong, choices, 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _general(arguments: Sequence[str]) -> str:
    """Run a command line without a valid verb: help or the version.

    Returns:
        The error message; empty where usage was printed.
    """
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:{width}}  {text}" for verb, text in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="t7bridge",
        usage="t7bridge [-h] [--version] VERB ...",
        description="Convert Lua Torch .t7 files to PyTorch, and PyTorch models back to Lua.",
        epilog=f"verbs:\n{verbs}\n\n"
        "Run 't7bridge help VERB' for details. Exit codes: 0 success; 1 finding (a\n"
        "difference, a threat, a failed file); 2 wrong usage or error; 130 interrupted.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"t7bridge {__version__}")
    if not arguments:
        parser.print_help(sys.stderr)
        return ""
    if arguments[0] == "help":
        arguments = arguments[1:] or ["--help"]
    verb = arguments[0]
    if verb.startswith("-"):
        parser.parse_known_args(arguments)  # prints the help or the version, and ends
    parser.print_usage(sys.stderr)
    if verb.startswith("-"):
        return "a VERB comes first; t7bridge --help lists them"
    return f"unknown verb {verb!r}{_perhaps(verb, list(VERBS)) or '; t7bridge --help lists them'}"


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or a positive number")
    return number


def _size(text: str) -> int:
    """Bytes of `512M` or `4G`."""
    found = re.fullmatch(r"(\d+)([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512M or 4G")
    return int(found.group(1)) * _UNITS[found.group(2).upper()]


def _tolerance(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a valid tolerance")
    return value


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TYPES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "count": _count,
    "number": _number,
    "seconds": float,
    "bytes": _size,
    "tolerance": _tolerance,
}
"""How the values of each kind of option are read; others are texts."""


__getattr__ = face(
    __name__,
    {
        "verbs": "script",
        "zoo": "Display clock megabytes",
    },
)
