"""Bars of small files in every verb: time and memory beyond what a sound file of the verb costs."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from helpers import TESTFILES, Parts, peak_mib

from t7bridge import T7Layout

REFERENCES = 100
"""CPU time by `tests/bounds.py`: some 5 s, ten times what any file takes; 2 s are promised on a quiet machine."""
MEGABYTES = 200
DEPTH = 40_000
"""Levels of nested values: the process itself takes 20 to 40 MB, so that 300 more bytes a level exceed the bar."""
MODEL = TESTFILES / "nn" / "Linear.t7"
RECORDED = TESTFILES / "prove" / "dilated.eval.t7"
VERBS: dict[str, list[str]] = {
    "verify": ["verify", "FILE", "FILE"],
    "diff": ["diff", "FILE", "FILE"],
    "describe": ["describe", "FILE"],
    "inspect": ["inspect", "FILE"],
    "inspect --all": ["inspect", "--all", "FILE"],
    "scan": ["scan", "FILE"],
    "convert .pt": ["convert", "FILE", "OUT.pt"],
    "convert .t7": ["convert", "FILE", "OUT.t7"],
    "convert .safetensors": ["convert", "FILE", "OUT.safetensors"],
    "module": ["module", "FILE", "-o", "OUT"],
    "draw .svg": ["draw", "FILE", "-o", "OUT.svg"],
    "draw .html": ["draw", "FILE", "-o", "OUT.html"],
    "prove": ["prove", "FILE"],
}


def _costs(files: list[Path], verbs: dict[str, list[str]], folder: Path) -> list[list[Any]]:
    good = {verb: str(RECORDED if verb == "prove" else MODEL) for verb in verbs}
    asked = {"verbs": verbs, "good": good, "files": [str(file) for file in files], "folder": str(folder)}
    asked["megabytes"] = MEGABYTES * 10**6 >> 20
    worker = Path(__file__).with_name("cost_worker.py")
    done = subprocess.run(
        [sys.executable, str(worker)], input=json.dumps(asked), capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows: list[list[Any]] = json.loads(done.stdout)
    assert len(rows) == len(files) * len(verbs)
    return rows


def _assert_cheap(rows: list[list[Any]]) -> None:
    by_time = sorted(rows, key=lambda row: row[3])[-5:]
    by_memory = sorted(rows, key=lambda row: row[4])[-5:]
    for verb, file, code, references, megabytes in by_time + by_memory:
        print(f"{verb:20} {Path(file).name:28} code {code} {references:6.2f} references {megabytes:5} MiB")
    beyond = [
        row for row in rows if row[2] not in (0, 1, 2) or row[3] > REFERENCES or row[4] * 2**20 > MEGABYTES * 10**6
    ]
    assert not beyond, "\n".join(map(str, beyond))


def _pickled(path: Path, body: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + body + b".")
        archive.writestr("a/byteorder", b"little")
        archive.writestr("a/version", b"3\n")
    return path


@pytest.mark.slow
def test_small_files_cost_little_in_every_verb(tmp_path: Path) -> None:
    """Each file of `testfiles/bad` ends each verb within the bars of time and memory, as `getrusage` counts them.

    So do dicts in dicts, lists in lists, pairs and texts by ten thousands: comparing and naming places is linear.
    """
    files = sorted(file for file in (TESTFILES / "bad").iterdir() if file.name != "README.md")
    assert len(files) > 150
    files += [
        _pickled(tmp_path / "dicts.pt", b"}K\x00" * 15_000 + b"}" + b"s" * 15_000),
        _pickled(tmp_path / "lists.pt", b"]" * 15_000 + b"a" * 14_999),
        _pickled(tmp_path / "pairs.pt", b"](" + b"K\x01K\x02\x86" * 20_000 + b"e"),
        _pickled(tmp_path / "texts.pt", b"}(" + b"".join(b"X\4\0\0\0%04xK\1" % i for i in range(10_000)) + b"u"),
    ]
    _assert_cheap(_costs(files, VERBS, tmp_path))


@pytest.mark.slow
def test_deep_values_take_memory_in_proportion_to_the_file(tmp_path: Path) -> None:
    """Of a list nested 40 000 deep each verb holds 8 times its files and 60 MB, with the record of the `.pt` too."""
    source = _pickled(tmp_path / "deep.pt", b"]" * DEPTH + b"a" * (DEPTH - 1))
    lua, back = tmp_path / "deep.t7", tmp_path / "back.pt"
    for verb, read, *target in (
        ("convert", source, lua),
        ("convert", lua, back),
        ("describe", source),
        ("describe", lua),
        ("verify", "--quick", lua, source),
        ("diff", source, lua),
    ):
        _assert_in_proportion(verb, read, *target)


def _assert_in_proportion(*arguments: str | Path, beside: float = 60e6) -> None:
    """Assert that a run takes 8 times the files that there are before it, and some bytes for the process itself."""
    size = sum(file.stat().st_size for file in arguments if isinstance(file, Path) and file.exists())
    assert peak_mib(*arguments) * 2**20 <= 8 * size + beside, arguments


@pytest.mark.slow
def test_deep_tuples_and_objects_take_memory_in_proportion_to_the_file(tmp_path: Path) -> None:
    """Of tuples and Torch objects nested 40 000 deep, copies hold 8 times their files and 60 MB, comparisons 80."""
    tuples = _pickled(tmp_path / "tuples.pt", b")" + b"\x85" * DEPTH)
    _assert_in_proportion("convert", tuples, tmp_path / "copy.pt")
    objects, parts = tmp_path / "objects.t7", Parts(T7Layout())
    for number in range(1, 2 * DEPTH, 2):
        parts.torch(number, "C").ints(3, number + 1, 1).string("a")
    objects.write_bytes(parts.ints(0).data)
    _assert_in_proportion("convert", objects, tmp_path / "copy.t7")
    _assert_in_proportion("verify", "--quick", objects, objects, beside=80e6)
    _assert_in_proportion("convert", objects, tmp_path / "objects.pt")
    _assert_in_proportion("verify", "--quick", objects, tmp_path / "objects.pt", beside=80e6)


@pytest.mark.slow
def test_deep_string_keys_take_memory_in_proportion_to_the_file(tmp_path: Path) -> None:
    """Of tables nested 40 000 deep under a string each verb holds 8 times its files and 60 MB."""
    source, parts = tmp_path / "deep.t7", Parts(T7Layout())
    for number in range(1, DEPTH + 1):
        parts.ints(3, number, 1).string("a")
    source.write_bytes(parts.ints(0).data)
    _assert_in_proportion("convert", source, tmp_path / "tree.pt", "--mode", "tree")
    _assert_in_proportion("convert", source, tmp_path / "auto.pt")
    _assert_in_proportion("verify", "--quick", source, tmp_path / "tree.pt")
    _assert_in_proportion("diff", tmp_path / "tree.pt", source)
