"""The PyTorch equivalent of a Lua layer, and the plan of a whole model, as data: modules and their arguments.

A `Row` maps fields to arguments, so that it can be read backwards too; a function returns a `Call` if the fields affect
more than values. May import graph and errors. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from attrs import evolve, field

from ..data import define
from ..errors import ModelError
from ..graph.lua import TorchObject
from ..graph.tensor import Tensor
from .fields import Fields

OURS = __name__.partition(".")[0] + "."
"""The beginning of the dotted names of this package's classes. Generated source copies them; it imports all others."""
LAYERS = f"{OURS}torchmodules.layers."
"""The package of the layers of nn, rnn and dpnn that PyTorch lacks or computes differently."""


def is_torch_or_ours(target: str) -> bool:
    """Return whether a class, by its dotted name, is of torch.nn or of this package, and not a user's."""
    return target.startswith(("torch.nn.", OURS))


AXES = {2: ("H", "W"), 3: ("T", "H", "W")}
"""The ends of the names of fields for each axis, by the number of axes."""

Literal = Any
"""None, bool, int, float, str, or a tuple of them: values that a source file can express."""


class NotMappedError(ModelError):
    """The class of an object can be mapped, but not with these fields."""


@define(eq=False)
class Lua(Fields):
    """The fields of a Lua object, with the shapes of its tensors in the state dict, and the objects around it.

    Attributes:
        shapes: the shapes of its own tensors in the state dict, by their names there.
        index_base: the user's number of the first element: 1 as in Lua, or 0.
        above: the objects that contain it, the innermost first.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(factory=dict, repr=False)
    index_base: int = 1
    above: Sequence[TorchObject] = field(default=(), repr=False)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor of its state dict.

        Raises:
            NotMappedError: the file has no such tensor.
        """
        shape = self.shapes.get(name)
        if shape is None:
            raise NotMappedError(f"its {name} is not in the file", path=self.path)
        return shape

    def optional(self, path: str) -> int | None:
        """Return a whole number, or `None` if the field is missing."""
        return self.integer(path) if self.has(path) else None

    def dtype(self, path: str) -> str | None:
        """Return the element type of the tensor at a path, `float32`, even if it has no elements."""
        value = self.get(path)
        return value.element.name if isinstance(value, Tensor) else None


@define(frozen=True)
class Call:
    """The construction of a PyTorch module: a class and its arguments.

    Attributes:
        target: the dotted name of a class that can be imported: `torch.nn.Conv2d`, one in `LAYERS`, or any other.
        args: positional arguments; none if the module has children.
        kwargs: arguments by keyword.
        plain: an equivalent class of `torch.nn` if every input is a tensor with a batch dimension.
        refers: modules elsewhere in the model that the constructor receives, by keyword.
        childless: whether the children in Lua add nothing to the arguments.
    """

    target: str
    args: tuple[Literal, ...] = ()
    kwargs: Mapping[str, Literal] = field(factory=dict)
    plain: str = ""
    refers: Mapping[str, TorchObject] = field(factory=dict, repr=False)
    childless: bool = False


@define(frozen=True)
class Read:
    """Source of an argument of a PyTorch module in the fields of a Lua object.

    Attributes:
        kind: `number`, `integer`, `optional` (an integer or `None`), `flag`, `dim` (1-based in Lua, 0-based in PyTorch,
            from -1 backwards in both), `sizes`, `pair` (a tuple, of several fields), `extent` (of a tensor of the state
            dict), `shape`, `has` (whether the state dict has the tensor), `base` (the first index), or `made` by a
            function.
        get: returns the argument for one object.
        fields: names of fields, or the tensor; older names of each may follow after `|`.
        default: the value of a missing field.
        dim: the dimension of an `extent`.
        omitted: values with which the argument, by keyword, is left out.
        spread: whether its elements are several arguments, like `*args`.
    """

    kind: str
    get: Callable[[Lua], Literal] = field(eq=False, repr=False)
    fields: tuple[str, ...] = ()
    default: Any = None
    dim: int = 0
    omitted: tuple[Literal, ...] = ()
    spread: bool = False

    def unless(self, *values: Literal) -> Read:
        """Return the same source of an argument by keyword, which is left out if it has one of these values."""
        return evolve(self, omitted=values)

    @property
    def each(self) -> Read:
        """The same source, for one argument for each element of the tuple."""
        return evolve(self, spread=True)


