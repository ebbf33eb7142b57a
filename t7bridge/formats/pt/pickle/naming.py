"""Names of classes and functions that may be written to a pickle, and the plain data written for others."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from ....graph.keys import in_order
from ....graph.python import DefaultDict, NumpyArray, PythonGlobal, PythonObject
from ....graph.tensor import Tensor
from .plain import hashable_text, may_name, plain_data

_SIMPLE = frozenset({str, int, bytes, float, bool, type(None)})


class Naming:
    """Decides which names are written.

    Args:
        allow_foreign: whether names of other packages are written.
        left_out: receives the names that are not, and the values that would have them.
    """

    def __init__(self, allow_foreign: bool, left_out: dict[str, list[Any]]) -> None:
        self._allow_foreign = allow_foreign
        self._left_out = left_out
        self._foreign: dict[int, PythonObject | None] = {}
        self._texts: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self.marks: dict[int, bytes] = {}
        """Marks of the parts of sets, for `in_order`."""

    def plain_form(self, value: Any) -> str | dict[Any, Any] | None:
        """Return the text or dict to write for a foreign class or object; `None` for a value that stays."""
        if not isinstance(value, (PythonGlobal, PythonObject)) or may_name(value, self._allow_foreign):
            return None
        self._left_out.setdefault(value.path, []).append(value)
        return value.path if isinstance(value, PythonGlobal) else plain_data(value)

    def nameable(self, value: Any, current: Any) -> Any:
        """Return a value without the names in it that must not be written and are not values of their own.

        Args:
            value: any.
            current: the value named in the report for them.
        """
        if isinstance(value, Tensor) and value.extras is not None and value.extras.subclass is not None:
            if not self._may(value.extras.subclass, current):
                return evolve(value, extras=evolve(value.extras, subclass=None))
        elif isinstance(value, DefaultDict) and value.factory is not None and not self._may(value.factory, current):
            bare = DefaultDict()
            bare.update(value)
            return bare
        elif isinstance(value, NumpyArray):
            module, _, name = value.cls.rpartition(".")
            if not self._may(PythonGlobal(module, name), current):
                return evolve(value, cls="numpy.ndarray")
        elif isinstance(value, (set, frozenset)):
            items = [item if type(item) in _SIMPLE else self.hashable(item) for item in in_order(value, self.marks)]
            if any(type(item) is str and item not in value for item in items):
                kind = "set" if isinstance(value, set) else "frozenset"
                return PythonObject(PythonGlobal("builtins", kind), "reduce", (items,))
        return value

    def hashable(self, key: Any) -> Any:
        """Return a key, or its text if it holds an object that becomes a dict. All texts are distinct."""
        if id(key) in self._texts:
            return self._texts[id(key)]
        text = hashable_text(key, self._allow_foreign, self._foreign)
        if text is None:
            return key
        unique = text
        while unique in self._numbers:  # each text with the number of its next duplicate
            number = self._numbers[text] = self._numbers.get(text, 2) + 1
            unique = f"{text} #{number - 1}"
        self._numbers[unique] = 2
        self._texts[id(key)] = unique
        return unique

    def _may(self, name: Any, current: Any) -> bool:
        if isinstance(name, (PythonGlobal, PythonObject)) and may_name(name, self._allow_foreign):
            return True
        self._left_out.setdefault(getattr(name, "path", "<computed>"), []).append(current)
        return False
