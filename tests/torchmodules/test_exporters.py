"""PyTorch's exporters on live modules, in each mode in which a user may call them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import TESTFILES, written
from runtime_helpers import as_torch, copied, difference, recorded

import t7bridge
from t7bridge import Table, Tensor, TorchObject

# PyTorch's own exporters warn of PyTorch's own functions.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.mark.slow
def test_export() -> None:
    """torch.export takes in-place sums with gradients, also in training; the program computes what Lua did."""
    path = TESTFILES / "models" / "resnet_small.t7"
    case = recorded(path, "io")
    inputs = as_torch(case["input"])
    program = torch.export.export(t7bridge.load_module(path), (copied(inputs),))
    assert not difference(program.module()(copied(inputs)), as_torch(case["output"]))
    program.run_decompositions()  # as the export to ONNX does
    torch.export.export(t7bridge.load_module(path).train(), (copied(inputs),))


IN_PLACE = {
    "sum": TorchObject("nn.CAddTable", 1, Table.of({"inplace": True})),
    "factor": TorchObject("nn.MulConstant", 1, Table.of({"constant_scalar": 3.0, "inplace": True})),
    "addend": TorchObject("nn.AddConstant", 1, Table.of({"constant_scalar": 3.0, "inplace": True})),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_PLACE)
def test_changes_in_place(name: str) -> None:
    """A layer that changes a value in place is followed, also where its gradients are recorded."""
    branches = [TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([_linear()])})) for _ in range(2)]
    both = TorchObject("nn.ConcatTable", 1, Table.of({"modules": Table.from_list(branches)}))
    before = [both] if name == "sum" else [_linear()]
    model = TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([*before, IN_PLACE[name]])}))
    module = t7bridge.load_module(written(model))
    x = torch.randn(2, 3)
    program = torch.export.export(module, (x,))
    assert torch.equal(program.module()(x), module(x))
    assert torch.equal(program.run_decompositions().module()(x), module(x))  # as the export to ONNX does


def _linear() -> TorchObject:
    weight = Tensor.from_numpy(np.arange(12, dtype="f4").reshape(4, 3))
    return TorchObject("nn.Linear", 1, Table.of({"weight": weight, "bias": Tensor.from_numpy(np.ones(4, "f4"))}))
