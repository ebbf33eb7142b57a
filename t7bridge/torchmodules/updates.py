"""Updates of weights: whether a step along a recorded gradient, or along a direction of an optimizer, explains a
difference between recorded and computed values. May import nn and below.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Any

import torch

from ..data import define
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor
from ..limits import Limits
from .chains import Chain
from .judging import Deviation
from .running import GRADIENTS, NotRunError, flat

if TYPE_CHECKING:
    import numpy as np

ROUNDS = 25
"""Steps of conjugate gradients in the search for the change of weights that explains a difference."""

Pick = Callable[[TorchObject, str, Tensor], "np.ndarray[Any, Any] | None"]
"""Values in the shape of the weights in a field of a module, from the module, the field and the weights; or `None`."""


@define(eq=False)
class Direction:
    """A direction in which weights may have changed.

    Attributes:
        kind: one of the constants of this module.
        name: its origin, for messages.
        pick: the direction, for each tensor of weights.
    """

    kind: str
    name: str
    pick: Pick

    @property
    def scales(self) -> bool:
        """True if the weights were multiplied by a factor."""
        return self.kind == SCALE

    @property
    def is_recorded(self) -> bool:
        """True if the state of an optimizer determines it."""
        return self.kind == STATE


GRADIENT = "gradient"
"""Along the recorded gradients: gradient descent."""
SIGN = "sign"
"""Along their signs: the first step of Adam, Adamax, RMSprop and Adagrad."""
STATE = "state"
"""Along the last step of an optimizer whose state is saved beside the model."""
SCALE = "scale"
"""Along the weights themselves: they were multiplied by a factor. No optimizer does so."""


def gradient_of(obj: TorchObject, name: str, tensor: Tensor) -> np.ndarray[Any, Any] | None:
    """Return the recorded gradient of a module's weights; `None` if there is none."""
    found = obj.get(GRADIENTS[name])
    return found.numpy() if isinstance(found, Tensor) and found.shape == tensor.shape else None


def _sign_of(obj: TorchObject, name: str, tensor: Tensor) -> np.ndarray[Any, Any] | None:
    import numpy as np

    found = gradient_of(obj, name, tensor)
    return None if found is None else np.sign(found)


def _weights(obj: TorchObject, name: str, tensor: Tensor) -> np.ndarray[Any, Any] | None:
    return tensor.numpy() if name == "weight" else None


def _all_weights(obj: TorchObject, name: str, tensor: Tensor) -> np.ndarray[Any, Any] | None:
    return tensor.numpy() if name in ("weight", "bias") else None


ALONG_GRADIENT = Direction(GRADIENT, "the recorded gradient", gradient_of)
ALONG_SIGN = Direction(SIGN, "the signs of the recorded gradient", _sign_of)
SCALINGS = (Direction(SCALE, "weight", _weights), Direction(SCALE, "weight and bias", _all_weights))


@define(eq=False)
class Fit:
    """Fit of a step along a direction to a difference.

    Attributes:
        direction: the direction.
        rate: the learning rate that fits best.
        explained: the share of the squared difference that it explains, 0 to 1.
        excess: the remaining difference, in units of the expected rounding error.
        cosine: of the angle between the recorded gradient and the least change of the weights that explains the
            difference; `None` where no gradient is recorded.
        degrees: number of elements of that change.
    """

    direction: Direction
    rate: float
    explained: float
    excess: float
    cosine: float | None = None
    degrees: int = 1

    @property
    def score(self) -> float:
        """The cosine in units of its standard deviation for a change in any direction."""
        return (self.cosine or 0.0) * sqrt(self.degrees)


def fit_steps(
    want: list[torch.Tensor],
    difference: Deviation,
    chain: Chain,
    scales: list[torch.Tensor],
    states: tuple[Direction, ...],
    limits: Limits,
) -> Fit | None:
    """Fit a step along each direction of an optimizer; return the first that explains everything, or the best.

    Args:
        want: recorded outputs.
        difference: from the outputs with the weights in the file.
        chain: the layers between the recorded values.
        scales: expected rounding errors of the outputs.
        states: directions from the states of optimizers.
        limits: resource limits.

    Returns:
        The fit; `None` if the layers have no weights.
    """
    best: Fit | None = None
    cosine: float | None = None
    scales = blunted(scales)
    for direction in (*states, ALONG_GRADIENT, ALONG_SIGN, *SCALINGS):
        slopes = chain.slopes(direction.pick, limits)
        if not any(bool(item.any()) for named in slopes for item in named.values()):
            continue
        found = fit_step(want, difference, chain, scales, slopes, direction)
        if direction.kind == GRADIENT:
            cosine = _direction(chain, slopes, difference)
        if found is None:
            continue
        right = found.rate > 0 or direction.scales
        if right and (best is None or (found.excess <= 1 < best.excess) or _better(found, best)):
            best = found
        if right and found.excess <= 1:
            break
    if best is not None:
        best.cosine = cosine
    return best


