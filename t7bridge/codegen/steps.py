"""The data of generated source before anything has a name: forms of values, steps, the modules that they apply, and the
classes. A step applies a module or an operation to the results of earlier steps; step 0 is the input of its class. The
result of a step, or an element of it, is a `Ref`. Knows neither entries nor statements.

The form of a value is what is known of its shape before the model runs, nothing in `Form()`. An example is one element
of a batch. The rank of a value is the number of dimensions of one example of it: 3 for images, in a batch or not. Lua
adds tensors of equal counts in memory order; PyTorch's `a + b` is the same only if both have one shape, which
`certainly_same_shape` proves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from attrs import field

from ..data import define
from ..nn.kinds import ANY, TENSOR, Kind
from ..nn.mapping import ModuleSpec
from ..nn.output_shapes import Extent
from ..nn.pieces import STATEFUL
from .code import Construction, Write, applied, sequential

# Forms of values


@define(eq=False)
class BatchOrigin:
    """Source of the batch dimension of values: all of one origin have it, with the same extent, or none has.

    Attributes:
        is_input: whether it is an input of the whole model. All of these are batches, or none is.
        required_extents: what layers require of a value that has the shape of this origin: the extent, by the rank of
            the layer's input and the dimension of one example, from 0.
    """

    is_input: bool = False
    required_extents: dict[tuple[int, int], int] = field(factory=dict)


@define(frozen=True)
class Form:
    """Shape of a value, as far as it is known.

    Attributes:
        rank: dimensions of one example; `None` if unknown. The value has one more if it is a batch.
        origin: the source of its batch dimension.
        extents: those of one example: each a number, or a symbol `(origin, rank, dim)` for an extent that the origin
            has as an input of that rank. Without any, the value has the shape of its origin.

    `Form()` says nothing: neither the rank nor the extents are known, and the origin is one of its own.
    """

    rank: int | None = None
    origin: BatchOrigin = field(factory=BatchOrigin)
    extents: tuple[Extent, ...] = ()

    def as_input_of_rank(self, rank: int) -> Form:
        """Return the form of this value as the input of a layer for examples of `rank` dimensions, with extents."""
        if self.rank not in (None, rank):
            # The layer groups the dimensions in another way: nothing is known of the value as its input.
            return Form(rank).as_input_of_rank(rank)
        if self.extents:
            return self
        symbols = tuple((self.origin, rank, dim) for dim in range(rank))
        return Form(rank, self.origin, symbols)

    def as_input_with_extent(self, rank: int, dim: int, extent: int | None) -> Form:
        """Return the form of this value as the input of a layer that requires one extent of it.

        The extent is noted at the origin if the value has its shape: so all values of that shape have it.

        Args:
            rank: the dimensions of one example for the layer.
            dim: the dimension whose extent the layer requires, from 0.
            extent: that extent; `None` if the layer's is not known.
        """
        form = self.as_input_of_rank(rank)
        has_shape_of_origin = form is not self  # else it has extents of its own
        if has_shape_of_origin and extent is not None:
            # The first layer's counts: if another requires a different one, either of the two fails.
            form.origin.required_extents.setdefault((rank, dim), extent)
        return form

    def known_extents(self) -> tuple[int, ...] | None:
        """Return the extents of one example if all are known as numbers, otherwise `None`."""
        extents = tuple(map(_number_if_known, self.extents))
        if not extents or not all(isinstance(extent, int) for extent in extents):
            return None
        return extents


def _number_if_known(extent: Extent) -> Extent:
    """Return the number for a symbol `(origin, rank, dim)` if a layer requires one; any other extent as it is."""
    is_symbol = isinstance(extent, tuple) and len(extent) == 3 and isinstance(extent[0], BatchOrigin)
    if not is_symbol:
        return extent
    origin, rank, dim = extent
    return origin.required_extents.get((rank, dim), extent)


def certainly_same_shape(one: Form, other: Form) -> bool:
    """Return whether two values certainly have the same shape; `False` if that is not known."""
    # Both are batches of one size, or neither is a batch: of one origin, and as two inputs of the model.
    is_same_batch = one.origin is other.origin or (one.origin.is_input and other.origin.is_input)
    if not is_same_batch:
        return False
    if one.rank is None and other.rank is None:
        # Both have the shapes of their origins; those of two inputs of the model may differ.
        return one.origin is other.origin
    if one.rank is not None and other.rank is not None and one.rank != other.rank:
        return False
    rank = one.rank if one.rank is not None else other.rank
    assert rank is not None
    # A symbol is equal to itself alone, so that extents of two origins are equal only as numbers.
    extents = [_number_if_known(extent) for extent in one.as_input_of_rank(rank).extents]
    other_extents = [_number_if_known(extent) for extent in other.as_input_of_rank(rank).extents]
    return extents == other_extents


# Steps and classes

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


# Shared memory


class SharedMemory:
    """Knows which steps write to memory that anything else uses.

    Attributes:
        uses: number of uses of each step's result, by the number of the step; 0 for one without use. That the class
            returns it is a use.

    Args:
        block: the class, whose steps stay as they are while this is in use; they may be replaced by expressions that
            share less memory.
        is_input_shared: whether the memory of the input counts as used by something else, whatever uses it here.
    """

    def __init__(self, block: CodeBlock, is_input_shared: bool = False) -> None:
        """Count the uses; what is shared is found when it is asked for, once for each step."""
        self._block = block
        self.uses = block.uses()
        self._shared: list[bool] = [True] if is_input_shared else []
        """Of each step so far, whether something else uses the memory of its result; step 0 is the input."""

    def is_changed_by(self, step: Step) -> bool:
        """Return whether a step works in place, and other steps use the memory of any of its operands, too."""
        return step.inplace and any(map(self._has_several_users, refs(step.operands)))

    def is_write_seen(self, step: Step) -> bool:
        """Return whether other steps, also outside of the class, would see a step write into its first operand."""
        first = step.operands[0]
        # A layer on a list writes into the first element.
        while isinstance(first, list):
            if not first:  # nothing is known of where it would write
                return True
            first = first[0]
        return self._has_several_users(first)

    def _has_several_users(self, ref: Ref) -> bool:
        """Return whether anything but one step may use the memory of a value; of an element, its list does."""
        return bool(ref.path) or self._is_result_shared(ref.step)

    def _is_result_shared(self, number: int) -> bool:
        """Return whether anything but one step uses the memory of a step's result, which may be its operands'."""
        # In order, as the operands of a step come before it.
        for earlier in range(len(self._shared), number + 1):
            step = self._block.steps[earlier]
            operands = refs(step.operands) if step and step.shares_memory else ()
            is_memory_of_shared = any(self._shared[ref.step] for ref in operands)
            self._shared.append(self.uses[earlier] > 1 or is_memory_of_shared)
        return self._shared[number]
