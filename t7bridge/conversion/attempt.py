"""An attempt to serve the request of a conversion: the request, and what is known only while it is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field

from .options import options_of, verb
from .request import Convert

if TYPE_CHECKING:
    from ..formats.table import Document
    from .edits import Edits


@verb
class Attempt(Convert):
    """One attempt to serve a request. A second one is made if a record of the source turns out to be wrong.

    Attributes:
        model: the template, open.
        trusts_records: whether the source's records are used first and checked while and after the target is written;
            otherwise they are checked first, or not used.
        edits: the changes of names and types that are asked for, if any. Then records of the source are checked before
            they are used, and the target has none of its past.
    """

    model: Document | None = field(default=None, kw_only=True)
    trusts_records: bool = field(default=True, kw_only=True)
    edits: Edits | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, request: Convert, **facts: Any) -> Attempt:
        """Return the first attempt to serve a request.

        Args:
            request: the options that were asked for.
            **facts: the fields of an attempt, and options that follow from others.
        """
        options = {}
        for name, option in options_of(request).items():
            if option.python:  # others exist on the command line only
                options[name] = getattr(request, name)
        # In `tree` mode there are no state dicts; `note_ignored` says so.
        has_rules = request.mode == "auto" and bool(request.rename or request.strip)
        # A template's tensors keep their types; `note_ignored` says so.
        dtype = request.dtype if request.template is None else None
        edits: Edits | None = None
        if has_rules or dtype is not None:
            from .edits import Edits

            edits = Edits(
                rename=request.rename if has_rules else (),
                strip=request.strip if has_rules else (),
                dtype=dtype,
            )
        fields = {**options, "edits": edits, **facts}  # facts come last: they may replace options
        return cls(**fields)

    def without_records(self) -> Attempt:
        """Return the second attempt, which follows when a record of the source was found wrong."""
        return Attempt.of(self, model=self.model, trusts_records=False)
