"""The table of Lua layers: the tensors of each class, their layouts, and its children.

An entry is data and works in both directions: forwards to make a state dict, backwards to put one into a Lua model.
May import graph and errors. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from attrs import evolve, field

from ..data import define
from ..errors import ModelError
from ..graph.lua import TorchObject, Value
from ..graph.tensor import Tensor
from .fields import Fields, items_of, lookup
from .mapping import Mapped, Row
from .plan.names import is_free_name
from .traits import Traits, add_traits, remove_traits
from .weights.layouts import Layout, LayoutStep


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
        secondary: whether it is skipped if the object already contained it under another name.
    """

    name: str
    path: str
    value: Value
    secondary: bool = False


Children = Callable[[TorchObject], Iterator[Child]]
"""Finds the modules directly inside an object, in the order of Lua's `modules`."""


@define(frozen=True)
class ParamsOf:
    """The tensors of a class whose objects differ in them. Made by `keeps`.

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
    """Declare the names of the tensors that a function of fields may return.

    Args:
        names: names in PyTorch, with `*` for the varying part: `weight_ih_l*`.

    Returns:
        A decorator.
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
        traits: further facts about these modules, by their class. See `traits.Traits`.
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
        return self.modules.get(class_name) or self.modules.get("nn." + class_name.partition(".")[2])


_LAYERS: dict[str, Layer] = {}
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
    return Param(name, (Source(field or name, steps),), kind, None, note)


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
    traits: Mapping[str, Traits] | None = None,
) -> Layer:
    """Register the meaning of a Lua class.

    Args:
        names: full Lua class names, `nn.Linear`; classes of that name in `ALIAS_PREFIXES` are included.
        params: the tensors of its state dict, in PyTorch's order.
        children: finds the modules inside: `modules`, `first_module`, `named_modules(…)` or a function of your own.
        defaults: values of missing fields.
        scratch: temporary fields, as a tuple or separated by spaces.
        kind: `layer`, `container` or `criterion`; by default derived from `children`.
        note: a note for the user wherever the class occurs, or a function of the fields.
        remark: further text for the page of layers.
        module: the PyTorch equivalent of the classes: one for all, or by class name.
        traits: facts about these modules that do not follow from their arguments, by class: `shape.View` for one of
            `torchmodules/layers/`, the dotted name for others.

    Raises:
        ModelError: a class, or its traits, are already registered.

    Example:
        >>> entry = register_layer("my.Scale", params=(param("scale", field="gain"),))
        >>> unregister_layer("my.Scale")
    """
    words = scratch.split() if isinstance(scratch, str) else scratch
    if isinstance(module, Mapping):
        names = (*names, *(name for name in module if name not in names))
        mapped: Mapping[str, Mapped] = module
    else:
        mapped = dict.fromkeys(names, module) if module is not None else {}
    kind = kind or ("container" if children else "layer")
    layer = Layer(
        names,
        params,
        children,
        defaults or {},
        frozenset(words),
        kind,
        note,
        remark,
        mapped,
        traits or {},
        home=sys._getframe(1).f_globals.get("__name__", ""),  # as collections.namedtuple finds it
    )
    for name in names:
        if name in _LAYERS:
            raise ModelError(
                f"the class {name} is already registered", hint="Call unregister_layer first to replace it."
            )
    add_traits(layer.traits)
    _LAYERS.update(dict.fromkeys(names, layer))
    return layer


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
) -> Callable[[type[_Class]], type[_Class]]:
    """Register a class of yours as the meaning of a Lua class: for its state dict, live module and source.

    Args:
        names: full Lua class names.
        params: the tensors of its state dict, by their names in the class.
        args: the sources of the constructor's positional arguments: results of `number("field")`, `integer`, `flag`,
            `sizes`, `extent("weight", 0)` and others of `t7bridge.layers`, or plain values. None if there are
            children, which come first.
        kwargs: arguments by keyword, likewise.
        children: see `register_layer`; the modules are passed to the constructor, those with names by keyword.
        defaults: see `register_layer`.
        scratch: see `register_layer`.
        kind: see `register_layer`.
        note: see `register_layer`.
        traits: facts that do not follow from the arguments: whether it accepts or returns a list, whether its output
            may share memory with its input, the shapes of its tensors. See `t7bridge.layers.Traits`.

    Returns:
        A decorator for a subclass of `torch.nn.Module` at the top level of a module, so that generated source can
        import it.

    Raises:
        ModelError: a Lua class is already registered, or the class is not at the top level of its module.

    Example:
        >>> @register_module("my.Twice", args=(2.0,))
        ... class Twice:
        ...     "A subclass of torch.nn.Module."
        >>> unregister_layer("my.Twice")
    """

    def decorate(class_: type[_Class]) -> type[_Class]:
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
        )
        _CLASSES[target] = class_
        return class_

    return decorate


