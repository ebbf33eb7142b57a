"""Layers of 2010, whose tensors have their dimensions in the opposite order: the same memory as later ones'."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from t7bridge import Table, Tensor, TorchObject, state_dict
from t7bridge.nn import assignment
from t7bridge.torchmodules import live_module


def numbers(*shape: int) -> np.ndarray:
    """Numbers of a normal distribution, the same in every run."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("f4")


def turned(array: np.ndarray) -> Tensor:
    """A tensor as files of 2010 have it: the same memory, its dimensions and strides the other way round."""
    tensor = Tensor.from_numpy(array)
    return Tensor(tensor.element, tensor.storage, tensor.size[::-1], tensor.stride[::-1])


def obj(name: str, **fields: object) -> TorchObject:
    """An object with these fields."""
    return TorchObject(name, 1, Table.of({key: float(x) if isinstance(x, int) else x for key, x in fields.items()}))


def alike(old: TorchObject, new: TorchObject, *shape: int) -> None:
    """Two layers have the same keys and weights, and compute the same."""
    old_module, new_module = live_module(old), live_module(new)
    assert {key: value.tolist() for key, value in old_module.state_dict().items()} == {
        key: value.tolist() for key, value in new_module.state_dict().items()
    }
    image = torch.from_numpy(numbers(*shape))
    assert torch.equal(old_module(image), new_module(image))


@pytest.mark.parametrize("sizes", [(6, 2, 4, 5), (3, 3, 3, 3), (5, 2, 2, 5)])
def test_convolution(sizes):
    """Kernels (kW, kH, in, out); where the sizes are the same both ways, the strides tell."""
    out, into, rows, columns = sizes
    fields = {"nInputPlane": into, "nOutputPlane": out, "kW": columns, "kH": rows, "dW": 1, "dH": 1}
    weight, bias = numbers(*sizes), Tensor.from_numpy(numbers(out))
    old = obj("nn.SpatialConvolution", **fields, weight=turned(weight), bias=bias)
    new = obj("nn.SpatialConvolution", **fields, weight=Tensor.from_numpy(weight), bias=bias)
    alike(old, new, into, 9, 8)


@pytest.mark.parametrize("sizes", [(2, 20), (3, 3)])
def test_linear_layer_of_images(sizes):
    """A weight (in, out)."""
    fields = {"fanin": sizes[1], "fanout": sizes[0], "bias": Tensor.from_numpy(numbers(sizes[0]))}
    weight = numbers(*sizes)
    old = obj("nn.SpatialLinear", **fields, weight=turned(weight))
    new = obj("nn.SpatialLinear", **fields, weight=Tensor.from_numpy(weight))
    alike(old, new, sizes[1], 4, 5)


def test_table_of_connections():
    """Kernels (kW, kH, connections) under one of the earlier names of SpatialConvolutionMap."""
    table = Tensor.from_numpy(np.array([[1, 1], [2, 1], [2, 3], [1, 2]], "f4"))
    fields = {"nInputPlane": 2, "nOutputPlane": 3, "kW": 3, "kH": 2, "dW": 1, "dH": 1, "connTable": table}
    weight, bias = numbers(4, 2, 3), Tensor.from_numpy(numbers(3))
    new = obj("nn.SpatialConvolutionMap", **fields, weight=Tensor.from_numpy(weight), bias=bias)
    alike(obj("nn.SpatialConvolutionTable", **fields, weight=turned(weight), bias=bias), new, 2, 6, 7)
    sparse = obj("nn.SpatialConvolutionSparse", **fields, weight=Tensor.from_numpy(weight), bias=bias)
    alike(sparse, new, 2, 6, 7)


def test_normalization():
    """A kernel (kW, kH) of LocalNorm is one (kH, kW) of SpatialNormalization."""
    kernel = np.abs(numbers(3, 5))
    new = obj("nn.SpatialNormalization", nfeatures=2, kernel=Tensor.from_numpy(kernel))
    alike(obj("nn.LocalNorm", nfeatures=2, kernel=turned(kernel)), new, 2, 9, 8)


@pytest.mark.parametrize("sizes", [(2, 20), (3, 3)])
def test_way_back(sizes):
    """New weights go back into the order that the file has."""
    weight = numbers(*sizes)
    old = obj("nn.SpatialLinear", fanin=sizes[1], fanout=sizes[0], weight=turned(weight))
    state = state_dict(old)
    tuned = Tensor.from_numpy(weight.reshape(*sizes, 1, 1) + 1)
    change = assignment("weight", state.origins["weight"], tuned, state.tensors["weight"])
    assert change.target.numpy().shape == change.source.numpy().shape
    reached = {float(a): float(b) for a, b in zip(change.target.numpy().flat, change.source.numpy().flat)}
    assert all(abs(after - before - 1) < 1e-6 for before, after in reached.items())
