"""The reports: one page that needs nothing else, a table for spreadsheets, and JSON."""

import contextlib
import csv
import json
import random
import re
import shutil
from collections import Counter
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import PROGRAM, Browser
from helpers import TESTFILES
from zoo_helpers import wait_for
from zoo_maker import make_zoo, tensor

import t7bridge
from t7bridge.zoo import COLUMNS, Groups, Journal, Record, as_csv
from t7bridge.zoo.journal import batches


class Page(HTMLParser):
    """Return the content of a page: its elements, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember an element."""
        self.elements.append((tag, dict(attrs)))
        self._inside = (dict(attrs).get("type") or "script") if tag == "script" else ""

    def handle_data(self, data: str) -> None:
        """Take the text of a script."""
        if self._inside:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data

    def handle_endtag(self, tag: str) -> None:
        """Leave a script."""
        self._inside = ""


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder with its reports."""
    folder = tmp_path_factory.mktemp("report")
    make_zoo(folder / "zoo", 100)
    (folder / "zoo/</script><img src=x>.t7").parent.mkdir(parents=True)
    (folder / "zoo/</script><img src=x>.t7").write_bytes(tensor(random.Random(1))[:50])
    t7bridge.convert_zoo(folder / "zoo", folder / "out", workers=0)
    return folder / "out"


@pytest.mark.slow
def test_journal_and_report_agree(tmp_path: Path) -> None:
    """The report of the run that made a zoo equals that of the next run from the journal."""
    make_zoo(tmp_path / "zoo", 150)
    report = t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "out", workers=1)
    with contextlib.closing(Journal(str(tmp_path / "out/t7bridge-zoo.sqlite"))) as journal:
        assert list(journal.records()) == list(report.rows)
    assert report.counts["failed"]
    assert any(row.notes for row in report.rows)


def test_page_stands_alone(zoo: Path) -> None:
    """The page refers to nothing outside of it, and no name of a file becomes part of its elements."""
    text = (zoo / "report.html").read_text()
    page = Page(text)

    assert not [attributes for _, attributes in page.elements if {"src", "href", "action"} & set(attributes)]
    assert not re.search(r"https?://|@import|url\(", text)
    assert "img" not in [tag for tag, _ in page.elements]
    assert "default-src 'none'" in text


def test_page_holds_everything(zoo: Path) -> None:
    """The data in the page are those of `report.json`: every file, every failure, the totals."""
    data = json.loads(Page((zoo / "report.html").read_text()).scripts["application/json"])
    report = json.loads((zoo / "report.json").read_text())

    assert [row[0] for row in data["rows"]] == [row["name"] for row in report["table"]]
    assert {name for group in data["failures"] for name in group["names"]} == {
        row["name"] for row in report["table"] if row["status"] == "failed"
    }
    assert sum(sum(page.values()) for page in data["pages"]) == report["files"]
    keys = ("files", "done", "failed", "nothing", "foreign", "planned", "bytes_before", "bytes_after", "equal")
    for key in keys:
        assert data[key] == report[key]
    assert report["bytes_after"] == sum(
        (zoo / row["output"]).stat().st_size for row in report["table"] if row["status"] == "done"
    )


def test_failures_are_grouped(zoo: Path) -> None:
    """Failures that differ in numbers only are one group, the largest first."""
    groups = json.loads((zoo / "report.json").read_text())["failures"]

    assert [group["files"] for group in groups] == sorted((group["files"] for group in groups), reverse=True)
    assert {"kind": "CorruptError", "message": "unknown type tag …", "files": 3} in groups


def test_table(zoo: Path) -> None:
    """The table has a row a file, with the columns that are documented."""
    with (zoo / "report.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert list(rows[0]) == list(COLUMNS)
    assert len(rows) == json.loads((zoo / "report.json").read_text())["files"]
    assert {row["status"] for row in rows} == {"done", "failed", "foreign"}
    assert all(len(row["output_hash"]) == 64 for row in rows if row["status"] == "done")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x"])
def test_no_formulas(text: str) -> None:
    """Cells that a spreadsheet would evaluate are text; numbers stay numbers."""
    (row,) = csv.DictReader(as_csv([Record(name=text, tensors=-1)]).splitlines(), COLUMNS)
    assert row["name"] == f"'{text}"
    assert row["tensors"] == "-1"


def rows_of(folder: Path) -> list[list[Any]]:
    """The rows of the page and of its scripts."""
    data = json.loads(Page((folder / "report.html").read_text()).scripts["application/json"])
    pages = sorted((folder / "report.pages").glob("*.js"))
    if not pages:
        return list(data["rows"])
    found = []
    for number, page in enumerate(pages, 1):
        rows = re.fullmatch(rf"zooRows\({number},(.*)\);\n", page.read_text())
        assert rows is not None
        found += json.loads(rows[1])
    assert found[: len(data["rows"])] == data["rows"]
    return found


def test_rows_are_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large zoo has a script for each page of rows, rewritten only where it changed; the page counts each."""
    monkeypatch.setattr("t7bridge.zoo.report.PAGE_ROWS", 10)
    rng = random.Random(4)
    (tmp_path / "zoo").mkdir()
    for number in range(25):
        (tmp_path / f"zoo/{number:02}.t7").write_bytes(tensor(rng) if number % 5 else b"<html>")
    (tmp_path / "zoo/24.t7").write_bytes((tmp_path / "zoo/23.t7").read_bytes())
    out = tmp_path / "out"
    t7bridge.convert_zoo(tmp_path / "zoo", out, workers=0)

    data = json.loads(Page((out / "report.html").read_text()).scripts["application/json"])
    assert [row[0] for row in rows_of(out)] == [f"{number:02}.t7" for number in range(25)]
    assert data["pages"] == [
        {"failed|||equal": 2, "done|||": 8},
        {"failed|||equal": 2, "done|||": 8},
        {"failed|||equal": 1, "done|||": 2, "done|||equal": 2},
    ]
    assert [row["name"] for row in json.loads((out / "report.json").read_text())["table"]] == [
        row[0] for row in rows_of(out)
    ]
    with (out / "report.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 25

    first, last = out / "report.pages/0001.js", out / "report.pages/0003.js"
    times = [page.stat().st_mtime_ns for page in (first, last)]
    (tmp_path / "zoo/22.t7").unlink()
    t7bridge.convert_zoo(tmp_path / "zoo", out, workers=0)
    assert first.stat().st_mtime_ns == times[0]
    assert last.stat().st_mtime_ns != times[1]
    for path in (tmp_path / "zoo").glob("1*"):
        path.unlink()
    t7bridge.convert_zoo(tmp_path / "zoo", out, workers=0)
    assert len(rows_of(out)) == 14
    assert not last.exists()


def test_memory_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the records of a zoo a batch is alive at a time: in the plan, while it is converted, and in the reports."""
    alive = most = 0

    class Counted(Record):
        """A record that is counted as long as it lives."""

        __slots__ = ()

        def __init__(self, *values: Any, **fields: Any) -> None:
            nonlocal alive, most
            super().__init__(*values, **fields)
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    for module in ("journal", "places"):
        monkeypatch.setattr(f"t7bridge.zoo.{module}.Record", Counted)
    for module in ("journal", "plan"):
        monkeypatch.setattr(f"t7bridge.zoo.{module}.batches", partial(batches, size=20))
    monkeypatch.setattr("t7bridge.zoo.journal.BATCH", 20)
    monkeypatch.setattr("t7bridge.zoo.report.PAGE_ROWS", 20)
    monkeypatch.setattr("t7bridge.zoo.run._COMMIT_SECONDS", 0.0)
    (tmp_path / "zoo").mkdir()
    for number in range(600):
        (tmp_path / f"zoo/{number:03}.txt").write_bytes(b"words")
    for number in range(50):
        (tmp_path / f"zoo/{number:03}.t7").write_bytes(b"\t\0\0\0")
    report = t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "out", workers=0)
    del report.rows
    assert (report.counts["foreign"], report.counts["failed"]) == (600, 50)
    assert 20 <= most < 150


def test_numbers_that_differ() -> None:
    """A message of several files has `…` where they differ, and their common numbers and names elsewhere."""
    groups = Groups()
    groups.add("2 of 64 float32 weights of 'a' are NaN", "x.t7")
    assert [group.message for group in groups] == ["2 of 64 float32 weights of 'a' are NaN"]
    groups.add("3 of 64 float32 weights of 'b' are NaN", "y.t7")
    groups.add("2 of 64 float64 weights of 'b' are NaN", "z.t7")
    assert [(group.message, group.names.count, str(group.names)) for group in groups] == [
        ("… of 64 float32 weights of … are NaN", 2, "x.t7, …"),
        ("2 of 64 float64 weights of 'b' are NaN", 1, "z.t7"),
    ]
    for number in range(30):
        groups.add("the same", f"{number}.t7")
    assert next(iter(groups)).names.first == [f"{number}.t7" for number in range(20)]


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that are all different do not fill the memory: those beyond a number are in no group."""
    monkeypatch.setattr("t7bridge.zoo.groups._MOST_GROUPS", 3)
    groups = Groups()
    for word in ("a", "b", "c", "d", "e", "a"):
        groups.add(f"{word} fails", word)
    assert [(group.message, group.names.count) for group in groups] == [("a fails", 2), ("b fails", 1), ("c fails", 1)]


def test_equal_files_and_what_is_left_out(tmp_path: Path) -> None:
    """Equal inputs are named, in the text, in the page and for programs; so is what is not an input."""
    data = tensor(random.Random(2))
    for name in ("b.t7", "a.t7", "c/d.t7"):
        (tmp_path / "zoo" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "zoo" / name).write_bytes(data)
    (tmp_path / "zoo/e.t7").write_bytes(tensor(random.Random(3)))
    (tmp_path / "zoo/empty.t7").write_bytes(b"")
    (tmp_path / "zoo/empty2.t7").write_bytes(b"")
    (tmp_path / "zoo/.hidden").write_bytes(b"")
    (tmp_path / "zoo/nowhere.t7").symlink_to("missing")
    report = t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "out", workers=0)

    summary = json.loads((tmp_path / "out/report.json").read_text())
    assert summary["equal"] == [{"files": 3, "names": ["a.t7", "b.t7", "c/d.t7"]}]
    assert summary["equal_files"] == 3
    assert summary["left_out"] == {"hidden": 1, "broken_links": 1}
    assert "3 files are equal: a.t7, b.t7, c/d.t7\n" in str(report)
    assert "left out: 1 hidden file or folder, 1 broken link\n" in str(report)
    data = json.loads(Page((tmp_path / "out/report.html").read_text()).scripts["application/json"])
    assert data["left_out"] == [[1, "hidden file or folder"], [1, "broken link"]]
    assert {row[0]: row[-1] for row in rows_of(tmp_path / "out") if row[-1]} == {
        name: [3, "a.t7"] for name in ("a.t7", "b.t7", "c/d.t7")
    }


