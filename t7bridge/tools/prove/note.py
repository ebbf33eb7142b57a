"""The result of a proof as one note of a report. May import errors, io, limits and report."""

from __future__ import annotations

from ...errors import T7BridgeError
from ...io.source import Readable
from ...limits import DEFAULT_LIMITS, Limits
from ...report import Note
from .proof import Proof

BEGIN = "proof: "
"""Prefix of such notes."""


def note_of(proof: Proof, path: str = "") -> Note:
    """Return a proof as a note: a warning if a layer differs.

    Args:
        proof: the proof.
        path: of the model, unless it is the whole file.
    """
    level = "warning" if proof.exit_code == 1 else "info"
    return Note(level, path, BEGIN + proof.sentence(), code="prove")


def prove_note(source: Readable, at: str | None = None, *, limits: Limits = DEFAULT_LIMITS) -> Note:
    """Prove a file and return the result as a note, also if it cannot be proved."""
    from .prove import prove

    try:
        return note_of(prove(source, at, limits=limits))
    except T7BridgeError as error:
        return Note("info", "", f"{BEGIN}not possible: {error.message or error}", code="prove")
