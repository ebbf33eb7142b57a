"""Operations on each element: a table of those of one value; arithmetic of two; comparisons, masks and choices.
Reductions: sums, means, extrema and norms over dimensions; normalization: batch normalization is nn's own.

Masks are 0 and 1 as numbers, without a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from math import inf, log, pi, prod, sqrt
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
    replace_axis,
    without_axis,
)
from ..layers import LuaLayer, make, same, sequential, walk
from ..sizes import CannotError, is_static, make_static

ERF = "Abramowitz and Stegun 7.1.26 (within 1.5e-7), as nn has no layer for it"


def erf_of_magnitude() -> LuaLayer:
    """Return erf(|x|) as layers: 1 - (a1 t + ... + a5 t^5) exp(-x^2) with t = 1 / (1 + p |x|)."""
    coefficients = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
    terms = [same() ** power * value for power, value in enumerate(coefficients, 1)]
    series = make("nn.Abs") * 0.3275911 + 1 >> make("nn.Power", -1)
    series = series >> LuaLayer("nn.ConcatTable", children=terms) >> make("nn.CAddTable")
    return 1 - series * (-make("nn.Square") >> make("nn.Exp"))


def hard_sigmoid() -> LuaLayer:
    """Return relu6(x + 3) / 6 as layers."""
    return (same() + 3 >> make("nn.HardTanh", 0, 6)) / 6


def clipped(min: float | None = None, max: float | None = None) -> LuaLayer:
    """Return layers that clip to an interval, or on one side."""
    if min is not None and max is not None:
        if not min < max:
            raise CannotError(f"clips to an interval from {min} to {max}")
        return make("nn.HardTanh", min, max)
    if min is not None:
        return make("nn.Threshold", min, min)
    if max is not None:  # the least value of the negative
        return -(-same() >> make("nn.Threshold", -max, -max))
    return same()


def logit(eps: float | None) -> LuaLayer:
    """Return log(x / (1 - x)) as layers, of values clipped to [eps, 1 - eps]."""
    quotient = make("nn.Log") - (1 - same() >> make("nn.Log"))
    if eps is None:
        return quotient
    return clipped(eps, 1 - eps) >> quotient


# Operation → its layer with those arguments that it takes, or a formula of them.
EACH: dict[str, str | Callable[..., LuaLayer]] = {
    "relu": "nn.ReLU",
    "sigmoid": "nn.Sigmoid",
    "tanh": "nn.Tanh",
    "elu": lambda alpha, scale, input_scale: same() * input_scale >> make("nn.ELU", alpha) * scale,
    "celu": lambda alpha: same() * (1 / alpha) >> make("nn.ELU", 1) * alpha,
    "leaky_relu": "nn.LeakyReLU negative_slope",
    "rrelu": "nn.RReLU lower upper",
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
    "exp2": lambda: same() * log(2) >> make("nn.Exp"),
    "log": "nn.Log",
    "log1p": lambda: same() + 1 >> make("nn.Log"),
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
    """Register operations with one value, and numbers that their layers take.

    Args:
        names: of the operations.
        formula: the class of a layer and the names of its arguments, or a function of these.
    """
    if isinstance(formula, str):
        name, *arguments = formula.split()
        layer_of: Callable[..., LuaLayer] = partial(make, name)
    else:
        layer_of = formula
        arguments = list(formula.__code__.co_varnames[: formula.__code__.co_argcount])

    def build(b: Builder, value: Any, /, **args: Any) -> Any:
        layer = layer_of(*(args[name] for name in arguments))
        return value if layer.name == "nn.Identity" else b.emit(layer, value)

    build.__doc__ = f"{names.split()[0].partition('.')[0]} of each element."
    # The documentation names the layers for any numbers, in order, as intervals are clipped to.
    sample = layer_of(*(0.25 + number for number in range(len(arguments))))
    operation(names, ", ".join(dict.fromkeys(part.name for part in walk(sample))))(build)


for _names, _formula in EACH.items():
    _register(_names, _formula)


@operation("gelu", "nn.Tanh with a cubic, or erf of nn.Power, nn.Exp, nn.CMulTable", f"erf is {ERF}.")
def gelu(b: Builder, self: Any, approximate: str) -> Any:
    """Apply the Gaussian error linear unit, in both forms."""
    if approximate == "tanh":
        inner = (same() + same() ** 3 * 0.044715) * sqrt(2 / pi) >> make("nn.Tanh")
        return b.emit(same() * (inner + 1) * 0.5, self)
    b.remark(f"GELU uses erf by {ERF}")
    return b.emit((same() + make("nn.Abs") * (same() * sqrt(0.5) >> erf_of_magnitude())) * 0.5, self)


@operation("erf erfc", "nn.ReLU, nn.Power, nn.Exp, nn.CMulTable", f"By {ERF}.")
def erf(b: Builder, self: Any) -> Any:
    """Apply the error function, as erf(relu(x)) - erf(relu(-x)), or 1 minus it."""
    b.remark(f"erf is computed by {ERF}")
    positive = same() >> make("nn.ReLU") >> erf_of_magnitude()
    negative = -same() >> make("nn.ReLU") >> erf_of_magnitude()
    value = b.emit(positive - negative, self)
    return 1 - value if b.kind == "erfc" else value


@operation("hypot", "nn.Square, nn.CAddTable, nn.Sqrt")
def hypot(b: Builder, self: Any, other: Any) -> Any:
    """Return the length of the hypotenuse."""
    return (b.combine("nn.CAddTable", b.wire(self) ** 2, b.wire(other) ** 2)) ** 0.5


@operation("softplus", "nn.SoftPlus")
def softplus(b: Builder, self: Any, beta: float, threshold: float) -> Any:
    """Apply log(1 + exp(beta x)) / beta."""
    if threshold != 20:
        raise CannotError(f"nn.SoftPlus is linear above 20, this one above {threshold}")
    return b.emit(make("nn.SoftPlus", beta), self)


@operation("prelu _prelu_kernel", "nn.PReLU")
def prelu(b: Builder, self: Any, weight: Learned) -> Any:
    """Apply a rectifier with learned slopes: one, or one per channel (dimension 1)."""
    count = weight.ref.size[0] if weight.ref.size else 1
    if count == 1:
        return b.emit(make("nn.PReLU", weight=weight.ref.resized((1,))), self)
    layer = make("nn.PReLU", count, weight=weight.ref.resized((count,)))
    if len(self.shape) == 3:  # nn.PReLU takes the first dimension of a signal for its channels
        return b.reshape(b.emit(layer, b.reshape(self, (*self.shape, 1))), self.shape)
    return b.emit(layer, self)


@operation("dropout native_dropout", "nn.Dropout", missing="Lua's nn.Dropout does not return its mask")
def dropout(b: Builder, input: Any, /, p: float, train: bool) -> Any:
    """Set elements to 0 at random in training."""
    if p == 0:
        return input
    if p >= 1:
        raise CannotError("Lua has no dropout of all elements")
    if train:
        b.remark("a dropout that is active in evaluation too becomes nn.Dropout, which acts in training only")
    return b.emit(make("nn.Dropout", p), input)


@operation(
    "feature_dropout",
    "nn.SpatialDropout or nn.VolumetricDropout, nn.MulConstant",
    "Lua scales in evaluation and PyTorch in training: the constant compensates.",
)
def feature_dropout(b: Builder, input: Any, /, p: float) -> Any:
    """Set channels to 0 at random in training."""
    rank = len(input.shape)
    if p == 0:
        return input
    if p >= 1 or rank not in (3, 4, 5):
        raise CannotError("only a part of the channels of inputs of 3 to 5 dimensions is dropped")
    layer = make("nn.VolumetricDropout" if rank == 5 else "nn.SpatialDropout", p) / (1 - p)
    value = b.reshape(input, (*input.shape, 1)) if rank == 3 else input
    return b.reshape(b.emit(layer, value), input.shape)


def with_last(b: Builder, value: Any, dim: int, function: Callable[[Any], Any]) -> Any:
    """Apply a function to a value with a dimension exchanged with the last."""
    order = list(range(len(value.shape)))
    order[dim], order[-1] = order[-1], order[dim]
    result = function(b.permute(value, order))
    return b.permute(result, order)  # the exchange is its own inverse


@operation("log_softmax.int _log_softmax", "nn.LogSoftMax, in nn.Bottle or between nn.Transpose")
@operation("softmax.int _softmax", "nn.SoftMax, nn.SpatialSoftMax, in nn.Bottle or between nn.Transpose")
def softmax(b: Builder, self: Wire, dim: Axis) -> Any:
    """Apply softmax over a dimension, or its logarithm."""
    return softmax_of(b, self, dim, "nn.LogSoftMax" if "log" in b.kind else "nn.SoftMax")


def softmax_of(b: Builder, value: Any, dim: int, name: str = "nn.SoftMax") -> Any:
    """Apply softmax, which is defined on rows, to a dimension."""
    rank = len(value.shape)
    if (rank, dim) == (4, 1):  # nn.LogSoftMax takes the channels of images itself
        return b.emit(make("nn.SpatialSoftMax" if name == "nn.SoftMax" else name), value)
    layer = make(name)
    if rank > 2:
        layer = LuaLayer("nn.Bottle", (2, 2), children=[layer])
    return with_last(b, value, dim, lambda rows: b.emit(layer, rows))


def weight_times(b: Builder, weight: Any, other: Any, divide: bool = False) -> Scaled | None:
    """Return a learned kernel or matrix times one number, or one for each index of a dimension; `None` for others."""
    scaled = weight if isinstance(weight, Scaled) else Scaled(weight, 1.0, None)
    param = scaled.param
    if not is_parameter(param) or len(param.shape) < 2 or param.ref.size != param.shape:
        return None
    number = number_of(other)
    if number is not None:
        return Scaled(param, scaled.scale * (1 / number if divide else number), scaled.axis)
    if not isinstance(other, (Wire, Stored)) or isinstance(weight, Scaled) or b.shape != param.shape:
        return None
    longer = [axis for axis, extent in enumerate(other.shape) if extent != 1]
    axis = None
    count = 1
    if longer:
        if len(longer) > 1 or len(other.shape) != len(param.shape):
            return None
        axis = longer[0]
        count = other.shape[axis]
    scale = b.reshape(b.wire(other), (count,))
    return Scaled(param, scale**-1 if divide else scale, axis)


@operation("sub.Tensor sub.Scalar rsub.Scalar rsub.Tensor", "nn.CSubTable, nn.CAdd, nn.AddConstant")
@operation("add.Tensor add.Scalar", "nn.CAddTable, nn.CAdd for a parameter, nn.AddConstant")
def add(b: Builder, self: Any, other: Any, alpha: float) -> Any:
    """Add, or subtract; sums of masks are masks."""
    if b.dtype == "bool":
        return b.expand(b.combine("nn.CMaxTable", self, other), b.shape)
    pair = (other, self) if b.kind == "rsub" else (self, other)
    first, second = b.operands(*pair)
    if alpha != 1:
        factor = second if isinstance(second, float) else b.wire(second)
        second = factor * alpha
    return b.expand(first + second if b.kind == "add" else first - second, b.shape)


@operation("div.Tensor div.Scalar true_divide.Tensor", "nn.CDivTable, nn.MulConstant, nn.Power", scaled=True)
@operation("mul.Tensor mul.Scalar", "nn.CMulTable, nn.CMul for a parameter, nn.MulConstant", scaled=True)
def mul(b: Builder, self: Any, other: Any) -> Any:
    """Multiply, or divide."""
    divide = b.kind != "mul"
    scaled = weight_times(b, self, other, divide)
    if scaled is None and not divide:
        scaled = weight_times(b, other, self)
    if scaled is not None:
        return scaled
    unscaled = [b.wire(value) if isinstance(value, Scaled) else value for value in (self, other)]
    first, second = b.operands(*unscaled)
    return b.expand(first / second if divide else first * second, b.shape)


@operation("lerp.Scalar lerp.Tensor", "nn.CSubTable, nn.MulConstant or nn.CMulTable, nn.CAddTable")
def lerp(b: Builder, self: Any, end: Wire, weight: Any) -> Any:
    """Interpolate linearly between two values."""
    return (end - self) * weight + self


@operation("minimum min.other", "nn.CMinTable")
@operation("maximum max.other", "nn.CMaxTable")
def extremum(b: Builder, self: Any, other: Any) -> Any:
    """Return the larger or the smaller of two."""
    return b.combine("nn.CMaxTable" if b.kind.startswith("max") else "nn.CMinTable", self, other)


@operation("clamp.Tensor clamp_min.Tensor clamp_max.Tensor", "nn.CMaxTable, nn.CMinTable")
def clamp_between(b: Builder, self: Any, min: Any = None, max: Any = None) -> Any:
    """Clip each element to an interval of its own."""
    numbers = [number_of(bound) for bound in (min, max) if bound is not None]
    if None not in numbers:
        return b.emit(clipped(number_of(min), number_of(max)), self)
    value = self
    if min is not None:
        value = b.combine("nn.CMaxTable", value, min)
    if max is not None:
        value = b.combine("nn.CMinTable", value, max)
    return value


@operation("pow.Scalar", "nn.MulConstant, nn.Exp")
def power_of_number(b: Builder, self: float, exponent: Wire) -> Any:
    """Raise a number to powers."""
    if self <= 0:
        raise CannotError(f"powers of {self}")
    return exponent * log(self) >> make("nn.Exp")


def _finite(b: Builder) -> tuple[float, float]:
    """Return the least and the largest finite number of the model's type, for differences of infinite values."""
    largest = float(np.finfo("f8" if b.program.is_double else "f4").max)
    return -largest, largest


