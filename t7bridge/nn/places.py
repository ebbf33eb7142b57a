"""The places of modules in a model: a walk down containers, without recursion; cycles are fine.

May import graph, errors, limits and report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from attrs import field

from ..data import define
from ..errors import LimitError, ModelError, NoModuleError
from ..graph.lua import Table, TdsHash, TdsVec, TorchObject, Value
from ..graph.tensor import Tensor
from ..graph.walk import Path, entries, step_name
from ..limits import DEFAULT_LIMITS, STEPS_PER_NODE, Limits
from ..text import Step, listed
from .fields import items_of
from .registry import ALIAS_PREFIXES, Child, Layer, layer_of

_T = TypeVar("_T")
_SHOWN = 20
"""Number of paths in a message, and of values about a model's input."""
MAX_DEPTH = 1_000
"""Depth up to which a module has a path of its own; PyTorch can call modules nested a third as deep."""
_LONGEST_PATH = 10_000
"""Maximum characters of a path in an object of an unknown class."""

_NN_PREFIXES = ("nn.", *ALIAS_PREFIXES)
"""Packages whose classes are modules or criterions; those of others are known by their entries or their fields."""
_PREFIXES_WITHOUT_MODULES = ("nngraph.", "graph.", "torch.")
"""Packages without modules. Objects of a graph lead to everything else in it."""
_SCRATCH = {
    *("output", "finput", "fgradInput", "buffer", "buffer1", "buffer2", "buffer3", "indices", "noise", "mask"),
    *("momGradParams", "save_mean", "save_std", "sharedClones", "clones", "networkClones", "rnnClones"),
}
"""Fields of temporary values, of nn's modules and of rnn's."""


def is_scratch(name: str) -> bool:
    """Return whether a field holds temporary values of a computation, in any class."""
    # Internal fields begin with `_`. Gradients, and dpnn's lists of parameters, are made again when they are needed.
    return name in _SCRATCH or name.startswith(("_", "grad", "dpnn_"))


def is_module(value: Value) -> bool:
    """Return whether a value is an nn module or criterion: by class name, or by the fields common to all modules."""
    if not isinstance(value, TorchObject):
        return False
    name = value.class_name
    if layer_of(name) is not None or name.startswith(_NN_PREFIXES):
        return True
    if name.startswith(_PREFIXES_WITHOUT_MODULES):
        return False
    # Every module has these, unless a program removed them to save space.
    if "gradInput" in value and "output" in value:
        return True
    return any(isinstance(item, TorchObject) for item in items_of(value.get("modules")) or ())


@define(eq=False)
class NameBudget:
    """A count of the characters of a model's names, which raises an error when it reaches the limit.

    Attributes:
        limits: resource limits.
        chars: their number so far.
    """

    limits: Limits = DEFAULT_LIMITS
    chars: int = 0

    def spend(self, chars: int) -> None:
        """Count characters of names.

        Args:
            chars: of the next names.

        Raises:
            LimitError: there are too many.
        """
        self.chars += chars
        if self.chars > self.limits.name_chars:
            raise self.limits.exceeded(
                "name_chars",
                "the names of the tensors of this model are too long, as its modules are nested too deep",
                hint="Convert it with --mode tree, which needs no names, or raise it: --limit name_chars=N, or "
                "limits=Limits(name_chars=N) in Python.",
            )


