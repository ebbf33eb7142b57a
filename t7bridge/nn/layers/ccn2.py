"""cuda-convnet2: the batch is the last dimension. Source: cuda-convnet2.torch ac3d213 `*.lua` and `cudaconv3`."""

from __future__ import annotations

from ..layouts import LAST, REST, Merge, Narrow, Permute, Reshape
from ..mapping import LAYERS, Call, Choice, Lua, NotMappedError, becomes, integer, of_runtime, shape
from ..registry import Traits, param, register_layer


@becomes("ccn2.SpatialConvolution")
def _convolution(lua: Lua) -> Call:
    outputs, inputs, *kernel = lua.shape("weight")
    groups = lua.integer("groups", 1)
    kwargs: dict[str, object] = {"stride": lua.integer("dH", 1), "padding": lua.integer("padding", 0)}
    if groups != 1:
        kwargs["groups"] = groups
    return Call(f"{LAYERS}ccn2.SpatialConvolution", (inputs * groups, outputs, tuple(kernel)), kwargs)


# (in / groups * kH * kW, out).
register_layer(
    "ccn2.SpatialConvolution",
    params=(param("weight", Reshape((REST, "kH", "kH", LAST)), Permute((3, 0, 1, 2))), param("bias")),
    defaults={"groups": 1.0, "padding": 0.0},
    module=_convolution,
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


def _response(across: bool) -> Choice:
    @becomes("ccn2.SpatialResponseNormalization")
    def module(lua: Lua) -> Call:
        if lua.flag("blocked"):
            raise NotMappedError("normalizes blocks of planes", path=lua.path)
        kwargs = {"beta": float(lua.number("powScale", 0.75)), "k": float(lua.number("minDiv", 1.0)), "across": across}
        arguments = (lua.integer("size"), float(lua.number("addScale")))
        return Call(f"{LAYERS}ccn2.SpatialResponseNormalization", arguments, kwargs)

    return module


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
