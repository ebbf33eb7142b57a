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
from .code import Construction, Write, applied, sequential
from .forms import Form

ElementPath: TypeAlias = "tuple[int | str, ...]"
"""Selected elements, one inside the other: numbers from 0, or names."""


@define(frozen=True)
class Ref:
    """Reference to the result of a step of `forward`, or to an element of it.

    Attributes:
        step: its number; 0 is the input.
        path: of the element; empty for the whole result.
    """

    step: int
    path: ElementPath = ()

    @property
    def is_in_input(self) -> bool:
        """Whether it is the input of the class, or an element of it."""
        return self.step == 0


PARTS = "parts"
"""The name suggested for a tensor that is split into a list of slices."""
GATES = "gates"
"""The name suggested for such a list if each of its elements is the input of a function of gates."""

INPUT = Ref(0)
"""The input of a class as a whole."""

Value: TypeAlias = "Ref | list[Value]"
"""One value, or a list of values that is not created until it is needed as a whole."""


@define(eq=False)
class Attribute:
    """An attribute of a generated class: a module, or several modules in a Sequential.

    Attributes:
        base_name: its name without a number: `conv` of `conv2`.
        constructions: the constructions of the modules, in sequence.
        stays_separate: whether it is never joined with others into a Sequential, because several steps use it, or the
            user named it.
        name: its final name; empty until `tidy` numbers those of one base name.
    """

    base_name: str
    constructions: list[Construction]
    stays_separate: bool = False
    name: str = ""

    @property
    def construction(self) -> Construction:
        """Return the construction of the whole."""
        return self.constructions[0] if len(self.constructions) == 1 else sequential(self.constructions)


@define(eq=False)
class Step:
    """One step of `forward`: a module, function or operator applied to the results of earlier steps.

    Attributes:
        write: makes its expression.
        operands: what it computes from, in the order of the arguments of `write`, after its module.
        attribute: its module.
        function: makes the expression of an equivalent function of PyTorch, if there is one.
        out_of_place: of a module that changes its first operand in place, the same expression without that change, for
            use where nothing else reads the changed memory.
        form: shape of the result, as far as it is known.
        element_form: form of each element, if the result is a list of tensors of one shape.
        kind: whether the result is a tensor or a list, as far as it is known.
        inplace: whether it changes its first operand in place.
        shares_memory: whether the result may be in the memory of its operands.
        result_names: of a recurrent layer, the names of variables for the elements of the result, or for the only one;
            empty for one that has no name of its own.
        suggested_name: a name of a variable for the result.
        is_node_name: whether the suggested name is that of a node of a graph: the user's, or of `attention_names`.
    """

    write: Write
    operands: list[Value]
    attribute: Attribute | None = None
    function: Write | None = None
    out_of_place: Write | None = None
    form: Form = field(factory=Form)
    element_form: Form | None = None
    kind: Kind = TENSOR
    inplace: bool = False
    shares_memory: bool = False
    result_names: tuple[str, ...] = ()
    suggested_name: str = ""
    is_node_name: bool = False

    @property
    def called_module(self) -> Attribute | None:
        """The module that it calls, and no more than that; `None` if there are operations around it, or no module."""
        return self.attribute if self.write is applied else None


def refs(value: Value) -> Iterator[Ref]:
    """Yield all references in a value, from left to right."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, Ref):
            yield value
        else:
            stack += reversed(value)


def pick(value: Value, index: int | str) -> Value:
    """Return one element of a value: of a list that element, of a result a longer reference."""
    if isinstance(value, Ref):
        return Ref(value.step, (*value.path, index))
    assert isinstance(index, int)
    return value[index]


@define(eq=False)
class CodeBlock:
    """A class of the generated source: its modules, and the steps of its `forward`.

    Attributes:
        spec: the module it represents.
        base_name: the name of the class without a number: `Block` of `Block2`.
        name: the name of the class.
        steps: the steps; number 0 is the input, and those merged into others are `None`.
        result: the return value of `forward`.
        attributes: the modules, in the order of their first use.
        input_names: the user's names of the elements of the input, if it is a list, by their paths.
        input_count: number of elements of the input, a list; 0 if it is not known.
        list_lengths: number of elements of those elements of the input that are lists, by their indices in it.
        state_names: the names of the elements of the input that are states of cells, by their paths; empty until the
            class is written.
        result_names: the names of the results that are states of cells, empty for other results; likewise.
        ignores_further_inputs: whether the input may have more elements than `input_count`, which are not used.
        parameters: those of the constructor, with their annotations.
        is_whole_model: whether it is the class of the whole model.
    """

    spec: ModuleSpec
    base_name: str
    name: str = ""
    steps: list[Step | None] = field(factory=list)
    result: Value = field(factory=list)
    attributes: list[Attribute] = field(factory=list)
    input_names: dict[ElementPath, str] = field(factory=dict)
    input_count: int = 0
    list_lengths: dict[int, int] = field(factory=dict)
    state_names: dict[ElementPath, str] = field(factory=dict)
    result_names: tuple[str, ...] = ()
    ignores_further_inputs: bool = False
    parameters: dict[str, str] = field(factory=dict)
    is_whole_model: bool = False

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
            for ref in refs(step.operands) if step else ():
                yield number, ref
        for ref in refs(self.result):
            yield len(self.steps), ref

    def uses(self) -> Counter[int]:
        """Count the uses of each step's result."""
        return Counter(ref.step for _, ref in self.links())

    def last_uses(self) -> dict[int, int]:
        """Return the last step that uses the result of each step that is used; `links` says what the numbers are."""
        return {ref.step: number for number, ref in self.links()}  # the last replaces all earlier ones

    def used_elements(self) -> dict[int, set[ElementPath]]:
        """Return what is used of the result of each step: elements, as paths of one index, or the whole, `()`."""
        elements: dict[int, set[ElementPath]] = {}
        for _, ref in self.links():
            elements.setdefault(ref.step, set()).add(ref.path[:1])
        return elements

    def constructions(self) -> Iterator[Construction]:
        """Yield all constructions in it, outer ones first."""
        for attribute in self.attributes:
            yield from attribute.construction.with_inner()
