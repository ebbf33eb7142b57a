"""The plan of a run: the options, the files and the names of their outputs, and what earlier runs left to do.

The same sources have the same plan on every run, wherever they are located. It is made in the journal, in one
transaction and batch by batch, so that it takes no more memory for more files.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from attrs import asdict, evolve, field

from ..data import define
from ..errors import ModelError
from ..formats import FORMATS, LUA, formats_with
from ..formats.table import HEAD_BYTES, identify
from ..io.copy import digest
from ..limits import DEFAULT_LIMITS, Limits
from .groups import Names
from .journal import DONE, FAILED, FOREIGN, GONE, PLANNED, Fresh, Journal, Mark, Record, batches
from .names import OutputNames, safe_name
from .places import Folder, Listing, heads, identity, is_inside, join, list_source, local_path, roots_of

CLAIMS = (".t7", ".t7b", ".pt", ".pth", ".safetensors")
"""Suffixes that declare a file to be a model: such a file that is something else is a failure."""
_FOLDERS_CHECKED = 1024
"""Folders of outputs that are remembered as checked."""


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
        """Return the settings of a line of `as_json`."""
        data = json.loads(line)
        return cls(**{**data, "limits": Limits(**data["limits"])})

    def output_options(self) -> dict[str, Any]:
        """Return the settings on which the outputs depend; if these change, everything has to be converted again."""
        options: dict[str, Any] = {"to": self.to, "module": self.module, "verify": self.verify, **self.options}
        # Absent if off, as in journals of releases that did not have them.
        if self.draw:
            options["draw"] = True
        if self.prove:
            options["prove"] = True
        return options

    def suffix_of_output(self, kind: str) -> str:
        """Return the suffix of an output, for the name of its input's format; empty if it is a folder."""
        if self.module:
            return ""
        if self.to:
            return FORMATS[self.to].suffix
        is_lua = FORMATS[kind].values == LUA
        return FORMATS["pt" if is_lua else "t7"].suffix


# Inputs


def find_inputs(
    sources: Sequence[str], output: str, include: Sequence[str] = (), left_out: Counter[str] | None = None
) -> Iterator[Record]:
    """Yield the files in all sources, in any order; hidden ones, and those in the output folder, are excluded.

    For one folder, pattern or archive, names are relative to it; for several, each begins with its own. Files that were
    named individually have names relative to their common folder, and are never left out.

    Args:
        sources: paths of files and folders, patterns, URLs.
        output: the output folder, which may be inside a source.
        include: patterns of names; without one all files are included. A pattern without `/` is one of the last part
            of a name.
        left_out: counts what is left out, by the keys of `LEFT_OUT`.

    Raises:
        T7BridgeError: a source does not exist, or cannot be listed.
    """
    if left_out is None:
        left_out = Counter()
    listings = [list_source(source, output, left_out) for source in sources]
    roots = [listing for listing in listings if not listing.is_single_file]
    singles = [record for listing in listings if listing.is_single_file for record in listing.records]
    for record in _files_of(roots, has_names_of_roots=len(roots) > 1 or bool(singles)):
        reason = _reason_to_leave_out(record.name, include)
        if reason:
            left_out[reason] += 1
            continue
        # A file of another suffix that turns out not to be a model is no failure.
        record.claimed = os.path.splitext(record.name)[1].lower() in CLAIMS
        yield record
    for record in _named_below_common_folder(singles):
        record.claimed = True  # whoever names a file says that it is a model
        yield record


def _reason_to_leave_out(name: str, include: Sequence[str]) -> str:
    """Return the key of `LEFT_OUT` for which a file of a folder, store or archive is no input; empty if it is one."""
    # The listing of a folder leaves hidden files out; that of a store or an archive does not.
    if any(part.startswith(".") for part in name.split("/")):
        return "hidden"
    if include and not any(_matches(name, pattern) for pattern in include):
        return "not_included"
    return ""


def _matches(name: str, pattern: str) -> bool:
    """Return whether a pattern fits a name: its last part, or all of it where the pattern has several parts."""
    return fnmatchcase(name if "/" in pattern else name.rpartition("/")[2], pattern)


def _files_of(roots: list[Listing], *, has_names_of_roots: bool) -> Iterator[Record]:
    """Yield the files of folders, patterns and archives, with their names in the zoo.

    Two files may get one name: `Journal.list_inputs` refuses that.

    Args:
        roots: each folder, pattern or archive, with its files, which have names in it.
        has_names_of_roots: whether names begin with that of the root.
    """
    counts: Counter[str] = Counter()
    for root in roots:
        counts[root.name] += 1
        # Two roots `a/models` and `b/models` become `models` and `models-2`.
        folder = root.name if counts[root.name] == 1 else f"{root.name}-{counts[root.name]}"
        for record in root.records:
            record.name = safe_name(f"{folder}/{record.name}" if has_names_of_roots else record.name)
            yield record


