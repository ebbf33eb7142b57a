"""The rule of `prove`: all agrees, all weights were updated, or the layers that differ are named and the exit is 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from helpers import TESTFILES, corpus, name_of
from prove_changes import PROVE, at, read, replaced

import t7bridge
from t7bridge import Storage, Table, Tensor, TorchObject
from t7bridge.layers import modules, register_module, unregister_layer
from t7bridge.nn import find_modules
from t7bridge.workshop.prove import Proof
from t7bridge.workshop.prove.layer import LiveLayer
from t7bridge.workshop.prove.rounding import measure

RANDOM = [path for path in corpus("prove/random.*.t7") if ".bad." not in path.name]
CHANGED = corpus("prove/*.bad.t7")
OPTIMIZERS = ("momentum", "nesterov", "adam", "rmsprop", "adadelta")
UPDATED = "the weights were updated after the last forward pass, as training does"


def named(proof: Proof) -> list[str]:
    """The paths of the layers that the sentence is about."""
    return [layer.path for layer in proof.unexplained]


def moved(value: Any, path: str, field: str = "weight", factor: float = 1.01, index: int | None = None) -> None:
    """Multiply the weights of a layer, or one of them."""
    tensor = at(value, path)[field]
    array = tensor.storage.array.copy()
    here = slice(tensor.offset, tensor.offset + tensor.numel) if index is None else tensor.offset + index
    array[here] *= array.dtype.type(factor)
    replaced(value, tensor.storage, Storage.from_array(array))


@pytest.mark.parametrize("class_", [torch.nn.Conv2d, torch.nn.ConvTranspose2d], ids=("direct", "transposed"))
@pytest.mark.parametrize(("inputs", "outputs", "groups"), [(8, 2, 1), (2, 8, 1), (8, 4, 2)])
def test_as_many_products_as_the_longest_sum_has(class_: type, inputs: int, outputs: int, groups: int) -> None:
    """With weights and inputs of ones, a sum is the number of its products."""
    module = class_(inputs, outputs, 3, groups=groups, bias=False)
    torch.nn.init.ones_(module.weight)
    layer = LiveLayer(TorchObject("nn.Module", 1, Table()), module, unit=2.0**-24)
    assert layer._most_products() == module(torch.ones(1, inputs, 9, 9)).max()


def linear(name: str, *numbers: np.ndarray) -> TorchObject:
    """An nn.Linear with its weight, bias, output and, if it ran backwards, gradInput."""
    fields = dict(zip(("weight", "bias", "output", "gradInput"), map(Tensor.from_numpy, numbers)))
    return TorchObject(name, 1, Table.of(fields))


def container(name: str, children: list[TorchObject], output: np.ndarray, **fields: Any) -> TorchObject:
    """A container with its modules and its output."""
    inside = Table.of([(float(place), child) for place, child in enumerate(children, 1)])
    return TorchObject(name, 1, Table.of({"modules": inside, "output": Tensor.from_numpy(output), **fields}))


def two_layers(backward: bool) -> tuple[TorchObject, TorchObject]:
    """A model of two linear layers, and its second, whose recorded output has another bias."""
    draw = np.random.default_rng(5)
    x, first, second = draw.normal(size=(2, 3)), draw.normal(size=(3, 3)), draw.normal(size=(2, 3))
    y = x @ first.T
    z = y @ second.T
    gradients = [np.ones((2, 3)), np.ones((2, 3))] if backward else []
    one = linear("nn.Linear", first, np.zeros(3), y, *gradients[:1])
    two = linear("nn.Linear", second, np.array([0.1, 0.2]), z, *gradients[1:])
    return container("nn.Sequential", [one, two], z), two


@pytest.mark.slow
@pytest.mark.parametrize("path", RANDOM, ids=name_of)
def test_no_sound_file_is_blamed(path: Path):
    """Models in the states that training programs leave: evaluated, updated, saved in another mode than they ran."""
    proof = t7bridge.prove(path)
    assert proof.exit_code == 0, proof.sentence()


@pytest.mark.parametrize("path", CHANGED, ids=name_of)
def test_the_changed_layer_is_named(path: Path):
    """A row swapped, a bias zeroed, one weight moved in a file that nothing updated since: that layer differs alone."""
    changed = path.with_suffix(".txt").read_text().split("\t")[0]
    proof = t7bridge.prove(path)
    assert proof.exit_code == 1
    assert named(proof) == [changed]
    assert f"{changed}, nn." in proof.sentence()
    assert "does not compute what Lua recorded, while 5 others do" in proof.sentence()


def test_functions_that_subtract_nearly_equal_numbers_are_no_false_alarm():
    """nn.TanhShrink subtracts tanh(x) from x; what that loses in single precision is rounding."""
    proof = t7bridge.prove(PROVE / "tanhshrink.momentum.t7")
    verdicts = {layer.class_name: layer.verdict for layer in proof.layers}
    assert verdicts == {
        "nn.MulConstant": "not recorded",
        "nn.Linear": "differs",
        "nn.SoftMax": "agrees",
        "nn.TanhShrink": "agrees",
    }
    assert proof.exit_code == 0
    assert proof.sentence().endswith(UPDATED)


@pytest.mark.parametrize(
    "name", [*(f"{name}_state.stale" for name in OPTIMIZERS), "momentum_alone.stale", "adam_alone.stale"]
)
def test_updates_of_any_optimizer(name: str):
    """After a step of an optimizer all layers with weights differ, and no other."""
    proof = t7bridge.prove(PROVE / f"{name}.t7")
    assert proof.exit_code == 0
    assert len(proof.updated) >= 5
    assert proof.sentence().endswith(UPDATED)


def test_a_layer_without_weights_is_not_updated():
    """In a model that was updated, a layer without weights that differs is named, and it alone."""
    model = read("adam_alone.stale")
    activation = at(model, "root.modules[2]")
    activation.fields["output"] = Tensor.from_numpy(activation["output"].numpy() * np.float32(1.01))
    proof = t7bridge.prove(model)
    assert proof.exit_code == 1
    assert "root.modules[2]" in named(proof)
    assert not {"root.modules[6]", "root.modules[7]", "root.modules[8]"} & set(named(proof))


def test_some_layers_moved():
    """Two of the layers with weights moved: both are named, which is true whoever moved them."""
    model = read("mlp.train")
    moved(model, "root.modules[5]")
    moved(model, "root.modules[7]", index=3)
    proof = t7bridge.prove(model)
    assert proof.exit_code == 1
    assert named(proof) == ["root.modules[5]", "root.modules[7]"]
    assert "their weights, options or output were changed after the last forward pass" in proof.sentence()


@pytest.mark.parametrize("backward", [False, True])
def test_training_runs_backwards(backward: bool):
    """The only layer whose input is recorded differs: an update explains that if a backward has run, and not else."""
    model, _ = two_layers(backward)
    proof = t7bridge.prove(model)
    assert [layer.verdict for layer in proof.layers] == ["not recorded", "differs"]
    assert proof.exit_code == (not backward)
    assert ("updated" in proof.sentence()) == backward


def test_an_update_changes_no_shape():
    """A layer of another shape than it recorded is named, also if all layers with weights differ."""
    model, second = two_layers(backward=True)
    second["weight"] = Tensor.from_numpy(np.ones((4, 3)))
    second["bias"] = Tensor.from_numpy(np.ones(4))
    proof = t7bridge.prove(model)
    assert named(proof) == ["root.modules[2]"]
    assert "shape [2, 4], recorded [2, 2]" in proof.layers[1].reason


def test_a_layer_that_refuses_its_input_differs():
    """Lua's layer took the input that this one refuses: the file, or the conversion, is wrong."""
    model = read("dilated.train")
    reshape = at(model, "root.modules[8]")
    reshape["nelement"] = 7.0
    for name in ("size", "batchsize"):
        reshape[name] = Storage.from_array(np.full_like(reshape[name].array, 7))
    proof = t7bridge.prove(model)
    assert named(proof) == ["root.modules[8]"]
    assert proof.exit_code == 1


