"""Runs each layer of a model on its recorded input, and decides: it agrees, differs, or is not recorded.

If the input of a layer was overwritten, for example by an in-place layer, what computes it takes its place: the layers
between two recorded values are compared as one. May import graph and nn.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from itertools import product
from math import prod
from typing import Any

import torch
from attrs import evolve, field

from ...data import define
from ...errors import LimitError, T7BridgeError, UnsupportedError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...limits import Limits
from ...nn.registry import in_lua_of
from .given import contradiction, derived_input
from .layer import (
    Compute,
    LiveLayer,
    NotRunError,
    RefusedError,
    Values,
    doubles,
    gradients,
    mapped,
    outputs,
    to_doubles,
    to_torch,
)
from .proof import AGREES, DIFFERS, NOT_RECORDED, VERDICTS, LayerProof
from .rounding import (
    BACKWARD,
    EXACT,
    ON_GPU,
    UNIT,
    Deviation,
    has_precision,
    joined,
    measure,
    spread,
    unit_of,
)
from .runs import (
    Memory,
    Recorded,
    Run,
    first_of,
    is_whole,
    items,
    leaves,
    overlap,
    own_parameters,
    own_weights,
    replaced,
    runs,
    view_of,
    zeros_like,
)

DRAWS = 4
"""Runs with random errors that estimate the error of rounding; each counts with the mean of all values."""
_LARGEST = 64
"""Times that a computed output may be larger than the recorded one; beyond, it is not computed."""
_SMALLEST = 1 << 16
"""Elements that any layer may compute."""

NO_INPUT = "its input is not recorded"
NO_STATE = "continues from a state that is not recorded"
NO_RANDOM_NUMBERS = "draws at random, and the drawn values are not recorded"
NO_OUTPUT = "its output was overwritten"
NEVER_COMPUTED = "its recorded output was never computed: it is zero, or not a number"
BY_GRADIENT = f"its gradient was checked; {NO_INPUT}"
OTHER_MODES = {
    True: "Lua ran it in evaluation; the model was saved in training",
    False: "Lua ran it in training; the model was saved in evaluation",
}
"""By whether the file says that it trains."""


# What computes a recorded value


@define(eq=False)
class Ref:
    """A tensor that a node computes.

    Attributes:
        node: the node.
        index: of the tensor in what that computes.
        shape: of the tensor.
        recorded: its value in the file; `None` if it was overwritten.
    """

    node: Node
    index: int
    shape: tuple[int, ...]
    recorded: torch.Tensor | None = field(default=None, repr=False)

    def get(self, draw: int | None) -> torch.Tensor:
        """Return the value in the file, or else the computed one, or one computed with errors.

        Raises:
            RefusedError: its node computed something else.
        """
        if self.recorded is not None:
            return self.recorded
        values = self.node.values if draw is None else self.node.draws[draw]
        if self.index >= len(values) or values[self.index].numel() != prod(self.shape):
            raise RefusedError("another shape than recorded")
        return values[self.index].reshape(self.shape)


@define(eq=False)
class Node:
    """One run of one layer.

    Attributes:
        step: the number of the run.
        unit: unit roundoff of its numbers.
        layer: the layer; `None` where tensors are only concatenated.
        inputs: its input: recorded tensors, and a `Ref` for each that another node computes.
        by: what of the layer is computed.
        values: the computed tensors.
        draws: the same with errors of Lua's precision.
    """

    step: int
    unit: float
    layer: LiveLayer | None
    inputs: Values
    by: Compute = outputs
    values: list[torch.Tensor] = field(factory=list, repr=False)
    draws: list[list[torch.Tensor]] = field(factory=list, repr=False)

    def run(self) -> None:
        """Compute the tensors, and the same with errors.

        Raises:
            NotRunError: the layer cannot be run on its input.
        """
        self.values = self.compute()
        self.draws = [self.compute(draw) for draw in range(DRAWS)]
        self.draws.append(self._in_single_precision())

    def _in_single_precision(self) -> list[torch.Tensor]:
        """Return the tensors with the errors of single precision, scaled to those of Lua's."""
        try:
            single = self.compute(DRAWS)
        except NotRunError:
            return self.values  # the layer has no single precision
        if _sizes(single) != _sizes(self.values):
            return self.values
        scale = self.unit / UNIT["float32"]
        scaled = []
        for exact, inexact in zip(self.values, single):
            scaled.append(exact + (inexact.reshape(exact.shape) - exact) * scale)
        return scaled

    def compute(self, draw: int | None = None) -> list[torch.Tensor]:
        """Compute the tensors, or those of one draw: with random errors, and after these in single precision.

        Raises:
            NotRunError: the layer cannot be run on its input.
        """
        layer = self.layer
        value = replaced(self.inputs, Ref, lambda ref: ref.get(draw))
        if layer is not None and draw is not None:
            layer, value = layer.disturbed(value, draw) if draw < DRAWS else layer.in_single(value)
        try:
            return self.by(layer, value)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise RefusedError("the outputs of its modules do not fit along its dimension") from error

    def refs(self) -> Iterator[Ref]:
        """Yield the tensors of its input that other nodes compute."""
        return (item for item in items(self.inputs) if isinstance(item, Ref))

    def members(self) -> list[Node]:
        """Return this and all nodes that it is computed from, in order."""
        members: dict[int, Node] = {}
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            members[id(node)] = node
            for ref in node.refs():
                if ref.recorded is None and id(ref.node) not in members:
                    stack.append(ref.node)
        return sorted(members.values(), key=lambda node: node.step)

    @cached_property
    def is_random(self) -> bool:
        """Whether its layer returns something else when it runs again."""
        return self.by is outputs and not all(map(torch.equal, self.values, self.compute()))

    def compare(self, recorded: list[torch.Tensor], factor: float) -> Deviation:
        """Compare the computed tensors with recorded ones.

        Args:
            recorded: the tensors.
            factor: of the limit.
        """
        if self.unit <= UNIT["float64"]:
            factor *= EXACT
        return measure(recorded, self.values, spread(self.values, self.draws, self.unit), factor)


