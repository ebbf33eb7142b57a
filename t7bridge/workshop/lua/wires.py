"""Wires, the values that a Lua graph computes when it runs: layers are applied to them, each as a step of the graph.

Constants and tensors of the state dict become wires only where a layer takes them.
"""

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
"""Layers of two values → the layer that holds the second, a parameter, in a field; and the name of that field."""


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


def first_wire(values: Sequence[Any]) -> Wire | None:
    """Return the first value that is a wire; `None` if none is."""
    return next((value for value in values if isinstance(value, Wire)), None)


def wire_with_batch(values: Sequence[Any], shape: Shape) -> Wire | None:
    """Return a value that is a wire and has the batch of a shape, its first extent; `None` if none has.

    The first one that has all of the shape, or else the first that has the batch.
    """
    with_batch = [value for value in values if isinstance(value, Wire) and value.shape[:1] == shape[:1]]
    with_shape = [wire for wire in with_batch if wire.shape == shape]
    return first_wire([*with_shape, *with_batch])


@define(eq=False)
class Emitter:
    """Builds a Lua graph: its methods apply layers to values, each as a step, a node of the graph.

    A value is a `Wire`, or what becomes one where a layer takes it: a `Const`, a constant; a `Stored`, a tensor of the
    state dict; or a `Scaled`, a parameter times a scale.

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
            layer: the layer, for this step alone: extents among its arguments, and those of the layers inside it, are
                replaced by numbers, in place.
            values: wires, constants or tensors of the state dict, in the order of Lua's table; one at least.
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
        # Of one value alone: no layer of a table of values needs them to be contiguous.
        if len(wires) == 1 and is_repeated(wires[0].step):
            layer = on_contiguous(layer)
        step = LuaNode(layer, [wire.step for wire in wires], shape)
        self.steps.append(step)
        return Wire(self, step, shape)

    def wire(self, value: Any, like: Wire | None = None) -> Any:
        """Return a value as a wire, broadcast; constants and tensors of the state dict become nodes.

        A node of the graph needs an input. Those of constants and tensors ignore its elements.

        Args:
            value: a wire, a constant, a tensor of the state dict or a `Scaled`.
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
            return self.expand(self._transposed_by_layer(value), value.shape, like=like)
        return self._as_node(value, like or self._any_input())

    def _transposed_by_layer(self, matrix: Stored) -> Wire:
        """Return a transposed matrix of the state dict as a wire: the matrix as it is stored, and an nn.Transpose.

        No layer but nn.Linear can hold a weight whose rows are the columns of what is stored.
        """
        rows, columns = matrix.ref.size
        stored_size = (columns, rows)
        ref = WeightRef(matrix.ref.key, matrix.ref.start, stored_size)
        return self._transpose(Stored(ref, stored_size, matrix.learned), (1, 0))

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

    def _as_node(self, value: Const | Stored, source: Wire) -> Any:
        """Return a constant or a tensor of the state dict as a node of the graph, broadcast to its shape.

        Args:
            value: the constant or tensor, not transposed.
            source: the input of the node, which ignores it. Its first dimension is the batch if that of the value is
                open.
        """
        shape = value.shape
        size = tuple(value.value.shape) if isinstance(value, Const) else value.ref.size
        own_size = (1,) * (len(shape) - len(size)) + size  # before it is broadcast, with all dimensions
        has_open_batch = bool(shape) and isinstance(shape[0], Extent)
        if not has_open_batch:
            return self._broadcast_node(value, source, own_size, batch=())
        if shape[:1] != source.shape[:1] or own_size[0] != 1:
            # Not the source's batch, or not equal for all its examples: no nn.Constant can leave it open. This raises
            # `ChangedError`, and it is a number when the program is built again.
            make_static(shape[0])
        return self._broadcast_node(value, source, own_size[1:], batch=shape[:1])

    def _broadcast_node(self, value: Const | Stored, source: Wire, own_size: Shape, batch: Shape) -> Any:
        """Return a value as an nn.Constant, and behind it the layers that broadcast it.

        Args:
            value: see `_as_node`.
            source: the input of the node.
            own_size: the shape of the constant or tensor itself, with all dimensions of the value but the batch.
            batch: the open extent of the batch, in front of the others; or nothing.
        """
        shape_of_example = value.shape[len(batch) :]
        # Lua has no tensor without dimensions: there it has one of extent 1, which the last line removes.
        own_size = own_size or (1,)
        # Open extents are 1 at first, and repeated last, as often as those of the source.
        static_size = tuple(1 if isinstance(extent, Extent) else extent for extent in shape_of_example) or (1,)
        wire = self.expand(self._node_of_elements(value, source, own_size, static_size, batch), batch + static_size)
        if not is_static(shape_of_example):
            return self.expand(wire, value.shape, like=source)
        return self.reshape(wire, value.shape)

    def _node_of_elements(
        self, value: Const | Stored, source: Wire, own_size: Shape, static_size: Shape, batch: Shape
    ) -> Wire:
        """Return the elements of a value as a node, perhaps broadcast already; once for each example of a batch.

        Args:
            value: a constant or a tensor of the state dict.
            source: the input of the node.
            own_size: the shape of the elements, without the batch.
            static_size: the shape to which they are broadcast later, without the batch.
            batch: the open extent of the batch; or nothing.
        """
        if isinstance(value, Const):
            return self._constant_layer(self._constant_array(value, own_size, static_size), source, batch)
        if value.learned:
            # An nn.Constant learns nothing. It is ones, and an nn.CMul learns the parameter, as its weight, and repeats
            # it along dimensions of extent 1, the batch among them.
            ones = self._constant_layer(np.ones(static_size, "f4"), source, batch)
            size = (1,) * len(batch) + own_size
            return ones >> make("nn.CMul", *size, weight=value.ref.resized(size))
        # Of a buffer, whose elements take the place of the zeros.
        zeros = np.zeros(own_size, "f4")
        return self._constant_layer(zeros, source, batch, value=value.ref.resized(own_size))

    def _constant_layer(self, array: Any, source: Wire, batch: Shape, **fields: WeightRef) -> Wire:
        """Apply an nn.Constant, which returns an array whatever its input is: once, or once for each example.

        Args:
            array: the elements.
            source: the input.
            batch: the first extent of the source, if the result has one array for each of its examples; or nothing.
            fields: the field `value` of the layer, if a tensor of the state dict takes the place of the array.
        """
        # Told how many dimensions an example of its input has, an nn.Constant repeats itself for each example.
        rank_of_examples = len(source.shape) - 1 if batch else None
        layer = make("nn.Constant", array, rank_of_examples, **fields)
        return self.emit(layer, source, shape=batch + array.shape)

    def _constant_array(self, value: Const, own_size: Shape, broadcast_size: Shape) -> Any:
        """Return the elements of a constant as an array of floats or doubles, broadcast unless they become too many.

        Args:
            value: the constant.
            own_size: a shape of its own elements, of as many dimensions as the other.
            broadcast_size: the shape to which it is broadcast.
        """
        array = value.array().reshape(own_size)
        size = broadcast_size if prod(broadcast_size) <= MOST_REPEATED else own_size
        # In a model of doubles, whole numbers become doubles, too, which hold more of them exactly than floats.
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
        """Apply a layer that takes a table of two values to them, broadcast, which Lua's layers do not do themselves.

        A product, sum or difference of a wire and a parameter is an nn.CMul or nn.CAdd, which hold the parameter.

        Args:
            name: of its class.
            first: a value of any kind.
            second: likewise.
            args: of its constructor.
        """
        first = self.wire(first) if isinstance(first, Scaled) else first
        second = self.wire(second) if isinstance(second, Scaled) else second
        are_wires = isinstance(first, Wire) and isinstance(second, Wire)
        if are_wires and name == "nn.CMulTable" and first.step is second.step:  # x * x, for which Lua has a layer
            return first >> make("nn.Square")
        if name in (*LAYERS_WITH_PARAMETER, "nn.CSubTable"):  # a difference is a sum with the negative
            wire = self._combine_with_parameter(name, first, second)
            if wire is not None:
                return wire
        shape = broadcast(first.shape or (1,), second.shape or (1,))  # Lua has no tensor without dimensions
        # Where only one of the two has the batch, the other takes it from that.
        like = wire_with_batch((first, second), shape)
        operands = [self.broadcast_to(value, shape, like=like) for value in (first, second)]
        return self.emit(make(name, *args), *operands)

    def _combine_with_parameter(self, name: str, first: Any, second: Any) -> Any:
        """Apply a layer that holds one of two values as its weight; return `None` if none can.

        One value has to be a wire, and the other one a parameter that is not transposed.

        Args:
            name: of the layer of two values that it replaces: nn.CAddTable, nn.CMulTable or nn.CSubTable.
            first: a wire, a constant or a tensor of the state dict.
            second: likewise.
        """
        if is_parameter(first) and isinstance(second, Wire):
            # Once more with the wire first: p * x is x * p, p + x is x + p, and p - x is -x + p.
            if name == "nn.CSubTable":
                return self.combine("nn.CAddTable", -second, first)
            return self.combine(name, second, first)
        if not isinstance(first, Wire) or not is_parameter(second):
            return None
        if second.ref.transposed:  # its elements are not in order, as the weight of a layer has to have them
            return None
        if name == "nn.CSubTable":  # nn.CAdd only adds: x - p is -(-x + p)
            return -self._with_parameter("nn.CAddTable", -first, second)
        return self._with_parameter(name, first, second)

    def _with_parameter(self, name: str, value: Wire, param: Stored) -> Wire:
        """Apply nn.CMul or nn.CAdd, which hold a parameter, instead of the layer of two values with a name."""
        shape = broadcast(value.shape or (1,), param.shape)
        size = (1,) * (len(shape) - len(param.ref.size)) + param.ref.size
        layer, field_of_weight = LAYERS_WITH_PARAMETER[name]
        weights = {field_of_weight: param.ref.resized(size)}
        return self.emit(make(layer, *size, **weights), self.expand(value, shape))

    def broadcast_to(self, value: Any, shape: Shape, like: Wire | None) -> Any:
        """Return a value broadcast to a shape, as a wire; the arguments are those of `expand`."""
        return self.wire(self.expand(value, shape, like=like), like=like)

    # Shapes

    def reshape(self, value: Any, shape: Any) -> Any:
        """Reshape a value, at build time if its elements are known.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            shape: of the result, with equally many elements. Where no layer can leave its open extents open, they are
                fixed as in the example.
        """
        shape = tuple(shape)
        if value.shape == shape:
            return value
        reshaped = _reshape_stored(value, shape)
        if reshaped is not None:
            return reshaped
        wire = self.wire(value)
        # A view of a view needs only the last one, of the value before the first; unless that has an extent open which
        # only the first can infer.
        for source in (self.before_view(wire), wire):
            reshaped = self._reshape_by_one_layer(source, shape)
            if reshaped is not None:
                return reshaped
        permuted = self._reshape_by_permuting(wire, shape)
        if permuted is not None:
            return permuted
        # Only the first extent, which nn.View infers, stays open.
        make_static(*shape[1:])
        return self.emit(make("nn.View", *shape[1:]), wire, shape=shape)

    def _reshape_by_one_layer(self, wire: Wire, shape: Shape) -> Wire | None:
        """Return a wire in a shape, by a layer at most; `None` if none can leave open what is open of the shape."""
        if wire.shape == shape:
            return wire
        if {wire.shape, shape} == {(), (1,)}:  # the same in Lua, which has no tensor without dimensions
            return Wire(self, wire.step, shape)
        layer = view_layer(wire.shape, shape)
        return None if layer is None else self.emit(layer, wire, shape=shape)

    def _reshape_by_permuting(self, wire: Wire, shape: Shape) -> Any:
        """Return a wire with its first dimension split in two, or its first two merged; `None` if it is not that.

        Only where others are open: else nn.View can do it. It infers extents only behind those that it keeps, see
        `view_layer`.
        """
        is_split = wire.shape[1:] == shape[2:] and wire.shape[0] == prod(shape[:2])
        if is_split and not is_static(shape[2:]):
            return self._split_first(wire, shape)
        is_merge = wire.shape[2:] == shape[1:] and shape[0] == prod(wire.shape[:2])
        if is_merge and not is_static(shape[1:]):
            return self._merge_first_two(wire, shape)
        return None

    def _split_first(self, wire: Wire, shape: Shape) -> Any:
        """Return a value with its first dimension split into the first two of a shape; the others are equal.

        The dimension is moved behind the others, split there, and the two are moved back.

        Args:
            wire: the value, of one dimension less than the result.
            shape: of the result.
        """
        rank = len(shape)
        moved = self.permute(wire, (*range(1, rank - 1), 0))
        split = self.reshape(moved, (*shape[2:], *shape[:2]))
        return self.permute(split, (rank - 2, rank - 1, *range(rank - 2)))

    def _merge_first_two(self, wire: Wire, shape: Shape) -> Any:
        """Return a value with its first two dimensions merged into the first of a shape; the others are equal.

        As `_split_first`: the two are moved behind the others, merged there, and the merged one is moved back.

        Args:
            wire: the value, of one dimension more than the result.
            shape: of the result.
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
        longer_axes = [axis for axis in order if value.shape[axis] != 1]
        moves_elements = longer_axes != sorted(longer_axes)  # and not only dimensions of extent 1
        if not moves_elements:
            # The value gets another shape. Tensors of the state dict that are broadcast or transposed cannot.
            can_be_reshaped = not isinstance(value, Stored) or value.is_contiguous
            return self.reshape(value, shape) if can_be_reshaped else self._transpose(value, order)
        is_matrix = len(longer_axes) == 2 and all(extent == 1 for extent in shape[:-2])
        if is_matrix and isinstance(value, Stored):
            transposed = self._transposed_matrix(value, shape)
            if transposed is not None:
                return transposed
        return self._transpose(value, order)

    def _transposed_matrix(self, value: Stored, shape: Shape) -> Stored | None:
        """Return a matrix of the state dict with rows and columns exchanged; `None` if a layer has to do it.

        A layer holds what a `WeightRef` says: all of a tensor, as it is or transposed; or a part of one as it is.

        Args:
            value: the matrix, with two extents other than 1.
            shape: of the result: those two, exchanged, behind extents of 1.
        """
        ref = value.ref
        rows_and_columns = shape[-2:]
        is_broadcast = ref.size != value.shape
        if ref.transposed and not is_broadcast:  # the result is as the tensor is in the state dict
            return Stored(WeightRef(ref.key, ref.start, rows_and_columns), shape, value.learned)
        is_whole_tensor = value.is_contiguous and tuple(self.program.state[ref.key].shape) == rows_and_columns[::-1]
        if is_whole_tensor:
            # The size of a transposed tensor is that after the exchange.
            return Stored(WeightRef(ref.key, start=0, size=rows_and_columns, transposed=True), shape, value.learned)
        return None

    def _transpose(self, value: Any, order: Shape) -> Wire:
        """Permute dimensions by an nn.Transpose, which exchanges two at a time.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            order: for each dimension of the result, which one of the value it is, 0-based and not negative.
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
            value: a wire, a constant or a tensor of the state dict. The last two are not repeated here, but when they
                become wires, see `wire`: only their shape changes.
            shape: of the result. Open extents that are in neither value are fixed as in the example.
            like: a value with the batch of the result in its first dimension, if `value` does not have it; by default
                an input of the program.

        Raises:
            CannotError: `value` has another extent than the shape, and not 1.
        """
        shape = tuple(shape)
        if value.shape == shape:
            return value
        if isinstance(value, Wire):
            in_lua = Wire(self, value.step, value.shape or (1,))  # Lua has no tensor without dimensions
            return self._expand_wire(in_lua, shape, like)
        for own_extent, extent in zip(reversed(value.shape), reversed(shape)):
            if own_extent != 1:
                _require_equal(own_extent, extent)
        if isinstance(value, Const):
            return Const(value.value, shape)
        return Stored(value.ref, shape, value.learned)

    def _expand_wire(self, value: Wire, shape: Shape, like: Wire | None) -> Any:
        """Repeat a wire, of one dimension at least; the arguments are those of `expand`."""
        lacks_batch = len(value.shape) < len(shape) or value.shape[:1] == (1,)
        # With further open extents the product of `_repeat_for_examples` would have an open number of columns.
        if lacks_batch and shape and isinstance(shape[0], Extent) and is_static(shape[1:]):
            return self._repeat_for_examples(value, shape, like)
        # First as often as another value has elements; then, by nn.Replicate, as often as in the example.
        value = self._repeat_as(value, shape, like or self._any_input())
        while len(value.shape) < len(shape):
            extent = shape[len(shape) - len(value.shape) - 1]
            value = self.emit(make("nn.Replicate", extent, 1), value, shape=(extent, *value.shape))
        for axis, extent in enumerate(shape):
            value = self._repeat_along(value, axis, extent)
        return value

    def _repeat_along(self, value: Wire, axis: int, extent: Any) -> Wire:
        """Repeat a value of extent 1 along a dimension, 0-based; one that has the extent is returned unchanged.

        Raises:
            CannotError: it has another extent.
        """
        own_extent = value.shape[axis]
        if own_extent == extent:
            return value
        if own_extent != 1:
            _require_equal(own_extent, extent)
            return value
        if len(value.shape) == 1:
            # The element of a vector is a number in Lua, which nn.Replicate does not take: the vector becomes the rows
            # of a matrix, whose first column is the result.
            layers = [make("nn.Replicate", extent, 1), make("nn.Select", 2, 1)]
        else:
            layers = [make("nn.Select", axis + 1, 1), make("nn.Replicate", extent, axis + 1)]
        return self.emit(sequential(*layers), value, shape=replace_axis(value.shape, axis, extent))

    def _repeat_as(self, value: Wire, shape: Shape, like: Wire) -> Wire:
        """Repeat a value along the open dimensions of a shape, as often as another value has elements in the same one.

        Args:
            value: the value, of at most as many dimensions as the shape: it lacks the first ones.
            shape: the shape.
            like: the other value, of any rank. It counts along a dimension if it has the shape's extent there.

        Returns:
            The value itself if there is no such dimension. Else one of the rank of the shape, which is repeated along
            these dimensions, and not yet along others.
        """
        own_shape = (*(1,) * (len(shape) - len(value.shape)), *value.shape)
        repeated_shape = list(own_shape)
        axes = []
        for axis, extent in enumerate(shape):
            is_in_like = like.shape[axis : axis + 1] == (extent,)
            if own_shape[axis] == 1 and isinstance(extent, Extent) and is_in_like:
                axes.append(axis)
                repeated_shape[axis] = extent
        if not axes:
            return value
        layer = expand_as(len(like.shape), axes)
        return self.emit(layer, self.reshape(value, own_shape), like, shape=tuple(repeated_shape))

    def _repeat_for_examples(self, value: Wire, shape: Shape, like: Wire | None) -> Any:
        """Repeat a value for each example: the product of a column of ones, one per example, and the value as a row.

        No layer but nn.Constant repeats something as often as there are examples, and it only repeats constants.

        Args:
            value: the value, without the batch or with an extent of 1 for it.
            shape: of the result, whose first extent is the batch; the others are static.
            like: a value with the batch in its first dimension; by default an input of the program. If that has another
                one, the batch is fixed as in the example.
        """
        source = like or self._any_input()
        batch, *shape_of_example = shape
        if source.shape[:1] != (batch,):
            return self.expand(value, make_static(*shape))
        if len(value.shape) == len(shape):
            value = self.reshape(value, value.shape[1:])  # without its extent of 1 for the batch
        example = self.expand(value, tuple(shape_of_example))
        count = prod(shape_of_example)
        column = self._constant_layer(np.ones(1, "f4"), source, batch=(batch,))
        row = self.reshape(example, (1, count))
        product = self.emit(make("nn.MM"), column, row, shape=(batch, count))
        return self.reshape(product, shape)


def _require_equal(extent: Any, other: Any) -> None:
    """Refuse extents that are not equal in the example; that they always are becomes a condition.

    Raises:
        CannotError: they are not.
    """
    if extent != other and not decide_equal(extent, other):
        raise CannotError(f"the extents {extent} and {other} do not match")


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
