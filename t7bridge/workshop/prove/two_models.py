"""A model against a second one, both on the same inputs. May import cells, conversion, graph, nn, torchmodules."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from attrs import evolve
from torch import nn

from ...conversion.inputs import Inputs, parse_inputs
from ...data import define
from ...errors import ModelError
from ...nn.output_shapes import Example, inputs_text
from ...nn.plan import build_plan
from ...nn.state_dict import state_dict
from ...torchmodules.build import live_module
from ...torchmodules.layers.recurrent import MaskZero
from ..cells import Recurrence, recognized, recurrence
from .inputs import fitting_inputs, guess_inputs
from .layer import doubles, drawn, first_line, flat, in_double
from .proof import AGREES, DIFFERS, NOT_RECORDED, LayerProof, Proof, Subject
from .rounding import TINY, Deviation, measure
from .side_by_side import Call, Comparison, compare, normalizes

_STEPS = 7
"""Of the sequences for recurrent models."""
_BATCH = 3
"""Number of these sequences."""
_SIDES = (224, 299)
"""Heights and widths of the inputs of models of ImageNet."""
_RELATIVE_LIMIT = 1e-10
"""Expected error of a value, relative to the largest: both models compute in double precision."""
_OTHER_SIZES = ((-13, -22), (13, 10))
"""What is added to height and width for a second input: first for smaller images, then for larger ones, no squares."""

_lock = threading.Lock()
_thread_counts: list[int] = []
"""For each comparison that runs, PyTorch's number of threads before the first of them."""


@contextmanager
def _in_one_thread() -> Iterator[None]:
    """Let PyTorch compute in one thread: the tensors of single layers are so small that several mostly wait.

    Comparisons may run in several threads of Python at once. PyTorch has a number for each of these, and a new one
    begins with the number that any of them has set last: all comparisons restore that from before the first of them.
    """
    with _lock:
        # Asked in any case: it initializes a new thread, which would later replace the number that is set here.
        own_count = torch.get_num_threads()
        count_before_all = _thread_counts[0] if _thread_counts else own_count
        _thread_counts.append(count_before_all)
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            torch.set_num_threads(_thread_counts.pop())


