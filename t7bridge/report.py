"""Report of a conversion, as data: nothing is dropped without a note."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import asdict, evolve, field, validators

from .data import define
from .errors import StrictError
from .text import clean, counted, listed, one_line, printable, printable_lines

_SHOWN_LOSSES = 5
"""Maximum notes in the message of a `StrictError`; the error has all."""

CODES = {
    "beside": "data in a field of a module are beside its state dict",
    "carried": "a tensor that state dicts have no name for is in it under another name",
    "cycle": "a module contains itself",
    "element-type": "elements have another type that holds the same values",
    "fixed-batch": "a traced module accepts one batch size only",
    "fixed-sizes": "the Lua model refuses inputs of other sizes than the example's",
    "foreign-name": "a pickle names a class or function that is not data",
    "left-out": "part of the source is not in the target",
    "layer": "how the tensors of a layer are written",
    "lift": "a recurrent cell was recognized, or something stood against it",
    "lua": "how a module was built for Lua",
    "match": "how keys were matched",
    "metadata": "strings beside the values are left out",
    "name": "keys are named in another way",
    "no-record": "the target cannot hold the round-trip record",
    "not-weights-only": "`torch.load(weights_only=True)` refuses the target",
    "option": "an option has no meaning here",
    "order": "outputs are ordered instead of named",
    "plain-data": "an object is written as plain data that names its class",
    "precision": "numbers lost precision",
    "prove": "the result was compared with what Lua recorded",
    "record": "the round-trip record of the source was not used",
    "renamed": "a tensor is written under another name, as its own is taken or the format cannot have it",
    "several-models": "the models of a file are in folders of their own",
    "several-values": "the values of a file became a list",
    "shared": "tensors share memory, and the metadata says so",
    "shards": "the tensors are in several files with an index",
    "state-dict": "a module is written as its state dict",
    "storage": "a storage is written as a tensor of one dimension",
    "template": "how a template was filled",
    "trailing": "bytes after the last value are not a value",
    "type": "a value has another type",
    "unmapped": "a class has no entry, and its tensors are named after its fields",
    "unread-field": "a field of a layer has tensors or modules that its class does not use",
    "unshared": "tensors that shared memory no longer do",
    "vintage": "objects of an old release are written in today's form",
}
"""The kinds of notes, for programs: no message needs to be parsed."""


@define(frozen=True)
class Note:
    """Something the user should know.

    Attributes:
        level: `info`, or `warning` where the result holds less than the source.
        path: path inside the value, `root.model.modules[3]`; empty where the note concerns the whole file.
        message: one sentence.
        loss: what the target could not keep: `type`, `precision` or `sharing`; empty where nothing was lost.
        code: kind of the note, for programs: one of `CODES`.
        class_name: the Lua or Python class concerned, if any.
        count: number of places concerned.
    """

    level: str
    path: str
    message: str
    loss: str = ""
    code: str = field(kw_only=True, validator=validators.in_(CODES))
    class_name: str = ""
    count: int = 1

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return printable_lines(f"{self.level}: {where}{self.message}")

    def __repr__(self) -> str:
        return one_line(self, str(self))


def joined(notes: Iterable[Note]) -> list[Note]:
    """Return notes to be printed: one for those of one level and message, with the first paths of all."""
    paths_of: dict[tuple[str, str], list[str]] = {}
    first_notes: dict[tuple[str, str], Note] = {}
    for note in notes:
        key = (note.level, note.message)
        paths_of.setdefault(key, []).append(note.path)
        first_notes.setdefault(key, note)
    merged = []
    for key, note in first_notes.items():
        distinct_paths = filter(None, dict.fromkeys(paths_of[key]))
        merged.append(evolve(note, path=listed(distinct_paths)))
    return merged


class Printed:
    """A result as the command line prints it; also in notebooks. Its `repr`, at the prompt, is one line."""

    notes: Sequence[Note] = ()

    def lines(self) -> Iterable[str]:
        """Return the lines that the command line prints."""
        raise NotImplementedError

    def _result(self) -> str:
        """Return the result in a few words: by default the last line."""
        *_, last = self.lines()
        return last

    def __str__(self) -> str:
        return "\n".join([*map(str, joined(self.notes)), *map(printable, self.lines())])

    def __repr__(self) -> str:
        return one_line(self, self._result())

    def _repr_html_(self) -> str:
        return f"<pre>{escaped(str(self))}</pre>"


def escaped(text: str) -> str:
    """Return printable text as text of a page."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@define
class Report(Printed):
    """The result of converting one file.

    Attributes:
        source: path of the input.
        target: path of the output.
        source_format: name of its format, as in `--to`, or that of a format which is only read.
        target_format: likewise, of the output.
        mode: how it was converted: `tree`, `state dict` for modules, `record` where the source's record was used,
            `template`, or `copy` within one format.
        tensors: number of tensors in the output.
        storages: number of storages in the output.
        source_bytes: size of the input.
        target_bytes: size of the output.
        notes: what the user should know.
    """

    source: str = ""
    target: str = ""
    source_format: str = ""
    target_format: str = ""
    mode: str = ""
    tensors: int = 0
    storages: int = 0
    source_bytes: int = 0
    target_bytes: int = 0
    notes: list[Note] = field(factory=list)

    def note(
        self,
        level: str,
        message: str,
        path: str = "",
        loss: str = "",
        *,
        code: str,
        class_name: str = "",
        count: int = 1,
    ) -> None:
        """Add a note.

        Args:
            level: `info`, or `warning` where the result holds less than the source.
            message: one sentence.
            path: what it is about, in the value; empty for the whole.
            loss: `type`, `precision` or `sharing`, if that is lost.
            code: the kind of note, for programs: one of `CODES`.
            class_name: of the object that it is about.
            count: number of places that it is about, of which `path` is the first.
        """
        self.notes.append(Note(level, path, message, loss, code=code, class_name=class_name, count=count))

    def lines(self) -> list[str]:
        """Return one line: what was written."""
        return [f"{self.target}: {self.mode}, {counted(self.tensors, 'tensor')}, {self.target_bytes:,} bytes"]

    def _result(self) -> str:
        """Return what was read and written, and the number of notes."""
        notes = f"; {counted(len(self.notes), 'note')}" if self.notes else ""
        return f"{clean(self.source)} to {clean(self.target)}: {self.mode}, {counted(self.tensors, 'tensor')}{notes}"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as data for JSON."""
        return asdict(self)


def check_strict(report: Report, strict: bool) -> None:
    """Refuse a result that holds less than its source, if `strict` is set.

    Called before the output takes its name, so that nothing is left behind.

    Raises:
        StrictError: the report has a warning, or a note about a lost type, precision or sharing.
    """
    losses = [note for note in report.notes if note.level == "warning" or note.loss]
    if not strict or not losses:
        return
    first, *others = losses[:_SHOWN_LOSSES]
    # The path of the first one is that of the error, before the message.
    messages = [first.message]
    messages += [f"{note.path}: {note.message}" if note.path else note.message for note in others]
    if len(losses) > _SHOWN_LOSSES:
        messages.append(f"and {len(losses) - _SHOWN_LOSSES} more")
    raise StrictError(
        "; ".join(messages),
        file=report.source,
        path=first.path,
        hint="Without --strict (strict=True) this is a note in the report.",
        notes=tuple(losses),
    )
