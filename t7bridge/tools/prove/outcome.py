"""The verdict on one run of one layer. May import graph and torchmodules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...data import define
from .proof import NOT_RECORDED
from .visits import Step

if TYPE_CHECKING:
    from ...torchmodules.judging import Deviation, SuspectWeight
    from ...torchmodules.updates import Direction, Fit


@define(eq=False)
class Outcome:
    """The verdict on one step.

    Attributes:
        step: the run of a layer.
        verdict: of its output.
        reason: why.
        difference: of its output.
        backward: the verdict on its gradInput.
        backward_difference: of its gradInput.
        gradients: the verdict on its gradWeight and gradBias.
        fit: how well a training step explains the difference.
        weight: the one weight that explains it.
        group: the steps that contribute to the compared output, including this one.
        blamed: the steps of the group that explain the difference; empty if none does.
        parameters: number of weights of the layer itself.
        independent: whether its gradInput is independent of its input.
        explained: whether one weight or option explains the difference, alone or beside a step.
        beside: the step beside which it does: its rate and the name of its direction.
        again: searches for it beside another step, and returns whether that step alone explains the difference; `None`
            if there is nothing to search for.
        from_output: whether its input was computed from its output with the weights of the file.
        off: the same step, if it explains the other layers but not this one.
    """

    step: Step
    verdict: str = NOT_RECORDED
    reason: str = ""
    difference: Deviation | None = None
    backward: str = NOT_RECORDED
    backward_difference: Deviation | None = None
    gradients: str = NOT_RECORDED
    fit: Fit | None = None
    weight: SuspectWeight | None = None
    group: tuple[int, ...] = ()
    blamed: tuple[int, ...] = ()
    parameters: int = 0
    independent: bool = False
    explained: bool = False
    beside: tuple[float, str] | None = None
    again: Callable[[Direction, float], bool] | None = None
    from_output: bool = False
    off: tuple[float, str] | None = None
