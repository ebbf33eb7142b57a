"""The cells in one graph: nodes that compute an LSTM, a GRU or the like, whose values, as polynomials of atoms, are
those of a formula in `kinds`. An atom is a block of a matrix times a value, a block of a vector, a function of a sum,
or a value of which nothing else is known. A gate is the sum `W x + U h + b` in a function: x is the input of the cell,
h its last output.

However a model arranges its layers, equal functions are equal polynomials (see `polynomials`): a cell is recognized by
what it computes, never by names. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import permutations
from math import prod
from typing import Any

from attrs import evolve, field

from ...data import define
from ...graph.tensor import Tensor
from ...nn.mapping import LAYERS, Link, ModuleSpec
from ...nn.pieces import Piece
from ...nn.registry import tensor_shapes
from .kinds import CELLS, GATE_WORDS, Cell
from .polynomials import (
    FUNCTIONS,
    Atom,
    Poly,
    UnknownValue,
    Values,
    atom_alone,
    formula,
    functions_in,
    graph_of,
    number_alone,
    number_of_atom,
    polynomial,
    times,
)

# How clearly a value is the last output of a cell; see `Search._rank_as_state`.
_CERTAIN = 3
"""It is the output of a cell that this one continues, see `Search._continues`, or in the formula of this one."""
_SHOWN_BY_GRAPH = 2
"""It is an input of the graph that gets the cell's output of the step before. Either another step of an unrolled layer
passes that on (`carried_over`), or see `_are_in_one_order`.
"""
_POSSIBLE = 1
"""It is another input, or the output of a cell with other weights."""
_UNLIKELY = 0
"""A value of the state is not an input."""


class _NotACell(Exception):
    """The message is the obstacle; empty if the value is not even like a cell."""


class _UnknownWidths(_NotACell):
    """The only obstacle is that the sizes of joined values are not known."""


@define(frozen=True)
class _Binding:
    """A cell, perhaps not complete yet, as its formulas were read from values of a graph.

    Attributes:
        cell: its kind.
        values: what each letter of the formulas stands for.
        nodes: the numbers of the nodes of the values that the formulas define, by their letters.
    """

    cell: Cell
    values: Mapping[str, Poly] = field(factory=dict)
    nodes: Mapping[str, int] = field(factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether all formulas of the cell are read."""
        return self.nodes.keys() == self.cell.formulas.keys()

    def defined(self, letter: str, value: Poly, node: int) -> _Binding:
        """Return the binding with one more formula read."""
        return evolve(self, values={**self.values, letter: value}, nodes={**self.nodes, letter: node})


@define(eq=False)
class _Gate:
    """The sum to which a gate's function is applied, `W x + U h + b`, by the kinds of its terms.

    Attributes:
        products: the blocks of matrices, by the values that they multiply.
        vectors: the blocks of biases.
        peepholes: the vectors that multiply values element by element, by these values.
        constant: a number that is added.
    """

    products: dict[Poly, Atom] = field(factory=dict)
    vectors: list[Atom] = field(factory=list)
    peepholes: dict[Poly, Atom] = field(factory=dict)
    constant: float = 0.0


@define(frozen=True)
class _ResetTerm:
    """A term of a GRU's new value in which its reset gate is.

    Attributes:
        gate: the gate, a sigmoid, by the number of its atom.
        rest: the term without it: a matrix times the last output h, a bias, or what no GRU has.
        is_scaled: whether the gate scales the whole term, `r * (U h)`, and not the last output inside, `U (r * h)`.
    """

    gate: int
    rest: Atom
    is_scaled: bool


