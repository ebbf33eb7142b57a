"""The table of operations, and what their builders use: values that are computed when the Lua model runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from attrs import field

from ...data import define, np
from .exporting import is_tensor
from .layers import Arithmetic, LuaLayer, LuaNode, WeightRef, expand_as, make, row, sequential, walk
from .sizes import CannotError, Extent, Shape, are_equal, computed, fixed, is_known
from .trace import CallRef, Program, TracedCall, fold, to_tensor, tree_map
from .values import (
    Complex,
    Const,
    Learned,
    Missing,
    Place,
    Scaled,
    Steps,
    Stored,
    broadcast,
    check_learned,
    is_parameter,
    number_of,
    with_extents,
)
from .views import VIEWS, from_contiguous, is_repeated, view_layer
from .whole import Bounds

__all__ = [
    "MOST_COUNTED",
    "OF_COMPLEX",
    "OPERATIONS",
    "Builder",
    "Complex",
    "Const",
    "Learned",
    "Missing",
    "Operation",
    "Place",
    "Scaled",
    "Steps",
    "Stored",
    "Wire",
    "broadcast",
    "check_learned",
    "first_wire",
    "is_parameter",
    "number_of",
    "operation",
    "with_extents",
]

MOST_REPEATED = 1 << 16
"""Elements of a constant up to which it is stored as repeated as it is used."""
MOST_COUNTED = 1 << 12
"""Positions that are counted when the model runs; more are refused. A power of two, for `Builder.positions`."""
MOST_RANGES = 8
"""Parts that are joined: so many elements from the end of a dimension, or fewer ranges of indices."""
MOST_UNNAMED = 4
"""Layers that an operation may have without being a function of the source."""
EMPTY = "a value without elements, which Lua does not have"
OWN = {"nn.CMulTable": ("nn.CMul", "weight"), "nn.CAddTable": ("nn.CAdd", "bias")}
"""Layers of two values → the layer with a parameter as the second, and its field."""


@define(eq=False)
class Wire(Arithmetic["Wire"]):
    """A value computed when the model runs."""

    b: Builder = field(repr=False)
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
    """Return the first value that is computed when the model runs, perhaps one of a shape, or at least its batch."""
    wires = [value for value in values if isinstance(value, Wire)]
    if shape is None:
        return wires[0] if wires else None
    of_batch = [wire for wire in wires if wire.shape[:1] == shape[:1]]
    return min(of_batch, key=lambda wire: wire.shape != shape, default=None)


# The table


@define(eq=False)
class Operation:
    """An entry of the table.

    Attributes:
        names: the operations, `aten.relu.default`.
        lua: the Lua layers that it becomes, for the documentation.
        build: builds it; receives the builder and those arguments of ATen that it names. Arguments before a `/` are
            passed by position, as operations of one entry may name them differently. The annotation of an argument
            says how it is passed: as a `Wire`, a dimension as a `Place`, a `Learned` tensor or not at all.
        note: a note for the documentation.
        scaled: whether it accepts a `Scaled`.
        package: what must be allowed for it: `layers`; empty for nn and nngraph.
        missing: why Lua lacks its other results, if it returns the first of several.
    """

    names: tuple[str, ...]
    lua: str
    build: Callable[..., Any]
    note: str = ""
    scaled: bool = False
    package: str = ""
    missing: str = ""

    def call(self, b: Builder, args: dict[str, Any]) -> Any:
        """Build a call with the arguments of its schema, by name."""
        _, *parameters = inspect.signature(self.build).parameters.values()  # the first is the builder
        args = _with_numbers(args, getattr(b.call.target, "_schema", None))
        first = next(iter(args.values()), None)
        rank = len(getattr(first, "shape", b.shape))
        named = dict(args)
        positional = []
        for parameter, name in zip(parameters, args):
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(named.pop(name))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            named = {parameter.name: named[parameter.name] for parameter in parameters if parameter.name in named}
        for parameter in parameters:
            if parameter.name in named:
                named[parameter.name] = _as_annotated(b, parameter, named[parameter.name], rank)
        return self.build(b, *positional, **named)


def _as_annotated(b: Builder, parameter: inspect.Parameter, value: Any, rank: int) -> Any:
    """Return an argument as the annotation of a builder's parameter says, for values of some dimensions.

    Raises:
        CannotError: it is no parameter of the module, as a `Learned` one is.
    """
    annotation = parameter.annotation  # a text in files with `from __future__ import annotations`
    kind = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if kind == "Wire":
        return b.wire(value)
    if kind == "Place":
        return value % rank
    if kind.startswith("Learned"):
        check_learned(value, parameter.name)
    return value


def _with_numbers(args: dict[str, Any], schema: Any) -> dict[str, Any]:
    """Return arguments with booleans as numbers where a schema has these, as PyTorch takes `True` for 1."""
    if schema is None:
        return args
    kinds = {argument.name: str(argument.type) for argument in schema.arguments}
    return {name: tree_map(partial(_as_kind, kind=kinds.get(name, "bool")), value) for name, value in args.items()}


def _as_kind(item: Any, kind: str) -> Any:
    if not isinstance(item, bool) or "bool" in kind:
        return item
    return int(item) if "int" in kind else float(item)


OPERATIONS: dict[str, Operation] = {}
"""The table: ATen operation → its composition of Lua layers. `operations/` fills it."""
OF_COMPLEX: dict[str, Operation] = {}
"""The same for operations on complex numbers."""


def operation(
    names: str, lua: str, note: str = "", complex: bool = False, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the builder of some operations.

    Args:
        names: ATen's names without `aten.`, separated by spaces: `add.Tensor relu`; `.default` may be left out. Those
            of another library with its name: `mine::scale`.
        lua: see `Operation`.
        note: see `Operation`.
        complex: whether it is for complex numbers.
        options: other attributes of the `Operation`.
    """
    full_names = tuple(_full_name(name) for name in names.split())

    def decorate(build: Callable[..., Any]) -> Callable[..., Any]:
        entry = Operation(full_names, lua, build, note, **options)
        for name in full_names:
            if complex:
                OF_COMPLEX[name] = entry
                OPERATIONS.setdefault(name, entry)  # real numbers may have an entry of their own
            else:
                OPERATIONS[name] = entry
        return build

    return decorate


