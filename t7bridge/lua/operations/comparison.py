"""Comparisons and logic of elements: 0 and 1 as numbers, without a gradient, usable as masks by other operations."""

from __future__ import annotations

from typing import Any

from ..build import Builder, CannotError, Const
from ..layers import LuaLayer, make, sequential
from ..table import operation
from .arithmetic import joined, number_of, scalar_wire

STEEP = {"float32": 3e38, "float64": 1.7e308}
"""Factor that scales the smallest normal number of a type to at least 1."""
FLOATS = ("float32", "float64", "float16", "bfloat16")
PARTS = "nn.CSubTable or nn.AddConstant, nn.ZeroGrad, nn.MulConstant, nn.HardTanh"
NOTE = "Exact for all numbers but denormal ones; masks are 0 and 1 in the model's own type."


def above_zero(b: Builder, dtype: str) -> LuaLayer:
    """Return layers that map positive values to 1 and the rest to 0."""
    steep = STEEP["float64" if dtype == "float64" else "float32"]
    layers = [make("nn.ZeroGrad")]
    if dtype in FLOATS or not dtype:
        b.remark("comparisons are exact for all numbers but denormal ones; their masks are 0 and 1")
        layers.append(make("nn.MulConstant", steep))
    return sequential(*layers, make("nn.HardTanh", 0, 1))


def negated() -> LuaLayer:
    """Return layers that exchange 0 and 1."""
    return sequential(make("nn.MulConstant", -1), make("nn.AddConstant", 1))


def compared_type(b: Builder) -> str:
    """Return the element type of a comparison: that of its first floating argument."""
    found = [b.dtype_of(arg) for arg in b.call.args[:2]]
    return next((name for name in found if name in FLOATS), next((name for name in found if name), ""))


def difference(b: Builder, first: Any, second: Any) -> Any:
    """Return the first value less the second, one of them a wire."""
    first, second = scalar_wire(first), scalar_wire(second)
    one, other = number_of(first), number_of(second)
    if other is not None:
        value = b.wire(first)
        return b.expand(value if other == 0 else b.emit(make("nn.AddConstant", -other), value), b.shape)
    if one is not None:
        turned = sequential(make("nn.MulConstant", -1), *([make("nn.AddConstant", one)] if one else []))
        return b.expand(b.emit(turned, b.wire(second)), b.shape)
    return joined(b, "nn.CSubTable", first, second)


@operation("gt.Scalar gt.Tensor lt.Scalar lt.Tensor", PARTS, NOTE)
def above(b: Builder, self: Any, other: Any) -> Any:
    """Return 1 where one value is above another."""
    pair = (self, other) if ".gt" in b.call.op else (other, self)
    return b.emit(above_zero(b, compared_type(b)), difference(b, *pair))


@operation("ge.Scalar ge.Tensor le.Scalar le.Tensor", PARTS, NOTE)
def at_least(b: Builder, self: Any, other: Any) -> Any:
    """Return 1 where one value is not below another."""
    pair = (other, self) if ".ge" in b.call.op else (self, other)
    return b.emit(sequential(above_zero(b, compared_type(b)), negated()), difference(b, *pair))


@operation("eq.Scalar eq.Tensor ne.Scalar ne.Tensor", f"{PARTS}, nn.Abs", NOTE)
def equal(b: Builder, self: Any, other: Any) -> Any:
    """Return 1 where values are equal (`eq`) or unequal (`ne`)."""
    layers = [make("nn.Abs"), above_zero(b, compared_type(b))]
    layers += [] if ".ne" in b.call.op else [negated()]
    return b.emit(sequential(*layers), difference(b, self, other))


def _mask(b: Builder, value: Any, place: int) -> Any:
    """Return a value as a mask, as required by logical operations."""
    if isinstance(value, Const):
        return Const(b.tensor((value.array() != 0).astype("f4")), value.shape)
    if b.dtype_of(b.call.args[place]) != "bool":
        raise CannotError("logic of numbers that are no masks")
    return value


@operation("logical_not.default bitwise_not.default", "nn.MulConstant, nn.AddConstant")
def logical_not(b: Builder, self: Any) -> Any:
    """Exchange 0 and 1 of a mask."""
    return b.emit(negated(), _mask(b, self, 0))


@operation("logical_and.default bitwise_and.Tensor __and__.Tensor", "nn.CMulTable")
def logical_and(b: Builder, self: Any, other: Any) -> Any:
    """Return 1 where both masks are."""
    return joined(b, "nn.CMulTable", _mask(b, self, 0), _mask(b, other, 1))


@operation("logical_or.default bitwise_or.Tensor __or__.Tensor", "nn.CMaxTable")
def logical_or(b: Builder, self: Any, other: Any) -> Any:
    """Return 1 where one of the masks is."""
    return joined(b, "nn.CMaxTable", _mask(b, self, 0), _mask(b, other, 1))


@operation("logical_xor.default bitwise_xor.Tensor __xor__.Tensor", "nn.CSubTable, nn.Abs")
def logical_xor(b: Builder, self: Any, other: Any) -> Any:
    """Return 1 where exactly one of the masks is."""
    return b.emit(make("nn.Abs"), joined(b, "nn.CSubTable", _mask(b, self, 0), _mask(b, other, 1)))


@operation("sign.default sgn.default", f"nn.ConcatTable, nn.CSubTable, {PARTS}", NOTE)
def sign(b: Builder, self: Any) -> Any:
    """Return -1, 0 or 1."""
    from ..layers import branches

    dtype = compared_type(b)
    negative = sequential(make("nn.MulConstant", -1), above_zero(b, dtype))
    return b.emit(branches(make("nn.CSubTable"), above_zero(b, dtype), negative), self)
