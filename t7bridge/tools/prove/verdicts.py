"""One vote over a model: what differs, what moved after the last forward, and what is not known.

Weights of a file may be those of an update after the last forward. So a layer without weights that does not return what
is recorded differs, and a layer with weights does where

- one change of the file explains it to the last digit and no update looks like it, as that moves more than one number,
- the last step of an optimizer, as the file tells it, explains all other layers to the last digit and not this one, or
- no weights at all give what is recorded.

All else is not known. May import graph and torchmodules.
"""

from __future__ import annotations

from typing import Any

import torch

from ...data import define
from ...graph.tensor import Tensor
from ...limits import Limits
from ...torchmodules.judging import DETERMINED, MOST, Case, Change, suspects
from . import reasons
from .hypotheses import Explanation, explanation, stepped
from .optimizers import GRADIENT, Direction
from .outcome import Key, Outcome, key_of
from .proof import AGREES, CONVERSION, DIFFERS, FILE, NOT_CHECKABLE, NOT_RECORDED, STALE, LayerProof
from .runs import base_name, may_be_undone

OTHERS = 2
"""Layers that one rate must explain: one always has a rate that fits in the mean, a second is a test of it."""
_ODD = frozenset(("SpatialDepthWiseConvolution",))
"""Layers whose gradWeight is no gradient of their weight as it is stored, as measured in Lua Torch."""


@define(eq=False)
class Step:
    """The step of an optimizer after the last forward.

    Attributes:
        direction: its direction.
        rate: its size.
        explained: the weights that it moved, and nothing else.
    """

    direction: Direction
    rate: float
    explained: set[Key]


