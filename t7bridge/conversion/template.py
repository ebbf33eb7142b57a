"""`fill_template`: put a state dict back into the Lua model that it was made from.

`auto` mode determines which tensor of the `.pt` belongs to which tensor of Lua. The rest of the Lua value is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, count, repeat
from typing import Any, NamedTuple

from attrs import field

from .. import formats
from ..codegen.generate import Generated, generate
from ..data import define
from ..errors import ModelError, T7BridgeError, UnsupportedError
from ..formats.pt.modules import module_state_dict
from ..graph.lua import TorchObject, Value
from ..graph.python import is_pickled_module
from ..graph.tensor import Tensor
from ..graph.walk import Path, pairwise
from ..limits import DEFAULT_LIMITS, Limits
from ..nn.places import is_module
from ..nn.registry import layer_of
from ..nn.state_dict import (
    ROOT_FIELD,
    Origin,
    Recorded,
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
_MAX_SHOWN_KEYS = 10
"""Keys or paths that describe a value found or a template."""
_MAX_KEY_LETTERS = 200
"""Characters of a key that a message shows."""

_WRAPPER_KEYS = ("state_dict", "model_state_dict", "model")
"""The keys under which checkpoints keep a state dict."""
_MAX_WRAPPER_LEVELS = 4
"""Most of these keys one inside another."""
_BATCH_COUNTER = "num_batches_tracked"
"""PyTorch's batch counter; Lua has none."""
_NO_STATE: Any = object()
"""The state dict of a path that the `.pt` does not have."""
_Note = Callable[[str, str], None]
"""Receives level and message of a note."""
_WRAPPER_PREFIXES = ("module.", "_orig_mod.")
"""Prefixes that `DataParallel` and `torch.compile` add to every key."""


