"""Report on an output folder, as data and as three files: `report.json`, `report.csv` and `report.html`.

The files hold no times and no dates: the same zoo has the same reports, byte for byte, however often it was
interrupted.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from operator import attrgetter
from typing import Any

from attrs import field

from ..data import define
from ..report import Printed
from ..text import clean, counted
from .journal import DONE, FAILED, FOREIGN, PLANNED, Record
from .workers import NO_PICTURE, picture_of

COLUMNS = {
    "name": "path of the input in the zoo",
    "status": "done, failed, foreign (not a model), or planned (not yet converted)",
    "output": "path of the output in this folder",
    "mode": "how it was converted",
    "bytes": "size of the input",
    "output_bytes": "size of the output",
    "tensors": "tensors in the output",
    "kind": "class of the error",
    "reason": "why it failed, or a description of a foreign file",
    "hash": "SHA-256 of the input",
    "output_hash": "SHA-256 of the output; of a folder: of the names and hashes in it",
}
"""The columns of `report.csv`, and the fields of a file in `report.json`."""
_FORMULA = frozenset("=+-@\t\r")
_columns = attrgetter(*COLUMNS)
_PAGE_COLUMNS = ("name", "status", "output", "bytes", "output_bytes", "tensors", "mode")
_page_columns = attrgetter(*_PAGE_COLUMNS)


_SHOWN = 20
"""Most failures, layers and warnings that are printed."""


def _first_of(names: list[str]) -> str:
    return f"{names[0]}{', …' if len(names) > 1 else ''}"


@define
class ZooReport(Printed):
    """Report on an output folder.

    Attributes:
        output: the folder.
        rows: every file of the zoo.
        options: the options on which the outputs depend.
        version: of t7bridge.
        failures: kind and message of errors, and the names of the affected files, the most frequent first.
        layers: classes without a PyTorch equivalent, with their number of files and of occurrences.
        seconds: duration of the conversion in this run.
        now: number of files finished in this run, by status.
    """

    output: str
    rows: list[Record] = field(factory=list, repr=False)
    options: dict[str, Any] = field(factory=dict)
    version: str = ""
    failures: list[tuple[str, str, list[str]]] = field(factory=list, repr=False)
    layers: list[tuple[str, int, int]] = field(factory=list)
    seconds: float = 0.0
    now: dict[str, int] = field(factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """Number of files by status."""
        counts = Counter(row.status for row in self.rows)
        return {status: counts[status] for status in (DONE, FAILED, FOREIGN, PLANNED)}

    @property
    def bytes(self) -> tuple[int, int]:
        """Total size of the converted inputs, and of their outputs."""
        done = [row for row in self.rows if row.status == DONE]
        return sum(row.bytes for row in done), sum(row.output_bytes for row in done)

    @property
    def ok(self) -> bool:
        """Return whether no file failed."""
        return not self.counts[FAILED]

    @property
    def warnings(self) -> list[tuple[str, list[str]]]:
        """Return the warnings of converted files, grouped, with the files that have them; most frequent first."""
        names: dict[str, list[str]] = {}
        for row in self.rows:
            # Warnings that differ in numbers alone are one; a file has each once.
            texts = [re.sub(r"\d+", "N", message) for level, _, message, *_ in row.notes if level == "warning"]
            for text in dict.fromkeys(texts):
                names.setdefault(text, []).append(row.name)
        return sorted(names.items(), key=lambda pair: -len(pair[1]))

    @property
    def losses(self) -> dict[str, int]:
        """Return the number of converted files with losses, by kind: `type`, `precision` or `sharing`."""
        counts: Counter[str] = Counter()
        for row in self.rows:
            if row.status == DONE:
                counts.update({note[3] for note in row.notes if len(note) > 3 and note[3]})
        return dict(sorted(counts.items()))

    def lines(self) -> Iterator[str]:
        """Yield the failures, warnings and losses, and the numbers of files."""
        groups = [
            [f"{len(names)} failed, {kind}: {message} ({_first_of(names)})" for kind, message, names in self.failures],
            [f"no mapping for {name}: {times:,} layers in {files:,} files" for name, files, times in self.layers],
            [
                f"{counted(len(names), 'file')} with a warning: {message} ({_first_of(names)})"
                for message, names in self.warnings
            ],
        ]
        for lines, what in zip(groups, ("failures", "layers", "warnings")):
            yield from lines[:_SHOWN]
            if len(lines) > _SHOWN:
                yield f"and {len(lines) - _SHOWN} more kinds of {what}"
        if self.losses:
            losses = [f"{kind} in {counted(count, 'file')}" for kind, count in self.losses.items()]
            yield f"lost in outputs: {', '.join(losses)}"
        files = sum(self.now.values())  # of this run
        rate = f", {files / self.seconds:.0f} a second" if files > 1 and self.seconds else ""
        yield f"{counted(files, 'file')} in {self.seconds:.1f} s{rate}"
        counts = self.counts
        bytes_before, bytes_after = self.bytes
        planned = f", {counts[PLANNED]:,} still to do" if counts[PLANNED] else ""
        yield (
            f"{counts[DONE]:,} done, {counts[FAILED]:,} failed, {counts[FOREIGN]:,} skipped (not a model){planned}; "
            f"{bytes_before:,} bytes became {bytes_after:,}"
        )
        yield f"{self.output}: report.html, report.json, report.csv"

    def _result(self) -> str:
        """Return the numbers of files by status."""
        counts = ", ".join(f"{count:,} {status}" for status, count in self.counts.items() if count)
        return f"{clean(os.path.basename(self.output))}: {counts or 'no files'}"

    def summary(self) -> dict[str, Any]:
        """Return everything but the individual files, as data for JSON."""
        before, after = self.bytes
        return {
            "version": self.version,
            "options": self.options,
            "files": len(self.rows),
            **self.counts,
            "bytes_before": before,
            "bytes_after": after,
            "failures": [
                {"kind": kind, "message": message, "files": len(names)} for kind, message, names in self.failures
            ],
            "warnings": [{"message": message, "files": len(names)} for message, names in self.warnings],
            "losses": self.losses,
            "unmapped_layers": [{"class": name, "files": files, "times": times} for name, files, times in self.layers],
        }


def summarize(output: str, rows: list[Record], options: dict[str, Any], version: str) -> ZooReport:
    """Summarize the rows of a journal."""
    groups: dict[tuple[str, str], list[str]] = {}
    files_with: Counter[str] = Counter()
    layers_of: Counter[str] = Counter()
    for row in rows:
        if row.status == FAILED:
            groups.setdefault((row.kind, row.message), []).append(row.name)
        classes = [class_name for _, class_name, *_ in row.layers]  # that have no mapping
        layers_of.update(classes)
        files_with.update(set(classes))
    # The most frequent first, those of equal numbers by name.
    failures = [(kind, message, names) for (kind, message), names in groups.items()]
    failures.sort(key=lambda group: (-len(group[2]), group[:2]))
    layers = [(name, files_with[name], layers_of[name]) for name in layers_of]
    layers.sort(key=lambda layer: (-layer[1], layer[0]))
    return ZooReport(output, rows, options, version, failures, layers)


def report_files(report: ZooReport) -> dict[str, bytes]:
    """Return the three files, by name."""
    return {
        "report.json": as_json(report).encode(),
        "report.csv": as_csv(report).encode("utf-8", "backslashreplace"),
        "report.html": as_page(report).encode("utf-8", "backslashreplace"),
    }


def as_json(report: ZooReport) -> str:
    """Return the full report as JSON, with one file a line."""
    lines = []
    for row in report.rows:
        data: dict[str, Any] = dict(zip(COLUMNS, _columns(row)))
        data["notes"] = [dict(zip(("level", "path", "message", "loss"), note)) for note in row.notes]
        data["layers"] = [{"path": path, "class": name, "reason": why} for path, name, why in row.layers]
        lines.append(json.dumps(data))
    head = json.dumps(report.summary(), indent=1).removesuffix("\n}")
    return head + ',\n "table": [\n' + ",\n".join(lines) + "\n ]\n}\n"


def as_csv(report: ZooReport) -> str:
    """Return the table of files for spreadsheets."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    # A spreadsheet evaluates cells that look like a formula, and a file can be named like one.
    writer.writerows(
        [f"'{value}" if type(value) is str and value[:1] in _FORMULA else value for value in _columns(row)]
        for row in report.rows
    )
    return text.getvalue()


def as_page(report: ZooReport) -> str:
    """Return one self-contained page: totals, failures by kind, unmapped layers, and the table of all files."""
    data = {
        **report.summary(),
        "failures": [{"kind": kind, "message": text, "names": names} for kind, text, names in report.failures],
        "columns": _PAGE_COLUMNS,
        "rows": [
            [*_page_columns(row), row.kind, row.reason, _shown_notes(row), _picture(report, row)] for row in report.rows
        ],
    }
    # Names of files are data, and must not end the script that contains them.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    page = files(__package__).joinpath("report.html").read_text("utf-8")
    return page.replace("/*DATA*/", text, 1)


def _picture(report: ZooReport, row: Record) -> str:
    """Return the path of a file's picture in the folder; empty if it has none."""
    if (
        row.status != DONE
        or not report.options.get("draw")
        or any(note[2].startswith(NO_PICTURE) for note in row.notes)
    ):
        return ""
    return picture_of(row.output)


def _shown_notes(row: Record) -> str:
    notes = (note[:3] for note in row.notes)
    return "\n".join(f"{level}: {path}: {text}" if path else f"{level}: {text}" for level, path, text in notes)