class Vote:
    """The verdicts on the runs of one model.

    Args:
        outcomes: of all runs, in order; verdicts are written there.
        directions: of the last steps of optimizers, as far as the file tells them.
        limits: resource limits.
    """

    def __init__(self, outcomes: list[Outcome], directions: tuple[Direction, ...], limits: Limits) -> None:
        self.outcomes, self.directions, self.limits = outcomes, directions, limits
        self._slopes: dict[Any, Any] = {}
        self._keys = {id(item): key_of(outcomes, item) for item in outcomes}

    def decide(self) -> list[LayerProof]:
        """Return one verdict for each layer, in order."""
        off = [item for item in self.outcomes if item.case is not None and item.verdict in (DIFFERS, NOT_CHECKABLE)]
        off = [item for item in off if item.verdict == DIFFERS or not item.case.node.found]  # type: ignore[union-attr]
        back = [item for item in self.outcomes if item.case is None and item.backward == DIFFERS and item.is_sum]
        back = [item for item in back if item.verdict == NOT_RECORDED]
        step = self._step([item for item in (*off, *back) if _case(item).weighted])
        self._explain((*off, *back), step)
        for item in off:
            self._output(item, step, (*off, *back))
        for item in back:
            self._weights(item, step, (*off, *back))
            if item.verdict == STALE and not any(one.verdict == STALE for one in off):
                item.verdict, item.difference = NOT_RECORDED, None  # another pass, before an update
                item.reason = reasons.NO_INPUT
        for item in self.outcomes:
            if item.case is not None and len(item.group) > 1:
                self._members(item)
        self._gradients()
        self._share()
        return self._layers()

    def _explain(self, off: tuple[Outcome, ...], step: Step | None) -> None:
        """Search for a change of the file that explains each difference, where no step does.

        Where several layers with weights are off, they moved, and an option would not explain one of them. Of the steps
        of a sequence, all have the change of their weights.
        """
        moved = {self._keys[id(item)] for item in off if item.case is not None and not item.run.whole}
        several = len(moved - {frozenset()}) > 2
        tried: dict[tuple[str, Key], bool] = {}
        for item in off:
            key, case = self._keys[id(item)], _case(item)
            one = item.run.path, key
            if (step is not None and key in step.explained) or tried.get(one) is False:
                continue
            options = not several or not case.weighted or bool(case.off.reason) or not case.node.found
            item.explained = explanation(case, self.limits, options=options)
            tried[one] = item.explained is not None

    # Updates

    def _step(self, off: list[Outcome]) -> Step | None:
        """Return the step that explains most of the layers that do not agree; `None` if none explains several."""
        best: Step | None = None
        for direction in self.directions:
            found: list[tuple[float, float, Outcome]] = []
            for item in off:
                case = _case(item)
                change = stepped(case, direction, self.limits, self._slopes)
                rate = case.fit(change, 0.0, _small(case, change)) if change is not None else None
                if change is not None and rate is not None and rate > 0 and case.with_change(change(rate)).agrees:
                    found.append((case.off.excess, rate, item))
            if not found:
                continue
            rate = max(found, key=lambda one: one[0])[1]  # the larger the difference, the more exact
            explained = {self._keys[id(item)] for item in off if self._moved(item, direction, rate)}
            if best is None or len(explained) > len(best.explained):
                best = Step(direction, rate, explained)
        return best if best is not None and len(best.explained) >= OTHERS else None

    def _moved(self, item: Outcome, direction: Direction, rate: float) -> bool:
        change = stepped(_case(item), direction, self.limits, self._slopes)
        return change is not None and _case(item).with_change(change(rate)).agrees

    def _is_off_step(self, item: Outcome, step: Step, off: tuple[Outcome, ...]) -> bool:
        """Return whether a step explains all other layers that do not agree, and no step along its direction this."""
        key = self._keys[id(item)]
        others = {self._keys[id(one)] for one in off if _case(one).weighted} - {key}
        case, change = _case(item), stepped(_case(item), step.direction, self.limits, self._slopes)
        if change is None or not others <= step.explained:
            return False
        odd = any(layer.name in _ODD or may_be_undone(layer.obj) for _, layer in case.layers)
        if odd or self._is_shared(key):
            return False
        rate = case.fit(change, 0.0, _small(case, change))
        return rate is None or not case.with_change(change(rate)).agrees

    def _is_shared(self, key: Key) -> bool:
        """Return whether several modules have these weights: the update is the sum of all their gradients."""
        owners: dict[tuple[int, int], set[int]] = {}
        for one in self.outcomes:
            for name in ("weight", "bias"):
                tensor, slope = one.run.obj.get(name), one.run.obj.get("gradWeight" if name == "weight" else "gradBias")
                if isinstance(tensor, Tensor) and isinstance(slope, Tensor) and tensor.numel:
                    owners.setdefault((id(tensor.storage), tensor.offset), set()).add(
                        hash((id(slope.storage), slope.offset))
                    )
        return any(len(owners.get(one, ())) > 1 for one in key)

    def _is_fresh(self, item: Outcome, found: Explanation) -> bool:
        """Return whether a step that explains a layer of one weight would show in another, which agrees."""
        if found.variant.start is None:
            return True
        case = _case(item)
        change = stepped(case, GRADIENT, self.limits, self._slopes)
        rate = case.fit(change, 0.0, _small(case, change)) if change is not None else None
        for other in self.outcomes:
            if other.case is None or other.verdict != AGREES or not other.case.weighted:
                continue
            if self._keys[id(other)] == self._keys[id(item)]:
                continue
            if rate is None:
                return True
            moved = stepped(other.case, GRADIENT, self.limits, self._slopes)
            if moved is not None and not other.case.with_change(moved(abs(rate))).agrees:
                return True
        return False

    # One layer

    def _output(self, item: Outcome, step: Step | None, off: tuple[Outcome, ...]) -> None:
        case = _case(item)
        if case.weighted:
            self._weights(item, step, off)
        elif item.explained is not None:
            self._blame(item, item.explained, item.explained.text)
        elif item.verdict == DIFFERS:
            self._unexplained(item)

    def _weights(self, item: Outcome, step: Step | None, off: tuple[Outcome, ...]) -> None:
        """Write the verdict on layers with weights."""
        case, found = _case(item), item.explained
        item.difference = case.off if case.node.found else None
        if found is not None and (found.certain or self._is_fresh(item, found)):
            self._blame(item, found, found.text)
            return
        key = self._keys[id(item)]
        if step is not None and key in step.explained and self._is_only_moved(item, step):
            item.verdict, item.reason = STALE, reasons.STEPPED.format(f"{step.rate:.3g}", step.direction.name)
            return
        if step is not None and len(step.explained - {key}) >= OTHERS:
            base = stepped(case, step.direction, self.limits, self._slopes)
            named = f"{step.rate:.3g}", step.direction.name
            found = explanation(case, self.limits, base(step.rate)) if base is not None else None
            if found is not None and found.certain:
                self._blame(item, found, f"{found.text}; {reasons.BESIDE.format(*named)}")
                return
            if self._is_off_step(item, step, off):
                item.verdict, item.reason, item.blame = DIFFERS, reasons.OFF.format(*named), FILE
                return
        if _has_other_shape(case):
            self._unexplained(item)
        elif case.node.found and _is_beyond_weights(case):
            item.verdict, item.reason, item.blame = DIFFERS, reasons.NO_UPDATE, CONVERSION
        elif case.node.found and item.case is not None:
            item.verdict, item.reason = STALE, reasons.MOVED
        elif item.case is None:
            item.verdict, item.reason = STALE, reasons.BEFORE_UPDATE

    def _is_only_moved(self, item: Outcome, step: Step) -> bool:
        """Return whether a step explains a layer, and no weight deviates beyond rounding beside it."""
        case = _case(item)
        base = stepped(case, step.direction, self.limits, self._slopes)
        left = case.with_change(base(step.rate)) if base is not None else None
        if base is None or left is None or not left.agrees:
            return False
        # The weights were rounded once more by the update.
        return all(one.excess <= 2 for one in suspects(case, base(step.rate), left, quick=True)[:1])

    def _blame(self, item: Outcome, found: Explanation, text: str) -> None:
        if text.startswith("train = ") and self._is_other_mode(item):
            modes = ("evaluation", "training") if item.run.obj.get("train") is True else ("training", "evaluation")
            item.verdict, item.reason = AGREES, reasons.OTHER_MODE.format(*modes)
            return
        item.verdict, item.blame = DIFFERS, found.blame
        item.reason = "; ".join(filter(None, (item.reason, reasons.GRADIENT if item.case is None else "", text)))

    def _is_other_mode(self, item: Outcome) -> bool:
        """Return whether the whole model is in the mode of this layer, as `evaluate` and `training` set it."""
        modes = {one.run.obj.get("train") for one in self.outcomes if isinstance(one.run.obj.get("train"), bool)}
        return len(modes) == 1 and sum(isinstance(one.run.obj.get("train"), bool) for one in self.outcomes) > 1

    def _unexplained(self, item: Outcome) -> None:
        """A layer without weights that no change of the file explains."""
        case = _case(item)
        sizes = [[one.shape[:1].numel() for one in side if one.dim()] for side in (case.want, case.node.found)]
        if item is self.outcomes[-1] and _is_masked(case):
            item.verdict, item.reason = NOT_CHECKABLE, reasons.MASKED
        elif item.reason.startswith("shape") and _is_other_batch(case):
            item.verdict, item.reason = NOT_CHECKABLE, reasons.OTHER_BATCH.format(sizes[1][0], sizes[0][0])
        else:
            item.blame = CONVERSION

    def _members(self, item: Outcome) -> None:
        """Layers whose output was overwritten share the verdict of the one that it is compared after."""
        case, verdict, reason, blame = _case(item), item.verdict, item.reason, item.blame
        weighted = {node.step for node, _ in case.weighted}
        at = item.explained.node.step if item.explained is not None else None
        for number in item.group:
            one = self.outcomes[number]
            if one is not item and one.verdict != NOT_RECORDED:
                continue
            # Without an explanation, of layers with weights these are to blame, else all.
            guilty = number == at if at is not None else number in weighted or not weighted
            one.difference = item.difference
            if verdict in (AGREES, NOT_CHECKABLE) or guilty:
                one.verdict, one.blame, one.reason = verdict, blame, reason
                if one is not item:
                    said = "" if verdict == AGREES else reason
                    one.reason = ": ".join(filter(None, (reasons.BEHIND.format(item.run.path), said)))
            elif at is not None and verdict == DIFFERS:
                one.verdict, one.blame, one.difference = AGREES, "", None
                one.reason = reasons.REPAIRED.format(self.outcomes[at].run.path)
            else:
                others = [self.outcomes[other].run.path for other in item.group if other != number]
                one.verdict, one.blame = NOT_CHECKABLE, ""
                one.reason = reasons.WITH_ANOTHER.format(", ".join(others))

    # The whole model

    def _gradients(self) -> None:
        """Use gradients where no output could be checked, and for options that show in gradients alone."""
        for item in self.outcomes:
            if item.verdict == NOT_RECORDED and item.backward == AGREES and item.gradient is not None:
                item.verdict, item.difference = AGREES, item.gradient.off
                item.reason = reasons.BY_GRADIENT.format(item.reason or reasons.OUTPUT_MISSING)
        if len({item.run.path for item in self.outcomes}) < len(self.outcomes):
            return  # not all gradients of modules that run several times are kept
        wrong = [at for at, item in enumerate(self.outcomes) if item.backward == DIFFERS]
        if len(wrong) != 1 or any(item.verdict in (DIFFERS, STALE) for item in self.outcomes):
            return
        item = self.outcomes[wrong[0]]
        drawn = isinstance(item.run.obj.get("noise"), Tensor)  # which a later forward draws once more
        case = item.gradient
        if item.verdict != AGREES or drawn or case is None or item.run.obj.get("train") is False:
            return
        # A layer behind it whose slope depends smoothly on its input was run backwards on the values of this forward.
        if any(_is_smooth(other) and other.backward == AGREES for other in self.outcomes[wrong[0] + 1 :]):
            item.verdict, item.difference, item.reason = DIFFERS, case.off, reasons.GRADIENT
            item.blame = FILE

    def _share(self) -> None:
        """Merge the verdicts on a module at several places, which keeps the values of the last only."""
        known = {id(item.run.obj): item for item in self.outcomes if item.verdict in (AGREES, DIFFERS, STALE)}
        for item in self.outcomes:
            other = known.get(id(item.run.obj))
            if item.verdict == NOT_RECORDED and other is not None and other.run.path != item.run.path:
                item.verdict, item.difference, item.blame = other.verdict, other.difference, other.blame
                item.reason = reasons.SAME_MODULE.format(other.run.path)

    def _layers(self) -> list[LayerProof]:
        found: dict[str, LayerProof] = {}
        for item in self.outcomes:
            if item.run.whole and base_name(item.run.obj.class_name) == "gModule":
                continue
            one = _proof_of(item)
            other = found.get(one.path)
            if other is not None:
                one, other = sorted((one, other), key=LayerProof.worst_first)
                if one.verdict == other.verdict:
                    one.runs, one.compared = one.runs + other.runs, one.compared + other.compared
            found[one.path] = one
        for one in found.values():
            if one.container and one.verdict in (DIFFERS, STALE):
                inside = [item for path, item in found.items() if path.startswith(one.path + ".")]
                named = [item.path for item in inside if item.verdict == DIFFERS]
                if named:
                    one.verdict, one.reason, one.blame = DIFFERS, reasons.CONTAINS.format(", ".join(named[:3])), ""
        return list(found.values())


