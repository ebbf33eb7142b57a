"""Recurrent layers (LSTM, GRU, RNN), unrolled: one cell per step, all with the same weights; or nn.SeqLSTM.
A function builds the Lua layers of one call of a traced program, by the builder `b`, where `b.shape` is the shape of
the call's result in PyTorch. A value is a `Wire`, which is computed when the model runs, a `Const`, or a tensor of the
state dict, `Stored`. A cell is one direction of one layer, with 4 parameters, or 2 without biases; its states are h,
and of an LSTM h and c.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..build import Builder, Const, Learned, Missing, Stored, Wire, check_learned, is_parameter, operation
from ..layers import LuaLayer, LuaNode, graph_of, make
from ..sizes import CannotError
from ..trace import CallRef, tree_leaves
from .elementwise import ACTIVE_DROPOUT
from .linear import apply_linear, linear_layer
from .shape import stack as join_steps

SEQUENCE_FIELDS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
"""Names of the parameters of an nn.SeqLSTM in the state dict."""


def cell_of(kind: str, weight: Stored, bias: Stored | None) -> LuaLayer:
    """Return the graph of one step of a recurrent layer, behind the product with its input.

    It takes {gates of the input, h}, and for an LSTM {gates of the input, h, c}; it returns the next h, or {h, c}.
    A GRU resets after the product, as PyTorch's does.

    Args:
        kind: `lstm`, `gru`, `rnn_tanh` or `rnn_relu`.
        weight: of the product with h.
        bias: likewise; `None` for none.
    """
    hidden = weight.ref.size[1]
    gates = LuaNode(None, index=0)
    h = LuaNode(None, index=1)
    gates_of_h = h >> linear_layer(weight, bias)
    if kind == "lstm":
        return _lstm_cell(gates, h, gates_of_h, hidden)
    if kind == "gru":
        return _gru_cell(gates, h, gates_of_h, hidden)
    activation = make("nn.Tanh" if kind == "rnn_tanh" else "nn.ReLU")
    return graph_of([gates, h], (gates + gates_of_h) >> activation)


def _gate(value: LuaNode, number: int, hidden: int, activation: str = "") -> LuaNode:
    """Return one of the gates that are side by side in a value.

    Args:
        value: (batch, gates x hidden).
        number: of the gate, 0-based.
        hidden: the width of each gate.
        activation: the class of a layer behind it; empty for none.
    """
    layer = make("nn.Narrow", 2, number * hidden + 1, hidden)
    if activation:
        layer = layer >> make(activation)
    return value >> layer


def _lstm_cell(gates: LuaNode, h: LuaNode, gates_of_h: LuaNode, hidden: int) -> LuaLayer:
    """Return the graph of a step of an LSTM: the next h and c of the gates of the input, h and c.

    Args:
        gates: the node of the gates of the input: i, f, g and o side by side, as in PyTorch.
        h: the node of h.
        gates_of_h: the product with h, which is added to the gates.
        hidden: the width of h.
    """
    c = LuaNode(None, index=2)
    sums = gates + gates_of_h
    i = _gate(sums, 0, hidden, "nn.Sigmoid")
    f = _gate(sums, 1, hidden, "nn.Sigmoid")
    g = _gate(sums, 2, hidden, "nn.Tanh")
    o = _gate(sums, 3, hidden, "nn.Sigmoid")
    next_c = f * c + i * g
    next_h = o * (next_c >> make("nn.Tanh"))
    return graph_of([gates, h, c], next_h, next_c)


def _gru_cell(gates: LuaNode, h: LuaNode, gates_of_h: LuaNode, hidden: int) -> LuaLayer:
    """Return the graph of a step of a GRU: the next h of the gates of the input and h.

    Args:
        gates: the node of the gates of the input: r, z and n side by side, as in PyTorch.
        h: the node of h.
        gates_of_h: the product with h, which is added to the gates: for n, after r has multiplied it.
        hidden: the width of h.
    """
    r = (_gate(gates, 0, hidden) + _gate(gates_of_h, 0, hidden)) >> make("nn.Sigmoid")
    z = (_gate(gates, 1, hidden) + _gate(gates_of_h, 1, hidden)) >> make("nn.Sigmoid")
    n = (_gate(gates, 2, hidden) + r * _gate(gates_of_h, 2, hidden)) >> make("nn.Tanh")
    next_h = n + z * (h - n)  # (1 - z) n + z h
    return graph_of([gates, h], next_h)


def _step(b: Builder, kind: str, w_hh: Stored, b_hh: Stored | None, gates: Wire, states: list[Wire]) -> Any:
    """Run a cell once and return its next states, the output first.

    Args:
        b: the builder.
        kind: see `cell_of`.
        w_hh: the weight of the product with the output of the last step.
        b_hh: its bias; `None` for none.
        gates: the product with the input of the step.
        states: those after the last step: h, and for an LSTM c.
    """
    hidden = w_hh.ref.size[1]
    value = b.emit(cell_of(kind, w_hh, b_hh), gates, *states, shape=(gates.shape[0], hidden))
    if kind != "lstm":
        return [value]
    # A table of h and c, both of this shape.
    return [value >> make("nn.SelectTable", 1), value >> make("nn.SelectTable", 2)]


def _initial(b: Builder, state: Any, number: int, like: Wire) -> Any:
    """Return the first state of a cell, (batch, hidden).

    Args:
        b: the builder.
        state: of all cells, (cells, batch, hidden).
        number: of the cell, 0-based.
        like: the input of a step, (batch, features).
    """
    # PyTorch makes the zeros for the batch of the example; these have the batch of the input, which may be open.
    if _is_zero(state):
        zero = state.array().reshape(-1)[:1]
        return b.wire(b.constant(zero, (like.shape[0], state.shape[-1])), like=like)
    return b.wire(b.select(state, 0, number), like=like)


def _is_zero(state: Any) -> bool:
    """Return whether a first state is zeros, whatever the inputs are."""
    return isinstance(state, Const) and not state.array().any()


def _run_unrolled(
    b: Builder, time: int, states: list[Any], value: Wire, cell: list[Any], number: int, backward: bool
) -> tuple[Wire, list[Wire]]:
    """Run a cell over a sequence, step by step; return its outputs, joined in the order of the input, and last states.

    Args:
        b: the builder.
        time: the dimension of the steps.
        states: the first states of all cells, (cells, batch, hidden): h, and for an LSTM c.
        value: the sequence.
        cell: the parameters of the cell.
        number: of the cell among those of all layers and directions, 0-based.
        backward: whether it runs from the last step to the first.
    """
    for param in cell:
        check_learned(param, "weight")
    w_ih, w_hh, b_ih, b_hh = cell if len(cell) == 4 else (*cell, None, None)  # two parameters: without biases
    gates = apply_linear(b, value, w_ih, b_ih)  # the products of all steps at once
    current = [_initial(b, state, number, b.select(value, time, 0)) for state in states]
    steps = range(value.shape[time])
    outputs = []
    kind = b.kind  # the operations have the names of the cells
    for step in reversed(steps) if backward else steps:
        current = _step(b, kind, w_hh, b_hh, b.select(gates, time, step), current)
        output, *_ = current
        outputs.append(output)
    if backward:
        outputs.reverse()
    return join_steps(b, outputs, time), current


def _run_seq_lstm(b: Builder, value: Wire, cell: list[Any], number: int, backward: bool) -> tuple[Wire, list[Wire]]:
    """Run an LSTM from zero states by nn.SeqLSTM of the package rnn, which accepts sequences of any length.

    Args:
        b: the builder.
        value: the sequence, with time as the first dimension.
        cell: the parameters of the cell.
        number: not needed, as the first states of all cells are zeros; `_run_layers` passes it.
        backward: whether it runs from the last step to the first.

    Returns:
        The outputs, and in a list the last h; c is missing, as the layer does not return it.
    """
    refs = [param.ref for param in cell]
    w_ih, w_hh, *_ = refs
    width = w_ih.size[1]
    hidden = w_hh.size[1]
    weights = dict(zip(SEQUENCE_FIELDS, refs))  # without biases, only the first two
    layer = make("nn.SeqLSTM", width, hidden, **weights)
    if backward:  # the outputs are in the order of the input again
        layer = make("nn.SeqReverseSequence", 1) >> layer >> make("nn.SeqReverseSequence", 1)
    outputs = b.emit(layer, value, shape=(*value.shape[:2], hidden))
    last = 0 if backward else value.shape[0] - 1
    return outputs, [b.select(outputs, 0, last)]


def _run_layers(
    b: Builder, value: Wire, cells: list[Any], directions: int, dropout: float, run_cell: Callable[..., Any]
) -> list[Any]:
    """Run layers over time; return the outputs of the last, and all last states.

    Args:
        b: the builder.
        value: the input.
        cells: the parameters of each cell, in PyTorch's order: layer by layer, and in each the forward one first.
        directions: 1, or 2 if a second cell of each layer runs from the last step to the first.
        dropout: probability between layers.
        run_cell: `_run_unrolled` or `_run_seq_lstm`, called with the sequence, the parameters of a cell, the number of
            the cell and whether it runs backwards; returns its outputs and last states.
    """
    last_states = []
    for first in range(0, len(cells), directions):  # the number of the first cell of each layer
        if first and dropout:
            value = value >> make("nn.Dropout", dropout)
        outputs = []
        for number in range(first, first + directions):
            is_backward = number > first
            output, states = run_cell(value, cells[number], number, is_backward)
            outputs.append(output)
            last_states.append([b.reshape(state, (1, *state.shape)) for state in states])
        value = b.concatenate(outputs, 2)  # along the features
    # All last h, then all last c.
    states_of_cells = [b.concatenate(list(states), 0) for states in zip(*last_states)]
    return [value, *states_of_cells]


def _fits_rnn(b: Builder, states: list[Any], params: list[Any]) -> bool:
    """Return whether nn.SeqLSTM computes the layers: an LSTM of parameters that begins with zeros.

    It does not return its last c, which must not be used.
    """
    begins_with_zeros = all(_is_zero(state) for state in states)
    are_contiguous = is_parameter(*params) and all(param.is_contiguous for param in params)
    return b.kind == "lstm" and begins_with_zeros and are_contiguous and not _cells_are_used(b)


def _cells_are_used(b: Builder) -> bool:
    """Return whether the program uses the last cells, c, of the LSTM of the current call."""
    calls = b.program.calls
    # They are item 2 of the result, which the program takes by the call `operator.getitem(lstm, 2)`. No other call has
    # a list of results as an argument.
    item_of_cells = [CallRef(b.call.name), 2]
    names = {call.name for call in calls if list(call.args.values())[:2] == item_of_cells}
    arguments = [*tree_leaves([call.args for call in calls]), *b.program.outputs]
    return any(isinstance(item, CallRef) and item.name in names for item in arguments)


@operation(
    "lstm.input gru.input rnn_tanh.input rnn_relu.input",
    lua="nn.gModule cells of nn.Linear, nn.Sigmoid, nn.Tanh, nn.CMulTable; one a step; gates i, f, g, o or r, z, n",
    note="Unrolled over the steps of the example input: other lengths need another export. `--allow rnn`: nn.SeqLSTM.",
)
def recurrent(
    b: Builder,
    input: Wire,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Run LSTM, GRU or plain recurrent layers over time.

    Returns:
        In a list the outputs of the last layer, the last h of all cells, and for an LSTM their last c.

    Args:
        b: the builder.
        input: the sequences: (steps, batch, features), or (batch, steps, features) if `batch_first`.
        hx: the first states of all cells, (cells, batch, hidden); of an LSTM h and c in a list.
        params: the parameters of all cells in one list: of each w_ih and w_hh, and b_ih and b_hh if `has_biases`.
        has_biases: see `params`.
        num_layers: the number of layers, of one cell each, or of two if `bidirectional`.
        dropout: the probability between layers, in training.
        train: whether it acts in evaluation, too, for which PyTorch traces.
        bidirectional: whether a second cell of each layer runs from the last step to the first.
        batch_first: see `input`.
    """
    directions = 2 if bidirectional else 1
    cells = _params_of_cells(params, has_biases, num_layers * directions)
    if len(input.shape) != 3:
        raise CannotError("the input is not a batch")
    states = hx if b.kind == "lstm" else [hx]  # h and c, or h
    if train and dropout:
        b.remark(ACTIVE_DROPOUT)
    if "rnn" in b.allow and _fits_rnn(b, states, params):
        return _by_layers_of_rnn(b, input, cells, directions, dropout, batch_first)
    time = 1 if batch_first else 0
    _remark_length(b, int(input.shape[time]))
    return _run_layers(b, input, cells, directions, dropout, partial(_run_unrolled, b, time, states))


