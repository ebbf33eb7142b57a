"""Style transfer. Sources: fast-neural-style 813c834, texture_nets aad2cc6, AdaIN-style 6d8ac28, deepmask 280a716."""

from __future__ import annotations

from ..mapping import either, flag, integer, number, of_runtime, pair
from ..output_shapes import same
from ..registry import Traits, register_layer

_BORDERS = pair("pad_l", "pad_r", "pad_t", "pad_b")


# texture_nets' GenNoise of the first release (March 2016) has no fields, and fills three planes.
_NOISE = either(
    lambda lua: lua.has("num_planes"),
    of_runtime("dropout.GenNoise", integer("num_planes"), number("mult", 1.0)),
    of_runtime("dropout.LeadingNoise", 3),
)
_VARIATION = of_runtime("gradient.TotalVariation", number("strength"))
register_layer(
    scratch="x_diff y_diff clipped buffer bn sz sz_",
    module={
        "nn.AdaptiveInstanceNormalization": of_runtime(
            "norm.AdaptiveInstanceNormalization", eps=number("eps", 1e-5), disabled=flag("disabled")
        ),
        "nn.TotalVariation": _VARIATION,
        "nn.TVLoss": _VARIATION,
        "nn.DeepDreamLoss": of_runtime("gradient.DeepDreamLoss", number("strength", 1e-5), number("max_grad", 100.0)),
        "nn.GramMatrix": of_runtime("distance.GramMatrix", flag("normalize", True)),
        "nn.SpatialCircularPadding": of_runtime("resample.SpatialCircularPadding", _BORDERS),
        "nn.SpatialSymmetricPadding": of_runtime("resample.SpatialSymmetricPadding", _BORDERS),
        "nn.NoiseFill": of_runtime("dropout.NoiseFill", integer("num_noise_channels"), number("mult", 1.0)),
        "nn.GenNoise": _NOISE,
        "nn.DummyGradOutput": of_runtime("gradient.ZeroGrad"),
    },
    traits={"gradient.TotalVariation": Traits(output=same), "gradient.DeepDreamLoss": Traits(output=same)},
)
register_layer(
    kind="criterion",
    scratch="mse crit target",
    module={"nn.TVLossCriterion": of_runtime("criterion.TVLossCriterion")},
)