@define(eq=False)
class Place:
    """One place of a module in a model. A shared module has several.

    Attributes:
        obj: the module.
        layer: the entry of its class; `None` for an unknown class.
        name: its name in its parent, in PyTorch.
        step: its step from its parent, in Lua.
        parent: the place that contains it; `None` for the model itself.
        entered: number of the place in the order of the walk, from 1.
        depth: number of places around it.
    """

    obj: TorchObject
    layer: Layer | None
    name: str
    step: str
    parent: Place | None
    entered: int = 0
    depth: int = 0

    def _with_enclosing(self) -> Iterator[Place]:
        """Yield the place itself, and the places around it, the innermost first."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.parent

    @property
    def prefix(self) -> str:
        """Prefix of the names of its tensors: `1.0.`; empty for the model itself."""
        names = [place.name for place in self._with_enclosing() if place.parent is not None]
        return "".join(f"{name}." for name in reversed(names))

    @property
    def path(self) -> str:
        """The path in Lua: `root.modules[2].modules[1]`."""
        return "".join(reversed([place.step for place in self._with_enclosing()]))


def _steps_into(value: Value) -> Iterator[tuple[str, str, Value]]:
    """Yield the values directly in a table or object; none of any other value.

    Yields:
        The name of the value in PyTorch, where lists count from 0; the step of a path to it in Lua; the value.
    """
    if isinstance(value, TdsVec):
        for number, item in enumerate(value.elements):
            yield str(number), f"[{number + 1}]", item
        return
    table = value
    if isinstance(value, TorchObject):
        table = value.fields
    elif isinstance(value, TdsHash):
        table = value.content
    if not isinstance(table, Table):
        return
    is_list = isinstance(value, Table) and table.sequence() is not None
    for key, item in table.raw_items():
        step = step_name(key)
        if isinstance(key, float) and key.is_integer():
            # Keys that are not 1, 2, … are numbers with a meaning of their own, and stay.
            number = int(key) - 1 if is_list else int(key)
            yield str(number), step, item
        elif isinstance(key, bytes):
            yield key.decode("utf-8", "backslashreplace"), step, item
        else:  # a fraction, a truth value or an object
            yield step.strip("[]"), step, item


def _searchable(name: str, path: str, value: Value) -> Iterator[tuple[str, str, Value]]:
    """Yield the tensors, tables and objects directly in a value, after their names in PyTorch and paths in Lua.

    Args:
        name: of the value, with which those of what it contains begin.
        path: of the value, likewise.
        value: a table or object.
    """
    for key, step, item in _steps_into(value):
        if isinstance(item, (Tensor, Table, TdsHash, TdsVec, TorchObject)):
            yield f"{name}.{key}", path + step, item


class Searcher:
    """Finds tensors and modules in the fields of objects whose class does not say where they are.

    One serves for a whole model, so that limits count over all its objects.

    Args:
        limits: resource limits.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._barren: set[int] = set()
        """Tables, by id, in which a search found nothing: none is searched again, however many objects share it."""
        self._steps = 0

    def search(self, value: Value, name: str, path: str) -> Iterator[Child]:
        """Yield the tensors and the outermost modules in a value, down through tables, each of which is searched once.

        Args:
            value: the value.
            name: its name in PyTorch, to which those of what it contains are added.
            path: its path in Lua, likewise.

        Raises:
            LimitError: tables are nested too deep, or too many.
        """
        seen: set[int] = set()  # tables of this search, by id
        is_barren = True
        stack = [(name, path, value)]
        while stack:
            name, path, value = stack.pop()
            self._steps += 1
            if isinstance(value, Tensor) or is_module(value):
                is_barren = False
                yield Child(name, path, value, secondary=True)  # another field may hold it, too
            elif isinstance(value, (Table, TdsHash, TdsVec, TorchObject)):
                if id(value) in seen or id(value) in self._barren:
                    continue
                # A node of a graph would lead to all modules of the graph.
                if isinstance(value, TorchObject) and value.class_name.startswith(_PREFIXES_WITHOUT_MODULES):
                    continue
                seen.add(id(value))
                stack += reversed(list(_searchable(name, path, value)))
            self._check_limits(path)
        if is_barren:
            self._barren |= seen

    def _check_limits(self, path: str) -> None:
        """Refuse to search on, at the path of the last value.

        Raises:
            LimitError: tables are nested too deep, or too many.
        """
        if len(path) > _LONGEST_PATH:
            raise LimitError(
                "the tables in an object of an unknown class are nested too deep",
                found=f"{path[:60]}…",
                hint="Convert it with --mode tree.",
            )
        if self._steps > self._limits.searched_values:
            raise self._limits.exceeded(
                "searched_values",
                "the tables in objects of unknown classes are too many",
                found=f"{path[:60]}…",
                hint="Convert it with --mode tree, or raise it: --limit searched_values=N, or "
                "limits=Limits(searched_values=N) in Python.",
            )

    def fields(self, obj: TorchObject) -> Iterator[Child]:
        """Yield the tensors and modules in the fields of an object, except those of temporary values; see `search`."""
        for name, step, value in _steps_into(obj):
            if not is_scratch(name):
                yield from self.search(value, name, step)


def children_of_unknown(obj: TorchObject, searcher: Searcher) -> Iterator[Child]:
    """Yield the modules in an object of a class without an entry: those in `modules`, by number, then those in fields.

    Of a module in both, the second is an alias, which `Places` skips.

    Args:
        obj: the object.
        searcher: the one of the model, which searches the fields.
    """
    for number, value in enumerate(items_of(obj.get("modules")) or ()):
        if is_module(value):
            yield Child(str(number), f".modules[{number + 1}]", value)  # Lua counts from 1
    for child in searcher.fields(obj):
        if not isinstance(child.value, Tensor):
            yield child


