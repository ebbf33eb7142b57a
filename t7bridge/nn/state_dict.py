"""A Lua model as a PyTorch state dict, and PyTorch's tensors as new elements of the Lua tensors that they come from.

`save_module` writes a field `t7bridge` into each module with weights, and one into the root; see
`workshop/lua/objects.py`. They are read back here: the model's current state dict becomes the recorded one, and vice
versa. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from math import prod
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import evolve, field

from ..data import define, np
from ..errors import ModelError, UnsupportedError
from ..graph.lua import Table, TdsHash, TdsVec, TorchObject, Value, index_key
from ..graph.tensor import Tensor, contiguous
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Note, Report
from ..text import and_elsewhere, counted, listed
from ..values.assign import Assignment, same_elements
from ..values.widened import widen
from .fields import Fields, items_of, path_steps
from .layers.containers import clones
from .layouts import Layout, apply_layout, compacted, copied, elements, overlapping, undo_layout
from .mapping import Lua, Read, Row
from .places import NameBudget, Place, Places, is_scratch
from .registry import Layer, Param, Source, first_module, layer_of, modules, own_names

if TYPE_CHECKING:
    from ..graph.lua import Field as LuaField

_SCALAR_TYPES = (bytes, str, float, int)
"""Types of text, numbers and truth values."""
_DATA_TYPES = (Table, TdsHash, TdsVec, *_SCALAR_TYPES)
"""Types of values that may be data of a program, such as a vocabulary."""
_FIELD_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError)
"""What functions of an entry raise for missing or inconsistent fields: errors of `Fields`, and those of numpy."""
_COMMON_NAMES = ("weight", "bias", "running_mean", "running_var")
"""The tensors of most layers, whose names are the same in PyTorch, in the order in which PyTorch lists them."""


@define(frozen=True)
class _UnnamedField:
    """A field whose tensors are not in the state dict, unless another module has the same ones.

    Attributes:
        place: the module.
        name: of the field.
        step: the step of a path from the module to it, in Lua.
        value: its value.
        has_entry: whether the module has an entry, which does not name the field; otherwise only the tensors of the
            module with `_COMMON_NAMES` are in the state dict.
    """

    place: Place
    name: str
    step: str
    value: Value
    has_entry: bool


@define(eq=False)
class Origin:
    """The Lua object and field that a tensor of a state dict was made from.

    Attributes:
        obj: the Lua object.
        param: the entry that named it; `None` for a class without an entry.
        tensor: the Lua tensor; `None` if it was computed.
        layout: the steps from the Lua tensor to that of the state dict; none if it has Lua's layout.
    """

    obj: TorchObject
    param: Param | None = None
    tensor: Tensor | None = None
    layout: Layout = ()


class StateDict(OrderedDict[str, Tensor]):
    """A PyTorch state dict, made from a Lua model: tensors by PyTorch's names, in PyTorch's order.

    Tensors that shared memory in Lua do so here.

    Attributes:
        notes: notes for the user.
        origins: the origin of each tensor.
        data: strings, numbers and tables of them in fields of the model that its classes do not set, such as a
            vocabulary: under the prefix of the module and the name of the field.
        data_fields: identity of the object and name of the field of each of these, and of the record of `save_module`.
        places: the places of the model's modules; `None` if the tensors were put together from others, or copied.
    """

    __slots__ = ("data", "data_fields", "notes", "origins", "places")

    def __init__(self, *, places: Places | None = None) -> None:
        super().__init__()
        self.places = places
        self.notes: list[Note] = []
        self.origins: dict[str, Origin] = {}
        self.data: dict[str, Value] = {}
        self.data_fields: set[tuple[int, str]] = set()

    @property
    def tensors(self) -> StateDict:
        """The state dict itself."""
        return self

    def __getstate__(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the attributes for copies and pickles: all but the places, whose entries have functions."""
        kept = [name for name in self.__slots__ if name != "places"]
        return vars(self), {name: getattr(self, name) for name in kept}

    def __repr__(self) -> str:
        return f"<StateDict: {counted(len(self), 'tensor')}>"

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other


def state_dict(
    value: TorchObject | LuaField,
    path: str = "root",
    limits: Limits = DEFAULT_LIMITS,
    *,
    compact: bool = False,
    own_keys: bool = False,
) -> StateDict:
    """Convert a Lua module to a state dict with PyTorch's names, shapes and order.

    The children of a container are named by their position, from 0: `0.weight`, `1.0.bias`. A layer whose class has no
    entry keeps its tensors under Lua's names, with a note. A model written by `save_module` has its original PyTorch
    names.

    Args:
        value: the module, as returned by `T7Reader`.
        path: its path, for notes.
        limits: resource limits.
        compact: whether the tensors get storages that hold no more than they use.
        own_keys: whether to use the names of the Lua model, whatever `save_module` recorded in it.

    Returns:
        Tensors that are views of the file's storages wherever a view can express PyTorch's layout.

    Raises:
        ModelError: `value` is not a Torch object.
        LimitError: the model is nested or shared so much that its names would be too many or too long.

    Example:
        >>> tensors = state_dict(load("model.t7"))  # doctest: +SKIP
    """
    if not isinstance(value, TorchObject):
        raise ModelError(
            "a state dict is made from an nn module",
            path=path,
            found=type(value).__name__,
            hint="load(path) reads a file." if isinstance(value, (str, PathLike)) else "",
        )
    state = lua_named(Places(value, path, limits))
    if not own_keys:
        _use_recorded_names(value, path, state)
    if compact:
        state.update(compacted(state))
    return state


