"""Models of language and of text lines: modules over steps of a sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


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


class FeatExpander(nn.Module):
    """Repeats each row.

    Args:
        times: number of repetitions.
    """

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n); return (batch * times, n)."""
        return input.repeat_interleave(self.times, 0)


class CaptionCriterion(nn.Module):
    """The mean negative log-likelihood of the words of sentences, and of their ends.

    Args:
        index_base: number of the first word.
    """

    def __init__(self, index_base: int = 1) -> None:
        super().__init__()
        self.index_base = index_base

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take logarithms (length + 2, batch, words) and words (length, batch), smaller
        than the first after the end of a sentence; return a scalar.
        """
        words = target.long() - self.index_base
        wanted = torch.cat((words, words.new_full((1, words.size(1)), -1)))
        missing = wanted < 0
        # The first missing word is the end of the sentence, which is the last of the
        # words.
        wanted = wanted.masked_fill(
            missing & (missing.long().cumsum(0) == 1), input.size(-1) - 1
        )
        counted = wanted >= 0
        chosen = input[1:].gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
        return -(chosen * counted).sum() / counted.sum()


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


class TemporalCrossEntropyCriterion(nn.Module):
    """The negative log-softmax of the right class at each step.

    Args:
        batch_average: whether to divide the sum by the number of sequences.
        time_average: whether to divide it by the number of steps.
        index_base: number of the first class; smaller targets do not count.
    """

    def __init__(
        self,
        batch_average: bool = True,
        time_average: bool = False,
        index_base: int = 1,
    ) -> None:
        super().__init__()
        self.batch_average = batch_average
        self.time_average = time_average
        self.index_base = index_base

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take (batch, steps, classes) and (batch, steps); return a scalar."""
        wanted = (target.long() - self.index_base).clamp(min=-1)
        loss = nn.functional.cross_entropy(
            input.flatten(0, 1), wanted.flatten(), ignore_index=-1, reduction="sum"
        )
        parts = (input.size(0) if self.batch_average else 1) * (
            input.size(1) if self.time_average else 1
        )
        return loss / parts


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


class Wrapper(nn.Module):
    """A module under the name `net`.

    Args:
        net: the module.
        first: whether to pass it only the first element of a list.
    """

    def __init__(self, net: nn.Module, first: bool = False) -> None:
        super().__init__()
        self.net = net
        self.first = first

    def forward(self, input: Any) -> Any:
        """Return the output of the module."""
        return self.net(
            input[0] if self.first and isinstance(input, (list, tuple)) else input
        )


class JoinReplicateTable(nn.Module):
    """Tensors concatenated along a dimension, after those of extent 1 along another
    were repeated there.

    Args:
        replicate_dim: the dimension of the repetition.
        join_dim: the dimension of the concatenation.
        n_input_dims: dimensions of one example; `None` if both count the batch.
    """

    def __init__(
        self, replicate_dim: int, join_dim: int, n_input_dims: int | None = None
    ) -> None:
        super().__init__()
        self.replicate_dim = replicate_dim
        self.join_dim = join_dim
        self.n_input_dims = n_input_dims

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Return one tensor of as many dimensions."""
        batched = (
            self.n_input_dims is not None and inputs[0].dim() == self.n_input_dims + 1
        )
        replicate, join = (
            dim + 1 if batched and dim >= 0 else dim
            for dim in (self.replicate_dim, self.join_dim)
        )
        extent = max(input.size(replicate) for input in inputs)
        even = [
            input.repeat_interleave(extent, replicate)
            if input.size(replicate) == 1
            else input
            for input in inputs
        ]
        return torch.cat(even, join)
