"""Layers of imagine-nn."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from t7bridge.layers import Layer


class ConstAffine(Layer):
    """A fixed factor and offset for each plane.

    Args:
        features: number of planes.
    """

    features: int

    def __post_init__(self) -> None:
        self.a = nn.Buffer(torch.ones(self.features))
        self.b = nn.Buffer(torch.zeros(self.features))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, features) or (batch, features, h, w); return the same shape."""
        shape = (-1, 1, 1) if input.dim() > 2 else (-1,)
        return input * self.a.view(shape) + self.b.view(shape)


class MeanSubtraction(Layer):
    """Subtracts a mean image.

    Args:
        shape: of the mean.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self.mean = nn.Buffer(torch.zeros(self.shape))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same shape."""
        return input - self.mean.reshape(input.shape[-3:])


class SpatialStochasticPooling(Layer):
    """In training a random element of each window, with probability proportional to its
    size; else the mean with these weights.

    Args:
        kernel_size: of the windows; they may reach beyond the right and the lower
            border.
        stride: between windows.
    """

    kernel_size: tuple[int, int]
    stride: tuple[int, int]

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w), with no negative elements; return the
        same dimensions.
        """
        height, width = self.kernel_size
        down, right = self.stride
        # How far the last windows reach beyond the image.
        below = -(input.size(-2) - height) % down
        beside = -(input.size(-1) - width) % right
        padded = F.pad(input, (0, beside, 0, below))
        windows = padded.unfold(-2, height, down).unfold(-2, width, right).flatten(-2)
        if not self.training:
            # The smallest number, so that a window of zeros has the mean 0.
            sums = windows.sum(-1) + torch.finfo(torch.float32).tiny
            return windows.square().sum(-1) / sums
        # A number up to the sum of a window is in the share of one element.
        sums = windows.detach().cumsum(-1)
        drawn = torch.rand_like(sums[..., :1]) * sums[..., -1:]
        index = (sums < drawn).sum(-1, keepdim=True)
        return windows.gather(-1, index).squeeze(-1)


class ROIPooling(Layer):
    """The largest elements of the cells of a grid over each box of an image.

    Args:
        output_size: rows and columns of the grid.
        scale: elements of the input for a pixel of the boxes.
        open_end: whether to exclude the last row and column of a box.
        index_base: what the first image, and the first row and column, is called.
    """

    output_size: tuple[int, int]
    scale: float = 1.0
    open_end: bool = True
    index_base: int = 1

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take images (batch, n, h, w) and boxes (boxes, 5): image, x1, y1, x2, y2;
        return (boxes, n, h, w).
        """
        images, boxes = inputs
        numbers = boxes[:, 0].tolist()
        corners = (boxes[:, 1:].float() - self.index_base) * self.scale
        # Halves are rounded away from zero, as in C.
        corners = (corners.abs() + 0.5).floor() * corners.sign()
        count_of_rows, count_of_columns = self.output_size
        pooled = []
        for number, corner in zip(numbers, corners.long().tolist()):
            left, top, right, bottom = corner
            image = images[int(number) - self.index_base]
            rows = self._cells(top, bottom, count_of_rows, image.size(-2))
            columns = self._cells(left, right, count_of_columns, image.size(-1))
            grid = []
            for y, y2 in rows:
                row = [self._largest(image[:, y:y2, x:x2]) for x, x2 in columns]
                grid.append(torch.stack(row, -1))
            pooled.append(torch.stack(grid, -2))
        return torch.stack(pooled)

    def _cells(
        self, first: int, last: int, count: int, extent: int
    ) -> list[tuple[int, int]]:
        """Return the beginnings and ends of the cells along one axis, inside the image.

        Args:
            first: the first row or column of the box.
            last: the last one.
            count: number of cells.
            extent: of the image.
        """
        length = last - first if self.open_end else last - first + 1
        # In single precision, as in Lua's C.
        size = torch.tensor(float(max(length, 1))) / count
        starts = (torch.arange(count) * size).floor().long() + first
        ends = (torch.arange(1, count + 1) * size).ceil().long() + first
        return list(
            zip(starts.clamp(0, extent).tolist(), ends.clamp(0, extent).tolist())
        )

    @staticmethod
    def _largest(cell: Tensor) -> Tensor:
        """Return the largest element of each plane; 0 in a cell outside of the image."""
        if not cell.numel():
            return cell.new_zeros(cell.size(0))
        return cell.flatten(1).max(1).values
