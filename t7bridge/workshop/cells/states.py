"""Tells which of the two values that the gates of a cell multiply with matrices is its last output h, and which its
input x. A reading has the values that letters stand for: h and c are the last output and cell state, H and C the new
ones. A value is a polynomial; a link to it leads to the output of a node (from 1) or to the input of the graph (0), and
by a path to an element of that.

Knows neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from ...data import define
from ...nn.mapping import GraphSpec, Link
from .gates import Gates, NotACell
from .polynomials import Atom, Poly, single_atom
from .readings import Reading
from .values import Values, upstream


class _Likelihood(IntEnum):
    """How clearly a value is the last output of a cell."""

    UNLIKELY = 0
    """The value, or the cell state of the cell, is not an input of the graph."""
    POSSIBLE = 1
    """It is another input, or the output of a cell with other weights."""
    SHOWN_BY_GRAPH = 2
    """It is an input of the graph that gets the cell's output of the step before. Either another step of an unrolled
    layer passes that on (`carried_over`), or see `_are_in_one_order`.
    """
    CERTAIN = 3
    """It is in the formula of the cell, or is the output of a cell that this one continues."""


@define(frozen=True)
class InputAndState:
    """The values that the matrices of a cell multiply.

    Attributes:
        x: the input.
        h: the last output.
        is_proven: whether it is proven which of them is which.
    """

    x: Poly
    h: Poly
    is_proven: bool


class States:
    """Tells the last outputs of the cells of a graph from their inputs.

    Args:
        values: those of the graph.
        graph: its data flow.
        carried_over: pairs of an input's and an output's place, 0-based: another step of an unrolled layer, which has
            the same graph, takes this output as this input.
        readings: what is read of the cells so far, by the atom of the value that their last formula defines.
    """

    def __init__(
        self,
        values: Values,
        graph: GraphSpec,
        carried_over: frozenset[tuple[int, int]],
        readings: Mapping[Atom, Reading],
    ) -> None:
        self._values = values
        self._graph = graph
        self._carried_over = carried_over
        self._readings = readings

    def input_and_state(self, reading: Reading, gates: Gates) -> InputAndState:
        """Return the input and the last output of a cell.

        Args:
            reading: the cell, complete.
            gates: its gates.

        Raises:
            NotACell: its matrices multiply other values than two, or neither can be the last output.
        """
        values = list(dict.fromkeys(value for gate in gates.values() for value in gate.products))
        if len(values) != 2:
            raise NotACell(f"its gates see {len(values)} values, not an input and the last output")
        likelihoods: dict[Poly, _Likelihood] = {}
        for value in values:
            if _may_be_state(value, reading, gates):
                likelihoods[value] = self._likelihood(value, reading, gates)
        if not likelihoods:
            raise NotACell("none of the values that its gates see has as many features as its output")
        # Of two that are as likely the later one: cells take their input first.
        h = max(likelihoods, key=lambda value: (likelihoods[value], values.index(value)))
        (x,) = (value for value in values if value != h)
        if reading.kind.name == "RNN":
            self._check_rnn(x, h, likelihoods[h])
        return InputAndState(x, h, is_proven=likelihoods[h] == _Likelihood.CERTAIN)

    def _check_rnn(self, x: Poly, h: Poly, likelihood: _Likelihood) -> None:
        """Refuse an RNN whose last output is not shown to be one: any tanh of two products has the formula of an RNN.

        Args:
            x: the input.
            h: the last output.
            likelihood: how clearly h is that.

        Raises:
            NotACell: it is not clear, or the input is computed from h; or see `link_to`.
        """
        if likelihood < _Likelihood.SHOWN_BY_GRAPH or self._depends_on(x, h):
            raise NotACell("it is not known to be a state")

    def _likelihood(self, value: Poly, reading: Reading, gates: Gates) -> _Likelihood:
        """Return how clearly a value is the last output of a cell.

        Args:
            value: one that may be, see `_may_be_state`.
            reading: the cell, complete.
            gates: its gates.

        Raises:
            NotACell: see `link_to`.
        """
        if "h" in reading.letters:  # it is in the formula of a GRU, so that no other value may be
            return _Likelihood.CERTAIN
        cell_before = self._cell_before(value, reading)
        if cell_before is None:
            return self._likelihood_of_input(value, reading)
        # A cell with a cell state, which it takes from the cell before, continues that. Any other does so if it shares
        # weights with it; with other weights it is the next layer.
        is_continued = "c" in reading.letters or _share_weights(cell_before, gates)
        return _Likelihood.CERTAIN if is_continued else _Likelihood.POSSIBLE

    def _cell_before(self, value: Poly, reading: Reading) -> Reading | None:
        """Return the cell whose output a value is, if it also has the cell state that a cell takes; else `None`.

        Args:
            value: one that the gates of the cell multiply.
            reading: the cell. If it has no cell state, the one before has none either.
        """
        atom = single_atom(value)
        before = None if atom is None else self._readings.get(atom)
        if before is None or before.letters.get("H") != value:
            return None
        return before if before.letters.get("C") == reading.letters.get("c") else None

    def _likelihood_of_input(self, value: Poly, reading: Reading) -> _Likelihood:
        """Return how clearly a value that no cell returns is the last output of a cell.

        Args:
            value: the value.
            reading: the cell.

        Raises:
            NotACell: see `link_to`.
        """
        place_of_h = self._place_among_inputs(value)
        if place_of_h is None:
            return _Likelihood.UNLIKELY
        places = [(place_of_h, self._place_among_outputs(reading.nodes["H"]))]
        # That h is carried over is enough, whatever c is; that c is does not tell which of the two values is h.
        if places[0] in self._carried_over:
            return _Likelihood.SHOWN_BY_GRAPH
        if "c" in reading.letters:
            place_of_c = self._place_among_inputs(reading.letters["c"])
            if place_of_c is None:
                return _Likelihood.UNLIKELY
            places.append((place_of_c, self._place_among_outputs(reading.nodes["C"])))
        return _Likelihood.SHOWN_BY_GRAPH if _are_in_one_order(places) else _Likelihood.POSSIBLE

    def _place_among_inputs(self, value: Poly) -> int | None:
        """Return the place of a value in the list that is the input of the graph, 0-based; `None` if it is not there.

        Raises:
            NotACell: see `link_to`.
        """
        number, path = link_to(value, self._values)
        return path[0] if number == 0 and path else None  # 0 is the input of the graph

    def _place_among_outputs(self, number: int) -> int | None:
        """Return the place of a node's output among those of the graph, 0-based; `None` if it is not one."""
        link = (number, ())
        return self._graph.outputs.index(link) if link in self._graph.outputs else None

    def _depends_on(self, value: Poly, other: Poly) -> bool:
        """Return whether a value is computed from another.

        Raises:
            NotACell: see `link_to`.
        """
        other_link = link_to(other, self._values)
        return other_link in upstream([link_to(value, self._values)], lambda node: self._graph.nodes[node - 1].takes)


