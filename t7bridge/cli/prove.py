"""Compare each layer of a model with the values that Lua Torch recorded in the same file.

Exit codes: 0 all that could be checked agrees, 1 something differs, 2 nothing could be checked.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ..text import printable
from .shared import add_limits, limits_of

if TYPE_CHECKING:
    from ..tools.prove.proof import LayerProof, Proof

EXAMPLES = ("t7bridge prove model.t7",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("file", metavar="FILE", help="a .t7 file with a model, saved without clearState()")
    parser.add_argument("--at", metavar="PATH", help="one model, where FILE holds several: root.model")
    parser.add_argument("--all", action="store_true", help="list the layers that are not recorded too")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    add_limits(parser)


def run(options: argparse.Namespace) -> int:
    """Prove, print the table, worst first, and the sentence."""
    from ..tools.prove.prove import prove

    proof = prove(options.file, options.at, limits=limits_of(options))
    print_proof(proof, as_json=options.json, everything=options.all)
    return proof.exit_code


def print_proof(proof: Proof, *, as_json: bool, everything: bool) -> None:
    """Print a proof as JSON or as a table."""
    if as_json:
        print(json.dumps(proof.as_dict()))
        return
    shown = [layer for layer in proof.layers if everything or layer.verdict != "not recorded"]
    shown.sort(key=lambda layer: layer.worst_first())
    wide = max((len(printable(layer.path)) for layer in shown), default=0)
    kind = max((len(printable(layer.class_name)) for layer in shown), default=0)
    for layer in shown:
        print(_row(layer, wide, kind))
    summary = proof.summary()
    if summary["not recorded"]:
        print(f"{summary['not recorded']} layers are not recorded" + ("" if everything else " (--all lists them)"))
    for note in proof.notes:
        print(printable(note))
    print(
        f"{summary['checked']} of {summary['layers']} layers and {summary['parameters_checked']} of "
        f"{summary['parameters']} parameters checked"
    )
    print(proof.sentence())


def _row(layer: LayerProof, wide: int, kind: int) -> str:
    numbers = "" if layer.max_abs is None else f"abs {layer.max_abs:.1e}  rel {layer.max_rel or 0.0:.1e}"
    cells = [
        f"{layer.verdict:13}",
        f"{printable(layer.path):{wide}}",
        f"{printable(layer.class_name):{kind}}",
        f"{numbers:25}",
        printable(layer.reason),
    ]
    return "  ".join(cells).rstrip()
