"""Whole modules that `torch.save` pickled, through the verbs: trees and tensors are those of the live module."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bounds import bounded
from pt_helpers import zipped
from torch import nn

import t7bridge
from t7bridge import Limits
from t7bridge.cli import main
from t7bridge.errors import LimitError, StrictError


class Block(nn.Module):
    """A module of a class that the reader does not know, with a buffer that is not saved and a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.scale = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.extra = [torch.arange(5.0)]


def saved(path: Path, value: object | None = None) -> Block:
    """Save a module, or a value, and return the module."""
    torch.manual_seed(0)
    module = Block()
    torch.save(module if value is None else {**value, "model": module}, path)  # type: ignore[dict-item]
    return module


def found_tensors(node: Any, path: str = "") -> dict[str, Any]:
    """The tensors of a description's modules by key, those of attributes left out."""
    found = {}
    for group in ("parameters", "buffers", "modules"):
        for name, inner in node.get(group, ()):
            key = path + name["v"]
            found.update({key: inner} if inner["t"] == "tensor" else found_tensors(inner, key + "."))
    return found


@pytest.mark.parametrize("wrapped", [False, True])
def test_describe_has_the_module_tree(tmp_path: Path, wrapped: bool) -> None:
    """Classes, names, shapes, marks and bytes of every tensor are those that PyTorch has."""
    module = saved(tmp_path / "m.pt", {"epoch": 3} if wrapped else None)
    node = t7bridge.describe(tmp_path / "m.pt")
    if wrapped:
        node = {key["v"]: value for key, value in node["v"]}["model"]

    assert node["t"] == "module"
    assert node["v"].endswith(".Block")
    found = found_tensors(node)
    parameters = {name for name, _ in module.named_parameters()}
    assert set(found) == set(module.state_dict())
    for key, tensor in module.state_dict().items():
        described = found[key]
        assert described["size"] == list(tensor.shape)
        assert described["crc32"] == zlib.crc32(tensor.numpy().tobytes())
        assert described["parameter"] == (key in parameters)
    attributes = {key["v"]: value for key, value in node["attributes"]}
    assert attributes["extra"]["v"][0]["crc32"] == zlib.crc32(torch.arange(5.0).numpy().tobytes())
    assert attributes["training"] == {"t": "bool", "v": True}


def test_describe_of_a_shared_and_a_cyclic_module(tmp_path: Path) -> None:
    """A module that holds itself in an attribute ends as a cycle; a shared one is described at each place."""
    shared = nn.Linear(2, 2)
    module = nn.Sequential(shared, shared)
    module.__dict__["parent"] = [module]
    torch.save(module, tmp_path / "m.pt")
    node = t7bridge.describe(tmp_path / "m.pt")

    (_, first), (_, second) = node["modules"]
    assert first == second
    assert {key["v"]: value for key, value in node["attributes"]}["parent"]["v"] == [{"t": "cycle", "up": 2}]


def test_inspect_counts_and_shows_the_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary counts modules and tensors of a pickled module; the outline and `--at` go into it."""
    module = saved(tmp_path / "m.pt", {"epoch": 3})
    summary = t7bridge.inspect(tmp_path / "m.pt")
    assert summary.header["modules"] == len(list(module.modules()))
    assert summary.header["tensors"] == len(module.state_dict()) + 1  # the one in a plain attribute
    assert summary.header["parameters"] == sum(each.numel() for each in module.parameters())

    assert main(["inspect", "--all", str(tmp_path / "m.pt")]) == 0
    shown = capsys.readouterr().out
    assert "weight: float32 tensor 4 x 3" in shown
    assert "module torch.nn.modules.batchnorm.BatchNorm1d" in shown
    assert main(["inspect", "--at", "root.model.scale", "--all", str(tmp_path / "m.pt")]) == 0
    assert "float32 tensor 2" in capsys.readouterr().out


def test_objects_beside_modules_are_described(tmp_path: Path) -> None:
    """Tensors in objects of other classes are in the description and count in the summary."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    torch.save(optimizer, tmp_path / "o.pt")
    text = json.dumps(t7bridge.describe(tmp_path / "o.pt"))
    assert str(zlib.crc32(torch.ones(3).numpy().tobytes())) in text
    assert t7bridge.inspect(tmp_path / "o.pt").header["tensors"] == 1


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".npz", ".h5", ".t7"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_verify_and_diff_know_the_conversion(tmp_path: Path, suffix: str, wrapped: bool) -> None:
    """A conversion of a whole module is its state dict, and compares as that; a changed weight is found."""
    module = saved(tmp_path / "m.pt", {"epoch": 3} if wrapped else None)
    t7bridge.convert(tmp_path / "m.pt", tmp_path / f"o{suffix}")
    found = t7bridge.diff(tmp_path / "m.pt", tmp_path / f"o{suffix}")
    assert not found.differences
    assert found.tensors >= len(module.state_dict())
    assert not t7bridge.diff(tmp_path / f"o{suffix}", tmp_path / "m.pt").differences
    report = t7bridge.verify(tmp_path / "m.pt", tmp_path / f"o{suffix}")
    assert not report.differences
    assert not report.same  # a state dict has no options of layers
    assert "options of layers" in report.left_out[str(tmp_path / "m.pt")][-1]
    with torch.no_grad():
        module.scale[1] = 7
    torch.save({"epoch": 3, "model": module} if wrapped else module, tmp_path / "changed.pt")
    (difference,) = t7bridge.diff(tmp_path / "changed.pt", tmp_path / f"o{suffix}").differences
    assert "scale" in difference.path


