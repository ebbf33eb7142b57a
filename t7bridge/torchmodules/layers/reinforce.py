"""Layers that sample and learn from rewards, and the criterions that provide them.
Source: dpnn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


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


class ClassReward(nn.Module):
    """Rewards right classes, minus a baseline; the loss is the negative reward, and
    only the baseline learns from it.

    Args:
        criterion: compares baseline and reward.
        scale: the reward of a right class.
        average: whether the loss is the mean of the batch, not the sum.
        index_base: number of the first class; `None` for one probability, where the
            classes are 0 and 1.

    Attributes:
        rewarded: modules whose samples are rewarded; users add them.
    """

    def __init__(
        self,
        criterion: nn.Module,
        scale: float = 1.0,
        average: bool = True,
        index_base: int | None = 1,
    ) -> None:
        super().__init__()
        self.criterion = criterion
        self.scale = scale
        self.average = average
        self.index_base = index_base
        self.rewarded: list[nn.Module] = []

    def forward(self, inputs: list[Tensor], target: Tensor) -> Tensor:
        """Take a list of scores (batch, classes) and baseline, and classes (batch);
        return a scalar.
        """
        scores, baseline = inputs
        if self.index_base is None:
            right = (scores > 0.5) == (target > 0.5)
        else:
            right = scores.reshape(-1, scores.size(-1)).argmax(
                1
            ) + self.index_base == target.reshape(-1)
        reward = right.to(scores) * self.scale
        advantage = reward - baseline.detach().reshape(reward.shape)
        for module in self.rewarded:
            for part in module.modules():
                if "reward" in vars(part):
                    vars(part)["reward"] = (
                        advantage / len(reward) if self.average else advantage
                    )
        learned = self.criterion(baseline, reward.reshape(baseline.shape))
        loss = -reward.mean() if self.average else -reward.sum()
        result: Tensor = loss + (learned - learned.detach())
        return result
