"""The values in a graph: `Rows` of features that are polynomials, lists of values, and tuples of `Rows` that are joined
along their features. A polynomial is a sequence of terms, each a product of atoms and a number, its factor. An atom is
a value of which nothing else is known, a function of a polynomial, a block of a matrix times one, or of a vector.

Inputs are taken to be batches. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

from attrs import evolve

from ...data import define
from ...graph.tensor import Tensor
from ...nn.fields import items_of, lookup
from ...nn.mapping import GraphNode, GraphSpec, Link, ModuleSpec
from ...nn.registry import traits_of
from ...nn.torch_nn import argument_at
from ...nn.walk import FLOW_ERRORS, Domain
from .polynomials import (
    FUNCTIONS,
    Atom,
    Atoms,
    Block,
    HalfOfMatrix,
    Poly,
    UnknownValue,
    atom_alone,
    number_alone,
    polynomial,
    scaled,
    single_atom,
    times,
)

_MOST_TERMS = 32
"""Maximum terms of a polynomial, and parts of a value; nothing is known of a larger one."""
_MOST_ADDED = 16.0
"""Largest number that is added to a value: after larger ones its last digits are lost."""
_DIMS_OF_ROWS = ((1, None), (-2, None), (0, 2))
"""How layers name the dimension of the rows into which examples are cut: the second of a batch's three, or, where the
layer is told that an example has two dimensions, the first of an example. Dimensions count from 0.
"""
_DIMS_OF_FEATURES = ((1, None), (-1, None), (0, 1))
"""How layers name the dimension of the features that are not cut: the second or last of a batch, or, where the layer is
told that an example has one dimension, the first of an example.
"""


def graph_of(spec: ModuleSpec) -> GraphSpec:
    """Return the data flow of a graph."""
    assert spec.graph is not None
    return spec.graph


def upstream(links: Iterable[Link], takes: Callable[[int], Iterable[Link]]) -> set[Link]:
    """Return links, and all links that they depend on.

    Args:
        links: where to begin.
        takes: returns the inputs of a node, by its number from 1.
    """
    reached: set[Link] = set()
    stack = [*links]
    while stack:
        link = stack.pop()
        if link in reached:
            continue
        reached.add(link)
        number, _ = link
        if number != 0:  # the input of the graph takes nothing
            stack += takes(number)
    return reached


@define(frozen=True)
class Rows:
    """A value whose rows are examples, or parts of examples that were cut.

    Attributes:
        poly: what each feature is, of all of which it is said at once: a function works on each, and a block has a row
            for each.
        size: number of features of an example, if known.
        parts: number of rows into which a reshape cut the features of each example; 1 for a value that is not cut.
    """

    poly: Poly
    size: int | None = None
    parts: int = 1


_Value = Any
"""`Rows`, a list of values, or a tuple of `Rows` whose features follow one another."""


class Values:
    """The values of one graph, each of which is `Rows` of features, a list of values, or a tuple of `Rows` that are
    joined. Each class of layers that is understood names its method here (`Traits.polynomial`). Such a method returns
    the output of a module, for the module, the prefix of the names of its tensors in the graph (`linear.`), and its
    input. It raises `UnknownValue` for an input or options whose output is no such polynomial.

    Attributes:
        atoms: the atoms of all polynomials.
        links: the first link to each value so far, by its polynomial: to the output of a node, to the input of the
            graph, number 0, or to an element of these.

    Args:
        spec: the graph.
        keys: the names of tensors in it, relative to it: `linear.weight`.
    """

    def __init__(self, spec: ModuleSpec, keys: frozenset[str]) -> None:
        """Begin without atoms; `run` goes through the nodes."""
        self._spec = spec
        self._graph = graph_of(spec)
        self._keys = keys
        self.atoms = Atoms()
        self.links: dict[Poly, Link] = {}
        self._values: list[_Value] = []
        """The input of the graph, and then the output of each node."""
        self._recorded_input = lookup(spec.obj, "innode.data.input") if spec.obj is not None else None
        """The last input of the graph, if the file has it."""

    def _as_atom(self, link: Link, size: int | None = None) -> Rows:
        """Return the value of a link as an atom of which nothing else is known, except perhaps its size.

        Args:
            link: the link.
            size: its number of features, if known; that of an input is taken from the file if it is recorded.
        """
        number, path = link
        if number == 0:  # the input of the graph, or an element of it
            recorded_size = self._recorded_size(path)
            size = size if recorded_size is None else recorded_size
        return Rows(atom_alone(self.atoms.of_value(link)), size)

    def _recorded_size(self, path: tuple[int, ...]) -> int | None:
        """Return the number of features of an element of the last input; `None` if the file does not have it.

        Args:
            path: from the input of the graph to the element; empty for the input itself.
        """
        recorded = self._recorded_input
        for index in path:
            items = items_of(recorded) or []
            recorded = items[index] if 0 <= index < len(items) else None
        if not isinstance(recorded, Tensor) or len(recorded.size) != 2:  # examples and features
            return None
        _, features = recorded.size
        return features

    def run(self) -> Iterator[tuple[int, Poly]]:
        """Yield the number of each node that returns rows of features, which are not cut, and what each feature is.

        Before it asks for the next, the caller may `replace` the value by an atom, which the nodes after it then take.
        """
        self._values = [self._as_atom((0, ()))]
        for number, node in enumerate(self._graph.nodes, 1):
            value = self._output_of_node(number, node)
            self._values.append(value)
            if isinstance(value, Rows) and value.parts == 1:
                yield number, value.poly
                value = self._values[number]  # which the caller may have replaced
                self.links.setdefault(value.poly, (number, ()))

    def _output_of_node(self, number: int, node: GraphNode) -> _Value:
        """Return the output of a node; an atom if nothing is known of what its module computes."""
        inputs = [self.fetch(link) for link in node.takes]
        value = inputs[0] if len(inputs) == 1 else inputs
        if node.module is None:
            return value
        spec = self._spec.children[node.module]
        try:
            return self.output(spec, f"{node.module}.", value)
        except UnknownValue:
            return self._as_atom((number, ()), _width(spec))

    def atom_of(self, number: int) -> Atom:
        """Return the atom that the value of a node is, or one that may `replace` it.

        Args:
            number: of the node, from 1; its value is rows of features.
        """
        atom = single_atom(self._values[number].poly)
        return self.atoms.of_value((number, ())) if atom is None else atom

    def replace(self, number: int, atom: Atom) -> None:
        """Make an atom the value of a node, of the same size."""
        self._values[number] = Rows(atom_alone(atom), self._values[number].size)

    def fetch(self, link: Link) -> _Value:
        """Return the value of a link, and note the link in `links` if the value has none there yet.

        Args:
            link: to the output of a node before, or to the input of the graph. Negative numbers of its path count
                elements from the end.
        """
        number, path = link
        value = self._values[number]
        for depth, index in enumerate(path, 1):
            if isinstance(value, list) and -len(value) <= index < len(value):
                value = value[index]
            else:  # an element of what is no list here is a value of its own, of which nothing is known
                value = self._as_atom((number, path[:depth]))
        if isinstance(value, Rows):
            self.links.setdefault(value.poly, link)
        return value

    def output(self, spec: ModuleSpec, prefix: str, value: _Value) -> _Value:
        """Return the output of a module: what the method that its class names returns, or that of the modules in it.

        Args:
            spec: the module.
            prefix: of the names of its tensors.
            value: its input.

        Raises:
            UnknownValue: nothing is known of it.
        """
        traits = traits_of(spec.target)
        if spec.kwargs.get("inplace"):
            raise UnknownValue  # it would change its input, which other nodes may use
        try:
            if traits.polynomial:
                # The name of a method of this class, and a last argument for it where it serves several classes.
                name, *operation = traits.polynomial
                method = getattr(self, name)
                return method(spec, prefix, value, *operation)
            # Only of a container that computes nothing besides its modules. Cells are searched in each graph by itself:
            # the output of a graph inside of this one is an atom.
            if traits.flow is None or not traits.transparent or traits.is_graph:
                raise UnknownValue
            return traits.flow(spec, value, _Passed(self, prefix))
        except (*FLOW_ERRORS, RecursionError) as error:  # arguments of a damaged file, or modules nested too deep
            raise UnknownValue from error

    # What modules return; their arguments count dimensions and elements from 0

    def identity(self, spec: ModuleSpec, prefix: str, value: _Value) -> _Value:
        """Return the input."""
        return value

    def linear(self, spec: ModuleSpec, prefix: str, value: _Value) -> _Value:
        """Multiply with a matrix, and add a bias if the module has one.

        Args:
            spec: the linear layer.
            prefix: of the names of its tensors.
            value: rows of features, or several whose features follow one another: each is multiplied by its columns.

        Raises:
            UnknownValue: the value has another number of features than the matrix has columns.
        """
        input_size, output_size = spec.args[:2]
        joined = value if isinstance(value, tuple) else (value,)
        parts = [_rows(part) for part in joined]
        # W (a, b) is A a + B b: of the columns of W those of A multiply the first part, and those of B the second.
        blocks = _blocks_of_columns(f"{prefix}weight", input_size, output_size, [part.size for part in parts])
        terms: list[Any] = []
        for part, block in zip(parts, blocks):
            terms += atom_alone(self.atoms.matrix(block, part.poly))
        if f"{prefix}bias" in self._keys:
            bias = Block(f"{prefix}bias", start=(0,), size=(output_size,))
            terms += atom_alone(self.atoms.vector(bias))
        return Rows(polynomial(terms), output_size)

    def function(self, spec: ModuleSpec, prefix: str, value: _Value, name: str) -> _Value:
        """Apply a function, one of `FUNCTIONS`, to every element."""
        rows = _rows(value, may_be_cut=True)
        return evolve(rows, poly=atom_alone(self.atoms.function(name, rows.poly)))

    def combined(self, spec: ModuleSpec, prefix: str, value: _Value, operation: str) -> _Value:
        """Add, subtract or multiply the values of a list, element by element; from the first the others are subtracted.

        A value may be cut into several rows for each example (`Rows.parts`), which changes none of its elements.

        Args:
            spec: not used.
            prefix: not used.
            value: the list.
            operation: `add`, `subtract` or `multiply`.

        Raises:
            UnknownValue: they are of different sizes, or cut in different ways, or the result has too many terms.
        """
        first, *others = (_rows(item, may_be_cut=True) for item in value)
        known_sizes = {item.size for item in (first, *others)} - {None}
        if len(known_sizes) > 1 or any(other.parts != first.parts for other in others):
            raise UnknownValue
        poly = first.poly
        for other in others:
            poly = _combination(poly, other.poly, operation)
        if len(poly) > _MOST_TERMS:
            raise UnknownValue
        size = known_sizes.pop() if known_sizes else None
        return Rows(poly, size, first.parts)

    def constant(self, spec: ModuleSpec, prefix: str, value: _Value, operation: str) -> _Value:
        """Add the number that is the module's argument, or multiply with it.

        Args:
            spec: the module.
            prefix: not used.
            value: its input, which may be cut: every element gets the same number.
            operation: `add` or `multiply`.

        Raises:
            UnknownValue: it adds more than `_MOST_ADDED`, or multiplies with another number than 1 and -1, which
                rounds.
        """
        rows = _rows(value, may_be_cut=True)
        number = float(spec.args[0])
        if operation == "add":
            if abs(number) > _MOST_ADDED:
                raise UnknownValue
            return evolve(rows, poly=polynomial((*rows.poly, *number_alone(number))))
        if abs(number) != 1:
            raise UnknownValue
        return evolve(rows, poly=scaled(rows.poly, number))

    def learned(self, spec: ModuleSpec, prefix: str, value: _Value, operation: str) -> _Value:
        """Add a vector of the module, `bias`, or multiply with one, `weight`.

        Args:
            spec: the module.
            prefix: of the names of its tensors.
            value: its input.
            operation: `add` or `multiply`.

        Raises:
            UnknownValue: the module's tensor has not one number for each feature of the input.
        """
        rows = _rows(value)
        size = prod(spec.args)  # the arguments are the shape of the tensor
        # One number for each feature, the same for all examples; a `scalar` is one for all features.
        is_vector = not spec.kwargs.get("scalar") and spec.args in ((size,), (1, size))
        if not is_vector or rows.size not in (None, size):
            raise UnknownValue
        name = "bias" if operation == "add" else "weight"
        vector = atom_alone(self.atoms.vector(Block(prefix + name, start=(0,), size=(size,))))
        return Rows(_combination(rows.poly, vector, operation), size)

    def viewed(self, spec: ModuleSpec, prefix: str, value: _Value) -> _Value:
        """Cut the features of each example into rows, as nn.View does."""
        sizes = spec.args
        # Where the layer does not know the dimensions of an example, a first size of -1 is that of the batch.
        if len(sizes) == 3 and sizes[0] == -1 and "n_input_dims" not in spec.kwargs:
            sizes = sizes[1:]
        return _cut(value, sizes)

    def reshaped(self, spec: ModuleSpec, prefix: str, value: _Value) -> _Value:
        """Cut the features of each example into rows, as nn.Reshape does."""
        if spec.kwargs.get("batch_mode") is False:  # a batch would become one example
            raise UnknownValue
        return _cut(value, spec.args)

    def split(self, spec: ModuleSpec, prefix: str, value: _Value) -> _Value:
        """List the rows of each example, as nn.SplitTable does."""
        return self._split(value, dim=spec.args[0], dims_of_example=spec.kwargs.get("n_input_dims"))

    def _split(self, value: _Value, dim: int, dims_of_example: int | None) -> list[_Value]:
        """List the rows of each example.

        Args:
            value: features that are cut into rows.
            dim: the dimension along which Lua splits, from 0; negative ones count from the last.
            dims_of_example: the number of dimensions of an example, if the layer counts `dim` within one.

        Raises:
            UnknownValue: it is not cut into rows, or split along another dimension.
        """
        rows = _rows(value, may_be_cut=True)
        if (dim, dims_of_example) not in _DIMS_OF_ROWS:
            raise UnknownValue
        if rows.parts == 1 or rows.size is None:  # there are no rows, or nobody knows how wide they are
            raise UnknownValue
        width = rows.size // rows.parts
        return [self._slice(rows, number * width, width) for number in range(rows.parts)]

    def selected(self, spec: ModuleSpec, prefix: str, value: _Value) -> _Value:
        """Select one row of each example, as nn.Select does; without that row it raises an IndexError for `output`."""
        dim, index = spec.args
        return self._split(value, dim, dims_of_example=None)[index]

    def narrowed(self, spec: ModuleSpec, prefix: str, value: _Value) -> _Value:
        """Return a range of features, as nn.Narrow does."""
        rows = _rows(value)
        dim, start, length = spec.args
        if (dim, None) not in _DIMS_OF_FEATURES or rows.size is None:
            raise UnknownValue
        # Negative numbers would count from the end, which no cell does.
        if start < 0 or length < 1 or start + length > rows.size:
            raise UnknownValue
        return self._slice(rows, start, length)

    def _slice(self, rows: Rows, start: int, length: int) -> Rows:
        """Return a range of the features of a value: each of its atoms is narrowed to that range.

        Args:
            rows: the value.
            start: the first feature, 0-based.
            length: number of features.

        Raises:
            UnknownValue: an atom is a value of which nothing else is known.
        """
        terms: list[Any] = []
        for atoms, factor in rows.poly:
            sliced = number_alone(factor)
            for atom in atoms:
                sliced = times(sliced, self._slice_of_atom(atom, start, length))
            terms += sliced
        return Rows(polynomial(terms), length)

    def _slice_of_atom(self, atom: Atom, start: int, length: int) -> Poly:
        """Return a range of the features of an atom.

        Args:
            atom: the atom.
            start: the first feature, 0-based.
            length: number of features.

        Raises:
            UnknownValue: it is a value of which nothing else is known.
        """
        if atom.kind == "value":
            raise UnknownValue
        if atom.kind in FUNCTIONS:  # of each feature by itself
            argument = self._slice(Rows(atom.of), start, length)
            return atom_alone(self.atoms.function(atom.kind, argument.poly))
        block = atom.block.narrowed(start, length)  # it has a row for each feature
        narrowed = self.atoms.matrix(block, atom.of) if atom.kind == "matrix" else self.atoms.vector(block)
        return atom_alone(narrowed)

    def joined(self, spec: ModuleSpec, prefix: str, value: _Value) -> _Value:
        """Join the features of several values, as nn.JoinTable does; `linear` multiplies each with its own columns.

        Args:
            spec: the module.
            prefix: not used.
            value: a list, whose elements may be joined values themselves.

        Returns:
            All values, as a tuple.

        Raises:
            UnknownValue: they are joined along another dimension than that of the features.
        """
        dim = spec.args[0]
        if (dim, spec.kwargs.get("n_input_dims")) not in _DIMS_OF_FEATURES:
            raise UnknownValue
        parts: list[Rows] = []
        for item in value:
            if isinstance(item, tuple):
                parts += item
            else:
                parts.append(_rows(item))
        if len(parts) > _MOST_TERMS:
            raise UnknownValue
        return tuple(parts)


class _Passed(Domain[_Value]):
    """The values in a container, as a domain of `nn/walk`: everything but a list of known values is unknown.

    Args:
        values: the values of the graph.
        prefix: of the names of the tensors in the container.
    """

    def __init__(self, values: Values, prefix: str) -> None:
        self._values = values
        self._prefix = prefix

    def tensor(self) -> _Value:
        """Refuse a tensor of which nothing is known."""
        raise UnknownValue

    def items(self, values: Sequence[_Value]) -> _Value:
        """Return a list."""
        return [*values]

    def many(self, values: Sequence[_Value]) -> _Value:
        """Refuse a list of unknown length."""
        raise UnknownValue

    def item(self, value: _Value, index: int, dim: int | None = None) -> _Value:
        """Return an element of a list; refuse a slice of a tensor."""
        if dim is not None:
            raise UnknownValue
        return _listed(value)[index]

    def elements(self, value: _Value, count: int) -> list[_Value]:
        """Return the elements of a list, which must be as many."""
        if len(_listed(value)) != count:
            raise UnknownValue
        return _listed(value)

    def length(self, value: _Value, dim: int | None = None) -> int | None:
        """Return the number of elements of a list; refuse a tensor."""
        if dim is not None:
            raise UnknownValue
        return len(_listed(value))

    def concat(self, values: Sequence[_Value], dim: int, *, pads: bool = False) -> _Value:
        """Refuse tensors that follow one another."""
        raise UnknownValue

    def merge(self, value: _Value, dims: int, apply: Callable[[_Value], _Value]) -> _Value:
        """Refuse other dimensions."""
        raise UnknownValue

    def call(self, spec: ModuleSpec, child: str, value: _Value, node: int | None = None) -> _Value:
        """Return the output of a module inside a container; of the arguments, see `Domain.call`."""
        return self._values.output(spec.children[child], f"{self._prefix}{child}.", value)


def _combination(poly: Poly, other: Poly, operation: str) -> Poly:
    """Return the sum, difference or product of two polynomials.

    Args:
        poly: the first.
        other: the second.
        operation: `add`, `subtract` or `multiply`.

    Raises:
        UnknownValue: a product would have too many terms, or terms cancel each other.
    """
    if operation == "multiply":
        if len(poly) * len(other) > _MOST_TERMS:
            raise UnknownValue
        return times(poly, other)
    sign = 1.0 if operation == "add" else -1.0
    return polynomial((*poly, *scaled(other, sign)))


def _width(spec: ModuleSpec) -> int | None:
    """Return the number of features that a module returns; `None` if its arguments do not say so."""
    place = traits_of(spec.target).features
    width = None if place is None else argument_at(spec, place)
    return None if width is None else int(width)


def _blocks_of_columns(key: str, inputs: int, outputs: int, sizes: list[int | None]) -> list[Block]:
    """Return the blocks of a matrix that multiply each of several joined values.

    Args:
        key: of the matrix.
        inputs: its number of columns.
        outputs: its number of rows.
        sizes: numbers of features of the values, `None` where unknown.

    Raises:
        UnknownValue: the sizes do not add up, or too many are unknown.
    """
    if sizes == [None, None]:
        # Where the second one begins is found by `search`, once it knows which is a state: its block is square.
        return [Block(key, (0,), (outputs,), HalfOfMatrix(inputs, is_last)) for is_last in (False, True)]
    if sizes.count(None) > 1:
        raise UnknownValue  # where each of them begins cannot be told
    rest = inputs - sum(size for size in sizes if size is not None)
    widths = [rest if size is None else size for size in sizes]
    if min(widths) < 1 or sum(widths) != inputs:
        raise UnknownValue
    blocks: list[Block] = []
    column = 0
    for width in widths:
        blocks.append(Block(key, start=(0, column), size=(outputs, width)))
        column += width
    return blocks


def _cut(value: _Value, sizes: Sequence[int]) -> Rows:
    """Return the features of each example cut into rows (`Rows.parts`).

    That the value is a batch is taken for granted. A single example would be cut the same way, but the layers that
    split it count its dimensions as those of a batch: they would take columns for rows, which fails in Lua unless
    there are as many.

    Args:
        value: the features of a batch.
        sizes: the number of rows of each example, and that of the features of each row.

    Raises:
        UnknownValue: the value has another number of features, or is cut already; or there are too many rows.
    """
    rows = _rows(value)
    if rows.size is None or len(sizes) != 2 or prod(sizes) != rows.size:
        raise UnknownValue
    count_of_rows, _ = sizes
    if not 0 < count_of_rows <= _MOST_TERMS:  # two negative sizes have a positive product, too
        raise UnknownValue
    return evolve(rows, parts=count_of_rows)


def _rows(value: _Value, may_be_cut: bool = False) -> Rows:
    """Return a value that is rows of features; refuse any other.

    Args:
        value: the value.
        may_be_cut: whether an example's features may be cut into several rows (`Rows.parts`).

    Raises:
        UnknownValue: it is a list, or several joined values, or cut.
    """
    if not isinstance(value, Rows) or (value.parts != 1 and not may_be_cut):
        raise UnknownValue
    return value


def _listed(value: _Value) -> list[_Value]:
    """Return a value that is a list; refuse any other.

    Raises:
        UnknownValue: it is no list.
    """
    if not isinstance(value, list):
        raise UnknownValue
    return value
