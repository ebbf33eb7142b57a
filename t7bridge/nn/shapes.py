"""Shapes of the tensors of a layer as functions of its arguments: for `Traits.shapes`.

The arguments are those of the classes of torch.nn, and of the runtime's of the same kind. Imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Shape = tuple[int, ...]
Shapes = dict[str, Shape]
ShapesOf = Callable[..., Shapes]
"""Maps the arguments of a constructor to shapes by name; a layer may have fewer tensors."""


def _tuple(value: Any, dims: int) -> Shape:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * dims


def linear(in_features: int, out_features: int, bias: bool = True, **_: Any) -> Shapes:
    """Return weight (out, in), bias (out): torch.nn.Linear."""
    return {"weight": (out_features, in_features), **({"bias": (out_features,)} if bias else {})}


def bilinear(first: int, second: int, out: int, bias: bool = True) -> Shapes:
    """Return weight (out, in1, in2), bias (out): torch.nn.Bilinear."""
    return {"weight": (out, first, second), **({"bias": (out,)} if bias else {})}


def convolution(dims: int, *, transposed: bool = False) -> ShapesOf:
    """Return weight (out, in / groups, …), bias (out): torch.nn.Conv1d to Conv3d. Transposed ones exchange in and out.

    Args:
        dims: dimensions of a kernel.
        transposed: whether it is torch.nn.ConvTranspose1d to 3d.
    """

    def shapes(
        inputs: int, outputs: int, kernel: Any, *_: Any, groups: int = 1, bias: bool = True, **__: Any
    ) -> Shapes:
        planes = (inputs, outputs // max(1, groups)) if transposed else (outputs, inputs // max(1, groups))
        return {"weight": (*planes, *_tuple(kernel, dims)), **({"bias": (outputs,)} if bias else {})}

    return shapes


def norm(features: int, *_: Any, **__: Any) -> Shapes:
    """Return all tensors (features): torch.nn.BatchNorm1d to 3d, InstanceNorm2d."""
    return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (features,))


def embedding(rows: int, columns: int, *_: Any, **__: Any) -> Shapes:
    """Return weight (n, dim): torch.nn.Embedding."""
    return {"weight": (rows, columns)}


def prelu(count: int = 1, *_: Any, **__: Any) -> Shapes:
    """Return weight (n): torch.nn.PReLU."""
    return {"weight": (count,)}


def lstm(inputs: int, hidden: int, *_: Any, proj_size: int = 0, **__: Any) -> Shapes:
    """Return four gates each, of one layer: torch.nn.LSTM."""
    return {
        "weight_ih_l0": (4 * hidden, inputs),
        "weight_hh_l0": (4 * hidden, proj_size or hidden),
        "bias_ih_l0": (4 * hidden,),
        "bias_hh_l0": (4 * hidden,),
    }
