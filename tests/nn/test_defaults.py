"""What layers have where a file or a user says nothing."""

from __future__ import annotations

import numpy as np
import torch
from fuzz_networks import records
from helpers import TESTFILES
from runtime_helpers import as_torch

from t7bridge.graph.lua import Table, TorchObject
from t7bridge.graph.tensor import Tensor
from t7bridge.nn.state_dict import state_dict
from t7bridge.torchmodules import live_module
from t7bridge.torchmodules.layers.shape import ArgMax


def test_the_count_of_batches_has_a_storage_of_its_own_size():
    """`num_batches_tracked` has one element of eight bytes, as in PyTorch."""
    one = Tensor.from_numpy(np.ones(3, "f4"))
    fields = {"eps": 1e-5, "running_mean": one, "running_var": one, "weight": one, "bias": one}
    count = state_dict(TorchObject("nn.BatchNormalization", 1, Table.of(fields)))["num_batches_tracked"]
    wanted = torch.nn.BatchNorm1d(3).num_batches_tracked
    assert (count.storage.nbytes, count.shape) == (wanted.untyped_storage().nbytes(), tuple(wanted.shape))
    assert count.element.name == "int64"


def test_a_binary_convolution_without_strides():
    """A bnn.SpatialConvolution without `dW` and `dH` moves by 1, as a convolution of PyTorch does."""
    signs = np.array([[[[1, -1], [-1, 1]]]], "f4")
    words = np.packbits(np.append((signs > 0).reshape(-1), np.zeros(28, bool)), bitorder="little").view("<i4")
    sizes = {"nInputPlane": 1.0, "nOutputPlane": 1.0, "kW": 2.0, "kH": 2.0}
    tensors = {"weight": Tensor.from_numpy(words), "alphas": Tensor.from_numpy(np.ones(1, "f4"))}
    fields = {**sizes, **tensors}
    module = live_module(TorchObject("bnn.SpatialConvolution", 1, Table.of(fields)), "root")
    assert tuple(module.stride) == (1, 1)


def test_positions_count_from_1_as_in_lua():
    """An ArgMax that a user makes numbers positions as Lua's, as does one from a file."""
    record = next(each for each in records(TESTFILES / "found_inside.t7") if each["text"] == b"ArgMax")
    wanted = as_torch(record["output"]).long()
    input = as_torch(record["input"])
    assert torch.equal(ArgMax(0, 1)(input), wanted)
    assert wanted.min() >= 1
    assert torch.equal(live_module(record["model"], "root")(input).long(), wanted)
