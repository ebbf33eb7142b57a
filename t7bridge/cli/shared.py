"""What several verbs share: options for what a file may cost and how the output is written, and printing notes."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from attrs import evolve, fields

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


def add_conversion(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare what can be asked of each conversion, of one file or of many."""
    parser.add_argument(
        "--as",
        dest="as_",
        choices=("auto", "tree"),
        default="auto",
        help="what becomes of nn modules in a .pt: state dicts (auto), or dicts that keep every field (tree)",
    )
    parser.add_argument("--encoding", choices=("binary", "ascii"), help="of a .t7; that of SRC if not given")
    parser.add_argument("--byte-order", choices=("little", "big"), help="of a .t7; that of SRC if not given")
    parser.add_argument(
        "--long-size", type=int, choices=(4, 8), help="bytes of a C long in a .t7; that of SRC if not given"
    )
    parser.add_argument("--keep-device", action="store_true", help="leave CUDA tensors on CUDA, in a .pt and in a .t7")
    parser.add_argument(
        "--no-record", dest="record", action="store_false", help="leave out, and leave unused, what gives SRC back"
    )
    parser.add_argument("--nested", action="store_true", help="t.conv1.weight instead of t['conv1.weight'] in a .t7")
    parser.add_argument(
        "--pt-format",
        choices=("zip", "legacy", "torchscript"),
        default="zip",
        help="legacy: for PyTorch 0.2 to 1.5; torchscript: for torch.jit.load and C++",
    )
    parser.add_argument(
        "--template",
        metavar="FILE",
        help="put the state dict of a .pt into the models of this .t7, which stays as it is",
    )
    parser.add_argument("--partial", action="store_true", help="with --template: keys may be missing, and too many")
    parser.add_argument("--compact", action="store_true", help="write to a .pt of each storage only what tensors use")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Declare `--strict` and `--sync`."""
    parser.add_argument(
        "--strict",
        action="store_true",
        help="fail where the output would hold less: types or sharing that it cannot have, numbers less precise",
    )
    parser.add_argument("--sync", action="store_true", help="wait until the output is on the disk, for power cuts")


def print_notes(report: Report) -> None:
    """Print what the user should know beside the result."""
    for note in report.notes:
        print(f"t7bridge: {note}", file=sys.stderr)


def print_hint(hint: str) -> None:
    """Print what the user can do next, where there is something."""
    if hint:
        print(f"t7bridge: hint: {printable(hint)}", file=sys.stderr)
