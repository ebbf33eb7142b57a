"""Sums, means, extrema and norms over dimensions; normalization: batch normalization is nn's own."""

from __future__ import annotations

from math import inf, prod
from typing import Any

from ...lazy import np
from ..build import Builder, CannotError, Learned, Missing, Place, Wire, operation, with_extents
from ..layers import LuaLayer, make, same, sequential

POSITIONS = "the positions of extrema are not available in nn"


def _places(dim: Any, rank: int) -> list[int]:
    """Return dimensions counted from the front: all by default."""
    dims = [dim] if isinstance(dim, int) else dim
    return sorted({place % rank for place in dims}) if dims else list(range(rank))


def reduced(b: Builder, name: str, value: Wire, dim: Any, keepdim: bool = False) -> Any:
    """Apply nn.Sum, nn.Mean, nn.Max or nn.Min over dimensions, last first."""
    places = _places(dim, len(value.shape))
    left = tuple(extent for place, extent in enumerate(value.shape) if place not in places)
    made = value
    if places:
        made = b.emit(sequential(*(make(name, place + 1) for place in reversed(places))), value, shape=left or (1,))
    if keepdim:
        return b.reshape(made, (1 if place in places else extent for place, extent in enumerate(value.shape)))
    return made if left else Wire(b, made.step, ())


@operation("mean.dim mean sum.dim_IntList sum amax amin max min", "nn.Mean, nn.Sum, nn.Max, nn.Min")
def reduce(b: Builder, self: Wire, dim: Any = None, keepdim: bool = False) -> Any:
    """Return means, sums, maxima or minima."""
    return reduced(b, f"nn.{b.kind.removeprefix('a').capitalize()}", self, dim, keepdim)


@operation("max.dim min.dim", "nn.Max, nn.Min")
def extremum_and_place(b: Builder, self: Wire, dim: int, keepdim: bool) -> Any:
    """Return maxima or minima; the positions must be unused."""
    return [reduce(b, self, dim, keepdim), Missing(POSITIONS)]


@operation(
    "var.correction var.dim std.correction std.dim var_mean.correction",
    "nn.Mean, nn.CSubTable, nn.Square, nn.Sum, nn.MulConstant, nn.Sqrt",
)
def variance(b: Builder, self: Wire, dim: Any, keepdim: bool, unbiased: Any = None, correction: Any = None) -> Any:
    """Return variances or standard deviations."""
    places = _places(dim, len(self.shape))
    correction = (unbiased is not False) if correction is None else correction
    if any(isinstance(self.shape[place], str) for place in places):
        raise CannotError("the variance over the batch depends on its size")
    count = prod(self.shape[place] for place in places)
    middle = reduced(b, "nn.Mean", self, places, True)
    made = reduced(b, "nn.Sum", (self - middle) ** 2, places, keepdim) * (1 / (count - correction))
    if b.kind == "var_mean":
        return [made, middle if keepdim else b.reshape(middle, made.shape)]
    return made >> make("nn.Sqrt") if b.kind == "std" else made


@operation("linalg_vector_norm", "nn.Abs, nn.Square or nn.Power, nn.Sum, nn.Sqrt or nn.Power")
def norm(b: Builder, self: Wire, ord: float, dim: Any, keepdim: bool) -> Any:
    """Return p-norms."""
    if ord == 2:
        return reduced(b, "nn.Sum", self**2, dim, keepdim) ** 0.5
    size = self >> make("nn.Abs")
    if ord in (1, inf):
        return reduced(b, "nn.Sum" if ord == 1 else "nn.Max", size, dim, keepdim)
    if ord <= 0:
        raise CannotError(f"the norm of order {ord}")
    return reduced(b, "nn.Sum", size**ord, dim, keepdim) ** (1 / ord)


@operation("logsumexp", "nn.Max, nn.CSubTable, nn.Exp, nn.Sum, nn.Log, nn.CAddTable")
def logsumexp(b: Builder, self: Wire, dim: Any) -> Any:
    """Return the logarithm of sums of exponentials."""
    top = reduced(b, "nn.Max", self, dim, True)
    return b.reshape(top + (reduced(b, "nn.Sum", self - top >> make("nn.Exp"), dim, True) >> make("nn.Log")), b.shape)


@operation("cumsum", "nn.MM with nn.Constant, a triangle of ones")
def cumsum(b: Builder, self: Wire, dim: Place) -> Any:
    """Return cumulative sums."""
    rank, extent = len(self.shape), self.shape[dim]
    if isinstance(extent, str):
        raise CannotError("sums along the batch")
    order = [*(axis for axis in range(rank) if axis != dim), dim]
    made = along_last(b, b.permute(self, order), np.triu(np.ones((extent, extent), "f4")))
    return b.permute(made, (order.index(axis) for axis in range(rank)))


def along_last(b: Builder, value: Wire, matrix: Any) -> Any:
    """Multiply the last dimension by a constant matrix."""
    flat = b.reshape(value, (flattened(value.shape[:-1]), value.shape[-1]))
    made = b.emit(make("nn.MM"), flat, b.constant(matrix), shape=(flat.shape[0], matrix.shape[1]))
    return b.reshape(made, (*value.shape[:-1], matrix.shape[1]))


def flattened(lead: Any) -> Any:
    """Return the extent of merged dimensions."""
    return prod(lead) if all(isinstance(extent, int) for extent in lead) else "*".join(map(str, lead))


