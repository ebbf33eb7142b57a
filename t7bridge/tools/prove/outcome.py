"""The outcome of one run of one layer. May import graph and torchmodules."""

from __future__ import annotations

from ...data import define
from ...graph.tensor import Tensor
from ...torchmodules.judging import Case, Deviation
from .hypotheses import Explanation
from .proof import NOT_RECORDED
from .runs import Run

Key = frozenset[tuple[int, int]]
"""The weights of layers compared as one: storage and offset of each layer's."""


@define(eq=False)
class Outcome:
    """What is known of one run.

    Attributes:
        run: the run.
        verdict: on its output; `DIFFERS` until it is known why.
        reason: why.
        blame: what was wrong, where it differs: `FILE` or `CONVERSION`.
        case: the recorded output and what computes it; `None` if it is not compared.
        group: the runs that contribute to the compared output, including this one.
        difference: the numbers of the comparison that decided.
        parameters: number of weights of the layer itself.
        gradient: the recorded gradient with respect to its input and what computes it.
        backward: the verdict on that.
        explained: what explains a difference.
    """

    run: Run
    verdict: str = NOT_RECORDED
    reason: str = ""
    blame: str = ""
    case: Case | None = None
    group: tuple[int, ...] = ()
    difference: Deviation | None = None
    parameters: int = 0
    gradient: Case | None = None
    backward: str = NOT_RECORDED
    explained: Explanation | None = None

    @property
    def is_sum(self) -> bool:
        """True if its gradient is a sum of products of weights, whatever its input."""
        layer = self.gradient.node.layer if self.gradient is not None else None
        return layer is not None and layer.is_sum


def key_of(outcomes: list[Outcome], outcome: Outcome) -> Key:
    """Return the weights of the layers that were compared as one."""
    found = []
    for number in outcome.group or (outcomes.index(outcome),):
        obj = outcomes[number].run.obj
        weight = obj.get("weight") if isinstance(obj.get("weight"), Tensor) else obj.get("bias")
        if isinstance(weight, Tensor) and weight.numel:
            found.append((id(weight.storage), weight.offset))
    return frozenset(found)
