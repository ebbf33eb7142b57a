"""The canonical description and walks: order, ids, paths, JSON without recursion."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers import description, storages, tensors, walk

from t7bridge import LuaFunction, Storage, Table, TdsHash, TdsVec, Tensor, TorchObject
from t7bridge.graph import step_name
from t7bridge.values import describe_lua, json_pieces, lua_json


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, {"t": "nil"}),
        (True, {"t": "bool", "v": True}),
        (1.0, {"t": "num", "v": "1"}),
        (0.1, {"t": "num", "v": "0.10000000000000001"}),
        (-0.0, {"t": "num", "v": "-0"}),
        (float("-inf"), {"t": "num", "v": "-inf"}),
        (float("nan"), {"t": "num", "v": "nan"}),
        (b"a\xff", {"t": "str", "hex": "61ff"}),
        ("ü", {"t": "str", "hex": "c3bc"}),
        (7, {"t": "num", "v": "7"}),
    ],
)
def test_scalars(value, wanted):
    """A scalar's node has its kind and its value, numbers with 17 digits."""
    assert describe_lua(value) == wanted


def test_pairs_are_sorted():
    """Numbers come first, by value, negative ones too, then strings by bytes, then booleans, then objects by class."""
    keys = [b"b", True, Table(), 10.0, -3.0, 2.0, b"a", False, TorchObject("nn.A"), 1.5]
    node = describe_lua(Table(keys, [None if key is None else 0.0 for key in keys]))
    shown = [key.get("v", key.get("hex", key.get("class", key["t"]))) for key, _ in node["kv"]]
    assert shown == ["-3", "1.5", "2", "10", "61", "62", False, True, "nn.A", "table"]


def test_pairs_that_lua_would_not_have():
    """The last of equal keys counts, and a pair whose value is nil does not."""
    node = describe_lua(Table([b"a", b"a", b"b"], [1.0, 2.0, None]))
    assert node["n"] == 1
    assert node["kv"] == [[{"t": "str", "hex": "61"}, {"t": "num", "v": "2"}]]


def test_ids_follow_the_walk():
    """Objects are numbered where they are met first, and are references from then on."""
    shared = Table()
    root = Table.of([("b", shared), ("a", shared)])
    root["self"] = root
    node = describe_lua(root)
    assert [value for _, value in node["kv"]] == [
        {"t": "table", "id": 2, "n": 0, "kv": []},
        {"t": "ref", "id": 2},
        {"t": "ref", "id": 1},
    ]


def test_tensor():
    """A tensor's node has its view and, once, its storage with the CRC-32 of its little-endian bytes."""
    storage = Storage.from_array(np.array([1, 2], ">i2").astype("i2"))
    view = Tensor(storage.element, storage, (1,), (5,), 1)
    node = describe_lua(Table.from_list([view, Tensor(storage.element, storage, (2,), (1,)), storage]))
    (_, first), (_, second), (_, third) = node["kv"]
    assert first == {
        "t": "tensor",
        "id": 2,
        "class": "torch.ShortTensor",
        "size": [1],
        "stride": [5],
        "offset": 1,
        "storage": {"t": "storage", "id": 3, "class": "torch.ShortStorage", "n": 2, "crc32": 2882460411},
    }
    assert second["storage"] == third == {"t": "ref", "id": 3}
    assert describe_lua(Tensor(storage.element, None))["storage"] is None


def test_json_is_that_of_the_json_module():
    """The pieces of a description make the compact JSON of the same data."""
    value = Table.of(
        {
            "empty": Table(),
            "list": Table.from_list([1, b"x", Table(), None]),
            "module": TorchObject("nn.Linear", fields=Table.of({"bias": True})),
            "hash": TdsHash(Table.of({"k": 1})),
            "vec": TdsVec([TdsVec(), b"\0"]),
            "code": LuaFunction(b"x", Table.from_list([Table.of({"name": "ü\n", "value": 1})])),
            "generator": TorchObject("torch.Generator", fields=None, payload=b""),
        }
    )
    text = description(value)
    assert "".join(lua_json(value)) == text
    assert text == json.dumps(describe_lua(value), separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("data", [1, "x", None, [], {}, [[]], [{}, []], {"a": []}, {"a": {"b": [1, [2], {}]}, "c": 1}])
def test_json_pieces(data):
    """Any nesting of lists, dicts and scalars becomes the JSON of it."""
    assert json.loads("".join(json_pieces(data))) == data


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (b"weight", ".weight"),
        ("weight", ".weight"),
        (b"_type", "._type"),
        (b"odd key", "['odd key']"),
        (b"\xff", r"['\\xff']"),
        (b"1", "['1']"),
        (b"x\n", r"['x\n']"),
        (3.0, "[3]"),
        (-1.0, "[-1]"),
        (1.5, "[1.5]"),
        (True, "[True]"),
        (float("inf"), "[inf]"),
        (2.0**60, "[1.152921504606847e+18]"),
    ],
)
def test_step_names(key, name):
    """A step of a path is `.word`, `[3]`, or the quoted text."""
    assert step_name(key) == name


def test_step_names_are_short():
    """A key of a megabyte does not make a message of one."""
    assert len(step_name(b"x y" * 100_000)) < 100


def test_walk():
    """Every object is met once, before what is in it, with its path."""
    storage = Storage.from_array(np.zeros(2))
    tensor = Tensor(storage.element, storage, (2,), (1,))
    module = TorchObject("nn.X", fields=Table.of({"weight": tensor}), payload=Table.of({"device": 1}))
    key = Table()
    root = Table.of([("m", module), (key, tensor), ("f", LuaFunction(b"", Table())), ("v", TdsVec([module, key]))])
    module["owner"] = root
    assert [visit.text() for visit in walk(root)] == [
        "root",
        "root.m",
        "root.m<payload>",
        "root.m.weight",
        "root.m.weight.storage",
        "root<key [<Table>]>",
        "root.f",
        "root.f<upvalues>",
        "root.v",
    ]
    assert [(path, found) for path, found in tensors(root)] == [("root.m.weight", tensor)]
    assert list(storages(root)) == [storage]
    assert next(walk(root, "model.t7")).text() == "model.t7"


def test_walk_over_python_values():
    """Dicts, lists and tuples are walked like tables; lists count from 0, as in Python."""
    storage = Storage.from_array(np.zeros(2))
    root = {"a": [storage, (storage, {"b": storage})]}
    assert [visit.text() for visit in walk(root)] == ["root", "root.a", "root.a[0]", "root.a[1]", "root.a[1][1]"]
    assert list(walk(5)) == []
