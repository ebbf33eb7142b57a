"""Functions of PyTorch that `save_module` writes as classes of `layers.lua`, see `lua/classes.lua`."""

from __future__ import annotations

from .. import flows
from ..mapping import axes, dim, flag, made, of_runtime, pair
from ..output_shapes import same
from ..registry import Traits, register_layer

_NAME = made(lambda lua: lua.text("name"))

register_layer(
    module={
        "pt.Function": of_runtime("functions.Function", _NAME),
        "pt.Binary": of_runtime("functions.Pairwise", _NAME),
        "pt.CumProd": of_runtime("functions.CumProd", dim("dim")),
        "pt.Sort": of_runtime("functions.Sort", dim("dim"), flag("descending")),
        "pt.ArgMax": of_runtime("functions.Extremum", dim("dim"), flag("smallest")),
        "pt.Gather": of_runtime("functions.Gather", dim("dim")),
        "pt.Scatter": of_runtime("functions.Scatter", dim("dim"), flag("adds")),
        "pt.Fold": of_runtime(
            "functions.Fold", pair("height", "width"), *(axes(name, 2) for name in ("k", "d", "pad", "dilation"))
        ),
        "pt.GridSample": of_runtime(
            "functions.GridSample",
            made(lambda lua: lua.text("mode")),
            made(lambda lua: lua.text("padding")),
            flag("align"),
        ),
        "pt.MaxPlaces": of_runtime(
            "functions.MaxPlaces", *(axes(name, 2) for name in ("k", "d", "pad", "dilation")), flag("ceil_mode")
        ),
        "pt.Convolution": of_runtime("functions.Convolution", axes("d", 2), axes("pad", 2), axes("dilation", 2)),
    },
    traits={
        "functions.Function": Traits(output=same),
        "functions.Pairwise": Traits(takes_list=True),
        "functions.CumProd": Traits(output=same),
        "functions.Sort": Traits(returns_list=True, flow=flows.tensors),
        "functions.Gather": Traits(takes_list=True),
        "functions.Scatter": Traits(takes_list=True),
        "functions.GridSample": Traits(takes_list=True),
        "functions.Convolution": Traits(takes_list=True),
    },
)
