"""Nesting of 30 000 levels: read, walked, described, compared and written with no recursion."""

from __future__ import annotations

import struct
import sys

import pytest
from helpers import LAYOUTS, LITTLE8, description, read, stated, walk, written

from t7bridge import Limits, LuaFunction, Table, TdsHash, TdsVec, TorchObject
from t7bridge.errors import LimitError, T7BridgeError
from t7bridge.values import describe_lua

LEVELS = 30_000


def nested_bytes(levels: int = LEVELS) -> bytes:
    """`{{{…}}}` in binary, `levels` tables in one another, made without the package's writer."""
    heads = [struct.pack("<iii", 3, number, 1) + struct.pack("<id", 1, 1.0) for number in range(1, levels)]
    return b"".join(heads) + struct.pack("<iii", 3, levels, 0)


def wrap(kind: str, inner):
    """One more level around a value."""
    if kind == "list":
        return Table.from_list([inner])
    if kind == "key":
        return Table([inner], [True])
    if kind == "object":
        return TorchObject("nn.Bottle", fields=Table.of({"modules": inner}))
    if kind == "function":
        return LuaFunction(b"code", Table.from_list([Table.of({"name": "f", "id": 1, "value": inner})]))
    if kind == "hash":
        return TdsHash(Table.of({"inner": inner}))
    return TdsVec([inner])


@pytest.mark.slow
def test_read_deep_table():
    """A table nested 30 000 deep is read, walked, described and written again."""
    data = nested_bytes()
    value = read(data)
    assert sum(1 for _ in walk(value)) == LEVELS
    assert written(value) == data
    text = description(value)
    assert text.count('"t":"table"') == LEVELS
    assert text.startswith('{"t":"table","id":1,"n":1,"kv":[[{"t":"num","v":"1"},{"t":"table","id":2,')


def test_path_of_the_innermost():
    """The path of the innermost table names every step."""
    visits = list(walk(read(nested_bytes(1000))))
    assert visits[-1].text() == "root" + "[1]" * 999


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["list", "key", "object", "function", "hash", "vec"])
def test_every_kind_of_nesting(kind):
    """Every kind of value nests deeper than Python's recursion limit, in every layout."""
    value = None
    for _ in range(2 * sys.getrecursionlimit()):
        value = wrap(kind, value if value is not None else b"core")
    wanted = description(value)
    for layout in LAYOUTS.values():
        assert description(read(written(value, layout), **stated(layout))) == wanted


@pytest.mark.slow
def test_deep_and_unreferenced():
    """Writing without references looks for cycles in no more than a moment, however deep the value."""
    data = nested_bytes()
    assert written(read(data), referenced=False) == data


@pytest.mark.slow
def test_deep_file_that_ends():
    """The end of a file inside 30 000 levels is an error with a path, not an accident."""
    with pytest.raises(T7BridgeError, match=r"root\[1\]\[1\]\[1\]"):
        read(nested_bytes()[:-6])


def test_depth_limit():
    """Deeper than the limit is refused with the way to raise it."""
    data = nested_bytes(50)
    with pytest.raises(LimitError, match=r"at most 10 \(the limit depth\).* --limit depth=N"):
        read(data, limits=Limits(depth=10))
    assert describe_lua(read(data, limits=Limits(depth=50)))["n"] == 1


def test_objects_limit():
    """More objects than the limit are refused with the way to raise it."""
    with pytest.raises(LimitError, match=r"at most 10 \(the limit objects\).*Limits\(objects=N\)"):
        read(nested_bytes(11), limits=Limits(objects=10))
    assert written(read(nested_bytes(10), limits=Limits(objects=10)), LITTLE8) == nested_bytes(10)
