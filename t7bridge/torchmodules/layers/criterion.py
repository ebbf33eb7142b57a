"""Criterions, as Lua calls losses: of equal shapes, of distances, of classes, and
composed ones.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import Layer, as_batches, first_tensor, map_nested
from .linear import cosines
from .recurrent import Masked

# Inputs and targets have equally many elements, in the same order; their shapes may
# differ, as in Lua.


class Criterion(Layer, kw_only=True):
    """The mean or the sum of losses.

    Args:
        average: whether to return the mean, not the sum.
    """

    average: bool = True

    def losses(self, input: Any, target: Any) -> Tensor:
        """Return the losses of an input and a target."""
        raise NotImplementedError

    def forward(self, input: Any, target: Any = None) -> Tensor:
        """Return a scalar."""
        losses = self.losses(input, target)
        return losses.mean() if self.average else losses.sum()


class WeightedCriterion(Criterion):
    """A criterion with a weight for each class.

    Args:
        classes: number of weights; `None` for none.
        average: whether to return the mean, not the sum.

    Attributes:
        weight: of each class; `None` if all count alike.
    """

    classes: int | None = None

    def __post_init__(self) -> None:
        size = self.classes
        self.weight = None if size is None else nn.Buffer(torch.ones(size))


class MSECriterion(Criterion):
    """Squares of differences. Arguments as for `Criterion`."""

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of equal element count."""
        return (input - target.reshape(input.shape)).square()


class AbsCriterion(Criterion):
    """Absolute differences, with gradient 1 at 0. Arguments as for `Criterion`."""

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of equal element count."""
        difference = input - target.reshape(input.shape)
        return torch.where(difference >= 0, difference, -difference)


class SmoothL1Criterion(Criterion):
    """Halves of squared differences below 1, and absolute ones less a half above.
    Arguments as for `Criterion`.
    """

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of equal element count."""
        return F.smooth_l1_loss(input, target.reshape(input.shape), reduction="none")


class WeightedMSECriterion(Criterion):
    """Squares of differences to the weighted target.

    Args:
        weight_shape: of the weights of one example.
        average: whether to return the mean, not the sum.
    """

    weight_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self.weight = nn.Buffer(torch.ones(self.weight_shape))

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of one shape."""
        weight: Tensor = self.weight
        is_batch = input.dim() == weight.dim() + 1
        if not is_batch:
            weight = weight.reshape(input.shape)
        return (input - target.reshape(input.shape) * weight).square()


class AutoCropMSECriterion(Criterion):
    """Squared differences from the middle of a target that may be larger. Arguments as
    for `Criterion`.
    """

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take (…, h, w) and (…, H, W)."""
        height, width = input.shape[-2:]
        top = (target.size(-2) - height) // 2
        left = (target.size(-1) - width) // 2
        middle = target[..., top : top + height, left : left + width]
        return (input - middle).square()


class BCECriterion(WeightedCriterion):
    """Binary cross entropy. Arguments as for `WeightedCriterion`: a class is a
    column.
    """

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take probabilities and targets of equal element count."""
        target = target.reshape(input.shape)
        with torch.no_grad():
            # Lua adds this to what it divides by, and to what it takes logarithms of.
            eps = 1e-12
            positive = input + eps
            negative = 1 - input + eps
            losses = -(positive.log() * target + negative.log() * (1 - target))
            # Lua's gradient, which is 0 where both are 0 or both are 1.
            slopes = (input - target) / (positive * negative)
        # This adds 0; its gradient is the slopes.
        losses = losses + (input - input.detach()) * slopes
        return losses if self.weight is None else losses * self.weight


class MarginCriterion(Criterion):
    """Hinge loss: products of input and target, 1 or -1, below a margin.

    Args:
        margin: the margin.
        average: whether to return the mean, not the sum.
    """

    margin: float = 1.0

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of equal element count."""
        return F.relu(self.margin - input * target.reshape(input.shape))


