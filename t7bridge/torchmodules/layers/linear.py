"""Linear maps, tables of rows, scales and offsets; products and distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import Layer, as_batches, records_gradients, same_memory


class LinearWeightNorm(nn.Module):
    """A linear layer whose weight is g * v / |v|.

    Args:
        in_features: size of each input.
        out_features: size of each output.
        bias: whether there is a bias.
        eps: the smallest |v|.

    Attributes:
        weight: computed from the next two in each call.
        weight_g: g, the length of each row.
        weight_v: v, the direction of each row.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, eps: float = 1e-16
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Buffer(torch.zeros(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.weight_g = nn.Parameter(torch.ones(out_features, 1))
        self.weight_v = nn.Parameter(torch.ones(out_features, in_features))

    def forward(self, input: Tensor) -> Tensor:
        """Take (in) or (batch, in); return (out) or (batch, out)."""
        length = self.weight_v.square().sum(1, keepdim=True).sqrt().clamp(min=self.eps)
        weight = self.weight_v * (self.weight_g / length)
        # As in Lua, the weight is kept, though it is computed from the others.
        with torch.no_grad():
            self.weight.copy_(weight)
        return F.linear(input, weight, self.bias)


class Bilinear(nn.Bilinear):
    """torch.nn.Bilinear of a list of two tensors."""

    def forward(self, inputs: Any, other: Any = None) -> Tensor:
        """Take a list of (batch, in1) and (batch, in2), or both as torch.nn.Bilinear
        does; return (batch, out).
        """
        if other is None:
            inputs, other = inputs[:2]
        return super().forward(inputs, other)


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
        self.partition = list(partition)  # the outputs to compute, 0-based

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in); return (batch, outputs in the partition)."""
        bias = None if self.bias is None else self.bias[self.partition]
        return F.linear(input, self.weight[self.partition], bias)


class Highway(Layer):
    """A highway layer: a gate mixes a transform of the input with the input itself.

    Args:
        size: features of the input and the output.
        nonlinearity: that of the transform, `relu` or `tanh`.
        gate_bias: a number added to the gate besides its bias.
        bias: whether the two linear layers have biases.
    """

    size: int
    nonlinearity: str = "relu"
    gate_bias: float = 0.0
    bias: bool = True

    def __post_init__(self) -> None:
        self.transform = nn.Linear(self.size, self.size, self.bias)
        self.gate = nn.Linear(self.size, self.size, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Take (size) or (batch, size); return the shape of the input."""
        gate = torch.sigmoid(self.gate(input) + self.gate_bias)
        transform: Tensor = getattr(torch, self.nonlinearity)(self.transform(input))
        return gate * transform + (1 - gate) * input


class SparseLinear(Layer):
    """A linear layer of sparse inputs.

    Args:
        in_features: size of each input.
        out_features: size of each output.
        index_base: what the first element of an input is called.
    """

    in_features: int
    out_features: int
    index_base: int = 1

    def __post_init__(self) -> None:
        self.weight = nn.Parameter(torch.zeros(self.out_features, self.in_features))
        self.bias = nn.Parameter(torch.zeros(self.out_features))

    def forward(self, input: Any) -> Tensor:
        """Take rows (k, 2) of index and value, or a list or batch of these; return
        (out) or (batch, out).
        """
        if isinstance(input, Tensor) and input.dim() == 2:
            return self._outputs(input)
        return torch.stack([self._outputs(rows) for rows in input])

    def _outputs(self, rows: Tensor) -> Tensor:
        """Return the outputs (out) of one example, (k, 2)."""
        index = rows[:, 0].long() - self.index_base
        columns = self.weight.index_select(1, index)
        return columns @ rows[:, 1].to(self.weight.dtype) + self.bias


class IndexLinear(Layer):
    """A linear layer of inputs that are lists of keys and values.

    Args:
        in_features: number of keys.
        out_features: size of each output.
        index_base: number of the first key.
        normalize: whether to divide values by the largest seen of their key; the weight
            has four more columns then.
    """

    in_features: int
    out_features: int
    index_base: int = 1
    normalize: bool = False

    def __post_init__(self) -> None:
        # With `normalize`, before the weights of a key: the largest value seen, the
        # factor of values, one that only Lua's training uses, and the offset.
        columns = self.out_features + 4 * self.normalize
        self.weight = nn.Parameter(torch.zeros(self.in_features, columns))
        self.bias = nn.Parameter(torch.zeros(self.out_features))

    def forward(self, inputs: Any) -> Tensor:
        """Take keys and values (k), or lists of these, or both joined and lengths;
        return (out) or (batch, out).
        """
        keys, values = inputs[:2]
        if len(inputs) == 3:
            # One tensor each for all examples, and how many elements each example has.
            lengths = [int(length) for length in torch.as_tensor(inputs[2]).reshape(-1)]
            keys = keys.split(lengths)
            values = values.split(lengths)
        elif isinstance(keys, Tensor):
            return self._outputs(keys, values)
        return torch.stack([self._outputs(*pair) for pair in zip(keys, values)])

    def _outputs(self, keys: Tensor, values: Tensor) -> Tensor:
        """Return the outputs (out) of one example, from keys and values (k)."""
        rows = self.weight[keys.long() - self.index_base]
        if self.normalize:
            # The columns before the weights; the third is for training alone.
            largest, factor, offset = rows[:, 0], rows[:, 1], rows[:, 3]
            # What is larger than all that was seen becomes 1 or -1.
            is_larger = values.abs() > largest
            values = torch.where(is_larger, values.sign(), values * factor) + offset
            rows = rows[:, 4:]
        return values.to(rows.dtype) @ rows + self.bias


class Add(Layer):
    """Adds a learned offset for each element of an example.

    Args:
        size: number of offsets; one is added to everything.
        scalar: whether there is one for everything.
    """

    size: int
    scalar: bool = False

    def __post_init__(self) -> None:
        self.bias = nn.Parameter(torch.zeros(self.size))

    def forward(self, input: Tensor) -> Tensor:
        """Take (…) or (batch, …) with `size` elements an example; return the same
        shape.
        """
        if self.scalar or input.shape == self.bias.shape:
            return input + self.bias
        # A batch: one offset for each element of an example.
        return (input.reshape(input.size(0), -1) + self.bias).reshape(input.shape)


def broadcastable(learned: Tensor, input: Tensor) -> Tensor:
    """Return a learned tensor in a shape that broadcasts to the input's.

    It has the elements of the input, or as many dimensions, or one element, or else
    those of one example.
    """
    if input.numel() == learned.numel():
        return learned.reshape(input.shape)
    if input.dim() == learned.dim():
        return learned
    if learned.numel() == 1:
        return learned.reshape(1)
    return learned.reshape(input.shape[1:])


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
        return input + broadcastable(self.bias, input)


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
        return input * broadcastable(self.weight, input)


class Mul(nn.Module):
    """Multiplies everything by one learned factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        return input * self.weight


class _InPlace(torch.autograd.Function):
    """A constant by which the input itself is multiplied, or that is added to it; as in
    Lua, the backward pass restores it, for the layers before.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, constant: Any, is_factor: bool) -> Tensor:
        ctx.memory = input.data
        ctx.constant = constant
        ctx.is_factor = is_factor
        if is_factor:
            ctx.memory.mul_(constant)
        else:
            ctx.memory.add_(constant)
        return same_memory(input)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        if ctx.is_factor:
            ctx.memory.div_(ctx.constant)
            return gradient * ctx.constant, None, None
        ctx.memory.sub_(ctx.constant)
        return gradient, None, None


