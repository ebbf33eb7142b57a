"""Layers that act in training: random numbers, and gradients of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .base import Layer, with_gradient, with_penalty


class GradientReversal(Layer):
    """Passes its input through, and the negated gradient back.

    Args:
        factor: additional factor of the gradient.
    """

    factor: float = 1.0

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        return with_gradient(input, lambda gradient, _: gradient * -self.factor)


class ZeroGrad(nn.Module):
    """Passes its input through, and no gradient back."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        return input.detach()


class L1Penalty(Layer):
    """Passes its input through, and adds the gradient of an L1 penalty on it.

    Args:
        weight: of the penalty.
        size_average: whether to divide it by the number of elements.
        hand_back: whether to pass the gradient of the output back too.
    """

    weight: float
    size_average: bool = False
    hand_back: bool = True

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        weight = self.weight / input.numel() if self.size_average else self.weight

        def change(gradient: Tensor, input: Tensor) -> Tensor:
            penalty = input.sign() * weight
            # Lua can leave out the gradient of the output: the penalty alone acts.
            return penalty + gradient if self.hand_back else penalty

        return with_gradient(input, change)


class _Choose(torch.autograd.Function):
    """An output whose gradients are those of its likelihood, times the reward."""

    @staticmethod
    def forward(ctx: Any, layer: Any, output: Tensor, *inputs: Tensor) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(output, *inputs)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        # The gradient of the output is not used: the reward takes its place.
        output, *inputs = ctx.saved_tensors
        if ctx.layer.reward is None:
            raise RuntimeError(
                "reinforce must be called with the rewards before backward"
            )
        input_gradients = []
        for slope in ctx.layer.slopes(output, *inputs):
            # One reward for all elements of an example.
            reward = ctx.layer.reward.to(slope)
            reward = reward.reshape(-1, *[1] * (slope.dim() - 1))
            # A training step minimizes, and rewards are to be large.
            input_gradients.append(-slope * reward)
        return None, None, *input_gradients  # none for the layer and the output


_choose: Callable[..., Tensor] = _Choose.apply


class _Reinforce(Layer, kw_only=True):
    """A layer that samples its output, and learns which samples are rewarded.

    Args:
        stochastic: whether to sample in evaluation too.

    Attributes:
        reward: those of the last outputs, (batch); `None` before the first.
    """

    stochastic: bool = False

    def __post_init__(self) -> None:
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
        """Return the derivative of the logarithm of the likelihood by the input."""
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
            index = torch.multinomial(input.detach(), 1)
            output = torch.zeros_like(input).scatter_(1, index, 1)
        return _choose(self, output.detach().clone(), input)

    def slopes(self, output: Tensor, input: Tensor) -> tuple[Tensor]:
        """Return the derivative of the logarithm of the likelihood by the input."""
        return (output / (input + 1e-8),)


class ReinforceNormal(_Reinforce):
    """Samples a normal distribution; in evaluation, returns its mean.

    Args:
        deviation: standard deviation; `None` if it is the second input.
        stochastic: whether to sample in evaluation too.
    """

    deviation: float | None = None

    def forward(self, input: Any) -> Tensor:
        """Take means, or a list of means and deviations; return the shape of the
        means.
        """
        mean, *deviation = input if isinstance(input, (list, tuple)) else [input]
        output = mean.detach().clone()
        if self.stochastic or self.training:
            spread = deviation[0] if deviation else self.deviation
            # No gradient passes through the sample: `_choose` gives the inputs the
            # reward times `slopes`.
            spread = torch.as_tensor(spread, dtype=mean.dtype).detach()
            output = output + torch.randn_like(output) * spread
        return _choose(self, output, mean, *deviation)

    def slopes(
        self, output: Tensor, mean: Tensor, deviation: Any = None
    ) -> tuple[Tensor, ...]:
        """Return the derivatives of the logarithm of the likelihood by the inputs."""
        difference = output - mean
        if deviation is None:
            assert self.deviation is not None
            return (difference / float(self.deviation) ** 2,)
        by_mean = difference / deviation.square()
        excess = difference.square() - deviation.square()
        by_deviation = excess / (deviation**3 + 1e-8)  # as in Lua, only here
        return by_mean, by_deviation


class ReinforceGamma(_Reinforce):
    """Samples a gamma distribution; in evaluation, returns its mean.

    Args:
        scale: of the distribution; `None` if it is the second input.
        stochastic: whether to sample in evaluation too.
    """

    scale: float | None = None

    def forward(self, input: Any) -> Tensor:
        """Take shapes of the distribution, or a list of shapes and scales; return the
        size of the shapes.
        """
        shape, *scale = input if isinstance(input, (list, tuple)) else [input]
        used_scale = scale[0] if scale else self.scale
        # No gradient passes through the sample: `_choose` gives the inputs the reward
        # times `slopes`.
        used_scale = torch.as_tensor(used_scale, dtype=shape.dtype).detach()
        # The mean of a standard gamma distribution is its shape.
        output = shape.detach()
        if self.stochastic or self.training:
            output = torch._standard_gamma(output)
        return _choose(self, output * used_scale, shape, *scale)

    def slopes(
        self, output: Tensor, shape: Tensor, scale: Any = None
    ) -> tuple[Tensor, ...]:
        """Return the derivatives of the logarithm of the likelihood by the inputs."""
        used_scale = torch.as_tensor(
            self.scale if scale is None else scale,
            dtype=output.dtype,
            device=output.device,
        )
        by_shape = output.log() - used_scale.log() - torch.digamma(shape)
        if scale is None:
            return (by_shape,)
        by_scale = output / scale.square() - shape / scale
        return by_shape, by_scale


