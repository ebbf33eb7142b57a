"""Descriptions of Python-side values: cycles, sharing and limits."""

from __future__ import annotations

import json

import pytest

from t7bridge import Limits, Storage, Tensor
from t7bridge.errors import LimitError
from t7bridge.graph import FLOAT32, NumpyDtype, NumpyScalar, PythonGlobal, PythonObject, TorchConstant
from t7bridge.values import describe_python, json_pieces, python_json


def test_cycles_end():
    """A value that contains itself is described by the number of levels up."""
    loop: dict[str, object] = {"list": [1]}
    loop["list"].append((loop,))  # type: ignore[attr-defined]
    node = describe_python(loop)

    assert node["v"][0][1]["v"][1]["v"] == [{"t": "cycle", "up": 3}]
    assert "".join(python_json(loop)) == "".join(json_pieces(node))


def test_shared_values_are_repeated():
    """A list that occurs twice is described twice, as in PyTorch's own view of the value."""
    shared = [1]

    assert describe_python([shared, shared])["v"][0] == describe_python([shared, shared])["v"][1]


@pytest.mark.slow
def test_exponential_sharing_meets_a_limit():
    """A value whose description would have 2^100 parts is refused; one without sharing never is."""
    value: list[object] = []
    for _ in range(100):
        value = [value, value]

    with pytest.raises(LimitError, match="repeats shared values"):
        describe_python(value)
    with pytest.raises(LimitError):
        describe_python([[1, 2, 3]] * 1 + [value], Limits(work=100))
    assert len(describe_python([[number] for number in range(1000)], Limits(work=100))["v"]) == 1000


@pytest.mark.slow
def test_deep_values():
    """Nesting does not use Python's stack, in the description and in its JSON."""
    value: list[object] = []
    for _ in range(50_000):
        value = [value]

    assert sum(len(piece) for piece in json_pieces(describe_python(value))) > 50_000


def test_scalars_and_names():
    """A value that is neither builtin nor tensor has the name of its class."""
    thing = PythonObject(PythonGlobal("a.b", "C"), "newobj")
    values = [1.5, 2**70, "é", b"\xff", None, True, {1}, 1j, thing, TorchConstant("dtype", "float32")]
    nodes = describe_python(values)["v"]

    assert nodes[:6] == [
        {"t": "float", "v": "1.5"},
        {"t": "int", "v": str(2**70)},
        {"t": "str", "v": "é"},
        {"t": "bytes", "hex": "ff"},
        {"t": "none"},
        {"t": "bool", "v": True},
    ]
    assert [node["v"] for node in nodes[6:]] == ["builtins.set", "builtins.complex", "a.b.C", "torch.dtype"]
    json.dumps(nodes)


@pytest.mark.parametrize(
    ("code", "order", "data", "node"),
    [
        ("f8", "<", bytes(6) + b"\xf8\x3f", {"t": "float", "v": "np.float64(1.5)"}),
        ("f8", ">", b"\x3f\xf8" + bytes(6), {"t": "float", "v": "np.float64(1.5)"}),
        ("i4", "<", bytes(4), {"t": "other", "v": "numpy.int32"}),
        ("b1", "|", b"\1", {"t": "other", "v": "numpy.bool"}),
        ("S3", "|", b"ab\0", {"t": "bytes", "hex": "6162"}),
        ("U2", "<", "a".encode("utf-32-le") + bytes(4), {"t": "str", "v": "a"}),
    ],
)
def test_numpy_scalars(code, order, data, node):
    """numpy's scalars are described as Python's equal values."""
    assert node == describe_python(NumpyScalar(NumpyDtype(code, order), data))


def test_storages_that_begin_at_one_place():
    """Tensors on the same memory have one number, whatever their types; a part further on has its own."""
    import numpy as np

    whole = Storage.from_array(np.arange(4, dtype="f4"))
    part = Storage(FLOAT32, 2, whole.data, base=whole, base_offset=8)
    same = Storage(FLOAT32, 4, whole.data, base=whole)
    nodes = describe_python([Tensor(FLOAT32, storage, (1,), (1,)) for storage in (whole, part, same)])["v"]

    assert [node["storage"] for node in nodes] == [1, 2, 1]
