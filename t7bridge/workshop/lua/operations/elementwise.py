"""Operations on each element, arithmetic, comparisons and masks; reductions over dimensions; normalization.
A function builds the Lua layers of one call of a traced program, by the builder `b`: `b.shape` and `b.dtype` are those
of the call's result, as PyTorch has it. A value is a `Wire`, which is computed when the model runs, a `Const`, or a
tensor of the state dict, `Stored`. Masks are 0 and 1 as numbers, without a gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from math import inf, isfinite, isinf, log, pi, prod, sqrt
from typing import Any

from ....data import np
from ..build import (
    OPERATIONS,
    Axis,
    Builder,
    Const,
    Learned,
    Scaled,
    Stored,
    Wire,
    check_learned,
    is_parameter,
    number_of,
    operation,
    without_axis,
)
from ..layers import LuaLayer, make, same, sequential, walk
from ..sizes import CannotError, is_static, make_static
from ..trace import to_array
from ..training import dropout_of_attention

ERF = "Abramowitz and Stegun 7.1.26 (within 1.5e-7), as nn has no layer for it"


def erf_of_magnitude() -> LuaLayer:
    """Return erf(|x|) as layers: 1 - (a1 t + ... + a5 t^5) exp(-x^2) with t = 1 / (1 + p |x|)."""
    coefficients = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
    terms = [same() ** power * value for power, value in enumerate(coefficients, 1)]
    series = (make("nn.Abs") * 0.3275911 + 1) >> make("nn.Power", -1)
    series = series >> LuaLayer("nn.ConcatTable", children=terms) >> make("nn.CAddTable")
    return 1 - series * (-make("nn.Square") >> make("nn.Exp"))


def hard_sigmoid() -> LuaLayer:
    """Return relu6(x + 3) / 6 as layers."""
    return ((same() + 3) >> make("nn.HardTanh", 0, 6)) / 6


def clipped(min: float | None = None, max: float | None = None) -> LuaLayer:
    """Return layers that clip to an interval, or on one side if the other bound is `None`.

    Raises:
        CannotError: the interval is empty, or a single number.
    """
    if min is not None and max is not None:
        if not min < max:  # which nn.HardTanh refuses
            raise CannotError(f"clips to an interval from {min} to {max}")
        return make("nn.HardTanh", min, max)
    if min is not None:
        return make("nn.Threshold", min, min)
    if max is not None:  # nn.Threshold has a least value only: that of the negative
        negative = -same()
        return -(negative >> make("nn.Threshold", -max, -max))
    return same()


def logit(eps: float | None) -> LuaLayer:
    """Return log(x / (1 - x)) as layers, of values clipped to [eps, 1 - eps]."""
    quotient = make("nn.Log") - ((1 - same()) >> make("nn.Log"))
    if eps is None:
        return quotient
    return clipped(eps, 1 - eps) >> quotient


def elu(alpha: float, scale: float, input_scale: float) -> LuaLayer:
    """Return an nn.ELU, scaled, as layers; PyTorch scales the input only where it is negative.

    It is scale x where x is positive, and scale alpha (exp(input_scale x) - 1) elsewhere.
    """
    layer = (same() * input_scale) >> make("nn.ELU", alpha)
    if input_scale != 1:  # so far input_scale x where x is positive
        layer = layer + make("nn.ReLU") * (1 - input_scale)
    return layer * scale


# Operation → its layer with those arguments that it takes, or a formula of them.
EACH: dict[str, str | Callable[..., LuaLayer]] = {
    "relu": "nn.ReLU",
    "sigmoid": "nn.Sigmoid",
    "tanh": "nn.Tanh",
    "elu": elu,
    "celu": lambda alpha: (same() * (1 / alpha)) >> (make("nn.ELU", 1) * alpha),
    "leaky_relu": "nn.LeakyReLU negative_slope",
    "hardtanh": "nn.HardTanh min_val max_val",
    "clamp clip": clipped,
    "clamp_min": lambda min: clipped(min),
    "clamp_max": lambda max: clipped(None, max),
    "threshold": "nn.Threshold threshold value",
    "silu": lambda: same() * make("nn.Sigmoid"),
    "hardsigmoid": hard_sigmoid,
    "hardswish": lambda: same() * hard_sigmoid(),
    "mish": lambda: same() * (make("nn.SoftPlus") >> make("nn.Tanh")),
    "log_sigmoid": "nn.LogSigmoid",
    "hardshrink": "nn.HardShrink lambd",
    "softshrink": "nn.SoftShrink lambd",
    "exp": "nn.Exp",
    "expm1": lambda: make("nn.Exp") - 1,
    "exp2": lambda: (same() * log(2)) >> make("nn.Exp"),
    "log": "nn.Log",
    "log1p": lambda: (same() + 1) >> make("nn.Log"),
    "log2": lambda: make("nn.Log") / log(2),
    "log10": lambda: make("nn.Log") / log(10),
    "logit": logit,
    "sqrt": "nn.Sqrt",
    "rsqrt": lambda: make("nn.Power", -0.5),
    "reciprocal": lambda: make("nn.Power", -1),
    "abs": "nn.Abs",
    "neg": lambda: -same(),
    "square": "nn.Square",
    "pow.Tensor_Scalar": lambda exponent: same() ** exponent,
}


def _register(names: str, formula: str | Callable[..., LuaLayer]) -> None:
    """Register operations on each element of one value, with numbers as other arguments.

    Args:
        names: of the operations, separated by spaces.
        formula: the class of a layer and the names of those arguments of the operation that are its own, separated by
            spaces: `nn.HardTanh min_val max_val`; or a function that returns a layer, whose parameters have such names.
    """
    if isinstance(formula, str):
        class_name, *arguments = formula.split()
        layer_of: Callable[..., LuaLayer] = partial(make, class_name)
    else:
        layer_of = formula
        arguments = list(inspect.signature(formula).parameters)

    def build(b: Builder, value: Any, /, **args: Any) -> Any:
        layer = layer_of(*(args[argument] for argument in arguments))
        return value if layer.name == "nn.Identity" else b.emit(layer, value)

    # The page on operations shows the docstring of the builder, and the classes of its layers.
    first_name, *_ = names.split()
    name, _, _ = first_name.partition(".")
    build.__doc__ = f"{name} of each element."
    register = operation(names, lua=", ".join(_classes_of(layer_of, len(arguments))))
    register(build)


def _classes_of(layer_of: Callable[..., LuaLayer], count: int) -> list[str]:
    """Return the classes of the layers that a function of `count` numbers makes, each once."""
    # They are the same for any numbers; these increase, as the ends of an interval have to.
    numbers = [0.25 + number for number in range(count)]
    return list(dict.fromkeys(layer.name for layer in walk(layer_of(*numbers))))


for _names, _formula in EACH.items():
    _register(_names, _formula)


@operation("gelu", lua="nn.Tanh with a cubic, or erf of nn.Power, nn.Exp, nn.CMulTable", note=f"erf is {ERF}.")
def gelu(b: Builder, self: Any, approximate: str) -> Any:
    """Apply the Gaussian error linear unit, in both forms."""
    if approximate == "tanh":
        inner = ((same() + same() ** 3 * 0.044715) * sqrt(2 / pi)) >> make("nn.Tanh")
        return b.emit(same() * (inner + 1) * 0.5, self)
    b.remark(f"GELU uses erf by {ERF}")
    return b.emit((same() + make("nn.Abs") * ((same() * sqrt(0.5)) >> erf_of_magnitude())) * 0.5, self)


@operation("erf erfc", lua="nn.ReLU, nn.Power, nn.Exp, nn.CMulTable", note=f"By {ERF}.")
def erf(b: Builder, self: Any) -> Any:
    """Apply the error function, as erf(relu(x)) - erf(relu(-x)), or 1 minus it."""
    b.remark(f"erf is computed by {ERF}")
    positive = same() >> make("nn.ReLU") >> erf_of_magnitude()
    negative = -same() >> make("nn.ReLU") >> erf_of_magnitude()
    value = b.emit(positive - negative, self)
    return 1 - value if b.kind == "erfc" else value


@operation("hypot", lua="nn.Square, nn.CAddTable, nn.Sqrt")
def hypot(b: Builder, self: Any, other: Any) -> Any:
    """Return the length of the hypotenuse."""
    return (b.combine("nn.CAddTable", b.wire(self) ** 2, b.wire(other) ** 2)) ** 0.5


@operation("softplus", lua="nn.SoftPlus")
def softplus(b: Builder, self: Any, beta: float, threshold: float) -> Any:
    """Apply log(1 + exp(beta x)) / beta."""
    if threshold != 20:
        raise CannotError(f"nn.SoftPlus is linear above 20, this one above {threshold}")
    return b.emit(make("nn.SoftPlus", beta), self)


@operation("prelu _prelu_kernel", lua="nn.PReLU")
def prelu(b: Builder, self: Any, weight: Learned) -> Any:
    """Apply a rectifier with learned slopes: one, or one per channel (dimension 1)."""
    count = weight.ref.size[0] if weight.ref.size else 1
    if count == 1:  # without an argument, nn.PReLU has one slope for all channels
        return b.emit(make("nn.PReLU", weight=weight.ref.resized((1,))), self)
    layer = make("nn.PReLU", count, weight=weight.ref.resized((count,)))
    if len(self.shape) == 3:  # nn.PReLU takes the first dimension of a signal for its channels
        return b.reshape(b.emit(layer, b.reshape(self, (*self.shape, 1))), self.shape)
    return b.emit(layer, self)


ACTIVE_DROPOUT = "a dropout that is active in evaluation too acts in training only in Lua"


@operation("rrelu", lua="nn.RReLU")
def rrelu(b: Builder, self: Any, lower: float, upper: float, training: bool) -> Any:
    """Apply a rectifier with random slopes in training, and their mean in evaluation."""
    if training:
        b.remark("random slopes in evaluation, too, become nn.RReLU, which takes their mean there")
    return b.emit(make("nn.RReLU", lower, upper), self)


@operation("dropout native_dropout", lua="nn.Dropout", missing="Lua's nn.Dropout does not return its mask")
def dropout(b: Builder, input: Any, /, p: float, train: bool) -> Any:
    """Set elements to 0 at random in training."""
    if p == 0:
        return input
    if p >= 1:
        raise CannotError("Lua has no dropout of all elements")
    if train:
        b.remark(ACTIVE_DROPOUT)
    return b.emit(make("nn.Dropout", p), input)


@operation(
    "feature_dropout",
    lua="nn.SpatialDropout or nn.VolumetricDropout, nn.MulConstant",
    note="Lua scales in evaluation and PyTorch in training: the constant compensates.",
)
def feature_dropout(b: Builder, input: Any, /, p: float, train: bool) -> Any:
    """Set channels to 0 at random in training."""
    rank = len(input.shape)
    if p == 0:
        return input
    if p >= 1 or rank not in (3, 4, 5):
        raise CannotError("only a part of the channels of inputs of 3 to 5 dimensions is dropped")
    if train:
        b.remark(ACTIVE_DROPOUT)
    name = "nn.VolumetricDropout" if rank == 5 else "nn.SpatialDropout"
    # Lua multiplies by 1 - p in evaluation; PyTorch divides by it in training.
    layer = make(name, p) / (1 - p)
    images = b.reshape(input, (*input.shape, 1)) if rank == 3 else input  # a signal is an image of width 1
    return b.reshape(b.emit(layer, images), input.shape)


@operation("alpha_dropout feature_alpha_dropout", lua="none")
def alpha_dropout(b: Builder, input: Any, /, p: float) -> Any:
    """Return the same values, as in evaluation: Lua has no such dropout, of which a note tells."""
    if p != 0:
        b.remark("Lua has no alpha dropout: it is left out, in training too", warning=True)
    return input


def with_last_axis(b: Builder, value: Any, dim: int, function: Callable[[Any], Any]) -> Any:
    """Apply a function along a dimension: exchange it with the last one before, and back afterwards."""
    order = list(range(len(value.shape)))
    order[dim], order[-1] = order[-1], order[dim]
    result = function(b.permute(value, order))
    return b.permute(result, order)  # the exchange is its own inverse


@operation("log_softmax.int _log_softmax", lua="nn.LogSoftMax, in nn.Bottle or between nn.Transpose")
@operation("softmax.int _softmax", lua="nn.SoftMax, nn.SpatialSoftMax, in nn.Bottle or between nn.Transpose")
def softmax(b: Builder, self: Wire, dim: Axis) -> Any:
    """Apply softmax over a dimension, or its logarithm."""
    value = softmax_of(b, self, dim, "nn.LogSoftMax" if "log" in b.kind else "nn.SoftMax")
    # A torch.nn.MultiheadAttention that returns its weights computes them by this operation, and drops some in
    # training.
    probability = dropout_of_attention(b.module)
    return value >> make("nn.Dropout", probability) if probability else value


def softmax_of(b: Builder, value: Any, dim: int, name: str = "nn.SoftMax") -> Any:
    """Apply softmax to a dimension; Lua's layers take rows of matrices, or channels of images.

    Args:
        b: the builder.
        value: a wire.
        dim: the dimension, 0-based.
        name: of the layer: nn.SoftMax or nn.LogSoftMax.
    """
    rank = len(value.shape)
    is_of_channels = rank == 4 and dim == 1
    if is_of_channels:  # nn.LogSoftMax takes the channels of images itself
        return b.emit(make("nn.SpatialSoftMax" if name == "nn.SoftMax" else name), value)
    layer = make(name)
    if rank > 2:
        layer = LuaLayer("nn.Bottle", (2, 2), children=[layer])  # of matrices to matrices
    return with_last_axis(b, value, dim, lambda rows: b.emit(layer, rows))


def weight_times(b: Builder, weight: Any, other: Any, divide: bool = False) -> Scaled | None:
    """Return a learned kernel or matrix times a scale, which the layer that holds it applies to its inputs or outputs.

    `None` if the weight is not such a parameter, or the other value is not one number or a vector along one dimension:
    both are then multiplied as any values.

    Args:
        b: the builder.
        weight: any value; a `Scaled` has a scale already.
        other: any value.
        divide: by the other value, and not multiply.
    """
    scaled = weight if isinstance(weight, Scaled) else Scaled(weight, scale=1.0, axis=None)
    param = scaled.param
    if not is_parameter(param) or len(param.shape) < 2:
        return None
    is_broadcast = param.ref.size != param.shape
    if is_broadcast:
        return None
    number = number_of(other)
    if number is not None:
        factor = 1 / number if divide else number
        return Scaled(param, scaled.scale * factor, scaled.axis)
    if isinstance(weight, Scaled):  # a second vector may be along another dimension than the first
        return None
    if not isinstance(other, (Wire, Stored)) or b.shape != param.shape:  # the layer has a kernel of the same shape
        return None
    return _scaled_by_tensor(b, param, other, divide)


def _scaled_by_tensor(b: Builder, param: Stored, other: Any, divide: bool) -> Scaled | None:
    """Return a parameter times a tensor of one element, or of several along one dimension; `None` for another.

    Args:
        b: the builder.
        param: the parameter.
        other: the tensor, a wire or of the state dict, which broadcasts to the parameter's shape.
        divide: by the tensor, and not multiply.
    """
    longer_axes = [axis for axis, extent in enumerate(other.shape) if extent != 1]
    if not longer_axes:
        axis = None
        count = 1
    elif len(longer_axes) == 1 and len(other.shape) == len(param.shape):  # so that the axis is one of the parameter
        (axis,) = longer_axes
        count = other.shape[axis]
    else:
        return None
    scale = b.reshape(b.wire(other), (count,))
    return Scaled(param, scale**-1 if divide else scale, axis)


@operation("sub.Tensor sub.Scalar rsub.Scalar rsub.Tensor", lua="nn.CSubTable, nn.CAdd, nn.AddConstant")
@operation("add.Tensor add.Scalar", lua="nn.CAddTable, nn.CAdd for a parameter, nn.AddConstant")
def add(b: Builder, self: Any, other: Any, alpha: float) -> Any:
    """Add, or subtract; sums of masks are masks.

    The second term is multiplied by `alpha` before.
    """
    if b.dtype == "bool":  # PyTorch refuses differences of masks
        return b.expand(b.combine("nn.CMaxTable", self, other), b.shape)
    pair = (other, self) if b.kind == "rsub" else (self, other)
    first, second = b.operands(*pair)
    if alpha != 1:
        factor = second if isinstance(second, float) else b.wire(second)
        second = factor * alpha
    return b.expand(first + second if b.kind == "add" else first - second, b.shape)


@operation("div.Tensor div.Scalar true_divide.Tensor", lua="nn.CDivTable, nn.MulConstant, nn.Power", scaled=True)
@operation("mul.Tensor mul.Scalar", lua="nn.CMulTable, nn.CMul for a parameter, nn.MulConstant", scaled=True)
def mul(b: Builder, self: Any, other: Any) -> Any:
    """Multiply, or divide.

    A learned weight times a scale stays a pair of both, where it can: see `weight_times`.
    """
    divide = b.kind != "mul"
    scaled = weight_times(b, self, other, divide)
    if scaled is None and not divide:  # the weight may be the second factor
        scaled = weight_times(b, other, self)
    if scaled is not None:
        return scaled
    unscaled = [b.wire(value) if isinstance(value, Scaled) else value for value in (self, other)]
    first, second = b.operands(*unscaled)
    return b.expand(first / second if divide else first * second, b.shape)


@operation("lerp.Scalar lerp.Tensor", lua="nn.CSubTable, nn.MulConstant or nn.CMulTable, nn.CAddTable")
def lerp(b: Builder, self: Any, end: Wire, weight: Any) -> Any:
    """Interpolate linearly between two values."""
    return (end - self) * weight + self


@operation("minimum min.other", lua="nn.CMinTable")
@operation("maximum max.other", lua="nn.CMaxTable")
def extremum(b: Builder, self: Any, other: Any) -> Any:
    """Return the larger or the smaller of two."""
    return b.combine("nn.CMaxTable" if b.kind.startswith("max") else "nn.CMinTable", self, other)


@operation("clamp.Tensor clamp_min.Tensor clamp_max.Tensor", lua="nn.CMaxTable, nn.CMinTable")
def clamp_between(b: Builder, self: Any, min: Any = None, max: Any = None) -> Any:
    """Clip each element to an interval of its own; a bound that is `None` is left out."""
    least = number_of(min)
    largest = number_of(max)
    # Bounds that are the same number for all elements make the interval of one layer.
    if (least is not None or min is None) and (largest is not None or max is None):
        return b.emit(clipped(least, largest), self)
    value = self
    if min is not None:
        value = b.combine("nn.CMaxTable", value, min)
    if max is not None:
        value = b.combine("nn.CMinTable", value, max)
    return value


@operation("pow.Scalar", lua="nn.MulConstant, nn.Exp")
def power_of_number(b: Builder, self: float, exponent: Wire) -> Any:
    """Raise a number to powers."""
    if self <= 0:
        raise CannotError(f"powers of {self}")
    return (exponent * log(self)) >> make("nn.Exp")


def _finite(b: Builder) -> tuple[float, float]:
    """Return the least and the largest finite number of the model's type, for differences of infinite values."""
    largest = float(np.finfo("f8" if b.program.is_double else "f4").max)
    return -largest, largest


