"""The bound on rounding: how far a result may be from that of exact arithmetic.

Lua computed in single or double precision. A layer is computed in double precision, and again with random errors of
Lua's precision in its input and weights, and in single precision. How far these results spread is what rounding
explains.
"""

from __future__ import annotations

from math import inf

import torch

from ...data import define, np
from ...graph.tensor import Tensor
from .runs import Recorded, leaves

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11}
"""Unit roundoff by element type."""
TINY = 1e-300
"""Avoids division by zero expected errors."""
HEADROOM = 15.0
"""Largest rounding error in standard deviations: of a million normal errors the largest has 5, and the order in which
Lua's libraries add up, which the estimate does not know, may triple it."""
EXACT = 20.0
"""Factor of the limit in double precision: the reference itself is no more exact than what it judges, and sums of 400
terms in another order are apart by the root of their number."""
ON_GPU = 10.0
"""Factor of the limit on a GPU, whose libraries transform convolutions by matrices with entries up to 10."""
BACKWARD = 3.0
"""Factor of the limit for gradients: three values of the sum were rounded, gradOutput, input and result."""
RTOL = 1e-4
ATOL = 1e-5
"""The relative and absolute differences allowed for a layer whose entry says that Lua approximates its function."""

_SAMPLE = 2_000
"""Numbers of a tensor that are looked at: if more than 1 in 500 has more digits, one is among these (e^-4: 98 %)."""
_ENOUGH = 16
"""Different numbers that determine a precision: by chance one double in 2^29 is a float."""


# The precision of recorded numbers


def unit_of(value: Recorded) -> float | None:
    """Return the unit roundoff of a value's numbers; `None` if it has no floating-point tensors.

    Doubles that were converted from floats have that of floats, and numbers with six digits in an ascii file that of
    six digits.
    """
    return max((_unit(tensor) for tensor in leaves(value) if tensor.element.name in UNIT), default=None)


def has_precision(value: Recorded) -> bool:
    """Return whether a value has enough different numbers to show its precision."""
    return any(len(_sample(tensor)) >= _ENOUGH for tensor in leaves(value) if tensor.element.name in UNIT)


def _sample(tensor: Tensor) -> np.ndarray:
    """Return some of the different numbers of a tensor, but no zeros."""
    numbers = tensor.numpy().reshape(-1)
    with np.errstate(invalid="ignore"):  # signaling NaNs
        sample = numbers[:: max(1, numbers.size // _SAMPLE)].astype("f8")
    return np.unique(sample[np.isfinite(sample) & (sample != 0)])


def _unit(tensor: Tensor) -> float:
    """Return the unit roundoff of a tensor's numbers: that of its type, or of fewer digits if all have no more."""
    unit = UNIT[tensor.element.name]
    with np.errstate(invalid="ignore", over="ignore"):  # signaling NaNs, and the smallest numbers
        sample = _sample(tensor)
        are_single = bool((sample.astype("f4") == sample).all())
        unit_of_floats = max(unit, UNIT["float32"]) if are_single else unit
        if sample.size < _ENOUGH:
            # Few numbers with 16 binary digits or less may have been written by hand: they show no precision.
            mantissa = np.frexp(sample)[0] * 2.0**16
            has_more_digits = bool((mantissa != np.round(mantissa)).any())
            return unit_of_floats if has_more_digits else unit
        power = np.floor(np.log10(np.abs(sample)))
        # Text of 4 to 6 digits is told from floats, which have 7 of their own; that of doubles from them up to 9.
        for digits in range(4, 10 if unit == UNIT["float64"] else 7):
            places = 10.0 ** (digits - 1 - power)
            if np.allclose(np.round(sample * places) / places, sample, rtol=max(unit, 1e-14), atol=0):
                return max(unit, 0.5 * 10.0 ** (1 - digits))
    return unit_of_floats


# Differences


def spread(exact: list[torch.Tensor], draws: list[list[torch.Tensor]], unit: float) -> list[torch.Tensor]:
    """Return the expected errors of computed tensors, as standard deviations of each element.

    Args:
        exact: the tensors in double precision.
        draws: the same with errors, several times.
        unit: unit roundoff.
    """
    scales = []
    for tensor, *others in zip(exact, *draws):
        squares = torch.zeros_like(tensor)
        for other in others:
            if other.shape == tensor.shape:
                squares += (other - tensor).square()
        squares = (squares / max(len(others), 1)).nan_to_num(0.0, 0.0, 0.0)
        sizes = tensor.abs().nan_to_num(0.0, 0.0, 0.0)
        if tensor.numel():
            # Those of few draws may all be small: each element counts with the mean of all.
            squares = (squares + squares.mean()) / 2
            sizes = sizes + 0.1 * sizes.square().mean().sqrt()
        # A number that is rounded to the nearest is off by half a unit.
        scales.append(squares.sqrt() + 0.5 * unit * sizes + TINY)
    return scales


@define(eq=False)
class Deviation:
    """Numbers of one comparison.

    Attributes:
        reason: why the two cannot be compared element by element; empty where they can.
        max_abs: largest absolute difference.
        max_rel: the same, relative to the largest recorded absolute value.
        excess: the largest difference in units of the rounding limit; 1 is the limit.
        close: whether all are within `RTOL` and `ATOL`.
    """

    reason: str = ""
    max_abs: float = inf
    max_rel: float = inf
    excess: float = inf
    close: bool = False


def measure(
    recorded: list[torch.Tensor], computed: list[torch.Tensor], scales: list[torch.Tensor], headroom: float = 1.0
) -> Deviation:
    """Compare recorded with computed values.

    Args:
        recorded: tensors.
        computed: in double precision.
        scales: expected rounding errors of each element, as standard deviations.
        headroom: factor of the limit.
    """
    if len(recorded) != len(computed):
        return Deviation(f"{len(computed)} outputs, {len(recorded)} recorded")
    for tensor, computed_tensor in zip(recorded, computed):
        if tensor.squeeze().shape != computed_tensor.squeeze().shape:
            return Deviation(f"shape {list(computed_tensor.shape)}, recorded {list(tensor.shape)}")
    in_file = joined(recorded)
    here = joined(computed)
    are_finite = in_file.isfinite() & here.isfinite()
    are_same = (in_file == here) | (in_file.isnan() & here.isnan())
    # A sum beyond the largest float, 3.4e38, is infinite in Lua but not here.
    are_same |= in_file.isinf() & (here.abs() > 3e38)
    if not bool((are_finite | are_same).all()):
        return Deviation("infinite or not a number on one side")
    in_file = torch.where(are_finite, in_file, 0.0)
    here = torch.where(are_finite, here, 0.0)
    error = in_file - here
    largest = _largest(in_file)
    max_abs = _largest(error)
    max_rel = 0.0
    if max_abs:
        max_rel = max_abs / largest if largest else inf
    excess = _largest(error / joined(scales)) / (HEADROOM * headroom)
    is_close = bool((error.abs() <= ATOL + RTOL * in_file.abs()).all())
    return Deviation("", max_abs, max_rel, excess, is_close)


def _largest(values: torch.Tensor) -> float:
    """Return the largest absolute value; 0 if there is none."""
    return float(values.abs().max()) if len(values) else 0.0


def joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the elements of all tensors."""
    return torch.cat([item.reshape(-1).double() for item in tensors] or [torch.zeros(0, dtype=torch.float64)])
