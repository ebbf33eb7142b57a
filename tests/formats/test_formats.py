"""Files of every format: detected by content, read and written by span, with shared memory tied again."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TESTFILES

import t7bridge
from t7bridge import formats
from t7bridge.errors import CorruptError, FormatError, ModelError, TruncatedError, UnsupportedError
from t7bridge.graph import Span

h5py = pytest.importorskip("h5py")
safetensors = pytest.importorskip("safetensors.torch")

SUFFIXES = [spec.suffix for spec in formats.FORMATS.values() if spec.folder is None]


def state() -> dict[str, torch.Tensor]:
    """A state dict with a tied tensor, a view, a flat storage of two, an empty and a 0-d tensor."""
    base = torch.arange(30, dtype=torch.float32).reshape(6, 5)
    flat = torch.arange(10, dtype=torch.float64)
    return {
        "a.weight": base, "a.view": base.t()[1:4], "tied": base, "flat/one": flat[:4], "flat/two": flat[4:],
        "half": torch.ones(3).half(), "scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4),
        "flag": torch.ones(2) > 0,
    }  # fmt: skip


def _npz(path: Path) -> dict[str, torch.Tensor]:
    return {key: torch.from_numpy(value) for key, value in np.load(path).items()}


def _h5(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    with h5py.File(path) as file:
        file.visit_links(lambda name: found.update(_dataset(file, name)))
    return found


# Suffix → how the format's own library reads the tensors of a file, by key. Lua Torch is compared with elsewhere.
LIBRARIES: dict[str, Callable[[Path], dict[str, torch.Tensor]] | None] = {
    ".t7": None,
    ".npz": _npz,
    ".pt": lambda path: torch.load(path, weights_only=True),
    ".safetensors": safetensors.load_file,
    ".h5": _h5,
}


def test_each_format_is_read_by_its_library() -> None:
    """A new format is compared with a reader that is not ours."""
    missing = set(SUFFIXES) - set(LIBRARIES)
    assert not missing, f"add how the library of {missing} reads a file to LIBRARIES, or None if there is no other"


def library_reads(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file by the format's own library, by key with dots."""
    library = LIBRARIES[path.suffix]
    assert library is not None
    found = library(path)
    return {key.replace("/", ".").replace("_one", ".one").replace("_two", ".two"): found[key] for key in found}


def _dataset(file: Any, name: str) -> dict[str, torch.Tensor]:
    item = file[name]
    return {name: torch.from_numpy(np.asarray(item[()]))} if isinstance(item, h5py.Dataset) else {}


@pytest.mark.slow
@pytest.mark.parametrize("first", SUFFIXES)
def test_any_to_any(first: str, tmp_path: Path) -> None:
    """From each format to each other the tensors are what PyTorch wrote, and share memory as they did.

    So far as both formats can hold that: element types and metadata, which list what is shared, are in their rows.
    """
    one = tmp_path / f"one{first}"
    for second in SUFFIXES:
        rows = [formats.SUFFIXES[first], formats.SUFFIXES[second]]
        held = {
            key: tensor
            for key, tensor in state().items()
            if all(not row.elements or str(tensor.dtype).removeprefix("torch.") in row.elements for row in rows)
        }
        torch.save(held, tmp_path / "source.pt")
        t7bridge.convert(tmp_path / "source.pt", one, force=True)
        two, back = tmp_path / f"two{second}", tmp_path / "back.pt"
        t7bridge.convert(one, two, force=True)
        if LIBRARIES.get(second) is not None:
            found = library_reads(two)
            for key, tensor in held.items():
                other = found[key.replace("/", ".")]
                assert other.dtype == tensor.dtype, (second, key)
                assert other.reshape(-1).tolist() == tensor.reshape(-1).tolist(), (second, key)
        t7bridge.convert(two, back, force=True)
        again = torch.load(back, weights_only=True)
        assert set(again) == set(held), second
        assert again["scalar"].numel() == 1
        assert again["empty"].numel() == 0
        if not all(row.links or row.text_bytes for row in rows):
            continue
        assert again["a.weight"].data_ptr() == again["tied"].data_ptr()
        assert again["a.view"].data_ptr() == again["a.weight"].data_ptr() + 4
        assert again["a.view"].stride() == (1, 5)
        assert again["flat/two"].data_ptr() == again["flat/one"].data_ptr() + 32
        assert again["scalar"].shape == ()
        assert again["empty"].shape == (0, 4)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".h5"])