@define(eq=False)
class GraphCell:
    """A recognized cell of a graph, and the module that it becomes.

    Attributes:
        kind: its kind.
        module: its module.
        graph: the graph.
        prefix: that of the graph's tensors in the state dict.
        inputs: the links of its inputs, in the order of its class.
        outputs: the numbers of the nodes of its outputs, in the order of its class. Each comes after all inputs.
        pieces: what its tensors are made of, by keys in the graph and names of its own.
    """

    kind: Cell
    module: ModuleSpec
    graph: ModuleSpec
    prefix: str
    inputs: tuple[Link, ...]
    outputs: tuple[int, ...]
    pieces: list[Piece]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its tensors, by name."""
        return tensor_shapes(self.module.target, self.module.args, self.module.kwargs)


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


class Search:
    """Finds the cells of a graph, by reading the formulas of each kind of cell in the values of its nodes. A value is a
    polynomial: a sum of terms, each a product of atoms, given by their numbers, which are places in `Values.atoms`, and
    a factor. A binding has the values that the letters of a cell's formulas stand for, as far as these are read: x the
    input, h and c the last output and cell state, H and C the new ones, any other letter the sum of a gate.

    Attributes:
        cells: the cells found, in the order of the nodes that complete them.
        obstacles: why values that are like cells are none, as messages; both lists are empty before `run`.

    Args:
        spec: the graph.
        prefix: that of its tensors in the state dict.
        tensors: the state dict.
        carried_over: pairs of an input's and an output's place, 0-based: another step of an unrolled layer, which has
            the same graph, takes this output as this input.
    """

    def __init__(
        self,
        spec: ModuleSpec,
        prefix: str,
        tensors: Mapping[str, Tensor],
        carried_over: frozenset[tuple[int, int]],
    ) -> None:
        """Begin without cells; `run` searches."""
        self._spec = spec
        self._graph = graph_of(spec)  # its data flow
        self._prefix = prefix
        self._tensors = tensors
        self._carried_over = carried_over
        inside = frozenset(key[len(prefix) :] for key in tensors if key.startswith(prefix))
        self._values = Values(spec, inside)  # their atoms are the numbers in polynomials
        self._bindings: dict[int, _Binding] = {}
        """The cells read so far, by the atom of the value that their last formula defines."""
        self.cells: list[GraphCell] = []
        self.obstacles: list[str] = []

    def run(self) -> Search:
        """Search all nodes, and return the search with its `cells` and `obstacles`."""
        for number, value in self._values.run():
            reasons: list[str] = []
            with suppress(UnknownValue):  # terms of a reading cancel each other: it is not a cell
                self._read_node(number, value.poly, reasons)
            # A value that is like several kinds of cells is listed as the first.
            self.obstacles += reasons[:1]
        return self

    def _read_node(self, number: int, poly: Poly, reasons: list[str]) -> None:
        """Bind the value of a node to the first formula of a cell that it is; then it is an atom from now on.

        The values of a cell follow from one another: the new cell state of an LSTM is bound first, and its output, a
        function of that, continues the same binding (what the letters of the formulas stand for). The last one adds the
        cell to `cells`.

        Args:
            number: of the node, from 1.
            poly: its value.
            reasons: receives the obstacles to cells that the value is like; emptied if it is one.
        """
        for letter, begun in self._formulas_to_read(poly):
            reading = self._read(begun.cell.formulas[letter], poly, begun)
            if reading is None:
                continue
            own_atom = number_of_atom(poly)  # that of an RNN is one already, `tanh(n)`
            atom = self._values.number_of(Atom("value", (number, ()))) if own_atom is None else own_atom
            binding = reading.defined(letter, atom_alone(atom), number)
            if binding.is_complete and not self._add_cell(binding, reasons):
                continue  # another reading, or kind of cell, may still fit
            reasons.clear()  # obstacles to other readings do not matter now
            self._bindings[atom] = binding
            if own_atom is None:
                self._values.replace_by_atom(number)
            return

    def _formulas_to_read(self, poly: Poly) -> Iterator[tuple[str, _Binding]]:
        """Yield the formulas that a value may be, by their letters, each with the cell that it would begin or continue.

        It begins one with the first formula of a kind, and continues one whose earlier values it is computed from.

        Args:
            poly: the value.
        """
        begun_cells = [self._bindings[atom] for atom in self._atoms_in(poly) if atom in self._bindings]
        kinds_of_atoms = {self._values.atoms[atom].kind for atoms, _ in poly for atom in atoms}
        for cell in CELLS:
            first_letter, *_ = cell.formulas
            for letter, text in cell.formulas.items():
                # A formula need not be read if the value has not all functions in it.
                if not functions_in(text) <= kinds_of_atoms:
                    continue
                if letter == first_letter:
                    yield letter, _Binding(cell)
                    continue
                for begun in begun_cells:
                    if begun.cell is cell and letter not in begun.values:
                        yield letter, begun

    def _add_cell(self, binding: _Binding, reasons: list[str]) -> bool:
        """Add a cell, all of whose formulas are read, unless a check refuses it; return whether it was added.

        Args:
            binding: the cell.
            reasons: receives the obstacle if it was not added, and that is worth a note.
        """
        cell = binding.cell
        try:
            graph_cell = self._stateless_cell(binding) if cell.is_highway else self._recurrent_cell(binding)
        except _NotACell as error:
            is_worth_a_note = bool(str(error))
            if cell.name == "RNN":
                # Many models have a tanh of a sum: only unknown widths are worth a note.
                is_worth_a_note = isinstance(error, _UnknownWidths)
            if is_worth_a_note:
                reasons.append(f"{cell.name} stays as it is: {error}")
            return False
        self.cells.append(graph_cell)
        return True

    def _atoms_in(self, poly: Poly) -> Iterator[int]:
        """Yield the atoms of a polynomial, and those inside a function of one product, as C in `tanh(C)`.

        Among them are the values of all cells that it may continue.
        """
        for atoms, _ in poly:
            for number in atoms:
                yield number
                atom = self._values.atoms[number]
                if atom.kind in FUNCTIONS and len(atom.of) == 1:
                    ((atoms_of_argument, _),) = atom.of
                    yield from atoms_of_argument

    # Formulas

    def _read(self, text: str, poly: Poly, start: _Binding) -> _Binding | None:
        """Return the binding with what the letters of a formula stand for in a value; `None` if it is another function.

        A sum of products may be read in several orders: the first reading whose gates are sums of a cell counts, or
        else the first of all. That may be a GRU, whose new value has the reset gate in its sum; or else the checks of
        the complete cell say the obstacle.

        Args:
            text: the formula.
            poly: the value.
            start: what was read of the cell before.
        """
        readings = [evolve(start, values=values) for values in self._readings(text, poly, start)]
        for reading in readings:
            if self._has_gates(reading):
                return reading
        return readings[0] if readings else None

    def _readings(self, text: str, poly: Poly, start: _Binding) -> list[Mapping[str, Poly]]:
        """Return all that the letters of a formula may stand for in a value; empty if it is another function.

        Args:
            text: the formula.
            poly: the value.
            start: what was read of the cell before.
        """
        pattern = list(formula(text))
        readings = list(self._match(pattern, list(poly), start.values))
        if readings or not start.cell.is_highway:
            return readings
        # Only the formula of a highway layer has its input: `… + (1 - sigmoid(t)) * x`. If x is a sum, the value has a
        # term for each of its terms, where the formula has one: an atom takes the sum's place.
        for atom, x, shortened in self._with_atom_for_sum(poly):
            for values in self._match(pattern, list(shortened), start.values):
                if values["x"] == atom:
                    readings.append({**values, "x": x})
        return readings

    def _with_atom_for_sum(self, poly: Poly) -> Iterator[tuple[Poly, Poly, Poly]]:
        """Yield shorter forms of a value in which a gate multiplies a sum that is also the gate's own input.

        Such a value has the terms of `sum * sigmoid(gate)`, or of `sum * (1 - sigmoid(gate))`, among others.

        Yields:
            For each such sum and gate: an atom for the sum, the sum, and the polynomial with the atom in its place.
        """
        gates = dict.fromkeys(self._sigmoids(number for atoms, _ in poly for number in atoms))
        for gate in gates:
            one_minus_gate = polynomial((*number_alone(1.0), ((gate,), -1.0)))
            sums = [value for value in self._values_times_matrices(self._values.atoms[gate].of) if len(value) > 1]
            for total in sums:
                atom = self._values.atom(Atom("value", total))  # told from others by the sum, as it has no link
                for factor in (atom_alone(gate), one_minus_gate):
                    terms = times(total, factor)
                    if set(terms) <= set(poly):
                        others = [term for term in poly if term not in terms]
                        yield atom, total, polynomial((*others, *times(atom, factor)))

    def _sigmoids(self, numbers: Iterable[int]) -> list[int]:
        """Return the atoms, of some, that are sigmoids."""
        return [number for number in numbers if self._values.atoms[number].kind == "sigmoid"]

    def _values_times_matrices(self, poly: Poly) -> list[Poly]:
        """Return the values that matrices multiply in a sum, each once."""
        atoms = [self._values.atoms[number] for term, _ in poly for number in term]
        return list(dict.fromkeys(atom.of for atom in atoms if atom.kind == "matrix"))

    def _match(self, pattern: list[Any], terms: list[Any], values: Mapping[str, Poly]) -> Iterator[Mapping[str, Poly]]:
        """Yield what the letters of a pattern stand for if its terms are these, in any order.

        Args:
            pattern: the terms of a formula that are not matched yet.
            terms: as many of a polynomial.
            values: what letters stand for already.
        """
        if len(pattern) != len(terms):
            return
        if not pattern:
            yield values
            return
        # The first term of the pattern may be any of the terms, and its atoms those of that in any order.
        (wanted, wanted_factor), *rest_of_pattern = pattern
        for position, (atoms, factor) in enumerate(terms):
            if factor != wanted_factor or len(atoms) != len(wanted):
                continue
            other_terms = terms[:position] + terms[position + 1 :]
            for order in permutations(atoms):
                values_with_these = self._bind(wanted, order, values)
                if values_with_these is not None:
                    yield from self._match(rest_of_pattern, other_terms, values_with_these)

    def _bind(
        self, wanted: tuple[Any, ...], atoms: tuple[int, ...], values: Mapping[str, Poly]
    ) -> Mapping[str, Poly] | None:
        """Return what letters stand for if the atoms of a product are these in this order; `None` if they cannot be.

        Args:
            wanted: the atoms of a formula: a function, or an empty text, and a letter.
            atoms: as many of a value, by number, one for each of the formula.
            values: what letters stand for already.
        """
        bound = dict(values)
        for (function, letter), number in zip(wanted, atoms):
            atom = self._values.atoms[number]
            if function and atom.kind != function:
                return None
            # tanh(g) binds g to the argument of tanh; c alone is bound to the atom itself.
            value = atom.of if function else atom_alone(number)
            if bound.setdefault(letter, value) != value:
                return None
        return bound

    # Gates

    def _has_gates(self, binding: _Binding) -> bool:
        """Return whether all letters of gates that are read already stand for sums of gates."""
        # A recurrent gate multiplies the input and the last output, that of a highway layer the input.
        products_of_gate = 1 if binding.cell.is_highway else 2
        try:
            for letter in binding.cell.gates:
                if letter not in binding.values:
                    continue
                gate = self._gate(binding.values[letter], letter)
                if len(gate.products) != products_of_gate:
                    return False
        except _NotACell:
            return False
        return True

    def _gate(self, poly: Poly, letter: str) -> _Gate:
        """Return the sum that is the argument of a gate's function, by the kinds of its terms.

        Args:
            poly: the sum.
            letter: of the gate, for the message.

        Raises:
            _NotACell: it has other terms than those of a gate.
        """
        gate = _Gate()
        for numbers, factor in poly:
            if not numbers:
                gate.constant = factor
            elif factor != 1 or not self._add_product(gate, [self._values.atoms[number] for number in numbers]):
                raise _NotACell(f"the {GATE_WORDS[letter]} is more than a sum of products with matrices")
        return gate

    def _add_product(self, gate: _Gate, atoms: list[Atom]) -> bool:
        """Add a product to the sum of a gate; return whether it could be, as a term that gates have.

        Args:
            gate: receives it.
            atoms: the factors of the product, at least one.
        """
        vectors = [atom for atom in atoms if atom.kind == "vector"]
        others = [atom for atom in atoms if atom.kind != "vector"]
        if len(vectors) == 1 and not others:  # a bias
            gate.vectors += vectors
            return True
        if len(others) != 1 or len(vectors) > 1:
            return False
        (other,) = others
        if vectors:  # a peephole: the vector times a value, element by element
            value = self._values.atom(other)
            if value in gate.peepholes:
                return False  # of several vectors, all would count
            (vector,) = vectors
            gate.peepholes[value] = vector
            return True
        # A block of a matrix, times a value that no other one multiplies.
        if other.kind != "matrix" or other.of in gate.products:
            return False
        gate.products[other.of] = other
        return True

    def _with_reset_gate(self, binding: _Binding) -> tuple[_Binding, list[Atom] | None]:
        """Return a GRU with its reset gate as `r`: its formula has it inside of the sum of the new value, `n`.

        There it is before or after the product of a matrix with the last output.

        Args:
            binding: the cell, all of whose formulas are read.

        Returns:
            The cell; and the biases that the gate scales with that product, perhaps none. `None` if it scales the last
            output itself.

        Raises:
            _NotACell: there is no such gate, or it multiplies something else.
        """
        h = binding.values["h"]
        terms_without_reset: list[Any] = []
        reset_terms: list[_ResetTerm] = []
        for numbers, factor in binding.values["n"]:
            term = self._reset_term(numbers, h)
            if term is None:  # a matrix times the input, or a bias
                terms_without_reset.append((numbers, factor))
            else:
                reset_terms.append(term)
                terms_without_reset += times(self._values.atom(term.rest), number_alone(factor))
        gates = {term.gate for term in reset_terms}
        if len(gates) != 1:
            raise _NotACell("its new value has no reset gate")
        (gate,) = gates
        biases = _scaled_biases(reset_terms, h)
        sums = {"r": self._values.atoms[gate].of, "n": polynomial(terms_without_reset)}
        return evolve(binding, values={**binding.values, **sums}), biases

    def _reset_term(self, numbers: tuple[int, ...], h: Poly) -> _ResetTerm | None:
        """Return a term of a GRU's new value without the reset gate in it; `None` if there is none in it.

        Args:
            numbers: the atoms of the term.
            h: the last output, an atom.
        """
        scaled_block = self._times_sigmoid(numbers)  # sigmoid(r) * W h, or sigmoid(r) * bias
        if scaled_block is not None:
            gate, block = scaled_block
            return _ResetTerm(gate, self._values.atoms[block], is_scaled=True)
        scaled_state = self._times_sigmoid(self._product_in_matrix(numbers))  # W (sigmoid(r) * h)
        if scaled_state is None:
            return None
        gate, state = scaled_state
        if state != number_of_atom(h):
            return None
        (matrix,) = numbers
        return _ResetTerm(gate, evolve(self._values.atoms[matrix], of=h), is_scaled=False)

    def _times_sigmoid(self, numbers: tuple[int, ...]) -> tuple[int, int] | None:
        """Return the sigmoid and the other factor of a product of these two; `None` for any other product.

        Args:
            numbers: the atoms of the product, by number.
        """
        sigmoids = self._sigmoids(numbers)  # a square of one is two of them, and refused
        if len(numbers) != 2 or len(sigmoids) != 1:
            return None
        (sigmoid,) = sigmoids
        (other,) = (number for number in numbers if number != sigmoid)
        return sigmoid, other

    def _product_in_matrix(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the atoms a and b of a term `W (a * b)`, where a matrix multiplies a product; empty for other terms.

        Args:
            numbers: the atoms of the term.
        """
        if len(numbers) != 1:
            return ()
        (number,) = numbers
        atom = self._values.atoms[number]
        if atom.kind != "matrix" or len(atom.of) != 1:  # a matrix times a sum
            return ()
        ((product, factor),) = atom.of
        return product if factor == 1 else ()

    # Cells

    def _recurrent_cell(self, binding: _Binding) -> GraphCell:
        """Return a cell whose gates see an input and the last output.

        Args:
            binding: the cell, all of whose formulas are read.

        Raises:
            _NotACell: it is not a cell of PyTorch, or of `torchmodules/layers`.
        """
        cell = binding.cell
        target = cell.target
        reset_biases = None  # also of a cell without a reset gate
        if cell.reset_first_target:
            binding, reset_biases = self._with_reset_gate(binding)
            if reset_biases is None:
                target = cell.reset_first_target
        gates = {letter: self._gate(binding.values[letter], letter) for letter in cell.gates}
        x, h = self._input_and_state(binding, gates)
        sizes = _checked_sizes(gates, x, h)
        if reset_biases is not None:
            _check_reset_biases(gates["n"], reset_biases)
        peepholes = _peepholes(binding, gates)
        if peepholes:
            target = cell.peephole_target
        pieces = [*peepholes, *_pieces_of_gates(cell, gates, (x, h), reset_biases)]
        inputs = [x, h, binding.values["c"]] if "c" in binding.values else [x, h]
        options = {} if any(gate.vectors for gate in gates.values()) else {"bias": False}
        graph_cell = self._graph_cell(binding, self._module(cell, target, sizes, options), inputs, pieces)
        _check_covered(pieces, graph_cell.shapes)
        return graph_cell

    def _stateless_cell(self, binding: _Binding) -> GraphCell:
        """Return a cell without a state: a highway layer, of two linear layers of the same input.

        Args:
            binding: the cell, all of whose formulas are read.

        Raises:
            _NotACell: it is not a cell of `torchmodules/layers`.
        """
        cell = binding.cell
        x = binding.values["x"]
        gates: dict[str, _Gate] = {}
        for letter in cell.gates:
            gates[letter] = self._gate(binding.values[letter], letter)
            if set(gates[letter].products) != {x}:
                raise _NotACell  # without a message: it is not even like one
        size, _ = gates["n"].products[x].size  # of its rows; `_pieces_of_layers` checks that the columns are as many
        pieces = _pieces_of_layers(cell, gates, x, size)
        # The class has one argument for the biases of both layers.
        if {len(gate.vectors) for gate in gates.values()} not in ({0}, {1}):
            raise _NotACell("its layers do not have one bias each")
        gate_bias = gates["t"].constant
        if "t" in cell.negated:
            gate_bias = 0.0 - gate_bias  # never -0.0, which a page would show
        options = {"gate_bias": gate_bias, "bias": bool(gates["t"].vectors)}
        return self._graph_cell(binding, self._module(cell, cell.target, (size,), options), [x], pieces)

    def _module(self, cell: Cell, target: str, sizes: tuple[int, ...], options: dict[str, Any]) -> ModuleSpec:
        """Return the module that a cell becomes.

        Args:
            cell: its kind.
            target: its class in `torchmodules/layers`.
            sizes: the numbers of features, the positional arguments of the class.
            options: arguments by keyword, besides those that all cells of its kind have.
        """
        # In Lua the cell is no object: the graph that it is in stands for it in messages.
        return ModuleSpec(
            target=LAYERS + target,
            args=sizes,
            kwargs={**cell.options, **options},
            class_name=cell.name,
            obj=self._spec.obj,
            path=self._spec.path,
        )

    def _graph_cell(self, binding: _Binding, module: ModuleSpec, inputs: list[Poly], pieces: list[Piece]) -> GraphCell:
        """Return a cell, after the checks that cells with and without a state have in common.

        Args:
            binding: what its letters stand for.
            module: the module that it becomes.
            inputs: the values that it takes, in the order of the class.
            pieces: what its tensors are made of.

        Raises:
            _NotACell: see `_check_sources`; or a value that it takes is not the output of a node before.
        """
        self._check_sources(pieces)
        cell = binding.cell
        outputs = tuple(binding.nodes[letter] for letter in cell.returns)
        # The cell gets the place of its first output.
        links = tuple(self._link(value, before=min(outputs)) for value in inputs)
        return GraphCell(cell, module, self._spec, self._prefix, inputs=links, outputs=outputs, pieces=pieces)

    def _link(self, value: Poly, before: int | None = None) -> Link:
        """Return the first link to a value.

        Args:
            value: the value.
            before: the number of a node that has to run after it; `None` if it may be anywhere.

        Raises:
            _NotACell: it is computed inside a container, and is not the output of a node (before that one).
        """
        link = self._values.links.get(value)
        if link is None or (before is not None and link[0] >= before):
            raise _NotACell("one of its inputs is computed inside a container")
        return link

    # Which value is the state

    def _input_and_state(self, binding: _Binding, gates: dict[str, _Gate]) -> tuple[Poly, Poly]:
        """Return the input and the last output, which the cell's matrices multiply.

        Blocks of a matrix whose widths were not known, as both are joined before it, get them, in `gates`: now it is
        known which of the two is which.

        Args:
            binding: what the letters of the formulas stand for.
            gates: the sums of the gates, by letter.

        Raises:
            _NotACell: they multiply other values, or none of them can be the last output.
        """
        values = list(dict.fromkeys(value for gate in gates.values() for value in gate.products))
        if len(values) != 2:
            raise _NotACell(f"its gates see {len(values)} values, not an input and the last output")
        ranks = self._ranks(values, binding, gates)
        if not ranks:
            raise _NotACell("none of the values that its gates see has as many features as its output")
        # Of two that are as likely the later one: cells take their input first.
        h = max(ranks, key=lambda value: (ranks[value], values.index(value)))
        (x,) = (value for value in values if value != h)
        # Any tanh of two products looks like an RNN: it is one only if one of the values is shown to be a state, of
        # which the other is not computed.
        if binding.cell.name == "RNN" and (ranks[h] < _SHOWN_BY_GRAPH or self._depends_on(x, h)):
            raise _NotACell("it is not known to be a state")
        for gate in gates.values():
            if set(gate.products) == {x, h} and gate.products[h].has_unknown_width:
                gate.products = _resolved_blocks(gate.products, x, h, is_proven=ranks[h] == _CERTAIN)
        return x, h

    def _ranks(self, values: list[Poly], binding: _Binding, gates: dict[str, _Gate]) -> dict[Poly, int]:
        """Return how likely each value is the last output (see `_rank_as_state`), without those that cannot be.

        Args:
            values: the two that the gates' matrices multiply.
            binding: what the letters of the formulas stand for.
            gates: the sums of the gates, by letter.
        """
        ranks: dict[Poly, int] = {}
        is_in_formula = "h" in binding.values  # that of a GRU has the last output itself
        for value in values:
            if is_in_formula and binding.values["h"] != value:
                continue
            # The last output has as many features as the cell: its blocks are square, or of unknown width.
            blocks = [gate.products[value] for gate in gates.values() if value in gate.products]
            if any(not block.has_unknown_width and block.size[0] != block.size[1] for block in blocks):
                continue
            ranks[value] = _CERTAIN if is_in_formula else self._rank_as_state(value, binding, gates)
        return ranks

    def _depends_on(self, value: Poly, other: Poly) -> bool:
        """Return whether a value is computed from another."""
        link = self._link(other)
        return link in upstream([self._link(value)], lambda number: self._graph.nodes[number - 1].takes)

    def _rank_as_state(self, value: Poly, binding: _Binding, gates: dict[str, _Gate]) -> int:
        """Return how clearly a value is the last output: one of the ranks from `_UNLIKELY` to `_CERTAIN`.

        Args:
            value: one of the two that the gates' matrices multiply.
            binding: what the letters of the formulas stand for.
            gates: the sums of the gates, by letter.
        """
        is_continued = self._continues(value, binding, gates)
        if is_continued is not None:  # the value is the output of a cell: this one's last step, or another layer
            return _CERTAIN if is_continued else _POSSIBLE
        # What the cell takes as its state, by the letter of the new state.
        states = {"H": value}
        if "c" in binding.values:
            states["C"] = binding.values["c"]
        # For each state: its place among the inputs, and the place of the new state among the outputs.
        places: list[tuple[int, int | None]] = []
        for letter, state in states.items():
            input_place = self._place_among_inputs(state)
            if input_place is None:
                return _UNLIKELY
            output_place = self._place_among_outputs(binding.nodes[letter])
            # That h is carried over is enough, whatever c is; that c is does not tell which of the two values is h.
            if letter == "H" and (input_place, output_place) in self._carried_over:
                return _SHOWN_BY_GRAPH
            places.append((input_place, output_place))
        return _SHOWN_BY_GRAPH if _are_in_one_order(places) else _POSSIBLE

    def _place_among_inputs(self, value: Poly) -> int | None:
        """Return the place of a value in the list that is the input of the graph, 0-based; `None` if it is not there.

        Raises:
            _NotACell: see `_link`.
        """
        source, path = self._link(value)
        return path[0] if source == 0 and path else None  # 0 is the input of the graph

    def _place_among_outputs(self, node: int) -> int | None:
        """Return the place of a node's output among those of the graph, 0-based; `None` if it is not one.

        Args:
            node: its number, from 1.
        """
        link = (node, ())
        return self._graph.outputs.index(link) if link in self._graph.outputs else None

    def _continues(self, value: Poly, binding: _Binding, gates: dict[str, _Gate]) -> bool | None:
        """Return whether a value is the output of a cell that this one continues.

        A cell with a cell state continues another if it takes both states of that. Any other continues one with which
        it shares weights; with other weights it is the next layer.

        Args:
            value: one of the two that the gates' matrices multiply.
            binding: what the letters of this cell's formulas stand for.
            gates: the sums of its gates, by letter.

        Returns:
            `None` if no cell returns the value, or the cell that does has another cell state than this one takes.
        """
        atom = number_of_atom(value)
        before = None if atom is None else self._bindings.get(atom)
        if before is None or before.values.get("H") != value:
            return None
        if before.values.get("C") != binding.values.get("c"):
            return None
        if "c" in binding.values:
            return True
        # The letter n is the argument of the new value, in an RNN and in a GRU.
        keys_before: set[str] = set()
        for atoms, _ in before.values.get("n", ()):
            keys_before.update(self._values.atoms[number].key for number in atoms)
        keys = {block.key for gate in gates.values() for block in gate.products.values()}
        return bool(keys_before & keys)

    def _check_sources(self, pieces: list[Piece]) -> None:
        """Refuse a cell that uses an element of a tensor twice, or not at all, or tensors of several types.

        Args:
            pieces: what the cell's tensors are made of: blocks of tensors of the graph.

        Raises:
            _NotACell: it does.
        """
        by_key: dict[str, list[Piece]] = {}
        types: set[Any] = set()
        for piece in pieces:
            tensor = self._tensors[self._prefix + piece.key]
            types.add((tensor.element.name, tensor.device))
            others = by_key.setdefault(piece.key, [])
            if any(_overlap(piece, other) for other in others):
                raise _NotACell(f"two of its gates share {piece.key}")
            others.append(piece)
        for key, blocks in by_key.items():
            count = sum(prod(block.size) for block in blocks)
            if count != self._tensors[self._prefix + key].numel:
                raise _NotACell(f"{key} has elements that it does not use")
        if len(types) > 1:
            raise _NotACell("its tensors are of different types")


