"""State dicts in place of nn modules, and what they leave out.

A state dict holds weights. `Coverage` walks the modules that became state dicts, and says once what no value reached:
gradients, outputs, buffers and options on one line, data by the names of their fields. It counts leaves: tensors,
arrays, strings, numbers and the like.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attrs import field

from ..data import define
from ..formats import FORMATS, LUA, NAMED, PYTHON
from ..formats.table import FormatSpec, Written, one_or_list
from ..graph.lua import LuaFunction, TorchObject, Value
from ..graph.python import MODULE_PARTS, NumpyArray, NumpyScalar, PythonObject, attributes_of, is_pickled_module
from ..graph.storage import Storage
from ..graph.tensor import QuantizedTensor, Tensor, place_of
from ..graph.walk import Path, entries, objects, step_name
from ..nn.places import find_modules, is_module, is_scratch
from ..nn.registry import layer_of
from ..nn.state_dict import StateDict, note_lost_sharing, state_dict
from ..report import Report
from ..text import Step, and_elsewhere, counted, listed
from .tree import Replacement

if TYPE_CHECKING:
    from ..formats.named import NamedTensors

GRADIENTS, OUTPUTS, BUFFERS, OPTIONS, OTHERS = "gradients", "outputs", "buffers", "options of layers", "others"
ATTRIBUTES = "attributes"
"""The tensors of a PyTorch module that its state dict does not have: each is named."""
_UNKNOWN = ""
"""The kind of what the names of fields say nothing about."""
_MOST_NAMED = 5
"""Tensors that a note names."""
_MOST_LETTERS = 100
"""Characters of a tensor's path that a note shows, the last ones."""
_MOST_CLASS_LETTERS = 200
"""Characters of the name of a class that a note shows."""
_GRADIENT_PREFIXES = ("grad", "fgrad", "dgrad", "accGrad", "momGrad", "_grad")
_OUTPUT_FIELDS = frozenset(("output", "outputs", "_output", "_outputs"))
"""The names of fields of gradients begin with these, and those of outputs are these."""
_SCALARS = (bool, int, float, complex, str, bytes, bytearray, type(None), NumpyScalar)
_ARRAYS = (Tensor, Storage, NumpyArray)


@define
class Count:
    """Numbers of leaves.

    Attributes:
        tensors: tensors, storages and arrays.
        values: strings, numbers, truth values, functions of Lua and None.
    """

    tensors: int = 0
    values: int = 0

    @property
    def total(self) -> int:
        """The number of all leaves."""
        return self.tensors + self.values

    def __str__(self) -> str:
        numbers = ((self.tensors, "tensor"), (self.values, "value"))
        return ", ".join(counted(number, name) for number, name in numbers if number)


