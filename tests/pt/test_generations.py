"""What older and other writers put into `.pt` files, from files that are put together here or by PyTorch."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
from collections import OrderedDict

import pytest
import torch
from helpers import corpus, name_of
from pt_helpers import (
    PT,
    described,
    golden,
    saved,
    storage_id,
    tensor,
    text,
    torch_describe,
    unpickled,
    zipped,
)
from torch import nn

from t7bridge.errors import CorruptError, FormatError, LimitError, TruncatedError, UnknownFormatError, UnsupportedError
from t7bridge.graph.describe_python import describe_python
from t7bridge.graph.python import NumpyArray, PythonObject, QuantizedTensor, SparseTensor, UntypedStorage
from t7bridge.pt.reader import PtReader

MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."


def legacy(value: bytes, keys: list[str], *storages: bytes) -> bytes:
    """A file in the magic-number format."""
    listed = b"\x80\x02](" + b"".join(map(text, keys)) + b"e."
    return MAGIC + b"\x80\x02" + value + b"." + listed + b"".join(storages)


def floats(*values: float) -> bytes:
    """A storage behind the pickles: a count and the elements."""
    return struct.pack(f"<q{len(values)}f", len(values), *values)


def part(key: str, start: int, count: int) -> bytes:
    """What a persistent id says of a storage that is a part of another."""
    return b"(" + text(key) + b"J" + struct.pack("<i", start) + b"J" + struct.pack("<i", count) + b"t"


def test_legacy_storage_views():
    """Storages that are parts of others, as 0.2 and 0.3 wrote them, are where PyTorch puts them."""
    whole = tensor(storage_id("FloatStorage", "7", 6, tail=b"N"), 0, (6,), (1,))
    middle = tensor(storage_id("FloatStorage", "7", 6, tail=part("8", 2, 3)), 0, (3,), (1,))
    again = tensor(storage_id("FloatStorage", "7", 6, tail=part("8", 2, 3)), 1, (2,), (1,))
    data = legacy(b"(" + whole + middle + again + b"t", ["7"], floats(0, 1, 2, 3, 4, 5))
    value = PtReader(data).read()

    assert torch_describe(torch.load(io.BytesIO(data), weights_only=False)) == described(data)
    assert value[1].storage is value[2].storage
    assert value[1].storage.base is value[0].storage
    assert value[1].storage.base_offset == 8
    assert value[1].numpy().tolist() == [2, 3, 4]


def test_legacy_storage_views_that_are_outside():
    """A part that is not inside of its whole is an error."""
    for start, count in ((4, 3), (-1, 2), (7, 0), (0, -1)):
        code = tensor(storage_id("FloatStorage", "7", 6, tail=part("8", start, count)), 0, (0,), (1,))
        with pytest.raises(CorruptError):
            PtReader(legacy(code, ["7"], floats(0, 1, 2, 3, 4, 5))).read()


def test_legacy_files_that_contradict_themselves():
    """Counts, keys and elements behind the pickles must be those of the tensors."""
    code = tensor(storage_id("FloatStorage", "7", 2, tail=b"N"), 0, (2,), (1,))

    with pytest.raises(CorruptError, match="another size"):
        PtReader(legacy(code, ["7"], floats(1, 2, 3))).read()
    with pytest.raises(CorruptError, match="storages are not there"):
        PtReader(legacy(code, [])).read()
    with pytest.raises(CorruptError, match="no tensor has"):
        PtReader(legacy(code, ["7", "9"], floats(1, 2), floats(1))).read()
    with pytest.raises(TruncatedError):
        PtReader(legacy(code, ["7"], floats(1, 2)[:-1])).read()
    with pytest.raises(CorruptError, match="no release had"):
        PtReader(MAGIC.replace(b"M\xe9\x03", b"M\xe8\x03") + b"N.].").read()


def test_legacy_classes_with_their_source():
    """A class that was saved with its source code is the class; the code is not looked at."""
    saved_id = b"(" + text("module") + b"cmodels\nNet\n" + text("net.py") + text("import os") + b"tQ"
    value = PtReader(legacy(saved_id + b")\x81}b", [])).read()

    assert isinstance(value, PythonObject)
    assert value.path == "models.Net"


def test_legacy_devices():
    """The device of a storage is kept as data."""
    code = tensor(storage_id("FloatStorage", "7", 2, "cuda:3", tail=b"N"), 0, (2,), (1,))
    value = PtReader(legacy(code, ["7"], floats(1, 2))).read()

    assert (value.device, value.storage.device) == ("cuda:3", "cuda:3")


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_legacy_protocols(protocol):
    """The format is the same in every protocol that `torch.save` takes."""
    value = {"w": torch.arange(4.0), "s": "text"}
    data = saved(value, _use_new_zipfile_serialization=False, pickle_protocol=protocol)

    assert PtReader(data).kind == "legacy"
    assert torch_describe(value) == described(data)


def test_a_file_object_in_the_middle():
    """Reading starts at a file object's position, and the position stays."""
    file = io.BytesIO(b"head" + (PT / "nested.legacy.pt").read_bytes())
    file.seek(4)

    assert golden(PT / "nested.legacy.pt") == described(file)
    file = io.BytesIO(b"head" + (PT / "nested.pt").read_bytes())
    file.seek(4)
    with pytest.raises(UnsupportedError):
        PtReader(file)


