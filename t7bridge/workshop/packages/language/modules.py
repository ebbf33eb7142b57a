"""Language models of neuraltalk2 and torch-rnn, and their criterions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from t7bridge.layers import Layer


class CaptionModel(Layer):
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

    core: nn.Module
    lookup_table: nn.Module
    state_size: int
    states: int
    last: int
    index_base: int = 1

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take codes of images (batch, n) and words (length, batch), which are one less
        than the first after the end of a sentence; return (length + 2, batch, words).
        """
        images, words = inputs
        state = [images.new_zeros(words.size(1), self.state_size)] * self.states
        outputs: list[Tensor] = []
        for step in range(words.size(0) + 2):
            if step == 0:
                # The first step sees the image.
                current = images
            elif step == 1:
                # The second sees the start of a sentence.
                current = self.lookup_table(torch.full_like(words[0], self.last))
            elif bool((words[step - 2] >= self.index_base).any()):
                current = self.lookup_table(words[step - 2].clamp(min=self.index_base))
            else:
                # All sentences have ended.
                outputs.append(torch.zeros_like(outputs[-1]))
                continue
            *state, output = self.core([current, *state])
            outputs.append(output)
        return torch.stack(outputs)


class TextModel(nn.Sequential):
    """A sequence of modules of which some process the steps of all sequences together.

    Args:
        modules: the modules.
        views: the positions of those that merge the steps of all sequences into rows,
            or split the rows again, in turn, 0-based. Only their places count.
    """

    def __init__(self, *modules: nn.Module, views: tuple[int, ...] = ()) -> None:
        super().__init__(*modules)
        self.views = views

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, steps, …); return (batch, steps, n)."""
        batch, steps = input.shape[:2]
        output = input
        is_merged = False  # whether the output is (batch * steps, …)
        for position, module in enumerate(self):
            if position not in self.views:
                output = module(output)
            elif is_merged:
                output = output.reshape(batch, steps, *output.shape[1:])
                is_merged = False
            else:
                output = output.flatten(0, 1)
                is_merged = True
        return output


class FeatExpander(Layer):
    """Repeats each row.

    Args:
        times: number of repetitions.
    """

    times: int

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, n); return (batch * times, n)."""
        return input.repeat_interleave(self.times, 0)


class CaptionCriterion(Layer):
    """The mean negative log-likelihood of the words of sentences, and of their ends.

    Args:
        index_base: number of the first word.
    """

    index_base: int = 1

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take logarithms (length + 2, batch, words) and words (length, batch), smaller
        than the first after the end of a sentence; return a scalar.
        """
        words = target.long() - self.index_base
        # A row more, as the longest sentence has an end too.
        words = torch.cat((words, words.new_full((1, words.size(1)), -1)))
        missing = words < 0
        # The first missing word of a sentence is its end, which is the last of the
        # words; the others do not count.
        is_end = missing & (missing.long().cumsum(0) == 1)
        words = words.masked_fill(is_end, input.size(-1) - 1)
        counted = words >= 0
        # The first step saw the image, and predicts nothing.
        predicted = input[1:]
        chosen = predicted.gather(-1, words.clamp(min=0)[..., None])[..., 0]
        return -(chosen * counted).sum() / counted.sum()


class TemporalCrossEntropyCriterion(Layer):
    """The negative log-softmax of the right class at each step.

    Args:
        batch_average: whether to divide the sum by the number of sequences.
        time_average: whether to divide it by the number of steps.
        index_base: number of the first class; smaller targets do not count.
    """

    batch_average: bool = True
    time_average: bool = False
    index_base: int = 1

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Take (batch, steps, classes) and (batch, steps); return a scalar."""
        classes = (target.long() - self.index_base).clamp(min=-1)
        loss = nn.functional.cross_entropy(
            input.flatten(0, 1), classes.flatten(), ignore_index=-1, reduction="sum"
        )
        divisor = 1
        if self.batch_average:
            divisor *= input.size(0)
        if self.time_average:
            divisor *= input.size(1)
        return loss / divisor