@operation("logaddexp", lua="nn.CMaxTable, nn.CMinTable, nn.HardTanh, nn.CSubTable, nn.SoftPlus, nn.CAddTable")
def logaddexp(b: Builder, self: Any, other: Any) -> Any:
    """Return the logarithm of a sum of exponentials."""
    largest = b.combine("nn.CMaxTable", self, other)
    # Clipped, as the difference of two infinities would be NaN.
    finite_largest = largest >> make("nn.HardTanh", *_finite(b))
    difference = b.combine("nn.CMinTable", self, other) - finite_largest
    return largest + (difference >> make("nn.SoftPlus"))


FUNCTIONS = "sin cos tan asin acos atan sinh cosh asinh atanh floor ceil trunc round isinf"
"""Functions of each element that nn lacks: layers of `layers.lua`, where `--allow layers` permits it."""


@operation(FUNCTIONS, lua="pt.Function", package="layers")
def function(b: Builder, self: Wire, /) -> Any:
    """Apply a function to each element; the slope of those that round is 0."""
    return self >> make("pt.Function", b.kind)


@operation("atan2 pow.Tensor_Tensor fmod.Tensor remainder.Tensor floor_divide", lua="pt.Binary", package="layers")
@operation("fmod.Scalar remainder.Scalar", lua="pt.Binary", package="layers")
def binary(b: Builder, self: Any, other: Any, /) -> Any:
    """Apply a function to each pair of elements."""
    return apply_to_pairs(b, b.kind, self, other)


