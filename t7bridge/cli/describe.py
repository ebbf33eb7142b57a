"""Print a file's content as canonical JSON: the same for every encoding of the same value."""

from __future__ import annotations

import argparse
import sys

from .shared import add_limits, limits_of

INPUTS = ("file",)
EXAMPLES = ("t7bridge describe model.t7 | python -m json.tool", "t7bridge describe - < model.pt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("file", metavar="FILE", help="a file of any format")
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Print the description."""
    from ..tools.files import describe
    from ..values.describe_lua import json_pieces

    sys.stdout.writelines(json_pieces(describe(options.file, limits=limits_of(options))))
    print()
    return 0
