"""Criterions of an input and a target of the same shape, or of distances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import Layer, rows
from .linear import cosines

# Inputs and targets have equally many elements, in the same order; their shapes may
# differ, as in Lua.


@dataclass(eq=False, kw_only=True)
class Criterion(Layer):
    """The mean or the sum of losses.

    Args:
        average: whether to return the mean, not the sum.
    """

    average: bool = True

    def losses(self, input: Any, target: Any) -> Tensor:
        """Return the losses of an input and a target."""
        raise NotImplementedError

    def forward(self, input: Any, target: Any = None) -> Tensor:
        """Return a scalar."""
        losses = self.losses(input, target)
        return losses.mean() if self.average else losses.sum()


@dataclass(eq=False)
class WeightedCriterion(Criterion):
    """A criterion with a weight for each class.

    Args:
        classes: number of weights; `None` for none.
        average: whether to return the mean, not the sum.
    """

    classes: int | None = None

    def __post_init__(self) -> None:
        self.weight: Tensor | None
        weight = None if self.classes is None else torch.ones(self.classes)
        self.register_buffer("weight", weight)


class MSECriterion(Criterion):
    """Squares of differences. Arguments as for `Criterion`."""

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of equal element count."""
        return (input - target.reshape(input.shape)).square()


class AbsCriterion(Criterion):
    """Absolute differences. Arguments as for `Criterion`."""

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of equal element count."""
        return (input - target.reshape(input.shape)).abs()


class SmoothL1Criterion(Criterion):
    """Halves of squared differences below 1, and absolute ones less a half above.
    Arguments as for `Criterion`.
    """

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of equal element count."""
        return F.smooth_l1_loss(input, target.reshape(input.shape), reduction="none")


@dataclass(eq=False)
class WeightedMSECriterion(Criterion):
    """Squares of differences to the weighted target.

    Args:
        weight_shape: of the weights of one example.
        average: whether to return the mean, not the sum.
    """

    weight_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self.weight: Tensor
        self.register_buffer("weight", torch.ones(self.weight_shape))

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of one shape."""
        weight = self.weight
        if input.dim() - 1 != weight.dim():
            weight = weight.reshape(input.shape)
        return (input - target.reshape(input.shape) * weight).square()


class AutoCropMSECriterion(Criterion):
    """Squared differences from the middle of a target that may be larger. Arguments as
    for `Criterion`.
    """

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take (…, h, w) and (…, H, W)."""
        height, width = input.shape[-2:]
        top, left = (target.size(-2) - height) // 2, (target.size(-1) - width) // 2
        return (input - target[..., top : top + height, left : left + width]).square()


class BCECriterion(WeightedCriterion):
    """Binary cross entropy. Arguments as for `WeightedCriterion`: a class is a
    column.
    """

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take probabilities and targets of equal element count."""
        target = target.reshape(input.shape)
        losses = -(
            (input + 1e-12).log() * target + (1 - input + 1e-12).log() * (1 - target)
        )
        return losses if self.weight is None else losses * self.weight


@dataclass(eq=False)
class MarginCriterion(Criterion):
    """Hinge loss: products of input and target, 1 or -1, below a margin.

    Args:
        margin: the margin.
        average: whether to return the mean, not the sum.
    """

    margin: float = 1.0

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of equal element count."""
        return (self.margin - input * target.reshape(input.shape)).clamp(min=0)


class SoftMarginCriterion(Criterion):
    """Logarithms of 1 + exp(-input * target), for targets 1 or -1. Arguments as for
    `Criterion`.
    """

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of equal element count."""
        return F.softplus(-input * target.reshape(input.shape))


class DistKLDivCriterion(Criterion):
    """The Kullback-Leibler divergence of probabilities from logarithms of
    probabilities. Arguments as for `Criterion`.
    """

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take logarithms and probabilities of one shape."""
        return F.kl_div(input, target, reduction="none")


class HingeEmbeddingCriterion(MarginCriterion):
    """Distances of similar pairs (target 1), and of others (-1) the rest to a margin.
    Arguments as for `MarginCriterion`.
    """

    def losses(self, input: Tensor, target: Any) -> Tensor:
        """Take distances and targets."""
        target = torch.as_tensor(target, device=input.device).reshape(-1)
        target = target.expand(input.numel()).reshape(input.shape)
        alike = torch.where(target == -1, 0, input)
        return alike + torch.where(target == 1, 0, (self.margin - input).clamp(min=0))


@dataclass(eq=False)
class L1HingeEmbeddingCriterion(Layer):
    """The distance of two similar inputs (target 1), or of others (-1) the rest to a
    margin.

    Args:
        margin: the margin.
    """

    margin: float = 1.0

    def forward(self, inputs: list[Tensor], target: Any) -> Tensor:
        """Take two tensors of one shape and a number; return a scalar."""
        distance = (inputs[0] - inputs[1]).abs().sum()
        return (
            (self.margin - distance).clamp(min=0) if float(target) == -1 else distance
        )


