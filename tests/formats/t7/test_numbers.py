"""Numbers at the edges: in binary every bit is kept, in ascii the output of C's printf is read and written."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from helpers import (
    ASCII,
    BIG4,
    BIG8,
    LAYOUTS,
    LITTLE4,
    LITTLE8,
    Parts,
    check_read_write,
    corpus,
    lines,
    read,
    stated,
    written,
)

from t7bridge import Storage, T7Layout, T7Reader, Table, Tensor
from t7bridge.errors import CorruptError, WriteError
from t7bridge.graph import FLOAT32

# A double and the text that C's `%.17g` prints for it.
DOUBLES = [
    ("0", 0.0),
    ("-0", -0.0),
    ("1", 1.0),
    ("0.10000000000000001", 0.1),
    ("-0.33333333333333331", -1 / 3),
    ("inf", math.inf),
    ("-inf", -math.inf),
    ("nan", math.nan),
    ("-nan", math.copysign(math.nan, -1.0)),
    ("4.9406564584124654e-324", 5e-324),
    ("2.2250738585072009e-308", 2.225073858507201e-308),
    ("1.7976931348623157e+308", 1.7976931348623157e308),
    ("9007199254740992", 2.0**53),
    ("9.2233720368547758e+18", 2.0**63),
    ("1e+17", 1e17),
    ("10000000000000000", 1e16),
    ("1.0000000000000001e-05", 1e-5),
    ("0.0001", 0.0001),
]


def bits(value: float) -> bytes:
    """The bytes of a double, which tell -0 from 0 and one nan from another."""
    return struct.pack("<d", value)


@pytest.mark.parametrize(("text", "value"), DOUBLES)
def test_double(text, value):
    """A double keeps every bit in binary, and its sign, nan's too, in ascii."""
    for layout in LAYOUTS.values():
        assert bits(read(written(value, layout), **stated(layout))) == bits(value)
    assert written(value, ASCII) == b"1\n%s\n" % text.encode()
    assert bits(check_read_write(b"1\n%s\n" % text.encode())) == bits(value)


@pytest.mark.parametrize(("text", "value"), DOUBLES)
def test_double_storage_in_ascii(text, value):
    """The same in a DoubleStorage."""
    data = b"4\n1\n3\nV 1\n19\ntorch.DoubleStorage\n2\n%s 1\n" % text.encode()
    storage = check_read_write(data)
    assert bits(float(storage.array[0])) == bits(value)
    assert written(Storage.from_array(np.array([value, 1.0])), ASCII) == data


def test_nan_payload_in_binary():
    """The payload of a nan is kept in binary: it is not the machine's own nan."""
    data = b"\x01\0\0\0" + bytes.fromhex("01000000BADCF8FF")
    assert written(read(data)) == data


def test_floats_in_ascii():
    """Floats are printed with 9 digits, which bring back every float32 exactly."""
    values = np.array([0.1, 1 / 3, 3.4028234663852886e38, 1.401298464324817e-45, -0.0, np.inf, -np.inf], "f4")
    data = written(Storage.from_array(values), ASCII)
    line = b"0.100000001 0.333333343 3.40282347e+38 1.40129846e-45 -0 inf -inf\n"
    assert data == b"4\n1\n3\nV 1\n18\ntorch.FloatStorage\n7\n" + line
    assert read(data).array.tobytes() == values.tobytes()


@pytest.mark.parametrize(("dtype", "word"), [("f4", "Float"), ("f2", "Half")])
def test_all_exponents_in_ascii(dtype, word):
    """Floats and halfs of every exponent and sign come back from ascii bit by bit."""
    patterns = np.arange(0, 2**32, 99_991, dtype="u8") if dtype == "f4" else np.arange(2**16, dtype="u8")
    values = patterns.astype(f"u{dtype[1]}").view(dtype)
    values = values[~np.isnan(values)]
    storage = read(written(Storage.from_array(values), ASCII))
    assert storage.lua_class == f"torch.{word}Storage"
    assert storage.array.tobytes() == values.tobytes()


def test_nan_sign_of_floats_in_ascii():
    """nan and -nan in a FloatStorage keep their sign both ways."""
    data = b"4\n1\n3\nV 1\n18\ntorch.FloatStorage\n2\nnan -nan\n"
    storage = check_read_write(data)
    assert np.signbit(storage.array).tolist() == [False, True]
    assert written(Storage.from_array(storage.array), ASCII) == data


