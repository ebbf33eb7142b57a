"""Floating-point elements in another type, rounded as PyTorch rounds.

PyTorch converts to float16 and bfloat16 from float32 only: a float64 is rounded twice, to float32 first. Each rounding
is to the nearest, of two equally near ones to the even. What is too large becomes infinity. A NaN stays one; in
bfloat16 it has the bits 0x7FC0. Source: PyTorch 2.13 `c10/util/Half.h`, `torch/headeronly/util/BFloat16.h`
`round_to_nearest_even`.

Integers, truth values, complex and quantized numbers are not changed.
"""

from __future__ import annotations

from functools import partial

from attrs import evolve

from ..data import np
from ..errors import ModelError
from ..graph.dtypes import CAST_TYPES, ELEMENT_TYPES, ElementType
from ..graph.storage import Derived, Storage
from ..graph.tensor import Tensor
from .widened import widen

_NUMPY_FLOATS = ("float16", "float32", "float64")
_BFLOAT16_NAN = 0x7FC0
_INFINITE = 0x7F80
"""The exponent of infinities and NaNs in bfloat16."""


def is_float(element: ElementType) -> bool:
    """Return whether elements are floating-point numbers, each one of which `Casts` can read."""
    return element.name in _NUMPY_FLOATS or element.name == "bfloat16" or element.name.startswith("float8_")


class Casts:
    """Casts of the tensors of one value: views of one storage are views of one storage afterwards.

    Args:
        name: the new element type, one of `CAST_TYPES`.

    Raises:
        ModelError: it is none of these.

    Attributes:
        counts: the number of tensors cast, by the name of their element type.
        infinities: of each piece that was cast, the number of finite elements that became infinite; filled while the
            elements are read.
    """

    def __init__(self, name: str) -> None:
        if name not in CAST_TYPES:
            raise ModelError(f"unknown dtype {name[:40]!r}", expected=" or ".join(CAST_TYPES))
        self.element = ELEMENT_TYPES[name]
        self.counts: dict[str, int] = {}
        self.infinities: list[int] = []
        self._storages: dict[int, tuple[Storage, Storage]] = {}
        """Each storage that was met, and what it became, by the identity of the first."""

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor with its elements cast; the tensor itself if none are floating-point ones of another type."""
        storage = tensor.storage
        is_cast = is_float(tensor.element) and tensor.element is not self.element
        if is_cast:
            self.counts[tensor.element.name] = self.counts.get(tensor.element.name, 0) + 1
        if storage is None:  # without elements, or one whose elements the file does not have
            return evolve(tensor, element=self.element) if is_cast else tensor
        cast = self.storage(storage)
        if cast is storage:
            return tensor
        return evolve(tensor, element=cast.element, storage=cast, alias=None)

    def storage(self, storage: Storage) -> Storage:
        """Return a storage with its elements cast; nothing is read."""
        known = self._storages.get(id(storage))
        if known is None:
            known = self._storages[id(storage)] = (storage, self._cast(storage))
        return known[1]

    def _cast(self, storage: Storage) -> Storage:
        is_cast = is_float(storage.element) and storage.element is not self.element
        result = storage
        if is_cast:
            readable = storage if storage.element.name in _NUMPY_FLOATS else widen(storage)[0]
            data = Derived(readable, partial(_cast_elements, self.element.name, self.infinities))
            result = Storage(self.element, storage.count, data, storage.device)
        if storage.base is None:
            return result
        if storage.base.element is not storage.element:
            # Two types of elements were one memory, which they cannot be when one of them is cast.
            return evolve(result, base=None, base_offset=0)
        base = self.storage(storage.base)
        first = storage.base_offset // storage.element.itemsize
        return evolve(result, base=base, base_offset=first * base.element.itemsize)


def _cast_elements(name: str, infinities: list[int], array: np.ndarray) -> np.ndarray:
    """Cast elements, shape (n,), of one of numpy's floating-point types.

    Args:
        name: the new element type.
        infinities: receives the number of finite elements that become infinite, if there are any.
        array: the elements.

    Returns:
        Elements of the new type; of bfloat16 their bits.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        single = array.astype("f4", copy=False)
        if name == "bfloat16":
            result = _bfloat16_bits(single)
            finite = np.count_nonzero((result & np.uint32(_INFINITE)) != _INFINITE)
        else:
            result = single.astype(ELEMENT_TYPES[name].code, copy=False)
            finite = np.count_nonzero(np.isfinite(result))
    # What is finite afterwards was so before.
    lost = int(np.count_nonzero(np.isfinite(array))) - int(finite)
    if lost:
        infinities.append(lost)
    return result


def _bfloat16_bits(array: np.ndarray) -> np.ndarray:
    """Return the bits of the bfloat16 nearest to each element, a float32; shape (n,)."""
    bits = array.view("u4")
    # Half of the last place, and one more if the result would be odd: ties go to the even one.
    half = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    rounded = ((bits + half) >> np.uint32(16)).astype("u2")
    rounded[np.isnan(array)] = _BFLOAT16_NAN
    return np.asarray(rounded)
