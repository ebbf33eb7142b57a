"""Layers and criterions of dpnn c0a8ca6, and rnn's sequence criterions (83a5f17)."""

from __future__ import annotations

from typing import Any

from .. import walk
from ..compounds import node, require
from ..layouts import Reshape, elements
from ..mapping import (
    BASE,
    LAYERS,
    Literal,
    Lua,
    NotMappedError,
    Row,
    extent,
    flag,
    integer,
    made,
    number,
    of_runtime,
    optional_number,
    same_names,
)
from ..registry import InLua, Traits, buffer, children_at, named_modules, param, register_layer
from ..torch_nn import Tensors, constructed
from .conv import BIAS, CONVOLUTION_2D, convolution

_AVERAGE = flag("sizeAverage")
_SCRATCH = "output_tensor total_weight_tensor target noise"


def _crop(lua: Lua) -> tuple[int, int]:
    """Return the height and width of the crops of a SpatialGlimpse.

    Raises:
        NotMappedError: each crop is not twice as large as the one before it, or is not reduced by an average pooling.
    """
    if lua.number("scale", 2.0) != 2:
        raise NotMappedError("resamples its crops by another factor than 2", path=lua.path)
    halved = node("nn.SpatialAveragePooling", "x", kW=2.0, kH=2.0, dW=2.0, dH=2.0, padW=0.0, padH=0.0)
    require(lua, "module", halved)
    return lua.integer("height"), lua.integer("width")


def _scales(lua: Lua) -> tuple[Literal, ...]:
    """Return the interval of random scales of a SpatialUniformCrop as one further argument; none without scales."""
    if not lua.has("scale"):
        return ()
    ends = ("scale.min", "scale.max") if lua.has("scale.min") else ("scale.1", "scale.2")
    interval = tuple(float(lua.number(end)) for end in ends)
    return (interval,)


def _entropy_scale(lua: Lua) -> float:
    """Return the scale of a CategoricalEntropy, whose modules compute -sum(p * log(p)) of the shares p of categories.

    Lua passes `minusOne`, a tensor with the negative scale, back through these modules; it was made of `scale`.

    Raises:
        NotMappedError: a program changed the modules.
    """
    factor = lua.get("module.modules.2.constant_scalar")
    shares = node("nn.MulConstant", node("nn.Sum", "x", dimension=1.0), constant_scalar=factor)
    # Lua adds 1e-6, so that a share of 0 has a logarithm.
    logarithms = node("nn.Log", node("nn.AddConstant", shares, constant_scalar=1e-6))
    product = node("nn.Sum", node("nn.CMulTable", [shares, logarithms]), dimension=1.0)
    require(lua, "module", node("nn.MulConstant", product, constant_scalar=-1.0))
    # Before each pass Lua sets the factor of `_mul` so that the shares sum to 1. With `sizeAverage`, which its
    # constructor sets, it divides the gradient by the number of examples.
    if lua.get("_mul") is not lua.get("module.modules.2") or not lua.flag("sizeAverage", True):
        raise NotMappedError("its modules inside were changed", path=lua.path)
    gradient = lua.find_tensor("minusOne")
    if gradient is None:
        return float(lua.number("scale", 1.0))
    return float(-elements(gradient).reshape(-1)[0])


def _reinforce(name: str, **parameter: str) -> Row:
    """Map REINFORCE layers.

    Args:
        name: of the class.
        **parameter: the parameter of the distribution, if it has one, and its field in Lua, which is missing where the
            parameter is a second input.
    """
    options: Any = {argument: optional_number(field) for argument, field in parameter.items()}
    return of_runtime(f"training.{name}", **options, stochastic=flag("stochastic").unless(False))