def lua_named(places: Places) -> StateDict:
    """Make the state dict of a Lua module under the names of the Lua model, as `state_dict` does with `own_keys`.

    Args:
        places: the places of the module and of those inside it.

    Raises:
        LimitError: the model is nested or shared so much that its names would be too many or too long.
    """
    return _Collector(places).run()


def _use_recorded_names(value: TorchObject, path: str, state: StateDict) -> None:
    """Convert a state dict in place to the one that `save_module` recorded in the model, if it did, and they match.

    If they do not match, the state dict gets a note, and keeps the names of the Lua model.

    Args:
        value: the model.
        path: its path in the file, for the note.
        state: its state dict under the names of the Lua model.
    """
    if ROOT_FIELD not in value:
        return
    record = recorded(value, state)
    if record is None:
        message = "the record of PyTorch's names does not match the model: names are those of the Lua model"
        state.notes.append(Note("warning", path, message, code="record"))
        return
    tensors = record.to_recorded(state)
    origins = _recorded_origins(record, state.origins)
    state.clear()
    state.update(tensors)
    state.origins = origins


def _recorded_origins(record: Recorded, own_origins: Mapping[str, Origin]) -> dict[str, Origin]:
    """Return the origins of a recorded state dict, by its keys; a tensor that only the root's record holds has none.

    Args:
        record: the record.
        own_origins: of the model's own state dict, by its keys.
    """
    origins = {}
    for key in record.keys:
        first_key = record.tied.get(key, key)
        pieces = record.pieces.get(first_key)
        if pieces:
            # Fields and layouts are of Lua's tensors, of which this one may be a part, or several: it has none. Its
            # object is that of its first piece.
            first_piece = pieces[0]
            origin = own_origins[first_piece.key]
            origins[key] = Origin(origin.obj, origin.param, tensor=origin.tensor)
    return origins


