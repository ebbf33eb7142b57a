"""Runs each layer of a model on its recorded input, and compares what it returns with what is recorded.

If the input of a layer was overwritten, for example by an in-place layer, what computes it takes its place: the layers
between two recorded values are compared as one. May import graph and nn.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ...data import define
from ...errors import T7BridgeError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...limits import Limits
from .derived import contradiction, derived_input
from .layer import (
    TINY,
    LiveLayer,
    NotRunError,
    Values,
    doubles,
    gradients,
    mapped,
    outputs,
    rounding,
    spread,
    to_torch,
)
from .proof import AGREES, DIFFERS, FILE, NOT_CHECKABLE, NOT_RECORDED, STALE, StretchProof
from .recorded import UNIT, Recorded, is_computed, is_whole, leaves, overlap, unit_of, view_of, zeros_like
from .residual import HEADROOM, Case, Deviation, Node, Ref, measure, read, refs, suspects
from .runs import Memory, Run, own_parameters

MAX_ELEMENTS = 1 << 28
"""Elements of an output: 2 GiB in double precision."""
EXACT = 20.0
"""Factor of the limit in double precision: the reference itself is no more exact than what it judges, and sums of 400
terms in another order are apart by the root of their number."""
ON_GPU = 10.0
"""Factor of the limit on a GPU, whose libraries transform convolutions by matrices with entries up to 10."""
BACK = 3.0
"""Factor of the limit for gradients: three values of the sum were rounded, gradOutput, input and result."""
CHAINED = 20.0
"""Factor by which Lua's rounding errors may exceed those of single precision in PyTorch at the end of a stretch: those
of one layer by `GROWTH`, and the layers behind it amplify them."""
MOST_ROUNDING = 1e-2
"""Share of the largest output from which on agreement within rounding says nothing."""
_NO_DIMENSION = 1 << 30
MOST_STRETCHES = 20
"""Stretches that are listed."""

NO_INPUT = "its input is not recorded"
OVERWRITTEN = "its output was overwritten"
STATE = "continues from a state that is not recorded"
DRAWS = "draws at random, and the drawn values are not recorded"
ROUNDING = "rounding alone may change its output by more than 1 %"

_COEFFICIENTS = 1e-4, "Lua keeps coefficients in the precision of its first run"
_EXPONENTIAL = 3e-4, "Lua computes exponentials by a fast approximation"
_APPROXIMATE = {
    **dict.fromkeys(("LogSoftMax", "SpatialLogSoftMax", "TreeNLLCriterion"), _EXPONENTIAL),
    "HardShrink": (0.0, "values at the threshold may be on either side"),
    "LogSigmoid": (0.0, "Lua adds 1 to an exponential before it takes the logarithm"),
    "SpatialUpSamplingBilinear": (0.0, "Lua computes its coefficients in single precision"),
    "LayerNormalization": _COEFFICIENTS,
    "SpatialSubtractiveNormalization": _COEFFICIENTS,
    "SpatialDivisiveNormalization": _COEFFICIENTS,
    "SpatialContrastiveNormalization": _COEFFICIENTS,
}
"""Classes whose outputs need only agree within 1e-4 and 1e-5, or absolutely within this, and why.

Source: TH 814ea4a `THLogAdd.c`, `THExpMinusApprox` of the LogSoftMax before 2017, nn 8726825.
"""


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
        gradient: the recorded gradient with respect to its input and what computes it.
        backward: the verdict on that.
    """

    run: Run
    verdict: str = NOT_RECORDED
    reason: str = ""
    blame: str = ""
    case: Case | None = None
    group: tuple[int, ...] = ()
    difference: Deviation | None = None
    gradient: Case | None = None
    backward: str = NOT_RECORDED

    @property
    def parameters(self) -> int:
        """Number of weights of the layer itself."""
        return own_parameters(self.run.obj)

    def decide(self, verdict: str, reason: str = "", blame: str = "") -> None:
        """Write a verdict."""
        self.verdict, self.reason, self.blame = verdict, reason, blame


