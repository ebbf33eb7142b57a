"""Modules that process one step of a sequence per call and resume from the last, until
they forget it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import FromList, Layer, first_tensor, map_nested, with_penalty


class Resuming(nn.Module):
    """A module that remembers its last call, or has such modules inside."""

    def forget(self) -> None:
        """Let this and all modules inside start a new sequence with the next call."""
        for inside in self.modules():
            if "state" in vars(inside):
                vars(inside)["state"] = None


def with_zeros(state: Any, is_zero: Tensor) -> list[Tensor]:
    """Return the tensors of a state with zeros for some examples, (batch, 1)."""
    return [part.masked_fill(is_zero, 0) for part in state]


class Masked(nn.Module):
    """A module in which some examples return zeros.

    Attributes:
        mask_zero: `zeros` if those that are zeros do, `mask` if `set_zero_mask` sets
            which; empty for none.
        zero_mask: the mask that was set last, or False for none; `None` before.
    """

    mask_zero = ""
    zero_mask: Any = None

    def set_zero_mask(self, mask: Any) -> None:
        """Set which examples of the next call are zeros: (batch), or (time, batch) for
        whole sequences, or False for none.
        """
        self.zero_mask = mask

    def zero_rows(self, input: Tensor, number: int | None = None) -> Any:
        """Return which rows of the input are to return zeros, (batch) or (); `None` for
        none.

        Args:
            input: the rows, (batch, n) or (n).
            number: that of the step, if the mask is (time, batch).

        Raises:
            RuntimeError: a mask is needed (`mask_zero` is `mask`), and none was set.
        """
        if not self.mask_zero:
            return None
        if self.mask_zero == "zeros":
            return (input == 0).all(-1)
        mask = self.zero_mask
        if mask is None:
            raise RuntimeError("set_zero_mask must be called first: a mask or False")
        if not isinstance(mask, Tensor):  # False: no row
            return None
        return (mask if number is None else mask[number]).bool()

    def mask_state(
        self, input: Tensor, state: list[Tensor], number: int | None = None
    ) -> list[Tensor]:
        """Return the tensors of a state after a step, with zeros for the examples that
        are to return zeros. Arguments as for `zero_rows`.
        """
        is_zero = self.zero_rows(input, number)
        if is_zero is None:
            return state
        if is_zero.dim():  # not of a single example
            is_zero = is_zero.reshape(-1, 1)
        return with_zeros(state, is_zero)


def uniform_parameter(shape: tuple[int, ...], *, hidden_size: int) -> nn.Parameter:
    """Return a parameter between ±1 / sqrt(hidden_size), as in torch.nn.LSTM."""
    bound = hidden_size**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and cell of an LSTM, from the inputs of its gates i, f, g and o."""
    # i f g o in PyTorch.
    i, f, g, o = gates.chunk(4, -1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def gru_step(input: Tensor, last: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the output of a GRU that resets its last output before it multiplies it
    with its weight.

    Args:
        input: (batch, in).
        last: the last output, (batch, hidden).
        weight: rows of the input, then of the output; columns of the gates r, z and n.
        bias: of the gates.
    """
    weight_in, weight_out = torch.split(weight, [input.size(-1), last.size(-1)])
    # r z n in Lua as in PyTorch: reset, update and candidate.
    r, z, n = (input @ weight_in + bias).chunk(3, -1)
    to_r, to_z, to_n = weight_out.chunk(3, -1)
    r = (r + last @ to_r).sigmoid()
    z = (z + last @ to_z).sigmoid()
    n = (n + (r * last) @ to_n).tanh()
    output: Tensor = (1 - z) * n + z * last
    return output


class Stepper(Resuming):
    """Processes one step of a sequence per call, from the state after the last.

    Attributes:
        sizes: of the output and the other tensors of the state.
        mask_zero: whether zero examples return zeros.
        start: the state before a sequence; `None` for zeros.
        state: the state after the last call; `None` if a sequence is to start.

    A state is its only tensor, or a sequence of several, each (batch, size) or (size).
    In the place of a tensor, a file has nested tuples of numbers.
    """

    sizes: tuple[int, ...]
    mask_zero = False
    start: Any
    state: Any

    def step(self, input: Tensor, *state: Tensor) -> Any:
        """Return the state after a step."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        """Take (in) or (batch, in); return (out) or (batch, out)."""
        state = self.step(input, *self._last_state(input))
        if self.mask_zero:
            state = with_zeros(state, (input == 0).all(-1, keepdim=True))
        output: Tensor = state[0]
        self.state = state if len(self.sizes) > 1 else output
        return output

    def _last_state(self, input: Tensor) -> list[Tensor]:
        """Return the tensors of the state before a step, each (batch, size)."""
        batch = input.shape[:-1]
        last = self.start if self.state is None else self.state
        if last is None:
            return [input.new_zeros(*batch, size) for size in self.sizes]
        parts = last if len(self.sizes) > 1 else [last]
        state = []
        for part in parts:
            # From a file, a part is nested tuples of numbers. A tensor is no buffer,
            # and does not follow the module to another type or device.
            part = torch.as_tensor(part, dtype=input.dtype, device=input.device)
            state.append(part.reshape(*batch, -1))
        return state


class Cell(Stepper, Layer, kw_only=True):
    """One step of a sequence per call.

    Args:
        mask_zero: whether a zero example returns zeros, and its sequence restarts after
            it.
        start: the output before a sequence, for an LSTM output and cell; `None` for
            zeros.
        state: likewise after the last call; `None` if a sequence is to start.
    """

    mask_zero: bool = False
    start: Any = field(default=None, repr=False)
    state: Any = field(default=None, repr=False)


class FastLSTM(Cell):
    """An LSTM that processes one step of a sequence per call and resumes from the last.

    Its weights are those of torch.nn.LSTMCell, with one bias.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        mask_zero, start, state: as in `Cell`.
    """

    input_size: int
    hidden_size: int

    def __post_init__(self) -> None:
        size = self.hidden_size
        self.sizes = (size, size)  # of output and cell
        # i g f o in Lua; i f g o in PyTorch, and here.
        self.weight_ih = uniform_parameter(
            (4 * size, self.input_size), hidden_size=size
        )
        self.weight_hh = uniform_parameter((4 * size, size), hidden_size=size)
        self.bias = uniform_parameter((4 * size,), hidden_size=size)

    def step(self, input: Tensor, *state: Tensor) -> Any:
        """Return output and cell."""
        output, cell = state
        gates = F.linear(input, self.weight_ih, self.bias)
        return lstm_step(gates + F.linear(output, self.weight_hh), cell)


class LSTM(Cell):
    """An LSTM with peepholes, one step of a sequence per call, resuming from the last.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        peephole: whether the gates see the cell.
        mask_zero, start, state: as in `Cell`.
    """

    input_size: int
    hidden_size: int
    peephole: bool = True

    def __post_init__(self) -> None:
        size = self.hidden_size
        self.sizes = (size, size)  # of output and cell
        # Of the input gate, the forget gate, the cell candidate and the output gate.
        shapes: dict[str, tuple[int, ...]] = {}
        for gate in "ifgo":
            shapes[f"weight_i{gate}"] = (size, self.input_size)
            shapes[f"bias_{gate}"] = (size,)
            shapes[f"weight_h{gate}"] = (size, size)
            if self.peephole and gate != "g":  # the candidate does not see the cell
                shapes[f"weight_c{gate}"] = (size,)
        for name, shape in shapes.items():
            setattr(self, name, uniform_parameter(shape, hidden_size=size))

    def step(self, input: Tensor, *state: Tensor) -> Any:
        """Return output and cell."""
        output, cell = state
        i = self._gate_input("i", input, output, cell).sigmoid()
        f = self._gate_input("f", input, output, cell).sigmoid()
        g = self._gate_input("g", input, output).tanh()
        cell = f * cell + i * g
        # The output gate sees the new cell.
        o = self._gate_input("o", input, output, cell).sigmoid()
        return o * cell.tanh(), cell

    def _gate_input(
        self, gate: str, input: Tensor, output: Tensor, cell: Tensor | None = None
    ) -> Tensor:
        """Return what the function of a gate is applied to; with the cell, if it is one
        that sees it.
        """
        weight = getattr(self, f"weight_i{gate}")
        bias = getattr(self, f"bias_{gate}")
        recurrent = getattr(self, f"weight_h{gate}")
        total = F.linear(input, weight, bias) + F.linear(output, recurrent)
        if self.peephole and cell is not None:
            total = total + getattr(self, f"weight_c{gate}") * cell
        return total


class GRU(Cell):
    """A GRU that processes one step of a sequence per call and resumes from the last;
    the last output is reset before it is multiplied by its weight, in PyTorch after.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        mask_zero, start, state: as in `Cell`.
    """

    input_size: int
    hidden_size: int

    def __post_init__(self) -> None:
        size = self.hidden_size
        self.sizes = (size,)  # of the output
        # r z in Lua as in PyTorch.
        self.weight_ih = uniform_parameter(
            (2 * size, self.input_size), hidden_size=size
        )
        self.bias_ih = uniform_parameter((2 * size,), hidden_size=size)
        self.weight_hh = uniform_parameter((2 * size, size), hidden_size=size)
        # The candidate n.
        self.weight_in = uniform_parameter((size, self.input_size), hidden_size=size)
        self.bias_in = uniform_parameter((size,), hidden_size=size)
        self.weight_hn = uniform_parameter((size, size), hidden_size=size)

    def step(self, input: Tensor, *state: Tensor) -> Any:
        """Return the output, in a list."""
        (last,) = state
        gates = F.linear(input, self.weight_ih, self.bias_ih)
        r, z = (gates + F.linear(last, self.weight_hh)).sigmoid().chunk(2, -1)
        n = F.linear(input, self.weight_in, self.bias_in)
        n = (n + F.linear(r * last, self.weight_hn)).tanh()
        return [(1 - z) * n + z * last]


class MuFuRu(Cell):
    """A unit that mixes the results of several operations on its last output and on the
    candidate; one step of a sequence per call, resuming from the last.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        operations: some of `max`, `keep`, `replace`, `mul`, `min`, `diff`, `forget` and
            `sqrt_diff`.
        mask_zero, start, state: as in `Cell`.
    """

    input_size: int
    hidden_size: int
    operations: tuple[str, ...]

    def __post_init__(self) -> None:
        size = self.hidden_size
        input_and_output = self.input_size + size
        self.sizes = (size,)  # of the output
        self.input_reset = nn.Linear(self.input_size, size)
        self.output_reset = nn.Linear(size, size)
        # The candidate, and the share of each operation in each element.
        self.new = nn.Linear(input_and_output, size)
        self.shares = nn.Linear(input_and_output, len(self.operations) * size)

    def step(self, input: Tensor, *state: Tensor) -> Any:
        """Return the output, in a list."""
        (last,) = state
        reset = (self.input_reset(input) + self.output_reset(last)).sigmoid()
        candidate = self.new(torch.cat((input, reset * last), 1)).sigmoid()
        shares = self.shares(torch.cat((input, last), 1))
        shares = shares.unflatten(1, (-1, self.hidden_size)).softmax(1)
        output = torch.zeros_like(last)
        for number, name in enumerate(self.operations):
            output = output + shares[:, number] * self._operate(name, last, candidate)
        return [output]

    def _operate(self, name: str, last: Tensor, candidate: Tensor) -> Tensor:
        """Return the result of an operation on the last output and the candidate."""
        if name == "sqrt_diff":
            # The gradient of a square root is infinite at 0. The quarter is Lua's.
            return (last - candidate).abs().clamp(min=1e-30).sqrt() / 4
        if name == "max":
            return torch.maximum(last, candidate)
        if name == "min":
            return torch.minimum(last, candidate)
        return {
            "keep": last,
            "replace": candidate,
            "forget": torch.zeros_like(last),
            "diff": last - candidate,
            "mul": last * candidate,
        }[name]


class StepLSTM(Masked, Layer):
    """One step of an LSTM, from a given state.

    Its weights are those of torch.nn.LSTMCell, with one bias.

    Args:
        input_size: size of each input.
        hidden_size: size of the cell.
        proj_size: size of the output if the hidden state is projected; 0 if it is not.
        mask_zero: whether some examples return zeros: `zeros`, if they are zeros, or
            `mask`, by `set_zero_mask`.
    """

    input_size: int
    hidden_size: int
    proj_size: int = 0
    mask_zero: str = ""

    def __post_init__(self) -> None:
        size, proj = self.hidden_size, self.proj_size
        # i f o g in Lua; i f g o in PyTorch, and here.
        self.weight_ih = uniform_parameter(
            (4 * size, self.input_size), hidden_size=size
        )
        self.weight_hh = uniform_parameter((4 * size, proj or size), hidden_size=size)
        self.bias = uniform_parameter((4 * size,), hidden_size=size)
        self.weight_hr = (
            uniform_parameter((proj, size), hidden_size=size) if proj else None
        )

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        """Take input (batch, in), last output (batch, out) and last cell (batch,
        hidden); return output and cell.
        """
        input, output, cell = inputs
        gates = F.linear(input, self.weight_ih, self.bias)
        output, cell = lstm_step(gates + F.linear(output, self.weight_hh), cell)
        if self.weight_hr is not None:
            output = F.linear(output, self.weight_hr)
        return self.mask_state(input, [output, cell])


class StepGRU(Masked, Layer):
    """One step of a GRU, from a given output.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        mask_zero: whether some examples return zeros: `zeros`, if they are zeros, or
            `mask`, by `set_zero_mask`.
    """

    input_size: int
    hidden_size: int
    mask_zero: str = ""

    def __post_init__(self) -> None:
        size = self.hidden_size
        # Rows of the input, then of the output; columns of the gates r z n.
        self.weight = uniform_parameter(
            (self.input_size + size, 3 * size), hidden_size=size
        )
        self.bias = uniform_parameter((3 * size,), hidden_size=size)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take input (batch, in) and last output (batch, hidden); return the output
        (batch, hidden).
        """
        input, last = inputs
        output = gru_step(input, last, self.weight, self.bias)
        return self.mask_state(input, [output])[0]


class LSTMCell(nn.LSTMCell):
    """torch.nn.LSTMCell, from a list to a list."""

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:  # type: ignore[override]
        """Take input, last output and last cell; return output and cell."""
        input, output, cell = inputs
        return [*super().forward(input, (output, cell))]


class PeepholeLSTMCell(nn.RNNCellBase):
    """An LSTM cell whose gates see the cell: i and f the last one, o the new one.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        bias: whether its gates have biases.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=4)
        self.weight_ci = uniform_parameter((hidden_size,), hidden_size=hidden_size)
        self.weight_cf = uniform_parameter((hidden_size,), hidden_size=hidden_size)
        self.weight_co = uniform_parameter((hidden_size,), hidden_size=hidden_size)

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        """Take input, last output and last cell; return output and cell."""
        input, output, cell = inputs
        gates = F.linear(input, self.weight_ih, self.bias_ih)
        gates = gates + F.linear(output, self.weight_hh, self.bias_hh)
        # i f g o in PyTorch.
        i, f, g, o = gates.chunk(4, -1)
        i = (i + self.weight_ci * cell).sigmoid()
        f = (f + self.weight_cf * cell).sigmoid()
        cell = f * cell + i * g.tanh()
        o = (o + self.weight_co * cell).sigmoid()
        return [o * cell.tanh(), cell]


class GRUCell(FromList, nn.GRUCell):  # type: ignore[misc]
    """torch.nn.GRUCell, from a list of input and last output."""


class ResetGRUCell(nn.RNNCellBase):
    """A GRU cell that resets its last output before it multiplies it with its weight;
    PyTorch's own resets the product.

    Args:
        input_size: size of each input.
        hidden_size: size of each output.
        bias: whether its gates have biases.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias, num_chunks=3)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Take input and last output; return the output."""
        input, last = inputs
        # r z n in PyTorch; r and z are computed together.
        size_of_rz = 2 * self.hidden_size
        from_input = F.linear(input, self.weight_ih, self.bias_ih)
        rz = from_input[..., :size_of_rz] + F.linear(last, self.weight_hh[:size_of_rz])
        n = from_input[..., size_of_rz:]
        if self.bias:
            rz = rz + self.bias_hh[:size_of_rz]
            n = n + self.bias_hh[size_of_rz:]
        r, z = rz.sigmoid().chunk(2, -1)
        n = (n + F.linear(r * last, self.weight_hh[size_of_rz:])).tanh()
        return (1 - z) * n + z * last


class RNNCell(FromList, nn.RNNCell):  # type: ignore[misc]
    """torch.nn.RNNCell, from a list of input and last output."""


class Recursor(Resuming, nn.Sequential):
    """Modules in sequence, of which some remember their last call."""


class RecLSTM(Stepper, nn.Sequential):
    """A module that computes a step of an LSTM, from the state after its last step.

    Args:
        step: maps a list of input, last output and last cell to a list of output and
            cell.
        output_size: size of each output that `step` returns.
        cell_size: size of the cell that it returns.
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
        # Both are output and cell, each (batch, size), or None. In the place of these
        # tensors, a file has nested tuples of numbers.
        self.start = start
        self.state = state

    def step(self, input: Tensor, *state: Tensor) -> Any:
        """Return output and cell."""
        return self[0]([input, *state])


class RecGRU(Stepper, nn.Sequential):
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
        self.sizes = (output_size,)
        # Both are an output, (batch, size), or None. In the place of the tensor, a file
        # has nested tuples of numbers.
        self.start = start
        self.state = state

    def step(self, input: Tensor, *state: Tensor) -> Any:
        """Return the output, in a list."""
        return [self[0]([input, *state])]


class Recurrence(Resuming, nn.Sequential):
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
        self.output_size = output_size  # without the batch; of a list, the sizes
        self.n_input_dims = n_input_dims  # without the batch
        # Both are an output, or `None`. In the place of its tensors, a file has nested
        # tuples of numbers.
        self.start = start
        self.state = state

    def forward(self, input: Any) -> Any:
        """Take the inputs of `step` but its last output; return its output."""
        first = first_tensor(input)
        last = self.start if self.state is None else self.state
        if last is None:
            batch = first.shape[: first.dim() - self.n_input_dims]
            last = self._zeros(self.output_size, batch)
        # Of the element type of the weights, as the input may be indices.
        weights = (part for part in self.parameters() if part.is_floating_point())
        like = next(weights, first)
        self.state = self[0]([input, self._tensors(last, like)])
        return self.state

    def _zeros(self, size: Any, batch: tuple[int, ...]) -> Any:
        """Return a tensor of zeros for a shape, or a list of them for several."""
        if isinstance(size[0], int):
            return torch.zeros(*batch, *size)
        return [self._zeros(part, batch) for part in size]

    def _tensors(self, value: Any, like: Tensor) -> Any:
        """Return an output as tensors of the type of another; in a file, it may be in
        tuples of numbers.
        """
        if isinstance(value, list):
            return [self._tensors(part, like) for part in value]
        return torch.as_tensor(value, dtype=like.dtype, device=like.device)


class Recurrent(Resuming, nn.Sequential):
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
        # In Lua's order, which numbers the keys of the state dict.
        super().__init__(start, input, feedback, transfer, merge)
        self.state = state

    def forward(self, input: Tensor) -> Tensor:
        """Take one step's input; return its output."""
        start, transform, feedback, transfer, merge = self
        transformed = transform(input)
        if self.state is None:
            total = start(transformed)  # in place of a merging with an output
        else:
            last = torch.as_tensor(
                self.state, dtype=transformed.dtype, device=transformed.device
            )
            total = merge([transformed, feedback(last)])
        output: Tensor = transfer(total)
        self.state = output
        return output


class MaskZero(Masked, nn.Sequential):
    """A module whose output is zero for the examples of a batch that are zeros.

    Args:
        module: processes the inputs.
        n_input_dims: dimensions of one example of the first tensor; `None` if there is
            always a batch.
        mask_input: whether to mask inputs too.
        mask_output: whether to mask outputs.
        zero_mask: whether zero examples are not detected but passed to
            `set_zero_mask`: (batch), 1 where they are.
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
        self.n_input_dims = n_input_dims  # of one example; `None`: all but the batch
        self.mask_input = mask_input
        self.mask_output = mask_output
        self.mask_zero = "mask" if zero_mask else "zeros"

    def forward(self, input: Any) -> Any:
        """Take a tensor, or a list whose first tensor is checked; return the output of
        the module, masked.
        """
        first = first_tensor(input)
        # Dimensions of one example.
        dims = first.dim() - 1 if self.n_input_dims is None else self.n_input_dims
        # One row of elements for each example, also if it is one number.
        examples = first.flatten(-dims) if dims else first.unsqueeze(-1)
        is_zero = self.zero_rows(examples)
        if is_zero is None:  # the mask is False: there is none
            return self[0](input)

        def masked(value: Tensor) -> Tensor:
            shape = (*is_zero.shape, *[1] * (value.dim() - is_zero.dim()))
            return value.masked_fill(is_zero.reshape(shape), 0)

        if self.mask_input:
            input = map_nested(masked, input)
        output = self[0](input)
        return map_nested(masked, output) if self.mask_output else output


class _Once(torch.autograd.Function):
    """A penalty that is counted once, however many outputs depend on it."""

    @staticmethod
    def forward(ctx: Any, penalty: Tensor) -> Tensor:
        return penalty.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.ones_like(gradients[0])


_once: Callable[..., Tensor] = _Once.apply


class NormStabilizer(Resuming, Layer):
    """Passes one step of a sequence through; in training, changes of the norm from step
    to step are penalized, also those before an unused output.

    Args:
        beta: weight of the penalty, which is the mean of the squared changes.

    Attributes:
        state: the last input and the penalty so far, `None` after one step; `None`
            before a sequence.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        self.state: Any = None

    def forward(self, input: Tensor) -> Tensor:
        """Take (batch, features); return the same."""
        if not self.training:
            return input.clone()  # as in Lua, only here in memory of its own
        if self.state is None:  # the first step has no change yet
            self.state = [input, None]
            return input
        last, penalty_before = self.state
        change = input.norm(dim=1) - last.norm(dim=1)
        penalty = self.beta * change.square().mean()
        if penalty_before is not None:
            penalty = penalty + penalty_before
        # Each later penalty contains this one, so that the backward pass of any later
        # step reaches it; it counts once, however many do.
        penalty = _once(penalty)
        self.state = [input, penalty]
        return with_penalty(input, penalty)


class SequenceDropout(Resuming, Layer):
    """Sets the same elements to zero in all steps of a sequence, in training: others
    after backward, and `forget`.

    Args:
        p: probability of zeroing an element.
        scale_training: whether to divide the rest by 1 - p in training, instead of
            multiplying everything by 1 - p in evaluation.
        mono: whether the examples of a batch lose the same elements.

    Attributes:
        state: the factor of each element in this sequence; `None` before one.
    """

    p: float = 0.5
    scale_training: bool = True
    mono: bool = False

    def __post_init__(self) -> None:
        self.state: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Take one step, (batch, features); return the same shape."""
        kept_share = 1 - self.p
        if not self.training:
            return input.clone() if self.scale_training else input * kept_share
        like = input[:1] if self.mono else input  # one row for all examples
        if self.state is None or self.state.shape != like.shape:
            noise = torch.full_like(like, kept_share, requires_grad=False).bernoulli()
            self.state = noise / kept_share if self.scale_training else noise
        output = input * self.state
        if output.requires_grad and output.grad_fn is not None:
            # The next sequence begins after the backward pass of this one.
            output.grad_fn.register_prehook(lambda _: self.forget())
        return output
