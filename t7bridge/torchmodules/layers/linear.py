"""Linear maps, also sparse ones; scales and offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LinearWeightNorm(nn.Module):
    """A linear layer whose weight is g * v / |v|.

    Args:
        in_features: size of each input.
        out_features: size of each output.
        bias: whether there is a bias.
        eps: the smallest |v|.
    """

    weight: Tensor

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, eps: float = 1e-16
    ) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.zeros(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.weight_g = nn.Parameter(torch.ones(out_features, 1))
        self.weight_v = nn.Parameter(torch.ones(out_features, in_features))

    def forward(self, input: Tensor) -> Tensor:
        """Take (in) or (batch, in); return (out) or (batch, out)."""
        length = self.weight_v.square().sum(1, keepdim=True).sqrt().clamp(min=self.eps)
        weight = self.weight_v * (self.weight_g / length)
        with torch.no_grad():
            self.weight.copy_(weight)
        return F.linear(input, weight, self.bias)


class Bilinear(nn.Bilinear):
    """torch.nn.Bilinear of a list of two tensors."""

    def forward(self, inputs: Any, other: Any = None) -> Tensor:
        """Take (batch, in1) and (batch, in2); return (batch, out)."""
        return (
            super().forward(inputs[0], inputs[1])
            if other is None
            else super().forward(inputs, other)
        )


class PartialLinear(nn.Linear):
    """A linear layer that computes some of its outputs.

    Args:
        in_features: size of each input.
        out_features: size of each output of the full layer.
        bias: whether there is a bias.
        partition: the outputs to compute, 0-based.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        partition: tuple[int, ...],
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.partition = list(partition)

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in); return (batch, outputs in the partition)."""
        bias = None if self.bias is None else self.bias[self.partition]
        return F.linear(input, self.weight[self.partition], bias)


class SparseLinear(nn.Module):
    """A linear layer of sparse inputs.

    Args:
        in_features: size of each input.
        out_features: size of each output.
        index_base: what the first element of an input is called.
    """

    def __init__(
        self, in_features: int, out_features: int, index_base: int = 1
    ) -> None:
        super().__init__()
        self.index_base = index_base
        self.weight = nn.Parameter(torch.zeros(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, input: Any) -> Tensor:
        """Take rows (k, 2) of index and value, or a list or batch of these; return
        (out) or (batch, out).
        """
        if isinstance(input, Tensor) and input.dim() == 2:
            return self._one(input)
        return torch.stack([self._one(rows) for rows in input])

    def _one(self, rows: Tensor) -> Tensor:
        index = rows[:, 0].long() - self.index_base
        columns = self.weight.index_select(1, index)
        return columns @ rows[:, 1].to(self.weight.dtype) + self.bias


class IndexLinear(nn.Module):
    """A linear layer of inputs that are lists of keys and values.

    Args:
        in_features: number of keys.
        out_features: size of each output.
        index_base: number of the first key.
        normalize: whether to divide values by the largest seen of their key; the weight
            has four more columns then.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        index_base: int = 1,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        self.index_base = index_base
        self.normalize = normalize
        self.weight = nn.Parameter(
            torch.zeros(in_features, out_features + 4 * normalize)
        )
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, inputs: Any) -> Tensor:
        """Take keys and values (k), or lists of these, or both joined and lengths;
        return (out) or (batch, out).
        """
        keys, values = inputs[0], inputs[1]
        if len(inputs) == 3:
            lengths = [int(length) for length in torch.as_tensor(inputs[2]).reshape(-1)]
            keys, values = keys.split(lengths), values.split(lengths)
        elif isinstance(keys, Tensor):
            return self._one(keys, values)
        return torch.stack([self._one(*pair) for pair in zip(keys, values)])

    def _one(self, keys: Tensor, values: Tensor) -> Tensor:
        rows = self.weight[keys.long() - self.index_base]
        if self.normalize:
            largest, factor, offset = rows[:, 0], rows[:, 1], rows[:, 3]
            values = (
                torch.where(values.abs() > largest, values.sign(), values * factor)
                + offset
            )
            rows = rows[:, 4:]
        return values.to(rows.dtype) @ rows + self.bias


