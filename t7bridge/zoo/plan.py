"""The plan of a run: the options, the files and the names of their outputs, and what earlier runs left to do.

The same sources have the same plan on every run, wherever they are located.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from attrs import asdict, evolve, field

from ..data import define
from ..errors import ModelError
from ..formats import FORMATS, LUA, SUFFIXES, formats_with
from ..formats.table import HEAD_BYTES, identify
from ..io import platform
from ..io.copy import digest
from ..limits import DEFAULT_LIMITS, Limits
from .journal import DONE, FAILED, FOREIGN, GONE, NAME, PLANNED, Record
from .places import Folder, heads, identity, is_inside, join, list_source, local_path, roots_of

CLAIMS = (".t7", ".t7b", ".pt", ".pth", ".safetensors")
"""Suffixes that declare a file to be a model: such a file that is something else is a failure."""
REPORTS = ("report.html", "report.json", "report.csv")
_STRIPPED = {*SUFFIXES, ".th", ".dat"}
"""Suffixes of inputs that their outputs do not keep."""


@define(frozen=True)
class Settings:
    """Settings of the conversion of every file of a zoo.

    Attributes:
        folder: path or URL of the output folder.
        to: the name of the format to write; `None` for a `.pt` of a `.t7`, and a `.t7` of everything else.
        module: whether each model becomes a folder with `model.py` and `model.pt`.
        verify: whether each output is read back and compared with its input.
        draw: whether each model is drawn next to its output.
        prove: whether each layer is compared with what Lua Torch recorded in the same file.
        options: of `convert`, or of `write_module`.
        limits: resource limits.
        memory: bytes that the work on one file may allocate; `None` for no limit.
        flush: whether each output is flushed to the disk before it is reported, as remote machines must.
    """

    folder: str = ""
    to: str | None = None
    module: bool = False
    verify: bool = False
    draw: bool = False
    prove: bool = False
    options: dict[str, Any] = field(factory=dict)
    limits: Limits = DEFAULT_LIMITS
    memory: int | None = None
    flush: bool = False

    def as_json(self) -> str:
        """Return the settings as one line of JSON."""
        return json.dumps({**asdict(self), "limits": self.limits._asdict()})

    @classmethod
    def from_json(cls, line: str | bytes) -> Settings:
        """Parse that line."""
        data = json.loads(line)
        return cls(**{**data, "limits": Limits(**data["limits"])})

    def asked(self) -> dict[str, Any]:
        """Return the settings on which the bytes of the outputs depend, besides the inputs."""
        asked: dict[str, Any] = {"to": self.to, "module": self.module, "verify": self.verify, **self.options}
        # Absent if off, as in journals of releases that did not have them.
        if self.draw:
            asked["draw"] = True
        if self.prove:
            asked["prove"] = True
        return asked

    def suffix(self, kind: str) -> str:
        """Return the suffix of an output, for the format of its input."""
        if self.module:
            return ""
        if self.to:
            return FORMATS[self.to].suffix
        is_lua = FORMATS[kind].values == LUA
        return FORMATS["pt" if is_lua else "t7"].suffix


# Inputs


def find_inputs(sources: Sequence[str], output: str) -> list[Record]:
    """Return the files in all sources, sorted by name; hidden ones, and those in the output folder, are excluded.

    For one folder, pattern or archive, names are relative to it; for several, each begins with its own. Files that were
    named individually have names relative to their common folder.

    Args:
        sources: paths of files and folders, patterns, URLs.
        output: the output folder, which may be inside a source.

    Raises:
        T7BridgeError: a source does not exist, or cannot be listed.
        ModelError: two inputs have the same name.
    """
    roots: list[tuple[str, list[Record]]] = []
    singles: list[Record] = []
    for source in sources:
        root, records, is_file = list_source(source, output)
        if is_file:
            singles += records
        else:
            roots.append((root, records))
    inputs: dict[str, Record] = {}
    for record, is_explicit in _named(roots, singles):
        record.name = safe_name(record.name)
        is_hidden = any(part.startswith(".") for part in record.name.split("/"))
        if is_hidden and not is_explicit:
            continue
        record.claimed = is_explicit or os.path.splitext(record.name)[1].lower() in CLAIMS
        other = inputs.setdefault(record.name, record)
        if other.place != record.place:
            raise ModelError(
                f"two inputs have the name {record.name}: {other.place} and {record.place}",
                hint="Convert them into two folders, or put them into one tree first.",
            )
    return sorted(inputs.values(), key=lambda record: record.name)


def safe_name(inside: str) -> str:
    """Return a path that stays inside its folder, whatever an archive or a server calls its members."""
    parts: list[str] = []
    for part in inside.replace("\\", "/").replace("\0", "_").split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            part = "__"
        elif platform.IS_WINDOWS:
            part = platform.windows_name(part)
        parts.append(part)
    return "/".join(parts) or "_"


def _named(roots: list[tuple[str, list[Record]]], singles: list[Record]) -> Iterator[tuple[Record, bool]]:
    """Yield the files under their names in the zoo, and whether each was named explicitly."""
    is_one_root = len(roots) == 1 and not singles
    counts: Counter[str] = Counter()
    for root, records in roots:
        counts[root] += 1
        # Two roots `a/models` and `b/models` become `models` and `models-2`.
        folder = root if counts[root] == 1 else f"{root}-{counts[root]}"
        for record in records:
            if not is_one_root:
                record.name = f"{folder}/{record.name}"
            yield record, False
    local_places = {record.place for record in singles if local_path(record.place) is not None}
    common_folder = ""
    if local_places:
        common_folder = os.path.commonpath([os.path.dirname(place) for place in local_places])
    for record in singles:
        if record.place in local_places:
            record.name = os.path.relpath(record.place, common_folder).replace(os.sep, "/")
        yield record, True


def kind_of(head: bytes) -> str:
    """Return the likely format of a file from its first bytes; empty for a file that is not a model."""
    signature = identify(head)
    if signature is not None:
        formats = formats_with(signature.kind)
        if not formats:
            return ""
        # Several formats are zip archives: the name of the first member, at byte 30 of a local file header, tells.
        name_length = int.from_bytes(head[26:28], "little")
        member = head[30 : 30 + name_length].decode("utf-8", "replace")
        for spec in formats:
            if spec.members is not None and spec.members([member]):
                return spec.name
        return formats[0].name
    # A binary file begins with a type tag from 0 to 8; a file in ascii with one on a line of its own.
    tags = int.from_bytes(head[:4], "little"), int.from_bytes(head[:4], "big")
    is_binary = len(head) >= 4 and min(tags) <= 8
    is_ascii = head[:1] in b"012345678" and head[1:2] in (b"\n", b"\r")
    return "t7" if is_binary or is_ascii else ""


def title_of(head: bytes) -> str:
    """Return a description of a file that is not a model."""
    signature = identify(head)
    if signature is not None:
        return signature.title
    if not head:
        return "empty"
    return "something else"


# Names of outputs


def output_names(
    new_inputs: Iterable[tuple[str, str]], used_names: Iterable[str], suffixes: Callable[[str], str]
) -> dict[str, str]:
    """Return the names of the outputs of new inputs: those of the inputs, with the suffix of the format.

    If two would get the same name, or a file that of a folder, both keep their own suffix too: `net.t7.pt`. Names
    differ in more than case, which some file systems ignore.

    Args:
        new_inputs: names of the inputs, and the format of each (`t7` or `pt`).
        used_names: names of outputs that exist for other inputs.
        suffixes: the suffix of the output for each input format.

    Returns:
        The name of the output by that of the input.
    """
    inputs = dict(new_inputs)
    short_names = {name: _stem(name) + suffixes(kind) for name, kind in inputs.items()}
    used = {name.casefold() for name in used_names}
    used |= _folders({*short_names.values(), *used})
    counts = Counter(name.casefold() for name in short_names.values())
    names: dict[str, str] = {}
    for name, kind in inputs.items():
        # `net.pt`, then `net.t7.pt`, `net.t7.2.pt`, …
        choice = short_names[name]
        is_wanted_twice = counts[choice.casefold()] > 1
        number = 1
        while choice.casefold() in used or (is_wanted_twice and choice == short_names[name]):
            counter = "" if number == 1 else f".{number}"
            choice = name + counter + suffixes(kind)
            if number > len(inputs) + 2:
                raise ModelError(f"no name is free for the output of {name}")
            number += 1
        used.add(choice.casefold())
        names[name] = choice
    return names


def _stem(name: str) -> str:
    """Return `a/net` for `a/net.t7` and `a/net.pth.tar`; an unknown suffix stays."""
    stem, suffix = os.path.splitext(name)
    if suffix.lower() == ".tar" and os.path.splitext(stem)[1].lower() in _STRIPPED:
        stem, suffix = os.path.splitext(stem)
    if suffix.lower() in _STRIPPED and os.path.basename(stem):
        return stem
    return name


def _folders(names: Iterable[str]) -> set[str]:
    """Return the folders that contain files, and all their parents, in lower case."""
    folders: set[str] = set()
    parents = {name.rpartition("/")[0].casefold() for name in names if "/" in name}
    while parents:
        folders |= parents
        parents = {parent.rpartition("/")[0] for parent in parents if "/" in parent}
    return folders


# What is left to do


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

    rows: list[Record] = field(factory=list)
    stale: list[Record] = field(factory=list)
    changed: list[str] = field(factory=list)
    lost: list[str] = field(factory=list)
    gone: list[str] = field(factory=list)


def make_plan(
    sources: Sequence[str],
    journal: Iterable[Record],
    folder: Folder,
    settings: Settings,
    *,
    retry_failed: bool = False,
    force: bool = False,
) -> RunPlan:
    """Compare the sources with the journal.

    A finished file is left alone as long as its size and time, or else its hash, are unchanged. An output keeps its
    name.

    Args:
        sources: paths of files and folders, patterns, URLs.
        journal: its rows.
        folder: the output folder.
        settings: of each conversion.
        retry_failed: whether to retry failed files.
        force: whether to replace foreign files at the paths of outputs.

    Raises:
        T7BridgeError: a source does not exist, or cannot be listed.
        ModelError: two inputs have the same name, or links of the output folder lead into a source.
    """
    plan = RunPlan()
    journal_rows = {row.name: row for row in journal}
    rows: dict[str, Record] = {}
    fresh: list[Record] = []  # new inputs, and those to be done again
    for item in find_inputs(sources, folder.place):
        row = journal_rows.pop(item.name, None)
        if row is None:
            fresh.append(item)
            continue
        updated = _updated(row, item, folder, plan)
        if updated.status == FAILED and retry_failed:
            updated = evolve(updated, status=PLANNED)
        rows[item.name] = updated
        if updated.status == PLANNED and updated != row:
            fresh.append(item)
        elif updated != row:
            plan.stale.append(updated)
    missing = journal_rows.values()  # what is left in it: rows of inputs that were removed
    for row in missing:
        if row.status != GONE:
            plan.stale.append(evolve(row, status=GONE))
            plan.gone.append(row.name)
    _plan_fresh(fresh, rows, missing, settings)
    inputs: set[Hashable] | None = None
    for row in fresh:
        old_row = rows.get(row.name)
        rows[row.name] = row
        existing: dict[str, int] = {}
        if row.output and row.status == PLANNED:
            existing = folder.files(row.output)
        if not existing:
            continue
        if inputs is None:  # asks for the state of each input, and is rarely needed
            places = [record.place for record in (*rows.values(), *fresh)]
            places.append(settings.options.get("classes") or "")
            inputs = {identity(place) for place in places if place} - {None}
        _keep_others(row, old_row, [*existing], inputs, retry=retry_failed, force=force)
    plan.stale += fresh
    plan.rows = sorted(rows.values(), key=lambda row: row.name)
    _check_links(plan.rows, sources, folder)
    return plan


def _updated(row: Record, item: Record, folder: Folder, plan: RunPlan) -> Record:
    """Return the updated row of an input of the journal, and note in the plan why it is to be done again.

    Args:
        row: the journal's.
        item: the input as it is now.
        folder: the output folder.
        plan: receives the name of the input if it changed, or if its output is missing.
    """
    is_unchanged = row.stamp == item.stamp and item.bytes in (0, row.bytes)  # 0: its server does not tell
    if row.place != item.place:
        row = evolve(row, place=item.place)
    if not is_unchanged:
        if row.status == PLANNED:
            row = evolve(row, bytes=item.bytes, stamp=item.stamp)
        elif _has_hash(item, row):  # it was only touched
            row = evolve(row, stamp=item.stamp)
        else:
            plan.changed.append(row.name)
            return evolve(row, status=PLANNED, bytes=item.bytes, stamp=item.stamp)
    if row.status == DONE and folder.size(row.output) != row.output_bytes:
        plan.lost.append(row.name)
        return evolve(row, status=PLANNED)
    if row.status == GONE:  # the input is there again
        return evolve(row, status=PLANNED)
    return row


def _has_hash(item: Record, row: Record) -> bool:
    """Return whether a file with another time has the same content. Remote files are not fetched for this."""
    path = local_path(item.place)
    if path is None or not row.hash or item.bytes != row.bytes:
        return False
    try:
        return digest(path)[0] == row.hash
    except OSError:
        return False


def _plan_fresh(fresh: list[Record], rows: dict[str, Record], gone: Iterable[Record], settings: Settings) -> None:
    """Give new and changed inputs their numbers, and the names of their outputs."""
    kinds: dict[str, str] = {}
    for row, head in zip(fresh, heads([row.place for row in fresh], HEAD_BYTES)):
        kind = "t7" if head is None else kind_of(head)  # of one that cannot be read the conversion tells why
        if kind or row.claimed:
            kinds[row.name] = kind or "t7"
        else:
            row.status = FOREIGN
            row.reason = title_of(head or b"")
    # An input that is done again keeps the name of its output, if it is of the same format.
    names: dict[str, str] = {}
    for name, kind in kinds.items():
        if name in rows and _fits(rows[name].output, settings.suffix(kind)):
            names[name] = rows[name].output
    unnamed = [(name, kind) for name, kind in kinds.items() if name not in names]
    used = [row.output for row in (*rows.values(), *gone) if row.output]
    names |= output_names(unnamed, (*used, *REPORTS, NAME), settings.suffix)
    for row in fresh:
        old_row = rows.get(row.name)
        row.number = 0 if old_row is None else old_row.number
        old_output = "" if old_row is None else old_row.output
        row.output = names.get(row.name, old_output)


def _fits(output: str, suffix: str) -> bool:
    """Return whether the existing name of an output still fits its format."""
    if not suffix:  # a folder, which has none
        return bool(output)
    return os.path.splitext(output)[1] == suffix


def _keep_others(
    row: Record, old_row: Record | None, existing: list[str], inputs: set[Hashable], *, retry: bool, force: bool
) -> None:
    """Keep files that exist at the place of an output: inputs always, and foreign ones without `force`.

    With `retry`, a foreign file is compared with the output first: it may be one of an interrupted run.
    """
    name = os.path.basename(row.output)
    if any(identity(place) in inputs for place in existing):
        row.fail("TargetExistsError", "the output would replace an input", f"{name} is an input of this run")
        return
    is_ours = old_row is not None and old_row.ours and old_row.output == row.output
    if not force and not is_ours:
        row.ours = False
        if not retry:
            fail_foreign(row)


def fail_foreign(row: Record) -> Record:
    """Mark a file as failed whose output exists, and is not ours; return it."""
    name = os.path.basename(row.output)
    return row.fail(
        "TargetExistsError", "a foreign file exists already", f"{name} exists already, and was not made by this zoo"
    )


def _check_links(rows: Iterable[Record], sources: Sequence[str], folder: Folder) -> None:
    """Refuse folders of outputs that are in a source, by links or because the output folder contains it."""
    roots = roots_of(sources)
    own = identity(folder.place)
    if own is None:  # a dry run, of a new folder
        return
    outputs = {row.output.rpartition("/")[0]: row for row in rows if row.output and row.status == PLANNED}
    for subfolder, row in outputs.items():
        place = join(folder.place, subfolder) if subfolder else folder.place
        if is_inside(place, roots, own):
            raise ModelError(
                f"the output {row.output} would be in a source",
                file=folder.place,
                hint="Give a folder of its own with -o.",
            )
