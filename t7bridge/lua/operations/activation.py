"""Activations: nn layers, or equivalent compositions of them."""

from __future__ import annotations

from math import log, pi, sqrt
from typing import Any

from ..build import Builder, CannotError, LearnedTensor
from ..layers import LuaLayer, branches, make, sequential
from ..table import operation


def erf_of_magnitude() -> LuaLayer:
    """Return erf(|x|) as layers.

    Abramowitz and Stegun 7.1.26: 1 - (a1 t + ... + a5 t^5) exp(-x^2) with t = 1 / (1 + p |x|), within 1.5e-7.
    """
    coefficients = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
    terms = [
        sequential(*([make("nn.Power", power)] if power > 1 else []), make("nn.MulConstant", value))
        for power, value in enumerate(coefficients, 1)
    ]
    series = sequential(
        make("nn.Abs"),
        make("nn.MulConstant", 0.3275911),
        make("nn.AddConstant", 1),
        make("nn.Power", -1),
        branches(make("nn.CAddTable"), *terms),
    )
    bell = sequential(make("nn.Square"), make("nn.MulConstant", -1), make("nn.Exp"))
    product = branches(make("nn.CMulTable"), series, bell)
    return sequential(product, make("nn.MulConstant", -1), make("nn.AddConstant", 1))


def hard_sigmoid() -> LuaLayer:
    """Return relu6(x + 3) / 6 as layers."""
    return sequential(make("nn.AddConstant", 3), make("nn.HardTanh", 0, 6), make("nn.MulConstant", 1 / 6))


def gated(gate: LuaLayer) -> LuaLayer:
    """Return x * gate(x) as layers."""
    return branches(make("nn.CMulTable"), make("nn.Identity"), gate)


@operation("relu.default relu_.default", "nn.ReLU")
def relu(b: Builder, self: Any) -> Any:
    """Rectify."""
    return b.emit(make("nn.ReLU"), self)


@operation("sigmoid.default sigmoid_.default", "nn.Sigmoid")
def sigmoid(b: Builder, self: Any) -> Any:
    """Apply the logistic function."""
    return b.emit(make("nn.Sigmoid"), self)


@operation("tanh.default tanh_.default", "nn.Tanh")
def tanh(b: Builder, self: Any) -> Any:
    """Apply the hyperbolic tangent."""
    return b.emit(make("nn.Tanh"), self)


