"""Two models on the same inputs, layer by layer wherever they correspond.

May import conversion, formats, graph, nn and torchmodules.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ... import formats
from ...errors import ModelError
from ...io.source import Readable
from ...limits import DEFAULT_LIMITS, Limits
from .probe import Draw, drawn, fitting_inputs
from .proof import AGREES, DIFFERS, NOT_CHECKABLE, LayerProof, Proof
from .prove import chosen, need_torch

MANY = 20_000
"""Maximum number of layers that are compared."""


def prove_two(
    first: Readable,
    second: str,
    at: str | None = None,
    *,
    shapes: Sequence[tuple[int, ...]] = (),
    factory: str | None = None,
    seed: int = 1,
    limits: Limits = DEFAULT_LIMITS,
) -> Proof:
    """Run two models on the same seeded inputs and compare the outputs of their layers.

    Args:
        first: a `.t7`.
        second: a `.t7`; a folder written by `t7bridge module`, whose model.py is imported and run; a TorchScript
            archive; or a `.pt` with a state dict, with `factory`.
        at: the path of the model in `first`, if it contains several.
        shapes: of the inputs; inferred from the layers of `first` if empty.
        factory: `package:name` of the constructor of the model of a `.pt`, which is imported and called.
        seed: of the inputs.
        limits: resource limits.

    Returns:
        A verdict for each layer of `first` that has a counterpart, and for the whole.

    Raises:
        ModelError: a model cannot be built, or the two do not accept the same inputs.
    """
    need_torch()
    from ...torchmodules import pairing

    document = formats.open(first, limits=limits)
    if document.spec.values != formats.LUA:
        raise ModelError("the first of two models is a .t7", file=document.path)
    found = chosen(document.first, document.path, at)
    if len(found) > 1:
        paths = ", ".join(path for path, _ in found[:50])
        raise ModelError("the file holds several modules", file=document.path, hint=f"Name one with --at: {paths}.")
    path, model = found[0]
    spec: Any = [Draw(shape) for shape in shapes]
    spec = (spec[0] if len(spec) == 1 else spec) if spec else fitting_inputs(model, path, limits)
    mine = pairing.live(model, path, limits)
    theirs = _second(second, factory, limits)
    rows = pairing.compare(mine, theirs, drawn(spec, seed))
    name = os.path.basename(second.rstrip(os.sep))
    proof = Proof(document.path, against=f"layers of {name}", reference=name)
    for row in rows[:MANY]:
        verdict = AGREES if row.agrees else DIFFERS
        layer = LayerProof(
            row.name, row.class_name, verdict, row.max_abs, row.max_rel, row.cosine, row.excess, row.count
        )
        layer.parameters, layer.reason = row.parameters, row.reason
        if not row.count and not row.reason:
            layer.verdict = NOT_CHECKABLE
        proof.layers.append(layer)
    return proof


def _second(path: str, factory: str | None, limits: Limits) -> Any:
    from ...torchmodules import pairing

    if os.path.isdir(path):
        return pairing.from_folder(path)
    if factory is not None:
        from ...conversion.torch_weights import torch_weights

        return pairing.from_factory(factory, torch_weights(path, limits), path)
    document = formats.open(path, limits=limits)
    if document.spec.values == formats.LUA:
        ((place, model),) = chosen(document.first, path, None)[:1]
        return pairing.live(model, place, limits)
    if pairing.is_torchscript(path):
        return pairing.from_torchscript(path)
    raise ModelError(
        "a state dict is not a model without its code",
        file=path,
        hint="Name its constructor: --module package:factory.",
    )
