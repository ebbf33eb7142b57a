"""Recurrent cells, highway layers and attention of published programs, against Lua Torch over 50 steps."""

from __future__ import annotations

import io
from collections import Counter

import pytest
import torch
from fuzz_cells import check
from fuzz_networks import records, written
from helpers import TESTFILES
from helpers import written as as_file
from recorded_networks import records_by_name
from runtime_helpers import as_torch, copied, difference, gradient_difference, step_differences
from source_helpers import generate

import t7bridge
from t7bridge import T7Reader, Table, TorchObject, register_module
from t7bridge.layers import Traits, flows, modules, unregister_layer
from t7bridge.limits import DEFAULT_LIMITS
from t7bridge.nn.mapping import LAYERS, GraphNode, GraphSpec, ModuleSpec
from t7bridge.nn.plan import build_plan
from t7bridge.nn.state_dict import state_dict
from t7bridge.torchmodules import live_module
from t7bridge.workshop.cells import cells_in

CELLS = records_by_name("cells.t7") | records_by_name("highway_attention.t7")
DOUBLE = {name for name in CELLS if name.endswith("_double")}


def exactness(name: str) -> float:
    """The largest difference allowed between the outputs of a record and Lua's."""
    return 1e-9 if name in DOUBLE else 1e-5


@pytest.mark.parametrize("name", CELLS)
def test_steps(name):
    """With the state carried, every model computes what Lua did."""
    module = live_module(CELLS[name]["model"], "root").eval()
    assert not step_differences(module, CELLS[name], atol=exactness(name))


@pytest.mark.parametrize("lift", [False, True], ids=["plain", "recognized"])
@pytest.mark.parametrize("name", [name for name, record in CELLS.items() if "gradInput" in record])
def test_training(name, lift):
    """Models without dropout compute the same output in training, and Lua's gradients of their inputs."""
    record = CELLS[name]
    module = live_module(record["model"], "root", lift=lift).train()
    wanted = {key: as_torch(record[key]) for key in ("gradOutput", "gradInput")}
    inputs = as_torch(record["inputs"])
    assert not difference(module(copied(inputs)), as_torch(record["trainOutput"]), 0, exactness(name))
    assert not gradient_difference(module, inputs, {**wanted, "gradParameters": []})


RECOGNIZED = {
    "LSTMCell": {
        **dict.fromkeys(("charrnn_lstm_1", "charrnn_lstm_narrow", "lstm_double", "lstm_no_bias", "lstm_separate"), 1),
        **dict.fromkeys(("opennmt_lstm_1", "opennmt_decoder_fed"), 1),
        **dict.fromkeys(("neuraltalk_nested", "unrolled_lstm", "unrolled_flat_2_double"), 1),
        **dict.fromkeys(("charrnn_lstm_2", "opennmt_lstm_residual", "zaremba"), 2),
    },
    "PeepholeLSTMCell": {"lstm_peephole": 1},
    "GRUCell": {"gru_after": 1, "opennmt_gru_1": 1},
    "ResetGRUCell": {"charrnn_gru_1": 1, "gru_joined": 1},
    "RNNCell": {"charrnn_rnn_1": 1, "rnn_relu": 1, "fed_back_rnn": 1},
    "Highway": {"highway": 2, "highway_tanh_double": 1, "gated_network": 3, "gated_network_double": 3},
}
"""Class of a cell → names of the models, and how many different cells of it each has."""
WANTED = [(name, kind, count) for kind, counts in RECOGNIZED.items() for name, count in counts.items()]


UNKNOWN_WIDTHS = ("lstm_joined", "lstm_joined_state_first_double", "rnn_joined_double")
"""One matrix for two inputs of the graph: how many columns each has is not in the file."""


def cells(module: torch.nn.Module) -> list[str]:
    """The cells of a module, by class."""
    return [name for each in module.modules() if (name := type(each).__name__).endswith(("Cell", "Highway"))]


@pytest.mark.parametrize(("name", "kind", "count"), WANTED)
def test_recognized_cells(name, kind, count):
    """Cells become modules of torch.nn or classes of their own, and compute what Lua did."""
    module = live_module(CELLS[name]["model"], "root", lift=True)
    assert cells(module) == [kind] * count
    used = next(each for each in module.modules() if type(each).__name__ == kind)
    assert isinstance(used, torch.nn.RNNCellBase) == kind.endswith("Cell")
    assert not step_differences(module, CELLS[name], atol=exactness(name))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "count"), WANTED)
