"""Layers that pass their input through, or sample, and have gradients of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor) -> Tensor:
        ctx.save_for_backward(input)
        return input.sign()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (input,) = ctx.saved_tensors
        return gradients[0].masked_fill(input.abs() >= 1, 0)


_sign: Callable[..., Tensor] = _Sign.apply


class Binary(nn.Module):
    """The sign of each element; the gradient is passed back for elements between
    -1 and 1.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return -1, 0 and 1, in the shape of the input."""
        return _sign(input)


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


class _Choose(torch.autograd.Function):
    """An output whose gradients are those of its likelihood, times the reward."""

    @staticmethod
    def forward(ctx: Any, layer: Any, output: Tensor, *inputs: Tensor) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(output, *inputs)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        output, *inputs = ctx.saved_tensors
        if ctx.layer.reward is None:
            raise RuntimeError(
                "reinforce must be called with the rewards before backward"
            )
        found = []
        for slope in ctx.layer.slopes(output, *inputs):
            reward = ctx.layer.reward.to(slope)
            found.append(-slope * reward.reshape(-1, *[1] * (slope.dim() - 1)))
        return None, None, *found


_choose: Callable[..., Tensor] = _Choose.apply


class _Reinforce(nn.Module):
    def __init__(self, stochastic: bool = False) -> None:
        super().__init__()
        self.stochastic = stochastic
        self.reward: Any = None

    def reinforce(self, reward: Tensor) -> None:
        """Accept the rewards (batch) of the last outputs."""
        self.reward = reward


class ReinforceBernoulli(_Reinforce):
    """Samples 1 with a probability and else 0; in evaluation, returns the probability.

    Args:
        stochastic: whether to sample in evaluation too.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take probabilities; return the same shape."""
        output = torch.bernoulli(input) if self.stochastic or self.training else input
        return _choose(self, output.detach().clone(), input)

    def slopes(self, output: Tensor, input: Tensor) -> tuple[Tensor]:
        """The derivative of the logarithm of the likelihood."""
        return ((output - input) / (input * (1 - input)),)


class ReinforceCategorical(_Reinforce):
    """Samples one of several classes, as a 1 among zeros; in evaluation, returns the
    probabilities.

    Args:
        stochastic: whether to sample in evaluation too.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take probabilities (batch, classes); return the same shape."""
        output = input
        if self.stochastic or self.training:
            output = torch.zeros_like(input).scatter_(
                1, torch.multinomial(input.detach(), 1), 1
            )
        return _choose(self, output.detach().clone(), input)

    def slopes(self, output: Tensor, input: Tensor) -> tuple[Tensor]:
        """The derivative of the logarithm of the likelihood."""
        return (output / (input + 1e-8),)


class ReinforceNormal(_Reinforce):
    """Samples a normal distribution; in evaluation, returns its mean.

    Args:
        deviation: standard deviation; `None` if it is the second input.
        stochastic: whether to sample in evaluation too.
    """

    def __init__(
        self, deviation: float | None = None, stochastic: bool = False
    ) -> None:
        super().__init__(stochastic)
        self.deviation = deviation

    def forward(self, input: Any) -> Tensor:
        """Take means, or a list of means and deviations; return the shape of the
        means.
        """
        mean, *deviation = input if isinstance(input, (list, tuple)) else [input]
        output = mean.detach().clone()
        if self.stochastic or self.training:
            output = (
                output
                + torch.randn_like(output)
                * torch.as_tensor(
                    deviation[0] if deviation else self.deviation
                ).detach()
            )
        return _choose(self, output, mean, *deviation)

    def slopes(
        self, output: Tensor, mean: Tensor, deviation: Any = None
    ) -> tuple[Tensor, ...]:
        """The derivatives of the logarithm of the likelihood."""
        difference = output - mean
        if deviation is None:
            assert self.deviation is not None
            return (difference / float(self.deviation) ** 2,)
        by_deviation = (difference.square() - deviation.square()) / (
            deviation**3 + 1e-8
        )
        return difference / deviation.square(), by_deviation


class ReinforceGamma(_Reinforce):
    """Samples a gamma distribution; in evaluation, returns its mean.

    Args:
        scale: of the distribution; `None` if it is the second input.
        stochastic: whether to sample in evaluation too.
    """

    def __init__(self, scale: float | None = None, stochastic: bool = False) -> None:
        super().__init__(stochastic)
        self.scale = scale

    def forward(self, input: Any) -> Tensor:
        """Take shapes of the distribution, or a list of shapes and scales; return the
        size of the shapes.
        """
        shape, *scale = input if isinstance(input, (list, tuple)) else [input]
        spread = torch.as_tensor(scale[0] if scale else self.scale).detach()
        drawn = (
            torch._standard_gamma(shape.detach())
            if self.stochastic or self.training
            else shape.detach()
        )
        return _choose(self, drawn * spread, shape, *scale)

    def slopes(
        self, output: Tensor, shape: Tensor, scale: Any = None
    ) -> tuple[Tensor, ...]:
        """The derivatives of the logarithm of the likelihood."""
        spread = torch.as_tensor(self.scale if scale is None else scale).to(output)
        by_shape = output.log() - spread.log() - torch.digamma(shape)
        return (
            (by_shape,)
            if scale is None
            else (by_shape, output / scale.square() - shape / scale)
        )


class _Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor) -> Tensor:
        return input.clamp(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


_clip: Callable[..., Tensor] = _Clip.apply


class Clip01(nn.Module):
    """Clips elements between 0 and 1, and passes the gradient back unchanged."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        return _clip(input)


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


