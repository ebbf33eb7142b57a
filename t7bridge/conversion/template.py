"""`fill_template`: put a state dict back into the Lua model that it was made from.

`auto` mode determines which tensor of the `.pt` belongs to which tensor of Lua. The rest of the Lua value is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, count, repeat
from typing import Any

from attrs import field

from .. import formats
from ..codegen.generate import Generated, generate
from ..data import define
from ..errors import ModelError, T7BridgeError, UnsupportedError
from ..formats.pt.modules import is_module as is_pickled_module
from ..formats.pt.modules import module_state_dict
from ..graph.lua import TorchObject, Value
from ..graph.tensor import Tensor
from ..graph.walk import Path, pairwise
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.places import is_module
from ..nn.registry import layer_of
from ..nn.state_dict import (
    ROOT_FIELD,
    Origin,
    StateDict,
    added,
    assignment,
    existing_field,
    is_close,
    learned_copies,
    native,
    recomputed,
    recorded,
    state_dict,
)
from ..report import Note
from ..text import counted, listed
from ..values.assign import Assignment, assign, same_elements
from .tree import as_tree, to_torch

MAX_LISTED = 50
"""Maximum number of keys listed in an error or a note."""

_WRAPPERS = ("state_dict", "model_state_dict", "model")
"""The keys under which checkpoints keep a state dict."""
_MAX_WRAPPERS = 4
_BATCHES = "num_batches_tracked"
"""PyTorch's batch counter; Lua has none."""
_ABSENT: Any = object()
_Note = Callable[[str, str], None]
_PREFIXES = ("module.", "_orig_mod.")
"""Prefixes that `DataParallel` and `torch.compile` add to every key."""


@define(eq=False)
class _Model:
    """A module of the template.

    Attributes:
        obj: the module.
        result: its state dict: the keys and shapes expected.
        path: its first path.
        states: the state dicts in the `.pt` for it; several if it occurs at several paths.
    """

    obj: TorchObject
    result: StateDict = field(repr=False)
    path: str = "root"
    states: list[dict[str, Any]] = field(factory=list, repr=False)

    def label(self, key: str) -> str:
        """Return a key as messages name it."""
        return key if self.path == "root" else f"{self.path}: {key}"

    @property
    def has_tensors(self) -> bool:
        """Return whether there is anything to fill."""
        return any(origin.tensor is not None for origin in self.result.origins.values())


def fill_template(roots: list[Value], value: Any, partial: bool = False) -> list[Note]:
    """Put the state dicts of a `.pt` into Lua's modules, changing their storages.

    Args:
        roots: the values of a `.t7`, with at least one module.
        value: of the `.pt`: state dicts where `auto` mode puts them, or one state dict, alone or under `state_dict`,
            `model_state_dict` or `model`.
        partial: whether missing and extra keys are allowed.

    Returns:
        Notes for the user.

    Raises:
        ModelError: the keys or shapes do not match, all of which the message names; tensors that share memory in Lua
            get different values; there is no state dict, or no module.
    """
    return _Filling(partial).run(roots, value)


def state_dict_in(value: Any, depth: int = 0) -> dict[str, Any] | None:
    """Return the state dict that a value of a `.pt` is or wraps, or that of a pickled module; `None` if there is none.

    Raises:
        ModelError: a checkpoint holds several.
    """
    if is_pickled_module(value):
        return module_state_dict(value)
    if not isinstance(value, dict):
        return None
    wrapped = {name: state_dict_in(value.get(name), depth + 1) for name in _WRAPPERS if depth < _MAX_WRAPPERS}
    inner = [name for name in wrapped if wrapped[name]]
    if len(inner) > 1 and any(value[name] is not value[inner[0]] for name in inner):
        raise ModelError("the .pt holds several state dicts", found=", ".join(inner), hint="Save the one to be used.")
    if inner:
        return wrapped[inner[0]]
    return value if not value or any(isinstance(item, Tensor) for item in value.values()) else None


def _places_inside(wanted: Any, found: Any) -> list[tuple[Any, Any, Any]]:
    """Return key, wanted value and found value of each place in a dict or list of the template."""
    if isinstance(wanted, dict):
        held = found if isinstance(found, dict) else {}
        return [(key, item, held.get(key, _ABSENT)) for key, item in wanted.items()]
    items = found if isinstance(found, (list, tuple)) else ()
    return list(zip(count(1), wanted, chain(items, repeat(_ABSENT))))


