"""Lookup tables. Sources: nn 8726825 `LookupTable.lua`, rnn `LookupTableMaskZero.lua`, fbcunn."""

from __future__ import annotations

from typing import Any

from ..mapping import BASE, Lua, Read, either, flag, made, of_runtime, of_torch, shape
from ..registry import Traits, param, register_layer


def _padding(lua: Lua) -> int | None:
    row = lua.integer("paddingValue", 0) - 1
    return row if row >= 0 else None


def _norm(field: str, default: float | None = None) -> Read:
    """Read an option of the limit of the norms, which does not apply if there is none."""
    return made(lambda lua: lua.number(field, default) if lua.flag("maxNorm") else None).unless(None)


_OPTIONS: dict[str, Any] = {
    "padding_idx": made(_padding).unless(None),
    "max_norm": _norm("maxNorm"),
    "norm_type": _norm("normType", 2.0),
    "scale_grad_by_freq": flag("shouldScaleGradByFreq").unless(False),
}
_LOOK_UP = either(
    lambda lua: lua.index_base,
    of_runtime("linear.LookupTable", shape("weight").each, **_OPTIONS, index_base=BASE),
    of_torch("Embedding", shape("weight").each, **_OPTIONS),
)
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
    module=_LOOK_UP,
    traits=Traits(written=("look_up",), like="Embedding"),
)
