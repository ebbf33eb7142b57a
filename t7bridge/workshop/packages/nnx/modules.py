"""Layers of nnx."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from t7bridge.layers import Layer, interpolate, with_batch


class SaturatedLU(Layer):
    """Replaces elements below and above two bounds by constants.

    Args:
        low: the lower bound.
        low_value: replacement of elements below it.
        high: the upper bound.
        high_value: replacement of elements above it.
    """

    low: float = -1.0
    low_value: float = -1.0
    high: float = 1.0
    high_value: float = 1.0

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        raised = input.masked_fill(input < self.low, self.low_value)
        return raised.masked_fill(raised > self.high, self.high_value)


class Minus(nn.Module):
    """-x of each element."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        return -input


# The dimension of rows is right before that of columns; there may be any dimensions
# before and after them.


def _rows_first(input: Tensor, rows: int) -> tuple[Tensor, list[int], list[int]]:
    """Return the input as (1, planes, h, w), the dimensions before the rows, and those
    after the columns.
    """
    before = list(input.shape[:rows])
    behind = list(input.shape[rows + 2 :])
    # What is behind the columns becomes one dimension, which is moved before the rows.
    images = input.flatten(rows + 2) if behind else input.unsqueeze(-1)
    images = images.reshape(-1, *images.shape[rows:])
    return images.permute(0, 3, 1, 2).flatten(0, 1)[None], before, behind


def _back(images: Tensor, before: list[int], behind: list[int]) -> Tensor:
    """Return images (1, planes, h, w) with the dimensions before and behind."""
    height, width = images.shape[-2:]
    count = torch.Size(behind).numel()
    columns_last = images.reshape(-1, count, height, width).permute(0, 2, 3, 1)
    return columns_last.reshape(*before, height, width, *behind)


class SpatialUpSampling(Layer):
    """Repeats rows and columns.

    Args:
        scale: repetitions of rows and columns.
        rows: the dimension of the rows, counted from 0; columns follow.
    """

    scale: tuple[int, int]
    rows: int = 1

    def forward(self, input: Tensor) -> Tensor:
        """Return as many dimensions as the input has."""
        for_rows, for_columns = self.scale
        tall = input.repeat_interleave(for_rows, self.rows)
        return tall.repeat_interleave(for_columns, self.rows + 1)


class SpatialDownSampling(Layer):
    """Means of neighbouring elements; remaining rows and columns are dropped.

    Args:
        scale: rows and columns merged into one.
    """

    scale: tuple[int, int]

    def forward(self, input: Tensor) -> Tensor:
        """Take (n, h, w); return the same dimensions."""
        return F.avg_pool2d(input, self.scale)


class SpatialReSampling(Layer):
    """Interpolates between rows and columns, with aligned corners.

    Args:
        size: height and width of the output, if given.
        ratio: size of the output relative to the input, otherwise.
    """

    size: tuple[int | None, int | None] = (None, None)
    ratio: tuple[float, float] = (1.0, 1.0)

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same dimensions."""
        size = []
        for extent, given, ratio in zip(input.shape[-2:], self.size, self.ratio):
            size.append(int(extent * ratio) if given is None else given)
        return with_batch(lambda images: interpolate(images, size), input, 4)


class SpatialReSamplingEx(Layer):
    """Resizes images.

    Args:
        mode: `simple` (repeats or selects elements), `average` (means, if the output is
            smaller) or `bilinear`.
        size: height and width of the output, if given.
        ratio: size of the output relative to the input, otherwise.
        rows: the dimension of the rows, counted from 0; columns follow.
    """

    mode: str = "simple"
    size: tuple[int | None, int | None] = (None, None)
    ratio: tuple[float, float] = (1.0, 1.0)
    rows: int = 1

    def forward(self, input: Tensor) -> Tensor:
        """Return as many dimensions as the input has."""
        images, before, behind = _rows_first(input, self.rows)
        old_height, old_width = images.shape[-2:]
        size = []
        for extent, given, ratio in zip((old_height, old_width), self.size, self.ratio):
            # Rounded, unlike in `SpatialReSampling`.
            size.append(int(extent * ratio + 0.5) if given is None else given)
        height, width = size
        if self.mode == "bilinear":
            images = interpolate(images, (height, width))
        elif height >= old_height:
            # Repeated as often as needed: -(-a // b) is the next whole number.
            tall = images.repeat_interleave(-(-height // old_height), 2)[:, :, :height]
            images = tall.repeat_interleave(-(-width // old_width), 3)[..., :width]
        else:
            down = old_height // height
            right = old_width // width
            if self.mode == "average":
                images = F.avg_pool2d(images, (down, right))[:, :, :height, :width]
            else:
                images = images[:, :, ::down, ::right][:, :, :height, :width]
        return _back(images, before, behind)


class SpatialMaxSampling(Layer):
    """The largest elements of the cells of a grid, for a smaller image; repeated
    elements for a larger one.

    Args:
        size: rows and columns of the grid.
    """

    size: tuple[int, int]

    def forward(self, input: Tensor) -> Tensor:
        """Take (n, h, w); return (n, *size)."""
        count_of_rows, count_of_columns = self.size
        rows = self._cells(input.size(-2), count_of_rows)
        columns = self._cells(input.size(-1), count_of_columns)
        output = []
        for y, y2 in rows:
            row = [input[:, y:y2, x:x2].flatten(1).max(1).values for x, x2 in columns]
            output.append(torch.stack(row, -1))
        return torch.stack(output, -2)

    @staticmethod
    def _cells(extent: int, count: int) -> list[tuple[int, int]]:
        """Return the beginnings and ends of the cells along one axis."""
        # In single precision, as in Lua's C; a cell has at least one element.
        step = torch.tensor(float(extent)) / count
        bounds = (torch.arange(count + 1) * step).long().tolist()
        cells = []
        for cell in range(count):
            start = bounds[cell]
            cells.append((start, max(start + 1, bounds[cell + 1])))
        return cells
