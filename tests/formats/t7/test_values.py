"""Single values and their identity, from bytes written by hand, in both directions."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import (
    ASCII,
    BIG4,
    BIG8,
    LITTLE4,
    LITTLE8,
    check_read_write,
    check_write_read,
    corpus,
    hexdump,
    lines,
    read,
    written,
)

from t7bridge import Storage, Table, TdsHash, TdsVec, Tensor, TorchObject
from t7bridge.errors import UnsupportedError, WriteError
from t7bridge.graph import ELEMENT_TYPES

SCALARS = {
    "nil": (None, "00 00 00 00"),
    "number": (123.0, "01 00 00 00  00 00 00 00 00 C0 5E 40"),
    "string": (b"hey\xff", "02 00 00 00  04 00 00 00  68 65 79 FF"),
    "empty string": (b"", "02 00 00 00  00 00 00 00"),
    "true": (True, "05 00 00 00  01 00 00 00"),
    "false": (False, "05 00 00 00  00 00 00 00"),
}


@pytest.mark.parametrize("name", SCALARS)
def test_scalar(name):
    """A scalar's bytes are its tag and its payload, in both directions."""
    value, text = SCALARS[name]
    found = check_read_write(hexdump(text))
    assert found == value
    assert type(found) is type(value)
    assert written(value) == hexdump(text)


def test_scalar_in_big_endian():
    """Tag and double are turned around in a big-endian file, and the byte order is found out."""
    data = hexdump("00 00 00 01  40 5E C0 00 00 00 00 00")
    assert check_read_write(data) == 123.0
    assert written(123.0, BIG8) == data


def test_scalars_in_ascii():
    """In ascii a tag, a length and a number are one line each, and a string is unchanged."""
    assert written(123.0, ASCII) == b"1\n123\n"
    assert written(b"hey\n", ASCII) == b"2\n4\nhey\n\n"
    assert written(b"", ASCII) == b"2\n0\n"
    assert written(True, ASCII) == b"5\n1\n"
    assert written(None, ASCII) == b"0\n"
    for value in (123.0, b"hey\n", b"", True, None):
        assert read(written(value, ASCII)) == value


def test_python_scalars():
    """An `int` is written as the equal double and text as its UTF-8 bytes."""
    assert written(123) == written(123.0)
    assert written("Grüße") == written("Grüße".encode())


TABLE = """
    03 00 00 00                          # table
    01 00 00 00                          # object 1
    02 00 00 00                          # two entries
    01 00 00 00  00 00 00 00 00 00 F0 3F # key 1
    05 00 00 00  01 00 00 00             # true
    02 00 00 00  01 00 00 00  61         # key 'a'
    03 00 00 00  01 00 00 00             # the table itself
"""


def test_table_that_holds_itself():
    """A table is numbered before its entries are read, so that an entry may be the table."""
    table = check_read_write(hexdump(TABLE))
    assert table.raw_keys == [1.0, b"a"]
    assert table[1] is True
    assert table["a"] is table


def test_keys_true_and_1_are_two_keys():
    """Lua's keys `true` and 1, and `"1"`, are three keys, although two of them are equal in Python's dict."""
    table = Table.of([(True, b"yes"), (1, b"one"), ("1", b"text")])
    assert len(table) == 3
    again = read(written(table))
    assert (again[True], again[1], again["1"]) == (b"yes", b"one", b"text")


def test_pairs_with_a_nil_value_and_twice_the_same_key_are_kept():
    """Entries that Lua would drop while reading are still written back: a nil value, an earlier equal key."""
    data = hexdump("""
        03 00 00 00  01 00 00 00  03 00 00 00
        02 00 00 00  01 00 00 00  61   00 00 00 00                            # a = nil
        02 00 00 00  01 00 00 00  62   05 00 00 00  00 00 00 00               # b = false
        02 00 00 00  01 00 00 00  62   05 00 00 00  01 00 00 00               # b = true
    """)
    table = check_read_write(data)
    assert table["b"] is True
    assert table["a"] is None


