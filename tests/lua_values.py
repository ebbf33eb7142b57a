"""Functions of NaN, infinities, quotients and whole numbers; what Lua computed is in `testfiles/lua/values.t7`."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import torch
from torch import Tensor, nn

FLOATS = torch.tensor([[nan, inf, -inf, 0.0, -0.5, 1.5, 2.5, 3e38]])
OTHERS = torch.tensor([[1.0, inf, inf, nan, -0.5, 0.25, inf, -3e38]])
TENTHS = torch.tensor([[0.3, 0.6, 0.7, -0.3, 5.5, -7.0]])
DIVISORS = torch.tensor([[0.1, 0.1, 0.1, 0.1, -2.0, 2.0]])
WHOLE = torch.tensor([[-7, 7, 12345, 0]])
EDGES = torch.tensor([-inf, -0.5, 0.0, 1.5, 6.5, inf])
MATRIX = torch.tensor([[1.0, nan, inf, -inf, -2.0, nan, nan, -inf, 3.0]])


class Of(nn.Module):
    """A function of tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        """Apply it."""
        return self.function(*inputs)


VALUES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "nan_to_num": (torch.nan_to_num, (FLOATS,)),
    "isnan": (lambda x: x.isnan().float(), (FLOATS,)),
    "where_nan": (lambda x: torch.where(x > 0, x, nan), (FLOATS,)),
    "where_kept": (lambda x, y: torch.where(x > y, x, y), (FLOATS, OTHERS)),
    "where_left": (lambda x: torch.where(x.isnan(), 0.0, x), (FLOATS,)),
    "masked_fill": (lambda x: x.masked_fill(x < 0, -1.0), (FLOATS,)),
    "masked_constant": (lambda x: x.masked_fill(torch.tensor([True, False] * 4), 2.0), (FLOATS,)),
    "lower_triangle": (lambda x: x.reshape(-1, 3, 3).tril(), (MATRIX,)),
    "upper_triangle": (lambda x: x.reshape(-1, 3, 3).triu(1), (MATRIX,)),
    "lower_of_any_size": (lambda x: x.tril(-1), (MATRIX.reshape(1, 3, 3),)),
    "upper_of_any_size": (lambda x: x.triu(), (MATRIX.reshape(1, 3, 3),)),
    "xlogy": (torch.xlogy, (FLOATS.abs(), OTHERS.abs())),
    "nansum": (lambda x: x[:, :2].nansum(1), (FLOATS,)),
    **{
        name: (lambda x, y, name=name: getattr(torch, name)(x, y).float(), (FLOATS, OTHERS))
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    **{
        f"{name}_number": (lambda x, name=name: getattr(torch, name)(x, 1.5).float(), (FLOATS,))
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    "infinite": (lambda x: (x == inf).float() + (x >= -inf).float() * 2, (FLOATS,)),
    "itself": (lambda x: (x == x).float() + (x != x).float() * 2 + (x > x).float() * 4, (FLOATS,)),
    "boundaries": (
        lambda x: torch.bucketize(x, EDGES).float() + torch.bucketize(x, EDGES, right=True).float() * 10,
        (FLOATS,),
    ),
    "computed_boundaries": (lambda x, y: torch.searchsorted(y[0], x).float(), (FLOATS, EDGES[None])),
    "fractions_as_boundaries": (lambda x: torch.bucketize(x, EDGES).float(), (WHOLE,)),
    "remainder": (torch.remainder, (TENTHS, DIVISORS)),
    "fmod": (torch.fmod, (TENTHS, DIVISORS)),
    "floor_divide": (torch.floor_divide, (TENTHS, DIVISORS)),
    "tenth": (lambda x: x // 0.1 + x % 0.1, (TENTHS,)),
    "rounded_down": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (TENTHS, DIVISORS)),
    "rounded_to_zero": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (TENTHS, DIVISORS)),
    "round": (lambda x: x.round(), (torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 8388609.0]]),)),
    "whole": (lambda x: x % 5 + x // 5, (WHOLE,)),
    "hash": (lambda x: ((x % 100) * 31337 + 7) % 1000, (WHOLE,)),
}
"""Name → a function and its inputs."""
BYTES = torch.tensor([[100, 250]], dtype=torch.uint8)
SQUARE = torch.tensor([[5000, 6001], [7003, 8009]])
REFUSED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "product": (lambda x: (x * 31337 + 7) % 1000, (WHOLE,)),
    "power": (lambda x: x**3, (WHOLE,)),
    "byte": (lambda x: x + 200, (torch.tensor([[100, 250]], dtype=torch.uint8),)),
    "bytes with a factor": (lambda x, y: torch.add(x, y, alpha=2), (BYTES, BYTES)),
    "a factor and a difference": (lambda x, y: torch.rsub(x, y, alpha=2), (BYTES, BYTES)),
    "row of ones": (lambda x: (x > 0).to(torch.int8) @ (x > 0).to(torch.int8).T, (torch.ones(2, 200),)),
    "linear": (lambda x: torch.nn.functional.linear(x, x), (SQUARE,)),
    "vdot": (lambda x: torch.vdot(x[0], x[0]), (SQUARE,)),
    "product and sum": (lambda x: torch.addmm(x, x, x), (SQUARE,)),
    "row of ones and a sum": (
        lambda x: torch.addmm((x[:, :2] > 0).to(torch.int8), (x > 0).to(torch.int8), (x > 0).to(torch.int8).T),
        (torch.ones(2, 200),),
    ),
    "product with a factor": (
        lambda x: torch.addmm(*[(x > 0).to(torch.int8)] * 3, alpha=100),
        (SQUARE,),
    ),
    "padding": (lambda x: torch.nn.functional.pad(x.long(), (1, 1), value=60001) ** 2, (BYTES,)),
    "part": (lambda x: torch.slice_scatter(x.long(), x[:, :1].long() + 60001, 1, 0, 1) ** 2, (BYTES,)),
}
"""The same for functions whose whole numbers Lua's floats do not hold."""