def _params_of_cells(params: list[Any], has_biases: bool, count: int) -> list[list[Any]]:
    """Return the parameters of all cells as a list for each.

    Args:
        params: the parameters, one cell after the other.
        has_biases: whether each cell has two of them.
        count: the number of cells.

    Raises:
        CannotError: they have projections.
    """
    count_in_cell = 4 if has_biases else 2
    has_projections = len(params) != count_in_cell * count  # each is a parameter more
    if has_projections:
        raise CannotError("projections are not composed")
    return [params[start : start + count_in_cell] for start in range(0, len(params), count_in_cell)]


def _remark_length(b: Builder, length: int) -> None:
    """Tell the user that layers are unrolled, for sequences of as many steps as the example."""
    steps = "one step" if length == 1 else f"{length} steps"
    b.remark(f"recurrent layers are unrolled for {steps}: the model accepts sequences of that length only")


def _by_layers_of_rnn(
    b: Builder, input: Wire, cells: list[Any], directions: int, dropout: float, batch_first: bool
) -> Any:
    """Run LSTM layers over time by nn.SeqLSTM, which takes sequences of any length.

    Args:
        b: the builder.
        input: as for `recurrent`.
        cells: the parameters of each cell.
        directions: the number of cells of a layer.
        dropout: as for `recurrent`.
        batch_first: likewise.
    """
    b.remark("nn.SeqLSTM is of the package rnn (Element-Research's): require 'rnn' before the model is loaded")
    time_first = (1, 0, 2) if batch_first else (0, 1, 2)  # its own inverse
    sequence = b.permute(input, time_first)
    output, last_h = _run_layers(b, sequence, cells, directions, dropout, partial(_run_seq_lstm, b))
    return [b.permute(output, time_first), last_h, Missing("nn.SeqLSTM does not return its last cells")]


@operation(
    "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    lua="one nn.gModule of nn.Linear, nn.Sigmoid, nn.Tanh, nn.CMulTable",
)
def cell(
    b: Builder, input: Wire, hx: Any, w_ih: Learned, w_hh: Learned, b_ih: Learned | None, b_hh: Learned | None
) -> Any:
    """Run one step.

    It returns the next state of the cell: h, or h and c of an LSTM in a list.

    Args:
        b: the builder.
        input: the input of the step, (batch, features).
        hx: the state h before it, (batch, hidden); of an LSTM h and c in a list.
        w_ih: the weight of the input.
        w_hh: that of h.
        b_ih: the bias that is added to the product with the input; `None` for none.
        b_hh: likewise, to that with h.
    """
    kind = b.kind.removesuffix("_cell")
    states = hx if kind == "lstm" else [hx]  # h and c, or h
    wires = [b.wire(state, like=input) for state in states]
    gates = apply_linear(b, input, w_ih, b_ih)
    next_states = _step(b, kind, w_hh, b_hh, gates, wires)
    if kind == "lstm":
        return next_states
    (next_h,) = next_states
    return next_h
