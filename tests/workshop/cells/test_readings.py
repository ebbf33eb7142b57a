"""Formulas of cells read in polynomials, and the blocks of matrices that their gates multiply."""

from __future__ import annotations

import random

import pytest

from t7bridge.workshop.cells.gates import UnknownWidths, gate_of, set_unknown_widths
from t7bridge.workshop.cells.kinds import KINDS
from t7bridge.workshop.cells.polynomials import (
    Atoms,
    Block,
    HalfOfMatrix,
    UnknownValue,
    atom_alone,
    formula,
    number_alone,
    polynomial,
    single_atom,
    times,
)
from t7bridge.workshop.cells.readings import read_formula, read_highway


def value_of(text, letters, atoms):
    """Return the value of a formula whose letters stand for polynomials."""
    terms = []
    for factors, factor in formula(text):
        product = number_alone(factor)
        for function, letter in factors:
            poly = letters[letter]
            product = times(product, atom_alone(atoms.function(function, poly)) if function else poly)
        terms += product
    return polynomial(terms)


@pytest.mark.parametrize("seed", range(5))
def test_formulas_are_read_in_what_they_compute(seed):
    """Every formula is read in its own value, whatever the order in which the atoms were met."""
    for kind in KINDS:
        for text in kind.formulas.values():
            letters = sorted({letter for factors, _ in formula(text) for _, letter in factors})
            random.Random(seed).shuffle(letters)
            atoms = Atoms()
            expected = {letter: atom_alone(atoms.of_value(letter)) for letter in letters}
            assert expected in list(read_formula(text, value_of(text, expected, atoms), {}))


def test_letters_that_are_read_already_are_kept():
    """The output of an LSTM is a function of its own new cell state, and of no other."""
    atoms = Atoms()
    text = "sigmoid(o) * tanh(C)"
    letters = {letter: atom_alone(atoms.of_value(letter)) for letter in "oC"}
    value = value_of(text, letters, atoms)
    assert list(read_formula(text, value, {"C": letters["C"]})) == [letters]
    assert not list(read_formula(text, value, {"C": letters["o"]}))


def test_highway_layers_of_sums():
    """A gate lets a sum pass, which is also its own input: an atom takes the place of the sum."""
    atoms = Atoms()
    text = "sigmoid(t) * tanh(n) + (1 - sigmoid(t)) * x"
    x = polynomial((*atom_alone(atoms.of_value("a")), *atom_alone(atoms.of_value("b"))))
    matrices = {letter: atoms.matrix(Block(f"{letter}.weight", (0, 0), (3, 3)), of=x) for letter in "tn"}
    letters = {letter: atom_alone(matrix) for letter, matrix in matrices.items()} | {"x": x}
    value = value_of(text, letters, atoms)
    assert not list(read_formula(text, value, {}))
    assert letters in list(read_highway(text, value, atoms))


def test_terms_that_cancel():
    """Nothing is known of their sum, which rounding makes another number than 0."""
    atom = Atoms().of_value("a")
    with pytest.raises(UnknownValue):
        polynomial((*atom_alone(atom), *times(atom_alone(atom), number_alone(-1.0))))


def test_single_atoms():
    """Of polynomials only an atom times 1 is one atom."""
    atom = Atoms().of_value("a")
    alone = atom_alone(atom)
    assert single_atom(alone) is atom
    for poly in (number_alone(2.0), times(alone, number_alone(2.0)), times(alone, alone)):
        assert single_atom(poly) is None


@pytest.mark.parametrize("is_state_first", [False, True])
def test_widths_of_joined_values(is_state_first):
    """The matrix of the last output is square, and that of the input has the other columns."""
    atoms = Atoms()
    x = atom_alone(atoms.of_value("x"))
    h = atom_alone(atoms.of_value("h"))
    terms = []
    for value in (x, h):
        half = HalfOfMatrix(columns_of_both=8, is_last=(value == x) == is_state_first)
        terms += atom_alone(atoms.matrix(Block("joined.weight", (5,), (3,), half), of=value))
    with pytest.raises(UnknownWidths):
        set_unknown_widths({"n": gate_of(polynomial(terms), "n")}, x, h, is_proven=False)
    gate = gate_of(polynomial(terms), "n")
    set_unknown_widths({"n": gate}, x, h, is_proven=True)
    starts = {h: 0, x: 3} if is_state_first else {x: 0, h: 5}
    for value, width in ((h, 3), (x, 5)):
        assert gate.products[value] == Block("joined.weight", (5, starts[value]), (3, width))
