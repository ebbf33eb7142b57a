"""Classes of popular programs against what their own Lua code computed: what gen/zoo_classes.lua recorded."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from helpers import TESTFILES, read
from runtime_helpers import as_torch, difference, gradient_difference, run

from t7bridge import state_dict
from t7bridge.torchmodules import live_module
from t7bridge.workshop.packages.w2nn.modules import ClippedMSECriterion, HuberCriterion


@cache
def cases() -> dict[str, dict[str, Any]]:
    """Return Lua's recordings, by the name of the case."""
    table = read(TESTFILES / "zoo_classes.t7")
    return {name.decode(): {key.decode(): value for key, value in case.raw_items()} for name, case in table.raw_items()}


# Gradients that cannot agree, each with the reason.
_TWO = "PyTorch has two biases where Lua has one"
_FIXED = "Lua lists a gradient of zero for what is not learned"
_SCALED = "Lua divides the gradient by the elements of the image, and the loss by those of what the filters give"
UNEQUAL_GRADIENTS = {
    "texture.circular": "Lua hands no gradient back through the corners",
    "torchrnn.lstm0": _TWO,
    "torchrnn.lstm1": _TWO,
    "torchrnn.rnn0": _TWO,
    "torchrnn.rnn1": _TWO,
    "w2nn.edge": _FIXED,
    "w2nn.lbp": _SCALED,
    "w2nn.lbp.rows": _SCALED,
    "w2nn.random": _FIXED,
}


def live(name: str) -> torch.nn.Module:
    """The live module of a case, in the mode in which Lua ran it."""
    return live_module(cases()[name]["module"], name).train("train" in cases()[name])


def recorded(name: str) -> dict[str, Any]:
    """Input and output of a case, and whatever else is there, as torch has it."""
    return {key: as_torch(value) for key, value in cases()[name].items() if key not in ("module", "train")}


def criterion_gradient(name: str) -> str:
    """Return how the gradient of a criterion's input differs from Lua's, or nothing."""
    case = recorded(name)
    case["input"].requires_grad_()
    run(live(name), case).backward()
    return difference(case["input"].grad, case["gradInput"])


def gradients(name: str) -> str:
    """Return how gradients differ from Lua's, or nothing."""
    if "target" in cases()[name]:
        return criterion_gradient(name)
    case = recorded(name)
    return gradient_difference(live(name), case["input"], case)


def test_output_is_that_of_lua(subtests):
    """The live module returns what Lua's returned."""
    for name in sorted(cases()):
        with subtests.test(name=name):
            case = recorded(name)
            with torch.no_grad():
                assert not difference(run(live(name), case), case["output"])


def with_gradients() -> list[str]:
    """The cases whose gradients Lua recorded, and agree."""
    return [name for name, case in sorted(cases().items()) if "gradInput" in case and name not in UNEQUAL_GRADIENTS]


@pytest.mark.slow
def test_gradients_are_those_of_lua(subtests):
    """Backward returns Lua's gradients."""
    for name in with_gradients():
        with subtests.test(name=name):
            assert not gradients(name)


@pytest.mark.parametrize("name", sorted(UNEQUAL_GRADIENTS))
def test_exceptions_are_still_needed(name):
    """A case that is named as unequal is."""
    assert gradients(name)


@pytest.mark.parametrize("largest", [1e6, float("inf")])
def test_loss_of_a_clipped_input_is_exact(largest):
    """The loss of w2nn's clipped criterions is that of the bounds, however far outside of these the input is."""
    input = torch.tensor([[largest, -largest, 0.5]])
    target = torch.tensor([[0.3, 0.3, 0.3]])
    wanted = torch.nn.functional.mse_loss(input.clamp(0, 1), target)
    torch.testing.assert_close(ClippedMSECriterion()(input, target), wanted)
    huber = HuberCriterion((3,), clip=(0.0, 1.0))
    torch.testing.assert_close(huber(input, target), wanted / 2)


def test_keys_are_those_of_the_state_dict(subtests):
    """The live module has the keys and shapes that `convert` writes, and nothing of the file is left out unseen."""
    for name in sorted(cases()):
        with subtests.test(name=name):
            module = cases()[name]["module"]
            state = state_dict(module, name)
            assert {key: tuple(value.shape) for key, value in live(name).state_dict().items()} == {
                key: value.shape for key, value in state.tensors.items()
            }
            assert not [note.message for note in state.notes if note.level == "warning"]
