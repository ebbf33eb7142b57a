"""Python-side values as Lua values: what a Lua user finds in a `.t7` that was made from a `.pt`."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from helpers import description, read, written
from pt_helpers import saved, torch_type

from t7bridge import PtReader, Storage, Table, TdsHash, TdsVec, Tensor, TorchObject
from t7bridge.conversion import LuaTree, to_lua
from t7bridge.conversion.tree import as_tree
from t7bridge.errors import CorruptError, UnsupportedError
from t7bridge.graph import (
    ELEMENT_TYPES,
    DefaultDict,
    Device,
    NumpyArray,
    NumpyDtype,
    NumpyScalar,
    PythonGlobal,
    PythonObject,
    TensorExtras,
    TorchConstant,
    TorchSize,
    UntypedStorage,
)

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def lua(value: Any, **options: Any) -> Any:
    """The Lua value of a Python-side one, once it was written and read."""
    return read(written(to_lua(value, **options).value))


def lua_of_torch(value: Any) -> Any:
    """The Lua value of what PyTorch saves."""
    return lua(PtReader(saved(value)).read())


def messages(tree: LuaTree, level: str) -> list[str]:
    """The notes of a level."""
    return [note.message for note in tree.notes if note.level == level]


# Scalars


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, None), (True, True), (False, False), (7, 7.0), (-(2**53), -(2.0**53)), (2.5, 2.5), (math.inf, math.inf),
        ("Grüße", "Grüße".encode()), ("", b""), (b"\xff\x00", b"\xff\x00"), (bytearray(b"ab"), b"ab"),
        ("\ud800", b"\xed\xa0\x80"), (2**60, 2.0**60), (2**1030, str(2**1030).encode()),
        (Device("cuda", 1), b"cuda:1"), (Device("cpu"), b"cpu"),
        (TorchConstant("dtype", "bfloat16"), b"torch.bfloat16"),
        (NumpyDtype("f8", "<"), b"f8"), (PythonGlobal("torch.nn", "Linear"), b"torch.nn.Linear"),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_scalars(value: Any, wanted: Any) -> None:
    """Scalars and names arrive as Lua's nearest, of the right type."""
    found = lua(value)

    assert type(found) is type(wanted)
    assert found == wanted


def test_complex_number() -> None:
    """A complex number is a table of two parts."""
    assert dict(lua(1 - 2j).items()) == {"re": 1.0, "im": -2.0}


def test_integers_beyond_doubles_are_noted() -> None:
    """An integer that no double holds becomes the nearest, with a note that has both; an exact one has no note."""
    tree = to_lua({"exact": 2**60, "near": 2**53 + 1, "huge": 10**400})

    assert tree.value["near"] == 2.0**53
    assert tree.value["huge"] == str(10**400).encode()
    assert [(note.path, note.level) for note in tree.notes] == [("root.near", "info"), ("root.huge", "info")]
    assert str(2**53 + 1) in tree.notes[0].message
    assert "9007199254740992" in tree.notes[0].message


# Containers


def test_keys_with_integers_of_very_many_digits() -> None:
    """Python refuses to write more than 4300 decimal digits: inside a key these are hexadecimal, also in messages."""
    huge = 10**5000
    assert lua({(-huge, 1): 2}).get(f"(-{huge:#x}, 1)".encode()) == 2
    with pytest.raises(UnsupportedError, match="too many digits"):
        lua({(huge, 1): huge})


def test_lists() -> None:
    """Lists, tuples, sizes and sets are tables from 1 on; None leaves its place empty."""
    found = lua({"list": [1, "a", None, [2]], "tuple": (), "size": TorchSize((2, 3)), "set": {3, 1, 2, "b", "a"}})

    assert found["list"].raw_keys == [1.0, 2.0, 4.0]
    assert found["list"][4].as_list() == [2.0]
    assert len(found["tuple"]) == 0
    assert found["size"].as_list() == [2.0, 3.0]
    assert found["set"].as_list() == [1.0, 2.0, 3.0, b"a", b"b"]


@pytest.mark.parametrize("kind", [dict, OrderedDict, DefaultDict, Counter])
def test_dicts(kind: type) -> None:
    """Dicts of every kind are tables in the same order, without the keys whose value is None."""
    value = kind()
    value.update({"b": 1, "a": 2, 7: "seven", "gone": None, True: "yes", 2.5: "half"})

    found = lua(value)

    assert found.raw_keys == [b"b", b"a", 7.0, True, 2.5]
    assert found[7] == b"seven"
    assert found[True] == b"yes"


