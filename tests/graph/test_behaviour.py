"""Behaviour of values: one-line reprs, mappings in Lua's keys, tensors as in numpy and PyTorch."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from bounds import bounded
from helpers import corpus, read

import t7bridge
from t7bridge import LuaFunction, Storage, Table, TdsHash, TdsVec, Tensor, TorchObject
from t7bridge.errors import ModelError, UnsupportedError
from t7bridge.graph import ELEMENT_TYPES, PythonGlobal, PythonObject

HOSTILE = "a\x1b[2J\u202e\n\u2028" * 100


def module(name: str, *inside: TorchObject, **fields: object) -> TorchObject:
    """An nn module with others inside it."""
    pairs = Table.of({key: float(value) if type(value) is int else value for key, value in fields.items()})
    if inside:
        pairs["modules"] = Table.from_list(list(inside))
    return TorchObject(name, 1, pairs)


def linear(inputs: int, outputs: int) -> TorchObject:
    """An nn.Linear."""
    weight, bias = (Tensor.from_numpy(np.zeros(shape, "f4")) for shape in ((outputs, inputs), (outputs,)))
    return module("nn.Linear", weight=weight, bias=bias)


def test_repr_is_one_bounded_line():
    """For any value, the repr is one printable line of at most 120 characters."""
    loop = Table()
    loop["self"] = loop
    odd = Tensor.from_numpy(np.zeros((1,) * 30, "f4"))
    odd.device = HOSTILE
    named = PythonGlobal(HOSTILE, HOSTILE)
    for value in (
        loop, Table([HOSTILE.encode()], [1.0]), TorchObject(HOSTILE), LuaFunction(b"x" * 9999), TdsVec([1] * 99), odd,
        TdsHash(lua_class=HOSTILE), Storage.from_array(np.zeros(5)), named, PythonObject(named, "reduce", (named,)),
    ):  # fmt: skip
        assert repr(value).isprintable()
        assert len(repr(value)) <= 120
    assert repr(module("nn.Sequential", linear(3, 4))) == "<nn.Sequential: 1 module>"
    assert repr(Tensor.from_numpy(np.zeros((64, 784), "f4"))).startswith("<Tensor float32 [64, 784] of #")


def test_shown_in_proportion():
    """A graph of 2^100 paths and a cycle are shown at once, as text and as HTML, with what is bounded escaped."""
    inner = module("nn.Identity")
    for _ in range(100):
        inner = module("nn.Sequential", inner, inner)
    loop = module("nn.Sequential", linear(2, 2))
    loop["modules"][2] = loop
    for value in (inner, loop, module("<b>" + HOSTILE, **{"<script>": 1})):
        with bounded():
            text, html = str(value), value._repr_html_()
        assert len(text) < 1_000_000
        assert len(html) < 1_000_000
        assert "<script>" not in html
        assert "\x1b" not in text + html


# Printed by Lua Torch, nn 8726825.
PRINTED = """nn.Sequential {
  [input -> (1) -> (2) -> (3) -> (4) -> output]
  (1): nn.Linear(3 -> 4)
  (2): nn.ConcatTable {
    input
      |`-> (1): nn.Sequential {
      |      [input -> (1) -> output]
      |      (1): nn.Dropout(0.500000)
      |    }
       `-> (2): nn.Identity
       ... -> output
  }
  (3): nn.SpatialConvolution(3 -> 8, 5x5, 2,2, 1,1) without bias
  (4): nn.SpatialMaxPooling(2x2, 2,2)
}"""


def test_model_is_printed_as_by_lua():
    """`str` of a model is what `print(model)` showed in Lua."""
    branch = module("nn.ConcatTable", module("nn.Sequential", module("nn.Dropout", p=0.5)), module("nn.Identity"))
    conv = module("nn.SpatialConvolution", nInputPlane=3, nOutputPlane=8, kW=5, kH=5, dW=2, dH=2, padW=1, padH=1)
    pool = module("nn.SpatialMaxPooling", kW=2, kH=2, dW=2, dH=2, padW=0, padH=0)
    assert str(module("nn.Sequential", linear(3, 4), branch, conv, pool)) == PRINTED


def test_numbers_are_printed_as_by_lua():
    """A number of any size, and infinity, are printed by `%f`, as Lua Torch prints them; by `%d` only what it can."""
    assert str(module("nn.ELU", alpha=2.0**60)) == "nn.ELU (alpha:1152921504606846976.000000)"
    assert str(module("nn.ELU", alpha=float("inf"))) == "nn.ELU (alpha:inf)"
    assert str(module("nn.Normalize", p=float("inf"))) == "nn.Normalize(inf)"
    assert str(module("nn.Normalize", p=1.5)) == "nn.Normalize(1.500000)"
    assert str(module("nn.Normalize", p=2.0)) == "nn.Normalize(2)"
    assert str(module("nn.Normalize", p=2.0**60)) == "nn.Normalize"


def test_mappings():
    """Tables and objects are mappings in Lua's keys: ints where integral, text where UTF-8; fields are attributes."""
    model = module("nn.Sequential", linear(3, 4), linear(4, 2), train=False)
    assert model.modules[1] is model["modules"][1.0] is model.modules.get(1)
    assert list(model.modules) == [1, 2]
    assert model.modules.as_list() == [model.modules[1], model.modules[2]]
    assert dict(model) == {"train": False, "modules": model.modules}
    assert list(model.items()) == [("train", False), ("modules", model.modules)]
    assert model.modules[1].weight.shape == (4, 3)
    assert "modules" in dir(model)
    assert "modules" in model
    assert len(model) == 2
    assert not hasattr(model, "missing")
    odd = Table([True, 1.0, b"keys", b"\xff", 1.5], [b"yes", b"one", b"field", 1.0, 2.0])
    assert odd[True] == b"yes"
    assert odd[1] == b"one"
    assert odd["keys"] == b"field"
    assert list(odd.keys()) == [True, 1, "keys", b"\xff", 1.5]
    assert odd.as_list() == [b"one"]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert list(other) == list(model)
    vec = TdsVec([b"a", b"b"])
    assert dict(vec) == {1: b"a", 2: b"b"}
    assert 3 not in vec


