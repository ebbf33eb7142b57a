"""Language models. Source: neuraltalk2 bd8c9d8, torch-rnn 6e72b86."""

from __future__ import annotations

from collections.abc import Iterator

from t7bridge.layers import (
    BASE,
    Child,
    Lua,
    NotMappedError,
    TorchObject,
    Traits,
    children_at,
    either,
    flag,
    integer,
    items_of,
    named_modules,
    of_class,
    register_layer,
)


def _views(lua: Lua) -> tuple[int, ...]:
    """Return where the network of a torch-rnn model merges steps and sequences, and splits them.

    These are the positions of its nn.Views, from 0, which do one and the other in turn.
    """
    layers = items_of(lua.get("net.modules")) or []
    return tuple(
        place
        for place, layer in enumerate(layers)
        if isinstance(layer, TorchObject) and layer.class_name == "nn.View"
    )


def _size(lua: Lua) -> int:
    if not lua.has("core"):
        raise NotMappedError("has neither a core nor a net", path=lua.path)
    return lua.integer("rnn_size")


_TEXT_MODEL = of_class(".modules.TextModel", views=_views)
# neuraltalk2 has a class of this name with a `core`, torch-rnn one with a `net`.
_LANGUAGE_MODEL = either(
    lambda lua: lua.has("net"),
    _TEXT_MODEL,
    of_class(
        ".modules.CaptionModel",
        state_size=_size,
        states=lambda lua: 2 * lua.integer("num_layers", 1),
        last=lambda lua: lua.integer("vocab_size") + lua.index_base,
        index_base=BASE,
    ),
)


# The modules of the network of a torch-rnn model.
_STEPS = children_at("net.modules")


def _words(obj: TorchObject) -> Iterator[Child]:
    """Return the modules of a language model: all steps share the weights of `core` and `lookup_table`."""
    if obj.get("net") is not None:
        yield from _STEPS(obj)
    else:
        yield from named_modules("core", "lookup_table")(obj)


register_layer(
    "nn.LanguageModel",
    children=_words,
    scratch="net rnns view1 view2 bn_view_in bn_view_out lookup_tables lookup_tables_inputs init_state state inputs",
    module=_LANGUAGE_MODEL,
    traits={".modules.TextModel": Traits(sequential_without="views")},
)


register_layer(
    "nn.TemporalAdapter",
    children=_STEPS,
    scratch="net view_in view_out",
    module=_TEXT_MODEL,
)
register_layer(
    "nn.FeatExpander", module=of_class(".modules.FeatExpander", integer("n"))
)
register_layer(
    kind="criterion",
    scratch="lsm grad_logprobs losses",
    module={
        "nn.LanguageModelCriterion": of_class(
            ".modules.CaptionCriterion", index_base=BASE
        ),
        "nn.TemporalCrossEntropyCriterion": of_class(
            ".modules.TemporalCrossEntropyCriterion",
            flag("batch_average", True),
            flag("time_average"),
            index_base=BASE,
        ),
    },
)
