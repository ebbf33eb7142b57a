"""Draw the model of a .t7: what is in what, what flows where, and what each layer is in PyTorch."""

from __future__ import annotations

import argparse
import os

from ..text import printable
from ..tools.draw import FORMATS
from .shared import add_limits, add_options, limits_of

INPUTS = ("file",)
EXAMPLES = ("t7bridge draw model.t7 -o model.svg", "t7bridge draw checkpoint.t7 --at root.protos.rnn -o rnn.dot")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("file", metavar="FILE", help="a .t7 file")
    parser.add_argument(
        "-o", "--output", metavar="PICTURE", type=_picture, required=True, help=".svg, or .dot for Graphviz"
    )
    add_options(parser, "draw")
    add_limits(parser)


def _picture(text: str) -> str:
    if os.path.splitext(text)[1].lower() not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {' or '.join(FORMATS)}")
    return text


def run(options: argparse.Namespace) -> int:
    """Draw."""
    from ..tools.draw.draw import draw

    count = draw(options.file, options.output, options.at, force=options.force, limits=limits_of(options))
    print(printable(f"{options.output}: {count} modules"))
    return 0
