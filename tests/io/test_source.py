"""Random access to bytes: files that are read, mapped, shrink and are closed."""

from __future__ import annotations

import io
import os
import threading

import pytest

from t7bridge.errors import T7BridgeError, TruncatedError
from t7bridge.io import ByteSource

DATA = bytes(range(256)) * 300


@pytest.fixture
def path(tmp_path):
    """A file that holds `DATA`."""
    file = tmp_path / "data.bin"
    file.write_bytes(DATA)
    return file


@pytest.fixture(params=["file", "bytes"])
def source(request, path):
    """`DATA` in a file and in memory."""
    return ByteSource.from_path(path) if request.param == "file" else ByteSource.from_bytes(DATA)


def test_read(source):
    """Bytes come from their offset, fewer at the end and none after it."""
    assert source.size == len(DATA)
    assert source.read(0, 5) == DATA[:5]
    assert source.read(1000, 70_000) == DATA[1000:71_000]
    assert source.read(len(DATA) - 3, 10) == DATA[-3:]
    assert source.read(len(DATA) + 5, 10) == b""
    assert source.read(7, 0) == b""


def test_read_exact(source):
    """A missing byte is an error that names the part, the offset, and the bytes available."""
    assert source.read_exact(3, 4, "a name") == DATA[3:7]
    with pytest.raises(TruncatedError, match=r"the file ends inside a name; expected 9 bytes; found 4") as caught:
        source.read_exact(len(DATA) - 4, 9, "a name")
    assert caught.value.offset == len(DATA) - 4


def test_read_into(source):
    """A buffer is filled as far as there are bytes, and no further."""
    buffer = bytearray(b"." * 10)
    assert source.read_into(2, memoryview(buffer)) == 10
    assert buffer == DATA[2:12]
    buffer = bytearray(b"." * 10)
    assert source.read_into(len(DATA) - 4, memoryview(buffer)) == 4
    assert buffer == DATA[-4:] + b"." * 6


def mapping(path) -> ByteSource:
    """A source of which parts are memory maps."""
    source = ByteSource.from_path(path)
    source.maps = True
    return source


def test_view(source):
    """A view is the bytes that it was asked for."""
    assert bytes(source.view(100, 200)) == DATA[100:300]
    with pytest.raises(TruncatedError):
        source.view(len(DATA) - 1, 2)


def test_views_are_read(path):
    """What was read stays what it was when the file becomes shorter."""
    view = ByteSource.from_path(path).view(0, 300)
    os.truncate(path, 10)
    assert bytes(view) == DATA[:300]


def test_mapped_view_is_read_only(path):
    """A view of a memory map is the bytes of the file, and shows what others write to it."""
    view = mapping(path).view(100, 200)
    assert view.readonly
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"others'")
    assert bytes(view[:7]) == b"others'"


def test_mapped_view_outlives_its_source(path):
    """A view can be used after the source is closed, and after the file is deleted."""
    source = mapping(path)
    view = source.view(0, 300)
    source.close()
    path.unlink()
    del source
    assert bytes(view) == DATA[:300]


def test_bytes_in_memory_are_not_copied():
    """Bytes that are wrapped are the caller's, not a copy, and are not written to through a view."""
    data = bytearray(b"abc")
    source = ByteSource.from_bytes(data)
    data[0] = ord("x")
    assert source.read(0, 3) == b"xbc"
    assert source.view(0, 3).readonly


@pytest.mark.parametrize("left", [0, 10, 4096, len(DATA) - 1])
def test_file_that_became_shorter(left, path):
    """A file truncated after it was opened is an error in every way of reading, not a crash."""
    source = ByteSource.from_path(path)
    os.truncate(path, left)
    with pytest.raises(TruncatedError):
        source.read_exact(0, len(DATA), "its data")
    with pytest.raises(TruncatedError):
        source.view(0, len(DATA))
    with pytest.raises(TruncatedError):
        source.view(left, 1)
    assert source.read_into(0, memoryview(bytearray(len(DATA)))) == left


