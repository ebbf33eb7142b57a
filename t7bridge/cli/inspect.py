"""Print what a file holds as an indented outline, for people."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("file", metavar="FILE", help="a .t7 or .pt file")
    parser.add_argument("--depth", type=int, default=6, metavar="N", help="levels to show (default: 6)")
    parser.add_argument(
        "--items", type=int, default=40, metavar="N", help="entries to show of each table (default: 40)"
    )


def run(options: argparse.Namespace) -> int:
    """Print the outline."""
    from ..api import load
    from ..graph.outline import outline

    for line in outline(load(options.file), depth=options.depth, items=options.items):
        sys.stdout.write(line + "\n")
    return 0