class SoftMarginCriterion(Criterion):
    """Logarithms of 1 + exp(-input * target), for targets 1 or -1. Arguments as for
    `Criterion`.
    """

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take two tensors of equal element count."""
        return F.softplus(-input * target.reshape(input.shape))


class DistKLDivCriterion(Criterion):
    """The Kullback-Leibler divergence of probabilities from logarithms of
    probabilities. Arguments as for `Criterion`.
    """

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take logarithms and probabilities of one shape."""
        return F.kl_div(input, target, reduction="none")


class HingeEmbeddingCriterion(MarginCriterion):
    """Distances of similar pairs (target 1), and of others (-1) the rest to a margin.
    Arguments as for `MarginCriterion`.
    """

    def losses(self, input: Tensor, target: Any) -> Tensor:
        """Take distances and targets."""
        target = torch.as_tensor(target, device=input.device).reshape(-1)
        # One number counts for all.
        target = target.expand(input.numel()).reshape(input.shape)
        # As in Lua, a target of neither 1 nor -1 counts as both.
        similar = torch.where(target == -1, 0, input)
        others = torch.where(target == 1, 0, (self.margin - input).clamp(min=0))
        return similar + others


class L1HingeEmbeddingCriterion(Layer):
    """The distance of two similar inputs (target 1), or of others (-1) the rest to a
    margin.

    Args:
        margin: the margin.
    """

    margin: float = 1.0

    def forward(self, inputs: list[Tensor], target: Any) -> Tensor:
        """Take two tensors of one shape and a number; return a scalar. As in Lua, any
        number but -1 means similar.
        """
        distance = (inputs[0] - inputs[1]).abs().sum()
        if float(target) == -1:
            return (self.margin - distance).clamp(min=0)
        return distance


class CosineEmbeddingCriterion(Criterion):
    """One minus the cosine of similar pairs (target 1), and of others (-1) the amount
    by which the cosine exceeds a margin.

    Args:
        margin: the margin.
        average: whether to return the mean, not the sum.
    """

    margin: float = 0.0

    def losses(self, input: list[Tensor], target: Any) -> Tensor:
        """Take two of (n) or (batch, n) and targets."""
        cosine = cosines(*as_batches(input))
        target = torch.as_tensor(target, device=cosine.device).reshape(-1)
        above_margin = (cosine - self.margin).clamp(min=0)
        # As in Lua, a target of neither 1 nor -1 leaves the cosine.
        losses = torch.where(target == -1, above_margin, cosine)
        return torch.where(target == 1, 1 - cosine, losses)


class MarginRankingCriterion(MarginCriterion):
    """The amount by which the first input fails to exceed the second (target 1), or
    vice versa (-1), by a margin. Arguments as for `MarginCriterion`.
    """

    def forward(self, inputs: list[Tensor], target: Any = None) -> Tensor:
        """Take two tensors of one shape and targets; return a scalar."""
        first, second = inputs[:2]
        target = torch.as_tensor(target, device=first.device, dtype=first.dtype)
        losses: Tensor = (self.margin - target * (first - second)).clamp(min=0)
        if self.average and losses.dim():
            return losses.sum() / losses.size(0)  # by the examples, not the elements
        return losses.sum()


class DistanceRatioCriterion(Criterion):
    """Prefers a small first distance to a small second one. Arguments as for
    `Criterion`; the mean is that of the examples.
    """

    def forward(self, inputs: list[Tensor], target: Any = None) -> Tensor:
        """Take two tensors of distances; return a scalar."""
        first, second = inputs
        # -log(exp(-first) / (exp(-first) + exp(-second)))
        losses: Tensor = first + torch.logaddexp(-first, -second)
        if self.average:
            return losses.sum() / first.size(0)
        return losses.sum()


class L1Cost(nn.Module):
    """The sum of absolute values."""

    def forward(self, input: Tensor, target: Any = None) -> Tensor:
        """Take a tensor; return a scalar."""
        return input.abs().sum()


