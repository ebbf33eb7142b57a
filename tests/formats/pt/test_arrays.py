"""Numpy's arrays and the limits of zip, against numpy, PyTorch and Python's zipfile."""

from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
import pytest
import torch

from t7bridge.formats.pt.arrays import read_header, tensor_of_array
from t7bridge.formats.pt.zip import WrittenMember, ZipWriter
from t7bridge.graph.dtypes import ELEMENT_TYPES
from t7bridge.graph.python import NumpyArray, NumpyDtype
from t7bridge.io.output import Output
from t7bridge.io.source import ByteSource


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_headers_of_all_versions(version):
    """The length of a header has two bytes in version 1, and four in later ones."""
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    data = file.getvalue()
    source, start = ByteSource.open(io.BytesIO(data))
    _, is_fortran, shape, place = read_header(source, start, len(data), "x.npy")
    assert (is_fortran, shape) == (False, (2, 3))
    assert data[place:] == array.tobytes()


def test_float32_becomes_bfloat16_as_in_pytorch():
    """Numbers half way between two of bfloat16 are rounded to the even one."""
    halves = (np.arange(0x3F80, 0x3F88, dtype="u4") << 16) + 0x8000
    around = np.concatenate([halves - 1, halves, halves + 1, halves | 0x80000000])
    values = np.concatenate([around.astype("<u4").view("<f4"), np.array([0, -0.0, np.inf, -np.inf], "<f4")])
    array = NumpyArray(NumpyDtype("f4", "<"), values.shape, False, values.tobytes())
    found = tensor_of_array(array, ELEMENT_TYPES["bfloat16"], "cpu")
    wanted = torch.from_numpy(values.copy()).to(torch.bfloat16).view(torch.int16).numpy().view("u2")
    assert np.array_equal(found.array, wanted)


@pytest.mark.parametrize(("size", "offset"), [(0xFFFFFFFF, 0), (0, 0xFFFFFFFF), (0xFFFFFFFE, 0xFFFFFFFE)])
def test_sizes_at_the_limit_of_32_bits(size, offset):
    """0xFFFFFFFF says that the number is in the field of zip64 (APPNOTE.TXT 4.4.8), so it cannot stand for itself."""
    file = io.BytesIO()
    output = Output(file)
    writer = ZipWriter(output)
    writer.members.append(WrittenMember("a/data/0", offset, size, is_complete=True))
    writer.finish()
    output.flush()
    (member,) = zipfile.ZipFile(file).infolist()
    assert (member.file_size, member.compress_size, member.header_offset) == (size, size, offset)
    numbers = [size, size] * (size == 0xFFFFFFFF) + [offset] * (offset == 0xFFFFFFFF)
    assert member.extra == (struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b"")
