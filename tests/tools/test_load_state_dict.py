"""`load_state_dict`: what PyTorch's `load_state_dict` takes, from any file."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from helpers import TESTFILES
from torch import nn

import t7bridge
from t7bridge.errors import LeftOutWarning, ModelError, NoModuleError, UnknownFormatError
from t7bridge.values.widened import ELEMENTS_KEY

MODELS = sorted(path for path in (TESTFILES / "models").glob("*.t7") if not path.name.endswith(".io.t7"))


class Net(nn.Module):
    """Two tied layers, a normalization, and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)
        self.rnn = nn.GRU(3, 4)


def net(seed: int = 44_030) -> Net:
    """Return a network with random weights."""
    torch.manual_seed(seed)
    return Net()


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_models_of_lua(path: Path) -> None:
    """The live module of each model takes what is loaded, all keys."""
    at = "root.model" if path.stem == "training_checkpoint" else None
    module = t7bridge.load_module(path, at=at)
    own = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    state = t7bridge.load_state_dict(path)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.zero_()
    module.load_state_dict(state)
    for key, tensor in module.state_dict().items():
        assert torch.equal(tensor, own[key]), key


@pytest.mark.parametrize("suffix", ["pt", "safetensors", "h5", "npz", "t7"])
def test_every_format(tmp_path: Path, suffix: str) -> None:
    """A network gets its own weights back; what was tied is one tensor."""
    original = net()
    torch.save(original.state_dict(), tmp_path / "in.pt")
    path = tmp_path / f"in.{suffix}"
    if suffix != "pt":
        t7bridge.convert(tmp_path / "in.pt", path)
    state = t7bridge.load_state_dict(path)
    other = net(1)
    assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
    for key, tensor in original.state_dict().items():
        assert torch.equal(other.state_dict()[key], tensor)
    assert state["first.weight"].data_ptr() == state["second.weight"].data_ptr()
    assert not any(tensor.requires_grad for tensor in state.values())


def checkpoint(path: Path, **beside: Any) -> Path:
    """Save a checkpoint as training programs do, and return its path."""
    optimizer = torch.load(TESTFILES / "pt/checkpoint_adam.pt", weights_only=False)["optimizer"]
    state = nn.DataParallel(net()).state_dict()
    torch.save({"epoch": 3, "net": state, "optimizer": optimizer, "rng": torch.ones(5), **beside}, path)
    return path


def test_the_only_state_dict_of_a_checkpoint(tmp_path: Path) -> None:
    """An optimizer and random states are none; `_metadata` is that of the file, under the new names."""
    state = t7bridge.load_state_dict(checkpoint(tmp_path / "c.pt"), strip=["module"])
    assert list(state) == list(net().state_dict())
    assert state._metadata == net().state_dict()._metadata  # type: ignore[attr-defined]


def test_several_state_dicts(tmp_path: Path) -> None:
    """The error lists them; `at` names one, with or without the root; `root` is all of them."""
    path = checkpoint(tmp_path / "c.pt", ema=net().state_dict())
    with pytest.raises(ModelError, match=r"root\.net, root\.ema"):
        t7bridge.load_state_dict(path)
    assert list(t7bridge.load_state_dict(path, "root.ema")) == list(t7bridge.load_state_dict(path, "ema"))
    torch.save({"g": nn.Linear(1, 2).state_dict(), "d": nn.Linear(2, 1).state_dict()}, tmp_path / "two.pt")
    assert list(t7bridge.load_state_dict(tmp_path / "two.pt", "root")) == ["g.weight", "g.bias", "d.weight", "d.bias"]


def test_several_values_of_lua(tmp_path: Path) -> None:
    """Their state dicts have the paths that notes of a conversion name, and that `at` takes: those of a list."""
    with t7bridge.T7Writer(tmp_path / "two.t7") as writer:
        for name in ("lenet_mm", "autoencoder_flat"):
            writer.write(t7bridge.load(TESTFILES / f"models/{name}.t7"))
    with pytest.raises(ModelError, match=r"root\[0\], root\[1\]"):
        t7bridge.load_state_dict(tmp_path / "two.t7")
    second = t7bridge.load_state_dict(tmp_path / "two.t7", at="root[1]")
    assert list(second) == list(t7bridge.load_state_dict(TESTFILES / "models/autoencoder_flat.t7"))

    report = t7bridge.convert(tmp_path / "two.t7", tmp_path / "two.pt")
    assert any("2 state dicts inside the value: root[0], root[1]" in note.message for note in report.notes)
    t7bridge.convert(tmp_path / "two.t7", tmp_path / "second.pt", at="root[1]")
    assert list(torch.load(tmp_path / "second.pt", weights_only=True)) == list(second)
    t7bridge.convert(tmp_path / "two.t7", tmp_path / "whole.pt", at="root")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert list(whole[1]) == list(second)
    assert len(t7bridge.load_state_dict(tmp_path / "two.t7", at="root")) == len(whole[0]) + len(second)


def test_parts_of_a_lua_model() -> None:
    """A module inside has its own keys; lists of tensors are numbered."""
    layer = t7bridge.load_state_dict(TESTFILES / "models/lenet_mm.t7", at="root.modules[1]")
    assert {key: tuple(tensor.shape) for key, tensor in layer.items()} == {"weight": (6, 1, 5, 5), "bias": (6,)}
    lists = TESTFILES / "beside/crnn.t7"
    assert list(t7bridge.load_state_dict(lists, at="root.parameters")) == ["0", "1", "2"]
    assert len(t7bridge.load_state_dict(lists, at="root")) == 5
    with pytest.raises(ModelError, match=r"root\.parameters, root\.bnVars"):
        t7bridge.load_state_dict(lists)
    assert list(t7bridge.load_state_dict(TESTFILES / "beside/stylenet.t7")) == ["0.weight", "0.bias"]


