"""The record of a file, and the journal of all: an SQLite file in the output folder, written by the planner alone.

A file is marked as done only after its bytes are on the disk, so that the journal is correct even after a power cut.
The plan is one transaction before the first output, so that every output of an interrupted run is known as its own.
Outcomes are written in groups, each a transaction; a killed run loses its last group, and those files are simply
converted again.

No function holds the records of all files: a zoo may have millions. They are read and written in batches by name.

Names of files need not be valid UTF-8: SQLite has such a name as bytes, see `_text_for_sqlite`.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar, overload

from attrs import field, fields

from ..data import define
from ..errors import CorruptError, ModelError, T7BridgeError
from .groups import FIRST, Names

PLANNED, DONE, FAILED, NOTHING, FOREIGN = "planned", "done", "failed", "nothing", "foreign"
STATUSES = (DONE, FAILED, NOTHING, FOREIGN, PLANNED)
"""Every status of a file that is among the sources, in the order of reports."""
GONE = "gone"
PRESENT = f"status != '{GONE}'"
"""The condition of SQL for files that are among the sources."""
NAME = "t7bridge-zoo.sqlite"
SCHEMA = 1
BATCH = 1000
"""Records that are in memory together."""
_BUSY_SECONDS = 0.2
"""How long to wait for a journal that another process has open, before the error that says so."""
_CACHE = -8192
"""Pages of a database that SQLite keeps in memory: 8 MiB; negative numbers are KiB."""

Item = TypeVar("Item")


def batches(items: Iterable[Item], size: int = BATCH) -> Iterator[list[Item]]:
    """Yield items in lists of a limited length."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


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
        status: `planned`, `done`, `failed`, `nothing` for a file in which there is nothing to write, `foreign` for one
            that is not a model, or `gone` if it no longer exists.
        kind: class of the error.
        message: the error, without position.
        reason: the full error, or a description of a file that is skipped.
        hash: SHA-256 of the input; empty if it could not be read.
        output_bytes: size of the output.
        output_hash: SHA-256 of the output; of a folder, of the names and hashes in it.
        mode: how it was converted, as in `Report`.
        tensors: number of tensors in the output.
        notes: level, path, message and loss of each note; journals of older versions have no loss.
        layers: path, class and reason of each layer without a PyTorch equivalent.
        seconds: time taken.
        version: of t7bridge.
        proof: whether the layers compute what is recorded in the file: `agrees`, `differs` or `not recorded`; empty if
            that was not asked for.
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
    # New columns come last: SQLite adds them there to the journals of older releases.
    proof: str = ""

    def fail(self, kind: str, message: str, reason: str = "") -> Record:
        """Mark the file as failed; return it."""
        self.status = FAILED
        self.kind = kind
        self.message = message
        self.reason = reason or message
        return self

    def copy_values_of(self, other: Record) -> Record:
        """Copy all values from the copy that a worker process has sent back with the outcome; return this record."""
        for name in _NAMES:
            setattr(self, name, getattr(other, name))
        return self


_NAMES = tuple(column.name for column in fields(Record))
_values_of = attrgetter(*_NAMES)


def to_line(records: Iterable[Record]) -> str:
    """Return records as one line of JSON, for another process: files to convert, or their outcomes."""
    return json.dumps(list(map(_values_of, records)))


def from_line(line: str | bytes) -> list[Record]:
    """Return the records of a line of `to_line`."""
    return [Record(*values) for values in json.loads(line)]


# Types of SQL for those of Python that are no text.
_SQL = {"int": "INTEGER", "bool": "INTEGER", "float": "REAL"}
_COLUMNS = {column.name: f"{_SQL.get(str(column.type), 'TEXT')} NOT NULL" for column in fields(Record)}
_COLUMNS |= {"number": "INTEGER PRIMARY KEY", "name": "TEXT UNIQUE NOT NULL"}
_TEXT_COLUMNS = tuple(map(_NAMES.index, ("name", "place", "output", "reason", "message", "kind")))
"""Numbers of the columns with text that may not be UTF-8."""
_LIST_COLUMNS = tuple(map(_NAMES.index, ("notes", "layers")))
"""Numbers of the columns with lists, as JSON."""
_FLAG_COLUMNS = tuple(map(_NAMES.index, ("claimed", "ours")))
"""Numbers of the columns with truth values, which SQLite has as integers."""
# Replaces the record of the same number, or of the same name.
_STORE = f"INSERT OR REPLACE INTO files VALUES ({', '.join('?' * len(_NAMES))})"
_EMPTY_LIST = "[]"
"""An empty list as JSON: what most records have, recognized without parsing it."""


