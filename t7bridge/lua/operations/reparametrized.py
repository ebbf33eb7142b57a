"""Kernels and matrices that are a learned tensor times a scale: weight and spectral normalization, equalized rates."""

from __future__ import annotations

from math import prod
from typing import Any

from ..build import Builder, CannotError, LearnedTensor, Scaled, Wire
from ..layers import make, sequential
from ..table import operation
from .arithmetic import learned, times


def scaled(b: Builder, param: LearnedTensor, scale: Wire, place: int | None) -> Scaled:
    """Return a learned tensor times a scale of one number, or of one for each index of a dimension."""
    return Scaled(param, scale, place, param.shape)


def apply_scale(b: Builder, value: Any, weight: Scaled, place: int) -> Any:
    """Multiply the channels of a value, in dimension `place`, by the scale of a weight."""
    if isinstance(weight.scale, float):
        return times(b, value, weight.scale)
    count = weight.scale.shape[0]
    around = (1,) * place, (1,) * (len(value.shape) - place - 1)
    wide = b.reshape(weight.scale, (*around[0], count, *around[1]))
    return b.emit(make("nn.CMulTable"), value, b.expand(wide, value.shape, value))


def add_bias(b: Builder, value: Any, bias: Any, place: int) -> Any:
    """Add a learned bias to the channels of a value."""
    if bias is None:
        return value
    if not isinstance(bias, LearnedTensor):
        raise CannotError("the bias is computed, or is not a parameter")
    shape = (bias.ref.size[0], *(1,) * (len(value.shape) - place - 1))
    return learned(b, "nn.CAdd", value, LearnedTensor(b.resized(bias.ref, shape), shape), value.shape)


@operation(
    "_weight_norm.default _weight_norm_interface.default",
    "nn.Square, nn.Sum, nn.Sqrt, nn.CDivTable of the parameters; nn.CMulTable after the layer",
    "The layer has the direction as its weight, and its outputs are scaled.",
)
def weight_norm(b: Builder, v: Any, g: Any, dim: int = 0) -> Any:
    """Return a weight as direction times length."""
    if not isinstance(v, LearnedTensor):
        raise CannotError("the direction is computed, or is not a parameter")
    place = None if dim == -1 else dim % len(v.shape)
    value: Any = b.wire(v)
    if place is None:
        flat = b.reshape(value, (1, prod(v.shape)))
    else:
        order = (place, *(other for other in range(len(v.shape)) if other != place))
        flat = b.reshape(b.permute(value, order), (v.shape[place], prod(v.shape) // v.shape[place]))
    norm = b.emit(sequential(make("nn.Square"), make("nn.Sum", 2), make("nn.Sqrt")), flat, shape=flat.shape[:1])
    length = b.reshape(b.wire(g), flat.shape[:1])
    made = scaled(b, v, b.emit(make("nn.CDivTable"), length, norm), place)
    return [made, norm] if "interface" in b.call.op else made


@operation("dot.default vdot.default inner.default", "nn.CMulTable, nn.Sum")
def dot(b: Builder, self: Any, other: Any) -> Any:
    """Return the product of two vectors."""
    from .reduction import reduced

    if len(self.shape) != 1:
        raise CannotError("inner products of more than two vectors")
    return reduced(b, "nn.Sum", b.emit(make("nn.CMulTable"), b.wire(self), b.wire(other)), None, False)
