"""Files cut at every byte, and files with every byte changed: errors of the package, or values, nothing else."""

from __future__ import annotations

import random

import pytest
from helpers import TESTFILES, corpus, storages

from t7bridge import T7Reader
from t7bridge.errors import FormatError, T7BridgeError
from t7bridge.values import describe_lua

CUT = [
    "format/checkpoint.t7",
    "format/view_unfold.big.t7",
    "format/view_unfold.long4.t7",
    "format/function_upvalues.t7",
    "format/table_mixed_keys.t7",
    "format/tds_hash.t7",
    "format/tds_vec.t7",
    "format/table_tensor_key.t7",
    "format/tensor_float_special.big.t7",
    "format/tensor_dim8.long4.t7",
    "legacy/function_type6.t7",
    "legacy/function_type7.t7",
    "legacy/unversioned_object.t7",
]
CUT_TEXT = [
    "format/checkpoint.ascii.t7",
    "format/storage_byte.ascii.t7",
    "format/string_utf8.ascii.t7",
    "format/tds_hash.ascii.t7",
    "format/table_mixed_keys.ascii.t7",
    "format/tensor_float_special.ascii.t7",
]
CHANGED = [*CUT[1:8], *CUT_TEXT[1:], "format/object_linear.t7", "format/shared_evens.ascii.t7"]


def use(value) -> None:
    """Everything that a caller does first with a value."""
    describe_lua(value)
    for storage in storages(value):
        _ = storage.array


def is_read(data: bytes) -> bool:
    """Return whether there is a value; errors that are not those of the package propagate."""
    try:
        use(T7Reader(data).read_object())
    except T7BridgeError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", CUT)
def test_binary_file_cut_at_every_byte(name):
    """A binary file that is cut anywhere is an error that names a byte inside what is left."""
    data = (TESTFILES / name).read_bytes()
    for length in range(len(data)):
        with pytest.raises(FormatError) as caught:
            T7Reader(data[:length]).read_object()
        assert caught.value.offset is None or caught.value.offset <= length


@pytest.mark.slow
@pytest.mark.parametrize("name", CUT_TEXT)
def test_ascii_file_cut_at_every_byte(name):
    """An ascii file that is cut is an error, or, where a number is cut and what is left is one too, a value."""
    data = (TESTFILES / name).read_bytes()
    survived = []
    for length in range(len(data)):
        try:
            use(T7Reader(data[:length], encoding="ascii").read_object())
            survived.append(length)
        except T7BridgeError:
            continue
    assert all(data[length - 1] in b"0123456789." for length in survived if length != len(data) - 1)
    assert survived[-1] == len(data) - 1


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGED)
def test_every_byte_changed(name):
    """A file with one changed byte is a value or an error of the package, for any byte."""
    data = bytearray((TESTFILES / name).read_bytes())
    choose = random.Random(name)
    read = tried = 0
    for place in range(len(data)):
        kept = data[place]
        for other in {0x00, 0xFF, kept ^ 1, kept ^ 0x80, choose.randrange(256)} - {kept}:
            data[place] = other
            read += is_read(bytes(data))
            tried += 1
        data[place] = kept
    assert 0 < read < tried


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_pieces_moved_about(seed):
    """Files with dropped, doubled and exchanged pieces are values or errors of the package."""
    choose = random.Random(seed)
    read = tried = 0
    for path in corpus("format/*.t7"):
        data = path.read_bytes()
        if len(data) > 20_000:
            continue
        for _ in range(4):
            left, right = sorted(choose.randrange(len(data) + 1) for _ in range(2))
            piece = data[left:right]
            for changed in (data[:left] + data[right:], data[:right] + piece + data[right:], piece + data[:left]):
                read += is_read(changed)
                tried += 1
    assert 0 < read < tried / 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_noise(seed):
    """Random bytes after a plausible start are an error or a value, in every encoding."""
    choose = random.Random(seed)
    read = 0
    for _ in range(2000):
        start = choose.choice(
            [b"\x03\0\0\0\x01\0\0\0", b"\x04\0\0\0\x01\0\0\0\x03\0\0\0V 1", b"3\n1\n", b"4\n1\n3\nV 1\n", b""]
        )
        tail = bytes(
            choose.choice(b"\0\0\0\0\x01\x02\x03\x04\x05\x08\n 1234V.\xff") for _ in range(choose.randrange(60))
        )
        read += is_read(start + tail)
    assert 0 < read < 1000
