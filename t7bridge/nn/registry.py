"""The table of Lua layers: the tensors of each class, their layouts, its children and its PyTorch modules.

An entry is data and works in both directions: forwards to make a state dict, backwards to put one into a Lua model.
Its traits are facts about the classes that the layers become, which the planner, the source generator and the tools
look up here by the dotted name of the class. May import graph, io and errors. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain, islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import evolve, field

from ..data import define, words_beside
from ..errors import ModelError
from ..graph.lua import TorchObject, Value
from ..graph.tensor import Tensor
from ..io.source import PathLike, add_input
from .fields import Fields, items_of, lookup, path_steps
from .late import load_families, load_more
from .layouts import Layout, LayoutStep
from .mapping import LAYERS, OURS, Choice, Mapped, Row, absolute_name
from .output_shapes import Arguments, Rule
from .texts import Text, add_texts, remove_text
from .torch_nn import Refused, Shape, output_of, tensors_like
from .walk import Flow

if TYPE_CHECKING:
    from importlib.abc import Loader


@define(frozen=True)
class RecurrentLayer:
    """The equivalent in torch.nn of a class of recurrent layers or cells. `workshop/cells` reads it.

    The first two arguments of the class are the numbers of features of its input and of its output.

    Attributes:
        kind: `LSTM`, `GRU` or `RNN`.
        layer: of a layer that is that of torch.nn of this kind, but returns its outputs only, and of a cell that
            computes one step of it: the class of such layers that has arguments for several levels, too.
        stateful: of the same, the class that also accepts a state, and also returns the new one.
        rows: of such a cell, the tensors whose rows follow one another in each of `weight_ih_l0`, `weight_hh_l0` and
            `bias_ih_l0` of that layer.
    """

    kind: str
    layer: str = ""
    stateful: str = ""
    rows: tuple[tuple[str, ...], ...] = ()


@define(frozen=True)
class Traits:
    """Facts about one PyTorch class of modules that do not follow from its constructor's arguments.

    A layer changes its input in place if it has an argument `inplace` that is true.

    Attributes:
        takes_list: the input is a list.
        returns_list: the output is a list.
        flow: how it passes its input to the modules inside, and what it returns, as a function of `walk`, or one of the
            same form; without it the output is a tensor, or a list of anything.
        transparent: it does nothing besides what `flow` says: it computes, converts and keeps nothing itself, and has
            no method of its own. False also if that is not known.
        may_take_list: the input is a tensor, or a list whose second element is used for its size.
        shares_memory: the output may share memory with the input.
        copies: the output has memory of its own, though the expression named by `written` is a view.
        copying: the class with the same arguments whose output always has memory of its own, like Lua's layer.
        repeats: several elements of the output are the same memory.
        loses_batch: a single example may be returned without the batch dimension that it had.
        keeps_batch_if: the argument that prevents this if it is true.
        plain_examples: the positional arguments with which `Call.plain` accepts single examples too; `None` if it
            never does.
        plain_rank: minimum dimensions of one example for `Call.plain` to be used; below, it would refuse examples.
        written: how generated source expresses it without the class: the name of a method of `Idioms` in
            `codegen/idioms.py`, or of `Lists` in `codegen/flow.py`, and arguments for it; or `flow`, by its flow if no
            module inside keeps a state. Transparent classes always are.
        polynomial: how its output is written as a polynomial, by which cells are recognized: the name of a method of
            `Values` in `workshop/cells/values.py`, and arguments for it. Transparent classes follow their flow.
        features: the position of the argument that is the number of features that it returns, from 0.
        takes_tokens: its input consists of numbers of tokens; its first argument is how many different ones there are.
        block: the base name of its class if it becomes a class of the source.
        shapes: the shapes of its tensors by name, as a function of its arguments; it raises `Refused` where the
            constructor would raise. A module among the arguments has `tensors`, its own shapes. A class of
            `torchmodules/layers` that has tensors needs it, or `like`: generated source is checked by it.
        like: the class of torch.nn whose tensors and output shape it has, by the same arguments, as far as it has them.
        axes: the dimensions of its input, where `like` does not say them, of the letters b for the batch, c for the
            features, d, h and w for the sides of volumes and images, t for time, s for the steps of a recurrent layer:
            `bchw` for images.
        output: the shape of its output, if known otherwise: a rule of `output_shapes`.
        replay: its output in training from the fields of the object, the input, and the random numbers that Lua kept
            in `noise`.
        remembering: the class with the same arguments that remembers what a module referring to it needs.
        casts: its output has an element type of its own, which is an argument.
        typed: the class with the same arguments and `dtype`, which copies parts of several element types into one, as
            Lua's container does.
        own_gradient: its input has a gradient even where that of its output is zero: a penalty.
        connecting: the class with the same arguments that passes gradients of zeros to what it leaves out, as Lua does.
        is_identity: it returns its input and does nothing else.
        is_graph: its arguments are the nodes of the graph of its children.
        sequential_without: the argument with positions of modules inside, from 0: without these, which merge the steps
            of sequences into rows and split them again, it is a Sequential for (batch, steps, features).
        recurrent: what a recurrent layer or cell is in torch.nn.
        by_step: it is called once for each step of a sequence, and may keep something for the next.
        stacking: of a container that calls its modules for each step of a sequence, the class that calls them once for
            all steps of a list, as one tensor. They then get a dimension more.
        not_in_torch: of a layer over sequences, or a cell of one: why torch.nn has no such layer, as a function of its
            arguments; empty if it has.
        zeroes_rows: of a container: whether it only makes those rows of its output zero that are zero in its input,
            whatever the number of dimensions, as a function of its arguments.
        over_dim: the class of torch.nn that computes along the dimension that is its argument what this class computes
            along that of the features, which it finds by the number of dimensions.
    """

    takes_list: bool = False
    returns_list: bool = False
    flow: Flow | None = None
    transparent: bool = False
    may_take_list: bool = False
    shares_memory: bool = False
    copies: bool = False
    copying: str = ""
    repeats: bool = False
    loses_batch: bool = False
    keeps_batch_if: str = ""
    plain_examples: tuple[Any, ...] | None = None
    plain_rank: int = 0
    written: tuple[Any, ...] = ()
    polynomial: tuple[str, ...] = ()
    features: int | None = None
    takes_tokens: bool = False
    block: str = ""
    shapes: Callable[..., Mapping[str, Shape]] | None = None
    like: str = ""
    axes: str = ""
    output: Rule | None = None
    replay: Callable[[Fields, Any, Any], Any] | None = None
    remembering: str = ""
    casts: bool = False
    typed: str = ""
    own_gradient: bool = False
    connecting: str = ""
    is_identity: bool = False
    is_graph: bool = False
    sequential_without: str = ""
    recurrent: RecurrentLayer | None = None
    by_step: bool = False
    stacking: str = ""
    not_in_torch: Callable[[Arguments], str] | None = None
    zeroes_rows: Callable[[Arguments], bool] | None = None
    over_dim: str = ""

    @property
    def is_recurrent(self) -> bool:
        """Whether it is a recurrent layer, a cell, or a container that calls one for each step."""
        return self.recurrent is not None or bool(self.stacking) or self.not_in_torch is not None


@define(frozen=True)
class InLua:
    """Facts about one class of Lua: how it computes, and what it leaves in its fields.

    `prove` reads the first three; `nn/compounds` reads the others, by which it recognizes what Lua builds from layers.

    Attributes:
        tolerance: the largest difference of its outputs from exact ones, where Lua computes by an approximation; they
            may also differ by what is allowed for approximate functions in general. `None` if Lua only rounds.
        first_row: the number of the first row of its `weight`, for a class whose output consists of rows of it.
        unfolds: whether its field `finput` is the matrix that the weights are multiplied with, its unfolded input: a
            column for each position of the kernel.
        options: the fields that change what it computes, besides its tensors and the modules inside.
        like: the full name of another class that computes the same with the same options.
        commutes: whether the order of its inputs makes no difference.
        expressed: what it computes where that is more than a node with its options: an expression, of its fields and
            that node. It raises `LookupError` for what no pattern has.
    """

    tolerance: float | None = None
    first_row: int | None = None
    unfolds: bool = False
    options: tuple[str, ...] = ()
    like: str = ""
    commutes: bool = False
    expressed: Callable[[Fields, Any], Any] | None = None


_NO_TRAITS = Traits()
_TRAITS: dict[str, Traits] = {}
"""The facts about classes, by their dotted names."""


@cache
def traits_of(target: str) -> Traits:
    """Return the facts about a class by its dotted name; all false if no entry declares any."""
    if target not in _TRAITS and target.startswith(LAYERS):
        load_families()
    facts = _TRAITS.get(target, _NO_TRAITS)
    # A class like one of torch.nn has the output shape of that.
    output = facts.output or output_of(facts.like or target)
    return facts if output is facts.output else evolve(facts, output=output)


def like_of(target: str) -> str:
    """Return the class of torch.nn that a class is, or is like; its own name otherwise."""
    return traits_of(target).like or target.removeprefix("torch.nn.")


def tensor_shapes(target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Shape]:
    """Return the shapes of the parameters and buffers of a module constructed with these arguments, by name.

    Args:
        target: its class, by the dotted name.
        args: positional arguments.
        kwargs: arguments by keyword.

    Returns:
        Shapes by name; none if they are unknown.
    """
    shapes = traits_of(target).shapes
    # The arguments come from a file: the constructor may refuse them, and a user's function fail with them.
    try:
        if shapes is not None:
            return dict(shapes(*args, **kwargs))
        return tensors_like(like_of(target), args, kwargs)
    except (ArithmeticError, LookupError, Refused, TypeError, ValueError):
        return {}


def add_traits(traits: Mapping[str, Traits]) -> None:
    """Declare facts about classes that no entry declares, named as for `register_layer`.

    Raises:
        ModelError: other traits of a class are already declared.
    """
    _declare_traits(_by_dotted_name(traits, home=_caller()))


def _declare_traits(traits: Mapping[str, Traits]) -> None:
    """Declare facts about classes, by their dotted names.

    Raises:
        ModelError: other traits of a class are already declared.
    """
    for target, facts in traits.items():
        if _TRAITS.get(target, facts) != facts:
            raise ModelError(f"the traits of {target} are already declared", hint="One entry declares them.")
    _TRAITS.update(traits)
    traits_of.cache_clear()


def _by_dotted_name(traits: Mapping[str, Traits], home: str, targets: Iterable[str] = ()) -> dict[str, Traits]:
    """Return facts by the dotted names of their classes.

    `shape.View` is a class of the runtime if this package declares the facts, or if the entry becomes that class;
    otherwise it is of the user, who may have a file `shape.py`, too. A name after a dot is in the package of the module
    that declares the facts.

    Args:
        traits: the facts.
        home: the module that declares them.
        targets: the classes that the entry becomes.
    """
    is_ours = home.startswith(OURS)
    own_targets = set(targets)
    package = getattr(sys.modules.get(home), "__package__", None) or ""
    named: dict[str, Traits] = {}
    for name, facts in traits.items():
        says_package = name.startswith((".", "torch.", OURS))
        if not says_package and (is_ours or LAYERS + name in own_targets):
            named[LAYERS + name] = facts
        else:
            named[absolute_name(name, package)] = facts
    return named


def declared_traits() -> dict[str, Traits]:
    """Return all facts by class, sorted: for tests."""
    load_more()
    return dict(sorted(_TRAITS.items()))


@define(frozen=True)
class Source:
    """Location of a tensor in a Lua object.

    Attributes:
        path: its field, or a path of fields: `network.modules.1.weight`.
        layout: the steps from Lua's layout to PyTorch's.
    """

    path: str
    layout: Layout = ()


@define(frozen=True)
class Param:
    """One tensor of a layer's state dict.

    Attributes:
        name: its name in PyTorch.
        sources: its places in Lua; the first that exists is used.
        kind: `parameter` if learned, `buffer` if kept besides, `derived` if computed from other fields and not written
            back, `unused` if Lua keeps it but never reads it: it is named in a note and left out.
        make: computes it if it has no source; returns `None` if it is not wanted.
        note: a note for the user.
        adds_to: of a derived one, the parameter that it is added to on the way back, as Lua has one for the two.
    """

    name: str
    sources: tuple[Source, ...] = ()
    kind: str = "parameter"
    make: Callable[[Fields], Tensor | None] | None = field(default=None, repr=False)
    note: str = ""
    adds_to: str = ""


@define(frozen=True)
class Child:
    """A module inside a module.

    Attributes:
        name: its name in PyTorch: `0`, `forwardModule`.
        path: its place in Lua, as a step of a path: `.modules[1]`.
        value: its value; a module, in valid files.
        secondary: whether it is skipped if the object contains it at an earlier child too, at any depth.
    """

    name: str
    path: str
    value: Value
    secondary: bool = False


Children = Callable[[TorchObject], Iterator[Child]]
"""Finds the modules directly inside an object, in the order of Lua's `modules`."""


