"""State dicts as values of Python: copies, pickles and unions."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from t7bridge import Table, Tensor, TorchObject, state_dict
from t7bridge.nn.state_dict import StateDict


@pytest.fixture
def state() -> StateDict:
    """The state dict of a Linear layer."""
    tensors = {"weight": Tensor.from_numpy(np.ones((2, 3), "f4")), "bias": Tensor.from_numpy(np.ones(2, "f4"))}
    return state_dict(TorchObject("nn.Linear", 1, Table.of(tensors)))


def test_copies_and_pickles(state: StateDict) -> None:
    """They have all tensors, whatever else a state dict keeps of its model."""
    for other in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert list(other) == ["weight", "bias"]
        assert [np.array_equal(other[key].array, tensor.array) for key, tensor in state.items()] == [True, True]


def test_unions_lose_nothing(state: StateDict) -> None:
    """A union, which would have no origins, is refused, not made without the tensors."""
    for union in (lambda: state | {"more": state["bias"]}, lambda: {"more": state["bias"]} | state):
        with pytest.raises(TypeError):
            union()
