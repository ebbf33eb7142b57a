"""Layers of bnn.torch and XNOR-Net."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from t7bridge.layers import Layer, with_gradient


class BinaryConv2d(Layer):
    """A convolution of the signs of images with kernels of signs; non-positive values
    count as -1, and so does the border.

    Args:
        weight_shape: of the kernels: (out, in, h, w).
        stride: between outputs.
        padding: width of the border.
    """

    weight_shape: tuple[int, ...]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.weight = nn.Buffer(torch.ones(self.weight_shape))
        self.alphas = nn.Buffer(torch.ones(self.weight_shape[0]))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in, h, w) or (in, h, w); return the same dimensions."""
        signs = torch.where(input > 0, 1.0, -1.0).to(self.weight.dtype)
        rows, columns = self.padding
        padded = F.pad(signs, (columns, columns, rows, rows), value=-1.0)
        output = F.conv2d(padded, self.weight, stride=self.stride)
        return output * self.alphas.view(-1, 1, 1)


class Binary(nn.Module):
    """The sign of each element; the gradient is passed back for elements between
    -1 and 1.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return -1, 0 and 1, in the shape of the input."""
        return with_gradient(
            input,
            lambda gradient, input: gradient.masked_fill(input.abs() >= 1, 0),
            torch.sign,
        )
