"""Plain pickles, the tar layout of 0.1 and the `model.json` archives of 1.0 to 1.2."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile

import pytest
import torch
from helpers import corpus, name_of
from pt_helpers import (
    described,
    golden,
    saved,
    text,
    torch_describe,
    unpickled,
    zipped,
)
from torch import nn

from t7bridge import PtReader
from t7bridge.errors import CorruptError, FormatError, LimitError, UnknownFormatError, UnsupportedError
from t7bridge.values import describe_python

# Plain pickles


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_plain_pickles(protocol):
    """A tensor that `pickle` wrote holds its storage as a file of its own, which is read."""
    value = {"w": torch.arange(6.0).view(2, 3)[:, 1:], "p": nn.Parameter(torch.ones(2))}
    reader = PtReader(pickle.dumps(value, protocol))

    assert reader.kind == "pickle"
    assert torch_describe(value) == describe_python(reader.read())
    assert reader.foreign == []


def test_pickles_of_protocol_0():
    """A pickle without a mark at its start is found out, and what only looks like one is not."""
    assert PtReader(pickle.dumps({"a": [1, 2]}, 0)).read() == {"a": [1, 2]}
    assert PtReader(pickle.dumps({"a": (1, "x")}, 1)).read() == {"a": (1, "x")}
    with pytest.raises(UnknownFormatError):
        PtReader(b"(this is just text)").read()
    with pytest.raises(UnknownFormatError):
        PtReader(b"\x7fELF")
    with pytest.raises(UnknownFormatError, match="HTML"):
        PtReader(b"<!doctype html><html>")
    with pytest.raises(UnknownFormatError):
        PtReader(b"")


def test_tensors_as_lists():
    """PyTorch 0.1 pickles a tensor as nested lists, and a parameter as a call with a tensor."""
    inner = b"ctorch\nFloatTensor\n](](G?\xf8\0\0\0\0\0\0K\x02e](K\x03K\x04ee\x85R"
    code = b"ctorch.nn.parameter\nParameter\n" + inner + b"\x85R(\x89\x89Ntb."
    value = unpickled(code)[0]

    assert value.numpy().tolist() == [[1.5, 2], [3, 4]]
    assert (value.element.name, value.size, value.stride) == ("float32", (2, 2), (2, 1))
    assert value.is_parameter
    assert not value.requires_grad
    assert unpickled(b"ctorch.cuda\nLongStorage\n](K\x05K\x06e\x85R.")[0].array.tolist() == [5, 6]


@pytest.mark.parametrize("inside", [b"](K\x01](K\x02ee", b"](](K\x01e](K\x01K\x02ee", b"](" + text("x") + b"e"])
def test_lists_that_are_no_tensor(inside):
    """Lists of unequal length or of no numbers are an error."""
    with pytest.raises(CorruptError):
        unpickled(b"ctorch\nFloatTensor\n" + inside + b"\x85R.")


def test_lists_that_explode():
    """A list of lists that would be 2^60 numbers is refused, and one that holds itself."""
    code = b"](K\x01K\x01eq\x00" + b"0](h\x00h\x00eq\x00" * 60

    with pytest.raises(CorruptError):
        unpickled(code + b"0ctorch\nFloatTensor\nh\x00\x85R.")
    with pytest.raises(CorruptError):
        unpickled(b"]q\x00h\x00a0ctorch\nFloatTensor\nh\x00\x85R.")


def test_files_in_pickles_in_files():
    """A file in a pickle in a file goes only so deep."""
    data = saved(torch.ones(1).untyped_storage(), _use_new_zipfile_serialization=False)
    for _ in range(8):
        data = b"\x80\x03ctorch.storage\n_load_from_bytes\nB" + struct.pack("<I", len(data)) + data + b"\x85R."

    with pytest.raises(LimitError):
        PtReader(data).read()


# Tar


@pytest.mark.parametrize("path", corpus("pt/tar_*.pt"), ids=name_of)
@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_archives_of_other_writers(path, layout):
    """The members may be in any order and dialect."""
    with tarfile.open(path) as archive:
        members = {info.name: archive.extractfile(info).read() for info in archive}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=layout) as archive:
        for name in sorted(members):
            info = tarfile.TarInfo(f"./{name}" if layout == tarfile.GNU_FORMAT else name)
            info.size = len(members[name])
            info.pax_headers = {"comment": "Grüße"}
            archive.addfile(info, io.BytesIO(members[name]))

    assert golden(path) == described(file.getvalue())


def test_other_tar_archives():
    """A tar archive that is not PyTorch's is named with what is in it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model/weights.bin"), io.BytesIO())

    with pytest.raises(CorruptError, match=r"model/weights\.bin"):
        PtReader(file.getvalue()).read()


