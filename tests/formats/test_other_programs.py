"""Files of other programs: read where a model is inside, and otherwise named for what they are."""

from __future__ import annotations

import io
import pickle
import sys
import types
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import TESTFILES

import t7bridge
from t7bridge.errors import CorruptError, LimitError, UnknownFormatError, UnsupportedError

CHECKPOINT = TESTFILES / "pt/checkpoint_adam.pt"


def archive(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    """Write a zip archive as other programs do."""
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_the_one_model_in_an_archive_is_read(method: int, tmp_path: Path) -> None:
    """Whatever its format; the note names what is left out, and macOS's own files are no models."""
    lua = (TESTFILES / "models/lenet_mm.t7").read_bytes()
    others = {"config.json": b"{}", "__MACOSX/._a.pth": b"x", ".b.pth": b"x"}
    for name, data, kind in (("a.pth", CHECKPOINT.read_bytes(), "pt"), ("sub/A.T7", lua, "t7")):
        path = archive(tmp_path / f"{kind}.zip", {**others, name: data}, method)
        with t7bridge.open(path) as document:
            assert document.format == kind
            assert document.path == f"zip://{name}::{path}"
        assert not t7bridge.diff(data, path).differences
        report = t7bridge.convert(path, tmp_path / f"{kind}.out.pt")
        assert [note.message for note in report.notes if name in note.message] == [
            f"{name} inside the archive is read; left out are config.json, __MACOSX/._a.pth, .b.pth"
        ]
    with zipfile.ZipFile(tmp_path / "pt.zip") as file:
        place = file.getinfo("a.pth")
    data = bytearray((tmp_path / "pt.zip").read_bytes())
    data[place.header_offset + 200] ^= 1
    with pytest.raises(CorruptError):
        t7bridge.open(bytes(data)).value  # noqa: B018


def test_several_models_have_an_address_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in archives of stable-baselines; the addresses work."""
    monkeypatch.chdir(tmp_path)
    data = CHECKPOINT.read_bytes()
    members = {"data": b"{}", "policy.pth": data, "policy.optimizer.pth": data, "_stable_baselines3_version": b"2.9"}
    archive(Path("agent.zip"), members)
    with pytest.raises(UnknownFormatError, match=r"archive of stable-baselines.*zip://policy\.pth::agent\.zip, zip://"):
        t7bridge.open("agent.zip")
    assert not t7bridge.diff(CHECKPOINT, "zip://policy.pth::agent.zip").differences
    for members in ({}, {"a.txt": b"x"}):
        with pytest.raises(UnknownFormatError, match="is a zip archive, but not one of PyTorch"):
            t7bridge.open(archive(Path("other.zip"), members))


def test_archives_inside_one_another_are_bounded(tmp_path: Path) -> None:
    """Each is opened to look into it, so that without a bound a small file would be thousands."""
    path = archive(tmp_path / "nested.zip", {"a.pth": CHECKPOINT.read_bytes()})
    for _ in range(3):
        archive(path, {"a.pth": path.read_bytes()})
    with t7bridge.open(path) as document:
        assert document.format == "pt"
    archive(path, {"a.pth": path.read_bytes()})
    with pytest.raises(LimitError, match="nested_files"):
        t7bridge.open(path)


def test_archives_are_scanned(tmp_path: Path) -> None:
    """Each member, in archives inside as well; damage and what cannot be read have an error."""
    evil = b"cos\nsystem\n(S'ls'\ntR."
    clean = archive(tmp_path / "clean.zip", {"policy.pth": CHECKPOINT.read_bytes(), "notes": b"text"})
    assert t7bridge.scan(clean).clean
    inner = archive(tmp_path / "inner.zip", {"scaler.pkl": evil, "notes": b"text"})
    report = t7bridge.scan(archive(tmp_path / "a.zip", {"policy.pth": b"junk", "inner.zip": inner.read_bytes()}))
    assert any(finding.path == "inner.zip: scaler.pkl" and "system" in finding.name for finding in report.findings)
    assert "policy.pth" in report.error
    nested = inner.read_bytes()
    for _ in range(6):
        nested = archive(tmp_path / "nested.zip", {"a.zip": nested}).read_bytes()
    assert "nested_files" in t7bridge.scan(tmp_path / "nested.zip").error
    assert t7bridge.scan(archive(tmp_path / "text.zip", {"a.txt": b"x"})).error


@pytest.fixture
def sklearn(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for scikit-learn and joblib: their names are all that a pickle has of them."""
    classes = {}
    for module_name, name in (("sklearn.linear_model._base", "LinearRegression"), ("joblib.numpy_pickle", "Wrapper")):
        module = types.ModuleType(module_name)
        classes[name] = type(name, (), {"__module__": module_name})
        setattr(module, name, classes[name])
        for dots in range(module_name.count(".") + 1):
            package = module_name.rsplit(".", dots)[0] if dots else module_name
            monkeypatch.setitem(sys.modules, package, module if package == module_name else types.ModuleType(package))
    return classes


def test_pickles_are_named(sklearn: Any, tmp_path: Path) -> None:
    """scikit-learn, joblib, PaddlePaddle: what the file is, and that nothing but data comes of it."""
    model = sklearn["LinearRegression"]()
    model.coef_ = np.arange(3.0)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(model))
    assert t7bridge.inspect(tmp_path / "a.pkl").header["format"] == "a Python pickle of scikit-learn"
    report = t7bridge.convert(tmp_path / "a.pkl", tmp_path / "a.npz")
    assert any("a pickle of scikit-learn" in note.message for note in report.notes)
    assert np.load(tmp_path / "a.npz")["coef_"].tolist() == [0.0, 1.0, 2.0]

    wrapper = sklearn["Wrapper"]()
    wrapper.model = model
    (tmp_path / "a.joblib").write_bytes(pickle.dumps(wrapper)[:-1] + bytes(range(0xA0, 0xFF)))
    with pytest.raises(UnsupportedError, match=r"is a file of joblib.*sklearn\.linear_model.*joblib\.load"):
        t7bridge.load(tmp_path / "a.joblib")
    with pytest.raises(UnknownFormatError, match="zlib-compressed, as joblib"):
        t7bridge.load(zlib.compress(pickle.dumps(model)))

    weights = {"fc.weight": np.ones((2, 3), np.float32), "StructuredToParameterName@@": {"fc.weight": "linear_0.w_0"}}
    (tmp_path / "a.pdparams").write_bytes(pickle.dumps(weights))
    assert t7bridge.inspect(tmp_path / "a.pdparams").header["format"] == "a Python pickle of PaddlePaddle"
    report = t7bridge.convert(tmp_path / "a.pdparams", tmp_path / "b.safetensors")
    assert any("PyTorch's (out, in)" in note.message for note in report.notes)
    assert t7bridge.inspect(CHECKPOINT).header["format"] == "a PyTorch file"
    assert t7bridge.inspect(pickle.dumps({"a": 1})).header["format"] == "a Python pickle"


