"""Layers of fast-neural-style, texture_nets and AdaIN-style."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from t7bridge.layers import Layer, with_gradient


class AdaptiveInstanceNormalization(Layer):
    """Sets the means and deviations of an image's planes to those of another's.

    Args:
        eps: added to the variances of the first.
        disabled: whether to return the first unchanged.
    """

    eps: float = 1e-05
    disabled: bool = False

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take content and style, each (batch, n, h, w) or (n, h, w); return (batch, n,
        h, w).
        """
        content, style = inputs
        if self.disabled:
            return content
        images = content if content.dim() == 4 else content[None]
        planes = style.reshape(*images.shape[:2], -1)
        # Lua's deviations of the style are those of the population.
        deviation, mean = torch.std_mean(planes, -1, correction=0)
        normalized = F.instance_norm(images, eps=self.eps)
        return normalized * deviation[..., None, None] + mean[..., None, None]


class TotalVariation(Layer):
    """Passes its input through, and adds the gradient of a penalty on differences
    between neighbours.

    Args:
        strength: of the penalty.
    """

    strength: float

    def forward(self, input: Tensor) -> Tensor:
        """Return the input, (batch, n, h, w)."""
        return with_gradient(input, self._with_penalty)

    def _with_penalty(self, gradient: Tensor, input: Tensor) -> Tensor:
        """Add the gradient of half the squared differences between each element and
        its right and lower neighbours.

        As in Lua, elements of the last row and column have no differences of their own.
        """
        corner = input[..., :-1, :-1]
        right_difference = corner - input[..., :-1, 1:]
        lower_difference = corner - input[..., 1:, :-1]
        penalty = torch.zeros_like(input)
        penalty[..., :-1, :-1] += right_difference + lower_difference
        penalty[..., :-1, 1:] -= right_difference
        penalty[..., 1:, :-1] -= lower_difference
        return gradient + self.strength * penalty


class DeepDreamLoss(Layer):
    """Passes its input through, and subtracts a fraction of it from the gradient.

    Args:
        strength: the fraction.
        largest: the largest absolute value used.
    """

    strength: float = 1e-05
    largest: float = 100.0

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        return with_gradient(
            input,
            lambda gradient, input: (
                gradient - self.strength * input.clamp(-self.largest, self.largest)
            ),
        )


class GramMatrix(Layer):
    """The products of all pairs of planes, summed over an image.

    Args:
        normalize: whether to divide them by the number of elements of an image.
    """

    normalize: bool = True

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return (batch, n, n) or (n, n)."""
        rows = input.flatten(-2)
        products = rows @ rows.mT
        if self.normalize:
            products = products / input.shape[-3:].numel()
        return products


class SpatialCircularPadding(Layer):
    """Pads an image with its opposite border.

    Args:
        padding: widths on the left, the right, above and below.
    """

    padding: tuple[int, int, int, int]

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return the same dimensions."""
        return F.pad(input, self.padding, mode="circular")


class NoiseFill(Layer):
    """Replaces the last planes by noise.

    Args:
        planes: number of planes.
        largest: the largest element of the noise.
    """

    planes: int
    largest: float = 1.0

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return the same shape."""
        unchanged = input.size(1) - self.planes
        noise = torch.rand_like(input[:, unchanged:]) * self.largest
        return torch.cat((input[:, :unchanged], noise), 1)


class LeadingNoise(Layer):
    """Replaces the first planes by noise, uniform from 0 to 1; gradients pass through.

    Args:
        planes: number of planes.
    """

    planes: int

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return the same shape."""
        first = input[:, : self.planes]
        # What is added is 0; its gradient passes to the input.
        noise = torch.rand_like(first) + (first - first.detach())
        return torch.cat((noise, input[:, self.planes :]), 1)


class GenNoise(Layer):
    """Noise of the height and width of its input.

    Args:
        planes: number of planes.
        deviation: of the noise.
    """

    planes: int
    deviation: float = 1.0

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return (batch, planes, h, w)."""
        shape = (input.size(0), self.planes, *input.shape[2:])
        noise = torch.randn(shape, dtype=input.dtype, device=input.device)
        return noise * self.deviation


class TVLossCriterion(nn.Module):
    """The squares of the differences between neighbours, summed."""

    def forward(self, input: Tensor, target: Any = None) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w), and an unused target; return a scalar."""
        return input.diff(dim=-1).square().sum() + input.diff(dim=-2).square().sum()
