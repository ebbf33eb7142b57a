"""Recurrent layers, unrolled: one cell per step, all with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..build import Builder, Const, Learned, Missing, Stored, Wire, check_learned, is_parameter, operation
from ..layers import LuaLayer, LuaNode, graph_of, make
from ..sizes import CannotError
from ..trace import CallRef, tree_leaves
from .linear import applied
from .shape import stack as join_steps

SEQUENCE_FIELDS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
"""Names of the parameters of an nn.SeqLSTM in the state dict."""


def cell_of(kind: str, weight: Stored, bias: Stored | None) -> LuaLayer:
    """Return a graph of {gates of the input, h}, with c for an LSTM, that returns the next h, or {h, c}.

    Gates are i, f, g, o, or r, z, n; a GRU resets after the product.
    """
    hidden = weight.ref.size[1]
    args = (hidden, weight.ref.size[0], *(() if bias else (False,)))
    layer = make("nn.Linear", *args, weight=weight.ref, bias=bias.ref if bias else None)
    nodes = [LuaNode(None, index=index) for index in range(3 if kind == "lstm" else 2)]
    gates, h = nodes[:2]
    own = h >> layer

    def part(value: LuaNode, number: int, activation: str = "") -> LuaNode:
        cut = make("nn.Narrow", 2, number * hidden + 1, hidden)
        return value >> (cut >> make(activation) if activation else cut)

    if kind == "lstm":
        total = gates + own
        i, f, o = (part(total, number, "nn.Sigmoid") for number in (0, 1, 3))
        c = f * nodes[2] + i * part(total, 2, "nn.Tanh")
        return graph_of(nodes, o * (c >> make("nn.Tanh")), c)
    if kind == "gru":
        r, z = (part(gates, number) + part(own, number) >> make("nn.Sigmoid") for number in (0, 1))
        n = part(gates, 2) + r * part(own, 2) >> make("nn.Tanh")
        return graph_of(nodes, n + z * (h - n))  # (1 - z) n + z h
    return graph_of(nodes, gates + own >> make("nn.Tanh" if kind == "rnn_tanh" else "nn.ReLU"))


def _step(b: Builder, kind: str, w_hh: Stored, b_hh: Stored | None, gates: Wire, states: list[Wire]) -> Any:
    """Run a cell once and return its next states, the output first."""
    made = b.emit(cell_of(kind, w_hh, b_hh), gates, *states, shape=(gates.shape[0], w_hh.ref.size[1]))
    return [made >> make("nn.SelectTable", place) for place in (1, 2)] if kind == "lstm" else [made]


def _initial(b: Builder, state: Any, index: int, like: Wire) -> Any:
    """Return the first state of a layer and direction, (batch, hidden)."""
    if isinstance(state, Const) and not state.array().any():
        return b.wire(b.constant(state.array().reshape(-1)[:1], (like.shape[0], state.shape[-1])), like)
    return b.wire(b.select(state, 0, index), like)


def _unrolled(
    b: Builder, time: int, states: list[Any], value: Wire, cell: list[Any], number: int, backward: bool
) -> tuple[Wire, list[Wire]]:
    """Run a cell, by its number, step by step; return outputs and last states."""
    for param in cell:
        check_learned(param, "weight")
    w_ih, w_hh, b_ih, b_hh = (*cell, None, None)[:4]
    gates = applied(b, value, w_ih, b_ih)
    current = [_initial(b, state, number, b.select(value, time, 0)) for state in states]
    outputs: list[Any] = [None] * value.shape[time]
    for step in range(len(outputs))[:: -1 if backward else 1]:
        current = _step(b, b.kind, w_hh, b_hh, b.select(gates, time, step), current)
        outputs[step] = current[0]
    return join_steps(b, outputs, time), current


def _by_rnn(b: Builder, value: Wire, cell: list[Any], number: int, backward: bool) -> tuple[Wire, list[Wire]]:
    """Run an LSTM from zero states by nn.SeqLSTM of the package rnn, which accepts sequences of any length."""
    own = [param.ref for param in cell]
    hidden, width = own[1].size[1], own[0].size[1]
    layer = make("nn.SeqLSTM", width, hidden, **dict(zip(SEQUENCE_FIELDS, own)))
    if backward:
        layer = make("nn.SeqReverseSequence", 1) >> layer >> make("nn.SeqReverseSequence", 1)
    made = b.emit(layer, value, shape=(*value.shape[:2], hidden))
    return made, [b.select(made, 0, 0 if backward else value.shape[0] - 1)]


def _layers(b: Builder, value: Wire, cells: list[Any], ways: int, dropout: float, run: Callable[..., Any]) -> list[Any]:
    """Run layers over time, with PyTorch's numbering of cells; return the outputs of the last, and all last states.

    Args:
        b: the builder.
        value: the input.
        cells: the parameters of each direction of each layer.
        ways: 1, or 2 if a second cell runs from the last step to the first.
        dropout: probability between layers.
        run: runs a cell over a sequence, backwards if its last argument is true.
    """
    last = []
    for first in range(0, len(cells), ways):
        if first and dropout:
            value = value >> make("nn.Dropout", dropout)
        made = [run(value, cells[number], number, number > first) for number in range(first, first + ways)]
        value = b.concatenate([outputs for outputs, _ in made], 2)
        last += [[b.reshape(state, (1, *state.shape)) for state in states] for _, states in made]
    return [value, *(b.concatenate([*each], 0) for each in zip(*last))]


def _cells_are_used(b: Builder) -> bool:
    """Return whether the last cells of the LSTM under construction are used."""
    calls = b.program.calls
    names = {call.name for call in calls if list(call.args.values())[:2] == [CallRef(b.call.name), 2]}
    used = [*tree_leaves([call.args for call in calls]), *b.program.outputs]
    return any(isinstance(item, CallRef) and item.name in names for item in used)


@operation(
    "lstm.input gru.input rnn_tanh.input rnn_relu.input",
    "nn.gModule cells of nn.Linear, nn.Sigmoid, nn.Tanh, nn.CMulTable; one a step; gates i, f, g, o or r, z, n",
    "Unrolled over the steps of the example input: other lengths need another export. `--allow rnn`: nn.SeqLSTM.",
)
def recurrent(
    b: Builder,
    input: Wire,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Run LSTM, GRU or plain recurrent layers over time."""
    states = hx if b.kind == "lstm" else [hx]
    if type(b.module).__name__.startswith(b.kind.partition("_")[0].upper()):
        dropout = b.module.dropout
    count = 4 if has_biases else 2
    cells = [params[start : start + count] for start in range(0, len(params), count)]
    ways, time = 1 + bidirectional, int(batch_first)
    zeros = all(isinstance(state, Const) and not state.array().any() for state in states)
    fits = len(params) == count * num_layers * ways
    whole = is_parameter(*params) and all(param.whole for param in params)
    if fits and whole and zeros and b.kind == "lstm" and "rnn" in b.allow and not _cells_are_used(b):
        b.remark("nn.SeqLSTM is of the package rnn (Element-Research's): require 'rnn' before the model is loaded")
        order = (1, 0, 2) if batch_first else (0, 1, 2)
        output, last = _layers(b, b.permute(input, order), cells, ways, dropout, partial(_by_rnn, b))
        return [b.permute(output, order), last, Missing("nn.SeqLSTM does not return its last cells")]
    if not fits:
        raise CannotError("projections are not composed")
    if len(input.shape) != 3:
        raise CannotError("the input is not a batch")
    length = int(input.shape[time])
    b.remark(f"recurrent layers are unrolled for {length} steps: the model accepts sequences of that length only")
    return _layers(b, input, cells, ways, dropout, partial(_unrolled, b, time, states))


@operation(
    "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    "one nn.gModule of nn.Linear, nn.Sigmoid, nn.Tanh, nn.CMulTable",
)
def cell(
    b: Builder, input: Wire, hx: Any, w_ih: Learned, w_hh: Learned, b_ih: Learned | None, b_hh: Learned | None
) -> Any:
    """Run one step."""
    states = [b.wire(state, input) for state in (hx if isinstance(hx, list) else [hx])]
    made = _step(b, b.kind.removesuffix("_cell"), w_hh, b_hh, applied(b, input, w_ih, b_ih), states)
    return made if b.kind == "lstm_cell" else made[0]