@operation("elu.default elu_.default", "nn.ELU")
def elu(b: Builder, self: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    """Apply the exponential linear unit."""
    layers = [make("nn.MulConstant", input_scale)] if input_scale != 1 else []
    layers.append(make("nn.ELU", alpha))
    layers += [make("nn.MulConstant", scale)] if scale != 1 else []
    return b.emit(sequential(*layers), self)


@operation("selu.default selu_.default", "nn.ELU, nn.MulConstant")
def selu(b: Builder, self: Any) -> Any:
    """Apply the self-normalizing unit."""
    return elu(b, self, 1.6732632423543772, 1.0507009873554805)


@operation("celu.default celu_.default", "nn.MulConstant, nn.ELU")
def celu(b: Builder, self: Any, alpha: float = 1.0) -> Any:
    """Apply alpha * elu(x / alpha)."""
    return elu(b, self, 1, alpha, 1 / alpha)


@operation("leaky_relu.default leaky_relu_.default", "nn.LeakyReLU")
def leaky_relu(b: Builder, self: Any, negative_slope: float = 0.01) -> Any:
    """Apply a rectifier with a slope below 0."""
    return b.emit(make("nn.LeakyReLU", negative_slope), self)


@operation("rrelu.default rrelu_.default", "nn.RReLU")
def rrelu(
    b: Builder, self: Any, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Any:
    """Apply a rectifier whose slope is random in training."""
    return b.emit(make("nn.RReLU", lower, upper), self)


@operation("prelu.default _prelu_kernel.default", "nn.PReLU")
def prelu(b: Builder, self: Any, weight: Any) -> Any:
    """Apply a rectifier with learned slopes: one, or one per channel (dimension 1)."""
    if not isinstance(weight, LearnedTensor):
        raise CannotError("the slopes are not a parameter")
    count = weight.ref.size[0] if weight.ref.size else 1
    args = () if count == 1 else (count,)
    if args and len(self.shape) == 3:
        shape = self.shape
        wide = b.reshape(self, (*shape, 1))
        made = b.emit(make("nn.PReLU", *args, weight=b.resized(weight.ref, (count,))), wide)
        return b.reshape(made, shape)
    return b.emit(make("nn.PReLU", *args, weight=b.resized(weight.ref, (count,))), self)


@operation("hardtanh.default hardtanh_.default", "nn.HardTanh")
def hardtanh(b: Builder, self: Any, min_val: float = -1, max_val: float = 1) -> Any:
    """Clip to an interval."""
    return b.emit(make("nn.HardTanh", min_val, max_val), self)


@operation("relu6.default relu6_.default", "nn.HardTanh")
def relu6(b: Builder, self: Any) -> Any:
    """Clip to 0 … 6."""
    return hardtanh(b, self, 0, 6)


@operation("clamp.default clamp_.default clip.default", "nn.HardTanh, nn.Threshold")
def clamp(b: Builder, self: Any, min: float | None = None, max: float | None = None) -> Any:
    """Clip to an interval, or on one side."""
    if min is not None and max is not None:
        if not min < max:
            raise CannotError(f"clips to an interval from {min} to {max}")
        return hardtanh(b, self, min, max)
    if min is not None:
        return b.emit(make("nn.Threshold", min, min), self)
    if max is None:
        return self
    turn = make("nn.MulConstant", -1)
    return b.emit(sequential(turn, make("nn.Threshold", -max, -max), make("nn.MulConstant", -1)), self)


@operation("clamp_min.default clamp_min_.default", "nn.Threshold")
def clamp_min(b: Builder, self: Any, min: float) -> Any:
    """Clip from below."""
    return clamp(b, self, min)


@operation("clamp_max.default clamp_max_.default", "nn.Threshold, nn.MulConstant")
def clamp_max(b: Builder, self: Any, max: float) -> Any:
    """Clip from above."""
    return clamp(b, self, None, max)


@operation("threshold.default threshold_.default", "nn.Threshold")
def threshold(b: Builder, self: Any, threshold: float, value: float) -> Any:
    """Replace elements that are not above a threshold."""
    return b.emit(make("nn.Threshold", threshold, value), self)


@operation("silu.default silu_.default", "nn.ConcatTable of nn.Identity and nn.Sigmoid, nn.CMulTable")
def silu(b: Builder, self: Any) -> Any:
    """Multiply by the logistic function."""
    return b.emit(gated(make("nn.Sigmoid")), self)


@operation("hardsigmoid.default hardsigmoid_.default", "nn.AddConstant, nn.HardTanh, nn.MulConstant")
def hardsigmoid(b: Builder, self: Any) -> Any:
    """Apply relu6(x + 3) / 6."""
    return b.emit(hard_sigmoid(), self)


@operation("hardswish.default hardswish_.default", "nn.ConcatTable, nn.CMulTable with a hard sigmoid")
def hardswish(b: Builder, self: Any) -> Any:
    """Multiply by the hard sigmoid."""
    return b.emit(gated(hard_sigmoid()), self)


@operation("mish.default mish_.default", "nn.SoftPlus, nn.Tanh, nn.CMulTable")
def mish(b: Builder, self: Any) -> Any:
    """Multiply by tanh(softplus(x))."""
    return b.emit(gated(sequential(make("nn.SoftPlus"), make("nn.Tanh"))), self)


@operation(
    "gelu.default gelu_.default",
    "nn.Tanh with a cubic, or erf of nn.Power, nn.Exp, nn.CMulTable",
    "Lua has no erf: it is Abramowitz and Stegun 7.1.26, within 1.5e-7.",
)
def gelu(b: Builder, self: Any, approximate: str = "none") -> Any:
    """Apply the Gaussian error linear unit, in both forms."""
    if approximate == "tanh":
        cubic = sequential(make("nn.Power", 3), make("nn.MulConstant", 0.044715))
        inner = branches(make("nn.CAddTable"), make("nn.Identity"), cubic)
        gate = sequential(inner, make("nn.MulConstant", sqrt(2 / pi)), make("nn.Tanh"), make("nn.AddConstant", 1))
        return b.emit(sequential(gated(gate), make("nn.MulConstant", 0.5)), self)
    b.remark("GELU uses erf by Abramowitz and Stegun 7.1.26 (within 1.5e-7), as nn has no layer for it")
    magnitude = branches(
        make("nn.CMulTable"), make("nn.Abs"), sequential(make("nn.MulConstant", sqrt(0.5)), erf_of_magnitude())
    )
    return b.emit(
        sequential(branches(make("nn.CAddTable"), make("nn.Identity"), magnitude), make("nn.MulConstant", 0.5)), self
    )


@operation(
    "erf.default", "nn.Threshold, nn.Power, nn.Exp, nn.CMulTable", "Abramowitz and Stegun 7.1.26, within 1.5e-7."
)
def erf(b: Builder, self: Any) -> Any:
    """Apply the error function, as erf(relu(x)) - erf(relu(-x))."""
    b.remark("erf is computed by Abramowitz and Stegun 7.1.26 (within 1.5e-7), as nn has no layer for it")
    positive = sequential(make("nn.ReLU"), erf_of_magnitude())
    negative = sequential(make("nn.MulConstant", -1), make("nn.ReLU"), erf_of_magnitude())
    return b.emit(branches(make("nn.CSubTable"), positive, negative), self)


@operation("softplus.default", "nn.SoftPlus")
def softplus(b: Builder, self: Any, beta: float = 1, threshold: float = 20) -> Any:
    """Apply log(1 + exp(beta x)) / beta."""
    if threshold != 20:
        raise CannotError(f"nn.SoftPlus is linear above 20, this one above {threshold}")
    return b.emit(make("nn.SoftPlus", beta), self)


@operation("log_sigmoid.default", "nn.LogSigmoid")
def log_sigmoid(b: Builder, self: Any) -> Any:
    """Apply the logarithm of the logistic function."""
    return b.emit(make("nn.LogSigmoid"), self)


@operation("logit.default", "nn.Log, nn.MulConstant, nn.AddConstant, nn.CSubTable")
def logit(b: Builder, self: Any, eps: Any = None) -> Any:
    """Apply log(x / (1 - x))."""
    value = self if eps is None else hardtanh(b, self, eps, 1 - eps)
    other = sequential(make("nn.MulConstant", -1), make("nn.AddConstant", 1), make("nn.Log"))
    return b.emit(make("nn.CSubTable"), b.emit(make("nn.Log"), value), b.emit(other, value))


@operation("hardshrink.default", "nn.HardShrink")
def hardshrink(b: Builder, self: Any, lambd: float = 0.5) -> Any:
    """Set small values to 0."""
    return b.emit(make("nn.HardShrink", lambd), self)


@operation("softshrink.default", "nn.SoftShrink")
def softshrink(b: Builder, self: Any, lambd: float = 0.5) -> Any:
    """Shift values towards 0."""
    return b.emit(make("nn.SoftShrink", lambd), self)


@operation("glu.default", "nn.Narrow, nn.Sigmoid, nn.CMulTable")
def glu(b: Builder, self: Any, dim: int = -1) -> Any:
    """Multiply one half of a dimension by the logistic function of the other."""
    place = dim % len(self.shape)
    half = self.shape[place] // 2
    first = make("nn.Narrow", place + 1, 1, half)
    second = sequential(make("nn.Narrow", place + 1, half + 1, half), make("nn.Sigmoid"))
    return b.emit(branches(make("nn.CMulTable"), first, second), self, shape=b.shape)


@operation("exp.default exp_.default", "nn.Exp")
def exp(b: Builder, self: Any) -> Any:
    """Apply the exponential."""
    return b.emit(make("nn.Exp"), self)


@operation("expm1.default", "nn.Exp, nn.AddConstant")
def expm1(b: Builder, self: Any) -> Any:
    """Apply exp(x) - 1."""
    return b.emit(sequential(make("nn.Exp"), make("nn.AddConstant", -1)), self)


@operation("log.default log_.default", "nn.Log")
def log_(b: Builder, self: Any) -> Any:
    """Apply the natural logarithm."""
    return b.emit(make("nn.Log"), self)


@operation("log1p.default log2.default log10.default", "nn.AddConstant, nn.Log, nn.MulConstant")
def log_other(b: Builder, self: Any) -> Any:
    """Apply a logarithm of another base, or of 1 + x."""
    kind = b.call.op.split(".")[1]
    if kind == "log1p":
        return b.emit(sequential(make("nn.AddConstant", 1), make("nn.Log")), self)
    base = 2 if kind == "log2" else 10
    return b.emit(sequential(make("nn.Log"), make("nn.MulConstant", 1 / log(base))), self)


@operation("sqrt.default sqrt_.default", "nn.Sqrt")
def sqrt_(b: Builder, self: Any) -> Any:
    """Apply the square root."""
    return b.emit(make("nn.Sqrt"), self)


@operation("rsqrt.default", "nn.Power")
def rsqrt(b: Builder, self: Any) -> Any:
    """Apply 1 / sqrt(x)."""
    return b.emit(make("nn.Power", -0.5), self)


@operation("reciprocal.default", "nn.Power")
def reciprocal(b: Builder, self: Any) -> Any:
    """Apply 1 / x."""
    return b.emit(make("nn.Power", -1), self)


@operation("abs.default abs_.default", "nn.Abs")
def abs_(b: Builder, self: Any) -> Any:
    """Return the magnitude."""
    return b.emit(make("nn.Abs"), self)


@operation("neg.default neg_.default", "nn.MulConstant")
def neg(b: Builder, self: Any) -> Any:
    """Negate."""
    return b.emit(make("nn.MulConstant", -1), self)


@operation("square.default square_.default", "nn.Square")
def square(b: Builder, self: Any) -> Any:
    """Apply the square."""
    return b.emit(make("nn.Square"), self)


def over_last(b: Builder, name: str, value: Any, dim: int) -> Any:
    """Apply a layer defined on rows to any dimension."""
    rank = len(value.shape)
    place = dim % rank
    if (rank, place) in ((1, 0), (2, 1)):
        return b.emit(make(name), value)
    if (rank, place) == (4, 1) and name == "nn.SoftMax":
        return b.emit(make("nn.SpatialSoftMax"), value)
    if (rank, place) == (4, 1):
        return b.emit(make(name), value)
    if place != rank - 1:
        order = list(range(rank))
        order[place], order[-1] = order[-1], order[place]
        return b.permute(over_last(b, name, b.permute(value, tuple(order)), -1), tuple(order))
    return b.emit(LuaLayer("nn.Bottle", (2, 2), children=[make(name)]), value)


@operation("softmax.int _softmax.default", "nn.SoftMax, nn.SpatialSoftMax, in nn.Bottle or between nn.Transpose")
def softmax(b: Builder, self: Any, dim: int, dtype: Any = None) -> Any:
    """Apply softmax over a dimension."""
    return over_last(b, "nn.SoftMax", b.wire(self), dim)


@operation("log_softmax.int _log_softmax.default", "nn.LogSoftMax, in nn.Bottle or between nn.Transpose")
def log_softmax(b: Builder, self: Any, dim: int, dtype: Any = None) -> Any:
    """Apply the logarithm of softmax over a dimension."""
    return over_last(b, "nn.LogSoftMax", b.wire(self), dim)


@operation("dropout.default dropout_.default", "nn.Dropout")
def dropout(b: Builder, input: Any, p: float, train: bool) -> Any:
    """Set elements to 0 at random in training."""
    if p == 0:
        return input
    if train:
        b.remark("a dropout that is active in evaluation too becomes nn.Dropout, which acts in training only")
    return b.emit(make("nn.Dropout", p), input)


@operation(
    "feature_dropout.default feature_dropout_.default",
    "nn.SpatialDropout or nn.VolumetricDropout, nn.MulConstant",
    "Lua scales in evaluation and PyTorch in training: the constant compensates.",
)
def feature_dropout(b: Builder, input: Any, p: float, train: bool) -> Any:
    """Set channels to 0 at random in training."""
    if p == 0:
        return input
    rank = len(input.shape)
    if rank not in (3, 4, 5):
        raise CannotError("channels are dropped from inputs of 3 to 5 dimensions")
    name = "nn.VolumetricDropout" if rank == 5 else "nn.SpatialDropout"
    layer = sequential(make(name, p), make("nn.MulConstant", 1 / (1 - p)))
    if rank == 3:
        return b.reshape(b.emit(layer, b.reshape(input, (*input.shape, 1))), input.shape)
    return b.emit(layer, input)
