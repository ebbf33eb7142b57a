"""Description of a class without an entry: its tensors, and known classes with the same fields."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from ...errors import ModelError
from ...graph.lua import TorchObject
from ..mapping import Lua
from ..registry import layer_of, registered_layers

_TENSORS = 6
_CANDIDATES = 3
_ALIKE = 0.75


def unknown_class(obj: TorchObject, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Describe an object of a class without an entry.

    Args:
        obj: the object.
        shapes: the shapes of its own tensors in the state dict, by their names there.
    """
    text = "is a class without an entry"
    if shapes:
        listed = [f"{name} {' x '.join(map(str, shape))}" for name, shape in list(shapes.items())[:_TENSORS]]
        text += f"; it has {', '.join(listed)}{', …' if len(shapes) > _TENSORS else ''}"
    for name in get_close_matches(obj.class_name, registered_layers(), _CANDIDATES, _ALIKE):
        if _has_fields_of(obj, name, shapes):
            return f"{text}{' and' if shapes else '; it has'} all fields of {name}"
    return text


def _has_fields_of(obj: TorchObject, name: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether an object could be one of a known class."""
    layer = layer_of(name)
    module = layer.module_of(name) if layer else None
    if layer is None or module is None or layer.children is not None:
        return False
    lua = Lua(obj, "", layer.defaults, shapes=shapes)
    try:
        wanted = {param.name for param in layer.params_of(lua) if param.kind == "parameter"}
        module(lua)
    except (ModelError, ArithmeticError, LookupError, TypeError, ValueError):
        return False
    return wanted <= {*shapes, "bias"} and set(shapes) <= wanted
