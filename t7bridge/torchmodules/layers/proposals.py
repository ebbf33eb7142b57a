"""Networks for object mask proposals: a trunk and branches."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class DeepMask(nn.Module):
    """A mask and a score for each patch of an image.

    Args:
        trunk: features of the patches.
        maskBranch: maps features to masks.
        scoreBranch: maps features to scores.
    """

    def __init__(
        self, trunk: nn.Module, maskBranch: nn.Module, scoreBranch: nn.Module
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.maskBranch = maskBranch
        self.scoreBranch = scoreBranch

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
        self.maskBranchDM = maskBranchDM
        self.skips = skips
        for name, ref in refs.items():
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
