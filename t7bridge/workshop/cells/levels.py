"""Recurrent layers in a row that one layer of torch.nn can be, with a level for each, and a dropout between levels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import evolve

from ...nn.mapping import LAYERS, ModuleSpec
from .layers import DROPOUT, dropout_rate, recurrent_class

_DEFAULTS: dict[str, Any] = {
    "num_layers": 1,
    "nonlinearity": "tanh",
    "batch_first": False,
    "dropout": 0.0,
    "bidirectional": False,
    "remember": "neither",
}
"""PyTorch's defaults of what a layer over sequences may have as keyword argument, and Lua's of `remember`. No `bias`:
Lua's layers have no option for it.
"""


def groups_of_levels(layers: list[ModuleSpec]) -> Iterator[list[ModuleSpec]]:
    """Yield layers in groups: those that can be levels of one layer of torch.nn, with the dropouts between them.

    Any other layer is a group of its own. Whether all of a group begin with a state is left to the caller: they have
    one `remember`.
    """
    position = 0
    while position < len(layers):
        group = [layers[position]]
        if recurrent_class(group[0]):
            next_level = _next_level(group, layers[position + 1 :])
            while next_level:
                group += next_level
                next_level = _next_level(group, layers[position + len(group) :])
        yield group
        position += len(group)


def levels_of(group: list[ModuleSpec]) -> list[ModuleSpec]:
    """Return the recurrent layers of a group, without the dropouts between them."""
    return [spec for spec in group if recurrent_class(spec)]


def merged(group: list[ModuleSpec], target: str) -> ModuleSpec:
    """Return one layer for a group.

    Args:
        group: see `groups_of_levels`; its first layer is recurrent.
        target: the class of the new layer.
    """
    first = group[0]
    options = _options(first)
    levels = levels_of(group)
    rates = [dropout_rate(spec) for spec in group if spec.target == DROPOUT]  # all equal
    if len(levels) > 1:
        options["num_layers"] = len(levels)
        options["dropout"] = rates[0] if rates else 0.0
    del options["remember"]  # torch.nn has none: the layer forgets, or takes its state as an input
    kwargs = {name: value for name, value in options.items() if value != _DEFAULTS[name]}
    input_size, hidden_size = first.args[:2]
    return evolve(first, target=LAYERS + target, args=(input_size, hidden_size), kwargs=kwargs)


def _next_level(group: list[ModuleSpec], rest: list[ModuleSpec]) -> list[ModuleSpec]:
    """Return the layer that can be the next level of a layer of torch.nn, after the dropout before it, if any.

    That is a list of one or two modules. It is empty if the next layer cannot be a level.

    Args:
        group: the levels so far, with the dropouts between them.
        rest: the layers that follow.
    """
    has_dropout = bool(rest) and rest[0].target == DROPOUT
    length = 2 if has_dropout else 1
    dropout_and_layer = rest[:length]
    if len(dropout_and_layer) < length or not _is_possible_level(group[0], dropout_and_layer[-1]):
        return []
    if len(group) == 1:
        return dropout_and_layer
    # torch.nn has one dropout between all levels. group[1] is the first one, or, without any, the second level.
    has_same_dropout = dropout_rate(group[1]) == dropout_rate(dropout_and_layer[0])
    return dropout_and_layer if has_same_dropout else []


def _is_possible_level(first: ModuleSpec, other: ModuleSpec) -> bool:
    """Return whether a layer can be another level of the first in one layer of torch.nn.

    Each level but the first takes as many features as it returns, and all have one class and the same options. Whether
    they keep a state is left to the callers, as is the dropout between them.

    Args:
        first: a recurrent layer over sequences.
        other: any layer that follows it.
    """
    _, hidden_size, *_ = first.args
    if recurrent_class(other) != recurrent_class(first) or other.args[:2] != (hidden_size, hidden_size):
        return False
    options = _options(first)
    other_options = _options(other)
    # Not `dropout`, which does nothing in a single level. `remember`, an option of Lua's, says when a state is kept.
    if any(options[name] != other_options[name] for name in ("batch_first", "nonlinearity", "remember")):
        return False
    # With one of these a layer has more tensors than one level. They are given only if they are not 1, false or 0.
    for layer in (first, other):
        if any(layer.kwargs.get(name) for name in ("num_layers", "bidirectional", "proj_size")):
            return False
    return True


def _options(spec: ModuleSpec) -> dict[str, Any]:
    """Return the keyword arguments of a layer over sequences, those that are not given with PyTorch's defaults."""
    return {name: spec.kwargs.get(name, value) for name, value in _DEFAULTS.items()}
