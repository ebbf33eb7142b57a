"""Text of paths inside a Python-side value, and of keys and names on them."""

from __future__ import annotations

from typing import Any

from .order import in_order
from .python import Device, NumpyDtype, PythonGlobal, TorchConstant
from .walk import step_name

Location = tuple[Any, Any]
"""A path as a chain: the enclosing path and the key. It costs no text."""
ROOT: Location = (None, None)
NAMED = (NumpyDtype, TorchConstant, Device, PythonGlobal)
"""The types of value that are mere names."""

_SCALARS = (bool, int, float, str, bytes, type(None))
_SHOWN_STEPS = 50
_SHOWN_LETTERS = 60
_SHOWN_PARTS = 100


def inner(path: Location, key: Any) -> Location:
    """Return the path of a key."""
    return path, key


def path_text(path: Location) -> str:
    """Return `root.model["0.weight"]`; of a very deep path the last steps only."""
    steps: list[str] = []
    while path[0] is not None and len(steps) < _SHOWN_STEPS:
        key = path[1]
        step = step_name(key) if isinstance(key, _SCALARS) else f"[{key_text(key)}]"
        steps.append(step[:_SHOWN_LETTERS])
        path = path[0]
    return ("root" if path[0] is None else "root…") + "".join(reversed(steps))


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
        if isinstance(part, (*_SCALARS, complex)):
            return repr(part)
        return name_text(part) if isinstance(part, NAMED) else f"<{getattr(part, 'path', type(part).__name__)}>"

    return text(key)
