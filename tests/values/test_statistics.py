"""Statistics of tensors cost what their storages hold."""

from __future__ import annotations

import numpy as np
import pytest
from bounds import bounded

from t7bridge import Storage, Tensor
from t7bridge.graph import FLOAT32, statistics_of


def test_repeated_elements_are_read_once() -> None:
    """A stride of 0 changes no statistic but the counts; 300 tensors of a million elements each take no time."""
    storage = Storage.from_array(np.array([0, 1, np.nan, 0], "f4"))
    whole = Tensor(FLOAT32, storage, (50, 2, 30, 2), (0, 2, 0, 1))
    numbers = statistics_of(whole, bins=4)
    plain = statistics_of(Tensor.from_numpy(np.ascontiguousarray(whole.numpy())), bins=4)
    assert numbers.pop("bins") == plain.pop("bins")
    assert numbers == pytest.approx(plain)
    with bounded(30):
        for _ in range(300):
            assert statistics_of(Tensor(FLOAT32, storage, (1000, 1000), (0, 0)))["zeros"] == 1_000_000
