"""Tensors: views of storages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field

from ..data import define
from ..errors import ModelError
from .dtypes import ElementType, lua_class_name
from .storage import Storage

if TYPE_CHECKING:
    import numpy as np

    from .python import TensorExtras


@define(eq=False)
class Tensor:
    """A view of a storage: sizes, strides and an offset, all in elements.

    A Lua tensor without elements has no dimensions at all; a PyTorch scalar has no dimensions and one element.
    `is_scalar` tells them apart.

    Attributes:
        element: the element type.
        storage: the memory that is viewed; `None` for a Lua tensor that never had any.
        size: elements of each dimension.
        stride: elements between neighbours along each dimension; 0 repeats, as `expand` does.
        offset: of the first element in the storage, 0-based.
        is_scalar: no dimensions and one element.
        requires_grad: PyTorch's mark; Lua has none.
        version: Lua's class version, `None` where the file was written before there were any.
        alias: the Lua class name, where it is not the one that element and device give.
        is_parameter: whether it is an `nn.Parameter` in PyTorch.
        extras: what else PyTorch keeps with the tensor: conjugation and sign bits, Python attributes.
    """

    element: ElementType
    storage: Storage | None
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    is_scalar: bool = False
    requires_grad: bool = field(default=False, repr=False)
    device: str = field(default="cpu", repr=False)
    version: int | None = field(default=1, repr=False)
    alias: str | None = field(default=None, repr=False)
    is_parameter: bool = field(default=False, repr=False)
    extras: TensorExtras | None = field(default=None, repr=False)

    @classmethod
    def from_numpy(cls, array: np.ndarray) -> Tensor:
        """A tensor of a numpy array's elements. Contiguous arrays share their memory, others are copied.

        Raises:
            ModelError: no storage holds elements of the array's type.
        """
        import numpy as np

        flat = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
        storage = Storage.from_array(flat.reshape(-1))
        stride = tuple(step // flat.dtype.itemsize for step in flat.strides[: array.ndim])  # a 0-d array became 1-d
        return cls(storage.element, storage, array.shape, stride, is_scalar=array.ndim == 0)

    def numpy(self) -> np.ndarray:
        """The elements as a numpy array of `shape`: a view of `storage.array`, with the same strides."""
        from .arrays import tensor_array

        return tensor_array(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape numpy and PyTorch give it: `size`, and (0,) for a Lua tensor without dimensions."""
        return self.size if self.size or self.is_scalar else (0,)

    @property
    def numel(self) -> int:
        """Number of elements that the view shows."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def lua_class(self) -> str | None:
        """`torch.FloatTensor`, or `None` where Lua Torch has no such element type."""
        return self.alias or lua_class_name(self.element, self.device, "Tensor")

    def check(self) -> None:
        """Check that the view lies inside its storage.

        Raises:
            ModelError: it does not; the message gives the first element outside.
        """
        reason = view_fault(
            self.size, self.stride, self.offset, self.storage.count if self.storage else 0, self.is_scalar
        )
        if reason:
            raise ModelError(f"a tensor is not a view of its storage: {reason}")


def view_fault(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int, count: int, is_scalar: bool = False
) -> str | None:
    """Why a view does not lie inside a storage of `count` elements; `None` where it does.

    A view without elements may lie anywhere from 0 on, as it reads nothing.
    """
    if len(size) != len(stride):
        return f"{len(size)} sizes but {len(stride)} strides"
    if offset < 0:
        return f"its offset is {offset}"
    if any(extent < 0 for extent in size):
        return f"a size is negative: {list(size)}"
    if 0 in size or (not size and not is_scalar):
        return None
    first = last = offset
    for extent, step in zip(size, stride):
        reach = (extent - 1) * step
        if reach < 0:
            first += reach
        else:
            last += reach
    if first < 0:
        return f"it reaches element {first}, before the first"
    if last >= count:
        return f"it reaches element {last}, and the storage has {count}"
    return None
