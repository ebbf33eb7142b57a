"""Runs each layer of a model on its recorded input, and decides: it agrees, differs, or is not recorded.

If the input of a layer was overwritten, for example by an in-place layer, what computes it takes its place: the layers
between two recorded values are compared as one. May import graph and nn.
"""

from __future__ import annotations

from functools import partial
from math import prod

import torch

from ...data import define
from ...errors import LimitError, T7BridgeError, UnsupportedError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...limits import Limits
from ...nn.registry import in_lua_of
from .given import Derived, check_kernel, derived_input
from .layer import (
    LiveLayer,
    NotRunError,
    RefusedError,
    Values,
    doubles,
    gradients,
    map_tensors,
    to_doubles,
    to_torch,
)
from .nodes import Node, NodeOutput, element_counts
from .proof import AGREES, DIFFERS, NOT_RECORDED, VERDICTS, LayerProof
from .rounding import BACKWARD, ON_GPU, UNIT, Deviation, has_precision, joined, unit_of
from .runs import (
    Memory,
    Recorded,
    Run,
    View,
    first_of,
    is_complete,
    overlap,
    own_parameters,
    own_weights,
    runs,
    tensors_in,
    view_of,
    zeros_like,
)

_MOST_TIMES_LARGER = 64
"""Times that a computed output may be larger than the recorded one; beyond, it is not computed."""
_ALWAYS_COMPUTED = 1 << 16
"""Elements that any layer may compute."""
_LARGEST_ZERO = 1e-30
"""Numbers up to this absolute value count as zeros in memory that may never have been written."""

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