@define(frozen=True)
class Row:
    """The mapping of Lua objects to a PyTorch class whose arguments are individual fields.

    Attributes:
        target: see `Call`.
        args: positional arguments: the source of each, or the value itself.
        kwargs: arguments by keyword, likewise.
        plain: see `Call`.
        childless: see `Call`.
    """

    target: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(factory=dict)
    plain: str = ""
    childless: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        """The class that it returns, as the only one, for those who ask a `Choice` too."""
        return (self.target,)

    def __call__(self, lua: Lua) -> Call:
        """Return the construction for one object, without arguments by keyword whose value is one of `Read.omitted`."""
        args: list[Literal] = []
        for argument in self.args:
            if not isinstance(argument, Read):
                args.append(argument)
            elif argument.spread:
                args += argument.get(lua)
            else:
                args.append(argument.get(lua))
        kwargs = {}
        for name, argument in self.kwargs.items():
            if not isinstance(argument, Read):
                kwargs[name] = argument
                continue
            value = argument.get(lua)
            if value not in argument.omitted:
                kwargs[name] = value
        return Call(self.target, tuple(args), kwargs, self.plain, childless=self.childless)


@define(frozen=True)
class Choice:
    """The mapping of Lua objects to PyTorch modules whose class or arguments a function chooses. Made by `becomes`.

    Attributes:
        make: returns the construction for one object.
        targets: the classes that it may return, by dotted name.
    """

    make: Callable[[Lua], Call]
    targets: tuple[str, ...]

    def __call__(self, lua: Lua) -> Call:
        """Return the construction for one object."""
        call = self.make(lua)
        assert call.target in self.targets, f"{call.target} is not declared"
        return call


Mapped = Row | Choice | Callable[[Lua], Call]
"""Mapping of the objects of a class to modules."""


def becomes(*names: str) -> Callable[[Callable[[Lua], Call]], Choice]:
    """Declare the classes that a function of fields may return.

    Args:
        names: family and class of the runtime's, `shape.View`; the dotted name of a class of PyTorch; or, after a dot,
            that of a class in the caller's package, `.modules.Scale`.

    Returns:
        A decorator that makes the function a `Choice`.
    """
    package = _package_of_caller()
    targets: list[str] = []
    for name in names:
        is_runtime = not name.startswith((".", "torch."))
        targets.append(LAYERS + name if is_runtime else absolute_name(name, package))
    return lambda make: Choice(make, tuple(targets))


def of_torch(name: str, *args: Any, childless: bool = False, **kwargs: Any) -> Row:
    """Return a mapping to a module of `torch.nn`, by its name there.

    Args:
        name: of the class.
        args: positional arguments: a `Read` as the source of each, or the value itself.
        childless: see `Call`.
        kwargs: arguments by keyword, likewise; one is left out only as its `Read` says.
    """
    return Row(f"torch.nn.{name}", args, kwargs, childless=childless)


def of_runtime(name: str, *args: Any, plain: str = "", **kwargs: Any) -> Row:
    """Return a mapping to a module of the runtime: `shape.View`.

    Args:
        name: family and class.
        args: positional arguments: the source of each, a function of the fields, or the value itself.
        plain: name in `torch.nn` of an equivalent class for tensors with a batch dimension.
        kwargs: arguments by keyword, likewise; one whose source has none is left out.
    """
    sources = {argument: _source(value) for argument, value in kwargs.items()}
    plain_class = f"torch.nn.{plain}" if plain else ""
    return Row(LAYERS + name, tuple(map(_source, args)), sources, plain_class)


def of_class(name: str, *args: Any, **kwargs: Any) -> Row:
    """Return a mapping to a class of modules, which is imported once a module is built.

    Entries can so be read without PyTorch: the classes are in a file of their own beside that of the entries.

    Args:
        name: the dotted name of the class. After a dot it is relative to the caller's package, as in an import:
            `.modules.Scale` is the class `Scale` in the file `modules.py` of the same folder.
        args: positional arguments: the source of each, a function of the fields, or the value itself.
        kwargs: arguments by keyword, likewise; one whose source has none is left out.

    Raises:
        ModelError: the name is relative, and the caller is in no package.
    """
    sources = {argument: _source(value) for argument, value in kwargs.items()}
    return Row(absolute_name(name, _package_of_caller()), tuple(map(_source, args)), sources)


def absolute_name(name: str, package: str) -> str:
    """Return the dotted name of a class; one that begins with a dot is in `package`.

    Raises:
        ModelError: the name is relative, and there is no package.
    """
    if not name.startswith("."):
        return name
    if not package:
        raise ModelError("a class has a relative name outside a package", found=name, expected="package.module.Class")
    return package + name


def _package_of_caller() -> str:
    """Return the package of the file that calls a function of this one; empty for a file that is in none."""
    # Frame 0 is this function, 1 the one of this file, 2 its caller.
    return sys._getframe(2).f_globals.get("__package__") or ""


