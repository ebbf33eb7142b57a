"""The part of numpy that the package uses, in Python alone: for browsers, where there is none.

It takes numpy's place as `data.np` where numpy cannot be imported, and gives the same bytes, element by element: sums
are those of numpy's pairwise summation, integers wrap, floats are rounded to even. What is missing here raises an
AttributeError. Source: numpy's reference, "Array objects" and "Universal functions"; promotion is that of NEP 50.
"""

from __future__ import annotations

import contextlib
import math
import operator
import struct
import sys
from array import array as typed_array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

Text = str
"""Python's own, beside the attribute of types."""
nan = math.nan
inf = math.inf

_CODES = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f2": "e", "f4": "f", "f8": "d", "c8": "f", "c16": "d",
}  # fmt: skip
"""The letter of `struct` for each type; a complex number is two of these."""
_OTHER_NAMES = {"?": "b1", "b": "i1", "B": "u1", "float16": "f2", "float32": "f4", "float64": "f8", "int64": "i8"}
"""Other names of types, as numpy has them."""
_NATIVE = "<" if sys.byteorder == "little" else ">"
_HALF_SIGN = 0x8000
_HALF_EXPONENT = 0x7C00
_HALF_FRACTION = 0x3FF
"""The bits of a float16's parts; those of the exponent are all set in infinities and NaNs only."""


class dtype:
    """A type of elements.

    Attributes:
        kind: `b`, `i`, `u`, `f` or `c`.
        itemsize: in bytes.
        byteorder: `<` or `>`, also where numpy has `=` or `|`.
        letter: of `struct`.
    """

    hasobject = False
    isbuiltin = 1
    shape: tuple[int, ...] = ()

    def __init__(self, code: Any) -> None:
        if isinstance(code, dtype):
            code = code.str
        if isinstance(code, type):
            code = _OTHER_NAMES[code.__name__]
        if not isinstance(code, str):
            raise TypeError(f"there is no type {code!r}")
        order = "="
        if code.startswith(("<", ">", "=", "|")):
            order = code[0]
            code = code[1:]
        code = _OTHER_NAMES.get(code, code)
        if code not in _CODES:
            raise TypeError(f"data type {code!r} not understood")
        self.kind = code[0]
        self.itemsize = int(code[1:])
        self.byteorder = _NATIVE if order in "=|" or self.itemsize == 1 else order
        self.letter = _CODES[code]

    @property
    def str(self) -> Text:
        """The type as numpy's own files name it."""
        return f"{'|' if self.itemsize == 1 else self.byteorder}{self.kind}{self.itemsize}"

    @property
    def name(self) -> Text:
        """The name, such as `float32`."""
        words = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
        return words[self.kind] + ("" if self.kind == "b" else f"{8 * self.itemsize}")

    @property
    def isnative(self) -> bool:
        """Whether the byte order is the machine's."""
        return self.byteorder == _NATIVE or self.itemsize == 1

    @property
    def base(self) -> dtype:
        """The type itself: there are no types of subarrays."""
        return self

    def type(self, value: Any) -> ndarray:
        """Return a scalar of this type."""
        return array(value, self)

    def newbyteorder(self, order: Text = "S") -> dtype:
        """Return the same type in another byte order: `S` for the other one, `=` for the machine's."""
        if order == "S":
            order = ">" if self.byteorder == "<" else "<"
        return dtype(f"{order}{self.kind}{self.itemsize}")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (str, type)):
            other = dtype(other)
        return isinstance(other, dtype) and self.str == other.str

    def __hash__(self) -> int:
        return hash(self.str)

    def __repr__(self) -> Text:
        return f"dtype('{self.name}')"

    def __str__(self) -> Text:
        return self.name


# Bytes and numbers


def _floats_of_halves(data: bytes, order: str) -> list[float]:
    """Return the numbers of bytes of float16 in a byte order; a NaN keeps its sign and its fraction."""
    numbers: list[float] = list(struct.unpack(f"{order}{len(data) // 2}e", data))
    for place, number in enumerate(numbers):
        if number != number:
            bits = int.from_bytes(data[2 * place : 2 * place + 2], "little" if order == "<" else "big")
            # As a double: sign, exponent, and the 10 bits of the fraction at the top of its 52.
            wide = ((bits & _HALF_SIGN) << 48) | (0x7FF << 52) | ((bits & _HALF_FRACTION) << 42)
            (numbers[place],) = struct.unpack("<d", wide.to_bytes(8, "little"))
    return numbers


def _decode(data: bytes, kind: dtype) -> list[Any]:
    """Return the elements that bytes are, as Python's numbers.

    Args:
        data: the bytes of whole elements.
        kind: their type, with its byte order.
    """
    if kind.letter == "e":
        return _floats_of_halves(data, kind.byteorder)
    count = len(data) // struct.calcsize(f"<{kind.letter}")
    numbers = list(struct.unpack(f"{kind.byteorder}{count}{kind.letter}", data))
    if kind.kind == "c":
        return [complex(real, imaginary) for real, imaginary in zip(numbers[::2], numbers[1::2])]
    return numbers


def _rounded_to_single(value: Any) -> float:
    """Return a number as a double that becomes the nearest float32.

    An integer that is no exact double is rounded to 24 bits here, of two equally near numbers to the even one: as a
    double it would be rounded twice.
    """
    if type(value) is not int or -(1 << 53) < value < 1 << 53:
        return float(value)
    size = abs(value)
    shift = size.bit_length() - 24
    quotient, rest = divmod(size, 1 << shift)
    half = 1 << (shift - 1)
    is_odd = quotient % 2 == 1
    if rest > half or (rest == half and is_odd):
        quotient += 1
    return math.copysign(float(quotient) * 2.0**shift, value)