@define(eq=False)
class _Model:
    """A module of the template, and the state dicts that are to be put into it.

    Attributes:
        obj: the module.
        expected: its state dict in `auto` mode: keys, shapes, and Lua's tensors that are to be filled.
        path: its first path.
        states: the state dicts in the `.pt` for it; several if it occurs at several paths.
    """

    obj: TorchObject
    expected: StateDict = field(repr=False)
    path: str = "root"
    states: list[dict[str, Any]] = field(factory=list, repr=False)

    def label(self, key: str) -> str:
        """Return a key as messages name it."""
        return key if self.path == "root" else f"{self.path}: {key}"

    @property
    def has_tensors(self) -> bool:
        """Whether there is anything to fill."""
        return any(origin.tensor is not None for origin in self.expected.origins.values())


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

    Args:
        value: of the `.pt`, or what it has under one of the usual keys.
        depth: how many of these keys lead to it.

    Raises:
        ModelError: a checkpoint holds several.
    """
    if is_pickled_module(value):
        return module_state_dict(value)
    if not isinstance(value, dict):
        return None
    states: dict[str, dict[str, Any]] = {}
    if depth < _MAX_WRAPPER_LEVELS:
        for name in _WRAPPER_KEYS:
            state = state_dict_in(value.get(name), depth + 1)
            if state:  # an empty one is no reason to prefer it
                states[name] = state
    if states:
        first, *others = states
        # One object under several keys is one state dict.
        if any(value[name] is not value[first] for name in others):
            found = ", ".join(states)
            raise ModelError("the .pt holds several state dicts", found=found, hint="Save the one to be used.")
        return states[first]
    # An empty dict is the state dict of a module without parameters.
    if not value or any(isinstance(item, Tensor) for item in value.values()):
        return value
    return None


def _places_inside(template: Any, value: Any) -> list[tuple[Any, Any, Any]]:
    """Return the places in a dict or list of the template: key, content there, and the `.pt`'s value there.

    The last is `_NO_STATE` where the `.pt` has no such place.
    """
    if isinstance(template, dict):
        values = value if isinstance(value, dict) else {}
        return [(key, item, values.get(key, _NO_STATE)) for key, item in template.items()]
    items = value if isinstance(value, (list, tuple)) else ()
    # Keys from 1, as paths in Lua; a list of the `.pt` that is shorter lacks the places after its end.
    return list(zip(count(1), template, chain(items, repeat(_NO_STATE))))


class _DerivedTensor(NamedTuple):
    """A tensor of a state dict that follows from others in Lua.

    Attributes:
        name: its key, as messages name it.
        origin: its origin.
        before: what follows from the old values of the others; `None` if the fields of the object do not fit together.
        pt_tensor: the `.pt`'s value, if it has one.
    """

    name: str
    origin: Origin
    before: Any
    pt_tensor: Tensor | None


class _ModulesAndStates:
    """A walk through the template and the `.pt` together, which finds the state dict at the place of each module.

    It serves one call of `find`.
    """

    def __init__(self) -> None:
        self._models: dict[int, _Model] = {}
        """The modules of the template, by the identity of Lua's object."""
        self._visited: set[tuple[int, int]] = set()
        """The pairs of containers compared before, by identity: both values may contain themselves."""
        self._keys_to_states: dict[int, tuple[Path, set[Any]]] = {}
        """The containers of the `.pt` around state dicts: the path of each, and its keys that lead to state dicts.

        By the identity of the path.
        """
        self._ignored_names: list[str] = []
        """The keys of checkpoints beside their state dicts."""

    def find(self, roots: list[Value], value: Any) -> tuple[list[_Model], list[str]]:
        """Return the modules, and the names of the `.pt`'s content that is ignored.

        Args:
            roots: the values of the template.
            value: of the `.pt`.
        """
        # The form that `auto` mode gives them, with a `_Model` at each place of a state dict; several roots are a list.
        trees = [as_tree(root, self._replace) for root in roots]
        template = trees if len(trees) > 1 else trees[0]
        pairwise(template, value, self._compare_place)  # fills `_models`, `_ignored_names` and `_keys_to_states`
        return list(self._models.values()), [*self._ignored_names, *self._beside_containers()]

    def _replace(self, obj: TorchObject) -> _Model | None:
        """Return the one `_Model` of a module, which takes its place in the tree; `None` for any other object."""
        if not is_module(obj):
            return None
        if id(obj) not in self._models:
            self._models[id(obj)] = _Model(obj, state_dict(obj, own_keys=True), path="")  # which `_add_state` sets
        return self._models[id(obj)]

    def _compare_place(self, path: Path, template: Any, value: Any) -> list[tuple[Any, Any, Any]] | None:
        """Return the places inside a part of the template that may lead to modules, with the values of the `.pt`.

        Called by `pairwise`.

        Args:
            path: of both; its value becomes that of the `.pt`, for `_beside_containers`.
            template: the part.
            value: of the `.pt`, at the same place.

        Returns:
            `None` if nothing inside is to be compared.
        """
        path.value = value
        if isinstance(template, _Model):
            self._add_state(template, path, value)
            return None
        pair = (id(template), id(value))
        if not isinstance(template, (dict, list)) or pair in self._visited:
            return None
        self._visited.add(pair)
        return _places_inside(template, value)

    def _add_state(self, model: _Model, path: Path, value: Any) -> None:
        """Add the state dict at the place of a module, if there is one, and remember the keys that lead to it.

        Args:
            model: the module.
            path: of the place.
            value: of the `.pt` there: a state dict, a checkpoint around one, or anything else.
        """
        model.path = model.path or path.text()  # the first of several places
        state = None if value is _NO_STATE else state_dict_in(value)
        if state is None:
            return
        if not any(state is other for other in model.states):
            model.states.append(state)
            self._ignored_names += _keys_beside(value, state)
        while path.parent is not None:
            # One `Path` object is the parent of all places in a container.
            _path_of_container, keys = self._keys_to_states.setdefault(id(path.parent), (path.parent, set()))
            keys.add(path.key)
            path = path.parent

    def _beside_containers(self) -> list[str]:
        """Return the names of what stands beside the keys that lead to state dicts; items of lists have no names."""
        names: list[str] = []
        for path, keys in self._keys_to_states.values():
            if isinstance(path.value, dict):
                place = path.text().removeprefix("root")
                names += [f"{place}.{_key_as_text(key)}".lstrip(".") for key in path.value if key not in keys]
        return names


