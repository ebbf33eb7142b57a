"""Damaged and hostile files: an error of the package that names file, byte and place, and nothing else."""

from __future__ import annotations

import pickle
import re

import pytest
from helpers import ASCII, BIG8, LAYOUTS, LITTLE4, LITTLE8, Parts, corpus, hexdump, lines, read, stated

from t7bridge import Limits, T7Reader
from t7bridge.errors import CorruptError, FormatError, LimitError, ModelError, T7BridgeError, TruncatedError


def refused(data: bytes, kind: type[T7BridgeError], layout=LITTLE8) -> T7BridgeError:
    """Return the error of reading with a given layout; it must be of the kind, and name byte and path."""
    with pytest.raises(kind) as caught:
        read(data, **stated(layout))
    error = caught.value
    assert error.file == "<bytes>"
    assert error.offset is not None
    assert 0 <= error.offset <= len(data)
    assert error.path.startswith("root")
    assert f"{error.file}: byte " in str(error)
    assert f"{error.path}: {error.message}" in str(error)
    return error


def tensor(layout, size, stride, offset: int, count: int, *, dimensions: int | None = None) -> Parts:
    """Return `{w = ByteTensor}` with the given view and count; the storage has `count` bytes, up to 64."""
    parts = Parts(layout).ints(3, 1, 1).string("w").torch(2, "torch.ByteTensor")
    parts.ints(len(size) if dimensions is None else dimensions).longs(*size).longs(*stride).longs(offset)
    parts.torch(3, "torch.ByteStorage").longs(count)
    return parts.raw(bytes(min(max(count, 0), 64)))


BAD_VIEWS = {
    "one element too many": ((5,), (1,), 1, 4, "reaches element 4, and the storage has 4"),
    "offset beyond the end": ((1,), (1,), 5, 4, "reaches element 4"),
    "offset 0": ((1,), (1,), 0, 4, "its offset is -1"),
    "offset far below": ((1,), (1,), -(2**31), 4, "its offset is"),
    "negative stride": ((2,), (-1,), 1, 4, "reaches element -1, before the first"),
    "negative size": ((-1,), (1,), 1, 4, "a size is negative"),
    "huge stride": ((2, 2), (2**31 - 1, 1), 1, 4, "reaches element"),
    "huge size": ((2**31 - 1,), (1,), 1, 4, "reaches element"),
    "empty storage": ((1,), (1,), 1, 0, "the storage has 0"),
    "negative size beside none": ((0, -5), (1, 1), 1, 4, "a size is negative"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BAD_VIEWS)
def test_view_outside_its_storage(name, layout):
    """A tensor that reaches outside its storage is refused with the element that it would reach."""
    size, stride, offset, count, message = BAD_VIEWS[name]
    error = refused(tensor(LAYOUTS[layout], size, stride, offset, count).data, CorruptError, LAYOUTS[layout])
    assert message in str(error)
    assert error.path == "root.w.storage"


@pytest.mark.parametrize("layout", [LITTLE8, BIG8, ASCII], ids=["little8", "big8", "ascii"])
def test_products_beyond_64_bits(layout):
    """Sizes and strides whose products overflow 64 bits are refused: a sum that wraps around is not a small one."""
    huge = 2**62
    for size, stride in (((huge, huge), (huge, huge)), ((3,), (huge,)), ((5,), (2**61 * 2,))):
        error = refused(tensor(layout, size, stride, 1, 4).data, CorruptError, layout)
        assert "reaches element" in str(error)


COUNTS = (2**62, 2**63 - 1, 2**32, 66, -1, -(2**63))


@pytest.mark.parametrize("layout", [LITTLE8, BIG8, ASCII], ids=["little8", "big8", "ascii"])
@pytest.mark.parametrize("count", COUNTS)
def test_storage_counts(count, layout):
    """A storage that claims more elements than the file has bytes, or fewer than none, is refused at once."""
    kind = CorruptError if count < 0 else TruncatedError
    error = refused(tensor(layout, (1,), (1,), 1, count).data, kind, layout)
    assert str(count) in error.found
    assert error.path == "root.w.storage"


@pytest.mark.parametrize("name", ["tds.Hash", "tds.Vec"])
@pytest.mark.parametrize("count", [2**62, 2**40, 9, -1])
def test_tds_counts(name, count):
    """The count of a tds collection is checked like any other."""
    data = Parts(LITTLE8).torch(1, name, 0).longs(count).number(1).data
    error = refused(data, CorruptError if count < 0 else TruncatedError)
    assert str(count) in str(error)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [2**31 - 1, 100, -1, -(2**31)])
def test_table_counts(count, layout):
    """A table that claims more entries than there can be, or fewer than none, is refused at once."""
    data = Parts(LAYOUTS[layout]).ints(3, 1, 1).number(1).ints(3, 2, count).number(1).data
    error = refused(data, CorruptError if count < 0 else TruncatedError, LAYOUTS[layout])
    assert error.path == "root[1]"
    assert "entries of a table" in error.message