@define(frozen=True)
class ParamsOf:
    """The function that returns the tensors of an object, for a class whose objects differ in them. Made by `keeps`.

    Attributes:
        find: returns the tensors of one object.
        names: the possible names, with `*` for the varying part.
    """

    find: Callable[[Fields], tuple[Param, ...]]
    names: tuple[str, ...]

    def __call__(self, fields: Fields) -> tuple[Param, ...]:
        """Return the tensors of one object."""
        return self.find(fields)


def keeps(*names: str) -> Callable[[Callable[[Fields], tuple[Param, ...]]], ParamsOf]:
    """Declare the names of the tensors that a function for `params` of an entry may return, for the page of layers.

    Args:
        names: names in PyTorch, with `*` for the varying part: `weight_ih_l*`.

    Returns:
        A decorator of the function: from fields to the tensors of one object.
    """
    return lambda find: ParamsOf(find, names)


@define(frozen=True)
class Layer:
    """The entry of one Lua class, or of several that differ only in name.

    Attributes:
        names: full Lua class names.
        params: the tensors of its state dict, in PyTorch's order; a function if they depend on the fields.
        children: finds the modules inside; `None` for a class without.
        defaults: values of fields that older releases did not write.
        scratch: its fields with temporary tensors or modules, besides those of every class.
        kind: `layer`, `container` or `criterion`.
        note: a note for the user wherever the class occurs, or a function of the fields.
        remark: further text for the page of layers.
        modules: the PyTorch equivalents of the classes, by class name; a class without one has only a state dict.
        traits: further facts about these modules, by their class. See `Traits`.
        in_lua: facts about how Lua computes a class, by class name. See `InLua`.
        home: the dotted name of the module that registers it.
    """

    names: tuple[str, ...]
    params: tuple[Param, ...] | Callable[[Fields], tuple[Param, ...]] = ()
    children: Children | None = None
    defaults: Mapping[str, Any] = field(factory=dict, repr=False)
    scratch: frozenset[str] = frozenset()
    kind: str = "layer"
    note: str | Callable[[Fields], str] = ""
    remark: str = ""
    modules: Mapping[str, Mapped] = field(factory=dict, repr=False)
    traits: Mapping[str, Traits] = field(factory=dict, repr=False)
    in_lua: Mapping[str, InLua] = field(factory=dict, repr=False)
    home: str = ""

    def params_of(self, fields: Fields) -> tuple[Param, ...]:
        """Return the tensors of one object's state dict."""
        return self.params(fields) if callable(self.params) else self.params

    def note_of(self, fields: Fields) -> str:
        """Return the note on one object for users; empty if there is none, or its fields are damaged."""
        try:
            return self.note(fields) if callable(self.note) else self.note
        except ModelError:
            return ""

    def module_of(self, class_name: str) -> Mapped | None:
        """Return the PyTorch equivalent of one of its classes, or of an alias; `None` if there is none."""
        return self.modules.get(entry_name(class_name))

    @property
    def is_ours(self) -> bool:
        """Whether this package registered it, not a user."""
        return self.home.startswith(OURS)


