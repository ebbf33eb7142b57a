"""Draw a model: an interactive page with zoom, search and folding, a picture, or the graph as data."""

from __future__ import annotations

import argparse

from ..text import printable
from .shared import add_limits, add_option, add_options, limits_of

INPUTS = ("file",)
EXAMPLES = (
    "t7bridge draw model.t7 -o model.html",
    "t7bridge draw checkpoint.t7 --at root.protos.rnn -o rnn.svg",
    "t7bridge draw model.t7 --json > model.json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("file", metavar="FILE", help="a model, of any format")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "-o",
        "--output",
        metavar="PICTURE",
        help=".html (interactive page), .svg, .png, .dot (Graphviz) or .json",
    )
    from ..conversion.options import options_for

    (as_json,) = [option for option in options_for("draw") if option.name == "json"]
    add_option(target, as_json)
    add_options(parser, "draw", but=("json",))
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Draw the model."""
    from ..tools.draw import draw

    drawing = draw(
        options.file,
        options.output,
        options.at,
        weights=options.weights,
        input_shape=options.input_shape,
        force=options.force,
        limits=limits_of(options),
    )
    if options.json:
        import json

        print(json.dumps(drawing.graph(), indent=1))
        return 0
    print(printable(f"{options.output}: {drawing.modules} modules, {drawing.blocks[0].parameters:,} parameters"))
    return 0
