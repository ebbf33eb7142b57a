"""Tables, objects and keys as Lua has them."""

from __future__ import annotations

import pytest
from helpers import read, written

from t7bridge import Table, TorchObject
from t7bridge.graph import index_key


def test_look_up():
    """Text means its UTF-8 bytes and an integer the equal double."""
    table = Table.of({"weight": 1.5, 2: b"two", "ü": True})
    assert table.raw_keys == [b"weight", 2.0, "ü".encode()]
    assert table["weight"] == table[b"weight"] == 1.5
    assert table[2] == table[2.0] == b"two"
    assert table["ü"] is True
    assert "weight" in table
    assert 3 not in table
    assert table.get("missing", 7) == 7
    assert list(table) == ["weight", 2, "ü"]
    assert len(table) == 3
    with pytest.raises(KeyError):
        table["missing"]


def test_set():
    """A new key goes to the end, an old one keeps its place."""
    table = Table.of([("b", 1), ("a", 2)])
    table["b"] = 3
    table["c"] = 4
    assert list(table.raw_items()) == [(b"b", 3), (b"a", 2), (b"c", 4)]
    assert list(table.items()) == [("b", 3), ("a", 2), ("c", 4)]


def test_booleans_are_not_numbers():
    """`true` and 1, `false` and 0 are different keys."""
    table = Table.of([(1, "one"), (True, "yes"), (0, "zero"), (False, "no")])
    assert [table[1], table[True], table[0], table[False]] == ["one", "yes", "zero", "no"]
    assert index_key(True) != index_key(1)


def test_minus_zero_is_zero():
    """-0 and 0 are the same key, as in Lua."""
    assert Table([-0.0], [b"x"])[0] == b"x"


def test_objects_are_keys_by_identity():
    """A table finds an object by what it is, not by what is in it."""
    key, other = Table(), Table()
    table = Table([key], [1.0])
    assert table[key] == 1.0
    assert other not in table


def test_keys_added_after_a_look_up():
    """Keys that are appended directly are found after an earlier look-up."""
    table = Table.from_list([b"a"])
    assert 2 not in table
    table.raw_keys.append(2.0)
    table.raw_values.append(b"b")
    assert table.as_list() == [b"a", b"b"]


@pytest.mark.parametrize(
    ("keys", "values", "wanted"),
    [
        ([], [], None),
        ([1.0, 2.0], ["a", "b"], ["a", "b"]),
        ([2.0, 1.0], ["b", "a"], ["a", "b"]),
        ([1.0, 3.0], ["a", "c"], None),
        ([1.0, 1.0], ["a", "b"], None),
        ([0.0, 1.0], ["z", "a"], None),
        ([1.5], ["x"], None),
        ([True], ["x"], None),
        ([b"1"], ["x"], None),
        ([1.0, b"n"], ["a", 1.0], None),
        ([float("inf")], ["x"], None),
    ],
)
def test_sequence(keys, values, wanted):
    """Exactly the keys 1 to n, in any order, are a list; an empty table is not, as it is ambiguous."""
    assert Table(keys, values).sequence() == wanted


def test_object_fields():
    """An object's fields are looked up, set and asked for by name; one without fields gets them when one is set."""
    obj = TorchObject("nn.Linear")
    obj["bias"] = 1.0
    assert obj["bias"] == obj.get("bias") == 1.0
    assert "weight" not in obj
    assert obj.get("weight", 5) == 5
    bare = TorchObject("torch.Timer", fields=None)
    assert "x" not in bare
    assert bare.get("x") is None
    with pytest.raises(KeyError):
        bare["x"]
    bare["x"] = 1.0
    assert bare["x"] == 1.0


def test_equality_is_identity():
    """Two tables with the same content are two tables."""
    assert Table.of({"a": 1}) != Table.of({"a": 1})
    assert len({TorchObject("x"), TorchObject("x")}) == 2


def test_order_of_the_file_is_kept():
    """Pairs stay in the order of the file, which is Lua's own and no sorted one."""
    table = Table.of([("z", 1), (3, 2), ("a", 3), (1, 4)])
    assert read(written(table)).raw_keys == [b"z", 3.0, b"a", 1.0]
