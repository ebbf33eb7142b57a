"""The limit of operations that are written step by step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import t7bridge
from t7bridge.errors import UnsupportedError


class Product(nn.Module):
    def forward(self, x):
        return x.prod(1)


@pytest.mark.slow
def test_a_dimension_of_more_than_256_steps_is_refused(tmp_path):
    """The product of 256 numbers is written as so many layers; that of 257 is refused, and says how many there are."""
    t7bridge.save_module(Product(), tmp_path / "m.t7", example_inputs=torch.randn(1, 256))
    with pytest.raises(UnsupportedError, match="257 steps"):
        t7bridge.save_module(Product(), tmp_path / "n.t7", example_inputs=torch.randn(1, 257))