@define(eq=False)
class _KeyDifferences:
    """How the keys of the state dicts differ from those of the template: lines, as messages list them.

    Attributes:
        wrong: tensors of another shape or kind.
        missing: keys that the `.pt` does not have.
        extra: keys that the template does not have.
    """

    wrong: list[str] = field(factory=list)
    missing: list[str] = field(factory=list)
    extra: list[str] = field(factory=list)

    def check(self, *, partial: bool, has_fitting: bool) -> None:
        """Refuse differences that are not allowed.

        Args:
            partial: whether missing and extra keys are allowed.
            has_fitting: whether some tensor has the key and the shape of one in the template, or there is none to fill.

        Raises:
            ModelError: a tensor is of another shape or kind; keys are missing or extra and this is not allowed; or no
                key fits.
        """
        wrong_lines = [f"wrong {line}" for line in self.wrong]
        unmatched_lines = [*(f"missing {line}" for line in self.missing), *(f"extra {line}" for line in self.extra)]
        head = (
            f"the keys do not match the template: {len(self.missing)} missing, {len(self.extra)} extra, "
            f"{len(self.wrong)} of another shape or kind"
        )
        if wrong_lines:
            lines = wrong_lines if partial else wrong_lines + unmatched_lines
            raise ModelError(_message_with_lines(head, lines))
        if unmatched_lines and not partial:
            head += " (--partial, partial=True, allows missing and extra keys)"
            raise ModelError(_message_with_lines(head, unmatched_lines))
        if unmatched_lines and not has_fitting:
            raise ModelError(_message_with_lines("no key of the .pt is in the template", unmatched_lines))

    def note(self, note: _Note) -> None:
        """Note missing and extra keys, which are allowed."""
        if self.missing:
            keys = counted(len(self.missing), "key is missing and keeps", "keys are missing and keep")
            note("warning", f"{keys} Lua's values: {_listed(self.missing)}")
        if self.extra:
            keys = counted(len(self.extra), "key does not exist in Lua and is", "keys do not exist in Lua and are")
            note("warning", f"{keys} left out: {_listed(self.extra)}")


