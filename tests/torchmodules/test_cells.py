"""Recurrent cells, highway layers and attention of published programs, against Lua Torch over 50 steps."""

from __future__ import annotations

import pytest
from fuzz_networks import records
from helpers import TESTFILES
from runtime_helpers import as_torch, copied, difference, gradient_difference, step_differences

from t7bridge.torchmodules import live_module

CELLS = {record["name"].decode(): record for record in records(TESTFILES / "cells.t7")}
DOUBLE = {name for name in CELLS if name.endswith("_double")}


def exactness(name: str) -> float:
    """The largest difference allowed between the outputs of a record and Lua's."""
    return 1e-9 if name in DOUBLE else 1e-5


@pytest.mark.parametrize("name", CELLS)
def test_steps(name):
    """With the state carried, every model computes what Lua did."""
    module = live_module(CELLS[name]["model"], "root").eval()
    assert not step_differences(module, CELLS[name], atol=exactness(name))


@pytest.mark.parametrize("name", [name for name, record in CELLS.items() if "gradInput" in record])
def test_training(name):
    """Models without dropout compute the same output in training, and Lua's gradients of their inputs."""
    record = CELLS[name]
    module = live_module(record["model"], "root").train()
    wanted = {key: as_torch(record[key]) for key in ("gradOutput", "gradInput")}
    inputs = as_torch(record["inputs"])
    assert not difference(module(copied(inputs)), as_torch(record["trainOutput"]), 0, exactness(name))
    assert not gradient_difference(module, inputs, {**wanted, "gradParameters": []})