_LAYERS: dict[str, Layer] = {}
"""The entries by class name; those of a Lua package from when a class of it was met, see `_loaded_entry`."""
_CLASSES: dict[str, type] = {}
"""Users' classes, by their dotted name in plans."""
_Class = TypeVar("_Class")

# Other packages' classes of the same name have the same fields (cudnn.torch, cunn, fbcunn, the rename of nn in 2012).
ALIAS_PREFIXES = ("cudnn.", "cunn.", "fbcunn.", "fbnn.")


def param(name: str, *steps: LayoutStep, field: str = "", kind: str = "parameter", note: str = "") -> Param:
    """Declare a tensor of the state dict that has one source.

    Args:
        name: its name in PyTorch.
        steps: from Lua's layout to PyTorch's.
        field: its field or path in Lua, if that is not `name`.
        kind: see `Param`.
        note: see `Param`.
    """
    return Param(name, sources=(Source(field or name, steps),), kind=kind, note=note)


def buffer(name: str, *steps: LayoutStep, field: str = "") -> Param:
    """Declare a tensor that is kept but not learned. See `param`."""
    return param(name, *steps, field=field, kind="buffer")


def register_layer(
    *names: str,
    params: tuple[Param, ...] | Callable[[Fields], tuple[Param, ...]] = (),
    children: Children | None = None,
    defaults: Mapping[str, Any] | None = None,
    scratch: str | tuple[str, ...] = (),
    kind: str = "",
    note: str | Callable[[Fields], str] = "",
    remark: str = "",
    module: Mapped | Mapping[str, Mapped] | None = None,
    traits: Traits | Mapping[str, Traits] | None = None,
    text: Text | Mapping[str, Text] | None = None,
    in_lua: InLua | Mapping[str, InLua] | None = None,
) -> Layer:
    """Register the meaning of a Lua class.

    Args:
        names: full Lua class names, `nn.Linear`; classes of that name in `ALIAS_PREFIXES` are included.
        params: the tensors of its state dict, in PyTorch's order.
        children: finds the modules inside: `modules`, `first_module`, `named_modules(…)` or a function of your own.
        defaults: values of missing fields.
        scratch: temporary fields, as a tuple or separated by spaces.
        kind: `layer`, `container` or `criterion`; by default derived from `children`, or the family of the module.
        note: a note for the user wherever the class occurs, or a function of the fields.
        remark: further text for the page of layers.
        module: the PyTorch equivalent of the classes: one for all, or by class name.
        traits: facts about these modules that do not follow from their arguments, by class: `shape.View` for one of
            `torchmodules/layers/`, the dotted name for others, `.modules.Scale` for one in the caller's package.
            Without a class they are those of the only one, or of the first that `becomes` declares.
        text: what Lua prints after the name of the class, as its `__tostring__`: a template of the fields,
            `({weight:2} -> {weight:1}){without}`, see `nn/texts.py`; a function of the fields; or `Printed`. By class
            name where classes of one entry differ.
        in_lua: how Lua computes the classes, where that is not exact, and what it leaves in their fields: one for all,
            or by class name.

    Raises:
        ModelError: a class, or its traits, are already registered.

    Example:
        >>> entry = register_layer("my.Scale", params=(param("scale", field="gain"),))
        >>> unregister_layer("my.Scale")
    """
    # Classes that have modules of their own need not be listed again.
    if isinstance(module, Mapping):
        names = (*names, *(name for name in module if name not in names))
    modules_by_name: Mapping[str, Mapped] = _by_class(module, names)
    targets_of_modules = [_targets_of(mapped) for mapped in modules_by_name.values()]
    first_target = next(iter(targets_of_modules[0]), "") if targets_of_modules else ""
    # Traits without a class; an entry without a module has no class for them.
    if isinstance(traits, Traits):
        traits = {first_target: traits} if first_target else {}
    home = _caller()  # says whose classes the names of `traits` are
    layer = Layer(
        names=names,
        params=params,
        children=children,
        defaults=defaults or {},
        scratch=frozenset(scratch.split() if isinstance(scratch, str) else scratch),
        kind=kind or _usual_kind(first_target, children),
        note=note,
        remark=remark,
        modules=modules_by_name,
        traits=_by_dotted_name(traits or {}, home, chain.from_iterable(targets_of_modules)),
        in_lua=_by_class(in_lua, names),
        home=home,
    )
    _check_unregistered(layer)
    _declare_traits(layer.traits)
    _LAYERS.update(dict.fromkeys(names, layer))
    # A class without a text has an empty one, so that it is known to have none.
    add_texts({**dict.fromkeys(names, ""), **_by_class(text, names)}, layer.defaults)
    return layer


