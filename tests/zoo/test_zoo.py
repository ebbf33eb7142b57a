"""Zoos as a whole: verdicts, outputs, and going on where a run was."""

import errno
import json
import os
import random
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from helpers import TESTFILES
from zoo_helpers import JOURNAL, tree, verdicts
from zoo_maker import linear, make_zoo, tensor

import t7bridge
from t7bridge import Table, Tensor, TorchObject
from t7bridge.conversion.targets import edited_differences
from t7bridge.errors import CorruptError, ModelError, OptionError, T7BridgeError, WriteError
from t7bridge.limits import DEFAULT_LIMITS
from t7bridge.zoo import Folder, Journal, Record, RunPlan, ZooReport


def convert(source: Path, output: Path, **options: object) -> ZooReport:
    """A run in this process."""
    return t7bridge.convert_zoo(source, output, **{"workers": 0, **options})  # type: ignore[arg-type]


def put(path: Path, data: bytes) -> Path:
    """A file in folders that may not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def rng():  # type: ignore[no-untyped-def]
    """Random numbers that are the same in every run."""
    return random.Random(7)


@pytest.fixture
def small(tmp_path: Path, rng) -> Path:  # type: ignore[no-untyped-def]
    """A zoo of a model, a tensor, a damaged file and a text."""
    folder = tmp_path / "zoo"
    put(folder / "a/net.t7", linear(rng))
    put(folder / "b.dat", tensor(rng))
    put(folder / "bad.t7", tensor(rng)[:60])
    put(folder / "readme.txt", b"some words")
    return folder


@pytest.mark.slow
def test_every_verdict(tmp_path: Path) -> None:
    """Good, damaged, foreign and misnamed files get the verdict that they were made for, and the tree is mirrored."""
    wanted = make_zoo(tmp_path / "zoo", 250)
    report = convert(tmp_path / "zoo", tmp_path / "out")

    assert verdicts(tmp_path / "out") == wanted
    outputs = {row.output for row in report.rows if row.status == "done"}
    assert {name for name in tree(tmp_path / "out") if not name.startswith("report.")} == outputs
    assert not report.ok
    assert sum(group.names.count for group in report.failures) == report.counts["failed"]


def test_outputs_are_those_of_convert(small: Path, tmp_path: Path) -> None:
    """Each output has the bytes of `convert`."""
    convert(small, tmp_path / "out")

    for name, output in (("a/net.t7", "a/net.pt"), ("b.dat", "b.pt")):
        t7bridge.convert(small / name, tmp_path / "alone.pt", force=True)
        assert (tmp_path / "alone.pt").read_bytes() == (tmp_path / "out" / output).read_bytes()


def test_both_ways(small: Path, tmp_path: Path) -> None:
    """A zoo of trees is restored to the same bytes; `to` applies one format to all."""
    (small / "bad.t7").unlink()
    convert(small, tmp_path / "pt", mode="tree")
    convert(tmp_path / "pt", tmp_path / "back")
    mixed = convert(small, tmp_path / "ascii", to="t7", encoding="ascii")

    assert (tmp_path / "back/a/net.t7").read_bytes() == (small / "a/net.t7").read_bytes()
    assert (tmp_path / "back/b.t7").read_bytes() == (small / "b.dat").read_bytes()
    assert [row.output for row in mixed.rows if row.status == "done"] == ["a/net.t7", "b.t7"]
    assert (tmp_path / "ascii/b.t7").read_bytes().startswith(b"3\n1\n2\n")


def test_nothing_is_done_twice(small: Path, tmp_path: Path) -> None:
    """A second run converts nothing, and leaves the same bytes, reports too."""
    convert(small, tmp_path / "out")
    before, times = tree(tmp_path / "out"), (tmp_path / "out/b.pt").stat().st_mtime_ns
    report = convert(small, tmp_path / "out")

    assert report.now == {}
    assert tree(tmp_path / "out") == before
    assert (tmp_path / "out/b.pt").stat().st_mtime_ns == times


def test_changed_inputs(small: Path, tmp_path: Path, rng) -> None:  # type: ignore[no-untyped-def]
    """Changed inputs are converted again, those with another time only are not; new ones come, missing ones stay."""
    convert(small, tmp_path / "out")
    old = (tmp_path / "out/a/net.pt").read_bytes()
    put(small / "a/net.t7", linear(rng))
    os.utime(small / "b.dat", ns=(1, 1))
    put(small / "new.t7", tensor(rng))
    plans: list[RunPlan] = []
    report = convert(small, tmp_path / "out", on_start=plans.append)
    (small / "new.t7").unlink()
    gone = convert(small, tmp_path / "out", on_start=plans.append)

    assert report.now == {"done": 2}
    assert plans[0].changed.first == ["a/net.t7"]
    assert (tmp_path / "out/a/net.pt").read_bytes() != old
    assert (plans[1].gone.count, plans[1].gone.first) == (1, ["new.t7"])
    assert (gone.now, len(gone.rows)) == ({}, 4)
    assert (tmp_path / "out/new.pt").exists()


def test_lost_output(small: Path, tmp_path: Path) -> None:
    """An output that is gone, or has another size, is made again."""
    convert(small, tmp_path / "out")
    before = tree(tmp_path / "out")
    (tmp_path / "out/b.pt").unlink()
    put(tmp_path / "out/a/net.pt", b"short")
    report = convert(small, tmp_path / "out")

    assert report.now == {"done": 2}
    assert tree(tmp_path / "out") == before


def test_a_removed_folder_is_made_again(small: Path, tmp_path: Path) -> None:
    """A folder that is removed between two runs of one process is made again, with the folders in it."""
    for _ in range(2):
        assert convert(small, tmp_path / "out").counts["done"] == 2
        shutil.rmtree(tmp_path / "out")


def test_retry_failed(small: Path, tmp_path: Path) -> None:
    """Failed files are retried only on request."""
    convert(small, tmp_path / "out")

    assert convert(small, tmp_path / "out").now == {}
    assert convert(small, tmp_path / "out", retry_failed=True).now == {"failed": 1}


def test_limit(small: Path, tmp_path: Path) -> None:
    """A limit leaves the rest planned, for the next run."""
    first = convert(small, tmp_path / "out", max_files=1)
    second = convert(small, tmp_path / "out")

    assert (first.counts["done"], first.counts["planned"]) == (1, 2)
    assert (second.now, second.counts["planned"]) == ({"done": 1, "failed": 1}, 0)
    with pytest.deprecated_call(match="use max_files"):
        assert convert(small, tmp_path / "other", limit=1).counts["planned"] == 2


def test_dry_run(small: Path, tmp_path: Path) -> None:
    """A dry run plans and writes nothing, in a new folder and in one with a journal."""
    plan = convert(small, tmp_path / "out", dry_run=True)
    assert not (tmp_path / "out").exists()
    assert {row.name: row.output for row in plan.rows if row.status == "planned"} == {
        "a/net.t7": "a/net.pt", "b.dat": "b.pt", "bad.t7": "bad.pt",
    }  # fmt: skip

    convert(small, tmp_path / "out")
    (tmp_path / "out/b.pt").unlink()
    before = tree(tmp_path)
    again = convert(small, tmp_path / "out", dry_run=True)
    assert [row.name for row in again.rows if row.status == "planned"] == ["b.dat"]
    assert tree(tmp_path) == before


def test_files_of_others(small: Path, tmp_path: Path) -> None:
    """A foreign file is not replaced, unless requested."""
    put(tmp_path / "out/b.pt", b"mine")
    report = convert(small, tmp_path / "out")
    assert [row.kind for row in report.rows if row.name == "b.dat"] == ["TargetExistsError"]
    assert (tmp_path / "out/b.pt").read_bytes() == b"mine"

    assert convert(small, tmp_path / "out", retry_failed=True).counts["failed"] == 2
    assert convert(small, tmp_path / "out", retry_failed=True, force=True).counts["failed"] == 1
    assert (tmp_path / "out/b.pt").read_bytes() != b"mine"


def test_other_options(small: Path, tmp_path: Path) -> None:
    """Other options than before are refused with a list of them, and convert everything again with force."""
    convert(small, tmp_path / "out")
    with pytest.raises(ModelError, match="mode was not given and is tree"):
        convert(small, tmp_path / "out", mode="tree")

    assert convert(small, tmp_path / "out", mode="tree", force=True).now == {"done": 2, "failed": 1}
    assert convert(small, tmp_path / "out", mode="tree").now == {}


@pytest.mark.parametrize(
    "options",
    [{"to": "safetensors", "encoding": "ascii"}, {"to": "onnx"}, {"mode": "trees"}, {"engine": "spark"},
     {"module": True, "verify": True}, {"module": True, "compact": True}, {"timeout": 3}, {"scheduler": "tcp://x"}],
)  # fmt: skip
def test_wrong_options(small: Path, tmp_path: Path, options: dict[str, object]) -> None:
    """Options that make no sense together, or do not exist, are refused before anything is converted."""
    with pytest.raises(ModelError):
        convert(small, tmp_path / "out", **options)
    with pytest.raises(TypeError, match="compcat"):
        convert(small, tmp_path / "out", compcat=True)
    assert not list(tmp_path.glob("out/*.pt"))


@pytest.mark.parametrize("name", ["template", "partial", "nested", "map_location"])
def test_options_of_one_file(small: Path, tmp_path: Path, name: str) -> None:
    """Options that depend on the one file that is converted are those of `convert` alone."""
    with pytest.raises(TypeError, match=name):
        convert(small, tmp_path / "out", **{name: None})


def test_module(tmp_path: Path) -> None:
    """Each model becomes a folder with its source and its weights; layers without a mapping are counted."""
    zoo = tmp_path / "zoo"
    put(zoo / "lenet.t7", (TESTFILES / "models/lenet_mm.t7").read_bytes())
    own = linear(random.Random(1)).replace(b"nn.Linear", b"my.Linear")
    put(zoo / "own.t7", own)
    put(zoo / "own2.t7", own)
    report = convert(zoo, tmp_path / "out", module=True)

    assert sorted(os.listdir(tmp_path / "out/lenet")) == ["model.pt", "model.py"]
    assert "class Model" in (tmp_path / "out/lenet/model.py").read_text()
    assert [(each.class_name, each.files, each.times) for each in report.layers] == [("my.Linear", 2, 2)]
    assert convert(zoo, tmp_path / "out", module=True).now == {}


def test_unmapped_layers_of_state_dicts(tmp_path: Path) -> None:
    """Layers without a mapping are counted where their tensors were converted, too."""
    own = linear(random.Random(1)).replace(b"nn.Linear", b"my.Linear")
    put(tmp_path / "zoo/own.t7", own)
    report = convert(tmp_path / "zoo", tmp_path / "out")

    assert report.counts["done"] == 1
    assert [(each.class_name, each.files, each.times) for each in report.layers] == [("my.Linear", 1, 1)]


def test_options_that_fit_some_files(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """A file that an option does not fit is converted without it, with a warning; one that fits no file is an error."""
    folder = tmp_path / "in"
    folder.mkdir()
    weights = t7bridge.load_state_dict(TESTFILES / "models/lenet_mm.t7")
    torch.save({f"module.{key}": tensor for key, tensor in weights.items()}, folder / "parallel.pt")
    torch.save(weights, folder / "plain.pt")
    torch.save({"g": weights, "d": dict(weights)}, folder / "several.pt")
    torch.save([torch.ones(2)], folder / "none.pt")
    shutil.copy(TESTFILES / "models/lenet_mm.t7", folder / "lua.t7")
    records: dict[str, Any] = {}
    report = convert(
        folder,
        tmp_path / "out",
        strip=["module"],
        encoding="ascii",
        on_file=lambda record: records.update({record.name: record}),
    )
    assert report.counts["done"] == 5
    warnings = {name: [note[2] for note in record.notes if note[0] == "warning"] for name, record in records.items()}
    assert warnings["parallel.pt"] == []
    assert warnings["plain.pt"] == ["strip module renames nothing"]
    assert warnings["several.pt"][0].startswith("names stay as they are: there are several state dicts")
    assert warnings["none.pt"][0].startswith("names stay as they are: there is no state dict")
    assert warnings["lua.t7"][0].startswith("encoding does not apply from .t7 to .pt")
    assert "0.weight" in t7bridge.load_state_dict(tmp_path / "out/parallel.t7")
    for target in ({"encoding": "ascii"}, {"to": "npz"}):
        report = convert(folder, tmp_path / f"verified {[*target]}", strip=["module"], verify=True, **target)
        assert report.counts["done"] == 5, report.rows
    report = convert(folder, tmp_path / "strict", strip=["module"], strict=True)
    assert report.counts["failed"] == 4
    for to, name, value in (
        ("npz", "encoding", "ascii"),
        ("npz", "compact", True),
        ("npz", "pt_format", "legacy"),
        ("t7", "mode", "tree"),
    ):
        with subtests.test(name), pytest.raises(OptionError, match=rf"{name} does not apply to \.{to}; it is for"):
            convert(folder, tmp_path / "none", to=to, **{name: value})


def test_verify(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verified output is compared with its input; one that is wrong is taken away, and the file has failed."""
    assert convert(small, tmp_path / "good", verify=True).counts["done"] == 2

    def wrong(request: Any, **options: bool) -> t7bridge.Report:
        return t7bridge.convert(TESTFILES / "format/tensor_float.t7", request.target, force=True)

    monkeypatch.setattr("t7bridge.zoo.workers.convert_as", wrong)
    report = convert(small, tmp_path / "out", verify=True)
    assert report.counts["done"] == 0
    assert {row.kind for row in report.rows if row.name == "b.dat"} == {"VerifyError"}
    assert not list((tmp_path / "out").glob("**/*.pt"))


