"""Report on an output folder, as data and as files: `report.json`, `report.csv`, and `report.html` with its pages.

The files hold no times and no dates: the same zoo has the same reports, byte for byte, however often it was
interrupted. Files of a zoo are read from its journal in batches, and written as they come.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from operator import attrgetter
from typing import Any

from attrs import field

from ..data import define
from ..errors import TargetExistsError
from ..report import Printed
from ..text import clean, counted
from .groups import Group, Groups, Names
from .journal import BATCH, DONE, FAILED, FOREIGN, NOTHING, PLANNED, STATUSES, Journal, Record, Rows, batches
from .names import PAGES
from .places import LEFT_OUT, Folder, head_if_exists
from .workers import NO_PICTURE, picture_of

COLUMNS = {
    "name": "path of the input in the zoo",
    "status": "done, failed, nothing (to write), foreign (not a model), or planned (not yet converted)",
    "output": "path of the output in this folder",
    "mode": "how it was converted",
    "bytes": "size of the input",
    "output_bytes": "size of the output",
    "tensors": "tensors in the output",
    "kind": "class of the error",
    "reason": "why it failed, or a description of a file that is skipped",
    "hash": "SHA-256 of the input; equal for files of equal content",
    "output_hash": "SHA-256 of the output; of a folder: of the names and hashes in it",
    "proof": "with --prove: agrees, differs, or not recorded",
}
"""The columns of `report.csv`, and the fields of a file in `report.json`."""
_FORMULA = frozenset("=+-@\t\r")
"""Characters with which a cell that a spreadsheet evaluates begins (OWASP, "CSV Injection")."""
_columns = attrgetter(*COLUMNS)
_page_columns = attrgetter("name", "status", "output", "bytes", "output_bytes", "tensors", "mode", "kind", "reason")

_SIGNS = {
    "report.html": b"<title>t7bridge zoo</title>",
    "report.json": b'{\n "version": ',
    "report.csv": ",".join(list(COLUMNS)[:3]).encode(),
}
"""What each file of a report, of any release, has in its first `_SIGN_BYTES` bytes."""
_SIGN_BYTES = 1000
PAGE_ROWS = BATCH
"""Rows of a page: as many as one script loads and shows without a pause."""
_SHOWN = 20
"""Most failures, layers and warnings that are printed."""
_TWINS_LINES = 5
"""Most contents of equal files that are printed."""
_TWINS_SHOWN = 3
"""Names of equal files in a line."""
_LISTED = 200
"""Most groups of each kind in the report's files."""
_MOST_CLASSES = 10_000
"""Classes whose layers are counted. The names in hostile files could all be different."""


@define
class Layer:
    """A class without a PyTorch equivalent.

    Attributes:
        class_name: its full name.
        files: number of files that have it.
        times: number of its layers.
    """

    class_name: str
    files: int = 0
    times: int = 0


