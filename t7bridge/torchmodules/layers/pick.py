"""Layers that select elements or reduce a dimension."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Select(nn.Module):
    """One slice along a dimension.

    Args:
        dim: the dimension.
        index: the slice; from the end if negative.
    """

    def __init__(self, dim: int, index: int) -> None:
        super().__init__()
        self.dim = dim
        self.index = index

    def forward(self, input: Tensor) -> Tensor:
        """Return one dimension less."""
        return input.select(self.dim, self.index).clone()


class Narrow(nn.Module):
    """A part along a dimension.

    Args:
        start: its first element; if negative, the part is what `length` leaves from the
            start.
        length: its length; if negative, all up to that many from the end, -1 being the
            end itself.
    """

    def __init__(self, dim: int, start: int, length: int) -> None:
        super().__init__()
        self.dim = dim
        self.start = start
        self.length = length

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with `dim` shorter."""
        extent, start, length = input.size(self.dim), self.start, self.length
        if length < 0:
            length += extent - start + 1
        if start < 0:
            start, length = 0, extent - length
        return input.narrow(self.dim, start, length).clone()


class Index(nn.Module):
    """Slices of the first input that the second, a list of numbers, selects.

    Args:
        dim: the dimension of the slices.
        index_base: number of the first slice.
    """

    def __init__(self, dim: int, index_base: int = 1) -> None:
        super().__init__()
        self.dim = dim
        self.index_base = index_base

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take a tensor and numbers (k); return the tensor with `dim` of extent k."""
        return inputs[0].index_select(self.dim, inputs[1].long() - self.index_base)


class MaskedSelect(nn.Module):
    """The elements of the first input where the second is not zero."""

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take two tensors of one shape; return (k)."""
        return inputs[0].masked_select(inputs[1].bool())


class OneHot(nn.Module):
    """A row of zeros with a one at the position of each number.

    Args:
        size: length of the rows.
        index_base: number of the first place.
        dtype: element type of the rows.
    """

    def __init__(self, size: int, index_base: int = 1, dtype: str = "float32") -> None:
        super().__init__()
        self.size = size
        self.index_base = index_base
        self.dtype: torch.dtype = getattr(torch, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Take numbers of any shape; return one dimension more, of extent `size`."""
        index = torch.as_tensor(input).long() - self.index_base
        return nn.functional.one_hot(index, self.size).to(self.dtype)


class Sum(nn.Module):
    """The sum or mean over a dimension.

    Args:
        dim: the dimension, in one example, or from the end if negative.
        n_input_dims: dimensions of one example.
        average: whether to return the mean.
        squeeze: whether to remove the dimension; the last remaining one is kept.
    """

    def __init__(
        self,
        dim: int = 0,
        n_input_dims: int | None = None,
        average: bool = False,
        squeeze: bool = True,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.n_input_dims = n_input_dims
        self.average = average
        self.squeeze = squeeze

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with `dim` summed up."""
        batched = self.n_input_dims is not None and input.dim() == self.n_input_dims + 1
        dim = self.dim + 1 if batched and self.dim >= 0 else self.dim
        output = input.sum(dim, keepdim=True)
        if self.average:
            output = output / input.size(dim)
        return output.squeeze(dim) if self.squeeze and output.dim() > 1 else output


class Max(nn.Module):
    """The largest elements along a dimension.

    Args:
        dim: the dimension, in one example, or from the end if negative.
        n_input_dims: dimensions of one example.
    """

    def __init__(self, dim: int = 0, n_input_dims: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.n_input_dims = n_input_dims

    def forward(self, input: Tensor) -> Tensor:
        """Return the input without `dim`, or (1) for (n)."""
        batched = self.n_input_dims is not None and input.dim() == self.n_input_dims + 1
        dim = self.dim + 1 if batched and self.dim >= 0 else self.dim
        output = input.max(dim, keepdim=True)[0]
        return output.squeeze(dim) if output.dim() > 1 else output


class Min(nn.Module):
    """The smallest elements along a dimension. Arguments as for `Max`.

    Args:
        dim: the dimension, in one example, or from the end if negative.
        n_input_dims: dimensions of one example.
    """

    def __init__(self, dim: int = 0, n_input_dims: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.n_input_dims = n_input_dims

    def forward(self, input: Tensor) -> Tensor:
        """Return the input without `dim`, or (1) for (n)."""
        batched = self.n_input_dims is not None and input.dim() == self.n_input_dims + 1
        dim = self.dim + 1 if batched and self.dim >= 0 else self.dim
        output = input.min(dim, keepdim=True)[0]
        return output.squeeze(dim) if output.dim() > 1 else output


class ArgMax(nn.Module):
    """The indices of the largest elements along a dimension.

    Args:
        dim: the dimension, in one example.
        n_input_dims: dimensions of one example; `None` without a batch.
        index_base: number of the first place.
        dtype: element type of the output.
    """

    def __init__(
        self,
        dim: int = 0,
        n_input_dims: int | None = None,
        index_base: int = 1,
        dtype: str = "int64",
    ) -> None:
        super().__init__()
        self.dim = dim
        self.n_input_dims = n_input_dims
        self.index_base = index_base
        self.dtype: torch.dtype = getattr(torch, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Return the input without `dim`, or (1) for (n)."""
        batched = self.n_input_dims is not None and input.dim() > self.n_input_dims
        index = input.argmax(
            self.dim + 1 if batched else self.dim, keepdim=input.dim() == 1
        )
        return (index + self.index_base).to(self.dtype)


class Reverse(nn.Module):
    """The slices along a dimension in the opposite order.

    Args:
        dim: the dimension.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        return input.flip(self.dim)
