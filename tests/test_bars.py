"""Small files in every verb: what is refused, and bars of time and memory beyond the cost of a sound file."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import Parts, peak_mib
from test_bad_files import BAD, ROWS
from test_every_verb import COMMANDS, MODEL, NO_FILE, READERS, WEIGHTS, sound_files

from t7bridge import T7Layout

REFERENCES = 100
"""CPU time by `tests/bounds.py`: some 5 s, ten times what any file takes; 2 s are promised on a quiet machine."""
MEGABYTES = 200
DEPTH = 40_000
"""Levels of nested values: the process itself takes 20 to 40 MB, so that 300 more bytes a level exceed the bar."""
WAYS: list[list[str]] = [
    *([verb, *arguments] for verb, arguments in COMMANDS.items() if verb not in NO_FILE),
    ["inspect", "--all", "FILE"],
    ["convert", "FILE", "OUT.t7"],
    ["convert", "FILE", "OUT.safetensors"],
    ["draw", "FILE", "-o", "OUT.html"],
]


def _results(runs: list[tuple[str, list[str]]], good: dict[str, list[str]], folder: Path) -> list[dict[str, Any]]:
    """Run commands, and return what `cost_worker.py` says of each."""
    asked = {"runs": runs, "good": good, "folder": str(folder), "megabytes": MEGABYTES}
    worker = Path(__file__).with_name("cost_worker.py")
    done = subprocess.run(
        [sys.executable, str(worker)], input=json.dumps(asked), capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(results) == len(runs)
    return results


def _assert_cheap(runs: list[tuple[str, list[str]]], results: list[dict[str, Any]]) -> None:
    rows = [
        (result["references"], result["megabytes"], result["code"], *arguments)
        for (_, arguments), result in zip(runs, results)
    ]
    for references, megabytes, code, *arguments in sorted(rows)[-5:] + sorted(rows, key=lambda row: row[1])[-5:]:
        print(f"{references:6.2f} references {megabytes:5.0f} MB code {code}: {' '.join(arguments)}")
    beyond = [row for row in rows if row[0] > REFERENCES or row[1] > MEGABYTES or row[2] not in (0, 1, 2)]
    assert not beyond, "\n".join(map(str, beyond))


def _pickled(path: Path, body: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + body + b".")
        archive.writestr("a/byteorder", b"little")
        archive.writestr("a/version", b"3\n")
    return path


def _bad_runs(folder: Path) -> Iterator[tuple[list[str], list[str], str]]:
    """Each way of each verb with each bad file: the way, the arguments, and the name of the file.

    Of verbs for two files, every tenth bad file is at either place beside a sound one, too.
    """
    for number, name in enumerate(sorted(ROWS)):
        for way in WAYS:
            arguments = [way]
            if way.count("FILE") == 2 and number % 10 == 0:
                verb, first, second = way
                arguments += [[verb, str(MODEL), second], [verb, first, str(MODEL)]]
            for each in arguments:
                yield way, _given(each, BAD / name, folder), name


def _given(arguments: list[str], file: Path, folder: Path) -> list[str]:
    return [each.replace("FILE", str(file)).replace("OUT", str(folder / "out")) for each in arguments]


def _assert_refused(verb: str, arguments: list[str], name: str, result: dict[str, Any]) -> None:
    """Assert that a verb names the file in its one error, has no output, and leaves no file."""
    code, out, err = result["code"], result["out"], result["err"]
    by, _, words = ROWS[name]
    where = (verb, name, arguments, err[-300:])
    assert "Traceback" not in err, where
    assert "internal error" not in err, where
    assert code in (0, 1, 2), where
    if by != "all":
        return
    if verb == "zoo":
        assert code == 1 or "skipped" in out, where
        return
    # In a damaged file `scan` may have found something before the damage.
    assert code in ((1, 2) if verb == "scan" else (2,)), where
    assert str(BAD / name) in err + out, where
    assert not result["files"], where
    if verb != "scan":
        assert err.startswith(f"t7bridge: error: {BAD / name}"), where
        assert out == "", where
    if verb in READERS or (name.endswith(".t7") and verb not in WEIGHTS | {"scan"}):
        assert words in err, where


@pytest.mark.slow
def test_small_files_cost_little_in_every_verb(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """Each file of `testfiles/bad` is refused by every verb, within the bars of time and memory of `getrusage`.

    A refusal is one error that names the file, without traceback and output. Dicts in dicts, lists in lists, pairs and
    texts by ten thousands, which are no error, are within the bars too: comparing and naming places is linear.
    """
    folder = tmp_path / "outputs"
    bad = list(_bad_runs(folder))
    assert len({name for _, _, name in bad}) > 150
    large = [
        _pickled(tmp_path / "dicts.pt", b"}K\x00" * 15_000 + b"}" + b"s" * 15_000),
        _pickled(tmp_path / "lists.pt", b"]" * 15_000 + b"a" * 14_999),
        _pickled(tmp_path / "pairs.pt", b"](" + b"K\x01K\x02\x86" * 20_000 + b"e"),
        _pickled(tmp_path / "texts.pt", b"}(" + b"".join(b"X\4\0\0\0%04xK\1" % i for i in range(10_000)) + b"u"),
    ]
    runs = [(" ".join(way), arguments) for way, arguments, _ in bad]
    runs += [(" ".join(way), _given(way, file, folder)) for file in large for way in WAYS]
    sound = sound_files(tmp_path)
    good = {" ".join(way): _given(way, sound[way[0]], folder) for way in WAYS}
    results = _results(runs, good, folder)
    _assert_cheap(runs, results)
    for (way, arguments, name), result in zip(bad, results):
        with subtests.test(verb=way[0], name=name):
            _assert_refused(way[0], arguments, name, result)


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
