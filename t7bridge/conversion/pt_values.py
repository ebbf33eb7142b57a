"""Notes about the values of a `.pt`: what was read, and what was written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..formats.pt.modules import is_module
from ..formats.pt.pickle.names import is_torch
from ..graph.paths import ROOT, Location, inner, path_text
from ..graph.python import PythonObject
from ..graph.walk import objects
from ..report import Report

if TYPE_CHECKING:
    from ..formats.pt.legacy_writer import LegacyPtWriter
    from ..formats.pt.writer import PtWriter

_MOST_NOTES = 20
_SHOWN = 200


def note_foreign(names: list[str], report: Report) -> None:
    """Note the classes and functions named by a pickle that are not data."""
    if not names:
        return
    listed = ", ".join(name[:_SHOWN] + " (PyTorch's, and not data)" * is_torch(name) for name in names[:_MOST_NOTES])
    more = f", and {len(names) - _MOST_NOTES} more" if len(names) > _MOST_NOTES else ""
    report.note(
        "warning",
        f"the pickle names what is not data; nothing was called: {listed}{more}",
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
        more = f", and {len(items) - 1} more" if len(items) > 1 else ""
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
    for path, item in _walk(value):
        if id(item) in wanted and id(item) not in found:
            found[id(item)] = path_text(path)
            if len(found) == len(wanted):
                break
    return found


def _walk(value: Any) -> Iterator[tuple[Location, Any]]:
    """Yield every value inside a value once, with the first path to it."""
    stack: list[tuple[Location, Any]] = [(ROOT, value)]
    seen: set[int] = set()
    while stack:
        path, item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield path, item
        inside: list[tuple[Any, Any]] = []
        if isinstance(item, dict):
            inside = list(item.items())
            stack += [(inner(path, key), key) for key in item if isinstance(key, (PythonObject, tuple))]
        elif isinstance(item, (list, tuple)):
            inside = list(enumerate(item))
        elif isinstance(item, (set, frozenset)):
            inside = [(None, part) for part in item]
        elif isinstance(item, PythonObject):
            parts = ("args", "kwargs", "state", "items", "pairs")
            inside = [(f"<{part}>", getattr(item, part)) for part in parts if part != "state"]
            inside += list(item.attributes.items()) or [("<state>", item.state)]
        stack += [(inner(path, key), part) for key, part in reversed(inside)]


def has_modules(value: Any) -> bool:
    """Return whether a value contains whole modules."""
    return any(is_module(item) for item in objects(value))
