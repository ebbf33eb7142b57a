"""A Lua model as a PyTorch state dict, and PyTorch's tensors as new elements of the Lua tensors that they come from.

Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from attrs import evolve

from ..data import np
from ..errors import ModelError, UnsupportedError
from ..graph.lua import Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.tensor import Tensor
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Note
from ..values.assign import Assignment, same_elements
from ..values.widened import widen
from .fields import Fields, path_steps
from .layers.containers import clones
from .layouts import apply_layout, copied, elements, undo_layout
from .mapping import Lua, Read, Row
from .named import FIELD, ROOT_FIELD, Origin, StateDict, compacted, recorded
from .places import NameBudget, Place, Places, find_modules, is_module, is_scratch
from .registry import Layer, Param, Source, first_module, layer_of, modules, own_names

__all__ = ["Origin", "StateDict", "find_modules", "is_module", "state_dict"]

_SCALARS = (bytes, str, float, int)
"""Text, numbers and truth values."""
_DATA = (Table, TdsHash, TdsVec, *_SCALARS)
_USUAL = ("weight", "bias", "running_mean", "running_var")
"""The tensors of most layers, whose names are the same in PyTorch."""


def state_dict(
    value: TorchObject,
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
        raise ModelError("a state dict is made from an nn module", path=path, found=type(value).__name__)
    result = _Collector(Places(value, path, limits)).run()
    if not own_keys:
        _rename(value, path, result)
    if compact:
        result.update(compacted(result))
    return result


def _rename(value: TorchObject, path: str, result: StateDict) -> None:
    """Rename the entries of a state dict to the names recorded in the model, if any, and if they match."""
    if ROOT_FIELD not in value:
        return
    record = recorded(value, result)
    if record is None:
        message = "the record of PyTorch's names does not match the model: names are those of the Lua model"
        result.notes.append(Note("warning", path, message, code="record"))
        return
    tensors = record.outer(result)
    origins = {}
    for key in tensors:
        pieces = record.pieces.get(record.tied.get(key, key))
        if pieces:
            first = result.origins[pieces[0].key]
            origins[key] = Origin(first.obj, first.param, None, first.tensor)
    result.clear()
    result.update(tensors)
    result.origins = origins


class _Collector:
    """Visits the places of modules and collects the tensors of each."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._result = StateDict()
        self._budget = NameBudget()
        self._made: dict[tuple[int, str], tuple[Tensor, Origin]] = {}
        """Tensors of each object by name, so that a module at two places has the same tensors twice."""
        self._copies: dict[object, list[Tensor]] = {}
        """Copied tensors, by their originals, so that tied weights stay tied."""
        self._notes: dict[tuple[str, str], Note] = {}
        self._data: dict[int, bool] = {}
        """The note of each level and message, with its first path and the number of occurrences."""
        self._left: list[tuple[Place, str, Value, bool]] = []
        """Fields that the entries do not name: place, step, value, whether the class is known."""
        self._own: dict[str, frozenset[str]] = {}
        """The names of the fields that each class sets itself."""
        self._options: dict[int, frozenset[str]] = {}
        """The fields that the entry of each object's class reads, by the object's id."""

    def run(self) -> StateDict:
        """Collect everything."""
        for place in self._places:
            if place.layer is None:
                self._take_unknown(place)
            else:
                self._take_known(place, place.layer)
        for place, child in self._places.cycles:
            self._note("warning", place, child.path, f"a {child.value.class_name} contains itself: used once", "cycle")
        for place, child in self._places.non_modules:
            found = type(child.value).__name__
            self._note("warning", place, child.path, f"{place.obj.class_name} holds a {found} where a module belongs")
        self._report_left()
        for note in self._notes.values():
            more = f" (and at {note.count - 1} more places)" if note.count > 1 else ""
            self._result.notes.append(evolve(note, message=note.message + more))
        return self._result

    def _note(self, level: str, place: Place, step: str, message: str, code: str = "layer") -> None:
        """Add a note once, with the first place and the number of places."""
        known = self._notes.get((level, message))
        if known is None:
            path = place.path + step
            self._budget.spend(len(path))
            known = Note(level, path, message, code=code, class_name=place.obj.class_name, count=0)
        self._notes[level, message] = evolve(known, count=known.count + 1, code=code, class_name=place.obj.class_name)

    # Classes with an entry

    def _take_known(self, place: Place, layer: Layer) -> None:
        fields = Fields(place.obj, "", layer.defaults)
        if text := layer.note_of(fields):
            self._note("info", place, "", f"{place.obj.class_name} {text}")
        try:
            params = layer.params_of(fields)
        except ModelError as error:
            self._note("warning", place, error.path, f"{place.obj.class_name}: {error.message}: treated as a new class")
            self._take_unknown(place)
            return
        accounted: set[str] = set()
        for param in params:
            accounted.update(source.path.partition(".")[0] for source in param.sources)
            made = self._made.get((id(place.obj), param.name)) or self._make(place, fields, param)
            if made is not None:
                self._made[id(place.obj), param.name] = made
                self._put(place, param.name, *made)
        self._see_left(place, layer, accounted)

    def _make(self, place: Place, fields: Fields, param: Param) -> tuple[Tensor, Origin] | None:
        """Return the tensor of an entry, and its origin; `None` if the object has none."""
        obj = place.obj
        for source in param.sources:
            found = fields.find_tensor(source.path)
            if found is None:
                continue
            if param.kind == "unused":
                self._note("info", place, path_steps(source.path), f"{source.path} of {obj.class_name}: {param.note}")
                return None
            if param.note:
                self._note("info", place, path_steps(source.path), f"{obj.class_name}: {param.note}")
            try:
                tensor = apply_layout(source.layout, found, fields)
            except ModelError as error:
                reason = f"{error.message}; expected {error.expected}; found {error.found}"
                self._note(
                    "warning",
                    place,
                    path_steps(source.path),
                    f"{source.path} of {obj.class_name} keeps Lua's layout: {reason}",
                )
                return found, Origin(obj, param, None, found)
            if tensor.storage is not found.storage:
                tensor = self._same_copy(
                    (id(found.storage), found.offset, found.size, found.stride, source.layout), tensor
                )
            return tensor, Origin(obj, param, source, found)
        if param.make is None:
            return None
        try:
            with np.errstate(all="ignore"):
                made = param.make(fields)
        # The errors of fields, and those of numpy for inconsistent fields.
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            message = error.message if isinstance(error, ModelError) else str(error)
            self._note("warning", place, "", f"{param.name} of {obj.class_name} cannot be computed: {message}")
            return None
        if made is not None and param.note:
            self._note("info", place, "", f"{obj.class_name}: {param.note}")
        return None if made is None else (made, Origin(obj, param, None, None))

    def _same_copy(self, key: object, tensor: Tensor) -> Tensor:
        """Return the earlier copy of the same memory, if it is equal; else this one."""
        copies = self._copies.setdefault(key, [])
        for known in copies:
            if np.array_equal(elements(known), elements(tensor), equal_nan=tensor.element.code[0] == "f"):
                return known
        copies.append(tensor)
        return tensor

    def _put(self, place: Place, name: str, tensor: Tensor, origin: Origin) -> None:
        key = place.prefix + name
        self._budget.spend(len(key))
        tensors = self._result.tensors
        if key in tensors:
            if tensors[key] is tensor:
                return
            wanted, number = key, 2
            while key in tensors:
                key, number = f"{wanted}_{number}", number + 1
            self._note("warning", place, "", f"two tensors are named {wanted}; this one is {key}")
        tensors[key] = tensor
        self._result.origins[key] = origin

    # Classes without an entry

    def _take_unknown(self, place: Place) -> None:
        obj = place.obj
        finds = [
            find
            for find in self._places.searcher.fields(obj)
            if isinstance(find.value, Tensor) and find.value.numel and find.value.storage is not None
        ]
        usual = [find for find in finds if find.name in _USUAL]
        taken = usual or finds
        taken.sort(key=lambda find: _USUAL.index(find.name) if find.name in _USUAL else len(_USUAL))
        for find in taken:
            self._put(place, find.name, find.value, Origin(obj, None, Source(find.path.lstrip(".")), find.value))
        if place.layer is None:
            kept = "its tensors keep Lua's names" if taken else "it has no tensors of its own"
            self._note("warning", place, "", f"no mapping yet for class {obj.class_name}: {kept}", "unmapped")
        self._left.extend((place, find.path, find.value, False) for find in finds if usual and find not in usual)
        for key, value in obj.fields.raw_items() if obj.fields is not None else ():
            if isinstance(key, bytes) and not is_scratch(name := key.decode("utf-8", "backslashreplace")):
                self._take_data(place, name, value)

    # What is left out

    def _see_left(self, place: Place, layer: Layer, accounted: set[str]) -> None:
        """Record fields with tensors or modules that the entry does not name."""
        obj = place.obj
        if obj.fields is None:
            return
        for key, value in obj.fields.raw_items():
            if not isinstance(key, bytes) or not isinstance(value, (Tensor, TorchObject, *_DATA)):
                continue
            name = key.decode("utf-8", "backslashreplace")
            if name in accounted or name in layer.scratch or is_scratch(name) or self._is_own(obj, name, value):
                continue
            if name in (FIELD, ROOT_FIELD):
                self._take_data(place, name, value)
                continue
            if name in ("modules", "module", "criterions", "criterion") and layer.children is not None:
                continue
            self._left.append((place, name, value, True))

    def _is_own(self, obj: TorchObject, name: str, value: Value) -> bool:
        """Return whether a field holds a scalar and is one that the class itself sets."""
        if not isinstance(value, _SCALARS):
            return False
        if obj.class_name not in self._own:
            self._own[obj.class_name] = own_names(obj.class_name)
        return name in self._own[obj.class_name]

    def _take_data(self, place: Place, name: str, value: Value) -> None:
        """Take a field that holds data, such as a vocabulary, and is not an option of the layer."""
        if name in (FIELD, ROOT_FIELD):  # used, or noted
            self._result.data_fields.add((id(place.obj), name))
            return
        if not isinstance(value, _DATA) or self._is_own(place.obj, name, value) or not self._is_data(value):
            return
        if place.layer is not None:
            if id(place.obj) not in self._options:
                self._options[id(place.obj)] = options_of(place.obj, place.layer)
            if name in self._options[id(place.obj)]:
                return
        self._result.data.setdefault(place.prefix + name, value)
        self._result.data_fields.add((id(place.obj), name))

    def _is_data(self, value: Value) -> bool:
        """Return whether a value is data; a table that many objects hold is searched once."""
        if id(value) not in self._data:
            self._data[id(value)] = is_data(value)
        return self._data[id(value)]

    def _report_left(self) -> None:
        """Note content that was left out and is not in the state dict under another name."""
        stored = {id(origin.tensor.storage) for origin in self._result.origins.values() if origin.tensor is not None}
        searcher, reached = self._places.searcher, self._places.last
        for place, name, value, known in self._left:
            path = path_steps(name) if known else name
            for find in searcher.search(value, name, path, name):
                inside = find.value
                if isinstance(inside, Tensor):
                    if not inside.numel or id(inside.storage) in stored:
                        continue
                    what = "a tensor"
                elif id(inside) in reached:
                    continue
                else:
                    what = f"a {inside.class_name}"
                field_name = path.lstrip(".")
                self._note(
                    "warning",
                    place,
                    path,
                    f"{field_name} of {place.obj.class_name} holds {what} that is left out",
                    "unread-field",
                )
                break
            else:
                if known:
                    self._take_data(place, name, value)


