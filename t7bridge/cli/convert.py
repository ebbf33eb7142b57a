"""Convert a file of any format to any other, or a .t7 to another encoding. SRC's format is detected by content."""

from __future__ import annotations

import argparse
import sys

from ..text import printable_json
from . import WRONG_USAGE
from .shared import add_limits, add_options, given_options, limits_of, print_notes

INPUTS = ("src",)
EXAMPLES = (
    "t7bridge convert model.t7 model.pt                      for PyTorch",
    "t7bridge convert model.t7 model.safetensors             also .h5 and .npz",
    "t7bridge convert tuned.pt out.t7 --template model.t7    into the Lua model",
    "t7bridge convert model.t7 ascii.t7 --encoding ascii     binary to ascii",
    "curl -s URL | t7bridge convert - - --to safetensors     through pipes",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("src", metavar="SRC", help="file to read")
    parser.add_argument("dst", metavar="DST", help="file to write; the suffix selects the format")
    add_options(parser, "convert")
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Convert, and print the report."""
    if options.partial and options.template is None:
        print("t7bridge: error: --partial requires --template", file=sys.stderr)
        return WRONG_USAGE
    from ..conversion.convert import convert

    if options.dst == "-":
        return _to_stdout(options)
    report = convert(options.src, options.dst, **given_options(options, "convert"), limits=limits_of(options))
    if options.json:
        import json

        print(printable_json(json.dumps(report.as_dict())))
        return 0
    print_notes(report)
    print(f"{report.target}: {report.mode}, {report.tensors} tensors, {report.target_bytes} bytes")
    return 0


def _to_stdout(options: argparse.Namespace) -> int:
    """Convert to a temporary file and print its bytes: the parts of a format are not written in order."""
    import os
    import shutil
    import tempfile

    from ..conversion.convert import convert

    if options.to is None or options.json:
        print("t7bridge: error: standard output requires --to FORMAT, and excludes --json", file=sys.stderr)
        return WRONG_USAGE
    with tempfile.TemporaryDirectory(prefix="t7bridge-stdout-") as folder:
        path = os.path.join(folder, "out")
        print_notes(convert(options.src, path, **given_options(options, "convert"), limits=limits_of(options)))
        with open(path, "rb") as file:
            shutil.copyfileobj(file, (sys.__stdout__ or sys.stdout).buffer, 1 << 20)
        sys.stdout.flush()
    return 0
