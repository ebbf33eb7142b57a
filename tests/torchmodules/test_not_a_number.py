"""NaN: which layers of Lua Torch have a number for it, where PyTorch's modules keep it."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import ROOT, TESTFILES, read
from runtime_helpers import as_torch

from t7bridge.torchmodules import live_module

RECORDS = {str(name): record for name, record in read(TESTFILES / "not_a_number.t7").items()}
LOWEST = torch.finfo(torch.float32).min

IN_LUA = {
    "nn.ReLU": {0.0},
    "nn.CReLU": {0.0},
    "nn.Threshold": {-1.0},  # its value
    "nn.HardShrink": {0.0},
    "nn.SoftShrink": {0.0},
    "nn.HardTanh": {1.0},  # the upper bounds
    "nn.Clamp": {2.0},
    "nn.ReLU6": {6.0},
}
"""What Lua returns for NaN, and PyTorch does not."""
POOLING = (
    "nn.TemporalMaxPooling",
    "nn.SpatialMaxPooling",
    "nn.SpatialDilatedMaxPooling",
    "nn.SpatialAdaptiveMaxPooling",
    "nn.VolumetricMaxPooling",
)


def outputs_of(name):
    """Return the outputs of a layer in Lua and here, where they differ."""
    record = RECORDS[name]
    module = live_module(record["model"], "root").eval()
    with torch.no_grad():
        own = module(as_torch(record["input"]))
    lua = as_torch(record["output"])
    differs = ~torch.isclose(own, lua, rtol=1e-4, atol=1e-6, equal_nan=True)
    return lua[differs].tolist(), own[differs].tolist()


@pytest.mark.parametrize("name", RECORDS)
def test_nan_is_what_the_documents_say(name):
    """PyTorch's modules keep NaN in every layer; Lua does but in those that the list of differences names."""
    lua, own = outputs_of(name)
    if name == "nn.LogSigmoid":
        assert own == [-math.inf]
        assert [str(value) for value in lua] == ["nan"]
    elif name in IN_LUA:
        assert set(lua) == IN_LUA[name]
        assert all(math.isnan(value) for value in own)
    elif name in POOLING:
        assert lua
        assert all(math.isfinite(value) for value in lua)
        assert all(math.isnan(value) for value in own)
    else:
        assert not own


def test_a_window_of_nan_alone():
    """Lua's largest of no number is the lowest finite one."""
    assert LOWEST in outputs_of("nn.SpatialMaxPooling")[0]


def test_the_differences_are_listed():
    """Every class with another result is named where the differences are."""
    text = (ROOT / "docs" / "limits.md").read_text("utf-8")
    (paragraph,) = [part for part in text.split("\n- ") if part.startswith("**NaN in comparisons.**")]
    assert [name for name in (*IN_LUA, *POOLING, "nn.LogSigmoid") if f"`{name}`" not in paragraph] == []
