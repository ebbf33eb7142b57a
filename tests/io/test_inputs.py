"""Nothing that a call reads is replaced, whatever its name, link or role."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import TESTFILES

import t7bridge
from t7bridge import cli
from t7bridge.errors import TargetExistsError
from t7bridge.io import ByteSource, FileOutput, inputs_protected

MODEL = TESTFILES / "nn" / "Linear.t7"


@pytest.fixture
def names(tmp_path) -> dict[str, Path]:
    """One file under many names."""
    path, folder = tmp_path / "in.t7", tmp_path / "folder"
    shutil.copy(MODEL, path)
    folder.mkdir()
    (tmp_path / "linked").symlink_to(tmp_path)
    (tmp_path / "link.t7").symlink_to("in.t7")
    os.link(path, tmp_path / "hard.t7")
    return {
        "itself": path,
        "link": tmp_path / "link.t7",
        "hard": tmp_path / "hard.t7",
        "folder": tmp_path / "linked" / "in.t7",
        "dots": folder / ".." / "in.t7",
    }


@pytest.mark.parametrize("name", ["itself", "link", "hard", "folder", "dots"])
@pytest.mark.parametrize("force", [False, True])
def test_no_name_of_an_input_is_a_target(names, name, force) -> None:
    """A file that was read is refused under all of its names; another call is another matter."""
    for source in names.values():
        with inputs_protected():
            ByteSource.from_path(source).close()
            with pytest.raises(TargetExistsError, match="is the input file itself"):
                FileOutput(names[name], force=force)
    assert names["itself"].read_bytes() == MODEL.read_bytes()


def test_a_file_read_while_the_output_is_written(names) -> None:
    """What is opened after the output was begun is not replaced either."""
    with (
        inputs_protected(),
        pytest.raises(TargetExistsError, match="is the input file itself"),
        FileOutput(names["link"], force=True),
    ):
        ByteSource.from_path(names["itself"]).close()
    assert names["itself"].read_bytes() == MODEL.read_bytes()


@pytest.mark.parametrize("opened", ["file", "descriptor", "source"])
def test_open_files(names, opened) -> None:
    """An input that comes as a file object, a descriptor's path or a source is an input."""
    with open(names["itself"], "rb") as file:
        given = {
            "file": file, "descriptor": f"/proc/self/fd/{file.fileno()}", "source": ByteSource.from_path(names["hard"])
        }[opened]  # fmt: skip
        with pytest.raises(TargetExistsError, match="is the input file itself"):
            t7bridge.convert(given, names["itself"], force=True)
    assert names["itself"].read_bytes() == MODEL.read_bytes()


def test_there_and_back(tmp_path) -> None:
    """Calls one after the other may write what an earlier one read; a value may be saved to its own file."""
    path = tmp_path / "a.t7"
    shutil.copy(MODEL, path)
    t7bridge.convert(path, tmp_path / "a.pt", mode="tree")
    t7bridge.convert(tmp_path / "a.pt", path, force=True)
    assert path.read_bytes() == MODEL.read_bytes()
    t7bridge.save(t7bridge.load(path), path, force=True)
    assert path.read_bytes() == MODEL.read_bytes()


LINES = [
    "draw a.t7 -o a.svg",
    "convert a.pt a.t7 --template a.t7",
    "convert a.t7 classes.pt --classes classes.py",
    "match a.t7 a.pt --map map.pt -o map.pt",
    "match a.t7 a.pt -o a.pt",
    "module a.t7 -o model",
]


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_verbs(tmp_path, monkeypatch, capsys, line) -> None:
    """No verb replaces what it reads with --force, whatever the role of the file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # beside classes.py
    shutil.copy(MODEL, "a.t7")
    t7bridge.convert("a.t7", "a.pt")
    for name in ("a.svg", "a.lua"):
        os.symlink("a.t7", name)
    Path("classes.pt").write_text("")
    os.link("classes.pt", "classes.py")
    Path("map.pt").write_text("weight weight\n")
    os.mkdir("model")
    for name in ("model.py", "model.pt", "config.json"):
        os.link("a.t7", f"model/{name}")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert cli.main([*line.split(), "--force"]) == 2
    assert "is the input file itself" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_redirected_input(tmp_path) -> None:
    """A file that is standard input is not replaced."""
    path = tmp_path / "a.t7"
    shutil.copy(MODEL, path)
    with open(path, "rb") as file:
        command = [sys.executable, "-m", "t7bridge", "convert", "-", str(path), "--force"]
        completed = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
    assert completed.returncode == 2
    assert "is the input file itself" in completed.stderr
    assert path.read_bytes() == MODEL.read_bytes()
