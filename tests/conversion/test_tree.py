"""Lua values as Python values, and the record next to them."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from attrs import evolve

from t7bridge import (
    LuaFunction,
    Storage,
    T7Layout,
    Table,
    TdsHash,
    TdsVec,
    Tensor,
    TorchObject,
    load,
    to_python,
    to_torch,
)
from t7bridge.conversion import as_tree, decode_record, encode_record, read_skeleton, take_skeleton
from t7bridge.errors import CorruptError
from t7bridge.graph import ELEMENT_TYPES, PythonGlobal, PythonObject, QuantizedTensor


@pytest.mark.parametrize(
    ("lua", "python"),
    [
        (None, None),
        (True, True),
        (3.0, 3),
        (2.0**53, 2**53),
        (2.0**54, 2.0**54),
        (-0.0, -0.0),
        (1.5, 1.5),
        (float("inf"), float("inf")),
        (b"text", "text"),
        ("Grüße".encode(), "Grüße"),
        (b"\xff\x00", b"\xff\x00"),
        (Table.from_list([1.0, b"two"]), [1, "two"]),
        (Table([2.0, 1.0], [b"b", b"a"]), ["a", "b"]),
        (Table(), {}),
        (Table.of({1: 10.0, 3: 30.0}), {1: 10, 3: 30}),
        (Table.of({"a": 1.0, 1.5: 2.0, False: 3.0}), {"a": 1, 1.5: 2, False: 3}),
        (Table.of([(True, 1.0), (1, 2.0)]), {"__class__": "table", "pairs": [[True, 1], [1, 2]]}),
        (Table([Table()], [1.0]), {"__class__": "table", "pairs": [[{}, 1]]}),
        (TorchObject("nn.X", 2, Table.of({"n": 1.0})), {"__class__": "nn.X", "__version__": 2, "n": 1}),
        (TorchObject("torch.Timer", 1, None), {"__class__": "torch.Timer", "__version__": 1}),
        (
            TorchObject("nn.GPU", 1, Table.of({"n": 1.0}), Table.from_list([b"t", 2.0])),
            {"__class__": "nn.GPU", "__version__": 1, "__payload__": ["t", 2], "n": 1},
        ),
        (
            TorchObject("nn.X", 1, Table.of({"__class__": 1.0})),
            {"__class__": "nn.X", "__version__": 1, "pairs": [["__class__", 1]]},
        ),
        (TdsVec([1.0, b"x"]), {"__class__": "tds.Vec", "__version__": 0, "items": [1, "x"]}),
        (TdsHash(Table.of({"k": 1.0})), {"__class__": "tds.Hash", "__version__": 0, "k": 1}),
        (
            LuaFunction(b"\x1bLJ", Table.from_list([Table.of({"name": b"x", "value": 1.0})])),
            {"__class__": "function", "code": b"\x1bLJ", "upvalues": [1]},
        ),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_values(lua: object, python: object) -> None:
    """Each kind of Lua value becomes the one in the module's table, with its type and sign."""
    assert repr(python) == repr(as_tree(lua))


def test_identity() -> None:
    """Shared tables are one object, cycles are cycles, tensors are taken over."""
    inner = Table.from_list([1.0])
    tensor = Tensor.from_numpy(np.ones(2, "f4"))
    root = Table.of({"a": inner, "b": inner, "t": tensor})
    root["me"] = root

    result = as_tree(root)

    assert result["a"] is result["b"]
    assert result["me"] is result
    assert result["t"] is tensor


def test_tensor_keys() -> None:
    """A tensor may be a key of a dict, as it may in PyTorch."""
    tensor = Tensor.from_numpy(np.ones(2, "f4"))

    assert as_tree(Table([tensor], [1.0])) == {tensor: 1}


def test_replace() -> None:
    """The replacement of an object is requested once per object."""
    asked = []
    module = TorchObject("nn.Linear")

    def replace(obj: TorchObject) -> object:
        asked.append(obj)
        return {"weight": 1} if obj.class_name == "nn.Linear" else None

    result = as_tree(Table.of({"a": module, "b": module, "c": TorchObject("other.Thing")}), replace)

    assert result["a"] == {"weight": 1}
    assert result["a"] is result["b"]
    assert result["c"]["__class__"] == "other.Thing"
    assert len(asked) == 2


