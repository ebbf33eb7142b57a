"""Recurrent layers, unrolled: one cell per step, all with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...data import define
from ..build import Absent, Builder, CannotError, Const, LearnedTensor, Wire, mentions, whole
from ..layers import LuaLayer, LuaNode, make, sequential
from ..table import operation
from ..trace import CallRef
from .linear import applied
from .shape import concatenated, selected

SEQUENCE_FIELDS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
"""Names of the parameters of an nn.SeqLSTM in the state dict."""


def _gate(start: int, count: int, activation: str) -> LuaLayer:
    return sequential(make("nn.Narrow", 2, start + 1, count), make(activation))


class _Cell:
    """A graph of one step under construction: its inputs, and the product of the last state with its weights."""

    def __init__(self, inputs: int, hidden: int, gates: int, weight: LearnedTensor, bias: LearnedTensor | None) -> None:
        self.inputs = [LuaNode(None, [], (), (), index) for index in range(inputs)]
        self._steps = [*self.inputs]
        self._recurrent = make("nn.Linear", hidden, gates * hidden, *(() if bias else (False,)), weight=weight.ref)
        if bias is not None:
            self._recurrent.weights["bias"] = bias.ref

    def own(self) -> LuaNode:
        """Add the product with the last output, the second input."""
        return self.emit(self._recurrent, self.inputs[1])

    def emit(self, layer: LuaLayer, *inputs: LuaNode) -> LuaNode:
        """Add a step and return it."""
        self._steps.append(LuaNode(layer, list(inputs)))
        return self._steps[-1]

    def returning(self, *outputs: LuaNode) -> LuaLayer:
        """Return the graph with these outputs."""
        return LuaLayer("nn.gModule", inputs=len(self.inputs), steps=self._steps, outputs=list(outputs))


def lstm_cell(hidden: int, weight: LearnedTensor, bias: LearnedTensor | None) -> LuaLayer:
    """Return a cell of {gates of the input, h, c} that returns {h, c}; gates i, f, g, o."""
    cell = _Cell(3, hidden, 4, weight, bias)
    emit, (gates, _, c) = cell.emit, cell.inputs
    total = emit(make("nn.CAddTable"), gates, cell.own())
    i = emit(_gate(0, hidden, "nn.Sigmoid"), total)
    f = emit(_gate(hidden, hidden, "nn.Sigmoid"), total)
    g = emit(_gate(2 * hidden, hidden, "nn.Tanh"), total)
    o = emit(_gate(3 * hidden, hidden, "nn.Sigmoid"), total)
    kept, new = emit(make("nn.CMulTable"), f, c), emit(make("nn.CMulTable"), i, g)
    next_c = emit(make("nn.CAddTable"), kept, new)
    next_h = emit(make("nn.CMulTable"), o, emit(make("nn.Tanh"), next_c))
    return cell.returning(next_h, next_c)


def gru_cell(hidden: int, weight: LearnedTensor, bias: LearnedTensor | None) -> LuaLayer:
    """Return a cell of {gates of the input, h} that returns h; gates r, z, n, reset after the product."""
    cell = _Cell(2, hidden, 3, weight, bias)
    emit, (gates, h) = cell.emit, cell.inputs
    own = cell.own()
    parts = []
    for start in (0, hidden):
        both = emit(
            make("nn.CAddTable"),
            emit(make("nn.Narrow", 2, start + 1, hidden), gates),
            emit(make("nn.Narrow", 2, start + 1, hidden), own),
        )
        parts.append(emit(make("nn.Sigmoid"), both))
    r, z = parts
    reset = emit(make("nn.CMulTable"), r, emit(make("nn.Narrow", 2, 2 * hidden + 1, hidden), own))
    given = emit(make("nn.Narrow", 2, 2 * hidden + 1, hidden), gates)
    n = emit(make("nn.Tanh"), emit(make("nn.CAddTable"), given, reset))
    # (1 - z) n + z h = n + z (h - n)
    change = emit(make("nn.CMulTable"), z, emit(make("nn.CSubTable"), h, n))
    return cell.returning(emit(make("nn.CAddTable"), n, change))


def rnn_cell(hidden: int, weight: LearnedTensor, bias: LearnedTensor | None, activation: str) -> LuaLayer:
    """Return a cell of {input, h} that returns h."""
    cell = _Cell(2, hidden, 1, weight, bias)
    total = cell.emit(make("nn.CAddTable"), cell.inputs[0], cell.own())
    return cell.returning(cell.emit(make(activation), total))


def _step(
    b: Builder, kind: str, w_hh: LearnedTensor, b_hh: LearnedTensor | None, gates: Wire, states: list[Wire], shape: Any
) -> Any:
    """Run a cell once and return its next states, the output first."""
    hidden = w_hh.ref.size[1]
    if kind == "lstm":
        made = b.emit(lstm_cell(hidden, w_hh, b_hh), gates, *states, shape=shape)
        return [b.emit(make("nn.SelectTable", place), made) for place in (1, 2)]
    if kind == "gru":
        return [b.emit(gru_cell(hidden, w_hh, b_hh), gates, *states, shape=shape)]
    activation = "nn.Tanh" if kind == "rnn_tanh" else "nn.ReLU"
    return [b.emit(rnn_cell(hidden, w_hh, b_hh, activation), gates, *states, shape=shape)]


def _initial(b: Builder, state: Any, index: int, like: Wire) -> Any:
    """Return the first state of a layer and direction, (batch, hidden)."""
    if isinstance(state, Const) and not state.array().any():
        shape = (like.shape[0], state.shape[-1])
        import numpy as np

        return b.wire(Const(b.tensor(np.zeros((1, state.shape[-1]), "f4")), shape), like)
    return b.wire(selected(b, state, 0, index), like)


@define(eq=False)
class _Stack:
    """Recurrent layers over time, with PyTorch's numbering of parameters."""

    kind: str
    params: Any
    biases: bool
    layers: int
    dropout: float
    both_ways: bool
    batch_first: bool

    @property
    def time(self) -> int:
        """The dimension of the steps."""
        return 1 if self.batch_first else 0

    @property
    def count(self) -> int:
        """Number of parameters of one direction of one layer."""
        return 4 if self.biases else 2

    @property
    def directions(self) -> int:
        """1, or 2 if a second cell runs from the last step to the first."""
        return 2 if self.both_ways else 1

    def run(self, b: Builder, value: Wire, one: Callable[[Wire, int, int], Wire]) -> Wire:
        """Return the outputs of the last layer.

        Args:
            one: runs one direction (0 forward, 1 backward) of one layer; its second argument numbers both, as the
                first dimension of PyTorch's states does.
        """
        for layer in range(self.layers):
            if layer and self.dropout:
                value = b.emit(make("nn.Dropout", self.dropout), value)
            results = [one(value, layer * self.directions + way, way) for way in range(self.directions)]
            value = results[0] if len(results) == 1 else concatenated(b, results, 2)
        return value

    def parameters(self, number: int) -> Any:
        """Return the parameters of one direction of one layer."""
        return self.params[self.count * number : self.count * (number + 1)]


