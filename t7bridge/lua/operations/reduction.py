"""Sums, means, extrema and norms over dimensions."""

from __future__ import annotations

from typing import Any

from ..build import Absent, Builder, CannotError, Wire
from ..layers import LuaLayer, make, sequential
from ..table import operation

POSITIONS = "the positions of extrema are not available in nn"


def reduced(b: Builder, name: str, value: Wire, dims: Any, keepdim: bool) -> Any:
    """Apply nn.Sum, nn.Mean, nn.Max or nn.Min over dimensions, last first."""
    rank = len(value.shape)
    places = sorted({place % rank for place in dims}) if dims else list(range(rank))
    shape = value.shape
    layers = []
    for place in reversed(places):
        layers.append(make(name, place + 1))
    left = tuple(extent for place, extent in enumerate(shape) if place not in places)
    made = b.emit(sequential(*layers), value, shape=left or (1,))
    if keepdim:
        return b.reshape(made, tuple(1 if place in places else extent for place, extent in enumerate(shape)))
    return made if left else Wire(made.step, ())


@operation("mean.dim mean.default", "nn.Mean")
def mean(b: Builder, self: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Return means."""
    return reduced(b, "nn.Mean", b.wire(self), [dim] if isinstance(dim, int) else dim, keepdim)


@operation("sum.dim_IntList sum.default", "nn.Sum")
def sum_(b: Builder, self: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Return sums."""
    return reduced(b, "nn.Sum", b.wire(self), [dim] if isinstance(dim, int) else dim, keepdim)


@operation("amax.default amin.default", "nn.Max, nn.Min")
def extremum(b: Builder, self: Any, dim: Any = (), keepdim: bool = False) -> Any:
    """Return maxima or minima."""
    name = "nn.Max" if "amax" in b.call.op else "nn.Min"
    return reduced(b, name, b.wire(self), [dim] if isinstance(dim, int) else dim, keepdim)


@operation("max.dim min.dim", "nn.Max, nn.Min")
def extremum_and_place(b: Builder, self: Any, dim: int, keepdim: bool = False) -> Any:
    """Return maxima or minima; the positions must be unused."""
    name = "nn.Max" if b.call.op == "aten.max.dim" else "nn.Min"
    return [reduced(b, name, b.wire(self), [dim], keepdim), Absent(POSITIONS)]


@operation("max.default min.default", "nn.View, nn.Max, nn.Min")
def whole_extremum(b: Builder, self: Any) -> Any:
    """Return the largest or smallest element."""
    return reduced(b, "nn.Max" if "max" in b.call.op else "nn.Min", b.wire(self), None, False)


@operation(
    "var.correction var.dim std.correction std.dim var_mean.correction",
    "nn.Mean, nn.CSubTable, nn.Square, nn.Sum, nn.MulConstant, nn.Sqrt",
)
def variance(
    b: Builder, self: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> Any:
    """Return variances or standard deviations."""
    value = b.wire(self)
    rank = len(value.shape)
    if correction is None:
        correction = 1 if unbiased in (None, True) else 0
    dims = [dim] if isinstance(dim, int) else dim
    places = sorted({place % rank for place in dims}) if dims else list(range(rank))
    count = 1
    for place in places:
        if isinstance(value.shape[place], str):
            raise CannotError("the variance over the batch depends on its size")
        count *= value.shape[place]
    middle = reduced(b, "nn.Mean", value, places, True)
    apart = b.emit(make("nn.CSubTable"), value, b.expand(middle, value.shape))
    total = reduced(b, "nn.Sum", b.emit(make("nn.Square"), apart), places, keepdim)
    made = b.emit(make("nn.MulConstant", 1 / (count - correction)), total)
    if b.call.op.startswith("aten.std"):
        return b.emit(make("nn.Sqrt"), made)
    if b.call.op.startswith("aten.var_mean"):
        return [made, middle if keepdim else b.reshape(middle, made.shape)]
    return made


@operation(
    "linalg_vector_norm.default norm.ScalarOpt_dim", "nn.Abs, nn.Square or nn.Power, nn.Sum, nn.Sqrt or nn.Power"
)
def norm(b: Builder, self: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Return p-norms."""
    value, dims = b.wire(self), [dim] if isinstance(dim, int) else dim
    if ord in (2, 2.0):
        return b.emit(make("nn.Sqrt"), reduced(b, "nn.Sum", b.emit(make("nn.Square"), value), dims, keepdim))
    size = b.emit(make("nn.Abs"), value)
    if ord == 1:
        return reduced(b, "nn.Sum", size, dims, keepdim)
    if ord == float("inf"):
        return reduced(b, "nn.Max", size, dims, keepdim)
    if ord <= 0:
        raise CannotError(f"the norm of order {ord}")
    powers = reduced(b, "nn.Sum", b.emit(make("nn.Power", ord), size), dims, keepdim)
    return b.emit(make("nn.Power", 1 / ord), powers)


@operation("logsumexp.default", "nn.Max, nn.CSubTable, nn.Exp, nn.Sum, nn.Log, nn.CAddTable")
def logsumexp(b: Builder, self: Any, dim: Any, keepdim: bool = False) -> Any:
    """Return the logarithm of sums of exponentials."""
    value, dims = b.wire(self), [dim] if isinstance(dim, int) else dim
    top = reduced(b, "nn.Max", value, dims, True)
    apart = b.emit(make("nn.CSubTable"), value, b.expand(top, value.shape))
    total = b.emit(make("nn.Log"), reduced(b, "nn.Sum", b.emit(make("nn.Exp"), apart), dims, True))
    return b.reshape(b.emit(make("nn.CAddTable"), top, total), b.shape)


def _length(b: Builder, value: Wire, place: int, eps: float) -> Any:
    """Return the norms over a dimension, which is kept, but at least a given number."""
    total = reduced(b, "nn.Sum", b.emit(make("nn.Square"), value), [place], True)
    return b.emit(sequential(make("nn.Sqrt"), make("nn.Threshold", eps, eps)), total)


@operation("cosine_similarity.default", "nn.Square, nn.Sum, nn.Sqrt, nn.Threshold, nn.CDivTable, nn.CMulTable")
def cosine_similarity(b: Builder, x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """Return the cosines of the angles between vectors."""
    rank = max(len(x1.shape), len(x2.shape))
    place = dim % rank
    shape = (*b.shape[:place], max(x1.shape[dim], x2.shape[dim]), *b.shape[place:])
    like = next(value for value in (x1, x2) if isinstance(value, Wire))
    pair = []
    for value in (x1, x2):
        wide = b.expand(b.wire(value, like), shape, like)
        length = b.expand(_length(b, wide, place, eps), shape)
        pair.append(b.emit(make("nn.CDivTable"), wide, length))
    return reduced(b, "nn.Sum", b.emit(make("nn.CMulTable"), *pair), [place], False)


@operation("pairwise_distance.default", "nn.CSubTable, nn.AddConstant, and the norm")
def pairwise_distance(b: Builder, x1: Any, x2: Any, p: float = 2, eps: float = 1e-6, keepdim: bool = False) -> Any:
    """Return the norms of differences of vectors."""
    like = next(value for value in (x1, x2) if isinstance(value, Wire))
    shape = x1.shape if len(x1.shape) >= len(x2.shape) else x2.shape
    pair = [b.expand(b.wire(value, like), shape, like) for value in (x1, x2)]
    apart = b.emit(sequential(LuaLayer("nn.CSubTable"), make("nn.AddConstant", eps)), *pair)
    return norm(b, apart, p, [len(shape) - 1], keepdim)
