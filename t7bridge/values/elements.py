"""Element types that a format of named tensors lacks: written wider, named in the metadata, and restored from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from ..graph.dtypes import ELEMENT_TYPES, PACKED
from ..graph.python import QuantizedTensor, SparseTensor
from ..graph.storage import Storage
from ..graph.tensor import Tensor

ELEMENTS_KEY = "t7bridge.elements"
"""The name of the metadata's string with element types that a format lacks: a JSON object of tensors and types."""


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


def restore_elements(value: Any, metadata: Mapping[str, str], check: bool) -> tuple[Any, list[str]]:
    """Return the value of a file with the element types that its tensors had before widening.

    Args:
        value: dicts of tensors.
        metadata: of the file.
        check: whether all elements are read, and a type is used only where it has them all; else an element that it
            does not have is an error when it is read.

    Returns:
        The value, with new dicts; and the names of the tensors whose recorded type lacks an element.
    """
    wanted = _recorded(metadata)
    if not wanted or not isinstance(value, dict):
        return value, []
    from .widened import is_exact, narrow, wider_types

    made: dict[tuple[int, str], Storage | None] = {}
    refused: list[str] = []

    def restored(item: Any, path: str) -> Any:
        element = ELEMENT_TYPES.get(str(wanted.get(path)))
        if not isinstance(item, Tensor) or item.storage is None or element is None:
            return item
        if item.element not in wider_types(element) or not element.name.startswith(("bfloat16", "float8", "complex")):
            return item
        narrower = complex_of_pairs(item) if element.name.startswith("complex") else item
        if narrower is None:
            return item
        key = id(item.storage), element.name
        if key not in made:
            storage = narrow(item.storage, element)
            made[key] = storage if not check or is_exact(storage) else None
        found = made[key]
        if found is None:
            refused.append(path)
            return item
        return evolve(narrower, element=element, storage=found)

    result: dict[Any, Any] = {}
    open_: list[tuple[dict[Any, Any], dict[Any, Any], str]] = [(result, value, "")]
    while open_:
        target, holder, prefix = open_.pop()
        for name, item in holder.items():
            path = f"{prefix}{name}"
            if isinstance(item, dict):
                target[name] = {}
                open_.append((target[name], item, f"{path}."))
            else:
                target[name] = restored(item, path)
    return result, refused


def _recorded(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the recorded types by the names of their tensors."""
    try:
        found = json.loads(metadata.get(ELEMENTS_KEY, "{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def pairs_of_numbers(tensor: Tensor) -> Tensor:
    """The sizes and strides of a complex tensor whose elements are two numbers each; its storage is left as it is."""
    stride = (*(2 * step for step in tensor.stride), 1)
    return evolve(tensor, size=(*tensor.shape, 2), stride=stride, offset=2 * tensor.offset, is_scalar=False)


def complex_of_pairs(tensor: Tensor) -> Tensor | None:
    """The sizes and strides before `pairs_of_numbers`; `None` where it is not a tensor of pairs."""
    size, stride = tensor.size, tensor.stride
    if not size or size[-1] != 2 or tensor.storage is None or tensor.storage.count % 2 or tensor.extras is not None:
        return None
    if stride[-1] != 1 or tensor.offset % 2 or any(step % 2 for step in stride[:-1]):
        return None
    halves = tuple(step // 2 for step in stride[:-1])
    return evolve(tensor, size=size[:-1], stride=halves, offset=tensor.offset // 2, is_scalar=len(size) == 1)
