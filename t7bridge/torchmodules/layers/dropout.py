"""Layers that draw random numbers, or act only in training."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Sets elements to zero at random.

    Args:
        p: probability of zeroing an element.
        scale_training: whether the rest is divided by 1 - p in training; the first
            releases multiplied everything by 1 - p in evaluation instead.
        always: whether to drop elements in evaluation too.
    """

    def __init__(
        self, p: float = 0.5, scale_training: bool = True, always: bool = False
    ) -> None:
        super().__init__()
        self.p = p
        self.scale_training = scale_training
        self.always = always

    def forward(self, input: Tensor) -> Tensor:
        """Return a tensor in the shape of the input."""
        if self.p <= 0:
            return input.clone()
        if not (self.training or self.always):
            return input.clone() if self.scale_training else input * (1 - self.p)
        noise = torch.full_like(input, 1 - self.p).bernoulli()
        return input * (noise / (1 - self.p) if self.scale_training else noise)


class FeatureDropout(nn.Module):
    """Sets whole features to zero at random in training, and multiplies everything by 1
    - p in evaluation.

    Args:
        p: probability of zeroing a feature.
        n_input_dims: dimensions of one example: 3 for images, 4 for volumes.
        always: whether to drop features in evaluation too.
    """

    def __init__(
        self, p: float = 0.5, n_input_dims: int = 3, always: bool = False
    ) -> None:
        super().__init__()
        self.p = p
        self.n_input_dims = n_input_dims
        self.always = always

    def forward(self, input: Tensor) -> Tensor:
        """Take (features, …) or (batch, features, …); return the same shape."""
        if not (self.training or self.always):
            return input * (1 - self.p)
        kept = input.shape[: input.dim() - self.n_input_dims + 1]
        noise = torch.full(
            (*kept, *[1] * (self.n_input_dims - 1)),
            1 - self.p,
            dtype=input.dtype,
            device=input.device,
        )
        return input * noise.bernoulli()


class WhiteNoise(nn.Module):
    """Adds normal noise in training, and its mean in evaluation.

    Args:
        mean: of the noise.
        std: of the noise.
    """

    def __init__(self, mean: float = 0.0, std: float = 0.1) -> None:
        super().__init__()
        self.mean = mean
        self.std = std

    def forward(self, input: Tensor) -> Tensor:
        """Return a tensor in the shape of the input."""
        if self.training:
            return input + (torch.randn_like(input) * self.std + self.mean)
        return input + self.mean


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


class SimpleColorTransform(nn.Module):
    """Adds the same random number to all of a channel, in training.

    Args:
        ranges: the largest absolute number for each channel.
    """

    def __init__(self, *ranges: float) -> None:
        super().__init__()
        self.ranges = ranges

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, channels, h, w) or (channels, h, w); return the same shape."""
        if not self.training:
            return input.clone()
        noise = input.new_empty(*input.shape[:-2], 1, 1).uniform_(-1, 1)
        return input + noise * input.new_tensor(self.ranges)[:, None, None]


class PCAColorTransform(nn.Module):
    """Adds random colours along the principal components of the colours of natural
    images, in training.

    Args:
        channels: number of channels.
        deviation: of the random factors of the components.
    """

    eigenVectors: Tensor
    eigenValues: Tensor

    def __init__(self, channels: int, deviation: float = 0.1) -> None:
        super().__init__()
        self.deviation = deviation
        self.register_buffer("eigenVectors", torch.eye(channels))
        self.register_buffer("eigenValues", torch.ones(channels))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, channels, h, w) or (channels, h, w); return the same shape."""
        if not self.training:
            return input.clone()
        factors = (
            torch.randn(input.shape[:-2]).to(input)
            * self.deviation
            * self.eigenValues.flatten()
        )
        return input + (factors @ self.eigenVectors.T)[..., None, None]


class SpatialRegionDropout(nn.Module):
    """Sets rows at the top or bottom, or columns at the left or right, to zero in
    training.

    Args:
        p: fraction of all rows or columns.
    """

    def __init__(self, p: float = 0.2) -> None:
        super().__init__()
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same shape."""
        output = input.clone()
        if not self.training:
            return output
        dim = -2 if torch.rand(()) < 0.5 else -1
        count = int(input.size(dim) * self.p)
        start = 0 if torch.rand(()) < 0.5 else input.size(dim) - count
        output.narrow(dim, start, count).zero_()
        return output


class TotalDropout(nn.Module):
    """Sets everything or nothing to zero in training.

    Args:
        p: probability of zeroing everything.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        """Return a tensor in the shape of the input."""
        return (
            input * float(torch.rand(()) >= self.p) if self.training else input.clone()
        )
