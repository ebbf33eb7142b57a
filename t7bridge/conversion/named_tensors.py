"""Values as named tensors, for formats that hold nothing else.

The value is the one that `convert` writes in `auto` mode, with state dicts in place of modules; each tensor is named by
its path: `model.0.weight`. Strings go into the file's metadata, and so do numbers that are no tensors. The rest is
left out, and listed in the report by kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import evolve, field

from ..data import define
from ..errors import LimitError, ModelError
from ..formats import FormatSpec
from ..formats.named import METADATA_KEY, Name, NamedTensors, plan_views
from ..graph.python import NAMED, PythonObject, in_order, key_text, name_text
from ..graph.storage import Storage
from ..graph.tensor import QuantizedTensor, SparseTensor, Tensor, UntypedStorage
from ..graph.walk import Path
from ..limits import DEFAULT_LIMITS, Budget, Limits
from ..report import Report
from ..text import and_more, counted, listed
from ..values.widened import (
    ELEMENTS_KEY,
    HINTS,
    NUMBERS_KEY,
    pairs_of_numbers,
    parts_of,
    resolved,
    tensor_of_numbers,
    widen,
)
from .request import metadata_left_out

_LONGEST_NAME = 10_000
"""Maximum characters of the name of a number that is a tensor; numbers of longer names stay text."""
_SCALARS = 1_000
"""Number of texts in the metadata from which on those of one table are one; most tensors for numbers and lists."""
_SHOWN = 5
_DEPTH = 50
"""Steps of a name that are not charged to `Limits.work`."""
_RESERVED = frozenset({(METADATA_KEY,), ("format",), *((key,) for key in HINTS)})
"""Metadata that are not those of the value."""
_LONGEST_KEY = 200
"""Characters of the text of a key that is neither text nor a number."""
_REPEATED = 16
"""Maximum bytes of all tensors, as a multiple of those of the storages."""
_COPIES = 10_000
"""Maximum values in containers that are written under several names: graphs of shared containers grow exponentially."""
_MOST_STEPS = 1_000_000
_SHARED = "container present under another name"
_CYCLE = "container that contains itself"


@define(eq=False)
class _Names:
    """Names that are taken: keys that differ may have one text, as 1.0 and "1.0" have.

    Attributes:
        taken: the names.
        repeats: of those that were wanted again, the number to try next.
    """

    taken: set[Name] = field(factory=set)
    repeats: dict[Name, int] = field(factory=dict)

    def free(self, name: Name) -> Name:
        """Return a name that is free: the name, or `name~2`, …."""
        made, number = name, self.repeats.get(name, 2)
        while made in self.taken:
            made, number = (*name[:-1], f"{name[-1]}~{number}"), number + 1
            self.repeats[name] = number
        return made

    def take(self, name: Name, renamed: list[tuple[Name, Name]] | None = None) -> Name:
        """Return a name that is free, and take it; note it in a list if it is another."""
        made = self.free(name)
        self.taken.add(made)
        if renamed is not None and made != name:
            renamed.append((name, made))
        return made


@define(eq=False)
class Flat:
    """A value as named tensors.

    Attributes:
        tensors: each tensor under its steps: `("model", "0.weight")`.
        scalars: numbers, strings, truth values and None, each with its steps.
        left_out: paths of everything else, by kind.
        storages: steps to storages, each of which becomes a tensor of one dimension.
        renamed: what has another name, as its own was taken: the steps to it, and the name.
        numbers: kinds of the tensors that are numbers or lists of numbers, by identity.
        copies: number of values in containers that were named before.
        names: of the tensors.
    """

    tensors: dict[Name, Tensor] = field(factory=dict)
    scalars: list[tuple[Name, Any]] = field(factory=list)
    left_out: dict[str, list[str]] = field(factory=dict)
    storages: list[Name] = field(factory=list)
    renamed: list[tuple[Name, Name]] = field(factory=list)
    numbers: dict[int, str] = field(factory=dict)
    copies: int = 0
    names: _Names = field(factory=_Names)

    def add(self, item: Any, steps: Name) -> None:
        """Add a value without parts of its own."""
        name = steps or ("root",)
        item = item.storage if isinstance(item, UntypedStorage) else item
        if isinstance(item, Storage):
            self.storages.append(steps)
            item = Tensor(item.element, item, (item.count,), (1,))
        if isinstance(item, Tensor):
            self.tensors[self.names.take(name, self.renamed)] = item
        elif isinstance(item, (bool, int, float, str, type(None), *NAMED)):
            self.scalars.append((name, name_text(item) if isinstance(item, NAMED) else item))
        else:
            self.leave_out(_kind(item), steps)

    def leave_out(self, kind: str, steps: Name) -> None:
        """Record something that is left out."""
        self.left_out.setdefault(kind, []).append(".".join(steps) or "root")


def flatten(value: Any, limits: Limits = DEFAULT_LIMITS, *, numbers: bool = False, copies: bool = True) -> Flat:
    """Name the tensors of a value of dicts and lists. Lists count from 0.

    What is in a shared container has a name for each name of the container, as a shared tensor has.

    Args:
        value: the value.
        limits: resource limits.
        numbers: whether numbers and lists of numbers are tensors, unless there are very many.
        copies: whether shared containers are named again, unless that makes very many names.

    Raises:
        LimitError: values are nested so deeply that their names are far longer than the file.
    """
    flat = Flat()
    seen: set[int] = set()
    parts: dict[int, Any] = {}  # of sets and the like, by identity: what is shared has the same ones
    lists: dict[int, tuple[Tensor, str]] = {}  # the tensors of lists of numbers: those of a shared one are tied
    budget = Budget(limits, "naming deeply nested values")
    steps = 0  # to the containers around those that occur again
    stack: list[tuple[int, Path, bool]] = [(0, Path(None, "root", value), False)]
    while stack:
        depth, path, is_copy = stack.pop()
        item = path.value
        if isinstance(item, (QuantizedTensor, SparseTensor, set, frozenset)):
            if id(item) not in parts:
                parts[id(item)] = in_order(item) if isinstance(item, (set, frozenset)) else parts_of(item)
            item = parts[id(item)]
        is_container = isinstance(item, (dict, list, tuple)) and not _is_function(item)
        flat.copies += is_copy
        if flat.copies > _COPIES or steps > _MOST_STEPS:
            return flatten(value, limits, numbers=numbers, copies=False)
        if numbers:
            made = lists.get(id(item)) if is_container else None
            made = made or tensor_of_numbers(item)
            if made is not None and sum(map(len, _steps_to(path))) < _LONGEST_NAME:
                if is_container:
                    lists[id(item)] = made
                item, flat.numbers[id(made[0])] = made
                is_container = False
                if len(flat.numbers) > _SCALARS:
                    return flatten(value, limits, copies=copies)
        if not is_container:
            if is_copy:
                steps += depth
            else:
                budget.spend(max(0, depth - _DEPTH))
            flat.add(item, _steps_to(path))
            continue
        if id(item) in seen:
            if not copies:
                flat.leave_out(_SHARED, _steps_to(path))
                continue
            steps += depth
            if steps > _MOST_STEPS:
                return flatten(value, limits, numbers=numbers, copies=False)
            if _contains_itself(path):
                flat.leave_out(_CYCLE, _steps_to(path))
                continue
            is_copy = True
        seen.add(id(item))
        pairs = item.items() if isinstance(item, dict) else enumerate(item)
        stack += [(depth + 1, Path(path, key, inner), is_copy) for key, inner in reversed(list(pairs))]
    return flat


def _contains_itself(path: Path) -> bool:
    """Return whether the value at a path is also what contains it."""
    around = path.parent
    while around is not None:
        if around.value is path.value:
            return True
        around = around.parent
    return False


def _steps_to(path: Path) -> Name:
    return tuple(_step(each.key) for each in path.steps()[1:])


def _is_function(item: Any) -> bool:
    """Return whether a dict represents a Lua function, in `tree` mode."""
    return isinstance(item, dict) and item.get("__class__") == "function" and isinstance(item.get("code"), bytes)


def _kind(item: Any) -> str:
    if _is_function(item):
        return "function"
    if isinstance(item, PythonObject):
        return f"object of class {item.path}"
    return {"bytes": "byte string", "NoneType": "None"}.get(type(item).__name__, type(item).__name__)


def _step(key: Any) -> str:
    if isinstance(key, bytes):
        return key.decode("utf-8", "backslashreplace")
    return str(key) if isinstance(key, (str, int, float)) else key_text(key)[:_LONGEST_KEY]


def name_tensors(
    value: Any,
    goal: FormatSpec,
    report: Report,
    metadata: Mapping[str, str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> NamedTensors:
    """Return a value in the form that a format of named tensors can hold.

    Args:
        value: builtins with tensors in them.
        goal: the format.
        report: receives notes for what is left out, written as another type, or shared.
        metadata: strings of the source file.
        limits: resource limits.

    Raises:
        LimitError: the tensors repeat the same bytes excessively, or values are nested too deeply to be named.
    """
    flat = flatten(value, limits, numbers=goal.numbers)
    if flat.copies and _repeats(flat.tensors):
        flat = flatten(value, limits, numbers=goal.numbers, copies=False)
    for name, tensor in list(flat.tensors.items()):
        if tensor.storage is None and tensor.numel:
            flat.leave_out(f"tensor without elements (device {tensor.device})", name)
            del flat.tensors[name]
    if not goal.text_bytes:
        for name, scalar in flat.scalars:
            flat.leave_out(_kind(scalar), name)
        flat.scalars.clear()
    if flat.storages:
        storages = "a storage is" if len(flat.storages) == 1 else f"{len(flat.storages)} storages are"
        message = f"{storages} written as a tensor of one dimension: {_listed(flat.storages)}"
        report.note("info", message, code="storage")
    if repeats := _repeats(flat.tensors):
        raise LimitError("the tensors repeat the same elements excessively", expected=repeats[0], found=repeats[1])
    fit_names(flat, goal, limits)
    texts = _named_texts(flat, goal, metadata or {}) if goal.text_bytes else {}
    for number, (name, made) in enumerate(flat.renamed[:_SHOWN], 1):
        left = len(flat.renamed) - _SHOWN if number == _SHOWN else 0
        others = f"{and_more(left)} have other names" if left > 0 else ""
        message = f"its name is taken, or {goal.title} cannot have it: written as {'.'.join(made)}{others}"
        report.note("warning", message, ".".join(name), code="renamed")
    for kind, paths in flat.left_out.items():
        count = len(paths)
        what, more = (kind, "") if count == 1 else (f"{kind}: {count} of them", f" ({listed(paths, _SHOWN)})")
        message = f"{what}: left out, as {goal.title} holds tensors only{more}"
        report.note("warning", message, paths[0], code="left-out", count=count)
    named = NamedTensors(_with_elements(flat.tensors, goal, report))
    named.views, apart = plan_views(named.tensors)
    if goal.text_bytes:
        named.metadata = texts | _hints(flat, named.tensors)
    else:  # nothing in the file can say what shared memory
        if metadata:
            report.note("info", metadata_left_out(list(metadata)), code="metadata", count=len(metadata))
        named.views, apart = {}, [*named.views, *apart]
    _note_sharing(named, apart, goal, report)
    return named


def _named_texts(flat: Flat, goal: FormatSpec, metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the strings of a file's metadata: those of the source, and scalars under names that are free."""
    texts = {name: text for name, text in metadata.items() if name not in HINTS}
    names = _Names()
    scalars = {names.take(steps, flat.renamed): scalar for steps, scalar in flat.scalars}
    names = _Names({*_RESERVED, *((name,) for name in texts)})
    for steps, scalar in _grouped(scalars, goal.text_bytes).items():
        texts[names.take((".".join(steps),), flat.renamed)[0]] = json.dumps(scalar)
    return texts