def _better(one: Fit, other: Fit) -> bool:
    """Return whether a fit is better than an earlier one."""
    return other.excess > 1 and not one.direction.scales and 1 - one.explained < 0.5 * (1 - other.explained)


def blunted(scales: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return expected rounding errors for changed weights: at least the mean of all.

    An activation that set elements to zero may then let them pass.
    """
    return [scale.clamp(min=float(scale.square().mean().sqrt())) if scale.numel() else scale for scale in scales]


def fit_step(
    want: list[torch.Tensor],
    difference: Deviation,
    chain: Chain,
    scales: list[torch.Tensor],
    slopes: list[dict[str, torch.Tensor]],
    direction: Direction,
) -> Fit | None:
    """Fit a learning rate: with weights + rate * slopes the layers should return the recorded values.

    Args:
        want: recorded outputs.
        difference: from the outputs with the weights in the file.
        chain: the layers between the recorded values.
        scales: expected rounding errors of the outputs.
        slopes: the direction, for each layer by the names of its weights.
        direction: the origin of `slopes`.

    Returns:
        The fit; `None` if it cannot be determined.
    """
    weight = torch.cat([scale.reshape(-1) for scale in scales])
    target = torch.cat([item.double().reshape(-1) for item in want])
    error = torch.cat([item.reshape(-1) for item in difference.errors])
    # Overflowed elements say nothing about the rate.
    kept = torch.isfinite(target)

    def missing(rate: float) -> torch.Tensor:
        found = torch.cat([item.double().reshape(-1) for item in flat(chain.run(slopes, rate))])
        return torch.where(kept, target - found, torch.zeros_like(target)) / weight

    whole = float((error / weight).square().sum())
    try:
        start = chain.unit_step(slopes)
        rate, best = 0.0, whole
        at = error / weight
        for _ in range(6):
            step = start if not rate else abs(rate) * 1e-2
            along = (at - missing(rate + step)) / step
            norm = float(along.square().sum())
            if not norm or not isfinite(norm):
                break
            trial = rate + float((at * along).sum()) / norm
            left = missing(trial)
            total = float(left.square().sum())
            if not isfinite(total) or total >= best:
                break
            rate, best, at = trial, total, left
    except (NotRunError, RuntimeError):
        return None
    if not whole:
        return None
    # The step itself was rounded as well.
    rest = float(at.abs().max()) / (2 * difference.limit)
    weights = sum(item.numel() for named in slopes for item in named.values())
    degrees = max(1, min(weights, int(difference.dense * difference.active)))
    return Fit(direction, rate, max(0.0, 1 - best / whole), rest, None, degrees)


def _direction(chain: Chain, slopes: list[dict[str, torch.Tensor]], difference: Deviation) -> float:
    """Return the cosine of the angle between gradients and the smallest change of weights that explains a difference.

    The change is found by conjugate gradients on the normal equations, from zero.
    """
    names = [(place, name) for place, named in enumerate(slopes) for name in named]
    error = [torch.where(torch.isfinite(item), item, torch.zeros_like(item)) for item in difference.errors]
    try:
        step = [torch.zeros_like(slopes[place][name]) for place, name in names]
        left = error
        pull = chain.adjoint(names, left)
        along = pull
        size = first = _dot(pull, pull)
        for _ in range(ROUNDS):
            if not size > 1e-12 * first:
                break
            moved = chain.tangent(names, along)
            norm = _dot(moved, moved)
            if not norm > 0:
                break
            by = size / norm
            step = [one + by * other for one, other in zip(step, along)]
            left = [one - by * other for one, other in zip(left, moved)]
            pull = chain.adjoint(names, left)
            size, before = _dot(pull, pull), size
            along = [one + size / before * other for one, other in zip(pull, along)]
    except (NotRunError, RuntimeError):
        return 0.0
    gradient = [slopes[place][name] for place, name in names]
    both = (_dot(step, step) * _dot(gradient, gradient)) ** 0.5
    return _dot(step, gradient) / both if both > 0 and isfinite(both) else 0.0


def _dot(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return sum(float((left * right).sum()) for left, right in zip(one, other))
