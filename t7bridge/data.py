"""What every room is built with: the version, data classes, and what is loaded when it is first used.

`define` makes data classes as attrs does, with one shared `repr`, equality and hash, and compiles `__init__` with the
first object. Attrs itself, or `dataclasses`, with what they import and compile for the classes of one conversion, takes
as long as all the rest of the start.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from operator import attrgetter
from reprlib import recursive_repr
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

__version__ = "2.0.0.dev0"


if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**options: Any) -> Any:
        """Leave the decorator as it is: it tells type checkers only."""
        return lambda decorator: decorator


Item = TypeVar("Item")


class _Missing:
    """A default that is not there: of a field that has to be given, or for which a function makes the value."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


_REQUIRED: Any = _Missing("REQUIRED")
_NOTHING: Any = _Missing("NOTHING")
"""What the signature of a class shows for a field with a `factory`."""


class Field:
    """A field of a data class.

    Attributes:
        name: of the attribute, and of the argument.
        type: as it is written.
        default: the value if none is given.
        factory: makes that value, anew for each object.
        init: whether it is an argument.
        repr: whether `repr` shows it.
        kw_only: whether the argument has to be named; `None` for what the class says.
        allowed: the only values of it; empty if any is.
    """

    name = ""
    type = ""

    def __init__(
        self,
        default: Any,
        factory: Callable[[], Any] | None,
        init: bool,
        repr: bool,
        kw_only: bool | None,
        allowed: Collection[Any],
    ) -> None:
        self.default = default
        self.factory = factory
        self.init = init
        self.repr = repr
        self.kw_only = kw_only
        self.allowed = allowed


def field(
    *,
    default: Any = _REQUIRED,
    factory: Callable[[], Any] | None = None,
    init: bool = True,
    repr: bool = True,
    kw_only: bool | None = None,
    allowed: Collection[Any] = (),
) -> Any:
    """Return the value in the body of a data class for a field with options; see `Field`."""
    return Field(default, factory, init, repr, kw_only, allowed)


@overload
def define(cls: type[Item]) -> type[Item]: ...
@overload
def define(
    cls: None = None, *, eq: bool = True, frozen: bool = False, kw_only: bool = False
) -> Callable[[type[Item]], type[Item]]: ...
@dataclass_transform(field_specifiers=(field,))
def define(cls: Any = None, *, eq: bool = True, frozen: bool = False, kw_only: bool = False) -> Any:
    """Make a data class of a class with annotated fields: a decorator, with or without options.

    Its objects have slots, and may be pickled. Fields of bases are arguments before its own. A method
    `__post_init__` is called at the end of `__init__`.

    Args:
        cls: the class.
        eq: whether objects of the class are equal where all their fields are, and if frozen have a hash.
        frozen: whether fields cannot be changed; so are those of classes that inherit from it.
        kw_only: whether all its own arguments have to be named.
    """
    if cls is None:
        return partial(define, eq=eq, frozen=frozen, kw_only=kw_only)
    own = _own_fields(cls, kw_only)
    names = {each.name for each in own}
    inherited = tuple(each for each in getattr(cls, "__fields__", ()) if each.name not in names)
    members = {name: value for name, value in vars(cls).items() if name not in (*names, "__dict__", "__weakref__")}
    fields = inherited + own
    members["__fields__"] = fields
    members["_compared"] = attrgetter(*[each.name for each in fields] or ["__class__"])
    members["__slots__"] = _slots(cls, names)
    members.setdefault("__init__", _LateInit())
    if cls.__repr__ is object.__repr__:
        members["__repr__"] = _repr
    if eq and "__eq__" not in members:
        members["__eq__"] = _equals
        members["__hash__"] = _hash if frozen else None
    if frozen:
        members |= {"__setattr__": _refuse_change, "__delattr__": _refuse_change}
    members |= {"__getstate__": _state, "__setstate__": _set_state}
    slotted = type(cls)(cls.__name__, cls.__bases__, members)
    slotted.__qualname__ = cls.__qualname__
    _rebind(members.values(), cls, slotted)
    return slotted


def _own_fields(cls: type, kw_only: bool) -> tuple[Field, ...]:
    """Return the fields that the body of a class has."""
    fields = []
    for name, kind in vars(cls).get("__annotations__", {}).items():
        if "ClassVar" in kind:
            continue
        value = vars(cls).get(name, _REQUIRED)
        item: Field = value if isinstance(value, Field) else field(default=value)
        item.name = name
        item.type = kind
        if item.kw_only is None:
            item.kw_only = kw_only
        fields.append(item)
    return tuple(fields)


def _slots(cls: type, names: Iterable[str]) -> tuple[str, ...]:
    """Return the slots of a class that has these fields of its own."""
    inherited = {slot for base in cls.__mro__[1:] for slot in vars(base).get("__slots__", ())}
    slots = [name for name in names if name not in inherited]
    if any(isinstance(value, cached_property) for value in vars(cls).values()):
        slots.append("__dict__")  # where such values are stored
    if not any("__weakref__" in vars(base) for base in cls.__mro__[1:]):
        slots.append("__weakref__")
    return tuple(slots)


