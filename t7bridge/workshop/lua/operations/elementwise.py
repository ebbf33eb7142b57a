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
    Builder,
    Const,
    Learned,
    Place,
    Scaled,
    Stored,
    Wire,
    check_learned,
    is_parameter,
    number_of,
    operation,
    with_extents,
)
from ..layers import LuaLayer, make, same, sequential, walk
from ..sizes import CannotError, is_known, known

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
    return same() if max is None else -(-same() >> make("nn.Threshold", -max, -max))


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
    "logit": lambda eps: (
        clipped(eps, None if eps is None else 1 - eps) >> (make("nn.Log") - (1 - same() >> make("nn.Log")))
    ),
    "sqrt": "nn.Sqrt",
    "rsqrt": lambda: make("nn.Power", -0.5),
    "reciprocal": lambda: make("nn.Power", -1),
    "abs": "nn.Abs",
    "neg": lambda: -same(),
    "square": "nn.Square",
    "pow.Tensor_Scalar": lambda exponent: same() ** exponent,
}


def _register(names: str, formula: str | Callable[..., LuaLayer]) -> None:
    if isinstance(formula, str):
        name, *taken = formula.split()
        layer: Callable[..., LuaLayer] = partial(make, name)
    else:
        layer, taken = formula, list(formula.__code__.co_varnames[: formula.__code__.co_argcount])

    def build(b: Builder, value: Any, /, **args: Any) -> Any:
        made = layer(*(args[name] for name in taken))
        return value if made.name == "nn.Identity" else b.emit(made, value)

    build.__doc__ = f"{names.split()[0].partition('.')[0]} of each element."
    sample = layer(*(0.25 + place for place in range(len(taken))))
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
    halves = [part >> make("nn.ReLU") >> erf_of_magnitude() for part in (same(), -same())]
    made = b.emit(halves[0] - halves[1], self)
    return 1 - made if b.kind == "erfc" else made


@operation("hypot", "nn.Square, nn.CAddTable, nn.Sqrt")
def hypot(b: Builder, self: Any, other: Any) -> Any:
    """Return the length of the hypotenuse."""
    return (b.joined("nn.CAddTable", b.wire(self) ** 2, b.wire(other) ** 2)) ** 0.5


@operation("softplus", "nn.SoftPlus")
def softplus(b: Builder, self: Any, beta: float, threshold: float) -> Any:
    """Apply log(1 + exp(beta x)) / beta."""
    if threshold != 20:
        raise CannotError(f"nn.SoftPlus is linear above 20, this one above {threshold}")
    return b.emit(make("nn.SoftPlus", beta), self)


@operation("prelu _prelu_kernel", "nn.PReLU")
def prelu(b: Builder, self: Any, weight: Learned) -> Any:
    """Apply a rectifier with learned slopes: one, or one per channel (dimension 1)."""
    count = (*weight.ref.size, 1)[0]
    layer = make("nn.PReLU", *((count,) if count > 1 else ()), weight=weight.ref.resized((count,)))
    wide = count > 1 and len(self.shape) == 3
    return b.reshape(b.emit(layer, b.reshape(self, (*self.shape, 1)) if wide else self), self.shape)


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
    return b.reshape(b.emit(layer, b.reshape(input, (*input.shape, 1)) if rank == 3 else input), input.shape)


def with_last(b: Builder, value: Any, dim: int, function: Callable[[Any], Any]) -> Any:
    """Apply a function to a value with a dimension exchanged with the last."""
    order = list(range(len(value.shape)))
    order[dim], order[-1] = order[-1], order[dim]
    return b.permute(function(b.permute(value, order)), order)


@operation("log_softmax.int _log_softmax", "nn.LogSoftMax, in nn.Bottle or between nn.Transpose")
@operation("softmax.int _softmax", "nn.SoftMax, nn.SpatialSoftMax, in nn.Bottle or between nn.Transpose")
def softmax(b: Builder, self: Wire, dim: Place) -> Any:
    """Apply softmax over a dimension, or its logarithm."""
    return softmax_of(b, self, dim, "nn.LogSoftMax" if "log" in b.kind else "nn.SoftMax")


def softmax_of(b: Builder, value: Any, dim: int, name: str = "nn.SoftMax") -> Any:
    """Apply softmax, which is defined on rows, to a dimension."""
    rank = len(value.shape)
    if (rank, dim) == (4, 1):
        return b.emit(make("nn.SpatialSoftMax" if name == "nn.SoftMax" else name), value)
    layer = make(name) if rank < 3 else LuaLayer("nn.Bottle", (2, 2), children=[make(name)])
    return with_last(b, value, dim, lambda rows: b.emit(layer, rows))