@define(eq=False)
class Outcome:
    """What is known of one run of a layer: the verdict on it, and the numbers of the comparison.

    Attributes:
        run: the run.
        verdict: one of `VERDICTS`; "not recorded" until it is decided.
        reason: why; empty where the verdict needs no words. Before the verdict, what is known of its input.
        difference: the numbers of the comparison; `None` if nothing was compared.
        compared: number of compared values; 0 if nothing was compared.
        runs: number of runs that it is about: 1, until the runs of one layer are counted together.
        depends_on_weights: whether the compared result depends on weights, those of any layer compared along. Where
            weights have no effect, as on an input of zeros, it is False.
        has_recorded_shape: whether what is computed has as many elements as what is recorded: no update of weights
            changes that.
        gradient_agrees: whether the gradient with respect to its input agrees; `None` if that is not known.
        updated: whether an update of the weights explains that it differs.
    """

    run: Run
    verdict: str = NOT_RECORDED
    reason: str = ""
    difference: Deviation | None = None
    compared: int = 0
    runs: int = 1
    depends_on_weights: bool = False
    has_recorded_shape: bool = True
    gradient_agrees: bool | None = None
    updated: bool = False

    def decide(self, verdict: str, reason: str = "") -> None:
        """Set the verdict, and the reason for it."""
        self.verdict = verdict
        self.reason = reason

    def refuse(self, reason: str) -> None:
        """Set the verdict that the layer contradicts its recorded values, whatever its weights are."""
        self.decide(DIFFERS, reason)
        self.has_recorded_shape = False
        self.difference = None

    def set_difference(self, difference: Deviation, recorded: list[torch.Tensor]) -> None:
        """Set the numbers of a comparison with recorded tensors."""
        self.difference = difference
        self.compared = sum(element_counts(recorded))

    def decide_as_part_of(self, outcome: Outcome) -> None:
        """Set the verdict and the numbers of another run, in whose comparison this one was compared, too."""
        self.decide(outcome.verdict, f"compared as one with {outcome.run.path}")
        self.difference = outcome.difference
        self.compared = outcome.compared
        self.depends_on_weights = outcome.depends_on_weights
        self.has_recorded_shape = outcome.has_recorded_shape

    def worst_first(self) -> tuple[int, bool, float]:
        """Return the key that sorts runs, the most important first: by verdict, then other shapes, then difference."""
        excess = 0.0 if self.difference is None else self.difference.excess
        return VERDICTS.index(self.verdict), self.has_recorded_shape, -excess

    def proof(self) -> LayerProof:
        """Return the verdict as it is reported; a layer that is not recorded has no numbers."""
        proof = LayerProof(self.run.path, self.run.obj.class_name, self.verdict, reason=self.reason)
        proof.parameters = own_parameters(self.run.obj)
        proof.has_weights = self.depends_on_weights
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

    A file does not say whether the model was saved in the mode in which it ran. If a layer differs, and all layers were
    saved in one mode, they may have run in the other: that in which more layers agree counts.

    Args:
        model: the model.
        path: its path in the file.
        limits: resource limits.
    """
    runs_in_saved_mode = runs(model, path, limits)
    layers = _judged_in_one_mode(runs_in_saved_mode, limits, in_other_mode=False)
    modes = [run.obj.get("train") for run in runs_in_saved_mode if isinstance(run.obj.get("train"), bool)]
    # A single layer with a mode does not show whether the whole model ran in the other, or its own mode is wrong.
    all_in_one_mode = len(modes) > 1 and len(set(modes)) == 1
    if _count(layers, DIFFERS) and all_in_one_mode:
        runs_in_other_mode = runs(model, path, limits, in_other_mode=True)
        others = _judged_in_one_mode(runs_in_other_mode, limits, in_other_mode=True)
        if _count(others, AGREES) > _count(layers, AGREES):
            _note_mode(others, before=layers)
            layers = others
    _note_update(layers)
    return [layer.proof() for layer in layers]


def _judged_in_one_mode(runs_of_layers: list[Run], limits: Limits, in_other_mode: bool) -> list[Outcome]:
    """Return what is known of each layer, if all ran in the mode in which they were saved, or all in the other."""
    return _by_path(Judge(runs_of_layers, limits, in_other_mode).judge())


def _count(layers: list[Outcome], verdict: str) -> int:
    """Return the number of layers with a verdict."""
    return sum(layer.verdict == verdict for layer in layers)


def _note_mode(layers: list[Outcome], before: list[Outcome]) -> None:
    """Note that Lua ran in the other mode those layers that agree only in that mode."""
    differing = {layer.run.path for layer in before if layer.verdict == DIFFERS}
    for layer in layers:
        mode = layer.run.obj.get("train")
        if layer.verdict == AGREES and layer.run.path in differing and isinstance(mode, bool):
            layer.reason = OTHER_MODES[mode]


def _note_update(layers: list[Outcome]) -> None:
    """Note which layers differ because the weights were updated after the last forward pass, as training does.

    All layers with weights differ then, and a backward has run. An update changes no shape, nor layers without weights.

    Args:
        layers: the verdict on each layer; `updated` is set.
    """
    if all(layer.run.grad_input is None for layer in layers):
        return  # no backward has run
    weighted = [layer for layer in layers if layer.depends_on_weights]
    differing = [layer for layer in weighted if layer.verdict == DIFFERS]
    agreeing = [layer for layer in weighted if layer.verdict == AGREES]
    flat_storages = _flat_storages(layers)
    if all(_storages(layer) & flat_storages for layer in differing):
        # An optimizer updates the flat parameters alone. A weight that is not among them was put into its layer later:
        # that such a layer agrees does not show that there was no update. A container may have no weights of its own.
        agreeing = [layer for layer in agreeing if not _storages(layer) or _storages(layer) & flat_storages]
    if not agreeing:
        for layer in differing:
            layer.updated = layer.has_recorded_shape


def _storages(layer: Outcome) -> set[int]:
    """Return the storages, by their ids, that hold a layer's own weights."""
    return {id(tensor.storage) for tensor in own_weights(layer.run.obj).values()}


def _flat_storages(layers: list[Outcome]) -> set[int]:
    """Return the storages, by their ids, that hold weights of several layers, as `getParameters` makes them."""
    # Layers that share their weights begin at the same element of a storage, and count once.
    first_elements: dict[int, set[int]] = {}
    for layer in layers:
        first_of_layer: dict[int, int] = {}
        for tensor in own_weights(layer.run.obj).values():
            storage = id(tensor.storage)
            first_of_layer[storage] = min(tensor.offset, first_of_layer.get(storage, tensor.offset))
        for storage, element in first_of_layer.items():
            first_elements.setdefault(storage, set()).add(element)
    # A storage with weights of one layer alone may be that layer's own.
    return {storage for storage, elements in first_elements.items() if len(elements) > 1}


