"""Recurrent layers, unrolled: one cell a step, all with the same weights."""

from __future__ import annotations

from typing import Any

from ..build import Absent, Builder, CannotError, Const, Param, Wire, mentions, whole
from ..layers import Layer, Step, make, sequential
from ..table import operation
from ..trace import Ref
from .linear import applied
from .shape import concatenated, selected

SEQUENCE_FIELDS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
"""Names of the parameters of an nn.SeqLSTM in the state dict."""


def _gate(start: int, count: int, activation: str) -> Layer:
    return sequential(make("nn.Narrow", 2, start + 1, count), make(activation))


def lstm_cell(hidden: int, weight: Param, bias: Param | None) -> Layer:
    """Return a cell of {gates of the input, h, c} that returns {h, c}; gates i, f, g, o."""
    gates, h, c = (Step(None, [], (), (), index) for index in range(3))
    steps = [gates, h, c]

    def emit(layer: Layer, *inputs: Step) -> Step:
        steps.append(Step(layer, list(inputs)))
        return steps[-1]

    recurrent = make("nn.Linear", hidden, 4 * hidden, *(() if bias else (False,)), weight=weight.ref)
    if bias is not None:
        recurrent.weights["bias"] = bias.ref
    total = emit(make("nn.CAddTable"), gates, emit(recurrent, h))
    i = emit(_gate(0, hidden, "nn.Sigmoid"), total)
    f = emit(_gate(hidden, hidden, "nn.Sigmoid"), total)
    g = emit(_gate(2 * hidden, hidden, "nn.Tanh"), total)
    o = emit(_gate(3 * hidden, hidden, "nn.Sigmoid"), total)
    kept, new = emit(make("nn.CMulTable"), f, c), emit(make("nn.CMulTable"), i, g)
    next_c = emit(make("nn.CAddTable"), kept, new)
    next_h = emit(make("nn.CMulTable"), o, emit(make("nn.Tanh"), next_c))
    return Layer("nn.gModule", inputs=3, steps=steps, outputs=[next_h, next_c])


def gru_cell(hidden: int, weight: Param, bias: Param | None) -> Layer:
    """Return a cell of {gates of the input, h} that returns h; gates r, z, n, reset after the product."""
    gates, h = (Step(None, [], (), (), index) for index in range(2))
    steps = [gates, h]

    def emit(layer: Layer, *inputs: Step) -> Step:
        steps.append(Step(layer, list(inputs)))
        return steps[-1]

    recurrent = make("nn.Linear", hidden, 3 * hidden, *(() if bias else (False,)), weight=weight.ref)
    if bias is not None:
        recurrent.weights["bias"] = bias.ref
    own = emit(recurrent, h)
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
    return Layer("nn.gModule", inputs=2, steps=steps, outputs=[emit(make("nn.CAddTable"), n, change)])


def rnn_cell(hidden: int, weight: Param, bias: Param | None, activation: str) -> Layer:
    """Return a cell of {input, h} that returns h."""
    given, h = (Step(None, [], (), (), index) for index in range(2))
    recurrent = make("nn.Linear", hidden, hidden, *(() if bias else (False,)), weight=weight.ref)
    if bias is not None:
        recurrent.weights["bias"] = bias.ref
    own = Step(recurrent, [h])
    total = Step(make("nn.CAddTable"), [given, own])
    out = Step(make(activation), [total])
    return Layer("nn.gModule", inputs=2, steps=[given, h, own, total, out], outputs=[out])


def _initial(b: Builder, state: Any, index: int, like: Wire) -> Any:
    """Return the first state of a layer and direction, (batch, hidden)."""
    if isinstance(state, Const) and not state.array().any():
        shape = (like.shape[0], state.shape[-1])
        import numpy as np

        return b.wire(Const(b.tensor(np.zeros((1, state.shape[-1]), "f4")), shape), like)
    return b.wire(selected(b, state, 0, index), like)


def _unroll(
    b: Builder,
    kind: str,
    value: Wire,
    states: list[Any],
    params: Any,
    biases: bool,
    layers: int,
    dropout: float,
    both_ways: bool,
    batch_first: bool,
) -> list[Wire]:
    """Run layers over time; return outputs and last states."""
    count = 4 if biases else 2
    time = 1 if batch_first else 0
    length = value.shape[time]
    if isinstance(length, str):
        raise CannotError("the number of steps depends on the inputs")
    if len(value.shape) != 3:
        raise CannotError("the input is not a batch")
    directions = 2 if both_ways else 1
    if len(params) != count * layers * directions:
        raise CannotError("projections are not composed")
    last: list[list[Wire]] = [[] for _ in states]
    for layer in range(layers):
        if layer and dropout:
            value = b.emit(make("nn.Dropout", dropout), value)
        results = []
        for direction in range(directions):
            number = layer * directions + direction
            own = params[count * number : count * (number + 1)]
            if not all(isinstance(param, Param) for param in own):
                raise CannotError("the weights are computed, or are not parameters")
            w_ih, w_hh, *rest = own
            b_ih, b_hh = rest if rest else (None, None)
            hidden = w_hh.ref.size[1]
            gates = applied(b, value, w_ih, b_ih)
            current = [_initial(b, state, number, selected(b, value, time, 0)) for state in states]
            outputs: list[Any] = [None] * length
            for step in reversed(range(length)) if direction else range(length):
                given = selected(b, gates, time, step)
                if kind == "lstm":
                    cell = b.emit(lstm_cell(hidden, w_hh, b_hh), given, *current, shape=current[0].shape)
                    current = [b.emit(make("nn.SelectTable", place), cell) for place in (1, 2)]
                elif kind == "gru":
                    current = [b.emit(gru_cell(hidden, w_hh, b_hh), given, *current, shape=current[0].shape)]
                else:
                    activation = "nn.Tanh" if kind == "rnn_tanh" else "nn.ReLU"
                    cell_layer = rnn_cell(hidden, w_hh, b_hh, activation)
                    current = [b.emit(cell_layer, given, *current, shape=current[0].shape)]
                outputs[step] = current[0]
            wide = [b.reshape(out, _with_time(out.shape, time)) for out in outputs]
            results.append(concatenated(b, wide, time))
            for place, state in enumerate(current):
                last[place].append(state)
        value = results[0] if len(results) == 1 else concatenated(b, results, 2)
    stacked = [concatenated(b, [b.reshape(one, (1, *one.shape)) for one in each], 0) for each in last]
    return [value, *stacked]