def _rebind(members: Iterable[Any], before: type, after: type) -> None:
    """Let methods that use `super()` find the class that replaces the one in which they are written."""
    for member in members:
        function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        for cell in getattr(function, "__closure__", None) or ():
            with suppress(ValueError):  # a cell may be empty
                if cell.cell_contents is before:
                    cell.cell_contents = after


class _LateInit:
    """`__init__` of a data class, compiled when it is first asked for: half of the classes of a verb have no object."""

    def __set_name__(self, owner: Any, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: Any, owner: type) -> Any:
        """Compile it, and put it in the place of this."""
        self._owner.__init__ = function = _compiled_init(self._owner)
        return function if instance is None else function.__get__(instance, owner)


def _compiled_init(cls: Any) -> Any:
    """Return `__init__` of a data class, a function of its fields."""
    known: dict[str, Any] = {"nothing": _NOTHING, "refuse": _refuse_value}
    arguments = ["self"]
    named_arguments: list[str] = []
    body = []
    for each in cls.__fields__:
        name = each.name
        default = each.default
        if each.factory is not None:
            default = _NOTHING
            known[f"factory_of_{name}"] = each.factory
            body.append(f"if {name} is nothing: {name} = factory_of_{name}()")
        if default is not _REQUIRED:
            known[f"default_of_{name}"] = default
        if each.init:
            argument = name if default is _REQUIRED else f"{name}=default_of_{name}"
            (named_arguments if each.kw_only else arguments).append(argument)
        elif default is _REQUIRED:
            continue  # `__post_init__` sets it
        else:
            body.insert(0, f"{name} = default_of_{name}")
        if each.allowed:
            known[f"allowed_of_{name}"] = each.allowed
            body.append(f"if {name} not in allowed_of_{name}: refuse('{name}', {name}, allowed_of_{name})")
        if cls.__setattr__ is object.__setattr__:
            body.append(f"self.{name} = {name}")
        else:  # frozen, but for the slot itself
            known[f"set_{name}"] = getattr(cls, name).__set__
            body.append(f"set_{name}(self, {name})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    if named_arguments:
        arguments += ["*", *named_arguments]
    lines = "\n    ".join(body or ["pass"])
    exec(f"def __init__({', '.join(arguments)}):\n    {lines}\n", known)
    function = known["__init__"]
    function.__qualname__ = f"{cls.__qualname__}.__init__"
    function.__module__ = cls.__module__
    function.__annotations__ = {**{each.name: each.type for each in cls.__fields__ if each.init}, "return": None}
    return function


def _refuse_value(name: str, value: Any, allowed: Collection[Any]) -> NoReturn:
    raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def _refuse_change(self: Any, name: str, value: Any = None) -> NoReturn:
    """Refuse to set or delete a field of a frozen object."""
    raise AttributeError(f"{type(self).__qualname__} is frozen: its {name} cannot be changed")


def _state(self: Any) -> dict[str, Any]:
    """Return the fields, for `pickle` and `copy`."""
    return {each.name: getattr(self, each.name) for each in self.__fields__ if hasattr(self, each.name)}


def _set_state(self: Any, state: dict[str, Any]) -> None:
    """Set the fields of a new object from those of another."""
    for name, value in state.items():
        object.__setattr__(self, name, value)


@recursive_repr()
def _repr(self: Any) -> str:
    """Return name and fields; `...` for an object inside itself."""
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in self.__fields__ if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _equals(self: Any, other: Any) -> bool:
    """Return whether two objects of one class have equal fields."""
    if other.__class__ is not self.__class__:
        return NotImplemented  # type: ignore[no-any-return]
    return bool(self._compared(self) == self._compared(other))


def _hash(self: Any) -> int:
    """Return the hash of class and fields."""
    return hash((self.__class__, self._compared(self)))


def fields(item: Any) -> tuple[Field, ...]:
    """Return the fields of a data class, or of an object of one, in order."""
    described: tuple[Field, ...] = item.__fields__
    return described


def is_data(value: Any) -> bool:
    """Return whether a value is an object of a data class."""
    return hasattr(type(value), "__fields__")


def evolve(item: Item, **changes: Any) -> Item:
    """Return a new object with the fields of another, some of them changed."""
    for each in fields(item):
        if each.init and each.name not in changes:
            changes[each.name] = getattr(item, each.name)
    return type(item)(**changes)


def asdict(item: Any) -> dict[str, Any]:
    """Return an object as a dict of its fields, and so the objects in it; tuples and sets become lists."""
    return {each.name: _as_plain(getattr(item, each.name)) for each in fields(item)}


def _as_plain(value: Any) -> Any:
    if is_data(value):
        return asdict(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_as_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _as_plain(each) for key, each in value.items()}
    return value


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


__all__ = [
    "asdict",
    "dataclass_transform",
    "decimal_text",
    "define",
    "evolve",
    "face",
    "field",
    "fields",
    "has_numpy",
    "is_data",
    "np",
    "pattern",
]

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
