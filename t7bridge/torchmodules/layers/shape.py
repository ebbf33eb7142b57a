"""Layers that change the shape of their input."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class View(nn.Module):
    """A shape for one example; the dimensions before it are the batch.

    Args:
        size: the shape; -1 is inferred from the others.
        n_input_dims: dimensions of one example in the input; `None` to use the number
            of elements.
    """

    def __init__(self, *size: int, n_input_dims: int | None = None) -> None:
        super().__init__()
        self.size = size
        self.n_input_dims = n_input_dims

    def forward(self, input: Tensor) -> Tensor:
        """Return (batch, *size), or (*size) if the input is one example."""
        batch_dims = (
            0 if self.n_input_dims is None else max(0, input.dim() - self.n_input_dims)
        )
        batch = prod(input.shape[:batch_dims])
        if -1 not in self.size:
            batch *= prod(input.shape[batch_dims:]) // prod(self.size)
        if batch == 1 and batch_dims == 0:
            return input.reshape(self.size)
        return input.reshape(batch, *self.size)


class Reshape(nn.Module):
    """A shape for one example, or for the elements of each row of a batch.

    Args:
        size: the shape.
        batch_mode: whether the first dimension of the input is the batch; `None` to use
            the number of elements.
    """

    def __init__(self, *size: int, batch_mode: bool | None = None) -> None:
        super().__init__()
        self.size = size
        self.batch_mode = batch_mode

    def forward(self, input: Tensor) -> Tensor:
        """Return (*size) or (batch, *size)."""
        batched = self.batch_mode
        if batched is None:
            batched = input.numel() != prod(self.size) or input.size(0) == 1
        return input.reshape((input.size(0), *self.size) if batched else self.size)


class Collapse(nn.Module):
    """Merges all dimensions but the batch into one.

    Args:
        n_input_dims: dimensions of one example.
    """

    def __init__(self, n_input_dims: int) -> None:
        super().__init__()
        self.n_input_dims = n_input_dims

    def forward(self, input: Tensor) -> Tensor:
        """Return (n) or (batch, n)."""
        return input.flatten(1) if input.dim() > self.n_input_dims else input.flatten()


class Squeeze(nn.Module):
    """Removes dimensions of one element.

    Args:
        dim: the dimension; `None` for all.
        n_input_dims: dimensions of one example; a leading batch dimension is kept.
    """

    def __init__(self, dim: int | None = None, n_input_dims: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.n_input_dims = n_input_dims

    def forward(self, input: Tensor) -> Tensor:
        """Return fewer dimensions, at least one."""
        batched = self.n_input_dims is not None and input.dim() == self.n_input_dims + 1
        if self.dim is not None:
            output = input.squeeze(self.dim + 1 if batched else self.dim)
        else:
            output = input.squeeze()
            if batched and input.size(0) == 1:
                output = output.unsqueeze(0)
        return output if output.dim() else output.reshape(1)


class Unsqueeze(nn.Module):
    """Inserts a dimension of one element.

    Args:
        dim: its position, in one example.
        n_input_dims: dimensions of one example.
    """

    def __init__(self, dim: int, n_input_dims: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.n_input_dims = n_input_dims

    def forward(self, input: Tensor) -> Tensor:
        """Return one dimension more."""
        batch_dims = 0 if self.n_input_dims is None else input.dim() - self.n_input_dims
        if self.dim >= 0 > self.dim + batch_dims:
            raise IndexError(f"{input.dim()} dimensions are too few")
        return input.unsqueeze(self.dim + batch_dims)


class Transpose(nn.Module):
    """Exchanges pairs of dimensions in turn.

    Args:
        pairs: the dimensions.
        n_input_dims: dimensions of one example; leading ones are not counted.
    """

    def __init__(
        self, *pairs: tuple[int, int], n_input_dims: int | None = None
    ) -> None:
        super().__init__()
        self.pairs = pairs
        self.n_input_dims = n_input_dims

    def forward(self, input: Tensor) -> Tensor:
        """Return the same elements in another order."""
        offset = 0 if self.n_input_dims is None else input.dim() - self.n_input_dims
        for first, second in self.pairs:
            if min(first, second) >= 0 > min(first, second) + offset:
                raise IndexError(f"{input.dim()} dimensions are too few")
            input = input.transpose(first + offset, second + offset)
        return input.clone(memory_format=torch.contiguous_format)


class Replicate(nn.Module):
    """Repeats the input along a new dimension.

    Args:
        times: number of repetitions.
        dim: the new dimension, in one example.
        n_input_dims: dimensions of one example.
    """

    def __init__(
        self, times: int, dim: int = 0, n_input_dims: int | None = None
    ) -> None:
        super().__init__()
        self.times = times
        self.dim = dim
        self.n_input_dims = n_input_dims

    def forward(self, input: Tensor) -> Tensor:
        """Return one dimension more, of extent `times`."""
        batched = self.n_input_dims is not None and input.dim() > self.n_input_dims
        dim = self.dim + 1 if batched else self.dim
        return input.unsqueeze(dim).expand(
            *input.shape[:dim], self.times, *input.shape[dim:]
        )


class Padding(nn.Module):
    """Inserts a constant between, before or after the elements of one dimension.

    Args:
        dim: the dimension, in one example.
        pad: number of elements; before `index` if negative, otherwise after what
            `index` leaves from the end otherwise.
        n_input_dims: dimensions of one example.
        value: the constant.
        index: number of elements skipped before it begins.
    """

    def __init__(
        self,
        dim: int,
        pad: int,
        n_input_dims: int | None = None,
        value: float = 0.0,
        index: int = 0,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.pad = pad
        self.n_input_dims = n_input_dims
        self.value = value
        self.index = index

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with `dim` longer by |pad|."""
        batched = self.n_input_dims is not None and input.dim() != self.n_input_dims
        dim = self.dim + 1 if batched else self.dim
        before = input.size(dim) - self.index if self.pad > 0 else self.index
        filled = list(input.shape)
        filled[dim] = abs(self.pad)
        start, end = (
            input.narrow(dim, 0, before),
            input.narrow(dim, before, input.size(dim) - before),
        )
        return torch.cat((start, input.new_full(filled, self.value), end), dim)


