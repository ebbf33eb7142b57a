"""nnx: image resizing, and small layers. Source: nnx 1c28e23 `*.lua` and `generic/*.c`."""

from __future__ import annotations

from typing import Any

from ..mapping import Lua, NotMappedError, dim, made, number, of_runtime, of_torch, pair
from ..registry import register_layer


def _ratio(lua: Lua) -> tuple[float, float] | None:
    """Return the ratio, unless there is a size, which takes precedence; nnx stores the size of its first output."""
    if lua.has("oheight") and lua.has("owidth"):
        return None
    return (float(lua.number("rheight", 1.0)), float(lua.number("rwidth", 1.0)))


def _mode(lua: Lua) -> str:
    mode = lua.text("mode", "simple")
    if mode not in ("simple", "average", "bilinear"):
        raise NotMappedError("its mode is unknown", path=lua.path, found=mode)
    return mode


_SIZE: dict[str, Any] = {
    "size": made(lambda lua: (lua.optional("oheight"), lua.optional("owidth"))),
    "ratio": made(_ratio).unless(None),
}
_IDENTITY = of_torch("Identity")
register_layer(
    scratch="inputSize outputSize indices",
    module={
        "nn.SpatialUpSampling": of_runtime("resample.SpatialUpSampling", pair("dH", "dW"), rows=dim("yDim", 1)),
        "nn.SpatialDownSampling": of_runtime("resample.SpatialDownSampling", pair("rH", "rW")),
        "nn.SpatialReSampling": of_runtime("resample.SpatialReSampling", **_SIZE),
        "nn.SpatialReSamplingEx": of_runtime(
            "resample.SpatialReSamplingEx", made(_mode), **_SIZE, rows=dim("yDim", 1).unless(1)
        ),
        "nn.SpatialMaxSampling": of_runtime("resample.SpatialMaxSampling", pair("oheight", "owidth")),
        "nn.SaturatedLU": of_runtime(
            "activation.SaturatedLU",
            number("threshold", -1.0),
            number("val", -1.0),
            number("threshold2", 1.0),
            number("val2", 1.0),
        ),
        "nn.Minus": of_runtime("activation.Minus"),
        "nn.MultiSoftMax": of_torch("Softmax", -1),
        "nn.Probe": _IDENTITY,
        "nn.Tic": _IDENTITY,
        "nn.Toc": _IDENTITY,
    },
)