@define
class ZooReport(Printed):
    """Report on an output folder.

    Attributes:
        output: the folder.
        rows: every file of the zoo, by name: a sequence that reads them from a copy of the journal.
        options: the options on which the outputs depend.
        version: of t7bridge.
        counts: number of files by status.
        bytes_before: total size of the converted inputs.
        bytes_after: total size of their outputs.
        failures: errors, the most frequent first: `kind`, `message`, and `names` of the files (`count` and `first`).
        warnings: warnings about converted files, likewise.
        losses: number of converted files with losses, by kind: `type`, `precision` or `sharing`.
        proofs: number of files by the result of `prove`.
        layers: classes without a PyTorch equivalent, the most frequent first.
        twins: inputs of equal content, the most frequent first: number of files, and the first names.
        twin_files: number of all inputs that have the content of another.
        left_out: number of files and folders in the sources that are not inputs: hidden ones, broken links, ….
        seconds: duration of the conversion in this run.
        now: number of files finished in this run, by status.
    """

    output: str
    rows: Sequence[Record] = field(factory=list, repr=False)
    options: dict[str, Any] = field(factory=dict)
    version: str = ""
    counts: dict[str, int] = field(factory=dict)
    bytes_before: int = 0
    bytes_after: int = 0
    failures: list[Group] = field(factory=list, repr=False)
    warnings: list[Group] = field(factory=list, repr=False)
    losses: dict[str, int] = field(factory=dict)
    proofs: dict[str, int] = field(factory=dict)
    layers: list[Layer] = field(factory=list)
    twins: list[Names] = field(factory=list, repr=False)
    twin_files: int = 0
    left_out: dict[str, int] = field(factory=dict)
    seconds: float = 0.0
    now: dict[str, int] = field(factory=dict)

    @property
    def ok(self) -> bool:
        """Return whether no file failed."""
        return not self.counts.get(FAILED)

    def lines(self) -> Iterator[str]:
        """Yield what went wrong and what is noteworthy, and then the numbers of files."""
        yield from _first_lines(self.failures, "failures", _failure_line)
        yield from _first_lines(self.layers, "layers", _layer_line)
        yield from _first_lines(self.warnings, "warnings", _warning_line)
        yield from self._lines_about_twins()
        if self.losses:
            losses = [f"{_LOSSES[kind]} in {counted(count, 'file')}" for kind, count in self.losses.items()]
            yield f"outputs have {', '.join(losses)}"
        if self.proofs:
            yield "proofs: " + ", ".join(f"{word} in {counted(count, 'file')}" for word, count in self.proofs.items())
        if self.left_out:
            yield f"left out: {left_out_text(self.left_out)}"
        finished = sum(self.now.values())
        # A rate of one file would repeat its time.
        rate = f", {finished / self.seconds:.0f} a second" if finished > 1 and self.seconds else ""
        yield f"{counted(finished, 'file')} in {self.seconds:.1f} s{rate}"
        yield f"{counts_line(self.counts)}; {counted(self.bytes_before, 'byte')} became {self.bytes_after:,}"
        yield f"{self.output}: report.html, report.json, report.csv"

    def _lines_about_twins(self) -> Iterator[str]:
        """Yield the first contents of several files, and the number of all such files if these are not all."""
        shown = self.twins[:_TWINS_LINES]
        yield from map(_twins_line, shown)
        if self.twin_files > sum(twins.count for twins in shown):
            yield counted(self.twin_files, "file has", "files have") + " the content of another"

    def _result(self) -> str:
        """Return the numbers of files by status."""
        counts = ", ".join(f"{count:,} {status}" for status, count in self.counts.items() if count)
        return f"{clean(os.path.basename(self.output))}: {counts or 'no files'}"

    def summary(self) -> dict[str, Any]:
        """Return the report without its rows and without times, as data for JSON: what `report.json` begins with.

        Lists have their first 200 entries only, and groups the number of their files; `failed` counts all.
        """
        return {
            "version": self.version,
            "options": self.options,
            "files": sum(self.counts.values()),
            **self.counts,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "failures": [_failure_data(group) for group in self.failures[:_LISTED]],
            "warnings": [_warning_data(group) for group in self.warnings[:_LISTED]],
            "losses": self.losses,
            "proofs": self.proofs,
            "unmapped_layers": [_layer_data(layer) for layer in self.layers[:_LISTED]],
            "equal_files": self.twin_files,
            "equal": [{"files": twins.count, "names": twins.first} for twins in self.twins],
            "left_out": self.left_out,
        }


def _failure_data(group: Group) -> dict[str, Any]:
    return {"kind": group.kind, "message": group.message, "files": group.names.count}


def _warning_data(group: Group) -> dict[str, Any]:
    return {"message": group.message, "files": group.names.count}


def _layer_data(layer: Layer) -> dict[str, Any]:
    return {"class": layer.class_name, "files": layer.files, "times": layer.times}


_LOSSES = {"type": "other types", "precision": "less precision", "sharing": "less sharing"}
"""What outputs have, by the kind of loss in the notes."""


