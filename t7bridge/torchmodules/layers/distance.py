"""Products and distances, of pairs of inputs or to learned points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .base import Layer, rows


class DotProduct(nn.Module):
    """The dot products of two inputs, row by row."""

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take two of (n) or (batch, n); return (1) or (batch)."""
        first, second = rows(inputs)
        return (first * second).sum(1)


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosines of the rows of two matrices."""
    lengths = [1 / (each.square().sum(1) + 1e-12) for each in (first, second)]
    return (first * second).sum(1) * (lengths[0] * lengths[1]).sqrt()


class CosineDistance(nn.Module):
    """The cosines of two inputs, row by row."""

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take two of (n) or (batch, n); return (1) or (batch)."""
        return cosines(*rows(inputs))


@dataclass(eq=False)
class PairwiseDistance(Layer):
    """The distances of two inputs, row by row.

    Args:
        p: of the norm.
    """

    p: float = 2.0

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take two of (n) or (batch, n); return (1) or (batch)."""
        first, second = rows(inputs)
        distance: Tensor = torch.linalg.vector_norm(first - second, self.p, 1)
        return distance


@dataclass(eq=False)
class MM(Layer):
    """The products of two matrices.

    Args:
        transpose_first: whether to transpose the first.
        transpose_second: whether to transpose the second.
    """

    transpose_first: bool = False
    transpose_second: bool = False

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take (n, m) and (m, p), or batches of them; return (n, p) or a batch."""
        first, second = inputs
        if self.transpose_first:
            first = first.transpose(-1, -2)
        if self.transpose_second:
            second = second.transpose(-1, -2)
        return first @ second


@dataclass(eq=False)
class MV(Layer):
    """The products of a matrix and a vector.

    Args:
        transpose: whether to transpose the matrix.
    """

    transpose: bool = False

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take (n, m) and (m), or batches of them; return (n) or a batch."""
        matrix, vector = inputs
        if self.transpose:
            matrix = matrix.transpose(-1, -2)
        return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


@dataclass(eq=False)
class Cosine(Layer):
    """The cosines of the input with learned directions.

    Args:
        in_features: size of each input.
        out_features: number of directions.
    """

    in_features: int
    out_features: int

    def __post_init__(self) -> None:
        self.weight = nn.Parameter(torch.zeros(self.out_features, self.in_features))

    def forward(self, input: Tensor) -> Tensor:
        """Take (in) or (batch, in); return (out) or (batch, out)."""
        lengths = torch.linalg.vector_norm(self.weight, dim=1) + 1e-12
        length = torch.linalg.vector_norm(input, dim=-1, keepdim=True) + 1e-12
        cosines: Tensor = input @ self.weight.t() / lengths / length
        return cosines


@dataclass(eq=False)
class Euclidean(Layer):
    """The distances of the input to learned points.

    Args:
        in_features: size of each input.
        out_features: number of points, the columns of the weight.
    """

    in_features: int
    out_features: int

    def __post_init__(self) -> None:
        self.weight = nn.Parameter(torch.zeros(self.in_features, self.out_features))

    def forward(self, input: Tensor) -> Tensor:
        """Take (in) or (batch, in); return (out) or (batch, out)."""
        distance: Tensor = torch.linalg.vector_norm(self.differences(input), dim=-2)
        return distance

    def differences(self, input: Tensor) -> Tensor:
        """Return the differences from all points, (…, in, out)."""
        return input.unsqueeze(-1) - self.weight


class WeightedEuclidean(Euclidean):
    """The distances of the input to learned points, with a learned scale for each
    direction. Arguments as for `Euclidean`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.diagCov = nn.Parameter(torch.ones_like(self.weight))

    def differences(self, input: Tensor) -> Tensor:
        """Return the scaled differences from all points, (…, in, out)."""
        return super().differences(input) * self.diagCov


class _Nearest(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, points: Tensor, scale: float, index_base: int
    ) -> Tensor:
        nearest = (input.unsqueeze(1) - points).square().sum(-1).argmin(1)
        ctx.save_for_backward(input, points, nearest)
        ctx.scale = scale
        return (nearest + index_base).to(points.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        input, points, nearest = ctx.saved_tensors
        members = nn.functional.one_hot(nearest, len(points)).to(points.dtype)
        pull = members.t() @ (points[nearest] - input) * ctx.scale
        return (
            torch.zeros_like(input),
            pull / (members.sum(0) + 1e-7).unsqueeze(1),
            None,
            None,
        )


_nearest: Callable[..., Tensor] = _Nearest.apply


@dataclass(eq=False)
class Kmeans(Layer):
    """The index of the nearest of some points; the gradient moves each point to the
    mean of the inputs nearest to it.

    Args:
        k: number of points.
        features: size of each input.
        scale: of the gradient.
        index_base: number of the first point.
    """

    k: int
    features: int
    scale: float = 1.0
    index_base: int = 1

    def __post_init__(self) -> None:
        self.weight = nn.Parameter(torch.zeros(self.k, self.features))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, features); return (batch), in the element type of the points."""
        return _nearest(input, self.weight, self.scale, self.index_base)


@dataclass(eq=False)
class GramMatrix(Layer):
    """The products of all pairs of planes, summed over an image.

    Args:
        normalize: whether to divide them by the number of elements of an image.
    """

    normalize: bool = True

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w) or (n, h, w); return (batch, n, n) or (n, n)."""
        rows = input.flatten(-2)
        products = rows @ rows.mT
        return products / input.shape[-3:].numel() if self.normalize else products
