"""From ATen calls to steps of Lua layers: the table of operations, values, and services for operations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import inf, prod
from typing import Any

from attrs import field

from ...data import define, np
from ...errors import T7BridgeError, UnsupportedError
from . import whole
from .layers import Arithmetic, LuaLayer, LuaNode, WeightRef, expand_as, make, row, sequential, walk
from .sizes import CannotError, Extent, Shape, are_equal, computed, is_known, known
from .trace import CallRef, Program, TracedCall, fold, is_tensor, leaves, mapped, to_array, to_tensor


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
        made: Wire = self.b.joined(name, *((other, self) if swapped else (self, other)))
        return made


@define(eq=False)
class Const:
    """A value known at build time. Its tensor is broadcast to `shape`."""

    value: Any
    shape: Shape

    def array(self) -> Any:
        """The elements as a numpy array, not broadcast."""
        return to_array(self.value)


@define(eq=False)
class Stored:
    """A tensor of the state dict, or a contiguous part of one, broadcast to `shape`.

    Attributes:
        ref: the tensor.
        shape: of the value.
        learned: whether it is a parameter with a gradient, and not a buffer or detached.
    """

    ref: WeightRef
    shape: Shape
    learned: bool = True

    @property
    def whole(self) -> bool:
        """Whether it has the layout of the tensor, and is not broadcast."""
        return self.ref.size == self.shape and not self.ref.transposed


Learned = Stored
"""A parameter, which layers can learn."""
Place = int
"""A dimension, counted from the front."""


@define(eq=False)
class Scaled:
    """A learned tensor times a scale, which layers with weights apply to their inputs or outputs.

    Attributes:
        param: the learned tensor.
        scale: a number, or a wire of one number or of one for each index of a dimension.
        place: that dimension; `None` if the scale is one number.
    """

    param: Stored
    scale: Any
    place: int | None

    @property
    def shape(self) -> Shape:
        """The shape of the product."""
        return self.param.shape


@define(eq=False)
class Complex:
    """Complex numbers.

    Attributes:
        real: the real part, a value of any other kind.
        imag: the imaginary part.
    """

    real: Any
    imag: Any

    @property
    def shape(self) -> Shape:
        """The shape of both."""
        shape: Shape = self.real.shape
        return shape


@define(eq=False)
class Steps:
    """The numbers 0, step, 2 step, … as many as an extent of the inputs.

    Bags of embeddings, and an element of each example, have layers of their own. Others count when the model runs.
    """

    step: int
    shape: Any = ()

    def array(self) -> Any:
        """Return the numbers, for the extent in the example."""
        return np.arange(int(self.shape[0])) * self.step


@define(eq=False)
class Missing:
    """A value that Lua does not have.

    Attributes:
        reason: the reason, which is an error if the value is used; empty if it has been named already.
    """

    reason: str = ""
    shape: Any = ()


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
        wanted = list(inspect.signature(self.build).parameters.values())[1:]
        args = _with_numbers(args, getattr(b.call.target, "_schema", None))
        named = dict(args)
        places = [named.pop(name) for one, name in zip(wanted, args) if one.kind is one.POSITIONAL_ONLY]
        if not any(one.kind is one.VAR_KEYWORD for one in wanted):
            named = {one.name: named[one.name] for one in wanted if one.name in named}
        rank = len(getattr(next(iter(args.values()), None), "shape", b.shape))
        for one in wanted:
            if one.name in named and one.annotation == "Wire":
                named[one.name] = b.wire(named[one.name])
            elif one.name in named and one.annotation == "Place":
                named[one.name] %= rank
            elif one.name in named and one.annotation.startswith("Learned"):
                check_learned(named[one.name], one.name)
        return self.build(b, *places, **named)


OPERATIONS: dict[str, Operation] = {}
"""The table: ATen operation → its composition of Lua layers. `operations/` fills it."""
OF_COMPLEX: dict[str, Operation] = {}
"""The same for operations on complex numbers."""
BY_PARTS = """
alias contiguous detach dropout expand expand_as broadcast_to feature_dropout flatten positive reshape reshape_as
squeeze to type_as unflatten unsqueeze view view_as
select unbind slice narrow split split_with_sizes chunk tensor_split unsafe_split unsafe_chunk
transpose permute t mT unfold cat stack clone repeat roll flip index_select add sub neg sum mean
"""
"""Names of operations that act on the two parts of complex numbers alike."""


def operation(
    names: str, lua: str, note: str = "", complex: bool = False, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the builder of some operations.

    Args:
        names: ATen's names without `aten.`, separated by spaces: `add.Tensor relu`; `.default` may be left out.
        lua: see `Operation`.
        note: see `Operation`.
        complex: whether it is for complex numbers.
        options: other attributes of the `Operation`.
    """

    def decorate(build: Callable[..., Any]) -> Callable[..., Any]:
        full = tuple(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in names.split())
        made = dict.fromkeys(full, Operation(full, lua, build, note, **options))
        OPERATIONS.update(made if not complex else {**made, **OPERATIONS})
        OF_COMPLEX.update(made if complex else {})
        return build

    return decorate


