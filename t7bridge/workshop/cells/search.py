"""The cells in one graph: nodes that compute an LSTM, a GRU or the like, whose values, as polynomials of atoms, are
those of a formula in `kinds`. A gate is the sum `W x + U h + b` in a function: x is the input of the cell, h its last
output; c is its last cell state, H and C are the new ones.

However a model arranges its layers, equal functions are equal polynomials (see `values`): a cell is recognized by what
it computes, never by names. Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from attrs import evolve

from ...data import define
from ...graph.tensor import Tensor
from ...nn.mapping import LAYERS, Link, ModuleSpec
from ...nn.pieces import Piece
from ...nn.registry import tensor_shapes
from .gates import (
    Gate,
    Gates,
    NotACell,
    UnknownWidths,
    are_gates,
    check_reset_biases,
    checked_sizes,
    gate_of,
    gates_of,
    set_unknown_widths,
)
from .kinds import KINDS, CellKind
from .polynomials import FUNCTIONS, Atom, Poly, UnknownValue, atom_alone, functions_in
from .readings import Reading, read_formula, read_highway
from .states import States, link_to
from .tensors import check_covered, check_sources, pieces_of_highway, pieces_of_peepholes, pieces_of_recurrent
from .values import Values, graph_of


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

    kind: CellKind
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

    @property
    def layers(self) -> list[str]:
        """The names of the modules of the graph whose tensors it has, each once."""
        layers = [piece.key.partition(".")[0] for piece in self.pieces]  # of `linear.weight`, `linear`
        return list(dict.fromkeys(layers))


class Search:
    """Finds the cells of a graph, by reading the formulas of each kind of cell in the values of its nodes. A reading
    has what the letters of a kind's formulas stand for, as far as these are read; it is complete when all are.

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
        self._prefix = prefix
        self._tensors = tensors
        keys_in_graph = frozenset(key[len(prefix) :] for key in tensors if key.startswith(prefix))
        self._values = Values(spec, keys_in_graph)
        self._readings: dict[Atom, Reading] = {}
        """The cells read so far, by the atom of the value that their last formula defines."""
        self._states = States(self._values, graph_of(spec), carried_over, self._readings)
        self.cells: list[GraphCell] = []
        self.obstacles: list[str] = []

    def run(self) -> Search:
        """Search all nodes, and return the search with its `cells` and `obstacles`."""
        for number, poly in self._values.run():
            obstacles: list[str] = []
            is_read = False
            with suppress(UnknownValue):  # terms of a reading cancel each other: it is not a cell
                is_read = self._read_node(number, poly, obstacles)
            if not is_read:
                # A value that is like several kinds of cells is listed as the first.
                self.obstacles += obstacles[:1]
        return self

    def _read_node(self, number: int, poly: Poly, obstacles: list[str]) -> bool:
        """Read the first formula that defines the value of a node, which is an atom then; return whether there is one.

        The values of a cell follow from one another: the new cell state of an LSTM is read first, and its output, a
        function of that, continues the same reading. The last one completes the cell, which is added to `cells`.

        Args:
            number: of the node, from 1.
            poly: its value.
            obstacles: receives those to cells that the value is like.
        """
        for letter, begun in self._formulas_to_read(poly):
            reading = self._read(letter, poly, begun)
            if reading is None:
                continue
            atom = self._values.atom_of(number)
            reading = reading.defined(letter, atom_alone(atom), number)
            if reading.is_complete:
                try:
                    self.cells.append(self._cell(reading))
                except NotACell as error:
                    obstacles += _worth_a_note(reading.kind, error)
                    continue  # another formula, or kind of cell, may still fit
            # Values computed from this one have the atom, by which they find the reading that they continue.
            self._values.replace(number, atom)
            self._readings[atom] = reading
            return True
        return False

    def _formulas_to_read(self, poly: Poly) -> Iterator[tuple[str, Reading]]:
        """Yield the formulas that may define a value, by their letters, each with the cell that it begins or continues.

        It begins one with the first formula of a kind, and continues one whose earlier values it is computed from.

        Args:
            poly: the value.
        """
        begun_cells = [self._readings[atom] for atom in _atoms_in(poly) if atom in self._readings]
        # The kind of an atom that is a function is the name of that. No formula has a function inside of another.
        functions_in_value = {atom.kind for atoms, _ in poly for atom in atoms}
        for kind in KINDS:
            first_letter, *_ = kind.formulas
            for letter, text in kind.formulas.items():
                # A quick check, as most values are of no cell: reading tries the terms in all orders.
                if not functions_in(text) <= functions_in_value:
                    continue
                if letter == first_letter:
                    yield letter, Reading(kind)
                    continue
                for begun in begun_cells:
                    if begun.kind is kind and letter not in begun.letters:  # else the cell has this value already
                        yield letter, begun

    def _read(self, letter: str, poly: Poly, begun: Reading) -> Reading | None:
        """Return a reading continued with a formula of its kind in a value; `None` if the value is another function.

        A sum of products may be read in several orders: the first reading whose gates are sums of a cell counts, or
        else the first of all. That may be a GRU, whose new value has the reset gate in its sum; or else the checks of
        the complete cell say the obstacle.

        Args:
            letter: that which the formula defines.
            poly: the value.
            begun: what was read of the cell before.
        """
        text = begun.kind.formulas[letter]
        possible_letters = [*read_formula(text, poly, begun.letters)]
        if begun.kind.is_highway and not possible_letters:  # its input may be a sum
            possible_letters = [*read_highway(text, poly, self._values.atoms)]
        readings = [evolve(begun, letters=letters) for letters in possible_letters]
        for reading in readings:
            if are_gates(reading):
                return reading
        return readings[0] if readings else None

    # Cells

    def _cell(self, reading: Reading) -> GraphCell:
        """Return the cell of a complete reading.

        Raises:
            NotACell: it is not a cell of PyTorch, or of `torchmodules/layers`.
        """
        return self._highway(reading) if reading.kind.is_highway else self._recurrent_cell(reading)

    def _recurrent_cell(self, reading: Reading) -> GraphCell:
        """Return a cell whose gates see an input and the last output; see `_cell`."""
        kind = reading.kind
        gates = gates_of(reading, self._values.atoms)
        seen = self._states.input_and_state(reading, gates)
        x = seen.x
        h = seen.h
        set_unknown_widths(gates, x, h, seen.is_proven)  # in `gates`, before their sizes are compared
        sizes = checked_sizes(gates, x, h)
        if "n" in gates:  # the new value of a GRU, or the only gate of an RNN, which has no reset biases
            check_reset_biases(gates["n"])
        peepholes = pieces_of_peepholes(reading, gates)
        pieces = [*peepholes, *pieces_of_recurrent(kind, gates, x, h)]
        target = _target_of_recurrent(kind, gates, sees_cell_state=bool(peepholes))
        has_biases = any(gate.biases for gate in gates.values())
        module = self._module(kind, target, sizes, options={} if has_biases else {"bias": False})
        inputs = [x, h]
        if "c" in reading.letters:
            inputs.append(reading.letters["c"])
        cell = self._graph_cell(reading, module, inputs, pieces)
        check_covered(pieces, cell.shapes)
        return cell

    def _highway(self, reading: Reading) -> GraphCell:
        """Return a highway layer, two linear layers of the same input that are the gates of a cell without a state; see
        `_cell`.
        """
        kind = reading.kind
        x = reading.letters["x"]
        gates: dict[str, Gate] = {}
        for letter in kind.gates:
            gates[letter] = gate_of(reading.letters[letter], letter)
            if set(gates[letter].products) != {x}:
                raise NotACell  # without a message: it is not even like one
        size = gates["n"].products[x].rows  # `pieces_of_highway` checks that the columns are as many
        pieces = pieces_of_highway(kind, gates, x, size)
        # The class has one argument for the biases of both layers.
        if {len(gate.biases) for gate in gates.values()} not in ({0}, {1}):
            raise NotACell("its layers do not have one bias each")
        gate_bias = gates["t"].constant
        if "t" in kind.negated:
            gate_bias = 0.0 - gate_bias  # never -0.0, which a page would show
        options = {"gate_bias": gate_bias, "bias": bool(gates["t"].biases)}
        return self._graph_cell(reading, self._module(kind, kind.target, (size,), options), [x], pieces)

    def _module(self, kind: CellKind, target: str, sizes: tuple[int, ...], options: dict[str, Any]) -> ModuleSpec:
        """Return the module that a cell becomes.

        Args:
            kind: the kind of cell.
            target: its class in `torchmodules/layers`.
            sizes: the numbers of features, the positional arguments of the class.
            options: arguments by keyword, besides those that all cells of its kind have.
        """
        # In Lua the cell is no object: the graph that it is in stands for it in messages.
        return ModuleSpec(
            target=LAYERS + target,
            args=sizes,
            kwargs={**kind.options, **options},
            class_name=kind.name,
            obj=self._spec.obj,
            path=self._spec.path,
        )

    def _graph_cell(self, reading: Reading, module: ModuleSpec, inputs: list[Poly], pieces: list[Piece]) -> GraphCell:
        """Return a cell, after the checks that cells with and without a state have in common.

        Args:
            reading: the cell, complete.
            module: the module that it becomes.
            inputs: the values that it takes, in the order of the class.
            pieces: what its tensors are made of.

        Raises:
            NotACell: see `check_sources`; or a value that it takes is not the output of a node before.
        """
        check_sources(pieces, self._tensors, self._prefix)
        kind = reading.kind
        outputs = tuple(reading.nodes[letter] for letter in kind.returns)
        # The cell gets the place of its first output.
        links = tuple(link_to(value, self._values, before=min(outputs)) for value in inputs)
        return GraphCell(kind, module, self._spec, self._prefix, inputs=links, outputs=outputs, pieces=pieces)


