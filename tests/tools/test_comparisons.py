"""What a conversion leaves out is what the comparison after it lists: no more, and no less."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import fuzz_comparisons as fuzz
import h5py
import numpy as np
import pytest
import torch
from helpers import TESTFILES
from looping import new_folder

import t7bridge

JOBS = fuzz.JOBS


@pytest.fixture(autouse=True)
def classes() -> None:
    """Own classes that pickle finds, and no reader knows."""
    fuzz.own_classes()


def save(path: Path, value: object) -> Path:
    """A `.pt` as PyTorch writes it."""
    torch.save(value, path)
    return path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_random_checkpoints(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """Values of every kind, through three conversions each, and to Lua and back."""
    choose = random.Random("comparisons")
    for number in range(20):
        with subtests.test(number=number):
            assert fuzz.judged(f"comparisons {number}", tmp_path, choose.sample(JOBS, 3)) == []


FILES = [
    path
    for folder in ("format", "pt", "nn", "legacy", "models", "quantized")
    for path in sorted((TESTFILES / folder).iterdir())
    if path.suffix in (".t7", ".pt", ".h5", ".npz", ".safetensors") and not path.name.startswith("object_custom_write")
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(4))
def test_files(subtests: pytest.Subtests, part: int, tmp_path: Path) -> None:
    """Files of every kind, each through one conversion, another for each file."""
    for number, path in list(enumerate(FILES))[part::24]:
        suffix, mode = JOBS[number % len(JOBS)]
        with subtests.test(f"{path.name} {suffix} {mode}"):
            assert fuzz.disagreement(path, tmp_path / f"out{suffix}", mode) == ""


def some_net() -> fuzz.Net:
    """A module with data in attributes of every kind, and a buffer that is not saved."""
    net = fuzz.Net()
    net.fc = torch.nn.Linear(2, 2)
    net.classes = ["cat", "dog"]
    net.mean = (0.1, 0.2)
    net.table = np.arange(4, dtype=np.float32).reshape(2, 2)
    net.anchors = torch.arange(3.0)
    net.register_buffer("mask", torch.ones(2), persistent=False)
    return net


def test_a_checkpoint_with_a_module_comes_back(tmp_path: Path) -> None:
    """Tuples, floats, None and tensors of no dimensions come back though a module is beside them."""
    net = some_net()
    value = {
        "net": net, "size": (3, 4), "loss": 3.0, "big": 193994056061335.0, "epoch": 7, "none": None,
        "opt": OrderedDict(a=1), "flags": [True, None, 2], "score": torch.tensor(1.5),
    }  # fmt: skip
    assert fuzz.returned(save(tmp_path / "in.pt", value), value, tmp_path) == ""
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    assert (back["size"], back["none"], back["flags"]) == ((3, 4), None, [True, None, 2])
    assert repr((back["loss"], back["big"], back["epoch"])) == "(3.0, 193994056061335.0, 7)"
    assert back["score"].shape == ()
    assert list(back["net"]) == ["fc.weight", "fc.bias"]
    assert back["net.mean"] == (0.1, 0.2)
    assert torch.equal(back["net.mask"], torch.ones(2))


@pytest.mark.parametrize("suffix", fuzz.SUFFIXES)
def test_data_of_a_module_at_the_root(suffix: str, tmp_path: Path) -> None:
    """In Lua they are beside `state_dict`, in formats of tensors in the metadata; a `.pt` stays a state dict."""
    source = save(tmp_path / "net.pt", some_net())
    report = t7bridge.convert(source, tmp_path / f"o{suffix}")
    with t7bridge.open(tmp_path / f"o{suffix}") as document:
        value: Any = t7bridge.to_python(document.value)
        texts = document.metadata
    warnings = {note.path for note in report.notes if note.level == "warning" and note.code == "left-out"} - {""}
    if suffix == ".pt":
        assert list(value) == ["fc.weight", "fc.bias"]
        assert not warnings
        config = json.loads((tmp_path / "o.config.json").read_text())
        assert set(config["data"]) == {"mask", "classes", "mean", "table", "anchors"}
        assert config["data"]["table"] == [[0.0, 1.0], [2.0, 3.0]]
        alone = t7bridge.convert(source, tmp_path / "alone.pt", config=False)
        assert {f"root.{name}" for name in config["data"]} <= {note.path for note in alone.notes}
        t7bridge.convert(source, tmp_path / "tree.pt", mode="tree")  # as the notes advise
        assert t7bridge.load(tmp_path / "tree.pt")["classes"] == ["cat", "dog"]
        return
    assert not warnings
    if suffix == ".t7":
        assert list(value) == ["state_dict", "mask", "classes", "mean", "table", "anchors"]
        assert list(value["state_dict"]) == ["fc.weight", "fc.bias"]
        assert value["classes"] == ["cat", "dog"]
    else:
        assert sorted(value) == ["fc.bias", "fc.weight"]
        assert texts["classes.0"] == '"cat"'
        value = {name: np.array(json.loads(texts[name])) for name in ("table", "anchors", "mask")}
    assert np.array_equal(value["table"], np.arange(4, dtype="f4").reshape(2, 2))
    assert np.array_equal(value["anchors"], np.arange(3.0))
    assert np.array_equal(value["mask"], np.ones(2))


@pytest.mark.parametrize("suffix", [".t7", ".pt"])
def test_a_module_inside_an_object(suffix: str, tmp_path: Path) -> None:
    """It is its state dict, as inside a dict, also where the object keeps its class."""
    outer = fuzz.Thing()
    outer.net, outer.size = some_net(), 3
    source = save(tmp_path / "thing.pt", outer)
    t7bridge.convert(source, tmp_path / f"o{suffix}")
    value = t7bridge.to_python(t7bridge.load(tmp_path / f"o{suffix}"))
    assert list(value["net"]) == ["fc.weight", "fc.bias"]
    assert value["net.classes"] == ["cat", "dog"]
    assert value["__class__"] == "models.Thing"
    assert fuzz.disagreement(source, tmp_path / f"o{suffix}", "auto") == ""
    if suffix == ".pt":
        t7bridge.convert(source, tmp_path / "foreign.pt", allow_foreign=True)
        back = torch.load(tmp_path / "foreign.pt", weights_only=False)
        assert type(back) is fuzz.Thing
        assert list(back.net) == ["fc.weight", "fc.bias"]
        assert not t7bridge.verify(source, tmp_path / "foreign.pt").differences


@pytest.mark.parametrize("suffix", [".safetensors", ".h5", ".npz"])
def test_a_container_met_twice_is_written_twice(suffix: str, tmp_path: Path) -> None:
    """Its numbers and tensors have a name for each of its names, and the tensors are tied."""
    options = {"lr": 0.1, "layers": 2, "w": torch.ones(2, 2)}
    source = save(tmp_path / "in.pt", {"opt": options, "optim": {"opt": options}, "list": [options]})
    report = t7bridge.convert(source, tmp_path / f"o{suffix}")
    assert {note.code for note in report.notes} <= {"shared"}
    with t7bridge.open(tmp_path / f"o{suffix}") as document:
        flat = {name.replace("/", "."): item for name, item in _flat(document.value)} | document.metadata
        for name in ("opt", "optim.opt", "list.0"):
            assert {f"{name}.{key}" for key in options} <= flat.keys()
        assert flat["opt.w"].storage is flat["optim.opt.w"].storage is flat["list.0.w"].storage
    assert t7bridge.verify(source, tmp_path / f"o{suffix}").same


def _flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for key, item in value.items():
        found += _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else [(prefix + key, item)]
    return found


@pytest.mark.slow
def test_containers_in_themselves_and_in_very_many_ways(tmp_path: Path) -> None:
    """A container in itself is named as left out; a graph with 2^40 ways to one tensor is written once, with a note."""
    value: dict[str, Any] = {"w": torch.ones(2)}
    value["self"] = value
    for name, root, text in (
        ("cycle", value, "contains itself"), ("ways", _doubled(40), "under another name"),
    ):  # fmt: skip
        source = save(tmp_path / f"{name}.pt", root)
        report = t7bridge.convert(source, tmp_path / f"{name}.safetensors")
        (note,) = [note for note in report.notes if note.code == "left-out"]
        assert text in note.message
        assert fuzz.disagreement(source, tmp_path / "again.npz", "auto") == ""


def _doubled(count: int) -> Any:
    value: Any = {"w": torch.ones(2)}
    for _ in range(count):
        value = {"a": value, "b": value}
    return value


def test_types_that_lua_lacks(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """Numbers without dimensions and of types that Lua lacks are compared as Lua has them."""
    arrays = {"s": np.float32(2.5), "u": np.array([1, 65535], "u2"), "b": np.array([True]), "e": np.zeros((0, 3), "f4")}
    np.savez(tmp_path / "a.npz", **arrays)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    for name in ("a.npz", "a.h5"):
        for suffix, mode in JOBS:
            with subtests.test(f"{name} {suffix} {mode}"), new_folder(tmp_path) as folder:
                assert fuzz.disagreement(tmp_path / name, folder / f"o{suffix}", mode) == ""
                if suffix == ".t7":
                    assert not t7bridge.verify(tmp_path / name, folder / "o.t7").differences


def test_files_without_tensors(tmp_path: Path) -> None:
    """A file of tensors without any is compared like others."""
    (tmp_path / "none.safetensors").write_bytes((24).to_bytes(8, "little") + b'{"__metadata__":{}}     ')
    for suffix in (".pt", ".t7"):
        t7bridge.convert(tmp_path / "none.safetensors", tmp_path / f"none{suffix}")
        assert t7bridge.verify(tmp_path / "none.safetensors", tmp_path / f"none{suffix}").same
    torch.save({"n": 1}, tmp_path / "n.pt")
    assert t7bridge.verify(tmp_path / "n.pt", tmp_path / "none.safetensors").differences


def test_nans_in_ascii_files(tmp_path: Path) -> None:
    """Bits of NaNs that text does not have are listed; another number, or sign of zero, is a difference."""
    numbers = np.array([1, np.nan, np.nan, -0.0], "f4")
    numbers.view("u4")[1] = 0x7FC12345
    t7bridge.save({"a": t7bridge.Tensor.from_numpy(numbers)}, tmp_path / "a.t7")
    (note,) = t7bridge.convert(tmp_path / "a.t7", tmp_path / "text.t7", encoding="ascii").notes
    for pair in (("a.t7", "text.t7"), ("text.t7", "a.t7")):
        report = t7bridge.verify(*(tmp_path / name for name in pair))
        assert not report.differences
        assert report.left_out == {str(tmp_path / "a.t7"): [note.message]}
    for place, value in ((0, 2.0), (3, 0.0)):
        changed = numbers.copy()
        changed[place] = value
        t7bridge.save({"a": t7bridge.Tensor.from_numpy(changed)}, tmp_path / "b.t7", force=True)
        assert t7bridge.verify(tmp_path / "b.t7", tmp_path / "text.t7").differences


def test_four_lists(tmp_path: Path) -> None:
    """Equal, different by how much, only in the first, only in the second: the same lists for both verbs."""
    first = save(tmp_path / "a.pt", {"same": torch.ones(3), "w": torch.zeros(3), "gone": 1})
    second = save(tmp_path / "b.pt", {"same": torch.ones(3), "w": torch.tensor([0, 0.5, 0]), "new": 2})
    for report in (t7bridge.verify(first, second), t7bridge.diff(first, second)):
        assert [found.path for found in report.only_first] == ["root.gone"]
        assert [found.path for found in report.only_second] == ["root.new"]
        (found,) = report.different
        assert "1 of 3 elements differ, by at most 0.5 at [1]: 0 against 0.5" in found.message
        assert report.equal
        assert not report.same