def is_data(value: Value) -> bool:
    """Return whether a value is text, a number or a truth value, or a table of nothing else, of any depth."""
    seen: set[int] = set()
    stack = [value]
    found = False
    while stack:
        item = stack.pop()
        if isinstance(item, _SCALARS):
            found = True
        elif isinstance(item, (Table, TdsHash, TdsVec)):
            if id(item) not in seen:
                seen.add(id(item))
                table = item.content if isinstance(item, TdsHash) else item
                stack.extend(table.elements if isinstance(table, TdsVec) else (*table.raw_keys, *table.raw_values))
        else:
            return False
    return found


class _Recording(Table):
    """The fields of an object, which records the names that are looked up."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.raw_keys, table.raw_values)
        self._index = table._positions()
        self.asked: set[str] = set()

    def _positions(self) -> dict[Value, int]:
        return _Asked(super()._positions(), self.asked)


class _Asked(dict[Any, int]):
    """Positions of fields; records the keys."""

    def __init__(self, positions: dict[Any, int], asked: set[str]) -> None:
        super().__init__(positions)
        self._asked = asked

    def get(self, key: Any, default: Any = None) -> Any:
        self._record(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._record(key)
        return super().__contains__(key)

    def _record(self, key: object) -> None:
        if isinstance(key, bytes):
            self._asked.add(key.decode("utf-8", "backslashreplace"))


def options_of(obj: TorchObject, layer: Layer) -> frozenset[str]:
    """Return the fields of an object that the entry of its class reads: its options.

    Args:
        obj: the object.
        layer: the entry.
    """
    fields = _Recording(obj.fields or Table())
    copy = TorchObject(obj.class_name, obj.version, fields, obj.payload)
    module = layer.module_of(obj.class_name)
    for read in (layer.params_of, layer.note_of):
        _ask(lambda read=read: read(Fields(copy, "", layer.defaults)))
    if layer.children is not None:
        _ask(lambda: list(layer.children(copy)))
    lua = Lua(copy, "", layer.defaults)
    if isinstance(module, Row):  # each by itself: one that needs tensors does not hide the next
        for argument in (*module.args, *module.kwargs.values()):
            if isinstance(argument, Read):
                _ask(lambda argument=argument: argument.get(lua))
    elif module is not None:
        _ask(lambda: module(lua))
    return frozenset(fields.asked)


def _ask(read: Any) -> None:
    """Call what reads fields, which may be missing or damaged."""
    with suppress(ModelError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
        read()


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
    wider = widen(packed.storage)[0]
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
    target, fields = origin.tensor, _fields(origin)
    rest = origin.source.layout if origin.source else ()
    while rest and (step := rest[0].apply(target, fields)).storage is target.storage:
        target, rest = step, rest[1:]
    if rest and same_elements(tensor, converted):  # unchanged: Lua's own elements, as undoing a step may round
        tensor = copied(target, elements(target))
    elif rest:
        tensor = undo_layout(rest, tensor, target, fields)
    return Assignment(name, target, tensor)


def recomputed(origin: Origin) -> Tensor | None:
    """Compute a derived tensor from the tensors that the Lua object holds now; `None` if it is not derived."""
    if origin.param is None or origin.param.make is None:
        return None
    try:
        with np.errstate(all="ignore"):
            return origin.param.make(_fields(origin))
    except ValueError:  # with inconsistent fields the forward conversion has no such tensor either
        return None


def kept_field(origin: Origin, made: Tensor) -> Tensor | None:
    """Return Lua's tensor with the name and shape of a computed one, read in evaluation; `None` if missing."""
    found = _fields(origin).find_tensor(origin.param.name) if origin.param is not None else None
    return found if found is not None and found.shape == made.shape else None


