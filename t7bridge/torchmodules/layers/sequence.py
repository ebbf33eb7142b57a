"""Modules that process whole sequences: recurrent layers, and containers that apply a
module to each step.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import FromList, Layer, map_nested
from .recurrent import Masked, Resuming, gru_step, lstm_step, uniform_parameter


class Remembering(Resuming):
    """A module over whole sequences that may resume from the last.

    Attributes:
        remember: when it does: `train`, `eval`, `both` or `neither`, with a new start
            after a change between training and evaluation; `always` ignores that.
        trained_last: whether it was in training when last used; `None` if it was not
            used yet.
    """

    remember: str
    trained_last: bool | None = None

    def forget_if_mode_changed(self, training: bool) -> None:
        """Start a new sequence if it was last used in the other mode, as far as
        `remember` says so; note the mode.
        """
        trained_last = self.trained_last
        if trained_last is None and self.remember in ("both", "eval"):
            # Not called yet: a state from the file is that of an evaluation; that of a
            # training is not kept.
            trained_last = False
        changed = trained_last is not None and trained_last != training
        # `neither` has at most a state that is given for the first sequence.
        if changed and self.remember in ("train", "eval", "both"):
            self.forget()
        self.trained_last = training

    def remembers(self) -> bool:
        """Return whether the next sequence resumes from this one."""
        mode = "train" if self.training else "eval"
        return self.remember in ("always", "both", mode)

    def train(self, mode: bool = True) -> Any:
        """Set the mode; a change starts a new sequence."""
        self.forget_if_mode_changed(mode)
        return super().train(mode)


class Sequence(Remembering):
    """A recurrent layer over whole sequences.

    Attributes:
        sizes: of the output and the other tensors of the state.
        batch_first: whether the batch is the first dimension and time the second.
        state: the state after the last call; `None` if a sequence is to start.
    """

    sizes: tuple[int, ...]
    batch_first: bool
    state: Any

    def begin(self, input: Any) -> tuple[Tensor, list[Tensor]]:
        """Return the sequence and the state before it, in the order of `sizes`.

        What the input does not give of the state is remembered, or zeros; a change
        between training and evaluation forgets it first.

        Args:
            input: a sequence, or a list that begins with the state before it, each part
                (batch, …): [output, sequence] or [cell, output, sequence].
        """
        given: list[Any] = []
        if isinstance(input, (list, tuple)):
            *given, input = input
        self.forget_if_mode_changed(self.training)
        # Lua's list has the cell before the output; `sizes` has the output first.
        parts = [*reversed(given), *self._remembered_parts()[len(given) :]]
        batch = input.size(0 if self.batch_first else 1)
        state = []
        for size, part in zip(self.sizes, parts):
            if part is None:
                part = input.new_zeros(batch, size)
            state.append(torch.as_tensor(part, dtype=input.dtype, device=input.device))
        return input, state

    def _remembered_parts(self) -> list[Any]:
        """Return the parts of `state`, in the order of `sizes`; `None` for zeros."""
        if self.state is None:
            return [None] * len(self.sizes)
        # A state of one part is not in a list.
        return [self.state] if len(self.sizes) == 1 else list(self.state)

    def keep(self, state: Any) -> None:
        """Remember the state after a sequence, if the next resumes from there."""
        if not self.remembers():
            self.state = None
            return
        parts = tuple(part.detach() for part in state)
        self.state = parts if len(parts) > 1 else parts[0]


class SeqLSTM(Sequence, nn.LSTM):
    """torch.nn.LSTM of one layer that returns only the outputs.

    Args:
        input_size: size of each input.
        hidden_size: size of the cell.
        proj_size: size of the outputs if they are projected; 0 if they are not.
        batch_first: whether the batch is the first dimension and time the second.
        remember: when a sequence resumes from the last: `train`, `eval`, `both` or
            `neither`, from zeros after a change between training and evaluation;
            `always` ignores that.
        state: output and cell after the last call; `None` if a sequence is to start.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        proj_size: int = 0,
        batch_first: bool = False,
        remember: str = "neither",
        state: Any = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, batch_first=batch_first, proj_size=proj_size
        )
        self.sizes = (proj_size or hidden_size, hidden_size)  # of output and cell
        self.remember = remember
        self.state = state

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Take a sequence (time, batch, in), or a list that begins with the state
        before it, each part (batch, …): [output, sequence] or [cell, output, sequence].
        As in Lua, a state comes in this list: `hx` is not used.

        Returns:
            (time, batch, out).
        """
        input, (output, cell) = self.begin(input)
        # torch.nn.LSTM has a dimension for the layers before the batch.
        outputs, (output, cell) = super().forward(input, (output[None], cell[None]))
        self.keep((output[0], cell[0]))
        return outputs


class Stepped(Masked, Sequence, Layer):
    """A recurrent layer over whole sequences, computed step by step."""

    def step(self, input: Tensor, *state: Tensor) -> Any:
        """Return the state after a step."""
        raise NotImplementedError

    def forward(self, input: Any) -> Tensor:
        """Take a sequence (time, batch, in), or a list that begins with the state
        before it, each part (batch, …): [output, sequence] or [cell, output, sequence].

        Returns:
            (time, batch, out).
        """
        input, state = self.begin(input)
        time = 1 if self.batch_first else 0
        outputs = []
        for number, step in enumerate(input.unbind(time)):
            state = self.mask_state(step, self.step(step, *state), number)
            output, *_ = state
            outputs.append(output)
        self.keep(state)
        return torch.stack(outputs, time)


class SteppedLSTM(Stepped):
    """An LSTM of one layer that is computed step by step, for options that
    torch.nn.LSTM lacks.

    Args:
        input_size: size of each input.
        hidden_size: size of the cell.
        proj_size: size of the outputs if they are projected, to any size; 0 if they are
            not.
        batch_first: whether the batch is the first dimension and time the second.
        mask_zero: whether some examples return zeros, and their sequences restart after
            them: `zeros`, if they are zeros, or `mask`, by `set_zero_mask`.
        remember: when a sequence resumes from the last: `train`, `eval`, `both` or
            `neither`.
        state: output and cell after the last call; `None` if a sequence is to start.
    """

    input_size: int
    hidden_size: int
    proj_size: int = 0
    batch_first: bool = False
    mask_zero: str = ""
    remember: str = "neither"
    state: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        size = self.hidden_size
        proj = self.proj_size
        self.sizes = (proj or size, size)  # of output and cell
        # Gates i f g o, as in torch.nn.LSTM.
        self.weight_ih_l0 = uniform_parameter(
            (4 * size, self.input_size), hidden_size=size
        )
        self.weight_hh_l0 = uniform_parameter(
            (4 * size, proj or size), hidden_size=size
        )
        self.bias_ih_l0 = uniform_parameter((4 * size,), hidden_size=size)
        self.bias_hh_l0 = uniform_parameter((4 * size,), hidden_size=size)
        self.weight_hr_l0 = (
            uniform_parameter((proj, size), hidden_size=size) if proj else None
        )

    def step(self, input: Tensor, *state: Tensor) -> Any:
        """Return output and cell."""
        output, cell = state
        gates = F.linear(input, self.weight_ih_l0, self.bias_ih_l0)
        gates = gates + F.linear(output, self.weight_hh_l0, self.bias_hh_l0)
        output, cell = lstm_step(gates, cell)
        if self.weight_hr_l0 is not None:
            output = F.linear(output, self.weight_hr_l0)
        return output, cell


class SeqGRU(Stepped):
    """A GRU over whole sequences: the last output is reset before it is multiplied by
    its weight, in PyTorch after.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        batch_first: whether the batch is the first dimension and time the second.
        mask_zero: whether some examples return zeros, and their sequences restart after
            them: `zeros`, if they are zeros, or `mask`, by `set_zero_mask`.
        remember: when a sequence resumes from the last: `train`, `eval`, `both` or
            `neither`.
        state: the last output of the last call; `None` if a sequence is to start.
    """

    input_size: int
    hidden_size: int
    batch_first: bool = False
    mask_zero: str = ""
    remember: str = "neither"
    state: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        size = self.hidden_size
        self.sizes = (size,)  # of the output
        # Rows of the input, then of the output; columns of the gates r z n.
        self.weight = uniform_parameter(
            (self.input_size + size, 3 * size), hidden_size=size
        )
        self.bias = uniform_parameter((3 * size,), hidden_size=size)

    def step(self, input: Tensor, *state: Tensor) -> Any:
        """Return the output, in a list."""
        (last,) = state
        return [gru_step(input, last, self.weight, self.bias)]


class Sequencer(Remembering, nn.Sequential):
    """Applies a module to the steps of a sequence in turn.

    Args:
        module: processes one step.
        remember: when a sequence resumes from the last: `train`, `eval`, `both` or
            `neither`.
    """

    def __init__(self, module: nn.Module, remember: str = "neither") -> None:
        super().__init__(module)
        self.remember = remember

    def forward(self, inputs: Any) -> Any:
        """Take a list of steps, or a tensor with time as first dimension; return the
        outputs in the same way.
        """
        self.forget_if_mode_changed(self.training)
        if not self.remembers():
            self.forget()
        self._set_repetitions(len(inputs))
        outputs = []
        for number in range(len(inputs)):
            self.before_step(number)
            output = self[0](inputs[number])
            if not self.training:
                # As in Lua, each step has memory of its own, even where the module
                # returns its input.
                output = map_nested(torch.clone, output)
            outputs.append(output)
        self._detach_states()
        return torch.stack(outputs) if isinstance(inputs, Tensor) else outputs

    def before_step(self, number: int) -> None:
        """Notify the modules inside of the step that comes next; here none needs it."""

    # The modules inside are of any classes: the fields of those that have them are set.

    def _set_repetitions(self, count: int) -> None:
        """Let each `Repeater` inside that asks for it call its module as often."""
        for module in self.modules():
            fields = vars(module)
            if fields.get("as_sequence"):
                fields["steps"] = count

    def _detach_states(self) -> None:
        """Let the next sequence have no gradient for this one."""
        for module in self.modules():
            fields = vars(module)
            if "state" in fields:
                fields["state"] = map_nested(_detached, fields["state"])


def _detached(value: Any) -> Any:
    """Return a tensor without its history, anything else as it is."""
    return value.detach() if isinstance(value, Tensor) else value


class Steps(nn.Sequential):
    """Layers over whole sequences, for lists of steps."""

    def forward(self, inputs: Any) -> Any:
        """Take a list of steps of one shape, or a tensor with time as first dimension;
        return the outputs in the same way.
        """
        is_tensor = isinstance(inputs, Tensor)
        value = inputs if is_tensor else torch.stack(list(inputs))
        for module in self:
            value = module(value)
        if is_tensor:
            return value
        # As in Lua, each step has memory of its own.
        return [step.clone() for step in value]


class Repeater(Resuming, nn.Sequential):
    """Applies a module to the same input several times, from the start of a sequence.

    Args:
        module: processes one step.
        steps: number of steps.
        as_sequence: whether a `Sequencer` around it sets that to the number of its own.
    """

    def __init__(
        self, module: nn.Module, steps: int, as_sequence: bool = False
    ) -> None:
        super().__init__(module)
        self.steps = steps
        self.as_sequence = as_sequence

    def forward(self, input: Any) -> list[Any]:
        """Return a list of the outputs."""
        self.forget()
        return [map_nested(torch.clone, self[0](input)) for _ in range(self.steps)]


class BiSequencerLM(Resuming, nn.Sequential):
    """A forward network that sees the steps before each step, and a backward one that
    sees those after it.

    Args:
        forward: processes all steps but the last.
        backward: processes all steps but the first; reverses them itself.
        merge: merges two lists, with the context before and after each step;
            the ends are zeros.
    """

    def forward(self, inputs: list[Any]) -> Any:
        """Take a list of at least two steps; return the output of the merging."""
        forward, backward, merge = self
        before = forward(inputs[:-1])
        after = backward(inputs[1:])
        # Nothing is before the first step, and nothing after the last.
        start = map_nested(torch.zeros_like, before[0])
        end = map_nested(torch.zeros_like, after[0])
        return merge([[start, *before], [*after, end]])


class RecurrentAttention(Resuming, nn.Sequential):
    """A recurrent network that chooses at each step where to look at its input.

    Args:
        network: processes a list of the input and the location.
        action: maps the last output of the network, zeros at first, to the next
            location.
        steps: number of steps.
        hidden_size: the shape of an output of the network, without the batch.
        returns_actions: whether outputs are lists of the network's output and the
            location.
    """

    def __init__(
        self,
        network: nn.Module,
        action: nn.Module,
        steps: int,
        hidden_size: tuple[int, ...],
        returns_actions: bool,
    ) -> None:
        super().__init__(network, action)
        self.steps = steps
        self.hidden_size = hidden_size
        self.returns_actions = returns_actions

    def forward(self, input: Tensor) -> list[Any]:
        """Take a batch; return a list of the outputs of all steps, each a tensor or, if
        it returns actions, a list of a tensor and its location.
        """
        self.forget()
        network, action = self
        last: Any = input.new_zeros(input.size(0), *self.hidden_size)
        outputs = []
        for _ in range(self.steps):
            # As in Lua, after the first step this takes the list if there is one.
            place = action(last)
            output = network([input, place])
            last = [output, place] if self.returns_actions else output
            outputs.append(last)
        return outputs


class ReverseSequence(nn.Module):
    """The steps of a sequence in the opposite order."""

    def forward(self, inputs: Any) -> Any:
        """Take a list, or a tensor with time as first dimension; return the same."""
        return inputs.flip(0) if isinstance(inputs, Tensor) else list(inputs[::-1])


def _pass_mask(module: nn.Module, mask: Any) -> None:
    """Pass a mask of zeros to all modules inside that use it."""
    for inside in module.children():
        accept = getattr(inside, "set_zero_mask", None)
        if accept is not None:
            accept(mask)
        else:
            _pass_mask(inside, mask)


class MaskedSequencer(Masked, Sequencer):
    """Applies a module to the steps of a sequence in turn, and passes it the mask of
    zeros.

    Args:
        module: processes one step.
        remember: when a sequence resumes from the last: `train`, `eval`, `both` or
            `neither`.
    """

    def before_step(self, number: int) -> None:
        """Pass on the mask of a step."""
        mask = self.zero_mask
        _pass_mask(self, mask[number] if isinstance(mask, Tensor) else mask)


class MaskedSequential(Resuming, nn.Sequential):
    """Modules in sequence, of which some use the mask of zeros."""

    def set_zero_mask(self, mask: Any) -> None:
        """Set which steps of which examples are to be zeros: (time, batch), or False
        for none.
        """
        _pass_mask(self, mask)


class Reversed(MaskedSequential):
    """Modules in sequence that process sequences from the end to the start, as those
    among them reverse them.
    """

    def set_zero_mask(self, mask: Any) -> None:
        """Set which steps of which examples are to be zeros: (time, batch), or False
        for none.
        """
        super().set_zero_mask(mask.flip(0) if isinstance(mask, Tensor) else mask)


class VariableLength(nn.Sequential):
    """Applies a module for (time, batch, …) to sequences of different lengths.

    Args:
        module: processes the sequences, each as a batch of one.
        last_only: whether to return only the last outputs.
    """

    def __init__(self, module: nn.Module, last_only: bool = False) -> None:
        super().__init__(module)
        self.last_only = last_only

    def forward(self, inputs: list[Tensor]) -> Any:
        """Take a list of (time, …); return a list of outputs (time, …), or the last
        ones (batch, …).
        """
        _pass_mask(self, False)  # no sequence is filled up with zeros
        outputs = [self[0](input.unsqueeze(1)).squeeze(1) for input in inputs]
        if self.last_only:
            return torch.stack([output[-1] for output in outputs])
        return outputs


class OutputsOnly(nn.RNNBase):
    """A recurrent layer of torch.nn that returns only the outputs.

    Args:
        sizes, options: the arguments of the layer of torch.nn.
        remember: whether a sequence resumes from the last.
        hidden: outputs, for an LSTM outputs and cells, before the first sequence, or
            `None` for zeros; before all of them, if nothing is remembered.
    """

    def __init__(
        self, *sizes: Any, remember: bool = False, hidden: Any = None, **options: Any
    ) -> None:
        super().__init__(*sizes, **options)
        self.remember = remember
        self.hidden = hidden

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Take a sequence (time, batch, in), or a list of the output before it, (batch,
        hidden), and the sequence, if this is one layer and no LSTM. As in Lua, a state
        comes in this list: `hx` is not used.

        Returns:
            (time, batch, hidden * directions).
        """
        state = self.hidden
        if isinstance(input, (list, tuple)):
            output_before, input = input[:2]  # as in Lua, others are ignored
            state = output_before[None]  # with the dimension of the layers
        output, last = super().forward(input, self._initial_state(state, input))
        if self.remember and self.mode == "LSTM":
            self.hidden = tuple(part.detach() for part in last)
        elif self.remember:
            self.hidden = last.detach()
        return output

    def _initial_state(self, state: Any, input: Tensor) -> Any:
        """Return a state as tensors of the type of the input, for an LSTM a tuple of
        two; `None` for zeros.
        """
        if state is None:
            return None
        is_lstm = self.mode == "LSTM"
        parts = [
            torch.as_tensor(part, dtype=input.dtype, device=input.device)
            for part in (state if is_lstm else [state])
        ]
        batch = input.size(0 if self.batch_first else 1)
        # Parts are (layers * directions, batch, hidden).
        if self.remember and parts[0].size(1) != batch:
            # A batch of another size is of other sequences than those remembered.
            return None
        return tuple(parts) if is_lstm else parts[0]

    def forget(self) -> None:
        """Start from zeros with the next call."""
        self.hidden = None


