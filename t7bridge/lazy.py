"""numpy, loaded when it is first used: describing or converting a file without needing it starts faster."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["np"]

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
