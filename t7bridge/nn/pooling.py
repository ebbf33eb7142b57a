"""Pooling, padding and resampling: nothing is kept. Sources: nn 8726825, inn, nnx, cudnn.torch."""

from __future__ import annotations

from .registry import register_layer

_WHERE = "pooling ones random_samples randomSamples"

register_layer(
    "nn.SpatialMaxPooling",
    "nn.SpatialDilatedMaxPooling",
    "nn.VolumetricMaxPooling",
    "nn.VolumetricDilatedMaxPooling",
    defaults={"padT": 0.0, "padW": 0.0, "padH": 0.0, "ceil_mode": False},
)
_AVERAGE = {"padT": 0.0, "padW": 0.0, "padH": 0.0, "ceil_mode": False, "count_include_pad": True}
# Before 2015-03 there was no `divide`, and pooling was a sum; the other two never had the field, and average.
register_layer("nn.SpatialAveragePooling", defaults={**_AVERAGE, "divide": False})
register_layer(
    "nn.VolumetricAveragePooling",
    "cudnn.SpatialAveragePooling",
    "cudnn.VolumetricAveragePooling",
    defaults={**_AVERAGE, "divide": True},
)
register_layer(
    "nn.FeatureLPPooling",
    "nn.SpatialAdaptiveAveragePooling",
    "nn.SpatialAdaptiveMaxPooling",
    "nn.SpatialFractionalMaxPooling",
    "nn.SpatialMaxUnpooling",
    "nn.TemporalDynamicKMaxPooling",
    "nn.TemporalMaxPooling",
    "nn.VolumetricFractionalMaxPooling",
    "nn.VolumetricMaxUnpooling",
    "cudnn.Pooling",
    "inn.ROIPooling",
    "inn.SpatialAveragePooling",
    "inn.SpatialMaxPooling",
    "inn.SpatialPyramidPooling",
    "inn.SpatialStochasticPooling",
    scratch=_WHERE,
)
register_layer(
    "nn.SpatialReflectionPadding",
    "nn.SpatialReplicationPadding",
    "nn.SpatialSymmetricPadding",
    "nn.SpatialZeroPadding",
    "nn.SpatialPadding",
    "nn.VolumetricReplicationPadding",
    "nn.Padding",
    "nn.ShaveImage",
    "nn.SpatialUniformCrop",
    "nn.SpatialUpSampling",
    "nn.SpatialUpSamplingBilinear",
    "nn.SpatialUpSamplingNearest",
    "nn.SpatialReSampling",
    "nn.SpatialReSamplingEx",
    "nn.UpSampling",
    "nn.PixelShuffle",
)
register_layer(
    "nn.SpatialCrossMapLRN",
    "inn.SpatialCrossResponseNormalization",
    "inn.SpatialSameResponseNormalization",
    "nn.Normalize",
    scratch="paddedRatio accumRatio scale cross norm normp buffer2 meanestimator stdestimator kernel",
)
