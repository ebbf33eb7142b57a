"""Write a Lua model as ONNX or as a .pt2 archive, checked against the model at once, or as a folder for model hubs."""

from __future__ import annotations

import argparse
import json
import sys

from ..text import printable_json
from .shared import add_limits, limits_of

EXAMPLES = ("t7bridge export model.t7 model.onnx --input 1x3x224x224", "t7bridge export model.t7 folder --hub")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("src", metavar="SRC", help=".t7 file to read")
    parser.add_argument("dst", metavar="DST", help="file to write: X.onnx or X.pt2; the folder with --hub")
    parser.add_argument(
        "--input",
        action="append",
        metavar="[NAME=]SHAPE[:TYPE]",
        help="shape of the input, 1x3x224x224, or a .t7 file with one; may be repeated for a model that takes a table, "
        "or in brackets: [1x4,[1x4,1x8]]",
    )
    parser.add_argument("--output-name", action="append", default=[], metavar="NAME", help="name of an output")
    parser.add_argument(
        "--dynamic",
        action="append",
        default=[],
        choices=("batch",),
        help="let the first dimension of every input have any size",
    )
    parser.add_argument(
        "--hub",
        action="store_true",
        help="write the folder that model hubs take: model.safetensors, config.json, model.py, README.md",
    )
    parser.add_argument("--at", metavar="PATH", help="which module, where SRC holds several: root.protos.rnn")
    parser.add_argument(
        "--index-base",
        type=int,
        choices=(0, 1),
        default=1,
        help="what the first class, row or element is called: 1 as in Lua, or 0",
    )
    parser.add_argument("--force", action="store_true", help="replace DST if it exists")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Write the file, and print the largest difference from the live module."""
    from attrs import asdict

    from ..tools.export import export
    from ..tools.hub import HubReport

    report = export(
        options.src,
        options.dst,
        input=options.input,
        output=options.output_name,
        dynamic=options.dynamic,
        at=options.at,
        index_base=options.index_base,
        force=options.force,
        hub=options.hub,
        limits=limits_of(options),
    )
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
