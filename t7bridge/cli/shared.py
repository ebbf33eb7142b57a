"""Parts shared by several verbs: options for resource limits and outputs, and printing of notes."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from attrs import evolve, fields

from ..io.inputs import add_input
from ..limits import DEFAULT_LIMITS, Limits
from ..text import printable

if TYPE_CHECKING:
    from ..conversion.options import Option
    from ..report import Report


QUIET: ContextVar[bool] = ContextVar("QUIET", default=False)
"""True if only errors are printed."""
_COLOURS = {"error": "31", "warning": "33", "info": "36"}
_PIPE_BYTES = 1 << 20


def coloured(text: str, kind: str) -> str:
    """Return text in the colour of its kind, if standard error is a terminal and `NO_COLOR` is not set."""
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m"


@contextmanager
def spooled(options: argparse.Namespace, names: Sequence[str]) -> Iterator[None]:
    """Copy standard input to a file where an argument is `-`, as readers need random access.

    Args:
        options: the arguments; they get the file's path.
        names: the arguments that are input files.
    """
    wanted = [name for name in names if getattr(options, name, None) == "-"]
    if not wanted:
        yield
        return
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="t7bridge-") as folder:
        path = os.path.join(folder, "standard input")
        with suppress(OSError, ValueError):  # a regular file, redirected
            add_input(None, sys.stdin.fileno())
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, _PIPE_BYTES)
        for name in wanted:
            setattr(options, name, path)
        yield


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Declare `--limit`, which may be repeated."""
    parser.add_argument(
        "--limit",
        action="append",
        type=_limit,
        default=[],
        metavar="NAME=N",
        dest="limits",
        help="change a resource limit; may be repeated; --limit help lists them",
    )


def limits_help() -> str:
    """Return the names of the limits with their defaults."""
    width = max(len(each.name) for each in fields(Limits))
    return "\n".join(f"{each.name:{width}}  {each.default}" for each in fields(Limits))


def limits_of(options: argparse.Namespace) -> Limits:
    """Return the limits given on the command line."""
    return evolve(DEFAULT_LIMITS, **dict(options.limits))


def _limit(text: str) -> tuple[str, Any]:
    if text == "help":
        print(limits_help())
        raise SystemExit(0)
    name, _, value = text.partition("=")
    names = [each.name for each in fields(Limits)]
    if name not in names:
        raise argparse.ArgumentTypeError(f"unknown limit {name!r}; the limits are {', '.join(names)}")
    if not value.isdecimal():
        raise argparse.ArgumentTypeError(f"{name} needs a whole number: {name}=1000000")
    return name, int(value)


def add_options(
    parser: argparse.ArgumentParser, verb: str, *, but: tuple[str, ...] = ()
) -> dict[str, argparse._ActionsContainer]:
    """Declare the options of the table that a verb accepts, and return the groups by their headings.

    Args:
        parser: the verb's.
        verb: its name.
        but: names of options that the verb adds itself.
    """
    from ..conversion.options import options_for

    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for option in options_for(verb):
        if option.name in but:
            continue
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        add_option(groups[option.group], option)
    return groups


def add_option(parser: argparse._ActionsContainer, option: Option) -> None:
    """Declare one option of the table."""
    given: dict[str, Any] = {"dest": option.name, "default": option.default, "help": option.help}
    if option.kind == "flag":
        given["action"] = "store_false" if option.default else "store_true"
    else:
        given["type"] = _TYPES.get(option.kind, str)
        if option.kind in ("list", "shapes"):
            given |= {"action": "append", "default": list(option.default)}
        if option.choices:
            given["choices"] = option.choices
        else:
            given["metavar"] = option.metavar or option.name.upper()
    parser.add_argument(*option.spellings(), **given)


def given_options(options: argparse.Namespace, verb: str) -> dict[str, Any]:
    """Return the arguments of a verb's function whose values differ from the defaults."""
    from ..conversion.options import options_for

    found = {}
    for option in options_for(verb):
        value = getattr(options, option.name)
        value = tuple(value) if isinstance(value, list) else value
        if value != option.default and not option.command_line:
            found[option.name] = value
    return found


def print_notes(report: Report) -> None:
    """Print the notes of a report."""
    for note in () if QUIET.get() else report.notes:
        level, _, rest = str(note).partition(": ")
        print(f"{coloured(f't7bridge: {level}:', level)} {rest}", file=sys.stderr)


def print_hint(hint: str) -> None:
    """Print the hint of a report, if any."""
    if hint and not QUIET.get():
        print(f"t7bridge: hint: {printable(hint)}", file=sys.stderr)


def _input_shape(text: str) -> tuple[int, ...] | str:
    if text == "guess" or text.startswith("[") or ":" in text:  # brackets and types are read with the model
        return text
    parts = text.replace("×", "x").replace(",", "x").split("x")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 1x3x224x224")
    return tuple(map(int, parts))


def _shape(text: str) -> tuple[int, ...]:
    parts = text.lower().split("x")
    if not all(part.isdecimal() and 0 < int(part) < 1 << 20 for part in parts):
        raise argparse.ArgumentTypeError(f"{text} is not a shape such as 2x3x64x64")
    return tuple(map(int, parts))


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
    "shape": _input_shape,
    "shapes": _shape,
}
"""How the values of each kind of option are read; others are texts."""
