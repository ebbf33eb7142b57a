"""Work grows as the number of layers does, counted in calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bounds import calls_of

import t7bridge
from t7bridge import Table, Tensor, TorchObject

pytest.importorskip("torch")


def layer(number: int) -> TorchObject:
    """Return a layer with weights, or one without."""
    if number % 2:
        return TorchObject("nn.Tanh")
    weight = Tensor.from_numpy(np.full((3, 3), number, "f4"))
    bias = Tensor.from_numpy(np.full(3, -number, "f4"))
    linear = TorchObject("nn.Linear")
    linear[b"weight"] = weight
    linear[b"bias"] = bias
    return linear


def flat(path: Path, count: int) -> Path:
    """Write a sequence of layers."""
    modules = Table()
    for number in range(count):
        modules[float(number + 1)] = layer(number)
    model = TorchObject("nn.Sequential")
    model[b"modules"] = modules
    t7bridge.save(model, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["load_module", "inspect"])
def test_flat_models(tmp_path: Path, verb: str) -> None:
    """Twice the layers are twice the calls: PyTorch's own `load_state_dict` compares each key with each layer."""
    few, many = flat(tmp_path / "few.t7", 600), flat(tmp_path / "many.t7", 1200)
    run = getattr(t7bridge, verb)
    run(few)  # imports
    assert calls_of(lambda: run(many)) < 2.1 * calls_of(lambda: run(few))


def test_weights_of_a_flat_model(tmp_path: Path) -> None:
    """Each layer gets its own weights."""
    model = t7bridge.load_module(flat(tmp_path / "x.t7", 20))
    state = model.state_dict()
    assert len(state) == 20
    for number in range(0, 20, 2):
        assert (state[f"{number}.weight"] == number).all()
        assert (state[f"{number}.bias"] == -number).all()
        assert model[number].weight.requires_grad