def test_zeros_say_nothing_of_weights():
    """A layer that got zeros agrees whatever its weights are: it does not show that they were not updated."""
    model, _ = two_layers(backward=True)
    zeros = np.zeros((2, 2))
    third = TorchObject(
        "nn.Linear", 1, Table.of({"weight": Tensor.from_numpy(np.ones((2, 2))), "output": Tensor.from_numpy(zeros)})
    )
    branch = container(
        "nn.Sequential",
        [
            TorchObject("nn.MulConstant", 1, Table.of({"constant_scalar": 0.0, "output": Tensor.from_numpy(zeros)})),
            third,
        ],
        zeros,
    )
    whole = container("nn.Sequential", [*children_of(model), branch], zeros)
    proof = t7bridge.prove(whole)
    assert {layer.path: layer.verdict for layer in proof.layers}["root.modules[3].modules[2]"] == "agrees"
    assert proof.exit_code == 0


def children_of(model: TorchObject) -> list[TorchObject]:
    """The modules of a container."""
    return list(model["modules"].raw_values)


def test_a_model_saved_in_another_mode_than_it_ran():
    """`evaluate` after the last forward, which ran in training, is no difference; one layer in another mode is."""
    path = PROVE / "random.31.mlp_bn.evalmode.t7"
    proof = t7bridge.prove(path)
    reason = "Lua ran it in training; the model was saved in evaluation"
    assert [layer.verdict for layer in proof.layers if reason in layer.reason] == ["agrees", "agrees"]
    assert proof.max_abs < 1e-6
    model = t7bridge.load(path)
    norm = next(module for module in children_of(model) if module.class_name == "nn.BatchNormalization")
    norm["train"] = True
    assert len(named(t7bridge.prove(model))) in (1, 2)