def _are_in_one_order(places: list[tuple[int, int | None]]) -> bool:
    """Return whether the states of a cell are in one order among the inputs and the outputs of its graph.

    Of inputs x, h and c, and outputs h and c, each state is one place further behind among the inputs. A single state
    has none to be compared with: it has to be further behind, as a state comes after x.

    Args:
        places: for each state its place among the inputs, and that of the new one among the outputs; `None` if that is
            not an output.
    """
    distances: set[int] = set()
    for input_place, output_place in places:
        if output_place is None:
            return False
        distances.add(input_place - output_place)
    if len(distances) > 1:
        return False
    (distance,) = distances
    return len(places) > 1 or distance > 0


def _overlap(piece: Piece, other: Piece) -> bool:
    """Return whether two blocks of a tensor have a common element."""
    for start, size, other_start, other_size in zip(piece.start, piece.size, other.start, other.size):
        if start >= other_start + other_size or other_start >= start + size:
            return False
    return True


def _checked_sizes(gates: Mapping[str, _Gate], x: Poly, h: Poly) -> tuple[int, int]:
    """Return the numbers of features of a cell's input and output, which all gates must have.

    Args:
        gates: the gates by letter, in the order of their rows.
        x: the input.
        h: the last output.

    Raises:
        _NotACell: a gate has other inputs or sizes, or more terms than PyTorch's.
    """
    # The first gate tells the sizes, if it sees both values.
    letter, gate = next(iter(gates.items()))
    _check_products(letter, gate, (x, h))
    _, input_size = gate.products[x].size
    size, _ = gate.products[h].size
    for letter, gate in gates.items():
        _check_gate(letter, gate, (x, h), size)
    return input_size, size