def test_keys_that_lua_cannot_look_up() -> None:
    """Tuples and other keys are their text, names are what they are called; each text has a note."""
    value = {
        (1, "a"): 1, (2,): 2, None: 3, math.nan: 4, 1j: 5, TorchConstant("dtype", "float32"): 6, Device("cpu"): 7,
        frozenset({"y", "x"}): 8, (1, (2, Device("cuda", 0))): 9, PythonGlobal("a", "b"): 10,
        PythonObject(None, "reduce"): 11, frozenset(): 12,
    }  # fmt: skip
    tree = to_lua(value)

    assert tree.value.raw_keys == [
        b"(1, 'a')", b"(2,)", b"None", b"nan", b"1j", b"torch.float32", b"cpu",
        b"frozenset({'x', 'y'})", b"(1, (2, cuda:0))", b"a.b", b"<<computed>>", b"frozenset()",
    ]  # fmt: skip
    assert len(messages(tree, "info")) == 9
    assert lua(value)["(1, 'a')"] == 1


def test_keys_that_collide() -> None:
    """Of keys that are one in Lua the first stays; each other is named in a warning."""
    tree = to_lua({"a": 1, b"a": 2, 2**53: 3, 2**53 + 1: 4, (1,): 5, "(1,)": 6, 1: 7, "1": 8})

    assert dict(tree.value.items()) == {"a": 1.0, 2**53: 3.0, "(1,)": 5.0, 1: 7.0, "1": 8.0}
    assert len(messages(tree, "warning")) == 3


@pytest.mark.slow
def test_a_key_of_any_depth() -> None:
    """The text of a key is bounded, however its parts hold one another."""
    shared: frozenset[Any] = frozenset()
    for _ in range(2000):
        shared = frozenset({shared, (shared,)})
    tree = to_lua({shared: 1, "set": {shared}})

    assert len(tree.value.raw_keys[0]) < 5000
    assert tree.value["set"].as_list()


def test_tensors_as_keys() -> None:
    """A tensor may be a key, as Lua tables may have any."""
    key = Tensor.from_numpy(np.ones(2, "f4"))
    found = to_lua([{key: 1}, key]).value

    assert found[1].raw_keys[0] is found[2]


def test_sharing() -> None:
    """One object is one object in Lua: lists, dicts, tensors, storages; tuples, too."""
    shared, pair = [1], (1, 2)
    one = Tensor.from_numpy(np.arange(4, dtype="f4"))
    other = Tensor(one.element, one.storage, (2,), (1,), 2)
    value: dict[str, Any] = {
        "a": shared,
        "b": shared,
        "p": pair,
        "q": pair,
        "t": one,
        "u": one,
        "v": other,
        "s": one.storage,
    }
    value["self"] = value

    found = lua(value)

    assert found["a"] is found["b"]
    assert found["p"] is found["q"]
    assert found["t"] is found["u"]
    assert found["t"].storage is found["v"].storage is found["s"]
    assert found["self"] is found


def test_nested_names() -> None:
    """`conv1.weight` is `t.conv1.weight`, in the order of the keys; inner dicts are nested as well."""
    found = to_lua({"conv1.weight": 1, "fc.0.bias": 2, "conv1.bias": 3, "top": {"a.b": 4}, 5: 6}, nested=True).value

    assert found.raw_keys == [b"conv1", b"fc", b"top", 5.0]
    assert found["conv1"].raw_keys == [b"weight", b"bias"]
    assert found["fc"]["0"]["bias"] == 2
    assert found["top"]["a"]["b"] == 4


@pytest.mark.parametrize(
    "value",
    [{"a": 1, "a.b": 2}, {"a.b": 1, "a": 2}, {"a": {"b": 1}, "a.c": 2}, {"a.b.c": 1, "a.b": 2}, {"a" + ".a" * 1000: 1}],
    ids=["first", "last", "table", "inner", "endless"],
)
def test_names_that_cannot_be_nested(value: Any) -> None:
    """If one name is a prefix of another, the dict stays flat, and a note says so."""
    tree = to_lua(value, nested=True)

    assert [bytes(key).decode() for key in tree.value.raw_keys] == list(value)
    assert "not nested" in messages(tree, "info")[0]


def test_dots_stay_without_the_option() -> None:
    """Names with dots are keys like any other."""
    assert lua({"a.b": 1}).raw_keys == [b"a.b"]


# Tensors


