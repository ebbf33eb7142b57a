"""Polynomials of atoms: sums of terms, each a product of atoms and a number. The atoms of a formula of a cell are
letters and functions of letters, those of a value in a graph are what is not written as a sum of products itself.

Equal functions are equal polynomials, however a model arranges its layers. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import Any

from ...data import define

Poly = tuple[tuple[tuple[Any, ...], float], ...]
"""A polynomial: its terms, sorted, each the atoms of the product, sorted, and its factor, a number."""
FUNCTIONS = ("sigmoid", "tanh", "relu")
"""The functions that an atom may be."""


class UnknownValue(Exception):
    """Nothing is known of the output of a module."""


def polynomial(terms: Iterable[tuple[tuple[Any, ...], float]]) -> Poly:
    """Return the sum of terms, each a pair of atoms and a factor; those of the same atoms become one.

    Raises:
        UnknownValue: terms cancel each other. What a model computes is then not exactly 0: numbers are rounded, and
            may be infinite.
    """
    factors: dict[tuple[Any, ...], float] = {}
    for atoms, factor in terms:
        factors[atoms] = factors.get(atoms, 0.0) + factor
    if 0.0 in factors.values():
        raise UnknownValue
    return tuple(sorted(factors.items()))


def atom_alone(atom: Any) -> Poly:
    """Return an atom as a polynomial."""
    return (((atom,), 1.0),)


def number_alone(number: float) -> Poly:
    """Return a number as a polynomial: the factor of no atoms."""
    return (((), number),)


def times(one: Poly, other: Poly) -> Poly:
    """Return the product of polynomials."""
    terms = []
    for (atoms, factor), (other_atoms, other_factor) in product(one, other):
        terms.append((tuple(sorted((*atoms, *other_atoms))), factor * other_factor))
    return polynomial(terms)


def scaled(poly: Poly, scale: float) -> Poly:
    """Return a polynomial times a number."""
    return polynomial((atoms, factor * scale) for atoms, factor in poly)


# Formulas


@cache
def formula(text: str) -> Poly:
    """Return a formula as a polynomial whose atoms are pairs of a function, or an empty text, and a letter."""
    return _polynomial_of(ast.parse(text, mode="eval").body)


@cache
def functions_in(text: str) -> frozenset[str]:
    """Return the functions that a formula applies to letters."""
    return frozenset(function for atoms, _ in formula(text) for function, _ in atoms if function)


def _polynomial_of(node: Any) -> Poly:
    """Return the polynomial of an expression of Python: sums, differences, products, numbers, `c` and `tanh(g)`.

    The last two are atoms, `("", "c")` and `("tanh", "g")`. Other expressions are in no formula of `kinds`.
    """
    if isinstance(node, ast.BinOp):
        left = _polynomial_of(node.left)
        right = _polynomial_of(node.right)
        if isinstance(node.op, ast.Mult):
            return times(left, right)
        sign = 1.0 if isinstance(node.op, ast.Add) else -1.0
        return polynomial((*left, *scaled(right, sign)))
    if isinstance(node, ast.Call):
        function: Any = node.func
        argument: Any = node.args[0]
        return atom_alone((function.id, argument.id))
    if isinstance(node, ast.Name):
        return atom_alone(("", node.id))
    return number_alone(float(ast.literal_eval(node)))


# Atoms of values


@define(frozen=True)
class HalfOfMatrix:
    """The columns of a matrix that multiply one of two joined values, where nobody knows how many each of them has.

    Attributes:
        columns_of_both: number of columns of the matrix.
        is_last: whether the value is the second one, whose columns end where the matrix does.
    """

    columns_of_both: int
    is_last: bool


@define(frozen=True)
class Block:
    """A block of a matrix or vector in the state dict of a graph.

    Attributes:
        key: of the tensor, in the graph: `linear.weight`.
        start: the first row and column of a matrix, or the first element of a vector, from 0.
        size: numbers of rows and columns, or of elements.
        half: of a block whose columns are not known; `start` and `size` have its rows only. `None` for others.
    """

    key: str = ""
    start: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    half: HalfOfMatrix | None = None

    @property
    def rows(self) -> int:
        """The number of rows, or of elements of a vector: the features that it adds to."""
        return self.size[0]

    def narrowed(self, start: int, length: int) -> Block:
        """Return a range of its rows; the first is given from 0 among its own."""
        first, *columns = self.start
        _, *widths = self.size
        return Block(self.key, (first + start, *columns), (length, *widths), self.half)

    def with_width(self, width: int) -> Block:
        """Return a block whose columns were not known (`half`) with so many columns."""
        assert self.half is not None
        (first_row,) = self.start
        first_column = self.half.columns_of_both - width if self.half.is_last else 0
        return Block(self.key, (first_row, first_column), (self.rows, width))

    @property
    def module(self) -> str:
        """The name of the module that has the tensor."""
        module, _, _ = self.key.rpartition(".")
        return module


@define(eq=False)
class Atom:
    """A factor of a product: what is not written as a sum of products itself.

    `Atoms` makes one for each content, so that it is equal to itself alone.

    Attributes:
        kind: `value`, the output of a node or an input; `matrix`, the product of a block of a matrix with a value;
            `vector`, a block of a vector; or one of `FUNCTIONS`, of a sum.
        of: the sum that a function is applied to, or the value that a matrix multiplies, as a polynomial; of a `value`
            what tells it from others: its link, or the sum that it stands for.
        block: of a matrix or vector; an empty one for other kinds.
        number: the atoms are sorted by it, in the order in which they were first met.
    """

    kind: str
    of: Any
    block: Block
    number: int

    def __lt__(self, other: Atom) -> bool:
        """Return whether this atom was met first."""
        return self.number < other.number


class Atoms:
    """The atoms in the values of one graph, one for each content: equal polynomials have the same atoms."""

    def __init__(self) -> None:
        self._atoms: dict[tuple[str, Any, Block], Atom] = {}

    def of_value(self, of: Any) -> Atom:
        """Return the atom of a value of which nothing else is known; see `Atom.of`."""
        return self._atom("value", of, Block())

    def function(self, name: str, of: Poly) -> Atom:
        """Return a function of a sum."""
        return self._atom(name, of, Block())

    def matrix(self, block: Block, of: Poly) -> Atom:
        """Return the product of a block of a matrix with a value."""
        return self._atom("matrix", of, block)

    def vector(self, block: Block) -> Atom:
        """Return a block of a vector."""
        return self._atom("vector", (), block)

    def _atom(self, kind: str, of: Any, block: Block) -> Atom:
        """Return the one atom with a content, which gets the next number if it is new."""
        content = kind, of, block
        if content not in self._atoms:
            self._atoms[content] = Atom(kind, of, block, number=len(self._atoms))
        return self._atoms[content]


def single_atom(poly: Poly) -> Atom | None:
    """Return the atom of the polynomial of a value that is one atom alone; `None` for any other."""
    if len(poly) != 1:
        return None
    ((atoms, factor),) = poly
    return atoms[0] if len(atoms) == 1 and factor == 1 else None