@pytest.mark.slow
def test_proofs_are_counted(tmp_path: Path) -> None:
    """Files are counted by the result of their proof, and the page filters by it."""
    for name in ("dilated.eval.t7", "random.196.dropout.fresh.1.bad.t7"):
        (tmp_path / "zoo").mkdir(exist_ok=True)
        shutil.copy(TESTFILES / "prove" / name, tmp_path / "zoo")
    shutil.copy(TESTFILES / "nn/Linear.t7", tmp_path / "zoo/linear.pt")
    report = t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "out", workers=0, prove=True)

    results = {row.name: row.proof for row in report.rows}
    assert results["random.196.dropout.fresh.1.bad.t7"] == "differs"
    assert results["dilated.eval.t7"] == "agrees"
    assert report.proofs == dict(Counter(results.values()))
    assert sorted(row[11] for row in rows_of(tmp_path / "out")) == sorted(results.values())


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="there is no browser")
def test_pages_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows, filters, searches and turns the rows of all its scripts, and fits a telephone."""
    monkeypatch.setattr("t7bridge.zoo.report.PAGE_ROWS", 400)
    rng = random.Random(6)
    (tmp_path / "zoo").mkdir()
    for number in range(2100):
        (tmp_path / f"zoo/{number:04}.t7").write_bytes(rng.randbytes(2) if number % 700 == 3 else b"\t\0\0\0same")
    (tmp_path / "zoo/needle.t7").write_bytes(tensor(rng))
    t7bridge.convert_zoo(tmp_path / "zoo", tmp_path / "out", workers=0)
    with Browser(400, 900) as browser:
        browser.open(tmp_path / "out/report.html")

        def after(script: str) -> tuple[str, int, str]:
            """Do something; return what is shown, the number of rows, and the first name."""
            browser.run(f"{script}; new Promise(done => setTimeout(done, 50))")
            waits = "byId('shown').textContent.startsWith('reading') || !byId('shown').textContent"
            wait_for(lambda: not browser.run(waits))
            shown = browser.run("byId('shown').textContent").replace("\u202f", " ")
            count = browser.run("document.querySelectorAll('#body tr').length")
            return shown, count, browser.run("document.querySelector('#body td b')?.textContent ?? ''")

        assert after("") == ("1 to 1 000 of 2 101 files", 1000, "0000.t7")
        assert after("byId('next').click()") == ("1 001 to 2 000 of 2 101 files", 1000, "1000.t7")
        assert after("byId('next').click()") == ("2 001 to 2 101 of 2 101 files", 101, "2000.t7")
        assert after("byId('jump').value = 2; byId('jump').onchange()")[0] == "1 001 to 2 000 of 2 101 files"
        assert after("byId('previous').click()") == ("1 to 1 000 of 2 101 files", 1000, "0000.t7")
        assert after("document.querySelector('[data-status=done]').click()") == (
            "1 file; 2 101 files in all", 1, "needle.t7",
        )  # fmt: skip
        assert after("byId('clear').click(); byId('search').value = 'needle'; changed()")[1:] == (1, "needle.t7")
        assert after("byId('search').value = '.t7 unknown'; changed()")[0] == "1 to 1 000 and more"
        assert after("byId('next').click()")[2] == "1001.t7"
        assert after("byId('clear').click(); byId('equal').checked = true; changed()")[0] == (
            "1 to 1 000 of 2 097 files; 2 101 files in all"
        )
        assert browser.run("document.documentElement.scrollWidth") == 400
        assert browser.errors == []
        (tmp_path / "out/report.pages").rename(tmp_path / "elsewhere")
        browser.open(tmp_path / "out/report.html")
        after("byId('jump').value = 3; byId('jump').onchange()")
        assert "must be beside this page" in browser.run("byId('empty').textContent")


def test_losses_are_counted(tmp_path: Path) -> None:
    """Losses are counted by kind over all files, in the report and its JSON."""
    torch.save({"w": torch.ones(2).bfloat16(), "n": torch.ones(2)}, tmp_path / "x.pt")
    report = t7bridge.convert_zoo(tmp_path / "x.pt", tmp_path / "out", to="npz", workers=0)

    assert report.ok, report.failures
    assert report.losses == report.summary()["losses"] == {"type": 1}
    assert [
        note.get("loss") for note in json.loads((tmp_path / "out/report.json").read_text())["table"][0]["notes"]
    ] == ["type"]