def _by_path(outcomes: list[Outcome]) -> list[Outcome]:
    """Return one verdict for each layer, the most important of its runs; equal ones are counted together."""
    layers: dict[str, Outcome] = {}
    for outcome in outcomes:
        path = outcome.run.path
        if path not in layers:
            layers[path] = outcome
            continue
        # The worse one stands for the layer; of two with one verdict it counts for both.
        worse, better = sorted((outcome, layers[path]), key=Outcome.worst_first)
        if worse.verdict == better.verdict:
            worse.runs += better.runs
            worse.compared += better.compared
        layers[path] = worse
    return list(layers.values())


class Judge:
    """Compares what each run of one model computes with what Lua recorded of it. The only call is `judge`.

    The number of a run is its place in `runs`, from 0.

    Args:
        runs: the runs of the layers, in order.
        limits: resource limits.
        in_other_mode: whether all layers ran in another mode than that in which they were saved.

    Attributes:
        memory: which recorded values later runs have overwritten.
        is_of_2010: whether the model is of the first releases, whose tensors have their dimensions in reverse order;
            their convolutions show it.
    """

    def __init__(self, runs: list[Run], limits: Limits, in_other_mode: bool) -> None:
        self.runs = runs
        self.limits = limits
        self.in_other_mode = in_other_mode
        self.memory = Memory(runs)
        self.is_of_2010 = any(map(_is_of_2010, runs))
        self._last_user_of_buffer: dict[int, int] = {}
        """The number of the last run that used a buffer for its unfolded input, by the id of the storage."""
        for number, run in enumerate(runs):
            for buffer in tensors_in(run.obj.get("finput")):
                self._last_user_of_buffer[id(buffer.storage)] = number
        self._outcomes: list[Outcome] = []
        """What is known of each run so far; its place in the list is the number of the run."""
        self._node_outputs: dict[int, dict[View, NodeOutput]] = {}
        """What has computed each tensor in memory so far, by the ids of their storages, and by their views of these."""

    def judge(self) -> list[Outcome]:
        """Return what is known of each run, in order; to be called once."""
        for number, run in enumerate(self.runs):
            outcome = Outcome(run, depends_on_weights=bool(own_weights(run.obj)))
            self._outcomes.append(outcome)
            node = self._judge_run(number, outcome)
            self._note_writes(run, node)
        self._decide_by_gradients()
        self._leave_out_containers()  # last: verdicts by gradients explain containers, too
        return self._outcomes

    def _judge_run(self, number: int, outcome: Outcome) -> Node | None:
        """Decide on a run, and return what computed its output; `None` if that was not, or could not be, computed.

        What was computed is returned also if it differs from what is recorded.

        Args:
            number: of the run.
            outcome: receives the verdict.
        """
        run = outcome.run
        if run.output is None and run.joined is None:
            return None  # nothing to compare with; parts that are joined can be computed without a recorded output
        node = None
        try:
            node = self._node(number, outcome)
            if node is not None:
                self._check(number, outcome, node)
            self._check_gradient(number, outcome, node)
        except (NotRunError, T7BridgeError, RecursionError) as error:
            _decide_by_error(outcome, error)
        has_run = node is not None and bool(node.values)
        return node if has_run else None

    # What computes an output

    def _node(self, number: int, outcome: Outcome) -> Node | None:
        """Return what computes the output of a run; `None` if its input is unknown.

        Args:
            number: of the run.
            outcome: receives the reason why the input is unknown, or where it comes from.

        Raises:
            RefusedError: its fields contradict one another.
            T7BridgeError: the layer cannot be built.
        """
        run = outcome.run
        has_output = is_complete(run.output)
        # Without an output, Lua may never have run the container as it is in the file.
        if run.contradiction and has_output:
            raise RefusedError(run.contradiction)
        inputs = self._read_input(run.input if run.joined is None else run.joined.parts, number)
        if inputs is None:
            if not has_output:
                return None  # nothing is recorded
            # The verdict is not recorded for this reason, unless the input follows from other fields.
            outcome.reason = run.reason or NO_INPUT
        if run.joined is None:
            return self._node_of_layer(number, outcome, inputs)
        if inputs is None:
            return None
        # A container whose last step only concatenates what its modules return.
        concatenate = partial(_concatenated, run.joined.dim)
        return Node(number, self._unit(run), layer=None, inputs=inputs, function=concatenate)

    def _node_of_layer(self, number: int, outcome: Outcome, inputs: Values) -> Node | None:
        """Return what computes the output of a layer; `None` if its input does not follow from its own fields either.

        Args:
            number: of the run.
            outcome: receives what is known of the layer, and where its input comes from.
            inputs: its input; `None` if it is not recorded.

        Raises:
            RefusedError: its fields contradict one another.
            T7BridgeError: the layer cannot be built.
        """
        run = outcome.run
        unit = self._unit(run)
        layer = LiveLayer.build(run.obj, run.path, unit, self.limits, self.in_other_mode)
        outcome.depends_on_weights = layer.has_weights  # with those of modules inside
        if is_complete(run.output) and not self.is_of_2010:  # in 2010 the extents of kernels were in another order
            check_kernel(layer)
        if inputs is not None:
            return Node(number, unit, layer, inputs)
        derived = self._derived(layer, number, run)
        if derived is None:
            return None
        outcome.reason = derived.reason
        return Node(number, unit, layer, derived.inputs, derived.function)

    def _derived(self, layer: LiveLayer, number: int, run: Run) -> Derived | None:
        """Return the input of a layer from its other fields; `None` if they do not determine it.

        Args:
            layer: the layer.
            number: of its run.
            run: this run.

        Raises:
            RefusedError: its fields contradict one another.
        """
        if self.is_of_2010:
            return None  # these fields had another layout then
        for buffer in tensors_in(run.obj.get("finput")):
            if self._last_user_of_buffer[id(buffer.storage)] != number:
                return None  # a later layer unfolded its input into the same buffer
        return derived_input(layer, run.output, self._is_intact(run, number))

    def _read_input(self, value: Recorded, number: int) -> Values:
        """Return the input of a run; `None` if any part of it is not known.

        Args:
            value: the input as Lua recorded it.
            number: of the run.

        Returns:
            Tensors of torch, and in place of each that was overwritten the `NodeOutput` of what computes it; numbers
            as they are.
        """
        if isinstance(value, list):
            parts = [self._read_input(item, number) for item in value]
            return None if any(part is None for part in parts) else parts
        if not isinstance(value, Tensor):
            return value
        # By any run since the one before: this one overwrites its input itself, if it works in place.
        if self.memory.is_overwritten(value, number - 1):
            # `None` if no layer that has run computed it.
            return self._node_outputs.get(id(value.storage), {}).get(view_of(value))
        tensor = self._to_torch(value)
        is_index = value.element.name == "int64"  # PyTorch takes only whole numbers for these
        if not is_index:
            tensor = tensor.double()
        if tensor.is_floating_point() and not bool(tensor.isfinite().any()):
            return None  # memory that nothing was written to
        return tensor

    def _note_writes(self, run: Run, node: Node | None) -> None:
        """Note what computes the memory that a run wrote, in `_node_outputs`, for later runs that read it.

        Args:
            run: the run.
            node: what computed its output; `None` if nothing did.
        """
        if node is None and run.is_container:
            return  # the modules inside computed it
        tensors = list(tensors_in(run.output))
        self._forget_overwritten(run, tensors)
        # What is of another size than Lua computed is no input of later layers.
        if node is None or element_counts(node.values) != [tensor.numel for tensor in tensors]:
            return
        source = first_of(run.input)
        for index, tensor in enumerate(tensors):
            self._add_node_output(tensor, node, index)
            if run.in_place and isinstance(source, Tensor) and source.numel == tensor.numel:
                # Who reads the input from now on reads the output; it may have the input in another shape.
                self._add_node_output(source, node, index)

    def _add_node_output(self, tensor: Tensor, node: Node, index: int) -> None:
        """Note that a node computes the memory that a tensor is a view of.

        Args:
            tensor: the tensor, as later runs read it.
            node: what computes it.
            index: of the tensor among the outputs of the node, from 0.
        """
        node_output = NodeOutput(node, index, tuple(tensor.shape))
        self._node_outputs.setdefault(id(tensor.storage), {})[view_of(tensor)] = node_output

    def _forget_overwritten(self, run: Run, tensors: list[Tensor]) -> None:
        """Forget what computed the memory that a run wrote: it is gone.

        Args:
            run: the run.
            tensors: its outputs.
        """
        for region in run.writes:
            storage, _, _ = region
            node_outputs = self._node_outputs.get(storage, {})
            for view in list(node_outputs):
                region_of_view, _, _ = view
                if overlap(region_of_view, region):
                    del node_outputs[view]
        # A view of the input is not in `writes`, but this run's output from now on: what a run before computed is not.
        for tensor in tensors:
            self._node_outputs.get(id(tensor.storage), {}).pop(view_of(tensor), None)

    def _is_intact(self, run: Run, number: int) -> bool:
        """Return whether the output of a run is in the file as it was computed."""
        return not self.memory.is_overwritten(run.output, number)

    def _to_torch(self, value: Recorded) -> Values:
        """Return recorded values as tensors of torch; those of 2010 with their dimensions in today's order.

        In 2010 the first dimension was the contiguous one: (width, height, planes).
        """

        def with_dimensions_reversed(item: torch.Tensor) -> torch.Tensor:
            return item.permute(*reversed(range(item.dim()))) if item.dim() > 1 else item

        tensors = to_torch(value)
        return map_tensors(tensors, with_dimensions_reversed) if self.is_of_2010 else tensors

    def _unit(self, run: Run) -> float:
        """Return the unit roundoff of a run's numbers; that of floats if nothing shows it."""
        # The output has the precision in which the layer computed; its weights may have fewer digits.
        values = [run.output, run.input, [*own_weights(run.obj).values()]]
        # The first of these with enough numbers to show it; else all together.
        telling = next((value for value in values if has_precision(value)), values)
        return unit_of(telling) or UNIT["float32"]

    # Comparing it

    def _check(self, number: int, outcome: Outcome, node: Node) -> None:
        """Run a layer whose input is known, and compare its output with the recorded one, if that is in the file.

        Args:
            number: of the run.
            outcome: receives the verdict, which stays "not recorded" where there is no output to compare with.
            node: the layer and its input, to be run.

        Raises:
            RefusedError: it would return much more than is recorded.
            NotRunError: it cannot be run.
        """
        run = outcome.run
        if node.layer is not None:  # and not the concatenation that a container ends with
            recorded_size = sum(tensor.numel for tensor in tensors_in(run.output))
            self._prepare(node.layer, node.input_values(), recorded_size)
        node.run()
        if not any(_differs(node.values, draw) for draw in node.perturbed):
            # Nor do other weights than these: zeros times weights are zeros, whatever these are.
            outcome.depends_on_weights = False
        if not is_complete(run.output):
            return  # run for the layers behind it, which take what it computes
        if self._is_intact(run, number):
            self._compare(outcome, node)
        else:
            self._compare_counts(outcome, node)

    @staticmethod
    def _compare_counts(outcome: Outcome, node: Node) -> None:
        """Compare only the numbers of elements of an output that was overwritten.

        What overwrote it kept the size of the tensor, so that this still tells how many elements it had. The order of
        the dimensions does not count here, where no values are compared: `measure` asks for more.

        Args:
            outcome: receives the verdict if the numbers differ, and otherwise the reason why there is none.
            node: what has computed the output.
        """
        recorded = list(tensors_in(outcome.run.output))
        if element_counts(node.values) == [tensor.numel for tensor in recorded]:
            outcome.reason = NO_OUTPUT
            return
        shapes = [list(item.shape) for item in node.values]
        outcome.refuse(f"shape {shapes}, recorded {[list(tensor.size) for tensor in recorded]}")

    @staticmethod
    def _prepare(layer: LiveLayer, inputs: Values, recorded_size: int) -> None:
        """Set the mode in which a layer ran, and refuse one that would return much more than is recorded.

        Args:
            layer: the layer.
            inputs: its input.
            recorded_size: the number of elements of its recorded output.

        Raises:
            RefusedError: a damaged field asks for more memory than there may be; it is not run for that.
        """
        if _normalized_by_running_statistics(layer, inputs):
            layer.module.eval()
        # Without shapes it does not accept the input, which it says when it runs.
        total = sum(map(prod, layer.shapes(inputs) or ()))
        if total > _MOST_TIMES_LARGER * max(recorded_size, _ALWAYS_COMPUTED):
            raise RefusedError(f"would return {total} elements, {recorded_size} are recorded")

    def _compare(self, outcome: Outcome, node: Node) -> None:
        """Set the verdict on an output, and on the layers before whose outputs are not in the file, compared as one.

        Args:
            outcome: receives the verdict and the numbers.
            node: what has computed the output.
        """
        run = outcome.run
        recorded = doubles(self._to_torch(run.output))
        # The runs back to recorded values, in order; the last is that of the outcome itself.
        members = [self._outcomes[member.run_number] for member in node.nodes_since_recorded()]
        difference = node.compare(recorded, _rounding_factor(run))
        outcome.set_difference(difference, recorded)
        outcome.depends_on_weights = any(member.depends_on_weights for member in members)
        outcome.has_recorded_shape = element_counts(recorded) == element_counts(node.values)
        reason = _with_others(outcome, members)
        # A random layer returns something else each time: only what is close in every element was not drawn anew.
        if _is_tolerated(difference, members) and (difference.is_close or not node.is_random):
            outcome.decide(AGREES, reason)
        else:
            # Of a layer that is random itself there always is one: it never differs.
            doubt = _doubt(run, node, recorded)
            if doubt:  # also of the members, which stay undecided
                outcome.decide(NOT_RECORDED, doubt)
                return
            outcome.decide(DIFFERS, "; ".join(filter(None, (reason, difference.reason))))
        for member in members:
            if member.verdict == NOT_RECORDED:  # not the outcome itself, which is decided by now
                member.decide_as_part_of(outcome)

    # Gradients, where outputs say nothing

    def _check_gradient(self, number: int, outcome: Outcome, node: Node | None) -> None:
        """Compare the recorded gradient with respect to the input with that of the recorded gradOutput.

        Only where the gradient does not depend on the input, as for a sum of products: the recorded input may be of
        another pass.

        Args:
            number: of the run.
            outcome: receives the result in `gradient_agrees`, which stays `None` if the gradients cannot be compared.
            node: what computes the output of the run; `None` if its input is unknown.
        """
        run = outcome.run
        if not self._has_gradients(run):
            return
        if node is not None and (node.layer is None or node.is_random):
            return  # a concatenation has no weights to check, and a random layer another gradient each time
        try:
            recorded = doubles(to_torch(run.grad_input))
            difference = self._difference_of_gradients(number, run, None if node is None else node.layer, recorded)
        except (NotRunError, T7BridgeError):
            return
        if difference is None:
            return
        outcome.gradient_agrees = difference.is_within_limit
        # The numbers of a comparison of outputs stay; see `_decide_by_gradients` for the verdict.
        if outcome.verdict == NOT_RECORDED:
            outcome.set_difference(difference, recorded)

    def _difference_of_gradients(
        self, number: int, run: Run, layer: LiveLayer | None, recorded: list[torch.Tensor]
    ) -> Deviation | None:
        """Return how far the gradient with respect to the input is from the recorded one.

        `None` if it depends on the input, or if nothing was written to the recorded one.

        Args:
            number: of the run.
            run: the run, whose gradients are recorded.
            layer: its layer, if that is built.
            recorded: the gradient with respect to the input.

        Raises:
            NotRunError: there is no gradient, or the layer cannot be run.
            T7BridgeError: it cannot be built.
        """
        if layer is None:
            layer = LiveLayer.build(run.obj, run.path, self._unit(run), self.limits, self.in_other_mode)
        backward = self._backward_of_any_input(number, run, layer)
        if backward is None or _is_empty(recorded):
            return None
        return backward.compare(recorded, BACKWARD * _rounding_factor(run))

    def _backward_of_any_input(self, number: int, run: Run, layer: LiveLayer) -> Node | None:
        """Return what has computed the gradient with respect to a layer's input from the recorded gradOutput.

        `None` if it depends on the input itself, which is not used: it may be of another pass, or not in the file. The
        gradient of a linear layer does not.

        Args:
            number: of the run.
            run: the run, whose gradients are recorded.
            layer: its layer.

        Raises:
            NotRunError: there is no gradient, or the layer cannot be run.
        """
        grad_output = to_doubles(run.grad_output)
        # Two inputs, to see whether they make a difference. The gradient with respect to an input has its shape.
        zeros = to_doubles(zeros_like(run.grad_input))
        generator = torch.Generator().manual_seed(0)
        random = map_tensors(zeros, lambda item: torch.randn(item.shape, generator=generator, dtype=item.dtype))
        backward = Node(number, self._unit(run), layer, inputs=[random, grad_output], function=gradients)
        backward.run()
        depends_on_input = _differs(backward.values, gradients(layer, [zeros, grad_output]))
        return None if depends_on_input else backward

    def _has_gradients(self, run: Run) -> bool:
        """Return whether the gradients of a layer with weights are recorded, in today's order of the dimensions."""
        if not is_complete(run.grad_output) or not is_complete(run.grad_input):
            return False
        if run.is_container or self.is_of_2010 or not own_weights(run.obj):
            return False
        return self.memory.holds_gradients(run)

    def _decide_by_gradients(self) -> None:
        """Decide by gradients on the layers whose outputs say nothing.

        The last backward may be of another pass than the last forward. That a gradient differs counts only if another
        one agrees, and if none differs of a layer whose output agrees.
        """
        checked = [outcome for outcome in self._outcomes if outcome.gradient_agrees is not None]
        is_of_this_pass = any(outcome.gradient_agrees for outcome in checked) and all(
            outcome.gradient_agrees for outcome in checked if outcome.verdict == AGREES
        )
        for outcome in checked:
            if outcome.verdict != NOT_RECORDED:
                continue
            if outcome.gradient_agrees:
                outcome.decide(AGREES, BY_GRADIENT)
            elif is_of_this_pass:
                outcome.decide(DIFFERS, BY_GRADIENT)

    def _leave_out_containers(self) -> None:
        """Take back the verdict on each container with a layer inside that differs itself, which explains it."""
        differing = [outcome.run.path for outcome in self._outcomes if outcome.verdict == DIFFERS]
        for outcome in self._outcomes:
            if not outcome.run.is_container:
                continue
            # Of paths inside it, as root.modules[1] and root[1].
            beginnings = (f"{outcome.run.path}.", f"{outcome.run.path}[")
            inside = [path for path in differing if path.startswith(beginnings)]
            if inside:
                outcome.decide(NOT_RECORDED, f"contains {inside[0]}, which differs")


