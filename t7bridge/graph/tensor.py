"""Tensors, views of storages, and what PyTorch has like them; as text, in numpy and in PyTorch.

No more of a file is read than is shown or asked for.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from attrs import evolve, field

from ..data import define, np
from ..errors import ModelError, T7BridgeError, UnsupportedError
from ..text import Holder, Shown, Step, clean, counted, short, sizes, storage_number
from .dtypes import PACKED, ElementType, dtype_of, lua_class_name, numpy_dtype
from .python import UNSET, PythonGlobal, TorchSize
from .storage import CHUNK_BYTES, Derived, Elements, Span, Storage, TextSpan, array_chunks, part_of, storage_array

if TYPE_CHECKING:
    import torch

_EDGE_INDICES = 3
"""Indices printed at each end of a long dimension."""
_PRINTED_LINES = 1000
"""Most lines of a printed tensor."""
_PRINTED_DIMS = 8
"""Most dimensions of a tensor whose elements are printed."""
_PRINTED_SIZES = 20
"""Most sizes printed of a tensor of more dimensions."""
_ERROR_LETTERS = 200
"""Characters of an error in place of elements that cannot be read."""
_CELL_LETTERS = 400
"""Characters of one cell of a notebook's table."""
_NOTEBOOK_ELEMENTS = 10
"""Elements shown in a notebook."""
_STATISTICS_BYTES = 1 << 24
"""Bytes to be read up to which a notebook shows minimum, maximum and mean of a tensor."""
_CONVERTED_BYTES = 1 << 20
"""Bytes of a storage up to which all of it is converted to print some elements."""
Scalar = bool | int | float | complex
"""An element as a Python value."""


@define(eq=False)
class TensorExtras(Shown):
    """State of a PyTorch tensor besides its elements, which a Lua tensor does not have.

    Attributes:
        conj: the elements are to be conjugated when read.
        neg: the elements are to be negated when read.
        state: Python attributes of the tensor; `UNSET` if there are none.
        hooks: backward hooks; None if there are none.
        subclass: the class, if it is neither `torch.Tensor` nor `Parameter`.
    """

    conj: bool = False
    neg: bool = False
    state: Any = UNSET
    hooks: Any = None
    subclass: PythonGlobal | None = None

    def _short(self) -> str:
        marks = [name for name in ("conj", "neg") if getattr(self, name)]
        return " ".join(["TensorExtras", *marks])


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
        """Return the elements as a numpy array of `shape`, with the same strides.

        Where they are in a file, they are read, and the array is read-only. If the file is mapped
        (`load(path, mmap=True)`), it is a view of the map, which must not be used once the file is shorter. Types that
        numpy lacks (bfloat16, float8) are those of `ml_dtypes`; elements of quantized tensors are their integers.

        Raises:
            UnsupportedError: numpy has no such type, or ml_dtypes is not installed.
        """
        dtype = numpy_dtype(self.element)
        array = self.array
        return array if array.dtype == dtype else array.view(dtype)

    @property
    def array(self) -> np.ndarray:
        """The same as `numpy`, but with the bits as unsigned integers where numpy lacks the type.

        Raises:
            UnsupportedError: numpy has no such array.
        """
        try:
            if self.storage is None or not self.numel:
                return np.empty(self.shape, np.dtype(self.element.code))
            if self.element.name in PACKED:
                raise UnsupportedError(f"numpy has no arrays of {self.element.name}, smaller than a byte")
            # An error for more dimensions than numpy has, where `as_strided` of numpy 1.23 crashes.
            np.empty((0,) * len(self.size))
            storage = self.storage
            first = 0
            if isinstance(storage.data, Span):
                # Only the elements from the first to the last of the view are read from the file.
                first, end = self.reach()
                storage = part_of(storage, first, end - first)
            from_offset = storage.array[self.offset - first :]
            strides = byte_strides(self.size, self.stride, from_offset.dtype.itemsize)
            is_writeable = from_offset.flags.writeable
            view = np.lib.stride_tricks.as_strided(from_offset, self.size, strides, writeable=is_writeable)
            return view if self.extras is None else _conjugated_and_negated(view, self)
        except (ValueError, OverflowError) as error:
            if isinstance(error, T7BridgeError):  # some of these are a ValueError, too
                raise
            raise UnsupportedError(f"numpy has no array of shape {self.shape}: {error}") from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the elements for numpy's `asarray`, as numpy's protocol has it: `copy=False` refuses to copy."""
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
        return torch_tensor(self, storages={})

    def tolist(self) -> Any:
        """Return the elements as Python values: nested lists, or one value for a tensor without dimensions."""
        return _python_values(self.numpy())

    def item(self) -> Scalar:
        """Return the only element as a Python value.

        Raises:
            ModelError: the tensor does not have exactly one element.
        """
        if self.numel != 1:
            raise ModelError("only a tensor of one element is a scalar", found=f"{self.numel} elements")
        (value,) = elements(self, 1)
        return cast("Scalar", value)

    def __getitem__(self, key: Any) -> Any:
        """Return a view of the same storage, or the element as a Python value if every dimension is indexed.

        Args:
            key: an int (0-based, negative from the end), a slice with any step, `...`, `None` for a new dimension, or
                a tuple of them.
        """
        # Lua's empty tensor has no stride, but the shape (0,).
        old_stride = self.stride or (1,) * len(self.shape)
        size, stride, offset = _view_of(self.shape, old_stride, self.offset, key)
        view = evolve(self, size=size, stride=stride, offset=offset, is_scalar=not size, alias=None)
        if size or _asks_for_view(key):
            return view
        return view.item()

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
        return _text(self)

    def _repr_html_(self) -> str:
        return _html(self)

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
        return math.prod(self.shape)

    @property
    def lua_class(self) -> str | None:
        """`torch.FloatTensor`, or `None` where Lua Torch has no such element type."""
        return self.alias or lua_class_name(self.element, self.device, "Tensor")

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow one another in memory, the last dimension fastest."""
        return is_dense(self.size, self.stride)

    def reach(self) -> tuple[int, int]:
        """Return the position in the storage of the first element that the view covers, and that behind the last."""
        return _reach(self.size, self.stride, self.offset)

    def check(self) -> None:
        """Check that the view lies inside its storage.

        Raises:
            ModelError: it does not; the message names the first element outside it.
        """
        count = self.storage.count if self.storage else 0
        reason = view_fault(self.size, self.stride, self.offset, count, self.is_scalar)
        if reason:
            raise ModelError(f"a tensor is not a view of its storage: {reason}")


