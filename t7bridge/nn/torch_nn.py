"""Facts about the classes of torch.nn, without PyTorch: arguments and those that constructors refuse, tensors, outputs.

The one table of these facts; tests compare it with the installed PyTorch. Only the checks of PyTorch's own
constructors are made; errors of a `forward` are not detected.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..data import define
from . import output_shapes as out
from .output_shapes import Rule

Shape = tuple[int, ...]
Tensors = dict[str, Shape]
Given = Mapping[str, Any]
REQUIRED = object()
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
        given: the arguments of the constructor that the function has too, in order.
        shape: of the input, for a docstring; `{0}` is the first argument.
        output: the shape of the output, if known.
        extent: the argument with the first extent of an example of the input, which has `rank` dimensions too; empty
            if none has it, `None` if the input may have other dimensions.
    """

    base: str
    arguments: dict[str, Any]
    rank: int | None = SAME
    function: str = ""
    given: tuple[str, ...] = ()
    shape: str = ""
    output: Rule | None = out.same
    extent: str | None = None


def _known(
    base: str, arguments: str = "", rank: int | None = SAME, function: str = "", given: str = "", **facts: Any
) -> TorchClass:
    named: dict[str, Any] = {}
    for word in arguments.split():
        name, has_default, default = word.partition("=")
        named[name] = literal_eval(default) if has_default else REQUIRED
    return TorchClass(base, named, rank, function, tuple(given.split()), **facts)


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