def test_types_and_devices(tmp_path: Path) -> None:
    """Both are PyTorch's; integers keep their type, and tied tensors stay tied on the device."""
    torch.save(net().state_dict(), tmp_path / "in.pt")
    for dtype in (torch.float16, "bfloat16"):
        state = t7bridge.load_state_dict(tmp_path / "in.pt", device="meta", dtype=dtype)
        expected = torch.float16 if dtype is torch.float16 else torch.bfloat16
        assert {tensor.dtype for tensor in state.values()} == {expected, torch.int64}
        assert {tensor.device.type for tensor in state.values()} == {"meta"}
        one, other = state["first.weight"], state["second.weight"]
        assert one.untyped_storage()._cdata == other.untyped_storage()._cdata
    half = t7bridge.load_state_dict(tmp_path / "in.pt", dtype=torch.float16)
    assert torch.equal(half["norm.weight"], net().norm.weight.half())
    assert half["first.weight"].data_ptr() == half["second.weight"].data_ptr()
    with pytest.raises(ModelError, match="float16 or bfloat16 or float32"):
        t7bridge.load_state_dict(tmp_path / "in.pt", dtype=torch.int8)


def test_a_recorded_type_that_elements_do_not_have(tmp_path: Path) -> None:
    """The tensor has the type that it has in the file; others have the recorded one."""
    tensors = {"changed": torch.tensor([1.1, 2.0]), "same": torch.ones(2)}
    metadata = {ELEMENTS_KEY: json.dumps({"changed": "bfloat16", "same": "bfloat16"})}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", metadata)

    state = t7bridge.load_state_dict(tmp_path / "model.safetensors")
    assert torch.equal(state["changed"], tensors["changed"])
    assert torch.equal(state["same"], tensors["same"].bfloat16())
    assert state["same"].dtype == torch.bfloat16


def test_names(tmp_path: Path) -> None:
    """Rules are those of `convert`; one that renames nothing is an error here, as there is no report."""
    torch.save(net().state_dict(), tmp_path / "in.pt")
    state = t7bridge.load_state_dict(tmp_path / "in.pt", rename={"first": "body.0", "": "net"})
    assert "net.body.0.weight" in state
    with pytest.raises(ModelError, match=r"in\.pt: strip module renames nothing"):
        t7bridge.load_state_dict(tmp_path / "in.pt", strip=["module"])


def test_two_tensors_with_one_key(tmp_path: Path) -> None:
    """Neither replaces the other without a word."""
    path = tmp_path / "a.pt"
    torch.save({"net": {"a.b": torch.zeros(2), "a": {"b": torch.ones(3)}, "w": torch.ones(1)}}, path)
    with pytest.raises(ModelError, match=r"two tensors have the key a\.b"):
        t7bridge.load_state_dict(path, at="root.net")
    assert t7bridge.load_state_dict(path, at="root.net.a")["b"].tolist() == [1, 1, 1]


def test_what_is_no_tensor_is_said(tmp_path: Path) -> None:
    """It is left out with a warning at the line of the caller."""
    torch.save({**nn.Linear(1, 2).state_dict(), "epoch": 3}, tmp_path / "in.pt")
    with pytest.warns(LeftOutWarning, match="epoch") as caught:
        state = t7bridge.load_state_dict(tmp_path / "in.pt")
    assert list(state) == ["weight", "bias"]
    assert caught[0].filename == __file__


def test_sources_of_other_kinds(tmp_path: Path) -> None:
    """Bytes, streams, folders of shards, and pickled modules; a stream stays open."""
    torch.save(net().state_dict(), tmp_path / "in.pt")
    data = (tmp_path / "in.pt").read_bytes()
    expected = list(net().state_dict())
    assert list(t7bridge.load_state_dict(data)) == expected
    assert list(t7bridge.load_state_dict(io.BytesIO(data))) == expected
    with open(tmp_path / "in.pt", "rb") as file:
        assert list(t7bridge.load_state_dict(file)) == expected
        assert not file.closed
    t7bridge.convert(tmp_path / "in.pt", tmp_path / "model.safetensors", shard_size=100)
    assert set(t7bridge.load_state_dict(tmp_path)) == set(expected)
    torch.save(net(), tmp_path / "whole.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(t7bridge.load_state_dict(tmp_path / "whole.pt")) == expected


@pytest.mark.parametrize(
    ("value", "error"), [([1, 2], NoModuleError), ({"epoch": 3}, NoModuleError), ({1: torch.ones(2)}, NoModuleError)]
)
def test_files_without_a_state_dict(tmp_path: Path, value: Any, error: type[Exception]) -> None:
    """The error says so."""
    torch.save(value, tmp_path / "in.pt")
    with pytest.raises(error, match="no state dict"):
        t7bridge.load_state_dict(tmp_path / "in.pt")


def test_wrong_files(tmp_path: Path) -> None:
    """Missing files, other formats and wrong paths have the errors of every verb, with the name of the file."""
    with pytest.raises(FileNotFoundError):
        t7bridge.load_state_dict(tmp_path / "none.pt")
    (tmp_path / "page.pt").write_text("<html></html>")
    with pytest.raises(UnknownFormatError, match="HTML"):
        t7bridge.load_state_dict(tmp_path / "page.pt")
    with pytest.raises(ModelError, match=r"lenet_mm\.t7.*nothing at root\.nothing"):
        t7bridge.load_state_dict(TESTFILES / "models/lenet_mm.t7", at="root.nothing")