def _by_class(value: Any, names: Iterable[str]) -> Mapping[str, Any]:
    """Return an argument of `register_layer` by class name, which is one for all classes or by class name already.

    Args:
        value: the argument; `None` for none.
        names: of the classes.
    """
    if isinstance(value, Mapping):
        return value
    return {} if value is None else dict.fromkeys(names, value)


def _targets_of(mapped: Mapped) -> tuple[str, ...]:
    """Return the classes of PyTorch that a mapping may return; none of a plain function, of which they are unknown."""
    return mapped.targets if isinstance(mapped, (Row, Choice)) else ()


def _check_unregistered(layer: Layer) -> None:
    """Refuse an entry if one of its classes has one.

    Raises:
        ModelError: a class is already registered.
    """
    for name in layer.names:
        # A user's name may be in a package of ours that is not loaded yet. Of two of ours with the same name, the one
        # that is loaded last finds the other. What others have installed is not loaded for this check: it may be such a
        # package that is registering its classes now.
        if name in _LAYERS or (not layer.is_ours and _loaded_entry(name, installed=False) is not None):
            raise ModelError(
                f"the class {name} is already registered", hint="Call unregister_layer first to replace it."
            )


def _usual_kind(target: str, children: Children | None) -> str:
    """Return the kind of a class that states none, by its class in PyTorch and whether it has modules inside."""
    if target.startswith(f"{LAYERS}criterion."):
        return "criterion"
    return "container" if children else "layer"