class _Filling:
    """One filling of a template: all keys are compared before anything is assigned; and the notes.

    Args:
        partial: whether missing and extra keys are allowed.
    """

    def __init__(self, partial: bool) -> None:
        self._partial = partial
        self._notes: list[Note] = []
        self._assignments: list[Assignment] = []
        """Which of Lua's tensors receive which values."""
        self._differences = _KeyDifferences()
        self._batch_counter_count = 0
        """Number of PyTorch's batch counters in the `.pt`, which Lua does not have."""
        self._added_biases: list[str] = []
        """The keys of biases that were added to another one."""
        self._derived: list[_DerivedTensor] = []
        """The tensors of a state dict that Lua computes from others, whether or not the `.pt` has them."""

    def run(self, roots: list[Value], value: Any) -> list[Note]:
        """Fill the template, whose tensors change; return the notes.

        Args:
            roots: the values of the template.
            value: of the `.pt`.

        Raises:
            ModelError: see `fill_template`.
        """
        models, ignored = _ModulesAndStates().find(roots, value)
        if not models:
            raise ModelError("the template holds no nn module")
        if not any(model.states for model in models):
            ignored = self._assign_only_state(models, value)
        fitting_count = 0
        for model in models:
            for state in model.states or [{}]:  # all keys of a module without a state dict are missing
                fitting_count += self._compare_keys(model, state)
        has_tensors = any(model.has_tensors for model in models)
        self._differences.check(partial=self._partial, has_fitting=fitting_count > 0 or not has_tensors)
        self._differences.note(self._note)
        if ignored:
            self._note("info", f"ignored besides the state dicts of the .pt: {_listed(ignored)}")
        self._assign()
        self._update_derived()  # from the values just assigned
        self._note_lossy_elements()
        self._note_what_lua_lacks()
        return self._notes

    def _assign(self) -> None:
        """Carry out the assignments.

        Raises:
            ModelError: tensors that share memory get different values. By then some of the template's have changed.
        """
        clashes = assign(self._assignments)
        if clashes:
            head = "tensors that share memory in the Lua model have different values"
            raise ModelError(_message_with_lines(head, [_clash(one, other) for one, other in clashes]))

    def _note_what_lua_lacks(self) -> None:
        """Note the biases and counters of PyTorch that a Lua layer has no place for."""
        if self._added_biases:
            names = _listed(self._added_biases)
            self._note("info", f"Lua has one bias where PyTorch has two; these are added to it: {names}")
        if self._batch_counter_count:
            times = self._batch_counter_count
            self._note("info", f"{_BATCH_COUNTER} is left out, {times} times: Lua does not count batches")

    def _note(self, level: str, message: str, loss: str = "", code: str = "template") -> None:
        self._notes.append(Note(level, "", message, loss, code=code))

    def _assign_only_state(self, models: list[_Model], value: Any) -> list[str]:
        """Add the `.pt`'s only state dict to the template's only module to fill; return the keys that are ignored.

        The `.pt` has no state dict where `auto` mode would have put it. Other modules keep their values.

        Args:
            models: the modules of the template; one gets a state dict, others expect none of their keys any more.
            value: of the `.pt`.

        Raises:
            ModelError: there is no state dict, or there are several modules to fill.
        """
        candidates = _modules_to_fill(models)  # one or more
        state = state_dict_in(value)
        places = ", ".join(model.path for model in candidates[:_MAX_SHOWN_KEYS])
        expected = f"state dicts where the template has modules: {places}"
        if len(candidates) == 1:
            expected += ", or one state dict"
        if state is None:
            hint = "A .pt that keeps every field (--mode tree) holds none."
            raise ModelError("the .pt holds no state dict", expected=expected, found=_shown(value), hint=hint)
        if len(candidates) > 1:
            raise ModelError("the template holds several modules", expected=expected, found=_shown(value))
        (only,) = candidates
        only.states.append(state)
        for model in models:
            if not model.states and model.has_tensors:  # criterions with weights
                self._note("info", f"{model.path} keeps its values")
                model.expected = StateDict()  # so that none of its keys is missing
        return _keys_beside(value, state)

    # Keys

    def _compare_keys(self, model: _Model, state: dict[str, Any]) -> int:
        """Compare the keys of a state dict with those of a module, and plan the assignments of tensors that fit.

        `_differences` gets a line for each key that does not fit.

        Args:
            model: the module.
            state: of the `.pt`; empty for a module without one.

        Returns:
            The number of tensors that fit.
        """
        state = plain_keys(model.obj, model.expected, state, self._note)
        tensors = self._fitting_tensors(model, state)
        for key, value in state.items():
            if key in model.expected.origins:
                continue
            if _counts_batches(key):
                self._batch_counter_count += 1
            else:
                self._differences.extra.append(f"{model.label(_key_as_text(key))}: found {_shown(value)}")
        fitting_count = len(tensors)  # before `_plan_assignments`, which takes some of them out
        self._plan_assignments(model, tensors)
        return fitting_count

    def _fitting_tensors(self, model: _Model, state: dict[str, Any]) -> dict[str, Tensor]:
        """Return the tensors of a state dict that have the key and the shape of one in a module.

        `_differences` gets a line for each other tensor of the module, missing or wrong.

        Args:
            model: the module.
            state: of the `.pt`, under the keys of `auto` mode as far as they are known.
        """
        expected = model.expected.tensors
        tensors: dict[str, Tensor] = {}
        for key, origin in model.expected.origins.items():
            value = state.get(key)
            is_derived = _is_derived(origin)
            if value is None:
                if not is_derived:  # else it is computed from others
                    self._differences.missing.append(f"{model.label(key)}: expected {_shown(expected[key])}")
                continue
            if isinstance(value, Tensor) and is_derived and _counts_batches(key):
                self._batch_counter_count += 1
                continue
            tensor = self._fitting_tensor(model.label(key), value, expected[key])
            if tensor is not None:
                tensors[key] = tensor
        return tensors

    def _fitting_tensor(self, name: str, value: Any, wanted: Tensor) -> Tensor | None:
        """Return a value of the `.pt` as a tensor with one of Lua's element types, if it matches.

        Args:
            name: the key, as messages name it.
            value: of the `.pt`.
            wanted: the tensor of the template.

        Returns:
            `None` if it does not match; `_differences` has a line that says why.
        """
        wrong = self._differences.wrong
        if not isinstance(value, Tensor) or value.shape != wanted.shape:
            wrong.append(f"{name}: expected {_shown(wanted)}; found {_shown(value)}")
            return None
        if value.storage is None:
            wrong.append(f"{name}: a tensor without elements (device {value.device})")
            return None
        try:
            return native(value)
        except UnsupportedError as error:
            wrong.append(f"{name}: expected {wanted.element.name}; found {error.found}")
            return None

    # Values

    def _plan_assignments(self, model: _Model, tensors: dict[str, Tensor]) -> None:
        """Plan which of Lua's tensors receive which values.

        Args:
            model: the module.
            tensors: those of the `.pt` that fit, by key. `_take_derived` takes some of them out.
        """
        self._take_derived(model, tensors)
        origins = model.expected.origins
        current = model.expected.tensors
        for key, tensor in tensors.items():
            self._assignments.append(assignment(model.label(key), origins[key], tensor, current[key]))
        # A container that runs copies of a module in parallel: each copy receives the same values.
        for key, path, origin, copy in learned_copies(model.obj):
            if key in tensors and tensors[key].shape == copy.shape:  # one of another shape is no copy
                name = f"{model.label(key)} (copy {path})"
                self._assignments.append(assignment(name, origin, tensors[key], copy))

    def _take_derived(self, model: _Model, tensors: dict[str, Tensor]) -> None:
        """Remove the tensors that follow from others in Lua: `_derived` receives them, for `_update_derived`.

        A second bias, which Lua does not have, is added to the first one.

        Args:
            model: the module.
            tensors: those of the `.pt` that fit, by key, which change.
        """
        for key, origin in model.expected.origins.items():
            param = origin.param
            if param is None or param.kind != "derived" or _counts_batches(key):
                continue
            tensor = tensors.pop(key, None)
            if not param.adds_to:
                from_old_values = recomputed(origin)  # with which `_update_derived` compares what follows from the new
                self._derived.append(_DerivedTensor(model.label(key), origin, from_old_values, tensor))
            elif tensor is not None:
                # Lua has one bias where PyTorch has two, whose sum it is: `adds_to` names the one with the sum.
                key_of_sum = key.removesuffix(param.name) + param.adds_to
                self._add_to_first_bias(model, key, tensor, key_of_sum, tensors)

    def _add_to_first_bias(
        self, model: _Model, key: str, second_bias: Tensor, key_of_sum: str, tensors: dict[str, Tensor]
    ) -> None:
        """Replace the first bias of a layer by the sum of both, which Lua has in its place.

        Args:
            model: the module.
            key: of the second bias.
            second_bias: that of the `.pt`.
            key_of_sum: of the first bias.
            tensors: those of the `.pt` that fit, by key, which change. With `partial`, the first bias may be missing:
                then Lua's own is the other addend.
        """
        lua_tensors = model.expected.tensors
        if key_of_sum not in lua_tensors:  # a layer without biases in Lua
            return
        total = added(tensors.get(key_of_sum, lua_tensors[key_of_sum]), second_bias)
        if total is not None:  # else all of the second bias is 0
            tensors[key_of_sum] = total
            self._added_biases.append(model.label(key))

    def _update_derived(self) -> None:
        """Recompute what Lua stores although it follows from other tensors, which have their new values now."""
        assignments = []
        for name, origin, before, pt_tensor in self._derived:
            after = recomputed(origin)
            if after is None:  # the fields of the object do not fit together
                continue
            # The field that the tensor is read from; or, if it is computed here, one where Lua keeps it for evaluation.
            lua_tensor = origin.tensor or existing_field(origin, after)
            # What does not change keeps Lua's own bits.
            has_changed = before is None or not same_elements(before, after)
            if lua_tensor is not None and has_changed:
                assignments.append(Assignment(name, lua_tensor, after))
            if pt_tensor is not None and not is_close(pt_tensor, after):
                self._note("warning", f"{name} follows from other tensors in Lua; the .pt's own value is not taken")
        assign(assignments)

    def _note_lossy_elements(self) -> None:
        """Note the tensors that Lua's element types cannot hold exactly."""
        names_by_loss: dict[str, list[str]] = {"": [], "rounded": [], "changed": []}
        for item in self._assignments:
            names_by_loss[item.loss].append(f"{item.name} ({item.source.element.name} to {item.target.element.name})")
        self._note_precision("info", "rounded to Lua's element type", names_by_loss["rounded"])
        self._note_precision("warning", "with numbers that Lua's element type cannot hold", names_by_loss["changed"])

    def _note_precision(self, level: str, what_happened: str, names: list[str]) -> None:
        """Note the tensors to which something happened, the end of a sentence; nothing if there are none."""
        if names:
            message = f"{counted(len(names), 'tensor')} {what_happened}: {_listed(names)}"
            self._note(level, message, loss="precision", code="precision")


