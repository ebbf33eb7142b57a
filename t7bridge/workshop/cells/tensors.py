"""The tensors of a cell as pieces: each is a block of a tensor in the graph, and rows of a tensor of the cell. A gate
is the sum `W x + U h + b`, of x, the input of the cell, and h, its last output: W, U and b are such blocks. Knows
neither formats nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from attrs import evolve

from ...graph.tensor import Tensor
from ...nn.pieces import Piece
from .gates import Gate, Gates, NotACell, check_gate
from .kinds import GATE_WORDS, CellKind
from .polynomials import Block, Poly
from .readings import Reading


def pieces_of_recurrent(kind: CellKind, gates: Gates, x: Poly, h: Poly) -> Iterator[Piece]:
    """Yield what a recurrent cell's matrices and biases are made of: in each the rows of all gates follow one another.

    Args:
        kind: the kind of cell.
        gates: the gates, all of one size and with products of x and h.
        x: the input.
        h: the last output.
    """
    for number, (letter, gate) in enumerate(gates.items()):
        size = gate.products[h].rows
        for piece in _pieces_of_gate(gate, x, h, first_row=number * size):
            yield evolve(piece, negated=letter in kind.negated)


def _pieces_of_gate(gate: Gate, x: Poly, h: Poly, first_row: int) -> Iterator[Piece]:
    """Yield what the rows of a gate are made of, in the tensors `weight_ih`, `weight_hh`, `bias_ih` and `bias_hh`.

    Args:
        gate: the gate, of at most two biases; if it has `reset_biases`, of at most one of them and one other.
        x: the input.
        h: the last output.
        first_row: the gate's first row in each tensor.
    """
    yield _piece(gate.products[x], "weight_ih", first_row)
    yield _piece(gate.products[h], "weight_hh", first_row)
    if gate.reset_biases is not None:
        # The two have different effects, and neither can be zero for want of the other: `check_covered` refuses that.
        for bias in gate.biases:
            target = "bias_hh" if bias in gate.reset_biases else "bias_ih"
            yield _piece(bias, target, first_row)
        return
    biases = _in_order_of_layers(gate, x, h)
    # PyTorch adds two biases. If Lua has one, the second is zero; in a file for Lua, the sum of both becomes the one.
    second_bias = "bias_hh" if len(biases) == 1 else ""
    for target, bias in zip(("bias_ih", "bias_hh"), biases):
        yield _piece(bias, target, first_row, second_bias=second_bias)


def _in_order_of_layers(gate: Gate, x: Poly, h: Poly) -> list[Block]:
    """Return the biases of a gate, that of the layer of x first, and that of the layer of h last.

    Args:
        gate: the gate, whose biases may be those of other layers, too.
        x: the input.
        h: the last output.
    """
    layer_of_x = gate.products[x].module
    layer_of_h = gate.products[h].module

    def order(bias: Block) -> int:
        if bias.module == layer_of_x:
            return 0
        return 2 if bias.module == layer_of_h else 1

    return sorted(gate.biases, key=order)


def pieces_of_peepholes(reading: Reading, gates: Gates) -> list[Piece]:
    """Return the pieces of the vectors through which gates see the cell state; empty if no gate sees it.

    Args:
        reading: the cell.
        gates: its gates.

    Raises:
        NotACell: a gate sees another value, or only some of those in `CellKind.peepholes` see the cell state.
    """
    kind = reading.kind
    pieces: list[Piece] = []
    for letter, gate in gates.items():
        for value, vector in gate.peepholes.items():
            if letter not in kind.peepholes or value != reading.letters[kind.peepholes[letter]]:
                raise NotACell(f"the {GATE_WORDS[letter]} sees another value")
            pieces.append(_piece(vector, f"weight_c{letter}", first_row=0))
    if pieces and len(pieces) != len(kind.peepholes):
        raise NotACell("only some of its gates see the cell")
    return pieces


def pieces_of_highway(kind: CellKind, gates: Gates, x: Poly, size: int) -> list[Piece]:
    """Return what the tensors of a highway layer are made of, which has a linear layer for each gate.

    Args:
        kind: the kind of cell.
        gates: its gates, which multiply x and nothing else.
        x: the input.
        size: the number of its features, and of those of the output.

    Raises:
        NotACell: a gate is no layer of that size.
    """
    pieces: list[Piece] = []
    for letter, name in kind.layers.items():
        gate = gates[letter]
        check_gate(letter, gate, (x,), size)
        if gate.products[x].size != (size, size) or gate.peepholes:
            raise NotACell(f"the {GATE_WORDS[letter]} is not a layer of as many outputs as inputs")
        is_negated = letter in kind.negated
        pieces.append(_piece(gate.products[x], f"{name}.weight", first_row=0, negated=is_negated))
        for bias in gate.biases:  # one or none: the caller refuses more
            pieces.append(_piece(bias, f"{name}.bias", first_row=0, negated=is_negated))
    return pieces


def _piece(block: Block, target: str, first_row: int, negated: bool = False, second_bias: str = "") -> Piece:
    """Return the piece of a cell's tensor that a block of a tensor of the graph becomes.

    Args:
        block: the block, whose columns are known.
        target: the name of the cell's tensor.
        first_row: the first row of the block there.
        negated: whether the cell has the negative values.
        second_bias: see `Piece`.
    """
    at = (first_row, *[0] * (len(block.size) - 1))
    return Piece(block.key, block.start, block.size, target, at=at, negated=negated, second_bias=second_bias)


# Checks


def check_sources(pieces: Iterable[Piece], tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Refuse a cell that uses an element of a tensor twice, or not at all, or tensors of several types.

    Args:
        pieces: what the cell's tensors are made of: blocks of tensors of the graph.
        tensors: the state dict.
        prefix: that of the graph's tensors in it.

    Raises:
        NotACell: it does one of these.
    """
    pieces_of: dict[str, list[Piece]] = {}
    types: set[Any] = set()
    for piece in pieces:
        tensor = tensors[prefix + piece.key]
        types.add((tensor.element.name, tensor.device))
        pieces_before = pieces_of.setdefault(piece.key, [])
        if any(_overlap(piece, other) for other in pieces_before):
            raise NotACell(f"two of its gates share {piece.key}")
        pieces_before.append(piece)
    for key, pieces_of_tensor in pieces_of.items():
        count = sum(prod(piece.size) for piece in pieces_of_tensor)  # of elements, as no two pieces share one
        if count != tensors[prefix + key].numel:
            raise NotACell(f"{key} has elements that it does not use")
    if len(types) > 1:
        raise NotACell("its tensors are of different types")


def _overlap(piece: Piece, other: Piece) -> bool:
    """Return whether two blocks of a tensor have a common element."""
    for start, size, other_start, other_size in zip(piece.start, piece.size, other.start, other.size):
        if start >= other_start + other_size or other_start >= start + size:
            return False
    return True


def check_covered(pieces: Iterable[Piece], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a cell with elements that no tensor of Lua has: they could be trained, and had no way back.

    Args:
        pieces: what the cell's tensors are made of. They do not overlap there.
        shapes: of these tensors, by their names in the cell.

    Raises:
        NotACell: a gate lacks a bias that another has.
    """
    covered = dict.fromkeys(shapes, 0)  # numbers of elements
    for piece in pieces:
        covered[piece.target] += prod(piece.size)
        if piece.second_bias:
            covered[piece.second_bias] += prod(piece.size)
    if any(covered[name] != prod(shape) for name, shape in shapes.items()):
        raise NotACell("only some of its layers have a bias")
