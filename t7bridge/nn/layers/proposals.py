"""Object mask proposals. Source: deepmask 280a716 `DeepMask.lua`, `SharpMask.lua`."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.lua import Table, TorchObject
from .. import flows
from ..mapping import LAYERS, Call, Lua, becomes, of_runtime
from ..registry import Child, Traits, named_modules, register_layer

register_layer(
    "nn.DeepMask",
    children=named_modules("trunk", "maskBranch", "scoreBranch"),
    module=of_runtime("containers.DeepMask"),
    traits={"containers.DeepMask": Traits(flow=flows.tensors)},
)


def _refinements(obj: TorchObject) -> Iterator[Child]:
    """Return the refinement steps, 0-based in Lua; they contain their modules."""
    yield from named_modules("trunk", "scoreBranch", "maskBranchDM")(obj)
    refs = obj.get("refs")
    number = 0
    while isinstance(refs, Table) and (ref := refs.get(float(number))) is not None:
        yield Child(f"ref{number}", f".refs[{number}]", ref)
        number += 1


@becomes("containers.SharpMask")
def _sharp_mask(lua: Lua) -> Call:
    skips = tuple(place - 1 for place in lua.sizes("skpos"))
    return Call(f"{LAYERS}containers.SharpMask", (), {"skips": skips})


register_layer(
    "nn.SharpMask",
    children=_refinements,
    scratch="refs neths netvs inps",
    module=_sharp_mask,
)
