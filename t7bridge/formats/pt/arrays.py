"""numpy's arrays: pickled ones as tensors, and the headers of `.npy` files.

Source: numpy 2.4 `numpy/lib/_format_impl.py` (`read_array`, `descr_to_dtype`).
"""

from __future__ import annotations

from typing import Any

from ...data import np
from ...errors import CorruptError, UnsupportedError
from ...graph.dtypes import ElementType
from ...graph.python import NumpyArray
from ...graph.storage import Span, Storage
from ...graph.tensor import Tensor, contiguous
from ...io.source import ByteSource
from .storages import span_of_bytes

_MAX_DIMENSIONS = 64
"""numpy's own maximum."""
_BFLOAT16_NAN = 0x7FC0
"""The bits of a NaN that PyTorch has rounded to bfloat16."""


def tensor_of_array(array: NumpyArray, element: ElementType, device: str) -> Tensor | None:
    """Return a tensor of a numpy array's elements, converted to an element type.

    Args:
        array: a pickled one.
        element: the element type of the tensor.
        device: PyTorch's name of its device.

    Returns:
        `None` if the elements of the array are not numbers or truth values.

    Raises:
        UnsupportedError: the array's type does not convert to the element type.
    """
    # Booleans (`?`, `b1`), integers (`b`, `i`, `u`), floats and complex numbers.
    if array.dtype.code[:1] not in "?biufc" or not isinstance(array.data, bytes):
        return None
    values = numpy_value(array).ravel("K")  # in the order of memory, which the stride below describes
    if element.native:  # numpy has this type
        with np.errstate(over="ignore", invalid="ignore"):  # too large for the type is infinite, as in PyTorch
            values = values.astype(element.code)
    elif element.name == "bfloat16" and values.dtype.itemsize == 4 and values.dtype.kind == "f":
        values = _bits_of_bfloat16(values)  # XLA saves bfloat16 as float32
    else:
        raise UnsupportedError(f"a numpy array of {array.dtype.code} cannot become a tensor of {element.name}")
    data = values.astype(values.dtype.newbyteorder("<")).tobytes()
    storage = Storage(element, values.size, span_of_bytes(data, element.itemsize), device)
    # In Fortran's order the first dimension is the densest.
    stride = contiguous(array.shape[::-1])[::-1] if array.fortran else contiguous(array.shape)
    return Tensor(element, storage, array.shape, stride, is_scalar=not array.shape, device=device)


def text_items(array: NumpyArray) -> list[Any] | None:
    """Return the items of an array of text (`U`) or byte strings (`S`), as nested lists; `None` for any other array.

    Of an array without dimensions it is a list of the one item.
    """
    dtype = array.dtype
    width = dtype.itemsize
    if dtype.code[:1] not in "SU" or not width or not isinstance(array.data, bytes):
        return None
    pieces = [array.data[start : start + width] for start in range(0, len(array.data), width)]
    items: list[Any] = [piece.rstrip(b"\0") for piece in pieces]  # zeros pad them, as in numpy
    if dtype.code[:1] == "U":
        encoding = "utf-32-be" if dtype.order == ">" else "utf-32-le"
        items = [piece.decode(encoding, "replace").rstrip("\0") for piece in pieces]
    # Of one dimension, the list has the shape already; numpy cannot reshape an empty list of unknown type.
    if len(array.shape) > 1 and 0 not in array.shape:
        items = np.array(items, object).reshape(array.shape, order="F" if array.fortran else "C").tolist()
    return items


def _bits_of_bfloat16(values: Any) -> Any:
    """Return the 16 bits of each float32 as bfloat16, which is its upper half, rounded to even as by PyTorch."""
    bits = values.astype("=f4").view("=u4").astype("u8")
    # A half of the last place is added, one less if the last place is even.
    last_place = (bits >> 16) & 1
    rounded_bits = (bits + 0x7FFF + last_place) >> 16
    return np.where(np.isnan(values), _BFLOAT16_NAN, rounded_bits).astype("=u2")


def elements_of_list(items: list[Any], element: ElementType, most: int) -> tuple[tuple[int, ...], Span]:
    """Return nested lists of numbers as elements.

    Args:
        items: lists of equal length, nested; of a damaged file anything may be inside.
        element: the type of the numbers.
        most: maximum number of elements. It is checked first, as one list in the file may be an item many times.

    Returns:
        The shape and the bytes.

    Raises:
        CorruptError: the lists are ragged, too deep or too long, or hold anything but numbers.
        UnsupportedError: numpy has no such elements.
    """
    shape = _shape_of_lists(items, most)
    if not element.native:
        raise UnsupportedError(f"a tensor of {element.name} is written as a list")
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # a double too large for float32 is infinite, as in PyTorch
            array = np.array(items, element.code)
    except (ValueError, TypeError, OverflowError) as error:
        raise CorruptError(f"a tensor is written as lists that are not an array: {error}") from error
    if array.shape != shape:
        raise CorruptError("a tensor is written as lists that are not an array")
    data = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return shape, span_of_bytes(data, element.itemsize)