@pytest.mark.parametrize("path", corpus("pt/tar_*.pt"), ids=name_of)
def test_damaged_tar_archives(path):
    """A tar archive that is cut off anywhere in its members is an error."""
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    for length in range(0, end, 97):
        with pytest.raises(FormatError):
            PtReader(data[:length]).read()


# JSON archives


def json_archive(model: dict, attributes: object = (), **tensors: bytes) -> bytes:
    """An archive of TorchScript 1.0 to 1.2."""
    members = {"m/model.json": json.dumps(model).encode(), "m/attributes.pkl": pickle.dumps(attributes, 2)}
    return zipped({**members, **{f"m/tensors/{key}": data for key, data in tensors.items()}})


MODEL = {
    "protoVersion": "3",
    "mainModule": {
        "parameters": [{"name": "mean", "isBuffer": True, "tensorId": "1"}, {"name": "w", "tensorId": "0"}],
        "submodules": [{"name": "sub", "parameters": [{"name": "v"}], "submodules": [{"name": "leaf"}]}],
        "attributes": [{"name": "note", "type": "str", "id": "0"}, {"name": "none", "type": "Tensor", "id": "-1"}],
    },
    "tensors": [
        {
            "dims": ["2"],
            "strides": ["1"],
            "offset": "1",
            "dataType": "FLOAT",
            "data": {"key": "tensors/a"},
            "device": "cpu",
        },
        {"offset": "2", "dataType": "INT64", "data": {"key": "tensors/b"}, "device": "cuda:0", "requiresGrad": True},
    ],
}


def test_json_archives():
    """Parameters, buffers, submodules and attributes of `model.json` archives, with shared storages."""
    data = json_archive(MODEL, ("hello",), a=struct.pack("<3f", 1, 2, 3), b=struct.pack("<3q", 4, 5, 6))
    reader = PtReader(data)
    value = reader.read()

    assert reader.kind == "json-archive"
    assert list(value) == ["w", "mean", "sub.v"]
    assert value["w"].numpy().tolist() == [2, 3]
    assert value["mean"].numpy().tolist() == 6
    assert (value["mean"].device, value["mean"].requires_grad) == ("cuda:0", False)
    assert value["sub.v"].storage is value["w"].storage
    assert reader.attributes == {"note": "hello", "none": None}


def test_json_archive_named_as_a_folder_of_traced_inputs():
    """The root folder has the name of the file. In `traced_inputs/` below a root folder, storages have no members."""
    model = {**MODEL, "tensors": MODEL["tensors"][:1], "mainModule": {"parameters": [{"name": "w"}]}}
    root = "traced_inputs/"
    members = {"model.json": json.dumps(model).encode(), "tensors/a": struct.pack("<3f", 1, 2, 3)}

    value = PtReader(zipped({root + name: data for name, data in members.items()})).read()
    assert value["w"].numpy().tolist() == [2, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": {}},
        {"tensors": [{"dataType": "FLOAT", "data": {"key": "tensors/z"}}]},
        {"tensors": [{"dataType": ["FLOAT"]}]},
        {"tensors": [{"dataType": "FLOAT", "data": {"key": "tensors/a"}, "offset": "x"}]},
        {"tensors": [{"dataType": "FLOAT", "data": {"key": "tensors/a"}, "offset": "3"}]},
        {"mainModule": {"parameters": [{"name": "w", "tensorId": "9"}]}},
        {"mainModule": {"parameters": [{"name": 3}]}},
        {"mainModule": {"attributes": [{"name": "x", "id": 7}]}},
        {"mainModule": []},
    ],
)
def test_damaged_json_archives(change):
    """Inconsistent entries of a `model.json` are errors."""
    with pytest.raises((CorruptError, UnsupportedError)):
        PtReader(json_archive({**MODEL, **change}, ("hello",), a=bytes(12), b=bytes(24))).read()


def test_deep_json():
    """JSON that is nested beyond reason is an error."""
    with pytest.raises(FormatError):
        PtReader(zipped({"m/model.json": b"[" * 100_000})).read()
