"""Tensors of every kind: on shared storages, outside of them, sparse, quantized, in numpy arrays and in modules."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch
from pt_helpers import (
    described,
    saved,
    storage_id,
    tensor,
    text,
    torch_describe,
    unpickled,
    zipped,
)
from torch import nn

import t7bridge
from t7bridge import PtReader, PtWriter, Storage, Tensor
from t7bridge.errors import CorruptError, LimitError, UnsupportedError
from t7bridge.graph import ELEMENT_TYPES, NumpyArray, PythonObject, QuantizedTensor, SparseTensor, UntypedStorage
from t7bridge.values import describe_python

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
    """One storage with two classes is refused: PyTorch uses the first for both."""
    first = tensor(storage_id("ByteStorage", "0", 3), 0, (3,), (1,))
    second = tensor(storage_id("HalfStorage", "0", 1), 0, (1,), (1,))

    with pytest.raises(CorruptError, match="named with two classes"):
        PtReader(zipped({"a/data.pkl": b"\x80\x02(" + first + second + b"t.", "a/data/0": b"123"})).read()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_bare_storages():
    """A storage outside of tensors is a storage: typed, or untyped and the same as the tensor on it."""
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


@pytest.mark.filterwarnings("ignore:Sparse ")  # PyTorch warns once, in whichever test is the first
def test_sparse_layouts():
    """Every sparse layout reads, with its indices and values."""
    dense = torch.tensor([[0.0, 1, 0, 2], [3, 0, 0, 0], [0, 0, 4, 0], [0, 5, 0, 6]])
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


@pytest.mark.parametrize("quantized_first", [True, False])
def test_quantized_tensors_share_no_memory_with_others(quantized_first):
    """PyTorch takes the first class that names a storage for all, so memory of two types is refused."""
    floats = Tensor.from_numpy(np.arange(6, dtype="f4"))
    storage = floats.storage
    bytes_of_it = Storage(ELEMENT_TYPES["quint8"], 24, storage.data, base=storage)
    quantized = QuantizedTensor(Tensor(ELEMENT_TYPES["quint8"], bytes_of_it, (6,), (1,)), "per_tensor_affine", 0.5, 3)
    value = [quantized, floats] if quantized_first else [floats, quantized]
    with pytest.raises(UnsupportedError, match="shares memory"):
        PtWriter(io.BytesIO()).write(value)


def test_meta_tensors_stay_opaque():
    """A tensor without data has none: its description is kept, without memory."""
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
        ours = value.array
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

    from t7bridge.formats import module_state_dict

    Net.__qualname__ = "Net"
    globals()["Net"] = Net
    net = Net()
    read = PtReader(saved(net)).read()

    assert torch_describe(OrderedDict(net.state_dict())) == describe_python(module_state_dict(read))


def test_modules_that_hold_themselves():
    """A module in itself, or shared without end, meets a limit."""
    from t7bridge.formats import module_state_dict

    start = b"ca\nB\n)\x81q\x00}(" + text("_parameters") + b"}" + text("_buffers") + b"}" + text("_modules")
    value = unpickled(start + b"}" + text("x") + b"h\x00sub.")[0]

    with pytest.raises(LimitError):
        module_state_dict(value)
    with pytest.raises(UnsupportedError):
        module_state_dict({"a": 1})


_KINDS = [
    "O", "f8", "i1", "?", "S3", "U2", "V4", "c16", "m8[s]", "M8[ns]", "m8", [("a", "f4"), ("b", "O")], ("f4", (2,)),
    [("x", [("a", "O")]), ("y", "f4", (2,))], {"names": ["a", "b"], "formats": ["f4", "f4"], "offsets": [0, 8]},
]  # fmt: skip


@pytest.mark.parametrize("kind", _KINDS, ids=str)
@pytest.mark.parametrize("protocol", [2, 4])
def test_states_of_numpy_dtypes(kind, protocol, tmp_path):
    """Each kind of dtype that numpy pickles is read; one with flags of another kind, which crash numpy, is not."""
    array = np.zeros(3, kind)
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"array": array, "scalar": array[0], "dtype": array.dtype}, protocol))
    assert not t7bridge.scan(path).error
    function, arguments, state = array.dtype.__reduce__()

    class Changed:
        """Pickled as a dtype of another state."""

        def __reduce__(self):
            flags = 0 if state[7] & 1 else 63
            return function, arguments, (*state[:7], flags, *state[8:])

    path.write_bytes(pickle.dumps(Changed(), protocol))
    assert "a state that its kind cannot have" in t7bridge.scan(path).error
