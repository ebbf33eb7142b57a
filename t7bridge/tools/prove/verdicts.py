"""One vote over a model: what differs, what moved after the last forward, and what is not known.

Weights of a file may be those of an update after the last forward. So a layer without weights that does not return what
is recorded differs, and a layer with weights does where

- one change of the file explains it to the last digit and no update looks like it, as that moves more than one number,
- the last step of an optimizer, as the file has it, explains all other layers to the last digit and not this one, or
- no weights at all give what is recorded.

All else is not known. May import graph and nn.
"""

from __future__ import annotations

import torch

from ...data import define
from ...graph.tensor import Tensor
from ...limits import Limits
from .hypotheses import CLEAR, Direction, Explanation, Line, explanation
from .judge import NO_INPUT, Outcome
from .layer import NotRunError, mapped
from .proof import AGREES, CONVERSION, DIFFERS, FILE, NOT_CHECKABLE, NOT_RECORDED, STALE, LayerProof
from .residual import DETERMINED, MOST, Case
from .runs import may_be_undone

OTHERS = 2
"""Layers that one rate must explain: one always has a rate that fits in the mean, a second is a test of it."""
_ODD = "SpatialDepthWiseConvolution"
"""A layer whose gradWeight is no gradient of its weight as it is stored, as measured in Lua Torch."""
MASKED = "parts of the last output were set to zero after the pass, as by a mask; the others agree"
MOVED = "the weights moved after the last forward, or the file was changed"
BEFORE_UPDATE = "its gradient is that of other weights"

Key = frozenset[tuple[int, int]]
"""The weights of layers compared as one: storage and offset of each layer's."""


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

    def __str__(self) -> str:
        return f"a step of {self.rate:.3g} along {self.direction.name}"


