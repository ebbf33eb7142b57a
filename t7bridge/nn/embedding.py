"""Lookup tables. Sources: nn 8726825 `LookupTable.lua`, rnn `LookupTableMaskZero.lua`, fbcunn."""

from __future__ import annotations

from .registry import param, register_layer

# weight (n, dim): torch.nn.Embedding, whose indices count from 0. LookupTableMaskZero has a row more, the first, which
# is zero and stands for index 0. Before 2015-06 the sizes stood in the field size.
register_layer(
    "nn.LookupTable",
    "nn.LookupTableMaskZero",
    "nn.LookupTableGPU",
    params=(param("weight"),),
    defaults={"paddingValue": 0.0, "shouldScaleGradByFreq": False},
    scratch="inputs size batchSize",
)
