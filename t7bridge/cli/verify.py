"""Check that two files hold the same values, sharing and views, whatever their formats."""

from __future__ import annotations

import argparse
import json

from ..text import printable, printable_json
from .shared import add_limits, add_options, given_options, limits_of, print_hint

INPUTS = ("first", "second")
EXAMPLES = ("t7bridge verify model.t7 model.pt", "t7bridge verify --quiet a.t7 b.t7 && echo same")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("first", metavar="A", help="a file of any format")
    parser.add_argument("second", metavar="B", help="another")
    add_options(parser, "verify")
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Compare, print the differences and the readers used."""
    from ..tools.verify import verify

    report = verify(options.first, options.second, **given_options(options, "verify"), limits=limits_of(options))
    if options.json:
        print(printable_json(json.dumps(report.as_dict())))
        return 0 if report.same else 1
    for difference in report.differences:
        print(difference)
    for name, texts in report.left_out.items():
        for text in texts:
            print(f"{name}: {printable(text)}")
    for name, readers in report.readers.items():
        print(f"{name}: read by t7bridge" + "".join(f" and {reader}" for reader in readers))
    count = len(report.differences)
    print("the same" if report.same else f"{count} difference{'s' if count > 1 else ''}")
    print_hint(report.hint)
    return 0 if report.same else 1