# Layers


@define(eq=False)
class Outcome:
    """What is known of one run.

    Attributes:
        run: the run.
        verdict: one of the three.
        reason: why.
        difference: the numbers of the comparison; `None` if nothing was compared.
        compared: number of compared values.
        runs: number of runs that it is about.
        has_weights: whether a layer of the comparison has weights, on which its result depends.
        fits: whether what is computed has the shape of what is recorded, which no update of weights changes.
        backward: whether the gradient with respect to its input agrees; `None` if that is not known.
        updated: whether an update of the weights explains that it differs.
    """

    run: Run
    verdict: str = NOT_RECORDED
    reason: str = ""
    difference: Deviation | None = None
    compared: int = 0
    runs: int = 1
    has_weights: bool = False
    fits: bool = True
    backward: bool | None = None
    updated: bool = False

    def decide(self, verdict: str, reason: str = "") -> None:
        """Write a verdict."""
        self.verdict = verdict
        self.reason = reason

    def refuse(self, reason: str) -> None:
        """Write that the layer contradicts its recorded values, whatever its weights are."""
        self.decide(DIFFERS, reason)
        self.fits = False
        self.difference = None

    def worst_first(self) -> tuple[int, bool, float]:
        """Return the key that sorts runs, the most important first."""
        excess = 0.0 if self.difference is None else self.difference.excess
        return VERDICTS.index(self.verdict), self.fits, -excess

    def proof(self) -> LayerProof:
        """Return what is said of the layer."""
        proof = LayerProof(self.run.path, self.run.obj.class_name, self.verdict, reason=self.reason)
        proof.parameters = own_parameters(self.run.obj)
        proof.has_weights = self.has_weights
        proof.updated = self.updated
        proof.runs = self.runs
        if self.difference is not None and self.verdict != NOT_RECORDED:
            proof.max_abs = self.difference.max_abs
            proof.max_rel = self.difference.max_rel
            proof.excess = self.difference.excess
            proof.compared = self.compared
        return proof


