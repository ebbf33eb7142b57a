"""Report the values that differ between two files, and by how much, whatever their formats."""

from __future__ import annotations

import argparse
import json

from ..text import printable, printable_json
from .shared import add_limits, add_options, given_options, limits_of, print_hint

INPUTS = ("first", "second")
EXAMPLES = (
    "t7bridge diff model.t7 model.pt",
    "t7bridge diff a.safetensors b.npz --rtol 1e-5",
    "t7bridge diff before.t7 after.t7 --draw changes.html",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("first", metavar="A", help="a file of any format")
    parser.add_argument("second", metavar="B", help="another")
    add_options(parser, "diff")
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Compare, print each difference and their number."""
    from ..tools.diff import diff

    report = diff(options.first, options.second, **given_options(options, "diff"), limits=limits_of(options))
    if options.json:
        print(printable_json(json.dumps(report.as_dict())))
        return 0 if report.same else 1
    for difference in report.differences:
        print(printable(str(difference)))
    count = len(report.differences)
    found = f"{count} difference{'s' if count > 1 else ''}" if count else "no difference"
    print(f"{found}; {report.tensors} tensors compared")
    if options.draw is not None:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.drawn.items()) or "no differing block"
        print(printable(f"{options.draw}: {kinds}"))
    print_hint(report.hint)
    return 0 if report.same else 1