_multiply_or_add: Callable[..., Tensor] = _InPlace.apply


class MulConstant(Layer):
    """Multiplies by a constant.

    Args:
        constant: the factor.
        inplace: whether to multiply the input itself.
    """

    constant: float
    inplace: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        if not self.inplace:
            return input * self.constant
        if records_gradients(input):
            is_factor = True
            return _multiply_or_add(input, self.constant, is_factor)
        return input.mul_(self.constant)


class SAdd(Layer):
    """Adds a constant, and negates the sum.

    Args:
        addend: the constant.
        negate: whether to negate the sum.
    """

    addend: float
    negate: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        total = input + self.addend
        return -total if self.negate else total


class AddConstant(Layer):
    """Adds a constant.

    Args:
        constant: the constant; a tuple has one number for each feature.
        inplace: whether to add to the input itself.
    """

    constant: float | tuple[float, ...]
    inplace: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        added = torch.as_tensor(self.constant, dtype=input.dtype, device=input.device)
        if not self.inplace:
            return input + added
        if records_gradients(input):
            is_factor = False
            return _multiply_or_add(input, added, is_factor)
        return input.add_(added)


class LookupTable(nn.Embedding):
    """torch.nn.Embedding whose rows may be 1-based, and indexed by numbers of any type.

    Args:
        num_embeddings: number of rows.
        embedding_dim: length of the rows.
        padding_idx: the row without gradient, 0-based; `None` for none.
        max_norm: maximum norm of a row; longer ones are rescaled when used. `None` for
            none.
        norm_type: p of that norm.
        scale_grad_by_freq: whether to divide gradients by the frequency of their rows.
        index_base: number of the first row.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        index_base: int = 1,
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
        )
        self.index_base = index_base

    def forward(self, input: Tensor) -> Tensor:
        """Take (n) or (batch, n); return one dimension more."""
        return super().forward(input.long() - self.index_base)


class LookupTableMaskZero(nn.Embedding):
    """torch.nn.Embedding whose row 0 is set to zero before it is used; rows are indexed
    by numbers of any type.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (n) or (batch, n), of 0 to the number of rows less one; return one
        dimension more.
        """
        index = input.long()
        if torch.compiler.is_compiling():
            # An exported program does not change its weights: it leaves row 0 out.
            return super().forward(index).masked_fill((index == 0)[..., None], 0)
        self.weight.data[0] = 0
        return super().forward(index)


class SpatialFeatNormalization(Layer):
    """Subtracts a mean from each feature and divides by a deviation.

    Args:
        features: number of features.
    """

    features: int

    def __post_init__(self) -> None:
        self.mean = nn.Buffer(torch.zeros(self.features))
        self.std = nn.Buffer(torch.ones(self.features))

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, features, h, w) or (features, h, w); return the same shape."""
        return (input - self.mean[:, None, None]) / self.std[:, None, None]


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

    Attributes:
        unigrams: the probability of each class as noise.
        Z: what the model's probabilities are divided by; 0 or less before it is known.
    """

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
        self.shared = shared  # by the examples of a batch: the samples
        self.normalized = normalized  # in evaluation: probabilities of all classes,
        self.logarithms = logarithms  # or their logarithms
        self.index_base = index_base
        # Placeholders: a file has the probabilities of classes as noise, and what the
        # model's scores are divided by.
        self.unigrams = nn.Buffer(torch.ones(out_features) / out_features)
        self.Z = nn.Buffer(torch.ones(1))

    def forward(self, inputs: Any) -> Any:
        """Take a list of inputs (batch, in) and classes (batch).

        Returns:
            Probabilities (batch, out), or their logarithms, if it is normalized, in
            evaluation. Else a list of probabilities by the model, of the class (batch)
            and of noise (batch, samples), and of the same by the noise.
        """
        input, target = inputs[:2]  # as in Lua, others are ignored
        if self.normalized and not self.training:
            scores = super().forward(input)
            return scores.log_softmax(-1) if self.logarithms else scores.softmax(-1)
        target = target.long() - self.index_base
        # The right class, then the classes of noise, (batch, 1 + samples).
        classes = torch.cat((target[:, None], self._noise(len(target))), 1)
        products = torch.einsum("bi,bki->bk", input, self.weight[classes])
        scores = (products + self.bias[classes]).exp()
        if self.Z <= 0:  # not yet known
            self._estimate_divisor(scores)
        by_model = scores / self.Z
        by_noise = self.unigrams[classes]
        return [by_model[:, 0], by_model[:, 1:], by_noise[:, 0], by_noise[:, 1:]]

    def _estimate_divisor(self, scores: Tensor) -> None:
        """Set Z from the scores of a batch, (batch, 1 + samples), the right class
        first.
        """
        with torch.no_grad():
            # As in Lua, the right classes do not count if the noise is shared.
            counted = scores[:, 1:] if self.shared else scores
            self.Z.fill_(counted.mean() * self.out_features)

    def _noise(self, batch: int) -> Tensor:
        """Return classes drawn by their frequencies, (batch, samples)."""
        count = self.samples if self.shared else self.samples * batch
        noise = torch.multinomial(self.unigrams.float(), count, replacement=True)
        if self.shared:
            return noise.expand(batch, -1)
        return noise.reshape(batch, -1)


class DotProduct(nn.Module):
    """The dot products of two inputs, row by row."""

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take two of (n) or (batch, n); return (1) or (batch)."""
        first, second = as_batches(inputs)
        return (first * second).sum(1)


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosines of the rows of two matrices."""
    # As Lua computes them, from the inverses of the squared lengths.
    eps = 1e-12
    first_inverse = 1 / (first.square().sum(1) + eps)
    second_inverse = 1 / (second.square().sum(1) + eps)
    return (first * second).sum(1) * (first_inverse * second_inverse).sqrt()


class CosineDistance(nn.Module):
    """The cosines of two inputs, row by row."""

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take two of (n) or (batch, n); return (1) or (batch)."""
        return cosines(*as_batches(inputs))