def judged(model: TorchObject, path: str, limits: Limits) -> list[LayerProof]:
    """Return the verdicts on the layers of a model that ran, in order.

    A file does not say whether a backward came last, in which in-place layers restored their inputs, nor whether the
    model was saved in the mode in which it ran. It is read in each way, and that in which most layers agree counts.

    Args:
        model: the model.
        path: its path in the file.
        limits: resource limits.
    """
    in_saved_mode = runs(model, path, limits)
    modes = [run.obj.get("train") for run in in_saved_mode if isinstance(run.obj.get("train"), bool)]
    ways_of_mode = (False, True) if len(modes) > 1 and len(set(modes)) == 1 else (False,)
    ways_of_place = (False, True) if any(run.may_be_undone for run in in_saved_mode) else (False,)
    readings: list[list[Outcome]] = []
    for in_other_mode, undone in product(ways_of_mode, ways_of_place):
        ran = runs(model, path, limits, in_other_mode) if in_other_mode else in_saved_mode
        layers = _by_path(Judge(ran, limits, undone, in_other_mode).judge())
        if in_other_mode:
            _note_mode(layers, readings[0])
        _note_update(layers)
        readings.append(layers)
        if not any(layer.verdict == DIFFERS for layer in layers):
            break
    return [layer.proof() for layer in max(readings, key=_agreeing)]


def _agreeing(layers: list[Outcome]) -> int:
    """Return the number of layers that agree."""
    return sum(layer.verdict == AGREES for layer in layers)


def _note_mode(layers: list[Outcome], before: list[Outcome]) -> None:
    """Say of the layers that agree in the other mode alone that Lua ran them in it."""
    differing = {layer.run.path for layer in before if layer.verdict == DIFFERS}
    for layer in layers:
        mode = layer.run.obj.get("train")
        if layer.verdict == AGREES and layer.run.path in differing and isinstance(mode, bool):
            layer.reason = OTHER_MODES[mode]


def _note_update(layers: list[Outcome]) -> None:
    """Note which layers differ because the weights were updated after the last forward pass, as training does.

    All layers with weights differ then, and a backward has run. An update changes no shape, nor layers without weights.
    """
    has_backward = any(layer.run.grad_input is not None for layer in layers)
    weighted = [layer for layer in layers if layer.has_weights and layer.verdict != NOT_RECORDED]
    differing = [layer for layer in weighted if layer.verdict == DIFFERS]
    agreeing = [layer for layer in weighted if layer.verdict == AGREES]
    flat = _flat_parameters(layers)
    if all(_storages(layer) & flat for layer in differing):
        # An optimizer has the flat parameters, and no weight that was replaced since they were made.
        agreeing = [layer for layer in agreeing if not _storages(layer) or _storages(layer) & flat]
    if has_backward and not agreeing:
        for layer in differing:
            layer.updated = layer.fits


def _storages(layer: Outcome) -> set[int]:
    """Return the storages, by their ids, that hold a layer's own weights."""
    return {id(tensor.storage) for tensor in own_weights(layer.run.obj).values()}


def _flat_parameters(layers: list[Outcome]) -> set[int]:
    """Return the storages, by their ids, that hold weights of several layers, as `getParameters` makes them."""
    offsets: dict[int, set[int]] = {}
    """Where the weights of each layer begin in a storage, by its id."""
    for layer in layers:
        first_offsets: dict[int, int] = {}
        for tensor in own_weights(layer.run.obj).values():
            storage = id(tensor.storage)
            first_offsets[storage] = min(tensor.offset, first_offsets.get(storage, tensor.offset))
        for storage, offset in first_offsets.items():
            offsets.setdefault(storage, set()).add(offset)
    return {storage for storage, starts in offsets.items() if len(starts) > 1}


def _by_path(outcomes: list[Outcome]) -> list[Outcome]:
    """Return one verdict for each layer, the most important of its runs."""
    layers: dict[str, Outcome] = {}
    for outcome in outcomes:
        path = outcome.run.path
        if path not in layers:
            layers[path] = outcome
            continue
        worse, better = sorted((outcome, layers[path]), key=Outcome.worst_first)
        if worse.verdict == better.verdict:
            worse.runs += better.runs
            worse.compared += better.compared
        layers[path] = worse
    return list(layers.values())


