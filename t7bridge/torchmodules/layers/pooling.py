"""Pooling that PyTorch lacks, or computes differently."""

from __future__ import annotations

from math import ceil, floor, frexp, ldexp, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import Layer, with_batch


class SumPool(nn.Module):
    """The means of windows, times the size of a window: sums, except at a border that a
    window reaches beyond.

    Attributes:
        dims: dimensions of a window.
        kernel_size: its extents, or one for all.
    """

    dims: int
    kernel_size: Any

    def forward(self, input: Tensor) -> Tensor:
        """Take images or volumes, with or without a batch; return the same
        dimensions.
        """
        size = self.kernel_size
        elements: int = size**self.dims if isinstance(size, int) else prod(size)
        means: Tensor = super().forward(input)
        return means * elements


class SumPool2d(SumPool, nn.AvgPool2d):
    """Sums of windows of images. Arguments as for torch.nn.AvgPool2d."""

    dims = 2


class SumPool3d(SumPool, nn.AvgPool3d):
    """Sums of windows of volumes. Arguments as for torch.nn.AvgPool3d."""

    dims = 3


class CeiledPool(Layer):
    """Pooling in Lua's ceil mode without padding, where the last windows begin behind
    the input: empty averages are 0 / 0, empty maxima the lowest number.

    Args:
        kernel_size: extents of the windows, two or three.
        stride: from window to window, larger than the kernel in some dimension.
        dilation: from element to element of a window.
        average: whether to return the mean, not the largest element.
        divide: whether means are not multiplied by the size of a window.
    """

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...] | None = None
    average: bool = False
    divide: bool = True

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, …) or (n, …) with as many extents as windows have; return the
        same dimensions.
        """
        dims = len(self.kernel_size)
        dilation = self.dilation or (1,) * dims
        output = self._pooled(input, dilation)
        count, is_behind = self._elements_of_windows(input, dilation)
        if self.average:
            empty = torch.zeros_like(count) / count  # NaN, or 0 of negative counts
        else:
            empty = torch.full_like(count, torch.finfo(input.dtype).min)
        # Places for the windows that PyTorch leaves out.
        borders: list[int] = []
        for dim in range(-1, -dims - 1, -1):  # torch pads from the last dimension on
            borders += [0, count.size(dim) - output.size(dim)]
        output = torch.where(is_behind, empty, F.pad(output, borders))
        return output if self.divide else output * prod(self.kernel_size)

    def _pooled(self, input: Tensor, dilation: tuple[int, ...]) -> Tensor:
        """Return PyTorch's pooling, without the windows that begin behind the input."""
        is_image = len(self.kernel_size) == 2
        if self.average:  # Lua's has no dilation
            average = F.avg_pool2d if is_image else F.avg_pool3d
            return average(input, self.kernel_size, self.stride, ceil_mode=True)
        largest = F.max_pool2d if is_image else F.max_pool3d
        maxima: Tensor = largest(
            input,
            self.kernel_size,
            self.stride,
            padding=0,
            dilation=dilation,
            ceil_mode=True,
        )
        return maxima

    def _elements_of_windows(
        self, input: Tensor, dilation: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """Return, for each window, the number of elements that Lua divides by, and
        whether the window begins behind the input.

        The number is the product of what the window spans of each dimension of the
        input: 0 or negative if it begins behind the input there.

        Returns:
            Two tensors with a dimension for each dimension of a window.
        """
        dims = len(self.kernel_size)
        count = input.new_ones(())
        is_behind = torch.zeros_like(count, dtype=torch.bool)
        for dim, kernel, stride, step in zip(
            range(-dims, 0), self.kernel_size, self.stride, dilation
        ):
            size = input.size(dim)
            span = step * (kernel - 1) + 1
            last = -((span - size) // stride)  # (size - span) / stride, rounded up
            starts = torch.arange(last + 1).to(input) * stride
            ends = (starts + span).clamp(max=size)
            # The windows along this dimension become the last dimension.
            count = count.unsqueeze(-1) * (ends - starts)
            is_behind = is_behind.unsqueeze(-1) | (starts >= size)
        return count, is_behind


class DilatedMaxPool(nn.Module):
    """A dilated pooling of a padded input, in which a window may hold padding alone:
    its output is the lowest number, which has no gradient.

    Attributes:
        dims: dimensions of a window.
        cuts_first: whether windows that begin before the input lose elements at their
            end, as in Lua's pooling of volumes.
    """

    dims: int
    cuts_first: bool
    kernel_size: Any
    stride: Any
    padding: Any
    dilation: Any
    ceil_mode: bool

    def forward(self, input: Tensor) -> Tensor:
        """Take images or volumes, with or without a batch; return the same
        dimensions.
        """
        options = (self.kernel_size, self.stride, self.padding, self.dilation)
        axes = list(zip(input.shape[-self.dims :], *options))
        windows = self._windows(input, axes)
        if self.cuts_first:
            windows = self._without_cut_elements(windows, axes)
        largest = windows.flatten(-self.dims).max(-1).values
        lowest = torch.finfo(input.dtype).min
        return largest.masked_fill(largest == float("-inf"), lowest)

    def _windows(self, input: Tensor, axes: list[Any]) -> Tensor:
        """Return the elements of all windows, minus infinity in the padding.

        Args:
            input: the input.
            axes: for each dimension extent, kernel, stride, padding and dilation.

        Returns:
            (…, windows of each dimension, elements of each dimension).
        """
        windows = F.pad(input, self._borders(axes), value=float("-inf"))
        for axis, (_, kernel, stride, _, step) in enumerate(axes):
            dim = input.dim() - self.dims + axis
            span = step * (kernel - 1) + 1
            # The elements of the windows become a dimension more, at the end.
            windows = windows.unfold(dim, span, stride)[..., ::step]
        return windows

    def _borders(self, axes: list[Any]) -> list[int]:
        """Return the padding up to the end of the last windows, in the order of torch,
        from the last dimension on. Arguments as for `_windows`.
        """
        borders: list[int] = []
        for size, kernel, stride, padding, step in axes:
            span = step * (kernel - 1) + 1
            count = self._count_windows(size, span, stride, padding)
            # From the input's end; negative if the last window ends before it.
            behind = (count - 1) * stride + span - size - padding
            borders = [padding, behind, *borders]
        return borders

    def _without_cut_elements(self, windows: Tensor, axes: list[Any]) -> Tensor:
        """Return windows with minus infinity for the elements that Lua leaves out, see
        `_elements_to_cut`.

        Args:
            windows: (…, windows of each dimension, elements of each dimension).
            axes: for each dimension extent, kernel, stride, padding and dilation.
        """
        for axis, (_, kernel, stride, padding, step) in enumerate(axes):
            # Of this axis, from the end: the windows, and the elements of a window.
            windows_dim = axis - 2 * self.dims
            elements_dim = axis - self.dims
            count = windows.size(windows_dim)
            is_cut = self._elements_to_cut(count, kernel, stride, padding, step)
            shape = [1] * windows.dim()
            shape[windows_dim], shape[elements_dim] = is_cut.shape
            is_cut = is_cut.reshape(shape).to(windows.device)
            windows = windows.masked_fill(is_cut, float("-inf"))
        return windows

    def _count_windows(self, size: int, span: int, stride: int, padding: int) -> int:
        """Return the number of windows along a dimension.

        Args:
            size: extent of the input.
            span: extent of a window, with what dilation leaves out.
            stride: from window to window.
            padding: on each side.
        """
        room = size + 2 * padding - span
        if not self.ceil_mode:
            return room // stride + 1
        count = -(-room // stride) + 1  # rounded up
        # The last window must begin before the padding behind the input.
        if (count - 1) * stride >= size + padding:
            count -= 1
        return count

    @staticmethod
    def _elements_to_cut(
        count: int, kernel: int, stride: int, padding: int, step: int
    ) -> Tensor:
        """Return which elements of which windows Lua leaves out, (count, kernel).

        Of a window that begins n positions before the input, dilated or not, Lua takes
        kernel - n elements, from its first one inside the input on.

        Args:
            count: number of windows.
            kernel: elements of a window.
            stride: positions from window to window.
            padding: positions before the input.
            step: positions from element to element, the dilation.
        """
        before = (padding - torch.arange(count) * stride).clamp(min=0)
        first_inside = (before + step - 1) // step  # rounded up
        end = first_inside + kernel - before
        return torch.arange(kernel) >= end.unsqueeze(1)


class DilatedMaxPool2d(DilatedMaxPool, nn.MaxPool2d):
    """torch.nn.MaxPool2d in which a window may hold padding alone."""

    dims = 2
    cuts_first = False


class DilatedMaxPool3d(DilatedMaxPool, nn.MaxPool3d):
    """torch.nn.MaxPool3d in which a window may hold padding alone."""

    dims = 3
    cuts_first = True


def single(number: float) -> float:
    """Return a number of double precision rounded to single precision."""
    mantissa, exponent = frexp(number)
    # 24 bits; `round` takes the even of two equally near numbers, as processors do.
    return ldexp(round(mantissa * 2**24), exponent - 24)


def exact_windows(size: int, count: int) -> list[tuple[int, int]]:
    """Return the windows of PyTorch's adaptive pooling along one dimension.

    Args:
        size: extent of the input.
        count: number of windows.

    Returns:
        Of each window, the first element, and the one behind the last.
    """
    return [
        (place * size // count, -(-(place + 1) * size // count))
        for place in range(count)
    ]


def windows_in_single(size: int, count: int) -> list[tuple[int, int]]:
    """Return the windows of Lua's adaptive max pooling, whose edges are computed in
    single precision: of 21 elements to 7, some have 4. Like `exact_windows` otherwise.
    """
    # A quotient or product that is rounded to double and then to single precision is
    # the same as if it were rounded once.
    edges = [single(single(place / count) * size) for place in range(count + 1)]
    return [(floor(edges[place]), ceil(edges[place + 1])) for place in range(count)]


class AdaptiveMaxPool2d(nn.AdaptiveMaxPool2d):
    """torch.nn.AdaptiveMaxPool2d with the windows of Lua's, of which some have an
    element more: see `windows_in_single`.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same dimensions."""
        counts: Any = self.output_size
        height, width = input.shape[-2:]
        rows = windows_in_single(height, counts[0])
        columns = windows_in_single(width, counts[1])
        exact_rows = exact_windows(height, counts[0])
        exact_columns = exact_windows(width, counts[1])
        if rows == exact_rows and columns == exact_columns:
            pooled: Tensor = super().forward(input)
            return pooled
        # Columns first: of equal elements, the first one of the first row gets the
        # gradient, as in Lua.
        return self._largest(self._largest(input, -1, columns), -2, rows)

    @staticmethod
    def _largest(input: Tensor, dim: int, windows: list[tuple[int, int]]) -> Tensor:
        """Return the largest element of each window along one dimension."""
        parts = []
        for start, end in windows:
            window = input.narrow(dim, start, end - start)
            parts.append(window.max(dim, keepdim=True).values)
        return torch.cat(parts, dim)


class IndexedMaxPool(nn.Module):
    """A pooling that stores the indices of the largest elements, for `MaxUnpool`.

    Attributes:
        pool: the function of torch.nn.functional.
        indices: those of the last call.
        input_shape: likewise.
    """

    pool: Any
    kernel_size: Any
    stride: Any
    padding: Any
    dilation: Any
    ceil_mode: bool

    def forward(self, input: Tensor) -> Tensor:
        """Take images or volumes, with or without a batch; return the same
        dimensions.
        """
        self.input_shape = input.shape  # for `MaxUnpool`, as the indices
        options = (self.stride, self.padding, self.dilation, self.ceil_mode)
        output, self.indices = self.pool(
            input, self.kernel_size, *options, return_indices=True
        )
        pooled: Tensor = output
        return pooled


class IndexedMaxPool2d(IndexedMaxPool, nn.MaxPool2d):
    """torch.nn.MaxPool2d that stores indices."""

    pool = staticmethod(F.max_pool2d)


class IndexedMaxPool3d(IndexedMaxPool, nn.MaxPool3d):
    """torch.nn.MaxPool3d that stores indices."""

    pool = staticmethod(F.max_pool3d)


class MaxUnpool(nn.Module):
    """Puts elements back to the indices stored by a pooling layer, among zeros.

    Args:
        dims: dimensions of its windows.
        pooling: that layer, which must have run before.
    """

    def __init__(self, *, dims: int, pooling: nn.Module | None = None) -> None:
        super().__init__()
        self.dims = dims
        self.refer(pooling)

    def refer(self, pooling: nn.Module | None) -> None:
        """Set the pooling that it inverts."""
        self._pooling = (pooling,)  # not a child: it is elsewhere in the model

    def forward(self, input: Tensor) -> Tensor:
        """Take values in the shape of the pooling's last output; return them in that of
        its last input, each where the pooling found the largest element.
        """
        pooling: Any
        (pooling,) = self._pooling
        # An `IndexedMaxPool`, which has run before.
        extents = pooling.input_shape[-self.dims :]
        flat = input.flatten(-self.dims)
        empty = flat.new_zeros(*flat.shape[:-1], prod(extents))
        filled = empty.scatter(-1, pooling.indices.flatten(-self.dims), flat)
        return filled.reshape(*flat.shape[:-1], *extents)


class FractionalMaxPool(Layer):
    """The largest elements of windows at random distances.

    Args:
        kernel_size: of the windows.
        output_size: number of windows; or
        output_ratio: their number as a fraction of the input's extents.
        samples: the random numbers (batch, planes, dimensions) of the last run, in
            nested tuples.
        keep: whether to reuse them as long as the batch size is unchanged.
    """

    kernel_size: tuple[int, ...]
    output_size: tuple[int, ...] | None = None
    output_ratio: tuple[float, ...] | None = None
    samples: Any = None
    keep: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, …) or (n, …); return the same dimensions."""
        return with_batch(self._pooled, input, len(self.kernel_size) + 2)

    def _pooled(self, input: Tensor) -> Tensor:
        """Take (batch, n, …); return the same dimensions."""
        dims = len(self.kernel_size)
        size = self.output_size
        if size is None:
            ratios = zip(input.shape[-dims:], self.output_ratio or ())
            size = tuple(floor(extent * ratio) for extent, ratio in ratios)
        samples = self._samples_for(input)
        # Drawn once, as long as the batch size is unchanged.
        self.samples = samples if self.keep else None
        pool = F.fractional_max_pool2d if dims == 2 else F.fractional_max_pool3d
        output = pool(
            input, list(self.kernel_size), list(size), _random_samples=samples
        )
        assert isinstance(output, Tensor)
        return output

    def _samples_for(self, input: Tensor) -> Tensor:
        """Return the random numbers for a batch: those kept, if they fit, or others."""
        shape = (*input.shape[:2], len(self.kernel_size))
        if self.keep and self.samples is not None:
            samples = torch.as_tensor(self.samples, dtype=input.dtype)
            if samples.shape == shape:
                return samples.to(input)
        return torch.rand(shape, dtype=input.dtype).to(input)


class FeatureLPPool(Layer):
    """The p-norms of windows of features.

    Args:
        width: features of a window.
        stride: features between windows.
        power: p.
        batched: whether the first dimension of the input is the batch.
    """

    width: int
    stride: int
    power: float
    batched: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Take (n, …) or (batch, n, …); return the same dimensions."""
        windows = input.unfold(int(self.batched), self.width, self.stride)
        total = windows.pow(self.power).sum(-1)
        zero = total == 0
        return total.masked_fill(zero, 1).pow(1 / self.power).masked_fill(zero, 0)
