"""The values that a conversion starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..formats import FORMATS, NAMED
from ..report import Report

if TYPE_CHECKING:
    from ..formats.document import Document
    from .request import Convert


def note_foreign_names(names: list[str], report: Report) -> None:
    """Note the classes and functions named by a pickle that are not data."""
    if names:
        from .pt_values import note_foreign

        note_foreign(names, report)


def value_of(document: Document, request: Convert, report: Report) -> Any:
    """Return the value of a file that holds Python values or named tensors."""
    value = document.value
    if any(name.startswith("torch.distributed") for name in document.foreign):
        from ..formats.pt.dtensor import check_whole

        check_whole(value)
    note_foreign_names(document.foreign, report)
    report.notes += document.notes
    return _use_metadata(value, document, request, report) if document.metadata else value


def _use_metadata(value: Any, document: Document, request: Convert, report: Report) -> Any:
    """Return a value with the element types and numbers that the file's metadata record; note strings left out."""
    from ..values.elements import HINTS, NUMBERS_KEY, restore_values

    goal = FORMATS[report.target_format]
    # As numbers they would be text in a file of tensors only, where readers of the source see arrays.
    unused = {NUMBERS_KEY} if goal.values == NAMED and not goal.numbers else set()
    hints = {name: text for name, text in document.metadata.items() if name in HINTS - unused}
    if request.record and hints:
        value, refused = restore_values(value, hints, check=not request.believed)
        if refused:
            others = f", and {len(refused) - 1} more tensors" if len(refused) > 1 else ""
            report.note(
                "warning",
                f"its elements are not all of the type that the metadata record, which is not used{others}",
                refused[0],
                code="record",
                count=len(refused),
            )
    metadata = [name for name in document.metadata if name not in HINTS]
    if metadata and goal.values != NAMED:
        report.note("info", metadata_left_out(metadata), code="metadata", count=len(metadata))
    return value


def metadata_left_out(names: list[str]) -> str:
    """Return the sentence on strings of a file's metadata that its target does not have."""
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    strings = "1 string" if len(names) == 1 else f"{len(names)} strings"
    return f"{strings} of the file's metadata left out: {shown}"