def _clash(one: str, other: str) -> str:
    """Name two tensors that get different values for one memory, or the one that repeats its own."""
    if one == other:
        return f"{one} gets different values for elements that it repeats"
    return f"{one} and {other}"


def _is_derived(origin: Origin) -> bool:
    """Return whether a tensor follows from others in Lua."""
    return origin.param is not None and origin.param.kind == "derived"


def _counts_batches(key: Any) -> bool:
    """Return whether a key is that of PyTorch's batch counter."""
    return isinstance(key, str) and key.rpartition(".")[2] == _BATCH_COUNTER


def _modules_to_fill(models: list[_Model]) -> list[_Model]:
    """Return the modules for which a state dict may be: those with tensors, without criterions, if there are such."""
    with_tensors = [model for model in models if model.has_tensors] or models
    if len(with_tensors) == 1:
        return with_tensors
    # Criterions may have weights, too.
    return [model for model in with_tensors if not _is_criterion(model.obj)] or with_tensors


def _is_criterion(obj: TorchObject) -> bool:
    """Return whether a module is a criterion, by its class."""
    layer = layer_of(obj.class_name)
    return layer is not None and layer.kind == "criterion"


def _keys_beside(value: Any, state: dict[str, Any]) -> list[str]:
    """Return the keys of a checkpoint besides those that may hold its state dict; none if it is the state dict.

    Args:
        value: the checkpoint.
        state: the state dict that was found in it.
    """
    if not isinstance(value, dict) or value is state:
        return []
    return [_key_as_text(key) for key in value if key not in _WRAPPER_KEYS]


