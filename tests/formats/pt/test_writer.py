"""The `.pt` files that are written: what PyTorch, zip tools and memory maps see in them."""

import io
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pt_helpers import written_by

from t7bridge import Storage, Table, Tensor
from t7bridge.errors import UnsupportedError
from t7bridge.formats import PickleWriter, PtWriter
from t7bridge.formats.pt import zip as zip_writer
from t7bridge.graph import ELEMENT_TYPES
from t7bridge.io import Output

written = partial(written_by, PtWriter)


def loaded(value: Any) -> Any:
    """Return the value of PyTorch's safe loader for a written value."""
    return torch.load(io.BytesIO(written(value)), weights_only=True)


def tensor(*shape: int) -> Tensor:
    """A float tensor with the numbers from 0 on."""
    return Tensor.from_numpy(np.arange(np.prod(shape), dtype="f4").reshape(shape))


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, 255, 256, 65535, 65536, -1, 2**31 - 1, -(2**31), 2**31, 2**70, -(2**70),
        0.1, -0.0, float("inf"), 5e-324, "", "Grüße 🌍", b"", b"\x00\xff", [], {}, (), (1,), (1, 2, 3, 4),
        [1, [2, [3]]], {"a": 1, 3: "b", 2.5: None, (1, 2): True, b"k": b"v"}, OrderedDict(b=1, a=2),
        list(range(3000)), {number: str(number) for number in range(2500)},
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_values(value: Any) -> None:
    """Builtins come back equal, of the same type and in the same order."""
    back = loaded(value)

    assert type(value) is type(back)
    assert repr(value) == repr(back)


def test_shared_and_cyclic() -> None:
    """One object is one object, and cycles are cycles."""
    inner: list[Any] = [1]
    cycle: dict[str, Any] = {"a": inner, "b": inner}
    cycle["self"] = cycle

    back = loaded(cycle)

    assert back["a"] is back["b"]
    assert back["self"] is back


def test_cyclic_tuple() -> None:
    """A tuple that holds itself through a list needs operations that the safe loader refuses."""
    pair: tuple[Any, ...] = ([],)
    pair[0].append(pair)
    with pytest.raises(UnsupportedError, match="inside itself"):
        PickleWriter(lambda storage: ("0", "cpu")).dumps(pair)

    back = pickle.loads(PickleWriter(lambda storage: ("0", "cpu"), allow_foreign=True).dumps(pair))

    assert back[0][0] is back


@pytest.mark.slow
def test_deep_nesting() -> None:
    """100 000 lists in one another are written without recursion and loaded by PyTorch."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    back = loaded(deep)

    levels = 0
    while back:
        back, levels = back[0], levels + 1
    assert levels == 100_000


def test_protocol_2_only() -> None:
    """No opcode is newer than protocol 2, the newest that PyTorch's safe loader accepts."""
    out = PickleWriter(lambda storage: ("0", "cpu")).dumps(["a", b"b", 1, 2.5, {"c": (1, 2)}, tensor(2)])

    assert max(opcode.proto for opcode, _, _ in pickletools.genops(out)) == 2


def test_plain_pickle_agrees() -> None:
    """Python's own unpickler reads the pickle of builtins too."""
    value = {"a": [1, 2, (3, b"x")], "b": OrderedDict(x=None), "n": [2**40, -5, 1e300]}

    assert value == pickle.loads(PickleWriter(lambda storage: ("0", "cpu")).dumps(value))


def test_views() -> None:
    """Strides, offsets, overlaps, zero strides and sharing are PyTorch's."""
    storage = Storage.from_array(np.arange(12, dtype="f8"))
    views = [
        Tensor(storage.element, storage, (3, 4), (4, 1)),
        Tensor(storage.element, storage, (4, 3), (1, 4)),
        Tensor(storage.element, storage, (3,), (2,), 5),
        Tensor(storage.element, storage, (4, 3), (2, 1)),
        Tensor(storage.element, storage, (5, 2), (0, 1), 3),
        Tensor(storage.element, storage, (0, 4), (4, 1)),
    ]

    back = loaded(views)

    for mine, theirs in zip(views, back):
        assert (mine.size, mine.stride, mine.offset) == (
            tuple(theirs.shape), theirs.stride(), theirs.storage_offset(),
        )  # fmt: skip
        assert np.array_equal(mine.numpy(), theirs.numpy())
    assert len({theirs.untyped_storage().data_ptr() for theirs in back}) == 1


@pytest.mark.parametrize("name", [e.name for e in ELEMENT_TYPES.values() if e.lua])
def test_lua_types(name: str) -> None:
    """Each of Lua's element types arrives as PyTorch's type of the same name, with the same numbers."""
    element = ELEMENT_TYPES[name]
    array = np.arange(6).astype(element.code)

    back = loaded(Tensor(element, Storage.from_array(array), (2, 3), (3, 1)))

    assert getattr(torch, name) is back.dtype
    assert array.reshape(2, 3).tolist() == back.tolist()


