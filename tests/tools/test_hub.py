"""Hub folders: a process without t7bridge loads them, and computes what Lua Torch computed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import PATIENCE, TESTFILES
from safetensors.numpy import load_file

import t7bridge
from t7bridge.cli import main
from t7bridge.errors import ModelError, TargetExistsError

LOADER = """
import sys
sys.modules["t7bridge"] = None
sys.path.insert(0, sys.argv[1])
import numpy, torch
from model import from_pretrained
model = from_pretrained(sys.argv[1])
assert not model.training
with torch.no_grad():
    numpy.save(sys.argv[3], model(torch.from_numpy(numpy.load(sys.argv[2]))).numpy())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet_small", "dcgan_generator"])
def test_a_process_without_t7bridge_loads_it(name, tmp_path):
    """The folder needs only torch and safetensors, and its model returns Lua's output."""
    record = t7bridge.load(TESTFILES / "models" / f"{name}.io.t7")
    t7bridge.export(TESTFILES / "models" / f"{name}.t7", tmp_path / "hub", hub=True)
    np.save(tmp_path / "input.npy", record["input"].numpy())
    subprocess.run(
        [sys.executable, "-c", LOADER, tmp_path / "hub", tmp_path / "input.npy", tmp_path / "output.npy"],
        check=True, timeout=PATIENCE,
    )  # fmt: skip

    np.testing.assert_allclose(np.load(tmp_path / "output.npy"), record["output"].numpy(), rtol=1e-4, atol=1e-5)


def test_facts(tmp_path):
    """Configuration and card have the file's hash, its classes and numbers of elements; no licence is made up."""
    source = TESTFILES / "models" / "resnet_small.t7"
    report = t7bridge.export(source, tmp_path, hub=True)
    config = json.loads((tmp_path / "config.json").read_text())
    card = (tmp_path / "README.md").read_text()
    weights = load_file(tmp_path / "model.safetensors")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()

    assert sorted(os.listdir(tmp_path)) == ["README.md", "config.json", "model.py", "model.safetensors"]
    assert config["origin"]["sha256"] == report.sha256 == digest
    assert digest in card
    assert config["parameters"] == sum(each.size for each in weights.values())
    assert card.count("nn.SpatialConvolution") == 6
    assert report.checked == config["checked"]
    assert report.checked in card
    assert "license:" not in card.split("---")[1]


@pytest.mark.slow
def test_what_lua_recorded_is_in_the_card(tmp_path):
    """If the file has outputs of Lua Torch, the card states how far the layers agree with them."""
    source = TESTFILES / "prove" / "lenet.eval.t7"
    report = t7bridge.export(source, tmp_path, hub=True)
    assert report.checked == t7bridge.prove(source).sentence()


def test_command_line(tmp_path, capsys):
    """`export --hub` prints the files; existing ones need --force, and an input has no meaning."""
    command = ["export", str(TESTFILES / "models" / "resnet_small.t7"), str(tmp_path / "x"), "--hub"]
    assert main(command) == 0
    assert "model.safetensors, config.json, model.py, README.md" in capsys.readouterr().out
    assert main(command) != 0
    assert main([*command, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"][0] == "model.safetensors"
    assert main([*command, "--force", "--input", "1x3x8x8"]) != 0


def test_nothing_is_left_behind(tmp_path):
    """If one file already exists, none is written; a new folder is removed again."""
    (tmp_path / "config.json").write_text("mine")
    source = TESTFILES / "models" / "resnet_small.t7"
    with pytest.raises(TargetExistsError):
        t7bridge.export(source, tmp_path, hub=True)
    assert os.listdir(tmp_path) == ["config.json"]
    with pytest.raises(ModelError, match="no input"):
        t7bridge.export(source, tmp_path / "x.onnx")


def test_names_of_a_file_are_text(tmp_path):
    """Names from the file are only text in the card."""
    path = tmp_path / "a](http:x)<b>`.t7"
    path.write_bytes((TESTFILES / "models" / "resnet_small.t7").read_bytes())
    t7bridge.export(path, tmp_path / "hub", hub=True)
    card = (tmp_path / "hub" / "README.md").read_text()
    assert "<b>" not in card
    assert "```\n" in card
