"""Convert a file to .pt, to .t7, or to another encoding. The source's format is told by its content."""

from __future__ import annotations

import argparse
import sys

from ..text import printable_json
from . import WRONG_USAGE
from .shared import add_conversion, add_limits, add_output, limits_of, print_notes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("src", metavar="SRC", help="file to read")
    parser.add_argument("dst", metavar="DST", help="file to write; its suffix says the format")
    parser.add_argument("--to", choices=("t7", "pt"), help="format to write, whatever the suffix of DST")
    parser.add_argument("--force", action="store_true", help="replace DST if it exists")
    add_conversion(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_output(parser)
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Convert, and print the report."""
    if options.partial and options.template is None:
        print("t7bridge: error: --partial says how a --template is filled, and there is none", file=sys.stderr)
        return WRONG_USAGE
    from ..conversion.convert import convert

    asked = {name: value for name, value in vars(options).items() if name != "json"}
    report = convert(**{**asked, "limits": limits_of(options)})
    if options.json:
        import json

        print(printable_json(json.dumps(report.as_dict())))
        return 0
    print_notes(report)
    print(f"{report.target}: {report.mode}, {report.tensors} tensors, {report.target_bytes} bytes")
    return 0
