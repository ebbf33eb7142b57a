"""cuDNN's recurrent networks as in Lua: torch.nn.LSTM, GRU and RNN that return only the
outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
