"""Data classes: arguments, `repr`, equality, hash, inheritance, pickles; and patterns that are compiled late."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import weakref
from functools import cached_property

import pytest

from t7bridge import data


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"eq": False}])
def test_repr(options):
    """Fields in order, without those that are not to be shown, nested, and for objects inside themselves."""
    Item = item_class(**options)
    assert repr(Item("a")) == "Item(name='a', inner=None, _own=4)"
    assert repr(Item("a", Item("b", [1.5]))) == "Item(name='a', inner=Item(name='b', inner=[1.5], _own=4), _own=4)"
    items: list[object] = []
    items.append(Item("loop", items))
    assert repr(items[0]) == "Item(name='loop', inner=[...], _own=4)"


def item_class(**options):
    """A class made with some options."""

    @data.define(**options)
    class Item:
        name: str
        inner: object = None
        hidden: int = data.field(default=3, repr=False)
        _own: int = 4

    Item.__qualname__ = "Item"
    return Item


def test_without_options():
    """`define` is a decorator without arguments too."""

    @data.define
    class Plain:
        number: int

    assert data.is_data(Plain(2))
    assert repr(Plain(2)).endswith("Plain(number=2)")
    assert Plain(2) == Plain(2)


@pytest.mark.parametrize(
    ("options", "is_hashable"),
    [({}, False), ({"frozen": True}, True), ({"eq": False}, True), ({"frozen": True, "eq": False}, True)],
)
def test_equality(options, is_hashable):
    """Objects of one class are equal where all their fields are, and have a hash if they cannot change."""
    Item = item_class(**options)

    class Inherited(Item):
        """A class without fields of its own."""

    compares = options.get("eq", True)
    assert (Item("a") == Item("a")) is compares
    assert (Item("a", Item("b")) == Item("a", Item("b"))) is compares
    assert (Inherited("a") == Inherited("a")) is compares
    for other in (Item("b"), Item("a", 1), Item("a", hidden=4), Inherited("a"), 3):
        assert Item("a") != other
    assert (Item.__hash__ is not None) is is_hashable
    if is_hashable:
        assert (hash(Item("a")) == hash(Item("a"))) is compares
    with pytest.raises(TypeError):
        Item("a") < Item("b")  # noqa: B015


def test_equality_of_unhashable_fields():
    """A frozen object whose field is a list is equal to its like, and has no hash."""

    @data.define(frozen=True)
    class Item:
        parts: list[int]

    assert Item([1]) == Item([1]) != Item([2])
    with pytest.raises(TypeError, match="unhashable"):
        hash(Item([1]))


def test_a_class_with_its_own_equality_keeps_it():
    """`__eq__` in the class's body is used."""

    @data.define
    class Item:
        name: str

        def __eq__(self, other):
            return isinstance(other, str) and other == self.name

    assert Item("a") == "a"
    assert Item("a") != Item("a")


def test_equality_without_fields():
    """Objects without fields are equal where their classes are one."""

    @data.define(frozen=True)
    class Mark:
        """A class of one value."""

    assert Mark() == Mark()
    assert hash(Mark()) == hash(Mark())
    assert Mark() != 0


class Shape:
    def __init_subclass__(cls):
        super().__init_subclass__()


@data.define(frozen=True)
class Named(Shape):
    name: str
    numbers: list[int] = data.field(factory=list)

    def title(self):
        return self.name.title()


@data.define
class Counted(Named):
    count: int = data.field(default=1, kw_only=True)

    def title(self):
        return f"{super().title()} {self.count}"


@data.define(eq=False)
class Unused:
    value: int


def is_late(cls: type) -> bool:
    """Return whether `__init__` of a class is not compiled."""
    return isinstance(vars(cls)["__init__"], data._LateInit)


def test_init_is_compiled_with_the_first_object():
    """No instance has a dict."""
    assert is_late(Unused)
    item = Unused(2)
    assert not is_late(Unused)
    item.value = 3
    assert not hasattr(item, "__dict__")
    assert data.evolve(item, value=5).value == 5


def test_inheritance_pickles_and_refusals():
    """Fields of both classes, `super`, weak references, copies, pickles before the first object, and frozen ones."""
    assert str(inspect.signature(Counted)) == (
        "(name: 'str', numbers: 'list[int]' = NOTHING, *, count: 'int' = 1) -> None"
    )
    pair = Counted("pair", [1, 2], count=2)
    assert pair.title() == "Pair 2"
    assert weakref.ref(pair)() is pair
    assert pickle.loads(pickle.dumps(pair)) == copy.deepcopy(pair) == pair
    assert [field.name for field in data.fields(Counted)] == ["name", "numbers", "count"]
    with pytest.raises(AttributeError, match="frozen"):
        Named("x").name = "y"
    with pytest.raises(AttributeError, match="frozen"):
        del Named("x").name
    with pytest.raises(TypeError, match="unexpected keyword"):
        Named("x", other=2)
    with pytest.raises(TypeError, match="missing 1 required"):
        Named()


@data.define(kw_only=True)
class Kept:
    place: str = data.field(kw_only=False)
    side: str = data.field(default="left", allowed=("left", "right"))
    found: list[int] = data.field(init=False)
    count: int = data.field(default=0, init=False)

    def __post_init__(self):
        self.found = [self.count]

    @cached_property
    def title(self):
        return self.place.title()


def test_options_of_fields():
    """Arguments by name, allowed values, fields that are no arguments, `__post_init__`, and cached properties."""
    kept = Kept("here")
    assert (kept.side, kept.found, kept.count, kept.title) == ("left", [0], 0, "Here")
    kept.count = 3
    assert data.evolve(kept, side="right").count == 0
    assert copy.copy(kept) == kept
    with pytest.raises(ValueError, match="side must be one of 'left', 'right', not 'top'"):
        Kept("here", side="top")
    with pytest.raises(TypeError, match="positional"):
        Kept("here", "left")


def test_as_dict_is_deep():
    """Objects in lists, tuples and dicts too; it shares no list with the object."""
    named = Named("a", [1])
    item = item_class()("x", {"key": [named, (named,)]})
    plain = data.asdict(item)
    inner = {"name": "a", "numbers": [1]}
    assert plain == {"name": "x", "inner": {"key": [inner, [inner]]}, "hidden": 3, "_own": 4}
    assert plain["inner"]["key"][0]["numbers"] is not named.numbers


def test_patterns_are_compiled_when_they_are_used():
    """And then match as those of `re`."""
    digits = data.pattern(r"(\d+)", re.ASCII)
    assert set(vars(digits)) == {"_arguments"}
    assert digits.sub("n", "a1b22") == "anbn"
    assert digits.pattern == r"(\d+)"
    assert "sub" in vars(digits)
