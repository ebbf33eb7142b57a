"""Matrix products, attention, and weights that are a learned tensor times a scale, as by weight normalization.
A function builds the Lua layers of one call of a traced program, by the builder `b`, where `b.shape` is the shape of
the call's result in PyTorch. A value is a `Wire`, which is computed when the model runs, a `Const`, or a tensor of the
state dict, `Stored`. An `Extent` is an open size, which depends on those of the inputs.
"""

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
    is_parameter,
    lower_triangle,
    operation,
    wire_with_batch,
)
from ..layers import LuaLayer, make
from ..sizes import CannotError, Shape, is_static
from ..training import dropout_of_attention
from .elementwise import ACTIVE_DROPOUT, softmax_of


def linear_layer(weight: Stored, bias: Stored | None) -> LuaLayer:
    """Return an nn.Linear with a weight of shape (out, in), and a bias; `None` for none."""
    n_out, n_in = weight.ref.size
    if bias is None:
        has_bias = False
        return make("nn.Linear", n_in, n_out, has_bias, weight=weight.ref)
    return make("nn.Linear", n_in, n_out, weight=weight.ref, bias=bias.ref)


def apply_linear(b: Builder, value: Wire, weight: Stored, bias: Stored | None) -> Any:
    """Apply nn.Linear to the last dimension.

    Args:
        b: the builder.
        value: a value of any rank.
        weight: a parameter of shape (out, in), perhaps transposed.
        bias: a parameter; `None` for none.
    """
    n_out, n_in = weight.ref.size
    # PyTorch merges leading dimensions to the rows of a matrix before a product, and splits them again behind it. No
    # view would separate two open extents again: the layer is applied to the value before they were merged.
    unmerged = b.before_view(value)
    lead = _merged_dimensions(unmerged.shape, (value.shape[0], n_in))
    are_several_open = not is_static(lead[1:])  # if one is open, it is the batch, the first of them
    if are_several_open:
        result = apply_linear(b, b.reshape(unmerged, (*lead, n_in)), weight, bias)
        return b.reshape(result, (value.shape[0], n_out))
    layer = linear_layer(weight, bias)
    shape = (*value.shape[:-1], n_out)
    if len(shape) > 2:
        layer = LuaLayer("nn.Bottle", (2, 2), children=[layer])  # of matrices to matrices
    return b.emit(layer, value, shape=shape)


def _merged_dimensions(shape: Shape, matrix_shape: Shape) -> Shape:
    """Return the leading extents of a value, two or more, that are merged where it is viewed as a matrix.

    Empty if it cannot have become this matrix so.

    Args:
        shape: of the value.
        matrix_shape: the numbers of rows and columns.
    """
    rows, columns = matrix_shape
    for count in range(2, len(shape)):
        if prod(shape[:count]) == rows and prod(shape[count:]) == columns:
            return shape[:count]
    return ()


def product(b: Builder, first: Any, second: Any, transpose_second: bool = False) -> Any:
    """Multiply matrices of equal leading dimensions by nn.MM, which accepts one leading dimension.

    Args:
        b: the builder.
        first: (…, rows, inner).
        second: (…, inner, columns), or (…, columns, inner) if `transpose_second`.
        transpose_second: see `second`.
    """
    lead = first.shape[:-2]
    rows = first.shape[-2]
    columns = second.shape[-2 if transpose_second else -1]
    batch = (prod(lead),) if len(lead) > 1 else lead
    matrices = [b.reshape(value, (*batch, *value.shape[-2:])) for value in b.wires(first, second)]
    transpose_first = False
    layer = make("nn.MM", transpose_first, transpose_second) if transpose_second else make("nn.MM")
    result = b.emit(layer, *matrices, shape=(*batch, rows, columns))
    return b.reshape(result, (*lead, rows, columns))


def _broadcast_batches(b: Builder, *matrices: Any) -> list[Any]:
    """Return matrices, the last two dimensions of values, as wires with their leading dimensions broadcast."""
    rank = max(len(value.shape) for value in matrices)
    values = []
    for value in matrices:
        missing = (1,) * (rank - len(value.shape))
        values.append(b.reshape(value, (*missing, *value.shape)))
    lead = broadcast(*(value.shape[:-2] for value in values))
    like = wire_with_batch(values, lead)
    return [b.broadcast_to(value, (*lead, *value.shape[-2:]), like=like) for value in values]