def test_record_round_trip() -> None:
    """A record restores layout, values and trailing bytes."""
    tensor = Tensor.from_numpy(np.arange(4, dtype="f4"))
    layout = T7Layout(byte_order="big", long_size=4)
    skeleton = take_skeleton([Table.of({"t": tensor}), 2.0], layout, b"behind")(lambda storage: "7")

    again, content = decode_record(encode_record(skeleton, "abc"))

    assert again == skeleton
    assert content == "abc"
    assert len(skeleton.stream) < 150
    assert tensor.storage is not None
    table, number = read_skeleton(again, {"7": tensor.storage}.__getitem__).roots
    assert number == 2.0
    assert np.array_equal(table["t"].numpy(), [0, 1, 2, 3])


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b"nonsense\n", b'{"record": "t7bridge record 9"}\n', b"[" * 90000]
)
def test_bad_record(data: bytes) -> None:
    """Bytes that are not a record are an error with a hint."""
    with pytest.raises(CorruptError, match="record"):
        decode_record(data)


def test_record_with_more_values_than_bytes() -> None:
    """Each value takes a byte of the stream at least; the bytes behind it have none."""
    skeleton = take_skeleton([None, None], T7Layout(), b"behind")(lambda storage: "0")
    most = len(skeleton.stream)
    again, _ = decode_record(encode_record(evolve(skeleton, roots=most), "abc"))
    assert again.roots == most
    with pytest.raises(CorruptError, match="record"):
        decode_record(encode_record(evolve(skeleton, roots=most + 1), "abc"))


def test_storages_that_do_not_fit() -> None:
    """Storages of another type or size than the stream names are refused."""
    skeleton = take_skeleton([Tensor.from_numpy(np.zeros(4, "f4"))], T7Layout())(lambda storage: "0")
    for other in (np.zeros(3, "f4"), np.zeros(4, "f8")):
        lent = Tensor.from_numpy(other).storage
        with pytest.raises(CorruptError, match="do not match"):
            read_skeleton(skeleton, lambda key, lent=lent: lent)  # type: ignore[misc]


def test_skeleton_of_every_encoding() -> None:
    """The stream of a record is a `.t7` of the original's encoding."""
    root = Path(__file__).parents[2] / "testfiles/format"
    from t7bridge.formats import read_t7

    for name in ("checkpoint.t7", "checkpoint.ascii.t7", "checkpoint.big.t7", "checkpoint.long4.t7"):
        content = read_t7(root / name)
        assert take_skeleton(content.roots, content.layout)(lambda storage: "0").layout == content.layout


def test_attributes_do_not_replace_the_class_of_an_object():
    made = PythonObject(PythonGlobal("net", "Net"), "newobj", state={"__class__": "other", "w": 1})
    assert to_python(made) == {"__class__": "net.Net", "__state__": {"__class__": "other", "w": 1}}


def test_packed_tensors_are_bytes_in_torch():
    """A quint4x2 has two numbers in a byte, so that its view has more elements than its storage."""
    bits = Storage(ELEMENT_TYPES["quint4x2"], 3, np.arange(3, dtype="u1"))
    packed = QuantizedTensor(Tensor(bits.element, bits, (5,), (1,)), "per_tensor_affine", 0.5, 0)
    made = to_torch({"q": packed})["q"]
    assert made["tensor"].tolist() == [0, 1, 2]
    assert made["size"] == (5,)


def test_tensors_in_a_counter_are_converted() -> None:
    """A Counter may hold anything, as for `torch.load`: what is inside is converted, and shared as before."""
    tensor = Tensor.from_numpy(np.ones(2, "f4"))

    converted = to_python({"counts": Counter({"b": 3, "a": tensor}), "same": tensor})

    assert type(converted["counts"]) is Counter
    assert list(converted["counts"]) == ["b", "a"]
    assert converted["counts"]["b"] == 3
    assert converted["counts"]["a"] is converted["same"]
    assert isinstance(converted["same"], np.ndarray)


def test_to_torch_keeps_gradients(tmp_path):
    """Parameters and tensors that require gradients stay such, complex and empty ones too, as `torch.load` has them."""
    tensors = {
        "complex": torch.ones(3, dtype=torch.complex64, requires_grad=True),
        "empty": torch.empty(0, 2, requires_grad=True),
        "empty parameter": torch.nn.Parameter(torch.empty(0, 3)),
        "integers": torch.nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False),
    }
    torch.save(tensors, tmp_path / "x.pt")
    loaded = to_torch(load(tmp_path / "x.pt"))
    for name, tensor in tensors.items():
        assert type(loaded[name]) is type(tensor), name
        assert loaded[name].requires_grad == tensor.requires_grad, name