def counts_line(counts: dict[str, int]) -> str:
    """Return the numbers of files by status as a part of a sentence: done, failed and skipped always, others if any."""
    parts = [f"{counts.get(DONE, 0):,} done", f"{counts.get(FAILED, 0):,} failed"]
    if counts.get(NOTHING):
        parts.append(f"{counts[NOTHING]:,} with nothing to write")
    parts.append(f"{counts.get(FOREIGN, 0):,} skipped (not a model)")
    if counts.get(PLANNED):
        parts.append(f"{counts[PLANNED]:,} still to do")
    return ", ".join(parts)


def left_out_text(left_out: dict[str, int]) -> str:
    """Return how many files and folders in the sources are not inputs, as a part of a sentence.

    Args:
        left_out: their numbers, by the keys of `LEFT_OUT`.
    """
    return ", ".join(f"{count:,} {_left_out_name(key, count)}" for key, count in left_out.items())


def _left_out_name(key: str, count: int) -> str:
    """Return what so many files or folders that are not inputs are called, by a key of `LEFT_OUT`."""
    one, several = LEFT_OUT[key]
    return one if count == 1 else several


def _first_lines(items: Sequence[Any], what: str, line_of: Callable[[Any], str]) -> Iterator[str]:
    """Yield the lines of the first items, and how many more there are.

    Args:
        items: the items.
        what: what several are called.
        line_of: returns the line of one.
    """
    yield from map(line_of, items[:_SHOWN])
    if len(items) > _SHOWN:
        yield f"and {counted(len(items) - _SHOWN, 'more kind', 'more kinds')} of {what}"


def _failure_line(group: Group) -> str:
    """Return the line about files that failed for the same reason."""
    return f"{counted(group.names.count, 'file')} failed: {group.names}: {group.message} ({group.kind})"


def _warning_line(group: Group) -> str:
    """Return the line about files with the same warning."""
    return f"{counted(group.names.count, 'file')} with a warning: {group.message} ({group.names})"


def _layer_line(layer: Layer) -> str:
    """Return the line about a class without a PyTorch equivalent."""
    return f"no mapping for {layer.class_name}: {counted(layer.times, 'layer')} in {counted(layer.files, 'file')}"


def _twins_line(twins: Names) -> str:
    """Return the line about files of equal content."""
    return f"{twins.count:,} files are equal: {twins.listed(_TWINS_SHOWN)}"


# Summary of a journal


def summarize(output: str, journal: Journal, options: dict[str, Any], left_out: dict[str, int]) -> ZooReport:
    """Summarize the files of a journal.

    Args:
        output: path or URL of the output folder.
        journal: a private copy, from which the report will read its rows.
        options: those on which the outputs depend.
        left_out: number of what is not an input, by the keys of `LEFT_OUT`.
    """
    report = ZooReport(output, Rows(journal), options)
    counts, report.bytes_before, report.bytes_after = journal.totals()
    report.counts = {status: counts[status] for status in STATUSES}
    report.proofs = dict(sorted(journal.proofs().items()))
    report.left_out = {key: left_out[key] for key in LEFT_OUT if left_out.get(key)}
    report.twins, report.twin_files = journal.find_twins(_SHOWN)
    _add_noteworthy(report, journal.noteworthy())
    return report


def _add_noteworthy(report: ZooReport, rows: Iterable[Record]) -> None:
    """Set the failures, warnings, losses and layers of a report.

    Args:
        report: the report.
        rows: the files that have any of these.
    """
    failures = Groups()
    warnings = Groups()
    losses: Counter[str] = Counter()
    layers: dict[str, Layer] = {}
    for row in rows:
        if row.status == FAILED:
            failures.add(row.message, row.name, row.kind)
        if row.status == DONE:
            losses.update(_losses(row))
        messages = [message for level, _, message, *_ in row.notes if level == "warning"]
        # A file is in a group once, however many layers say the same.
        for message in dict.fromkeys(messages):
            warnings.add(message, row.name)
        _count_layers(layers, row)
    report.failures = list(failures)
    report.warnings = list(warnings)
    report.losses = dict(sorted(losses.items()))
    report.layers = sorted(layers.values(), key=lambda layer: (-layer.files, layer.class_name))


