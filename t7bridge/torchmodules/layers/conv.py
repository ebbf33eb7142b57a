"""Convolutions of images and sequences that PyTorch lacks, or computes differently."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import Layer, with_batch


class DilatedConv(nn.Module):
    """A convolution that accepts a padded input smaller than its kernel, dilated or
    not, by less than a stride, as if zeros followed. Attributes as in torch.nn.Conv2d.
    """

    kernel_size: Any
    stride: Any
    padding: Any
    dilation: Any

    def forward(self, input: Tensor) -> Tensor:
        """Take images or volumes, with or without a batch; return the same
        dimensions.
        """
        borders: list[int] = []
        options = (self.kernel_size, self.dilation, self.stride, self.padding)
        extents = input.shape[-len(self.kernel_size) :]
        for size, kernel, dilation, stride, padding in zip(extents, *options):
            dilated_kernel = dilation * (kernel - 1) + 1
            lacking = dilated_kernel - (size + 2 * padding)
            # A kernel that fits needs nothing; PyTorch refuses what lacks more.
            behind = lacking if 0 < lacking < stride else 0
            # torch pads from the last dimension on.
            borders = [0, behind, *borders]
        padded = F.pad(input, borders) if any(borders) else input
        output: Tensor = super().forward(padded)
        return output


class DilatedConv2d(DilatedConv, nn.Conv2d):
    """torch.nn.Conv2d that accepts smaller images than its kernel."""


class DilatedConv3d(DilatedConv, nn.Conv3d):
    """torch.nn.Conv3d that accepts smaller volumes than its kernel."""


class FullConvolution(nn.Module):
    """A transposed convolution whose output size can be given by a second input.
    Attributes as in torch.nn.ConvTranspose2d.
    """

    kernel_size: Any
    stride: Any
    padding: Any
    dilation: Any
    groups: int
    weight: Tensor
    bias: Tensor | None

    def forward(self, input: Any, output_size: Any = None) -> Tensor:
        """Take one or a batch of images or volumes, or a list of these and a tensor of
        the requested size.
        """
        if isinstance(input, Tensor):
            output: Tensor = super().forward(input, output_size)
            return output
        source, of_requested_size = input[:2]  # as in Lua, others are ignored
        dims = len(self.kernel_size)
        transposed: Any = F.conv_transpose2d if dims == 2 else F.conv_transpose3d
        enlarged: Tensor = transposed(
            source,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self._padding_for(of_requested_size.shape[-dims:]),
            self.groups,
            self.dilation,
        )
        return enlarged

    def _padding_for(self, extents: tuple[int, ...]) -> list[int]:
        """Return the elements to be added at the end of each dimension of the output.

        As in Lua they are what whole strides leave of the requested extents, whether
        or not the input is of the size that leads to these.
        """
        options = (self.padding, self.kernel_size, self.stride)
        return [
            (size + 2 * padding - kernel) % stride
            for size, padding, kernel, stride in zip(extents, *options, strict=True)
        ]


class FullConvolution2d(FullConvolution, nn.ConvTranspose2d):
    """torch.nn.ConvTranspose2d whose output size can be given by a second input."""


class FullConvolution3d(FullConvolution, nn.ConvTranspose3d):
    """torch.nn.ConvTranspose3d whose output size can be given by a second input."""


class DepthWiseConv2d(nn.Conv2d):
    """A convolution of each plane separately, which reads the rows of an image of
    height h and width w as those of one of height w and width h, as the layer in Lua
    does. For square images it is torch.nn.Conv2d.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in, h, w) or (in, h, w); return the same dimensions."""
        *planes, height, width = input.shape
        return super().forward(input.reshape(*planes, width, height))


def local_convolution(images: Tensor, weight: Tensor, stride: Any) -> Tensor:
    """Return a convolution with a kernel of its own for each position.

    Args:
        images: the images, (batch, in, h, w).
        weight: the kernels, (h_out, w_out, out, in, h, w).
        stride: between outputs.

    Returns:
        (batch, out, h_out, w_out).
    """
    patches = F.unfold(images, weight.shape[-2:], stride=stride)
    patches = patches.reshape(*patches.shape[:2], *weight.shape[:2])
    # batch, elements of a patch, rows, columns, outputs
    return torch.einsum("bprc,rcop->borc", patches, weight.flatten(3))


class LocalConv2d(Layer):
    """A convolution with a kernel of its own for each position.

    Args:
        weight_shape: of the weight: (h_out, w_out, out, in, h, w).
        stride: between outputs.
        padding: zeros around the input.
    """

    weight_shape: tuple[int, ...]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def __post_init__(self) -> None:
        self.weight = nn.Parameter(torch.zeros(self.weight_shape))
        self.bias = nn.Parameter(
            torch.zeros(self.weight_shape[2], *self.weight_shape[:2])
        )

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in, h, w) or (in, h, w); return (batch, out, h_out, w_out) or
        (out, h_out, w_out).
        """
        return with_batch(self._convolved, input, 4)

    def _convolved(self, images: Tensor) -> Tensor:
        """Take (batch, in, h, w); return (batch, out, h_out, w_out)."""
        rows, columns = self.padding
        # torch pads from the last dimension on.
        padded = F.pad(images, [columns, columns, rows, rows])
        output = local_convolution(padded, self.weight, self.stride) + self.bias
        # PyTorch's poolings of one image refuse any that is not contiguous.
        return output.contiguous()