def _caller() -> str:
    """Return the dotted name of the module that called a function of this file, as `collections.namedtuple` does it."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")) if frame is not None else ""


def register_module(
    *names: str,
    params: tuple[Param, ...] | Callable[[Fields], tuple[Param, ...]] = (),
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    children: Children | None = None,
    defaults: Mapping[str, Any] | None = None,
    scratch: str | tuple[str, ...] = (),
    kind: str = "",
    note: str = "",
    traits: Traits | None = None,
    text: Text | None = None,
) -> Callable[[type[_Class]], type[_Class]]:
    """Register a class of yours as the meaning of a Lua class: for its state dict, live module and source.

    Args:
        names: full Lua class names.
        params: the tensors of its state dict, by their names in the class.
        args: the sources of the constructor's positional arguments: results of `number("field")`, `integer`, `flag`,
            `sizes`, `extent("weight", 0)` and others of `t7bridge.layers`, or plain values.
        kwargs: arguments by keyword, likewise.
        children: see `register_layer`. The modules are passed to the constructor: those named `0`, `1`, … in this order
            before `args`, others by keyword.
        defaults: see `register_layer`.
        scratch: see `register_layer`.
        kind: see `register_layer`.
        note: see `register_layer`.
        traits: facts that do not follow from the arguments: whether it accepts or returns a list, whether its output
            may share memory with its input, the shapes of its tensors. See `t7bridge.layers.Traits`.
        text: see `register_layer`.

    Returns:
        A decorator for a subclass of `torch.nn.Module` at the top level of a module, so that generated source can
        import it.

    Raises:
        ModelError: a Lua class is already registered, or the class is not at the top level of its module; raised by the
            decorator.

    Example:
        >>> @register_module("my.Twice", args=(2.0,))
        ... class Twice:
        ...     "A subclass of torch.nn.Module."
        >>> unregister_layer("my.Twice")
    """

    def decorate(class_: type[_Class]) -> type[_Class]:
        """Register the class, and return it."""
        if "." in class_.__qualname__:
            raise ModelError(
                f"{class_.__qualname__} is defined inside something else",
                hint="Define the class at the top level of its module, where others can import it.",
            )
        target = f"{class_.__module__}.{class_.__qualname__}"
        register_layer(
            *names,
            params=params,
            children=children,
            defaults=defaults,
            scratch=scratch,
            kind=kind,
            note=note,
            module=Row(target, args, kwargs or {}),
            traits={target: traits} if traits is not None else None,
            text=text,
        )
        _CLASSES[target] = class_
        return class_

    return decorate


def class_of(target: str) -> type | None:
    """Return the class registered by `register_module` under a dotted name; `None` if there is none."""
    return _CLASSES.get(target)


def unregister_layer(name: str) -> None:
    """Unregister a Lua class; its objects are treated as those of an unknown class again.

    Args:
        name: its full name; nothing happens if it has no entry.
    """
    layer = _loaded_entry(name)
    _LAYERS.pop(name, None)
    remove_text(name)
    # The traits of the entry's PyTorch classes go with its last name.
    if layer is not None and all(other is not layer for other in _LAYERS.values()):
        for target in layer.traits:
            _TRAITS.pop(target, None)
        traits_of.cache_clear()


def entry_name(class_name: str) -> str:
    """Return the name under which the table has a class: `nn.Tanh` for `cudnn.Tanh`.

    A class that is not listed itself is `nn.<name>` if its package is one of `ALIAS_PREFIXES` and that name is listed.
    Any other class, listed or not, has its own full name: a class of another package is never one of nn because the
    two are called alike.
    """
    if class_name in _LAYERS or not class_name.startswith(ALIAS_PREFIXES):
        return class_name
    in_nn = "nn." + class_name.partition(".")[2]
    is_listed_in_nn = _loaded_entry(in_nn) is not None
    # Only now: the entries that this has loaded may be those of the class itself, as of cudnn.LSTM.
    is_listed_itself = class_name in _LAYERS
    return in_nn if is_listed_in_nn and not is_listed_itself else class_name


def _loaded_entry(name: str, *, installed: bool = True) -> Layer | None:
    """Return the entry under a name; if none is loaded, the packages that may have it are imported first.

    Args:
        name: full name of a class in Lua.
        installed: whether Python packages that the user has installed, and that add layers, are asked for it, too.

    Returns:
        `None` if none of them has the class.
    """
    if name not in _LAYERS:
        load_more(name, installed)
    return _LAYERS.get(name)


def layer_of(class_name: str) -> Layer | None:
    """Return the entry of a class; `None` if there is none.

    A class that is not listed itself has the entry of `nn.<name>` if its package is one of `ALIAS_PREFIXES`.
    """
    return _loaded_entry(entry_name(class_name))


def stock_name(value: Value) -> str:
    """Return the full class name under which this package's own table has an object: `nn.Tanh` of a `cudnn.Tanh`.

    Returns:
        Empty for any other value: a class without an entry, or with one that a user registered.
    """
    if not isinstance(value, TorchObject):
        return ""
    layer = layer_of(value.class_name)
    return entry_name(value.class_name) if layer is not None and layer.is_ours else ""


def in_lua_of(obj: TorchObject) -> InLua:
    """Return how Lua computes an object, and what it leaves in its fields; nothing special for an unknown class."""
    return in_lua(obj.class_name)


def in_lua(class_name: str) -> InLua:
    """Return how Lua computes a class, and what it leaves in the fields of its objects."""
    layer = layer_of(class_name)
    facts = layer.in_lua.get(entry_name(class_name)) if layer is not None else None
    return facts or _IN_LUA


_IN_LUA = InLua()


@cache
def _field_names() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Return the parents of each class in `field_names.txt`, and the names of its own fields; the file is read once.

    A class is one of Lua, or of PyTorch by its dotted name; `torch` has the names common to PyTorch's.
    """
    text = words_beside(__file__, "field_names.txt")
    rows = {}
    for line in text.replace("\n  ", " ").splitlines():  # an indented line continues the one before
        # `cudnn.ClippedReLU < cudnn._Pointwise : ceiling`
        head, colon, names = line.partition(" :")
        if colon and not line.startswith("#"):
            class_name, *parents = head.replace(" <", "").split()
            rows[class_name] = frozenset(parents), frozenset(names.split())
    return rows


