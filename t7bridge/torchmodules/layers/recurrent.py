"""Modules that process one step of a sequence per call and resume from the last, until
they forget it.
"""

from __future__ import annotations

from collections.abc import Callable
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


def _forget(module: nn.Module) -> None:
    for inside in module.modules():
        if "state" in vars(inside):
            vars(inside)["state"] = None


class Recursor(nn.Sequential):
    """Modules in sequence, of which some remember their last call."""

    def forget(self) -> None:
        """Let all modules inside start a new sequence with the next call."""
        _forget(self)


class RecLSTM(nn.Sequential):
    """A module that computes a step of an LSTM, from the state after its last step.

    Args:
        step: maps a list of input, last output and last cell to a list of output and
            cell.
        output_size: size of each output.
        cell_size: size of the cell.
        start: output and cell before a sequence; `None` for zeros.
        state: output and cell after the last call; `None` if a sequence is to start.
    """

    def __init__(
        self,
        step: nn.Module,
        output_size: int,
        cell_size: int,
        start: Any = None,
        state: Any = None,
    ) -> None:
        super().__init__(step)
        self.sizes = (output_size, cell_size)
        self.start = start
        self.state = state

    def forward(self, input: Tensor) -> Tensor:
        """Take (in) or (batch, in); return (out) or (batch, out)."""
        zeros = [input.new_zeros(*input.shape[:-1], size) for size in self.sizes]
        last = [
            torch.as_tensor(part).to(input).reshape(*input.shape[:-1], -1)
            for part in self.state or self.start or zeros
        ]
        self.state = self[0]([input, *last])
        output: Tensor = self.state[0]
        return output

    def forget(self) -> None:
        """Let this and all modules inside start a new sequence with the next call."""
        _forget(self)


class RecGRU(nn.Sequential):
    """A module that computes a step of a GRU, from its last output.

    Args:
        step: maps a list of input and last output to the output.
        output_size: size of each output.
        start: the output before a sequence; `None` for zeros.
        state: the output of the last call; `None` if a sequence is to start.
    """

    def __init__(
        self, step: nn.Module, output_size: int, start: Any = None, state: Any = None
    ) -> None:
        super().__init__(step)
        self.output_size = output_size
        self.start = start
        self.state = state

    def forward(self, input: Tensor) -> Tensor:
        """Take (in) or (batch, in); return (out) or (batch, out)."""
        last = self.state if self.state is not None else self.start
        if last is None:
            last = input.new_zeros(*input.shape[:-1], self.output_size)
        last = torch.as_tensor(last).to(input).reshape(*input.shape[:-1], -1)
        output: Tensor = self[0]([input, last])
        self.state = output
        return output

    def forget(self) -> None:
        """Let this and all modules inside start a new sequence with the next call."""
        _forget(self)


class Recurrence(nn.Sequential):
    """A module whose last output is one of its inputs.

    Args:
        step: maps a list of input and last output to the output: a tensor, or a list of
            tensors.
        output_size: the shape of an output, without the batch; of a list of outputs,
            the shapes.
        n_input_dims: dimensions of one input without a batch, of the first tensor if it
            is a list.
        start: the output before a sequence; `None` for zeros.
        state: the output of the last call; `None` if a sequence is to start.
    """

    def __init__(
        self,
        step: nn.Module,
        output_size: Any,
        n_input_dims: int,
        start: Any = None,
        state: Any = None,
    ) -> None:
        super().__init__(step)
        self.output_size = output_size
        self.n_input_dims = n_input_dims
        self.start = start
        self.state = state

    def forward(self, input: Any) -> Any:
        """Take the inputs of `step` but its last output; return its output."""
        first = input
        while isinstance(first, (list, tuple)):
            first = first[0]
        last = self.state if self.state is not None else self.start
        if last is None:
            last = self._zeros(
                self.output_size, first.shape[: first.dim() - self.n_input_dims]
            )
        weight = next(
            (part for part in self.parameters() if part.is_floating_point()), first
        )
        self.state = self[0]([input, self._tensors(last, weight)])
        return self.state

    def _zeros(self, size: Any, batch: tuple[int, ...]) -> Any:
        if isinstance(size[0], int):
            return torch.zeros(*batch, *size)
        return [self._zeros(part, batch) for part in size]

    def _tensors(self, value: Any, like: Tensor) -> Any:
        if isinstance(value, list):
            return [self._tensors(part, like) for part in value]
        return torch.as_tensor(value).to(like)

    def forget(self) -> None:
        """Let this and all modules inside start a new sequence with the next call."""
        _forget(self)