@dataclass(eq=False)
class CosineEmbeddingCriterion(Criterion):
    """One minus the cosine of similar pairs (target 1), and of others (-1) the amount
    by which the cosine exceeds a margin.

    Args:
        margin: the margin.
        average: whether to return the mean, not the sum.
    """

    margin: float = 0.0

    def losses(self, input: list[Tensor], target: Any) -> Tensor:
        """Take two of (n) or (batch, n) and targets."""
        cosine = cosines(*rows(input))
        target = torch.as_tensor(target, device=cosine.device).reshape(-1)
        others = torch.where(target == -1, (cosine - self.margin).clamp(min=0), cosine)
        return torch.where(target == 1, 1 - cosine, others)


class MarginRankingCriterion(MarginCriterion):
    """The amount by which the first input fails to exceed the second (target 1), or
    vice versa (-1), by a margin. Arguments as for `MarginCriterion`.
    """

    def forward(self, inputs: list[Tensor], target: Any = None) -> Tensor:
        """Take two tensors of one shape and targets; return a scalar."""
        first, second = inputs[:2]
        target = torch.as_tensor(target, device=first.device, dtype=first.dtype)
        losses: Tensor = (self.margin - target * (first - second)).clamp(min=0)
        return losses.sum() / (losses.size(0) if self.average and losses.dim() else 1)


class DistanceRatioCriterion(Criterion):
    """Prefers a small first distance to a small second one. Arguments as for
    `Criterion`; the mean is that of the examples.
    """

    def forward(self, inputs: list[Tensor], target: Any = None) -> Tensor:
        """Take two tensors of distances; return a scalar."""
        first, second = inputs
        losses: Tensor = first + torch.logaddexp(-first, -second)
        return losses.sum() / (first.size(0) if self.average else 1)


class L1Cost(nn.Module):
    """The sum of absolute values."""

    def forward(self, input: Tensor, target: Any = None) -> Tensor:
        """Take a tensor; return a scalar."""
        return input.abs().sum()


class BinaryLogisticRegression(Criterion):
    """The logistic loss of scores and classes, which are -1 or 1. Arguments as for
    `Criterion`.
    """

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take (batch) or (batch, 1)."""
        return F.softplus(-input.flatten() * target.flatten())


class SpatialBinaryLogisticRegression(Criterion):
    """Half the mean logistic loss of images of scores and of classes, which are -1 or
    1. Arguments as for `Criterion`; without `average`, images are summed.
    """

    def forward(self, input: Tensor, target: Any = None) -> Tensor:
        """Take (batch, 1, h, w) or (1, h, w); return a scalar."""
        loss = F.softplus(-input * target).sum() / (2 * input.size(-1) * input.size(-2))
        return loss / input.size(0) if self.average and input.dim() == 4 else loss


@dataclass(eq=False)
class WeightedSquaresCriterion(Layer):
    """The mean of squared differences, each multiplied by a weight before it is
    squared.

    Args:
        weight_shape: of the weights of one example's elements.
    """

    weight_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self.weight: Tensor
        self.register_buffer("weight", torch.ones(self.weight_shape))

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of the same shape, with a batch dimension; return a
        scalar.
        """
        return self.weighted(input, input, target).square().mean()

    def weighted(self, input: Tensor, clipped: Tensor, target: Tensor) -> Tensor:
        """Return the weighted differences; Lua's gradient is that by these."""
        weight = self.weight.reshape(input.shape[1:])
        difference = (clipped - target.reshape(input.shape)) * weight
        return input + (difference - input).detach()


@dataclass(eq=False)
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


@dataclass(eq=False)
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
        half = (input + (difference - input).detach()).square().mean() / 2
        return half + half.detach()


class PSNRCriterion(nn.Module):
    """The ratio of the largest signal, 1, to the mean of squared differences, in
    decibels.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of the same shape; return a scalar."""
        error = (input.clamp(0, 1) - target.reshape(input.shape)).square().mean()
        return -10 * error.clamp(min=(0.1 / 255) ** 2).log10()


@dataclass(eq=False)
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
        if input.dim() != 2:
            return input
        side = round((input.size(1) / self.planes) ** 0.5)
        return input.reshape(input.size(0), self.planes, side, side)


@dataclass(eq=False)
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
        mean1, mean2 = self.conv(input), self.conv(target)
        variance1 = self.conv(input * input) - mean1 * mean1
        variance2 = self.conv(target * target) - mean2 * mean2
        covariance = self.conv(input * target) - mean1 * mean2
        above = (2 * mean1 * mean2 + self.c1) * (2 * covariance + self.c2)
        below = (mean1 * mean1 + mean2 * mean2 + self.c1) * (
            variance1 + variance2 + self.c2
        )
        ratio: Tensor = above / below
        return ratio.mean()


class TVLossCriterion(nn.Module):
    """The squares of the differences between neighbours, summed."""

    def forward(self, input: Tensor, target: Any = None) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w), and an unused target; return a scalar."""
        return input.diff(dim=-1).square().sum() + input.diff(dim=-2).square().sum()