class Contiguous(nn.Module):
    """The same elements, contiguous in memory."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input's elements."""
        return input.contiguous()


class Cast(nn.Module):
    """Another element type.

    Args:
        dtype: its name in torch: `float64`.
    """

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype: torch.dtype = getattr(torch, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Return the same numbers in the other type."""
        return input.to(self.dtype)


class ExpandAs(nn.Module):
    """Repeats the first of two tensors to the shape of the second."""

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take two tensors; return the shape of the second."""
        return inputs[0].expand_as(inputs[1])


class Constant(nn.Module):
    """A constant, repeated for each example.

    Args:
        shape: of the constant.
        n_input_dims: dimensions of one example of the input; `None` if the constant is
            never repeated.
    """

    value: Tensor

    def __init__(self, *shape: int, n_input_dims: int | None = None) -> None:
        super().__init__()
        self.n_input_dims = n_input_dims
        self.register_buffer("value", torch.zeros(shape))

    def forward(self, input: Tensor) -> Tensor:
        """Return (*shape), or (batch, *shape)."""
        if self.n_input_dims is not None and input.dim() > self.n_input_dims:
            return self.value.expand(input.size(0), *self.value.shape)
        return self.value.clone()


class Convert(nn.Module):
    """From one order of dimensions to another; each letter names one: b the batch, f
    features, t time, d, h, w.

    Args:
        before: the letters of the input; `b*` for any.
        after: the letters of the output.
        dtype: the element type of the output; `None` for that of the input.
    """

    def __init__(
        self, before: str = "b*", after: str = "b*", dtype: str | None = None
    ) -> None:
        super().__init__()
        self.before = before
        self.after = after
        self.dtype: torch.dtype | None = getattr(torch, dtype) if dtype else None

    def forward(self, input: Tensor) -> Tensor:
        """Return the dimensions in the order of `after`; without a batch if the input
        has none.
        """
        if self.dtype is not None:
            input = input.to(self.dtype)
        if self.before == self.after:
            return input
        batched = input.dim() >= len(self.before)
        if not batched:
            input = input.unsqueeze(self.before.index("b"))
        output = self._convert(input)
        return output if batched else output.squeeze(self.after.index("b"))

    def _convert(self, input: Tensor) -> Tensor:
        if sorted(self.before) == sorted(self.after):
            return input.permute([self.before.index(letter) for letter in self.after])
        first = input.movedim(self.before.index("b"), 0)
        if self.after == "b":
            return first.select(1, 0)
        if self.before == "b":
            return first.unsqueeze(1)
        return first.flatten(1)


class ShaveImage(nn.Module):
    """Crops the same border from all four sides of (…, h, w).

    Args:
        size: the width of the border.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, input: Tensor) -> Tensor:
        """Return (…, h - 2 size, w - 2 size)."""
        return F.pad(input, (-self.size,) * 4)


class SpatialPadding(nn.Module):
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

    def __init__(
        self,
        left: int,
        right: int,
        top: int,
        bottom: int,
        rows: int = 1,
        columns: int = 2,
        value: float = 0.0,
    ) -> None:
        super().__init__()
        self.borders = {rows: (top, bottom), columns: (left, right)}
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        """Return the same dimensions."""
        borders = [
            width
            for dim in reversed(range(input.dim()))
            for width in self.borders.get(dim, (0, 0))
        ]
        return F.pad(input, borders, value=self.value)
