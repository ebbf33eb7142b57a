"""Map the keys of one state dict to another model's, by structure, order and shape.

Ambiguous keys are listed, never guessed. --map FILE resolves them: one pair a line, source first, `#` for comments;
two keys, or two module names that end in a dot; `-` for a key without counterpart.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from ..errors import T7BridgeError
from ..text import printable_json
from . import DONE, FAILED
from .shared import add_limits, add_options, limits_of, print_notes

if TYPE_CHECKING:
    from ..report import Report

INPUTS = ("src",)
EXAMPLES = (
    "t7bridge match model.t7 target.pt -o weights.pt",
    "t7bridge match model.t7 target.pt --map pairs.txt",
    "t7bridge match weights.pt model.t7 -o filled.t7",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("src", metavar="SRC", help="the weights: a .t7, or a .pt with a state dict")
    parser.add_argument("target", metavar="TARGET", help="the model to fill: a .pt with its state dict, or a .t7")
    parser.add_argument(
        "-o",
        dest="out",
        metavar="OUT",
        help=".pt: the weights under TARGET's keys; .t7: TARGET, a .t7, with these weights",
    )
    add_options(parser, "match")
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Match, write if complete, and print."""
    from ..tools.match.matcher import match
    from ..tools.match.output import write_match

    found = match(
        options.src,
        options.target,
        options.mapping,
        at=options.at,
        target_at=options.target_at,
        limits=limits_of(options),
    )
    done = found.complete or (options.partial and not found.ambiguous)
    if done and options.out is not None:
        asked = {name: getattr(options, name) for name in ("partial", "compact", "force", "strict", "sync")}
        write_match(found, options.out, **asked)
    if options.prove:
        _prove(options, found.report, done and options.out is not None)
    if options.json:
        print(printable_json(json.dumps(found.as_dict())))
        return DONE if done else FAILED
    print_notes(found.report)
    if options.out is None:
        width = max((len(pair.source or "-") for pair in found.pairs), default=0)
        for pair in found.pairs:
            print(f"{pair.source or '-':{width}}  {pair.target}  {list(pair.target_shape)} {pair.why}")
    elif done:
        print(f"{options.out}: {len(found.pairs)} tensors, {found.report.target_bytes} bytes")
    if not found.complete:
        print(f"t7bridge: {'note' if done else 'error'}: {found.problems(options.partial and done)}", file=sys.stderr)
    return DONE if done else FAILED


def _prove(options: argparse.Namespace, report: Report, written: bool) -> None:
    """Add the findings of a proof to the report: of both models if they can be run, else of the .t7 alone."""
    from ..tools.prove.note import note_of, prove_note

    limits = limits_of(options)
    source, target = (os.fspath(path).endswith(".t7") for path in (options.src, options.target))
    if written and (options.factory or (source and target)):
        from ..tools.prove.two import prove_two

        pair = (options.src, options.out) if source else (options.out, options.src)
        try:
            proof = prove_two(*pair, factory=None if source and target else options.factory, limits=limits)
            report.notes.append(note_of(proof))
        except T7BridgeError as error:
            report.note("info", f"proof: not possible: {error.message or error}", code="prove")
    elif source:
        report.notes.append(prove_note(options.src, options.at, limits=limits))
    elif target:
        report.notes.append(prove_note(options.target, options.target_at, limits=limits))