def test_weights_stay_in_the_file(suffix: str, tmp_path: Path) -> None:
    """Reading loads no element: each storage is a span of the file."""
    t7bridge.convert(TESTFILES / "models/lenet_mm.t7", tmp_path / f"x{suffix}")
    with t7bridge.open(tmp_path / f"x{suffix}") as document:
        found = document.value.values()
        assert len(found) == 8
        assert document.format == formats.SUFFIXES[suffix].name
        assert all(isinstance(tensor.storage.data, Span) for tensor in found)


def test_tensors_that_were_changed_are_not_tied(tmp_path: Path) -> None:
    """If one of two tied tensors was changed but the metadata kept, both keep their own values."""
    torch.save(state(), tmp_path / "source.pt")
    t7bridge.convert(tmp_path / "source.pt", tmp_path / "x.safetensors")
    data = bytearray((tmp_path / "x.safetensors").read_bytes())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    begin = 8 + int.from_bytes(data[:8], "little") + header["tied"]["data_offsets"][0]
    data[begin : begin + 4] = np.float32(99).tobytes()
    (tmp_path / "y.safetensors").write_bytes(data)

    report = t7bridge.convert(tmp_path / "y.safetensors", tmp_path / "y.pt")
    again = torch.load(tmp_path / "y.pt", weights_only=True)
    assert (again["tied"][0, 0].item(), again["a.weight"][0, 0].item()) == (99.0, 0.0)
    assert any("no longer agree" in note.message for note in report.notes)


def header(entries: Any, data: bytes = b"") -> bytes:
    """A safetensors file of a header and bytes."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes: Any) -> dict[str, Any]:
    """A header's entry of two float32."""
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (header({"x": entry(data_offsets=[0, 4])}, bytes(8)), CorruptError),
        (header({"x": entry(shape=[3])}, bytes(8)), CorruptError),
        (header({"x": entry(shape=[-2])}, bytes(8)), CorruptError),
        (header({"x": entry(shape=[True, 2])}, bytes(8)), CorruptError),
        (header({"x": entry(shape=[1 << 40, 1 << 40])}, bytes(8)), CorruptError),
        (header({"x": entry(), "y": entry()}, bytes(8)), CorruptError),
        (header({"x": entry(data_offsets=[4, 12])}, bytes(12)), CorruptError),
        (header({"x": entry()}, bytes(9)), CorruptError),
        (header({"x": entry()}, bytes(4)), TruncatedError),
        (header({"x": entry(dtype="F4")}, bytes(8)), UnsupportedError),
        (header({"x": entry(), "__metadata__": {"a": 1}}, bytes(8)), CorruptError),
        (header({"x": entry(), "__metadata__": {"t7bridge": "{}"}}, bytes(8)), CorruptError),
        (header(b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{}}', bytes(8)), CorruptError),
        (header(b'{"x":' + b"[" * 100_000, b""), CorruptError),
    ],
)
def test_damaged_safetensors(data: bytes, error: type[Exception]) -> None:
    """A header that contradicts itself or the file is refused; nothing is guessed."""
    with pytest.raises(error):
        t7bridge.load(data)


def test_metadata_cannot_make_memory(tmp_path: Path) -> None:
    """Metadata that ties a few bytes to a storage of terabytes is not used."""
    views = {"views": {"x": [0, 1 << 40, 0, [1]], "y": [0, 1 << 40, 2, [1]]}}
    entries = {"x": entry(), "y": entry(data_offsets=[8, 16]), "__metadata__": {"t7bridge": json.dumps(views)}}
    value = t7bridge.load(header(entries, bytes(16)))

    assert [tensor.storage.count for tensor in value.values()] == [2, 2]