@operation("logaddexp", "nn.CMaxTable, nn.CMinTable, nn.HardTanh, nn.CSubTable, nn.SoftPlus, nn.CAddTable")
def logaddexp(b: Builder, self: Any, other: Any) -> Any:
    """Return the logarithm of a sum of exponentials."""
    largest = b.combine("nn.CMaxTable", self, other)
    difference = b.combine("nn.CMinTable", self, other) - (largest >> make("nn.HardTanh", *_finite(b)))
    return largest + (difference >> make("nn.SoftPlus"))


FUNCTIONS = "sin cos tan asin acos atan sinh cosh asinh atanh floor ceil trunc round isinf"
"""Functions of each element that nn lacks: layers of `layers.lua`, where `--allow layers` permits it."""


@operation(FUNCTIONS, "pt.Function", package="layers")
def function(b: Builder, self: Wire, /) -> Any:
    """Apply a function to each element; the slope of those that round is 0."""
    return self >> make("pt.Function", b.kind)


@operation("atan2 pow.Tensor_Tensor fmod.Tensor remainder.Tensor floor_divide", "pt.Binary", package="layers")
@operation("fmod.Scalar remainder.Scalar", "pt.Binary", package="layers")
def binary(b: Builder, self: Any, other: Any, /) -> Any:
    """Apply a function to each pair of elements."""
    return paired(b, b.kind, self, other)


