"""Devices: what `map_location` names is what PyTorch reads; unknown backends pass through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TESTFILES
from pt_helpers import members_of, saved, zipped

import t7bridge
from t7bridge import PtReader
from t7bridge.cli import main
from t7bridge.errors import ModelError, UnsupportedError

DEVICES = ["cuda:0", "ipu:3", "privateuseone:0", "cpu"]


@pytest.fixture
def several(tmp_path) -> Path:
    """A `.pt` with a tensor on each of several devices, as PyTorch writes it where they exist."""
    members = members_of(saved([torch.full((2,), float(number)) for number in range(len(DEVICES))]))
    name = next(name for name in members if name.endswith("data.pkl"))
    parts = members[name].split(b"X\x03\x00\x00\x00cpu")
    assert len(parts) == 2
    # The name of the device is written once and remembered: write it out for each tensor instead.
    remembered = b"h" + parts[1][1:2]
    rest = parts[1][2:].split(remembered)
    assert len(rest) == len(DEVICES)
    data = parts[0]
    for device, piece in zip(DEVICES, rest, strict=True):
        data += b"X" + len(device).to_bytes(4, "little") + device.encode() + piece
    (tmp_path / "several.pt").write_bytes(zipped({**members, name: data}))
    return tmp_path / "several.pt"


def devices(path: Path) -> list[str]:
    """The devices that the tensors of a `.pt` name."""
    return [tensor.storage.device for tensor in PtReader(path).read()]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, ["cpu"] * 4),
        ({"keep_device": True}, DEVICES),
        ({"map_location": "cuda:1"}, ["cuda:1"] * 4),
        ({"map_location": {"ipu:3": "cuda:0"}}, ["cpu", "cuda:0", "cpu", "cpu"]),
        ({"map_location": "ipu:3=cuda:1,cpu=xpu", "keep_device": True}, ["cuda:0", "cuda:1", "privateuseone:0", "xpu"]),
        ({"map_location": lambda name: "meta" if name.startswith("p") else None}, ["cpu", "cpu", "meta", "cpu"]),
        ({"map_location": lambda name: torch.device("cuda", 2)}, ["cuda:2"] * 4),
    ],
)
@pytest.mark.parametrize("pt_format", ["zip", "legacy"])
def test_convert(several, tmp_path, options, wanted, pt_format):
    """One device for all, a mapping, a text and a function: each tensor names the device that was asked for."""
    t7bridge.convert(several, tmp_path / "out.pt", pt_format=pt_format, **options)
    assert devices(tmp_path / "out.pt") == wanted


def test_pytorch_asks_for_the_mapped_device(several, tmp_path):
    """`torch.load` sees the devices in the file, as its own `map_location` function shows."""
    t7bridge.convert(several, tmp_path / "out.pt", keep_device=True)
    seen: list[str] = []

    def note(storage: Any, location: str) -> Any:
        seen.append(location)
        return storage

    values = torch.load(tmp_path / "out.pt", map_location=note, weights_only=True)
    assert seen == DEVICES
    assert [float(value[0]) for value in values] == [0, 1, 2, 3]


@pytest.mark.parametrize("wrong", ["", "gpu", "gpu zero", "cuda:x", "a=b c", {"cpu": "../x"}, lambda name: 5])
def test_wrong_devices(several, tmp_path, wrong):
    """Invalid names of devices are refused, and no file is left behind."""
    with pytest.raises(ModelError, match="device"):
        t7bridge.convert(several, tmp_path / "out.pt", map_location=wrong)
    assert not (tmp_path / "out.pt").exists()


def test_command_line(several, tmp_path):
    """The option accepts a device, or pairs."""
    assert main(["convert", str(several), str(tmp_path / "out.pt"), "--map-location", "cuda:0=cuda:3"]) == 0
    assert devices(tmp_path / "out.pt") == ["cuda:3", "cpu", "cpu", "cpu"]


@pytest.mark.parametrize("location", ["meta", torch.device("meta"), {"cpu": "meta"}, lambda name: "meta"])
def test_load_module(location):
    """A live module's parameters are on the device that was asked for."""
    module = t7bridge.load_module(TESTFILES / "models" / "resnet_small.t7", map_location=location)
    assert {tensor.device.type for tensor in module.state_dict().values()} == {"meta"}
    assert {tensor.device.type for tensor in t7bridge.load_module(
        TESTFILES / "models" / "resnet_small.t7", map_location={"cuda:0": "meta"}
    ).state_dict().values()} == {"cpu"}  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a PyTorch without CUDA")
def test_load_module_without_the_device():
    """A device that PyTorch does not have here is an error that says so."""
    with pytest.raises(UnsupportedError, match="no device cuda:0"):
        t7bridge.load_module(TESTFILES / "models" / "resnet_small.t7", map_location="cuda:0")