def _check_products(letter: str, gate: _Gate, inputs: tuple[Poly, ...]) -> None:
    """Refuse a gate whose matrices multiply other values than the cell's inputs, or not all of these.

    Args:
        letter: of the gate, for the message.
        gate: its sum.
        inputs: the values.

    Raises:
        _NotACell: they do.
    """
    if set(gate.products) != {*inputs}:
        raise _NotACell(f"the {GATE_WORDS[letter]} does not see both the input and the last output")


def _check_gate(letter: str, gate: _Gate, inputs: tuple[Poly, ...], size: int) -> None:
    """Refuse a gate that has other inputs or another size than the cell, or more terms than PyTorch's.

    Args:
        letter: of the gate.
        gate: its sum.
        inputs: the values that its matrices should multiply.
        size: the number of features of the cell.

    Raises:
        _NotACell: it has.
    """
    _check_products(letter, gate, inputs)
    word = GATE_WORDS[letter]
    blocks = (*gate.products.values(), *gate.vectors, *gate.peepholes.values())
    if {block.size[0] for block in blocks} != {size}:
        raise _NotACell(f"the {word} has another size")
    if len(gate.vectors) > 2:  # PyTorch has two: of the input, and of the last output
        raise _NotACell(f"the {word} has {len(gate.vectors)} biases")
    # Of a highway layer the number is an argument, `gate_bias`.
    if gate.constant and letter != "t":
        raise _NotACell(f"a number is added to the {word}")


