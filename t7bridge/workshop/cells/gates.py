"""The gates of a cell: the sums `W x + U h + b` to which its functions are applied, of x, the input of the cell, and h,
its last output. W and U are blocks of matrices, b is a block of a vector. A sum is a polynomial: a sequence of terms,
each the atoms of a product and a number, its factor. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field

from ...data import define
from .kinds import GATE_WORDS
from .polynomials import Atom, Atoms, Block, Poly, atom_alone, number_alone, polynomial, single_atom, times
from .readings import Reading, sigmoids_in


class NotACell(Exception):
    """The message is the obstacle; empty if the value is not even like a cell."""


class UnknownWidths(NotACell):
    """The only obstacle is that the sizes of joined values are not known."""


@define(eq=False)
class Gate:
    """The sum to which a gate's function is applied, by the kinds of its terms.

    Attributes:
        products: the blocks of matrices, by the values that they multiply.
        biases: the blocks of vectors that are added.
        peepholes: the blocks of vectors that multiply values element by element, by these values.
        constant: a number that is added.
        reset_biases: of the new value of a GRU, `W x + b + r * (U h + c)`: those of `biases` that the reset gate r
            scales, c; `None` for every other gate, of which only the sum of the biases counts.
    """

    products: dict[Poly, Block] = field(factory=dict)
    biases: list[Block] = field(factory=list)
    peepholes: dict[Poly, Block] = field(factory=dict)
    constant: float = 0.0
    reset_biases: list[Block] | None = None


Gates = Mapping[str, Gate]
"""The gates of a cell by their letters, in the order of `CellKind.gates`."""


def gates_of(reading: Reading, atoms: Atoms) -> Gates:
    """Return the gates of a cell.

    Args:
        reading: the cell, complete: its letters stand for the sums of the gates, but for that of a reset gate r, which
            is inside of the sum n of the new value.
        atoms: those of the graph.

    Raises:
        NotACell: the argument of a function has other terms than those of a gate; or the cell should have a reset gate
            and has none, or one that multiplies something else.
    """
    kind = reading.kind
    letters = reading.letters
    if not kind.has_reset_gate:
        return {letter: gate_of(letters[letter], letter) for letter in kind.gates}
    reset = _reset_of(letters["n"], letters["h"], atoms)
    letters = {**letters, "r": reset.gate_sum, "n": reset.new_value}
    gates = {letter: gate_of(letters[letter], letter) for letter in kind.gates}
    gates["n"].reset_biases = reset.biases
    return gates


def gate_of(poly: Poly, letter: str) -> Gate:
    """Return a sum by the kinds of its terms.

    Args:
        poly: the sum, the argument of a gate's function.
        letter: of the gate, for the message.

    Raises:
        NotACell: it has other terms than those of a gate.
    """
    gate = Gate()
    for atoms, factor in poly:
        if not atoms:
            gate.constant = factor
        elif factor != 1 or not _add_product(gate, atoms):
            raise NotACell(f"the {GATE_WORDS[letter]} is more than a sum of products with matrices")
    return gate


def _add_product(gate: Gate, atoms: tuple[Atom, ...]) -> bool:
    """Add a product to the sum of a gate; return whether it could be, as a term that gates have.

    Args:
        gate: receives it.
        atoms: the factors of the product, at least one.
    """
    vectors = [atom for atom in atoms if atom.kind == "vector"]
    others = [atom for atom in atoms if atom.kind != "vector"]
    if len(vectors) == 1 and not others:  # a bias
        gate.biases.append(vectors[0].block)
        return True
    if len(vectors) == 1 and len(others) == 1:  # a peephole: the vector times a value, element by element
        value = atom_alone(others[0])
        if value in gate.peepholes:
            return False  # the gate would see the value through the sum of both vectors: a cell has one
        gate.peepholes[value] = vectors[0].block
        return True
    if vectors or len(others) != 1:
        return False
    (product,) = others  # of a block of a matrix with a value, which no other block may multiply
    if product.kind != "matrix" or product.of in gate.products:
        return False
    gate.products[product.of] = product.block
    return True


def are_gates(reading: Reading) -> bool:
    """Return whether all letters of gates that are read already stand for sums of gates."""
    # A recurrent gate multiplies the input and the last output, that of a highway layer the input.
    products_of_gate = 1 if reading.kind.is_highway else 2
    for letter in reading.kind.gates:
        if letter not in reading.letters:
            continue
        try:
            gate = gate_of(reading.letters[letter], letter)
        except NotACell:
            return False
        if len(gate.products) != products_of_gate:
            return False
    return True


# The reset gate of a GRU


@define(frozen=True)
class _Reset:
    """The reset gate r of a GRU, which is inside of the sum of its new value.

    That is `W x + b + r * (U h + c)`, where r scales a product and biases, or `W x + b + U (r * h)`.

    Attributes:
        gate_sum: the argument of the gate's sigmoid.
        new_value: the sum without r: `W x + b + U h + c`.
        biases: those that r scales, c, perhaps none; `None` if it scales the last output.
    """

    gate_sum: Poly
    new_value: Poly
    biases: list[Block] | None


@define(frozen=True)
class _ResetTerm:
    """A term of a GRU's new value in which its reset gate is.

    Attributes:
        gate: the gate, a sigmoid.
        rest: the term without it: a matrix times the last output h, a bias, or what no GRU has.
        is_scaled: whether the gate scales the whole term, `r * (U h)`, and not the last output inside, `U (r * h)`.
    """

    gate: Atom
    rest: Atom
    is_scaled: bool


def _reset_of(new_value: Poly, h: Poly, atoms: Atoms) -> _Reset:
    """Return the reset gate that is inside of the sum of a GRU's new value.

    Args:
        new_value: the sum.
        h: the last output.
        atoms: those of the graph.

    Raises:
        NotACell: there is no such gate, or it multiplies something else.
    """
    terms_without_reset: list[Any] = []
    reset_terms: list[_ResetTerm] = []
    for atoms_of_term, factor in new_value:
        term = _reset_term(atoms_of_term, h, atoms)
        if term is None:  # a matrix times the input, or a bias
            terms_without_reset.append((atoms_of_term, factor))
        else:
            reset_terms.append(term)
            terms_without_reset += times(atom_alone(term.rest), number_alone(factor))
    gates = {term.gate for term in reset_terms}
    if len(gates) != 1:
        raise NotACell("its new value has no reset gate")
    (gate,) = gates
    biases = _scaled_biases(reset_terms, h)
    return _Reset(gate_sum=gate.of, new_value=polynomial(terms_without_reset), biases=biases)


def _reset_term(term: tuple[Atom, ...], h: Poly, atoms: Atoms) -> _ResetTerm | None:
    """Return a term of a GRU's new value as the reset gate and the rest; `None` if the gate is not in it.

    Args:
        term: the atoms of the term.
        h: the last output.
        atoms: those of the graph.
    """
    gate_and_block = _sigmoid_and_other(term)  # of sigmoid(r) * U h, or of sigmoid(r) * bias
    if gate_and_block is not None:
        gate, block = gate_and_block
        return _ResetTerm(gate, rest=block, is_scaled=True)
    if len(term) != 1 or term[0].kind != "matrix":
        return None
    (matrix,) = term
    gate_and_state = _sigmoid_and_other(_factors_of(matrix.of))  # of sigmoid(r) * h in U (sigmoid(r) * h)
    if gate_and_state is None:
        return None
    gate, state = gate_and_state
    if state is not single_atom(h):
        return None
    return _ResetTerm(gate, rest=atoms.matrix(matrix.block, of=h), is_scaled=False)


def _sigmoid_and_other(factors: tuple[Atom, ...]) -> tuple[Atom, Atom] | None:
    """Return the sigmoid and the other factor of a product of these two; `None` for any other product."""
    sigmoids = sigmoids_in(factors)  # of a square of one it is there twice
    if len(factors) != 2 or len(sigmoids) != 1:
        return None
    (sigmoid,) = sigmoids
    (other,) = (factor for factor in factors if factor is not sigmoid)
    return sigmoid, other


def _factors_of(poly: Poly) -> tuple[Atom, ...]:
    """Return the atoms of a polynomial that is one product of atoms; none of a sum, or of a product with a number."""
    if len(poly) != 1:
        return ()
    ((atoms, factor),) = poly
    return atoms if factor == 1 else ()


def _scaled_biases(terms: list[_ResetTerm], h: Poly) -> list[Block] | None:
    """Return the biases c that a GRU's reset gate scales, of `r * (U h + c)`; `None` for `U (r * h)`, without any.

    Args:
        terms: those in which the gate is.
        h: the last output.

    Raises:
        NotACell: what the gate scales is not one matrix times h, and biases.
    """
    scaled = [term.rest for term in terms if term.is_scaled]
    if not scaled:
        return None
    biases = [atom.block for atom in scaled if atom.kind == "vector"]
    others = [(atom.kind, atom.of) for atom in scaled if atom.kind != "vector"]
    if others != [("matrix", h)]:
        raise NotACell("its reset gate does not multiply the product with the last output, or more than that")
    return biases


# Widths of blocks


def set_unknown_widths(gates: Gates, x: Poly, h: Poly, is_proven: bool) -> None:
    """Give the blocks of matrices whose columns were not known (`Block.half`) their columns: that of h is square.

    Args:
        gates: those of a cell, of which the blocks are changed.
        x: the input.
        h: the last output.
        is_proven: whether it is proven which of the two is the last output.

    Raises:
        UnknownWidths: it is not proven, and x and h have different sizes, so that it matters.
    """
    for gate in gates.values():
        # A matrix that multiplies both has a half for each. A gate of other products is refused later.
        half = gate.products[h].half if set(gate.products) == {x, h} else None
        if half is None:
            continue
        size = gate.products[h].rows
        columns_of_both = half.columns_of_both
        if not is_proven and columns_of_both != 2 * size:
            raise UnknownWidths("the sizes of the values that are joined are not known")
        gate.products = {
            h: gate.products[h].with_width(size),
            x: gate.products[x].with_width(columns_of_both - size),
        }


# Checks


def check_gate(letter: str, gate: Gate, inputs: tuple[Poly, ...], size: int) -> None:
    """Refuse a gate that has other inputs or another size than the cell, or more terms than PyTorch's.

    Args:
        letter: of the gate.
        gate: its sum.
        inputs: the values that its matrices should multiply.
        size: the number of features of the cell.

    Raises:
        NotACell: the gate has one of these.
    """
    check_products(letter, gate, inputs)
    word = GATE_WORDS[letter]
    blocks = (*gate.products.values(), *gate.biases, *gate.peepholes.values())
    if {block.rows for block in blocks} != {size}:
        raise NotACell(f"the {word} has another size")
    if len(gate.biases) > 2:  # PyTorch has two: of the input, and of the last output
        raise NotACell(f"the {word} has {len(gate.biases)} biases")
    # A highway layer has an argument for the number that is added to its transform gate: `gate_bias`.
    if gate.constant and letter != "t":
        raise NotACell(f"a number is added to the {word}")


def check_products(letter: str, gate: Gate, inputs: tuple[Poly, ...]) -> None:
    """Refuse a gate whose matrices multiply other values than the cell's inputs, or not all of these.

    Args:
        letter: of the gate, for the message.
        gate: its sum.
        inputs: the values.

    Raises:
        NotACell: its matrices do so.
    """
    if set(gate.products) != {*inputs}:
        raise NotACell(f"the {GATE_WORDS[letter]} does not see both the input and the last output")


def checked_sizes(gates: Gates, x: Poly, h: Poly) -> tuple[int, int]:
    """Return the numbers of features of a cell's input and output, which all gates must have.

    Args:
        gates: its gates, whose blocks have known columns if they multiply both values.
        x: the input.
        h: the last output.

    Raises:
        NotACell: a gate has other inputs or sizes, or more terms than PyTorch's.
    """
    # The first gate tells the sizes, if it sees both values.
    letter, first_gate = next(iter(gates.items()))
    check_products(letter, first_gate, (x, h))
    _, input_size = first_gate.products[x].size
    _, size = first_gate.products[h].size
    for letter, gate in gates.items():
        check_gate(letter, gate, (x, h), size)
    return input_size, size


def check_reset_biases(new_value: Gate) -> None:
    """Refuse a GRU that has more biases than PyTorch's, `n = tanh(W x + b + r * (U h + c))`.

    Args:
        new_value: the gate n.

    Raises:
        NotACell: it has two of one kind.
    """
    if new_value.reset_biases is None:
        return
    count_of_reset = len(new_value.reset_biases)
    count_of_others = len(new_value.biases) - count_of_reset
    if count_of_reset > 1 or count_of_others > 1:
        raise NotACell("its new value has two biases that are reset, or two that are not")
