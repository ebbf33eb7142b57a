"""Runs each layer of a model on its recorded input, and decides: it agrees, differs, or is not recorded.
If a recorded input was overwritten, the node that computes it takes its place: the layers between two recorded values
are compared as one.

May import graph and nn.
"""

from __future__ import annotations

from functools import partial
from math import prod

import torch

from ...errors import T7BridgeError
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ...limits import Limits
from ...nn.registry import in_lua_of
from .given import Derived, check_kernel, derived_input
from .layer import LiveLayer, NotRunError, RefusedError, Values, flat, gradients, map_tensors, to_doubles, to_torch
from .memory import Memory
from .nodes import ComputedMemory, Node, element_counts
from .outcome import Outcome, by_path, count_of, decide_by_error, note_mode, note_update, reason_with_others
from .proof import AGREES, DIFFERS, NOT_RECORDED, LayerProof
from .recorded import Recorded, first_of, is_complete, own_weights, tensors_in, zeros_like
from .rounding import FACTOR_OF_GRADIENTS, FACTOR_ON_GPU, UNIT, Deviation, has_precision, joined, unit_of
from .run import Run
from .runs import runs

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
    if count_of(layers, DIFFERS) and all_in_one_mode:
        runs_in_other_mode = runs(model, path, limits, in_other_mode=True)
        others = _judged_in_one_mode(runs_in_other_mode, limits, in_other_mode=True)
        if count_of(others, AGREES) > count_of(layers, AGREES):
            note_mode(others, before=layers)
            layers = others
    note_update(layers)
    return [layer.proof() for layer in layers]


def _judged_in_one_mode(runs_of_layers: list[Run], limits: Limits, in_other_mode: bool) -> list[Outcome]:
    """Return what is known of each layer, if all ran in the mode in which they were saved, or all in the other."""
    return by_path(Judge(runs_of_layers, limits, in_other_mode).judge())