class ConvMap2d(Layer):
    """A convolution with kernels for some pairs of planes only.

    Args:
        in_channels: planes of the input.
        out_channels: planes of the output.
        weight_shape: of the weight: (pairs, h, w).
        stride: between outputs.
        transposed: whether it is the transposed convolution.

    Attributes:
        connTable: the planes of the input and the output of each pair, from 1.
    """

    in_channels: int
    out_channels: int
    weight_shape: tuple[int, ...]
    stride: tuple[int, int] = (1, 1)
    transposed: bool = False

    def __post_init__(self) -> None:
        self.weight = nn.Parameter(torch.zeros(self.weight_shape))
        self.bias = nn.Parameter(torch.zeros(self.out_channels))
        self.connTable = nn.Buffer(torch.ones(self.weight_shape[0], 2))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in, h, w) or (in, h, w); return the same dimensions."""
        is_batch = input.dim() == 4
        extents = input.shape[-2:]
        batch = input.size(0) if is_batch else 1
        # As in Lua, the first planes in memory: what is beyond those of the layer is
        # ignored.
        images = input.flatten()[: batch * self.in_channels * extents.numel()]
        images = images.reshape(batch, self.in_channels, *extents)
        convolve: Any = F.conv_transpose2d if self.transposed else F.conv2d
        output: Tensor = convolve(images, self._kernels(), self.bias, self.stride)
        return output if is_batch else output.squeeze(0)

    def _kernels(self) -> Tensor:
        """Return kernels for all pairs of planes, zero for those without one."""
        source, target = (self.connTable.long() - 1).unbind(1)
        pairs = (target, source)
        planes = (self.out_channels, self.in_channels)
        if self.transposed:
            # The kernels of a transposed convolution begin with the input.
            pairs = (source, target)
            planes = (self.in_channels, self.out_channels)
        kernels = self.weight.new_zeros(*planes, *self.weight.shape[1:])
        return kernels.index_put(pairs, self.weight, accumulate=True)


class SubSampling2d(Layer):
    """Sums of windows, with a learned factor and offset for each plane.

    Args:
        channels: number of planes.
        kernel_size: of the windows.
        stride: between windows.
    """

    channels: int
    kernel_size: tuple[int, int]
    stride: tuple[int, int]

    def __post_init__(self) -> None:
        self.weight = nn.Parameter(torch.ones(self.channels))
        self.bias = nn.Parameter(torch.zeros(self.channels))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, channels, h, w) or (channels, h, w); return the same
        dimensions.
        """
        # A convolution with ones: ONNX takes a pooling with another divisor (1, for
        # sums) for an average.
        planes = self.weight.numel()
        ones = self.weight.new_ones(planes, 1, *self.kernel_size)
        total = F.conv2d(input, ones, None, self.stride, groups=planes)
        return total * self.weight[:, None, None] + self.bias[:, None, None]


class TemporalConv(nn.Conv1d):
    """torch.nn.Conv1d over sequences with the features last."""

    def forward(self, input: Tensor) -> Tensor:
        """Take (time, in) or (batch, time, in); return (steps, out) or (batch, steps,
        out).
        """
        return super().forward(input.transpose(-1, -2)).transpose(-1, -2)


