"""Report what a pickle would import or execute, and Lua functions and foreign classes. Nothing is executed."""

from __future__ import annotations

import argparse
import json
import sys

from ..text import printable, printable_json
from . import DONE, FAILED
from .shared import add_limits, add_options, limits_of

EXAMPLES = ("t7bridge scan *.pt *.t7", "t7bridge scan --json download.pth", "t7bridge scan checkpoint/")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="a file of any format, or a folder")
    add_options(parser, "scan")
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Scan, print, and exit with 1 if anything was found."""
    from ..errors import T7BridgeError
    from ..tools.scan import ScanReport, scan

    limits = limits_of(options)
    reports = []
    for path in options.files:
        try:
            reports.append(scan(path, limits=limits))
        except T7BridgeError as error:
            reports.append(ScanReport(path, error=str(error)))
    if options.json:
        print(printable_json(json.dumps([report.as_dict() for report in reports])))
    else:
        for report in reports:
            for finding in report.findings:
                print(printable(f"{report.file}: {finding}"))
            if report.error:
                print(printable(f"t7bridge: error: {report.error}"), file=sys.stderr)
            elif not report.findings:
                print(printable(f"{report.file}: nothing found"))
    return DONE if all(report.clean for report in reports) else FAILED
