"""A picture of a proof: each layer coloured by its distance from Lua Torch. May import tools/draw and tools/prove."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..errors import TargetExistsError
from ..io.source import PathLike, inputs_protected
from ..limits import DEFAULT_LIMITS, Limits
from .draw.drawing import Drawing, check_picture, draw
from .prove.proof import AGREES, DIFFERS, NOT_CHECKABLE, NOT_RECORDED, STALE, LayerProof, Proof

NEAR = 1e-5
"""Relative differences from here on have a colour of their own, although rounding explains them."""
_MARKS = {DIFFERS: "differs", STALE: "stale", NOT_CHECKABLE: "unchecked", NOT_RECORDED: "unchecked"}


@inputs_protected()
def draw_proof(
    src: PathLike,
    dst: PathLike,
    proof: Proof,
    at: str | None = None,
    *,
    force: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Drawing:
    """Draw a model with the verdict on each layer.

    Layers that agree are green, or a paler green from a relative difference of `NEAR` on; stale ones are yellow, those
    that differ red, and those that were not checked grey. The labels of the others show the largest relative
    difference.

    Args:
        src: the file that was proved.
        dst: the picture, in any format of `draw`.
        proof: the proof.
        at: the path of a model if the file holds several.
        force: whether an existing file is replaced.
        limits: resource limits.

    Raises:
        ModelError: `dst` is not a picture.
        TargetExistsError: the picture exists and `force` is not set.
    """
    check_picture(dst)
    if os.path.exists(dst) and not force:
        raise TargetExistsError("the picture exists", file=os.fspath(dst), hint="Replace it with --force.")
    drawing = draw(src, None, at, limits=limits)
    mark(drawing, {layer.path: layer for layer in proof.layers})
    drawing.write(dst, force=force)
    return drawing


def mark(drawing: Drawing, layers: Mapping[str, LayerProof]) -> None:
    """Set verdicts in the blocks of a drawing, by path."""
    for block in drawing.blocks:
        layer = layers.get(block.path)
        if layer is None or block.mark in ("unmapped", "again"):
            continue
        near = layer.verdict == AGREES and (layer.max_rel or 0.0) >= NEAR
        block.mark = _MARKS.get(layer.verdict, "near" if near else "agrees")
        size = "" if layer.max_rel is None or block.mark == "agrees" else f", {layer.max_rel:.0e}"
        block.lines.append(f"{layer.verdict}{size}")
