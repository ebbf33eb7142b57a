"""`.pt` files on their way to Lua and back, and to today's and the older format of PyTorch."""

from __future__ import annotations

import importlib
import os
import pickle
import pkgutil
import struct
import subprocess
import sys
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TESTFILES, corpus, name_of, peak_mib
from looping import new_folder
from pt_helpers import golden, saved, storage_id, text, torch_describe, zipped
from pt_helpers import tensor as view

import t7bridge
import t7bridge.conversion
import t7bridge.formats
from t7bridge import Limits, PtReader, T7Layout, Table, Tensor
from t7bridge.errors import ForbiddenGlobalError, FormatError, T7BridgeError, UnsupportedError
from t7bridge.formats import PT_RECORD_START, T7Writer, read_t7

# torch.load unpacks numpy's, quantized and storage classes by ways that it calls deprecated itself.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{message}")
    for message in (
        "TypedStorage is deprecated",
        "Sparse ",
        ".*quantiz",
        ".*torch.jit",
        ".*TorchScript",
        "ComplexHalf support is experimental",
    )
]

PT_FILES = corpus("pt/*.pt")
WITH_GOLDEN = [path for path in PT_FILES if path.with_name(path.name[:-3] + ".json").exists()]
WITHOUT = [path for path in PT_FILES if path not in WITH_GOLDEN]
ENCODINGS: dict[str, dict[str, Any]] = {
    "little8": {},
    "ascii": {"encoding": "ascii"},
    "big": {"byte_order": "big"},
    "long4": {"long_size": 4},
}
ONLY_TODAY = {  # PyTorch 0.2 to 1.5 have no storage classes of these
    "dtype_complex32.pt", "dtype_float8_e4m3fn.pt", "dtype_float8_e5m2.pt",
    "dtype_uint16.pt", "dtype_uint32.pt", "dtype_uint64.pt",
}  # fmt: skip


def there_and_back(source: Path, folder: Path, **encoding: Any) -> Path:
    """A `.pt` by way of a re-encoded `.t7`."""
    t7bridge.convert(source, folder / "a.t7")
    if encoding:
        t7bridge.convert(folder / "a.t7", folder / "b.t7", **encoding)
    # The names of numpy and of modules are asked for: otherwise what comes back is plain data.
    report = t7bridge.convert(folder / ("b.t7" if encoding else "a.t7"), folder / "back.pt", allow_foreign=True)
    assert report.mode == "record"
    return folder / "back.pt"


def converted(value: Any, folder: Path, **options: Any) -> Any:
    """Return the Lua value of a value saved by PyTorch, and the report."""
    (folder / "x.pt").write_bytes(value if isinstance(value, bytes) else saved(value))
    report = t7bridge.convert(folder / "x.pt", folder / "x.t7", force=True, **options)
    return t7bridge.load(folder / "x.t7"), report


def restored(folder: Path, **load: Any) -> Any:
    """Return the value that PyTorch loads from the `.pt` made from the `.t7` of `converted`."""
    asked = {"allow_foreign": True} if load.get("weights_only") is False else {}
    t7bridge.convert(folder / "x.t7", folder / "back.pt", force=True, **asked)
    return torch.load(folder / "back.pt", **{"weights_only": True, **load})


# Whole files


