"""Resizing of images and volumes, single or in a batch."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class UpsamplingNearest2d(nn.Module):
    """Repeats rows and columns.

    Args:
        scale_factor: number of repetitions.
    """

    def __init__(self, scale_factor: int) -> None:
        super().__init__()
        self.scale_factor = scale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same dimensions."""
        return input.repeat_interleave(self.scale_factor, -1).repeat_interleave(
            self.scale_factor, -2
        )


class UpsamplingBilinear2d(nn.Module):
    """Interpolates between rows and columns, with aligned corners.

    Args:
        scale_factor: size of the output relative to the input; or
        size: its height and width.
    """

    def __init__(
        self, scale_factor: int | None = None, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.scale_factor = scale_factor
        self.size = size

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same dimensions."""
        images = input if input.dim() == 4 else input.unsqueeze(0)
        size = self.size or tuple(
            extent * (self.scale_factor or 1) for extent in input.shape[-2:]
        )
        output = F.interpolate(images, list(size), mode="bilinear", align_corners=True)
        return output if input.dim() == 4 else output.squeeze(0)


class UpSampling(nn.Module):
    """Repeats or interpolates between the rows and columns of images, and the layers of
    volumes.

    Args:
        scale_factor: size of the output relative to the input; or
        size: its extents.
        linear: whether to interpolate, with aligned corners.
    """

    def __init__(
        self,
        scale_factor: int | None = None,
        size: tuple[int, ...] | None = None,
        linear: bool = False,
    ) -> None:
        super().__init__()
        self.scale_factor = scale_factor
        self.size = size
        self.linear = linear

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (batch, n, t, h, w); return the same dimensions."""
        extents = input.shape[2:]
        size = list(
            self.size or (extent * (self.scale_factor or 1) for extent in extents)
        )
        if not self.linear:
            return F.interpolate(input, size, mode="nearest")
        return F.interpolate(
            input,
            size,
            mode="bilinear" if len(extents) == 2 else "trilinear",
            align_corners=True,
        )
