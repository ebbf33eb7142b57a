"""Tensors as views: sizes, strides and offsets against numpy, and views that cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from t7bridge import Storage, Tensor
from t7bridge.errors import ModelError
from t7bridge.graph import FLOAT32, FLOAT64, view_fault


def counting(count: int = 24) -> Storage:
    """A storage of 0, 1, 2, …"""
    return Storage.from_array(np.arange(count, dtype="f4"))


def by_hand(tensor: Tensor) -> list:
    """Every element of the view, looked up one by one, as a flat list."""
    flat = tensor.storage.array
    return [
        float(flat[tensor.offset + sum(at * step for at, step in zip(place, tensor.stride))])
        for place in np.ndindex(*tensor.size)
    ]


VIEWS = [
    ((24,), (1,), 0),
    ((4, 6), (6, 1), 0),
    ((6, 4), (1, 6), 0),
    ((2, 3, 4), (12, 4, 1), 0),
    ((3,), (6,), 4),
    ((4, 3), (0, 1), 2),
    ((4, 3), (2, 1), 5),
    ((1, 1, 1), (99, 99, 99), 23),
    ((3,), (-2,), 10),
    ((2, 2), (-6, 3), 15),
]


@pytest.mark.parametrize(("size", "stride", "offset"), VIEWS)
def test_view(size, stride, offset):
    """The array of a view has its sizes, its strides and its elements."""
    tensor = Tensor(FLOAT32, counting(), size, stride, offset)
    tensor.check()
    array = tensor.numpy()
    assert array.shape == size == tensor.shape
    assert array.strides == tuple(4 * step for step in stride)
    assert array.reshape(-1).tolist() == by_hand(tensor)
    assert tensor.numel == array.size


@pytest.mark.parametrize("step", [-(2**33), -1, 2**31, 2**61, 2**62, 2**63 - 1])
def test_strides_of_one_element(step):
    """A dimension of one element may have any stride, as in Lua Torch and PyTorch; the elements are PyTorch's."""
    torch = pytest.importorskip("torch")
    tensor = Tensor(FLOAT64, Storage.from_array(np.arange(6.0)), (3, 1), (2, step), 0)
    tensor.check()
    assert tensor.numpy().tolist() == tensor.tolist() == [[0.0], [2.0], [4.0]]
    theirs = torch.arange(6.0).double().as_strided((3, 1), (2, max(step, 0)))  # PyTorch has no negative ones
    assert tensor.torch().tolist() == theirs.tolist() == tensor[:, 0:1].tolist()
    adjoining = Tensor(FLOAT64, tensor.storage, (6, 1), (1, step), 0)
    assert adjoining.torch().tolist() == adjoining.tolist() == [[float(at)] for at in range(6)]


def test_views_share_memory():
    """Writes through one view are visible through another of the same storage."""
    storage = counting(6)
    left, right = Tensor(FLOAT32, storage, (3,), (2,), 0), Tensor(FLOAT32, storage, (2, 3), (3, 1), 0)
    left.numpy()[1] = 99
    assert right.numpy().tolist() == [[0, 1, 99], [3, 4, 5]]


def test_view_of_read_only_elements_is_read_only():
    """A view of elements that cannot be written to cannot be written to either."""
    array = np.arange(4, dtype="f4")
    array.flags.writeable = False
    view = Tensor(FLOAT32, Storage.from_array(array), (2, 2), (2, 1)).numpy()
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1


FAULTS = [
    ((25,), (1,), 0, "reaches element 24, and the storage has 24"),
    ((2,), (24,), 0, "reaches element 24"),
    ((1,), (1,), 24, "reaches element 24"),
    ((1,), (1,), -1, "its offset is -1"),
    ((3,), (-1,), 1, "reaches element -1, before the first"),
    ((-2,), (1,), 0, "a size is negative"),
    ((2, 2), (1,), 0, "2 sizes but 1 strides"),
    ((2**40, 2**40), (2**40, 1), 0, "reaches element"),
]


