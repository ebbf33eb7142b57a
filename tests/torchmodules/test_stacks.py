"""Layers over whole sequences as layers of torch.nn, and models that remember their last one, with the state outside:
against Lua Torch.
"""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from bounds import bounded
from forked import run_python
from helpers import TESTFILES, written
from recorded_networks import records_by_name
from runtime_helpers import as_torch, difference, step_differences
from source_helpers import run_source

import t7bridge
from t7bridge import T7Reader, Table, Tensor, TorchObject, state_dict
from t7bridge.nn import ANY, TENSOR, Kinds, ModuleSpec, build_plan, listed, recognized, specs_in, traits_of
from t7bridge.torchmodules import live_module

MODELS = {name: record for name, record in records_by_name("cells.t7").items() if "stateful" in name}
SEQUENCES = records_by_name("sequences.t7")
LAYERS = {"torch_rnn_stateful_lstm": torch.nn.LSTM, "torch_rnn_stateful_rnn": torch.nn.RNN}


@pytest.mark.parametrize("name", SEQUENCES)
def test_layers(name, tmp_path):
    """Sequencers and rows of layers are layers of torch.nn where they compute the same, and stay else."""
    record = SEQUENCES[name]
    live = live_module(record["model"], "root", lift=True)
    _, page = run_source(record["model"], tmp_path)
    for model in (live, page):
        output = model.eval()(as_torch(record["input"]))
        output = output[0] if isinstance(output, tuple) else output
        assert not difference(output, as_torch(record["output"]), 0, 1e-12)
    levels = 1 if name == "a list" else record["layers"]  # the file says 0: a list stood against it once
    # Where the input may be a tensor too, layers return only their outputs.
    kind = "OutputsLSTM" if name in ("a list of cells", "a list and its last") else "LSTM"
    layers = [each for each in page.modules() if isinstance(each, torch.nn.LSTM) and type(each).__name__ == kind]
    assert sum(each.num_layers for each in layers) == levels


@pytest.mark.parametrize(("name", "count"), [("masked outputs", 1), ("a list of masked outputs", 2)])
def test_masked_outputs(name, count, tmp_path):
    """Layers in a mask return only their outputs, but have the keys of torch.nn's."""
    _, page = run_source(SEQUENCES[name]["model"], tmp_path)
    layers = [each for each in page.modules() if isinstance(each, torch.nn.LSTM)]
    assert [type(each).__name__ for each in layers] == ["OutputsLSTM"] * count


@pytest.mark.parametrize("name", SEQUENCES)
def test_layers_back(name, tmp_path):
    """The weights of the page go back to Lua's order of gates bit for bit."""
    path, back = tmp_path / "a.t7", tmp_path / "b.t7"
    path.write_bytes(written(SEQUENCES[name]["model"]))
    t7bridge.write_module(path, tmp_path / "m")
    t7bridge.convert(tmp_path / "m/model.pt", back, template=path)
    assert back.read_bytes() == path.read_bytes()


class Carried(torch.nn.Module):
    """Passes the state on from call to call, as Lua's model does."""

    def __init__(self, model):
        super().__init__()
        self.model, self.state = model, None

    def forward(self, tokens):
        """Return the scores."""
        scores, self.state = self.model(tokens, self.state)
        return scores


@pytest.mark.parametrize("name", LAYERS)
def test_state_outside(name, tmp_path):
    """A live model and its page take the state and return it, in one layer of torch.nn for all levels."""
    live = live_module(MODELS[name]["model"], "root", lift=True)
    _, page = run_source(MODELS[name]["model"], tmp_path)
    for model in (live, page):
        assert not step_differences(Carried(model.eval()), MODELS[name], atol=1e-5)
        layers = [each for each in model.modules() if isinstance(each, torch.nn.RNNBase)]
        assert [type(each).__mro__[0 if model is page else 2] for each in layers] == [LAYERS[name]]


@pytest.mark.parametrize(("first", "index_base"), [("nn.LookupTable", 0), ("nn.OneHot", 1), ("nn.OneHot", 0)])
def test_state_outside_whatever_takes_the_tokens(first, index_base):
    """The first layer may count tokens from 0, or make rows of ones: the outputs are those with the state inside."""
    model = T7Reader(io.BytesIO(written(MODELS["torch_rnn_stateful_lstm"]["model"]))).read_object()
    layers = model["net"]["modules"]
    count, features = layers[1]["weight"].shape
    if first == "nn.OneHot":
        layers[1] = TorchObject(first, 1, Table.of({"outputSize": float(features)}))
        count = features
    inside = live_module(model, "root", index_base).eval()
    lifted = live_module(model, "root", index_base, lift=True).eval()
    assert any(type(each).__name__ == "StatefulLSTM" for each in lifted.modules())
    outside = Carried(lifted)
    random = torch.Generator().manual_seed(20261128)
    for _ in range(3):
        tokens = torch.randint(index_base, index_base + count, (2, 5), generator=random)
        assert torch.equal(inside(tokens), outside(tokens))


def test_layers_between(tmp_path):
    """Layers that treat all steps together stay where they are, and the state inside."""
    name = "torch_rnn_stateful_lstm_normalized"
    made, page = run_source(MODELS[name]["model"], tmp_path)
    assert any("the state stays inside of the model" in note.message for note in made.notes)
    assert not step_differences(page, MODELS[name], atol=1e-5)


