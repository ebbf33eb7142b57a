"""Modules that process whole sequences by applying other modules step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


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
