"""The verb `prove`: which comparison is asked for, and its table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

import t7bridge

from ..conversion.inputs import leaves, parse_inputs
from ..conversion.options import AT, FORCE, INPUT, JSON, LIMITS, flag, option, verb
from ..errors import ModelError
from ..limits import Limits
from ..text import printable
from .streams import print_json

if TYPE_CHECKING:
    from ..tools.prove.proof import LayerProof, Proof


@verb
class Prove:
    """Compare each layer of a model with the values that Lua Torch recorded in the same file.

    Exit codes: 0 all that could be checked agrees, 1 something differs, 2 nothing could be checked.
    """

    EXAMPLES = (
        "t7bridge prove model.t7",
        "t7bridge prove model.t7 --probe record.lua",
        "t7bridge prove model.t7 --with proof.t7 --draw verdicts.html",
        "t7bridge prove model.t7 model/ --input 1x3x224x224",
    )
    file = option("a .t7 file with a model, saved without clearState()", metavar="FILE")
    other = option("a second model: compare both on the same inputs", default=None, metavar="B", nargs="?")
    force = FORCE
    at = AT
    input = option(INPUT, default=(), flags=("--input", "--shape"))
    expect = option("file with Lua's output for each --input, a file too; may be repeated", default=(), metavar="Y.t7")
    recording = option(
        "compare with the recording of the script of --probe", default=None, metavar="PROOF.t7", flags=("--with",)
    )
    probe = option("write a Lua script that records every layer in Lua Torch", default=None, metavar="X.lua")
    factory = option(
        "class or function that returns the model of a .pt, to compare two models", default=None,
        metavar="PACKAGE:FACTORY", flags=("--module",),
    )  # fmt: skip
    draw = option("draw the model coloured by verdict: .html, .svg, .png, .dot", default=None, metavar="PICTURE")
    all = flag("also list layers without recorded values")
    json = JSON
    limits = LIMITS


def prove(options: argparse.Namespace) -> int:
    """Prove, print the table, worst first, and the verdict."""
    limits = options.limits
    shapes = () if options.expect else _shapes(options.input, limits)
    if options.probe:
        from ..tools.prove.probe import probe

        probe(options.file, options.probe, options.at, shapes=shapes, force=options.force, limits=limits)
        print(f"{printable(options.probe)}: run  th {printable(options.probe)} MODEL.t7 proof.t7")
        return 0
    counts = len(options.input), len(options.expect)
    if options.expect and counts[0] != counts[1]:
        raise ModelError("each input needs an expected output", expected=f"{counts[0]}", found=f"{counts[1]}")
    pairs = list(zip(options.input, options.expect))
    against = options.recording or pairs or options.other
    proof = t7bridge.prove(
        options.file, options.at, against=against, shapes=shapes, factory=options.factory, limits=limits
    )
    if options.draw:
        from ..tools.draw_proof import draw_proof

        draw_proof(options.file, options.draw, proof, options.at, force=options.force, limits=limits)
    print_proof(proof, as_json=options.json, everything=options.all)
    return proof.exit_code


def _shapes(texts: Sequence[str], limits: Limits) -> list[tuple[int, ...]]:
    """Return the shapes of inputs, which are drawn at random."""
    return [leaf.shape for leaf in leaves(parse_inputs(texts, limits=limits))] if texts else []


def print_proof(proof: Proof, *, as_json: bool, everything: bool) -> None:
    """Print a proof as JSON or as a table."""
    if as_json:
        print_json(proof.as_dict())
        return
    shown = [layer for layer in proof.layers if everything or layer.verdict != "not recorded"]
    shown.sort(key=lambda layer: layer.worst_first())
    wide = max((len(printable(layer.path)) for layer in shown), default=0)
    kind = max((len(printable(layer.class_name)) for layer in shown), default=0)
    for layer in shown:
        print(_row(layer, wide, kind))
    for stretch in proof.stretches[: len(proof.stretches) if everything else 3]:
        print(
            f"{stretch.verdict:13}  {printable(stretch.first)} to {printable(stretch.last)}, {stretch.layers} layers "
            f"one behind the other  abs {stretch.max_abs:.1e}  rel {stretch.max_rel:.1e}  {stretch.reason}".rstrip()
        )
    summary = proof.summary()
    if summary["not recorded"]:
        count = summary["not recorded"]
        text = "1 layer is" if count == 1 else f"{count} layers are"
        print(f"{text} not recorded" + ("" if everything else " (--all lists them)"))
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
