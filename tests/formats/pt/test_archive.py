"""Zip archives: members at their offsets, deflated ones on demand, and no contradiction believed."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

import pytest
import torch
from helpers import corpus, name_of
from pt_helpers import PT, described, golden, members_of, saved, storage_id, tensor, torch_describe, zipped

from t7bridge import Limits, PtReader
from t7bridge.errors import CorruptError, FormatError, LimitError, TruncatedError, UnknownFormatError, UnsupportedError
from t7bridge.formats import RECORD_MEMBER, PtWriter, ZipArchive
from t7bridge.io import ByteSource
from t7bridge.values import describe_python

ZIPS = [path for path in corpus("pt/*.pt") if path.read_bytes()[:2] == b"PK"]
STATE = PT / "state_dict.pt"


def archive(data: bytes) -> ZipArchive:
    """An archive in memory."""
    return ZipArchive(ByteSource.from_bytes(data))


def central(data: bytes, name: str) -> int:
    """Offset of a member's entry in the directory."""
    return data.rindex(name.encode()) - 46


def patched(data: bytes, place: int, values: bytes) -> bytes:
    """Bytes with some of them replaced."""
    return data[:place] + values + data[place + len(values) :]


@pytest.mark.parametrize("path", ZIPS, ids=name_of)
def test_members_are_where_they_are(path):
    """Names, sizes, CRCs and bytes are those of Python's own reader; stored members are spans of the file."""
    reader = PtReader(path)
    data = path.read_bytes()
    theirs = members_of(data)

    assert set(theirs) == set(reader.members)
    for name, content in theirs.items():
        assert reader.members[name].size == len(content)
        if reader.members[name].method == zipfile.ZIP_STORED:
            start, length = reader.member_span(name)
            assert data[start : start + length] == content
    reader.verify()


@pytest.mark.slow
def test_deflated_members():
    """An archive that another tool deflated reads as the original does, big members too."""
    assert golden(STATE) == described(zipped(members_of(STATE.read_bytes()), zipfile.ZIP_DEFLATED))
    big = torch.zeros(9_000_000)
    big[::1000] = torch.arange(9000.0)
    data = zipped(members_of(saved({"w": big})), zipfile.ZIP_DEFLATED)

    assert len(data) < 1_000_000
    assert PtReader(data).read()["w"].numpy().tobytes() == big.numpy().tobytes()


def test_only_an_archive_has_a_hash():
    """Of a file that is no archive, the members are empty, and their hash is refused."""
    reader = PtReader(saved({"a": 1}, _use_new_zipfile_serialization=False))
    assert reader.members == {}
    with pytest.raises(UnsupportedError, match="not a zip archive"):
        assert reader.content_id


def test_any_root_folder():
    """The folder may have any name, be deep, or be missing."""
    members = members_of(STATE.read_bytes())
    for root in ("x/", "a/b/c/", "", "Grüße 世界/"):
        renamed = {root + name.partition("/")[2]: content for name, content in members.items()}
        assert golden(STATE) == described(zipped(renamed))


def test_other_members_in_front():
    """Members added to the archive by another tool do not hide the value."""
    members = {"README.txt": b"hello", "extra/notes.md": b"x", **members_of(STATE.read_bytes())}

    assert golden(STATE) == described(zipped(members))


def test_without_version_and_byteorder():
    """Members that third parties omit are optional."""
    members = members_of(STATE.read_bytes())
    needed = {name: content for name, content in members.items() if "data.pkl" in name or "/data/" in name}

    assert golden(STATE) == described(zipped(needed))


def test_extra_members():
    """A member below the root folder is found by its name, and only there."""
    reader = PtReader(zipped({**members_of(STATE.read_bytes()), "state_dict/.t7bridge/record": b"hello"}))

    assert reader.extra(".t7bridge/record") == b"hello"
    assert reader.extra("data.pkl") == members_of(STATE.read_bytes())["state_dict/data.pkl"]
    assert reader.extra("nothing") is None