class _Collector:
    """Visits the places of modules and collects the tensors of each."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._result = StateDict(places=places)
        self._name_budget = NameBudget(places.limits)
        self._converted: dict[tuple[int, str], tuple[Tensor, Origin]] = {}
        """Tensors of each object by name, so that a module at two places has the same tensors twice."""
        self._last_numbers: dict[str, int] = {}
        """The largest number that tensors of one name have got so far, by that name."""
        self._copies: dict[object, list[Tensor]] = {}
        """Copied tensors, by their originals, so that tied weights stay tied."""
        self._notes: dict[tuple[str, str], Note] = {}
        """The note of each level and message, with its first path and the number of occurrences."""
        self._unnamed: list[_UnnamedField] = []
        """Looked at when all tensors are in the result, as another module may name what is in them."""
        self._own_names = cache(own_names)
        """The fields that each class sets itself, by its name."""
        self._is_data = cache(is_data)
        """A table that many objects hold is searched once."""
        self._options: dict[int, frozenset[str]] = {}
        """The fields that the entry of each object's class reads, by the object's id."""

    def run(self) -> StateDict:
        """Return the state dict of the model, with notes on what it lacks."""
        for place in self._places:
            if place.layer is None:
                self._collect_by_names(place)
            else:
                self._collect_by_entry(place, place.layer)
        for place, child in self._places.cycles:
            message = f"a {child.value.class_name} contains itself: used once"
            self._note("warning", place, message, step=child.path, code="cycle")
        for place, child in self._places.non_modules:
            message = f"{place.obj.class_name} holds a {type(child.value).__name__} where a module belongs"
            self._note("warning", place, message, step=child.path)
        self._report_unnamed()
        for note in self._notes.values():
            self._result.notes.append(evolve(note, message=note.message + and_elsewhere(note.count - 1)))
        return self._result

    def _note(self, level: str, place: Place, message: str, *, step: str = "", code: str = "layer") -> None:
        """Add a note, or count one of the same level and message once more, whose place stays the first one.

        Args:
            level: `info` or `warning`.
            place: the module.
            message: the text.
            step: the rest of the path below the module; empty for itself.
            code: the kind of note, for programs.
        """
        note = self._notes.get((level, message))
        if note is None:
            path = place.path + step
            self._name_budget.spend(len(path))
            note = Note(level, path, message, code=code, class_name=place.obj.class_name, count=0)
        self._notes[level, message] = evolve(note, count=note.count + 1)

    # Classes with an entry

    def _collect_by_entry(self, place: Place, layer: Layer) -> None:
        """Collect the tensors that the entry of a module's class names, or by names if the entry cannot be applied.

        Args:
            place: where the module is.
            layer: the entry.
        """
        fields = Fields(place.obj, path="", defaults=layer.defaults)  # paths of its errors begin at the object
        if text := layer.note_of(fields):
            self._note("info", place, f"{place.obj.class_name} {text}")
        try:
            params = layer.params_of(fields)
        except ModelError as error:
            message = f"{place.obj.class_name}: {error.message}: treated as a new class"
            self._note("warning", place, message, step=error.path)
            self._collect_by_names(place)
            return
        for param in params:
            identity = (id(place.obj), param.name)
            converted = self._converted.get(identity)
            if converted is None:
                converted = self._convert(place, fields, param)
            if converted is not None:
                self._converted[identity] = converted
                self._put(place, param.name, *converted)
        sources = [source for param in params for source in param.sources]
        self._collect_unnamed(place, layer, named_fields={source.path.partition(".")[0] for source in sources})

    def _convert(self, place: Place, fields: Fields, param: Param) -> tuple[Tensor, Origin] | None:
        """Return the tensor that an entry declares, and its origin; `None` if the object has none.

        Args:
            place: where the module is.
            fields: those of the module.
            param: what the entry says of the tensor: in which fields it may be, or how it is computed from others.
        """
        for source in param.sources:
            tensor = fields.find_tensor(source.path)
            if tensor is not None:
                return self._converted_field(place, fields, param, source, tensor)
        return self._computed(place, fields, param)

    def _converted_field(
        self, place: Place, fields: Fields, param: Param, source: Source, original: Tensor
    ) -> tuple[Tensor, Origin] | None:
        """Return a field's tensor in PyTorch's layout, or in Lua's if that is impossible, and its origin.

        Args:
            place: where the module is.
            fields: those of the module, on which a layout may depend.
            param: what the entry says of the tensor.
            source: the field, and its layout in Lua.
            original: the tensor in the field.

        Returns:
            `None` if Lua never reads the field, by the entry; this is noted.
        """
        obj = place.obj
        steps = path_steps(source.path)
        if param.kind == "unused":
            self._note("info", place, f"{source.path} of {obj.class_name}: {param.note}", step=steps)
            return None
        if param.note:
            self._note("info", place, f"{obj.class_name}: {param.note}", step=steps)
        try:
            tensor = apply_layout(source.layout, original, fields)
        except ModelError as error:
            reason = f"{error.message}; expected {error.expected}; found {error.found}"
            message = f"{source.path} of {obj.class_name} keeps Lua's layout: {reason}"
            self._note("warning", place, message, step=steps)
            return original, Origin(obj, param, tensor=original)
        is_copy = tensor.storage is not original.storage
        if is_copy:
            converted_from = (id(original.storage), original.offset, original.size, original.stride, source.layout)
            tensor = self._same_copy(converted_from, tensor)
        return tensor, Origin(obj, param, original, source.layout)

    def _computed(self, place: Place, fields: Fields, param: Param) -> tuple[Tensor, Origin] | None:
        """Return a tensor that no field holds, computed from others, and its origin.

        Args:
            place: where the module is.
            fields: those of the module.
            param: what the entry says of the tensor.

        Returns:
            `None` if the entry computes none for these fields, or if it cannot be computed, which is noted.
        """
        obj = place.obj
        if param.make is None:
            return None
        try:
            tensor = param.make(fields)
        except _FIELD_ERRORS as error:
            message = error.message if isinstance(error, ModelError) else str(error)
            self._note("warning", place, f"{param.name} of {obj.class_name} cannot be computed: {message}")
            return None
        if tensor is None:
            return None
        if param.note:
            self._note("info", place, f"{obj.class_name}: {param.note}")
        return tensor, Origin(obj, param)

    def _same_copy(self, converted_from: object, tensor: Tensor) -> Tensor:
        """Return an earlier copy of the same memory in the same layout, if it has equal elements; else this one.

        They may differ, as a step of a layout may depend on other fields of its object.

        Args:
            converted_from: a key that is equal for copies of the same memory in the same layout.
            tensor: the copy, which later calls may return.
        """
        copies = self._copies.setdefault(converted_from, [])
        for copy in copies:
            if same_elements(copy, tensor):
                return copy
        copies.append(tensor)
        return tensor

    def _put(self, place: Place, name: str, tensor: Tensor, origin: Origin) -> None:
        """Add a tensor to the result; a name that another one has gets a number, `weight_2`, and a note.

        Nothing is added if the name itself has the same tensor: of a module at two places of one name, as in a damaged
        file.

        Args:
            place: where the module is, whose prefix the key begins with.
            name: of the tensor in the module.
            tensor: the tensor.
            origin: the object and field that it was made from.

        Raises:
            LimitError: the names of all tensors together are too long.
        """
        wanted = place.prefix + name
        self._name_budget.spend(len(wanted))
        state = self._result
        if state.get(wanted) is tensor:
            return
        key = wanted
        number = self._last_numbers.get(wanted, 1)
        while key in state:
            number += 1
            key = f"{wanted}_{number}"
        if key != wanted:
            self._last_numbers[wanted] = number
            self._note("warning", place, f"two tensors are named {wanted}; this one is {key}")
        state[key] = tensor
        state.origins[key] = origin

    # Classes without an entry

    def _collect_by_names(self, place: Place) -> None:
        """Collect the tensors called `weight`, `bias` and the like; of an object without them all that it holds.

        Only its own fields count: a tensor in a table of the object is called `table.weight`, which is another name.
        """
        obj = place.obj
        tensors = [child for child in self._places.searcher.fields(obj) if _has_elements(child.value)]
        common = [child for child in tensors if child.name in _COMMON_NAMES]
        others = [child for child in tensors if child.name not in _COMMON_NAMES]
        common.sort(key=lambda child: _COMMON_NAMES.index(child.name))
        for child in common or others:
            self._put(place, child.name, child.value, Origin(obj, tensor=child.value))
        # An entry that could not be applied has a note already.
        if place.layer is None:
            consequence = "its tensors keep Lua's names" if tensors else "it has no tensors of its own"
            self._note("warning", place, f"no mapping yet for class {obj.class_name}: {consequence}", code="unmapped")
        if common:
            # The others may be temporary, or tensors of other modules: they are noted if they are nowhere else.
            for child in others:
                self._unnamed.append(_UnnamedField(place, child.name, child.path, child.value, has_entry=False))
        for name, value in _named_values(obj):
            if not is_scratch(name):
                self._collect_data(place, name, value)

    # What is left out

    def _collect_unnamed(self, place: Place, layer: Layer, named_fields: set[str]) -> None:
        """Add to `_unnamed` the fields that may hold tensors, modules or data that the entry does not name.

        Args:
            place: the module.
            layer: its entry.
            named_fields: the fields whose tensors the entry names.
        """
        obj = place.obj
        for name, value in _named_values(obj):
            if not isinstance(value, (Tensor, TorchObject, *_DATA_TYPES)):
                continue
            # `scratch`: temporary values of this class; `is_scratch`: of every class.
            if name in named_fields or name in layer.scratch or is_scratch(name):
                continue
            if self._is_set_by_class(obj, name, value):
                continue
            if name in (FIELD, ROOT_FIELD):  # a record of `save_module`: nothing in it counts as left out
                self._collect_data(place, name, value)
                continue
            # The modules inside are collected themselves.
            if name in ("modules", "module", "criterions", "criterion") and layer.children is not None:
                continue
            self._unnamed.append(_UnnamedField(place, name, path_steps(name), value, has_entry=True))

    def _is_set_by_class(self, obj: TorchObject, name: str, value: Value) -> bool:
        """Return whether a field holds a scalar and is one that the class itself sets, for every object."""
        return isinstance(value, _SCALAR_TYPES) and name in self._own_names(obj.class_name)

    def _collect_data(self, place: Place, name: str, value: Value) -> None:
        """Add a field to `data` of the result if it holds data, such as a vocabulary, and is no option of the layer.

        Args:
            place: where the module is.
            name: of the field.
            value: what it holds.
        """
        if name in (FIELD, ROOT_FIELD):  # the record of `save_module`, which `_use_recorded_names` uses or notes
            self._result.data_fields.add((id(place.obj), name))
            return
        if self._is_set_by_class(place.obj, name, value):
            return
        if not isinstance(value, _DATA_TYPES) or not self._is_data(value):
            return
        if place.layer is not None:
            if id(place.obj) not in self._options:
                self._options[id(place.obj)] = options_of(place.obj, place.layer)
            if name in self._options[id(place.obj)]:
                return
        self._result.data.setdefault(place.prefix + name, value)
        self._result.data_fields.add((id(place.obj), name))

    def _report_unnamed(self) -> None:
        """Note content that was left out and is not in the state dict under another name."""
        storages = {id(origin.tensor.storage) for origin in self._result.origins.values() if origin.tensor is not None}
        for unnamed in self._unnamed:
            place = unnamed.place
            content = self._left_out(unnamed, storages)
            if content:
                message = f"{unnamed.step.lstrip('.')} of {place.obj.class_name} holds {content} that is left out"
                self._note("warning", place, message, step=unnamed.step, code="unread-field")
            elif unnamed.has_entry:
                # Of modules without an entry, data was collected with the tensors.
                self._collect_data(place, unnamed.name, unnamed.value)

    def _left_out(self, unnamed: _UnnamedField, storages: set[int]) -> str:
        """Describe the first tensor or module in a field that is nowhere in the state dict; empty if there is none.

        Args:
            unnamed: the field.
            storages: those of the tensors in the state dict, by id.
        """
        for child in self._places.searcher.search(unnamed.value, unnamed.name, unnamed.step):
            value = child.value
            if isinstance(value, Tensor):
                if value.numel and id(value.storage) not in storages:
                    return "a tensor"
            elif id(value) not in self._places.last_entered:
                return f"a {value.class_name}"
        return ""


def _named_values(obj: TorchObject) -> Iterator[tuple[str, Value]]:
    """Yield the fields of an object whose keys are names."""
    if obj.fields is None:
        return
    for key, value in obj.fields.raw_items():
        if isinstance(key, bytes):
            yield _text(key), value


def _has_elements(value: Value) -> bool:
    return isinstance(value, Tensor) and value.numel > 0 and value.storage is not None


def is_data(value: Value) -> bool:
    """Return whether a value is text, a number or a truth value, or tables that hold such values and nothing else."""
    seen: set[int] = set()  # tables, by id: they may contain themselves
    stack = [value]
    has_scalar = False
    while stack:
        item = stack.pop()
        if isinstance(item, _SCALAR_TYPES):
            has_scalar = True
            continue
        if not isinstance(item, (Table, TdsHash, TdsVec)):
            return False
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, TdsVec):
            stack.extend(item.elements)
        else:
            table = item.content if isinstance(item, TdsHash) else item
            stack.extend((*table.raw_keys, *table.raw_values))
    return has_scalar  # empty tables are no data


class _RecordingTable(Table):
    """The fields of an object, which remembers the names that are looked up, in `names_read`."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.raw_keys, table.raw_values)
        self.names_read: set[str] = set()

    def _place(self, key: Value) -> int:
        """Return what `Table` does, after noting the name."""
        name = index_key(key)
        if isinstance(name, bytes):
            self.names_read.add(_text(name))
        return super()._place(key)


