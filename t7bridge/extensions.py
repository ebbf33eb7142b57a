"""Packages of others that add formats, layers and operations: entry points of what is installed beside this package.

They are looked up only where a name, a class or a file is unknown: to read the metadata of all installed packages
takes longer than to convert a small file.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

from .errors import T7BridgeWarning

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FORMATS = "t7bridge.formats"
"""Entry points that are a `FormatSpec`, beside the functions `read` and `write`; the name is that of the format."""
LAYERS = "t7bridge.layers"
"""Modules that register layers; the name is what their Lua classes have before the first dot."""
LUA = "t7bridge.lua"
"""Modules that register operations of PyTorch for Lua; the name is free."""

_tried: set[tuple[str, str, str]] = set()
"""Group, name and value of the entry points that were loaded, or are being loaded."""


@cache
def _entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, sorted by name, so that their order is not that of folders."""
    from importlib.metadata import entry_points

    return tuple(sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value)))


def load_extensions(group: str, name: str = "") -> list[tuple[str, str, Any]]:
    """Load what installed packages add, each once in a process.

    One that fails issues a `T7BridgeWarning` and is left out.

    Args:
        group: `FORMATS`, `LAYERS` or `LUA`.
        name: of the entry points; all by default.

    Returns:
        Of each that was loaded now: its name, the name of its module, and the object.
    """
    loaded: list[tuple[str, str, Any]] = []
    for entry in _entry_points(group):
        key = (group, entry.name, entry.value)
        is_asked_for = name in ("", entry.name)
        if key in _tried or not is_asked_for:
            continue
        _tried.add(key)  # before it is loaded, as it registers names that are looked up meanwhile
        try:
            loaded.append((entry.name, entry.module, entry.load()))
        except Exception as error:
            package = entry.dist.name if entry.dist is not None else entry.module
            text = f"the package {package} adds {entry.name} to {group}, and fails: {type(error).__name__}: {error}"
            warnings.warn(text, T7BridgeWarning, stacklevel=2)
    return loaded
