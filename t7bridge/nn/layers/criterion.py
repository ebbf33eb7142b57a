"""Criterions: their state is the weights of classes. Source: nn 8726825, rnn, dpnn."""

from __future__ import annotations

from typing import Any

from ...graph.lua import TorchObject
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from .. import flows
from ..compounds import node, require
from ..fields import items_of
from ..layouts import elements
from ..mapping import BASE, LAYERS, Call, Lua, NotMappedError, becomes, flag, integer, number, of_runtime, shape
from ..registry import Param, Traits, criterions, named_modules, param, register_layer
from ..torch_nn import Tensors

_SCRATCH = "output_tensor total_weight_tensor target buffer"
_AVERAGE = flag("sizeAverage", True)
_IF_AVERAGE = flag("sizeAverage")
"""Of criterions written in Lua, which take a missing field for false; those in C refuse it, or did not have it yet."""


def _class_weights(path: str) -> Param:
    return param("weight", field=path, kind="buffer", note="its weights are stored as `weight`")


register_layer(
    "nn.Criterion",
    kind="criterion",
    scratch=f"{_SCRATCH} w w1 w22 w32 simplex criterion isTarget dist",
    module={
        "nn.AbsCriterion": of_runtime("criterion.AbsCriterion", average=_AVERAGE),
        "nn.ClassSimplexCriterion": of_runtime(
            "classes.ClassSimplexCriterion", integer("nClasses"), average=_AVERAGE, index_base=BASE
        ),
        "nn.CosineEmbeddingCriterion": of_runtime(
            "criterion.CosineEmbeddingCriterion", number("margin", 0.0), average=_IF_AVERAGE
        ),
        "nn.DistKLDivCriterion": of_runtime("criterion.DistKLDivCriterion", average=_AVERAGE),
        "nn.DistanceRatioCriterion": of_runtime("criterion.DistanceRatioCriterion", average=_IF_AVERAGE),
        "nn.HingeEmbeddingCriterion": of_runtime(
            "criterion.HingeEmbeddingCriterion", number("margin", 1.0), average=_AVERAGE
        ),
        "nn.L1Cost": of_runtime("criterion.L1Cost"),
        "nn.L1HingeEmbeddingCriterion": of_runtime("criterion.L1HingeEmbeddingCriterion", number("margin", 1.0)),
        "nn.MSECriterion": of_runtime("criterion.MSECriterion", average=_AVERAGE),
        "nn.MarginCriterion": of_runtime("criterion.MarginCriterion", number("margin", 1.0), average=_AVERAGE),
        "nn.MarginRankingCriterion": of_runtime(
            "criterion.MarginRankingCriterion", number("margin", 1.0), average=_IF_AVERAGE
        ),
        "nn.MultiLabelMarginCriterion": of_runtime(
            "classes.MultiLabelMarginCriterion", average=_AVERAGE, index_base=BASE
        ),
        "nn.SmoothL1Criterion": of_runtime("criterion.SmoothL1Criterion", average=_AVERAGE),
        "nn.SoftMarginCriterion": of_runtime("criterion.SoftMarginCriterion", average=_AVERAGE),
        "nn.SpatialAutoCropMSECriterion": of_runtime("criterion.AutoCropMSECriterion", average=_AVERAGE),
    },
)


def _weighted(lua: Lua) -> dict[str, Any]:
    return {"classes": lua.shapes["weight"][0]} if "weight" in lua.shapes else {}


def _target(lua: Lua, path: str) -> int:
    """Return a class index in the user's numbering; the -100 for no class is always the same."""
    value = lua.integer(path)
    return value + lua.index_base - 1 if value >= 0 else value


@becomes("classes.ClassNLLCriterion")
def _class_nll(lua: Lua) -> Call:
    kwargs = _weighted(lua)
    kwargs["average"] = lua.flag("sizeAverage", True)
    if lua.has("ignoreIndex"):
        kwargs["ignore_index"] = _target(lua, "ignoreIndex")
    return Call(f"{LAYERS}classes.ClassNLLCriterion", (), {**kwargs, "index_base": lua.index_base})


@becomes("classes.CrossEntropyCriterion")
def _cross_entropy(lua: Lua) -> Call:
    """Map to torch.nn.CrossEntropyLoss: Lua passes `sizeAverage` on to the inner criterion when it changed."""
    kwargs = _weighted(lua)
    for name in ("lsm", "slsm"):
        inner = lua.get(name)
        if isinstance(inner, TorchObject) and not inner.class_name.endswith("LogSoftMax"):
            raise NotMappedError(f"has a {inner.class_name} instead of its softmax", path=f"{lua.path}.{name}")
    changed = lua.get("sizeAverage") != lua.get("oldSizeAverage")
    kwargs["average"] = lua.flag("sizeAverage" if changed else "nll.sizeAverage", not changed)
    if lua.has("nll.ignoreIndex"):
        kwargs["ignore_index"] = _target(lua, "nll.ignoreIndex")
    return Call(f"{LAYERS}classes.CrossEntropyCriterion", (), {**kwargs, "index_base": lua.index_base})