class BinaryLogisticRegression(Criterion):
    """The logistic loss of scores and classes, which are -1 or 1. Arguments as for
    `Criterion`.
    """

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take (batch) or (batch, 1)."""
        return F.softplus(-input.flatten() * target.flatten())


class SpatialBinaryLogisticRegression(Criterion):
    """Half the mean logistic loss of images of scores and of classes, which are -1 or
    1. Arguments as for `Criterion`; without `average`, images are summed.
    """

    def forward(self, input: Tensor, target: Any = None) -> Tensor:
        """Take (batch, 1, h, w) or (1, h, w); return a scalar."""
        positions = input.size(-1) * input.size(-2)
        loss = F.softplus(-input * target).sum() / (2 * positions)
        is_batch = input.dim() == 4
        return loss / input.size(0) if self.average and is_batch else loss


def classes_from_0(target: Any, input: Tensor, index_base: int) -> Tensor:
    """Return classes counted from 0, on the device of the input."""
    return torch.as_tensor(target, device=input.device).long() - index_base


class ClassNLLCriterion(WeightedCriterion):
    """The negative log-likelihood of the right class.

    Args:
        classes: number of weights, one a class; `None` for none.
        average: whether to return the weighted mean, not the sum.
        ignore_index: a target that does not count.
        index_base: number of the first class.
    """

    ignore_index: int = -100
    index_base: int = 1

    def forward(self, input: Tensor, target: Any = None) -> Tensor:
        """Take logarithms (n), (batch, n) or (batch, n, h, w) and classes (), (batch)
        or (batch, h, w).
        """
        scores = input if input.dim() > 1 else input.unsqueeze(0)
        classes = classes_from_0(target, input, self.index_base)
        batch, _, *extents = scores.shape
        classes = classes.reshape(batch, *extents)
        ignored = self.ignore_index - self.index_base
        total = F.nll_loss(
            scores, classes, self.weight, ignore_index=ignored, reduction="sum"
        )
        if not self.average:
            return total
        counts = classes != ignored
        weights = counts.to(total.dtype)
        if self.weight is not None:
            # The ignored class may be any number, also one beyond the weights.
            weights = weights * self.weight[classes.masked_fill(~counts, 0)]
        divisor = weights.sum()
        # Where nothing counts, the loss is 0.
        return total / divisor.masked_fill(divisor == 0, 1)


class CrossEntropyCriterion(ClassNLLCriterion):
    """`ClassNLLCriterion` of the log-softmax of the input. Arguments as there."""

    def forward(self, input: Tensor, target: Any = None) -> Tensor:
        """Take scores (n) or (batch, n) and classes, with any dimensions of one
        element; return a scalar.
        """
        # Lua's layer squeezes; cuDNN's, of images, does not.
        scores = input.squeeze() if input.dim() < 4 else input
        scores = torch.log_softmax(scores, 1 if scores.dim() > 1 else 0)
        return super().forward(scores, target)


class MultiMarginCriterion(WeightedCriterion):
    """The amounts by which other classes violate a margin below the right one.

    Args:
        classes: number of weights, one a class; `None` for none.
        p: 1, or 2 for squares.
        margin: the margin.
        average: whether to divide the sum by the number of examples.
        index_base: number of the first class.
    """

    p: int = 1
    margin: float = 1.0
    index_base: int = 1

    def losses(self, input: Tensor, target: Any) -> Tensor:
        """Take scores (n) or (batch, n) and classes."""
        scores = input if input.dim() > 1 else input.unsqueeze(0)
        classes = classes_from_0(target, input, self.index_base).reshape(-1)
        weight = None if self.weight is None else self.weight.to(scores.dtype)
        return F.multi_margin_loss(
            scores, classes, self.p, self.margin, weight, reduction="none"
        )


class MultiLabelMarginCriterion(Criterion):
    """The amounts by which wrong classes come closer than 1 to each right one.

    Args:
        average: whether to divide the sum by the number of examples.
        index_base: number of the first class; the one before it ends a list of classes.
    """

    index_base: int = 1

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take scores (n) or (batch, n) and lists of classes of the same shape."""
        # PyTorch's lists end with -1.
        classes = target.long() - self.index_base
        return F.multilabel_margin_loss(input, classes, reduction="none")


class MultiLabelSoftMarginCriterion(WeightedCriterion):
    """Binary cross entropy of each class separately. Arguments as for
    `WeightedCriterion`.
    """

    def losses(self, input: Tensor, target: Tensor) -> Tensor:
        """Take scores and targets 0 or 1, (n) or (batch, n)."""
        return F.binary_cross_entropy_with_logits(
            input, target.reshape(input.shape), self.weight, reduction="none"
        )


