"""The plan of a run, made from the current sources and the journal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from attrs import evolve, field

from ..data import define
from ..formats.signatures import HEAD_BYTES
from .filesystems import heads, local_path
from .folder import Folder
from .job import DONE, FAILED, FOREIGN, PLANNED, digest
from .journal import GONE, NAME, JournalRow
from .plan import Found, is_claimed, kind_of, output_names, title_of

REPORTS = ("report.html", "report.json", "report.csv")


@define
class RunPlan:
    """Starting point of a run.

    Attributes:
        rows: every file of the sources, as the journal should have it.
        stale: rows to be written to the journal: new and changed ones.
        changed: names of inputs that changed since they were converted.
        lost: names of inputs whose output is missing.
        gone: names of inputs that are missing.
    """

    rows: list[JournalRow] = field(factory=list)
    stale: list[JournalRow] = field(factory=list)
    changed: list[str] = field(factory=list)
    lost: list[str] = field(factory=list)
    gone: list[str] = field(factory=list)


def make_plan(
    found: Iterable[Found],
    known: Iterable[JournalRow],
    folder: Folder,
    suffix: Callable[[str], str],
    *,
    retry_failed: bool = False,
    force: bool = False,
) -> RunPlan:
    """Compare the sources with the journal.

    A finished file is left alone as long as its size and time, or else its hash, are unchanged. An output keeps its
    name.

    Args:
        found: the inputs.
        known: the journal's rows.
        folder: the output folder.
        suffix: the suffix of the output, by input format (`t7`, `pt`).
        retry_failed: whether to retry failed files.
        force: whether to replace foreign files at the paths of outputs.
    """
    plan = RunPlan()
    before = {row.name: row for row in known}
    rows: dict[str, JournalRow] = {}
    fresh: list[Found] = []
    for item in found:
        row = before.pop(item.name, None)
        if row is None:
            fresh.append(item)
            continue
        rows[item.name] = now = _known(row, item, folder, plan)
        if now.status == FAILED and retry_failed:
            now = rows[item.name] = evolve(now, status=PLANNED)
        if now.status == PLANNED and now != row:
            fresh.append(item)
        elif now != row:
            plan.stale.append(now)
    for row in before.values():
        if row.status != GONE:
            plan.stale.append(evolve(row, status=GONE))
            plan.gone.append(row.name)
    for row in _planned(fresh, rows, before.values(), folder, suffix, force):
        rows[row.name] = row
        plan.stale.append(row)
    plan.rows = sorted(rows.values(), key=lambda row: row.name)
    return plan


def _known(row: JournalRow, item: Found, folder: Folder, plan: RunPlan) -> JournalRow:
    """Return the updated row of an input."""
    same = row.stamp == item.stamp and item.bytes in (0, row.bytes)
    row = evolve(row, place=item.place) if row.place != item.place else row
    if not same and row.status != PLANNED:
        if not _has_hash(item, row):
            plan.changed.append(row.name)
            return evolve(row, status=PLANNED, bytes=item.bytes, stamp=item.stamp)
        row = evolve(row, stamp=item.stamp)
    elif not same:
        row = evolve(row, bytes=item.bytes, stamp=item.stamp)
    if row.status == DONE and folder.size(row.output) != row.output_bytes:
        plan.lost.append(row.name)
        return evolve(row, status=PLANNED)
    return evolve(row, status=PLANNED) if row.status == GONE else row


def _has_hash(item: Found, row: JournalRow) -> bool:
    """Return whether a file with another time has the same content. Remote files are not fetched for this."""
    path = local_path(item.place)
    if path is None or not row.hash or item.bytes != row.bytes:
        return False
    try:
        return digest(path)[0] == row.hash
    except OSError:
        return False


def _fits(output: str, suffix: str) -> bool:
    """Return whether the existing name of an output still fits its format."""
    return bool(output) and os.path.splitext(output)[1] == suffix if suffix else bool(output)


def _planned(
    fresh: list[Found],
    rows: dict[str, JournalRow],
    gone: Iterable[JournalRow],
    folder: Folder,
    suffix: Callable[[str], str],
    force: bool,
) -> Iterator[JournalRow]:
    """Return rows for new and changed inputs."""
    starts = heads([item.place for item in fresh], HEAD_BYTES)
    kinds: dict[str, str] = {}
    titles: dict[str, str] = {}
    for item, head in zip(fresh, starts):
        kind = "t7" if head is None else kind_of(head)
        if kind or is_claimed(item):
            kinds[item.name] = kind or "t7"
        else:
            titles[item.name] = title_of(head or b"")
    named = {name for name, kind in kinds.items() if name in rows and _fits(rows[name].output, suffix(kind))}
    taken = [row.output for row in (*rows.values(), *gone) if row.output]
    names = output_names(
        ((name, kind) for name, kind in kinds.items() if name not in named), (*taken, *REPORTS, NAME), suffix
    )
    for item in fresh:
        old = rows.get(item.name)
        row = JournalRow(old.number if old else 0, item.name, item.place, item.bytes, item.stamp, is_claimed(item))
        if item.name in titles:
            yield evolve(row, status=FOREIGN, reason=titles[item.name], output=old.output if old else "")
            continue
        row.output = names[item.name] if item.name in names else rows[item.name].output
        row.ours = force or bool(old and old.ours and old.output) or folder.size(row.output) is None
        if not row.ours:
            row.status, row.kind = FAILED, "TargetExistsError"
            row.message = "a foreign file exists already"
            row.reason = f"{os.path.basename(row.output)} exists already, and was not made by this zoo"
        yield row
