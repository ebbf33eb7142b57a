"""Facts about the classes of torch.nn, without PyTorch: arguments and those that constructors refuse, tensors, outputs.

`torch_nn.txt` is the one table of these facts; tests compare it with the installed PyTorch. Only the checks of its
own constructors are made; errors of a `forward` are not detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from ..data import define, words_beside
from . import output_shapes as out
from .output_shapes import Rule

if TYPE_CHECKING:
    from inspect import Signature

    from .mapping import ModuleSpec

Shape = tuple[int, ...]
Tensors = dict[str, Shape]
Arguments = Mapping[str, Any]
REQUIRED: Any = object()
"""The default of a required argument."""
SAME = -1
"""In `TorchClass.rank`: the rank of the output is that of the input."""
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
    """Yield the classes of `torch_nn.txt` by name; one of which only the output is known has an empty base name.

    A line of the file is a class, with columns between `|`; its head says what each column is.
    """
    for line in words_beside(__file__, "torch_nn.txt").splitlines():
        if line.startswith("#"):
            continue
        # The last columns may be left out, so that empty ones are added.
        columns = [column.strip() for column in f"{line} | | |".split("|")]
        name, base, output, rank_and_extent, arguments, function_and_arguments, shape, *_ = columns
        rank, _, extent = rank_and_extent.partition(" ")
        function, *passed = function_and_arguments.split() or [""]  # the column may be empty
        defaults = {}
        for argument in arguments.split():
            argument_name, equals, default = argument.partition("=")
            defaults[argument_name] = _constant(default) if equals else REQUIRED
        torch_class = TorchClass(
            base=base,
            arguments=defaults,
            rank=_rank(rank),
            function=function,
            passed=tuple(passed),
            shape=shape,
            output=_rule(output),
            extent=_extent(extent),
        )
        yield name, torch_class


_WORDS = {"True": True, "False": False, "None": None}


@cache
def _constant(text: str) -> Any:
    """Return the value of a word, a number or a text in quotes, as Python writes them."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] == "'":
        return text.strip("'")
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _rank(dimensions: str) -> int | None:
    """Return the rank of an output: `same`, a number, or nothing."""
    if dimensions == "same":
        return SAME
    return int(dimensions) if dimensions else None


def _extent(argument: str) -> str | None:
    """Return the name of the argument with the first extent of an input, see `TorchClass`; `*` stands for none."""
    if not argument:
        return None
    return "" if argument == "*" else argument


def _rule(output: str) -> Rule | None:
    """Return the rule of an output by its name in `output_shapes`; `pooling 2` is made for two dimensions.

    Returns:
        `None` for a class whose column is empty.
    """
    if not output:
        return None
    name, *dims = output.split()
    rule: Any = getattr(out, name)
    if dims:
        rule = rule(*map(int, dims))
    return rule  # type: ignore[no-any-return]


_CLASSES = dict(_rows())
TORCH = {name: row for name, row in _CLASSES.items() if row.base}
"""Classes whose arguments are known. Others are written with the arguments in the plan."""


def argument_at(spec: ModuleSpec, place: int) -> Any:
    """Return an argument of a module, which an entry may give by position or by name; `None` if it gives none.

    Args:
        spec: the module; the names of arguments are known of a class of torch.nn only.
        place: of the argument among those of the constructor, from 0.
    """
    if place < len(spec.args):
        return spec.args[place]
    layer = TORCH.get(spec.target.removeprefix("torch.nn."))
    names = [] if layer is None else [*layer.arguments]
    return spec.kwargs.get(names[place]) if place < len(names) else None


def output_of(name: str) -> Rule | None:
    """Return the shape of the output of a class as a function of its input's; `None` if unknown.

    Args:
        name: of a class of torch.nn, with its package or without.
    """
    row = _CLASSES.get(name.removeprefix("torch.nn."))
    return row.output if row is not None else None


def shape(*sizes: Any) -> Shape:
    """Return the shape of a new tensor.

    Args:
        *sizes: as for `torch.zeros(3, 4)` or `torch.zeros((3, 4))`.

    Raises:
        Refused: the sizes are invalid.
    """
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise Refused(f"a tensor of the sizes {sizes!r:.60} cannot be created")
    return sizes


def positive(size: int) -> int:
    """Return a size of a recurrent layer as it is.

    Raises:
        Refused: it is not a positive integer.
    """
    _require(type(size) is int and size > 0, f"a recurrent layer has the size {size!r:.40}")
    return size


