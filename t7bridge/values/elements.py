"""What a format of named tensors lacks: written as tensors, named in the metadata, and restored from there.

Element types are written wider; numbers, and lists of them, are tensors where numpy's users look for arrays.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from ..graph.dtypes import ELEMENT_TYPES, PACKED
from ..graph.storage import Span, Storage
from ..graph.tensor import QuantizedTensor, SparseTensor, Tensor
from ..io.source import ByteSource
from .widened import restore_elements

ELEMENTS_KEY = "t7bridge.elements"
"""The name of the metadata's string with element types that a format lacks: a JSON object of tensors and types."""

NUMBERS_KEY = "t7bridge.numbers"
"""The name of the string that says which tensors were numbers or lists: a JSON object of tensors and kinds."""
HINTS = frozenset({ELEMENTS_KEY, NUMBERS_KEY})
"""Metadata about the tensors, which are no strings of the value."""
_NUMBERS = {bool: ("bool", "?"), int: ("int64", "q"), float: ("float64", "d")}
"""Element type and code of `struct` for each type of number."""
_LISTS = {"number": None, "list": list, "tuple": tuple, "mixed list": list, "mixed tuple": tuple}
"""The kinds of what became tensors; a mixed one had an int wherever an element is integral."""
_MOST_NUMBERS = 1_000_000
"""Length of a list from which on it is no tensor: read back, it takes far more memory than the file."""


def tensor_of_numbers(value: Any) -> tuple[Tensor, str] | None:
    """Return a number, or a list or tuple of numbers, as a tensor of 0 or 1 dimensions, and its kind.

    Returns:
        `None` for anything else, and where the tensor would not have the same numbers.
    """
    is_list = isinstance(value, (list, tuple))
    items: Any = value if is_list else (value,)
    types = set(map(type, items)) if 0 < len(items) <= _MOST_NUMBERS else set()
    kind = "number" if not is_list else "tuple" if isinstance(value, tuple) else "list"
    if types == {int, float}:
        if not all((type(item) is int) == _is_integral(item) for item in items):
            return None
        types, kind = {float}, f"mixed {kind}"
    if len(types) != 1 or not types <= set(_NUMBERS):
        return None
    name, code = _NUMBERS[types.pop()]
    try:
        data = struct.pack(f"<{len(items)}{code}", *items)
    except struct.error:  # beyond int64
        return None
    element = ELEMENT_TYPES[name]
    storage = Storage(element, len(items), Span(ByteSource.from_bytes(data), 0, element.itemsize))
    size = (len(items),) * is_list
    return Tensor(element, storage, size, (1,) * is_list, is_scalar=not is_list), kind


def _is_integral(number: float) -> bool:
    """Return whether a number of a mixed list is an int: integral, exact, and not the negative zero."""
    return abs(number) <= 1 << 53 and number == int(number) and str(number) != "-0.0"


def _numbers_of(item: Any, kind: Any) -> Any:
    if not isinstance(item, Tensor) or kind not in _LISTS or item.numel > _MOST_NUMBERS:
        return item
    made = _LISTS[kind]
    if made is None:
        return item.item() if item.is_scalar else item
    if len(item.size) != 1 or item.element.name not in {name for name, _ in _NUMBERS.values()}:
        return item
    numbers = item.tolist()
    if kind.startswith("mixed"):
        numbers = [int(number) if isinstance(number, float) and _is_integral(number) else number for number in numbers]
    return made(numbers)


def parts_of(value: QuantizedTensor | SparseTensor) -> dict[str, Any]:
    """Return a quantized or sparse tensor as plain tensors and numbers by name."""
    if isinstance(value, SparseTensor):
        return {name: getattr(value, name) for name in ("layout", "indices", "plain_indices", "values", "size")}
    tensor = value.tensor
    parts = {"values": tensor, "scale": value.scale, "zero_point": value.zero_point, "scheme": value.scheme}
    if tensor.element.name in PACKED and tensor.storage is not None:  # bytes that hold several numbers each
        parts["values"] = Tensor(tensor.element, tensor.storage, (tensor.storage.count,), (1,))
        parts |= {"size": tensor.size, "stride": tensor.stride, "offset": tensor.offset}
    return parts if value.axis is None else {**parts, "axis": value.axis}


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
    kinds, wanted = (_recorded(metadata, key) for key in (NUMBERS_KEY, ELEMENTS_KEY))
    if kinds and isinstance(value, dict):
        value = {name: _numbers_of(item, kinds.get(name)) for name, item in value.items()}
    if not wanted or not isinstance(value, dict):
        return value, []
    return restore_elements(value, wanted, check)


def _recorded(metadata: Mapping[str, str], key: str) -> dict[str, Any]:
    """Return what a string of the metadata records, by the names of tensors."""
    try:
        found = json.loads(metadata.get(key, "{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def pairs_of_numbers(tensor: Tensor) -> Tensor:
    """The sizes and strides of a complex tensor whose elements are two numbers each; its storage is left as it is."""
    stride = (*(2 * step for step in tensor.stride), 1)
    return evolve(tensor, size=(*tensor.shape, 2), stride=stride, offset=2 * tensor.offset, is_scalar=False)
