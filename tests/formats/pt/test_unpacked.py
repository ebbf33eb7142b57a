"""Archives of PyTorch that were unpacked: a folder with `data.pkl`, or that file, is read and scanned as they were."""

from __future__ import annotations

import errno
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from helpers import TESTFILES

import t7bridge
from t7bridge.errors import CorruptError, LimitError, T7BridgeError, TargetExistsError, UnknownFormatError
from t7bridge.formats.pt.unpacked import _MOST_OPEN_FILES

ARCHIVES = [path for path in sorted((TESTFILES / "pt").glob("*.pt")) if zipfile.is_zipfile(path)]
CHECKPOINT = TESTFILES / "pt/checkpoint_adam.pt"


def unpack(path: Path, folder: Path) -> Path:
    """Return the root folder of an archive, unpacked by Python's own `zipfile`."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        archive.extractall(folder)
    return folder / min(names, key=len).rpartition("/")[0]


def test_it_is_what_the_archive_was(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Values, notes of `scan`, and kinds, of the folder and of its `data.pkl`: checkpoints, TorchScript, C++."""
    assert len(ARCHIVES) > 20
    for path in ARCHIVES:
        with subtests.test(path.name), zipfile.ZipFile(path) as archive:
            if not any(name.endswith("/data.pkl") for name in archive.namelist()):
                continue
            folder = unpack(path, tmp_path / path.stem)
            reader = t7bridge.PtReader(path)
            inner = t7bridge.PtReader(folder)
            assert inner.kind == reader.kind
            expected = t7bridge.scan(path)
            for source in (folder, folder / "data.pkl"):
                assert not t7bridge.diff(path, source).differences
                scanned = t7bridge.scan(source)
                assert scanned.clean == expected.clean
                assert {finding.name for finding in scanned.findings} == {finding.name for finding in expected.findings}


def test_it_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To any format, by absolute and relative paths; the record in it leads back to the same `.t7`."""
    folder = unpack(CHECKPOINT, tmp_path / "a")
    t7bridge.convert(folder, tmp_path / "a.pt")
    assert t7bridge.verify(CHECKPOINT, tmp_path / "a.pt").same
    monkeypatch.chdir(folder)
    t7bridge.convert("data.pkl", tmp_path / "b.pt")
    assert (tmp_path / "b.pt").read_bytes() == (tmp_path / "a.pt").read_bytes()
    assert t7bridge.open(".").format == "pt"

    source = TESTFILES / "models/lenet_mm.t7"
    t7bridge.convert(source, tmp_path / "tree.pt", mode="tree")
    t7bridge.convert(unpack(tmp_path / "tree.pt", tmp_path / "tree"), tmp_path / "back.t7")
    assert (tmp_path / "back.t7").read_bytes() == source.read_bytes()
    changed = next(path for path in (tmp_path / "tree").rglob("data/*") if any(path.read_bytes()))
    changed.write_bytes(bytes(changed.stat().st_size))
    report = t7bridge.convert(changed.parents[1], tmp_path / "changed.t7")
    assert any(note.code == "record" for note in report.notes)


def test_few_of_many_files_are_open(tmp_path: Path) -> None:
    """A checkpoint has thousands of storages, and a process may open a thousand files or fewer."""
    import torch

    tensors = {str(number): torch.full((1,), float(number)) for number in range(3 * _MOST_OPEN_FILES)}
    torch.save(tensors, tmp_path / "a.pt")
    folder = unpack(tmp_path / "a.pt", tmp_path / "a")
    with t7bridge.PtReader(folder) as reader:
        value = reader.read()
        read = {name: tensor.tolist() for name, tensor in reversed(value.items())}
        assert read == {name: tensor.tolist() for name, tensor in tensors.items()}
        assert len(reader.source._open) == _MOST_OPEN_FILES  # type: ignore[attr-defined]
    with pytest.raises(T7BridgeError, match="has been closed"):
        value["0"].numpy()
    with pytest.raises(LimitError, match="archive_members"):
        t7bridge.open(folder, limits=t7bridge.Limits(archive_members=_MOST_OPEN_FILES))


def test_files_beside_it_are_not_its(tmp_path: Path) -> None:
    """A README is not read, a pickle is scanned; a `data.pkl` beside other data is a pickle of its own."""
    folder = unpack(CHECKPOINT, tmp_path / "a")
    (folder / "README.md").write_text("from os import system\n")
    (folder / "data/notes.txt").write_text("x")
    t7bridge.convert(folder, tmp_path / "a.pt")
    assert not [note for note in t7bridge.convert(folder, tmp_path / "b.pt").notes if note.code == "left-out"]
    assert t7bridge.scan(folder).clean
    (folder / "evil.pkl").write_bytes(b"cos\nsystem\n(S'ls'\ntR.")
    assert [finding.path for finding in t7bridge.scan(folder).findings if "system" in finding.name] == ["evil.pkl"]
    (folder / "data.pkl").write_bytes(b"cos\nsystem\n(S'ls'\ntR.")
    for source in (folder, folder / "data.pkl"):
        assert any("system" in finding.name for finding in t7bridge.scan(source).findings)

    other = tmp_path / "other"
    (other / "data").mkdir(parents=True)
    (other / "data/table.csv").write_text("1,2\n")
    (other / "data.pkl").write_bytes(b"\x80\x02}X\x01\x00\x00\x00aK\x01s.")
    assert t7bridge.load(other / "data.pkl") == {"a": 1}
    lonely = tmp_path / "lonely"
    lonely.mkdir()
    shutil.copy(other / "data.pkl", lonely)
    assert t7bridge.open(lonely / "data.pkl").layout == "pickle"
    with pytest.raises(UnknownFormatError, match="is a folder"):
        t7bridge.open(lonely)


def test_a_folder_inside_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice about a folder looks into those inside it, as `lost+found`; one that is closed is passed over."""
    (tmp_path / "lost+found").mkdir()
    unpacked = unpack(CHECKPOINT, tmp_path / "unpacked")
    unpacked.rename(tmp_path / "model")
    real_listdir = os.listdir

    def listdir(path: str | Path) -> list[str]:
        if str(path).endswith("lost+found"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_listdir(path)

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(UnknownFormatError, match="model is an unpacked checkpoint of PyTorch: give that path"):
        t7bridge.open(tmp_path)


def test_damage_and_mistakes(tmp_path: Path) -> None:
    """A missing or short storage, a file that changes while it is open, an output over an input; the folder above."""
    folder = unpack(CHECKPOINT, tmp_path / "a")
    with pytest.raises(UnknownFormatError, match="is an unpacked checkpoint of PyTorch: give that path"):
        t7bridge.open(folder.parent)
    storage = max((folder / "data").iterdir(), key=lambda path: path.stat().st_size)
    with pytest.raises(TargetExistsError, match="the input file itself"):
        t7bridge.convert(folder, storage, to="pt", force=True)
    data = storage.read_bytes()
    document = t7bridge.open(folder)
    storage.write_bytes(data[:-4])
    with pytest.raises(CorruptError, match="has changed"):
        t7bridge.save(document.value, tmp_path / "b.pt")
    document.close()
    with pytest.raises(t7bridge.errors.FormatError, match="fewer bytes"):
        t7bridge.convert(folder, tmp_path / "c.pt")
    storage.unlink()
    with pytest.raises(t7bridge.errors.FormatError, match="no member"):
        t7bridge.convert(folder, tmp_path / "d.pt")
    assert t7bridge.scan(folder).error
