"""Models of language and of text lines, and OpenNMT's wrappers.

Sources: neuraltalk2 bd8c9d8, torch-rnn 6e72b86, crnn f5d41e3, OpenNMT 3ab15e9.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.lua import TorchObject
from .. import flows
from ..fields import items_of, lookup
from ..mapping import (
    BASE,
    LAYERS,
    Call,
    Lua,
    NotMappedError,
    becomes,
    dim,
    either,
    flag,
    integer,
    made,
    of_runtime,
    optional,
)
from ..registry import Child, Traits, named_modules, register_layer


def _views(lua: Lua) -> tuple[int, ...]:
    """Return where the network of a torch-rnn model merges steps and sequences, and splits them."""
    inside = items_of(lua.get("net.modules")) or []
    return tuple(at for at, each in enumerate(inside) if isinstance(each, TorchObject) and each.class_name == "nn.View")


def _size(lua: Lua) -> int:
    if not lua.has("core"):
        raise NotMappedError("has neither a core nor a net", path=lua.path)
    return lua.integer("rnn_size")


_TEXT_MODEL = of_runtime("sequence.TextModel", views=made(_views))
# neuraltalk2 has a class of this name with a `core`, torch-rnn one with a `net`.
_LANGUAGE_MODEL = either(
    lambda lua: lua.has("net"),
    _TEXT_MODEL,
    of_runtime(
        "sequence.CaptionModel",
        state_size=made(_size),
        states=made(lambda lua: 2 * lua.integer("num_layers", 1)),
        last=made(lambda lua: lua.integer("vocab_size") + lua.index_base),
        index_base=BASE,
    ),
)


def _steps(obj: TorchObject) -> Iterator[Child]:
    """Return the modules of the network of a torch-rnn model."""
    for at, value in enumerate(items_of(lookup(obj, "net.modules")) or ()):
        yield Child(str(at), f".net.modules[{at + 1}]", value)


def _words(obj: TorchObject) -> Iterator[Child]:
    """Return the modules of a language model: all steps share the weights of `core` and `lookup_table`."""
    yield from _steps(obj) if obj.get("net") is not None else named_modules("core", "lookup_table")(obj)


register_layer(
    "nn.LanguageModel",
    children=_words,
    scratch="net rnns view1 view2 bn_view_in bn_view_out lookup_tables lookup_tables_inputs init_state state inputs",
    module=_LANGUAGE_MODEL,
)


register_layer(
    "nn.TemporalAdapter",
    children=_steps,
    scratch="net view_in view_out",
    module=_TEXT_MODEL,
)
register_layer(module={"nn.FeatExpander": of_runtime("shape.FeatExpander", integer("n"))})
register_layer(
    kind="criterion",
    scratch="lsm grad_logprobs losses",
    module={
        "nn.LanguageModelCriterion": of_runtime("classes.CaptionCriterion", index_base=BASE),
        "nn.TemporalCrossEntropyCriterion": of_runtime(
            "classes.TemporalCrossEntropyCriterion",
            flag("batch_average", True),
            flag("time_average"),
            index_base=BASE,
        ),
    },
)
register_layer(
    "nn.LstmLayer",
    children=named_modules("lstmUnit"),
    scratch="rnnState drnnState initState",
    module=of_runtime("sequence.LstmLayer", hidden_size=integer("nHidden"), reverse=flag("reverse")),
    traits={"sequence.LstmLayer": Traits(flow=flows.tensors)},
)
register_layer(
    "nn.BiRnnJoin",
    children=named_modules("joinUnit"),
    module=of_runtime("sequence.BiRnnJoin"),
    traits={"sequence.BiRnnJoin": Traits(flow=flows.tensors)},
)

# OpenNMT's layers are named networks: they compute what `net` computes. Encoders and decoders are loops over steps in
# Lua's code and have no entry; the network of one step is a module of its own, `….network`.
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


def _net(obj: TorchObject) -> Iterator[Child]:
    """Return `net`, which older files have only in `modules`."""
    listed = items_of(obj.get("modules")) or []
    if obj.get("net") is not None:
        yield Child("net", ".net", obj.get("net"))
    elif listed:
        yield Child("net", ".modules[1]", listed[0])


@becomes("containers.Wrapper")
def _network(lua: Lua) -> Call:
    if not any(True for _ in _net(lua.obj)):
        raise NotMappedError("has no network, as it transfers nothing", path=lua.path)
    return Call(f"{LAYERS}containers.Wrapper")


register_layer(
    children=_net,
    scratch="modules rindexLinear args",
    module={
        **dict.fromkeys(_NETWORKS, _network),
        "onmt.Generator": of_runtime("containers.Wrapper", first=True),
        "onmt.FeaturesGenerator": of_runtime("containers.Wrapper", first=True),
    },
    traits={"containers.Wrapper": Traits(flow=flows.unknown)},
)
register_layer(
    scratch="noiseInit sharedNoise size",
    module={
        "onmt.JoinReplicateTable": of_runtime(
            "table.JoinReplicateTable",
            dim("dimensionReplicate"),
            dim("dimensionJoin"),
            n_input_dims=optional("nInputDims"),
        ),
    },
)
