"""The reports: one page that needs nothing else, a table for spreadsheets, and JSON."""

import contextlib
import csv
import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from zoo_maker import make_zoo, tensor

import t7bridge
from t7bridge.zoo import COLUMNS, Journal, Record, as_csv


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
    for key in ("files", "done", "failed", "foreign", "planned", "bytes_before", "bytes_after"):
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


def test_losses_are_counted(tmp_path: Path) -> None:
    """Losses are counted by kind over all files, in the report and its JSON."""
    torch.save({"w": torch.ones(2).bfloat16(), "n": torch.ones(2)}, tmp_path / "x.pt")
    report = t7bridge.convert_zoo(tmp_path / "x.pt", tmp_path / "out", to="npz", workers=0)

    assert report.ok, report.failures
    assert report.losses == report.summary()["losses"] == {"type": 1}
    assert [
        note.get("loss") for note in json.loads((tmp_path / "out/report.json").read_text())["table"][0]["notes"]
    ] == ["type"]