def weight_times(b: Builder, weight: Any, other: Any, divide: bool = False) -> Scaled | None:
    """Return a learned kernel or matrix times one number, or one for each index of a dimension; `None` for others."""
    param, old = (weight.param, weight.scale) if isinstance(weight, Scaled) else (weight, 1.0)
    if not is_parameter(param) or len(param.shape) < 2 or param.ref.size != param.shape:
        return None
    number = number_of(other)
    if number is not None:
        return Scaled(param, old * (1 / number if divide else number), getattr(weight, "place", None))
    if not isinstance(other, (Wire, Stored)) or isinstance(weight, Scaled):
        return None
    longer = [place for place, extent in enumerate(other.shape) if extent != 1]
    if len(longer) > 1 or (longer and len(other.shape) != len(param.shape)) or b.shape != param.shape:
        return None
    scale = b.reshape(b.wire(other), (other.shape[longer[0]] if longer else 1,))
    return Scaled(param, scale**-1 if divide else scale, longer[0] if longer else None)


@operation("sub.Tensor sub.Scalar rsub.Scalar rsub.Tensor", "nn.CSubTable, nn.CAdd, nn.AddConstant")
@operation("add.Tensor add.Scalar", "nn.CAddTable, nn.CAdd for a parameter, nn.AddConstant")
def add(b: Builder, self: Any, other: Any, alpha: float) -> Any:
    """Add, or subtract; sums of masks are masks."""
    if b.dtype == "bool":
        return b.expand(b.joined("nn.CMaxTable", self, other), b.shape)
    first, second = b.operands(*((other, self) if b.kind == "rsub" else (self, other)))
    if alpha != 1:
        second = (second if isinstance(second, float) else b.wire(second)) * alpha
    return b.expand(first + second if b.kind == "add" else first - second, b.shape)


@operation("div.Tensor div.Scalar true_divide.Tensor", "nn.CDivTable, nn.MulConstant, nn.Power", scaled=True)
@operation("mul.Tensor mul.Scalar", "nn.CMulTable, nn.CMul for a parameter, nn.MulConstant", scaled=True)
def mul(b: Builder, self: Any, other: Any) -> Any:
    """Multiply, or divide."""
    divide = b.kind != "mul"
    made = weight_times(b, self, other, divide) or (None if divide else weight_times(b, other, self))
    if made is None:
        first, second = b.operands(*(b.wire(each) if isinstance(each, Scaled) else each for each in (self, other)))
        return b.expand(first / second if divide else first * second, b.shape)
    return made


@operation("lerp.Scalar lerp.Tensor", "nn.CSubTable, nn.MulConstant or nn.CMulTable, nn.CAddTable")
def lerp(b: Builder, self: Any, end: Wire, weight: Any) -> Any:
    """Interpolate linearly between two values."""
    return (end - self) * weight + self


@operation("minimum min.other", "nn.CMinTable")
@operation("maximum max.other", "nn.CMaxTable")
def extremum(b: Builder, self: Any, other: Any) -> Any:
    """Return the larger or the smaller of two."""
    return b.joined("nn.CMaxTable" if b.kind.startswith("max") else "nn.CMinTable", self, other)


@operation("clamp.Tensor clamp_min.Tensor clamp_max.Tensor", "nn.CMaxTable, nn.CMinTable")
def clamp_between(b: Builder, self: Any, min: Any = None, max: Any = None) -> Any:
    """Clip each element to an interval of its own."""
    numbers = [number_of(bound) for bound in (min, max) if bound is not None]
    if None not in numbers:
        return b.emit(clipped(number_of(min), number_of(max)), self)
    value = self if min is None else b.joined("nn.CMaxTable", self, min)
    return value if max is None else b.joined("nn.CMinTable", value, max)


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
    top = b.joined("nn.CMaxTable", self, other)
    apart = b.joined("nn.CMinTable", self, other) - (top >> make("nn.HardTanh", *_finite(b)))
    return top + (apart >> make("nn.SoftPlus"))


FUNCTIONS = "sin cos tan asin acos atan sinh cosh asinh atanh floor ceil trunc round isinf"
"""Functions of each element that nn lacks: layers of `layers.lua`, where `--allow layers` permits it."""