@define(eq=False)
class Builder:
    """Runs the calls of a program on values that are wires of a Lua graph.

    Attributes:
        program: the traced program.
        steps: the emitted steps, in order.
        problems: inexpressible operations: line in the user's source, operation and reason.
        allow: other Lua packages than nn and nngraph that may be used.
        notes: notes for the user: text → whether it is a warning.
        scalars: the outputs without dimensions, counted from 1, which have one of extent 1 in Lua.
        used: names of the values that are used.
        bounds: name of a value of whole numbers → its bounds.
    """

    program: Program
    allow: tuple[str, ...] = ()
    steps: list[LuaNode] = field(factory=list)
    problems: list[tuple[str, str, str]] = field(factory=list)
    notes: dict[str, bool] = field(factory=dict)
    scalars: list[int] = field(factory=list)
    used: set[str] = field(factory=set)
    bounds: dict[str, whole.Bounds] = field(factory=dict)
    env: dict[str, Any] = field(factory=dict)
    call: TracedCall = field(default=None)

    def run(self) -> tuple[list[LuaNode], list[LuaNode]]:
        """Build everything.

        Returns:
            The input steps and the output steps.

        Raises:
            UnsupportedError: operations that cannot be expressed, all of them.
        """
        inputs = []
        for index, (name, shape) in enumerate(self.program.inputs.items()):
            step = LuaNode(None, [], shape, (), index)
            inputs.append(step)
            self.env[name] = self._floating(Wire(self, step, shape), self.program.dtypes[name])
        for name, (key, learned) in self.program.stored.items():
            shape = tuple(self.program.state[key].shape)
            self.env[name] = Stored(WeightRef(key, 0, shape), shape, learned)
        for name, value in self.program.constants.items():
            self.env[name] = Const(value, tuple(value.shape)) if is_tensor(value) else value
        for taken in [*(call.args for call in self.program.calls), self.program.outputs]:
            self.used.update(item.name for item in leaves(taken) if isinstance(item, CallRef))
        for text in self.program.changed:
            self.remark(text, warning=True)
        for call in self.program.calls:
            self.call = call
            self.env[call.name] = self.value_of(call)
        outputs = self._outputs()
        if self.problems:
            listed = dict.fromkeys(f"\n  {op} at {line or 'an unknown line'}: {why}" for line, op, why in self.problems)
            count = f"{len(listed)} operation{'s' if len(listed) > 1 else ''}"
            raise UnsupportedError(f"{count} of the module cannot be expressed with nn and nngraph{''.join(listed)}")
        return inputs, outputs

    def _outputs(self) -> list[LuaNode]:
        """Return the steps of the values that the program returns."""
        outputs: list[LuaNode] = []
        for item in self.program.outputs:
            dtype = self.program.dtypes.get(item.name, "") if isinstance(item, CallRef) else ""
            value = _returned(self.env[item.name], dtype) if isinstance(item, CallRef) else item
            if isinstance(value, Missing) and value.reason:
                self.problems.append(("", "the output", value.reason))
            if value is None:
                self.remark("an output that is None is left out: those after it move up")
            if value is None or isinstance(value, Missing):
                continue
            if isinstance(value, (int, float)):
                self.remark(f"output {len(outputs) + 1} is a number: a tensor of one element in Lua")
                value = self.constant(np.array(float(value)))
            if dtype.startswith("int"):
                self.remark(f"output {len(outputs) + 1} has whole numbers as floats, exact up to {1 << 24}")
            outputs.append(self.wire(value).step)
            if value.shape == ():
                self.scalars.append(len(outputs))
        return outputs

    def _floating(self, value: Wire, dtype: str) -> Wire:
        """Return an input as floats. Half inputs have half gradients; Lua has no bfloat16."""
        if dtype in ("float32", "float64", "bfloat16"):
            return value
        kind = "torch.HalfTensor" if dtype == "float16" else "torch.LongTensor"
        return value >> make("nn.Copy", kind, "torch.FloatTensor")

    def value_of(self, call: TracedCall) -> Any:
        """Build a call; failures are added to the problems."""
        entry = OPERATIONS.get(call.op)
        used = [self.env[item.name] for item in leaves(call.args) if isinstance(item, CallRef)]
        missing = [value for value in used if isinstance(value, Missing)]
        args = mapped(lambda item: self.env[item.name] if isinstance(item, CallRef) else item, call.args)
        plain = call.op.startswith(("operator.", "aten.sym_", "aten._assert"))
        if missing:
            reasons = [value.reason for value in missing] + ([] if plain else [self._refusal(entry)])
            self.problems += [self._problem(reason) for reason in reasons if reason]
            return Missing("", call.shape)
        if call.op == "operator.getitem":
            return args["0"][args["1"]]
        if plain:
            return None
        if 0 in call.shape:
            return self.empty(call.shape)
        try:
            return self._built(call, entry, args)
        except CannotError as error:
            self.problems.append(self._problem(str(error)))
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, T7BridgeError):
                raise
            self.problems.append(self._problem(f"with these arguments no composition is known ({error})"))
        return Missing("", call.shape)

    def _built(self, call: TracedCall, entry: Operation | None, args: dict[str, Any]) -> Any:
        if not call.op.startswith(("aten.index.", "aten.embedding_bag")):
            args = mapped(lambda item: self.counted(item) if isinstance(item, Steps) else item, args)
        if entry is None or not entry.scaled:
            args = mapped(lambda item: self.wire(item) if isinstance(item, Scaled) else item, args)
        folded = self._folded(call, args)
        if folded is not None:
            return folded
        args = mapped(_complex_constant, args)
        if any(isinstance(value, (Complex, complex)) for value in leaves(args)):
            return self._of_complex(call, entry, args)
        refusal = self._refusal(entry)
        if entry is None or refusal:
            raise CannotError(refusal)
        self._check_whole(call)
        value = entry.call(self, args)
        if isinstance(value, Wire) and call.shape == () and value.shape == (1,):
            value = Wire(self, value.step, ())
        if call.shape and isinstance(call.shape[0], tuple) and not isinstance(value, list):
            value = [value, *(Missing(entry.missing) for _ in call.shape[1:])]
        return value

    def _check_whole(self, call: TracedCall) -> None:
        """Refuse whole numbers that may not be exact as floats, and find the bounds of the others.

        Raises:
            CannotError: a product may be too large, or the type has few bits and wraps around.
        """
        dtype, is_double = self.program.dtypes.get(call.name, ""), self.program.is_double
        if not dtype.startswith(("int", "uint")):
            return
        names = ("self", "other", "min", "max", "exponent", "tensors")
        named = [call.args[name] for name in names if call.args.get(name) is not None]
        if call.args.get("alpha", 1) != 1:  # the factor of a sum
            named.append(call.args["alpha"])
        bounds = [self._bounds_of(item, is_double) for item in leaves(named)]
        taken = [self.env[item.name] for item in leaves(named[:1]) if isinstance(item, CallRef)]
        extents = [size for value in taken for size in value.shape]
        count = prod(extents) if is_known(extents) else inf
        found = whole.bounds_of(self.kind, [one for one in bounds if one is not None], count)
        reason = whole.refusal(self.kind, dtype, found, is_double)
        if reason:
            raise CannotError(reason)
        largest = whole.EXACT[is_double]
        self.bounds[call.name] = max(found[0], -largest), min(found[1], largest)

    def _bounds_of(self, item: Any, is_double: bool) -> whole.Bounds | None:
        if isinstance(item, (int, float)):
            return item, item
        if not isinstance(item, CallRef):
            return None
        value = self.env[item.name]
        if isinstance(value, Const) and value.value.numel() and not value.value.is_complex():
            array = value.array()
            return float(array.min()), float(array.max())
        return self.bounds.get(item.name) or whole.of_type(self.program.dtypes.get(item.name, ""), is_double)

    def _of_complex(self, call: TracedCall, entry: Operation | None, args: dict[str, Any]) -> Any:
        """Build a call on complex numbers: by an entry for these, or one for each part."""
        own = OF_COMPLEX.get(call.op)
        if own is not None:
            return own.call(self, args)
        if entry is None or self.kind not in BY_PARTS.split():
            raise CannotError("no composition for complex numbers is known")
        numbers = {name: value for name, value in args.items() if name in ("self", "other")}
        reals = mapped(lambda item: item.real if isinstance(item, (Complex, complex)) else item, args)
        imags = mapped(_imaginary, args) | {name: _imaginary(value, 0) for name, value in numbers.items()}
        parts = entry.call(self, reals), entry.call(self, imags)
        several = isinstance(parts[0], list)
        return [Complex(*pair) for pair in zip(*parts)] if several else Complex(*parts)

    def _refusal(self, entry: Operation | None) -> str:
        """Return why an operation cannot be expressed, whatever its arguments; empty if it can."""
        if entry is None:
            return RANDOM if self.call.is_random else UNKNOWN
        allowed = not entry.package or entry.package in self.allow
        return "" if allowed else f"nn has no such layer; --allow {entry.package} writes one"

    def _problem(self, reason: str) -> tuple[str, str, str]:
        part = f"{self.call.op}: " if self.call.origin else ""
        return self.call.line, self.call.origin or self.call.op, part + reason

    def _folded(self, call: TracedCall, args: dict[str, Any]) -> Any:
        """Compute a call on constants now; `None` if its arguments are no constants, or its value depends on chance."""
        if call.is_random:
            return None if call.name in self.used else Missing()
        values = leaves(args)
        if any(isinstance(value, (Wire, Stored, Scaled, Complex)) for value in values):
            return None
        is_open = any(isinstance(value, Extent) for value in [*values, *leaves(call.shape)])
        if is_open and self.kind in (*OF_ANY_SIZE, "slice"):
            return None
        if any(isinstance(value, Const) and value.shape != tuple(value.value.shape) for value in values):
            return None
        return self.compute(args)

    # Used by operations

    def remark(self, text: str, warning: bool = False) -> None:
        """Add a note for the user, once."""
        self.notes.setdefault(text, warning)

    def compute(self, args: dict[str, Any]) -> Any:
        """Run the current operation on constants."""
        result = fold(self.call, mapped(_as_constant, args))
        return mapped(lambda item: Const(item, tuple(item.shape)) if is_tensor(item) else item, result)

    @staticmethod
    def constant(array: Any, shape: Shape | None = None) -> Const:
        """Return a numpy array as a constant, broadcast to a shape."""
        return Const(to_tensor(np.asarray(array)), tuple(array.shape) if shape is None else tuple(shape))

    def empty(self, shape: Shape) -> Const:
        """Return a value without elements, which no input changes."""
        return self.constant(np.zeros([extent if isinstance(extent, int) else 1 for extent in shape], "f4"), shape)

    def dtype_of(self, name: str, item: int | None = None) -> str:
        """Return the element type of an argument of the call, or of an item of it, `float32`; empty if unknown."""
        ref = self.call.args.get(name)
        ref = ref if item is None or ref is None else ref[item]
        return self.program.dtypes.get(ref.name, "") if isinstance(ref, CallRef) else ""

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

    def emit(self, layer: LuaLayer, *values: Any, shape: Shape | None = None) -> Wire:
        """Apply a layer to values.

        Args:
            layer: the layer.
            values: wires, constants or tensors of the state dict, in the order of Lua's table.
            shape: of the result; by default that of the first value.
        """
        wires = self.wires(*values)
        stack = self.call.stack if self.call is not None else ()
        shape = wires[0].shape if shape is None else tuple(shape)
        if 0 in shape:
            raise CannotError(EMPTY)
        for inner in walk(layer):
            inner.args, inner.calls = mapped(_as_number, (inner.args, inner.calls))
        if _is_repeated(wires[0].step):
            layer = _from_contiguous(layer)
        if self.call is not None:
            layer.path = layer.path or self.path
            if not layer.label and not layer.weights and len(walk(layer)) > MOST_UNNAMED:
                is_leaf = self.module is not None and next(self.module.children(), None) is None
                if not is_leaf:
                    layer.label = self.kind
                elif "norm" not in self.kind:  # those have weights in layers of their own
                    layer.label = type(self.module).__name__
        step = LuaNode(layer, [wire.step for wire in wires], shape, stack)
        self.steps.append(step)
        return Wire(self, step, shape)

    def operands(self, *values: Any) -> list[Any]:
        """Return values for formulas: numbers where they have one element, and at least one wire."""
        values = tuple(self._measured(value) for value in values)
        found = [value if (number := number_of(value)) is None else number for value in values]
        if not any(isinstance(value, Wire) for value in found):
            known = [isinstance(value, float) + isinstance(own, (int, float)) for value, own in zip(found, values)]
            first = known.index(min(known))
            found[first] = self.wire(values[first])
        return found

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
                expr = current.expr
                step = expr.coeff(symbol)
                rest = expr - step * symbol
                if step.is_Integer and step != 0 and rest.is_Integer:
                    counted = self._ones_along(self.env[name], place) >> make("nn.Sum", 1)
                    counted = Wire(self, counted.step, (1,))
                    return (counted - float(rest)) / float(step)
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

    def counted(self, numbers: Steps) -> Any:
        """Return numbers in steps from 0, counted when the model runs if layers can, or those of the example."""
        positions = self.positions(numbers.shape[0])
        return self.constant(numbers.array()) if positions is None else (positions - 1) * numbers.step

    def joined(self, name: str, first: Any, second: Any, *args: Any) -> Any:
        """Apply a layer that takes a table of two, after broadcasting; parameters become nn.CMul and nn.CAdd.

        Args:
            name: of its class.
            first: a wire, a constant or a tensor of the state dict.
            second: likewise.
            args: of its constructor.
        """
        first, second = (self.wire(each) if isinstance(each, Scaled) else each for each in (first, second))
        wires = isinstance(first, Wire), isinstance(second, Wire)
        if name == "nn.CMulTable" and all(wires) and first.step is second.step:
            return first >> make("nn.Square")
        if wires == (True, False) and is_parameter(second) and not second.ref.transposed:
            if name == "nn.CSubTable":
                return -self._own("nn.CAddTable", -first, second)
            if name in OWN:
                return self._own(name, first, second)
        if wires == (False, True) and is_parameter(first):
            if name == "nn.CSubTable":
                return self.joined("nn.CAddTable", -second, first)
            if name in OWN:
                return self.joined(name, second, first)
        shape = broadcast(first.shape or (1,), second.shape or (1,))
        like = first_wire((first, second), shape)
        return self.emit(make(name, *args), *(self.widened(each, shape, like) for each in (first, second)))

    def widened(self, value: Any, shape: Shape, like: Wire | None) -> Any:
        """Return a value broadcast to a shape, as a wire."""
        if not isinstance(value, Wire):
            own = like is None and isinstance(shape[0], Extent) and len(value.shape) == len(shape)
            value = self.wire(value if own else self.expand(value, shape), like)
        return self.expand(value, shape, like)

    def _own(self, name: str, value: Wire, param: Stored) -> Wire:
        """Apply the layer that multiplies by a parameter or adds one."""
        shape = broadcast(value.shape or (1,), param.shape)
        size = (1,) * (len(shape) - len(param.ref.size)) + param.ref.size
        layer, field = OWN[name]
        return self.emit(make(layer, *size, **{field: param.ref.resized(size)}), self.expand(value, shape))

    def wire(self, value: Any, like: Wire | None = None) -> Any:
        """Return a value as a wire; constants and tensors of the state dict become nodes that ignore their input.

        Args:
            value: a wire, a constant or a tensor of the state dict.
            like: a value with the batch in its first dimension, if the result has it too.
        """
        if isinstance(value, Wire):
            return value
        if isinstance(value, Scaled):
            scale = value.scale
            if value.place is not None:
                scale = self.reshape(scale, (*scale.shape, *(1,) * (len(value.shape) - value.place - 1)))
            return self.wire(value.param) * scale
        if isinstance(value, (int, float)):
            raise CannotError("a number where a tensor is needed")
        if isinstance(value, Complex):
            raise CannotError("complex numbers where real ones are needed")
        if isinstance(value, Stored) and value.ref.transposed:  # layers other than nn.Linear need a contiguous weight
            straight = value.ref.size[::-1]
            plain = Stored(WeightRef(value.ref.key, value.ref.start, straight), straight, value.learned)
            return self.expand(self._transpose(plain, (1, 0)), value.shape, like)
        return self._attached(value, like or self._any_input())

    def wires(self, *values: Any) -> list[Any]:
        """Return values as wires; those that are not computed are attached to one that is."""
        like = first_wire(values)
        return [self.wire(value, like) for value in values]

    def _attached(self, value: Any, source: Wire) -> Any:
        """Return a constant or a tensor of the state dict as a node that takes a value, and the batch from it."""
        shape = value.shape
        own = tuple(value.value.shape) if isinstance(value, Const) else value.ref.size
        own = (1,) * (len(shape) - len(own)) + own
        has_batch = bool(shape) and isinstance(shape[0], Extent)
        if has_batch and (shape[:1] != source.shape[:1] or own[0] != 1):
            known(shape[0])
        batch, depth = (shape[:1], len(source.shape) - 1) if has_batch else ((), None)
        # Extents behind the first that depend on the inputs are repeated by those of the other value.
        own = own[len(batch) :] or (1,)
        sizes = tuple(1 if isinstance(extent, Extent) else extent for extent in shape[len(batch) :]) or (1,)
        if isinstance(value, Const):
            array = value.array().reshape(own)
            own = own if prod(sizes) > MOST_REPEATED else sizes
            wide = array.dtype == "f8" or (array.dtype == "i8" and self.program.is_double)
            array = np.ascontiguousarray(np.broadcast_to(array, own)).astype("f8" if wide else "f4")
            made = self.emit(make("nn.Constant", array, depth), source, shape=batch + own)
            made = self.expand(made, batch + sizes)
        elif value.learned:
            full = (1,) * len(batch) + own
            made = self.emit(make("nn.Constant", np.ones(sizes, "f4"), depth), source, shape=batch + sizes)
            made = made >> make("nn.CMul", *full, weight=value.ref.resized(full))
        else:
            held = make("nn.Constant", np.zeros(own, "f4"), depth, value=value.ref.resized(own))
            made = self.expand(self.emit(held, source, shape=batch + own), batch + sizes)
        if not is_known(shape[len(batch) :]):
            return self.expand(made, shape, source)
        return self.reshape(made, shape)

    def _any_input(self) -> Wire:
        """Return a wire to attach a constant to, an input if possible."""
        for name in self.program.inputs:
            value = self.env[name]
            if isinstance(value, Wire):
                return value
        raise CannotError("the module has no inputs")

    def reshape(self, value: Any, shape: Any) -> Any:
        """Reshape a value to another shape with equally many elements."""
        shape = tuple(shape)
        if value.shape == shape:
            return value
        if isinstance(value, Const) and value.value.numel() == 1:
            return Const(value.value.reshape((1,) * len(shape)), shape)
        if is_known(shape) and isinstance(value, Const) and is_known(value.shape):
            return Const(value.value.expand(value.shape).reshape(shape), shape)
        if is_known(shape) and isinstance(value, Stored) and value.whole:
            return Stored(value.ref.resized(shape), shape, value.learned)
        wire = self.wire(value)
        # Only the last of several shapes counts, but a view may need what another has inferred.
        for source in (self.before_view(wire), wire):
            if source.shape == shape:
                return source
            if {source.shape, shape} == {(), (1,)}:
                return Wire(self, source.step, shape)
            layer = _shaping(source.shape, shape)
            if layer is not None:
                return self.emit(layer, source, shape=shape)
        is_split = wire.shape[1:] == shape[2:] and wire.shape[0] == prod(shape[:2])
        if is_split and not is_known(shape[2:]):
            return self._unmerged(wire, shape)
        is_merge = wire.shape[2:] == shape[1:] and shape[0] == prod(wire.shape[:2])
        if is_merge and not is_known(shape[1:]):
            return self._merged(wire, shape)
        known(*shape[1:])
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
        """Return the value that an `nn.View` shapes; others unchanged."""
        if wire.step.layer is None or wire.step.layer.name not in ("nn.View", "nn.Unsqueeze", "nn.Squeeze"):
            return wire
        source = wire.step.inputs[0]
        return Wire(self, source, source.shape)

    def narrow(self, value: Any, place: int, start: int, count: int) -> Any:
        """Return elements `start` … of a dimension, 0-based."""
        shape = with_extents(value.shape, place, count)
        if shape == value.shape:
            return value
        if count == 0:
            return self.empty(shape)
        if isinstance(value, Const):
            axis = place - len(value.shape) + value.value.dim()
            if axis < 0 or (value.value.shape[axis] == 1 and value.shape[place] != 1):
                return Const(value.value, shape)
            if is_known((start, count)):
                return Const(value.value.narrow(axis, start, count), shape)
        behind = value.shape[place] - start - count
        if isinstance(count, Extent) and isinstance(start, int) and not isinstance(behind, int):
            positions = self.positions(count) if count <= value.shape[place] - start else None
            if positions is not None:
                positions = positions + start >> make("nn.Copy", "torch.FloatTensor", "torch.LongTensor", False, True)
                return self.emit(make("nn.Index", place + 1), self.wire(value), positions, shape=shape)
        if place == 0 and isinstance(value, Stored) and value.whole:
            start, count = known(start, count)
            own = value.ref.size[1:]
            ref = WeightRef(value.ref.key, value.ref.start + start * prod(own), (count, *own))
            return Stored(ref, shape, value.learned)
        if isinstance(start, Extent) and behind == 0 and count in range(1, MOST_RANGES + 1) and len(shape) > 1:
            # nn.Narrow does not count from the end, but nn.Select does.
            one = with_extents(shape, place, 1)
            picked = [make("nn.Select", place + 1, index) for index in range(-count, 0)]
            parts = [self.emit(layer, value, shape=with_extents(shape, place)) for layer in picked]
            return self.concatenate([self.reshape(part, one) for part in parts], place)
        length = -1 - behind if isinstance(count, Extent) and isinstance(behind, int) else count
        return self.emit(make("nn.Narrow", place + 1, start + 1, length), value, shape=shape)

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
        values, index = (value, *others), index.reshape(-1)
        starts = list(accumulate(known(*(each.shape[place] for each in values[:-1])), initial=0))
        owners = np.searchsorted(starts, index, "right") - 1
        cuts = [0, *(np.flatnonzero((np.diff(index) != 1) | np.diff(owners).astype(bool)) + 1), len(index)]
        is_table = not others and is_parameter(value) and value.whole and len(value.ref.size) <= 2
        if len(cuts) > 2 and is_table and place == 0:
            rows, width = (*value.ref.size, 1)[:2]
            layer = make("nn.LookupTable", rows, width, weight=value.ref.resized((rows, width)))
            made = self.emit(layer, self.constant((index + 1).astype("f4")), shape=(len(index), width))
            return self.reshape(made, (len(index), *value.shape[1:]))
        if len(cuts) <= MOST_RANGES:
            ranges = [(owners[start], index[start], end - start) for start, end in pairwise(cuts)]
            parts = [self.narrow(values[own], place, int(at - starts[own]), int(count)) for own, at, count in ranges]
            return self.concatenate(parts, place)
        # The batch cannot be extended by constant positions, and the layer counts from 1.
        wire = self.wire(self.concatenate([*values], place))
        positions = self.wire(self.constant((index + 1).astype("f4")))
        positions = positions >> make("nn.Copy", "torch.FloatTensor", "torch.LongTensor", False, True)
        return self.emit(
            make("nn.Index", place + 1), wire, positions, shape=with_extents(value.shape, place, len(index))
        )

    def replaced(self, value: Any, index: Any, part: Any, place: int) -> Any:
        """Return a value with other elements at constant indices of a dimension."""
        extent = int(value.shape[place])
        order = np.arange(extent)
        order[index] = extent + np.arange(len(index))
        return self.gathered(value, order, place, part)

    def permute(self, value: Any, order: Any) -> Any:
        """Permute dimensions; `order` is the source of each dimension of the result, negative from the end."""
        order = tuple(place % len(value.shape) for place in order)
        shape = tuple(value.shape[place] for place in order)
        if list(order) == sorted(order):
            return value
        if isinstance(value, Const) and is_known(value.shape):
            return Const(value.value.expand(value.shape).permute(order), shape)
        kept = [place for place in order if value.shape[place] != 1]
        whole = isinstance(value, Stored) and value.whole
        if kept == sorted(kept) and (whole or not isinstance(value, Stored)):
            return self.reshape(value, shape)
        if isinstance(value, Stored) and len(kept) == 2 and all(extent == 1 for extent in shape[:-2]):
            ref, matrix = value.ref, shape[-2:]
            if ref.transposed and ref.size == value.shape:
                return Stored(WeightRef(ref.key, ref.start, matrix), shape, value.learned)
            if whole and tuple(self.program.state[ref.key].shape) == matrix[::-1]:
                return Stored(WeightRef(ref.key, 0, matrix, True), shape, value.learned)
        return self._transpose(value, order)

    def _transpose(self, value: Any, order: Shape) -> Wire:
        swaps, current = [], list(range(len(order)))
        for place, wanted in enumerate(order):
            found = current.index(wanted)
            if found != place:
                swaps.append((place + 1, found + 1))
                current[place], current[found] = current[found], current[place]
        return self.emit(make("nn.Transpose", *swaps), value, shape=tuple(value.shape[place] for place in order))

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
            if value.shape[place] == extent:
                continue
            if value.shape[place] != 1:
                if not are_equal(value.shape[place], extent):
                    raise CannotError(f"the extents {value.shape[place]} and {extent} do not match")
                continue
            layers = make("nn.Select", place + 1, 1), make("nn.Replicate", extent, place + 1)
            if len(value.shape) == 1:  # the element of a vector is not a tensor in Lua
                layers = make("nn.Replicate", extent, 1), make("nn.Select", 2, 1)
            value = self.emit(sequential(*layers), value, shape=with_extents(value.shape, place, extent))
        return value

    def _expanded_as(self, value: Wire, shape: Shape, like: Wire) -> Wire:
        """Repeat a value along the dimensions whose extents depend on the inputs, where another value has the same."""
        full = (*(1,) * (len(shape) - len(value.shape)), *value.shape)
        places = [
            place
            for place, (own, wanted) in enumerate(zip(full, shape))
            if own == 1 and isinstance(wanted, Extent) and like.shape[place : place + 1] == (wanted,)
        ]
        if not places:
            return value
        made = tuple(wanted if place in places else own for place, (own, wanted) in enumerate(zip(full, shape)))
        return self.emit(expand_as(len(like.shape), places), self.reshape(value, full), like, shape=made)

    def _for_each_example(self, value: Wire, shape: Shape, like: Wire | None) -> Any:
        """Repeat a value for each example: the product of a column of ones, one per example, and the value as a row."""
        source = like or self._any_input()
        if source.shape[:1] != shape[:1]:
            return self.expand(value, known(*shape))
        inner, count = shape[1:], prod(shape[1:])
        row = self.expand(self.reshape(value, value.shape[1:]) if len(value.shape) == len(shape) else value, inner)
        ones = make("nn.Constant", np.ones(1, "f4"), len(source.shape) - 1)
        column = self.emit(ones, source, shape=(shape[0], 1))
        made = self.emit(make("nn.MM"), column, self.reshape(row, (1, count)), shape=(shape[0], count))
        return self.reshape(made, shape)


