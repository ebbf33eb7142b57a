"""Layers that change the shape of their input, select elements, or reduce a
dimension.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from .base import Layer, dim_of


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
        batch_dims = 0
        if self.n_input_dims is not None:
            batch_dims = max(0, input.dim() - self.n_input_dims)
        batch = prod(input.shape[:batch_dims])
        if -1 not in self.size:
            # What is more than one example is a batch.
            batch *= prod(input.shape[batch_dims:]) // prod(self.size)
        # As in Lua, a batch of one is taken for one example, unless the dimensions say
        # that it is a batch.
        if batch_dims == 0 and batch == 1:
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
            size = prod(self.size)
            # As in Lua, an input that begins with 1 is a batch, and so is one of
            # another size. The first condition implies one of the others: where it
            # holds, an export leaves the size of the batch open.
            batched = (
                prod(input.shape[1:]) == size
                or input.numel() != size
                or input.size(0) == 1
            )
        if batched:
            return input.reshape(input.size(0), *self.size)
        return input.reshape(self.size)


class Collapse(Layer):
    """Merges all dimensions but the batch into one.

    Args:
        n_input_dims: dimensions of one example.
    """

    n_input_dims: int

    def forward(self, input: Tensor) -> Tensor:
        """Return (n) or (batch, n)."""
        return input.flatten(1) if input.dim() > self.n_input_dims else input.flatten()


class Squeeze(Layer):
    """Removes dimensions of one element.

    Args:
        dim: the dimension; `None` for all.
        n_input_dims: dimensions of one example; a leading batch dimension is kept.
    """

    dim: int | None = None
    n_input_dims: int | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Return fewer dimensions, at least one."""
        batched = self.n_input_dims is not None and input.dim() == self.n_input_dims + 1
        if self.dim is not None:
            output = input.squeeze(self.dim + 1 if batched else self.dim)
        else:
            output = input.squeeze()
            if batched and input.size(0) == 1:
                output = output.unsqueeze(0)
        # Lua has no tensors without dimensions.
        return output if output.dim() else output.reshape(1)


class Unsqueeze(Layer):
    """Inserts a dimension of one element.

    Args:
        dim: its position, in one example.
        n_input_dims: dimensions of one example.
    """

    dim: int
    n_input_dims: int | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Return one dimension more."""
        batch_dims = 0 if self.n_input_dims is None else input.dim() - self.n_input_dims
        dim = self.dim + batch_dims
        # Lua's positions are not negative: one before the first dimension would be
        # counted from the end. A negative `dim` of a user's own is.
        if self.dim >= 0 and dim < 0:
            raise IndexError(f"{input.dim()} dimensions are too few")
        return input.unsqueeze(dim)


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
            # -1 is the dimension before those of an example. PyTorch would count from
            # the end what is still negative with the offset.
            if self.n_input_dims is not None and min(first, second) + offset < 0:
                raise IndexError(f"{input.dim()} dimensions are too few")
            input = input.transpose(first + offset, second + offset)
        return input.clone(memory_format=torch.contiguous_format)


class Replicate(Layer):
    """Repeats the input along a new dimension.

    Args:
        times: number of repetitions.
        dim: the new dimension, in one example.
        n_input_dims: dimensions of one example.
    """

    times: int
    dim: int = 0
    n_input_dims: int | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Return one dimension more, of extent `times`."""
        batched = self.n_input_dims is not None and input.dim() > self.n_input_dims
        dim = self.dim + 1 if batched else self.dim
        shape = (*input.shape[:dim], self.times, *input.shape[dim:])
        return input.unsqueeze(dim).expand(shape)


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

    def __init__(self, *shape: int, n_input_dims: int | None = None) -> None:
        super().__init__()
        self.n_input_dims = n_input_dims
        self.value = nn.Buffer(torch.zeros(shape))

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
        """Return the dimensions of a batch in the order of `after`.

        With other letters than `before`, this is `b`; `bt`, if `before` is `b`; or
        `bf`, where the features are all other dimensions together.

        Raises:
            ValueError: `after` is `b`, and there are several features.
        """
        if sorted(self.before) == sorted(self.after):
            return self._reordered(input)
        batch = self.before.index("b")
        if self.after == "b":  # the first step, or the only feature
            batch_first = input.movedim(batch, 0)
            if "f" in self.before and batch_first.size(1) > 1:
                raise ValueError(f"{self.before} to b takes one feature")
            return batch_first.select(1, 0)
        if self.before == "b":  # to one step or feature
            return input.unsqueeze(1)
        # Lua swaps the batch with the first dimension; the others stay where they are.
        return input.transpose(0, batch).flatten(1)

    def _reordered(self, input: Tensor) -> Tensor:
        """Swap dimensions as Lua does, which finds the first of equal letters."""
        letters = list(self.before)
        for dim, letter in enumerate(self.after):
            other = letters.index(letter)
            letters[dim], letters[other] = letters[other], letters[dim]
            input = input.transpose(dim, other)
        return input


