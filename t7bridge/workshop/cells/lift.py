"""Recognized cells: the nodes of a graph that compute an LSTM, a GRU or the like become one node of that class.

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
from ...graph.tensor import Tensor, place_of
from ...nn.layouts import overlapping
from ...nn.mapping import LAYERS, GraphNode, GraphSpec, Link, ModuleSpec, Plan, specs_in, way_to
from ...nn.memory import MemoryEffects
from ...nn.pieces import IN_TORCH, Lifted, Piece, replace_tensors, view_of_piece
from ...nn.plan import graph_arguments
from ...nn.registry import tensor_shapes
from ...nn.state_dict import StateDict
from ...text import and_elsewhere
from .polynomials import FUNCTIONS, Atom, Poly, UnknownValue, Values, formula, graph_of, polynomial, times


@define(frozen=True)
class Cell:
    """A kind of cell.

    Attributes:
        name: what messages and modules are called.
        target: its class in `torchmodules/layers`.
        formulas: its values in the order in which they follow from one another, by their letters. The argument of a
            function is the sum of a gate, other letters are values.
        gates: the letters of the gates in the order of their rows.
        returns: the letters of its outputs, in order.
        negated: the gates whose sums have the other sign in PyTorch.
        options: further arguments of its class.
        sees: the values that gates multiply with a vector, by the gate, in a class of its own, `seeing`.
        seeing: that class.
        resets: the class in which the last output is reset before it is multiplied by its matrix; in `target` after.
        layers: for a cell without a state, the names of its layers, by the gate; all multiply the value `x`.
    """

    name: str
    target: str
    formulas: Mapping[str, str]
    gates: str
    returns: str = "H"
    negated: str = ""
    options: Mapping[str, Any] = field(factory=dict)
    sees: Mapping[str, str] = field(factory=dict)
    seeing: str = ""
    resets: str = ""
    layers: Mapping[str, str] = field(factory=dict)


_GRU: Any = {"gates": "rzn", "resets": "recurrent.ResetGRUCell"}
CELLS = (
    *(
        Cell(
            "highway",
            "linear.Highway",
            {"H": text.format(function)},
            "tn",
            negated=negated,
            options={"nonlinearity": function},
            layers={"n": "transform", "t": "gate"},
        )
        for function in ("relu", "tanh")
        for text, negated in (
            ("sigmoid(t) * {}(n) + (1 - sigmoid(t)) * x", ""),
            ("(1 - sigmoid(t)) * {}(n) + sigmoid(t) * x", "t"),
        )
    ),
    Cell(
        "LSTM",
        "recurrent.LSTMCell",
        {"C": "sigmoid(f) * c + sigmoid(i) * tanh(g)", "H": "sigmoid(o) * tanh(C)"},
        "ifgo",
        "HC",
        sees={"i": "c", "f": "c", "o": "C"},
        seeing="recurrent.PeepholeLSTMCell",
    ),
    Cell("GRU", "recurrent.GRUCell", {"H": "(1 - sigmoid(z)) * tanh(n) + sigmoid(z) * h"}, **_GRU),
    # 1 - sigmoid(z) = sigmoid(-z)
    Cell("GRU", "recurrent.GRUCell", {"H": "(1 - sigmoid(z)) * h + sigmoid(z) * tanh(n)"}, negated="z", **_GRU),
    Cell("RNN", "recurrent.RNNCell", {"H": "tanh(n)"}, "n"),
    Cell("RNN", "recurrent.RNNCell", {"H": "relu(n)"}, "n", options={"nonlinearity": "relu"}),
)
_WORDS = {
    "i": "input gate",
    "f": "forget gate",
    "g": "candidate",
    "o": "output gate",
    "r": "reset gate",
    "z": "update gate",
    "n": "new value",
    "t": "transform gate",
}


@define(eq=False)
class _Gate:
    """The sum of a gate.

    Attributes:
        products: matrices with values.
        vectors: blocks that are added.
        sees: vectors with the values that they multiply.
        constant: a number that is added.
    """

    products: dict[Poly, Atom] = field(factory=dict)
    vectors: list[Atom] = field(factory=list)
    sees: dict[Poly, Atom] = field(factory=dict)
    constant: float = 0.0


class _NotACell(Exception):
    """The message says what stands against it."""


class _UnknownWidths(_NotACell):
    """Nothing else stands against it."""


@define(eq=False)
class _Found:
    """A cell in a graph.

    Attributes:
        cell: its kind.
        made: its module.
        graph: the graph.
        prefix: that of its tensors in the state dict.
        inputs: the links of its inputs, in the order of its class.
        outputs: the numbers of the nodes of its outputs, in order.
        pieces: what its tensors are made of, by keys in the graph and names of its own.
        against: what stands against it.
        name: of its module in the graph.
    """

    cell: Cell
    made: ModuleSpec
    graph: ModuleSpec
    prefix: str
    inputs: tuple[Link, ...]
    outputs: tuple[int, ...]
    pieces: list[Piece]
    against: str = ""
    name: str = ""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its tensors, by name."""
        return tensor_shapes(self.made.target, self.made.args, self.made.kwargs)


