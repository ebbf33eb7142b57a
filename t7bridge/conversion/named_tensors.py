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
from ..errors import NoTensorError
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
from .values import metadata_left_out

_LONGEST_NAME = 10_000
"""Maximum characters of the name of a number that is a tensor; numbers of longer names stay text."""
_SCALARS = 1_000
"""Number of texts in the metadata from which on those of one table are one; most tensors for numbers and lists."""
_SHOWN = 5
"""Names that a note lists."""
_DEPTH = 50
"""Steps of a name that are not charged to `Limits.work`."""
_RESERVED = frozenset({(METADATA_KEY,), ("format",), *((key,) for key in HINTS)})
"""Metadata that are not those of the value."""
_LONGEST_KEY = 200
"""Characters of the text of a key that is neither text nor a number."""
_ALWAYS_ALLOWED = 64 << 20
"""Bytes of tensors that are written however often they repeat their storages."""
_COPIES = 10_000
"""Maximum values in containers that are written under several names: graphs of shared containers grow exponentially."""
_SHARED = "container present under another name"
_CYCLE = "container that contains itself"


@define(eq=False)
class _Names:
    """Names in use: keys that differ may have one text, as 1.0 and "1.0" have.

    Attributes:
        used: the names.
        repeats: of those that were wanted again, the number to try next.
    """

    used: set[Name] = field(factory=set)
    repeats: dict[Name, int] = field(factory=dict)

    def free(self, name: Name) -> Name:
        """Return a name that is free: the name, or `name~2`, …."""
        candidate = name
        number = self.repeats.get(name, 2)
        while candidate in self.used:
            candidate = (*name[:-1], f"{name[-1]}~{number}")
            number += 1
            self.repeats[name] = number
        return candidate

    def take(self, name: Name, renamed: list[tuple[Name, Name]] | None = None) -> Name:
        """Return a name that is free, and take it; note it in a list if it is another."""
        free_name = self.free(name)
        self.used.add(free_name)
        if renamed is not None and free_name != name:
            renamed.append((name, free_name))
        return free_name


@define(eq=False)
class Flat:
    """A value as named tensors.

    Attributes:
        tensors: each tensor under its steps: `("model", "0.weight")`.
        scalars: numbers, strings, truth values and None, each with its steps.
        left_out: paths of everything else, by kind.
        storages: steps to storages, each of which becomes a tensor of one dimension.
        renamed: what has another name, as its own was taken: the steps to it, and the name.
        number_kinds: kinds of the tensors that are numbers or lists of numbers, by identity.
        copies: number of values in containers that were named before.
        names: of the tensors.
    """

    tensors: dict[Name, Tensor] = field(factory=dict)
    scalars: list[tuple[Name, Any]] = field(factory=list)
    left_out: dict[str, list[str]] = field(factory=dict)
    storages: list[Name] = field(factory=list)
    renamed: list[tuple[Name, Name]] = field(factory=list)
    number_kinds: dict[int, str] = field(factory=dict)
    copies: int = 0
    names: _Names = field(factory=_Names)

    def add(self, item: Any, steps: Name) -> None:
        """Add a value without parts of its own."""
        name = steps or ("root",)
        if isinstance(item, UntypedStorage):
            item = item.storage
        if isinstance(item, Storage):
            self.storages.append(steps)
            item = Tensor(item.element, item, (item.count,), (1,))
        if isinstance(item, Tensor):
            self.tensors[self.names.take(name, self.renamed)] = item
        elif isinstance(item, NAMED):
            self.scalars.append((name, name_text(item)))
        elif isinstance(item, (bool, int, float, str, type(None))):
            self.scalars.append((name, item))
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
    try:
        return _Flattening(limits, numbers, copies).run(value)
    except _TooManyNumbers:
        numbers = False
    except _TooManyCopies:
        copies = False
    return flatten(value, limits, numbers=numbers, copies=copies)


class _TooManyNumbers(Exception):
    """More numbers and lists of numbers than may become tensors."""


class _TooManyCopies(Exception):
    """More names of values in shared containers than may be written."""