register_layer(
    "nn.Reinforce",
    scratch=f"{_SCRATCH} modules module reward range regionType coord scales scaler minusOne entropy maxIdx",
    module={
        "nn.SpatialGlimpse": of_runtime("resample.SpatialGlimpse", _crop, integer("depth", 3)),
        "nn.SpatialUniformCrop": of_runtime(
            "resample.SpatialUniformCrop", integer("oheight"), integer("owidth|oheight"), made(_scales).each
        ),
        "nn.SimpleColorTransform": of_runtime(
            "training.SimpleColorTransform", made(lambda lua: tuple(map(float, lua.numbers("range")))).each
        ),
        "nn.SpatialRegionDropout": of_runtime("training.SpatialRegionDropout", number("p", 0.2)),
        "nn.TotalDropout": of_runtime("training.TotalDropout", number("p", 0.5)),
        "nn.CategoricalEntropy": of_runtime(
            "training.CategoricalEntropy",
            scale=_entropy_scale,
            smallest=optional_number("minEntropy"),
        ),
        "nn.ReinforceBernoulli": _reinforce("ReinforceBernoulli"),
        "nn.ReinforceCategorical": _reinforce("ReinforceCategorical"),
        "nn.ReinforceNormal": _reinforce("ReinforceNormal", deviation="stdev"),
        "nn.ReinforceGamma": _reinforce("ReinforceGamma", scale="scale"),
    },
    traits={"training.CategoricalEntropy": Traits(own_gradient=True)},
)
register_layer(
    "nn.SpatialFeatNormalization",
    params=(buffer("mean"), buffer("std")),
    module=of_runtime("linear.SpatialFeatNormalization", extent("mean")),
    traits=Traits(shapes=lambda features: {"mean": (features,), "std": (features,)}),
)
register_layer(
    "nn.PCAColorTransform",
    params=(buffer("eigenVectors"), buffer("eigenValues", Reshape(("*",)))),
    scratch="noise alphas",
    module=of_runtime("training.PCAColorTransform", extent("eigenVectors"), number("std", 0.1)),
    traits=Traits(shapes=lambda channels, *_: {"eigenVectors": (channels, channels), "eigenValues": (channels,)}),
)


register_layer(
    "nn.SpatialBinaryConvolution",
    params=CONVOLUTION_2D.params,
    scratch=(*CONVOLUTION_2D.scratch, "tempWeight", "alphas", "wmask"),
    module=convolution(2, f"{LAYERS}conv.SpatialBinaryConvolution"),
    traits=Traits(like="Conv2d"),
)


def _nce_shapes(in_features: int, out_features: int, *_: Any, **__: Any) -> Tensors:
    linear = constructed("Linear", (in_features, out_features), {})
    return {**linear, "unigrams": (out_features,), "Z": (1,)}


register_layer(
    "nn.NCEModule",
    params=(param("weight"), BIAS, buffer("unigrams"), buffer("Z")),
    scratch="addBuffer sampleidx sampleprob linout aliasmultinomial",
    module=of_runtime(
        "linear.NCE",
        extent("weight", 1),
        extent("weight"),
        integer("k"),
        shared=flag("batchnoise"),
        normalized=flag("normalized"),
        logarithms=flag("logsoftmax"),
        index_base=BASE,
    ),
    traits=Traits(flow=walk.unknown, shapes=_nce_shapes),
)
# Rows are 0-based, and the first is zero whatever the file has there.
register_layer(
    "nn.LookupTableMaskZero",
    params=(param("weight"),),
    scratch="inputs",
    module=of_runtime("linear.LookupTableMaskZero", extent("weight"), extent("weight", 1)),
    traits=Traits(like="Embedding"),
    in_lua=InLua(first_row=0),
)


# Criterions.


def _sequencer_criterion(repeats: bool) -> Row:
    """Map a sequence criterion: Element-Research's RepeaterCriterion has no `sizeAverage`."""
    options: Any = {"repeat_target": True} if repeats else {}
    return of_runtime("criterion.SequencerCriterion", average=_AVERAGE.unless(False), **options)


register_layer(
    children=children_at("criterion", "clones.1", name="criterion"),  # torch's rnn has it as the first of its clones
    scratch="clones",
    module={
        "nn.SequencerCriterion": _sequencer_criterion(repeats=False),
        "nn.RepeaterCriterion": _sequencer_criterion(repeats=True),
    },
)


register_layer(
    "nn.MaskZeroCriterion",
    children=named_modules("criterion"),
    scratch="zeroMask input target",
    module=of_runtime("criterion.MaskZeroCriterion", zero_mask=flag("v2").unless(False)),
)
register_layer(
    scratch=_SCRATCH,
    module={
        **same_names(
            "criterion",
            "BinaryLogisticRegression SpatialBinaryLogisticRegression NCECriterion",
            average=_AVERAGE,
        )
    },
)
register_layer(
    children=named_modules("criterion"),
    scratch="module reward vrReward",
    module={
        "nn.VRClassReward": of_runtime(
            "criterion.ClassReward", scale=number("scale", 1.0), average=_AVERAGE, index_base=BASE
        ),
        "nn.BinaryClassReward": of_runtime(
            "criterion.ClassReward", scale=number("scale", 1.0), average=_AVERAGE, index_base=None
        ),
    },
)
