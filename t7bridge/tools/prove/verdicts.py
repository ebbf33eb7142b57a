"""Combines the outcomes of all steps into one verdict for each layer. May import graph."""

from __future__ import annotations

from ...graph.tensor import Tensor
from .outcome import Outcome
from .proof import AGREES, DIFFERS, NOT_CHECKABLE, NOT_RECORDED, STALE, VERDICTS, LayerProof
from .reasons import (
    BEFORE_UPDATE,
    BEHIND,
    BY_GRADIENT,
    CONTAINS,
    GRADIENT,
    OTHER_PASS,
    OUTPUT_MISSING,
    REPAIRED,
    SAME_MODULE,
    WEIGHT,
    WITH_DIFFERING,
)
from .stale import find_stale, is_one_pass


def decide(outcomes: list[Outcome]) -> list[LayerProof]:
    """Return one verdict for each layer, in the order of execution."""
    find_stale(outcomes)
    _pass_on(outcomes)
    _use_gradients(outcomes)
    _share(outcomes)
    found: dict[str, LayerProof] = {}
    for outcome in outcomes:
        if outcome.step.whole and outcome.step.obj.class_name == "nn.gModule":
            continue  # it consists of its nodes
        one = _of(outcome)
        other = found.get(one.path)
        found[one.path] = one if other is None else _worse(other, one)
    for one in found.values():
        if one.container and one.verdict in (DIFFERS, STALE) and not one.reason:
            inside = [path for path, other in found.items() if path.startswith(one.path + ".")]
            named = [path for path in inside if found[path].verdict == one.verdict]
            one.reason = CONTAINS.format(", ".join(named[:3])) if named else ""
    return list(found.values())


def _pass_on(outcomes: list[Outcome]) -> None:
    """Steps whose output was overwritten share the verdict of their group."""
    for outcome in outcomes:
        if len(outcome.group) < 2 or outcome.difference is None:
            continue
        members = [outcomes[number] for number in outcome.group]
        if outcome.verdict != DIFFERS:
            blamed = members
        elif outcome.blamed:
            blamed = [outcomes[number] for number in outcome.blamed]
        else:
            blamed = members
        verdict, reason = outcome.verdict, outcome.reason
        cause = "; ".join(filter(None, (reason, _guess(outcome))))
        for item in members:
            if item is not outcome and item.verdict not in (NOT_RECORDED, NOT_CHECKABLE):
                continue
            item.difference = outcome.difference
            if item is outcome:
                if item not in blamed and outcome.blamed:
                    item.verdict = AGREES if len(blamed) == 1 else NOT_CHECKABLE
                    named = ", ".join(other.step.path for other in blamed)
                    item.reason = (REPAIRED if len(blamed) == 1 else WITH_DIFFERING).format(named)
                    item.weight = item.difference = None
                continue
            item.weight, item.fit = outcome.weight, outcome.fit
            if verdict in (AGREES, STALE) or item in blamed:
                item.verdict = verdict
                item.reason = BEHIND.format(outcome.step.path)
                if verdict != AGREES and cause:
                    item.reason += f": {cause}"
                    item.weight = None
            elif outcome.blamed and len(blamed) == 1:
                item.verdict, item.reason = AGREES, REPAIRED.format(blamed[0].step.path)
                item.weight = item.difference = None


