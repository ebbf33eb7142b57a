"""Pickled forms of Python-side values: PyTorch loads them like its own."""

from __future__ import annotations

import io
import pickle
import re
from collections import Counter, OrderedDict, defaultdict
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from pt_helpers import described, saved, torch_describe, torch_type, unpickled

from t7bridge import PtReader, Storage, Tensor
from t7bridge.errors import UnsupportedError
from t7bridge.formats import PickleWriter, PtWriter
from t7bridge.graph import (
    ELEMENT_TYPES,
    Device,
    PythonGlobal,
    PythonObject,
    TensorExtras,
    TorchConstant,
    UntypedStorage,
    in_order,
)
from t7bridge.values import describe_python

pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:Sparse "),
    pytest.mark.filterwarnings("ignore:.*quantiz"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
]


def written(value: Any) -> bytes:
    """A `.pt` with a value."""
    file = io.BytesIO()
    writer = PtWriter(file, allow_foreign=True)
    writer.write(value)
    writer.finish()
    return file.getvalue()


def pickled(value: Any) -> bytes:
    """The pickle of a value."""
    return PickleWriter(lambda storage: ("0", "cpu"), allow_foreign=True).dumps(value)


def through(value: Any, **how: Any) -> Any:
    """Return the value that PyTorch loads after t7bridge has read and written a file of PyTorch's."""
    return torch.load(io.BytesIO(written(PtReader(saved(value)).read())), **{"weights_only": False, **how})


class Plain:
    """An object with attributes."""

    def __init__(self) -> None:
        self.a = [1]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


class Slotted:
    """An object with slots, and a dict."""

    __slots__ = ("__dict__", "x")


class Listed(list[Any]):
    """A list with attributes."""


class Keyed(dict[Any, Any]):
    """A dict with attributes."""


class Exact:
    """An object that is made with keywords."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.held = (args, named)

    def __new__(cls, *args: Any, **named: Any) -> Exact:
        made = super().__new__(cls)
        made.held = (args, named)
        return made

    def __getnewargs_ex__(self) -> Any:
        return self.held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exact) and self.held == other.held

    __hash__ = None  # type: ignore[assignment]


SAFE: dict[str, Any] = {
    "ordered": OrderedDict(b=1, a=OrderedDict()),
    "counter": Counter("aab"),
    "set": {1, "a", (2, b"x")},
    "complex": 1 - 2j,
    "bytearray": bytearray(b"\xff\0"),
    "size": torch.Size([2, 3]),
    "dtypes": [torch.float32, torch.bool, torch.bfloat16, torch.complex32, torch.float8_e5m2, torch.uint16],
    "device": [torch.device("cpu"), torch.device("cuda"), torch.device("cuda", 2)],
    "integer": [2**2000, -(2**2000), 2**2039 - 1, -(2**2039)],
}
UNSAFE: dict[str, Any] = {
    "frozenset": frozenset({1, "a"}),
    "long integer": [2**2047, -(2**2048), 2**5000],
    "defaultdict": [defaultdict(list, a=[1]), defaultdict(None, b=2)],
    "layouts": [torch.strided, torch.sparse_coo, torch.sparse_csr],
    "qschemes": [torch.per_tensor_affine, torch.per_channel_affine],
    "classes": [torch.nn.Linear, OrderedDict, int, Fraction],
    "objects": [Fraction(1, 3), PurePosixPath("a/b"), slice(1, 2), range(3), Plain()],
    "arguments by name": Exact(1, key=2),
    "numpy": [np.float64(1.5), np.int8(-3), np.bool_(True), np.str_("x"), np.dtype(">f4"), np.dtype([("a", "i4")])],
}


@pytest.mark.parametrize("name", SAFE)
def test_safe_values(name: str) -> None:
    """PyTorch's safe loader reads these, and they are equal to the originals in value, type and order."""
    back = through(SAFE[name], weights_only=True)

    assert type(back) is type(SAFE[name])
    assert back == SAFE[name]
    assert isinstance(back, (set, dict)) or repr(back) == repr(SAFE[name])