def constructed(name: str, args: tuple[Any, ...], kwargs: Given) -> Tensors:
    """Return the tensors of a module after construction.

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
    return make(given) if make else {}


_CONV = "in_channels out_channels kernel_size stride=1 padding=0 dilation=1 groups=1 bias=True"
_DECONV = "in_channels out_channels kernel_size stride=1 padding=0 output_padding=0 groups=1 bias=True dilation=1"
_NORM = "num_features eps=1e-05 momentum=0.1 affine=True track_running_stats=True"
_MAX_POOL = "kernel_size stride=None padding=0 dilation=1 return_indices=False ceil_mode=False"
_AVG_POOL = "kernel_size stride=None padding=0 ceil_mode=False count_include_pad=True divisor_override=None"
_INPLACE = "inplace=False"
_DROPOUT = "p=0.5 inplace=False"

TORCH: dict[str, TorchClass] = {
    "Identity": _known("identity"),
    "Linear": _known(
        "linear", "in_features out_features bias=True", 1, shape="(batch, {0})", output=out.linear, extent="in_features"
    ),
    "Conv1d": _known("conv", _CONV, 2, output=out.convolution(1), extent="in_channels"),
    "Conv2d": _known(
        "conv", _CONV, 3, shape="(batch, {0}, height, width)", output=out.convolution(2), extent="in_channels"
    ),
    "Conv3d": _known(
        "conv", _CONV, 4, shape="(batch, {0}, depth, height, width)", output=out.convolution(3), extent="in_channels"
    ),
    "ConvTranspose1d": _known("deconv", _DECONV, 2, output=out.transposed(1)),
    "ConvTranspose2d": _known("deconv", _DECONV, 3, output=out.transposed(2)),
    "ConvTranspose3d": _known("deconv", _DECONV, 4, output=out.transposed(3)),
    "BatchNorm1d": _known("norm", _NORM, 1, output=out.channels),
    "BatchNorm2d": _known("norm", _NORM, 3, output=out.channels, extent="num_features"),
    "BatchNorm3d": _known("norm", _NORM, 4, output=out.channels, extent="num_features"),
    "InstanceNorm2d": _known("norm", "num_features eps=1e-05 momentum=0.1 affine=False", 3, extent="num_features"),
    "MaxPool1d": _known("pool", _MAX_POOL, 2, output=out.pooling(1), extent=""),
    "MaxPool2d": _known("pool", _MAX_POOL, 3, output=out.pooling(2), extent=""),
    "MaxPool3d": _known("pool", _MAX_POOL, 4, output=out.pooling(3), extent=""),
    "AvgPool2d": _known("pool", _AVG_POOL, 3, output=out.pooling(2), extent=""),
    "AvgPool3d": _known("pool", _AVG_POOL, 4, output=out.pooling(3), extent=""),
    "LPPool2d": _known("pool", "norm_type kernel_size stride=None ceil_mode=False", 3, output=out.pooling(2)),
    "AdaptiveAvgPool2d": _known("pool", "output_size", 3, output=out.adaptive, extent=""),
    "AdaptiveMaxPool2d": _known("pool", "output_size", 3, output=out.adaptive, extent=""),
    "Embedding": _known(
        "embedding",
        "num_embeddings embedding_dim padding_idx=None max_norm=None norm_type=2.0 scale_grad_by_freq=False",
        rank=None,
        output=out.embedding,
    ),
    "Flatten": _known("flatten", "start_dim=1 end_dim=-1", 1, ".flatten", "start_dim", output=out.flatten),
    "Unflatten": _known(
        "unflatten", "dim unflattened_size", function=".unflatten", given="dim unflattened_size", rank=None, output=None
    ),
    "Dropout": _known("dropout", _DROPOUT),
    "Dropout2d": _known("dropout", _DROPOUT),
    "Dropout3d": _known("dropout", _DROPOUT),
    "ReLU": _known("relu", _INPLACE, function="torch.relu"),
    "ReLU6": _known("relu", _INPLACE, function="F.relu6"),
    "Sigmoid": _known("sigmoid", function="torch.sigmoid"),
    "Tanh": _known("tanh", function="torch.tanh"),
    "LogSigmoid": _known("log_sigmoid", function="F.logsigmoid"),
    "Softsign": _known("softsign", function="F.softsign"),
    "Softmax": _known("softmax", "dim", function="F.softmax", given="dim"),
    "Softmin": _known("softmin", "dim", function="F.softmin", given="dim"),
    "LogSoftmax": _known("log_softmax", "dim", function="F.log_softmax", given="dim"),
    "LeakyReLU": _known("relu", "negative_slope=0.01 inplace=False"),
    "ELU": _known("elu", "alpha=1.0 inplace=False"),
    "PReLU": _known("prelu", "num_parameters=1"),
    "RReLU": _known("relu", "lower=0.125 upper=0.3333333333333333 inplace=False"),
    "Hardtanh": _known("hardtanh", "min_val=-1.0 max_val=1.0 inplace=False"),
    "Hardshrink": _known("shrink", "lambd=0.5"),
    "Softshrink": _known("shrink", "lambd=0.5"),
    "Tanhshrink": _known("shrink"),
    "Softplus": _known("softplus", "beta=1.0 threshold=20.0"),
    "Threshold": _known("threshold", "threshold value inplace=False"),
    "GLU": _known("glu", "dim=-1", output=None),
    "Bilinear": _known("bilinear", "in1_features in2_features out_features bias=True", 1, output=None),
    "LocalResponseNorm": _known("norm", "size alpha=0.0001 beta=0.75 k=1.0"),
    "PixelShuffle": _known("shuffle", "upscale_factor", 3, output=out.shuffle),
    "ReflectionPad2d": _known("pad", "padding", 3, output=out.borders(2), extent=""),
    "ReplicationPad2d": _known("pad", "padding", 3, output=out.borders(2), extent=""),
    "ReplicationPad3d": _known("pad", "padding", 4, output=out.borders(3), extent=""),
    "ZeroPad2d": _known("pad", "padding", 3, output=out.borders(2), extent=""),
    "LSTM": _known(
        "lstm",
        "input_size hidden_size num_layers=1 bias=True batch_first=False dropout=0.0 bidirectional=False proj_size=0",
        rank=None,
        output=None,
    ),
    "GRU": _known(
        "gru",
        "input_size hidden_size num_layers=1 bias=True batch_first=False dropout=0.0 bidirectional=False proj_size=0",
        rank=None,
        output=None,
    ),
    "RNN": _known(
        "rnn",
        "input_size hidden_size num_layers=1 nonlinearity='tanh' bias=True batch_first=False "
        "dropout=0.0 bidirectional=False proj_size=0",
        rank=None,
        output=None,
    ),
}
"""Classes whose arguments are known. Others are written with the arguments in the plan."""


def output_of(target: str) -> Rule | None:
    """Return the shape of the output of a class as a function of its input's; `None` if unknown.

    Args:
        target: the dotted name: `torch.nn.Linear`.
    """
    known = TORCH.get(target.removeprefix("torch.nn.")) if target.startswith("torch.nn.") else None
    return known.output if known is not None else _OTHER_OUTPUTS.get(target)


def tensors_like(name: str, args: tuple[Any, ...], kwargs: Given) -> Tensors:
    """Return the tensors of a class with the required arguments of one of torch.nn, and perhaps others.

    Args:
        name: a class of torch.nn, without its package; a class without tensors, or an unknown one, has none.
        args: positional arguments; those after the required ones may be others.
        kwargs: arguments by keyword; those of other names are ignored.
    """
    make, known = _TENSORS.get(name), TORCH.get(name)
    if make is None or known is None:
        return {}
    required = sum(default is REQUIRED for default in known.arguments.values())
    own = {key: value for key, value in kwargs.items() if key in known.arguments}
    try:
        return make(bound(name, args[: max(1, required)], own))
    except (Refused, TypeError, ValueError, ArithmeticError):
        return {}


_OTHER_OUTPUTS: dict[str, Rule] = {
    **dict.fromkeys((f"torch.nn.{name}" for name in ("CELU", "SELU", "GELU", "SiLU", "Softmax2d")), out.same),
    **dict.fromkeys(
        (f"torch.nn.{name}" for name in ("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d")), out.upsample
    ),
    "torch.nn.AvgPool1d": out.pooling(1),
    **{
        f"torch.nn.{kind}Pad{dims}d": out.borders(dims)
        for kind in ("Zero", "Reflection", "Replication")
        for dims in (1, 2, 3)
    },
}
"""Output shapes of further classes of torch.nn, whose other facts are not needed."""


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
    padding = given["padding"]
    named = isinstance(padding, str) and padding not in ("same", "valid") and "Transpose" not in name
    _require(not named, f"the padding of nn.{name} is {padding!r:.40}")
    _require(not inputs % groups and not outputs % groups, f"{groups} groups do not divide {inputs} and {outputs}")


def _padded_row(name: str, given: Given) -> None:
    at, rows = given["padding_idx"], given["num_embeddings"]
    _require(at is None or -rows <= at < rows, f"row {at} of {rows} cannot be the padding of nn.{name}")


def _recurrent(name: str, given: Given) -> None:
    hidden, layers, dropped = given["hidden_size"], given["num_layers"], given["dropout"]
    positive(hidden)
    positive(given["input_size"])
    _require(type(given["batch_first"]) is bool, f"nn.{name} needs True or False for batch_first")
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