def _losses(row: Record) -> list[str]:
    """Return the kinds of losses in an output."""
    losses: set[str] = set()
    for _, _, _, *loss in row.notes:
        losses.update(loss)
    # A note without a loss has an empty one; in journals of older releases notes have none.
    return sorted(losses - {""})


def _count_layers(layers: dict[str, Layer], row: Record) -> None:
    """Count the layers of a file that have no PyTorch equivalent, by class.

    Args:
        layers: the classes counted so far, by name; changed in place. At most `_MOST_CLASSES` are counted.
        row: the file; of its layers it has path, class and reason.
    """
    for class_name, times in Counter(class_name for _, class_name, _ in row.layers).items():
        if class_name not in layers and len(layers) < _MOST_CLASSES:
            layers[class_name] = Layer(class_name)
        if class_name in layers:
            layers[class_name].files += 1
            layers[class_name].times += times


# The files


def check_reports(folder: Folder) -> None:
    """Refuse a folder in which files that no zoo has written have the names of reports.

    Raises:
        TargetExistsError: there is such a file.
    """
    for name, sign in _SIGNS.items():
        if not all(_has_sign(place, sign) for place in folder.files(name)):
            raise TargetExistsError(
                f"{name} exists already, and was not made by a zoo",
                file=folder.place,
                hint="Give another folder, or --force (force=True) to replace it.",
            )


def _has_sign(place: str, sign: bytes) -> bool:
    """Return whether the file at a path or URL has a sign of reports; an unreadable one has none."""
    try:
        head = head_if_exists(place, _SIGN_BYTES)
    except OSError:
        return False
    return head is not None and sign in head


def write_reports(report: ZooReport, folder: Folder) -> None:
    """Write the report's files next to the outputs: `report.json`, `report.csv`, `report.html` and the other pages."""
    summary = report.summary()
    pages = _write_rows(report, summary, folder)
    data = {
        **summary,
        "failures": [_group_for_page(group) for group in report.failures[:_LISTED]],
        "warnings": [_group_for_page(group) for group in report.warnings[:_LISTED]],
        "left_out": [[count, _left_out_name(key, count)] for key, count in report.left_out.items()],
        "pages": pages.counts,
        "rows": pages.first_rows,
    }
    template = files(__package__).joinpath("report.html").read_text("utf-8")
    # Names of files are data, and must not end the script that contains them.
    page = template.replace("/*DATA*/", _json(data).replace("<", "\\u003c"), 1)
    with folder.writer("report.html") as file:
        file.write(page.encode("utf-8", "backslashreplace"))
    # Pages of an earlier run with more files are removed.
    number = 1 if _has_one_page(report) else len(pages.counts) + 1
    while folder.remove_file(_page_name(number)):
        number += 1


def _has_one_page(report: ZooReport) -> bool:
    """Return whether `report.html` has all rows itself, without files for pages."""
    return sum(report.counts.values()) <= PAGE_ROWS


@define
class _Pages:
    """What `report.html` has of the rows itself: it loads those of other pages when they are shown.

    Attributes:
        counts: for each page the numbers of its rows by what these are filtered by, see `_facts`.
        first_rows: the rows of the first page.
    """

    counts: list[dict[str, int]] = field(factory=list)
    first_rows: list[list[Any]] = field(factory=list)


def _write_rows(report: ZooReport, summary: dict[str, Any], folder: Folder) -> _Pages:
    """Write `report.json`, `report.csv`, and the rows of each page, if there are several, into a file of its own.

    Rows are read from the journal and written in batches of one page.

    Args:
        report: that of the run.
        summary: what `report.json` begins with, in front of its entry `table`.
        folder: receives the files.
    """
    assert isinstance(report.rows, Rows)  # as `summarize` makes them
    pages = _Pages()
    with folder.writer("report.json") as json_file, folder.writer("report.csv") as csv_file:
        # The table is the last entry of the object, and has a line for each file.
        opened_object = json.dumps(summary, indent=1).removesuffix("\n}")
        json_file.write(f'{opened_object},\n "table": ['.encode())
        csv_file.write(",".join(COLUMNS).encode() + b"\n")
        for number, batch in enumerate(batches(report.rows.journal.with_twins(), PAGE_ROWS), 1):
            records = [record for record, _ in batch]
            lines = ",\n".join(json.dumps(_as_data(record)) for record in records)
            separator = "\n" if number == 1 else ",\n"
            json_file.write(f"{separator}{lines}".encode())
            csv_file.write(as_csv(records).encode("utf-8", "backslashreplace"))
            rows = [_page_row(report, record, twins) for record, twins in batch]
            pages.counts.append(dict(Counter(map(_facts, rows))))
            if number == 1:
                pages.first_rows = rows
            if not _has_one_page(report):
                _write_page(folder, number, rows)
        json_file.write(b"\n ]\n}\n")
    return pages