@pytest.mark.parametrize("name", UNSAFE)
def test_other_values(name: str) -> None:
    """Values of classes that the safe loader does not know are restored."""
    back = through(UNSAFE[name])

    assert back == UNSAFE[name]
    assert repr(type(back)) == repr(type(UNSAFE[name]))


def test_numpy_arrays() -> None:
    """Arrays of every order and type, of text and objects too, are made again."""
    base = np.arange(6.0).reshape(2, 3)
    value = [
        base, np.asfortranarray(base), base.astype(">i2"), base[:0], np.array(5), np.array(["a", "bcd"]),
        np.array([{"x": 1}, None], dtype=object), base.astype("c16"), np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    ]  # fmt: skip

    wanted = torch.load(io.BytesIO(saved(value)), weights_only=False)  # numpy turns those of the other byte order

    for mine, theirs in zip(through(value), wanted, strict=True):
        assert (mine.dtype, mine.shape, mine.flags.f_contiguous) == (
            theirs.dtype,
            theirs.shape,
            theirs.flags.f_contiguous,
        )
        assert mine.tolist() == theirs.tolist()


def test_objects_with_more_than_attributes() -> None:
    """Slots, items of lists and dicts, and attributes of both are restored."""
    slotted, listed, keyed = Slotted(), Listed([1, 2]), Keyed(a=1)
    slotted.x, slotted.y = 1, 2  # type: ignore[attr-defined]
    listed.name = keyed.name = "n"  # type: ignore[attr-defined]
    back = through([slotted, listed, keyed])

    assert (back[0].x, back[0].y) == (1, 2)
    assert (type(back[1]), back[1], back[1].name) == (Listed, [1, 2], "n")
    assert (type(back[2]), back[2], back[2].name) == (Keyed, {"a": 1}, "n")


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_tensors_of_every_type(name: str) -> None:
    """Tensors, views, scalars and parameters of every type that PyTorch saves are the same to it afterwards."""
    if name.startswith("q"):
        tensor = torch.zeros(2, 3)
        kind = torch_type(name)
        if name in ("quint4x2", "quint2x4"):  # which PyTorch only has by channels
            scales, zeros = torch.ones(2), torch.zeros(2)
            value: Any = torch.quantize_per_channel(tensor, scales, zeros, 0, kind)
        else:
            value = torch.quantize_per_tensor(tensor, 0.5, 3 if name == "quint8" else 0, kind)
        back = through(value)
        assert (back.dtype, back.qscheme(), back.shape) == (value.dtype, value.qscheme(), value.shape)
        assert torch.equal(back.dequantize(), value.dequantize())
        return
    kind = torch_type(name)
    if re.fullmatch(r"u?int[1-7]", name):  # which PyTorch reads, and has no way to save
        with pytest.raises(KeyError):
            saved(torch.zeros(4, dtype=torch.uint8).view(kind))
        return
    if name.startswith(("bits", "float4")):  # which PyTorch only carries
        held = torch.arange(12, dtype=torch.int16 if kind.itemsize == 2 else torch.uint8)
        value = {"w": held.view(kind), "t": held.view(kind).view(3, 4).t()}
        back = through(value, weights_only=True)
        assert [(t.dtype, t.shape, t.stride()) for t in back.values()] == [
            (t.dtype, t.shape, t.stride()) for t in value.values()
        ]
        assert torch.equal(back["w"].view(held.dtype), held)
        return
    base = torch.arange(12).to(torch.float32).to(kind)
    value = [base, base.view(3, 4).t(), base[5], base[:0], base.as_strided((2, 2), (0, 1), 3)]
    value.append(
        torch.nn.Parameter(
            base, requires_grad=name.startswith(("float", "bfloat", "complex")) and base.is_floating_point()
        )
    )

    assert torch_describe(through(value, weights_only=True)) == torch_describe(value)


