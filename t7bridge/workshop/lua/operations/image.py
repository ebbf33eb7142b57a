"""Images, and signals of one to three dimensions: convolution, pooling, interpolation. A function builds the Lua layers
of one call of a traced program, by the builder `b`, where `b.shape` is the shape of the call's result in PyTorch. A
value is a `Wire`, which is computed when the model runs, a `Const`, or a tensor of the state dict, `Stored`. Lua's
layers take images and volumes: a signal, of one dimension, becomes an image of height 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ....data import define, np
from ....torchmodules.layers.pooling import exact_windows, windows_in_single
from ..build import OPERATIONS, Builder, Const, Stored, Wire, check_learned, is_parameter, operation, replace_axis
from ..layers import LuaLayer, WeightRef, make
from ..sizes import CannotError, decide_equal, make_static
from .elementwise import multiply_along
from .linear import with_weight
from .shape import apply_to_images, as_image, constant_pad

INDICES = "the positions of maxima are not available in nn; --allow layers writes a layer, but for volumes"


def _per_dimension(rank: int, value: Any, for_height: int | None = None) -> tuple[int, ...]:
    """Return an option such as a stride as one number for each dimension of images or volumes.

    Args:
        rank: the number of dimensions in PyTorch: 1 for signals, which are images of height 1 in Lua.
        value: one number for all, or one for each.
        for_height: the number for the height of a signal; `None` to leave signals without a height.
    """
    values = (value,) if isinstance(value, int) else tuple(value)
    if len(values) == 1:
        values = values * rank
    if rank == 1 and for_height is not None:
        return (for_height, *values)
    return values


@define(frozen=True)
class _Window:
    """How the kernel of a convolution or pooling moves: each option a number for each dimension of images or volumes.

    A signal has a height, of which the kernel sees all: 1.

    Attributes:
        kernel: its extents.
        stride: the distances of two neighboring positions of the kernel.
        padding: the elements that are added at each side.
        dilation: the distances of two neighboring elements that a kernel sees.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any) -> _Window:
        """Return a window of PyTorch's options, each one number for all dimensions, `rank`, or one for each."""
        return cls(
            _per_dimension(rank, kernel, for_height=1),
            _per_dimension(rank, stride, for_height=1),
            _per_dimension(rank, padding, for_height=0),
            _per_dimension(rank, dilation, for_height=1),
        )

    @property
    def is_dilated(self) -> bool:
        """Whether there are gaps between the elements that a kernel sees."""
        return set(self.dilation) != {1}

    def without_height(self, rank: int) -> _Window:
        """Return the window of the `rank` dimensions that the value has in PyTorch, of signals only the one."""
        return _Window(self.kernel[-rank:], self.stride[-rank:], self.padding[-rank:], self.dilation[-rank:])


def _in_lua_order(*groups: Any) -> tuple[int, ...]:
    """Return options of each dimension as arguments in the order of Lua: width before height, time before both."""
    arguments: list[int] = []
    for *time, height, width in groups:
        arguments += [*time, width, height]
    return tuple(arguments)


def _part_of_group(param: Stored | None, group: int, groups: int, size: tuple[int, ...]) -> WeightRef | None:
    """Return the part of a parameter that belongs to a group of channels.

    Args:
        param: of all groups, which follow one another along its first dimension; `None` for a bias that there is not.
        group: the number of the group, 0-based.
        groups: how many there are.
        size: the shape of the part.
    """
    if param is None:
        return None
    ref = param.ref
    elements_of_group = prod(ref.size) // groups
    return WeightRef(ref.key, ref.start + group * elements_of_group, size, ref.transposed)


@define(frozen=True)
class _Groups:
    """The groups of channels of a convolution, which are all of equal size.

    Attributes:
        count: the number of groups.
        n_in: the number of channels that enter each.
        n_out: the number of channels that leave each.
    """

    count: int
    n_in: int
    n_out: int


def _layer_of_groups(
    name: str, args: Any, weight: Stored, bias: Any, size_of_group: tuple[int, ...], groups: _Groups
) -> LuaLayer:
    """Return a layer with weights, or one for each group of channels, the results joined along the channels.

    Args:
        name: of the class.
        args: of its constructor, after the numbers of channels.
        weight: the kernels of all groups.
        bias: of all groups, or `None`.
        size_of_group: the shape of the kernels of a group, in the layer's order.
        groups: the groups.
    """
    calls = () if bias is not None else (("noBias", ()),)
    layers = []
    for group in range(groups.count):
        weight_ref = _part_of_group(weight, group, groups.count, size_of_group)
        bias_ref = _part_of_group(bias, group, groups.count, (groups.n_out,))
        layers.append(make(name, groups.n_in, groups.n_out, *args, calls=calls, weight=weight_ref, bias=bias_ref))
    if groups.count == 1:
        return layers[0]
    # Each takes its own range of channels, Lua's dimension 2.
    branches = []
    for group, layer in enumerate(layers):
        own_channels = make("nn.Narrow", 2, 1 + group * groups.n_in, groups.n_in)
        branches.append(own_channels >> layer)
    return LuaLayer("nn.Concat", (2,), children=branches)


