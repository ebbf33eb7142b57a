"""Runs each layer of a model on its recorded input, and compares the outputs.

If the input of a layer was overwritten, for example by an in-place layer, what computes it takes its place: the layers
between two recorded values are compared as one. May import graph, nn, torchmodules.
"""

from __future__ import annotations

from typing import Any

import torch

from ...errors import T7BridgeError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...limits import Limits
from ...torchmodules.judging import COARSE_HEADROOM, EXACT_HEADROOM, Case, Deviation, Node, Ref, same_in_rows, suspects
from ...torchmodules.running import (
    TINY,
    LiveLayer,
    NotRunError,
    Values,
    doubles,
    gradients,
    joined,
    mapped,
    nearest_outputs,
    outputs,
    rounding,
    spread,
    to_torch,
)
from . import reasons
from .derived import contradiction, derived_input
from .outcome import Outcome
from .proof import AGREES, DIFFERS, FILE, NOT_CHECKABLE
from .runs import Memory, Run, base_name, forget_written, own_parameters, view_of
from .values import UNIT, Recorded, is_computed, is_whole, leaves, unit_of, zeros_like

MAX_ELEMENTS = 1 << 28
"""Elements of an output: 2 GiB in double precision."""
BACK = 3.0
"""Factor of the limit for gradients: of a sum of products, and what it is computed from was itself rounded twice."""


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
        self.nodes: dict[int, Node] = {}
        self._live: dict[Any, Ref] = {}

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each run, in order."""
        found = []
        for number, run in enumerate(self.runs):
            outcome = Outcome(run, parameters=own_parameters(run.obj))
            found.append(outcome)
            try:
                self._judge(number, run, outcome)
            except (T7BridgeError, NotRunError) as error:
                outcome.verdict, outcome.reason = NOT_CHECKABLE, getattr(error, "message", "") or str(error)
                self._forget(run)
            except RecursionError:
                outcome.verdict, outcome.reason = NOT_CHECKABLE, reasons.TOO_DEEP
                self._forget(run)
        return found

    def _judge(self, number: int, run: Run, outcome: Outcome) -> None:
        if run.whole and base_name(run.obj.class_name) == "gModule":
            self._forget(run)  # it consists of its nodes
            return
        recorded_here = is_whole(run.output)
        intact = recorded_here and not self.memory.overwritten(run.output, number)
        node, wrong = None, contradiction(run.obj) if recorded_here and not self.turned else ""
        if not wrong and (run.output is not None or run.glue is not None):
            node, wrong = self._node(number, run, outcome, intact)
        if node is not None:
            self._run(number, run, outcome, node, intact)
            return
        self._forget(run)
        if wrong:
            outcome.verdict, outcome.reason, outcome.blame = DIFFERS, wrong, FILE
        elif recorded_here:
            outcome.reason = run.reason or reasons.NO_INPUT
            self._gradient(number, run, outcome, None)

    def _run(self, number: int, run: Run, outcome: Outcome, node: Node, intact: bool) -> None:
        """Run a layer whose input is known, and compare what is recorded."""
        outcome.group = tuple(one.step for one in node.nodes() if one.step >= 0)
        case = Case(node, [], self._headroom(run, self._unit(run)))
        if intact:
            outcome.case, case.want = case, [self._upright(item) for item in doubles(to_torch(run.output))]
        try:
            self._compute(node, run)
        except NotRunError as error:
            # A layer that refuses its input may be explained by another option; one that only joins others is refuted.
            self._forget(run)
            outcome.verdict, outcome.reason = NOT_CHECKABLE, str(error)
            if node.layer is None:
                outcome.verdict, outcome.blame, outcome.case = DIFFERS, FILE, None
            return
        self._remember(number, run, node)
        self.nodes[number] = node
        if intact:
            self._compare(case, outcome)
        elif is_whole(run.output):
            outcome.reason = reasons.OVERWRITTEN
            shapes = [list(item.shape) for item in node.found], [list(item.size) for item in leaves(run.output)]
            # In-place layers kept the shape, which no update changes.
            if [item.numel() for item in node.found] != [item.numel for item in leaves(run.output)]:
                outcome.verdict, outcome.reason, outcome.blame = DIFFERS, reasons.SHAPE.format(*shapes), FILE
        self._gradient(number, run, outcome, node if node.by is outputs else None)

    # What computes an output

    def _node(self, number: int, run: Run, outcome: Outcome, intact: bool) -> tuple[Node | None, str]:
        """Return what computes the output of a run, `None` if its input is unknown; and a contradiction, if any."""
        given = self._given(run.input if run.glue is None else list(run.glue), number)
        if given is None and run.glue is None and is_whole(run.output) and not self.turned:
            found = derived_input(run, intact, self.runs[number + 1 :])
            if found is None or found.contradiction:
                return None, found.contradiction if found is not None else ""
            outcome.reason = found.reason
            if found.value is None:
                layer = LiveLayer.build(run.obj, run.path, self._unit(run), self.limits)
                return Node(number, layer, [doubles(to_torch(run.output))[0]], by=nearest_outputs), ""
            given = self._given(found.value, number)
            if given is not None and found.error is not None:
                # The solution of equations has errors: it is computed by a node of its own.
                source = Node(-1, None, [given], found=[given], scales=[to_torch(found.error)])
                given = Ref(source, 0, tuple(given.shape))
        if given is None:
            return None, ""
        dim = run.obj.get("dimension")
        if run.glue is not None:
            fits = isinstance(dim, float) and 1 <= dim < 1 << 31
            return (Node(number, None, given, int(dim) - 1), "") if fits else (None, reasons.JOINED)
        layer = LiveLayer.build(run.obj, run.path, self._unit(run), self.limits)
        return Node(number, layer, given, in_place=run.obj.get("inplace") is True), ""

    def _given(self, value: Recorded, number: int) -> Values:
        """Return the input of a run, with a `Ref` for each tensor that was overwritten; `None` if unknown."""
        if isinstance(value, list):
            parts = [self._given(item, number) for item in value]
            return None if any(part is None for part in parts) else parts
        if not isinstance(value, Tensor):
            return value
        if self.memory.written_after(value, number - 1):
            return self._live.get(id(value)) or self._live.get(view_of(value))
        found = self._upright(to_torch(value))
        found = found if value.element.name == "int64" else found.double()
        return None if found.is_floating_point() and not bool(found.isfinite().any()) else found

    def _compute(self, node: Node, run: Run) -> None:
        """Run a layer, and estimate the rounding errors of its output."""
        value = node.input(lambda ref: ref.node.found[ref.index].reshape(ref.shape))
        if node.layer is None:
            whole = joined(value, node.dim)
            if whole is None:
                raise NotRunError(reasons.JOINED)
            node.found = [whole]
            node.scales = [0.5 * self._unit(run) * whole.abs() + TINY]
            return
        self._check_size(node.layer, value, run)
        node.found = node.by(node.layer, value)
        node.scales = rounding(node.layer, value, node.found, node.by)
        if len(node.nodes()) > 1:
            errors = _errors(node.given)
            node.scales = [a + b for a, b in zip(node.scales, spread(node.layer, value, errors, node.found))]

    def _check_size(self, layer: LiveLayer, value: Values, run: Run) -> None:
        sizes = [sum(tensor.numel for tensor in leaves(item)) for item in (run.output, run.input)]
        if max(sizes) > 1 << 16 or layer.terms() > 1 << 12:
            total = sum(torch.Size(shape).numel() for shape in layer.shapes(value) or ())
            if total > MAX_ELEMENTS or total > 64 * max(sizes[0], 1 << 16):
                raise NotRunError(reasons.TOO_LARGE.format(total))

    def _remember(self, number: int, run: Run, node: Node) -> None:
        """Keep what computes an output for its readers if it is missing from the file."""
        forget_written(self._live, run)
        targets = list(leaves(run.output))
        if len(targets) != len(node.found):
            return
        source = run.input[0] if isinstance(run.input, list) and run.input else run.input
        for index, (target, value) in enumerate(zip(targets, node.found)):
            self._live.pop(id(target), None)
            if self.memory.written_after(target, number) and value.numel() == target.numel:
                ref = Ref(node, index, tuple(target.shape))
                self._live[id(target)] = self._live[view_of(target)] = ref
                if node.in_place and isinstance(source, Tensor) and source.numel == target.numel:
                    self._live[id(source)] = ref

    def _forget(self, run: Run) -> None:
        for tensor in leaves(run.output):
            self._live.pop(id(tensor), None)
            self._live.pop(view_of(tensor), None)

    def _upright(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.permute(*reversed(range(tensor.dim()))) if self.turned and tensor.dim() > 1 else tensor

    def _unit(self, run: Run) -> float:
        """Return the unit roundoff of a run's numbers."""
        weights = [item for item in (run.obj.get("weight"), run.obj.get("bias")) if isinstance(item, Tensor)]
        units = [unit_of(run.output), unit_of(run.input), unit_of([item for item in weights if item.numel])]
        return max((unit for unit in units if unit is not None), default=UNIT["float32"])

    def _headroom(self, run: Run, unit: float) -> float:
        """Return the factor of the limit: larger for models of a GPU or in double precision."""
        on_gpu = run.obj.class_name.startswith("cudnn.") or any(item.device != "cpu" for item in leaves(run.output))
        return (EXACT_HEADROOM if unit <= UNIT["float64"] else 1.0) * (COARSE_HEADROOM if on_gpu else 1.0)

    # Comparing it

    def _compare(self, case: Case, outcome: Outcome) -> None:
        """Write the verdict on an output; `DIFFERS` where rounding does not explain the difference."""
        run, node = outcome.run, case.node
        if not any(bool(item.isfinite().any()) for item in case.want):
            outcome.reason, outcome.case = reasons.NOT_A_NUMBER, None
            return
        members = [self.runs[part] for part in outcome.group]
        off = outcome.difference = case.judge(_single(node))
        why = _approximate(members)
        case.suspect = next(iter(suspects(case, quick=True)), None)
        near = off.close or _is_shifted(why, off)
        good = (off.agrees or (bool(why) and near)) and case.stands_out <= 1
        doubtful = not near and off.max_rel > reasons.MOST_ROUNDING
        draws = not (good and off.close) and _draws(node)
        if good and not doubtful:
            outcome.verdict, outcome.reason = AGREES, _agreement(outcome, members, why)
        elif draws or (not good and node.layer is not None and _remembers(run.obj)):
            outcome.verdict, outcome.reason = NOT_CHECKABLE, reasons.DRAWS if draws else reasons.STATE
        elif good:
            outcome.verdict, outcome.reason = NOT_CHECKABLE, reasons.ROUNDING
        elif not is_computed(run.output):
            outcome.reason, outcome.case = reasons.NEVER_COMPUTED, None
        else:
            outcome.verdict, outcome.reason = DIFFERS, off.reason

    # Gradients

    def _gradient(self, number: int, run: Run, outcome: Outcome, node: Node | None) -> None:
        """Compare the recorded gradient with respect to the input with that of the recorded gradOutput."""
        both = run.grad_output, run.grad_input
        units = [unit for unit in map(unit_of, both) if unit is not None]
        alone = run.whole or run.glue is not None
        if len(units) < 2 or self.turned or alone or not all(map(is_whole, both)):
            return
        if not self.memory.holds_gradients(*both):
            return
        try:
            by, layer = self._gradient_node(number, run, node, max(units))
            if by is None:
                return
            want, found = doubles(to_torch(run.grad_input)), gradients(layer, by.given)
            if [item.numel() for item in found] != [item.numel() for item in want]:
                outcome.backward = NOT_CHECKABLE
                return
            by.found = [item.reshape(one.shape) for item, one in zip(found, want)]
            scales = rounding(layer, by.given, by.found, gradients)
            by.scales = [scale.reshape(one.shape) for scale, one in zip(scales, want)]
        except (NotRunError, T7BridgeError):
            outcome.backward = NOT_CHECKABLE
            return
        if all(bool(item.isfinite().all()) for item in want):
            outcome.gradient = Case(by, want, BACK * self._headroom(run, max(units)))
            off = outcome.gradient.judge(None)
            outcome.backward = AGREES if off.agrees or (off.close and not layer.is_sum) else DIFFERS

    def _gradient_node(self, number: int, run: Run, node: Node | None, unit: float) -> tuple[Node | None, LiveLayer]:
        """Return what computes a gradient; `None` if the input is unknown, which a sum of products does not need."""
        layer = node.layer if node is not None else None
        layer = layer or LiveLayer.build(run.obj, run.path, unit, self.limits)
        if node is not None:
            value = node.input(lambda ref: ref.node.found[ref.index].reshape(ref.shape))
        elif layer.is_sum and isinstance(run.grad_input, Tensor):
            value = to_torch(zeros_like(run.grad_input)).double()
        else:
            return None, layer
        both = [value, mapped(to_torch(run.grad_output), torch.Tensor.double)]
        return Node(number, layer, both, by=gradients), layer