def _text_for_sqlite(text: str) -> str | bytes:
    """Return text as SQLite can hold it: as it is, or as bytes if it has surrogates, which are not valid UTF-8.

    Python puts surrogates into the names of files that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        # Those of `surrogateescape` become the bytes of the file's name again. Others come from JSON and from names in
        # pickles.
        return text.encode("utf-8", "surrogateescape" if _is_escaped(text) else "surrogatepass")
    return text


def _parameter(value: Any) -> Any:
    """Return a parameter of a query as SQLite can hold it, see `_text_for_sqlite`."""
    return _text_for_sqlite(value) if isinstance(value, str) else value


def _is_escaped(text: str) -> bool:
    """Return whether all surrogates in a text are those of `surrogateescape`: U+DC80 to U+DCFF."""
    surrogates = [ord(char) for char in text if 0xD800 <= ord(char) <= 0xDFFF]
    return all(0xDC80 <= surrogate <= 0xDCFF for surrogate in surrogates)


def _row_of(record: Record) -> list[Any]:
    """Return the values of a record for the columns of `files`."""
    values = list(_values_of(record))
    for column in _TEXT_COLUMNS:
        values[column] = _text_for_sqlite(values[column])
    for column in _LIST_COLUMNS:
        values[column] = json.dumps(values[column]) if values[column] else _EMPTY_LIST
    return values


def _text_from_sqlite(value: str | bytes) -> str:
    """Return the text that `_text_for_sqlite` stored; a surrogate that is none of `surrogateescape` becomes three."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")


def _record_of(row: Sequence[Any]) -> Record:
    """Return the record of a row of `files`."""
    values = list(row)
    for column in _TEXT_COLUMNS:
        values[column] = _text_from_sqlite(values[column])
    for column in _LIST_COLUMNS:
        values[column] = json.loads(values[column]) if values[column] != _EMPTY_LIST else []
    for column in _FLAG_COLUMNS:
        values[column] = bool(values[column])
    return Record(*values)


def _input(name: str | bytes, place: str | bytes, size: int, stamp: str, claimed: int) -> Record:
    """Return an input as it is in the sources now, by the columns of `inputs`."""
    return Record(
        name=_text_from_sqlite(name), place=_text_from_sqlite(place), bytes=size, stamp=stamp, claimed=bool(claimed)
    )