def test_file_that_became_shorter_after_it_was_mapped(path):
    """A file truncated after a part of it was mapped is an error for the missing part."""
    source = mapping(path)
    assert bytes(source.view(0, 10)) == DATA[:10]
    os.truncate(path, 10)
    with pytest.raises(TruncatedError):
        source.view(0, len(DATA))
    assert bytes(source.view(0, 10)) == DATA[:10]


def test_closed_source(path):
    """A closed source is an error in every way of reading, also when its descriptor's number is in use again."""
    source = ByteSource.from_path(path)
    source.close()
    source.close()
    with path.open("rb"):
        for use in (
            lambda: source.read(0, 1),
            lambda: source.read_exact(0, 1, "x"),
            lambda: source.read_into(0, memoryview(bytearray(1))),
            lambda: source.view(0, 1),
        ):
            with pytest.raises(T7BridgeError, match=r"data\.bin: byte 0: has been closed"):
                use()
    assert source.fd is None


def test_sources_close_themselves(path):
    """An unreferenced source closes its descriptor."""
    before = len(os.listdir("/dev/fd"))
    for _ in range(20):
        ByteSource.from_path(path).read(0, 1)
    assert len(os.listdir("/dev/fd")) == before
    with ByteSource.from_path(path) as source:
        assert source.read(0, 1) == b"\0"
    assert len(os.listdir("/dev/fd")) == before


def test_open(path):
    """`open` accepts any source, and starts at a file object's position."""
    source = ByteSource.from_path(path)
    assert ByteSource.open(source) == (source, 0)
    for given in (path, str(path), DATA, bytearray(DATA), memoryview(DATA), io.BytesIO(DATA)):
        opened, start = ByteSource.open(given)
        assert (opened.read(0, len(DATA)), start) == (DATA, 0)
    with path.open("rb") as file:
        file.seek(77)
        opened, start = ByteSource.open(file)
        assert (start, file.tell()) == (77, 77)
        assert opened.name == str(path)
        assert opened.fd is not None
    assert opened.read(start, 3) == DATA[77:80]


def test_open_bytesio_at_a_position():
    """A file object in memory keeps its position, and offsets are those of the whole."""
    file = io.BytesIO(DATA)
    file.seek(77)
    source, start = ByteSource.open(file)
    assert (start, file.tell()) == (77, 77)
    assert source.read(start, 3) == DATA[77:80]


def test_pipe():
    """A pipe, which has no positions, is read to its end."""
    reading, writing = os.pipe()

    def feed() -> None:
        with os.fdopen(writing, "wb") as file:
            file.write(DATA)

    thread = threading.Thread(target=feed)
    thread.start()
    with os.fdopen(reading, "rb") as file:
        source, start = ByteSource.open(file)
    thread.join()
    assert (source.read(0, len(DATA)), start) == (DATA, 0)


def test_closed_file_object(path):
    """A file object that was closed is an error of the package."""
    with path.open("rb") as file:
        pass
    with pytest.raises(T7BridgeError, match="cannot be read"):
        ByteSource.open(file)


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "device"])
def test_what_cannot_be_opened(kind, tmp_path):
    """A missing file, a folder, a named pipe and a device are errors with a name, at once and without waiting."""
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = "/dev/null"
    with pytest.raises(T7BridgeError, match=r"cannot be read|is not a regular file|is a folder"):
        ByteSource.from_path(path)


@pytest.mark.parametrize("wrong", [3, None, 1.5, ["a.t7"], object()])
def test_what_is_no_source(wrong):
    """Anything but a path, bytes or a file object is a `TypeError` that says so."""
    with pytest.raises(TypeError, match=f"a binary file object is required, not {type(wrong).__name__}"):
        ByteSource.open(wrong)


@pytest.mark.parametrize("data", [b"text", b"\xff\xfe\x80"])
def test_text_file_objects(tmp_path, data):
    """A file in text mode is named as such, whether its bytes are text or not."""
    (tmp_path / "a.t7").write_bytes(data)
    with (
        open(tmp_path / "a.t7", encoding="utf-8") as file,
        pytest.raises(T7BridgeError, match=r"a\.t7: is a text file object\. Open it in binary mode"),
    ):
        ByteSource.open(file)