def _hints(flat: Flat, with_elements: Mapping[Name, Tensor]) -> dict[str, str]:
    """Return what tensors were before, as strings of a file's metadata.

    Args:
        flat: the value.
        with_elements: its tensors, as they are written.
    """
    changed = {
        ".".join(name): flat.tensors[name].element.name
        for name, tensor in with_elements.items()
        if tensor.element is not flat.tensors[name].element and not flat.tensors[name].element.name.startswith("q")
    }
    kinds = {
        ".".join(name): flat.numbers[id(tensor)] for name, tensor in flat.tensors.items() if id(tensor) in flat.numbers
    }
    return {key: json.dumps(hints) for key, hints in ((ELEMENTS_KEY, changed), (NUMBERS_KEY, kinds)) if hints}


def _grouped(scalars: dict[Name, Any], text_bytes: int) -> dict[Name, Any]:
    """Join what one table holds, the deepest first, until there are no more texts than files of this kind have.

    Args:
        scalars: numbers, strings and the like by their steps.
        text_bytes: size of one text; what exceeds it begins another, `name~2`.
    """
    depth = max(map(len, scalars), default=0)
    while len(scalars) > _SCALARS and depth:
        joined: dict[Name, Any] = {}
        open_: dict[Name, tuple[Name, int]] = {}
        names = _Names({steps for steps in scalars if len(steps) < depth})
        for steps, scalar in scalars.items():
            if len(steps) < depth:
                joined[steps] = scalar
                continue
            parent = steps[:-1] or ("values",)
            size = len(json.dumps({steps[-1]: scalar}))
            name, used = open_.get(parent, (parent, text_bytes))
            if used + size > text_bytes:
                name, used = names.take(parent), 0
                joined[name] = {}
            joined[name][steps[-1]] = scalar
            open_[parent] = name, used + size
        scalars, depth = joined, depth - 1
    return scalars