@operation("div.Tensor_mode div.Scalar_mode", "pt.Binary; nn.CDivTable", package="layers")
def rounded_quotient(b: Builder, self: Any, other: Any, rounding_mode: str | None) -> Any:
    """Divide, and round the quotient down or to 0."""
    if rounding_mode is None:
        first, second = b.operands(self, other)
        return b.expand(first / second, b.shape)
    return paired(b, "floor_divide" if rounding_mode == "floor" else "trunc_divide", self, other)


def paired(b: Builder, name: str, *values: Any) -> Any:
    """Apply a function to each pair of elements."""
    tensors = []
    for value in values:
        is_number = isinstance(value, (int, float))
        tensors.append(b.constant(float(value), ()) if is_number else value)
    return b.combine("pt.Binary", *tensors, name)


STEEP = (3e38, 1.7e308)
"""Factors that scale the smallest normal float, and the smallest normal double, to at least 1."""
FLOATS = ("float32", "float64", "float16", "bfloat16")
PARTS = "nn.CSubTable or nn.AddConstant, nn.ZeroGrad, nn.MulConstant, nn.HardTanh"
NOTE = "Exact for all numbers but denormal ones; masks are 0 and 1 in the model's own type."


def is_positive(b: Builder, dtype: str) -> LuaLayer:
    """Return layers that map positive values to 1 and the rest, also NaN, to 0: Lua's ReLU returns 0 for NaN."""
    return _steep(b, dtype) >> make("nn.ReLU") >> make("nn.HardTanh", 0, 1)