def options_of(obj: TorchObject, layer: Layer) -> frozenset[str]:
    """Return the fields of an object that the entry of its class reads: its options, and its tensors and children.

    The entry is applied to a copy of the object that notes which fields are read. A field that is read only for other
    values, or after an error, is missing.

    Args:
        obj: the object.
        layer: the entry.
    """
    fields = _RecordingTable(obj.fields or Table())
    copy = TorchObject(obj.class_name, obj.version, fields, obj.payload)
    lua = Lua(copy, path="", defaults=layer.defaults)
    module = layer.module_of(obj.class_name)
    children = layer.children
    reads: list[Callable[[Lua], Any]] = [layer.params_of, layer.note_of]
    if children is not None:
        reads.append(lambda _: list(children(copy)))
    if isinstance(module, Row):
        # Each argument by itself: one that needs tensors does not hide the next.
        arguments = (*module.args, *module.kwargs.values())
        reads += [argument.get for argument in arguments if isinstance(argument, Read)]
    elif module is not None:
        reads.append(module)
    for read in reads:
        # Fields may be missing or damaged; what was read before the error counts.
        with suppress(*_FIELD_ERRORS, AttributeError):
            read(lua)
    return frozenset(fields.names_read)


def native(tensor: Tensor) -> Tensor:
    """Return a tensor with elements of a type that Lua has, exactly the same numbers.

    Raises:
        UnsupportedError: complex numbers, which are two numbers in Lua.
    """
    if tensor.element.lua:
        return tensor
    if tensor.element.name.startswith("complex"):
        raise UnsupportedError("Lua Torch has no complex numbers", found=tensor.element.name)
    packed = copied(tensor, elements(tensor))
    assert packed.storage is not None
    # Of numbers that are not complex, each element becomes one element.
    wider, _, _ = widen(packed.storage)
    return evolve(packed, element=wider.element, storage=wider)