@operation(FUNCTIONS, "pt.Function", package="layers")
def each(b: Builder, self: Wire, /) -> Any:
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
    first, second = (b.constant(float(each), ()) if isinstance(each, (int, float)) else each for each in values)
    return b.joined("pt.Binary", first, second, name)


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
    kind = "f8" if b.program.is_double else "f4"
    low, high = (
        b.joined(name, b.constant(np.array(bound, kind), value.shape), value) >> make("nn.HardTanh", -1, 1)
        for name, bound in (("nn.CMaxTable", -inf), ("nn.CMinTable", inf))
    )
    return (high - low) * 0.5


def nan_where(mask: Wire) -> Wire:
    """Return NaN where a mask is 1, and 0 elsewhere: the square root of its negative."""
    return -(mask >> make("nn.ZeroGrad")) >> make("nn.Sqrt")


def is_nonzero(b: Builder, dtype: str) -> LuaLayer:
    """Return layers that map 0 to 0 and the rest to 1, also NaN: Lua's HardTanh returns its largest value for it."""
    return make("nn.Abs") >> _steep(b, dtype) >> make("nn.HardTanh", 0, 1)


def _compared_type(b: Builder) -> str:
    """Return the element type of a comparison: that of its first floating argument."""
    found = [dtype for name in ("self", "other") if (dtype := b.dtype_of(name))]
    return next((name for name in found if name in FLOATS), (*found, "")[0])


@operation(
    " ".join(f"{name}.{kind}" for name in ("gt", "lt", "ge", "le", "eq", "ne") for kind in ("Scalar", "Tensor")),
    f"{PARTS}, nn.Abs",
    NOTE,
)
def compare(b: Builder, self: Any, other: Any) -> Any:
    """Return 1 where a comparison holds."""
    self, other = b.operands(self, other)
    wires = [each for each in (self, other) if isinstance(each, Wire)]
    is_float = _compared_type(b) in FLOATS
    if len(wires) == 2 and self.step is other.step:
        # Each value is equal to itself, but for NaN.
        is_true = nan_mask(b, self) if is_float else self >> make("nn.ZeroGrad") >> make("nn.MulConstant", 0)
        if b.kind in ("eq", "ge", "le"):
            is_true = 1 - is_true
        elif b.kind != "ne":
            is_true = is_true * 0
        return b.expand(is_true, b.shape)
    is_infinite = inf in (abs(each) for each in (self, other) if isinstance(each, float))
    if is_float and (len(wires) == 2 or is_infinite):
        # Infinite values are compared as the largest numbers, as the difference of equal ones is NaN.
        bounds = _finite(b)
        self, other = (
            each >> make("nn.HardTanh", *bounds) if isinstance(each, Wire) else max(min(each, bounds[1]), bounds[0])
            for each in (self, other)
        )
    apart = other - self if b.kind in ("lt", "ge") else self - other
    if b.kind in ("eq", "ne"):
        apart = apart >> make("nn.Abs")
    made = apart >> is_positive(b, _compared_type(b))
    is_opposite = b.kind in ("ge", "le", "eq", "ne")
    made = 1 - made if is_opposite else made
    if is_float and (is_opposite or is_infinite or len(wires) == 2):
        # NaN is neither equal, larger nor smaller; Lua's HardTanh returns its largest value for it.
        for value in wires:
            made = made - (value >> is_nan())
        made = made >> make("nn.ReLU")
    return b.expand(1 - made if b.kind == "ne" else made, b.shape)


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
    made = b.joined(name, _mask(b, self, "self"), _mask(b, other, "other"))
    return made >> make("nn.Abs") if name == "nn.CSubTable" else made


