"""Recurrent modules against Lua: further options and sizes, calls one after the other, masks and gradients.

What gen/rnn_options.lua recorded, with three packages: Element-Research's rnn, torch's rnn, and torch-rnn.
"""

from __future__ import annotations

import copy
import io
from functools import cache
from typing import Any

import pytest
import torch
from helpers import TESTFILES, read
from runtime_helpers import as_torch, calls, difference, do, leaves

from t7bridge import state_dict
from t7bridge.layers import Fields, items_of, layer_of
from t7bridge.nn import apply_layout
from t7bridge.torchmodules import live_module
from t7bridge.torchmodules.layers.containers import MapTable
from t7bridge.torchmodules.layers.recurrent import FastLSTM
from t7bridge.torchmodules.layers.training import _choose

PACKAGES = ("rnn", "rnn2", "torch_rnn")

_SHARED = "all MuFuRu share the modules of their operations, of which Lua keeps the last outputs only"
_ALIAS = "in evaluation Lua writes all outputs into the same memory, so that the first ones are overwritten"
# What cannot agree, each with the reason.
UNEQUAL = {
    "rnn/attention.all": _ALIAS,
    "rnn2/attention.all": _ALIAS,
    "rnn/maskzero.grad": "Lua takes the gradients of masked rows for the parameters of the module inside",
    "rnn/mufuru.bigrad": _SHARED,
    "rnn/mufuru.bilm.sum": _SHARED,
    "rnn2/mufuru.bilm.sum": _SHARED,
}


@cache
def cases() -> dict[str, dict[str, Any]]:
    """Return Lua's recordings, by package and name of the case."""
    found = {}
    for package in PACKAGES:
        for name, case in read(TESTFILES / f"{package}_options.t7").raw_items():
            found[f"{package}/{name.decode()}"] = {key.decode(): value for key, value in case.raw_items()}
    return dict(sorted(found.items()))


def gradients_of_inputs(inputs: Any, wanted: Any) -> str:
    """Return how the gradients of inputs differ from Lua's, which are zeros where undefined."""
    for tensor, gradient in zip(leaves(inputs), leaves(as_torch(wanted))):
        found = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        why = difference(found, gradient.reshape(tensor.shape), 1e-3, 1e-4)
        if why:
            return f"gradient of an input {why}"
    return ""


def gradients_of_weights(case: dict[str, Any], module: torch.nn.Module) -> str:
    """Return how the gradients of parameters differ from Lua's, converted to PyTorch's layout like the weights."""
    pairs = list(zip(items_of(case["parameters"]) or (), items_of(case["gradParameters"]) or ()))
    for key, origin in state_dict(case["module"]).origins.items():
        if origin.param is None or origin.param.kind != "parameter":
            continue
        (gradient,) = [gradient for parameter, gradient in pairs if parameter is origin.tensor]
        layer = layer_of(origin.obj.class_name)
        wanted = as_torch(apply_layout(origin.layout, gradient, Fields(origin.obj, "", layer.defaults)))
        found = module.get_parameter(key).grad
        why = difference(torch.zeros_like(wanted) if found is None else found, wanted, 1e-3, 1e-4)
        if why:
            return f"gradient of {key} {why}"
    return ""


def disagreement(name: str) -> str:
    """Return where a case differs from Lua, or nothing."""
    case = cases()[name]
    module = live_module(case["module"], name).train(bool(case.get("train")))
    for number, call in enumerate(calls(case), 1):
        if "say" in call:
            do(module, call)
            continue
        inputs = as_torch(call["input"])
        learns = number == 1 and "gradInput" in case
        for tensor in leaves(inputs) if learns else ():
            tensor.requires_grad_(tensor.is_floating_point())
        with torch.set_grad_enabled(learns):
            output = module(inputs, as_torch(call["target"])) if "target" in call else module(inputs)
        why = difference(output, as_torch(call["output"]))
        if not why and learns:
            given = as_torch(case["gradOutput"]) if "gradOutput" in case else torch.ones_like(output)
            pairs = [(a, b.reshape(a.shape)) for a, b in zip(leaves(output), leaves(given)) if a.requires_grad]
            if pairs:
                torch.autograd.backward(*zip(*pairs))
            why = gradients_of_inputs(inputs, case["gradInput"])
            if not why and "gradParameters" in case:
                why = gradients_of_weights(case, module)
        if why:
            return f"call {number}: {why}"
    return ""


def detached(value: Any) -> Any:
    """Outputs as Lua's recorded ones are."""
    return [detached(part) for part in value] if isinstance(value, list) else value.detach()


@pytest.mark.slow
def test_there_are_many_cases():
    """The three files have the content of the generator."""
    counts = [sum(name.startswith(f"{package}/") for name in cases()) for package in PACKAGES]
    assert counts == [384, 343, 17]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_calls_give_what_lua_gave(subtests):
    """Consecutive calls return Lua's results, and gradients are Lua's."""
    for name in [name for name in cases() if name not in UNEQUAL]:
        with subtests.test(name=name):
            assert not disagreement(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNEQUAL)
