"""Layers of cuda-convnet2: images are (planes, h, w, batch), and as high as they are
wide.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from t7bridge.layers import Layer, local_convolution

# PyTorch's functions need the batch first; permute(3, 0, 1, 2) moves it there, and
# permute(1, 2, 3, 0) back. What keeps planes apart needs no more than images in the
# last two dimensions: permute(0, 3, 1, 2), and permute(0, 2, 3, 1) back.


def _reach_of_last_window(extent: int, kernel: int, stride: int) -> int:
    """Return how many elements the last window has beyond an image: every element of
    the image is in a window.

    Args:
        extent: of the image, with its padding.
        kernel: of the windows.
        stride: between windows.
    """
    return -(extent - kernel) % stride


class SpatialConvolution(nn.Conv2d):
    """torch.nn.Conv2d whose last windows may reach beyond the right and the lower
    border.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (in, h, h, batch); return (out, h_out, h_out, batch)."""
        before = int(self.padding[0])
        height = input.size(1) + 2 * before  # and the width, as images are squares
        beyond = _reach_of_last_window(height, self.kernel_size[0], self.stride[0])
        behind = before + beyond
        images = F.pad(input.permute(3, 0, 1, 2), (before, behind, before, behind))
        output = F.conv2d(
            images, self.weight, self.bias, self.stride, 0, self.dilation, self.groups
        )
        return output.permute(1, 2, 3, 0)


class SpatialConvolutionLocal(Layer):
    """A convolution with a kernel of its own for each position.

    Args:
        weight_shape: of the weight: (h_out, h_out, out, in, h, h).
        stride: of the places.
        padding: zeros around the input.
    """

    weight_shape: tuple[int, ...]
    stride: int = 1
    padding: int = 0

    def __post_init__(self) -> None:
        self.weight = nn.Parameter(torch.zeros(self.weight_shape))
        self.bias = nn.Parameter(torch.zeros(self.weight_shape[2]))

    def forward(self, input: Tensor) -> Tensor:
        """Take (in, h, h, batch); return (out, h_out, h_out, batch)."""
        before = self.padding
        height = input.size(1) + 2 * before  # and the width, as images are squares
        beyond = _reach_of_last_window(height, self.weight.size(-1), self.stride)
        behind = before + beyond
        images = F.pad(input.permute(3, 0, 1, 2), (before, behind, before, behind))
        output = local_convolution(images, self.weight, self.stride)
        return output.permute(1, 2, 3, 0) + self.bias[:, None, None, None]


class SpatialMaxPooling(Layer):
    """The largest elements of windows, which may reach beyond the right and the lower
    border.

    Args:
        kernel_size: of the windows.
        stride: between windows.
    """

    kernel_size: int
    stride: int

    def forward(self, input: Tensor) -> Tensor:
        """Take (n, h, h, batch); return (n, h_out, h_out, batch)."""
        beyond = _reach_of_last_window(input.size(1), self.kernel_size, self.stride)
        images = F.pad(
            input.permute(0, 3, 1, 2), (0, beyond, 0, beyond), value=float("-inf")
        )
        return F.max_pool2d(images, self.kernel_size, self.stride).permute(0, 2, 3, 1)


class SpatialAvgPooling(Layer):
    """The means of windows, which may reach beyond the right and the lower border.

    Args:
        kernel_size: of the windows.
        stride: between windows.
    """

    kernel_size: int
    stride: int

    def forward(self, input: Tensor) -> Tensor:
        """Take (n, h, h, batch); return (n, h_out, h_out, batch)."""
        images = input.permute(0, 3, 1, 2)
        means = F.avg_pool2d(images, self.kernel_size, self.stride, ceil_mode=True)
        return means.permute(0, 2, 3, 1)


class SpatialCrossMaxPooling(Layer):
    """The largest elements of windows of planes, which may reach beyond the last plane.

    Args:
        kernel_size: planes of a window.
        stride: planes between windows.
    """

    kernel_size: int
    stride: int

    def forward(self, input: Tensor) -> Tensor:
        """Take (n, h, h, batch); return (n_out, h, h, batch)."""
        beyond = _reach_of_last_window(input.size(0), self.kernel_size, self.stride)
        # F.pad takes the last dimension first: the planes are the last pair.
        padded = F.pad(input, (0, 0, 0, 0, 0, 0, 0, beyond), value=float("-inf"))
        return padded.unfold(0, self.kernel_size, self.stride).max(-1).values


class SpatialResponseNormalization(Layer):
    """Divides each element by a power of the sum of squares around it, in its plane or
    across planes.

    Args:
        size: planes of the windows, or their rows and columns.
        alpha: factor of the sum.
        beta: the power.
        k: added to the product.
        across: whether the windows are across planes.
    """

    size: int
    alpha: float
    beta: float = 0.75
    k: float = 1.0
    across: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Take (n, h, h, batch); return the same shape."""
        # A window of an even size reaches further before its element.
        before = self.size // 2
        behind = (self.size - 1) // 2
        squares = input.square()
        if self.across:
            padded = F.pad(squares, (0, 0, 0, 0, 0, 0, before, behind))
            sums = padded.unfold(0, self.size, 1).sum(-1)
        else:
            images = squares.permute(0, 3, 1, 2)
            padded = F.pad(images, (before, behind, before, behind))
            # Divided by 1, so that means are sums.
            sums = F.avg_pool2d(padded, self.size, 1, divisor_override=1)
            sums = sums.permute(0, 2, 3, 1)
        return input * (self.k + self.alpha * sums).pow(-self.beta)
