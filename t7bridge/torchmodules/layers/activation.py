"""Transfer functions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import Layer, dim_of, records_gradients, square_root, with_batch


class Softmax(nn.Module):
    """Softmax over the features, wherever they are: (n), (batch, n), (n, h, w) or
    (batch, n, h, w).
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return positive numbers that sum to 1 over the features, in the shape of the
        input.
        """
        return torch.softmax(input, 0 if input.dim() in (1, 3) else 1)


class Softmin(nn.Module):
    """Softmax of the negated input; shapes as for `Softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return positive numbers that sum to 1 over the features, in the shape of the
        input.
        """
        return torch.softmax(-input, 0 if input.dim() in (1, 3) else 1)


class LogSoftmax(nn.Module):
    """Logarithm of the softmax; shapes as for `Softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return logarithms of probabilities, in the shape of the input."""
        return torch.log_softmax(input, 0 if input.dim() in (1, 3) else 1)


class ExampleSoftmax(Layer):
    """Softmax over all numbers of an example together: (n), (batch, n), (n, h, w) or
    (batch, n, h, w).

    Args:
        log: whether to return logarithms.
    """

    log: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Return probabilities or their logarithms, in the shape of the input."""
        flat = input.flatten(0 if input.dim() in (1, 3) else 1)
        function = torch.log_softmax if self.log else torch.softmax
        return function(flat, -1).reshape(input.shape)


class PReLU(nn.PReLU):
    """torch.nn.PReLU that accepts a single vector too."""

    def forward(self, input: Tensor) -> Tensor:
        """Take (n), or (batch, n, …); return the same shape."""
        return with_batch(super().forward, input, 2)


class Abs(nn.Module):
    """|x| of each element, with gradient 0 at 0; Lua's is 1."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the absolute values, in the shape of the input."""
        return input.abs()


class Exp(nn.Module):
    """e to the x of each element."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the exponentials, in the shape of the input."""
        return input.exp()


class Log(nn.Module):
    """Natural logarithm of each element."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the logarithms, in the shape of the input."""
        return input.log()


class Power(Layer):
    """Each element to a power.

    Args:
        exponent: the power.
    """

    exponent: float

    def forward(self, input: Tensor) -> Tensor:
        """Return the powers, in the shape of the input."""
        return input.pow(self.exponent)


class Square(nn.Module):
    """x * x of each element."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the squares, in the shape of the input."""
        return input * input


class Sqrt(nn.Module):
    """Square root of each element, with gradient 0 at 0."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the roots, in the shape of the input."""
        return square_root(input)


class CReLU(Layer):
    """The positive and the negative parts, side by side: twice as many features.

    Args:
        n_input_dims: dimensions of one example.
    """

    n_input_dims: int

    def forward(self, input: Tensor) -> Tensor:
        """Take (n, …) or (batch, n, …); return (2 n, …) or (batch, 2 n, …)."""
        dim = dim_of(input, 0, self.n_input_dims)
        return torch.relu(torch.cat((input, -input), dim))


class RowwiseSequential(nn.Sequential):
    """Modules in sequence that see each example as a row, of all its elements, and
    return twice as many features.

    Args:
        modules: the modules.
        n_input_dims: dimensions of one example.
    """

    def __init__(self, *modules: nn.Module, n_input_dims: int) -> None:
        super().__init__(*modules)
        self.n_input_dims = n_input_dims

    def forward(self, input: Tensor) -> Tensor:
        """Take (n, …) or (batch, n, …); return (2 n, …) or (batch, 2 n, …)."""
        dim = dim_of(input, 0, self.n_input_dims)
        is_batch = dim == 1
        output = input.reshape(input.size(0) if is_batch else 1, -1)
        for module in self:
            output = module(output)
        size = list(input.shape)
        size[dim] *= 2
        return output.reshape(size)


class Overlapping(nn.Sequential):
    """A layer that changes its input in place, in a model that repeats tensors without
    copying them: an element of memory changes once per occurrence.

    Args:
        module: the layer.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        memory = input
        times = 1
        # A stride of 0 repeats the elements.
        for dim, (extent, stride) in enumerate(zip(input.shape, input.stride())):
            if extent > 1 and stride == 0:
                memory = memory.narrow(dim, 0, 1)
                times *= extent
        if times == 1:
            not_repeated: Tensor = self[0](input)
            return not_repeated
        output = memory
        is_recorded = records_gradients(input)
        for _ in range(times):
            # Values that autograd keeps of one round must not change in the next.
            output = self[0](output.clone() if is_recorded else output)
        if is_recorded:
            # The clones were changed, not the input: other readers of it see this.
            memory.data.copy_(output)
        return output.expand(input.shape)