def test_pages_of_recognized_cells(name, kind, count, tmp_path):
    """The page has the same classes and computes the same; its weights return to the original's bytes."""
    module = written(CELLS[name], tmp_path)()
    used = [each for each in module.modules() if type(each).__name__ == kind]
    assert cells(module) == [kind] * len(used)
    assert len({id(next(each.parameters())) for each in used}) == count
    assert hasattr(torch.nn, kind) == (type(used[0]).__module__ == "torch.nn.modules.rnn")
    assert not step_differences(module, CELLS[name], atol=exactness(name))
    t7bridge.convert(tmp_path / "model.pt", tmp_path / "back.t7", template=tmp_path / "model.t7")
    assert (tmp_path / "back.t7").read_bytes() == (tmp_path / "model.t7").read_bytes()


def test_steps_are_noted_once():
    """Of an unrolled graph, one note names the cell and counts the steps."""
    notes = [note for note in generate(CELLS["fed_back_rnn"]["model"]).notes if note.code == "lift"]
    assert [(note.message, note.count) for note in notes] == [("recognized: rnn (RNNCell) (and at 2 more places)", 3)]


def test_inputs_have_names(tmp_path):
    """Lists of states are unpacked under the names of their cells; parts of a sum that become gates are gates."""
    written(CELLS["zaremba"], tmp_path)
    page = (tmp_path / "model.py").read_text()
    assert "x, state = inputs" in page
    assert "c1, h1, c2, h2 = state" in page
    written(CELLS["opennmt_lstm_residual"], tmp_path)
    page = (tmp_path / "model.py").read_text()
    assert "c1, h1, c2, h2, x = inputs" in page
    assert "c1, h1 = self.graph1([c1, h1, x])" in page
    written(CELLS["zaremba"], tmp_path)
    t7bridge.write_module(tmp_path / "model.t7", tmp_path, lift=False, force=True)
    page = (tmp_path / "model.py").read_text()
    assert "x1, x2 = inputs" in page
    assert "gates = " in page


@pytest.mark.parametrize("name", UNKNOWN_WIDTHS)
def test_columns_of_unknown_width_are_not_guessed(name):
    """The layers are kept where a wrong guess would make a module that refuses its inputs; a note says why."""
    assert not cells(live_module(CELLS[name]["model"], "root", lift=True))
    notes = generate(CELLS[name]["model"]).notes
    assert any("the sizes of the values that are joined are not known" in note.message for note in notes)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), list(zip(UNKNOWN_WIDTHS, ("LSTMCell", "LSTMCell", "RNNCell"))))
def test_columns_of_recorded_width(name, kind):
    """nngraph keeps the last input of a graph that was not cleared: its widths are those of the columns."""
    record = next(each for each in records(TESTFILES / "cells.t7") if each["name"] == name.encode())
    record["model"]["innode"]["data"]["input"] = record["inputs"]
    module = live_module(record["model"], "root", lift=True)
    assert cells(module) == [kind]
    assert not step_differences(module, record, atol=exactness(name))


def test_tied_layers_of_other_functions_stay():
    """Two highway layers of the same weights, one with ReLU and one with tanh, are not one module."""
    module = live_module(CELLS["gated_tied_double"]["model"], "root", lift=True)
    assert not cells(module)
    assert not step_differences(module, CELLS["gated_tied_double"], atol=1e-9)


@pytest.mark.parametrize("name", [name for name in CELLS if name.startswith("atten")])
def test_attention_has_names(name, tmp_path):
    """The page names scores, their softmax and the sum that it weights, and computes what Lua did; it goes back."""
    module = written(CELLS[name], tmp_path)()
    text = (tmp_path / "model.py").read_text()
    assert all(f"        {value} = " in text for value in ("scores", "attention", "context"))
    assert ("class Softmax" in text) == (name not in ("attention_dot", "attend_matrix_double"))
    assert not step_differences(module, CELLS[name], atol=exactness(name))
    wanted = {key: as_torch(CELLS[name][key]) for key in ("gradOutput", "gradInput")}
    assert not gradient_difference(module, as_torch(CELLS[name]["inputs"]), {**wanted, "gradParameters": []})
    t7bridge.convert(tmp_path / "model.pt", tmp_path / "back.t7", template=tmp_path / "model.t7")
    assert (tmp_path / "back.t7").read_bytes() == (tmp_path / "model.t7").read_bytes()


