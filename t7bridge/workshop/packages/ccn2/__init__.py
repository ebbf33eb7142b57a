"""cuda-convnet2: images are (planes, h, w, batch). Source: cuda-convnet2.torch ac3d213 `*.lua` and `cudaconv3`."""

from __future__ import annotations

from t7bridge.layers import (
    LAST,
    REST,
    Lua,
    Merge,
    Narrow,
    NotMappedError,
    Permute,
    Reshape,
    Row,
    Traits,
    extent,
    integer,
    made,
    number,
    of_class,
    param,
    register_layer,
    shape,
)

# (in / groups * kH * kW, out).
register_layer(
    "ccn2.SpatialConvolution",
    params=(
        param("weight", Reshape((REST, "kH", "kH", LAST)), Permute((3, 0, 1, 2))),
        param("bias"),
    ),
    module=of_class(
        ".modules.SpatialConvolution",
        made(lambda lua: lua.shape("weight")[1] * lua.integer("groups", 1)),
        extent("weight"),
        made(lambda lua: lua.shape("weight")[2:]),
        stride=integer("dH", 1),
        padding=integer("padding", 0),
        groups=integer("groups", 1).unless(1),
    ),
    traits=Traits(axes="chwb"),
)
# (oH * oH * in * kH * kH, out). The bias has an element for every position, but only as many as planes are read.
register_layer(
    "ccn2.SpatialConvolutionLocal",
    params=(
        param(
            "weight",
            Reshape(("oH", "oH", "nInputPlane", "kH", "kH", LAST)),
            Merge(
                (0, 1, 5, 2, 3, 4),
                ("oH", "oH", "nOutputPlane", "nInputPlane", "kH", "kH"),
            ),
        ),
        param("bias", Narrow(dim=0, start=0, length="nOutputPlane")),
    ),
    module=of_class(
        ".modules.SpatialConvolutionLocal",
        shape("weight"),
        integer("dH", 1),
        integer("padding", 0),
    ),
    traits=Traits(
        shapes=lambda shape, *_: {"weight": shape, "bias": (shape[2],)}, axes="chwb"
    ),
)


def _scale(lua: Lua) -> float:
    if lua.flag("blocked"):
        raise NotMappedError("normalizes blocks of planes", path=lua.path)
    return float(lua.number("addScale"))


def _response(across: bool) -> Row:
    """Map a normalization over the neighbours of an element: in its plane, or `across` the planes."""
    return of_class(
        ".modules.SpatialResponseNormalization",
        integer("size"),
        _scale,
        beta=number("powScale", 0.75),
        k=number("minDiv", 1.0),
        across=across,
    )


register_layer(
    scratch="denoms",
    module={
        "ccn2.SpatialMaxPooling": of_class(
            ".modules.SpatialMaxPooling", integer("kW"), integer("dW")
        ),
        "ccn2.SpatialAvgPooling": of_class(
            ".modules.SpatialAvgPooling", integer("kW"), integer("dW")
        ),
        "ccn2.SpatialCrossMaxPooling": of_class(
            ".modules.SpatialCrossMaxPooling", integer("kD"), integer("dD")
        ),
        "ccn2.SpatialResponseNormalization": _response(across=False),
        "ccn2.SpatialCrossResponseNormalization": _response(across=True),
    },
)