def _steep(b: Builder, dtype: str) -> LuaLayer:
    """Return layers that scale all positive values to at least 1."""
    layer = make("nn.ZeroGrad")
    if dtype in FLOATS or not dtype:
        b.remark("comparisons are exact for all numbers but denormal ones; their masks are 0 and 1")
        layer = layer * STEEP[b.program.is_double]
    return layer


def is_nan() -> LuaLayer:
    """Return layers that map NaN to 1 and the rest to 0: what is not above a threshold, as NaN, is replaced by -2.

    PyTorch's threshold returns NaN for NaN: see `nan_mask`.
    """
    replaced = make("nn.ZeroGrad") >> make("nn.Abs") >> make("nn.Threshold", -1, -2)
    return -replaced >> make("nn.HardTanh", 0, 1)


def nan_mask(b: Builder, value: Wire) -> Any:
    """Return 1 for NaN and 0 for the rest, in Lua as in PyTorch: a maximum and a minimum with infinity drop NaN."""
    if "layers" in b.allow:
        return value >> make("pt.Function", "isnan")
    value = value >> make("nn.ZeroGrad")
    element = "f8" if b.program.is_double else "f4"
    low = b.combine("nn.CMaxTable", b.constant(np.array(-inf, element), value.shape), value)
    low = low >> make("nn.HardTanh", -1, 1)
    high = b.combine("nn.CMinTable", b.constant(np.array(inf, element), value.shape), value)
    high = high >> make("nn.HardTanh", -1, 1)
    return (high - low) * 0.5  # 1 and -1 where the value is NaN, else equal


def nan_where(mask: Wire) -> Wire:
    """Return NaN where a mask is 1, and 0 elsewhere: the square root of its negative."""
    return -(mask >> make("nn.ZeroGrad")) >> make("nn.Sqrt")


def is_nonzero(b: Builder, dtype: str) -> LuaLayer:
    """Return layers that map 0 to 0 and the rest to 1, also NaN: Lua's HardTanh returns its largest value for it."""
    return make("nn.Abs") >> _steep(b, dtype) >> make("nn.HardTanh", 0, 1)


def _compared_type(b: Builder) -> str:
    """Return the element type of a comparison: that of its first floating argument."""
    dtypes = [b.dtype_of("self"), b.dtype_of("other")]
    for dtype in dtypes:
        if dtype in FLOATS:
            return dtype
    return dtypes[0] or dtypes[1]


@operation(
    " ".join(f"{name}.{kind}" for name in ("gt", "lt", "ge", "le", "eq", "ne") for kind in ("Scalar", "Tensor")),
    f"{PARTS}, nn.Abs",
    NOTE,
)
def compare(b: Builder, self: Any, other: Any) -> Any:
    """Return 1 where a comparison holds."""
    first, second = b.operands(self, other)
    wires = [value for value in (first, second) if isinstance(value, Wire)]
    is_float = _compared_type(b) in FLOATS
    if len(wires) == 2 and first.step is second.step:
        return b.expand(_compared_with_itself(b, first, is_float), b.shape)
    has_infinity = inf in (first, second) or -inf in (first, second)
    is_bounded = is_float and (len(wires) == 2 or has_infinity)
    if is_bounded:
        # Infinite values are compared as the largest numbers, as the difference of equal ones is NaN.
        first = _made_finite(b, first)
        second = _made_finite(b, second)
    is_true = _positive_difference(b, first, second) >> is_positive(b, _compared_type(b))
    is_opposite = b.kind in ("ge", "le", "eq", "ne")
    if is_opposite:
        is_true = 1 - is_true
    if is_bounded or (is_float and is_opposite):
        # NaN is neither equal, larger nor smaller; Lua's HardTanh returns its largest value for it.
        is_true = _without_nan(is_true, wires)
    return b.expand(1 - is_true if b.kind == "ne" else is_true, b.shape)


def _positive_difference(b: Builder, first: Any, second: Any) -> Any:
    """Return a difference that is positive where a comparison holds, or where its opposite does: `ge`, `le`, `eq`."""
    if b.kind in ("lt", "ge"):
        return second - first
    if b.kind in ("eq", "ne"):
        return first - second >> make("nn.Abs")
    return first - second


def _without_nan(mask: Wire, values: list[Wire]) -> Wire:
    """Return a mask with 0 where any of some values is NaN."""
    for value in values:
        mask = mask - (value >> is_nan())
    return mask >> make("nn.ReLU")


def _compared_with_itself(b: Builder, value: Wire, is_float: bool) -> Any:
    """Return whether a value is what it is compared with: each is equal to itself, but for NaN."""
    is_unequal = nan_mask(b, value) if is_float else value >> make("nn.ZeroGrad") >> make("nn.MulConstant", 0)
    if b.kind == "ne":
        return is_unequal
    if b.kind in ("eq", "ge", "le"):
        return 1 - is_unequal
    return is_unequal * 0