def own_names(class_name: str) -> frozenset[str]:
    """Return the names of the fields that a class sets itself, and its parents.

    Args:
        class_name: of Lua, or dotted, of PyTorch. An unknown class sets what each module has. If `field_names.txt` has
            rows neither for a class with an entry of ours nor for it in other packages, the names of all classes count.
    """
    rows = _field_names()
    if class_name.startswith("torch."):
        _, names_of_all = rows["torch"]
        # A row of a class of PyTorch has all its names: none has parents.
        _, names_of_class = rows.get(class_name, (frozenset(), frozenset()))
        return names_of_all | names_of_class
    own_fields: set[str] = set()
    visited: set[str] = set()
    waiting = ["nn.Module", *_classes_with_fields_of(class_name)]
    while waiting:
        name = waiting.pop()
        if name in visited or name not in rows:
            continue
        visited.add(name)
        parents, names = rows[name]
        own_fields |= names
        waiting += parents
    return frozenset(own_fields)


def _classes_with_fields_of(class_name: str) -> list[str]:
    """Return the classes of Lua whose rows in `_field_names` have the fields of a class; not all need have a row.

    These are the class itself and, if its entry is ours, the same class of other packages; all classes with a row if
    none of these has one. A name may come twice.
    """
    layer = layer_of(class_name)
    # Another author's class may set other fields than one of the same name: what it has is not taken for known.
    if layer is None or not layer.is_ours:
        return [class_name]
    # One entry may list the same class of several packages: nn.TemporalConvolution and cudnn's.
    dot_and_name = "." + class_name.partition(".")[2]
    classes = [class_name]
    classes += [name for name in (entry_name(class_name), *layer.names) if name.endswith(dot_and_name)]
    rows = _field_names()
    if not any(name in rows for name in classes):
        # What the class sets is unknown: it may be any field that another class of Lua sets. The rows of PyTorch are
        # `torch` and `torch.nn.…`; Lua's package torch has no layers.
        classes += [name for name in rows if not name.startswith("torch")]
    return classes


