"""Gated recurrent units of rnn: the last output is reset before it is multiplied by its
weight, in PyTorch after.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class GRU(nn.Module):
    """A GRU that processes one step of a sequence per call and resumes from the last.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        mask_zero: whether a zero example returns zeros, and its sequence restarts after
            it.
        start: the output before a sequence; `None` for zeros.
        state: the output of the last call; `None` if a sequence is to start.
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
        # Of the gates r and z; of n.
        self.weight_ih = nn.Parameter(torch.empty(2 * hidden_size, input_size))
        self.bias_ih = nn.Parameter(torch.empty(2 * hidden_size))
        self.weight_hh = nn.Parameter(torch.empty(2 * hidden_size, hidden_size))
        self.weight_in = nn.Parameter(torch.empty(hidden_size, input_size))
        self.bias_in = nn.Parameter(torch.empty(hidden_size))
        self.weight_hn = nn.Parameter(torch.empty(hidden_size, hidden_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def forward(self, input: Tensor) -> Tensor:
        """Take (in) or (batch, in); return (hidden) or (batch, hidden)."""
        last = self.state if self.state is not None else self.start
        if last is None:
            last = input.new_zeros(*input.shape[:-1], self.hidden_size)
        last = torch.as_tensor(last).to(input).reshape(*input.shape[:-1], -1)
        gates = F.linear(input, self.weight_ih, self.bias_ih) + F.linear(
            last, self.weight_hh
        )
        r, z = gates.sigmoid().chunk(2, -1)
        n = F.linear(input, self.weight_in, self.bias_in) + F.linear(
            r * last, self.weight_hn
        )
        output = (1 - z) * n.tanh() + z * last
        if self.mask_zero:
            output = output.masked_fill((input == 0).all(-1, keepdim=True), 0)
        self.state = output
        return output

    def forget(self) -> None:
        """Start a new sequence with the next call."""
        self.state = None


class MuFuRu(nn.Module):
    """A unit that mixes the results of several operations on its last output and on the
    candidate.

    Processes one step of a sequence per call and resumes from the last.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        operations: some of `max`, `keep`, `replace`, `mul`, `min`, `diff`, `forget` and
            `sqrt_diff`.
        mask_zero: whether a zero example returns zeros, and its sequence restarts after
            it.
        start: the output before a sequence; `None` for zeros.
        state: the output of the last call; `None` if a sequence is to start.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        operations: tuple[str, ...],
        mask_zero: bool = False,
        start: Any = None,
        state: Any = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.operations = operations
        self.mask_zero = mask_zero
        self.start = start
        self.state = state
        self.input_reset = nn.Linear(input_size, hidden_size)
        self.output_reset = nn.Linear(hidden_size, hidden_size)
        self.new = nn.Linear(input_size + hidden_size, hidden_size)
        self.shares = nn.Linear(input_size + hidden_size, len(operations) * hidden_size)

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, in); return (batch, hidden)."""
        last = self.state if self.state is not None else self.start
        if last is None:
            last = input.new_zeros(len(input), self.hidden_size)
        last = torch.as_tensor(last).to(input)
        reset = (self.input_reset(input) + self.output_reset(last)).sigmoid()
        new = self.new(torch.cat((input, reset * last), 1)).sigmoid()
        shares = (
            self.shares(torch.cat((input, last), 1))
            .unflatten(1, (-1, self.hidden_size))
            .softmax(1)
        )
        output = torch.zeros_like(last)
        for number, name in enumerate(self.operations):
            output = output + shares[:, number] * self._operate(name, last, new)
        if self.mask_zero:
            output = output.masked_fill((input == 0).all(-1, keepdim=True), 0)
        self.state = output
        return output

    def _operate(self, name: str, last: Tensor, new: Tensor) -> Tensor:
        if name == "sqrt_diff":
            return (last - new).abs().clamp(min=1e-30).sqrt() / 4
        if name == "diff":
            return last - new
        if name == "mul":
            return last * new
        if name in ("max", "min"):
            return (
                torch.maximum(last, new) if name == "max" else torch.minimum(last, new)
            )
        return {"keep": last, "replace": new, "forget": torch.zeros_like(last)}[name]

    def forget(self) -> None:
        """Start a new sequence with the next call."""
        self.state = None


class StepGRU(nn.Module):
    """One step of a GRU, from a given output.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        mask_zero: whether some examples return zeros: `seen`, if they are zeros, or
            `told`, by `set_zero_mask`.
    """

    def __init__(self, input_size: int, hidden_size: int, mask_zero: str = "") -> None:
        super().__init__()
        self.sizes = [input_size, hidden_size]
        self.mask_zero = mask_zero
        self.zero_mask: Any = None
        # Rows of the input, then of the output; columns of the gates r, z and n.
        self.weight = nn.Parameter(
            torch.empty(input_size + hidden_size, 3 * hidden_size)
        )
        self.bias = nn.Parameter(torch.empty(3 * hidden_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take input (batch, in) and last output (batch, hidden); return the output
        (batch, hidden).
        """
        input, last = inputs
        weight_in, weight_out = torch.split(self.weight, self.sizes)
        r, z, n = (input @ weight_in + self.bias).chunk(3, -1)
        to_r, to_z, to_n = weight_out.chunk(3, -1)
        r = (r + last @ to_r).sigmoid()
        z = (z + last @ to_z).sigmoid()
        n = (n + (r * last) @ to_n).tanh()
        output: Tensor = (1 - z) * n + z * last
        if self.mask_zero:
            empty = (input == 0).all(-1, keepdim=True)
            if self.mask_zero == "told":
                empty = torch.as_tensor(self.zero_mask).to(empty).reshape(-1, 1)
            output = output.masked_fill(empty, 0)
        return output

    def set_zero_mask(self, mask: Any) -> None:
        """Set which examples of the next batch return zeros: (batch), or False for
        none.
        """
        self.zero_mask = mask


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