def _case(item: Outcome) -> Case:
    case = item.case or item.gradient
    assert case is not None
    return case


def _small(case: Case, change: Any) -> float:
    """Return a rate that changes weights by about a ten-thousandth."""
    size = sum(float(item.square().sum()) for _, layer in case.weighted for item in layer.weights.values())
    moved = {key: layer.weights for key, layer in change(1.0).items()}
    length = sum(
        float((moved[id(layer)][name] - item).square().sum())
        for _, layer in case.weighted
        if id(layer) in moved
        for name, item in layer.weights.items()
    )
    return 1e-4 * (size / length) ** 0.5 if size and length else 1e-6


def _is_smooth(item: Outcome) -> bool:
    """Return whether a layer's gradient depends on all digits of its input."""
    case = item.gradient
    if case is None or case.node.layer is None or case.node.layer.is_sum:
        return False
    given, slope = case.node.given
    try:
        moved = case.node.by(case.node.layer, [_nudged(given), slope])
    except Exception:  # as any module may raise for another input
        return False
    return any(
        not bool(torch.isclose(one.reshape(two.shape), two, rtol=1e-9, atol=0).all())
        for one, two in zip(moved, case.node.found)
    )


def _nudged(value: Any) -> Any:
    if isinstance(value, list):
        return [_nudged(item) for item in value]
    return value * (1 + 1e-6) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _is_beyond_weights(case: Case) -> bool:
    """Return whether no weights give the recorded values: the best ones leave more than rounding in the mean, so that
    any leave it in some value. Only for layers that are linear in their weights, and with more values than these.
    """
    layer = case.node.layer
    linear = layer is not None and (layer.is_sum or "BatchNorm" in layer.name) and len(case.layers) == 1
    if layer is None or not linear or case.off.reason or len(case.want) != 1:
        return False
    count = sum(item.numel() for item in layer.weights.values())
    if not count <= MOST or case.off.active < count + DETERMINED:
        return False
    inverse = 1 / case.node.scales[0].reshape(-1)
    columns = []
    zero = {name: torch.zeros_like(item) for name, item in layer.weights.items()}
    change: Change = {id(layer): layer.moved(zero)}
    start = case.node.compute(change)[0].reshape(-1)
    for name, item in zero.items():
        for place in range(item.numel()):
            one = item.clone()
            one.view(-1)[place] = 1.0
            got = case.node.compute({id(layer): layer.moved({**zero, name: one})})[0].reshape(-1)
            columns.append((got - start) * inverse)
    matrix, target = torch.stack(columns, 1), (case.want[0].reshape(-1) - start) * inverse
    if not bool(matrix.isfinite().all() and target.isfinite().all()):
        return False
    best = torch.linalg.lstsq(matrix, target[:, None], driver="gelsd").solution
    left = target - (matrix @ best)[:, 0]
    return float(left.square().mean().sqrt()) > case.off.limit * case.headroom


