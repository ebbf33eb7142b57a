"""Layers of sequences, which are (time, features) or (batch, time, features)."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TemporalConv(nn.Conv1d):
    """torch.nn.Conv1d over sequences with the features last."""

    def forward(self, input: Tensor) -> Tensor:
        """Take (time, in) or (batch, time, in); return (steps, out) or (batch, steps,
        out).
        """
        return super().forward(input.transpose(-1, -2)).transpose(-1, -2)


class TemporalRowConv(nn.Conv1d):
    """A convolution of each feature separately.

    Args:
        features: number of features.
        kernel_size: steps of a kernel.
        stride: steps between outputs.
        bias: whether there is a bias.
        features_first: whether sequences are (features, time).
    """

    def __init__(
        self,
        features: int,
        kernel_size: int,
        stride: int = 1,
        bias: bool = True,
        features_first: bool = False,
    ) -> None:
        super().__init__(
            features, features, kernel_size, stride, groups=features, bias=bias
        )
        self.features_first = features_first

    def forward(self, input: Tensor) -> Tensor:
        """Take a sequence or a batch; return the same dimensions."""
        if self.features_first:
            return super().forward(input)
        return super().forward(input.transpose(-1, -2)).transpose(-1, -2)


class TemporalMaxPool(nn.Module):
    """The largest elements of windows in time.

    Args:
        kernel_size: steps of a window.
        stride: steps between windows.
    """

    def __init__(self, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        """Take (time, n) or (batch, time, n); return the same dimensions."""
        return F.max_pool1d(
            input.transpose(-1, -2), self.kernel_size, self.stride
        ).transpose(-1, -2)


class TemporalDynamicKMaxPool(nn.Module):
    """The largest elements of each feature, in their order in time.

    Args:
        least: minimum number of elements.
        factor: otherwise their number as a fraction of the steps.
    """

    def __init__(self, least: int, factor: float = 0.0) -> None:
        super().__init__()
        self.least = least
        self.factor = factor

    def forward(self, input: Tensor) -> Tensor:
        """Take (time, n) or (batch, time, n); return the same dimensions."""
        k = max(self.least, ceil(self.factor * input.size(-2)))
        index = input.topk(k, -2)[1].sort(-2)[0]
        return input.gather(-2, index)


class TemporalSubSampling(nn.Module):
    """Sums of windows in time, with a learned factor and offset for each feature.

    Args:
        features: number of features.
        kernel_size: steps of a window.
        stride: steps between windows.
    """

    def __init__(self, features: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, input: Tensor) -> Tensor:
        """Take (time, n) or (batch, time, n); return the same dimensions."""
        return (
            input.unfold(-2, self.kernel_size, self.stride).sum(-1) * self.weight
            + self.bias
        )
