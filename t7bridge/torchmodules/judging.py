"""Differences between recorded and computed values, and whether rounding or a changed weight explains them.

May import nn and below.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Any

import torch
from attrs import field

from ..data import define
from .running import TINY, LiveLayer, NotRunError, Values, flat, mapped

HEADROOM = 15.0
"""Largest rounding error, in standard deviations. Of a million normal errors the largest has five."""
FLOOR, GROWTH, TAIL = 0.3, 4.0, 4.0
"""Minimum standard deviation assumed; how far Lua's may exceed PyTorch's; how far its maximum may."""
EXACT_HEADROOM = 20.0
"""Extra tolerance for double precision, where the reference has errors of the same size."""
COARSE_HEADROOM = 10.0
"""More room for what ran on a GPU, whose libraries transform convolutions."""
DENSE = 0.5
"""The fraction of outputs that must differ for all weights to have changed."""
RTOL, ATOL = 1e-4, 1e-5
"""The differences allowed for a layer with approximate functions."""


@define(eq=False)
class Deviation:
    """Numbers of one comparison.

    Attributes:
        max_abs: largest absolute difference.
        max_rel: the same, relative to the largest recorded absolute value.
        cosine: cosine of the angle between the two; 1 if they are parallel.
        excess: the largest difference in units of the rounding limit; 1 is the limit.
        close: whether all are within `RTOL` and `ATOL`.
        count: how many values were compared.
        dense: the share of values whose difference is more than rounding, without those that are zero on both sides.
        active: how many values are not.
        limit: the largest difference, in standard deviations, that rounding explains.
        reason: why the two cannot be compared element by element; empty where they can.
    """

    max_abs: float = 0.0
    max_rel: float = 0.0
    cosine: float = 1.0
    excess: float = 0.0
    close: bool = True
    count: int = 0
    dense: float = 0.0
    reason: str = ""
    errors: list[torch.Tensor] = field(factory=list, repr=False)
    base: float = field(default=FLOOR, repr=False)
    active: int = 0
    limit: float = HEADROOM


def measure(
    want: list[torch.Tensor],
    got: list[torch.Tensor],
    scales: list[torch.Tensor],
    narrow: list[torch.Tensor] | None = None,
    headroom: float = 1.0,
) -> Deviation:
    """Compare recorded with computed values.

    Args:
        want: recorded tensors.
        got: computed in double precision.
        scales: expected rounding errors of each element, as standard deviations.
        narrow: computed in the precision of the recorded ones, which shows the size of such errors.
        headroom: factor of the limit.
    """
    if len(want) != len(got):
        return Deviation(inf, inf, 0.0, inf, False, 0, 1.0, f"{len(got)} outputs, {len(want)} recorded")
    found = Deviation()
    zs, halves, largest, dots, mine, theirs = [], [], 0.0, 0.0, 0.0, 0.0
    quiet = 0
    for at, (one, other) in enumerate(zip(want, got)):
        other = other.double()
        if one.shape != other.shape:
            if one.numel() != other.numel() or one.squeeze().shape != other.squeeze().shape:
                return Deviation(
                    inf, inf, 0.0, inf, False, 0, 1.0, f"shape {list(other.shape)}, recorded {list(one.shape)}"
                )
            other = other.reshape(one.shape)
        one = one.double()
        both = torch.isfinite(one) & torch.isfinite(other)
        strange = ~both & ~((one == other) | (torch.isnan(one) & torch.isnan(other)))
        if bool(strange.any()):
            # A sum beyond the largest float is infinite in Lua but not here.
            over = torch.isinf(one) & (other.abs() > 3e38)
            if bool((strange & ~over).any()):
                return Deviation(inf, inf, 0.0, inf, False, one.numel(), 1.0, "infinite or not a number at one side")
        error = torch.where(both, one - other, torch.zeros_like(other))
        scale = scales[at].reshape(one.shape)
        found.errors.append(error)
        found.count += one.numel()
        if not one.numel():
            continue
        found.max_abs = max(found.max_abs, float(error.abs().max()))
        largest = max(largest, float(one[both].abs().max()) if bool(both.any()) else 0.0)
        dots += float((one * other)[both].sum())
        mine += float(one[both].square().sum())
        theirs += float(other[both].square().sum())
        found.close = found.close and bool((error.abs() <= ATOL + RTOL * one.abs())[both].all())
        zs.append((error.abs() / scale).reshape(-1))
        quiet += int(((one == 0) & (other == 0)).sum())
        if narrow is not None and at < len(narrow) and narrow[at].numel() == one.numel():
            rough = narrow[at].double().reshape(one.shape)
            halves.append(torch.where(both, (rough - other).abs() / scale, torch.zeros_like(other)).reshape(-1))
    found.max_rel = found.max_abs / largest if largest else (0.0 if not found.max_abs else inf)
    found.cosine = dots / (mine * theirs) ** 0.5 if mine and theirs else float(mine == theirs)
    if not zs:
        return found
    z = torch.cat(zs)
    rough = torch.cat(halves) if halves else torch.zeros(1, dtype=torch.float64)
    own = max(FLOOR, _bulk(rough))
    found.base = max(own, min(_bulk(z), GROWTH * own))
    found.limit = max(HEADROOM * found.base, TAIL * float(rough.max())) * headroom
    found.excess = float(z.max()) / found.limit
    # What an activation has set to zero on both sides says nothing.
    found.active = z.numel() - quiet
    found.dense = int((z > 5 * own * headroom).sum()) / max(found.active, 1)
    return found


def close_enough(
    want: list[torch.Tensor], got: list[torch.Tensor], scales: list[torch.Tensor], headroom: float
) -> bool:
    """Return whether computed values of a changed layer equal recorded ones up to rounding."""
    if len(want) != len(got) or any(one.numel() != other.numel() for one, other in zip(want, got)):
        return False
    if len(scales) != len(got) or any(one.numel() != scale.numel() for one, scale in zip(got, scales)):
        scales = [3e-8 * (item.abs() + item.square().mean().sqrt()) + TINY for item in got]
    found = measure(want, got, scales, None, 2 * headroom)
    return found.excess <= 1 and not found.reason


def same_in_rows(difference: Deviation, most: float) -> bool:
    """Return whether errors are the same in each row, as when a sum over it was approximated, and at most `most`."""
    for error in difference.errors:
        # Classes are the last dimension of vectors and matrices, and the first of one image.
        rows = error if error.dim() < 3 else error.movedim(error.dim() - 3, -1)
        spread = (rows - rows.mean(-1, keepdim=True)).abs()
        if float(error.abs().max()) > most or bool((spread > 1e-6 + 0.02 * rows.abs()).any()):
            return False
    return True


def _bulk(z: torch.Tensor) -> float:
    """Return the standard deviation of most elements, ignoring outliers."""
    nonzero = z[z > 0]
    found = float(nonzero.median()) / 0.6745 if nonzero.numel() * 4 > z.numel() else 0.0
    return found if isfinite(found) else 0.0


@define(eq=False)
class SuspectWeight:
    """The single weight whose change explains a difference best.

    Attributes:
        name: of the parameter.
        index: its index there, 0-based.
        change: the change suggested by the recorded outputs.
        excess: its size in units of the rounding limit; 1 is the limit.
    """

    name: str
    index: tuple[int, ...]
    change: float
    excess: float


def likeliest_weight(
    layer: LiveLayer,
    value: Values,
    difference: Deviation,
    scales: list[torch.Tensor],
    tail: Callable[[Any], Any] | None,
) -> SuspectWeight | None:
    """Find the weight of a layer that deviates most from recorded outputs, where these determine it beyond rounding.

    A change of weight k by d changes the outputs by d times column k of the Jacobian. The fit of d to all outputs finds
    changes that no single output reveals.

    Args:
        layer: a layer that is a sum of products.
        value: its input.
        difference: of its output.
        scales: expected rounding errors of the output.
        tail: elementwise operations applied in place to the output.
    """
    parameters = {name: item for name, item in layer.module.named_parameters() if item.is_floating_point()}
    if not layer.is_sum or not parameters or len(difference.errors) != 1 or not isinstance(value, torch.Tensor):
        return None
    error, scale = difference.errors[0], scales[0]
    try:
        with torch.enable_grad():
            for item in parameters.values():
                item.requires_grad_()
            out = layer.run(value)
            if not isinstance(out, torch.Tensor) or out.numel() != error.numel():
                return None
            slope = torch.ones_like(error)
            if tail is not None:
                middle = out.detach().requires_grad_()
                (slope,) = torch.autograd.grad(tail(middle).sum(), middle)
            slope, error, scale = (item.reshape(out.shape) for item in (slope, error, scale))
            pulls = torch.autograd.grad(out, list(parameters.values()), error * slope / scale.square())
            squares = layer.squared()
            squared = {name: item.requires_grad_() for name, item in squares.named_parameters()}
            total = layer.run(mapped(value, torch.square), squares)
            norms = torch.autograd.grad(
                total, [squared[name] for name in parameters], (slope / scale).square(), allow_unused=True
            )
    except (NotRunError, RuntimeError, KeyError):
        return None
    finally:
        for item in parameters.values():
            item.requires_grad_(False)
    best: SuspectWeight | None = None
    everything = []
    for (name, item), pull, norm in zip(parameters.items(), pulls, norms):
        if norm is None or not item.numel():
            continue
        t = torch.where(norm > 0, pull.abs() / norm.clamp(min=TINY).sqrt(), torch.zeros_like(pull))
        everything.append(t.reshape(-1))
        place = int(t.argmax())
        height = float(t.reshape(-1)[place])
        if best is None or height > best.excess:
            change = float(pull.reshape(-1)[place] / norm.reshape(-1)[place].clamp(min=TINY))
            index = tuple(int(part) for part in torch.unravel_index(torch.tensor(place), item.shape))
            best = SuspectWeight(name, index, change, height)
    if best is None:
        return None
    bulk = _bulk(torch.cat(everything))
    best.excess /= max(HEADROOM * max(difference.base, FLOOR), 20 * min(bulk, 4 * difference.base))
    return best


def squeezed(value: Values) -> list[torch.Tensor]:
    """Return the tensors of a value in double precision."""
    return [item.double() for item in flat(value)]
