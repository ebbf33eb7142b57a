"""What Lua runs where a class holds a module twice, Lua's own rules, and one step of training, against Lua Torch."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from fuzz_networks import gradients, outputs, records, written
from helpers import TESTFILES
from runtime_helpers import as_torch, copied, difference

from t7bridge.torchmodules import live_module

STEPS = {record["text"].decode(): record for record in records(TESTFILES / "found_bias_steps.t7")}


@cache
def found_inside():
    """The networks that Lua recorded."""
    return records(TESTFILES / "found_inside.t7")


def text_of(record):
    return record["text"].decode()


def test_live_modules_compute_what_lua_did():
    """Outputs in evaluation and training, and gradients of inputs, are Lua's."""
    torch.set_num_threads(1)
    wrong = []
    for number, record in enumerate(found_inside(), 1):

        def make(model=record["model"]):
            return live_module(model, "root")

        wrong += [(number, text_of(record), mode, why) for mode, why in outputs(make, record) if why]
        why = gradients(make, record)
        wrong += [(number, text_of(record), "gradients", why)] if why else []
    assert not wrong
    assert len(found_inside()) >= 90


@pytest.mark.slow
def test_generated_source_computes_what_lua_did(tmp_path):
    """The model.py of each network computes Lua's outputs; a kernel larger than its input is refused."""
    torch.set_num_threads(1)
    wrong = []
    for number, record in enumerate(found_inside(), 1):
        if text_of(record).startswith(("shapes", "Conv of a volume")) or text_of(record) == "Conv":
            continue
        wrong += [(number, text_of(record), *found) for found in outputs(written(record, tmp_path), record) if found[1]]
    assert not wrong


def trained(module, record):
    """Return the output of a module in evaluation after one step of SGD with a rate of 0.1, as in the record."""
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    output = module(copied(as_torch(record["input"])))
    gradient = as_torch(record["gradOutput"])
    pairs = [*zip(output, gradient)] if isinstance(gradient, list) else [(output, gradient)]
    sum((one * other).sum() for one, other in pairs).backward()
    optimizer.step()
    module.eval()
    if hasattr(module, "forget"):
        module.forget()
    return module(copied(as_torch(record["input"])))


@pytest.mark.parametrize("lift", [False, True], ids=["plain", "recognized"])
@pytest.mark.parametrize("name", STEPS)
def test_one_step_of_training_moves_as_far_as_lua(name, lift):
    """One bias of Lua is one trained bias: the second one of PyTorch stays zero."""
    record = STEPS[name]
    module = live_module(record["model"], "root", lift=lift)
    found = trained(module, record)
    assert not difference(found, as_torch(record["output"]), 0, 1e-9)
    after = live_module(record["after"], "root", lift=lift).state_dict()
    assert {*after} == {*module.state_dict()}
    for key, tensor in module.state_dict().items():
        assert torch.allclose(tensor, after[key], rtol=0, atol=1e-9), key


def test_one_step_of_training_of_a_page(tmp_path):
    """The constructor of a model.py excludes the second bias from training."""
    for name in ("two levels", "SeqLSTMP", "Sequencer of FastLSTM"):
        record = STEPS[name]
        found = trained(written(record, tmp_path)(), record)
        assert not difference(found, as_torch(record["output"]), 0, 1e-9)
        assert "bias_hh_l0.requires_grad_(False)" in (tmp_path / "model.py").read_text(encoding="utf-8")