def short_name(target: str) -> str:
    """Return family and class of one of this package's classes, `shape.View`; of others the dotted name.

    A Lua package's classes are in its file `modules`: that of `t7bridge.workshop.packages.ccn2.modules.X` is `ccn2.X`.
    """
    if not target.startswith(OURS):
        return target
    home, _, name = target.rpartition(".")
    _, _, family = home.removesuffix(".modules").rpartition(".")
    return f"{family}.{name}"


def _source(value: Any) -> Any:
    """Return an argument of `of_runtime` in the form that `Row` takes.

    Args:
        value: a `Read`, which gets the argument from the fields of an object; a function of the fields, which becomes
            one; or the argument itself, which is returned as it is.

    Returns:
        A `Read` that does not say with which values it is left out is left out with `None`. `Row` asks for that only
        by keyword; a positional argument is passed whatever its value.
    """
    source = made(value) if callable(value) else value  # a `Read` is not callable
    if isinstance(source, Read) and not source.omitted:
        return source.unless(None)
    return source


def same_names(family: str, names: str, *args: Any, **kwargs: Any) -> dict[str, Row]:
    """Return mappings of classes of nn to those of the same names in `torchmodules/layers`, by their full names in Lua.

    Args:
        family: the file of the classes there: `table`.
        names: of the classes, without `nn.`, separated by spaces.
        args: their positional arguments, see `of_runtime`.
        kwargs: their arguments by keyword, likewise.
    """
    return {f"nn.{name}": of_runtime(f"{family}.{name}", *args, **kwargs) for name in names.split()}


def either(condition: Callable[[Lua], Any], one: Row | Choice, other: Row | Choice) -> Choice:
    """Return a mapping to one of two modules, by a condition on the fields."""

    def make(lua: Lua) -> Call:
        return one(lua) if condition(lua) else other(lua)

    return Choice(make, (*one.targets, *other.targets))


def made(get: Callable[[Lua], Literal]) -> Read:
    """Return the source of an argument that a function of the fields computes."""
    return Read("made", get)


def number(name: str, default: float | None = None) -> Read:
    """Read a number, as float."""
    return Read("number", lambda lua: float(lua.number(name, default)), (name,), default)


def integer(name: str, default: int | None = None) -> Read:
    """Read a whole number."""
    return Read("integer", lambda lua: lua.integer(name, default), (name,), default)


def optional(name: str) -> Read:
    """Read a whole number, or `None` if the field is missing."""
    return Read("optional", lambda lua: lua.optional(name), (name,))


def optional_number(name: str) -> Read:
    """Read a number, as float, or `None` if the field is missing."""
    return Read("number", lambda lua: float(lua.number(name)) if lua.has(name) else None, (name,))


def flag(name: str, default: bool = False) -> Read:
    """Read a truth value."""
    return Read("flag", lambda lua: lua.flag(name, bool(default)), (name,), default)


def dim(name: str, default: int | None = None) -> Read:
    """Read a dimension or position, 0-based."""
    return Read("dim", lambda lua: lua.index0(name, default), (name,), default)


def optional_dim(name: str) -> Read:
    """Read a dimension or position, 0-based, or `None` if the field is missing."""
    return Read("dim", lambda lua: lua.index0(name) if lua.has(name) else None, (name,))


def sizes(name: str) -> Read:
    """Read a tuple of sizes."""
    return Read("sizes", lambda lua: lua.sizes(name), (name,))


def pair(*names: str, default: int | None = None) -> Read:
    """Read a tuple of the whole numbers in several fields."""
    return Read("pair", lambda lua: tuple(lua.integer(name, default) for name in names), names, default)


def axes(prefix: str, dims: int, default: int | None = None) -> Read:
    """Read a tuple of whole numbers, one of each axis: `kH`, `kW` for the prefix `k`.

    One field may serve all axes: `padding|pad`.
    """
    # The name of an axis is added to the last alternative only.
    return pair(*(f"{prefix}{axis}" for axis in AXES[dims]), default=default)


def extent(name: str, at: int = 0) -> Read:
    """Read one extent of a tensor of the state dict."""
    return Read("extent", lambda lua: lua.shape(name)[at], (name,), dim=at)


def shape(name: str) -> Read:
    """Read the shape of a tensor of the state dict."""
    return Read("shape", lambda lua: lua.shape(name), (name,))


def has(name: str) -> Read:
    """Return whether the state dict has a tensor."""
    return Read("has", lambda lua: name in lua.shapes, (name,))


BASE = Read("base", lambda lua: lua.index_base)
"""The number of the first index: 1 or 0."""
INPLACE = flag("inplace")


SEQUENTIAL = "torch.nn.Sequential"
"""The only class of PyTorch known by its behaviour: its children are called in sequence."""
Link = tuple[int, tuple[int, ...]]
"""Input of a node: the number of another node, and the elements of its output, one inside the other, from 0."""