def assignment(name: str, origin: Origin, tensor: Tensor, converted: Tensor) -> Assignment:
    """Return the assignment of a tensor to the Lua tensor that it comes from.

    The layout's steps are applied on Lua's side as far as they are views of Lua's storage; the others are undone.

    Args:
        name: its name in messages.
        origin: the Lua tensor and its layout; not of a computed tensor.
        tensor: PyTorch's, of the shape of `converted`.
        converted: the Lua tensor in PyTorch's layout.
    """
    assert origin.tensor is not None
    target = origin.tensor
    fields = _fields(origin)
    steps = origin.layout
    while steps:
        view = steps[0].apply(target, fields)
        if view.storage is not target.storage:
            break
        target = view
        steps = steps[1:]
    if not steps:
        return Assignment(name, target, tensor)
    if same_elements(tensor, converted):
        # Unchanged: Lua's own elements, as undoing a step may round.
        return Assignment(name, target, copied(target, elements(target)))
    return Assignment(name, target, undo_layout(steps, tensor, target, fields))


def recomputed(origin: Origin) -> Tensor | None:
    """Compute a derived tensor from the tensors that the Lua object holds now.

    Args:
        origin: the object, and the entry that says how the tensor is computed from others.

    Returns:
        `None` if it is not derived, or cannot be computed from these tensors.
    """
    if origin.param is None or origin.param.make is None:
        return None
    try:
        return origin.param.make(_fields(origin))
    except _FIELD_ERRORS:
        return None


def existing_field(origin: Origin, computed: Tensor) -> Tensor | None:
    """Return the Lua field that holds a computed tensor of a state dict too; `None` if there is none of its shape.

    Lua's module reads this field in evaluation, and computes it again in training.

    Args:
        origin: of the tensor of the state dict.
        computed: the tensor.
    """
    if origin.param is None:
        return None
    tensor = _fields(origin).find_tensor(origin.param.name)
    if tensor is None or tensor.shape != computed.shape:
        return None
    return tensor


def added(first: Tensor, second: Tensor) -> Tensor | None:
    """Return the sum of two tensors of equal shapes, of real numbers, in the type that numpy promotes theirs to.

    Returns:
        `None` if the second is zero everywhere, so that the bits of the first stay as they are.
    """
    array = elements(first)
    addend = elements(second)
    if not addend.any():
        return None
    # In doubles, so that the sum is rounded once.
    with np.errstate(all="ignore"):
        total = array.astype("f8") + addend
        return Tensor.from_numpy(total.astype(np.result_type(array, addend)))


