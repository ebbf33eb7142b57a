"""Arithmetic of two values: tables of two inputs, constants, and parameters as nn.CMul and nn.CAdd."""

from __future__ import annotations

from math import log
from typing import Any

from ..build import Builder, CannotError, Const, LearnedTensor, Scaled, Wire
from ..layers import make, sequential
from ..table import operation


def number_of(value: Any) -> Any:
    """Return the number that a value has everywhere; otherwise `None`."""
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, Const) and value.value.numel() == 1:
        return float(value.array().reshape(-1)[0])
    return None


def joined(b: Builder, name: str, first: Any, second: Any) -> Wire:
    """Apply a layer that takes a table of two, after broadcasting both."""
    shape = b.shape
    pair = []
    anchor = next(
        (value for value in (first, second) if isinstance(value, Wire) and value.shape[:1] == shape[:1]), None
    )
    for value in (first, second):
        if not isinstance(value, Wire):
            lead = isinstance(shape[0], str) if shape else False
            wanted = shape if not lead or len(value.shape) < len(shape) or anchor is not None else value.shape
            value = b.wire(type(value)(value.value if isinstance(value, Const) else value.ref, wanted), anchor)
        pair.append(b.expand(value, shape, anchor))
    return b.emit(make(name), *pair, shape=shape)


def plus(b: Builder, value: Any, number: float) -> Any:
    """Add a number."""
    return value if number == 0 else b.emit(make("nn.AddConstant", number), value)


def times(b: Builder, value: Any, number: float) -> Any:
    """Multiply by a number."""
    return value if number == 1 else b.emit(make("nn.MulConstant", number), value)


def learned(b: Builder, name: str, wire: Wire, param: LearnedTensor, shape: Any = None) -> Wire:
    """Apply nn.CMul or nn.CAdd to a value of the result's shape."""
    shape = b.shape if shape is None else shape
    wire = b.expand(wire, shape)
    if param.ref.transposed:
        kind = "nn.CMulTable" if name == "nn.CMul" else "nn.CAddTable"
        return b.emit(make(kind), wire, b.expand(b.wire(param), shape, wire), shape=shape)
    rank = len(shape)
    size = (1,) * (rank - len(param.ref.size)) + param.ref.size
    field = "weight" if name == "nn.CMul" else "bias"
    return b.emit(make(name, *size, **{field: b.resized(param.ref, size)}), wire, shape=shape)


def weight_times(b: Builder, weight: Any, other: Any, divide: bool = False) -> Scaled | None:
    """Return a learned kernel or matrix times one number, or one for each index of a dimension; `None` for others."""
    param = weight.param if isinstance(weight, Scaled) else weight
    if not isinstance(param, LearnedTensor) or len(param.shape) < 2 or param.ref.size != param.shape:
        return None
    number = number_of(other)
    old = weight.scale if isinstance(weight, Scaled) else 1.0
    if number is not None:
        number = 1 / number if divide else number
        if isinstance(old, float):
            return Scaled(param, old * number, None, param.shape)
        return Scaled(param, times(b, old, number), weight.place, param.shape)
    if not isinstance(other, (Wire, LearnedTensor)) or isinstance(weight, Scaled):
        return None
    longer = [place for place, extent in enumerate(other.shape) if extent != 1]
    if len(longer) > 1 or (longer and len(other.shape) != len(param.shape)) or b.shape != param.shape:
        return None
    count = other.shape[longer[0]] if longer else 1
    scale = b.reshape(b.wire(scalar_wire(other)), (count,))
    scale = b.emit(make("nn.Power", -1), scale) if divide else scale
    return Scaled(param, scale, longer[0] if longer else None, param.shape)


def scalar_wire(value: Any) -> Any:
    """Return a value without dimensions as Lua has it, with one of extent 1."""
    return Wire(value.step, (1,)) if isinstance(value, Wire) and value.shape == () else value


@operation("add.Tensor add_.Tensor add.Scalar add_.Scalar", "nn.CAddTable, nn.CAdd for a parameter, nn.AddConstant")
def add(b: Builder, self: Any, other: Any, alpha: float = 1) -> Any:
    """Add."""
    if number_of(self) is not None and number_of(other) is None:
        self, other, alpha, factor = other, self, 1, alpha
        self = times(b, self, factor)
    self, other = scalar_wire(self), scalar_wire(other)
    if number_of(other) is not None:
        return b.expand(plus(b, self, alpha * number_of(other)), b.shape)
    if alpha != 1:
        other = times(b, b.wire(other), alpha)
    if isinstance(self, LearnedTensor) and isinstance(other, Wire):
        self, other = other, self
    if isinstance(self, Wire) and isinstance(other, LearnedTensor):
        return learned(b, "nn.CAdd", self, other)
    return joined(b, "nn.CAddTable", self, other)