def _unroll(b: Builder, stack: _Stack, value: Wire, states: list[Any]) -> list[Wire]:
    """Run layers step by step; return outputs and last states."""
    length = value.shape[stack.time]
    if isinstance(length, str):
        raise CannotError("the number of steps depends on the inputs")
    if len(value.shape) != 3:
        raise CannotError("the input is not a batch")
    if len(stack.params) != stack.count * stack.layers * stack.directions:
        raise CannotError("projections are not composed")
    last: list[list[Wire]] = [[] for _ in states]

    def one(value: Wire, number: int, way: int) -> Any:
        own = stack.parameters(number)
        if not all(isinstance(param, LearnedTensor) for param in own):
            raise CannotError("the weights are computed, or are not parameters")
        w_ih, w_hh, b_ih, b_hh = own if stack.biases else (*own, None, None)
        gates = applied(b, value, w_ih, b_ih)
        current = [_initial(b, state, number, selected(b, value, stack.time, 0)) for state in states]
        outputs: list[Any] = [None] * length
        for step in reversed(range(length)) if way else range(length):
            given = selected(b, gates, stack.time, step)
            current = _step(b, stack.kind, w_hh, b_hh, given, current, current[0].shape)
            outputs[step] = current[0]
        for place, state in enumerate(current):
            last[place].append(state)
        return concatenated(b, [b.reshape(out, _with_time(out.shape, stack.time)) for out in outputs], stack.time)

    value = stack.run(b, value, one)
    stacked = [concatenated(b, [b.reshape(one, (1, *one.shape)) for one in each], 0) for each in last]
    return [value, *stacked]


