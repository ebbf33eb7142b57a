"""The files for PyTorch 0.2 to 1.5: their parts, and what today's PyTorch makes of them."""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TESTFILES, corpus, name_of, storages
from pt_helpers import saved, written_by

from t7bridge import PtReader, Storage, Tensor
from t7bridge.errors import UnsupportedError
from t7bridge.formats import LegacyPtWriter
from t7bridge.graph import ELEMENT_TYPES, Span
from t7bridge.io import ByteSource

written = partial(written_by, LegacyPtWriter)


def loaded(value: Any) -> Any:
    """Return the value of PyTorch's safe loader for a written value."""
    return torch.load(io.BytesIO(written(value)), weights_only=True)


class Parts(pickle.Unpickler):
    """Python's own unpickler, which tells what storages are named."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.named: list[Any] = []

    def persistent_load(self, pid: Any) -> Any:
        self.named.append(pid)
        kind = pid[1]
        return torch.storage.TypedStorage(wrap_storage=torch.UntypedStorage(16), dtype=kind.dtype, _internal=True)


def test_parts() -> None:
    """Five pickles, then each storage with its count, as in PyTorch of the time, and nothing after them."""
    storage = Storage.from_array(np.arange(3, dtype="f4"))
    whole = Tensor(storage.element, storage, (0,), (1,))
    file = io.BytesIO(written({"a": whole, "b": whole, "c": Tensor.from_numpy(np.arange(2))}))

    assert pickle.load(file) == 0x1950A86A20F9469CFC6C
    assert pickle.load(file) == 1001
    facts = pickle.load(file)
    assert facts == {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    theirs = io.BytesIO(saved(torch.ones(1), _use_new_zipfile_serialization=False))
    assert [pickle.load(theirs) for _ in range(3)][2] == facts
    body = file.tell()
    reader = PtReader(file.getvalue())
    assert reader.kind == "legacy"
    assert list(reader.read()) == ["a", "b", "c"]
    tail = struct.pack("<q3fq2q", 3, 0, 1, 2, 2, 0, 1)
    assert file.getvalue().endswith(b"." + tail)
    assert body < len(file.getvalue()) - len(tail)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storages_are_named_with_a_place_for_views() -> None:
    """The name of a storage has six parts; the last one marks it as not a part of another."""
    data = written([Tensor.from_numpy(np.arange(2, dtype="f8"))])
    file = io.BytesIO(data)
    for _ in range(3):
        pickle.load(file)
    parts = Parts(file)
    parts.load()

    assert [pid[2:] for pid in parts.named] == [("0", "cpu", 2, None)]
    assert parts.named[0][1] is torch.DoubleStorage


@pytest.mark.parametrize(
    "name", [e.name for e in ELEMENT_TYPES.values() if e.torch_storage and not e.name.startswith("q")]
)
def test_types(name: str) -> None:
    """Every type that has a storage class is preserved."""
    one = torch.arange(6).to(getattr(torch, name)).view(2, 3)
    back = loaded(PtReader(saved([one, one.t(), one[1]])).read())

    assert [item.dtype for item in back] == [one.dtype] * 3
    assert torch.equal(back[0], one)
    assert (back[1].stride(), back[2].storage_offset()) == ((1, 3), 3)
    assert len({item.untyped_storage().data_ptr() for item in back}) == 1


@pytest.mark.parametrize("name", [e.name for e in ELEMENT_TYPES.values() if not e.torch_storage])
def test_types_without_a_class(name: str) -> None:
    """Types that PyTorch got later are refused with the way out."""
    element = ELEMENT_TYPES[name]
    storage = Storage(element, 1, np.zeros(1, element.code))

    with pytest.raises(UnsupportedError, match="the current format"):
        written(Tensor(element, storage, (1,), (1,)))


def test_values() -> None:
    """Builtins, order, sharing, scalars, empty tensors and parameters are what they were."""
    shared = [1, 2.5, "x", None, True, b"\xff", 2**70]
    scalar, empty = Tensor.from_numpy(np.array(2.0)), Tensor(ELEMENT_TYPES["float32"], None)
    parameter = Tensor.from_numpy(np.ones(2, "f4"))
    parameter.is_parameter = parameter.requires_grad = True
    back = loaded(OrderedDict(b=shared, a=shared, t=(scalar, empty, parameter)))

    assert list(back) == ["b", "a", "t"]
    assert back["a"] is back["b"]
    assert back["a"] == shared
    assert [tuple(item.shape) for item in back["t"]] == [(), (0,), (2,)]
    assert isinstance(back["t"][2], torch.nn.Parameter)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_bare_storage() -> None:
    """A storage alone is the one that tensors view."""
    one = Tensor.from_numpy(np.arange(3, dtype="f4"))
    back = loaded([one.storage, one])

    assert list(back[0]) == [0, 1, 2]
    assert back[0].data_ptr() == back[1].data_ptr()


def test_elements_are_little_endian() -> None:
    """Elements that lie in a file in the other byte order are turned."""
    span = Span(ByteSource.from_bytes(struct.pack(">3f", 1, 2, 3)), 0, 4, "big")
    storage = Storage(ELEMENT_TYPES["float32"], 3, span)

    assert loaded(Tensor(storage.element, storage, (3,), (1,))).tolist() == [1, 2, 3]


def test_devices() -> None:
    """Devices are left out, or kept where that is asked for."""
    one = Tensor.from_numpy(np.ones(1, "f4"))
    assert one.storage is not None
    one.device = one.storage.device = "cuda:0"

    assert b"cuda:0" not in written(one)
    kept = io.BytesIO(written(one, keep_device=True))
    assert b"cuda:0" in kept.getvalue()
    assert torch.load(kept, map_location="cpu").tolist() == [1]


def test_same_bytes() -> None:
    """The same value results in the same file."""
    source = TESTFILES / "pt/checkpoint_adam.legacy.pt"

    assert written(PtReader(source).read()) == written(PtReader(source).read())


@pytest.mark.parametrize("path", corpus("pt/*.legacy.pt"), ids=name_of)
def test_storages_are_those_of_the_original(path: Any) -> None:
    """A file that PyTorch wrote in this format has the same storages, each written once, after it was copied."""
    copy = written(PtReader(path).read())
    size = path.stat().st_size

    assert abs(len(copy) - size) < 0.25 * size + 200
    assert sorted(_crcs(copy)) == sorted(_crcs(path))


def _crcs(source: Any) -> list[tuple[int, int]]:

    found = PtReader(source)
    return [(storage.nbytes, storage.crc32()) for storage in storages(found.read())]