def _shape_of_lists(items: list[Any], most: int) -> tuple[int, ...]:
    """Return the shape that nested lists should have by the first item of each level; the others are not looked at.

    Raises:
        CorruptError: they are too deep, or have more than `most` elements.
    """
    shape = []
    count = 1
    level: Any = items
    while isinstance(level, list):
        shape.append(len(level))
        count *= len(level)
        if len(shape) > _MAX_DIMENSIONS or count > most:
            raise CorruptError("a tensor is written as lists that are not an array")
        if not level:  # an empty list: nothing is inside
            break
        level = level[0]
    return tuple(shape)


def numpy_value(array: NumpyArray) -> np.ndarray:
    """Return a pickled numpy array as numpy's own: a copy in the machine's byte order.

    Raises:
        UnsupportedError: it holds objects or fields.
        CorruptError: the bytes do not fit its type and shape.
    """
    order = array.dtype.order if array.dtype.order in ("<", ">") else "="  # `|`: elements of one byte have none
    code = array.dtype.code  # in a damaged file any text
    not_plain = UnsupportedError(f"a numpy array of type {code[:20]!r} is not an array of plain elements")
    has_size = array.dtype.itemsize > 0 or code == "?"  # the code of booleans that states no size
    if not isinstance(array.data, bytes) or not has_size:
        raise not_plain
    try:
        dtype = np.dtype(order + code)
        if dtype.hasobject:
            raise not_plain
        flat = np.frombuffer(array.data, dtype).astype(dtype.newbyteorder("="))
        return flat.reshape(array.shape, order="F" if array.fortran else "C")
    except (TypeError, ValueError) as error:
        raise CorruptError(f"a numpy array's bytes do not fit its type and shape: {error}") from error


MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000
"""numpy's own limit for headers of untrusted files."""


def read_header(source: ByteSource, start: int, end: int, name: str) -> tuple[Any, bool, tuple[int, ...], int]:
    """Read the header of a `.npy` file.

    A file begins with `MAGIC`, two bytes of version, and the length of the header: 2 bytes in version 1, 4 in 2 and 3.
    The header is a literal of Python: Latin-1, in version 3 UTF-8.

    Args:
        source: the bytes.
        start: first byte of the file.
        end: the byte after its last.
        name: of the array, for errors.

    Returns:
        The element type as the header describes it, whether the order is Fortran's, the shape, and the offset of the
        elements in the source.

    Raises:
        CorruptError: it is not such a header.
    """

    def wrong(found: str) -> CorruptError:
        """Return the error for bytes that are not a header, with a description of them."""
        return CorruptError("is not a numpy array", file=source.name, offset=start, path=name, found=found)

    # 6 bytes of the magic number, 2 of version, 2 or 4 of length.
    head = source.read(start, min(12, end - start))
    if head[:6] != MAGIC or len(head) < 10:
        raise wrong(repr(head[:6])[1:])  # without the `b`
    version = head[6]  # the major one; there are no others than 1.0, 2.0 and 3.0
    length_end = 10 if version < 2 else 12
    length = int.from_bytes(head[8:length_end], "little")
    text_start = start + length_end
    if length > min(_LONGEST_HEADER, end - text_start) or version not in (1, 2, 3):
        raise wrong(f"version {version}, a header of {length} bytes")
    text = source.read_exact(text_start, length, "the header of an array")
    try:
        descr, fortran, shape = _parsed_header(text.decode("utf-8" if version == 3 else "latin-1"))
    except _WRONG_HEADER as error:
        raise wrong(f"the header {text[:60]!r}") from error
    return descr, fortran, shape, text_start + length


_WRONG_HEADER = (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError)
"""What parsing another text than a header raises."""


def _parsed_header(text: str) -> tuple[Any, bool, tuple[int, ...]]:
    """Return the element type in the text of a header, whether the order is Fortran's, and the shape.

    Raises:
        ValueError: the text is not a header; as any other of `_WRONG_HEADER`.
    """
    import ast  # describing and converting most files needs none

    header = ast.literal_eval(text.strip())
    fortran = header["fortran_order"]
    shape = header["shape"]
    if set(header) != {"descr", "fortran_order", "shape"} or type(fortran) is not bool or type(shape) is not tuple:
        raise ValueError("is not a header")
    if any(type(extent) is not int or not 0 <= extent < 1 << 62 for extent in shape):
        raise ValueError("is not a shape")
    return header["descr"], fortran, shape
