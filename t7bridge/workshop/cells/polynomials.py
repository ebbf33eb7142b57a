"""The values of a graph as polynomials: sums of products of functions and of products of matrices with other values.

Equal functions are equal polynomials, however a model arranges its layers. An atom of a polynomial is a value of which
nothing else is known, a function of a sum, a block of a matrix times a value, or a block of a vector. Inputs are taken
to be batches. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import Any

from attrs import evolve

from ...data import define
from ...graph.tensor import Tensor
from ...nn.fields import items_of, lookup
from ...nn.mapping import LAYERS, SEQUENTIAL, GraphSpec, Link, ModuleSpec
from ...nn.registry import traits_of
from ...nn.walk import Domain

# Polynomials

Poly = tuple[tuple[tuple[Any, ...], float], ...]
"""A sum of products: sorted pairs of sorted atoms and their factor."""
_MOST_TERMS = 32
"""Maximum terms of a polynomial, and parts of a value; nothing is known of a larger one."""
_MOST_ADDED = 16.0
"""Largest number that is added to a value: after larger ones its last digits are lost."""


class UnknownValue(Exception):
    """Nothing is known of the output of a module."""


def polynomial(terms: Iterable[tuple[tuple[Any, ...], float]]) -> Poly:
    """Return a polynomial.

    Raises:
        UnknownValue: terms cancel each other, which rounding and infinite numbers do not.
    """
    found: dict[tuple[Any, ...], float] = {}
    for atoms, factor in terms:
        found[atoms] = found.get(atoms, 0.0) + factor
    if 0.0 in found.values():
        raise UnknownValue
    return tuple(sorted(found.items()))


def times(one: Poly, other: Poly) -> Poly:
    """Return the product of polynomials."""
    return polynomial((tuple(sorted((*a, *b))), x * y) for (a, x), (b, y) in product(one, other))


def _scaled(poly: Poly, factor: float) -> Poly:
    return polynomial((atoms, each * factor) for atoms, each in poly)


@cache
def formula(text: str) -> Poly:
    """Return a formula as a polynomial whose atoms are a function, or an empty text, and a letter."""

    def read(node: Any) -> Poly:
        if isinstance(node, ast.BinOp):
            left, right = read(node.left), read(node.right)
            if isinstance(node.op, ast.Mult):
                return times(left, right)
            return polynomial((*left, *_scaled(right, 1.0 if isinstance(node.op, ast.Add) else -1.0)))
        if not isinstance(node, (ast.Call, ast.Name)):
            return (((), float(ast.literal_eval(node))),)
        call: Any = node
        atom = (call.func.id, call.args[0].id) if isinstance(node, ast.Call) else ("", node.id)
        return (((atom,), 1.0),)

    return read(ast.parse(text, mode="eval").body)


def graph_of(spec: ModuleSpec) -> GraphSpec:
    """Return the data flow of a graph."""
    assert spec.graph is not None
    return spec.graph


# The values of a graph


@define(frozen=True)
class Atom:
    """A factor of a product.

    Attributes:
        kind: `value`, the output of a node or an input; `matrix`, the product of a block of a matrix with a value;
            `vector`, a block of a vector; or a function of a sum.
        of: the sum of a function, or the value that a matrix multiplies, as a polynomial; the link of a value.
        key: of the tensor.
        start: of the block.
        size: of the block.
    """

    kind: str
    of: Any = ()
    key: str = ""
    start: tuple[int, ...] = ()
    size: tuple[int, ...] = ()


@define(frozen=True)
class Rows:
    """A value whose rows are examples.

    Attributes:
        poly: each feature of an example.
        size: number of features, if known.
        parts: rows of each example after a reshape into several.
    """

    poly: Poly
    size: int | None = None
    parts: int = 1


_Value = Any
"""`Rows`, a list of values, or a tuple of `Rows` whose features follow one another."""


class Values:
    """The values of one graph: each layer that is understood has a method of its name.

    Args:
        spec: the graph.
        keys: the names of tensors in it, relative to it.
    """

    def __init__(self, spec: ModuleSpec, keys: frozenset[str]) -> None:
        assert spec.graph is not None
        self._spec, self._graph, self._keys = spec, spec.graph, keys
        self.atoms: list[Atom] = []
        self._numbers: dict[Atom, int] = {}
        self.links: dict[Poly, Link] = {}
        """The first link to each value."""
        self._recorded = lookup(spec.obj, "innode.data.input") if spec.obj is not None else None

    def atom(self, atom: Atom) -> Poly:
        """Return an atom as a polynomial."""
        number = self._numbers.setdefault(atom, len(self.atoms))
        if number == len(self.atoms):
            self.atoms.append(atom)
        return (((number,), 1.0),)

    def value(self, link: Link, size: int | None = None) -> Rows:
        """Return a value of which nothing else is known; the file may have the last input of the graph."""
        last = None if link[0] else self._recorded
        for index in link[1]:
            items = items_of(last) or []
            last = items[index] if 0 <= index < len(items) else None
        if isinstance(last, Tensor) and len(last.size) == 2 and not link[0]:
            size = last.size[1]
        return Rows(self.atom(Atom("value", link)), size)

    def run(self) -> Iterator[tuple[int, Rows]]:
        """Yield the number and value of each node that returns one; `renamed` may replace it."""
        self._values: list[_Value] = [self.value((0, ()))]
        for number, node in enumerate(self._graph.nodes, 1):
            taken = [self.fetch(link) for link in node.takes]
            value = taken[0] if len(taken) == 1 else taken
            try:
                if node.module is not None:
                    value = self.output(self._spec.children[node.module], f"{node.module}.", value)
            except UnknownValue:
                value = self.value((number, ()), _width(self._spec.children[node.module or ""]))
            self._values.append(value)
            if isinstance(value, Rows) and value.parts == 1:
                yield number, value
                self.links.setdefault(self._values[number].poly, (number, ()))

    def rename(self, number: int) -> None:
        """Make the value of a node an atom."""
        self._values[number] = self.value((number, ()), self._values[number].size)

    def fetch(self, link: Link) -> _Value:
        """Return the value of a link."""
        value = self._values[link[0]]
        for at, index in enumerate(link[1], 1):
            is_there = isinstance(value, list) and -len(value) <= index < len(value)
            value = value[index] if is_there else self.value((link[0], link[1][:at]))
        if isinstance(value, Rows):
            self.links.setdefault(value.poly, link)
        return value

    def output(self, spec: ModuleSpec, key: str, value: _Value) -> _Value:
        """Return the output of a module.

        Args:
            spec: the module.
            key: the prefix of its tensors.
            value: its input.

        Raises:
            UnknownValue: nothing is known of it.
        """
        rule = _RULES.get(spec.target) or traits_of(spec.target).polynomial
        if not rule or spec.kwargs.get("inplace"):
            raise UnknownValue
        method, *operation = rule
        try:
            return getattr(self, method)(spec, key, value, *operation)
        except (IndexError, TypeError, ValueError, RecursionError) as error:
            raise UnknownValue from error

    def identity(self, spec: ModuleSpec, key: str, value: _Value) -> _Value:
        """Return the input."""
        return value

    def linear(self, spec: ModuleSpec, key: str, value: _Value) -> _Value:
        """Multiply with a matrix: the features of several values, each with its columns."""
        inputs, outputs = spec.args[:2]
        parts = [_rows(part) for part in (value if isinstance(value, tuple) else (value,))]
        sizes = [part.size for part in parts]
        if sizes == [None, None]:  # of which one ends where the other begins, see `_resolved`
            blocks = [(0, -inputs), (-inputs, -inputs)]
        else:
            rest = inputs - sum(size for size in sizes if size is not None)
            widths = [rest if size is None else size for size in sizes]
            blocks = [(sum(widths[:at]), width) for at, width in enumerate(widths)]
            if min(widths) < 1 or sum(widths) != inputs:
                raise UnknownValue
        terms: list[Any] = []
        for part, (column, width) in zip(parts, blocks):
            terms += self.atom(Atom("matrix", part.poly, f"{key}weight", (0, column), (outputs, width)))
        if f"{key}bias" in self._keys:
            terms += self.atom(Atom("vector", (), f"{key}bias", (0,), (outputs,)))
        return Rows(polynomial(terms), outputs)

    def function(self, spec: ModuleSpec, key: str, value: _Value, name: str) -> _Value:
        """Apply a function, one of `FUNCTIONS`, to every element."""
        rows = _rows(value, any_parts=True)
        return evolve(rows, poly=self.atom(Atom(name, rows.poly)))

    def combined(self, spec: ModuleSpec, key: str, value: _Value, operation: str) -> _Value:
        """Add, subtract or multiply values."""
        first, *others = (_rows(each, any_parts=True) for each in value)
        sizes = {each.size for each in (first, *others)} - {None}
        if len(sizes) > 1 or any(other.parts != first.parts for other in others):
            raise UnknownValue
        poly = first.poly
        for other in others:
            if operation == "multiply":
                if len(poly) * len(other.poly) > _MOST_TERMS:
                    raise UnknownValue
                poly = times(poly, other.poly)
            else:
                poly = polynomial((*poly, *(_scaled(other.poly, -1.0) if operation == "subtract" else other.poly)))
        if len(poly) > _MOST_TERMS:
            raise UnknownValue
        return Rows(poly, sizes.pop() if sizes else None, first.parts)

    def constant(self, spec: ModuleSpec, key: str, value: _Value, operation: str) -> _Value:
        """Add a number, or multiply with it."""
        rows, number = _rows(value, any_parts=True), float(spec.args[0])
        if operation == "add" and abs(number) <= _MOST_ADDED:
            return evolve(rows, poly=polynomial((*rows.poly, ((), number))))
        if abs(number) != 1:
            raise UnknownValue
        return evolve(rows, poly=_scaled(rows.poly, number))

    def learned(self, spec: ModuleSpec, key: str, value: _Value, operation: str) -> _Value:
        """Add a vector, or multiply with one."""
        rows, size = _rows(value), prod(spec.args)
        if spec.kwargs.get("scalar") or spec.args not in ((size,), (1, size)) or rows.size not in (None, size):
            raise UnknownValue
        adds = operation == "add"
        vector = self.atom(Atom("vector", (), f"{key}{'bias' if adds else 'weight'}", (0,), (size,)))
        return Rows(polynomial((*rows.poly, *vector)) if adds else times(rows.poly, vector), size)

    def reshaped(self, spec: ModuleSpec, key: str, value: _Value, layer: str) -> _Value:
        """Cut the features of each example into rows."""
        rows, size = _rows(value, any_parts=True), spec.args
        is_view = layer == "view"
        batched: Any = (spec.kwargs.get("n_input_dims") == 1 or None) if is_view else spec.kwargs.get("batch_mode")
        if is_view and len(size) == 3 and size[0] == -1 and "n_input_dims" not in spec.kwargs:
            size, batched = size[1:], True
        if rows.size is None or rows.parts != 1 or len(size) != 2 or prod(size) != rows.size or batched is False:
            raise UnknownValue
        # Inputs are batches: of one example alone Lua would list the columns, which fails unless there are as many.
        if not 0 < size[0] <= _MOST_TERMS:
            raise UnknownValue
        return evolve(rows, parts=size[0])

    def split(self, spec: ModuleSpec, key: str, value: _Value) -> _Value:
        """List the rows of each example."""
        rows, dim, dims = _rows(value, any_parts=True), spec.args[0], spec.kwargs.get("n_input_dims")
        if rows.parts == 1 or rows.size is None or (dim, dims) not in ((1, None), (-2, None), (0, 2)):
            raise UnknownValue
        width = rows.size // rows.parts
        return [self._slice(rows, at * width, width) for at in range(rows.parts)]

    def selected(self, spec: ModuleSpec, key: str, value: _Value) -> _Value:
        """Select one row of each example."""
        parts = self.split(evolve(spec, args=spec.args[:1], kwargs={}), key, value)
        return parts[spec.args[1]]

    def narrowed(self, spec: ModuleSpec, key: str, value: _Value) -> _Value:
        """Return a range of features."""
        rows, (dim, start, length) = _rows(value), spec.args
        if dim not in (1, -1) or rows.size is None or start < 0 or length < 1 or start + length > rows.size:
            raise UnknownValue
        return self._slice(rows, start, length)

    def _slice(self, rows: Rows, start: int, length: int) -> Rows:
        def part(number: int) -> Poly:
            atom = self.atoms[number]
            if atom.kind == "value":
                raise UnknownValue
            if atom.key:
                first, rest = atom.start[0] + start, atom.start[1:]
                return self.atom(evolve(atom, start=(first, *rest), size=(length, *atom.size[1:])))
            return self.atom(evolve(atom, of=self._slice(Rows(atom.of), start, length).poly))

        poly: list[Any] = []
        for atoms, factor in rows.poly:
            made: Poly = (((), factor),)
            for number in atoms:
                made = times(made, part(number))
            poly += made
        return Rows(polynomial(poly), length)

    # Lists

    def joined(self, spec: ModuleSpec, key: str, value: _Value) -> _Value:
        """Join the features of several values."""
        if (spec.args[0], spec.kwargs.get("n_input_dims")) not in ((1, None), (-1, None), (0, 1)):
            raise UnknownValue
        parts = tuple(part for each in value for part in (each if isinstance(each, tuple) else (_rows(each),)))
        if len(parts) > _MOST_TERMS:
            raise UnknownValue
        return parts

    def passed(self, spec: ModuleSpec, key: str, value: _Value) -> _Value:
        """Pass values as the flow of a container, or of a layer on lists, says; it does nothing besides."""
        flow = traits_of(spec.target).flow
        assert flow is not None
        return flow(spec, value, _Passed(self, key))


class _Passed(Domain[_Value]):
    """The values in a container: everything but a list of known values is unknown.

    Args:
        values: the values of the graph.
        key: the prefix of the tensors in the container.
    """

    def __init__(self, values: Values, key: str) -> None:
        self._values = values
        self._key = key

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
        """Return an element of a list."""
        if dim is not None:
            raise UnknownValue
        return _listed(value)[index]

    def elements(self, value: _Value, count: int) -> list[_Value]:
        """Return the elements of a list, which must be as many."""
        if len(_listed(value)) != count:
            raise UnknownValue
        return _listed(value)

    def length(self, value: _Value, dim: int | None = None) -> int | None:
        """Return the number of elements of a list."""
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
        """Return the output of a module inside."""
        return self._values.output(spec.children[child], f"{self._key}{child}.", value)


FUNCTIONS = ("sigmoid", "tanh", "relu")
_PASSED = ("passed",)
_RULES: dict[str, tuple[str, ...]] = {
    "torch.nn.Identity": ("identity",),
    "torch.nn.Linear": ("linear",),
    "torch.nn.Sigmoid": ("function", "sigmoid"),
    "torch.nn.Tanh": ("function", "tanh"),
    "torch.nn.ReLU": ("function", "relu"),
    # These do nothing besides their flow.
    SEQUENTIAL: _PASSED,
    f"{LAYERS}table.SelectTable": _PASSED,
    f"{LAYERS}table.NarrowTable": _PASSED,
    f"{LAYERS}containers.ConcatTable": _PASSED,
    f"{LAYERS}containers.ParallelTable": _PASSED,
}
"""The method of `Values` for a class, and which of its operations that is; for others their entries have it."""
_WIDTHS = {f"{LAYERS}linear.LookupTable": 1, "torch.nn.Embedding": 1, f"{LAYERS}shape.OneHot": 0, "torch.nn.Linear": 1}
"""The argument with the number of features that a class returns."""


def _width(spec: ModuleSpec) -> int | None:
    place = _WIDTHS.get(spec.target)
    return None if place is None else int(spec.args[place])


def _rows(value: _Value, any_parts: bool = False) -> Rows:
    if not isinstance(value, Rows) or (value.parts != 1 and not any_parts):
        raise UnknownValue
    return value


def _listed(value: _Value) -> list[_Value]:
    if not isinstance(value, list):
        raise UnknownValue
    return value