def _full_name(name: str) -> str:
    """Return `aten.add.Tensor` of `add.Tensor`, `mine.scale.default` of `mine::scale`."""
    library, separator, operation_name = name.rpartition("::")
    if "." not in operation_name:
        operation_name = f"{operation_name}.default"
    return f"{library}.{operation_name}" if separator else f"aten.{operation_name}"


# What builders use


@define(eq=False)
class Builder:
    """Emits the steps of a Lua graph, for the operations of a program.

    Attributes:
        program: the traced program.
        allow: other Lua packages than nn and nngraph that may be used.
        steps: the emitted steps, in order.
        notes: notes for the user: text → whether it is a warning.
        env: name of a value of the program → the value.
        bounds: name of a value of whole numbers → its bounds.
        call: the operation that is built.
    """

    program: Program
    allow: tuple[str, ...] = ()
    steps: list[LuaNode] = field(factory=list)
    notes: dict[str, bool] = field(factory=dict)
    env: dict[str, Any] = field(factory=dict)
    bounds: dict[str, Bounds] = field(factory=dict)
    call: TracedCall = field(default=None)

    # The operation

    @property
    def path(self) -> str:
        """The path of the module that contains the call."""
        return self.call.stack[-1].partition("|")[2] if self.call.stack else ""

    @property
    def module(self) -> Any:
        """The module that contains the call."""
        return self.program.modules.get(self.path)

    @property
    def kind(self) -> str:
        """The name of the operation: `max_pool2d`."""
        return self.call.op.split(".")[1]

    @property
    def dtype(self) -> str:
        """The element type of the value of the current call."""
        return self.program.dtypes.get(self.call.name, "")

    @property
    def shape(self) -> Any:
        """The shape of the value of the current call."""
        return self.call.shape

    def dtype_of(self, name: str, item: int | None = None) -> str:
        """Return the element type of an argument of the call, or of an item of it, `float32`; empty if unknown."""
        argument = self.call.args.get(name)
        if argument is not None and item is not None:
            argument = argument[item]
        return self.program.dtypes.get(argument.name, "") if isinstance(argument, CallRef) else ""

    def remark(self, text: str, warning: bool = False) -> None:
        """Add a note for the user, once."""
        self.notes.setdefault(text, warning)

    def compute(self, args: dict[str, Any]) -> Any:
        """Run the current operation on constants."""
        result = fold(self.call, tree_map(_as_constant, args))
        return tree_map(lambda item: Const(item, tuple(item.shape)) if is_tensor(item) else item, result)

    # Values

    @staticmethod
    def constant(array: Any, shape: Shape | None = None) -> Const:
        """Return a numpy array as a constant, broadcast to a shape."""
        return Const(to_tensor(np.asarray(array)), tuple(array.shape) if shape is None else tuple(shape))

    def empty(self, shape: Shape) -> Const:
        """Return a value without elements, which no input changes."""
        return self.constant(np.zeros([extent if isinstance(extent, int) else 1 for extent in shape], "f4"), shape)

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
            inner.args = tree_map(_as_number, inner.args)
            inner.calls = tree_map(_as_number, inner.calls)
        if is_repeated(wires[0].step):
            layer = from_contiguous(layer)
        stack: tuple[str, ...] = ()
        if self.call is not None:  # inputs are emitted before any call
            stack = self.call.stack
            layer.path = layer.path or self.path
            if not layer.label:
                layer.label = self._label_of(layer)
        step = LuaNode(layer, [wire.step for wire in wires], shape, stack)
        self.steps.append(step)
        return Wire(self, step, shape)

    def _label_of(self, layer: LuaLayer) -> str:
        """Return the name of a function of the source for an operation of many layers; empty for others."""
        if layer.weights or len(walk(layer)) <= MOST_UNNAMED:
            return ""
        is_leaf = self.module is not None and next(self.module.children(), None) is None
        if not is_leaf:
            return self.kind
        # Normalizations have their weights in layers of their own: the function is not all of the module.
        return "" if "norm" in self.kind else type(self.module).__name__

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
        """Return a constant or a tensor of the state dict as a node that takes a value, and the batch from it."""
        shape = value.shape
        size = tuple(value.value.shape) if isinstance(value, Const) else value.ref.size
        size = (1,) * (len(shape) - len(size)) + size
        batch: Shape = ()
        depth = None  # the number of dimensions that an example of the source has, for which nn.Constant repeats itself
        if shape and isinstance(shape[0], Extent):
            if shape[:1] != source.shape[:1] or size[0] != 1:
                fixed(shape[0])  # the value has a batch of its own, which is then that of the example
            batch = shape[:1]
            depth = len(source.shape) - 1
        size = size[len(batch) :] or (1,)
        # Extents behind the first that depend on the inputs are repeated by those of the other value.
        repeated = tuple(1 if isinstance(extent, Extent) else extent for extent in shape[len(batch) :]) or (1,)
        if isinstance(value, Const):
            array = self._constant_array(value, size, repeated)
            wire = self.emit(make("nn.Constant", array, depth), source, shape=batch + array.shape)
            wire = self.expand(wire, batch + repeated)
        elif value.learned:
            # A weight with a gradient is that of an nn.CMul of ones.
            full = (1,) * len(batch) + size
            wire = self.emit(make("nn.Constant", np.ones(repeated, "f4"), depth), source, shape=batch + repeated)
            wire = wire >> make("nn.CMul", *full, weight=value.ref.resized(full))
        else:
            layer = make("nn.Constant", np.zeros(size, "f4"), depth, value=value.ref.resized(size))
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

    def operands(self, *values: Any) -> list[Any]:
        """Return values for formulas: numbers where they have one element, and at least one wire."""
        values = tuple(self._measured(value) for value in values)
        operands = []
        for value in values:
            number = number_of(value)
            operands.append(value if number is None else number)
        if not any(isinstance(operand, Wire) for operand in operands):
            # A tensor of several elements becomes the wire, else one of one element, and last a number of the source.
            ranks = [
                isinstance(operand, float) + isinstance(value, (int, float)) for operand, value in zip(operands, values)
            ]
            place = ranks.index(min(ranks))
            operands[place] = self.wire(values[place])
        return operands

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

    # Sizes as values

    def _measured(self, value: Any) -> Any:
        """Return a number that depends on the sizes of the inputs as a tensor of one element; others unchanged.

        Whole numbers stay those of the example: a float may not hold the product of two sizes.
        """
        if not isinstance(value, Extent) or not self.dtype.startswith("float"):
            return value
        measured = computed(value.expr, self._count)
        return value if measured is None else measured

    def _count(self, symbol: Any) -> Any:
        """Return the value of a symbol, counted along a dimension of an input; `None` if none has it alone."""
        for name, shape in self.program.inputs.items():
            for place, extent in enumerate(shape):
                current = extent.now() if isinstance(extent, Extent) else extent
                if not isinstance(current, Extent):
                    continue
                step = current.expr.coeff(symbol)
                rest = current.expr - step * symbol
                if step.is_Integer and step != 0 and rest.is_Integer:
                    count = self._ones_along(self.env[name], place) >> make("nn.Sum", 1)
                    count = Wire(self, count.step, (1,))
                    return (count - float(rest)) / float(step)
        return None

    def _ones_along(self, wire: Wire, place: int) -> Wire:
        """Return a vector of as many ones as a value has elements along a dimension."""
        rank = len(wire.shape)
        first = row(rank, place) if rank > 1 else make("nn.Identity")
        ones = first >> (make("nn.Constant", np.ones(1, "f4"), 0) >> make("nn.Select", 2, 1))
        return self.emit(ones, wire, shape=(wire.shape[place],))

    def positions(self, extent: Extent) -> Wire | None:
        """Return 1, 2, … n, where n is the extent of a dimension of an input; `None` if it is not, or too large.

        The number of ones in the windows that end at each of n ones is an average of zeros and ones, times the size of
        the window: exact, as this is a power of two.
        """
        if extent.in_example > MOST_COUNTED:
            return None
        inputs = [name for name, shape in self.program.inputs.items() if extent in shape]
        if not inputs or not extent <= MOST_COUNTED:
            return None
        ones = self._ones_along(self.env[inputs[0]], self.program.inputs[inputs[0]].index(extent))
        before = MOST_COUNTED - 1
        count = sequential(
            make("nn.Unsqueeze", 1),
            make("nn.Unsqueeze", 1),  # an image of height 1
            make("nn.Padding", 3, -before),
            make("nn.SpatialAveragePooling", MOST_COUNTED, 1, 1, 1),
            make("nn.MulConstant", MOST_COUNTED),
            make("nn.Select", 1, 1),
            make("nn.Select", 1, 1),
        )
        count.label = "CountFrom1"
        return self.emit(count, ones, shape=(extent,))

    def counted(self, numbers: Steps) -> Any:
        """Return numbers in steps from 0, counted when the model runs if layers can, or those of the example."""
        positions = self.positions(numbers.shape[0])
        return self.constant(numbers.array()) if positions is None else (positions - 1) * numbers.step

    def triangle(self, shape: Shape, diagonal: int) -> Wire:
        """Return a matrix that is 1 up to a diagonal and 0 above it, whose extents depend on the inputs.

        Args:
            shape: of the matrix.
            diagonal: as `torch.tril` counts it: 0 for the main one.
        """
        rows, columns = (self._vector_of_numbers(extent) for extent in shape)
        column = self.reshape(rows, (shape[0], 1))
        row_of_ones = self.reshape(self._ones_like(columns), (1, shape[1]))
        down = self.emit(make("nn.MM"), column, row_of_ones, shape=shape)
        column_of_ones = self.reshape(self._ones_like(rows), (shape[0], 1))
        across = self.emit(make("nn.MM"), column_of_ones, self.reshape(columns, (1, shape[1])), shape=shape)
        return down - across + float(diagonal + 1) >> make("nn.HardTanh", 0, 1)

    def _vector_of_numbers(self, extent: Any) -> Any:
        """Return 1, 2, … up to an extent."""
        positions = self.positions(extent) if isinstance(extent, Extent) else None
        return self.wire(self.constant(np.arange(1, int(extent) + 1, dtype="f4"))) if positions is None else positions

    @staticmethod
    def _ones_like(positions: Wire) -> Wire:
        """Return a vector of as many ones as another has elements, which are at least 1."""
        return positions >> make("nn.HardTanh", 0, 1)

    # Shapes

    def reshape(self, value: Any, shape: Any) -> Any:
        """Reshape a value to another shape with equally many elements."""
        shape = tuple(shape)
        if value.shape == shape:
            return value
        held = _reshaped(value, shape)
        if held is not None:
            return held
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
        current = list(range(len(order)))
        for place, wanted in enumerate(order):
            source = current.index(wanted)
            if source != place:
                swaps.append((place + 1, source + 1))
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

    # Parts

    def narrow(self, value: Any, place: int, start: int, count: int) -> Any:
        """Return elements `start` … of a dimension, 0-based."""
        shape = with_extents(value.shape, place, count)
        if shape == value.shape:
            return value
        if count == 0:
            return self.empty(shape)
        if isinstance(value, Const):
            part = _part_of_constant(value, place, start, count)
            if part is not None:
                return part
        behind = value.shape[place] - start - count
        if isinstance(count, Extent) and isinstance(start, int) and not isinstance(behind, int):
            part = self._counted_part(value, place, start, count)
            if part is not None:
                return part
        if place == 0 and isinstance(value, Stored) and value.whole:
            return _part_of_stored(value, *fixed(start, count))
        return self._narrowed(value, place, start, count)

    def _narrowed(self, value: Any, place: int, start: Any, count: Any) -> Any:
        """Return elements of a dimension by nn.Narrow, or by nn.Select if they are the last few of an open one."""
        shape = with_extents(value.shape, place, count)
        behind = value.shape[place] - start - count
        if isinstance(start, Extent) and behind == 0 and count in range(1, MOST_RANGES + 1) and len(shape) > 1:
            return self._from_end(value, place, count)
        # A negative length counts from the end: -1 is all that follows.
        length = -1 - behind if isinstance(count, Extent) and isinstance(behind, int) else count
        return self.emit(make("nn.Narrow", place + 1, start + 1, length), value, shape=shape)

    def _counted_part(self, value: Any, place: int, start: int, count: Extent) -> Any:
        """Return as many elements of a dimension as an extent of the inputs; `None` if these cannot be counted.

        nn.Narrow takes a number of elements, or all but those at the end: others are taken by their positions.
        """
        if not count <= value.shape[place] - start:
            return None
        positions = self.positions(count)
        if positions is None:
            return None
        positions = positions + start >> make("nn.Copy", "torch.FloatTensor", "torch.LongTensor", False, True)
        shape = with_extents(value.shape, place, count)
        return self.emit(make("nn.Index", place + 1), self.wire(value), positions, shape=shape)

    def _from_end(self, value: Any, place: int, count: int) -> Any:
        """Return the last elements of a dimension: nn.Select counts from the end, where nn.Narrow does not begin."""
        layers = [make("nn.Select", place + 1, index) for index in range(-count, 0)]
        elements = [self.emit(layer, value, shape=with_extents(value.shape, place)) for layer in layers]
        shape = with_extents(value.shape, place, 1)
        return self.concatenate([self.reshape(element, shape) for element in elements], place)

    def select(self, value: Any, place: int, index: int) -> Any:
        """Return one element of a dimension, 0-based, without the dimension."""
        shape = with_extents(value.shape, place)
        if isinstance(value, Wire) and shape:
            return self.emit(make("nn.Select", place + 1, index + 1), value, shape=shape)
        return self.reshape(self.narrow(value, place, index, 1), shape)

    def concatenate(self, values: list[Any], place: int) -> Any:
        """Join values along a dimension."""
        values = [value for value in values if value.shape != (0,) and value.shape[place] != 0]
        if len(values) == 1:
            return values[0]
        wires = self.wires(*values)
        total = sum(wire.shape[place] for wire in wires)
        return self.emit(make("nn.JoinTable", place + 1), *wires, shape=with_extents(wires[0].shape, place, total))

    def gathered(self, value: Any, index: Any, place: int, *others: Any) -> Any:
        """Return elements of a dimension by constant indices, which count on in other values: ranges, joined.

        The rows of a learned table stay learned.
        """
        values = (value, *others)
        index = index.reshape(-1)
        starts = list(accumulate(fixed(*(item.shape[place] for item in values[:-1])), initial=0))
        owners = np.searchsorted(starts, index, "right") - 1  # the value that each index counts into
        # A range ends where the next index is not the next element, or is in another value.
        is_end = (np.diff(index) != 1) | np.diff(owners).astype(bool)
        cuts = [0, *(np.flatnonzero(is_end) + 1), len(index)]
        is_table = not others and is_parameter(value) and value.whole and len(value.ref.size) <= 2
        if is_table and place == 0 and len(cuts) > 2:
            return self._looked_up(value, index)
        if len(cuts) <= MOST_RANGES:
            parts = []
            for start, end in pairwise(cuts):
                owner = owners[start]
                parts.append(self.narrow(values[owner], place, int(index[start] - starts[owner]), int(end - start)))
            return self.concatenate(parts, place)
        # The batch cannot be extended by constant positions, and the layer counts from 1.
        wire = self.wire(self.concatenate([*values], place))
        positions = self.wire(self.constant((index + 1).astype("f4")))
        positions = positions >> make("nn.Copy", "torch.FloatTensor", "torch.LongTensor", False, True)
        shape = with_extents(value.shape, place, len(index))
        return self.emit(make("nn.Index", place + 1), wire, positions, shape=shape)

    def _looked_up(self, table: Stored, index: Any) -> Any:
        """Return rows of a parameter; a vector is a table of rows of one element."""
        rows, width = (*table.ref.size, 1)[:2]
        layer = make("nn.LookupTable", rows, width, weight=table.ref.resized((rows, width)))
        positions = self.constant((index + 1).astype("f4"))
        wire = self.emit(layer, positions, shape=(len(index), width))
        return self.reshape(wire, (len(index), *table.shape[1:]))

    def replaced(self, value: Any, index: Any, part: Any, place: int) -> Any:
        """Return a value with other elements at constant indices of a dimension."""
        extent = int(value.shape[place])
        order = np.arange(extent)
        order[index] = extent + np.arange(len(index))  # those of the part, which follow the value's own
        return self.gathered(value, order, place, part)