def test_verify_converts_as_the_zoo_did(tmp_path: Path) -> None:
    """The owner's library is compared with what the options of the zoo make of the input."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    shutil.copy(TESTFILES / "nn/Linear.t7", folder / "model.t7")
    report = convert(folder, tmp_path / "out", to="npz", mode="tree", verify=True)
    assert report.counts["done"] == 1, report.rows


@pytest.mark.parametrize("to", ["pt", "safetensors", "t7", "npz"])
def test_names_and_types_are_verified(tmp_path: Path, to: str) -> None:
    """Outputs with other names and types are those of `convert`, verified, and not converted again."""
    (tmp_path / "in").mkdir()
    for name in ("lenet_mm", "training_checkpoint"):
        shutil.copyfile(TESTFILES / f"models/{name}.t7", tmp_path / f"in/{name}.t7")
    t7bridge.convert(tmp_path / "in/lenet_mm.t7", tmp_path / "in/weights.pt")
    options: dict[str, object] = {"rename": ["=net"], "dtype": "bfloat16", "to": to}
    report = convert(tmp_path / "in", tmp_path / "out", verify=True, **options)
    assert set(verdicts(tmp_path / "out").values()) == {"done"}
    assert report.now == {"done": 3}
    assert convert(tmp_path / "in", tmp_path / "out", verify=True, **options).now == {}
    t7bridge.convert(tmp_path / "in/weights.pt", tmp_path / f"one.{to}", **options)  # type: ignore[arg-type]
    (output,) = (tmp_path / "out").glob(f"weights*.{to}")
    assert output.read_bytes() == (tmp_path / f"one.{to}").read_bytes()


def test_a_wrong_output_is_found(tmp_path: Path) -> None:
    """A difference in one element, type or name is one, whatever was asked for."""
    source = tmp_path / "in.pt"
    torch.save({"module.w": torch.arange(4.0), "module.n": torch.tensor(3)}, source)
    asked: dict[str, object] = {"strip": ["module"], "dtype": "float16"}
    t7bridge.convert(source, tmp_path / "out.pt", **asked)  # type: ignore[arg-type]
    good = torch.load(tmp_path / "out.pt", weights_only=True)
    wrong = [
        {**good, "w": good["w"] + 1}, {**good, "w": good["w"].float()}, {"w": good["w"]}, {**good, "w": good["w"][:3]},
    ]  # fmt: skip
    for number, value in enumerate([good, *wrong]):
        torch.save(value, tmp_path / "changed.pt")
        texts = edited_differences(str(source), str(tmp_path / "changed.pt"), DEFAULT_LIMITS, **asked)
        assert bool(texts) == bool(number), texts


def test_compact_outputs_are_verified(tmp_path: Path) -> None:
    """With `compact`, views are compared as the zoo writes them; without it they must be as in the input."""
    base = Tensor.from_numpy(np.arange(40, dtype=np.float32))
    weight, bias = evolve(base, size=(3, 4), stride=(4, 1), offset=5), base[20:23]
    source = tmp_path / "zoo/views.t7"
    source.parent.mkdir()
    t7bridge.save(TorchObject("nn.Linear", 1, Table.of({"weight": weight, "bias": bias})), source)
    report = convert(tmp_path / "zoo", tmp_path / "out", compact=True, verify=True)
    assert report.counts["done"] == 1, report.rows
    output = tmp_path / "out/views.pt"
    assert t7bridge.verify(source, output, compact=True).same
    assert not t7bridge.verify(source, output).same


def test_inputs_stay(small: Path, tmp_path: Path) -> None:
    """No input is ever changed."""
    before = tree(small)
    convert(small, tmp_path / "out", verify=True)

    assert tree(small) == before


@pytest.mark.slow
def test_odd_names(tmp_path: Path, rng) -> None:  # type: ignore[no-untyped-def]
    """Names that are not UTF-8, or hold what HTML, CSV or a terminal would interpret, are names like others."""
    odd = [
        os.fsdecode(b"caf\xe9.t7"),
        "</script><b>.t7",
        "=1+1.t7",
        "a\nb.t7",
        "ünï 日本.t7",
        "'; DROP TABLE files;--.t7",
    ]
    for name in odd:
        put(tmp_path / "zoo" / name, tensor(rng))
    first = t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "out", workers=1)

    assert (first.counts["done"], sorted(row.name for row in first.rows)) == (6, sorted(odd))
    assert convert(tmp_path / "zoo", tmp_path / "out").now == {}
    assert json.loads((tmp_path / "out/report.json").read_text())["done"] == 6


@pytest.mark.slow
def test_one_run_at_a_time(small: Path, tmp_path: Path) -> None:
    """A second run in the same folder is refused while the first is at work."""

    def again(row: object) -> None:
        with pytest.raises(T7BridgeError, match="locked by another run"):
            convert(small, tmp_path / "out")

    assert convert(small, tmp_path / "out", on_file=again).counts["done"] == 2


def test_journal_of_something_else(small: Path, tmp_path: Path) -> None:
    """A damaged journal, or one of another release, is refused and unchanged."""
    put(tmp_path / "bad" / JOURNAL, b"no database at all, but long enough to be looked at" * 20)
    with pytest.raises(CorruptError, match="is not a journal"):
        convert(small, tmp_path / "bad")

    convert(small, tmp_path / "new")
    with sqlite3.connect(tmp_path / "new" / JOURNAL) as base:
        base.execute("UPDATE facts SET value = '99' WHERE name = 'schema'")
    base.close()
    with pytest.raises(T7BridgeError, match="has layout 99"):
        convert(small, tmp_path / "new")


def test_done_only_after_the_disk_has_it(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs are flushed to the disk before the journal marks them as done."""
    events: list[tuple[str, set[str]]] = []
    flush, record = Folder.flush_outputs, Journal.record

    def flushed(self: Folder, outputs: object) -> None:
        names = list(outputs)  # type: ignore[call-overload]
        flush(self, names)
        events.append(("disk", set(names)))

    def recorded(self: Journal, rows: list[Record]) -> None:
        events.append(("journal", {row.output for row in rows if row.status == "done"}))
        record(self, rows)

    monkeypatch.setattr(Folder, "flush_outputs", flushed)
    monkeypatch.setattr(Journal, "record", recorded)
    convert(small, tmp_path / "out")

    assert [kind for kind, _ in events] == ["disk", "journal"] * (len(events) // 2)
    assert set.union(*(names for kind, names in events if kind == "disk")) == {"a/net.pt", "b.pt"}
    assert [names for kind, names in events if kind == "disk"] == [names for kind, names in events if kind != "disk"]


def test_disk_that_takes_no_more(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs that could not be flushed to disk are not marked as done, the run fails, and the next resumes."""

    def refuse(folder: str) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO), folder)

    with monkeypatch.context() as patch:
        patch.setattr("t7bridge.zoo.places.flush_file_system", refuse)
        with pytest.raises(WriteError, match=r"out: outputs cannot be flushed to the disk: Input/output error"):
            convert(small, tmp_path / "out")
    with sqlite3.connect(tmp_path / "out" / JOURNAL) as base:
        assert base.execute("SELECT count(*) FROM files WHERE status = 'done'").fetchone() == (0,)
    base.close()

    convert(small, tmp_path / "out")
    assert verdicts(tmp_path / "out")["b.dat"] == "done"


@pytest.mark.parametrize("one_by_one", [False, True])
def test_each_disk_is_flushed_once(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_by_one: bool
) -> None:
    """All outputs of a file system go to the disk at once, or one by one where the system cannot do that."""
    asked: list[str] = []
    monkeypatch.setattr("t7bridge.zoo.places.flush_file_system", lambda folder: asked.append(folder) or not one_by_one)
    alone: list[str] = []
    monkeypatch.setattr("t7bridge.zoo.places.flush_to_disk", alone.append)
    convert(small, tmp_path / "out")

    assert len(asked) == 1
    assert sorted(os.path.basename(path) for path in alone) == (["b.pt", "net.pt"] if one_by_one else [])


def test_pictures(small: Path, tmp_path: Path) -> None:
    """`draw` writes a page next to each output that holds a model; the report links to it, and another run keeps it."""
    t7bridge.save(42.0, small / "n.t7")
    report = convert(small, tmp_path / "out", draw=True)
    page = (tmp_path / "out/a/net.pt.html").read_text()
    assert "nn.Linear" in page
    assert not (tmp_path / "out/n.pt.html").exists()
    (row,) = [row for row in report.rows if row.output == "n.pt"]
    assert [note[2] for note in row.notes][-1].startswith("no picture: ")
    data = re.search(r'id="data">(.*?)</script>', (tmp_path / "out/report.html").read_text())
    assert data is not None
    rows = {row[0]: row[10] for row in json.loads(data.group(1))["rows"]}
    assert {name: picture for name, picture in rows.items() if picture} == {
        "a/net.t7": "a/net.pt.html",
        "b.dat": "b.pt.html",
    }
    t7bridge.convert(small / "a/net.t7", tmp_path / "alone.pt")
    assert (tmp_path / "alone.pt").read_bytes() == (tmp_path / "out/a/net.pt").read_bytes()

    assert convert(small, tmp_path / "out", draw=True).now.get("done", 0) == 0
    put(tmp_path / "other/a/net.pt.html", b"<p>mine")
    (row, *_) = convert(small, tmp_path / "other", draw=True).rows
    assert (row.status, row.notes[-1][2]) == ("done", "no picture: a foreign file has the name of the picture")
    (tmp_path / "taken/a/net.pt.html").mkdir(parents=True)
    (row, *_) = convert(small, tmp_path / "taken", draw=True).rows
    assert (row.status, row.notes[-1][2]) == ("done", "no picture: cannot be written: Is a directory")
    assert (tmp_path / "other/a/net.pt.html").read_bytes() == b"<p>mine"


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_time_limit_is_a_time(timeout: float, tmp_path: Path) -> None:
    """With a limit below 0, each file would fail."""
    with pytest.raises(ModelError, match="timeout must be 0"):
        t7bridge.convert_zoo(tmp_path, tmp_path / "out", timeout=timeout)
    assert not (tmp_path / "out").exists()


def test_pairs_of_names_are_the_same_options_again(small: Path, tmp_path: Path) -> None:
    """Options are compared with those of earlier runs as the journal has them: pairs in lists, not in tuples."""
    for expected in (1, 0):
        report = convert(small / "a", tmp_path / "out", to="safetensors", rename=(("weight", "kernel"),))
        assert report.now.get("done", 0) == expected
