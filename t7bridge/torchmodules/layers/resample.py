"""Sizes of images: resizing, crops and borders."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import Layer, with_batch


def interpolate(images: Tensor, size: Sequence[int]) -> Tensor:
    """Interpolate between the rows and columns of images, and the layers of volumes,
    with aligned corners.
    """
    mode = "bilinear" if len(size) == 2 else "trilinear"
    return F.interpolate(images, list(size), mode=mode, align_corners=True)


class UpsamplingNearest2d(Layer):
    """Repeats rows and columns.

    Args:
        scale_factor: number of repetitions.
    """

    scale_factor: int

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same dimensions."""
        wide = input.repeat_interleave(self.scale_factor, -1)
        return wide.repeat_interleave(self.scale_factor, -2)


class UpsamplingBilinear2d(Layer):
    """Interpolates between rows and columns, with aligned corners.

    Args:
        scale_factor: size of the output relative to the input; or
        size: its height and width.
    """

    scale_factor: int | None = None
    size: tuple[int, int] | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same dimensions."""
        factor = self.scale_factor or 1
        size = self.size or tuple(extent * factor for extent in input.shape[-2:])
        return with_batch(lambda images: interpolate(images, size), input, 4)


class UpSampling(Layer):
    """Repeats or interpolates between the rows and columns of images, and the layers of
    volumes.

    Args:
        scale_factor: size of the output relative to the input; or
        size: its extents.
        linear: whether to interpolate, with aligned corners.
    """

    scale_factor: int | None = None
    size: tuple[int, ...] | None = None
    linear: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (batch, n, t, h, w); return the same dimensions."""
        factor = self.scale_factor or 1
        size = self.size or tuple(extent * factor for extent in input.shape[2:])
        if not self.linear:
            return F.interpolate(input, list(size), mode="nearest")
        return interpolate(input, size)


# The dimension of rows is right before that of columns; there may be any dimensions
# before and after them.


