"""Layers on tables, which are lists here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .base import (
    Layer,
    dim_of,
    joined,
    records_gradients,
    same_memory,
    with_zero_gradients,
)

# Lua combines tensors element by element in memory order, whatever their shapes;
# the first sets the shape.


def _as_addend(other: Tensor, first: Tensor) -> Tensor:
    """Return a tensor in the shape of the first, to be added to it in place: copied if
    it shares its memory, which changes meanwhile.
    """
    reshaped = other.reshape(first.shape)
    # The tensors of torch.export have no memory to compare.
    if torch.compiler.is_compiling():
        return reshaped.clone()
    memory = other.untyped_storage().data_ptr()
    is_shared = memory == first.untyped_storage().data_ptr()
    return reshaped.clone() if is_shared else reshaped


class _SumInPlace(torch.autograd.Function):
    """The sum, written to the memory of the first input, even if other layers keep it
    for their gradients.
    """

    @staticmethod
    def forward(ctx: Any, first: Tensor, *others: Tensor) -> Tensor:
        ctx.shapes = [other.shape for other in others]
        for other in others:
            first.data.add_(_as_addend(other, first))
        return same_memory(first)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        (gradient,) = gradients
        return (gradient, *(gradient.reshape(shape) for shape in ctx.shapes))


_sum_in_place: Callable[..., Tensor] = _SumInPlace.apply


class CAddTable(Layer):
    """The sum of all inputs.

    Args:
        inplace: whether to write it to the memory of the first, visible to all later
            readers.
    """

    inplace: bool = False

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take tensors of equal element count; return the shape of the first."""
        output = inputs[0]
        if not self.inplace:
            if len(inputs) == 1:  # the output has memory of its own
                return output.clone()
            for other in inputs[1:]:
                output = output + other.reshape(output.shape)
            return output
        if len(inputs) == 1:
            return output
        if records_gradients(*inputs):
            return _sum_in_place(*inputs)
        for other in inputs[1:]:
            output = output.add_(_as_addend(other, output))
        return output


class Combining(nn.Module):
    """Combines all inputs in turn, element by element."""

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take tensors of equal element count; return the shape of the first."""
        output = inputs[0].clone() if len(inputs) == 1 else inputs[0]
        for other in inputs[1:]:
            output = self.combine(output, other.reshape(output.shape))
        return output

    def combine(self, first: Tensor, other: Tensor) -> Tensor:
        """Combine two tensors of one shape."""
        raise NotImplementedError


class CMulTable(Combining):
    """The product of all inputs."""

    def combine(self, first: Tensor, other: Tensor) -> Tensor:
        """Return the product."""
        return first * other


class CMaxTable(Combining):
    """The largest of all inputs, element by element; the first of equal ones receives
    the gradient.
    """

    def combine(self, first: Tensor, other: Tensor) -> Tensor:
        """Return the larger elements."""
        return torch.where(other > first, other, first)


class CMinTable(Combining):
    """The smallest of all inputs, element by element; the first of equal ones receives
    the gradient.
    """

    def combine(self, first: Tensor, other: Tensor) -> Tensor:
        """Return the smaller elements."""
        return torch.where(other < first, other, first)


class CSubTable(nn.Module):
    """The first input minus the second."""

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take two tensors of equal element count; return the shape of the first."""
        return inputs[0] - inputs[1].reshape(inputs[0].shape)


class CDivTable(nn.Module):
    """The first input divided by the second."""

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take two tensors of equal element count; return the shape of the first."""
        return inputs[0] / inputs[1].reshape(inputs[0].shape)


class CAddTensorTable(nn.Module):
    """Adds the first input to each tensor of the second, a list."""

    def forward(self, inputs: list[Any]) -> list[Tensor]:
        """Take a tensor and a list of tensors; return a list of tensors."""
        first, others = inputs[:2]
        return [other.reshape(first.shape) + first for other in others]


class JoinTable(Layer):
    """The inputs concatenated along a dimension.

    Args:
        dim: the dimension, in one example, or from the end if negative.
        n_input_dims: dimensions of one example.
    """

    dim: int
    n_input_dims: int | None = None

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take tensors that differ in `dim` only, or in shape; return one."""
        return joined(list(inputs), dim_of(inputs[0], self.dim, self.n_input_dims))