def _require_batch(value: Wire, rank: int) -> None:
    """Refuse a single signal, image or volume, of `rank` dimensions behind the channels."""
    if len(value.shape) != rank + 2:
        raise CannotError("the input is not a batch")


@operation(
    "conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding",
    lua="nn.SpatialConvolution, nn.SpatialDilatedConvolution, nn.SpatialDepthWiseConvolution, "
    "nn.VolumetricConvolution, nn.VolumetricDilatedConvolution; groups as nn.Concat of nn.Narrow",
    scaled=True,
)
@with_weight(is_transposed=False, channels=1)
def convolution(
    b: Builder, input: Wire, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    """Convolve.

    A signal is an image of height 1. The weight may be computed, where `--allow layers` permits a layer for that.

    Args:
        b: the builder.
        input: (batch, channels, sizes of a signal, an image or a volume).
        weight: the kernels, (channels out, channels in of a group, sizes of a kernel).
        bias: a parameter, or `None`.
        stride: one number, or one for each dimension.
        padding: likewise; or `"same"` or `"valid"`.
        dilation: likewise.
        groups: the number of groups of channels, each with kernels of its own.
    """
    n_out, n_in, *kernel = weight.shape  # of all groups, and of a group
    rank = len(kernel)
    _require_batch(input, rank)
    if padding == "same":
        padding, input = _pad_same(b, input, kernel, _per_dimension(rank, dilation))
    elif padding == "valid":
        padding = 0
    window = _Window.of(rank, kernel, stride, padding, dilation)
    if not is_parameter(weight):
        return _convolution_by_computed_weight(b, input, weight, window)
    has_one_kernel_for_each_channel = groups > 1 and n_in == 1 and n_out == groups
    if has_one_kernel_for_each_channel and rank < 3 and _is_square(window) and not window.is_dilated:
        image = _depthwise(b, as_image(b, input), weight, bias, window)
        return b.reshape(image, b.shape)
    layer = _convolution_layer(weight, bias, window, groups)
    return apply_to_images(b, layer, input, b.shape)


def _convolution_by_computed_weight(b: Builder, input: Wire, weight: Any, window: _Window) -> Any:
    """Convolve by pt.Convolution, which takes the kernels as a second input, and tells groups by their shape.

    Args:
        b: the builder, whose call has the result's shape.
        input: a batch of signals or images.
        weight: the kernels, not a parameter.
        window: how they move.

    Raises:
        CannotError: layers are not allowed, or the input is volumes.
    """
    if "layers" not in b.allow:
        raise CannotError("the weight is computed, or is not a parameter; --allow layers takes it as an input")
    if len(window.kernel) > 2:
        raise CannotError("the weight of a convolution of volumes is computed, or is not a parameter")
    n_out, n_in = weight.shape[:2]
    kernels = b.reshape(b.wire(weight, like=input), (n_out, n_in, *window.kernel))
    layer = make("pt.Convolution", *_in_lua_order(window.stride, window.padding, window.dilation))
    return apply_to_images(b, layer, input, b.shape, kernels)


def _convolution_layer(weight: Stored, bias: Any, window: _Window, groups: int) -> LuaLayer:
    """Return a layer of images or volumes with the kernels of a parameter, or one for each group of channels.

    Args:
        weight: the kernels, (channels out, channels in of a group, sizes of a kernel), maybe of signals.
        bias: a parameter, or `None`.
        window: how they move.
        groups: the number of groups of channels.
    """
    n_out, n_in = weight.shape[:2]  # of all groups, and of a group
    space = "Spatial" if len(window.kernel) < 3 else "Volumetric"
    name = f"nn.{space}Convolution"
    args = _in_lua_order(window.kernel, window.stride, window.padding)
    if window.is_dilated:
        name = f"nn.{space}DilatedConvolution"
        args += _in_lua_order(window.dilation)
    n_out_of_group = n_out // groups
    size_of_group = (n_out_of_group, n_in, *window.kernel)
    return _layer_of_groups(name, args, weight, bias, size_of_group, _Groups(groups, n_in, n_out_of_group))


def _pad_same(b: Builder, input: Wire, kernel: Any, dilation: Any) -> tuple[list[int], Wire]:
    """Return the padding that a convolution has on both sides for `padding="same"`, and the input.

    Lua's layers pad both sides alike: where the total is odd, the input is padded by one more behind it, as PyTorch
    does.

    Args:
        b: the builder.
        input: a batch.
        kernel: its size in each dimension of the input, which is not a signal's height.
        dilation: likewise.
    """
    totals = [step * (size - 1) for size, step in zip(kernel, dilation)]  # before and behind each dimension
    odd: list[int] = []
    for total in reversed(totals):  # the last dimension first, and before it and behind it, as PyTorch pads
        odd += [0, total % 2]
    if any(odd):
        input = constant_pad(b, input, odd, 0.0)
    return [total // 2 for total in totals], input


def _is_square(window: _Window) -> bool:
    """Return whether the kernel, stride and padding are the same in all dimensions, also that of a signal's height."""
    return all(len(set(numbers)) == 1 for numbers in (window.kernel, window.stride, window.padding))


def _depthwise(b: Builder, input: Wire, weight: Stored, bias: Any, window: _Window) -> Any:
    """Apply nn.SpatialDepthWiseConvolution, which swaps width and height (nn 8726825): it is right on squares.

    Images are padded to a square with zeros, and the output is cropped.

    Args:
        b: the builder, whose call has the result's shape, of images or signals.
        input: a batch of images.
        weight: a kernel for each channel.
        bias: a parameter, or `None`.
        window: a square one, see `_is_square`, which is not dilated.
    """
    batch, channels, height, width = input.shape
    # Images that are square in the example have to be so: their size may stay open.
    side = height if decide_equal(height, width) else max(make_static(height, width))
    squares = constant_pad(b, input, [0, side - width, 0, side - height], 0.0)  # to the right, and below
    kernel, _ = window.kernel
    stride, _ = window.stride
    padding, _ = window.padding
    new_side = (side + 2 * padding - kernel) // stride + 1
    layer = make("nn.Contiguous") >> _depthwise_layer(weight, bias, channels, kernel, stride, padding)
    image = b.emit(layer, squares, shape=(batch, channels, new_side, new_side))
    *heights, new_width = b.shape[2:]
    new_height = heights[0] if heights else 1  # of a signal
    image = b.narrow(image, axis=2, start=0, count=new_height)
    return b.narrow(image, axis=3, start=0, count=new_width)


def _depthwise_layer(
    weight: Stored, bias: Stored | None, channels: int, kernel: int, stride: int, padding: int
) -> LuaLayer:
    """Return an nn.SpatialDepthWiseConvolution with a square kernel for each channel, and one output for each."""
    outputs_of_channel = 1
    return make(
        "nn.SpatialDepthWiseConvolution",
        channels,
        outputs_of_channel,
        *(kernel, kernel, stride, stride, padding, padding),
        calls=() if bias is not None else (("noBias", ()),),
        weight=weight.ref.resized((outputs_of_channel, channels * kernel * kernel)),
        bias=bias.ref.resized((outputs_of_channel, channels)) if bias is not None else None,
    )


@operation(
    "conv_transpose1d conv_transpose2d.input conv_transpose3d.input",
    lua="nn.SpatialFullConvolution, nn.VolumetricFullConvolution; groups as nn.Concat of nn.Narrow",
    scaled=True,
)
@with_weight(is_transposed=True, channels=1)
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
    """Convolve transposed.

    Args:
        b: the builder.
        input: (batch, channels, sizes of a signal, an image or a volume).
        weight: the kernels, (channels in, channels out of a group, sizes of a kernel).
        bias: a parameter, or `None`.
        stride: one number, or one for each dimension.
        padding: likewise.
        output_padding: likewise: elements that the output has more at the end.
        groups: the number of groups of channels, each with kernels of its own.
        dilation: one number, or one for each dimension.
    """
    _, _, *kernel = weight.shape
    rank = len(kernel)
    _require_batch(input, rank)
    window = _Window.of(rank, kernel, stride, padding, dilation)
    # nn's layers hold their weight, and have no dilation. pt.Convolution takes any weight, but no volumes.
    has_layer_in_nn = is_parameter(weight) and not window.is_dilated
    if not has_layer_in_nn and "layers" in b.allow and rank < 3:
        extra = _per_dimension(rank, output_padding)
        return _transposed_by_convolution(b, input, weight, bias, window.without_height(rank), extra, groups)
    layer = _transposed_layer(weight, bias, window, _per_dimension(rank, output_padding, for_height=0), groups)
    return apply_to_images(b, layer, input, b.shape)


def _transposed_layer(weight: Any, bias: Any, window: _Window, extra: tuple[int, ...], groups: int) -> LuaLayer:
    """Return a layer of images or volumes with transposed kernels, or one for each group of channels.

    Args:
        weight: the kernels, (channels in, channels out of a group, sizes of a kernel), maybe of signals.
        bias: a parameter, or `None`.
        window: how they move.
        extra: the output padding in each dimension of images or volumes.
        groups: the number of groups of channels.

    Raises:
        CannotError: the weight is not a parameter, or no layer of nn has these options.
    """
    check_learned(weight, "weight")
    if window.is_dilated:
        raise CannotError("nn has no transposed convolution with dilation")
    if any(amount >= step for amount, step in zip(extra, window.stride)):  # which Lua's layers refuse
        raise CannotError("the output padding is not less than the stride")
    n_in, n_out = weight.shape[:2]  # of all groups, and of a group
    n_in_of_group = n_in // groups
    space = "Spatial" if len(window.kernel) < 3 else "Volumetric"
    args = _in_lua_order(window.kernel, window.stride, window.padding, extra)
    name = f"nn.{space}FullConvolution"
    size_of_group = (n_in_of_group, n_out, *window.kernel)
    return _layer_of_groups(name, args, weight, bias, size_of_group, _Groups(groups, n_in_of_group, n_out))


def _transposed_by_convolution(
    b: Builder, input: Any, weight: Any, bias: Any, window: _Window, extra: tuple[int, ...], groups: int
) -> Any:
    """Convolve transposed as a convolution: by reversed kernels, of the input with zeros between its elements.

    Args:
        b: the builder.
        input: a batch of signals or images.
        weight: the kernels, (channels in, channels out of a group, sizes of a kernel).
        bias: a parameter, or `None`.
        window: how they move, of signals without a height.
        extra: the output padding, likewise.
        groups: the number of groups of channels.
    """
    kernels = _with_channels_exchanged(b, b.wire(weight, like=input), groups)
    padding: list[int] = []
    for dimension, size in enumerate(window.kernel):
        axis = 2 + dimension  # behind the batch and the channels
        kernels = b.gather_constant(kernels, np.arange(size)[::-1], axis)  # reversed
        if window.stride[dimension] > 1:
            input = _insert_zeros(b, input, axis, window.stride[dimension])
        # How far a kernel reaches beyond the first and the last element.
        reach = window.dilation[dimension] * (size - 1) - window.padding[dimension]
        padding = [reach, reach + extra[dimension], *padding]  # the last dimension first, as PyTorch pads
    input = constant_pad(b, input, padding, 0.0)
    return convolution(b, input, kernels, bias, stride=1, padding=0, dilation=window.dilation, groups=groups)


def _with_channels_exchanged(b: Builder, kernels: Wire, groups: int) -> Any:
    """Return the kernels of a transposed convolution, in each group (in, out, …), as a convolution's: (out, in, …).

    Args:
        b: the builder.
        kernels: (channels in, channels out of a group, sizes of a kernel).
        groups: the number of groups of channels.
    """
    n_in, n_out, *size = kernels.shape  # of all groups, and of a group
    n_in_of_group = n_in // groups
    in_groups = b.reshape(kernels, (groups, n_in_of_group, n_out, *size))
    exchanged = b.permute(in_groups, (0, 2, 1, *range(3, 3 + len(size))))
    return b.reshape(exchanged, (groups * n_out, n_in_of_group, *size))


def _insert_zeros(b: Builder, value: Any, axis: int, step: int) -> Any:
    """Put `step - 1` zeros between the elements of a dimension, none behind the last one."""
    shape = value.shape
    extent = shape[axis]
    # Each element becomes a row, along the next axis, which is padded with zeros behind it.
    rows = b.reshape(value, replace_axis(shape, axis, extent, 1))
    dimension_of_rows = axis + 1 + 1  # Lua counts from 1
    padding = make("nn.Padding", dimension_of_rows, step - 1)
    rows = b.emit(padding, rows, shape=replace_axis(shape, axis, extent, step))
    flat = b.reshape(rows, replace_axis(shape, axis, extent * step))
    return b.narrow(flat, axis, start=0, count=(extent - 1) * step + 1)  # without the zeros behind the last element


@operation(
    "convolution _convolution",
    lua="as conv2d and conv_transpose2d",
    note="Of script modules and decomposed programs.",
    scaled=True,
)
def any_convolution(b: Builder, transposed: bool, **args: Any) -> Any:
    """Convolve, or convolve transposed."""
    name = "aten.conv_transpose2d.input" if transposed else "aten.conv2d.default"
    return OPERATIONS[name].call(b, args)


@operation("im2col", lua="nn.SpatialZeroPadding, nn.Index")
def im2col(b: Builder, self: Wire, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Return the elements at each position of a kernel.

    The result is (batch, channels x elements of a kernel, positions of it). Each option is one number, or one for the
    height and one for the width.
    """
    window = _Window.of(2, kernel_size, stride, padding, dilation)
    top, left = window.padding
    value = constant_pad(b, self, [left, left, top, top], 0.0)
    lead = value.shape[:-2]
    height, width = make_static(*value.shape[-2:])
    rows, columns = (_positions_of_kernel(window, axis, extent) for axis, extent in enumerate((height, width)))
    # In the image row by row: of shape (kernel height, kernel width, starts down, starts across).
    positions = rows[:, None, :, None] * width + columns[:, None, :]
    flat = b.reshape(value, (*lead, height * width))
    return b.reshape(b.gather_constant(flat, positions, axis=len(lead)), b.shape)


def _positions_of_kernel(window: _Window, axis: int, extent: int) -> Any:
    """Return the index of each element of a kernel (rows), along one dimension, for each start of it (columns).

    Args:
        window: how the kernel moves.
        axis: the dimension of the image: 0 for the height, 1 for the width.
        extent: of the dimension, with the padding.
    """
    offsets = np.arange(window.kernel[axis]) * window.dilation[axis]
    last_start = extent - 1 - offsets[-1]
    starts = np.arange(last_start // window.stride[axis] + 1) * window.stride[axis]
    return offsets[:, None] + starts


@operation(
    "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
    "avg_pool1d avg_pool2d avg_pool3d",
    lua="nn.SpatialMaxPooling, nn.SpatialDilatedMaxPooling, nn.VolumetricMaxPooling, nn.VolumetricDilatedMaxPooling, "
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
    """Max and average pooling.

    Args:
        b: the builder.
        self: (batch, channels, sizes of a signal, an image or a volume), or without the batch.
        kernel_size: one number, or one for each dimension.
        stride: likewise; none for the kernel's.
        padding: likewise.
        ceil_mode: whether windows may reach beyond the end.
        dilation: one number, or one for each dimension; of maxima only.
        count_include_pad: whether a mean counts the elements of the padding.
        divisor_override: by which the sums of means are divided; `None` for the number of elements.

    Returns:
        The maxima or means; in a list with the indices of the maxima, if the operation returns these and a layer for
        them is allowed.
    """
    rank = _rank_of_pooling(b.kind)
    window = _Window.of(rank, kernel_size, stride or kernel_size, padding, dilation)
    returns_indices = b.kind.endswith("indices")
    shape = b.shape[0] if returns_indices else b.shape  # that of the maxima, which is the one of their indices, too
    # With padding, Lua leaves out a last window that would begin behind the input, as PyTorch does.
    needs_cut = ceil_mode and not any(window.padding)
    value = _up_to_last_window(b, self, window.without_height(rank), shape[-rank:]) if needs_cut else self
    if b.kind.startswith("avg"):
        layer = _averaging_layer(window, ceil_mode, count_include_pad, divisor_override)
    else:
        layer = _pooling_layer("Max", window, ceil_mode)
    result = _pooled(b, layer, value, rank, shape)
    if not returns_indices or "layers" not in b.allow or rank == 3:  # pt.MaxPlaces takes no volumes
        return result
    if value is not self:
        raise CannotError("windows would begin behind the input, and the indices are those of a part of it")
    options = _in_lua_order(window.kernel, window.stride, window.padding, window.dilation)
    layer_of_indices = make("pt.MaxPlaces", *options, ceil_mode)
    return [result, _pooled(b, layer_of_indices, self, rank, shape)]


def _up_to_last_window(b: Builder, value: Wire, window: _Window, counts: Any) -> Wire:
    """Return a value without the elements behind PyTorch's last windows, where Lua's ceil mode may have one more.

    If a stride is larger than a window, elements between two windows are in neither. Where the value ends among these,
    Lua's next window begins behind it, without padding. A value that ends elsewhere is returned unchanged.

    Args:
        b: the builder.
        value: a batch of signals, images or volumes, or a single one.
        window: the windows, of signals without a height, which have no padding.
        counts: the numbers of PyTorch's windows in each dimension that is pooled.
    """
    first_axis = len(value.shape) - len(counts)  # of those that are pooled
    for dimension, (size, stride, dilation) in enumerate(zip(window.kernel, window.stride, window.dilation)):
        span = dilation * (size - 1) + 1
        if stride <= span:
            continue
        axis = first_axis + dimension
        extent, count = make_static(value.shape[axis], counts[dimension])
        used = (count - 1) * stride + span
        if used < extent:
            value = b.narrow(value, axis, start=0, count=used)
    return value


def _rank_of_pooling(kind: str) -> int:
    """Return the number of dimensions that an operation pools: 2 for `max_pool2d_with_indices`."""
    return int(kind.partition("pool")[2][0])


def _pooled(b: Builder, layer: LuaLayer, value: Wire, rank: int, shape: Any) -> Any:
    """Apply a pooling layer to a batch, or to a single signal, image or volume, which these layers take, too.

    Args:
        b: the builder.
        layer: of images, also for signals, or of volumes.
        value: the batch, or the single one.
        rank: the number of dimensions that are pooled: 1 for signals, whose channels are not the height of an image.
        shape: of the result.
    """
    if rank > 1:
        return b.emit(layer, value, shape=shape)
    images = b.reshape(value, (*value.shape[:-1], 1, value.shape[-1]))
    pooled = b.emit(layer, images, shape=(*shape[:-1], 1, shape[-1]))
    return b.reshape(pooled, shape)


def _pooling_layer(name: str, window: _Window, ceil_mode: bool) -> LuaLayer:
    """Return a pooling layer, without the padding and the dilation where they do nothing.

    Args:
        name: `Max` or `Average`, which has no dilation in PyTorch.
        window: how the kernel moves.
        ceil_mode: whether windows may reach beyond the end.
    """
    space = "Spatial" if len(window.kernel) < 3 else "Volumetric"
    args = _in_lua_order(window.kernel, window.stride)
    if window.is_dilated:
        name = f"Dilated{name}"
        args += _in_lua_order(window.padding, window.dilation)
    elif any(window.padding):
        args += _in_lua_order(window.padding)
    calls = (("ceil", ()),) if ceil_mode else ()
    return make(f"nn.{space}{name}Pooling", *args, calls=calls)


def _averaging_layer(window: _Window, ceil_mode: bool, count_include_pad: bool, divisor: int | None) -> LuaLayer:
    """Return a layer of average pooling; see `pool` for the arguments.

    Raises:
        CannotError: no layer of nn has these options.
    """
    is_padded = any(window.padding)
    if divisor is not None and ceil_mode:
        raise CannotError("means have a divisor of their own, and windows reach beyond the padding")
    if len(window.kernel) == 3 and (is_padded or ceil_mode):
        raise CannotError("nn.VolumetricAveragePooling has neither padding nor ceil mode")
    layer = _pooling_layer("Average", window, ceil_mode)
    if divisor is not None:  # Lua divides by the number of elements of the kernel
        return layer * (prod(window.kernel) / divisor)
    if not count_include_pad and (is_padded or ceil_mode):
        layer.calls += (("setCountExcludePad", ()),)
    return layer


@operation("max_unpool2d", lua="pt.Scatter", package="layers")
def max_unpool(b: Builder, self: Wire, indices: Any) -> Any:
    """Return images with values at the positions of maxima, and 0 elsewhere.

    Args:
        b: the builder.
        self: the maxima, (…, rows, columns).
        indices: of each its position in the image, row by row from 0.
    """
    lead = self.shape[:-2]
    # Positions are row by row, and so depend on the size of the images, which is fixed as in the example.
    make_static(*self.shape[-2:], *b.shape[-2:])
    flat_shape = (*lead, prod(self.shape[-2:]))
    value = b.reshape(self, flat_shape)
    positions = b.reshape(indices, flat_shape)
    zeros = b.wire(b.constant(np.zeros(1, "f4"), (*lead, prod(b.shape[-2:]))), like=value)
    adds = False
    image = b.emit(make("pt.Scatter", len(lead) + 1, adds), zeros, positions, value)
    return b.reshape(image, b.shape)


@operation(
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d adaptive_max_pool1d "
    "adaptive_max_pool2d",
    lua="nn.SpatialAdaptiveAveragePooling, nn.SpatialAdaptiveMaxPooling, nn.VolumetricAveragePooling",
    missing=INDICES,
)
def adaptive_pool(b: Builder, self: Wire) -> Any:
    """Max and average pooling to a given size."""
    is_max = "max" in b.kind
    rank = _rank_of_pooling(b.kind)
    shape = b.shape[0] if is_max else b.shape
    new_sizes = shape[-rank:]
    if rank == 3:  # nn has no adaptive layer of volumes
        sizes = make_static(*self.shape[-rank:])
        if any(size % count for size, count in zip(sizes, new_sizes)):
            raise CannotError("nn has adaptive pooling in three dimensions only where sizes divide")
        kernel = _in_lua_order([size // count for size, count in zip(sizes, new_sizes)])
        stride = kernel
        return b.emit(make("nn.VolumetricAveragePooling", *kernel, *stride), self, shape=shape)
    if is_max:
        layer = _adaptive_max_layer(self.shape[-rank:], new_sizes)
    else:
        layer = make("nn.SpatialAdaptiveAveragePooling", *_in_lua_order(_per_dimension(rank, new_sizes, for_height=1)))
    return _pooled(b, layer, self, rank, shape)


def _adaptive_max_layer(sizes: Sequence[Any], new_sizes: Sequence[Any]) -> LuaLayer:
    """Return a layer of max pooling to given sizes, whose windows are PyTorch's.

    nn computes the windows of its adaptive layer in float: of 21 elements to 7, some have one too many.

    Args:
        sizes: of the images or signals; fixed where they are not pooled to a single element.
        new_sizes: of the result.

    Raises:
        CannotError: no layer of nn has these windows.
    """
    rank = len(sizes)
    adaptive = make("nn.SpatialAdaptiveMaxPooling", *_in_lua_order(_per_dimension(rank, new_sizes, for_height=1)))
    if all(count == 1 for count in new_sizes):  # the one window is all of the image
        return adaptive
    sizes = make_static(*sizes)
    new_sizes = make_static(*new_sizes)
    if all(windows_in_single(*pair) == exact_windows(*pair) for pair in zip(sizes, new_sizes)):
        return adaptive
    if any(size % count for size, count in zip(sizes, new_sizes)):
        raise CannotError("nn's adaptive pooling has other windows for these sizes")
    kernel = _per_dimension(rank, [size // count for size, count in zip(sizes, new_sizes)], for_height=1)
    stride = kernel
    return make("nn.SpatialMaxPooling", *_in_lua_order(kernel, stride))


@operation(
    "upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec upsample_bilinear2d.vec "
    "upsample_linear1d.vec upsample_bicubic2d.vec _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec "
    "_upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec upsample_trilinear3d.vec",
    lua="nn.SpatialUpSamplingNearest, nn.SpatialUpSamplingBilinear, or nn.MM with nn.Constant for each dimension",
)
def upsample(b: Builder, input: Wire, scale_factors: Any, align_corners: bool = False) -> Any:
    """Interpolate along the last dimensions.

    Args:
        b: the builder, whose call has the new sizes in its shape.
        input: (batch, channels, sizes of a signal, an image or a volume).
        scale_factors: the factors by which the sizes grow, one for each dimension; `None` if sizes were stated.
        align_corners: whether the first and the last elements stay where they are, as Lua's bilinear layer has it.
    """
    old_sizes = input.shape[2:]
    new_sizes = b.shape[2:]
    if b.kind == "upsample_nearest2d":
        factor = _factor_of_nearest(old_sizes, new_sizes, scale_factors)
        if factor == 1:
            return input
        if factor is not None:  # a layer for images of any size
            return b.emit(make("nn.SpatialUpSamplingNearest", factor), input, shape=b.shape)
    # All others are for one size.
    old_sizes = make_static(*old_sizes)
    new_sizes = make_static(*new_sizes)
    if b.kind == "upsample_bilinear2d" and align_corners and old_sizes != new_sizes:
        height, width = new_sizes
        sizes = (("oheight", height), ("owidth", width))
        return b.emit(make("nn.SpatialUpSamplingBilinear", sizes), input, shape=b.shape)
    value = input
    for dimension in reversed(range(len(new_sizes))):
        # With factors stated, PyTorch interpolates by these, and not by the quotient of the sizes.
        if old_sizes[dimension] != new_sizes[dimension] or scale_factors:
            value = _interpolate_along(b, value, dimension, new_sizes)
    return value


def _factor_of_nearest(old_sizes: Any, new_sizes: Any, scale_factors: Any) -> Any:
    """Return how often nearest interpolation repeats each element in all dimensions; `None` if it does otherwise.

    Args:
        old_sizes: of the image; open ones, too.
        new_sizes: after the interpolation.
        scale_factors: as for `upsample`.
    """
    if any(new % old != 0 for new, old in zip(new_sizes, old_sizes)):
        return None
    quotients = [new // old for new, old in zip(new_sizes, old_sizes)]
    quotient = quotients[0]
    if quotients != [quotient] * len(quotients):
        return None
    # PyTorch goes by stated factors, such as 3.4 for the sizes 2 and 6; but if the quotient is 1 or 2, by that.
    is_by_quotient = quotient in (1, 2) or not scale_factors or list(scale_factors) == quotients
    return quotient if is_by_quotient else None


def _interpolate_along(b: Builder, value: Wire, dimension: int, new_sizes: Any) -> Any:
    """Interpolate along one dimension: multiply by a matrix.

    Args:
        b: the builder, whose call is the interpolation.
        value: (batch, channels, sizes of an image).
        dimension: of an image: 0 for the first behind the channels.
        new_sizes: of the image after interpolation along all dimensions.
    """
    extent = value.shape[2 + dimension]
    matrix = _interpolation_matrix(b, dimension, extent, new_sizes)
    is_identity = extent == new_sizes[dimension] and np.array_equal(matrix, np.eye(extent))
    if is_identity:
        return value
    return multiply_along(b, value, 2 + dimension, matrix)


def _interpolation_matrix(b: Builder, dimension: int, extent: int, new_sizes: Any) -> Any:
    """Return what PyTorch's interpolation makes of the unit vectors of a dimension, each a row: (extent, new extent).

    Args:
        b: the builder, whose call is the interpolation.
        dimension: of an image: 0 for the first behind the channels.
        extent: of the dimension.
        new_sizes: of the image after interpolation along all dimensions.
    """
    rank = len(new_sizes)
    args = {**b.call.args, "input": b.constant(_unit_images(rank, dimension, extent))}
    # The call has either factors or sizes. The other dimensions keep their size.
    if args["scale_factors"]:
        args["scale_factors"] = replace_axis((1.0,) * rank, dimension, args["scale_factors"][dimension])
    else:
        args["output_size"] = replace_axis((_WIDTH_OF_UNIT_IMAGES,) * rank, dimension, new_sizes[dimension])
    images = b.compute(args)
    if not isinstance(images, Const):
        raise CannotError("the interpolation cannot be computed")
    (channels,) = images.array()  # the only example: a channel for each unit vector
    # All lines along the dimension in a channel are equal: the first is a row of the matrix.
    first_line = replace_axis((0,) * rank, dimension, slice(None))
    first_line_of_each = (slice(None), *first_line)
    return channels[first_line_of_each]


_WIDTH_OF_UNIT_IMAGES = 2
"""In the other dimensions: PyTorch 2.13's kernels with antialias are wrong for images one element wide."""


def _unit_images(rank: int, dimension: int, extent: int) -> Any:
    """Return an image for each element of a dimension, as a channel, that is 1 there and 0 elsewhere.

    Args:
        rank: the number of dimensions of an image.
        dimension: that of the elements, from 0.
        extent: their number.
    """
    sizes = replace_axis((_WIDTH_OF_UNIT_IMAGES,) * rank, dimension, extent)
    unit_vectors = np.eye(extent).reshape(extent, *replace_axis((1,) * rank, dimension, extent))
    channels = np.broadcast_to(unit_vectors, (extent, *sizes))
    return channels[np.newaxis].copy()  # of one example; a tensor needs an array that can be written


@operation("col2im", lua="pt.Fold", package="layers")
def col2im(b: Builder, self: Wire, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Add overlapping blocks to an image.

    It undoes `im2col`, but adds where blocks overlap. Each option has a number for the height and one for the width.
    """
    if len(self.shape) != 3:
        raise CannotError("the input is not a batch")
    return b.emit(make("pt.Fold", *output_size, *kernel_size, *stride, *padding, *dilation), self, shape=b.shape)


@operation("grid_sampler grid_sampler_2d", lua="pt.GridSample", package="layers")
def grid_sampler(
    b: Builder, input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    """Return an image at the places of a grid.

    Args:
        b: the builder.
        input: (batch, channels, height, width).
        grid: the x and y of each place, from -1 to 1, (batch, height and width of the result, 2).
        interpolation_mode: PyTorch's number of how places between pixels are computed.
        padding_mode: PyTorch's number of what is outside of the image.
        align_corners: whether -1 and 1 are the middles of the outermost pixels, or else their edges.
    """
    interpolations = ("bilinear", "nearest")  # by PyTorch's numbers; 2 is bicubic
    paddings = ("zeros", "border")  # 2 is reflection
    if len(input.shape) != 4 or interpolation_mode >= len(interpolations) or padding_mode >= len(paddings):
        raise CannotError("samples volumes, or by cubic interpolation or reflection")
    interpolation = interpolations[interpolation_mode]
    padding = paddings[padding_mode]
    layer = make("pt.GridSample", interpolation, padding, align_corners)
    image, points = b.wires(input, grid)
    return b.emit(layer, image, points, shape=b.shape)
