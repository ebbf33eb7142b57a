"""Values of element types that a target lacks, in the types that it has; and back.

Each widening is exact and reversible, except for unsigned 64-bit integers from 2^63 on, which become doubles.

| elements | become |
| --- | --- |
| bool, quint8, quint4x2, quint2x4, float4_e2m1fn_x2, bits of one byte, (u)int1 … 7 | uint8, the same bytes |
| qint8, qint32, bits16 | int8, int32, int16, the same bytes |
| complex64, complex128 | two float32 or float64 each, the same bytes |
| complex32 | two float16 each, the same bytes |
| bfloat16, float8 | float32 |
| uint16, uint32 | int32, int64 |
| uint64 | int64, or float64 where a number does not fit |

A NaN of a float8 keeps its bits in the payload of the float32's NaN. The way back is exact or refused: an element that
the narrower type does not have, as it was changed since, is an error when it is read. In a format of named tensors the
types are named in the metadata; numbers, and lists of them, are tensors where numpy's users look for arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from attrs import evolve

from ..data import define, np
from ..errors import RecordError, UnsupportedError
from ..graph.dtypes import ELEMENT_TYPES, PACKED, ElementType
from ..graph.storage import Derived, Span, Storage, array_chunks
from ..graph.tensor import QuantizedTensor, SparseTensor, Tensor, tensor_of_storage
from ..graph.walk import Path, Rebuilder, fill_dict
from ..io.source import ByteSource

_SAME_BYTES = {
    "bool": "uint8", "quint8": "uint8", "quint4x2": "uint8", "quint2x4": "uint8", "qint8": "int8", "qint32": "int32",
    "float4_e2m1fn_x2": "uint8", "bits8": "uint8", "bits1x8": "uint8", "bits2x4": "uint8", "bits4x2": "uint8",
    "bits16": "int16", **{f"{kind}{width}": "uint8" for kind in ("uint", "int") for width in range(1, 8)},
    "complex32": "float16", "complex64": "float32", "complex128": "float64",
}  # fmt: skip
_WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "int64", "bfloat16": "float32"}
_QUIET_NAN = 0x7FC00000
"""The bits of a float32 NaN with an empty payload."""


@define(frozen=True)
class _Float8:
    """A format of 8-bit floats. Source: PyTorch 2.13 `torch/headeronly/util/Float8_*.h`.

    Attributes:
        exponent_bits: bits of the exponent.
        bias: of the exponent.
        nans: the bit patterns, without sign, that are NaNs; of the unsigned kinds, with it.
        infinity: the bit pattern of infinity, -1 if there is none.
        signed: whether the first bit is a sign.
    """

    exponent_bits: int
    bias: int
    nans: frozenset[int]
    infinity: int = -1
    signed: bool = True


_FLOAT8 = {
    "float8_e4m3fn": _Float8(4, 7, frozenset({0x7F})),
    "float8_e5m2": _Float8(5, 15, frozenset({0x7D, 0x7E, 0x7F}), infinity=0x7C),
    "float8_e4m3fnuz": _Float8(4, 8, frozenset()),
    "float8_e5m2fnuz": _Float8(5, 16, frozenset()),
    "float8_e8m0fnu": _Float8(8, 127, frozenset({0xFF}), signed=False),
}


@lru_cache
def _float8_table(name: str) -> np.ndarray:
    """Return the 256 values of an 8-bit float as float32 bits, shape (256,)."""
    kind = _FLOAT8[name]
    bits = np.zeros(256, "u4")
    for pattern in range(256):
        sign = pattern >> 7 if kind.signed else 0
        magnitude = pattern & 0x7F if kind.signed else pattern
        # The kinds named fnuz have no negative zero: its pattern is their only NaN.
        if magnitude in kind.nans or (name.endswith("fnuz") and pattern == 0x80):
            bits[pattern] = _QUIET_NAN | sign << 31 | pattern  # so that `narrow` finds the pattern again
            continue
        value = _float8_magnitude(kind, magnitude)
        bits[pattern] = np.float32(-value if sign else value).view("u4")
    return bits


def _float8_magnitude(kind: _Float8, magnitude: int) -> float:
    """Return the value of a bit pattern without its sign, which is not a NaN's."""
    if magnitude == kind.infinity:
        return float("inf")
    mantissa_bits = 8 - kind.signed - kind.exponent_bits
    exponent = magnitude >> mantissa_bits
    fraction = (magnitude & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    if exponent == 0 and kind.signed:  # subnormal; the kind without sign has no zero
        return float(fraction * 2.0 ** (1 - kind.bias))
    return float((1 + fraction) * 2.0 ** (exponent - kind.bias))


def wider_type(element: ElementType) -> ElementType:
    """Return the element type that `widen` chooses where it is exact, and `narrow` undoes."""
    if element.lua:
        return element
    # What neither table names is a float8.
    return ELEMENT_TYPES[_SAME_BYTES.get(element.name) or _WIDER.get(element.name, "float32")]


def widen(storage: Storage) -> tuple[Storage, int, bool]:
    """Return a storage of one of Lua's element types with the elements of a storage.

    Only of a uint64 are the elements read: they decide between two types.

    Args:
        storage: any; one that Lua has is returned unchanged.

    Returns:
        The storage; how many of its elements each element became, 1 or 2; whether this can be undone exactly.
    """
    element = storage.element
    if element.lua:
        return storage, 1, True
    wider = wider_type(element)
    if element.name in _SAME_BYTES:
        return _same_bytes(storage, wider), element.itemsize // wider.itemsize, True
    is_reversible = True
    if element.name == "uint64" and any(chunk.size and chunk.max() >= 2**63 for chunk in array_chunks(storage)):
        wider = ELEMENT_TYPES["float64"]
        is_reversible = False
    data = Derived(storage, partial(_wider_elements, element.name, wider.code))
    return Storage(wider, storage.count, data, storage.device), 1, is_reversible


def narrow(storage: Storage, element: ElementType) -> Storage:
    """Undo `widen`. Reading the elements raises a `RecordError` where the narrower type does not have one of them.

    Args:
        storage: the result of `widen`, or one with the same element type.
        element: the original element type.
    """
    if storage.element is element:
        return storage
    # Of the types with the same bytes, all bytes are elements, except that only 0 and 1 are truth values.
    if element.name in _SAME_BYTES and element.name != "bool":
        return _same_bytes(storage, element)
    data = Derived(storage, partial(_narrower_elements, element.name, element.code))
    return Storage(element, storage.count, data, storage.device)


def is_exact(storage: Storage) -> bool:
    """Return whether the narrower type of a storage, the result of `narrow`, has all the elements; all are read."""
    try:
        for _ in array_chunks(storage):
            pass
    except RecordError:
        return False
    return True


def resolved(storage: Storage, conj: bool, neg: bool) -> Storage:
    """Return a storage with its elements conjugated, negated, or both, which PyTorch only marks on a tensor."""
    data = Derived(storage, partial(_changed_elements, storage.element, conj, neg))
    return Storage(storage.element, storage.count, data, storage.device)


def _changed_elements(element: ElementType, conj: bool, neg: bool, array: np.ndarray) -> np.ndarray:
    """Conjugate or negate elements, or both.

    Args:
        element: their type.
        conj: whether to conjugate them.
        neg: whether to negate them.
        array: the elements, shape (n,); those of a type that numpy lacks as whole numbers of as many bytes.

    Raises:
        UnsupportedError: numpy cannot compute with such elements.
    """
    if element.name == "complex32":
        # The bits of two halves, the imaginary one above. Conjugating changes its sign, negating the signs of both.
        imaginary_sign = (conj != neg) << 31
        real_sign = neg << 15
        return np.asarray(array ^ np.uint32(imaginary_sign | real_sign))
    if not element.native:
        raise UnsupportedError(f"{element.name} cannot be conjugated or negated")
    if conj:
        array = array.conj()
    if neg:
        array = np.negative(array)
    return array


def _same_bytes(storage: Storage, element: ElementType) -> Storage:
    """Return a storage of another element type with the same bytes."""
    count = storage.nbytes // element.itemsize
    data = storage.data
    is_complex32 = "complex32" in (storage.element.name, element.name)
    # The bytes of a file in big order are reversed as they are read: 4 by 4 for a complex32, which is read as one
    # integer, 2 by 2 for its halves.
    reverses_other_words = is_complex32 and isinstance(data, Span) and data.order == "big"
    if isinstance(data, Span) and not reverses_other_words:
        return Storage(element, count, evolve(data, width=element.itemsize), storage.device)
    convert: Callable[[np.ndarray], np.ndarray] = partial(_viewed_as, element.code)
    if is_complex32:
        convert = _complex32_bits if element.name == "complex32" else _halves_of_complex32
    elements_for_one = max(1, element.itemsize // storage.element.itemsize)  # 1 where one becomes several
    return Storage(element, count, Derived(storage, convert, group=elements_for_one), storage.device)


def _viewed_as(code: str, array: np.ndarray) -> np.ndarray:
    """Return the same bytes as elements of the numpy type `code`."""
    return np.ascontiguousarray(array).view(code)


def _complex32_bits(halves: np.ndarray) -> np.ndarray:
    """Convert pairs of float16, shape (2 n,), to the bits of complex32, shape (n,): the first is the lower half."""
    bits = halves.view("u2").astype("u4")
    return np.asarray(bits[::2] | bits[1::2] << 16)


def _halves_of_complex32(bits: np.ndarray) -> np.ndarray:
    """Undo `_complex32_bits`."""
    return np.stack((bits & 0xFFFF, bits >> 16), -1).astype("u2").reshape(-1).view("f2")


def _wider_elements(name: str, code: str, array: np.ndarray) -> np.ndarray:
    """Convert elements, shape (n,), to a wider type.

    Args:
        name: their element type.
        code: numpy's of the wider one.
        array: the elements; of types that numpy lacks, their bits.
    """
    if name == "bfloat16":  # the upper half of a float32
        return (array.astype("u4") << 16).view("f4")
    if name in _FLOAT8:
        table = _float8_table(name)
        return np.asarray(table[array]).view("f4")
    return array.astype(code)


def _narrower_elements(name: str, code: str, array: np.ndarray) -> np.ndarray:
    """Undo `_wider_elements`.

    Args:
        name: the narrower element type.
        code: numpy's of this type, or of its bits.
        array: the elements, shape (n,), of the wider type.

    Raises:
        RecordError: an element is not one of the narrower type.
    """
    narrow = _converted_to_narrower(name, code, array)
    if name == "uint64":
        is_same = array >= 0  # a negative int64 would wrap around, and back to itself
    else:
        # Widened again, they must be the same bit for bit: the sign of a zero and the payload of a NaN count.
        bits_type = f"u{array.itemsize}"
        widened_again = _wider_elements(name, array.dtype.str, narrow)
        is_same = widened_again.view(bits_type) == array.view(bits_type)
    if not is_same.all():
        number = array[~is_same].tolist()[0]
        raise RecordError(f"{number} is not a number of type {name}, which is recorded for it")
    return narrow


def _converted_to_narrower(name: str, code: str, array: np.ndarray) -> np.ndarray:
    """Convert elements to a narrower type; an element that this type does not have becomes any other.

    Args: as of `_narrower_elements`.
    """
    if name == "bfloat16":  # the upper half of a float32
        return (array.view("u4") >> 16).astype("u2")
    if name not in _FLOAT8:
        return array.astype(code)
    bits = array.view("u4")
    upper_bits = bits >> 20
    patterns: np.ndarray = _float8_of_upper_bits(name)[upper_bits]
    are_nans = np.isnan(array)
    patterns[are_nans] = bits[are_nans] & 0xFF  # `_float8_table` keeps the pattern there
    return patterns


@lru_cache
def _float8_of_upper_bits(name: str) -> np.ndarray:
    """Return the 8-bit pattern for each value of the upper 12 bits of a float32, shape (4096,).

    A number that the 8-bit type has is 0 below them: they are the sign, 8 bits of exponent and at most 3 of mantissa.
    The patterns of NaNs are in the lower bits: what is here for their upper bits is not used.
    """
    patterns = np.zeros(1 << 12, "u1")
    patterns[_float8_table(name) >> 20] = np.arange(256)
    return patterns


class _Restorer(Rebuilder):
    """Rebuilds dicts of tensors with the element types that are recorded for them.

    Args:
        elements: names of element types, by the names of tensors.
        check: whether a type is used only where it has all elements; they are read for this.
    """

    remembers = False  # a tensor may occur under two names, with two types

    def __init__(self, elements: Mapping[str, str], check: bool) -> None:
        super().__init__()
        self._elements = elements
        """The names of element types, by the names of tensors."""
        self._check = check
        """Whether a type is used only where it has all elements: see `restore_values`."""
        self._storages: dict[tuple[int, str], Storage | None] = {}
        """The narrower storage by the identity of the storage and the element type; `None` where it is refused."""
        self.refused: list[str] = []
        """The names of tensors whose elements are not all of the type that is recorded."""

    def make(self, value: Any, path: Path) -> Any:
        """Return a tensor of the recorded type, a dict to be filled, or anything else unchanged.

        `Rebuilder` calls it for each value that is not a scalar, and fills the dict. A tensor whose recorded type is
        refused by a check is returned unchanged, too, and its name is added to `refused`.

        Args:
            value: the value.
            path: to it; its keys, joined by dots, are the name of the tensor.
        """
        if isinstance(value, dict):
            return fill_dict({}, value, value.values())
        if not isinstance(value, Tensor) or value.storage is None:
            return value
        _root, *steps = path.steps()
        name = ".".join(str(step.key) for step in steps)
        element = ELEMENT_TYPES.get(self._elements.get(name, ""))
        if element is None or value.element is not wider_type(element):
            return value
        # Other types are never widened in a format of named tensors, whatever the metadata says.
        if not element.name.startswith(("bfloat16", "float8", "complex")):
            return value
        view = _complex_of_pairs(value) if element.name.startswith("complex") else value
        if view is None:  # it has no pairs
            return value
        storage = self._narrow_storage(value.storage, element)
        if storage is None:
            self.refused.append(name)
            return value
        return evolve(view, element=element, storage=storage)

    def _narrow_storage(self, storage: Storage, element: ElementType) -> Storage | None:
        """Return a storage with narrower elements, one for all its tensors; `None` if a check refuses it."""
        key = (id(storage), element.name)
        if key not in self._storages:
            narrower = narrow(storage, element)
            is_usable = not self._check or is_exact(narrower)
            self._storages[key] = narrower if is_usable else None
        return self._storages[key]


def _complex_of_pairs(tensor: Tensor) -> Tensor | None:
    """Return a tensor of numbers in pairs with the size, stride and offset that it has as one of complex elements.

    `pairs_of_numbers` makes such a tensor of a complex one. Storage and element type are still those of the numbers.
    `None` if the numbers are not pairs.
    """
    size = tensor.size
    if not size or size[-1] != 2 or tensor.stride[-1] != 1:
        return None
    # A tensor with further state of PyTorch is not from a format of named tensors.
    if tensor.storage is None or tensor.storage.count % 2 or tensor.extras is not None:
        return None
    # Pairs begin at even elements.
    strides = tensor.stride[:-1]
    if tensor.offset % 2 or any(step % 2 for step in strides):
        return None
    half_strides = tuple(step // 2 for step in strides)
    has_one_pair = len(size) == 1
    return evolve(tensor, size=size[:-1], stride=half_strides, offset=tensor.offset // 2, is_scalar=has_one_pair)


ELEMENTS_KEY = "t7bridge.elements"
"""The name of the metadata's string with element types that a format lacks: a JSON object of tensors and types."""

NUMBERS_KEY = "t7bridge.numbers"
"""The name of the metadata's string that says which tensors were numbers or lists: a JSON object of names and kinds."""
HINTS = frozenset({ELEMENTS_KEY, NUMBERS_KEY})
"""The names of strings of the metadata that are about the tensors, and not a part of the value."""
_NUMBERS = {bool: ("bool", "?"), int: ("int64", "q"), float: ("float64", "d")}
"""Element type and code of `struct` for each type of number."""
_LISTS = {"number": None, "list": list, "tuple": tuple, "mixed list": list, "mixed tuple": tuple}
"""The type of each kind of what became a tensor, `None` for a single number. A mixed list had ints and floats, and an
int exactly where an element of the tensor is integral."""
_MOST_NUMBERS = 1_000_000
"""Length of a list from which on it is no tensor: read back, it takes far more memory than the file."""


def tensor_of_numbers(value: Any) -> tuple[Tensor, str] | None:
    """Return a number, or a list or tuple of numbers, as a tensor of 0 or 1 dimensions, and its kind.

    Returns:
        The tensor, and a key of `_LISTS`. `None` for anything else, for an empty or too long list, and where the tensor
        would not have the same numbers.
    """
    is_list = isinstance(value, (list, tuple))
    items: Any = value if is_list else (value,)
    if not 0 < len(items) <= _MOST_NUMBERS:
        return None
    number_type = _common_type(items)
    if number_type is None:
        return None
    name, code = _NUMBERS[number_type]
    try:
        data = struct.pack(f"<{len(items)}{code}", *items)
    except struct.error:  # beyond int64
        return None
    element = ELEMENT_TYPES[name]
    storage = Storage(element, len(items), Span(ByteSource.from_bytes(data), 0, element.itemsize))
    if not is_list:
        return Tensor(element, storage, (), (), is_scalar=True), "number"
    kind = "tuple" if isinstance(value, tuple) else "list"
    if any(type(item) is not number_type for item in items):
        kind = f"mixed {kind}"
    return tensor_of_storage(storage), kind


def _common_type(items: Sequence[Any]) -> type | None:
    """Return the key of `_NUMBERS` as which all items of a list can be recorded; `None` if there is none.

    It is `float` for ints and floats, if the values tell which of them were ints.
    """
    types = set(map(type, items))
    if types == {int, float} and all((type(item) is int) == _is_integral(item) for item in items):
        return float
    if len(types) == 1 and types <= set(_NUMBERS):
        return types.pop()
    return None


def _is_integral(number: float) -> bool:
    """Return whether a number of a mixed list is an int: integral, exact, and not the negative zero."""
    return abs(number) <= 1 << 53 and number == int(number) and str(number) != "-0.0"


def _numbers_of(item: Any, kind: str | None) -> Any:
    """Return the number or list that became a tensor; the tensor where it cannot be of that kind.

    Args:
        item: a tensor, or any other value, which is returned as it is.
        kind: as `tensor_of_numbers` returns it; from a foreign file any word, or `None`.
    """
    if not isinstance(item, Tensor) or kind not in _LISTS or item.numel > _MOST_NUMBERS:
        return item
    list_type = _LISTS[kind]
    if list_type is None:
        return item.item() if item.is_scalar else item
    # Lists of other numbers, or of lists, are not written as one tensor.
    if len(item.size) != 1 or item.element.name not in {name for name, _ in _NUMBERS.values()}:
        return item
    numbers = item.tolist()
    if kind.startswith("mixed"):
        numbers = [_with_type_of_mixed(number) for number in numbers]
    return list_type(numbers)


def _with_type_of_mixed(number: Any) -> Any:
    """Return a number of a mixed list with the type that it had: int or float."""
    if isinstance(number, float) and _is_integral(number):
        return int(number)
    return number


def parts_of(value: QuantizedTensor | SparseTensor) -> dict[str, Any]:
    """Return a quantized or sparse tensor as plain tensors, numbers and words by name.

    A plain tensor cannot be a view of elements smaller than a byte: of these, "values" is the whole storage, as units
    of bytes, and the view is beside it.
    """
    if isinstance(value, SparseTensor):
        return {name: getattr(value, name) for name in ("layout", "indices", "plain_indices", "values", "size")}
    tensor = value.tensor
    parts = {"values": tensor, "scale": value.scale, "zero_point": value.zero_point, "scheme": value.scheme}
    if tensor.element.name in PACKED and tensor.storage is not None:
        # In numbers, of which a unit of the storage has several.
        parts["values"] = tensor_of_storage(tensor.storage)
        parts |= {"size": tensor.size, "stride": tensor.stride, "offset": tensor.offset}
    if value.axis is not None:
        parts["axis"] = value.axis
    return parts


def restore_values(value: Any, metadata: Mapping[str, str], check: bool) -> tuple[Any, list[str]]:
    """Return the value of a file with the element types that its tensors had before widening, and with numbers.

    Args:
        value: dicts of tensors.
        metadata: of the file.
        check: whether all elements are read, and a type is used only where it has them all; else an element that it
            does not have is an error when it is read.

    Returns:
        The value, with new dicts; and the names of the tensors whose recorded type lacks an element.
    """
    if not isinstance(value, dict):
        return value, []
    kinds = _words_by_tensor(metadata, NUMBERS_KEY)
    if kinds:
        value = {name: _numbers_of(item, kinds.get(name)) for name, item in value.items()}
    elements = _words_by_tensor(metadata, ELEMENTS_KEY)
    if not elements:
        return value, []
    restorer = _Restorer(elements, check)
    return restorer.run(value), restorer.refused


def _words_by_tensor(metadata: Mapping[str, str], key: str) -> dict[str, str]:
    """Return the words that a string of the metadata records, by the names of tensors; none if it is damaged."""
    if key not in metadata:
        return {}
    import json  # which most conversions do not need

    try:
        words = json.loads(metadata[key])
    except (ValueError, RecursionError):
        return {}
    if not isinstance(words, dict):
        return {}
    return {name: word for name, word in words.items() if isinstance(word, str)}


def pairs_of_numbers(tensor: Tensor) -> Tensor:
    """Return the sizes and strides of a complex tensor whose elements are two numbers each, of the same storage."""
    stride = (*(2 * step for step in tensor.stride), 1)
    return evolve(tensor, size=(*tensor.shape, 2), stride=stride, offset=2 * tensor.offset, is_scalar=False)
