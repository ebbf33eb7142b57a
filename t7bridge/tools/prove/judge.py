"""The verdict on one run of a layer: whether rounding explains the difference, and if not, which change does.

May import graph, nn and torchmodules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...data import define
from ...graph.lua import TorchObject
from ...limits import Limits
from .options import has_options, likely_reason
from .outcome import Outcome
from .proof import AGREES, DIFFERS, NOT_CHECKABLE
from .reasons import (
    APPROXIMATE,
    CANCELLED,
    DRAWS,
    EXPONENTIAL,
    EXPONENTIAL_ERROR,
    MASKED,
    NEVER_COMPUTED,
    NOT_A_NUMBER,
    ROUNDING,
    STATE,
    TOGETHER,
)
from .values import UNIT, is_computed, leaves
from .visits import Step, base_name, own_parameters

if TYPE_CHECKING:
    from ...torchmodules.chains import Chain
    from ...torchmodules.running import LiveLayer
    from ...torchmodules.updates import Direction

BESIDE = 0.3
"""Share of a difference that a step must explain for another change to be searched for beside it."""
ROUNDS = 12
"""Maximum number of rounds in which a step and the weight beside it are fitted in turn."""


@define(eq=False)
class Ran:
    """A step that was run in PyTorch.

    Attributes:
        layer: the live layer; `None` for steps that only combine outputs.
        value: its input, in double precision.
        output: the returned tensors.
        scales: their expected rounding errors.
        chain: the layers starting at a recorded input; `None` where they branch.
        unit: unit roundoff of the numbers in Lua.
        is_final: whether no step follows.
    """

    layer: LiveLayer | None
    value: Any
    output: list[Any]
    scales: list[Any]
    chain: Chain | None
    unit: float
    is_final: bool


def judge(
    outcome: Outcome, ran: Ran, want: list[Any], steps: list[Step], states: tuple[Direction, ...], limits: Limits
) -> None:
    """Write the verdict on a run into its outcome.

    Args:
        outcome: of the step.
        ran: the computed values.
        want: the recorded values.
        steps: all steps.
        states: the last steps of optimizers, according to their states.
        limits: resource limits.
    """
    from ...torchmodules.judging import likeliest_weight, measure, same_in_rows
    from ...torchmodules.updates import fit_steps

    if not any(bool(item.isfinite().any()) for item in want):
        outcome.reason = NOT_A_NUMBER
        return
    step, layer, chain = outcome.step, ran.layer, ran.chain
    group = outcome.group
    why = next(filter(None, (APPROXIMATE.get(base_name(steps[part].obj.class_name)) for part in group)), "")
    room = headroom_of(step, ran.unit)
    outcome.difference = difference = measure(want, ran.output, ran.scales, _narrow(ran), room)
    exact = difference.excess <= 1
    shifted = why == EXPONENTIAL and not difference.reason and same_in_rows(difference, EXPONENTIAL_ERROR)
    good = exact or (bool(why) and difference.close) or shifted
    if good and not shifted and not difference.close and difference.max_rel > 1e-2:
        outcome.verdict, outcome.reason = NOT_CHECKABLE, DRAWS if _draws(ran) else ROUNDING
        return
    if chain is not None and chain.has_head and not difference.reason:
        outcome.weight = likeliest_weight(chain.links[0].layer, chain.start, difference, ran.scales, chain.tail())
        good = good and (outcome.weight is None or outcome.weight.excess <= 1)
    if good:
        outcome.verdict = AGREES
        if len(group) > 1:
            others = dict.fromkeys(steps[part].path for part in group if steps[part] is not step)
            outcome.reason = TOGETHER.format(", ".join(others))
        if not exact or not difference.close:
            named = why if not exact or why else CANCELLED
            outcome.reason = "; ".join(filter(None, (outcome.reason, named)))
        return
    if _draws(ran):
        outcome.verdict, outcome.reason = NOT_CHECKABLE, DRAWS
        return
    if layer is not None and _remembers(step.obj):
        outcome.verdict, outcome.reason = NOT_CHECKABLE, STATE
        return
    if not is_computed(step.output):
        outcome.reason = NEVER_COMPUTED
        return
    if ran.is_final and _is_masked(want, ran.output, ran.scales) and step.obj.get("threshold") is None:
        outcome.verdict, outcome.reason = NOT_CHECKABLE, MASKED
        return
    outcome.verdict, outcome.reason = DIFFERS, difference.reason
    if chain is not None and not difference.reason:
        outcome.fit = fit_steps(want, difference, chain, ran.scales, states, limits)
    fit = outcome.fit
    if fit is None or fit.excess > 1 or fit.direction.scales:
        _explain(outcome, ran, want, room, limits, steps)
        if not outcome.explained and chain is not None and fit is not None:
            if not fit.direction.scales and fit.explained > BESIDE:
                _explain_beside(outcome, ran, want, room, limits, steps, fit.direction, fit.rate, True)
            if not outcome.explained:
                outcome.again = lambda direction, rate: _explain_beside(
                    outcome, ran, want, room, limits, steps, direction, rate, False
                )


def _explain_beside(
    outcome: Outcome,
    ran: Ran,
    want: list[Any],
    room: float,
    limits: Limits,
    steps: list[Step],
    direction: Direction,
    rate: float,
    free: bool,
) -> bool:
    """Find the one weight or option with which the layers agree once a step of their weights is undone.

    Args:
        outcome: of the layers.
        ran: the computed values.
        want: the recorded values.
        room: factor of the limit.
        limits: resource limits.
        steps: all steps.
        direction: of the step.
        rate: of the step.
        free: whether the rate is of these layers alone, and was therefore biased by the change beside the step.

    Returns:
        Whether the step alone explains the difference.
    """
    from ...torchmodules.judging import close_enough, likeliest_weight, measure
    from ...torchmodules.running import NotRunError, flat
    from ...torchmodules.updates import blunted, fit_step

    chain, scales = ran.chain, blunted(ran.scales)
    assert chain is not None
    kept = outcome.weight, outcome.reason, outcome.blamed
    first: Ran | None = None
    at = rate
    try:
        for _ in range(ROUNDS if free else 1):
            moved = chain.moved(direction.pick, at, limits)
            if moved is None:
                return False
            output = [item.double() for item in flat(moved.run([{} for _ in moved.links], 0.0))]
            left = measure(want, output, scales, None, room)
            if left.reason:
                return False
            if left.excess <= 2 and not free:
                return True
            weight = None
            if moved.has_head and len(chain.links) == len(outcome.group):
                weight = likeliest_weight(moved.links[0].layer, moved.start, left, scales, moved.tail())
            first = first or Ran(ran.layer, ran.value, output, scales, moved, ran.unit, ran.is_final)
            if weight is None:
                break
            got = [item.double() for item in flat(moved.with_weight(weight.name, weight.index, weight.change))]
            if weight.excess > 1 and close_enough(want, got, scales, 2 * room):
                outcome.weight, outcome.blamed = weight, (outcome.group[0],)
                outcome.explained, outcome.beside = True, (at, direction.name)
                return False
            other = chain.shifted(weight.name, weight.index, weight.change)
            output = [item.double() for item in flat(other.run([{} for _ in other.links], 0.0))]
            again = measure(want, output, scales, None, room)
            found = fit_step(want, again, other, scales, other.slopes(direction.pick, limits), direction)
            if found is None or found.rate <= 0 or abs(found.rate - at) < 1e-6 * at:
                break
            at = found.rate
    except NotRunError:
        return False
    if first is not None:
        outcome.weight, outcome.reason, outcome.blamed = None, "", ()
        _explain(outcome, first, want, room, limits, steps)
        if outcome.explained:
            outcome.beside = (rate, direction.name)
            return False
    outcome.weight, outcome.reason, outcome.blamed = kept
    return False


def explain_refusal(outcome: Outcome, layer: LiveLayer, value: Any, step: Step, limits: Limits) -> None:
    """Find the option with which a layer accepts an input that it otherwise refuses."""
    from ...torchmodules.chains import extended
    from ...torchmodules.judging import squeezed
    from ...torchmodules.running import to_torch

    chain = extended(None, layer, value, None, False, False)
    if chain is None:
        return
    found = likely_reason(chain, squeezed(to_torch(step.output)), [], headroom_of(step, layer.unit), limits)
    if found is not None:
        outcome.reason = f"{outcome.reason}; {found.text}"


def _explain(outcome: Outcome, ran: Ran, want: list[Any], room: float, limits: Limits, steps: list[Step]) -> None:
    """Find the one weight or option with which the layers agree, and blame its layer."""
    from ...torchmodules.judging import close_enough
    from ...torchmodules.running import NotRunError, flat
    from ...torchmodules.updates import blunted

    chain, group, weight = ran.chain, outcome.group, outcome.weight
    difference = outcome.difference
    assert difference is not None
    if chain is None or outcome.step.glue is not None or outcome.step.whole:
        return
    if weight is not None and weight.excess > 1 and len(chain.links) == len(group):
        try:
            got = [item.double() for item in flat(chain.with_weight(weight.name, weight.index, weight.change))]
        except NotRunError:
            got = []
        if close_enough(want, got, blunted(ran.scales), 2 * room):
            outcome.blamed, outcome.explained = (group[0],), True
            return
    found = likely_reason(chain, want, blunted(ran.scales), room, limits)
    if found is not None:
        outcome.reason = "; ".join(filter(None, (outcome.reason, found.text)))
        outcome.explained = True
        if len(chain.links) == len(group):
            outcome.blamed = (group[found.place],)
        return
    outcome.blamed = tuple(part for part in group if _may_be_wrong(steps[part].obj))


def _may_be_wrong(obj: TorchObject) -> bool:
    return own_parameters(obj) > 0 or has_options(obj)


def _narrow(ran: Ran) -> list[Any] | None:
    """Return the output in Lua's precision."""
    from ...torchmodules.running import SINGLE, NotRunError, flat, mapped

    if ran.layer is None or ran.unit <= UNIT["float64"]:
        return None
    try:
        given = mapped(ran.value, lambda item: item.to(SINGLE) if item.is_floating_point() else item)
        return list(flat(ran.layer.run(given, ran.layer.narrow())))
    except NotRunError:
        return None


