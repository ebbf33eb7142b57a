"""What every room is built with: the version, data classes, and their creation without the garbage collector.

`define` is the decorator of attrs, with one shared `repr`, equality and hash. attrs compiles the methods of each class
when its module is loaded. Without these it takes half the time: together they were a sixth of the time of converting a
small file.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

from attrs import define as _define

__version__ = "1.0.0"

if TYPE_CHECKING:
    from attrs import define as define
else:

    def define(cls=None, *, eq=True, **options):
        """`attrs.define`, as a decorator with or without options; all fields are compared, or none."""
        if cls is None:
            return partial(define, eq=eq, **options)
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
