"""Cumulative sums, products, and losses without learned weights."""

from __future__ import annotations

from typing import Any

from ..build import Builder, CannotError, Const, Wire
from ..layers import make
from ..table import operation
from .linear import matmul
from .reduction import reduced
from .shape import MOST_PARTS, selected


@operation("cumsum.default", "nn.MM with nn.Constant, a triangle of ones")
def cumsum(b: Builder, self: Any, dim: int, dtype: Any = None) -> Any:
    """Return cumulative sums."""
    import numpy as np

    value = b.wire(self)
    rank, place = len(value.shape), dim % len(value.shape)
    extent = value.shape[place]
    if isinstance(extent, str):
        raise CannotError("sums along the batch")
    order = (*(axis for axis in range(rank) if axis != place), place)
    triangle = Const(b.tensor(np.triu(np.ones((extent, extent), "f4"))), (extent, extent))
    made = matmul(b, b.permute(value, order), triangle)
    return b.permute(made, tuple(order.index(axis) for axis in range(rank)))


@operation("prod.dim_int", "nn.Select, nn.CMulTable")
def product(b: Builder, self: Any, dim: int, keepdim: bool = False, dtype: Any = None) -> Any:
    """Return products."""
    value = b.wire(self)
    place = dim % len(value.shape)
    extent = value.shape[place]
    if isinstance(extent, str) or extent > MOST_PARTS:
        raise CannotError(f"multiplies {extent} elements")
    parts = [selected(b, value, place, index) for index in range(extent)]
    made = b.emit(make("nn.CMulTable"), *parts) if len(parts) > 1 else parts[0]
    return b.reshape(made, b.shape)


@operation("mse_loss.default l1_loss.default", "nn.CSubTable, nn.Square or nn.Abs, nn.Mean or nn.Sum")
def distance_loss(b: Builder, self: Any, target: Any, reduction: int = 1) -> Any:
    """Return squared or absolute differences, or their mean or sum."""
    like = next(value for value in (self, target) if isinstance(value, Wire))
    if self.shape != target.shape:
        raise CannotError("the shapes differ")
    apart = b.emit(make("nn.CSubTable"), b.wire(self, like), b.wire(target, like))
    made = b.emit(make("nn.Square" if "mse" in b.call.op else "nn.Abs"), apart)
    return made if reduction == 0 else reduced(b, "nn.Mean" if reduction == 1 else "nn.Sum", made, None, False)
