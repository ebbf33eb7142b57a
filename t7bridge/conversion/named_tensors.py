"""Values as named tensors, for formats that hold nothing else.

The value is the one that `convert` writes in `auto` mode, with state dicts in place of modules; each tensor is named by
its path: `model.0.weight`. Strings go into the file's metadata, and so do numbers that are no tensors. The rest is
left out, and listed in the report by kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from attrs import evolve, field

from ..data import define
from ..errors import NoTensorError
from ..formats import FormatSpec
from ..formats.named import METADATA_KEY, Name, NamedTensors, plan_views
from ..graph.python import NAMED, PythonObject, in_order, key_text, name_text
from ..graph.storage import Storage
from ..graph.tensor import QuantizedTensor, SparseTensor, Tensor, UntypedStorage, tensor_of_storage
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
from .tree import OwnData
from .values import metadata_left_out

_LONGEST_NAME = 10_000
"""Maximum characters of the name of a number that is a tensor; numbers of longer names stay text."""
_MOST_TEXTS = 1_000
"""Maximum number of texts in the metadata: of more, those of one table are joined."""
_MOST_NUMBERS = 1_000
"""Maximum number of tensors that are numbers or lists of numbers: if there are more, all stay text."""
_MOST_LISTED = 5
"""Names that a note lists."""
_FREE_STEPS = 50
"""Steps of a name that are not charged to `Limits.work`."""
_RESERVED = frozenset({(METADATA_KEY,), ("format",), *((key,) for key in HINTS)})
"""Metadata that are not those of the value."""
_LONGEST_KEY_TEXT = 200
"""Maximum characters in a name for a key that is neither text nor a number."""
_ALWAYS_ALLOWED = 64 << 20
"""Bytes of tensors that are written however often they repeat their storages."""
_MOST_COPIES = 10_000
"""Maximum values in containers that are written under several names: graphs of shared containers grow exponentially."""
_SHARED = "container present under another name"
_CYCLE = "container that contains itself"


@define(eq=False)
class _UniqueNames:
    """The names that are in use already, so that no two things have one: keys 1.0 and "1.0" have the same text.

    Attributes:
        used: the names.
        next_numbers: of those that were wanted again, the number to try next.
    """

    used: set[Name] = field(factory=set)
    next_numbers: dict[Name, int] = field(factory=dict)

    def unused(self, name: Name) -> Name:
        """Return a name that is not in use: the name, or `name~2`, …. It does not count as used yet; see `reserve`.

        Args:
            name: the steps of the name; a number is added to the last one.
        """
        *steps_before, last_step = name
        candidate = name
        number = self.next_numbers.get(name, 2)
        while candidate in self.used:
            candidate = (*steps_before, f"{last_step}~{number}")
            number += 1
            self.next_numbers[name] = number
        return candidate

    def reserve(self, name: Name, renamed: list[tuple[Name, Name]] | None = None) -> Name:
        """Return a name that was not in use, and is now.

        Args:
            name: the name that is wanted.
            renamed: receives it and the one returned, if these differ.
        """
        unique_name = self.unused(name)
        self.used.add(unique_name)
        if renamed is not None and unique_name != name:
            renamed.append((name, unique_name))
        return unique_name


@define(eq=False)
class Flat:
    """A value as named tensors.

    Attributes:
        tensors: each tensor under its steps: `("model", "0.weight")`.
        scalars: numbers, strings, truth values and None, each with its steps; of data of a module lists of numbers.
        left_out: paths of everything else, by kind.
        storages: steps to storages, each of which becomes a tensor of one dimension.
        renamed: what has another name, as its own was taken: the steps to it, and the name.
        number_kinds: kinds of the tensors that are numbers or lists of numbers, by identity.
        copy_count: number of values in containers that were named before.
        names: of the tensors.
    """

    tensors: dict[Name, Tensor] = field(factory=dict)
    scalars: list[tuple[Name, Any]] = field(factory=list)
    left_out: dict[str, list[str]] = field(factory=dict)
    storages: list[Name] = field(factory=list)
    renamed: list[tuple[Name, Name]] = field(factory=list)
    number_kinds: dict[int, str] = field(factory=dict)
    copy_count: int = 0
    names: _UniqueNames = field(factory=_UniqueNames)

    def add(self, item: Any, steps: Name) -> None:
        """Add a value without parts of its own: to the tensors, the scalars or what is left out.

        Args:
            item: the value.
            steps: of its path, without the root.
        """
        name = steps or ("root",)  # a value that is the whole file
        if isinstance(item, UntypedStorage):
            item = item.storage
        if isinstance(item, Storage):
            self.storages.append(steps)  # for the note
            item = tensor_of_storage(item)
        if isinstance(item, Tensor):
            self.tensors[self.names.reserve(name, self.renamed)] = item
        elif isinstance(item, NAMED):
            self.scalars.append((name, name_text(item)))
        elif isinstance(item, (bool, int, float, str, type(None))):
            self.scalars.append((name, item))
        else:
            self.leave_out(_kind_of(item), steps)

    def add_own_data(self, item: Any, steps: Name) -> None:
        """Add a value that is no container, from the data of a module: a tensor becomes numbers, in lists.

        They are text in the metadata: PyTorch's `load_state_dict` would refuse a tensor that is no weight.

        Args:
            item: the value; a tensor is small, as larger ones do not pass `fits_metadata`.
            steps: of its path, without the root.
        """
        if isinstance(item, Storage):
            item = tensor_of_storage(item)
        if isinstance(item, Tensor):
            self.scalars.append((steps or ("root",), item.tolist()))
        else:
            self.add(item, steps)

    def leave_out(self, kind: str, steps: Name) -> None:
        """Record something that is left out, by its kind as notes name it."""
        self.left_out.setdefault(kind, []).append(".".join(steps) or "root")


def flatten(
    value: Any, limits: Limits = DEFAULT_LIMITS, *, numbers_as_tensors: bool = False, repeat_shared: bool = True
) -> Flat:
    """Return the tensors of a value of dicts and lists under the names of their places. Lists count from 0.

    What is in a shared container has a name for each name of the container, as a shared tensor has.

    Args:
        value: the value.
        limits: resource limits.
        numbers_as_tensors: whether numbers and lists of numbers become tensors, unless there are very many.
        repeat_shared: whether what is in a shared container has a name for each name of the container, unless that
            makes very many names; otherwise for the first only.

    Raises:
        LimitError: values are nested so deeply that their names are far longer than the file.
    """
    try:
        return _Flattening(limits, numbers_as_tensors, repeat_shared).run(value)
    except _TooManyNumbers:
        numbers_as_tensors = False
    except _TooManyCopies:
        repeat_shared = False
    # Once more, without what there was too much of; at most twice, as either may be too much.
    return flatten(value, limits, numbers_as_tensors=numbers_as_tensors, repeat_shared=repeat_shared)


class _TooManyNumbers(Exception):
    """More numbers and lists of numbers than may become tensors."""


class _TooManyCopies(Exception):
    """More names of values in shared containers than may be written."""


class _Visit(NamedTuple):
    """A value that a walk comes to.

    Attributes:
        path: of the value, with it.
        depth: number of the steps of the path.
        is_copy: whether it is in a container that was named before, under another name.
        is_own_data: whether it is in the data of a module itself, see `OwnData`.
    """

    path: Path
    depth: int = 0
    is_copy: bool = False
    is_own_data: bool = False


class _Flattening:
    """One walk through a value, for `flatten`.

    Args:
        limits: resource limits.
        numbers_as_tensors: whether numbers and lists of numbers become tensors.
        repeat_shared: whether what is in a shared container has a name for each name of the container; otherwise for
            the first only.
    """

    def __init__(self, limits: Limits, numbers_as_tensors: bool, repeat_shared: bool) -> None:
        self._limits = limits
        self._numbers_as_tensors = numbers_as_tensors
        self._repeats_shared = repeat_shared
        self._flat = Flat()
        self._budget = Budget(limits, "naming deeply nested values")
        self._containers_of_parts: dict[int, Any] = {}
        """The container of the parts of each set, sparse or quantized tensor, by the id of that."""
        self._tensors_of_lists: dict[int, tuple[Tensor, str]] = {}
        """The tensor of each list of numbers, by identity: a shared list becomes one tensor under several names."""
        self._copied_steps = 0
        """Steps in the names of values that were named before."""

    def run(self, value: Any) -> Flat:
        """Name the tensors of a value.

        The parts of containers are visited in order, each container before what is in it.

        Raises:
            _TooManyNumbers: numbers and lists of numbers should stay as they are.
            _TooManyCopies: shared containers should be named once.
        """
        visited: set[int] = set()
        stack = [_Visit(Path(None, "root", value))]
        while stack:
            path, depth, is_copy, is_own_data = stack.pop()
            item = path.value
            if isinstance(item, OwnData):
                item = item.value
                is_own_data = True
            item = self._with_parts_as_container(item)
            if is_copy:
                self._count_copy()
            if self._numbers_as_tensors and not is_own_data:
                item = self._with_numbers_as_tensor(item, path)
            if not _is_container(item):
                self._charge_name(depth, is_copy)
                add = self._flat.add_own_data if is_own_data else self._flat.add
                add(item, _steps_to(path))
                continue
            if id(item) in visited:
                reason = self._reason_to_leave_out(path, depth)
                if reason:
                    self._flat.leave_out(reason, _steps_to(path))
                    continue
                is_copy = True
            visited.add(id(item))
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            # Reversed, as the stack returns the last first.
            for key, inner in reversed(list(pairs)):
                stack.append(_Visit(Path(path, key, inner), depth + 1, is_copy, is_own_data))
        return self._flat

    def _with_parts_as_container(self, item: Any) -> Any:
        """Return the parts of a set as a list, those of a sparse or quantized tensor as a dict; other values as is.

        The walk knows containers by their ids. So a shared value has one container at all its places, which lives as
        long as the walk: the id of one that is gone could be that of the next.
        """
        if not isinstance(item, (QuantizedTensor, SparseTensor, set, frozenset)):
            return item
        if id(item) not in self._containers_of_parts:
            if isinstance(item, (set, frozenset)):
                self._containers_of_parts[id(item)] = in_order(item)
            else:
                self._containers_of_parts[id(item)] = parts_of(item)
        return self._containers_of_parts[id(item)]

    def _with_numbers_as_tensor(self, item: Any, path: Path) -> Any:
        """Return the tensor of a number or of a list of numbers; anything else as it is.

        `number_kinds` of the result says of the tensor what it was, so that a reader can make that of it again.

        Args:
            item: the value.
            path: of it; a number of a very long name stays a number.

        Raises:
            _TooManyNumbers: there are more of them than may become tensors.
        """
        is_list = _is_container(item)
        tensor_and_kind = self._tensors_of_lists.get(id(item)) if is_list else None
        if tensor_and_kind is None:
            tensor_and_kind = tensor_of_numbers(item)
        if tensor_and_kind is None:
            return item
        name_letters = sum(map(len, _steps_to(path)))
        if name_letters >= _LONGEST_NAME:
            return item
        if is_list:
            self._tensors_of_lists[id(item)] = tensor_and_kind
        tensor, kind = tensor_and_kind
        self._flat.number_kinds[id(tensor)] = kind
        if len(self._flat.number_kinds) > _MOST_NUMBERS:
            raise _TooManyNumbers
        return tensor

    def _reason_to_leave_out(self, path: Path, depth: int) -> str:
        """Return why a container that was named before is not named again at a path; empty if it is, and is counted.

        Args:
            path: of the container.
            depth: the steps of the path, which count towards the limit for names of copies.

        Raises:
            _TooManyCopies: the names are too long.
        """
        if not self._repeats_shared:
            return _SHARED
        self._count_copied_steps(depth)
        return _CYCLE if _contains_itself(path) else ""

    def _charge_name(self, depth: int, is_copy: bool) -> None:
        """Count the steps of a name: of a copy, among those of all copies; else, against the limit of work.

        Args:
            depth: the steps of the name.
            is_copy: whether the value is in a container that was named before.

        Raises:
            _TooManyCopies: the names of copies are too long.
            LimitError: values are nested so deeply that their names are far longer than the file.
        """
        if is_copy:
            self._count_copied_steps(depth)
        else:
            self._budget.spend(max(0, depth - _FREE_STEPS))

    def _count_copy(self) -> None:
        """Count a value in a container that was named before.

        Raises:
            _TooManyCopies: there are very many.
        """
        self._flat.copy_count += 1
        if self._flat.copy_count > _MOST_COPIES:
            raise _TooManyCopies

    def _count_copied_steps(self, depth: int) -> None:
        """Count the steps of one name in a container that was named before.

        Args:
            depth: number of its steps.

        Raises:
            _TooManyCopies: such names are too long together.
        """
        self._copied_steps += depth
        if self._copied_steps > self._limits.work:
            raise _TooManyCopies


def _is_container(item: Any) -> bool:
    return isinstance(item, (dict, list, tuple)) and not _is_function(item)


def _contains_itself(path: Path) -> bool:
    """Return whether the value at a path is also one of the containers around it."""
    container = path.parent
    while container is not None:
        if container.value is path.value:
            return True
        container = container.parent
    return False


def _steps_to(path: Path) -> Name:
    """Return the steps of a path after its root, as text."""
    _root, *steps = path.steps()
    return tuple(_text_of_key(step.key) for step in steps)


def _is_function(item: Any) -> bool:
    """Return whether a dict represents a Lua function, in `tree` mode."""
    return isinstance(item, dict) and item.get("__class__") == "function" and isinstance(item.get("code"), bytes)


def _kind_of(item: Any) -> str:
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


def _text_of_key(key: Any) -> str:
    """Return a key of a dict as a step of a name."""
    if isinstance(key, bytes):
        return key.decode("utf-8", "backslashreplace")
    if isinstance(key, (str, int, float)):
        return str(key)
    return key_text(key)[:_LONGEST_KEY_TEXT]


def name_tensors(
    value: Any,
    goal: FormatSpec,
    report: Report,
    metadata: Mapping[str, str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> NamedTensors:
    """Return a value in the form that a format of named tensors can hold: unique names, its types, text as metadata.

    Args:
        value: builtins with tensors in them.
        goal: the format.
        report: receives notes for what is left out, written as another type, or shared.
        metadata: strings of the source file.
        limits: resource limits.

    Raises:
        LimitError: the tensors repeat the same bytes excessively, or values are nested too deeply to be named.
    """
    flat = _flat_for(goal, value, limits)
    _leave_out_unwritable(flat, goal)
    _note_storages(flat, report)
    _check_repeats(flat.tensors, limits)
    fit_names(flat, goal, limits)
    # Before the note on other names: texts can be renamed too.
    texts = _named_texts(flat, goal, metadata or {}) if goal.text_bytes else {}
    _note_renamed(flat, goal, report)
    _note_left_out(flat, goal, report)
    named = NamedTensors(_with_elements(flat.tensors, goal, report))
    named.views, separate = plan_views(named.tensors)  # `separate`: tensors whose sharing is not described
    if goal.text_bytes:
        named.metadata = texts | _restoring_hints(flat, named.tensors)
    else:
        # The file has no place to list which tensors shared memory.
        separate = [*named.views, *separate]
        named.views = {}
        if metadata:
            report.note("info", metadata_left_out(list(metadata)), code="metadata", count=len(metadata))
    _note_sharing(named, separate, goal, report)
    return named


def _flat_for(goal: FormatSpec, value: Any, limits: Limits) -> Flat:
    """Return the tensors of a value under the names of all their places, or of their first ones.

    The latter if, in shared containers, they would repeat far more bytes than there are. `_check_repeats` refuses what
    does so even then.

    Args:
        goal: the format.
        value: builtins with tensors in them.
        limits: resource limits.
    """
    flat = flatten(value, limits, numbers_as_tensors=goal.numbers)
    if flat.copy_count and _excess_of_repeats(flat.tensors, limits) is not None:
        return flatten(value, limits, numbers_as_tensors=goal.numbers, repeat_shared=False)
    return flat


def _note_storages(flat: Flat, report: Report) -> None:
    """Note the storages that are written as tensors."""
    if flat.storages:
        subject = "a storage is" if len(flat.storages) == 1 else f"{len(flat.storages)} storages are"
        message = f"{subject} written as a tensor of one dimension: {_listed(flat.storages)}"
        report.note("info", message, code="storage")


def _check_repeats(tensors: dict[Name, Tensor], limits: Limits) -> None:
    """Refuse tensors that repeat far more bytes than their storages have.

    Raises:
        LimitError: they do.
    """
    excess = _excess_of_repeats(tensors, limits)
    if excess is not None:
        allowed, written = excess
        message = "the tensors repeat the same elements excessively"
        raise limits.exceeded("repeats", message, expected=allowed, found=written)


def _note_renamed(flat: Flat, goal: FormatSpec, report: Report) -> None:
    """Note which tensors have other names; the last note that is shown counts the rest.

    Args:
        flat: the value, with the pairs of wanted and given names in `renamed`.
        goal: the format, for the message.
        report: receives the notes.
    """
    not_shown = len(flat.renamed) - _MOST_LISTED
    for number, (wanted, name) in enumerate(flat.renamed[:_MOST_LISTED], 1):
        message = f"its name is taken, or {goal.title} cannot have it: written as {'.'.join(name)}"
        if number == _MOST_LISTED and not_shown > 0:
            message += f"{and_more(not_shown)} have other names"
        report.note("warning", message, ".".join(wanted), code="renamed")


def _note_left_out(flat: Flat, goal: FormatSpec, report: Report) -> None:
    """Note what is not in the file, one note for each kind of value, with the first paths.

    Args:
        flat: the value, with the paths by kind in `left_out`.
        goal: the format, for the message.
        report: receives the notes.
    """
    for kind, paths in flat.left_out.items():
        count = len(paths)
        message = f"left out, as {goal.title} holds tensors only"
        if count == 1:
            message = f"{kind}: {message}"
        else:
            message = f"{kind}: {count} of them: {message} ({listed(paths, _MOST_LISTED)})"
        report.note("warning", message, paths[0], code="left-out", count=count)


def _named_texts(flat: Flat, goal: FormatSpec, metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the strings of a file's metadata: those of the source, and scalars as JSON under names not in use.

    Args:
        flat: the value, with its scalars; its `renamed` receives those whose names are in use.
        goal: the format, which has metadata.
        metadata: the strings of the source.
    """
    texts = {name: text for name, text in metadata.items() if name not in HINTS}  # which are made anew
    # Names are made unique twice: of steps that differ, the texts with dots between them may be the same.
    scalar_names = _UniqueNames()
    scalars = {scalar_names.reserve(steps, flat.renamed): scalar for steps, scalar in flat.scalars}
    names_in_use = {(name,) for name in texts}
    text_names = _UniqueNames(names_in_use | _RESERVED)
    for steps, scalar in _grouped(scalars, goal.text_bytes).items():
        (name,) = text_names.reserve((".".join(steps),), flat.renamed)
        texts[name] = json.dumps(scalar)
    return texts