def _key_as_text(key: Any) -> str:
    """Return a key of a `.pt` as messages name it, whatever its type."""
    if isinstance(key, str):
        start = key[:_MAX_KEY_LETTERS]
        return start if key.isprintable() else repr(start)
    if isinstance(key, (int, float)) and abs(key) < 2**63:  # Python's integers may have millions of digits
        return str(key)
    return f"<{type(key).__name__}>"


def _shown(value: Any) -> str:
    """Describe a value found where a tensor or state dict is expected."""
    if isinstance(value, Tensor):
        return f"{list(value.shape)}"
    if not isinstance(value, dict):
        return type(value).__name__
    if not value:
        return "an empty dict"
    keys = ", ".join(_key_as_text(key) for key in list(value)[:_MAX_SHOWN_KEYS])
    more = ", …" if len(value) > _MAX_SHOWN_KEYS else ""
    return f"a dict with the keys {keys}{more}"


def _listed(names: list[str]) -> str:
    return listed(names, MAX_LISTED)


def _message_with_lines(head: str, lines: list[str]) -> str:
    """Return a message with a line for each thing to report, up to a maximum."""
    shown_lines = [f"{head}:", *lines[:MAX_LISTED]]
    if len(lines) > MAX_LISTED:
        shown_lines.append(f"… and {len(lines) - MAX_LISTED} more")
    return "\n  ".join(shown_lines)


