"""Two models on the same inputs: a .t7 and what it became in every other form."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import PATIENCE, TESTFILES

import t7bridge
from t7bridge import Table, Tensor, TorchObject
from t7bridge.cli import main
from t7bridge.errors import ModelError
from t7bridge.torchmodules import live_module
from t7bridge.torchmodules.layers.recurrent import MaskZero
from t7bridge.workshop.cells import Recurrence, StateOfStep
from t7bridge.workshop.prove.over_steps import Form, RecurrentModels
from t7bridge.workshop.prove.two_models import _in_one_thread

LENET = TESTFILES / "models/lenet_mm.t7"
RESNET = TESTFILES / "models/resnet_small.t7"


def made() -> torch.nn.Module:
    """A model that computes something else from its second convolution on, by a thousandth."""
    model = t7bridge.load_module(LENET)
    model.get_submodule("3").register_forward_hook(lambda layer, given, output: output * 1.001)
    return model


@pytest.mark.slow
def test_a_generated_folder_computes_the_same(tmp_path: Path):
    """Every layer with weights of a generated model returns what that of its source does."""
    assert main(["module", str(RESNET), "-o", str(tmp_path / "made")]) == 0
    proof = t7bridge.prove(RESNET, against=tmp_path / "made", input=[(2, 3, 16, 16)])
    assert proof.exit_code == 0
    assert len(proof.agreeing()) == 14
    assert "layers of made" in proof.sentence()


def test_a_factory_that_computes_something_else_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a .pt and the function that makes its model, the first layer that differs is named."""
    t7bridge.convert(LENET, tmp_path / "x.pt")
    monkeypatch.setattr(torch.nn.Module, "made_here", staticmethod(made), raising=False)
    (tmp_path / "prove_factory.py").write_text("import torch\ndef make(): return torch.nn.Module.made_here()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    proof = t7bridge.prove(LENET, against=tmp_path / "x.pt", factory="prove_factory:make")
    assert proof.exit_code == 1
    assert proof.first_divergent is not None
    assert proof.first_divergent.path == "3"
    assert proof.sentence().endswith("differ from x.pt, first 3")
    with pytest.raises(ModelError, match=r"cannot be imported: .* Install it, or name a file: net\.py:Net"):
        t7bridge.prove(LENET, against=tmp_path / "x.pt", factory="no_such_package:make")
    with pytest.raises(ModelError, match="not a model without its code"):
        t7bridge.prove(LENET, against=tmp_path / "x.pt")


@pytest.mark.parametrize("source", ["x = 1", "raise ValueError('no\\nmodel')", "def load(): return 1", "x ="])
def test_a_folder_without_a_model(source: str, tmp_path: Path):
    """A model.py that fails, or has no function that returns a module, is a `ModelError`."""
    (tmp_path / "model.py").write_text(source)
    with pytest.raises(ModelError, match=r"model\.py returns no model"):
        t7bridge.prove(LENET, against=tmp_path)


@pytest.fixture
def three_threads() -> Iterator[None]:
    """Let PyTorch compute in three threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_comparisons_at_once_restore_the_number_of_threads():
    """The second of two begins while the first runs, and ends after it; a new thread has the number, too."""
    counts: list[int] = []
    has_begun, first_has_ended = threading.Event(), threading.Event()

    def second() -> None:
        with _in_one_thread():
            has_begun.set()
            first_has_ended.wait(PATIENCE)
            counts.append(torch.get_num_threads())
        counts.append(torch.get_num_threads())

    thread = threading.Thread(target=second)
    with _in_one_thread():
        thread.start()
        has_begun.wait(PATIENCE)
    counts.append(torch.get_num_threads())
    first_has_ended.set()
    thread.join()
    thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert counts == [3, 1, 3, 3]


@pytest.mark.usefixtures("three_threads")
def test_a_comparison_that_fails_restores_the_number_of_threads():
    """An error ends the block, too."""
    with pytest.raises(ModelError, match="fails"), _in_one_thread():
        raise ModelError("fails")
    assert torch.get_num_threads() == 3


class Reused(torch.nn.Module):
    """A layer that runs twice, with a function between its runs that the Lua model does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.reused = torch.nn.Linear(4, 4)
        self.last = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the function after the first run."""
        return self.last(self.reused(self.reused(x).relu()))


def test_a_layer_differs_if_it_differs_in_a_later_run():
    """That the first run of a layer agrees does not hide that its second one has another input."""
    other = Reused()
    layers = []
    for layer in (other.reused, other.last):
        fields = {"weight": layer.weight.detach().numpy(), "bias": layer.bias.detach().numpy()}
        tensors = {name: Tensor.from_numpy(value) for name, value in fields.items()}
        layers.append(TorchObject("nn.Linear", 1, Table.of(tensors)))
    reused, last = layers
    modules = Table.from_list([reused, reused, last])

    proof = t7bridge.prove(TorchObject("nn.Sequential", 1, Table.of({"modules": modules})), against=other)
    verdicts = [(layer.path, layer.verdict) for layer in proof.layers]
    assert verdicts == [("0", "differs"), ("2", "agrees"), ("root", "differs")]


class Classifier(torch.nn.Module):
    """A linear layer, and the number of the largest of its outputs, from 1 as in Lua or from another number."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.first = first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a class for each example."""
        return self.layer(x).argmax(-1) + self.first


@pytest.mark.parametrize(("first", "verdict"), [(1, "agrees"), (2, "differs")])
def test_whole_numbers_are_compared_as_other_outputs_are(first: int, verdict: str):
    """A model that returns classes has a difference in units of the limit, too: none, or one far beyond."""
    other = Classifier(first)
    fields = {"weight": other.layer.weight.detach().numpy(), "bias": other.layer.bias.detach().numpy()}
    linear = TorchObject("nn.Linear", 1, Table.of({name: Tensor.from_numpy(value) for name, value in fields.items()}))
    arg_max = TorchObject("nn.ArgMax", 1, Table.of({"dim": 1.0, "nInputDim": 1.0, "asLong": True}))
    model = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([linear, arg_max])}))

    whole = t7bridge.prove(model, against=other).as_dict()["layers"][-1]
    assert whole["verdict"] == verdict
    assert whole["excess"] == 0 if verdict == "agrees" else whole["excess"] > 1


