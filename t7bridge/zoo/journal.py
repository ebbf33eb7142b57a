"""Journal of planned files and their outcomes: an SQLite file in the output folder, written by the planner alone.

A file is marked as done only after its bytes are on the disk, so that the journal is correct even after a power cut.
Outcomes are written in groups, each a transaction; a killed run loses its last group, and those files are simply
converted again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from attrs import field, fields

from ..data import define
from ..errors import CorruptError, T7BridgeError
from .job import PLANNED, FileOutcome

NAME = "t7bridge-zoo.sqlite"
GONE = "gone"
SCHEMA = 1
_BUSY_SECONDS = 0.2

_COLUMNS = {
    "number": "INTEGER PRIMARY KEY",
    "name": "TEXT UNIQUE NOT NULL",
    "place": "TEXT NOT NULL",
    "bytes": "INTEGER NOT NULL",
    "stamp": "TEXT NOT NULL",
    "claimed": "INTEGER NOT NULL",
    "output": "TEXT NOT NULL",
    "ours": "INTEGER NOT NULL",
    "status": "TEXT NOT NULL",
    "kind": "TEXT NOT NULL DEFAULT ''",
    "message": "TEXT NOT NULL DEFAULT ''",
    "reason": "TEXT NOT NULL DEFAULT ''",
    "hash": "TEXT NOT NULL DEFAULT ''",
    "output_bytes": "INTEGER NOT NULL DEFAULT 0",
    "output_hash": "TEXT NOT NULL DEFAULT ''",
    "mode": "TEXT NOT NULL DEFAULT ''",
    "tensors": "INTEGER NOT NULL DEFAULT 0",
    "notes": "TEXT NOT NULL DEFAULT '[]'",
    "layers": "TEXT NOT NULL DEFAULT '[]'",
    "seconds": "REAL NOT NULL DEFAULT 0",
    "version": "TEXT NOT NULL DEFAULT ''",
}
_NAMES = tuple(_COLUMNS)
_TEXT_NAMES = ("name", "place", "output", "reason", "message", "kind")
_LIST_NAMES = ("notes", "layers")
_TEXTS = tuple(map(_NAMES.index, _TEXT_NAMES))
_LISTS = tuple(map(_NAMES.index, _LIST_NAMES))
_FLAGS = tuple(map(_NAMES.index, ("claimed", "ours")))
_TAKEN = [each.name for each in fields(FileOutcome) if each.name in _COLUMNS and each.name != "number"]
_RESULT_NAMES = (*_TAKEN, "bytes", "hash", "version", "number")
_NOTHING = "[]"
_taken = attrgetter(*_TAKEN)


@define
class JournalRow:
    """A file of the zoo.

    Attributes:
        number: of the row; 0 if not yet assigned.
        name: of the input in the zoo.
        place: path or URL of the input.
        bytes: size of the input.
        stamp: a value that changes when the input does.
        claimed: whether the input is declared to be a model.
        output: path of the output in the output folder; empty if there will be none.
        ours: whether no foreign file had that path when it was planned.
        status: `planned`, `done`, `failed`, `foreign`, or `gone` if the input no longer exists.
        kind: class of the error.
        message: the error in general.
        reason: the full error, or a description of a foreign file.
        hash: SHA-256 of the input.
        output_bytes: size of the output.
        output_hash: SHA-256 of the output.
        mode: how it was converted.
        tensors: number of tensors in the output.
        notes: level, path, message and loss of each note; journals of older versions have no loss.
        layers: path, class and reason of each layer without a PyTorch equivalent.
        seconds: time taken.
        version: of t7bridge.
    """

    number: int = 0
    name: str = ""
    place: str = ""
    bytes: int = 0
    stamp: str = ""
    claimed: bool = True
    output: str = ""
    ours: bool = True
    status: str = PLANNED
    kind: str = ""
    message: str = ""
    reason: str = ""
    hash: str = ""
    output_bytes: int = 0
    output_hash: str = ""
    mode: str = ""
    tensors: int = 0
    notes: list[list[str]] = field(factory=list)
    layers: list[list[str]] = field(factory=list)
    seconds: float = 0.0
    version: str = ""

    def take(self, outcome: FileOutcome, version: str) -> None:
        """Store the outcome of the file."""
        for name, value in zip(_TAKEN, _taken(outcome)):
            setattr(self, name, value)
        self.bytes, self.hash, self.version = max(self.bytes, outcome.input_bytes), outcome.input_hash, version


def _pack(text: str) -> str | bytes:
    """Encode text for SQLite: names of files that are not UTF-8 become bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape" if _is_escaped(text) else "surrogatepass")
    return text