@define(eq=False)
class Places:
    """The places of modules in a model, in the order of a walk that visits a module before its content.

    A module that contains itself is skipped at the second visit; `cycles` has its place. Values in a container that are
    not modules are in `non_modules`.

    Attributes:
        root: the model.
        path: its path.
        limits: resource limits.
        searcher: finds modules in objects of unknown classes.
        cycles: of each module that contains itself, the place and the child that leads back to it.
        non_modules: places, and children there that are no objects.
        last_entered: the walk's number of each module's last place, by the id of the module.
    """

    root: TorchObject
    path: str = "root"
    limits: Limits = DEFAULT_LIMITS
    searcher: Searcher = field(init=False)
    cycles: list[tuple[Place, Child]] = field(factory=list)
    non_modules: list[tuple[Place, Child]] = field(factory=list)
    last_entered: dict[int, int] = field(factory=dict)
    _visited: list[Place] | None = field(default=None, init=False)
    """All places, once they were visited."""

    def __attrs_post_init__(self) -> None:
        self.searcher = Searcher(self.limits)

    def __iter__(self) -> Iterator[Place]:
        """Return each place before those inside it.

        Raises:
            LimitError: the modules are shared in too many places.
        """
        return iter(self._visited) if self._visited is not None else self._visit()

    def _visit(self) -> Iterator[Place]:
        """Yield the places, and remember them at the end: names, plan and picture of a model ask for the same."""
        visited: list[Place] = []
        # Ids of the modules that contain the present place: one of these again is a cycle.
        on_path: set[int] = set()
        # Places with those of their children that are still to be visited, first the model itself, which has no parent.
        model = Child(name="", path=self.path, value=self.root)
        stack: list[tuple[Place | None, Iterator[Child]]] = [(None, iter((model,)))]
        while stack:
            parent, waiting = stack[-1]
            child = next(waiting, None)
            if child is None:
                stack.pop()
                if parent is not None:
                    on_path.discard(id(parent.obj))
                continue
            if parent is not None and not self._is_to_enter(child, parent, on_path):
                continue
            place = self._enter(child, parent, number=len(visited) + 1)
            visited.append(place)
            on_path.add(id(place.obj))
            stack.append((place, self._children(place)))
            yield place
        self._visited = visited

    def _is_to_enter(self, child: Child, parent: Place, on_path: set[int]) -> bool:
        """Return whether a child becomes a place; one that is no module or leads to a cycle is noted instead.

        Args:
            child: the child.
            parent: the place that holds it.
            on_path: ids of the modules that contain the child.
        """
        value = child.value
        if not isinstance(value, TorchObject):
            self.non_modules.append((parent, child))
            return False
        # An alias of a module that was visited since its parent was entered. Numbers of places begin with 1.
        if child.secondary and self.last_entered.get(id(value), 0) >= parent.entered:
            return False
        if id(value) in on_path:
            self.cycles.append((parent, child))
            return False
        return True

    def _enter(self, child: Child, parent: Place | None, number: int) -> Place:
        """Return a new place, and note it in `last_entered`.

        Args:
            child: the module, with its name and path in the parent.
            parent: the place that contains it; `None` for the model itself.
            number: of the place in the order of the walk, from 1.

        Raises:
            LimitError: modules are shared in too many places.
        """
        obj = child.value
        depth = parent.depth + 1 if parent is not None else 0
        place = Place(obj, layer_of(obj.class_name), child.name, child.path, parent, entered=number, depth=depth)
        self.last_entered[id(obj)] = number
        # The first places of modules are as many as the file has objects; only repeated ones can grow without end.
        self._check_repeated(number - len(self.last_entered))
        return place

    def _check_repeated(self, count: int) -> None:
        """Refuse a model with too many places beside the first ones of its modules.

        Args:
            count: of these places so far.

        Raises:
            LimitError: there are more than the limit `work` allows.
        """
        if count > self.limits.work // STEPS_PER_NODE:
            raise LimitError(
                "the modules of this model are shared in too many places",
                limit="work",
                value=self.limits.work,
                hint="Convert it with --mode tree, which keeps every module once, or raise it: --limit "
                "work=N, or limits=Limits(work=N) in Python.",
            )

    def _children(self, place: Place) -> Iterator[Child]:
        """Return the modules directly inside a place."""
        if place.layer is None:
            return children_of_unknown(place.obj, self.searcher)
        if place.layer.children is None:
            return iter(())
        return place.layer.children(place.obj)


