"""Functions of PyTorch, as `layers.lua` has them for Lua."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from t7bridge.layers import Layer


class Function(Layer):
    """A function of each element.

    Args:
        name: in PyTorch: `sin`.
    """

    name: str

    def forward(self, input: Tensor) -> Tensor:
        """Keep the shape."""
        output: Tensor = getattr(torch, self.name)(input)
        return output.to(input.dtype)


class Pairwise(Layer):
    """A function of each pair of elements.

    Args:
        name: in PyTorch: `atan2`; `floor_divide` or `trunc_divide` for quotients that are
            rounded down, or to 0.
    """

    name: str

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take two tensors of one shape; return one."""
        if self.name in ("floor_divide", "trunc_divide"):
            # torch.floor_divide has no gradient, and there is no torch.trunc_divide.
            rounding = self.name.removesuffix("_divide")
            return torch.div(*inputs, rounding_mode=rounding)
        output: Tensor = getattr(torch, self.name)(*inputs)
        return output


class CumProd(Layer):
    """The products of the elements up to each one.

    Args:
        dim: the dimension.
    """

    dim: int

    def forward(self, input: Tensor) -> Tensor:
        """Keep the shape."""
        return input.cumprod(self.dim)


class Sort(Layer):
    """The elements of a dimension in order.

    Args:
        dim: the dimension.
        descending: whether the largest comes first.
    """

    dim: int
    descending: bool = False

    def forward(self, input: Tensor) -> list[Tensor]:
        """Return the elements, and their indices as numbers of the same type."""
        values, indices = input.sort(self.dim, self.descending)
        return [values, indices.to(input.dtype)]


class Extremum(Layer):
    """The index of the largest element, or of the smallest.

    Args:
        dim: the dimension, which the output does not have.
        smallest: whether the smallest is wanted.
    """

    dim: int
    smallest: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Return indices as numbers of the same type."""
        index = input.argmin(self.dim) if self.smallest else input.argmax(self.dim)
        return index.to(input.dtype)


def _from_front(index: Tensor, extent: int) -> Tensor:
    """Return indices that all count from 0.

    Args:
        index: the indices, of which negative ones count from the end.
        extent: number of elements of the dimension.
    """
    index = index.long()
    return torch.where(index < 0, index + extent, index)


class Gather(Layer):
    """The elements at indices of a dimension, negative ones from its end.

    Args:
        dim: the dimension.
    """

    dim: int

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take a tensor and indices; return a tensor of the shape of the indices."""
        tensor, index = inputs
        return tensor.gather(self.dim, _from_front(index, tensor.shape[self.dim]))


class Scatter(Layer):
    """A tensor with other elements at indices of a dimension, negative ones from its end.

    Args:
        dim: the dimension.
        adds: whether they are added.
    """

    dim: int
    adds: bool = False

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take a tensor, indices and elements; return a tensor of the first shape."""
        tensor, index, elements = inputs
        index = _from_front(index, tensor.shape[self.dim])
        if self.adds:
            return tensor.scatter_add(self.dim, index, elements)
        return tensor.scatter(self.dim, index, elements)


class Fold(Layer):
    """Sums of overlapping blocks, the opposite of unfolding.

    Args:
        size: height and width of the image.
        kernel: of the blocks.
        stride: between blocks.
        padding: of the image, which is cut off.
        dilation: between the elements of a block.
    """

    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def forward(self, input: Tensor) -> Tensor:
        """Take (n, c * kernel, blocks); return (n, c, height, width)."""
        return F.fold(
            input,
            self.size,
            self.kernel,
            dilation=self.dilation,
            padding=self.padding,
            stride=self.stride,
        )


class GridSample(Layer):
    """An image at the places of a grid.

    Args:
        mode: `bilinear` or `nearest`.
        padding: `zeros` or `border`.
        align: whether -1 and 1 are the centres of the first and last pixels.
    """

    mode: str
    padding: str
    align: bool

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take (n, c, height, width) and (n, h, w, 2); return (n, c, h, w)."""
        image, grid = inputs
        return F.grid_sample(image, grid, self.mode, self.padding, self.align)


class MaxPlaces(Layer):
    """The indices, counted along rows, of the maxima of windows of an image.

    Args:
        kernel_size: of rows and columns.
        stride: of rows and columns.
        padding: of rows and columns.
        dilation: of rows and columns.
        ceil_mode: whether windows may begin in the padding after the image.
    """

    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    ceil_mode: bool

    def forward(self, x: Tensor) -> Tensor:
        """Take (n, channels, h, w)."""
        options = (
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
        )
        _, indices = F.max_pool2d(x, *options, return_indices=True)
        return indices.to(x.dtype)


class Convolution(Layer):
    """A convolution whose kernels are an input.

    Args:
        stride: of rows and columns.
        padding: of rows and columns.
        dilation: of rows and columns.
    """

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take (n, in, h, w) and kernels (out, in / groups, kh, kw)."""
        images, kernels = inputs
        # A kernel sees the planes of its group only.
        groups = images.shape[1] // kernels.shape[1]
        return F.conv2d(
            images,
            kernels,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=groups,
        )