@operation("div.Tensor_mode div.Scalar_mode", lua="pt.Binary; nn.CDivTable", package="layers")
def rounded_quotient(b: Builder, self: Any, other: Any, rounding_mode: str | None) -> Any:
    """Divide, and round the quotient down or to 0.

    `rounding_mode` is `floor`, `trunc`, or `None` for a quotient that is not rounded.
    """
    if rounding_mode is None:
        first, second = b.operands(self, other)
        return b.expand(first / second, b.shape)
    return apply_to_pairs(b, "floor_divide" if rounding_mode == "floor" else "trunc_divide", self, other)


def apply_to_pairs(b: Builder, name: str, *values: Any) -> Any:
    """Apply a function of pt.Binary, a layer that nn lacks, to each pair of elements of two values, which broadcast."""
    tensors = []
    for value in values:
        is_number = isinstance(value, (int, float))
        tensors.append(b.constant(float(value), ()) if is_number else value)
    return b.combine("pt.Binary", *tensors, name)


_STEEP_FLOAT = 3e38
"""A factor that scales the smallest normal float to at least 1."""
_STEEP_DOUBLE = 1.7e308
"""A factor that scales the smallest normal double to at least 1."""
FLOATS = ("float32", "float64", "float16", "bfloat16")
PARTS = "nn.CSubTable or nn.AddConstant, nn.ZeroGrad, nn.MulConstant, nn.HardTanh"
NOTE = "Exact for all numbers but denormal ones; masks are 0 and 1 in the model's own type."


def is_positive(b: Builder, dtype: str) -> LuaLayer:
    """Return layers that map positive values to 1 and the rest, also NaN, to 0: Lua's ReLU returns 0 for NaN."""
    return _scaled_to_at_least_1(b, dtype) >> make("nn.ReLU") >> make("nn.HardTanh", 0, 1)


def _scaled_to_at_least_1(b: Builder, dtype: str) -> LuaLayer:
    """Return layers that scale all positive values to at least 1; whole numbers are so already."""
    layer = make("nn.ZeroGrad")
    if dtype in FLOATS or not dtype:  # an unknown type may be one of floats
        b.remark("comparisons are exact for all numbers but denormal ones; their masks are 0 and 1")
        layer = layer * (_STEEP_DOUBLE if b.program.is_double else _STEEP_FLOAT)
    return layer


