"""Weights that moved after the last forward: by which optimizer, and what else differs besides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from prove_changes import PROVE, at, read, replaced

import t7bridge
from t7bridge import Storage, Tensor, TorchObject
from t7bridge.tools.prove import Proof

STATES = ("momentum", "nesterov", "adam", "rmsprop", "adadelta")
"""Checkpoints with the state of an optimizer, saved after its last step."""


def differing(proof: Proof) -> list[str]:
    """The paths of the layers that differ."""
    return [layer.path for layer in proof.of("differs")]


def scaled(value: Any, obj: TorchObject, field: str, factor: float, index: int | None = None) -> None:
    """Multiply the weights of a layer, or one of them."""
    tensor = obj[field]
    assert isinstance(tensor, Tensor)
    array = tensor.storage.array.copy()
    here = slice(tensor.offset, tensor.offset + tensor.numel) if index is None else tensor.offset + index
    array[here] *= np.float32(factor)
    replaced(value, tensor.storage, Storage.from_array(array))


@pytest.mark.parametrize("name", STATES)
def test_weights_that_an_optimizer_moved_are_not_known(name: str):
    """After a step of any optimizer, layers with weights are not known, and none differs."""
    proof = t7bridge.prove(PROVE / f"{name}_state.stale.t7")
    assert proof.exit_code == 0
    assert len(proof.of("stale")) >= 5


@pytest.mark.parametrize("name", ["momentum_alone.stale", "adam_alone.stale"])
def test_without_state_it_is_not_known(name: str):
    """With only the model in the file, layers whose weights do not give the recorded output moved, or are not known."""
    proof = t7bridge.prove(PROVE / f"{name}.t7")
    assert proof.exit_code == 0
    weighted = [f"root.modules[{place}]" for place in (3, 4, 6, 7, 8)]
    assert {layer.path for layer in proof.of("stale")} >= set(weighted)
    assert proof.sentence().endswith("not known: the weights moved after the last forward")


def test_layers_in_place_whose_state_was_cleared():
    """An activation in place wrote into its input; that it forgot so makes its neighbours no mistakes."""
    proof = t7bridge.prove(PROVE / "cleared.train.t7")
    assert {layer.verdict for layer in proof.layers} == {"agrees"}


def test_floats_that_became_doubles():
    """A model that computed as floats and was saved as doubles has the precision of floats, few as its numbers are."""
    proof = t7bridge.prove(PROVE / "widened.train.t7")
    assert proof.exit_code == 0
    assert not proof.of("differs")


@pytest.mark.parametrize(
    ("place", "field", "value", "reason"),
    [
        (7, "p", 0.3, ""),
        (7, "v2", False, "v2 = true agrees (the file has false)"),
    ],
)
def test_options_that_show_in_noise(place: int, field: str, value: object, reason: str):
    """How likely an element is dropped shows in the noise that is left."""
    model = read("penalties.train")
    path = f"root.modules[{place}]"
    at(model, path)[field] = value
    proof = t7bridge.prove(model)
    assert differing(proof) == [path]
    assert reason in proof.of("differs")[0].reason


def test_inside_a_normalization_that_is_a_sequential():
    """The scale inside LayerNormalization is named by its own path."""
    model = read("penalties.train")
    scaled(model, at(model, "root.modules[8].modules[5]"), "weight", 1.002, 3)
    assert "root.modules[8].modules[5]" in differing(t7bridge.prove(model))


@pytest.mark.parametrize("index", [0, 17, 35])
def test_a_first_layer_whose_input_its_output_tells(index: int):
    """A linear layer of more outputs than inputs has one input that fits, unless a weight is another."""
    sound = t7bridge.prove(PROVE / "wide.eval.t7")
    assert [layer.verdict for layer in sound.layers] == ["agrees"] * 4
    assert sound.layers[0].reason == "its input was computed from its output, which has more numbers"
    model = read("wide.eval")
    scaled(model, at(model, "root.modules[1]"), "weight", 1.01, index)
    assert differing(t7bridge.prove(model)) == ["root.modules[1]"]


def test_the_bias_of_a_first_layer_in_training():
    """A bias of the first layer of a model that trained is checked by its output too."""
    model = read("penalties.train")
    scaled(model, at(model, "root.modules[1]"), "bias", 1.01, 2)
    assert differing(t7bridge.prove(model)) == ["root.modules[1]"]


@pytest.mark.parametrize(
    ("place", "field", "value", "reason"),
    [
        (2, "val", 0.0, "val = 0.05 agrees (the file has 0)"),
        (4, "threshold", 0.0, ""),
        (3, "dW", 1.0, "shape"),
        (3, "kW", 2.0, "kW = 2 does not fit its weight, which has 3"),
        (1, "dH", 2.0, "dH = 1 and dW = 1 fits its unfolded input (the file has 2, 1)"),
    ],
)
def test_thresholds_and_sizes_that_were_set(place: int, field: str, value: float, reason: str):
    """A ReLU keeps a threshold that was set; strides and kernels are held to shapes, weights and unfolded inputs."""
    assert t7bridge.prove(PROVE / "thresholds.train.t7").exit_code == 0
    model = read("thresholds.train")
    path = f"root.modules[{place}]"
    at(model, path)[field] = value
    proof = t7bridge.prove(model)
    assert path in differing(proof)
    assert any(reason in layer.reason for layer in proof.of("differs"))


def test_a_layer_without_weights_is_never_stale():
    """In a model that was updated, a layer without weights that differs has another option."""
    model = read("adam_alone.stale")
    activation = at(model, "root.modules[2]")
    activation.fields["output"] = Tensor.from_numpy(activation["output"].numpy() * np.float32(1.01))
    proof = t7bridge.prove(model)
    assert proof.exit_code == 1
    assert "root.modules[2]" in differing(proof)


def test_the_sentence_tells_of_updated_layers():
    """A model card does not call a model checked whose weights moved after the pass that was recorded."""
    sentence = t7bridge.prove(PROVE / "adam_state.stale.t7").sentence()
    assert sentence.startswith("checked against 2 recorded activations of Lua Torch, largest difference ")
    assert sentence.endswith("; 6 layers are not known: the weights moved after the last forward")


def moved(obj: TorchObject, name: str, step: np.ndarray) -> None:
    """Replace the weights of a layer by moved ones."""
    array = obj[name].numpy() + step
    obj[name] = Tensor.from_numpy(np.ascontiguousarray(array.astype(obj[name].numpy().dtype)))


def test_a_step_that_looks_like_one_weight():
    """On one example all weights of a row move an output alike: a step with one row is no change of one weight."""
    model = read("widened.train")
    linear = at(model, "root.modules[3]")
    slope = linear["gradWeight"].numpy().copy()
    slope[np.arange(len(slope)) != 2] = 0
    linear["gradWeight"] = Tensor.from_numpy(slope)
    moved(linear, "weight", -0.01 * slope)
    proof = t7bridge.prove(model)
    assert not proof.of("differs")
    assert [layer.path for layer in proof.of("stale")] == ["root.modules[3]"]


def test_where_one_layer_moved_no_other_is_said_to_differ():
    """One changed weight in a model of which another layer moved may be of the same update."""
    model = read("mlp.train")
    scaled(model, at(model, "root.modules[5]"), "weight", 1.01, 3)
    assert differing(t7bridge.prove(model)) == ["root.modules[5]"]
    linear = at(model, "root.modules[7]")
    moved(linear, "weight", np.random.default_rng(1).normal(0, 1e-4, linear["weight"].shape))
    assert not t7bridge.prove(model).of("differs")


def test_a_table_of_words_that_moved_far_is_not_known():
    """Where no row of a table is near its output, its words are not known, and nothing differs."""
    model = read("text.train")
    tables = [layer.path for layer in t7bridge.prove(model).layers if layer.class_name == "nn.LookupTable"]
    table = at(model, tables[0])
    moved(table, "weight", np.random.default_rng(1).normal(0, 100, table["weight"].shape))
    assert not t7bridge.prove(model).of("differs")