def _decide_by_error(outcome: Outcome, error: NotRunError | T7BridgeError | RecursionError) -> None:
    """Decide on a run by the error that its layer raised.

    Args:
        outcome: receives the verdict.
        error: raised when the layer was built, or run.
    """
    if isinstance(error, RefusedError):  # a `NotRunError`, too
        outcome.refuse(str(error))
    elif isinstance(error, NotRunError):
        outcome.decide(NOT_RECORDED, str(error))
    elif isinstance(error, (UnsupportedError, LimitError)):
        # Not the file's fault: it has no PyTorch module, or is too big.
        outcome.decide(NOT_RECORDED, error.message)
    elif isinstance(error, T7BridgeError):
        outcome.refuse(error.message)  # its fields are inconsistent
    else:
        outcome.decide(NOT_RECORDED, "its modules are nested too deep for PyTorch")


def _with_others(outcome: Outcome, members: list[Outcome]) -> str:
    """Return the reason of an outcome, with the layers that are compared as one with it.

    Args:
        outcome: the outcome.
        members: those of the runs that are compared as one, itself among them.
    """
    others = [member.run.path for member in members if member is not outcome]
    together = f"compared as one with {', '.join(dict.fromkeys(others))}" if others else ""
    return "; ".join(filter(None, (outcome.reason, together)))