# Several element types on one storage


def test_element_types_on_one_storage():
    """Tensors of two types on the same bytes share them: in each the bytes are what PyTorch sees."""
    base = torch.arange(8).to(torch.uint16)
    value = [base, base.view(torch.uint32), base.view(torch.float8_e5m2), base[2:]]
    data = saved(value)
    read = PtReader(data).read()

    assert torch_describe(torch.load(io.BytesIO(data))) == described(data)
    assert read[1].storage.base is read[0].storage
    assert read[3].storage is read[0].storage
    assert read[1].numpy().tolist() == base.view(torch.uint32).tolist()


def test_element_types_that_do_not_fit():
    """A type that the bytes are no whole number of is not read wrongly, but refused."""
    first = tensor(storage_id("ByteStorage", "0", 3), 0, (3,), (1,))
    second = tensor(storage_id("HalfStorage", "0", 1), 0, (1,), (1,))

    with pytest.raises(UnsupportedError):
        PtReader(zipped({"a/data.pkl": b"\x80\x02(" + first + second + b"t.", "a/data/0": b"123"})).read()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_bare_storages():
    """A storage that stands alone is a storage: typed, or untyped and the same as the tensor on it."""
    base = torch.arange(4.0)
    read = PtReader(saved({"typed": base.storage(), "t": base})).read()

    assert read["typed"] is read["t"].storage
    other = torch.arange(4).to(torch.uint16)
    read = PtReader(saved({"bare": other.untyped_storage(), "t": other})).read()
    assert isinstance(read["bare"], UntypedStorage)
    assert read["bare"].storage is read["t"].storage
    alone = PtReader(saved({"bare": other.untyped_storage()})).read()["bare"].storage
    assert (alone.element.name, alone.count, list(alone.array)) == ("uint8", 8, [0, 0, 1, 0, 2, 0, 3, 0])


# Views that are none


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (0, (7,), (1,)),
        (6, (1,), (1,)),
        (-1, (1,), (1,)),
        (0, (2, 4), (3, 1)),
        (0, (2,), (-1,)),
        (0, (2,), ()),
        (0, (-2,), (1,)),
    ],
)
def test_views_outside_their_storage(offset, size, stride):
    """A view that reaches outside its storage is an error, in PyTorch's archives and in older files."""
    code = tensor(storage_id("FloatStorage", "7", 6), offset, size, stride)

    with pytest.raises(CorruptError):
        PtReader(zipped({"a/data.pkl": b"\x80\x02" + code + b".", "a/data/7": bytes(24)})).read()


def test_too_many_dimensions():
    """A tensor of more dimensions than allowed is refused."""
    code = tensor(storage_id("FloatStorage", "7", 6), 0, (1,) * 2000, (1,) * 2000)

    with pytest.raises(LimitError):
        PtReader(zipped({"a/data.pkl": b"\x80\x02" + code + b".", "a/data/7": bytes(24)})).read()


# What is special about a tensor


class Named(torch.Tensor):
    """A tensor of a class of its own."""


def test_parameters_and_subclasses():
    """Parameters with Python attributes and subclasses keep both."""
    plain = nn.Parameter(torch.arange(3.0))
    plain.tag = "x"
    read = PtReader(
        saved({"p": plain, "n": torch.arange(2.0).as_subclass(Named), "q": nn.Parameter(torch.ones(1), False)})
    ).read()

    assert read["p"].is_parameter
    assert read["p"].requires_grad
    assert read["p"].extras.state == {"tag": "x"}
    assert read["n"].extras.subclass.name == "Named"
    assert read["q"].is_parameter
    assert not read["q"].requires_grad
    assert read["q"].extras is None


def test_sparse_layouts():
    """Every sparse layout reads, with its indices and values."""
    dense = torch.tensor([[0.0, 1, 0, 2], [3, 0, 0, 0], [0, 0, 4, 0], [0, 5, 0, 6]])
    with pytest.warns(UserWarning, match="beta state"):
        value = [dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((2, 2))]
    for sparse, read in zip(value, PtReader(saved(value)).read()):
        assert isinstance(read, SparseTensor)
        assert f"torch.{read.layout}" == str(sparse.layout)
        assert tuple(sparse.shape) == read.size
        values = sparse._values() if sparse.layout is torch.sparse_coo else sparse.values()
        assert values.tolist() == read.values.numpy().tolist()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:torch.quantize_per_tensor")