class TemporalRowConv(nn.Conv1d):
    """A convolution of each feature separately.

    Args:
        features: number of features.
        kernel_size: steps of a kernel.
        stride: steps between outputs.
        bias: whether there is a bias.
        features_first: whether sequences are (features, time).
    """

    def __init__(
        self,
        features: int,
        kernel_size: int,
        stride: int = 1,
        bias: bool = True,
        features_first: bool = False,
    ) -> None:
        super().__init__(
            features, features, kernel_size, stride, groups=features, bias=bias
        )
        # Whether sequences are (features, time), not (time, features).
        self.features_first = features_first

    def forward(self, input: Tensor) -> Tensor:
        """Take (time, features), or (features, time) if these are first, or a batch of
        them; return the same dimensions.
        """
        if self.features_first:
            return super().forward(input)
        return super().forward(input.transpose(-1, -2)).transpose(-1, -2)


class TemporalMaxPool(Layer):
    """The largest elements of windows in time.

    Args:
        kernel_size: steps of a window.
        stride: steps between windows.
    """

    kernel_size: int
    stride: int

    def forward(self, input: Tensor) -> Tensor:
        """Take (time, n) or (batch, time, n); return the same dimensions."""
        features_first = input.transpose(-1, -2)
        output = F.max_pool1d(features_first, self.kernel_size, self.stride)
        return output.transpose(-1, -2)


INSERTION_SORTED = 10
"""Lua's sort leaves parts of so many numbers to insertions."""
LUA_SORT_IS_STABLE_UP_TO = INSERTION_SORTED + 1


def quicksorted(values: list[float]) -> list[int]:
    """Return the indices of numbers from the largest on, where Lua's sort puts them.

    Parts of up to `INSERTION_SORTED` numbers are left to the insertions at the end,
    which are stable. A sort of more than `LUA_SORT_IS_STABLE_UP_TO` is not: which of
    equal numbers comes first is its own.

    Source: torch7 `THTensorMath.c`, `quicksortdescend`, after Sedgewick 1978.
    """
    pairs = [(value, index) for index, value in enumerate(values)]
    # First and last position of each part that is still to be divided.
    parts = []
    if len(pairs) > LUA_SORT_IS_STABLE_UP_TO:
        parts.append((0, len(pairs) - 1))
    while parts:
        left, right = parts.pop()
        pivot_at, behind = _divide(pairs, left, right)
        for first, last in ((left, pivot_at - 1), (behind, right)):
            if last - first + 1 > INSERTION_SORTED:
                parts.append((first, last))
    # Python's sort is stable, as one by insertions.
    pairs.sort(key=lambda pair: -pair[0])
    return [index for _, index in pairs]


def _divide(pairs: list[tuple[float, int]], left: int, right: int) -> tuple[int, int]:
    """Put the larger numbers of a part first, then the pivot, then the smaller ones.

    Each step is that of the source: they decide the order of equal numbers.

    Args:
        pairs: numbers and their indices, which are moved.
        left: position of the first of the part.
        right: that of the last, at least two further on.

    Returns:
        The positions of the pivot and of the first smaller number; any number between
        them is equal to the pivot.
    """
    pivot = _median_to_first(pairs, left, right)
    low, high = left + 1, right
    while True:
        low += 1
        while pairs[low][0] > pivot:
            low += 1
        high -= 1
        while pairs[high][0] < pivot:
            high -= 1
        if high < low:
            break
        _swap(pairs, low, high)
    _swap(pairs, left, high)
    return high, low