def plain_keys(obj: TorchObject, wanted: StateDict, state: dict[Any, Any], note: _Note) -> dict[Any, Any]:
    """Return a state dict under the keys that `auto` mode assigns to a module, as far as it can be determined.

    Prefixes that wrappers add are removed, others are exchanged where that makes all keys fit; keys that `save_module`
    recorded, or that the module's `model.py` has, are replaced.

    Args:
        obj: the module.
        wanted: its own state dict, whose `origins` have all keys of `auto` mode.
        state: the state dict of the `.pt`, which comes back to Lua.
        note: receives level and message of notes.

    Raises:
        ModelError: tensors under recorded keys, or those of `model.py`, have other shapes, or tied ones differ.
    """
    state = _without_wrapper_prefixes(state, wanted, note)
    if not state:
        return state
    # The keys that the module had in PyTorch, if `save_module` made it.
    record = recorded(obj, wanted) if ROOT_FIELD in obj else None
    # Recorded keys come first: `1.weight` may be another layer among Lua's.
    possible_keys: list[Iterable[str]] = [wanted.origins]
    if record is not None:
        possible_keys.insert(0, record.keys)
    for keys in possible_keys:
        fitting = _under_keys(keys, state, note)
        if fitting is not None:
            state = fitting
            break
    if record is not None and set(state) <= set(record.keys):  # keys may be missing
        state = _from_recorded(record, wanted, state, note)
    if set(state) <= set(wanted.origins):
        return state
    # Neither the keys of `auto` mode nor recorded ones: perhaps those of a `model.py`.
    return _from_model_file(obj, state, note)


def _without_wrapper_prefixes(state: dict[Any, Any], wanted: StateDict, note: _Note) -> dict[Any, Any]:
    """Return a state dict without the prefixes that wrappers of PyTorch add to all keys, `module.` for example.

    A prefix that keys of the module itself have is no wrapper's.

    Args:
        state: the state dict.
        wanted: the module's own.
        note: receives level and message of notes.
    """
    for prefix in _WRAPPER_PREFIXES:
        if not state or not all(isinstance(key, str) and key.startswith(prefix) for key in state):
            continue
        is_own_prefix = any(key.startswith(prefix) for key in wanted.origins)
        if not is_own_prefix:
            state = {key.removeprefix(prefix): value for key, value in state.items()}
            note("info", f"all keys begin with {prefix}, which is left out")
    return state


def _from_recorded(record: Recorded, wanted: StateDict, state: dict[Any, Any], note: _Note) -> dict[Any, Any]:
    """Return a state dict with recorded keys under those of `auto` mode.

    Args:
        record: the keys that the module had in PyTorch, and how its tensors became Lua's.
        wanted: the module's own state dict, with the keys of `auto` mode.
        state: the state dict, all of whose keys are recorded.
        note: receives level and message of notes.

    Raises:
        ModelError: the tensors have other shapes than the recorded ones, or tied ones differ.
    """
    if not set(state) <= set(wanted.origins):
        note("info", "the keys are those that the module had in PyTorch")
    state = _with_lua_types(state)
    wrong = record.differences(state)
    if wrong:
        raise ModelError(_message_with_lines("the tensors do not match the template", wrong))
    return record.to_own(state, wanted)


def _from_model_file(obj: TorchObject, state: dict[Any, Any], note: _Note) -> dict[Any, Any]:
    """Return a state dict with the keys of a module's `model.py` under those of `auto` mode; any other is unchanged.

    Args:
        obj: the module, of which the `model.py` is made again for its keys.
        state: the state dict.
        note: receives level and message of notes.

    Raises:
        ModelError: its tensors have other shapes than those of the `model.py`, or tied ones differ.
    """
    for lift in (True, False):  # a `model.py` may have been written with cells of torch.nn, or without
        try:
            model_file = generate(obj, lift=lift, only_keys=True)
        except T7BridgeError:  # it has no model.py of either kind: a layer has no equivalent, for example
            return state
        file_state = _under_keys(model_file.tensors, state, note)
        if file_state is None or set(file_state) != set(model_file.tensors):
            continue
        note("info", "the keys are those of the model.py for this module")
        file_state = _with_lua_types(file_state)
        wrong = _differences_of_model_file(model_file, file_state)
        if wrong:
            raise ModelError(_message_with_lines("the tensors do not match the model.py of the template", wrong))
        return model_file.converted(file_state)
    return state


