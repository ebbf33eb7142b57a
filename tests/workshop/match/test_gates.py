"""The order of gates: permuted if a graph or the user states it, refused otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import TESTFILES

import t7bridge
from t7bridge import Table, Tensor, TorchObject, match
from t7bridge.errors import ModelError
from t7bridge.nn.plan import build_plan
from t7bridge.nn.state_dict import state_dict
from t7bridge.workshop.cells import recognized
from t7bridge.workshop.match import write_match
from t7bridge.workshop.match.sides import gate_orders

CHAR_RNN = TESTFILES / "models" / "char_lstm_nngraph.t7"


def linears() -> tuple[torch.nn.LSTM, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A PyTorch LSTM, its state dict, and the same weights as two linear layers with gates i f o g."""
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(3, 5)
    order = torch.cat([torch.arange(5) + 5 * block for block in (0, 1, 3, 2)])
    own = lstm.state_dict()
    cell = {
        "i2h.weight": own["weight_ih_l0"][order],
        "i2h.bias": own["bias_ih_l0"][order],
        "h2h.weight": own["weight_hh_l0"][order],
        "h2h.bias": own["bias_hh_l0"][order],
    }
    return lstm, dict(own), cell


PAIRS = """
i2h.weight weight_ih_l0
i2h.bias bias_ih_l0
h2h.weight weight_hh_l0
h2h.bias bias_hh_l0
"""


def test_gates_that_the_user_names_are_permuted(tmp_path) -> None:
    """A third word states the order, and the tensors are exactly those of the LSTM."""
    _, own, cell = linears()
    (tmp_path / "map").write_text(PAIRS.replace("_l0\n", "_l0 ifog\n"))
    found = match(cell, own, tmp_path / "map")
    assert found.complete
    assert "gates i f o g become i f g o" in found.report.notes[-1].message
    for key, tensor in found.state_dict().items():
        assert torch.equal(torch.from_numpy(tensor.numpy().copy()), own[key])


def test_gates_of_unknown_order_are_refused(tmp_path) -> None:
    """Nothing is copied if the order is unknown, however the keys were paired; the message explains how to state it."""
    _, own, cell = linears()
    (tmp_path / "map").write_text(PAIRS)
    with pytest.raises(ModelError, match=r"the order of the 4 gates in i2h\.weight is not known") as caught:
        match(cell, own, tmp_path / "map")
    assert "i2h.weight weight_ih_l0 ifog" in str(caught.value)
    with pytest.raises(ModelError, match="is not an order of the gates"):
        match(cell, own, _with(tmp_path, "iffg"))
    assert not match(cell, own).complete


def test_messages_name_an_order_of_as_many_gates() -> None:
    """The order in the hint is one that the mapping takes; none is named where PyTorch has no cell with so many."""
    for gates, words in ((3, "weight_ih_l0 rzn"), (2, "3 or 4 gates")):
        other = {"weight_ih_l0": torch.zeros(gates * 5, 3), "weight_hh_l0": torch.zeros(gates * 5, 5)}
        source = {"i2h.weight": torch.zeros(gates * 5, 3)}
        with pytest.raises(ModelError, match=f"the order of the {gates} gates") as caught:
            match(source, other, {"i2h.weight": "weight_ih_l0"})
        assert words in str(caught.value)
    gru = torch.nn.GRU(3, 5).state_dict()
    match({"i2h.weight": torch.zeros(15, 3)}, gru, [("i2h.weight", "weight_ih_l0", "rzn")])


def _with(folder, word: str):
    path = folder / "other"
    path.write_text(PAIRS.replace("_l0\n", f"_l0 {word}\n"))
    return path


def test_both_sides_of_pytorch_stay_as_they_are() -> None:
    """From one LSTM of PyTorch to another nothing is permuted, and a plain RNN has no gates."""
    _, own, _ = linears()
    renamed = {f"rnn.{key}": value for key, value in own.items()}
    found = match(renamed, own).pairs
    assert len(found) == len(own)
    assert all(pair.gates is None for pair in found)
    rnn = torch.nn.RNN(3, 5).state_dict()
    pairs = {"a.w": "weight_ih_l0", "a.u": "weight_hh_l0", "a.b": "bias_ih_l0", "a.c": "bias_hh_l0"}
    cell = {name: rnn[key] for name, key in pairs.items()}
    found = match(cell, rnn, pairs).pairs
    assert len(found) == len(rnn)
    assert all(pair.gates is None for pair in found)