class Select(Layer):
    """One slice along a dimension.

    Args:
        dim: the dimension.
        index: the slice; from the end if negative.
    """

    dim: int
    index: int

    def forward(self, input: Tensor) -> Tensor:
        """Return one dimension less."""
        return input.select(self.dim, self.index).clone()


class Narrow(Layer):
    """A part along a dimension.

    Args:
        dim: the dimension.
        start: its first element; if negative, the part is what `length` leaves from the
            start.
        length: its length; if negative, all up to that many from the end, -1 being the
            end itself. If both are negative, as in Lua, the first `start` - `length` -
            2 elements.
    """

    dim: int
    start: int
    length: int

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with `dim` shorter."""
        extent = input.size(self.dim)
        # Lua's own number, by which it finds the length: from 1, or negative.
        index = self.start + 1 if self.start >= 0 else self.start
        length = self.length
        if length < 0:  # -1 is the end itself
            length += extent - index + 2
        if index < 0:  # all but the last `length`
            return input.narrow(self.dim, 0, extent - length).clone()
        return input.narrow(self.dim, self.start, length).clone()


class Index(Layer):
    """Slices of the first input that the second, a list of numbers, selects.

    Args:
        dim: the dimension of the slices.
        index_base: number of the first slice.
    """

    dim: int
    index_base: int = 1

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


class Sum(Layer):
    """The sum or mean over a dimension.

    Args:
        dim: the dimension, in one example, or from the end if negative.
        n_input_dims: dimensions of one example.
        average: whether to return the mean.
        squeeze: whether to remove the dimension; the last remaining one is kept.
    """

    dim: int = 0
    n_input_dims: int | None = None
    average: bool = False
    squeeze: bool = True

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with `dim` summed up."""
        dim = dim_of(input, self.dim, self.n_input_dims)
        output = input.sum(dim, keepdim=True)
        if self.average:
            output = output / input.size(dim)
        # Lua has no tensors without dimensions.
        return output.squeeze(dim) if self.squeeze and output.dim() > 1 else output


class Max(Layer):
    """The largest elements along a dimension.

    Args:
        dim: the dimension, in one example, or from the end if negative.
        n_input_dims: dimensions of one example.
    """

    dim: int = 0
    n_input_dims: int | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Return the input without `dim`, or (1) for (n)."""
        dim = dim_of(input, self.dim, self.n_input_dims)
        return self.extreme(input, dim, keepdim=input.dim() == 1)

    def extreme(self, input: Tensor, dim: int, keepdim: bool) -> Tensor:
        """Return the largest elements along a dimension."""
        return input.max(dim, keepdim)[0]


class Min(Max):
    """The smallest elements along a dimension. Arguments as for `Max`."""

    def extreme(self, input: Tensor, dim: int, keepdim: bool) -> Tensor:
        """Return the smallest elements along a dimension."""
        return input.min(dim, keepdim)[0]


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
        dim = self.dim + 1 if batched else self.dim
        # Lua has no tensors without dimensions.
        index = input.argmax(dim, keepdim=input.dim() == 1)
        return (index + self.index_base).to(self.dtype)


class Reverse(Layer):
    """The slices along a dimension in the opposite order.

    Args:
        dim: the dimension.
    """

    dim: int

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        return input.flip(self.dim)
