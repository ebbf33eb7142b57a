"""Layers that pass their input through and change the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        # The tensors of torch.export have no memory to share.
        if torch.compiler.is_compiling():
            return input.clone()
        # The same memory, but not a view of the input, so that other layers may write
        # too.
        return input.new_empty(0).set_(
            input.untyped_storage(),
            input.storage_offset(),
            input.size(),
            input.stride(),
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * -ctx.factor, None


_reverse: Callable[..., Tensor] = _Reverse.apply


class GradientReversal(nn.Module):
    """Passes its input through, and the negated gradient back.

    Args:
        factor: additional factor of the gradient.
    """

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        return _reverse(input, self.factor)


class ZeroGrad(nn.Module):
    """Passes its input through, and no gradient back."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        return input.detach()


class _Penalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: float, hand_back: bool) -> Tensor:
        ctx.save_for_backward(input)
        ctx.weight = weight
        ctx.hand_back = hand_back
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (input,) = ctx.saved_tensors
        penalty = input.sign() * ctx.weight
        return penalty + gradients[0] if ctx.hand_back else penalty, None, None


_penalize: Callable[..., Tensor] = _Penalty.apply


class L1Penalty(nn.Module):
    """Passes its input through, and adds the gradient of an L1 penalty on it.

    Args:
        weight: of the penalty.
        size_average: whether to divide it by the number of elements.
        hand_back: whether to pass the gradient of the output back too.
    """

    def __init__(
        self, weight: float, size_average: bool = False, hand_back: bool = True
    ) -> None:
        super().__init__()
        self.weight = weight
        self.size_average = size_average
        self.hand_back = hand_back

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        weight = self.weight / input.numel() if self.size_average else self.weight
        return _penalize(input, weight, self.hand_back)