class TypedJoinTable(JoinTable):
    """The inputs, of several element types, concatenated along a dimension.

    Args:
        dim, n_input_dims: as in `JoinTable`.
        dtype: the element type of the output.
    """

    dtype: str = "float32"

    def __post_init__(self) -> None:
        self.element_type: torch.dtype = getattr(torch, self.dtype)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take tensors that differ in `dim` only, or in shape; return one."""
        dim = dim_of(inputs[0], self.dim, self.n_input_dims)
        return joined(list(inputs), dim, self.element_type)


class SplitTable(Layer):
    """The slices along a dimension.

    Args:
        dim: the dimension, in one example, or from the end if negative.
        n_input_dims: dimensions of one example.
    """

    dim: int
    n_input_dims: int | None = None

    def forward(self, input: Tensor) -> list[Tensor]:
        """Return tensors of one dimension less."""
        dim = dim_of(input, self.dim, self.n_input_dims)
        return [input.select(dim, index) for index in range(input.size(dim))]


class SelectTable(Layer):
    """One element of a list.

    Args:
        index: its index; from the end if negative. Text for a table with names.
    """

    index: int | str

    def forward(self, inputs: Any) -> Any:
        """Return the element."""
        return inputs[self.index]


class ConnectedSelectTable(SelectTable):
    """One element of a list, where the others have penalties that are counted too.

    Args:
        index: as in `SelectTable`.
    """

    def forward(self, inputs: Any) -> Any:
        """Return the element."""
        return with_zero_gradients(inputs[self.index], list(inputs))


class NarrowTable(Layer):
    """Consecutive elements of a list.

    Args:
        start: the first.
        length: number of elements.
    """

    start: int
    length: int = 1

    def forward(self, inputs: list[Any]) -> list[Any]:
        """Return the elements."""
        stop = min(self.start + self.length, len(inputs))
        # Not a slice: what iterating over a tensor gives cannot be changed in place.
        return [inputs[at] for at in range(self.start, stop)]


class ConnectedNarrowTable(NarrowTable):
    """Consecutive elements of a list, where the others have penalties that are counted
    too.

    Args:
        start, length: as in `NarrowTable`.
    """

    def forward(self, inputs: list[Any]) -> list[Any]:
        """Return the elements."""
        used = super().forward(inputs)
        return with_zero_gradients(used, list(inputs)) if used else used


class JustTable(nn.Module):
    """Wraps the input in a list."""

    def forward(self, input: Any) -> list[Any]:
        """Return a list of one element."""
        return [input]


class FlattenTable(nn.Module):
    """Flattens nested lists of tensors."""

    def forward(self, inputs: Any) -> list[Tensor]:
        """Return the tensors in order."""
        if not isinstance(inputs, (list, tuple)):
            return [inputs]
        return [tensor for part in inputs for tensor in self.forward(part)]


class ReverseTable(nn.Module):
    """Reverses a list."""

    def forward(self, inputs: list[Any]) -> list[Any]:
        """Return the same elements."""
        return list(inputs[::-1])


class ZipTable(nn.Module):
    """Lists of first elements, of second elements, and so on."""

    def forward(self, inputs: list[list[Any]]) -> list[list[Any]]:
        """Take n lists of m elements; return m lists of n, or fewer where lists end
        before the longest.
        """
        longest = max(map(len, inputs), default=0)
        return [
            [part[at] for part in inputs if at < len(part)] for at in range(longest)
        ]


class ZipTableOneToMany(nn.Module):
    """Pairs of the first input with each element of the second, a list."""

    def forward(self, inputs: list[Any]) -> list[list[Any]]:
        """Return as many pairs as the second input has elements."""
        first, others = inputs
        return [[first, other] for other in others]


class MixtureTable(Layer):
    """The sum of experts, each weighted by its gate.

    Args:
        dim: the dimension of the experts in one tensor; `None` for after the batch.
    """

    dim: int | None = None

    def forward(self, inputs: list[Any]) -> Tensor:
        """Take gates (batch, n) or (n) and experts: a list of n tensors, or one with
        `dim` of extent n.
        """
        gates, experts = inputs[:2]
        batched = gates.dim() > 1
        dim = self.dim
        if dim is None:
            dim = 1 if batched else 0
        if not isinstance(experts, Tensor):
            experts = torch.stack(tuple(experts), dim)
        # Gates in a shape that broadcasts to that of the experts.
        shape = [1] * experts.dim()
        if batched:
            shape[0] = gates.size(0)
        shape[dim] = gates.size(-1)
        mixed: Tensor = (experts * gates.reshape(shape)).sum(dim)
        return mixed
