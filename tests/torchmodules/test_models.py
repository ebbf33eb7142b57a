"""Whole models against what Lua computed, and what older releases wrote."""

from __future__ import annotations

import pytest
import torch
from helpers import TESTFILES, corpus, name_of, read
from runtime_helpers import difference, recorded, run

import t7bridge
from t7bridge.nn import build_plan

MODELS = [path for path in corpus("models/*.t7") if not path.name.endswith(".io.t7")]
LEGACY = [path.with_suffix("").with_suffix(".t7") for path in corpus("legacy/*.io.t7")]


# Recorded before the field was taken away without which Lua sums; Lua's own output for the file is the sum.
SUMMED = "legacy/avgpool_without_pad.t7"


@pytest.mark.parametrize("path", MODELS + LEGACY, ids=name_of)
def test_output_is_that_of_lua(path):
    """A model returns what Lua's returned, whatever release wrote it."""
    case = recorded(path, "io")
    wanted = case["output"] * 4 if name_of(path) == SUMMED else case["output"]
    assert not difference(run(t7bridge.load_module(path), case), wanted)


def test_every_model_is_there():
    """All 11 models, and all 10 old files with an output, are tested."""
    assert (len(MODELS), len(LEGACY)) == (11, 10)


def test_tied_weights_are_one_parameter():
    """The branches of a siamese network share their parameters, so that gradients add up and training keeps them."""
    module = t7bridge.load_module(TESTFILES / "models/siamese_shared.t7")
    first, second = module[0][0], module[0][1]
    assert first[0].weight is second[0].weight
    assert first[2].bias is second[2].bias
    assert len(list(module.parameters())) == 4
    assert len(module.state_dict()) == 8


def test_flat_parameters_stay_in_one_piece():
    """After getParameters() all weights lie in one storage, and each is a parameter of its own."""
    module = t7bridge.load_module(TESTFILES / "models/autoencoder_flat.t7")
    assert len({parameter.untyped_storage().data_ptr() for parameter in module.parameters()}) == 1
    assert len(list(module.parameters())) == 4


def test_idiomatic_modules():
    """Layers that torch.nn has are of torch.nn."""
    module = t7bridge.load_module(TESTFILES / "models/lenet_mm.t7")
    assert isinstance(module, torch.nn.Sequential)
    assert [type(layer).__name__ for layer in module][:4] == ["Conv2d", "Tanh", "MaxPool2d", "Conv2d"]
    assert module[0].kernel_size == (5, 5)


def test_graph_keeps_its_annotations():
    """The plan of a graph has the users' names of its nodes, and links instead of split nodes."""
    plan = build_plan(read(TESTFILES / "models/char_lstm_nngraph.t7"))
    graph = plan.root.graph
    assert [node.name for node in graph.nodes if node.name] == ["decoder"]
    assert any(path for node in graph.nodes for _, path in node.takes)
    assert len(graph.outputs) == 5


def test_training_mode():
    """Dropout and batch normalization act in training mode only."""
    module = t7bridge.load_module(TESTFILES / "models/resnet_small.t7")
    input = torch.randn(4, 3, 16, 16)
    quiet = module(input)
    assert torch.equal(quiet, module(input))
    before = module[1].running_mean.clone()
    module.train()
    assert not torch.allclose(module(input), quiet)
    assert not torch.equal(module[1].running_mean, before)
    assert int(module[1].num_batches_tracked) == 1