def _made_finite(b: Builder, value: Any) -> Any:
    """Return a value with infinities as the largest numbers."""
    low, high = _finite(b)
    if isinstance(value, Wire):
        return value >> make("nn.HardTanh", low, high)
    return max(min(value, high), low)


@operation("isnan", "nn.CMaxTable, nn.CMinTable, nn.HardTanh, nn.CSubTable; pt.Function")
def isnan(b: Builder, self: Wire) -> Any:
    """Return 1 for NaN."""
    return nan_mask(b, self)


def _mask(b: Builder, value: Any, name: str) -> Any:
    """Return a value as a mask, as required by logical operations."""
    if isinstance(value, Const):
        return b.constant((value.array() != 0).astype("f4"), value.shape)
    if b.dtype_of(name) != "bool":
        raise CannotError("logic of numbers that are no masks")
    return value


@operation("logical_not bitwise_not", "nn.MulConstant, nn.AddConstant")
def logical_not(b: Builder, self: Any) -> Any:
    """Exchange 0 and 1 of a mask."""
    return 1 - b.wire(_mask(b, self, "self"))


@operation(
    " ".join(f"logical_{name} bitwise_{name}.Tensor __{name}__.Tensor" for name in ("and", "or", "xor")),
    "nn.CMulTable (and), nn.CMaxTable (or), nn.CSubTable and nn.Abs (xor)",
)
def logic(b: Builder, self: Any, other: Any) -> Any:
    """Combine masks."""
    name = {"and": "nn.CMulTable", "or": "nn.CMaxTable", "xor": "nn.CSubTable"}[b.kind.strip("_").rpartition("_")[2]]
    mask = b.combine(name, _mask(b, self, "self"), _mask(b, other, "other"))
    return mask >> make("nn.Abs") if name == "nn.CSubTable" else mask


@operation("bucketize.Tensor searchsorted.Tensor", f"{PARTS}, nn.Sum", NOTE)
def bucketize(b: Builder, first: Any, second: Any, /, right: bool) -> Any:
    """Return the number of boundaries below each element, or not above it."""
    value, edges = (first, second) if b.kind == "bucketize" else (second, first)
    if len(edges.shape) != 1:
        raise CannotError("the boundaries are not one row")
    wide = b.reshape(value, (*value.shape, 1))
    layer = is_positive(b, b.dtype_of("self") or "float32")
    if right:  # an edge counts unless it is above the element
        is_above = b.combine("nn.CSubTable", edges, wide) >> layer
        return reduced(b, "nn.Sum", 1 - is_above, [-1])
    return reduced(b, "nn.Sum", wide - edges >> layer, [-1])


@operation("sign sgn", f"nn.ConcatTable, nn.CSubTable, {PARTS}", NOTE)
def sign(b: Builder, self: Any) -> Any:
    """Return -1, 0 or 1."""
    dtype = _compared_type(b)
    return b.emit(is_positive(b, dtype) - (-same() >> is_positive(b, dtype)), self)


def filled(b: Builder, value: Any, mask: Any, number: float) -> Any:
    """Return a value, and a number where a mask is 1: the value between bounds that are infinite where it is kept.

    Nothing is multiplied, so that NaN and infinities that are left out leave no trace. A NaN that is kept is lost
    between the bounds, and is added again.
    """
    if number != number:
        like = value if isinstance(value, Wire) else None
        return filled(b, value, mask, 0.0) + nan_where(b.wire(mask, like))
    if isinstance(mask, Const):
        low, high, opposite = _bounds_of_constant(b, mask, number)
    else:
        low, high, opposite = _bounds_of_mask(b.wire(mask), number)
    result = value
    if number != -inf:
        result = b.combine("nn.CMaxTable", low, result)
    if number != inf:
        result = b.combine("nn.CMinTable", high, result)
    if not isinstance(value, Wire) or b.dtype not in FLOATS:
        return result
    is_lost = b.combine("nn.CMinTable", opposite, value >> is_nan())
    return result + nan_where(is_lost)


def _bounds_of_constant(b: Builder, mask: Const, number: float) -> tuple[Any, Any, Any]:
    """Return bounds that are a number where a mask is 1 and infinite elsewhere, and the opposite of the mask."""
    is_replaced = mask.array() != 0
    element = "f8" if b.program.is_double else "f4"
    low = b.constant(np.where(is_replaced, number, -inf).astype(element), b.shape)
    high = b.constant(np.where(is_replaced, number, inf).astype(element), b.shape)
    return low, high, b.constant((~is_replaced).astype("f4"), mask.shape)


def _bounds_of_mask(mask: Any, number: float) -> tuple[Any, Any, Any]:
    """Return the same of a mask that is computed.

    The infinities are logarithms of 0: as products with the mask they would be NaN where it is 0.
    """
    opposite = 1 - mask
    mask = mask >> make("nn.ZeroGrad")
    below = mask >> make("nn.Log")  # 0 where the mask is 1, and minus infinity where it is 0
    if abs(number) == inf:
        minus_infinity = 1 - mask >> make("nn.Log")  # where the mask is 1, and 0 where it is 0
        level = minus_infinity * (1 if number < 0 else -1)
        return level + below, level - below, opposite
    if number:
        return mask * number + below, mask * number - below, opposite
    return below, -below, opposite