class Vote:
    """The verdicts on the runs of one model.

    Args:
        outcomes: of all runs, in order; verdicts are written there.
        directions: of the last steps of optimizers, as far as the file has them; the recorded gradient last.
        limits: resource limits.
    """

    def __init__(self, outcomes: list[Outcome], directions: list[Direction], limits: Limits) -> None:
        self.outcomes, self.directions, self.limits = outcomes, directions, limits
        self._lines: dict[tuple[int, str], Line] = {}
        self._explained: dict[int, Explanation | None] = {}
        self._keys = {id(item): self._key(item) for item in outcomes}
        outputs = [item for item in outcomes if item.case is not None and _is_off(item)]
        # Where the input is unknown, the gradient of a sum of products does not depend on it.
        slopes = [item for item in outcomes if item.case is None and item.verdict == NOT_RECORDED]
        slopes = [item for item in slopes if item.backward == DIFFERS and _is_sum(item)]
        self._off = [*outputs, *slopes]
        self._step = self._best_step()

    def decide(self) -> list[LayerProof]:
        """Return one verdict for each layer, in order."""
        for item in self._off:
            self._explained[id(item)] = self._explanation(item)
        for item in self._off:
            if _case(item).weighted or item.case is None:
                self._weights(item)
            elif self._explained[id(item)] is not None:
                self._blame(item)
            elif item.verdict == DIFFERS:
                self._unexplained(item)
        moved = any(item.verdict == STALE and item.case is not None for item in self.outcomes)
        for item in self._off:
            if item.case is None and item.verdict == STALE and not moved:
                item.decide(NOT_RECORDED, NO_INPUT)  # another pass, before an update
                item.difference = None
        for item in self.outcomes:
            if item.case is not None and len(item.group) > 1:
                self._members(item)
        self._gradients()
        self._share()
        return self._layers()

    def _key(self, item: Outcome) -> Key:
        runs = [self.outcomes[number].run for number in item.group] or [item.run]
        tensors = [run.obj.get("weight") or run.obj.get("bias") for run in runs]
        return frozenset((id(one.storage), one.offset) for one in tensors if isinstance(one, Tensor) and one.numel)

    # Updates

    def _line(self, item: Outcome, direction: Direction) -> Line:
        key = id(item), direction.name
        if key not in self._lines:
            self._lines[key] = Line(_case(item), direction, self.limits)
        return self._lines[key]

    def _best_step(self) -> Step | None:
        """Return the step that explains most of the layers that do not agree; `None` if none explains several."""
        best: Step | None = None
        weighted = [item for item in self._off if _case(item).weighted]
        for direction in self.directions:
            found = []
            for item in weighted:
                line = self._line(item, direction)
                rate = line.fit()
                if rate is not None and rate > 0 and line.agrees(rate):
                    found.append((_case(item).off.excess, rate))
            if found:
                rate = max(found)[1]  # the larger the difference, the more exact
                lines = [(item, self._line(item, direction)) for item in weighted]
                explained = {self._keys[id(item)] for item, line in lines if line.agrees(rate)}
                if best is None or len(explained) > len(best.explained):
                    best = Step(direction, rate, explained)
        return best if best is not None and len(best.explained) >= OTHERS else None

    def _is_off_step(self, item: Outcome, step: Step) -> bool:
        """Return whether a step explains all other layers that do not agree, and no step along its direction this."""
        key, line = self._keys[id(item)], self._line(item, step.direction)
        others = {self._keys[id(one)] for one in self._off if _case(one).weighted and not one.run.whole}
        odd = any(layer.name == _ODD or may_be_undone(layer.obj) for _, layer in line.case.layers)
        if not line.slopes or not others - {key} <= step.explained or odd or self._is_shared(key):
            return False
        rate = line.fit()
        return rate is None or line.excess(rate) >= CLEAR

    def _is_shared(self, key: Key) -> bool:
        """Return whether several modules have these weights: the update is the sum of all their gradients."""
        owners: dict[tuple[int, int], set[tuple[int, int]]] = {}
        for one in self.outcomes:
            tensor, slope = one.run.obj.get("weight"), one.run.obj.get("gradWeight")
            if isinstance(tensor, Tensor) and isinstance(slope, Tensor):
                here = id(tensor.storage), tensor.offset
                owners.setdefault(here, set()).add((id(slope.storage), slope.offset))
        return any(len(owners.get(one, ())) > 1 for one in key)

    def _is_fresh(self, item: Outcome) -> bool:
        """Return whether a step that explains a layer of one weight would show in another, which agrees."""
        direction = self.directions[-1]
        rate = self._line(item, direction).fit()
        for other in self.outcomes:
            is_other = self._keys[id(other)] != self._keys[id(item)] and other.case is not None
            if is_other and other.verdict == AGREES and _case(other).weighted:
                line = self._line(other, direction)
                if rate is None or (line.slopes and not line.agrees(abs(rate))):
                    return True
        return False

    # One layer

    def _explanation(self, item: Outcome) -> Explanation | None:
        """Return the change of the file that explains a difference, where no step does.

        Where several layers with weights are off, they moved, and an option would not explain one of them. Of the steps
        of a sequence, all have the change of their weights.
        """
        case, key = _case(item), self._keys[id(item)]
        alike = [one for one in self._off if one.run.path == item.run.path and self._keys[id(one)] == key]
        if (self._step is not None and key in self._step.explained) or (
            alike[0] is not item and self._explained[id(alike[0])] is None
        ):
            return None
        moved = {self._keys[id(one)] for one in self._off if one.case is not None and not one.run.whole}
        several = len(moved - {frozenset()}) > 2
        options = not several or not case.weighted or bool(case.off.reason) or not case.node.found
        return explanation(case, self.limits, options=options)

    def _weights(self, item: Outcome) -> None:
        """Write the verdict on layers with weights."""
        case, step, key = _case(item), self._step, self._keys[id(item)]
        found = self._explained[id(item)]
        item.difference = case.off if case.node.found else None
        if found is not None and (found.certain or self._is_fresh(item)):
            self._blame(item)
            return
        if step is not None and key in step.explained:
            text = f"the weights moved after the last forward: {step} explains 100.0% of the difference"
            item.decide(STALE, text)
            return
        if step is not None and len(step.explained - {key}) >= OTHERS:
            base = self._line(item, step.direction).change(step.rate)
            beside = explanation(case, self.limits, base) if base else None
            if beside is not None and beside.certain:
                why = f"beside {step}, after the last forward, which explains the other layers and not this one"
                self._explained[id(item)] = beside
                item.decide(DIFFERS, f"{beside.text}; {why}", beside.blame)
                return
            if self._is_off_step(item, step):
                why = f"{step}, after the last forward, explains the other layers and not this one"
                item.decide(DIFFERS, why, FILE)
                return
        if case.has_other_shape:
            self._unexplained(item)
        elif item.case is None:
            item.decide(STALE, BEFORE_UPDATE)
        elif case.node.found and _is_beyond_weights(case):
            item.decide(DIFFERS, "no weights give the recorded output", CONVERSION)
        elif case.node.found:
            item.decide(STALE, MOVED)

    def _blame(self, item: Outcome) -> None:
        """Write that a change explains a layer, unless all layers ran in another mode than that of the file."""
        found = self._explained[id(item)]
        assert found is not None
        modes = [one.run.obj.get("train") for one in self.outcomes if isinstance(one.run.obj.get("train"), bool)]
        if found.text.startswith("train = ") and len(set(modes)) == 1 and len(modes) > 1:
            ran, saved = ("evaluation", "training") if modes[0] else ("training", "evaluation")
            item.decide(AGREES, f"Lua ran it in {ran}; the model was saved in {saved}")
            return
        slope = "its gradient differs" if item.case is None else ""
        item.decide(DIFFERS, "; ".join(filter(None, (item.reason, slope, found.text))), found.blame)

    def _unexplained(self, item: Outcome) -> None:
        """A layer that no change of the file explains, and no weights."""
        case = _case(item)
        pairs = list(zip(case.want, case.node.found))
        batches = [one.dim() == two.dim() > 1 and one.shape[1:] == two.shape[1:] for one, two in pairs]
        if item is self.outcomes[-1] and _is_masked(case):
            item.decide(NOT_CHECKABLE, MASKED)
        elif case.has_other_shape and len(case.want) == len(case.node.found) and all(batches):
            counts = [len(one) for one in pairs[0]]
            item.decide(
                NOT_CHECKABLE, f"its input and its output are of passes of {counts[1]} and {counts[0]} examples"
            )
        else:
            item.decide(DIFFERS, item.reason or case.off.reason, CONVERSION)

    def _members(self, item: Outcome) -> None:
        """Layers whose output was overwritten share the verdict of the one that it is compared after."""
        verdict, reason, blame = item.verdict, item.reason, item.blame
        weighted = {node.step for node, _ in _case(item).weighted}
        found = self._explained.get(id(item))
        at = found.node.step if found is not None and verdict == DIFFERS else None
        for number in item.group:
            one = self.outcomes[number]
            if one is not item and one.verdict != NOT_RECORDED:
                continue
            # Without an explanation, of layers with weights these are to blame, else all.
            guilty = number == at if at is not None else number in weighted or not weighted
            one.difference = item.difference
            if verdict in (AGREES, NOT_CHECKABLE) or guilty:
                behind = f"compared after {item.run.path}, which works in place" if one is not item else ""
                own = "" if behind and verdict == AGREES else reason
                one.decide(verdict, ": ".join(filter(None, (behind, own))), blame)
            elif at is not None:
                one.difference = None
                one.decide(AGREES, f"agrees once {self.outcomes[at].run.path} is as Lua had it")
            else:
                others = ", ".join(self.outcomes[other].run.path for other in item.group if other != number)
                one.decide(NOT_CHECKABLE, f"compared together with {others} only, which does not agree")

    # The whole model

    def _gradients(self) -> None:
        """Use gradients where no output could be checked, and for options that show in gradients alone."""
        for item in self.outcomes:
            if item.verdict == NOT_RECORDED and item.backward == AGREES and item.gradient is not None:
                item.decide(AGREES, f"its gradient was checked; {item.reason or 'its output is not recorded'}")
                item.difference = item.gradient.off
        wrong = [at for at, item in enumerate(self.outcomes) if item.backward == DIFFERS]
        again = len({item.run.path for item in self.outcomes}) < len(self.outcomes)
        # Of modules that run several times, not all gradients are kept.
        if len(wrong) != 1 or again or any(item.verdict in (DIFFERS, STALE) for item in self.outcomes):
            return
        item = self.outcomes[wrong[0]]
        drawn = isinstance(item.run.obj.get("noise"), Tensor)  # which a later forward draws once more
        if item.verdict != AGREES or drawn or item.gradient is None or item.run.obj.get("train") is False:
            return
        # A layer behind it whose slope depends on all digits of its input was run backwards on the values of this pass.
        if any(other.backward == AGREES and _is_smooth(other) for other in self.outcomes[wrong[0] + 1 :]):
            item.difference = item.gradient.off
            item.decide(DIFFERS, "its gradient differs", FILE)

    def _share(self) -> None:
        """Merge the verdicts on a module at several places, which keeps the values of the last only."""
        known = {id(item.run.obj): item for item in self.outcomes if item.verdict in (AGREES, DIFFERS, STALE)}
        for item in self.outcomes:
            other = known.get(id(item.run.obj))
            if item.verdict == NOT_RECORDED and other is not None and other.run.path != item.run.path:
                item.decide(other.verdict, f"the same module as {other.run.path}, which ran later", other.blame)
                item.difference = other.difference

    def _layers(self) -> list[LayerProof]:
        found: dict[str, LayerProof] = {}
        for item in self.outcomes:
            if item.run.whole and item.run.name == "gModule":
                continue
            one = _proof_of(item)
            other = found.get(one.path)
            if other is not None:
                one, other = sorted((one, other), key=LayerProof.worst_first)
                if one.verdict == other.verdict:
                    one.runs, one.compared = one.runs + other.runs, one.compared + other.compared
            found[one.path] = one
        named = [path for path, one in found.items() if one.verdict == DIFFERS]
        for one in found.values():
            inside = [path for path in named if path.startswith(f"{one.path}.")]
            if one.container and one.verdict in (DIFFERS, STALE) and inside:
                one.verdict, one.reason, one.blame = DIFFERS, f"contains {', '.join(inside[:3])}", ""
        return list(found.values())


