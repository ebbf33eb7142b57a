"""`repr`, equality and hash that all data classes share are those that attrs would have made."""

from __future__ import annotations

import copy
import inspect
import operator
import pickle
import re
import weakref

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
    """`define` is a decorator without arguments too."""

    @data.define
    class Plain:
        number: int

    assert attrs.has(Plain)
    assert repr(Plain(2)).endswith("Plain(number=2)")
    assert Plain(2) == Plain(2)


@pytest.mark.parametrize(
    "options", [{}, {"frozen": True}, {"eq": False}, {"slots": False}, {"frozen": True, "eq": False}]
)
def test_equality_is_that_of_attrs(options):
    """Objects of one class are equal where all their fields are, and have a hash where attrs would make one."""
    ours, theirs = both(**options)
    for made in (ours, theirs):

        class Inherited(made):
            """A class without fields of its own."""

        items = [made("a"), made("a"), made("b"), made("a", 1), made("a", hidden=4), Inherited("a"), Inherited("a"), 3]
        items += [made("a", made("b")), made("a", made("b"))]
        equal = [[left == right for right in items] for left in items]
        assert equal == [[operator.ne(left, right) is False for right in items] for left in items]
        hashable = made.__hash__ is not None
        if hashable:
            assert all(hash(a) == hash(b) for a in items for b in items if a == b)
            assert len({hash(item) for item in items[:5]}) == (4 if options.get("eq", True) else 5)
        if made is ours:
            found = equal, hashable
    assert found == (equal, hashable)
    with pytest.raises(TypeError):
        ours("a") < ours("b")  # noqa: B015


def test_equality_of_unhashable_fields():
    """A frozen object whose field is a list is equal to its like, and has no hash."""

    @data.define(frozen=True)
    class Item:
        parts: list[int]

    assert Item([1]) == Item([1]) != Item([2])
    with pytest.raises(TypeError, match="unhashable"):
        hash(Item([1]))


def test_a_class_with_its_own_equality_keeps_it():
    """`__eq__` in the class's body is used, as attrs does."""

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
    """Return whether attrs has not made the methods of a class."""
    return isinstance(vars(cls)["__init__"], data._Late)


def test_methods_are_made_with_the_first_object():
    """By then attrs makes what it would have made at once; no instance has a dict."""
    assert is_late(Unused)
    item = Unused(2)
    assert not is_late(Unused)
    item.value = 3
    assert not hasattr(item, "__dict__")
    assert attrs.evolve(item, value=5).value == 5


def test_late_classes_inherit_pickle_and_refuse_as_those_of_attrs():
    """Fields of both classes, `super`, weak references, copies, pickles before the first object, and frozen ones."""
    assert (
        str(inspect.signature(Counted)) == "(name: 'str', numbers: 'list[int]' = NOTHING, *, count: 'int' = 1) -> None"
    )
    pair = Counted("pair", [1, 2], count=2)
    assert pair.title() == "Pair 2"
    assert weakref.ref(pair)() is pair
    assert pickle.loads(pickle.dumps(pair)) == copy.deepcopy(pair) == pair
    assert [field.name for field in attrs.fields(Counted)] == ["name", "numbers", "count"]
    assert Counted.__match_args__ == ("name", "numbers")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Named("x").name = "y"
    with pytest.raises(TypeError, match="unexpected keyword"):
        Named("x", other=2)


def test_patterns_are_compiled_when_they_are_used():
    """And then match as those of `re`."""
    digits = data.pattern(r"(\d+)", re.ASCII)
    assert set(vars(digits)) == {"_arguments"}
    assert digits.sub("n", "a1b22") == "anbn"
    assert digits.pattern == r"(\d+)"
    assert "sub" in vars(digits)