def _peepholes(binding: _Binding, gates: dict[str, _Gate]) -> list[Piece]:
    """Return the pieces of the vectors through which gates see the cell's state; empty if no gate sees it.

    Args:
        binding: the cell.
        gates: its gates, by letter.

    Raises:
        _NotACell: a gate sees another value, or only some of those in `Cell.peepholes` see the state.
    """
    cell = binding.cell
    pieces: list[Piece] = []
    for letter, gate in gates.items():
        for value, vector in gate.peepholes.items():
            if letter not in cell.peepholes or value != binding.values[cell.peepholes[letter]]:
                raise _NotACell(f"the {GATE_WORDS[letter]} sees another value")
            pieces.append(_piece(vector, f"weight_c{letter}", first_row=0))
    if pieces and len(pieces) != len(cell.peepholes):
        raise _NotACell("only some of its gates see the cell")
    return pieces


def _resolved_blocks(products: Mapping[Poly, Atom], x: Poly, h: Poly, is_proven: bool) -> dict[Poly, Atom]:
    """Return two blocks of a matrix whose widths were not known: that of the last output is square.

    Args:
        products: the blocks, by the values that they multiply; see `Atom.size` for their numbers.
        x: the input.
        h: the last output.
        is_proven: whether it is proven which of the two is the last output.

    Raises:
        _UnknownWidths: it is not proven, and their widths differ, so that it matters.
    """
    rows, minus_columns = products[h].size
    columns = -minus_columns  # of the whole matrix
    if not is_proven and columns != 2 * rows:
        raise _UnknownWidths("the sizes of the values that are joined are not known")
    blocks = {}
    for value, width in ((h, rows), (x, columns - rows)):
        row, column = products[value].start
        is_second = column < 0
        if is_second:
            column = columns - width  # it ends where the matrix does
        blocks[value] = evolve(products[value], start=(row, column), size=(rows, width))
    return blocks