def is_close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors agree up to the rounding of different ways to compute them."""
    if one.shape != other.shape:
        return False
    return bool(np.allclose(one.array, other.array, rtol=1e-3, atol=1e-5, equal_nan=True))


def learned_copies(root: TorchObject) -> Iterator[tuple[str, str, Origin, Tensor]]:
    """Yield the parameters of copies of a module that its container runs in parallel, which the state dict lacks.

    Of such a container the state dict has only the first of its modules, under the name `0`. Clones of an `nn.MapTable`
    that have weights of their own are no copies: the state dict has them all.

    Yields:
        The key of the first module's parameter in the state dict; the path of the copy in Lua; origin and tensor of the
        copy's parameter.
    """
    for place in Places(root):
        if place.layer is None or place.layer.children not in (first_module, clones):
            continue
        count_in_state_dict = len(list(place.layer.children(place.obj)))
        copies = list(modules(place.obj))[count_in_state_dict:]
        for child in copies:
            if not isinstance(child.value, TorchObject):  # in a damaged file
                continue
            tensors = state_dict(child.value, own_keys=True)
            for key, origin in tensors.origins.items():
                if origin.param is not None and origin.param.kind == "parameter":
                    yield f"{place.prefix}0.{key}", place.path + child.path, origin, tensors[key]


def _fields(origin: Origin) -> Fields:
    """Return the fields of the object that a tensor was made from, with the defaults of its class."""
    layer = layer_of(origin.obj.class_name)
    return Fields(origin.obj, path="", defaults=layer.defaults if layer else {})


# Sharing that is lost


_SHOWN = 8
"""Number of names in a message."""


class _Converted(NamedTuple):
    """A Lua tensor, and what became of it.

    Attributes:
        begin: its first element in its storage.
        end: the end of its last.
        key: its key in the state dict.
        before: the Lua tensor.
        after: PyTorch's.
    """

    begin: int
    end: int
    key: str
    before: Tensor
    after: Tensor


def note_lost_sharing(models: Iterable[StateDict], report: Report) -> None:
    """Note the tensors that were copied into another layout, and share their original memory with others of the result.

    Args:
        models: the state dicts of the result.
        report: receives the note.
    """
    keys = dict.fromkeys(_keys_of_lost_sharing(models))
    if keys:
        text = listed(keys, _SHOWN)
        message = f"memory that Lua shares between tensors of different layouts is no longer shared: {text}"
        report.notes.append(Note("info", path="", message=message, loss="sharing", code="unshared"))


def _keys_of_lost_sharing(models: Iterable[StateDict]) -> Iterator[str]:
    """Yield the keys of tensors that overlap others in Lua's memory, and have storages of their own in the result.

    Of tensors that overlap, all are named if they do not have one storage any more, also those that still share one.

    Args:
        models: the state dicts of the result, whose tensors have their Lua tensors as origins.
    """
    by_storage: dict[int, list[_Converted]] = {}
    for model in models:
        for key, origin in model.origins.items():
            before = origin.tensor
            if before is not None and before.storage is not None and before.numel:
                begin, end = before.reach()
                converted = _Converted(begin, end, key, before, model[key])
                by_storage.setdefault(id(before.storage), []).append(converted)
    for group in chain.from_iterable(map(overlapping, by_storage.values())):
        lua_tensors = {id(converted.before) for converted in group}
        storages = {id(converted.after.storage) for converted in group}
        # Several tensors of PyTorch that are parts of one of Lua share nothing.
        if len(lua_tensors) > 1 and len(storages) > 1:
            for converted in group:
                yield converted.key


# Records of `save_module`


FIELD = "t7bridge"
"""The field of a module that maps its tensors to runs of PyTorch's."""
ROOT_FIELD = "t7bridge_state_dict"
"""The field of the root with the keys of PyTorch's state dict, in order, and what no module holds."""


@define(frozen=True)
class Run:
    """Consecutive elements of a recorded tensor, which are a tensor of the model's own state dict.

    Attributes:
        key: of that tensor.
        start: of the run, in elements, 0-based.
        count: elements of the run.
        transposed: whether the model holds the transpose of the tensor.
    """

    key: str
    start: int
    count: int
    transposed: bool = False

    def is_all_of(self, size: tuple[int, ...]) -> bool:
        """Return whether these are all elements of a tensor of this size."""
        return self.start == 0 and self.count == prod(size)


