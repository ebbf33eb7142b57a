"""The verb: exit codes, text and JSON output, wrong usage."""

import json
import os
import pty
import random
import subprocess
from pathlib import Path

import pytest
from helpers import PATIENCE, run_here
from pt_helpers import zipped
from zoo_helpers import command, tree, zoo
from zoo_maker import linear, tensor

import t7bridge
from t7bridge.cli import Display, clock, megabytes, parser_for
from t7bridge.graph import PythonObject
from t7bridge.zoo import Progress


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models and a text."""
    rng = random.Random(3)
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo/a.t7").write_bytes(linear(rng))
    (tmp_path / "zoo/b.t7").write_bytes(tensor(rng))
    (tmp_path / "zoo/c.txt").write_bytes(b"words")
    return tmp_path


def here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, without workers."""
    return run_here("zoo", *arguments, *(() if "--workers" in arguments else ("--workers", "0")))


@pytest.mark.slow
def test_success(folder: Path) -> None:
    """All well is 0, with a summary and no other line."""
    run = zoo(folder / "zoo", "-o", folder / "out")

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines()[1].startswith("2 done, 0 failed, 1 skipped (not a model); ")


@pytest.mark.slow
def test_failure(folder: Path) -> None:
    """One file that fails is 1, also in later runs, and is named with its reason."""
    (folder / "zoo/bad.t7").write_bytes(b"\x09\0\0\0")
    run = zoo(folder / "zoo", "-o", folder / "out")
    again = zoo(folder / "zoo", "-o", folder / "out")

    assert (run.returncode, again.returncode) == (1, 1)
    assert "t7bridge: bad.t7: unknown type tag 9 (CorruptError), at byte 0, root" in run.stderr
    assert again.stderr == ""
    assert "1 file failed: bad.t7: unknown type tag 9 (CorruptError)" in again.stdout


def test_allow_foreign(folder: Path) -> None:
    """`--allow-foreign` writes the classes of other packages as each file names them; otherwise they are plain data."""
    opcodes = b"\x80\x02}X\x01\0\0\0tcmy.pkg\nColour\n)\x81s."
    (folder / "zoo/foreign.pt").write_bytes(zipped({"a/data.pkl": opcodes, "a/version": b"3\n"}))
    for options, named in (((), False), (("--allow-foreign", "--force"), True)):
        run = here(folder / "zoo", "-o", folder / "out", "--to", "pt", *options)
        assert run.returncode == 0, run.stderr
        value = t7bridge.load(folder / "out/foreign.pt")["t"]
        assert isinstance(value, PythonObject) == named
        assert (value.path if named else value["__class__"]) == "my.pkg.Colour"
    assert here(folder / "zoo", "-o", folder / "o2", "--to", "npz", "--allow-foreign").returncode == 2


def test_json(folder: Path) -> None:
    """For machines each file is a line of JSON, and the last line is the summary."""
    run = here(folder / "zoo", "-o", folder / "out", "--json")

    *lines, last = [json.loads(line) for line in run.stdout.splitlines()]
    assert sorted((line["file"], line["status"], line["output"]) for line in lines) == [
        ("a.t7", "done", "a.pt"), ("b.t7", "done", "b.pt"),
    ]  # fmt: skip
    assert last["summary"]["done"] == 2
    assert last["now"] == {"done": 2}


def test_dry_run(folder: Path) -> None:
    """A dry run prints what would be done, and writes nothing."""
    before = tree(folder)
    run = here(folder / "zoo", "-o", folder / "out", "--dry-run")

    assert run.returncode == 0
    assert run.stdout.splitlines() == [
        "planned a.t7 -> a.pt",
        "planned b.t7 -> b.pt",
        "foreign c.txt: text",
        "2 files to convert, 0 done, 0 failed, 1 skipped (not a model); nothing was written",
    ]
    assert tree(folder) == before