@operation("sub.Tensor sub_.Tensor sub.Scalar rsub.Scalar rsub.Tensor", "nn.CSubTable, nn.CAdd, nn.AddConstant")
def sub(b: Builder, self: Any, other: Any, alpha: float = 1) -> Any:
    """Subtract."""
    if b.call.op.startswith("aten.rsub"):
        self, other = other, self
        if alpha != 1:
            raise CannotError("subtracts with a factor")
    self, other = scalar_wire(self), scalar_wire(other)
    if number_of(other) is not None:
        return b.expand(plus(b, self, -alpha * number_of(other)), b.shape)
    if alpha != 1:
        other = times(b, b.wire(other), alpha)
    if number_of(self) is not None:
        return b.expand(plus(b, times(b, other, -1), number_of(self)), b.shape)
    if isinstance(self, Wire) and isinstance(other, LearnedTensor):
        return times(b, learned(b, "nn.CAdd", times(b, self, -1), other), -1)
    if isinstance(self, LearnedTensor) and isinstance(other, Wire):
        return learned(b, "nn.CAdd", times(b, other, -1), self)
    return joined(b, "nn.CSubTable", self, other)


@operation("mul.Tensor mul_.Tensor mul.Scalar mul_.Scalar", "nn.CMulTable, nn.CMul for a parameter, nn.MulConstant")
def mul(b: Builder, self: Any, other: Any) -> Any:
    """Multiply."""
    for weight, factor in ((self, other), (other, self)):
        made = weight_times(b, weight, factor)
        if made is not None:
            return made
    self, other = (b.wire(value) if isinstance(value, Scaled) else scalar_wire(value) for value in (self, other))
    if number_of(self) is not None and number_of(other) is None:
        self, other = other, self
    if number_of(other) is not None:
        return b.expand(times(b, self, number_of(other)), b.shape)
    if isinstance(self, Wire) and isinstance(other, Wire) and self.step is other.step:
        return b.emit(make("nn.Square"), self)
    if isinstance(self, LearnedTensor) and isinstance(other, Wire):
        self, other = other, self
    if isinstance(self, Wire) and isinstance(other, LearnedTensor):
        return learned(b, "nn.CMul", self, other)
    return joined(b, "nn.CMulTable", self, other)


@operation("div.Tensor div_.Tensor div.Scalar div_.Scalar true_divide.Tensor", "nn.CDivTable, nn.MulConstant, nn.Power")
def div(b: Builder, self: Any, other: Any) -> Any:
    """Divide."""
    made = weight_times(b, self, other, divide=True)
    if made is not None:
        return made
    self, other = (b.wire(value) if isinstance(value, Scaled) else scalar_wire(value) for value in (self, other))
    if number_of(other) is not None:
        return b.expand(times(b, self, 1 / number_of(other)), b.shape)
    if number_of(self) is not None:
        return b.expand(times(b, b.emit(make("nn.Power", -1), other), number_of(self)), b.shape)
    return joined(b, "nn.CDivTable", self, other)


