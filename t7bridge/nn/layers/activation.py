"""Transfer functions: PReLU learns, the others have no state. Source: nn 8726825, one Lua file a class."""

from __future__ import annotations

from typing import Any

from ..compounds import Expression, Node, node, recognized, require
from ..fields import Fields
from ..mapping import (
    INPLACE,
    LAYERS,
    Call,
    Lua,
    becomes,
    either,
    extent,
    flag,
    made,
    number,
    of_runtime,
    of_torch,
    same_names,
)
from ..output_shapes import same
from ..registry import InLua, Traits, modules, param, register_layer
from ..texts import Printed

# weight (planes), or (1) if all planes share it.
register_layer(
    "nn.PReLU",
    params=(param("weight"),),
    module=of_runtime("activation.PReLU", extent("weight"), plain="PReLU"),
    # One slope is for inputs of any shape.
    traits=Traits(plain_examples=(1,), plain_rank=2, written=("plain",), like="PReLU"),
)

_NOISE = "noise mininput tempgrad temp tanh"


def _dropped_out(fields: Fields, input: Any, noise: Any) -> Any:
    """Return the elements that the noise kept, multiplied by what the options say."""
    p = fields.number("p", 0.5)
    factor = 1 / (1 - p) if fields.flag("v2") and p != 1 else 1.0
    return input * (noise != 0) * factor


def _kept_by_dropout(fields: Fields, output: Node) -> Expression:
    """Return the input of a dropout that drops nothing."""
    return output.input if fields.number("p", 0.5) == 0 else output


_IF_INPLACE = INPLACE.unless(False)
# A `nn.Threshold` at zero, unless somebody set its threshold.
_RELU = either(
    lambda lua: lua.number("threshold", 0.0) or lua.number("val", 0.0),
    of_torch("Threshold", number("threshold", 0.0), number("val", 0.0), inplace=_IF_INPLACE),
    of_torch("ReLU", inplace=_IF_INPLACE),
)
register_layer(
    "nn.ReLU",
    module=_RELU,
    traits={"torch.nn.ReLU": Traits(polynomial=("function", "relu"))},
    in_lua=InLua(options=("threshold", "val")),
)
register_layer(
    "nn.Threshold",
    module=of_torch("Threshold", number("threshold", 1e-6), number("val", 0.0), inplace=INPLACE),
)
register_layer(
    "nn.LeakyReLU",
    module=of_torch("LeakyReLU", number("negval|negative_scale", 0.01), inplace=INPLACE),
    text="({negval:g})",
)
register_layer(
    "nn.HardTanh",
    "nn.Clamp",
    module=of_torch("Hardtanh", number("min_val", -1.0), number("max_val", 1.0), inplace=INPLACE),
)


@becomes("torch.nn.Tanhshrink")
def _tanh_shrink(lua: Lua) -> Call:
    require(lua, "tanh", node("nn.Tanh", "x"))
    return Call("torch.nn.Tanhshrink")


@becomes("torch.nn.ReLU", "torch.nn.Tanh", "torch.nn.Sigmoid")
def _pointwise(lua: Lua) -> Call:
    """Map an object of cuDNN's base class of all transfer functions itself, whose field `mode` selects one.

    Raises:
        ModelError: it has no mode, or another one.
    """
    names = {"RELU": "ReLU", "TANH": "Tanh", "SIGMOID": "Sigmoid"}
    mode = lua.text("mode").removeprefix("CUDNN_ACTIVATION_")
    if mode not in names:
        raise lua.wrong("mode", f"one of {', '.join(names)}", lua.get("mode"))
    return Call(f"torch.nn.{names[mode]}")