def test_nan_sign_among_many_numbers():
    """A nan among numbers that are printed all at once keeps its sign too, as glibc's `%.17g` prints it."""
    numbers = " ".join(["0.5", "-nan", "nan", *["0.25"] * 40])
    data = f"4\n1\n3\nV 1\n19\ntorch.DoubleStorage\n43\n{numbers}\n".encode()
    assert written(Storage.from_array(read(data).array), ASCII) == data


def test_halves_have_one_nan():
    """A nan of a HalfStorage in text is 0x7fff, as Lua Torch reads it, and every nan is written without a sign."""
    data = b"4\n1\n3\nV 1\n17\ntorch.HalfStorage\n5\nnan -nan 0.5 inf nan\n"
    assert read(data).array.view("u2").tolist() == [0x7FFF, 0x7FFF, 0x3800, 0x7C00, 0x7FFF]
    storage = Storage.from_array(np.array([0x7FFF, 0xFFFF, 0x3800, 0x7C00, 0xFE00], "u2").view("f2"))
    assert written(storage, ASCII) == data.replace(b"-", b"")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_storage_extremes(layout):
    """A LongStorage holds every 64-bit integer; 4-byte longs hold 32 bits, and more is refused with the way out."""
    layout = LAYOUTS[layout]
    wide = Storage.from_array(np.array([-(2**63), 2**63 - 1, 2**53 + 1, 0, -1], "i8"))
    narrow = Storage.from_array(np.array([-(2**31), 2**31 - 1, 0, -1], "i8"))
    again = read(written(narrow, layout), **stated(layout))
    assert again.array.tolist() == narrow.array.tolist()
    assert again.array.dtype == "i8"
    if layout.encoding == "binary" and layout.long_size == 4:
        with pytest.raises(WriteError, match=r"beyond 4-byte longs.*--long-size 8"):
            written(wide, layout)
    else:
        assert read(written(wide, layout), **stated(layout)).array.tolist() == wide.array.tolist()


@pytest.mark.parametrize("layout", [LITTLE4, BIG4])
@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_one_long_too_many(layout, number):
    """One number beyond 4 bytes among a hundred thousand is found and named, with its place in the value."""
    numbers = np.zeros(200_000, "i8")
    numbers[-1] = number
    with pytest.raises(WriteError, match=rf"root\.a\.storage.*{abs(number)}"):
        written(Table.of({"a": Tensor.from_numpy(numbers)}), layout)


def test_stride_beyond_4_byte_longs():
    """A stride that 4-byte longs cannot hold is refused, although the view is a legal one."""
    storage = Storage.from_array(np.zeros(1, "f4"))
    tensor = Tensor(FLOAT32, storage, (1,), (2**40,))
    assert read(written(tensor, LITTLE8)).stride == (2**40,)
    with pytest.raises(WriteError, match=r"1099511627776 does not fit a 4-byte long\. Write 8-byte longs"):
        written(tensor, LITTLE4)


def test_corpus_numbers():
    """Lua's list of special numbers is the same in both encodings, as Lua wrote them."""
    for path in corpus("format/number_special*.t7"):
        values = read(path).as_list()
        assert math.isnan(values[0])
        assert values[1:] == [math.inf, -math.inf, -0.0, 2.0**53, 2.0**63, 5e-324, 1.7976931348623157e308]
        assert math.copysign(1.0, values[3]) == -1.0


def test_integer_that_is_no_double():
    """An integer that no double equals is refused; one that is equal to a double is written."""
    assert read(written(2**60)) == 2.0**60
    with pytest.raises(WriteError, match=r"9007199254740993 is not a Lua number"):
        written(2**53 + 1)
    with pytest.raises(WriteError, match="does not fit a Lua number"):
        written(10**400)


def test_six_digits_of_old_releases():
    """A file whose numbers were printed with 6 digits is written back with 6 digits."""
    data = lines("""
        3
        1
        2
        1
        1
        1
        0.333333   # a third, as releases before 2014 printed it
        1
        2
        1
        1e-05
    """)
    reader = T7Reader(data)
    table = reader.read_object()
    assert reader.layout.digits == 6
    assert table[1] == 0.333333
    assert written(table, reader.layout) == data
    assert written(table, ASCII) != data


def test_short_numbers_say_nothing_about_digits():
    """Numbers with the same text for 6 digits and for 17 do not change the layout."""
    reader = T7Reader(lines("3\n1\n1\n1\n1\n1\n0.5\n"))
    reader.read_object()
    assert reader.layout.digits == 17


