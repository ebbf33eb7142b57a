"""Storages and tensors as numpy arrays: the part of the graph that needs numpy, imported on first use."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import evolve

from ..errors import CorruptError, ModelError, T7BridgeError, UnsupportedError
from ..io.copy import Buffer, Change, Extent
from .dtypes import ELEMENT_TYPES, PACKED, ElementType
from .storage import CHUNK_BYTES, Assembled, Derived, Span, Storage, TextSpan, too_large

if TYPE_CHECKING:
    from .tensor import Tensor

_BY_DTYPE: dict[Any, ElementType] = {np.dtype(e.code): e for e in ELEMENT_TYPES.values() if e.native}
_FLOAT_BYTES = b"0123456789+-.eE \n"
HALF_NAN = 0x7FFF
"""The bits of the one nan that Torch makes when it turns numbers into halves."""
_BUFFER_BYTES = 1 << 20
"""Bytes converted at a time, of the source or the target, whichever has more."""
_STEP_BYTES = 1 << 18
"""The same where elements are converted in steps, each of which asks for memory: more would go back to the system."""
_MOST_TOGETHER = 1 << 12
_ORDER = {"little": "<", "big": ">"}


def element_of(dtype: np.dtype[Any]) -> ElementType:
    """Return the element type of a numpy dtype, whatever its byte order.

    Raises:
        ModelError: no element type corresponds to it.
    """
    element = _BY_DTYPE.get(dtype.newbyteorder("="))
    if element is None:
        raise ModelError(f"no storage holds elements of numpy type {dtype}")
    return element


def dtype_of(element: ElementType, order: str = "little", width: int | None = None) -> np.dtype[Any]:
    """Return the numpy dtype of elements in a byte order, `width` bytes each where they are narrowed C longs."""
    code = element.code if width in (None, element.itemsize) else f"i{width}"
    return np.dtype(_ORDER[order] + code)


def storage_array(storage: Storage) -> np.ndarray:
    """The elements as an array: that of the storage itself, or a view of the file's memory map, or a new one."""
    data, element = storage.data, storage.element
    native = np.dtype(element.code)
    if isinstance(data, np.ndarray):
        return data
    if isinstance(data, Derived):
        return data.convert(data.origin.array)
    if not isinstance(data, Span) or not storage.count:
        parts = list(array_chunks(storage))
        return np.concatenate(parts) if parts else np.empty(0, native)
    held = dtype_of(element, data.order, data.width)
    array = np.frombuffer(data.source.mapped(data.offset, storage.count * data.width), held)
    # A view only where the machine's own loads can use it; PyTorch takes neither swapped nor unaligned arrays.
    return array if held == native and array.flags.aligned else array.astype(native)


def readable_array(storage: Storage) -> np.ndarray:
    """See `Storage.array`."""
    array = storage_array(storage)
    if array is not storage.data:  # what is written into it would be lost
        array.flags.writeable = False
    return array


def _parse(text: bytes, storage: Storage) -> np.ndarray:
    """Parse numbers. `float32` and `float16` are rounded from double, as 9 digits never lie between two floats."""
    native = np.dtype(storage.element.code)
    fast = _parse_plain(text, native)
    if fast is not None:
        return fast
    tokens = text.split()
    try:
        if native.kind == "f":
            return _rounded(np.array([float(token) for token in tokens], "f8"), native)
        return np.array([int(token) for token in tokens], native)
    except (ValueError, OverflowError) as error:
        assert isinstance(storage.data, TextSpan)
        raise _wrong_numbers(storage.data, f"numbers of type {storage.element.name}", str(error)) from error


def _parse_plain(text: bytes, native: np.dtype[Any]) -> np.ndarray | None:
    """Parse a text of digits, signs and single spaces only; return `None` for any other text."""
    from .decimals import parse_floats, parse_integers

    array = parse_floats(text) if native.kind == "f" else parse_integers(text)
    if array is None:
        return _parse_by_numpy(text, native)
    if native.kind == "f":
        return _rounded(array, native)
    bounds = np.iinfo(native)
    if array.size and (array.min() < bounds.min or array.max() > bounds.max):
        return None
    return array.astype(native, copy=False)


