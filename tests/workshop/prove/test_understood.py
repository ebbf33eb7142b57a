"""Inputs that follow from other fields: unfolded images, rows of tables, steps, and undone changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from prove_changes import PROVE, at, changes, read, replaced, swap_gates

import t7bridge
from t7bridge import Storage
from t7bridge.workshop.prove import Proof


def verdicts(proof: Proof) -> dict[str, str]:
    """The verdict on each layer by its path."""
    return {layer.path: layer.verdict for layer in proof.layers}


def test_the_first_convolution_is_checked_by_its_unfolded_input():
    """With `finput`, the first layer is checked too, and with it all weights of the model."""
    for name in ("lenet.train", "alone.train"):
        proof = t7bridge.prove(PROVE / f"{name}.t7")
        assert verdicts(proof)["root.modules[1]"] == "agrees"
        assert proof.summary()["parameters_checked"] == proof.summary()["parameters"]


def test_a_padding_that_does_not_fit_the_unfolded_input_is_named():
    """The unfolded input has zeros where the padding was; another padding in the file is told from it."""
    model = read("lenet.eval")
    first = at(model, "root.modules[1]")
    first["padW"], first["padH"] = 2.0, 2.0
    layer = t7bridge.prove(model).first_divergent
    assert layer is not None
    assert layer.path == "root.modules[1]"
    assert layer.reason == "its unfolded input has another padding"


@pytest.mark.parametrize(("field", "value"), [("dW", 1e9), ("dW", 1e5), ("dW", 1e300), ("dH", 0.0), ("padW", -5.0)])
def test_steps_and_paddings_that_no_unfolded_input_has(field: str, value: float):
    """A step or a padding that no image allows is the file's, and is no error of PyTorch."""
    model = read("lenet.eval")
    at(model, "root.modules[1]")[field] = value
    layer = t7bridge.prove(model).first_divergent
    assert layer is not None
    assert layer.path == "root.modules[1]"
    assert (
        "its unfolded input has another padding" in layer.reason or "its unfolded input has other steps" in layer.reason
    )


def test_rows_of_a_table_are_found_in_its_output():
    """A lookup table as first layer: its output is made of its rows, and a row that changed is named."""
    model = read("text.eval")
    assert verdicts(t7bridge.prove(model))["root.modules[1]"] == "agrees"
    table = at(model, "root.modules[1]")["weight"]
    array = table.storage.array * np.float32(1.001)
    replaced(model, table.storage, Storage.from_array(array))
    assert verdicts(t7bridge.prove(model))["root.modules[1]"] == "differs"


def test_values_that_a_backward_may_have_restored_are_not_taken():
    """AddConstant and MulConstant in place put their inputs back when they run backwards: nothing differs."""
    for name in ("constants.train", "constants.eval", "volumes.train"):
        proof = t7bridge.prove(PROVE / f"{name}.t7")
        assert not proof.of("differs"), name


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("constants.train", "root.modules[5]", 1.5),
        ("constants.eval", "root.modules[5]", 1.5),
    ],
)
def test_a_changed_constant_in_place_is_named(name: str, place: str, value: float):
    """Of layers that work in place the one whose constant was changed differs."""
    model = read(name)
    at(model, place)["constant_scalar"] = value
    proof = t7bridge.prove(model)
    assert proof.exit_code == 1
    assert place in [layer.path for layer in proof.unexplained]


def test_the_layer_in_place_behind_a_changed_weight_is_compared_with_it():
    """Both are one comparison, and both are named."""
    model = read("lenet.train")
    conv = at(model, "root.modules[4]")
    array = conv["weight"].storage.array.copy()
    array[7] *= 1.001
    replaced(model, conv["weight"].storage, Storage.from_array(array))
    layers = {layer.path: layer for layer in t7bridge.prove(model).unexplained}
    assert sorted(layers) == ["root.modules[4]", "root.modules[5]"]
    assert layers["root.modules[4]"].reason == "compared as one with root.modules[5]"


def test_a_batch_of_one_uses_running_statistics():
    """Newer releases normalize a batch of one with running statistics, in training too."""
    proof = t7bridge.prove(PROVE / "alone.train.t7")
    assert verdicts(proof)["root.modules[2]"] == "agrees"
    assert verdicts(proof)["root.modules[5]"] == "agrees"


@pytest.mark.slow
def test_recurrent_modules_are_checked_in_every_step():
    """Cells, Recurrence, Recurrent, Repeater and both directions: each layer inside agrees, in each step."""
    for name, steps in (("rnn_steps.train", 130), ("rnn_simple.train", 90)):
        proof = t7bridge.prove(PROVE / f"{name}.t7")
        assert not proof.of("differs")
        assert sum(layer.runs for layer in proof.agreeing()) >= steps, name
        # The input of the first layer is in no file; here it is one of 20 weights.
        first = 20 if name == "rnn_simple.train" else 0
        assert proof.summary()["parameters_checked"] == proof.summary()["parameters"] - first, name


def test_gates_in_another_order():
    """A layer with the weights of two gates in each other's place differs."""
    model = read("rnn_seq.train")
    swap_gates(at(model, "root.modules[2]"), 3, 0, 1)
    layer = t7bridge.prove(model).first_divergent
    assert layer is not None
    assert layer.path == "root.modules[2]"


@pytest.mark.slow
def test_constants_and_gates_are_among_the_changes():
    """The changes that are tried have those of constants in place and of gates, and they are found."""
    for name in ("constants.eval", "rnn_seq.train"):
        for change, proof in changes(Path(PROVE / f"{name}.t7"), 2, 5, True):
            assert change.path in [layer.path for layer in proof.of("differs")], change