def test_scalar_empty_and_storageless() -> None:
    """A scalar has no dimensions; a Lua tensor without dimensions or storage has the shape (0,)."""
    element = ELEMENT_TYPES["float32"]
    scalar = Tensor.from_numpy(np.array(3.5, "f4"))

    back = loaded([scalar, Tensor(element, None), Tensor(element, Storage.from_array(np.ones(3, "f4")))])

    assert [tuple(item.shape) for item in back] == [(), (0,), (0,)]
    assert back[0].item() == 3.5
    assert back[2].untyped_storage().nbytes() == 12


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_bare_storage() -> None:
    """A storage outside of tensors is a PyTorch storage, shared with the tensors that view it."""
    one = tensor(4)

    back = loaded({"storage": one.storage, "again": one.storage, "tensor": one})

    assert back["storage"].data_ptr() == back["tensor"].untyped_storage().data_ptr()
    assert list(back["again"]) == [0.0, 1.0, 2.0, 3.0]


def test_requires_grad() -> None:
    """The mark is kept."""
    one = tensor(2)
    one.requires_grad = True

    assert loaded(one).requires_grad


def test_memory_map(tmp_path: Path) -> None:
    """PyTorch maps the file, with the offsets that it reads and with those that it calculates."""
    path = tmp_path / "x.pt"
    path.write_bytes(written({"a": tensor(5), "b": tensor(3, 4), "c": tensor(100_000)}))

    config = pytest.importorskip("torch.utils.serialization", reason="since PyTorch 2.7").config
    for calculated in (False, True):
        config.load.calculate_storage_offsets = calculated
        try:
            back = torch.load(path, weights_only=True, mmap=True)
        finally:
            config.load.calculate_storage_offsets = False
        assert back["c"][-1].item() == 99_999
        assert back["a"].tolist() == [0, 1, 2, 3, 4]


def test_same_layout_as_pytorch(tmp_path: Path) -> None:
    """Members, order, offsets, flags and alignment are those of `torch.save` of the same value."""
    pytest.importorskip("torch.utils.serialization", reason="PyTorch 2.6 wrote fewer members")
    value = {"a": torch.arange(5.0), "b": torch.arange(12.0).reshape(3, 4)}
    theirs = tmp_path / "archive.pt"
    torch.save(value, theirs)

    mine = zipfile.ZipFile(io.BytesIO(written({"a": tensor(5), "b": tensor(3, 4)})))
    other = zipfile.ZipFile(theirs)

    for a, b in zip(mine.infolist(), other.infolist(), strict=True):
        assert (a.filename, a.flag_bits, a.compress_type, a.extra) == (
            b.filename,
            b.flag_bits,
            b.compress_type,
            b.extra,
        )
        if not a.filename.endswith(("data.pkl", "serialization_id")):
            assert mine.read(a) == other.read(b)
    assert mine.testzip() is None


def test_data_is_aligned() -> None:
    """The data of every member starts at a multiple of 64 bytes."""
    data = written([tensor(1), tensor(3), tensor(17)])

    for info in zipfile.ZipFile(io.BytesIO(data)).infolist():
        name, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
        assert (info.header_offset + 30 + name + extra) % 64 == 0


def test_zip64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that do not fit 32 bits have zip64 fields; the bound is lowered to see them."""
    monkeypatch.setattr(zip_writer, "_FULL_32", 1000)
    file = io.BytesIO()
    output = Output(file)
    writer = zip_writer.ZipWriter(output)
    writer.add("archive/small", b"x" * 10)
    writer.add("archive/large", b"y" * 5000)
    writer.add("archive/behind", b"z" * 10)
    output.flush()
    monkeypatch.setattr(zip_writer, "_FULL_32", 0xFFFFFFFF)
    large = next(member for member in writer.members if member.size == 5000)
    header = zip_writer._central_header(zip_writer.WrittenMember(large.name, 2**33, 2**34, 7))

    assert struct.pack("<HHQQQ", 1, 24, 2**34, 2**34, 2**33) == header[-28:]
    local = file.getvalue()[large.offset :]
    name_length, extra_length = struct.unpack_from("<HH", local, 26)
    extra = local[30 + name_length :][:extra_length]
    assert struct.pack("<HHQQ", 1, 16, 5000, 5000) == extra[:20]
    data_at = 30 + name_length + extra_length
    assert (large.offset + data_at) % 64 == 0
    descriptor = local[data_at + 5000 :][:24]
    assert struct.unpack("<I4xQQ", descriptor) == (0x08074B50, 5000, 5000)


def test_refused() -> None:
    """A value that a `.pt` cannot hold is an error."""
    backwards = Tensor.from_numpy(np.arange(6.0))[::-1]
    for value in (object(), Table(), lambda: 1, backwards):
        with pytest.raises(UnsupportedError):
            written([value])
