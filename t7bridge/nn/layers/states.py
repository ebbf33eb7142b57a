"""States of recurrent layers in Lua's files: before each sequence, and after the last one, from which it resumes.

A state becomes an argument of a PyTorch class, as nested tuples of numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...graph.lua import TorchObject, Value
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from ..fields import items_of
from ..layouts import elements, nested
from ..mapping import Literal, Lua, NotMappedError

_ALWAYS_FORGET = ("nn.Repeater", "nn.RecurrentAttention")
"""Containers that make the modules inside forget at each call."""
_MAX_DEPTH = 20
"""Maximum nesting of lists in a state."""
_MOST_ELEMENTS = 1 << 22
"""Maximum number of elements of a state that becomes an argument of a constructor."""
_ELEMENTS_PER_ITEM = 64
"""As how many elements a list counts, and each of its items, which cost more than numbers of a tensor."""


def remembered(obj: TorchObject) -> str:
    """Return when a sequence resumes from the last: `train`, `eval`, `both` or `neither`."""
    value = obj.get("_remember")
    when = value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
    return when if when in ("train", "eval", "both") else "neither"


def state_after_last_step(lua: Lua, *paths: str) -> Literal:
    """Return the state after the last step of a cell, or `None` if the next call starts a sequence.

    Args:
        lua: the cell.
        *paths: the fields with a list of states by step, one for each part of the state: `outputs` and `cells`.
    """
    step = lua.integer("step", 1)
    # `step` is the number of the next step: 1 for a cell that never ran or has forgotten.
    if step <= 1 or not all(_lets_resume(obj) for obj in lua.above):
        return None
    # Lua stores each step's state under its number.
    return joined_parts([nested_values(lua.get(f"{path}.{step - 1}")) for path in paths])


def initial_state(lua: Lua, *paths: str) -> Literal:
    """Return the initial state of every sequence of a cell; `None` for zeros.

    Args:
        lua: the cell.
        *paths: where it may be, one for each part of the state; alternatives are separated by `|`.
    """
    return joined_parts([_first_values(lua, path.split("|")) for path in paths])


def _first_values(lua: Lua, paths: list[str]) -> Literal:
    """Return the elements of the first of several fields that has some; `None` if none has."""
    for path in paths:
        elements = nested_values(lua.get(path))
        if elements is not None:
            return elements
    return None


def state_after_sequence(
    lua: Lua, states: tuple[str, ...], before: tuple[str, ...], initial: tuple[str, ...]
) -> Literal:
    """Return the state after the last sequence of a layer for whole sequences; `None` if the next starts from zeros.

    Args:
        lua: the layer.
        states: fields of the states of all steps, time first, one for each part of the state; alternatives are
            separated by `|`.
        before: fields of the states before the first step, which are emptied when the layer forgets.
        initial: fields with the initial state of the next sequence only, which users set.
    """
    initial_parts = [nested_values(lua.get(path)) for path in initial]
    # A missing part stays `None`, as its zeros may have another size: a projected output is smaller than the cell.
    if any(part is not None for part in initial_parts):
        return initial_parts[0] if len(initial_parts) == 1 else tuple(initial_parts)
    # As in `_lets_resume`, for a model that is called in evaluation mode.
    resumes = remembered(lua.obj) in ("eval", "both") and lua.get("train") is False
    if not resumes or not all(_lets_resume(obj) for obj in lua.above):
        return None
    has_forgotten = any(lua.find_tensor(path) is None for path in before)
    if has_forgotten:
        return None
    return joined_parts([_last_step(lua, path.split("|")) for path in states])


def _last_step(lua: Lua, paths: list[str]) -> Literal:
    """Return the last row of the first of several fields that is a tensor, time first; `None` if none is."""
    for path in paths:
        tensor = lua.find_tensor(path)
        if tensor is not None:
            return nested(elements(tensor)[-1].tolist())
    return None


def state_after_batch_first_sequence(lua: Lua, *states: str) -> Literal:
    """Return the state after the last sequence of a layer of torch-rnn, which is batch-first; `None` without one.

    Args:
        lua: the layer; it empties `h0`, the state before the first step, when it forgets.
        *states: fields of the states of all steps, of sizes (batch, steps, hidden), one for each part of the state.
    """
    if not lua.flag("remember_states") or lua.find_tensor("h0") is None:
        return None
    parts: list[Literal] = []
    for path in states:
        tensor = lua.find_tensor(path)
        if tensor is None or len(tensor.shape) != 3:
            return None
        last_step = elements(tensor)[:, -1]
        parts.append(nested(last_step.tolist()))
    return joined_parts(parts)


class _NestedLiterals:
    """Makes literals of values and of what lists hold, up to a total size."""

    def __init__(self, leaf: Callable[[Value, list[Value] | None], Literal]) -> None:
        """Start with no value.

        Args:
            leaf: returns the literal of a value, from it and its elements, `None` if it is no list; `None` if it has no
                literal as a whole, so that its elements are looked at.
        """
        self._leaf = leaf
        self._remaining = _MOST_ELEMENTS

    def of(self, value: Value, depth: int = 0) -> Any:
        """Return the literal of a value; of a list without one, the list of the literals of its elements, and so on.

        Args:
            value: the value.
            depth: the number of lists around it.

        Returns:
            `None` if the value, or anything in it, has no literal.

        Raises:
            NotMappedError: there are too many, as in a list that holds another many times.
        """
        items = items_of(value) if depth < _MAX_DEPTH else None
        self._count(value, items)
        literal = self._leaf(value, items)
        if literal is not None or not items:
            return literal
        parts = [self.of(item, depth + 1) for item in items]
        return None if None in parts else parts

    def _count(self, value: Value, items: list[Value] | None) -> None:
        """Count a value, or a list with its items, before anything is made of it."""
        if isinstance(value, Tensor):
            self._remaining -= value.numel
        else:
            self._remaining -= _ELEMENTS_PER_ITEM * (1 + len(items or ()))
        if self._remaining < 0:
            raise NotMappedError("holds a state with too many elements")


def nested_values(value: Value) -> Literal:
    """Return the elements of a tensor as nested tuples; a table of tensors as a list of these; else `None`.

    An empty tensor is a state that was not set yet: it, and a table with one in it, are `None`.
    """
    return _NestedLiterals(_values_of_tensor).of(value)


def _values_of_tensor(value: Value, _items: list[Value] | None) -> Literal:
    """Return the elements of one tensor as nested tuples; `None` for an empty one, and for anything else."""
    if not isinstance(value, Tensor) or not value.numel:
        return None
    return nested(elements(value).tolist())


def nested_sizes(value: Value) -> Any:
    """Return the sizes of an output: a tuple of numbers, or for a table of outputs a tuple of these; else `None`."""
    return nested(_NestedLiterals(_sizes_of_tensor).of(value))


def _sizes_of_tensor(value: Value, items: list[Value] | None) -> Literal:
    """Return the sizes of one tensor, a storage, a list of numbers, or a number for a vector; `None` if it is none.

    Args:
        value: the sizes.
        items: its elements, if it is a list.
    """
    if isinstance(value, Storage):
        return tuple(map(int, value.array))
    extents = [value] if isinstance(value, float) else items
    if not extents or not all(isinstance(extent, float) and extent.is_integer() for extent in extents):
        return None
    return tuple(map(int, extents))


def _lets_resume(obj: TorchObject) -> bool:
    """Return whether a module lets its children resume when it is called in evaluation mode."""
    if obj.class_name == "nn.Sequencer":
        return remembered(obj) in ("eval", "both") and obj.get("train") is False
    return obj.class_name not in _ALWAYS_FORGET


def _zeros(value: Any) -> Literal:
    """Return zeros in nested tuples of the same sizes as a value's."""
    if not isinstance(value, tuple):
        return 0.0
    return tuple(map(_zeros, value))


def joined_parts(parts: list[Literal]) -> Literal:
    """Return a state of several parts, such as output and cell.

    Args:
        parts: the elements of each, as nested tuples; `None` for a missing one.

    Returns:
        The only part, or a tuple with zeros for a missing one; `None` if all are missing.
    """
    present = [part for part in parts if part is not None]
    if not present:
        return None
    if len(parts) == 1:
        return present[0]
    zeros = _zeros(present[0])  # all parts have the same sizes
    return tuple(zeros if part is None else part for part in parts)
