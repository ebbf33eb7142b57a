"""Lua functions: three ways in which releases wrote them; kept with their upvalues, never run."""

from __future__ import annotations

import pytest
from helpers import LAYOUTS, LITTLE8, Parts, check_read_write, corpus, description, hexdump, read, stated, written

from t7bridge import LuaFunction, Table

CODE = b"\x1bLJ\x01\x02\n\x00\xff"


def test_function_of_today():
    """Tag 8: number, bytecode, then a table of upvalues with name, id and value."""
    data = hexdump("""
        08 00 00 00  01 00 00 00                    # function, object 1
        04 00 00 00  1B 4C 4A 02                    # bytecode
        03 00 00 00  02 00 00 00  01 00 00 00       # upvalues: a table of one
        01 00 00 00  00 00 00 00 00 00 F0 3F        # [1] =
        03 00 00 00  03 00 00 00  03 00 00 00       # a table of three
        02 00 00 00  04 00 00 00
        > name
        02 00 00 00  01 00 00 00
        > f
        02 00 00 00  02 00 00 00
        > id
        01 00 00 00  00 00 00 00 00 00 08 40        # 3
        02 00 00 00  05 00 00 00
        > value
        08 00 00 00  01 00 00 00                    # the function itself
    """)
    function = check_read_write(data)
    assert function.code == b"\x1bLJ\x02"
    (upvalue,) = function.upvalue_list()
    assert (upvalue.name, upvalue.id) == (b"f", 3)
    assert upvalue.value is function


def test_function_of_2014():
    """Tag 7: as tag 8, but the upvalues are a plain list and have neither name nor id."""
    parts = Parts(LITTLE8).ints(7, 1).text(CODE).ints(3, 2, 2)
    data = parts.number(1).string("first").number(2).ints(7, 1).data
    function = check_read_write(data)
    first, second = function.upvalue_list()
    assert (first.name, first.value, first.id) == (b"", b"first", None)
    assert second.value is function


def test_function_before_2014_has_no_number():
    """Tag 6: no object number, so that the table after it is object 1."""
    parts = Parts(LITTLE8).ints(3, 1, 2)
    parts.string("f").ints(6).text(CODE).ints(3, 2, 1).number(1).number(5)
    data = parts.string("t").ints(3, 2).data
    table = check_read_write(data)
    function = table["f"]
    assert (function.tag, function.code) == (6, CODE)
    assert [entry.value for entry in function.upvalue_list()] == [5.0]
    assert table["t"] is function.upvalues


@pytest.mark.parametrize("number", [2, 3])
def test_objects_behind_an_unnumbered_function(number):
    """The numbers of objects are kept whether or not the writer counted functions without a number."""
    parts = Parts(LITTLE8).ints(3, 1, 1).number(1).ints(6).text(CODE).ints(3, number, 0)
    table = check_read_write(parts.data)
    assert len(table[1].upvalues) == 0


@pytest.mark.parametrize("name", ["function_type6", "function_type7"])
def test_functions_of_old_releases(name):
    """The corpus's files of function types 6 and 7 hold a function of that tag with bytecode."""
    value = check_read_write(corpus(f"legacy/{name}.t7")[0].read_bytes())
    found = (
        [item for item in value.raw_values if isinstance(item, LuaFunction)] if isinstance(value, Table) else [value]
    )
    assert {function.tag for function in found} == {int(name[-1])}
    assert all(function.code.startswith(b"\x1bL") for function in found)


def test_shared_upvalue():
    """Two functions that share a variable name it by the same id."""
    value = read(corpus("format/function_shared_upvalue.t7")[0])
    (inc,), (get,) = value["inc"].upvalue_list(), value["get"].upvalue_list()
    assert inc.name == get.name == b"n"
    assert inc.id == get.id is not None


def test_recursive_function():
    """A local function that calls itself has itself as an upvalue."""
    function = read(corpus("format/function_recursive.t7")[0])
    assert function.upvalue_list()[0].value is function


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tag", [6, 7, 8])
def test_functions_in_every_layout(tag, layout):
    """Bytecode is bytes in every layout, ascii included, and the tag is kept."""
    function = LuaFunction(CODE, Table.from_list([Table.of({"name": "x", "id": 1, "value": 2})]), tag)
    again = read(written(Table.of({"f": function}), LAYOUTS[layout]), **stated(LAYOUTS[layout]))["f"]
    assert (again.code, again.tag) == (CODE, tag)
    assert description(again) == description(function)


def test_upvalues_of_other_kinds_are_no_names():
    """A damaged list of upvalues, with text for an id and a number for a name, is described and not an accident."""
    entry = Table.of({"name": 5, "id": "text", "value": True})
    function = LuaFunction(CODE, Table.from_list([entry]))
    (upvalue,) = function.upvalue_list()
    assert (upvalue.name, upvalue.id, upvalue.value) == (b"", None, True)
    assert description(function) == '{"t":"function","id":1,"nups":1,"up":[{"name":"","v":{"t":"bool","v":true}}]}'


@pytest.mark.parametrize("upvalues", [None, 1.0, b"none", True])
def test_upvalues_that_are_no_table(upvalues):
    """A function whose upvalues are not a table has none, and is written back unchanged."""
    function = read(written(LuaFunction(CODE, upvalues)))
    assert function.upvalue_list() == []
    assert function.upvalues == upvalues