def is_nan() -> LuaLayer:
    """Return layers that map NaN to 1 and the rest to 0, in Lua: PyTorch's threshold is NaN for NaN, see `nan_mask`."""
    # All magnitudes are above the threshold -1 but NaN, which is replaced by -2.
    replaced = make("nn.ZeroGrad") >> make("nn.Abs") >> make("nn.Threshold", -1, -2)
    return -replaced >> make("nn.HardTanh", 0, 1)


def nan_mask(b: Builder, value: Wire) -> Any:
    """Return 1 for NaN and 0 for the rest, in Lua as in PyTorch.

    The maximum with minus infinity, and the minimum with infinity, are the value itself, but infinite where it is NaN.
    """
    if "layers" in b.allow:
        return value >> make("pt.Function", "isnan")
    value = value >> make("nn.ZeroGrad")
    element = "f8" if b.program.is_double else "f4"
    maximum = b.combine("nn.CMaxTable", b.constant(np.array(-inf, element), value.shape), value)
    minimum = b.combine("nn.CMinTable", b.constant(np.array(inf, element), value.shape), value)
    # Clipped, so that their difference is not NaN: -1 and 1 where the value is NaN, else equal.
    low = maximum >> make("nn.HardTanh", -1, 1)
    high = minimum >> make("nn.HardTanh", -1, 1)
    return (high - low) * 0.5


def nan_where(mask: Wire) -> Wire:
    """Return NaN where a mask is 1, and 0 elsewhere: the square root of its negative."""
    return -(mask >> make("nn.ZeroGrad")) >> make("nn.Sqrt")


def is_nonzero(b: Builder, dtype: str) -> LuaLayer:
    """Return layers that map 0 to 0 and the rest to 1, also NaN: Lua's HardTanh returns its largest value for it."""
    return make("nn.Abs") >> _scaled_to_at_least_1(b, dtype) >> make("nn.HardTanh", 0, 1)


def _compared_type(b: Builder) -> str:
    """Return the element type of a comparison: that of its first floating argument, or else of its first tensor."""
    dtypes = [b.dtype_of("self"), b.dtype_of("other")]
    for dtype in dtypes:
        if dtype in FLOATS:
            return dtype
    return dtypes[0] or dtypes[1]


@operation(
    " ".join(f"{name}.{kind}" for name in ("gt", "lt", "ge", "le", "eq", "ne") for kind in ("Scalar", "Tensor")),
    lua=f"{PARTS}, nn.Abs",
    note=NOTE,
)
def compare(b: Builder, self: Any, other: Any) -> Any:
    """Return 1 where a comparison holds."""
    first, second = b.operands(self, other)
    is_with_nan = any(isinstance(value, float) and value != value for value in (first, second))
    if is_with_nan:
        holds = b.kind == "ne"  # the only comparison that does
        return b.constant(np.full((1,) * len(b.shape), float(holds), "f4"), b.shape)
    if isinstance(first, Wire) and isinstance(second, Wire) and first.step is second.step:  # x == x, which tells NaN
        return b.expand(_compared_with_itself(b, first), b.shape)
    return b.expand(_compared_by_difference(b, first, second), b.shape)


def _compared_by_difference(b: Builder, first: Any, second: Any) -> Any:
    """Return the mask of a comparison: 1 where the difference of two values is positive, or 1 where it is not.

    Args:
        b: the builder, whose call is the comparison.
        first: a wire, a constant, a tensor of the state dict or a number, not NaN.
        second: likewise; one of both is a wire.
    """
    values = (first, second)
    is_float = _compared_type(b) in FLOATS
    has_infinity = any(isinstance(value, float) and isinf(value) for value in values)
    are_wires = all(isinstance(value, Wire) for value in values)
    may_both_be_infinite = is_float and (are_wires or has_infinity)
    if may_both_be_infinite:  # the difference of two infinities would be NaN
        first, second = (_clip_infinities(b, value) for value in values)
    mask = _positive_difference(b, first, second) >> is_positive(b, _type_of_difference(b, first, second))
    is_turned = b.kind in ("ge", "le", "eq", "ne")  # whose difference is positive where they do not hold
    if is_turned:
        mask = 1 - mask
    # With NaN no comparison but `ne` holds. `is_positive` returns 0 for it; but that was turned into 1, or Lua's
    # HardTanh, which clips infinities, has made the largest number of the NaN.
    if may_both_be_infinite or (is_float and is_turned):
        mask = _without_nan(b, mask, values)
    return 1 - mask if b.kind == "ne" else mask  # so far the mask of `eq`, which does not hold for NaN


def _type_of_difference(b: Builder, first: Any, second: Any) -> str:
    """Return the element type of the difference of two compared values.

    Whole numbers differ by 1 at least, but not from a fraction, such as 0.5, or from a parameter.
    """
    if any(isinstance(value, Stored) or _is_fraction(value) for value in (first, second)):
        return "float32"
    return _compared_type(b)


def _is_fraction(value: Any) -> bool:
    """Return whether a value is a number that is neither whole nor infinite nor NaN."""
    return isinstance(value, float) and isfinite(value) and not value.is_integer()


def _positive_difference(b: Builder, first: Any, second: Any) -> Any:
    """Return a difference that is positive where `gt`, `lt` or `ne` holds, or where `le`, `ge` or `eq` does not."""
    if b.kind in ("lt", "ge"):
        return second - first
    if b.kind in ("eq", "ne"):
        return (first - second) >> make("nn.Abs")
    return first - second


def _without_nan(b: Builder, mask: Wire, values: tuple[Any, ...]) -> Wire:
    """Return a mask of 0 and 1 with 0 where any of some values, wires, constants or others without NaN, is NaN."""
    for value in values:
        if isinstance(value, Wire):
            mask = mask - (value >> is_nan())
        elif isinstance(value, Const) and np.isnan(value.array()).any():
            mask = mask - b.constant(np.isnan(value.array()).astype("f4"), value.shape)
    return mask >> make("nn.ReLU")


def _compared_with_itself(b: Builder, value: Wire) -> Any:
    """Return the mask of a comparison of a value with itself: each element is equal to itself, but for NaN."""
    zeros = make("nn.ZeroGrad") >> make("nn.MulConstant", 0)
    is_float = _compared_type(b) in FLOATS  # whole numbers are never NaN
    is_unequal = nan_mask(b, value) if is_float else value >> zeros
    if b.kind == "ne":
        return is_unequal
    if b.kind in ("eq", "ge", "le"):
        return 1 - is_unequal
    return is_unequal * 0  # gt and lt hold for no element


def _clip_infinities(b: Builder, value: Any) -> Any:
    """Return a value, or a number, with infinities as the largest finite numbers of the model's type."""
    low, high = _finite(b)
    if isinstance(value, Wire):
        return value >> make("nn.HardTanh", low, high)
    return max(min(value, high), low)


@operation("isnan", lua="nn.CMaxTable, nn.CMinTable, nn.HardTanh, nn.CSubTable; pt.Function")
def isnan(b: Builder, self: Wire) -> Any:
    """Return 1 for NaN."""
    return nan_mask(b, self)


def _as_mask(b: Builder, value: Any, name: str) -> Any:
    """Return an argument of a logical operation as a mask of 0 and 1.

    Args:
        b: the builder.
        value: the argument.
        name: of it in ATen.

    Raises:
        CannotError: it is computed, and not boolean.
    """
    if isinstance(value, Const):
        return b.constant((value.array() != 0).astype("f4"), value.shape)
    if b.dtype_of(name) != "bool":
        raise CannotError("logic of numbers that are no masks")
    return value