def registered_layers() -> dict[str, Layer]:
    """Return all entries by class name, in registration order: for documentation and tests."""
    load_more()
    return dict(_LAYERS)


# How children are found


def _children_at(obj: TorchObject, *paths: str, name: str = "") -> Iterator[Child]:
    """Yield the children at the first path where there is a value that is no empty list.

    Args:
        obj: the object that holds them.
        paths: of fields, as for `fields.lookup`: `net.modules`.
        name: of a single child, which has a path to itself or is the only element of a list; by default a single child
            is `0`, and the elements of a list are named from `0` on.
    """
    for path in paths:
        value = lookup(obj, path)
        if value is None:
            continue
        step = path_steps(path)
        items = items_of(value)
        if items is None:
            yield Child(name or "0", step, value)
            return
        for number, item in enumerate(items):
            yield Child(name or str(number), f"{step}[{number + 1}]", item)  # Lua counts from 1
        if items:
            return


def children_at(*paths: str, name: str = "") -> Children:
    """Return a function for the children at the first of some paths where there is a value that is no empty list.

    Args:
        paths: as for `fields.lookup`: `net.modules`.
        name: of the only child, where a path leads to one module or a list of one. By default a module is named `0`,
            and those of a list from `0` on.
    """
    return lambda obj: _children_at(obj, *paths, name=name)


_CHILDREN_THAT_RUN: dict[str, Children] = {}
"""Functions for the modules of classes that run them from other fields than `modules`."""


def run_elsewhere(functions: Mapping[str, Children]) -> None:
    """Declare classes that hold in other fields what they run, besides `modules`, by functions for these modules."""
    _CHILDREN_THAT_RUN.update(functions)


@define(frozen=True)
class Recording:
    """How Lua runs a class and what it keeps of a pass, where that does not follow from the PyTorch module.

    Attributes:
        flow: how the elements of `modules` get their inputs in Lua, if PyTorch's class has none of these inside, or
            others; `walk.unknown` if their inputs cannot be said.
        transparent: whether Lua's class does nothing besides; see `Traits.transparent`.
        inputs: the fields that hold the inputs of modules inside, by the names of these.
        states: of a cell that runs copies of one module, one for each step: the fields of each state that is passed
            from step to step, and of its first value if the user sets it.
        first_step: the field of the module that runs the first step instead of a copy.
        places: the numbers of the elements of `modules` that hold the weights of modules inside these copies, by the
            paths from the object to what ran.
        over_sequences: its input is a whole sequence, though it keeps outputs as a cell does.
        restores_input: working in place, it undoes its change of the input when it runs backwards.
    """

    flow: Flow | None = None
    transparent: bool = False
    inputs: Mapping[str, str] = field(factory=dict)
    states: tuple[tuple[str, str], ...] | None = None
    first_step: str = ""
    places: Mapping[str, int] = field(factory=dict)
    over_sequences: bool = False
    restores_input: bool = False


_RECORDINGS: dict[str, Recording] = {}
_PLAIN_RECORDING = Recording()


def declare_recordings(recordings: Mapping[str, Recording]) -> None:
    """Declare what Lua's classes keep of a pass, by the names of their entries."""
    _RECORDINGS.update(recordings)