def _named_below_common_folder(singles: list[Record]) -> Iterator[Record]:
    """Yield files that were named individually, with their names in the zoo: remote ones keep the last part of theirs.

    Args:
        singles: the files, each with the last part of its path as its name.
    """
    local_folders = [os.path.dirname(record.place) for record in singles if local_path(record.place) is not None]
    common_folder = os.path.commonpath(local_folders) if local_folders else ""
    for record in singles:
        if local_path(record.place) is not None:
            record.name = os.path.relpath(record.place, common_folder).replace(os.sep, "/")
        record.name = safe_name(record.name)
        yield record


def kind_of(head: bytes) -> str:
    """Return the name of the likely format of a file, from its first bytes; empty for a file that is not a model.

    Args:
        head: the first `HEAD_BYTES` of the file, or all of a smaller one.
    """
    signature = identify(head, installed=True)
    if signature is None:
        return "t7" if _begins_like_t7(head) else ""
    if signature.kind == "zip":
        return _kind_of_zip(head)
    formats = formats_with(signature.kind)
    return formats[0].name if formats else ""


def _kind_of_zip(head: bytes) -> str:
    """Return the name of the format of a zip archive, from its first bytes: the name of the first member tells."""
    # In a local file header (APPNOTE 4.3.7), the length of the name is at byte 26, and itself at byte 30.
    name_length = int.from_bytes(head[26:28], "little")
    member = head[30 : 30 + name_length].decode("utf-8", "replace")
    for spec in formats_with("zip"):
        if spec.members is not None and spec.members([member]):
            return spec.name
    # An archive of the C++ API begins with any member, and one of another program may have such a file inside.
    return "pt"


def _begins_like_t7(head: bytes) -> bool:
    """Return whether a file may be a `.t7`, which has no signature: it begins with a type tag, from 0 to 8.

    A binary one has it in 4 bytes of either order, one in ascii on a line of its own.
    """
    tags = int.from_bytes(head[:4], "little"), int.from_bytes(head[:4], "big")
    is_binary = len(head) >= 4 and min(tags) <= 8
    is_ascii = head[:1] in b"012345678" and head[1:2] in (b"\n", b"\r")
    return is_binary or is_ascii


def title_of(head: bytes) -> str:
    """Return a description of a file that is not a model, from its first bytes."""
    signature = identify(head, installed=True)
    if signature is not None:
        return signature.title
    if not head:
        return "empty"
    return "something else"


# What is left to do


@define
class RunPlan:
    """The plan of a run, as it is shown: which files differ from those of earlier runs.

    Attributes:
        changed: inputs that changed since they were converted.
        lost: inputs whose output is missing.
        gone: inputs of earlier runs that are not among the sources now.
        left_out: number of files and folders in the sources that are not inputs, by the keys of `LEFT_OUT`.
    """

    changed: Names = field(factory=Names)
    lost: Names = field(factory=Names)
    gone: Names = field(factory=Names)
    left_out: Counter[str] = field(factory=Counter)


def make_plan(
    sources: Sequence[str],
    journal: Journal,
    folder: Folder,
    settings: Settings,
    *,
    include: Sequence[str] = (),
    retry_failed: bool = False,
    force: bool = False,
) -> RunPlan:
    """Compare the sources with the journal, in which a transaction is open, and write into it what is to be done.

    A finished file is left alone as long as its size and time, or else its hash, are unchanged. An output keeps its
    name.

    It takes two passes over the inputs: all that are new or to be converted again are marked, and say which names they
    want for their outputs, before the first gets one, so that names do not depend on the order.

    Args:
        sources: paths of files and folders, patterns, URLs.
        journal: of earlier runs.
        folder: the output folder.
        settings: of each conversion.
        include: patterns of names of inputs.
        retry_failed: whether to retry failed files.
        force: whether to replace foreign files at the paths of outputs.

    Raises:
        T7BridgeError: a source does not exist, or cannot be listed.
        ModelError: two inputs have the same name, or links of the output folder lead into a source.
    """
    plan = RunPlan()
    journal.list_inputs(find_inputs(sources, folder.place, include, plan.left_out))
    names = OutputNames(journal, settings.suffix_of_output)
    planner = _Planner(journal, folder, settings, names, plan)
    for batch in batches(journal.inputs()):
        planner.compare_with_records(batch, retry_failed=retry_failed)
    plan.gone = journal.mark_gone()
    if names.has_wanted_names:  # otherwise no name is chosen
        for output in journal.outputs():  # those of gone inputs, too: these files are still there
            names.reserve(output)
    # An input that failed because of a foreign file is retried by comparing its output with that file.
    existing = _ExistingFiles(journal, folder, settings, compares_foreign=retry_failed, force=force)
    for fresh_inputs in batches(journal.fresh()):
        planner.plan_fresh(fresh_inputs, existing)
    _check_links(journal, sources, folder)
    return plan