def test_content_id():
    """The hash over an archive's value is its writer's, and changes with the value."""
    file = io.BytesIO()
    writer = PtWriter(file)
    writer.write({"a": [1, 2]})
    writer.finish(str.encode)
    reader = PtReader(file.getvalue())

    assert reader.extra(RECORD_MEMBER) == reader.content_id.encode()
    assert reader.content_id != PtReader(STATE).content_id


def test_storages_by_key():
    """A storage is found by its key: the very one that the tensors have."""
    reader = PtReader(STATE)
    key = sorted(name.rpartition("/")[2] for name in reader.members if "/data/" in name)[0]

    assert any(tensor.storage is reader.storage(key) for tensor in reader.read().values())
    with pytest.raises(CorruptError):
        reader.storage("nothing")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wrong_crc(method):
    """A changed byte of the pickle, or of any deflated member, is noticed when it is read; of a storage by `verify`."""
    data = zipped(members_of(STATE.read_bytes()), method)
    spoiled = patched(data, central(data, "state_dict/data.pkl") + 16, b"\1\2\3\4")
    local = spoiled.index(b"state_dict/data.pkl") - 30
    spoiled = patched(spoiled, local + 14, b"\1\2\3\4")

    with pytest.raises(CorruptError, match="CRC-32"):
        PtReader(spoiled).read()

    stored = STATE.read_bytes()
    start, _ = PtReader(stored).member_span("state_dict/data/0")
    reader = PtReader(patched(stored, start, bytes([stored[start] ^ 1])))
    reader.read()
    with pytest.raises(CorruptError, match="CRC-32"):
        reader.verify()


def test_archives_without_crcs():
    """PyTorch can be configured not to compute CRCs; it writes 0, which means none."""
    torch.serialization.set_crc32_options(False)
    try:
        value = {"w": torch.arange(5.0)}
        data = saved(value)
    finally:
        torch.serialization.set_crc32_options(True)
    PtReader(data).verify()

    assert torch_describe(value) == described(data)


