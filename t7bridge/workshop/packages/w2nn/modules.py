"""Layers and criterions of waifu2x."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from t7bridge.layers import Layer, with_gradient


class AuxiliaryLossTable(Layer):
    """Returns the whole list of its inputs in training, and one of them otherwise.

    Args:
        index: its index, 0-based.
    """

    index: int = 0

    def forward(self, inputs: list[Tensor]) -> list[Tensor] | Tensor:
        """Return the list, or one tensor."""
        return list(inputs) if self.training else inputs[self.index]


class ScaleTable(nn.Module):
    """Multiplies images by one factor for each plane."""

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take images (batch, n, h, w) and factors (batch, n, 1, 1); return images."""
        images, factors = inputs
        return images * factors.expand_as(images)


class _Shake(torch.autograd.Function):
    """The sum of two tensors with random shares, and other shares of the gradient."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        """Return the sum; a share is one number for each example."""
        ctx.shape = (-1, *[1] * (first.dim() - 1))
        share = torch.rand(first.size(0), dtype=first.dtype, device=first.device)
        share = share.view(ctx.shape)
        return 2 * (first * (1 - share) + second * share)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of both tensors, whose shares are drawn anew."""
        (gradient,) = gradients
        share = torch.rand(
            gradient.size(0), dtype=gradient.dtype, device=gradient.device
        )
        share = share.view(ctx.shape)
        return gradient * share, gradient * (1 - share)


_shake: Callable[..., Tensor] = _Shake.apply


class ShakeShakeTable(nn.Module):
    """The sum of two tensors; in training with random shares for each example, and
    others for the gradients.
    """

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take two tensors of the same shape; return that shape."""
        first, second = inputs
        return _shake(first, second) if self.training else first + second


class GradWeight(Layer):
    """Passes its input through, and the gradient multiplied by a factor.

    Args:
        factor: the factor.
    """

    factor: float

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        return with_gradient(input, lambda gradient, _: gradient * self.factor)


class DepthExpand2x(nn.Module):
    """Rearranges four planes into an image of twice the height and width."""

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return (batch, n / 4, 2 h, 2 w)."""
        batch, planes, height, width = input.shape
        tall = input.transpose(1, 3).reshape(batch, width, height * 2, planes // 2)
        rows_first = tall.transpose(1, 2)
        wide = rows_first.reshape(batch, height * 2, width * 2, planes // 4)
        return wide.permute(0, 3, 1, 2).contiguous()


class FixedConv2d(nn.Conv2d):
    """torch.nn.Conv2d whose kernels are not learned."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, value in list(self._parameters.items()):
            del self._parameters[name]
            self.register_buffer(name, None if value is None else value.detach())


def _with_gradient_of(input: Tensor, value: Tensor) -> Tensor:
    """Return a value whose gradient passes to the input unchanged."""
    return with_gradient(input, lambda gradient, _: gradient, lambda _: value.clone())


class WeightedSquaresCriterion(Layer):
    """The mean of squared differences, each multiplied by a weight before it is
    squared.

    Args:
        weight_shape: of the weights of one example's elements.
    """

    weight_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self.weight = nn.Buffer(torch.ones(self.weight_shape))

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of the same shape, with a batch dimension; return a
        scalar.
        """
        return self.weighted(input, input, target).square().mean()

    def weighted(self, input: Tensor, clipped: Tensor, target: Tensor) -> Tensor:
        """Return the weighted differences, whose gradient is the input's in Lua."""
        weight = self.weight.reshape(input.shape[1:])
        difference = (clipped - target.reshape(input.shape)) * weight
        return _with_gradient_of(input, difference)


class HuberCriterion(WeightedSquaresCriterion):
    """Halves of squared differences below a bound, and absolute ones above; differences
    are weighted first.

    Args:
        weight_shape: of the weights of one example's elements.
        gamma: the bound.
        clip: the bounds between which the input is clipped first.
    """

    gamma: float = 1.0
    clip: tuple[float, float] | None = None

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of the same shape, with a batch dimension; return a
        scalar.
        """
        clipped = input if self.clip is None else input.clamp(*self.clip)
        difference = self.weighted(input, clipped, target)
        return F.huber_loss(difference, torch.zeros_like(difference), delta=self.gamma)


class ClippedMSECriterion(Layer):
    """The mean of squared differences, after the input was clipped between two bounds.

    Args:
        low: the lower bound.
        high: the upper bound.
    """

    low: float = 0.0
    high: float = 1.0

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of the same shape, with a batch dimension; return a
        scalar.
        """
        difference = input.clamp(self.low, self.high) - target.reshape(input.shape)
        # Lua's gradient is half that of the loss by the differences.
        half = _with_gradient_of(input, difference).square().mean() / 2
        return half + half.detach()


class PSNRCriterion(nn.Module):
    """The ratio of the largest signal, 1, to the mean of squared differences, in
    decibels.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of the same shape; return a scalar."""
        error = (input.clamp(0, 1) - target.reshape(input.shape)).square().mean()
        # At least that of a tenth of one of 255 steps: the logarithm of 0 is infinite.
        return -10 * error.clamp(min=(0.1 / 255) ** 2).log10()


class LBPCriterion(Layer):
    """The Huber loss of a fixed network's outputs for two images.

    Args:
        filter1: the network, for the input.
        filter2: for the target.
        planes: of the images.
        gamma: the bound between squares and absolute differences.
    """

    filter1: nn.Module
    filter2: nn.Module
    planes: int
    gamma: float = 0.1

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors (batch, n, h, w), or (batch, n * h * h); return a scalar."""
        first: Tensor = self.filter1(self._image(input).clamp(0, 1))
        second = self.filter2(self._image(target).clamp(0, 1))
        return F.huber_loss(first, second, delta=self.gamma)

    def _image(self, input: Tensor) -> Tensor:
        """Return rows of (n * h * h) elements as images, and images as they are."""
        if input.dim() != 2:
            return input
        side = round((input.size(1) / self.planes) ** 0.5)
        return input.reshape(input.size(0), self.planes, side, side)


class SSIMCriterion(Layer):
    """Structural similarity of two images: 1 for equal ones.

    Args:
        conv: the window around each position, as a convolution.
        c1: added to the means.
        c2: added to the deviations.
    """

    conv: nn.Module
    c1: float = 0.01**2
    c2: float = 0.03**2

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors (batch, n, h, w) of numbers between 0 and 1; return a
        scalar.
        """
        mean1 = self.conv(input)
        mean2 = self.conv(target)
        variance1 = self.conv(input * input) - mean1 * mean1
        variance2 = self.conv(target * target) - mean2 * mean2
        covariance = self.conv(input * target) - mean1 * mean2
        similar = (2 * mean1 * mean2 + self.c1) * (2 * covariance + self.c2)
        means = mean1 * mean1 + mean2 * mean2 + self.c1
        variances = variance1 + variance2 + self.c2
        ratio: Tensor = similar / (means * variances)
        return ratio.mean()