def names_plain_data(path: Path) -> bool:
    """Return whether PyTorch's safe loader knows all names in a file; it does not read a tar or TorchScript at all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.load(path, weights_only=True)
        except pickle.UnpicklingError:
            return False
        except RuntimeError:
            return True
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [path for path in WITH_GOLDEN if path.stem != "numpy_mixed" or np.__version__ >= "2"],  # numpy 1 has another repr
    ids=name_of,
)
def test_to_lua_and_back(subtests: pytest.Subtests, path: Path, tmp_path: Path) -> None:
    """PyTorch sees in the file that came back what it saw in the original, and so does the description."""
    for encoding in ENCODINGS:
        with subtests.test(encoding=encoding), new_folder(tmp_path) as folder:
            back = there_and_back(path, folder, **ENCODINGS[encoding])

            wanted = golden(path)
            if not names_plain_data(path):  # it comes back as what the safe loader reads: tensors for numpy's arrays
                t7bridge.convert(path, folder / "plain.pt")
                wanted = torch_describe(torch.load(folder / "plain.pt", weights_only=False))
            assert torch_describe(torch.load(back, weights_only=False)) == wanted
            assert t7bridge.describe(back) == wanted


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("path", WITHOUT, ids=name_of)
def test_what_has_no_golden_is_read_alike(path: Path, encoding: str, tmp_path: Path) -> None:
    """Sparse, quantized and cyclic values, modules and C++ archives read before and after as the same."""
    back = there_and_back(path, tmp_path, **ENCODINGS[encoding])
    if path.name == "whole_module.pt":  # it comes back as its state dict
        path = tmp_path / "state.pt"
        t7bridge.convert(TESTFILES / "pt/whole_module.pt", path)

    assert t7bridge.describe(back) == t7bridge.describe(path)
    after = torch.load(back, weights_only=False)
    if not path.name.startswith("cpp_"):  # these come back as data: `test_cpp_archives`
        assert repr(after) == repr(torch.load(path, weights_only=False))


@pytest.mark.slow
def test_the_way_through_lua_loses_nothing_that_a_copy_keeps(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """A file that was in Lua between has the bytes of one that was copied, and both come out the same again."""
    for path in PT_FILES:
        with subtests.test(name_of(path)), new_folder(tmp_path) as folder:
            t7bridge.convert(path, folder / "copy.pt")
            t7bridge.convert(path, folder / "again.pt")
            back = there_and_back(path, folder)
            (folder / "twice").mkdir()
            there_and_back(path, folder / "twice")

            assert (folder / "copy.pt").read_bytes() == (folder / "again.pt").read_bytes()
            assert back.read_bytes() == (folder / "copy.pt").read_bytes()
            assert (folder / "a.t7").read_bytes() == (folder / "twice/a.t7").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("pt_format", ["zip", "legacy"])
def test_copies_are_loaded_by_pytorch(subtests: pytest.Subtests, pt_format: str, tmp_path: Path) -> None:
    """A copy in either format of PyTorch holds what the original holds, or the error has the reason."""
    for path in PT_FILES:
        with subtests.test(name_of(path)), new_folder(tmp_path) as folder:
            if pt_format == "legacy" and path.name in ONLY_TODAY:
                with pytest.raises(UnsupportedError, match=r"0\.2 to 1\.5"):
                    t7bridge.convert(path, folder / "x.pt", pt_format=pt_format)
                assert not (folder / "x.pt").exists()
                continue
            t7bridge.convert(path, folder / "x.pt", mode="tree", pt_format=pt_format, allow_foreign=True)

            value = torch.load(folder / "x.pt", weights_only=False)
            assert PtReader(folder / "x.pt").kind == pt_format
            assert t7bridge.describe(folder / "x.pt") == t7bridge.describe(path)
            if path in WITH_GOLDEN:
                assert torch_describe(value) == golden(path)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("value", [None, True, False, 0, 1, -1, 0.5, "", b"", "x", (), [], {}, 2**60 + 1], ids=repr)
def test_short_values(value: Any, encoding: str, tmp_path: Path) -> None:
    """A value of a few bytes followed by its record is not mistaken for a file of another kind."""
    (tmp_path / "x.pt").write_bytes(saved(value))
    back = torch.load(there_and_back(tmp_path / "x.pt", tmp_path, **ENCODINGS[encoding]))

    assert (type(back), back) == (type(value), value)


def test_sparse(tmp_path: Path) -> None:
    """PyTorch gets the sparse tensors back: layout, indices, values, size, and whether they are coalesced."""
    dense = torch.tensor([[0.0, 3.0, 0.0], [4.0, 0.0, 5.0]])
    value = {
        "coo": dense.to_sparse(),
        "uncoalesced": torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (2, 3)),
        "csr": dense.to_sparse_csr(),
        "csc": dense.to_sparse_csc(),
    }
    lua, _ = converted(value, tmp_path)
    back = restored(tmp_path)

    for name, tensor in value.items():
        assert back[name].layout == tensor.layout
        assert torch.equal(back[name].to_dense(), tensor.to_dense())
    assert back["coo"].is_coalesced()
    assert not back["uncoalesced"].is_coalesced()
    assert lua["coo"]["layout"] == b"sparse_coo"
    assert lua["coo"]["indices"].numpy().tolist() == [[0, 1, 1], [1, 0, 2]]
    assert lua["coo"]["values"].numpy().tolist() == [3, 4, 5]
    assert lua["coo"]["size"].as_list() == [2, 3]
    assert lua["csr"]["indices"].numpy().tolist() == [0, 1, 3]
    assert lua["csr"]["plain_indices"].numpy().tolist() == [1, 0, 2]


def test_quantized(tmp_path: Path) -> None:
    """Quantized tensors are a table of their integers, scale and zero point in Lua, and themselves afterwards."""
    floats = torch.tensor([[-1.0, 0.5], [0.25, 2.0]])
    scales, zeros = torch.tensor([0.1, 0.2], dtype=torch.float64), torch.tensor([3, 4])
    value = [
        torch.quantize_per_tensor(floats, 0.1, 10, torch.quint8),
        torch.quantize_per_tensor(floats, 0.1, 0, torch.qint8),
        torch.quantize_per_tensor(floats, 0.1, 0, torch.qint32),
        torch.quantize_per_channel(floats, scales, zeros, 1, torch.quint8),
        torch.quantize_per_channel(floats, scales.float(), zeros.float(), 1, torch.quint4x2),
        torch.quantize_per_channel(floats, scales.float(), zeros.float(), 1, torch.quint2x4),
    ]
    lua, _ = converted(value, tmp_path)
    back = restored(tmp_path)

    for tensor, other in zip(value, back, strict=True):
        assert (other.dtype, other.qscheme()) == (tensor.dtype, tensor.qscheme())
        assert other.untyped_storage().tolist() == tensor.untyped_storage().tolist()
        assert torch.equal(other.dequantize(), tensor.dequantize())
    assert [lua[number]["values"].lua_class for number in (1, 2, 3)] == [
        "torch.ByteTensor",
        "torch.CharTensor",
        "torch.IntTensor",
    ]
    assert (lua[1]["scale"], lua[1]["zero_point"], lua[1]["scheme"]) == (0.1, 10, b"per_tensor_affine")
    assert lua[1]["values"].numpy().tolist() == value[0].int_repr().tolist()
    assert lua[4]["axis"] == 2
    assert lua[4]["scale"].numpy().tolist() == [0.1, 0.2]
    assert lua[5]["values"].numpy().tolist() == value[4].untyped_storage().tolist()
    assert lua[5]["size"].as_list() == [2, 2]


def test_cycle(tmp_path: Path) -> None:
    """A list that holds itself does so in Lua and again in PyTorch."""
    (tmp_path / "x.pt").write_bytes((TESTFILES / "pt/cycle.pt").read_bytes())
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.t7")
    lua = t7bridge.load(tmp_path / "x.t7")
    back = restored(tmp_path)

    assert lua["shared"][2] is lua["shared"]
    assert back["shared"][0] == 1
    assert back["shared"][1] is back["shared"]


def test_shared_and_cyclic_containers(tmp_path: Path) -> None:
    """A shared list or dict is one table in Lua and one object afterwards; a dict may contain itself."""
    shared: list[Any] = [torch.ones(2)]
    inner: dict[str, Any] = {"list": shared}
    value: dict[str, Any] = {"a": shared, "b": shared, "c": inner, "d": [inner, inner], "pair": (shared, inner)}
    value["self"] = value
    lua, _ = converted(value, tmp_path)
    back = restored(tmp_path)

    assert lua["a"] is lua["b"] is lua["c"]["list"] is lua["pair"][1]
    assert lua["c"] is lua["d"][1] is lua["d"][2]
    assert lua["self"] is lua
    assert back["a"] is back["b"] is back["c"]["list"] is back["pair"][0]
    assert back["c"] is back["d"][0] is back["d"][1]
    assert back["self"] is back


def test_whole_module(tmp_path: Path) -> None:
    """A whole pickled module is its state dict in Lua, and comes back as what every loader reads: the state dict."""
    source = TESTFILES / "pt/whole_module.pt"
    report = t7bridge.convert(source, tmp_path / "x.t7")
    lua = t7bridge.load(tmp_path / "x.t7")
    original, back = torch.load(source, weights_only=False), restored(tmp_path, weights_only=True)

    example = torch.arange(6.0).reshape(2, 3)
    wanted = original(example)
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.zero_()
    original.load_state_dict(back)
    assert torch.equal(original(example), wanted)
    assert [bytes(key).decode() for key in lua.raw_keys] == list(original.state_dict())
    for name, tensor in original.state_dict().items():
        assert lua[name].numpy().tolist() == tensor.tolist()
    assert any("state dict" in note.message for note in report.notes)


@pytest.mark.parametrize("name", ["cpp_module", "cpp_tensor", "cpp_tensors", "cpp_archive", "cpp_adam"])
def test_cpp_archives(name: str, tmp_path: Path) -> None:
    """The tensors of an archive of the C++ API are those that PyTorch's own reader of them finds."""
    source = TESTFILES / f"pt/{name}.pt"
    module = torch.jit.load(source)
    theirs = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
    back = there_and_back(source, tmp_path)

    value = torch.load(back, weights_only=False)
    mine = _tensors(value)
    for tensor in theirs:
        assert any(tensor.dtype == other.dtype and torch.equal(tensor, other) for other in mine)
    assert theirs or mine


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.detach()]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in _tensors(item)]