CONTRADICTIONS = {
    "name": (0, lambda local: local + 30, b"x"),
    "method": (0, lambda local: local + 8, b"\x08\0"),
    "size": (0, lambda local: local + 22, b"\x01\0\0\0"),
    "packed size": (0, lambda local: local + 18, b"\x01\0\0\0"),
    "crc": (0, lambda local: local + 14, b"\1\2\3\4"),
    "signature": (0, lambda local: local, b"PK\1\1"),
    "extra length": (0, lambda local: local + 28, b"\xff\xff"),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_headers_that_contradict_the_directory(what):
    """A member's own header must agree with the directory."""
    _, place, values = CONTRADICTIONS[what]
    data = zipped(members_of(STATE.read_bytes()))
    local = data.index(b"state_dict/data.pkl") - 30

    with pytest.raises(FormatError):
        PtReader(patched(data, place(local), values)).read()


def test_overlapping_members():
    """Two members of one run of bytes are refused, wherever they overlap."""
    data = zipped({"a/data.pkl": b"N.", "a/version": b"3" * 100, "a/x": b"y" * 50})
    entry = central(data, "a/version")
    first = struct.unpack_from("<I", data, central(data, "a/data.pkl") + 42)[0]

    with pytest.raises(CorruptError, match="the same offset"):
        archive(patched(data, entry + 42, struct.pack("<I", first)))
    with pytest.raises(CorruptError, match="overlaps"):
        archive(patched(data, entry + 42, struct.pack("<I", first + 1)))
    with pytest.raises(CorruptError, match="overlaps"):
        archive(patched(data, entry + 20, struct.pack("<II", 500, 500)))


def test_a_member_that_stands_twice():
    """Two members of one name are refused: readers would not agree on which counts."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        out.writestr("a/data.pkl", b"N.")
        with pytest.warns(UserWarning, match="Duplicate"):
            out.writestr("a/data.pkl", b"K\x01.")

    with pytest.raises(CorruptError, match="twice"):
        PtReader(file.getvalue())


def test_encrypted_and_other_methods():
    """Files of other formats are named in the error."""
    data = zipped({"a/data.pkl": b"N."})
    entry, local = central(data, "a/data.pkl"), 0
    encrypted = patched(patched(data, entry + 8, b"\1\0"), local + 6, b"\1\0")
    other = patched(patched(data, entry + 10, b"\x0e\0"), local + 8, b"\x0e\0")

    with pytest.raises(UnsupportedError, match="encrypted"):
        PtReader(encrypted).read()
    with pytest.raises(UnsupportedError, match="method 14"):
        PtReader(other).read()


def test_deflate_bombs():
    """A member that would inflate to more than the file can justify is refused beforehand."""
    limits = Limits(inflate_bytes=1 << 20, inflate_ratio=10)
    data = zipped({"a/data.pkl": b"N" * 5_000_000}, zipfile.ZIP_DEFLATED)

    with pytest.raises(LimitError):
        PtReader(data, limits=limits).read()
    many = zipped({"a/data.pkl": b"N.", **{f"a/data/{n}": bytes(400_000) for n in range(4)}}, zipfile.ZIP_DEFLATED)
    with pytest.raises(LimitError):
        PtReader(many, limits=limits).verify()


def test_a_deflated_size_that_is_a_lie():
    """More or fewer bytes than in the directory are an error."""
    data = zipped({"a/data.pkl": b"N." + bytes(1000)}, zipfile.ZIP_DEFLATED)
    entry, local = central(data, "a/data.pkl"), 0
    for size in (1, 1001, 1003, 100_000, 0xFFFFFFF):
        lie = struct.pack("<I", size)
        with pytest.raises(CorruptError):
            PtReader(patched(patched(data, entry + 24, lie), local + 22, lie)).read()


def test_a_storage_that_is_too_short():
    """A tensor that needs more bytes than its member has is refused."""
    members = members_of(saved({"w": torch.arange(6.0)}))
    for content in (b"", b"1234", bytes(23)):
        with pytest.raises(TruncatedError, match="fewer bytes"):
            PtReader(zipped({**members, "archive/data/0": content})).read()
    del members["archive/data/0"]
    with pytest.raises(CorruptError, match="no member archive/data/0"):
        PtReader(zipped(members)).read()


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_big_endian_archives():
    """The elements of an archive from a big-endian machine are those that were saved.

    PyTorch reads the same, but for types without a storage class (complex32), which it forgets to swap.
    """
    value = {
        "f": torch.arange(6.0).view(2, 3),
        "i": torch.arange(3),
        "c": torch.tensor([1 + 2j, 3j]),
        "h": torch.tensor([1 + 2j, 3j]).to(torch.complex32),
        "b": torch.tensor([True, False]),
        "w": torch.tensor([1.5, -2.5]).to(torch.bfloat16),
    }
    widths = {"0": 4, "1": 8, "2": 4, "3": 2, "4": 1, "5": 2}
    members = members_of(saved(value))
    for key, width in widths.items():
        content = members[f"archive/data/{key}"]
        parts = [content[place : place + width][::-1] for place in range(0, len(content), width)]
        members[f"archive/data/{key}"] = b"".join(parts)
    data = zipped({**members, "archive/byteorder": b"big"})

    assert torch_describe(value) == described(data)
    theirs = torch.load(io.BytesIO(data))
    assert all(theirs[name].equal(value[name]) for name in value if name != "h")
    assert PtReader(data).read()["c"].numpy().tolist() == [1 + 2j, 3j]


def test_an_unknown_byte_order():
    """A byte order that is neither is refused."""
    with pytest.raises(CorruptError, match="byte order"):
        PtReader(zipped({**members_of(STATE.read_bytes()), "state_dict/byteorder": b"pdp"}))


def test_other_zip_archives():
    """A zip archive that is not PyTorch's is named with what is in it."""
    with pytest.raises(UnknownFormatError, match=r"xl/workbook\.xml"):
        PtReader(zipped({"xl/workbook.xml": b"<x/>"}))
    with pytest.raises(UnsupportedError, match=r"torch\.export"):
        PtReader(zipped({"x/archive_format": b"pt2", "x/version": b"0"})).read()
    with pytest.raises(UnknownFormatError, match="no members"):
        PtReader(zipped({}))


def test_huge_sparse_archive(tmp_path):
    """An archive of 6 GB with zip64 sizes opens by its directory only; no storage is read."""
    pickle = members_of(saved({"w": torch.zeros(3, dtype=torch.uint8)}))["archive/data.pkl"]
    count = 6 << 30
    pickle = pickle.replace(b"K\x03tq", b"\x8a\x05" + struct.pack("<Q", count)[:5] + b"tq", 1)
    path = tmp_path / "huge.pt"
    with open(path, "wb") as file:
        entries = b""
        for name, data, size in ((b"archive/data.pkl", pickle, len(pickle)), (b"archive/data/0", b"", count)):
            start, crc = file.tell(), zlib.crc32(data)
            wide = struct.pack("<HHQQ", 1, 16, size, size)
            head = struct.pack("<HHHHHIII", 45, 0, 0, 0, 0, crc, 0xFFFFFFFF, 0xFFFFFFFF)
            file.write(b"PK\3\4" + head + struct.pack("<HH", len(name), len(wide)) + name + wide + data)
            file.seek(size - len(data), 1)
            wide = struct.pack("<HHQQQ", 1, 24, size, size, start)
            tail = struct.pack("<HHHHHII", len(name), len(wide), 0, 0, 0, 0, 0xFFFFFFFF)
            entries += b"PK\1\2" + struct.pack("<H", 45) + head + tail + name + wide
        start = file.tell()
        file.write(entries)
        record = struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 2, 2, len(entries), start)
        file.write(b"PK\6\6" + record + b"PK\6\7" + struct.pack("<IQI", 0, start + len(entries), 1))
        file.write(b"PK\5\6" + struct.pack("<HHHHIIH", 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    tensor = PtReader(path).read()["w"]

    assert tensor.storage.nbytes == count
    assert path.stat().st_blocks < 1000


def test_every_truncation_of_an_archive():
    """An archive that ends anywhere before its end is an error that says so."""
    data = saved({"w": torch.arange(3.0)})
    for length in range(0, len(data), 7):
        with pytest.raises(FormatError):
            PtReader(data[:length]).read()


def test_describe_equals_after_deflate_of_everything():
    """All zip files of the corpus mean the same when another tool packs them again."""
    for path in ZIPS:
        packed = zipped(members_of(path.read_bytes()), zipfile.ZIP_DEFLATED)
        assert describe_python(PtReader(path).read()) == described(packed)


@pytest.mark.parametrize("count", [1, 100, 4000])
def test_padding_behind_an_archive(count):
    """Zeros behind the directory are padding, as PyTorch takes them; any other byte there is an error."""
    value = {"w": torch.arange(4.0)}
    data = saved(value)
    padded = data + bytes(count)
    assert torch.load(io.BytesIO(padded), weights_only=True)["w"].tolist() == value["w"].tolist()
    assert described(padded) == torch_describe(value)
    with pytest.raises(TruncatedError, match="the archive's directory is missing"):
        described(padded[:-1] + b"x")


@pytest.mark.parametrize("root", ["", "a/"])
def test_traced_inputs_have_no_elements(root):
    """The inputs of a traced module are read for names only: PyTorch does not write their storages."""
    inputs = b"\x80\x02" + tensor(storage_id("FloatStorage", "0", 4), 0, (4,), (1,)) + b"."
    members = {"data.pkl": b"\x80\x02K\1.", "traced_inputs.pkl": inputs, "version": b"3\n"}
    reader = PtReader(zipped({root + name: data for name, data in members.items()}))

    assert reader.read() == 1
    assert reader.read_others() == []
