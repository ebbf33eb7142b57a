"""The verb `zoo`: it converts, with a display of the progress, and prints a summary.

The display is by `rich` on a terminal if it is installed, plain lines otherwise, JSON for machines.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from ..text import counted, printable, printable_json
from ..zoo import convert_zoo, counts_line, left_out_text
from .parsers import arguments_of
from .streams import DONE, FAILED, QUIET, print_json

_LINE_SECONDS = 5.0
"""Seconds between two lines about the progress."""
_NAMES = 4
"""Names of files in a line of the plan."""
_FAILURES = 50
"""Failures that are printed; the report has all."""
_BAR_COLUMNS = 32
_WORDS = {"done": "done", "failed": "failed", "nothing": "nothing to write", "foreign": "skipped"}
"""What users read for the status of a file."""


def zoo(options: argparse.Namespace) -> int:
    """Convert, show progress, and print a summary; after a dry run print the plan.

    Raises:
        KeyboardInterrupt: the user interrupted it; its text says what is left.
    """
    try:
        with open_display(options.json) as display:
            report = convert_zoo(
                **arguments_of(options, "zoo"),
                on_start=display.start,
                on_file=display.file,
                on_progress=display.progress,
            )
    except KeyboardInterrupt as error:
        # `main` prints its text.
        raise KeyboardInterrupt(
            f"interrupted; complete outputs stay in {options.output}, and the same command resumes"
        ) from error
    if options.dry_run:
        _print_plan(report, options.json)
        return DONE
    if options.json:
        print_json({"summary": report.summary(), "output": report.output, "now": report.now})
    else:
        print("\n".join(map(printable, report.lines())))
    return DONE if report.ok else FAILED


def _print_plan(report: Any, as_json: bool) -> None:
    """Print what a run would do with each file, after a dry run, and the numbers of files.

    Args:
        report: a `ZooReport`.
        as_json: whether to print a line of JSON for each file, and no more.
    """
    for row in report.rows:
        if as_json:
            print_json({"file": row.name, "status": row.status, "output": row.output, "reason": row.reason})
        else:
            has_output = row.status in ("planned", "done")
            outcome = f" -> {row.output}" if has_output else f": {row.reason}"
            print(printable(f"{row.status:8}{row.name}{outcome}"))
    if as_json:
        return
    if report.left_out:
        print(f"left out: {left_out_text(report.left_out)}")
    # What is still to do comes first here, so it is not repeated.
    counts = {**report.counts, "planned": 0}
    print(f"{counted(report.counts['planned'], 'file')} to convert, {counts_line(counts)}; nothing was written")


def open_display(as_json: bool) -> Display:
    """Return the display for standard error as it is, a context manager that restores the terminal."""
    if as_json:
        return JsonDisplay()
    if QUIET.get():
        return QuietDisplay()
    if sys.stderr.isatty():
        try:
            return RichDisplay()
        except ImportError:  # `rich` is not installed
            pass
    return Display()


def _failure(row: Any) -> str:
    """Return why a file failed: the cause first, then where it is and what else the error says."""
    place, separator, rest = row.reason.partition(row.message)
    where = place.removesuffix(": ")
    if not separator or not where:
        return f"{row.name}: {row.reason} ({row.kind})"
    return f"{row.name}: {row.message} ({row.kind}), at {where}{rest}"


class Display:
    """A display of a run in plain lines on standard error: the plan, each failure, and progress every few seconds."""

    def __init__(self) -> None:
        self._next_line_at = time.monotonic() + _LINE_SECONDS
        """When the next line about the progress is due, on the clock of `time.monotonic`."""
        self._failures = 0
        """Number of files that failed so far."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exception: Any) -> None:
        """Do nothing."""

    def _line(self, text: str) -> None:
        """Print a line."""
        print(f"t7bridge: {printable(text)}", file=sys.stderr, flush=True)

    def start(self, plan: Any) -> None:
        """Print what differs from the last run, if anything does.

        Args:
            plan: a `RunPlan` of `zoo`.
        """
        for names, what in (
            (plan.changed, "changed since they were converted"),
            (plan.lost, "without their outputs"),
            (plan.gone, "not among the sources now; their outputs stay"),
        ):
            if names.count:
                self._line(f"{counted(names.count, 'input')} {what}: {names.listed(_NAMES)}")

    def file(self, row: Any) -> None:
        """Print why a file failed, for the first ones that fail.

        Args:
            row: the `Record` of a finished file.
        """
        if row.status != "failed":
            return
        self._failures += 1
        if self._failures <= _FAILURES:
            self._line(_failure(row))
        elif self._failures == _FAILURES + 1:
            self._line("more failures are in the report")

    def progress(self, now: Any) -> None:
        """Print a line about the progress, at most every few seconds.

        Args:
            now: the numbers of the run so far, a `Progress` of `zoo`.
        """
        if time.monotonic() < self._next_line_at:
            return
        self._next_line_at = time.monotonic() + _LINE_SECONDS
        files_per_second, bytes_per_second = now.rates
        rates = f"{files_per_second:.0f} files and {megabytes(bytes_per_second)} a second"
        estimate = f", {clock(now.seconds_left)} left" if now.seconds_left is not None else ""
        failed = f", {now.counts['failed']} failed" if now.counts["failed"] else ""
        self._line(f"{now.finished} of {now.files} files{failed}, {rates}{estimate}")


