"""Sizes of images: resizing, crops and borders."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor

import torch
from torch import Tensor
from torch.nn import functional as F

from .base import Layer, with_batch


def interpolate(images: Tensor, size: Sequence[int]) -> Tensor:
    """Interpolate between the rows and columns of images (batch, n, h, w), and the
    layers of volumes, with aligned corners.
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
        factor = self.scale_factor or 1  # one of the two is given
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
        factor = self.scale_factor or 1  # one of the two is given
        size = self.size or tuple(extent * factor for extent in input.shape[2:])
        if not self.linear:
            return F.interpolate(input, list(size), mode="nearest")
        return interpolate(input, size)


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
        # How many elements are before those inserted, `index` counting from the end
        # that `pad` means.
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
            return self._glimpse(images, places.flatten().tolist())
        glimpses = [self._glimpse(*pair) for pair in zip(images, places.tolist())]
        return torch.stack(glimpses)

    def _glimpse(self, image: Tensor, place: list[float]) -> Tensor:
        """Return the crops of one image around y and x, joined as planes."""
        crops = [self._crop(image, place, 2**level) for level in range(self.depth)]
        return torch.cat(crops)

    def _crop(self, image: Tensor, place: list[float], factor: int) -> Tensor:
        """Return a crop of `factor` times the size, shrunk to it."""
        height, width = (extent * factor for extent in self.size)
        y, x = place[:2]  # as in Lua, others are ignored
        # So that a crop around a corner is half outside.
        border_y = (height - 1) // 2
        border_x = (width - 1) // 2
        padded = F.pad(image, (border_x, border_x, border_y, border_y))
        top = self._start(padded.size(1) - height, y)
        left = self._start(padded.size(2) - width, x)
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
                return self._random_crop(input)
            return torch.stack([self._random_crop(image) for image in input])
        # As in Lua, one before the middle.
        top = max(ceil((input.size(-2) - self.height) / 2) - 1, 0)
        left = max(ceil((input.size(-1) - self.width) / 2) - 1, 0)
        return input[..., top : top + self.height, left : left + self.width]

    def _random_crop(self, image: Tensor) -> Tensor:
        """Take (n, h, w); return (n, height, width)."""
        factor = 1.0
        if self.scales is not None:
            factor = float(torch.empty(()).uniform_(*self.scales))
        height = min(ceil(factor * self.height), image.size(-2))
        width = min(ceil(factor * self.width), image.size(-1))
        # As in Lua, never at the very end, unless it is the only place.
        top = int(torch.randint(max(image.size(1) - height, 1), ()))
        left = int(torch.randint(max(image.size(2) - width, 1), ()))
        crop = image[:, top : top + height, left : left + width]
        if self.scales is None:
            return crop
        return interpolate(crop[None], self.size)[0]