def _half_bytes(value: float) -> bytes:
    """Return the bytes of a float16, little-endian; what is too large is infinite, and a NaN stays one."""
    if value != value:
        (bits,) = struct.unpack("<Q", struct.pack("<d", value))
        # The sign, and the 10 highest of the 52 bits of the fraction.
        sign = (bits >> 48) & _HALF_SIGN
        fraction = (bits >> 42) & _HALF_FRACTION
        fraction = fraction or 1  # 0 would be infinity
        return int(sign | _HALF_EXPONENT | fraction).to_bytes(2, "little")
    try:
        return struct.pack("<e", value)
    except OverflowError:
        return struct.pack("<e", math.copysign(inf, value))


def _integer(value: Any, kind: dtype) -> int:
    """Return a number as an integer of a type, which wraps around."""
    if isinstance(value, float) and not math.isfinite(value):
        value = -(1 << 63)  # as the machine's own conversion has it
    bits = 8 * kind.itemsize
    number = int(value.real if isinstance(value, complex) else value) & ((1 << bits) - 1)
    return number - (1 << bits) if kind.kind == "i" and number >> (bits - 1) else number


def _encode(values: list[Any], kind: dtype) -> bytearray:
    """Return the bytes of numbers, converted to a type as numpy does.

    Args:
        values: the numbers, of any of Python's types.
        kind: the type of the elements, with its byte order.
    """
    if kind.kind == "b":
        return bytearray(bool(value) for value in values)
    if kind.kind in "iu":
        if any(type(value) is not int for value in values) or _has_out_of_bounds(values, kind):
            values = [_integer(value, kind) for value in values]
        return bytearray(struct.pack(f"{kind.byteorder}{len(values)}{kind.letter}", *values))
    if kind.kind == "c":
        parts = [part for value in map(complex, values) for part in (value.real, value.imag)]
        return _encode(parts, dtype(f"{kind.byteorder}f{kind.itemsize // 2}"))
    values = [value.real if isinstance(value, complex) else value for value in values]
    if kind.letter == "e":
        data = bytearray(b"".join([_half_bytes(float(value)) for value in values]))
        return _swapped(data, 2) if kind.byteorder == ">" else data
    floats = typed_array(kind.letter, map(_rounded_to_single, values) if kind.letter == "f" else map(float, values))
    if not kind.isnative:
        floats.byteswap()
    return bytearray(floats.tobytes())


def _has_out_of_bounds(values: list[int], kind: dtype) -> bool:
    """Return whether some integers are out of the bounds of a type."""
    if not values:
        return False
    bounds = iinfo(kind)
    return bool(min(values) < bounds.min or max(values) > bounds.max)


def _swapped(data: bytes | bytearray, width: int) -> bytearray:
    """Return bytes with those of each word of `width` bytes in the other order."""
    swapped = bytearray(len(data))
    for place in range(width):
        swapped[place::width] = data[width - 1 - place :: width]
    return swapped