def _is_escaped(text: str) -> bool:
    return all(not 0xD800 <= ord(char) <= 0xDFFF or 0xDC80 <= ord(char) <= 0xDCFF for char in text)


def _lines(rows: Iterable[JournalRow], names: Sequence[str]) -> list[list[Any]]:
    """Return columns of rows for SQLite."""
    values_of = attrgetter(*names)
    texts = [place for place, name in enumerate(names) if name in _TEXT_NAMES]
    lists = [place for place, name in enumerate(names) if name in _LIST_NAMES]
    texts_of = attrgetter(*(names[place] for place in texts))
    lines = []
    for row in rows:
        values = list(values_of(row))
        if not "".join(texts_of(row)).isascii():
            for place in texts:
                values[place] = _pack(values[place])
        for place in lists:
            values[place] = json.dumps(values[place]) if values[place] else _NOTHING
        lines.append(values)
    return lines


def _unpack(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


class Journal:
    """The journal of an output folder, opened by one run at a time.

    Args:
        path: of the file; created if missing.

    Raises:
        T7BridgeError: another run has it open, or it was written by another release of t7bridge.
        CorruptError: it is not a journal, or damaged.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._base = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._base.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._base.execute("PRAGMA synchronous = FULL")
            self._base.execute("BEGIN EXCLUSIVE")
            columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
            self._base.execute(f"CREATE TABLE IF NOT EXISTS files ({columns})")
            self._base.execute("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
            self._base.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise T7BridgeError(
                    "another run is at work in this folder", file=path, hint="Wait for it, or end it."
                ) from error
            raise T7BridgeError(f"the journal cannot be opened: {error}", file=path) from error
        except sqlite3.DatabaseError as error:
            raise CorruptError(
                f"is not a journal of t7bridge: {error}", file=path, hint="Convert into another folder."
            ) from error
        schema = self.fact("schema")
        if schema not in (None, SCHEMA):
            self.close()
            raise T7BridgeError(
                f"the journal has layout {schema}, and this release supports {SCHEMA}",
                file=path,
                hint="Use the release that began the zoo, or another folder.",
            )
        self.set_facts({"schema": SCHEMA})

    def close(self) -> None:
        """Close the file, so that another run may begin."""
        self._base.close()

    def fact(self, name: str) -> Any:
        """Return a fact about the zoo as a whole, `None` if it is unknown."""
        try:
            found = self._base.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        except sqlite3.DatabaseError as error:
            raise CorruptError(f"the journal is damaged: {error}", file=self.path) from error
        return json.loads(found[0]) if found else None

    def set_facts(self, facts: dict[str, Any]) -> None:
        """Store facts about the zoo as a whole."""
        rows = [(name, json.dumps(value)) for name, value in facts.items()]
        self._change("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def rows(self) -> Iterator[JournalRow]:
        """Yield all files, by name."""
        try:
            for found in self._base.execute(f"SELECT {', '.join(_NAMES)} FROM files ORDER BY name"):
                values = list(found)
                for place in _TEXTS:
                    values[place] = _unpack(values[place])
                for place in _LISTS:
                    values[place] = json.loads(values[place]) if values[place] != _NOTHING else []
                for place in _FLAGS:
                    values[place] = bool(values[place])
                yield JournalRow(*values)
        except sqlite3.DatabaseError as error:
            raise CorruptError(f"the journal is damaged: {error}", file=self.path) from error

    def plan(self, rows: Sequence[JournalRow]) -> None:
        """Insert new files, which get their numbers, and update existing ones."""
        (last,) = self._base.execute("SELECT coalesce(max(number), 0) FROM files").fetchone()
        for row in rows:
            if not row.number:
                row.number = last = last + 1
        places = ", ".join("?" * len(_NAMES))
        self._change(f"INSERT OR REPLACE INTO files VALUES ({places})", _lines(rows, _NAMES))

    def record(self, rows: Iterable[JournalRow]) -> None:
        """Record the outcomes of planned files; their outputs must be on the disk before."""
        changes = ", ".join(f"{name} = ?" for name in _RESULT_NAMES[:-1])
        self._change(f"UPDATE files SET {changes} WHERE {_RESULT_NAMES[-1]} = ?", _lines(rows, _RESULT_NAMES))

    def forget(self) -> None:
        """Remove all files from the journal."""
        self._change("DELETE FROM files", [()])

    def _change(self, statement: str, values: list[Any]) -> None:
        if not values:
            return
        try:
            self._base.execute("BEGIN IMMEDIATE")
            self._base.executemany(statement, values)
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
            raise T7BridgeError(f"the journal cannot be written: {error}", file=self.path) from error
