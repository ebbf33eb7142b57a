"""Style transfer. Source: fast-neural-style 813c834, texture_nets aad2cc6, AdaIN-style 6d8ac28."""

from __future__ import annotations

from t7bridge.layers import (
    Traits,
    either,
    flag,
    integer,
    number,
    of_class,
    of_runtime,
    pair,
    register_layer,
    same,
)

# texture_nets' GenNoise of the first release (March 2016) has no fields, and fills three planes.
_NOISE = either(
    lambda lua: lua.has("num_planes"),
    of_class(".modules.GenNoise", integer("num_planes"), number("mult", 1.0)),
    of_class(".modules.LeadingNoise", 3),
)
_VARIATION = of_class(".modules.TotalVariation", number("strength"))
_PENALTY = Traits(output=same, own_gradient=True)
register_layer(
    scratch="x_diff y_diff clipped buffer bn sz sz_",
    module={
        "nn.AdaptiveInstanceNormalization": of_class(
            ".modules.AdaptiveInstanceNormalization",
            eps=number("eps", 1e-5),
            disabled=flag("disabled"),
        ),
        "nn.TotalVariation": _VARIATION,
        "nn.TVLoss": _VARIATION,
        "nn.DeepDreamLoss": of_class(
            ".modules.DeepDreamLoss",
            number("strength", 1e-5),
            number("max_grad", 100.0),
        ),
        "nn.GramMatrix": of_class(".modules.GramMatrix", flag("normalize", True)),
        "nn.SpatialCircularPadding": of_class(
            ".modules.SpatialCircularPadding", pair("pad_l", "pad_r", "pad_t", "pad_b")
        ),
        "nn.NoiseFill": of_class(
            ".modules.NoiseFill", integer("num_noise_channels"), number("mult", 1.0)
        ),
        "nn.GenNoise": _NOISE,
        "nn.DummyGradOutput": of_runtime("training.ZeroGrad"),
    },
    traits={".modules.TotalVariation": _PENALTY, ".modules.DeepDreamLoss": _PENALTY},
)
register_layer(
    "nn.TVLossCriterion",
    kind="criterion",
    scratch="mse crit target",
    module=of_class(".modules.TVLossCriterion"),
)
