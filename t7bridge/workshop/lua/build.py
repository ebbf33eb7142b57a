"""The table of operations: how each of ATen's is built of Lua layers; and the `Builder` that does so for a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from math import isfinite, prod
from typing import Any

from attrs import field

from ...data import define, np
from .counts import MOST_COUNTED, extent_at_runtime, lower_triangle, positions_from_1, range_at_runtime
from .exporting import is_tensor
from .layers import LuaLayer, LuaNode, WeightRef, as_indices, make, walk
from .sizes import Extent, Shape, is_static, make_static
from .trace import CallRef, TracedCall, fold, tree_map
from .values import (
    Axis,
    Complex,
    Const,
    Learned,
    Missing,
    OpenRange,
    Scaled,
    Stored,
    as_number,
    broadcast,
    check_learned,
    is_parameter,
    number_of,
    replace_axis,
    without_axis,
)
from .whole import Bounds
from .wires import EMPTY, Emitter, Wire, wire_with_batch

__all__ = [
    "EMPTY",
    "MOST_COUNTED",
    "OF_COMPLEX",
    "OPERATIONS",
    "Axis",
    "Builder",
    "Complex",
    "Const",
    "Learned",
    "Missing",
    "OpenRange",
    "Operation",
    "Scaled",
    "Stored",
    "Wire",
    "broadcast",
    "check_learned",
    "is_parameter",
    "lower_triangle",
    "number_of",
    "operation",
    "range_at_runtime",
    "replace_axis",
    "wire_with_batch",
    "without_axis",
]

MOST_RANGES = 8
"""Parts that are joined: so many elements from the end of a dimension, or fewer ranges of indices."""
MOST_UNNAMED = 4
"""Layers that an operation may have in `model.lua` without a Lua function of its own."""


# The table


@define(eq=False)
class Operation:
    """An entry of the table of operations: how some of ATen's are built of Lua layers.

    Attributes:
        names: the operations, by their full names: `aten.relu.default`.
        lua: the Lua layers that it becomes, for the documentation.
        build: builds it; receives the builder and those arguments of ATen that it names. Arguments before a `/` are
            passed by position, as operations of one entry may name them differently. The annotation of an argument
            says how it is passed: as a `Wire`, a dimension as an `Axis`, a `Learned` tensor or not at all.
        note: a note for the documentation; empty if there is none.
        scaled: whether it accepts a `Scaled`; for others, `ProgramBuilder` makes a wire of one.
        package: what must be allowed for it: `layers`; empty for nn and nngraph.
        missing: why Lua lacks its other results, if it returns the first of several; else empty.
    """

    names: tuple[str, ...]
    lua: str
    build: Callable[..., Any]
    note: str = ""
    scaled: bool = False
    package: str = ""
    missing: str = ""

    def call(self, b: Builder, args: dict[str, Any]) -> Any:
        """Call `build` with those arguments that it has parameters for, each as its annotation says.

        Args:
            b: the builder.
            args: all arguments of the call: name in ATen's schema → value, in the order of the schema.
        """
        _, *parameters = inspect.signature(self.build).parameters.values()  # the first is the builder
        schema = getattr(b.call.target, "_schema", None)  # a function of Python has none
        remaining = _with_numbers_for_booleans(args, schema)
        # Negative dimensions count from the end of the first argument, or of the result if that is not a tensor.
        first_argument = next(iter(args.values()), None)
        rank = len(getattr(first_argument, "shape", b.shape))
        # Parameters before a `/` take the first arguments, whatever an operation of the entry calls them.
        positional = []
        for parameter, name in zip(parameters, args):
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(_as_annotated(b, parameter, remaining.pop(name), rank))
        # The others take those of their names.
        named = {}
        for parameter in parameters:
            if parameter.name in remaining:
                named[parameter.name] = _as_annotated(b, parameter, remaining.pop(parameter.name), rank)
        # `**options` of a builder takes what is left. Other builders do not need it.
        takes_options = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        if takes_options:
            named.update(remaining)
        return self.build(b, *positional, **named)


def _as_annotated(b: Builder, parameter: inspect.Parameter, value: Any, rank: int) -> Any:
    """Return an argument as the annotation of a builder's parameter says: `Wire`, `Axis`, `Learned`, or unchanged.

    Args:
        b: the builder.
        parameter: the parameter.
        value: the argument; an integer for an `Axis`, which becomes one from 0 on.
        rank: the number of dimensions that a negative `Axis` counts from the end of; not 0 for an `Axis`.

    Raises:
        CannotError: it is not a parameter of the module, as one annotated `Learned` has to be.
    """
    annotation = parameter.annotation  # a text in files with `from __future__ import annotations`
    kind = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if kind == "Wire":
        return b.wire(value)
    if kind == "Axis":
        return value % rank
    if kind.startswith("Learned"):  # or `Learned | None`
        check_learned(value, parameter.name)
    return value


def _with_numbers_for_booleans(args: dict[str, Any], schema: Any) -> dict[str, Any]:
    """Return a copy of arguments with booleans as numbers where the schema has numbers, as PyTorch takes `True` for 1.

    Args:
        args: name → value, which may be a list of values.
        schema: ATen's, with the type of each argument; `None` for functions without one.
    """
    if schema is None:
        return dict(args)
    types = {argument.name: str(argument.type) for argument in schema.arguments}
    result = {}
    for name, value in args.items():
        type_name = types.get(name, "bool")  # an argument that the schema does not name is not converted
        result[name] = tree_map(partial(_boolean_as, type_name=type_name), value)
    return result


def _boolean_as(item: Any, type_name: str) -> Any:
    """Return a boolean as a number, if it is one and a type of a schema, `int[]` or `Scalar`, has none."""
    if not isinstance(item, bool) or "bool" in type_name:
        return item
    return int(item) if "int" in type_name else float(item)


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

    def register(build: Callable[..., Any]) -> Callable[..., Any]:
        """Add a builder to the tables."""
        entry = Operation(full_names, lua, build, note, **options)
        for name in full_names:
            if complex:
                OF_COMPLEX[name] = entry
                OPERATIONS.setdefault(name, entry)  # real numbers may have an entry of their own
            else:
                OPERATIONS[name] = entry
        return build

    return register


def _full_name(name: str) -> str:
    """Return a full name: `aten.add.Tensor` of `add.Tensor`, `mine.scale.default` of `mine::scale`."""
    library, separator, operation_name = name.rpartition("::")
    if "." not in operation_name:
        operation_name = f"{operation_name}.default"
    return f"{library}.{operation_name}" if separator else f"aten.{operation_name}"


# What builders use


@define(eq=False)
class Builder(Emitter):
    """Applies Lua layers to values for one call of a program at a time: what the functions of the table build it with.

    Attributes:
        allow: what may be used besides nn and nngraph: `layers`, `rnn`; see `save.PACKAGES`.
        notes: notes for the user, each once: text → whether it is a warning. `remark` adds them.
        bounds: name of a value of whole numbers → its bounds, if an operation computes it; of others, such as inputs,
            the type tells them.
        call: the operation that is built; `None` while the inputs are, before any. `ProgramBuilder.run` sets it.
    """

    allow: tuple[str, ...] = ()
    notes: dict[str, bool] = field(factory=dict)
    bounds: dict[str, Bounds] = field(factory=dict)
    call: TracedCall = field(default=None)

    # The operation

    @property
    def path(self) -> str:
        """The path of the module that contains the call; empty for the outermost one."""
        return self.call.stack[-1].path if self.call.stack else ""

    @property
    def module(self) -> Any:
        """The module that contains the call; `None` if the program has no modules of Python."""
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

    def as_element(self, number: Any) -> Any:
        """Return a number as an element of the value of the current call, as PyTorch converts it.

        A mask takes 1 for all but 0, and integers drop a fraction. For a mask, an extent is fixed as in the example.
        """
        if self.dtype == "bool":
            return int(as_number(number) != 0)
        is_integer = self.dtype.startswith(("int", "uint"))
        if is_integer and isinstance(number, float) and isfinite(number):
            return int(number)
        return number

    def remark(self, text: str, warning: bool = False) -> None:
        """Add a note for the user, once."""
        self.notes.setdefault(text, warning)

    def compute(self, args: dict[str, Any]) -> Any:
        """Compute the current call now, of arguments that are all constants; tensors of the result are `Const`s."""
        result = fold(self.call, tree_map(_as_constant, args))
        return tree_map(lambda item: Const(item, tuple(item.shape)) if is_tensor(item) else item, result)

    def emit(self, layer: LuaLayer, *values: Any, shape: Shape | None = None) -> Wire:
        """Apply a layer to values, see `Emitter`; the step belongs to the module that contains the call."""
        wire = super().emit(layer, *values, shape=shape)
        if self.call is not None:  # inputs are emitted before any call
            self._place_in_module(wire.step)
        return wire

    def _place_in_module(self, step: LuaNode) -> None:
        """Note the PyTorch module that a step belongs to, and name its layer after it, unless it has a name."""
        layer = step.layer
        assert layer is not None
        step.stack = self.call.stack
        layer.path = layer.path or self.path
        if not layer.label:
            layer.label = self._label_of(layer)

    def _label_of(self, layer: LuaLayer) -> str:
        """Return the name of the Lua function that makes an operation of many layers; empty if it needs no function."""
        if layer.weights or len(walk(layer)) <= MOST_UNNAMED:
            return ""
        is_in_leaf = self.module is not None and next(self.module.children(), None) is None
        if not is_in_leaf:
            return self.kind
        if "norm" in self.kind:  # its weights are in layers of their own, so that this one is not all of the module
            return ""
        return type(self.module).__name__

    # Arithmetic

    def operands(self, *values: Any) -> list[Any]:
        """Return the operands of a formula, in their order, of which at least one is a wire.

        A tensor of one element whose value is known becomes a number. An extent becomes a wire, which counts when the
        model runs, if the formula computes floats. In one of whole numbers it is fixed as in the example: a float may
        not hold the product of two sizes.

        Args:
            values: numbers, extents, wires, constants and tensors of the state dict.
        """
        values = tuple(self._counted_if_float(value) for value in values)
        operands: list[Any] = []
        for value in values:
            number = number_of(value)
            operands.append(value if number is None else number)
        if any(isinstance(operand, Wire) for operand in operands):
            return operands
        # A layer needs an input: the operand that can best be one becomes a wire.
        costs = [_cost_as_wire(value, operand) for value, operand in zip(values, operands)]
        cheapest = costs.index(min(costs))
        operands[cheapest] = self.wire(values[cheapest])
        return operands

    def _counted_if_float(self, value: Any) -> Any:
        """Return an extent as a wire that counts it, if the call computes floats and layers can; others unchanged."""
        if not isinstance(value, Extent) or not self.dtype.startswith("float"):
            return value
        count = extent_at_runtime(self, value)
        return value if count is None else count

    # Parts

    def narrow(self, value: Any, axis: int, start: Any, count: Any) -> Any:
        """Return a range of a dimension; all of the dimension is the value itself.

        Where no layer can leave `start` and `count` open, they are fixed as in the example.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            axis: the dimension, 0-based.
            start: the first element, 0-based: a number or an `Extent`.
            count: the number of elements: likewise. The dimension has as many from `start` on.
        """
        shape = replace_axis(value.shape, axis, count)
        if shape == value.shape:
            return value
        if count == 0:
            return self.empty(shape)
        if isinstance(value, Const):
            part = _part_of_constant(value, axis, start, count)
            if part is not None:
                return part
        if isinstance(count, Extent) and isinstance(start, int):
            part = self._part_of_open_count(value, axis, start, count)
            if part is not None:
                return part
        # Rows of a tensor of the state dict need no layer: one that uses them can hold them as its weight.
        if axis == 0 and isinstance(value, Stored) and value.is_contiguous:
            return _part_of_stored(value, *make_static(start, count))
        return self._narrow_by_layer(value, axis, start, count)

    def _narrow_by_layer(self, value: Any, axis: int, start: Any, count: Any) -> Any:
        """Return elements of a dimension by nn.Narrow, or by nn.Select if they are the last few of an open one.

        The arguments are those of `narrow`.
        """
        shape = replace_axis(value.shape, axis, count)
        count_behind = value.shape[axis] - start - count
        # nn.Narrow counts the start from the front only, which an open one cannot be; see `_last_elements`.
        are_last_few = isinstance(start, Extent) and count_behind == 0 and count in range(1, MOST_RANGES + 1)
        if are_last_few and len(shape) > 1:  # nn.Select of a vector would be a number
            return self._last_elements(value, axis, count)
        length = count
        if isinstance(count, Extent) and isinstance(count_behind, int):
            length = -1 - count_behind  # nn.Narrow counts a negative length from the end: -1 is all that follows
        # `emit` fixes what is still open of the arguments as in the example.
        return self.emit(make("nn.Narrow", axis + 1, start + 1, length), value, shape=shape)

    def _part_of_open_count(self, value: Any, axis: int, start: int, count: Extent) -> Any:
        """Return as many elements of a dimension as an extent of the inputs, by nn.Index of their positions.

        `None` where another way is needed, or is better: nn.Narrow, if the elements behind those are as many for all
        inputs.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            axis: the dimension, 0-based.
            start: the first element, 0-based.
            count: the extent, an open one.
        """
        available = value.shape[axis] - start
        count_behind = available - count
        if isinstance(count_behind, int):
            return None
        # A comparison of extents. If their ranges do not decide it, its result in the example becomes a condition of
        # the model.
        has_enough = count <= available
        if not has_enough:
            return None
        numbers_from_1 = positions_from_1(self, count)
        if numbers_from_1 is None:  # no layers can count them when the model runs
            return None
        indices = (numbers_from_1 + start) >> as_indices()
        shape = replace_axis(value.shape, axis, count)
        return self.emit(make("nn.Index", axis + 1), self.wire(value), indices, shape=shape)

    def _last_elements(self, value: Any, axis: int, count: int) -> Any:
        """Return the last `count` elements of a dimension of any extent: each by nn.Select, and joined.

        nn.Select counts from the end, which nn.Narrow cannot. The value has two dimensions or more: nn.Select of a
        vector would be a number.
        """
        elements = []
        for index in range(-count, 0):
            element = self.emit(make("nn.Select", axis + 1, index), value, shape=without_axis(value.shape, axis))
            elements.append(element)
        shape = replace_axis(value.shape, axis, 1)
        return self.concatenate([self.reshape(element, shape) for element in elements], axis)

    def select(self, value: Any, axis: int, index: int) -> Any:
        """Return one element of a dimension, 0-based, without the dimension."""
        shape = without_axis(value.shape, axis)
        if isinstance(value, Wire) and shape:  # nn.Select of a vector would be a number
            return self.emit(make("nn.Select", axis + 1, index + 1), value, shape=shape)
        return self.reshape(self.narrow(value, axis, index, 1), shape)

    def concatenate(self, values: list[Any], axis: int) -> Any:
        """Join values along a dimension; those without elements are left out, as Lua has no such tensors.

        Args:
            values: wires, constants and tensors of the state dict. At least one has elements: an operation whose result
                has none is not built, see `ProgramBuilder`.
            axis: the dimension, 0-based.
        """
        # PyTorch joins an empty vector, of shape (0,), with values of any rank.
        values = [value for value in values if value.shape != (0,) and value.shape[axis] != 0]
        if len(values) == 1:
            return values[0]
        wires = self.wires(*values)
        total = sum(wire.shape[axis] for wire in wires)
        return self.emit(make("nn.JoinTable", axis + 1), *wires, shape=replace_axis(wires[0].shape, axis, total))

    def gather_constant(self, value: Any, indices: Any, axis: int, *others: Any) -> Any:
        """Return elements of a dimension of one or several values by constant indices, by the plainest layers.

        The indices count through the values one behind the other, as if `concatenate` had joined them.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            indices: an array of indices, 0-based and not negative, of any shape; its elements in order are those of the
                result.
            axis: the dimension, 0-based.
            others: further values, equal to the first one in all other dimensions.
        """
        values = [value, *others]
        indices = indices.reshape(-1)
        # The extent of the last value does not matter, and may be open.
        extents = make_static(*(item.shape[axis] for item in values[:-1]))
        ranges = _ranges_of(indices, extents)
        # A single range of rows of a table needs no layer, see `narrow`.
        if not others and axis == 0 and _is_table(value) and len(ranges) > 1:
            return self._rows_of_table(value, indices)
        if len(ranges) < MOST_RANGES:
            parts = [self.narrow(values[part.number], axis, part.start, part.count) for part in ranges]
            return self.concatenate(parts, axis)
        joined = self.wire(self.concatenate(values, axis))
        # The positions have no batch: nn.Index takes the same ones of all examples. Lua counts from 1.
        positions = self.wire(self.constant((indices + 1).astype("f4"))) >> as_indices()
        shape = replace_axis(value.shape, axis, len(indices))
        return self.emit(make("nn.Index", axis + 1), joined, positions, shape=shape)

    def _rows_of_table(self, table: Stored, indices: Any) -> Any:
        """Return rows of a parameter by nn.LookupTable, which learns them; a vector is a table of rows of one element.

        Args:
            table: the parameter, of one or two dimensions, whose elements are in order.
            indices: a vector of row numbers, 0-based.
        """
        rows = table.shape[0]
        width = prod(table.shape[1:])
        layer = make("nn.LookupTable", rows, width, weight=table.ref.resized((rows, width)))
        numbers = self.constant((indices + 1).astype("f4"))  # Lua counts from 1
        wire = self.emit(layer, numbers, shape=(len(indices), width))
        return self.reshape(wire, (len(indices), *table.shape[1:]))

    def replace_at(self, value: Any, indices: Any, part: Any, axis: int) -> Any:
        """Return a value with other elements at constant indices of a dimension, whose extent becomes static.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            indices: a vector of indices, 0-based; of repeated ones the last counts.
            part: the new elements: likewise a value, with as many in the dimension as there are indices.
            axis: the dimension, 0-based.
        """
        extent = int(value.shape[axis])
        # For each element of the result its index in the value and, behind that, the part.
        sources = np.arange(extent)
        sources[indices] = extent + np.arange(len(indices))
        return self.gather_constant(value, sources, axis, part)


def _is_table(value: Any) -> bool:
    """Return whether a value can be the weight of an nn.LookupTable, a matrix whose rows the layer takes."""
    return is_parameter(value) and value.is_contiguous and len(value.ref.size) <= 2


@define(frozen=True)
class _Range:
    """Consecutive elements of one of several values.

    Attributes:
        number: of the value, 0-based.
        start: the first element in that, 0-based.
        count: the number of elements.
    """

    number: int
    start: int
    count: int


def _ranges_of(indices: Any, extents: tuple[int, ...]) -> list[_Range]:
    """Return a vector of indices into several values, one behind the other, as ranges of consecutive elements.

    Args:
        indices: the indices, 0-based; one at least.
        extents: the number of elements of each value but the last.
    """
    starts = list(accumulate(extents, initial=0))  # the index of the first element of each value
    owners = np.searchsorted(starts, indices, "right") - 1  # the number of the value that each index is of
    # A range ends where the next index is not the next element, or is of another value.
    is_end = (np.diff(indices) != 1) | (np.diff(owners) != 0)
    cuts = [0, *(np.flatnonzero(is_end) + 1), len(indices)]
    ranges = []
    for begin, end in pairwise(cuts):
        owner = int(owners[begin])
        start = int(indices[begin]) - starts[owner]
        ranges.append(_Range(owner, start, count=int(end - begin)))
    return ranges


def _cost_as_wire(value: Any, operand: Any) -> int:
    """Return what it costs to make a wire of a value instead of a number in a formula: 0, 1 or 2, from best to worst.

    Args:
        value: a number or a tensor.
        operand: the number that it is everywhere, or the value itself if it has several elements.
    """
    if not isinstance(operand, float):
        return 0  # a tensor of several elements, which cannot be a number
    if isinstance(value, (int, float)):
        return 2  # a number of the source, for which a tensor has to be made
    return 1  # a tensor of one element


def _part_of_constant(value: Const, axis: int, start: Any, count: Any) -> Const | None:
    """Return elements of a dimension of a constant; `None` if which elements these are depends on the inputs.

    All elements are the same where the constant is broadcast, as its tensor has no such dimension, or one of extent 1.

    Args:
        value: the constant.
        axis: the dimension of its shape, 0-based.
        start: the first element, 0-based; a number or an `Extent`.
        count: the number of elements; likewise.
    """
    shape = replace_axis(value.shape, axis, count)
    own_axis = axis - len(value.shape) + value.value.dim()  # the dimension of the tensor, negative if it has none
    is_broadcast = own_axis < 0 or (value.value.shape[own_axis] == 1 and value.shape[axis] != 1)
    if is_broadcast:
        return Const(value.value, shape)
    if not is_static((start, count)):
        return None
    return Const(value.value.narrow(own_axis, start, count), shape)


def _part_of_stored(value: Stored, start: int, count: int) -> Stored:
    """Return `count` rows from `start` on, 0-based, of a tensor of the state dict whose elements are in order.

    They are a run of its elements, as a `WeightRef` requires.
    """
    size_of_row = value.shape[1:]
    shape = (count, *size_of_row)
    ref = WeightRef(value.ref.key, value.ref.start + start * prod(size_of_row), shape)
    return Stored(ref, shape, value.learned)


def _as_constant(value: Any) -> Any:
    """Return what PyTorch computes with: the tensor of a `Const`, and the example's number of an `Extent`."""
    return value.value if isinstance(value, Const) else as_number(value)