# What the record restores


def test_marks_and_types(tmp_path: Path) -> None:
    """Parameters, requires_grad, order, tuples, None, text and bytes, bool and int are what they were."""
    ordered = OrderedDict(b=torch.zeros(1), a=torch.ones(1))
    ordered._metadata = {"": {"version": 2}}  # type: ignore[attr-defined]
    value = {
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "grad": torch.ones(2, requires_grad=True),
        "ordered": ordered,
        "size": torch.Size([2, 3]),
        "mixed": (1, True, 1.0, None, "x", b"x", [None], (), 2**70, -0.0),
        (1, "a"): {None: 1, 2.5: b"\xff", b"k": "v"},
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 1),
        "sets": [{1, 2, 3}, {"b", "a", "c"}],
        "complex": 1 - 2j,
    }
    converted(value, tmp_path)
    back = restored(tmp_path)

    assert isinstance(back["parameter"], torch.nn.Parameter)
    assert isinstance(back["frozen"], torch.nn.Parameter)
    assert (back["parameter"].requires_grad, back["frozen"].requires_grad) == (True, False)
    assert back["grad"].requires_grad
    assert not isinstance(back["grad"], torch.nn.Parameter)
    assert type(back["ordered"]) is OrderedDict
    assert list(back["ordered"]) == ["b", "a"]
    assert back["ordered"]._metadata == {"": {"version": 2}}
    assert back["sets"] == value["sets"]
    for name in ("size", "mixed", (1, "a"), "dtype", "device", "complex"):
        assert repr(back[name]) == repr(value[name])
    assert list(back) == list(value)