class Recurrent(nn.Sequential):
    """A simple recurrent network: its input and its last output pass through a module
    each and are merged.

    Args:
        start: replaces the merging for the output of `input` at the first step.
        input: transforms the inputs.
        feedback: transforms the last outputs.
        transfer: returns the outputs.
        merge: merges a list of the outputs of `input` and `feedback`.
        state: the output of the last call; `None` if a sequence is to start.
    """

    def __init__(
        self,
        start: nn.Module,
        input: nn.Module,
        feedback: nn.Module,
        transfer: nn.Module,
        merge: nn.Module,
        state: Any = None,
    ) -> None:
        super().__init__(start, input, feedback, transfer, merge)
        self.state = state

    def forward(self, input: Tensor) -> Tensor:
        """Take one step's input; return its output."""
        start, take, feedback, transfer, merge = self
        seen = take(input)
        if self.state is not None:
            seen = [seen, feedback(torch.as_tensor(self.state).to(seen))]
        output: Tensor = transfer(start(seen) if self.state is None else merge(seen))
        self.state = output
        return output

    def forget(self) -> None:
        """Let this and all modules inside start a new sequence with the next call."""
        _forget(self)


class MaskZero(nn.Sequential):
    """Returns zeros for the examples of a batch that are zeros.

    Args:
        module: processes the inputs.
        n_input_dims: dimensions of one example of the first tensor; `None` if there is
            always a batch.
        mask_input: whether to mask inputs too.
        mask_output: whether to mask outputs.
        zero_mask: whether zero examples are not detected but given, by `zero_mask` of
            (batch), 1 where they are.
    """

    def __init__(
        self,
        module: nn.Module,
        n_input_dims: int | None = None,
        mask_input: bool = False,
        mask_output: bool = True,
        zero_mask: bool = False,
    ) -> None:
        super().__init__(module)
        self.n_input_dims = n_input_dims
        self.mask_input = mask_input
        self.mask_output = mask_output
        self.told = zero_mask
        self.zero_mask: Any = None

    def forward(self, input: Any) -> Any:
        """Take a tensor, or a list whose first tensor is checked; return the output of
        the module, masked.
        """
        empty = self._empty(input)
        if empty is None:
            return self[0](input)
        output = self[0](self._masked(input, empty) if self.mask_input else input)
        return self._masked(output, empty) if self.mask_output else output

    def _empty(self, input: Any) -> Tensor | None:
        if self.told:
            if self.zero_mask is None:
                raise RuntimeError(
                    "set_zero_mask must be called first, with a mask or False"
                )
            return self.zero_mask.bool() if isinstance(self.zero_mask, Tensor) else None
        while isinstance(input, (list, tuple)):
            input = input[0]
        zero: Tensor = input == 0
        if input.dim() == self.n_input_dims:
            return zero.all()
        return zero.flatten(1).all(1) if input.dim() > 1 else zero

    def _masked(self, value: Any, empty: Tensor) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._masked(part, empty) for part in value]
        return value.masked_fill(
            empty.reshape(*empty.shape, *[1] * (value.dim() - empty.dim())), 0
        )

    def set_zero_mask(self, mask: Any) -> None:
        """Set the zero examples of the next batch: (batch), or False for none."""
        self.zero_mask = mask


class _AddedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, penalty: Tensor) -> Tensor:
        ctx.like = penalty.new_ones(())
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], ctx.like


_add_gradient: Callable[..., Tensor] = _AddedGradient.apply


class _Once(torch.autograd.Function):
    """A penalty that is counted once, however many outputs depend on it."""

    @staticmethod
    def forward(ctx: Any, penalty: Tensor) -> Tensor:
        return penalty.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.ones_like(gradients[0])


_once: Callable[..., Tensor] = _Once.apply


class NormStabilizer(nn.Module):
    """Passes one step of a sequence through; in training, changes of the norm from step
    to step are penalized, also those before an unused output.

    Args:
        beta: weight of the penalty, which is the mean of the squared changes.
    """

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.beta = beta
        self.state: Any = None

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, features); return the same."""
        if not self.training:
            return input.clone()
        output, penalty = input, None
        if self.state is not None:
            last, before = self.state
            change = input.norm(dim=1) - last.norm(dim=1)
            penalty = self.beta * change.square().mean()
            penalty = _once(penalty if before is None else penalty + before)
            output = _add_gradient(input, penalty)
        self.state = [input, penalty]
        return output

    def forget(self) -> None:
        """Start a new sequence with the next call."""
        self.state = None


class SequenceDropout(nn.Module):
    """Sets the same elements to zero in all steps of a sequence, in training: others
    after backward, and `forget`.

    Args:
        p: probability of zeroing an element.
        scale_training: whether to divide the rest by 1 - p in training, instead of
            multiplying everything by 1 - p in evaluation.
        mono: whether the examples of a batch lose the same elements.
    """

    def __init__(
        self, p: float = 0.5, scale_training: bool = True, mono: bool = False
    ) -> None:
        super().__init__()
        self.p = p
        self.scale_training = scale_training
        self.mono = mono
        self.state: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Take one step, (batch, features); return the same shape."""
        if not self.training:
            return input.clone() if self.scale_training else input * (1 - self.p)
        like = input[:1] if self.mono else input
        if self.state is None or self.state.shape != like.shape:
            noise = torch.full_like(like, 1 - self.p, requires_grad=False).bernoulli()
            self.state = noise / (1 - self.p) if self.scale_training else noise
        output = input * self.state
        if output.requires_grad and output.grad_fn is not None:
            output.grad_fn.register_prehook(lambda _: self.forget())
        return output

    def forget(self) -> None:
        """Drop other elements from the next step on."""
        self.state = None
