"""Storages: runs of elements that know where their bytes are."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Union

from attrs import field

from ..data import decimal_text, define, np
from ..errors import CorruptError, ModelError
from ..io.copy import NO_CHANGE, WORTH_BYTES, Buffer, Change, Extent, crc32, reversal
from ..io.source import ByteSource
from ..text import Holder, plain_numbers, storage_number
from .dtypes import (
    LUA_ALIASES,
    LUA_CLASSES,
    ORDER_SIGNS,
    ElementType,
    dtype_of,
    element_of,
    lua_class_name,
    numpy_dtype,
)

CHUNK_BYTES = 1 << 19
"""Bytes converted at a time: they fit the processor's cache."""
_CAST_BYTES = 1 << 20
"""Bytes that numpy casts at a time, of the source or the target, whichever has more."""
_CONVERT_BYTES = 1 << 18
"""The same where functions convert elements, each of which allocates its result: the memory of larger ones would go
back to the system each time."""
_MOST_IN_GROUP = 1 << 12
"""Most elements that must be converted together: a buffer holds a multiple of them."""
_WORDS = (2, 4, 8)
"""Bytes of words whose bytes a copy can reverse."""
_LONG_CODES = {4: "i", 8: "q"}
"""The codes of `struct` for longs of so many bytes."""
_FEW_LONGS = 256
"""Up to how many longs are converted without numpy, which takes long to load."""


class Elements:
    """Where the elements of a storage are, or what computes them."""

    __slots__ = ()

    def arrays(self, storage: Storage) -> Iterator[np.ndarray]:
        """Yield the elements of a storage, in pieces of about 512 KiB, in the machine's byte order.

        Args:
            storage: the one whose `data` this is: it has the element type, and the number of elements.
        """
        raise NotImplementedError