def _scaled_biases(terms: list[_ResetTerm], h: Poly) -> list[Atom] | None:
    """Return the biases c that a GRU's reset gate scales, of `r * (U h + c)`; `None` for `U (r * h)`, without any.

    Args:
        terms: those in which the gate is.
        h: the last output.

    Raises:
        _NotACell: what the gate scales is not one matrix times h, and biases.
    """
    scaled = [term.rest for term in terms if term.is_scaled]
    if not scaled:
        return None
    biases = [atom for atom in scaled if atom.kind == "vector"]
    others = [(atom.kind, atom.of) for atom in scaled if atom.kind != "vector"]
    if others != [("matrix", h)]:
        raise _NotACell("its reset gate does not multiply the product with the last output, or more than that")
    return biases


def _check_reset_biases(new_value: _Gate, reset_biases: list[Atom]) -> None:
    """Refuse a GRU that has more biases than PyTorch's, `n = tanh(W x + b + r * (U h + c))`.

    Args:
        new_value: the sum of the new value, with all its biases.
        reset_biases: those that the reset gate scales.

    Raises:
        _NotACell: it has.
    """
    count_of_others = len(new_value.vectors) - len(reset_biases)
    if len(reset_biases) > 1 or count_of_others > 1:
        raise _NotACell("its new value has two biases that are reset, or two that are not")


