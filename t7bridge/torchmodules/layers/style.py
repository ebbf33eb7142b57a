"""Layers of style transfer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class NoInstanceNorm2d(nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d that was disabled: the identity."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        return input


class AdaptiveInstanceNormalization(nn.Module):
    """Sets the means and deviations of an image's planes to those of another's.

    Args:
        eps: added to the variances of the first.
        disabled: whether to return the first unchanged.
    """

    def __init__(self, eps: float = 1e-5, disabled: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.disabled = disabled

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take content and style, each (batch, n, h, w) or (n, h, w); return (batch, n,
        h, w).
        """
        content, style = inputs
        if self.disabled:
            return content
        images = content if content.dim() == 4 else content[None]
        # Lua's deviations of the style are those of the population.
        deviation, mean = torch.std_mean(
            style.reshape(*images.shape[:2], -1), -1, correction=0
        )
        return (
            F.instance_norm(images, eps=self.eps) * deviation[..., None, None]
            + mean[..., None, None]
        )


class _Smooth(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, strength: float) -> Tensor:
        ctx.save_for_backward(input)
        ctx.strength = strength
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (input,) = ctx.saved_tensors
        corner = input[..., :-1, :-1]
        beside, below = corner - input[..., :-1, 1:], corner - input[..., 1:, :-1]
        penalty = torch.zeros_like(input)
        penalty[..., :-1, :-1] += beside + below
        penalty[..., :-1, 1:] -= beside
        penalty[..., 1:, :-1] -= below
        return gradients[0] + ctx.strength * penalty, None


_smooth: Callable[..., Tensor] = _Smooth.apply


class TotalVariation(nn.Module):
    """Passes its input through, and adds the gradient of a penalty on differences
    between neighbours.

    Args:
        strength: of the penalty.
    """

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, input: Tensor) -> Tensor:
        """Return the input, (batch, n, h, w)."""
        return _smooth(input, self.strength)


class _Dream(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, strength: float, largest: float) -> Tensor:
        ctx.save_for_backward(input)
        ctx.strength = strength
        ctx.largest = largest
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (input,) = ctx.saved_tensors
        return (
            gradients[0] - ctx.strength * input.clamp(-ctx.largest, ctx.largest),
            None,
            None,
        )


_dream: Callable[..., Tensor] = _Dream.apply


class DeepDreamLoss(nn.Module):
    """Passes its input through, and subtracts a fraction of it from the gradient.

    Args:
        strength: the fraction.
        largest: the largest absolute value used.
    """

    def __init__(self, strength: float = 1e-5, largest: float = 100.0) -> None:
        super().__init__()
        self.strength = strength
        self.largest = largest

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        return _dream(input, self.strength, self.largest)


class GramMatrix(nn.Module):
    """The products of all pairs of planes, summed over an image.

    Args:
        normalize: whether to divide them by the number of elements of an image.
    """

    def __init__(self, normalize: bool = True) -> None:
        super().__init__()
        self.normalize = normalize

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return (batch, n, n) or (n, n)."""
        rows = input.flatten(-2)
        products = rows @ rows.mT
        return products / input.shape[-3:].numel() if self.normalize else products


class SpatialCircularPadding(nn.Module):
    """Pads an image with its opposite border.

    Args:
        padding: widths on the left, the right, above and below.
    """

    def __init__(self, padding: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.padding = padding

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return the same dimensions."""
        return F.pad(input, self.padding, mode="circular")


class SpatialSymmetricPadding(nn.Module):
    """Mirrors an image at its borders, including the outermost row or column; negative
    widths crop.

    Args:
        padding: widths on the left, the right, above and below.
    """

    def __init__(self, padding: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.padding = padding

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return the same dimensions."""
        left, right, above, below = self.padding
        image = F.pad(input, [min(0, width) for width in self.padding])
        # Lua passes no gradient back through mirrored elements.
        rows = [image[..., : max(0, above), :].flip(-2).detach(), image]
        if below > 0:
            rows.append(image[..., -below:, :].flip(-2).detach())
        tall = torch.cat(rows, -2)
        columns = [tall[..., : max(0, left)].flip(-1).detach(), tall]
        if right > 0:
            columns.append(tall[..., -right:].flip(-1).detach())
        return torch.cat(columns, -1)


class NoiseFill(nn.Module):
    """Replaces the last planes by noise.

    Args:
        planes: number of planes.
        largest: the largest element of the noise.
    """

    def __init__(self, planes: int, largest: float = 1.0) -> None:
        super().__init__()
        self.planes = planes
        self.largest = largest

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return the same shape."""
        noise = torch.rand_like(input[:, input.size(1) - self.planes :]) * self.largest
        return torch.cat((input[:, : input.size(1) - self.planes], noise), 1)


class LeadingNoise(nn.Module):
    """Replaces the first planes by noise, uniform from 0 to 1; gradients pass through.

    Args:
        planes: number of planes.
    """

    def __init__(self, planes: int) -> None:
        super().__init__()
        self.planes = planes

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return the same shape."""
        first = input[:, : self.planes]
        noise = torch.rand_like(first) + (first - first.detach())
        return torch.cat((noise, input[:, self.planes :]), 1)


class GenNoise(nn.Module):
    """Noise of the height and width of its input.

    Args:
        planes: number of planes.
        deviation: of the noise.
    """

    def __init__(self, planes: int, deviation: float = 1.0) -> None:
        super().__init__()
        self.planes = planes
        self.deviation = deviation

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return (batch, planes, h, w)."""
        shape = (input.size(0), self.planes, *input.shape[2:])
        return (
            torch.randn(shape, dtype=input.dtype, device=input.device) * self.deviation
        )


class TVLossCriterion(nn.Module):
    """The squares of the differences between neighbours, summed."""

    def forward(self, input: Tensor, target: Any = None) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w), and an unused target; return a scalar."""
        return input.diff(dim=-1).square().sum() + input.diff(dim=-2).square().sum()