def fit_names(flat: Flat, goal: FormatSpec, limits: Limits) -> None:
    """Give each tensor a name that the format can hold and no other tensor has.

    Raises:
        LimitError: groups are nested so deeply that their names are far longer than the file.
    """
    budget = Budget(limits, "writing deeply nested values as groups")
    fitted: dict[Name, Tensor] = {}
    names = _Names()
    groups: set[Name] = set()
    for name, tensor in flat.tensors.items():
        made = tuple(step.encode("utf-8", "backslashreplace").decode() for step in name)
        if goal.tree:  # a tensor is not a group of tensors, too; each group around it has a name of its own
            budget.spend(max(0, len(made) - _DEPTH) ** 2)
            held = next((length for length in range(1, len(made)) if made[:length] in names.taken), 0)
            made = names.free(made[:held]) + made[held:] if held else made
            groups.update(made[:length] for length in range(1, len(made)))
        while goal.tree and made in groups:
            made = (*made[:-1], made[-1] + "~")
        free = names.take(made if goal.tree else (goal.fit(".".join(made)),))
        if not goal.tree and free == (".".join(made),):
            free = made
        if free != name:
            flat.renamed.append((name, free))
        fitted[free] = tensor
    flat.tensors = fitted


def check_tensors(named: NamedTensors, goal: FormatSpec, report: Report) -> None:
    """Refuse a file without tensors.

    Raises:
        ModelError: there is no tensor.
    """
    if not named.tensors:
        what = "file" if report.source else "value"
        raise ModelError(f"the {what} holds no tensor", hint=f"A {goal.suffix} file holds tensors only.")