@pytest.mark.parametrize(("rest", "most"), [(b"1 2", 2), (b"1 2 ", 2), (b"1 2 3", 3), (b"1", 1)])
def test_count_that_ascii_could_hold(rest, most):
    """The error says how many numbers fit into the rest of a text: no space follows the last one."""
    table_of_nine_entries = b"3\n1\n9\n"
    error = refused(table_of_nine_entries + rest, TruncatedError, ASCII)
    assert error.expected.startswith(f"at most {most} in the {len(rest)} byte")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("length", [2**31 - 1, 9, -1])
def test_string_lengths(length, layout):
    """The length of a string, of bytecode, of a version and of a class name is checked before anything is read."""
    layout = LAYOUTS[layout]
    for data in (
        Parts(layout).ints(2, length).raw(b"12345678").data,
        Parts(layout).ints(8, 1, length).raw(b"12345678").data,
        Parts(layout).ints(4, 1, length).raw(b"12345678").data,
        Parts(layout).ints(4, 1).text("V 1").ints(length).raw(b"12345678").data,
        Parts(layout).ints(3, 1, 1, 2, length).raw(b"12345678").data,
    ):
        if layout is ASCII and length == 9:  # the line feed behind is the ninth byte
            continue
        refused(data, CorruptError if length < 0 else TruncatedError, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dimensions", [-1, 2**31 - 1, 1001])
def test_numbers_of_dimensions(dimensions, layout):
    """A number of dimensions that no tensor has is refused."""
    layout = LAYOUTS[layout]
    error = refused(tensor(layout, (1,), (1,), 1, 1, dimensions=dimensions).data, CorruptError, layout)
    assert str(dimensions) in error.found
    data = tensor(layout, (1,) * 1000, (1,) * 1000, 1, 1).data
    assert len(read(data, **stated(layout))["w"].size) == 1000
    with pytest.raises(CorruptError):
        read(tensor(layout, (1,) * 9, (1,) * 9, 1, 1).data, limits=Limits(dimensions=8), **stated(layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tag", [9, 10, -1, 2**31 - 1, 255])
def test_tags_that_do_not_exist(tag, layout):
    """A type tag beyond 8 is refused with its place and its number."""
    layout = LAYOUTS[layout]
    head = Parts(layout).ints(3, 1, 1).string("deep").data
    error = refused(Parts(layout).raw(b"").data + head + Parts(layout).ints(tag, 0, 0, 0).data, CorruptError, layout)
    assert error.path == "root.deep"
    assert error.message == f"unknown type tag {tag}"
    if layout is not ASCII:
        assert error.offset == len(head)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_booleans(layout):
    """A boolean that is neither 0 nor 1 is refused, alone, as a key and as a value."""
    layout = LAYOUTS[layout]
    for parts in (
        Parts(layout).ints(5, 2),
        Parts(layout).ints(3, 1, 1).ints(5, -1).ints(5, 1),
        Parts(layout).ints(3, 1, 1).ints(5, 1).ints(5, 256),
    ):
        assert "a boolean is neither 0 nor 1" in str(refused(parts.data, CorruptError, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_impossible_keys(layout):
    """nil and nan are not keys of a table."""
    layout = LAYOUTS[layout]
    nil = Parts(layout).ints(3, 1, 1).ints(0).number(1).data
    nan = Parts(layout).ints(3, 1, 1).number(float("nan")).number(1).data
    assert "a table key is nil" in str(refused(nil, CorruptError, layout))
    assert "a table key is nan" in str(refused(nan, CorruptError, layout))
    assert "a table key is nil" in str(
        refused(Parts(layout).torch(1, "tds.Hash", 0).longs(1).ints(0).number(1).data, CorruptError, layout)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reference_of_another_kind(layout):
    """A reference whose tag is not that of the object it names is refused."""
    layout = LAYOUTS[layout]
    table_as_torch = Parts(layout).ints(3, 1, 1).number(1).ints(4, 1).data
    torch_as_table = Parts(layout).torch(1, "nn.Tanh").ints(3, 1).data
    function_as_table = Parts(layout).ints(8, 1).text(b"code").ints(3, 1).data
    old_function_as_new = Parts(layout).ints(7, 1).text(b"code").ints(8, 1).data
    for data, wanted in (
        (table_as_torch, "expected a table; found a Torch object"),
        (torch_as_table, "expected a Torch object; found a table"),
        (function_as_table, "expected a function; found a table"),
        (old_function_as_new, "expected a function (2014 to 2015); found a function"),
    ):
        assert f"a reference to object 1 has the wrong type; {wanted}" in str(refused(data, CorruptError, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", [3, 1000, 0, -1, -(2**31), 2**31 - 1])
def test_reference_to_nothing(number, layout):
    """A number that is neither that of an earlier object nor the next one is refused."""
    layout = LAYOUTS[layout]
    if number == 0:
        data = Parts(layout).ints(3, 1, 1).number(1).ints(3, 2, 1).number(1).ints(3, 0, 0).data
    else:
        data = Parts(layout).ints(3, 1, 1).number(1).ints(3, number, 0).data
    error = refused(data, CorruptError, layout)
    assert error.found == str(number)
    assert error.path.startswith("root[1]")


def test_numbers_from_0():
    """Writers that count objects from 0 are read, and their numbers are kept."""
    data = Parts(LITTLE8).ints(3, 0, 2).number(1).ints(3, 1, 0).number(2).ints(3, 0).data
    reader = T7Reader(data)
    table = reader.read_object()
    assert table[2] is table
    assert reader.layout.numbers == (0, 1)


def test_numbers_from_0_before_an_error():
    """Under several possible layouts, too, the objects before an error keep their numbers, and can be referred to."""
    data = Parts(LITTLE8).ints(3, 0, 1).number(1).ints(3, 1, 1).number(1).ints(99).ints(3, 1).data + bytes(20)
    reader = T7Reader(data)
    with pytest.raises(CorruptError, match="unknown type tag 99"):
        reader.read_object()
    assert reader.layout.numbers == (0, 1)
    assert reader.read_object() is reader.objects[1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_storage_of_another_type(layout):
    """A tensor's storage must be a storage, and of the tensor's element type."""
    layout = LAYOUTS[layout]

    def head() -> Parts:
        return Parts(layout).torch(1, "torch.FloatTensor").ints(0).longs(1)

    double = head().torch(2, "torch.DoubleStorage").longs(0).data
    itself = head().ints(4, 1).data
    table = head().ints(3, 2, 0).data
    module = head().torch(2, "nn.Tanh").ints(3, 3, 0).data
    for data, found in ((double, "a storage of float64"), (itself, "Tensor"), (table, "Table"), (module, "nn.Tanh")):
        error = refused(data, CorruptError, layout)
        assert (error.message, error.found) == ("a tensor's storage is another object", found)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("version", ["V ", "V x", "V -1", "V 1.5", "V 1 ", "V 1000000000", "V 99999999999", "V \xb2"])
def test_versions(version, layout):
    """`V ` must be followed by a number."""
    layout = LAYOUTS[layout]
    data = Parts(layout).ints(4, 1).text(version.encode("latin-1")).text("nn.Tanh").ints(3, 2, 0).data
    assert "is not a class version" in str(refused(data, CorruptError, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [b"", b"\0", b"nn.Tanh\0", b"nn\n.Tanh", b"\xff\xfe", b"\x1bLJ\x01"])
def test_class_names(name, layout):
    """A class name that is empty or not printable is not a class name."""
    layout = LAYOUTS[layout]
    data = Parts(layout).ints(4, 1).text("V 1").text(name).ints(3, 2, 0).data
    assert "is not a class name" in str(refused(data, CorruptError, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_object_without_fields(layout):
    """An object of a plain class that is followed by anything but a table is refused with a hint."""
    layout = LAYOUTS[layout]
    for parts in (Parts(layout).torch(1, "my.Class").number(1), Parts(layout).torch(1, "my.Class").ints(0)):
        error = refused(parts.data, CorruptError, layout)
        assert "my.Class is not followed by a table" in error.message
        assert "register_class" in error.hint


def test_tag_behind_a_misread_class_is_explained():
    """If reading fails inside an object, the hint names its class, whose layout may be unknown."""
    data = Parts(LITTLE8).torch(1, "my.Class").ints(3, 2, 1).string("a").ints(77).data
    error = refused(data, CorruptError)
    assert "my.Class" in error.hint
    assert error.path == "root.a"


def test_the_path_names_every_step():
    """The path to the error passes through objects, tables, collections, keys and functions."""
    parts = Parts(LITTLE8).torch(1, "nn.Sequential").ints(3, 2, 1).string("modules").ints(3, 3, 2)
    parts.number(1).number(0).number(2).torch(4, "tds.Vec", 0).longs(2).number(7).torch(5, "tds.Hash", 0).longs(1)
    parts.string("odd key").ints(8, 6).text(b"code").ints(3, 7, 1).number(1).ints(99, 0, 0)
    error = refused(parts.data, CorruptError)
    assert error.path == "root.modules[2][2]['odd key']<upvalues>[1]"
    parts = Parts(LITTLE8).ints(3, 1, 1).ints(99, 0, 0, 0)
    assert refused(parts.data, CorruptError).path == "root<key 1>"


def test_message_names_the_file(tmp_path):
    """A message starts with the file, the byte with spaces between thousands, and the place."""
    path = tmp_path / "broken.t7"
    head = Parts(LITTLE8).ints(3, 1, 2).string("text").string(b"x" * 5000).string("w").data
    path.write_bytes(head + Parts(LITTLE8).ints(99, 0, 0, 0).data)
    with pytest.raises(CorruptError, match=re.escape(f"{path}: byte 5,041, root.w: unknown type tag 99")):
        read(path)
    assert len(head) == 5041


def test_error_of_the_likeliest_layout():
    """If no layout fits, the error is that of the layout that came furthest, not that of the last one tried."""
    good = corpus("format/checkpoint.long4.t7")[0].read_bytes()
    with pytest.raises(TruncatedError) as caught:
        read(good[:-3])
    assert caught.value.offset > len(good) - 100


def test_reader_after_an_error():
    """After an error the reader is where the value starts, and its layout is the one that came furthest."""
    data = Parts(LITTLE4).torch(1, "torch.IntStorage").longs(4).elements("i", 1, 2, 3).data
    reader = T7Reader(data, byte_order="little", long_size=4)
    with pytest.raises(TruncatedError):
        reader.read_object()
    assert reader.layout.long_size == 4


def test_layout_that_does_not_exist():
    """A stated encoding, byte order or size of long that does not exist is refused."""
    for options in ({"encoding": "utf-8"}, {"byte_order": "middle"}, {"long_size": 2}):
        with pytest.raises(ModelError, match="unknown"):
            T7Reader(b"\0\0\0\0", **options)


@pytest.mark.parametrize("options", [{"encoding": "ascii"}, {"byte_order": "big"}, {"long_size": 4}], ids=str)
def test_wrongly_stated_layout(options):
    """A layout that is stated counts, even where it is wrong: the error is one of the package."""
    with pytest.raises(FormatError):
        read(corpus("format/checkpoint.t7")[0], **options)


def test_text_with_other_white_space():
    """In ascii any white space separates numbers, as for C's scanf, including carriage returns."""
    data = lines("""
        4
        1
        3
        V 1
        16
        torch.IntStorage
        3
    """)
    for numbers in (b"1  2\t3\r\n", b" 1\n2\n 3", b"\n\n1 2\f3\n", b"1\v2 3 \n"):
        assert T7Reader(data + numbers).read_object().array.tolist() == [1, 2, 3]


@pytest.mark.parametrize("junk", [b"1 2 x\n", b"1 2 3x\n", b"1 2 \xff\n", b"1 2 (\n", b"1 2\0 3\n"])
def test_text_that_is_no_number(junk):
    """Anything but numbers among a storage's numbers is refused, at once or when they are wanted."""
    data = b"4\n1\n3\nV 1\n16\ntorch.IntStorage\n3\n" + junk
    with pytest.raises(FormatError):
        _ = read(data).array


def test_too_many_numbers_in_text():
    """A line with more numbers than the count leaves the rest, which then is not a type tag."""
    data = b"3\n1\n1\n4\n2\n3\nV 1\n16\ntorch.IntStorage\n2\n1 2 3\n5\n1\n"
    refused(data, FormatError, ASCII)


def test_errors_cross_processes():
    """An error can be pickled with all its fields."""
    error = refused(Parts(LITTLE8).ints(3, 1, 1).string("w").ints(99, 0, 0, 0).data, CorruptError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is CorruptError
    assert str(again) == str(error)
    assert (again.offset, again.path, again.hint) == (error.offset, error.path, error.hint)


def test_limit_error_is_a_format_error():
    """One `except` catches everything that a hostile file can cause."""
    for kind in (TruncatedError, CorruptError, LimitError):
        assert issubclass(kind, FormatError)
        assert issubclass(kind, ValueError)
        assert issubclass(kind, T7BridgeError)
    assert issubclass(TruncatedError, EOFError)


def test_view_that_numpy_cannot_hold():
    """A legal view with more elements than an array can have is an error when it is wanted as an array."""
    data = tensor(LITTLE8, (2**62, 2**62), (0, 0), 1, 4).data
    expanded = read(data)["w"]
    assert expanded.numel == 2**124
    with pytest.raises(T7BridgeError, match="numpy has no array"):
        expanded.numpy()
    none = read(tensor(LITTLE8, (2**62, 0, 2**62), (0, 0, 0), 1, 4).data)["w"]
    with pytest.raises(T7BridgeError, match="numpy has no array"):
        none.numpy()
    many = read(tensor(LITTLE8, (1,) * 100, (1,) * 100, 1, 4).data)["w"]
    with pytest.raises(T7BridgeError, match="numpy has no array"):
        many.numpy()


def test_hex_helper():
    """The helper of these tests drops comments and keeps text unchanged."""
    assert hexdump("03 00  # three\n> V 1\n\n FF") == b"\x03\x00V 1\xff"