@operation(
    "where.self where.ScalarOther where.ScalarSelf where.Scalar",
    "nn.CMaxTable and nn.CMinTable with bounds by the mask, nn.Log; nn.CAddTable; NaN by nn.Threshold and nn.Sqrt",
)
def where(b: Builder, condition: Any, self: Any, other: Any) -> Any:
    """Choose between two values by a mask."""
    first = number_of(self)
    second = number_of(other)
    if first is not None:
        rest = other if second is None else b.constant(np.array(second))
        return b.expand(filled(b, rest, condition, first), b.shape)
    if isinstance(condition, Const):
        opposite: Any = b.constant(condition.array() == 0, condition.shape)
    else:
        opposite = 1 - b.wire(condition)
    if second is not None:
        return b.expand(filled(b, self, opposite, second), b.shape)
    return filled(b, self, opposite, 0.0) + filled(b, other, condition, 0.0)


MOST_STEPS = 256
POSITIONS = "the positions of extrema are not available in nn; --allow layers writes a layer"


def _axes_of(dim: Any, rank: int) -> list[int]:
    """Return dimensions counted from the front: all by default."""
    dims = [dim] if isinstance(dim, int) else dim
    if not dims:
        return list(range(rank))
    return sorted({axis % rank for axis in dims})


@operation("any any.dim any.dims all all.dim all.dims", f"nn.Max, nn.Min; {PARTS}, nn.Abs", NOTE)
def any_of(b: Builder, self: Wire, dim: Any = None, keepdim: bool = False) -> Any:
    """Return whether any or all elements along dimensions are not 0."""
    mask = self if b.dtype_of("self") == "bool" else self >> is_nonzero(b, b.dtype_of("self"))
    return reduced(b, "nn.Max" if b.kind == "any" else "nn.Min", mask, dim, keepdim)


def reduced(b: Builder, name: str, value: Wire, dim: Any, keepdim: bool = False) -> Any:
    """Apply nn.Sum, nn.Mean, nn.Max or nn.Min over dimensions, last first."""
    axes = _axes_of(dim, len(value.shape))
    rest = tuple(extent for axis, extent in enumerate(value.shape) if axis not in axes)
    result = value
    if axes:
        layers = [make(name, axis + 1) for axis in reversed(axes)]
        result = b.emit(sequential(*layers), value, shape=rest or (1,))  # Lua has no tensor without dimensions
    if keepdim:
        shape = list(value.shape)
        for axis in axes:
            shape[axis] = 1
        return b.reshape(result, shape)
    return result if rest else Wire(b, result.step, ())


@operation(
    "mean.dim mean sum.dim_IntList sum amax amin max min max.dim min.dim",
    "nn.Mean, nn.Sum, nn.Max, nn.Min",
    missing=POSITIONS,
)
def reduce(b: Builder, self: Wire, dim: Any = None, keepdim: bool = False) -> Any:
    """Return means, sums, maxima or minima, whose positions must be unused."""
    _check_kind(b)
    name = f"nn.{b.kind.removeprefix('a').capitalize()}"  # amax is nn.Max
    value = reduced(b, name, self, dim, keepdim)
    if b.call.op not in ("aten.max.dim", "aten.min.dim") or "layers" not in b.allow:
        return value
    axis = dim % len(self.shape)
    layer = make("pt.ArgMax", axis + 1, b.kind == "min")
    indices = b.emit(layer, self, shape=without_axis(self.shape, axis) or (1,))
    return [value, b.reshape(indices, b.shape[1])]


@operation(
    "var.correction var.dim var_mean.correction",
    "nn.Mean, nn.CSubTable, nn.Square, nn.Sum, nn.MulConstant",
)
def variance(b: Builder, self: Wire, dim: Any, keepdim: bool, unbiased: Any = None, correction: Any = None) -> Any:
    """Return variances, and means."""
    axes = _axes_of(dim, len(self.shape))
    if correction is None:
        correction = 0 if unbiased is False else 1
    mean = reduced(b, "nn.Mean", self, axes, True)
    spread = reduced(b, "nn.Mean", (self - mean) ** 2, axes, keepdim)
    if correction:
        count = prod(make_static(*(self.shape[axis] for axis in axes)))
        spread = spread * (count / (count - correction))
    if b.kind == "var_mean":
        return [spread, mean if keepdim else b.reshape(mean, spread.shape)]
    return spread


@operation("linalg_vector_norm", "nn.Abs, nn.Square or nn.Power, nn.Sum, nn.Sqrt or nn.Power")
def norm(b: Builder, self: Wire, ord: float, dim: Any, keepdim: bool) -> Any:
    """Return p-norms."""
    if ord == 2:
        return reduced(b, "nn.Sum", self**2, dim, keepdim) ** 0.5
    size = self >> make("nn.Abs")
    if ord in (1, inf):
        return reduced(b, "nn.Sum" if ord == 1 else "nn.Max", size, dim, keepdim)
    if ord <= 0:
        raise CannotError(f"the norm of order {ord}")
    return reduced(b, "nn.Sum", size**ord, dim, keepdim) ** (1 / ord)


@operation("cdist _cdist_forward", "nn.CSubTable; as linalg_vector_norm")
def distances(b: Builder, x1: Any, x2: Any, p: float) -> Any:
    """Return the distances between the rows of two matrices."""
    rows = b.reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    columns = b.reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    return norm(b, b.combine("nn.CSubTable", rows, columns), p, [-1], False)