@operation("logical_not bitwise_not", lua="nn.MulConstant, nn.AddConstant")
def logical_not(b: Builder, self: Any) -> Any:
    """Exchange 0 and 1 of a mask."""
    return 1 - b.wire(_as_mask(b, self, "self"))


@operation(
    " ".join(f"logical_{name} bitwise_{name}.Tensor __{name}__.Tensor" for name in ("and", "or", "xor")),
    lua="nn.CMulTable (and), nn.CMaxTable (or), nn.CSubTable and nn.Abs (xor)",
)
def logic(b: Builder, self: Any, other: Any) -> Any:
    """Combine masks."""
    operator = b.kind.strip("_").rpartition("_")[2]  # the and of logical_and, bitwise_and and __and__
    name = {"and": "nn.CMulTable", "or": "nn.CMaxTable", "xor": "nn.CSubTable"}[operator]
    mask = b.combine(name, _as_mask(b, self, "self"), _as_mask(b, other, "other"))
    return mask >> make("nn.Abs") if operator == "xor" else mask


@operation("bucketize.Tensor searchsorted.Tensor", lua=f"{PARTS}, nn.Sum", note=NOTE)
def bucketize(b: Builder, first: Any, second: Any, /, right: bool, side: str | None = None, sorter: Any = None) -> Any:
    """Return the number of boundaries below each element, or not above it.

    Args:
        b: the builder.
        first: of `bucketize` the elements, of `searchsorted` the boundaries.
        second: the boundaries or the elements.
        right: whether boundaries that are equal to the element count.
        side: of `searchsorted`, "right" or "left" as numpy says it; `None` if `right` does.
        sorter: of `searchsorted`, the indices that sort the boundaries; `None` if these are sorted.
    """
    if sorter is not None:
        raise CannotError("the boundaries are not sorted")
    value, boundaries = (first, second) if b.kind == "bucketize" else (second, first)
    if len(boundaries.shape) != 1:
        raise CannotError("the boundaries are not one row")
    _check_sorted(b, boundaries)
    column = b.reshape(value, (*value.shape, 1))  # each element is compared with all boundaries
    # ATen's `self` is the elements in both operations; a number has no type.
    dtype = b.dtype_of("self") or "float32"
    dtype_of_boundaries = b.dtype_of("boundaries" if b.kind == "bucketize" else "sorted_sequence")
    # Whole numbers differ by 1 at least, but not from boundaries that are fractions.
    has_fractions = not dtype_of_boundaries.startswith(("int", "uint"))
    layer = is_positive(b, "float32" if has_fractions else dtype)
    if right or side == "right":  # a boundary counts unless it is above the element
        is_above = b.combine("nn.CSubTable", boundaries, column) >> layer
        is_counted = 1 - is_above  # NaN is above all boundaries: `is_positive` returns 0 for its difference
    else:
        is_counted = (column - boundaries) >> layer
        if dtype in FLOATS and isinstance(column, Wire):
            is_counted = b.combine("nn.CMaxTable", is_counted, column >> is_nan())
    return reduce_over(b, "nn.Sum", is_counted, [-1])


def _check_sorted(b: Builder, boundaries: Any) -> None:
    """Refuse boundaries that are known and not in order, or NaN: what PyTorch's search finds there is no count.

    Raises:
        CannotError: they are.
    """
    if isinstance(boundaries, Const):
        array = boundaries.array().reshape(-1)  # of one element alone, if it is repeated
    elif isinstance(boundaries, Stored):
        start = boundaries.ref.start
        array = to_array(b.program.state[boundaries.ref.key]).reshape(-1)[start : start + prod(boundaries.ref.size)]
    else:
        return
    is_sorted = (array[1:] >= array[:-1]).all() and not np.isnan(array).any()
    if not is_sorted:
        raise CannotError("the boundaries are not sorted")


@operation("sign sgn", lua=f"nn.ConcatTable, nn.CSubTable, {PARTS}", note=NOTE)
def sign(b: Builder, self: Any) -> Any:
    """Return -1, 0 or 1."""
    dtype = _compared_type(b)
    return b.emit(is_positive(b, dtype) - (-same() >> is_positive(b, dtype)), self)


def fill_where(b: Builder, value: Any, mask: Any, number: float) -> Any:
    """Return a value, and a number where a mask is 1: the value between bounds that are infinite where it is kept.

    Nothing is multiplied, so that NaN and infinities that are left out leave no trace. A NaN that is kept is lost
    between the bounds, and is added again.

    Args:
        b: the builder.
        value: a wire, a constant or a tensor of the state dict.
        mask: 0 and 1.
        number: may be NaN or infinite.
    """
    if number != number:  # NaN
        like = value if isinstance(value, Wire) else None
        return fill_where(b, value, mask, 0.0) + nan_where(b.wire(mask, like=like))
    if isinstance(mask, Const):
        low, high, is_kept = _bounds_of_constant(b, mask, number)
    else:
        low, high, is_kept = _bounds_of_mask(b.wire(mask), number)
    result = value
    if number != -inf:  # or the lower bound would be minus infinity everywhere
        result = b.combine("nn.CMaxTable", low, result)
    if number != inf:
        result = b.combine("nn.CMinTable", high, result)
    if not isinstance(value, Wire) or b.dtype not in FLOATS:  # whole numbers are never NaN
        return result
    is_kept_nan = b.combine("nn.CMinTable", is_kept, value >> is_nan())  # both: the smaller one of two masks
    return result + nan_where(is_kept_nan)


def _bounds_of_constant(b: Builder, mask: Const, number: float) -> tuple[Any, Any, Any]:
    """Return lower and upper bounds of a value, a number where a mask is 1 and infinite elsewhere; and 1 - mask."""
    is_replaced = mask.array() != 0
    element = "f8" if b.program.is_double else "f4"
    low = b.constant(np.where(is_replaced, number, -inf).astype(element), b.shape)
    high = b.constant(np.where(is_replaced, number, inf).astype(element), b.shape)
    return low, high, b.constant((~is_replaced).astype("f4"), mask.shape)


def _bounds_of_mask(mask: Any, number: float) -> tuple[Any, Any, Any]:
    """Return lower and upper bounds of a value, a number where a mask is 1 and infinite elsewhere; and 1 - mask.

    The infinities are logarithms of 0: as products with the mask they would be NaN where it is 0.

    Args:
        mask: a wire of 0 and 1, as it is computed; the bounds pass no gradient on to it.
        number: finite or infinite, and not NaN.
    """
    opposite = 1 - mask
    mask = mask >> make("nn.ZeroGrad")
    minus_infinity_elsewhere = mask >> make("nn.Log")  # and 0 where the mask is 1
    if number == 0:
        return minus_infinity_elsewhere, -minus_infinity_elsewhere, opposite
    if abs(number) == inf:
        minus_infinity_in_mask = (1 - mask) >> make("nn.Log")  # and 0 elsewhere
        number_in_mask = minus_infinity_in_mask * (1 if number < 0 else -1)
        return number_in_mask + minus_infinity_elsewhere, number_in_mask - minus_infinity_elsewhere, opposite
    return mask * number + minus_infinity_elsewhere, mask * number - minus_infinity_elsewhere, opposite