@define
class TwoModels:
    """A Lua model that is compared with a second model.

    Attributes:
        subject: the Lua model, the first one.
        other: the second model, live, in double precision and evaluation mode.
        name: of the second model, in texts.
        inputs: those of both, in any form of `parse_inputs`; empty if they are inferred.
    """

    subject: Subject
    other: nn.Module
    name: str
    inputs: Inputs

    def proof(self) -> Proof:
        """Return the verdicts on the layers with weights, and on the whole.

        Raises:
            ModelError: the models do not accept the same input.
        """
        with _in_one_thread():
            return self._proof()

    def _proof(self) -> Proof:
        """Return the verdicts; see `proof`. A recurrent model is run over sequences, if the second one takes them."""
        problem_over_steps = None
        recurrent = self._recurrence()
        if recurrent is not None and not self.inputs:
            try:
                return self._proof_over_steps(recurrent)
            except ModelError as error:  # the second model may take one step, as the Lua model does
                problem_over_steps = error
        mine = in_double(live_module(self.subject.model, self.subject.path, limits=self.subject.limits))
        first, spec = self._on_accepted_input(mine)
        # It takes neither: what it says of sequences is about the inputs that it is meant for.
        if first.theirs.error and problem_over_steps is not None:
            raise problem_over_steps
        return self._proof_of_layers(mine, first, spec)

    def _proof_of_layers(self, mine: nn.Module, first: Comparison, spec: Any) -> Proof:
        """Return the verdicts on layers with weights and on the whole, also for another size of images and in training.

        Args:
            mine: the first model, live.
            first: the comparison on one input in evaluation mode.
            spec: that input.
        """
        differences = list(first.differences)
        in_evaluation = [(first, spec)]
        # A second size is of inputs that nobody stated; with weights at other places it shows nothing new.
        if not self.inputs and not first.misplaced:
            resized = self._on_another_size(mine, spec, first)
            if resized is not None:
                in_evaluation.append(resized)
                comparison, other_spec = resized
                differences += [f"in {inputs_text(other_spec)}, {text}" for text in _new(comparison, first)]
        in_training = self._in_training(mine, spec)
        if in_training is not None:
            # Only its texts count: the verdicts on layers are those in evaluation.
            differences += [f"in training, {text}" for text in _new(in_training, first)]
        proof = self._proof_of_comparisons(mine, [comparison for comparison, _ in in_evaluation], differences)
        proof.modes = _modes([inputs_text(spec) for _, spec in in_evaluation], has_trained=in_training is not None)
        return proof

    def _proof_of_comparisons(self, mine: nn.Module, comparisons: list[Comparison], differences: list[str]) -> Proof:
        """Return the verdicts on the layers, as they are where a difference shows first, and on the whole.

        Args:
            mine: the first model, live.
            comparisons: those in evaluation mode, at least one.
            differences: those of all comparisons, in words.
        """
        # Where none shows in evaluation, the first.
        shown = next((comparison for comparison in comparisons if comparison.differences), comparisons[0])
        proof = Proof(self.subject.file, against=f"layers of {self.name}", reference=self.name, differences=differences)
        proof.misplaced = any(comparison.misplaced for comparison in comparisons)
        proof.layers = [*_verdicts_on_layers(shown), _verdict_on_output(mine, shown, differs=bool(differences))]
        return proof

    def _compare(self, mine: nn.Module, spec: Any, training: bool = False) -> Comparison:
        """Compare both models on numbers drawn for an input, in evaluation mode or with normalization in training.

        Args:
            mine: the first model, live.
            spec: the input: an `Example`, or a list of these.
            training: whether normalization is in training mode.
        """
        return compare(mine, self.other, self.name, drawn(mine, spec), training)

    def _in_training(self, mine: nn.Module, spec: Any) -> Comparison | None:
        """Compare both with normalization in training mode; `None` if that is the same, or not possible.

        Args:
            mine: the first model, live.
            spec: an input that it accepts in evaluation mode.
        """
        # The modules of TorchScript's archives are not known, and their modes cannot be set one by one.
        if not normalizes(mine) or isinstance(self.other, torch.jit.ScriptModule):
            return None
        try:
            return self._compare(mine, spec, training=True)
        except ModelError:
            return None  # one example has no variance

    def _recurrence(self) -> Recurrence | None:
        """Return what the Lua model takes and returns, if it is recurrent; `None` if it is not.

        `None`, too, for a model of one step that keeps its state inside: sequences cannot be passed through it here.
        """
        state = state_dict(self.subject.model, self.subject.path, self.subject.limits, own_keys=True)
        plan = build_plan(self.subject.model, self.subject.path, index_base=0, limits=self.subject.limits, state=state)
        recurrent = recurrence(recognized(plan, state).plan.root)
        # `states` is `None` over sequences; `()` is that of a model of one step without any state among its inputs.
        return None if recurrent is None or recurrent.states == () else recurrent

    def _on_accepted_input(self, mine: nn.Module) -> tuple[Comparison, Any]:
        """Compare both on the first input that the second model accepts, or on the last one tried.

        Returns:
            The comparison in evaluation mode, and the input.
        """
        for spec in self._specs():  # at least one
            comparison = self._compare(mine, spec)
            if not comparison.theirs.error:
                break
        return comparison, spec

    def _on_another_size(self, mine: nn.Module, spec: Any, first: Comparison) -> tuple[Comparison, Any] | None:
        """Compare both models on images of another size; `None` if they accept no such images.

        In one size, ceil mode, padding and adaptive pooling may make no difference.

        Args:
            mine: the first model, live.
            spec: the input of the first comparison.
            first: that comparison.
        """
        for height, width in _OTHER_SIZES:
            resized = _resized(spec, height, width)
            if resized == spec:
                continue
            try:
                comparison = self._compare(mine, resized)
            except ModelError:
                continue
            # With an nn.View after a pooling of fixed size, a larger image is several.
            if not comparison.theirs.error and _batch_sizes(comparison) == _batch_sizes(first):
                return comparison, resized
        return None

    def _specs(self) -> list[Any]:
        """Return the inputs that both may accept: the user's, or the smallest and those of ImageNet."""
        if self.inputs:
            return [parse_inputs(self.inputs, limits=self.subject.limits)]
        specs = [fitting_inputs(self.subject.model, self.subject.path, self.subject.limits)]
        for side in _SIDES:
            guess = guess_inputs(self.subject.model, side)
            if guess is not None and guess not in specs:
                specs.append(guess)
        return specs

    def _proof_over_steps(self, recurrent: Recurrence) -> Proof:
        """Run two recurrent models on the same sequences, and return the verdict on what they return for each step.

        Args:
            recurrent: what the Lua model is, which is written over sequences for this.

        Raises:
            ModelError: the second model does not accept sequences, or returns something else.
        """
        # Tokens count from 0, as PyTorch's do; `lift` makes cells layers over sequences where possible.
        mine = in_double(
            live_module(self.subject.model, self.subject.path, index_base=0, limits=self.subject.limits, lift=True)
        )
        inputs, forms = self._sequences(mine, recurrent)
        wanted = _outputs(mine, inputs, _has_batch_first(mine), recurrent.states)
        answer = self._best_answer(forms, wanted)
        differences = []
        if answer.difference is not None:
            differences.append(answer.difference)
        elif not recurrent.takes_tokens and self._masks_differ(mine, inputs, recurrent.states):
            # A token is never a step of zeros.
            differences.append(f"for steps that are zeros, the .t7 returns zeros, and {self.name} does not")
        return self._verdict_over_steps(mine, wanted, answer, differences)

    def _sequences(self, mine: nn.Module, recurrent: Recurrence) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return sequences for the first model, and the forms in which the second may take them, by words for these.

        Args:
            mine: the first model, live.
            recurrent: what it takes and returns in a step.
        """
        if recurrent.takes_tokens:
            spec = Example(name="", shape=(_STEPS, _BATCH), bounds=(0, recurrent.inputs - 1))
            tokens = drawn(mine, spec).long()
            return tokens, _forms_of_tokens(tokens, recurrent.inputs, self.other, inputs_text(spec))
        spec = Example(name="", shape=(_STEPS, _BATCH, recurrent.inputs))
        inputs = drawn(mine, spec)
        return inputs, {inputs_text(spec): inputs}

    def _verdict_over_steps(
        self, mine: nn.Module, wanted: torch.Tensor, answer: _Answer, differences: list[str]
    ) -> Proof:
        """Return the verdict on two recurrent models as a whole.

        Args:
            mine: the first model, live.
            wanted: its outputs, (steps, batch, features).
            answer: what the second model has returned.
            differences: in words; empty if both agree.
        """
        verdict = DIFFERS if differences else AGREES
        step_count = len(answer.outputs)  # 1 if the second model returns the last step alone
        whole = LayerProof("root", type(mine).__name__, verdict, runs=step_count)  # "agree with 5 steps of"
        whole.parameters = sum(item.numel() for item in mine.parameters())
        last_steps = wanted[-step_count:]
        whole.set_numbers(deviation_of([last_steps], [answer.outputs]), [answer.outputs])
        proof = Proof(self.subject.file, [whole], f"steps of {self.name}", reference=self.name, differences=differences)
        # What no function at the end explains is taken for weights at other places.
        proof.misplaced = answer.is_unexplained
        proof.modes = f"{answer.form} from states of zero in evaluation mode"
        return proof

    def _best_answer(self, forms: Mapping[str, torch.Tensor], wanted: torch.Tensor) -> _Answer:
        """Return what the second model returns for sequences, in the form and the order of dimensions that it takes.

        Of several answers that is the first which agrees, or is explained, and otherwise the first of all.

        Args:
            forms: the sequences, (steps, batch, …), by words for their form.
            wanted: the outputs of the first model.

        Raises:
            ModelError: the model does not accept the sequences, or returns something else.
        """
        answers: list[_Answer] = []
        problem = ModelError("the models do not return as many values for each step")
        for form, inputs, is_batch_first in self._orders(forms):
            try:
                outputs = _outputs(self.other, inputs, is_batch_first)
            except ModelError as error:
                # Without any answer, the last refusal is the reason.
                problem = error
                continue
            # Some models return the last step alone.
            if outputs.shape[1:] == wanted.shape[1:] and len(outputs) in (1, len(wanted)):
                last_steps = wanted[-len(outputs) :]
                answers.append(self._answer(form, outputs, last_steps))
        if not answers:
            raise problem
        return next((answer for answer in answers if not answer.is_unexplained), answers[0])

    def _orders(self, forms: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Yield each form in words, its sequences, and whether the second model is to get the batch first: both orders.

        First the order that its layers state, then the other one: the model may transpose.
        """
        layers_have_batch_first = _has_batch_first(self.other)
        for form, inputs in forms.items():
            yield form, inputs, layers_have_batch_first
            yield form, inputs, not layers_have_batch_first

    def _answer(self, form: str, outputs: torch.Tensor, wanted: torch.Tensor) -> _Answer:
        """Compare the outputs of the second model over sequences with those of the first.

        Args:
            form: the form of the inputs, in words.
            outputs: of the second model.
            wanted: those of the first, of the same steps.
        """
        # In both directions: the limit depends on the largest value of the first argument.
        if _are_same(wanted, outputs) or _are_same(outputs, wanted):
            return _Answer(form, outputs)
        # One of the two may leave its last function to the loss: cross entropy computes a log_softmax itself.
        for name in ("log_softmax", "softmax"):
            if _are_same(wanted, getattr(outputs, name)(-1)):
                return _Answer(form, outputs, f"at the end, the .t7 computes {name}, and {self.name} does not")
            if _are_same(outputs, getattr(wanted, name)(-1)):
                return _Answer(form, outputs, f"at the end, {self.name} computes {name}, and the .t7 does not")
        largest = deviation_of([wanted], [outputs]).max_abs
        return _Answer(form, outputs, f"the outputs differ by up to {largest:.2g}", is_unexplained=True)

    def _masks_differ(
        self, mine: nn.Module, inputs: torch.Tensor, states: Sequence[tuple[int, int, int]] | None
    ) -> bool:
        """Return whether the first model masks steps that are zeros, and the second one does not.

        Args:
            mine: the first model, live.
            inputs: sequences, (steps, batch, features), to which a step of zeros is added.
            states: of the first model; see `Recurrence`.
        """
        if not any(isinstance(layer, MaskZero) for layer in mine.modules()):
            return False
        with_zeros = torch.cat([inputs, torch.zeros_like(inputs[:1])])
        wanted = _outputs(mine, with_zeros, _has_batch_first(mine), states)
        return self._best_answer({"a step of zeros": with_zeros}, wanted).difference is not None