def _agreement(outcome: Outcome, members: list[Run], why: str) -> str:
    """Return what is to be said of an output that agrees."""
    others = dict.fromkeys(member.path for member in members if member is not outcome.run)
    off = outcome.difference
    said = [outcome.reason, reasons.TOGETHER.format(", ".join(others)) if others else ""]
    if off is not None and not (off.agrees and off.close):
        said.append(why or reasons.CANCELLED)
    return "; ".join(filter(None, said))


def _is_shifted(why: str, off: Deviation) -> bool:
    """Return whether a sum of exponentials over each row was approximated, by which all its values are shifted."""
    return why == reasons.EXPONENTIAL and not off.reason and same_in_rows(off.errors, reasons.EXPONENTIAL_ERROR)


def _approximate(members: list[Run]) -> str:
    """Return why the outputs of some layers are not exact in Lua; empty if they are."""
    found = (reasons.APPROXIMATE.get(base_name(member.obj.class_name), "") for member in members)
    return next(filter(None, found), "")


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
        value = node.input(lambda ref: ref.node.found[ref.index].reshape(ref.shape))
        return doubles(node.layer.run_single(value))
    except NotRunError:
        return None


def _draws(node: Node) -> bool:
    """Return whether a layer returns something else each time."""
    try:
        value = node.input(lambda ref: ref.node.found[ref.index].reshape(ref.shape))
        again = outputs(node.layer, value) if node.layer is not None else node.found
    except NotRunError:
        return False
    return any(one.shape != two.shape or not bool((one == two).all()) for one, two in zip(node.found, again))


def _remembers(obj: TorchObject) -> bool:
    """Return whether a recurrent layer may have continued from an earlier sequence."""
    kept = obj.get("_remember")
    return (isinstance(kept, bytes) and kept != b"neither") or obj.get("remember_states") is True


def _is_turned(run: Run) -> bool:
    """Return whether a layer is of 2010: the first dimension of its kernels is contiguous."""
    weight = run.obj.get("weight")
    return (
        isinstance(weight, Tensor)
        and len(weight.size) > 2
        and base_name(run.obj.class_name).startswith("Spatial")
        and weight.stride[0] < weight.stride[-1]
    )
