"""State from which a recurrent layer resumes at its next call: that of the file, if it is to be used.

Sources: `getHiddenState`, `forget` and `evaluate` of rnn 83a5f17 `AbstractRecurrent.lua`, `LSTM.lua`, `GRU.lua`,
`Recurrence.lua`, `Sequencer.lua` and `SeqLSTM.lua`; torch-rnn `LSTM.lua`. May import graph and errors.
"""

from __future__ import annotations

from typing import Any

from ...graph.lua import TorchObject, Value
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from ..fields import items_of
from ..mapping import Literal, Lua, NotMappedError
from ..weights.layouts import elements

_ALWAYS_FORGET = ("nn.Repeater", "nn.RecurrentAttention")
_MAX_DEPTH = 20
_MOST = 1 << 22
"""Maximum number of elements of a state that becomes an argument of a constructor."""


def remembered(obj: TorchObject) -> str:
    """Return when a sequence resumes from the last: `train`, `eval`, `both` or `neither`."""
    value = obj.get("_remember")
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
    return text if text in ("train", "eval", "both") else "neither"


def carried(lua: Lua, *paths: str) -> Literal:
    """Return the state after the last step of a cell, or `None` if the next call starts a sequence.

    Args:
        lua: the cell.
        paths: the lists of states by step, such as `outputs` and `cells`.
    """
    step = lua.integer("step", 1)
    if step <= 1 or not all(_goes_on(obj) for obj in lua.above):
        return None
    return _together([values(lua.get(f"{path}.{step - 1}")) for path in paths])


def begin(lua: Lua, *paths: str) -> Literal:
    """Return the initial state of every sequence of a cell; `None` for zeros.

    Args:
        lua: the cell.
        paths: where it may be, for each part of the state; alternatives are separated by `|`.
    """
    found = [[values(lua.get(one)) for one in path.split("|")] for path in paths]
    return _together([next((value for value in some if value is not None), None) for some in found])


def last_of(lua: Lua, states: tuple[str, ...], kept: tuple[str, ...], given: tuple[str, ...]) -> Literal:
    """Return the state after the last sequence of a layer for whole sequences; `None` if the next one starts anew.

    Args:
        lua: the layer.
        states: fields of the states of all steps, time first; alternatives are separated by `|`.
        kept: fields of the states before the first step, which are emptied when the layer forgets.
        given: fields with the initial state of the next sequence only.
    """
    on = [values(lua.get(path)) for path in given]
    if any(value is not None for value in on):
        return on[0] if len(on) == 1 else tuple(on)
    if remembered(lua.obj) not in ("eval", "both") or lua.get("train") is not False:
        return None
    if not all(_goes_on(obj) for obj in lua.above) or any(lua.find_tensor(path) is None for path in kept):
        return None
    tensors = [next(filter(None, map(lua.find_tensor, path.split("|"))), None) for path in states]
    return _together([_values(elements(tensor)[-1].tolist()) if tensor is not None else None for tensor in tensors])


def last_column(lua: Lua, states: tuple[str, ...], kept: str) -> Literal:
    """Return the state after the last sequence of a layer of torch-rnn, which is batch-first.

    Args:
        lua: a layer that remembers its states.
        states: fields of the states of all steps.
        kept: the field of the state before the first step, which is emptied when the layer forgets.
    """
    tensors = [lua.find_tensor(path) for path in states]
    if lua.find_tensor(kept) is None or any(tensor is None or len(tensor.shape) != 3 for tensor in tensors):
        return None
    return _together([_values(elements(tensor)[:, -1].tolist()) for tensor in tensors if tensor is not None])


def values(value: Value, depth: int = 0) -> Literal:
    """Return the elements of a tensor as nested tuples; a table of tensors as a list of these; else `None`."""
    if isinstance(value, Tensor):
        if value.numel > _MOST:
            raise NotMappedError("holds a state with too many elements", found=f"{value.numel}")
        return _values(elements(value).tolist()) if value.numel else None
    items = items_of(value) if depth < _MAX_DEPTH else None
    if not items:
        return None
    inside: list[Literal] = [values(item, depth + 1) for item in items]
    return None if any(item is None for item in inside) else inside


def nested_sizes(value: Value, depth: int = 0) -> Any:
    """Return the sizes of an output: a tuple of numbers, or for a table of outputs a tuple of these; else `None`."""
    if isinstance(value, Storage):
        return tuple(int(extent) for extent in value.array)
    if isinstance(value, float):
        return (int(value),)
    items = items_of(value)
    if not items or depth > _MAX_DEPTH:
        return None
    if all(isinstance(item, float) and item.is_integer() for item in items):
        return tuple(int(item) for item in items)
    inside = tuple(nested_sizes(item, depth + 1) for item in items)
    return None if None in inside else inside


def _goes_on(obj: TorchObject) -> bool:
    """Return whether a module lets its children resume when it is called in evaluation mode."""
    if obj.class_name == "nn.Sequencer":
        return remembered(obj) in ("eval", "both") and obj.get("train") is False
    return obj.class_name not in _ALWAYS_FORGET


def _values(value: Any) -> Literal:
    return tuple(_values(item) for item in value) if isinstance(value, list) else value


def _zeros(value: Any) -> Literal:
    return tuple(_zeros(item) for item in value) if isinstance(value, tuple) else 0.0


def _together(parts: list[Literal]) -> Literal:
    """Return a single part, or several as a tuple; `None` if there is none, and zeros for a missing one of two."""
    there = [part for part in parts if part is not None]
    if not there:
        return None
    if len(parts) == 1:
        return there[0]
    return tuple(_zeros(there[0]) if part is None else part for part in parts)
