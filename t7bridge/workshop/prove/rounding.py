"""The limit on errors of rounding: how far a result may be from that of exact arithmetic.
It is measured: a layer is computed in double precision, and again with random errors of Lua's precision.

Lua computed in single or double precision. The random errors are in the input and the weights of the layer; a last run
is in single precision. How far these results spread is what rounding explains.
"""

from __future__ import annotations

from math import inf

import torch

from ...data import define, np
from ...graph.tensor import Tensor
from .recorded import Recorded, tensors_in

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11}
"""Unit roundoff by element type."""
TINY = 1e-300
"""Avoids division by zero expected errors."""
HEADROOM = 15.0
"""Largest rounding error in standard deviations: of a million normal errors the largest has 5, and the order in which
Lua's libraries add up, which the estimate does not know, may triple it."""
FACTOR_OF_DOUBLES = 20.0
"""Factor of the limit in double precision: the reference itself is no more exact than what it judges, and sums of 400
terms in another order are apart by the root of their number."""
FACTOR_ON_GPU = 10.0
"""Factor of the limit on a GPU, whose libraries transform convolutions by matrices with entries up to 10."""
FACTOR_OF_GRADIENTS = 3.0
"""Factor of the limit for gradients: three values of the sum were rounded, gradOutput, input and result."""
_ERROR_OF_DOUBLES = 1e-10
"""Expected error of a value of a whole model, relative to the largest: both models compute in double precision."""
RTOL = 1e-4
ATOL = 1e-5
"""The relative and absolute differences allowed for a layer whose entry says that Lua approximates its function."""

_PART_OF_MEAN = 0.1
"""Part of a tensor's root mean square that is added to the size of each element: a small one may be a sum of large
terms that cancel, and has their errors. An estimate."""
_NEAR_LARGEST = 0.88
"""Part of the largest number of a type from which on a sum may be infinite in Lua but not here."""
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
    return max((_unit(tensor) for tensor in tensors_in(value) if tensor.element.name in UNIT), default=None)


def has_precision(value: Recorded) -> bool:
    """Return whether a value has enough different numbers to show its precision."""
    return any(len(_sample(tensor)) >= _ENOUGH for tensor in tensors_in(value) if tensor.element.name in UNIT)


