"""What `prove` claims is certain: sound files in every state are no difference, and what is named was changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import TESTFILES, corpus, name_of
from prove_changes import at, read, replaced

import t7bridge
from t7bridge import Storage, Table, TorchObject
from t7bridge.errors import ModelError
from t7bridge.tools.prove import CONVERSION, FILE, fitting_inputs, guess_inputs

RANDOM = [path for path in corpus("prove/random.*.t7") if ".bad." not in path.name]


@pytest.mark.slow
@pytest.mark.parametrize("path", RANDOM, ids=name_of)
def test_no_sound_file_differs(path: Path):
    """Models in the states that training programs leave have no difference."""
    proof = t7bridge.prove(path)
    assert proof.exit_code == 0
    assert not proof.of("differs")
    assert all(layer.verdict != "stale" or layer.parameters for layer in proof.layers)


def test_the_changed_layer_is_named_and_the_file_blamed():
    """A change that Lua measured is found, and it is the file's."""
    path = TESTFILES / "prove/random.196.dropout.fresh.1.bad.t7"
    changed = path.with_suffix(".txt").read_text().split("\t")[0]
    (layer,) = t7bridge.prove(path).of("differs")
    assert (layer.path, layer.blame) == (changed, FILE)


def test_the_smallest_numbers_have_a_unit_of_rounding():
    """An output with a number of fewer digits than others, as far from them as doubles go, is compared like others."""
    model = t7bridge.load(TESTFILES / "prove/mlp_double.train.t7")
    layer = model.modules[2]
    changed = layer.output.numpy().copy()
    changed[0, 0] = 1e-310
    layer["output"] = t7bridge.Tensor.from_numpy(changed)
    assert {each.layer: each.verdict for each in t7bridge.prove(model).layers}["1"] == "differs"


def test_a_model_saved_in_another_mode_than_it_ran():
    """`evaluate` after the last forward, which ran in training, is no difference; one layer in another mode is."""
    proof = t7bridge.prove(TESTFILES / "prove/random.31.mlp_bn.evalmode.t7")
    named = "Lua ran it in training; the model was saved in evaluation"
    assert [layer.verdict for layer in proof.layers if named in layer.reason] == ["agrees", "agrees"]
    assert proof.max_abs < 1e-6
    assert [segment.verdict for segment in proof.segments] == ["agrees"]


def test_one_layer_that_moved_otherwise_is_not_known():
    """All weights of one layer, moved at random, may be an update: nothing differs."""
    model = read("mlp.train")
    linear = at(model, "root.modules[5]")
    array = linear["weight"].storage.array.copy()
    array += np.random.default_rng(1).normal(0, 1e-4, array.shape).astype(array.dtype)
    replaced(model, linear["weight"].storage, Storage.from_array(array))
    proof = t7bridge.prove(model)
    assert not proof.of("differs")
    assert "root.modules[5]" in [layer.path for layer in proof.of("stale")]


def test_a_layer_that_refuses_its_input_is_no_difference():
    """An exception says nothing about the file; where another option agrees, that is a difference."""
    model = read("dilated.train")
    reshape = at(model, "root.modules[8]")
    reshape["nelement"] = 7.0
    for name in ("size", "batchsize"):
        reshape[name] = Storage.from_array(np.full_like(reshape[name].array, 7))
    found = {layer.path: layer for layer in t7bridge.prove(model).layers}
    assert found["root.modules[8]"].verdict == "not checkable"


def test_a_layer_without_weights_that_nothing_explains_is_the_conversion():
    """Recorded numbers that no change of the file gives leave the conversion to blame."""
    model = read("mlp.eval")
    last = at(model, "root.modules[10]")
    array = last["output"].storage.array.copy()
    array[:] = np.roll(array, 1)
    last["output"].storage = Storage.from_array(array)
    layer = next(layer for layer in t7bridge.prove(model).layers if layer.path == "root.modules[10]")
    assert (layer.verdict, layer.blame) == ("differs", CONVERSION)


def test_the_input_of_shared_containers_is_guessed_in_linear_time():
    """Forty containers, each twice in the next, are forty modules and not 2 ** 40."""
    model = TorchObject("nn.ConcatTable", 1, Table.of({"modules": Table()}))
    for _ in range(40):
        model = TorchObject("nn.ConcatTable", 1, Table.of({"modules": Table.of([(1.0, model), (2.0, model)])}))
    assert guess_inputs(model) is None
    with pytest.raises(ModelError, match="--input"):
        fitting_inputs(model, "root")


@pytest.mark.parametrize("planes", [float("inf"), float("nan"), 1e12, 1e300, -3.0])
def test_sizes_that_no_input_has(planes: float):
    """A number of features that no tensor has determines no input, and is no other error."""
    model = t7bridge.load(TESTFILES / "models/lenet_mm.t7")
    at(model, "root.modules[1]")["nInputPlane"] = planes
    with pytest.raises(ModelError, match="--input"):
        fitting_inputs(model, "root")


@pytest.mark.parametrize("text", ["100000x1000x1000", "2x1x28x28:int3"])
def test_inputs_that_cannot_be_made(text: str):
    """Inputs of two models that do not fit into memory, or of a type without numbers, are refused."""
    path = TESTFILES / "models/lenet_mm.t7"
    with pytest.raises(ModelError, match="cannot make an input"):
        t7bridge.prove(path, against=path, input=[text])


@pytest.mark.parametrize("reference", [(1, 2, 3), (1,), [(1, 2, 3)], [1]])
def test_references_that_are_no_pairs(reference: object):
    """A reference of more or less than an input and an output is refused."""
    with pytest.raises(ModelError, match="not a pair of an input and an output"):
        t7bridge.prove(TESTFILES / "models/lenet_mm.t7", against=reference)