LUA_OF = {
    "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long", "float16": "Half",
    "float32": "Float", "float64": "Double", "bool": "Byte", "bfloat16": "Float", "float8_e4m3fn": "Float",
    "float8_e5m2": "Float", "float8_e4m3fnuz": "Float", "float8_e5m2fnuz": "Float", "float8_e8m0fnu": "Float",
    "uint16": "Int", "uint32": "Long", "uint64": "Long", "complex32": "Half",
    "complex64": "Float", "complex128": "Double",
}  # fmt: skip


@pytest.mark.parametrize("name", LUA_OF)
def test_types(name: str) -> None:
    """Each of PyTorch's types becomes the Lua type that holds all its numbers, which are the same."""
    one = torch.tensor([[1.0, 2.0], [4.0, 8.0]]).to(torch_type(name))
    found = lua_of_torch({"whole": one, "row": one[1], "scalar": one[1, 0], "empty": one[:0]})

    assert found["whole"].lua_class == f"torch.{LUA_OF[name]}Tensor"
    ratio = 2 if one.is_complex() else 1
    wanted = torch.view_as_real(one.to(torch.complex64)) if ratio == 2 else one.to(torch.float64)
    assert found["whole"].numpy().tolist() == wanted.tolist()
    assert found["row"].numpy().tolist() == wanted[1].tolist()
    assert found["scalar"].size == ((2,) if ratio == 2 else (1,))
    assert found["scalar"].offset == 2 * ratio
    assert found["scalar"].numpy().tolist() == np.array(wanted[1, 0].tolist()).reshape(-1).tolist()
    assert found["empty"].size == ()
    assert len({id(item.storage) for item in (found["whole"], found["row"], found["scalar"], found["empty"])}) == 1


def test_unsigned_beyond_lua() -> None:
    """64-bit numbers stay integers where all fit, and are doubles where one does not; a warning says so."""
    fits, beyond = Storage.from_array(np.array([0, 2**63 - 1], "u8")), Storage.from_array(np.array([1, 2**63], "u8"))
    tree = to_lua([Tensor(storage.element, storage, (2,), (1,)) for storage in (fits, beyond)])

    assert [item.lua_class for item in tree.value.as_list()] == ["torch.LongTensor", "torch.DoubleTensor"]
    assert tree.value[1].numpy().tolist() == [0, 2**63 - 1]
    assert tree.value[2].numpy().tolist() == [1.0, 2.0**63]
    assert len(messages(tree, "warning")) == 1


def test_changed_types_are_noted() -> None:
    """A tensor whose type Lua lacks has a note that names both types; the others have none."""
    bits = Storage(ELEMENT_TYPES["bfloat16"], 2, np.zeros(2, "u2"))
    tree = to_lua({"a": Tensor(bits.element, bits, (2,), (1,)), "b": Tensor.from_numpy(np.ones(2))})

    assert [(note.path, note.message) for note in tree.notes] == [("root.a", "bfloat16 is written as float32")]


def test_no_storage_and_no_elements() -> None:
    """Tensors without memory or without elements have no dimensions in Lua; several dimensions are noted."""
    element = ELEMENT_TYPES["float32"]
    tree = to_lua([Tensor(element, None), Tensor(element, Storage.empty(element), (0, 4), (4, 1), 0)])

    assert tree.value[1].storage is None
    assert (tree.value[2].size, tree.value[2].storage.count) == ((), 0)
    assert messages(tree, "info") == ["a tensor without elements has no dimensions in Lua"]


def test_conjugation_costs_nothing_beforehand() -> None:
    """A conjugated view that repeats few elements very often is a view in Lua too, and needs no memory."""
    storage = Storage.from_array(np.array([1 + 2j], "c8"))
    size, stride = (1 << 20, 1 << 20, 1 << 10), (0, 0, 0)
    tree = to_lua(Tensor(storage.element, storage, size, stride, extras=TensorExtras(conj=True)))

    assert (tree.value.size, tree.value.stride) == ((*size, 2), (0, 0, 0, 1))
    assert tree.value.storage.array.tolist() == [1, -2]


@pytest.mark.parametrize("conj", [False, True])
@pytest.mark.parametrize("neg", [False, True])
@pytest.mark.parametrize("name", ["complex32", "complex64", "complex128"])
def test_conjugation_and_sign(name: str, neg: bool, conj: bool) -> None:
    """Both marks are applied together, for every complex type."""
    one = torch.tensor([1 + 2j, -3 - 0.5j]).to(torch_type(name))
    read_one = PtReader(saved(one)).read()
    read_one.extras = TensorExtras(conj=conj, neg=neg)

    sign = -1 if neg else 1
    assert to_lua(read_one).value.numpy().tolist() == [
        [sign, sign * (-2 if conj else 2)], [-3 * sign, sign * (0.5 if conj else -0.5)],
    ]  # fmt: skip


