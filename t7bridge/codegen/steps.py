"""The data of generated source before anything has a name: steps, the modules that they apply, and the classes.

The result of a step, or an element of it, is a `Ref`. Knows neither entries nor statements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from attrs import field

from ..data import define
from ..nn.kinds import ANY, TENSOR, Kind
from ..nn.mapping import ModuleSpec
from ..nn.pieces import STATEFUL
from .code import Construction, Write, sequential
from .idioms import Form

ElementPath: TypeAlias = "tuple[int | str, ...]"
"""Selected elements, one inside the other: numbers from 0, or names."""


@define(frozen=True)
class Ref:
    """Reference to the result of a step, or to an element of it.

    Attributes:
        step: its number; 0 is the input.
        path: of the element; empty for the whole result.
    """

    step: int
    path: ElementPath = ()


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
        parts: the names of variables for the elements of the result, or for the result, of a recurrent layer; empty for
            one without a name of its own.
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
    parts: tuple[str, ...] = ()
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


@define(eq=False)
class CodeBlock:
    """A class of the source: modules, and steps between them.

    Attributes:
        spec: the module it represents.
        base: the name of the class, up to a number.
        name: the name of the class.
        steps: the steps; number 0 is the input, and those merged into others are `None`.
        result: the return value of `forward`.
        attributes: the modules, in the order of their first use.
        inputs: the user's names of the elements of the input, if it is a list, by their paths.
        width: number of elements of the input, if known.
        lists: number of elements of those elements of the input that are lists, if known.
        states: the names of the elements of the input that are states of cells, by their paths.
        returns: the names of the results that are, empty for others.
        more: whether it may have more, which are ignored.
        parameters: those of the constructor, with their annotations.
        whole: whether it is the class of the whole model.
    """

    spec: ModuleSpec
    base: str
    name: str = ""
    steps: list[Step | None] = field(factory=list)
    result: Value = field(factory=list)
    attributes: list[Attribute] = field(factory=list)
    inputs: dict[ElementPath, str] = field(factory=dict)
    width: int = 0
    lists: dict[int | str, int] = field(factory=dict)
    states: dict[ElementPath, str] = field(factory=dict)
    returns: tuple[str, ...] = ()
    more: bool = False
    parameters: dict[str, str] = field(factory=dict)
    whole: bool = False

    @property
    def input_kind(self) -> Kind:
        """Whether the input is a tensor or a list, as far as it is known."""
        return self.steps[0].kind if self.steps[0] is not None else ANY

    @property
    def is_stateful(self) -> bool:
        """Whether its inputs are arguments, those after the first states, and its outputs a tuple."""
        return self.spec.target == STATEFUL

    def links(self) -> Iterator[tuple[int, Ref]]:
        """Yield each reference with the number of the step that uses it; the result is beyond the last."""
        for number, step in enumerate(self.steps):
            for ref in refs(step.takes) if step else ():
                yield number, ref
        for ref in refs(self.result):
            yield len(self.steps), ref

    def uses(self) -> Counter[int]:
        """Count the uses of each step's result."""
        return Counter(ref.step for _, ref in self.links())

    def constructions(self) -> Iterator[Construction]:
        """Yield all constructions in it, outer ones first."""
        for attribute in self.attributes:
            yield from attribute.call.nested()
