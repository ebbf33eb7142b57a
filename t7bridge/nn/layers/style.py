"""Style transfer. Sources: fast-neural-style 813c834, texture_nets aad2cc6, AdaIN-style 6d8ac28, deepmask 280a716."""

from __future__ import annotations

from ..mapping import Call, Lua, flag, integer, number, of_runtime, pair
from ..registry import register_layer

_BORDERS = pair("pad_l", "pad_r", "pad_t", "pad_b")


def _loss(lua: Lua) -> Call:
    """What only notes a loss hands on its input."""
    return Call("torch.nn.Identity")


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
        "nn.GenNoise": of_runtime("style.GenNoise", integer("num_planes"), number("mult", 1.0)),
        "nn.DummyGradOutput": of_runtime("gradient.ZeroGrad"),
    },
)
register_layer(
    kind="criterion",
    scratch="mse crit target",
    module={"nn.TVLossCriterion": of_runtime("style.TVLossCriterion")},
)
