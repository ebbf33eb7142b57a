"""Foreign classes and objects in written pickles: their names, or plain data that names them, which is the default.

An object becomes a dict of its attributes, with the class under `__class__`. If it is constructed from more than
attributes, or an attribute has one of these names, the parts are under `__args__`, `__kwargs__`, `__state__`,
`__items__` and `__pairs__`. A bare class or function becomes its dotted name.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from ....graph.keys import in_order, key_text
from ....graph.python import UNSET, DefaultDict, NumpyArray, PythonGlobal, PythonObject
from ....graph.tensor import Tensor
from .names import is_copyreg, may_name

_SIMPLE = frozenset({str, int, bytes, float, bool, type(None)})
_OURS = frozenset(("__class__", "__args__", "__kwargs__", "__state__", "__items__", "__pairs__"))


def plain_data(value: PythonObject) -> dict[Any, Any]:
    """Return an object as a dict that names its class."""
    parts: dict[Any, Any] = {"__class__": value.path}
    if value.args not in ((), UNSET) and not is_copyreg(value.constructor):
        parts["__args__"] = value.args
    if value.kwargs:
        parts["__kwargs__"] = value.kwargs
    attributes = value.attributes
    if attributes and _OURS.isdisjoint(attributes):
        parts.update(attributes)
    elif value.state is not UNSET and value.state is not None:
        parts["__state__"] = value.state
    if value.items:
        parts["__items__"] = value.items
    if value.pairs:
        parts["__pairs__"] = [list(pair) for pair in value.pairs]
    return parts


class Naming:
    """Decides which names are written.

    Args:
        allow_foreign: whether names of other packages are written.

    Attributes:
        left_out: the names that are not, and the values that would have them.
    """

    def __init__(self, allow_foreign: bool) -> None:
        self._allow_foreign = allow_foreign
        self.left_out: dict[str, list[Any]] = {}
        self._foreign: dict[int, PythonObject | None] = {}  # the object that becomes a dict in each part of a key
        self._texts: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._marks: dict[int, bytes] = {}

    def may(self, name: Any, owner: Any) -> bool:
        """Return whether a name may be written; if not, note the value that has it."""
        if isinstance(name, (PythonGlobal, PythonObject)) and may_name(name, self._allow_foreign):
            return True
        self.left_out.setdefault(getattr(name, "path", "<computed>"), []).append(owner)
        return False

    def nameable(self, value: Any, owner: Any) -> Any:
        """Return a value without the names in it that must not be written: of a set, the call that builds it.

        Args:
            value: any.
            owner: the value noted for them, if they are not values of their own.
        """
        if isinstance(value, (PythonGlobal, PythonObject)):
            if not self.may(value, value):
                return value.path if isinstance(value, PythonGlobal) else plain_data(value)
        elif isinstance(value, Tensor) and value.extras is not None and value.extras.subclass is not None:
            if not self.may(value.extras.subclass, owner):
                return evolve(value, extras=evolve(value.extras, subclass=None))
        elif isinstance(value, DefaultDict) and value.factory is not None and not self.may(value.factory, owner):
            bare = DefaultDict()
            bare.update(value)
            return bare
        elif isinstance(value, NumpyArray):
            module, _, name = value.cls.rpartition(".")
            if not self.may(PythonGlobal(module, name), owner):
                return evolve(value, cls="numpy.ndarray")
        elif isinstance(value, (set, frozenset)):
            kind = "set" if isinstance(value, set) else "frozenset"
            items = [self.hashable(item) for item in in_order(value, self._marks)]
            return PythonObject(PythonGlobal("builtins", kind), "reduce", (items,))
        return value

    def hashable(self, key: Any) -> Any:
        """Return a key, or its text if it holds an object that becomes a dict. All texts are distinct."""
        if type(key) in _SIMPLE:
            return key
        if id(key) in self._texts:
            return self._texts[id(key)]
        text = self._text(key)
        if text is None:
            return key
        unique = text
        while unique in self._numbers:  # each text with the number of its next duplicate
            number = self._numbers[text] = self._numbers.get(text, 2) + 1
            unique = f"{text} #{number - 1}"
        self._numbers[unique] = 2
        self._texts[id(key)] = unique
        return unique

    def _text(self, key: Any) -> str | None:
        """Return the text of a key that contains an object which becomes a dict; `None` for keys that are unchanged."""
        known = self._foreign
        stack = [key]
        while stack:
            part = stack[-1]
            if id(part) not in known:
                found = None
                if isinstance(part, (tuple, frozenset)):
                    inside = [each for each in part if isinstance(each, (tuple, frozenset, PythonObject))]
                    missing = [each for each in inside if id(each) not in known]
                    if missing:
                        stack += missing
                        continue
                    found = next((known[id(each)] for each in inside if known[id(each)] is not None), None)
                elif isinstance(part, PythonObject) and not may_name(part, self._allow_foreign):
                    found = part
                known[id(part)] = found
            stack.pop()
        first = known[id(key)]
        if first is None:
            return None
        args = key_text(first.args) if first.args and isinstance(first.args, tuple) else ""
        return f"{key_text(key)}{args}"