class Judge:
    """The verdicts on the runs of one model, read in one way.

    Args:
        runs: the runs of the layers, in order.
        limits: resource limits.
        undone: whether a backward came last, in which some in-place layers restored their inputs.
        in_other_mode: whether all layers ran in another mode than that in which they were saved.
    """

    def __init__(self, runs: list[Run], limits: Limits, undone: bool, in_other_mode: bool) -> None:
        self.runs = runs
        self.limits = limits
        self.in_other_mode = in_other_mode
        self.memory = Memory(runs, undone)
        # Layers of 2010: the first dimension of recorded values is contiguous.
        self.turned = any(map(_is_turned, runs))
        self._unfolded: dict[int, int] = {}
        """The last run that used each buffer of an unfolded input."""
        for number, run in enumerate(runs):
            for one in leaves(run.obj.get("finput")):
                self._unfolded[id(one.storage)] = number
        self._outcomes: list[Outcome] = []
        self._refs: dict[int, dict[Any, Ref]] = {}
        """What computes the tensors that are in memory, by their storages and views."""

    def judge(self) -> list[Outcome]:
        """Return what is known of each run, in order."""
        for number, run in enumerate(self.runs):
            outcome, node = Outcome(run), None
            outcome.has_weights = bool(own_weights(run.obj))
            self._outcomes.append(outcome)
            try:
                if run.output is not None or run.joined is not None:
                    node = self._node(number, run, outcome)
                    if node is not None:
                        self._check(number, run, outcome, node)
                    self._check_gradient(number, run, outcome, node)
            except RefusedError as error:
                outcome.refuse(str(error))
            except NotRunError as error:
                outcome.decide(NOT_RECORDED, str(error))
            except (UnsupportedError, LimitError) as error:
                outcome.decide(NOT_RECORDED, error.message)
            except T7BridgeError as error:
                outcome.refuse(error.message)
            except RecursionError:
                outcome.decide(NOT_RECORDED, "its modules are nested too deep for PyTorch")
            self._note(run, node if node is not None and node.values else None)
        self._decide_by_gradients()
        self._leave_out_containers()
        return self._outcomes

    # What computes an output

    def _node(self, number: int, run: Run, outcome: Outcome) -> Node | None:
        """Return what computes the output of a run; `None` if its input is unknown, or contradicts its fields."""
        unit, complete = self._unit(run), is_whole(run.output)
        if run.contradiction and complete:
            raise RefusedError(run.contradiction)
        inputs = self._read_input(run.input if run.joined is None else run.joined.parts, number)
        if inputs is None and complete:
            outcome.reason = run.reason or NO_INPUT
        if run.joined is not None:
            joining = partial(_concatenated, run.joined.dim)
            return Node(number, unit, None, inputs, joining) if inputs is not None else None
        if inputs is None and not complete:
            return None
        layer = LiveLayer.build(run.obj, run.path, unit, self.limits, self.in_other_mode)
        outcome.has_weights = layer.has_weights
        by: Compute = outputs
        if not self.turned:
            wrong = contradiction(layer) if complete else ""
            if inputs is None and not wrong:
                inputs, source, by = self._derived(layer, number, run)
                outcome.reason = source or outcome.reason
                wrong = source if inputs is None else ""
            if wrong:
                outcome.refuse(wrong)
                return None
        return Node(number, unit, layer, inputs, by) if inputs is not None else None

    def _derived(self, layer: LiveLayer, number: int, run: Run) -> tuple[Values, str, Compute]:
        """Return the input of a layer from its other fields, unless a later layer used the same buffer."""
        buffers = leaves(run.obj.get("finput"))
        if any(self._unfolded[id(buffer.storage)] != number for buffer in buffers):
            return None, "", outputs
        return derived_input(layer, run.output, self._is_intact(run, number))

    def _read_input(self, value: Recorded, number: int) -> Values:
        """Return the input of a run, with a `Ref` for each tensor that a layer computed; `None` if unknown."""
        if isinstance(value, list):
            parts = [self._read_input(item, number) for item in value]
            return None if any(part is None for part in parts) else parts
        if not isinstance(value, Tensor):
            return value
        ref = self._refs.get(id(value.storage), {}).get(view_of(value))
        if self.memory.overwritten(value, number - 1) or self.memory.is_restored(value, number - 1):
            return ref
        tensor = self._torch(value)
        if value.element.name != "int64":
            tensor = tensor.double()
        if tensor.is_floating_point() and not bool(tensor.isfinite().any()):
            return None
        return tensor if ref is None else evolve(ref, recorded=tensor)

    def _note(self, run: Run, node: Node | None) -> None:
        """Note what computes the memory that a run wrote."""
        if node is None and run.whole:
            return  # the modules inside computed it
        outputs_of_run = list(leaves(run.output))
        for region in run.writes:
            storage, _, _ = region
            refs = self._refs.get(storage, {})
            self._refs[storage] = {view: ref for view, ref in refs.items() if not overlap(view[0], region)}
        for tensor in outputs_of_run:
            self._refs.get(id(tensor.storage), {}).pop(view_of(tensor), None)
        if node is None or _sizes(node.values) != [tensor.numel for tensor in outputs_of_run]:
            return
        source = first_of(run.input)
        for index, tensor in enumerate(outputs_of_run):
            ref = Ref(node, index, tuple(tensor.shape))
            self._refs.setdefault(id(tensor.storage), {})[view_of(tensor)] = ref
            if run.in_place and isinstance(source, Tensor) and source.numel == tensor.numel:
                # The same memory, perhaps in another shape.
                self._refs.setdefault(id(source.storage), {})[view_of(source)] = evolve(ref)

    def _is_intact(self, run: Run, number: int) -> bool:
        """Return whether the output of a run is in the file as it was computed."""
        return not self.memory.overwritten(run.output, number) and not self.memory.is_restored(run.output, number)

    def _torch(self, value: Recorded) -> Values:
        """Return recorded values as tensors of torch, with the first dimension first."""

        def upright(item: torch.Tensor) -> torch.Tensor:
            return item.permute(*reversed(range(item.dim()))) if self.turned and item.dim() > 1 else item

        return mapped(to_torch(value), upright)

    def _unit(self, run: Run) -> float:
        """Return the unit roundoff of a run's numbers."""
        values = (run.output, run.input, [*own_weights(run.obj).values()])
        for value in values:
            # The output has the precision in which the layer computed; its weights may have fewer digits.
            if has_precision(value):
                return unit_of(value) or UNIT["float32"]
        return unit_of(values) or UNIT["float32"]

    # Comparing it

    def _check(self, number: int, run: Run, outcome: Outcome, node: Node) -> None:
        """Run a layer whose input is known, and compare what is recorded."""
        sizes = [item.numel for item in leaves(run.output)]
        if node.layer is not None:
            value = replaced(node.inputs, Ref, lambda ref: ref.get(None))
            if _is_by_running_statistics(node.layer, value):
                node.layer.module.eval()
            total = sum(map(prod, node.layer.shapes(value) or ()))
            if total > _LARGEST * max(sum(sizes), _SMALLEST):
                raise RefusedError(f"would return {total} elements, {sum(sizes)} are recorded")
        node.run()
        # Zeros times weights are zeros, whatever these are.
        if not any(_differs(node.values, draw) for draw in node.draws):
            outcome.has_weights = False
        if not is_whole(run.output):
            return
        if self._is_intact(run, number):
            self._compare(run, outcome, node)
        elif _sizes(node.values) != sizes:
            # In-place layers keep the shape.
            shapes = [list(item.shape) for item in node.values]
            outcome.refuse(f"shape {shapes}, recorded {[list(item.size) for item in leaves(run.output)]}")
        else:
            outcome.reason = NO_OUTPUT

    def _compare(self, run: Run, outcome: Outcome, node: Node) -> None:
        """Write the verdict on an output, and on the layers before whose outputs it has overwritten."""
        recorded = doubles(self._torch(run.output))
        difference = node.compare(recorded, _precision(run))
        members = [self._outcomes[member.step] for member in node.members()]
        outcome.difference = difference
        outcome.compared = sum(_sizes(recorded))
        outcome.has_weights = any(member.has_weights for member in members)
        outcome.fits = _sizes(recorded) == _sizes(node.values)
        others = [member.run.path for member in members if member is not outcome]
        together = f"compared as one with {', '.join(dict.fromkeys(others))}" if others else ""
        reason = "; ".join(filter(None, (outcome.reason, together)))
        passes = _other_passes(node, recorded)
        # A random layer returns something else each time: only what is close in every element was not drawn anew.
        if _is_small(difference, members) and (difference.close or not node.is_random):
            outcome.decide(AGREES, reason)
        elif _is_empty(recorded):
            outcome.decide(NOT_RECORDED, NEVER_COMPUTED)
        elif node.is_random:
            outcome.decide(NOT_RECORDED, NO_RANDOM_NUMBERS)
        elif _remembers(run.obj):
            outcome.decide(NOT_RECORDED, NO_STATE)
        elif passes:
            outcome.decide(NOT_RECORDED, passes)
        else:
            outcome.decide(DIFFERS, "; ".join(filter(None, (reason, difference.reason))))
        if outcome.verdict == NOT_RECORDED:
            return
        for member in members:
            if member.verdict == NOT_RECORDED:
                member.decide(outcome.verdict, f"compared as one with {run.path}, which works in place")
                member.difference = difference
                member.compared = outcome.compared
                member.has_weights = outcome.has_weights
                member.fits = outcome.fits

    # Gradients, where outputs say nothing

    def _check_gradient(self, number: int, run: Run, outcome: Outcome, node: Node | None) -> None:
        """Compare the recorded gradient with respect to the input with that of the recorded gradOutput.

        Only where it does not depend on the input, as for a sum of products: another may be of another pass.
        """
        if not is_whole(run.grad_output) or not is_whole(run.grad_input):
            return
        if run.whole or self.turned or not own_weights(run.obj) or not self.memory.holds_gradients(run):
            return
        if node is not None and (node.layer is None or node.is_random):
            return
        try:
            unit = self._unit(run)
            layer = node.layer if node is not None else None
            if layer is None:
                layer = LiveLayer.build(run.obj, run.path, unit, self.limits, self.in_other_mode)
            zeros, slope = to_doubles(zeros_like(run.grad_input)), to_doubles(run.grad_output)
            draw = torch.Generator().manual_seed(0)
            others = mapped(zeros, lambda item: torch.randn(item.shape, generator=draw, dtype=item.dtype))
            back = Node(number, unit, layer, [others, slope], by=gradients)
            back.run()
            if not all(map(torch.equal, back.values, gradients(layer, [zeros, slope]))):
                return
            recorded = doubles(to_torch(run.grad_input))
            if _is_empty(recorded):
                return
            difference = back.compare(recorded, BACKWARD * _precision(run))
        except (NotRunError, T7BridgeError):
            return
        outcome.backward = difference.excess <= 1
        if outcome.verdict == NOT_RECORDED:
            outcome.difference = difference
            outcome.compared = sum(_sizes(recorded))

    def _decide_by_gradients(self) -> None:
        """Decide by gradients on the layers whose outputs say nothing.

        The last backward may be of another pass than the last forward. That a gradient differs counts only if another
        one agrees, and if none differs of a layer whose output agrees.
        """
        checked = [outcome for outcome in self._outcomes if outcome.backward is not None]
        is_of_this_pass = any(outcome.backward for outcome in checked) and all(
            outcome.backward for outcome in checked if outcome.verdict == AGREES
        )
        for outcome in checked:
            if outcome.verdict != NOT_RECORDED:
                continue
            if outcome.backward:
                outcome.decide(AGREES, BY_GRADIENT)
            elif is_of_this_pass:
                outcome.decide(DIFFERS, BY_GRADIENT)

    def _leave_out_containers(self) -> None:
        """Say nothing of containers with a layer inside that differs itself."""
        differing = [outcome.run.path for outcome in self._outcomes if outcome.verdict == DIFFERS]
        for outcome in self._outcomes:
            if not outcome.run.whole:
                continue
            beginnings = (f"{outcome.run.path}.", f"{outcome.run.path}[")
            inside = [path for path in differing if path.startswith(beginnings)]
            if inside:
                outcome.decide(NOT_RECORDED, f"contains {inside[0]}, which differs")