_FIELDS = ", ".join(f"files.{name}" for name in _NAMES)
"""The columns of a record in a query."""
_TABLES = """
CREATE TABLE IF NOT EXISTS files ({columns});
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_TEMPORARY_TABLES = """
PRAGMA temp.cache_size = {cache};
CREATE TEMP TABLE inputs (
    name TEXT PRIMARY KEY, place TEXT NOT NULL, bytes INTEGER NOT NULL, stamp TEXT NOT NULL, claimed INTEGER NOT NULL,
    format TEXT, reason TEXT
) WITHOUT ROWID;
CREATE TEMP TABLE identities (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TEMP TABLE todo (position INTEGER PRIMARY KEY, number INTEGER NOT NULL);
"""
"""`inputs` are the files in the sources as they are now; those that are new, or to be done again, have a `format`.
`identities` are theirs on the disk, if these were asked for; `todo` the numbers of those to convert, in this order."""


@define(frozen=True)
class Mark:
    """The mark of a *fresh* input: one that is new, or to be converted again.

    Attributes:
        name: of the input.
        format: the likely format of its content; empty for a file that is not a model.
        reason: what it is instead.
    """

    name: str
    format: str = ""
    reason: str = ""


@define
class Fresh:
    """A fresh input, with its mark and what the journal knows of earlier runs.

    Attributes:
        record: the input as it is in the sources now, without what the journal knows about it.
        format: the likely format of its content; empty for a file that is not a model.
        reason: what it is instead.
        number: of its line in the journal; 0 for a new one.
        output: path of its output in earlier runs; empty for a new one.
        ours: whether an earlier run may have written that output; false for a new one.
    """

    record: Record
    format: str
    reason: str
    number: int
    output: str
    ours: bool


class Journal:
    """The journal of an output folder, opened by one run at a time.

    Args:
        path: of the file; created if missing. Empty for a private journal, which is gone when it is closed.

    Raises:
        T7BridgeError: another run has it open, or it was written by another release of t7bridge.
        CorruptError: it is not a journal, or damaged.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.RLock()
        """Held by the thread that uses the database: outcomes are recorded by another one than plans."""
        try:
            self._open()
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
        if not path:
            # Nobody closes a private journal: a report reads its rows from it for as long as it exists.
            weakref.finalize(self, self._database.close)
        self._check_schema()

    def _open(self) -> None:
        """Open or create the database, take it for this run alone, and make its tables.

        Raises:
            sqlite3.OperationalError: another run has it open (`locked`), or it cannot be opened.
            sqlite3.DatabaseError: it is no database.
        """
        # Transactions begin where we say (`isolation_level`), and `_lock` keeps threads apart (`check_same_thread`).
        self._database = sqlite3.connect(
            self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._database.execute("PRAGMA synchronous = FULL")  # a transaction survives a power cut
        self._database.execute(f"PRAGMA cache_size = {_CACHE}")
        # A lock that is held until the file is closed is taken here, so that a second run fails at once.
        self._database.execute("BEGIN EXCLUSIVE")
        self._make_tables()
        self._database.execute("COMMIT")
        self._database.executescript(_TEMPORARY_TABLES.format(cache=_CACHE))

    def _check_schema(self) -> None:
        """Note in a new journal which layout it has; close and refuse one that has another than this release.

        Raises:
            T7BridgeError: it has another layout.
        """
        schema = self.fact("schema")
        if schema is None:  # it is new
            with self.transaction():
                self.set_facts({"schema": SCHEMA})
        elif schema != SCHEMA:
            self.close()
            raise T7BridgeError(
                f"the journal has layout {schema}, and this release supports {SCHEMA}",
                file=self.path,
                hint="Use the release that began the zoo, or another folder.",
            )

    def _make_tables(self) -> None:
        """Make the tables of a new journal, and the columns that a journal of an older release does not have."""
        columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
        for statement in _TABLES.format(columns=columns).split(";"):
            self._database.execute(statement)
        existing = {name for _, name, *_ in self._database.execute("PRAGMA table_info(files)")}
        for name, kind in _COLUMNS.items():
            if name not in existing:
                # All columns that were added so far are texts.
                self._database.execute(f"ALTER TABLE files ADD COLUMN {name} {kind} DEFAULT ''")

    def close(self) -> None:
        """Close the file, so that another run may begin."""
        self._database.close()

    def copy(self) -> Journal:
        """Return a private journal with the same records, as they are now."""
        copy = Journal("")
        copy.path = self.path
        with self._reading():
            self._database.backup(copy._database)
        return copy

    # Facts and records

    def fact(self, name: str) -> Any:
        """Return a fact about the zoo as a whole, as `set_facts` stored it; `None` if it is unknown."""
        with self._reading():
            row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        (value,) = row
        return json.loads(value)

    def set_facts(self, facts: dict[str, Any]) -> None:
        """Store facts about the zoo as a whole, by name, as data for JSON: options, sources, release and layout."""
        lines = [(name, json.dumps(value)) for name, value in facts.items()]
        self._database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", lines)

    def query(self, text: str, *values: Any) -> list[Any]:
        """Return all rows of a query, which must be few, as they are in memory together; a text may be bytes in them.

        Args:
            text: the query, in SQL.
            values: for each `?` in it.
        """
        with self._reading():
            return self._database.execute(text, tuple(map(_parameter, values))).fetchall()

    def execute(self, text: str, *values: Any) -> int:
        """Run a statement of SQL, a transaction of its own unless one is open; return how many rows it changed.

        Args:
            text: the statement.
            values: for each `?` in it.
        """
        return self._database.execute(text, tuple(map(_parameter, values))).rowcount

    def records(self, condition: str = "TRUE") -> Iterator[Record]:
        """Yield the files that meet a condition of SQL, by name."""
        for _, *row in self._by_name(_FIELDS, "files", condition):
            yield _record_of(row)

    def records_at(self, start: int, count: int, condition: str = "TRUE") -> list[Record]:
        """Return at most `count` of the files that meet a condition, by name, from the 0-based place `start` on."""
        text = f"SELECT {_FIELDS} FROM files WHERE {condition} ORDER BY name LIMIT ? OFFSET ?"
        return [_record_of(row) for row in self.query(text, count, start)]

    def _by_name(
        self, columns: str, table: str, condition: str = "TRUE", joined: str = "", values: Iterable[str] = ()
    ) -> Iterator[Any]:
        """Yield rows of a table by name, in batches: a cursor that stays open would see changes of its table.

        Args:
            columns: what is asked for; the name comes before.
            table: the table that has the names.
            condition: of the rows, in SQL.
            joined: the clause of SQL that joins other tables.
            values: of the condition, for each `?` in it.
        """
        # Names are the keys of these tables: each batch begins behind the last name of the one before.
        select = f"SELECT {table}.name, {columns} FROM {table} {joined}"
        text = f"{select} WHERE {table}.name > ? AND {condition} ORDER BY {table}.name LIMIT {BATCH}"
        last_name: str | bytes = ""
        while rows := self.query(text, last_name, *values):
            yield from rows
            last_name = rows[-1][0]

    def record(self, records: Iterable[Record]) -> None:
        """Record the outcomes of planned files; their outputs must be on the disk before."""
        with self.transaction():
            self.store(records)

    def store(self, records: Iterable[Record]) -> None:
        """Store records in an open transaction; those without a number get the next ones, in place."""
        (last_number,) = self._database.execute("SELECT coalesce(max(number), 0) FROM files").fetchone()
        lines: list[list[Any]] = []
        for record in records:
            if not record.number:
                last_number += 1
                record.number = last_number
            lines.append(_row_of(record))
        self._database.executemany(_STORE, lines)

    def is_empty(self) -> bool:
        """Return whether there is no record."""
        return not self.query("SELECT 1 FROM files LIMIT 1")

    def clear(self) -> None:
        """Remove all records, in an open transaction."""
        self._database.execute("DELETE FROM files")

    # Inputs and plan: in an open transaction

    def list_inputs(self, inputs: Iterable[Record]) -> None:
        """Fill the table `inputs` with the files that are in the sources now.

        Args:
            inputs: as `find_inputs` yields them.

        Raises:
            ModelError: two different files have the same name.
        """
        for batch in batches(inputs):
            lines = [
                (_text_for_sqlite(item.name), _text_for_sqlite(item.place), item.bytes, item.stamp, item.claimed)
                for item in batch
            ]
            # Of inputs of one name the first stays.
            insert = "INSERT OR IGNORE INTO inputs (name, place, bytes, stamp, claimed) VALUES (?, ?, ?, ?, ?)"
            added_count = self._database.executemany(insert, lines).rowcount
            if added_count < len(lines):
                self._check_same_places(batch)

    def _check_same_places(self, inputs: list[Record]) -> None:
        """Refuse different files with one name; the same file may be listed by several sources.

        Args:
            inputs: some of which are not in the table `inputs`, as their names were there already.

        Raises:
            ModelError: another place than that of an input is in the table under its name.
        """
        for item in inputs:
            ((place,),) = self.query("SELECT place FROM inputs WHERE name = ?", item.name)
            if _text_from_sqlite(place) != item.place:
                raise ModelError(
                    f"two inputs have the name {item.name}: {_text_from_sqlite(place)} and {item.place}",
                    hint="Convert them into two folders, or put them into one tree first.",
                )

    def inputs(self) -> Iterator[tuple[Record, Record | None]]:
        """Yield each input as it is in the sources now, by name, and its record in the journal; `None` if it is new."""
        columns = f"inputs.place, inputs.bytes, inputs.stamp, inputs.claimed, {_FIELDS}"
        joined = "LEFT JOIN files ON files.name = inputs.name"
        for name, place, size, stamp, claimed, *recorded in self._by_name(columns, "inputs", joined=joined):
            present = _input(name, place, size, stamp, claimed)
            number, *_ = recorded  # without a record, all columns of `files` are null
            yield present, None if number is None else _record_of(recorded)

    def mark_fresh(self, marks: Iterable[Mark]) -> None:
        """Mark inputs as fresh, which `fresh` yields."""
        lines = [(mark.format, mark.reason, _text_for_sqlite(mark.name)) for mark in marks]
        self._database.executemany("UPDATE inputs SET format = ?, reason = ? WHERE name = ?", lines)

    def fresh(self) -> Iterator[Fresh]:
        """Yield the inputs that `mark_fresh` has marked, by name.

        Records may be stored meanwhile: those of inputs that were yielded already change nothing here.
        """
        of_input = "inputs.place, inputs.bytes, inputs.stamp, inputs.claimed"
        columns = f"{of_input}, inputs.format, inputs.reason, files.number, files.output, files.ours"
        joined = "LEFT JOIN files ON files.name = inputs.name"
        is_marked = "format IS NOT NULL"  # a mark gives a format, if only an empty one
        rows = self._by_name(columns, "inputs", is_marked, joined)
        for name, place, size, stamp, claimed, kind, reason, number, output, ours in rows:
            # A new input has no line in `files`, whose columns are null then. Numbers of lines begin at 1.
            yield Fresh(
                record=_input(name, place, size, stamp, claimed),  # decodes the name and place
                format=kind,
                reason=reason,  # our own words, which need no decoding
                number=number or 0,
                output=_text_from_sqlite(output or ""),
                ours=bool(ours),
            )

    def outputs(self, condition: str = "TRUE") -> Iterator[str]:
        """Yield the outputs of the files that meet a condition of SQL, by the names of the inputs."""
        for _, output in self._by_name("files.output", "files", f"output != '' AND {condition}"):
            yield _text_from_sqlite(output)

    def add_identities(self, keys: Iterable[str]) -> None:
        """Add identities of inputs on the disk to those of `has_identity`."""
        self._database.executemany(
            "INSERT OR IGNORE INTO identities VALUES (?)", [(_text_for_sqlite(key),) for key in keys]
        )

    def has_identity(self, key: str) -> bool:
        """Return whether a file on the disk is an input, by its identity."""
        return bool(self.query("SELECT 1 FROM identities WHERE key = ?", key))

    def mark_gone(self) -> Names:
        """Mark files that are not among the inputs as gone; return those that were not marked before."""
        condition = f"status != '{GONE}' AND name NOT IN (SELECT name FROM inputs)"
        first = self.query(f"SELECT name FROM files WHERE {condition} ORDER BY name LIMIT {FIRST}")
        count = self.execute(f"UPDATE files SET status = '{GONE}' WHERE {condition}")
        return Names(count, [_text_from_sqlite(name) for (name,) in first])

    def plan_work(self, large: int, most: int | None) -> tuple[int, int]:
        """Choose the files that `work` yields; return their number and total size.

        Large files come first, the largest before others, so that no worker is left alone with one at the end. The
        others are in order of name.

        Args:
            large: bytes from which on a file is large.
            most: maximum number of files; `None` for all that are planned.
        """
        order = f"CASE WHEN bytes >= {large} THEN -bytes ELSE 0 END, name"
        limit = -1 if most is None else most  # -1 is no limit for SQLite
        chosen = f"SELECT number FROM files WHERE status = '{PLANNED}' ORDER BY {order} LIMIT {limit}"
        with self.transaction():
            self._database.execute("DELETE FROM todo")
            self._database.execute(f"INSERT INTO todo (number) {chosen}")
        ((count, size),) = self.query("SELECT count(*), coalesce(sum(bytes), 0) FROM todo JOIN files USING (number)")
        return count, size

    def work(self) -> Iterator[Record]:
        """Yield the files that `plan_work` has chosen, in its order. Their outcomes may be recorded meanwhile."""
        text = f"SELECT position, {_FIELDS} FROM todo JOIN files USING (number) WHERE position > ?"
        last_position = 0
        while rows := self.query(f"{text} ORDER BY position LIMIT {BATCH}", last_position):
            for _, *row in rows:
                yield _record_of(row)
            last_position = rows[-1][0]

    # Summaries, of the files that are among the sources

    def totals(self) -> tuple[Counter[str], int, int]:
        """Return the number of files by status, and the total bytes of converted inputs and of their outputs."""
        counts: Counter[str] = Counter()
        before = after = 0
        query = "SELECT status, count(*), sum(bytes), sum(output_bytes) FROM files GROUP BY status"
        for status, count, input_bytes, output_bytes in self.query(query):
            counts[status] = count
            if status == DONE:
                before = input_bytes
                after = output_bytes
        return counts, before, after

    def proofs(self) -> dict[str, int]:
        """Return the number of files by the result of their proof."""
        condition = f"{PRESENT} AND status = '{DONE}' AND proof != ''"
        return dict(self.query(f"SELECT proof, count(*) FROM files WHERE {condition} GROUP BY proof"))

    def noteworthy(self) -> Iterator[Record]:
        """Yield the files that failed, or that have notes, or layers without a PyTorch equivalent."""
        return self.records(
            f"{PRESENT} AND (status = '{FAILED}' OR notes != '{_EMPTY_LIST}' OR layers != '{_EMPTY_LIST}')"
        )

    def find_twins(self, most: int) -> tuple[list[Names], int]:
        """Find inputs of equal content; to be called once, before `with_twins`, which reads what it finds.

        Args:
            most: number of contents to return, those of most files first.

        Returns:
            The files of each content, and the number of all files that have the content of another.
        """
        # Empty files are equal, and nobody needs to know.
        has_content = f"{PRESENT} AND bytes > 0 AND hash != ''"
        # A row for each content of several files.
        self.execute("CREATE TEMP TABLE twins (hash TEXT PRIMARY KEY, files INTEGER, first TEXT) WITHOUT ROWID")
        self.execute(
            "INSERT INTO twins SELECT hash, count(*) AS files, min(name) AS first FROM files "
            f"WHERE {has_content} GROUP BY hash HAVING count(*) > 1"
        )
        most_frequent = self.query(f"SELECT hash FROM twins ORDER BY files DESC, first LIMIT {most}")
        names_by_hash = {checksum: Names() for (checksum,) in most_frequent}
        if names_by_hash:
            placeholders = ", ".join("?" * len(names_by_hash))
            condition = f"{has_content} AND hash IN ({placeholders})"
            for name, checksum in self._by_name("hash", "files", condition, values=names_by_hash):
                names_by_hash[checksum].add(_text_from_sqlite(name))
        ((count_of_all,),) = self.query("SELECT coalesce(sum(files), 0) FROM twins")
        return list(names_by_hash.values()), count_of_all

    def with_twins(self) -> Iterator[tuple[Record, Names | None]]:
        """Yield all files by name, each with a sample of the files of its content; `None` if no other has it."""
        joined = "LEFT JOIN twins ON twins.hash = files.hash AND files.bytes > 0"
        for _, count, first, *row in self._by_name(f"twins.files, twins.first, {_FIELDS}", "files", PRESENT, joined):
            yield _record_of(row), Names(count, [_text_from_sqlite(first)]) if count else None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Hold the lock while the database is read, and make its errors ours."""
        try:
            with self._lock:
                yield
        except sqlite3.OperationalError as error:  # no space for temporary files, say
            raise T7BridgeError(f"the journal cannot be read: {error}", file=self.path) from error
        except sqlite3.DatabaseError as error:
            raise CorruptError(f"the journal is damaged: {error}", file=self.path) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make the changes in the block one transaction: an error in it undoes all of them.

        Raises:
            T7BridgeError: the journal cannot be written.
        """
        with self._lock:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield
                self._database.execute("COMMIT")
            except sqlite3.Error as error:
                raise T7BridgeError(f"the journal cannot be written: {error}", file=self.path) from error
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")


class Rows(Sequence[Record]):
    """The records of a report, by name: a sequence that reads them from a private journal when they are asked for.

    Args:
        journal: the copy, which is theirs alone.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def __len__(self) -> int:
        """Return the number of files that are among the sources."""
        ((count,),) = self.journal.query(f"SELECT count(*) FROM files WHERE {PRESENT}")
        return int(count)

    def __iter__(self) -> Iterator[Record]:
        return self.journal.records(PRESENT)

    @overload
    def __getitem__(self, place: int) -> Record: ...

    @overload
    def __getitem__(self, place: slice) -> list[Record]: ...

    def __getitem__(self, place: int | slice) -> Record | list[Record]:
        """Return the record at an index, or those of a slice, as of a list."""
        if isinstance(place, slice):
            indices = range(*place.indices(len(self)))
            if not indices:
                return []
            # All from the lowest to the highest in one query: SQLite finds a place by passing all rows before it. With
            # a negative step the highest is the first, and the step begins at the end of the list.
            lowest = min(indices[0], indices[-1])
            highest = max(indices[0], indices[-1])
            return self.journal.records_at(lowest, highest - lowest + 1, PRESENT)[:: indices.step]
        index = place if place >= 0 else len(self) + place
        records = self.journal.records_at(index, count=1, condition=PRESENT) if index >= 0 else []
        if not records:
            raise IndexError(place)
        return records[0]