def added(first: Tensor, second: Tensor) -> Tensor | None:
    """Return the sum of two tensors; `None` if the second is zero."""
    one, other = elements(first), elements(second)
    if not other.any():
        return None
    with np.errstate(all="ignore"):
        return Tensor.from_numpy((one.astype("f8") + other).astype(np.result_type(one, other)))


def is_close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors agree up to the rounding of different ways to compute them."""
    return one.shape == other.shape and bool(np.allclose(one.array, other.array, 1e-3, 1e-5, equal_nan=True))


def learned_copies(root: TorchObject) -> Iterator[tuple[str, str, Origin, Tensor]]:
    """Yield the parameters in the copies of a module that its container runs in parallel.

    Yields:
        The key of the first of them in the state dict; the place of the copy; the copy's origin and tensor.
    """
    for place in Places(root):
        if place.layer is None or place.layer.children not in (first_module, clones):
            continue
        for child in list(modules(place.obj))[len(list(place.layer.children(place.obj))) :]:
            if not isinstance(child.value, TorchObject):
                continue
            found = state_dict(child.value, own_keys=True)
            for key, origin in found.origins.items():
                if origin.param is not None and origin.param.kind == "parameter":
                    yield f"{place.prefix}0.{key}", place.path + child.path, origin, found.tensors[key]


def _fields(origin: Origin) -> Fields:
    layer = layer_of(origin.obj.class_name)
    return Fields(origin.obj, "", layer.defaults if layer else {})