def test_match_finds_a_module_inside(tmp_path: Path) -> None:
    """`match` uses the state dict of a module inside a table of other things."""
    module = saved(tmp_path / "m.pt", {"epoch": 3, "net": 1})
    torch.save({"a": {"b": module}}, tmp_path / "deep.pt")
    torch.save(module.state_dict(), tmp_path / "s.pt")
    assert t7bridge.match(tmp_path / "deep.pt", tmp_path / "s.pt").complete


class Cached(nn.Linear):
    """A layer with a buffer that is not saved, and tensors in attributes: one of its own, one of its weight."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("mask", torch.ones(3), persistent=False)
        self.table = {"own": torch.zeros(4), "tied": self.weight, "outside": torch.ones(5)}


class Holding:
    """An object with a table."""

    def __init__(self, table: object) -> None:
        self.table = table


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, (dict, list)):
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".npz", ".h5", ".t7"])
def test_what_state_dicts_lack_is_named(tmp_path: Path, suffix: str) -> None:
    """What PyTorch's state dict of a module does not have is beside it, or named where there is no place."""
    module = Cached()
    torch.save({"net": module, "outside": module.table["outside"]}, tmp_path / "m.pt")
    report = t7bridge.convert(tmp_path / "m.pt", tmp_path / f"o{suffix}")
    beside = {each.path: each.count for each in report.notes if each.code == "beside"}
    options = {"root.net.in_features": 1, "root.net.out_features": 1}  # of a class that is not PyTorch's
    assert beside == {"root.net.mask": 1, "root.net.table": 3, **options}
    with t7bridge.open(tmp_path / f"o{suffix}") as document:
        value = t7bridge.to_torch(document.value)
        texts = document.metadata
    if suffix not in (".pt", ".t7"):  # whose tensors are weights
        tensors = {name: torch.tensor(json.loads(text)) for name, text in texts.items() if text.startswith("[")}
        value = {**value, **tensors}
    named = {".".join(key.replace("/", ".").split(".")): item for key, item in _flat(value)}
    assert torch.equal(named["net.mask"], torch.ones(3))
    assert torch.equal(named["net.table.own"], torch.zeros(4))
    assert torch.equal(named["net.table.tied"], module.weight)
    torch.save([module, Holding(module.table)], tmp_path / "nets.pt")
    report = t7bridge.convert(tmp_path / "nets.pt", tmp_path / f"list{suffix}")
    if suffix == ".pt":  # a list has no key beside the state dict
        assert {each.path for each in report.notes if each.level == "warning"} >= {"root[0].mask", "root[0].table"}
        with pytest.raises(StrictError):
            t7bridge.convert(tmp_path / "nets.pt", tmp_path / "strict.pt", strict=True)
    torch.save(saved(tmp_path / "plain.pt").inner, tmp_path / "plain.pt")
    report = t7bridge.convert(tmp_path / "plain.pt", tmp_path / f"plain_out{suffix}")
    assert not any("in no state dict" in each.message for each in report.notes)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pt", ".npz", ".t7"])
def test_modules_that_share_a_wide_one_are_refused(tmp_path: Path, suffix: str) -> None:
    """A small file in which 400 modules hold one of 400 tensors costs no more than it should."""
    wide, tensor = nn.Module(), torch.zeros(1)
    wide._parameters.update({f"p{number}": tensor for number in range(400)})  # type: ignore[misc]
    many = [nn.Module() for _ in range(400)]
    for each in many:
        each.__dict__ = {"_parameters": {}, "_buffers": {}, "_modules": {"a": wide}}
    torch.save(many, tmp_path / "m.pt")
    with bounded():
        with pytest.raises(LimitError, match="work"):
            t7bridge.convert(tmp_path / "m.pt", tmp_path / f"o{suffix}", limits=Limits(work=100_000))
        with pytest.raises(LimitError, match="work"):
            t7bridge.match(tmp_path / "m.pt", tmp_path / "m.pt", limits=Limits(work=100_000))