def _restoring_hints(flat: Flat, with_elements: Mapping[Name, Tensor]) -> dict[str, str]:
    """Return what tensors were before, as strings of a file's metadata, for t7bridge to restore it.

    Args:
        flat: the value.
        with_elements: its tensors, as they are written.
    """
    elements: dict[str, str] = {}
    for name, tensor in with_elements.items():
        original = flat.tensors[name].element
        is_quantized = original.name.startswith("q")
        # The integers of a quantized tensor stay integers when they are read: its scale stands beside them.
        if tensor.element is not original and not is_quantized:
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
    """Join what one table holds, the deepest tables first, until there are at most `_MOST_TEXTS` texts.

    Args:
        scalars: numbers, strings and the like by their steps.
        text_bytes: size of one text; what exceeds it begins another, `name~2`.
    """
    depth = max(map(len, scalars), default=0)
    while len(scalars) > _MOST_TEXTS and depth:
        scalars = _joined_at(depth, scalars, text_bytes)
        depth -= 1
    return scalars


def _joined_at(depth: int, scalars: dict[Name, Any], text_bytes: int) -> dict[Name, Any]:
    """Join the scalars that are in one table, as a dict under the name of the table.

    Args:
        depth: the steps of the scalars that are joined; no scalar has more.
        scalars: by their steps.
        text_bytes: size of one text; what exceeds it begins another, `name~2`.

    Returns:
        The scalars of fewer steps as they are, and the dicts.
    """
    joined: dict[Name, Any] = {}
    open_texts: dict[Name, dict[str, Any]] = {}  # for each table the one to which scalars are added
    sizes: dict[Name, int] = {}  # of these as JSON, in bytes
    # A dict may not have the name of a scalar that stays.
    names = _UniqueNames({steps for steps in scalars if len(steps) < depth})
    for steps, scalar in scalars.items():
        if len(steps) < depth:
            joined[steps] = scalar
            continue
        table = steps[:-1] or ("values",)  # the value itself has no name
        key = steps[-1]
        size = len(json.dumps({key: scalar}))
        if table not in open_texts or sizes[table] + size > text_bytes:
            new_text: dict[str, Any] = {}
            joined[names.reserve(table)] = new_text
            open_texts[table] = new_text
            sizes[table] = 0
        open_texts[table][key] = scalar
        sizes[table] += size
    return joined


