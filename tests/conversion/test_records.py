"""Records of what a file was are hints: `convert` writes what every reader sees, and `verify` compares that."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from fuzz_records import READERS, compare, difference, forged_input, leaves, seeds
from helpers import TESTFILES
from looping import new_folder

import t7bridge
from t7bridge.errors import StrictError, T7BridgeError

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
h5py = pytest.importorskip("h5py")

FORGED = sorted(path for path in (TESTFILES / "hostile").glob("record_*") if "head" not in path.name)
TARGETS = ("t7", "pt", "safetensors", "npz", "h5")
SOURCES = [
    path
    for pattern in ("format/*.t7", "pt/*.pt", "models/*.t7", "legacy/*.t7", "nn/*.t7")
    for path in sorted(TESTFILES.glob(pattern))
    if path.stat().st_size < 200_000 and not path.name.startswith("stream")
]


@pytest.mark.parametrize("target", ["t7", "pt", "npz"])
def test_forged_records(subtests: pytest.Subtests, target: str, tmp_path: Path) -> None:
    """What PyTorch, numpy, h5py and a short reader of Lua's files see in the source, they see in the output."""
    for path in FORGED:
        with subtests.test(path.name), new_folder(tmp_path) as folder:
            if path.suffix[1:] == target:
                continue
            report = t7bridge.convert(path, output := folder / f"x.{target}")
            named = not {path.suffix, output.suffix} <= {".pt", ".t7"}
            (shown,) = READERS[path.suffix[1:]](path.read_bytes())
            made = READERS[target](output.read_bytes())

            assert difference(leaves(shown, named), leaves(made[0], named), named) == ""
            used = {path.suffix, output.suffix} == {".pt", ".t7"} or path.suffix in (".h5", ".npz")
            assert any(note.code in ("record", "unshared") for note in report.notes) or not used or target == "npz"
            assert t7bridge.verify(path, output).differences == []


@pytest.mark.parametrize("name", ["record_numbers.pt", "record_digits.pt", "record_narrow.t7"])
def test_strict_refuses_a_record_that_is_wrong(name: str, tmp_path: Path) -> None:
    """With `strict`, a record that cannot be used is an error and leaves nothing."""
    output = tmp_path / ("x.t7" if name.endswith(".pt") else "x.pt")
    with pytest.raises(StrictError, match="its record is not used"):
        t7bridge.convert(TESTFILES / "hostile" / name, output, strict=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_edited_weights_keep_their_digits(dtype: str, tmp_path: Path) -> None:
    """Weights that h5py changed are of the recorded type only where it has every number."""
    kept, edited = torch.tensor([1.5, 2.5, 3.0]).to(getattr(torch, dtype)), [1.2345678, 300.123, 1e-3]
    torch.save({"kept": kept, "w": kept.clone()}, tmp_path / "x.pt")
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["w"][:] = edited
    report = t7bridge.convert(tmp_path / "x.h5", tmp_path / "y.pt")
    back = torch.load(tmp_path / "y.pt", weights_only=True)

    assert [note.path for note in report.notes if note.code == "record"] == ["w"]
    assert torch.equal(back["w"], torch.tensor(edited))
    assert back["kept"].dtype == kept.dtype
    loaded = t7bridge.load(tmp_path / "x.h5")
    assert [loaded["kept"].element.name, loaded["w"].element.name] == [dtype, "float32"]
    assert t7bridge.verify(tmp_path / "x.h5", tmp_path / "y.pt").same
    assert not t7bridge.verify(tmp_path / "x.pt", tmp_path / "y.pt").same


def test_names_of_hdf5_are_those_that_it_cannot_have(tmp_path: Path) -> None:
    """A name with a slash comes back; a tensor whose name HDF5 has keeps it, beside one that is written alike."""
    value = {"a/b": torch.zeros(2), "a_b": torch.ones(2), "": torch.full((2,), 2.0), "_": torch.full((2,), 3.0)}
    torch.save(value, tmp_path / "x.pt")
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.h5")
    (shown,) = READERS["h5"]((tmp_path / "x.h5").read_bytes())
    t7bridge.convert(tmp_path / "x.h5", tmp_path / "y.pt")
    back = torch.load(tmp_path / "y.pt", weights_only=True)

    assert (shown["a_b"].tolist(), shown["_"].tolist()) == ([1, 1], [3, 3])
    assert {name: tensor.tolist() for name, tensor in back.items()} == {
        name: tensor.tolist() for name, tensor in value.items()
    }


@pytest.mark.parametrize("recorded", [["b"], ["c"], ["x", "y"], ["b/c"], [""], ["a_"]])
def test_names_of_hdf5_cannot_be_exchanged(recorded: list[str], tmp_path: Path) -> None:
    """A recorded name that HDF5 could have, or that is written in another way, is not used."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in "ab":
            file[name] = np.full(2, ord(name))
            file[name].attrs["t7bridge"] = json.dumps({"names": {name: recorded if name == "a" else ["a"]}})
    report = t7bridge.convert(tmp_path / "x.h5", tmp_path / "x.pt")

    assert "record" in {note.code for note in report.notes}
    assert {name: item.tolist() for name, item in torch.load(tmp_path / "x.pt").items()} == {
        "a": [97, 97],
        "b": [98, 98],
    }


@pytest.mark.slow
def test_fuzzed_records(tmp_path: Path) -> None:
    """Of forged records none changes what is written; those that are wrong are dropped."""
    found = seeds(tmp_path)
    outcomes = [compare(*forged_input(found, f"test {number}"), tmp_path) for number in range(150)]
    assert [outcome for outcome in outcomes if outcome.startswith("DIFFERENT")] == []
    assert {"same", "dropped"} <= set(outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_verify_after_convert(subtests: pytest.Subtests, target: str, tmp_path: Path) -> None:
    """Right after `convert` there is no difference, and both files are the same unless its notes left something out."""
    for path in random.Random(4).sample(SOURCES, 60):
        with subtests.test(path.name), new_folder(tmp_path) as folder:
            output = folder / f"x.{target}"
            try:
                report = t7bridge.convert(path, output)
            except T7BridgeError:
                continue
            left_out = [note for note in report.notes if note.code in ("left-out", "trailing")]
            for found in (t7bridge.verify(path, output), t7bridge.verify(output, path)):
                assert not found.differences
                assert found.same == (not left_out), found.left_out


def test_verify_names_what_a_format_cannot_hold(tmp_path: Path) -> None:
    """A value that the other file's format cannot hold is only in the first, by its path."""
    torch.save({"w": torch.ones(2), "pair": [b"\xff", {"deep": b"\xfe"}], "n": 3}, tmp_path / "x.pt")
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.safetensors")
    found = t7bridge.verify(tmp_path / "x.pt", tmp_path / "x.safetensors")
    assert not found.differences
    assert not found.same
    (text,) = found.left_out[str(tmp_path / "x.pt")]
    assert "pair.0" in text
    assert "pair.1.deep" in text


def test_strides_of_an_extent_of_one_have_no_meaning(tmp_path: Path) -> None:
    """PyTorch writes such strides in several ways."""
    base = torch.arange(6.0)
    torch.save({"w": base.as_strided((1, 3), (3, 1))}, tmp_path / "a.pt")
    torch.save({"w": base.as_strided((1, 3), (1, 1))}, tmp_path / "b.pt")
    assert t7bridge.verify(tmp_path / "a.pt", tmp_path / "b.pt").same
