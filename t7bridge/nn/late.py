"""Import of the entries of rarer layers, once a model has a class that is not among those loaded from the start."""

from __future__ import annotations

import importlib

from ..data import hooks

_families: list[str] = []


def register_later(*modules: str) -> None:
    """Have modules that register layers imported when they are first needed.

    Args:
        modules: their dotted names, in the order in which they are imported.
    """
    _families.extend(modules)


def load_families() -> None:
    """Import the modules of `register_later`."""
    for module in _families:
        importlib.import_module(module)
    _families.clear()


def load_more(class_name: str = "", installed: bool = True) -> None:
    """Import the entries that may have a class: the rarer ones of nn, and those of the Lua package that it is of.

    Args:
        class_name: its full name in Lua; all entries by default.
        installed: whether Python packages that the user has installed, and that add layers, are asked for it, too.
    """
    load_families()
    # The entries of Lua packages are in the workshop, which the core reaches by hooks only.
    hooks["load_packages"](class_name, installed)