def _sample(tensor: Tensor) -> np.ndarray:
    """Return some of the different numbers of a tensor, but no zeros."""
    numbers = tensor.numpy().reshape(-1)
    with np.errstate(invalid="ignore"):  # signaling NaNs
        sample = numbers[:: max(1, numbers.size // _SAMPLE)].astype("f8")
    return np.unique(sample[np.isfinite(sample) & (sample != 0)])


def _unit(tensor: Tensor) -> float:
    """Return the unit roundoff of a tensor's numbers: that of its type, or of fewer digits if all have no more.

    These may be the binary digits of floats, or decimal ones of an ascii file.
    """
    unit = UNIT[tensor.element.name]
    with np.errstate(invalid="ignore", over="ignore"):  # signaling NaNs, and the smallest numbers
        sample = _sample(tensor)
        if sample.size >= _ENOUGH:
            digits = _decimal_digits(sample, unit)
            if digits is not None:
                # Half of the last digit, relative to a number with the smallest first digit, 1.
                return max(unit, 0.5 * 10.0 ** (1 - digits))
        elif not _have_more_than_16_bits(sample):
            return unit  # a few such numbers may have been written by hand: they show no precision
        are_floats = bool((sample.astype("f4") == sample).all())
    return max(unit, UNIT["float32"]) if are_floats else unit


def _have_more_than_16_bits(sample: np.ndarray) -> bool:
    """Return whether any number has more than 16 binary digits."""
    mantissas, _ = np.frexp(sample)
    shifted = mantissas * 2.0**16
    return bool((shifted != np.round(shifted)).any())


def _decimal_digits(sample: np.ndarray, unit: float) -> int | None:
    """Return the number of decimal digits with which numbers were written as text; `None` if they have too many.

    Args:
        sample: the numbers, as doubles, of which none is 0 or infinite: see `_sample`.
        unit: unit roundoff of their own type.
    """
    exponent = np.floor(np.log10(np.abs(sample)))
    # Any float has the 7 digits that its type can hold: only fewer show that it was text. Of doubles up to 9 do.
    most_digits = 9 if unit == UNIT["float64"] else 6
    for digits in range(4, most_digits + 1):  # numbers of fewer digits count as of four
        scale = 10.0 ** (digits - 1 - exponent)
        rounded = np.round(sample * scale) / scale
        # Rounding them here, in doubles, has errors of its own, below 1e-14.
        if np.allclose(rounded, sample, rtol=max(unit, 1e-14), atol=0):
            return digits
    return None


# Differences


def expected_errors(exact: list[torch.Tensor], perturbed: list[list[torch.Tensor]], unit: float) -> list[torch.Tensor]:
    """Return the expected errors of computed tensors, as standard deviations of each element.

    Args:
        exact: the tensors in double precision.
        perturbed: the same, computed several times with errors of Lua's precision.
        unit: unit roundoff of Lua's numbers.
    """
    return [_expected_error(tensor, others, unit) for tensor, *others in zip(exact, *perturbed)]


def _expected_error(tensor: torch.Tensor, perturbed: list[torch.Tensor], unit: float) -> torch.Tensor:
    """Return the expected error of each element of one tensor; see `expected_errors`.

    Args:
        tensor: the tensor in double precision.
        perturbed: the same, computed several times with errors.
        unit: unit roundoff of Lua's numbers.
    """
    squares = torch.zeros_like(tensor)
    for other in perturbed:
        # One of another shape says nothing of these elements; as an error of 0 it makes the limit stricter.
        if other.shape == tensor.shape:
            squares += (other - tensor).square()
    mean_squares = _without_infinities(squares / max(len(perturbed), 1))
    sizes = _without_infinities(tensor.abs())
    if tensor.numel():
        # The few errors of one element may all be small by chance: it counts with the mean of all.
        mean_squares = (mean_squares + mean_squares.mean()) / 2
        sizes = sizes + _PART_OF_MEAN * sizes.square().mean().sqrt()
    # A number that is rounded to the nearest is off by half a unit.
    return mean_squares.sqrt() + 0.5 * unit * sizes + TINY


def _without_infinities(values: torch.Tensor) -> torch.Tensor:
    """Return 0 for elements that are not finite, which have no error: `measure` compares them by themselves."""
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


@define(eq=False)
class Deviation:
    """How far computed values are from recorded ones.

    Attributes:
        reason: why the two cannot be compared element by element; empty where they can.
        max_abs: largest absolute difference.
        max_rel: the same, relative to the largest recorded absolute value.
        excess: the largest difference in units of the rounding limit; 1 is the limit.
        is_close: whether all are within `RTOL` and `ATOL`.
    """

    reason: str = ""
    max_abs: float = inf
    max_rel: float = inf
    excess: float = inf
    is_close: bool = False

    @property
    def is_within_limit(self) -> bool:
        """Whether rounding explains the largest difference."""
        return self.excess <= 1


def measure(
    recorded: list[torch.Tensor], computed: list[torch.Tensor], expected: list[torch.Tensor], factor: float = 1.0
) -> Deviation:
    """Compare recorded with computed values, the elements of all tensors together.

    Args:
        recorded: tensors of the types in which they are recorded, which have different largest numbers.
        computed: as many in double precision, of the same shapes but for dimensions of one element.
        expected: the error of rounding expected for each element of `computed`, as a standard deviation above 0.
        factor: by which the limit on rounding, `HEADROOM` standard deviations, is multiplied.

    Returns:
        The numbers, or in `reason` why there are none.
    """
    reason = _reason_of_shapes(recorded, computed)
    if reason:
        return Deviation(reason)
    in_file = joined(recorded)
    here = joined(computed)
    are_finite = in_file.isfinite() & here.isfinite()
    if not bool(are_finite.all()):
        are_same = are_finite | _are_same_infinities(in_file, here, joined(_largest_numbers(recorded)))
        if not bool(are_same.all()):
            return Deviation("infinite or not a number on one side")
    # Elements that are not finite are the same: they count as no difference.
    in_file = torch.where(are_finite, in_file, 0.0)
    here = torch.where(are_finite, here, 0.0)
    return _deviation(in_file, in_file - here, joined(expected), factor)


def measure_in_doubles(wanted: list[torch.Tensor], computed: list[torch.Tensor]) -> Deviation:
    """Compare values of two models that compute in double precision; they may return whole numbers, such as classes."""
    wanted = [item.double() for item in wanted]
    largest = max((_largest(item.reshape(-1)) for item in wanted), default=0.0)
    expected = [torch.full_like(item, _ERROR_OF_DOUBLES * largest + TINY, dtype=torch.float64) for item in computed]
    return measure(wanted, computed, expected)


def _deviation(in_file: torch.Tensor, error: torch.Tensor, expected: torch.Tensor, factor: float) -> Deviation:
    """Return the numbers of a comparison, of finite elements; rounding explains an excess of up to 1.

    Args:
        in_file: what Lua computed.
        error: how far it is from what was computed here, with its sign.
        expected: the error that rounding makes at each element, as a standard deviation above 0.
        factor: of the limit, which is `HEADROOM` of these deviations.
    """
    max_abs = _largest(error)
    max_rel = _ratio(max_abs, _largest(in_file))
    excess = _largest(error / expected) / (HEADROOM * factor)
    is_close = bool((error.abs() <= ATOL + RTOL * in_file.abs()).all())
    return Deviation(max_abs=max_abs, max_rel=max_rel, excess=excess, is_close=is_close)


def _ratio(difference: float, size: float) -> float:
    """Return a difference relative to a size, of which either may be 0."""
    if not difference:
        return 0.0
    return difference / size if size else inf


def _reason_of_shapes(recorded: list[torch.Tensor], computed: list[torch.Tensor]) -> str:
    """Return why tensors cannot be compared element by element: their number, or their shapes; empty if they can.

    Dimensions of size 1 do not count: the elements and their order are the same without them.
    """
    if len(recorded) != len(computed):
        return f"{len(computed)} computed, {len(recorded)} recorded"
    for tensor, computed_tensor in zip(recorded, computed):
        if tensor.squeeze().shape != computed_tensor.squeeze().shape:
            return f"shape {list(computed_tensor.shape)}, recorded {list(tensor.shape)}"
    return ""


def _are_same_infinities(in_file: torch.Tensor, here: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """Return for each element whether it counts as the same though it is infinite, or not a number.

    Args:
        in_file: what Lua computed in its precision.
        here: what is computed in double precision, where a sum is finite that is too large for Lua's type.
        largest: the largest number of that type.
    """
    are_same = (in_file == here) | (in_file.isnan() & here.isnan())
    is_too_large = (here.abs() > _NEAR_LARGEST * largest) & (here.sign() == in_file.sign())
    return are_same | (in_file.isinf() & is_too_large)


def _largest_numbers(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return for each element of each tensor the largest number of its type; infinity for whole numbers."""
    filled = []
    for tensor in tensors:
        largest = torch.finfo(tensor.dtype).max if tensor.is_floating_point() else inf
        filled.append(torch.full_like(tensor, largest, dtype=torch.float64))
    return filled


def _largest(values: torch.Tensor) -> float:
    """Return the largest absolute value; 0 if there is none."""
    return float(values.abs().max()) if len(values) else 0.0


def joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the elements of all tensors as one vector."""
    return torch.cat([item.reshape(-1).double() for item in tensors] or [torch.zeros(0, dtype=torch.float64)])