def _find_places(roots: list[Value], value: Any) -> tuple[list[_Model], list[str]]:
    """Find the modules of a template with the state dicts at their positions, and the other content next to them."""
    models: dict[int, _Model] = {}
    seen: set[tuple[int, int]] = set()
    used: dict[int, tuple[Path, set[Any]]] = {}
    ignored: list[str] = []

    def replace(obj: TorchObject) -> _Model | None:
        if not is_module(obj):
            return None
        return models.setdefault(id(obj), _Model(obj, state_dict(obj, own_keys=True), ""))

    def visit(path: Path, wanted: Any, found: Any) -> Any:
        """Return the places in the template that may lead to modules, with the values of the `.pt` there."""
        path.value = found
        if isinstance(wanted, _Model):
            wanted.path = wanted.path or path.text()
            state = None if found is _ABSENT else state_dict_in(found)
            if state is not None and not any(state is known for known in wanted.states):
                wanted.states.append(state)
                ignored.extend(_beside(found, state))
            while state is not None and path.parent is not None:
                used.setdefault(id(path.parent), (path.parent, set()))[1].add(path.key)
                path = path.parent
        elif isinstance(wanted, (dict, list)) and (id(wanted), id(found)) not in seen:
            seen.add((id(wanted), id(found)))
            return _places_inside(wanted, found)
        return None

    built = [as_tree(root, replace) for root in roots]
    pairwise(built if len(built) > 1 else built[0], value, visit)
    return list(models.values()), ignored + _unused(used.values())


def _unused(used: Iterable[tuple[Path, set[Any]]]) -> list[str]:
    """Return the names of what stands beside the keys that led to modules."""
    names: list[str] = []
    for path, keys in used:
        if isinstance(found := path.value, dict):
            place = path.text().removeprefix("root")
            names += [f"{place}.{_name(key)}".lstrip(".") for key in found if key not in keys]
    return names