def _is_masked(case: Case) -> bool:
    """Return whether recorded values agree with the computed ones except where they are zero."""
    kept = total = 0
    for one, other, scale in zip(case.want, case.node.found, case.node.scales):
        if one.shape != other.shape:
            return False
        left = one != 0
        kept, total = kept + int(left.sum()), total + one.numel()
        if bool(((one - other).abs() > case.off.limit * scale)[left].any()):
            return False
    return total > kept >= DETERMINED


def _has_other_shape(case: Case) -> bool:
    """Return whether an output has another shape than the recorded one, which no weights change."""
    return bool(case.node.found) and [item.numel() for item in case.want] != [item.numel() for item in case.node.found]


def _is_other_batch(case: Case) -> bool:
    pairs = zip(case.want, case.node.found)
    return len(case.want) == len(case.node.found) and all(
        one.dim() == two.dim() > 1 and one.shape[1:] == two.shape[1:] for one, two in pairs
    )


def _proof_of(item: Outcome) -> LayerProof:
    counted = item.verdict in (AGREES, DIFFERS, STALE) and item.difference is not None
    off = item.difference if counted else None
    reason = item.reason
    if item.verdict in (AGREES, STALE) and item.backward == DIFFERS and item.case is not None:
        reason = "; ".join(filter(None, (reason, reasons.OTHER_PASS)))
    suspect = item.case.stands_out if item.case is not None else 0.0
    return LayerProof(
        item.run.path,
        item.run.obj.class_name,
        item.verdict,
        off.max_abs if off is not None else None,
        off.max_rel if off is not None else None,
        off.cosine if off is not None else None,
        max(off.excess, suspect) if off is not None else None,
        off.count if off is not None else 0,
        item.parameters,
        1,
        item.backward if item.backward != DIFFERS or item.verdict == DIFFERS else NOT_CHECKABLE,
        reason,
        item.run.whole,
        item.blame if item.verdict == DIFFERS else "",
    )