def _differences_of_model_file(model_file: Generated, state: dict[Any, Any]) -> list[str]:
    """Return what does not fit in a state dict with the keys of a `model.py`, a line each.

    These are tensors of other shapes; if there are none, keys of one tensor in the model that have different values.

    Args:
        model_file: the `model.py`, with the tensors by key, and the keys of each tensor of the model.
        state: a state dict with exactly these keys.
    """
    wrong: list[str] = []
    for key, expected in model_file.tensors.items():
        value = state[key]
        if not isinstance(value, Tensor) or value.shape != expected.shape:
            wrong.append(f"wrong {key}: expected {_shown(expected)}; found {_shown(value)}")
    if wrong:
        return wrong
    for first, *others in model_file.keys.values():
        for other in others:
            if not same_elements(state[first], state[other]):
                wrong.append(f"different values in {first} and {other}, which are one tensor in the model")
    return wrong


def _with_lua_types(state: dict[Any, Any]) -> dict[Any, Any]:
    """Return a state dict with elements that Lua has: bfloat16 and float8 become floats. Others are refused later."""
    result: dict[Any, Any] = {}
    for key, value in state.items():
        result[key] = value
        if not isinstance(value, Tensor) or value.storage is None:
            continue
        has_lua_type = value.element.lua
        is_complex = value.element.name.startswith("complex")  # which Lua has not, in any type
        if not has_lua_type and not is_complex:
            result[key] = native(value)
    return result


def _under_keys(wanted: Iterable[str], state: dict[Any, Any], note: _Note) -> dict[Any, Any] | None:
    """Return a state dict all of whose keys are among others: itself, or with their prefix in place of its own.

    Args:
        wanted: the other keys, of which it need not have all.
        state: the state dict.
        note: receives level and message of notes.

    Returns:
        `None` if the keys do not fit, with any prefix. Batch counters, which Lua lacks, need not fit.
    """
    wanted_keys = set(wanted)
    keys = [key for key in state if not _counts_batches(key)]
    if wanted_keys.issuperset(keys):
        return state
    if not wanted_keys or not all(isinstance(key, str) for key in keys):
        return None
    for old in _common_prefixes(keys):
        for new in _common_prefixes(wanted_keys):
            fits = all(new + key.removeprefix(old) in wanted_keys for key in keys)
            if old != new and fits:
                note("info", f"all keys begin with {new or 'no prefix'} in the template, not with {old or 'none'}")
                return {_with_other_prefix(key, old, new): value for key, value in state.items()}
    return None


def _with_other_prefix(key: Any, old: str, new: str) -> Any:
    """Return a key with one prefix in place of another; one without that prefix as it is."""
    if isinstance(key, str) and key.startswith(old):
        return new + key.removeprefix(old)
    return key  # a batch counter that is named otherwise


def _common_prefixes(keys: Iterable[str]) -> list[str]:
    """Return the prefixes that all keys have in common, the empty one first: whole steps, `net.` and `net.0.`.

    Args:
        keys: at least one.
    """
    # What the first and the last in order have in common, all between them have.
    in_order = sorted(keys)
    first = in_order[0]
    last = in_order[-1]
    prefixes = [""]
    for place, (letter, other) in enumerate(zip(first, last)):
        if letter != other:
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
        is_lua = document.spec.values == formats.LUA
        state = None if is_lua else state_dict_in(document.value)
        if state is None:
            kind = type(document.value).__name__
            raise ModelError("the file holds no state dict", file=document.path, found=f"a value of type {kind}")
        tensors: dict[str, Any] = to_torch(state)
        return tensors
