"""Facts about the classes of torch.nn: how to write a call of each, and its output."""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Any

from ..data import define
from ..nn.plan.spec import ModuleSpec
from .code import Construction, Lit
from .copied import Copied

SAME = -1
"""The rank of the output is that of the input."""


@define(frozen=True)
class TorchClass:
    """A class of torch.nn.

    Attributes:
        base: base name of an attribute that holds one.
        arguments: their names in order, with their defaults, if any.
        rank: dimensions of one example of the output; `SAME` as the input's.
        function: an equivalent without a module: `torch.relu`, or `.flatten` for a method.
        given: the arguments of the constructor that the function has too, in order.
        shape: of the input, for a docstring; `{0}` is the first argument.
    """

    base: str
    arguments: dict[str, Any]
    rank: int = SAME
    function: str = ""
    given: tuple[str, ...] = ()
    shape: str = ""


REQUIRED = object()
"""The default of a required argument."""


def _known(
    base: str, arguments: str = "", rank: int = SAME, function: str = "", given: str = "", shape: str = ""
) -> TorchClass:
    named: dict[str, Any] = {}
    for word in arguments.split():
        name, has_default, default = word.partition("=")
        named[name] = literal_eval(default) if has_default else REQUIRED
    return TorchClass(base, named, rank, function, tuple(given.split()), shape)


_CONV = "in_channels out_channels kernel_size stride=1 padding=0 dilation=1 groups=1 bias=True"
_DECONV = "in_channels out_channels kernel_size stride=1 padding=0 output_padding=0 groups=1 bias=True dilation=1"
_NORM = "num_features eps=1e-05 momentum=0.1 affine=True track_running_stats=True"
_MAX_POOL = "kernel_size stride=None padding=0 dilation=1 return_indices=False ceil_mode=False"
_AVG_POOL = "kernel_size stride=None padding=0 ceil_mode=False count_include_pad=True divisor_override=None"
_INPLACE = "inplace=False"
_DROPOUT = "p=0.5 inplace=False"

TORCH: dict[str, TorchClass] = {
    "Identity": _known("identity"),
    "Linear": _known("linear", "in_features out_features bias=True", 1, shape="(batch, {0})"),
    "Conv1d": _known("conv", _CONV, 2),
    "Conv2d": _known("conv", _CONV, 3, shape="(batch, {0}, height, width)"),
    "Conv3d": _known("conv", _CONV, 4, shape="(batch, {0}, depth, height, width)"),
    "ConvTranspose1d": _known("deconv", _DECONV, 2),
    "ConvTranspose2d": _known("deconv", _DECONV, 3),
    "ConvTranspose3d": _known("deconv", _DECONV, 4),
    "BatchNorm1d": _known("norm", _NORM, 1),
    "BatchNorm2d": _known("norm", _NORM, 3),
    "BatchNorm3d": _known("norm", _NORM, 4),
    "InstanceNorm2d": _known("norm", "num_features eps=1e-05 momentum=0.1 affine=False", 3),
    "MaxPool1d": _known("pool", _MAX_POOL, 2),
    "MaxPool2d": _known("pool", _MAX_POOL, 3),
    "MaxPool3d": _known("pool", _MAX_POOL, 4),
    "AvgPool2d": _known("pool", _AVG_POOL, 3),
    "AvgPool3d": _known("pool", _AVG_POOL, 4),
    "LPPool2d": _known("pool", "norm_type kernel_size stride=None ceil_mode=False", 3),
    "AdaptiveAvgPool2d": _known("pool", "output_size", 3),
    "AdaptiveMaxPool2d": _known("pool", "output_size", 3),
    "Embedding": _known(
        "embedding",
        "num_embeddings embedding_dim padding_idx=None max_norm=None norm_type=2.0 scale_grad_by_freq=False",
    ),
    "Flatten": _known("flatten", "start_dim=1 end_dim=-1", 1, ".flatten", "start_dim"),
    "Unflatten": _known("unflatten", "dim unflattened_size", function=".unflatten", given="dim unflattened_size"),
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
    "GLU": _known("glu", "dim=-1"),
    "Bilinear": _known("bilinear", "in1_features in2_features out_features bias=True", 1),
    "LocalResponseNorm": _known("norm", "size alpha=0.0001 beta=0.75 k=1.0"),
    "PixelShuffle": _known("shuffle", "upscale_factor", 3),
    "ReflectionPad2d": _known("pad", "padding", 3),
    "ReplicationPad2d": _known("pad", "padding", 3),
    "ReplicationPad3d": _known("pad", "padding", 4),
    "ZeroPad2d": _known("pad", "padding", 3),
    "LSTM": _known(
        "lstm",
        "input_size hidden_size num_layers=1 bias=True batch_first=False dropout=0.0 bidirectional=False proj_size=0",
    ),
    "GRU": _known(
        "gru",
        "input_size hidden_size num_layers=1 bias=True batch_first=False dropout=0.0 bidirectional=False proj_size=0",
    ),
    "RNN": _known(
        "rnn",
        "input_size hidden_size num_layers=1 nonlinearity='tanh' bias=True batch_first=False "
        "dropout=0.0 bidirectional=False proj_size=0",
    ),
}
"""Classes whose arguments are known. Others are written with the arguments in the plan."""

_UNIFORM = {"kernel_size", "stride", "padding", "dilation", "output_padding", "output_size"}
"""Arguments for which one number means the same for all directions."""


def defaults_of(piece: Copied) -> dict[str, Any]:
    """Return the arguments of a copied class that may be omitted; a class without a constructor has its base's."""
    base = TORCH.get(piece.inherits)
    inherited = base.arguments.items() if base else ()
    return {name: value for name, value in inherited if value is not REQUIRED} | dict(piece.defaults)


def torch_call(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], spec: ModuleSpec | None = None
) -> Construction:
    """Return the construction of a module of torch.nn, without arguments that have their defaults."""
    known = TORCH.get(name)
    if known is None or len(args) > len(known.arguments):
        return Construction(
            f"nn.{name}", [Lit(value) for value in args], {k: Lit(v, k) for k, v in kwargs.items()}, {}, spec
        )
    given = {**dict(zip(known.arguments, args)), **kwargs}
    if given.get("stride") is not None and known.arguments.get("stride", 1) is None:
        given["stride"] = None if given["stride"] == given["kernel_size"] else given["stride"]
    values = {argument: _simple(argument, value) for argument, value in given.items()}
    call = Construction(f"nn.{name}", spec=spec)
    for argument, default in known.arguments.items():
        if default is REQUIRED and argument in values:
            call.args.append(Lit(values.pop(argument), argument))
    for argument, default in known.arguments.items():
        if default is not REQUIRED:
            call.kwargs[argument] = Lit(values.pop(argument, default), argument)
            call.defaults[argument] = default
    call.kwargs.update((argument, Lit(value, argument)) for argument, value in values.items())
    return call


def _simple(name: str, value: Any) -> Any:
    if name in _UNIFORM and isinstance(value, tuple) and len(set(value)) == 1:
        return value[0]
    return value


def base_name(class_name: str) -> str:
    """Return the base name of an attribute with a module of a class: `max_unpool` for `MaxUnpool`."""
    short = class_name.removeprefix("nn.")
    if class_name.startswith("nn.") and short in TORCH:
        return TORCH[short].base
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", short).lower().rstrip("_0123456789")