def _atoms_in(poly: Poly) -> Iterator[Atom]:
    """Yield the atoms of a polynomial, and those inside a function of one product, as C in `tanh(C)`.

    Among them are the values of all cells that it may continue.
    """
    for atoms, _ in poly:
        for atom in atoms:
            yield atom
            if atom.kind in FUNCTIONS and len(atom.of) == 1:
                ((atoms_of_argument, _),) = atom.of
                yield from atoms_of_argument


def _target_of_recurrent(kind: CellKind, gates: Gates, sees_cell_state: bool) -> str:
    """Return the class of a recurrent cell, in `torchmodules/layers`.

    Args:
        kind: its kind.
        gates: its gates.
        sees_cell_state: whether gates multiply the cell state with a vector, a peephole.
    """
    if sees_cell_state:
        return kind.peephole_target
    if kind.has_reset_gate and gates["n"].reset_biases is None:  # the gate scales no product: it comes first
        return kind.reset_first_target
    return kind.target


def _worth_a_note(kind: CellKind, error: NotACell) -> list[str]:
    """Return the message about the obstacle to a cell, in a list; an empty list if nobody expects such a cell there."""
    is_expected = bool(str(error))
    if kind.name == "RNN":
        # Many models have a tanh of a sum: only unknown widths are worth a note.
        is_expected = isinstance(error, UnknownWidths)
    return [f"{kind.name} stays as it is: {error}"] if is_expected else []