def test_parameters_of_a_pair_are_those_of_the_layers():
    """The weights count, and not the statistics of normalizations: as many as the layers have one by one."""
    inputs = torch.zeros(1, 3, 16, 16)
    outputs = t7bridge.load_module(RESNET).eval()(inputs).detach()

    by_pair = t7bridge.prove(RESNET, against=(inputs, outputs)).summary()
    assert by_pair["parameters"] == t7bridge.prove(RESNET).summary()["parameters"] == 1421


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_the_module_of_the_user_stays_as_it_is():
    """It is compared in double precision and evaluation mode, but keeps its own types and its mode."""
    mine = TorchObject("nn.Linear", 1, Table.of({"weight": Tensor.from_numpy(np.ones((2, 3), "f4"))}))
    plain = torch.nn.Linear(3, 2, bias=False)
    torch.nn.init.ones_(plain.weight)
    for theirs in (plain, torch.nn.utils.weight_norm(plain)):
        theirs.train()
        t7bridge.prove(mine, against=theirs, input=["2x3"])
        assert {tensor.dtype for tensor in theirs.state_dict().values()} == {torch.float32}
        assert theirs.training


class OneStep(torch.nn.Module):
    """A model of one step, which takes its state and returns it, and leaves it as it is in steps of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = MaskZero(torch.nn.Linear(3, 3).double(), n_input_dims=1)

    def forward(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the sum of all steps, as output and as state."""
        x, state = values
        new_state = state + self.layer(x)
        return [new_state, new_state]


class AllSteps(torch.nn.Module):
    """A model over sequences of any layer, which sums its steps."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all steps until each."""
        return self.layer(x).cumsum(0)


def test_masks_of_a_model_that_takes_its_state():
    """A model of one step is asked for a step of zeros as it is for others: with its state."""
    mine = OneStep()
    recurrent = Recurrence("RNN", 1, 3, inputs=3, takes_tokens=False, outputs=0, states=(StateOfStep(1, 1, 3),))
    inputs = torch.randn(4, 2, 3, dtype=torch.float64)
    for layer, differs in ((mine.layer, False), (mine.layer[0], True)):
        models = RecurrentModels(mine, recurrent, AllSteps(layer), "theirs")
        assert models.masks_differ(inputs) == differs


class ComplexSteps(AllSteps):
    """A model over sequences that returns complex numbers, whose real parts are the sums."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sums, with imaginary parts."""
        sums = super().forward(x)
        return torch.complex(sums, sums)


def test_complex_steps_are_others():
    """A model over sequences that returns complex numbers returns no steps as the model of Lua does."""
    mine = OneStep()
    recurrent = Recurrence("RNN", 1, 3, inputs=3, takes_tokens=False, outputs=0, states=(StateOfStep(1, 1, 3),))
    inputs = torch.randn(4, 2, 3, dtype=torch.float64)
    models = RecurrentModels(mine, recurrent, ComplexSteps(mine.layer[0]), "theirs")
    with pytest.raises(ModelError, match="the models do not return as many values for each step"):
        models.best_answer([Form("sequences", inputs)], models.outputs_of_first(inputs))


def test_one_example_is_not_normalized_in_training():
    """Where a normalization takes no batch of one in training mode, the models are compared in evaluation mode."""
    numbers = Tensor.from_numpy(np.ones(3, "f4"))
    fields: dict[str, Any] = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), numbers)
    mine = TorchObject("nn.BatchNormalization", 1, Table.of({**fields, "eps": 1e-5, "momentum": 0.1}))
    for batch, mode in ((1, "evaluation mode"), (2, "evaluation and training mode")):
        proof = t7bridge.prove(mine, against=live_module(mine), input=[f"{batch}x3"])
        assert proof.modes == f"{batch}x3 in {mode}"
        assert proof.exit_code == 0