def test_numbers_of_other_c_libraries():
    """Numbers as Microsoft's library and languages with a decimal comma print them, alone and in storages."""
    for word, value in {b"1,5": 1.5, b"-2,5e3": -2500.0, b"1.#INF": math.inf, b"-1.#INF00": -math.inf}.items():
        assert read(b"1\n" + word + b"\n") == value
    for word in (b"1.#QNAN", b"1.#SNAN", b"-1.#IND", b"-nan(ind)", b"nan(snan)"):
        number = read(b"1\n" + word + b"\n")
        assert math.isnan(number)
        assert (math.copysign(1, number) < 0) == word.startswith(b"-")
    storage = b"4\n1\n3\nV 1\n18\ntorch.FloatStorage\n5\n"
    found = read(storage + b"1,5 -1.#IND 1.#INF 2.5 1e-3\n")
    assert np.array_equal(found.array, np.array([1.5, -np.nan, np.inf, 2.5, 1e-3], "f4"), equal_nan=True)
    assert written(found, T7Layout(encoding="ascii")).endswith(b"\n1.5 -nan inf 2.5 0.00100000005\n")


def test_lines_that_end_with_cr_and_lf():
    """A file that was transferred as text is named as one where strings are not where they were written."""
    data = b"4\n1\n3\nV 1\n18\ntorch.FloatStorage\n2\n1.5 2\n"
    assert read(data).array.tolist() == [1.5, 2]
    for text in (data, b"2\n3\nabc\n"):
        with pytest.raises(CorruptError, match=r"its lines end with CR and LF.*dos2unix"):
            read(text.replace(b"\n", b"\r\n"))
    assert read(b"2\n2\n\r\n\n") == b"\r\n"


def test_six_digits_are_written():
    """With 6 digits, doubles and floats are printed like C's `%g`."""
    old = T7Layout(encoding="ascii", digits=6)
    assert written(1 / 3, old) == b"1\n0.333333\n"
    data = written(Storage.from_array(np.array([1 / 3, 1e-7], "f4")), old)
    assert data.endswith(b"\n2\n0.333333 1e-07\n")


@pytest.mark.parametrize(
    "word", [b"0x10", b"1.5.2", b"--1", b"1e", b"one", b"1_0", b"infinit", b"1,5,5", b"1,5.5", b"1.#NAN"]
)
def test_words_that_are_no_numbers(word):
    """A word in the place of a number is an error that shows it."""
    with pytest.raises(CorruptError, match=f"is not a number.*{word.decode()}"):
        read(b"1\n" + word + b"\n")


@pytest.mark.parametrize(
    ("kind", "words"), [("Int", b"1 2.5"), ("Short", b"1 40000"), ("Long", b"1 9223372036854775808")]
)
def test_elements_that_do_not_fit_their_type(kind, words):
    """A fraction in an IntStorage, or a number beyond the type, is an error when the elements are wanted."""
    name = b"torch.%sStorage" % kind.encode()
    data = b"4\n1\n3\nV 1\n%d\n%s\n2\n%s\n" % (len(name), name, words)
    with pytest.raises(CorruptError, match=rf"numbers of type int{ {'Int': 32, 'Short': 16, 'Long': 64}[kind] }"):
        _ = read(data).array


@pytest.mark.slow
def test_long_lists_of_numbers():
    """A table of 100 000 numbers, with a string in the middle, reads the same one by one and in runs."""
    values: list = [number * 0.25 for number in range(100_000)]
    values[70_000] = b"text"
    values[70_001] = math.nan
    for layout in (LITTLE8, BIG8):
        parts = Parts(layout).ints(3, 1, len(values))
        pieces = [parts.data]
        for number, value in enumerate(values, 1):
            entry = Parts(layout).number(number)
            pieces.append((entry.string(value) if isinstance(value, bytes) else entry.number(value)).data)
        data = b"".join(pieces)
        table = read(data)
        assert table.raw_keys == list(range(1, 100_001))
        assert table.raw_values[:70_001] == values[:70_001]
        assert math.isnan(table.raw_values[70_001])
        assert table.raw_values[70_002:] == values[70_002:]
        assert written(table, layout) == data


def test_nan_key_in_a_long_list():
    """A nan among the keys of a long list is detected as in a short one."""
    parts = Parts(LITTLE8).ints(3, 1, 1000)
    for number in range(1, 1001):
        parts.number(math.nan if number == 900 else number).number(1)
    with pytest.raises(CorruptError, match="nan"):
        read(parts.data)
