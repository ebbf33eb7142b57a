"""What several verbs share: options for what a file may cost and how the output is written, and printing notes."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from attrs import evolve, fields

from ..conversion.options import BY_NAME, Option, options_for
from ..limits import DEFAULT_LIMITS, Limits
from ..text import printable

if TYPE_CHECKING:
    from ..report import Report


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Declare `--limit`, which may be given several times."""
    names = ", ".join(f"{each.name} ({each.default})" for each in fields(Limits))
    parser.add_argument(
        "--limit",
        action="append",
        type=_limit,
        default=[],
        metavar="NAME=N",
        dest="limits",
        help=f"raise or lower what a file may cost; may be repeated. There are: {names}",
    )


def limits_of(options: argparse.Namespace) -> Limits:
    """The limits that were asked for."""
    return evolve(DEFAULT_LIMITS, **dict(options.limits))


def _limit(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    names = [each.name for each in fields(Limits)]
    if name not in names:
        raise argparse.ArgumentTypeError(f"there is no limit {name!r}; there are: {', '.join(names)}")
    if not value.isdecimal():
        raise argparse.ArgumentTypeError(f"{name} needs a whole number: {name}=1000000")
    return name, int(value)


def add_options(parser: argparse.ArgumentParser, verb: str, *, but: tuple[str, ...] = ()) -> None:
    """Declare the options of the one table that a verb takes, in groups.

    Args:
        parser: the verb's.
        verb: its name.
        but: names of options that the verb declares itself.
    """
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
        if option.choices:
            given["choices"] = option.choices
        else:
            given["metavar"] = option.metavar or option.name.upper()
    parser.add_argument(*option.spellings(), **given)


def given_options(options: argparse.Namespace, verb: str) -> dict[str, Any]:
    """The options of the table that were given, with other values than usual."""
    found = {
        option.name: getattr(options, option.name) for option in options_for(verb) if hasattr(options, option.name)
    }
    return {name: value for name, value in found.items() if value != BY_NAME[name].default}


def print_notes(report: Report) -> None:
    """Print what the user should know beside the result."""
    for note in report.notes:
        print(f"t7bridge: {note}", file=sys.stderr)


def print_hint(hint: str) -> None:
    """Print what the user can do next, where there is something."""
    if hint:
        print(f"t7bridge: hint: {printable(hint)}", file=sys.stderr)