def test_each_model_of_a_file_is_judged_alone():
    """Of two networks that train against each other one was updated since its last forward: that is no difference."""
    fresh, stale = t7bridge.load(PROVE / "mlp.train.t7"), t7bridge.load(PROVE / "mlp.stale.t7")
    proof = t7bridge.prove(Table.of({"D": stale, "G": fresh}))
    assert proof.exit_code == 0
    assert {layer.path.split(".")[1] for layer in proof.updated} == {"D"}
    assert proof.sentence().startswith("checked against 13 recorded activations")


def test_classes_of_other_packages_have_no_facts_of_nn():
    """A container my.Parallel gives each child the whole input, and adds the outputs; nn.Parallel does neither."""

    draw = np.random.default_rng(0)
    x, hidden = draw.normal(size=(2, 4)), draw.normal(size=(4, 4))
    weights = [draw.normal(size=(4, 4)) for _ in range(2)]
    first = x @ hidden.T
    outputs = [first @ weight.T for weight in weights]
    children = [linear("nn.Linear", weight, np.zeros(4), output) for weight, output in zip(weights, outputs)]
    y = outputs[0] + outputs[1]
    own = container("my.Parallel", children, y, inputDimension=1.0)
    model = container("nn.Sequential", [linear("nn.Linear", hidden, np.zeros(4), first), own], y)
    register_module("my.Parallel", children=modules)(Summed)
    try:
        verdicts = {layer.path: layer.verdict for layer in t7bridge.prove(model).layers}
        assert verdicts["root.modules[2]"] == "agrees"
        assert verdicts["root.modules[2].modules[1]"] == "not recorded"
    finally:
        unregister_layer("my.Parallel")


class Summed(torch.nn.Sequential):
    """Each child gets the whole input; their outputs are added."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the outputs."""
        return torch.stack([child(x) for child in self]).sum(0)


def three_layers(of_another_pass: bool = False) -> TorchObject:
    """Three linear layers after a backward, with fewer outputs than inputs, so that the model's input is not known."""
    draw = np.random.default_rng(8)
    x, gradient = draw.normal(size=(5, 6)), draw.normal(size=(5, 3))
    weights = [draw.normal(size=size) for size in ((5, 6), (4, 5), (3, 4))]
    ran = [draw.normal(size=weight.shape) for weight in weights] if of_another_pass else weights
    layers = []
    for weight in weights:
        x = x @ weight.T
        layers.append(linear("nn.Linear", weight, np.zeros(len(weight)), x))
    for layer, weight in zip(reversed(layers), reversed(ran)):
        gradient = gradient @ weight
        layer["gradInput"] = Tensor.from_numpy(gradient)
    return container("nn.Sequential", layers, x)


