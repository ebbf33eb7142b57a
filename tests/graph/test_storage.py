"""Storages: elements in a file, in text or in memory, in every byte order and width."""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest

from t7bridge import Storage
from t7bridge.errors import CorruptError, ModelError, TruncatedError, WriteError
from t7bridge.graph import (
    BY_LUA_WORD,
    CHUNK_BYTES,
    ELEMENT_TYPES,
    INT64,
    UINT8,
    Derived,
    Span,
    TextSpan,
    storage_for_class,
)
from t7bridge.io import ByteSource, FileOutput

NATIVE = [element for element in ELEMENT_TYPES.values() if element.native and element.name != "bool"]


def values(element) -> np.ndarray:
    """A few hundred elements of every byte pattern."""
    raw = np.random.default_rng(7).integers(0, 256, 300 * element.itemsize, "u1").tobytes()
    return np.frombuffer(raw, element.code)


def in_file(element, array: np.ndarray, order: str, tmp_path, pad: int = 3, name: str = "elements") -> Storage:
    """Return a storage whose bytes are in a file in that order, after `pad` bytes."""
    path = tmp_path / name
    sign = "<" if order == "little" else ">"
    path.write_bytes(bytes(pad) + array.astype(sign + element.code).tobytes() + b"tail")
    return Storage(element, len(array), Span(ByteSource.from_path(path), pad, element.itemsize, order))


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("element", NATIVE, ids=lambda element: element.name)
def test_file_in_either_order(element, order, tmp_path):
    """Elements in a file of either byte order have the same array, bytes, and CRC-32 of the little-endian bytes."""
    array = values(element)
    storage = in_file(element, array, order, tmp_path)
    little, big = array.astype("<" + element.code).tobytes(), array.astype(">" + element.code).tobytes()
    assert storage.array.tobytes() == array.tobytes()
    assert storage.array.dtype == element.code
    assert storage.array.dtype.isnative
    assert b"".join(storage.chunks("little")) == little
    assert b"".join(storage.chunks("big")) == big
    assert storage.crc32() == zlib.crc32(little)
    assert storage.nbytes == len(little)


@pytest.mark.parametrize("order", ["little", "big"])
def test_narrow_longs(order):
    """64-bit integers held as 4-byte longs are widened with their sign, and narrowed where they fit."""
    numbers = [-(2**31), -1, 0, 5, 2**31 - 1]
    raw = np.array(numbers, ("<" if order == "little" else ">") + "i4").tobytes()
    storage = Storage(INT64, 5, Span(ByteSource.from_bytes(raw), 0, 4, order))
    assert storage.array.tolist() == numbers
    assert storage.array.dtype == "i8"
    assert b"".join(storage.chunks(order, 4)) == raw
    assert b"".join(storage.chunks("little")) == np.array(numbers, "<i8").tobytes()
    assert storage.crc32() == zlib.crc32(np.array(numbers, "<i8").tobytes())
    assert storage.nbytes == 40


def test_narrowing_that_does_not_fit():
    """Narrowing refuses the first number that does not fit, with the bounds."""
    for number in (2**31, -(2**31) - 1):
        storage = Storage.from_array(np.array([0, number]))
        with pytest.raises(ModelError, match=rf"expected -2147483648 to 2147483647; found .*{abs(number)}"):
            list(storage.chunks("little", 4))