def test_keras(tmp_path: Path) -> None:
    """Models in HDF5 and in archives are named, and their weights are read."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["keras_version"] = "2.9.0"
        file["model_weights/dense/kernel:0"] = np.ones((3, 2), "f4")
    assert t7bridge.inspect(tmp_path / "a.h5").header["format"] == "a Keras model, an HDF5 file"
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["layers/dense/vars/0"] = np.ones((3, 2), "f4")
    members = {"metadata.json": b"{}", "config.json": b"{}", "model.weights.h5": stream.getvalue()}
    path = archive(tmp_path / "a.keras", members)
    assert t7bridge.inspect(path).header["format"] == "a Keras archive with an HDF5 file inside"
    t7bridge.convert(path, tmp_path / "a.npz")
    assert np.load(tmp_path / "a.npz")["layers.dense.vars.0"].shape == (3, 2)


@pytest.mark.parametrize(
    ("head", "title"),
    [
        (bytes(16) + b"\x0a\0\0\0\x08\x05\x10\x03\x10\x02", "PaddlePaddle's binary parameters"),
        (b"\x0a\xb2\x05\x08\x00\x10" + b"\xff" * 9 + b"\x01\x1a", "a program of PaddlePaddle"),
        (b"\x1c\0\0\0TFL3" + bytes(8), "a TensorFlow Lite model"),
        (b"\x08\x01\x12\xc8\x05\x0a\x10abc", "a TensorFlow SavedModel"),
    ],
)
def test_other_files_are_named(head: bytes, title: str) -> None:
    """By their first bytes, and no `.t7` is taken for one."""
    with pytest.raises(UnknownFormatError, match=title):
        t7bridge.load(head + bytes(40))


def test_a_saved_model_is_named(tmp_path: Path) -> None:
    """A folder of TensorFlow."""
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(UnknownFormatError, match="a TensorFlow SavedModel"):
        t7bridge.load(tmp_path)
