"""`--rename`, `--strip` and `--dtype` in `convert`, from and to every format."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TESTFILES
from torch import nn

import t7bridge
from t7bridge.errors import ModelError, OptionError, StrictError

LENET = TESTFILES / "models/lenet_mm.t7"
CHECKPOINT = TESTFILES / "models/training_checkpoint.t7"


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.decoder = nn.Linear(3, 3)
        self.decoder.weight = self.encoder.weight
        self.norm = nn.BatchNorm1d(3)


def state() -> OrderedDict[str, Any]:
    """The state dict of `Tied`, under the prefix of `DataParallel`."""
    torch.manual_seed(44_020)
    return nn.DataParallel(Tied()).state_dict()


def codes(report: t7bridge.Report) -> dict[str, str]:
    """Return the last note of each code."""
    return {note.code: note.message for note in report.notes}


@pytest.mark.parametrize("source", ["pt", "safetensors", "h5", "npz", "t7"])
@pytest.mark.parametrize("target", ["pt", "safetensors", "h5", "npz", "t7"])
def test_every_pair_of_formats(tmp_path: Path, source: str, target: str) -> None:
    """Names and types are those asked for, tied weights stay tied, integers stay integers."""
    torch.save(state(), tmp_path / "in.pt")
    start = tmp_path / f"start.{source}"
    t7bridge.convert(tmp_path / "in.pt", start)
    end = tmp_path / f"end.{target}"
    options = {"rename": ["encoder=first", "{}.bias={}.b"], "strip": ["module"], "dtype": "bfloat16"}
    if source == target == "t7":
        with pytest.raises(OptionError) as raised:
            t7bridge.convert(start, end, **options)
        assert [name for name, _problem in raised.value.problems] == ["rename", "strip", "dtype"]
        return
    report = t7bridge.convert(start, end, **options)
    assert codes(report)["renamed"].startswith("9 keys renamed")
    expected = {
        key.removeprefix("module.").replace("encoder", "first").replace("bias", "b"): tensor
        for key, tensor in state().items()
    }
    result = t7bridge.load_state_dict(end)
    assert result.keys() == expected.keys()
    for key, tensor in expected.items():
        wanted = tensor.bfloat16() if tensor.is_floating_point() else tensor
        assert torch.equal(result[key].reshape(wanted.shape).to(wanted.dtype), wanted), key
    assert result["first.weight"].data_ptr() == result["decoder.weight"].data_ptr()
    if target == "pt":
        assert {tensor.dtype for tensor in torch.load(end, weights_only=True).values()} == {torch.bfloat16, torch.int64}


@pytest.mark.parametrize("target", ["pt", "safetensors", "t7"])
def test_a_lua_model(tmp_path: Path, target: str) -> None:
    """The keys of its state dict are renamed, its data are as without rules."""
    if target == "t7":  # by way of a .pt
        t7bridge.convert(LENET, tmp_path / "in.pt")
        source = tmp_path / "in.pt"
    else:
        source = LENET
    t7bridge.convert(source, tmp_path / f"out.{target}", rename={"": "net"}, dtype="float16")
    own = t7bridge.load_state_dict(LENET)
    result = t7bridge.load_state_dict(tmp_path / f"out.{target}")
    assert set(result) == {f"net.{key}" for key in own}
    assert all(torch.equal(result[f"net.{key}"], tensor.half()) for key, tensor in own.items())


def test_the_state_dict_of_a_checkpoint(tmp_path: Path) -> None:
    """The only one is renamed where it is; the rest, and the state of the optimizer, stays."""
    optimizer = torch.load(TESTFILES / "pt/checkpoint_adam.pt", weights_only=False)["optimizer"]
    value = {"epoch": 3, "state_dict": Tied().state_dict(), "optimizer": optimizer, "rng": torch.ones(4)}
    torch.save(value, tmp_path / "in.pt")
    report = t7bridge.convert(tmp_path / "in.pt", tmp_path / "out.pt", rename={"encoder": "e"}, dtype="float16")
    result = torch.load(tmp_path / "out.pt", weights_only=True)
    assert list(result["state_dict"])[:3] == ["e.weight", "e.bias", "decoder.weight"]
    assert result["state_dict"]["e.weight"].dtype is torch.float16
    moments = result["optimizer"]["state"][0]
    assert {tensor.dtype for tensor in moments.values()} == {torch.float32}
    assert result["optimizer"]["param_groups"] == optimizer["param_groups"]
    assert result["epoch"] == 3
    assert "root.state_dict; --at" in codes(report)["state-dict"]
    assert "optimizer" in codes(report)["precision"]


@pytest.mark.parametrize("suffix", ["pt", "t7", "h5", "npz", "safetensors"])
def test_several_state_dicts_ask_for_one(tmp_path: Path, suffix: str) -> None:
    """The error lists them, and `at` names one, in every format that has several."""
    value = {"generator": nn.Linear(2, 2).state_dict(), "critic": nn.Linear(2, 1).state_dict()}
    torch.save(value, tmp_path / "in.pt")
    source = tmp_path / f"in.{suffix}"
    if suffix != "pt":
        t7bridge.convert(tmp_path / "in.pt", source)
    if suffix in ("safetensors", "npz"):  # whose names are one level
        t7bridge.convert(source, tmp_path / "out.pt", rename={"critic": "c"})
        assert "c.weight" in t7bridge.load_state_dict(tmp_path / "out.pt")
        return
    with pytest.raises(ModelError, match=r"root\.generator, root\.critic|root\.critic, root\.generator"):
        t7bridge.convert(source, tmp_path / "out.pt", rename={"": "net"})
    t7bridge.convert(source, tmp_path / "out.pt", rename={"": "net"}, at="root.critic")
    assert list(torch.load(tmp_path / "out.pt", weights_only=True)) == ["net.weight", "net.bias"]


def test_a_state_dict_beside_a_tensor(tmp_path: Path) -> None:
    """What is around it is a checkpoint, however few entries that has."""
    torch.save({"state_dict": Tied().state_dict(), "mean": torch.ones(3)}, tmp_path / "in.pt")
    t7bridge.convert(tmp_path / "in.pt", tmp_path / "out.pt", rename={"encoder": "e"})
    result = torch.load(tmp_path / "out.pt", weights_only=True)
    assert list(result) == ["state_dict", "mean"]
    assert "e.weight" in result["state_dict"]


class Described(nn.Linear):
    """A module with more data than tensors."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        for name in ("author", "licence", "version", "notes", "dataset"):
            setattr(self, name, "text")