def _contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of contiguous elements, row by row.

    Args:
        shape: extents of the dimensions.
        itemsize: of an element, in bytes.
    """
    strides: list[int] = []
    step = itemsize
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= max(1, extent)
    return tuple(strides)


class ndarray:
    """An array: a view of bytes, with a shape and strides in bytes.

    Args:
        data: the bytes; an array of read-only ones is read-only.
        kind: the type of the elements.
        shape: extents of the dimensions.
        strides: in bytes; by default those of contiguous elements.
        offset: of the first element in the bytes, 0-based.
    """

    def __init__(
        self, data: Any, kind: dtype, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0
    ) -> None:
        self._data = data
        self.dtype = kind
        self._extents = tuple(shape)
        self.strides = _contiguous_strides(shape, kind.itemsize) if strides is None else tuple(strides)
        self._offset = offset
        self._is_writeable = not memoryview(data).readonly

    # What it is

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents: another tuple each time, as numpy has it. Pickles write a tuple once, and then its number."""
        return (*self._extents,)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Of an element, in bytes."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Of all elements, in bytes."""
        return self.size * self.itemsize

    @property
    def flags(self) -> SimpleNamespace:
        """Whether elements may be written, are aligned, and follow one another."""
        return SimpleNamespace(writeable=self._is_writeable, aligned=True, c_contiguous=self._is_contiguous())

    def _is_contiguous(self) -> bool:
        """Return whether the elements follow one another in index order; the stride of an extent of 1 is ignored."""
        wanted = _contiguous_strides(self.shape, self.itemsize)
        if not self.size:
            return True
        dims = zip(self.shape, self.strides, wanted)
        return all(extent == 1 or step == wanted_step for extent, step, wanted_step in dims)

    @property
    def data(self) -> memoryview:
        """The memory of contiguous elements."""
        return memoryview(self._data)[self._offset : self._offset + self.nbytes]

    @property
    def T(self) -> ndarray:
        """The dimensions in the other order."""
        return self._view(self.shape[::-1], self.strides[::-1], self._offset)

    def _view(self, shape: Sequence[int], strides: Sequence[int], offset: int) -> ndarray:
        """Return a view of the same bytes with the same type."""
        view = ndarray(self._data, self.dtype, shape, strides, offset)
        view._is_writeable = self._is_writeable
        return view

    # Elements

    def tobytes(self) -> bytes:
        """Return the bytes of the elements in index order."""
        if self._is_contiguous():
            return bytes(self.data)
        memory = memoryview(self._data)
        width = self.itemsize
        return b"".join([memory[offset : offset + width] for offset in self._byte_offsets()])

    def _byte_offsets(self) -> list[int]:
        """Return the offset in bytes of each element, in index order."""
        offsets = [self._offset] if self.size else []
        for extent, step in zip(self.shape, self.strides):
            offsets = [offset + number * step for offset in offsets for number in range(extent)]
        return offsets

    def values(self) -> list[Any]:
        """Return the elements in index order as Python numbers."""
        return _decode(self.tobytes(), self.dtype)

    def tolist(self) -> Any:
        """Return the elements as nested lists; of no dimensions, the element."""
        if not self.shape:
            return self.item()
        if self.ndim == 1:
            return self.values()
        return [row.tolist() for row in self]

    def item(self) -> Any:
        """Return the only element."""
        (value,) = self.values()
        return value

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[ndarray]:
        return (self[number] for number in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    __index__ = __int__

    def __float__(self) -> float:
        return float(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec)

    def __repr__(self) -> str:
        return f"array({self.tolist()!r})" if self.shape else repr(self.item())

    # The same elements in other ways

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        """Return the elements in another shape; one extent may be -1."""
        extents = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        if -1 in extents:
            rest = math.prod(extent for extent in extents if extent != -1)
            if not rest or self.size % rest:
                raise ValueError(f"cannot reshape array of size {self.size} into shape {tuple(extents)}")
            extents[extents.index(-1)] = self.size // rest
        if math.prod(extents) != self.size or any(extent < 0 for extent in extents):
            raise ValueError(f"cannot reshape array of size {self.size} into shape {tuple(extents)}")
        if order == "F":  # the first index runs fastest: in C's order it is the last one
            return self.ravel("F").reshape(extents[::-1]).T
        source = self if self._is_contiguous() else self.copy()
        return source._view(extents, _contiguous_strides(extents, self.itemsize), source._offset)

    def ravel(self, order: str = "C") -> ndarray:
        """Return the elements in one dimension; `F` with the first index changing fastest, `K` as they are stored."""
        if order == "F" or (order == "K" and not self._is_contiguous() and self.T._is_contiguous()):
            return self.T.reshape(-1)
        return self.reshape(-1)

    def copy(self) -> ndarray:
        """Return a contiguous array of its own."""
        return ndarray(bytearray(self.tobytes()), self.dtype, self.shape)

    def astype(self, kind: Any, copy: bool = True) -> ndarray:
        """Return the elements converted to a type.

        Args:
            kind: the type, with its byte order.
            copy: whether the result is in new memory where nothing has to be converted; otherwise it is this array.
        """
        kind = dtype(kind)
        if kind == self.dtype:
            return self.copy() if copy else self
        if kind.newbyteorder("=") == self.dtype.newbyteorder("="):  # the same in the other byte order
            # The bytes of each part of a complex number are reversed by themselves.
            width = kind.itemsize if kind.kind != "c" else kind.itemsize // 2
            return ndarray(_swapped(self.tobytes(), width), kind, self.shape)
        return ndarray(_encode(self.values(), kind), kind, self.shape)

    def view(self, kind: Any) -> ndarray:
        """Return the same memory as elements of another type; the last extent changes with the size of an element.

        Raises:
            ValueError: that is not possible with this shape, or with these strides.
        """
        kind = dtype(kind)
        if kind.itemsize == self.itemsize:
            view = self._view(self.shape, self.strides, self._offset)
            view.dtype = kind
            return view
        if not self._is_contiguous() or not self.shape:
            raise ValueError("only contiguous elements can be seen as others of another size")
        row_bytes = self.shape[-1] * self.itemsize
        if row_bytes % kind.itemsize:
            raise ValueError("the bytes are no whole number of elements")
        shape = (*self.shape[:-1], row_bytes // kind.itemsize)
        view = ndarray(self._data, kind, shape, offset=self._offset)
        view._is_writeable = self._is_writeable
        return view

    def byteswap(self, inplace: bool = False) -> ndarray:
        """Return the elements with the bytes of each in the other order."""
        width = self.itemsize // 2 if self.dtype.kind == "c" else self.itemsize  # a complex number is two
        swapped = ndarray(_swapped(self.tobytes(), width), self.dtype, self.shape)
        if not inplace:
            return swapped
        self[...] = swapped
        return self

    def conj(self) -> ndarray:
        """Return the conjugates."""
        if self.dtype.kind != "c":
            return self
        return _from_values([value.conjugate() for value in self.values()], self.dtype, self.shape)

    # Parts

    def _basic_view(self, index: tuple[Any, ...]) -> ndarray:
        """Return a view by integers, slices, `None` and `...`, one for each dimension; others are whole.

        Raises:
            IndexError: there are too many, or an integer is out of bounds.
        """
        shape: list[int] = []
        strides: list[int] = []
        offset = self._offset
        dim = 0
        for part in _with_whole_dimensions(index, self.ndim):
            if part is None:
                shape.append(1)
                strides.append(0)
                continue
            extent, step = self.shape[dim], self.strides[dim]
            dim += 1
            if isinstance(part, slice):
                start, stop, stride = part.indices(extent)
                length = len(range(start, stop, stride))
                shape.append(length)
                strides.append(step * stride)
                offset += start * step if length else 0  # the start of an empty slice may lie outside
                continue
            number = operator.index(part)
            if not -extent <= number < extent:
                raise IndexError(f"index {number} is out of bounds")
            offset += (number % extent) * step
        return self._view(shape, strides, offset)

    def __getitem__(self, index: Any) -> ndarray:
        """Return a view for integers, slices, `None` and `...`; new memory for an array of numbers or truth values."""
        chosen = _chosen_indices(index)
        if chosen is None:
            return self._basic_view(index if isinstance(index, tuple) else (index,))
        indices, shape = chosen
        parts = [self._basic_view(index_of_part).tobytes() for index_of_part in indices]
        # Truth values are for as many dimensions as they have, numbers for the first.
        dims = index.ndim if isinstance(index, ndarray) and index.dtype.kind == "b" else 1
        return ndarray(bytearray(b"".join(parts)), self.dtype, (*shape, *self.shape[dims:]))

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write elements, converted and repeated, to the parts that an index chooses.

        To the parts of an array of numbers or truth values: one number to all, or of a value with dimensions the next
        row to each.
        """
        chosen = _chosen_indices(index)
        if chosen is None:
            part = self._basic_view(index if isinstance(index, tuple) else (index,))
            part._fill(asarray(value))
            return
        indices, _shape = chosen
        values = asarray(value)
        for number, index_of_part in enumerate(indices):
            self._basic_view(index_of_part)._fill(values[number] if values.shape else values)

    def _fill(self, values: ndarray) -> None:
        """Write elements into this view, converted to its type and repeated to its shape."""
        if not self._is_writeable:
            raise ValueError("assignment destination is read-only")
        data = broadcast(values, self.shape).astype(self.dtype, copy=False).tobytes()
        memory = memoryview(self._data)
        if self._is_contiguous():
            memory[self._offset : self._offset + self.nbytes] = data
            return
        width = self.itemsize
        for number, offset in enumerate(self._byte_offsets()):
            memory[offset : offset + width] = data[number * width : (number + 1) * width]

    # Reductions

    def any(self) -> bool:
        """Return whether an element is not zero."""
        return any(self.values())

    def all(self) -> bool:
        """Return whether no element is zero."""
        return all(self.values())

    def min(self) -> ndarray:
        """Return the smallest element, or a NaN where there is one."""
        return _from_values([_extreme(self.values(), min)], self.dtype, ())

    def max(self) -> ndarray:
        """Return the largest element, or a NaN where there is one."""
        return _from_values([_extreme(self.values(), max)], self.dtype, ())

    def argmax(self) -> int:
        """Return the number of the first largest element, or of the first NaN."""
        values = self.values()
        for number, value in enumerate(values):
            if value != value:
                return number
        return values.index(max(values))

    def sum(self, axis: int | None = None, keepdims: bool = False) -> ndarray:
        """Return the sum of all elements, or along the last axis; integers and truth values are counted in 64 bits."""
        wide_integer = dtype("u8" if self.dtype.kind == "u" else "i8")
        result_type = self.dtype if self.dtype.kind in "fc" else wide_integer
        if axis is None:
            return _from_values([_pairwise_sum(self.values(), result_type)], result_type, ())
        if axis not in (-1, self.ndim - 1):
            raise NotImplementedError("sums along the last axis only")
        rows = self.reshape(math.prod(self.shape[:-1]), self.shape[-1])
        sums = [_pairwise_sum(row.values(), result_type) for row in rows]
        return _from_values(sums, result_type, (*self.shape[:-1], 1) if keepdims else self.shape[:-1])

    def mean(self) -> ndarray:
        """Return the mean."""
        return self.sum() / self.size

    def var(self) -> ndarray:
        """Return the variance."""
        distances = self - self.mean()
        return (distances * distances).sum() / self.size

    # Arithmetic

    def __add__(self, other: Any) -> ndarray:
        return _arithmetic(operator.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> ndarray:
        return _arithmetic(operator.sub, self, other)

    def __rsub__(self, other: Any) -> ndarray:
        return _arithmetic(operator.sub, other, self)

    def __mul__(self, other: Any) -> ndarray:
        return _arithmetic(operator.mul, self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> ndarray:
        return _arithmetic(_quotient, self, other)

    def __floordiv__(self, other: Any) -> ndarray:
        return _arithmetic(operator.floordiv, self, other)

    def __mod__(self, other: Any) -> ndarray:
        return _arithmetic(operator.mod, self, other)

    def __pow__(self, other: Any) -> ndarray:
        # A square is a product, as in numpy: `pow` may round it otherwise.
        return _arithmetic(operator.mul, self, self) if other == 2 else _arithmetic(_power, self, other)

    def __neg__(self) -> ndarray:
        return _map_elements(operator.neg, self)

    def __abs__(self) -> ndarray:
        return absolute(self)

    def __and__(self, other: Any) -> ndarray:
        return _arithmetic(operator.and_, self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> ndarray:
        return _arithmetic(operator.or_, self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> ndarray:
        return _arithmetic(operator.xor, self, other)

    def __lshift__(self, other: Any) -> ndarray:
        return _arithmetic(operator.lshift, self, other)

    def __rshift__(self, other: Any) -> ndarray:
        return _arithmetic(operator.rshift, self, other)

    def __invert__(self) -> ndarray:
        return _map_elements(operator.not_ if self.dtype.kind == "b" else operator.invert, self)

    def __eq__(self, other: Any) -> Any:
        return _compared(operator.eq, self, other)

    def __ne__(self, other: Any) -> Any:
        return _compared(operator.ne, self, other)

    def __lt__(self, other: Any) -> ndarray:
        return _compared(operator.lt, self, other)

    def __le__(self, other: Any) -> ndarray:
        return _compared(operator.le, self, other)

    def __gt__(self, other: Any) -> ndarray:
        return _compared(operator.gt, self, other)

    def __ge__(self, other: Any) -> ndarray:
        return _compared(operator.ge, self, other)

    __hash__ = None  # type: ignore[assignment]


def _from_values(values: list[Any], kind: dtype, shape: Sequence[int]) -> ndarray:
    """Return an array of Python's numbers in index order, converted to a type."""
    return ndarray(_encode(values, kind), kind, shape)


def _chosen_indices(index: Any) -> tuple[list[tuple[int, ...]], tuple[int, ...]] | None:
    """Return the index of each part that an array of truth values or numbers chooses, and the shape of these parts.

    `None` for an index of another kind.
    """
    if isinstance(index, list):
        index = asarray(index)
    if not isinstance(index, ndarray) or not index.shape:
        return None
    if index.dtype.kind != "b":
        return [(number,) for number in index.values()], index.shape
    all_indices = product(*map(range, index.shape))
    indices = [part for part, is_chosen in zip(all_indices, index.values()) if is_chosen]
    return indices, (len(indices),)


def _extreme(values: list[Any], choose: Callable[[list[Any]], Any]) -> Any:
    """Return the number that `min` or `max` chooses; the first NaN where there is one."""
    if not values:
        raise ValueError("zero-size array to reduction operation")
    for value in values:
        if value != value:
            return value
    return choose(values)


def _with_whole_dimensions(index: tuple[Any, ...], ndim: int) -> list[Any]:
    """Return an index with a slice for each whole dimension: in place of `...`, or at the end.

    Args:
        index: integers, slices, `None` and at most one `...`.
        ndim: the number of dimensions.

    Raises:
        IndexError: there are too many.
    """
    count = sum(part is not None and part is not Ellipsis for part in index)
    if count > ndim:
        raise IndexError("too many indices for array")
    whole = [slice(None)] * (ndim - count)
    at = next((number for number, part in enumerate(index) if part is Ellipsis), None)
    return [*index, *whole] if at is None else [*index[:at], *whole, *index[at + 1 :]]


def _pairwise_sum(values: list[Any], kind: dtype) -> Any:
    """Return a sum as numpy rounds it: eight sums in turn, of halves of more than 128 elements.

    Source: numpy `loops_utils.h.src` `pairwise_sum`.

    Args:
        values: the elements.
        kind: their type; each sum of two is rounded to it, if it is one of floats or complex numbers.
    """
    if kind.kind not in "fc":
        return sum(values)

    is_double = kind.kind == "f" and kind.itemsize == 8

    def rounded(value: Any) -> Any:
        """Return a number as an element of the type, to which each sum is rounded."""
        if is_double:  # as Python's own floats
            return value
        (element,) = _decode(bytes(_encode([value], kind)), kind)
        return element

    def total_of_block(start: int, count: int) -> Any:
        """Return the sum of 8 to 128 elements from `start` on: of eight sums in turn, and the rest one by one."""
        sums = values[start : start + 8]
        whole = count - count % 8
        for place in range(8, whole):
            sums[place % 8] = rounded(sums[place % 8] + values[start + place])
        pairs = [rounded(sums[number] + sums[number + 1]) for number in (0, 2, 4, 6)]
        result = rounded(rounded(pairs[0] + pairs[1]) + rounded(pairs[2] + pairs[3]))
        for value in values[start + whole : start + count]:
            result = rounded(result + value)
        return result

    def total(start: int, count: int) -> Any:
        """Return the sum of `count` elements from `start` on; the three cases are those of numpy's source."""
        if count < 8:
            result = values[start] if count else 0.0
            for value in values[start + 1 : start + count]:
                result = rounded(result + value)
            return result
        if count <= 128:
            return total_of_block(start, count)
        half = count // 2
        half -= half % 8
        return rounded(total(start, half) + total(start + half, count - half))

    return total(0, len(values))


# Two arrays


def _quotient(one: Any, other: Any) -> Any:
    """Return a quotient as IEEE 754 has it, also by zero."""
    try:
        return one / other
    except ZeroDivisionError:
        if one == 0 or one != one:
            return nan
        return math.copysign(inf, one) * math.copysign(1.0, other)


def _power(one: float, other: float) -> float:
    """Return a power as C has it, where Python raises an error."""
    try:
        return math.pow(one, other)
    except OverflowError:
        pass
    except ValueError:  # zero to a negative power, or a negative number to one that is not whole
        if one != 0:
            return nan
    is_odd = other % 2 == 1  # also of a negative whole number
    return math.copysign(inf, one) if is_odd else inf


def result_type(*kinds: Any) -> dtype:
    """Return the type in which numpy computes with arrays and types."""
    types = [kind.dtype if isinstance(kind, ndarray) else dtype(kind) for kind in kinds]
    result = types[0]
    for other in types[1:]:
        result = _common_type(result, other)
    return result.newbyteorder("=")


def _common_type(one: dtype, other: dtype) -> dtype:
    """Return the smallest type that has the numbers of both; where there is none, one of doubles (NEP 50)."""
    order = "buifc"
    if order.index(one.kind) > order.index(other.kind):
        one, other = other, one
    # Now `one` is of the same kind as `other`, or of one further left in `order`.
    if one.kind == other.kind:
        return one if one.itemsize >= other.itemsize else other
    if one.kind == "b":
        return other
    if other.kind == "i":  # with unsigned integers, which need a bit more
        size = max(other.itemsize, 2 * one.itemsize)
        return dtype("f8" if size > 8 else f"i{size}")
    if one.kind in "ui":
        floating = min(8, 2 * one.itemsize)  # bytes of the float with all these integers; of 8 bytes there is none
        if other.kind == "f":
            return dtype(f"f{max(other.itemsize, floating)}")
        return dtype(f"c{max(other.itemsize, 2 * max(4, floating))}")  # complex numbers are of two float32 at least
    return dtype(f"c{max(other.itemsize, 2 * max(4, one.itemsize))}")


def _operands(one: Any, other: Any) -> tuple[ndarray, ndarray, dtype]:
    """Return two operands in one shape, and the type of their result.

    One of them may be a number of Python, which adopts the array's type, or the default type of a higher kind (NEP 50).
    """
    if isinstance(one, ndarray) and isinstance(other, ndarray):
        kind = result_type(one, other)
    else:
        array, number = (one, other) if isinstance(one, ndarray) else (other, one)
        kind = array.dtype.newbyteorder("=")
        if isinstance(number, float) and kind.kind not in "fc":
            kind = dtype("f8")
        elif isinstance(number, int) and kind.kind == "b" and not isinstance(number, bool):
            kind = dtype("i8")
    one, other = asarray(one), asarray(other)
    shape = _common_shape(one.shape, other.shape)
    return broadcast(one, shape), broadcast(other, shape), kind


def _arithmetic(function: Callable[[Any, Any], Any], one: Any, other: Any) -> ndarray:
    """Return the results of a function of two numbers, for each pair of elements of two operands.

    Args:
        function: receives both as Python's numbers of the type of the result.
        one: an array, or a number.
        other: the same; one of the two is an array.
    """
    left, right, kind = _operands(one, other)
    if function is _quotient and kind.kind not in "fc":  # `/` of integers
        kind = dtype("f8")
    first = left.astype(kind, copy=False).values()
    second = right.astype(kind, copy=False).values()
    return _from_values(list(map(function, first, second)), kind, left.shape)


def _compared(function: Callable[[Any, Any], bool], one: Any, other: Any) -> ndarray:
    """Return the truth values of a comparison, for each pair of elements of two operands."""
    left, right, _ = _operands(one, other)
    return _from_values(list(map(function, left.values(), right.values())), dtype("?"), left.shape)


def _map_elements(function: Callable[[Any], Any], array: ndarray, kind: dtype | None = None) -> ndarray:
    """Return the results of a function for each element, of a type or of the array's own."""
    return _from_values(list(map(function, array.values())), kind or array.dtype.newbyteorder("="), array.shape)


def _common_shape(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of two operands together: extents of 1 repeat, and missing ones come first.

    Raises:
        ValueError: extents differ, and neither is 1.
    """
    dims = max(len(one), len(other))
    first = (1,) * (dims - len(one)) + tuple(one)
    second = (1,) * (dims - len(other)) + tuple(other)
    if any(a != b and 1 not in (a, b) for a, b in zip(first, second)):
        raise ValueError(f"operands could not be broadcast together with shapes {tuple(one)} {tuple(other)}")
    return tuple(b if a == 1 else a for a, b in zip(first, second))


def broadcast(array: ndarray, shape: Sequence[int]) -> ndarray:
    """Return a view in another shape, which repeats dimensions of one element, and has further ones before them.

    Raises:
        ValueError: the array has other extents, or more dimensions.
    """
    if array.shape == tuple(shape):
        return array
    missing = len(shape) - array.ndim
    if missing < 0:
        raise ValueError(f"could not broadcast input array from shape {array.shape} into shape {tuple(shape)}")
    strides = [0] * missing
    for extent, wanted, step in zip(array.shape, shape[missing:], array.strides):
        if extent not in (1, wanted):
            raise ValueError(f"could not broadcast input array from shape {array.shape} into shape {tuple(shape)}")
        strides.append(0 if extent != wanted else step)
    return array._view(shape, strides, array._offset)


# Making arrays


def empty(shape: Any, kind: Any = "f8") -> ndarray:
    """Return zeros."""
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    if len(extents) > 64:
        raise ValueError("maximum supported dimension for an ndarray is 64")
    kind = dtype(kind)
    return ndarray(bytearray(math.prod(extents) * kind.itemsize), kind, extents)


zeros = empty


def zeros_like(other: ndarray) -> ndarray:
    """Return zeros in the shape and type of an array."""
    return empty(other.shape, other.dtype)


def full(shape: Any, value: Any, kind: Any) -> ndarray:
    """Return an array of one number."""
    filled = empty(shape, kind)
    filled[...] = value
    return filled


def arange(count: int) -> ndarray:
    """Return the numbers from 0 to `count - 1`."""
    return _from_values(list(range(count)), dtype("i8"), (count,))


def _code_for(numbers: list[Any]) -> str:
    """Return the code of the first type that has all of some numbers of Python; of no numbers that of doubles."""
    if not numbers:
        return "f8"
    if all(isinstance(number, bool) for number in numbers):
        return "?"
    if all(isinstance(number, int) for number in numbers):
        has_unsigned = min(numbers) >= 0 and max(numbers) >= 1 << 63  # beyond int64
        return "u8" if has_unsigned else "i8"
    if all(isinstance(number, (int, float)) for number in numbers):
        return "f8"
    return "c16"


def array(values: Any, kind: Any = None) -> ndarray:
    """Return an array of nested lists of numbers, or of one.

    Args:
        values: the lists, a number, or an array, which is copied.
        kind: the type of the elements; by default the one that numpy takes for such numbers.

    Raises:
        ValueError: the lists are not of equal length.
    """
    if isinstance(values, ndarray):
        return values.copy() if kind is None else values.astype(kind)
    if kind is object:
        raise TypeError("there are no arrays of objects")
    shape: list[int] = []
    items = [values]
    while items and isinstance(items[0], (list, tuple)):
        shape.append(len(items[0]))
        if any(not isinstance(item, (list, tuple)) or len(item) != shape[-1] for item in items):
            raise ValueError("setting an array element with a sequence")
        items = [number for item in items for number in item]
    numbers = [item.item() if isinstance(item, ndarray) else item for item in items]
    if any(not isinstance(number, (bool, int, float, complex)) for number in numbers):
        raise ValueError("setting an array element with a sequence or an object")
    kind = dtype(_code_for(numbers) if kind is None else kind)
    has_int = any(type(number) is int for number in numbers)
    # numpy refuses ints out of bounds, and wraps floats.
    if kind.kind in "iu" and has_int and _has_out_of_bounds([*map(int, numbers)], kind):
        raise OverflowError(f"an integer is out of bounds for {kind.name}")
    return _from_values(numbers, kind, shape)


def asarray(values: Any) -> ndarray:
    """Return an array, itself if it is one."""
    return values if isinstance(values, ndarray) else array(values)


def ascontiguousarray(values: ndarray) -> ndarray:
    """Return an array whose elements follow one another; one without dimensions gets one, as in numpy."""
    values = values if values._is_contiguous() else values.copy()
    return values if values.shape else values.reshape(1)


def frombuffer(data: Any, kind: Any) -> ndarray:
    """Return an array that is a view of bytes."""
    kind = dtype(kind)
    memory = memoryview(data).cast("B")
    if memory.nbytes % kind.itemsize:
        raise ValueError("buffer size must be a multiple of element size")
    return ndarray(memory, kind, (memory.nbytes // kind.itemsize,))


def as_strided(values: ndarray, shape: Sequence[int], strides: Sequence[int], writeable: bool = True) -> ndarray:
    """Return a view with another shape and strides in bytes; they must stay inside the memory."""
    view = values._view(shape, strides, values._offset)
    view._is_writeable = writeable and values._is_writeable
    return view


# Functions of arrays


def concatenate(arrays: Iterable[ndarray]) -> ndarray:
    """Join arrays along the first dimension."""
    parts = list(arrays)
    kind = result_type(*parts)
    data = b"".join([part.astype(kind, copy=False).tobytes() for part in parts])
    return ndarray(bytearray(data), kind, (sum(map(len, parts)), *parts[0].shape[1:]))


def split(values: ndarray, count: int) -> list[ndarray]:
    """Return equal parts along the first dimension."""
    length = len(values) // count
    return [values[number * length : (number + 1) * length] for number in range(count)]


def stack(arrays: Sequence[ndarray], axis: int) -> ndarray:
    """Join arrays of one shape along a new last dimension."""
    assert axis == -1
    result = empty((*arrays[0].shape, len(arrays)), arrays[0].dtype)
    for number, part in enumerate(arrays):
        result[..., number] = part
    return result


class AxisError(ValueError, IndexError):
    """A dimension that an array does not have."""


def _dimension(number: int, ndim: int, role: str) -> int:
    """Return the number of a dimension from the start; negative ones count from the end.

    Args:
        number: as the caller gives it.
        ndim: number of dimensions.
        role: what the dimension is to the caller, for the error.

    Raises:
        AxisError: there is no such dimension.
    """
    if not -ndim <= number < ndim:
        raise AxisError(f"{role}: axis {number} is out of bounds for array of dimension {ndim}")
    return number % ndim


def moveaxis(values: ndarray, source: int, target: int) -> ndarray:
    """Return a view with one dimension elsewhere.

    Args:
        values: the array.
        source: number of the dimension; a negative one counts from the end.
        target: its number in the view.

    Raises:
        AxisError: the array does not have one of the two.
    """
    source = _dimension(source, values.ndim, "source")
    target = _dimension(target, values.ndim, "destination")
    order = [dim for dim in range(values.ndim) if dim != source]
    order.insert(target, source)
    shape = [values.shape[dim] for dim in order]
    strides = [values.strides[dim] for dim in order]
    return values._view(shape, strides, values._offset)


def where(condition: ndarray, one: Any, other: Any) -> ndarray:
    """Return elements of one array where a condition holds, else of another; one of the two may be a number."""
    left, right, kind = _operands(one, other)
    shape = _common_shape(condition.shape, left.shape)
    conditions, first, second = (broadcast(values, shape).values() for values in (condition, left, right))
    chosen = [a if holds else b for holds, a, b in zip(conditions, first, second)]
    return _from_values(chosen, kind, shape)


def copyto(target: ndarray, source: ndarray, casting: str) -> None:
    """Write elements into an array, converted to its type; no other `casting` is asked for."""
    assert casting == "unsafe"
    target[...] = source


def isnan(values: Any) -> ndarray:
    """Return where there is a NaN."""
    return _map_elements(lambda value: value != value, asarray(values), dtype("?"))


def isfinite(values: ndarray) -> ndarray:
    """Return where there is neither a NaN nor an infinite number."""
    return _map_elements(lambda value: abs(value) < inf, values, dtype("?"))


def absolute(values: Any) -> ndarray:
    """Return the absolute values; those of complex numbers are floats."""
    values = asarray(values)
    kind = dtype(f"f{values.itemsize // 2}") if values.dtype.kind == "c" else None
    return _map_elements(abs, values, kind)


def negative(values: ndarray) -> ndarray:
    """Return the numbers with the other sign."""
    return -values


def sqrt(values: Any) -> ndarray:
    """Return the square roots; a NaN of negative numbers."""
    return _map_elements(lambda value: math.sqrt(value) if value >= 0 else nan, asarray(values))


def maximum(one: Any, other: Any) -> ndarray:
    """Return the larger elements, or NaNs."""
    return _arithmetic(lambda a, b: a if a != a or a >= b else b, one, other)


def minimum(one: Any, other: Any) -> ndarray:
    """Return the smaller elements, or NaNs."""
    return _arithmetic(lambda a, b: a if a != a or a <= b else b, one, other)


def argmax(values: ndarray) -> int:
    """Return the number of the first largest element."""
    return values.argmax()


def count_nonzero(values: ndarray) -> int:
    """Return how many elements are not zero."""
    return sum(map(bool, values.values()))


def array_equal(one: ndarray, other: ndarray, equal_nan: bool = False) -> bool:
    """Return whether shapes and elements are equal."""
    if one.shape != other.shape:
        return False
    pairs = zip(one.values(), other.values())
    return all(a == b or (equal_nan and a != a and b != b) for a, b in pairs)


def allclose(one: Any, other: Any, rtol: float, atol: float, equal_nan: bool = False) -> bool:
    """Return whether the elements of two arrays differ by at most `atol + rtol * |other|`.

    Args:
        one: an array, or a number.
        other: the one that the relative tolerance is of.
        rtol: relative tolerance.
        atol: absolute tolerance.
        equal_nan: whether two NaNs are equal.
    """
    left, right, _ = _operands(one, other)
    for a, b in zip(left.values(), right.values()):
        if a == b or (equal_nan and a != a and b != b):
            continue
        # The tolerance of an infinite number is infinite, too: such are close to equal ones only. `not <=`: of a NaN.
        if abs(a) == inf or abs(b) == inf or not abs(a - b) <= atol + rtol * abs(b):
            return False
    return True


def isin(values: ndarray, wanted: ndarray) -> ndarray:
    """Return which elements are among others."""
    others = set(wanted.values())
    return _map_elements(others.__contains__, values, dtype("?"))


def can_cast(source: Any, target: Any) -> bool:
    """Return whether a type holds all numbers of another."""
    source, target = dtype(source), dtype(target)
    return bool(_common_type(source, target).newbyteorder("=") == target.newbyteorder("="))


def unravel_index(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of an element by its number in index order."""
    indices: list[int] = []
    for extent in reversed(shape):
        number, index = divmod(number, extent)
        indices.insert(0, index)
    return tuple(indices)


def nditer(values: ndarray, flags: Sequence[str], order: str, buffersize: int) -> Iterator[ndarray]:
    """Yield the elements in index order, `buffersize` at once."""
    assert order == "C"
    flat = values.reshape(-1)
    for start in range(0, len(flat), buffersize):
        yield flat[start : start + buffersize]


def histogram(values: ndarray, bins: int, limits: tuple[float, float]) -> tuple[ndarray, None]:
    """Return how many elements are in each of equal bins, of which the last includes its upper edge; and nothing.

    numpy returns the edges, too, which nobody asks for. As there, the bin that a quotient gives is corrected where the
    edges, which are rounded otherwise, put the element into another one.

    Args:
        values: the elements, all between the limits.
        bins: number of bins.
        limits: the lower edge of the first bin and the upper edge of the last.
    """
    low, high = limits
    edges = [low + (high - low) / bins * number for number in range(bins)] + [high]
    counts = [0] * bins
    for value in values.values():
        number = min(bins - 1, int((value - low) / (high - low) * bins))
        if value < edges[number]:
            number -= 1
        elif value >= edges[number + 1] and number < bins - 1:
            number += 1
        counts[number] += 1
    return _from_values(counts, dtype("i8"), (bins,)), None


def _sum(arrays: Sequence[ndarray], axis: int) -> ndarray:
    """Return the sum of arrays of one shape."""
    assert axis == 0
    total = arrays[0]
    for other in arrays[1:]:
        total = total + other
    return total


def iinfo(kind: Any) -> SimpleNamespace:
    """Return the smallest and the largest integer of a type."""
    kind = dtype(kind)
    bits = 8 * kind.itemsize
    if kind.kind == "u":
        return SimpleNamespace(min=0, max=(1 << bits) - 1)
    return SimpleNamespace(min=-(1 << (bits - 1)), max=(1 << (bits - 1)) - 1)


def finfo(kind: Any) -> SimpleNamespace:
    """Return the smallest normal double."""
    assert dtype(kind) == dtype("f8")
    return SimpleNamespace(tiny=sys.float_info.min)


def errstate(**kinds: str) -> contextlib.AbstractContextManager[None]:
    """Return a context that does nothing: there are no warnings here."""
    return contextlib.nullcontext()


def float16(value: Any) -> ndarray:
    """Return a scalar."""
    return array(value, "f2")


def float32(value: Any) -> ndarray:
    """Return a scalar."""
    return array(value, "f4")


def uint32(value: Any) -> ndarray:
    """Return a scalar."""
    return array(value, "u4")


float64 = dtype("f8")


def _descr_to_dtype(descr: Any) -> dtype:
    return dtype(descr)


lib = SimpleNamespace(
    stride_tricks=SimpleNamespace(as_strided=as_strided), format=SimpleNamespace(descr_to_dtype=_descr_to_dtype)
)


def __getattr__(name: str) -> Any:
    """Return the functions of numpy that have names of Python's own."""
    functions = {"abs": absolute, "sum": _sum}
    if name not in functions:
        raise AttributeError(f"numpy is not installed, and its {name} is not replaced")
    return functions[name]