def fit_names(flat: Flat, goal: FormatSpec, limits: Limits) -> None:
    """Give each tensor of `flat` a name that the format can hold and no other tensor has; `renamed` gets the new ones.

    Args:
        flat: the value; its `tensors` are replaced.
        goal: the format: with groups, or with one text for all steps of a name.
        limits: resource limits.

    Raises:
        LimitError: groups are nested so deeply that their names are far longer than the file.
    """
    budget = Budget(limits, "writing deeply nested values as groups")
    tensors: dict[Name, Tensor] = {}
    names = _UniqueNames()
    groups: set[Name] = set()
    for name, tensor in flat.tensors.items():
        # Lone surrogates, which Python's text may have and UTF-8 may not, are escaped.
        steps = tuple(step.encode("utf-8", "backslashreplace").decode() for step in name)
        if goal.tree:
            # The groups around a tensor are made one by one, with names of all steps before: quadratic in the depth.
            budget.spend(max(0, len(steps) - _FREE_STEPS) ** 2)
            unique_name = _reserve_in_groups(steps, names, groups)
        else:
            # The format has one text for all steps. Where it is their text, unchanged, the steps are kept as the name.
            text = ".".join(steps)
            unique_name = names.reserve((goal.fit(text),))
            if unique_name == (text,):
                unique_name = steps
        if unique_name != name:
            flat.renamed.append((name, unique_name))
        tensors[unique_name] = tensor
    flat.tensors = tensors


