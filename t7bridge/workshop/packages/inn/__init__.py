"""imagine-nn. Source: 6fed930 and its history."""

from __future__ import annotations

from typing import Any

from t7bridge.layers import (
    BASE,
    Fields,
    Lua,
    Narrow,
    Param,
    Traits,
    axes,
    buffer,
    children_at,
    extent,
    flag,
    integer,
    keeps,
    made,
    modules,
    number,
    of_class,
    of_runtime,
    of_torch,
    pair,
    register_layer,
    shape,
)

# Channel-wise scale and offset, not learned.
register_layer(
    "inn.ConstAffine",
    "nn.ConstAffine",
    "nn.SpatialConstDiagonal",
    params=(buffer("a"), buffer("b")),
    scratch="repeated",
    module=of_class(".modules.ConstAffine", extent("a")),
    traits=Traits(shapes=lambda features: {"a": (features,), "b": (features,)}),
)


@keeps("mean", "std")
def _mean(fields: Fields) -> tuple[Param, ...]:
    """Return the mean: Lua repeats it for the images of its last batch."""
    mean = fields.find_tensor("mean")
    is_repeated = mean is not None and len(mean.size) == 4
    first = (Narrow(dim=0, start=0, length=1),) if is_repeated else ()
    return (buffer("mean", *first), buffer("std"))


register_layer(
    "inn.MeanSubtraction",
    params=_mean,
    module=of_class(".modules.MeanSubtraction", shape("mean")),
    traits=Traits(shapes=lambda shape: {"mean": shape}),
)


def _steps(lua: Lua) -> tuple[int, int]:
    """Return the steps of windows, by default the sizes of these."""
    return lua.integer("dH", lua.integer("kH")), lua.integer("dW", lua.integer("kW"))


# Both poolings round the extent of the output up, whatever the inherited field says.
_WINDOWS: dict[str, Any] = {
    "kernel_size": axes("k", 2),
    "stride": made(_steps),
    "padding": axes("pad", 2, 0),
    "ceil_mode": True,
}

register_layer(
    module={
        "inn.SpatialMaxPooling": of_torch("MaxPool2d", **_WINDOWS),
        "inn.SpatialAveragePooling": of_torch(
            "AvgPool2d",
            **_WINDOWS,
            count_include_pad=flag("count_include_pad", True).unless(True),
        ),
    },
)


# Until 2015-12 it contained an nn.Concat; later the class is one.
register_layer(
    "inn.SpatialPyramidPooling",
    children=children_at("modules", "module.modules", "module"),
    scratch="module pyr",
    module=of_runtime("containers.Concat", dim=-1),
)
# A graph of nn's layers, in a Sequential under `modules` until 2015-12.
register_layer(
    "inn.SpatialSameResponseNormalization",
    children=modules,
    module=of_torch("Sequential"),
)
register_layer(
    scratch="paddedRatio accumRatio scale",
    module={
        "inn.SpatialCrossResponseNormalization": of_runtime(
            "norm.LocalResponseNorm",
            integer("size"),
            plain="LocalResponseNorm",
            alpha=number("alpha", 1e-4),
            beta=number("beta", 0.75),
            k=number("k", 1.0),
        ),
        "inn.SpatialStochasticPooling": of_class(
            ".modules.SpatialStochasticPooling", pair("kH", "kW"), pair("dH", "dW")
        ),
        # Before `v2` the last row and column of a box belonged to it.
        "inn.ROIPooling": of_class(
            ".modules.ROIPooling",
            pair("H", "W"),
            scale=number("spatial_scale", 1.0),
            open_end=flag("v2"),
            index_base=BASE,
        ),
    },
)