class Judge:
    """Runs layers and compares them.

    Args:
        runs: the runs of the layers, in order.
        lost: ids of storages of outputs that are missing from the file.
        limits: resource limits.
    """

    def __init__(self, runs: list[Run], lost: set[int], limits: Limits) -> None:
        self.runs, self.limits = runs, limits
        self.memory = Memory(runs, lost)
        # Layers of 2010: the first dimension of recorded values is contiguous.
        self.turned = any(map(_is_turned, runs))
        self.outcomes: list[Outcome] = []
        self._nodes: list[Node] = []
        self._made: dict[Any, Ref] = {}
        """What computes the tensors that are in memory, by their views."""

    def judge(self) -> list[Outcome]:
        """Return the outcome of each run, in order."""
        for number, run in enumerate(self.runs):
            outcome, made = Outcome(run), None
            self.outcomes.append(outcome)
            try:
                made = self._judge(number, run, outcome)
            except (T7BridgeError, NotRunError) as error:
                outcome.decide(NOT_CHECKABLE, getattr(error, "message", "") or str(error))
            except RecursionError:
                outcome.decide(NOT_CHECKABLE, "its modules are nested too deep for PyTorch")
            self._note(run, made)
        return self.outcomes

    def _judge(self, number: int, run: Run, outcome: Outcome) -> Node | None:
        """Run a layer and compare what is recorded; return what computes its output, if that is known."""
        if run.whole and run.name == "gModule":
            return None  # it consists of its nodes
        complete, node = is_whole(run.output), None
        wrong = contradiction(run.obj) if complete and not self.turned else ""
        if wrong:
            outcome.decide(DIFFERS, wrong, FILE)
        elif run.output is not None or run.glue is not None:
            node = self._node(number, run, outcome)
        if node is not None:
            return self._check(number, run, outcome, node)
        if complete and outcome.verdict != DIFFERS:
            outcome.reason = run.reason or NO_INPUT
            self._gradient(number, run, outcome, None)
        return None

    def _check(self, number: int, run: Run, outcome: Outcome, node: Node) -> Node | None:
        """Run a layer whose input is known, and compare what is recorded."""
        outcome.group = tuple(one.step for one in node.nodes() if one.step >= 0)
        targets, intact = list(leaves(run.output)), self._is_intact(run, number)
        if intact:
            outcome.case = Case(node, doubles(self._torch(run.output)), self._headroom(run))
        try:
            self._compute(node, run)
        except NotRunError as error:
            if node.layer is not None:
                raise  # which another option may explain
            outcome.case = None
            outcome.decide(DIFFERS, str(error), FILE)
            return None
        complete = is_whole(run.output)
        if outcome.case is not None and not any(bool(item.isfinite().any()) for item in outcome.case.want):
            outcome.reason, outcome.case = "its recorded output is not a number", None
        elif outcome.case is not None:
            self._compare(outcome.case, outcome)
        elif complete and [item.numel() for item in node.found] != [item.numel for item in targets]:
            # In-place layers kept the shape, which no update changes.
            shapes = [list(item.shape) for item in node.found], [list(item.size) for item in targets]
            outcome.decide(DIFFERS, f"shape {shapes[0]}, recorded {shapes[1]}", FILE)
        elif complete:
            outcome.reason = OVERWRITTEN
        self._gradient(number, run, outcome, node if node.by is outputs else None)
        return node

    def _is_intact(self, run: Run, number: int) -> bool:
        """Return whether the output of a run is in the file as it was."""
        return is_whole(run.output) and not self.memory.overwritten(run.output, number)

    # What computes an output

    def _node(self, number: int, run: Run, outcome: Outcome) -> Node | None:
        """Return what computes the output of a run; `None` if its input is unknown, or contradicts its fields."""
        value = run.input if run.glue is None else run.glue
        given, made = self._given(value, number), self._given(value, -1)
        if run.glue is not None:
            dim = run.obj.get("dimension")
            place = int(dim) - 1 if isinstance(dim, float) and 1 <= dim <= _NO_DIMENSION else _NO_DIMENSION
            return Node(number, None, given, made, place) if given is not None else None
        derived = None
        if given is None and is_whole(run.output) and not self.turned:
            derived = derived_input(run, self._is_intact(run, number), self.runs[number + 1 :])
            if derived is not None and derived.given is None:
                outcome.decide(DIFFERS, derived.reason, FILE)
            elif derived is not None:
                outcome.reason, given = derived.reason, derived.given
                if derived.error is not None:
                    # The solution of equations has errors: it is computed by a node of its own.
                    source = Node(-1, None, [given], found=[given], scales=[derived.error])
                    given = Ref(source, 0, tuple(given.shape))
        if given is None:
            return None
        layer = LiveLayer.build(run.obj, run.path, self._unit(run), self.limits)
        node = Node(number, layer, given, made, in_place=run.in_place)
        if derived is not None:
            node.made, node.by = given, derived.by
        return node

    def _given(self, value: Recorded, number: int) -> Values:
        """Return the input of a run, with a `Ref` for each tensor that was overwritten since; `None` if unknown.

        With number -1, for each tensor that was computed at all.
        """
        if isinstance(value, list):
            parts = [self._given(item, number) for item in value]
            return None if any(part is None for part in parts) else parts
        if not isinstance(value, Tensor):
            return value
        made = self._made.get(view_of(value))
        if number < 0 and made is not None:
            return made
        if number >= 0 and self.memory.overwritten(value, number - 1):
            return made
        found = self._torch(value)
        found = found if value.element.name == "int64" else found.double()
        return None if found.is_floating_point() and not bool(found.isfinite().any()) else found

    def _compute(self, node: Node, run: Run) -> None:
        """Run a layer, and estimate the rounding errors of its output."""
        value = node.input
        if node.layer is None:
            node.found = node.apply(None, value)
            node.scales = [0.5 * self._unit(run) * item.abs() + TINY for item in node.found]
            return
        self._check_size(node.layer, value, run)
        node.found = node.by(node.layer, value)
        node.scales = rounding(node.layer, value, node.found, node.by)
        if len(node.nodes()) > 1:
            more = spread(node.layer, value, _errors(node.given), node.found)
            node.scales = [one + other for one, other in zip(node.scales, more)]

    def _check_size(self, layer: LiveLayer, value: Values, run: Run) -> None:
        sizes = [sum(tensor.numel for tensor in leaves(item)) for item in (run.output, run.input)]
        if max(sizes) > 1 << 16 or layer.terms() > 1 << 12:
            total = sum(torch.Size(shape).numel() for shape in layer.shapes(value) or ())
            if total > MAX_ELEMENTS or total > 64 * max(sizes[0], 1 << 16):
                raise NotRunError(f"would return {total} elements")

    def _note(self, run: Run, node: Node | None) -> None:
        """Note what computes the memory that a run wrote."""
        if node is None and run.whole:
            return  # the modules inside computed it
        targets = list(leaves(run.output))
        views = [view_of(target) for target in targets]
        for here in run.writes:
            self._made = {key: ref for key, ref in self._made.items() if not overlap(key[0], here)}
        for view in views:
            self._made.pop(view, None)
        if node is None or len(targets) != len(node.found):
            return
        self._nodes.append(node)
        source = run.input[0] if isinstance(run.input, list) and run.input else run.input
        for index, (target, value) in enumerate(zip(targets, node.found)):
            if value.numel() == target.numel:
                self._made[views[index]] = ref = Ref(node, index, tuple(target.shape))
                if node.in_place and isinstance(source, Tensor) and source.numel == target.numel:
                    self._made[view_of(source)] = ref

    def _torch(self, value: Recorded) -> Values:
        def upright(item: torch.Tensor) -> torch.Tensor:
            return item.permute(*reversed(range(item.dim()))) if self.turned and item.dim() > 1 else item

        return mapped(to_torch(value), upright)

    def _unit(self, run: Run) -> float:
        """Return the unit roundoff of a run's numbers."""
        weights = [item for item in (run.obj.get("weight"), run.obj.get("bias")) if isinstance(item, Tensor)]
        units = [unit_of(run.output), unit_of(run.input), unit_of([item for item in weights if item.numel])]
        return max((unit for unit in units if unit is not None), default=UNIT["float32"])

    def _headroom(self, run: Run) -> float:
        on_gpu = run.obj.class_name.startswith("cudnn.") or any(item.device != "cpu" for item in leaves(run.output))
        return (EXACT if self._unit(run) <= UNIT["float64"] else 1.0) * (ON_GPU if on_gpu else 1.0)

    # Comparing it

    def _compare(self, case: Case, outcome: Outcome) -> None:
        """Write the verdict on an output; `DIFFERS` where rounding does not explain the difference."""
        run, node = outcome.run, case.node
        members = [self.runs[part] for part in outcome.group]
        off = outcome.difference = case.judge(_single(node))
        most, why = next((_APPROXIMATE[one.name] for one in members if one.name in _APPROXIMATE), (0.0, ""))
        case.excess_of_weight = max((one.excess for one in suspects(case, quick=True)), default=0.0)
        near = off.close or (not off.reason and off.max_abs <= most)
        good = (off.agrees or (bool(why) and near)) and case.excess_of_weight <= 1
        if not (good and off.close) and _draws(node):
            outcome.decide(NOT_CHECKABLE, DRAWS)
        elif good and not near and off.max_rel > MOST_ROUNDING:
            outcome.decide(NOT_CHECKABLE, ROUNDING)
        elif good:
            outcome.decide(AGREES, self._notes(outcome, members, why))
        elif node.layer is not None and _remembers(run.obj):
            outcome.decide(NOT_CHECKABLE, STATE)
        elif is_computed(run.output):
            outcome.decide(DIFFERS, off.reason)
        else:
            outcome.reason = "its recorded output was never computed: it is zero, or next to zero"
            outcome.case = None

    def _notes(self, outcome: Outcome, members: list[Run], why: str) -> str:
        """Return what is to be said of an output that agrees."""
        others = ", ".join(dict.fromkeys(member.path for member in members if member is not outcome.run))
        together = f"checked together with {others}" if others else ""
        exact = outcome.difference is not None and outcome.difference.agrees and outcome.difference.close
        note = "" if exact else why or "large terms cancel: the difference is within what rounding explains"
        return "; ".join(filter(None, (outcome.reason, together, note)))

    # Gradients

    def _gradient(self, number: int, run: Run, outcome: Outcome, node: Node | None) -> None:
        """Compare the recorded gradient with respect to the input with that of the recorded gradOutput."""
        both = run.grad_output, run.grad_input
        units = [unit for unit in map(unit_of, both) if unit is not None]
        known = len(units) == 2 and all(map(is_whole, both)) and not run.whole and not self.turned
        if not known or not self.memory.holds_gradients(*both):
            return
        try:
            layer = node.layer if node is not None else None
            layer = layer or LiveLayer.build(run.obj, run.path, max(units), self.limits)
            if node is None and not layer.is_sum:
                return
            # The gradient of a sum of products does not depend on the input.
            value = to_torch(zeros_like(run.grad_input)) if node is None else node.input
            back = Node(number, layer, mapped([value, to_torch(run.grad_output)], torch.Tensor.double), by=gradients)
            case = outcome.gradient = _case_of_gradient(back, doubles(to_torch(run.grad_input)))
        except (NotRunError, T7BridgeError):
            outcome.backward = NOT_CHECKABLE
            return
        if case is not None:
            case.headroom = BACK * self._headroom(run)
            off = case.judge(None)
            outcome.backward = AGREES if off.agrees or (off.close and not layer.is_sum) else DIFFERS

    # Stretches

    def stretches(self) -> list[StretchProof]:
        """Return the verdicts on consecutive layers, run from a recorded input to the last recorded output.

        Single layers always start from Lua's numbers; a stretch shows how far differences grow until the output.
        """
        taken = {id(ref.node) for node in self._nodes for ref in refs(node.made)}
        memos: list[dict[int, Any]] = [{}, {}]
        counts: dict[int, tuple[int, int]] = {}
        found = []
        for node in [] if self.turned else self._nodes:
            inside = [counts[id(ref.node)] for ref in refs(node.made) if id(ref.node) in counts]
            try:
                for memo, run in zip(memos, (LiveLayer.run, LiveLayer.run_single)):
                    value = read(node.made, partial(_chained, memo))
                    done = doubles(run(node.layer, value)) if node.layer is not None else node.apply(None, value)
                    memo[id(node)] = done
            except (NotRunError, T7BridgeError):
                for memo in memos:
                    memo.pop(id(node), None)
                continue
            start, count = (min(one[0] for one in inside), max(one[1] for one in inside)) if inside else (node.step, 0)
            counts[id(node)] = start, count + 1
            case = self.outcomes[node.step].case
            if count and case is not None and id(node) not in taken and len(case.want) == 1:
                exact, single = (memo[id(node)][0] for memo in memos)
                found.append(self._stretch(start, node.step, count + 1, case.want, exact, single))
        return sorted(found, key=lambda one: -one.layers)[:MOST_STRETCHES]

    def _stretch(self, start: int, end: int, count: int, want: Any, exact: Any, single: Any) -> StretchProof:
        size, apart = float(want[0].abs().max()), float((single - exact).abs().max())
        scale = torch.full_like(exact, max(apart, UNIT["float64"] * size, TINY) * CHAINED)
        off = measure(want, [exact], [scale], None, 1 / (HEADROOM * 0.3))
        inside = {outcome.verdict for outcome in self.outcomes[start : end + 1]}
        bad = next((one for one in (DIFFERS, STALE) if one in inside), NOT_CHECKABLE)
        verdict = AGREES if off.excess <= 1 or off.close else bad
        paths = self.runs[start].path, self.runs[end].path
        reason = ROUNDING if verdict == NOT_CHECKABLE else ""
        return StretchProof(*paths, count, verdict, off.max_abs, off.max_rel, off.cosine, reason)


