"""`define`, the decorator for data classes: that of attrs, with one shared `repr`.

attrs compiles the methods of each class when its module is loaded, and `repr` is the longest of them: together they
took a tenth of the time of converting a small file.
"""

from __future__ import annotations

from functools import partial
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

from attrs import define as _define

if TYPE_CHECKING:
    from attrs import define as define
else:

    def define(cls=None, **options):
        """`attrs.define`, as a decorator with or without options."""
        if cls is None:
            return partial(define, **options)
        if cls.__repr__ is object.__repr__:
            cls.__repr__ = _repr
        else:
            options.setdefault("repr", False)  # the shared one below, or that of the base class
        return _define(cls, **options)


@recursive_repr()
def _repr(self: Any) -> str:
    """Return name and fields as attrs shows them; `...` for an object inside itself."""
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in self.__attrs_attrs__ if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"
