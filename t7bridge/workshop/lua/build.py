"""The table of operations, and the builder that they use: the call at hand, arithmetic and parts of values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from attrs import field

from ...data import define, np
from .counts import MOST_COUNTED, counted, measured, positions, triangle
from .exporting import is_tensor
from .layers import LuaLayer, LuaNode, WeightRef, make, walk
from .sizes import Extent, Shape, fixed, is_known
from .trace import CallRef, TracedCall, fold, tree_map
from .values import (
    Complex,
    Const,
    Learned,
    Missing,
    Place,
    Scaled,
    Steps,
    Stored,
    as_number,
    broadcast,
    check_learned,
    is_parameter,
    number_of,
    with_extents,
)
from .whole import Bounds
from .wires import EMPTY, Emitter, Wire, first_wire

__all__ = [
    "EMPTY",
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
    "counted",
    "first_wire",
    "is_parameter",
    "number_of",
    "operation",
    "triangle",
    "with_extents",
]

MOST_RANGES = 8
"""Parts that are joined: so many elements from the end of a dimension, or fewer ranges of indices."""
MOST_UNNAMED = 4
"""Layers that an operation may have without being a function of the source."""


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
        rank = len(getattr(first, "shape", b.shape))  # dimensions that count from the end are those of the first value
        named = dict(args)
        positional = []
        for parameter, name in zip(parameters, args):
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(named.pop(name))
        # A builder receives those that it names, or with `**args` all of them.
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
class Builder(Emitter):
    """Emits the steps of the operations of a program.

    Attributes:
        allow: other Lua packages than nn and nngraph that may be used.
        notes: notes for the user: text → whether it is a warning.
        bounds: name of a value of whole numbers → its bounds.
        call: the operation that is built.
    """

    allow: tuple[str, ...] = ()
    notes: dict[str, bool] = field(factory=dict)
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

    def emit(self, layer: LuaLayer, *values: Any, shape: Shape | None = None) -> Wire:
        """Apply a layer to values, see `Emitter`; the step belongs to the module that contains the call."""
        wire = super().emit(layer, *values, shape=shape)
        if self.call is not None:  # inputs are emitted before any call
            self._place_in_module(wire.step)
        return wire

    def _place_in_module(self, step: LuaNode) -> None:
        """Note the module calls that a step belongs to, and name its layer after them."""
        layer = step.layer
        assert layer is not None
        step.stack = self.call.stack
        layer.path = layer.path or self.path
        if not layer.label:
            layer.label = self._label_of(layer)

    def _label_of(self, layer: LuaLayer) -> str:
        """Return the name of a function of the source for an operation of many layers; empty for others."""
        if layer.weights or len(walk(layer)) <= MOST_UNNAMED:
            return ""
        is_leaf = self.module is not None and next(self.module.children(), None) is None
        if not is_leaf:
            return self.kind
        # Normalizations have their weights in layers of their own: the function is not all of the module.
        return "" if "norm" in self.kind else type(self.module).__name__

    # Arithmetic

    def operands(self, *values: Any) -> list[Any]:
        """Return values for formulas: numbers where they have one element, and at least one wire.

        A number that depends on the sizes of the inputs is counted if it is used as a float. Whole numbers stay those
        of the example: a float may not hold the product of two sizes.
        """
        tensors: list[Any] = []
        operands: list[Any] = []
        for value in values:
            if isinstance(value, Extent) and self.dtype.startswith("float"):
                count = measured(self, value)
                value = value if count is None else count
            number = number_of(value)
            tensors.append(value)
            operands.append(value if number is None else number)
        if any(isinstance(operand, Wire) for operand in operands):
            return operands
        # A tensor of several elements becomes the wire, else one of one element, and last a number of the source.
        ranks = []
        for value, operand in zip(tensors, operands):
            is_number = isinstance(value, (int, float))
            ranks.append(isinstance(operand, float) + is_number)
        place = ranks.index(min(ranks))
        operands[place] = self.wire(tensors[place])
        return operands

    # Parts

    def narrow(self, value: Any, place: int, start: int, count: int) -> Any:
        """Return a range of a dimension.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            place: the dimension.
            start: the first element, 0-based.
            count: the number of elements.
        """
        shape = with_extents(value.shape, place, count)
        if shape == value.shape:
            return value
        if count == 0:
            return self.empty(shape)
        if isinstance(value, Const):
            part = _part_of_constant(value, place, start, count)
            if part is not None:
                return part
        # As many as another extent, and an open number of elements behind them: nn.Narrow cannot say that.
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
        from_1 = positions(self, count)
        if from_1 is None:
            return None
        places = from_1 + start >> make("nn.Copy", "torch.FloatTensor", "torch.LongTensor", False, True)
        shape = with_extents(value.shape, place, count)
        return self.emit(make("nn.Index", place + 1), self.wire(value), places, shape=shape)

    def _from_end(self, value: Any, place: int, count: int) -> Any:
        """Return the last elements of a dimension: nn.Select counts from the end, where nn.Narrow does not begin."""
        elements = []
        for index in range(-count, 0):
            element = self.emit(make("nn.Select", place + 1, index), value, shape=with_extents(value.shape, place))
            elements.append(element)
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
        numbers = self.wire(self.constant((index + 1).astype("f4")))
        numbers = numbers >> make("nn.Copy", "torch.FloatTensor", "torch.LongTensor", False, True)
        shape = with_extents(value.shape, place, len(index))
        return self.emit(make("nn.Index", place + 1), wire, numbers, shape=shape)

    def _looked_up(self, table: Stored, index: Any) -> Any:
        """Return rows of a parameter; a vector is a table of rows of one element."""
        rows, width = (*table.ref.size, 1)[:2]
        layer = make("nn.LookupTable", rows, width, weight=table.ref.resized((rows, width)))
        numbers = self.constant((index + 1).astype("f4"))  # Lua counts from 1
        wire = self.emit(layer, numbers, shape=(len(index), width))
        return self.reshape(wire, (len(index), *table.shape[1:]))

    def replaced(self, value: Any, index: Any, part: Any, place: int) -> Any:
        """Return a value with other elements at constant indices of a dimension."""
        extent = int(value.shape[place])
        order = np.arange(extent)
        order[index] = extent + np.arange(len(index))  # those of the part, which follow the value's own
        return self.gathered(value, order, place, part)


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


def _as_constant(value: Any) -> Any:
    """Return the tensor of a constant, and the number of an extent."""
    return value.value if isinstance(value, Const) else as_number(value)
