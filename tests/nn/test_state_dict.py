"""State dicts as values of Python: copies, pickles and unions."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from t7bridge import Table, Tensor, TorchObject, state_dict
from t7bridge.nn.state_dict import Recorded, StateDict, recorded


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


def table(*numbers: float) -> Table:
    return Table.from_list(list(numbers))


def layer_with_record(entry: dict[str, Any] | None = None, **record: Any) -> TorchObject:
    """Return a linear layer from 3 features to 2, without a bias, whose weight is recorded as `kernel`.

    Args:
        entry: what the layer records of its weight, besides the key, and other than the size of the weight.
        record: what it records as the root, besides the key, or instead of it.
    """
    of_weight = {"key": "kernel", "size": table(2.0, 3.0), **(entry or {})}
    fields = {
        "weight": Tensor.from_numpy(np.ones((2, 3), "f4")),
        "t7bridge": Table.of({"weight": Table.of(of_weight)}),
        "t7bridge_state_dict": Table.of({"keys": Table.from_list([b"kernel"]), **record}),
    }
    return TorchObject("nn.Linear", 1, Table.of(fields))


def record_of(root: TorchObject) -> Recorded:
    record = recorded(root, state_dict(root, own_keys=True))
    assert record is not None
    return record


@pytest.mark.parametrize(
    "entry",
    [
        {"size": table(2.0, 3.0), "start": float("nan")},
        {"size": table(2.0, 3.0), "start": float("inf")},
        {"size": table(float("nan"))},
        {"size": table(-2.0, -3.0)},
        {"size": table(2.0, 1.5, 2.0)},
        # Its transpose has three rows; the layer has two.
        {"size": table(2.0, 3.0), "transposed": True},
    ],
)
def test_damaged_records_of_pytorchs_names(entry: dict[str, Any]) -> None:
    """A record whose numbers are no sizes, or not those of the layer, is not followed."""
    state = state_dict(layer_with_record(entry))
    assert list(state) == ["weight"]
    assert [note.code for note in state.notes] == ["record"]


def test_numbers_of_scalars_that_are_none() -> None:
    """They are those of outputs: what is not a whole number is no output's."""
    layer = layer_with_record(scalars=table(float("nan"), 2.0, float("inf")))
    assert record_of(layer).scalars == [2]


def test_records_without_the_key_of_a_tensor() -> None:
    """A tensor that a layer records, and the root does not name, is not left out."""
    layer = layer_with_record()
    layer["bias"] = Tensor.from_numpy(np.ones(2, "f4"))
    layer["t7bridge"]["bias"] = Table.of({"key": "offset", "size": table(2.0)})
    state = state_dict(layer)
    assert list(state) == ["weight", "bias"]
    assert [note.code for note in state.notes] == ["record"]


def test_records_with_a_key_twice() -> None:
    """A state dict has it once."""
    layer = layer_with_record(keys=Table.from_list([b"kernel", b"kernel"]))
    assert record_of(layer).keys == ["kernel"]
