"""Networks made at random, and the smallest examples of former differences, against Lua Torch in both modes."""

from __future__ import annotations

import pytest
import torch
from fuzz_networks import gradients, outputs, records, written
from helpers import TESTFILES

from t7bridge.torchmodules import live_module

FILES = (
    *("random_nn", "random_graph", "random_expr", "random_rnn", "random_lists"),
    *(
        "found_nets",
        "found_pages",
        "found_windows",
        "found_lists",
        "found_states",
        "found_lengths",
        "found_kinks",
        "found_rounding",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_live_modules_compute_what_lua_did(name):
    """Outputs in evaluation and training, of a second call, and the gradients of inputs and weights are Lua's."""
    torch.set_num_threads(1)
    compared, wrong = 0, []
    for number, record in enumerate(records(TESTFILES / f"{name}.t7"), 1):

        def make(model=record["model"]):
            return live_module(model, "root")

        for mode, why in outputs(make, record):
            compared += 1
            wrong += [(number, mode, why)] if why else []
        why = gradients(make, record)
        wrong += [(number, "grads", why)] if why else []
    assert not wrong
    assert compared >= 30


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_generated_source_computes_what_lua_did(name, tmp_path):
    """The model.py of each network computes Lua's outputs, in evaluation and training, and in a second call."""
    torch.set_num_threads(1)
    compared, wrong = 0, []
    for number, record in enumerate(records(TESTFILES / f"{name}.t7"), 1):
        for mode, why in outputs(written(record, tmp_path), record):
            compared += 1
            wrong += [(number, mode, why)] if why else []
    beyond = [number for number, _, why in wrong if "stack expects each tensor to be equal size" in why]
    # In a page nn.FastLSTM is an nn.LSTM, whose steps have one shape: some lack the batch here.
    assert beyond == ([44] if name == "found_lists" else [])
    assert len(wrong) == len(beyond), wrong
    assert compared >= 30