class _Filling:
    """One filling: the assignments, the mismatches and the notes."""

    def __init__(self, partial: bool) -> None:
        self._partial = partial
        self._notes: list[Note] = []
        self._items: list[Assignment] = []
        self._wrong: list[str] = []
        self._missing: list[str] = []
        self._extra: list[str] = []
        self._batches = 0
        self._sums: list[str] = []
        self._fitting = 0
        self._derived: list[tuple[str, Origin, Any, Tensor | None]] = []
        """Derived tensors: name, origin, the result from the old values, the `.pt`'s value."""

    def run(self, roots: list[Value], value: Any) -> list[Note]:
        """Fill the template."""
        models, ignored = _find_places(roots, value)
        if not models:
            raise ModelError("the template holds no nn module")
        if not any(model.states for model in models):
            ignored = self._take_flat(models, value)
        for model in models:
            for state in model.states or [{}]:
                self._compare(model, state)
        self._check(any(model.has_tensors for model in models))
        if ignored:
            self._note("info", f"ignored besides the state dicts of the .pt: {_listed(ignored)}")
        clashes = assign(self._items)
        if clashes:
            lines = [
                f"{one} gets different values for elements that it repeats" if one == other else f"{one} and {other}"
                for one, other in clashes
            ]
            raise ModelError(_report("tensors that share memory in the Lua model have different values", lines))
        self._update_derived()
        self._note_losses()
        if self._sums:
            self._note("info", f"Lua has one bias where PyTorch has two; these are added to it: {_listed(self._sums)}")
        if self._batches:
            self._note("info", f"{_BATCHES} is left out, {self._batches} times: Lua does not count batches")
        return self._notes

    def _note(self, level: str, message: str, loss: str = "", code: str = "template") -> None:
        self._notes.append(Note(level, "", message, loss, code=code))

    def _take_flat(self, models: list[_Model], value: Any) -> list[str]:
        """Assign the `.pt`'s one state dict to the template's one module; return what is ignored."""
        candidates = [model for model in models if model.has_tensors] or models
        if len(candidates) > 1:  # criterions may have weights too
            candidates = [model for model in candidates if not _is_criterion(model.obj)] or candidates
        state = state_dict_in(value)
        if state is None or len(candidates) > 1:
            places = ", ".join(model.path for model in candidates[:10])
            raise ModelError(
                "the .pt holds no state dict" if state is None else "the template holds several modules",
                expected=f"state dicts where the template has modules: {places}"
                + (", or one state dict" if len(candidates) == 1 else ""),
                found=_shown(value),
                hint="A .pt that keeps every field (--mode tree) holds none." if state is None else "",
            )
        candidates[0].states.append(state)
        for model in models:
            if not model.states and model.has_tensors:
                self._note("info", f"{model.path} keeps its values")
                model.result = StateDict()
        return _beside(value, state)

    # Keys

    def _compare(self, model: _Model, state: dict[str, Any]) -> None:
        """Determine the target of each key of a state dict, and the mismatches."""
        origins, converted = model.result.origins, model.result.tensors
        state = plain_keys(model.obj, model.result, state, self._note)
        tensors: dict[str, Tensor] = {}
        for key, origin in origins.items():
            value = state.get(key)
            derived = origin.param is not None and origin.param.kind == "derived"
            if isinstance(value, Tensor) and key.endswith(_BATCHES) and derived:
                self._batches += 1
            elif value is not None:
                tensor = self._fitting_tensor(model.label(key), value, converted[key])
                if tensor is not None:
                    tensors[key] = tensor
            elif not derived:
                self._missing.append(f"{model.label(key)}: expected {_shown(converted[key])}")
        for key, value in state.items():
            if key in origins:
                continue
            if isinstance(key, str) and key.rpartition(".")[2] == _BATCHES:
                self._batches += 1
            else:
                self._extra.append(f"{model.label(_name(key))}: found {_shown(value)}")
        self._fitting += len(tensors)
        self._plan(model, tensors)

    def _fitting_tensor(self, name: str, value: Any, wanted: Tensor) -> Tensor | None:
        """Return a value of the `.pt` as a tensor with one of Lua's element types, if it matches."""
        if not isinstance(value, Tensor) or value.shape != wanted.shape:
            self._wrong.append(f"{name}: expected {_shown(wanted)}; found {_shown(value)}")
            return None
        if value.storage is None:
            self._wrong.append(f"{name}: a tensor without elements (device {value.device})")
            return None
        try:
            return native(value)
        except UnsupportedError as error:
            self._wrong.append(f"{name}: expected {wanted.element.name}; found {error.found}")
            return None

    def _check(self, has_tensors: bool) -> None:
        """Raise the error, or add the notes, about mismatched keys."""
        wrong, missing, extra = self._wrong, self._missing, self._extra
        if wrong or ((missing or extra) and not self._partial):
            counts = (f"{len(missing)} missing", f"{len(extra)} extra", f"{len(wrong)} of another shape or kind")
            lines = [f"wrong {line}" for line in wrong]
            if not self._partial:
                lines += [f"missing {line}" for line in missing] + [f"extra {line}" for line in extra]
            hint = "" if wrong or self._partial else " (--partial, partial=True, allows missing and extra keys)"
            raise ModelError(_report(f"the keys do not match the template: {', '.join(counts)}{hint}", lines))
        if has_tensors and not self._fitting and (missing or extra):
            lines = [f"missing {line}" for line in missing] + [f"extra {line}" for line in extra]
            raise ModelError(_report("no key of the .pt is in the template", lines))
        if missing:
            self._note("warning", f"{len(missing)} keys are missing and keep Lua's values: {_listed(missing)}")
        if extra:
            self._note("warning", f"{len(extra)} keys do not exist in Lua and are left out: {_listed(extra)}")

    # Values

    def _plan(self, model: _Model, tensors: dict[str, Tensor]) -> None:
        """Plan which of Lua's tensors receive which values."""
        origins, converted = model.result.origins, model.result.tensors
        for key, origin in origins.items():
            param = origin.param
            if param is None or param.kind != "derived" or key.endswith(_BATCHES):
                continue
            found = tensors.pop(key, None)
            if not param.adds_to:
                self._derived.append((model.label(key), origin, recomputed(origin), found))
            elif found is not None:
                other = key.removesuffix(param.name) + param.adds_to
                total = added(tensors.get(other, converted[other]), found) if other in converted else None
                if total is not None:
                    tensors[other] = total
                    self._sums.append(model.label(key))
        for key, tensor in tensors.items():
            self._items.append(assignment(model.label(key), origins[key], tensor, converted[key]))
        for key, path, origin, copy in learned_copies(model.obj):
            if key in tensors and tensors[key].shape == copy.shape:
                self._items.append(assignment(f"{model.label(key)} (copy {path})", origin, tensors[key], copy))

    def _update_derived(self) -> None:
        """Recompute what Lua stores although it follows from other tensors."""
        items = []
        for name, origin, before, found in self._derived:
            after = recomputed(origin)
            if after is None:
                continue
            tensor = origin.tensor or existing_field(origin, after)
            if tensor is not None and (before is None or not same_elements(before, after)):
                items.append(Assignment(name, tensor, after))
            if found is not None and not is_close(found, after):
                self._note("warning", f"{name} follows from other tensors in Lua; the .pt's own value is not taken")
        assign(items)

    def _note_losses(self) -> None:
        lost: dict[str, list[str]] = {"": [], "rounded": [], "changed": []}
        for item in self._items:
            lost[item.loss].append(f"{item.name} ({item.source.element.name} to {item.target.element.name})")
        for loss, level, text in (
            ("rounded", "info", "rounded to Lua's element type"),
            ("changed", "warning", "with numbers that Lua's element type cannot hold"),
        ):
            if lost[loss]:
                self._note(
                    level,
                    f"{counted(len(lost[loss]), 'tensor')} {text}: {_listed(lost[loss])}",
                    loss="precision",
                    code="precision",
                )