@define(eq=False)
class Coverage:
    """The modules that became state dicts, and what these hold.

    Attributes:
        written_views: the tensors that are in the result, as views of memory: see `place_of`.
        modules: the modules, with their paths.
        with_weights: the paths of those whose state dict is not empty; that of a criterion is.
        noted_fields: fields with data that have notes of their own (`note_data`), or are next to the state dict: the
            identity of the module, and the name of the field. The walk does not enter them.
    """

    written_views: set[tuple[object, ...]] = field(factory=set)
    modules: list[Path] = field(factory=list)
    with_weights: list[str] = field(factory=list)
    noted_fields: set[tuple[int, str]] = field(factory=set)

    def add_module(self, module: Any, path: str, class_name: str, replacement: Replacement, report: Report) -> None:
        """Add a module, and note its data: where they are in the result, or that they are left out.

        Args:
            module: of Lua, or a pickled one of PyTorch.
            path: its path.
            class_name: its class, for notes.
            replacement: what replaced it in the result. This is complete, so that it is known where the data are.
            report: receives the notes.
        """
        self.modules.append(Path(None, Step(path), module))
        if replacement.value:
            self.with_weights.append(path)
        is_for_metadata = FORMATS[report.target_format or "pt"].values == NAMED
        data_in_result: list[tuple[str, str, Any]] = []
        data_left_out: list[tuple[str, str, Any]] = []
        for name, item in replacement.data.items():
            path_class_and_value = (f"{path}.{name}", class_name, item)
            if replacement.is_data_placed and name not in replacement.unfit_names:
                data_in_result.append(path_class_and_value)
            else:
                data_left_out.append(path_class_and_value)
        note_data(data_in_result, report, "in the metadata" if is_for_metadata else "beside the state dict")
        note_data(data_left_out, report)

    def add_notes(self, report: Report, result: Any) -> None:
        """Note where the state dicts are, and the leaves of the modules that are not in the result.

        Args:
            report: receives the notes.
            result: the value written, with the state dicts in it; its tensors are added to `written_views`.
        """
        if not self.modules:
            return
        self._note_places(report)
        self.written_views |= {place_of(item) for item in objects(result) if isinstance(item, Tensor)}
        self._note_leaves_left_out(report)

    def _note_leaves_left_out(self, report: Report) -> None:
        """Note the leaves that `_leaves` yields: those with names in a warning, and the numbers of the others."""
        counts = {kind: Count() for kind in (GRADIENTS, OUTPUTS, BUFFERS, OPTIONS, OTHERS)}
        attributes: list[str] = []
        arrays: list[Any] = []
        for kind, value, path in self._leaves():
            if kind == ATTRIBUTES:  # of PyTorch's modules, whose leaves have paths
                assert path is not None
                attributes.append(path.text()[-_MOST_LETTERS:])
            elif isinstance(value, _ARRAYS):
                counts[kind].tensors += 1
                arrays.append(value)
            else:
                counts[kind].values += 1
        if attributes:
            what = counted(len(attributes), "tensor of a module is", "tensors of modules are")
            message = f"{what} in no state dict, and left out: {listed(attributes, _MOST_NAMED)}"
            report.note("warning", message, loss="type", code="left-out", count=len(attributes))
        total = sum(count.total for count in counts.values())
        if total:
            counts_by_kind = "; ".join(f"{kind}: {count}" for kind, count in counts.items() if count.total)
            nbytes = self._bytes_left_out(arrays)
            size = f" ({counted(nbytes, 'byte')})" if nbytes else ""
            message = f"not part of a state dict: {counts_by_kind}{size}{_advice(report)}"
            report.note("info", message, code="left-out", count=total)

    def _note_places(self, report: Report) -> None:
        """Note where the state dicts are, unless there is only that of the whole value."""
        # Of a module that is met twice, and written twice, both have the path of the first.
        paths_inside = [path for path in dict.fromkeys(self.with_weights) if path != "root"]
        if paths_inside:
            message = f"{counted(len(paths_inside), 'state dict')} inside the value: {listed(paths_inside)}"
            report.note("info", f"{message}; --at writes one alone", code="state-dict")

    def _bytes_left_out(self, arrays: list[Any]) -> int:
        """Return the bytes of the storages of arrays, each counted once, without those of tensors in the result.

        Args:
            arrays: tensors, storages and numpy's arrays; the last have no storage, and do not count.
        """
        nbytes = 0
        storages_done = {storage_id for storage_id, *_ in self.written_views}  # see `place_of`
        for array in arrays:
            storage = array.storage if isinstance(array, Tensor) else array
            if isinstance(storage, Storage) and id(storage) not in storages_done:
                storages_done.add(id(storage))
                nbytes += storage.nbytes
        return nbytes

    def _leaves(self) -> Iterator[tuple[str, Any, Path | None]]:
        """Yield the leaves in the modules that are not in the result: kind, value and, if it may be named, path.

        A leaf begins with the kind that `_inside` gives it, by the names of the fields and keys that lead to it, and
        is yielded as:

        - `GRADIENTS`, `OUTPUTS` or `BUFFERS`, if a name says so;
        - `ATTRIBUTES`, a tensor of a module of PyTorch: these are named one by one, so that it has a path;
        - `OTHERS`, any other tensor, and `OPTIONS`, any other leaf.

        A value at several places is yielded once, with the kind of the place that the walk comes to first: only the
        numbers in a note depend on it. The path is `None` inside Lua's modules: these have more leaves than anything
        else has in a conversion, and they are counted only.
        """
        visited: set[int] = set()
        stack: list[tuple[str, Any, Path | None]] = []  # kind, value and path of what is still to be visited
        for module in self.modules:
            has_paths = not isinstance(module.value, TorchObject)
            stack.append((_UNKNOWN, module.value, module if has_paths else None))
        while stack:
            kind, value, path = stack.pop()
            if isinstance(value, _SCALARS):
                yield _kind_of_option(kind), value, path
                continue
            if id(value) in visited:
                continue
            visited.add(id(value))
            if self._is_written(value):
                continue
            if isinstance(value, Tensor):
                yield OTHERS if kind == _UNKNOWN else kind, value, path
                continue
            if isinstance(value, (Storage, NumpyArray)):  # by themselves: state dicts have tensors only
                yield _kind_of_option(kind), value, path
                continue
            if isinstance(value, LuaFunction):
                yield OPTIONS, value, path  # its code; its upvalues follow below, and are leaves of their own
            for inner_kind, key, item in _inside(value, kind, self.noted_fields):
                inner_path = Path(path, key, item) if path is not None else None
                stack.append((inner_kind, item, inner_path))

    def _is_written(self, value: Any) -> bool:
        """Return whether a value is a tensor that the result has, or without elements; of a quantized one all parts."""
        if isinstance(value, QuantizedTensor):
            return place_of(value.tensor) in self.written_views
        return isinstance(value, Tensor) and (not value.numel or place_of(value) in self.written_views)


