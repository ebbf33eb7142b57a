"""Messages between the planner and its workers: plain data, as JSON."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from attrs import asdict, field

from ..data import define
from ..limits import DEFAULT_LIMITS, Limits

PLANNED, DONE, FAILED, FOREIGN = "planned", "done", "failed", "foreign"
CHUNK_BYTES = 1 << 20
_FIRST_BYTES = 1 << 16


@define(frozen=True)
class Settings:
    """Settings of the conversion of every file of a zoo.

    Attributes:
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
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str | bytes) -> Settings:
        """Parse that line."""
        data = json.loads(line)
        return cls(**{**data, "limits": Limits(**data["limits"])})

    def asked(self) -> dict[str, Any]:
        """Return the settings on which the bytes of the outputs depend, besides the inputs."""
        asked: dict[str, Any] = {"to": self.to, "module": self.module, "verify": self.verify, **self.options}
        if self.draw:
            asked["draw"] = True
        if self.prove:
            asked["prove"] = True
        if asked.get("template"):
            asked["template"] = digest(asked["template"])[0]
        return asked


@define(frozen=True, slots=False)
class Job:
    """One file to convert.

    Attributes:
        number: of its row in the journal.
        source: path or URL of the input.
        target: path or URL of the output; of a folder for modules.
        bytes: size of the input, if known.
        claimed: whether the file is declared to be a model, by suffix or by name on the command line; otherwise a file
            that turns out to be something else is not a failure.
    """

    number: int
    source: str
    target: str
    bytes: int = 0
    claimed: bool = True


def picture_of(target: str) -> str:
    """Return the path or URL of the picture next to an output."""
    return f"{target}.html"


NO_PICTURE = "no picture: "
"""Prefix of the note on a file that cannot be drawn."""


def as_line(jobs: list[Job]) -> str:
    """Return jobs as one line: of each its values, in the order of its fields."""
    return json.dumps([[*vars(job).values()] for job in jobs])


@define(slots=False)
class FileOutcome:
    """Outcome of one file.

    Attributes:
        number: of its row in the journal.
        status: `done`, `failed`, or `foreign` for a file that is not a model.
        kind: class of the error.
        message: the error in general, without position: the key by which failures are grouped.
        reason: the full error.
        input_bytes: size of the input.
        input_hash: SHA-256 of the input; empty if it could not be read.
        output_bytes: size of the output.
        output_hash: SHA-256 of the output; for a folder, of the names and hashes in it.
        mode: how it was converted, as in `Report`.
        tensors: number of tensors in the output.
        notes: level, path in the value, message and loss of each note.
        layers: path, class and reason of each layer without a PyTorch equivalent.
        seconds: time taken.
    """

    number: int
    status: str = FAILED
    kind: str = ""
    message: str = ""
    reason: str = ""
    input_bytes: int = 0
    input_hash: str = ""
    output_bytes: int = 0
    output_hash: str = ""
    mode: str = ""
    tensors: int = 0
    notes: list[list[str]] = field(factory=list)
    layers: list[list[str]] = field(factory=list)
    seconds: float = 0.0

    def as_json(self) -> str:
        """Return the outcome as one line: its values, in the order of its fields."""
        return json.dumps([*vars(self).values()])


def digest(path: str) -> tuple[str, int]:
    """Return SHA-256 in hexadecimal and size in bytes of a file; of a folder, of its files by name.

    Raises:
        OSError: it cannot be read.
    """
    found, size = hashlib.sha256(), 0
    if os.path.isdir(path):
        for name in sorted(os.listdir(path)):
            inner, count = digest(os.path.join(path, name))
            found.update(f"{name}\0{inner}\n".encode("utf-8", "surrogateescape"))
            size += count
        return found.hexdigest(), size
    with open(path, "rb", buffering=0) as file:
        # A small first piece: most files are small, and a large buffer would be allocated anew each time.
        while piece := file.read(CHUNK_BYTES if size else _FIRST_BYTES):
            found.update(piece)
            size += len(piece)
    return found.hexdigest(), size
