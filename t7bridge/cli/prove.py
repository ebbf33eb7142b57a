"""The verb `prove`: which comparison is asked for, and its table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import t7bridge

from ..errors import ModelError
from ..text import printable
from .parser import arguments_of
from .streams import print_json

if TYPE_CHECKING:
    from ..tools.prove.proof import LayerProof, Proof


def prove(options: argparse.Namespace) -> int:
    """Prove, print the table, worst first, and the verdict."""
    limits = options.limits
    if options.probe:
        from ..tools.prove.probe import probe

        probe(options.source, options.probe, options.at, inputs=options.input, force=options.force, limits=limits)
        print(f"{printable(options.probe)}: run  th {printable(options.probe)} MODEL.t7 proof.t7")
        return 0
    counts = len(options.input), len(options.expect)
    if options.expect and counts[0] != counts[1]:
        raise ModelError("each input needs an expected output", expected=f"{counts[0]}", found=f"{counts[1]}")
    pairs = list(zip(options.input, options.expect))
    against = options.recording or pairs or options.other
    proof = t7bridge.prove(**{**arguments_of(options, "prove"), "against": against})
    if options.draw:
        from ..tools.draw_proof import draw_proof

        draw_proof(options.source, options.draw, proof, options.at, force=options.force, limits=limits)
    print_proof(proof, as_json=options.json, everything=options.all)
    return proof.exit_code


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
