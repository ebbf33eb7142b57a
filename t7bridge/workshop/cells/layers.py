"""What recurrent layers, cells and sequencers of Lua are in torch.nn, as single modules. A sequencer is Lua's container
that runs its modules on each step of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...nn.mapping import SEQUENTIAL, ModuleSpec
from ...nn.output_shapes import Arguments
from ...nn.registry import RecurrentLayer, traits_of

DROPOUT = "torch.nn.Dropout"
_STEPWISE = {f"torch.nn.{name}" for name in ("Linear", "Dropout", "Tanh", "Sigmoid", "ReLU", "Identity")}
"""Layers that treat each step of each sequence by itself, however many there are."""
_STATE_ARGUMENTS = ("remember", "state", "hidden", "start", "mask_zero")
"""Arguments of recurrent layers about states, and about steps that are left out."""
_NO_STATE = (None, False, "", "neither")
"""Values of these arguments that mean that there is none."""


def recurrent_class(spec: ModuleSpec) -> str:
    """Return which class of torch.nn (`LSTM`, `GRU`, `RNN`) a recurrent layer over sequences is; empty for others."""
    traits = traits_of(spec.target)
    if traits.recurrent is None or not traits.recurrent.layer or traits.by_step:
        return ""
    return traits.recurrent.kind


def recurrent_layer(spec: ModuleSpec) -> RecurrentLayer:
    """Return what a recurrent layer or cell is in torch.nn."""
    recurrent = traits_of(spec.target).recurrent
    assert recurrent is not None
    return recurrent


def is_cell_of_torch(spec: ModuleSpec) -> bool:
    """Return whether a module is a cell that a layer of torch.nn repeats for each step."""
    recurrent = traits_of(spec.target).recurrent
    return recurrent is not None and bool(recurrent.rows)


def is_over_steps(spec: ModuleSpec) -> bool:
    """Return whether a module treats the steps of a sequence one by one, by modules inside or by itself."""
    traits = traits_of(spec.target)
    # `not_in_torch` is given for layers over sequences, and for their cells, which are called step by step.
    is_layer = traits.not_in_torch is not None and not traits.by_step
    return bool(traits.stacking) or is_layer


def is_recurrent(spec: ModuleSpec) -> bool:
    """Return whether a module is a cell, something around one, or a layer over sequences that torch.nn lacks."""
    traits = traits_of(spec.target)
    return traits.by_step or (traits.recurrent is not None and not traits.recurrent.layer)


def is_stepwise(spec: ModuleSpec) -> bool:
    """Return whether a layer without a state treats each step by itself, along its features.

    Some do so only as another class, over a dimension that is given (`Traits.over_dim`).
    """
    return spec.target in _STEPWISE or bool(traits_of(spec.target).over_dim)


def is_stepwise_or_takes_tokens(spec: ModuleSpec) -> bool:
    """Return whether a layer of torch.nn without a state treats each step, or each token, by itself."""
    return spec.target in _STEPWISE or traits_of(spec.target).takes_tokens


def why_not_in_torch(spec: ModuleSpec) -> str:
    """Return why torch.nn has no such layer; empty if it has."""
    reason = traits_of(spec.target).not_in_torch
    return "" if reason is None else reason(Arguments(spec.args, spec.kwargs))


def has_state_argument(spec: ModuleSpec) -> bool:
    """Return whether an argument says that a module keeps a state, or skips steps."""
    return any(spec.kwargs.get(name) not in _NO_STATE for name in _STATE_ARGUMENTS)


def keeps_state(spec: ModuleSpec) -> bool:
    """Return whether a recurrent layer of torch.nn begins a sequence with anything but zeros, or skips steps."""
    return bool(recurrent_class(spec)) and has_state_argument(spec)


def remembers(spec: ModuleSpec) -> bool:
    """Return whether a recurrent layer begins a sequence with the state after the last one."""
    return bool(recurrent_class(spec)) and spec.kwargs.get("remember") in (True, "always", "both")


def dropout_rate(spec: ModuleSpec) -> Any:
    """Return the rate of a dropout layer; `None` for any other layer."""
    if spec.target != DROPOUT:
        return None
    return spec.args[0] if spec.args else spec.kwargs.get("p", 0.5)  # PyTorch's default


def modules_in_row(spec: ModuleSpec) -> Iterator[ModuleSpec]:
    """Yield the modules of a sequencer in their order: of a Sequential those inside it, however deep."""
    for child in spec.children.values():
        if child.target == SEQUENTIAL:
            yield from modules_in_row(child)
        else:
            yield child


def without_mask(spec: ModuleSpec) -> ModuleSpec:
    """Return the module inside of one that only makes those rows of its output zero that are zero in its input.

    Of any other module it is the module itself.
    """
    zeroes_rows = traits_of(spec.target).zeroes_rows
    if zeroes_rows is None or not zeroes_rows(Arguments(spec.args, spec.kwargs)):
        return spec
    return next(iter(spec.children.values()))  # it has one