REASONS = {
    "peepholes": "its gates see the cell",
    "zeros": "it remembers a state, or skips steps",
    "another cell": "it has nn.GRU",
    "normalized": "it has nn.BatchNormalization",
    "shared": "a module in it has several places",
    "tied": "another layer has the same weights",
}


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name):
    """A note says what stands against a sequencer as a layer of torch.nn."""
    notes = recognized(*planned(SEQUENCES[name]["model"])).notes
    assert any(f"stays as it is: {REASONS[name]}" in note.message for note in notes)


@pytest.mark.parametrize("name", ["mask.linearrnn", "seq.equal.mask"])
def test_masked(name):
    """So it does for layers that skip steps of zeros."""
    cases = T7Reader(TESTFILES / "rnn2_options.t7").read_object()
    notes = recognized(*planned(cases[name]["module"])).notes
    assert any("stays as it is: it skips steps of zeros" in note.message for note in notes)


def test_kinds():
    """Layers over lists of steps return what they take: a list, a tensor, or what is not known."""
    root = recognized(*planned(SEQUENCES["a list of masked outputs"]["model"])).plan.root
    for kind in (ANY, TENSOR, listed([TENSOR] * 3)):
        assert Kinds(traits_of)(root, kind).name == kind.name


def planned(model):
    """Return the plan and the state dict of a model."""
    state = state_dict(model, own_keys=True)
    return build_plan(model, "root", state=state), state


def test_types_and_origins():
    """The bias that Lua lacks has the type of its layer, not of a layer before it; what only moves keeps its origin."""
    model = T7Reader(io.BytesIO(written(SEQUENCES["words"]["model"]))).read_object()
    table = model["modules"][1]
    table["weight"] = Tensor.from_numpy(table["weight"].numpy().astype("f4"))
    plan, state = planned(model)

    made = recognized(plan, state)

    types = {key: tensor.element.name for key, tensor in made.state.items()}
    assert types["0.weight"] == "float32"
    assert {kind for key, kind in types.items() if key != "0.weight"} == {"float64"}
    assert "1.bias_hh_l0" in types
    assert made.state.origins["3.weight"].tensor is model["modules"][4]["weight"]
    assert set(made.plan.parameters) == set(types)


def test_scalars_move():
    """A batch counter behind layers that become one moves with its layer."""
    size = SEQUENCES["sequencers in a row"]["output"].shape[-1]
    vectors = {name: Tensor.from_numpy(np.ones(size)) for name in ("weight", "bias", "running_mean", "running_var")}
    fields = {**vectors, "eps": 1e-5, "momentum": 0.1, "affine": True}
    model = T7Reader(io.BytesIO(written(SEQUENCES["sequencers in a row"]["model"]))).read_object()
    layers = [*model["modules"].values(), TorchObject("nn.BatchNormalization", 1, Table.of(fields))]
    made = recognized(*planned(TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list(layers)}))))
    last = str(len(made.plan.root.children) - 1)
    assert int(last) < len(layers) - 1
    assert made.state[f"{last}.num_batches_tracked"].shape == ()


def test_beside_shared_modules():
    """Modules inside one another, each twice, have 2 ** 40 places; the layers beside them are recognized."""
    plan, state = planned(SEQUENCES["sequencers in a row"]["model"])
    nested = ModuleSpec("torch.nn.Identity", class_name="nn.Identity")
    for _ in range(40):
        nested = ModuleSpec("torch.nn.Sequential", children={"0": nested, "1": nested}, class_name="nn.Sequential")
    plan.root.children["shared"] = nested
    notes = recognized(plan, state).notes
    assert any("recognized: layers over sequences" in note.message for note in notes)


@pytest.mark.slow
def test_many_layers():
    """A model of 200 sequencers is recognized in time proportional to its size."""
    one = written(SEQUENCES["one cell"]["model"])
    layers = [T7Reader(io.BytesIO(one)).read_object() for _ in range(200)]
    plan, state = planned(TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list(layers)})))
    with bounded(40):
        made = recognized(plan, state)
    assert sum(spec.target.endswith("OutputsLSTM") for spec in specs_in(made.plan.root)) == 200


@pytest.mark.slow
def test_there_and_back(tmp_path):
    """The weights of the page are put back bit for bit; a checkpoint with its vocabulary generates text."""
    model = MODELS["torch_rnn_stateful_lstm"]["model"]
    size = len(t7bridge.state_dict(model)["0.weight"].numpy())
    letters = [chr(ord("a") + at).encode() for at in range(size)]
    path, back = tmp_path / "c.t7", tmp_path / "back.t7"
    path.write_bytes(written(Table.of({"model": model, "letters": Table.from_list(letters)})))
    t7bridge.write_module(path, tmp_path / "m")
    assert json.loads((tmp_path / "m/config.json").read_text())["sampling"]["states"] is None
    weights = torch.load(tmp_path / "m/model.pt", weights_only=True)
    t7bridge.load_module(path, lift=True).load_state_dict(weights)
    proof = t7bridge.prove(path, against=str(tmp_path / "m"), input="2x5:int64:1..9")
    verdicts = [layer.verdict for layer in proof.layers]
    assert "differs" not in verdicts
    assert verdicts[-1] == "agrees"
    run = run_python(tmp_path / "m/sample.py", "ab", "--length", "9", "--seed", "1")
    assert run.returncode == 0, run.stderr
    text = run.stdout
    assert text.startswith("ab")
    assert len(text) == 12
    t7bridge.convert(tmp_path / "m/model.pt", back, template=path)
    assert back.read_bytes() == path.read_bytes()
