"""Behaviour of the constructors of torch.nn: the arguments they refuse, and the tensors they create.

Only the checks of PyTorch's own constructors are made; errors of a `forward` are not detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .torch_classes import REQUIRED, TORCH

Shape = tuple[int, ...]
Tensors = dict[str, Shape]
Given = Mapping[str, Any]
_MOST_LAYERS = 1000
"""Maximum layers of one recurrent module; each has tensors of its own."""


class Refused(Exception):
    """A constructor would raise. The message says why."""


def shape(*sizes: Any) -> Shape:
    """Return the shape of a new tensor: `torch.zeros(3, 4)`, `torch.zeros((3, 4))`.

    Raises:
        Refused: the sizes are invalid.
    """
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise Refused(f"a tensor of the sizes {sizes!r:.60} cannot be created")
    return sizes


def bound(name: str, args: tuple[Any, ...], kwargs: Given) -> dict[str, Any]:
    """Return all arguments of a constructor by name.

    Raises:
        Refused: there are too many, unknown ones, or one is missing.
    """
    known = TORCH[name].arguments
    if name == "Identity":
        return {}
    if len(args) > len(known):
        raise Refused(f"nn.{name} has {len(known)} arguments, not {len(args)}")
    given = dict(zip(known, args))
    for each, value in kwargs.items():
        if each in given or each not in known:
            raise Refused(f"nn.{name} has no further argument {each}")
        given[each] = value
    for each, default in known.items():
        if given.setdefault(each, default) is REQUIRED:
            raise Refused(f"nn.{name} needs the argument {each}")
    return given


def constructed(name: str, args: tuple[Any, ...], kwargs: Given) -> tuple[dict[str, Any], Tensors]:
    """Return the arguments of a constructor by name, and the tensors of the module.

    Args:
        name: a class of torch.nn.
        args: positional arguments.
        kwargs: arguments by keyword.

    Raises:
        Refused: PyTorch would raise.
    """
    given = bound(name, args, kwargs)
    make = _TENSORS.get(name)
    for check in _CHECKS.get(name, ()):
        check(name, given)
    return given, make(given) if make else {}


# Checks


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise Refused(message)


def _probability(name: str, given: Given) -> None:
    _require(not (given["p"] < 0 or given["p"] > 1), f"the probability of nn.{name} is {given['p']}, not in 0 … 1")


def _ordered(name: str, given: Given) -> None:
    low, high = given["min_val"], given["max_val"]
    _require(high > low, f"the bounds of nn.{name} are {low} and {high}, the upper one not above the lower")


def _grouped(name: str, given: Given) -> None:
    groups, inputs, outputs = given["groups"], given["in_channels"], given["out_channels"]
    _require(type(groups) is int and groups > 0, f"nn.{name} has {groups} groups")
    shape(inputs, outputs)
    _require(not inputs % groups and not outputs % groups, f"{groups} groups do not divide {inputs} and {outputs}")


def _padded_row(name: str, given: Given) -> None:
    at, rows = given["padding_idx"], given["num_embeddings"]
    _require(at is None or -rows <= at < rows, f"row {at} of {rows} cannot be the padding of nn.{name}")


def _recurrent(name: str, given: Given) -> None:
    hidden, layers, dropped = given["hidden_size"], given["num_layers"], given["dropout"]
    _require(type(hidden) is int and hidden > 0, f"the hidden size of nn.{name} is {hidden}")
    _require(type(layers) is int and 0 < layers <= _MOST_LAYERS, f"nn.{name} has {layers} layers")
    _require(0 <= dropped <= 1, f"the dropout of nn.{name} is {dropped}, not in 0 … 1")
    projected = given["proj_size"]
    _require(type(projected) is int and 0 <= projected < hidden, f"a projection to {projected} of {hidden}")
    _require(not projected or name == "LSTM", f"nn.{name} has no projection")
    allowed = ("tanh", "relu")
    _require(
        given.get("nonlinearity", "tanh") in allowed, f"nn.{name} has the nonlinearity {given.get('nonlinearity')}"
    )


def _sizes(name: str, given: Given) -> None:
    sizes = given["unflattened_size"]
    whole = isinstance(sizes, tuple) and all(type(size) is int for size in sizes)
    _require(whole and type(given["dim"]) is int, f"nn.{name} requires integers")


_CHECKS: dict[str, tuple[Callable[[str, Given], None], ...]] = {
    **dict.fromkeys(("Dropout", "Dropout2d", "Dropout3d"), (_probability,)),
    **dict.fromkeys(("Hardtanh",), (_ordered,)),
    **dict.fromkeys(
        (f"Conv{transposed}{dims}d" for transposed in ("", "Transpose") for dims in (1, 2, 3)), (_grouped,)
    ),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (_recurrent,)),
    "Embedding": (_padded_row,),
    "Unflatten": (_sizes,),
}


# Tensors


def _linear(given: Given) -> Tensors:
    outputs = given["out_features"]
    return _with_bias(given, shape(outputs, given["in_features"]), outputs)


def _bilinear(given: Given) -> Tensors:
    outputs = given["out_features"]
    _require(type(given["in1_features"]) is int and given["in1_features"] > 0, "nn.Bilinear has no inputs")
    return _with_bias(given, shape(outputs, given["in1_features"], given["in2_features"]), outputs)


def _with_bias(given: Given, weight: Shape, outputs: int) -> Tensors:
    return {"weight": weight, **({"bias": shape(outputs)} if given["bias"] else {})}


def _convolution(dims: int, transposed: bool) -> Callable[[Given], Tensors]:
    def make(given: Given) -> Tensors:
        inputs, outputs, kernel = given["in_channels"], given["out_channels"], given["kernel_size"]
        kernel = (kernel,) * dims if isinstance(kernel, int) else tuple(kernel)
        _require(len(kernel) == dims, f"a kernel of {len(kernel)} dimensions where {dims} are expected")
        first, second = (inputs, outputs) if transposed else (outputs, inputs)
        return _with_bias(given, shape(first, second // given["groups"], *kernel), outputs)

    return make


def _normalization(given: Given) -> Tensors:
    features = shape(given["num_features"])
    made: Tensors = {"weight": features, "bias": features} if given["affine"] else {}
    if given.get("track_running_stats"):
        made |= {"running_mean": features, "running_var": features, "num_batches_tracked": ()}
    return made


def _embedding(given: Given) -> Tensors:
    return {"weight": shape(given["num_embeddings"], given["embedding_dim"])}


def _slopes(given: Given) -> Tensors:
    return {"weight": shape(given["num_parameters"])}


def _gated(gates: int) -> Callable[[Given], Tensors]:
    def make(given: Given) -> Tensors:
        return dict(_gate_tensors(given, gates))

    return make


def _gate_tensors(given: Given, gates: int) -> Iterator[tuple[str, Shape]]:
    hidden, projected = given["hidden_size"], given["proj_size"]
    outputs = projected or hidden
    directions = ("", "_reverse") if given["bidirectional"] else ("",)
    for layer in range(given["num_layers"]):
        inputs = outputs * len(directions) if layer else given["input_size"]
        for direction in directions:
            suffix = f"_l{layer}{direction}"
            yield f"weight_ih{suffix}", shape(gates * hidden, inputs)
            yield f"weight_hh{suffix}", shape(gates * hidden, outputs)
            if given["bias"]:
                yield f"bias_ih{suffix}", shape(gates * hidden)
                yield f"bias_hh{suffix}", shape(gates * hidden)
            if projected:
                yield f"weight_hr{suffix}", shape(projected, hidden)


_TENSORS: dict[str, Callable[[Given], Tensors]] = {
    "Linear": _linear,
    "Bilinear": _bilinear,
    **{f"Conv{dims}d": _convolution(dims, False) for dims in (1, 2, 3)},
    **{f"ConvTranspose{dims}d": _convolution(dims, True) for dims in (1, 2, 3)},
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "InstanceNorm2d"), _normalization),
    **dict.fromkeys(("Embedding", "EmbeddingBag"), _embedding),
    "PReLU": _slopes,
    "LSTM": _gated(4),
    "GRU": _gated(3),
    "RNN": _gated(1),
}
