"""What stands beside a model travels with it: into `config.json`, or the metadata of named tensors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers import TESTFILES
from torch import nn

import t7bridge
from t7bridge import Table
from t7bridge.conversion.beside import about, beside
from t7bridge.errors import TargetExistsError
from t7bridge.graph import PythonGlobal, PythonObject

STYLENET = TESTFILES / "beside/stylenet.t7"
CHECKPOINT = TESTFILES / "models/training_checkpoint.t7"
CHAR_RNN = TESTFILES / "tutorials/char_rnn.t7"


def config_of(path: Path) -> dict[str, Any]:
    """Return the data of a `config.json`, or of the metadata of a file of named tensors."""
    if path.suffix == ".json":
        return json.loads(path.read_text())
    with t7bridge.open(path) as document:
        return json.loads(document.metadata["config"])


@pytest.mark.parametrize("suffix", ["pt", "safetensors", "npz", "h5"])
def test_a_part_keeps_what_describes_it(tmp_path: Path, suffix: str) -> None:
    """With `--at`, mean and deviation are those that Lua wrote, in a file beside the `.pt` or in the metadata."""
    target = tmp_path / f"net.{suffix}"
    report = t7bridge.convert(STYLENET, target, at="root.stylenet")
    config = config_of(tmp_path / "net.config.json" if suffix == "pt" else target)
    assert config["checkpoint"] == {"mean": [0.5657, 0.538, 0.497], "std": [0.29, 0.287, 0.293]}
    assert set(config["about"]) == {"checkpoint.mean", "checkpoint.std"}
    assert any(note.code == "beside" and "mean, std" in note.message for note in report.notes)
    assert list(t7bridge.load_state_dict(target)) in (["0.weight", "0.bias"], ["0.bias", "0.weight"])
    if suffix == "safetensors":
        assert "config" in safetensors.safe_open(target, "np").metadata()


def test_a_module_has_it_in_its_folder(tmp_path: Path) -> None:
    """`module` writes lists of numbers, small tensors, class names and options; not weights, and not gradients."""
    t7bridge.write_module(STYLENET, tmp_path / "a")
    assert config_of(tmp_path / "a/config.json")["checkpoint"]["std"] == [0.29, 0.287, 0.293]
    t7bridge.write_module(CHECKPOINT, tmp_path / "b")
    config = config_of(tmp_path / "b/config.json")
    assert np.allclose(config["checkpoint"].pop("mean"), [0.485, 0.456, 0.406])
    options = {"learningRate": 0.1, "momentum": 0.9}
    assert config["checkpoint"] == {"optimState": options, "classes": ["cat", "dog"], "epoch": 12}
    assert "index 0 here and in tensors is class 1" in config["about"]["checkpoint.classes"]


def test_vocabularies_say_how_they_count(tmp_path: Path) -> None:
    """Lua counts from 1; the model takes the numbers that `index_base` asks for."""
    for base in (0, 1):
        t7bridge.write_module(CHAR_RNN, tmp_path / f"{base}", index_base=base)
        config = config_of(tmp_path / f"{base}/config.json")
        assert config["checkpoint"]["vocab"]["a"] == 4
        text = config["about"]["checkpoint.vocab"]
        assert text.startswith("1-based in Lua; index 0 of the embedding is token 1")
        assert text.endswith(f"from {base} on")


def test_a_checkpoint_of_pytorch(tmp_path: Path) -> None:
    """Options, numpy's numbers and class names are data; the optimizer is not. Nothing is said of Lua's counting."""
    import argparse

    options = argparse.Namespace(lr=0.1, arch="resnet")
    value = {
        "model": nn.Linear(2, 2).state_dict(),
        "optimizer": torch.load(TESTFILES / "pt/checkpoint_adam.pt", weights_only=False)["optimizer"],
        "args": options,
        "best": np.float64(0.5),
        "classes": ["a", "b"],
        "mean": torch.tensor([1.0, 2.0]),
    }
    torch.save(value, tmp_path / "in.pt")
    t7bridge.convert(tmp_path / "in.pt", tmp_path / "out.pt", at="root.model")
    config = config_of(tmp_path / "out.config.json")
    expected = {"args": {"lr": 0.1, "arch": "resnet"}, "best": 0.5, "classes": ["a", "b"], "mean": [1.0, 2.0]}
    assert config["checkpoint"] == expected
    assert set(config["about"]) == {"checkpoint.mean"}


class Classifier(nn.Linear):
    """A module with data of its own."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.class_names = ["cat", "dog"]
        self.scale = 0.5
        self.register_buffer("table", torch.arange(3.0), persistent=False)