@pytest.mark.parametrize("size", [1, 100, CHUNK_BYTES // 4, CHUNK_BYTES + 12345])
@pytest.mark.parametrize("order", ["little", "big"])
def test_chunks_are_small(size, order, tmp_path):
    """Elements come in pieces of no more than 1 MiB, whole elements each, however many they are."""
    element = ELEMENT_TYPES["float32"]
    array = np.arange(size, dtype="f4")
    storage = in_file(element, array, "little", tmp_path)
    for held in (storage, Storage.from_array(array)):
        pieces = [bytes(piece) for piece in held.chunks(order)]
        assert all(0 < len(piece) <= CHUNK_BYTES and len(piece) % 4 == 0 for piece in pieces)
        assert b"".join(pieces) == array.astype(("<" if order == "little" else ">") + "f4").tobytes()


def test_text():
    """Numbers in text are parsed whatever white space is between them."""
    text = b"junk 1 2.5\n-3e2 inf\n nan junk"
    storage = Storage(ELEMENT_TYPES["float32"], 5, TextSpan(ByteSource.from_bytes(text), 5, len(text) - 10))
    assert storage.array.dtype == "f4"
    assert storage.array[:4].tolist() == [1, 2.5, -300, np.inf]
    assert np.isnan(storage.array[4])
    assert b"".join(storage.chunks()) == storage.array.astype("<f4").tobytes()
    assert storage.crc32() == zlib.crc32(storage.array.astype("<f4").tobytes())


@pytest.mark.slow
def test_long_text():
    """Text of several pieces is cut between numbers, never inside one."""
    numbers = np.arange(400_000, dtype="i8") * 1_000_003
    text = " ".join(map(str, numbers.tolist())).encode()
    assert len(text) > 3 * CHUNK_BYTES
    storage = Storage(INT64, len(numbers), TextSpan(ByteSource.from_bytes(text), 0, len(text)))
    assert (storage.array == numbers).all()
    assert b"".join(storage.chunks("big")) == numbers.astype(">i8").tobytes()


@pytest.mark.parametrize(("text", "count"), [(b"1 2 3", 2), (b"1 2 3", 4), (b"1 x 3", 3), (b"1 2.5 3", 3), (b"", 1)])
def test_text_that_is_not_its_numbers(text, count):
    """Too many numbers, too few, a word and a fraction are errors that name the place."""
    storage = Storage(INT64, count, TextSpan(ByteSource.from_bytes(text, "x.t7"), 0, len(text)))
    with pytest.raises(CorruptError, match=r"x\.t7: byte 0: a storage's text is not its numbers"):
        _ = storage.array
    with pytest.raises(CorruptError):
        list(storage.chunks())


def test_array_in_memory_is_shared():
    """An array that is wrapped is not copied, and can be written to through the storage."""
    array = np.zeros(3, "f4")
    storage = Storage.from_array(array)
    storage.array[1] = 5
    assert array.tolist() == [0, 5, 0]


def test_array_of_a_file_is_read_only(tmp_path):
    """An array whose bytes are a file's cannot be written to, so that no file changes by accident."""
    storage = in_file(ELEMENT_TYPES["float32"], np.arange(4, dtype="f4"), "little", tmp_path, pad=4)
    with pytest.raises(ValueError, match="read-only"):
        storage.array[0] = 1
    assert storage.array.base is not None


def test_unaligned_elements(tmp_path):
    """Elements at an odd place of a file are copied to a good one."""
    storage = in_file(ELEMENT_TYPES["float64"], np.arange(4.0), "little", tmp_path, pad=3)
    assert storage.array.flags.aligned
    assert storage.array.tolist() == [0, 1, 2, 3]


def test_file_that_became_shorter(tmp_path):
    """Elements that are gone are an error in every way of asking for them, not a crash."""
    storage = in_file(ELEMENT_TYPES["float32"], np.arange(40_000, dtype="f4"), "little", tmp_path)
    os.truncate(tmp_path / "elements", 100)
    for use in (lambda: storage.array, storage.crc32, lambda: list(storage.chunks("big"))):
        with pytest.raises(TruncatedError):
            use()


def test_empty():
    """A storage without elements has an empty array, no chunks and the CRC-32 of nothing."""
    for element in NATIVE:
        for storage in (
            Storage(element, 0, Span(ByteSource.from_bytes(b""), 0, element.itemsize)),
            Storage(element, 0, TextSpan(ByteSource.from_bytes(b""), 0, 0)),
            Storage.from_array(np.empty(0, element.code)),
        ):
            assert storage.array.dtype == element.code
            assert storage.array.shape == (0,)
            assert list(storage.chunks("big")) == []
            assert storage.crc32() == 0


def test_from_array_refuses():
    """An array of more dimensions, or of a type that no storage has, is refused."""
    with pytest.raises(ModelError, match="a 1-D array; found 2 dimensions"):
        Storage.from_array(np.zeros((2, 2)))
    for dtype in ("U3", "O", "M8[s]", "f8,i4"):
        with pytest.raises(ModelError, match="no storage holds"):
            Storage.from_array(np.zeros(2, dtype))


def test_class_names():
    """Class names and element types belong together, on the CPU and on a GPU."""
    for word, element in BY_LUA_WORD.items():
        assert storage_for_class(f"torch.{word}Storage") == (element, "cpu", None)
        assert Storage.from_array(np.empty(0, element.code)).lua_class == f"torch.{word}Storage"
    assert storage_for_class("torch.CudaTensor") == (ELEMENT_TYPES["float32"], "cuda:0", None)
    assert storage_for_class("torch.CudaFloatTensor") is None
    assert storage_for_class("torch.Storage") == (ELEMENT_TYPES["float64"], "cpu", "torch.Storage")
    assert storage_for_class("nn.Linear") is None
    other = Storage(UINT8, 0, np.empty(0, "u1"), device="cuda:3")
    assert other.lua_class == "torch.CudaByteStorage"
    assert Storage.from_array(np.empty(0, "c8")).lua_class is None


def written(storage: Storage, folder, order: str, width: int) -> bytes:
    """The bytes that an extent of a storage becomes in a file."""
    extent = storage.extent(order, width)
    assert extent is not None
    crcs: list[int] = []
    with FileOutput(folder / "out", force=True) as output:
        output.copy(extent, crcs.append)
    data: bytes = (folder / "out").read_bytes()
    assert crcs == [zlib.crc32(data)]
    assert extent.nbytes == len(data)
    return data


@pytest.mark.parametrize("held", ["<i4", ">i4", "<i8", ">i8"])
@pytest.mark.parametrize("wanted", ["<i4", ">i4", "<i8", ">i8"])
def test_longs_of_any_size_from_file_to_file(held, wanted, tmp_path):
    """Many longs are written as numpy writes them, whatever the two files' byte order and size of a long."""
    numbers = np.random.default_rng(5).integers(-(2**31), 2**31, 700_001)
    (tmp_path / "in").write_bytes(b"pad" + numbers.astype(held).tobytes())
    order, width = {"<": "little", ">": "big"}, int(held[2])
    with ByteSource.from_path(tmp_path / "in") as source:
        storage = Storage(INT64, len(numbers), Span(source, 3, width, order[held[0]]))
        assert written(storage, tmp_path, order[wanted[0]], int(wanted[2])) == numbers.astype(wanted).tobytes()


@pytest.mark.parametrize("count", [2, 200, 300, 500_000])
@pytest.mark.parametrize("order", ["little", "big"])
def test_longs_that_do_not_fit(count, order, tmp_path):
    """One number beyond 4 bytes, anywhere among few or many, is an error with the bounds, and leaves no file."""
    for number in (2**31, -(2**31) - 1, 2**32, -(2**63)):
        numbers = np.zeros(count, "i8")
        numbers[-1] = number
        storage = in_file(INT64, numbers, order, tmp_path)
        bounds = rf"expected -2147483648 to 2147483647; found .*{abs(number)}"
        if count < 1000:
            with pytest.raises(ModelError, match=bounds):
                list(storage.chunks("little", 4))
        else:
            with pytest.raises(WriteError, match=bounds):
                written(storage, tmp_path, "little", 4)
        assert os.listdir(tmp_path) == ["elements"]


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("name", ["float16", "int16", "float32", "float64", "complex64", "complex128", "uint8"])
def test_checked_elements_to_the_other_order(name, order, tmp_path):
    """Bytes with a CRC-32 in the file are checked as they are there, and written in any order."""
    element = ELEMENT_TYPES[name]
    array = np.random.default_rng(6).integers(0, 256, 1_600_000, "u1").view(element.code)
    storage = in_file(element, array, order, tmp_path)
    storage.data.crc = zlib.crc32(array.astype(("<" if order == "little" else ">") + element.code).tobytes())
    for other, sign in (("little", "<"), ("big", ">")):
        assert written(storage, tmp_path, other, element.itemsize) == array.astype(sign + element.code).tobytes()
    storage.data.crc ^= 1
    with pytest.raises(CorruptError, match="its bytes are damaged"):
        written(storage, tmp_path, "big", element.itemsize)


@pytest.mark.parametrize("order", ["little", "big"])
def test_derived_elements_from_file_to_file(order, tmp_path):
    """Elements computed from others, one by one, in groups, or in two steps, are written as they are computed."""
    array = np.arange(1_200_000, dtype="f4")
    storage = in_file(ELEMENT_TYPES["float32"], array, order, tmp_path)
    doubled = Storage(ELEMENT_TYPES["float64"], len(array), Derived(storage, lambda part: part * 2.0))
    summed = Storage(INT64, len(array) // 3, Derived(doubled, lambda part: part.reshape(-1, 3).sum(1).astype("i8"), 3))
    pairs = array.view("c8")
    complex_pairs = in_file(ELEMENT_TYPES["complex64"], pairs, order, tmp_path, name="pairs")
    conjugated = Storage(complex_pairs.element, len(pairs), Derived(complex_pairs, np.conj))
    for other, sign in (("little", "<"), ("big", ">")):
        assert written(doubled, tmp_path, other, 8) == (array.astype("f8") * 2).astype(sign + "f8").tobytes()
        assert written(conjugated, tmp_path, other, 8) == pairs.conj().astype(sign + "c8").tobytes()
        sums = (array.astype("f8").reshape(-1, 3).sum(1) * 2).astype(sign + "i8")
        assert written(summed, tmp_path, other, 8) == sums.tobytes()


def test_elements_without_an_extent(tmp_path):
    """Arrays, text, few elements to convert, and groups that do not come out have no extent."""
    array = np.arange(1_000_000, dtype="f4")
    storage = in_file(ELEMENT_TYPES["float32"], array, "little", tmp_path)
    assert Storage.from_array(array).extent() is None
    assert Storage(INT64, 3, TextSpan(ByteSource.from_bytes(b"1 2 3"), 0, 5)).extent() is None
    assert in_file(INT64, np.arange(5), "little", tmp_path).extent("little", 4) is None
    assert Storage(ELEMENT_TYPES["float32"], 333_333, Derived(storage, lambda part: part, 7)).extent() is None


def test_text_of_one_endless_word():
    """Text without a space for a whole chunk is no list of numbers; one that ends in time is."""
    endless = b"1" * (2 * CHUNK_BYTES)
    storage = Storage(INT64, 1, TextSpan(ByteSource.from_bytes(endless, "x.t7"), 0, len(endless)))
    with pytest.raises(CorruptError, match="is not a list of numbers") as caught:
        storage.crc32()
    assert caught.value.file == "x.t7"
    text = b"1 " * CHUNK_BYTES
    assert Storage(INT64, CHUNK_BYTES, TextSpan(ByteSource.from_bytes(text), 0, len(text))).array.sum() == CHUNK_BYTES
