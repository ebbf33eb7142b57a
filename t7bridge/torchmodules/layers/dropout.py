"""Layers that draw random numbers, or act only in training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .base import Layer


@dataclass(eq=False)
class Dropout(Layer):
    """Sets elements to zero at random.

    Args:
        p: probability of zeroing an element.
        scale_training: whether the rest is divided by 1 - p in training; the first
            releases multiplied everything by 1 - p in evaluation instead.
        always: whether to drop elements in evaluation too.
    """

    p: float = 0.5
    scale_training: bool = True
    always: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Return a tensor in the shape of the input."""
        if self.p <= 0:
            return input.clone()
        if not (self.training or self.always):
            return input.clone() if self.scale_training else input * (1 - self.p)
        noise = torch.full_like(input, 1 - self.p).bernoulli()
        return input * (noise / (1 - self.p) if self.scale_training else noise)


@dataclass(eq=False)
class FeatureDropout(Layer):
    """Sets whole features to zero at random in training, and multiplies everything by 1
    - p in evaluation.

    Args:
        p: probability of zeroing a feature.
        n_input_dims: dimensions of one example: 3 for images, 4 for volumes.
        always: whether to drop features in evaluation too.
    """

    p: float = 0.5
    n_input_dims: int = 3
    always: bool = False

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


@dataclass(eq=False)
class WhiteNoise(Layer):
    """Adds normal noise in training, and its mean in evaluation.

    Args:
        mean: of the noise.
        std: of the noise.
    """

    mean: float = 0.0
    std: float = 0.1

    def forward(self, input: Tensor) -> Tensor:
        """Return a tensor in the shape of the input."""
        if self.training:
            return input + (torch.randn_like(input) * self.std + self.mean)
        return input + self.mean


@dataclass(eq=False)
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
        noise = torch.rand_like(input[:, input.size(1) - self.planes :]) * self.largest
        return torch.cat((input[:, : input.size(1) - self.planes], noise), 1)


@dataclass(eq=False)
class LeadingNoise(Layer):
    """Replaces the first planes by noise, uniform from 0 to 1; gradients pass through.

    Args:
        planes: number of planes.
    """

    planes: int

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return the same shape."""
        first = input[:, : self.planes]
        noise = torch.rand_like(first) + (first - first.detach())
        return torch.cat((noise, input[:, self.planes :]), 1)


@dataclass(eq=False)
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


@dataclass(eq=False)
class PCAColorTransform(Layer):
    """Adds random colours along the principal components of the colours of natural
    images, in training.

    Args:
        channels: number of channels.
        deviation: of the random factors of the components.
    """

    channels: int
    deviation: float = 0.1

    def __post_init__(self) -> None:
        self.eigenVectors: Tensor
        self.eigenValues: Tensor
        self.register_buffer("eigenVectors", torch.eye(self.channels))
        self.register_buffer("eigenValues", torch.ones(self.channels))

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


@dataclass(eq=False)
class SpatialRegionDropout(Layer):
    """Sets rows at the top or bottom, or columns at the left or right, to zero in
    training.

    Args:
        p: fraction of all rows or columns.
    """

    p: float = 0.2

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


@dataclass(eq=False)
class TotalDropout(Layer):
    """Sets everything or nothing to zero in training.

    Args:
        p: probability of zeroing everything.
    """

    p: float = 0.5

    def forward(self, input: Tensor) -> Tensor:
        """Return a tensor in the shape of the input."""
        return (
            input * float(torch.rand(()) >= self.p) if self.training else input.clone()
        )