def _is_small(difference: Deviation, members: list[Outcome]) -> bool:
    """Return whether rounding explains a difference, or the tolerance of an approximate function covers it."""
    if difference.excess <= 1:
        return True
    facts = [in_lua_of(outcome.run.obj).tolerance for outcome in members]
    tolerances = [tolerance for tolerance in facts if tolerance is not None]
    return bool(tolerances) and (difference.close or difference.max_abs <= max(tolerances))


def _is_empty(recorded: list[torch.Tensor]) -> bool:
    """Return whether recorded values are all zero, or not finite."""
    values = joined(recorded)
    return not bool((values.abs() > 1e-30).any() & values.isfinite().any())


def _other_passes(node: Node, recorded: list[torch.Tensor]) -> str:
    """Return that an input and an output are of passes of different numbers of examples; empty if they are not."""
    inputs = doubles(replaced(node.inputs, Ref, lambda ref: ref.get(None)))
    given = {len(item) for item in inputs if item.dim()}
    computed = {len(item) for item in node.values if item.dim()}
    in_file = {len(item) for item in recorded if item.dim()}
    if len(given) != 1 or len(in_file) != 1 or given != computed or in_file == computed:
        return ""
    if [item.shape[1:] for item in node.values] != [item.shape[1:] for item in recorded]:
        return ""
    return f"its input and its output are of passes of {computed.pop()} and {in_file.pop()} examples"


