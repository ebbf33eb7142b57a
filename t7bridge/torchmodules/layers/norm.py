"""Normalization."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import Layer, records_gradients, square_root, with_batch, with_gradient


class BatchOfOne(nn.Module):
    """A batch normalization of torch.nn that accepts one example too, in evaluation, as
    a batch of one.

    Attributes:
        dims: dimensions of a batch.
    """

    dims: int

    def forward(self, input: Tensor) -> Tensor:
        """Take a batch of `dims` dimensions, or one example; return the former."""
        batch = input if input.dim() >= self.dims else input[None]
        output: Tensor = super().forward(batch)
        return output


class BatchNorm1d(BatchOfOne, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d that accepts (n) too."""

    dims = 2


class BatchNorm2d(BatchOfOne, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d that accepts (n, h, w) too."""

    dims = 4


class BatchNorm3d(BatchOfOne, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d that accepts (n, t, h, w) too."""

    dims = 5


class LocalResponseNorm(nn.LocalResponseNorm):
    """torch.nn.LocalResponseNorm that accepts a single image too."""

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same shape."""
        return with_batch(super().forward, input, 4)


class Normalize(Layer):
    """Divides each row by its p-norm.

    Args:
        p: of the norm, which may be infinite.
        eps: added to the sum of powers, or to the largest element.
    """

    p: float = 2.0
    eps: float = 1e-10

    def forward(self, input: Tensor) -> Tensor:
        """Take (n) or (batch, n); return the same shape."""
        if self.p == float("inf"):
            largest = self._powers(input, 1.0).max(-1, keepdim=True).values
            return input / (largest + self.eps)
        norms = self._powers(input, self.p).sum(-1, keepdim=True) + self.eps
        return input / norms.pow(1 / self.p)

    def _powers(self, input: Tensor, power: float) -> Tensor:
        """Return powers of absolute values. Of a power below 2 the gradient has `eps`
        in it, as in Lua, which keeps it finite at 0.
        """

        def absolute_power(elements: Tensor) -> Tensor:
            return elements.abs().pow(power)

        def gradient_in_lua(gradient: Tensor, elements: Tensor) -> Tensor:
            slope = (elements.abs() + self.eps).pow(power - 2) * elements
            return gradient * power * slope

        if power % 2 == 0:  # needs no absolute values
            return input.pow(power)
        if power < 2 and records_gradients(input):
            return with_gradient(input, gradient_in_lua, absolute_power)
        return absolute_power(input)


class LayerNormalization(Layer):
    """Normalizes each row; the means of a batch are subtracted in the order of Lua's
    layer.

    Row b, column j loses the mean of row (b * n + j) % batch, in torch.nn.LayerNorm
    that of row b.

    Args:
        features: length of the rows.
        eps: added to the sum of squares.
        affine: whether a learned factor and offset follow.
    """

    features: int
    eps: float = 1e-10
    affine: bool = True

    def __post_init__(self) -> None:
        self.weight = nn.Parameter(torch.ones(self.features)) if self.affine else None
        self.bias = nn.Parameter(torch.zeros(self.features)) if self.affine else None

    def forward(self, input: Tensor) -> Tensor:
        """Take (n) or (batch, n); return the same shape."""
        means = input.mean(-1).reshape(-1)
        # All means again and again: in Lua's order, not one for each row.
        centred = input - means.repeat(self.features).reshape(input.shape)
        length = (centred.square().sum(-1, keepdim=True) + self.eps).sqrt()
        output = centred / length * sqrt(self.features)
        if self.weight is not None and self.bias is not None:
            output = output * self.weight + self.bias
        return output


class LocalNormalization(Layer):
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

    kernel_shape: tuple[int, ...]
    subtract: bool = True
    divide: bool = True
    threshold: float = 0.0001
    value: float = 0.0001

    def __post_init__(self) -> None:
        self.kernel = nn.Buffer(torch.zeros(self.kernel_shape))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same shape."""
        return with_batch(self._normalized, input, 4)

    def _normalized(self, images: Tensor) -> Tensor:
        """Take (batch, n, h, w); return the same shape."""
        # The sum of the weights that are inside the image.
        coverage = self._weighted_sum(torch.ones_like(images[:1]))
        if self.subtract:
            images = images - self._weighted_sum(images) / coverage
        if self.divide:
            # As in Lua, the root of the sum, not of the mean.
            deviation = square_root(self._weighted_sum(images.square())) / coverage
            images = images / F.threshold(deviation, self.threshold, self.value)
        return images

    def _weighted_sum(self, images: Tensor) -> Tensor:
        """Return sums over all planes around each position, (batch, 1, h, w)."""
        kernel: Tensor = self.kernel
        if kernel.dim() == 1:  # the same in both directions
            kernel = torch.outer(kernel, kernel)
        # The extents are odd, as Lua requires.
        padding = (kernel.size(0) // 2, kernel.size(1) // 2)
        kernels = kernel.expand(1, images.size(1), *kernel.shape)
        return F.conv2d(images, kernels, padding=padding)


class SpatialNormalization(nn.Module):
    """Subtracts the weighted mean around each position of an image, over all planes,
    and divides by the deviation there.

    Args:
        kernel_shapes: height and width of the weights around a position: of one
            kernel, or of the row and the column of a separable one, applied in turn.
        threshold: the smallest deviation; `None` for the mean deviation of the image,
            at least 0.001.

    Attributes:
        names: of the buffers with the kernels, in order.
    """

    def __init__(
        self, *kernel_shapes: tuple[int, int], threshold: float | None = None
    ) -> None:
        """Make kernels of zeros, which are loaded; a threshold of `None` is that of
        each image.
        """
        super().__init__()
        self.names = ["kernel", "kernel2"][: len(kernel_shapes)]
        self.threshold = threshold
        for name, shape in zip(self.names, kernel_shapes):
            self.register_buffer(name, torch.zeros(shape))

    def forward(self, input: Tensor) -> Tensor:
        """Take (n, h, w), (h, w) for one plane, or (batch, n, h, w); return (n, h, w)
        or (batch, n, h, w).
        """
        image = input if input.dim() > 2 else input[None]
        return with_batch(self._normalized, image, 4)

    def _normalized(self, batch: Tensor) -> Tensor:
        """Take (batch, n, h, w); return the same shape."""
        # The sum of the weights that are inside the image.
        coverage = self._weighted_sum(torch.ones_like(batch[:1]))
        centred = batch - self._weighted_sum(batch) / coverage
        # As in Lua, the root of the sum, not of the mean.
        deviation = square_root(self._weighted_sum(centred.square())) / coverage
        if self.threshold is None:
            # The mean deviation of each image, 0.001 where it has hardly any.
            least = deviation.detach().mean((1, 2, 3), keepdim=True).clamp(min=1e-3)
        else:
            least = torch.full_like(deviation[:1, :1, :1, :1], self.threshold)
        return centred / torch.where(deviation > least, deviation, least)

    def _weighted_sum(self, batch: Tensor) -> Tensor:
        """Return sums over all planes around each position, (batch, n, h, w): the same
        for each plane.
        """
        planes = batch.size(1)
        for name in self.names:  # of a row and a column one after the other
            kernel = self.get_buffer(name)
            height, width = kernel.shape
            # The middle of an even extent is after its half.
            left_right = (width // 2, (width - 1) // 2)
            top_bottom = (height // 2, (height - 1) // 2)
            padded = F.pad(batch, (*left_right, *top_bottom))
            total = F.conv2d(padded, kernel.expand(1, planes, height, width))
            batch = total.expand(-1, planes, -1, -1)
        return batch


class NoInstanceNorm2d(nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d that was disabled: the identity."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        return input
