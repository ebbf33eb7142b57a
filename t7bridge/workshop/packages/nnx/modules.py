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


def _as_images(input: Tensor, rows: int) -> Tensor:
    """Return a tensor as (1, planes, h, w): its other dimensions become one, planes.

    Args:
        input: the tensor.
        rows: the dimension of the rows, from 0.
    """
    columns = rows + 1
    # Those behind the columns become one dimension, the last of four: (before, h, w,
    # behind); there may be none.
    has_more = input.dim() > columns + 1
    images = input.flatten(columns + 1) if has_more else input.unsqueeze(-1)
    images = images.reshape(-1, *images.shape[rows:])
    return images.permute(0, 3, 1, 2).flatten(0, 1)[None]


def _with_dimensions(images: Tensor, shape: torch.Size, rows: int) -> Tensor:
    """Return images (1, planes, h, w) with other dimensions in place of the planes.

    Args:
        images: the images, made by `_as_images` and perhaps resized.
        shape: that of the tensor before.
        rows: the dimension of the rows there.
    """
    before = shape[:rows]
    behind = shape[rows + 2 :]
    height, width = images.shape[-2:]
    columns_last = images.reshape(-1, behind.numel(), height, width)
    columns_last = columns_last.permute(0, 2, 3, 1)
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
        images = _as_images(input, self.rows)
        size = []
        for extent, given, ratio in zip(images.shape[-2:], self.size, self.ratio):
            # Rounded, unlike in `SpatialReSampling`.
            size.append(int(extent * ratio + 0.5) if given is None else given)
        height, width = size
        if self.mode == "bilinear":
            resized = interpolate(images, (height, width))
        elif height >= images.size(-2):  # whatever the widths
            resized = self._repeated(images, height, width)
        else:
            resized = self._reduced(images, height, width)
        return _with_dimensions(resized, input.shape, self.rows)

    @staticmethod
    def _repeated(images: Tensor, height: int, width: int) -> Tensor:
        """Return larger images, whose rows and columns are repeated."""
        # As often as needed: -(-a // b) is a / b rounded up.
        for_rows = -(-height // images.size(-2))
        for_columns = -(-width // images.size(-1))
        tall = images.repeat_interleave(for_rows, 2)[:, :, :height]
        return tall.repeat_interleave(for_columns, 3)[..., :width]

    def _reduced(self, images: Tensor, height: int, width: int) -> Tensor:
        """Return smaller images, of one element or the mean of each window."""
        down = images.size(-2) // height
        right = images.size(-1) // width
        # What is left over at the right and the lower border is dropped.
        if self.mode == "average":
            return F.avg_pool2d(images, (down, right))[:, :, :height, :width]
        return images[:, :, ::down, ::right][:, :, :height, :width]


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
