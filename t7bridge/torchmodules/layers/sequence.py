"""Modules that process whole sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SeqLSTM(nn.LSTM):
    """torch.nn.LSTM of one layer that returns only the outputs.

    Args:
        input_size: size of each input.
        hidden_size: size of the cell.
        proj_size: size of the outputs if they are projected; 0 if they are not.
        batch_first: whether the batch is the first dimension and time the second.
        remember: when a sequence resumes from the last: `train`, `eval`, `both` or
            `neither`, starting anew after a change between training and evaluation;
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
        self.remember = remember
        self.state = state
        # State in the file was seen in evaluation.
        self.trained_last = False if remember in ("both", "eval") else None

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Take (time, batch, in), or a list of first output, or cell and output,
        (batch, …) and that.

        Returns:
            (time, batch, out).
        """
        *given, input = input if isinstance(input, (list, tuple)) else [input]
        if self.remember != "always" and self.trained_last == (not self.training):
            self.forget()
        self.trained_last = self.training
        batch = input.size(0 if self.batch_first else 1)
        output, cell = self.state or (None, None)
        if given:
            output, cell = given[-1], given[0] if len(given) == 2 else cell
        output = (
            input.new_zeros(batch, self.proj_size or self.hidden_size)
            if output is None
            else output
        )
        cell = input.new_zeros(batch, self.hidden_size) if cell is None else cell
        first = (
            torch.as_tensor(output).to(input)[None],
            torch.as_tensor(cell).to(input)[None],
        )
        outputs, last = super().forward(input, first)
        remembers = self.remember in (
            "always",
            "both",
            "train" if self.training else "eval",
        )
        self.state = tuple(part[0].detach() for part in last) if remembers else None
        return outputs

    def train(self, mode: bool = True) -> Any:
        """Set the mode; a change starts a new sequence."""
        resumes = self.remember not in ("neither", "always")
        if resumes and self.trained_last == (not mode):
            self.forget()
        self.trained_last = mode
        return super().train(mode)

    def forget(self) -> None:
        """Start a new sequence with the next call."""
        self.state = None


class SteppedLSTM(nn.Module):
    """An LSTM of one layer that is computed step by step, for options that
    torch.nn.LSTM lacks.

    Args:
        input_size: size of each input.
        hidden_size: size of the cell.
        proj_size: size of the outputs if they are projected, to any size; 0 if they are
            not.
        batch_first: whether the batch is the first dimension and time the second.
        mask_zero: whether some examples return zeros, and their sequences restart after
            them: `seen`, if they are zeros, or `told`, by `set_zero_mask`.
        remember: when a sequence resumes from the last: `train`, `eval`, `both` or
            `neither`.
        state: output and cell after the last call; `None` if a sequence is to start.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        proj_size: int = 0,
        batch_first: bool = False,
        mask_zero: str = "",
        remember: str = "neither",
        state: Any = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.output_size = proj_size or hidden_size
        self.batch_first = batch_first
        self.mask_zero = mask_zero
        self.zero_mask: Any = None
        self.remember = remember
        self.state = state
        # State in the file was seen in evaluation.
        self.trained_last = False if remember in ("both", "eval") else None
        self.weight_ih_l0 = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh_l0 = nn.Parameter(torch.empty(4 * hidden_size, self.output_size))
        self.bias_ih_l0 = nn.Parameter(torch.empty(4 * hidden_size))
        self.bias_hh_l0 = nn.Parameter(torch.empty(4 * hidden_size))
        self.weight_hr_l0 = (
            nn.Parameter(torch.empty(proj_size, hidden_size)) if proj_size else None
        )
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def forward(self, input: Any) -> Tensor:
        """Take (time, batch, in), or a list of first output, or cell and output,
        (batch, …) and that.

        Returns:
            (time, batch, out).
        """
        *given, input = input if isinstance(input, (list, tuple)) else [input]
        steps = input.unbind(1 if self.batch_first else 0)
        if self.trained_last == (not self.training):
            self.forget()
        self.trained_last = self.training
        output, cell = self.state or (None, None)
        if given:
            output, cell = given[-1], given[0] if len(given) == 2 else cell
        output = (
            input.new_zeros(len(steps[0]), self.output_size)
            if output is None
            else torch.as_tensor(output)
        )
        cell = (
            input.new_zeros(len(steps[0]), self.hidden_size)
            if cell is None
            else torch.as_tensor(cell)
        )
        output, cell = output.to(input), cell.to(input)
        outputs = []
        for number, step in enumerate(steps):
            output, cell = self._step(step, output, cell)
            if self.mask_zero:
                empty = (step == 0).all(-1, keepdim=True)
                if self.mask_zero == "told":
                    told = (
                        self.zero_mask[number]
                        if isinstance(self.zero_mask, Tensor)
                        else self.zero_mask
                    )
                    empty = torch.as_tensor(told).to(empty).reshape(-1, 1)
                output, cell = output.masked_fill(empty, 0), cell.masked_fill(empty, 0)
            outputs.append(output)
        remembers = self.remember in ("both", "train" if self.training else "eval")
        self.state = (output.detach(), cell.detach()) if remembers else None
        return torch.stack(outputs, 1 if self.batch_first else 0)

    def _step(
        self, input: Tensor, output: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        gates = F.linear(input, self.weight_ih_l0, self.bias_ih_l0)
        gates = gates + F.linear(output, self.weight_hh_l0, self.bias_hh_l0)
        i, f, g, o = gates.chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        output = o.sigmoid() * cell.tanh()
        if self.weight_hr_l0 is not None:
            output = F.linear(output, self.weight_hr_l0)
        return output, cell

    def set_zero_mask(self, mask: Any) -> None:
        """Set which steps of which examples return zeros: (time, batch), or False for
        none.
        """
        self.zero_mask = mask

    def train(self, mode: bool = True) -> Any:
        """Set the mode; a change starts a new sequence."""
        resumes = self.remember not in ("neither", "always")
        if resumes and self.trained_last == (not mode):
            self.forget()
        self.trained_last = mode
        return super().train(mode)

    def forget(self) -> None:
        """Start a new sequence with the next call."""
        self.state = None


class SeqGRU(nn.Module):
    """A GRU over whole sequences.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        batch_first: whether the batch is the first dimension and time the second.
        mask_zero: whether some examples return zeros, and their sequences restart after
            them: `seen`, if they are zeros, or `told`, by `set_zero_mask`.
        remember: when a sequence resumes from the last: `train`, `eval`, `both` or
            `neither`.
        state: the last output of the last call; `None` if a sequence is to start.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        batch_first: bool = False,
        mask_zero: str = "",
        remember: str = "neither",
        state: Any = None,
    ) -> None:
        super().__init__()
        self.sizes = [input_size, hidden_size]
        self.batch_first = batch_first
        self.mask_zero = mask_zero
        self.zero_mask: Any = None
        self.remember = remember
        self.state = state
        # State in the file was seen in evaluation.
        self.trained_last = False if remember in ("both", "eval") else None
        # Rows of the input, then of the output; columns of the gates r, z and n.
        self.weight = nn.Parameter(
            torch.empty(input_size + hidden_size, 3 * hidden_size)
        )
        self.bias = nn.Parameter(torch.empty(3 * hidden_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def forward(self, input: Any) -> Tensor:
        """Take (time, batch, in), or a list of the first output (batch, hidden) and
        that.

        Returns:
            (time, batch, hidden).
        """
        *given, input = input if isinstance(input, (list, tuple)) else [input]
        steps = input.unbind(1 if self.batch_first else 0)
        if self.trained_last == (not self.training):
            self.forget()
        self.trained_last = self.training
        last = given[0] if given else self.state
        if last is None:
            last = input.new_zeros(len(steps[0]), self.sizes[1])
        last = torch.as_tensor(last).to(input)
        weight_in, weight_out = torch.split(self.weight, self.sizes)
        to_r, to_z, to_n = weight_out.chunk(3, -1)
        outputs = []
        for number, step in enumerate(steps):
            r, z, n = (step @ weight_in + self.bias).chunk(3, -1)
            r = (r + last @ to_r).sigmoid()
            z = (z + last @ to_z).sigmoid()
            n = (n + (r * last) @ to_n).tanh()
            last = (1 - z) * n + z * last
            if self.mask_zero:
                empty = (step == 0).all(-1, keepdim=True)
                if self.mask_zero == "told":
                    told = (
                        self.zero_mask[number]
                        if isinstance(self.zero_mask, Tensor)
                        else self.zero_mask
                    )
                    empty = torch.as_tensor(told).to(empty).reshape(-1, 1)
                last = last.masked_fill(empty, 0)
            outputs.append(last)
        remembers = self.remember in ("both", "train" if self.training else "eval")
        self.state = last.detach() if remembers else None
        return torch.stack(outputs, 1 if self.batch_first else 0)

    def train(self, mode: bool = True) -> Any:
        """Set the mode; a change starts a new sequence."""
        resumes = self.remember not in ("neither", "always")
        if resumes and self.trained_last == (not mode):
            self.forget()
        self.trained_last = mode
        return super().train(mode)

    def forget(self) -> None:
        """Start a new sequence with the next call."""
        self.state = None

    def set_zero_mask(self, mask: Any) -> None:
        """Set which steps of which examples return zeros: (time, batch), or False for
        none.
        """
        self.zero_mask = mask


def _forget(module: nn.Module) -> None:
    for inside in module.modules():
        if "state" in vars(inside):
            vars(inside)["state"] = None


class Sequencer(nn.Sequential):
    """Applies a module to the steps of a sequence in turn.

    Args:
        module: processes one step.
        remember: when a sequence resumes from the last: `train`, `eval`, `both` or
            `neither`.
    """

    def __init__(self, module: nn.Module, remember: str = "neither") -> None:
        super().__init__(module)
        self.remember = remember
        # State in the file was seen in evaluation.
        self.trained_last = False if remember in ("both", "eval") else None

    def forward(self, inputs: Any) -> Any:
        """Take a list of steps, or a tensor with time as first dimension; return the
        outputs in the same way.
        """
        remembers = self.remember in ("both", "train" if self.training else "eval")
        if not remembers or self.trained_last == (not self.training):
            self.forget()
        self.trained_last = self.training
        for module in self.modules():
            if vars(module).get("as_sequence"):
                vars(module)["steps"] = len(inputs)
        outputs = [self[0](input) for input in inputs]
        # As in Lua, a step of its own even where the module returns its input.
        if not self.training:
            outputs = _copied(outputs)
        for module in self.modules():
            if "state" in vars(module):
                vars(module)["state"] = _detached(vars(module)["state"])
        return torch.stack(outputs) if isinstance(inputs, Tensor) else outputs

    def train(self, mode: bool = True) -> Any:
        """Set the mode; a change starts a new sequence."""
        resumes = self.remember not in ("neither", "always")
        if resumes and self.trained_last == (not mode):
            self.forget()
        self.trained_last = mode
        return super().train(mode)

    def forget(self) -> None:
        """Let all modules inside start a new sequence with the next call."""
        _forget(self)


def _copied(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copied(part) for part in value]
    return value.clone()


def _detached(state: Any) -> Any:
    if isinstance(state, (list, tuple)):
        return [_detached(part) for part in state]
    return state.detach() if isinstance(state, Tensor) else state


class Repeater(nn.Sequential):
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
        return [_copied(self[0](input)) for _ in range(self.steps)]

    def forget(self) -> None:
        """Let all modules inside start a new sequence with the next call."""
        _forget(self)


class BiSequencerLM(nn.Sequential):
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
        before, after, merge = self
        known = before(inputs[:-1])
        ahead = after(inputs[1:])
        return merge([[self._zeros(known[0]), *known], [*ahead, self._zeros(ahead[0])]])

    def _zeros(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._zeros(part) for part in value]
        return torch.zeros_like(value)

    def forget(self) -> None:
        """Let all modules inside start a new sequence with the next call."""
        _forget(self)


class RecurrentAttention(nn.Sequential):
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
        """Take a batch; return a list of the outputs of all steps."""
        self.forget()
        network, action = self
        last: Any = input.new_zeros(input.size(0), *self.hidden_size)
        outputs = []
        for _ in range(self.steps):
            place = action(last)
            output = network([input, place])
            last = [output, place] if self.returns_actions else output
            outputs.append(last)
        return outputs

    def forget(self) -> None:
        """Let all modules inside start a new sequence with the next call."""
        _forget(self)


class ReverseSequence(nn.Module):
    """The steps of a sequence in the opposite order."""

    def forward(self, inputs: Any) -> Any:
        """Take a list, or a tensor with time as first dimension; return the same."""
        return inputs.flip(0) if isinstance(inputs, Tensor) else list(inputs[::-1])


def _tell(module: nn.Module, mask: Any) -> None:
    """Pass a mask of zeros to all modules inside that use it."""
    for inside in module.children():
        tell = getattr(inside, "set_zero_mask", None)
        if tell is not None:
            tell(mask)
        else:
            _tell(inside, mask)


class MaskedSequencer(nn.Sequential):
    """Applies a module to the steps of a sequence in turn, and passes it the mask of
    zeros.

    Args:
        module: processes one step.
        remember: when a sequence resumes from the last: `train`, `eval`, `both` or
            `neither`.
    """

    def __init__(self, module: nn.Module, remember: str = "neither") -> None:
        super().__init__(module)
        self.remember = remember
        # State in the file was seen in evaluation.
        self.trained_last = False if remember in ("both", "eval") else None
        self.zero_mask: Any = None

    def forward(self, inputs: Any) -> Any:
        """Take a list of steps, or a tensor with time as first dimension; return the
        outputs in the same way.
        """
        remembers = self.remember in ("both", "train" if self.training else "eval")
        if not remembers or self.trained_last == (not self.training):
            self.forget()
        self.trained_last = self.training
        for module in self.modules():
            if vars(module).get("as_sequence"):
                vars(module)["steps"] = len(inputs)
        outputs = []
        for step, input in enumerate(inputs):
            _tell(
                self,
                self.zero_mask[step]
                if isinstance(self.zero_mask, Tensor)
                else self.zero_mask,
            )
            output = self[0](input)
            outputs.append(output if self.training else _copied(output))
        for module in self.modules():
            if "state" in vars(module):
                vars(module)["state"] = _detached(vars(module)["state"])
        return torch.stack(outputs) if isinstance(inputs, Tensor) else outputs

    def train(self, mode: bool = True) -> Any:
        """Set the mode; a change starts a new sequence."""
        resumes = self.remember not in ("neither", "always")
        if resumes and self.trained_last == (not mode):
            self.forget()
        self.trained_last = mode
        return super().train(mode)

    def forget(self) -> None:
        """Let all modules inside start a new sequence with the next call."""
        _forget(self)

    def set_zero_mask(self, mask: Any) -> None:
        """Set which steps of which examples are to be zeros: (time, batch), or False
        for none.
        """
        self.zero_mask = mask


class MaskedSequential(nn.Sequential):
    """Modules in sequence, of which some use the mask of zeros."""

    def set_zero_mask(self, mask: Any) -> None:
        """Set which steps of which examples are to be zeros: (time, batch), or False
        for none.
        """
        _tell(self, mask)

    def forget(self) -> None:
        """Let all modules inside start a new sequence with the next call."""
        _forget(self)


class Reversed(nn.Sequential):
    """Modules in sequence that process sequences from the end to the start, as those
    among them reverse them.
    """

    def set_zero_mask(self, mask: Any) -> None:
        """Set which steps of which examples are to be zeros: (time, batch), or False
        for none.
        """
        _tell(self, mask.flip(0) if isinstance(mask, Tensor) else mask)

    def forget(self) -> None:
        """Let all modules inside start a new sequence with the next call."""
        _forget(self)


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
        _tell(self, False)
        outputs = [self[0](input.unsqueeze(1)).squeeze(1) for input in inputs]
        return (
            torch.stack([output[-1] for output in outputs])
            if self.last_only
            else outputs
        )


class OutputsLSTM(nn.LSTM):
    """torch.nn.LSTM that returns only the outputs.

    Args:
        input_size, hidden_size, num_layers, batch_first, dropout, bidirectional: as in
            torch.nn.LSTM.
        remember: whether a sequence resumes from the last.
        hidden: outputs and cells before the first sequence, or `None` for zeros; before
            all of them, if nothing is remembered.
    """

    def __init__(
        self, *sizes: int, remember: bool = False, hidden: Any = None, **options: Any
    ) -> None:
        super().__init__(*sizes, **options)
        self.remember = remember
        self.hidden = hidden

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Take (time, batch, in); return (time, batch, hidden * directions)."""
        first = self.hidden and tuple(
            torch.as_tensor(part).to(input) for part in self.hidden
        )
        if (
            self.remember
            and first
            and first[0].size(1) != input.size(0 if self.batch_first else 1)
        ):
            first = None
        output, last = super().forward(input, first)
        if self.remember:
            self.hidden = tuple(part.detach() for part in last)
        return output

    def forget(self) -> None:
        """Start from zeros with the next call."""
        self.hidden = None


class OutputsGRU(nn.GRU):
    """torch.nn.GRU that returns only the outputs.

    Args:
        input_size, hidden_size, num_layers, batch_first, dropout, bidirectional: as in
            torch.nn.GRU.
        remember: whether a sequence resumes from the last.
        hidden: outputs before the first sequence, or `None` for zeros; before all of
            them, if nothing is remembered.
    """

    def __init__(
        self, *sizes: int, remember: bool = False, hidden: Any = None, **options: Any
    ) -> None:
        super().__init__(*sizes, **options)
        self.remember = remember
        self.hidden = hidden

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Take (time, batch, in); return (time, batch, hidden * directions)."""
        first = None if self.hidden is None else torch.as_tensor(self.hidden).to(input)
        if (
            self.remember
            and first is not None
            and first.size(1) != input.size(0 if self.batch_first else 1)
        ):
            first = None
        output, last = super().forward(input, first)
        if self.remember:
            self.hidden = last.detach()
        return output

    def forget(self) -> None:
        """Start from zeros with the next call."""
        self.hidden = None


class OutputsRNN(nn.RNN):
    """torch.nn.RNN that returns only the outputs.

    Args:
        input_size, hidden_size, num_layers, nonlinearity, batch_first, dropout,
            bidirectional: as in torch.nn.RNN.
        remember: whether a sequence resumes from the last.
        hidden: outputs before the first sequence, or `None` for zeros; before all of
            them, if nothing is remembered.
    """

    def __init__(
        self, *sizes: int, remember: bool = False, hidden: Any = None, **options: Any
    ) -> None:
        super().__init__(*sizes, **options)
        self.remember = remember
        self.hidden = hidden

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Take (time, batch, in), or a list of the first outputs (batch, hidden) and
        that; return the outputs.

        Returns:
            (time, batch, hidden * directions).
        """
        given = None
        if isinstance(input, (list, tuple)):
            given, input = input
            given = given[None]
        first = given if given is not None else self.hidden
        first = None if first is None else torch.as_tensor(first).to(input)
        if (
            self.remember
            and first is not None
            and first.size(1) != input.size(0 if self.batch_first else 1)
        ):
            first = None
        output, last = super().forward(input, first)
        if self.remember:
            self.hidden = last.detach()
        return output

    def forget(self) -> None:
        """Start from zeros with the next call."""
        self.hidden = None


class BareRNN(nn.Module):
    """torch.nn.RNN of one layer whose input is added directly.

    Args:
        hidden_size: size of each input, and of each output in one direction.
        nonlinearity: `tanh` or `relu`.
        bidirectional: whether there are outputs of a backward direction, behind those
            of the forward one.
        batch_first: whether the batch is the first dimension and time the second.
    """

    def __init__(
        self,
        hidden_size: int,
        nonlinearity: str = "tanh",
        bidirectional: bool = False,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        self.nonlinearity = nonlinearity
        self.batch_first = batch_first
        self.suffixes = ("_l0", "_l0_reverse") if bidirectional else ("_l0",)
        for suffix in self.suffixes:
            self.register_parameter(
                f"weight_hh{suffix}",
                nn.Parameter(torch.empty(hidden_size, hidden_size)),
            )
            self.register_parameter(
                f"bias_ih{suffix}", nn.Parameter(torch.empty(hidden_size))
            )
            self.register_parameter(
                f"bias_hh{suffix}", nn.Parameter(torch.empty(hidden_size))
            )
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def forward(self, input: Tensor) -> Tensor:
        """Take (time, batch, hidden); return (time, batch, hidden * directions)."""
        steps = input.unbind(1 if self.batch_first else 0)
        outputs = [self._direction(steps, self.suffixes[0])]
        if len(self.suffixes) == 2:
            outputs.append(self._direction(steps[::-1], self.suffixes[1])[::-1])
        return torch.stack(
            [torch.cat(parts, -1) for parts in zip(*outputs)],
            1 if self.batch_first else 0,
        )

    def _direction(self, steps: tuple[Tensor, ...], suffix: str) -> list[Tensor]:
        weight, *biases = (
            getattr(self, f"{name}{suffix}")
            for name in ("weight_hh", "bias_ih", "bias_hh")
        )
        last = torch.zeros_like(steps[0])
        found = []
        for step in steps:
            last = step + F.linear(last, weight) + biases[0] + biases[1]
            last = last.relu() if self.nonlinearity == "relu" else last.tanh()
            found.append(last)
        return found


class BatchRNN(nn.Sequential):
    """Modules in sequence, the second and third of which see the steps of all sequences
    as one batch.

    The first and the fourth are not used: they have the sizes of the last input in Lua.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Take (time, batch, in); return (time, batch, out)."""
        _, linear, normalize, _, *others = self
        output: Tensor = normalize(linear(input.flatten(0, 1))).unflatten(
            0, input.shape[:2]
        )
        for module in others:
            output = module(output)
        return output


class CaptionModel(nn.Module):
    """Returns the log-probabilities of the next word, for the words of sentences
    about images.

    Args:
        core: one step: maps a list of input and states to a list of states and outputs.
        lookup_table: vectors of words; the last is that of the start and end of a
            sentence.
        state_size: of each state.
        states: number of states.
        last: the index of its last word in `lookup_table`.
        index_base: the index of its first.
    """

    def __init__(
        self,
        core: nn.Module,
        lookup_table: nn.Module,
        state_size: int,
        states: int,
        last: int,
        index_base: int = 1,
    ) -> None:
        super().__init__()
        self.core = core
        self.lookup_table = lookup_table
        self.state_size = state_size
        self.states = states
        self.last = last
        self.index_base = index_base

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take codes of images (batch, n) and words (length, batch), which are one less
        than the first after the end of a sentence; return (length + 2, batch, words).
        """
        images, words = inputs
        state = [images.new_zeros(words.size(1), self.state_size)] * self.states
        outputs: list[Tensor] = []
        for step in range(words.size(0) + 2):
            if step == 0:
                current = images
            elif step == 1:
                current = self.lookup_table(torch.full_like(words[0], self.last))
            elif bool((words[step - 2] >= self.index_base).any()):
                current = self.lookup_table(words[step - 2].clamp(min=self.index_base))
            else:
                outputs.append(
                    torch.zeros_like(outputs[-1])
                )  # all sentences have ended
                continue
            *state, output = self.core([current, *state])
            outputs.append(output)
        return torch.stack(outputs)


class TextModel(nn.Sequential):
    """A sequence of modules of which some process the steps of all sequences together.

    Args:
        modules: the modules.
        views: the positions of those that switch between the two, 0-based.
    """

    def __init__(self, *modules: nn.Module, views: tuple[int, ...] = ()) -> None:
        super().__init__(*modules)
        self.views = views

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, steps, …); return (batch, steps, n)."""
        batch, steps = input.shape[:2]
        output = input
        together = False
        for position, module in enumerate(self):
            if position in self.views:
                shape = (batch, steps, *output.shape[1:])
                output = output.reshape(shape) if together else output.flatten(0, 1)
                together = not together
            else:
                output = module(output)
        return output


class LstmLayer(nn.Module):
    """Runs one step of an LSTM over a list.

    Args:
        lstmUnit: the step: maps input, cell and hidden state to cell, hidden state and
            output.
        hidden_size: of the states.
        reverse: whether to begin at the end.
    """

    def __init__(
        self, lstmUnit: nn.Module, hidden_size: int, reverse: bool = False
    ) -> None:
        super().__init__()
        self.lstmUnit = lstmUnit
        self.hidden_size = hidden_size
        self.reverse = reverse

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        """Take tensors (batch, n); return one (batch, hidden_size) each."""
        cell = hidden = inputs[0].new_zeros(inputs[0].size(0), self.hidden_size)
        outputs = []
        for input in reversed(inputs) if self.reverse else inputs:
            cell, hidden, output = self.lstmUnit([input, cell, hidden])
            outputs.append(output)
        return outputs[::-1] if self.reverse else outputs


class BiRnnJoin(nn.Module):
    """Applies one module to the elements of two lists, pair by pair.

    Args:
        joinUnit: the module.
    """

    def __init__(self, joinUnit: nn.Module) -> None:
        super().__init__()
        self.joinUnit = joinUnit

    def forward(self, inputs: list[list[Tensor]]) -> list[Tensor]:
        """Take two lists of the same length; return one."""
        return [self.joinUnit([first, second]) for first, second in zip(*inputs)]
