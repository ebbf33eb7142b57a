"""What every room is built with: the version, data classes, and what is loaded when it is first used.

`define` is the decorator of attrs, with one shared `repr`, equality and hash, and late: attrs compiles the methods of a
class when they are first used. To load attrs, and to have it complete all classes that a conversion loads, took longer
than converting a small file.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from operator import attrgetter
from reprlib import recursive_repr
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "2.0.0.dev0"


class _Field:
    """A field as a class states it.

    Args:
        options: of `attrs.field`.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options


if TYPE_CHECKING:
    from attrs import define as define
    from attrs import field as field
else:

    def field(**options):
        """`attrs.field`, which `define` asks attrs for when it makes the class."""
        return _Field(options)

    def define(cls=None, *, eq=True, **options):
        """`attrs.define`, as a decorator with or without options; all fields are compared, or none.

        attrs makes the methods of a class when the first of them is asked for, mostly by its first object: half of the
        classes that a verb loads have none, and to print a help no attrs is needed.

        Args:
            cls: the class; `None` where the decorator has options.
            eq: whether objects of equal fields are equal.
            **options: of `attrs.define`.
        """
        if cls is None:
            return partial(define, eq=eq, **options)
        if cls.__repr__ is object.__repr__:
            cls.__repr__ = _repr
        if eq and "__eq__" not in cls.__dict__:
            cls.__eq__ = _equals
            cls.__hash__ = _hash if options.get("frozen") else None
        # attrs makes none: the class has the shared ones above, or its own, or those of its bases.
        options |= {"eq": False, "repr": False}
        # A class with slots is made here, and completed by attrs later. Where attrs has to make the slots (for what is
        # cached), or where there are none, it makes all of the class now.
        is_cached = any(isinstance(value, cached_property) for value in cls.__dict__.values())
        if is_cached or not options.get("slots", True):
            return _compared_by_fields(_attrs_define(cls, options))
        return _made_late(cls, options)


_LATE = ("__init__", "__attrs_attrs__", "__getstate__", "__setstate__", "__match_args__", "_compared")
"""What asks attrs for the methods of a class: creating, unpickling, comparing or inspecting its objects."""
_FROM_ATTRS = (*_LATE, "__attrs_props__", "__attrs_own_setattr__", "__setattr__", "__delattr__", "__replace__")
"""What attrs may add to a class besides slots."""
_making = threading.RLock()


class _Late:
    """A member of a class that attrs makes when it is first asked for, with all others.

    Args:
        complete: sets all of them in the class, in the place of these.
    """

    def __init__(self, complete: Callable[[type], None]) -> None:
        self._complete = complete

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        """Return the member, bound as any other."""
        self._complete(self._owner)
        member = vars(self._owner)[self._name]
        return member.__get__(instance, owner) if hasattr(member, "__get__") else member


def _attrs_define(cls: type, options: dict[str, Any]) -> type:
    """Return what attrs makes of a class, whose fields of `field` become those of attrs."""
    import attrs  # which takes longer to load than a help takes to print

    for name, value in list(vars(cls).items()):
        if isinstance(value, _Field):
            setattr(cls, name, attrs.field(**value.options))
    return attrs.define(cls, **options)


def _compared_by_fields(cls: Any) -> Any:
    """Return a class of attrs whose objects `_equals` and `_hash` can compare."""
    names = [field.name for field in cls.__attrs_attrs__]
    cls._compared = attrgetter(*(names or ["__class__"]))
    return cls