def _pieces_of_gates(
    cell: Cell, gates: Mapping[str, _Gate], inputs: tuple[Poly, Poly], reset_biases: list[Atom] | None
) -> Iterator[Piece]:
    """Yield what a recurrent cell's matrices and biases are made of; the gates' rows follow one another in each.

    Args:
        cell: the kind of cell.
        gates: the gates by letter, in the order of their rows, all of one size.
        inputs: the input and the last output.
        reset_biases: those that the reset gate of a GRU scales, in its new value; `None` for other cells.
    """
    _, h = inputs
    for number, (letter, gate) in enumerate(gates.items()):
        size, _ = gate.products[h].size
        # The reset gate is inside of the new value alone.
        biases = reset_biases if letter == "n" else None
        for piece in _pieces(gate, inputs, first_row=number * size, reset_biases=biases):
            yield evolve(piece, negated=letter in cell.negated)


def _piece(block: Atom, target: str, first_row: int, negated: bool = False, second_bias: str = "") -> Piece:
    """Return the piece of a cell's tensor that a block of a tensor of the graph becomes.

    Args:
        block: the atom of the block.
        target: the name of the cell's tensor.
        first_row: the first row of the block there.
        negated: whether the cell has the negative values.
        second_bias: see `Piece`.
    """
    at = (first_row, *[0] * (len(block.size) - 1))
    return Piece(block.key, block.start, block.size, target, at=at, negated=negated, second_bias=second_bias)


