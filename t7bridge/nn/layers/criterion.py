"""Criterions: their state is the weights of classes. Source: nn 8726825, rnn, dpnn."""

from __future__ import annotations

from typing import Any

from ...graph.lua import TorchObject
from .. import walk
from ..compounds import node, require
from ..mapping import BASE, Lua, NotMappedError, Read, flag, integer, made, number, of_runtime, same_names, shape
from ..registry import Param, Traits, criterions, named_modules, param, register_layer, stock_name
from ..torch_nn import Tensors

_SCRATCH = "output_tensor total_weight_tensor target buffer"
_AVERAGE = flag("sizeAverage", True)
_IF_AVERAGE = flag("sizeAverage")
"""Of criterions written in Lua, which take a missing field for false; those in C refuse it, or did not have it yet."""


def _class_weights(path: str) -> Param:
    return param("weight", field=path, kind="buffer", note="its weights are stored as `weight`")


register_layer(
    "nn.Criterion",
    scratch=f"{_SCRATCH} w w1 w22 w32 simplex criterion isTarget dist",
    module={
        **same_names(
            "criterion",
            "AbsCriterion DistKLDivCriterion MSECriterion SmoothL1Criterion SoftMarginCriterion",
            average=_AVERAGE,
        ),
        "nn.ClassSimplexCriterion": of_runtime(
            "criterion.ClassSimplexCriterion", integer("nClasses"), average=_AVERAGE, index_base=BASE
        ),
        "nn.CosineEmbeddingCriterion": of_runtime(
            "criterion.CosineEmbeddingCriterion", number("margin", 0.0), average=_IF_AVERAGE
        ),
        "nn.DistanceRatioCriterion": of_runtime("criterion.DistanceRatioCriterion", average=_IF_AVERAGE),
        **same_names("criterion", "HingeEmbeddingCriterion MarginCriterion", number("margin", 1.0), average=_AVERAGE),
        "nn.L1Cost": of_runtime("criterion.L1Cost"),
        "nn.L1HingeEmbeddingCriterion": of_runtime("criterion.L1HingeEmbeddingCriterion", number("margin", 1.0)),
        "nn.MarginRankingCriterion": of_runtime(
            "criterion.MarginRankingCriterion", number("margin", 1.0), average=_IF_AVERAGE
        ),
        "nn.MultiLabelMarginCriterion": of_runtime(
            "criterion.MultiLabelMarginCriterion", average=_AVERAGE, index_base=BASE
        ),
        "nn.SpatialAutoCropMSECriterion": of_runtime("criterion.AutoCropMSECriterion", average=_AVERAGE),
    },
)


_CLASSES = made(lambda lua: lua.shapes["weight"][0] if "weight" in lua.shapes else None)


def _target(path: str) -> Read:
    """Read a class index in the user's numbering, `None` if the field is missing.

    A negative one, such as -100 for no class, is the same in any numbering.
    """

    def class_index(lua: Lua) -> int | None:
        """Return the index of one criterion in the user's numbering."""
        if not lua.has(path):
            return None
        index_in_lua = lua.integer(path)
        if index_in_lua < 0:
            return index_in_lua
        return index_in_lua - 1 + lua.index_base

    return made(class_index)


_LOG_SOFTMAXES = ("nn.LogSoftMax", "nn.SpatialLogSoftMax", "cudnn.LogSoftMax", "cudnn.VolumetricLogSoftMax")
_INSIDE = {
    "lsm": _LOG_SOFTMAXES,
    "slsm": _LOG_SOFTMAXES,
    "nll": ("nn.ClassNLLCriterion", "nn.SpatialClassNLLCriterion"),
    "scec": ("cudnn.SpatialCrossEntropyCriterion",),
}
"""The classes that the constructors of the cross entropies put into these fields."""


def _check_inside(lua: Lua, *paths: str) -> None:
    """Check the classes of the modules that a cross entropy is made of.

    Args:
        lua: the criterion.
        *paths: the paths of these modules; the last field of each is one of `_INSIDE`.

    Raises:
        NotMappedError: a program replaced one. A missing one is as it was made.
    """
    for path in paths:
        inner = lua.get(path)
        _, _, field_name = path.rpartition(".")
        if isinstance(inner, TorchObject) and stock_name(inner) not in _INSIDE[field_name]:
            raise NotMappedError(f"has a {inner.class_name} inside, not what it was made of", path=f"{lua.path}.{path}")


def _cross_entropy_average(lua: Lua) -> bool:
    """Return whether the loss of a cross entropy is a mean, as that of the criterion inside is.

    Lua passes `sizeAverage` on to that one at the next call after it was changed, which `oldSizeAverage` shows.

    Raises:
        NotMappedError: a program replaced a module inside.
    """
    _check_inside(lua, "lsm", "slsm", "nll")
    # Lua takes a missing field for false; the criterion inside is in C, whose first releases had none and averaged.
    if lua.get("sizeAverage") != lua.get("oldSizeAverage"):
        return lua.flag("sizeAverage", default=False)
    return lua.flag("nll.sizeAverage", default=True)


