"""Convolutions: one to three dimensions, groups, dilation, transposed."""

from __future__ import annotations

from typing import Any

from ..build import Builder, CannotError, LearnedTensor, Scaled, Wire
from ..layers import LuaLayer, WeightRef, make, sequential
from ..table import operation
from .reparametrized import add_bias, apply_scale
from .shape import MOST_PARTS, concatenated, strided


def _each(value: Any, count: int) -> tuple[int, ...]:
    """Return one number for each dimension."""
    if isinstance(value, int):
        return (value,) * count
    return tuple(value) * count if len(value) == 1 else tuple(value)


def _turned(values: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lua's order of extents: width before height, time before both."""
    return values[::-1] if len(values) == 2 else (values[0], values[2], values[1])


def _check(weight: Any, bias: Any) -> None:
    if not isinstance(weight, LearnedTensor) or not (bias is None or isinstance(bias, LearnedTensor)):
        raise CannotError("the weight is computed, or is not a parameter")


def _part(ref: WeightRef, group: int, groups: int, size: tuple[int, ...]) -> WeightRef:
    """Return the part of a group: a run of a `groups`-th of the elements."""
    count = 1
    for extent in ref.size:
        count *= extent
    return WeightRef(ref.key, ref.start + group * (count // groups), size, ref.transposed)


def _layer(name: str, args: tuple[int, ...], weight: WeightRef, bias: WeightRef | None) -> LuaLayer:
    calls = () if bias is not None else (("noBias", ()),)
    layer = make(name, *args, calls=calls, weight=weight)
    if bias is not None:
        layer.weights["bias"] = bias
    return layer


def _grouped(parts: list[LuaLayer], n_in: int) -> LuaLayer:
    """Return layers that each process an equal part of the channels."""
    if len(parts) == 1:
        return parts[0]
    each = n_in // len(parts)
    children = [sequential(make("nn.Narrow", 2, 1 + group * each, each), part) for group, part in enumerate(parts)]
    return LuaLayer("nn.Concat", (2,), children=children)


def _convolve(
    b: Builder, input: Wire, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    if isinstance(weight, Scaled):
        if weight.place not in (None, 0):
            raise CannotError("the scale of the kernel is not one for each output channel")
        made = _convolve(b, input, weight.param, None, stride, padding, dilation, groups)
        return add_bias(b, apply_scale(b, made, weight, 1), bias, 1)
    _check(weight, bias)
    n_out, n_in, *kernel = weight.ref.size
    rank = len(kernel)
    stride, dilation = _each(stride, rank), _each(dilation, rank)
    if isinstance(padding, str):
        padding, input = _named_padding(b, input, padding, kernel, dilation)
    padding = _each(padding, rank)
    if rank == 1:
        flat = b.reshape(input, (*input.shape[:-1], 1, input.shape[-1]))
        wide = LearnedTensor(b.resized(weight.ref, (n_out, n_in, 1, *kernel)), (n_out, n_in, 1, *kernel))
        made = _convolve(b, flat, wide, bias, (1, *stride), (0, *padding), (1, *dilation), groups)
        return b.reshape(made, (*made.shape[:-2], made.shape[-1]))
    if len(input.shape) != rank + 2:
        raise CannotError("the input is not a batch")
    numbers = (*_turned(tuple(kernel)), *_turned(stride), *_turned(padding))
    dilated = any(step != 1 for step in dilation)
    total_in = n_in * groups
    out_shape = (input.shape[0], n_out, *_extents(input.shape[2:], kernel, stride, padding, dilation))
    even = rank == 2 and all(len(set(part)) == 1 for part in (tuple(kernel), stride, padding))
    if even and groups == total_in == n_out and groups > 1 and not dilated:
        return _depthwise(b, input, weight, bias, numbers, out_shape)
    name = f"nn.{'Spatial' if rank == 2 else 'Volumetric'}{'Dilated' if dilated else ''}Convolution"
    args = (*numbers, *_turned(dilation)) if dilated else numbers
    parts = [
        _layer(
            name,
            (n_in, n_out // groups, *args),
            _part(weight.ref, group, groups, (n_out // groups, n_in, *kernel)),
            _part(bias.ref, group, groups, (n_out // groups,)) if bias is not None else None,
        )
        for group in range(groups)
    ]
    return b.emit(_grouped(parts, total_in), input, shape=out_shape)


def _depthwise(b: Builder, input: Wire, weight: LearnedTensor, bias: Any, numbers: tuple[int, ...], shape: Any) -> Any:
    """Apply nn.SpatialDepthWiseConvolution, which swaps width and height (nn 8726825): on squares.

    Images are padded to a square with zeros, and the output is cropped. nn.View ensures that the image
    has the size of the example.
    """
    _, channels, height, width = input.shape
    side = max(height, width)
    kernel, stride, pad = numbers[0], numbers[2], numbers[4]
    square = (input.shape[0], channels, side, side)
    if height != width:
        input = b.emit(make("nn.SpatialZeroPadding", 0, side - width, 0, side - height), input, shape=square)
    b.remark("depthwise convolutions are nn.SpatialDepthWiseConvolution, for images of the example's size only")
    layer = _layer(
        "nn.SpatialDepthWiseConvolution",
        (channels, 1, *numbers),
        b.resized(weight.ref, (1, channels * kernel * kernel)),
        b.resized(bias.ref, (1, channels)) if bias is not None else None,
    )
    guard = make("nn.View", channels, side, side, calls=(("setNumInputDims", (3,)),))
    extent = (side + 2 * pad - kernel) // stride + 1
    made = b.emit(sequential(make("nn.Contiguous"), guard, layer), input, shape=(*shape[:2], extent, extent))
    for place in (2, 3):
        if made.shape[place] != shape[place]:
            cut = (*made.shape[:place], shape[place], *made.shape[place + 1 :])
            made = b.emit(make("nn.Narrow", place + 1, 1, shape[place]), made, shape=cut)
    return made


def _extents(input: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> list[Any]:
    found = []
    for extent, k, s, p, d in zip(input, kernel, stride, padding, dilation):
        if isinstance(extent, str):
            raise CannotError("an extent of the image depends on the inputs")
        found.append((extent + 2 * p - d * (k - 1) - 1) // s + 1)
    return found


def _named_padding(b: Builder, input: Wire, padding: str, kernel: Any, dilation: Any) -> tuple[Any, Wire]:
    if padding == "valid":
        return (0,), input
    total = [d * (k - 1) for k, d in zip(kernel, dilation)]
    if all(extent % 2 == 0 for extent in total):
        return tuple(extent // 2 for extent in total), input
    for place, extent in enumerate(total):
        axis = place + 2
        if extent % 2:
            shape = (*input.shape[:axis], input.shape[axis] + 1, *input.shape[axis + 1 :])
            input = b.emit(make("nn.Padding", axis + 1, 1), input, shape=shape)
    return tuple(extent // 2 for extent in total), input


@operation(
    "conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding",
    "nn.SpatialConvolution, nn.SpatialDilatedConvolution, nn.SpatialDepthWiseConvolution, nn.VolumetricConvolution, "
    "nn.VolumetricDilatedConvolution; groups as nn.Concat of nn.Narrow",
)
def convolution(
    b: Builder,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Convolve."""
    return _convolve(b, b.wire(input), weight, bias, stride, padding, dilation, groups)


@operation(
    "conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input",
    "nn.SpatialFullConvolution, nn.VolumetricFullConvolution; groups as nn.Concat of nn.Narrow",
)
def transposed_convolution(
    b: Builder,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Convolve transposed."""
    input = b.wire(input)
    if isinstance(weight, Scaled):
        if weight.place not in (None, 0) and (weight.place, groups) != (1, 1):
            raise CannotError("the scale of the kernel is not one for each channel")
        rest = (stride, padding, output_padding, groups, dilation)
        if weight.place != 1 and not isinstance(weight.scale, float):
            return transposed_convolution(b, apply_scale(b, input, weight, 1), weight.param, bias, *rest)
        made = transposed_convolution(b, input, weight.param, None, *rest)
        return add_bias(b, apply_scale(b, made, weight, 1), bias, 1)
    _check(weight, bias)
    n_in, n_out, *kernel = weight.ref.size
    rank = len(kernel)
    stride, padding, extra = _each(stride, rank), _each(padding, rank), _each(output_padding, rank)
    if any(step != 1 for step in _each(dilation, rank)):
        raise CannotError("nn has no transposed convolution with dilation")
    if rank == 1:
        flat = b.reshape(input, (*input.shape[:-1], 1, input.shape[-1]))
        kernel, stride, padding, extra = [1, *kernel], (1, *stride), (0, *padding), (0, *extra)
    else:
        flat = input
    if any(more >= step for more, step in zip(extra, stride)):
        raise CannotError("the output padding is not less than the stride")
    numbers = tuple(number for part in (tuple(kernel), stride, padding, extra) for number in _turned(part))
    sizes = [(n - 1) * s - 2 * p + k + e for n, s, p, k, e in zip(flat.shape[2:], stride, padding, kernel, extra)]
    name = "nn.SpatialFullConvolution" if rank < 3 else "nn.VolumetricFullConvolution"
    parts = [
        _layer(
            name,
            (n_in // groups, n_out, *numbers),
            _part(weight.ref, group, groups, (n_in // groups, n_out, *kernel)),
            _part(bias.ref, group, groups, (n_out,)) if bias is not None else None,
        )
        for group in range(groups)
    ]
    shape = (input.shape[0], n_out * groups, *sizes)
    made = b.emit(_grouped(parts, n_in), flat, shape=shape)
    return b.reshape(made, (*shape[:2], shape[-1])) if rank == 1 else made


@operation("im2col.default", "nn.SpatialZeroPadding, nn.Narrow, nn.JoinTable")
def im2col(b: Builder, self: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Return the elements at each position of a kernel."""
    kernel, dilation, stride = (_each(each, 2) for each in (kernel_size, dilation, stride))
    top, left = _each(padding, 2)
    value = b.wire(self)
    if kernel[0] * kernel[1] > MOST_PARTS or any(isinstance(extent, str) for extent in value.shape[1:]):
        raise CannotError(f"takes apart images by a kernel of {kernel[0]}x{kernel[1]}")
    batch, channels, high, wide = value.shape
    if top or left:
        high, wide = high + 2 * top, wide + 2 * left
        layer = make("nn.SpatialZeroPadding", left, left, top, top)
        value = b.emit(layer, value, shape=(batch, channels, high, wide))
    counts = [
        (extent - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1
        for axis, extent in enumerate((high, wide))
    ]
    parts = []
    for row in range(kernel[0]):
        line = strided(b, value, 2, row * dilation[0], counts[0], stride[0])
        for column in range(kernel[1]):
            part = strided(b, line, 3, column * dilation[1], counts[1], stride[1])
            parts.append(b.reshape(part, (batch, channels, 1, counts[0] * counts[1])))
    return b.reshape(concatenated(b, parts, 2), b.shape)
