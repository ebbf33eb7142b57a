"""Normalization: batch normalization is nn's own; the others are composed of means and divisions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ..build import Builder, CannotError, Const, LearnedTensor, Wire
from ..layers import LuaLayer, WeightRef, branches, make, sequential
from ..table import operation
from ..trace import CallRef


def centered(dim: int, extent: int) -> LuaLayer:
    """Return layers that subtract the mean over a dimension, 1-based."""
    mean = sequential(make("nn.Mean", dim), make("nn.Replicate", extent, dim))
    return branches(make("nn.CSubTable"), make("nn.Identity"), mean)


def scaled(dim: int, extent: int, eps: float) -> LuaLayer:
    """Return layers that divide by the root of the mean square over a dimension, 1-based."""
    root = sequential(
        make("nn.Square"),
        make("nn.Mean", dim),
        make("nn.AddConstant", eps),
        make("nn.Sqrt"),
        make("nn.Replicate", extent, dim),
    )
    return branches(make("nn.CDivTable"), make("nn.Identity"), root)


def affine(b: Builder, value: Wire, weight: Any, bias: Any, size: tuple[int, ...]) -> Any:
    """Multiply by a weight and add a bias, given in a shape that broadcasts."""
    for name, field, param in (("nn.CMul", "weight", weight), ("nn.CAdd", "bias", bias)):
        if param is None:
            continue
        if not isinstance(param, LearnedTensor):
            raise CannotError("the scale is computed, or is not a parameter")
        value = b.emit(make(name, *size, **{field: b.resized(param.ref, size)}), value)
    return value


def _buffer(b: Builder, value: Any, place: int, name: str) -> WeightRef:
    """Return a buffer of the state dict as a field."""
    arg = b.call.args[place] if len(b.call.args) > place else b.call.kwargs.get(name)
    key = b.program.buffers.get(arg.name) if isinstance(arg, CallRef) else None
    if not isinstance(value, Const) or key is None or key not in b.program.state:
        raise CannotError(f"{name} is not a buffer of the state dict")
    return WeightRef(key, 0, tuple(value.value.shape))


@operation(
    "batch_norm.default _native_batch_norm_legit_no_training.default",
    "nn.BatchNormalization, nn.SpatialBatchNormalization, nn.VolumetricBatchNormalization",
    "Means and variances are updated in training as in PyTorch.",
)
def batch_norm(
    b: Builder,
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    """Normalize over the batch, with running statistics in evaluation."""
    if training or running_mean is None:
        raise CannotError("without running statistics a batch normalization has no meaning in evaluation")
    if not all(param is None or isinstance(param, LearnedTensor) for param in (weight, bias)):
        raise CannotError("the scale is computed, or is not a parameter")
    value, shape = b.wire(input), input.shape
    count = running_mean.value.shape[0]
    fields = {
        "running_mean": _buffer(b, running_mean, 3, "running_mean"),
        "running_var": _buffer(b, running_var, 4, "running_var"),
    }
    if (weight is None) != (bias is None):
        raise CannotError("one of weight and bias is missing")
    if weight is not None:
        fields = {"weight": weight.ref, "bias": bias.ref, **fields}
    rank = len(shape)
    if rank == 3:
        value = b.reshape(value, (*shape[:2], 1, shape[2]))
    name = {2: "nn.BatchNormalization", 5: "nn.VolumetricBatchNormalization"}.get(rank, "nn.SpatialBatchNormalization")
    args: tuple[Any, ...] = (count, eps, momentum) if weight is not None else (count, eps, momentum, False)
    if args[1:] == (1e-5, 0.1):
        args = (count,)
    return b.reshape(b.emit(make(name, *args, **fields), value), shape)


def _over_last(b: Builder, input: Any, over: Any, layer: Callable[[int, int], LuaLayer], weight: Any, bias: Any) -> Any:
    """Apply a layer to the merged last dimensions, by their number from 1 and their extent; then scale and shift."""
    value, shape, count = b.wire(input), input.shape, prod(over)
    lead = shape[: len(shape) - len(over)]
    value = b.emit(layer(len(lead) + 1, count), b.reshape(value, (*lead, count)))
    value = affine(b, value, weight, bias, (*(1,) * len(lead), count))
    return b.reshape(value, shape)


@operation("layer_norm.default", "nn.Mean, nn.CSubTable, nn.Square, nn.Sqrt, nn.CDivTable, nn.CMul, nn.CAdd")
def layer_norm(
    b: Builder,
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    """Normalize over the last dimensions of each example."""
    return _over_last(
        b, input, normalized_shape, lambda dim, n: sequential(centered(dim, n), scaled(dim, n, eps)), weight, bias
    )


@operation("rms_norm.default", "nn.Square, nn.Mean, nn.Sqrt, nn.CDivTable, nn.CMul")
def rms_norm(b: Builder, input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    """Divide by the root of the mean square over the last dimensions."""
    least = 1.1920928955078125e-07 if eps is None else eps
    return _over_last(b, input, normalized_shape, lambda dim, n: scaled(dim, n, least), weight, None)


@operation("group_norm.default", "nn.View, nn.Mean, nn.CSubTable, nn.Square, nn.Sqrt, nn.CDivTable, nn.CMul, nn.CAdd")
def group_norm(
    b: Builder,
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    """Normalize over groups of channels of each example."""
    value, shape = b.wire(input), input.shape
    if any(isinstance(extent, str) for extent in shape[1:]):
        raise CannotError("an extent of the image depends on the inputs")
    count = prod(shape[1:]) // num_groups
    value = b.reshape(value, (shape[0], num_groups, count))
    value = b.emit(sequential(centered(3, count), scaled(3, count, eps)), value)
    value = b.reshape(value, shape)
    return affine(b, value, weight, bias, (1, shape[1], *(1,) * (len(shape) - 2)))


@operation("instance_norm.default", "as group_norm with a group for each channel")
def instance_norm(
    b: Builder,
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """Normalize each channel of each example."""
    if not use_input_stats:
        return batch_norm(b, input, weight, bias, running_mean, running_var, False, momentum, eps)
    return group_norm(b, input, input.shape[1], weight, bias, eps)