_scale: Callable[..., Tensor] = _Scale.apply


class GradWeight(nn.Module):
    """Passes its input through, and the gradient multiplied by a factor.

    Args:
        factor: the factor.
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        return _scale(input, self.factor)


class _Smooth(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, strength: float) -> Tensor:
        ctx.save_for_backward(input)
        ctx.strength = strength
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (input,) = ctx.saved_tensors
        corner = input[..., :-1, :-1]
        beside, below = corner - input[..., :-1, 1:], corner - input[..., 1:, :-1]
        penalty = torch.zeros_like(input)
        penalty[..., :-1, :-1] += beside + below
        penalty[..., :-1, 1:] -= beside
        penalty[..., 1:, :-1] -= below
        return gradients[0] + ctx.strength * penalty, None


_smooth: Callable[..., Tensor] = _Smooth.apply


class TotalVariation(nn.Module):
    """Passes its input through, and adds the gradient of a penalty on differences
    between neighbours.

    Args:
        strength: of the penalty.
    """

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, input: Tensor) -> Tensor:
        """Return the input, (batch, n, h, w)."""
        return _smooth(input, self.strength)


class _Dream(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, strength: float, largest: float) -> Tensor:
        ctx.save_for_backward(input)
        ctx.strength = strength
        ctx.largest = largest
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (input,) = ctx.saved_tensors
        return (
            gradients[0] - ctx.strength * input.clamp(-ctx.largest, ctx.largest),
            None,
            None,
        )


_dream: Callable[..., Tensor] = _Dream.apply


class DeepDreamLoss(nn.Module):
    """Passes its input through, and subtracts a fraction of it from the gradient.

    Args:
        strength: the fraction.
        largest: the largest absolute value used.
    """

    def __init__(self, strength: float = 1e-5, largest: float = 100.0) -> None:
        super().__init__()
        self.strength = strength
        self.largest = largest

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        return _dream(input, self.strength, self.largest)


class Clip(nn.Module):
    """Clips values and passes the whole gradient through.

    Args:
        smallest: of the values.
        largest: of the values.
    """

    def __init__(self, smallest: float, largest: float) -> None:
        super().__init__()
        self.smallest = smallest
        self.largest = largest

    def forward(self, input: Tensor) -> Tensor:
        """Return a tensor in the shape of the input."""
        return input.detach().clamp(self.smallest, self.largest) + (
            input - input.detach()
        )


class _EntropyPenalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, penalty: Tensor) -> Tensor:
        ctx.like = penalty.new_ones(())
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], ctx.like


_add_penalty: Callable[..., Tensor] = _EntropyPenalty.apply


class CategoricalEntropy(nn.Module):
    """Passes probabilities through, and adds the gradient that increases the entropy of
    their sum over the batch larger.

    Args:
        scale: weight of the entropy.
        smallest: the entropy from which on nothing is added; `None` for none.
    """

    def __init__(self, scale: float = 1.0, smallest: float | None = None) -> None:
        super().__init__()
        self.scale = scale
        self.smallest = smallest

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, classes); return the same."""
        shares = input.sum(0) / input.detach().sum()
        entropy = -(shares * (shares + 1e-6).log()).sum()
        if self.smallest is not None and entropy >= self.smallest:
            return input
        return _add_penalty(input, -self.scale / input.size(0) * entropy)
