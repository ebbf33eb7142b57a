"""Tensors: views of storages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve, field

from ..data import define
from ..errors import ModelError
from ..lazy import np
from .dtypes import ElementType, lua_class_name
from .show import Holder, Step, short, sizes, storage_number
from .storage import Storage

if TYPE_CHECKING:
    import torch

    from .python import TensorExtras


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        return "UNSET"  # the one object, in copies and pickles too


UNSET: Any = _Unset()
"""The state of an object or tensor that has none."""
Scalar = bool | int | float | complex
"""An element as a Python value."""


@define(eq=False)
class Tensor(Holder):
    """A view of a storage: sizes, strides and an offset, all in elements.

    A Lua tensor without elements has no dimensions at all; a PyTorch scalar has no dimensions and one element.
    `is_scalar` tells them apart.

    Attributes:
        element: the element type.
        storage: the memory viewed; `None` for a Lua tensor that never had any.
        size: elements of each dimension.
        stride: elements between neighbours along each dimension; 0 repeats elements, as `expand` does.
        offset: of the first element in the storage, 0-based.
        is_scalar: whether it has no dimensions and one element.
        requires_grad: PyTorch's flag; Lua has none.
        version: Lua's class version, `None` if the file predates versions.
        alias: the Lua class name, if it is not the one for element and device.
        is_parameter: whether it is an `nn.Parameter` in PyTorch.
        extras: further state of a PyTorch tensor: conjugation and negation bits, Python attributes.
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
        """Return a tensor of a numpy array's elements. Contiguous arrays share their memory, others are copied.

        Raises:
            ModelError: the array's type is unsupported.
        """
        flat = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
        storage = Storage.from_array(flat.reshape(-1))
        stride = tuple(step // flat.dtype.itemsize for step in flat.strides[: array.ndim])  # a 0-d array became 1-d
        return cls(storage.element, storage, array.shape, stride, is_scalar=array.ndim == 0)

    def numpy(self) -> np.ndarray:
        """Return the elements as a numpy array of `shape`: a view of `storage.array`, with the same strides.

        The array is read-only where its bytes are in a file. Types that numpy lacks (bfloat16, float8) are those of
        `ml_dtypes`; elements of quantized tensors are their integers.

        Raises:
            UnsupportedError: numpy has no such type, or ml_dtypes is not installed.
        """
        from .arrays import numpy_array

        return numpy_array(self)

    @property
    def array(self) -> np.ndarray:
        """Return the same as `numpy`, but with the bits as unsigned integers where numpy lacks the type."""
        from .arrays import tensor_array

        return tensor_array(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"a tensor of {self.dtype} cannot become an array of {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def torch(self) -> torch.Tensor:
        """Return the elements as a PyTorch tensor with the same strides, in memory of its own; `to_torch` keeps
        sharing.

        Raises:
            ImportError: PyTorch is not installed.
            UnsupportedError: PyTorch cannot represent the tensor.
        """
        from .torch_values import torch_tensor

        return torch_tensor(self, {})

    def tolist(self) -> Any:
        """Return the elements as Python values: nested lists, or one value for a tensor without dimensions."""
        from .arrays import python_values

        return python_values(self.numpy())

    def item(self) -> Scalar:
        """Return the only element as a Python value.

        Raises:
            ModelError: the tensor does not have exactly one element.
        """
        if self.numel != 1:
            raise ModelError("only a tensor of one element is a scalar", found=f"{self.numel} elements")
        from .arrays import element_value

        value: Scalar = element_value(self)
        return value

    def __getitem__(self, key: Any) -> Any:
        """Return a view of the same storage, or the element as a Python value if every dimension is indexed.

        Args:
            key: an int (0-based, negative from the end), a slice with any step, `...`, `None` for a new dimension, or
                a tuple of them.
        """
        size, stride, offset = _view_of(self.shape, self.stride or (1,) * len(self.shape), self.offset, key)
        view = evolve(self, size=size, stride=stride, offset=offset, is_scalar=not size, alias=None)
        return view if size or _asks_for_view(key) else view.item()

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("cannot iterate over a tensor without dimensions")
        return (self[number] for number in range(self.shape[0]))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        return True  # as in Lua: a field that holds a tensor is set, whatever its elements are

    def __float__(self) -> float:
        return float(self.item())  # type: ignore[arg-type]  # complex raises TypeError, as it should

    def __int__(self) -> int:
        return int(self.item())  # type: ignore[arg-type]

    def __str__(self) -> str:
        from .show_tensor import tensor_text

        return tensor_text(self)

    def _repr_html_(self) -> str:
        from .show_tensor import tensor_html

        return tensor_html(self)

    def _inside(self) -> Iterable[tuple[Any, Any]]:
        return () if self.storage is None else ((Step(".storage"), self.storage),)

    def _short(self) -> str:
        where = "" if self.device == "cpu" else f" on {self.device}"
        memory = "" if self.storage is None else f" of #{storage_number(self.storage)}"
        return f"Tensor {self.element.name} {sizes(self.shape)}{where}{memory}"

    @property
    def dtype(self) -> str:
        """The element type's name in PyTorch and numpy: `float32`. numpy accepts it as a dtype."""
        return self.element.name

    @property
    def ndim(self) -> int:
        """Number of dimensions of `shape`."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements: `numel` times the size of one, whatever they share."""
        return self.numel * self.element.itemsize

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in numpy and PyTorch: `size`, and (0,) for a Lua tensor without dimensions."""
        return self.size if self.size or self.is_scalar else (0,)

    @property
    def numel(self) -> int:
        """Number of elements of the view."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def lua_class(self) -> str | None:
        """`torch.FloatTensor`, or `None` where Lua Torch has no such element type."""
        return self.alias or lua_class_name(self.element, self.device, "Tensor")

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow one another in memory, the last dimension fastest."""
        return all(
            extent == 1 or step == row for extent, step, row in zip(self.size, self.stride, contiguous(self.size))
        )

    def reach(self) -> tuple[int, int]:
        """Return the first element of the storage that the view covers, and the one after the last."""
        return _reach(self.size, self.stride, self.offset)

    def check(self) -> None:
        """Check that the view lies inside its storage.

        Raises:
            ModelError: it does not; the message names the first element outside it.
        """
        reason = view_fault(
            self.size, self.stride, self.offset, self.storage.count if self.storage else 0, self.is_scalar
        )
        if reason:
            raise ModelError(f"a tensor is not a view of its storage: {reason}")


def view_fault(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int, count: int, is_scalar: bool = False
) -> str | None:
    """Return why a view does not lie inside a storage of `count` elements; `None` where it does.

    A view without elements may have any offset from 0 on, as it reads nothing.
    """
    if len(size) != len(stride):
        return f"{len(size)} sizes but {len(stride)} strides"
    if offset < 0:
        return f"its offset is {offset}"
    if any(extent < 0 for extent in size):
        return f"a size is negative: {list(size)}"
    if 0 in size or (not size and not is_scalar):
        return None
    first, end = _reach(size, stride, offset)
    if first < 0:
        return f"it reaches element {first}, before the first"
    return f"it reaches element {end - 1}, and the storage has {count}" if end > count else None


def _reach(size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> tuple[int, int]:
    steps = [(extent - 1) * step for extent, step in zip(size, stride)]
    return offset + sum(step for step in steps if step < 0), offset + sum(step for step in steps if step > 0) + 1


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of contiguous elements, the last index fastest."""
    steps, count = [], 1
    for extent in reversed(shape):
        steps.append(count)
        count *= max(extent, 1)
    return tuple(reversed(steps))


def _asks_for_view(key: Any) -> bool:
    """Return whether a key selects a view even if it has one element."""
    return key is Ellipsis or (isinstance(key, tuple) and any(each is Ellipsis or each is None for each in key))


def _view_of(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int, key: Any
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return sizes, strides and offset of the view that a key selects, as numpy's basic indexing does.

    Raises:
        IndexError: the key has more parts than the tensor has dimensions, or one is out of range.
        TypeError: a part is not an int, slice, `...` or None.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexError("an index can contain only one ...")
    used = sum(part is not None and part is not Ellipsis for part in parts)
    if used > len(size):
        raise IndexError(f"{used} indices for a tensor of {len(size)} dimensions")
    if not any(part is Ellipsis for part in parts):
        parts.append(Ellipsis)
    new_size: list[int] = []
    new_stride: list[int] = []
    at = 0
    for part in parts:
        if part is Ellipsis:
            end = at + len(size) - used
            new_size += size[at:end]
            new_stride += stride[at:end]
            at = end
        elif part is None:
            new_size.append(1)
            new_stride.append(0)
        elif isinstance(part, slice):
            start, stop, step = part.indices(size[at])
            count = len(range(start, stop, step))
            new_size.append(count)
            new_stride.append(stride[at] * step)
            offset += start * stride[at] if count else 0
            at += 1
        else:
            if isinstance(part, bool) or not hasattr(part, "__index__"):
                raise TypeError(
                    f"a tensor is indexed by ints, slices, ... and None, not by {short(part)}; numpy() takes more"
                )
            number = part.__index__()
            if not -size[at] <= number < size[at]:
                raise IndexError(f"index {number} is out of range for a dimension of {size[at]}")
            offset += (number % size[at]) * stride[at]
            at += 1
    return tuple(new_size), tuple(new_stride), offset