def test_sign_of_a_type_that_has_none() -> None:
    """A mark on elements that cannot have it is an error, not a wrong number."""
    storage = Storage(ELEMENT_TYPES["bfloat16"], 1, np.zeros(1, "u2"))
    tree = to_lua(Tensor(storage.element, storage, (1,), (1,), extras=TensorExtras(neg=True)))

    with pytest.raises(UnsupportedError, match="bfloat16"):
        written(tree.value)


def test_attributes_of_tensors_are_named() -> None:
    """Python attributes of a tensor, and its class, are not in Lua; a warning says so."""
    one = Tensor.from_numpy(np.ones(1))
    one.extras = TensorExtras(state={"note": "x"})

    assert "attributes" in messages(to_lua(one), "warning")[0]


def test_bare_storages() -> None:
    """A storage outside of tensors is a Lua storage, of bytes if its type is unknown."""
    bits = Storage(ELEMENT_TYPES["bfloat16"], 2, np.array([0x3F80, 0x4000], "u2"))
    raw = Storage.from_array(np.array([1, 2], "u1"))
    found = lua([bits, UntypedStorage(raw)])

    assert (found[1].lua_class, found[1].array.tolist()) == ("torch.FloatStorage", [1, 2])
    assert (found[2].lua_class, found[2].array.tolist()) == ("torch.ByteStorage", [1, 2])


# numpy