def test_marks_for_gradients_are_no_difference_where_there_are_none(tmp_path: Path) -> None:
    """A named format has no marks for gradients: parameters verify against their conversion, other values do not."""
    weight = nn.Parameter(torch.ones(3))
    torch.save({"w": weight, "again": weight, "v": torch.zeros(2)}, tmp_path / "m.pt")
    for suffix in (".safetensors", ".npz", ".h5"):
        t7bridge.convert(tmp_path / "m.pt", tmp_path / f"o{suffix}")
        assert t7bridge.verify(tmp_path / "m.pt", tmp_path / f"o{suffix}").same
    torch.save({"w": nn.Parameter(torch.ones(3)), "again": torch.ones(3), "v": torch.zeros(2)}, tmp_path / "m.pt")
    assert not t7bridge.verify(tmp_path / "m.pt", tmp_path / "o.h5").same  # they share memory in the one file only
    torch.save({"w": weight, "again": weight, "v": torch.ones(2)}, tmp_path / "m.pt")
    assert not t7bridge.verify(tmp_path / "m.pt", tmp_path / "o.npz").same


@pytest.mark.slow
def test_deep_objects_cost_what_they_should(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten thousand objects inside one another are described and listed in proportion to the file."""
    opcodes = b"\x80\x02" + b"cmy.pkg\nC\n)\x81}X\x01\0\0\0a" * 10_000 + b"K\x01" + b"sb" * 10_000 + b"."
    path = tmp_path / "x.pt"
    path.write_bytes(zipped({"a/data.pkl": opcodes, "a/version": b"3\n"}))
    for verb in (["describe"], ["inspect"], ["inspect", "--all", "--depth", "1000000"]):
        assert main([*verb, str(path)]) == 0
        assert len(capsys.readouterr().out) < 20 * path.stat().st_size
    for verb in (["match", str(path)], ["draw", "-o", str(tmp_path / "x.svg")]):
        assert main([*verb, str(path)]) == 2
        assert f"error: {path}: " in capsys.readouterr().err


class Anchored(nn.Linear):
    """A layer with tensors in attributes and in arrays, small and large, of real and of complex numbers; and others."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.mean = torch.tensor([0.5, 0.25])
        self.steps = torch.arange(3)
        self.anchors = torch.zeros(40, 50)
        self.phases = torch.ones(2, dtype=torch.complex64)
        self.grids = np.array([np.zeros(2_000), None], object)
        self.spectra = np.array([np.ones(2, np.complex64), None], object)
        self.boxes = np.array([np.ones(2), None], object)
        self.stride = 4
        self.classes = ["cat", "dog"]


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".h5"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_tensors_of_a_file_of_named_tensors_are_weights(tmp_path: Path, suffix: str, wrapped: bool) -> None:
    """PyTorch loads all of them; what the module has besides is text in the metadata, or named if it has no room."""
    module = Anchored()
    torch.save({"net": module} if wrapped else module, tmp_path / "m.pt")
    target = tmp_path / f"o{suffix}"
    report = t7bridge.convert(tmp_path / "m.pt", target)
    start = "net." if wrapped else ""
    with t7bridge.open(target) as document:
        tensors = t7bridge.to_torch(document.value)
        texts = {name: json.loads(text) for name, text in document.metadata.items() if name != "format"}
    if wrapped and suffix == ".h5":  # groups
        tensors = {f"net.{name}": tensor for name, tensor in tensors["net"].items()}
    module.load_state_dict({name.removeprefix(start): tensor for name, tensor in tensors.items()})
    named = {note.path.removeprefix("root.") for note in report.notes if note.level == "warning" and note.path}
    assert named == {f"{start}{name}" for name in ("anchors", "phases", "grids", "spectra")}
    expected = {"mean": [0.5, 0.25], "steps": [0, 1, 2], "stride": 4, "classes.0": "cat", "classes.1": "dog"}
    expected |= {"boxes.0": [1, 1], "boxes.1": None}
    assert {f"{start}{name}": value for name, value in expected.items()}.items() <= texts.items()
    comparison = t7bridge.verify(tmp_path / "m.pt", target)
    assert not comparison.differences
    only = comparison.left_out[str(tmp_path / "m.pt")]
    assert sorted(text.partition(":")[0] for text in only if text.startswith("root")) == sorted(
        f"root.{name}" for name in named
    )
    # The same in a .pt, whose config.json has no complex numbers.
    t7bridge.convert(tmp_path / "m.pt", tmp_path / "o.pt")
