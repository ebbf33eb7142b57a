"""Keys and sets of Python-side values: a deterministic order of a set's items, and keys and names as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..io.checksums import sha256
from .python import Device, NumpyDtype, PythonGlobal, PythonObject, TorchConstant

NAMED = (NumpyDtype, TorchConstant, Device, PythonGlobal)
"""The types of value that are mere names."""

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_SHOWN_PARTS = 100


def name_text(value: Any) -> str:
    """Return the name of one of `NAMED`: `torch.float32`, `cuda:0`, `f8`, `collections.deque`."""
    if isinstance(value, NumpyDtype):
        return value.code
    if isinstance(value, TorchConstant):
        return f"torch.{value.name}"
    return value.path if isinstance(value, PythonGlobal) else str(value)


def key_text(key: Any) -> str:
    """Return a key as Python writes it: `(1, 'a')`. Of one with very many parts only the first."""
    left = [_SHOWN_PARTS]

    def text(part: Any) -> str:
        left[0] -= 1
        if isinstance(part, (tuple, frozenset)) and left[0] > 0:
            items = in_order(part) if isinstance(part, frozenset) else part
            texts = [text(item) for item in items[: left[0]]]
            texts += ["…"] * (len(texts) < len(part))
            if isinstance(part, frozenset):
                return f"frozenset({{{', '.join(texts)}}})"
            return f"({', '.join(texts)}{',' * (len(part) == 1)})"
        if isinstance(part, _SCALARS):
            return repr(part)
        if isinstance(part, NAMED):
            return name_text(part)
        return f"<{part.path if isinstance(part, PythonObject) else type(part).__name__}>"

    return text(key)


def in_order(items: Iterable[Any], marks: dict[int, bytes] | None = None) -> list[Any]:
    """Return the items of a set: numbers, then text, then bytes, each sorted, then the rest.

    Objects of unknown classes are ordered by class name only.

    Args:
        items: of the set.
        marks: the hashes of parts seen in earlier sets, which must still exist; new ones are added.
    """
    marks = {} if marks is None else marks
    return sorted(items, key=lambda item: _key(item, marks))


def _key(item: Any, marks: dict[int, bytes]) -> tuple[int, Any]:
    if isinstance(item, (int, float)) and item == item:
        return 0, item
    if isinstance(item, str):
        return 1, item
    if isinstance(item, bytes):
        return 2, item
    return 3, _mark(item, marks)


def _mark(root: Any, marks: dict[int, bytes]) -> bytes:
    """Return a hash of an item's content. Shared parts are hashed once; tuples and frozensets hold no cycles."""
    stack = [root]
    while stack:
        item = stack[-1]
        if id(item) in marks:
            stack.pop()
        elif isinstance(item, (tuple, frozenset)):
            missing = [part for part in item if id(part) not in marks]
            if missing:
                stack += missing
                continue
            parts = [marks[id(part)] for part in item]
            parts = sorted(parts) if isinstance(item, frozenset) else parts
            marks[id(item)] = sha256(type(item).__name__.encode() + b"".join(parts)).digest()
        else:
            marks[id(item)] = sha256(_leaf(item).encode("utf-8", "surrogatepass")).digest()
    return marks[id(root)]


def _leaf(item: Any) -> str:
    if isinstance(item, (PythonGlobal, PythonObject)):
        return f"{type(item).__name__} {item.path}"
    if isinstance(item, (*_SCALARS, Device, TorchConstant)):
        return f"{type(item).__name__} {item!r}"
    return type(item).__name__