@becomes("classes.CrossEntropyCriterion")
def _volumetric_cross_entropy(lua: Lua) -> Call:
    kwargs = {**_weighted(lua), "average": lua.flag("scec.sizeAverage", True), "index_base": lua.index_base}
    return Call(f"{LAYERS}classes.CrossEntropyCriterion", (), kwargs)


@becomes("criterion.BCECriterion")
def _bce(lua: Lua) -> Call:
    kwargs = {**_weighted(lua), "average": lua.flag("sizeAverage", True)}
    return Call(f"{LAYERS}criterion.BCECriterion", (), kwargs)


@becomes("classes.MultiMarginCriterion")
def _multi_margin(lua: Lua) -> Call:
    kwargs = {
        **_weighted(lua),
        "p": lua.integer("p", 1),
        "margin": lua.number("margin", 1.0),
        "average": lua.flag("sizeAverage", True),
        "index_base": lua.index_base,
    }
    return Call(f"{LAYERS}classes.MultiMarginCriterion", (), kwargs)


@becomes("classes.MultiLabelSoftMarginCriterion")
def _multi_label_soft_margin(lua: Lua) -> Call:
    require(lua, "sigmoid", node("Sigmoid", "x"))
    kwargs = {**_weighted(lua), "average": lua.flag("sizeAverage")}
    return Call(f"{LAYERS}classes.MultiLabelSoftMarginCriterion", (), kwargs)


def _shapes(classes: int | None = None, *_: Any, **__: Any) -> Tensors:
    return {} if classes is None else {"weight": (classes,)}


# torch.nn.NLLLoss, BCELoss, MultiMarginLoss and others call these weights `weight`.
register_layer(
    params=(_class_weights("weights"),),
    kind="criterion",
    scratch=f"{_SCRATCH} sigmoid",
    module={
        "nn.ClassNLLCriterion": _class_nll,
        "nn.SpatialClassNLLCriterion": _class_nll,
        "nn.BCECriterion": _bce,
        "nn.MultiMarginCriterion": _multi_margin,
        "nn.MultiLabelSoftMarginCriterion": _multi_label_soft_margin,
    },
    traits={
        name: Traits(shapes=_shapes)
        for name in (
            "classes.ClassNLLCriterion",
            "classes.CrossEntropyCriterion",
            "classes.MultiMarginCriterion",
            "classes.MultiLabelSoftMarginCriterion",
            "criterion.BCECriterion",
        )
    },
)
register_layer(
    "nn.WeightedMSECriterion",
    params=(_class_weights("weight"),),
    kind="criterion",
    scratch=_SCRATCH,
    module=of_runtime("criterion.WeightedMSECriterion", shape("weight"), average=_AVERAGE),
    traits={"criterion.WeightedMSECriterion": Traits(shapes=lambda shape, *_, **__: {"weight": shape})},
)
register_layer(
    "cudnn.VolumetricCrossEntropyCriterion",
    params=(_class_weights("scec.nll.weights"),),
    kind="criterion",
    scratch=f"{_SCRATCH} scec",
    module=_volumetric_cross_entropy,
)
# torch.nn.CrossEntropyLoss.
register_layer(
    "nn.CrossEntropyCriterion",
    "cudnn.SpatialCrossEntropyCriterion",
    params=(_class_weights("nll.weights"),),
    kind="criterion",
    scratch=f"{_SCRATCH} lsm slsm nll",
    module=_cross_entropy,
)


def _weights(lua: Lua) -> tuple[float, ...]:
    value = lua.get("weights")
    if isinstance(value, Storage):
        return tuple(float(weight) for weight in value.array)
    if isinstance(value, Tensor):
        return tuple(float(weight) for weight in elements(value).reshape(-1))
    found = items_of(value)
    if found is None or not all(isinstance(weight, (int, float)) for weight in found):
        raise NotMappedError("its weights are not a list of numbers", path=f"{lua.path}.weights")
    return tuple(float(weight) for weight in found)


@becomes("classes.MultiCriterion")
def _multi(lua: Lua) -> Call:
    return Call(f"{LAYERS}classes.MultiCriterion", (), {"weights": _weights(lua)})


@becomes("classes.ParallelCriterion")
def _parallel(lua: Lua) -> Call:
    kwargs = {"weights": _weights(lua), "repeat_target": lua.flag("repeatTarget")}
    return Call(f"{LAYERS}classes.ParallelCriterion", (), kwargs)


register_layer(
    children=criterions,
    kind="criterion",
    scratch="weights",
    module={"nn.MultiCriterion": _multi, "nn.ParallelCriterion": _parallel},
)
register_layer(
    children=named_modules("criterion"),
    kind="criterion",
    scratch="clones zeroMask",
    module={"nn.CriterionTable": of_runtime("classes.CriterionTable")},
    traits={"classes.CriterionTable": Traits(flow=flows.unknown)},
)
# A layer: of nngraph.
register_layer(
    children=named_modules("criterion"),
    kind="layer",
    module={"nn.ModuleFromCriterion": of_runtime("classes.ModuleFromCriterion")},
    traits={"classes.ModuleFromCriterion": Traits(takes_list=True)},
)
register_layer(
    "nn.ModuleCriterion",
    children=named_modules("inputModule", "targetModule", "criterion"),
    kind="criterion",
    scratch=_SCRATCH,
    module=of_runtime("classes.ModuleCriterion"),
)
