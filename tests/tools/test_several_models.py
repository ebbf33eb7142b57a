"""`module` of a file with several models: a folder each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TESTFILES, module_of

import t7bridge
from t7bridge import Table, TorchObject
from t7bridge.errors import ModelError, TargetExistsError, UnsupportedLayerError

GENERATOR = TESTFILES / "models/dcgan_generator.t7"
LENET = TESTFILES / "models/lenet_mm.t7"


def save(path: Path, **parts: Any) -> Path:
    """Save a table with two models, and other parts, and return its path."""
    value = {"netG": t7bridge.load(GENERATOR), "nets": {"D": t7bridge.load(LENET)}, "order": "bgr", **parts}
    t7bridge.save(value, path)
    return path


def test_a_folder_each(tmp_path: Path) -> None:
    """Each is named after its path, runs, computes what the module alone does, and knows what stands beside it."""
    criterion = TorchObject("nn.MSECriterion", 1, Table.of({"sizeAverage": True}))
    report = t7bridge.write_module(save(tmp_path / "in.t7", criterion=criterion), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["netG", "nets.D"]
    assert report.tensors == 24
    assert any(note.code == "several-models" and "netG, nets.D" in note.message for note in report.notes)
    for name, source, shape in (("netG", GENERATOR, (1, 8, 1, 1)), ("nets.D", LENET, (1, 1, 32, 32))):
        folder = tmp_path / "out" / name
        example = torch.randn(shape)
        assert torch.equal(module_of(folder / "model.py").load()(example), t7bridge.load_module(source)(example))
        assert json.loads((folder / "config.json").read_text())["checkpoint"] == {"order": "bgr"}


def test_one_of_them(tmp_path: Path) -> None:
    """With `at` it is the only one, in the folder itself."""
    t7bridge.write_module(save(tmp_path / "in.t7"), tmp_path / "out", at="root.netG")
    assert (tmp_path / "out/model.py").is_file()


def test_all_or_none(tmp_path: Path) -> None:
    """A model that cannot be written, or a file that exists, is found before anything is written."""
    unknown = TorchObject("my.Net", 1, Table.of({"output": 1.0, "gradInput": 1.0}))
    with pytest.raises(UnsupportedLayerError, match=r"my\.Net"):
        t7bridge.write_module(save(tmp_path / "in.t7", other=unknown), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out/nets.D").mkdir(parents=True)
    (tmp_path / "out/nets.D/model.py").write_text("mine")
    with pytest.raises(TargetExistsError):
        t7bridge.write_module(save(tmp_path / "two.t7"), tmp_path / "out")
    assert not (tmp_path / "out/netG").exists()


@pytest.mark.parametrize("name", ["../up", "a/b", "a\\b", "..", "con:x", "é " * 80])
def test_names_stay_inside(tmp_path: Path, name: str) -> None:
    """Whatever a key is, its folder is directly inside the target."""
    value = {name: t7bridge.load(LENET), name.upper() + "!": t7bridge.load(GENERATOR)}
    t7bridge.save(value, tmp_path / "in.t7")
    t7bridge.write_module(tmp_path / "in.t7", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.t7", "out"]
    folders = list((tmp_path / "out").iterdir())
    assert len(folders) == 2
    assert all((folder / "model.py").is_file() for folder in folders)


def test_models_of_several_values(tmp_path: Path) -> None:
    """A file may hold several values one after the other: all verbs name the models `root[0]` and `root[1]`."""
    generator, lenet = t7bridge.load(GENERATOR), t7bridge.load(LENET)
    path = tmp_path / "two.t7"
    with t7bridge.T7Writer(path) as writer:
        writer.write(generator)
        writer.write(lenet)
    t7bridge.write_module(path, tmp_path / "out")
    assert sorted(folder.name for folder in (tmp_path / "out").iterdir()) == ["[0]", "[1]"]
    image = torch.randn(1, 1, 32, 32)
    expected = t7bridge.load_module(LENET)(image)
    assert torch.equal(t7bridge.load_module(path, "root[1]")(image), expected)
    names = [layer.name for layer in t7bridge.inspect(path).layers]
    assert {"[0]", "[1]"} <= set(names)
    t7bridge.draw(path, tmp_path / "two.json")
    picture = json.loads((tmp_path / "two.json").read_text())
    assert {node.get("path") for node in picture["nodes"]} >= {"root[0]", "root[1]"}
    assert {layer.path.partition(".")[0] for layer in t7bridge.prove(path).layers} == {"root[0]", "root[1]"}
    t7bridge.convert(path, tmp_path / "lenet.pt", at="root[1]")
    keys = list(torch.load(tmp_path / "lenet.pt"))
    assert keys == list(t7bridge.state_dict(lenet))
    for verb in (t7bridge.load_module, lambda file: t7bridge.match(file, LENET)):
        with pytest.raises(ModelError, match=r"several modules.*root\[0\], root\[1\]"):
            verb(path)