def test_attributes_of_tensors() -> None:
    """Python attributes of tensors and parameters are kept, with what they share with the rest."""
    one, two, shared = torch.ones(2), torch.nn.Parameter(torch.ones(2)), [1]
    one.note, two.note = {"s": shared}, ["x"]  # type: ignore[attr-defined]
    back = through([one, two, shared])

    assert back[0].note["s"] is back[2]
    assert (type(back[1]), back[1].note, back[1].requires_grad) == (torch.nn.Parameter, ["x"], True)


class Sub(torch.Tensor):
    """A class of tensors."""


def test_classes_of_tensors() -> None:
    """A tensor of a subclass is one again."""
    assert type(through(torch.ones(2).as_subclass(Sub))) is Sub


def test_conjugated() -> None:
    """Views that are noted as conjugated or negated are so afterwards, and share their memory."""
    base = torch.tensor([1 + 2j, 3 - 1j])
    back = through([base, base.conj(), torch.nn.Parameter(base.clone().conj())])

    assert [one.is_conj() for one in back] == [False, True, True]
    assert back[0].data_ptr() == back[1].data_ptr()
    assert back[1].resolve_conj().tolist() == [1 - 2j, 3 + 1j]


def test_untyped_storages() -> None:
    """A bare storage is the one that tensors are on."""
    one = torch.arange(3, dtype=torch.uint8)
    value = [one, one.untyped_storage()]
    back = through(value)

    assert back[1].data_ptr() == back[0].untyped_storage().data_ptr()
    for value in ([one, one.untyped_storage()], [one.untyped_storage()]):
        wanted = torch.load(io.BytesIO(saved(value)), weights_only=False)
        assert [type(item) for item in through(value)] == [type(item) for item in wanted]


def test_sparse_parameters() -> None:
    """A sparse tensor may be a parameter."""
    value = torch.nn.Parameter(torch.eye(2).to_sparse())
    back = through(value)

    assert isinstance(back, torch.nn.Parameter)
    assert torch.equal(back.to_dense(), torch.eye(2))


def test_memory_seen_as_two_types() -> None:
    """Tensors of two types on one memory are written on one storage, which the reader sees as both again."""
    base = Storage.from_array(np.arange(4, dtype="f4"))
    other = Storage(ELEMENT_TYPES["int32"], 4, base.data.view("i4"), base=base)  # type: ignore[union-attr]
    value = [Tensor(base.element, base, (4,), (1,)), Tensor(other.element, other, (2,), (2,), 1)]
    data = written(value)

    assert described(data) == describe_python(value)
    back = PtReader(data).read()
    assert back[1].storage.base is back[0].storage
    with pytest.raises(UnsupportedError, match="int32 outside of a tensor"):
        written([value[0], other])


def test_an_untyped_storage_of_bits() -> None:
    """A bare storage of elements that PyTorch has no storage class for is refused as such, and written as bytes."""
    bits = Storage(ELEMENT_TYPES["uint16"], 2, np.array([1, 2], "u2"))

    with pytest.raises(UnsupportedError, match="uint16"):
        written([bits])
    assert torch.load(io.BytesIO(written([UntypedStorage(bits)])))[0].tolist() == [1, 0, 2, 0]


# Cycles


def test_a_counter_in_itself() -> None:
    """A counter that holds itself is written in finite time, and does so again."""
    value: Any = Counter()
    value["self"] = value
    back = pickle.loads(pickled(value))

    assert type(back) is Counter
    assert back["self"] is back


def test_objects_in_their_own_arguments() -> None:
    """An object, a set and a tuple that hold themselves by way of a list or an attribute are written once."""
    cls = PythonGlobal("test", "Thing")
    inside: list[Any] = []
    by_list = PythonObject(cls, "reduce", (inside,))
    inside.append(by_list)
    by_state = PythonObject(cls, "newobj", (), state={})
    by_state.state["set"] = {by_state}
    tensor = Tensor.from_numpy(np.ones(1))
    tensor.extras = TensorExtras(state={"x": 1, "me": [tensor]})
    value = OrderedDict(a=by_list, b=by_state, t=tensor)
    value["self"] = value  # type: ignore[assignment]
    back: Any = PtReader(written(value)).read()

    assert back["self"] is back
    assert back["a"].args[0][0] is back["a"]
    (item,) = back["b"].state["set"]
    assert item is back["b"]
    assert back["t"].numpy().tolist() == [1]


