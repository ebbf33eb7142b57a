"""Layers of smaller Lua packages and of published models, one block a source.

bnn.torch e974791 and XNOR-Net 4006d59; cuda-convnet2.torch ac3d213 `*.lua` and `cudaconv3`; imagine-nn 6fed930 and its
history; nnx 1c28e23 `*.lua` and `generic/*.c`; deepmask 280a716 `DeepMask.lua`, `SharpMask.lua`; fast-neural-style
813c834, texture_nets aad2cc6, AdaIN-style 6d8ac28; nagadomi/waifu2x cc385f9 and its history; models of language and of
text lines: neuraltalk2 bd8c9d8, torch-rnn 6e72b86, crnn f5d41e3, OpenNMT 3ab15e9. Functions of PyTorch that
`save_module` writes as classes of `layers.lua`: see `workshop/lua/classes.lua`. Last, layers and criterions of
dpnn c0a8ca6, and rnn's sequence criterions (83a5f17).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...data import define, np
from ...errors import ModelError
from ...graph.lua import Table, TorchObject
from ...graph.tensor import Tensor
from .. import walk
from ..compounds import node, require
from ..fields import Fields, items_of
from ..layouts import LAST, REST, Merge, Narrow, Permute, Reshape, elements
from ..mapping import (
    BASE,
    LAYERS,
    Call,
    Literal,
    Lua,
    NotMappedError,
    Read,
    Row,
    axes,
    becomes,
    dim,
    either,
    extent,
    flag,
    integer,
    made,
    number,
    of_runtime,
    of_torch,
    optional,
    optional_number,
    pair,
    same_names,
    shape,
)
from ..output_shapes import same
from ..registry import Child, Param, Traits, buffer, children_at, keeps, modules, named_modules, param, register_layer
from ..torch_nn import Tensors, constructed
from .conv import BIAS, CONVOLUTION_2D, INPUTS, KERNEL, KERNEL_2D, convolution
from .norm import local_response
from .pooling import windows


@define(frozen=True)
class Signs:
    """32 signs in each integer, lowest bit first, 1 for +1: as numbers -1 and 1, (out, in, kH, kW)."""

    def apply(self, tensor: Tensor, fields: Fields) -> Tensor:
        """See `Step.apply`."""
        shape = tuple(fields.integer(name) for name in ("nOutputPlane", "nInputPlane", "kH", "kW"))
        words = np.ascontiguousarray(elements(tensor)).astype("<u4")
        bits = np.unpackbits(words.view("u1"), bitorder="little")
        if bits.size != np.prod(shape):
            raise ModelError("the signs do not match the layer", expected=f"{np.prod(shape)}", found=f"{bits.size}")
        return Tensor.from_numpy(bits.reshape(shape).astype("f4") * 2 - 1)

    def undo(self, tensor: Tensor, before: tuple[int, ...], fields: Fields) -> Tensor:
        """See `Step.undo`."""
        packed = np.packbits((elements(tensor) > 0).reshape(-1), bitorder="little")
        return Tensor.from_numpy(packed.view("<i4").reshape(before))


_BINARY_CONVOLUTION = of_runtime(
    "conv.BinaryConv2d", shape("weight"), stride=axes("d", 2, 1), padding=axes("pad", 2, 0).unless((0, 0))
)
register_layer(
    "bnn.SpatialConvolution",
    params=(buffer("weight", Signs()), buffer("alphas")),
    scratch="finput columns_binary",
    module=_BINARY_CONVOLUTION,
    traits=Traits(shapes=lambda shape, *_, **__: {"weight": shape, "alphas": (shape[0],)}),
)
_BINARY = of_runtime("training.Binary")
register_layer(module={"bnn.Binary": _BINARY, "nn.BinActiveZ": _BINARY})


_CCN2_CONVOLUTION = of_runtime(
    "ccn2.SpatialConvolution",
    INPUTS,
    extent("weight"),
    KERNEL,
    stride=integer("dH", 1),
    padding=integer("padding", 0),
    groups=integer("groups", 1).unless(1),
)
# (in / groups * kH * kW, out).
register_layer(
    "ccn2.SpatialConvolution",
    params=(param("weight", Reshape((REST, "kH", "kH", LAST)), Permute((3, 0, 1, 2))), param("bias")),
    module=_CCN2_CONVOLUTION,
)
# (oH * oH * in * kH * kH, out). The bias has an element for every position, but only as many as planes are read.
register_layer(
    "ccn2.SpatialConvolutionLocal",
    params=(
        param(
            "weight",
            Reshape(("oH", "oH", "nInputPlane", "kH", "kH", LAST)),
            Merge((0, 1, 5, 2, 3, 4), ("oH", "oH", "nOutputPlane", "nInputPlane", "kH", "kH")),
        ),
        param("bias", Narrow(0, 0, "nOutputPlane")),
    ),
    module=of_runtime("ccn2.SpatialConvolutionLocal", shape("weight"), integer("dH", 1), integer("padding", 0)),
    traits=Traits(shapes=lambda shape, *_: {"weight": shape, "bias": (shape[2],)}),
)


def _scale(lua: Lua) -> float:
    if lua.flag("blocked"):
        raise NotMappedError("normalizes blocks of planes", path=lua.path)
    return float(lua.number("addScale"))


def _response(across: bool) -> Row:
    options: Any = {"beta": number("powScale", 0.75), "k": number("minDiv", 1.0), "across": across}
    return of_runtime("ccn2.SpatialResponseNormalization", integer("size"), _scale, **options)


register_layer(
    scratch="denoms",
    module={
        "ccn2.SpatialMaxPooling": of_runtime("ccn2.SpatialMaxPooling", integer("kW"), integer("dW")),
        "ccn2.SpatialAvgPooling": of_runtime("ccn2.SpatialAvgPooling", integer("kW"), integer("dW")),
        "ccn2.SpatialCrossMaxPooling": of_runtime("ccn2.SpatialCrossMaxPooling", integer("kD"), integer("dD")),
        "ccn2.SpatialResponseNormalization": _response(False),
        "ccn2.SpatialCrossResponseNormalization": _response(True),
    },
)


# Channel-wise scale and offset, not learned.
register_layer(
    "inn.ConstAffine",
    "nn.ConstAffine",
    "nn.SpatialConstDiagonal",
    params=(buffer("a"), buffer("b")),
    scratch="repeated",
    module=of_runtime("linear.ConstAffine", extent("a")),
    traits=Traits(shapes=lambda features: {"a": (features,), "b": (features,)}),
)


@keeps("mean", "std")
def _mean(fields: Fields) -> tuple[Param, ...]:
    """Return the mean: Lua repeats it for the images of its last batch."""
    mean = fields.find_tensor("mean")
    first = (Narrow(0, 0, 1),) if mean is not None and len(mean.size) == 4 else ()
    return (buffer("mean", *first), buffer("std"))


register_layer(
    "inn.MeanSubtraction",
    params=_mean,
    module=of_runtime("linear.MeanSubtraction", shape("mean")),
    traits=Traits(shapes=lambda shape: {"mean": shape}),
)


_CEILED: dict[str, Any] = {**windows(2), "ceil_mode": True}
"""Both classes round up, whatever the inherited field says."""

register_layer(
    module={
        "inn.SpatialMaxPooling": of_torch("MaxPool2d", **_CEILED),
        "inn.SpatialAveragePooling": of_torch(
            "AvgPool2d", **_CEILED, count_include_pad=flag("count_include_pad", True).unless(True)
        ),
    },
)


# Until 2015-12 it contained an nn.Concat; later the class is one.
register_layer(
    "inn.SpatialPyramidPooling",
    children=children_at("modules", "module.modules", "module"),
    scratch="module pyr",
    module=of_runtime("containers.Concat", dim=-1),
)
# A graph of nn's layers, in a Sequential under `modules` until 2015-12.
register_layer("inn.SpatialSameResponseNormalization", children=modules, module=of_torch("Sequential"))
register_layer(
    scratch="paddedRatio accumRatio scale",
    module={
        "inn.SpatialCrossResponseNormalization": local_response("k"),
        "inn.SpatialStochasticPooling": of_runtime(
            "pooling.SpatialStochasticPooling", pair("kH", "kW"), pair("dH", "dW")
        ),
        # Before `v2` the last row and column of a box belonged to it.
        "inn.ROIPooling": of_runtime(
            "pooling.ROIPooling",
            pair("H", "W"),
            scale=number("spatial_scale", 1.0),
            open_end=flag("v2"),
            index_base=BASE,
        ),
    },
)


def _ratio(lua: Lua) -> tuple[float, float] | None:
    """Return the ratio, unless there is a size, which takes precedence; nnx stores the size of its first output."""
    if lua.has("oheight") and lua.has("owidth"):
        return None
    return (float(lua.number("rheight", 1.0)), float(lua.number("rwidth", 1.0)))


def _mode(lua: Lua) -> str:
    mode = lua.text("mode", "simple")
    if mode not in ("simple", "average", "bilinear"):
        raise NotMappedError("its mode is unknown", path=lua.path, found=mode)
    return mode


_SIZE: dict[str, Any] = {
    "size": lambda lua: (lua.optional("oheight"), lua.optional("owidth")),
    "ratio": _ratio,
}
_IDENTITY = of_torch("Identity")
register_layer(
    scratch="inputSize outputSize indices",
    module={
        "nn.SpatialUpSampling": of_runtime("resample.SpatialUpSampling", pair("dH", "dW"), rows=dim("yDim", 1)),
        "nn.SpatialDownSampling": of_runtime("resample.SpatialDownSampling", pair("rH", "rW")),
        "nn.SpatialReSampling": of_runtime("resample.SpatialReSampling", **_SIZE),
        "nn.SpatialReSamplingEx": of_runtime(
            "resample.SpatialReSamplingEx", _mode, **_SIZE, rows=dim("yDim", 1).unless(1)
        ),
        "nn.SpatialMaxSampling": of_runtime("resample.SpatialMaxSampling", pair("oheight", "owidth")),
        "nn.SaturatedLU": of_runtime(
            "activation.SaturatedLU",
            number("threshold", -1.0),
            number("val", -1.0),
            number("threshold2", 1.0),
            number("val2", 1.0),
        ),
        "nn.Minus": of_runtime("activation.Minus"),
        "nn.MultiSoftMax": of_torch("Softmax", -1),
        "nn.Probe": _IDENTITY,
        "nn.Tic": _IDENTITY,
        "nn.Toc": _IDENTITY,
    },
)


register_layer(
    "nn.DeepMask",
    children=named_modules("trunk", "maskBranch", "scoreBranch"),
    module=of_runtime("containers.DeepMask"),
    traits=Traits(flow=walk.tensors),
)


def _refinements(obj: TorchObject) -> Iterator[Child]:
    """Return the refinement steps, 0-based in Lua; they contain their modules."""
    yield from named_modules("trunk", "scoreBranch", "maskBranchDM")(obj)
    refs = obj.get("refs")
    number = 0
    while isinstance(refs, Table) and (ref := refs.get(float(number))) is not None:
        yield Child(f"ref{number}", f".refs[{number}]", ref)
        number += 1


register_layer(
    "nn.SharpMask",
    children=_refinements,
    scratch="refs neths netvs inps",
    module=of_runtime("containers.SharpMask", skips=lambda lua: tuple(at - 1 for at in lua.sizes("skpos"))),
)


_BORDERS = pair("pad_l", "pad_r", "pad_t", "pad_b")


# texture_nets' GenNoise of the first release (March 2016) has no fields, and fills three planes.
_NOISE = either(
    lambda lua: lua.has("num_planes"),
    of_runtime("training.GenNoise", integer("num_planes"), number("mult", 1.0)),
    of_runtime("training.LeadingNoise", 3),
)
_VARIATION = of_runtime("training.TotalVariation", number("strength"))
register_layer(
    scratch="x_diff y_diff clipped buffer bn sz sz_",
    module={
        "nn.AdaptiveInstanceNormalization": of_runtime(
            "norm.AdaptiveInstanceNormalization", eps=number("eps", 1e-5), disabled=flag("disabled")
        ),
        "nn.TotalVariation": _VARIATION,
        "nn.TVLoss": _VARIATION,
        "nn.DeepDreamLoss": of_runtime("training.DeepDreamLoss", number("strength", 1e-5), number("max_grad", 100.0)),
        "nn.GramMatrix": of_runtime("linear.GramMatrix", flag("normalize", True)),
        **same_names("resample", "SpatialCircularPadding SpatialSymmetricPadding", _BORDERS),
        "nn.NoiseFill": of_runtime("training.NoiseFill", integer("num_noise_channels"), number("mult", 1.0)),
        "nn.GenNoise": _NOISE,
        "nn.DummyGradOutput": of_runtime("training.ZeroGrad"),
    },
    traits=dict.fromkeys(("training.TotalVariation", "training.DeepDreamLoss"), Traits(output=same, own_gradient=True)),
)
register_layer(
    scratch="mse crit target",
    module={"nn.TVLossCriterion": of_runtime("criterion.TVLossCriterion")},
)


register_layer(
    scratch="output_table output_tensor alpha beta first second scale grad_tmp negative",
    module={
        "w2nn.InplaceClip01": of_runtime("training.Clip", 0.0, 1.0),
        "w2nn.AuxiliaryLossTable": of_runtime("table.AuxiliaryLossTable", dim("i", 0)),
        "w2nn.ScaleTable": of_runtime("table.ScaleTable"),
        "w2nn.ShakeShakeTable": of_runtime("table.ShakeShakeTable"),
        "w2nn.GradWeight": of_runtime("training.GradWeight", number("constant_scalar")),
        "w2nn.DepthExpand2x": of_runtime("resample.DepthExpand2x"),
        "w2nn.Print": _IDENTITY,
        "w2nn.PrintTable": _IDENTITY,
    },
    traits={"table.AuxiliaryLossTable": Traits(flow=walk.unknown)},
)


_FIXED = convolution(2, f"{LAYERS}conv.FixedConv2d")


# Convolutions that are not trained.
register_layer(
    params=(param("weight", *KERNEL_2D.sources[0].layout, kind="buffer"), param("bias", kind="buffer")),
    scratch="finput fgradInput",
    module=dict.fromkeys(("w2nn.EdgeFilter", "w2nn.RandomBinaryConvolution"), _FIXED),
    traits={"conv.FixedConv2d": Traits(shapes=lambda *args, **kwargs: constructed("Conv2d", args, kwargs))},
)

_DIFFERENCES = "diff diff_abs diff_pow2 loss image instance_loss square_loss_buff linear_loss_buff"


def _clip(lua: Lua) -> tuple[float, float] | None:
    return (float(lua.number("clip.1")), float(lua.number("clip.2"))) if lua.has("clip") else None


_HUBER = of_runtime("criterion.HuberCriterion", shape("weight"), gamma=number("gamma", 1.0), clip=_clip)
register_layer(
    params=(param("weight", kind="buffer"),),
    scratch=_DIFFERENCES,
    module={
        "w2nn.ClippedWeightedHuberCriterion": _HUBER,
        "w2nn.WeightedHuberCriterion": _HUBER,
        "w2nn.WeightedMSECriterion": of_runtime("criterion.WeightedSquaresCriterion", shape("weight")),
    },
    traits=dict.fromkeys(
        ("criterion.HuberCriterion", "criterion.WeightedSquaresCriterion"),
        Traits(shapes=lambda shape, *_, **__: {"weight": shape}),
    ),
)
register_layer(
    scratch=_DIFFERENCES,
    module={
        "w2nn.ClippedMSECriterion": of_runtime("criterion.ClippedMSECriterion", number("min", 0.0), number("max", 1.0)),
        "w2nn.L1Criterion": of_runtime("criterion.AbsCriterion"),
        "w2nn.PSNRCriterion": of_runtime("criterion.PSNRCriterion"),
    },
)
register_layer(
    "w2nn.LBPCriterion",
    children=named_modules("filter1", "filter2"),
    scratch=f"{_DIFFERENCES} input target",
    module=of_runtime("criterion.LBPCriterion", planes=integer("ch"), gamma=number("gamma", 0.1)),
)
register_layer(
    "w2nn.SSIMCriterion",
    children=named_modules("conv"),
    scratch="mu1 mu2 mu1_sq mu2_sq mu1_mu2 sigma1_sq sigma2_sq sigma12 ssim_map",
    module=of_runtime("criterion.SSIMCriterion", c1=number("c1", 1e-4), c2=number("c2", 9e-4)),
)


def _views(lua: Lua) -> tuple[int, ...]:
    """Return where the network of a torch-rnn model merges steps and sequences, and splits them."""
    inside = items_of(lua.get("net.modules")) or []
    return tuple(at for at, each in enumerate(inside) if isinstance(each, TorchObject) and each.class_name == "nn.View")


def _size(lua: Lua) -> int:
    if not lua.has("core"):
        raise NotMappedError("has neither a core nor a net", path=lua.path)
    return lua.integer("rnn_size")


_TEXT_MODEL = of_runtime("sequence.TextModel", views=_views)
# neuraltalk2 has a class of this name with a `core`, torch-rnn one with a `net`.
_LANGUAGE_MODEL = either(
    lambda lua: lua.has("net"),
    _TEXT_MODEL,
    of_runtime(
        "sequence.CaptionModel",
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
    yield from _STEPS(obj) if obj.get("net") is not None else named_modules("core", "lookup_table")(obj)


register_layer(
    "nn.LanguageModel",
    children=_words,
    scratch="net rnns view1 view2 bn_view_in bn_view_out lookup_tables lookup_tables_inputs init_state state inputs",
    module=_LANGUAGE_MODEL,
)


register_layer(
    "nn.TemporalAdapter",
    children=_STEPS,
    scratch="net view_in view_out",
    module=_TEXT_MODEL,
)
register_layer(module={"nn.FeatExpander": of_runtime("shape.FeatExpander", integer("n"))})
register_layer(
    scratch="lsm grad_logprobs losses",
    module={
        "nn.LanguageModelCriterion": of_runtime("criterion.CaptionCriterion", index_base=BASE),
        "nn.TemporalCrossEntropyCriterion": of_runtime(
            "criterion.TemporalCrossEntropyCriterion",
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
    traits=Traits(flow=walk.tensors),
)
register_layer(
    "nn.BiRnnJoin",
    children=named_modules("joinUnit"),
    module=of_runtime("sequence.BiRnnJoin"),
    traits=Traits(flow=walk.tensors),
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


# Older files have it only in `modules`.
_NET = children_at("net", "modules.1", name="net")


@becomes("containers.Wrapper")
def _network(lua: Lua) -> Call:
    if not any(_NET(lua.obj)):
        raise NotMappedError("has no network, as it transfers nothing", path=lua.path)
    return Call(f"{LAYERS}containers.Wrapper")


register_layer(
    children=_NET,
    scratch="modules rindexLinear args",
    module={
        **dict.fromkeys(_NETWORKS, _network),
        "onmt.Generator": of_runtime("containers.Wrapper", first=True),
        "onmt.FeaturesGenerator": of_runtime("containers.Wrapper", first=True),
    },
    traits=Traits(flow=walk.unknown),
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


def _function(*names: str) -> Read:
    """Read the name of a function of PyTorch, which is one that the class has in Lua."""

    def name_of(lua: Lua) -> str:
        if lua.text("name") not in names:
            raise lua.wrong("name", f"one of {', '.join(names)}", lua.get("name"))
        return lua.text("name")

    return made(name_of)


_OF_ONE = "sin cos tan asin acos atan sinh cosh asinh atanh floor ceil trunc round isnan isinf"
_OF_TWO = "atan2 pow fmod remainder floor_divide"
register_layer(
    module={
        "pt.Function": of_runtime("functions.Function", _function(*_OF_ONE.split())),
        "pt.Binary": of_runtime("functions.Pairwise", _function(*_OF_TWO.split())),
        "pt.CumProd": of_runtime("functions.CumProd", dim("dim")),
        "pt.Sort": of_runtime("functions.Sort", dim("dim"), flag("descending")),
        "pt.ArgMax": of_runtime("functions.Extremum", dim("dim"), flag("smallest")),
        "pt.Gather": of_runtime("functions.Gather", dim("dim")),
        "pt.Scatter": of_runtime("functions.Scatter", dim("dim"), flag("adds")),
        "pt.Fold": of_runtime(
            "functions.Fold", pair("height", "width"), *(axes(name, 2) for name in ("k", "d", "pad", "dilation"))
        ),
        "pt.GridSample": of_runtime(
            "functions.GridSample",
            lambda lua: lua.text("mode"),
            lambda lua: lua.text("padding"),
            flag("align"),
        ),
        "pt.MaxPlaces": of_runtime(
            "functions.MaxPlaces", *(axes(name, 2) for name in ("k", "d", "pad", "dilation")), flag("ceil_mode")
        ),
        "pt.Convolution": of_runtime("functions.Convolution", axes("d", 2), axes("pad", 2), axes("dilation", 2)),
    },
    traits={
        "functions.Function": Traits(output=same),
        "functions.Pairwise": Traits(takes_list=True),
        "functions.CumProd": Traits(output=same),
        "functions.Sort": Traits(returns_list=True, flow=walk.tensors),
        "functions.Gather": Traits(takes_list=True),
        "functions.Scatter": Traits(takes_list=True),
        "functions.GridSample": Traits(takes_list=True),
        "functions.Convolution": Traits(takes_list=True),
    },
)


_AVERAGE = flag("sizeAverage")
_SCRATCH = "output_tensor total_weight_tensor target noise"


def _crop(lua: Lua) -> tuple[int, int]:
    if lua.number("scale", 2.0) != 2:
        raise NotMappedError("resamples its crops by another factor than 2", path=lua.path)
    require(lua, "module", node("nn.SpatialAveragePooling", "x", 2.0, 2.0, 2.0, 2.0, 0.0, 0.0, None))
    return lua.integer("height"), lua.integer("width")


def _scales(lua: Lua) -> tuple[Literal, ...]:
    if not lua.has("scale"):
        return ()
    ends = ("scale.min", "scale.max") if lua.has("scale.min") else ("scale.1", "scale.2")
    return (tuple(float(lua.number(end)) for end in ends),)


def _entropy_scale(lua: Lua) -> float:
    """Return the scale of the entropy of the modules inside: `minusOne` is the negative one, `_mul` makes the sum one.

    Raises:
        NotMappedError: somebody changed the modules.
    """
    shares = node(
        "nn.MulConstant", node("nn.Sum", "x", 1.0, None, None), lua.get("module.modules.2.constant_scalar"), None
    )
    logarithms = node("nn.Log", node("nn.AddConstant", shares, 1e-6, None))
    product = node("nn.Sum", node("nn.CMulTable", [shares, logarithms]), 1.0, None, None)
    require(lua, "module", node("nn.MulConstant", product, -1.0, None))
    if lua.get("_mul") is not lua.get("module.modules.2") or not lua.flag("sizeAverage", True):
        raise NotMappedError("its modules inside were changed", path=lua.path)
    negative = lua.find_tensor("minusOne")
    return float(lua.number("scale", 1.0) if negative is None else -elements(negative).reshape(-1)[0])


def _reinforce(name: str, argument: str = "", field: str = "") -> Row:
    """Map REINFORCE layers: `stdev` and `scale` may be missing: then they are an input."""
    options: Any = {argument: optional_number(field)} if field else {}
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
        "nn.ReinforceNormal": _reinforce("ReinforceNormal", "deviation", "stdev"),
        "nn.ReinforceGamma": _reinforce("ReinforceGamma", "scale", "scale"),
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
        "nn.SequencerCriterion": _sequencer_criterion(False),
        "nn.RepeaterCriterion": _sequencer_criterion(True),
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
