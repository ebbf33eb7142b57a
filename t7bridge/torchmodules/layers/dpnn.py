"""Layers of dpnn: glimpses, crops, colours, and noise-contrastive estimation."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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


class SpatialGlimpse(nn.Module):
    """Crops of an image around a point, each twice as large as the one before and
    shrunk to the same size.

    Args:
        size: height and width.
        depth: number of crops.
    """

    def __init__(self, size: tuple[int, int], depth: int = 3) -> None:
        super().__init__()
        self.size = size
        self.depth = depth

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take images (batch, n, h, w) and places (batch, 2), y and x from -1 to 1, or
        one of each.

        Returns:
            (batch, depth * n, height, width), or without the batch.
        """
        images, places = inputs
        if images.dim() == 3:
            return self._one(images, places.flatten().tolist())
        return torch.stack(
            [self._one(image, place) for image, place in zip(images, places.tolist())]
        )

    def _one(self, image: Tensor, place: list[float]) -> Tensor:
        return torch.cat(
            [self._crop(image, place, 2**level) for level in range(self.depth)]
        )

    def _crop(self, image: Tensor, place: list[float], factor: int) -> Tensor:
        height, width = self.size[0] * factor, self.size[1] * factor
        border_y, border_x = (height - 1) // 2, (width - 1) // 2
        padded = F.pad(image, (border_x, border_x, border_y, border_y))
        room = (padded.size(1) - height, padded.size(2) - width)
        top, left = (
            floor(min(most, max(0.0, (at + 1) / 2 * most)))
            for most, at in zip(room, place)
        )
        crop = padded[:, top : top + height, left : left + width]
        return F.avg_pool2d(crop, factor) if factor > 1 else crop


class SpatialUniformCrop(nn.Module):
    """Crops images in the middle; in training, each at a random place.

    Args:
        height: of the crops.
        width: of the crops.
        scales: the smallest and largest factor of crops that are resized in training;
            `None` where none is.
    """

    def __init__(
        self, height: int, width: int, scales: tuple[float, float] | None = None
    ) -> None:
        super().__init__()
        self.size = (height, width)
        self.scales = scales

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return crops."""
        if not self.training:
            top, left = (
                max(ceil((have - want) / 2) - 1, 0)
                for have, want in zip(input.shape[-2:], self.size)
            )
            return input[..., top : top + self.size[0], left : left + self.size[1]]
        return (
            self._random(input)
            if input.dim() == 3
            else torch.stack([self._random(image) for image in input])
        )

    def _random(self, image: Tensor) -> Tensor:
        factor = (
            1.0
            if self.scales is None
            else float(torch.empty(()).uniform_(*self.scales))
        )
        height, width = (
            min(ceil(factor * want), have)
            for want, have in zip(self.size, image.shape[-2:])
        )
        top = int(torch.randint(max(image.size(1) - height, 1), ()))
        left = int(torch.randint(max(image.size(2) - width, 1), ()))
        crop = image[:, top : top + height, left : left + width]
        if self.scales is None:
            return crop
        return F.interpolate(
            crop[None], self.size, mode="bilinear", align_corners=True
        )[0]


class SpatialFeatNormalization(nn.Module):
    """Subtracts a mean from each feature and divides by a deviation.

    Args:
        features: number of features.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.ones(features))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, features, h, w) or (features, h, w); return the same shape."""
        return (input - self.mean[:, None, None]) / self.std[:, None, None]


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


class PCAColorTransform(nn.Module):
    """Adds random colours along the principal components of the colours of natural
    images, in training.

    Args:
        channels: number of channels.
        deviation: of the random factors of the components.
    """

    eigenVectors: Tensor
    eigenValues: Tensor

    def __init__(self, channels: int, deviation: float = 0.1) -> None:
        super().__init__()
        self.deviation = deviation
        self.register_buffer("eigenVectors", torch.eye(channels))
        self.register_buffer("eigenValues", torch.ones(channels))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, channels, h, w) or (channels, h, w); return the same shape."""
        if not self.training:
            return input.clone()
        factors = (
            torch.randn(input.shape[:-2]).to(input)
            * self.deviation
            * self.eigenValues.flatten()
        )
        return input + (factors @ self.eigenVectors.T)[..., None, None]


