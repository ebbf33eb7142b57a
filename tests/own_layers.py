"""Thirteen layers that no package has, each one entry and one class, as `docs/own-layers.md` describes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from t7bridge.layers import (
    INPLACE,
    Arguments,
    Domain,
    Printed,
    Traits,
    extent,
    flows,
    integer,
    modules,
    number,
    param,
    register_module,
    same,
)


@register_module(
    "my.Shift",
    args=(number("by"),),
    traits=Traits(output=same),
    text="({by:g})",
)
class Shift(nn.Module):
    """Stateless: adds a number."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        return input + self.by


@register_module(
    "my.Scale",
    params=(param("scale", field="gain"),),
    args=(extent("scale"), number("slope", 1.0)),
    traits=Traits(output=same, shapes=lambda features, slope: {"scale": (features,)}),
)
class Scale(nn.Module):
    """With weights: a factor for each feature."""

    def __init__(self, features: int, slope: float) -> None:
        super().__init__()
        self.slope = slope
        self.scale = nn.Parameter(torch.ones(features))

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        return input * self.scale * self.slope


@register_module("my.Negate", kwargs={"inplace": INPLACE}, traits=Traits(output=same))
class Negate(nn.Module):
    """In place, if its field says so."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        return input.neg_() if self.inplace else -input


def _rows(call: Arguments, x: Any) -> Any:
    return (x[0], call.number("rows", 0, 1), x[1] // call.number("rows", 0, 1))


@register_module("my.Rows", args=(integer("rows"),), traits=Traits(shares_memory=True, output=_rows))
class Rows(nn.Module):
    """A view: the features of each example, in rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, input: Tensor) -> Tensor:
        """Return (batch, rows, features / rows)."""
        return input.view(len(input), self.rows, -1)


@register_module("my.Total", traits=Traits(takes_list=True, output=lambda call, x: x[0]))
class Total(nn.Module):
    """List in: the sum of its elements."""

    def forward(self, input: list[Tensor]) -> Tensor:
        """Return the shape of the first."""
        return torch.stack(list(input)).sum(0)


@register_module(
    "my.Halves",
    traits=Traits(returns_list=True, output=lambda call, x: [(*x[:-1], x[-1] // 2)] * 2, flow=flows.tensors),
)
class Halves(nn.Module):
    """List out: the two halves of the features."""

    def forward(self, input: Tensor) -> list[Tensor]:
        """Return two tensors."""
        return [part.clone() for part in input.chunk(2, dim=-1)]


@register_module(
    "my.Residual", children=modules, traits=Traits(flow=flows.sequence, transparent=True), text=Printed("decorator")
)
class Residual(nn.Sequential):
    """A container: what its modules compute, one after another."""


def _summed(spec: Any, value: Any, d: Domain[Any]) -> Any:
    return d.combine([d.call(spec, child, value) for child in spec.children])


@register_module("my.Summed", children=modules, traits=Traits(flow=_summed), text=Printed("branches"))
class Summed(nn.Sequential):
    """A container of branches: the sum of what its modules return."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of each output."""
        return torch.stack([module(input) for module in self]).sum(0)


def _crossed(spec: Any, value: Any, d: Domain[Any]) -> Any:
    first, second = spec.children
    return d.items([d.call(spec, first, d.item(value, 1)), d.call(spec, second, d.item(value, 0))])


@register_module(
    "my.Crossed",
    children=modules,
    traits=Traits(takes_list=True, returns_list=True, flow=_crossed, transparent=True),
)
class Crossed(nn.Sequential):
    """A container, list in and list out: two modules, each for the element of the other."""

    def forward(self, input: list[Tensor]) -> list[Tensor]:
        """Return two tensors."""
        return [self[0](input[1]), self[1](input[0])]


def _refined(spec: Any, value: Any, d: Domain[Any]) -> Any:
    state = d.call(spec, "0", value)
    for _ in range(spec.kwargs["times"]):
        state = d.call(spec, "1", d.items([value, state]))
    return state


@register_module("my.Refined", children=modules, kwargs={"times": integer("times")}, traits=Traits(flow=_refined))
class Refined(nn.Sequential):
    """A container with a loop: its second module makes the next state of the input and the state."""

    def __init__(self, *inside: nn.Module, times: int) -> None:
        super().__init__(*inside)
        self.times = times

    def forward(self, input: Tensor) -> Tensor:
        """Return the last state."""
        state: Tensor = self[0](input)
        for _ in range(self.times):
            state = self[1]([input, state])
        return state


@register_module(
    "my.Blink",
    args=(number("p"),),
    traits=Traits(output=same, replay=lambda fields, input, noise: input * noise),
)
class Blink(nn.Module):
    """With recorded noise: in training a random mask, which Lua keeps in `noise`."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        return input * torch.bernoulli(torch.full_like(input, 1 - self.p)) if self.training else input * (1 - self.p)


@register_module(
    "my.Leaky",
    params=(param("weight"),),
    args=(extent("weight"), number("decay")),
    traits=Traits(output=same),
)
class Leaky(nn.Module):
    """Recurrent: a decaying sum over the steps of a sequence (time, batch, features)."""

    def __init__(self, features: int, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, input: Tensor) -> Tensor:
        """Return the shape of the input."""
        state, found = torch.zeros_like(input[0]), []
        for step in input:
            state = self.decay * state + self.weight * step
            found.append(state)
        return torch.stack(found)


@register_module("my.Quartic", args=(number("power", 4.0),), kind="criterion")
class Quartic(nn.Module):
    """A criterion."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return one number."""
        return (input - target).abs().pow(self.power).mean()
