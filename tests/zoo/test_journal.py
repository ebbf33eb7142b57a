"""The journal of a zoo: written rows are read back, and other files and releases are refused."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from pathlib import Path

import pytest
from attrs import asdict

from t7bridge.errors import CorruptError, T7BridgeError
from t7bridge.zoo import Journal, Record
from t7bridge.zoo.journal import Rows

NAMES = ["a.t7", "b/\u00e9.t7", "c\udcff.t7", "d\udce9\u00e9.t7", "e \U0001f600.t7", "f\udc80.t7"]
"""Names of ASCII, of other letters, and of bytes that are not UTF-8, as Python has them."""


def plan(journal: Journal, rows: list[Record], restart: bool = False) -> None:
    """Store rows as a plan does."""
    with journal.transaction():
        if restart:
            journal.clear()
        journal.store(rows)


def opened(path: Path) -> contextlib.closing[Journal]:
    """A journal that is closed at the end."""
    return contextlib.closing(Journal(str(path)))


def test_rows_come_back(tmp_path: Path) -> None:
    """Every field of every row is preserved when the journal is closed; rows are ordered by name."""
    rows = [
        Record(name=name, place=f"/zoo/{name}", bytes=number, stamp="s", claimed=number % 2 == 0,
            output=name + ".pt", ours=number % 3 == 0, status="done",
            notes=[["info", "root", name, ""]] * (number % 2), seconds=0.5,
            layers=[["root", "nn.X", "why"]] * (number % 3))
        for number, name in enumerate(NAMES)
    ]  # fmt: skip
    with opened(tmp_path / "j") as journal:
        plan(journal, rows[::-1])
        with journal.transaction():
            journal.set_facts({"options": {"to": "pt"}, "runs": 3})
    assert sorted(row.number for row in rows) == [1, 2, 3, 4, 5, 6]
    with opened(tmp_path / "j") as journal:
        found = list(journal.records())
        assert [asdict(row) for row in sorted(found, key=lambda row: row.bytes)] == [asdict(row) for row in rows]
        assert [row.name for row in found[:2]] == NAMES[:2]
        assert all(type(row.ours) is type(row.claimed) is bool for row in found)
        assert journal.fact("options") == {"to": "pt"}
        assert journal.fact("runs") == 3
        assert journal.fact("other") is None


def test_plans_change_and_add(tmp_path: Path) -> None:
    """A row with a number is updated, one without gets the next; a new plan removes all others."""
    with opened(tmp_path / "j") as journal:
        plan(journal, [Record(name="a"), Record(name="b")])
        kept = list(journal.records())
        kept[1].status = "failed"
        plan(journal, [kept[1], Record(name="c")])
        assert [(row.number, row.name, row.status) for row in journal.records()] == [
            (1, "a", "planned"), (2, "b", "failed"), (3, "c", "planned"),
        ]  # fmt: skip
        kept[0].hash, kept[0].reason = "h", "why \udcff"
        journal.record([kept[0]])
        assert [(row.hash, row.reason) for row in journal.records()] == [("h", "why \udcff"), ("", ""), ("", "")]
        kept[0].message = "a class \ud800 that is called so in a pickle, \ud7ff \udd00"
        journal.record([kept[0]])
        assert next(journal.records()).message.startswith("a class ")
        plan(journal, [Record(name="d")], restart=True)
        assert [(row.number, row.name) for row in journal.records()] == [(1, "d")]
        plan(journal, [], restart=True)
        journal.record([])
    with opened(tmp_path / "j") as journal:
        assert list(journal.records()) == []


def test_one_run_at_a_time(tmp_path: Path) -> None:
    """A journal that another run has open is refused as such, one in a folder that is not there for that."""
    with opened(tmp_path / "j"), pytest.raises(T7BridgeError, match="locked by another run"):
        Journal(str(tmp_path / "j"))
    with opened(tmp_path / "j") as journal:
        assert journal.fact("schema") == 1
    with pytest.raises(T7BridgeError, match="cannot be opened"):
        Journal(str(tmp_path / "none/j"))


def test_what_is_no_journal(tmp_path: Path) -> None:
    """Other files, journals of another layout and damaged ones are distinguished."""
    (tmp_path / "text").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(CorruptError, match="is not a journal"):
        Journal(str(tmp_path / "text"))
    with opened(tmp_path / "j") as journal:
        plan(journal, [Record(name=f"n{number}") for number in range(500)])
        with journal.transaction():
            journal.set_facts({"schema": 2})
    with pytest.raises(T7BridgeError, match="layout 2, and this release supports 1"):
        Journal(str(tmp_path / "j"))
    with contextlib.closing(sqlite3.connect(tmp_path / "j")) as base:
        base.execute("UPDATE facts SET value = '1' WHERE name = 'schema'")
        base.commit()
    data = bytearray((tmp_path / "j").read_bytes())
    data[3 * 4096 :] = b"\xee" * (len(data) - 3 * 4096)
    (tmp_path / "j").write_bytes(data)
    with pytest.raises(CorruptError, match="damaged"), opened(tmp_path / "j") as journal:
        list(journal.records())


def test_many_rows_are_read_in_batches(tmp_path: Path) -> None:
    """Rows beyond a batch come by name, from copies too, also while they are changed."""
    wanted = [f"n{number:04}" for number in range(2500)] + ["\udcff.t7"]
    with opened(tmp_path / "j") as journal:
        plan(journal, [Record(name=name, bytes=place) for place, name in enumerate(reversed(wanted))])
        found = []
        for row in journal.records():
            found.append(row.name)
            if len(found) % 500 == 0:
                row.status = "done"
                journal.record([row])
        assert found == wanted
        copy = journal.copy()
        # The large ones come first, the largest before others; then the rest by name.
        assert journal.plan_work(2490, 20)[0] == 20
        assert [row.name for row in journal.work()] == [*wanted[:11], *wanted[11:20]]
        assert journal.plan_work(1, 2)[0] == 2
        assert [row.bytes for row in journal.work()] == [2500, 2499]
        assert journal.plan_work(1, None)[0] == 2496
    assert sum(row.status == "done" for row in copy.records()) == 5


def test_parts_of_the_rows_are_one_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a report are a sequence as a list is; a part of it is read at once, not row by row."""
    wanted = [f"n{number}" for number in range(8)]
    with opened(tmp_path / "j") as journal:
        plan(journal, [Record(name=name) for name in (*wanted, "n9")])
        journal.record([Record(number=9, name="n9", status="gone")])
        rows = Rows(journal)
        queries: list[str] = []
        query = Journal.query

        def counted(self: Journal, text: str, *values: object) -> list[object]:
            queries.append(text)
            return query(self, text, *values)

        monkeypatch.setattr(Journal, "query", counted)
        places = (None, -9, -3, 0, 2, 7, 9)
        for part in itertools.starmap(slice, itertools.product(places, places, (None, -3, -1, 2))):
            queries.clear()
            assert [row.name for row in rows[part]] == wanted[part]
            assert len(queries) <= 2
        assert [rows[place].name for place in (0, 7, -1, -8)] == ["n0", "n7", "n7", "n0"]
        for place in (8, -9):
            with pytest.raises(IndexError):
                rows[place]


def test_journals_of_older_releases(tmp_path: Path) -> None:
    """A journal without the columns of this release gets them, with nothing in them."""
    with opened(tmp_path / "j") as journal:
        plan(journal, [Record(name="a", proof="agrees")])
    with contextlib.closing(sqlite3.connect(tmp_path / "j")) as base:
        base.execute("ALTER TABLE files DROP COLUMN proof")
        base.commit()
    with opened(tmp_path / "j") as journal:
        assert [(row.name, row.proof) for row in journal.records()] == [("a", "")]
        plan(journal, [Record(name="b", proof="differs")])
        assert [(row.name, row.proof) for row in journal.records()] == [("a", ""), ("b", "differs")]