class _Flattening:
    """One walk through a value, for `flatten`, whose arguments it has."""

    def __init__(self, limits: Limits, numbers: bool, copies: bool) -> None:
        self._limits = limits
        self._numbers = numbers
        self._copies = copies
        self._flat = Flat()
        self._budget = Budget(limits, "naming deeply nested values")
        self._parts: dict[int, Any] = {}
        """The parts of sets, sparse and quantized tensors, by identity: a shared one has the same parts everywhere."""
        self._lists: dict[int, tuple[Tensor, str]] = {}
        """The tensor of each list of numbers, by identity: a shared list becomes one tensor under several names."""
        self._copied_steps = 0
        """Steps in the names of values that were named before."""

    def run(self, value: Any) -> Flat:
        """Name the tensors of a value.

        Raises:
            _TooManyNumbers: numbers and lists of numbers should stay as they are.
            _TooManyCopies: shared containers should be named once.
        """
        visited: set[int] = set()
        stack: list[tuple[int, Path, bool]] = [(0, Path(None, "root", value), False)]
        while stack:
            depth, path, is_copy = stack.pop()
            item = self._opened(path.value)
            self._flat.copies += is_copy
            if self._flat.copies > _COPIES:
                raise _TooManyCopies
            if self._numbers:
                item = self._with_numbers_as_tensor(item, path)
            if not _is_container(item):
                if is_copy:
                    self._spend_copied_steps(depth)
                else:
                    self._budget.spend(max(0, depth - _DEPTH))
                self._flat.add(item, _steps_to(path))
                continue
            if id(item) in visited:
                if not self._copies:
                    self._flat.leave_out(_SHARED, _steps_to(path))
                    continue
                self._spend_copied_steps(depth)
                if _contains_itself(path):
                    self._flat.leave_out(_CYCLE, _steps_to(path))
                    continue
                is_copy = True
            visited.add(id(item))
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            # The stack returns the last first.
            for key, inner in reversed(list(pairs)):
                stack.append((depth + 1, Path(path, key, inner), is_copy))
        return self._flat

    def _opened(self, item: Any) -> Any:
        """Return the parts of a set, or of a sparse or quantized tensor; anything else as it is."""
        if not isinstance(item, (QuantizedTensor, SparseTensor, set, frozenset)):
            return item
        if id(item) not in self._parts:
            if isinstance(item, (set, frozenset)):
                self._parts[id(item)] = in_order(item)
            else:
                self._parts[id(item)] = parts_of(item)
        return self._parts[id(item)]

    def _with_numbers_as_tensor(self, item: Any, path: Path) -> Any:
        """Return the tensor of a number or of a list of numbers; anything else as it is."""
        is_container = _is_container(item)
        tensor_and_kind = self._lists.get(id(item)) if is_container else None
        if tensor_and_kind is None:
            tensor_and_kind = tensor_of_numbers(item)
        if tensor_and_kind is None or sum(map(len, _steps_to(path))) >= _LONGEST_NAME:
            return item
        if is_container:
            self._lists[id(item)] = tensor_and_kind
        tensor, kind = tensor_and_kind
        self._flat.number_kinds[id(tensor)] = kind
        if len(self._flat.number_kinds) > _SCALARS:
            raise _TooManyNumbers
        return tensor

    def _spend_copied_steps(self, depth: int) -> None:
        self._copied_steps += depth
        if self._copied_steps > self._limits.work:
            raise _TooManyCopies


def _is_container(item: Any) -> bool:
    return isinstance(item, (dict, list, tuple)) and not _is_function(item)


def _contains_itself(path: Path) -> bool:
    """Return whether the value at a path is also what contains it."""
    around = path.parent
    while around is not None:
        if around.value is path.value:
            return True
        around = around.parent
    return False


def _steps_to(path: Path) -> Name:
    """Return the steps of a path after its root, as text."""
    return tuple(_step(place.key) for place in path.steps()[1:])


def _is_function(item: Any) -> bool:
    """Return whether a dict represents a Lua function, in `tree` mode."""
    return isinstance(item, dict) and item.get("__class__") == "function" and isinstance(item.get("code"), bytes)


def _kind(item: Any) -> str:
    """Return the kind of a value that is left out, as notes name it."""
    if _is_function(item):
        return "function"
    if isinstance(item, PythonObject):
        return f"object of class {item.path}"
    if isinstance(item, bytes):
        return "byte string"
    if item is None:
        return "None"
    return type(item).__name__


def _step(key: Any) -> str:
    if isinstance(key, bytes):
        return key.decode("utf-8", "backslashreplace")
    if isinstance(key, (str, int, float)):
        return str(key)
    return key_text(key)[:_LONGEST_KEY]


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
    if flat.copies and _excess(flat.tensors, limits) is not None:
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
    excess = _excess(flat.tensors, limits)
    if excess is not None:
        allowed, written = excess
        message = "the tensors repeat the same elements excessively"
        raise limits.exceeded("repeats", message, expected=allowed, found=written)
    fit_names(flat, goal, limits)
    # Before the notes: names of texts can be taken too.
    texts = _named_texts(flat, goal, metadata or {}) if goal.text_bytes else {}
    _note_renamed(flat, goal, report)
    _note_left_out(flat, goal, report)
    named = NamedTensors(_with_elements(flat.tensors, goal, report))
    named.views, separate = plan_views(named.tensors)
    if goal.text_bytes:
        named.metadata = texts | _hints(flat, named.tensors)
    else:
        # The file has no place to list which tensors shared memory.
        separate = [*named.views, *separate]
        named.views = {}
        if metadata:
            report.note("info", metadata_left_out(list(metadata)), code="metadata", count=len(metadata))
    _note_sharing(named, separate, goal, report)
    return named


