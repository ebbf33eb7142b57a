"""What every room is built with: the version, data classes, and what is loaded when it is first used.

`define` is the decorator of attrs, with one shared `repr`, equality and hash. attrs compiles the methods of each class
when its module is loaded. Without these it takes half the time: together they were a sixth of the time of converting a
small file.
"""

from __future__ import annotations

import gc
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0"

if TYPE_CHECKING:
    from attrs import define as define
else:

    def define(cls=None, *, eq=True, **options):
        """`attrs.define`, as a decorator with or without options; all fields are compared, or none."""
        if cls is None:
            return partial(define, eq=eq, **options)
        from attrs import define as _define  # which takes longer to load than the help takes to print

        if cls.__repr__ is object.__repr__:
            cls.__repr__ = _repr
        else:
            options.setdefault("repr", False)  # the shared one below, or that of the base class
        if not eq or "__eq__" in cls.__dict__:
            return _define(cls, eq=False, **options)
        cls.__eq__ = _equals
        cls.__hash__ = _hash if options.get("frozen") else None
        made = _define(cls, eq=False, **options)
        made._compared = attrgetter(*([each.name for each in made.__attrs_attrs__] or ["__class__"]))
        return made


@recursive_repr()
def _repr(self: Any) -> str:
    """Return name and fields as attrs shows them; `...` for an object inside itself."""
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in self.__attrs_attrs__ if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _equals(self: Any, other: Any) -> bool:
    """Return whether two objects of one class have equal fields."""
    if other.__class__ is not self.__class__:
        return NotImplemented  # type: ignore[no-any-return]
    return bool(self._compared(self) == self._compared(other))


def _hash(self: Any) -> int:
    """Return the hash of class and fields."""
    return hash((self.__class__, self._compared(self)))


_lock = threading.Lock()
_inside = 0
"""Number of open contexts that share one pause."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector for the duration of the context; it would scan all new objects again and again.

    Several threads may be inside; the last one resumes it. It stays off where the program had disabled it.
    """
    global _inside
    with _lock:
        paused = _inside > 0 or gc.isenabled()
        if paused:
            _inside += 1
            gc.disable()
    try:
        yield
    finally:
        if paused:
            with _lock:
                _inside -= 1
                if not _inside:
                    gc.enable()


hooks: dict[str, Callable[..., Any]] = {}
"""What the core asks of the workshop, which it does not import: functions that the package sets when it is imported.

- `recognized` finds cells in a plan, for `module`.
- `cached_names` are the models of libraries that have the same layers, for `inspect`.
- `load_packages` registers the entries of the Lua packages that may have a class, by its full name.
"""


def words_beside(file: str, name: str) -> str:
    """Return the text of a file in ASCII that lies beside a module of the package, whose `__file__` is given."""
    with open(os.path.join(os.path.dirname(file), name), encoding="ascii") as words:
        return words.read()


__all__ = ["decimal_text", "face", "has_numpy", "np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Lazy(ModuleType):
        """A module whose attributes are those of another, which is imported with the first of them."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(_numpy(), name)
            setattr(self, name, value)
            return value

    def _numpy() -> ModuleType:
        """Return numpy, or what takes its place in a browser."""
        try:
            return importlib.import_module("numpy")
        except ImportError:
            return importlib.import_module("t7bridge.graph.plain_numpy")

    np = _Lazy("numpy")


def has_numpy() -> bool:
    """Return whether `np` is numpy, and not what takes its place in a browser."""
    return np.ndarray.__module__ == "numpy"


def decimal_text() -> Any:
    """Return the module that reads and writes many decimal numbers: with numpy at once, else one by one."""
    return importlib.import_module(f"t7bridge.graph.{'decimals' if has_numpy() else 'plain_decimals'}")


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
