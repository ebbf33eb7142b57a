"""Long short-term memory of rnn and torch-rnn: cells that resume from their last step,
and whole sequences.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FastLSTM(nn.Module):
    """An LSTM that processes one step of a sequence per call and resumes from the last.

    Its weights are those of torch.nn.LSTMCell, with one bias.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        mask_zero: whether a zero example returns zeros, and its sequence restarts after
            it.
        start: output and cell before a sequence; `None` for zeros.
        state: output and cell after the last call; `None` if a sequence is to start.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        mask_zero: bool = False,
        start: Any = None,
        state: Any = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.mask_zero = mask_zero
        self.start = start
        self.state = state
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(4 * hidden_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def forward(self, input: Tensor) -> Tensor:
        """Take (in) or (batch, in); return (hidden) or (batch, hidden)."""
        zeros = (input.new_zeros(*input.shape[:-1], self.hidden_size),) * 2
        output, cell = (
            torch.as_tensor(part).to(input).reshape(*input.shape[:-1], -1)
            for part in self.state or self.start or zeros
        )
        gates = F.linear(input, self.weight_ih, self.bias) + F.linear(
            output, self.weight_hh
        )
        i, f, g, o = gates.chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        output = o.sigmoid() * cell.tanh()
        if self.mask_zero:
            empty = (input == 0).all(-1, keepdim=True)
            output, cell = output.masked_fill(empty, 0), cell.masked_fill(empty, 0)
        self.state = (output, cell)
        return output

    def forget(self) -> None:
        """Start a new sequence with the next call."""
        self.state = None


class LSTM(nn.Module):
    """An LSTM with peepholes, one step of a sequence per call, resuming from the last.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        peephole: whether the gates see the cell.
        mask_zero: whether a zero example returns zeros, and its sequence restarts after
            it.
        start: output and cell before a sequence; `None` for zeros.
        state: output and cell after the last call; `None` if a sequence is to start.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        peephole: bool = True,
        mask_zero: bool = False,
        start: Any = None,
        state: Any = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.peephole = peephole
        self.mask_zero = mask_zero
        self.start = start
        self.state = state
        # Of the input gate, the forget gate, the cell candidate and the output gate.
        for gate in "ifgo":
            self.register_parameter(
                f"weight_i{gate}", nn.Parameter(torch.empty(hidden_size, input_size))
            )
            self.register_parameter(
                f"bias_{gate}", nn.Parameter(torch.empty(hidden_size))
            )
            self.register_parameter(
                f"weight_h{gate}", nn.Parameter(torch.empty(hidden_size, hidden_size))
            )
            if peephole and gate != "g":
                self.register_parameter(
                    f"weight_c{gate}", nn.Parameter(torch.empty(hidden_size))
                )
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def forward(self, input: Tensor) -> Tensor:
        """Take (in) or (batch, in); return (hidden) or (batch, hidden)."""
        zeros = (input.new_zeros(*input.shape[:-1], self.hidden_size),) * 2
        output, cell = (
            torch.as_tensor(part).to(input).reshape(*input.shape[:-1], -1)
            for part in self.state or self.start or zeros
        )
        i = self._sum("i", input, output, cell).sigmoid()
        f = self._sum("f", input, output, cell).sigmoid()
        g = self._sum("g", input, output).tanh()
        cell = f * cell + i * g
        output = self._sum("o", input, output, cell).sigmoid() * cell.tanh()
        if self.mask_zero:
            empty = (input == 0).all(-1, keepdim=True)
            output, cell = output.masked_fill(empty, 0), cell.masked_fill(empty, 0)
        self.state = (output, cell)
        return output

    def _sum(
        self, gate: str, input: Tensor, output: Tensor, cell: Tensor | None = None
    ) -> Tensor:
        seen = F.linear(
            input, getattr(self, f"weight_i{gate}"), getattr(self, f"bias_{gate}")
        )
        seen = seen + F.linear(output, getattr(self, f"weight_h{gate}"))
        if self.peephole and cell is not None:
            seen = seen + getattr(self, f"weight_c{gate}") * cell
        return seen

    def forget(self) -> None:
        """Start a new sequence with the next call."""
        self.state = None


class StepLSTM(nn.Module):
    """One step of an LSTM, from a given state.

    Its weights are those of torch.nn.LSTMCell, with one bias.

    Args:
        input_size: size of each input.
        hidden_size: size of the cell.
        proj_size: size of the output if the hidden state is projected; 0 if it is not.
        mask_zero: whether some examples return zeros: `seen`, if they are zeros, or
            `told`, by `set_zero_mask`.
    """

    def __init__(
        self, input_size: int, hidden_size: int, proj_size: int = 0, mask_zero: str = ""
    ) -> None:
        super().__init__()
        self.mask_zero = mask_zero
        self.zero_mask: Any = None
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(
            torch.empty(4 * hidden_size, proj_size or hidden_size)
        )
        self.bias = nn.Parameter(torch.empty(4 * hidden_size))
        self.weight_hr = (
            nn.Parameter(torch.empty(proj_size, hidden_size)) if proj_size else None
        )
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        """Take input (batch, in), last output (batch, out) and last cell (batch,
        hidden); return output and cell.
        """
        input, output, cell = inputs
        gates = F.linear(input, self.weight_ih, self.bias) + F.linear(
            output, self.weight_hh
        )
        i, f, g, o = gates.chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        output = o.sigmoid() * cell.tanh()
        if self.weight_hr is not None:
            output = F.linear(output, self.weight_hr)
        if self.mask_zero:
            empty = (input == 0).all(-1, keepdim=True)
            if self.mask_zero == "told":
                empty = torch.as_tensor(self.zero_mask).to(empty).reshape(-1, 1)
            output, cell = output.masked_fill(empty, 0), cell.masked_fill(empty, 0)
        return [output, cell]

    def set_zero_mask(self, mask: Any) -> None:
        """Set which examples of the next batch return zeros: (batch), or False for
        none.
        """
        self.zero_mask = mask


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
