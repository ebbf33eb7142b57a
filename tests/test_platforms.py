"""Other platforms, as far as Linux can stand in for them: no calls of POSIX, files of Windows, terminals of one byte a
character, and releases of PyTorch that are too old."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import PATIENCE, ROOT, TESTFILES, corpus

import t7bridge
from t7bridge.cli import VERBS
from t7bridge.errors import UnsupportedError
from t7bridge.io.platform import windows_name
from t7bridge.zoo.plan import safe_name

SUFFIXES = ("pt", "safetensors", "h5", "npz", "t7")
LINEAR = TESTFILES / "nn" / "Linear.t7"


def commands(folder: Path) -> list[list[str]]:
    """Each verb on files of the corpus, with outputs in a folder, some of them over existing ones.

    Every third file is read: what a system lacks is the same for all of a format.
    """
    found: list[list[str]] = []
    for number, path in enumerate(corpus("format/*.t7", "pt/*.pt", "models/*.t7", "legacy/*")[::3]):
        found += [[verb, str(path)] for verb in ("describe", ("inspect", "scan")[number % 2])]
    unlike = folder / "модель №1 ☃.t7"  # in no code page
    unlike.write_bytes(LINEAR.read_bytes())
    for number, path in enumerate([unlike, *corpus("models/*net*.t7", "nn/Linear.t7")[::3]]):
        for suffix in SUFFIXES:
            out = str(folder / f"{number}.{suffix}")
            found += [["convert", str(path), out, *force] for force in ((), ("--force",))]
            found += [[verb, str(path), out] for verb in ("verify", "diff")]
        found += [["module", str(path), "-o", str(folder / f"module{number}"), *force] for force in ((), ("--force",))]
        found += [["draw", str(path), "-o", str(folder / f"{number}.svg")], ["match", str(path), str(path)]]
    found += [["prove", str(TESTFILES / "prove" / f"{name}.eval.t7")] for name in ("graph", "rnn_lstm")]
    found += [["export", str(LINEAR), str(folder / f"net.{suffix}"), "--input", "2x5"] for suffix in ("pt2", "onnx")]
    torch.save({"weight": torch.ones(3, 5), "bias": torch.arange(3.0)}, weights := folder / "weights.pt")
    found += [
        ["lua", "torch.nn:Linear(5, 3)", str(weights), "-o", str(folder / "lua"), "--input", "1x5"],
        ["completion", "bash"],
    ]
    found += [["zoo", str(TESTFILES / "models"), "-o", str(folder / f"zoo{n}"), "--workers", str(n)] for n in (0, 2)]
    assert {each[0] for each in found} == set(VERBS)
    return found


Answers = list[list[str]]
"""For each command two arguments, the code and the text, without the name of the folder."""


def ran(folders: list[Path]) -> list[tuple[Answers, dict[str, bytes]]]:
    """Run the commands for the first folder, and as Windows for the second; return answers and files of each."""
    for folder in folders:
        folder.mkdir()
    asked = [commands(folder) for folder in folders]
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "without_posix.py"],
        input=json.dumps(asked), capture_output=True, text=True, timeout=PATIENCE, check=False,
        env={**os.environ, "PYTHONIOENCODING": "cp1252", "USERNAME": "someone"}, cwd=folders[0].parent,
    )  # fmt: skip
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(lines) == sum(map(len, asked)), run.stderr
    count = len(asked[0])
    return [told(*each) for each in zip(folders, asked, (lines[:count], lines[count:]))]


def told(folder: Path, asked: list[list[str]], lines: list[tuple[object, str]]) -> tuple[Answers, dict[str, bytes]]:
    """Codes and texts of the commands for a folder, and the files that they left."""
    rows = [
        [*command[:2], code, command[0] == "zoo" or text]  # a zoo's has times
        for command, (code, text) in zip(asked, lines)
    ]
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not re.match(r"report|\.t7bridge|t7bridge", path.name)
    }
    return [[str(each).replace(str(folder), "") for each in row] for row in rows], files


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="what is taken away is Linux's")
def test_every_verb_without_posix(tmp_path: Path) -> None:
    """Without the calls that Windows lacks, every verb prints and writes the same."""
    (wanted, files), (found, same) = ran([tmp_path / "with", tmp_path / "without"])
    assert [row for row in found if row not in wanted] == []
    assert files.keys() == same.keys()
    assert [name for name in files if files[name] != same[name]] == []
    assert {row[2] for row in wanted} <= {"0", "1", "2"}
    assert not any("internal error" in row[3] for row in wanted)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("net.t7", "net.t7"),
        ("a:b?.t7", "a_b_.t7"),
        ("net. .", "net___"),
        ("con.t7", "_con.t7"),
        ("LPT1", "_LPT1"),
        ("console.t7", "console.t7"),
        ("COM¹.x", "_COM¹.x"),
    ],
)
def test_names_that_windows_cannot_have(monkeypatch: pytest.MonkeyPatch, name: str, wanted: str) -> None:
    """Win32, "Naming Files, Paths, and Namespaces". Elsewhere names stay."""
    assert windows_name(name) == wanted
    assert safe_name(f"zoo/{name}") == f"zoo/{name}"
    monkeypatch.setattr("t7bridge.io.platform.IS_WINDOWS", True)
    assert safe_name(f"zoo/{name}") == f"zoo/{wanted}"


@pytest.mark.parametrize("release", ["2.2.1", "1.13.0+cpu", "2.5.1"])
def test_old_pytorch(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    """The error has both releases."""
    monkeypatch.setattr(torch, "__version__", release)
    with pytest.raises(UnsupportedError, match=rf"too old; expected release 2.6 .*; found {re.escape(release)}"):
        t7bridge.load_module(LINEAR)


def test_pytorch_without_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of PyTorch's own main branch is taken."""
    monkeypatch.setattr(torch, "__version__", "2.14.0a0+git0123456")
    t7bridge.load_module(LINEAR)