class Add(nn.Module):
    """Adds a learned offset for each element of an example.

    Args:
        size: number of offsets; one is added to everything.
        scalar: whether there is one for everything.
    """

    def __init__(self, size: int, scalar: bool = False) -> None:
        super().__init__()
        self.scalar = scalar
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, input: Tensor) -> Tensor:
        """Take (…) or (batch, …) with `size` elements an example; return the same
        shape.
        """
        if self.scalar or input.shape == self.bias.shape:
            return input + self.bias
        return (input.reshape(input.size(0), -1) + self.bias).reshape(input.shape)


class CAdd(nn.Module):
    """Adds learned offsets of any shape.

    Args:
        shape: of the offsets; broadcast if it has as many dimensions as the input, else
            it is that of an example.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(shape))

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        if input.numel() == self.bias.numel():
            return input + self.bias.reshape(input.shape)
        if input.dim() == self.bias.dim():
            return input + self.bias
        return (input.reshape(input.size(0), -1) + self.bias.reshape(1, -1)).reshape(
            input.shape
        )


class CMul(nn.Module):
    """Multiplies by learned factors of any shape.

    Args:
        shape: of the factors; broadcast if it has as many dimensions as the input, else
            it is that of an example.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        if input.numel() == self.weight.numel():
            return input * self.weight.reshape(input.shape)
        if input.dim() == self.weight.dim():
            return input * self.weight
        return (input.reshape(input.size(0), -1) * self.weight.reshape(1, -1)).reshape(
            input.shape
        )


class Mul(nn.Module):
    """Multiplies everything by one learned factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        return input * self.weight


class _InPlace(torch.autograd.Function):
    """A constant by which the input itself is multiplied, or that is added to it; it is
    removed again in the backward pass, for the layers before.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, constant: Any, factor: bool) -> Tensor:
        ctx.memory, ctx.constant, ctx.factor = input.data, constant, factor
        if factor:
            ctx.memory.mul_(constant)
        else:
            ctx.memory.add_(constant)
        # The same memory, but not a view of the input, so that other layers may write
        # too.
        return input.new_empty(0).set_(
            input.untyped_storage(),
            input.storage_offset(),
            input.size(),
            input.stride(),
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.factor:
            ctx.memory.div_(ctx.constant)
            return gradients[0] * ctx.constant, None, None
        ctx.memory.sub_(ctx.constant)
        return gradients[0], None, None


_in_place: Callable[..., Tensor] = _InPlace.apply


class MulConstant(nn.Module):
    """Multiplies by a constant.

    Args:
        constant: the factor.
        inplace: whether to multiply the input itself.
    """

    def __init__(self, constant: float, inplace: bool = False) -> None:
        super().__init__()
        self.constant = constant
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        if not self.inplace:
            return input * self.constant
        if input.requires_grad and torch.is_grad_enabled():
            return _in_place(input, self.constant, True)
        return input.mul_(self.constant)


class SAdd(nn.Module):
    """Adds a constant, and negates the sum.

    Args:
        addend: the constant.
        negate: whether to negate the sum.
    """

    def __init__(self, addend: float, negate: bool = False) -> None:
        super().__init__()
        self.addend = addend
        self.negate = negate

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        return -(input + self.addend) if self.negate else input + self.addend


class AddConstant(nn.Module):
    """Adds a constant.

    Args:
        constant: the constant; a tuple has one number for each feature.
        inplace: whether to add to the input itself.
    """

    def __init__(
        self, constant: float | tuple[float, ...], inplace: bool = False
    ) -> None:
        super().__init__()
        self.constant = constant
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        added = torch.as_tensor(self.constant, dtype=input.dtype, device=input.device)
        if not self.inplace:
            return input + added
        if input.requires_grad and torch.is_grad_enabled():
            return _in_place(input, added, False)
        return input.add_(added)
