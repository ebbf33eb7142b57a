"""Matrix products."""

from __future__ import annotations

from math import prod
from typing import Any

from ..build import Builder, CannotError, LearnedTensor, Scaled, Wire
from ..layers import LuaLayer, make
from ..table import operation
from .arithmetic import add, learned, times
from .reparametrized import add_bias, apply_scale


def applied(b: Builder, value: Wire, weight: LearnedTensor, bias: LearnedTensor | None) -> Any:
    """Apply nn.Linear to the last dimension."""
    n_out, n_in = weight.ref.size
    layer = make("nn.Linear", n_in, n_out, *(() if bias is not None else (False,)), weight=weight.ref)
    if bias is not None:
        layer.weights["bias"] = bias.ref
    shape = (*value.shape[:-1], n_out)
    if len(shape) > 2:
        layer = LuaLayer("nn.Bottle", (2, 2), children=[layer])
    return b.emit(layer, value, shape=shape)


def product(b: Builder, first: Any, second: Any, trans_a: bool = False, trans_b: bool = False) -> Any:
    """Multiply matrices of equal leading dimensions by nn.MM, which accepts one leading dimension."""
    lead = first.shape[:-2]
    rows = first.shape[-1] if trans_a else first.shape[-2]
    columns = second.shape[-2] if trans_b else second.shape[-1]
    args = (trans_a, trans_b) if trans_b else (trans_a,) if trans_a else ()
    anchor = next((value for value in (first, second) if isinstance(value, Wire)), None)
    first, second = b.wire(first, anchor), b.wire(second, anchor)
    if len(lead) > 1:
        flat = flattened(lead)
        first = b.reshape(first, (flat, *first.shape[-2:]))
        second = b.reshape(second, (flat, *second.shape[-2:]))
        made = b.emit(make("nn.MM", *args), first, second, shape=(flat, rows, columns))
        return b.reshape(made, (*lead, rows, columns))
    return b.emit(make("nn.MM", *args), first, second, shape=(*lead, rows, columns))


def flattened(lead: Any) -> Any:
    """Return the extent of merged dimensions."""
    if all(isinstance(extent, int) for extent in lead):
        return prod(lead)
    return "*".join(map(str, lead))


@operation("linear.default", "nn.Linear, in nn.Bottle for more than two dimensions")
def linear(b: Builder, input: Any, weight: Any, bias: Any = None) -> Any:
    """Apply a matrix and a bias to the last dimension."""
    value = b.wire(input)
    if isinstance(weight, Scaled):
        last = len(value.shape) - 1
        if weight.place not in (None, 0):
            return linear(b, value, b.wire(weight), bias)
        return add_bias(b, apply_scale(b, applied(b, value, weight.param, None), weight, last), bias, last)
    if isinstance(weight, LearnedTensor) and len(weight.ref.size) == 2:
        learned_bias = bias if isinstance(bias, LearnedTensor) else None
        made = applied(b, value, weight, learned_bias)
        return made if bias is learned_bias else add(b, made, bias)
    made = matmul(b, value, b.permute(weight, (1, 0)))
    return made if bias is None else add(b, made, bias)


@operation("matmul.default mm.default bmm.default", "nn.MM, nn.Linear for a parameter")
def matmul(b: Builder, self: Any, other: Any = None, mat2: Any = None) -> Any:
    """Multiply matrices, broadcasting the leading dimensions."""
    other = mat2 if other is None else other
    if isinstance(other, LearnedTensor) and len(other.ref.size) == 2 and other.ref.size == other.shape:
        turned = b.permute(other, (1, 0))
        if isinstance(turned, LearnedTensor):
            return applied(b, b.wire(self), turned, None)
    if len(other.shape) == 1:
        made = matmul(b, self, b.reshape(other, (*other.shape, 1)))
        return b.reshape(made, made.shape[:-1])
    if len(self.shape) == 1:
        made = matmul(b, b.reshape(self, (1, *self.shape)), other)
        return b.reshape(made, (*made.shape[:-2], made.shape[-1]))
    if len(other.shape) == 2 and len(self.shape) > 2:
        first = b.wire(self)
        flat = b.reshape(first, (flattened(first.shape[:-1]), first.shape[-1]))
        made = b.emit(make("nn.MM"), flat, b.wire(other), shape=(flat.shape[0], other.shape[-1]))
        return b.reshape(made, (*first.shape[:-1], other.shape[-1]))
    rank = max(len(self.shape), len(other.shape))
    pair = []
    for value in (self, other):
        pair.append(b.reshape(value, (*(1,) * (rank - len(value.shape)), *value.shape)))
    lead = []
    for left, right in zip(pair[0].shape[:-2], pair[1].shape[:-2]):
        if left != right and 1 not in (left, right):
            raise CannotError("the extents before the matrices do not match")
        lead.append(right if left == 1 else left)
    anchor = next((value for value in pair if isinstance(value, Wire) and value.shape[:1] == tuple(lead[:1])), None)
    wide = []
    for value in pair:
        shape = (*lead, *value.shape[-2:])
        broad = value if isinstance(value, Wire) else b.wire(b.expand(value, shape), anchor)
        wide.append(b.expand(broad, shape, anchor))
    return product(b, *wide)


@operation("mv.default", "nn.MM")
def mv(b: Builder, self: Any, vec: Any) -> Any:
    """Multiply a matrix by a vector."""
    return matmul(b, self, vec)


@operation("addmm.default baddbmm.default", "nn.Linear, nn.MM, nn.CAdd")
def addmm(b: Builder, self: Any, mat1: Any, mat2: Any, beta: float = 1, alpha: float = 1) -> Any:
    """Multiply matrices and add."""
    if (
        isinstance(mat2, LearnedTensor)
        and isinstance(self, LearnedTensor)
        and beta == alpha == 1
        and len(self.ref.size) == 1
    ):
        turned = b.permute(mat2, (1, 0))
        if isinstance(turned, LearnedTensor):
            return applied(b, b.wire(mat1), turned, self)
    made = times(b, matmul(b, mat1, mat2), alpha)
    if beta != 1:
        self = times(b, b.wire(self), beta)
    if isinstance(self, LearnedTensor):
        return learned(b, "nn.CAdd", made, self)
    return add(b, made, self)


@operation("bilinear.default", "nn.Bilinear")
def bilinear(b: Builder, input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """Apply a bilinear form to two inputs of two dimensions."""
    if len(input1.shape) != 2 or not isinstance(weight, LearnedTensor):
        raise CannotError("nn.Bilinear takes two matrices")
    n_out, n_1, n_2 = weight.ref.size
    layer = make("nn.Bilinear", n_1, n_2, n_out, *(() if bias is not None else (False,)), weight=weight.ref)
    if bias is not None:
        layer.weights["bias"] = bias.ref
    return b.emit(layer, input1, input2, shape=b.shape)
