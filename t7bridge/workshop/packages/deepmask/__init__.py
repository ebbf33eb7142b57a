"""DeepMask and SharpMask. Source: deepmask 280a716 `DeepMask.lua`, `SharpMask.lua`, `SpatialSymmetricPadding.lua`."""

from __future__ import annotations

from collections.abc import Iterator

from t7bridge.layers import (
    Child,
    Lua,
    Table,
    TorchObject,
    Traits,
    flows,
    named_modules,
    of_class,
    pair,
    register_layer,
)

register_layer(
    "nn.DeepMask",
    children=named_modules("trunk", "maskBranch", "scoreBranch"),
    module=of_class(".modules.DeepMask"),
    traits=Traits(flow=flows.tensors),
)


def _refinements(obj: TorchObject) -> Iterator[Child]:
    """Yield the networks of a SharpMask, and its refinement steps, which Lua counts from 0."""
    yield from named_modules("trunk", "scoreBranch", "maskBranchDM")(obj)
    steps = obj.get("refs")
    if not isinstance(steps, Table):
        return
    number = 0
    while (step := steps.get(float(number))) is not None:
        yield Child(f"ref{number}", f".refs[{number}]", step)
        number += 1


def _skips(lua: Lua) -> tuple[int, ...]:
    """Return the modules of the trunk whose outputs the steps add, 0-based."""
    return tuple(position - 1 for position in lua.sizes("skpos"))


register_layer(
    "nn.SharpMask",
    children=_refinements,
    scratch="refs neths netvs inps",
    module=of_class(".modules.SharpMask", skips=_skips),
)
register_layer(
    "nn.SpatialSymmetricPadding",
    module=of_class(
        ".modules.SpatialSymmetricPadding", pair("pad_l", "pad_r", "pad_t", "pad_b")
    ),
)
