"""The magic-number format of PyTorch 0.2 to 1.5, from files that are put together here."""

from __future__ import annotations

import io
import struct

import pytest
import torch
from pt_helpers import (
    PT,
    described,
    golden,
    saved,
    storage_id,
    tensor,
    text,
    torch_describe,
)

from t7bridge import PtReader
from t7bridge import open as open_document
from t7bridge.errors import CorruptError, TruncatedError, UnsupportedError
from t7bridge.graph import PythonObject

MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."


def legacy(value: bytes, keys: list[str], *storages: bytes) -> bytes:
    """A file in the magic-number format."""
    listed = b"\x80\x02](" + b"".join(map(text, keys)) + b"e."
    return MAGIC + b"\x80\x02" + value + b"." + listed + b"".join(storages)


def floats(*values: float) -> bytes:
    """Return a storage after the pickles: a count and the elements."""
    return struct.pack(f"<q{len(values)}f", len(values), *values)


def part(key: str, start: int, count: int) -> bytes:
    """Return the persistent id of a storage that is a part of another."""
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
    """Counts, keys and elements after the pickles must be those of the tensors."""
    code = tensor(storage_id("FloatStorage", "7", 2, tail=b"N"), 0, (2,), (1,))

    with pytest.raises(CorruptError, match="another size"):
        PtReader(legacy(code, ["7"], floats(1, 2, 3))).read()
    with pytest.raises(CorruptError, match="storages are missing"):
        PtReader(legacy(code, [])).read()
    with pytest.raises(CorruptError, match="no tensor has"):
        PtReader(legacy(code, ["7", "9"], floats(1, 2), floats(1))).read()
    with pytest.raises(TruncatedError):
        PtReader(legacy(code, ["7"], floats(1, 2)[:-1])).read()
    with pytest.raises(CorruptError, match="a protocol that no release used"):
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


@pytest.mark.parametrize("protocol", [1, 2, 3, 4])
def test_legacy_protocols(protocol):
    """The format is the same in every protocol that `torch.save` supports."""
    value = {"w": torch.arange(4.0), "s": "text"}
    data = saved(value, _use_new_zipfile_serialization=False, pickle_protocol=protocol)

    assert PtReader(data).kind == "legacy"
    assert torch_describe(value) == described(data)
    assert open_document(data).format == "pt"


def test_a_file_object_in_the_middle():
    """Reading starts at a file object's position, and the position stays."""
    file = io.BytesIO(b"head" + (PT / "nested.legacy.pt").read_bytes())
    file.seek(4)

    assert golden(PT / "nested.legacy.pt") == described(file)
    file = io.BytesIO(b"head" + (PT / "nested.pt").read_bytes())
    file.seek(4)
    with pytest.raises(UnsupportedError):
        PtReader(file)