def _median_to_first(pairs: list[tuple[float, int]], left: int, right: int) -> float:
    """Move the median of the first, the middle and the last number to the first place
    of a part; return it.

    The largest of the three becomes the second and the smallest the last, which stop
    the searches of `_divide`.
    """
    _swap(pairs, (left + right) // 2, left + 1)
    if pairs[left + 1][0] < pairs[right][0]:
        _swap(pairs, left + 1, right)
    if pairs[left][0] < pairs[right][0]:
        _swap(pairs, left, right)
    if pairs[left + 1][0] < pairs[left][0]:
        _swap(pairs, left + 1, left)
    return pairs[left][0]


def _swap(pairs: list[tuple[float, int]], one: int, other: int) -> None:
    pairs[one], pairs[other] = pairs[other], pairs[one]


class TemporalDynamicKMaxPool(Layer):
    """The largest elements of each feature, in their order in time.

    Args:
        least: minimum number of elements.
        factor: their number as a fraction of the steps, where that is more.
    """

    least: int
    factor: float = 0.0

    def forward(self, input: Tensor) -> Tensor:
        """Take (time, n) or (batch, time, n); return the same dimensions."""
        steps = input.size(-2)
        k = max(self.least, ceil(self.factor * steps))
        values, order = input.sort(dim=-2, descending=True, stable=True)
        index = order.narrow(-2, 0, k)
        # Which of equal numbers are among the k largest depends on Lua's sort, but only
        # if it is not stable.
        may_differ = k < steps and steps > LUA_SORT_IS_STABLE_UP_TO
        # torch.export cannot follow values.
        if may_differ and not torch.compiler.is_compiling():
            last_and_next = values.narrow(-2, k - 1, 2)
            index = self._index_of_lua(input, index, last_and_next)
        in_time, _ = index.sort(-2)
        return input.gather(-2, in_time)

    @staticmethod
    def _index_of_lua(input: Tensor, index: Tensor, border: Tensor) -> Tensor:
        """Return the indices of the k elements of each feature that Lua takes for the
        largest, (…, k, n), in any order.

        Args:
            input: the input, (…, time, n).
            index: the indices by a stable sort, (…, k, n).
            border: the last number taken and the first that is not, (…, 2, n): where
                they are equal, Lua may take others.
        """
        columns = input.detach().transpose(-1, -2)
        chosen = index.transpose(-1, -2).clone()
        is_tied = border.select(-2, 0) == border.select(-2, 1)
        for feature in map(tuple, is_tied.nonzero().tolist()):
            first = quicksorted(columns[feature].tolist())[: chosen.size(-1)]
            chosen[feature] = chosen.new_tensor(first)
        return chosen.transpose(-1, -2)


class TemporalSubSampling(Layer):
    """Sums of windows in time, with a learned factor and offset for each feature.

    Args:
        features: number of features.
        kernel_size: steps of a window.
        stride: steps between windows.
    """

    features: int
    kernel_size: int
    stride: int

    def __post_init__(self) -> None:
        self.weight = nn.Parameter(torch.ones(self.features))
        self.bias = nn.Parameter(torch.zeros(self.features))

    def forward(self, input: Tensor) -> Tensor:
        """Take (time, n) or (batch, time, n); return the same dimensions."""
        sums = input.unfold(-2, self.kernel_size, self.stride).sum(-1)
        return sums * self.weight + self.bias


class _BinaryConvolution(torch.autograd.Function):
    """The gradients of dpnn: that of the signs for the weights, and that of the inputs
    times the mean of the absolute weights for each of them.
    """

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, stride: Any, padding: Any
    ) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.options = {"stride": stride, "padding": padding}
        signs = torch.where(weight >= 0, 1.0, -1.0).to(input)
        output = F.conv2d(input, signs, None, stride, padding)
        return output * weight.abs().mean((1, 2, 3))[:, None, None]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        signs = torch.where(weight >= 0, 1.0, -1.0).to(input)
        batch = input if input.dim() == 4 else input[None]
        (gradient,) = gradients
        of_input, of_weight, _ = torch.ops.aten.convolution_backward(
            gradient.reshape(-1, *gradient.shape[-3:]),
            batch,
            signs,
            bias_sizes=None,
            **ctx.options,
            dilation=(1, 1),
            transposed=False,
            output_padding=(0, 0),
            groups=1,
            output_mask=(True, True, False),  # of input and weight, not of a bias
        )
        # By the mean for each plane of the input; forward, it is that for each plane of
        # the output.
        of_input = of_input * weight.abs().mean((0, 2, 3))[:, None, None]
        return of_input.reshape(input.shape), of_weight, None, None


_binary_convolution: Callable[..., Tensor] = _BinaryConvolution.apply


class SpatialBinaryConvolution(nn.Conv2d):
    """A convolution with the signs of its weights, times the mean of their absolute
    values for each output.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in, h, w) or (in, h, w); return (batch, out, h, w) or (out, h,
        w).
        """
        return _binary_convolution(input, self.weight, self.stride, self.padding)