def test_a_missing_library_is_told_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for every file, and before the first."""
    monkeypatch.setattr("t7bridge.zoo.run.find_spec", lambda name: None)
    run = here(folder / "zoo", "-o", folder / "out", "--to", "safetensors", "--verify")
    assert (run.returncode, run.stderr.count("pip install safetensors")) == (2, 1)
    assert not (folder / "out").exists()


@pytest.mark.slow
def test_inputs_that_are_not_among_the_sources(folder: Path) -> None:
    """A run of fewer inputs into the same folder names the others, which may well exist."""
    here(folder / "zoo", "-o", folder / "out")
    run = here(folder / "zoo/a.t7", folder / "zoo/c.txt", "-o", folder / "out")
    assert "1 input not among the sources now; their outputs stay: b.t7" in run.stderr


@pytest.mark.parametrize(
    "arguments",
    [("--module", "--to", "pt"), ("--module", "--compact"), ("--scheduler", "tcp://x"),
     ("--workers", "0", "--timeout", "3"), ("--to", "hdf5", "--encoding", "ascii"), ("--memory", "much"),
     ("--limit", "-1"), ("--index-base", "0"), ("--limit", "nothing=3"), ("--template", "x.t7"), ("--nested",)],
)  # fmt: skip
def test_wrong_usage(folder: Path, arguments: tuple[str, ...]) -> None:
    """Options that make no sense are 2, and nothing is written."""
    run = here(folder / "zoo", "-o", folder / "out", *arguments)

    assert run.returncode == 2
    assert "error: " in run.stderr
    assert not (folder / "out").exists()


def test_limits(folder: Path) -> None:
    """One option limits the files of a run, another what a file may cost, as for all verbs."""
    run = here(folder / "zoo", "-o", folder / "out", "--limit", "objects=3", "--max-files", "1")
    assert run.returncode == 1
    assert "LimitError" in run.stderr
    assert "1 still to do" in run.stdout

    old = here(folder / "zoo", "-o", folder / "old", "--limit", "1")
    assert old.returncode == 0
    assert "1 still to do" in old.stdout
    assert "t7bridge: --limit 1 is deprecated; use --max-files 1\n" in old.stderr


def test_include(folder: Path) -> None:
    """Patterns choose files by name; what they leave out is counted, as hidden files are."""
    (folder / "zoo/.hidden.t7").write_bytes(b"")
    run = here(folder / "zoo", "-o", folder / "out", "--include", "a.*", "--include", "*.txt")

    assert run.returncode == 0
    assert run.stdout.splitlines()[0] == "left out: 1 hidden file or folder, 1 file without a pattern of --include"
    assert "1 done, 0 failed, 1 skipped (not a model)" in run.stdout
    dry = here(folder / "zoo", "-o", folder / "out", "--include", "*.t7", "--dry-run")
    assert "left out: 1 hidden file or folder, 1 file without a pattern of --include\n" in dry.stdout


@pytest.mark.slow
def test_terminal(folder: Path) -> None:
    """On a terminal there is a bar while it runs, which is gone at the end."""
    pytest.importorskip("rich")
    ours, theirs = pty.openpty()
    with subprocess.Popen(command(folder / "zoo", "-o", folder / "out"), stdout=subprocess.PIPE, stderr=theirs) as run:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        assert run.wait(PATIENCE) == 0
    os.close(ours)

    assert b"2" in shown
    assert b" of 2 files" in shown
    assert b"\x1b[?25h" in shown  # the cursor is back


def test_plain_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal there is a line every few seconds: files, rates, time left."""
    now = Progress(100, 1_000_000)
    clock_now = [now.started]
    monkeypatch.setattr("time.monotonic", lambda: clock_now[0])
    display = Display()
    for _ in range(10):
        clock_now[0] += 0.6
        now.add("done", 10_000)
        now.mark()
        display.progress(now)
    now.add("failed", 10_000)

    line = "t7bridge: 9 of 100 files, 2 files and 0.0 MB a second, 54 s left\n"
    assert capsys.readouterr().err == line
    assert (now.finished, now.done_bytes) == (11, 110_000)


def test_units() -> None:
    """Sizes and times are read and written as people do."""
    parse = parser_for("zoo").parse_args
    sizes = [parse(["x", "-o", "y", "--memory", text]).memory for text in ("512M", "4G", "100", "2KiB")]
    assert sizes == [512 << 20, 4 << 30, 100, 2048]
    assert (clock(3.4), clock(125), clock(3723)) == ("3 s", "2:05", "1:02:03")
    assert (megabytes(3.42e6), megabytes(1.2e9)) == ("3.4 MB", "1.20 GB")
