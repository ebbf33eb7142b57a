"""A forward method as steps: what is computed from what, before anything has a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from attrs import field

from ..data import define
from .code import Call, Node, apply, sequential
from .forms import Form


@define(frozen=True)
class Ref:
    """Reference to the result of a step, or to an element of it.

    Attributes:
        step: its number; 0 is the input.
        path: which elements, one inside the other: from 0, or names.
    """

    step: int
    path: tuple[int | str, ...] = ()


Value: TypeAlias = "Ref | list[Value]"
"""One value, or a list of them that is not made before somebody asks for it as a whole."""


@define(eq=False)
class Attribute:
    """A module that a class of the source holds.

    Attributes:
        base: what it is called, up to a number.
        calls: the modules, one behind the other.
        own: whether it is to stay by itself: used at several steps, or named by the user.
        name: what it is called in the end.
    """

    base: str
    calls: list[Call]
    own: bool = False
    name: str = ""

    @property
    def call(self) -> Call:
        """The construction of the whole."""
        return self.calls[0] if len(self.calls) == 1 else sequential(self.calls)


Write: TypeAlias = Callable[..., Node]
"""Makes the expression of a step: given its module, where it has one, and then its operands."""


def applied(module: Node, value: Node) -> Node:
    """The expression of a step that passes its input through its module and does nothing else."""
    return apply(module, value)


@define(eq=False)
class Step:
    """One step.

    Attributes:
        write: makes its expression.
        takes: its operands.
        attribute: its module.
        function: makes the expression of a function that does the same as the module, where there is one.
        unseen: the same of a module that changes its first input, where nobody else sees that.
        form: shape of the result, as far as it is known.
        element: that of each element, where the result is a list of tensors of one shape.
        kind: `Tensor`, or another annotation of the result.
        inplace: whether it changes its input.
        same: whether the result may be the memory of the input.
        hint: what a variable with the result is called.
        named: whether `hint` is a name that the user chose.
    """

    write: Write
    takes: list[Value]
    attribute: Attribute | None = None
    function: Write | None = None
    unseen: Write | None = None
    form: Form = field(factory=Form)
    element: Form | None = None
    kind: str = "Tensor"
    inplace: bool = False
    same: bool = False
    hint: str = ""
    named: bool = False


def refs(value: Value) -> Iterator[Ref]:
    """All references in a value."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, Ref):
            yield value
        else:
            stack += reversed(value)


def pick(value: Value, index: int | str) -> Value:
    """One element of a value."""
    if isinstance(value, Ref):
        return Ref(value.step, (*value.path, index))
    assert isinstance(index, int)
    return value[index]


def count_uses(steps: list[Step | None], result: Value) -> dict[int, int]:
    """Count the uses of each step's result."""
    uses: dict[int, int] = {}
    for step in steps:
        for taken in step.takes if step else ():
            for ref in refs(taken):
                uses[ref.step] = uses.get(ref.step, 0) + 1
    for ref in refs(result):
        uses[ref.step] = uses.get(ref.step, 0) + 1
    return uses
