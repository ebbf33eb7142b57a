"""Modules inside other modules, by path.

May import graph, errors, limits and report.
"""

from __future__ import annotations

from ...graph.lua import TorchObject, Value
from ...graph.walk import children
from .places import is_module


def module_at(value: Value, path: str, name: str = "root") -> TorchObject | None:
    """Return the module at a path, at any depth: `root.models.encoder.network`, `root.model.modules[3]`.

    Args:
        value: the result of a `T7Reader`.
        path: as messages and reports write it.
        name: the path of `value` itself.

    Returns:
        `None` if the path does not exist, or its value is not a module.
    """
    if not path.startswith(name):
        return None
    rest = path[len(name) :]
    while rest:
        for step, item in children(value):
            if step and rest.startswith(step) and rest[len(step) : len(step) + 1] in ("", ".", "["):
                value, rest = item, rest[len(step) :]
                break
        else:
            return None
    return value if isinstance(value, TorchObject) and is_module(value) else None