_SOFTMAX = of_runtime("activation.Softmax", plain="Softmax")
_LOG_SOFTMAX = of_runtime("activation.LogSoftmax", plain="LogSoftmax")
# Before 2017 exponentials were computed by a fast approximation: TH 814ea4a `THLogAdd.c`, `THExpMinusApprox`.
_FAST_EXPONENTIALS = InLua(tolerance=3e-4)
register_layer(
    scratch=_NOISE,
    module={
        "nn.ReLU6": of_torch("ReLU6", inplace=INPLACE),
        "nn.ELU": of_torch("ELU", number("alpha", 1.0), inplace=INPLACE),
        "nn.RReLU": of_torch("RReLU", number("lower", 1 / 8), number("upper", 1 / 3), inplace=INPLACE),
        "nn.HardShrink": of_torch("Hardshrink", number("lambda", 0.5)),
        "nn.SoftShrink": of_torch("Softshrink", number("lambda", 0.5)),
        "nn.SoftPlus": of_torch("Softplus", number("beta", 1.0), number("threshold", 20.0)),
        "nn.SoftSign": of_torch("Softsign"),
        "nn.SoftMax": _SOFTMAX,
        "nn.SoftMin": of_runtime("activation.Softmin", plain="Softmin"),
        "nn.LogSoftMax": _LOG_SOFTMAX,
        "nn.SpatialSoftMax": _SOFTMAX,
        "nn.SpatialLogSoftMax": _LOG_SOFTMAX,
        "cudnn.SoftMax": of_runtime("activation.ExampleSoftmax"),
        "cudnn.LogSoftMax": of_runtime("activation.ExampleSoftmax", log=True),
        "cudnn.VolumetricSoftMax": of_torch("Softmax", -4),
        "cudnn.VolumetricLogSoftMax": of_torch("LogSoftmax", -4),
        "nn.LogSigmoid": of_torch("LogSigmoid"),
        "nn.Sigmoid": of_torch("Sigmoid"),
        "nn.Tanh": of_torch("Tanh"),
        "nn.TanhShrink": _tanh_shrink,
        **same_names("activation", "Exp Log Sqrt Square"),
        "nn.Power": of_runtime("activation.Power", number("pow")),
        "nn.GatedLinearUnit": of_torch("GLU", made(lambda lua: lua.index0("dim") if lua.has("dim") else -1)),
        "nn.Clip": of_runtime("training.Clip", number("minval", -1.0), number("maxval", 1.0)),
        "cudnn.ClippedReLU": of_torch("Hardtanh", 0.0, number("ceiling")),
        "cudnn.Pointwise": _pointwise,
    },
    text={"nn.ELU": " (alpha:{alpha:f})", "nn.RReLU": " (l:{lower:f}, u:{upper:f})"},
    in_lua={
        **dict.fromkeys(("nn.LogSoftMax", "nn.SpatialLogSoftMax", "cudnn.LogSoftMax"), _FAST_EXPONENTIALS),
        "nn.HardShrink": InLua(tolerance=0.0),  # a value at the threshold is on either side
        "nn.LogSigmoid": InLua(tolerance=0.0),  # 1 + exp(x) is rounded before the logarithm
    },
    traits={
        **{
            f"activation.{name}": Traits(written=("softmax", name), output=same, over_dim=f"torch.nn.{name}")
            for name in ("Softmax", "LogSoftmax", "Softmin")
        },
        "activation.ExampleSoftmax": Traits(written=("example_softmax",), output=same),
        **{
            f"activation.{name}": Traits(written=("expression", f"x.{name.lower()}()"), output=same)
            for name in ("Abs", "Exp", "Log", "Square")
        },
        "activation.Power": Traits(written=("expression", "x.pow(exponent)"), output=same),
        "activation.Sqrt": Traits(output=same),
        "torch.nn.Sigmoid": Traits(polynomial=("function", "sigmoid")),
        "torch.nn.Tanh": Traits(polynomial=("function", "tanh")),
        "torch.nn.RReLU": Traits(replay=lambda _, input, noise: input * ((input > 0) + noise * (input <= 0))),
    },
)


