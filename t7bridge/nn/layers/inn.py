"""imagine-nn: layers of object detectors. Sources: imagine-nn 6fed930 and its history, deepmask 280a716."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...graph.lua import TorchObject
from ..fields import Fields, items_of, lookup
from ..layouts import Narrow
from ..mapping import BASE, extent, flag, integer, number, of_runtime, of_torch, pair, shape
from ..registry import Child, Param, Traits, buffer, keeps, modules, register_layer
from .pooling import windows

# Channel-wise scale and offset, not learned.
register_layer(
    "inn.ConstAffine",
    "nn.ConstAffine",
    "nn.SpatialConstDiagonal",
    params=(buffer("a"), buffer("b")),
    scratch="repeated",
    module=of_runtime("linear.ConstAffine", extent("a")),
    traits={"linear.ConstAffine": Traits(shapes=lambda features: {"a": (features,), "b": (features,)})},
)


@keeps("mean", "std")
def _mean(fields: Fields) -> tuple[Param, ...]:
    """Return the mean: Lua repeats it for the images of its last batch."""
    mean = fields.find_tensor("mean")
    first = (Narrow(0, 0, 1),) if mean is not None and len(mean.size) == 4 else ()
    return (buffer("mean", *first), buffer("std"))


register_layer(
    "inn.MeanSubtraction",
    params=_mean,
    module=of_runtime("linear.MeanSubtraction", shape("mean")),
    traits={"linear.MeanSubtraction": Traits(shapes=lambda shape: {"mean": shape})},
)


_CEILED: dict[str, Any] = {**windows(2), "ceil_mode": True}
"""Both classes round up, whatever the inherited field says."""

register_layer(
    defaults={"padW": 0.0, "padH": 0.0, "count_include_pad": True},
    module={
        "inn.SpatialMaxPooling": of_torch("MaxPool2d", **_CEILED),
        "inn.SpatialAveragePooling": of_torch(
            "AvgPool2d", **_CEILED, count_include_pad=flag("count_include_pad", True).unless(True)
        ),
    },
)


def _pyramid(obj: TorchObject) -> Iterator[Child]:
    """Map pyramid pooling: until 2015-12 it contained an nn.Concat; later the class is one."""
    inside = lookup(obj, "module.modules")
    if items_of(obj.get("modules")) or items_of(inside) is None:
        yield from modules(obj)
        return
    for at, value in enumerate(items_of(inside) or ()):
        yield Child(str(at), f".module.modules[{at + 1}]", value)


register_layer(
    "inn.SpatialPyramidPooling",
    children=_pyramid,
    scratch="module pyr",
    module=of_runtime("containers.Concat", dim=-1),
)
# A graph of nn's layers, in a Sequential under `modules` until 2015-12.
register_layer("inn.SpatialSameResponseNormalization", children=modules, module=of_torch("Sequential"))
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
        "inn.SpatialStochasticPooling": of_runtime(
            "pooling.SpatialStochasticPooling", pair("kH", "kW"), pair("dH", "dW")
        ),
        # Before `v2` the last row and column of a box belonged to it.
        "inn.ROIPooling": of_runtime(
            "pooling.ROIPooling",
            pair("H", "W"),
            scale=number("spatial_scale", 1.0),
            open_end=flag("v2"),
            index_base=BASE,
        ),
    },
)