@define(frozen=True)
class _Answer:
    """What a model returns over sequences.

    Attributes:
        form: the form of its inputs, in words.
        outputs: of each step, or of the last.
        difference: what another model computes otherwise, in words; `None` if nothing.
        is_unexplained: whether that is more than a function at the end.
    """

    form: str
    outputs: torch.Tensor
    difference: str | None = None
    is_unexplained: bool = False


def _batch_sizes(comparison: Comparison) -> list[Any]:
    """Return the number of examples of each output of the first model: its first extent, none of a scalar."""
    return [item.shape[:1] for item in comparison.mine.result]


def _forms_of_tokens(inputs: torch.Tensor, count: int, model: nn.Module, shape: str) -> dict[str, torch.Tensor]:
    """Return the forms in which a model may take tokens, by words for them.

    Args:
        inputs: numbers of tokens from 0 on.
        count: of different tokens.
        model: the model.
        shape: of the inputs, in words.
    """
    if any(isinstance(layer, nn.Embedding) for layer in model.modules()):
        return {f"{shape} tokens": inputs, f"{shape} tokens counted from 1": inputs + 1}
    return {f"{shape} one-hot tokens": nn.functional.one_hot(inputs, count).double()}


def _has_batch_first(model: nn.Module) -> bool:
    """Return whether a layer of a model takes the batch first."""
    return any(getattr(layer, "batch_first", False) for layer in model.modules())


