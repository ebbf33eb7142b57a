"""Report the values that differ between two files, and by how much, whatever their formats."""

from __future__ import annotations

import argparse
import json
import math

from ..text import printable, printable_json
from .shared import add_limits, limits_of, print_hint

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
    parser.add_argument(
        "--rtol", type=_tolerance, default=0.0, metavar="X", help="relative tolerance, as a fraction of B's value"
    )
    parser.add_argument("--atol", type=_tolerance, default=0.0, metavar="X", help="absolute tolerance")
    parser.add_argument("--draw", metavar="PAGE", help="write a page (.html) with both models side by side")
    parser.add_argument("--force", action="store_true", help="replace the page if it exists")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_limits(parser)


def _tolerance(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a valid tolerance")
    return value


def run(options: argparse.Namespace) -> int:
    """Compare, print each difference and their number."""
    from ..tools.diff import diff

    report = diff(
        options.first,
        options.second,
        rtol=options.rtol,
        atol=options.atol,
        draw=options.draw,
        force=options.force,
        limits=limits_of(options),
    )
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
