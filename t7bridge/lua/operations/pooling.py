"""Pooling."""

from __future__ import annotations

from math import prod
from typing import Any

from ..build import Absent, Builder, CannotError, Wire
from ..layers import make
from ..table import operation
from .convolution import _each, _turned

INDICES = "the positions of maxima are not available in nn"


def _flat(b: Builder, value: Wire) -> Any:
    """Return (batch, channels, length) as an image of height 1."""
    return b.reshape(value, (*value.shape[:-1], 1, value.shape[-1]))


@operation(
    "max_pool1d.default max_pool2d.default max_pool3d.default max_pool1d_with_indices.default "
    "max_pool2d_with_indices.default max_pool3d_with_indices.default",
    "nn.SpatialMaxPooling, nn.SpatialDilatedMaxPooling, nn.VolumetricMaxPooling, nn.VolumetricDilatedMaxPooling",
)
def max_pool(
    b: Builder,
    self: Any,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """Max pooling."""
    several = "_with_indices" in b.call.op
    shape = b.shape[0] if several else b.shape
    rank = int(b.call.op.split("pool")[1][0])
    kernel = _each(kernel_size, rank)
    stride = _each(stride, rank) if not isinstance(stride, (list, tuple)) or stride else kernel
    padding, dilation = _each(padding, rank), _each(dilation, rank)
    wire, inner = b.wire(self), shape
    if rank == 1:
        wire, inner = _flat(b, wire), (*shape[:-1], 1, shape[-1])
        kernel, stride, padding, dilation = (1, *kernel), (1, *stride), (0, *padding), (1, *dilation)
    dilated = any(step != 1 for step in dilation)
    name = f"nn.{'Spatial' if rank < 3 else 'Volumetric'}{'Dilated' if dilated else ''}MaxPooling"
    args = tuple(number for part in (kernel, stride, padding) for number in _turned(part))
    args += _turned(dilation) if dilated else ()
    if not dilated and not any(padding):
        args = args[: 2 * len(kernel)]
    made = b.emit(make(name, *args, calls=(("ceil", ()),) if ceil_mode else ()), wire, shape=inner)
    made = b.reshape(made, shape)
    return [made, Absent(INDICES)] if several else made


@operation(
    "avg_pool1d.default avg_pool2d.default avg_pool3d.default", "nn.SpatialAveragePooling, nn.VolumetricAveragePooling"
)
def avg_pool(
    b: Builder,
    self: Any,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Any:
    """Average pooling."""
    rank = int(b.call.op.split("pool")[1][0])
    kernel = _each(kernel_size, rank)
    stride = _each(stride, rank) if not isinstance(stride, (list, tuple)) or stride else kernel
    padding = _each(padding, rank)
    wire, shape = b.wire(self), b.shape
    if divisor_override is not None:
        if ceil_mode:
            raise CannotError("means have a divisor of their own, and windows reach beyond the padding")
        total = prod(kernel)
        whole = avg_pool(b, wire, kernel, stride, padding)
        return b.emit(make("nn.MulConstant", total / divisor_override), whole)
    if rank == 3:
        if any(padding) or ceil_mode:
            raise CannotError("nn.VolumetricAveragePooling has neither padding nor ceil mode")
        args = tuple(number for part in (kernel, stride) for number in _turned(part))
        return b.emit(make("nn.VolumetricAveragePooling", *args), wire, shape=shape)
    inner = shape
    if rank == 1:
        wire, inner = _flat(b, wire), (*shape[:-1], 1, shape[-1])
        kernel, stride, padding = (1, *kernel), (1, *stride), (0, *padding)
    args = tuple(number for part in (kernel, stride, padding) for number in _turned(part))
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = (("ceil", ()),) if ceil_mode else ()
    if not count_include_pad and (any(padding) or ceil_mode):
        calls += (("setCountExcludePad", ()),)
    args = args if any(padding) else args[:4]
    return b.reshape(b.emit(make("nn.SpatialAveragePooling", *args, calls=calls), wire, shape=inner), shape)


@operation(
    "adaptive_avg_pool1d.default adaptive_avg_pool2d.default adaptive_avg_pool3d.default _adaptive_avg_pool2d.default",
    "nn.SpatialAdaptiveAveragePooling, nn.VolumetricAveragePooling",
)
def adaptive_avg_pool(b: Builder, self: Any, output_size: Any) -> Any:
    """Average pooling to a given size."""
    rank = int(b.call.op.split("pool")[1][0])
    wire, shape = b.wire(self), b.shape
    if rank == 3:
        sizes = wire.shape[2:]
        wanted = shape[2:]
        if any(isinstance(n, str) or n % m for n, m in zip(sizes, wanted)):
            raise CannotError("nn has adaptive pooling in three dimensions only where sizes divide")
        kernel = _turned(tuple(n // m for n, m in zip(sizes, wanted)))
        return b.emit(make("nn.VolumetricAveragePooling", *kernel, *kernel), wire, shape=shape)
    if rank == 1:
        made = b.emit(
            make("nn.SpatialAdaptiveAveragePooling", shape[-1], 1), _flat(b, wire), shape=(*shape[:-1], 1, shape[-1])
        )
        return b.reshape(made, shape)
    return b.emit(make("nn.SpatialAdaptiveAveragePooling", shape[-1], shape[-2]), wire, shape=shape)


@operation("adaptive_max_pool1d.default adaptive_max_pool2d.default", "nn.SpatialAdaptiveMaxPooling")
def adaptive_max_pool(b: Builder, self: Any, output_size: Any) -> Any:
    """Max pooling to a given size."""
    wire, shape = b.wire(self), b.shape[0]
    if "pool1d" in b.call.op:
        flat = (*shape[:-1], 1, shape[-1])
        made = b.emit(make("nn.SpatialAdaptiveMaxPooling", shape[-1], 1), _flat(b, wire), shape=flat)
    else:
        made = b.emit(make("nn.SpatialAdaptiveMaxPooling", shape[-1], shape[-2]), wire, shape=shape)
    return [b.reshape(made, shape), Absent(INDICES)]