def test_numpy_archives(tmp_path: Path) -> None:
    """Files written by numpy are read: Fortran order, big-endian, compressed; objects and text are reported."""
    arrays = {
        "c": np.arange(6.0).reshape(2, 3), "f": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "big": np.arange(3, dtype=">f4"), "text": np.array(["a", "bc"]), "objects": np.array([{}], object),
    }  # fmt: skip
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", **arrays)
        report = t7bridge.convert(tmp_path / "x.npz", tmp_path / "x.pt", force=True)
        found = torch.load(tmp_path / "x.pt", weights_only=True)
        assert list(found) == ["c", "f", "big"]
        assert all(found[key].tolist() == arrays[key].tolist() for key in found)
        assert {note.path for note in report.notes} >= {"text", "objects"}


def test_damaged_numpy_archives(tmp_path: Path) -> None:
    """An invalid header, or one that promises more than exists, is refused; it is never evaluated."""
    good = io.BytesIO()
    np.save(good, np.zeros(2))
    for old, new in ((b"(2,)", b"(9,)"), (b"(2,)", b"(x,)"), (b"NUMPY", b"NUMPI"), (b"False", b"print")):
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("x.npy", good.getvalue().replace(old, new))
        with pytest.raises(FormatError, match="x"):
            t7bridge.load(tmp_path / "x.npz")


def test_archives_are_told_apart(tmp_path: Path) -> None:
    """A zip archive with arrays is numpy's, one with a pickle PyTorch's, whatever else is in it."""
    np.savez(tmp_path / "x.bin", a=np.zeros(2))
    shutil.copy(f"{tmp_path / 'x.bin'}.npz", tmp_path / "y.pt")
    torch.save({"a": torch.zeros(2)}, tmp_path / "z.npz")
    with zipfile.ZipFile(tmp_path / "z.npz", "a") as archive:
        archive.writestr("extra.npy", b"")

    assert t7bridge.open(tmp_path / "y.pt").format == "npz"
    assert t7bridge.open(tmp_path / "z.npz").format == "pt"