def test_not_a_number_survives_text(tmp_path: Path) -> None:
    """A nan among the values, of any sign, does not make the record of a re-encoded file look stale."""
    value = {
        "loss": float("nan"),
        "other": -float("nan"),
        "inf": -float("inf"),
        "weights": torch.tensor([float("nan")]),
    }
    (tmp_path / "x.pt").write_bytes(saved(value))
    back = torch.load(there_and_back(tmp_path / "x.pt", tmp_path, encoding="ascii"))

    assert back["loss"] != back["loss"]
    assert back["inf"] == -float("inf")
    assert back["weights"].isnan().all()


def test_sharing_of_every_type(tmp_path: Path) -> None:
    """Views of one storage of a type that Lua does not have share one storage in Lua, and again afterwards."""
    value = {}
    for name in (
        "bfloat16",
        "bool",
        "complex64",
        "complex128",
        "complex32",
        "float8_e5m2",
        "uint16",
        "uint32",
        "uint64",
    ):
        base = torch.arange(12).to(torch.float32).to(getattr(torch, name))
        value[name] = [base, base[3:], base.view(3, 4).t(), base.as_strided((3, 2), (2, 3), 1)]
    lua, _ = converted(value, tmp_path)
    back = restored(tmp_path)

    for name, tensors in value.items():
        mine = lua[name].as_list()
        ratio = 2 if name.startswith("complex") else 1
        assert len({id(tensor.storage) for tensor in mine}) == 1
        for tensor, other, again in zip(tensors, mine, back[name], strict=True):
            last = ((2,), (1,)) if ratio == 2 else ((), ())
            assert other.size == (*tensor.shape, *last[0])
            assert other.stride == (*(ratio * step for step in tensor.stride()), *last[1])
            assert other.offset == ratio * tensor.storage_offset()
            assert (again.dtype, again.stride(), again.storage_offset()) == (
                tensor.dtype,
                tensor.stride(),
                tensor.storage_offset(),
            )
            plain = torch.view_as_real(tensor.to(torch.complex128)) if ratio == 2 else tensor.to(torch.float64)
            assert other.numpy().tolist() == plain.tolist()
            assert again.to(torch.complex128).tolist() == tensor.to(torch.complex128).tolist()
        assert len({tensor.untyped_storage().data_ptr() for tensor in back[name]}) == 1


def test_conjugated_and_negated(tmp_path: Path) -> None:
    """Lua sees the numbers that PyTorch shows, with the same strides; views of one memory share one in Lua, too."""
    base = torch.tensor([[1 + 2j, 3 - 1j], [0.5j, -4 + 0j]])
    half = base.to(torch.complex32)
    value = [base.conj(), base.t().conj(), base.clone().conj().imag, half.conj(), base[1:].conj(), base]
    lua, report = converted(value, tmp_path)
    back = restored(tmp_path)

    for number, tensor in enumerate(value, 1):
        plain = tensor if not tensor.is_complex() else torch.view_as_real(tensor.to(torch.complex64).resolve_conj())
        assert lua[number].numpy().tolist() == plain.tolist()
        assert back[number - 1].is_conj() == tensor.is_conj()
        assert back[number - 1].is_neg() == tensor.is_neg()
        assert back[number - 1].resolve_conj().tolist() == tensor.resolve_conj().tolist()
    assert lua[1].storage is lua[2].storage is lua[5].storage
    assert lua[1].storage is not lua[6].storage
    assert lua[2].stride == (2, 4, 1)
    assert any("conjugated" in note.message for note in report.notes)


def test_devices(tmp_path: Path) -> None:
    """A tensor that was on a GPU is on the CPU in Lua, unless devices are to be kept."""
    pickled = storage_id("FloatStorage", "0", 2, "cuda:0")
    archive = zipped(
        {
            "a/data.pkl": b"\x80\x02" + view(pickled, 0, (2,), (1,)) + b".",
            "a/data/0": struct.pack("<2f", 1, 2),
            "a/version": b"3",
        }
    )
    plain, _ = converted(archive, tmp_path)
    kept, _ = converted(archive, tmp_path, keep_device=True)
    t7bridge.convert(tmp_path / "x.t7", tmp_path / "kept.pt", keep_device=True)

    assert plain.lua_class == "torch.FloatTensor"
    assert (kept.lua_class, kept.storage.lua_class) == ("torch.CudaTensor", "torch.CudaStorage")
    assert b"cuda:0" in (tmp_path / "kept.pt").read_bytes()
    assert torch.load(tmp_path / "kept.pt", map_location="cpu").tolist() == [1, 2]


def test_without_the_record(tmp_path: Path) -> None:
    """Without a record nothing follows the value, and the way back returns Lua's values."""
    lua, report = converted({"a": (1, None, 2.5), "b": torch.tensor([True])}, tmp_path, record=False)
    data = (tmp_path / "x.t7").read_bytes()
    back = restored(tmp_path)

    assert PT_RECORD_START not in data
    assert lua["a"].raw_keys == [1.0, 3.0]
    assert report.mode == "tree"
    assert back["a"] == {1: 1, 3: 2.5}
    assert back["b"].dtype == torch.uint8


