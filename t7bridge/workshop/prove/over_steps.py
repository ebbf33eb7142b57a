"""Two recurrent models on the same sequences: what both return for each step, from states of zero.
The first model is that of Lua, the second the one with which it is compared.

A model takes whole sequences, (steps,
batch, features), or it is of one step, and is called once for each step. May import cells, nn and torchmodules.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import nn

from ...data import define
from ...errors import ModelError
from ...nn.output_shapes import Example, inputs_text
from ...torchmodules.build import live_module
from ...torchmodules.layers.recurrent import MaskZero
from ..cells import Recurrence, StateOfStep
from .digests import dense_reals
from .layer import drawn, first_line, flat, in_double
from .proof import AGREES, DIFFERS, LayerProof, Proof, Subject
from .rounding import measure_in_doubles

_STEPS = 7
"""Steps of the sequences."""
_BATCH = 3
"""Number of the sequences."""


@define(frozen=True)
class Form:
    """The sequences as the second model may take them.

    Attributes:
        text: what they are, in words.
        inputs: the sequences, (steps, batch, features), or numbers of tokens, (steps, batch).
    """

    text: str
    inputs: torch.Tensor


@define(frozen=True)
class Answer:
    """What the second model returns over sequences, compared with the first.

    Attributes:
        form: the form of its inputs, in words.
        outputs: of each step, or of the last.
        difference: what the first model computes otherwise, in words; `None` if nothing.
        is_unexplained: whether that is more than a function at the end.
    """

    form: str
    outputs: torch.Tensor
    difference: str | None = None
    is_unexplained: bool = False


def prove_over_steps(subject: Subject, other: nn.Module, name: str, recurrent: Recurrence) -> Proof:
    """Run two recurrent models on the same sequences, and return the verdict on what they return for each step.

    Args:
        subject: the first model.
        other: the second, live, in double precision and evaluation mode.
        name: of the second, in texts.
        recurrent: what the first one is, which is written over sequences for this.

    Raises:
        ModelError: the second model does not accept sequences, or returns something else.
    """
    # Tokens count from 0, as PyTorch's do; `lift` makes cells layers over sequences where possible.
    mine = in_double(live_module(subject.model, subject.path, index_base=0, limits=subject.limits, lift=True))
    models = RecurrentModels(mine, recurrent, other, name)
    inputs, forms = models.draw_sequences()
    wanted = models.outputs_of_first(inputs)
    answer = models.best_answer(forms, wanted)
    differences = []
    if answer.difference is not None:
        differences.append(answer.difference)
    elif not recurrent.takes_tokens and models.masks_differ(inputs):  # a token is never a step of zeros
        differences.append(f"for steps that are zeros, the .t7 returns zeros, and {name} does not")
    proof = Proof(subject.file, against=f"steps of {name}", reference=name, differences=differences)
    proof.layers = [_verdict_on_whole(mine, wanted, answer.outputs, differs=bool(differences))]
    # What no function at the end explains is taken for weights at other places, as values of layers are not compared.
    proof.misplaced = answer.is_unexplained
    proof.modes = f"{answer.form} from states of zero in evaluation mode"
    return proof


def _verdict_on_whole(mine: nn.Module, wanted: torch.Tensor, outputs: torch.Tensor, differs: bool) -> LayerProof:
    """Return the verdict on two recurrent models as a whole.

    Args:
        mine: the first model, live.
        wanted: its outputs, (steps, batch, features).
        outputs: those of the second model, which may be of the last step alone.
        differs: whether anything differs.
    """
    # Each step counts as a run: the sentence of the proof says with how many the model agrees.
    whole = LayerProof("root", type(mine).__name__, DIFFERS if differs else AGREES, runs=len(outputs))
    whole.parameters = sum(item.numel() for item in mine.parameters())
    last_steps = wanted[-len(outputs) :]
    whole.set_numbers(measure_in_doubles([last_steps], [outputs]), compared=outputs.numel())
    return whole


@define
class RecurrentModels:
    """Two recurrent models, live, that are run on the same sequences: `mine`, the first one, and `other`. A form is the
    sequences as the second may take them, an answer what it returns for a form, compared with the first.

    Attributes:
        mine: the first.
        recurrent: what the first takes and returns in a step.
        other: the second.
        name: of the second, in texts.
    """

    mine: nn.Module
    recurrent: Recurrence
    other: nn.Module
    name: str

    def draw_sequences(self) -> tuple[torch.Tensor, list[Form]]:
        """Return sequences for the first model, and the forms in which the second may take them."""
        if not self.recurrent.takes_tokens:
            features = self.recurrent.inputs
            spec = Example(name="", shape=(_STEPS, _BATCH, features))
            inputs = drawn(self.mine, spec)
            return inputs, [Form(inputs_text(spec), inputs)]
        count = self.recurrent.inputs
        spec = Example(name="", shape=(_STEPS, _BATCH), bounds=(0, count - 1))
        tokens = drawn(self.mine, spec).long()
        shape = inputs_text(spec)
        # A second model without a table of tokens multiplies its first weights with vectors of one 1.
        if any(isinstance(layer, nn.Embedding) for layer in self.other.modules()):
            return tokens, [Form(f"{shape} tokens", tokens), Form(f"{shape} tokens counted from 1", tokens + 1)]
        return tokens, [Form(f"{shape} one-hot tokens", nn.functional.one_hot(tokens, count).double())]

    def outputs_of_first(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what the first model returns for sequences, (steps, batch, features).

        Raises:
            ModelError: it does not accept them.
        """
        return _outputs(self.mine, inputs, _has_batch_first(self.mine), self.recurrent.states)

    def best_answer(self, forms: list[Form], wanted: torch.Tensor) -> Answer:
        """Return what the second model returns for sequences, in the form and the order of dimensions that it takes.

        Of several answers that is the first which agrees, or is explained, and otherwise the first of all.

        Args:
            forms: the sequences in each form that it may take.
            wanted: the outputs of the first model.

        Raises:
            ModelError: the second model does not accept the sequences, or returns something else.
        """
        # First the order that its layers state, then the other one: the model may transpose.
        stated_order = _has_batch_first(self.other)
        orders = (stated_order, not stated_order)
        answers: list[Answer] = []
        problem = ModelError("the models do not return as many values for each step")
        for form, is_batch_first in product(forms, orders):
            try:
                outputs = _outputs(self.other, form.inputs, is_batch_first)
            except ModelError as error:
                problem = error  # without any answer, the last refusal is the reason
                continue
            # Some models return the last step alone.
            if outputs.shape[1:] == wanted.shape[1:] and len(outputs) in (1, len(wanted)):
                last_steps = wanted[-len(outputs) :]
                answers.append(self._compared(form, outputs, last_steps))
        if not answers:
            raise problem
        return next((answer for answer in answers if not answer.is_unexplained), answers[0])

    def _compared(self, form: Form, outputs: torch.Tensor, wanted: torch.Tensor) -> Answer:
        """Compare the outputs of the second model over sequences with those of the first.

        Args:
            form: in which the second took the sequences.
            outputs: of the second model.
            wanted: those of the first, of the same steps.
        """
        # In both directions: the limit depends on the largest value of the first argument.
        if _are_same(wanted, outputs) or _are_same(outputs, wanted):
            return Answer(form.text, outputs)
        # One of the two may leave its last function to the loss: cross entropy computes a log_softmax itself.
        for function in (torch.log_softmax, torch.softmax):
            name = function.__name__
            if _are_same(wanted, function(outputs, -1)):
                return Answer(form.text, outputs, f"at the end, the .t7 computes {name}, and {self.name} does not")
            if _are_same(outputs, function(wanted, -1)):
                return Answer(form.text, outputs, f"at the end, {self.name} computes {name}, and the .t7 does not")
        largest = measure_in_doubles([wanted], [outputs]).max_abs
        return Answer(form.text, outputs, f"the outputs differ by up to {largest:.2g}", is_unexplained=True)

    def masks_differ(self, inputs: torch.Tensor) -> bool:
        """Return whether the first model masks steps that are zeros, and the second one does not.

        Args:
            inputs: sequences on which both agree, (steps, batch, features); a step of zeros is added to them.

        Raises:
            ModelError: a model does not accept one step more.
        """
        if not any(isinstance(layer, MaskZero) for layer in self.mine.modules()):
            return False
        with_zeros = torch.cat([inputs, torch.zeros_like(inputs[:1])])
        wanted = self.outputs_of_first(with_zeros)
        return self.best_answer([Form("a step of zeros", with_zeros)], wanted).difference is not None