def _by_rnn(b: Builder, stack: _Stack, value: Wire) -> list[Any]:
    """Run LSTM layers from zero states by nn.SeqLSTM of the package rnn, which accepts sequences of any length."""
    value = b.permute(value, (1, 0, 2)) if stack.batch_first else value
    steps, batch, _ = value.shape
    last = []

    def one(value: Wire, number: int, way: int) -> Any:
        own = [param.ref for param in stack.parameters(number)]
        width, hidden = own[0].size[1], own[1].size[1]
        cells = make("nn.SeqLSTM", width, hidden, **dict(zip(SEQUENCE_FIELDS, own)))
        turn = make("nn.SeqReverseSequence", 1)
        chain = sequential(turn, cells, make("nn.SeqReverseSequence", 1)) if way else cells
        result = b.emit(chain, value, shape=(steps, batch, hidden))
        end = selected(b, result, 0, 0 if way else steps - 1)
        last.append(b.reshape(end, (1, batch, hidden)))
        return result

    value = stack.run(b, value, one)
    output = b.permute(value, (1, 0, 2)) if stack.batch_first else value
    return [output, concatenated(b, last, 0), Absent("nn.SeqLSTM does not return its last cells")]


def _cells_are_used(b: Builder) -> bool:
    """Return whether the last cells of the LSTM under construction are used."""
    names = {call.name for call in b.program.calls if call.args[:2] == (CallRef(b.call.name), 2)}
    taken = any(mentions(call, name) for call in b.program.calls for name in names)
    return taken or any(item == CallRef(name) for item in b.program.outputs for name in names)


def _with_time(shape: Any, time: int) -> Any:
    return (*shape[:time], 1, *shape[time:])


@operation(
    "lstm.input gru.input rnn_tanh.input rnn_relu.input",
    "nn.gModule cells of nn.Linear, nn.Sigmoid, nn.Tanh, nn.CMulTable; one a step; gates i, f, g, o or r, z, n",
    "Unrolled over the steps of the example input: other lengths need another export. `--allow rnn`: nn.SeqLSTM.",
)
def recurrent(
    b: Builder,
    input: Any,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Run LSTM, GRU or plain recurrent layers over time."""
    kind = b.call.op.split(".")[1]
    states = list(hx) if kind == "lstm" else [hx]
    chance = b.dropout_of(kind.partition("_")[0].upper()) or dropout
    stack = _Stack(kind, params, has_biases, num_layers, chance, bidirectional, batch_first)
    plain = all(whole(param) for param in params)
    zeros = all(isinstance(state, Const) and not state.array().any() for state in states)
    count = stack.count * num_layers * stack.directions
    if kind == "lstm" and "rnn" in b.allow and plain and zeros and len(params) == count and not _cells_are_used(b):
        b.remark("nn.SeqLSTM is of the package rnn (Element-Research's): require 'rnn' before the model is loaded")
        return _by_rnn(b, stack, b.wire(input))
    b.remark_unrolled(input.shape[1 if batch_first else 0])
    return _unroll(b, stack, b.wire(input), states)


@operation(
    "lstm_cell.default gru_cell.default rnn_tanh_cell.default rnn_relu_cell.default",
    "one nn.gModule of nn.Linear, nn.Sigmoid, nn.Tanh, nn.CMulTable",
)
def cell(b: Builder, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """Run one step."""
    value = b.wire(input)
    if not all(isinstance(param, LearnedTensor) for param in (w_ih, w_hh)):
        raise CannotError("the weights are computed, or are not parameters")
    gates = applied(b, value, w_ih, b_ih)
    states = [b.wire(state, value) for state in (hx if isinstance(hx, (list, tuple)) else [hx])]
    kind = b.call.op.split(".")[1].removesuffix("_cell")
    made = _step(b, kind, w_hh, b_hh, gates, states, (value.shape[0], w_hh.ref.size[1]))
    return made if kind == "lstm" else made[0]