def recording_of(obj: TorchObject) -> Recording:
    """Return what an object's class keeps of a pass; nothing special for classes of users."""
    return _RECORDINGS.get(stock_name(obj), _PLAIN_RECORDING)


def modules(obj: TorchObject) -> Iterator[Child]:
    """Yield the modules that Lua runs: the elements of `modules`, named from `0` on, but for `run_elsewhere`."""
    return _CHILDREN_THAT_RUN.get(obj.class_name, listed_modules)(obj)


def listed_modules(obj: TorchObject) -> Iterator[Child]:
    """Yield the elements of `modules`; of older decorators, `module`."""
    return _children_at(obj, "modules", "module")


def first_module(obj: TorchObject) -> Iterator[Child]:
    """Yield the first element of `modules`; the others are its copies, with the same weights."""
    return islice(modules(obj), 1)


def run_from(*fields: str) -> Children:
    """Return a function for the elements of `modules`, where Lua runs those that fields hold.

    Constructors put the same module into both; `replace()` of nn reaches only the elements of `modules`, so that Lua
    goes on to run the module that was replaced.

    Args:
        fields: the field of each element, in order; other names of one are separated by `|`, in the order in which
            Lua looks for them.
    """

    def find(obj: TorchObject) -> Iterator[Child]:
        """Yield the elements of `modules`, in whose places are those modules that fields hold."""
        children = list(listed_modules(obj))
        for number, names in enumerate(fields):
            present = [name for name in names.split("|") if isinstance(obj.get(name), TorchObject)]
            if not present:
                continue
            name = present[0]
            running = Child(str(number), f".{name}", obj.get(name))
            # Children have consecutive numbers: after one that a damaged file has in neither place, none is added.
            if number == len(children):
                children.append(running)
            elif number < len(children) and children[number].value is not running.value:
                children[number] = running
        yield from children

    return find


def criterions(obj: TorchObject) -> Iterator[Child]:
    """Yield the elements of `criterions`, named from `0` on."""
    return _children_at(obj, "criterions")


def named_modules(*names: str) -> Children:
    """Return a function for children that each have a field of their own, whose name they keep in PyTorch.

    Args:
        names: of the fields, in the order of the children; those that an object lacks are skipped.
    """

    def find(obj: TorchObject) -> Iterator[Child]:
        for name in names:
            value = obj.get(name)
            if value is not None:
                yield Child(name, f".{name}", value)

    return find


_loaded_files: dict[str, ModuleType] = {}
"""The modules of `load_classes`, by the real paths of their files or folders."""


def load_classes(path: PathLike) -> None:
    """Run a Python file, or import a package, that registers classes, once in a process.

    It is the caller's program, and is trusted; see `docs/own-layers.md`. Its module has the name of the file or folder,
    so that generated source can import it.

    Args:
        path: of the file, or of the folder that has the package's `__init__.py`.

    Raises:
        ModelError: the file does not exist or fails, or has the name of another module.
    """
    file = os.fspath(path)
    real_path = os.path.realpath(file)
    add_input(file)  # no output of the call may replace it
    if real_path in _loaded_files:
        return
    module, loader = _new_module(file, real_path)
    # Before it runs, as its classes look up their module, and a package imports its own files.
    sys.modules[module.__name__] = module
    try:
        loader.exec_module(module)
    except Exception as error:
        del sys.modules[module.__name__]
        # The program may fail with an error about another file.
        if isinstance(error, OSError) and error.filename == module.__file__:
            raise ModelError(f"the file with registrations cannot be read: {error.strerror}", file=file) from error
        raise ModelError(f"the file with registrations fails: {type(error).__name__}: {error}", file=file) from error
    _loaded_files[real_path] = module


def _new_module(file: str, real_path: str) -> tuple[ModuleType, Loader]:
    """Return the module of a file or package, which is still empty, and what runs the file in it.

    Args:
        file: the path as the user has it, whose last step is the module's name.
        real_path: the file, or the folder of the package.

    Raises:
        ModelError: it has the name of another module, or is no Python file.
    """
    module_name, _ = os.path.splitext(os.path.basename(os.path.normpath(file)))
    if module_name in sys.modules or not module_name.isidentifier():
        raise ModelError(
            "a file with registrations cannot have this name", file=file, expected="a name that no other module has"
        )
    source = real_path
    package_folders = None
    if os.path.isdir(real_path):
        source = os.path.join(real_path, "__init__.py")
        package_folders = [real_path]
    import importlib.util  # not needed by most runs

    spec = importlib.util.spec_from_file_location(module_name, source, submodule_search_locations=package_folders)
    if spec is None or spec.loader is None:
        raise ModelError("is not a Python file", file=file, expected="a name that ends in .py")
    return importlib.util.module_from_spec(spec), spec.loader