def test_hdf5_of_others(tmp_path: Path) -> None:
    """Groups are dicts as torch-hdf5 has tables; chunks, byte orders and links are read, the rest named."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["net/conv/weight"] = np.arange(6.0).reshape(2, 3)
        file["net/conv"].create_dataset("packed", data=np.arange(1000), chunks=(100,), compression="gzip")
        file["net/big"] = np.arange(3, dtype=">i4")
        file["net/again"] = h5py.SoftLink("/net/conv/weight")
        file["net/other"] = h5py.ExternalLink("secret.h5", "/x")
        file["net/loop"] = file["net"]
        file["words"] = ["a", "b"]
        file.attrs["title"] = "text"
        file.attrs["scale"] = np.arange(3.0)
        file["net"].attrs["steps"] = 7
    report = t7bridge.convert(tmp_path / "x.h5", tmp_path / "x.pt")
    found = torch.load(tmp_path / "x.pt", weights_only=True)["net"]

    assert found["conv"]["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["conv"]["packed"].tolist() == list(range(1000))
    assert found["big"].tolist() == [0, 1, 2]
    assert found["again"].data_ptr() == found["conv"]["weight"].data_ptr()
    assert torch.load(tmp_path / "x.pt", weights_only=True)["words"] == ["a", "b"]
    left = " ".join(str(note) for note in report.notes)
    assert all(name in left for name in ("net.other", "net.loop"))
    assert "2 attributes are left out: @scale, net@steps" in left


def test_what_cannot_be_held_is_counted(tmp_path: Path) -> None:
    """The report lists what a format of named tensors leaves out by kind, with the number and the first paths."""
    tensor = t7bridge.Tensor.from_numpy(np.zeros(2, "f4"))
    t7bridge.save({"w": tensor, "raw": [b"\xff"] * 7, "more": b"\xfe"}, tmp_path / "x.pt")
    report = t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.npz")

    (note,) = [note for note in report.notes if note.level == "warning"]
    assert "byte string: 8 of them" in note.message
    assert "raw.0, raw.1" in note.message


def test_names_that_are_one_text(tmp_path: Path) -> None:
    """Keys that would be one name in a file are refused: none of the tensors is lost."""
    tensor = t7bridge.Tensor.from_numpy(np.zeros(2, "f4"))

    with pytest.raises(ModelError):
        formats.write({1: tensor, "1": tensor}, tmp_path / "x.npz")


@pytest.mark.slow
def test_command_line(tmp_path: Path) -> None:
    """Examples, quiet runs, pipes, completion and what was perhaps meant."""

    def run(*words: Any, **how: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([sys.executable, "-m", "t7bridge", *map(str, words)], capture_output=True, **how)

    model = TESTFILES / "models/lenet_mm.t7"
    piped = run("convert", "-q", "-", "-", "--to", "safetensors", input=model.read_bytes())
    assert (piped.returncode, piped.stderr) == (0, b"")
    (tmp_path / "x.safetensors").write_bytes(piped.stdout)
    assert set(safetensors.load_file(tmp_path / "x.safetensors")) == set(t7bridge.load(piped.stdout))
    assert run("diff", model, tmp_path / "x.safetensors").returncode == 0
    same = run("verify", "--quiet", model, tmp_path / "x.safetensors")
    assert (same.returncode, same.stdout) == (0, b"")

    assert b"did you mean convert?" in run("convrt").stderr
    assert b"did you mean --force?" in run("convert", "--forse", "a", "b").stderr
    assert b"examples:" in run("help", "convert").stdout
    assert run("convert", "--limit", "help").stdout.startswith(b"objects ")
    script = run("completion", "bash").stdout
    completed = subprocess.run(
        ["bash", "-c", script.decode() + "\nCOMP_WORDS=(t7bridge convert --to h); COMP_CWORD=3; _t7bridge; "
         "echo ${COMPREPLY[@]}"], capture_output=True, check=True,
    )  # fmt: skip
    assert completed.stdout == b"hdf5\n"


def test_a_file_of_a_distributed_checkpoint() -> None:
    """One of its files alone is refused with what the folder is refused with: PyTorch's function that joins them."""
    folder = TESTFILES / "distributed" / "single"
    for path in (folder, folder / "__0_0.distcp"):
        with pytest.raises(UnsupportedError, match="dcp_to_torch_save"):
            t7bridge.load(path)


def test_notes_are_not_repeated(tmp_path):
    """Values that were released and are read again have the notes of the first time."""
    np.savez(tmp_path / "a.npz", a=np.ones(3), b=np.array(["text"]))
    (tmp_path / "b.pkl").write_bytes(pickle.dumps({"a": 1}, 2) + pickle.dumps([2], 2))
    for name in ("a.npz", "b.pkl"):
        with t7bridge.open(tmp_path / name) as document:
            value = document.value
            notes = [str(note) for note in document.notes]
            document.forget()
            assert document.value is not value
            assert [str(note) for note in document.notes] == notes
        assert len(notes) == 1


def test_notes_of_a_reading_that_failed_are_not_repeated(tmp_path):
    """Values that are asked for again after a reading failed have each note once."""
    np.savez(tmp_path / "a.npz", a=np.array(["text"]))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("b.npy", b"damaged")
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"a": 1}, 2) + pickle.dumps([2], 2))
        archive.writestr("x/data/0", bytes(4))  # weights that the value does not refer to
    for name in ("a.npz", "b.pt"):
        with t7bridge.open(tmp_path / name) as document:
            for _ in range(2):
                with pytest.raises(CorruptError):
                    document.roots  # noqa: B018
                assert len(document.notes) == 1, name
