"""Storages: runs of elements that know where their bytes are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Union

from attrs import field

from ..data import define
from ..errors import CorruptError, ModelError
from ..io.checksums import crc32
from ..io.source import ByteSource
from .dtypes import LUA_ALIASES, LUA_CLASSES, ElementType, lua_class_name
from .show import Shown, storage_number

if TYPE_CHECKING:
    import numpy as np

    from .tensor import Tensor

CHUNK_BYTES = 1 << 19
"""Bytes converted at a time: they stay in the processor's cache."""


_SWAPPED = (2, 4, 8, 16)
"""Widths of elements whose bytes a copy can reverse."""


@define(eq=False)
class Span:
    """Elements as they lie in a source.

    Attributes:
        source: what holds the bytes.
        offset: of the first byte, 0-based.
        width: bytes of one element in the source; differs from the element type's own size only where 64-bit
            integers were written as 4-byte C longs.
        order: `little` or `big`.
        crc: CRC-32 of all the bytes, where the file says it: whoever takes them all checks it.
    """

    source: ByteSource
    offset: int
    width: int
    order: str = "little"
    crc: int | None = None

    def is_plain(self, element: ElementType, order: str, width: int) -> bool:
        """Return whether the bytes are already what a target of this order and width wants."""
        return self.width == width and (self.order == order or width == 1)

    def word(self, element: ElementType, order: str, width: int) -> int:
        """Return how a copy of the bytes becomes what a target wants: by reversing words of so many bytes.

        Returns:
            1 where nothing is to be done, 0 where that does not suffice.
        """
        if self.is_plain(element, order, width):
            return 1
        parts = 2 if element.code[0] == "c" else 1
        return self.width // parts if self.width == width and self.crc is None and width in _SWAPPED else 0

    def pieces(self, count: int) -> Iterator[bytes]:
        """Yield the bytes of `count` elements as they are, in pieces of whole elements of at most about 1 MiB.

        Raises:
            TruncatedError: the file has become shorter.
            CorruptError: the bytes do not have their CRC-32; raised behind the last piece.
        """
        position, crc = self.offset, 0
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
        """Check the CRC-32 of all the bytes, where the file says it.

        Raises:
            CorruptError: it is another one.
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
class TextSpan:
    """Elements as decimal numbers separated by white space, in a source.

    Attributes:
        source: what holds the text.
        offset: of the first byte, 0-based.
        length: in bytes.
    """

    source: ByteSource
    offset: int
    length: int

    def pieces(self) -> Iterator[bytes]:
        """Yield the text in pieces of about a chunk, none of which cuts a number."""
        position, end = self.offset, self.offset + self.length
        while position < end:
            piece = self.source.read_exact(position, min(CHUNK_BYTES, end - position), "a storage's numbers")
            if position + len(piece) < end:
                cut = max(piece.rfind(b" "), piece.rfind(b"\n"))
                if cut < 0:
                    raise CorruptError("is not a list of numbers", file=self.source.name, offset=position)
                piece = piece[: cut + 1]
            yield piece
            position += len(piece)


@define(eq=False)
class Derived:
    """Elements that are made from those of another storage when they are asked for.

    Attributes:
        origin: the other storage.
        convert: makes elements, shape (m,), from elements of the other, shape (n,).
        group: how many elements of the other are always given together, or a multiple of it.
    """

    origin: Storage
    convert: Callable[[np.ndarray], np.ndarray]
    group: int = 1


@define(eq=False)
class Assembled:
    """The elements of a tensor in rows (C order) whose parts are tensors of other storages, as sharded files have them.

    Attributes:
        size: elements of each dimension of the whole.
        parts: for each part, the index of its first element along each dimension, 0-based, and the tensor. They cover
            the whole and do not overlap.
    """

    size: tuple[int, ...]
    parts: tuple[tuple[tuple[int, ...], Tensor], ...]


Data = Union[Span, TextSpan, Derived, Assembled, "np.ndarray"]


@define(eq=False)
class Storage(Shown):
    """A run of elements in one piece of memory, shared by the tensors that are views of it.

    Two tensors share memory exactly if they have the same `Storage` object.

    Attributes:
        element: the element type.
        count: number of elements.
        data: where the elements are: a span of an open file, numbers in a text file, a numpy array, or another storage.
        device: `cpu`, or the device that the file names (`cuda:0`); the bytes are here in any case.
        version: Lua's class version, `None` where the file was written before there were any.
        alias: the Lua class name, where it is not the one for element and device.
        base: the storage whose memory this is a part of, or the same memory seen as another element type; `None`
            for all storages but those that only PyTorch has.
        base_offset: where in the base's memory this begins, in bytes.
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
            element: needed where numpy has no such type and `array` holds the bits.

        Raises:
            ModelError: the array has more than one dimension, or a type that no storage can have.
        """
        from .arrays import element_of

        if array.ndim != 1:
            raise ModelError(
                "a storage is one run of elements", expected="a 1-D array", found=f"{array.ndim} dimensions"
            )
        return cls(element or element_of(array.dtype), len(array), array)

    @classmethod
    def empty(cls, element: ElementType) -> Storage:
        """A storage without elements."""
        return cls(element, 0, Span(ByteSource.from_bytes(b""), 0, element.itemsize))

    @property
    def nbytes(self) -> int:
        """Bytes of all elements in memory."""
        return self.count * self.element.itemsize

    @property
    def lua_class(self) -> str | None:
        """`torch.FloatStorage`, or `None` where Lua Torch has no such element type."""
        return self.alias or lua_class_name(self.element, self.device, "Storage")

    @property
    def array(self) -> np.ndarray:
        """The elements as a numpy array of shape (count,) in the machine's byte order.

        A read-only view of the file's memory map where its bytes allow that, else a new array.

        Raises:
            CorruptError: text that is not `count` numbers of this type.
            TruncatedError: the file has become shorter.
        """
        from .arrays import storage_array

        return storage_array(self)

    def chunks(self, order: str = "little", width: int | None = None) -> Iterator[bytes | memoryview]:
        """Yield the elements' bytes in pieces of at most about 1 MiB, converted.

        Args:
            order: byte order of the result, `little` or `big`.
            width: bytes of one element in the result: the element's own, or 4 for 64-bit integers as C longs.

        Raises:
            ModelError: a 64-bit integer does not fit 4 bytes.
        """
        width = width or self.element.itemsize
        if isinstance(self.data, Span) and self.data.is_plain(self.element, order, width):
            yield from self.data.pieces(self.count)
            return
        from .arrays import converted_chunks

        yield from converted_chunks(self, order, width)

    def crc32(self) -> int:
        """CRC-32 of the elements' little-endian bytes."""
        crc = 0
        for chunk in self.chunks():
            crc = crc32(chunk, crc)
        return crc


def storage_for_class(name: str) -> tuple[ElementType, str, str | None] | None:
    """Return what a Lua class name means, of a tensor or a storage.

    Returns:
        The element type, the device and the alias to keep, or `None` where it is another class.
    """
    known = LUA_CLASSES.get(name)
    if known:
        return (*known, None)
    if name in LUA_ALIASES:
        return (*LUA_CLASSES[LUA_ALIASES[name]], name)
    return None


MACHINE_ORDER = sys.byteorder