class Judge:
    """Compares what each run of one model computes with what Lua recorded of it. The only call is `judge`. A run is one
    call of a layer or container in Lua's last pass, its outcome what is known of it, a node what computes its output.

    Args:
        runs: the runs of the layers, in order. The number of a run is its place in this list, from 0.
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
        self._computed = ComputedMemory()
        """What has computed the tensors that are in memory after the runs so far."""

    def judge(self) -> list[Outcome]:
        """Return what is known of each run, in order; to be called once."""
        for number, run in enumerate(self.runs):
            outcome = Outcome(run, number, depends_on_weights=bool(own_weights(run.obj)))
            self._outcomes.append(outcome)
            node = self._judge_run(outcome)
            is_computed_inside = node is None and run.is_container
            if not is_computed_inside:
                self._note_written(outcome, node)
        self._decide_by_gradients()
        self._leave_out_containers()  # last: verdicts by gradients explain containers, too
        return self._outcomes

    def _judge_run(self, outcome: Outcome) -> Node | None:
        """Decide on a run, and return what computed its output; `None` if that was not, or could not be, computed.

        What was computed is returned also if it differs from what is recorded.

        Args:
            outcome: that of the run, which receives the verdict.
        """
        run = outcome.run
        if run.output is None and run.joined is None:
            return None  # nothing to compare with; parts that are joined can be computed without a recorded output
        node = None
        try:
            node = self._node(outcome)
            if node is not None:
                self._run_and_compare(outcome, node)
            self._check_gradient(outcome, node)
        except (NotRunError, T7BridgeError, RecursionError) as error:
            decide_by_error(outcome, error)
        has_run = node is not None and bool(node.values)
        return node if has_run else None

    # What computes an output

    def _node(self, outcome: Outcome) -> Node | None:
        """Return what computes the output of a run, which has not run yet; `None` if its input is unknown.

        Args:
            outcome: that of the run, whose `input_note` is set if an output is recorded, but not the input.

        Raises:
            RefusedError: its fields contradict one another.
            T7BridgeError: the layer cannot be built.
        """
        run = outcome.run
        has_output = is_complete(run.output)
        # Without an output, Lua may never have run the container as it is in the file.
        if run.contradiction and has_output:
            raise RefusedError(run.contradiction)
        # What a container only concatenates are the outputs of its modules.
        recorded_input = run.input if run.joined is None else run.joined.parts
        inputs = self._read_input(recorded_input, outcome.number)
        if inputs is None and has_output:
            outcome.input_note = run.why_no_input or NO_INPUT
        if run.joined is not None:
            return self._node_of_concatenation(run.joined.dim, outcome, inputs)
        if inputs is None and not has_output:
            return None  # neither is recorded, and an input could only follow from the output
        return self._node_of_layer(outcome, inputs)

    def _node_of_concatenation(self, dim: int, outcome: Outcome, inputs: Values) -> Node | None:
        """Return what concatenates the outputs of a container's modules; `None` if one of them is unknown.

        Args:
            dim: the dimension, from 0.
            outcome: that of the container's run.
            inputs: these outputs; `None` if one is unknown.
        """
        if inputs is None:
            return None
        concatenate = partial(_concatenated, dim)
        return Node(outcome.number, self._unit(outcome.run), layer=None, inputs=inputs, function=concatenate)

    def _node_of_layer(self, outcome: Outcome, inputs: Values) -> Node | None:
        """Return what computes the output of a layer; `None` if its input does not follow from its own fields either.

        Args:
            outcome: that of its run, whose `depends_on_weights` and `input_note` are set.
            inputs: its input; `None` if it is not recorded.

        Raises:
            RefusedError: its fields contradict one another.
            T7BridgeError: the layer cannot be built.
        """
        run = outcome.run
        layer = self._build(run)
        outcome.depends_on_weights = layer.has_weights  # with those of modules inside
        if is_complete(run.output) and not self.is_of_2010:  # in 2010 the extents of kernels were in another order
            check_kernel(layer)
        if inputs is not None:
            return Node(outcome.number, layer.unit, layer, inputs)
        derived = self._derived_input(outcome, layer)
        if derived is None:
            return None
        outcome.input_note = derived.reason
        return Node(outcome.number, layer.unit, layer, derived.inputs, derived.function)

    def _build(self, run: Run) -> LiveLayer:
        """Return the layer of a run, live.

        Raises:
            T7BridgeError: it cannot be built.
        """
        return LiveLayer.build(run.obj, run.path, self._unit(run), self.limits, self.in_other_mode)

    def _derived_input(self, outcome: Outcome, layer: LiveLayer) -> Derived | None:
        """Return the input of a layer from its other fields; `None` if they do not determine it.

        Args:
            outcome: that of its run.
            layer: the layer.

        Raises:
            RefusedError: its fields contradict one another.
        """
        if self.is_of_2010:
            return None  # these fields had another layout then
        run = outcome.run
        for buffer in tensors_in(run.obj.get("finput")):
            if self._last_user_of_buffer[id(buffer.storage)] != outcome.number:
                return None  # a later layer unfolded its input into the same buffer
        return derived_input(layer, run.output, is_intact=self._has_intact_output(outcome))

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
        # Overwritten by this run, if it works in place, or by a later one: hence after the run before.
        if self.memory.is_overwritten_after(number - 1, value):
            return self._computed.output_at(value)  # `None` if no run before it has computed this tensor
        tensor = self._to_torch(value)
        is_index = value.element.name == "int64"  # PyTorch takes only whole numbers for these
        if not is_index:
            tensor = tensor.double()
        if tensor.is_floating_point() and not bool(tensor.isfinite().any()):
            return None  # memory that nothing was written to
        return tensor

    def _note_written(self, outcome: Outcome, node: Node | None) -> None:
        """Note what computes the memory that a run wrote, for later runs that read it.

        Args:
            outcome: that of the run.
            node: what computed its output; `None` if nothing did.
        """
        run = outcome.run
        outputs = list(tensors_in(run.output))
        self._computed.forget(self.memory.written_by[outcome.number], outputs)
        # What is of another size than Lua computed is no input of later layers.
        if node is None or element_counts(node.values) != [tensor.numel for tensor in outputs]:
            return
        source = first_of(run.input)
        for index, output in enumerate(outputs):
            self._computed.note(output, node, index)
            if run.in_place and isinstance(source, Tensor) and source.numel == output.numel:
                # Who reads the input from now on reads the output; it may have the input in another shape.
                self._computed.note(source, node, index)

    def _has_intact_output(self, outcome: Outcome) -> bool:
        """Return whether the output of a run is in the file as it was computed."""
        return not self.memory.is_overwritten_after(outcome.number, outcome.run.output)

    def _to_torch(self, value: Recorded) -> Values:
        """Return recorded values as tensors of torch; those of 2010 with their dimensions in today's order.

        In 2010 the first dimension was the contiguous one: (width, height, planes).
        """

        def with_dimensions_reversed(item: torch.Tensor) -> torch.Tensor:
            return item.permute(*reversed(range(item.dim()))) if item.dim() > 1 else item

        tensors = to_torch(value)
        return map_tensors(tensors, with_dimensions_reversed) if self.is_of_2010 else tensors

    @staticmethod
    def _unit(run: Run) -> float:
        """Return the unit roundoff of a run's numbers; that of floats if nothing shows it."""
        # The output has the precision in which the layer computed; its weights may have fewer digits.
        values = [run.output, run.input, [*own_weights(run.obj).values()]]
        # The first of these with enough numbers to show it; else all together.
        telling = next((value for value in values if has_precision(value)), values)
        return unit_of(telling) or UNIT["float32"]

    # Comparing it

    def _run_and_compare(self, outcome: Outcome, node: Node) -> None:
        """Run a layer whose input is known, and compare its output with the recorded one, if that is in the file.

        Args:
            outcome: that of the run; the verdict stays "not recorded" where there is no output to compare with.
            node: the layer and its input, to be run.

        Raises:
            RefusedError: it would return much more than is recorded.
            NotRunError: it cannot be run.
        """
        run = outcome.run
        if node.layer is not None:  # and not the concatenation that a container ends with
            inputs = node.input_values()
            if _normalized_by_running_statistics(node.layer, inputs):
                node.layer.module.eval()  # which does the same
            _check_size(node.layer, inputs, recorded_size=sum(tensor.numel for tensor in tensors_in(run.output)))
        node.run()
        if not any(_differs(node.values, perturbed) for perturbed in node.perturbed):
            # Errors of the weights change nothing, as for an input of zeros: that it agrees would say nothing of them.
            outcome.depends_on_weights = False
        if not is_complete(run.output):
            return  # it was run for the layers behind it, which take what it computes
        if self._has_intact_output(outcome):
            self._compare(outcome, node)
        else:
            _compare_counts(outcome, node)

    def _compare(self, outcome: Outcome, node: Node) -> None:
        """Compare an output with the recorded one, and decide on the run and on those that are compared as one with it.

        These are the runs before it, back to recorded values, whose outputs are not in the file.

        Args:
            outcome: that of the run, which receives the verdict and the numbers.
            node: what has computed the output.
        """
        recorded = list(flat(self._to_torch(outcome.run.output)))
        members = [self._outcomes[member.run_number] for member in node.nodes_since_recorded()]  # the last is `outcome`
        difference = node.compare(recorded, _rounding_factor(outcome.run))
        outcome.set_difference(difference, recorded)
        outcome.depends_on_weights = any(member.depends_on_weights for member in members)
        outcome.has_recorded_size = element_counts(recorded) == element_counts(node.values)
        reason = reason_with_others(outcome, members)
        if _agrees(difference, node, members):
            outcome.decide(AGREES, reason)
        else:
            doubt = _doubt(outcome.run, node, recorded)
            if doubt:
                outcome.decide(NOT_RECORDED, doubt)
                return  # of the others nothing is known either: they stay undecided
            outcome.decide(DIFFERS, "; ".join(filter(None, (reason, difference.reason))))
        for member in members:
            if member.verdict == NOT_RECORDED:  # not `outcome` itself, which is decided by now
                member.decide_as_part_of(outcome)

    # Gradients, where outputs say nothing

    def _check_gradient(self, outcome: Outcome, node: Node | None) -> None:
        """Compare the recorded gradient with respect to the input with that of the recorded gradOutput.

        Only where the gradient does not depend on the input, as for a sum of products: the recorded input may be of
        another pass.

        Args:
            outcome: that of the run; its `gradient_agrees` stays `None` if the gradients cannot be compared.
            node: what computes the output of the run; `None` if its input is unknown.
        """
        run = outcome.run
        if not self._has_gradients(run) or (node is not None and node.is_random):
            return  # a random layer has another gradient each time
        try:
            layer = self._build(run) if node is None else node.layer
            if layer is None:
                return  # a concatenation, which has no weights to check
            recorded = list(flat(to_torch(run.grad_input)))
            backward = self._backward_of_any_input(outcome, layer)
        except (NotRunError, T7BridgeError):
            return  # the layer cannot be built, or has no gradient: its outputs alone decide
        if backward is None or _is_empty(recorded):
            return  # it depends on the input, or nothing was written to the recorded one
        difference = backward.compare(recorded, FACTOR_OF_GRADIENTS * _rounding_factor(run))
        outcome.gradient_agrees = difference.is_within_limit
        # The numbers of a comparison of outputs stay. `_decide_by_gradients` decides, once all gradients are compared.
        if outcome.verdict == NOT_RECORDED:
            outcome.set_difference(difference, recorded)

    def _backward_of_any_input(self, outcome: Outcome, layer: LiveLayer) -> Node | None:
        """Return what has computed the gradient with respect to a layer's input from the recorded gradOutput.

        `None` if it depends on the input itself, which is not used: it may be of another pass, or not in the file. The
        gradient of a linear layer does not.

        Args:
            outcome: that of its run, whose gradients are recorded.
            layer: the layer.

        Raises:
            NotRunError: there is no gradient, or the layer cannot be run.
        """
        grad_output = to_doubles(outcome.run.grad_output)
        # Two inputs, to see whether they make a difference. The gradient with respect to an input has its shape.
        zeros = to_doubles(zeros_like(outcome.run.grad_input))
        generator = torch.Generator().manual_seed(0)
        random = map_tensors(zeros, lambda item: torch.randn(item.shape, generator=generator, dtype=item.dtype))
        backward = Node(outcome.number, layer.unit, layer, inputs=[random, grad_output], function=gradients)
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
        of_agreeing_layers = [outcome.gradient_agrees for outcome in checked if outcome.verdict == AGREES]
        is_of_this_pass = any(outcome.gradient_agrees for outcome in checked) and all(of_agreeing_layers)
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


