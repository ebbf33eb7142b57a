"""Matrix products, attention, and matrices that are a learned tensor times a scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import inf, prod, sqrt
from typing import Any

from ....data import np
from ..build import (
    Builder,
    Const,
    Learned,
    Scaled,
    Stored,
    Wire,
    broadcast,
    first_wire,
    is_parameter,
    lower_triangle,
    operation,
)
from ..layers import LuaLayer, make
from ..sizes import CannotError, Shape, is_static, make_static
from .elementwise import softmax_of


def linear_layer(weight: Stored, bias: Stored | None) -> LuaLayer:
    """Return an nn.Linear with parameters."""
    n_out, n_in = weight.ref.size
    if bias is None:
        return make("nn.Linear", n_in, n_out, False, weight=weight.ref)
    return make("nn.Linear", n_in, n_out, weight=weight.ref, bias=bias.ref)


def applied(b: Builder, value: Wire, weight: Stored, bias: Stored | None) -> Any:
    """Apply nn.Linear to the last dimension."""
    n_out, n_in = weight.ref.size
    whole = b.before_view(value)
    # Two extents that depend on the inputs stay apart: no view separates them again.
    lead = _lead(whole.shape, (value.shape[0], n_in))
    if not is_static(lead[1:]):
        apart = b.reshape(whole, (*lead, n_in))
        return b.reshape(applied(b, apart, weight, bias), (value.shape[0], n_out))
    layer = linear_layer(weight, bias)
    shape = (*value.shape[:-1], n_out)
    if len(shape) > 2:
        layer = LuaLayer("nn.Bottle", (2, 2), children=[layer])
    return b.emit(layer, value, shape=shape)


def _lead(shape: Shape, matrix: Shape) -> Shape:
    """Return the dimensions of a value that are the rows of it as a matrix; none if there are no such."""
    for count in range(2, len(shape)):
        if prod(shape[:count]) == matrix[0] and prod(shape[count:]) == matrix[1]:
            return shape[:count]
    return ()


def product(b: Builder, first: Any, second: Any, trans_b: bool = False) -> Any:
    """Multiply matrices of equal leading dimensions by nn.MM, which accepts one leading dimension."""
    lead = first.shape[:-2]
    rows = first.shape[-2]
    columns = second.shape[-2 if trans_b else -1]
    batch = (prod(lead),) if len(lead) > 1 else lead
    matrices = [b.reshape(value, (*batch, *value.shape[-2:])) for value in b.wires(first, second)]
    layer = make("nn.MM", False, True) if trans_b else make("nn.MM")
    result = b.emit(layer, *matrices, shape=(*batch, rows, columns))
    return b.reshape(result, (*lead, rows, columns))


def _aligned(b: Builder, *matrices: Any) -> list[Any]:
    """Broadcast the leading dimensions of matrices."""
    rank = max(len(value.shape) for value in matrices)
    values = []
    for value in matrices:
        missing = (1,) * (rank - len(value.shape))
        values.append(b.reshape(value, (*missing, *value.shape)))
    lead = broadcast(*(value.shape[:-2] for value in values))
    like = first_wire(values, lead)
    return [b.broadcast_to(value, (*lead, *value.shape[-2:]), like) for value in values]


def with_weight(turned: bool, channels: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator of layers with a weight and a bias, for other weights and biases than learned ones.

    The scale of a weight is applied to the outputs, or to the inputs, and a bias that the layer cannot hold is added
    behind it.

    Args:
        turned: whether the first dimension of the weight is that of the inputs, as in transposed convolutions.
        channels: the dimension of values that has the channels.
    """

    def decorate(layer: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(layer)
        def build(b: Builder, input: Wire, weight: Any, bias: Any, **options: Any) -> Any:
            def along_channels(value: Wire, vector: Any) -> Any:
                """Return a vector in the dimension that a value has for channels."""
                behind = len(value.shape) - channels % len(value.shape) - 1
                return b.reshape(vector, (*vector.shape, *(1,) * behind))

            def scaled(value: Wire, scale: Any) -> Any:
                return value * (scale if isinstance(scale, float) else along_channels(value, scale))

            if isinstance(weight, Scaled) and weight.axis == 1 and options.get("groups", 1) > 1:
                weight = b.wire(weight)  # the dimension is of the channels in a group
            if not isinstance(weight, Scaled):
                own_bias = bias if is_parameter(bias, weight) else None
                result = layer(b, input, weight, own_bias, **options)
                return result if bias is own_bias else result + along_channels(result, bias)
            is_of_outputs = weight.axis is None or turned == (weight.axis == 1)
            if is_of_outputs:
                # The bias is not scaled: it is added behind the scale.
                result = scaled(layer(b, input, weight.param, None, **options), weight.scale)
                return result if bias is None else result + along_channels(result, bias)
            own_bias = bias if is_parameter(bias, weight.param) else None
            result = layer(b, scaled(input, weight.scale), weight.param, own_bias, **options)
            return result if bias is own_bias else result + along_channels(result, bias)

        return build

    return decorate


@operation("linear", "nn.Linear, in nn.Bottle for more than two dimensions", scaled=True)
@with_weight(False, -1)
def linear(b: Builder, input: Wire, weight: Any, bias: Any) -> Any:
    """Apply a matrix and a bias to the last dimension."""
    if is_parameter(weight) and len(weight.ref.size) == 2:
        return applied(b, input, weight, bias)
    product = matmul(b, input, b.permute(weight, range(len(weight.shape))[::-1]))
    return product if bias is None else product + bias


@operation("matmul mm bmm mv dot vdot", "nn.MM, nn.Linear for a parameter")
def matmul(b: Builder, self: Any, other: Any, /) -> Any:
    """Multiply matrices, broadcasting the leading dimensions."""
    if is_parameter(other) and len(other.ref.size) == 2 and prod(other.shape) == prod(other.ref.size):
        turned = b.permute(other, (*range(len(other.shape) - 2), -1, -2))
        if isinstance(turned, Stored) and all(extent == 1 for extent in other.shape[:-2]):
            shape = (*broadcast(self.shape[:-2], other.shape[:-2]), *self.shape[-2:-1], other.shape[-1])
            return b.reshape(applied(b, b.wire(self), turned, None), shape)
    if len(other.shape) == 1:
        column = matmul(b, self, b.reshape(other, (*other.shape, 1)))
        return b.reshape(column, column.shape[:-1])
    if len(self.shape) == 1:
        row = matmul(b, b.reshape(self, (1, *self.shape)), other)
        return b.reshape(row, (*row.shape[:-2], row.shape[-1]))
    if len(other.shape) == 2 and len(self.shape) > 2:
        first = b.wire(self)
        flat = b.reshape(first, (prod(first.shape[:-1]), first.shape[-1]))
        rows = b.emit(make("nn.MM"), flat, b.wire(other), shape=(flat.shape[0], other.shape[-1]))
        return b.reshape(rows, (*first.shape[:-1], other.shape[-1]))
    return product(b, *_aligned(b, self, other))


@operation("addmm", "nn.Linear, nn.MM, nn.CAdd")
def addmm(b: Builder, self: Any, mat1: Any, mat2: Any, beta: float, alpha: float) -> Any:
    """Multiply matrices and add."""
    if is_parameter(self, mat2) and beta == alpha == 1 and len(self.ref.size) == 1:
        turned = b.permute(mat2, (1, 0))
        if isinstance(turned, Stored):
            return applied(b, b.wire(mat1), turned, self)
    total = matmul(b, mat1, mat2) * alpha
    return total + (self if beta == 1 else b.wire(self) * beta)


@operation("bilinear", "nn.Bilinear")
def bilinear(b: Builder, input1: Any, input2: Any, weight: Learned, bias: Learned | None) -> Any:
    """Apply a bilinear form to two inputs of two dimensions."""
    if len(input1.shape) != 2:
        raise CannotError("nn.Bilinear takes two matrices")
    n_out, n_1, n_2 = weight.ref.size
    if bias is None:
        layer = make("nn.Bilinear", n_1, n_2, n_out, False, weight=weight.ref)
    else:
        layer = make("nn.Bilinear", n_1, n_2, n_out, weight=weight.ref, bias=bias.ref)
    return b.emit(layer, input1, input2, shape=b.shape)


@operation(
    "_weight_norm _weight_norm_interface",
    "nn.Square, nn.Sum, nn.Sqrt, nn.CDivTable of the parameters; nn.CMulTable after the layer",
    "The layer has the direction as its weight, and its outputs are scaled.",
)
def weight_norm(b: Builder, v: Learned, g: Any, dim: int) -> Any:
    """Return a weight as direction times length."""
    axis = None if dim == -1 else dim % len(v.shape)
    order = sorted(range(len(v.shape)), key=lambda dim: dim != axis)  # the axis first
    count = 1 if axis is None else v.shape[axis]
    flat = b.reshape(b.permute(b.wire(v), order), (count, prod(v.shape) // count))
    norm = b.emit(make("nn.Square") >> make("nn.Sum", 2) >> make("nn.Sqrt"), flat, shape=(count,))
    weight = Scaled(v, b.wire(b.reshape(b.wire(g), (count,))) / norm, axis)
    return [weight, norm] if b.kind.endswith("interface") else weight


@operation(
    "scaled_dot_product_attention", "nn.MM, nn.MulConstant, nn.SoftMax, nn.CAddTable with nn.Constant for a mask"
)
def attention(
    b: Builder,
    query: Wire,
    key: Wire,
    value: Wire,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Any:
    """Sum values weighted by the softmax of products of queries and keys."""
    if enable_gqa:  # heads of queries share keys and values
        key, value = (_repeated(b, shared, query.shape[-3]) for shared in (key, value))
    query, key, value = _aligned(b, query, key, value)
    scores = product(b, query, key, True) * (1 / sqrt(query.shape[-1]) if scale is None else scale)
    scores = _masked(b, scores, attn_mask, is_causal)
    weights = softmax_of(b, scores, len(scores.shape) - 1)
    if type(b.module).__name__.startswith("MultiheadAttention"):
        dropout_p = dropout_p or b.module.dropout  # PyTorch traces evaluation with 0
    if dropout_p:
        weights = b.emit(make("nn.Dropout", dropout_p), weights)
    return product(b, weights, value)


def _masked(b: Builder, scores: Wire, attn_mask: Any, is_causal: bool) -> Any:
    """Add a mask to scores: numbers, or minus infinity where a mask of booleans is false.

    Raises:
        CannotError: a constant mask leaves out all of a row, whose softmax is NaN.
    """
    is_choice = b.dtype_of("attn_mask") == "bool"
    if is_causal and not is_static(scores.shape[-2:]):
        return scores + (lower_triangle(b, scores.shape[-2:], 0) >> make("nn.Log"))
    if is_causal:
        mask = np.tril(np.ones(make_static(*scores.shape[-2:]), bool))
    elif isinstance(attn_mask, Const):
        mask = attn_mask.array()
        if is_choice:
            mask = mask != 0
    elif attn_mask is None:
        return scores
    elif is_choice:
        return scores + (b.wire(attn_mask) >> make("nn.ZeroGrad") >> make("nn.Log"))
    else:
        return scores + attn_mask
    if mask.dtype == bool:
        mask = np.where(mask, 0, -inf).astype("f4")
    if not mask.any():
        return scores
    if np.isneginf(mask).all(-1).any():
        raise CannotError("the mask leaves a row without any value")
    return scores + b.constant(mask, scores.shape)


def _repeated(b: Builder, value: Any, heads: int) -> Any:
    """Repeat each head, if there are fewer than wanted."""
    *batch, own, steps, width = value.shape
    if own == heads:
        return value
    wide = b.reshape(value, (*batch, own, 1, steps, width))
    repeated = b.expand(wide, (*batch, own, heads // own, steps, width), value)
    return b.reshape(repeated, (*batch, heads, steps, width))