def _is_of_outputs(weight: Scaled, is_transposed: bool) -> bool:
    """Return whether the scale of a weight is applied to the outputs of its layer, and not to the inputs.

    The dimension of the outputs is the first one, or of a transposed weight the second one; a single number may be
    applied to either.
    """
    return weight.axis is None or is_transposed == (weight.axis == 1)


def with_weight(is_transposed: bool, channels: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator of builders of operations with a weight and a bias, such as a convolution.

    The decorated builder takes any weight and bias. It leaves to the builder what the operation's layer can hold, a
    parameter without a scale and a bias beside it, and computes the rest before and behind that layer.

    Args:
        is_transposed: whether the first dimension of the weight is of the inputs, as in transposed convolutions.
        channels: the dimension of inputs and outputs that the weight is a matrix for.
    """

    def decorate(build: Callable[..., Any]) -> Callable[..., Any]:
        """Return the builder of the operation for any weight and bias.

        Args:
            build: the builder for a weight without a scale, and a bias that is a parameter or `None`.
        """

        @wraps(build)
        def build_any(b: Builder, input: Wire, weight: Any, bias: Any, **options: Any) -> Any:
            """Build the operation by its layer, and around that what the layer cannot hold of the weight and bias.

            A weight is a parameter, a `Scaled` or a computed value, a bias any value or `None`; `options` are the other
            arguments of the operation.
            """
            # With groups, the second dimension is of the channels in a group: no dimension of the inputs or outputs.
            if isinstance(weight, Scaled) and weight.axis == 1 and options.get("groups", 1) > 1:
                weight = b.wire(weight)
            output_scale: Any = None
            if isinstance(weight, Scaled):
                if _is_of_outputs(weight, is_transposed):
                    output_scale = weight.scale
                else:
                    input = _times_channels(b, input, weight.scale, channels)
                weight = weight.param
            weight = _with_kernels_in_order(b, weight)
            # The layer has no bias whose outputs are scaled: it would be scaled, too.
            if output_scale is None and is_parameter(weight) and is_parameter(bias):
                return build(b, input, weight, bias, **options)
            output = build(b, input, weight, None, **options)
            if output_scale is not None:
                output = _times_channels(b, output, output_scale, channels)
            return _plus_bias(b, output, bias, channels)

        return build_any

    return decorate


def _with_kernels_in_order(b: Builder, weight: Any) -> Any:
    """Return a weight; transposed kernels of signals become a wire, which transposes them when the model runs.

    Signals become images, with a height between the two dimensions that are exchanged: no `WeightRef` can say that.
    """
    is_of_signals = len(weight.shape) == 3
    if is_of_signals and isinstance(weight, Stored) and weight.ref.transposed:
        return b.wire(weight)
    return weight


def _plus_bias(b: Builder, value: Wire, bias: Any, channels: int) -> Any:
    """Return a value plus a bias along its dimension of channels; a bias of `None` is none."""
    return value if bias is None else value + _along_channels(b, value, bias, channels)


def _times_channels(b: Builder, value: Wire, scale: Any, channels: int) -> Any:
    """Return a value times a number, or times one number for each index of its dimension of channels."""
    return value * (scale if isinstance(scale, float) else _along_channels(b, value, scale, channels))


def _along_channels(b: Builder, value: Wire, vector: Any, channels: int) -> Any:
    """Return a vector in a shape that broadcasts with a value, along its dimension of channels."""
    behind = len(value.shape) - channels % len(value.shape) - 1
    return b.reshape(vector, (*vector.shape, *(1,) * behind))


@operation("linear", lua="nn.Linear, in nn.Bottle for more than two dimensions", scaled=True)
@with_weight(is_transposed=False, channels=-1)
def linear(b: Builder, input: Wire, weight: Any, bias: Any) -> Any:
    """Apply a matrix and a bias to the last dimension.

    The weight, of shape (out, in), may be computed: only a parameter is held by nn.Linear.
    """
    if is_parameter(weight) and len(weight.ref.size) == 2:
        return apply_linear(b, input, weight, bias)
    # A computed matrix, or a vector, whose result has no dimension of outputs.
    result = matmul(b, input, b.permute(weight, range(len(weight.shape))[::-1]))
    return result if bias is None else result + bias


@operation("matmul mm bmm mv dot vdot", lua="nn.MM, nn.Linear for a parameter")
def matmul(b: Builder, self: Any, other: Any, /) -> Any:
    """Multiply matrices, broadcasting the leading dimensions."""
    result = _product_by_linear(b, self, other)
    if result is not None:
        return result
    # A vector is a matrix of one column, or of one row, which the result does not have.
    if len(other.shape) == 1:
        column = matmul(b, self, b.reshape(other, (*other.shape, 1)))
        return b.reshape(column, column.shape[:-1])
    if len(self.shape) == 1:
        row = matmul(b, b.reshape(self, (1, *self.shape)), other)
        return b.reshape(row, (*row.shape[:-2], row.shape[-1]))
    if len(other.shape) == 2 and len(self.shape) > 2:  # all rows as those of one matrix
        first = b.wire(self)
        flat = b.reshape(first, (prod(first.shape[:-1]), first.shape[-1]))
        rows = b.emit(make("nn.MM"), flat, b.wire(other), shape=(flat.shape[0], other.shape[-1]))
        return b.reshape(rows, (*first.shape[:-1], other.shape[-1]))
    return product(b, *_broadcast_batches(b, self, other))


def _product_by_linear(b: Builder, value: Any, matrix: Any) -> Any:
    """Return a product of matrices by an nn.Linear that holds the second as its weight; `None` if it cannot.

    The second has to be a parameter of two dimensions, perhaps with more of extent 1 in front.

    Args:
        b: the builder.
        value: (…, rows, inner), or a vector.
        matrix: (…, inner, columns), or a vector.
    """
    if not is_parameter(matrix) or len(matrix.ref.size) != 2:
        return None
    is_repeated = prod(matrix.shape) != prod(matrix.ref.size)
    *lead, _, columns = matrix.shape
    if is_repeated or any(extent != 1 for extent in lead):
        return None
    transposed = b.permute(matrix, (*range(len(lead)), -1, -2))  # nn.Linear's weight is (out, in)
    if not isinstance(transposed, Stored):  # it would be computed
        return None
    # Dimensions of extent 1 before the two are those of the result, and not of the layer's weight.
    shape = (*broadcast(value.shape[:-2], tuple(lead)), *value.shape[-2:-1], columns)
    return b.reshape(apply_linear(b, b.wire(value), transposed, None), shape)


@operation("addmm", lua="nn.Linear, nn.MM, nn.CAdd")
def addmm(b: Builder, self: Any, mat1: Any, mat2: Any, beta: float, alpha: float) -> Any:
    """Multiply matrices and add.

    The result is beta self + alpha mat1 mat2.
    """
    if is_parameter(self, mat2) and beta == alpha == 1 and len(self.ref.size) == 1:
        transposed = b.permute(mat2, (1, 0))  # nn.Linear's weight is (out, in)
        if isinstance(transposed, Stored):  # else it would be computed
            return apply_linear(b, b.wire(mat1), transposed, bias=self)
    total = matmul(b, mat1, mat2) * alpha
    return total + (self if beta == 1 else b.wire(self) * beta)


@operation("bilinear", lua="nn.Bilinear")
def bilinear(b: Builder, input1: Any, input2: Any, weight: Learned, bias: Learned | None) -> Any:
    """Apply a bilinear form to two inputs of two dimensions.

    The weight is (outputs, features of the first input, features of the second).
    """
    if len(input1.shape) != 2:
        raise CannotError("nn.Bilinear takes two matrices")
    n_out, n_1, n_2 = weight.ref.size
    if bias is None:
        has_bias = False
        layer = make("nn.Bilinear", n_1, n_2, n_out, has_bias, weight=weight.ref)
    else:
        layer = make("nn.Bilinear", n_1, n_2, n_out, weight=weight.ref, bias=bias.ref)
    return b.emit(layer, input1, input2, shape=b.shape)


@operation(
    "_weight_norm _weight_norm_interface",
    lua="nn.Square, nn.Sum, nn.Sqrt, nn.CDivTable of the parameters; nn.CMulTable after the layer",
    note="The layer has the direction as its weight, and its outputs are scaled.",
)
def weight_norm(b: Builder, v: Learned, g: Any, dim: int) -> Any:
    """Return a weight as direction times length.

    `v` has the direction, and `g` a length for each index of a dimension, or one for all: the weight is v g / |v|.
    """
    axes = list(range(len(v.shape)))
    if dim == -1:  # PyTorch's number for all dimensions
        axis = None
        count = 1
        order = axes
    else:
        axis = dim % len(v.shape)
        count = v.shape[axis]
        order = [axis, *(other for other in axes if other != axis)]
    # A row for each length.
    rows = b.reshape(b.permute(b.wire(v), order), (count, prod(v.shape) // count))
    norms = b.emit(make("nn.Square") >> make("nn.Sum", 2) >> make("nn.Sqrt"), rows, shape=(count,))
    lengths = b.wire(b.reshape(b.wire(g), (count,)))
    weight = Scaled(v, lengths / norms, axis)
    return [weight, norms] if b.kind.endswith("interface") else weight


@operation(
    "scaled_dot_product_attention", lua="nn.MM, nn.MulConstant, nn.SoftMax, nn.CAddTable with nn.Constant for a mask"
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
    """Sum values weighted by the softmax of products of queries and keys.

    Args:
        b: the builder.
        query: (…, queries, features); heads, if there are any, are the dimension before these.
        key: (…, keys, features).
        value: (…, keys, features of the result).
        attn_mask: see `_add_mask`; `None` for none.
        dropout_p: the probability with which a weight becomes 0, in evaluation; not 0 only if the source says so.
        is_causal: whether a query has only the keys up to its own position.
        scale: by which the products are multiplied; `None` for 1 / the root of the number of features.
        enable_gqa: whether there are fewer heads of keys and values, each for several heads of queries.
    """
    if enable_gqa:  # heads of queries share keys and values
        key, value = (_repeat_heads(b, shared, query.shape[-3]) for shared in (key, value))
    query, key, value = _broadcast_batches(b, query, key, value)
    factor = 1 / sqrt(query.shape[-1]) if scale is None else scale
    scores = product(b, query, key, transpose_second=True) * factor
    scores = _add_mask(b, scores, attn_mask, is_causal)
    weights = softmax_of(b, scores, dim=len(scores.shape) - 1)
    if dropout_p:
        b.remark(ACTIVE_DROPOUT)
    probability = dropout_p or dropout_of_attention(b.module)
    if probability:
        weights = b.emit(make("nn.Dropout", probability), weights)
    return product(b, weights, value)


def _add_mask(b: Builder, scores: Wire, attn_mask: Any, is_causal: bool) -> Any:
    """Add a mask to scores: numbers, or minus infinity where a mask of booleans is false.

    Args:
        b: the builder.
        scores: products of queries and keys, (…, queries, keys).
        attn_mask: the mask, which broadcasts; `None` for none.
        is_causal: whether a query has only the keys up to its own position, instead of a mask.

    Raises:
        CannotError: a constant mask leaves out all of a row, whose softmax is NaN.
    """
    size = scores.shape[-2:]
    if is_causal:  # PyTorch refuses a mask beside it
        if is_static(size):
            return _add_constant_mask(b, scores, np.tril(np.ones(size, bool)))
        return scores + (lower_triangle(b, size, diagonal=0) >> make("nn.Log"))  # log 1 = 0, log 0 = -infinity
    if attn_mask is None:
        return scores
    is_boolean = b.dtype_of("attn_mask") == "bool"
    if isinstance(attn_mask, Const):
        mask = attn_mask.array()
        return _add_constant_mask(b, scores, mask != 0 if is_boolean else mask)
    if is_boolean:  # computed, as 1 and 0: it has no gradient, and that of the logarithm of 0 would be infinite
        return scores + (b.wire(attn_mask) >> make("nn.ZeroGrad") >> make("nn.Log"))
    return scores + attn_mask


def _add_constant_mask(b: Builder, scores: Wire, mask: Any) -> Any:
    """Add an array of numbers to scores, or one of booleans: minus infinity where it is false.

    Raises:
        CannotError: it leaves out all of a row, whose softmax is NaN.
    """
    if mask.dtype == bool:
        mask = np.where(mask, 0, -inf).astype("f4")
    if not mask.any():  # all are 0
        return scores
    if np.isneginf(mask).all(-1).any():
        raise CannotError("the mask leaves a row without any value")
    return scores + b.constant(mask, scores.shape)


def _repeat_heads(b: Builder, value: Any, heads: int) -> Any:
    """Repeat each head of a value (…, heads, steps, features), so that there are as many as wanted."""
    *batch, own, steps, width = value.shape
    if own == heads:
        return value
    columns = b.reshape(value, (*batch, own, 1, steps, width))
    repeated = b.expand(columns, (*batch, own, heads // own, steps, width), like=value)
    return b.reshape(repeated, (*batch, heads, steps, width))