TENSOR = """
    04 00 00 00  01 00 00 00                 # Torch object, object 1
    03 00 00 00  56 20 31                    # "V 1"
    11 00 00 00
    > torch.FloatTensor
    02 00 00 00                              # two dimensions
    02 00 00 00 00 00 00 00  03 00 00 00 00 00 00 00  # sizes 2, 3
    01 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00  # strides 1, 2
    02 00 00 00 00 00 00 00                  # offset 2, counted from 1
    04 00 00 00  02 00 00 00                 # Torch object, object 2
    03 00 00 00  56 20 31                    # "V 1"
    12 00 00 00
    > torch.FloatStorage
    07 00 00 00 00 00 00 00                  # seven elements
    00 00 00 00  00 00 80 3F  00 00 00 40  00 00 40 40  00 00 80 40  00 00 A0 40  00 00 C0 40
"""


def test_tensor_is_a_view():
    """Sizes, strides and the offset, made 0-based, come through, and the elements are those of the view."""
    tensor = check_read_write(hexdump(TENSOR))
    assert (tensor.size, tensor.stride, tensor.offset) == ((2, 3), (1, 2), 1)
    assert tensor.lua_class == "torch.FloatTensor"
    assert tensor.storage.count == 7
    assert tensor.numpy().tolist() == [[1, 3, 5], [2, 4, 6]]


def test_tensor_in_ascii():
    """In ascii sizes are a line, strides are a line, and the elements are a line."""
    data = lines("""
        4
        1
        3
        V 1
        17
        torch.FloatTensor
        2
        2 3       # sizes
        1 2       # strides
        2         # offset, counted from 1
        4
        2
        3
        V 1
        18
        torch.FloatStorage
        7
        0 1 2 3 4 5.5 6
    """)
    tensor = check_read_write(data)
    assert tensor.numpy().tolist() == [[1, 3, 5.5], [2, 4, 6]]
    assert tensor.storage.array.dtype == "f4"


def test_tensor_with_4_byte_longs_big_endian():
    """With 4-byte longs, big-endian, sizes, strides, offset, count and a LongStorage's elements take 4 bytes each."""
    data = hexdump("""
        00 00 00 04  00 00 00 01
        00 00 00 03  56 20 31
        00 00 00 10
        > torch.LongTensor
        00 00 00 01  00 00 00 02  00 00 00 01  00 00 00 01   # one dimension, size, stride, offset
        00 00 00 04  00 00 00 02
        00 00 00 03  56 20 31
        00 00 00 11
        > torch.LongStorage
        00 00 00 02  FF FF FF FE  00 00 00 05
    """)
    tensor = check_read_write(data)
    assert tensor.numpy().tolist() == [-2, 5]
    assert tensor.element.itemsize == 8
    assert written(tensor, BIG4) == data


def test_tensor_that_never_had_a_storage():
    """A tensor with nil for its storage has no dimensions, no elements, and is written the same."""
    data = hexdump("""
        04 00 00 00  01 00 00 00
        03 00 00 00  56 20 31
        12 00 00 00
        > torch.DoubleTensor
        00 00 00 00                # no dimensions
        01 00 00 00 00 00 00 00    # offset 1
        00 00 00 00                # nil
    """)
    tensor = check_read_write(data)
    assert tensor.storage is None
    assert tensor.shape == (0,)
    assert tensor.numpy().shape == (0,)


def test_object_without_a_version():
    """Before there were versions the class name was in their place; that is kept."""
    data = hexdump("""
        04 00 00 00  01 00 00 00
        07 00 00 00
        > nn.Tanh
        03 00 00 00  02 00 00 00  00 00 00 00   # an empty table of fields
    """)
    obj = check_read_write(data)
    assert (obj.class_name, obj.version) == ("nn.Tanh", None)


def test_object_with_a_version():
    """A class version other than 1 is kept, and the fields are looked up by name."""
    data = hexdump("""
        04 00 00 00  01 00 00 00
        04 00 00 00  56 20 31 32        # "V 12"
        07 00 00 00
        > nn.Tanh
        03 00 00 00  02 00 00 00  01 00 00 00
        02 00 00 00  05 00 00 00  74 72 61 69 6E   05 00 00 00  00 00 00 00
    """)
    obj = check_read_write(data)
    assert obj.version == 12
    assert obj["train"] is False
    assert "weight" not in obj


def test_class_name_in_utf8():
    """A class name is any text: one outside ASCII is kept."""
    obj = TorchObject("münchen.Netz")
    assert read(written(obj)).class_name == "münchen.Netz"


