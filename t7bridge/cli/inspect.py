"""Summarize a file: its header, its layers and its other content."""

from __future__ import annotations

import argparse
import json
import os
import sys

from .shared import add_limits, add_options, limits_of

INPUTS = ("file",)
EXAMPLES = (
    "t7bridge inspect model.t7",
    "t7bridge inspect --input-shape 1x3x224x224 --stats model.t7",
    "t7bridge inspect --all --depth 2 --at root.opt checkpoint.t7",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("file", metavar="FILE", help="a file of any format")
    add_options(parser, "inspect")
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Print the summary, or the outline."""
    limits = limits_of(options)
    if options.all or options.depth or options.items:
        return _outline(options)
    from ..tools.inspect import inspect

    summary = inspect(
        options.file, options.at, statistics=options.statistics, input_shape=options.input_shape, limits=limits
    )
    if options.json:
        print(json.dumps(summary.to_json(), indent=1))
        return 0
    for number, line in enumerate(summary.lines()):
        sys.stdout.write(_styled(line, number, len(summary.header)) + "\n")
    return 0


def _styled(line: str, number: int, header: int) -> str:
    """Style a line of the summary; table heads are bold on a terminal."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return line
    width = os.get_terminal_size().columns
    line = line if len(line) <= width else line[: width - 1] + "…"
    if number < header:
        name, space, value = line.partition("  ")
        return f"\x1b[2m{name}\x1b[0m{space}{value}"
    return f"\x1b[1m{line}\x1b[0m" if line.startswith(("layer ", "path ", "tensor ")) else line


def _outline(options: argparse.Namespace) -> int:
    from ..conversion.options import OUTLINE_DEPTH, OUTLINE_ITEMS
    from ..errors import about_file
    from ..tools.files import load_all
    from ..tools.inspect import value_at
    from ..values.outline import outline

    values = load_all(options.file, limits=limits_of(options))
    if options.at:
        with about_file(options.file):
            values = [value_at(values, options.at)]
    for number, value in enumerate(values, 1):
        if len(values) > 1:
            sys.stdout.write(f"value {number} of {len(values)}\n")
        for line in outline(value, depth=options.depth or OUTLINE_DEPTH, items=options.items or OUTLINE_ITEMS):
            sys.stdout.write(line + "\n")
    return 0