def _rows_first(input: Tensor, rows: int) -> tuple[Tensor, list[int], list[int]]:
    """Return the input as (1, planes, h, w), the dimensions before the rows, and those
    after the columns.
    """
    before = list(input.shape[:rows])
    behind = list(input.shape[rows + 2 :])
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
        tall = input.repeat_interleave(self.scale[0], self.rows)
        return tall.repeat_interleave(self.scale[1], self.rows + 1)


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
        extents = images.shape[-2:]
        size = []
        for extent, given, ratio in zip(extents, self.size, self.ratio):
            # Rounded, unlike in `SpatialReSampling`.
            size.append(int(extent * ratio + 0.5) if given is None else given)
        height, width = size
        if self.mode == "bilinear":
            images = interpolate(images, (height, width))
        elif height >= extents[0]:
            tall = images.repeat_interleave(-(-height // extents[0]), 2)[:, :, :height]
            images = tall.repeat_interleave(-(-width // extents[1]), 3)[..., :width]
        else:
            steps = (extents[0] // height, extents[1] // width)
            if self.mode == "average":
                images = F.avg_pool2d(images, steps)[:, :, :height, :width]
            else:
                images = images[:, :, :: steps[0], :: steps[1]][:, :, :height, :width]
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
        rows = self._cells(input.size(-2), self.size[0])
        columns = self._cells(input.size(-1), self.size[1])
        cells = [
            [input[:, y:y2, x:x2].flatten(1).max(1).values for x, x2 in columns]
            for y, y2 in rows
        ]
        return torch.stack([torch.stack(row, -1) for row in cells], -2)

    @staticmethod
    def _cells(extent: int, count: int) -> list[tuple[int, int]]:
        # In single precision, as in Lua's C; a cell has at least one element.
        step = torch.tensor(float(extent)) / count
        bounds = (torch.arange(count + 1) * step).long().tolist()
        cells = []
        for cell in range(count):
            start = bounds[cell]
            cells.append((start, max(start + 1, bounds[cell + 1])))
        return cells


class Padding(Layer):
    """Inserts a constant between, before or after the elements of one dimension.

    Args:
        dim: the dimension, in one example.
        pad: number of elements inserted: before the first if negative, after the last
            if positive.
        n_input_dims: dimensions of one example.
        value: the constant.
        index: number of elements at that end that stay outside.
    """

    dim: int
    pad: int
    n_input_dims: int | None = None
    value: float = 0.0
    index: int = 0

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with `dim` longer by |pad|."""
        is_batch = self.n_input_dims is not None and input.dim() != self.n_input_dims
        dim = self.dim + 1 if is_batch else self.dim
        before = input.size(dim) - self.index if self.pad > 0 else self.index
        shape = list(input.shape)
        shape[dim] = abs(self.pad)
        inserted = input.new_full(shape, self.value)
        start = input.narrow(dim, 0, before)
        end = input.narrow(dim, before, input.size(dim) - before)
        return torch.cat((start, inserted, end), dim)


class ShaveImage(Layer):
    """Crops the same border from all four sides of (…, h, w).

    Args:
        size: the width of the border.
    """

    size: int

    def forward(self, input: Tensor) -> Tensor:
        """Return (…, h - 2 size, w - 2 size)."""
        return F.pad(input, (-self.size,) * 4)


class SpatialPadding(Layer):
    """Pads two dimensions with a constant, or crops where a border is negative.

    Args:
        left: elements before the first column.
        right: after the last column.
        top: before the first row.
        bottom: after the last row.
        rows: the dimension of the rows.
        columns: the dimension of the columns.
        value: the constant.
    """

    left: int
    right: int
    top: int
    bottom: int
    rows: int = 1
    columns: int = 2
    value: float = 0.0

    def __post_init__(self) -> None:
        self.borders = {
            self.rows: (self.top, self.bottom),
            self.columns: (self.left, self.right),
        }

    def forward(self, input: Tensor) -> Tensor:
        """Return the same number of dimensions."""
        borders: list[int] = []
        # torch pads from the last dimension on.
        for dim in reversed(range(input.dim())):
            borders += self.borders.get(dim, (0, 0))
        return F.pad(input, borders, value=self.value)


class DepthExpand2x(nn.Module):
    """Rearranges four planes into an image of twice the height and width."""

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return (batch, n / 4, 2 h, 2 w)."""
        batch, planes, height, width = input.shape
        tall = input.transpose(1, 3).reshape(batch, width, height * 2, planes // 2)
        rows_first = tall.transpose(1, 2)
        wide = rows_first.reshape(batch, height * 2, width * 2, planes // 4)
        return wide.permute(0, 3, 1, 2).contiguous()


class SpatialCircularPadding(Layer):
    """Pads an image with its opposite border.

    Args:
        padding: widths on the left, the right, above and below.
    """

    padding: tuple[int, int, int, int]

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return the same dimensions."""
        return F.pad(input, self.padding, mode="circular")


class SpatialSymmetricPadding(Layer):
    """Mirrors an image at its borders, including the outermost row or column; negative
    widths crop.

    Args:
        padding: widths on the left, the right, above and below.
    """

    padding: tuple[int, int, int, int]

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


class SpatialGlimpse(Layer):
    """Crops of an image around a point, each twice as large as the one before and
    shrunk to the same size.

    Args:
        size: height and width.
        depth: number of crops.
    """

    size: tuple[int, int]
    depth: int = 3

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take images (batch, n, h, w) and places (batch, 2), y and x from -1 to 1, or
        one of each.

        Returns:
            (batch, depth * n, height, width), or without the batch.
        """
        images, places = inputs[:2]
        if images.dim() == 3:
            return self._one(images, places.flatten().tolist())
        glimpses = [self._one(*pair) for pair in zip(images, places.tolist())]
        return torch.stack(glimpses)

    def _one(self, image: Tensor, place: list[float]) -> Tensor:
        """Return the crops of one image."""
        crops = [self._crop(image, place, 2**level) for level in range(self.depth)]
        return torch.cat(crops)

    def _crop(self, image: Tensor, place: list[float], factor: int) -> Tensor:
        """Return a crop of `factor` times the size, shrunk to it."""
        height = self.size[0] * factor
        width = self.size[1] * factor
        border_y = (height - 1) // 2
        border_x = (width - 1) // 2
        padded = F.pad(image, (border_x, border_x, border_y, border_y))
        top = self._start(padded.size(1) - height, place[0])
        left = self._start(padded.size(2) - width, place[1])
        crop = padded[:, top : top + height, left : left + width]
        return F.avg_pool2d(crop, factor) if factor > 1 else crop

    @staticmethod
    def _start(room: int, place: float) -> int:
        """Return where a crop begins: at 0 for -1, at the end of the room for 1."""
        return floor(min(room, max(0.0, (place + 1) / 2 * room)))


class SpatialUniformCrop(Layer):
    """Crops images in the middle; in training, each at a random place.

    Args:
        height: of the crops.
        width: of the crops.
        scales: the smallest and largest factor of crops that are resized in training;
            `None` where none is.
    """

    height: int
    width: int
    scales: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        self.size = (self.height, self.width)

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return crops."""
        if self.training:
            if input.dim() == 3:
                return self._random(input)
            return torch.stack([self._random(image) for image in input])
        # As in Lua, one before the middle.
        top = max(ceil((input.size(-2) - self.height) / 2) - 1, 0)
        left = max(ceil((input.size(-1) - self.width) / 2) - 1, 0)
        return input[..., top : top + self.height, left : left + self.width]

    def _random(self, image: Tensor) -> Tensor:
        factor = 1.0
        if self.scales is not None:
            factor = float(torch.empty(()).uniform_(*self.scales))
        height = min(ceil(factor * self.height), image.size(-2))
        width = min(ceil(factor * self.width), image.size(-1))
        top = int(torch.randint(max(image.size(1) - height, 1), ()))
        left = int(torch.randint(max(image.size(2) - width, 1), ()))
        crop = image[:, top : top + height, left : left + width]
        if self.scales is None:
            return crop
        return interpolate(crop[None], self.size)[0]