FOUND = records_by_name("found_cells.t7")


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND)
def test_former_differences(name, tmp_path):
    """Cells that were once recognized wrongly are computed right, live and as pages, or stay as they are."""
    assert not list(check(FOUND[name], tmp_path, True, Counter()))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gru_one_gate_with_bias", "GRU stays as it is: only some of its layers have a bias"),
        ("wrong_gru_after_reset_of_x", "GRU stays as it is: its reset gate does not multiply"),
        ("in_place_h_outside", "GRU stays as it is: a layer changes one of its values in place"),
    ],
)
def test_reasons(name, reason):
    """A note says what stands against a cell, by the name of what it is most like."""
    assert any(note.message.startswith(reason) for note in generate(FOUND[name]["model"]).notes)


@pytest.mark.parametrize("name", ["gru_bias_of_input", "gru_one_gate_with_bias"])
def test_every_trained_bias_goes_back(name, tmp_path):
    """A cell has no element that the Lua model has no place for: with only some biases its layers stay."""
    written(FOUND[name], tmp_path)
    state = torch.load(tmp_path / "model.pt")
    assert all(key.endswith((".weight", ".bias")) for key in state)
    torch.save({key: value + 1 for key, value in state.items()}, tmp_path / "trained.pt")
    t7bridge.convert(tmp_path / "trained.pt", tmp_path / "back.t7", template=tmp_path / "model.t7")
    t7bridge.write_module(tmp_path / "back.t7", tmp_path / "back")
    back = torch.load(tmp_path / "back" / "model.pt")
    assert all(torch.equal(back[key], value + 1) for key, value in state.items())


@pytest.mark.parametrize("is_input_changed", [False, True])
def test_inputs_that_a_container_computes(is_input_changed):
    """A cell stays if a graph outside changes its input in place, which a container computes and also returns."""
    model = CELLS["gru_after"]["model"]
    state = state_dict(model, "root")
    inner = build_plan(model, "root", 1, DEFAULT_LIMITS, state).root
    cell_output, *_ = inner.graph.outputs
    inner.graph = GraphSpec(inner.graph.nodes, outputs=(cell_output, (0, (1,))), returns_list=True)
    layers = {name: ModuleSpec("torch.nn.Linear") for name in ("0", "1")}
    both = ModuleSpec(f"{LAYERS}containers.ParallelTable", children=layers)
    container = ModuleSpec("torch.nn.Sequential", children={"0": both, "1": inner})
    change = ModuleSpec("torch.nn.ReLU", kwargs={"inplace": True})
    element = 1 if is_input_changed else 0
    nodes = (GraphNode("container", ((0, ()),)), GraphNode("change", ((1, (element,)),)))
    graph = GraphSpec(nodes, outputs=((2, ()),), returns_list=False)
    children = {"container": container, "change": change}
    root = ModuleSpec(f"{LAYERS}containers.Graph", children=children, graph=graph)
    state = {f"container.1.{key}": tensor for key, tensor in state.items()}
    assert len(cells_in(root, state)) == (0 if is_input_changed else 1)


class Same(torch.nn.Sequential):
    """A container of a user that does nothing besides."""


@pytest.mark.parametrize("transparent", [True, False])
def test_cells_through_own_containers(transparent):
    """A container is followed if its entry says that it does nothing besides, whoever wrote it."""
    traits = Traits(flow=flows.sequence, transparent=transparent)
    register_module("my.Same", children=modules, traits=traits)(Same)
    try:
        model = T7Reader(io.BytesIO(as_file(CELLS["lstm_separate"]["model"]))).read_object()
        wrapped = {}
        for layer in model["modules"].values():
            if layer.class_name == "nn.Linear":
                inside = Table.from_list([layer])
                wrapped[id(layer)] = TorchObject("my.Same", 1, Table.of({"modules": inside}))
        for number, layer in enumerate(model["modules"].values(), 1):
            model["modules"][float(number)] = wrapped.get(id(layer), layer)
        for node in model["forwardnodes"].values():
            layer = node["data"].get("module")
            if id(layer) in wrapped:
                node["data"]["module"] = wrapped[id(layer)]
        recognized = live_module(model, "root", lift=True)
        assert cells(recognized) == ["LSTMCell"] * transparent
        assert not step_differences(recognized.eval(), CELLS["lstm_separate"], atol=exactness("lstm_separate"))
    finally:
        unregister_layer("my.Same")
