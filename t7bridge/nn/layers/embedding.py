"""Lookup tables. Sources: nn 8726825 `LookupTable.lua`, rnn `LookupTableMaskZero.lua`, fbcunn."""

from __future__ import annotations

from ..mapping import LAYERS, Call, Lua, becomes
from ..registry import Traits, param, register_layer


@becomes("linear.LookupTable", "torch.nn.Embedding")
def _lookup_table(lua: Lua) -> Call:
    """Map to torch.nn.Embedding with 0-based indices."""
    masked = lua.obj.class_name.endswith("MaskZero")
    padding = 0 if masked else lua.integer("paddingValue", 0) - 1
    kwargs: dict[str, object] = {}
    if padding >= 0:
        kwargs["padding_idx"] = padding
    if lua.has("maxNorm") and lua.get("maxNorm") is not False:
        kwargs["max_norm"] = lua.number("maxNorm")
        kwargs["norm_type"] = lua.number("normType", 2.0)
    if lua.flag("shouldScaleGradByFreq"):
        kwargs["scale_grad_by_freq"] = True
    base = 0 if masked else lua.index_base
    if base == 0 and not masked:
        return Call("torch.nn.Embedding", lua.shape("weight"), kwargs)
    return Call(f"{LAYERS}linear.LookupTable", lua.shape("weight"), {**kwargs, "index_base": base})


# weight (n, dim): torch.nn.Embedding, with 0-based indices. LookupTableMaskZero has an extra first row, which is zero
# and has index 0. Before 2015-06 the sizes were in the field size. `Embedding` is a class of many programs of 2015,
# among them relatives of char-rnn.
register_layer(
    "nn.LookupTable",
    "nn.LookupTableGPU",
    "nn.Dictionary",
    "nn.Embedding",
    "Embedding",
    params=(param("weight"),),
    defaults={"paddingValue": 0.0, "shouldScaleGradByFreq": False},
    scratch="inputs size batchSize",
    module=_lookup_table,
    traits={
        "linear.LookupTable": Traits(written=("look_up",), like="Embedding"),
    },
)
