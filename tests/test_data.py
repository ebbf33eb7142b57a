"""The `repr` that all data classes share is the one that attrs would have made."""

from __future__ import annotations

import attrs
import pytest

from t7bridge import data


def both(**options):
    """A class made by the package's `define`, and one made by attrs."""
    made = []
    for define in (data.define, attrs.define):

        @define(**options)
        class Item:
            name: str
            inner: object = None
            hidden: int = attrs.field(default=3, repr=False)
            _own: int = 4

        Item.__qualname__ = "Item"
        made.append(Item)
    return made


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"eq": False}, {"slots": False}])
def test_repr_is_that_of_attrs(options):
    """Fields in order, without those that are not to be shown, nested, and for objects inside themselves."""
    ours, theirs = both(**options)
    assert repr(ours("a", ours("b", [1.5, None]))) == repr(theirs("a", theirs("b", [1.5, None])))
    assert repr(ours("a")) == "Item(name='a', inner=None, _own=4)"
    pair = []
    for made in (ours, theirs):
        items: list[object] = []
        item = made("loop", items)
        items.append(item)
        pair.append(repr(item))
    assert pair[0] == pair[1] == "Item(name='loop', inner=[...], _own=4)"


def test_without_options():
    """`define` is a decorator by itself too."""

    @data.define
    class Plain:
        number: int

    assert attrs.has(Plain)
    assert repr(Plain(2)).endswith("Plain(number=2)")
    assert Plain(2) == Plain(2)