@pytest.mark.parametrize(("size", "stride", "offset", "message"), FAULTS)
def test_view_outside(size, stride, offset, message):
    """A view outside its storage is refused with the reason."""
    with pytest.raises(ModelError, match=message):
        Tensor(FLOAT32, counting(), size, stride, offset).check()


def test_views_without_elements():
    """A view without elements reads nothing and may lie anywhere."""
    for size in ((0,), (3, 0), (0, 5), ()):
        assert view_fault(size, (1,) * len(size), 1000, 0) is None
        tensor = Tensor(FLOAT32, counting(0), size, (1,) * len(size))
        assert tensor.numel == 0
        assert tensor.numpy().shape == (size or (0,))
    assert Tensor(FLOAT64, None).numpy().dtype == "f8"


def test_scalar():
    """A PyTorch scalar has no dimensions and one element; a Lua tensor without dimensions has none."""
    scalar = Tensor(FLOAT32, counting(), (), (), 5, is_scalar=True)
    scalar.check()
    assert (scalar.shape, scalar.numel, scalar.numpy().item()) == ((), 1, 5.0)
    with pytest.raises(ModelError):
        Tensor(FLOAT32, counting(), (), (), 24, is_scalar=True).check()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.arange(6.0).reshape(2, 3).T,
        np.arange(20)[::3],
        np.arange(6, dtype=">i4").reshape(3, 2),
        np.array(5.0),
        np.array([[True, False]]),
        np.empty((0, 3), "f2"),
        np.empty((3, 0), "f2"),
        np.array([1 + 2j], "c8"),
        np.broadcast_to(np.arange(3.0), (4, 3)),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_from_numpy(array):
    """A tensor of an array has its shape and its elements, with contiguous strides, and lies in its storage."""
    tensor = Tensor.from_numpy(array)
    tensor.check()
    assert tensor.shape == array.shape
    assert len(tensor.stride) == array.ndim
    assert tensor.numpy().tolist() == array.tolist()
    assert tensor.element.name == array.dtype.name
    assert tensor.storage.count == array.size


def test_from_numpy_shares_memory():
    """A contiguous array in the machine's order is not copied."""
    array = np.zeros((2, 3), "f4")
    Tensor.from_numpy(array).numpy()[1, 2] = 7
    assert array[1, 2] == 7


def test_arrays_of_numpy():
    """`np.asarray` shares memory, `np.array` copies; another type is a copy, which `copy=False` refuses."""
    tensor = Tensor.from_numpy(np.arange(6, dtype="f4").reshape(2, 3))

    assert np.shares_memory(np.asarray(tensor), tensor.storage.array)
    copied = tensor.__array__(copy=True)
    assert not np.shares_memory(copied, tensor.storage.array)
    assert copied.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert np.asarray(tensor, "f8").dtype == np.float64
    assert np.shares_memory(tensor.__array__(copy=False), tensor.storage.array)
    assert np.shares_memory(tensor.__array__(np.dtype("f4"), copy=False), tensor.storage.array)
    for of_float32 in (tensor, tensor.storage):
        with pytest.raises(ValueError, match=r"of .*float32 cannot become an array of float64 without a copy"):
            of_float32.__array__(np.dtype("f8"), copy=False)


def test_rows_and_lengths():
    """A tensor is a sequence of its rows, and true; without dimensions it has no length and no rows."""
    tensor, one = Tensor.from_numpy(np.arange(6, dtype="f4").reshape(2, 3)), Tensor.from_numpy(np.array(3.5, "f4"))

    assert len(tensor) == 2
    assert [row.tolist() for row in tensor] == [[0, 1, 2], [3, 4, 5]]
    assert bool(tensor[0, :1]) is bool(one) is True
    assert float(one) == one.item() == 3.5
    with pytest.raises(TypeError, match="no length"):
        len(one)
    with pytest.raises(TypeError, match="iterate"):
        iter(one)
    with pytest.raises(ModelError):
        tensor.item()
    with pytest.raises(ModelError):
        tensor[0, :2].item()