def _made_late(cls: Any, options: dict[str, Any]) -> Any:
    """Return a class with slots for the fields of another, which attrs completes later.

    Args:
        cls: the class as it is written, with annotated fields.
        options: of `attrs.define`.
    """
    # Annotations are texts, as all modules postpone them.
    fields = [name for name, kind in vars(cls).get("__annotations__", {}).items() if "ClassVar" not in kind]
    inherited_slots = {slot for base in cls.__mro__ for slot in vars(base).get("__slots__", ())}
    slots = [name for name in fields if name not in inherited_slots]
    if not any("__weakref__" in vars(base) for base in cls.__mro__[1:]):
        slots.append("__weakref__")
    # Without fields, which attrs reads from `cls`, and without what only classes without slots have.
    members = {name: value for name, value in vars(cls).items() if name not in (*fields, "__dict__", "__weakref__")}
    complete = partial(_complete, written=cls, options=options, own_names=frozenset(members))
    late = {name: _Late(complete) for name in _LATE if name not in members}
    slotted = type(cls)(cls.__name__, cls.__bases__, {**members, **late, "__slots__": tuple(slots)})
    slotted.__qualname__ = cls.__qualname__
    _rebind(members.values(), cls, slotted)
    return slotted


def _complete(slotted: Any, written: Any, options: dict[str, Any], own_names: frozenset[str]) -> None:
    """Give a class the members that attrs makes for it, in the place of its `_Late` ones.

    Args:
        slotted: the class.
        written: the same class as it was written, of which attrs makes its own.
        options: of `attrs.define`.
        own_names: the members that the class has itself, which stay.
    """
    with _making:
        if not isinstance(vars(slotted)["__attrs_attrs__"], _Late):
            return  # another thread was faster
        for base in slotted.__mro__[1:]:
            getattr(base, "__attrs_attrs__", None)  # completes it, as attrs asks for the fields of bases
        members_by_attrs = vars(_compared_by_fields(_attrs_define(written, _cheapest(written, options))))
        for name in _FROM_ATTRS:
            if name in members_by_attrs and name not in own_names:
                setattr(slotted, name, members_by_attrs[name])


def _cheapest(written: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return options by which attrs changes a class itself, and makes no new one with slots, if its methods are equal.

    Those of a class that is frozen, also by a base, are not: without slots they set fields in its `__dict__`.
    """
    is_frozen = options.get("frozen") or written.__setattr__ is not object.__setattr__
    return options if is_frozen else {**options, "slots": False, "getstate_setstate": True}


def _rebind(members: Iterable[Any], before: type, after: type) -> None:
    """Let methods that use `super()` find the class that replaces the one in which they are written, as attrs does.

    Python keeps the class in a cell of each such method.

    Args:
        members: of the class.
        before: the class in which they are written.
        after: the one that replaces it.
    """
    for member in members:
        # A class method or static method, a property, or the function itself.
        function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        for cell in getattr(function, "__closure__", None) or ():
            with suppress(ValueError):  # a cell may be empty
                if cell.cell_contents is before:
                    cell.cell_contents = after


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
        # If the program had disabled it, nothing is to be resumed.
        is_pausing = _inside > 0 or gc.isenabled()
        if is_pausing:
            _inside += 1
            gc.disable()
    try:
        yield
    finally:
        if is_pausing:
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


__all__ = ["decimal_text", "face", "field", "has_numpy", "np", "pattern"]

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


if TYPE_CHECKING:
    from re import compile as pattern
else:

    class pattern:  # the function of `re` to type checkers
        """`re.compile`, when the first method is used: a verb needs few of the expressions that its modules have."""

        def __init__(self, text, flags=0):
            self._arguments = (text, flags)

        def __getattr__(self, name):
            value = getattr(re.compile(*self._arguments), name)
            setattr(self, name, value)
            return value


def has_numpy() -> bool:
    """Return whether `np` is numpy, and not what takes its place in a browser."""
    return np.ndarray.__module__ == "numpy"


def decimal_text() -> Any:
    """Return the module that reads and writes many decimal numbers: with numpy at once, else one by one."""
    return importlib.import_module(f"t7bridge.graph.{'decimals' if has_numpy() else 'plain_decimals'}")


def face(package: str, offered: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that loads each name it offers from a module of it, when it is first used.

    Args:
        package: its name.
        offered: for each module, by its name in the package, the names that it has, separated by spaces.
    """
    homes = {name: module for module, names in offered.items() for name in names.split()}

    def load(name: str) -> Any:
        """Return what the package offers under a name."""
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{homes[name]}", package), name)

    return load
