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
from ..graph.dtypes import ELEMENT_TYPES, ElementType
from ..graph.storage import Derived, Storage
from ..graph.tensor import Tensor
from . import CAST_TYPES
from .widened import widen

_NUMPY_FLOATS = ("float16", "float32", "float64")
_BFLOAT16_NAN = 0x7FC0
_BFLOAT16_EXPONENT = 0x7F80
"""The bits of the exponent in bfloat16: all are set in infinities and NaNs only."""


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
        element: the new element type.
        counts: the number of tensors cast, by the name of their former element type.
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
        """Return a tensor with its elements cast; the tensor itself if it has no floating-point ones of another type.

        Nothing is read.
        """
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
        """Return a storage with its elements cast, the same one each time; nothing is read."""
        if id(storage) not in self._storages:
            self._storages[id(storage)] = (storage, self._cast(storage))
        _, cast = self._storages[id(storage)]
        return cast

    def _cast(self, storage: Storage) -> Storage:
        """Return a new storage with its elements cast; the storage itself if neither they nor those of its base are."""
        is_cast = is_float(storage.element) and storage.element is not self.element
        result = self._with_cast_elements(storage) if is_cast else storage
        if storage.base is None:
            return result
        base = self.storage(storage.base)
        if not is_cast and base is storage.base:
            return storage
        if storage.base.element is not storage.element:
            # Two types of elements were one memory, which they cannot be when one of them is cast.
            return evolve(result, base=None, base_offset=0)
        first = storage.base_offset // storage.element.itemsize
        return evolve(result, base=base, base_offset=first * base.element.itemsize)

    def _with_cast_elements(self, storage: Storage) -> Storage:
        """Return a storage without base, whose elements are cast when they are read."""
        readable = storage
        if storage.element.name not in _NUMPY_FLOATS:
            readable, _, _ = widen(storage)  # to float32
        data = Derived(readable, partial(_cast_elements, self.element.name, self.infinities))
        return Storage(self.element, storage.count, data, storage.device)


def _cast_elements(name: str, infinities: list[int], array: np.ndarray) -> np.ndarray:
    """Cast elements, shape (n,), of one of numpy's floating-point types.

    Args:
        name: the new element type, one of `CAST_TYPES`, none of which is wider than float32.
        infinities: receives the number of finite elements that become infinite, if there are any.
        array: the elements.

    Returns:
        Elements of the new type; of bfloat16 their bits.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        single = array.astype("f4", copy=False)  # first, as PyTorch rounds twice
        if name == "bfloat16":
            result = _bfloat16_bits(single)
            finite = np.count_nonzero((result & np.uint32(_BFLOAT16_EXPONENT)) != _BFLOAT16_EXPONENT)
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
    # A bfloat16 is the upper 16 bits. What is added carries into them from half of their last place on: of a tie,
    # 0x8000, only if the last of them is 1, so that it goes to the even one.
    last_bit = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + last_bit + np.uint32(0x7FFF)) >> np.uint32(16)).astype("u2")
    rounded[np.isnan(array)] = _BFLOAT16_NAN  # the sum may have carried into the sign
    return np.asarray(rounded)
