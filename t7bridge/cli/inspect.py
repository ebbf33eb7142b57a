"""Print what a file holds as an indented outline, for people."""

from __future__ import annotations

import argparse
import sys

from .shared import add_limits, limits_of

INPUTS = ("file",)
EXAMPLES = ("t7bridge inspect model.t7", "t7bridge inspect --depth 2 --items 10 checkpoint.pt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("file", metavar="FILE", help="a .t7 or .pt file")
    parser.add_argument("--depth", type=_count, default=6, metavar="N", help="levels to show (default: 6)")
    parser.add_argument(
        "--items", type=_count, default=40, metavar="N", help="entries to show of each table (default: 40)"
    )
    add_limits(parser)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is no number of things to show")
    return number


def run(options: argparse.Namespace) -> int:
    """Print the outline."""
    from ..tools.files import load_all
    from ..values.outline import outline

    values = load_all(options.file, limits=limits_of(options))
    for number, value in enumerate(values, 1):
        if len(values) > 1:
            sys.stdout.write(f"value {number} of {len(values)}\n")
        for line in outline(value, depth=options.depth, items=options.items):
            sys.stdout.write(line + "\n")
    return 0
