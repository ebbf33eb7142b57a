"""Several values in one file, and the sources that can be read from and written to."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tempfile
import zipfile

import pytest
from bounds import bounded
from helpers import LAYOUTS, TESTFILES, corpus, description, lines, read, stated, written

from t7bridge import T7Layout, T7Reader, Table
from t7bridge.errors import CorruptError, IncompleteFileWarning, T7BridgeError, TruncatedError, WriteError
from t7bridge.formats import T7Writer, read_t7

STREAM = TESTFILES / "format" / "stream.t7"
LINEAR = TESTFILES / "format" / "object_linear.t7"


def test_stream_of_several_values():
    """The values of `stream.t7` are read one after another, and a later one refers to an object of an earlier one."""
    reader = T7Reader(STREAM, encoding="binary")
    assert reader.read_bool() is False
    assert reader.read_object()["hello"] == 123.0
    assert reader.read_int() == 456
    assert reader.read_long() == 2**40
    assert reader.read_float() == 0.5
    assert reader.read_double() == 0.25
    tensor = reader.read_object()
    assert tensor.numpy().tolist() == [1, 2, 3]
    assert reader.read_object()["again"] is tensor
    assert reader.at_end
    assert reader.position == STREAM.stat().st_size


def test_stream_with_nothing_stated():
    """A stream that starts with a flag instead of a type tag is read without any option too."""
    reader = T7Reader(STREAM)
    assert reader.read_bool() is False
    assert reader.read_object()["hello"] == 123.0
    assert reader.read_int() == 456
    assert reader.read_long() == 2**40


@pytest.mark.slow
@pytest.mark.parametrize("first_number", [0, 1])
def test_many_values_of_which_none_shows_the_layout(first_number):
    """Each is tried under the possible layouts, which must not take longer the more objects there are before it."""
    count = 20_000
    data = b"".join(struct.pack("<iiiidid", 3, first_number + place, 1, 1, 1.0, 1, 2.0) for place in range(count))
    with bounded(60):  # it took twice as much
        file = read_t7(data)
    assert len(file.roots) == len(file.objects) == count
    assert file.roots[-1][1] == 2


def test_written_stream_is_the_one_of_lua():
    """The writer's single methods write the bytes of Lua's `torch.DiskFile`."""
    reader = T7Reader(STREAM)
    output = io.BytesIO()
    writer = T7Writer(output)
    writer.write_bool(reader.read_bool())
    writer.write_object(reader.read_object())
    writer.write_int(reader.read_int())
    writer.write_long(reader.read_long())
    writer.write_float(reader.read_float())
    writer.write_double(reader.read_double())
    writer.write_object(reader.read_object())
    writer.write_object(reader.read_object())
    assert output.getvalue() == STREAM.read_bytes()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_single_methods_in_every_layout(layout):
    """Values written by single methods are read by single methods, in every layout."""
    layout = LAYOUTS[layout]
    output = io.BytesIO()
    writer = T7Writer(output, layout)
    table = Table.of({"x": 1})
    writer.write_bool(True)
    writer.write_short(-7)
    writer.write_int(2**31 - 1)
    writer.write_long(-(2**31))
    writer.write_float(0.1)
    writer.write_double(0.1)
    writer.write_string("Grüße\n")
    writer.write_string(b"")
    writer.write_raw(b"\x00 \n")
    writer.write_object(table)
    writer.write_object(Table.from_list([table]))
    reader = T7Reader(output.getvalue(), **stated(layout))
    assert reader.read_bool() is True
    assert reader.read_short() == -7
    assert reader.read_int() == 2**31 - 1
    assert reader.read_long() == -(2**31)
    assert reader.read_float() == pytest.approx(0.1, rel=1e-7)
    assert reader.read_double() == 0.1
    assert reader.read_string() == "Grüße\n".encode()
    assert reader.read_string() == b""
    assert reader.read_raw(3) == b"\x00 \n"
    first = reader.read_object()
    assert reader.read_object()[1] is first
    assert reader.at_end


def test_stream_in_ascii_by_hand():
    """In ascii every single value is a line of its own; raw bytes are followed by a line feed."""
    data = lines("""
        1
        456
        1099511627776
        0.5
        0.25
        5
        hello
        raw
    """)
    reader = T7Reader(data)
    assert reader.read_bool() is True
    assert (reader.read_int(), reader.read_long()) == (456, 2**40)
    assert (reader.read_float(), reader.read_double()) == (0.5, 0.25)
    assert reader.read_string() == b"hello"
    assert reader.read_raw(3) == b"raw"
    assert reader.at_end


@pytest.mark.parametrize("encoding", ["binary", "ascii"])
def test_integers_that_do_not_fit(encoding):
    """Also in ascii, where C would read another number without an error."""
    for bits, method in ((16, "write_short"), (32, "write_int"), (64, "write_long")):
        limit = 1 << (bits - 1)
        writer = T7Writer(io.BytesIO(), T7Layout(encoding=encoding))
        getattr(writer, method)(limit - 1)
        getattr(writer, method)(-limit)
        for value in (limit, -limit - 1):
            with pytest.raises(WriteError, match=f"{value} does not fit an? {bits // 8}-byte"):
                getattr(writer, method)(value)


def test_flag_that_is_no_flag():
    """A boolean that is neither 0 nor 1 is an error with the value found."""
    with pytest.raises(CorruptError, match=r"neither 0 nor 1; expected 0 or 1; found 456"):
        T7Reader(b"\xc8\x01\0\0", encoding="binary").read_bool()


def test_reading_on_behind_the_end():
    """Reading one value more than there are is an error that names the place."""
    reader = T7Reader(LINEAR)
    reader.read_object()
    with pytest.raises(TruncatedError, match=f"byte {LINEAR.stat().st_size:,}".replace(",", " ")):
        reader.read_object()


def test_sources():
    """A path as text, a path object, bytes, a bytearray, a memoryview and file objects result in the same value."""
    data = LINEAR.read_bytes()
    wanted = description(read(LINEAR))
    with LINEAR.open("rb") as buffered, open(LINEAR, "rb", buffering=0) as raw:
        for source in (str(LINEAR), data, bytearray(data), memoryview(data), io.BytesIO(data), buffered, raw):
            assert description(read(source)) == wanted


@pytest.mark.parametrize("rest", [struct.pack(">10i", 3, 1, 5, *[5, 1] * 3, 5), struct.pack("<5i", 3, 1, 5, 5, 1)])
def test_bytes_after_the_value_do_not_change_how_it_was_read(rest):
    """A value that is the same in every layout keeps the first; objects of what is cut off do not count."""
    content = read_t7(struct.pack("<2i", 2, 100) + b"x" * 100 + rest)
    assert content.layout == T7Layout()
    assert not content.objects
    with pytest.warns(IncompleteFileWarning):
        content.warn(1)


def test_file_object_at_a_position(tmp_path):
    """Reading starts at a file object's position, which stays; offsets in messages are the file's."""
    head = b"a header of our own\n"
    path = tmp_path / "with-header.t7"
    path.write_bytes(head + LINEAR.read_bytes())
    wanted = description(read(LINEAR))
    for file in (path.open("rb"), io.BytesIO(path.read_bytes())):
        with file:
            file.seek(len(head))
            reader = T7Reader(file)
            assert reader.position == len(head)
            assert description(reader.read_object()) == wanted
            assert reader.at_end
            assert file.tell() == len(head)


def test_file_object_may_be_closed(tmp_path):
    """The elements of a tensor can be read after the file object that it came from is closed, and deleted."""
    path = tmp_path / "linear.t7"
    path.write_bytes(LINEAR.read_bytes())
    with path.open("rb") as file:
        value = T7Reader(file).read_object()
    path.unlink()
    assert value["weight"].numpy().shape == (2, 3)


def test_with_closes_the_file(tmp_path):
    """A reader in a `with` statement closes its file at the end, as any file does."""
    with T7Reader(LINEAR) as reader:
        value = reader.read_object()
        assert value["weight"].numpy().shape == (2, 3)
    with pytest.raises(T7BridgeError, match=r"has been closed. Keep the reader open"):
        value["weight"].numpy()


@pytest.mark.parametrize("module", [gzip, bz2, lzma], ids=lambda module: module.__name__)
def test_compressed_file_objects(module, tmp_path):
    """An open compressed file is read decompressed, although its descriptor is that of the compressed file."""
    path = tmp_path / "packed"
    with module.open(path, "wb") as file:
        file.write(LINEAR.read_bytes())
    with module.open(path, "rb") as file:
        assert description(read(file)) == description(read(LINEAR))


def test_damaged_compressed_file_object(tmp_path):
    """A compressed file that is damaged is an error of the package."""
    path = tmp_path / "packed.gz"
    path.write_bytes(gzip.compress(LINEAR.read_bytes())[:-40])
    with gzip.open(path, "rb") as file, pytest.raises(T7BridgeError, match="cannot be read"):
        T7Reader(file)


def test_member_of_an_archive(tmp_path):
    """A member of a zip archive is a source."""
    path = tmp_path / "some.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(LINEAR, "linear.t7")
    with zipfile.ZipFile(path) as archive, archive.open("linear.t7") as member:
        assert description(read(member)) == description(read(LINEAR))


def test_temporary_file():
    """A file of `tempfile` can be written to and read from."""
    with tempfile.TemporaryFile() as file, tempfile.NamedTemporaryFile() as named:
        for target in (file, named):
            T7Writer(target).write_object(Table.of({"x": 1}))
            target.seek(0)
            assert read(target)["x"] == 1.0


def test_text_file_object():
    """A file object of text is refused with the way to open it."""
    with pytest.raises(T7BridgeError, match="binary mode"):
        T7Reader(io.StringIO("1\n5\n"))


@pytest.mark.parametrize("path", ["missing.t7", ""])
def test_missing_file(path, tmp_path):
    """A file that is not there is an error that names it."""
    with pytest.raises(T7BridgeError, match=r"cannot be read: No such file|is a folder|Is a directory"):
        T7Reader(tmp_path / path)


def test_closed_reader():
    """Elements of a reader that was closed are an error, not those of whatever file took the descriptor's number."""
    reader = T7Reader(LINEAR)
    weight = reader.read_object()["weight"]
    reader.close()
    with LINEAR.open("rb"), pytest.raises(T7BridgeError, match="has been closed"):
        weight.numpy()
    with pytest.raises(T7BridgeError, match="has been closed"):
        weight.storage.crc32()
    reader.close()