def test_record_that_is_not_wanted(tmp_path: Path) -> None:
    """A record in the source is left unused where that is asked for."""
    converted({"t": (1, 2)}, tmp_path)
    report = t7bridge.convert(tmp_path / "x.t7", tmp_path / "plain.pt", record=False)

    assert report.mode == "tree"
    assert torch.load(tmp_path / "plain.pt") == {"t": [1, 2]}


def test_nested(tmp_path: Path) -> None:
    """Names with dots become tables in tables on request; the record still has the names."""
    source = TESTFILES / "pt/state_dict.pt"
    (tmp_path / "x.pt").write_bytes(source.read_bytes())
    t7bridge.convert(source, tmp_path / "x.t7", nested=True)
    lua = t7bridge.load(tmp_path / "x.t7")
    original = torch.load(source)

    assert lua["conv"]["weight"].numpy().tolist() == original["conv.weight"].tolist()
    assert [bytes(key) for key in lua.raw_keys] == [b"conv", b"bn", b"fc", b"emb", b"lstm"]
    assert list(restored(tmp_path)) == list(original)


# Changes after the conversion


def rewritten(path: Path, value: Any) -> None:
    """Write another value into a `.t7`, before the bytes that follow its value."""
    content = read_t7(path)
    with open(path.with_suffix(".new"), "wb") as file:
        writer = T7Writer(file, content.layout)
        writer.write_object(value)
        file.write(content.trailing)
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda lua: lua.__setitem__("epoch", 4.0),
        lambda lua: lua.__setitem__("name", b"other"),
        lambda lua: lua.__setitem__("more", True),
        lambda lua: lua.__setitem__("w", Tensor.from_numpy(np.ones((2, 3), "f4"))),
    ],
    ids=["number", "string", "key", "shape"],
)
def test_a_changed_value_is_noticed(change: Any, tmp_path: Path) -> None:
    """The record of a changed value is not used: the change counts, and a warning says so."""
    lua, _ = converted({"epoch": 3, "name": "first", "w": torch.zeros(3), "pair": (1, 2)}, tmp_path)
    change(lua)
    rewritten(tmp_path / "x.t7", lua)
    report = t7bridge.convert(tmp_path / "x.t7", tmp_path / "y.pt")

    back = torch.load(tmp_path / "y.pt")
    assert report.mode == "tree"
    assert [note.level for note in report.notes if "changed since" in note.message] == ["warning"]
    assert back["pair"] == [1, 2]
    assert [back["epoch"], back["name"], tuple(back["w"].shape), back.get("more")] != [3, "first", (3,), None]


def test_the_same_value_written_again_keeps_the_record(tmp_path: Path) -> None:
    """Rewriting what is the same, in another encoding too, leaves the record good."""
    lua, _ = converted({"epoch": 3, "pair": (1, 2)}, tmp_path)
    rewritten(tmp_path / "x.t7", lua)

    assert restored(tmp_path) == {"epoch": 3, "pair": (1, 2)}


@pytest.mark.parametrize("encoding", ["little8", "big", "long4"])
@pytest.mark.parametrize(
    ("dtype", "lua_code"),
    [("float32", "f4"), ("float64", "f8"), ("bfloat16", "f4"), ("complex64", "f4"), ("bool", "u1"), ("uint16", "i4")],
)
def test_changed_weights_flow_through(dtype: str, lua_code: str, encoding: str, tmp_path: Path) -> None:
    """Elements that were changed in the `.t7`, and nothing else, arrive in the `.pt` with everything that was there."""
    size = 2 if dtype == "complex64" else 1
    weights = torch.nn.Parameter(torch.ones(4, dtype=getattr(torch, dtype)), requires_grad=False)
    (tmp_path / "x.pt").write_bytes(saved({"w": weights, "pair": (1, 2)}))
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.t7", **ENCODINGS[encoding])
    data = bytearray((tmp_path / "x.t7").read_bytes())
    order = ">" if encoding == "big" else "<"
    old = np.array(([1, 0] if size == 2 else [1]) * 4, order + lua_code).tobytes()
    assert data.count(old) == 1
    start = data.index(old)
    new = np.array([0, 0, 1, 0] if dtype == "bool" else [5, 6, 7, 8] * size, order + lua_code).tobytes()
    data[start : start + len(new)] = new
    (tmp_path / "x.t7").write_bytes(data)
    report = t7bridge.convert(tmp_path / "x.t7", tmp_path / "y.pt")

    back = torch.load(tmp_path / "y.pt")
    assert report.mode == "record"
    assert back["pair"] == (1, 2)
    assert isinstance(back["w"], torch.nn.Parameter)
    wanted = {"bool": [False, False, True, False], "complex64": [5 + 6j, 7 + 8j, 5 + 6j, 7 + 8j]}
    assert back["w"].tolist() == wanted.get(dtype, [5, 6, 7, 8])


# Damage, and malice