@define(eq=False)
class Recorded:
    """The PyTorch state dict that `save_module` recorded in a model, and where its own state dict has the elements.

    Attributes:
        keys: all keys, in order.
        sizes: of the tensors held by modules, by key.
        pieces: the runs of which each of these tensors consists, by key.
        copies: further runs of the same elements, as in the cells of an unrolled layer.
        tied: other keys of a tensor → its first key.
        other: tensors that no module holds, or holds only in part.
        scalars: outputs of the model without dimensions, counted from 1.
    """

    keys: list[str] = field(factory=list)
    sizes: dict[str, tuple[int, ...]] = field(factory=dict)
    pieces: dict[str, list[Run]] = field(factory=dict)
    copies: dict[str, list[Run]] = field(factory=dict)
    tied: dict[str, str] = field(factory=dict)
    other: dict[str, Tensor] = field(factory=dict)
    scalars: list[int] = field(factory=list)

    def to_recorded(self, state: StateDict) -> dict[str, Tensor]:
        """Convert a model's own state dict to the recorded one: views of the same memory where possible."""
        return self.in_order({key: self._joined(key, state) for key in self.pieces}, self.other)

    def in_order(self, joined: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
        """Return tensors by all recorded keys, in their order; keys that are tied have the same tensor.

        Args:
            joined: for each key of `pieces` the tensor composed of these pieces, of any library.
            other: for each key of `other` its tensor, likewise.
        """
        # A tensor that modules hold in part is in both; `joined` has it as it is now.
        tensors = {**other, **joined}
        return {key: tensors[self.tied.get(key, key)] for key in self.keys}

    def _joined(self, key: str, state: StateDict) -> Tensor:
        """Return a tensor composed of its pieces; a view, if they lie in memory as in the tensor.

        Args:
            key: the recorded key of the tensor, its first one.
            state: the model's own state dict, which has the elements of the pieces.
        """
        size = self.sizes[key]
        pieces = self.pieces[key]
        tensors = [state[piece.key] for piece in pieces]
        first = tensors[0]
        if len(pieces) == 1 and pieces[0].transposed:  # only a whole matrix is
            return Tensor(first.element, first.storage, size, stride=first.stride[::-1], offset=first.offset)
        if key not in self.other:  # modules hold all of it
            offset = _offset_of_whole(pieces, tensors)
            if offset is not None:
                return Tensor(first.element, first.storage, size, contiguous(size), offset, is_scalar=not size)
            flat = np.empty(prod(size), np.dtype(first.element.code))
        else:
            # The whole tensor, for the elements that no module holds; those of modules may have changed since.
            flat = self.other[key].numpy().reshape(-1).copy()
        for piece, tensor in zip(pieces, tensors):
            flat[piece.start : piece.start + piece.count] = tensor.numpy().reshape(-1)
        return Tensor.from_numpy(flat.reshape(size))  # one without dimensions is a scalar

    def differences(self, state: Mapping[Any, Any]) -> list[str]:
        """Return, as lines of text, what does not fit in a state dict with the recorded keys.

        These are tensors of other shapes, and different tensors under keys that are tied in the model. Keys may be
        missing, and values that are no tensors do not count.
        """
        lines = []
        names_of = self._names()
        for key, size in self.sizes.items():
            given = [name for name in names_of[key] if isinstance(state.get(name), Tensor)]
            for name in given:
                shape = state[name].shape
                size_in_lua = size or (1,)  # Lua has no tensors without dimensions
                if shape not in (size, size_in_lua):
                    lines.append(f"wrong {name}: expected {list(size)}; found {list(shape)}")
            if not given:
                continue
            first, *others = given
            for name in others:
                if not same_elements(state[first], state[name]):
                    lines.append(f"different values in {first} and {name}, which are one tensor in the model")
        return lines

    def _names(self) -> dict[str, list[str]]:
        """Return the recorded keys of each tensor that modules hold, by its first key: this, and those tied to it."""
        names = {key: [key] for key in self.pieces}
        for key, first_key in self.tied.items():
            if first_key in names:
                names[first_key].append(key)
        return names

    def to_own(self, state: Mapping[Any, Any], own: StateDict) -> dict[Any, Any]:
        """Convert a recorded state dict to the model's own; tensors that no module holds are left out.

        Args:
            state: tensors under the recorded keys, of types that Lua has, for which `differences` returns none; some
                may be missing.
            own: the model's own state dict, for shapes, and for the tensors that are not recorded.
        """
        result: dict[Any, Any] = {}
        for key, names in self._names().items():
            given = [state[name] for name in names if isinstance(state.get(name), Tensor)]
            if not given:
                continue
            array = given[0].numpy()  # tied tensors are equal
            for run in self.all_runs(key):
                flat = (array.T if run.transposed else array).reshape(-1)
                part = flat[run.start : run.start + run.count]
                result[run.key] = Tensor.from_numpy(part.reshape(own[run.key].shape))
        # What the record does not name keeps its values; computed tensors follow from others.
        recorded_keys = self.own_keys()
        for key, origin in own.origins.items():
            if key not in recorded_keys and origin.tensor is not None:
                result[key] = own[key]
        return result

    def own_keys(self) -> set[str]:
        """Return the keys of the model's own state dict that hold parts of recorded tensors."""
        return {run.key for key in self.pieces for run in self.all_runs(key)}

    def all_runs(self, key: str) -> list[Run]:
        """Return all runs of a recorded tensor: its pieces, and copies of these."""
        return [*self.pieces[key], *self.copies.get(key, [])]


def _offset_of_whole(pieces: Sequence[Run], tensors: Sequence[Tensor]) -> int | None:
    """Return where a tensor begins in the storage of its pieces; `None` if they do not lie there as in the tensor.

    Args:
        pieces: all of them, which cover the tensor without overlap.
        tensors: the elements of each piece.
    """
    # Where the tensor would begin, by each piece: if all agree, the whole is there.
    beginnings: set[tuple[int, int]] = set()
    for piece, tensor in zip(pieces, tensors):
        if not tensor.is_contiguous:
            return None
        beginnings.add((id(tensor.storage), tensor.offset - piece.start))
    return tensors[0].offset - pieces[0].start if len(beginnings) == 1 else None


def recorded(root: TorchObject, own: StateDict) -> Recorded | None:
    """Return the state dict that `save_module` recorded in a model, and where the model now has its elements.

    The root has the order of the keys and the tensors that no module holds, in the field `ROOT_FIELD`. Each module
    with tensors has in `FIELD`, for each of them, which part of which recorded tensor it is.

    Args:
        root: the model.
        own: the state dict of the model under Lua's names, as it is now.

    Returns:
        `None` if nothing is recorded, if the record is damaged, or if the model was changed so that its modules,
        together with the root, no longer have all recorded tensors.
    """
    table = root.get(ROOT_FIELD)
    if not isinstance(table, Table):
        return None
    record = _record_of_root(table)
    if not _add_runs(record, own):
        return None
    # Several modules may hold the same part, such as the cells of an unrolled layer: one of them is enough.
    for key in record.pieces:
        _separate_copies(record, key)
    # Each tensor of which modules hold parts must be complete.
    if not all(_is_covered(record, key, own) for key in record.pieces):
        return None
    # Each key, also one tied to another, must have a tensor: one of modules, or one of the root. What modules hold must
    # have a key.
    first_keys = {record.tied.get(key, key) for key in record.keys}
    if not record.pieces.keys() <= first_keys <= {*record.pieces, *record.other}:
        return None
    return record


def _add_runs(record: Recorded, own: StateDict) -> bool:
    """Add the runs that the modules' fields record; return whether their numbers are valid.

    A module's table has by the name of each tensor the part of a recorded tensor that it is.

    Args:
        record: the record, whose `pieces` and `sizes` are filled.
        own: the model's own state dict, whose origins are the modules.
    """
    for key, origin in own.origins.items():
        _, _, name = key.rpartition(".")
        entries = origin.obj.get(FIELD)
        entry = entries.get(name) if isinstance(entries, Table) else None
        if isinstance(entry, Table) and not _add_run(record, key, entry, own[key].numel):
            return False
    return True


def _record_of_root(table: Table) -> Recorded:
    """Return what the root of a model records: all but the parts of tensors that modules hold.

    What is damaged in it is left out.

    Args:
        table: its field `ROOT_FIELD`, with the attributes of `Recorded` under their names. A tensor without dimensions,
            which Lua has not, is one of one element in a table.
    """
    keys = dict.fromkeys(_text(key) for key in items_of(table.get("keys")) or ())  # each once, also in a damaged file
    record = Recorded(list(keys))
    record.tied = {_text(key): _text(value) for key, value in _pairs(table.get("tied"))}
    record.scalars = [int(number) for number in items_of(table.get("scalars")) or () if _is_count(number)]
    for key, value in _pairs(table.get("other")):
        tensor = _unwrapped_scalar(value) if isinstance(value, Table) else value
        if isinstance(tensor, Tensor):
            record.other[_text(key)] = tensor
    return record


def _unwrapped_scalar(table: Table) -> Tensor | None:
    """Return the tensor without dimensions, which Lua has not, of a table `{scalar = tensor}`; `None` if it is none."""
    tensor = table.get("scalar")
    if not isinstance(tensor, Tensor) or tensor.numel != 1:
        return None
    return Tensor(tensor.element, tensor.storage, size=(), stride=(), offset=tensor.offset, is_scalar=True)


def _add_run(record: Recorded, own_key: str, entry: Table, count: int) -> bool:
    """Add the run that a module's field records for one of its tensors; return whether its numbers are valid.

    Args:
        record: the record, to which the run and the size of its tensor are added.
        own_key: of the module's tensor, in the model's own state dict.
        entry: what the field says: `key` and `size` of the recorded tensor, `start` of the part of it that the module
            holds, in elements from 0, by default 0, and whether the module has it `transposed`.
        count: elements of the module's tensor, and so of the part.
    """
    key = _text(entry.get("key"))
    extents = items_of(entry.get("size")) or []
    start = entry.get("start", 0.0)
    if not all(map(_is_count, (start, *extents))):
        return False
    run = Run(own_key, start=int(start), count=count, transposed=entry.get("transposed") is True)
    record.pieces.setdefault(key, []).append(run)
    # Each module with a part says the size; where a changed file has several, `_is_covered` judges by the first.
    record.sizes.setdefault(key, tuple(map(int, extents)))
    return True


def _is_count(value: Any) -> bool:
    """Return whether a value of the file is a whole number from 0 on; NaN and infinity are not."""
    return isinstance(value, (int, float)) and value >= 0 and value % 1 == 0


def _separate_copies(record: Recorded, key: str) -> None:
    """Sort the runs of a tensor in `pieces`, and move those of elements that another run has to `copies`.

    A run is a stretch of the tensor's elements that one module holds. If one is the whole tensor, it is the only piece.

    Args:
        record: the record; `pieces` and `copies` of the key are changed, no keys are added to `pieces`.
        key: of the recorded tensor.
    """
    runs = record.pieces[key]
    whole_runs = [run for run in runs if run.is_all_of(record.sizes[key])]
    pieces: dict[tuple[int, int], Run] = {}  # by their first element and number of elements
    for run in whole_runs or runs:
        # Of runs of the same elements, which share their memory, the first counts.
        pieces.setdefault((run.start, run.count), run)
    record.pieces[key] = sorted(pieces.values(), key=lambda run: run.start)
    record.copies[key] = [run for run in runs if pieces.get((run.start, run.count)) is not run]


def _is_covered(record: Recorded, key: str, own: StateDict) -> bool:
    """Return whether the pieces of a tensor, as `_separate_copies` left them, cover all of it without overlap.

    Elements that no module holds are in `other`, which then has the whole tensor. Only a piece that is a whole matrix
    may be transposed.

    Args:
        record: what the model records.
        key: the recorded key of the tensor, its first one.
        own: the model's own state dict, which has the elements of the pieces.
    """
    size = record.sizes[key]
    pieces = record.pieces[key]
    total = prod(size)
    first = pieces[0]
    if first.is_all_of(size):  # the only one: all others are copies of its elements
        has_shape = not first.transposed or (len(size) == 2 and own[first.key].shape == size[::-1])
        return has_shape and all(run.start + run.count <= total for run in record.copies[key])
    end = 0
    covered = 0
    for piece in pieces:
        if piece.start < end or piece.transposed:
            return False
        end = piece.start + piece.count
        covered += piece.count
    if end > total:
        return False
    rest = record.other.get(key)
    return covered == total or (rest is not None and rest.numel == total)


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, Table) else []
