"""The public writers accept the values of `save`: arrays, torch tensors, state dicts, modules, builtins of these."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

import t7bridge
from t7bridge.errors import UnsupportedError


def written_t7(*values: object) -> bytes:
    """The bytes of a `.t7` with these values."""
    file = io.BytesIO()
    writer = t7bridge.T7Writer(file)
    for value in values:
        writer.write_object(value)
    return file.getvalue()


def written_pt(value: object) -> io.BytesIO:
    """A `.pt` with a value."""
    file = io.BytesIO()
    writer = t7bridge.PtWriter(file)
    writer.write(value)
    writer.finish()
    file.seek(0)
    return file


def test_t7_of_arrays_and_tensors():
    """Arrays and torch tensors are Lua tensors, alone and in dicts and lists."""
    base = torch.arange(12.0).reshape(3, 4)
    read = t7bridge.load(written_t7({"a": np.arange(5, dtype="i4"), "t": [base, base.t()[1:]], "n": 3, "s": "text"}))
    assert read.a.tolist() == [0, 1, 2, 3, 4]
    assert read.a.lua_class == "torch.IntTensor"
    assert read.t[2].tolist() == base.t()[1:].tolist()
    assert read.t[1].storage is read.t[2].storage
    assert read.n == 3
    assert read.s == b"text"
    assert t7bridge.load(written_t7(np.float32(1.5))) == 1.5
    assert t7bridge.load(written_t7(torch.ones(2, 2))).tolist() == [[1, 1], [1, 1]]


def test_t7_of_integers_beyond_its_numbers():
    """They are text up to the digits that Python writes."""
    assert t7bridge.load(written_t7({"n": 10**400})).n == b"1" + b"0" * 400
    with pytest.raises(UnsupportedError, match=r"root\.n: an integer has too many digits"):
        written_t7({"n": 10**5000})


def test_arrays_around_one_object():
    """An array without dimensions is what is in it: a dict, as `np.save` wraps it, or an array or tensor."""
    for inner in (np.ones(2), torch.ones(2), {"x": torch.ones(2)}, np.float32(2.5), None):
        array = np.empty((), object)
        array[()] = inner
        assert written_t7({"a": array}) == written_t7({"a": inner})


def test_t7_shares_memory_between_values():
    """A tensor that is written twice is one storage, in one value or in two."""
    base = torch.zeros(6)
    first, second = t7bridge.T7Reader(written_t7(base, base[2:])), None
    first, second = first.read_object(), first.read_object()
    assert first.storage is second.storage
    assert second.offset == 2


def test_t7_of_modules():
    """A module is its state dict."""
    net = torch.nn.Linear(3, 2)
    read = t7bridge.load(written_t7({"net": net}))
    assert np.array_equal(read.net.weight.numpy(), net.weight.detach().numpy())


def test_pt_of_arrays_tensors_and_modules():
    """`torch.load(weights_only=True)` reads what was written: values, ties and parameters' names."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    base = torch.randn(4)
    found = torch.load(written_pt({"net": net, "a": np.eye(2), "x": [base, base[1:]]}), weights_only=True)
    assert list(found["net"]) == ["0.weight", "0.bias"]
    assert torch.equal(found["net"]["0.weight"], net[0].weight)
    assert torch.equal(found["a"], torch.eye(2, dtype=torch.float64))
    assert found["x"][0].untyped_storage().data_ptr() == found["x"][1].untyped_storage().data_ptr()
