"""Lua modules as data: constructor calls, weights, children and graphs, from which objects and source are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from attrs import field

from ...data import define, np

Value = TypeVar("Value", bound="Arithmetic[Any]")


class Arithmetic(Generic[Value]):
    """Operators of values and of layers: `x * y + 1` is the layers that compute it; `x >> layer` applies a layer."""

    @property
    def _value(self) -> Value:
        return self  # type: ignore[return-value]

    def __rshift__(self, layer: LuaLayer) -> Value:
        """Apply a layer."""
        raise NotImplementedError

    def combine(self, name: str, other: Any, swapped: bool = False) -> Value:
        """Apply a layer that takes a table of two: this and another value, or the other first."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Value:
        if not isinstance(other, (int, float)):
            return self.combine("nn.CAddTable", other)
        if other == 0:
            return self._value
        return self >> make("nn.AddConstant", other)

    def __mul__(self, other: Any) -> Value:
        if not isinstance(other, (int, float)):
            return self.combine("nn.CMulTable", other)
        if other == 1:
            return self._value
        return self >> make("nn.MulConstant", other)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Value:
        return self * -1

    def __sub__(self, other: Any) -> Value:
        if isinstance(other, (int, float)):
            return self + -other
        return self.combine("nn.CSubTable", other)

    def __rsub__(self, other: Any) -> Value:
        if isinstance(other, (int, float)):
            difference: Value = -self + other
            return difference
        return self.combine("nn.CSubTable", other, swapped=True)

    def __truediv__(self, other: Any) -> Value:
        if isinstance(other, (int, float)):
            return self * (1 / other)
        return self.combine("nn.CDivTable", other)

    def __rtruediv__(self, other: Any) -> Value:
        if isinstance(other, (int, float)):
            quotient: Value = self**-1 * other
            return quotient
        return self.combine("nn.CDivTable", other, swapped=True)

    def __pow__(self, exponent: float) -> Value:
        """Raise to a power that is a number: 1, 2 and 0.5 have layers of their own, or none."""
        if exponent == 1:
            return self._value  # itself, without a layer
        if exponent == 2:
            return self >> make("nn.Square")
        if exponent == 0.5:
            return self >> make("nn.Sqrt")
        return self >> make("nn.Power", exponent)


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
        steps: the nodes of an `nn.gModule`, in order; empty for other classes.
        outputs: the nodes whose values an `nn.gModule` returns.
        path: the PyTorch module that it came from, `layer1.0.conv1`; for comments.
        label: the name of its function in the source, if it came from none.
    """

    name: str
    args: tuple[Any, ...] = ()
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    weights: dict[str, WeightRef] = field(factory=dict)
    children: list[LuaLayer] = field(factory=list)
    steps: list[LuaNode] = field(factory=list)
    outputs: list[LuaNode] = field(factory=list)
    path: str = ""
    label: str = ""

    @property
    def kind(self) -> str:
        """The name of the class without its package: `Linear` of `nn.Linear`."""
        return self.name.partition(".")[2]

    @property
    def inputs(self) -> int:
        """The number of inputs of an `nn.gModule`."""
        return sum(step.layer is None for step in self.steps)

    @property
    def inside(self) -> list[LuaLayer]:
        """The modules that it contains, in order."""
        return [step.layer for step in self.steps if step.layer is not None] or self.children

    def __rshift__(self, layer: LuaLayer) -> LuaLayer:
        """Return a chain of both."""
        if self.name == "nn.Identity":
            return layer
        return sequential(*_chain(self), *_chain(layer))

    def combine(self, name: str, other: Any, swapped: bool = False) -> LuaLayer:
        """Return the layers that apply both to one input and join their outputs."""
        pair = [other, self] if swapped else [self, other]
        return LuaLayer("nn.ConcatTable", children=pair) >> make(name)


@define(frozen=True)
class ModuleCall:
    """A call of a PyTorch module that is inside the outermost one.

    Attributes:
        key: of the call, as PyTorch has it; several calls of one module have several.
        path: of the module: `layer1.0.conv1`.
    """

    key: str
    path: str


@define(eq=False)
class LuaNode(Arithmetic["LuaNode"]):
    """A node of a graph: a layer applied to the values of other nodes.

    Attributes:
        layer: the layer; `None` for an input of the graph.
        inputs: the nodes whose values it uses, in order.
        shape: of its value: integers, and `Extent`s that depend on the inputs.
        stack: the module calls it belongs to, outermost first; empty for the outermost module itself.
        index: of an input node, its index among the inputs, 0-based.
    """

    layer: LuaLayer | None
    inputs: list[LuaNode] = field(factory=list)
    shape: tuple[Any, ...] = ()
    stack: tuple[ModuleCall, ...] = ()
    index: int = 0

    def __rshift__(self, layer: LuaLayer) -> LuaNode:
        """Return a node that applies a layer to this one."""
        return LuaNode(layer, [self])

    def combine(self, name: str, other: Any, swapped: bool = False) -> LuaNode:
        """Return a node of both."""
        return LuaNode(make(name), [other, self] if swapped else [self, other])


def make(name: str, *args: Any, calls: Any = (), **weights: WeightRef | None) -> LuaLayer:
    """Return a layer without children.

    Args:
        name: of the class: `nn.Linear`.
        args: of the constructor.
        calls: methods called after construction: pairs of a name and a tuple of arguments.
        weights: fields that come from the state dict, by name; those that are `None` are left out.
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