@define(eq=False)
class Span(Elements):
    """Elements at their position in a source.

    Attributes:
        source: the source of the bytes.
        offset: of the first byte, 0-based.
        width: bytes of one element in the source; differs from the element type's own size only where 64-bit
            integers were written as 4-byte C longs.
        order: `little` or `big`.
        crc: CRC-32 of all the bytes, if the file has one: it is checked when all are read.
    """

    source: ByteSource
    offset: int
    width: int
    order: str = "little"
    crc: int | None = None

    def change(self, element: ElementType, order: str, width: int) -> Change | None:
        """Return the change by which the bytes become what a target wants: none, or reversing words.

        Args:
            element: the type of the elements.
            order: byte order of the target, `little` or `big`.
            width: bytes of one element in the target.

        Returns:
            `None` where numpy must convert them.
        """
        if self.width != width:
            return None
        if self.order == order or width == 1:
            return NO_CHANGE
        is_complex = element.code.startswith("c")
        word = width // 2 if is_complex else width  # a complex number is two words
        return reversal(word) if word in _WORDS else None

    def extent(self, count: int, change: Change) -> Extent:
        """Return where the bytes of elements are, for a copy, which makes the change and checks their CRC-32.

        Args:
            count: number of elements.
            change: what their bytes become on the way.
        """
        check = None if self.crc is None else self.check
        return Extent(self.source, self.offset, count * self.width, change, check)

    def arrays(self, storage: Storage) -> Iterator[np.ndarray]:
        """Yield the elements as the file has them, in the machine's byte order, see `Elements.arrays`."""
        dtype_in_file = dtype_of(storage.element, self.order, self.width)
        for piece in self.pieces(storage.count):
            yield np.frombuffer(piece, dtype_in_file).astype(storage.element.code, copy=False)

    def pieces(self, count: int) -> Iterator[bytes]:
        """Yield the bytes of `count` elements unchanged, in pieces of whole elements of at most about 512 KiB.

        Raises:
            TruncatedError: the file has become shorter.
            CorruptError: the CRC-32 does not match; raised after the last piece.
        """
        position = self.offset
        crc = 0
        end = position + count * self.width
        step = max(1, CHUNK_BYTES // self.width) * self.width
        while position < end:
            piece = self.source.read_exact(position, min(step, end - position), "a storage's elements")
            if self.crc is not None:
                crc = crc32(piece, crc)
            yield piece
            position += len(piece)
        self.check(crc)

    def check(self, crc: int) -> None:
        """Check the CRC-32 of all the bytes, if the file has one.

        Raises:
            CorruptError: it does not match.
        """
        if self.crc is not None and crc != self.crc:
            raise CorruptError(
                "a storage does not have its CRC-32: its bytes are damaged",
                file=self.source.name,
                offset=self.offset,
                expected=f"{self.crc:08x}",
                found=f"{crc:08x}",
            )


@define(eq=False)
class TextSpan(Elements):
    """Elements as whitespace-separated decimal numbers in a source.

    Attributes:
        source: the source of the text.
        offset: of the first byte, 0-based.
        length: in bytes.
        is_plain: whether the numbers are as C on this system prints them, and not `1,5` or `1.#INF`.
    """

    source: ByteSource
    offset: int
    length: int
    is_plain: bool = True

    def arrays(self, storage: Storage) -> Iterator[np.ndarray]:
        """Yield the numbers of the text.

        Raises:
            CorruptError: it has others than the storage's, or not as many.
        """
        parse_numbers = decimal_text().parse_numbers
        missing = storage.count
        for piece in self.pieces():
            if not self.is_plain:
                piece = plain_numbers(piece)  # as C on this system prints them
            try:
                array = parse_numbers(piece, np.dtype(storage.element.code))
            except (ValueError, OverflowError) as error:
                raise self._wrong(f"numbers of type {storage.element.name}", str(error)) from error
            missing -= len(array)
            yield array
        if missing:  # a negative number if there are too many
            raise self._wrong(f"{storage.count} numbers", f"{storage.count - missing}")

    def _wrong(self, expected: str, found: str) -> CorruptError:
        """Return the error for text that is not numbers of the storage's type, as many as it has."""
        return CorruptError(
            "a storage's text is not its numbers",
            file=self.source.name,
            offset=self.offset,
            expected=expected,
            found=found,
        )

    def pieces(self) -> Iterator[bytes]:
        """Yield the text in pieces of at most 512 KiB, which end between numbers.

        Raises:
            TruncatedError: the file has become shorter.
            CorruptError: a piece would have no end: it has neither a space nor a newline.
        """
        position = self.offset
        end = self.offset + self.length
        while position < end:
            piece = self.source.read_exact(position, min(CHUNK_BYTES, end - position), "a storage's numbers")
            if position + len(piece) < end:
                last_space = max(piece.rfind(b" "), piece.rfind(b"\n"))
                if last_space < 0:
                    raise CorruptError("is not a list of numbers", file=self.source.name, offset=position)
                piece = piece[: last_space + 1]
            yield piece
            position += len(piece)


@define(eq=False)
class Derived(Elements):
    """Elements computed on demand from those of another storage.

    Attributes:
        origin: the other storage.
        convert: computes elements, shape (m,), from elements of the other, shape (n,).
        group: `convert` receives a multiple of this many elements of the other storage.
    """

    origin: Storage
    convert: Callable[[np.ndarray], np.ndarray]
    group: int = 1

    def arrays(self, storage: Storage) -> Iterator[np.ndarray]:
        """Yield the elements computed from those of the other storage, in pieces of whole groups.

        Raises:
            CorruptError: the elements of the other storage are not whole groups.
        """
        rest: np.ndarray | None = None  # the elements of a group that continues in the next chunk
        for chunk in array_chunks(self.origin):
            array = chunk if rest is None or not rest.size else np.concatenate((rest, chunk))
            end = len(array) - len(array) % self.group
            rest = array[end:]
            yield self.convert(array[:end])
        if rest is not None and rest.size:
            raise CorruptError(f"{len(rest)} elements of a storage are left over", expected=f"groups of {self.group}")


@define(eq=False)
class Joined(Elements):
    """The elements of several storages of one type, one after another.

    Attributes:
        parts: the storages.
    """

    parts: list[Storage]

    def arrays(self, storage: Storage) -> Iterator[np.ndarray]:
        """Yield the elements of each storage in turn."""
        for part in self.parts:
            yield from array_chunks(part)


@define(eq=False)
class _Part(Elements):
    """Consecutive elements of another storage, which can only be read from its beginning.

    Attributes:
        origin: the other storage.
        first: the first of them, 0-based.
    """

    origin: Storage
    first: int

    def arrays(self, storage: Storage) -> Iterator[np.ndarray]:
        """Yield the elements, and empty arrays where a piece of the other storage has none of them.

        The other storage is read to its end, as only there an error in it may show.
        """
        # Where the elements begin and end, from the beginning of each array in turn; negative behind them.
        start = self.first
        end = self.first + storage.count
        for array in array_chunks(self.origin):
            yield array[max(start, 0) : max(end, 0)]
            start -= len(array)
            end -= len(array)


Data = Union[Elements, "np.ndarray"]


@define(eq=False)
class Storage(Holder):
    """A sequence of elements of one type, shared by the tensors that are views of it, as memory is in Lua and PyTorch.

    Two tensors share memory if and only if they have the same `Storage` object.

    Attributes:
        element: the element type.
        count: number of elements.
        data: where the elements are: a span of an open file, numbers in a text file, a numpy array, or another storage.
        device: `cpu`, or the device that the file names (`cuda:0`); the bytes are in the file or in main memory in any
            case.
        version: Lua's class version, `None` if the file predates versions.
        alias: the Lua class name, if it is not the one for element and device.
        base: the storage that this one is a part of, or the same memory seen as another element type; `None` except for
            storages that only PyTorch has.
        base_offset: where this begins in the memory of the base, in bytes.
    """

    element: ElementType
    count: int
    data: Data = field(repr=False)
    device: str = "cpu"
    version: int | None = field(default=1, repr=False)
    alias: str | None = field(default=None, repr=False)
    base: Storage | None = field(default=None, repr=False)
    base_offset: int = field(default=0, repr=False)

    def _short(self) -> str:
        return f"Storage {self.element.name} [{self.count}] #{storage_number(self)}"

    @classmethod
    def from_array(cls, array: np.ndarray, element: ElementType | None = None) -> Storage:
        """Wrap a 1-D numpy array; its memory is shared, not copied.

        Args:
            array: shape (count,).
            element: required where numpy has no such type and `array` holds the bits.

        Raises:
            ModelError: the array has more than one dimension, or an unsupported type.
        """
        if array.ndim != 1:
            raise ModelError(
                "a storage is one run of elements", expected="a 1-D array", found=f"{array.ndim} dimensions"
            )
        return cls(element or element_of(array.dtype), len(array), array)

    @classmethod
    def empty(cls, element: ElementType) -> Storage:
        """Return a storage without elements."""
        return cls.zeros(element, 0)

    @classmethod
    def zeros(cls, element: ElementType, count: int) -> Storage:
        """Return a storage of elements that are 0, which cannot be written."""
        return cls(element, count, Span(ByteSource.from_bytes(bytes(count * element.itemsize)), 0, element.itemsize))

    @property
    def nbytes(self) -> int:
        """Size of all elements in bytes."""
        return self.count * self.element.itemsize

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the elements into pickles and copies: an open file belongs to one process and one owner."""
        data = storage_array(self)
        return Storage, (
            self.element, self.count, data, self.device, self.version, self.alias, self.base, self.base_offset
        )  # fmt: skip

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the elements, of shape (count,), as numpy's protocol has it: `copy=False` refuses to copy."""
        own_dtype = numpy_dtype(self.element)
        array = self.array
        if array.dtype != own_dtype:  # integers, as bits of a type of ml_dtypes of the same width
            array = array.view(own_dtype)
        if dtype is not None and own_dtype != dtype:
            if copy is False:
                raise ValueError(f"a storage of {own_dtype} cannot become an array of {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    @property
    def lua_class(self) -> str | None:
        """`torch.FloatStorage`, or `None` where Lua Torch has no such element type."""
        return self.alias or lua_class_name(self.element, self.device, "Storage")

    @property
    def array(self) -> np.ndarray:
        """The elements as a numpy array of shape (count,) in the machine's byte order.

        Where the elements are in a file, they are read each time, and the array is read-only; if the file is mapped
        (`load(path, mmap=True)`), it is a view of the map where byte order and alignment allow.

        Raises:
            CorruptError: text that is not `count` numbers of this type.
            TruncatedError: the file has become shorter.
        """
        array = storage_array(self)
        if array is not self.data:  # what is written into it would be lost
            array.flags.writeable = False
        return array

    def extent(self, order: str = "little", width: int | None = None) -> Extent | None:
        """Return where the elements' bytes are, with the change that makes of them what a target wants.

        Args:
            order: byte order of the result, `little` or `big`.
            width: bytes of one element in the result: the element's own, or 4 for 64-bit integers as C longs.

        Returns:
            `None` where they are not in one piece in a file, or few: then :meth:`chunks` has them.
        """
        width = width or self.element.itemsize
        data = self.data
        if isinstance(data, Span):
            change = data.change(self.element, order, width)
            if change is not None:  # numpy need not be loaded
                return data.extent(self.count, change)
        if self.nbytes < WORTH_BYTES or not isinstance(data, (Span, Derived)):
            return None
        return _converted_extent(self, order, width)

    def chunks(self, order: str = "little", width: int | None = None) -> Iterator[bytes | memoryview]:
        """Yield the converted bytes of the elements in pieces of at most about 512 KiB.

        Args:
            order: byte order of the result, `little` or `big`.
            width: bytes of one element in the result: the element's own, or 4 for 64-bit integers as C longs.

        Raises:
            ModelError: a 64-bit integer does not fit 4 bytes.
        """
        width = width or self.element.itemsize
        if isinstance(self.data, Span) and self.data.change(self.element, order, width) is NO_CHANGE:
            yield from self.data.pieces(self.count)
            return
        if isinstance(self.data, Span) and self.count <= _FEW_LONGS and self.data.width != width:
            yield _resized_longs(self.data, self.count, order, width)
            return
        target_dtype = dtype_of(self.element, order, width)
        for array in array_chunks(self):
            if target_dtype.itemsize < array.dtype.itemsize:  # longs as 4 bytes
                _check_fits(array, target_dtype)
            yield array.astype(target_dtype, copy=False).tobytes()

    def crc32(self) -> int:
        """Return the CRC-32 of the elements' little-endian bytes; all are read."""
        crc = 0
        for chunk in self.chunks():
            crc = crc32(chunk, crc)
        return crc


def integers(storage: Storage) -> list[int]:
    """Return the elements of a storage of signed integers; numpy is loaded only where they must be converted."""
    data = b"".join(storage.chunks())
    width = storage.element.itemsize
    words = (data[start : start + width] for start in range(0, len(data), width))
    return [int.from_bytes(word, "little", signed=True) for word in words]


def _resized_longs(span: Span, count: int, order: str, width: int) -> bytes:
    """Return the bytes of longs in another size, by `struct`.

    Args:
        span: where they are.
        count: how many.
        order: byte order of the result.
        width: bytes of one in the result.

    Raises:
        ModelError: one does not fit 4 bytes.
    """
    source_format = f"{ORDER_SIGNS[span.order]}{count}{_LONG_CODES[span.width]}"
    target_format = f"{ORDER_SIGNS[order]}{count}{_LONG_CODES[width]}"
    numbers = struct.unpack(source_format, b"".join(span.pieces(count)))
    try:
        return struct.pack(target_format, *numbers)
    except struct.error:
        raise too_large(min(numbers), max(numbers)) from None


def too_large(least: int, greatest: int) -> ModelError:
    """Return the error for longs of which the least or the greatest does not fit 4 bytes."""
    return ModelError(
        "a LongStorage holds numbers beyond 4-byte longs",
        expected=f"{-(1 << 31)} to {(1 << 31) - 1}",
        found=f"{least} to {greatest}",
        hint="Write 8-byte longs (--long-size 8).",
    )


def storage_for_class(name: str) -> tuple[ElementType, str, str | None] | None:
    """Return what the class name of a Lua tensor or storage means; `None` for any other class.

    Returns:
        The element type, the device, and the alias to keep: the name, if it is one of `LUA_ALIASES`, else `None`.
    """
    if name in LUA_CLASSES:
        element, device = LUA_CLASSES[name]
        return element, device, None
    if name in LUA_ALIASES:
        element, device = LUA_CLASSES[LUA_ALIASES[name]]
        return element, device, name
    return None


def part_of(storage: Storage, first: int, count: int) -> Storage:
    """Return consecutive elements of a storage as a storage; nothing is read.

    Args:
        storage: the whole.
        first: the first of the elements, 0-based.
        count: how many.
    """
    data: Data = storage.data
    if count == storage.count and not first:
        return storage
    if isinstance(data, Span):
        # Without the CRC-32, which is that of the whole.
        data = Span(data.source, data.offset + first * data.width, data.width, data.order)
    elif isinstance(data, Derived) and data.group == 1 and data.origin.count == storage.count:
        # Each element is computed from one of the other storage: only these are read.
        data = Derived(part_of(data.origin, first, count), data.convert)
    elif isinstance(data, Elements):
        data = _Part(storage, first)
    else:
        data = data[first : first + count]
    return Storage(storage.element, count, data, storage.device, storage.version, storage.alias)


def storage_array(storage: Storage) -> np.ndarray:
    """Return the elements as an array, shape (count,), in the machine's byte order.

    It is that of the storage itself, a read-only view of the file's memory map or of the caller's bytes, or a new one.
    """
    data = storage.data
    native = np.dtype(storage.element.code)
    if isinstance(data, np.ndarray):
        return data
    if isinstance(data, Derived):
        return data.convert(data.origin.array)
    if not isinstance(data, Span) or not storage.count:
        parts = list(array_chunks(storage))
        return np.concatenate(parts) if parts else np.empty(0, native)
    dtype_in_file = dtype_of(storage.element, data.order, data.width)
    array = np.frombuffer(data.source.view(data.offset, storage.count * data.width), dtype_in_file)
    # Bytes that were read, not mapped, are in memory of this array alone: they are reversed where they are, as a copy
    # would need the memory twice.
    if array.flags.writeable and dtype_in_file == native.newbyteorder():
        array.byteswap(inplace=True)
        array = array.view(native)
    # PyTorch takes neither swapped nor unaligned arrays.
    return array if dtype_in_file == native and array.flags.aligned else array.astype(native)


def own_array(storage: Storage) -> np.ndarray:
    """Return the elements as an array that is nobody else's, and may be written to."""
    array = storage_array(storage)
    is_new = array.flags.writeable and array is not storage.data
    return array if is_new else array.copy()


def array_chunks(storage: Storage) -> Iterator[np.ndarray]:
    """Yield the elements in pieces of about 512 KiB, in the machine's byte order."""
    data = storage.data
    if isinstance(data, Elements):
        yield from data.arrays(storage)
        return
    step = max(1, CHUNK_BYTES // max(1, storage.element.itemsize))
    for start in range(0, storage.count, step):
        yield np.ascontiguousarray(data[start : start + step])


def _check_fits(array: np.ndarray, narrower: np.dtype[Any]) -> None:
    """Check that a narrower type has all of some integers, shape (n,).

    Raises:
        ModelError: it has not.
    """
    bounds = np.iinfo(narrower)
    if array.size:
        least, greatest = int(array.min()), int(array.max())
        if least < bounds.min or greatest > bounds.max:
            raise too_large(least, greatest)


def _origin_and_steps(storage: Storage) -> tuple[Storage, list[Derived]]:
    """Return the storage from whose elements those of another are computed, and the steps of that, in order.

    Without steps it is the storage itself.
    """
    steps: list[Derived] = []
    origin = storage
    while isinstance(origin.data, Derived):
        steps.insert(0, origin.data)
        origin = origin.data.origin
    return origin, steps


def _converted_extent(storage: Storage, order: str, width: int) -> Extent | None:
    """Return where elements are in a file, with their conversion by numpy on the way to another; see `Storage.extent`.

    Elements may be derived from others in several steps. The file's are converted in groups, each of the least number
    that becomes a whole number of elements.

    Args:
        storage: has the elements.
        order: byte order of the result.
        width: bytes of one element in the result.

    Returns:
        `None` where they are not in a file, or their groups are too large for a buffer.
    """
    origin, steps = _origin_and_steps(storage)
    span = origin.data
    if not isinstance(span, Span) or not origin.count:
        return None
    # How many elements of the file are converted together: two of which one becomes, for example; and whole groups of
    # each step.
    least_for_whole_elements = origin.count // math.gcd(origin.count, storage.count)
    group = math.lcm(least_for_whole_elements, *(step.group for step in steps))
    if origin.count % group or group > _MOST_IN_GROUP:
        return None
    source_dtype = dtype_of(origin.element, span.order, span.width)
    target_dtype = dtype_of(storage.element, order, width)
    converts = tuple(step.convert for step in steps)
    if not converts:
        return span.extent(origin.count, _change_of_type(source_dtype, target_dtype))
    groups = origin.count // group
    source_bytes = group * span.width  # of one group
    target_bytes = storage.count * target_dtype.itemsize // groups
    buffer = partial(_ArrayBuffer, group, source_dtype, target_dtype, converts)
    return span.extent(origin.count, Change(source_bytes, target_bytes, buffer))


@cache
def _change_of_type(source_dtype: np.dtype[Any], target_dtype: np.dtype[Any]) -> Change:
    """Return the change that casts elements: one object for the same types, so that copies share the memory for it."""
    buffer = partial(_ArrayBuffer, 1, source_dtype, target_dtype)  # each element by itself
    return Change(source_dtype.itemsize, target_dtype.itemsize, buffer)


class _ArrayBuffer(Buffer):
    """The memory through which elements go from file to file, and in which numpy converts them.

    Args:
        group: number of elements of the source that must be converted together; the buffer holds a multiple of it.
        source_dtype: the type of elements in the source, in its byte order.
        target_dtype: that of elements in the target.
        converts: functions that convert an array, shape (n,), in the machine's byte order, one after the other; the
            result is cast to the target's type. Without any, elements are only cast.
    """

    def __init__(
        self,
        group: int,
        source_dtype: np.dtype[Any],
        target_dtype: np.dtype[Any],
        converts: tuple[Callable[[np.ndarray], np.ndarray], ...] = (),
    ) -> None:
        most_bytes = _CONVERT_BYTES if converts else _CAST_BYTES
        most_elements = most_bytes // max(source_dtype.itemsize, target_dtype.itemsize)
        count = max(1, most_elements // group) * group  # of whole groups
        self._source = np.empty(count, source_dtype.newbyteorder("="))
        self._swaps_source = not source_dtype.isnative
        self._swaps_target = not target_dtype.isnative
        self._native = target_dtype.newbyteorder("=")
        self._target = np.empty(count, self._native)
        self._converts = converts
        self.view = self._source.view("u1").data  # into which a copy reads the bytes of the source

    def changed(self, length: int) -> memoryview:
        """Return the bytes for the target that the first `length` bytes of the view become.

        Raises:
            ModelError: a 64-bit integer does not fit 4 bytes, or a conversion refuses an element.
        """
        array = self._source[: length // self._source.itemsize]
        if self._swaps_source:
            array.byteswap(inplace=True)
        for convert in self._converts:
            array = convert(array)
        if array.dtype != self._native or not array.flags.c_contiguous:
            if array.dtype.kind == "i" and self._native.itemsize < array.itemsize:  # longs as 4 bytes
                _check_fits(array, self._native)
            if len(self._target) < len(array):  # a conversion may return more elements than it receives
                self._target = np.empty(len(array), self._native)
            target = self._target[: len(array)]
            np.copyto(target, array, casting="unsafe")
            array = target
        if self._swaps_target:
            array = array.byteswap(inplace=array.flags.writeable)  # a conversion may return a read-only one
        return array.view("u1").data
