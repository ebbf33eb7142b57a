"""The benchmarks' own files have the declared content, and their operations are measured."""

from __future__ import annotations

import sys

import pytest
from helpers import ROOT, module_of

import t7bridge


@pytest.fixture
def files(monkeypatch):
    """The module that writes the files."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import files

    yield files
    del sys.modules["files"]


def test_files(files, tmp_path):
    """Each is a `.t7` file of the declared shape."""
    path = tmp_path / "x.t7"
    files.large(path, 2, 3000)
    assert t7bridge.load(path)["layer01"].shape == (3, 1000)
    files.large(path, 1, 1000, order=">", kind="Long")
    assert t7bridge.T7Reader(path).read_object()["layer00"].numpy().dtype.itemsize == 8
    files.large(path, 1, 1000, kind="Long", long_size=4)
    assert t7bridge.T7Reader(path).read_object()["layer00"].numpy().shape == (1, 1000)
    files.ascii_text(path, 10)
    assert t7bridge.load(path).numpy().max() < 1
    files.numbers(path, 100)
    assert t7bridge.load(path).as_list() == [key * 0.5 for key in range(100)]
    files.records(path, 5)
    assert t7bridge.load(path)[3]["name"] == b"item2"
    files.small_tensors(path, 3)
    assert t7bridge.load(path)[2].numpy().tolist()[0] == [0, 1, 2, 3]
    files.nested(path, 4)
    assert t7bridge.load(path)[1][1][1][1] == 0
    files.sparse(path, 1)
    assert t7bridge.load(path).shape == (250_000_000,)


@pytest.mark.slow
def test_measure(files, tmp_path):
    """Commands run in turns, in processes whose memory is their own, and a command that fails ends everything."""
    import measure

    program = "import time; x = bytearray(80 << 20); x[::4096] = bytes(len(x[::4096])); time.sleep(0.05)"
    bad = (tmp_path / "none", sys.executable, "-c", "raise SystemExit(3)")
    found = measure.commands(
        2,
        {
            "large": (tmp_path / "none", sys.executable, "-c", program),
            "small": (tmp_path / "none", sys.executable, "-c", "pass"),
            "bad": bad,
        },
        may_fail={"bad"},
    )
    assert found.keys() == {"large", "small"}
    assert found["large"].peak_mib > 80 > found["small"].peak_mib
    assert found["large"].median >= 0.05
    with pytest.raises(SystemExit, match="bad fails"):
        measure.commands(1, {"bad": bad})
    called = []
    measured = measure.call(lambda: called.append(1))
    assert len(called) == 2
    assert len(measured.seconds) == len(measured.cpu_seconds) == 1
    files.numbers(tmp_path / "x.t7", 10)
    times = measure.work(sys.executable, "load", tmp_path / "x.t7")
    assert len(times.seconds) == len(times.cpu_seconds) == 1
    assert measure.Result.of([times, times]).seconds == (*times.seconds, *times.seconds)
    with pytest.raises(SystemExit, match="there is no operation new"):
        measure.work(sys.executable, "new", tmp_path / "x.t7")
    del sys.modules["measure"]


def test_table_in_the_readme(files, tmp_path):
    """The table goes between the marks of a page, the rest stays; one without marks is refused. README has a part."""
    program = module_of(ROOT / "benchmarks/__main__.py")
    page = tmp_path / "README.md"
    page.write_text((ROOT / "README.md").read_text())
    text = program.table([program.Row("x.t7 to x.pt", "cp", 1.0, 1.25, 22.4)])
    for _ in range(2):
        program.insert(page, f"New.\n\n{text}\n")
    before, _, after = (ROOT / "README.md").read_text().partition("<!-- benchmarks -->\n")
    after = after.partition("<!-- end of benchmarks -->\n")[2]
    row = "| x.t7 to x.pt | cp | 1.00 | 1.25 | 22 MiB |\n"
    assert page.read_text().startswith(f"{before}<!-- benchmarks -->\nNew.\n\n| what | against | ratio |")
    assert page.read_text().endswith(f"\n{row}<!-- end of benchmarks -->\n{after}")
    whole = (ROOT / "docs/performance.md").read_text()
    rows = [
        line
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.endswith(" MiB |") or "times faster" in line
    ]
    assert len(rows) == len(program.FRONT)
    assert all(line in whole for line in rows)
    other = program.Row(*next(iter(program.FRONT)), 1.0, 1.25, 22.4, 0.5)
    assert program.table([other]).endswith(" 22 MiB | 0.50 |")
    assert program.table(program.front([other, program.Row("x", "cp", 1.0, 1.0)])).endswith(" 1.25 | 22 MiB |")
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="has no lines"):
        program.insert(page, text)
    del sys.modules["measure"]