def _is_criterion(obj: TorchObject) -> bool:
    layer = layer_of(obj.class_name)
    return layer is not None and layer.kind == "criterion"


def _beside(value: Any, state: dict[str, Any]) -> list[str]:
    """Return the keys of a checkpoint other than its state dict."""
    if not isinstance(value, dict) or value is state:
        return []
    return [_name(key) for key in value if key not in _WRAPPERS]


def _name(key: Any) -> str:
    """Return a key of a `.pt` as messages name it, whatever its type."""
    if isinstance(key, str):
        return key[:200] if key.isprintable() else repr(key[:200])
    return f"{key}" if isinstance(key, (int, float)) and abs(key) < 2**63 else f"<{type(key).__name__}>"


def _shown(value: Any) -> str:
    """Describe a value found where a tensor or state dict is expected."""
    if isinstance(value, Tensor):
        return f"{list(value.shape)}"
    if isinstance(value, dict):
        keys = ", ".join(_name(key) for key in list(value)[:10])
        return f"a dict with the keys {keys}{', …' if len(value) > 10 else ''}" if value else "an empty dict"
    return type(value).__name__


def _listed(names: list[str]) -> str:
    return listed(names, MAX_LISTED)


def _report(head: str, lines: list[str]) -> str:
    more = [f"… and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else []
    return "\n  ".join([f"{head}:", *lines[:MAX_LISTED], *more])


def plain_keys(obj: TorchObject, wanted: StateDict, state: dict[Any, Any], note: _Note) -> dict[Any, Any]:
    """Return a state dict under the keys that `auto` mode assigns to a module, as far as they are known.

    Prefixes that wrappers add go, others are exchanged where that makes all keys fit; keys that `save_module` recorded,
    or that the module's `model.py` has, are replaced.

    Args:
        obj: the module.
        wanted: its own state dict.
        state: the returning state dict.
        note: receives level and message of notes.

    Raises:
        ModelError: tensors under recorded keys, or those of `model.py`, have other shapes, or tied ones differ.
    """
    for prefix in _PREFIXES:
        if not state or not all(isinstance(key, str) and key.startswith(prefix) for key in state):
            continue
        if not any(key.startswith(prefix) for key in wanted.origins):
            state = {key[len(prefix) :]: value for key, value in state.items()}
            note("info", f"all keys begin with {prefix}, which is left out")
    if not state:
        return state
    record = recorded(obj, wanted) if ROOT_FIELD in obj else None
    for names in (record.keys if record is not None else (), wanted.origins):
        renamed = _with_prefix(state, names, note)
        if renamed is not None:
            state = renamed
            break
    # Recorded keys come first: `1.weight` may be another layer among Lua's.
    if record is not None and set(state) <= set(record.keys):
        if not set(state) <= set(wanted.origins):
            note("info", "the keys are those that the module had in PyTorch")
        state = _with_lua_types(state)
        if wrong := record.differences(state):
            raise ModelError(_report("the tensors do not match the template", wrong))
        state = record.inner(state, wanted)
    if set(state) <= set(wanted.origins):
        return state
    return _of_page(obj, state, note)


def _of_page(obj: TorchObject, state: dict[Any, Any], note: _Note) -> dict[Any, Any]:
    """Return a state dict with the keys of a module's `model.py` under those of `auto` mode, others as they are."""
    for lift in (True, False):
        try:
            page = generate(obj, lift=lift, only_keys=True)
        except T7BridgeError:  # it has no model.py
            return state
        renamed = state if set(state) == set(page.tensors) else _with_prefix(state, page.tensors, note)
        if renamed is not None and set(renamed) == set(page.tensors):
            note("info", "the keys are those of the model.py for this module")
            made = _with_lua_types(renamed)
            if wrong := _page_differences(page, made):
                raise ModelError(_report("the tensors do not match the model.py of the template", wrong))
            return {**page.converted(made)}
    return state


def _page_differences(page: Generated, state: dict[Any, Any]) -> list[str]:
    """Return what does not fit in a state dict with the keys of a `model.py`: other shapes, and ties that are none."""
    wrong = [
        f"wrong {key}: expected {_shown(wanted)}; found {_shown(state[key])}"
        for key, wanted in page.tensors.items()
        if not isinstance(state[key], Tensor) or state[key].shape != wanted.shape
    ]
    if wrong:
        return wrong
    return [
        f"different values in {first} and {other}, which are one tensor in the model"
        for first, *others in page.keys.values()
        for other in others
        if not same_elements(state[first], state[other])
    ]


def _with_lua_types(state: dict[Any, Any]) -> dict[Any, Any]:
    """Return a state dict with elements that Lua has: bfloat16 and float8 become floats. Others are refused later."""
    result: dict[Any, Any] = {}
    for key, value in state.items():
        is_narrow = isinstance(value, Tensor) and value.storage is not None and not value.element.lua
        result[key] = native(value) if is_narrow and not value.element.name.startswith("complex") else value
    return result


def _with_prefix(state: dict[Any, Any], wanted: Iterable[str], note: _Note) -> dict[Any, Any] | None:
    """Return a state dict whose keys have the prefix of other ones, if all of them are among these then.

    Args:
        state: the state dict.
        wanted: the other keys.
        note: receives level and message of notes.

    Returns:
        `None` if the keys fit as they are, or no prefix makes all fit.
    """
    names = set(wanted)
    keys = [key for key in state if not (isinstance(key, str) and key.rpartition(".")[2] == _BATCHES)]
    if not keys or not names or not all(isinstance(key, str) for key in keys) or names.issuperset(keys):
        return None
    for own in _prefixes(keys):
        for other in _prefixes(names):
            if own != other and all(other + key[len(own) :] in names for key in keys):
                note("info", f"all keys begin with {other or 'no prefix'} in the template, not with {own or 'none'}")
                return {_exchanged(key, own, other): value for key, value in state.items()}
    return None


def _exchanged(key: Any, own: str, other: str) -> Any:
    return other + key[len(own) :] if isinstance(key, str) and key.startswith(own) else key


def _prefixes(keys: Iterable[str]) -> list[str]:
    """Return the prefixes that all keys have in common, the empty one first: whole steps, `net.` and `net.0.`."""
    first, *rest = sorted(keys)
    last = rest[-1] if rest else first
    prefixes = [""]
    for place, letter in enumerate(first):
        if last[place : place + 1] != letter:
            break
        if letter == ".":
            prefixes.append(first[: place + 1])
    return prefixes


def torch_weights(path: str, limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:
    """Read the state dict of a file of any format but `.t7`. Nothing in the file is executed.

    Args:
        path: a state dict, a checkpoint that wraps one, or a pickled module.
        limits: resource limits.

    Returns:
        PyTorch tensors by key.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        ModelError: it holds no state dict, or several.
    """
    with formats.open(path, limits=limits) as document:
        state = None if document.spec.values == formats.LUA else state_dict_in(document.value)
        if state is None:
            kind = type(document.value).__name__
            raise ModelError("the file holds no state dict", file=document.path, found=f"a value of type {kind}")
        made: dict[str, Any] = to_torch(state)
        return made
