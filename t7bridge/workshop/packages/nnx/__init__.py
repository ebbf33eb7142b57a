"""nnx. Source: 1c28e23 `*.lua` and `generic/*.c`."""

from __future__ import annotations

from typing import Any

from t7bridge.layers import (
    Lua,
    NotMappedError,
    dim,
    number,
    of_class,
    of_torch,
    pair,
    register_layer,
)


def _size(lua: Lua) -> tuple[int | None, int | None]:
    return lua.optional("oheight"), lua.optional("owidth")


def _ratio(lua: Lua) -> tuple[float, float] | None:
    """Return the ratio, unless there is a size, which takes precedence; nnx stores the size of its first output."""
    if lua.has("oheight") and lua.has("owidth"):
        return None
    return float(lua.number("rheight", 1.0)), float(lua.number("rwidth", 1.0))


def _mode(lua: Lua) -> str:
    mode = lua.text("mode", "simple")
    if mode not in ("simple", "average", "bilinear"):
        raise NotMappedError("its mode is unknown", path=lua.path, found=mode)
    return mode


_SIZES: dict[str, Any] = {"size": _size, "ratio": _ratio}
_IDENTITY = of_torch("Identity")
register_layer(
    scratch="inputSize outputSize indices",
    module={
        "nn.SpatialUpSampling": of_class(
            ".modules.SpatialUpSampling", pair("dH", "dW"), rows=dim("yDim", 1)
        ),
        "nn.SpatialDownSampling": of_class(
            ".modules.SpatialDownSampling", pair("rH", "rW")
        ),
        "nn.SpatialReSampling": of_class(".modules.SpatialReSampling", **_SIZES),
        "nn.SpatialReSamplingEx": of_class(
            ".modules.SpatialReSamplingEx",
            _mode,
            **_SIZES,
            rows=dim("yDim", 1).unless(1),
        ),
        "nn.SpatialMaxSampling": of_class(
            ".modules.SpatialMaxSampling", pair("oheight", "owidth")
        ),
        "nn.SaturatedLU": of_class(
            ".modules.SaturatedLU",
            number("threshold", -1.0),
            number("val", -1.0),
            number("threshold2", 1.0),
            number("val2", 1.0),
        ),
        "nn.Minus": of_class(".modules.Minus"),
        "nn.MultiSoftMax": of_torch("Softmax", -1),
        "nn.Probe": _IDENTITY,
        "nn.Tic": _IDENTITY,
        "nn.Toc": _IDENTITY,
    },
)