@define(eq=False)
class _Planner:
    """Writes into the journal what is to be done: which inputs are *fresh*, new or to be converted again, and how.

    Attributes:
        journal: of earlier runs.
        folder: the output folder.
        settings: of each conversion.
        names: chooses the names of outputs, when all fresh inputs have said which ones they want.
        plan: gets the names of inputs that changed or lost their output.
    """

    journal: Journal
    folder: Folder
    settings: Settings
    names: OutputNames
    plan: RunPlan

    def compare_with_records(self, batch: list[tuple[Record, Record | None]], *, retry_failed: bool) -> None:
        """Compare some inputs with their records: mark those that are fresh, and update the records of others.

        Args:
            batch: each input as it is now, and its record in the journal; `None` if it is new.
            retry_failed: whether failed files are to be converted again.
        """
        fresh: list[tuple[Record, str]] = []
        updates: list[Record] = []
        for present, recorded in batch:
            if recorded is None:
                no_output = ""
                fresh.append((present, no_output))
                continue
            updated = self._updated(recorded, present)
            if updated.status == FAILED and retry_failed:
                updated = evolve(updated, status=PLANNED)
            if updated == recorded:  # also an input that an interrupted run has planned, and not come to: it stays so
                continue
            if updated.status == PLANNED:
                fresh.append((present, recorded.output))
            else:
                updates.append(updated)
        self.journal.store(updates)
        self._mark_fresh(fresh)

    def _updated(self, recorded: Record, present: Record) -> Record:
        """Return the updated record of an input, with the status `planned` if it is to be converted again.

        Args:
            recorded: the journal's record, which stays as it is.
            present: the input as it is now.
        """
        updated = recorded
        if recorded.place != present.place:
            updated = evolve(updated, place=present.place)
        # A server that does not tell the size of a file has 0.
        has_same_stamp = recorded.stamp == present.stamp and present.bytes in (0, recorded.bytes)
        if not has_same_stamp:
            updated = evolve(updated, bytes=present.bytes, stamp=present.stamp)
            has_outcome = recorded.status != PLANNED  # of content that it may no longer have
            if has_outcome and not _has_same_content(present, recorded):
                self.plan.changed.add(recorded.name)
                return evolve(updated, status=PLANNED)
        if recorded.status == DONE and self.folder.size(recorded.output) != recorded.output_bytes:
            self.plan.lost.add(recorded.name)
            return evolve(updated, status=PLANNED)
        if recorded.status == GONE:  # the input is there again
            return evolve(updated, status=PLANNED)
        return updated

    def _mark_fresh(self, fresh: list[tuple[Record, str]]) -> None:
        """Mark inputs as fresh in the journal, with what they hold, and note the names that their outputs want.

        An output keeps the name that it had in earlier runs, if it is still in the same format.

        Args:
            fresh: the inputs, each with the name of its output in earlier runs; empty without one.
        """
        marks: list[Mark] = []
        first_bytes = heads([present.place for present, _ in fresh], HEAD_BYTES)
        for (present, old_output), head in zip(fresh, first_bytes):
            mark = _mark_of(present, head)
            if mark.format and not _has_suffix(old_output, self.settings.suffix_of_output(mark.format)):
                self.names.note_wanted_name(present.name, mark.format)
            marks.append(mark)
        self.journal.mark_fresh(marks)

    def plan_fresh(self, fresh_inputs: list[Fresh], existing: _ExistingFiles) -> None:
        """Store the records of some fresh inputs, with what is planned for them; the inputs stay marked.

        Args:
            fresh_inputs: those that were marked.
            existing: the files that exist at the paths of outputs.
        """
        for fresh in fresh_inputs:
            self._plan_one(fresh, existing)
        self.journal.store(fresh.record for fresh in fresh_inputs)

    def _plan_one(self, fresh: Fresh, existing: _ExistingFiles) -> None:
        """Set output and status in the record of a fresh input: `planned`, or the outcome that is known already.

        Args:
            fresh: the input; `fresh.record` is changed.
            existing: the files that exist at the paths of outputs.
        """
        record = fresh.record
        record.number = fresh.number
        record.output = fresh.output  # that of earlier runs, also of a file that is no model now
        if not fresh.format:
            record.status = FOREIGN
            record.reason = fresh.reason
            return
        keeps_name = _has_suffix(fresh.output, self.settings.suffix_of_output(fresh.format))
        if not keeps_name:
            record.output = self.names.choose_name(record.name, fresh.format)
        # An earlier run wrote under the name that the output had then: a file under another name is not its own.
        existing.check_output(record, was_written_by_us=fresh.ours and fresh.output == record.output)