def view_fault(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int, count: int, is_scalar: bool = False
) -> str | None:
    """Return why a view does not lie inside a storage of `count` elements; `None` where it does.

    A view without elements may have any offset from 0 on, as it reads nothing.

    Args:
        size: extents of the dimensions.
        stride: of the dimensions, in elements; may be negative.
        offset: of the element at index 0 of each dimension, 0-based.
        count: number of elements in the storage.
        is_scalar: whether a view without dimensions has one element, as in PyTorch; otherwise it has none, as in Lua.
    """
    if len(size) != len(stride):
        return f"{len(size)} sizes but {len(stride)} strides"
    if offset < 0:
        return f"its offset is {offset}"
    if min(size, default=0) < 0:
        return f"a size is negative: {list(size)}"
    if 0 in size or (not size and not is_scalar):
        return None
    first, end = _reach(size, stride, offset)
    if first < 0:
        return f"it reaches element {first}, before the first"
    if end > count:
        return f"it reaches element {end - 1}, and the storage has {count}"
    return None


def _reach(size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> tuple[int, int]:
    """Return the position in the storage of the first element that a view covers, and that behind the last.

    The view must have elements. Strides may be negative: then the first of these is not at the offset.

    Args:
        size: extents of the dimensions, all at least 1.
        stride: of the dimensions, in elements.
        offset: of the element at index 0 of each dimension, 0-based.
    """
    first = offset
    last = offset
    for extent, step in zip(size, stride):
        distance = (extent - 1) * step
        if distance < 0:
            first += distance
        else:
            last += distance
    return first, last + 1


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of contiguous elements, the last index fastest."""
    strides = []
    count = 1
    for extent in reversed(shape):
        strides.append(count)
        count *= max(extent, 1)  # as PyTorch has it: a dimension of no elements counts as one
    return tuple(reversed(strides))


def covered(ranges: Iterable[tuple[int, int]]) -> int:
    """Return the number of elements in a union of ranges, each its first element, 0-based, and that behind its last."""
    total = 0
    covered_to = 0  # all before it is counted, or in no range
    for first, end in sorted(ranges):
        total += max(end - max(first, covered_to), 0)
        covered_to = max(covered_to, end)
    return total


def tensor_of_storage(storage: Storage) -> Tensor:
    """Return the elements of a storage as a tensor of one dimension."""
    return Tensor(storage.element, storage, size=(storage.count,), stride=(1,))


def place_of(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that is equal for tensors that are the same view of one storage; an empty one has its own.

    One that is conjugated or negated when it is read is another view.
    """
    if tensor.storage is None or not tensor.numel:
        return (id(tensor),)
    return id(tensor.storage), tensor.offset, tensor.size, tensor.stride, *bits_of(tensor)


def _asks_for_view(key: Any) -> bool:
    """Return whether a key selects a view even where no dimension is left: one with `...` or `None`, as in numpy."""
    parts = key if isinstance(key, tuple) else (key,)
    return any(part is Ellipsis or part is None for part in parts)


def _view_of(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int, key: Any
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return sizes, strides and offset of the view that a key selects from another, as numpy's basic indexing does.

    Args:
        size: extents of the other view.
        stride: of its dimensions, in elements.
        offset: of its first element in the storage, in elements.
        key: an int, a slice, `...` or `None`, or a tuple of them.

    Raises:
        IndexError: the key has more parts than the tensor has dimensions, or one is out of range.
        TypeError: a part is not an int, slice, `...` or None.
    """
    new_size: list[int] = []
    new_stride: list[int] = []
    dim = 0  # the first dimension of the other view that is not done
    for part in _parts_of_key(key, rank=len(size)):
        if part is None:
            new_size.append(1)
            new_stride.append(0)
            continue
        extent = size[dim]
        step_of_dim = stride[dim]
        dim += 1
        if isinstance(part, slice):
            start, stop, step = part.indices(extent)
            count = len(range(start, stop, step))
            new_size.append(count)
            new_stride.append(step_of_dim * step)
            if count:  # the start of an empty slice may lie outside of the storage
                offset += start * step_of_dim
        else:
            offset += _position(part, extent) * step_of_dim
    return tuple(new_size), tuple(new_stride), offset


def _parts_of_key(key: Any, rank: int) -> list[Any]:
    """Return the parts of a key, with a slice for each whole dimension: in place of `...`, or at the end.

    Args:
        key: as for `_view_of`.
        rank: the number of dimensions.

    Raises:
        IndexError: the key has more parts than there are dimensions, or several `...`.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    ellipses = [number for number, part in enumerate(parts) if part is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError("an index can contain only one ...")
    indices = sum(part is not None and part is not Ellipsis for part in parts)
    if indices > rank:
        raise IndexError(f"{indices} indices for a tensor of {rank} dimensions")
    whole = [slice(None)] * (rank - indices)
    if not ellipses:
        return [*parts, *whole]
    (place,) = ellipses
    return [*parts[:place], *whole, *parts[place + 1 :]]


def _position(part: Any, extent: int) -> int:
    """Return the position that an int selects in a dimension, a negative one from the end.

    Raises:
        IndexError: it is out of range.
        TypeError: the part of a key is not an int.
    """
    if isinstance(part, bool) or not hasattr(part, "__index__"):
        raise TypeError(f"a tensor is indexed by ints, slices, ... and None, not by {short(part)}; numpy() takes more")
    number: int = part.__index__()
    if not -extent <= number < extent:
        raise IndexError(f"index {number} is out of range for a dimension of {extent}")
    return number % extent


@define(eq=False)
class Assembled(Elements):
    """The elements of a tensor in C order whose parts are tensors of other storages, as in sharded files.

    Attributes:
        size: elements of each dimension of the whole.
        parts: for each part, the index of its first element along each dimension, 0-based, and the tensor. They cover
            the whole and do not overlap.
    """

    size: tuple[int, ...]
    parts: tuple[tuple[tuple[int, ...], Tensor], ...]

    def arrays(self, storage: Storage) -> Iterator[np.ndarray]:
        """Yield the elements of the whole in C order: as many rows at a time as make up about 512 KiB, at least one."""
        rows = self.size[0]
        shape_of_row = self.size[1:]
        step = max(1, CHUNK_BYTES // max(1, math.prod(shape_of_row) * storage.element.itemsize))
        for first_row in range(0, rows, step):
            block = np.empty((min(step, rows - first_row), *shape_of_row), np.dtype(storage.element.code))
            for (start, *other_starts), tensor in self.parts:
                # The rows of the part that are in this block, counted in the whole.
                first = max(first_row, start)
                end = min(first_row + len(block), start + tensor.shape[0])
                if first < end:
                    columns = [slice(at, at + extent) for at, extent in zip(other_starts, tensor.shape[1:])]
                    place = (slice(first - first_row, end - first_row), *columns)
                    block[place] = tensor[first - start : end - start].array
            yield block.reshape(-1)


@define(eq=False)
class SparseTensor(Holder):
    """A sparse tensor.

    Attributes:
        layout: `sparse_coo`, `sparse_csr`, `sparse_csc`, `sparse_bsr` or `sparse_bsc`.
        indices: of `sparse_coo`: shape (dimensions, entries); else the compressed indices.
        plain_indices: the other indices; None for `sparse_coo`.
        values: the entries.
        size: of the whole tensor.
        is_coalesced: of `sparse_coo`; None if the file does not say.
        is_parameter: whether it is an `nn.Parameter`.
        requires_grad: PyTorch's mark.
    """

    layout: str
    indices: Tensor
    plain_indices: Tensor | None
    values: Tensor
    size: TorchSize
    is_coalesced: bool | None = None
    is_parameter: bool = False
    requires_grad: bool = False

    def _inside(self) -> Iterator[tuple[Any, Any]]:
        yield "indices", self.indices
        if self.plain_indices is not None:
            yield "plain_indices", self.plain_indices
        yield "values", self.values

    def _short(self) -> str:
        return f"SparseTensor {clean(str(self.layout), 20)} of {short(self.values)}"


@define(eq=False)
class QuantizedTensor(Holder):
    """A quantized tensor: integers that mean (value - zero_point) * scale.

    Attributes:
        tensor: the integers: a view of a storage of `quint8`, `qint8`, `qint32`, `quint4x2` or `quint2x4`.
        scheme: `per_tensor_affine`, `per_channel_affine` or `per_channel_affine_float_qparams`.
        scale: a float; with the other schemes a `Tensor` or list with one value a channel.
        zero_point: an int; or, as `scale`, with one value a channel.
        axis: the dimension of the channels; None with `per_tensor_affine`.
    """

    tensor: Tensor
    scheme: str
    scale: Any
    zero_point: Any
    axis: int | None = None

    def _inside(self) -> Iterable[tuple[Any, Any]]:
        return ("tensor", self.tensor), ("scale", self.scale), ("zero_point", self.zero_point)

    def _short(self) -> str:
        return f"QuantizedTensor {clean(str(self.scheme), 40)} of {short(self.tensor)}"


@define(eq=False)
class UntypedStorage(Holder):
    """A bare `torch.UntypedStorage`.

    Attributes:
        storage: the bytes; tensors on the same memory have the same storage.
    """

    storage: Storage

    def _inside(self) -> Iterable[tuple[Any, Any]]:
        return (("storage", self.storage),)

    def _short(self) -> str:
        return f"UntypedStorage of {short(self.storage)}"


def is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether a view covers consecutive elements in order, row by row.

    Args:
        size: extents of the dimensions.
        stride: of the dimensions, in elements.
    """
    # The stride of a dimension of one element has no meaning.
    return all(extent == 1 or step == dense for extent, step, dense in zip(size, stride, contiguous(size)))


def bits_of(tensor: Tensor) -> tuple[bool, bool]:
    """Return whether the elements are to be conjugated, and whether to be negated, when read."""
    extras = tensor.extras
    return (False, False) if extras is None else (extras.conj, extras.neg)


def is_conjugated_or_negated(tensor: Tensor) -> bool:
    """Return whether the elements are to be negated or conjugated when read."""
    return any(bits_of(tensor))


def as_stored(tensor: Tensor) -> Storage | None:
    """Return a storage with exactly a tensor's elements, row by row; nothing is read.

    `None` if they are not consecutive in the tensor's storage, or are to be negated or conjugated.
    """
    if tensor.storage is None or not tensor.numel:
        return Storage.empty(tensor.element)
    if is_conjugated_or_negated(tensor) or not is_dense(tensor.size, tensor.stride):
        return None
    return part_of(tensor.storage, tensor.offset, tensor.numel)


def blocks(tensor: Tensor, count: int) -> Iterator[np.ndarray]:
    """Yield the elements as `array` has them, in index order, in blocks of `count`, the last of which may be shorter.

    A block is valid until the next one. Contiguous elements are read from their file in pieces; for others, `array`
    reads all that the view covers.
    """
    stored = as_stored(tensor)
    if stored is not None:  # also without elements, where `nditer` would raise an error
        pieces: Iterable[np.ndarray] = array_chunks(stored)
    else:
        pieces = np.nditer(tensor.array, ["buffered", "external_loop"], order="C", buffersize=count)  # type: ignore[assignment]
    unfinished: list[np.ndarray] = []  # the pieces of a block that is not full yet
    missing = count
    for piece in pieces:
        while len(piece) >= missing:
            yield np.concatenate([*unfinished, piece[:missing]]) if unfinished else piece[:missing]
            piece = piece[missing:]
            unfinished = []
            missing = count
        if len(piece):
            unfinished.append(piece.copy())  # the iterator uses its memory again
            missing -= len(piece)
    if unfinished:
        yield np.concatenate(unfinished)


def byte_strides(size: Sequence[int], stride: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return strides in bytes; 0 along dimensions of one element whose stride is more than numpy can hold."""
    return tuple(
        0 if extent == 1 and abs(step) > sys.maxsize // itemsize else step * itemsize
        for extent, step in zip(size, stride)
    )


def _conjugated_and_negated(view: np.ndarray, tensor: Tensor) -> np.ndarray:
    """Return elements of a tensor conjugated and negated, where PyTorch only marks it so.

    Args:
        view: the elements as they are in the storage.
        tensor: has the marks, in its extras.

    Raises:
        UnsupportedError: numpy cannot compute with such elements.
    """
    assert tensor.extras is not None
    if (tensor.extras.conj or tensor.extras.neg) and not tensor.element.native:
        raise UnsupportedError(f"numpy cannot conjugate {tensor.element.name}")
    if tensor.extras.conj:
        view = view.conj()
    return -view if tensor.extras.neg else view


def _python_values(array: np.ndarray) -> Any:
    """Return the elements as Python values, those of ml_dtypes as floats."""
    is_of_numpy = array.dtype.kind in "biufc" and array.dtype.isbuiltin == 1
    # float32 has all numbers of the types of ml_dtypes.
    return (array if is_of_numpy else array.astype("f4")).tolist()


def elements(tensor: Tensor, count: int) -> list[Any]:
    """Return the first `count` elements in index order, as Python values; all, if there are fewer.

    If the storage is in a file, only these are read.
    """
    count = min(count, tensor.numel)
    storage = tensor.storage
    if not count or storage is None:
        return []
    dtype = numpy_dtype(tensor.element)
    positions = _first_positions(tensor, count)
    data = storage.data
    if isinstance(data, Span):
        dtype_in_file = dtype_of(storage.element, data.order, data.width)
        pieces: list[bytes] = []
        for position in positions:
            offset = data.offset + int(position) * data.width
            pieces.append(data.source.read_exact(offset, data.width, "an element"))
        array = np.frombuffer(b"".join(pieces), dtype_in_file).astype(storage.element.code)
    else:
        array = storage.array[positions]
    if tensor.extras is not None:
        array = _conjugated_and_negated(array, tensor)
    # Elements of a type that numpy lacks are integers of the same bits so far.
    values: list[Any] = _python_values(array if array.dtype == dtype else array.view(dtype))
    return values


def _first_positions(tensor: Tensor, count: int) -> np.ndarray:
    """Return the positions in the storage of the first `count` elements in index order, shape (count,)."""
    # From their numbers in index order: the last index is the remainder by the last extent, and so on.
    numbers = np.arange(count)
    positions = np.full(count, tensor.offset, "i8")
    for extent, step in zip(reversed(tensor.size), reversed(tensor.stride)):
        positions += (numbers % extent) * step
        numbers = numbers // extent
    return positions


def _is_readable(tensor: Tensor) -> bool:
    """Return whether single elements can be read without converting a large part of the storage."""
    storage = tensor.storage
    return storage is None or not isinstance(storage.data, (Derived, TextSpan)) or storage.nbytes <= _CONVERTED_BYTES


def _number(value: Any) -> str:
    """Return an element as text, a float with five digits."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _text(tensor: Tensor) -> str:
    """Return a tensor as Lua prints one: the elements, `…` where some are left out, and a line with type and sizes.

    Where elements cannot be read, the reason is in their place. Of those that take long to read, and of a tensor of
    very many dimensions, there is the last line alone.

    Rows show at most six elements of the last dimension; other dimensions the first three and the last three.
    """
    size = "x".join(map(str, tensor.shape[:_PRINTED_SIZES])) or "no dimensions"
    last_line = f"[{tensor.lua_class or tensor.dtype} of size {size}]"
    try:
        if not tensor.numel or not _is_readable(tensor) or len(tensor.shape) > _PRINTED_DIMS:
            return last_line
        return "\n".join([*islice(_rows(tensor), _PRINTED_LINES), last_line])
    except T7BridgeError as error:
        return f"<{clean(str(error), _ERROR_LETTERS)}>\n{last_line}"


def _edges(extent: int) -> list[int | None]:
    """Return the indices shown along a dimension, the first and the last ones; `None` is the gap between them."""
    if extent <= 2 * _EDGE_INDICES:
        return list(range(extent))
    return [*range(_EDGE_INDICES), None, *range(extent - _EDGE_INDICES, extent)]


def _rows(tensor: Tensor, place: str = "") -> Iterator[str]:
    """Yield the lines of a tensor, a row each, after its indices; of a whole matrix, which needs none, without.

    Args:
        tensor: the tensor, or a part of one.
        place: the indices of the part: `[0][2]`.
    """
    if not tensor.shape:
        yield _number(tensor.item())
    elif len(tensor.shape) == 1:
        texts = []
        for at in _edges(tensor.shape[0]):
            texts.append("…" if at is None else _number(tensor[at]))
        row = "  ".join(texts)
        yield f"{place} {row}" if place else row
    else:
        is_matrix = len(tensor.shape) == 2 and not place
        for at in _edges(tensor.shape[0]):
            if at is None:
                yield "…"
            else:
                yield from _rows(tensor[at], "" if is_matrix else f"{place}[{at}]")


_MOST_ELEMENTS = 1 << 24
"""Elements of one tensor that statistics read; of a larger one the first."""
_PIECE_ELEMENTS = 1 << 16
"""Elements that they read at once."""


def statistics_of(tensor: Tensor, *, bins: int = 0) -> dict[str, Any]:
    """Read a tensor and summarize its elements.

    Args:
        tensor: with at least one element.
        bins: number of bins of the histogram; 0 for none.

    Returns:
        `min`, `max`, `mean`, `std` of the finite elements, counts `nan`, `inf` and `zeros`, `read` if not all elements
        were read, and `bins`, a list of counts between `min` and `max`. Empty for types without order, and for a
        tensor too large to be read that repeats its storage, of which the first elements say little.
    """
    # Elements that a stride of 0 repeats are read once and counted as often as they occur.
    size = tuple(1 if step == 0 else extent for extent, step in zip(tensor.size, tensor.stride))
    count = math.prod(size)
    times = math.prod(tensor.size) // count
    tensor = evolve(tensor, size=size)
    if tensor.storage is None or (count > _MOST_ELEMENTS and count > tensor.storage.count):
        return {}
    if numpy_dtype(tensor.element).kind not in "fiub":
        return {}
    with np.errstate(all="ignore"):  # signaling NaNs, and sums beyond the type
        return _statistics_of_distinct(tensor, count, times, bins)


def _statistics_of_distinct(tensor: Tensor, count: int, times: int, bins: int) -> dict[str, Any]:
    """Return the statistics of a tensor without repeated elements.

    Args:
        tensor: the tensor.
        count: the number of its elements.
        times: how often each counts.
        bins: as for `statistics_of`.
    """
    read = min(count, _MOST_ELEMENTS)
    moments = _Moments()
    for piece in _pieces(tensor):
        moments.add(piece)
    infinities = read - moments.finite - moments.nans
    statistics: dict[str, Any] = {}
    if moments.finite:
        std = float(np.sqrt(moments.squares / moments.finite))  # of the elements as a population
        statistics |= {"min": moments.least, "max": moments.greatest, "mean": moments.mean, "std": std}
    statistics["zeros"] = moments.zeros * times
    if moments.nans:
        statistics["nan"] = moments.nans * times
    if infinities:
        statistics["inf"] = infinities * times
    if count > read:
        statistics["read"] = read * times
    # One value has no width to divide, and the largest doubles one that is infinite.
    if bins and moments.finite and 0 < moments.greatest - moments.least < np.inf:
        counts = _histogram(_pieces(tensor), bins, moments.least, moments.greatest)
        statistics["bins"] = (counts * times).tolist()
    return statistics


def _histogram(pieces: Iterator[Any], bins: int, least: float, greatest: float) -> Any:
    """Return how many finite elements are in each of equal bins between two of them, an array of shape (bins,)."""
    counts_of_pieces = []
    for piece in pieces:
        counts, _edges = np.histogram(piece[np.isfinite(piece)], bins, (least, greatest))
        counts_of_pieces.append(counts)
    return np.sum(counts_of_pieces, axis=0)


def _pieces(tensor: Tensor) -> Iterator[Any]:
    """Yield the elements, of many the first `_MOST_ELEMENTS`, as doubles in pieces."""
    pieces = islice(blocks(tensor, _PIECE_ELEMENTS), _MOST_ELEMENTS // _PIECE_ELEMENTS)
    return (piece.astype(np.float64) for piece in pieces)


@define(eq=False)
class _Moments:
    """What statistics need of elements, in one pass over them.

    Attributes:
        finite: number of finite elements.
        mean: of these.
        squares: sum of their squared distances from the mean.
        least: the least of them.
        greatest: the greatest of them.
        zeros: number of zeros.
        nans: number of NaNs.
    """

    finite: int = 0
    mean: float = 0.0
    squares: float = 0.0
    least: float = math.inf
    greatest: float = -math.inf
    zeros: int = 0
    nans: int = 0

    def add(self, values: Any) -> None:
        """Add elements, an array of doubles.

        Source: T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
        variances" (1979), for the sum of squares of two sets of numbers.
        """
        finite = values[np.isfinite(values)]
        self.nans += int(np.isnan(values).sum())
        self.zeros += int((values == 0).sum())
        if not finite.size:
            return
        self.least = min(self.least, float(finite.min()))
        self.greatest = max(self.greatest, float(finite.max()))
        mean = float(finite.mean())
        squares = float(finite.var()) * finite.size
        total = self.finite + finite.size
        if self.finite:
            self.squares += squares + (mean - self.mean) ** 2 * self.finite * finite.size / total
            self.mean += (mean - self.mean) * finite.size / total
        else:
            self.squares = squares
            self.mean = mean
        self.finite = total


def _figures(tensor: Tensor) -> dict[str, str]:
    """Return minimum, maximum, mean and number of NaNs and infinities as text, for notebooks, by name.

    Empty for tensors that are large, or of types without order.
    """
    storage = tensor.storage
    if storage is None or not tensor.numel or not tensor.element.native:
        return {}
    # Of a span only the tensor's elements are read; anything else is converted as a whole.
    bytes_read = tensor.nbytes if isinstance(storage.data, Span) else max(tensor.nbytes, storage.nbytes)
    if bytes_read > _STATISTICS_BYTES:
        return {}
    statistics = statistics_of(tensor)
    figures: dict[str, str] = {}
    for name in ("min", "max", "mean"):
        if name in statistics:
            figures[name] = _number(statistics[name])
    not_finite = statistics.get("nan", 0) + statistics.get("inf", 0)
    if not_finite:
        figures["not finite"] = str(not_finite)
    return figures


def _html(tensor: Tensor) -> str:
    """Return a small table for notebooks."""
    from html import escape

    rows = {
        "type": tensor.dtype,
        "shape": sizes(tensor.shape),
        "size": counted(tensor.nbytes, "byte").replace(",", " "),
        "device": tensor.device,
    }
    try:
        rows.update(_figures(tensor))
        if _is_readable(tensor):
            texts = [_number(value) for value in elements(tensor, _NOTEBOOK_ELEMENTS)]
            rows[f"first {counted(len(texts), 'value')}"] = ", ".join(texts)
    except T7BridgeError as error:
        rows["error"] = str(error)
    lines = []
    for name, text in rows.items():
        head = f"<th style='text-align:left'>{escape(name)}</th>"
        cell = f"<td style='text-align:left'>{escape(clean(str(text), _CELL_LETTERS))}</td>"
        lines.append(f"<tr>{head}{cell}</tr>")
    return f"<table>{''.join(lines)}</table>"


def torch_tensor(tensor: Tensor, storages: dict[int, Any]) -> torch.Tensor:
    """Return a PyTorch tensor with the tensor's elements, sizes and strides.

    Args:
        tensor: of the graph. With a negative stride, which PyTorch lacks, the elements are copied.
        storages: PyTorch storages made so far, by the identity of ours; new ones are added. A writable array in memory
            is shared with the tensor, other elements are copied once.

    Raises:
        UnsupportedError: PyTorch has no such element type outside of quantized tensors, or the tensor is too large.
    """
    import torch

    # PyTorch overflows at 2**63 bytes, of up to 8 an element. Of an empty tensor it multiplies the sizes, too.
    if math.prod(extent or 1 for extent in tensor.shape) >= 1 << 60:
        raise UnsupportedError("PyTorch has no tensors of these sizes", found="x".join(map(str, tensor.shape))[:80])
    dtype = _torch_dtype(tensor.element)
    view = _torch_view(tensor, dtype, storages)
    # A file may say of integers, too, that they require gradients.
    may_require_grad = dtype.is_floating_point or dtype.is_complex
    if tensor.is_parameter:
        if tensor.requires_grad and not may_require_grad:
            raise UnsupportedError(f"PyTorch has no parameters of {tensor.element.name} that require gradients")
        return torch.nn.Parameter(view, requires_grad=tensor.requires_grad)
    if tensor.requires_grad and may_require_grad:
        return view.requires_grad_()
    return view


def _torch_dtype(element: ElementType) -> torch.dtype:
    """Return PyTorch's type of elements; of quantized ones that of their integers, without scale and zero point.

    Raises:
        UnsupportedError: the installed PyTorch has none.
    """
    import torch

    dtype = getattr(torch, element.name, None)
    if element.name in PACKED or element.name.startswith(("quint", "qint")):
        integers = {"quint8": torch.uint8, "qint8": torch.int8, "qint32": torch.int32}
        dtype = integers.get(element.name, torch.uint8)  # packed ones as the bytes that hold them
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedError(f"this release of PyTorch has no {element.name}")
    return dtype


def _torch_view(tensor: Tensor, dtype: torch.dtype, storages: dict[int, Any]) -> torch.Tensor:
    """Return a PyTorch tensor with the tensor's elements, sizes and strides.

    It shares memory with what was made of the same storage before. One with negative strides, which PyTorch does not
    have, becomes a contiguous copy.

    Args:
        tensor: ours.
        dtype: PyTorch's type of its elements.
        storages: by the identity of a storage, all its elements in PyTorch; receives those of the tensor's.
    """
    import torch

    storage = tensor.storage
    if storage is None or not tensor.numel:
        return torch.empty(tensor.shape, dtype=dtype)
    if any(step < 0 for step in tensor.stride):
        copied = tensor.array.reshape(-1).copy()  # `ascontiguousarray` leaves the stride of an extent of 1
        return torch.from_numpy(copied).view(dtype).reshape(tensor.size)
    flat = _flat(storage, storages).view(dtype)
    view: torch.Tensor = flat.as_strided(tensor.size, tensor.stride, tensor.offset)
    if tensor.extras is not None and tensor.extras.conj:
        view = view.conj()
    if tensor.extras is not None and tensor.extras.neg:
        view = torch._neg_view(view)
    return view


def _flat(storage: Storage, storages: dict[int, Any]) -> Any:
    """Return all elements of a storage as a PyTorch tensor of one dimension, the same memory each time.

    Args:
        storage: ours.
        storages: see `torch_tensor`; receives a new one.
    """
    import torch

    flat = storages.get(id(storage))
    if flat is not None:
        return flat
    if storage.base is not None:
        base = _flat(storage.base, storages).view(torch.uint8)
        start = storage.base_offset
        flat = base[start : start + storage.nbytes].view(getattr(torch, storage.element.name))
    else:
        array = storage_array(storage)
        flat = torch.from_numpy(array if array.flags.writeable else array.copy())
    storages[id(storage)] = flat
    return flat


def rows(tensor: Tensor) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a tensor's elements in index order, little-endian, in pieces of at most about 512 KiB."""
    storage = as_stored(tensor)
    if storage is not None:
        yield from storage.chunks()
        return
    little_endian = dtype_of(tensor.element)
    for block in blocks(tensor, CHUNK_BYTES // tensor.element.itemsize):
        yield block.astype(little_endian, copy=False).tobytes()
