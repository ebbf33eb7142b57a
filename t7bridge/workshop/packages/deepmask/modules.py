"""Networks and a layer of DeepMask and SharpMask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from t7bridge.layers import Layer


class DeepMask(Layer):
    """A mask and a score for each patch of an image.

    Args:
        trunk: features of the patches.
        maskBranch: maps features to masks.
        scoreBranch: maps features to scores.
    """

    trunk: nn.Module
    maskBranch: nn.Module
    scoreBranch: nn.Module

    def forward(self, input: Tensor) -> list[Tensor]:
        """Take (batch, 3, h, w); return masks and scores. In Lua the branches are
        called one by one.
        """
        features = self.trunk(input)
        return [self.maskBranch(features), self.scoreBranch(features)]


class SharpMask(nn.Module):
    """A mask for each patch of an image, refined step by step with outputs of layers
    of the trunk.

    Args:
        trunk: features of the patches.
        scoreBranch: scores of the features.
        maskBranchDM: the coarse masks of the network that the trunk comes from.
        refs: the first step, for the features, and those that each combine a list of a
            layer's output and of the step before, as `ref0`, `ref1`, ….
        skips: the positions of these layers in the trunk, 0-based.
    """

    def __init__(
        self,
        trunk: nn.Sequential,
        scoreBranch: nn.Module,
        maskBranchDM: nn.Module,
        skips: tuple[int, ...],
        **refs: nn.Module,
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.scoreBranch = scoreBranch
        self.maskBranchDM = maskBranchDM  # not called: `refs` make the masks
        # Positions of layers in the trunk, 0-based: the first one's output is for `ref1`.
        self.skips = skips
        for name, ref in refs.items():  # `ref0` and one for each skip
            self.add_module(name, ref)

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, 3, h, w); return masks. Scores are
        `scoreBranch(trunk(input))`.
        """
        outputs: list[Any] = []
        output: Any = input
        for layer in self.trunk:
            output = layer(output)
            outputs.append(output)
        output = self.get_submodule("ref0")(output)
        for number, position in enumerate(self.skips, 1):
            output = self.get_submodule(f"ref{number}")([outputs[position], output])
        mask: Tensor = output
        return mask


class SpatialSymmetricPadding(Layer):
    """Mirrors an image at its borders, including the outermost row or column; negative
    widths crop.

    Args:
        padding: widths on the left, the right, above and below.
    """

    padding: tuple[int, int, int, int]

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n, h, w); return the same dimensions."""
        left, right, above, below = self.padding
        image = F.pad(input, [min(0, width) for width in self.padding])
        # Lua passes no gradient back through mirrored elements.
        rows = [image[..., : max(0, above), :].flip(-2).detach(), image]
        if below > 0:
            rows.append(image[..., -below:, :].flip(-2).detach())
        tall = torch.cat(rows, -2)
        columns = [tall[..., : max(0, left)].flip(-1).detach(), tall]
        if right > 0:
            columns.append(tall[..., -right:].flip(-1).detach())
        return torch.cat(columns, -1)
