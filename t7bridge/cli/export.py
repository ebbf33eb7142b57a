"""Export a Lua model as ONNX or a .pt2 archive, checked against the model, or as a folder for model hubs."""

from __future__ import annotations

import argparse
import json
import sys

from ..text import printable_json
from .shared import add_limits, add_options, given_options, limits_of

EXAMPLES = ("t7bridge export model.t7 model.onnx --input 1x3x224x224", "t7bridge export model.t7 folder --hub")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("src", metavar="SRC", help=".t7 file to read")
    parser.add_argument("dst", metavar="DST", help="file to write: X.onnx or X.pt2; the folder with --hub")
    add_options(parser, "export")
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Write the file, and print the largest difference from the live module."""
    from attrs import asdict

    from ..tools.export import export
    from ..tools.hub import HubReport

    report = export(options.src, options.dst, **given_options(options, "export"), limits=limits_of(options))
    if options.json:
        print(printable_json(json.dumps(asdict(report))))
        return 0
    if isinstance(report, HubReport):
        for note in report.notes:
            print(f"t7bridge: {note}", file=sys.stderr)
        print(f"{report.target}: {', '.join(report.files)}; {report.tensors} tensors; {report.checked}")
        return 0
    inputs, outputs = ", ".join(report.inputs), ", ".join(report.outputs)
    print(
        f"{report.target}: {inputs} -> {outputs}, {report.target_bytes} bytes; "
        f"run by {report.runner}, largest difference {report.difference:.2g}"
    )
    return 0