def _doubt(run: Run, node: Node, recorded: list[torch.Tensor]) -> str:
    """Return why a layer that computes something else may still be right; empty if it cannot be.

    Args:
        run: the run of the layer.
        node: what has computed something else.
        recorded: its output in the file.
    """
    if _is_empty(recorded):
        return NEVER_COMPUTED
    if node.is_random:
        return NO_RANDOM_NUMBERS
    if _remembers(run.obj):
        return NO_STATE
    return _batch_sizes_in_words(node, recorded)


def _is_tolerated(difference: Deviation, members: list[Outcome]) -> bool:
    """Return whether rounding explains a difference, or the tolerance of an approximate function covers it.

    Args:
        difference: the difference.
        members: the layers that are compared as one; of them only the classes matter, which have tolerances.
    """
    if difference.is_within_limit:
        return True
    tolerances = []  # the largest absolute differences of the classes whose function Lua approximates
    for outcome in members:
        tolerance = in_lua_of(outcome.run.obj).tolerance
        if tolerance is not None:
            tolerances.append(tolerance)
    if not tolerances:
        return False
    return difference.is_close or difference.max_abs <= max(tolerances)


def _is_empty(recorded: list[torch.Tensor]) -> bool:
    """Return whether recorded values are all zero, or none is finite, as in memory that nothing was written to."""
    values = joined(recorded)
    return not bool((values.abs() > _LARGEST_ZERO).any() & values.isfinite().any())