def _case(item: Outcome) -> Case:
    case = item.case or item.gradient
    assert case is not None
    return case


def _is_off(item: Outcome) -> bool:
    """Return whether something may explain an output: that it differs, or that the layer refused its input."""
    refused = item.verdict == NOT_CHECKABLE and not _case(item).node.found
    return item.verdict == DIFFERS or refused


def _is_sum(item: Outcome) -> bool:
    """Return whether a gradient is a sum of products of weights."""
    layer = item.gradient.node.layer if item.gradient is not None else None
    return layer is not None and layer.is_sum


def _is_smooth(item: Outcome) -> bool:
    """Return whether a layer's gradient depends on all digits of its input."""
    node = item.gradient.node if item.gradient is not None else None
    if node is None or node.layer is None or node.layer.is_sum:
        return False
    given, slope = node.given
    try:
        moved = node.by(node.layer, [mapped(given, lambda item: item * (1 + 1e-6)), slope])
    except NotRunError:
        return False
    pairs = [(one.reshape(two.shape), two) for one, two in zip(moved, node.found)]
    return any(not torch.allclose(one, two, rtol=1e-9, atol=0) for one, two in pairs)


def _is_beyond_weights(case: Case) -> bool:
    """Return whether no weights give the recorded values: the best ones leave more than rounding in the mean, so that
    any leave it in some value. Only for layers that are linear in their weights, and with more values than these.
    """
    layer = case.node.layer
    linear = layer is not None and (layer.is_sum or "BatchNorm" in layer.name) and len(case.layers) == 1
    if layer is None or not linear or case.off.reason or len(case.want) != 1:
        return False
    weights = layer.weights
    sizes = [item.numel() for item in weights.values()]
    if not sum(sizes) <= MOST or case.off.active < sum(sizes) + DETERMINED:
        return False

    def outputs(flat: torch.Tensor) -> torch.Tensor:
        parts = zip(weights.items(), torch.split(flat, sizes))
        return case.node.compute(
            {id(layer): layer.moved({name: part.reshape(item.shape) for (name, item), part in parts})}
        )[0]

    scale, zeros = case.node.scales[0].reshape(-1), torch.zeros(sum(sizes), dtype=torch.float64)
    start = outputs(zeros).reshape(-1)
    columns = [(outputs(row).reshape(-1) - start) / scale for row in torch.eye(len(zeros), dtype=torch.float64)]
    matrix, target = torch.stack(columns, 1), (case.want[0].reshape(-1) - start) / scale
    if not bool(matrix.isfinite().all() and target.isfinite().all()):
        return False
    left = target - matrix @ torch.linalg.lstsq(matrix, target[:, None], driver="gelsd").solution[:, 0]
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


def _proof_of(item: Outcome) -> LayerProof:
    counted = item.verdict in (AGREES, DIFFERS, STALE) and item.difference is not None
    off, reason = item.difference if counted else None, item.reason
    if item.verdict in (AGREES, STALE) and item.backward == DIFFERS and item.case is not None:
        reason = "; ".join(filter(None, (reason, "its gradients are those of another pass")))
    proof = LayerProof(item.run.path, item.run.obj.class_name, item.verdict, reason=reason, parameters=item.parameters)
    proof.container, proof.blame = item.run.whole, item.blame if item.verdict == DIFFERS else ""
    proof.backward = item.backward if item.backward != DIFFERS or item.verdict == DIFFERS else NOT_CHECKABLE
    if off is not None:
        proof.compare(off)
        proof.excess = max(off.excess, item.case.excess_of_weight if item.case is not None else 0.0)
    return proof
