"""Recorded values of a Lua model: the tensors and tables of a file, and their memory.

May import graph and nn. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...graph.lua import Table, TorchObject
from ...graph.tensor import Tensor
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
    if isinstance(value, float) and not isinstance(value, bool):
        return value
    if isinstance(value, Table) and depth < MAX_DEPTH and 0 < len(value) <= MAX_ITEMS:
        items = value.sequence()
        if items is None:
            return None
        found = [recorded(item, depth + 1) for item in items]
        return found if any(item is not None for item in found) else None
    return None


def output_of(obj: Any) -> Recorded:
    """Return the recorded output of a module."""
    return recorded(obj.get("output")) if isinstance(obj, TorchObject) else None


def grad_input_of(obj: Any) -> Recorded:
    """Return the recorded gradient with respect to a module's input."""
    return recorded(obj.get("gradInput")) if isinstance(obj, TorchObject) else None


def element(value: Recorded, index: int) -> Recorded:
    """Return the element of a table, from 0; `None` if there is none."""
    return value[index] if isinstance(value, list) and -len(value) <= index < len(value) else None


def leaves(value: Recorded) -> Iterator[Tensor]:
    """Yield the tensors of a value, in order."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, list):
            stack += reversed(item)


def is_whole(value: Recorded) -> bool:
    """Return whether a value is complete."""
    if isinstance(value, list):
        return bool(value) and all(is_whole(item) for item in value)
    return value is not None


def select(value: Recorded, dim: int, index: int) -> Recorded:
    """Return the slice of a tensor at an index, as a view; `None` if there is none."""
    if not isinstance(value, Tensor) or not 0 <= dim < len(value.size) or not 0 <= index < value.size[dim]:
        return None
    size = value.size[:dim] + value.size[dim + 1 :]
    stride = value.stride[:dim] + value.stride[dim + 1 :]
    offset = value.offset + index * value.stride[dim]
    if not size:
        size, stride = (1,), (1,)
    return Tensor(value.element, value.storage, size, stride, offset)


def narrow(value: Recorded, dim: int, start: int, length: int) -> Recorded:
    """Return the part of a tensor along a dimension, as a view; `None` if there is none."""
    if not isinstance(value, Tensor) or not 0 <= dim < len(value.size) or start + length > value.size[dim]:
        return None
    size = (*value.size[:dim], length, *value.size[dim + 1 :])
    return Tensor(value.element, value.storage, size, value.stride, value.offset + start * value.stride[dim])


def merged(value: Recorded, dims: int) -> Recorded:
    """Return a contiguous tensor with its first dimensions merged, as a view; `None` for others."""
    if not isinstance(value, Tensor) or dims > len(value.size) or dims < 1:
        return None
    count = 1
    for extent, step in zip(reversed(value.size), reversed(value.stride)):
        if step != count and extent != 1:
            return None
        count *= extent
    front = 1
    for extent in value.size[:dims]:
        front *= extent
    size = (front, *value.size[dims:])
    stride = tuple(_contiguous(size))
    return Tensor(value.element, value.storage, size, stride, value.offset)


def _contiguous(size: tuple[int, ...]) -> list[int]:
    strides, step = [], 1
    for extent in reversed(size):
        strides.append(step)
        step *= extent
    return strides[::-1]


def zeros_like(value: Recorded) -> Recorded:
    """Return zeros in the structure of a value."""
    if isinstance(value, list):
        return [zeros_like(item) for item in value]
    if not isinstance(value, Tensor):
        return None
    return Tensor.from_numpy(np.zeros(value.shape, value.numpy().dtype))


def region(tensor: Tensor) -> tuple[int, int, int]:
    """Return the storage of a tensor, by id, and the first and last element of it that the tensor uses."""
    low = high = tensor.offset
    for extent, step in zip(tensor.size, tensor.stride):
        reach = (extent - 1) * step
        low, high = (low + min(reach, 0), high + max(reach, 0))
    return id(tensor.storage), low, high


def same_values(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same bytes in the same shape."""
    return one.shape == other.shape and bool(np.array_equal(one.numpy(), other.numpy(), equal_nan=True))


UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11}
"""Unit roundoff by element type."""
_SAMPLE = 2_000
_ROUND = 16
"""Binary digits of numbers that may have been written by hand."""
_ENOUGH = 16
"""Number of different values that suffice to determine the precision of a file."""


def unit_of(value: Recorded) -> float | None:
    """Return the unit roundoff of a value's numbers; `None` if it has no floating-point tensors.

    Doubles that were converted from floats have that of floats, and numbers with six digits in an ascii file that of
    six digits.
    """
    units = [_unit(tensor) for tensor in leaves(value) if tensor.element.name in UNIT]
    return max(units) if units else None


def _unit(tensor: Tensor) -> float:
    unit = UNIT[tensor.element.name]
    flat = tensor.numpy().reshape(-1)
    with np.errstate(invalid="ignore"):  # signaling NaNs
        sample = flat[:: max(1, flat.size // _SAMPLE)].astype("f8")
    sample = np.unique(sample[np.isfinite(sample) & (sample != 0)])
    if sample.size < _ENOUGH:
        return UNIT["float32"] if unit < UNIT["float32"] and _was_single(sample) else unit
    power = np.floor(np.log10(np.abs(sample)))
    for digits in range(4, 10 if unit == UNIT["float64"] else 7):
        places = 10.0 ** (digits - 1 - power)
        rounded = np.round(sample * places) / places
        if bool(
            (np.abs(rounded - sample) <= 1e-14 * np.abs(sample) + (0 if unit < 1e-15 else unit * np.abs(sample))).all()
        ):
            return max(unit, 0.5 * 10.0 ** (1 - digits))
    with np.errstate(over="ignore"):
        single = bool((sample.astype("f4").astype("f8") == sample).all())
    return max(unit, UNIT["float32"]) if single else unit


def _was_single(sample: Any) -> bool:
    """Return whether doubles, few as they are, once were floats: all fit, and one has that many digits."""
    with np.errstate(over="ignore"):
        whole = bool((sample.astype("f4").astype("f8") == sample).all())
    mantissa = np.frexp(sample)[0] * 2.0**_ROUND
    return whole and bool((mantissa != np.round(mantissa)).any())


def is_computed(value: Recorded) -> bool:
    """Return whether a value holds computed numbers, not memory that was never written: zeros, or next to zero."""
    for tensor in leaves(value):
        array = tensor.numpy()
        if array.dtype.kind != "f" or bool((np.abs(array[np.isfinite(array)]) > 1e-30).any()):
            return True
    return not any(True for _ in leaves(value))
