"""Changes of the weights that the user asks for: other names (`--rename`, `--strip`), another type (`--dtype`).

`edited` makes them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..report import Report
from ..text import counted
from ..values.casts import Casts
from .naming import Naming, Renames


class Edits:
    """The changes that one conversion makes.

    Args:
        rename: rules for the keys of the state dict.
        strip: prefixes to leave out of them first.
        dtype: the new type of floating-point elements, one of `CAST_TYPES`; `None` to keep theirs.
        must_fit: whether rules for names that fit nothing are an error. In a zoo, whose files differ, they are a note.

    Attributes:
        naming: the rules for names; false if there are none.
        must_fit: as given.
        casts: the new type, with counts of what it casts; `None` to keep the types.

    Raises:
        ModelError: a rule is not valid.
    """

    def __init__(
        self,
        rename: Renames = (),
        strip: Iterable[str] = (),
        dtype: str | None = None,
        *,
        must_fit: bool = True,
    ) -> None:
        self.naming = Naming(rename, strip)
        self.must_fit = must_fit
        self.casts = Casts(dtype) if dtype is not None else None

    def note_written(self, report: Report) -> None:
        """Note what was known only when the elements were read: how many became infinite."""
        if self.casts is None or not self.casts.infinities:
            return
        count = sum(self.casts.infinities)
        numbers = counted(count, "element is", "elements are")
        message = f"{numbers} too large for {self.casts.element.name}, and infinite there"
        report.note("warning", message, loss="precision", code="precision", count=count)