@operation("logsumexp", "nn.Max, nn.HardTanh, nn.CSubTable, nn.Exp, nn.Sum, nn.Log, nn.CAddTable")
def logsumexp(b: Builder, self: Wire, dim: Any) -> Any:
    """Return the logarithm of sums of exponentials."""
    largest = reduced(b, "nn.Max", self, dim, True) >> make("nn.HardTanh", *_finite(b))
    total = reduced(b, "nn.Sum", self - largest >> make("nn.Exp"), dim, True)
    return b.reshape(largest + (total >> make("nn.Log")), b.shape)


@operation("cumsum", "nn.MM with nn.Constant, a triangle of ones")
def cumsum(b: Builder, self: Wire, dim: Axis) -> Any:
    """Return cumulative sums."""
    _check_kind(b)
    extent = int(self.shape[dim])
    return along(b, self, dim, np.triu(np.ones((extent, extent), "f4")))


def along(b: Builder, value: Wire, dim: int, matrix: Any) -> Any:
    """Multiply a dimension by a constant matrix."""

    def product(rows: Wire) -> Any:
        flat = b.reshape(rows, (prod(rows.shape[:-1]), rows.shape[-1]))
        result = b.emit(make("nn.MM"), flat, b.constant(matrix), shape=(flat.shape[0], matrix.shape[1]))
        return b.reshape(result, (*rows.shape[:-1], matrix.shape[1]))

    return with_last(b, value, dim, product)


@operation(
    "logcumsumexp cummax cummin",
    "nn.Narrow, nn.JoinTable; as logaddexp, nn.CMaxTable or nn.CMinTable",
    missing=POSITIONS,
)
def cumulative(b: Builder, self: Wire, dim: Axis) -> Any:
    """Return cumulative extrema, or logarithms of sums of exponentials."""
    if b.kind == "logcumsumexp":
        join = partial(logaddexp, b)
    else:
        join = partial(b.combine, "nn.CMaxTable" if b.kind == "cummax" else "nn.CMinTable")
    return b.concatenate([*accumulate(_elements(b, self, dim), join)], dim)


def _check_kind(b: Builder) -> None:
    """Refuse sums and products of floats as whole numbers, which PyTorch rounds before it adds."""
    if b.dtype.startswith("int") and b.dtype_of("self") in FLOATS:
        raise CannotError(f"rounds to {b.dtype} before it adds or multiplies")


def _elements(b: Builder, value: Wire, dim: int) -> list[Any]:
    """Return the elements of a dimension, which are not many."""
    extent = int(value.shape[dim])
    if extent > MOST_STEPS:
        raise CannotError(f"{extent} steps")
    return [b.narrow(value, dim, index, 1) for index in range(extent)]


@operation("prod.dim_int", "nn.Select, nn.CMulTable")
def product_along(b: Builder, self: Wire, dim: Axis) -> Any:
    """Return products."""
    _check_kind(b)
    parts = _elements(b, self, dim)
    return b.reshape(b.emit(make("nn.CMulTable"), *parts) if len(parts) > 1 else parts[0], b.shape)


@operation("cumprod", "pt.CumProd", package="layers")
def cumprod(b: Builder, self: Wire, dim: Axis) -> Any:
    """Return cumulative products."""
    _check_kind(b)
    return self >> make("pt.CumProd", dim + 1)


@operation("sort sort.stable topk median.dim", "pt.Sort, nn.Narrow", package="layers")
def sort(b: Builder, self: Wire, dim: Axis, descending: bool = False, largest: bool = False, k: Any = None) -> Any:
    """Return elements of a dimension in order, all, the first or the lower middle ones, and their indices."""
    start = 0
    count = self.shape[dim] if k is None else k
    if b.kind == "median":
        start = (int(count) - 1) // 2
        count = 1
    pair = self >> make("pt.Sort", dim + 1, descending or largest)
    parts = [b.narrow(pair >> make("nn.SelectTable", item), dim, start, count) for item in (1, 2)]
    return [b.reshape(part, shape) for part, shape in zip(parts, b.shape)]


@operation("argmax argmin", "pt.ArgMax", package="layers")
def argmax(b: Builder, self: Wire, dim: int | None, keepdim: bool) -> Any:
    """Return the indices of the largest or smallest elements of a dimension, or of all."""
    if dim is None:
        self = b.reshape(self, (1, prod(make_static(*self.shape))))
        dim = 1
    dim %= len(self.shape)
    layer = make("pt.ArgMax", dim + 1, b.kind == "argmin")
    return b.reshape(b.emit(layer, self, shape=replace_axis(self.shape, dim) or (1,)), b.shape)


def repeated(layer: LuaLayer, dim: int, extent: int) -> LuaLayer:
    """Return layers that repeat a mean over a dimension, 1-based, along it."""
    return layer >> make("nn.Replicate", extent, dim)


def normalized(dim: int, extent: int, eps: float, centered: bool = True) -> LuaLayer:
    """Return layers that subtract the mean over a dimension, 1-based, and divide by the root of the mean square."""
    mean_square = make("nn.Square") >> make("nn.Mean", dim)
    scaled = same() / repeated(mean_square + eps >> make("nn.Sqrt"), dim, extent)
    if not centered:
        return scaled
    return same() - repeated(make("nn.Mean", dim), dim, extent) >> scaled


def _standardized(value: Wire, mean: Callable[[Wire], Any], eps: float) -> Any:
    """Subtract means, and divide by the roots of the means of squares."""
    value = value - mean(value)
    return value / (mean(value**2) + eps) ** 0.5


