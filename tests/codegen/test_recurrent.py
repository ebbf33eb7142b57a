"""Generated models of recurrent networks against Lua: what they remember from call to call, masks, options."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from helpers import TESTFILES, read
from looping import new_folder
from runtime_helpers import as_torch, calls, difference, do
from source_helpers import generate, run_source

from t7bridge import Table, TorchObject

PACKAGES = ("rnn", "rnn2", "torch_rnn")
# In evaluation Lua writes all outputs into the same memory, so that the first ones are overwritten.
UNEQUAL = {"rnn/attention.all", "rnn2/attention.all"}


@cache
def cases() -> dict[str, dict[str, Any]]:
    """The cases in evaluation mode, by package and name."""
    by_name = {}
    for package in PACKAGES:
        for name, case in read(TESTFILES / f"{package}_options.t7").raw_items():
            if not case.get(b"train"):
                by_name[f"{package}/{name.decode()}"] = {key.decode(): value for key, value in case.raw_items()}
    return dict(sorted(by_name.items()))


def disagreement(name: str, folder: Any) -> str:
    """Return which call of a case first returns another output than Lua's, and how they differ; empty if none does."""
    case = cases()[name]
    _, model = run_source(case["module"], folder)
    for number, call in enumerate(calls(case), 1):
        if "say" in call:  # what Lua did between two calls, such as `forget`
            do(model, call)
            continue
        inputs = [as_torch(call[key]) for key in ("input", "target") if key in call]
        with torch.no_grad():
            how = difference(model(*inputs), as_torch(call["output"]))
        if how:
            return f"call {number}: {how}"
    return ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_outputs_are_those_of_lua(subtests, tmp_path):
    """Every call returns what Lua's module returned."""
    for name in [name for name in cases() if name not in UNEQUAL]:
        with subtests.test(name=name), new_folder(tmp_path) as folder:
            assert not disagreement(name, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(UNEQUAL))
def test_exceptions_are_still_needed(name, tmp_path):
    """A case that is named as unequal is."""
    assert disagreement(name, tmp_path)


def test_equal_cells_stay_apart():
    """Small cells of equal weights are two modules, as in Lua; one cell at two places is one."""
    first, second = (read(TESTFILES / "found_cells.t7").as_list()[11].model for _ in range(2))
    for other, count in ((second, 6), (first, 3)):
        both = TorchObject("nn.ConcatTable", 1, Table.of({"modules": Table.from_list([first, other])}))
        assert len(generate(both).tensors) == count