class SpatialRegionDropout(nn.Module):
    """Sets rows at the top or bottom, or columns at the left or right, to zero in
    training.

    Args:
        p: fraction of all rows or columns.
    """

    def __init__(self, p: float = 0.2) -> None:
        super().__init__()
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return the same shape."""
        output = input.clone()
        if not self.training:
            return output
        dim = -2 if torch.rand(()) < 0.5 else -1
        count = int(input.size(dim) * self.p)
        start = 0 if torch.rand(()) < 0.5 else input.size(dim) - count
        output.narrow(dim, start, count).zero_()
        return output


class TotalDropout(nn.Module):
    """Sets everything or nothing to zero in training.

    Args:
        p: probability of zeroing everything.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        """Return a tensor in the shape of the input."""
        return (
            input * float(torch.rand(()) >= self.p) if self.training else input.clone()
        )


class _BinaryConvolution(torch.autograd.Function):
    """The gradients of dpnn: that of the signs for the weights, and that of the inputs
    times the mean of the absolute weights for each of them.
    """

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, stride: Any, padding: Any
    ) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.places = stride, padding
        signs = torch.where(weight >= 0, 1.0, -1.0).to(input)
        output = F.conv2d(input, signs, None, stride, padding)
        return output * weight.abs().mean((1, 2, 3))[:, None, None]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        signs = torch.where(weight >= 0, 1.0, -1.0).to(input)
        batch = input if input.dim() == 4 else input[None]
        gradient = gradients[0].reshape(-1, *gradients[0].shape[-3:])
        of_input, of_weight, _ = torch.ops.aten.convolution_backward(
            *(gradient, batch, signs, None, *ctx.places, (1, 1), False, (0, 0), 1),
            (True, True, False),
        )
        of_input = of_input * weight.abs().mean((0, 2, 3))[:, None, None]
        return of_input.reshape(input.shape), of_weight, None, None


_binary_convolution: Callable[..., Tensor] = _BinaryConvolution.apply


class SpatialBinaryConvolution(nn.Conv2d):
    """A convolution with the signs of its weights, times the mean of their absolute
    values for each output.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in, h, w) or (in, h, w); return (batch, out, h, w) or (out, h,
        w).
        """
        return _binary_convolution(input, self.weight, self.stride, self.padding)


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


class NCE(nn.Linear):
    """A linear layer over many classes, trained by noise-contrastive estimation.

    Args:
        in_features: size of each input.
        out_features: number of classes.
        samples: number of classes drawn as noise.
        shared: whether all examples of a batch see the same noise.
        normalized: whether evaluation returns the probabilities of all classes.
        logarithms: whether it returns their logarithms instead.
        index_base: number of the first class.
    """

    unigrams: Tensor
    Z: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        samples: int,
        shared: bool = True,
        normalized: bool = False,
        logarithms: bool = False,
        index_base: int = 1,
    ) -> None:
        super().__init__(in_features, out_features)
        self.samples = samples
        self.shared = shared
        self.normalized = normalized
        self.logarithms = logarithms
        self.index_base = index_base
        self.register_buffer("unigrams", torch.ones(out_features) / out_features)
        self.register_buffer("Z", torch.ones(1))

    def forward(self, inputs: Any) -> Any:
        """Take a list of inputs (batch, in) and classes (batch).

        Returns:
            Probabilities (batch, out), or a list: by the model, of the class and of
            noise (batch, samples); by the noise, likewise. The model's are divided by
            Z, which is estimated where it is not positive.
        """
        input, target = inputs
        if self.normalized and not self.training:
            scores = super().forward(input)
            return scores.log_softmax(-1) if self.logarithms else scores.softmax(-1)
        target = target.long() - self.index_base
        count = self.samples if self.shared else self.samples * len(target)
        noise = torch.multinomial(self.unigrams.float(), count, replacement=True)
        noise = (
            noise.expand(len(target), -1)
            if self.shared
            else noise.reshape(len(target), -1)
        )
        chosen = torch.cat((target[:, None], noise), 1)
        scores = (
            torch.einsum("bi,bki->bk", input, self.weight[chosen]) + self.bias[chosen]
        )
        scores = scores.exp()
        if self.Z <= 0:
            with torch.no_grad():
                self.Z.fill_(
                    (scores[:, 1:] if self.shared else scores).mean()
                    * self.out_features
                )
        scores = scores / self.Z
        likely = self.unigrams[chosen]
        return [scores[:, 0], scores[:, 1:], likely[:, 0], likely[:, 1:]]
