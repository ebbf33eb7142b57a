"""Facts about the classes of torch.nn, without PyTorch: arguments and those that constructors refuse, tensors, outputs.

`torch_nn.txt` is the one table of these facts; tests compare it with the installed PyTorch. Only the checks of its
own constructors are made; errors of a `forward` are not detected.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from ..data import define
from . import output_shapes as out
from .output_shapes import Rule

Shape = tuple[int, ...]
Tensors = dict[str, Shape]
Arguments = Mapping[str, Any]
REQUIRED = Parameter.empty
"""The default of a required argument."""
SAME = -1
"""The rank of the output is that of the input."""
_MOST_LAYERS = 1000
"""Maximum layers of one recurrent module; each has tensors of its own."""


class Refused(Exception):
    """A constructor would raise. The message says why."""


@define(frozen=True)
class TorchClass:
    """A class of torch.nn.

    Attributes:
        base: base name of an attribute that holds one.
        arguments: their names in order, with their defaults, if any.
        rank: dimensions of one example of the output; `SAME` as the input's, `None` if unknown.
        function: an equivalent without a module: `torch.relu`, or `.flatten` for a method.
        passed: the arguments of the constructor that the function has too, in order.
        shape: of the input, for a docstring; `{0}` is the first argument.
        output: the shape of the output, if known.
        extent: the argument with the first extent of an example of the input, which has `rank` dimensions too; empty
            if none has it, `None` if the input may have other dimensions.
    """

    base: str
    arguments: dict[str, Any]
    rank: int | None
    function: str
    passed: tuple[str, ...]
    shape: str
    output: Rule | None
    extent: str | None


def _rows() -> Iterator[tuple[str, TorchClass]]:
    """Yield the classes of the table by name, those of which only the output is known with an empty base name."""
    for line in Path(__file__).with_name("torch_nn.txt").read_text("ascii").splitlines():
        if line.startswith("#"):
            continue
        name, base, output, rank, arguments, function, shape = (each.strip() for each in f"{line} | | |".split("|")[:7])
        words = [word.partition("=") for word in arguments.split()]
        known = {word: literal_eval(default) if equals else REQUIRED for word, equals, default in words}
        rule, *dims = output.split() or ["none"]
        made: Any = getattr(out, rule, None)
        dimensions, *extent = rank.split() or [""]
        called, *passed = function.split() or [""]
        yield (
            name,
            TorchClass(
                base,
                known,
                SAME if dimensions == "same" else int(dimensions) if dimensions else None,
                called,
                tuple(passed),
                shape,
                made(*map(int, dims)) if dims else made,
                extent[0].strip("*") if extent else None,
            ),
        )


_CLASSES = dict(_rows())
TORCH = {name: known for name, known in _CLASSES.items() if known.base}
"""Classes whose arguments are known. Others are written with the arguments in the plan."""


def output_of(name: str) -> Rule | None:
    """Return the shape of the output of a class as a function of its input's; `None` if unknown.

    Args:
        name: of a class of torch.nn, with its package or without.
    """
    known = _CLASSES.get(name.removeprefix("torch.nn."))
    return known.output if known is not None else None


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


def positive(size: int) -> int:
    """Return a size of a recurrent layer.

    Raises:
        Refused: it is not a positive integer.
    """
    _require(type(size) is int and size > 0, f"a recurrent layer has the size {size!r:.40}")
    return size


def bound(name: str, args: tuple[Any, ...], kwargs: Arguments) -> dict[str, Any]:
    """Return all arguments of a constructor by name.

    Raises:
        TypeError: there are too many, unknown ones, or one is missing.
    """
    if name == "Identity":
        return {}
    kind = Parameter.POSITIONAL_OR_KEYWORD
    known = [Parameter(each, kind, default=default) for each, default in TORCH[name].arguments.items()]
    arguments = Signature(known).bind(*args, **kwargs)
    arguments.apply_defaults()
    return arguments.arguments


def constructed(name: str, args: tuple[Any, ...], kwargs: Arguments) -> Tensors:
    """Return the tensors of a module after construction.

    Args:
        name: a class of torch.nn.
        args: positional arguments.
        kwargs: arguments by keyword.

    Raises:
        Refused, TypeError: PyTorch would raise.
    """
    arguments = bound(name, args, kwargs)
    make = _CONSTRUCTORS.get(TORCH[name].base)
    return make(name, arguments) if make else {}


def tensors_like(name: str, args: tuple[Any, ...], kwargs: Arguments) -> Tensors:
    """Return the tensors of a class with the required arguments of one of torch.nn, and perhaps others.

    Args:
        name: a class of torch.nn, without its package; an unknown one has none.
        args: positional arguments; those after the required ones may be others.
        kwargs: arguments by keyword; those of other names are ignored.

    Raises:
        Refused, TypeError: PyTorch would raise.
    """
    if name not in TORCH:
        return {}
    known = TORCH[name].arguments
    required = sum(default is REQUIRED for default in known.values())
    return constructed(name, args[: max(1, required)], {key: value for key, value in kwargs.items() if key in known})


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise Refused(message)


# What the constructors of classes with a base name refuse, and the tensors that they make.


def _dropout(name: str, arguments: Arguments) -> Tensors:
    _require(
        not (arguments["p"] < 0 or arguments["p"] > 1),
        f"the probability of nn.{name} is {arguments['p']}, not in 0 … 1",
    )
    return {}


def _hardtanh(name: str, arguments: Arguments) -> Tensors:
    low, high = arguments["min_val"], arguments["max_val"]
    _require(high > low, f"the bounds of nn.{name} are {low} and {high}, the upper one not above the lower")
    return {}


def _unflatten(name: str, arguments: Arguments) -> Tensors:
    sizes = arguments["unflattened_size"]
    whole = isinstance(sizes, tuple) and all(type(size) is int for size in sizes)
    _require(whole and type(arguments["dim"]) is int, f"nn.{name} requires integers")
    return {}


def _prelu(name: str, arguments: Arguments) -> Tensors:
    return {"weight": shape(arguments["num_parameters"])}


def _embedding(name: str, arguments: Arguments) -> Tensors:
    at, rows = arguments["padding_idx"], arguments["num_embeddings"]
    _require(at is None or -rows <= at < rows, f"row {at} of {rows} cannot be the padding of nn.{name}")
    return {"weight": shape(rows, arguments["embedding_dim"])}


def _norm(name: str, arguments: Arguments) -> Tensors:
    if "num_features" not in arguments:
        return {}
    features = shape(arguments["num_features"])
    made: Tensors = {"weight": features, "bias": features} if arguments["affine"] else {}
    if arguments.get("track_running_stats"):
        made |= {"running_mean": features, "running_var": features, "num_batches_tracked": ()}
    return made


def _linear(name: str, arguments: Arguments) -> Tensors:
    *inputs, outputs, bias = arguments.values()
    _require(len(inputs) == 1 or (type(inputs[0]) is int and inputs[0] > 0), f"nn.{name} has no inputs")
    return {"weight": shape(outputs, *inputs), **({"bias": shape(outputs)} if bias else {})}


def _conv(name: str, arguments: Arguments) -> Tensors:
    groups, inputs, outputs = arguments["groups"], arguments["in_channels"], arguments["out_channels"]
    _require(type(groups) is int and groups > 0, f"nn.{name} has {groups} groups")
    shape(inputs, outputs)
    padding, transposed = arguments["padding"], "Transpose" in name
    named = isinstance(padding, str) and padding not in ("same", "valid") and not transposed
    _require(not named, f"the padding of nn.{name} is {padding!r:.40}")
    _require(not inputs % groups and not outputs % groups, f"{groups} groups do not divide {inputs} and {outputs}")
    kernel, dims = arguments["kernel_size"], int(name[-2])
    kernel = (kernel,) * dims if isinstance(kernel, int) else tuple(kernel)
    _require(len(kernel) == dims, f"a kernel of {len(kernel)} dimensions where {dims} are expected")
    first, second = (inputs, outputs) if transposed else (outputs, inputs)
    bias = {"bias": shape(outputs)} if arguments["bias"] else {}
    return {"weight": shape(first, second // groups, *kernel), **bias}


def _recurrent(name: str, arguments: Arguments) -> Tensors:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[name.removesuffix("Cell")]
    if name.endswith("Cell"):
        hidden, rows = arguments["hidden_size"], gates * arguments["hidden_size"]
        made = {"weight_ih": shape(rows, arguments["input_size"]), "weight_hh": shape(rows, hidden)}
        return made | (dict.fromkeys(("bias_ih", "bias_hh"), shape(rows)) if arguments["bias"] else {})
    hidden, layers, dropped = arguments["hidden_size"], arguments["num_layers"], arguments["dropout"]
    positive(hidden)
    positive(arguments["input_size"])
    _require(type(arguments["batch_first"]) is bool, f"nn.{name} needs True or False for batch_first")
    _require(type(layers) is int and 0 < layers <= _MOST_LAYERS, f"nn.{name} has {layers} layers")
    _require(0 <= dropped <= 1, f"the dropout of nn.{name} is {dropped}, not in 0 … 1")
    projected, function = arguments["proj_size"], arguments.get("nonlinearity", "tanh")
    _require(type(projected) is int and 0 <= projected < hidden, f"a projection to {projected} of {hidden}")
    _require(not projected or name == "LSTM", f"nn.{name} has no projection")
    _require(function in ("tanh", "relu"), f"nn.{name} has the nonlinearity {function}")
    return dict(_gate_tensors(gates * hidden, arguments))


def _gate_tensors(rows: int, arguments: Arguments) -> Iterator[tuple[str, Shape]]:
    outputs = arguments["proj_size"] or arguments["hidden_size"]
    directions = ("", "_reverse") if arguments["bidirectional"] else ("",)
    for layer in range(arguments["num_layers"]):
        inputs = outputs * len(directions) if layer else arguments["input_size"]
        for direction in directions:
            suffix = f"_l{layer}{direction}"
            yield f"weight_ih{suffix}", shape(rows, inputs)
            yield f"weight_hh{suffix}", shape(rows, outputs)
            if arguments["bias"]:
                yield f"bias_ih{suffix}", shape(rows)
                yield f"bias_hh{suffix}", shape(rows)
            if arguments["proj_size"]:
                yield f"weight_hr{suffix}", shape(outputs, arguments["hidden_size"])


_CONSTRUCTORS: dict[str, Callable[[str, Arguments], Tensors]] = {
    "dropout": _dropout,
    "hardtanh": _hardtanh,
    "unflatten": _unflatten,
    "prelu": _prelu,
    "embedding": _embedding,
    "norm": _norm,
    **dict.fromkeys(("linear", "bilinear"), _linear),
    **dict.fromkeys(("conv", "deconv"), _conv),
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent),
}
