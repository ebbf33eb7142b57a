"""Layers of OpenNMT."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from t7bridge.layers import Layer, dim_of


class Wrapper(Layer):
    """A module under the name `net`.

    Args:
        net: the module.
        first: whether to pass it only the first element of a list.
    """

    net: nn.Module
    first: bool = False

    def forward(self, input: Any) -> Any:
        """Return the output of the module."""
        if self.first and isinstance(input, (list, tuple)):
            input = input[0]
        return self.net(input)


class JoinReplicateTable(Layer):
    """Tensors concatenated along a dimension, after those of extent 1 along another
    were repeated there.

    Args:
        replicate_dim: the dimension of the repetition.
        join_dim: the dimension of the concatenation.
        n_input_dims: dimensions of one example; `None` if both count the batch.
    """

    replicate_dim: int
    join_dim: int
    n_input_dims: int | None = None

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Return one tensor of as many dimensions."""
        replicate_dim = dim_of(inputs[0], self.replicate_dim, self.n_input_dims)
        join_dim = dim_of(inputs[0], self.join_dim, self.n_input_dims)
        extent = max(input.size(replicate_dim) for input in inputs)
        even = []
        for input in inputs:
            if input.size(replicate_dim) == 1:
                input = input.repeat_interleave(extent, replicate_dim)
            even.append(input)
        return torch.cat(even, join_dim)