def _returned(value: Any, dtype: str) -> Any:
    """Return an output; complex numbers and values without elements are none."""
    if isinstance(value, Const) and 0 in value.shape:
        return Missing(EMPTY)
    return Missing("complex numbers") if dtype.startswith("complex") and not isinstance(value, Missing) else value


def _as_number(value: Any) -> Any:
    return int(value) if isinstance(value, Extent) else value


def _as_constant(value: Any) -> Any:
    """Return the tensor of a constant, and the number of an extent."""
    return value.value if isinstance(value, Const) else _as_number(value)


OF_ANY_SIZE = ("zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "empty", "new_empty", "arange")
"""Names of operations without inputs whose values may have the size of the batch."""


def _complex_constant(value: Any) -> Any:
    if not isinstance(value, Const) or not value.value.is_complex():
        return value
    return Complex(Const(value.value.real, value.shape), Const(value.value.imag, value.shape))


def _imaginary(value: Any, other: Any = None) -> Any:
    """Return the imaginary part of a value; numbers that are no values, such as dimensions, stay."""
    if isinstance(value, (Complex, complex)):
        return value.imag
    return 0.0 if isinstance(value, (Wire, Const, Stored)) or other is not None else value


MOST_REPEATED = 1 << 16
"""Elements of a constant up to which it is stored as repeated as it is used."""
MOST_COUNTED = 1 << 12
"""Positions that are counted when the model runs; more are refused. A power of two, for `Builder.positions`."""
MOST_RANGES = 8
"""Ranges of indices that are joined; more are looked up by nn.Index."""
MOST_UNNAMED = 4
"""Layers that an operation may have without being a function of the source."""
UNKNOWN = "Lua has no such operation, and no composition is known"
RANDOM = "draws random numbers, which no layer of nn does"
EMPTY = "a value without elements, which Lua does not have"
OWN = {"nn.CMulTable": ("nn.CMul", "weight"), "nn.CAddTable": ("nn.CAdd", "bias")}
"""Layers of two values → the layer with a parameter as the second, and its field."""


def number_of(value: Any) -> float | None:
    """Return the number that a value has everywhere, if it is known."""
    if isinstance(value, (int, float, Extent)):
        return float(value)
    if isinstance(value, Const) and value.value.numel() == 1:
        return float(value.array().reshape(-1)[0])
    return None


def first_wire(values: Sequence[Any], shape: Shape | None = None) -> Wire | None:
    """Return the first value that is computed when the model runs, perhaps one of a shape, or at least its batch."""
    wires = [value for value in values if isinstance(value, Wire)]
    fitting = [wire for wire in wires if shape is None or wire.shape[:1] == shape[:1]]
    return min(fitting, key=lambda wire: wire.shape != shape, default=None)


def _shaping(before: Shape, shape: Shape) -> LuaLayer | None:
    """Return the layer that gives a value another shape; `None` if it would have to infer more than one extent."""
    for more, less, name in ((shape, before, "nn.Unsqueeze"), (before, shape, "nn.Squeeze")):
        for place, extent in enumerate(more):
            if less and extent == 1 and with_extents(more, place) == less:
                return make(name, place + 1)
    added = len(shape) - len(before)
    if before and not is_known(shape) and shape == (*(1,) * added, *before):
        return sequential(*(make("nn.Unsqueeze", 1) for _ in range(added)))
    if len(shape) > 1 and isinstance(shape[0], Extent) and sum(isinstance(extent, Extent) for extent in shape[1:]) < 2:
        for count in range(1, len(before)):
            if shape[0] == prod(before[:count]):
                rest = [-1 if isinstance(extent, Extent) else extent for extent in shape[1:]]
                return make("nn.View", *rest, calls=(("setNumInputDims", (len(before) - count,)),))
    open_places = [place for place, extent in enumerate(shape) if isinstance(extent, Extent)]
    first = next((place for place, pair in enumerate(zip(before, shape)) if pair[0] != pair[1]), len(before))
    first = min(first, len(before) - 1, len(shape) - 1)  # a view has dimensions
    rest = [-1 if isinstance(extent, Extent) else extent for extent in shape[first:]]
    if len(open_places) > 1 and first > 1 and rest.count(-1) < 2:
        view = make("nn.View", *rest, calls=(("setNumInputDims", (len(before) - first,)),))
        return LuaLayer("nn.Bottle", (len(before) - first + 1, len(shape) - first + 1), children=[view])
    if len(open_places) > 1:
        return None
    return make("nn.View", *(tuple(-1 if isinstance(extent, Extent) else extent for extent in shape) or (1,)))


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape to which shapes broadcast."""
    rank = max(map(len, shapes))
    result = []
    for extents in zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes)):
        longer = {extent for extent in extents if extent != 1}
        if len(longer) > 1 and not are_equal(*longer):
            raise CannotError(f"the extents {' and '.join(map(str, sorted(longer, key=str)))} do not match")
        result.append(longer.pop() if longer else 1)
    return tuple(result)


def is_parameter(*values: Any) -> bool:
    """Return whether all values are parameters, which layers can learn."""
    return all(isinstance(value, Stored) and value.learned for value in values)


def check_learned(value: Any, name: str) -> None:
    """Refuse an argument that is no parameter, if it is given.

    Raises:
        CannotError: it is computed, or a buffer.
    """
    if value is not None and not is_parameter(value):
        raise CannotError(f"the {name} is computed, or is not a parameter")


def with_extents(shape: Shape, place: int, *extents: Any) -> Shape:
    """Return a shape with other extents, or none, for one dimension."""
    return (*shape[:place], *extents, *shape[place + 1 :])


def _with_numbers(args: dict[str, Any], schema: Any) -> dict[str, Any]:
    """Return arguments with booleans as numbers where a schema has these, as PyTorch takes `True` for 1."""
    kinds = {one.name: str(one.type) for one in schema.arguments} if schema else {}

    def number(item: Any, kind: str) -> Any:
        return (int if "int" in kind else float)(item) if isinstance(item, bool) and "bool" not in kind else item

    return {name: mapped(partial(number, kind=kinds.get(name, "bool")), value) for name, value in args.items()}


_STRIDED = ("nn.ZeroGrad", "nn.Identity", "nn.Squeeze", "nn.Unsqueeze")
"""Layers whose output has the strides of their input."""
_OF_CONTIGUOUS = ("nn.Bottle", "nn.View", "nn.Squeeze", "nn.Unsqueeze", "nn.PixelShuffle")
"""Layers that view their input, or the gradient of it, in another shape."""


def _is_repeated(step: LuaNode) -> bool:
    """Return whether the value of a step has repeated elements in memory once: those of an nn.Replicate."""
    while step.layer is not None:
        for layer in reversed(step.layer.children if step.layer.name == "nn.Sequential" else [step.layer]):
            if layer.name not in _STRIDED:
                return layer.name == "nn.Replicate"
        step = step.inputs[0]
    return False


def _from_contiguous(layer: LuaLayer) -> LuaLayer:
    """Return a layer of a value with repeated elements, made contiguous if the layer needs that."""
    for first in layer.children if layer.name == "nn.Sequential" else [layer]:
        if first.name in _OF_CONTIGUOUS:
            return make("nn.Contiguous") >> layer
        if first.name not in _STRIDED:
            break
    return layer