def _cells_are_used(b: Builder) -> bool:
    """Return whether somebody takes the last cells of the LSTM that is being built."""
    names = {call.name for call in b.program.calls if call.args[:2] == (Ref(b.call.name), 2)}
    taken = any(mentions(call, name) for call in b.program.calls for name in names)
    return taken or any(item == Ref(name) for item in b.program.outputs for name in names)


def _by_rnn(
    b: Builder, value: Wire, params: Any, biases: bool, layers: int, dropout: float, both_ways: bool, batch_first: bool
) -> list[Any]:
    """Run LSTM layers from states of zeros by nn.SeqLSTM of the package rnn, which takes sequences of any length."""
    value = b.permute(value, (1, 0, 2)) if batch_first else value
    steps, batch, _ = value.shape
    count, directions = (4 if biases else 2), (2 if both_ways else 1)
    last = []
    for layer in range(layers):
        if layer and dropout:
            value = b.emit(make("nn.Dropout", dropout), value)
        results = []
        for direction in range(directions):
            number = layer * directions + direction
            own = [param.ref for param in params[count * number : count * (number + 1)]]
            width, hidden = own[0].size[1], own[1].size[1]
            cells = make("nn.SeqLSTM", width, hidden, **dict(zip(SEQUENCE_FIELDS, own)))
            turn = make("nn.SeqReverseSequence", 1)
            chain = sequential(turn, cells, make("nn.SeqReverseSequence", 1)) if direction else cells
            results.append(b.emit(chain, value, shape=(steps, batch, hidden)))
            end = selected(b, results[-1], 0, 0 if direction else steps - 1)
            last.append(b.reshape(end, (1, batch, hidden)))
        value = results[0] if len(results) == 1 else concatenated(b, results, 2)
    output = b.permute(value, (1, 0, 2)) if batch_first else value
    return [output, concatenated(b, last, 0), Absent("nn.SeqLSTM does not return its last cells")]


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
    plain = all(whole(param) for param in params)
    zeros = all(isinstance(state, Const) and not state.array().any() for state in states)
    count = (4 if has_biases else 2) * num_layers * (2 if bidirectional else 1)
    if kind == "lstm" and "rnn" in b.allow and plain and zeros and len(params) == count and not _cells_are_used(b):
        b.remark("nn.SeqLSTM is of the package rnn (Element-Research's): require 'rnn' before the model is loaded")
        return _by_rnn(b, b.wire(input), params, has_biases, num_layers, chance, bidirectional, batch_first)
    b.remark_unrolled(input.shape[1 if batch_first else 0])
    return _unroll(b, kind, b.wire(input), states, params, has_biases, num_layers, chance, bidirectional, batch_first)


@operation(
    "lstm_cell.default gru_cell.default rnn_tanh_cell.default rnn_relu_cell.default",
    "one nn.gModule of nn.Linear, nn.Sigmoid, nn.Tanh, nn.CMulTable",
)
def cell(b: Builder, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """Run one step."""
    value = b.wire(input)
    if not all(isinstance(param, Param) for param in (w_ih, w_hh)):
        raise CannotError("the weights are computed, or are not parameters")
    gates = applied(b, value, w_ih, b_ih)
    hidden = w_hh.ref.size[1]
    states = [b.wire(state, value) for state in (hx if isinstance(hx, (list, tuple)) else [hx])]
    shape = (value.shape[0], hidden)
    kind = b.call.op.split(".")[1]
    if kind == "lstm_cell":
        made = b.emit(lstm_cell(hidden, w_hh, b_hh), gates, *states, shape=shape)
        return [b.emit(make("nn.SelectTable", place), made) for place in (1, 2)]
    if kind == "gru_cell":
        return b.emit(gru_cell(hidden, w_hh, b_hh), gates, *states, shape=shape)
    activation = "nn.Tanh" if kind == "rnn_tanh_cell" else "nn.ReLU"
    return b.emit(rnn_cell(hidden, w_hh, b_hh, activation), gates, *states, shape=shape)
