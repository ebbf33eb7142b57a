"""Style transfer. Sources: fast-neural-style 813c834, texture_nets aad2cc6, AdaIN-style 6d8ac28, deepmask 280a716."""

from __future__ import annotations

from ..mapping import LAYERS, Call, Lua, becomes, flag, integer, number, of_runtime, pair
from ..output_shapes import same
from ..registry import Traits, register_layer

_BORDERS = pair("pad_l", "pad_r", "pad_t", "pad_b")


@becomes("style.GenNoise", "style.LeadingNoise")
def _noise(lua: Lua) -> Call:
    """Map texture_nets' GenNoise; that of the first release (March 2016) has no fields, and fills three planes."""
    if not lua.has("num_planes"):
        return Call(f"{LAYERS}style.LeadingNoise", (3,))
    return Call(f"{LAYERS}style.GenNoise", (lua.integer("num_planes"), lua.number("mult", 1.0)))


_VARIATION = of_runtime("style.TotalVariation", number("strength"))
register_layer(
    scratch="x_diff y_diff clipped buffer bn sz sz_",
    module={
        "nn.AdaptiveInstanceNormalization": of_runtime(
            "style.AdaptiveInstanceNormalization", eps=number("eps", 1e-5), disabled=flag("disabled")
        ),
        "nn.TotalVariation": _VARIATION,
        "nn.TVLoss": _VARIATION,
        "nn.DeepDreamLoss": of_runtime("style.DeepDreamLoss", number("strength", 1e-5), number("max_grad", 100.0)),
        "nn.GramMatrix": of_runtime("style.GramMatrix", flag("normalize", True)),
        "nn.SpatialCircularPadding": of_runtime("style.SpatialCircularPadding", _BORDERS),
        "nn.SpatialSymmetricPadding": of_runtime("style.SpatialSymmetricPadding", _BORDERS),
        "nn.NoiseFill": of_runtime("style.NoiseFill", integer("num_noise_channels"), number("mult", 1.0)),
        "nn.GenNoise": _noise,
        "nn.DummyGradOutput": of_runtime("gradient.ZeroGrad"),
    },
    traits={"style.TotalVariation": Traits(output=same), "style.DeepDreamLoss": Traits(output=same)},
)
register_layer(
    kind="criterion",
    scratch="mse crit target",
    module={"nn.TVLossCriterion": of_runtime("style.TVLossCriterion")},
)