def _write_page(folder: Folder, number: int, rows: list[list[Any]]) -> None:
    """Write the rows of a page, numbered from 1, as a script.

    It calls a function of `report.html` with them: a page that was opened from a disk may load scripts, but not read
    files.
    """
    script = f"zooRows({number},{_json(rows)});\n"
    folder.write_if_changed(_page_name(number), script.encode())


def _page_name(number: int) -> str:
    """Return the name of the file with the rows of a page, from 1."""
    return f"{PAGES}/{number:04}.js"


def _json(data: Any) -> str:
    """Return data as JSON without spaces."""
    return json.dumps(data, separators=(",", ":"))


def _as_data(row: Record) -> dict[str, Any]:
    """Return a file as an entry of the table in `report.json`."""
    data: dict[str, Any] = dict(zip(COLUMNS, _columns(row)))
    data["notes"] = [dict(zip(("level", "path", "message", "loss"), note)) for note in row.notes]
    data["layers"] = [{"path": path, "class": name, "reason": why} for path, name, why in row.layers]
    return data


def as_csv(rows: Iterable[Record]) -> str:
    """Return files as lines of a table for spreadsheets, with the columns of `COLUMNS`."""

    def cell(value: Any) -> Any:
        """Return a value as a cell that a spreadsheet shows as it is."""
        # A spreadsheet evaluates cells that look like a formula, and a file can be named like one: a quote makes a
        # cell text.
        if isinstance(value, str) and value[:1] in _FORMULA:
            return f"'{value}"
        return value

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(map(cell, _columns(row)) for row in rows)
    return text.getvalue()


def _group_for_page(group: Group) -> dict[str, Any]:
    """Return a group as data for the page, which shows the names of its first files."""
    return {
        "kind": group.kind,
        "message": group.message,
        "files": group.names.count,
        "names": group.names.first,
    }


def _page_row(report: ZooReport, row: Record, twins: Names | None) -> list[Any]:
    """Return a file as a row of the page: its order is that of `ROW` in `report.html`.

    Args:
        report: that of the page.
        row: the file.
        twins: the files with the same content; `None` for a file without twins.
    """
    losses = _losses(row) if row.status == DONE else []
    equal = [twins.count, twins.first[0]] if twins else 0  # the number of files, and the first of them
    return [*_page_columns(row), _shown_notes(row), _picture(report, row), row.proof, losses, equal]


def _facts(row: list[Any]) -> str:
    """Return all that the page filters a row by, as one text. The script in `report.html` makes the same texts.

    The numbers of rows by these texts tell which pages have rows that a filter keeps, before they are loaded.

    Args:
        row: the result of `_page_row`.
    """
    _, status, *_, proof, losses, equal = row
    return f"{status}|{proof}|{' '.join(losses)}|{'equal' if equal else ''}"


def _picture(report: ZooReport, row: Record) -> str:
    """Return the path of a file's picture in the folder; empty if it has none."""
    if row.status != DONE or not report.options.get("draw"):
        return ""
    if any(message.startswith(NO_PICTURE) for _, _, message, *_ in row.notes):
        return ""
    return picture_of(row.output)


def _shown_notes(row: Record) -> str:
    """Return the notes of a file as lines of text."""
    lines: list[str] = []
    for level, path, message, *_ in row.notes:
        lines.append(f"{level}: {path}: {message}" if path else f"{level}: {message}")
    return "\n".join(lines)