@operation("bucketize.Tensor searchsorted.Tensor", f"{PARTS}, nn.Sum", NOTE)
def bucketize(b: Builder, first: Any, second: Any, /, right: bool) -> Any:
    """Return the number of boundaries below each element, or not above it."""
    value, edges = (first, second) if b.kind == "bucketize" else (second, first)
    if len(edges.shape) != 1:
        raise CannotError("the boundaries are not one row")
    wide = b.reshape(value, (*value.shape, 1))
    layer = is_positive(b, b.dtype_of("self") or "float32")
    made = 1 - (b.joined("nn.CSubTable", edges, wide) >> layer) if right else wide - edges >> layer
    return reduced(b, "nn.Sum", made, [-1])


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
    opposite: Any
    if number != number:
        return filled(b, value, mask, 0.0) + nan_where(b.wire(mask, value if isinstance(value, Wire) else None))
    if isinstance(mask, Const):
        chosen = mask.array() != 0
        opposite = b.constant((~chosen).astype("f4"), mask.shape)
        bounds = (np.where(chosen, number, rest) for rest in (-inf, inf))
        low, high = (b.constant(each.astype("f8" if b.program.is_double else "f4"), b.shape) for each in bounds)
    else:
        opposite = 1 - b.wire(mask)
        # The logarithm of a mask is 0 where it is 1, and minus infinity where it is 0.
        mask = b.wire(mask) >> make("nn.ZeroGrad")
        edge = mask >> make("nn.Log")
        low, high = edge, -edge
        if abs(number) == inf:
            level = (1 - mask >> make("nn.Log")) * (1 if number < 0 else -1)
            low, high = level + edge, level - edge
        elif number:
            low, high = mask * number + edge, mask * number - edge
    made = value if number == -inf else b.joined("nn.CMaxTable", low, value)
    made = made if number == inf else b.joined("nn.CMinTable", high, made)
    if not isinstance(value, Wire) or b.dtype not in FLOATS:
        return made
    kept = b.joined("nn.CMinTable", opposite, value >> is_nan())
    return made + nan_where(kept)


@operation(
    "where.self where.ScalarOther where.ScalarSelf where.Scalar",
    "nn.CMaxTable and nn.CMinTable with bounds by the mask, nn.Log; nn.CAddTable; NaN by nn.Threshold and nn.Sqrt",
)
def where(b: Builder, condition: Any, self: Any, other: Any) -> Any:
    """Choose between two values by a mask."""
    first, second = number_of(self), number_of(other)
    if first is not None:
        other = other if second is None else b.constant(np.array(second))
        return b.expand(filled(b, other, condition, first), b.shape)
    known = isinstance(condition, Const)
    opposite = b.constant(condition.array() == 0, condition.shape) if known else 1 - b.wire(condition)
    if second is not None:
        return b.expand(filled(b, self, opposite, second), b.shape)
    return filled(b, self, opposite, 0.0) + filled(b, other, condition, 0.0)


MOST_STEPS = 256
POSITIONS = "the positions of extrema are not available in nn; --allow layers writes a layer"


def _places(dim: Any, rank: int) -> list[int]:
    """Return dimensions counted from the front: all by default."""
    dims = [dim] if isinstance(dim, int) else dim
    return sorted({place % rank for place in dims}) if dims else list(range(rank))


@operation("any any.dim any.dims all all.dim all.dims", f"nn.Max, nn.Min; {PARTS}, nn.Abs", NOTE)
def any_of(b: Builder, self: Wire, dim: Any = None, keepdim: bool = False) -> Any:
    """Return whether any or all elements along dimensions are not 0."""
    mask = self if b.dtype_of("self") == "bool" else self >> is_nonzero(b, b.dtype_of("self"))
    return reduced(b, "nn.Max" if b.kind == "any" else "nn.Min", mask, dim, keepdim)


def reduced(b: Builder, name: str, value: Wire, dim: Any, keepdim: bool = False) -> Any:
    """Apply nn.Sum, nn.Mean, nn.Max or nn.Min over dimensions, last first."""
    places = _places(dim, len(value.shape))
    left = tuple(extent for place, extent in enumerate(value.shape) if place not in places)
    made = value
    if places:
        made = b.emit(sequential(*(make(name, place + 1) for place in reversed(places))), value, shape=left or (1,))
    if keepdim:
        return b.reshape(made, (1 if place in places else extent for place, extent in enumerate(value.shape)))
    return made if left else Wire(b, made.step, ())


@operation(
    "mean.dim mean sum.dim_IntList sum amax amin max min max.dim min.dim",
    "nn.Mean, nn.Sum, nn.Max, nn.Min",
    missing=POSITIONS,
)
def reduce(b: Builder, self: Wire, dim: Any = None, keepdim: bool = False) -> Any:
    """Return means, sums, maxima or minima, whose positions must be unused."""
    _check_kind(b)
    made = reduced(b, f"nn.{b.kind.removeprefix('a').capitalize()}", self, dim, keepdim)
    if b.call.op not in ("aten.max.dim", "aten.min.dim") or "layers" not in b.allow:
        return made
    place = dim % len(self.shape)
    found = b.emit(make("pt.ArgMax", place + 1, b.kind == "min"), self, shape=with_extents(self.shape, place) or (1,))
    return [made, b.reshape(found, b.shape[1])]


