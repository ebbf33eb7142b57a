"""Checks of recorded gradients: gradOutput to gradInput, and to gradWeight where that was not accumulated.

May import graph, nn and torchmodules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import T7BridgeError
from ...graph.tensor import Tensor
from ...limits import Limits
from .judge import headroom_of
from .proof import AGREES, DIFFERS, NOT_CHECKABLE
from .values import leaves, unit_of, zeros_like

if TYPE_CHECKING:
    from ...torchmodules.running import LiveLayer
    from .outcome import Outcome


def check_backward(outcome: Outcome, value: Any, layer: LiveLayer | None, limits: Limits) -> None:
    """Compare a step's recorded gradInput with the one computed from its gradOutput.

    Args:
        outcome: of the step; the verdict is written there.
        value: the input of the step in double precision, `None` if unknown; sums of products do not need it.
        layer: the live layer, if it was already built.
        limits: resource limits.
    """
    from ...torchmodules import running
    from ...torchmodules.judging import measure, squeezed

    step = outcome.step
    units = [unit_of(step.grad_input), unit_of(step.grad_output)]
    if None in units:
        return
    unit = max(item for item in units if item is not None)
    try:
        layer = layer or running.LiveLayer.build(step.obj, step.path, unit, limits)
        outcome.independent = layer.is_sum
        if value is None:
            if not layer.is_sum or not isinstance(step.grad_input, Tensor):
                return
            value = running.to_torch(zeros_like(step.grad_input)).double()
        slope = running.mapped(running.to_torch(step.grad_output), lambda item: item.double())
        found = running.backward(layer, value, slope)
        want = squeezed(running.to_torch(step.grad_input))
        pairs = [(one, other) for one, other in zip(want, found) if other is not None]
        if len(found) != len(want) or not pairs or any(one.numel() != other.numel() for one, other in pairs):
            outcome.backward = NOT_CHECKABLE
            return
        if any(not bool(one.isfinite().all()) for one, _ in pairs):
            return
        want = [one for one, _ in pairs]
        got = [other.reshape(one.shape) for one, other in pairs]
        scales = running.backward_scale(layer, value, slope, [other for other in found if other is not None])
        scales = [scale.reshape(one.shape) for scale, one in zip(scales, want)]
        difference = measure(want, got, scales, None, 3 * headroom_of(step, unit))
    except (running.NotRunError, T7BridgeError):
        outcome.backward = NOT_CHECKABLE
        return
    outcome.backward_difference = difference
    outcome.backward = AGREES if difference.excess <= 1 or (difference.close and not layer.is_sum) else DIFFERS
    if outcome.backward == AGREES and not any(True for _ in leaves(step.grad_output)):
        outcome.backward = NOT_CHECKABLE
    if outcome.backward == AGREES and outcome.verdict == AGREES:
        _check_weights(outcome, layer, value, slope)


def _check_weights(outcome: Outcome, layer: LiveLayer, value: Any, slope: Any) -> None:
    """Compare gradWeight with that of this one pass; several passes may have been accumulated, so only agreement is
    conclusive.
    """
    from ...torchmodules import running

    obj = outcome.step.obj
    want = obj.get("gradWeight")
    if not layer.is_sum or not isinstance(want, Tensor) or not want.numel or not isinstance(obj.get("weight"), Tensor):
        return
    given = running.with_gradients(obj)
    if given is None:
        return
    try:
        kept = running.LiveLayer.build(given, outcome.step.path, layer.unit)
    except T7BridgeError:
        return
    if running.weight_gradients_agree(layer, kept, value, slope):
        outcome.gradients = AGREES
    else:
        outcome.gradients = NOT_CHECKABLE
