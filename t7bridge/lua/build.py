"""From ATen calls to steps of Lua layers: values, constants, parameters, and services for operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import field

from ..data import define
from ..errors import T7BridgeError, UnsupportedError
from .layers import LuaLayer, LuaNode, WeightRef, make, sequential
from .table import OPERATIONS
from .trace import CallRef, DynamicExtent, Program, TracedCall, fold, is_tensor, to_array, to_tensor

Shape = tuple[Any, ...]
"""Extents: integers, and text for those that depend on the batch size."""


TAKES_SCALED = frozenset(
    (
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear"),
        *("mul", "div"),
    )
)
"""Operations that accept a `Scaled`."""


class CannotError(Exception):
    """An operation has no exact composition; the text says why."""


@define(eq=False)
class Wire:
    """A value computed when the model runs."""

    step: LuaNode
    shape: Shape


@define(eq=False)
class Const:
    """A value known at build time. Its tensor is broadcast to `shape`."""

    value: Any
    shape: Shape

    def array(self) -> Any:
        """The elements as a numpy array, not broadcast."""
        return to_array(self.value)


@define(eq=False)
class LearnedTensor:
    """A learned tensor, or a contiguous part of one, broadcast to `shape`."""

    ref: WeightRef
    shape: Shape


@define(eq=False)
class Scaled:
    """A learned tensor times a scale, which layers with weights apply to their inputs or outputs.

    Attributes:
        param: the learned tensor.
        scale: a number, or a wire of one number or of one for each index of a dimension.
        place: that dimension; `None` if the scale is one number.
        shape: of the result.
    """

    param: LearnedTensor
    scale: Any
    place: int | None
    shape: Shape


@define(eq=False)
class Missing:
    """The value of an operation that could not be expressed."""

    shape: Any = ()


@define(eq=False)
class Absent:
    """A part of an operation's result that Lua does not have: an error if it is used.

    Attributes:
        reason: the reason.
    """

    reason: str
    shape: Any = ()


@define(eq=False)
class Builder:
    """Runs the calls of a program on values that are wires of a Lua graph.

    Attributes:
        program: the traced program.
        on_change: makes in-place changes by a call visible to later uses of a tensor; see `inplace.changed`.
        steps: the emitted steps, in order.
        problems: inexpressible operations: line in the user's source, operation and reason.
        allow: other Lua packages than nn and nngraph that may be used.
        notes: notes for the user.
        scalars: the outputs without dimensions, counted from 1, which have one of extent 1 in Lua.
    """

    program: Program
    on_change: Callable[[Builder, TracedCall, Any], None]
    allow: tuple[str, ...] = ()
    steps: list[LuaNode] = field(factory=list)
    problems: list[tuple[str, str, str]] = field(factory=list)
    notes: list[str] = field(factory=list)
    scalars: list[int] = field(factory=list)
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
        for index, (name, shape, dtype) in enumerate(self.program.inputs):
            step = LuaNode(None, [], shape, (), index)
            inputs.append(step)
            self.env[name] = Wire(step, shape)
            if dtype != "float32" and dtype != "float64":
                self.env[name] = self.emit(make("nn.Copy", "torch.LongTensor", "torch.FloatTensor"), self.env[name])
        for name, key in self.program.parameters.items():
            shape = tuple(self.program.state[key].shape)
            self.env[name] = LearnedTensor(WeightRef(key, 0, shape), shape)
        for name, value in self.program.constants.items():
            self.env[name] = Const(value, tuple(value.shape)) if is_tensor(value) else value
        for call in self.program.calls:
            self.call = call
            self.env[call.name] = self.value_of(call)
        outputs = []
        for item in self.program.outputs:
            value = self.env[item.name] if isinstance(item, CallRef) else item
            if isinstance(value, Missing):
                continue
            if value is None:
                continue
            outputs.append(self.wire(value).step)
            if value.shape == ():
                self.scalars.append(len(outputs))
        if self.problems:
            raise self._error()
        return inputs, outputs

    def _error(self) -> UnsupportedError:
        seen: dict[tuple[str, str, str], None] = dict.fromkeys(self.problems)
        listed = "".join(f"\n  {op} at {line or 'an unknown line'}: {why}" for line, op, why in seen)
        count = len(seen)
        return UnsupportedError(
            f"{count} operation{'s' if count > 1 else ''} of the module cannot be expressed with nn and nngraph{listed}"
        )

    def value_of(self, call: TracedCall) -> Any:
        """Build a call; failures are added to the problems."""
        missing: list[bool] = []
        args = self._resolve(call.args, missing)
        kwargs = {name: self._resolve(value, missing) for name, value in call.kwargs.items()}
        if missing:
            return Missing(call.shape)
        if call.op == "operator.list":
            return args[0]
        if call.op == "operator.getitem":
            return args[0][args[1]]
        if call.op.startswith(("operator.", "aten.sym_size", "aten._assert", "aten.sym_")):
            return DynamicExtent(call.name)
        if call.op.split(".")[1] not in TAKES_SCALED:
            args, kwargs = self._unscaled(args), {name: self._unscaled(value) for name, value in kwargs.items()}
        try:
            folded = self._fold(call, args, kwargs)
            if folded is not None:
                return folded
            operation = OPERATIONS.get(call.op)
            if operation is None:
                raise CannotError("Lua has no such operation, and no composition is known")
            value = operation.build(self, *args, **kwargs)
            if is_inplace(call.op):
                self.on_change(self, call, value)
        except CannotError as error:
            self.problems.append((call.line, call.op, str(error)))
            return Missing(call.shape)
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, T7BridgeError):
                raise
            self.problems.append((call.line, call.op, f"with these arguments no composition is known ({error})"))
            return Missing(call.shape)
        return value

    def _unscaled(self, value: Any) -> Any:
        """Compute the argument of an operation that does not accept a scale."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._unscaled(item) for item in value)
        return self.wire(value) if isinstance(value, Scaled) else value

    def _resolve(self, value: Any, missing: list[bool]) -> Any:
        if isinstance(value, CallRef):
            found = self.env[value.name]
            if isinstance(found, Absent):
                self.problems.append((self.call.line, self.call.op, found.reason))
                found = Missing(found.shape)
            if isinstance(found, Missing):
                missing.append(True)
            return found
        if isinstance(value, (list, tuple)):
            return type(value)(self._resolve(item, missing) for item in value)
        return value

    def _fold(self, call: TracedCall, args: Any, kwargs: Any) -> Any:
        """Compute a call on constants now; `None` if its arguments are not constants."""
        values = list(_leaves((args, kwargs)))
        if any(isinstance(value, (Wire, LearnedTensor, Scaled, DynamicExtent)) for value in values):
            return None
        if any(isinstance(value, Const) and value.shape != tuple(value.value.shape) for value in values):
            return None
        result = fold(call, _tensors(args), _tensors(kwargs))
        return _constants(result)

    # Used by operations

    def remark(self, text: str) -> None:
        """Add a note for the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    def remark_unrolled(self, length: Any) -> None:
        """Note that recurrent layers have a fixed number of steps."""
        self.remark(
            f"recurrent layers are unrolled for {length} steps: the model accepts sequences of that length only"
        )

    @staticmethod
    def tensor(array: Any) -> Any:
        """Return a numpy array as PyTorch's tensor, for a constant."""
        return to_tensor(array)

    def compute(self, *args: Any) -> Any:
        """Run the current operation on constants."""
        return _constants(fold(self.call, args, {}))

    def argument(self, place: int, name: str) -> Any:
        """Return an argument of the call as traced: a `CallRef` or a plain value."""
        return self.call.args[place] if len(self.call.args) > place else self.call.kwargs.get(name)

    def dtype_of(self, ref: Any) -> str:
        """Return the element type of an argument of the call, `float32`; empty if unknown."""
        if not isinstance(ref, CallRef):
            return ""
        value = self.env.get(ref.name)
        if isinstance(value, Const):
            return str(value.value.dtype).removeprefix("torch.")
        types = {name: dtype for name, _, dtype in self.program.inputs}
        types.update((call.name, call.dtype) for call in self.program.calls)
        return types.get(ref.name, "")

    def dropout_of(self, kind: str) -> float:
        """Return the dropout probability of the module that contains the call, if it acts in training only."""
        path = self.call.stack[-1].partition("|")[2] if self.call.stack else ""
        found = self.program.dropouts.get(path)
        return found[1] if found and found[0].startswith(kind) else 0.0

    @property
    def shape(self) -> Any:
        """The shape of the value of the current call."""
        return self.call.shape

    def emit(self, layer: LuaLayer, *values: Any, shape: Shape | None = None) -> Wire:
        """Apply a layer to values.

        Args:
            layer: the layer.
            values: wires, constants or parameters, in the order of Lua's table.
            shape: of the result; by default that of the first value.
        """
        wires = [self.wire(value) for value in values]
        stack = self.call.stack if self.call is not None else ()
        if not layer.path and stack:
            layer.path = stack[-1].partition("|")[2]
        step = LuaNode(layer, [wire.step for wire in wires], wires[0].shape if shape is None else shape, stack)
        self.steps.append(step)
        return Wire(step, step.shape)

    def wire(self, value: Any, like: Wire | None = None) -> Wire:
        """Return a value as a wire; constants and parameters become nodes that ignore their input.

        Args:
            value: a wire, a constant or a parameter.
            like: a value with the batch in its first dimension, if the result has it too.
        """
        if isinstance(value, Wire):
            return value
        if isinstance(value, Scaled):
            return self._product(value)
        if (
            isinstance(value, LearnedTensor) and value.ref.transposed
        ):  # layers other than nn.Linear need a contiguous weight
            straight = value.ref.size[::-1]
            turned = self._perm(LearnedTensor(WeightRef(value.ref.key, value.ref.start, straight), straight), (1, 0))
            wide: Wire = self.expand(turned, value.shape, like)
            return wide
        if isinstance(value, (int, float)):
            raise CannotError("a number where a tensor is needed")
        import numpy as np

        source = like or self._any_input(value.shape)
        inner = value.shape
        batched = any(isinstance(extent, str) for extent in inner)
        if batched and (isinstance(inner[0], int) or any(isinstance(extent, str) for extent in inner[1:])):
            raise CannotError("a constant grows with the batch in a dimension that is not the first")
        if batched and inner[0] != source.shape[0]:
            raise CannotError("a constant needs the batch of a value without one")
        sizes = inner[1:] if batched else inner
        if not sizes and batched:
            sizes, batched_scalar = (1,), True
        else:
            batched_scalar = False
        depth = len(source.shape) - 1 if batched else None
        if isinstance(value, Const):
            array = value.array()
            if batched and array.ndim == len(inner):
                if array.shape[0] != 1:
                    raise CannotError("a constant has the batch in its first dimension")
                array = array[0]
            array = np.ascontiguousarray(np.broadcast_to(array, sizes)).astype("f4" if array.dtype != "f8" else "f8")
            if not array.ndim:
                array = array.reshape(1)
            layer = make("nn.Constant", array, depth)
            made = self.emit(layer, source, shape=inner)
        else:
            own = value.ref.size
            lead = (1,) * (len(sizes) - len(own)) + tuple(own)
            if batched and len(own) == len(inner):
                lead = tuple(own)[1:]
                if own[0] != 1:
                    raise CannotError("a parameter has the batch in its first dimension")
            ones = np.ones(sizes or (1,), "f4")
            constant = self.emit(make("nn.Constant", ones, depth), source, shape=inner)
            full = ((1,) if batched else ()) + (lead or (1,))
            made = self.emit(make("nn.CMul", *full, weight=self.resized(value.ref, full)), constant, shape=inner)
        return self.reshape(made, inner) if batched_scalar else made

    def _product(self, value: Scaled) -> Wire:
        """Return a learned tensor times its scale."""
        made = self.wire(value.param)
        if isinstance(value.scale, float):
            return self.emit(make("nn.MulConstant", value.scale), made)
        scale = value.scale
        if value.place is not None:
            rest = (1,) * (len(value.shape) - value.place - 1)
            scale = self.reshape(scale, (*(1,) * value.place, scale.shape[0], *rest))
        else:
            scale = self.reshape(scale, (1,) * len(value.shape))
        return self.emit(make("nn.CMulTable"), made, self.expand(scale, value.shape))

    def _any_input(self, shape: Shape) -> Wire:
        """Return a wire to attach a constant to: with the batch in its first dimension if there is one."""
        step = next((step for step in self.steps if step.layer is not None and step.layer.name == "nn.Copy"), None)
        if step is not None:
            return Wire(step, step.shape)
        name, first, _ = self.program.inputs[0]
        value = self.env[name]
        return value if isinstance(value, Wire) and value.step.layer is None else Wire(self._input_step(), first)

    def _input_step(self) -> LuaNode:
        for step in self.steps:
            for source in step.inputs:
                if source.layer is None:
                    return source
        raise CannotError("the module uses none of its inputs")

    @staticmethod
    def resized(ref: WeightRef, size: tuple[int, ...]) -> WeightRef:
        """Return the same elements in another shape."""
        return WeightRef(ref.key, ref.start, tuple(size), ref.transposed)

    def reshape(self, value: Any, shape: Shape) -> Any:
        """Reshape a value to another shape with equally many elements."""
        shape = tuple(shape)
        if value.shape == shape:
            return value
        if isinstance(value, Const) and not any(isinstance(extent, str) for extent in (*value.shape, *shape)):
            return Const(value.value.expand(value.shape).reshape(shape), shape)
        if whole(value) and all(isinstance(extent, int) for extent in shape):
            return LearnedTensor(self.resized(value.ref, shape), shape)
        wire = self.wire(value)
        open_dims = [place for place, extent in enumerate(shape) if isinstance(extent, str)]
        if len(open_dims) > 1:
            raise CannotError("more than one extent of the result depends on the inputs")
        layers = []
        if wire.step.layer is not None and last_layer(wire.step.layer).name in ("nn.Replicate",):
            layers.append(make("nn.Contiguous"))
        if shape and wire.shape and shape[0] == wire.shape[0] and len(shape) > 1 and isinstance(shape[0], str):
            count = len(wire.shape) - 1
            layers.append(make("nn.View", *shape[1:], calls=(("setNumInputDims", (count,)),)))
        else:
            sizes = tuple(-1 if isinstance(extent, str) else extent for extent in shape)
            layers.append(make("nn.View", *(sizes or (1,))))
        return self.emit(sequential(*layers), wire, shape=shape)

    def permute(self, value: Any, order: tuple[int, ...]) -> Any:
        """Permute dimensions; `order` is the source, 0-based, of each dimension of the result."""
        shape = tuple(value.shape[place] for place in order)
        if list(order) == sorted(order):
            return value
        if isinstance(value, Const):
            return (
                Const(value.value.expand(_known(value)).permute(order), shape)
                if _known(value)
                else self._perm(value, order)
            )
        kept = [place for place in order if value.shape[place] != 1]
        if kept == sorted(kept) and not isinstance(value, LearnedTensor):
            return self.reshape(value, shape)
        if (
            order == (1, 0)
            and isinstance(value, LearnedTensor)
            and value.ref.transposed
            and value.ref.size == value.shape
        ):
            return LearnedTensor(WeightRef(value.ref.key, value.ref.start, shape), shape)
        if order == (1, 0) and whole(value) and tuple(self.program.state[value.ref.key].shape) == value.shape:
            return LearnedTensor(WeightRef(value.ref.key, 0, shape, True), shape)
        return self._perm(value, order)

    def _perm(self, value: Any, order: tuple[int, ...]) -> Wire:
        swaps, current = [], list(range(len(order)))
        for place, wanted in enumerate(order):
            found = current.index(wanted)
            if found != place:
                swaps.append((place + 1, found + 1))
                current[place], current[found] = current[found], current[place]
        shape = tuple(value.shape[place] for place in order)
        return self.emit(make("nn.Transpose", *swaps), value, shape=shape)

    def expand(self, value: Any, shape: Shape, like: Wire | None = None) -> Any:
        """Repeat a value along dimensions of extent 1, and along new dimensions in front.

        Args:
            value: a wire, a constant or a parameter.
            shape: of the result.
            like: a value with the batch of the result in its first dimension, if the value does not have it.
        """
        shape = tuple(shape)
        if value.shape == shape:
            return value
        if isinstance(value, Const):
            return Const(value.value, shape)
        if isinstance(value, LearnedTensor):
            return LearnedTensor(value.ref, shape)
        if shape and isinstance(shape[0], str) and (len(value.shape) < len(shape) or value.shape[0] == 1):
            return self._for_each_example(value, shape, like)
        while len(value.shape) < len(shape):
            extent = shape[len(shape) - len(value.shape) - 1]
            if isinstance(extent, str):
                raise CannotError("a value is repeated for each example of the batch")
            value = self.emit(make("nn.Replicate", extent, 1), value, shape=(extent, *value.shape))
        for place, extent in enumerate(shape):
            if value.shape[place] == extent:
                continue
            if isinstance(extent, str):
                raise CannotError("a value is repeated for each example of the batch")
            result = (*value.shape[:place], extent, *value.shape[place + 1 :])
            layers = [make("nn.Select", place + 1, 1), make("nn.Replicate", extent, place + 1)]
            if len(value.shape) == 1:  # the element of a vector is not a tensor in Lua
                layers = [make("nn.Replicate", extent, 1), make("nn.Select", 2, 1)]
            layer = sequential(*layers)
            value = self.emit(layer, value, shape=result)
        return value

    def _for_each_example(self, value: Wire, shape: Shape, like: Wire | None) -> Any:
        """Repeat a value for each example: the product of a column of ones, one per example, and the value as a row."""
        import numpy as np

        source = like or self._any_input(shape)
        if source.shape[:1] != shape[:1]:
            raise CannotError("a value is repeated for each example of the batch")
        inner = shape[1:]
        lead = len(shape) - len(value.shape)
        row = self.expand(self.reshape(value, value.shape[1:]) if lead == 0 else value, inner)
        count = 1
        for extent in inner:
            count *= extent
        ones = make("nn.Constant", np.ones(1, "f4"), len(source.shape) - 1)
        column = self.emit(ones, source, shape=(shape[0], 1))
        layer = make("nn.MM")
        made = self.emit(layer, column, self.reshape(row, (1, count)), shape=(shape[0], count))
        return self.reshape(made, shape)