def _outputs(
    model: nn.Module, inputs: Any, is_batch_first: bool, states: Sequence[tuple[int, int, int]] | None = None
) -> torch.Tensor:
    """Return what a recurrent model returns for sequences, from states of zero: (steps, batch, features).

    Args:
        model: the model, of one step if it has states, otherwise over sequences.
        inputs: the sequences, (steps, batch, features), or numbers of tokens from 0 on.
        is_batch_first: whether the model takes the batch first, and returns it so.
        states: see `Recurrence`.

    Raises:
        ModelError: the model does not accept them.
    """
    try:
        with torch.no_grad():
            if states is not None:
                return _outputs_of_steps(model, inputs, states)
            return _outputs_over_sequences(model, inputs, is_batch_first)
    except Exception as error:  # the user's code may raise anything
        text = f"{type(error).__name__}: {first_line(error)}"
        raise ModelError(f"a model does not accept sequences: {text}") from error


def _outputs_over_sequences(model: nn.Module, inputs: Any, is_batch_first: bool) -> torch.Tensor:
    """Return what a model over sequences returns: (steps, batch, features).

    Args:
        model: the model; what it returns besides the output, as its states, follows that.
        inputs: see `_outputs`.
        is_batch_first: see `_outputs`.
    """
    batch = inputs.shape[1]
    # Some models return all steps of all sequences as one list of rows: the first two dimensions are split again.
    if not is_batch_first:
        output = next(flat(model(inputs)))
        return output.reshape(-1, batch, output.shape[-1])
    output = next(flat(model(inputs.transpose(0, 1))))
    return output.reshape(batch, -1, output.shape[-1]).transpose(0, 1)


