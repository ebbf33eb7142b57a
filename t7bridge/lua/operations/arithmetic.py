"""Arithmetic of two values: tables of two inputs, constants, and parameters as nn.CMul and nn.CAdd."""

from __future__ import annotations

from math import log
from typing import Any

from ..build import Builder, CannotError, Const, Param, Wire
from ..layers import make, sequential
from ..table import operation


def number_of(value: Any) -> Any:
    """Return a value that is one number everywhere, as such; else `None`."""
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
    """Multiply with a number."""
    return value if number == 1 else b.emit(make("nn.MulConstant", number), value)


def learned(b: Builder, name: str, wire: Wire, param: Param) -> Wire:
    """Apply nn.CMul or nn.CAdd to a value of the result's shape."""
    wire = b.expand(wire, b.shape)
    rank = len(b.shape)
    size = (1,) * (rank - len(param.ref.size)) + param.ref.size
    field = "weight" if name == "nn.CMul" else "bias"
    return b.emit(make(name, *size, **{field: b.resized(param.ref, size)}), wire, shape=b.shape)


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
    if isinstance(self, Param) and isinstance(other, Wire):
        self, other = other, self
    if isinstance(self, Wire) and isinstance(other, Param):
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
    if isinstance(self, Wire) and isinstance(other, Param):
        return times(b, learned(b, "nn.CAdd", times(b, self, -1), other), -1)
    if isinstance(self, Param) and isinstance(other, Wire):
        return learned(b, "nn.CAdd", times(b, other, -1), self)
    return joined(b, "nn.CSubTable", self, other)


@operation("mul.Tensor mul_.Tensor mul.Scalar mul_.Scalar", "nn.CMulTable, nn.CMul for a parameter, nn.MulConstant")
def mul(b: Builder, self: Any, other: Any) -> Any:
    """Multiply."""
    self, other = scalar_wire(self), scalar_wire(other)
    if number_of(self) is not None and number_of(other) is None:
        self, other = other, self
    if number_of(other) is not None:
        return b.expand(times(b, self, number_of(other)), b.shape)
    if isinstance(self, Wire) and isinstance(other, Wire) and self.step is other.step:
        return b.emit(make("nn.Square"), self)
    if isinstance(self, Param) and isinstance(other, Wire):
        self, other = other, self
    if isinstance(self, Wire) and isinstance(other, Param):
        return learned(b, "nn.CMul", self, other)
    return joined(b, "nn.CMulTable", self, other)


@operation("div.Tensor div_.Tensor div.Scalar div_.Scalar true_divide.Tensor", "nn.CDivTable, nn.MulConstant, nn.Power")
def div(b: Builder, self: Any, other: Any) -> Any:
    """Divide."""
    self, other = scalar_wire(self), scalar_wire(other)
    if number_of(other) is not None:
        return b.expand(times(b, self, 1 / number_of(other)), b.shape)
    if number_of(self) is not None:
        return b.expand(times(b, b.emit(make("nn.Power", -1), other), number_of(self)), b.shape)
    return joined(b, "nn.CDivTable", self, other)


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


def masked(b: Builder, keep: Any, value: Wire, rest: Any) -> Wire:
    """Return a value where a constant mask keeps it, and other constants elsewhere.

    Args:
        keep: numpy, 1 and 0.
        value: what is kept.
        rest: numpy, 0 where the value is kept.
    """
    shape = b.shape
    value = b.expand(value, shape)

    def fixed(array: Any) -> Const:
        return Const(b.tensor(array), _broadcast(array.shape, shape))

    kept = b.emit(make("nn.CMulTable"), value, b.wire(fixed(keep), value), shape=shape)
    return b.emit(make("nn.CAddTable"), kept, b.wire(fixed(rest), value), shape=shape)


def _broadcast(own: Any, shape: Any) -> Any:
    return shape


@operation(
    "masked_fill.Scalar masked_fill_.Scalar masked_fill.Tensor", "nn.CMulTable and nn.CAddTable with nn.Constant"
)
def masked_fill(b: Builder, self: Any, mask: Any, value: Any) -> Any:
    """Replace elements where a constant mask says so."""
    import numpy as np

    number = number_of(value)
    if not isinstance(mask, Const) or number is None:
        raise CannotError("the mask depends on the inputs")
    chosen = mask.array() != 0
    keep = (~chosen).astype("f4")
    return masked(b, keep, b.wire(self), np.where(chosen, number, 0).astype("f4"))


@operation(
    "where.self where.ScalarOther where.ScalarSelf where.Scalar", "nn.CMulTable and nn.CAddTable with nn.Constant"
)
def where(b: Builder, condition: Any, self: Any, other: Any) -> Any:
    """Choose between two values by a constant mask."""
    import numpy as np

    if not isinstance(condition, Const):
        raise CannotError("the choice depends on the inputs")
    chosen = condition.array() != 0
    if isinstance(self, Wire) and not isinstance(other, (Wire, Param)):
        rest = other.array() if isinstance(other, Const) else np.array(other)
        return masked(b, chosen.astype("f4"), self, np.where(chosen, 0, rest).astype("f4"))
    if isinstance(other, Wire) and not isinstance(self, (Wire, Param)):
        rest = self.array() if isinstance(self, Const) else np.array(self)
        return masked(b, (~chosen).astype("f4"), other, np.where(chosen, rest, 0).astype("f4"))
    first = masked(b, chosen.astype("f4"), b.wire(self), np.zeros_like(chosen, "f4"))
    second = masked(b, (~chosen).astype("f4"), b.wire(other), np.zeros_like(chosen, "f4"))
    return b.emit(make("nn.CAddTable"), first, second, shape=b.shape)
