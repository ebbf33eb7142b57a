"""cuda-convnet2: the batch is the last dimension. Source: cuda-convnet2.torch ac3d213 `*.lua` and `cudaconv3`."""

from __future__ import annotations

from typing import Any

from ..layouts import LAST, REST, Merge, Narrow, Permute, Reshape
from ..mapping import Lua, NotMappedError, Row, extent, integer, made, number, of_runtime, shape
from ..registry import Traits, param, register_layer

_CONVOLUTION = of_runtime(
    "ccn2.SpatialConvolution",
    made(lambda lua: lua.shape("weight")[1] * lua.integer("groups", 1)),
    extent("weight"),
    made(lambda lua: lua.shape("weight")[2:]),
    stride=integer("dH", 1),
    padding=integer("padding", 0),
    groups=integer("groups", 1).unless(1),
)
# (in / groups * kH * kW, out).
register_layer(
    "ccn2.SpatialConvolution",
    params=(param("weight", Reshape((REST, "kH", "kH", LAST)), Permute((3, 0, 1, 2))), param("bias")),
    defaults={"groups": 1.0, "padding": 0.0},
    module=_CONVOLUTION,
)
# (oH * oH * in * kH * kH, out). The bias has an element for every position, but only as many as planes are read.
register_layer(
    "ccn2.SpatialConvolutionLocal",
    params=(
        param(
            "weight",
            Reshape(("oH", "oH", "nInputPlane", "kH", "kH", LAST)),
            Merge((0, 1, 5, 2, 3, 4), ("oH", "oH", "nOutputPlane", "nInputPlane", "kH", "kH")),
        ),
        param("bias", Narrow(0, 0, "nOutputPlane")),
    ),
    defaults={"padding": 0.0},
    module=of_runtime("ccn2.SpatialConvolutionLocal", shape("weight"), integer("dH", 1), integer("padding", 0)),
    traits={
        "ccn2.SpatialConvolutionLocal": Traits(shapes=lambda shape, *_: {"weight": shape, "bias": (shape[2],)}),
    },
)


def _scale(lua: Lua) -> float:
    if lua.flag("blocked"):
        raise NotMappedError("normalizes blocks of planes", path=lua.path)
    return float(lua.number("addScale"))


def _response(across: bool) -> Row:
    options: Any = {"beta": number("powScale", 0.75), "k": number("minDiv", 1.0), "across": across}
    return of_runtime("ccn2.SpatialResponseNormalization", integer("size"), made(_scale), **options)


register_layer(
    scratch="denoms",
    module={
        "ccn2.SpatialMaxPooling": of_runtime("ccn2.SpatialMaxPooling", integer("kW"), integer("dW")),
        "ccn2.SpatialAvgPooling": of_runtime("ccn2.SpatialAvgPooling", integer("kW"), integer("dW")),
        "ccn2.SpatialCrossMaxPooling": of_runtime("ccn2.SpatialCrossMaxPooling", integer("kD"), integer("dD")),
        "ccn2.SpatialResponseNormalization": _response(False),
        "ccn2.SpatialCrossResponseNormalization": _response(True),
    },
)
