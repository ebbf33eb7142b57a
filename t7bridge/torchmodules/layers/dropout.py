"""Layers that act only in training, or differently in it."""

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
