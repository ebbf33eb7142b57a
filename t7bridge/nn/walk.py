"""What each container does, said once: how it passes its input to the modules inside, and what it returns.

Such a function is the `flow` of the traits of a class. It knows a value only by the operations of a `Domain`, which
says what a value is: a kind or a shape (`nn/kinds`), an arrow of a picture (`nn/blocks`), memory (`nn/memory`), a step
of source (`codegen/flow`), what Lua recorded (`workshop/prove/containers`). Each such question about a model is
answered by the same description of its containers. Layers that rearrange lists have a flow, too.
Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from .mapping import GraphNode, ModuleSpec
from .output_shapes import Mismatch

V = TypeVar("V")
LARGEST = 400
"""Maximum number of elements of a list that a flow makes."""


class Domain(ABC, Generic[V]):
    """The operations on values by which a flow describes a container, for one question about a model.

    What a value is, such as a shape or an arrow, is the subclass's choice. Dimensions and elements count from 0.
    """

    @abstractmethod
    def tensor(self) -> V:
        """Return a tensor of which nothing else is known."""

    @abstractmethod
    def items(self, values: Sequence[V]) -> V:
        """Return a list of these values."""

    @abstractmethod
    def item(self, value: V, index: int, dim: int | None = None) -> V:
        """Return an element of a list, or a slice of a tensor along a dimension.

        Args:
            value: the list or tensor.
            index: of the element, from 0; negative ones count from the end.
            dim: of the slices; `None` for a list.
        """

    @abstractmethod
    def length(self, value: V, dim: int | None = None) -> int | None:
        """Return the number of elements of a list, or of slices along a dimension; `None` if it is not known."""

    @abstractmethod
    def concat(self, values: Sequence[V], dim: int, *, pads: bool = False) -> V:
        """Return tensors concatenated along a dimension; `pads` if smaller ones become as large as the largest."""

    @abstractmethod
    def merge(self, value: V, dims: int, apply: Callable[[V], V]) -> V:
        """Apply a function to a tensor with its first dimensions merged into one, and split that of the result again.

        Args:
            value: the tensor.
            dims: dimensions in all after merging; a tensor that has no more is passed as it is.
            apply: the function.
        """

    @abstractmethod
    def call(self, spec: ModuleSpec, child: str, value: V, node: int | None = None) -> V:
        """Return the output of a module inside another.

        Args:
            spec: the container.
            child: the name of the module in it.
            value: its input.
            node: in a graph, the number of its node, from 0; a module may have several.
        """

    # What follows from these, unless a domain knows more.

    def unknown(self) -> V:
        """Return a value of which not even the structure is known."""
        return self.tensor()

    def many(self, values: Sequence[V]) -> V:
        """Return a list of unknown length, each of whose elements is one of these values."""
        return self.items(values)

    def combine(self, values: Sequence[V]) -> V:
        """Return a tensor that is computed from these, element by element, such as their sum."""
        return self.tensor()

    def elements(self, value: V, count: int) -> list[V]:
        """Return the first elements of a list, which may have fewer; what it has not is nil in Lua."""
        return [self.item(value, number) for number in range(count)]

    def is_list(self, value: V) -> bool | None:
        """Return whether a value is a list; `None` if it is not known."""
        return self.length(value) is not None

    def steps(self, value: V, apply: Callable[[V], V]) -> V:
        """Apply a function to each element of a list, or to each slice of a tensor along its first dimension."""
        return each(self, value, lambda number, step: apply(step))

    def each(self, value: V, apply: Callable[[int, V], V], different: int) -> V:
        """Apply one module, or a copy of it, to each element of a list; see `each`."""
        return each(self, value, apply, different)

    def reversed(self, value: V) -> V:
        """Return the elements of a list in the opposite order; what is not known to be a list as it is."""
        count = self.length(value)
        if count is None:
            return value
        return self.items([self.item(value, number) for number in reversed(range(count))])

    def node(self, spec: ModuleSpec, number: int, value: V) -> V:
        """Return the output of a node of a graph, from the output of its module; `number` is the node's, from 0."""
        return value

    def repeat(self, times: int | None, apply: Callable[[], V]) -> V:
        """Return a list of what a function returns, called several times; `None` if that number is not known."""
        output = apply()
        if times is None or not 0 <= times <= LARGEST:
            return self.many([output])
        return self.items([output] * times)

    def stack(self, value: V, apply: Callable[[V], V]) -> V:
        """Apply a function to the tensors of a list as one tensor with a further dimension, and list its slices."""
        output = apply(self.tensor())
        return each(self, value, lambda number, step: output)