def test_shared_objects_are_one_object():
    """Tables, tensors and storages that are met twice are the same Python object, in every layout."""
    storage = Storage.from_array(np.arange(6.0))
    left = Tensor(storage.element, storage, (2,), (1,), 0)
    right = Tensor(storage.element, storage, (2,), (2,), 1)
    inner = Table.from_list([left, right])
    root = Table.of({"a": inner, "b": inner, "left": left, "storage": storage})
    for layout in (LITTLE8, LITTLE4, BIG8, BIG4, ASCII):
        again = read(written(root, layout))
        assert again["a"] is again["b"]
        assert again["a"][1] is again["left"]
        assert again["a"][1].storage is again["a"][2].storage is again["storage"]


def test_unreferenced_loses_sharing():
    """Written without references, an object met twice is two objects with numbers of their own."""
    shared = Table.of({"x": 1})
    data = written(Table.of({"p": shared, "q": shared}), referenced=False)
    again = read(data)
    assert again["p"] is not again["q"]
    assert again["q"]["x"] == 1.0
    assert written(again) == data


def test_unreferenced_refuses_a_cycle():
    """Written without references, a cycle would never end: it is refused with its place."""
    table = Table()
    table["list"] = Table.from_list([table])
    with pytest.raises(WriteError, match=r"root\.list\[1\]: a cycle"):
        written(table, referenced=False)


def test_unreferenced_file_of_lua():
    """In the file that Lua wrote without references, the two tensors are two, with storages of their own."""
    for path in corpus("format/unreferenced*.t7"):
        value = read(path)
        assert value["p"] is not value["q"]
        assert value["p"].storage is not value["q"].storage
        assert value["p"].numpy().tolist() == value["q"].numpy().tolist() == [1, 2, 3]


def test_equal_scalars_are_not_objects():
    """Strings and numbers have no identity in a file: equal ones are written again."""
    text = b"twice"
    data = written(Table.from_list([text, text]))
    assert data.count(b"twice") == 2


def test_tds_collections():
    """A `tds.Hash` keeps its pairs in the file's order and a `tds.Vec` its elements, nested, in every layout."""
    vec = TdsVec([1.0, b"two", TdsVec([TdsHash(Table.of({"k": True}))])])
    root = TdsHash(Table.of([("z", vec), (3, b"three"), ("a", vec)]))
    check_write_read(root)
    again = read(written(root))
    assert again.content.raw_keys == [b"z", 3.0, b"a"]
    assert again.content["z"] is again.content["a"]
    assert again.content["z"].elements[2].elements[0].content["k"] is True


@pytest.mark.parametrize("name", [name for name, element in ELEMENT_TYPES.items() if not element.lua])
def test_types_that_lua_lacks_are_refused(name):
    """A tensor of a type that Lua Torch does not have is refused, with its place and its type."""
    element = ELEMENT_TYPES[name]
    storage = Storage(element, 0, np.empty(0, element.code))
    with pytest.raises(UnsupportedError, match=rf"root\.w: .*{name}"):
        written(Table.of({"w": Tensor(element, storage, (0,), (1,))}))


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, [1], {"a": 1}])
def test_values_that_are_no_lua_values_are_refused(value):
    """A Python value that the format has no tag for is refused, and its type is named."""
    with pytest.raises(UnsupportedError, match=type(value).__name__):
        written(Table.of({"x": value}))


@pytest.mark.parametrize("key", [None, float("nan")])
def test_impossible_keys_are_not_written(key):
    """A table with nil or nan for a key would not load in Lua, so it is not written."""
    with pytest.raises(WriteError, match="Lua does not allow"):
        written(Table([key], [1.0]))


def test_scalar_tensor_is_refused():
    """Lua Torch has no tensors without dimensions but with an element."""
    tensor = Tensor.from_numpy(np.array(5.0))
    with pytest.raises(UnsupportedError, match="without dimensions"):
        written(tensor)


def test_view_outside_its_storage_is_not_written():
    """An impossible view is refused by the writer too."""
    storage = Storage.from_array(np.arange(4.0))
    with pytest.raises(WriteError, match="reaches element 4"):
        written(Tensor(storage.element, storage, (3,), (2,), 0))
