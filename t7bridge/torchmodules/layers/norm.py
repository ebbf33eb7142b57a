"""Normalization."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class BatchNorm1d(nn.BatchNorm1d):
    """torch.nn.BatchNorm1d that accepts one example too, in evaluation, as a batch of
    one.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n) or (n); return the former."""
        return super().forward(input if input.dim() > 1 else input[None])


class BatchNorm2d(nn.BatchNorm2d):
    """torch.nn.BatchNorm2d that accepts one example too, in evaluation, as a batch of
    one.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the former."""
        return super().forward(input if input.dim() > 3 else input[None])


class BatchNorm3d(nn.BatchNorm3d):
    """torch.nn.BatchNorm3d that accepts one example too, in evaluation, as a batch of
    one.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, t, h, w) or (n, t, h, w); return the former."""
        return super().forward(input if input.dim() > 4 else input[None])


class LocalResponseNorm(nn.LocalResponseNorm):
    """torch.nn.LocalResponseNorm that accepts a single image too."""

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same shape."""
        return (
            super().forward(input)
            if input.dim() == 4
            else super().forward(input[None])[0]
        )


class Normalize(nn.Module):
    """Divides each row by its p-norm.

    Args:
        p: of the norm, which may be infinite.
        eps: added to the sum of powers, or to the largest element.
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-10) -> None:
        super().__init__()
        self.p = p
        self.eps = eps

    def forward(self, input: Tensor) -> Tensor:
        """Take (n) or (batch, n); return the same shape."""
        if self.p == float("inf"):
            return input / (input.abs().amax(-1, keepdim=True) + self.eps)
        powers = input.pow(self.p) if self.p % 2 == 0 else input.abs().pow(self.p)
        return input / (powers.sum(-1, keepdim=True) + self.eps).pow(1 / self.p)


class LayerNormalization(nn.Module):
    """Normalizes each row; the means of a batch are subtracted in the order of Lua's
    layer.

    Row b, column j loses the mean of row (b * n + j) % batch, in torch.nn.LayerNorm
    that of row b.

    Args:
        features: length of the rows.
        eps: added to the sum of squares.
        affine: whether a learned factor and offset follow.
    """

    def __init__(self, features: int, eps: float = 1e-10, affine: bool = True) -> None:
        super().__init__()
        self.features = features
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(features)) if affine else None

    def forward(self, input: Tensor) -> Tensor:
        """Take (n) or (batch, n); return the same shape."""
        means = input.mean(-1).reshape(-1)
        centred = input - means.repeat(self.features).reshape(input.shape)
        output = (
            centred
            / (centred.square().sum(-1, keepdim=True) + self.eps).sqrt()
            * sqrt(self.features)
        )
        if self.weight is not None and self.bias is not None:
            output = output * self.weight + self.bias
        return output


class LocalNormalization(nn.Module):
    """Subtracts the weighted mean around each position of an image, or divides by the
    deviation there, or both.

    Args:
        kernel_shape: of the weights around a position: two extents, or one for the same
            in both directions.
        subtract: whether to subtract the mean.
        divide: whether to divide by the deviation.
        threshold: the smallest deviation used.
        value: replacement of smaller ones.
    """

    kernel: Tensor

    def __init__(
        self,
        kernel_shape: tuple[int, ...],
        subtract: bool = True,
        divide: bool = True,
        threshold: float = 1e-4,
        value: float = 1e-4,
    ) -> None:
        super().__init__()
        self.subtract = subtract
        self.divide = divide
        self.threshold = threshold
        self.value = value
        self.register_buffer("kernel", torch.zeros(kernel_shape))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same shape."""
        images = input if input.dim() == 4 else input.unsqueeze(0)
        coverage = self._around(torch.ones_like(images[:1]))
        if self.subtract:
            images = images - self._around(images) / coverage
        if self.divide:
            images = images / F.threshold(
                self._deviation(images) / coverage, self.threshold, self.value
            )
        return images if input.dim() == 4 else images.squeeze(0)

    def _around(self, images: Tensor) -> Tensor:
        kernel = (
            self.kernel
            if self.kernel.dim() == 2
            else torch.outer(self.kernel, self.kernel)
        )
        padding = (kernel.size(0) // 2, kernel.size(1) // 2)
        return F.conv2d(
            images, kernel.expand(1, images.size(1), *kernel.shape), padding=padding
        )

    def _deviation(self, images: Tensor) -> Tensor:
        variance = self._around(images.square())
        zero = variance == 0
        return variance.masked_fill(zero, 1).sqrt().masked_fill(zero, 0)