def _note_renamed(flat: Flat, goal: FormatSpec, report: Report) -> None:
    """Note which tensors have other names; the last note that is shown counts the rest."""
    not_shown = len(flat.renamed) - _SHOWN
    for number, (wanted, name) in enumerate(flat.renamed[:_SHOWN], 1):
        message = f"its name is taken, or {goal.title} cannot have it: written as {'.'.join(name)}"
        if number == _SHOWN and not_shown > 0:
            message += f"{and_more(not_shown)} have other names"
        report.note("warning", message, ".".join(wanted), code="renamed")


def _note_left_out(flat: Flat, goal: FormatSpec, report: Report) -> None:
    """Note what is not in the file, one note a kind."""
    for kind, paths in flat.left_out.items():
        count = len(paths)
        message = f"left out, as {goal.title} holds tensors only"
        if count == 1:
            message = f"{kind}: {message}"
        else:
            message = f"{kind}: {count} of them: {message} ({listed(paths, _SHOWN)})"
        report.note("warning", message, paths[0], code="left-out", count=count)


def _named_texts(flat: Flat, goal: FormatSpec, metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the strings of a file's metadata: those of the source, and scalars under names that are free."""
    texts = {name: text for name, text in metadata.items() if name not in HINTS}
    # Names are made free twice: of steps that differ, the texts with dots between them may be the same.
    scalar_names = _Names()
    scalars = {scalar_names.take(steps, flat.renamed): scalar for steps, scalar in flat.scalars}
    text_names = _Names({*_RESERVED, *((name,) for name in texts)})
    for steps, scalar in _grouped(scalars, goal.text_bytes).items():
        (name,) = text_names.take((".".join(steps),), flat.renamed)
        texts[name] = json.dumps(scalar)
    return texts


def _hints(flat: Flat, with_elements: Mapping[Name, Tensor]) -> dict[str, str]:
    """Return what tensors were before, as strings of a file's metadata.

    Args:
        flat: the value.
        with_elements: its tensors, as they are written.
    """
    elements: dict[str, str] = {}
    for name, tensor in with_elements.items():
        original = flat.tensors[name].element
        # The integers of a quantized tensor stay integers when they are read: its scale stands beside them.
        if tensor.element is not original and not original.name.startswith("q"):
            elements[".".join(name)] = original.name
    # Which tensors were numbers or lists of numbers, and of what type.
    kinds: dict[str, str] = {}
    for name, tensor in flat.tensors.items():
        if id(tensor) in flat.number_kinds:
            kinds[".".join(name)] = flat.number_kinds[id(tensor)]
    hints: dict[str, str] = {}
    if elements:
        hints[ELEMENTS_KEY] = json.dumps(elements)
    if kinds:
        hints[NUMBERS_KEY] = json.dumps(kinds)
    return hints


def _grouped(scalars: dict[Name, Any], text_bytes: int) -> dict[Name, Any]:
    """Join what one table holds, the deepest first, until there are no more texts than files of this kind have.

    Args:
        scalars: numbers, strings and the like by their steps.
        text_bytes: size of one text; what exceeds it begins another, `name~2`.
    """
    depth = max(map(len, scalars), default=0)
    while len(scalars) > _SCALARS and depth:
        scalars = _joined_at(depth, scalars, text_bytes)
        depth -= 1
    return scalars


def _joined_at(depth: int, scalars: dict[Name, Any], text_bytes: int) -> dict[Name, Any]:
    """Join the scalars with a number of steps that are in one table, as a dict under the name of the table."""
    joined: dict[Name, Any] = {}
    last_names: dict[Name, Name] = {}
    sizes: dict[Name, int] = {}
    names = _Names({steps for steps in scalars if len(steps) < depth})
    for steps, scalar in scalars.items():
        if len(steps) < depth:
            joined[steps] = scalar
            continue
        parent = steps[:-1] or ("values",)
        key = steps[-1]
        size = len(json.dumps({key: scalar}))
        if parent not in sizes or sizes[parent] + size > text_bytes:
            last_names[parent] = names.take(parent)
            sizes[parent] = 0
            joined[last_names[parent]] = {}
        joined[last_names[parent]][key] = scalar
        sizes[parent] += size
    return joined


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
        # Lone surrogates, which Python's text may have and UTF-8 may not, are escaped.
        steps = tuple(step.encode("utf-8", "backslashreplace").decode() for step in name)
        if goal.tree:
            # The groups around a tensor are made one by one, with names of all steps before: quadratic in the depth.
            budget.spend(max(0, len(steps) - _DEPTH) ** 2)
            unique = _take_in_groups(steps, names, groups)
        else:
            # One text for all steps; the steps are kept where it is what they would make.
            text = ".".join(steps)
            unique = names.take((goal.fit(text),))
            if unique == (text,):
                unique = steps
        if unique != name:
            flat.renamed.append((name, unique))
        fitted[unique] = tensor
    flat.tensors = fitted


def _take_in_groups(steps: Name, names: _Names, groups: set[Name]) -> Name:
    """Take a name for a tensor in a format of groups, in which no name is that of a tensor and of a group.

    Args:
        steps: the groups around the tensor, from the outermost, and its own name.
        names: those of tensors.
        groups: those of groups; receives the groups around the tensor.
    """
    for length in range(1, len(steps)):
        if steps[:length] in names.used:  # a tensor has the name of this group
            steps = names.free(steps[:length]) + steps[length:]
            break
    groups.update(steps[:length] for length in range(1, len(steps)))
    while steps in groups:
        steps = (*steps[:-1], steps[-1] + "~")
    return names.take(steps)


def check_tensors(named: NamedTensors, goal: FormatSpec, report: Report) -> None:
    """Refuse a file without tensors.

    Raises:
        NoTensorError: there is no tensor.
    """
    if not named.tensors:
        what = "file" if report.source else "value"
        raise NoTensorError(f"the {what} holds no tensor", hint=f"A {goal.suffix} file holds tensors only.")


def _excess(tensors: dict[Name, Tensor], limits: Limits) -> tuple[str, str] | None:
    """Return what is allowed and what there is if tensors repeat far more bytes than exist, as with a stride of 0."""
    storages = {id(tensor.storage): tensor.storage for tensor in tensors.values()}
    stored = sum(storage.nbytes for storage in storages.values() if storage is not None)
    written = sum(tensor.numel * tensor.element.itemsize for tensor in tensors.values())
    if written <= limits.repeats * stored + _ALWAYS_ALLOWED:
        return None
    return f"at most {limits.repeats} times the {stored} bytes stored (the limit repeats)", f"{written} bytes"


def _with_elements(tensors: dict[Name, Tensor], goal: FormatSpec, report: Report) -> dict[Name, Tensor]:
    """Return the tensors with elements that the format has: bfloat16 and the float8s are exact as float32.

    A complex number is two floats, in a last dimension of 2.
    """
    result: dict[Name, Tensor] = {}
    wide_storages: dict[tuple[int, bool, bool], Storage] = {}
    names_by_change: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        element = tensor.element.name
        result[name] = tensor
        if not goal.elements or element in goal.elements:
            continue
        if tensor.storage is None or not element.startswith(("bfloat16", "float8", "complex", "q")):
            continue
        wide = _wide_storage(tensor, tensor.storage, wide_storages)
        change = f"{element} is written as {wide.element.name}"
        if element.startswith("complex"):
            change += ", with a last dimension of 2"
            tensor = pairs_of_numbers(tensor)
        names_by_change.setdefault(change, []).append(".".join(name))
        result[name] = evolve(tensor, element=wide.element, storage=wide, extras=None)
    for change, names in names_by_change.items():
        message = f"{change}, which holds the same values{and_more(len(names) - 1)}"
        report.note("info", message, names[0], loss="type", code="element-type", count=len(names))
    return result


def _wide_storage(tensor: Tensor, storage: Storage, wide_storages: dict[tuple[int, bool, bool], Storage]) -> Storage:
    """Return the storage of a tensor with wider elements, one for all views that read it alike.

    Args:
        tensor: a view of the storage, conjugated or negated perhaps.
        storage: its storage.
        wide_storages: those made before, by the identity of the original and whether it is conjugated and negated.
    """
    conj = tensor.extras is not None and tensor.extras.conj
    neg = tensor.extras is not None and tensor.extras.neg
    key = (id(storage), conj, neg)
    if key not in wide_storages:
        as_read = resolved(storage, conj, neg) if conj or neg else storage
        wide_storages[key] = widen(as_read)[0]
    return wide_storages[key]


def _note_sharing(named: NamedTensors, separate: list[Name], goal: FormatSpec, report: Report) -> None:
    """Note which tensors share memory, and how it is preserved."""
    if named.views:
        tensors = counted(len(named.views), "tensor")
        storages = counted(len({view.storage for view in named.views.values()}), "storage")
        how = "linked where they are the same view" if goal.links else "each is written whole"
        names = _listed(list(named.views))
        message = f"{tensors} of {storages} share memory: {how}, and t7bridge ties them again: {names}"
        report.note("info", message, code="shared", count=len(named.views))
    if separate:
        message = f"{len(separate)} tensors that share memory are written separately: {_listed(separate)}"
        report.note("info", message, loss="sharing", code="unshared", count=len(separate))


def _listed(names: list[Name]) -> str:
    return listed(map(".".join, names), _SHOWN)
