"""Models whose states, statistics or biases were once others than Lua's, over the calls that Lua recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz_networks import records, written
from helpers import TESTFILES
from runtime_helpers import as_torch, copied, difference
from source_helpers import generate

import t7bridge
from t7bridge.torchmodules import live_module

STEPS = {record["name"].decode(): record for record in records(TESTFILES / "found_steps.t7")}
EXACT = 1e-12
"""The models are of doubles: a state or a statistic that was rounded to float differs by more."""


def first_difference(module: Any, record: dict[str, Any]) -> str:
    """Where the outputs of consecutive calls differ from Lua's; empty if nowhere."""
    for number, call in enumerate(record["calls"].as_list(), 1):
        module.train(bool(call["train"]))
        why = difference(module(copied(as_torch(call["input"]))), as_torch(call["output"]), EXACT, EXACT)
        if why:
            return f"call {number}: {why}"
    return ""


@pytest.mark.parametrize("name", STEPS)
def test_every_call_is_as_in_lua(name: str, tmp_path: Path) -> None:
    """The live module, with recognized cells and without, and the page compute what Lua did, call after call."""
    record = STEPS[name]
    for lift in (False, True):
        assert not first_difference(live_module(record["model"], "root", lift=lift), record)
    assert not first_difference(written(record, tmp_path)(), record)


@pytest.mark.parametrize("lift", [True, False], ids=["recognized", "plain"])
@pytest.mark.parametrize("name", [name for name in STEPS if not name.startswith(("map", "state"))])
def test_every_trained_weight_goes_back(name: str, lift: bool, tmp_path: Path) -> None:
    """Whatever the weights of a page become, the Lua model has a place for them."""
    written(STEPS[name], tmp_path)
    t7bridge.write_module(tmp_path / "model.t7", tmp_path / "page", lift=lift)
    state = torch.load(tmp_path / "page" / "model.pt")
    # Lua has one bias where PyTorch has two, which are added.
    trained = {key: value + 0.5 for key, value in state.items()}
    torch.save(trained, tmp_path / "trained.pt")
    t7bridge.convert(tmp_path / "trained.pt", tmp_path / "back.t7", template=tmp_path / "model.t7")
    t7bridge.write_module(tmp_path / "back.t7", tmp_path / "again", lift=lift)
    again = torch.load(tmp_path / "again" / "model.pt")
    assert again.keys() == trained.keys()
    for key, value in trained.items():
        pair = [again, trained]
        if "bias_ih" in key or "bias_hh" in key:
            both = [key, key.replace("bias_ih", "bias_hh") if "bias_ih" in key else key.replace("bias_hh", "bias_ih")]
            assert torch.allclose(*(sum(each[name] for name in both if name in each) for each in pair))
        else:
            assert torch.allclose(again[key], value), key


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("square_lstm", ["recognized: lstm (LSTMCell)"]),
        ("square_lstm_unrolled", ["recognized: lstm (LSTMCell) (and at 1 more place)"]),
        ("gru_bias_of_gates", ["GRU stays as it is: only some of its layers have a bias"]),
        (
            "gru_after_bias_of_input_unrolled",
            ["GRU stays as it is: only some of its layers have a bias (and at 2 more places)"],
        ),
    ],
)
def test_notes(name: str, messages: list[str]) -> None:
    """One note says what was recognized, or why not, however many steps there are."""
    notes = [note.message for note in generate(STEPS[name]["model"]).notes if note.code == "lift"]
    assert notes == messages


def test_statistics_follow_the_module() -> None:
    """The statistics of further elements are of the type of the model, and an exported module has none."""
    record = STEPS["map_statistics"]
    module = live_module(record["model"], "root").train()
    module([torch.randn(4, 3, dtype=torch.double) for _ in range(3)])
    assert {tensor.dtype for own in module.float().statistics for tensor in own} == {torch.float32, torch.int64}
    module([torch.randn(4, 3) for _ in range(3)])
    assert module.state_dict().keys() == live_module(record["model"], "root").state_dict().keys()