def test_quantized_channels():
    """Channels that are quantized each in its own way keep their scales and zero points."""
    scales, zeros = torch.tensor([0.1, 0.2]), torch.tensor([1, 2])
    value = torch.quantize_per_channel(torch.randn(2, 3), scales, zeros, 0, torch.qint8)
    read = PtReader(saved(value)).read()

    assert isinstance(read, QuantizedTensor)
    assert (read.scheme, read.axis) == ("per_channel_affine", 0)
    assert read.scale.numpy().tolist() == value.q_per_channel_scales().tolist()
    assert read.tensor.numpy().tolist() == value.int_repr().tolist()


def test_meta_tensors_stay_opaque():
    """A tensor without data has none: it is kept as what the file says, not as memory."""
    value = PtReader(saved({"m": torch.empty(2, 3, device="meta")})).read()["m"]

    assert isinstance(value, PythonObject)
    assert value.path == "torch._utils._rebuild_meta_tensor_no_storage"


def test_tensors_as_numpy_arrays():
    """Tensors of XLA devices, which are saved as numpy arrays, are tensors."""
    import numpy as np

    for array, dtype in (
        (np.arange(6.0, dtype="f4").reshape(2, 3), "float32"),
        (np.asfortranarray(np.arange(6.0).reshape(2, 3)), "float64"),
        (np.array([1.5, -2.0, 3.140625], "f4"), "bfloat16"),
    ):
        inner = pickle.dumps(array, 2)[2:-1]
        code = b"\x80\x02ctorch._utils\n_rebuild_device_tensor_from_numpy\n(" + inner
        code += f"ctorch\n{dtype}\n".encode() + text("xla:0") + b"\x88tR."
        value, foreign = unpickled(code)
        want = torch.from_numpy(array).to(getattr(torch, dtype))

        assert foreign == []
        assert (value.device, value.requires_grad, value.element.name) == ("xla:0", True, dtype)
        assert (list(want.shape), list(want.stride())) == (list(value.size), list(value.stride))
        ours = value.numpy()
        theirs = want.view(torch.uint16) if dtype == "bfloat16" else want
        assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("protocol", range(6))
def test_numpy_values(protocol):
    """Arrays of every kind keep type, shape and bytes, in every protocol."""
    import numpy as np

    arrays = [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
        np.array([True, False]),
        np.array(["ab", "c"]),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    ]
    read, foreign = unpickled(pickle.dumps(arrays, protocol))

    assert foreign == []
    for array, ours in zip(arrays, read):
        assert isinstance(ours, NumpyArray)
        assert array.shape == ours.shape
        assert array.tobytes("F" if ours.fortran else "C") == ours.data
    objects = unpickled(pickle.dumps(np.array([None, "x"], dtype=object), protocol))[0]
    assert objects.data == [None, "x"]


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
    """What does not fit in a `model.json` is an error."""
    with pytest.raises((CorruptError, UnsupportedError)):
        PtReader(json_archive({**MODEL, **change}, ("hello",), a=bytes(12), b=bytes(24))).read()


def test_deep_json():
    """JSON that is nested beyond reason is an error."""
    with pytest.raises(FormatError):
        PtReader(zipped({"m/model.json": b"[" * 100_000})).read()


# What whole modules are


def test_modules_of_modules():
    """Names, order, shared modules, buffers that are not persistent: as `state_dict()` has them."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.ones(2))
            self.register_buffer("gone", torch.zeros(2), persistent=False)
            self.register_buffer("none", None)
            self.first = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
            self.again = self.first[0]
            self.w = nn.Parameter(torch.ones(1))
            self.empty = None

    from t7bridge.pt.modules import module_state_dict

    Net.__qualname__ = "Net"
    globals()["Net"] = Net
    net = Net()
    read = PtReader(saved(net)).read()

    assert torch_describe(OrderedDict(net.state_dict())) == describe_python(module_state_dict(read))


def test_modules_that_hold_themselves():
    """A module in itself, or shared without end, meets a limit."""
    from t7bridge.pt.modules import module_state_dict

    start = b"ca\nB\n)\x81q\x00}(" + text("_parameters") + b"}" + text("_buffers") + b"}" + text("_modules")
    value = unpickled(start + b"}" + text("x") + b"h\x00sub.")[0]

    with pytest.raises(LimitError):
        module_state_dict(value)
    with pytest.raises(UnsupportedError):
        module_state_dict({"a": 1})
