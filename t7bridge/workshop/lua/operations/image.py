"""Images, and signals of one to three dimensions: convolution, pooling, interpolation."""

from __future__ import annotations

from math import prod
from typing import Any

from ....data import np
from ..build import OPERATIONS, Builder, Const, Stored, Wire, check_learned, is_parameter, operation, replace_axis
from ..layers import LuaLayer, WeightRef, make
from ..sizes import CannotError, decide_equal, make_static
from .elementwise import along
from .linear import with_weight
from .shape import as_image, constant_pad, on_image

INDICES = "the positions of maxima are not available in nn; --allow layers writes a layer, but for volumes"


def _numbers(rank: int, value: Any, flat: int) -> tuple[int, ...]:
    """Return one number for each dimension.

    Args:
        rank: 1 for signals, which are images of height 1.
        value: one number for all, or one for each.
        flat: the number for the height of a signal.
    """
    values = (value,) if isinstance(value, int) else tuple(value)
    if len(values) == 1:
        values = values * rank
    return (flat, *values) if rank == 1 else values


def _arguments(*groups: Any) -> tuple[int, ...]:
    """Return groups of extents in Lua's order: width before height, time before both."""
    arguments: list[int] = []
    for *time, height, width in groups:
        arguments += [*time, width, height]
    return tuple(arguments)