@pytest.mark.slow
def test_storages_in_another_place():
    """A stream without its storages' elements, with the storages given apart, is the value again."""
    for path in corpus("models/*.t7"):
        value = read(path)
        apart: list = []
        head = written(value, payloads=apart)
        reader = T7Reader(head, payloads=iter(apart), encoding="binary", byte_order="little", long_size=8)
        again = reader.read_object()
        assert reader.at_end
        assert written(again) == written(value)


def test_storages_that_do_not_fit():
    """Too few storages, or one of another type or count, are an error."""
    value = read(LINEAR)
    apart: list = []
    head = written(value, payloads=apart)
    options = {"encoding": "binary", "byte_order": "little", "long_size": 8}
    with pytest.raises(CorruptError, match="found none"):
        read(head, payloads=iter(apart[:1]), **options)
    with pytest.raises(CorruptError, match="storages do not match"):
        read(head, payloads=reversed(apart), **options)


SINGLE = {
    "write_int": (b"\1\0\0\0", 1),
    "write_short": (b"\1\0", 1),
    "write_long": (b"\1\0\0\0\0\0\0\0", 1),
    "write_float": (b"\0\0\x80\x3f", 1.0),
    "write_double": (b"\0\0\0\0\0\0\xf0\x3f", 1.0),
    "write_bool": (b"\1\0\0\0", True),
    "write_string": (b"\2\0\0\0ab", "ab"),
    "write_raw": (b"ab", b"ab"),
}


@pytest.mark.parametrize("method", SINGLE)
def test_single_values_are_in_the_file_at_once(method):
    """Bytes written by a method of the writer are in the file object when it returns, as with `torch.DiskFile`."""
    wanted, value = SINGLE[method]
    file = io.BytesIO()
    getattr(T7Writer(file), method)(value)
    assert file.getvalue() == wanted