def _volumetric_average(lua: Lua) -> bool:
    """Return whether the loss of volumes is a mean, as that of the criterion of images inside is.

    Raises:
        NotMappedError: a program replaced a module inside.
    """
    _check_inside(lua, "scec", "scec.lsm", "scec.slsm", "scec.nll")
    return lua.flag("scec.sizeAverage", True)


_CLASS_NLL = of_runtime(
    "criterion.ClassNLLCriterion",
    classes=_CLASSES,
    average=_AVERAGE,
    ignore_index=_target("ignoreIndex"),
    index_base=BASE,
)


def _soft_margin_average(lua: Lua) -> bool:
    """Return whether the loss of a multi-label criterion is a mean.

    Raises:
        NotMappedError: a program replaced the sigmoid inside, which the runtime's class computes.
    """
    require(lua, "sigmoid", pattern=node("nn.Sigmoid", "x"))
    return lua.flag("sizeAverage")


def _shapes(classes: int | None = None, *_: Any, **__: Any) -> Tensors:
    return {} if classes is None else {"weight": (classes,)}


# torch.nn.NLLLoss, BCELoss, MultiMarginLoss and others call these weights `weight`.
register_layer(
    params=(_class_weights("weights"),),
    scratch=f"{_SCRATCH} sigmoid",
    module={
        "nn.ClassNLLCriterion": _CLASS_NLL,
        "nn.SpatialClassNLLCriterion": _CLASS_NLL,
        "nn.BCECriterion": of_runtime("criterion.BCECriterion", classes=_CLASSES, average=_AVERAGE),
        "nn.MultiMarginCriterion": of_runtime(
            "criterion.MultiMarginCriterion",
            classes=_CLASSES,
            p=integer("p", 1),
            margin=number("margin", 1.0),
            average=_AVERAGE,
            index_base=BASE,
        ),
        "nn.MultiLabelSoftMarginCriterion": of_runtime(
            "criterion.MultiLabelSoftMarginCriterion", classes=_CLASSES, average=_soft_margin_average
        ),
    },
    traits={
        name: Traits(shapes=_shapes)
        for name in (
            "criterion.ClassNLLCriterion",
            "criterion.CrossEntropyCriterion",
            "criterion.MultiMarginCriterion",
            "criterion.MultiLabelSoftMarginCriterion",
            "criterion.BCECriterion",
        )
    },
)
register_layer(
    "nn.WeightedMSECriterion",
    params=(_class_weights("weight"),),
    scratch=_SCRATCH,
    module=of_runtime("criterion.WeightedMSECriterion", shape("weight"), average=_AVERAGE),
    traits=Traits(shapes=lambda shape, *_, **__: {"weight": shape}),
)
register_layer(
    "cudnn.VolumetricCrossEntropyCriterion",
    params=(_class_weights("scec.nll.weights"),),
    scratch=f"{_SCRATCH} scec",
    module=of_runtime(
        "criterion.CrossEntropyCriterion", classes=_CLASSES, average=_volumetric_average, index_base=BASE
    ),
)
# torch.nn.CrossEntropyLoss.
register_layer(
    "nn.CrossEntropyCriterion",
    "cudnn.SpatialCrossEntropyCriterion",
    params=(_class_weights("nll.weights"),),
    scratch=f"{_SCRATCH} lsm slsm nll",
    module=of_runtime(
        "criterion.CrossEntropyCriterion",
        classes=_CLASSES,
        average=_cross_entropy_average,
        ignore_index=_target("nll.ignoreIndex"),
        index_base=BASE,
    ),
)


_WEIGHTS = made(lambda lua: tuple(map(float, lua.numbers("weights"))))
register_layer(
    children=criterions,
    scratch="weights",
    module={
        "nn.MultiCriterion": of_runtime("criterion.MultiCriterion", weights=_WEIGHTS),
        "nn.ParallelCriterion": of_runtime(
            "criterion.ParallelCriterion", weights=_WEIGHTS, repeat_target=flag("repeatTarget")
        ),
    },
)
register_layer(
    children=named_modules("criterion"),
    scratch="clones zeroMask",
    module={"nn.CriterionTable": of_runtime("criterion.CriterionTable")},
    traits=Traits(flow=walk.unknown),
)
# A layer: of nngraph.
register_layer(
    children=named_modules("criterion"),
    kind="layer",
    module={"nn.ModuleFromCriterion": of_runtime("criterion.ModuleFromCriterion")},
    traits=Traits(takes_list=True),
)
register_layer(
    "nn.ModuleCriterion",
    children=named_modules("inputModule", "targetModule", "criterion"),
    scratch=_SCRATCH,
    module=of_runtime("criterion.ModuleCriterion"),
)
