"""The kinds of values of a plan: which are tensors, of which shape, which are lists, and of what, as far as known.

This is a domain of `walk`. Every class of modules returns a tensor, unless the `flow` of its traits says otherwise. The
`output` of its traits is the shape of what it returns for an input of known shape. What is not known before the model
runs is `ANY`. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from math import prod
from typing import Any

from attrs import evolve, field

from ..data import define
from . import walk
from .mapping import ModuleSpec, is_torch_or_ours
from .output_shapes import Arguments, Shape, Value, dim_from_front, joined

_MOST = 1_000_000
"""Maximum number of modules and elements that one analysis visits; the outputs of others are not known."""


@define(frozen=True)
class Kind:
    """What is known of the structure of a value: whether it is a tensor or a list, and of which shapes.

    Attributes:
        name: `tensor`, `list` or `any`; or `nothing`, Lua's nil, or `never` where Lua fails.
        items: the kinds of the elements of a list; `None` if their number is not known.
        each: the kind of every element then.
        size: number of kinds in it, itself included.
        shape: of a tensor, if known.
        origin: of a value that is the input of the model, or in it: the indices that lead to it.
        is_optional: whether it may be nothing instead, being an element of a list of unknown length.
    """

    name: str
    items: tuple[Kind, ...] | None = None
    each: Kind | None = None
    size: int = field(default=1, eq=False)
    shape: Shape | None = None
    origin: tuple[int, ...] | None = None
    is_optional: bool = False

    @property
    def is_list(self) -> bool:
        """Whether the value is certainly a list."""
        return self.name == "list"

    @property
    def value(self) -> Value:
        """The shape of a tensor, a list of values, or `None` if no shape in it is known."""
        if self.items is None:
            return self.shape
        shapes = [item.value for item in self.items]
        return shapes if any(shape is not None for shape in shapes) else None

    def at(self, index: int | str) -> Kind:
        """Return the kind of an element; of a tensor, which Lua indexes too, a tensor; `ANY` if nothing is known of it.

        Args:
            index: of the element, from 0, or from -1 backwards; or a name, as of a field of a Lua table: which element
                that is, is not known.
        """
        if self.name == "tensor":
            return TENSOR
        if not isinstance(index, int):
            return self.each or ANY
        if self.items is not None and -len(self.items) <= index < len(self.items):
            return self.items[index]
        if self.origin is not None:  # a part of the model's input, as the element is then
            return Kind("any", origin=(*self.origin, index))
        return self.each or ANY


TENSOR = Kind("tensor")
ANY = Kind("any")
NOTHING = Kind("nothing")
"""An element that a list does not have."""
NEVER = Kind("never")
"""The output of a layer that fails, as most do for `NOTHING`."""


def listed(items: Iterable[Kind]) -> Kind:
    """Return the kind of a list of known length; it ends before the first element that is nothing."""
    kinds = tuple(items)
    if NEVER in kinds:  # Lua failed before there was a list
        return NEVER
    kinds = tuple(takewhile(NOTHING.__ne__, kinds))
    size = 1 + sum(kind.size for kind in kinds)
    if size > walk.LARGEST:
        return many(_either(kinds))
    return Kind("list", items=kinds, size=size)


def many(each: Kind) -> Kind:
    """Return the kind of a list of unknown length, by that of each element; a kind that is too large is forgotten."""
    if each.size >= walk.LARGEST:
        each = ANY
    return Kind("list", each=each, size=1 + each.size)


def kind_of(value: Value) -> Kind:
    """Return the kind of a value: a shape, a list of values, or `None`."""
    if isinstance(value, list):
        return listed(map(kind_of, value))
    return ANY if value is None else Kind("tensor", shape=value)


def _either(kinds: Iterable[Kind]) -> Kind:
    """Return what is known of a value of one of several kinds."""
    distinct = set(kinds)
    return distinct.pop() if len(distinct) == 1 else ANY


class Kinds(walk.Domain[Kind]):
    """The kinds of the outputs of modules, by those of their inputs; each is computed once.

    Args:
        traits: returns the facts about a class, by its dotted name.
        steps: maximum number of modules and elements to visit; the outputs of further modules are `ANY`.

    Attributes:
        steps_left: number of modules and elements that may still be visited.
    """

    def __init__(self, traits: Callable[[str], Any], steps: int = _MOST) -> None:
        self._traits = traits
        self._outputs: dict[tuple[int, Kind], Kind] = {}
        self.steps_left = steps

    def __call__(self, spec: ModuleSpec, kind: Kind) -> Kind:
        """Return the kind of the output of a module; `ANY` once more was visited than `steps_left` allowed.

        Args:
            spec: the module.
            kind: that of its input.

        Raises:
            Mismatch: the shape of the input is known, and a layer does not accept it.
        """
        module_and_input = (id(spec), kind)
        if module_and_input in self._outputs:
            return self._outputs[module_and_input]
        self.steps_left -= kind.size + len(spec.children)  # `size` counts the elements of nested lists
        output = self.visit(spec, kind) if self.steps_left > 0 else ANY
        self._outputs[module_and_input] = output
        return output

    def visit(self, spec: ModuleSpec, kind: Kind) -> Kind:
        """Return the kind of the output of a module that was not visited with such an input before.

        Args:
            spec: the module.
            kind: that of its input. `NEVER` stays so: Lua failed before this module; `NOTHING` is Lua's nil.

        Raises:
            Mismatch: the shape of the input is known, and a layer does not accept it.
        """
        facts = self._traits(spec.target)
        input_shape = kind.value
        if kind == NEVER or (kind == NOTHING and facts.flow not in _ACCEPT_NOTHING):
            return NEVER
        # A shape says more than what a flow knows.
        if facts.output is not None and input_shape is not None:
            output_shape = facts.output(Arguments(spec.args, spec.kwargs), input_shape)
            if output_shape is not None:
                return kind_of(output_shape)
        if facts.flow is not None:
            output: Kind = facts.flow(spec, kind, self)
            return output
        if facts.returns_list:
            return many(ANY)
        # Of the classes of torch.nn and ours, all that return something else say so; a user's may return anything.
        return TENSOR if is_torch_or_ours(spec.target) else ANY

    # The domain

    def tensor(self) -> Kind:
        """Return a tensor of unknown shape."""
        return TENSOR

    def unknown(self) -> Kind:
        """Return a value of which nothing is known."""
        return ANY

    def items(self, values: Sequence[Kind]) -> Kind:
        """Return a list; if its last element may be nothing, its length is not known."""
        if not values or not values[-1].is_optional:
            return listed(values)
        last = evolve(values[-1], is_optional=False)
        return many(_either([*values[:-1], last]))

    def many(self, values: Sequence[Kind]) -> Kind:
        """Return a list of unknown length."""
        return many(_either(values))

    def item(self, value: Kind, index: int, dim: int | None = None) -> Kind:
        """Return an element, or a slice, which lacks the dimension."""
        if dim is None or value.shape is None:
            return value.at(index)
        dim = dim_from_front(dim, value.shape)
        return Kind("tensor", shape=(*value.shape[:dim], *value.shape[dim + 1 :]))

    def elements(self, value: Kind, count: int) -> list[Kind]:
        """Return the first elements of a list: as many as asked for, also if it has fewer.

        Args:
            value: the list.
            count: how many.

        Returns:
            `NOTHING` in the place of each element that a list of known length lacks; for one of unknown length the last
            element is optional. `NEVER` for all if Lua fails, as the list is nil.
        """
        if value == NOTHING:
            return [NEVER] * count
        if value.items is not None:
            missing_count = max(0, count - len(value.items))
            return [*value.items[:count], *[NOTHING] * missing_count]
        elements = [value.at(number) for number in range(count)]
        is_in_model_input = value.origin is not None  # which has all elements that the model uses
        if elements and not is_in_model_input:
            # The list may be shorter. To mark the last says enough, as the elements are only used to make a list
            # (`walk.parallel`): its length is then not known either, see `items`.
            elements[-1] = evolve(elements[-1], is_optional=True)
        return elements

    def length(self, value: Kind, dim: int | None = None) -> int | None:
        """Return the number of elements of a list, or of slices along a dimension; `None` if it is not known.

        Raises:
            Mismatch: the tensor has no such dimension.
        """
        if dim is None:
            return None if value.items is None else len(value.items)
        if value.shape is None:
            return None
        extent = value.shape[dim_from_front(dim, value.shape)]
        return extent if isinstance(extent, int) else None

    def is_list(self, value: Kind) -> bool | None:
        """Return whether a value is a list."""
        return None if value.name == "any" else value.is_list

    def concat(self, values: Sequence[Kind], dim: int, *, pads: bool = False) -> Kind:
        """Return the kind of tensors that are concatenated; its shape is known if those of all of them are.

        Args:
            values: the kinds of the tensors.
            dim: the dimension along which they are concatenated, 0-based; a negative one is counted from the end.
            pads: whether smaller ones become as large as the largest before.

        Raises:
            Mismatch: their shapes differ in another dimension, or in the number of dimensions.
        """
        # As in a list, those after one that is nothing do not count. If Lua failed in one, or there are too many for
        # their items to be known, the shape is not known either.
        parts = listed(values).items or ()
        shapes = [part.shape for part in parts if part.shape is not None]
        if not shapes or len(shapes) < len(parts):
            return TENSOR
        if pads and len({len(shape) for shape in shapes}) == 1:
            # All become as large as the largest, except along the dimension that is concatenated.
            dim = dim_from_front(dim, shapes[0])
            largest = tuple(map(max, zip(*shapes)))
            shapes = [(*largest[:dim], shape[dim], *largest[dim + 1 :]) for shape in shapes]
        return Kind("tensor", shape=joined(shapes, dim))

    def combine(self, values: Sequence[Kind]) -> Kind:
        """Return a tensor, of the shape of the values if those that are known are equal.

        Unknown ones could differ only by broadcasting.
        """
        shapes = {value.shape for value in values if value.shape is not None}
        return Kind("tensor", shape=shapes.pop()) if len(shapes) == 1 else TENSOR

    def merge(self, value: Kind, dims: int, apply: Callable[[Kind], Kind]) -> Kind:
        """Return the kind of what a function makes of a tensor whose first dimensions are merged, and split again.

        Args:
            value: the kind of the tensor.
            dims: dimensions in all after merging; a tensor that has no more, or an unknown one, is passed as it is.
            apply: the function.
        """
        shape = value.shape
        if shape is None or len(shape) <= dims:
            return apply(value)
        merged_count = len(shape) - dims + 1  # which become one, so that `dims` are left
        front = shape[:merged_count]
        output_shape = apply(Kind("tensor", shape=(prod(front), *shape[merged_count:]))).shape
        if output_shape is None:
            return TENSOR
        return Kind("tensor", shape=(*front, *output_shape[1:]))

    def steps(self, value: Kind, apply: Callable[[Kind], Kind]) -> Kind:
        """Return a list for a list, and a tensor for a tensor, whose first dimension are the steps.

        Args:
            value: the kind of the list or tensor.
            apply: the function that is applied to each step.
        """
        if value.is_list:
            return walk.each(self, value, lambda number, step: apply(step))
        if not value.shape:  # unknown, or without a dimension of steps
            return Kind(value.name)
        step_count, *step_shape = value.shape
        output_shape = apply(Kind("tensor", shape=tuple(step_shape))).shape
        if output_shape is None:
            return TENSOR
        return Kind("tensor", shape=(step_count, *output_shape))

    def stack(self, value: Kind, apply: Callable[[Kind], Kind]) -> Kind:
        """Return a list for a list; nothing is known of its elements, as the number of steps, a dimension, is not."""
        output_of_step = apply(TENSOR)
        return walk.each(self, value, lambda number, item: output_of_step) if value.is_list else ANY

    def call(self, spec: ModuleSpec, child: str, value: Kind, node: int | None = None) -> Kind:
        """Return the kind of the output of a module inside.

        Of an input that may be nothing, the output may be too, if the module accepts nothing; if it does not, Lua would
        have failed, and the input was there.

        Args:
            spec: the container.
            child: the name of the module in it.
            value: the input.
            node: not needed.
        """
        module = spec.children[child]
        if not value.is_optional:
            return self(module, value)
        may_be_nothing = self(module, NOTHING) != NEVER
        output = self(module, evolve(value, is_optional=False))
        return evolve(output, is_optional=True) if may_be_nothing else output


_ACCEPT_NOTHING = (walk.sequence, walk.branches, walk.parallel, walk.unchanged, walk.constant)
"""Flows of modules that Lua may apply to nothing; all other layers fail."""