def _kind_of_option(kind: str) -> str:
    """Return the kind of a leaf that is no tensor: an option, unless the names that lead to it say something else.

    Of PyTorch's modules, `ATTRIBUTES`, only tensors are named one by one.
    """
    return OPTIONS if kind in (_UNKNOWN, ATTRIBUTES) else kind


def _inside(value: Any, kind: str, noted_fields: set[tuple[int, str]]) -> Iterator[tuple[str, Any, Any]]:
    """Yield what is directly in a module, or in a value that a module has.

    Args:
        value: a module, or what is in one.
        kind: of the value, such as `GRADIENTS`, or `_UNKNOWN`. What is inside a value is of its kind, unless the key
            says another one.
        noted_fields: fields to leave out, by the identity of the module and the name.

    Yields:
        For each part its kind, its key and itself.
    """
    if isinstance(value, TorchObject) and is_module(value):
        layer = layer_of(value.class_name)
        scratch_fields = layer.scratch if layer is not None else frozenset()
        for key, item in value.fields.raw_items() if value.fields is not None else ():
            name = _field_name(key) if isinstance(key, bytes) else ""
            if (id(value), name) not in noted_fields:
                yield _kind_of_field(name, name in scratch_fields), key, item
    elif is_pickled_module(value):
        for name, item in _attributes_and_parts(value):
            if (id(value), name) not in noted_fields:
                yield ATTRIBUTES, name, item
    elif isinstance(value, (set, frozenset)):
        for item in value:
            yield kind, Step("{}"), item
    else:
        for key, item in entries(value):
            kind_of_key = _kind_of_key(key) if isinstance(key, (str, bytes)) else _UNKNOWN
            yield kind if kind_of_key == _UNKNOWN else kind_of_key, key, item


def _attributes_and_parts(module: PythonObject) -> Iterator[tuple[Any, Any]]:
    """Yield name and value of the parameters, buffers and modules of a pickled module, then of its other attributes.

    A pickled module has the first three in dicts, its attributes `_parameters`, `_buffers` and `_modules`.
    """
    attributes = attributes_of(module)
    for part in MODULE_PARTS:
        yield from attributes[part].items()
    for name, item in attributes.items():
        if name not in MODULE_PARTS:
            yield name, item


@lru_cache(1024)
def _kind_of_key(key: str | bytes) -> str:
    """Return the kind of what a key of a table holds; `_UNKNOWN` if it does not say."""
    name = step_name(key).removeprefix(".")  # `gradWeight` of `.gradWeight`
    return _kind_of(name)


@lru_cache(1024)
def _field_name(key: bytes) -> str:
    """Return the name of a field as text; remembered, as the modules of a file have the same few fields."""
    return key.decode("utf-8", "backslashreplace")


@lru_cache(1024)
def _kind_of_field(name: str, is_scratch_of_class: bool) -> str:
    """Return the kind of what a field of a module holds; `_UNKNOWN` if its name does not say.

    Args:
        name: of the field.
        is_scratch_of_class: whether the entry of the module's class says that the field is a buffer for computations.
    """
    return _kind_of(name, is_scratch_of_class or is_scratch(name))


def _kind_of(name: str, is_scratch_field: bool = False) -> str:
    """Return the kind of what a field of this name holds; `_UNKNOWN` if its name does not say.

    Args:
        name: of the field, or a key of a table that is a name.
        is_scratch_field: whether the field is known as a buffer for computations.
    """
    if name.startswith(_GRADIENT_PREFIXES):
        return GRADIENTS
    if name in _OUTPUT_FIELDS:
        return OUTPUTS
    return BUFFERS if is_scratch_field else _UNKNOWN


def count_leaves(value: Any) -> Count:
    """Return the numbers of tensors and scalars in a value; what is shared is counted once."""
    count = Count()
    visited: set[int] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, _SCALARS):
            count.values += 1
            continue
        if id(item) in visited:
            continue
        visited.add(id(item))
        if isinstance(item, _ARRAYS):
            count.tensors += 1
        if isinstance(item, LuaFunction):
            count.values += 1
        if isinstance(item, (set, frozenset)):
            stack += item
        elif not isinstance(item, Tensor):  # whose storage is not counted again
            stack += [inner for _, inner in entries(item)]
    return count