def class_of(target: str) -> type | None:
    """Return the class registered by `register_module` under a dotted name; `None` if there is none."""
    return _CLASSES.get(target)


def unregister_layer(name: str) -> None:
    """Unregister a class; its objects are treated as those of an unknown class again."""
    layer = _LAYERS.pop(name, None)
    if layer is not None and all(other is not layer for other in _LAYERS.values()):
        remove_traits(layer.traits)


def layer_of(class_name: str) -> Layer | None:
    """Return the entry of a class; `None` if there is none.

    A class that is not listed itself has the entry of `nn.<name>` if its package is one of `ALIAS_PREFIXES`.
    """
    layer = _LAYERS.get(class_name)
    if layer is None and class_name.startswith(ALIAS_PREFIXES):
        layer = _LAYERS.get("nn." + class_name.partition(".")[2])
    return layer


def registered_layers() -> dict[str, Layer]:
    """Return all entries by class name, in registration order: for documentation and tests."""
    return dict(_LAYERS)


# How children are found


def _listed(obj: TorchObject, name: str) -> Iterator[Child]:
    listed = obj.get(name)
    items = items_of(listed)
    if items is None and listed is not None:
        yield Child("0", f".{name}", listed)  # in a damaged file: not a list
    for number, value in enumerate(items or (), 1):
        yield Child(str(number - 1), f".{name}[{number}]", value)


def modules(obj: TorchObject) -> Iterator[Child]:
    """Yield the elements of `modules`, named from `0` on; of older decorators, `module`."""
    found = False
    for child in _listed(obj, "modules"):
        found = True
        yield child
    if not found and obj.get("module") is not None:
        yield Child("0", ".module", obj.get("module"))


def first_module(obj: TorchObject) -> Iterator[Child]:
    """Yield the first element of `modules`; the others are its copies, with the same weights."""
    for child in modules(obj):
        yield child
        return


def criterions(obj: TorchObject) -> Iterator[Child]:
    """Yield the elements of `criterions`, named from `0` on."""
    yield from _listed(obj, "criterions")


def named_modules(*names: str) -> Children:
    """Return a function for children that each have a field of their own, whose name they keep in PyTorch."""

    def find(obj: TorchObject) -> Iterator[Child]:
        for name in names:
            value = obj.get(name)
            if value is not None:
                yield Child(name, f".{name}", value)

    return find


def graph_modules(obj: TorchObject) -> Iterator[Child]:
    """Yield the modules of a graph in the order of execution: `modules`, or as nngraph fills it from the forward nodes.

    A module is named by the annotation of its first node, if that is a valid and unique name in PyTorch;
    the others by their position. Source: nngraph 3ed3b9b `gmodule.lua` `__init__`; files before 2015-10-16 have no
    `modules`.
    """
    nodes = items_of(obj.get("forwardnodes")) or ()
    names: dict[int, str] = {}
    for node in nodes:
        module, label = lookup(node, "data.module"), lookup(node, "data.annotations.name")
        if module is not None and isinstance(label, bytes) and id(module) not in names:
            names[id(module)] = label.decode("utf-8", "replace")
    usable = {key: name for key, name in names.items() if is_free_name(name) and [*names.values()].count(name) == 1}
    found = False
    for child in modules(obj):
        found = True
        yield evolve(child, name=usable.pop(id(child.value), child.name))
    if found:
        return
    position = 0
    for number, node in enumerate(nodes, 1):
        module = lookup(node, "data.module")
        if module is not None:
            name = usable.pop(id(module), str(position))
            yield Child(name, f".forwardnodes[{number}].data.module", module)
            position += 1
