"""Checkpoints in several files: the index names the file of each tensor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

import t7bridge
from t7bridge.errors import CorruptError, T7BridgeError, UnsupportedError

STATE = {f"layer.{number}.weight": torch.full((3, 2), float(number)) for number in range(5)}


def sharded(folder: Path, suffix: str = "safetensors") -> Path:
    """A folder as `save_pretrained` writes it: two files and their index."""
    folder.mkdir()
    places = {}
    for number, names in enumerate((list(STATE)[:3], list(STATE)[3:])):
        file = f"model-{number + 1:05}-of-00002.{suffix}"
        part = {name: STATE[name] for name in names}
        places |= dict.fromkeys(names, file)
        if suffix == "bin":
            torch.save(part, folder / file)
        else:
            safetensors.torch.save_file(part, folder / file)
    index = folder / f"model.{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 120}, "weight_map": places}, indent=2))
    return index


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
@pytest.mark.parametrize("by_folder", [True, False])
def test_all_files_are_one_state_dict(tmp_path, suffix, by_folder):
    """The folder, or its index, converts to one file with every tensor."""
    index = sharded(tmp_path / "model", suffix)
    t7bridge.convert(index.parent if by_folder else index, tmp_path / "out.pt")

    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert set(found) == set(STATE)
    assert all(torch.equal(found[name], STATE[name]) for name in STATE)


@pytest.mark.parametrize(
    ("places", "error", "message"),
    [
        ({"a": "../secret.safetensors"}, CorruptError, "a file outside its folder"),
        ({"a": "/etc/passwd"}, CorruptError, "a file outside its folder"),
        ({"a": ".."}, CorruptError, "a file outside its folder"),
        ({"a": 5}, CorruptError, "names of files"),
        ([], CorruptError, "weight_map"),
        ({"a": "missing.safetensors"}, T7BridgeError, "cannot be read"),
        ({"absent": "model-00001-of-00002.safetensors"}, CorruptError, "lacks a tensor that the index names"),
    ],
    ids=str,
)
def test_damaged_index(tmp_path, places, error, message):
    """An index that leads elsewhere, or names what is not there, is refused, and nothing is written."""
    index = sharded(tmp_path / "model")
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(error, match=message):
        t7bridge.convert(index, tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


def test_two_indices(tmp_path):
    """A folder with two indices is an error that says so."""
    index = sharded(tmp_path / "model")
    (index.parent / "other.safetensors.index.json").write_bytes(index.read_bytes())
    with pytest.raises(UnsupportedError, match="several indices"):
        t7bridge.load(index.parent)


def test_values_that_the_index_does_not_name(tmp_path):
    """Content of a file besides the index's tensors is named in the report."""
    index = sharded(tmp_path / "model")
    content = json.loads(index.read_text())
    del content["weight_map"]["layer.1.weight"]
    index.write_text(json.dumps(content))
    report = t7bridge.convert(index, tmp_path / "out.pt")
    assert any("layer.1.weight" in str(note) for note in report.notes)


def test_read_only(tmp_path):
    """Folders are read and not written."""
    sharded(tmp_path / "model")
    with pytest.raises(T7BridgeError, match="unknown format 'shards'; expected t7"):
        t7bridge.convert(tmp_path / "model", tmp_path / "out", to="shards")