def _parse_by_numpy(text: bytes, native: np.dtype[Any]) -> np.ndarray | None:
    """Parse floats that are very large, small or long, or on several lines, with numpy; return `None` for other text.

    numpy reads `1-2` as two numbers: callers that read a whole storage count them.
    """
    if native.kind != "f" or text.translate(None, _FLOAT_BYTES):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy stops at the first non-number, with a warning
        try:
            array = np.fromstring(text, "f8", sep=" ")
        except (ValueError, DeprecationWarning):
            return None
    return _rounded(array, native)


def _rounded(array: np.ndarray, native: np.dtype[Any]) -> np.ndarray:
    """Doubles of a text as floats of a storage: beyond the type is inf, as C's scanf has it.

    Source: torch7 lib/TH/THHalf.c `TH_float2halfbits`, which has one nan, 0x7fff.
    """
    with np.errstate(over="ignore"):
        made = array.astype(native, copy=False)
    if native.itemsize == 2:
        made.view("u2")[np.isnan(made)] = HALF_NAN
    return made


def _wrong_numbers(span: TextSpan, expected: str, found: str) -> CorruptError:
    return CorruptError(
        "a storage's text is not its numbers", file=span.source.name, offset=span.offset, expected=expected, found=found
    )


def array_chunks(storage: Storage) -> Iterator[np.ndarray]:
    """Yield the elements in pieces of about 1 MiB, in the machine's byte order."""
    data, element = storage.data, storage.element
    native = np.dtype(element.code)
    step = max(1, CHUNK_BYTES // max(1, element.itemsize))
    if isinstance(data, TextSpan):
        left = storage.count
        for piece in data.pieces():
            array = _parse(piece, storage)
            left -= len(array)
            yield array
        if left:
            raise _wrong_numbers(data, f"{storage.count} numbers", f"{storage.count - left}")
    elif isinstance(data, Derived):
        for part in _grouped(array_chunks(data.origin), data.group):
            yield data.convert(part)
    elif isinstance(data, Assembled):
        yield from _assembled(data, element)
    elif isinstance(data, Span):
        held = dtype_of(element, data.order, data.width)
        for piece in data.pieces(storage.count):
            yield np.frombuffer(piece, held).astype(native, copy=False)
    else:
        for start in range(0, storage.count, step):
            yield np.ascontiguousarray(data[start : start + step])


def _assembled(data: Assembled, element: ElementType) -> Iterator[np.ndarray]:
    """Yield the elements of an assembled tensor, as many rows at a time as make up about 1 MiB, at least one."""
    rows, inner = data.size[0], data.size[1:]
    step = max(1, CHUNK_BYTES // max(1, math.prod(inner) * element.itemsize))
    arrays = [(start, tensor_array(tensor)) for start, tensor in data.parts]
    for row in range(0, rows, step):
        block = np.empty((min(step, rows - row), *inner), np.dtype(element.code))
        for start, array in arrays:
            first, last = max(row, start[0]), min(row + len(block), start[0] + len(array))
            if first < last:
                columns = tuple(slice(at, at + extent) for at, extent in zip(start[1:], array.shape[1:]))
                inside = (slice(first - row, last - row), *columns)
                block[inside] = array[first - start[0] : last - start[0]]
        yield block.reshape(-1)


def _grouped(parts: Iterator[np.ndarray], group: int) -> Iterator[np.ndarray]:
    """Yield the same elements in parts whose lengths are multiples of `group`; a remainder is an error."""
    rest: np.ndarray | None = None
    for part in parts:
        part = part if rest is None or not rest.size else np.concatenate((rest, part))
        whole = len(part) - len(part) % group
        rest = part[whole:]
        yield part[:whole]
    if rest is not None and rest.size:
        raise CorruptError(f"{len(rest)} elements of a storage are left over", expected=f"groups of {group}")


def converted_chunks(storage: Storage, order: str, width: int) -> Iterator[bytes]:
    """See `Storage.chunks`: conversion by numpy."""
    wanted = dtype_of(storage.element, order, width)
    for array in array_chunks(storage):
        if wanted.itemsize < array.dtype.itemsize:
            _check_fits(array, wanted)
        yield array.astype(wanted, copy=False).tobytes()


def _check_fits(array: np.ndarray, wanted: np.dtype[Any]) -> None:
    """Refuse integers, shape (n,), that a narrower type does not have."""
    bounds = np.iinfo(wanted)
    if array.size:
        least, greatest = int(array.min()), int(array.max())
        if least < bounds.min or greatest > bounds.max:
            raise too_large(least, greatest)


def converted_extent(storage: Storage, order: str, width: int) -> Extent | None:
    """See `Storage.extent`: elements in a file that numpy converts on their way to another."""
    steps: list[Derived] = []
    origin = storage
    while isinstance(origin.data, Derived):
        steps.insert(0, origin.data)
        origin = origin.data.origin
    span = origin.data
    if not isinstance(span, Span) or not origin.count:
        return None
    unit = math.gcd(origin.count, storage.count)
    together = math.lcm(origin.count // unit, *(step.group for step in steps))
    if origin.count % together or together > _MOST_TOGETHER:
        return None
    held, wanted = dtype_of(origin.element, span.order, span.width), dtype_of(storage.element, order, width)
    made = storage.count * wanted.itemsize // (origin.count // together)
    converts = tuple(step.convert for step in steps)
    if converts:
        change = Change(together * span.width, made, partial(_ArrayBuffer, together, held, wanted, converts))
    else:
        change = _change_of_type(held, wanted)
    return span.taken(origin.element, origin.count, change)


@cache
def _change_of_type(held: np.dtype[Any], wanted: np.dtype[Any]) -> Change:
    """One change for all storages of the same types, so that they share the memory for it."""
    return Change(held.itemsize, wanted.itemsize, partial(_ArrayBuffer, 1, held, wanted))


class _ArrayBuffer(Buffer):
    """The memory in which numpy converts elements.

    Args:
        together: how many elements of the source always come together, or a multiple of it.
        held: their type in the source.
        wanted: that of the elements in the target.
        converts: what makes elements in the machine's byte order from such, one after the other.
    """

    def __init__(
        self,
        together: int,
        held: np.dtype[Any],
        wanted: np.dtype[Any],
        converts: tuple[Callable[[np.ndarray], np.ndarray], ...] = (),
    ) -> None:
        most = _STEP_BYTES if converts else _BUFFER_BYTES
        count = max(1, most // max(held.itemsize, wanted.itemsize) // together) * together
        self._taken = np.empty(count, held.newbyteorder("="))
        self._swaps = not held.isnative, not wanted.isnative
        self._native = wanted.newbyteorder("=")
        self._made = np.empty(count, self._native)
        self._converts = converts
        self.view = self._taken.view("u1").data

    def changed(self, length: int) -> memoryview:
        """See `Buffer.changed`."""
        array = self._taken[: length // self._taken.itemsize]
        if self._swaps[0]:
            array.byteswap(inplace=True)
        for convert in self._converts:
            array = convert(array)
        if array.dtype != self._native or not array.flags.c_contiguous:
            if array.dtype.kind == "i" and self._native.itemsize < array.itemsize:
                _check_fits(array, self._native)
            if len(self._made) < len(array):
                self._made = np.empty(len(array), self._native)
            made = self._made[: len(array)]
            np.copyto(made, array, casting="unsafe")
            array = made
        if self._swaps[1]:
            array = array.byteswap(inplace=array.flags.writeable)
        return array.view("u1").data


def tensor_array(tensor: Tensor) -> np.ndarray:
    """See `Tensor.numpy`."""
    try:
        if tensor.storage is None or not tensor.numel:
            return np.empty(tensor.shape, np.dtype(tensor.element.code))
        if tensor.element.name in PACKED:
            raise UnsupportedError(f"numpy has no arrays of {tensor.element.name}, smaller than a byte")
        base = tensor.storage.array[tensor.offset :]
        strides = byte_strides(tensor.size, tensor.stride, base.dtype.itemsize)
        view = np.lib.stride_tricks.as_strided(base, tensor.size, strides, writeable=base.flags.writeable)
        return view if tensor.extras is None else _with_bits(view, tensor)
    except (ValueError, OverflowError) as error:
        if isinstance(error, T7BridgeError):
            raise
        raise UnsupportedError(f"numpy has no array of shape {tensor.shape}: {error}") from error


def flat_pieces(tensor: Tensor, count: int) -> Callable[[int], np.ndarray] | None:
    """Return a function for `count` elements of a tensor in a file from a number on, in order, which reads no others.

    `None` where the elements are not consecutive numbers in a file.
    """
    storage = tensor.storage
    changed = tensor.extras is not None and (tensor.extras.conj or tensor.extras.neg)
    if (
        storage is None
        or not isinstance(storage.data, Span)
        or changed
        or not (tensor.element.native and tensor.is_contiguous)
    ):
        return None
    span, first, numel = storage.data, tensor.offset, tensor.numel
    if first + numel > storage.count:
        return None

    def read(start: int) -> np.ndarray:
        part = evolve(span, offset=span.offset + (first + start) * span.width, crc=None)
        return storage_array(Storage(storage.element, min(count, numel - start), part))

    return read


def byte_strides(size: Sequence[int], stride: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes; 0 along dimensions of one element whose stride is more than numpy can hold."""
    return tuple(
        0 if extent == 1 and abs(step) > sys.maxsize // itemsize else step * itemsize
        for extent, step in zip(size, stride)
    )


def _with_bits(view: np.ndarray, tensor: Tensor) -> np.ndarray:
    """Carry out what PyTorch only marks on a tensor: conjugation and negation."""
    assert tensor.extras is not None
    if (tensor.extras.conj or tensor.extras.neg) and not tensor.element.native:
        raise UnsupportedError(f"numpy cannot conjugate {tensor.element.name}")
    if tensor.extras.conj:
        view = view.conj()
    return -view if tensor.extras.neg else view


_INTEGERS = ("quint8", "qint8", "qint32")


def numpy_dtype(element: ElementType) -> np.dtype[Any]:
    """Return the numpy dtype with the values of the elements, from `ml_dtypes` where numpy lacks it.

    Raises:
        UnsupportedError: neither has one, or ml_dtypes is not installed.
    """
    if element.native or element.name in _INTEGERS:
        return np.dtype(element.code)
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedError(
            f"numpy has no {element.name}",
            hint="Install ml_dtypes (pip install ml_dtypes), or take the bits as integers from `array`.",
        ) from None
    found = getattr(ml_dtypes, element.name, None)
    if found is None:
        raise UnsupportedError(f"numpy has no {element.name}", hint="Take the bits as integers from `array`.")
    dtype: np.dtype[Any] = np.dtype(found)
    return dtype


def numpy_array(tensor: Tensor) -> np.ndarray:
    """See `Tensor.numpy`."""
    dtype = numpy_dtype(tensor.element)
    array = tensor_array(tensor)
    return array if array.dtype == dtype else array.view(dtype)


def python_values(array: np.ndarray) -> Any:
    """Return the elements as Python values, those of ml_dtypes as floats."""
    return (array if array.dtype.kind in "biufc" and array.dtype.isbuiltin == 1 else array.astype("f4")).tolist()


def element_value(tensor: Tensor) -> Any:
    """Return the value of a tensor of one element; no other element is read from the file."""
    return elements(tensor, 1)[0]


def elements(tensor: Tensor, count: int) -> list[Any]:
    """Return the first `count` elements in index order, as Python values.

    If the storage is in a file, only these are read.
    """
    count = min(count, tensor.numel)
    storage = tensor.storage
    if not count or storage is None:
        return []
    dtype, offset = numpy_dtype(tensor.element), tensor.offset
    places = np.arange(count)
    at = np.full(count, offset, "i8")
    for extent, step in zip(reversed(tensor.size), reversed(tensor.stride)):
        at += (places % extent) * step
        places = places // extent
    data = storage.data
    if isinstance(data, Span):
        held = dtype_of(storage.element, data.order, data.width)
        pieces = [
            data.source.read_exact(data.offset + int(place) * data.width, data.width, "an element") for place in at
        ]
        found = np.frombuffer(b"".join(pieces), held).astype(storage.element.code)
    else:
        found = storage.array[at]
    if tensor.extras is not None:
        found = _with_bits(found, tensor)
    values: list[Any] = python_values(found if found.dtype == dtype else found.view(dtype))
    return values


def as_doubles(array: np.ndarray) -> list[float]:
    """Return floating point elements as Python numbers. A signaling NaN becomes quiet without a warning."""
    with np.errstate(invalid="ignore"):
        return list(array.astype("f8", copy=False).tolist())


def count_odd_nans(array: np.ndarray) -> int:
    """Count the NaNs whose bits, sign aside, are not the canonical ones.

    Args:
        array: floating point elements.
    """
    found = array[np.isnan(array)]
    bits = f"u{array.itemsize}"
    if array.itemsize == 2:  # nan has no sign in Torch's halves
        return int(np.count_nonzero(found.view(bits) != HALF_NAN))
    usual = np.array(np.nan, array.dtype).view(bits)
    return int(np.count_nonzero(np.copysign(found, 1).view(bits) != usual))