def test_a_module_with_many_attributes(tmp_path: Path) -> None:
    """Its keys are renamed in a file of named tensors, where its data are beside them."""
    torch.save(Described(), tmp_path / "in.pt")
    for suffix in ("safetensors", "pt", "t7"):
        t7bridge.convert(tmp_path / "in.pt", tmp_path / f"out.{suffix}", rename={"weight": "w"})
        assert sorted(t7bridge.load_state_dict(tmp_path / f"out.{suffix}")) == ["bias", "w"]


def test_files_without_state_dicts(tmp_path: Path) -> None:
    """There is nothing to rename; a type needs no names."""
    torch.save([[torch.ones(2)], "text"], tmp_path / "in.pt")
    with pytest.raises(ModelError, match="no state dict"):
        t7bridge.convert(tmp_path / "in.pt", tmp_path / "out.pt", rename={"a": "b"})
    t7bridge.convert(tmp_path / "in.pt", tmp_path / "out.pt", dtype="float16")
    assert torch.load(tmp_path / "out.pt", weights_only=True)[0][0].dtype is torch.float16


@pytest.mark.parametrize("suffix", ["pt", "t7", "safetensors"])
def test_rules_that_rename_nothing_are_refused(tmp_path: Path, suffix: str) -> None:
    """The error has the keys, and no file is left."""
    torch.save(state(), tmp_path / "in.pt")
    with pytest.raises(OptionError, match=r"rename modul=x renames nothing; the keys are module\.encoder\.weight"):
        t7bridge.convert(tmp_path / "in.pt", tmp_path / f"out.{suffix}", rename=["modul=x", "module=y"])
    assert [path.name for path in tmp_path.iterdir()] == ["in.pt"]


