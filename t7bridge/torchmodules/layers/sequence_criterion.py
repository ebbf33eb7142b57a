"""Criterions of sequences, of masked batches, and of noise-contrastive estimation.
Sources: rnn, dpnn.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SequencerCriterion(nn.Module):
    """The sum of a criterion over the steps of a sequence.

    Args:
        criterion: the criterion.
        average: whether to divide the sum by the number of steps.
        repeat_target: whether all steps have the same target.
    """

    def __init__(
        self, criterion: nn.Module, average: bool = False, repeat_target: bool = False
    ) -> None:
        super().__init__()
        self.criterion = criterion
        self.average = average
        self.repeat_target = repeat_target

    def forward(self, inputs: Any, targets: Any) -> Tensor:
        """Take lists, or tensors with time as first dimension; return a scalar."""
        if self.repeat_target:
            targets = [targets] * len(inputs)
        losses = torch.stack(
            [self.criterion(input, target) for input, target in zip(inputs, targets)]
        )
        return losses.mean() if self.average else losses.sum()


class MaskZeroCriterion(nn.Module):
    """Omits the examples of a batch that are zeros.

    Args:
        criterion: the criterion.
        zero_mask: whether zero examples are not detected but given, by `set_zero_mask`.
    """

    def __init__(self, criterion: nn.Module, zero_mask: bool = False) -> None:
        super().__init__()
        self.criterion = criterion
        self.told = zero_mask
        self.zero_mask: Any = None

    def forward(self, input: Any, target: Any) -> Any:
        """Take a tensor, or a list whose first tensor is checked, with a batch; return
        the output of the criterion, or 0.
        """
        first = input
        while isinstance(first, (list, tuple)):
            first = first[0]
        empty = (first.flatten(1) == 0).all(1)
        if self.told:
            if self.zero_mask is None:
                raise RuntimeError(
                    "set_zero_mask must be called first, with a mask or False"
                )
            empty = (
                self.zero_mask.bool()
                if isinstance(self.zero_mask, Tensor)
                else torch.zeros_like(empty)
            )
        if empty.all():
            return first.sum() * 0
        return self.criterion(self._picked(input, ~empty), self._picked(target, ~empty))

    def _picked(self, value: Any, kept: Tensor) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._picked(part, kept) for part in value]
        return value[kept]

    def set_zero_mask(self, mask: Any) -> None:
        """Set the zero examples of the next batch: (batch), or False for none."""
        self.zero_mask = mask


class BinaryLogisticRegression(nn.Module):
    """The logistic loss of scores and classes, which are -1 or 1.

    Args:
        average: whether to divide the sum by the number of examples.
    """

    def __init__(self, average: bool = True) -> None:
        super().__init__()
        self.average = average

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take (batch) or (batch, 1); return a scalar."""
        losses = F.softplus(-input.flatten() * target.flatten())
        return losses.mean() if self.average else losses.sum()


class SpatialBinaryLogisticRegression(nn.Module):
    """Half the mean logistic loss of images of scores and of classes, which are -1 or
    1.

    Args:
        average: whether to average over the batch too, not sum.
    """

    def __init__(self, average: bool = True) -> None:
        super().__init__()
        self.average = average

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take (batch, 1, h, w) or (1, h, w); return a scalar."""
        loss = F.softplus(-input * target).sum() / (2 * input.size(-1) * input.size(-2))
        return loss / input.size(0) if self.average and input.dim() == 4 else loss


class NCECriterion(nn.Module):
    """The loss of noise-contrastive estimation.

    Args:
        average: whether to return the mean of the batch, not the sum.
    """

    def __init__(self, average: bool = True) -> None:
        super().__init__()
        self.average = average

    def forward(self, inputs: list[Tensor], target: Any = None) -> Tensor:
        """Take the output of an `NCE` layer, (batch) or (batch, k) probabilities;
        return a scalar.
        """
        by_model, sampled_by_model, by_noise, sampled_by_noise = inputs
        count = sampled_by_model.size(1)
        # Lua's derivatives omit the probabilities of the noise.
        by_noise, sampled_by_noise = (
            by_noise.detach() * count,
            sampled_by_noise.detach() * count,
        )
        right = by_model / (by_model + by_noise + 1e-7)
        wrong = sampled_by_noise / (sampled_by_model + sampled_by_noise + 1e-7)
        loss = -(right.log().sum() + wrong.log().sum())
        return loss / by_model.size(0) if self.average else loss
