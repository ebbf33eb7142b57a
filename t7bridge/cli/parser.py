"""Parsers of the command line, made from the options of each verb's class."""

from __future__ import annotations

import argparse
import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from attrs import evolve, fields

import t7bridge

from ..conversion.options import REQUIRED, Option, options_of
from ..limits import DEFAULT_LIMITS, Limits
from .streams import failed

_FUNCTIONS = {"lua": "write_lua", "module": "write_module", "zoo": "convert_zoo"}
"""The functions of Python that have another name than their verb."""


def class_of(verb: str) -> Any:
    """Return the class with the options and operands of a verb: that of its function."""
    if verb == "completion":
        return importlib.import_module(".verbs", __package__).Completion
    return getattr(t7bridge, _FUNCTIONS.get(verb, verb)).request


def arguments_of(options: argparse.Namespace, verb: str) -> dict[str, Any]:
    """Return the arguments of a verb's function."""
    values = {name: getattr(options, name) for name, each in options_of(class_of(verb)).items() if each.python}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def parser_for(verb: str) -> argparse.ArgumentParser:
    """Return the parser of a verb's arguments."""
    made = class_of(verb)
    examples = getattr(made, "EXAMPLES", ())
    parser = _Parser(
        f"t7bridge {verb}",
        description=made.__doc__,
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples) if examples else None,
        formatter_class=_formatter,
    )
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for each in options_of(made).values():
        if each.group not in groups:
            groups[each.group] = parser.add_argument_group(each.group)
        _add(groups[each.group], each)
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only; see the exit code")
    return parser


def _add(parser: argparse._ActionsContainer, option: Option) -> None:
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
        names = [each.name for each in fields(Limits)]
        if text == "help":
            print("\n".join(f"{name:{max(map(len, names))}}  {getattr(DEFAULT_LIMITS, name)}" for name in names))
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
            message += _perhaps(wrong, list(self._option_string_actions))
        forms = {"?": "[{}]", "*": "[{}...]", "+": "{}..."}
        operands = [
            forms.get(str(each.nargs), "{}").format(each.metavar or each.dest)
            for each in self._actions
            if not each.option_strings
        ]
        print(f"usage: {self.prog} [OPTION]... {' '.join(operands)}; --help lists the options", file=sys.stderr)
        raise SystemExit(failed(message.replace(": invalid _", ": invalid ")))  # the name of a function


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


def _perhaps(wrong: str, known: Sequence[str]) -> str:
    """Return a did-you-mean suggestion to append to a message; empty if there is none."""
    from difflib import get_close_matches

    found = get_close_matches(wrong, known, 1)
    return f"; did you mean {found[0]}?" if found else ""


def general(arguments: Sequence[str], verbs: Mapping[str, str]) -> str:
    """Run a command line without a valid verb: help or the version.

    Args:
        arguments: of the command line.
        verbs: each with its description.

    Returns:
        The error message; empty where usage was printed.
    """
    from ..data import __version__

    width = max(map(len, verbs))
    parser = argparse.ArgumentParser(
        prog="t7bridge",
        usage="t7bridge [-h] [--version] VERB ...",
        description="Convert Lua Torch .t7 files to PyTorch, and PyTorch models back to Lua.",
        epilog="verbs:\n"
        + "\n".join(f"  {verb:{width}}  {text}" for verb, text in verbs.items())
        + "\n\nRun 't7bridge help VERB' for details. Exit codes: 0 success; 1 finding (a\n"
        "difference, a threat, a failed file); 2 wrong usage or error; 130 interrupted.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"t7bridge {__version__}")
    parser.add_argument("verb", metavar="VERB", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help=argparse.SUPPRESS)
    if not arguments:
        parser.print_help(sys.stderr)
        return ""
    if arguments[0] == "help":
        arguments = arguments[1:] or ["--help"]
    verb = parser.parse_args(arguments).verb
    parser.print_usage(sys.stderr)
    return f"unknown verb {verb!r}{_perhaps(verb, list(verbs)) or '; t7bridge --help lists them'}"


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
