"""Lua modules as data: constructor calls, weights, children and graphs, from which objects and source are made."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from attrs import field

from ..data import define

Value = TypeVar("Value", bound="Arithmetic[Any]")


class Arithmetic(Generic[Value]):
    """Operators of values and of layers: `x * y + 1` is the layers that compute it; `x >> layer` applies a layer."""

    @property
    def _value(self) -> Value:
        return self  # type: ignore[return-value]

    def __rshift__(self, layer: LuaLayer) -> Value:
        """Apply a layer."""
        raise NotImplementedError

    def joined(self, name: str, other: Any, swapped: bool = False) -> Value:
        """Apply a layer that takes a table of two: this and another value, or the other first."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Value:
        if not isinstance(other, (int, float)):
            return self.joined("nn.CAddTable", other)
        return self >> make("nn.AddConstant", other) if other else self._value

    def __mul__(self, other: Any) -> Value:
        if not isinstance(other, (int, float)):
            return self.joined("nn.CMulTable", other)
        return self >> make("nn.MulConstant", other) if other != 1 else self._value

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Value:
        return self * -1

    def __sub__(self, other: Any) -> Value:
        return self + -other if isinstance(other, (int, float)) else self.joined("nn.CSubTable", other)

    def __rsub__(self, other: Any) -> Value:
        return -self + other if isinstance(other, (int, float)) else self.joined("nn.CSubTable", other, True)

    def __truediv__(self, other: Any) -> Value:
        return self * (1 / other) if isinstance(other, (int, float)) else self.joined("nn.CDivTable", other)

    def __rtruediv__(self, other: Any) -> Value:
        return self**-1 * other if isinstance(other, (int, float)) else self.joined("nn.CDivTable", other, True)

    def __pow__(self, exponent: float) -> Value:
        if exponent == 1:
            return self._value
        return self >> {2: make("nn.Square"), 0.5: make("nn.Sqrt")}.get(exponent, make("nn.Power", exponent))


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

    def resized(self, size: tuple[int, ...]) -> WeightRef:
        """Return the same elements in another shape."""
        return WeightRef(self.key, self.start, tuple(size), self.transposed)


@define(eq=False)
class LuaLayer(Arithmetic["LuaLayer"]):
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

    def __rshift__(self, layer: LuaLayer) -> LuaLayer:
        """Return a chain of both."""
        return layer if self.name == "nn.Identity" else sequential(*_chain(self), *_chain(layer))

    def joined(self, name: str, other: Any, swapped: bool = False) -> LuaLayer:
        """Return the layers that apply both to one input and join their outputs."""
        pair = [other, self] if swapped else [self, other]
        return LuaLayer("nn.ConcatTable", children=pair) >> make(name)


@define(eq=False)
class LuaNode(Arithmetic["LuaNode"]):
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

    def __rshift__(self, layer: LuaLayer) -> LuaNode:
        """Return a node that applies a layer to this one."""
        return LuaNode(layer, [self])

    def joined(self, name: str, other: Any, swapped: bool = False) -> LuaNode:
        """Return a node of both."""
        return LuaNode(make(name), [other, self] if swapped else [self, other])


def make(name: str, *args: Any, calls: Any = (), **weights: WeightRef | None) -> LuaLayer:
    """Return a layer without children.

    Args:
        name: of the class.
        args: of the constructor.
        calls: methods with their arguments.
        weights: fields of the state dict; those that are `None` are left out.
    """
    return LuaLayer(name, args, calls, {field: ref for field, ref in weights.items() if ref is not None})


def same() -> LuaLayer:
    """Return an `nn.Identity`, where the formula of a layer begins: `same() * make("nn.Sigmoid")`."""
    return make("nn.Identity")


def sequential(*layers: LuaLayer) -> LuaLayer:
    """Return an `nn.Sequential`; a single layer is returned unchanged."""
    return layers[0] if len(layers) == 1 else LuaLayer("nn.Sequential", children=list(layers))


def _chain(layer: LuaLayer) -> list[LuaLayer]:
    return layer.children if layer.name == "nn.Sequential" else [layer]


def graph_of(inputs: list[LuaNode], *outputs: LuaNode) -> LuaLayer:
    """Return an `nn.gModule` of the nodes that lead from the inputs to the outputs."""
    steps = {id(node): node for node in inputs}
    stack = [*reversed(outputs)]
    while stack:
        node = stack[-1]
        waiting = [source for source in node.inputs if id(source) not in steps]
        stack.extend(reversed(waiting))
        if not waiting:
            steps[id(stack.pop())] = node
    return LuaLayer("nn.gModule", inputs=len(inputs), steps=list(steps.values()), outputs=list(outputs))


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
