"""Element types that a format of named tensors lacks: written wider, named in the metadata, and restored from there."""

from __future__ import annotations

import json
from typing import Any

from attrs import evolve

from ..formats.document import ELEMENTS_KEY
from ..graph.dtypes import ELEMENT_TYPES
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..values.widened import narrow, wider_types


def restore_elements(value: Any, metadata: dict[str, str]) -> Any:
    """Return the value of a file with the element types that its tensors had before widening.

    Args:
        value: dicts of tensors.
        metadata: of the file; the entry is removed.
    """
    try:
        wanted = json.loads(metadata.pop(ELEMENTS_KEY, "{}"))
    except ValueError:
        return value
    if not isinstance(wanted, dict) or not wanted or not isinstance(value, dict):
        return value
    made: dict[tuple[int, str], Storage] = {}

    def restored(item: Any, path: str) -> Any:
        element = ELEMENT_TYPES.get(str(wanted.get(path)))
        if not isinstance(item, Tensor) or item.storage is None or element is None:
            return item
        if item.element not in wider_types(element) or not element.name.startswith(("bfloat16", "float8")):
            return item
        key = id(item.storage), element.name
        if key not in made:
            made[key] = narrow(item.storage, element)
        return evolve(item, element=element, storage=made[key])

    open_: list[tuple[dict[Any, Any], str]] = [(value, "")]
    while open_:
        holder, prefix = open_.pop()
        for name, item in holder.items():
            path = f"{prefix}{name}"
            if isinstance(item, dict):
                open_.append((item, f"{path}."))
            else:
                holder[name] = restored(item, path)
    return value
