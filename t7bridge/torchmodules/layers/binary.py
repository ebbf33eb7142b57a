"""Layers of networks with binary weights and activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor) -> Tensor:
        ctx.save_for_backward(input)
        return input.sign()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (input,) = ctx.saved_tensors
        return gradients[0].masked_fill(input.abs() >= 1, 0)


_sign: Callable[..., Tensor] = _Sign.apply


class Binary(nn.Module):
    """The sign of each element; the gradient is passed back for elements between
    -1 and 1.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return -1, 0 and 1, in the shape of the input."""
        return _sign(input)


class BinaryConv2d(nn.Module):
    """A convolution of the signs of images with kernels of signs; non-positive values
    count as -1, and so does the border.

    Args:
        weight_shape: of the kernels: (out, in, h, w).
        stride: between outputs.
        padding: width of the border.
    """

    weight: Tensor
    alphas: Tensor

    def __init__(
        self,
        weight_shape: tuple[int, ...],
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__()
        self.stride = stride
        self.padding = padding
        self.register_buffer("weight", torch.ones(weight_shape))
        self.register_buffer("alphas", torch.ones(weight_shape[0]))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in, h, w) or (in, h, w); return the same dimensions."""
        signs = torch.where(input > 0, 1.0, -1.0).to(self.weight.dtype)
        rows, columns = self.padding
        padded = F.pad(signs, (columns, columns, rows, rows), value=-1.0)
        return F.conv2d(padded, self.weight, stride=self.stride) * self.alphas.view(
            -1, 1, 1
        )
