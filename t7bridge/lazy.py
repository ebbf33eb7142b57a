"""What is loaded when it is first used, so that a verb starts fast: numpy, and the names that a package offers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["face", "np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Lazy(ModuleType):
        """A module whose attributes are those of another, which is imported with the first of them."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module(self.__name__), name)
            setattr(self, name, value)
            return value

    np = _Lazy("numpy")


def face(package: str, offered: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that loads the names it offers from its modules.

    Args:
        package: its name.
        offered: for each module, the names that it has, separated by spaces.
    """
    homes = {name: module for module, names in offered.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{homes[name]}", package), name)

    return load
