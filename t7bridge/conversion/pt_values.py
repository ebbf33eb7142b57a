"""The values of a `.pt` during conversion: whole modules as state dicts, and notes about what was read and written.

Source: PyTorch 2.13 `torch/nn/modules/module.py` `state_dict`; `torch/_weights_only_unpickler.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..formats.pt.modules import is_module
from ..formats.pt.pickle.names import is_torch
from ..graph.paths import ROOT, Location, inner, path_text
from ..graph.python import PythonObject
from ..graph.walk import objects
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Report
from .whole_modules import WholeModules

if TYPE_CHECKING:
    from ..formats.pt.legacy_writer import LegacyPtWriter
    from ..formats.pt.writer import PtWriter

_MOST_NOTES = 20
_SHOWN = 200


def note_foreign(names: list[str], report: Report) -> None:
    """Note the classes and functions named by a pickle that are not data."""
    for name in names[:_MOST_NOTES]:
        whose = "is PyTorch's, and not data" if is_torch(name) else "is not part of PyTorch"
        report.note(
            "warning",
            f"the pickle names {name[:_SHOWN]}, which {whose}; nothing was called",
            code="foreign-name",
            class_name=name[:_SHOWN],
        )
    if len(names) > _MOST_NOTES:
        report.note(
            "warning",
            f"the pickle names {len(names) - _MOST_NOTES} more classes and functions that are not data",
            code="foreign-name",
            count=len(names) - _MOST_NOTES,
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
    paths = _paths(value, wanted) if wanted else {}
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


def _paths(value: Any, wanted: set[int]) -> dict[int, str]:
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
    return any(isinstance(item, PythonObject) and item.is_module for item in objects(value))


def with_state_dicts(value: Any, report: Report, limits: Limits = DEFAULT_LIMITS) -> Any:
    """Replace the whole modules in a value by their state dicts; containers are changed in place.

    A shared module becomes one shared state dict, tied parameters stay tied, and non-persistent buffers are left out,
    as in PyTorch.

    Args:
        value: the result of `PtReader.read`.
        report: receives a note for each module.
        limits: bound how often shared values are repeated.

    Raises:
        LimitError: modules contain one another endlessly.
    """
    modules = WholeModules(limits)
    tuples: dict[int, Any] = {}

    def replaced(item: Any, path: Location) -> Any:
        if not is_module(item):
            return item
        if item not in modules:
            report.note(
                "info",
                f"the {item.path[:_SHOWN]} is written as its state dict",
                path_text(path),
                "type",
                code="state-dict",
                class_name=item.path[:_SHOWN],
            )
        return modules.state_dict(item, path_text(path))

    if is_module(value):
        result = replaced(value, ROOT)
        report.notes += modules.left_out(result)
        return result
    for path, item in list(_walk_outside(value)):
        if isinstance(item, dict):
            for key, part in item.items():
                item[key] = _in_tuples(part, inner(path, key), replaced, tuples)
        else:
            item[:] = [_in_tuples(part, inner(path, number), replaced, tuples) for number, part in enumerate(item)]
    result = _in_tuples(value, ROOT, replaced, tuples)
    report.notes += modules.left_out(result)
    return result


def _walk_outside(value: Any) -> Iterator[tuple[Location, Any]]:
    """Yield the dicts and lists of a value that are outside of modules."""
    stack: list[tuple[Location, Any]] = [(ROOT, value)]
    seen: set[int] = set()
    while stack:
        path, item = stack.pop()
        if id(item) in seen or is_module(item):
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            yield path, item
            stack += [(inner(path, key), part) for key, part in item.items()]
        elif isinstance(item, (list, tuple)):
            if isinstance(item, list):
                yield path, item
            stack += [(inner(path, number), part) for number, part in enumerate(item)]
        elif isinstance(item, PythonObject):
            stack += [(path, item.state), (path, item.items), (path, item.args)]


def _in_tuples(value: Any, path: Location, replaced: Callable[[Any, Location], Any], made: dict[int, Any]) -> Any:
    """Return a value with its modules replaced, also those in nested tuples; tuples without any stay the same.

    Args:
        value: anything.
        path: of the value.
        replaced: returns the replacement of a value that is not a tuple.
        made: the replacement of each tuple so far, by `id`; a shared one is visited once.
    """
    if type(value) is not tuple:
        return replaced(value, path)
    stack = [(value, path)]
    while stack:
        item, place = stack[-1]
        if id(item) not in made:
            inside = [(part, inner(place, number)) for number, part in enumerate(item)]
            missing = [each for each in inside if type(each[0]) is tuple and id(each[0]) not in made]
            if missing:
                stack += missing
                continue
            parts = [made[id(part)] if type(part) is tuple else replaced(part, where) for part, where in inside]
            made[id(item)] = tuple(parts) if any(new is not old for new, old in zip(parts, item)) else item
        stack.pop()
    return made[id(value)]