def _reserve_in_groups(steps: Name, names: _UniqueNames, groups: set[Name]) -> Name:
    """Return a unique name for a tensor in a format of groups, in which no name is that of a tensor and of a group.

    Args:
        steps: the groups around the tensor, from the outermost, and its own name.
        names: those of tensors.
        groups: those of groups; receives the groups around the tensor.
    """
    for length in range(1, len(steps)):
        if steps[:length] in names.used:  # a tensor has the name of this group
            steps = names.unused(steps[:length]) + steps[length:]
    groups.update(steps[:length] for length in range(1, len(steps)))
    name = names.unused(steps)
    while name in groups:  # a group has the name of this tensor
        steps = (*steps[:-1], steps[-1] + "~")
        name = names.unused(steps)
    return names.reserve(name)


def _leave_out_unwritable(flat: Flat, goal: FormatSpec) -> None:
    """Move tensors without elements, and scalars where the format has no text, to what is left out.

    Args:
        flat: the value, which changes.
        goal: the format.
    """
    for name, tensor in list(flat.tensors.items()):
        if tensor.storage is None and tensor.numel:  # as on the device `meta`
            flat.leave_out(f"tensor without elements (device {tensor.device})", name)
            del flat.tensors[name]
    if not goal.text_bytes:
        for name, scalar in flat.scalars:
            flat.leave_out(_kind_of(scalar), name)
        flat.scalars.clear()