def _reshaped(value: Any, shape: Shape) -> Any:
    """Return a constant or a tensor of the state dict in another shape; `None` if a layer has to do it."""
    if isinstance(value, Const) and value.value.numel() == 1:
        return Const(value.value.reshape((1,) * len(shape)), shape)
    if isinstance(value, Const) and is_known(shape) and is_known(value.shape):
        return Const(value.value.expand(value.shape).reshape(shape), shape)
    if isinstance(value, Stored) and is_known(shape) and value.whole:
        return Stored(value.ref.resized(shape), shape, value.learned)
    return None


def _part_of_constant(value: Const, place: int, start: Any, count: Any) -> Const | None:
    """Return elements of a dimension of a constant, which is broadcast where its own tensor has no such dimension.

    `None` if it has it, and which elements depends on the inputs.
    """
    shape = with_extents(value.shape, place, count)
    axis = place - len(value.shape) + value.value.dim()
    is_broadcast = axis < 0 or (value.value.shape[axis] == 1 and value.shape[place] != 1)
    if is_broadcast:
        return Const(value.value, shape)
    if not is_known((start, count)):
        return None
    return Const(value.value.narrow(axis, start, count), shape)


def _part_of_stored(value: Stored, start: int, count: int) -> Stored:
    """Return elements of the first dimension of a tensor of the state dict, which are a run in memory."""
    size = value.ref.size[1:]
    ref = WeightRef(value.ref.key, value.ref.start + start * prod(size), (count, *size))
    return Stored(ref, (count, *value.shape[1:]), value.learned)


def _as_number(value: Any) -> Any:
    return int(value) if isinstance(value, Extent) else value


def _as_constant(value: Any) -> Any:
    """Return the tensor of a constant, and the number of an extent."""
    return value.value if isinstance(value, Const) else _as_number(value)
