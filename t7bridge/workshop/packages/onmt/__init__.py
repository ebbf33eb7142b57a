"""OpenNMT. Source: OpenNMT 3ab15e9.

Its layers are named networks: they compute what `net` computes. Encoders and decoders are loops over steps in Lua's
code and have no entry; the network of one step is a module of its own, `….network`.
"""

from __future__ import annotations

from t7bridge.layers import (
    Call,
    Lua,
    NotMappedError,
    Traits,
    becomes,
    children_at,
    dim,
    flows,
    of_class,
    optional,
    register_layer,
)

_NETWORKS = (
    "onmt.Network",
    "onmt.LSTM",
    "onmt.GRU",
    "onmt.GlobalAttention",
    "onmt.NoAttention",
    "onmt.MaskedSoftmax",
    "onmt.WordEmbedding",
    "onmt.FeaturesEmbedding",
    "onmt.Bridge",
)

_WRAPPER = of_class(".modules.Wrapper")
_WRAPPER_OF_FIRST = of_class(".modules.Wrapper", first=True)

# Older files have it only in `modules`.
_NET = children_at("net", "modules.1", name="net")


@becomes(".modules.Wrapper")
def _network(lua: Lua) -> Call:
    if not any(_NET(lua.obj)):
        raise NotMappedError("has no network, as it transfers nothing", path=lua.path)
    return _WRAPPER(lua)


register_layer(
    children=_NET,
    scratch="modules rindexLinear args",
    module={
        **dict.fromkeys(_NETWORKS, _network),
        "onmt.Generator": _WRAPPER_OF_FIRST,
        "onmt.FeaturesGenerator": _WRAPPER_OF_FIRST,
    },
    traits=Traits(flow=flows.unknown),
)
register_layer(
    "onmt.JoinReplicateTable",
    scratch="noiseInit sharedNoise size",
    module=of_class(
        ".modules.JoinReplicateTable",
        dim("dimensionReplicate"),
        dim("dimensionJoin"),
        n_input_dims=optional("nInputDims"),
    ),
)
