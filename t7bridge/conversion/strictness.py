"""The `strict` option: any loss, otherwise a note in the report, is an error."""

from __future__ import annotations

from ..errors import StrictError
from ..report import Report

_SHOWN = 5


def check_strict(report: Report, strict: bool) -> None:
    """Refuse a result that holds less than its source, if `strict` is set.

    Called before the output takes its name, so that nothing is left behind.

    Raises:
        StrictError: the report has a warning, or a note about a lost type, precision or sharing.
    """
    lost = [note for note in report.notes if note.level == "warning" or note.loss] if strict else []
    if lost:
        first = lost[0]
        more = [f"{note.path}: {note.message}" if note.path else note.message for note in lost[1:_SHOWN]]
        rest = f"; and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        raise StrictError(
            "; ".join([first.message, *more]) + rest,
            file=report.source,
            path=first.path,
            hint="Without --strict (strict=True) this is a note in the report.",
            notes=tuple(lost),
        )
