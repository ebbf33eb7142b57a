"""Lua models that became PyTorch modules go back into Lua models that compute what Lua recorded on the first."""

from __future__ import annotations

import pytest
import torch
from helpers import TESTFILES, read
from lua_nets import flat
from runtime_helpers import as_torch

import t7bridge

MODELS = sorted(path.name.removesuffix(".io.t7") for path in (TESTFILES / "models").glob("*.io.t7"))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_lua_to_pytorch_to_lua(name, tmp_path):
    """The second Lua model, loaded again, has the outputs that Lua Torch recorded for the first."""
    path = TESTFILES / "models" / f"{name}.t7"
    case = read(path.with_name(f"{name}.io.t7"))
    module = t7bridge.load_module(path, at="root.model" if "checkpoint" in name else None).eval()
    value = as_torch(case["input"])
    t7bridge.save_module(module, tmp_path / "back.t7", example_inputs=(value,))
    again = t7bridge.load_module(tmp_path / "back.t7")
    assert list(again.state_dict()) == list(module.state_dict())
    with torch.no_grad():
        outputs = flat(again(value))
    for mine, lua in zip(outputs, flat(as_torch(case["output"])), strict=True):
        torch.testing.assert_close(mine, lua, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_nn_view_leaves_the_batch_open(tmp_path):
    """A live model that ends with nn.View takes any batch in Lua, as the original one does."""
    module = t7bridge.load_module(TESTFILES / "models" / "resnet_small.t7")
    t7bridge.save_module(module, tmp_path / "back.t7", example_inputs=torch.randn(1, 3, 16, 16))
    more = torch.randn(5, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(t7bridge.load_module(tmp_path / "back.t7")(more), module(more))


@pytest.mark.slow
def test_nn_reshape_leaves_the_batch_open(tmp_path):
    """A live lenet, whose nn.Reshape has no batchMode, takes any batch in Lua, as the original one does."""
    module = t7bridge.load_module(TESTFILES / "models" / "lenet_mm.t7")
    for batch in (1, 3):
        t7bridge.save_module(module, tmp_path / "back.t7", example_inputs=torch.randn(batch, 1, 32, 32), force=True)
        back = t7bridge.load_module(tmp_path / "back.t7")
        for other in (1, 2, 5):
            more = torch.randn(other, 1, 32, 32)
            with torch.no_grad():
                torch.testing.assert_close(back(more), module(more))