def _case_of_gradient(back: Node, want: list[torch.Tensor]) -> Case | None:
    """Return a recorded gradient and what computes it; `None` if it is not a number.

    Raises:
        NotRunError: it is not computed, or has another shape.
    """
    assert back.layer is not None
    found = gradients(back.layer, back.given)
    if [item.numel() for item in found] != [item.numel() for item in want]:
        raise NotRunError("another shape")
    scales = rounding(back.layer, back.given, found, gradients)
    back.found, back.scales = ([item.reshape(one.shape) for item, one in zip(row, want)] for row in (found, scales))
    return Case(back, want, 1.0) if all(bool(item.isfinite().all()) for item in want) else None


def _chained(memo: dict[int, Any], ref: Ref) -> torch.Tensor:
    return ref.of(memo.get(id(ref.node), ref.node.found))


def _errors(given: Values) -> Values:
    """Return the expected errors of an input: none of what is recorded."""
    if isinstance(given, list):
        return [_errors(item) for item in given]
    if isinstance(given, Ref):
        return given.node.scales[given.index].reshape(given.shape)
    return torch.zeros_like(given, dtype=torch.float64) if isinstance(given, torch.Tensor) else 0.0


def _single(node: Node) -> list[torch.Tensor] | None:
    """Return the output of the last layer in Lua's precision."""
    if node.layer is None or node.layer.unit <= UNIT["float64"]:
        return None
    try:
        return doubles(node.layer.run_single(node.input))
    except NotRunError:
        return None


def _draws(node: Node) -> bool:
    """Return whether a layer returns something else each time."""
    if node.by is not outputs:
        return False
    again = node.apply(node.layer, node.input)
    return any(one.shape != two.shape or not torch.equal(one, two) for one, two in zip(node.found, again))


def _remembers(obj: TorchObject) -> bool:
    """Return whether a recurrent layer may have continued from an earlier sequence."""
    kept = obj.get("_remember")
    return (isinstance(kept, bytes) and kept != b"neither") or obj.get("remember_states") is True


def _is_turned(run: Run) -> bool:
    """Return whether a layer is of 2010: the first dimension of its kernels is contiguous."""
    weight = run.obj.get("weight")
    is_kernel = isinstance(weight, Tensor) and len(weight.size) > 2 and run.name.startswith("Spatial")
    return bool(is_kernel and weight.stride[0] < weight.stride[-1])
