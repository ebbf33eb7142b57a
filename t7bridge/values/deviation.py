"""Differences of two graphs by content: tensors are compared by element, whatever their storages and strides.

Needs numpy; loaded when elements are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, prod
from typing import Any

from attrs import evolve, field

from ..data import define
from ..graph.arrays import flat_pieces
from ..graph.dtypes import PACKED
from ..graph.lua import Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import Path
from ..lazy import np
from ..limits import BYTES_PER_STEP
from .compare import Comparer, Difference, Pairs, TensorDifference
from .widened import widen

_BLOCK_ELEMENTS = 1 << 18
_WIDENED = ("bfloat16", "float8")
_COMPARED = 16
"""Number of free comparisons of each element of a storage, in views of it."""


@define(eq=False)
class ValueComparer(Comparer):
    """Compares values, not how they are stored: sharing, offsets, strides, devices and gradients are ignored.

    Attributes:
        rtol: relative tolerance, as a fraction of the second's element.
        atol: absolute tolerance, added to the relative one.
        elements: whether elements are compared, not only shapes.
        tensors: number of pairs of tensors compared.
    """

    rtol: float = 0.0
    atol: float = 0.0
    elements: bool = True
    tensors: int = 0
    _views: dict[Any, Difference | None] = field(factory=dict)
    _stored: set[int] = field(factory=set)

    def _is_known(self, path: Path, a: Value, b: Value) -> bool:
        """Compare tensors at every path, so that each path of a shared one is named."""
        return not isinstance(a, Tensor) and self._compared_before(a, b)

    def _same_scalar(self, a: Value, b: Value) -> bool:
        if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, (int, float)):
            return Comparer._same_scalar(self, a, b)
        if not isinstance(b, (int, float)):
            return False
        if a == b or (a != a and b != b):
            return True
        try:
            return abs(a - b) <= self.atol + self.rtol * abs(b) < float("inf")
        except OverflowError:  # an integer beyond all floats
            return False

    def _tensors(self, path: Path, a: Tensor, b: Tensor) -> Pairs:
        self.tensors += 1
        self._same(path, "type", a.element.name, b.element.name)
        if a.shape != b.shape:
            self._same(path, "shape", a.shape, b.shape)
        elif self.elements and a.numel:
            views = tuple((id(each.storage), each.offset, each.stride, each.element.name) for each in (a, b))
            name = (a.shape, views, id(a.extras), id(b.extras))
            if name not in self._views:
                self._charge(a, b)
                self._views[name] = deviation(str(path), a, b, self.rtol, self.atol)
            found = self._views[name]
            if found is not None:
                self.found.append(evolve(found, path=str(path)))
        return ()

    def _charge(self, a: Tensor, b: Tensor) -> None:
        """Charge the elements of views that overlap more often than a model's do."""
        for each in (a, b):
            if each.storage is not None:
                if id(each.storage) not in self._stored:
                    self._stored.add(id(each.storage))
                    self._budget.left += _COMPARED * each.storage.nbytes // BYTES_PER_STEP
                shown = min(each.numel, 2 * each.storage.count)  # more of them are compared as storages
                self._budget.spend(shown * each.element.itemsize // BYTES_PER_STEP)

    def _storages(self, path: Path, a: Storage, b: Storage) -> Pairs:
        """Compare storages outside of tensors as tensors of one dimension."""
        whole = (Tensor(each.element, each, (each.count,), (1,), 0) for each in (a, b))
        return self._tensors(path, *whole)


def deviation(path: str, a: Tensor, b: Tensor, rtol: float, atol: float) -> Difference | None:
    """Return the difference of two tensors of one shape, `None` if it is within the tolerance.

    Elements are compared as numbers, whatever their types: a NaN is equal to a NaN, and 0.0 to -0.0.

    Args:
        path: their path.
        a: a tensor.
        b: one of the same shape.
        rtol: relative tolerance, as a fraction of the second's element.
        atol: absolute tolerance, added to the relative one.
    """
    shape = a.shape or (1,)
    repeats = prod(shape) > 2 * max(_count(a), _count(b))
    if repeats:
        if (a.stride, a.offset) != (b.stride, b.offset):
            return Difference(path, f"views that repeat elements in other ways: {a.stride} against {b.stride}")
        if _count(a) != _count(b):
            return Difference(path, f"views of storages with {_count(a)} and {_count(b)} elements")
        shape = (_count(a),)
    if a.element.name in PACKED:
        shape = (_array(a).size,)
    differing, largest, index, values = 0, -1.0, tuple[int, ...](), tuple[Any, ...]()
    for start, x, y in _pairs(a, b, shape, repeats):
        apart = _apart(x, y)
        with np.errstate(invalid="ignore", over="ignore"):
            allowed = atol + rtol * np.abs(y) if rtol else atol
        wrong = (apart > allowed) | (apart == inf)
        count = int(np.count_nonzero(wrong))
        if count:
            differing += count
            place = int(np.argmax(np.where(wrong, apart, -1.0)))
            if (far := float(apart.flat[place])) > largest:
                inside = np.unravel_index(place, apart.shape)
                index = tuple(int(step) + first for step, first in zip(inside, start))
                if len(inside) < len(shape):  # of consecutive elements
                    index = tuple(int(step) for step in np.unravel_index(index[0], shape))
                largest, values = far, (x.flat[place], y.flat[place])
    if not differing:
        return None
    index = () if a.is_scalar else index
    how = f"by at most {largest:.6g}" if largest < inf else "most"
    where = f" at {list(index)}" if index else ""
    message = (
        f"{differing} of {prod(shape)} elements differ, {how}{where}: {_shown(values[0])} against {_shown(values[1])}"
    )
    return TensorDifference(path, message, prod(shape), differing, largest, index)


def _pairs(a: Tensor, b: Tensor, shape: tuple[int, ...], stored: bool) -> Iterator[tuple[tuple[int, ...], Any, Any]]:
    """Yield blocks of the elements of two tensors, in order, each with the position of its first element.

    Args:
        a: a tensor.
        b: another.
        shape: of both, or of their storages.
        stored: whether all elements of their storages are compared.
    """
    reads = [None if stored else flat_pieces(each, _BLOCK_ELEMENTS) for each in (a, b)]
    if reads[0] is not None and reads[1] is not None:
        for start in range(0, prod(shape), _BLOCK_ELEMENTS):
            yield (start,), reads[0](start), reads[1](start)
        return
    arrays = [np.atleast_1d(each.storage.array if stored and each.storage else _array(each)) for each in (a, b)]
    for block in _blocks(arrays[0].shape):
        first, second = (_numbers(array[block], each) for array, each in zip(arrays, (a, b)))
        yield tuple(each.start or 0 for each in block), first, second


def _count(tensor: Tensor) -> int:
    return tensor.storage.count if tensor.storage else 0


def _array(tensor: Tensor) -> np.ndarray:
    """Return the elements; of types smaller than a byte, the bytes that hold them."""
    if tensor.storage is not None and tensor.element.name in PACKED:
        return tensor.storage.array
    if tensor.storage is not None and tensor.element.name.startswith(_WIDENED):
        wider, _, _ = widen(tensor.storage)
        return evolve(tensor, storage=wider, element=wider.element).array
    return tensor.array


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield slices that together cover an array of this shape, in order, none much larger than a block."""
    axis, rest = len(shape), 1
    while axis and rest * shape[axis - 1] <= _BLOCK_ELEMENTS:
        axis -= 1
        rest *= shape[axis]
    whole = tuple(slice(None) for _ in shape[axis:])
    if not axis:
        yield whole
        return
    step = max(1, _BLOCK_ELEMENTS // rest)
    for outer in np.ndindex(*shape[: axis - 1]):
        head = tuple(slice(place, place + 1) for place in outer)
        for start in range(0, shape[axis - 1], step):
            yield (*head, slice(start, start + step), *whole)


def _numbers(block: np.ndarray, tensor: Tensor) -> Any:
    """Return elements as numbers: numpy has no complex numbers of two halves."""
    if tensor.element.name != "complex32":
        return block
    with np.errstate(invalid="ignore"):  # signaling NaNs
        return np.ascontiguousarray(block)[..., None].view("f2").astype("f4").view("c8")[..., 0]


def _apart(x: np.ndarray, y: np.ndarray) -> Any:
    """Return the distance of each pair of elements; 0 for equal ones, infinite where it is undefined."""
    if x.dtype.kind in "biu" and y.dtype.kind in "biu":
        common = np.result_type(x, y, "u1")
        if common.kind != "f":  # int64 and uint64 have no common integer type
            high, low = np.maximum(x, y).astype(common), np.minimum(x, y).astype(common)
            return (high.astype("u8") - low.astype("u8")).astype("f8")  # what wraps around once wraps back
    equal = (x == y) | ((x != x) & (y != y))
    with np.errstate(invalid="ignore", over="ignore"):
        wide = "c16" if "c" in (x.dtype.kind, y.dtype.kind) else "f8"
        apart = np.abs(x.astype(wide) - y.astype(wide))
    apart[np.isnan(apart)] = inf
    apart[~equal & (apart == 0)] = np.finfo("f8").tiny  # different integers that are equal as doubles
    apart[equal] = 0
    return apart


def _shown(value: Any) -> str:
    return f"{value.item()!r}" if value.dtype.kind in "biu" else f"{value:.9g}"
