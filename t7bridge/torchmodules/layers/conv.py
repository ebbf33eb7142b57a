"""Convolutions of images that PyTorch lacks, or computes differently."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DilatedConv2d(nn.Conv2d):
    """torch.nn.Conv2d that accepts an input smaller than its dilated kernel, by less
    than a stride, as if zeros followed.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in, h, w) or (in, h, w); return the same dimensions."""
        borders: list[int] = []
        widths = [int(width) for width in self.padding]
        for at, kernel, step, stride, width in zip(
            (-2, -1), self.kernel_size, self.dilation, self.stride, widths
        ):
            lacking = step * (kernel - 1) + 1 - input.size(at) - 2 * width
            borders = [0, lacking if 0 < lacking < stride else 0, *borders]
        return super().forward(F.pad(input, borders))


class DilatedConv3d(nn.Conv3d):
    """torch.nn.Conv3d that accepts an input smaller than its dilated kernel, by less
    than a stride, as if zeros followed.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in, t, h, w) or (in, t, h, w); return the same dimensions."""
        borders: list[int] = []
        widths = [int(width) for width in self.padding]
        for at, kernel, step, stride, width in zip(
            (-3, -2, -1), self.kernel_size, self.dilation, self.stride, widths
        ):
            lacking = step * (kernel - 1) + 1 - input.size(at) - 2 * width
            borders = [0, lacking if 0 < lacking < stride else 0, *borders]
        return super().forward(F.pad(input, borders))


class FullConvolution2d(nn.ConvTranspose2d):
    """torch.nn.ConvTranspose2d whose output size can be given by a second input."""

    def forward(self, input: Any, output_size: Any = None) -> Tensor:
        """Take (batch, in, h, w) or one image, or a list of these and a tensor of the
        requested size.
        """
        if isinstance(input, Tensor):
            return super().forward(input, output_size)
        source, wanted = input
        padding = [int(width) for width in self.padding]
        extra = [
            (wanted.size(dim) + 2 * padding[dim] - self.kernel_size[dim])
            % self.stride[dim]
            for dim in (-2, -1)
        ]
        return F.conv_transpose2d(
            source,
            self.weight,
            self.bias,
            self.stride,
            padding,
            extra,
            self.groups,
            self.dilation,
        )


class FullConvolution3d(nn.ConvTranspose3d):
    """torch.nn.ConvTranspose3d whose output size can be given by a second input."""

    def forward(self, input: Any, output_size: Any = None) -> Tensor:
        """Take (batch, in, t, h, w) or one volume, or a list of these and a tensor of
        the requested size.
        """
        if isinstance(input, Tensor):
            return super().forward(input, output_size)
        source, wanted = input
        padding = [int(width) for width in self.padding]
        extra = [
            (wanted.size(dim) + 2 * padding[dim] - self.kernel_size[dim])
            % self.stride[dim]
            for dim in (-3, -2, -1)
        ]
        return F.conv_transpose3d(
            source,
            self.weight,
            self.bias,
            self.stride,
            padding,
            extra,
            self.groups,
            self.dilation,
        )


class DepthWiseConv2d(nn.Conv2d):
    """A convolution of each plane separately, which reads the rows of an image of
    height h and width w as those of one of height w and width h, as the layer in Lua
    does. For square images it is torch.nn.Conv2d.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in, h, w) or (in, h, w); return the same dimensions."""
        return super().forward(
            input.reshape(*input.shape[:-2], input.size(-1), input.size(-2))
        )


class LocalConv2d(nn.Module):
    """A convolution with a kernel of its own for each position.

    Args:
        weight_shape: of the weight: (h_out, w_out, out, in, h, w).
        stride: between outputs.
        padding: zeros around the input.
    """

    def __init__(
        self,
        weight_shape: tuple[int, ...],
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> None:
        super().__init__()
        self.stride = stride
        self.padding = padding
        self.weight = nn.Parameter(torch.zeros(weight_shape))
        self.bias = nn.Parameter(torch.zeros(weight_shape[2], *weight_shape[:2]))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in, h, w) or (in, h, w); return (batch, out, h_out, w_out) or
        (out, h_out, w_out).
        """
        rows, columns, planes = self.weight.shape[:3]
        images = input if input.dim() == 4 else input.unsqueeze(0)
        patches = F.unfold(
            images, self.weight.shape[-2:], padding=self.padding, stride=self.stride
        )
        patches = patches.reshape(*patches.shape[:2], rows, columns)
        kernels = self.weight.reshape(rows, columns, planes, -1)
        output = torch.einsum("bprc,rcop->borc", patches, kernels) + self.bias
        output = (
            output.contiguous()
        )  # PyTorch's poolings take no others without a batch
        return output if input.dim() == 4 else output.squeeze(0)


class ConvMap2d(nn.Module):
    """A convolution with kernels for some pairs of planes only.

    Args:
        in_channels: planes of the input.
        out_channels: planes of the output.
        weight_shape: of the weight: (pairs, h, w).
        stride: between outputs.
        transposed: whether it is the transposed convolution.
    """

    connTable: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        weight_shape: tuple[int, ...],
        stride: tuple[int, int] = (1, 1),
        transposed: bool = False,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.stride = stride
        self.transposed = transposed
        self.weight = nn.Parameter(torch.zeros(weight_shape))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        self.register_buffer("connTable", torch.ones(weight_shape[0], 2))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in, h, w) or (in, h, w); return the same dimensions."""
        source, target = (self.connTable.long() - 1).unbind(1)
        pair = (source, target) if self.transposed else (target, source)
        planes = (
            (self.in_channels, self.out_channels)
            if self.transposed
            else (self.out_channels, self.in_channels)
        )
        # Planes beyond those of the layer are ignored.
        extents = input.shape[-2:]
        batch = input.size(0) if input.dim() == 4 else 1
        images = input.flatten()[: batch * self.in_channels * extents.numel()]
        images = images.reshape(batch, self.in_channels, *extents)
        whole = self.weight.new_zeros(*planes, *self.weight.shape[1:]).index_put(
            pair, self.weight, accumulate=True
        )
        if self.transposed:
            output = F.conv_transpose2d(images, whole, self.bias, self.stride)
        else:
            output = F.conv2d(images, whole, self.bias, self.stride)
        return output if input.dim() == 4 else output.squeeze(0)


class SubSampling2d(nn.Module):
    """Sums of windows, with a learned factor and offset for each plane.

    Args:
        channels: number of planes.
        kernel_size: of the windows.
        stride: between windows.
    """

    def __init__(
        self, channels: int, kernel_size: tuple[int, int], stride: tuple[int, int]
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, channels, h, w) or (channels, h, w); return the same
        dimensions.
        """
        # A pooling with another divisor is an average in ONNX.
        planes = self.weight.numel()
        ones = self.weight.new_ones(planes, 1, *self.kernel_size)
        total = F.conv2d(input, ones, None, self.stride, groups=planes)
        return total * self.weight[:, None, None] + self.bias[:, None, None]
