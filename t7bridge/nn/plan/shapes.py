"""Shapes that the tensors of a layer have by its arguments: those of torch.nn, and the runtime's of the same names.

Knows nothing of Lua; imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Shape = tuple[int, ...]
Shapes = dict[str, Shape]


def _tuple(value: Any, dims: int) -> Shape:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * dims


def _linear(in_features: int, out_features: int, bias: bool = True, **_: Any) -> Shapes:
    return {"weight": (out_features, in_features), **({"bias": (out_features,)} if bias else {})}


def _bilinear(first: int, second: int, out: int, bias: bool = True) -> Shapes:
    return {"weight": (out, first, second), **({"bias": (out,)} if bias else {})}


def _convolution(dims: int) -> Callable[..., Shapes]:
    def shapes(
        inputs: int, outputs: int, kernel: Any, *_: Any, groups: int = 1, bias: bool = True, **__: Any
    ) -> Shapes:
        weight = (outputs, inputs // max(1, groups), *_tuple(kernel, dims))
        return {"weight": weight, **({"bias": (outputs,)} if bias else {})}

    return shapes


def _transposed(dims: int) -> Callable[..., Shapes]:
    def shapes(
        inputs: int, outputs: int, kernel: Any, *_: Any, groups: int = 1, bias: bool = True, **__: Any
    ) -> Shapes:
        weight = (inputs, outputs // max(1, groups), *_tuple(kernel, dims))
        return {"weight": weight, **({"bias": (outputs,)} if bias else {})}

    return shapes


def _norm(features: int, *_: Any, **__: Any) -> Shapes:
    return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (features,))


def _embedding(rows: int, columns: int, *_: Any, **__: Any) -> Shapes:
    return {"weight": (rows, columns)}


def _prelu(count: int = 1, *_: Any, **__: Any) -> Shapes:
    return {"weight": (count,)}


def _lstm(inputs: int, hidden: int, *_: Any, proj_size: int = 0, **__: Any) -> Shapes:
    return {
        "weight_ih_l0": (4 * hidden, inputs),
        "weight_hh_l0": (4 * hidden, proj_size or hidden),
        "bias_ih_l0": (4 * hidden,),
        "bias_hh_l0": (4 * hidden,),
    }


_TORCH: dict[str, Callable[..., Shapes]] = {
    "Linear": _linear,
    "Bilinear": _bilinear,
    **{f"Conv{dims}d": _convolution(dims) for dims in (1, 2, 3)},
    **{f"ConvTranspose{dims}d": _transposed(dims) for dims in (1, 2, 3)},
    **{f"BatchNorm{dims}d": _norm for dims in (1, 2, 3)},
    "InstanceNorm2d": _norm,
    "Embedding": _embedding,
    "PReLU": _prelu,
}
_RUNTIME: dict[str, Callable[..., Shapes]] = {
    "linear.PartialLinear": _linear,
    "linear.SparseLinear": _linear,
    "linear.Bilinear": _bilinear,
    "embedding.LookupTable": _embedding,
    "embedding.LookupTableMaskZero": _embedding,
    "temporal.TemporalConv": _convolution(1),
    "dpnn.SpatialBinaryConvolution": _convolution(2),
    "lstm.SeqLSTM": _lstm,
}


def expected_shapes(target: str, plain: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Shapes:
    """Return the shapes of the parameters and buffers that a layer has.

    Args:
        target: dotted name of its class.
        plain: the class of torch.nn that takes the same arguments; empty for none.
        args: positional arguments.
        kwargs: arguments by keyword.

    Returns:
        Shapes by name, of more tensors than a layer without bias or statistics has; none for a class that is not known.
    """
    name = plain or target
    known = _TORCH.get(name.removeprefix("torch.nn.")) if name.startswith("torch.nn.") else None
    known = known or _RUNTIME.get(".".join(target.split(".")[-2:]))
    try:
        return known(*args, **kwargs) if known else {}
    except TypeError:
        return {}