def _use_gradients(outcomes: list[Outcome]) -> None:
    """Layers of which no output could be checked are judged by their gradients, if these do not depend on inputs."""
    sums = [item for item in outcomes if item.independent and item.backward in (AGREES, DIFFERS)]
    moved = any(item.verdict == STALE for item in outcomes)
    differing = [item for item in sums if item.backward == DIFFERS]
    sound = len(differing) < len(sums) and len(differing) <= max(1, len(sums) // 4)
    one_pass = is_one_pass(outcomes)
    undisputed = is_one_pass(outcomes, surely=False)
    alone = {
        item.step.path
        for item in outcomes
        if item.verdict == AGREES
        and item.backward == DIFFERS
        and not isinstance(item.step.obj.get("noise"), Tensor)  # which a later forward draws anew
    }
    if len({item.step.path for item in outcomes}) < len(outcomes):
        alone = set()  # not all gradients of modules that run several times are kept
    if any(item.verdict == DIFFERS for item in outcomes):
        alone = set()  # modules of a changed container may have written into it in place
    for item in outcomes:
        if {item.step.path} == alone and not differing and not moved and is_one_pass(outcomes, item.step.path):
            item.verdict, item.difference, item.reason = DIFFERS, item.backward_difference, GRADIENT
    for item in outcomes:
        if item.verdict != NOT_RECORDED or item.backward not in (AGREES, DIFFERS):
            continue
        if item.backward == AGREES:
            item.verdict, item.difference = AGREES, item.backward_difference
            item.reason = BY_GRADIENT.format(item.reason or OUTPUT_MISSING)
        elif item.independent and sound and not moved and (one_pass or (undisputed and _trains(item))):
            item.verdict, item.difference = DIFFERS, item.backward_difference
            item.reason = GRADIENT
        elif item.independent and moved:
            item.verdict, item.difference = STALE, item.backward_difference
            item.reason = BEFORE_UPDATE


def _trains(outcome: Outcome) -> bool:
    return outcome.step.obj.get("train") is not False


def _share(outcomes: list[Outcome]) -> None:
    """Merge the verdicts on a module at several places, which keeps the values of the last only."""
    known = {id(item.step.obj): item for item in outcomes if item.verdict in (AGREES, DIFFERS, STALE)}
    for item in outcomes:
        other = known.get(id(item.step.obj))
        if item.verdict == NOT_RECORDED and other is not None and other.step.path != item.step.path:
            item.verdict, item.difference, item.weight = other.verdict, other.difference, other.weight
            item.reason = SAME_MODULE.format(other.step.path)


def _of(outcome: Outcome) -> LayerProof:
    difference = outcome.difference
    reason = outcome.reason
    if outcome.verdict == DIFFERS and difference is not None:
        reason = "; ".join(filter(None, (reason, _guess(outcome))))
    if outcome.verdict in (AGREES, STALE) and outcome.backward == DIFFERS:
        reason = "; ".join(filter(None, (reason, OTHER_PASS)))
    counted = outcome.verdict in (AGREES, DIFFERS, STALE) and difference is not None
    return LayerProof(
        outcome.step.path,
        outcome.step.obj.class_name,
        outcome.verdict,
        difference.max_abs if counted and difference else None,
        difference.max_rel if counted and difference else None,
        difference.cosine if counted and difference else None,
        max(difference.excess, outcome.weight.excess if outcome.weight else 0.0) if counted and difference else None,
        difference.count if counted and difference else 0,
        outcome.parameters,
        1,
        outcome.backward if outcome.backward != DIFFERS or outcome.verdict == DIFFERS else NOT_CHECKABLE,
        outcome.gradients,
        reason,
        outcome.step.whole,
    )


def _guess(outcome: Outcome) -> str:
    """Return the weight that differs, if only one does."""
    weight, difference = outcome.weight, outcome.difference
    if weight is None or difference is None or weight.excess <= 1 or difference.dense > 0.5:
        return ""
    index = "".join(f"[{place}]" for place in weight.index)
    return WEIGHT.format(weight.name, index, f"{weight.change:.3g}")


def _worse(one: LayerProof, other: LayerProof) -> LayerProof:
    """Merge the verdicts on two runs of one layer."""
    first, second = sorted((one, other), key=LayerProof.worst_first)
    both = first.verdict == second.verdict
    first.runs = one.runs + other.runs if both else first.runs
    first.compared = one.compared + other.compared if both else first.compared
    return first


assert set(VERDICTS) == {AGREES, DIFFERS, NOT_CHECKABLE, NOT_RECORDED, STALE}
