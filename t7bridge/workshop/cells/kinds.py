"""The kinds of cells that are recognized, by the formulas that they compute. Knows neither formats nor PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field

from ...data import define


@define(frozen=True)
class CellKind:
    """A kind of cell.

    Attributes:
        name: what messages and modules are called.
        target: its class in `torchmodules/layers`.
        formulas: its values in the order in which they follow from one another, by their letters. A letter that is
            the argument of a function is the sum of a gate; of the others x is the input, h and c are the last output
            and cell state, H and C the new ones.
        gates: the letters of the gates in the order of their rows.
        returns: the letters of its outputs, in order.
        negated: the gates whose sums have the other sign in PyTorch.
        options: further arguments of its class.
        peepholes: the letters of the values that gates may multiply with a vector, by the gate.
        peephole_target: the class of cells in which they do.
        reset_first_target: of a GRU, the class that computes `U (r * h)`, where `target` computes `r * (U h)`: its
            reset gate r multiplies the last output before the matrix does. Empty for cells without a reset gate.
        layers: of a highway layer, the only cell without a state: the names of its layers, by the gate; all multiply
            the value `x`. Empty for other cells.
    """

    name: str
    target: str
    formulas: Mapping[str, str]
    gates: str
    returns: str = "H"
    negated: str = ""
    options: Mapping[str, Any] = field(factory=dict)
    peepholes: Mapping[str, str] = field(factory=dict)
    peephole_target: str = ""
    reset_first_target: str = ""
    layers: Mapping[str, str] = field(factory=dict)

    @property
    def has_reset_gate(self) -> bool:
        """Whether it is a GRU, inside of whose new value there is another gate."""
        return bool(self.reset_first_target)

    @property
    def is_highway(self) -> bool:
        """Whether it is a highway layer, whose gates see the input alone."""
        return bool(self.layers)


def _highways() -> list[CellKind]:
    """Return the kinds of highway layers: with each function, and either of the two values that the gate may let pass.

    Of the letters in formulas x is the input, t the sum of the gate, and n that of the new value.
    """
    # The gates to be negated (`CellKind.negated`), by the formula: `Highway` computes the first. The second one is that
    # with -t for t, as 1 - sigmoid(t) = sigmoid(-t).
    negated_by_formula = {
        "sigmoid(t) * {}(n) + (1 - sigmoid(t)) * x": "",
        "(1 - sigmoid(t)) * {}(n) + sigmoid(t) * x": "t",
    }
    kinds = []
    for function in ("relu", "tanh"):
        for formula, negated in negated_by_formula.items():
            kind = CellKind(
                name="highway",
                target="linear.Highway",
                formulas={"H": formula.format(function)},
                gates="tn",
                negated=negated,
                options={"nonlinearity": function},
                layers={"n": "transform", "t": "gate"},
            )
            kinds.append(kind)
    return kinds


_GRU: Any = {"gates": "rzn", "reset_first_target": "recurrent.ResetGRUCell"}
KINDS = (
    *_highways(),
    CellKind(
        "LSTM",
        "recurrent.LSTMCell",
        {"C": "sigmoid(f) * c + sigmoid(i) * tanh(g)", "H": "sigmoid(o) * tanh(C)"},
        gates="ifgo",
        returns="HC",
        peepholes={"i": "c", "f": "c", "o": "C"},
        peephole_target="recurrent.PeepholeLSTMCell",
    ),
    CellKind("GRU", "recurrent.GRUCell", {"H": "(1 - sigmoid(z)) * tanh(n) + sigmoid(z) * h"}, **_GRU),
    # 1 - sigmoid(z) = sigmoid(-z)
    CellKind("GRU", "recurrent.GRUCell", {"H": "(1 - sigmoid(z)) * h + sigmoid(z) * tanh(n)"}, negated="z", **_GRU),
    CellKind("RNN", "recurrent.RNNCell", {"H": "tanh(n)"}, gates="n"),
    CellKind("RNN", "recurrent.RNNCell", {"H": "relu(n)"}, gates="n", options={"nonlinearity": "relu"}),
)
"""In the order in which they are tried: a highway layer is also a sum of products, an RNN any function of a sum."""
GATE_WORDS = {
    "i": "input gate",
    "f": "forget gate",
    "g": "candidate",
    "o": "output gate",
    "r": "reset gate",
    "z": "update gate",
    "n": "new value",
    "t": "transform gate",
}