@operation(
    "where.self where.ScalarOther where.ScalarSelf where.Scalar",
    lua="nn.CMaxTable and nn.CMinTable with bounds by the mask, nn.Log; nn.CAddTable; NaN by nn.Threshold and nn.Sqrt",
)
def where(b: Builder, condition: Any, self: Any, other: Any) -> Any:
    """Choose between two values by a mask.

    It is `self` where the mask, `condition`, is true, and `other` elsewhere.
    """
    first = number_of(self)
    second = number_of(other)
    # A number is filled in. Of two tensors, each is kept where it is chosen, and 0 elsewhere; and both are added.
    if first is not None:
        rest = other if second is None else b.constant(np.array(second))
        return b.expand(fill_where(b, rest, condition, first), b.shape)
    if isinstance(condition, Const):
        opposite: Any = b.constant(condition.array() == 0, condition.shape)
    else:
        opposite = 1 - b.wire(condition)
    if second is not None:
        return b.expand(fill_where(b, self, opposite, second), b.shape)
    return fill_where(b, self, opposite, 0.0) + fill_where(b, other, condition, 0.0)


MOST_STEPS = 256
"""Elements of a dimension for each of which an operation may have layers of its own."""
POSITIONS = "the positions of extrema are not available in nn; --allow layers writes a layer"


def _axes_of(dim: Any, rank: int) -> list[int]:
    """Return the dimensions of a reduction, 0-based and in order.

    Args:
        dim: one or several, negative from the end; all if there are none.
        rank: the number of dimensions of the value.
    """
    dims = [dim] if isinstance(dim, int) else dim
    if not dims:
        return list(range(rank))
    return sorted({axis % rank for axis in dims})


@operation("any any.dim any.dims all all.dim all.dims", lua=f"nn.Max, nn.Min; {PARTS}, nn.Abs", note=NOTE)
def any_of(b: Builder, self: Wire, dim: Any = None, keepdim: bool = False) -> Any:
    """Return whether any or all elements along dimensions are not 0."""
    mask = self if b.dtype_of("self") == "bool" else self >> is_nonzero(b, b.dtype_of("self"))
    return reduce_over(b, "nn.Max" if b.kind == "any" else "nn.Min", mask, dim, keepdim)


def reduce_over(b: Builder, name: str, value: Wire, dim: Any, keepdim: bool = False) -> Any:
    """Apply nn.Sum, nn.Mean, nn.Max or nn.Min over dimensions.

    Args:
        b: the builder.
        name: of the layer, which reduces one dimension.
        value: the value.
        dim: one or several dimensions, negative from the end; all if there are none.
        keepdim: keep each of them, with an extent of 1.
    """
    axes = _axes_of(dim, len(value.shape))
    rest = tuple(extent for axis, extent in enumerate(value.shape) if axis not in axes)
    result = value
    if axes:
        # The last one first, as each layer removes its dimension.
        layers = [make(name, axis + 1) for axis in reversed(axes)]
        result = b.emit(sequential(*layers), value, shape=rest or (1,))  # Lua has no tensor without dimensions
    if keepdim:
        shape = list(value.shape)
        for axis in axes:
            shape[axis] = 1
        return b.reshape(result, shape)
    if rest:
        return result
    return Wire(b, result.step, ())  # to the builders it has no dimension, as in PyTorch


@operation(
    "mean.dim mean sum.dim_IntList sum amax amin max min max.dim min.dim",
    lua="nn.Mean, nn.Sum, nn.Max, nn.Min",
    missing=POSITIONS,
)
def reduce(b: Builder, self: Wire, dim: Any = None, keepdim: bool = False) -> Any:
    """Return means, sums, maxima or minima; their positions need a layer that nn lacks.

    See `reduce_over` for `dim` and `keepdim`. With positions, PyTorch has one dimension.
    """
    _refuse_rounding_of_terms(b)
    name = f"nn.{b.kind.removeprefix('a').capitalize()}"  # amax is nn.Max
    value = reduce_over(b, name, self, dim, keepdim)
    returns_indices = b.call.op in ("aten.max.dim", "aten.min.dim")
    if not returns_indices or "layers" not in b.allow:
        return value  # without the positions, which are `missing`: a call that takes them is refused
    _, shape_of_indices = b.shape  # of the two results
    return [value, _indices_of_extrema(b, self, dim, b.kind == "min", shape_of_indices)]


def _indices_of_extrema(b: Builder, value: Wire, dim: int, of_smallest: bool, shape: Any) -> Any:
    """Return the indices of the largest or smallest elements along a dimension, by pt.ArgMax.

    Args:
        b: the builder.
        value: the value.
        dim: the dimension, negative from the end.
        of_smallest: whether they are those of the smallest elements.
        shape: of the result: without the dimension, or with an extent of 1 for it.
    """
    axis = dim % len(value.shape)
    layer = make("pt.ArgMax", axis + 1, of_smallest)
    shape_in_lua = without_axis(value.shape, axis) or (1,)  # Lua has no tensor without dimensions
    return b.reshape(b.emit(layer, value, shape=shape_in_lua), shape)


@operation(
    "var.correction var.dim var_mean.correction",
    lua="nn.Mean, nn.CSubTable, nn.Square, nn.Sum, nn.MulConstant",
)
def variance(b: Builder, self: Wire, dim: Any, keepdim: bool, unbiased: Any = None, correction: Any = None) -> Any:
    """Return variances, and means.

    The means are only returned by `var_mean`, in a list behind the variances.

    Args:
        b: the builder.
        self: the value.
        dim: one or several dimensions, negative from the end; all if there are none.
        keepdim: keep each of them, with an extent of 1.
        unbiased: of `var.dim`, whether the divisor is 1 less than the number of elements; `None` for the others.
        correction: of the others, how much less the divisor is than the number of elements; `None` for 1.
    """
    axes = _axes_of(dim, len(self.shape))
    if correction is None:  # also of `var.dim`, which has none
        correction = 0 if unbiased is False else 1
    mean = reduce_over(b, "nn.Mean", self, axes, keepdim=True)
    variances = reduce_over(b, "nn.Mean", (self - mean) ** 2, axes, keepdim)
    if correction:  # nn.Mean divides by the number of elements
        count = prod(make_static(*(self.shape[axis] for axis in axes)))
        if correction >= count:  # PyTorch divides by 0 then
            raise CannotError("a variance of no more elements than its divisor is less")
        variances = variances * (count / (count - correction))
    if b.kind == "var_mean":
        return [variances, mean if keepdim else b.reshape(mean, variances.shape)]
    return variances


@operation("linalg_vector_norm", lua="nn.Abs, nn.Square or nn.Power, nn.Sum, nn.Sqrt or nn.Power")
def norm(b: Builder, self: Wire, ord: float, dim: Any, keepdim: bool) -> Any:
    """Return p-norms.

    `ord` is p, infinite for the largest magnitude. See `reduce_over` for `dim` and `keepdim`.
    """
    if ord == 2:
        return reduce_over(b, "nn.Sum", self**2, dim, keepdim) ** 0.5
    absolute = self >> make("nn.Abs")
    if ord in (1, inf):
        return reduce_over(b, "nn.Sum" if ord == 1 else "nn.Max", absolute, dim, keepdim)
    if ord <= 0:
        raise CannotError(f"the norm of order {ord}")
    return reduce_over(b, "nn.Sum", absolute**ord, dim, keepdim) ** (1 / ord)


@operation("cdist _cdist_forward", lua="nn.CSubTable; as linalg_vector_norm")
def distances(b: Builder, x1: Any, x2: Any, p: float) -> Any:
    """Return the distances between the rows of two matrices."""
    # (…, rows of the first, rows of the second, columns), of which each has one dimension to be broadcast.
    first = b.reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    second = b.reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    return norm(b, b.combine("nn.CSubTable", first, second), ord=p, dim=[-1], keepdim=False)


@operation("logsumexp", lua="nn.Max, nn.HardTanh, nn.CSubTable, nn.Exp, nn.Sum, nn.Log, nn.CAddTable")
def logsumexp(b: Builder, self: Wire, dim: Any) -> Any:
    """Return the logarithm of sums of exponentials."""
    # The largest is subtracted, as exponentials may be infinite; clipped, as the difference of two infinities is NaN.
    largest = reduce_over(b, "nn.Max", self, dim, keepdim=True) >> make("nn.HardTanh", *_finite(b))
    total = reduce_over(b, "nn.Sum", (self - largest) >> make("nn.Exp"), dim, keepdim=True)
    return b.reshape(largest + (total >> make("nn.Log")), b.shape)