@pytest.mark.parametrize(
    "key",
    [0, -1, slice(1, 3), slice(None, None, -1), (1, 2), (slice(None), 1), (Ellipsis, 0), (0, Ellipsis), None, (1, 2, 3),
     (slice(3, 1), 0), (slice(None, None, 2), slice(None), slice(-1, None, -2))],
    ids=str,
)  # fmt: skip
def test_indexing_is_that_of_numpy(key):
    """A view has numpy's elements and the storage of its tensor; what has no dimension left is a Python number."""
    array = np.arange(60, dtype="f4").reshape(3, 4, 5)
    tensor = Tensor.from_numpy(array)
    got, wanted = tensor[key], array[key]
    if isinstance(got, Tensor):
        assert got.storage is tensor.storage
        assert got.tolist() == wanted.tolist()
        assert got.shape == wanted.shape
    else:
        assert (type(got), got) == (float, wanted)


def test_tensor_as_array():
    """numpy and PyTorch get the right type and elements, bfloat16 and float8 too, and errors are clear."""
    for name in ("float32", "int64", "bool", "complex64", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        element = ELEMENT_TYPES[name]
        storage = Storage(element, 4, np.array([0, 1, 1, 0]).astype(element.code))
        tensor = Tensor(element, storage, (2, 2), (2, 1))
        assert tensor.dtype == name == str(np.asarray(tensor).dtype) == str(tensor.torch().dtype).removeprefix("torch.")
        assert tensor.torch().tolist() == tensor.tolist()
        assert (len(tensor), tensor.nbytes) == (2, 4 * element.itemsize)
        assert tensor[1][0] == tensor.tolist()[1][0]
    with pytest.raises(ModelError):
        tensor.item()
    with pytest.raises(IndexError):
        tensor[2]


def test_types_that_numpy_lacks(monkeypatch):
    """Without ml_dtypes, bfloat16 is a clear error and not an array of integers."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    element = ELEMENT_TYPES["bfloat16"]
    tensor = Tensor(element, Storage(element, 1, np.zeros(1, "u2")), (1,), (1,))
    with pytest.raises(UnsupportedError, match="Install ml_dtypes"):
        np.asarray(tensor)
    assert tensor.array.dtype == "u2"


def test_plain_values():
    """`to_python` and `to_torch` keep sharing and cycles, at any depth."""
    weight = Tensor.from_numpy(np.arange(6, dtype="f4").reshape(2, 3))
    root = Table.of({"a": weight, "b": weight[0], "list": Table.from_list([1, b"x"])})
    root["self"] = root
    deep = Table()
    for _ in range(5000):
        deep = Table.from_list([deep])
    root["deep"] = deep
    python, tensors = t7bridge.to_python(root), t7bridge.to_torch(root)
    assert python["self"] is python
    assert python["list"] == [1, "x"]
    assert np.shares_memory(python["a"], python["b"])
    assert tensors["a"].untyped_storage().data_ptr() == tensors["b"].untyped_storage().data_ptr()
    assert tensors["b"].tolist() == [0, 1, 2]
    pair = (weight, [weight])
    found = t7bridge.to_torch({"pair": pair, "again": pair})
    assert found["pair"] is found["again"]
    assert found["pair"][0] is found["pair"][1][0]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["pt", "t7"])
def test_save_foreign_values(tmp_path: Path, suffix: str):
    """Arrays, torch tensors with their sharing and strides, and modules are saved and come back."""
    base = torch.arange(12.0).reshape(3, 4)
    net = torch.nn.Linear(2, 3)
    value = {"rows": base[1:], "turned": base.t(), "array": np.arange(5)[::2], "net": net, "half": torch.ones(2).half()}
    t7bridge.save(value, tmp_path / f"x.{suffix}")
    found = t7bridge.load(tmp_path / f"x.{suffix}")
    assert found["rows"].storage is found["turned"].storage
    assert found["turned"].stride == (1, 4)
    assert found["turned"].tolist() == base.t().tolist()
    assert found["array"].tolist() == [0, 2, 4]
    assert found["net"]["weight"].tolist() == net.weight.tolist()
    assert found["half"].dtype == "float16"


def test_every_model_is_shown():
    """Models of the corpus have a repr, a text and HTML that end, in plain characters."""
    for path in corpus("models/*.t7"):
        value = read(path)
        for text in (repr(value), str(value), value._repr_html_()):
            assert text.replace("\n", "").isprintable()