@pytest.mark.slow
def test_a_record_that_is_cut(tmp_path: Path) -> None:
    """Of a `.t7` whose end is missing nothing is made but an error, or the value without its record."""
    value = {"w": torch.ones(2), "b": torch.ones(3, dtype=torch.complex64).conj(), "pair": (1, 2)}
    converted(value, tmp_path)
    data = (tmp_path / "x.t7").read_bytes()
    start = data.index(PT_RECORD_START)
    errors = 0
    for length in range(start, len(data)):
        (tmp_path / "cut.t7").write_bytes(data[:length])
        try:
            t7bridge.convert(tmp_path / "cut.t7", tmp_path / "cut.pt", force=True)
        except T7BridgeError:
            errors += 1
            assert not (tmp_path / "cut.pt").exists()
        else:
            assert torch.load(tmp_path / "cut.pt")["pair"] == [1, 2], length
            (tmp_path / "cut.pt").unlink()
    assert errors > (len(data) - start) // 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_record_with_changed_bytes(seed: int, tmp_path: Path) -> None:
    """For any bytes in the record, the result is a file or an error of ours, and nothing is executed."""
    converted({"w": torch.ones(2), "b": torch.ones(3, dtype=torch.bool), "c": 1j, "pair": (1, None)}, tmp_path)
    data = (tmp_path / "x.t7").read_bytes()
    start = data.index(PT_RECORD_START)
    random = np.random.default_rng(seed)
    outcomes = set()
    for _ in range(60):
        damaged = bytearray(data)
        for place in random.integers(start, len(data), random.integers(1, 4)):
            damaged[place] = random.integers(0, 256)
        (tmp_path / "bad.t7").write_bytes(damaged)
        try:
            t7bridge.convert(tmp_path / "bad.t7", tmp_path / "bad.pt", force=True)
            outcomes.add("written")
        except T7BridgeError:
            outcomes.add("refused")
    assert outcomes == {"written", "refused"}


class Ran(Exception):
    """Something of a file was executed."""