def _batch_sizes_in_words(node: Node, recorded: list[torch.Tensor]) -> str:
    """Return that the recorded input and output are of passes with different batch sizes; empty if they are not.

    Args:
        node: what computes the output of the input.
        recorded: the output in the file.
    """
    sizes_of_input = {len(item) for item in doubles(node.input_values()) if item.dim()}
    sizes_computed = {len(item) for item in node.values if item.dim()}
    sizes_recorded = {len(item) for item in recorded if item.dim()}
    if len(sizes_of_input) != 1 or len(sizes_recorded) != 1 or sizes_of_input != sizes_computed:
        return ""  # the first dimension is not a batch
    if sizes_recorded == sizes_computed:
        return ""
    # In all other dimensions the shapes have to agree.
    if [item.shape[1:] for item in node.values] != [item.shape[1:] for item in recorded]:
        return ""
    return f"its input and its output are of passes of {sizes_computed.pop()} and {sizes_recorded.pop()} examples"


def _rounding_factor(run: Run) -> float:
    """Return the factor of the limit on rounding for the machine on which a layer ran; see `ON_GPU`."""
    on_gpu = run.obj.class_name.startswith("cudnn.") or any(item.device != "cpu" for item in tensors_in(run.output))
    weight = run.obj.get("weight")
    # Libraries of GPUs compute convolutions by transforms of their input and kernels.
    may_be_transformed = isinstance(weight, Tensor) and run.name.startswith(("nn.Spatial", "nn.Volumetric"))
    return ON_GPU if on_gpu and may_be_transformed else 1.0