def _part(param: Stored | None, group: int, groups: int, size: tuple[int, ...]) -> WeightRef | None:
    """Return the part of a group in its shape: a run of a `groups`-th of the elements."""
    if param is None:
        return None
    ref = param.ref
    return WeightRef(ref.key, ref.start + group * (prod(ref.size) // groups), size, ref.transposed)


def _grouped(name: str, args: Any, weight: Stored, bias: Any, size: Any, widths: tuple[int, int, int]) -> LuaLayer:
    """Return a layer with weights, or one for each group of channels.

    Args:
        name: of the class.
        args: of its constructor, after the numbers of channels.
        weight: the kernels of all groups.
        bias: of all groups, or `None`.
        size: of the kernels of a group.
        widths: channels that enter and leave a group, and the number of groups.
    """
    n_in, n_out, groups = widths
    layers = []
    for group in range(groups):
        weight_ref = _part(weight, group, groups, size)
        bias_ref = _part(bias, group, groups, (n_out,))
        calls = () if bias is not None else (("noBias", ()),)
        layers.append(make(name, n_in, n_out, *args, calls=calls, weight=weight_ref, bias=bias_ref))
    if groups == 1:
        return layers[0]
    # Each takes its own range of channels, Lua's dimension 2.
    parts = [make("nn.Narrow", 2, 1 + group * n_in, n_in) >> layer for group, layer in enumerate(layers)]
    return LuaLayer("nn.Concat", (2,), children=parts)


@operation(
    "conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding",
    "nn.SpatialConvolution, nn.SpatialDilatedConvolution, nn.SpatialDepthWiseConvolution, nn.VolumetricConvolution, "
    "nn.VolumetricDilatedConvolution; groups as nn.Concat of nn.Narrow",
    scaled=True,
)
@with_weight(False, 1)
def convolution(
    b: Builder, input: Wire, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    """Convolve."""
    n_out, n_in, *kernel = weight.shape
    rank = len(kernel)
    if len(input.shape) != rank + 2:
        raise CannotError("the input is not a batch")
    kernel = _numbers(rank, kernel, 1)
    stride = _numbers(rank, stride, 1)
    dilation = _numbers(rank, dilation, 1)
    if padding == "same":
        padding, input = _same(b, input, [step * (size - 1) for size, step in zip(kernel, dilation)])
    elif padding == "valid":
        padding = 0
    # `same` has one for the height of a signal already, before which another is put.
    padding = _numbers(rank, padding, 0)[-len(kernel) :]
    dilated = set(dilation) != {1}
    if not is_parameter(weight):
        _check_computed(b, rank)
        layer = make("pt.Convolution", *_arguments(stride, padding, dilation))
        return on_image(b, layer, input, b.shape, b.reshape(b.wire(weight, input), (n_out, n_in, *kernel)))
    is_square = rank < 3 and not dilated and all(len(set(numbers)) == 1 for numbers in (kernel, stride, padding))
    is_depthwise = groups > 1 and n_in == 1 and groups == n_out
    if is_depthwise and is_square:
        image = _depthwise(b, as_image(b, input), weight, bias, (kernel[0], stride[0], padding[0]))
        return b.reshape(image, b.shape)
    space = "Spatial" if rank < 3 else "Volumetric"
    args = _arguments(kernel, stride, padding)
    name = f"nn.{space}Convolution"
    if dilated:
        args += _arguments(dilation)
        name = f"nn.{space}DilatedConvolution"
    layer = _grouped(name, args, weight, bias, (n_out // groups, n_in, *kernel), (n_in, n_out // groups, groups))
    return on_image(b, layer, input, b.shape)


def _check_computed(b: Builder, rank: int) -> None:
    """Refuse a weight that is no parameter where no layer takes it.

    Raises:
        CannotError: layers are not allowed, or have no volumes.
    """
    if "layers" not in b.allow:
        raise CannotError("the weight is computed, or is not a parameter; --allow layers takes it as an input")
    if rank > 2:
        raise CannotError("the weight of a convolution of volumes is computed, or is not a parameter")


def _same(b: Builder, input: Wire, total: list[int]) -> tuple[list[int], Wire]:
    """Return the padding of both sides, and the input, padded by one more after it where that is uneven.

    Args:
        b: the builder.
        input: the input.
        total: the padding of each dimension, before and after it.
    """
    uneven: list[int] = []
    for amount in reversed(total):  # the last dimension first, as PyTorch pads
        uneven += [0, amount % 2]
    if any(uneven):
        input = constant_pad(b, input, uneven, 0.0)
    return [amount // 2 for amount in total], input


def _depthwise(b: Builder, input: Wire, weight: Stored, bias: Any, numbers: Any) -> Any:
    """Apply nn.SpatialDepthWiseConvolution, which swaps width and height (nn 8726825): on squares.

    Images are padded to a square with zeros, and the output is cropped.
    """
    batch, channels, height, width = input.shape
    side = height if decide_equal(height, width) else max(make_static(height, width))
    kernel, stride, pad = numbers
    input = constant_pad(b, input, [0, side - width, 0, side - height], 0.0)
    layer = make(
        "nn.SpatialDepthWiseConvolution",
        channels,
        1,
        *(kernel, kernel, stride, stride, pad, pad),
        calls=() if bias is not None else (("noBias", ()),),
        weight=weight.ref.resized((1, channels * kernel * kernel)),
        bias=bias.ref.resized((1, channels)) if bias is not None else None,
    )
    new_side = (side + 2 * pad - kernel) // stride + 1
    image = b.emit(make("nn.Contiguous") >> layer, input, shape=(batch, channels, new_side, new_side))
    height, width = (1, *b.shape[2:])[-2:]  # a signal has no height
    return b.narrow(b.narrow(image, 2, 0, height), 3, 0, width)


@operation(
    "conv_transpose1d conv_transpose2d.input conv_transpose3d.input",
    "nn.SpatialFullConvolution, nn.VolumetricFullConvolution; groups as nn.Concat of nn.Narrow",
    scaled=True,
)
@with_weight(True, 1)
def transposed_convolution(
    b: Builder,
    input: Wire,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Any:
    """Convolve transposed."""
    n_in, n_out, *kernel = weight.shape
    rank = len(kernel)
    dilated = any(step != 1 for step in _numbers(rank, dilation, 1))
    if "layers" in b.allow and rank < 3 and (dilated or not is_parameter(weight)):
        return _by_zeros(b, input, weight, bias, stride, padding, output_padding, groups, dilation)
    check_learned(weight, "weight")
    kernel = _numbers(rank, kernel, 1)
    stride = _numbers(rank, stride, 1)
    padding = _numbers(rank, padding, 0)
    extra = _numbers(rank, output_padding, 0)
    if dilated:
        raise CannotError("nn has no transposed convolution with dilation")
    if any(more >= step for more, step in zip(extra, stride)):
        raise CannotError("the output padding is not less than the stride")
    name = "nn.SpatialFullConvolution" if rank < 3 else "nn.VolumetricFullConvolution"
    n_in //= groups
    args = _arguments(kernel, stride, padding, extra)
    layer = _grouped(name, args, weight, bias, (n_in, n_out, *kernel), (n_in, n_out, groups))
    return on_image(b, layer, input, b.shape)


def _by_zeros(
    b: Builder,
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Any:
    """Convolve transposed: convolve by reversed kernels, after zeros are put between the elements."""
    n_in, n_out, *kernel = weight.shape
    rank = len(kernel)
    n_in //= groups
    # Kernels are (in, out, …) in a transposed convolution, and (out, in, …) in a convolution, in each group.
    kernels = b.reshape(b.wire(weight, input), (groups, n_in, n_out, *kernel))
    kernels = b.permute(kernels, (0, 2, 1, *range(3, 3 + rank)))
    kernels = b.reshape(kernels, (groups * n_out, n_in, *kernel))
    sides: list[int] = []
    options = (_numbers(rank, value, 0)[-rank:] for value in (stride, padding, output_padding, dilation))
    for axis, (size, step, pad, extra, gap) in enumerate(zip(kernel, *options), 2):
        kernels = b.gather_constant(kernels, np.arange(size)[::-1], axis)
        if step > 1:
            input = _spread(b, input, axis, step)
        reach = gap * (size - 1) - pad
        sides = [reach, reach + extra, *sides]  # the last dimension first, as PyTorch pads
    input = constant_pad(b, input, sides, 0.0)
    return convolution(b, input, kernels, bias, stride=1, padding=0, dilation=dilation, groups=groups)


def _spread(b: Builder, value: Any, axis: int, step: int) -> Any:
    """Put zeros between the elements of a dimension, which are then a step apart."""
    shape = value.shape
    extent = shape[axis]
    rows = b.reshape(value, replace_axis(shape, axis, extent, 1))
    rows = b.emit(make("nn.Padding", axis + 2, step - 1), rows, shape=replace_axis(shape, axis, extent, step))
    flat = b.reshape(rows, replace_axis(shape, axis, extent * step))
    return b.narrow(flat, axis, 0, (extent - 1) * step + 1)  # nothing behind the last


@operation(
    "convolution _convolution",
    "as conv2d and conv_transpose2d",
    "Of script modules and decomposed programs.",
    scaled=True,
)
def any_convolution(b: Builder, transposed: bool, **args: Any) -> Any:
    """Convolve, or convolve transposed."""
    name = "aten.conv_transpose2d.input" if transposed else "aten.conv2d.default"
    return OPERATIONS[name].call(b, args)


@operation("im2col", "nn.SpatialZeroPadding, nn.Index")
def im2col(b: Builder, self: Wire, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Return the elements at each position of a kernel."""
    kernel = _numbers(2, kernel_size, 0)
    dilation = _numbers(2, dilation, 0)
    stride = _numbers(2, stride, 0)
    top, left = _numbers(2, padding, 0)
    value = constant_pad(b, self, [left, left, top, top], 0.0)
    lead = value.shape[:-2]
    height, width = make_static(*value.shape[-2:])

    def places_of_kernel(dimension: int, extent: int) -> Any:
        """Return the places of the kernel's elements in a dimension (rows), at each of its positions (columns)."""
        elements = np.arange(kernel[dimension]) * dilation[dimension]
        last_start = extent - 1 - elements[-1]
        starts = np.arange(last_start // stride[dimension] + 1) * stride[dimension]
        return elements[:, None] + starts

    rows = places_of_kernel(0, height)
    columns = places_of_kernel(1, width)
    # (kernel height, kernel width, positions down, positions across)
    places = rows[:, None, :, None] * width + columns[:, None, :]
    flat = b.reshape(value, (*lead, height * width))
    return b.reshape(b.gather_constant(flat, places, len(lead)), b.shape)


@operation(
    "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
    "avg_pool1d avg_pool2d avg_pool3d",
    "nn.SpatialMaxPooling, nn.SpatialDilatedMaxPooling, nn.VolumetricMaxPooling, nn.VolumetricDilatedMaxPooling, "
    "nn.SpatialAveragePooling, nn.VolumetricAveragePooling",
    missing=INDICES,
)
def pool(
    b: Builder,
    self: Wire,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    dilation: Any = 1,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Any:
    """Max and average pooling."""
    has_indices = b.kind.endswith("indices")
    is_max = b.kind.startswith("max")
    rank = int(b.kind.split("pool")[1][0])  # max_pool2d
    shape = b.shape[0] if has_indices else b.shape
    kernel = _numbers(rank, kernel_size, 1)
    stride = _numbers(rank, stride, 1) if stride else kernel
    padding = _numbers(rank, padding, 0)
    dilation = _numbers(rank, dilation, 1)
    layer = _pooling_layer(rank, is_max, (kernel, stride, padding, dilation), ceil_mode)
    if not is_max:
        is_padded = any(padding)
        _check_means(rank, is_padded, ceil_mode, divisor_override)
        if not count_include_pad and divisor_override is None and (is_padded or ceil_mode):
            layer.calls += (("setCountExcludePad", ()),)
        if divisor_override:
            layer = layer * (prod(kernel) / divisor_override)
    result = on_image(b, layer, self, shape)
    if not has_indices or "layers" not in b.allow or rank == 3:
        return result
    places = make("pt.MaxPlaces", *_arguments(kernel, stride, padding, dilation), ceil_mode)
    return [result, on_image(b, places, self, shape)]


def _pooling_layer(rank: int, is_max: bool, numbers: tuple[Any, Any, Any, Any], ceil_mode: bool) -> LuaLayer:
    """Return a pooling layer, with those arguments that are not the default.

    Args:
        rank: 1 for signals, which are images.
        is_max: whether it returns maxima, and not means.
        numbers: the kernel, stride, padding and dilation.
        ceil_mode: whether windows may reach beyond the end.
    """
    kernel, stride, padding, dilation = numbers
    name = "Max" if is_max else "Average"
    args = _arguments(kernel, stride)
    if any(step != 1 for step in dilation):
        name = "DilatedMax"
        args = _arguments(kernel, stride, padding, dilation)
    elif any(padding):
        args = _arguments(kernel, stride, padding)
    calls = (("ceil", ()),) if ceil_mode else ()
    return make(f"nn.{'Spatial' if rank < 3 else 'Volumetric'}{name}Pooling", *args, calls=calls)


@operation("max_unpool2d", "pt.Scatter", package="layers")
def max_unpool(b: Builder, self: Wire, indices: Any) -> Any:
    """Return images with values at the positions of maxima, and 0 elsewhere."""
    lead = self.shape[:-2]
    make_static(*self.shape[-2:], *b.shape[-2:])
    flat = (*lead, prod(self.shape[-2:]))
    value = b.reshape(self, flat)
    places = b.reshape(indices, flat)
    empty = b.wire(b.constant(np.zeros(1, "f4"), (*lead, prod(b.shape[-2:]))), value)
    return b.reshape(b.emit(make("pt.Scatter", len(lead) + 1, False), empty, places, value), b.shape)


def _check_means(rank: int, padded: bool, ceil_mode: bool, divisor: Any) -> None:
    if divisor is not None and ceil_mode:
        raise CannotError("means have a divisor of their own, and windows reach beyond the padding")
    if rank == 3 and (padded or ceil_mode):
        raise CannotError("nn.VolumetricAveragePooling has neither padding nor ceil mode")


@operation(
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d adaptive_max_pool1d "
    "adaptive_max_pool2d",
    "nn.SpatialAdaptiveAveragePooling, nn.SpatialAdaptiveMaxPooling, nn.VolumetricAveragePooling",
    missing=INDICES,
)
def adaptive_pool(b: Builder, self: Wire) -> Any:
    """Max and average pooling to a given size."""
    is_max = "max" in b.kind
    rank = len(self.shape) - 2
    shape = b.shape[0] if is_max else b.shape
    if rank == 3:
        sizes = make_static(*self.shape[2:])
        if any(size % count for size, count in zip(sizes, shape[2:])):
            raise CannotError("nn has adaptive pooling in three dimensions only where sizes divide")
        kernel = _arguments([size // count for size, count in zip(sizes, shape[2:])])
        return b.emit(make("nn.VolumetricAveragePooling", *kernel, *kernel), self, shape=shape)
    name = f"nn.SpatialAdaptive{'Max' if is_max else 'Average'}Pooling"
    return on_image(b, make(name, *_arguments(_numbers(rank, shape[2:], 1))), self, shape)


@operation(
    "upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec upsample_bilinear2d.vec "
    "upsample_linear1d.vec upsample_bicubic2d.vec _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec "
    "_upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec upsample_trilinear3d.vec",
    "nn.SpatialUpSamplingNearest, nn.SpatialUpSamplingBilinear, or nn.MM with nn.Constant for each dimension",
)
def upsample(b: Builder, input: Wire, scale_factors: Any, align_corners: bool = False) -> Any:
    """Interpolate along the last dimensions."""
    shape = b.shape
    old = input.shape[2:]
    new = shape[2:]
    if b.kind == "upsample_nearest2d" and all(size % extent == 0 for size, extent in zip(new, old)):
        factors = {size // extent for size, extent in zip(new, old)}
        if new == old:
            return input
        if len(factors) == 1:
            return b.emit(make("nn.SpatialUpSamplingNearest", *factors), input, shape=shape)
    old = make_static(*old)
    new = make_static(*new)
    if b.kind == "upsample_bilinear2d" and align_corners and old != new:
        sizes = (("oheight", new[0]), ("owidth", new[1]))
        return b.emit(make("nn.SpatialUpSamplingBilinear", sizes), input, shape=shape)
    value = input
    for axis in reversed(range(len(new))):
        if old[axis] != new[axis] or scale_factors:
            value = _along(b, value, axis, new)
    return value


def _along(b: Builder, value: Wire, axis: int, new: Any) -> Any:
    """Interpolate along one dimension by a matrix, computed by the operation itself from unit vectors."""
    rank = len(new)
    extent = value.shape[2 + axis]

    def along_place(there: Any, elsewhere: Any) -> list[Any]:
        """Return something for each dimension: one thing for that of the interpolation, another for all others."""
        values = [elsewhere] * rank
        values[axis] = there
        return values

    # An image for each element of the dimension, as a channel, that is 1 there and 0 elsewhere.
    # Two of each in the other dimensions: PyTorch 2.13's kernels with antialias are wrong for images one element wide.
    every = slice(None)
    spots = np.arange(extent)
    unit = np.zeros((1, extent, *along_place(extent, 2)))
    diagonal = (0, spots, *along_place(spots, every))
    unit[diagonal] = 1
    args = {**b.call.args, "input": b.constant(unit)}
    if args["scale_factors"]:
        args["scale_factors"] = along_place(args["scale_factors"][axis], 1.0)
    else:
        args["output_size"] = along_place(new[axis], 2)
    images = b.compute(args)
    if not isinstance(images, Const):
        raise CannotError("the interpolation cannot be computed")
    # The line of the dimension in each image is a row of the matrix.
    lines = (0, every, *along_place(every, 0))
    matrix = images.array()[lines]
    if extent == new[axis] and np.array_equal(matrix, np.eye(extent)):
        return value
    return along(b, value, 2 + axis, matrix)


@operation("col2im", "pt.Fold", package="layers")
def col2im(b: Builder, self: Wire, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Add overlapping blocks to an image."""
    if len(self.shape) != 3:
        raise CannotError("the input is not a batch")
    return b.emit(make("pt.Fold", *output_size, *kernel_size, *stride, *padding, *dilation), self, shape=b.shape)


@operation("grid_sampler grid_sampler_2d", "pt.GridSample", package="layers")
def grid_sampler(
    b: Builder, input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    """Return an image at the places of a grid."""
    if len(input.shape) != 4 or interpolation_mode > 1 or padding_mode > 1:
        raise CannotError("samples volumes, or by cubic interpolation or reflection")
    mode = ("bilinear", "nearest")[interpolation_mode]
    padding = ("zeros", "border")[padding_mode]
    image, places = b.wires(input, grid)
    return b.emit(make("pt.GridSample", mode, padding, align_corners), image, places, shape=b.shape)