def find_modules(value: Value, name: str = "root", limits: Limits = DEFAULT_LIMITS) -> list[tuple[str, TorchObject]]:
    """Return the outermost nn modules and criterions in a value, each once, with their paths.

    Args:
        value: the result of a `T7Reader`: a module, a checkpoint table with modules, anything.
        name: the path of `value` itself.
        limits: resource limits.

    Returns:
        Pairs of `root.model` and the module, in the order of the file.

    Raises:
        LimitError: the paths are too long, as in a file that nests modules' tables endlessly.
    """
    modules: list[tuple[str, TorchObject]] = []
    seen: set[int] = set()
    budget = NameBudget(limits)
    stack = [Path(None, Step(name), value)]
    holders: tuple[Any, ...] = (Table, TorchObject, TdsHash, TdsVec, dict, list, tuple)
    while stack:
        visit = stack.pop()
        if id(visit.value) in seen:
            continue
        seen.add(id(visit.value))
        if is_module(visit.value):
            path = visit.text()
            budget.spend(len(path))
            modules.append((path, visit.value))
            continue
        inside = [Path(visit, key, item) for key, item in entries(visit.value) if isinstance(item, holders)]
        stack.extend(reversed(inside))
    return modules


_PREPROCESSING = frozenset(
    b"""
mean std meanstd stdv img_mean image_mean mean_image meanpixel mean_pixel pixel_means transform normalize normalization
preprocess preprocessing imagesize imgsize image_size img_size imagecrop cropsize crop_size inputsize input_size range
input_range input_space colorspace color_space colororder channel_order bgr rgb
""".split()
)
"""Names under which programs keep how images are prepared; without regard to case."""
_MOST_NUMBERS = 8
"""Maximum number of elements of a mean: more are an image."""
_MOST_CHARS = 60
"""Maximum characters of a word."""


def is_preprocessing(name: Any) -> bool:
    """Return whether a name, text or bytes, is one under which programs keep how images are prepared."""
    if isinstance(name, str):
        name = name.encode("utf-8", "replace")
    return isinstance(name, bytes) and name.lower() in _PREPROCESSING


def preprocessing(value: Value) -> dict[str, str]:
    """Return what a file says of how its model's input is prepared, by path: `root.transform.mean`, as text.

    Args:
        value: the result of a `T7Reader`: a checkpoint with a model, or the model, whose own fields count.
    """
    texts: dict[str, str] = {}
    stack = [_Visit(Path(None, Step("root"), value), is_named=False, is_inside_object=False)]
    seen: set[int] = set()
    while stack and len(texts) < _SHOWN:
        visit = stack.pop()
        text = _short(visit.path.value) if visit.is_named else ""
        if text:
            texts[visit.path.text()] = text
        elif id(visit.path.value) not in seen:
            seen.add(id(visit.path.value))
            stack += reversed(visit.inside())
    return texts


@define(frozen=True)
class _Visit:
    """A value that `preprocessing` looks at.

    Attributes:
        path: its path, which has the value itself.
        is_named: whether a name of `_PREPROCESSING` is on the path.
        is_inside_object: whether it is inside an object, as the fields of the model are, and the model itself is not.
    """

    path: Path
    is_named: bool
    is_inside_object: bool

    def inside(self) -> list[_Visit]:
        """Return the values directly inside that may be about the input, or hold such, in the order of the file."""
        value = self.path.value
        are_inside_object = self.is_inside_object or isinstance(value, TorchObject)
        visits = []
        for key, item in entries(value):
            is_named = self.is_named or is_preprocessing(key)
            # In what is inside an object only these names count: other fields of modules are not about the input.
            if is_named or (not self.is_inside_object and isinstance(item, (Table, TorchObject))):
                visits.append(_Visit(Path(self.path, key, item), is_named, are_inside_object))
        return visits


