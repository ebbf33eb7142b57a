"""The request of one conversion, and the values that it starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field

from ..data import define
from ..formats import FORMATS, NAMED
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Report

if TYPE_CHECKING:
    from ..formats.document import Document
    from ..formats.pt.locations import MapLocation


@define(frozen=True)
class Options:
    """Options of one conversion; see `convert`.

    Attributes:
        layout: the requested parts of a `.t7`'s layout.
        template: the Lua model that receives a state dict, open.
        believed: whether the source's records are used, to be checked while and after the target is written; `False`
            after they were found wrong.
    """

    mode: str = "auto"
    layout: dict[str, Any] = field(factory=dict)
    keep_device: bool = False
    record: bool = True
    nested: bool = False
    pt_format: str = "zip"
    limits: Limits = DEFAULT_LIMITS
    template: Document | None = None
    partial: bool = False
    compact: bool = False
    allow_foreign: bool = False
    map_location: MapLocation = None
    believed: bool = True


def note_foreign_names(names: list[str], report: Report) -> None:
    """Note the classes and functions named by a pickle that are not data."""
    if names:
        from .pt_values import note_foreign

        note_foreign(names, report)


def value_of(document: Document, options: Options, report: Report) -> Any:
    """Return the value of a file that holds Python values or named tensors."""
    value = document.value
    if any(name.startswith("torch.distributed") for name in document.foreign):
        from ..formats.pt.dtensor import check_whole

        check_whole(value)
    note_foreign_names(document.foreign, report)
    report.notes += document.notes
    return _use_metadata(value, document, options, report) if document.metadata else value


def _use_metadata(value: Any, document: Document, options: Options, report: Report) -> Any:
    """Return a value with the element types and numbers that the file's metadata record; note strings left out."""
    from ..values.elements import HINTS, restore_values

    if options.record and not HINTS.isdisjoint(document.metadata):
        value, refused = restore_values(value, document.metadata, check=not options.believed)
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
    if metadata and FORMATS[report.target_format].values != NAMED:
        names = ", ".join(metadata[:5]) + (", …" if len(metadata) > 5 else "")
        report.note(
            "info",
            f"{len(metadata)} strings of the file's metadata are left out: {names}",
            code="metadata",
            count=len(metadata),
        )
    return value
