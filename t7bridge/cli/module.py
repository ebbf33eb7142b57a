"""Generate model.py for the model of a .t7, which needs only PyTorch, and model.pt with its weights."""

from __future__ import annotations

import argparse
import json
import os

from ..text import printable_json
from .shared import add_limits, add_options, given_options, limits_of, print_notes

INPUTS = ("src",)
EXAMPLES = ("t7bridge module model.t7 -o model/", "t7bridge module checkpoint.t7 --at root.protos.rnn -o rnn/")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("src", metavar="SRC", help=".t7 file to read")
    parser.add_argument(
        "-o", "--output", metavar="DIR", required=True, help="folder for model.py and model.pt; created if missing"
    )
    add_options(parser, "module")
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Write both files, and print the report."""
    from ..tools.export_module import write_module

    report = write_module(options.src, options.output, **given_options(options, "module"), limits=limits_of(options))
    if options.prove:
        from ..tools.prove.note import prove_note

        report.notes.append(prove_note(options.src, options.at, limits=limits_of(options)))
    if options.json:
        print(printable_json(json.dumps(report.as_dict())))
        return 0
    print_notes(report)
    print(f"{os.path.join(report.target, 'model.py')}: {report.tensors} tensors in model.pt")
    return 0
