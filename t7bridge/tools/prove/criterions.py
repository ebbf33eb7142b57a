"""Criterions: the recorded loss is recomputed from the model's output and the target that the gradient implies.

A criterion stores its loss as `output` and the gradient with respect to its input as `gradInput`, but no target. Many
gradients contain the target: in that of a negative log-likelihood only the right class is not zero, and that of squares
is the difference itself. Source: nn 8726825, `lib/THNN/generic/*Criterion.c`. May import graph, nn and
torchmodules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import T7BridgeError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...lazy import np
from ...limits import DEFAULT_LIMITS, Limits
from .proof import AGREES, DIFFERS, NOT_CHECKABLE, NOT_RECORDED, LayerProof
from .reasons import NO_INPUT, NO_TARGET, NOT_A_NUMBER, OPTION, OTHER_TARGET
from .runs import base_name
from .values import Recorded, grad_input_of, output_of, unit_of

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

Target = Callable[["TorchObject", "Array", "Array"], "Array | None"]
"""The target for an input and the gradient with respect to it; `None` where they do not determine it."""


def is_criterion(obj: TorchObject) -> bool:
    """Return whether an object is a criterion, by its name."""
    return base_name(obj.class_name).endswith("Criterion")


def prove_criterion(
    obj: TorchObject, path: str, models: list[TorchObject], limits: Limits = DEFAULT_LIMITS
) -> LayerProof:
    """Return the verdict on a criterion.

    Args:
        obj: the criterion.
        path: its path.
        models: those in the same file: the output with the form of the criterion's gradient is its input.
        limits: resource limits.
    """
    proof = LayerProof(path, obj.class_name, NOT_RECORDED, reason=NO_INPUT)
    loss, slope = obj.get("output"), grad_input_of(obj)
    given = _input_for(models, slope)
    if not isinstance(loss, float) or given is None:
        return proof
    proof.verdict, proof.reason = NOT_CHECKABLE, NO_TARGET
    if loss != loss or loss in (float("inf"), float("-inf")):
        proof.reason = NOT_A_NUMBER
        return proof
    tell = _TELLERS.get(base_name(obj.class_name))
    if tell is None or not isinstance(slope, Tensor) or not isinstance(given, Tensor):
        return proof
    difference = _compared(obj, tell, given, slope, loss, path, limits)
    if difference is None:
        return proof
    proof.reason = OTHER_TARGET
    averaged = obj.get("sizeAverage")
    if difference[0] > difference[1] and isinstance(averaged, bool):
        from ...torchmodules.running import with_fields

        other = with_fields(obj, {"sizeAverage": not averaged})
        again = _compared(other, tell, given, slope, loss, path, limits)
        if again is not None and again[0] <= again[1]:
            shown = [str(value).lower() for value in (not averaged, averaged)]
            proof.verdict, proof.reason = DIFFERS, OPTION.format("sizeAverage", *shown)
    elif difference[0] <= difference[1]:
        proof.verdict, proof.reason = AGREES, ""
    if proof.verdict != NOT_CHECKABLE:
        proof.max_abs, proof.max_rel = difference[0], difference[0] / abs(loss) if loss else 0.0
        proof.cosine, proof.excess, proof.compared = 1.0, difference[0] / difference[1], 1
    return proof


def _input_for(models: list[TorchObject], slope: Recorded) -> Recorded:
    """Return the output of the model that was a criterion's input."""
    outputs = [output for output in map(output_of, models) if output is not None]
    if isinstance(slope, Tensor):
        outputs = [output for output in outputs if isinstance(output, Tensor) and output.numel == slope.numel]
    return outputs[0] if len(outputs) == 1 else None


def _compared(
    obj: TorchObject, tell: Target, given: Tensor, slope: Tensor, loss: float, path: str, limits: Limits
) -> tuple[float, float] | None:
    """Return the difference of the loss, and the limit; `None` if the gradient determines no target."""
    from ...torchmodules.running import LiveLayer, NotRunError, flat, to_torch

    value = given.numpy().astype("f8")
    target = tell(obj, value, slope.numpy().astype("f8").reshape(value.shape))
    if target is None:
        return None
    try:
        layer = LiveLayer.build(obj, path, unit_of(given) or 2.0**-24, limits)
        got = layer.loss(to_torch(Tensor.from_numpy(value)), to_torch(Tensor.from_numpy(target)))
    except (NotRunError, T7BridgeError):
        return None
    found = [float(item) for item in flat(got)]
    if len(found) != 1:
        return None
    return abs(found[0] - loss), 1e-5 + 1e-4 * abs(loss)


def _classes(obj: TorchObject, value: Array, slope: Array) -> Array | None:
    """Return the classes of a negative log-likelihood: one number of each row of the gradient is not zero."""
    inner = obj.get("nll")
    if isinstance(inner, TorchObject):  # CrossEntropyCriterion
        part = grad_input_of(inner)
        if not isinstance(part, Tensor) or part.numel != slope.size:
            return None
        slope = part.numpy().astype("f8").reshape(slope.shape)
    rows = slope.reshape(-1, slope.shape[-1]) if slope.ndim <= 2 else None
    if rows is None or not ((rows != 0).sum(1) == 1).all():
        return None
    found: Array = np.abs(rows).argmax(1) + 1.0
    return found if slope.ndim == 2 else found[:1]


def _squares(obj: TorchObject, value: Array, slope: Array) -> Array:
    return value - slope * _count(obj, value) / 2


def _binary(obj: TorchObject, value: Array, slope: Array) -> Array | None:
    if obj.get("weights") is not None:
        return None
    found = value - slope * _count(obj, value) * (1 - value + 1e-12) * (value + 1e-12)
    whole = np.round(found)
    near: Array = whole if np.abs(found - whole).max() < 1e-2 else np.clip(found, 0, 1)
    return near


def _divergence(obj: TorchObject, value: Array, slope: Array) -> Array:
    return -slope * _count(obj, value)


def _margin(obj: TorchObject, value: Array, slope: Array) -> Array:
    return np.where(slope != 0, -np.sign(slope), np.where(value < 0, -1.0, 1.0))


def _smooth(obj: TorchObject, value: Array, slope: Array) -> Array | None:
    left = slope * _count(obj, value)
    return value - left if np.abs(left).max() < 1 else None


def _count(obj: TorchObject, value: Array) -> int:
    return value.size if obj.get("sizeAverage") is not False else 1


_TELLERS: dict[str, Target] = {
    "ClassNLLCriterion": _classes,
    "CrossEntropyCriterion": _classes,
    "MSECriterion": _squares,
    "BCECriterion": _binary,
    "DistKLDivCriterion": _divergence,
    "MarginCriterion": _margin,
    "SmoothL1Criterion": _smooth,
}
"""Criterions whose gradient determines the target."""