class ClassSimplexCriterion(Criterion):
    """Squared differences from the corner of a regular simplex that represents the
    class.

    Args:
        classes: number of classes.
        average: whether to return the mean, not the sum.
        index_base: number of the first class.
    """

    classes: int
    index_base: int = 1

    def losses(self, input: Tensor, target: Any) -> Tensor:
        """Take (n) or (batch, n) and classes."""
        classes = classes_from_0(target, input, self.index_base).reshape(-1)
        corners = self._corners().to(input)[classes].reshape(input.shape)
        return (input - corners).square()

    def _corners(self) -> Tensor:
        """Return a unit vector for each class; any two have the product -1 / n."""
        n = self.classes - 1
        corners = torch.zeros(self.classes, self.classes, dtype=torch.float64)
        for k in range(n):
            # What corner k needs in dimension k to have the length 1.
            own = sqrt(1 - float(corners[k, :k].square().sum()))
            corners[k, k] = own
            # The later corners are equal there, for products with corner k of -1 / n.
            corners[k + 1 :, k] = (own**2 - 1 - 1 / n) / own
        return corners


class ParallelCriterion(nn.Sequential):
    """The weighted sum of several criterions of one input and target each.

    Args:
        criterions: the criterions.
        weights: one for each.
        repeat_target: whether all have the same target.
    """

    def __init__(
        self,
        *criterions: nn.Module,
        weights: tuple[float, ...],
        repeat_target: bool = False,
    ) -> None:
        super().__init__(*criterions)
        self.weights = weights
        self.repeat_target = repeat_target

    def forward(self, inputs: Any, targets: Any = None) -> Tensor:
        """Take lists of inputs and targets; return a scalar."""
        if self.repeat_target:
            targets = [targets] * len(self)
        losses = []
        for index, weight in enumerate(self.weights):
            losses.append(weight * self[index](inputs[index], targets[index]))
        return torch.stack(losses).sum()


class MultiCriterion(ParallelCriterion):
    """The weighted sum of several criterions of the same input and target.

    Args:
        criterions: the criterions.
        weights: one for each.
    """

    def __init__(self, *criterions: nn.Module, weights: tuple[float, ...]) -> None:
        super().__init__(*criterions, weights=weights, repeat_target=True)

    def forward(self, input: Any, target: Any = None) -> Tensor:
        """Return a scalar."""
        return super().forward([input] * len(self), target)


class CriterionTable(Layer):
    """A criterion as a layer of a list of input and target.

    Args:
        criterion: the criterion.
    """

    criterion: nn.Module

    def forward(self, inputs: list[Any]) -> Any:
        """Return the output of the criterion."""
        return self.criterion(*inputs)


class ModuleFromCriterion(Layer):
    """A criterion as a layer of a list of input and target, which gets no gradient.

    Args:
        criterion: the criterion.
    """

    criterion: nn.Module

    def forward(self, inputs: list[Any]) -> Tensor:
        """Return the output of the criterion, (1)."""
        input, target = inputs[:2]
        if isinstance(target, Tensor):
            target = target.detach()
        loss: Tensor = self.criterion(input, target)
        return loss.reshape(1)


