"""Criterions: the recorded loss is recomputed from the model's output and the target that the gradient implies.

A criterion stores its loss as `output` and the gradient with respect to its input as `gradInput`, but no target. Many
gradients contain the target: in that of a negative log-likelihood only the right class is not zero, and that of squares
is the difference itself. Source: nn 8726825, `lib/THNN/generic/*Criterion.c`. May import graph and nn.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import torch

from ...errors import T7BridgeError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...limits import Limits
from .judge import NO_INPUT
from .layer import LiveLayer, NotRunError, flat, to_torch, with_fields
from .proof import AGREES, DIFFERS, FILE, NOT_CHECKABLE, NOT_RECORDED, LayerProof
from .recorded import UNIT, grad_input_of, output_of, unit_of
from .residual import ATOL, RTOL
from .runs import base_name

NO_TARGET = "its target is not recorded"
OTHER_TARGET = "its gradient is of another pass, or does not determine the target"


def is_criterion(obj: TorchObject) -> bool:
    """Return whether an object is a criterion, by its name."""
    return base_name(obj.class_name).endswith("Criterion")


def prove_criterion(obj: TorchObject, path: str, models: list[TorchObject], limits: Limits) -> LayerProof:
    """Return the verdict on a criterion.

    Args:
        obj: the criterion.
        path: its path.
        models: those in the same file: the output with the form of the criterion's gradient is its input.
        limits: resource limits.
    """
    loss, slope = obj.get("output"), grad_input_of(obj)
    outputs = [output for output in map(output_of, models) if output is not None]
    if isinstance(slope, Tensor):
        outputs = [output for output in outputs if isinstance(output, Tensor) and output.numel == slope.numel]
    proof = LayerProof(path, obj.class_name, NOT_RECORDED, reason=NO_INPUT)
    if not isinstance(loss, float) or len(outputs) != 1:
        return proof
    proof.verdict, proof.reason = NOT_CHECKABLE, NO_TARGET if isfinite(loss) else "its recorded output is not a number"
    if not isfinite(loss) or not isinstance(slope, Tensor) or not isinstance(outputs[0], Tensor):
        return proof
    value = to_torch(outputs[0]).double()
    off = _difference(obj, value, slope, loss, path, limits)
    if off is None:
        return proof
    proof.reason, averaged = OTHER_TARGET, obj.get("sizeAverage")
    if off <= 1:
        proof.verdict, proof.reason = AGREES, ""
    elif isinstance(averaged, bool):
        other = _difference(with_fields(obj, {"sizeAverage": not averaged}), value, slope, loss, path, limits)
        if other is not None and other <= 1:
            now, then = (str(item).lower() for item in (averaged, not averaged))
            proof.verdict, proof.blame = DIFFERS, FILE
            proof.reason = f"sizeAverage = {then} agrees (the file has {now})"
    if proof.verdict != NOT_CHECKABLE:
        proof.max_abs = off * (ATOL + RTOL * abs(loss))
        proof.max_rel = proof.max_abs / abs(loss) if loss else 0.0
        proof.cosine, proof.excess, proof.compared = 1.0, off, 1
    return proof


def _difference(
    obj: TorchObject, value: torch.Tensor, slope: Tensor, loss: float, path: str, limits: Limits
) -> float | None:
    """Return the difference of the loss in units of the limit; `None` if the gradient determines no target."""
    target_of = _TARGETS.get(base_name(obj.class_name))
    inner = obj.get("nll")
    if isinstance(inner, TorchObject):  # CrossEntropyCriterion
        part = grad_input_of(inner)
        if not isinstance(part, Tensor) or part.numel != slope.numel:
            return None
        slope = part
    count = value.numel() if obj.get("sizeAverage") is not False else 1
    target = target_of(value, to_torch(slope).double().reshape(value.shape), count) if target_of is not None else None
    if target is None or (obj.get("weights") is not None and "BCE" in obj.class_name):
        return None
    try:
        layer = LiveLayer.build(obj, path, unit_of(slope) or UNIT["float32"], limits)
        (found,) = flat(layer.run(value, target))
        return abs(float(found) - loss) / (ATOL + RTOL * abs(loss))
    except (NotRunError, T7BridgeError, ValueError):
        return None


def _class_of(value: torch.Tensor, slope: torch.Tensor, count: int) -> torch.Tensor | None:
    """Return the classes of a negative log-likelihood: one number of each row of the gradient is not zero."""
    if slope.dim() > 2 or not bool(((slope != 0).sum(-1) == 1).all()):
        return None
    return slope.abs().argmax(-1).reshape(-1).double() + 1


def _probability(value: torch.Tensor, slope: torch.Tensor, count: int) -> torch.Tensor:
    found = value - slope * count * (1 - value + 1e-12) * (value + 1e-12)
    whole = found.round()
    return whole if bool((found - whole).abs().max() < 1e-2) else found.clamp(0, 1)


_TARGETS: dict[str, Callable[[torch.Tensor, torch.Tensor, int], Any]] = {
    "ClassNLLCriterion": _class_of,
    "CrossEntropyCriterion": _class_of,
    "MSECriterion": lambda value, slope, count: value - slope * count / 2,
    "BCECriterion": _probability,
    "DistKLDivCriterion": lambda value, slope, count: -slope * count,
    "MarginCriterion": lambda value, slope, count: torch.where(
        slope != 0, -slope.sign(), torch.where(value < 0, -1.0, 1.0).double()
    ),
    # Beyond 1 the gradient is constant.
    "SmoothL1Criterion": lambda value, slope, count: value - slope * count if (slope * count).abs().max() < 1 else None,
}
"""Criterions whose gradient determines the target: that for an input, a gradient, and the number that it averages."""
