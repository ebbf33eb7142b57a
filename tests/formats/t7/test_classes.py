"""Every tensor and storage class of Lua Torch and cutorch, from files built by hand, in every layout."""

from __future__ import annotations

import pytest
from helpers import ASCII, LAYOUTS, Parts, check_read_write, description, read, stated, written

from t7bridge import T7Reader
from t7bridge.graph import BY_LUA_WORD, LUA_CLASSES

# Lua's word → numpy's type, the struct code of an element (`l`: a C long), three values that tell the type.
ELEMENTS = {
    "Byte": ("u1", "B", (0, 200, 255)),
    "Char": ("i1", "b", (-128, 10, 127)),
    "Short": ("i2", "h", (-32768, 10, 32767)),
    "Int": ("i4", "i", (-(2**31), 10, 2**31 - 1)),
    "Long": ("i8", "l", (-(2**31), 10, 2**31 - 1)),
    "Half": ("f2", "e", (-0.5, 65504.0, 2.0**-24)),
    "Float": ("f4", "f", (-0.5, 3.4028234663852886e38, 1.401298464324817e-45)),
    "Double": ("f8", "d", (-0.5, 1e300, 5e-324)),
}
CPU = [f"torch.{word}" for word in ELEMENTS]
CUDA = [f"torch.Cuda{word}" for word in ("", "Byte", "Char", "Short", "Int", "Long", "Half", "Double")]


def word_of(prefix: str) -> str:
    """`Float` of `torch.Cuda`, `Long` of `torch.CudaLong`."""
    return prefix.removeprefix("torch.").removeprefix("Cuda") or "Float"


def file_of(prefix: str, layout, version: int | None = 1) -> bytes:
    """A tensor of three elements with its storage, in the layout, built without the package's writer."""
    _, code, values = ELEMENTS[word_of(prefix)]
    parts = Parts(layout).torch(1, f"{prefix}Tensor", version).ints(1).longs(3).longs(1).longs(1)
    parts.torch(2, f"{prefix}Storage", version).longs(3)
    if parts.ascii and code == "d":
        return parts.raw(" ".join(f"{value:.17g}" for value in values).encode()).data
    if parts.ascii and code == "e":
        code = "f"
    return parts.elements(code, *values).data


@pytest.mark.parametrize("prefix", CPU + CUDA)
def test_class(subtests, prefix):
    """A tensor of each class is read with its element type, device and values, and written the same."""
    for layout in LAYOUTS:
        with subtests.test(layout=layout):
            data = file_of(prefix, LAYOUTS[layout])
            tensor = read(data, **stated(LAYOUTS[layout]))
            dtype, _, values = ELEMENTS[word_of(prefix)]
            assert tensor.lua_class == f"{prefix}Tensor"
            assert tensor.storage.lua_class == f"{prefix}Storage"
            assert tensor.device == tensor.storage.device == ("cuda:0" if "Cuda" in prefix else "cpu")
            assert tensor.element is tensor.storage.element is BY_LUA_WORD[word_of(prefix)]
            assert tensor.numpy().dtype == dtype
            assert tuple(tensor.numpy().tolist()) == values
            assert written(tensor, LAYOUTS[layout]) == data


@pytest.mark.parametrize("prefix", CPU + CUDA)
def test_layout_is_found_out(subtests, prefix):
    """The layout of a file that holds one tensor is found out from its bytes alone."""
    for layout in LAYOUTS:
        with subtests.test(layout=layout):
            reader = T7Reader(file_of(prefix, LAYOUTS[layout]))
            reader.read_object()
            assert reader.layout == LAYOUTS[layout]


@pytest.mark.parametrize("prefix", CPU + CUDA)
def test_class_without_version(prefix):
    """Tensors written before there were versions are read and written the same."""
    data = file_of(prefix, LAYOUTS["little8"], None)
    tensor = check_read_write(data)
    assert tensor.version is tensor.storage.version is None


def test_all_classes_are_known():
    """There are eight classes on the CPU and as many on the GPU, where float32 is called just `Cuda`."""
    assert set(LUA_CLASSES) == {prefix + kind for prefix in CPU + CUDA for kind in ("Tensor", "Storage")}


@pytest.mark.parametrize("word", ELEMENTS)
def test_empty_storage_in_ascii(word):
    """A storage without elements prints its count and nothing more, not even a line feed."""
    data = Parts(ASCII).torch(1, f"torch.{word}Storage").longs(0).data
    assert data.endswith(b"Storage\n0\n")
    assert check_read_write(data).count == 0


def test_byte_storage_in_ascii_is_raw():
    """The elements of Byte and Char storages are raw bytes in ascii too, whatever they look like."""
    tricky = b"12 34\n\x00\xff 4\n"
    data = b"4\n1\n3\nV 1\n17\ntorch.ByteStorage\n%d\n%s\n" % (len(tricky), tricky)
    storage = check_read_write(data)
    assert storage.array.tobytes() == tricky


def test_default_class_of_2010():
    """`torch.Tensor` is a tensor of doubles, and keeps its name."""
    parts = Parts(LAYOUTS["little8"]).torch(1, "torch.Tensor", None).ints(1).longs(1).longs(1).longs(1)
    data = parts.torch(2, "torch.Storage", None).longs(1).elements("d", 2.5).data
    tensor = check_read_write(data)
    assert tensor.numpy().tolist() == [2.5]
    assert tensor.lua_class == "torch.Tensor"
    assert '"class":"torch.Tensor"' in description(tensor)