class Clip(Layer):
    """Clips values and passes the whole gradient through.

    Args:
        smallest: of the values.
        largest: of the values.
    """

    smallest: float
    largest: float

    def forward(self, input: Tensor) -> Tensor:
        """Return a tensor in the shape of the input."""
        return with_gradient(
            input,
            lambda gradient, _: gradient,
            lambda input: input.clamp(self.smallest, self.largest),
        )


class CategoricalEntropy(Layer):
    """Passes probabilities through, and adds the gradient that increases the entropy of
    their sum over the batch.

    Args:
        scale: weight of the entropy.
        smallest: the entropy from which on nothing is added; `None` for none.
    """

    scale: float = 1.0
    smallest: float | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, classes); return the same."""
        # As in Lua, the sum is a constant in the backward pass.
        shares = input.sum(0) / input.detach().sum()
        eps = 1e-6  # of Lua: no logarithm of 0
        entropy = -(shares * (shares + eps).log()).sum()
        if self.smallest is not None and entropy >= self.smallest:
            return input
        # A penalty is minimized, and the entropy is to grow.
        return with_penalty(input, -self.scale / input.size(0) * entropy)


class Dropout(Layer):
    """Sets elements to zero at random.

    Args:
        p: probability of zeroing an element.
        scale_training: whether the rest is divided by 1 - p in training; the first
            releases multiplied everything by 1 - p in evaluation instead.
        always: whether to drop elements in evaluation too.
    """

    p: float = 0.5
    scale_training: bool = True
    always: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Return a tensor in the shape of the input."""
        if self.p <= 0:
            return input.clone()
        kept_share = 1 - self.p
        if not (self.training or self.always):
            return input.clone() if self.scale_training else input * kept_share
        noise = torch.full_like(input, kept_share).bernoulli()
        if self.scale_training:
            noise = noise / kept_share
        return input * noise


class FeatureDropout(Layer):
    """Sets whole features to zero at random in training, and multiplies everything by 1
    - p in evaluation.

    Args:
        p: probability of zeroing a feature.
        n_input_dims: dimensions of one example: 3 for images, 4 for volumes.
        always: whether to drop features in evaluation too.
    """

    p: float = 0.5
    n_input_dims: int = 3
    always: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Take (features, …) or (batch, features, …); return the same shape."""
        kept_share = 1 - self.p
        if not (self.training or self.always):
            return input * kept_share
        # One number for each feature of each example.
        features = input.shape[: input.dim() - self.n_input_dims + 1]
        shape = (*features, *[1] * (self.n_input_dims - 1))
        noise = torch.full(shape, kept_share, dtype=input.dtype, device=input.device)
        return input * noise.bernoulli()


class WhiteNoise(Layer):
    """Adds normal noise in training, and its mean in evaluation.

    Args:
        mean: of the noise.
        std: of the noise.
    """

    mean: float = 0.0
    std: float = 0.1

    def forward(self, input: Tensor) -> Tensor:
        """Return a tensor in the shape of the input."""
        if self.training:
            return input + (torch.randn_like(input) * self.std + self.mean)
        return input + self.mean


class SimpleColorTransform(nn.Module):
    """Adds the same random number to all of a channel, in training.

    Args:
        ranges: the largest absolute number for each channel.
    """

    def __init__(self, *ranges: float) -> None:
        super().__init__()
        self.ranges = ranges

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, channels, h, w) or (channels, h, w); return the same shape."""
        if not self.training:
            return input.clone()
        noise = input.new_empty(*input.shape[:-2], 1, 1).uniform_(-1, 1)
        return input + noise * input.new_tensor(self.ranges)[:, None, None]


class PCAColorTransform(Layer):
    """Adds random colours along the principal components of the colours of natural
    images, in training.

    Args:
        channels: number of channels.
        deviation: of the random factors of the components.
    """

    channels: int
    deviation: float = 0.1

    def __post_init__(self) -> None:
        self.eigenVectors = nn.Buffer(torch.eye(self.channels))
        self.eigenValues = nn.Buffer(torch.ones(self.channels))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, channels, h, w) or (channels, h, w); return the same shape."""
        if not self.training:
            return input.clone()
        noise = torch.randn(input.shape[:-2]).to(input)
        factors = noise * self.deviation * self.eigenValues.flatten()
        colours = factors @ self.eigenVectors.T
        return input + colours[..., None, None]


class SpatialRegionDropout(Layer):
    """Sets rows at the top or bottom, or columns at the left or right, to zero in
    training.

    Args:
        p: fraction of all rows or columns.
    """

    p: float = 0.2

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same shape."""
        output = input.clone()
        if not self.training:
            return output
        is_of_rows = torch.rand(()) < 0.5
        dim = -2 if is_of_rows else -1
        count = int(input.size(dim) * self.p)
        is_at_start = torch.rand(()) < 0.5
        start = 0 if is_at_start else input.size(dim) - count
        output.narrow(dim, start, count).zero_()
        return output


class TotalDropout(Layer):
    """Sets everything or nothing to zero in training.

    Args:
        p: probability of zeroing everything.
    """

    p: float = 0.5

    def forward(self, input: Tensor) -> Tensor:
        """Return a tensor in the shape of the input."""
        if not self.training:
            return input.clone()
        return input * float(torch.rand(()) >= self.p)
