"""Objects of foreign classes as plain data that names the class: the default form for writing.

An object becomes a dict of its attributes, with the class under `__class__`. If it is constructed from more than
attributes, or an attribute has one of these names, the parts are under `__args__`, `__kwargs__`, `__state__`,
`__items__` and `__pairs__`. A bare class or function becomes its dotted name.
"""

from __future__ import annotations

from typing import Any

from ....graph.keys import key_text
from ....graph.python import UNSET, PythonGlobal, PythonObject
from .names import FORBIDDEN, FOREIGN, may_call, standing

_COPYREG = ("copyreg", "copy_reg")
_OURS = frozenset(("__class__", "__args__", "__kwargs__", "__state__", "__items__", "__pairs__"))


def may_name(value: Any, allow_foreign: bool) -> bool:
    """Return whether a class or function, or the class of an object, may be named in a file.

    Args:
        value: a `PythonGlobal` or `PythonObject`.
        allow_foreign: whether names of other packages may be written too. Forbidden ones never are.
    """
    how, args, names = "", (), [value]
    if isinstance(value, PythonObject):
        names, how, args = [value.constructor], value.how, value.args
        if isinstance(value.constructor, PythonGlobal) and value.constructor.module in _COPYREG:
            names += value.args[:1] if isinstance(value.args, tuple) else []
    for name in names:
        if not isinstance(name, PythonGlobal):  # a class returned by a call: the names in it are judged separately
            if not allow_foreign:
                return False
            continue
        found = standing(name.module, name.name)
        wrong = found == FOREIGN or (how != "" and name is names[0] and not may_call(found, how, args))
        if found == FORBIDDEN or (wrong and not allow_foreign):
            return False
    return True


def plain_data(value: PythonObject) -> dict[Any, Any]:
    """Return an object as a dict that names its class."""
    parts: dict[Any, Any] = {"__class__": value.path}
    in_cls = isinstance(value.constructor, PythonGlobal) and value.constructor.module in _COPYREG
    if value.args not in ((), UNSET) and not in_cls:
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


def hashable_text(key: Any, allow_foreign: bool, known: dict[int, PythonObject | None]) -> str | None:
    """Return the text of a key that contains an object which becomes a dict; `None` for keys that are unchanged.

    Args:
        key: of a dict, or an element of a set.
        allow_foreign: as in `may_name`.
        known: the object found in each tuple and set so far, by `id`; they must still exist. More are added.
    """
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
            elif isinstance(part, PythonObject) and not may_name(part, allow_foreign):
                found = part
            known[id(part)] = found
        stack.pop()
    first = known[id(key)]
    if first is None:
        return None
    args = key_text(first.args) if first.args and isinstance(first.args, tuple) else ""
    return f"{key_text(key)}{args}"