def as_indices() -> LuaLayer:
    """Return a layer that copies floats to a LongTensor, which nn.Index takes, whatever type the model is cast to."""
    force_copy = False
    dont_cast = True
    return make("nn.Copy", "torch.FloatTensor", "torch.LongTensor", force_copy, dont_cast)


def one_for_each_element() -> LuaLayer:
    """Return layers that make a vector of as many ones as the vector that they take has elements."""
    # An nn.Constant for examples of 0 dimensions takes the vector for a batch of them, and has a row {1} for each.
    rank_of_examples = 0
    return make("nn.Constant", np.ones(1, "f4"), rank_of_examples) >> make("nn.Select", 2, 1)


def first_row_along(rank: int, axis: int) -> LuaLayer:
    """Return layers that reduce a tensor to a vector along one dimension: its elements at index 0 of all others.

    Args:
        rank: the number of dimensions of the tensor; of a vector, there are no layers: an empty nn.Sequential.
        axis: the dimension that is kept, 0-based.
    """
    # Each nn.Select removes a dimension: the first one until the row's is the first, and then the second one.
    layers = [make("nn.Select", 1, 1) for _ in range(axis)]
    layers += [make("nn.Select", 2, 1) for _ in range(rank - 1 - axis)]
    return sequential(*layers)


def expand_as(rank: int, axes: list[int]) -> LuaLayer:
    """Return a graph of {value, other} that repeats the value to the extents of the other along some dimensions.

    Args:
        rank: the number of dimensions of the other.
        axes: the dimensions, 0-based, in which the value has an extent of 1.
    """
    value = LuaNode(None, index=0)
    other = LuaNode(None, index=1)
    expanded = value
    for axis in axes:
        # As many indices as the other value has elements there, all 1, take the only element of the value as often.
        indices = other >> (first_row_along(rank, axis) >> one_for_each_element() >> as_indices())
        expanded = LuaNode(make("nn.Index", axis + 1), [expanded, indices])
    graph = graph_of([value, other], expanded)
    graph.label = "ExpandAs"
    return graph


def graph_of(inputs: list[LuaNode], *outputs: LuaNode) -> LuaLayer:
    """Return an `nn.gModule` of the nodes that lead from the inputs to the outputs, each after those that it uses."""
    steps = {id(node): node for node in inputs}
    stack = [*reversed(outputs)]
    while stack:
        node = stack[-1]
        sources_to_add = [source for source in node.inputs if id(source) not in steps]
        if sources_to_add:
            stack.extend(reversed(sources_to_add))  # the node stays below them, and is seen again after them
        else:
            steps[id(node)] = stack.pop()
    return LuaLayer("nn.gModule", steps=list(steps.values()), outputs=list(outputs))


def walk(layer: LuaLayer) -> list[LuaLayer]:
    """Return a layer and all layers inside it, parents first, in the order of Lua's `listModules`.

    One that is at several places is there as often.
    """
    layers: list[LuaLayer] = []
    stack = [layer]
    while stack:
        layer = stack.pop()
        layers.append(layer)
        stack.extend(reversed(layer.inside))
    return layers


def structure_of(
    root: LuaLayer, key_of_settings: Callable[[LuaLayer], Any], key_of_weight: Callable[[WeightRef], Any]
) -> tuple[Any, ...]:
    """Return a key that is equal for layers of equal structure: of the same classes, children and graphs.

    Args:
        root: the outermost layer.
        key_of_settings: returns what must be equal of a layer's arguments and of the methods called on it.
        key_of_weight: returns what must be equal of a tensor of the state dict.
    """
    structure = []
    for layer in walk(root):
        weights = tuple((name, key_of_weight(ref)) for name, ref in layer.weights.items())
        # `walk` has the children next: their number tells where they end.
        count_of_children = len(layer.children)
        structure.append((layer.name, key_of_settings(layer), weights, _edges_of(layer), count_of_children))
    return tuple(structure)


def _edges_of(graph: LuaLayer) -> tuple[Any, ...]:
    """Return how the nodes of an `nn.gModule` are connected, by their numbers; of other layers, that there are none."""
    numbers = {id(step): number for number, step in enumerate(graph.steps)}
    steps = []
    for step in graph.steps:
        is_input = step.layer is None
        numbers_of_sources = [numbers[id(source)] for source in step.inputs]
        steps.append((is_input, *numbers_of_sources))
    outputs = tuple(numbers[id(step)] for step in graph.outputs)
    return tuple(steps), outputs