def _repeats(tensors: dict[Name, Tensor]) -> tuple[str, str] | None:
    """Return how tensors repeat far more bytes than exist, as a stride of 0 allows; `None` if they do not."""
    held = sum({id(t.storage): t.storage.nbytes for t in tensors.values() if t.storage is not None}.values())
    shown = sum(tensor.numel * tensor.element.itemsize for tensor in tensors.values())
    if shown > _REPEATED * held + (1 << 26):
        return f"at most {_REPEATED} times the {held} bytes stored", f"{shown} bytes"
    return None


def _with_elements(tensors: dict[Name, Tensor], goal: FormatSpec, report: Report) -> dict[Name, Tensor]:
    """Return the tensors with elements that the format has: bfloat16 and the float8s are exact as float32.

    A complex number is two floats, in a last dimension of 2.
    """
    result: dict[Name, Tensor] = {}
    wider: dict[Any, Storage] = {}
    changed: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        storage, element = tensor.storage, tensor.element.name
        lacks = goal.elements and element not in goal.elements
        if lacks and storage is not None and element.startswith(("bfloat16", "float8", "complex", "q")):
            conj, neg = (tensor.extras.conj, tensor.extras.neg) if tensor.extras is not None else (False, False)
            key = id(storage), conj, neg
            wide = wider.get(key)
            if wide is None:
                wide = wider[key] = widen(resolved(storage, conj, neg) if conj or neg else storage)[0]
            pair = ", with a last dimension of 2" if element.startswith("complex") else ""
            changed.setdefault(f"{element} is written as {wide.element.name}{pair}", []).append(".".join(name))
            if pair:
                tensor = pairs_of_numbers(tensor)
            tensor = evolve(tensor, element=wide.element, storage=wide, extras=None)
        result[name] = tensor
    for what, names in changed.items():
        message = f"{what}, which holds the same values{and_more(len(names) - 1)}"
        report.note("info", message, names[0], loss="type", code="element-type", count=len(names))
    return result


def _note_sharing(named: NamedTensors, apart: list[Name], goal: FormatSpec, report: Report) -> None:
    """Note which tensors share memory, and how it is preserved."""
    if named.views:
        count, shown = len(named.views), _listed(list(named.views))
        storages = len({view.storage for view in named.views.values()})
        how = "linked where they are the same view" if goal.links else "each is written whole"
        report.note(
            "info",
            f"{counted(count, 'tensor')} of {counted(storages, 'storage')} share memory: "
            f"{how}, and t7bridge ties them again: {shown}",
            code="shared",
            count=count,
        )
    if apart:
        report.note(
            "info", f"{len(apart)} tensors that share memory are written separately: {_listed(apart)}",
            loss="sharing", code="unshared", count=len(apart))  # fmt: skip


def _listed(names: list[Name]) -> str:
    return listed(map(".".join, names), _SHOWN)