def _outputs_of_steps(model: nn.Module, inputs: Any, states: Sequence[tuple[int, int, int]]) -> torch.Tensor:
    """Return what a model of one step returns for sequences, called once for each step.

    Args:
        model: the model, which takes and returns a list of the states and one other value.
        inputs: the sequences, (steps, batch, features).
        states: of each the place among the inputs, that among the outputs, and its number of features.
    """
    # The input and the output are at the places that no state has.
    places = range(len(states) + 1)
    input_place = ({*places} - {place for place, _, _ in states}).pop()
    output_place = ({*places} - {place for _, place, _ in states}).pop()
    batch = inputs.shape[1]
    values: dict[int, Any] = {}
    for place, _, features in states:
        values[place] = torch.zeros(batch, features, dtype=torch.float64)
    outputs = []
    for input_of_step in inputs:
        values[input_place] = input_of_step
        result = model([values[place] for place in places])
        for state_input, state_output, _ in states:
            values[state_input] = result[state_output]
        outputs.append(result[output_place])
    return torch.stack(outputs)


def _are_same(wanted: torch.Tensor, computed: torch.Tensor) -> bool:
    """Return whether only rounding in double precision tells two values apart."""
    return deviation_of([wanted], [computed]).is_within_limit


def deviation_of(wanted: list[torch.Tensor], computed: list[torch.Tensor]) -> Deviation:
    """Compare values of two models that compute in double precision; they may return whole numbers, such as classes."""
    wanted = doubles(wanted)
    computed = doubles(computed)
    largest = max((float(item.abs().max()) for item in wanted if item.numel()), default=0.0)
    expected = [torch.full_like(item, _RELATIVE_LIMIT * largest + TINY) for item in computed]
    return measure(wanted, computed, expected)