def test_the_gradient_of_a_first_layer():
    """Where no output checks a layer, its gradient does."""
    reason = "its gradient was checked; its input is not recorded"
    first = t7bridge.prove(three_layers()).layers[0]
    assert (first.verdict, first.reason) == ("agrees", reason)
    model = three_layers()
    moved(model, "root.modules[1]", index=4)
    proof = t7bridge.prove(model)
    assert named(proof) == ["root.modules[1]"]
    assert proof.exit_code == 1


def test_the_gradients_of_another_pass():
    """After an evaluation gradients are those of other weights: they say nothing of a layer that no output checks."""
    proof = t7bridge.prove(three_layers(of_another_pass=True))
    assert [layer.verdict for layer in proof.layers] == ["not recorded", "agrees", "agrees"]
    assert proof.exit_code == 0


def test_weights_that_the_optimizer_does_not_have():
    """A layer whose weight is not in the flat parameters is not moved with them; that it agrees is no wonder."""
    model = three_layers()
    flat = Storage.from_array(np.concatenate([model.modules[place].weight.numpy().ravel() for place in (2, 3)]) * 1.01)
    model.modules[2]["weight"] = evolve(model.modules[2].weight, storage=flat, offset=0)
    model.modules[3]["weight"] = evolve(model.modules[3].weight, storage=flat, offset=20)
    proof = t7bridge.prove(model)
    assert [layer.verdict for layer in proof.layers] == ["agrees", "differs", "differs"]
    assert proof.exit_code == 0


@pytest.mark.parametrize("index", [0, 17, 35])
def test_a_first_layer_whose_input_its_output_tells(index: int):
    """A linear layer of more outputs than inputs has one input that fits, unless a weight is another."""
    sound = t7bridge.prove(PROVE / "wide.eval.t7")
    assert [layer.verdict for layer in sound.layers] == ["agrees"] * 4
    assert sound.layers[0].reason == "its input was computed from its output, which has more numbers"
    model = read("wide.eval")
    moved(model, "root.modules[1]", index=index)
    assert named(t7bridge.prove(model)) == ["root.modules[1]"]


@pytest.mark.parametrize("name", ["cleared.train", "widened.train"])
def test_states_of_files_that_are_sound(name: str):
    """Layers in place whose own output was cleared; floats that were saved as doubles."""
    proof = t7bridge.prove(PROVE / f"{name}.t7")
    assert proof.exit_code == 0
    assert not proof.of("differs")


@pytest.mark.parametrize(
    ("name", "place", "field", "value", "reason"),
    [
        ("thresholds.train", 2, "val", 0.0, ""),
        ("thresholds.train", 4, "threshold", 0.0, ""),
        ("thresholds.train", 3, "dW", 1.0, "shape"),
        ("thresholds.train", 3, "kW", 2.0, "kW = 2 does not fit its weight, which has 3"),
        ("thresholds.train", 1, "dH", 2.0, "its unfolded input has other steps"),
        ("penalties.train", 7, "p", 0.3, ""),
        ("penalties.train", 7, "v2", False, ""),
    ],
)
def test_options_that_were_set(name: str, place: int, field: str, value: object, reason: str):
    """Thresholds, strides, kernels, and what shows in the noise that dropout has left."""
    model = read(name)
    path = f"root.modules[{place}]"
    at(model, path)[field] = value
    proof = t7bridge.prove(model)
    assert path in named(proof)
    assert any(reason in layer.reason for layer in proof.unexplained)


def test_inside_a_normalization_that_is_a_sequential():
    """The scale inside LayerNormalization is named by its own path, and the normalization around it is not."""
    model = read("penalties.train")
    moved(model, "root.modules[8].modules[5]", factor=1.002, index=3)
    assert named(t7bridge.prove(model)) == ["root.modules[8].modules[5]"]


