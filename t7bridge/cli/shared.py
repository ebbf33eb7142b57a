"""Parts shared by several verbs: options for resource limits and outputs, and printing of notes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from attrs import evolve, fields

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

    with tempfile.NamedTemporaryFile(prefix="t7bridge-stdin-") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, _PIPE_BYTES)
        file.flush()
        for name in wanted:
            setattr(options, name, file.name)
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
        raise argparse.ArgumentTypeError(f"there is no limit {name!r}; the limits are {', '.join(names)}")
    if not value.isdecimal():
        raise argparse.ArgumentTypeError(f"{name} needs a whole number: {name}=1000000")
    return name, int(value)


def add_options(parser: argparse.ArgumentParser, verb: str, *, but: tuple[str, ...] = ()) -> None:
    """Declare a verb's options from the table of options, in groups.

    Args:
        parser: the verb's.
        verb: its name.
        but: names of options that the verb declares itself.
    """
    from ..conversion.options import options_for

    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for option in options_for(verb):
        if option.name in but:
            continue
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        add_option(groups[option.group], option)


def add_option(parser: argparse._ActionsContainer, option: Option) -> None:
    """Declare one option of the table."""
    given: dict[str, Any] = {"dest": option.name, "default": option.default, "help": option.help}
    if option.kind == "flag":
        given["action"] = "store_false" if option.default else "store_true"
    else:
        given["type"] = int if option.kind == "int" else str
        if option.kind == "list":
            given |= {"action": "append", "default": list(option.default)}
        if option.choices:
            given["choices"] = option.choices
        else:
            given["metavar"] = option.metavar or option.name.upper()
    parser.add_argument(*option.spellings(), **given)


def given_options(options: argparse.Namespace, verb: str) -> dict[str, Any]:
    """Return the options of the table that were given with values other than their defaults."""
    from ..conversion.options import BY_NAME, options_for

    found = {
        option.name: getattr(options, option.name) for option in options_for(verb) if hasattr(options, option.name)
    }
    found = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return {name: value for name, value in found.items() if value != BY_NAME[name].default}


def print_notes(report: Report) -> None:
    """Print the notes of a report."""
    for note in () if QUIET.get() else report.notes:
        level, _, rest = str(note).partition(": ")
        print(f"{coloured(f't7bridge: {level}:', level)} {rest}", file=sys.stderr)


def print_hint(hint: str) -> None:
    """Print the hint of a report, if any."""
    if hint and not QUIET.get():
        print(f"t7bridge: hint: {printable(hint)}", file=sys.stderr)


def add_input_shape(parser: argparse.ArgumentParser) -> None:
    """Declare `--input-shape`."""
    parser.add_argument(
        "--input-shape",
        type=_input_shape,
        metavar="SHAPE",
        help="compute output shapes for an input, 1x3x224x224, without running the model; guess: choose one",
    )


def _input_shape(text: str) -> tuple[int, ...] | str:
    if text == "guess":
        return text
    parts = text.replace("×", "x").replace(",", "x").split("x")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 1x3x224x224")
    return tuple(map(int, parts))
