"""Layers of crnn over the steps of a sequence."""

from __future__ import annotations

from torch import Tensor, nn

from t7bridge.layers import Layer


class LstmLayer(Layer):
    """Runs one step of an LSTM over a list.

    Args:
        lstmUnit: the step: maps input, cell and hidden state to cell, hidden state and
            output.
        hidden_size: of the states.
        reverse: whether to begin at the end.
    """

    lstmUnit: nn.Module
    hidden_size: int
    reverse: bool = False

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        """Take tensors (batch, n); return one (batch, hidden_size) each."""
        cell = inputs[0].new_zeros(inputs[0].size(0), self.hidden_size)
        hidden = cell
        outputs = []
        steps = reversed(inputs) if self.reverse else inputs
        for input in steps:
            cell, hidden, output = self.lstmUnit([input, cell, hidden])
            outputs.append(output)
        # In the order of the inputs.
        return outputs[::-1] if self.reverse else outputs


class BiRnnJoin(Layer):
    """Applies one module to the elements of two lists, pair by pair.

    Args:
        joinUnit: the module.
    """

    joinUnit: nn.Module

    def forward(self, inputs: list[list[Tensor]]) -> list[Tensor]:
        """Take two lists of the same length; return one."""
        return [self.joinUnit([first, second]) for first, second in zip(*inputs)]