def _has_batch_first(model: nn.Module) -> bool:
    """Return whether a layer of a model takes the batch first."""
    return any(getattr(layer, "batch_first", False) for layer in model.modules())


def _outputs(
    model: nn.Module, inputs: Any, is_batch_first: bool, states: Sequence[StateOfStep] | None = None
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
    output, *_ = flat(model(inputs.transpose(0, 1) if is_batch_first else inputs))
    output = dense_reals(output)
    # Some models return all steps of all sequences as one list of rows: the first two dimensions are split again.
    if is_batch_first:
        return output.reshape(batch, -1, output.shape[-1]).transpose(0, 1)
    return output.reshape(-1, batch, output.shape[-1])


def _outputs_of_steps(model: nn.Module, inputs: Any, states: Sequence[StateOfStep]) -> torch.Tensor:
    """Return what a model of one step returns for sequences, called once for each step.

    Args:
        model: the model, which takes and returns a list of the states and one other value.
        inputs: the sequences, (steps, batch, features).
        states: the states.
    """
    # The input and the output are at the places that no state has: one place is left among both.
    places = range(len(states) + 1)
    (input_place,) = set(places) - {state.input_place for state in states}
    (output_place,) = set(places) - {state.output_place for state in states}
    batch = inputs.shape[1]
    arguments: dict[int, torch.Tensor] = {}  # of the next step, by their places
    for state in states:
        arguments[state.input_place] = torch.zeros(batch, state.features, dtype=torch.float64)
    outputs = []
    for input_of_step in inputs:
        arguments[input_place] = input_of_step
        results = model([arguments[place] for place in places])
        for state in states:
            arguments[state.input_place] = results[state.output_place]
        outputs.append(results[output_place])
    return torch.stack(outputs)


def _are_same(wanted: torch.Tensor, computed: torch.Tensor) -> bool:
    """Return whether only rounding in double precision tells two values apart."""
    return measure_in_doubles([wanted], [computed]).is_within_limit