def test_gates_of_char_rnn_are_read_from_its_graph() -> None:
    """char-rnn's graph shows i f g o; the PyTorch LSTM with the matched weights computes the same."""
    model = t7bridge.load(CHAR_RNN)
    layers = state_dict(model, own_keys=True)
    orders = gate_orders(recognized(build_plan(model, state=layers), layers, only_torch=True))
    assert set(orders.values()) == {"ifog"}
    assert len(orders) == 4  # two layers, each with the matrices of its input and of its state
    # The layers of the first cell come first: that of its input, then that of its state.
    of_input, of_state, *_ = sorted(orders, key=lambda prefix: int(prefix[:-1]))
    state = t7bridge.load_module(CHAR_RNN).state_dict()
    cell = torch.nn.LSTMCell(state[f"{of_input}weight"].shape[1], state[f"{of_state}weight"].shape[1])
    pairs = [(f"{of_input}{name}", f"{name}_ih") for name in ("weight", "bias")]
    pairs += [(f"{of_state}{name}", f"{name}_hh") for name in ("weight", "bias")]
    found = match(CHAR_RNN, cell, pairs)
    cell.load_state_dict(
        {key: torch.from_numpy(tensor.numpy().copy()) for key, tensor in found.state_dict(partial=True).items()}
    )
    torch.manual_seed(1)
    x, h, c = torch.randn(2, cell.input_size), torch.randn(2, cell.hidden_size), torch.randn(2, cell.hidden_size)
    sums = x @ state[f"{of_input}weight"].T + state[f"{of_input}bias"]
    sums += h @ state[f"{of_state}weight"].T + state[f"{of_state}bias"]
    i, f, o, g = sums.chunk(4, 1)
    new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    new_h = o.sigmoid() * new_c.tanh()
    torch.testing.assert_close(cell(x, (h, c)), (new_h, new_c), rtol=1e-5, atol=1e-6)


def test_unmatched_keys_say_why() -> None:
    """Shapes that the other side does not have are distinguished from shapes that belong to others."""
    a = {"x.weight": torch.zeros(3, 4), "y.weight": torch.zeros(7, 7), "y.gamma": torch.zeros(5)}
    b = {"m.weight": torch.zeros(3, 4), "n.weight": torch.zeros(9, 2)}
    words = match(a, b).problems()
    assert "unmatched in the source: y.weight [7, 7]: no tensor of the target has this shape" in words
    assert "unmatched in the target: n.weight [9, 2]: no tensor of the source has this shape" in words


def test_cells_of_a_graph_are_the_layers_of_an_lstm(tmp_path) -> None:
    """char-rnn's cells fill a user's own nn.LSTM, which computes the same; the way back returns the bytes."""
    mine = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(9, 6), "rnn": torch.nn.LSTM(6, 6, 2), "out": torch.nn.Linear(6, 9)}
    )
    found = match(CHAR_RNN, mine)
    assert {pair.target: pair.source for pair in found.pairs}["rnn.weight_hh_l1"] == "lstm2.weight_hh"
    mine.load_state_dict({key: torch.from_numpy(tensor.numpy().copy()) for key, tensor in found.state_dict().items()})
    live, tokens = t7bridge.load_module(CHAR_RNN), torch.randint(1, 10, (5, 3))
    state = [torch.zeros(3, 6)] * 4
    outputs = []
    for step in tokens:
        *state, output = live([step, *state])
        outputs.append(output)
    sums = mine["out"](mine["rnn"](mine["embed"](tokens - 1))[0])
    torch.testing.assert_close(sums.log_softmax(-1), torch.stack(outputs))
    back = match(mine, CHAR_RNN)
    write_match(back, tmp_path / "back.t7")
    assert (tmp_path / "back.t7").read_bytes() == CHAR_RNN.read_bytes()


def test_cells_nested_too_deep_stay_layers():
    """A model that is nested deeper than Python recurses is matched by its layers."""
    weight = Tensor.from_numpy(np.zeros((3, 3)))
    model = TorchObject("nn.Linear", 1, Table.of({"weight": weight}))
    model = TorchObject("nn.Sequencer", 1, Table.of({"modules": Table.from_list([model])}))
    for _ in range(1500):
        model = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([model])}))
    found = match(model, {"weight_ih_l0": weight, "weight_hh_l0": weight})
    assert len(found.unmatched_target) == 2