def is_inplace(op: str) -> bool:
    """Return whether an operation changes its first argument: its name ends in one underscore."""
    base = op.split(".")[1] if op.startswith("aten.") else ""
    return base.endswith("_") and not base.endswith("__")


def whole(value: Any) -> bool:
    """Return whether a value is a parameter in its own layout, not broadcast."""
    return isinstance(value, LearnedTensor) and value.ref.size == value.shape and not value.ref.transposed


def last_layer(layer: LuaLayer) -> LuaLayer:
    """Return the layer whose output is that of a chain."""
    while layer.name == "nn.Sequential":
        layer = layer.children[-1]
    return layer


def _known(value: Const) -> tuple[int, ...] | None:
    return None if any(isinstance(extent, str) for extent in value.shape) else value.shape


def _leaves(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    else:
        yield value


def _tensors(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_tensors(item) for item in value)
    if isinstance(value, dict):
        return {name: _tensors(item) for name, item in value.items()}
    return value.value if isinstance(value, Const) else value


def _constants(value: Any) -> Any:
    if is_tensor(value):
        return Const(value, tuple(value.shape))
    if isinstance(value, (list, tuple)):
        return [_constants(item) for item in value]
    return value


def mentions(call: TracedCall, name: str) -> bool:
    """Return whether a call uses a value."""
    return any(isinstance(item, CallRef) and item.name == name for item in _leaves((call.args, call.kwargs)))
