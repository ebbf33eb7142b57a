"""`t7bridge.torchfile` in place of torchfile: its functions, classes and values, compared with torchfile's own."""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import TESTFILES, corpus, written

import t7bridge
import t7bridge.torchfile as ours
from t7bridge import LuaFunction, Table, Tensor, TorchObject
from t7bridge.errors import UnsupportedError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchfile


# torchfile takes the header of a payload for the object's fields, and reads no further.
MISREAD = {"GPU.t7"}


def same(a: Any, b: Any, seen: set[tuple[int, int]]) -> bool:
    """Return whether a value of torchfile's equals ours, with its types, elements and sharing."""
    if (id(a), id(b)) in seen:
        return True
    seen.add((id(a), id(b)))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, torchfile.TorchObject):
        return a.torch_typename() == b.torch_typename() and same(a._obj, b._obj, seen)
    if isinstance(a, torchfile.LuaFunction):
        return (a.size, a.dumped) == (b.size, b.dumped) and same(a.upvalues, b.upvalues, seen)
    if isinstance(a, dict):
        plain = [key for key in a if isinstance(key, (int, float, bytes, str))]
        return len(a) == len(b) and all(key in b and same(a[key], b[key], seen) for key in plain)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y, seen) for x, y in zip(a, b))
    return bool(type(a) is type(b) and (a == b or a != a))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"use_list_heuristic": False}, {"use_int_heuristic": False}], ids=str)
def test_values_are_those_of_torchfile(options: dict[str, Any]) -> None:
    """Values that torchfile reads without an error are the same in the drop-in."""
    compared = 0
    for path in corpus("format/*.t7", "nn/*.t7"):
        odd = ("stream", "object_custom_write", "table_deep")  # several roots, a class of its own, too deep to compare
        if "." in path.stem or path.name in MISREAD or path.name.startswith(odd):
            continue
        try:
            theirs = torchfile.load(str(path), **options)
        except Exception:  # it checks nothing, and raises anything
            continue
        assert same(theirs, ours.load(str(path), **options), set()), path.name
        compared += 1
    assert compared > 100


def test_reads_what_torchfile_cannot(tmp_path: Path) -> None:
    """Ascii files, half precision and lists of tensors of different sizes."""
    half = Tensor.from_numpy(np.array([1.5, -2], "f2"))
    pair = [Tensor.from_numpy(np.zeros((2, 3), "f4")), Tensor.from_numpy(np.ones(4, "f4"))]
    (tmp_path / "x.t7").write_bytes(written(Table.of({"half": half, "list": Table.from_list(pair)})))
    found = ours.load(str(tmp_path / "x.t7"))
    assert found.half.dtype == np.float16
    assert found.half.tolist() == [1.5, -2]
    assert [array.shape for array in found.list] == [(2, 3), (4,)]
    (tmp_path / "a.t7").write_bytes(b"3\n1\n1\n2\n5\nhello\n1\n123\n")
    assert dict(ours.load(str(tmp_path / "a.t7"))) == {b"hello": 123}


def test_keys_that_cannot_be_hashed(tmp_path: Path) -> None:
    """A function, a named tuple that holds a list of upvalues, an array and a list are keys by their identity."""
    keys = [LuaFunction(b"code", Table.from_list([1.0])), Tensor.from_numpy(np.ones(2)), Table.from_list([1.0])]
    t7bridge.save(Table.of([(key, float(number)) for number, key in enumerate(keys)]), tmp_path / "keys.t7")
    assert sorted(ours.load(str(tmp_path / "keys.t7")).values()) == [0, 1, 2]


def test_reader_methods() -> None:
    """A stream of values and objects is read with torchfile's methods, as its README shows."""
    pieces = [struct.pack("<i", 0), written(Table.of({"hello": 123})), struct.pack("<iq", 456, 7)]
    data = b"".join([*pieces, struct.pack("<2qfdi", 1, 2, 0.5, 2.5, 3), b"abc"])
    reader = ours.T7Reader(io.BytesIO(data), force_8bytes_long=True)
    assert reader.read_boolean() is False
    assert dict(reader.read_obj()) == {b"hello": 123}
    assert reader.read_int() == 456
    assert reader.read_long() == 7
    assert reader.read_long_array(2) == [1, 2]
    assert reader.read_float() == 0.5
    assert reader.read_double() == 2.5
    assert reader.read_string() == b"abc"


def test_objects(tmp_path: Path) -> None:
    """Fields are attributes and items, what is missing is None, names of classes are bytes, tables are keys."""
    key = Table.of({"x": 1})
    root = TorchObject("nn.Thing", 1, Table.of({"size": 3, "inner": Table([key], [True])}))
    (tmp_path / "x.t7").write_bytes(written(root))
    for text in (False, True):
        found = ours.load(str(tmp_path / "x.t7"), utf8_decode_strings=text)
        assert found.torch_typename() == found._typename == b"nn.Thing"
        assert found.size == found["size"] == 3
        assert found.missing is None
        (inner,) = found.inner
        assert inner.x == 1
        assert found.inner[inner] is True
        assert inner != {("x" if text else b"x"): 1}
        assert "size" in dir(found)
        assert len(repr(found)) < 120
    with pytest.raises(TypeError):
        _ = found.inner < found.inner


def test_errors(tmp_path: Path) -> None:
    """A missing file, a damaged one, more dimensions than numpy has and an old option are errors of their own."""
    with pytest.raises(FileNotFoundError):
        ours.load(str(tmp_path / "none.t7"))
    (tmp_path / "x.t7").write_bytes(struct.pack("<ii", 3, 1))
    with pytest.raises(ours.T7ReaderException):
        ours.load(str(tmp_path / "x.t7"))
    with pytest.raises(DeprecationWarning):
        ours.T7Reader(io.BytesIO(b""), force_deserialize_classes=True)
    deep = Tensor.from_numpy(np.zeros(1, "f4"))
    deep.size, deep.stride = (1,) * 65, (1,) * 65
    (tmp_path / "deep.t7").write_bytes(written(Table.of({"weight": deep})))
    with pytest.raises(UnsupportedError, match=r"root\.weight: a tensor of 65 dimensions"):
        ours.load(str(tmp_path / "deep.t7"))


def test_whole_models() -> None:
    """Models of the corpus load, with tensors that share a storage sharing memory."""
    for path in sorted((TESTFILES / "models").glob("*.t7")):
        if ".io." not in path.name and ".grad." not in path.name:
            assert isinstance(ours.load(str(path)), (ours.TorchObject, dict, list))