@pytest.fixture
def alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make whatever an exploit would call raise."""

    def ran(*arguments: Any, **named: Any) -> None:
        raise Ran(arguments)

    for package in (t7bridge.formats, t7bridge.conversion):  # Python executes modules when it imports them
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
    for module, name in ((os, "system"), (os, "popen"), (subprocess, "Popen"), (pickle, "loads"), (pickle, "load")):
        monkeypatch.setattr(module, name, ran)
    for name in ("eval", "exec", "__import__"):
        if name != "__import__":
            monkeypatch.setattr(f"builtins.{name}", ran)


def call(module: str, name: str, *arguments: bytes, ending: bytes = b"R") -> bytes:
    """Opcodes that call a function."""
    return f"c{module}\n{name}\n".encode() + b"(" + b"".join(arguments) + b"t" + ending


EVIL = {
    "os.system": (call("os", "system", text("echo")), ["os.system"]),
    "posix.system": (call("posix", "system", text("echo")), ["posix.system"]),
    "builtins.eval": (call("__builtin__", "eval", text("1")), ["builtins.eval"]),
    "builtins.exec": (call("builtins", "exec", text("1")), ["builtins.exec"]),
    "newobj": (call("subprocess", "Popen", text("echo"), ending=b"\x81"), ["subprocess.Popen"]),
    "inst": (b"(" + text("echo") + b"ios\nsystem\n", ["os.system"]),
    "obj": (b"(cos\nsystem\n" + text("echo") + b"o", ["os.system"]),
    "reconstructor": (
        call("copy_reg", "_reconstructor", b"cos\n_wrap_close\n", b"c__builtin__\nobject\n", b"N"),
        ["os._wrap_close"],
    ),
    "newobj_ex": (call("copyreg", "__newobj_ex__", b"cos\nsystem\n", b"(" + text("x") + b"t", b"}"), ["os.system"]),
    "getattr": (
        call("__builtin__", "getattr", call("importlib", "import_module", text("os")), text("system"))
        + b"(" + text("echo") + b"tR",
        ["builtins.getattr", "importlib.import_module"],
    ),
    "chain": (call("functools", "partial", b"cos\nsystem\n", text("echo")) + b")R", ["functools.partial", "os.system"]),
    "state": (
        call("__main__", "Innocent") + b"}" + text("__reduce__") + b"cos\nsystem\nsb",
        ["__main__.Innocent", "os.system"],
    ),
    "nested": (
        call("pickle", "loads", call("_codecs", "encode", text("cos\nsystem\n(X\x01\0\0\0xtR."), text("latin1"))),
        ["pickle.loads"],
    ),
    "nested storage": (
        call(
            "torch.storage", "_load_from_bytes",
            call("_codecs", "encode", text("\x80\x02cos\nsystem\n(X\x01\0\0\0xtR."), text("latin1")),
        ),
        ["os.system"],
    ),
    "rebuild": (
        call(
            "torch._tensor", "_rebuild_from_type_v2",
            b"cos\nsystem\n", b"ctorch\nTensor\n", b"(" + text("x") + b"t", b"}",
        ),
        ["os.system"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["zip", "pickle"])
@pytest.mark.parametrize("name", EVIL)
@pytest.mark.usefixtures("alarm")
def test_malice_is_refused_and_not_run(name: str, kind: str, tmp_path: Path) -> None:
    """A pickle that would run code on loading is refused by every name that it would run, and nothing is written."""
    opcodes, names = EVIL[name]
    data = b"\x80\x02}(" + text("evil") + opcodes + text("fine") + b"K\x05u."
    (tmp_path / "x.pt").write_bytes(zipped({"a/data.pkl": data, "a/version": b"3\n"}) if kind == "zip" else data)

    for target in ("x.t7", "y.pt"):
        with pytest.raises(ForbiddenGlobalError, match="runs code or reaches the system") as caught:
            t7bridge.convert(tmp_path / "x.pt", tmp_path / target)
        assert any(f"names {path}," in caught.value.message for path in names)
        assert caught.value.file == str(tmp_path / "x.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]

    inert = PtReader(tmp_path / "x.pt", forbid=False)
    value = inert.read()
    assert value["fine"] == 5
    assert "evil" in value
    assert inert.foreign == names


def test_malice_would_have_run(tmp_path: Path) -> None:
    """The exploits of these tests are real: Python's own unpickler runs them, and PyTorch's safe loader refuses."""
    marker = tmp_path / "ran"
    opcodes = call("os", "system", text(f"touch {marker}"))
    data = b"\x80\x02" + opcodes + b"."
    (tmp_path / "x.pt").write_bytes(data)
    PtReader(tmp_path / "x.pt", forbid=False).read()
    with pytest.raises(ForbiddenGlobalError):
        t7bridge.load(tmp_path / "x.pt")
    assert not marker.exists()

    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "x.pt", weights_only=True)
    assert not marker.exists()
    pickle.loads(data)
    assert marker.exists()


@pytest.mark.usefixtures("alarm")
def test_malice_in_a_record(tmp_path: Path) -> None:
    """A record whose pickle would run code is refused as a file would be."""
    converted({"a": 1}, tmp_path)
    data = (tmp_path / "x.t7").read_bytes()
    start = data.index(PT_RECORD_START)
    line, _, _ = data[start:].partition(b"\n")
    pickled = b"\x80\x02" + call("os", "system", text("echo")) + b"."
    line = line[: line.rindex(b":") + 1] + str(len(pickled)).encode() + b"}"
    (tmp_path / "x.t7").write_bytes(data[:start] + line + b"\n" + pickled)
    with pytest.raises(ForbiddenGlobalError, match=r"record: .*names os\.system,"):
        t7bridge.convert(tmp_path / "x.t7", tmp_path / "y.pt")
    assert not (tmp_path / "y.pt").exists()


def test_names_cannot_smuggle_opcodes(tmp_path: Path) -> None:
    """A name with a line feed, which would become opcodes in the pickle that is written, is text there, or refused."""
    word = "x\ncos\nsystem\n"
    data = b"\x80\x04" + text(word) + text("y") + b"\x93."
    (tmp_path / "x.pt").write_bytes(data)

    with pytest.raises(UnsupportedError, match="name"):
        t7bridge.convert(tmp_path / "x.pt", tmp_path / "y.pt", allow_foreign=True)
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "y.pt")
    assert torch.load(tmp_path / "y.pt", weights_only=True) == f"{word}.y"


def test_limits_are_kept(tmp_path: Path) -> None:
    """The pickle in a record has the limits of the file."""
    converted({"a": list(range(1000))}, tmp_path)

    with pytest.raises(FormatError, match="operations"):
        t7bridge.convert(tmp_path / "x.t7", tmp_path / "y.pt", limits=Limits(pickle_operations=100))


# Large values


@pytest.mark.slow
def test_deep_nesting(tmp_path: Path) -> None:
    """30 000 containers inside one another go to Lua and back without recursion."""
    levels = 30_000
    value: Any = 7
    for level in range(levels):
        value = ([value], {0: value, "a longer key": None}, (value,))[level % 3]
    t7bridge.save(value, tmp_path / "x.pt")
    t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.t7")
    t7bridge.convert(tmp_path / "x.t7", tmp_path / "back.pt")

    lua, back = t7bridge.load(tmp_path / "x.t7"), PtReader(tmp_path / "back.pt").read()
    count = 0
    while isinstance(lua, Table):
        lua, count = lua.raw_values[0], count + 1
    assert (lua, count) == (7, levels)
    for level in reversed(range(levels)):
        assert type(back) is (list, dict, tuple)[level % 3]
        back = back[0]
    assert back == 7


def test_many_notes(tmp_path: Path) -> None:
    """Notes with very many paths list some of them, and the count."""
    _, report = converted({"ints": [2**60 + number for number in range(5000)], "t": (1,)}, tmp_path)
    notes = [note for note in report.notes if "nearest" in note.message]

    assert len(notes) < 50
    assert notes[0].path == "root.ints[1]"
    assert "4970 more" in notes[-1].message


def test_the_functions_keep_their_names() -> None:
    """`t7bridge.convert` is the function whatever modules have been loaded."""
    code = (
        "import t7bridge, t7bridge.conversion.convert, t7bridge.tools.verify; "
        "print(t7bridge.convert.__name__, t7bridge.verify.__name__)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.split() == ["convert", "verify"]


@pytest.mark.slow
def test_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    """Sets of text are written in one order, though Python's own order differs from run to run."""
    value = {"s": {f"word {number}" for number in range(50)}, "f": frozenset({("a", 1), ("b", frozenset({"x", "y"}))})}
    (tmp_path / "x.pt").write_bytes(saved(value))
    outputs = set()
    for seed in ("1", "2", "3"):
        code = (
            f"import t7bridge, sys\nt7bridge.convert('x.pt', '{seed}.t7')\n"
            f"t7bridge.convert('{seed}.t7', '{seed}.pt', allow_foreign=True)\n"
        )
        subprocess.run(
            [sys.executable, "-c", code], check=True, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed}
        )
        outputs.add((tmp_path / f"{seed}.t7").read_bytes() + (tmp_path / f"{seed}.pt").read_bytes())

    assert len(outputs) == 1
    assert torch.load(tmp_path / "1.pt", weights_only=False) == value


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float32", "bfloat16", "complex64"])
def test_memory(name: str, tmp_path: Path) -> None:
    """Converting 200 MiB to Lua and back takes little memory, of a type that is converted on the way, too."""
    from t7bridge import Storage
    from t7bridge.formats import PtWriter
    from t7bridge.graph import ELEMENT_TYPES, Span
    from t7bridge.io import ByteSource

    size = 200 << 20
    with open(tmp_path / "zeros", "wb") as file:
        file.truncate(size)
    element = ELEMENT_TYPES[name]
    count = size // element.itemsize
    with ByteSource.from_path(tmp_path / "zeros") as source, open(tmp_path / "x.pt", "wb") as file:
        storage = Storage(element, count, Span(source, 0, element.itemsize))
        writer = PtWriter(file)
        writer.write(Tensor(element, storage, (count,), (1,)))
        writer.finish()
    (tmp_path / "zeros").unlink()

    assert peak_mib("convert", tmp_path / "x.pt", tmp_path / "x.t7") < 64
    assert (tmp_path / "x.t7").stat().st_size >= size
    assert peak_mib("convert", tmp_path / "x.t7", tmp_path / "back.pt") < 64
    assert (tmp_path / "back.pt").stat().st_size == (tmp_path / "x.pt").stat().st_size
    for path in tmp_path.iterdir():
        path.unlink()