def _resized(spec: Any, height: int, width: int) -> Any:
    """Return an input whose images are higher and wider by some pixels; the same one if that is not possible.

    Args:
        spec: the input.
        height: pixels to add; below 0 to remove.
        width: the same.
    """
    if isinstance(spec, list):
        return [_resized(item, height, width) for item in spec]
    if len(spec.shape) < 4:  # not (batch, channels, height, width)
        return spec
    *outer, old_height, old_width = spec.shape
    new_height = old_height + height
    new_width = old_width + width
    if min(new_height, new_width) < 1:
        return spec
    return evolve(spec, shape=(*outer, new_height, new_width))


def _modes(inputs: list[str], has_trained: bool) -> str:
    """Return the inputs of two models and the modes in which they ran, in words.

    Args:
        inputs: the shapes of those in evaluation mode, in words.
        has_trained: whether they ran on the first of these with normalization in training mode, too.
    """
    all_inputs = " and ".join(inputs)
    if not has_trained:
        return f"{all_inputs} in evaluation mode"
    if len(inputs) == 1:
        return f"{all_inputs} in evaluation and training mode"
    return f"{all_inputs} in evaluation mode and {inputs[0]} in training mode"


def _new(comparison: Comparison, first: Comparison) -> list[str]:
    """Return the differences of a comparison that the first one does not have."""
    return [text for text in comparison.differences if text not in first.differences]


def _verdicts_on_layers(comparison: Comparison) -> list[LayerProof]:
    """Return the verdicts on the first model's layers with weights, by the second's layers with the same weights.

    The runs of a layer that follow one another, as the steps of a sequence do, have one verdict.
    """
    their_calls = {id(call.partner): call for call in comparison.theirs.calls}
    layers: list[LayerProof] = []
    for call in comparison.mine.calls:
        if not layers or layers[-1].path != _path_of(call):
            layers.append(_verdict_on_layer(call, their_calls.get(id(call)), comparison))
        elif id(call) in comparison.differing:
            layers[-1].verdict = DIFFERS  # in the next step
    return layers


def _path_of(call: Call) -> str:
    """Return the path of a layer of the first model."""
    return call.place or "root"


def _verdict_on_layer(mine: Call, theirs: Call | None, comparison: Comparison) -> LayerProof:
    """Return the verdict on one run of a layer.

    Args:
        mine: the run in the first model.
        theirs: that of the layer with the same weights in the second; `None` if there is none.
        comparison: of both models.
    """
    proof = LayerProof(_path_of(mine), type(mine.layer).__name__, AGREES)
    proof.parameters = sum(item.numel() for item in mine.layer.parameters(recurse=False))
    if theirs is None:
        # The second model has no such layer, which matters only if something differs.
        proof.verdict = DIFFERS if comparison.differences else NOT_RECORDED
        return proof
    proof.reason = f"{theirs.place} in the other"
    if id(mine) in comparison.differing:
        proof.verdict = DIFFERS
    return proof


def _verdict_on_output(mine: nn.Module, comparison: Comparison, differs: bool) -> LayerProof:
    """Return the verdict on the output of the model.

    Args:
        mine: the first model.
        comparison: of both, whose outputs are measured.
        differs: whether anything differs, in this comparison or another; so it does if its outputs do.
    """
    verdict = DIFFERS if differs else AGREES
    # `Proof.sentence` adds up runs, of layers alone.
    whole = LayerProof("root", type(mine).__name__, verdict, runs=0, reason="the whole")
    # The second model is the reference, to whose largest value the difference is relative.
    deviation = deviation_of(comparison.theirs.result, comparison.mine.result)
    whole.set_numbers(deviation, comparison.mine.result)
    if deviation.reason:
        whole.reason = f"the whole; {deviation.reason}"
    return whole
