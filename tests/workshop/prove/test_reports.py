"""The result of prove in the reports of other verbs: the notes of module, match and zoo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import TESTFILES

import t7bridge
from t7bridge import Storage, T7Reader
from t7bridge.cli import main
from t7bridge.formats.t7.writer import T7Writer
from t7bridge.nn.places import module_at
from t7bridge.workshop.prove import try_proof

LENET = TESTFILES / "prove/lenet.train.t7"


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """LeNet with one weight of its second convolution changed by a thousandth."""
    value = T7Reader(LENET).read_object()
    conv = module_at(value, "root.modules[4]")
    assert conv is not None
    array = conv["weight"].storage.array.copy()
    array[7] *= 1.001
    storage = Storage.from_array(array)
    conv["weight"].storage = storage
    with open(tmp_path / "changed.t7", "wb") as stream:
        T7Writer(stream).write_object(value)
    return tmp_path / "changed.t7"


def test_module_says_what_was_proved(changed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A note in the report of `module --prove`: a warning where a layer differs; without --prove there is none."""
    assert main(["module", str(changed), "-o", str(tmp_path / "a"), "--prove", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    (note,) = [note for note in notes if note["code"] == "prove"]
    assert note["level"] == "warning"
    assert "root.modules[4], nn.SpatialConvolution" in note["message"]
    assert main(["module", str(LENET), "-o", str(tmp_path / "b"), "--json"]) == 0
    assert all(note["code"] != "prove" for note in json.loads(capsys.readouterr().out)["notes"])


def test_match_runs_both_models(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """`match --prove` with a factory runs both models on the same inputs; without one it proves the .t7."""
    (tmp_path / "prove_matched.py").write_text(
        f"import t7bridge\ndef make(): return t7bridge.load_module({str(LENET)!r})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    t7bridge.convert(LENET, tmp_path / "target.pt")
    asked = ["match", str(LENET), str(tmp_path / "target.pt"), "-o", str(tmp_path / "out.pt"), "--prove"]
    assert main([*asked, "--module", "prove_matched:make"]) == 0
    assert "layers of prove_matched:make" in capsys.readouterr().err
    assert main([*asked, "--force"]) == 0
    assert "recorded activations of Lua Torch" in capsys.readouterr().err


def test_zoo_notes_each_file(changed: Path, tmp_path: Path):
    """Each file of `zoo --prove` has the sentence among its notes."""
    report = t7bridge.convert_zoo([changed, LENET], tmp_path / "out", prove=True, workers=0)
    assert report.ok
    text = (tmp_path / "out" / "report.json").read_text()
    assert "proof: root.modules[4], nn.SpatialConvolution and root.modules[5], nn.ReLU, do not compute" in text
    assert "proof: checked against 11 recorded activations of Lua Torch" in text


def test_what_cannot_be_proved_is_said(tmp_path: Path):
    """A file without modules, and one without recorded values, have a note too."""
    assert "not possible" in try_proof(TESTFILES / "format/number.t7").note().message
    assert "nothing in the file could be checked" in try_proof(TESTFILES / "models/lenet_mm.t7").note().message


@pytest.mark.parametrize(
    ("name", "fields"),
    [("Linear", "weight bias"), ("LinearWeightNorm", "v g bias"), ("WeightedEuclidean", "weight diagCov")],
)
def test_weights_under_any_name_are_counted(name: str, fields: str):
    """The parameters of a layer are its learned tensors, whatever their fields are called."""
    layer = t7bridge.load(path := TESTFILES / "nn" / f"{name}.t7")
    assert t7bridge.prove(path).summary()["parameters"] == sum(layer[field].numel for field in fields.split())