def link_to(value: Poly, values: Values, before: int | None = None) -> Link:
    """Return the first link to a value.

    Args:
        value: the value.
        values: those of the graph.
        before: the number of a node that has to run after it; `None` if it may be anywhere.

    Raises:
        NotACell: it is computed inside a container, and is not the output of a node (before that one).
    """
    link = values.links.get(value)
    if link is None or (before is not None and link[0] >= before):
        raise NotACell("one of its inputs is computed inside a container")
    return link


def _may_be_state(value: Poly, reading: Reading, gates: Gates) -> bool:
    """Return whether a value may be the last output of a cell: it has as many features, and is in the formula of a GRU.

    Args:
        value: one that the gates' matrices multiply.
        reading: the cell.
        gates: its gates.
    """
    if reading.letters.get("h", value) != value:
        return False
    for gate in gates.values():
        block = gate.products.get(value)
        # The matrix is square, or its width is not known.
        if block is not None and block.half is None and block.size != (block.rows, block.rows):
            return False
    return True


def _share_weights(before: Reading, gates: Gates) -> bool:
    """Return whether a cell and one before it, which both have no cell state, have a tensor in common.

    Args:
        before: the cell before.
        gates: the gates of the cell.
    """
    # The letter n is the sum of the new value, in an RNN and in a GRU.
    keys_before = {atom.block.key for atoms, _ in before.letters.get("n", ()) for atom in atoms}
    keys = {block.key for gate in gates.values() for block in gate.products.values()}
    return bool(keys_before & keys)


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