def _mark_of(present: Record, head: bytes | None) -> Mark:
    """Return the mark of a fresh input: its likely format, or what it is if it is not a model.

    Args:
        present: the input.
        head: its first bytes; `None` if it cannot be read.
    """
    kind = kind_of(head) if head is not None else ""
    # What cannot be read, or claims to be a model and is none, is planned as a `.t7`: its conversion fails, and says
    # why.
    if not kind and (head is None or present.claimed):
        kind = "t7"
    if head is None or kind:
        return Mark(present.name, kind)
    return Mark(present.name, reason=title_of(head))


def _has_same_content(present: Record, recorded: Record) -> bool:
    """Return whether an input with another time has the content that was converted.

    Remote files are not fetched for this: they count as changed.

    Args:
        present: the input as it is now.
        recorded: its record in the journal.
    """
    path = local_path(present.place)
    if path is None or not recorded.hash or present.bytes != recorded.bytes:
        return False
    try:
        checksum, _ = digest(path)
        return checksum == recorded.hash
    except OSError:
        return False


def _has_suffix(output: str, suffix: str) -> bool:
    """Return whether the name that an output had in earlier runs fits the format that it is to have now.

    Args:
        output: the name; empty if there was none.
        suffix: of the format; empty for a folder.
    """
    if not suffix:  # any name is one of a folder
        return bool(output)
    return os.path.splitext(output)[1] == suffix


@define(eq=False)
class _ExistingFiles:
    """Protects files that exist at the paths of outputs: inputs always, and foreign ones without `force`.

    Attributes:
        journal: has the inputs.
        folder: the output folder.
        settings: of each conversion.
        compares_foreign: whether an input with a foreign file at the path of its output is converted nevertheless, to
            compare both: the file may be the output of an interrupted run.
        force: whether foreign files are replaced.
    """

    journal: Journal
    folder: Folder
    settings: Settings
    compares_foreign: bool = field(kw_only=True)
    force: bool = field(kw_only=True)
    _has_identities: bool = field(default=False, init=False)
    """Whether the journal has the identities of the inputs, for `_is_input`."""

    def check_output(self, record: Record, *, was_written_by_us: bool) -> None:
        """Look for files at the path of an output, and mark the input as failed if they must stay.

        If they may be the output itself, the input stays planned, and its conversion compares them.

        Args:
            record: the input; its `ours` becomes false where a foreign file must not be replaced.
            was_written_by_us: whether an earlier run may have written the output.
        """
        existing = self.folder.files(record.output)
        if not existing:
            return
        if any(self._is_input(place) for place in existing):
            name = os.path.basename(record.output)
            record.fail("TargetExistsError", "the output would replace an input", f"{name} is an input of this run")
            return
        if not self.force and not was_written_by_us:
            record.ours = False
            if not self.compares_foreign:
                fail_foreign(record)

    def _is_input(self, place: str) -> bool:
        """Return whether a file is an input, or that of the option `classes`, which all conversions read.

        Files are compared by their identity, so that links do not hide one.
        """
        if not self._has_identities:  # asks for the state of each input, and is rarely needed
            self._has_identities = True
            classes = self.settings.options.get("classes")
            if classes:
                self.journal.add_identities([repr(identity(classes))])
            for batch in batches(self.journal.inputs()):
                self.journal.add_identities(repr(identity(present.place)) for present, _ in batch)
        own = identity(place)
        return own is not None and self.journal.has_identity(repr(own))


def fail_foreign(record: Record) -> Record:
    """Mark a file as failed because a file that no run has made is at the path of its output; return it."""
    name = os.path.basename(record.output)
    return record.fail(
        "TargetExistsError", "a foreign file exists already", f"{name} exists already, and was not made by this zoo"
    )


def _check_links(journal: Journal, sources: Sequence[str], folder: Folder) -> None:
    """Refuse folders of outputs that are in a source, by links or because the output folder contains it.

    Args:
        journal: has the planned outputs.
        sources: paths, patterns and URLs of the inputs.
        folder: the output folder.

    Raises:
        ModelError: a folder is in a source.
    """
    roots = roots_of(sources)
    own = identity(folder.place)
    if own is None:  # a dry run does not create the folder: nothing in it can be a link
        return

    @lru_cache(_FOLDERS_CHECKED)
    def is_in_source(subfolder: str) -> bool:
        """Return whether a subfolder is a source or in one; an empty text is the output folder itself.

        The output folder may be inside a source: only sources that links lead to, or that it contains, count.
        """
        place = join(folder.place, subfolder) if subfolder else folder.place
        return is_inside(place, roots, outside_of=own)

    for output in journal.outputs(f"status = '{PLANNED}'"):
        subfolder, _, _ = output.rpartition("/")
        if is_in_source(subfolder):
            raise ModelError(
                f"the output {output} would be in a source",
                file=folder.place,
                hint="Give a folder of its own with -o.",
            )