class QuietDisplay(Display):
    """A display of failures alone."""

    def start(self, plan: Any) -> None:
        """Do nothing."""

    def progress(self, now: Any) -> None:
        """Do nothing."""


class JsonDisplay(QuietDisplay):
    """A display for programs: a line of JSON on standard output for each file, and nothing else while it runs."""

    def file(self, row: Any) -> None:
        """Print the outcome of a file.

        Args:
            row: the `Record` of a finished file.
        """
        outcome = {
            "file": row.name,
            "status": row.status,
            "output": row.output,
            "kind": row.kind,
            "reason": row.reason,
            "seconds": round(row.seconds, 6),
        }
        print(printable_json(json.dumps(outcome)), flush=True)


class RichDisplay(Display):
    """A display on a terminal, by `rich`: a bar, numbers that change, and the files in progress."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(stderr=True)
        # Without markup, as names of files may have brackets. Nothing is redrawn by a thread: `progress` does that.
        columns = (BarColumn(_BAR_COLUMNS), TextColumn("{task.fields[shown]}", markup=False))
        self._progress = Progress(*columns, console=self._console, auto_refresh=False, transient=True)
        self._task = self._progress.add_task("", shown="")

    def __exit__(self, *exception: Any) -> None:
        """Remove the bar."""
        self._progress.stop()

    def _line(self, text: str) -> None:
        self._console.print(printable(text), markup=False, highlight=False)

    def progress(self, now: Any) -> None:
        """Redraw the bar.

        Args:
            now: the numbers of the run so far, a `Progress` of `zoo`.
        """
        files_per_second, bytes_per_second = now.rates
        estimate = f"{clock(now.seconds_left)} left" if now.seconds_left is not None else "…"
        counts = ", ".join(f"{now.counts[status]} {word}" for status, word in _WORDS.items())
        done_bytes = f"{megabytes(now.done_bytes)} of {megabytes(now.bytes)}"
        lines = (
            f"{now.finished:,} of {now.files:,} files   {done_bytes}   {estimate}",
            f"{counts}   {files_per_second:.0f} files/s   {megabytes(bytes_per_second)}/s   {clock(now.seconds)}",
            *(f"  {printable(name)}" for name in now.current[:_NAMES]),
        )
        self._progress.start()
        width = self._console.width - _BAR_COLUMNS - 4  # for the spaces around the bar
        shown = "\n".join(line[:width] for line in lines)
        self._progress.update(self._task, total=max(now.files, 1), completed=now.finished, shown=shown, refresh=True)


def clock(seconds: float) -> str:
    """Return `1:02:03`, `2:03` or `3 s`."""
    minutes, whole_seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{whole_seconds:02}"
    return f"{minutes}:{whole_seconds:02}" if minutes else f"{whole_seconds} s"


def megabytes(size: float) -> str:
    """Return `3.4 MB`, `1.20 GB`."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