def check_tensors(named: NamedTensors, goal: FormatSpec, report: Report) -> None:
    """Refuse a file without tensors.

    Raises:
        NoTensorError: there is no tensor.
    """
    if not named.tensors:
        what = "file" if report.source else "value"
        raise NoTensorError(f"the {what} holds no tensor", hint=f"A {goal.suffix} file holds tensors only.")


def _excess_of_repeats(tensors: dict[Name, Tensor], limits: Limits) -> tuple[str, str] | None:
    """Return what is allowed and what there is, in words, if tensors repeat far more bytes than their storages have.

    Tensors with a stride of 0 do so, and a small file could become a huge one. `None` if the limit holds.
    """
    storages = {id(tensor.storage): tensor.storage for tensor in tensors.values()}
    stored = sum(storage.nbytes for storage in storages.values() if storage is not None)
    written = sum(tensor.numel * tensor.element.itemsize for tensor in tensors.values())
    if written <= limits.repeats * stored + _ALWAYS_ALLOWED:
        return None
    return f"at most {limits.repeats} times the {stored} bytes stored (the limit repeats)", f"{written} bytes"


def _with_elements(tensors: dict[Name, Tensor], goal: FormatSpec, report: Report) -> dict[Name, Tensor]:
    """Return the tensors with elements that the format has: bfloat16 and the float8s are exact as float32.

    A complex number is two floats, in a last dimension of 2. Tensors of other types are returned as they are: the
    writer refuses them.

    Args:
        tensors: by name.
        goal: the format; one that names no types has all.
        report: receives a note for each change of a type, with the first tensor and the number of the others.
    """
    result: dict[Name, Tensor] = {}
    wide_storages: dict[tuple[int, bool, bool], Storage] = {}
    names_by_change: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        element = tensor.element.name
        result[name] = tensor
        has_type = not goal.elements or element in goal.elements
        can_widen = element.startswith(("bfloat16", "float8", "complex", "q"))  # q: quantized
        if has_type or not can_widen or tensor.storage is None:
            continue
        wide = _wide_storage(tensor, tensor.storage, wide_storages)
        change = f"{element} is written as {wide.element.name}"
        if element.startswith("complex"):
            change += ", with a last dimension of 2"
            tensor = pairs_of_numbers(tensor)
        names_by_change.setdefault(change, []).append(".".join(name))
        # The extras said that a view is conjugated or negated: the wide storage has the elements as they are read.
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
        wide_storages[key], *_ = widen(as_read)
    return wide_storages[key]


def _note_sharing(named: NamedTensors, separate: list[Name], goal: FormatSpec, report: Report) -> None:
    """Note which tensors share memory, and how it is preserved.

    Args:
        named: the tensors, with the views that the file describes.
        separate: names of those that share memory which the file does not describe.
        goal: the format.
        report: receives the notes.
    """
    if named.views:
        tensors = counted(len(named.views), "tensor")
        storages = counted(len({view.storage for view in named.views.values()}), "storage")
        manner = "linked where they are the same view" if goal.links else "each is written whole"
        names = _listed(list(named.views))
        message = f"{tensors} of {storages} share memory: {manner}, and t7bridge ties them again: {names}"
        report.note("info", message, code="shared", count=len(named.views))
    if separate:
        subject = counted(len(separate), "tensor that shares memory is", "tensors that share memory are")
        message = f"{subject} written separately: {_listed(separate)}"
        report.note("info", message, loss="sharing", code="unshared", count=len(separate))


def _listed(names: list[Name]) -> str:
    return listed(map(".".join, names), _MOST_LISTED)
