"""New elements for tensors that share a storage."""

from __future__ import annotations

import numpy as np

from t7bridge.graph.tensor import Tensor
from t7bridge.values.assign import Assignment, assign


def test_a_storage_among_the_sources_clashes_with_others() -> None:
    """A tensor that is to keep its elements clashes with one of the same storage that gets others."""
    target = Tensor.from_numpy(np.arange(4, dtype="f4"))
    ones = Tensor.from_numpy(np.ones(4, "f4"))
    assert assign([Assignment("first", target, ones), Assignment("second", target, target)]) == [("first", "second")]
    assert (target.array == 1).all()
