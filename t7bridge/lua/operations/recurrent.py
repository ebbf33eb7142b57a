"""Recurrent layers, unrolled: one cell per step, all with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...data import define
from ..build import (
    Builder,
    CannotError,
    Const,
    Learned,
    Missing,
    Stored,
    Wire,
    check_known,
    check_learned,
    is_parameter,
    operation,
)
from ..layers import LuaLayer, LuaNode, graph_of, make
from ..trace import CallRef, leaves
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


@define(eq=False)
class _Stack:
    """Recurrent layers over time, with PyTorch's numbering of states.

    Attributes:
        kind: `lstm`, `gru`, `rnn_tanh` or `rnn_relu`.
        cells: the parameters of each direction of each layer.
        directions: 1, or 2 if a second cell runs from the last step to the first.
        dropout: probability between layers.
        time: the dimension of the steps.
    """

    kind: str
    cells: list[Any]
    directions: int
    dropout: float
    time: int

    def run(self, b: Builder, value: Wire, one: Callable[[Wire, int, bool], Wire]) -> Wire:
        """Return the outputs of the last layer.

        Args:
            b: the builder.
            value: the input.
            one: runs a cell, by its number, over a sequence, backwards if its last argument is true.
        """
        for first in range(0, len(self.cells), self.directions):
            if first and self.dropout:
                value = value >> make("nn.Dropout", self.dropout)
            ways = range(self.directions)
            value = b.concatenate([one(value, first + way, way == 1) for way in ways], 2)
        return value


def _unroll(b: Builder, stack: _Stack, value: Wire, states: list[Any]) -> list[Wire]:
    """Run layers step by step; return outputs and last states."""
    length = value.shape[stack.time]
    check_known("the number of steps depends on the inputs", length)
    if len(value.shape) != 3:
        raise CannotError("the input is not a batch")
    last: list[list[Wire]] = [[] for _ in states]

    def one(value: Wire, number: int, backward: bool) -> Any:
        for param in stack.cells[number]:
            check_learned(param, "weight")
        w_ih, w_hh, b_ih, b_hh = (*stack.cells[number], None, None)[:4]
        gates = applied(b, value, w_ih, b_ih)
        current = [_initial(b, state, number, b.select(value, stack.time, 0)) for state in states]
        outputs: list[Any] = [None] * length
        for step in reversed(range(length)) if backward else range(length):
            current = _step(b, stack.kind, w_hh, b_hh, b.select(gates, stack.time, step), current)
            outputs[step] = current[0]
        for place, state in enumerate(current):
            last[place].append(b.reshape(state, (1, *state.shape)))
        return join_steps(b, outputs, stack.time)

    value = stack.run(b, value, one)
    return [value, *(b.concatenate(each, 0) for each in last)]


def _by_rnn(b: Builder, stack: _Stack, value: Wire) -> list[Any]:
    """Run LSTM layers from zero states by nn.SeqLSTM of the package rnn, which accepts sequences of any length."""
    value = b.permute(value, (1, 0, 2)) if stack.time else value
    steps, batch, _ = value.shape
    last = []

    def one(value: Wire, number: int, backward: bool) -> Any:
        own = [param.ref for param in stack.cells[number]]
        hidden, width = own[1].size[1], own[0].size[1]
        layer = make("nn.SeqLSTM", width, hidden, **dict(zip(SEQUENCE_FIELDS, own)))
        if backward:
            layer = make("nn.SeqReverseSequence", 1) >> layer >> make("nn.SeqReverseSequence", 1)
        result = b.emit(layer, value, shape=(steps, batch, hidden))
        last.append(b.reshape(b.select(result, 0, 0 if backward else steps - 1), (1, batch, hidden)))
        return result

    value = stack.run(b, value, one)
    output = b.permute(value, (1, 0, 2)) if stack.time else value
    return [output, b.concatenate(last, 0), Missing("nn.SeqLSTM does not return its last cells")]


def _cells_are_used(b: Builder) -> bool:
    """Return whether the last cells of the LSTM under construction are used."""
    calls = b.program.calls
    names = {call.name for call in calls if list(call.args.values())[:2] == [CallRef(b.call.name), 2]}
    used = [*leaves([call.args for call in calls]), *b.program.outputs]
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
    stack = _Stack(b.kind, cells, 1 + bidirectional, dropout, int(batch_first))
    zeros = all(isinstance(state, Const) and not state.array().any() for state in states)
    fits = len(params) == count * num_layers * stack.directions
    whole = is_parameter(*params) and all(param.whole for param in params)
    if fits and whole and zeros and b.kind == "lstm" and "rnn" in b.allow and not _cells_are_used(b):
        b.remark("nn.SeqLSTM is of the package rnn (Element-Research's): require 'rnn' before the model is loaded")
        return _by_rnn(b, stack, input)
    if not fits:
        raise CannotError("projections are not composed")
    length = input.shape[stack.time]
    b.remark(f"recurrent layers are unrolled for {length} steps: the model accepts sequences of that length only")
    return _unroll(b, stack, input, states)


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