class ModuleCriterion(nn.Module):
    """A criterion after modules that transform its input and its target.

    Args:
        criterion: the criterion.
        inputModule: transforms the input.
        targetModule: transforms the target.
    """

    def __init__(
        self,
        criterion: nn.Module,
        inputModule: nn.Module | None = None,
        targetModule: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.inputModule = inputModule
        self.targetModule = targetModule
        self.criterion = criterion

    def forward(self, input: Any, target: Any) -> Any:
        """Return the output of the criterion."""
        if self.inputModule is not None:
            input = self.inputModule(input)
        if self.targetModule is not None:
            target = self.targetModule(target)
        return self.criterion(input, target)


class SequencerCriterion(Criterion, kw_only=True):
    """The sum of a criterion over the steps of a sequence.

    Args:
        criterion: the criterion.
        average: whether to divide the sum by the number of steps.
        repeat_target: whether all steps have the same target.
    """

    criterion: nn.Module
    average: bool = False
    repeat_target: bool = False

    def losses(self, input: Any, target: Any) -> Tensor:
        """Take lists, or tensors with time as first dimension; return (time)."""
        targets = [target] * len(input) if self.repeat_target else target
        pairs = zip(input, targets, strict=True)
        return torch.stack([self.criterion(*pair) for pair in pairs])


class MaskZeroCriterion(Masked):
    """A criterion that omits the examples of a batch that are zeros.

    Args:
        criterion: the criterion.
        zero_mask: whether zero examples are not detected but passed to
            `set_zero_mask`: (batch), 1 where they are.
    """

    def __init__(self, criterion: nn.Module, zero_mask: bool = False) -> None:
        super().__init__()
        self.criterion = criterion
        self.mask_zero = "mask" if zero_mask else "zeros"

    def forward(self, input: Any, target: Any) -> Any:
        """Take a tensor, or a list whose first tensor is checked, with a batch; return
        the output of the criterion, or 0.
        """
        first = first_tensor(input)
        is_zero = self.zero_rows(first.flatten(1))
        if is_zero is None:  # the mask is False: there is none
            return self.criterion(input, target)
        if is_zero.all():
            return first.sum() * 0  # 0, with gradients of 0

        def without_zeros(value: Tensor) -> Tensor:
            return value[~is_zero]

        used = map_nested(without_zeros, input)
        return self.criterion(used, map_nested(without_zeros, target))


class NCECriterion(Criterion):
    """The loss of noise-contrastive estimation. Arguments as for `Criterion`; the mean
    is that of the batch.
    """

    def forward(self, inputs: list[Tensor], target: Any = None) -> Tensor:
        """Take the output of an `NCE` layer, (batch) or (batch, k) probabilities;
        return a scalar.
        """
        # Probabilities of the right class and of samples of noise, by the model; then
        # of the same by the noise.
        by_model, sampled_by_model, by_noise, sampled_by_noise = inputs
        # Noise is more likely by the number of its samples for each right class. Lua's
        # derivatives omit the probabilities of the noise.
        samples = sampled_by_model.size(1)
        by_noise = by_noise.detach() * samples
        sampled_by_noise = sampled_by_noise.detach() * samples
        eps = 1e-7  # of Lua
        is_right = by_model / (by_model + by_noise + eps)
        is_noise = sampled_by_noise / (sampled_by_model + sampled_by_noise + eps)
        loss = -(is_right.log().sum() + is_noise.log().sum())
        return loss / by_model.size(0) if self.average else loss


class ClassReward(Layer):
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

    criterion: nn.Module
    scale: float = 1.0
    average: bool = True
    index_base: int | None = 1

    def __post_init__(self) -> None:
        self.rewarded: list[nn.Module] = []

    def forward(self, inputs: list[Tensor], target: Tensor) -> Tensor:
        """Take a list of scores (batch, classes), or (batch) of one probability, and
        baseline (batch) or (batch, 1); and classes (batch); return a scalar.
        """
        scores, baseline = inputs[:2]
        reward = self._is_right(scores, target).to(scores) * self.scale
        self._reward_samples(reward - baseline.detach().reshape(reward.shape))
        loss = -reward.mean() if self.average else -reward.sum()
        # This adds 0; its gradient teaches the baseline.
        learned = self.criterion(baseline, reward.reshape(baseline.shape))
        result: Tensor = loss + (learned - learned.detach())
        return result

    def _is_right(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return which examples have the right class."""
        if self.index_base is None:  # one probability for each example
            return (scores > 0.5) == (target > 0.5)
        chosen = scores.reshape(-1, scores.size(-1)).argmax(1) + self.index_base
        return chosen == target.reshape(-1)

    def _reward_samples(self, advantage: Tensor) -> None:
        """Set the reward of each layer that samples, in the modules that `rewarded`
        lists, from the advantage of each example.
        """
        reward = advantage / len(advantage) if self.average else advantage
        for module in self.rewarded:
            for part in module.modules():
                if "reward" in vars(part):  # a layer that samples
                    vars(part)["reward"] = reward
