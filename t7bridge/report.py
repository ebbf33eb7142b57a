"""Report of a conversion, as data: nothing is dropped without a note."""

from __future__ import annotations

from typing import Any

from attrs import asdict, field

from .data import define
from .text import printable_lines


@define(frozen=True)
class Note:
    """Something the user should know.

    Attributes:
        level: `info`, or `warning` where the result holds less than the source.
        path: path inside the value, `root.model.modules[3]`; empty where the note is about the whole file.
        message: one sentence.
        loss: what the target could not keep: `type`, `precision` or `sharing`; empty where nothing was lost.
        code: which kind of note it is, for programs: `unmapped` for a class without an entry; empty for others.
        class_name: the Lua or Python class that it is about, where there is one.
        count: how many places it is about.
    """

    level: str
    path: str
    message: str
    loss: str = ""
    code: str = ""
    class_name: str = ""
    count: int = 1

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return printable_lines(f"{self.level}: {where}{self.message}")


@define
class Report:
    """The result of converting one file.

    Attributes:
        source: path of the input.
        target: path of the output.
        source_format: `t7` or `pt`.
        target_format: `t7` or `pt`.
        mode: what was done: `tree`, `state dict` for modules, `record` where the source's record was used, `template`,
            or `copy` within one format.
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

    def note(self, level: str, message: str, path: str = "", loss: str = "") -> None:
        """Add a note."""
        self.notes.append(Note(level, path, message, loss))

    def as_dict(self) -> dict[str, Any]:
        """The report as data for JSON."""
        return asdict(self)
