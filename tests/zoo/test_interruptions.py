"""Interrupted runs know their own files; nothing is written into a source, and no input is replaced."""

import os
import random
import shutil
import sqlite3
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pytest
from helpers import TESTFILES
from zoo_helpers import JOURNAL, tree
from zoo_maker import linear, tensor

import t7bridge
from t7bridge.errors import ModelError, TargetExistsError
from t7bridge.zoo import Journal, Record, ZooReport

fsspec = pytest.importorskip("fsspec")


def convert(source: object, output: object, **options: object) -> ZooReport:
    """A run in this process."""
    return t7bridge.convert_zoo(source, output, **{"workers": 0, **options})  # type: ignore[arg-type]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A zoo of two models in a folder each."""
    rng = random.Random(5)
    for name in ("a/net.t7", "b/net.t7"):
        path = tmp_path / "models" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(linear(rng))
    return tmp_path / "models"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "store"])
def test_interrupted_runs(kind: str) -> None:
    """Runs that are interrupted at random moments are resumed to the files of one run."""
    from zoo_interruptions import failures

    wrong, seen = failures(kind, 2, seed=2)
    assert not wrong
    assert seen.total() == 4


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", ["local", "dask", "store", "s3"])
def test_interrupted_runs_at_many_moments(kind: str) -> None:
    """The same at 50 moments each, for SIGINT and SIGKILL."""
    from zoo_interruptions import failures

    assert not failures(kind, 50, seed=1)[0]


def test_journal_is_in_the_store_before_the_outputs(models: Path, tmp_path: Path) -> None:
    """With the first output the journal in the store has every file as one of its own; it is kept on every way out."""
    store = tmp_path / "out"
    found = []

    def look(row: object) -> None:
        with sqlite3.connect(store / JOURNAL) as base:
            found.append(base.execute("SELECT name, ours, status FROM files ORDER BY name").fetchall())
        base.close()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(models, f"local://{store}", on_file=look)
    assert found == [[("a/net.t7", 1, "planned"), ("b/net.t7", 1, "planned")]]
    with sqlite3.connect(store / JOURNAL) as base:
        assert base.execute("SELECT status FROM files ORDER BY name").fetchall() == [("done",), ("planned",)]
    base.close()
    assert convert(models, f"local://{store}").now == {"done": 1}


def test_other_options_are_one_step(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that converts everything again, and is interrupted while it plans, leaves the journal as it was."""
    convert(models, tmp_path / "out")
    store = Journal.store

    def interrupted(self: Journal, records: Iterable[Record]) -> None:
        store(self, islice(records, 1))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "store", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert(models, tmp_path / "out", mode="tree", force=True)
    assert convert(models, tmp_path / "out").now == {}


def test_outputs_without_a_journal(models: Path, tmp_path: Path) -> None:
    """Where the journal is lost, retrying adopts outputs that are those of this zoo, and no others."""
    convert(models, tmp_path / "out")
    before = tree(tmp_path / "out")
    (tmp_path / "out" / JOURNAL).unlink()
    (tmp_path / "out/b/net.pt").write_bytes(b"mine")
    lost = convert(models, tmp_path / "out")
    again = convert(models, tmp_path / "out", retry_failed=True)

    assert [row.kind for row in lost.rows] == ["TargetExistsError"] * 2
    assert [(row.status, row.kind) for row in again.rows] == [("done", ""), ("failed", "TargetExistsError")]
    assert (tmp_path / "out/b/net.pt").read_bytes() == b"mine"
    assert tree(tmp_path / "out")["a/net.pt"] == before["a/net.pt"]
    assert convert(models, tmp_path / "out").now == {}


@pytest.mark.parametrize("name", ["report.html", "report.json", "report.csv"])
def test_foreign_files_with_names_of_reports_stay(models: Path, tmp_path: Path, name: str) -> None:
    """Without `force` a report replaces no file that no zoo has written; it does where only the journal was lost."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(b"mine")
    with pytest.raises(TargetExistsError, match=f"{name} exists already"):
        convert(models, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]
    assert (tmp_path / "out" / name).read_bytes() == b"mine"

    assert convert(models, tmp_path / "out", force=True).now == {"done": 2}
    (tmp_path / "out" / JOURNAL).unlink()
    convert(models, tmp_path / "out")
    assert (tmp_path / "out" / name).read_bytes() != b"mine"


@pytest.mark.parametrize("way", ["", ".", "a/..", "link", "a", "link/a", "local://", "pattern"])
def test_nothing_is_written_into_a_source(models: Path, tmp_path: Path, way: str) -> None:
    """A source, or a part of one with files of its own, is no output folder, however it is named."""
    (tmp_path / "link").symlink_to(models)
    before = tree(tmp_path)
    output = str(tmp_path / way if way.startswith("link") else models / way)
    source = models
    if way == "local://":
        output = f"local://{models}"
    elif way == "pattern":
        source, output = models / "*", str(models)
    with pytest.raises(ModelError, match=r"is a source too|is a part of a source"):
        convert(source, output)

    assert tree(tmp_path) == before
    assert not (models / JOURNAL).exists()
    assert not (models / "a" / JOURNAL).exists()


def test_nothing_is_written_into_a_source_of_a_store() -> None:
    """A store is compared by its URL."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pipe("/zoo/a.t7", tensor(random.Random(1)))
    with pytest.raises(ModelError, match="is a source too"):
        convert("memory://zoo", "memory://zoo/")
    assert convert("memory://zoo", "memory://zoo/out").now == {"done": 1}
    assert convert("memory://zoo", "memory://zoo/out").now == {}
    assert sorted(system.find("/zoo"))[0] == "/zoo/a.t7"
    system.store.clear()


def test_links_of_the_output_folder(models: Path, tmp_path: Path) -> None:
    """A folder of outputs that is a link into a source is refused; so is a source inside the output folder."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").symlink_to(models / "a")
    before = tree(models)
    with pytest.raises(ModelError, match=r"the output a/net\.pt would be in a source"):
        convert(models, tmp_path / "out")
    shutil.copytree(models / "b", tmp_path / "models/a/a")
    with pytest.raises(ModelError, match=r"the output a/net\.pt would be in a source"):
        convert(models / "a", models)
    shutil.rmtree(tmp_path / "models/a/a")

    assert tree(models) == before