def test_colliding_names_leave_no_file(tmp_path: Path) -> None:
    """Both keys are named."""
    torch.save(state(), tmp_path / "in.pt")
    with pytest.raises(ModelError, match=r"module\.encoder\.weight and module\.decoder\.weight both become x\.weight"):
        t7bridge.convert(tmp_path / "in.pt", tmp_path / "out.pt", rename=["module.encoder=x", "module.decoder=x"])
    assert not (tmp_path / "out.pt").exists()


def test_infinities_are_a_warning(tmp_path: Path) -> None:
    """The report counts them, in a file small or large; with `strict` no file is left."""
    for count in (4, 1 << 20):
        weight = torch.zeros(count)
        weight[-2:] = torch.tensor([1e5, -1e6])
        torch.save({"w": weight}, tmp_path / "in.pt")
        for suffix in ("pt", "safetensors", "t7"):
            report = t7bridge.convert(tmp_path / "in.pt", tmp_path / f"out.{suffix}", dtype="float16", force=True)
            (warning,) = [note for note in report.notes if note.level == "warning"]
            assert (warning.count, warning.loss) == (2, "precision"), suffix
    with pytest.raises(StrictError, match="2 elements are too large"):
        t7bridge.convert(tmp_path / "in.pt", tmp_path / "strict.pt", dtype="float16", strict=True)
    assert not (tmp_path / "strict.pt").exists()


def test_records_do_not_undo_edits(tmp_path: Path) -> None:
    """What was made from a `.t7` in `tree` mode is not that `.t7` again; what was made from a `.pt` has its types."""
    t7bridge.convert(TESTFILES / "format/checkpoint.t7", tmp_path / "tree.pt", mode="tree")
    t7bridge.convert(tmp_path / "tree.pt", tmp_path / "back.t7", dtype="float16")
    assert (tmp_path / "back.t7").read_bytes() != (TESTFILES / "format/checkpoint.t7").read_bytes()
    torch.save({"w": torch.ones(2), "mask": torch.tensor([True, False]), "n": torch.tensor(3)}, tmp_path / "in.pt")
    t7bridge.convert(tmp_path / "in.pt", tmp_path / "in.t7")
    t7bridge.convert(tmp_path / "in.t7", tmp_path / "out.pt", rename={"": "net"}, dtype="float16")
    result = torch.load(tmp_path / "out.pt", weights_only=True)
    assert [tensor.dtype for tensor in result.values()] == [torch.float16, torch.bool, torch.int64]
    assert result["net.n"].shape == ()


def test_a_template_under_other_names(tmp_path: Path) -> None:
    """Weights whose keys have a prefix fill the Lua model; its types stay."""
    t7bridge.convert(LENET, tmp_path / "in.pt", rename={"": "module.net"})
    t7bridge.convert(tmp_path / "in.pt", tmp_path / "out.t7", template=LENET, strip=["module.net"])
    assert t7bridge.verify(LENET, tmp_path / "out.t7").same
    with pytest.raises(OptionError, match="dtype does not apply with a template"):
        t7bridge.convert(tmp_path / "in.pt", tmp_path / "out.t7", template=LENET, dtype="float16")


def test_tree_mode_has_types_but_no_names(tmp_path: Path) -> None:
    """Every tensor is cast; rules are about state dicts, of which there are none."""
    with pytest.raises(OptionError, match="rename does not apply in mode tree"):
        t7bridge.convert(LENET, tmp_path / "out.pt", mode="tree", rename={"0": "a"})
    t7bridge.convert(LENET, tmp_path / "out.pt", mode="tree", dtype="float16")
    value = torch.load(tmp_path / "out.pt", weights_only=True)
    assert value["modules"][0]["weight"].dtype is torch.float16


def test_unknown_types_are_refused(tmp_path: Path) -> None:
    """The error lists those that there are."""
    with pytest.raises(ModelError, match="float16 or bfloat16 or float32"):
        t7bridge.convert(LENET, tmp_path / "out.pt", dtype="int8")
