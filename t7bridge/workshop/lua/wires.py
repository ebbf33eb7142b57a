"""Values as nodes of a Lua graph, to which layers are applied; constants and tensors of the state dict as nodes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from attrs import field

from ...data import define, np
from .layers import Arithmetic, LuaLayer, LuaNode, WeightRef, expand_as, make, sequential, walk
from .sizes import CannotError, Extent, Shape, decide_equal, is_static, make_static
from .trace import Program, to_tensor, tree_map
from .values import Complex, Const, Scaled, Stored, as_number, broadcast, is_parameter, replace_axis
from .views import VIEWS, is_repeated, on_contiguous, view_layer

MOST_REPEATED = 1 << 16
"""Elements of a constant up to which it is stored as repeated as it is used."""
EMPTY = "a value without elements, which Lua does not have"
LAYERS_WITH_PARAMETER = {"nn.CMulTable": ("nn.CMul", "weight"), "nn.CAddTable": ("nn.CAdd", "bias")}
"""Layers of two values → the layer with a parameter as the second, and its field."""


@define(eq=False)
class Wire(Arithmetic["Wire"]):
    """A value that is computed when the model runs: the output of a node of the Lua graph, with its shape.

    Attributes:
        b: the builder of the graph, to which operators of the value (`+`, `>>`) add steps.
        step: the node.
        shape: of the value in PyTorch; one without dimensions is a tensor of one element in Lua.
    """

    b: Emitter = field(repr=False)
    step: LuaNode
    shape: Shape

    def __rshift__(self, layer: LuaLayer) -> Wire:
        """Apply a layer that keeps the shape."""
        return self.b.emit(layer, self)

    def combine(self, name: str, other: Any, swapped: bool = False) -> Wire:
        """Apply a layer of two values, which are broadcast."""
        pair = (other, self) if swapped else (self, other)
        wire: Wire = self.b.combine(name, *pair)
        return wire


def first_wire(values: Sequence[Any], shape: Shape | None = None) -> Wire | None:
    """Return the first value that is computed when the model runs; `None` if none is.

    Args:
        values: of any kind.
        shape: considers only values with the first extent of this shape, those of all of it before others.
    """
    wires = [value for value in values if isinstance(value, Wire)]
    if shape is not None:
        wires = [wire for wire in wires if wire.shape[:1] == shape[:1]]
        wires.sort(key=lambda wire: wire.shape != shape)  # false, for those of the shape, sorts first
    return wires[0] if wires else None


@define(eq=False)
class Emitter:
    """Builds a Lua graph: its methods apply layers to values, each as a step, a node of the graph.

    Attributes:
        program: the traced program.
        steps: the emitted steps, in order; each takes earlier ones or inputs, which are not among them.
        env: name of a value of the program → the value: a `Wire`, `Const`, `Stored`, or another kind of `values`.
    """

    program: Program
    steps: list[LuaNode] = field(factory=list)
    env: dict[str, Any] = field(factory=dict)

    # Values

    @staticmethod
    def constant(array: Any, shape: Shape | None = None) -> Const:
        """Return a numpy array as a constant, broadcast to a shape; by default it has its own."""
        return Const(to_tensor(np.asarray(array)), tuple(array.shape) if shape is None else tuple(shape))

    def empty(self, shape: Shape) -> Const:
        """Return a value without elements, which no input changes."""
        size = [extent if isinstance(extent, int) else 1 for extent in shape]
        return self.constant(np.zeros(size, "f4"), shape)

    def emit(self, layer: LuaLayer, *values: Any, shape: Shape | None = None) -> Wire:
        """Apply a layer to values: add a step to the graph, and return its value.

        Args:
            layer: the layer; its arguments are changed to numbers where they are extents.
            values: wires, constants or tensors of the state dict, in the order of Lua's table.
            shape: of the result; by default that of the first value.

        Raises:
            CannotError: the result has no elements.
        """
        wires = self.wires(*values)
        shape = wires[0].shape if shape is None else tuple(shape)
        if 0 in shape:  # which no layer of Lua returns
            raise CannotError(EMPTY)
        # An extent as an argument is a constant of the layer: it is fixed as in the example.
        for inner in walk(layer):
            inner.args = tree_map(as_number, inner.args)
            inner.calls = tree_map(as_number, inner.calls)
        # The layers that need contiguous memory take one value; `on_contiguous` leaves others as they are.
        first, *_ = wires
        if is_repeated(first.step):
            layer = on_contiguous(layer)
        step = LuaNode(layer, [wire.step for wire in wires], shape)
        self.steps.append(step)
        return Wire(self, step, shape)

    def wire(self, value: Any, like: Wire | None = None) -> Any:
        """Return a value as a wire; constants and tensors of the state dict become nodes that ignore their input.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            like: the input of such a node, with the batch in its first dimension if the result has it too; by default
                an input of the program.

        Raises:
            CannotError: the value is a number, or complex.
        """
        if isinstance(value, Wire):
            return value
        if isinstance(value, Scaled):
            return self._product(value)
        if isinstance(value, (int, float)):
            raise CannotError("a number where a tensor is needed")
        if isinstance(value, Complex):
            raise CannotError("complex numbers where real ones are needed")
        if isinstance(value, Stored) and value.ref.transposed:
            # Layers other than nn.Linear need a contiguous weight: it is transposed when the model runs.
            size = value.ref.size[::-1]
            contiguous = Stored(WeightRef(value.ref.key, value.ref.start, size), size, value.learned)
            return self.expand(self._transpose(contiguous, (1, 0)), value.shape, like=like)
        return self._node_of_stored(value, like or self._any_input())

    def wires(self, *values: Any) -> list[Any]:
        """Return values as wires; constants and tensors of the state dict are attached to the first that is a wire."""
        like = first_wire(values)
        return [self.wire(value, like=like) for value in values]

    def _product(self, scaled: Scaled) -> Any:
        """Return a learned tensor times its scale as a wire."""
        scale = scaled.scale
        if scaled.axis is not None:  # a vector, which has to be along this dimension to be broadcast
            behind = len(scaled.shape) - scaled.axis - 1
            scale = self.reshape(scale, (*scale.shape, *(1,) * behind))
        return self.wire(scaled.param) * scale

    def _node_of_stored(self, value: Any, source: Wire) -> Any:
        """Return a constant or a tensor of the state dict as a node of the graph, broadcast to its shape.

        It is an nn.Constant, which ignores its input. It repeats itself for each example of the batch if it is told how
        many dimensions an example of the input has.

        Args:
            value: the constant or tensor.
            source: the input of the node, whose first dimension is the batch if that of the value is open.
        """
        shape = value.shape
        own_size = tuple(value.value.shape) if isinstance(value, Const) else value.ref.size
        own_size = (1,) * (len(shape) - len(own_size)) + own_size  # before it is broadcast, with all dimensions
        batch: Shape = ()  # the open first extent, or nothing
        rank_of_examples = None  # that of an example of the source; `None` repeats for no batch
        if shape and isinstance(shape[0], Extent):
            if shape[:1] != source.shape[:1] or own_size[0] != 1:
                # The value has a batch of its own: with the condition that it is that of the example, the program is
                # built again, and the extent is a number then.
                make_static(shape[0])
            batch = shape[:1]
            rank_of_examples = len(source.shape) - 1
        own_size = own_size[len(batch) :] or (1,)  # Lua has no tensor without dimensions
        # Extents behind the batch that depend on the inputs are repeated last, by those of the source.
        static_size = tuple(1 if isinstance(extent, Extent) else extent for extent in shape[len(batch) :]) or (1,)
        elements, weights = self._elements_of_node(value, own_size, static_size)
        layer = make("nn.Constant", elements, rank_of_examples, **weights)
        wire = self.emit(layer, source, shape=batch + elements.shape)
        if isinstance(value, Stored) and value.learned:
            # nn.CMul repeats its weight along dimensions of extent 1, the batch among them.
            size = (1,) * len(batch) + own_size
            wire = wire >> make("nn.CMul", *size, weight=value.ref.resized(size))
        wire = self.expand(wire, batch + static_size)
        if not is_static(shape[len(batch) :]):
            return self.expand(wire, shape, like=source)
        return self.reshape(wire, shape)

    def _elements_of_node(self, value: Any, own_size: Shape, static_size: Shape) -> tuple[Any, dict[str, WeightRef]]:
        """Return the elements of the nn.Constant of a value as an array, and its field if that is of the state dict.

        Args:
            value: see `_node_of_stored`.
            own_size: of the constant or tensor itself, with all dimensions of the value but the batch.
            static_size: what it is broadcast to, apart from extents that depend on the inputs.
        """
        if isinstance(value, Const):
            return self._constant_array(value, own_size, static_size), {}
        if value.learned:  # nn.Constant learns nothing: the parameter is the weight of an nn.CMul of ones
            return np.ones(static_size, "f4"), {}
        return np.zeros(own_size, "f4"), {"value": value.ref.resized(own_size)}

    def _constant_array(self, value: Const, own_size: Shape, broadcast_size: Shape) -> Any:
        """Return the elements of a constant as an array of floats or doubles, broadcast unless they become too many.

        Args:
            value: the constant.
            own_size: the shape of its tensor, with dimensions of extent 1 in front where the other has more.
            broadcast_size: the shape to which it is broadcast.
        """
        array = value.array().reshape(own_size)
        size = broadcast_size if prod(broadcast_size) <= MOST_REPEATED else own_size
        is_wide = array.dtype == "f8" or (array.dtype == "i8" and self.program.is_double)
        return np.ascontiguousarray(np.broadcast_to(array, size)).astype("f8" if is_wide else "f4")

    def _any_input(self) -> Wire:
        """Return the first input that is a tensor, to which a constant is attached.

        Raises:
            CannotError: there is none.
        """
        for name in self.program.inputs:
            value = self.env[name]
            if isinstance(value, Wire):
                return value
        raise CannotError("the module has no inputs")

    # Arithmetic

    def combine(self, name: str, first: Any, second: Any, *args: Any) -> Any:
        """Apply a layer that takes a table of two, after broadcasting; parameters become nn.CMul and nn.CAdd.

        Lua's layers do not broadcast, and need tensors of one dimension at least.

        Args:
            name: of its class.
            first: a wire, a constant or a tensor of the state dict.
            second: likewise.
            args: of its constructor.
        """
        first, second = (self.wire(value) if isinstance(value, Scaled) else value for value in (first, second))
        if isinstance(first, Wire) and isinstance(second, Wire):
            if name == "nn.CMulTable" and first.step is second.step:  # x * x, for which Lua has a layer
                return first >> make("nn.Square")
        elif name in (*LAYERS_WITH_PARAMETER, "nn.CSubTable"):
            wire = self._combine_with_parameter(name, first, second)
            if wire is not None:
                return wire
        shape = broadcast(first.shape or (1,), second.shape or (1,))
        like = first_wire((first, second), shape)
        operands = [self.broadcast_to(value, shape, like=like) for value in (first, second)]
        return self.emit(make(name, *args), *operands)

    def _combine_with_parameter(self, name: str, first: Any, second: Any) -> Any:
        """Apply a layer that holds one of two values as its weight; return `None` if none can.

        One value has to be a wire and the other one a parameter whose elements are in order.

        Args:
            name: of the layer of two values that it replaces: nn.CAddTable, nn.CMulTable or nn.CSubTable.
            first: a wire, a constant or a tensor of the state dict.
            second: likewise.
        """
        # A transposed weight would not be contiguous in the layer.
        if isinstance(first, Wire) and is_parameter(second) and not second.ref.transposed:
            if name == "nn.CSubTable":  # nn.CAdd only adds: first - second is -(-first + second)
                return -self._with_parameter("nn.CAddTable", -first, second)
            return self._with_parameter(name, first, second)
        if isinstance(second, Wire) and is_parameter(first):
            if name == "nn.CSubTable":
                return self.combine("nn.CAddTable", -second, first)
            return self.combine(name, second, first)
        return None

    def _with_parameter(self, name: str, value: Wire, param: Stored) -> Wire:
        """Apply nn.CMul or nn.CAdd, which hold a parameter, instead of the layer of two values with a name."""
        shape = broadcast(value.shape or (1,), param.shape)
        size = (1,) * (len(shape) - len(param.ref.size)) + param.ref.size
        layer, field_of_weight = LAYERS_WITH_PARAMETER[name]
        weights = {field_of_weight: param.ref.resized(size)}
        return self.emit(make(layer, *size, **weights), self.expand(value, shape))

    def broadcast_to(self, value: Any, shape: Shape, like: Wire | None) -> Any:
        """Return a value broadcast to a shape, as a wire.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            shape: of the result.
            like: a value with the batch of the result in its first dimension; `None` if there is none.
        """
        if isinstance(value, Wire):
            return self.expand(value, shape, like=like)
        return self.wire(self.expand(value, shape), like=like)

    # Shapes

    def reshape(self, value: Any, shape: Any) -> Any:
        """Reshape a value to another shape with equally many elements, at build time if its elements are known."""
        shape = tuple(shape)
        if value.shape == shape:
            return value
        # What is best first: no layer; one nn.View, which infers a single open extent; a view between transpositions;
        # and last, a view for the sizes of the example.
        reshaped = _reshape_stored(value, shape)
        if reshaped is not None:
            return reshaped
        wire = self.wire(value)
        # A view of a view is one of its source; but a view may need an extent that the one before it has inferred.
        for source in (self.before_view(wire), wire):
            if source.shape == shape:
                return source
            if {source.shape, shape} == {(), (1,)}:  # the same in Lua, which has no tensor without dimensions
                return Wire(self, source.step, shape)
            layer = view_layer(source.shape, shape)
            if layer is not None:
                return self.emit(layer, source, shape=shape)
        is_split = wire.shape[1:] == shape[2:] and wire.shape[0] == prod(shape[:2])
        if is_split and not is_static(shape[2:]):
            return self._split_first(wire, shape)
        is_merge = wire.shape[2:] == shape[1:] and shape[0] == prod(wire.shape[:2])
        if is_merge and not is_static(shape[1:]):
            return self._merge_first_two(wire, shape)
        # nn.View infers the first extent: the others are then those of the example.
        make_static(*shape[1:])
        return self.emit(make("nn.View", *shape[1:]), wire, shape=shape)

    def _split_first(self, wire: Wire, shape: Shape) -> Any:
        """Return a value with its first dimension split into the first two of a shape, where others are open, too.

        A view infers one extent behind those that it keeps (see `view_layer`): the dimension is moved behind the others
        for it, and the two are moved back.
        """
        rank = len(shape)
        moved = self.permute(wire, (*range(1, rank - 1), 0))
        split = self.reshape(moved, (*shape[2:], *shape[:2]))
        return self.permute(split, (rank - 2, rank - 1, *range(rank - 2)))

    def _merge_first_two(self, wire: Wire, shape: Shape) -> Any:
        """Return a value with its first two dimensions merged into the first of a shape, where others are open, too.

        A view infers one extent behind those that it keeps (see `view_layer`): the two are moved behind the others for
        it, and the merged one is moved back.
        """
        rank = len(shape)
        moved = self.permute(wire, (*range(2, rank + 1), 0, 1))
        merged = self.reshape(moved, (*shape[1:], shape[0]))
        return self.permute(merged, (rank - 1, *range(rank - 1)))

    def before_view(self, wire: Wire) -> Wire:
        """Return the input of the view that a value is the output of; other values unchanged."""
        if wire.step.layer is None or wire.step.layer.name not in VIEWS:
            return wire
        source = wire.step.inputs[0]
        return Wire(self, source, source.shape)

    def permute(self, value: Any, order: Any) -> Any:
        """Permute dimensions, as `torch.permute`, at build time if the elements are known.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            order: for each dimension of the result, the one of the value that it is, 0-based or negative from the end.
        """
        order = tuple(axis % len(value.shape) for axis in order)
        shape = tuple(value.shape[axis] for axis in order)
        if list(order) == sorted(order):
            return value
        if isinstance(value, Const) and is_static(value.shape):
            return Const(value.value.expand(value.shape).permute(order), shape)
        # Dimensions of extent 1 may move without any element doing so: another shape of the same elements will do then.
        # Tensors of the state dict that are broadcast or transposed cannot be reshaped, and `_transposed_matrix`
        # refuses them, too, if only such dimensions move.
        longer = [axis for axis in order if value.shape[axis] != 1]
        if longer == sorted(longer) and (not isinstance(value, Stored) or value.is_contiguous):
            return self.reshape(value, shape)
        if isinstance(value, Stored) and len(longer) == 2 and all(extent == 1 for extent in shape[:-2]):
            transposed = self._transposed_matrix(value, shape)
            if transposed is not None:
                return transposed
        return self._transpose(value, order)

    def _transposed_matrix(self, value: Stored, shape: Shape) -> Stored | None:
        """Return a matrix of the state dict with rows and columns exchanged, as layers hold it; `None` if they cannot.

        They can exchange a transposed one back, or all of a tensor in its shape of the state dict, no part of one.

        Args:
            value: the matrix.
            shape: of the result, with dimensions of extent 1 before the two.
        """
        ref = value.ref
        matrix = shape[-2:]
        is_exchanged = ref.transposed and ref.size == value.shape
        if is_exchanged:  # once more, it is as it is in the state dict
            return Stored(WeightRef(ref.key, ref.start, matrix), shape, value.learned)
        is_all_of_tensor = value.is_contiguous and tuple(self.program.state[ref.key].shape) == matrix[::-1]
        if is_all_of_tensor:
            return Stored(WeightRef(ref.key, start=0, size=matrix, transposed=True), shape, value.learned)
        return None

    def _transpose(self, value: Any, order: Shape) -> Wire:
        """Permute dimensions by an nn.Transpose, which exchanges two at a time.

        Args:
            value: the value.
            order: for each dimension of the result, which one of the value it is, 0-based.
        """
        swaps = []
        current = list(range(len(order)))  # the dimension of the value at each position, after the swaps so far
        for axis, wanted in enumerate(order):
            other = current.index(wanted)
            if other != axis:
                swaps.append((axis + 1, other + 1))  # Lua counts from 1
                current[axis], current[other] = current[other], current[axis]
        return self.emit(make("nn.Transpose", *swaps), value, shape=tuple(value.shape[axis] for axis in order))

    # Repetition

    def expand(self, value: Any, shape: Shape, like: Wire | None = None) -> Any:
        """Repeat a value along dimensions of extent 1, and along new dimensions in front.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            shape: of the result.
            like: a value with the batch of the result in its first dimension, if the value does not have it; by default
                an input of the program.
        """
        shape = tuple(shape)
        if value.shape == shape:
            return value
        # What is no wire yet keeps its elements, and is repeated when it becomes one: see `wire`.
        if isinstance(value, Const):
            return Const(value.value, shape)
        if isinstance(value, Stored):
            return Stored(value.ref, shape, value.learned)
        value = Wire(self, value.step, value.shape or (1,))  # Lua has no tensor without dimensions
        lacks_batch = len(value.shape) < len(shape) or value.shape[:1] == (1,)
        # With further open extents the product of `_repeat_for_examples` would have an open number of columns.
        if lacks_batch and shape and isinstance(shape[0], Extent) and is_static(shape[1:]):
            return self._repeat_for_examples(value, shape, like)
        # Open extents are taken from another value first: nn.Replicate repeats as often as in the example.
        value = self._expand_as(value, shape, like or self._any_input())
        while len(value.shape) < len(shape):
            extent = shape[len(shape) - len(value.shape) - 1]
            value = self.emit(make("nn.Replicate", extent, 1), value, shape=(extent, *value.shape))
        for axis, extent in enumerate(shape):
            value = self._repeat_along(value, axis, extent)
        return value

    def _repeat_along(self, value: Wire, axis: int, extent: Any) -> Wire:
        """Repeat a value of extent 1 along a dimension; one that has the extent is returned unchanged.

        Raises:
            CannotError: it has another extent.
        """
        if value.shape[axis] == extent:
            return value
        if value.shape[axis] != 1:
            if not decide_equal(value.shape[axis], extent):
                raise CannotError(f"the extents {value.shape[axis]} and {extent} do not match")
            return value
        layers = [make("nn.Select", axis + 1, 1), make("nn.Replicate", extent, axis + 1)]
        if len(value.shape) == 1:  # the element of a vector is not a tensor in Lua
            layers = [make("nn.Replicate", extent, 1), make("nn.Select", 2, 1)]
        return self.emit(sequential(*layers), value, shape=replace_axis(value.shape, axis, extent))

    def _expand_as(self, value: Wire, shape: Shape, like: Wire) -> Wire:
        """Repeat a value along those dimensions in which a shape has the same open extent as another value.

        Args:
            value: the value.
            shape: the shape; the other dimensions of the result keep the extents of the value.
            like: the other value.
        """
        full = (*(1,) * (len(shape) - len(value.shape)), *value.shape)
        expanded = list(full)
        axes = []
        for axis, extent in enumerate(shape):
            if full[axis] == 1 and isinstance(extent, Extent) and like.shape[axis : axis + 1] == (extent,):
                axes.append(axis)
                expanded[axis] = extent
        if not axes:
            return value
        layer = expand_as(len(like.shape), axes)
        return self.emit(layer, self.reshape(value, full), like, shape=tuple(expanded))

    def _repeat_for_examples(self, value: Wire, shape: Shape, like: Wire | None) -> Any:
        """Repeat a value for each example: the product of a column of ones, one per example, and the value as a row.

        Args:
            value: the value, without the batch or with an extent of 1 for it.
            shape: of the result, whose first extent is the batch.
            like: a value with the batch in its first dimension; by default an input of the program. If that has another
                one, the batch is fixed as in the example.
        """
        source = like or self._any_input()
        if source.shape[:1] != shape[:1]:
            return self.expand(value, make_static(*shape))
        if len(value.shape) == len(shape):
            value = self.reshape(value, value.shape[1:])
        example = self.expand(value, shape[1:])
        count = prod(shape[1:])
        rank_of_examples = len(source.shape) - 1
        one_for_each = make("nn.Constant", np.ones(1, "f4"), rank_of_examples)
        column = self.emit(one_for_each, source, shape=(shape[0], 1))
        row = self.reshape(example, (1, count))
        product = self.emit(make("nn.MM"), column, row, shape=(shape[0], count))
        return self.reshape(product, shape)


def _reshape_stored(value: Any, shape: Shape) -> Any:
    """Return a constant or a tensor of the state dict in another shape; `None` if a layer has to do it.

    That is so for a wire, for open extents, and for a tensor that is broadcast or transposed.
    """
    if isinstance(value, Const) and value.value.numel() == 1:
        return Const(value.value.reshape((1,) * len(shape)), shape)
    if isinstance(value, Const) and is_static(shape) and is_static(value.shape):
        return Const(value.value.expand(value.shape).reshape(shape), shape)
    if isinstance(value, Stored) and is_static(shape) and value.is_contiguous:
        return Stored(value.ref.resized(shape), shape, value.learned)
    return None
