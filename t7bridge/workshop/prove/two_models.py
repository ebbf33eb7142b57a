"""A model of Lua, the first, against a second one, both on the same inputs.

May import cells, conversion, graph, nn, torchmodules.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from attrs import evolve
from torch import nn

from ...conversion.inputs import Inputs, parse_inputs
from ...data import define
from ...errors import ModelError
from ...nn.output_shapes import inputs_text
from ...nn.plan import build_plan
from ...nn.state_dict import state_dict
from ...torchmodules.build import live_module
from ..cells import Recurrence, recognized, recurrence
from .calls import Call, normalizes
from .inputs import fitting_inputs, guess_inputs
from .layer import drawn, in_double
from .over_steps import prove_over_steps
from .proof import AGREES, DIFFERS, NOT_RECORDED, LayerProof, Proof, Subject
from .rounding import measure_in_doubles
from .side_by_side import Comparison, compare

_SIDES = (224, 299)
"""Heights and widths of the inputs of models of ImageNet."""
_OTHER_SIZES = ((-13, -22), (13, 10))
"""What is added to height and width for a second input: first for smaller images, then for larger ones, no squares."""

_lock = threading.Lock()
_counts_to_restore: list[int] = []
"""For each comparison that runs, PyTorch's number of threads before the first of them: one number, several times."""


@contextmanager
def _in_one_thread() -> Iterator[None]:
    """Let PyTorch compute in one thread: the tensors of single layers are so small that several mostly wait.

    Comparisons may run in several threads of Python at once. PyTorch has a number for each of these, and a new one
    begins with the number that any of them has set last: all comparisons restore that from before the first of them.
    """
    with _lock:
        # Asked in any case: it initializes a new thread, which would later replace the number that is set here.
        own_count = torch.get_num_threads()
        count_before_all = _counts_to_restore[0] if _counts_to_restore else own_count
        _counts_to_restore.append(count_before_all)
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            torch.set_num_threads(_counts_to_restore.pop())


@define(frozen=True)
class _Comparison:
    """Both models on one input.

    Attributes:
        result: the comparison of what they compute.
        spec: the shape of the input: an `Example`, or a list of these.
    """

    result: Comparison
    spec: Any


@define
class TwoModels:
    """A Lua model, the first, that is compared with a second model, on inputs that both accept. The first one is made
    live as `mine` for it; a `spec` has the shapes of an input.

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
                return prove_over_steps(self.subject, self.other, self.name, recurrent)
            except ModelError as error:  # the second model may take one step, as the Lua model does
                problem_over_steps = error
        mine = in_double(live_module(self.subject.model, self.subject.path, limits=self.subject.limits))
        first = self._on_accepted_input(mine)
        # The second model takes neither sequences nor one step: the user has to know why it refuses sequences.
        if first.result.theirs.error and problem_over_steps is not None:
            raise problem_over_steps
        return self._proof_of_layers(mine, first)

    def _proof_of_layers(self, mine: nn.Module, first: _Comparison) -> Proof:
        """Return the verdicts on layers with weights and on the whole, also for another size of images and in training.

        Args:
            mine: the first model, live.
            first: both models on one input in evaluation mode.
        """
        in_evaluation = [first]
        differences = list(first.result.differences)
        # Nobody stated the sizes: another one may tell more. It shows nothing new of a second model whose layers take
        # other values (`misplaced`).
        if not self.inputs and not first.result.misplaced:
            resized = self._on_another_size(mine, first)
            if resized is not None:
                in_evaluation.append(resized)
                texts = _only_in(resized.result, first.result)
                differences += [f"in {inputs_text(resized.spec)}, {text}" for text in texts]
        in_training = self._in_training(mine, first.spec)
        if in_training is not None:
            # Only its texts count: the verdicts on layers are those in evaluation.
            differences += [f"in training, {text}" for text in _only_in(in_training, first.result)]
        proof = self._proof_of_comparisons(mine, [comparison.result for comparison in in_evaluation], differences)
        inputs = [inputs_text(comparison.spec) for comparison in in_evaluation]
        proof.modes = _modes(inputs, has_trained=in_training is not None)
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

        Raises:
            ModelError: the first model does not accept it, or computes no finite numbers.
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

    def _on_accepted_input(self, mine: nn.Module) -> _Comparison:
        """Compare both in evaluation mode on the first input that the second model accepts, or on the last one tried.

        Args:
            mine: the first model, live.

        Raises:
            ModelError: the first model does not accept an input that is tried.
        """
        for spec in self._specs():  # at least one
            comparison = _Comparison(self._compare(mine, spec), spec)
            if not comparison.result.theirs.error:
                break
        return comparison

    def _on_another_size(self, mine: nn.Module, first: _Comparison) -> _Comparison | None:
        """Compare both models on images of another size; `None` if they accept no such images.

        In one size, ceil mode, padding and adaptive pooling may make no difference.

        Args:
            mine: the first model, live.
            first: the first comparison, in evaluation mode.
        """
        for height, width in _OTHER_SIZES:
            spec = _resized(first.spec, height, width)
            if spec == first.spec:
                continue
            try:
                result = self._compare(mine, spec)
            except ModelError:
                continue
            # With an nn.View after a pooling of fixed size, a larger image is several.
            if not result.theirs.error and _batch_sizes(result) == _batch_sizes(first.result):
                return _Comparison(result, spec)
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


def _batch_sizes(comparison: Comparison) -> list[Any]:
    """Return the number of examples of each output of the first model: its first extent, none of a scalar."""
    return [item.shape[:1] for item in comparison.mine.outputs]


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


def _only_in(comparison: Comparison, first: Comparison) -> list[str]:
    """Return the differences of a comparison, in words, that the first one does not have."""
    return [text for text in comparison.differences if text not in first.differences]


def _verdicts_on_layers(comparison: Comparison) -> list[LayerProof]:
    """Return the verdicts on the first model's layers with weights, by the second's layers with the same weights.

    The calls of a layer that follow one another, as the steps of a sequence do, have one verdict.
    """
    their_calls_by_partner = {id(call.partner): call for call in comparison.theirs.calls}
    layers: list[LayerProof] = []
    for call in comparison.mine.calls:
        is_next_step = bool(layers) and layers[-1].path == _path_of(call)
        if not is_next_step:
            layers.append(_verdict_on_layer(call, their_calls_by_partner.get(id(call)), comparison))
        elif id(call) in comparison.differing:
            layers[-1].verdict = DIFFERS
    return layers


def _path_of(call: Call) -> str:
    """Return the path of a layer of the first model."""
    return call.place or "root"


def _verdict_on_layer(mine: Call, theirs: Call | None, comparison: Comparison) -> LayerProof:
    """Return the verdict on one call of a layer.

    Args:
        mine: the call in the first model.
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
    deviation = measure_in_doubles(comparison.theirs.outputs, comparison.mine.outputs)
    whole.set_numbers(deviation, compared=sum(item.numel() for item in comparison.mine.outputs))
    if deviation.reason:
        whole.reason = f"the whole; {deviation.reason}"
    return whole