@operation(
    "var.correction var.dim var_mean.correction",
    "nn.Mean, nn.CSubTable, nn.Square, nn.Sum, nn.MulConstant",
)
def variance(b: Builder, self: Wire, dim: Any, keepdim: bool, unbiased: Any = None, correction: Any = None) -> Any:
    """Return variances, and means."""
    places = _places(dim, len(self.shape))
    correction = (unbiased is not False) if correction is None else correction
    middle = reduced(b, "nn.Mean", self, places, True)
    made = reduced(b, "nn.Mean", (self - middle) ** 2, places, keepdim)
    if correction:
        count = prod(known(*(self.shape[place] for place in places)))
        made = made * (count / (count - correction))
    if b.kind == "var_mean":
        return [made, middle if keepdim else b.reshape(middle, made.shape)]
    return made


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
    return norm(b, b.joined("nn.CSubTable", rows, columns), p, [-1], False)


@operation("logsumexp", "nn.Max, nn.HardTanh, nn.CSubTable, nn.Exp, nn.Sum, nn.Log, nn.CAddTable")
def logsumexp(b: Builder, self: Wire, dim: Any) -> Any:
    """Return the logarithm of sums of exponentials."""
    top = reduced(b, "nn.Max", self, dim, True) >> make("nn.HardTanh", *_finite(b))
    return b.reshape(top + (reduced(b, "nn.Sum", self - top >> make("nn.Exp"), dim, True) >> make("nn.Log")), b.shape)


@operation("cumsum", "nn.MM with nn.Constant, a triangle of ones")
def cumsum(b: Builder, self: Wire, dim: Place) -> Any:
    """Return cumulative sums."""
    _check_kind(b)
    extent = int(self.shape[dim])
    return along(b, self, dim, np.triu(np.ones((extent, extent), "f4")))


def along(b: Builder, value: Wire, dim: int, matrix: Any) -> Any:
    """Multiply a dimension by a constant matrix."""

    def product(rows: Wire) -> Any:
        flat = b.reshape(rows, (flattened(rows.shape[:-1]), rows.shape[-1]))
        made = b.emit(make("nn.MM"), flat, b.constant(matrix), shape=(flat.shape[0], matrix.shape[1]))
        return b.reshape(made, (*rows.shape[:-1], matrix.shape[1]))

    return with_last(b, value, dim, product)


@operation(
    "logcumsumexp cummax cummin",
    "nn.Narrow, nn.JoinTable; as logaddexp, nn.CMaxTable or nn.CMinTable",
    missing=POSITIONS,
)
def cumulative(b: Builder, self: Wire, dim: Place) -> Any:
    """Return cumulative extrema, or logarithms of sums of exponentials."""
    name = {"cummax": "nn.CMaxTable", "cummin": "nn.CMinTable"}.get(b.kind)
    join = partial(b.joined, name) if name else partial(logaddexp, b)
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


def flattened(lead: Any) -> Any:
    """Return the extent of merged dimensions."""
    return prod(lead)


@operation("prod.dim_int", "nn.Select, nn.CMulTable")
def product_along(b: Builder, self: Wire, dim: Place) -> Any:
    """Return products."""
    _check_kind(b)
    parts = _elements(b, self, dim)
    return b.reshape(b.emit(make("nn.CMulTable"), *parts) if len(parts) > 1 else parts[0], b.shape)


@operation("cumprod", "pt.CumProd", package="layers")
def cumprod(b: Builder, self: Wire, dim: Place) -> Any:
    """Return cumulative products."""
    _check_kind(b)
    return self >> make("pt.CumProd", dim + 1)


@operation("sort sort.stable topk median.dim", "pt.Sort, nn.Narrow", package="layers")
def sort(b: Builder, self: Wire, dim: Place, descending: bool = False, largest: bool = False, k: Any = None) -> Any:
    """Return elements of a dimension in order, all, the first or the lower middle ones, and their indices."""
    start, count = 0, self.shape[dim] if k is None else k
    if b.kind == "median":
        start, count = (int(count) - 1) // 2, 1
    made = self >> make("pt.Sort", dim + 1, descending or largest)
    parts = [b.narrow(made >> make("nn.SelectTable", place), dim, start, count) for place in (1, 2)]
    return list(map(b.reshape, parts, b.shape))