def _differs(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Return whether a tensor differs from its partner in any element, or in shape."""
    return any(not torch.equal(tensor, other) for tensor, other in zip(tensors, others))


def _concatenated(dim: int, layer: LiveLayer | None, value: Values) -> list[torch.Tensor]:
    """Return tensors as one, in a list; a function of a `Node`, of which no layer is used."""
    return [torch.cat(value, dim)]


def _normalized_by_running_statistics(layer: LiveLayer, value: Values) -> bool:
    """Return whether Lua normalized a batch with running statistics though the layer is in training.

    Newer releases do so for a batch of one: the mean that they kept is of another pass. Source: nn 8726825
    `BatchNormalization.lua`.

    Args:
        layer: any layer; of one in evaluation, which does so anyway, the answer does not matter.
        value: its input.
    """
    if not isinstance(layer.module, torch.nn.modules.batchnorm._BatchNorm):
        return False
    mean = layer.obj.get("save_mean")
    is_batch_of_one = isinstance(value, torch.Tensor) and value.dim() >= 2 and len(value) == 1
    if not isinstance(mean, Tensor) or not is_batch_of_one:
        return False
    own_mean = value.transpose(0, 1).flatten(1).mean(1)  # of each feature, the second dimension
    return len(own_mean) == mean.numel and not torch.allclose(own_mean, to_doubles(mean).reshape(-1), rtol=1e-3)


def _remembers(obj: TorchObject) -> bool:
    """Return whether a recurrent layer may have continued from an earlier sequence."""
    when = obj.get("_remember")
    if isinstance(when, bytes) and when != b"neither":
        return True
    return obj.get("remember_states") is True


def _is_of_2010(run: Run) -> bool:
    """Return whether a layer is of 2010: the first dimension of its kernels is contiguous."""
    weight = run.obj.get("weight")
    is_kernel = isinstance(weight, Tensor) and len(weight.size) > 2 and run.name.startswith("nn.Spatial")
    return bool(is_kernel and weight.stride[0] < weight.stride[-1])
