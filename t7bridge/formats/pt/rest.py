"""The bytes after the value of a pickle."""

from __future__ import annotations

from ...data import define
from ...errors import ForbiddenGlobalError, LimitError, T7BridgeError
from ...report import Note
from .pickle.unpickler import Unpickler

_MOST_PICKLES = 1_000
"""Maximum number of pickles read after the value: even a tiny one costs as much as opening a file."""


@define
class Rest:
    """The bytes after the value of a pickle, or of a file of pickles.

    Attributes:
        offset: where they begin, in bytes.
        nbytes: number of bytes.
        pickles: number of further pickles at their beginning.
    """

    offset: int = 0
    nbytes: int = 0
    pickles: int = 0


def read_rest(pickles: Unpickler, end: int) -> Rest:
    """Read the pickles after the value, which programs may load one after another.

    Args:
        pickles: positioned after the value.
        end: of the file or member, in bytes.

    Raises:
        ForbiddenGlobalError: one names what runs code.
        LimitError: there are too many.
    """
    rest = Rest(pickles.position, end - pickles.position)
    while pickles.position < end:
        if rest.pickles == _MOST_PICKLES:
            raise LimitError(
                "too many pickles follow one another", expected=f"at most {_MOST_PICKLES}", offset=pickles.position
            )
        try:
            pickles.load()
        except ForbiddenGlobalError:
            raise
        except T7BridgeError:
            break
        rest.pickles += 1
    return rest


def note_rest(rest: Rest, member: str = "") -> list[Note]:
    """Note the bytes after a value, if any."""
    if not rest.nbytes:
        return []
    where = f" of {member}" if member else ""
    pickles = f", {rest.pickles} more pickle{'s' * (rest.pickles > 1)} among them," if rest.pickles else ""
    return [Note("warning", "", f"{rest.nbytes} bytes after the value{where}{pickles} are left out", code="trailing")]