def test_layouts_are_stated_on_the_way_to_lua(tmp_path: Path) -> None:
    """A `.t7` may be asked for in any encoding straight away; it holds the same as one that was re-encoded."""
    source = TESTFILES / "pt/checkpoint_adam.pt"
    t7bridge.convert(source, tmp_path / "plain.t7")
    for name, options in ENCODINGS.items():
        t7bridge.convert(source, tmp_path / f"{name}.t7", **options)
        t7bridge.convert(tmp_path / "plain.t7", tmp_path / f"{name}.again.t7", **options)
        assert (tmp_path / f"{name}.t7").read_bytes() == (tmp_path / f"{name}.again.t7").read_bytes()
        assert read_t7(tmp_path / f"{name}.t7").layout == T7Layout(**options)


@pytest.mark.parametrize("target", ["x.t7", "x.pt", "x.ascii"])
def test_damaged_weights(target: str, tmp_path: Path) -> None:
    """A flipped bit in a weight is noticed by the archive's CRC on every way out, and leaves no file."""
    torch.save({"w": torch.arange(1000.0)}, tmp_path / "bad.pt")
    data = bytearray((tmp_path / "bad.pt").read_bytes())
    place = data.find(torch.arange(1000.0).numpy().tobytes())
    data[place + 1234] ^= 4
    (tmp_path / "bad.pt").write_bytes(data)
    options = {"to": "t7", "encoding": "ascii"} if target == "x.ascii" else {}

    with pytest.raises(FormatError, match="CRC"):
        t7bridge.convert(tmp_path / "bad.pt", tmp_path / target, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.pt"]


def test_keys_that_cannot_be_nested(tmp_path: Path) -> None:
    """If one key is a prefix of another, names stay flat, other keys too; a note says so if nesting was requested."""
    message = "the keys are not nested, as one of them is a prefix of another, or has 100 dots or more"
    (tmp_path / "x.pt").write_bytes(saved({1: torch.ones(1), "a": torch.ones(2), "a.b": torch.ones(3)}))
    for nested in (True, False):
        report = t7bridge.convert(tmp_path / "x.pt", tmp_path / "x.t7", nested=nested, force=True)
        assert [note.message for note in report.notes if "not nested" in note.message] == ([message] if nested else [])
        lua = t7bridge.load(tmp_path / "x.t7")
        assert [lua[key].shape for key in (1, "a", "a.b")] == [(1,), (2,), (3,)]

    (tmp_path / "dots.pt").write_bytes(saved({"a.": torch.ones(1), "b" + ".b" * 99: torch.ones(2)}))
    report = t7bridge.convert(tmp_path / "dots.pt", tmp_path / "dots.t7", nested=True)
    assert not any("not nested" in note.message for note in report.notes)
    (tmp_path / "dots.pt").write_bytes(saved({"b" + ".b" * 100: torch.ones(2)}))
    report = t7bridge.convert(tmp_path / "dots.pt", tmp_path / "dots.t7", nested=True, force=True)
    assert [note.message for note in report.notes if "not nested" in note.message] == [message]
