"""waifu2x. Source: nagadomi/waifu2x cc385f9 and its history."""

from __future__ import annotations

from t7bridge.layers import (
    FIRST,
    INPLACE,
    REST,
    Lua,
    Reshape,
    Traits,
    axes,
    dim,
    extent,
    flows,
    has,
    integer,
    made,
    named_modules,
    number,
    of_class,
    of_runtime,
    of_torch,
    param,
    register_layer,
    shape,
)

_IDENTITY = of_torch("Identity")
register_layer(
    scratch="output_table output_tensor alpha beta first second scale grad_tmp negative",
    module={
        "w2nn.InplaceClip01": of_runtime("training.Clip", 0.0, 1.0),
        "w2nn.AuxiliaryLossTable": of_class(".modules.AuxiliaryLossTable", dim("i", 0)),
        "w2nn.ScaleTable": of_class(".modules.ScaleTable"),
        "w2nn.ShakeShakeTable": of_class(".modules.ShakeShakeTable"),
        "w2nn.GradWeight": of_class(".modules.GradWeight", number("constant_scalar")),
        "w2nn.DepthExpand2x": of_class(".modules.DepthExpand2x"),
        "w2nn.Print": _IDENTITY,
        "w2nn.PrintTable": _IDENTITY,
    },
    traits={".modules.AuxiliaryLossTable": Traits(flow=flows.unknown)},
)
register_layer(
    "w2nn.LeakyReLU",
    module=of_torch(
        "LeakyReLU", number("negval|negative_scale", 0.01), inplace=INPLACE
    ),
)


# Convolutions that are not trained.
_FIXED = of_class(
    ".modules.FixedConv2d",
    made(lambda lua: lua.shape("weight")[1] * lua.integer("groups", 1)),
    extent("weight"),
    made(lambda lua: lua.shape("weight")[2:]),
    stride=axes("d", 2, 1),
    padding=axes("padding|pad", 2, 0).unless((0, 0)),
    groups=integer("groups", 1).unless(1),
    bias=has("bias").unless(True),
    dilation=axes("dilation", 2, 1).unless((1, 1)),
)
register_layer(
    "w2nn.EdgeFilter",
    "w2nn.RandomBinaryConvolution",
    params=(
        param("weight", Reshape((FIRST, REST, "kH", "kW")), kind="buffer"),
        param("bias", kind="buffer"),
    ),
    scratch="finput fgradInput",
    module=_FIXED,
    traits=Traits(like="Conv2d"),
)

_DIFFERENCES = (
    "diff diff_abs diff_pow2 loss image instance_loss square_loss_buff linear_loss_buff"
)


def _clip(lua: Lua) -> tuple[float, float] | None:
    if not lua.has("clip"):
        return None
    return float(lua.number("clip.1")), float(lua.number("clip.2"))


_HUBER = of_class(
    ".modules.HuberCriterion", shape("weight"), gamma=number("gamma", 1.0), clip=_clip
)
_WEIGHTED = Traits(shapes=lambda shape, *_, **__: {"weight": shape})
register_layer(
    kind="criterion",
    params=(param("weight", kind="buffer"),),
    scratch=_DIFFERENCES,
    module={
        "w2nn.ClippedWeightedHuberCriterion": _HUBER,
        "w2nn.WeightedHuberCriterion": _HUBER,
        "w2nn.WeightedMSECriterion": of_class(
            ".modules.WeightedSquaresCriterion", shape("weight")
        ),
    },
    traits={
        ".modules.HuberCriterion": _WEIGHTED,
        ".modules.WeightedSquaresCriterion": _WEIGHTED,
    },
)
register_layer(
    kind="criterion",
    scratch=_DIFFERENCES,
    module={
        "w2nn.ClippedMSECriterion": of_class(
            ".modules.ClippedMSECriterion", number("min", 0.0), number("max", 1.0)
        ),
        "w2nn.L1Criterion": of_runtime("criterion.AbsCriterion"),
        "w2nn.PSNRCriterion": of_class(".modules.PSNRCriterion"),
    },
)
register_layer(
    "w2nn.LBPCriterion",
    kind="criterion",
    children=named_modules("filter1", "filter2"),
    scratch=f"{_DIFFERENCES} input target",
    module=of_class(
        ".modules.LBPCriterion", planes=integer("ch"), gamma=number("gamma", 0.1)
    ),
)
register_layer(
    "w2nn.SSIMCriterion",
    kind="criterion",
    children=named_modules("conv"),
    scratch="mu1 mu2 mu1_sq mu2_sq mu1_mu2 sigma1_sq sigma2_sq sigma12 ssim_map",
    module=of_class(
        ".modules.SSIMCriterion", c1=number("c1", 1e-4), c2=number("c2", 9e-4)
    ),
)
