"""Image layers used from 2010 to 2012."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SpatialNormalization(nn.Module):
    """Subtracts the weighted mean around each position of an image, over all planes,
    and divides by the deviation there.

    Args:
        kernel_shapes: of the weights around a position: one kernel, or two applied one
            after the other.
        threshold: the smallest deviation; `None` for the mean deviation of the image,
            at least 0.001.
    """

    def __init__(
        self, *kernel_shapes: tuple[int, int], threshold: float | None = None
    ) -> None:
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
        batch = image if image.dim() == 4 else image[None]
        coverage = self._around(torch.ones_like(batch[:1]))
        centred = batch - self._around(batch) / coverage
        variance = self._around(centred.square())
        zero = variance == 0
        deviation = variance.masked_fill(zero, 1).sqrt().masked_fill(zero, 0) / coverage
        if self.threshold is None:
            least = deviation.detach().mean((1, 2, 3), keepdim=True).clamp(min=1e-3)
        else:
            least = torch.full_like(deviation[:1, :1, :1, :1], self.threshold)
        output = centred / torch.where(deviation > least, deviation, least)
        return output if image.dim() == 4 else output[0]

    def _around(self, batch: Tensor) -> Tensor:
        planes = batch.size(1)
        for name in self.names:
            kernel = self.get_buffer(name)
            height, width = kernel.shape
            padded = F.pad(
                batch, (width // 2, (width - 1) // 2, height // 2, (height - 1) // 2)
            )
            batch = F.conv2d(padded, kernel.expand(1, planes, height, width)).expand(
                -1, planes, -1, -1
            )
        return batch


class SpatialClassifier(nn.Sequential):
    """Applies a module for rows of features at every position of an image.

    Args:
        module: the module.
        spatial: whether the outputs become an image again, or stay rows.
    """

    def __init__(self, module: nn.Module, spatial: bool = True) -> None:
        super().__init__(module)
        self.spatial = spatial

    def forward(self, input: Tensor) -> Tensor:
        """Take (n, h, w); return (m, h, w), or (h * w, m)."""
        rows: Tensor = self[0](input.flatten(1).t())
        return rows.t().reshape(-1, *input.shape[1:]) if self.spatial else rows