def _short(value: Value) -> str:
    """Return a value as text: a flag, a number, a word, or a few numbers of a table or a tensor of floats.

    Returns:
        Empty for any other value.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value[:_MOST_CHARS].decode("utf-8", "replace")
    numbers: list[Any] = []
    if isinstance(value, float):
        numbers = [value]
    elif isinstance(value, Table):  # as of the three colours
        numbers = value.raw_values
    elif isinstance(value, Tensor) and value.storage is not None and value.numel <= _MOST_NUMBERS:
        numbers = value.numpy().reshape(-1).tolist()
    if len(numbers) > _MOST_NUMBERS or not all(isinstance(number, float) for number in numbers):
        return ""
    return ", ".join(f"{number:.6g}" for number in numbers)


def find_models(value: Value, name: str = "root", limits: Limits = DEFAULT_LIMITS) -> list[tuple[str, TorchObject]]:
    """Return the outermost modules in a value that may be "the model", with their paths.

    Of one model and its criterions this is the model; otherwise all of them.

    Args:
        value: see `find_modules`.
        name: the path of `value` itself.
        limits: resource limits.
    """
    modules = find_modules(value, name, limits)
    models = [(path, module) for path, module in modules if not is_criterion(module)]
    return models if len(models) == 1 else modules


def layer_names(value: Value, limits: Limits = DEFAULT_LIMITS) -> dict[str, tuple[str, str]]:
    """Return name and class of each module in a value, by its path in Lua.

    The name is that of the state dict, as `inspect` lists it; of several models it begins with the path of the model.
    Modules nested deeper than `MAX_DEPTH` are left out.

    Args:
        value: the result of a `T7Reader`: a module, or anything that holds some.
        limits: resource limits.
    """
    names: dict[str, tuple[str, str]] = {}
    has_several_models = len(find_models(value, limits=limits)) > 1
    for path, module in find_modules(value, limits=limits):
        model_name = path.removeprefix("root").lstrip(".") if has_several_models else ""
        for place in Places(module, path, limits):
            if place.depth > MAX_DEPTH:
                continue
            name = f"{model_name}.{place.prefix}".strip(".") or "(model)"
            names.setdefault(place.path, (name, place.obj.class_name))
    return names


def layer_paths(value: Value, limits: Limits = DEFAULT_LIMITS) -> dict[int, tuple[TorchObject, str]]:
    """Return each module in a value, at any depth, with its path, the first if it has several, by its id.

    Modules nested deeper than `MAX_DEPTH` are left out, as their paths together would be too long.

    Args:
        value: the result of a `T7Reader`: a module, or anything that holds some.
        limits: resource limits.
    """
    paths: dict[int, tuple[TorchObject, str]] = {}
    for path, module in find_modules(value, limits=limits):
        for place in Places(module, path, limits):
            if place.depth <= MAX_DEPTH:
                paths.setdefault(id(place.obj), (place.obj, place.path))
    return paths


def is_criterion(module: TorchObject) -> bool:
    """Return whether a module is a criterion, by its class."""
    layer = layer_of(module.class_name)
    return layer is not None and layer.kind == "criterion"


def module_at(value: Value, path: str, name: str = "root") -> TorchObject | None:
    """Return the module at a path, at any depth: `root.models.encoder.network`, `root.model.modules[3]`.

    Args:
        value: the result of a `T7Reader`.
        path: as messages and reports write it.
        name: the path of `value` itself, with which others begin.

    Returns:
        `None` if the path does not exist, or its value is not a module.
    """
    if not path.startswith(name):
        return None
    try:
        value = Path.parse(path, name).get(value)
    except ModelError:  # no such path, or none of this form
        return None
    return value if isinstance(value, TorchObject) and is_module(value) else None


def choose(values: Sequence[tuple[str, _T]], at: str | None, file: str, what: str = "module") -> tuple[str, _T]:
    """Return the only one of some values of a file, or that at a path, with its path.

    Args:
        values: the values, with their paths.
        at: the path, with or without `root.` at its start; `None` for the only value.
        file: its name, for messages.
        what: what they are, for messages: `module`.

    Raises:
        NoModuleError: there is none.
        ModelError: there are several and `at` is `None`, or there is none at `at`; the message lists them.
    """
    if not values:
        raise NoModuleError(f"the file holds no {what}", file=file, hint="t7bridge inspect shows its content.")
    paths = listed((path for path, _ in values), _SHOWN)
    chosen = [(path, value) for path, value in values if at is None or path in (at, f"root.{at}")]
    if not chosen:
        raise ModelError(f"the file holds no {what} at {at}", file=file, hint=f"It has {paths}.")
    if len(chosen) > 1:
        hint = f"Name one with --at (at=… in Python): {paths}."
        raise ModelError(f"the file holds several {what}s", file=file, hint=hint)
    return chosen[0]


def choose_module(value: Value, at: str | None, file: str) -> tuple[str, TorchObject]:
    """Return the model in a value, or the module at a path, inside another too, with its path.

    Args:
        value: the result of a `T7Reader`.
        at: the path; `None` for the only model.
        file: the name of the file, for messages.

    Raises:
        NoModuleError, ModelError: see `choose`.
    """
    if at is not None:
        module = module_at(value, at)
        if module is not None:
            return at, module
    return choose(find_models(value), at, file)
