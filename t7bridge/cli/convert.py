"""Convert a file to .pt, to .t7, or to another encoding. The source's format is told by its content."""

from __future__ import annotations

import argparse
import sys

from . import WRONG_USAGE
from .shared import add_limits, add_output, limits_of, print_notes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("src", metavar="SRC", help="file to read")
    parser.add_argument("dst", metavar="DST", help="file to write; its suffix says the format")
    parser.add_argument(
        "--as",
        dest="as_",
        choices=("auto", "tree"),
        default="auto",
        help="what becomes of nn modules in a .pt: state dicts (auto), or dicts that keep every field (tree)",
    )
    parser.add_argument("--to", choices=("t7", "pt"), help="format to write, whatever the suffix of DST")
    parser.add_argument("--force", action="store_true", help="replace DST if it exists")
    parser.add_argument("--encoding", choices=("binary", "ascii"), help="of a .t7; that of SRC if not given")
    parser.add_argument("--byte-order", choices=("little", "big"), help="of a .t7; that of SRC if not given")
    parser.add_argument(
        "--long-size", type=int, choices=(4, 8), help="bytes of a C long in a .t7; that of SRC if not given"
    )
    parser.add_argument("--keep-device", action="store_true", help="leave CUDA tensors on CUDA, in a .pt and in a .t7")
    parser.add_argument(
        "--no-record", dest="record", action="store_false", help="leave out, and leave unused, what gives SRC back"
    )
    parser.add_argument("--nested", action="store_true", help="t.conv1.weight instead of t['conv1.weight'] in a .t7")
    parser.add_argument("--pt-format", choices=("zip", "legacy"), default="zip", help="legacy: for PyTorch 0.2 to 1.5")
    parser.add_argument(
        "--template",
        metavar="FILE",
        help="put the state dict of a .pt into the models of this .t7, which stays as it is",
    )
    parser.add_argument("--partial", action="store_true", help="with --template: keys may be missing, and too many")
    parser.add_argument("--compact", action="store_true", help="write to a .pt of each storage only what tensors use")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_output(parser)
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Convert, and print the report."""
    if options.partial and options.template is None:
        print("t7bridge: error: --partial says how a --template is filled, and there is none", file=sys.stderr)
        return WRONG_USAGE
    from ..conversion import convert

    asked = {name: value for name, value in vars(options).items() if name != "json"}
    report = convert(**{**asked, "limits": limits_of(options)})
    if options.json:
        import json

        print(json.dumps(report.as_dict()))
        return 0
    print_notes(report)
    print(f"{report.target}: {report.mode}, {report.tensors} tensors, {report.target_bytes} bytes")
    return 0
