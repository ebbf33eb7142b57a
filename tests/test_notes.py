"""Notes for programs: each has a code of the one table, and fields in the place of numbers in its message."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import TESTFILES, run_here

import t7bridge
from t7bridge.report import CODES


def test_every_note_has_a_code():
    """A note is not made without a code, or with one that is not in the table."""
    assert t7bridge.Note("info", "root", "shared", code="shared").code in CODES
    for wrong in ({}, {"code": "unheard"}):
        with pytest.raises((TypeError, ValueError)):
            t7bridge.Note("info", "root", "a message", **wrong)


def test_fields_instead_of_messages(tmp_path):
    """Codes, classes and counts agree with the messages."""
    half = torch.ones(3, dtype=torch.bfloat16)
    torch.save({"a": half, "b": half * 2, "tied": half, "text": ["x"]}, tmp_path / "a.pt")
    notes = {note.code: note for note in t7bridge.convert(tmp_path / "a.pt", tmp_path / "a.npz").notes}
    assert notes["element-type"].count == 3
    assert notes["shared"].count == 2
    torch.save(torch.nn.Sequential(torch.nn.Linear(2, 2)), tmp_path / "m.pt")
    notes = {note.code: note for note in t7bridge.convert(tmp_path / "m.pt", tmp_path / "n.pt").notes}
    assert notes["state-dict"].class_name == "torch.nn.modules.container.Sequential"
    table = t7bridge.Table.of({"w": t7bridge.Tensor.from_numpy(np.ones(2))})
    t7bridge.save(t7bridge.TorchObject("nn.Unheard", 1, table), tmp_path / "u.t7")
    notes = {note.code: note for note in t7bridge.convert(tmp_path / "u.t7", tmp_path / "u.pt").notes}
    assert notes["unmapped"].class_name == "nn.Unheard"


def test_types_that_numpy_lacks_come_back(tmp_path):
    """bfloat16 and float8 are float32 in npz and HDF5, with a note, and their original type for our reader."""
    made = {"b": torch.tensor([1.5, -2.0]).bfloat16(), "f": torch.tensor([0.5, 4.0]).to(torch.float8_e4m3fn)}
    torch.save(made, tmp_path / "a.pt")
    for suffix in ("npz", "h5"):
        middle, back = tmp_path / f"a.{suffix}", tmp_path / f"{suffix}.pt"
        report = t7bridge.convert(tmp_path / "a.pt", middle)
        assert [note.loss for note in report.notes if note.code == "element-type"]
        t7bridge.convert(middle, back)
        found = torch.load(back, weights_only=True)
        assert {name: tensor.dtype for name, tensor in found.items()} == {name: t.dtype for name, t in made.items()}
        assert all(torch.equal(found[name].float(), made[name].float()) for name in made)
        assert {name: tensor.dtype for name, tensor in t7bridge.load(middle).items()} == {
            "b": "bfloat16",
            "f": "float8_e4m3fn",
        }


@pytest.mark.slow
def test_results_in_notebooks(tmp_path: Path) -> None:
    """A notebook shows what the command line prints, escaped."""
    model, other = TESTFILES / "models/lenet_mm.t7", tmp_path / "<b>.pt"
    results = {
        "convert": t7bridge.convert(model, other),
        "verify": t7bridge.verify(model, other),
        "diff": t7bridge.diff(model, TESTFILES / "models/resnet_small.t7"),
        "prove": t7bridge.prove(TESTFILES / "prove/mlp.train.t7"),
        "zoo": t7bridge.convert_zoo(model, tmp_path / "zoo"),
    }
    words = {
        "prove": [TESTFILES / "prove/mlp.train.t7"],
        "verify": [model, other],
        "convert": [model, other, "--force"],
    }
    for verb, result in results.items():
        shown = result._repr_html_()
        assert shown.startswith("<pre>")
        assert "<b>" not in shown
        for line in run_here(verb, *words[verb]).stdout.splitlines() if verb in words else ():
            assert escape(line, quote=False) in shown, verb
    assert "1 done, 0 failed" in results["zoo"]._repr_html_()
    assert "class" in str(results["diff"])
