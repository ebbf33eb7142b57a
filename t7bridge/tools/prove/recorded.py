"""Recorded values of a Lua model: the tensors and tables of a file, their memory and their precision.

May import graph. Knows nothing of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from ...graph.lua import Table, TorchObject
from ...graph.tensor import Tensor, contiguous
from ...lazy import np

Recorded = Any
"""A `Tensor` with elements, a `float`, a list of these, or `None` for values missing from the file."""

MAX_DEPTH = 32
"""Deepest nesting of tables of tensors."""
MAX_ITEMS = 100_000
"""Maximum number of elements of one table of tensors."""
_REPEATED = 1 << 22
"""Maximum number of elements of a recorded tensor whose storage has fewer."""


def recorded(value: Any, depth: int = 0) -> Recorded:
    """Return a field's value as recorded tensors and lists; empty, cleared and too large values are `None`."""
    if isinstance(value, Tensor):
        if not value.numel or value.storage is None or value.element.name.startswith("complex"):
            return None  # Lua Torch computes no complex numbers
        # A tensor that repeats its elements is no output of a layer: its size is not limited.
        return value if value.numel <= max(value.storage.count, _REPEATED) else None
    if isinstance(value, float):
        return value
    if isinstance(value, Table) and depth < MAX_DEPTH and 0 < len(value) <= MAX_ITEMS:
        found = [recorded(item, depth + 1) for item in value.sequence() or ()]
        return found if any(item is not None for item in found) else None
    return None


def output_of(obj: Any) -> Recorded:
    """Return the recorded output of a module."""
    return recorded(obj.get("output")) if isinstance(obj, TorchObject) else None


def grad_input_of(obj: Any) -> Recorded:
    """Return the recorded gradient with respect to a module's input."""
    return recorded(obj.get("gradInput")) if isinstance(obj, TorchObject) else None


# Structure


def element(value: Recorded, index: int) -> Recorded:
    """Return the element of a table, from 0; `None` if there is none."""
    return value[index] if isinstance(value, list) and index < len(value) else None


def alone(value: Recorded) -> Recorded:
    """Return the element of a table of one; other values as they are."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def leaves(value: Recorded) -> Iterator[Tensor]:
    """Yield the tensors of a value, in order."""
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, Tensor):
        yield value


def is_whole(value: Recorded) -> bool:
    """Return whether a value is complete."""
    return bool(value) and all(map(is_whole, value)) if isinstance(value, list) else value is not None


def narrow(value: Recorded, dim: int, start: int, length: int) -> Recorded:
    """Return the part of a tensor along a dimension, as a view; `None` if there is none."""
    if not isinstance(value, Tensor) or not 0 <= dim < len(value.size) or not 0 <= start <= value.size[dim] - length:
        return None
    return value[(slice(None),) * dim + (slice(start, start + length),)]


def select(value: Recorded, dim: int, index: int) -> Recorded:
    """Return the slice of a tensor at an index, as a view; `None` if there is none."""
    found = narrow(value, dim, index, 1)
    return found[(slice(None),) * dim + (0,)] if found is not None and len(found.size) > 1 else found


def merged(value: Recorded, dims: int) -> Recorded:
    """Return a contiguous tensor with its first dimensions merged, as a view; `None` for others."""
    if not isinstance(value, Tensor) or not 1 <= dims <= len(value.size) or value.stride != contiguous(value.size):
        return None
    size = (prod(value.size[:dims]), *value.size[dims:])
    return Tensor(value.element, value.storage, size, contiguous(size), value.offset)


def zeros_like(value: Recorded) -> Recorded:
    """Return zeros in the structure of a value."""
    if isinstance(value, list):
        return [zeros_like(item) for item in value]
    return Tensor.from_numpy(np.zeros(value.shape, value.numpy().dtype)) if isinstance(value, Tensor) else None


# Memory


def region(tensor: Tensor) -> tuple[int, int, int]:
    """Return the storage of a tensor, by id, and the first and last element of it that the tensor uses."""
    low, end = tensor.reach()
    return id(tensor.storage), low, end - 1


def overlap(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    """Return whether two regions have elements in common."""
    return one[0] == other[0] and one[1] <= other[2] and other[1] <= one[2]


def view_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return what tells the views of one memory apart."""
    return region(tensor), tensor.size, tensor.stride


def same_values(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same numbers in the same shape."""
    return one.shape == other.shape and bool(np.array_equal(one.numpy(), other.numpy(), equal_nan=True))


# Precision

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11}
"""Unit roundoff by element type."""
_SAMPLE = 2_000
"""Numbers of a tensor that are looked at: if more than 1 in 500 has more digits, one is among these (e^-4: 98 %)."""
_ROUND = 16
"""Binary digits of numbers that may have been written by hand."""
_ENOUGH = 16
"""Number of different values that determine the precision of a file: four digits by chance have 1 of 10^3 doubles."""


def unit_of(value: Recorded) -> float | None:
    """Return the unit roundoff of a value's numbers; `None` if it has no floating-point tensors.

    Doubles that were converted from floats have that of floats, and numbers with six digits in an ascii file that of
    six digits.
    """
    return max((_unit(tensor) for tensor in leaves(value) if tensor.element.name in UNIT), default=None)


def _unit(tensor: Tensor) -> float:
    unit = UNIT[tensor.element.name]
    flat = tensor.numpy().reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):  # signaling NaNs
        sample = flat[:: max(1, flat.size // _SAMPLE)].astype("f8")
        sample = np.unique(sample[np.isfinite(sample) & (sample != 0)])
        single = bool((sample.astype("f4") == sample).all())
    if sample.size < _ENOUGH:
        mantissa = np.frexp(sample)[0] * 2.0**_ROUND
        single = single and bool((mantissa != np.round(mantissa)).any())
    else:
        power = np.floor(np.log10(np.abs(sample)))
        for digits in range(4, 10 if unit == UNIT["float64"] else 7):
            places = 10.0 ** (digits - 1 - power)
            if np.allclose(np.round(sample * places) / places, sample, rtol=max(unit, 1e-14), atol=0):
                return max(unit, 0.5 * 10.0 ** (1 - digits))
    return max(unit, UNIT["float32"]) if single else unit


def is_computed(value: Recorded) -> bool:
    """Return whether a value holds computed numbers, not memory that was never written: zeros, or next to zero."""
    arrays = [tensor.numpy() for tensor in leaves(value)]
    return not arrays or any(
        array.dtype.kind != "f" or bool((np.abs(array[np.isfinite(array)]) > 1e-30).any()) for array in arrays
    )
