"""The values that a conversion starts from, and notes about those of a `.pt`: what was read, and what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import CorruptError
from ..formats import FORMATS, NAMED
from ..formats.pt.modules import is_module
from ..formats.pt.pickle.names import is_torch
from ..graph.python import NumpyArray, NumpyScalar
from ..graph.walk import objects, walk
from ..report import Report
from ..text import and_more, listed
from .request import Convert

if TYPE_CHECKING:
    from ..formats.document import Document
    from ..formats.pt.writer import LegacyPtWriter, PtWriter


def note_foreign_names(names: list[str], report: Report) -> None:
    """Note the classes and functions named by a pickle that are not data."""
    if names:
        note_foreign(names, report)


def value_of(document: Document, request: Convert, report: Report) -> Any:
    """Return the value of a file that holds Python values or named tensors."""
    value = document.value
    if any(name.startswith("torch.distributed") for name in document.foreign):
        from ..formats.pt.pickle.tensors import check_whole

        check_whole(value)
    note_foreign_names(document.foreign, report)
    report.notes += document.notes
    return _use_metadata(value, document, request, report) if document.metadata else value


def _use_metadata(value: Any, document: Document, request: Convert, report: Report) -> Any:
    """Return a value with the element types and numbers that the file's metadata record; note strings left out."""
    from ..values.widened import HINTS, NUMBERS_KEY, restore_values

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


_MOST_NOTES = 20


_SHOWN = 200


def note_foreign(names: list[str], report: Report) -> None:
    """Note the classes and functions named by a pickle that are not data."""
    if not names:
        return
    shown = [name[:_SHOWN] + " (PyTorch's, and not data)" * is_torch(name) for name in names]
    report.note(
        "warning",
        f"the pickle names what is not data; nothing was called: {listed(shown, _MOST_NOTES)}",
        code="foreign-name",
        class_name=names[0][:_SHOWN],
        count=len(names),
    )


def note_target(writer: PtWriter | LegacyPtWriter, value: Any, report: Report) -> None:
    """Note the objects that were written as plain data, and whether `torch.load(weights_only=True)` reads the file.

    Args:
        writer: of the target, after it has written the value.
        value: the value written.
        report: receives the notes.
    """
    wanted = {id(item) for items in writer.plain.values() for item in items[:1]}
    wanted |= {id(item) for item in writer.blocking.values()}
    paths = paths_of(value, wanted) if wanted else {}
    for name, items in list(writer.plain.items())[:_MOST_NOTES]:
        more = and_more(len(items) - 1)
        report.note(
            "warning",
            f"{name[:_SHOWN]} is written as plain data, not as a name that a reader would import{more}",
            paths.get(id(items[0]), ""),
            "type",
            code="plain-data",
            class_name=name[:_SHOWN],
            count=len(items),
        )
    for name, item in list(writer.blocking.items())[:_MOST_NOTES]:
        report.note(
            "info",
            f"torch.load(weights_only=True) refuses the file, as it names {name[:_SHOWN]}",
            paths.get(id(item), ""),
            code="not-weights-only",
            class_name=name[:_SHOWN],
        )


def paths_of(value: Any, wanted: set[int]) -> dict[int, str]:
    """Return the paths to values, by identity."""
    found: dict[int, str] = {}
    for path in walk(value, kinds=object):
        if id(path.value) in wanted and id(path.value) not in found:
            found[id(path.value)] = str(path)
            if len(found) == len(wanted):
                break
    return found


def array_of(value: NumpyArray | NumpyScalar, path: str = "") -> NumpyArray:
    """Return a numpy array; of a scalar one without dimensions.

    Raises:
        CorruptError: a scalar's bytes do not fit its type.
    """
    if isinstance(value, NumpyArray):
        return value
    if isinstance(value.data, bytes) and len(value.data) != max(value.dtype.itemsize, 1):
        raise CorruptError("a numpy scalar's bytes do not fit its type", path=path)
    return value.array


def has_modules(value: Any) -> bool:
    """Return whether a value contains whole modules."""
    return any(is_module(item) for item in objects(value))