class _Search:
    """Finds the cells of a graph.

    Args:
        spec: the graph.
        prefix: that of its tensors in the state dict.
        tensors: the state dict.
        carried: the places of inputs and of outputs that another step of the graph passes to them.
    """

    def __init__(
        self, spec: ModuleSpec, prefix: str, tensors: Mapping[str, Tensor], carried: frozenset[tuple[int, int]]
    ) -> None:
        inside = frozenset(key[len(prefix) :] for key in tensors if key.startswith(prefix))
        self._spec, self._graph, self._prefix, self._tensors = spec, graph_of(spec), prefix, tensors
        self._carried_over = carried
        self._values = Values(spec, inside)
        self._begun: dict[int, tuple[Cell, dict[str, Any]]] = {}
        """A cell and what its letters stand for, by the atom of the value of it that was found last."""
        self.found: list[_Found] = []
        self.against: list[str] = []

    def run(self) -> _Search:
        """Search all nodes."""
        for number, value in self._values.run():
            reasons: list[str] = []
            with suppress(UnknownValue):
                if self._finds(number, value.poly, reasons):
                    self._values.rename(number)
            self.against += reasons[:1]
        return self

    def _finds(self, number: int, poly: Poly, reasons: list[str]) -> bool:
        """Return whether a value is one of a cell, and should be an atom; adds what stands against cells."""
        begun = [self._begun[atom] for atom in self._inside(poly) if atom in self._begun]
        for cell in CELLS:
            for at, (letter, text) in enumerate(cell.formulas.items()):
                for known in [each for of, each in begun if of is cell and letter not in each] if at else [{}]:
                    matches = self._matches(cell, text, poly, known)
                    if not matches:
                        continue
                    bound = next((each for each in matches if self._has_gates(cell, each)), matches[0])
                    is_atom = len(poly) == len(poly[0][0]) == 1
                    value = poly if is_atom else self._values.atom(Atom("value", (number, ())))
                    bound = {**bound, letter: value, f"node {letter}": number}
                    if at == len(cell.formulas) - 1:
                        try:
                            self.found.append((self._layer if cell.layers else self._cell)(cell, bound))
                        except _NotACell as error:
                            # Many models have a tanh of a sum.
                            is_like = isinstance(error, _UnknownWidths) if cell.name == "RNN" else bool(str(error))
                            reasons += [f"{cell.name} stays as it is: {error}"] * is_like
                            continue
                    reasons.clear()
                    self._begun[value[0][0][0]] = cell, bound
                    return value != poly
        return False

    def _inside(self, poly: Poly) -> Iterator[int]:
        """Yield the atoms of a polynomial, and those that a function is applied to."""
        for atoms, _ in poly:
            for number in atoms:
                of = self._values.atoms[number].of
                yield number
                if self._values.atoms[number].kind in FUNCTIONS and len(of) == 1:
                    yield from of[0][0]

    def _has_gates(self, cell: Cell, bound: dict[str, Any]) -> bool:
        """Return whether letters stand for sums of gates."""
        count = 1 if cell.layers else 2
        try:
            return all(len(self._gate(bound[each], each).products) == count for each in cell.gates if each in bound)
        except _NotACell:
            return False

    def _matches(self, cell: Cell, text: str, poly: Poly, known: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what the letters of a formula may stand for if a value is it."""
        pattern = list(formula(text))
        found = list(self._match(pattern, list(poly), known))
        for carried, value, short in self._carried(poly) if cell.layers and not found else ():
            found += [{**each, "x": value} for each in self._match(pattern, list(short), known) if each["x"] == carried]
        return found

    def _carried(self, poly: Poly) -> Iterator[tuple[Poly, Poly, Poly]]:
        """Yield an atom, the sum of which a gate lets parts pass, and the polynomial with the atom for the sum."""
        atoms = self._values.atoms
        for gate in dict.fromkeys(each for term, _ in poly for each in term if atoms[each].kind == "sigmoid"):
            numbers = (number for term, _ in atoms[gate].of for number in term)
            for value in {atoms[number].of: None for number in numbers if atoms[number].kind == "matrix"}:
                carried = self._values.atom(Atom("value", value))
                for share in ((((gate,), 1.0),), (((), 1.0), ((gate,), -1.0))):
                    terms = times(value, share)
                    if len(value) > 1 and set(terms) <= set(poly):
                        rest = [term for term in poly if term not in terms]
                        yield carried, value, polynomial((*rest, *times(carried, share)))

    def _match(self, pattern: list[Any], terms: list[Any], bound: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield what the letters of a formula stand for if a polynomial is it."""
        if len(pattern) != len(terms):
            return
        if not pattern:
            yield bound
            return
        (wanted, factor), *rest = pattern
        for at, (atoms, found) in enumerate(terms):
            if found == factor and len(atoms) == len(wanted):
                for order in permutations(atoms):
                    known = self._bind(wanted, order, bound)
                    if known is not None:
                        yield from self._match(rest, terms[:at] + terms[at + 1 :], known)

    def _bind(self, wanted: tuple[Any, ...], atoms: tuple[int, ...], bound: dict[str, Any]) -> dict[str, Any] | None:
        bound = dict(bound)
        for (called, letter), number in zip(wanted, atoms):
            atom = self._values.atoms[number]
            if called and atom.kind != called:
                return None
            value = atom.of if called else (((number,), 1.0),)
            if bound.setdefault(letter, value) != value:
                return None
        return bound

    def _gate(self, poly: Poly, letter: str) -> _Gate:
        """Return the sum of a gate."""
        gate = _Gate()
        for numbers, factor in poly:
            atoms = sorted((self._values.atoms[number] for number in numbers), key=lambda atom: atom.kind != "vector")
            kinds = [atom.kind for atom in atoms]
            if factor == 1 and kinds == ["matrix"] and atoms[0].of not in gate.products:
                gate.products[atoms[0].of] = atoms[0]
            elif factor == 1 and kinds == ["vector"]:
                gate.vectors.append(atoms[0])
            elif not kinds:
                gate.constant = factor
            elif factor == 1 and len(kinds) == 2 and kinds[0] == "vector" != kinds[1]:
                gate.sees[self._values.atom(atoms[1])] = atoms[0]
            else:
                raise _NotACell(f"the {_WORDS[letter]} is more than a sum of products with matrices")
        return gate

    def _reset(self, poly: Poly, h: Poly) -> tuple[Poly, Poly, list[Atom] | None]:
        """Find the reset gate in the sum of a GRU's new value.

        Returns:
            Its sum; the sum of the new value without it; the biases that it scales, `None` if it scales the last output
            itself, not its product with a matrix.
        """
        atoms, state = self._values.atoms, h[0][0][0]
        rest: list[Any] = []
        scaled: list[Atom] = []
        gates: set[int] = set()
        for numbers, factor in poly:
            only = atoms[numbers[0]] if len(numbers) == 1 else None
            of = only.of if only and only.kind == "matrix" and len(only.of) == 1 else ()
            inner = of[0][0] if of and of[0][1] == 1 else ()
            gate = [each for each in (inner if state in inner else numbers) if atoms[each].kind == "sigmoid"]
            if len(gate) == 1 and len(numbers) == 2:
                number = numbers[numbers[0] == gate[0]]
                scaled.append(atoms[number])
                rest.append(((number,), factor))
            elif len(gate) == 1 and len(inner) == 2:
                rest += times(self._values.atom(evolve(atoms[numbers[0]], of=h)), (((), factor),))
            else:
                rest.append((numbers, factor))
                continue
            gates.add(gate[0])
        if len(gates) != 1:
            raise _NotACell("its new value has no reset gate")
        if scaled and [atom.of for atom in scaled if atom.kind != "vector"] != [h]:
            raise _NotACell("its reset gate does not multiply the product with the last output, or more than that")
        return (
            atoms[gates.pop()].of,
            polynomial(rest),
            [atom for atom in scaled if atom.kind == "vector"] if scaled else None,
        )

    def _cell(self, cell: Cell, bound: dict[str, Any]) -> _Found:
        """Return a cell.

        Raises:
            _NotACell: something stands against it; the message is empty if it is not like one.
        """
        target, scaled = cell.target, None
        if cell.resets:
            reset, new, scaled = self._reset(bound["n"], bound["h"])
            bound = {**bound, "r": reset, "n": new}
            target = cell.target if scaled is not None else cell.resets
        gates = {letter: self._gate(bound[letter], letter) for letter in cell.gates}
        x, h = self._inputs(cell, bound, gates)
        size = gates[cell.gates[0]].products[h].size[0]
        for letter, gate in gates.items():
            self._check_gate(letter, gate, (x, h), size)
        has_bias = any(gate.vectors for gate in gates.values())
        if scaled is not None and (len(scaled) > 1 or len(gates["n"].vectors) - len(scaled) > 1):
            raise _NotACell("its new value has two biases that are reset, or two that are not")
        pieces = self._peepholes(cell, gates, bound)
        target = cell.seeing if pieces else target
        for at, (letter, gate) in enumerate(gates.items()):
            made = _pieces(gate, (x, h), at * size, scaled if letter == "n" else None)
            pieces += [evolve(piece, negated=letter in cell.negated) for piece in made]
        self._check_sources(pieces)
        inputs = [value for value in (x, h, bound.get("c")) if value is not None]
        sizes = gates[cell.gates[0]].products[x].size[1], size
        found = self._found(cell, target, bound, inputs, sizes, {} if has_bias else {"bias": False}, pieces)
        _check_covered(pieces, found.shapes)
        return found

    def _found(
        self,
        cell: Cell,
        target: str,
        bound: dict[str, Any],
        inputs: Iterable[Poly],
        sizes: tuple[int, ...],
        options: dict[str, Any],
        pieces: list[Piece],
    ) -> _Found:
        """Return a cell of a class, of some sizes and with further options."""
        spec, options = self._spec, {**cell.options, **options}
        made = ModuleSpec(LAYERS + target, sizes, options, class_name=cell.name, obj=spec.obj, path=spec.path)
        outputs = tuple(bound[f"node {letter}"] for letter in cell.returns)
        return _Found(cell, made, spec, self._prefix, tuple(map(self._link, inputs)), outputs, pieces)

    def _layer(self, cell: Cell, bound: dict[str, Any]) -> _Found:
        """Return a cell without a state.

        Raises:
            _NotACell: as `_cell`.
        """
        x, gates = bound["x"], dict[str, _Gate]()
        for letter in cell.gates:
            gates[letter] = self._gate(bound[letter], letter)
            if set(gates[letter].products) != {x}:
                raise _NotACell
        size = gates["n"].products[x].size[0]
        pieces: list[Piece] = []
        for letter, name in cell.layers.items():
            gate, block, is_negated = gates[letter], gates[letter].products[x], letter in cell.negated
            self._check_gate(letter, gate, (x,), size)
            if block.size[1] != size or gate.sees:
                raise _NotACell(f"the {_WORDS[letter]} is not a layer of as many outputs as inputs")
            pieces.append(Piece(block.key, block.start, block.size, f"{name}.weight", (0, 0), is_negated))
            pieces += [
                Piece(each.key, each.start, each.size, f"{name}.bias", (0,), is_negated) for each in gate.vectors
            ]
        if {len(gate.vectors) for gate in gates.values()} not in ({0}, {1}):
            raise _NotACell("its layers do not have one bias each")
        self._check_sources(pieces)
        constant = gates["t"].constant
        constant = 0.0 - constant if cell.negated else constant
        options = {"gate_bias": constant, "bias": len(pieces) == 4}
        return self._found(cell, cell.target, bound, [x], (size,), options, pieces)

    def _inputs(self, cell: Cell, bound: dict[str, Any], gates: dict[str, _Gate]) -> tuple[Poly, Poly]:
        """Return the input and the last output, which the cell's matrices multiply."""
        values = list(dict.fromkeys(value for gate in gates.values() for value in gate.products))
        if len(values) != 2:
            raise _NotACell(f"its gates see {len(values)} values, not an input and the last output")
        ranks: dict[Poly, int] = {}
        for value in values:
            blocks = [gate.products[value] for gate in gates.values() if value in gate.products]
            fits = all(block.size[1] < 0 or block.size[0] == block.size[1] for block in blocks)
            if fits and bound.get("h", value) == value:
                ranks[value] = 3 if "h" in bound else self._is_state(value, bound, gates)
        if not ranks:
            raise _NotACell("none of the values that its gates see has as many features as its output")
        h = max(ranks, key=lambda value: (ranks[value], values.index(value)))
        x = values[1 - values.index(h)]
        if cell.name == "RNN" and (
            ranks[h] < 2
            or self._link(h) in _upstream([self._link(x)], lambda number: self._graph.nodes[number - 1].takes)
        ):
            raise _NotACell("it is not known to be a state")
        for gate in gates.values():
            if set(gate.products) == {x, h} and gate.products[h].size[1] < 0:
                gate.products.update(_resolved(gate.products, x, h, is_proven=ranks[h] == 3))
        return x, h

    def _is_state(self, value: Poly, bound: dict[str, Any], gates: dict[str, _Gate]) -> int:
        """Return how clearly a value is the last output.

        Returns:
            3 if it is the output of a cell that this one continues: by its cell, or, in a simple one, its weights; 2 if
            it is an input of the graph, and the places of the state among inputs and outputs differ by one number, or
            another step of the graph passes its output; 1 if it is another input, or the output of another layer.
        """
        continued = self._continues(value, bound, gates)
        if continued is not None:
            return 3 if continued else 1
        shifts = []
        for each, letter in [(value, "H"), *([(bound["c"], "C")] if "c" in bound else [])]:
            number, path = self._link(each)
            if number or not path:
                return 0
            link = (bound[f"node {letter}"], ())
            place = self._graph.outputs.index(link) if link in self._graph.outputs else None
            if (path[0], place) in self._carried_over:
                return 2
            shifts.append(None if place is None else path[0] - place)
        # The input of a simple cell comes before its state.
        return 2 if len(set(shifts)) == 1 and shifts[0] is not None and (shifts[0] > 0 or "c" in bound) else 1

    def _continues(self, value: Poly, bound: dict[str, Any], gates: dict[str, _Gate]) -> bool | None:
        """Return whether a value is the output of a cell that this one continues; `None` if it is not one of a cell."""
        known = self._begun.get(value[0][0][0]) if len(value) == 1 and len(value[0][0]) == 1 else None
        if known is None or known[1].get("H") != value or known[1].get("C") != bound.get("c"):
            return None
        before = {self._values.atoms[number].key for atoms, _ in known[1].get("n", ()) for number in atoms}
        own = {block.key for gate in gates.values() for block in gate.products.values()}
        return "c" in bound or bool(before & own)

    def _link(self, value: Poly) -> Link:
        """Return the link of a value.

        Raises:
            _NotACell: it is computed inside a container.
        """
        link = self._values.links.get(value)
        if link is None:
            raise _NotACell("one of its inputs is computed inside a container")
        return link

    def _check_gate(self, letter: str, gate: _Gate, inputs: tuple[Poly, ...], size: int) -> None:
        if set(gate.products) != {*inputs}:
            raise _NotACell(f"the {_WORDS[letter]} does not see both the input and the last output")
        if {block.size[0] for block in (*gate.products.values(), *gate.vectors, *gate.sees.values())} != {size}:
            raise _NotACell(f"the {_WORDS[letter]} has another size")
        if len(gate.vectors) > 2:
            raise _NotACell(f"the {_WORDS[letter]} has {len(gate.vectors)} biases")
        if gate.constant and letter != "t":
            raise _NotACell(f"a number is added to the {_WORDS[letter]}")

    def _peepholes(self, cell: Cell, gates: dict[str, _Gate], bound: dict[str, Any]) -> list[Piece]:
        """Return the vectors by which gates see the cell, if they do."""
        pieces: list[Piece] = []
        for letter, gate in gates.items():
            for value, atom in gate.sees.items():
                if letter not in cell.sees or value != bound[cell.sees[letter]]:
                    raise _NotACell(f"the {_WORDS[letter]} sees another value")
                pieces.append(Piece(atom.key, atom.start, atom.size, f"weight_c{letter}", (0,)))
        if pieces and len(pieces) != len(cell.sees):
            raise _NotACell("only some of its gates see the cell")
        return pieces

    def _check_sources(self, pieces: list[Piece]) -> None:
        """Refuse a cell that uses an element of a tensor twice, or not at all."""
        elements: dict[str, int] = {}
        seen: dict[str, list[Piece]] = {}
        kinds: set[Any] = set()
        for piece in pieces:
            tensor = self._tensors[self._prefix + piece.key]
            kinds.add((tensor.element.name, tensor.device))
            for other in seen.setdefault(piece.key, []):
                if all(a < b + n and b < a + m for a, m, b, n in zip(piece.start, piece.size, other.start, other.size)):
                    raise _NotACell(f"two of its gates share {piece.key}")
            seen[piece.key].append(piece)
            elements[piece.key] = elements.get(piece.key, 0) + prod(piece.size)
        for key, count in elements.items():
            if count != self._tensors[self._prefix + key].numel:
                raise _NotACell(f"{key} has elements that it does not use")
        if len(kinds) > 1:
            raise _NotACell("its tensors are of different types")


def _resolved(products: Mapping[Poly, Atom], x: Poly, h: Poly, is_proven: bool) -> dict[Poly, Atom]:
    """Return the blocks of a matrix of which only the whole width was known: that of the last output is square.

    Raises:
        _NotACell: it is not proven which of the two is the last output, and their widths differ.
    """
    count, total = products[h].size[0], -products[h].size[1]
    if not is_proven and total != 2 * count:
        raise _UnknownWidths("the sizes of the values that are joined are not known")
    found = {}
    for value, columns in ((h, count), (x, total - count)):
        row, column = products[value].start  # of the first part 0, of the second minus its end
        start = (row, column if column >= 0 else -column - columns)
        found[value] = evolve(products[value], start=start, size=(count, columns))
    return found


def _pieces(gate: _Gate, inputs: tuple[Poly, Poly], row: int, scaled: list[Atom] | None) -> Iterator[Piece]:
    """Yield what the rows of a gate are made of, from a row on.

    Args:
        gate: the gate.
        inputs: the input and the last output.
        row: the first row.
        scaled: the biases that belong to the last output, if that matters.
    """
    blocks = [gate.products[value] for value in inputs]
    for name, block in zip(("ih", "hh"), blocks):
        yield Piece(block.key, block.start, block.size, f"weight_{name}", (row, 0))
    homes = [_module(block) for block in blocks]
    vectors = sorted(gate.vectors, key=lambda each: (_module(each) != homes[0], _module(each) == homes[1]))
    names = ["ih", "hh"] if scaled is None else ["hh" if vector in scaled else "ih" for vector in vectors]
    for name, vector in zip(names, vectors):
        adds = "bias_hh" if scaled is None and len(vectors) == 1 else ""
        yield Piece(vector.key, vector.start, vector.size, f"bias_{name}", (row,), adds=adds)


def _check_covered(pieces: list[Piece], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a cell with elements that no tensor of Lua has: they could be trained, and had no way back.

    Raises:
        _NotACell: a gate lacks a bias that another has.
    """
    covered = dict.fromkeys(shapes, 0)
    for piece in pieces:
        for name in filter(None, (piece.target, piece.adds)):
            covered[name] += prod(piece.size)
    if any(covered[name] != prod(shape) for name, shape in shapes.items()):
        raise _NotACell("only some of its layers have a bias")


def _module(atom: Atom) -> str:
    return atom.key.rpartition(".")[0]


# Cells in a model


def lifted(plan: Plan, state: StateDict, only_torch: bool = False) -> Lifted:
    """Return a model whose cells are single modules.

    Args:
        plan: the plan; its graphs are modified.
        state: its state dict.
        only_torch: whether cells that `torch.nn` lacks stay as they are.
    """
    result = Lifted(plan, state)
    prefixes = _prefixes(plan.root)
    carried = _carried_over(prefixes, state)
    cells: list[_Found] = []
    against: dict[str, list[str]] = {}
    """The places of graphs, by what stands against the cells there: the same for each step of an unrolled model."""
    for spec, prefix in prefixes.values():
        search = _Search(spec, prefix, state, frozenset(carried[id(spec)])).run()
        cells += [cell for cell in search.found if not only_torch or cell.made.target in IN_TORCH]
        for message in search.against:
            against.setdefault(message, []).append(spec.path)
    groups = _tied(cells, plan.root, state)
    _check_writes(cells, plan.root)
    _settle(groups)
    for cell in cells:
        if cell.against:
            message = f"{cell.cell.name} stays as it is: {cell.against}"
            against.setdefault(message, []).append(cell.graph.path)
    for message, paths in against.items():
        result.note(paths[0], f"{message}{and_elsewhere(len(paths) - 1)}", len(paths))
    kept = [cell for group in groups for cell in group if not cell.against]
    if kept:
        _rewrite(result, sorted(kept, key=lambda cell: cell.outputs))
    return result


def _prefixes(root: ModuleSpec) -> dict[int, tuple[ModuleSpec, str]]:
    """Return the graphs of a model with the prefix of each at its first place."""
    found: dict[int, tuple[ModuleSpec, str]] = {}
    seen: set[int] = set()
    stack = [(root, "")]
    while stack:
        spec, prefix = stack.pop()
        if id(spec) in seen:
            continue
        seen.add(id(spec))
        if spec.graph is not None:
            found[id(spec)] = spec, prefix
        stack += [(child, f"{prefix}{name}.") for name, child in reversed(spec.children.items())]
    return found


def _carried_over(graphs: Mapping[int, tuple[ModuleSpec, str]], state: StateDict) -> dict[int, set[tuple[int, int]]]:
    """Return the places of inputs of graphs, and of the outputs that another step of the same tensors passes to them.

    Args:
        graphs: the graphs of a model, as `_prefixes` returns them.
        state: the state dict.
    """
    places = {key: place_of(tensor) for key, tensor in state.items()}
    own = {at: tuple(places[key] for key in places if key.startswith(prefix)) for at, (_, prefix) in graphs.items()}
    found: dict[Any, set[tuple[int, int]]] = {tensors: set() for tensors in own.values()}
    for spec, _ in graphs.values():
        nodes = graph_of(spec).nodes
        steps = [own.get(id(spec.children[node.module])) if node.module else None for node in nodes]
        for node, tensors in zip(nodes, steps):
            for at, (source, path) in enumerate(node.takes if tensors else ()):
                if source and steps[source - 1] == tensors:
                    found[tensors].add((at, path[0] if path else 0))
    return {at: found[tensors] for at, tensors in own.items()}


def _tied(cells: list[_Found], root: ModuleSpec, state: StateDict) -> list[list[_Found]]:
    """Return the cells in groups that share all tensors; what shares memory otherwise stands against them."""
    groups: dict[Any, list[_Found]] = {}
    users: dict[tuple[int, str], Any] = {}
    """The group and the number of each tensor in it, by the graph and the key there."""
    for cell in cells:
        views = tuple(view_of_piece(piece, state[cell.prefix + piece.key]) for piece in cell.pieces)
        kind = cell.made.target, *cell.made.kwargs.items()
        group = groups.setdefault((kind, views), [])
        group.append(cell)
        cell.made = group[0].made
        for number, key in enumerate(dict.fromkeys(piece.key for piece in cell.pieces)):
            if users.setdefault((id(cell.graph), key), (kind, views, number)) != (kind, views, number):
                cell.against = "another cell has the same tensors"
    memory: dict[int, list[tuple[int, int, Any, Any]]] = {}
    for key, tensor in state.items() if cells else ():
        if tensor.storage is not None and tensor.numel:
            places = ((id(spec), rest) for spec, _, rest in way_to(root, key))
            user = next((users[place] for place in places if place in users), None)
            memory.setdefault(id(tensor.storage), []).append((*tensor.reach(), place_of(tensor), user))
    shared: set[Any] = set()
    for rows in memory.values():
        for touching in overlapping(rows):
            if len({row[2:] for row in touching}) > 1:
                shared.update(row[2] for row in touching)
    for (_, views), group in groups.items():
        if any(view in shared for view, _ in views):
            group[0].against = "its tensors are also those of something else"
    return list(groups.values())


def _settle(groups: list[list[_Found]]) -> None:
    """Set what stands against cells that other layers see into, and against all that share their tensors."""
    cells = [cell for group in groups for cell in group]
    graphs = {id(cell.graph): cell.graph for cell in cells}
    changed = True
    while changed:
        for group in groups:
            against = next((cell.against for cell in group if cell.against), "")
            for cell in group:
                cell.against = against
        changed = False
        for spec in graphs.values():
            kept = [cell for cell in cells if cell.graph is spec and not cell.against]
            names = _names(spec, _alive(spec, kept))
            for cell in kept:
                inside = [name for piece in cell.pieces if (name := piece.key.partition(".")[0]) in names]
                cell.against = f"its layer {inside[0]} is also used outside of it" if inside else ""
                changed |= bool(inside)


def _check_writes(cells: list[_Found], root: ModuleSpec) -> None:
    """Set what stands against cells whose values a layer changes in place.

    Lua computes gradients with the changed values, PyTorch's cells keep others than Lua's layers.
    """
    specs = [*specs_in(root)]
    if not any(spec.kwargs.get("inplace") for spec in specs):
        return
    effects = MemoryEffects()
    holders: dict[int, list[tuple[ModuleSpec, str]]] = {}
    for spec in specs:
        for name, child in spec.children.items():
            holders.setdefault(id(child), []).append((spec, name))
    for cell in cells:
        nodes = graph_of(cell.graph).nodes
        inside = set(range(1, len(nodes) + 1)) - _alive(cell.graph, [cell])
        between = nodes[min(inside) : max(inside) - 1]
        is_changed = any(effects.of_node(node, cell.graph.children).changes for node in between)
        if is_changed or _is_changed(cell.graph, max(inside), cell.inputs, holders, effects):
            cell.against = "a layer changes one of its values in place"


def _is_changed(
    spec: ModuleSpec,
    number: int,
    links: Iterable[Link],
    holders: Mapping[int, list[tuple[ModuleSpec, str]]],
    effects: MemoryEffects,
) -> bool:
    """Return whether anything that runs after a node of a graph may change values that it takes.

    Args:
        spec: the graph.
        number: of the node.
        links: to the values.
        holders: the containers of each module, with its name there.
        effects: those of the modules.
    """
    stack, seen = [(spec, number, tuple(links))], set[tuple[int, int]]()
    while stack:
        spec, number, links = stack.pop()
        if (id(spec), number) in seen:
            continue
        seen.add((id(spec), number))
        if spec.graph is not None:
            nodes, of = spec.graph.nodes, [effects.of_node(node, spec.children) for node in spec.graph.nodes]

            def shared(at: int, nodes: Any = nodes, of: Any = of) -> tuple[Link, ...]:
                return nodes[at - 1].takes if of[at - 1].shares else ()

            memory = _upstream(links, shared)
            changed = (node.takes for node, effect in zip(nodes[number:], of[number:]) if effect.changes)
            if any(_meet(memory, _upstream(takes, shared)) for takes in changed):
                return True
            if all(at for at, _ in memory):
                continue
        for holder, name in holders.get(id(spec), ()):
            if holder.graph is not None:
                users = enumerate(holder.graph.nodes, 1)
                stack += [(holder, at, node.takes) for at, node in users if node.module == name]
                continue
            names = [*holder.children]
            if any(effects.of(holder.children[other]).changes for other in names[names.index(name) + 1 :]):
                return True
            stack.append((holder, 0, ()))
    return False


def _meet(some: Iterable[Link], others: Iterable[Link]) -> bool:
    """Return whether a value is one of others, or a part of one, or has one as a part."""
    return any(a == b and not any(x != y for x, y in zip(p, q)) for a, p in some for b, q in others)


def _upstream(links: Iterable[Link], takes: Callable[[int], Iterable[Link]]) -> set[Link]:
    """Return links, and those that they depend on, by what each node takes."""
    seen: set[Link] = set()
    stack = [*links]
    while stack:
        link = stack.pop()
        if link not in seen:
            seen.add(link)
            stack += takes(link[0]) if link[0] else ()
    return seen


def _alive(spec: ModuleSpec, cells: list[_Found]) -> set[int]:
    """Return the nodes that remain if cells become single nodes; those that had no use before remain too."""
    graph = graph_of(spec)
    made = {number: cell.inputs for cell in cells for number in cell.outputs}

    def reached(inputs: Mapping[int, tuple[Link, ...]]) -> set[int]:
        takes = {number: inputs.get(number, node.takes) for number, node in enumerate(graph.nodes, 1)}
        return {number for number, _ in _upstream(graph.outputs, takes.__getitem__)} - {0}

    unused = set(range(1, len(graph.nodes) + 1)) - reached({})
    return (reached(made) | unused) - set(made)


def _names(spec: ModuleSpec, nodes: set[int]) -> set[str | None]:
    return {graph_of(spec).nodes[number - 1].module for number in nodes}


def _rewrite(result: Lifted, cells: list[_Found]) -> None:
    """Make each cell one node, and its tensors those of the state dict."""
    owners: dict[int, dict[str, list[_Found]]] = {}
    steps: dict[tuple[Any, ...], list[str]] = {}
    """The graphs of equal cells, which an unrolled one repeats."""
    for graph in {id(cell.graph): cell.graph for cell in cells}.values():
        inside = [cell for cell in cells if cell.graph is graph]
        owners[id(graph)] = _replace(graph, inside)
        found = (f"{cell.name} ({cell.made.target.removeprefix(LAYERS).partition('.')[2]})" for cell in inside)
        steps.setdefault((", ".join(dict.fromkeys(found)), *(id(cell.made) for cell in inside)), []).append(graph.path)
    for (text, *_), paths in steps.items():
        result.note(paths[0], f"recognized: {text}{and_elsewhere(len(paths) - 1)}", len(paths))
    pieces: dict[Piece, None] = {}
    shapes: dict[str, Mapping[str, tuple[int, ...]]] = {}
    for key in result.state:  # of graphs at several places, too
        for spec, prefix, rest in way_to(result.plan.root, key):
            for cell in owners.get(id(spec), {}).get(rest.partition(".")[0], ()):
                home = f"{prefix}{cell.name}."
                shapes[home] = cell.shapes
                for each in cell.pieces:
                    names = home + each.target, each.adds and home + each.adds
                    pieces[evolve(each, key=prefix + each.key, target=names[0], adds=names[1])] = None
    replace_tensors(result, [*pieces], shapes)


def _replace(spec: ModuleSpec, cells: list[_Found]) -> dict[str, list[_Found]]:
    """Replace the nodes of each cell of a graph by one, and its modules by the cells.

    Returns:
        The cells that the tensors of each former module are in.
    """
    graph, alive = graph_of(spec), _alive(spec, cells)
    used, known = _names(spec, alive), {node.module for node in graph.nodes}
    _name(cells, {name for name in spec.children if name in used or name not in known})
    begins = {min(cell.outputs): cell for cell in cells}
    moved: dict[int, Link] = {0: (0, ())}
    nodes: list[GraphNode] = []

    def fetch(link: Link) -> Link:
        number, path = moved[link[0]]
        return number, (*path, *link[1])

    for number, node in enumerate(graph.nodes, 1):
        if number in begins:
            cell = begins[number]
            nodes.append(GraphNode(cell.name, tuple(map(fetch, cell.inputs))))
            several = len(cell.outputs) > 1
            moved.update((output, (len(nodes), (at,) * several)) for at, output in enumerate(cell.outputs))
        elif number in alive:
            nodes.append(evolve(node, takes=tuple(map(fetch, node.takes))))
            moved[number] = len(nodes), ()
    owners: dict[str, list[_Found]] = {}
    for cell in cells:
        for name in dict.fromkeys(piece.key.partition(".")[0] for piece in cell.pieces):
            owners.setdefault(name, []).append(cell)
    children: dict[str, ModuleSpec] = {}
    for name, child in spec.children.items():
        if name in used or name not in known:
            children[name] = child
        children.update((cell.name, cell.made) for cell in owners.get(name, ()) if cell.name not in children)
    spec.children = children
    spec.graph = GraphSpec(tuple(nodes), tuple(map(fetch, graph.outputs)), graph.returns_list)
    spec.kwargs = graph_arguments(spec.graph)
    return owners


def _name(cells: list[_Found], taken: set[str]) -> None:
    """Name the cells of a graph, with numbers if several of a kind differ in their tensors."""
    kinds: dict[str, dict[int, str]] = {}
    for cell in cells:
        kinds.setdefault(cell.cell.name.lower(), {})[id(cell.made)] = ""
    for base, made in kinds.items():
        for number, key in enumerate(made, 1):
            name = f"{base}{number}" if len(made) > 1 else base
            while name in taken:
                name += "_"
            taken.add(name)
            made[key] = name
    for cell in cells:
        cell.name = kinds[cell.cell.name.lower()][id(cell.made)]