@operation("cumsum", lua="nn.MM with nn.Constant, a triangle of ones")
def cumsum(b: Builder, self: Wire, dim: Axis) -> Any:
    """Return cumulative sums."""
    _refuse_rounding_of_terms(b)
    extent = int(self.shape[dim])
    return multiply_along(b, self, dim, np.triu(np.ones((extent, extent), "f4")))


def multiply_along(b: Builder, value: Wire, dim: int, matrix: Any) -> Any:
    """Multiply a value along a dimension by a constant matrix: each row of elements along it becomes row * matrix.

    The matrix is of shape (old extent, new extent).
    """

    def product(rows: Wire) -> Any:
        """Multiply a value along its last dimension: its rows, as those of one matrix, by the other matrix."""
        flat = b.reshape(rows, (prod(rows.shape[:-1]), rows.shape[-1]))
        result = b.emit(make("nn.MM"), flat, b.constant(matrix), shape=(flat.shape[0], matrix.shape[1]))
        return b.reshape(result, (*rows.shape[:-1], matrix.shape[1]))

    return with_last_axis(b, value, dim, product)


@operation(
    "logcumsumexp cummax cummin",
    lua="nn.Narrow, nn.JoinTable; as logaddexp, nn.CMaxTable or nn.CMinTable",
    missing=POSITIONS,
)
def cumulative(b: Builder, self: Wire, dim: Axis) -> Any:
    """Return cumulative extrema, or logarithms of sums of exponentials."""
    if b.kind == "logcumsumexp":
        join = partial(logaddexp, b)
    else:
        join = partial(b.combine, "nn.CMaxTable" if b.kind == "cummax" else "nn.CMinTable")
    return b.concatenate([*accumulate(_split_elements(b, self, dim), join)], dim)


def _refuse_rounding_of_terms(b: Builder) -> None:
    """Refuse sums and products of floats with a dtype of whole numbers, to which PyTorch rounds before it adds."""
    if b.dtype.startswith("int") and b.dtype_of("self") in FLOATS:
        raise CannotError(f"rounds to {b.dtype} before it adds or multiplies")


def _split_elements(b: Builder, value: Wire, dim: int) -> list[Any]:
    """Return the elements of a dimension in a list, each with an extent of 1 there.

    Raises:
        CannotError: there are more than `MOST_STEPS`, each of which would have layers of its own.
    """
    extent = int(value.shape[dim])
    if extent > MOST_STEPS:
        raise CannotError(f"{extent} steps")
    return [b.narrow(value, dim, index, 1) for index in range(extent)]


@operation("prod.dim_int", lua="nn.Select, nn.CMulTable")
def product_along(b: Builder, self: Wire, dim: Axis) -> Any:
    """Return products."""
    _refuse_rounding_of_terms(b)
    parts = _split_elements(b, self, dim)
    return b.reshape(b.emit(make("nn.CMulTable"), *parts) if len(parts) > 1 else parts[0], b.shape)


@operation("cumprod", lua="pt.CumProd", package="layers")
def cumprod(b: Builder, self: Wire, dim: Axis) -> Any:
    """Return cumulative products."""
    _refuse_rounding_of_terms(b)
    return self >> make("pt.CumProd", dim + 1)


@operation("sort sort.stable topk median.dim", lua="pt.Sort, nn.Narrow", package="layers")
def sort(b: Builder, self: Wire, dim: Axis, descending: bool = False, largest: bool = False, k: Any = None) -> Any:
    """Return elements of a dimension in order, all, the first or the lower middle ones, and their indices.

    Args:
        b: the builder.
        self: the value.
        dim: the dimension.
        descending: of `sort`.
        largest: of `topk`, whose calls always have it; `False` for the others.
        k: of `topk`, the number of elements; the others have `None`.
    """
    start = 0
    count = self.shape[dim] if k is None else k
    if b.kind == "median":
        start = (int(count) - 1) // 2  # of an even number, PyTorch returns the lower one of the middle two
        count = 1
    pair = self >> make("pt.Sort", dim + 1, descending or largest)
    results = []
    for item in (1, 2):  # the elements, and their indices
        values = pair >> make("nn.SelectTable", item)
        results.append(b.narrow(values, dim, start, count))
    return [b.reshape(result, shape) for result, shape in zip(results, b.shape)]


@operation("argmax argmin", lua="pt.ArgMax", package="layers")
def argmax(b: Builder, self: Wire, dim: int | None, keepdim: bool) -> Any:
    """Return the indices of the largest or smallest elements of a dimension, or of all.

    `dim` is `None` for all. `b.shape` has the dimension or not, as `keepdim` says.
    """
    if dim is None:  # the index is that in all elements in order
        self = b.reshape(self, (1, prod(make_static(*self.shape))))
        dim = 1
    return _indices_of_extrema(b, self, dim, b.kind == "argmin", b.shape)


def repeat_mean(layer: LuaLayer, dim: int, extent: int) -> LuaLayer:
    """Return layers that repeat a mean over a dimension, 1-based, along it."""
    return layer >> make("nn.Replicate", extent, dim)


def normalization_layer(dim: int, extent: int, eps: float, centered: bool = True) -> LuaLayer:
    """Return layers that subtract the mean over a dimension and divide by the root of the mean square.

    Args:
        dim: the dimension, 1-based.
        extent: of the dimension.
        eps: is added to the mean square.
        centered: whether the mean is subtracted.
    """
    mean_square = make("nn.Square") >> make("nn.Mean", dim)
    scaled = same() / repeat_mean((mean_square + eps) >> make("nn.Sqrt"), dim, extent)
    if not centered:
        return scaled
    return (same() - repeat_mean(make("nn.Mean", dim), dim, extent)) >> scaled


def _standardized(value: Wire, mean: Callable[[Wire], Any], eps: float) -> Any:
    """Subtract means, and divide by the roots of the means of squares.

    Args:
        value: the value.
        mean: returns the means of a value, of a shape that broadcasts with it.
        eps: is added to the means of squares.
    """
    centered = value - mean(value)
    return centered / (mean(centered**2) + eps) ** 0.5


def _affine(b: Builder, value: Wire, weight: Any, bias: Any, size: tuple[int, ...]) -> Any:
    """Multiply by a weight and add a bias, if there are any.

    Args:
        b: the builder.
        value: the value.
        weight: has as many elements as `size`; or `None`.
        bias: likewise.
        size: a shape that broadcasts with that of the value.
    """
    if weight is not None:
        value = value * b.reshape(weight, size)
    if bias is not None:
        value = value + b.reshape(bias, size)
    return value


def _momentum_in_lua(b: Builder, momentum: float) -> float:
    """Return the momentum of Lua's layer for a normalization with running statistics; remark what it does otherwise.

    `momentum` is the operation's.
    """
    if b.kind == "instance_norm":
        b.remark("an instance normalization with running statistics uses those of the batch in training", warning=True)
        return momentum
    # Of a module with `momentum=None`, which averages all batches equally, the operation has 0.
    is_cumulative = momentum == 0 and getattr(b.module, "momentum", momentum) is None
    if is_cumulative:
        b.remark("momentum=None, a cumulative average, is momentum 0.1 in Lua", warning=True)
        return 0.1
    return momentum


