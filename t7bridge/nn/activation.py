"""Transfer functions: PReLU learns, the others keep nothing. Source: nn 8726825, one Lua file a class."""

from __future__ import annotations

from .registry import param, register_layer

# weight (planes), or (1) where all planes share it: torch.nn.PReLU.
register_layer("nn.PReLU", params=(param("weight"),), defaults={"nOutputPlane": 0.0})

_NOISE = "noise mininput tempgrad temp tanh"
register_layer("nn.ReLU", "nn.Threshold", defaults={"threshold": 1e-6, "val": 0.0, "inplace": False})
register_layer("nn.LeakyReLU", "w2nn.LeakyReLU", defaults={"negval": 0.01, "inplace": False})
register_layer(
    "nn.ReLU6",
    "nn.ELU",
    "nn.RReLU",
    "nn.HardTanh",
    "nn.HardShrink",
    "nn.SoftShrink",
    "nn.SoftMax",
    "nn.SoftMin",
    "nn.SoftPlus",
    "nn.SoftSign",
    "nn.LogSigmoid",
    "nn.LogSoftMax",
    "nn.SpatialSoftMax",
    "nn.SpatialLogSoftMax",
    "nn.Sigmoid",
    "nn.Tanh",
    "nn.TanhShrink",
    "nn.Abs",
    "nn.Clamp",
    "nn.Exp",
    "nn.Log",
    "nn.Power",
    "nn.Sqrt",
    "nn.Square",
    "nn.GatedLinearUnit",
    "nn.Clip",
    "cudnn.ClippedReLU",
    "cudnn.Pointwise",
    "cudnn.VolumetricSoftMax",
    "cudnn.VolumetricLogSoftMax",
    "w2nn.InplaceClip01",
    "bnn.Binary",
    defaults={"inplace": False},
    scratch=_NOISE,
)
register_layer("nn.Dropout", defaults={"v2": False, "p": 0.5, "inplace": False, "stochastic_inference": False})
register_layer(
    "nn.SpatialDropout",
    "nn.VolumetricDropout",
    "nn.TotalDropout",
    "nn.SpatialRegionDropout",
    "nn.WhiteNoise",
    "nn.GradientReversal",
    "nn.L1Penalty",
    "nn.ZeroGrad",
    defaults={"stochastic_inference": False, "lambda": 1.0},
    scratch=_NOISE,
)