def bound(name: str, args: tuple[Any, ...], kwargs: Arguments) -> dict[str, Any]:
    """Return all arguments of a constructor by name, those that are not given with their defaults.

    Args:
        name: a class of torch.nn, one of `TORCH`.
        args: positional arguments.
        kwargs: arguments by keyword.

    Raises:
        TypeError: there are too many, unknown ones, or one is missing.
    """
    if name == "Identity":  # it accepts any arguments, and ignores them
        return {}
    arguments = _signature(name).bind(*args, **kwargs)
    arguments.apply_defaults()
    return arguments.arguments


@cache
def _signature(name: str) -> Signature:
    """Return the signature of a constructor."""
    from inspect import Parameter, Signature  # which a conversion of most models does without

    parameters = []
    for argument, default in TORCH[name].arguments.items():
        parameter = Parameter(argument, Parameter.POSITIONAL_OR_KEYWORD)
        parameters.append(parameter if default is REQUIRED else parameter.replace(default=default))
    return Signature(parameters)


def constructed(name: str, args: tuple[Any, ...], kwargs: Arguments) -> Tensors:
    """Return the shapes of the tensors of a module after construction, by name.

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
    """Return the shapes of the tensors of a class that has the required arguments of one of torch.nn, perhaps others.

    Args:
        name: a class of torch.nn, without its package; an unknown one has none.
        args: positional arguments; those after the required ones may be others.
        kwargs: arguments by keyword; those of other names are ignored.

    Raises:
        Refused, TypeError: PyTorch would raise.
    """
    if name not in TORCH:
        return {}
    arguments = TORCH[name].arguments
    required_count = sum(default is REQUIRED for default in arguments.values())
    by_name = {key: value for key, value in kwargs.items() if key in arguments}
    # The first argument is the same even where torch.nn does not require it, as PReLU's.
    common_args = args[: max(1, required_count)]
    return constructed(name, common_args, by_name)


def _require(holds: bool, message: str) -> None:
    """Raise `Refused` unless a condition holds."""
    if not holds:
        raise Refused(message)


# What the constructors of classes with a base name refuse, by `Refused`, and the tensors that they make. Each function
# has the name of a class, and all its arguments by name.


def _dropout(name: str, arguments: Arguments) -> Tensors:
    """Return no tensors; refuse a probability that is none."""
    probability = arguments["p"]
    # As PyTorch compares: NaN is not refused.
    is_outside = probability < 0 or probability > 1
    _require(not is_outside, f"the probability of nn.{name} is {probability}, not in 0 … 1")
    return {}


def _hardtanh(name: str, arguments: Arguments) -> Tensors:
    """Return no tensors; refuse bounds of which the upper one is not above the lower."""
    low = arguments["min_val"]
    high = arguments["max_val"]
    _require(high > low, f"the bounds of nn.{name} are {low} and {high}, the upper one not above the lower")
    return {}


def _unflatten(name: str, arguments: Arguments) -> Tensors:
    """Return no tensors; refuse sizes that are no integers."""
    sizes = arguments["unflattened_size"]
    # By type, as `isinstance` takes True and False for integers.
    has_sizes = isinstance(sizes, tuple) and all(type(size) is int for size in sizes)
    _require(has_sizes and type(arguments["dim"]) is int, f"nn.{name} requires integers")
    return {}


def _prelu(name: str, arguments: Arguments) -> Tensors:
    """Return the slopes of a PReLU."""
    return {"weight": shape(arguments["num_parameters"])}


def _embedding(name: str, arguments: Arguments) -> Tensors:
    """Return the shape of the rows of an embedding; refuse a row of padding that it does not have."""
    padding = arguments["padding_idx"]
    rows = arguments["num_embeddings"]
    has_row = padding is None or -rows <= padding < rows
    _require(has_row, f"row {padding} of {rows} cannot be the padding of nn.{name}")
    return {"weight": shape(rows, arguments["embedding_dim"])}


def _norm(name: str, arguments: Arguments) -> Tensors:
    """Return the shapes of the tensors of a normalization: those learned, and running statistics.

    Args:
        name: of the class in torch.nn.
        arguments: all of the constructor, by name.
    """
    if "num_features" not in arguments:  # a local response normalization, which has no tensors
        return {}
    features = shape(arguments["num_features"])
    tensors: Tensors = {}
    if arguments["affine"]:
        tensors |= {"weight": features, "bias": features}
    if arguments.get("track_running_stats"):
        tensors |= {"running_mean": features, "running_var": features, "num_batches_tracked": ()}
    return tensors


def _linear(name: str, arguments: Arguments) -> Tensors:
    """Return the shapes of the tensors of torch.nn.Linear or Bilinear.

    Args:
        name: of the class.
        arguments: all of the constructor, by name and in its order.
    """
    # In the order of the arguments: one size of the input of torch.nn.Linear, two of the inputs of Bilinear.
    *inputs, outputs, bias = arguments.values()
    is_bilinear = len(inputs) == 2
    has_inputs = type(inputs[0]) is int and inputs[0] > 0
    _require(not is_bilinear or has_inputs, f"nn.{name} has no inputs")  # Linear accepts inputs without elements
    tensors = {"weight": shape(outputs, *inputs)}
    if bias:
        tensors["bias"] = shape(outputs)
    return tensors


def _conv(name: str, arguments: Arguments) -> Tensors:
    """Return the shapes of the tensors of a convolution, also a transposed one.

    Args:
        name: of the class in torch.nn: `Conv2d`, `ConvTranspose2d`.
        arguments: all of the constructor, by name.
    """
    groups = arguments["groups"]
    inputs = arguments["in_channels"]
    outputs = arguments["out_channels"]
    padding = arguments["padding"]
    is_transposed = "Transpose" in name
    _require(type(groups) is int and groups > 0, f"nn.{name} has {groups} groups")
    shape(inputs, outputs)  # refuses what is no size, before they are divided
    # The constructor of a transposed convolution refuses no text: it makes a tuple of its letters.
    is_misnamed = isinstance(padding, str) and padding not in ("same", "valid") and not is_transposed
    _require(not is_misnamed, f"the padding of nn.{name} is {padding!r:.40}")
    _require(not inputs % groups and not outputs % groups, f"{groups} groups do not divide {inputs} and {outputs}")
    kernel = arguments["kernel_size"]
    dims = int(name[-2])  # the 2 of Conv2d
    kernel = (kernel,) * dims if isinstance(kernel, int) else tuple(kernel)
    _require(len(kernel) == dims, f"a kernel of {len(kernel)} dimensions where {dims} are expected")
    # The weight of a transposed convolution is that of the convolution from its outputs to its inputs.
    first, second = (inputs, outputs) if is_transposed else (outputs, inputs)
    tensors = {"weight": shape(first, second // groups, *kernel)}
    if arguments["bias"]:
        tensors["bias"] = shape(outputs)
    return tensors


def _recurrent(name: str, arguments: Arguments) -> Tensors:
    """Return the shapes of the tensors of an LSTM, GRU or RNN, or of a cell of one, which have the rows of all gates.

    Args:
        name: of the class in torch.nn: `LSTM`, `LSTMCell`.
        arguments: all of the constructor, by name.
    """
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[name.removesuffix("Cell")]
    hidden = arguments["hidden_size"]
    if name.endswith("Cell"):  # PyTorch checks nothing
        return _cell_tensors(gates * hidden, arguments)
    layers = arguments["num_layers"]
    dropout = arguments["dropout"]
    projected = arguments["proj_size"]
    function = arguments.get("nonlinearity", "tanh")
    positive(hidden)  # raises `Refused` for other values
    positive(arguments["input_size"])
    _require(type(arguments["batch_first"]) is bool, f"nn.{name} needs True or False for batch_first")
    _require(type(layers) is int and 0 < layers <= _MOST_LAYERS, f"nn.{name} has {layers} layers")
    _require(0 <= dropout <= 1, f"the dropout of nn.{name} is {dropout}, not in 0 … 1")
    _require(type(projected) is int and 0 <= projected < hidden, f"a projection to {projected} of {hidden}")
    _require(not projected or name == "LSTM", f"nn.{name} has no projection")
    _require(function in ("tanh", "relu"), f"nn.{name} has the nonlinearity {function}")
    return dict(_layer_tensors(gates * hidden, arguments))


def _cell_tensors(rows: int, arguments: Arguments) -> Tensors:
    """Return the shapes of the tensors of a cell, by name.

    Args:
        rows: of the gates together.
        arguments: all of the constructor, by name.
    """
    tensors = {
        "weight_ih": shape(rows, arguments["input_size"]),
        "weight_hh": shape(rows, arguments["hidden_size"]),
    }
    if arguments["bias"]:
        tensors |= {"bias_ih": shape(rows), "bias_hh": shape(rows)}
    return tensors


def _layer_tensors(rows: int, arguments: Arguments) -> Iterator[tuple[str, Shape]]:
    """Yield name and shape of each tensor of a layer over sequences, in PyTorch's order.

    Args:
        rows: of the gates together.
        arguments: all of the constructor, by name.
    """
    outputs = arguments["proj_size"] or arguments["hidden_size"]
    directions = ("", "_reverse") if arguments["bidirectional"] else ("",)
    for layer in range(arguments["num_layers"]):
        # A further layer receives the outputs of both directions.
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