@becomes("activation.CReLU", "activation.RowwiseSequential")
def _concatenated(lua: Lua) -> Call:
    """Map an nn.CReLU, a Sequential that joins x and -x and applies a ReLU; one that was changed, as a Sequential.

    It sees each example as a row of all its elements, so that features are dimension 2 of a batch.
    """
    negated = node("nn.MulConstant", "x", constant_scalar=-1.0)
    parts = node("nn.JoinTable", ["x", negated], dimension=2.0)
    example_dims = lua.integer("nInputDims")
    pattern = node("nn.ReLU", parts, threshold=0.0, val=0.0)
    if recognized(lua.obj, start="", inputs="x", pattern=pattern) is not None:
        return Call(f"{LAYERS}activation.CReLU", (example_dims,), childless=True)
    return Call(f"{LAYERS}activation.RowwiseSequential", kwargs={"n_input_dims": example_dims})


register_layer("nn.CReLU", children=modules, module=_concatenated, text=Printed(whole="CReLU()"))

_ALWAYS = flag("stochastic_inference")


def _is_lazy(lua: Lua) -> bool:
    """Return whether rnn's dropout has one mask for a whole sequence, until backward; otherwise one for each call."""
    if lua.flag("mono"):
        return True
    return lua.flag("lazy") and any("step" in obj or obj.class_name == "nn.Sequencer" for obj in lua.above)


_P = number("p", 0.5)
_V2 = flag("v2")
# Releases before `v2` multiplied by 1 - p in evaluation.
_EACH_CALL = either(
    lambda lua: lua.flag("v2") and not lua.flag("stochastic_inference"),
    of_torch("Dropout", _P, inplace=_IF_INPLACE),
    of_runtime("training.Dropout", _P, scale_training=_V2, always=_ALWAYS),
)
_DROPOUT = either(
    lambda lua: lua.number("p", 0.5) and _is_lazy(lua) and not lua.flag("stochastic_inference"),
    of_runtime("recurrent.SequenceDropout", _P, scale_training=_V2, mono=flag("mono")),
    _EACH_CALL,
)


register_layer(
    "nn.Dropout",
    scratch=_NOISE,
    module=_DROPOUT,
    traits={
        "torch.nn.Dropout": Traits(
            shares_memory=True, copying="t7bridge.torchmodules.layers.training.Dropout", replay=_dropped_out
        ),
        **{f"torch.nn.Dropout{dims}d": Traits(shares_memory=True) for dims in (2, 3)},
        "training.Dropout": Traits(output=same, replay=_dropped_out),
        "recurrent.SequenceDropout": Traits(replay=_dropped_out, by_step=True),
    },
    text="({p:f})",
    in_lua=InLua(expressed=_kept_by_dropout),
)
register_layer(
    scratch=_NOISE,
    module={
        "nn.SpatialDropout": of_runtime("training.FeatureDropout", number("p", 0.5), n_input_dims=3, always=_ALWAYS),
        "nn.VolumetricDropout": of_runtime("training.FeatureDropout", number("p", 0.5), n_input_dims=4, always=_ALWAYS),
        "nn.WhiteNoise": of_runtime("training.WhiteNoise", number("mean", 0.0), number("std", 0.1)),
        # The factor is missing in class version 1.
        "nn.GradientReversal": of_runtime("training.GradientReversal", number("lambda", 1.0)),
        "nn.L1Penalty": of_runtime(
            "training.L1Penalty",
            number("l1weight"),
            size_average=flag("sizeAverage"),
            hand_back=flag("provideOutput", True),
        ),
        "nn.ZeroGrad": of_runtime("training.ZeroGrad"),
    },
    traits={
        "training.FeatureDropout": Traits(output=same, replay=lambda _, input, noise: input * (noise != 0)),
        "training.WhiteNoise": Traits(output=same, replay=lambda _, input, noise: input + noise),
        "training.GradientReversal": Traits(shares_memory=True, output=same),
        "training.L1Penalty": Traits(shares_memory=True, output=same, own_gradient=True),
        "training.ZeroGrad": Traits(shares_memory=True, output=same),
    },
    text={
        **dict.fromkeys(("nn.SpatialDropout", "nn.VolumetricDropout"), "({p:f})"),
        "nn.WhiteNoise": " mean: {mean:f}, std: {std:f}",
    },
)
register_layer("nn.Abs", "nn.AbsModule", module=of_runtime("activation.Abs"))