def _pieces_of_layers(cell: Cell, gates: Mapping[str, _Gate], x: Poly, size: int) -> list[Piece]:
    """Return what the tensors of a cell without a state are made of, which are those of a layer for each gate.

    Args:
        cell: the kind of cell.
        gates: the gates by letter.
        x: the only value that their matrices multiply.
        size: its number of features, and that of the output.

    Raises:
        _NotACell: a gate is no layer of that size.
    """
    pieces: list[Piece] = []
    for letter, name in cell.layers.items():
        gate = gates[letter]
        _check_gate(letter, gate, (x,), size)  # then it multiplies x
        matrix = gate.products[x]
        if matrix.size != (size, size) or gate.peepholes:
            raise _NotACell(f"the {GATE_WORDS[letter]} is not a layer of as many outputs as inputs")
        is_negated = letter in cell.negated
        pieces.append(_piece(matrix, f"{name}.weight", first_row=0, negated=is_negated))
        for vector in gate.vectors:  # one or none: the caller refuses more
            pieces.append(_piece(vector, f"{name}.bias", first_row=0, negated=is_negated))
    return pieces


def _pieces(gate: _Gate, inputs: tuple[Poly, Poly], first_row: int, reset_biases: list[Atom] | None) -> Iterator[Piece]:
    """Yield what the rows of a gate are made of, in the tensors `weight_ih`, `weight_hh`, `bias_ih` and `bias_hh`.

    Args:
        gate: the gate, of at most two biases.
        inputs: the input and the last output.
        first_row: the gate's first row in each tensor.
        reset_biases: the biases that a reset gate scales, which are those of the last output (`bias_hh`); of these, and
            of the others, the gate has at most one. `None` for gates of which only the sum of the biases counts.
    """
    input_matrix, state_matrix = (gate.products[value] for value in inputs)
    yield _piece(input_matrix, "weight_ih", first_row)
    yield _piece(state_matrix, "weight_hh", first_row)
    if reset_biases is not None:
        # The two have different effects, and neither can be zero for want of the other: `_check_covered` refuses that.
        for vector in gate.vectors:
            target = "bias_hh" if vector in reset_biases else "bias_ih"
            yield _piece(vector, target, first_row)
        return
    biases = _in_order_of_layers(gate.vectors, input_matrix, state_matrix)
    # PyTorch adds two biases. If Lua has one, the second is zero; in a file for Lua, the sum of both becomes the one.
    second_bias = "bias_hh" if len(biases) == 1 else ""
    for target, vector in zip(("bias_ih", "bias_hh"), biases):
        yield _piece(vector, target, first_row, second_bias=second_bias)


def _in_order_of_layers(vectors: list[Atom], input_matrix: Atom, state_matrix: Atom) -> list[Atom]:
    """Return the biases of a gate, that of the input's layer first, and that of the last output's layer last.

    Args:
        vectors: the biases, which may be of any layers.
        input_matrix: the block of a matrix that multiplies the input.
        state_matrix: that which multiplies the last output.
    """
    input_module = _module_of(input_matrix)
    state_module = _module_of(state_matrix)

    def order(vector: Atom) -> int:
        module = _module_of(vector)
        if module == input_module:
            return 0
        return 2 if module == state_module else 1

    return sorted(vectors, key=order)


def _check_covered(pieces: list[Piece], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a cell with elements that no tensor of Lua has: they could be trained, and had no way back.

    Args:
        pieces: what the cell's tensors are made of. They do not overlap.
        shapes: of these tensors, by their names in the cell.

    Raises:
        _NotACell: a gate lacks a bias that another has.
    """
    covered = dict.fromkeys(shapes, 0)  # numbers of elements
    for piece in pieces:
        covered[piece.target] += prod(piece.size)
        if piece.second_bias:
            covered[piece.second_bias] += prod(piece.size)
    if any(covered[name] != prod(shape) for name, shape in shapes.items()):
        raise _NotACell("only some of its layers have a bias")


def _module_of(atom: Atom) -> str:
    """Return the name of the module whose tensor an atom is a block of."""
    module, _, _ = atom.key.rpartition(".")
    return module
