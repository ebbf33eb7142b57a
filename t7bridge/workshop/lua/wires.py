"""Values as nodes of a Lua graph: layers are applied to them; constants and tensors of the state dict become nodes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from attrs import field

from ...data import define, np
from .layers import Arithmetic, LuaLayer, LuaNode, WeightRef, expand_as, make, sequential, walk
from .sizes import CannotError, Extent, Shape, are_equal, fixed, is_known
from .trace import Program, to_tensor, tree_map
from .values import Complex, Const, Scaled, Stored, as_number, broadcast, is_parameter, with_extents
from .views import VIEWS, from_contiguous, is_repeated, view_layer

MOST_REPEATED = 1 << 16
"""Elements of a constant up to which it is stored as repeated as it is used."""
EMPTY = "a value without elements, which Lua does not have"
OWN = {"nn.CMulTable": ("nn.CMul", "weight"), "nn.CAddTable": ("nn.CAdd", "bias")}
"""Layers of two values → the layer with a parameter as the second, and its field."""


@define(eq=False)
class Wire(Arithmetic["Wire"]):
    """A value computed when the model runs."""

    b: Emitter = field(repr=False)
    step: LuaNode
    shape: Shape

    def __rshift__(self, layer: LuaLayer) -> Wire:
        """Apply a layer that keeps the shape."""
        return self.b.emit(layer, self)

    def joined(self, name: str, other: Any, swapped: bool = False) -> Wire:
        """Apply a layer of two values, which are broadcast."""
        pair = (other, self) if swapped else (self, other)
        wire: Wire = self.b.joined(name, *pair)
        return wire


def first_wire(values: Sequence[Any], shape: Shape | None = None) -> Wire | None:
    """Return the first value that is computed when the model runs; of a shape, if one has it, or at least its batch."""
    wires = [value for value in values if isinstance(value, Wire)]
    if shape is not None:
        wires = [wire for wire in wires if wire.shape[:1] == shape[:1]]
        wires.sort(key=lambda wire: wire.shape != shape)  # those of the shape come first
    return wires[0] if wires else None


@define(eq=False)
class Emitter:
    """Emits the steps of a Lua graph; a value that keeps its shape, or is one already, needs none.

    Attributes:
        program: the traced program.
        steps: the emitted steps, in order.
        env: name of a value of the program → the value.
    """

    program: Program
    steps: list[LuaNode] = field(factory=list)
    env: dict[str, Any] = field(factory=dict)

    # Values

    @staticmethod
    def constant(array: Any, shape: Shape | None = None) -> Const:
        """Return a numpy array as a constant, broadcast to a shape."""
        return Const(to_tensor(np.asarray(array)), tuple(array.shape) if shape is None else tuple(shape))

    def empty(self, shape: Shape) -> Const:
        """Return a value without elements, which no input changes."""
        size = [extent if isinstance(extent, int) else 1 for extent in shape]
        return self.constant(np.zeros(size, "f4"), shape)

    def emit(self, layer: LuaLayer, *values: Any, shape: Shape | None = None) -> Wire:
        """Apply a layer to values.

        Args:
            layer: the layer.
            values: wires, constants or tensors of the state dict, in the order of Lua's table.
            shape: of the result; by default that of the first value.
        """
        wires = self.wires(*values)
        shape = wires[0].shape if shape is None else tuple(shape)
        if 0 in shape:
            raise CannotError(EMPTY)
        for inner in walk(layer):
            inner.args = tree_map(as_number, inner.args)
            inner.calls = tree_map(as_number, inner.calls)
        if is_repeated(wires[0].step):
            layer = from_contiguous(layer)
        step = LuaNode(layer, [wire.step for wire in wires], shape)
        self.steps.append(step)
        return Wire(self, step, shape)

    def wire(self, value: Any, like: Wire | None = None) -> Any:
        """Return a value as a wire; constants and tensors of the state dict become nodes that ignore their input.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            like: a value with the batch in its first dimension, if the result has it too.
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
            # Layers other than nn.Linear need a contiguous weight.
            size = value.ref.size[::-1]
            plain = Stored(WeightRef(value.ref.key, value.ref.start, size), size, value.learned)
            return self.expand(self._transpose(plain, (1, 0)), value.shape, like)
        return self._attached(value, like or self._any_input())

    def wires(self, *values: Any) -> list[Any]:
        """Return values as wires; those that are not computed are attached to one that is."""
        like = first_wire(values)
        return [self.wire(value, like) for value in values]

    def _product(self, scaled: Scaled) -> Any:
        """Return a learned tensor times its scale as a wire."""
        scale = scaled.scale
        if scaled.place is not None:
            behind = len(scaled.shape) - scaled.place - 1
            scale = self.reshape(scale, (*scale.shape, *(1,) * behind))
        return self.wire(scaled.param) * scale

    def _attached(self, value: Any, source: Wire) -> Any:
        """Return a constant or a tensor of the state dict as a node that takes a value, and the batch from it.

        All are nn.Constant, which ignores its input. It repeats itself for each example of the batch if it is told how
        many dimensions an example of the input has.
        """
        shape = value.shape
        size = tuple(value.value.shape) if isinstance(value, Const) else value.ref.size
        size = (1,) * (len(shape) - len(size)) + size
        batch: Shape = ()
        rank_of_examples = None
        if shape and isinstance(shape[0], Extent):
            if shape[:1] != source.shape[:1] or size[0] != 1:
                fixed(shape[0])  # the value has a batch of its own, which is then that of the example
            batch = shape[:1]
            rank_of_examples = len(source.shape) - 1
        size = size[len(batch) :] or (1,)
        # Extents behind the batch that depend on the inputs are repeated last, by those of the source.
        repeated = tuple(1 if isinstance(extent, Extent) else extent for extent in shape[len(batch) :]) or (1,)
        if isinstance(value, Const):
            array = self._constant_array(value, size, repeated)
            wire = self.emit(make("nn.Constant", array, rank_of_examples), source, shape=batch + array.shape)
            wire = self.expand(wire, batch + repeated)
        elif value.learned:
            # A weight with a gradient is that of an nn.CMul of ones.
            ones = make("nn.Constant", np.ones(repeated, "f4"), rank_of_examples)
            weight_size = (1,) * len(batch) + size
            weight = make("nn.CMul", *weight_size, weight=value.ref.resized(weight_size))
            wire = self.emit(ones, source, shape=batch + repeated) >> weight
        else:
            layer = make("nn.Constant", np.zeros(size, "f4"), rank_of_examples, value=value.ref.resized(size))
            wire = self.expand(self.emit(layer, source, shape=batch + size), batch + repeated)
        if not is_known(shape[len(batch) :]):
            return self.expand(wire, shape, source)
        return self.reshape(wire, shape)

    def _constant_array(self, value: Const, size: Shape, repeated: Shape) -> Any:
        """Return the elements of a constant in the model's type, repeated unless they are too many."""
        array = value.array().reshape(size)
        if prod(repeated) <= MOST_REPEATED:
            size = repeated
        is_wide = array.dtype == "f8" or (array.dtype == "i8" and self.program.is_double)
        return np.ascontiguousarray(np.broadcast_to(array, size)).astype("f8" if is_wide else "f4")

    def _any_input(self) -> Wire:
        """Return a wire to attach a constant to, an input if possible."""
        for name in self.program.inputs:
            value = self.env[name]
            if isinstance(value, Wire):
                return value
        raise CannotError("the module has no inputs")

    # Arithmetic

    def joined(self, name: str, first: Any, second: Any, *args: Any) -> Any:
        """Apply a layer that takes a table of two, after broadcasting; parameters become nn.CMul and nn.CAdd.

        Args:
            name: of its class.
            first: a wire, a constant or a tensor of the state dict.
            second: likewise.
            args: of its constructor.
        """
        first, second = (self.wire(value) if isinstance(value, Scaled) else value for value in (first, second))
        if isinstance(first, Wire) and isinstance(second, Wire):
            if name == "nn.CMulTable" and first.step is second.step:
                return first >> make("nn.Square")
        elif name in (*OWN, "nn.CSubTable"):
            wire = self._by_parameter(name, first, second)
            if wire is not None:
                return wire
        shape = broadcast(first.shape or (1,), second.shape or (1,))
        like = first_wire((first, second), shape)
        return self.emit(make(name, *args), self.widened(first, shape, like), self.widened(second, shape, like))

    def _by_parameter(self, name: str, first: Any, second: Any) -> Any:
        """Apply a layer that holds one of two values as its weight; return `None` if none of them is a parameter."""
        # A transposed weight would not be contiguous in the layer.
        if isinstance(first, Wire) and is_parameter(second) and not second.ref.transposed:
            if name == "nn.CSubTable":  # first - second is -(-first + second)
                return -self._with_parameter("nn.CAddTable", -first, second)
            return self._with_parameter(name, first, second)
        if isinstance(second, Wire) and is_parameter(first):
            if name == "nn.CSubTable":
                return self.joined("nn.CAddTable", -second, first)
            return self.joined(name, second, first)
        return None

    def _with_parameter(self, name: str, value: Wire, param: Stored) -> Wire:
        """Apply the layer that multiplies by a parameter or adds one."""
        shape = broadcast(value.shape or (1,), param.shape)
        size = (1,) * (len(shape) - len(param.ref.size)) + param.ref.size
        layer, field = OWN[name]
        return self.emit(make(layer, *size, **{field: param.ref.resized(size)}), self.expand(value, shape))

    def widened(self, value: Any, shape: Shape, like: Wire | None) -> Any:
        """Return a value broadcast to a shape, as a wire."""
        if not isinstance(value, Wire):
            # Without a value of the batch, one that has its dimension keeps its own extent.
            has_batch = like is None and isinstance(shape[0], Extent) and len(value.shape) == len(shape)
            value = self.wire(value if has_batch else self.expand(value, shape), like)
        return self.expand(value, shape, like)

    # Shapes

    def reshape(self, value: Any, shape: Any) -> Any:
        """Reshape a value to another shape with equally many elements."""
        shape = tuple(shape)
        if value.shape == shape:
            return value
        stored = _reshaped(value, shape)
        if stored is not None:
            return stored
        wire = self.wire(value)
        # Only the last of several shapes counts, but a view may need what another has inferred.
        for source in (self.before_view(wire), wire):
            if source.shape == shape:
                return source
            if {source.shape, shape} == {(), (1,)}:
                return Wire(self, source.step, shape)
            layer = view_layer(source.shape, shape)
            if layer is not None:
                return self.emit(layer, source, shape=shape)
        is_split = wire.shape[1:] == shape[2:] and wire.shape[0] == prod(shape[:2])
        if is_split and not is_known(shape[2:]):
            return self._unmerged(wire, shape)
        is_merge = wire.shape[2:] == shape[1:] and shape[0] == prod(wire.shape[:2])
        if is_merge and not is_known(shape[1:]):
            return self._merged(wire, shape)
        fixed(*shape[1:])  # a view infers one extent: the others are those of the example
        return self.emit(make("nn.View", *shape[1:]), wire, shape=shape)

    def _unmerged(self, wire: Wire, shape: Shape) -> Any:
        """Return a value whose first dimension becomes two, where others depend on the inputs, too.

        A view infers one extent only: the dimension is the last one for it.
        """
        rank = len(shape)
        last = self.permute(wire, (*range(1, rank - 1), 0))
        return self.permute(self.reshape(last, (*shape[2:], *shape[:2])), (rank - 2, rank - 1, *range(rank - 2)))

    def _merged(self, wire: Wire, shape: Shape) -> Any:
        """Return a value whose first two dimensions become one, where others depend on the inputs, too.

        A view infers one extent only: the two are the last ones for it.
        """
        rank = len(shape)
        last = self.permute(wire, (*range(2, rank + 1), 0, 1))
        return self.permute(self.reshape(last, (*shape[1:], shape[0])), (rank - 1, *range(rank - 1)))

    def before_view(self, wire: Wire) -> Wire:
        """Return the value that a view shapes; others unchanged."""
        if wire.step.layer is None or wire.step.layer.name not in VIEWS:
            return wire
        source = wire.step.inputs[0]
        return Wire(self, source, source.shape)

    def permute(self, value: Any, order: Any) -> Any:
        """Permute dimensions; `order` is the source of each dimension of the result, negative from the end."""
        order = tuple(place % len(value.shape) for place in order)
        shape = tuple(value.shape[place] for place in order)
        if list(order) == sorted(order):
            return value
        if isinstance(value, Const) and is_known(value.shape):
            return Const(value.value.expand(value.shape).permute(order), shape)
        # Dimensions of extent 1 may move without any element doing so.
        longer = [place for place in order if value.shape[place] != 1]
        if longer == sorted(longer) and (not isinstance(value, Stored) or value.whole):
            return self.reshape(value, shape)
        if isinstance(value, Stored) and len(longer) == 2 and all(extent == 1 for extent in shape[:-2]):
            turned = self._turned_matrix(value, shape)
            if turned is not None:
                return turned
        return self._transpose(value, order)

    def _turned_matrix(self, value: Stored, shape: Shape) -> Stored | None:
        """Return a matrix of the state dict with rows and columns exchanged, as layers hold it; `None` if they cannot.

        Args:
            value: the matrix.
            shape: of the result, with dimensions of extent 1 before the two.
        """
        ref = value.ref
        matrix = shape[-2:]
        if ref.transposed and ref.size == value.shape:
            return Stored(WeightRef(ref.key, ref.start, matrix), shape, value.learned)
        if value.whole and tuple(self.program.state[ref.key].shape) == matrix[::-1]:
            return Stored(WeightRef(ref.key, 0, matrix, True), shape, value.learned)
        return None

    def _transpose(self, value: Any, order: Shape) -> Wire:
        """Permute dimensions by exchanges of two."""
        swaps = []
        current = list(range(len(order)))  # the dimension of the value at each place, after the swaps so far
        for place, wanted in enumerate(order):
            source = current.index(wanted)
            if source != place:
                swaps.append((place + 1, source + 1))  # Lua counts from 1
                current[place], current[source] = current[source], current[place]
        return self.emit(make("nn.Transpose", *swaps), value, shape=tuple(value.shape[place] for place in order))

    # Repetition

    def expand(self, value: Any, shape: Shape, like: Wire | None = None) -> Any:
        """Repeat a value along dimensions of extent 1, and along new dimensions in front.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            shape: of the result.
            like: a value with the batch of the result in its first dimension, if the value does not have it.
        """
        shape = tuple(shape)
        if value.shape == shape:
            return value
        if isinstance(value, Const):
            return Const(value.value, shape)
        if isinstance(value, Stored):
            return Stored(value.ref, shape, value.learned)
        value = Wire(self, value.step, value.shape or (1,))
        lacks_batch = len(value.shape) < len(shape) or value.shape[:1] == (1,)
        if lacks_batch and shape and isinstance(shape[0], Extent) and is_known(shape[1:]):
            return self._for_each_example(value, shape, like)
        value = self._expanded_as(value, shape, like or self._any_input())
        while len(value.shape) < len(shape):
            extent = shape[len(shape) - len(value.shape) - 1]
            value = self.emit(make("nn.Replicate", extent, 1), value, shape=(extent, *value.shape))
        for place, extent in enumerate(shape):
            value = self._repeated(value, place, extent)
        return value

    def _repeated(self, value: Wire, place: int, extent: Any) -> Wire:
        """Repeat a value along a dimension, unless it has the extent."""
        if value.shape[place] == extent:
            return value
        if value.shape[place] != 1:
            if not are_equal(value.shape[place], extent):
                raise CannotError(f"the extents {value.shape[place]} and {extent} do not match")
            return value
        layers = [make("nn.Select", place + 1, 1), make("nn.Replicate", extent, place + 1)]
        if len(value.shape) == 1:  # the element of a vector is not a tensor in Lua
            layers = [make("nn.Replicate", extent, 1), make("nn.Select", 2, 1)]
        return self.emit(sequential(*layers), value, shape=with_extents(value.shape, place, extent))

    def _expanded_as(self, value: Wire, shape: Shape, like: Wire) -> Wire:
        """Repeat a value along the dimensions whose extents depend on the inputs, where another value has the same."""
        full = (*(1,) * (len(shape) - len(value.shape)), *value.shape)
        expanded = list(full)
        places = []
        for place, extent in enumerate(shape):
            if full[place] == 1 and isinstance(extent, Extent) and like.shape[place : place + 1] == (extent,):
                places.append(place)
                expanded[place] = extent
        if not places:
            return value
        layer = expand_as(len(like.shape), places)
        return self.emit(layer, self.reshape(value, full), like, shape=tuple(expanded))

    def _for_each_example(self, value: Wire, shape: Shape, like: Wire | None) -> Any:
        """Repeat a value for each example: the product of a column of ones, one per example, and the value as a row."""
        source = like or self._any_input()
        if source.shape[:1] != shape[:1]:
            return self.expand(value, fixed(*shape))
        if len(value.shape) == len(shape):
            value = self.reshape(value, value.shape[1:])
        row = self.expand(value, shape[1:])
        count = prod(shape[1:])
        ones = make("nn.Constant", np.ones(1, "f4"), len(source.shape) - 1)
        column = self.emit(ones, source, shape=(shape[0], 1))
        product = self.emit(make("nn.MM"), column, self.reshape(row, (1, count)), shape=(shape[0], count))
        return self.reshape(product, shape)


def _reshaped(value: Any, shape: Shape) -> Any:
    """Return a constant or a tensor of the state dict in another shape; `None` if a layer has to do it."""
    if isinstance(value, Const) and value.value.numel() == 1:
        return Const(value.value.reshape((1,) * len(shape)), shape)
    if isinstance(value, Const) and is_known(shape) and is_known(value.shape):
        return Const(value.value.expand(value.shape).reshape(shape), shape)
    if isinstance(value, Stored) and is_known(shape) and value.whole:
        return Stored(value.ref.resized(shape), shape, value.learned)
    return None