def test_attributes_of_pickled_modules(tmp_path: Path) -> None:
    """Those of a whole module are in the file beside the `.pt`, and not named as lost, unless it is not wanted."""
    torch.save(Classifier(), tmp_path / "whole.pt")
    lost = t7bridge.convert(tmp_path / "whole.pt", tmp_path / "plain.pt", config=False)
    assert any(note.level == "warning" and note.path == "root.class_names" for note in lost.notes)
    assert not (tmp_path / "plain.config.json").exists()
    expected = {"table": [0.0, 1.0, 2.0], "class_names": ["cat", "dog"], "scale": 0.5}
    expected |= {"in_features": 2, "out_features": 2}
    for name, part in {"kept": None, "part": "root"}.items():
        kept = t7bridge.convert(tmp_path / "whole.pt", tmp_path / f"{name}.pt", at=part)
        assert {note.code for note in kept.notes if note.level == "warning"} == {"foreign-name"}
        assert config_of(tmp_path / f"{name}.config.json") == {"data": expected}
        assert list(torch.load(tmp_path / f"{name}.pt", weights_only=True)) == ["weight", "bias"]
    torch.save({"net": Classifier(), "mean": [1.0]}, tmp_path / "both.pt")
    t7bridge.convert(tmp_path / "both.pt", tmp_path / "both_net.pt", at="root.net")
    config = config_of(tmp_path / "both_net.config.json")
    assert (config["data"], config["checkpoint"]) == (expected, {"mean": [1.0]})
    t7bridge.convert(tmp_path / "whole.pt", tmp_path / "named.safetensors")
    assert safetensors.safe_open(tmp_path / "named.safetensors", "np").metadata()["class_names.0"] == '"cat"'


def test_it_follows_from_file_to_file(tmp_path: Path) -> None:
    """Through shards, npz and a `.pt`; a `config` of another program is a string like others, and no file."""
    first = tmp_path / "net.safetensors"
    shards = t7bridge.convert(CHECKPOINT, first, at="root.model", shard_size=8, dtype="bfloat16")
    assert any(note.code == "beside" and "classes" in note.message for note in shards.notes)
    config = config_of(first)
    t7bridge.convert(first, tmp_path / "net.npz")
    t7bridge.convert(tmp_path / "net.npz", tmp_path / "net.pt")
    assert config_of(tmp_path / "net.config.json") == config
    tensors = {name: torch.zeros(2) for name in "ab"}
    deep = '{"data":' + '{"a":' * 100 + "1" + "}" * 101  # which would be mostly indentation
    wide = '{"data": {"a": [' + "1," * 1_000_001 + "1]}}"
    others = ("not JSON", "[]", '{"data": 1}', '{"model_type": "bert"}', deep, wide)
    for number, text in enumerate(others):
        target = tmp_path / f"{number}.pt"
        safetensors.torch.save_file(tensors, tmp_path / "other.safetensors", {"config": text, "format": "pt"})
        report = t7bridge.convert(tmp_path / "other.safetensors", target)
        assert [note.code for note in report.notes] == ["metadata"]
        assert "format" not in report.notes[0].message
        assert not target.with_suffix(".config.json").exists()


def test_fields_of_lua_modules(tmp_path: Path) -> None:
    """A vocabulary that a model has in a field of its own is kept in the same way."""
    model = t7bridge.load(TESTFILES / "models/lenet_mm.t7")
    model["vocab"] = Table.of({"a": 1.0, "b": 2.0})
    t7bridge.save(model, tmp_path / "in.t7")
    t7bridge.convert(tmp_path / "in.t7", tmp_path / "out.pt")
    config = config_of(tmp_path / "out.config.json")
    assert config["data"] == {"vocab": {"a": 1, "b": 2}}
    assert "1-based in Lua" in config["about"]["data.vocab"]


def test_module_notes_its_own_data_once(tmp_path: Path) -> None:
    """A vocabulary in a field of the model has a note, and is not said to stand beside the model."""
    model = t7bridge.load(TESTFILES / "models/lenet_mm.t7")
    model["vocab"] = Table.of({"a": 1.0, "b": 2.0})
    t7bridge.save(Table.of({"model": model, "epoch": 3.0}), tmp_path / "in.t7")
    report = t7bridge.write_module(tmp_path / "in.t7", tmp_path / "out")
    assert config_of(tmp_path / "out/config.json").keys() == {"data", "checkpoint", "about"}
    notes = [(note.path, note.message) for note in report.notes if note.code == "beside"]
    assert notes == [
        ("root.model.vocab", "in config.json: 2 values of nn.Sequential"),
        ("", "what stands beside the model is in config.json: epoch"),
    ]


def test_a_whole_checkpoint_says_what_its_numbers_mean(tmp_path: Path) -> None:
    """In a file of named tensors, of everything in it; the strings and numbers are there already."""
    t7bridge.convert(CHECKPOINT, tmp_path / "out.safetensors")
    metadata = safetensors.safe_open(tmp_path / "out.safetensors", "np").metadata()
    assert json.loads(metadata["about"])["classes"].endswith("class 1")
    assert metadata["classes.0"] == '"cat"'


def test_what_is_no_model_has_no_config(tmp_path: Path) -> None:
    """A part without weights is written alone; so is a model that is the whole file."""
    t7bridge.convert(CHECKPOINT, tmp_path / "classes.pt", at="root.classes")
    t7bridge.convert(TESTFILES / "models/lenet_mm.t7", tmp_path / "root.pt", at="root")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["classes.pt", "root.pt"]