@operation("addcmul.default addcmul_.default", "nn.CMulTable, nn.MulConstant, nn.CAddTable")
def addcmul(b: Builder, self: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    """Add a product."""
    return add(b, self, b.wire(mul(b, tensor1, tensor2)), value)


@operation("addcdiv.default addcdiv_.default", "nn.CDivTable, nn.MulConstant, nn.CAddTable")
def addcdiv(b: Builder, self: Any, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
    """Add a quotient."""
    return add(b, self, b.wire(div(b, tensor1, tensor2)), value)


@operation("lerp.Scalar lerp.Tensor", "nn.CSubTable, nn.MulConstant or nn.CMulTable, nn.CAddTable")
def lerp(b: Builder, self: Any, end: Any, weight: Any) -> Any:
    """Interpolate linearly between two values."""
    apart = joined(b, "nn.CSubTable", end, self)
    return add(b, self, mul(b, apart, weight))


@operation("maximum.default max.other", "nn.CMaxTable")
def maximum(b: Builder, self: Any, other: Any) -> Any:
    """Return the larger of two."""
    return joined(b, "nn.CMaxTable", self, other)


@operation("minimum.default min.other", "nn.CMinTable")
def minimum(b: Builder, self: Any, other: Any) -> Any:
    """Return the smaller of two."""
    return joined(b, "nn.CMinTable", self, other)


@operation("pow.Tensor_Scalar pow_.Scalar", "nn.Power, nn.Square, nn.Sqrt")
def power(b: Builder, self: Any, exponent: float) -> Any:
    """Raise to a power."""
    if exponent == 1:
        return self
    if exponent == 2:
        return b.emit(make("nn.Square"), self)
    return b.emit(make("nn.Sqrt") if exponent == 0.5 else make("nn.Power", exponent), self)


@operation("pow.Scalar", "nn.MulConstant, nn.Exp")
def power_of_number(b: Builder, self: float, exponent: Any) -> Any:
    """Raise a number to powers."""
    if self <= 0:
        raise CannotError(f"powers of {self}")
    return b.emit(sequential(make("nn.MulConstant", log(self)), make("nn.Exp")), exponent)


def mask_pair(b: Builder, mask: Any) -> tuple[Any, Any]:
    """Return a mask and its opposite, 1 and 0, of the result's shape: constants, or wires without a gradient."""
    if isinstance(mask, Const):
        chosen = mask.array() != 0
        return tuple(Const(b.tensor(part.astype("f4")), b.shape) for part in (chosen, ~chosen))  # type: ignore[return-value]
    own = b.wire(mask)
    turned = b.emit(sequential(make("nn.MulConstant", -1), make("nn.AddConstant", 1)), own)
    return b.expand(own, b.shape), b.expand(turned, b.shape)


def kept(b: Builder, value: Any, mask: Any) -> Wire:
    """Return a value where a mask is 1, and 0 elsewhere."""
    return joined(b, "nn.CMulTable", value, mask)


def filling(b: Builder, number: float, mask: Any, like: Wire) -> Any:
    """Return a number where a mask is 1, and 0 elsewhere; `None` for 0."""
    import numpy as np

    if number == 0:
        return None
    if isinstance(mask, Const):
        return b.wire(Const(b.tensor(np.where(mask.array() != 0, float(number), 0.0)), b.shape), like)
    if abs(number) != float("inf"):
        return b.emit(make("nn.MulConstant", number), mask)
    # The logarithm of the opposite mask is 0 and minus infinity.
    layers = [make("nn.MulConstant", -1), make("nn.AddConstant", 1), make("nn.Log"), make("nn.ZeroGrad")]
    layers += [make("nn.MulConstant", -1)] if number > 0 else []
    return b.emit(sequential(*layers), mask)


@operation(
    "masked_fill.Scalar masked_fill_.Scalar masked_fill.Tensor", "nn.CMulTable and nn.CAddTable with the mask; nn.Log"
)
def masked_fill(b: Builder, self: Any, mask: Any, value: Any) -> Any:
    """Replace elements where a mask is 1."""
    number = number_of(value)
    if number is None:
        return where(b, mask, value, self)
    own, opposite = mask_pair(b, mask)
    rest = kept(b, self, opposite)
    filled = filling(b, number, own, rest)
    return rest if filled is None else b.emit(make("nn.CAddTable"), rest, filled, shape=b.shape)


@operation(
    "where.self where.ScalarOther where.ScalarSelf where.Scalar", "nn.CMulTable and nn.CAddTable with the mask; nn.Log"
)
def where(b: Builder, condition: Any, self: Any, other: Any) -> Any:
    """Choose between two values by a mask."""
    import numpy as np

    chosen, opposite = mask_pair(b, condition)
    parts: list[Any] = []
    for value, mask in ((self, chosen), (other, opposite)):
        number = number_of(value)
        if number is None and isinstance(value, Const) and isinstance(mask, Const):
            parts.append(Const(b.tensor(np.where(mask.array() != 0, value.array(), 0)), b.shape))
        elif number is None:
            parts.append(kept(b, value, mask))
        elif isinstance(mask, Const):
            parts.append(Const(b.tensor(np.where(mask.array() != 0, float(number), 0.0)), b.shape))
        else:
            parts.append(filling(b, number, mask, mask))
    wires = [part for part in parts if part is not None]
    if len(wires) == 1:
        return b.wire(wires[0])
    return joined(b, "nn.CAddTable", *wires)


@operation("clamp.Tensor clamp_.Tensor", "nn.CMaxTable, nn.CMinTable")
def clamp_between(b: Builder, self: Any, min: Any = None, max: Any = None) -> Any:
    """Clip each element to an interval of its own."""
    value = self if min is None else joined(b, "nn.CMaxTable", self, min)
    return value if max is None else joined(b, "nn.CMinTable", value, max)


@operation("logaddexp.default", "nn.CMaxTable, nn.CSubTable, nn.Abs, nn.SoftPlus, nn.CAddTable")
def logaddexp(b: Builder, self: Any, other: Any) -> Any:
    """Return the logarithm of a sum of exponentials."""
    apart = joined(b, "nn.CSubTable", self, other)
    rest = b.emit(sequential(make("nn.Abs"), make("nn.MulConstant", -1), make("nn.SoftPlus")), apart)
    return b.emit(make("nn.CAddTable"), joined(b, "nn.CMaxTable", self, other), rest)