def test_output_folder_inside_the_source(models: Path) -> None:
    """A new folder inside the source is an output folder, and is not converted itself."""
    assert convert(models, models / "out").now == {"done": 2}
    assert convert(models, models / "out").now == {}
    assert convert(models / "*", models / "out").now == {}


def test_inputs_are_never_replaced(models: Path, tmp_path: Path) -> None:
    """No input is the target of an output, with `force` and by links neither; a failed file loses no input."""
    source = models / "a/net.t7"
    shutil.copy(source, models / "a/other.pt")
    t7bridge.convert(source, models / "a/net.pt")
    before = tree(models / "a")
    report = convert([*(models / "a").iterdir()], models / "a", force=True)
    kept = {name: each for name, each in tree(models / "a").items() if name in before}
    assert kept == before
    assert {row.name: row.kind for row in report.rows if row.name.startswith("net")} == {
        "net.pt": "TargetExistsError", "net.t7": "TargetExistsError",
    }  # fmt: skip
    (tmp_path / "out").mkdir()
    os.link(models / "b/net.t7", tmp_path / "out/net.pt")
    assert [row.reason for row in convert(models / "b", tmp_path / "out", force=True).rows] == [
        "net.pt is an input of this run"
    ]


def test_files_without_a_module(models: Path, tmp_path: Path) -> None:
    """A file that holds no module is skipped where modules are asked for; a damaged one fails."""
    shutil.copy(TESTFILES / "format/tensor_float.t7", models / "tensor.t7")
    (models / "bad.t7").write_bytes(linear(random.Random(1))[:-5])
    t7bridge.save({"weight": t7bridge.load(models / "a/net.t7")["modules"][1]["weight"]}, models / "weights.pt")
    report = convert(models, tmp_path / "out", module=True)

    assert {row.name: row.status for row in report.rows} == {
        "a/net.t7": "done", "b/net.t7": "done", "tensor.t7": "nothing", "bad.t7": "failed",
        "weights.pt": "nothing",
    }  # fmt: skip
    reasons = {row.name: row.reason for row in report.rows if row.status == "nothing"}
    assert reasons["tensor.t7"] == "the file holds no module"
    assert reasons["weights.pt"] == "is a PyTorch file: modules are made of Lua's layers, and it has none"
    assert convert(models, tmp_path / "out", module=True).now == {}


def test_files_without_a_tensor(models: Path, tmp_path: Path) -> None:
    """Formats that hold tensors only have nothing to write for a file without one: it has not failed."""
    t7bridge.save({"name": "net"}, models / "epoch.t7")
    report = convert(models, tmp_path / "out", to="npz")

    assert {row.name: row.status for row in report.rows} == {
        "a/net.t7": "done", "b/net.t7": "done", "epoch.t7": "nothing",
    }  # fmt: skip
    assert report.ok
    assert "2 done, 0 failed, 1 with nothing to write, 0 skipped (not a model)" in str(report)
    assert not list((tmp_path / "out").glob("epoch*"))
    assert convert(models, tmp_path / "out", to="npz", retry_failed=True).now == {}
