"""Convert a file to .pt, to .t7, or to another encoding. The source's format is told by its content."""

from __future__ import annotations

import argparse
import sys

from ..text import printable_json
from . import WRONG_USAGE
from .shared import add_limits, add_options, given_options, limits_of, print_notes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("src", metavar="SRC", help="file to read")
    parser.add_argument("dst", metavar="DST", help="file to write; its suffix says the format")
    add_options(parser, "convert")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Convert, and print the report."""
    if options.partial and options.template is None:
        print("t7bridge: error: --partial says how a --template is filled, and there is none", file=sys.stderr)
        return WRONG_USAGE
    from ..conversion.convert import convert

    report = convert(options.src, options.dst, **given_options(options, "convert"), limits=limits_of(options))
    if options.json:
        import json

        print(printable_json(json.dumps(report.as_dict())))
        return 0
    print_notes(report)
    print(f"{report.target}: {report.mode}, {report.tensors} tensors, {report.target_bytes} bytes")
    return 0
