"""Walks over a graph: every object once, in Lua's writing order, without recursion; cycles are fine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..data import define
from .lua import COMPOSITE, LuaFunction, Table, TdsHash, TdsVec, TorchObject, Value
from .show import Shown
from .storage import Storage
from .tensor import Tensor

_WORD = re.compile(r"[A-Za-z_]\w*\Z")


class Holder(Shown):
    """A Python-side value that holds others: objects of foreign classes, sparse and quantized tensors."""

    __slots__ = ()

    def inside(self) -> Iterator[tuple[str, Any]]:
        """Yield the values directly inside, each with its step in a path."""
        raise NotImplementedError


def step_name(key: Value) -> str:
    """Return one step of a path into a table: `.weight`, `[3]`, `["odd key"]`."""
    if isinstance(key, bytes):
        text = key.decode("utf-8", "backslashreplace")
        return f".{text}" if _WORD.match(text) else f"[{text[:60]!r}]"
    if isinstance(key, str):
        return f".{key}" if _WORD.match(key) else f"[{key[:60]!r}]"
    if isinstance(key, float) and key.is_integer() and abs(key) < 2**53:
        return f"[{int(key)}]"
    if key is None or isinstance(key, (bool, int, float)):
        return f"[{key}]"
    return f"[<{type(key).__name__}>]"


_SCALARS = frozenset((bytes, str, float, int, bool, type(None)))


def children(value: Value, *, scalars: bool = True) -> Iterator[tuple[str, Value]]:
    """Yield the values directly inside a value, each with its step in a path.

    Args:
        value: any value.
        scalars: whether numbers, strings and the like are yielded; a table may hold millions of them.
    """
    if isinstance(value, Table):
        for key, item in zip(value.raw_keys, value.raw_values):
            if not scalars and type(item) in _SCALARS and type(key) in _SCALARS:
                continue
            name = step_name(key)
            if isinstance(key, COMPOSITE):
                yield f"<key {name}>", key
            yield name, item
    elif isinstance(value, TorchObject):
        if isinstance(value.payload, COMPOSITE):
            yield "<payload>", value.payload
        if value.fields is not None:
            yield from children(value.fields, scalars=scalars)
    elif isinstance(value, Tensor):
        if value.storage is not None:
            yield ".storage", value.storage
    elif isinstance(value, LuaFunction):
        yield "<upvalues>", value.upvalues
    elif isinstance(value, TdsHash):
        yield from children(value.content, scalars=scalars)
    elif isinstance(value, TdsVec):
        for number, item in enumerate(value.elements, 1):
            yield f"[{number}]", item
    elif isinstance(value, dict):
        for key, item in value.items():
            if not scalars and type(item) in _SCALARS and type(key) in _SCALARS:
                continue
            name = step_name(key)
            if not isinstance(key, (str, bytes, int, float, bool, type(None))):
                yield f"<key {name}>", key
            yield name, item
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield f"[{number}]", item
    elif isinstance(value, Holder):
        yield from value.inside()


@define(eq=False)
class Visit:
    """One object found on a walk.

    Attributes:
        value: the object.
        step: its step from the object that contains it.
        parent: the visit of that object; `None` at the root.
    """

    value: Any
    step: str
    parent: Visit | None

    @property
    def path(self) -> str:
        """The full path, `root.modules[3].weight`."""
        steps: list[str] = []
        visit: Visit | None = self
        while visit is not None:
            steps.append(visit.step)
            visit = visit.parent
        return "".join(reversed(steps))


def walk(root: Value, name: str = "root", seen: set[int] | None = None) -> Iterator[Visit]:
    """Yield every value with an identity once, an object before what is inside it.

    Args:
        root: where the walk begins.
        name: its path.
        seen: identities of values to skip; those visited are added.
    """
    seen = set() if seen is None else seen
    kinds = (*COMPOSITE, dict, list, tuple, Holder)
    stack = [Visit(root, name, None)]
    while stack:
        visit = stack.pop()
        if id(visit.value) in seen or not isinstance(visit.value, kinds):
            continue
        seen.add(id(visit.value))
        yield visit
        found = children(visit.value, scalars=False)
        inside = [Visit(value, step, visit) for step, value in found if isinstance(value, kinds)]
        stack.extend(reversed(inside))


def objects(root: Value) -> Iterator[Value]:
    """Yield every value with an identity once, in arbitrary order: `walk` without paths, in a third of the time."""
    kinds = (*COMPOSITE, dict, list, tuple, Holder)
    seen: set[int] = set()
    stack = [root]
    while stack:
        value = stack.pop()
        if type(value) in _SCALARS or id(value) in seen or not isinstance(value, kinds):
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, dict):
            stack.extend(value.values())
            stack.extend(key for key in value if type(key) not in _SCALARS)
        elif isinstance(value, (list, tuple)):
            stack.extend(value)
        else:
            stack.extend(item for _, item in children(value, scalars=False))


def tensors(root: Value) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor once, with its path."""
    for visit in walk(root):
        if isinstance(visit.value, Tensor):
            yield visit.path, visit.value


def storages(root: Value) -> Iterator[Storage]:
    """Yield every storage once."""
    for visit in walk(root):
        if isinstance(visit.value, Storage):
            yield visit.value


def unfinished_step(value: Any) -> str:
    """Return the step from a partly read object to the value being read inside it."""
    if isinstance(value, TdsHash):
        value = value.content
    if isinstance(value, Table):
        if len(value.raw_keys) > len(value.raw_values):
            return step_name(value.raw_keys[-1])
        return f"<key {len(value.raw_keys) + 1}>"
    if isinstance(value, TdsVec):
        return f"[{len(value.elements) + 1}]"
    if isinstance(value, Tensor):
        return ".storage"
    if isinstance(value, LuaFunction):
        return "<upvalues>"
    return ""