@pytest.mark.slow
def test_deep_objects() -> None:
    """Objects inside one another are written without recursion."""
    value: Any = 1
    for number in range(20_000):
        value = PythonObject(PythonGlobal("a", "B"), "reduce", (value,)) if number % 2 else OrderedDict(a=[value])
    back, _ = unpickled(pickled(value))

    for number in reversed(range(20_000)):
        back = back.args[0] if number % 2 else back["a"][0]
    assert back == 1


# Names and order


@pytest.mark.parametrize(
    ("module", "name"), [("a\nb", "c"), ("a", "b\nc"), ("a b", "c"), ("a", "b c"), ("a\r", "b"), ("a\ud800", "b")]
)
def test_names_that_are_no_lines(module: str, name: str) -> None:
    """A name that a line of a pickle cannot hold is refused: it would become opcodes."""
    with pytest.raises(UnsupportedError, match="name"):
        pickled(PythonGlobal(module, name))


def test_names_of_python_2() -> None:
    """Protocol 2 has the older names of some modules, as Python's own pickler writes them."""
    assert b"c__builtin__\nint\n" in pickled(PythonGlobal("builtins", "int"))
    assert b"ccopy_reg\n__newobj__\n" in pickled(PythonGlobal("copyreg", "__newobj__"))
    assert b"ctorch\nfloat32\n" in pickled(TorchConstant("dtype", "float32"))


def test_memory_formats() -> None:
    """A memory format is a name of PyTorch, which it has no function to get by."""
    data = written(PtReader(b"\x80\x02ctorch\nchannels_last\n.").read())

    assert torch.load(io.BytesIO(data), weights_only=False) is torch.channels_last


def test_devices_are_calls() -> None:
    """A device is made of its type and, where there is one, its number."""
    for device, wanted in ((Device("cpu"), torch.device("cpu")), (Device("cuda", 0), torch.device("cuda", 0))):
        assert torch.load(io.BytesIO(written(device)), weights_only=True) == wanted


def test_keys_that_become_texts_of_other_keys() -> None:
    """Keys that the safe loader refuses become texts, which none of the other keys of a dict or set is."""
    net = PythonGlobal("my.models", "Net")
    value = [{net: 1}, {net: 2, "my.models.Net": 3}, {"my.models.Net #2": 4, net: 5}, {net, "my.models.Net"}]
    data = PickleWriter(lambda storage: ("0", "cpu")).dumps(value)
    assert pickle.loads(data) == [
        {"my.models.Net": 1},
        {"my.models.Net #2": 2, "my.models.Net": 3},
        {"my.models.Net #2": 4, "my.models.Net #3": 5},
        {"my.models.Net", "my.models.Net #3"},
    ]


def test_order_of_sets() -> None:
    """The items of a set come in an order that is theirs, whatever the order in which they are met."""
    items = [
        3,
        "b",
        b"x",
        ("t", 1),
        None,
        1.5,
        "a",
        frozenset({"y", ("z",)}),
        True,
        Device("cpu"),
        PythonGlobal("a", "b"),
    ]
    wanted = in_order(items)

    assert wanted[:6] == [True, 1.5, 3, "a", "b", b"x"]
    for turn in range(len(items)):
        assert in_order(items[turn:] + items[:turn]) == wanted
    assert in_order({"b", "a"}) == ["a", "b"]


def test_nothing_else_is_written() -> None:
    """A value that is none of these is refused."""
    for value in (object(), lambda: 1, type, Plain()):
        with pytest.raises(UnsupportedError, match="cannot be written"):
            pickled(value)
