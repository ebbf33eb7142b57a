"""What several families share: constructors, batches, lists and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import dataclass_transform


@dataclass_transform(eq_default=False)
class Layer(nn.Module):
    """A module whose fields are the arguments of its constructor, as in a dataclass."""

    def __init_subclass__(cls, kw_only: bool = False) -> None:
        """Make a constructor of the fields; `kw_only` if they are keywords only."""
        super().__init_subclass__()
        dataclass(cls, eq=False, kw_only=kw_only)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make the module ready for its fields."""
        layer = super().__new__(cls)
        nn.Module.__init__(layer)
        return layer


class FromList(nn.Module):
    """A module of several inputs that takes a list of them."""

    def forward(self, inputs: list[Any]) -> Any:
        """Return the outputs of the module."""
        return super().forward(*inputs)


def with_batch(
    function: Callable[[Tensor], Tensor], input: Tensor, dims: int
) -> Tensor:
    """Apply a function of batches to a batch, or to one example, which becomes a batch
    of one for it.

    Args:
        function: the function.
        input: a tensor with `dims` dimensions, or without the first of them.
        dims: dimensions of a batch.
    """
    if input.dim() >= dims:
        return function(input)
    return function(input[None])[0]


def square_root(input: Tensor) -> Tensor:
    """Return square roots, with gradient 0 at 0, where that of PyTorch is infinite."""
    zero = input == 0
    # 1 takes the place of 0 before the root, and 0 that of its root.
    return input.masked_fill(zero, 1).sqrt().masked_fill(zero, 0)


def dim_of(input: Tensor, dim: int, n_input_dims: int | None) -> int:
    """Return the dimension of the input for one that is counted without the batch.

    Args:
        input: an example, or a batch.
        dim: the dimension in an example, 0-based; negative from the end.
        n_input_dims: dimensions of an example; `None` if `dim` counts the batch.
    """
    is_batch = n_input_dims is not None and input.dim() == n_input_dims + 1
    return dim + 1 if is_batch and dim >= 0 else dim


def as_batches(inputs: list[Tensor]) -> list[Tensor]:
    """Return two inputs, each (n) or (batch, n), as (1, n) or (batch, n)."""
    return [input.reshape(1, -1) if input.dim() == 1 else input for input in inputs[:2]]


def up_to_none(outputs: list[Any]) -> list[Any]:
    """Return the outputs before the first that is `None`, where a list of Lua ends."""
    for position, output in enumerate(outputs):
        if output is None:
            return outputs[:position]
    return outputs


def map_nested(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a value, or to each value in lists of lists."""
    if isinstance(value, (list, tuple)):
        return [map_nested(function, part) for part in value]
    return function(value)


def first_tensor(value: Any) -> Tensor:
    """Return a tensor, or the first one in lists of lists."""
    while isinstance(value, (list, tuple)):
        value = value[0]
    tensor: Tensor = value
    return tensor


def records_gradients(*inputs: Tensor) -> bool:
    """Return whether PyTorch records how these tensors are used, for a backward pass.

    torch.export and torch.compile replace changes in place by new tensors themselves:
    they follow a plain one, but not one hidden in a function of its own.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    return any(input.requires_grad for input in inputs)


def same_memory(input: Tensor) -> Tensor:
    """Return a tensor in the memory of the input that is no view of it, so that other
    layers may write to both.
    """
    # The tensors of torch.export have no memory to share.
    if torch.compiler.is_compiling():
        return input.clone()
    return input.new_empty(0).set_(
        input.untyped_storage(), input.storage_offset(), input.size(), input.stride()
    )


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, change: Any, function: Any) -> Tensor:
        ctx.save_for_backward(input)
        ctx.change = change
        output: Tensor = function(input)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.change(gradients[0], *ctx.saved_tensors), None, None


_gradient: Callable[..., Tensor] = _Gradient.apply


def with_gradient(
    input: Tensor,
    change: Callable[[Tensor, Tensor], Tensor],
    function: Callable[[Tensor], Tensor] = same_memory,
) -> Tensor:
    """Return the input, or a function of it, with a gradient of its own.

    Args:
        input: the input.
        change: maps the gradient of the output, and the input, to that of the input.
        function: maps the input to the output.
    """
    return _gradient(input, change, function)


def joined(parts: list[Tensor], dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return tensors concatenated as Lua does: the first sets the shape, and others of
    as many elements are copied in memory order.

    Args:
        parts: the tensors.
        dim: the dimension.
        dtype: the element type of the result; `None` for that of the parts.
    """
    if dtype is not None:
        parts = [part.to(dtype) for part in parts]
    reshaped = []
    for part in parts:
        shape = list(parts[0].shape)
        shape[dim] = part.size(dim)
        reshaped.append(part if list(part.shape) == shape else part.reshape(shape))
    return torch.cat(reshaped, dim)


class _ZeroGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, used: Tensor, *unused: Tensor) -> Tensor:
        ctx.save_for_backward(*unused)
        return used.view_as(used)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients[0], *map(torch.zeros_like, ctx.saved_tensors)


_zero_gradients: Callable[..., Tensor] = _ZeroGradients.apply


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in lists of lists."""
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in tensors_in(part)]
    return [value] if isinstance(value, Tensor) else []


def with_zero_gradients(value: Any, unused: list[Any]) -> Any:
    """Return a value, a tensor or lists of tensors, that is made to depend on others.

    In the backward pass these get gradients of zeros, so that the layers that made
    them add their penalties, which PyTorch would leave out.

    Args:
        value: the value; at least one tensor.
        unused: the other tensors, or lists of them.
    """
    others = [tensor for tensor in tensors_in(unused) if tensor.requires_grad]
    if not others:
        return value
    if isinstance(value, (list, tuple)):
        # One tensor that depends on the others will do.
        first, *rest = value
        return [with_zero_gradients(first, others), *rest]
    return _zero_gradients(value, *others)


class _Penalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, penalty: Tensor) -> Tensor:
        ctx.like = penalty.new_ones(())
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], ctx.like


_penalty: Callable[..., Tensor] = _Penalty.apply


def with_penalty(input: Tensor, penalty: Tensor) -> Tensor:
    """Return the input; in the backward pass, a penalty (a scalar) is minimized too."""
    return _penalty(input, penalty)