FLOW_ERRORS = (ArithmeticError, AttributeError, LookupError, Mismatch, TypeError, ValueError)
"""What a flow, which a user may have written, raises for values of which nothing is known, or for damaged fields."""
Flow = Callable[[ModuleSpec, Any, Domain[Any]], Any]
"""What a module does: its output in a domain, for the module, its input and the domain."""


def each(d: Domain[V], value: V, apply: Callable[[int, V], V], different: int = 1) -> V:
    """Apply a function to each element of a list.

    Args:
        d: the domain.
        value: the list.
        apply: the function, of the element's number from 0, and the element.
        different: how many numbers the function tells apart, such as those of modules, one for each of the first
            elements. Further elements are passed with number 0: the first module is applied to them, too.
    """
    count = d.length(value)
    if count is None:
        # An element may be passed with any of these numbers; element 0 is as good as another.
        return d.many([apply(number, d.item(value, 0)) for number in range(different)])
    outputs = []
    for number in range(count):
        outputs.append(apply(number if number < different else 0, d.item(value, number)))
    return d.items(outputs)


# Containers.


def sequence(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Pass the input through the children, one after another."""
    for child in spec.children:
        value = d.call(spec, child, value)
    return value


def branches(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return a list of the outputs of all children."""
    return d.items([d.call(spec, child, value) for child in spec.children])


def concatenated(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return the outputs of all children, concatenated along `dim`."""
    return d.concat([d.call(spec, child, value) for child in spec.children], spec.kwargs["dim"])


def padded(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return the outputs of all children, concatenated along `dim`, smaller ones as large as the largest."""
    return d.concat([d.call(spec, child, value) for child in spec.children], spec.kwargs["dim"], pads=True)


def sliced(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Apply each child to one slice along `input_dim`; return their outputs, concatenated along `output_dim`.

    Args:
        spec: the container.
        value: its input, a tensor.
        d: the domain.

    Raises:
        Mismatch: there are more slices than children.
    """
    dim = spec.kwargs["input_dim"]
    children = list(spec.children)
    count = d.length(value, dim)
    if count is not None and count > len(children):
        raise Mismatch
    outputs = []
    # Without a known number of slices there is one for each child.
    for number, child in enumerate(children[:count]):
        outputs.append(d.call(spec, child, d.item(value, number, dim)))
    return d.concat(outputs, spec.kwargs["output_dim"])


def parallel(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Apply each child to one element of a list; return a list.

    Children after the last element get Lua's nil; elements after the last child are ignored.

    Args:
        spec: the container.
        value: its input, a list.
        d: the domain.
    """
    elements = d.elements(value, len(spec.children))
    return d.items([d.call(spec, child, element) for child, element in zip(spec.children, elements)])


def bottled(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Pass the input through the children with its first dimensions merged, so that it has `n_input_dims` in all."""
    return d.merge(value, spec.kwargs["n_input_dims"], lambda merged: sequence(spec, merged, d))


def mapped(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Apply the first child to each element of a list; the first elements have clones of it, if the file has some.

    Args:
        spec: the container, whose further children are the clones for the second element, the third and so on.
        value: its input, a list.
        d: the domain.
    """
    children = list(spec.children)
    if not children:  # a program removed them
        return value

    def apply(number: int, item: V) -> V:
        return d.call(spec, children[number], item)

    return d.each(value, apply, different=len(children))


def stepped(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Apply a child to each step of a list, or of a tensor."""
    child = next(iter(spec.children), None)
    if child is None:  # a program removed it
        return d.unknown()
    return d.steps(value, lambda step: d.call(spec, child, step))


def stacked(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Pass the steps of a list through the children as one tensor."""
    if d.is_list(value) is False:
        return sequence(spec, value, d)
    return d.stack(value, lambda steps: sequence(spec, steps, d))


def repeated(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return a list of the outputs of several calls: as many as the first argument says, or as a sequence has steps."""
    times = None if spec.kwargs.get("as_sequence") else spec.args[0]
    return d.repeat(times, lambda: sequence(spec, value, d))


def both_ways(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Pass all steps but the last to a forward module, all but the first to a backward one; a third joins the outputs.

    This is nn.BiSequencerLM, which predicts each step from those before it and those after it.

    Args:
        spec: the container, whose children are these three modules.
        value: its input, a list of steps.
        d: the domain.
    """
    forward, backward, joining = spec.children
    count = d.length(value)
    if count is None:
        all_but_last = d.unknown()
        all_but_first = d.unknown()
    else:
        all_but_last = d.items([d.item(value, number) for number in range(count - 1)])
        all_but_first = d.items([d.item(value, number) for number in range(1, count)])
    outputs = [d.call(spec, forward, all_but_last), d.call(spec, backward, all_but_first)]
    return d.call(spec, joining, d.items(outputs))


def recurrence(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return an output of nn.Recurrence.

    Args:
        spec: the module; its first argument is the shape of the output, or a tuple with one of these for each element
            of a list, which may be nested.
        value: its input, not used.
        d: the domain.
    """

    def of_sizes(sizes: Any) -> V:
        """Return a tensor for a shape, or a list for a tuple of shapes."""
        is_list = isinstance(sizes, tuple) and len(sizes) > 0 and not isinstance(sizes[0], int)
        return d.items([of_sizes(inner) for inner in sizes]) if is_list else d.tensor()

    return of_sizes(spec.args[0])


def graph(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Apply the nodes of a graph in their order; return its output.

    Args:
        spec: the module with the graph.
        value: its input.
        d: the domain.
    """
    assert spec.graph is not None

    def apply(number_from_1: int, node: GraphNode, inputs: V) -> V:
        number = number_from_1 - 1
        # A node without a module only makes a list of its inputs.
        output = inputs if node.module is None else d.call(spec, node.module, inputs, number)
        return d.node(spec, number, output)

    output: V = spec.graph.run(value, pick=d.item, apply=apply, joined=d.items)
    return output


# Layers.


def unchanged(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return the input, or another value of the same structure."""
    return value


def constant(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return a tensor, whatever the input."""
    return d.tensor()


def unknown(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return a value that is not known before the module runs."""
    return d.unknown()


def tensors(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return a list of tensors."""
    return d.many([d.tensor()])


def pair(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return a list of two tensors."""
    return d.items([d.tensor(), d.tensor()])


def with_state(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return a list of a tensor and a state."""
    return d.items([d.tensor(), d.unknown()])


def element(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return the element whose index is the first argument."""
    return d.item(value, spec.args[0])


def wrapped(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return a list of the input alone."""
    return d.items([value])


def narrowed(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return the elements of a list from the first argument on, counted from 0, as many as the second says.

    A list that ends before returns fewer.

    Args:
        spec: the module that returns them, with these two arguments.
        value: its input, a list.
        d: the domain.
    """
    start, length = spec.args
    count = d.length(value)
    if count is None:
        # The list may end before all of them; element 0 is as good as another.
        return d.many([d.item(value, 0)])
    if start < 0 or length < 0:  # no such elements exist: a damaged file
        return d.many([d.unknown()])
    end = min(start + length, count)
    return d.items([d.item(value, number) for number in range(start, end)])


def turned(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return the elements in the opposite order."""
    return d.reversed(value)


def flattened(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return a list of all tensors in nested lists: how many is known if the length of each list is.

    Args:
        spec: the module that returns it.
        value: its input, nested lists.
        d: the domain.
    """
    leaves = []
    stack = [value]
    while stack:
        part = stack.pop()
        if d.is_list(part) is False:  # for `None` it may be one
            leaves.append(part)
            continue
        count = d.length(part)
        # A list of unknown length, or what may be a list, makes the number of leaves unknown.
        if count is None:
            return d.many([d.tensor()])
        stack += [d.item(part, number) for number in reversed(range(count))]
    return d.items(leaves)


def zipped(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return lists of first elements, of second elements, and so on, of several lists; as many as the longest has.

    Args:
        spec: the module that returns them.
        value: its input, a list of lists; if a number of elements is unknown, so are the numbers of the output.
        d: the domain.
    """
    list_count = d.length(value)
    if list_count is None:
        return d.many([d.many([d.unknown()])])
    lists = [d.item(value, number) for number in range(list_count)]
    lengths = [length for length in map(d.length, lists) if length is not None]
    if len(lengths) < list_count:
        return d.many([d.many([d.unknown()])])
    rows = []
    for number in range(max(lengths, default=0)):
        # A shorter list has no such element: the new list has fewer.
        elements = [d.item(part, number) for part, length in zip(lists, lengths) if number < length]
        rows.append(d.items(elements))
    return d.items(rows)


def paired(spec: ModuleSpec, value: V, d: Domain[V]) -> V:
    """Return pairs of the first element and each element of the second, a list."""
    first = d.item(value, 0)
    return each(d, d.item(value, 1), lambda number, other: d.items([first, other]))
