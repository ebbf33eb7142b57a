"""Recognition of text lines. Source: crnn f5d41e3."""

from __future__ import annotations

from t7bridge.layers import (
    Traits,
    flag,
    flows,
    integer,
    named_modules,
    of_class,
    register_layer,
)

register_layer(
    "nn.LstmLayer",
    children=named_modules("lstmUnit"),
    scratch="rnnState drnnState initState",
    module=of_class(
        ".modules.LstmLayer", hidden_size=integer("nHidden"), reverse=flag("reverse")
    ),
    traits=Traits(flow=flows.tensors),
)
register_layer(
    "nn.BiRnnJoin",
    children=named_modules("joinUnit"),
    module=of_class(".modules.BiRnnJoin"),
    traits=Traits(flow=flows.tensors),
)
