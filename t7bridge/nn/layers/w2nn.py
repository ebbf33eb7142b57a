"""waifu2x: layers of its generated and published models. Sources: nagadomi/waifu2x cc385f9 and its history."""

from __future__ import annotations

from .. import flows
from ..mapping import LAYERS, Lua, dim, integer, made, number, of_runtime, of_torch, shape
from ..registry import Traits, named_modules, param, register_layer
from ..torch_nn import constructed
from .conv import KERNEL_2D, convolution

_IDENTITY = of_torch("Identity")
register_layer(
    scratch="output_table output_tensor alpha beta first second scale grad_tmp negative",
    module={
        "w2nn.InplaceClip01": of_runtime("gradient.Clip01"),
        "w2nn.AuxiliaryLossTable": of_runtime("table.AuxiliaryLossTable", dim("i", 0)),
        "w2nn.ScaleTable": of_runtime("table.ScaleTable"),
        "w2nn.ShakeShakeTable": of_runtime("table.ShakeShakeTable"),
        "w2nn.GradWeight": of_runtime("gradient.GradWeight", number("constant_scalar")),
        "w2nn.DepthExpand2x": of_runtime("resample.DepthExpand2x"),
        "w2nn.Print": _IDENTITY,
        "w2nn.PrintTable": _IDENTITY,
    },
    traits={"table.AuxiliaryLossTable": Traits(flow=flows.unknown)},
)


_FIXED = convolution(2, f"{LAYERS}conv.FixedConv2d")


# Convolutions that are not trained.
register_layer(
    params=(param("weight", *KERNEL_2D.sources[0].layout, kind="buffer"), param("bias", kind="buffer")),
    defaults={"padW": 0.0, "padH": 0.0},
    scratch="finput fgradInput",
    module=dict.fromkeys(("w2nn.EdgeFilter", "w2nn.RandomBinaryConvolution"), _FIXED),
    traits={"conv.FixedConv2d": Traits(shapes=lambda *args, **kwargs: constructed("Conv2d", args, kwargs))},
)

_DIFFERENCES = "diff diff_abs diff_pow2 loss image instance_loss square_loss_buff linear_loss_buff"


def _clip(lua: Lua) -> tuple[float, float] | None:
    return (float(lua.number("clip.1")), float(lua.number("clip.2"))) if lua.has("clip") else None


_HUBER = of_runtime(
    "criterion.HuberCriterion", shape("weight"), gamma=number("gamma", 1.0), clip=made(_clip).unless(None)
)
register_layer(
    params=(param("weight", kind="buffer"),),
    kind="criterion",
    scratch=_DIFFERENCES,
    module={
        "w2nn.ClippedWeightedHuberCriterion": _HUBER,
        "w2nn.WeightedHuberCriterion": _HUBER,
        "w2nn.WeightedMSECriterion": of_runtime("criterion.WeightedSquaresCriterion", shape("weight")),
    },
    traits=dict.fromkeys(
        ("criterion.HuberCriterion", "criterion.WeightedSquaresCriterion"),
        Traits(shapes=lambda shape, *_, **__: {"weight": shape}),
    ),
)
register_layer(
    kind="criterion",
    scratch=_DIFFERENCES,
    module={
        "w2nn.ClippedMSECriterion": of_runtime("criterion.ClippedMSECriterion", number("min", 0.0), number("max", 1.0)),
        "w2nn.L1Criterion": of_runtime("criterion.AbsCriterion"),
        "w2nn.PSNRCriterion": of_runtime("criterion.PSNRCriterion"),
    },
)
register_layer(
    "w2nn.LBPCriterion",
    children=named_modules("filter1", "filter2"),
    kind="criterion",
    scratch=f"{_DIFFERENCES} input target",
    module=of_runtime("criterion.LBPCriterion", planes=integer("ch"), gamma=number("gamma", 0.1)),
)
register_layer(
    "w2nn.SSIMCriterion",
    children=named_modules("conv"),
    kind="criterion",
    scratch="mu1 mu2 mu1_sq mu2_sq mu1_mu2 sigma1_sq sigma2_sq sigma12 ssim_map",
    module=of_runtime("criterion.SSIMCriterion", c1=number("c1", 1e-4), c2=number("c2", 9e-4)),
)