@operation("instance_norm", lua="as group_norm with a group for each channel; with running statistics as batch_norm")
@operation(
    "batch_norm",
    lua="nn.BatchNormalization, nn.SpatialBatchNormalization, nn.VolumetricBatchNormalization",
    note="Means and variances are updated in training as in PyTorch; with a batch of one, releases of nn since August "
    "2017 use the running ones in training, too.",
)
def batch_norm(
    b: Builder,
    input: Wire,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
    training: bool = False,
    use_input_stats: bool = False,
) -> Any:
    """Normalize over the batch, with running statistics in evaluation, or each channel of each example.

    Args:
        b: the builder.
        input: (batch, channels, …).
        weight: of each channel, by which it is multiplied at last; `None` for none.
        bias: likewise, which is added.
        running_mean: the running statistics of each channel; `None` if the input's own are used, over the batch.
        running_var: likewise.
        momentum: the part that the statistics of a batch get in the running ones.
        eps: is added to variances.
        training: of a batch normalization, whether the statistics of the batch are used.
        use_input_stats: of an instance normalization, whether those of each example are.
    """
    if use_input_stats:  # of an instance normalization: a group norm with a group for each channel
        return group_norm(b, input, num_groups=input.shape[1], weight=weight, bias=bias, eps=eps)
    if running_mean is None:
        return _normalized_over_batch(b, input, weight, bias, eps)
    # The layer holds these.
    check_learned(weight, "weight")
    check_learned(bias, "bias")
    if training:  # by the batch, in evaluation too, where it would change the running statistics
        raise CannotError("in training, a batch normalization has no meaning in evaluation")
    momentum = _momentum_in_lua(b, momentum)
    images = input
    if len(input.shape) == 3:  # of signals, as images of height 1
        batch, channels, length = input.shape
        images = b.reshape(input, (batch, channels, 1, length))
    layer = _batch_norm_layer(len(images.shape), (weight, bias), (running_mean, running_var), momentum, eps)
    return b.reshape(b.emit(layer, images), input.shape)


def _normalized_over_batch(b: Builder, input: Wire, weight: Any, bias: Any, eps: float) -> Any:
    """Normalize each channel by the statistics of the batch, in evaluation as in training.

    Args:
        b: the builder.
        input: (batch, channels, …).
        weight: of each channel; `None` for none.
        bias: likewise.
        eps: is added to variances.
    """
    rank = len(input.shape)
    all_but_channels = [0, *range(2, rank)]

    def means_of_channels(value: Wire) -> Any:
        return reduce_over(b, "nn.Mean", value, all_but_channels, keepdim=True)

    value = _standardized(input, means_of_channels, eps)
    return _affine(b, value, weight, bias, (1, input.shape[1], *(1,) * (rank - 2)))


def _batch_norm_layer(
    rank: int, weight_and_bias: tuple[Any, Any], mean_and_variance: tuple[Any, Any], momentum: float, eps: float
) -> LuaLayer:
    """Return the layer of a batch normalization with running statistics.

    Args:
        rank: the number of dimensions of its input: 2, or 4 for images, or 5 for volumes.
        weight_and_bias: parameters or `None`.
        mean_and_variance: the running statistics.
        momentum: of these.
        eps: is added to variances.

    Raises:
        CannotError: the statistics are not of the state dict, or only one of weight and bias is there.
    """
    weight, bias = weight_and_bias
    running_mean, running_var = mean_and_variance
    if not isinstance(running_mean, Stored) or not isinstance(running_var, Stored):
        raise CannotError("the statistics are computed")
    if (weight is None) != (bias is None):  # Lua's layer has both or none
        raise CannotError("one of weight and bias is missing")
    weights = {"running_mean": running_mean.ref, "running_var": running_var.ref}
    args: tuple[Any, ...] = (running_mean.ref.size[0],)
    if weight is None:
        is_affine = False
        args = (*args, eps, momentum, is_affine)
    else:
        weights = {"weight": weight.ref, "bias": bias.ref, **weights}
        if (eps, momentum) != (1e-5, 0.1):  # the defaults of nn
            args = (*args, eps, momentum)
    kind = {2: "", 5: "Volumetric"}.get(rank, "Spatial")
    return make(f"nn.{kind}BatchNormalization", *args, **weights)


@operation(
    "layer_norm rms_norm",
    lua="nn.Mean, nn.CSubTable, nn.Square, nn.Sqrt, nn.CDivTable, nn.CMul, nn.CAdd; rms_norm no mean",
)
def layer_norm(b: Builder, input: Wire, normalized_shape: Any, weight: Any, bias: Any = None, eps: Any = None) -> Any:
    """Normalize over the last dimensions of each example, or divide by the root of the mean square.

    Args:
        b: the builder.
        input: the value.
        normalized_shape: the extents of the last dimensions, over which it is normalized.
        weight: of this shape, by which it is multiplied at last; `None` for none.
        bias: likewise, which is added.
        eps: is added to variances; `None` for PyTorch's default, of an rms_norm.
    """
    lead = input.shape[: len(input.shape) - len(normalized_shape)]
    count = prod(normalized_shape)
    if eps is None:
        eps = 2.0**-52 if b.dtype == "float64" else 2.0**-23  # the least difference from 1 in PyTorch's types
    layer = normalization_layer(len(lead) + 1, count, eps, centered=b.kind != "rms_norm")
    value = b.emit(layer, b.reshape(input, (*lead, count)))  # the normalized dimensions as one, the last
    return b.reshape(_affine(b, value, weight, bias, (*(1,) * len(lead), count)), input.shape)


@operation(
    "_native_batch_norm_legit_no_training native_layer_norm native_group_norm",
    lua="as batch_norm, layer_norm and group_norm",
    note="Of exported programs that were decomposed.",
    missing="the statistics of a normalization are not known in Lua",
)
def native_norm(b: Builder, **args: Any) -> Any:
    """Normalize; means and deviations are not returned."""
    kind = next(kind for kind in ("batch_norm", "layer_norm", "group_norm") if kind in b.kind)
    args["num_groups"] = args.get("group")  # as group_norm names it, and no other has
    return OPERATIONS[f"aten.{kind}.default"].call(b, args)


@operation("group_norm", lua="nn.View, nn.Mean, nn.CSubTable, nn.Square, nn.Sqrt, nn.CDivTable, nn.CMul, nn.CAdd")
def group_norm(b: Builder, input: Wire, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """Normalize over groups of channels of each example.

    Args:
        b: the builder.
        input: (batch, channels, …).
        num_groups: the number of groups, of equally many channels each.
        weight: of each channel, by which it is multiplied at last; `None` for none.
        bias: likewise, which is added.
        eps: is added to variances.
    """
    shape = input.shape
    size_of_weight = (1, shape[1], *(1,) * (len(shape) - 2))
    if not is_static(shape[2:]):  # the layer below repeats means as often as in the example
        value = _standardized(input, lambda value: _means_of_groups(b, value, num_groups), eps)
        return _affine(b, value, weight, bias, size_of_weight)
    count = prod(shape[1:]) // num_groups
    groups = b.reshape(input, (shape[0], num_groups, count))
    value = b.emit(normalization_layer(dim=3, extent=count, eps=eps), groups)
    return _affine(b, b.reshape(value, shape), weight, bias, size_of_weight)


def _means_of_groups(b: Builder, value: Wire, groups: int) -> Any:
    """Return the means of groups of channels of images or volumes of any size, for each channel, with extents of 1."""
    batch, channels, *sizes = value.shape
    means = reduce_over(b, "nn.Mean", value, range(2, len(value.shape)))  # of each channel
    if groups < channels:  # the mean of a group is that of its channels' means, and is repeated for each of them
        means = b.reshape(means, (batch, groups, channels // groups))
        means = b.expand(reduce_over(b, "nn.Mean", means, [2], keepdim=True), means.shape)
    return b.reshape(means, (batch, channels, *[1] * len(sizes)))