@define(frozen=True)
class GraphNode:
    """One node of a graph.

    Attributes:
        module: the name of the child that it applies; `None` for a node that passes its input through.
        takes: the sources of its inputs, in order; several are passed to the module as one list.
        name: its annotation.
    """

    module: str | None
    takes: tuple[Link, ...]
    name: str = ""


@define(frozen=True)
class GraphSpec:
    """A directed graph of modules, in the order of execution. In links, node 0 is the input of the whole.

    Attributes:
        nodes: nodes 1 and up: `nodes[0]` is number 1 in links.
        outputs: the outputs of the graph, as links.
        returns_list: whether it returns a list, as it does for several outputs.
    """

    nodes: tuple[GraphNode, ...]
    outputs: tuple[Link, ...]
    returns_list: bool

    def run(
        self,
        value: Any,
        pick: Callable[[Any, int], Any],
        apply: Callable[[int, GraphNode, Any], Any],
        joined: Callable[[list[Any]], Any] = list,
    ) -> Any:
        """Return the output for an input.

        Args:
            value: the input.
            pick: returns an element of a value, by its number from 0 on.
            apply: returns the output of a node, by its number from 1 on, the node, and its input.
            joined: makes a list of values one value, also of none for a node without inputs.
        """
        # By the numbers of nodes in links: the input, then the output of each node.
        values = [value]

        def fetch(links: tuple[Link, ...]) -> list[Any]:
            """Return what links lead to: of nested lists one element after another."""
            return [reduce(pick, elements, values[source]) for source, elements in links]

        for number, node in enumerate(self.nodes, 1):
            inputs = fetch(node.takes)
            values.append(apply(number, node, inputs[0] if len(inputs) == 1 else joined(inputs)))
        outputs = fetch(self.outputs)
        return joined(outputs) if self.returns_list else outputs[0]


@define(eq=False)
class ModuleSpec:
    """One PyTorch module to be built, as data. A module shared in Lua is one spec at several places.

    Attributes:
        target: the class to call: of `torch.nn`, or of the runtime's layers.
        args: positional arguments, literals; none if there are children.
        kwargs: arguments by keyword, literals.
        children: the modules inside, by their names in state dicts. Those named 0, 1, … come first as
            positional arguments of the constructor, others by keyword.
        refers: modules elsewhere in the model that the constructor receives by keyword without containing them.
        graph: the graph that the children form, for a graph.
        plain: an equivalent class of `torch.nn` if every input is a tensor with a batch dimension.
        class_name: the class in Lua.
        obj: the object in Lua.
        path: the path there, for messages.
    """

    target: str
    args: tuple[Literal, ...] = ()
    kwargs: Mapping[str, Literal] = field(factory=dict)
    children: dict[str, ModuleSpec] = field(factory=dict)
    refers: dict[str, ModuleSpec] = field(factory=dict)
    graph: GraphSpec | None = None
    plain: str = ""
    class_name: str = ""
    obj: TorchObject | None = field(default=None, repr=False)
    path: str = ""


@define(eq=False)
class Plan:
    """A whole model to be built.

    Attributes:
        root: its module.
        parameters: the keys of its state dict that are learned.
    """

    root: ModuleSpec
    parameters: frozenset[str] = frozenset()


def first_module_in(spec: ModuleSpec) -> ModuleSpec:
    """Return the module that a Sequential applies first, however deep Sequentials are in it; of others the module."""
    while spec.target == SEQUENTIAL and spec.children:
        spec = next(iter(spec.children.values()))
    return spec


def last_module_in(spec: ModuleSpec) -> ModuleSpec:
    """Return the module that a Sequential applies last, however deep Sequentials are in it; of others the module."""
    while spec.target == SEQUENTIAL and spec.children:
        spec = next(reversed(spec.children.values()))
    return spec


def way_to(root: ModuleSpec, key: str) -> Iterator[tuple[ModuleSpec, str, str]]:
    """Yield the modules around a tensor of a state dict, the root first.

    Args:
        root: the model.
        key: of the tensor: `0.2.weight`.

    Yields:
        The module; the prefix of its keys, `0.`; the rest of the key, `2.weight`, which is the tensor's name in the
        last module.
    """
    spec = root
    prefix = ""
    while True:
        yield spec, prefix, key
        name, dot, rest = key.partition(".")
        if not dot or name not in spec.children:
            return
        spec = spec.children[name]
        prefix = f"{prefix}{name}."
        key = rest


def specs_in(root: ModuleSpec) -> Iterator[ModuleSpec]:
    """Yield every module of a plan once, in the order of its first place."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        spec = stack.pop()
        if id(spec) not in seen:
            seen.add(id(spec))
            yield spec
            stack += reversed(spec.children.values())