@pytest.mark.parametrize("code", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1", "c8", "c16"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_numpy_arrays(code: str, order: str) -> None:
    """Arrays of numbers are tensors, whatever their byte order and the order of their indices."""
    array = np.array([[1, 0, 1], [0, 1, 1]]).astype(f"{order}{code}")
    found = lua_of_torch({"c": array, "f": np.asfortranarray(array), "0": array[0, 0], "empty": array[:0]})

    wanted = np.stack((array.real, array.imag), -1) if code[0] == "c" else array
    assert found["c"].numpy().tolist() == wanted.tolist()
    assert found["f"].numpy().tolist() == wanted.tolist()
    assert found["f"].stride[:2] != found["c"].stride[:2]
    assert dict(found["0"].items()) == {"re": 1, "im": 0} if code[0] == "c" else found["0"] == 1
    assert found["empty"].size == ()


def test_numpy_text() -> None:
    """Arrays of text are tables of strings, row by row; a single text is a string."""
    names = np.array([["cat", "dog"], ["Kühe", ""]])
    found = lua_of_torch(
        {
            "u": names,
            "big": names.astype(">U4"),
            "s": np.array([b"ab", b"c"]),
            "f": np.asfortranarray(names),
            "one": names[1, 0],
        }
    )

    for name in ("u", "big", "f"):
        assert [row.as_list() for row in found[name].as_list()] == [[b"cat", b"dog"], ["Kühe".encode(), b""]]
    assert found["s"].as_list() == [b"ab", b"c"]
    assert found["one"] == "Kühe".encode()


def test_numpy_objects_and_others() -> None:
    """An array of objects is a table of them; elements that Lua has no numbers for are bytes, with a warning."""
    objects = NumpyArray(NumpyDtype("O8", "|"), (2,), False, [{"a": 1}, "b"])
    times = NumpyArray(NumpyDtype("M8", "<"), (1,), False, b"12345678")
    tree = to_lua([objects, times])

    assert tree.value[1][1]["a"] == 1
    assert tree.value[1][2] == b"b"
    assert tree.value[2] == b"12345678"
    assert messages(tree, "warning") == ["numpy elements of type M8 are bytes in Lua"]


@pytest.mark.parametrize("data", [b"", b"123", b"0" * 16])
def test_numpy_scalars_of_the_wrong_size(data: bytes) -> None:
    """A scalar whose bytes are not those of its type is damage."""
    with pytest.raises(CorruptError, match="scalar"):
        to_lua(NumpyScalar(NumpyDtype("f8", "<"), data))


def test_one_array_twice() -> None:
    """An array that occurs in two places is one tensor."""
    array = NumpyArray(NumpyDtype("f4", "<"), (1,), False, b"\0\0\x80?")
    found = to_lua([array, array]).value

    assert found[1] is found[2]


# Objects


def test_opaque_objects() -> None:
    """An object of an unknown class is a table of its attributes under its class, with a warning that names it."""
    cls = PythonGlobal("my.code", "Config")
    value = PythonObject(cls, "newobj", (1,), state={"lr": 0.1, "sub": {"a": 1}})
    slots = PythonObject(cls, "newobj_ex", (), kwargs={"x": 2}, state=(None, {"slot": 3}))
    other = PythonObject(cls, "reduce", (), state=[1, 2], items=[4], pairs=[("k", 5)])
    tree = to_lua({"a": value, "again": value, "slots": slots, "other": other})
    found = tree.value

    assert found["a"] is found["again"]
    assert (found["a"]["__class__"], found["a"]["lr"], found["a"]["sub"]["a"]) == (b"my.code.Config", 0.1, 1)
    assert found["a"]["__args__"].as_list() == [1]
    assert (found["slots"]["slot"], found["slots"]["__kwargs__"]["x"]) == (3, 2)
    assert found["other"]["__state__"].as_list() == [1, 2]
    assert found["other"]["__items__"].as_list() == [4]
    assert found["other"]["__pairs__"][1].as_list() == [b"k", 5]
    assert messages(tree, "warning") == ["an object of class my.code.Config is written as a table of its content"] * 3
    assert description(read(written(found)))


def test_object_in_itself() -> None:
    """An object that holds itself is a table that holds itself."""
    value = PythonObject(PythonGlobal("a", "B"), "newobj", state={})
    value.state["me"] = value

    found = lua(value)

    assert found["me"] is found


def test_unknown_values_are_refused() -> None:
    """A value that no `.pt` has is an error with its path."""
    with pytest.raises(UnsupportedError, match=r"root\.a\[2\].*object"):
        to_lua({"a": [1, 2, object()]})


def test_objects_of_lua_stay_what_they_are() -> None:
    """A Lua object inside Python's builtins is in the tree unchanged."""
    module = TorchObject("nn.Identity")
    assert to_lua({"net": module}).value["net"] is module


@pytest.mark.parametrize(
    "value",
    [
        {"__class__": "tds.Vec", "__version__": 0, "items": [1.0], "weight": 2.0},
        {"__class__": "tds.Vec", "__version__": 0, "items": 5.0},
        {"__class__": "tds.Vec", "__version__": 0},
        {"__class__": "table", "pairs": 5.0},
        {"__class__": "table", "pairs": [[1.0]]},
        {"__class__": "table", "pairs": ["ab"]},
        {"__class__": "table", "pairs": [[None, 1.0]]},
        {"__class__": "table", "pairs": [[math.nan, 1.0]]},
    ],
    ids=repr,
)
def test_dicts_that_look_like_those_of_lua_values(value: dict[str, Any]) -> None:
    """What no vector or table can hold stays a table with all of the dict's entries."""
    found = to_lua(value, objects=True).value
    assert description(read(written(found))) == description(read(written(to_lua(value).value)))
    assert len(found) == len(value)


def test_vectors_and_tables_that_were_dicts() -> None:
    """Dicts of vectors, and of tables and fields whose keys no dict has, or only others have, become these again."""
    clashing = Table.of([(True, 1.0), (1, 2.0), ("pairs", 3.0)])
    pairs = Table.of({"pairs": Table.from_list([Table.from_list([1.0, 2.0])])})
    for value in (
        TdsVec([1.0, b"x"]),
        Table.of([(True, 1.0), (1, 2.0)]),
        TorchObject("a.B", 1, clashing),
        TorchObject("a.B", 1, pairs),
        TorchObject("a.B", 1, Table.of({"__payload__": 1.0})),
        TdsHash(clashing),
        TdsHash(pairs),
    ):
        assert description(to_lua(as_tree(value), objects=True).value) == description(value)


@pytest.mark.slow
def test_places_very_deep_inside() -> None:
    """A note about a deeply nested value has a short path, and collecting it takes no time."""
    value: Any = 2**53 + 1
    for _ in range(50_000):
        value = {"key " * 100: [value]}
    tree = to_lua(value)

    assert len(tree.notes) == 1
    assert tree.notes[0].path.startswith("root…")
    assert len(tree.notes[0].path) < 5000
    assert isinstance(tree.value, Table)


def test_many_kinds_of_notes() -> None:
    """However many different notes a file asks for, the report stays of a size to read."""
    tree = to_lua([PythonObject(PythonGlobal("m", f"C{number}"), "newobj") for number in range(5000)])

    assert 100 < len(tree.notes) <= 2000
