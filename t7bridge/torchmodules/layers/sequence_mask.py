"""Modules over whole sequences with a mask of steps that are to be zeros."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def _forget(module: nn.Module) -> None:
    for inside in module.modules():
        if "state" in vars(inside):
            vars(inside)["state"] = None


def _tell(module: nn.Module, mask: Any) -> None:
    """Pass a mask of zeros to all modules inside that use it."""
    for inside in module.children():
        tell = getattr(inside, "set_zero_mask", None)
        if tell is not None:
            tell(mask)
        else:
            _tell(inside, mask)


def _copied(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copied(part) for part in value]
    return value.clone()


def _detached(state: Any) -> Any:
    if isinstance(state, (list, tuple)):
        return [_detached(part) for part in state]
    return state.detach() if isinstance(state, Tensor) else state


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