def note_texts(written: Written, named: NamedTensors, goal: FormatSpec, report: Report) -> None:
    """Note the texts for which the metadata of a file had no room.

    Args:
        written: the result of writing, with the names of these texts.
        named: what was to be written.
        goal: the format.
        report: receives the notes.
    """
    import json

    for name in written.left_out:
        try:
            # The scalars of one table may be one text.
            count = count_leaves(json.loads(named.metadata[name])).values
        except (ValueError, RecursionError):  # a string of the source, which need not be JSON
            count = 1
        message = f"left out, as the metadata of {goal.title} has no room for it"
        report.note("warning", message, name, code="left-out", count=count)


def _advice(report: Report) -> str:
    """Return how what a state dict leaves out is kept; empty if no mode of this conversion keeps it."""
    # Where no file is read, as in `save`, a value with modules is Lua's.
    source = FORMATS[report.source_format or "t7"].values
    target = FORMATS[report.target_format or "pt"].values
    # In `tree` mode a `.pt` has all fields of Lua's objects, and PyTorch's modules as they are. Named tensors are then
    # those in the fields of Lua's objects, but of a `.pt` those of state dicts in every mode. A `.t7` has no modes.
    if target == PYTHON or (source == LUA and target == NAMED):
        return "; --mode tree keeps them"
    return ""


def note_data(data: Iterable[tuple[str, str, Any]], report: Report, where: str = "") -> None:
    """Note data of modules: each table, and all scalars in the same field of a class together.

    Args:
        data: for each its path, the class of its module, and its value.
        report: receives the notes.
        where: where they are in the result; empty if they are left out.
    """
    groups: dict[tuple[str, str], list[tuple[str, Any]]] = {}  # by class, and name of the field or path of the table
    for path, class_name, value in data:
        field_or_path = path.rpartition(".")[2] if isinstance(value, _SCALARS) else path
        groups.setdefault((class_name[:_MOST_CLASS_LETTERS], field_or_path), []).append((path, value))
    for (class_name, _field_or_path), paths_and_values in groups.items():
        path, value = paths_and_values[0]
        places = len(paths_and_values)
        count = Count(values=places) if isinstance(value, _SCALARS) else count_leaves(value)
        if where:
            level = "info"
            code = "beside"
            message = f"{where}: {count} of {class_name}"
        else:
            level = "warning"
            code = "left-out"
            message = f"left out, as a state dict has no place for {count} of {class_name}{_advice(report)}"
        message += and_elsewhere(places - 1)
        report.note(level, message, path, code=code, class_name=class_name, count=count.total)


class StateDicts:
    """Creates the state dict of each outermost nn module, once for a shared module.

    Args:
        roots: the values of a `.t7`.
        report: receives the notes.

    Attributes:
        paths: the first path of each outermost module, by its identity.
    """

    def __init__(self, roots: list[Value], report: Report) -> None:
        self._report = report
        self.paths = {id(module): path for path, module in find_modules(one_or_list(roots))}
        self.state_dicts: list[tuple[TorchObject, StateDict, Replacement]] = []
        """Each module with its state dict, and with what replaced it."""

    def replace(self, obj: TorchObject) -> Replacement | None:
        """Return the state dict of a module, and its other data; `None` for any other object.

        `as_tree` calls it, once for each object that it comes to: for outermost modules, as it does not enter them.
        """
        if not is_module(obj):
            return None
        state = state_dict(obj, self.paths.get(id(obj), "root"))
        self._report.notes += state.notes
        replacement = Replacement(value=OrderedDict(state), data=state.data)
        self.state_dicts.append((obj, state, replacement))
        return replacement

    def states(self) -> list[tuple[str, OrderedDict[str, Any]]]:
        """Return the state dicts in the result, with the paths of their modules: those with tensors, if any has."""
        states: list[tuple[str, OrderedDict[str, Any]]] = []
        for module, _, replacement in self.state_dicts:
            path = self.paths.get(id(module), "root")
            states.append((path, replacement.value))
        with_tensors = [(path, state) for path, state in states if state]
        return with_tensors or states

    def note_left_out(self, value: Any) -> None:
        """Note what the state dicts leave out.

        Args:
            value: the value written, with the state dicts in it.
        """
        coverage = Coverage()
        for obj, result, replacement in self.state_dicts:
            # Of a tensor with another layout in the state dict, Lua's is not in `value`; it is not left out, either.
            origins = (origin.tensor for origin in result.origins.values())
            coverage.written_views |= {place_of(tensor) for tensor in origins if tensor is not None}
            coverage.noted_fields |= result.data_fields
            coverage.add_module(obj, self.paths.get(id(obj), "root"), obj.class_name, replacement, self._report)
        coverage.add_notes(self._report, value)
        note_lost_sharing([result for _, result, _ in self.state_dicts], self._report)
