"""Gradients of inputs and parameters against Lua's backward."""

from __future__ import annotations

import pytest
import torch
from helpers import corpus, name_of
from runtime_helpers import gradient_difference, recorded

import t7bridge
from t7bridge.torchmodules import live_module

CASES = [path.with_suffix("").with_suffix(".t7") for path in corpus("nn/*.grad.t7")]

_RANDOM = "the gradients depend on random numbers that Lua drew and that are not in the file"
# What cannot agree, each with the reason.
UNEQUAL = {
    "nn/SpatialFractionalMaxPooling.t7": _RANDOM,
    "nn/VolumetricFractionalMaxPooling.t7": _RANDOM,
    "nn/MapTable.t7": "Lua lists the gradients of the one module once for each element of the last input",
}


def disagreement(path):
    """Return how gradients differ from Lua's, or nothing."""
    torch.manual_seed(0)
    return gradient_difference(t7bridge.load_module(path), recorded(path, "io")["input"], recorded(path, "grad"))


def test_gradients_are_those_of_lua(subtests):
    """Backward returns Lua's gradients, of inputs and parameters."""
    for path in [path for path in CASES if name_of(path) not in UNEQUAL]:
        with subtests.test(name_of(path)):
            assert not disagreement(path)


@pytest.mark.parametrize("path", [path for path in CASES if name_of(path) in UNEQUAL], ids=name_of)
def test_exceptions_are_still_needed(path):
    """A case that is named as unequal is."""
    assert disagreement(path)


def test_infinite_elements_are_clipped():
    """An infinite element becomes a bound like any other, and its gradient passes."""
    fields = t7bridge.Table.of({"minval": -1.0, "maxval": 2.0})
    module = live_module(t7bridge.TorchObject("nn.Clip", 1, fields))
    input = torch.tensor([[float("-inf"), 0.5, float("inf")]], requires_grad=True)
    output = module(input)
    output.sum().backward()
    assert output.tolist() == [[-1.0, 0.5, 2.0]]
    assert input.grad is not None
    assert input.grad.tolist() == [[1.0, 1.0, 1.0]]