def _affine(b: Builder, value: Wire, weight: Any, bias: Any, size: tuple[int, ...]) -> Any:
    """Multiply by a weight and add a bias of a shape that broadcasts."""
    if weight is not None:
        value = value * b.reshape(weight, size)
    if bias is not None:
        value = value + b.reshape(bias, size)
    return value


@operation("instance_norm", "as group_norm with a group for each channel; with running statistics as batch_norm")
@operation(
    "batch_norm",
    "nn.BatchNormalization, nn.SpatialBatchNormalization, nn.VolumetricBatchNormalization",
    "Means and variances are updated in training as in PyTorch.",
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
    """Normalize over the batch, with running statistics in evaluation, or each channel of each example."""
    if use_input_stats:
        return group_norm(b, input, input.shape[1], weight, bias, eps)
    if running_mean is None:
        axes = [0, *range(2, len(input.shape))]
        value = _standardized(input, lambda value: reduced(b, "nn.Mean", value, axes, True), eps)
        return _affine(b, value, weight, bias, (1, input.shape[1], *(1,) * (len(input.shape) - 2)))
    check_learned(weight, "weight")
    check_learned(bias, "bias")
    if training:
        raise CannotError("in training, a batch normalization has no meaning in evaluation")
    if b.kind == "instance_norm":
        b.remark("an instance normalization with running statistics uses those of the batch in training", warning=True)
    elif not momentum and getattr(b.module, "momentum", momentum) is None:
        momentum = 0.1
        b.remark("momentum=None, a cumulative average, is momentum 0.1 in Lua", warning=True)
    if not isinstance(running_mean, Stored) or not isinstance(running_var, Stored):
        raise CannotError("the statistics are computed")
    if (weight is None) != (bias is None):
        raise CannotError("one of weight and bias is missing")
    fields = {"weight": weight.ref, "bias": bias.ref} if weight and bias else {}
    args: tuple[Any, ...] = (running_mean.ref.size[0],)
    if not fields:
        args = (*args, eps, momentum, False)
    elif (eps, momentum) != (1e-5, 0.1):  # the defaults of nn
        args = (*args, eps, momentum)
    shape = input.shape
    value = b.reshape(input, (*shape[:2], 1, shape[2])) if len(shape) == 3 else input
    kind = {2: "", 5: "Volumetric"}.get(len(shape), "Spatial")
    layer = make(
        f"nn.{kind}BatchNormalization", *args, **fields, running_mean=running_mean.ref, running_var=running_var.ref
    )
    return b.reshape(b.emit(layer, value), shape)


@operation(
    "layer_norm rms_norm", "nn.Mean, nn.CSubTable, nn.Square, nn.Sqrt, nn.CDivTable, nn.CMul, nn.CAdd; rms_norm no mean"
)
def layer_norm(b: Builder, input: Wire, normalized_shape: Any, weight: Any, bias: Any = None, eps: Any = None) -> Any:
    """Normalize over the last dimensions of each example, or divide by the root of the mean square."""
    lead = input.shape[: len(input.shape) - len(normalized_shape)]
    count = prod(normalized_shape)
    if eps is None:
        eps = 2.0**-52 if b.dtype == "float64" else 2.0**-23  # the least difference from 1 in PyTorch's types
    layer = normalized(len(lead) + 1, count, eps, b.kind != "rms_norm")
    value = b.emit(layer, b.reshape(input, (*lead, count)))
    return b.reshape(_affine(b, value, weight, bias, (*(1,) * len(lead), count)), input.shape)


@operation(
    "_native_batch_norm_legit_no_training native_layer_norm native_group_norm",
    "as batch_norm, layer_norm and group_norm",
    "Of exported programs that were decomposed.",
    missing="the statistics of a normalization are not known in Lua",
)
def native_norm(b: Builder, **args: Any) -> Any:
    """Normalize; means and deviations are not returned."""
    kind = next(kind for kind in ("batch_norm", "layer_norm", "group_norm") if kind in b.kind)
    return OPERATIONS[f"aten.{kind}.default"].call(b, {**args, "num_groups": args.get("group")})


@operation("group_norm", "nn.View, nn.Mean, nn.CSubTable, nn.Square, nn.Sqrt, nn.CDivTable, nn.CMul, nn.CAdd")
def group_norm(b: Builder, input: Wire, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """Normalize over groups of channels of each example."""
    shape = input.shape
    size = (1, shape[1], *(1,) * (len(shape) - 2))
    if not is_static(shape[2:]):
        return _affine(b, _standardized(input, lambda value: _means(b, value, num_groups), eps), weight, bias, size)
    count = prod(shape[1:]) // num_groups
    value = b.emit(normalized(3, count, eps), b.reshape(input, (shape[0], num_groups, count)))
    return _affine(b, b.reshape(value, shape), weight, bias, size)


def _means(b: Builder, value: Wire, groups: int) -> Any:
    """Return the means of groups of channels of images or volumes, of any size."""
    batch, channels, *sizes = value.shape
    means = reduced(b, "nn.Mean", value, range(2, len(value.shape)))
    if groups < channels:
        means = b.reshape(means, (batch, groups, channels // groups))
        means = b.expand(reduced(b, "nn.Mean", means, [2], True), means.shape)
    return b.reshape(means, (batch, channels, *[1] * len(sizes)))