class OutputsLSTM(OutputsOnly, nn.LSTM):
    """torch.nn.LSTM that returns only the outputs. Arguments as for `OutputsOnly`."""


class OutputsGRU(OutputsOnly, nn.GRU):
    """torch.nn.GRU that returns only the outputs. Arguments as for `OutputsOnly`."""


class OutputsRNN(OutputsOnly, nn.RNN):
    """torch.nn.RNN that returns only the outputs. Arguments as for `OutputsOnly`."""


class StatefulLSTM(FromList, nn.LSTM):  # type: ignore[misc]
    """torch.nn.LSTM that takes a list of input and state."""


class StatefulGRU(FromList, nn.GRU):  # type: ignore[misc]
    """torch.nn.GRU that takes a list of input and state."""


class StatefulRNN(FromList, nn.RNN):  # type: ignore[misc]
    """torch.nn.RNN that takes a list of input and state."""


class BareRNN(Layer):
    """torch.nn.RNN of one layer whose input is added directly.

    Args:
        hidden_size: size of each input, and of each output in one direction.
        nonlinearity: `tanh` or `relu`.
        bidirectional: whether there are outputs of a backward direction, behind those
            of the forward one.
        batch_first: whether the batch is the first dimension and time the second.
    """

    hidden_size: int
    nonlinearity: str = "tanh"
    bidirectional: bool = False
    batch_first: bool = False

    def __post_init__(self) -> None:
        size = self.hidden_size
        suffixes = ("_l0", "_l0_reverse") if self.bidirectional else ("_l0",)
        shapes: dict[str, tuple[int, ...]] = {}
        for suffix in suffixes:
            shapes[f"weight_hh{suffix}"] = (size, size)
            shapes[f"bias_ih{suffix}"] = (size,)
            shapes[f"bias_hh{suffix}"] = (size,)
        for name, shape in shapes.items():
            setattr(self, name, uniform_parameter(shape, hidden_size=size))

    def forward(self, input: Tensor) -> Tensor:
        """Take (time, batch, hidden); return (time, batch, hidden * directions)."""
        time = 1 if self.batch_first else 0
        steps = input.unbind(time)
        outputs = torch.stack(self._outputs(steps, "_l0"), time)
        if self.bidirectional:
            # From the last step to the first.
            backward = self._outputs(steps[::-1], "_l0_reverse")[::-1]
            outputs = torch.cat((outputs, torch.stack(backward, time)), -1)
        return outputs

    def _outputs(self, steps: tuple[Tensor, ...], suffix: str) -> list[Tensor]:
        """Return the outputs of one direction, in the order of the steps; `suffix` is
        that of its weights.
        """
        weight = getattr(self, f"weight_hh{suffix}")
        bias_input = getattr(self, f"bias_ih{suffix}")
        bias_hidden = getattr(self, f"bias_hh{suffix}")
        last = torch.zeros_like(steps[0])
        outputs = []
        for step in steps:
            last = step + F.linear(last, weight) + bias_input + bias_hidden
            last = last.relu() if self.nonlinearity == "relu" else last.tanh()
            outputs.append(last)
        return outputs


class BatchRNN(nn.Sequential):
    """Modules in sequence, the second and third of which see the steps of all sequences
    as one batch.

    The first and the fourth are not used: they have the sizes of the last input in Lua.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (time, batch, in); return (time, batch, out)."""
        # The first and the fourth are views, which the batch's own shape replaces.
        _, linear, normalize, _, *others = self
        of_all_steps = normalize(linear(input.flatten(0, 1)))
        output: Tensor = of_all_steps.unflatten(0, input.shape[:2])
        for module in others:
            output = module(output)
        return output