def test_files_are_replaced_together(tmp_path: Path) -> None:
    """If the second exists the first is not written either, without `force`."""
    (tmp_path / "net.config.json").write_text("mine")
    with pytest.raises(TargetExistsError, match=r"net\.config\.json"):
        t7bridge.convert(STYLENET, tmp_path / "net.pt", at="root.stylenet")
    assert (tmp_path / "net.config.json").read_text() == "mine"
    assert not (tmp_path / "net.pt").exists()
    t7bridge.convert(STYLENET, tmp_path / "net.pt", at="root.stylenet", force=True)
    assert config_of(tmp_path / "net.config.json")["checkpoint"]["mean"][0] == 0.5657


def test_nothing_of_an_earlier_model_stays_beside_another(tmp_path: Path) -> None:
    """With `force`, a model without such data has no `config.json` of the one before it; a foreign file stays."""
    target, config = tmp_path / "net.pt", tmp_path / "net.config.json"
    t7bridge.convert(STYLENET, target, at="root.stylenet")
    before = config.read_bytes()
    linear = TESTFILES / "nn/Linear.t7"
    t7bridge.convert(linear, target, force=True, config=False)
    assert config.read_bytes() == before
    t7bridge.convert(linear, target, force=True)
    assert not config.exists()
    for foreign in (b'{"hidden_size": 4}', b"{}", b"\xff"):
        config.write_bytes(foreign)
        t7bridge.convert(linear, target, force=True)
        assert config.read_bytes() == foreign


def test_a_config_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    """One of ours whose model was moved alone; not one whose model is there under another suffix."""
    target, config = tmp_path / "net.pt", tmp_path / "net.config.json"
    t7bridge.convert(STYLENET, target, at="root.stylenet")
    before = config.read_bytes()
    target.rename(tmp_path / "net.pth")
    with pytest.raises(TargetExistsError, match=r"net\.config\.json"):
        t7bridge.convert(CHECKPOINT, target, at="root.model")
    assert config.read_bytes() == before
    (tmp_path / "net.pth").rename(tmp_path / "other.pt")
    report = t7bridge.convert(CHECKPOINT, target, at="root.model")
    assert "classes" in config_of(config)["checkpoint"]
    messages = [note.message for note in report.notes if note.code == "beside"]
    assert "net.config.json, whose model was not there any more, is replaced" in messages


def test_logs_and_images_are_named(tmp_path: Path) -> None:
    """Long lists of numbers, and tensors of many, stay out, and the report says so."""
    losses = {float(number): 0.5 for number in range(2_000)}
    image = t7bridge.Tensor.from_numpy(np.zeros((3, 64, 64)))
    root = Table.of({"losses": Table.of(losses), "mean": image, "order": "bgr", "net": Table()})
    found = beside(root)
    assert found.data == {"order": "bgr", "net": {}} or found.data == {"order": "bgr"}
    assert sorted(found.left_out) == ["root.losses", "root.mean"]


def test_hostile_values() -> None:
    """Cycles, depth, equal texts of keys, bytes and numbers that JSON lacks."""
    cycle = Table.of({"name": "x"})
    cycle["self"] = cycle
    deep = Table.of({"leaf": 1.0})
    for _ in range(3_000):
        deep = Table.of({"in": deep})
    keys = Table.of({1.0: "number", b"1": "text"})
    root = Table.of({"cycle": cycle, "deep": deep, "keys": keys, "bytes": b"\xff\xfe", "nan": math.nan})
    found = beside(root)
    assert found.data["cycle"] == {"name": "x"}
    assert found.left_out
    assert found.data["keys"]["pairs"] == [[1, "number"], ["1", "text"]]
    assert found.data["bytes"] == "\\xff\\xfe"
    assert json.loads(json.dumps(found.data))["cycle"] == {"name": "x"}


def test_many_objects_with_slots() -> None:
    """Each is itself, though its attributes are made when they are asked for; one that contains itself ends."""
    objects = [
        PythonObject(PythonGlobal("package", "Option"), "newobj", state=(None, {"name": f"n{n}"})) for n in range(1500)
    ]
    assert len(beside({"options": objects}).data["options"]) == 1500

    ring = PythonObject(PythonGlobal("package", "Ring"), "newobj", state={"name": "ring"})
    ring.state["ring"] = ring
    found = beside({"ring": ring})
    assert found.data == {"ring": {"name": "ring"}}
    assert found.left_out == []


def test_words_about_lists() -> None:
    """Lists and numberings are described, other values are not."""
    data = {
        "labels": ["a", "b"],
        "one": ["a"],
        "numbers": [1, 2],
        "to_number": {"a": 1, "b": 2},
        "to_text": {"1": "a", "2": "b"},
        "gaps": {"a": 1, "b": 3},
        "inner": {"transform": {"mean": [0.5]}, "bgr": True},
    }
    assert set(about(data, from_lua=True)) == {"labels", "to_number", "to_text", "inner.transform.mean", "inner.bgr"}
    assert set(about(data, from_lua=False)) == {"inner.transform.mean", "inner.bgr"}
