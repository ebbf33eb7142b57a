"""Functions of PyTorch that `save_module` writes as classes of `layers.lua`. Source: `workshop/lua/classes.lua`."""

from __future__ import annotations

from t7bridge.layers import (
    Lua,
    Traits,
    axes,
    dim,
    flag,
    flows,
    of_class,
    pair,
    register_layer,
    same,
)

_OF_ONE = "sin cos tan asin acos atan sinh cosh asinh atanh floor ceil trunc round isnan isinf"
_OF_TWO = "atan2 pow fmod remainder floor_divide trunc_divide"


def _function_of_one(lua: Lua) -> str:
    return _name_among(lua, _OF_ONE.split())


def _function_of_two(lua: Lua) -> str:
    return _name_among(lua, _OF_TWO.split())


def _name_among(lua: Lua, names: list[str]) -> str:
    """Return the name of a function of PyTorch, which is one that the class has in Lua."""
    name = lua.text("name")
    if name not in names:
        raise lua.wrong("name", f"one of {', '.join(names)}", lua.get("name"))
    return name


def _mode(lua: Lua) -> str:
    return lua.text("mode")


def _padding(lua: Lua) -> str:
    return lua.text("padding")


_WINDOWS = tuple(axes(prefix, 2) for prefix in ("k", "d", "pad", "dilation"))
_LIST = Traits(takes_list=True)
register_layer(
    module={
        "pt.Function": of_class(".modules.Function", _function_of_one),
        "pt.Binary": of_class(".modules.Pairwise", _function_of_two),
        "pt.CumProd": of_class(".modules.CumProd", dim("dim")),
        "pt.Sort": of_class(".modules.Sort", dim("dim"), flag("descending")),
        "pt.ArgMax": of_class(".modules.Extremum", dim("dim"), flag("smallest")),
        "pt.Gather": of_class(".modules.Gather", dim("dim")),
        "pt.Scatter": of_class(".modules.Scatter", dim("dim"), flag("adds")),
        "pt.Fold": of_class(".modules.Fold", pair("height", "width"), *_WINDOWS),
        "pt.GridSample": of_class(
            ".modules.GridSample", _mode, _padding, flag("align")
        ),
        "pt.MaxPlaces": of_class(".modules.MaxPlaces", *_WINDOWS, flag("ceil_mode")),
        "pt.Convolution": of_class(
            ".modules.Convolution", axes("d", 2), axes("pad", 2), axes("dilation", 2)
        ),
    },
    traits={
        ".modules.Function": Traits(output=same),
        ".modules.Pairwise": _LIST,
        ".modules.CumProd": Traits(output=same),
        ".modules.Sort": Traits(returns_list=True, flow=flows.tensors),
        ".modules.Gather": _LIST,
        ".modules.Scatter": _LIST,
        ".modules.GridSample": _LIST,
        ".modules.Convolution": _LIST,
    },
)