@operation("argmax argmin", "pt.ArgMax", package="layers")
def argmax(b: Builder, self: Wire, dim: int | None, keepdim: bool) -> Any:
    """Return the indices of the largest or smallest elements of a dimension, or of all."""
    if dim is None:
        self, dim = b.reshape(self, (1, prod(known(*self.shape)))), 1
    dim %= len(self.shape)
    layer = make("pt.ArgMax", dim + 1, b.kind == "argmin")
    return b.reshape(b.emit(layer, self, shape=with_extents(self.shape, dim) or (1,)), b.shape)


def repeated(layer: LuaLayer, dim: int, extent: int) -> LuaLayer:
    """Return layers that repeat a mean over a dimension, 1-based, along it."""
    return layer >> make("nn.Replicate", extent, dim)


def normalized(dim: int, extent: int, eps: float, centered: bool = True) -> LuaLayer:
    """Return layers that subtract the mean over a dimension, 1-based, and divide by the root of the mean square."""
    middle = same() - repeated(make("nn.Mean", dim), dim, extent)
    root = same() / repeated((make("nn.Square") >> make("nn.Mean", dim)) + eps >> make("nn.Sqrt"), dim, extent)
    return middle >> root if centered else root


def _standardized(value: Wire, mean: Callable[[Wire], Any], eps: float) -> Any:
    """Subtract means, and divide by the roots of the means of squares."""
    value = value - mean(value)
    return value / (mean(value**2) + eps) ** 0.5


def _affine(b: Builder, value: Wire, weight: Any, bias: Any, size: tuple[int, ...]) -> Any:
    """Multiply by a weight and add a bias of a shape that broadcasts."""
    value = value if weight is None else value * b.reshape(weight, size)
    return value if bias is None else value + b.reshape(bias, size)


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
        places = [0, *range(2, len(input.shape))]
        value = _standardized(input, lambda value: reduced(b, "nn.Mean", value, places, True), eps)
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
    refs: list[Any] = [getattr(value, "ref", None) for value in (running_mean, running_var)]
    if None in refs:
        raise CannotError("the statistics are computed")
    if (weight is None) != (bias is None):
        raise CannotError("one of weight and bias is missing")
    fields = {"weight": weight.ref, "bias": bias.ref} if weight and bias else {}
    value, shape = input, input.shape
    if len(shape) == 3:
        value = b.reshape(value, (*shape[:2], 1, shape[2]))
    kind = {2: "", 5: "Volumetric"}.get(len(shape), "Spatial")
    args = (refs[0].size[0], eps, momentum, *(() if fields else (False,)))
    args = args[:1] if args[1:] == (1e-5, 0.1) else args
    layer = make(f"nn.{kind}BatchNormalization", *args, **fields, running_mean=refs[0], running_var=refs[1])
    return b.reshape(b.emit(layer, value), shape)


@operation(
    "layer_norm rms_norm", "nn.Mean, nn.CSubTable, nn.Square, nn.Sqrt, nn.CDivTable, nn.CMul, nn.CAdd; rms_norm no mean"
)
def layer_norm(b: Builder, input: Wire, normalized_shape: Any, weight: Any, bias: Any = None, eps: Any = None) -> Any:
    """Normalize over the last dimensions of each example, or divide by the root of the mean square."""
    lead, count = input.shape[: len(input.shape) - len(normalized_shape)], prod(normalized_shape)
    eps = (2.0**-52 if b.dtype == "float64" else 2.0**-23) if eps is None else eps  # those of PyTorch's types
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
    if not is_known(shape[2:]):
        return _affine(b, _standardized(input, lambda value: _means(b, value, num_groups), eps), weight, bias, size)
    count = prod(shape[1:]) // num_groups
    value = b.emit(normalized(3, count, eps), b.reshape(input, (shape[0], num_groups, count)))
    return _affine(b, b.reshape(value, shape), weight, bias, size)


def _means(b: Builder, value: Wire, groups: int) -> Any:
    """Return the means of groups of channels of images or volumes, of any size."""
    batch, channels, *rest = value.shape
    made = reduced(b, "nn.Mean", value, range(2, len(value.shape)))
    if groups < channels:
        made = b.reshape(made, (batch, groups, channels // groups))
        made = b.expand(reduced(b, "nn.Mean", made, [2], True), made.shape)
    return b.reshape(made, (batch, channels, *(1 for _ in rest)))
