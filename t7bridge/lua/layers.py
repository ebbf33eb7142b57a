"""Lua modules as data: constructor calls, weights, children and graphs, from which objects and source are made."""

from __future__ import annotations

from typing import Any

from attrs import field

from ..data import define


@define(frozen=True)
class WeightRef:
    """A part of a tensor of the PyTorch state dict, as a field of a Lua module holds it.

    Attributes:
        key: the key in the state dict.
        start: of the first element in the tensor, in elements, 0-based.
        size: the shape in Lua; the elements are a contiguous run.
        transposed: whether the last two dimensions of the tensor are exchanged in Lua.
    """

    key: str
    start: int
    size: tuple[int, ...]
    transposed: bool = False


@define(eq=False)
class LuaLayer:
    """One nn module: a constructor call, methods called on the result, weights and children.

    Attributes:
        name: the Lua class, `nn.Linear`.
        args: arguments of the constructor: numbers, booleans, strings, `None`, tuples (Lua tables), arrays (tensors).
        calls: methods called after construction: name and arguments.
        weights: the fields that come from the state dict.
        children: the modules added, in order.
        inputs: the number of inputs of an `nn.gModule`.
        steps: the nodes of an `nn.gModule`, in order; empty for other classes.
        outputs: the nodes whose values an `nn.gModule` returns.
        path: the PyTorch module that it came from, `layer1.0.conv1`; for comments.
    """

    name: str
    args: tuple[Any, ...] = ()
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    weights: dict[str, WeightRef] = field(factory=dict)
    children: list[LuaLayer] = field(factory=list)
    inputs: int = 0
    steps: list[LuaNode] = field(factory=list)
    outputs: list[LuaNode] = field(factory=list)
    path: str = ""


@define(eq=False)
class LuaNode:
    """A node of a graph: a layer applied to the values of other nodes.

    Attributes:
        layer: the layer; `None` for an input of the graph.
        inputs: the nodes whose values it uses, in order.
        shape: of its value: integers, and text for the extent of the batch.
        stack: the PyTorch module calls it belongs to, outermost first.
        index: of an input node, its index among the inputs, 0-based.
    """

    layer: LuaLayer | None
    inputs: list[LuaNode] = field(factory=list)
    shape: tuple[int | str, ...] = ()
    stack: tuple[str, ...] = ()
    index: int = 0


def make(name: str, *args: Any, calls: Any = (), **weights: Any) -> LuaLayer:
    """Return a layer without children; `calls` are methods with their arguments, `weights` fields of the state dict."""
    return LuaLayer(name, args, calls, weights)


def sequential(*layers: LuaLayer) -> LuaLayer:
    """Return an `nn.Sequential`; a single layer is returned unchanged."""
    return layers[0] if len(layers) == 1 else LuaLayer("nn.Sequential", children=list(layers))


def branches(join: LuaLayer, *layers: LuaLayer) -> LuaLayer:
    """Return a Sequential that applies layers to the same input and joins their outputs."""
    return sequential(LuaLayer("nn.ConcatTable", children=list(layers)), join)


def walk(layer: LuaLayer) -> list[LuaLayer]:
    """Return a layer and all layers inside it, parents first, in the order of Lua's `listModules`."""
    found: list[LuaLayer] = []
    stack = [layer]
    while stack:
        item = stack.pop()
        found.append(item)
        inside = [step.layer for step in item.steps if step.layer is not None] or item.children
        stack.extend(reversed(inside))
    return found
