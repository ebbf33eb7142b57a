"""Matrix products, attention, and matrices that are a learned tensor times a scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import inf, prod, sqrt
from typing import Any

from ....data import np
from ..build import Builder, Const, Learned, Scaled, Stored, Wire, broadcast, first_wire, is_parameter, operation
from ..layers import LuaLayer, make
from ..sizes import CannotError, is_known, known
from .elementwise import softmax_of


def applied(b: Builder, value: Wire, weight: Stored, bias: Stored | None) -> Any:
    """Apply nn.Linear to the last dimension."""
    n_out, n_in = weight.ref.size
    whole = b.before_view(value)
    if not is_known(whole.shape[1:-1]) and whole.shape[-1] == n_in and prod(whole.shape[:-1]) == value.shape[0]:
        # Two extents that depend on the inputs stay apart: no view separates them again.
        return b.reshape(applied(b, whole, weight, bias), (value.shape[0], n_out))
    args = (n_in, n_out, *(() if bias is not None else (False,)))
    layer = make("nn.Linear", *args, weight=weight.ref, bias=None if bias is None else bias.ref)
    shape = (*value.shape[:-1], n_out)
    return b.emit(layer if len(shape) < 3 else LuaLayer("nn.Bottle", (2, 2), children=[layer]), value, shape=shape)


def product(b: Builder, first: Any, second: Any, trans_b: bool = False) -> Any:
    """Multiply matrices of equal leading dimensions by nn.MM, which accepts one leading dimension."""
    lead, rows, columns = first.shape[:-2], first.shape[-2], second.shape[-2 if trans_b else -1]
    flat = (prod(lead),) if len(lead) > 1 else lead
    pair = [b.reshape(value, (*flat, *value.shape[-2:])) for value in b.wires(first, second)]
    made = b.emit(make("nn.MM", *((False, True) if trans_b else ())), *pair, shape=(*flat, rows, columns))
    return b.reshape(made, (*lead, rows, columns))


def _aligned(b: Builder, *matrices: Any) -> list[Any]:
    """Broadcast the leading dimensions of matrices."""
    rank = max(len(value.shape) for value in matrices)
    values = [b.reshape(value, (*(1,) * (rank - len(value.shape)), *value.shape)) for value in matrices]
    lead = broadcast(*(value.shape[:-2] for value in values))
    anchor = first_wire(values, lead)
    return [b.widened(value, (*lead, *value.shape[-2:]), anchor) for value in values]


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
            def times(value: Wire) -> Any:
                return value * (scale if isinstance(scale, float) else along_channels(value, scale))

            def along_channels(value: Wire, vector: Any) -> Any:
                return b.reshape(vector, (*vector.shape, *(1,) * (len(value.shape) - channels % len(value.shape) - 1)))

            scale, place = (weight.scale, weight.place) if isinstance(weight, Scaled) else (None, None)
            if place == 1 and options.get("groups", 1) > 1:
                weight, scale = b.wire(weight), None
            after = scale is not None and (place is None or turned == (place == 1))
            own = bias if is_parameter(bias) and is_parameter(getattr(weight, "param", weight)) and not after else None
            value = input if scale is None or after else times(input)
            made = layer(b, value, weight if scale is None else weight.param, own, **options)
            made = times(made) if after else made
            return made if bias is own else made + along_channels(made, bias)

        return build

    return decorate


@operation("linear", "nn.Linear, in nn.Bottle for more than two dimensions", scaled=True)
@with_weight(False, -1)
def linear(b: Builder, input: Wire, weight: Any, bias: Any) -> Any:
    """Apply a matrix and a bias to the last dimension."""
    if is_parameter(weight) and len(weight.ref.size) == 2:
        return applied(b, input, weight, bias)
    made = matmul(b, input, b.permute(weight, range(len(weight.shape))[::-1]))
    return made if bias is None else made + bias


@operation("matmul mm bmm mv dot vdot", "nn.MM, nn.Linear for a parameter")
def matmul(b: Builder, self: Any, other: Any, /) -> Any:
    """Multiply matrices, broadcasting the leading dimensions."""
    if is_parameter(other) and len(other.ref.size) == 2 and prod(other.shape) == prod(other.ref.size):
        turned = b.permute(other, (*range(len(other.shape) - 2), -1, -2))
        if isinstance(turned, Stored) and all(extent == 1 for extent in other.shape[:-2]):
            shape = (*broadcast(self.shape[:-2], other.shape[:-2]), *self.shape[-2:-1], other.shape[-1])
            return b.reshape(applied(b, b.wire(self), turned, None), shape)
    if len(other.shape) == 1:
        made = matmul(b, self, b.reshape(other, (*other.shape, 1)))
        return b.reshape(made, made.shape[:-1])
    if len(self.shape) == 1:
        made = matmul(b, b.reshape(self, (1, *self.shape)), other)
        return b.reshape(made, (*made.shape[:-2], made.shape[-1]))
    if len(other.shape) == 2 and len(self.shape) > 2:
        first = b.wire(self)
        flat = b.reshape(first, (prod(first.shape[:-1]), first.shape[-1]))
        made = b.emit(make("nn.MM"), flat, b.wire(other), shape=(flat.shape[0], other.shape[-1]))
        return b.reshape(made, (*first.shape[:-1], other.shape[-1]))
    return product(b, *_aligned(b, self, other))


@operation("addmm", "nn.Linear, nn.MM, nn.CAdd")
def addmm(b: Builder, self: Any, mat1: Any, mat2: Any, beta: float, alpha: float) -> Any:
    """Multiply matrices and add."""
    if is_parameter(self, mat2) and beta == alpha == 1 and len(self.ref.size) == 1:
        turned = b.permute(mat2, (1, 0))
        if isinstance(turned, Stored):
            return applied(b, b.wire(mat1), turned, self)
    made = matmul(b, mat1, mat2) * alpha
    return made + (self if beta == 1 else b.wire(self) * beta)


@operation("bilinear", "nn.Bilinear")
def bilinear(b: Builder, input1: Any, input2: Any, weight: Learned, bias: Learned | None) -> Any:
    """Apply a bilinear form to two inputs of two dimensions."""
    if len(input1.shape) != 2:
        raise CannotError("nn.Bilinear takes two matrices")
    n_out, n_1, n_2 = weight.ref.size
    args = (n_1, n_2, n_out, *(() if bias is not None else (False,)))
    layer = make("nn.Bilinear", *args, weight=weight.ref, bias=None if bias is None else bias.ref)
    return b.emit(layer, input1, input2, shape=b.shape)


@operation(
    "_weight_norm _weight_norm_interface",
    "nn.Square, nn.Sum, nn.Sqrt, nn.CDivTable of the parameters; nn.CMulTable after the layer",
    "The layer has the direction as its weight, and its outputs are scaled.",
)
def weight_norm(b: Builder, v: Learned, g: Any, dim: int) -> Any:
    """Return a weight as direction times length."""
    place = None if dim == -1 else dim % len(v.shape)
    order = sorted(range(len(v.shape)), key=lambda axis: axis != place)
    count = 1 if place is None else v.shape[place]
    flat = b.reshape(b.permute(b.wire(v), order), (count, prod(v.shape) // count))
    norm = b.emit(make("nn.Square") >> make("nn.Sum", 2) >> make("nn.Sqrt"), flat, shape=(count,))
    made = Scaled(v, b.wire(b.reshape(b.wire(g), (count,))) / norm, place)
    return [made, norm] if b.kind.endswith("interface") else made


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
    mask = None
    if is_causal:
        mask = np.tril(np.ones(known(*scores.shape[-2:]), bool))
    elif isinstance(attn_mask, Const):
        mask = attn_mask.array()
        mask = mask != 0 if b.dtype_of("attn_mask") == "bool" else mask
    elif attn_mask is not None:
        if b.dtype_of("attn_mask") == "bool":
            attn_mask = b.wire(attn_mask) >> make("nn.ZeroGrad") >> make("nn.Log")
        scores = scores + attn_mask
    if mask is not None and mask.dtype == bool:
        mask = np.where(mask, 0, -inf).astype("f4")
    if mask is not None and mask.any():
        if np.isneginf(mask).all(-1).any():
            raise CannotError("the mask leaves a row without any value")
        scores = scores + b.constant(mask, scores.shape)
    weights = softmax_of(b, scores, len(scores.shape) - 1)
    inside = type(b.module).__name__.startswith("MultiheadAttention")
    chance = dropout_p or (b.module.dropout if inside else 0.0)
    return product(b, b.emit(make("nn.Dropout", chance), weights) if chance else weights, value)


def _repeated(b: Builder, value: Any, heads: int) -> Any:
    """Repeat each head, if there are fewer than wanted."""
    *batch, own, steps, width = value.shape
    if own == heads:
        return value
    wide = b.reshape(value, (*batch, own, 1, steps, width))
    return b.reshape(b.expand(wide, (*batch, own, heads // own, steps, width), value), (*batch, heads, steps, width))