def _draws(ran: Ran) -> bool:
    from ...torchmodules.running import NotRunError, flat

    if ran.layer is None:
        return False
    try:
        again = list(flat(ran.layer.run(ran.value)))
    except NotRunError:
        return False
    return any(one.shape != two.shape or not bool((one == two.double()).all()) for one, two in zip(ran.output, again))


def _is_masked(want: list[Any], got: list[Any], scales: list[Any]) -> bool:
    """Return whether recorded values agree with the computed ones except where they are zero."""
    kept = total = 0
    for one, other, scale in zip(want, got, scales):
        if one.shape != other.shape:
            return False
        left = one != 0
        kept, total = kept + int(left.sum()), total + one.numel()
        if bool(((one - other).abs() > 15 * scale)[left].any()):
            return False
    return total > kept >= total / 8


def _remembers(obj: TorchObject) -> bool:
    """Return whether a recurrent layer may have continued from an earlier sequence."""
    kept = obj.get("_remember")
    return (isinstance(kept, bytes) and kept != b"neither") or obj.get("remember_states") is True


def headroom_of(step: Step, unit: float) -> float:
    """Return the factor of the limit: larger for models of a GPU or in double precision."""
    from ...torchmodules.judging import COARSE_HEADROOM, EXACT_HEADROOM

    on_gpu = step.obj.class_name.startswith("cudnn.") or any(tensor.device != "cpu" for tensor in leaves(step.output))
    return (EXACT_HEADROOM if unit <= UNIT["float64"] else 1.0) * (COARSE_HEADROOM if on_gpu else 1.0)
