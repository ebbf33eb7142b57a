"""Attention."""

from __future__ import annotations

from math import sqrt
from typing import Any

from ..build import Builder, CannotError, Const
from ..layers import make
from ..table import operation
from .activation import over_last
from .linear import flattened, product


@operation(
    "scaled_dot_product_attention.default",
    "nn.MM, nn.MulConstant, nn.SoftMax, nn.CAddTable with nn.Constant for a mask",
)
def attention(
    b: Builder,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Sum values weighted by the softmax of products of queries and keys."""
    import numpy as np

    query, key, value = b.wire(query), b.wire(key), b.wire(value)
    if enable_gqa and len(query.shape) == 4 and query.shape[1] != key.shape[1]:  # heads of queries that share keys
        key, value = (_repeated(b, shared, query.shape[1]) for shared in (key, value))
    if query.shape[:-2] != key.shape[:-2]:
        raise CannotError("queries and keys have different heads")
    shape = query.shape
    factor = 1 / sqrt(shape[-1]) if scale is None else scale
    _lead, rows, columns = shape[:-2], shape[-2], key.shape[-2]
    scores = product(b, query, key, False, True)
    if factor != 1:
        scores = b.emit(make("nn.MulConstant", factor), scores)
    mask = None
    if is_causal:
        mask = np.where(np.tril(np.ones((rows, columns), bool)), 0, -np.inf).astype("f4")
    elif isinstance(attn_mask, Const):
        mask = attn_mask.array()
        if b.dtype_of(b.argument(3, "attn_mask")) == "bool":
            mask = np.where(mask != 0, 0, -np.inf).astype("f4")
    elif attn_mask is not None:
        wide = b.expand(b.wire(attn_mask, query), scores.shape)
        scores = b.emit(make("nn.CAddTable"), scores, wide)
    if mask is not None and mask.any():
        if np.isneginf(mask).all(-1).any():
            raise CannotError("the mask leaves a row without any value")
        constant = b.wire(Const(b.tensor(mask), scores.shape), scores)
        scores = b.emit(make("nn.CAddTable"), scores, constant)
    weights = over_last(b, "nn.SoftMax", scores, -1)
    probability = dropout_p if dropout_p else b.dropout_of("MultiheadAttention")
    if probability:
        weights = b.emit(make("nn.Dropout", probability), weights)
    return product(b, weights, value)


def _repeated(b: Builder, value: Any, heads: int) -> Any:
    """Repeat each head."""
    batch, own, *rest = value.shape
    wide = b.expand(b.reshape(value, (batch, own, 1, *rest)), (batch, own, heads // own, *rest), value)
    return b.reshape(wide, (batch, heads, *rest))


__all__ = ["attention", "flattened"]
