"""A forward method as steps: the data flow, before anything has a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from attrs import field

from ..data import define
from ..nn.flows import TENSOR, Kind
from .code import Construction, Node, apply, sequential
from .forms import Form


@define(frozen=True)
class Ref:
    """Reference to the result of a step, or to an element of it.

    Attributes:
        step: its number; 0 is the input.
        path: selected elements, one inside the other: from 0, or names.
    """

    step: int
    path: tuple[int | str, ...] = ()


Value: TypeAlias = "Ref | list[Value]"
"""One value, or a list of values that is not created until it is needed as a whole."""


@define(eq=False)
class Attribute:
    """A module that a class of the source holds.

    Attributes:
        base: its name, up to a number.
        calls: the modules, in sequence.
        own: whether it stays separate: used by several steps, or named by the user.
        name: its final name.
    """

    base: str
    calls: list[Construction]
    own: bool = False
    name: str = ""

    @property
    def call(self) -> Construction:
        """Return the construction of the whole."""
        return self.calls[0] if len(self.calls) == 1 else sequential(self.calls)


Write: TypeAlias = Callable[..., Node]
"""Makes the expression of a step from its module, if any, and its operands."""


def applied(module: Node, value: Node) -> Node:
    """Return the expression of a step that only passes its input through its module."""
    return apply(module, value)


@define(eq=False)
class Step:
    """One step.

    Attributes:
        write: makes its expression.
        takes: its operands.
        attribute: its module.
        function: makes the expression of an equivalent function, if there is one.
        unseen: the same for a module that changes its first input, if no other step sees that.
        form: shape of the result, as far as it is known.
        element: form of each element, if the result is a list of tensors of one shape.
        kind: whether the result is a tensor or a list, as far as it is known.
        inplace: whether it changes its input.
        same: whether the result may be the memory of the input.
        hint: suggested name of a variable for the result.
        named: whether `hint` is the user's name.
    """

    write: Write
    takes: list[Value]
    attribute: Attribute | None = None
    function: Write | None = None
    unseen: Write | None = None
    form: Form = field(factory=Form)
    element: Form | None = None
    kind: Kind = TENSOR
    inplace: bool = False
    same: bool = False
    hint: str = ""
    named: bool = False


def refs(value: Value) -> Iterator[Ref]:
    """Yield all references in a value."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, Ref):
            yield value
        else:
            stack += reversed(value)


def pick(value: Value, index: int | str) -> Value:
    """Return one element of a value."""
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