@operation("prod.dim_int", "nn.Select, nn.CMulTable")
def product_along(b: Builder, self: Wire, dim: Place) -> Any:
    """Return products."""
    extent = self.shape[dim]
    if isinstance(extent, str) or extent > 256:
        raise CannotError(f"multiplies {extent} elements")
    shape = with_extents(self.shape, dim, 1)
    parts = [b.emit(make("nn.Narrow", dim + 1, index + 1, 1), self, shape=shape) for index in range(extent)]
    return b.reshape(b.emit(make("nn.CMulTable"), *parts) if extent > 1 else parts[0], b.shape)


def repeated(layer: LuaLayer, dim: int, extent: int) -> LuaLayer:
    """Return layers that repeat a mean over a dimension, 1-based, along it."""
    return layer >> make("nn.Replicate", extent, dim)


def normalized(dim: int, extent: int, eps: float, centered: bool = True) -> LuaLayer:
    """Return layers that subtract the mean over a dimension, 1-based, and divide by the root of the mean square."""
    middle = same() - repeated(make("nn.Mean", dim), dim, extent)
    root = same() / repeated((make("nn.Square") >> make("nn.Mean", dim)) + eps >> make("nn.Sqrt"), dim, extent)
    return middle >> root if centered else root


def _affine(b: Builder, value: Wire, weight: Any, bias: Any, size: tuple[int, ...]) -> Any:
    """Multiply by a weight and add a bias of a shape that broadcasts."""
    value = value if weight is None else value * b.reshape(weight, size)
    return value if bias is None else value + b.reshape(bias, size)


@operation(
    "batch_norm",
    "nn.BatchNormalization, nn.SpatialBatchNormalization, nn.VolumetricBatchNormalization",
    "Means and variances are updated in training as in PyTorch.",
)
def batch_norm(
    b: Builder,
    input: Wire,
    weight: Learned | None,
    bias: Learned | None,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Normalize over the batch, with running statistics in evaluation."""
    if training or running_mean is None:
        raise CannotError("without running statistics a batch normalization has no meaning in evaluation")
    if b.path in b.program.cumulative:
        momentum = 0.1
        b.remark("momentum=None, a cumulative average, is momentum 0.1 in Lua", warning=True)
    refs: list[Any] = [getattr(value, "ref", None) for value in (running_mean, running_var)]
    if None in refs:
        raise CannotError("the statistics are computed")
    if (weight is None) != (bias is None):
        raise CannotError("one of weight and bias is missing")
    fields = {"weight": weight.ref, "bias": bias.ref} if weight and bias else {}
    value, shape = input, input.shape
    if len(shape) == 3:
        value = b.reshape(value, (*shape[:2], 1, shape[2]))
    kind = {2: "", 5: "Volumetric"}.get(len(shape), "Spatial")
    args = (refs[0].size[0], eps, momentum, *(() if fields else (False,)))
    args = args[:1] if args[1:] == (1e-5, 0.1) else args
    layer = make(f"nn.{kind}BatchNormalization", *args, **fields, running_mean=refs[0], running_var=refs[1])
    return b.reshape(b.emit(layer, value), shape)


def _over_last(b: Builder, input: Wire, over: Any, eps: float, weight: Any, bias: Any, centered: bool = True) -> Any:
    """Normalize over the merged last dimensions; then scale and shift."""
    lead, count = input.shape[: len(input.shape) - len(over)], prod(over)
    value = b.emit(normalized(len(lead) + 1, count, eps, centered), b.reshape(input, (*lead, count)))
    return b.reshape(_affine(b, value, weight, bias, (*(1,) * len(lead), count)), input.shape)


@operation("layer_norm", "nn.Mean, nn.CSubTable, nn.Square, nn.Sqrt, nn.CDivTable, nn.CMul, nn.CAdd")
def layer_norm(b: Builder, input: Wire, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Normalize over the last dimensions of each example."""
    return _over_last(b, input, normalized_shape, eps, weight, bias)


@operation("rms_norm", "nn.Square, nn.Mean, nn.Sqrt, nn.CDivTable, nn.CMul")
def rms_norm(b: Builder, input: Wire, normalized_shape: Any, weight: Any, eps: Any) -> Any:
    """Divide by the root of the mean square over the last dimensions."""
    return _over_last(b, input, normalized_shape, 2.0**-23 if eps is None else eps, weight, None, False)


@operation("group_norm", "nn.View, nn.Mean, nn.CSubTable, nn.Square, nn.Sqrt, nn.CDivTable, nn.CMul, nn.CAdd")
def group_norm(b: Builder, input: Wire, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """Normalize over groups of channels of each example."""
    shape = input.shape
    if any(isinstance(extent, str) for extent in shape[1:]):
        raise CannotError("an extent of the image depends on the inputs")
    count = prod(shape[1:]) // num_groups
    value = b.emit(normalized(3, count, eps), b.reshape(input, (shape[0], num_groups, count)))
    return _affine(b, b.reshape(value, shape), weight, bias, (1, shape[1], *(1,) * (len(shape) - 2)))


@operation("instance_norm", "as group_norm with a group for each channel")
def instance_norm(
    b: Builder,
    input: Wire,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Normalize each channel of each example."""
    if use_input_stats:
        return group_norm(b, input, input.shape[1], weight, bias, eps)
    b.remark("an instance normalization with running statistics uses those of the batch in training", warning=True)
    return batch_norm(b, input, weight, bias, running_mean, running_var, False, momentum, eps)
