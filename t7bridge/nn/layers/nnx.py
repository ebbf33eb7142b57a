"""nnx: image resizing, and small layers. Source: nnx 1c28e23 `*.lua` and `generic/*.c`."""

from __future__ import annotations

from typing import Any

from ..mapping import LAYERS, Call, Lua, NotMappedError, becomes, dim, number, of_runtime, of_torch, pair
from ..registry import register_layer


def _size(lua: Lua) -> dict[str, Any]:
    """Return the output size: a size takes precedence over a ratio; nnx stores the size of its first output."""
    kwargs: dict[str, Any] = {"size": (lua.optional("oheight"), lua.optional("owidth"))}
    if None in kwargs["size"]:
        ratio = (float(lua.number("rheight", 1.0)), float(lua.number("rwidth", 1.0)))
        kwargs["ratio"] = ratio
    return kwargs


@becomes("resample.SpatialReSampling")
def _resampling(lua: Lua) -> Call:
    return Call(f"{LAYERS}resample.SpatialReSampling", (), _size(lua))


@becomes("resample.SpatialReSamplingEx")
def _resampling_ex(lua: Lua) -> Call:
    mode = lua.text("mode", "simple")
    if mode not in ("simple", "average", "bilinear"):
        raise NotMappedError("its mode is unknown", path=lua.path, found=mode)
    kwargs = _size(lua)
    rows = lua.index0("yDim", 1)
    if rows != 1:
        kwargs["rows"] = rows
    return Call(f"{LAYERS}resample.SpatialReSamplingEx", (mode,), kwargs)


_IDENTITY = of_torch("Identity")
register_layer(
    scratch="inputSize outputSize indices",
    module={
        "nn.SpatialUpSampling": of_runtime("resample.SpatialUpSampling", pair("dH", "dW"), rows=dim("yDim", 1)),
        "nn.SpatialDownSampling": of_runtime("resample.SpatialDownSampling", pair("rH", "rW")),
        "nn.SpatialReSampling": _resampling,
        "nn.SpatialReSamplingEx": _resampling_ex,
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
