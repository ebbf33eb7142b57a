"""The PyTorch class, and an operation of its own, as a kernel in C++ or CUDA would have."""

import torch

from t7bridge.layers import Layer


@torch.library.custom_op("gains::scale", mutates_args=())
def scale(input: torch.Tensor, factor: float) -> torch.Tensor:
    """Return a tensor times a number."""
    return input * factor


@scale.register_fake
def _(input, factor):
    return torch.empty_like(input)


class Gain(Layer):
    """A learned factor for each feature, and a number."""

    features: int
    slope: float = 1.0

    def __post_init__(self):
        self.gain = torch.nn.Parameter(torch.ones(self.features))

    def forward(self, input):
        """Return the shape of the input."""
        return scale(input * self.gain, self.slope)
