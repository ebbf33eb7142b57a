"""The record of a file, and the journal of all: an SQLite file in the output folder, written by the planner alone.

A file is marked as done only after its bytes are on the disk, so that the journal is correct even after a power cut.
The plan is one transaction before the first output, so that every output of an interrupted run is known as its own.
Outcomes are written in groups, each a transaction; a killed run loses its last group, and those files are simply
converted again.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from attrs import field, fields

from ..data import define
from ..errors import CorruptError, T7BridgeError

PLANNED, DONE, FAILED, FOREIGN, GONE = "planned", "done", "failed", "foreign", "gone"
NAME = "t7bridge-zoo.sqlite"
SCHEMA = 1
_BUSY_SECONDS = 0.2


@define
class Record:
    """A file of a zoo: an input, its output, and the outcome. One line of the journal.

    Attributes:
        number: of the line; 0 if not yet assigned.
        name: path of the input in the zoo, with `/`: the same wherever the zoo is located.
        place: path or URL of the input.
        bytes: size of the input, 0 if unknown.
        stamp: a value that changes when the input does: a time, a tag of the store; empty if there is none.
        claimed: whether the input is declared to be a model, by its suffix or by being named explicitly.
        output: path of the output in the output folder; empty if there will be none.
        ours: whether no foreign file had that path when it was planned.
        status: `planned`, `done`, `failed`, `foreign` for a file that is not a model, or `gone` if it no longer exists.
        kind: class of the error.
        message: the error in general, without position: the key by which failures are grouped.
        reason: the full error, or a description of a foreign file.
        hash: SHA-256 of the input; empty if it could not be read.
        output_bytes: size of the output.
        output_hash: SHA-256 of the output; of a folder, of the names and hashes in it.
        mode: how it was converted, as in `Report`.
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

    def fail(self, kind: str, message: str, reason: str = "") -> Record:
        """Mark the file as failed; return it."""
        self.status = FAILED
        self.kind = kind
        # Numbers and names differ between files; the text by which failures are grouped must not.
        self.message = re.sub(r"'[^']*'|(?<![A-Za-z0-9])-?\d(?:[\d ,.]*\d)?", "…", message)
        self.reason = reason or message
        return self

    def take(self, other: Record) -> Record:
        """Store the outcome, which another process has put into its copy; return the record."""
        for name in _NAMES:
            setattr(self, name, getattr(other, name))
        return self


_NAMES = tuple(column.name for column in fields(Record))
_values = attrgetter(*_NAMES)


def to_line(records: Iterable[Record]) -> str:
    """Return files as one line of JSON, for another process: work, or its outcome."""
    return json.dumps(list(map(_values, records)))


def from_line(line: str | bytes) -> list[Record]:
    """Parse that line."""
    return [Record(*values) for values in json.loads(line)]


_SQL = {"int": "INTEGER", "bool": "INTEGER", "float": "REAL"}
_COLUMNS = {column.name: f"{_SQL.get(str(column.type), 'TEXT')} NOT NULL" for column in fields(Record)}
_COLUMNS |= {"number": "INTEGER PRIMARY KEY", "name": "TEXT UNIQUE NOT NULL"}
_TEXTS = tuple(map(_NAMES.index, ("name", "place", "output", "reason", "message", "kind")))
"""Places of the columns with text that may not be UTF-8."""
_LISTS = tuple(map(_NAMES.index, ("notes", "layers")))
"""Places of the columns with lists, as JSON."""
_FLAGS = tuple(map(_NAMES.index, ("claimed", "ours")))
"""Places of the columns with truth values, which SQLite has as integers."""
_STORE = f"INSERT OR REPLACE INTO files VALUES ({', '.join('?' * len(_NAMES))})"
_NOTHING = "[]"


def _pack(text: str) -> str | bytes:
    """Encode text for SQLite: names of files that are not UTF-8 become bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # Other surrogates come from JSON and names in pickles.
        return text.encode("utf-8", "surrogateescape" if _is_escaped(text) else "surrogatepass")
    return text


def _is_escaped(text: str) -> bool:
    """Return whether all surrogates in a text are those of `surrogateescape`: U+DC80 to U+DCFF."""
    return all(not 0xD800 <= ord(char) <= 0xDFFF or 0xDC80 <= ord(char) <= 0xDCFF for char in text)


def _line(record: Record) -> list[Any]:
    """Return a record for SQLite."""
    values = list(_values(record))
    for place in _TEXTS:
        values[place] = _pack(values[place])
    for place in _LISTS:
        values[place] = json.dumps(values[place]) if values[place] else _NOTHING
    return values


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
                    "the folder is locked by another run", file=path, hint="Wait for it, or end it."
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
        self.plan((), {"schema": SCHEMA})

    def close(self) -> None:
        """Close the file, so that another run may begin."""
        self._base.close()

    def fact(self, name: str) -> Any:
        """Return a fact about the zoo as a whole, `None` if it is unknown."""
        with self._reading():
            row = self._base.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return json.loads(row[0]) if row else None

    def records(self) -> Iterator[Record]:
        """Yield all files, by name."""
        with self._reading():
            for row in self._base.execute(f"SELECT {', '.join(_NAMES)} FROM files ORDER BY name"):
                values = list(row)
                for place in _TEXTS:
                    values[place] = _unpack(values[place])
                for place in _LISTS:
                    values[place] = json.loads(values[place]) if values[place] != _NOTHING else []
                for place in _FLAGS:
                    values[place] = bool(values[place])
                yield Record(*values)

    def plan(self, records: Sequence[Record], facts: dict[str, Any], *, restart: bool = False) -> None:
        """Store new and changed files and facts about the zoo; new files get their numbers.

        Args:
            records: the files.
            facts: facts by name, as data for JSON.
            restart: whether to remove all others.
        """
        lines = [(name, json.dumps(value)) for name, value in facts.items()]
        with self._changing():
            if restart:
                self._base.execute("DELETE FROM files")
            (last_number,) = self._base.execute("SELECT coalesce(max(number), 0) FROM files").fetchone()
            for record in records:
                if not record.number or restart:
                    last_number += 1
                    record.number = last_number
            self._base.executemany(_STORE, map(_line, records))
            self._base.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", lines)

    def record(self, records: Iterable[Record]) -> None:
        """Record the outcomes of planned files; their outputs must be on the disk before."""
        with self._changing():
            self._base.executemany(_STORE, map(_line, records))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise CorruptError(f"the journal is damaged: {error}", file=self.path) from error

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One transaction: all changes in it, or none."""
        try:
            self._base.execute("BEGIN IMMEDIATE")
            yield
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            raise T7BridgeError(f"the journal cannot be written: {error}", file=self.path) from error
        finally:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
