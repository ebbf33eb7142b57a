"""Reads the formulas of cells in values of a graph: what each letter of a formula stands for. Of the letters x is the
input, h and c are the last output and cell state, H and C the new ones, any other is the sum of a gate. A formula,
`sigmoid(o) * tanh(C)`, and a value are both polynomials: sequences of terms, each the atoms of a product and a number,
its factor. The atoms of a formula are pairs of a function, or an empty text, and a letter.

Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations
from typing import Any

from attrs import evolve, field

from ...data import define
from .kinds import CellKind
from .polynomials import Atom, Atoms, Poly, atom_alone, formula, number_alone, polynomial, times

Letters = Mapping[str, Poly]
"""What letters of formulas stand for, as far as they are read."""


@define(frozen=True)
class Reading:
    """A cell as far as its formulas are read, in values of a graph.

    Attributes:
        kind: its kind.
        letters: what the letters of the formulas stand for.
        nodes: the numbers of the nodes whose values the formulas define, by the letters of these: H, and of an LSTM C.
    """

    kind: CellKind
    letters: Letters = field(factory=dict)
    nodes: Mapping[str, int] = field(factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether all formulas of the cell are read."""
        return self.nodes.keys() == self.kind.formulas.keys()

    def defined(self, letter: str, value: Poly, node: int) -> Reading:
        """Return the reading with the value that one more formula defines, by its letter, and that value's node."""
        return evolve(self, letters={**self.letters, letter: value}, nodes={**self.nodes, letter: node})


def read_formula(text: str, poly: Poly, letters: Letters) -> Iterator[Letters]:
    """Yield all that the letters of a formula may stand for in a value; nothing if it is another function.

    Args:
        text: the formula.
        poly: the value.
        letters: what letters stand for already, from other formulas of the cell.
    """
    yield from _match_terms([*formula(text)], [*poly], letters)


def read_highway(text: str, poly: Poly, atoms: Atoms) -> Iterator[Letters]:
    """Yield all that the letters of a formula of a highway layer may stand for, if its input is a sum.

    The formula has the input x itself, `… + (1 - sigmoid(t)) * x`. If x is a sum, the value has a term for each of its
    terms, where the formula has one: so an atom takes the place of the sum while the formula is read.

    Args:
        text: the formula.
        poly: the value.
        atoms: those of the graph.
    """
    for total, atom, shorter_poly in _with_atom_for_sum(poly, atoms):
        for letters in read_formula(text, shorter_poly, {}):
            if letters["x"] == atom_alone(atom):
                yield {**letters, "x": total}


def _with_atom_for_sum(poly: Poly, atoms: Atoms) -> Iterator[tuple[Poly, Atom, Poly]]:
    """Yield a value with an atom in the place of a sum, for each sum that may be the input x of a highway layer.

    The gate is computed from x, so that a matrix multiplies x in its sigmoid; and the value has the terms of
    `x * sigmoid(gate)`, or of `x * (1 - sigmoid(gate))`, among others.

    Args:
        poly: the value.
        atoms: those of the graph.

    Yields:
        The sum; the atom; the value with it.
    """
    factors_in_terms = [atom for term, _ in poly for atom in term]
    for gate in dict.fromkeys(sigmoids_in(factors_in_terms)):  # each once
        one_minus_gate = polynomial((*number_alone(1.0), ((gate,), -1.0)))
        for value in _values_times_matrices(gate.of):
            if len(value) == 1:
                continue  # it is not a sum
            atom = atoms.of_value(value)
            for factor in (atom_alone(gate), one_minus_gate):
                terms = times(value, factor)
                if set(terms) <= set(poly):
                    other_terms = [term for term in poly if term not in terms]
                    yield value, atom, polynomial((*other_terms, *times(atom_alone(atom), factor)))


def sigmoids_in(atoms: Iterable[Atom]) -> list[Atom]:
    """Return those of some atoms that are sigmoids, as often as they are there."""
    return [atom for atom in atoms if atom.kind == "sigmoid"]


def _values_times_matrices(poly: Poly) -> list[Poly]:
    """Return the values that matrices multiply in a sum, each once."""
    atoms = [atom for term, _ in poly for atom in term]
    return list(dict.fromkeys(atom.of for atom in atoms if atom.kind == "matrix"))


def _match_terms(pattern: list[Any], terms: list[Any], letters: Letters) -> Iterator[Letters]:
    """Yield what letters stand for if the terms of a formula are those of a value, in any order.

    Args:
        pattern: the terms of the formula that are not matched yet.
        terms: those of the value.
        letters: what letters stand for already.
    """
    if len(pattern) != len(terms):
        return
    if not pattern:
        yield letters
        return
    # The first term of the pattern may be any of the terms, and its atoms those of that in any order.
    (wanted_atoms, wanted_factor), *rest_of_pattern = pattern
    for position, (atoms, factor) in enumerate(terms):
        if factor != wanted_factor or len(atoms) != len(wanted_atoms):
            continue
        other_terms = terms[:position] + terms[position + 1 :]
        for ordered_atoms in permutations(atoms):
            letters_with_these = _match_atoms(wanted_atoms, ordered_atoms, letters)
            if letters_with_these is not None:
                yield from _match_terms(rest_of_pattern, other_terms, letters_with_these)


def _match_atoms(wanted: tuple[Any, ...], atoms: tuple[Atom, ...], letters: Letters) -> Letters | None:
    """Return what letters stand for if the atoms of a term are these, in this order; `None` if they cannot be.

    Args:
        wanted: the atoms of the formula's term: a function, or an empty text, and a letter.
        atoms: as many of the value's term, one for each of the formula's.
        letters: what letters stand for already.
    """
    matched = dict(letters)
    for (function, letter), atom in zip(wanted, atoms):
        if function and atom.kind != function:
            return None
        # In tanh(g) the letter g is the argument of tanh; c alone is the atom itself.
        value = atom.of if function else atom_alone(atom)
        if matched.setdefault(letter, value) != value:
            return None
    return matched