def _check_size(layer: LiveLayer, inputs: Values, recorded_size: int) -> None:
    """Refuse a layer that would return much more than is recorded: a damaged field may ask for any amount of memory.

    Args:
        layer: the layer.
        inputs: its input.
        recorded_size: the number of elements of its recorded output.

    Raises:
        RefusedError: it would return that much.
    """
    shapes = layer.shapes(inputs)
    if shapes is None:
        return  # it does not accept the input, which it says when it runs
    total = sum(map(prod, shapes))
    if total > _MOST_TIMES_LARGER * max(recorded_size, _ALWAYS_COMPUTED):
        raise RefusedError(f"would return {total} elements, {recorded_size} are recorded")


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


def _agrees(difference: Deviation, node: Node, members: list[Outcome]) -> bool:
    """Return whether a difference is as small as that of a layer which computes what Lua computed.

    Args:
        difference: the difference.
        node: what has computed the output.
        members: the layers that are compared as one; see `_is_tolerated`.
    """
    if not _is_tolerated(difference, members):
        return False
    # A random layer draws something else in each run with errors, too, so that rounding seems to explain any
    # difference: its output has to be close.
    return difference.is_close or not node.is_random


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
    sizes_of_input = {len(item) for item in flat(node.input_values()) if item.dim()}
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
    """Return the factor of the limit on rounding for the machine on which a layer ran; see `FACTOR_ON_GPU`."""
    on_gpu = run.obj.class_name.startswith("cudnn.") or any(item.device != "cpu" for item in tensors_in(run.output))
    weight = run.obj.get("weight")
    # Libraries of GPUs compute convolutions by transforms of their input and kernels.
    may_be_transformed = isinstance(weight, Tensor) and run.name.startswith(("nn.Spatial", "nn.Volumetric"))
    return FACTOR_ON_GPU if on_gpu and may_be_transformed else 1.0


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
    # It is kept by a batch that is normalized with its own mean: another one is left from an earlier batch.
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