def test_exceptions_are_still_needed(name):
    """A case that is named as unequal is."""
    assert disagreement(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rnn/lstm.both", "rnn/stack.both", "rnn/seq.gru.both", "rnn2/reclstm.both"])
def test_a_module_that_was_called_can_be_copied(name):
    """The state after a call is detached from the graph, so that a module can be copied, saved and trained on."""
    module = live_module(cases()[name]["module"])
    inputs = as_torch(calls(cases()[name])[0]["input"])
    module(inputs)
    twin = copy.deepcopy(module)
    torch.save(module, io.BytesIO())
    assert not difference(twin(inputs), detached(module(inputs)))
    for _ in range(2):
        sum(out.sum() for out in leaves(module(inputs))).backward()


@pytest.mark.parametrize("kind", ["bernoulli", "categorical", "normal", "table"])
@pytest.mark.parametrize("package", ["rnn", "rnn2"])
def test_gradients_of_what_was_drawn(package, kind):
    """For what Lua drew and the reward it got, gradients are Lua's."""
    case = cases()[f"{package}/drawn.{kind}"]
    drawn = {key.decode(): as_torch(value) for key, value in case["drawn"].raw_items()}
    layer = live_module(case["module"]).train()
    inputs = leaves(drawn["input"])
    for tensor in inputs:
        tensor.requires_grad_()
    layer.reinforce(drawn["reward"])
    _choose(layer, drawn["output"], *inputs).sum().backward()
    assert not gradients_of_inputs(inputs, case["drawn"].get(b"gradInput"))


@pytest.mark.parametrize("kind", ["bernoulli", "categorical", "normal"])
def test_choices(kind):
    """In training a layer chooses at random; backward without a reward is an error that says so."""
    layer = live_module(cases()[f"rnn/drawn.{kind}"]["module"]).train()
    inputs = torch.full((50, 4), 0.25, requires_grad=True)
    first, second = layer(inputs), layer(inputs)
    assert not torch.equal(first, second)
    if kind != "normal":
        assert set(first.unique().tolist()) == {0.0, 1.0}
    if kind == "categorical":
        assert (first.sum(1) == 1).all()
    with pytest.raises(RuntimeError, match="reinforce must be called"):
        first.sum().backward()


def test_rewards_are_given():
    """The criterion of rewards passes them, less the baseline, to the modules in its list."""
    criterion = live_module(cases()["rnn/c.vr"]["module"])
    layer = live_module(cases()["rnn/drawn.normal"]["module"])
    criterion.rewarded.append(torch.nn.Sequential(layer))
    criterion([torch.tensor([[0.2, 0.8], [0.9, 0.1]]), torch.tensor([[0.5], [0.25]])], torch.tensor([2.0, 2.0]))
    assert torch.allclose(layer.reward, torch.tensor([0.25, -0.125]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rnn/lstm.drop", "rnn/fast.mono", "rnn/gru.drop"])
def test_dropout_has_one_mask_for_a_sequence(name):
    """All steps lose the same elements in training; after backward, and in the next sequence, others are lost."""
    module = live_module(cases()[name]["module"]).train()
    drops = [part for part in module.modules() if type(part).__name__ == "SequenceDropout"]
    seen: list[torch.Tensor] = []
    drops[0].register_forward_hook(lambda part, inputs, output: seen.append(output == 0))
    torch.manual_seed(1)
    for _ in range(10):
        module(torch.ones(6, 4, 4)).sum().backward()
    steps = torch.stack(seen).unflatten(0, (10, 6))
    assert (steps == steps[:, :1]).all()
    assert not (steps == steps[:1]).all()
    assert any(part.state is None for part in drops)
    if name.endswith("mono"):
        assert (steps == steps[:, :, :1]).all()


def test_no_state_in_the_state_dict():
    """The state that a module keeps from its last call is not among its weights."""
    module = live_module(cases()["rnn/fast.midway"]["module"])
    before = list(module.state_dict())
    module(torch.randn(2, 4))
    assert list(module.state_dict()) == before == ["weight_ih", "weight_hh", "bias"]


def test_only_the_state_that_counts_is_taken_from_the_file():
    """A sequencer that starts again at each call does not carry what its cell held."""
    assert live_module(cases()["rnn/fast.midwayseq"]["module"])[0].state is None
    assert live_module(cases()["rnn/fast.midwayboth"]["module"])[0].state is not None


def test_new_elements_of_a_map_table():
    """An element that is new begins with the state of the first module, of which Lua makes a clone for it."""
    cell = FastLSTM(2, 3)
    alone = copy.deepcopy(cell)
    first, second, third = torch.randn(3, 1, 2)
    module = MapTable(cell)
    module([first, second])
    *_, output = module([first, second, third])
    alone(first)
    assert torch.equal(output, alone(third))


def test_masks_must_be_told():
    """A layer that requires a mask of zeros raises an error without one."""
    module = live_module(cases()["rnn2/mask.linear"]["module"])
    with pytest.raises(RuntimeError, match="set_zero_mask"):
        module(torch.randn(3, 2, 4))