def _precision(run: Run) -> float:
    """Return the factor of the limit for the machine on which a layer ran."""
    on_gpu = run.obj.class_name.startswith("cudnn.") or any(item.device != "cpu" for item in leaves(run.output))
    weight = run.obj.get("weight")
    # Convolutions, which libraries compute by transforms.
    may_be_transformed = isinstance(weight, Tensor) and run.name.startswith(("nn.Spatial", "nn.Volumetric"))
    return ON_GPU if on_gpu and may_be_transformed else 1.0


def _sizes(tensors: list[torch.Tensor]) -> list[int]:
    """Return the numbers of elements."""
    return [item.numel() for item in tensors]


def _differs(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Return whether an element of tensors differs."""
    return any(not torch.equal(tensor, other) for tensor, other in zip(tensors, others))


def _concatenated(dim: int, layer: LiveLayer | None, value: Values) -> list[torch.Tensor]:
    return [torch.cat(value, dim)]


def _is_by_running_statistics(layer: LiveLayer, value: Values) -> bool:
    """Return whether newer releases normalized a batch of one with running statistics, in training too: the mean that
    they kept is of another pass. Source: nn 8726825 `BatchNormalization.lua`.
    """
    if not isinstance(layer.module, torch.nn.modules.batchnorm._BatchNorm):
        return False
    mean = layer.obj.get("save_mean")
    if not isinstance(mean, Tensor) or not isinstance(value, torch.Tensor) or len(value) != 1 or value.dim() < 2:
        return False
    own_mean = value.transpose(0, 1).flatten(1).mean(1)
    return len(own_mean) == mean.numel and not torch.allclose(own_mean, to_doubles(mean).reshape(-1), rtol=1e-3)


def _remembers(obj: TorchObject) -> bool:
    """Return whether a recurrent layer may have continued from an earlier sequence."""
    when = obj.get("_remember")
    if isinstance(when, bytes) and when != b"neither":
        return True
    return obj.get("remember_states") is True


def _is_turned(run: Run) -> bool:
    """Return whether a layer is of 2010: the first dimension of its kernels is contiguous."""
    weight = run.obj.get("weight")
    is_kernel = isinstance(weight, Tensor) and len(weight.size) > 2 and run.name.startswith("nn.Spatial")
    return bool(is_kernel and weight.stride[0] < weight.stride[-1])