class PairwiseDistance(Layer):
    """The distances of two inputs, row by row.

    Args:
        p: of the norm.
    """

    p: float = 2.0

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take two of (n) or (batch, n); return (1) or (batch)."""
        first, second = as_batches(inputs)
        distance: Tensor = torch.linalg.vector_norm(first - second, self.p, 1)
        return distance


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
        eps = 1e-12  # of Lua
        weight_lengths = torch.linalg.vector_norm(self.weight, dim=1) + eps
        input_length = torch.linalg.vector_norm(input, dim=-1, keepdim=True) + eps
        cosines: Tensor = input @ self.weight.t() / weight_lengths / input_length
        return cosines


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
    """The numbers of the nearest points, with a gradient for the points alone."""

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
        # As in Lua, the gradient of the output is not used: the input gets none, and a
        # point its mean distance from the inputs nearest to it.
        is_member = nn.functional.one_hot(nearest, len(points)).to(points.dtype)
        total = is_member.t() @ (points[nearest] - input) * ctx.scale
        # A point without members stays where it is: 0 / 1e-7.
        mean = total / (is_member.sum(0) + 1e-7).unsqueeze(1)
        return torch.zeros_like(input), mean, None, None


_nearest: Callable[..., Tensor] = _Nearest.apply


class Kmeans(Layer):
    """The index of the nearest of some points; the gradient moves each point to the
    mean of the inputs nearest to it.

    Args:
        k: number of points.
        features: size of each input.
        scale: of the gradient.
        index_base: number of the first point.

    Attributes:
        weight: the points.
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
