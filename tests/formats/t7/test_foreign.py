"""Files that are not `.t7`, whatever their names: the message identifies them."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
from helpers import corpus, name_of

from t7bridge import T7Reader
from t7bridge.errors import T7BridgeError, TruncatedError, UnknownFormatError
from t7bridge.formats import HEAD_BYTES, identify


def packed_zip() -> bytes:
    """A zip archive with a member."""
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    return output.getvalue()


def empty_zip() -> bytes:
    """A zip archive without members."""
    output = io.BytesIO()
    zipfile.ZipFile(output, "w").close()
    return output.getvalue()


def packed_tar() -> bytes:
    """A tar archive with a member."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        member = tarfile.TarInfo("storages")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))
    return output.getvalue()


def numpy_file() -> bytes:
    """An array as numpy saves it."""
    output = io.BytesIO()
    np.save(output, np.zeros(3))
    return output.getvalue()


def safetensors() -> bytes:
    """A safetensors file of one tensor."""
    head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(head).to_bytes(8, "little") + head + bytes(4)


FOREIGN = {
    "zip": (packed_zip(), "zip archive, as PyTorch 1.6"),
    "empty zip": (empty_zip(), "zip archive without members"),
    "pickle 2": (pickle.dumps({"a": 1}, 2), "a Python pickle"),
    "pickle 4": (pickle.dumps({"a": 1}, 4), "a Python pickle"),
    "html": (b"<!DOCTYPE html>\n<html><body>Quota exceeded</body></html>", "an HTML page.*Download the file again"),
    "html with space": (b"\n  <HTML>\n", "an HTML page"),
    "xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "an HTML page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "Git LFS pointer.*git lfs pull"),
    "gzip": (gzip.compress(b"x"), "gzip-compressed.*gunzip"),
    "bzip2": (b"BZh91AY&SY", "bzip2-compressed"),
    "xz": (lzma.compress(b"x"), "xz-compressed"),
    "7z": (b"7z\xbc\xaf\x27\x1c\x00\x04", "7-Zip"),
    "rar": (b"Rar!\x1a\x07\x00", "RAR"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5"),
    "tar": (packed_tar(), "tar archive"),
    "tar whose first name is the tag of a string": (b"\2\0\0\0" + packed_tar()[4:], "tar archive"),
    "tflite behind the tag of a number": (b"\1\0\0\0TFL3" + bytes(40), "TensorFlow Lite"),
    "npy": (numpy_file(), "numpy array"),
    "safetensors": (safetensors(), "safetensors"),
    "lua": (b"\x1bLJ\x02\x00", "Lua bytecode"),
    "json": (b'{"a": 1}', "JSON"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_file_is_named(name, tmp_path):
    """The error names the file, its kind, and the next step, if any."""
    data, message = FOREIGN[name]
    path = tmp_path / "model.t7"
    path.write_bytes(data)
    with pytest.raises(UnknownFormatError, match=rf"model\.t7: is not a \.t7 file but .*{message}"):
        T7Reader(path)
    with pytest.raises(UnknownFormatError, match=message):
        T7Reader(data)


def test_checkpoints_are_named(subtests):
    """Every PyTorch file of the corpus is recognized as one, not read as something else."""
    for path in corpus("pt/*.pt"):
        with subtests.test(name_of(path)), pytest.raises(UnknownFormatError, match=r"PyTorch|tar archive"):
            T7Reader(path)


@pytest.mark.slow
def test_no_t7_file_is_taken_for_another(subtests):
    """No file that Lua Torch wrote looks like another format."""
    for path in corpus("*/*.t7"):
        with subtests.test(name_of(path)):
            assert identify(path.read_bytes()[:HEAD_BYTES]) is None


def test_empty_file(tmp_path):
    """An empty file is called that."""
    path = tmp_path / "empty.t7"
    path.touch()
    with pytest.raises(TruncatedError, match=r"empty\.t7: is empty"):
        T7Reader(path)


def test_folder(tmp_path):
    """A folder is not a file."""
    with pytest.raises(T7BridgeError, match=r"is a folder|Is a directory"):
        T7Reader(tmp_path)


@pytest.mark.parametrize(
    "text", [b"import torch\n", b"# a comment\n", b"hello world", b"a,b\n1,2\n", b"\xef\xbb\xbf1\n"]
)
def test_other_text(text):
    """Text that is not a serialization is an error of the package."""
    with pytest.raises(T7BridgeError):
        T7Reader(text).read_object()


def test_stated_encoding_skips_the_look():
    """Whoever states the encoding gets just that: a stream may start with any bytes."""
    reader = T7Reader(b"PK\x03\x04", encoding="binary")
    assert reader.read_int() == 0x04034B50