def test_the_smallest_numbers_have_a_unit_of_rounding():
    """An output with a number of fewer digits than others, as far from them as doubles go, is compared like others."""
    model = t7bridge.load(PROVE / "mlp_double.train.t7")
    layer = model.modules[2]
    changed = layer.output.numpy().copy()
    changed[0, 0] = 1e-310
    layer["output"] = Tensor.from_numpy(changed)
    assert {each.layer: each.verdict for each in t7bridge.prove(model).layers}["1"] == "differs"


def test_criterions_are_not_proved():
    """A criterion records its loss and no target."""
    value = t7bridge.load(TESTFILES / "prove/checkpoint.eval.t7")
    classes = {module.class_name for _, module in find_modules(value)}
    assert any(name.endswith("Criterion") for name in classes)
    assert not any("Criterion" in layer.class_name for layer in t7bridge.prove(value).layers)


@pytest.mark.parametrize("step", [float("nan"), float("inf"), -3.0])
def test_a_step_that_is_no_number_hides_no_other_layer(step: float):
    """Of a sequence in evaluation, whose module counts no steps, everything else is checked."""
    model = read("rnn_seq.eval")
    sound = t7bridge.prove(model).summary()
    at(model, "root.modules[3].modules[1]")["step"] = step
    assert t7bridge.prove(model).summary() == sound


@pytest.mark.parametrize("computed", [np.inf, 3.5e38, -np.inf, -3.5e38])
def test_infinities_have_a_sign(computed: float):
    """A sum beyond the largest float is infinite in Lua: of the same sign, or it is another one."""
    recorded = [torch.tensor([np.inf, 1.0])]
    expected = [torch.full((2,), 1e-7, dtype=torch.float64)]
    deviation = measure(recorded, [torch.tensor([computed, 1.0], dtype=torch.float64)], expected)
    assert deviation.is_within_limit == (computed > 0)
    assert bool(deviation.reason) == (computed < 0)


@pytest.mark.parametrize(("dtype", "computed"), [(torch.float16, 1e5), (torch.float32, 1e39), (torch.float64, 1e308)])
def test_infinities_are_beyond_the_type_of_lua(dtype: torch.dtype, computed: float):
    """A sum is infinite in Lua beyond the largest number of its type: 65 504, 3.4e38 or 1.8e308."""
    expected = [torch.full((1,), 1e-7, dtype=torch.float64)]
    recorded = [torch.tensor([torch.inf], dtype=dtype)]
    of_computed = [torch.tensor([computed], dtype=torch.float64)]
    assert measure(recorded, of_computed, expected).is_within_limit == (dtype != torch.float64)
    assert not measure(recorded, [of_computed[0] / 10], expected).is_within_limit


def test_an_output_without_dimensions():
    """Of a linear layer that returned one number, nobody knows the input."""
    model, _ = two_layers(backward=False)
    model.modules[1]["output"] = Tensor.from_numpy(np.float64(2))
    assert t7bridge.prove(model).layers[0].verdict == "not recorded"


@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 1, 3, 2, 2)])
def test_an_output_of_other_dimensions_than_the_kernel(shape: tuple[int, ...]):
    """A convolution returns a dimension for each of its kernel's, one for channels, perhaps a batch: nothing else."""
    output = np.ones(shape)
    fields = {"nInputPlane": 4.0, "nOutputPlane": 3.0, "kW": 2.0, "kH": 2.0, "dW": 1.0, "dH": 1.0}
    numbers = {"weight": np.ones((3, 16)), "bias": np.zeros(3), "output": output, "finput": np.ones((16, 4))}
    tensors = {name: Tensor.from_numpy(array) for name, array in numbers.items()}
    layer = TorchObject("nn.SpatialConvolutionMM", 1, Table.of({**fields, **tensors}))
    proof = t7bridge.prove(container("nn.Sequential", [layer], output))
    assert [layer.verdict for layer in proof.layers] == ["not recorded"]
