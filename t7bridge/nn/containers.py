"""Containers: what they hold is in their children. Sources: nn 8726825, nngraph 3ed3b9b, cunn 64224a6, dpnn, rnn."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph.objects import TorchObject
from ..graph.tensor import Tensor
from .fields import Fields, items_of, lookup
from .layouts import copied, elements
from .registry import Child, Param, Source, first_module, modules, named_modules, param, register_layer

register_layer(
    "nn.Container",
    "nn.Sequential",
    "nn.Concat",
    "nn.DepthConcat",
    "nn.ConcatTable",
    "nn.Parallel",
    "nn.ParallelTable",
    "nn.Decorator",
    "nn.Bottle",
    "nn.DontCast",
    "nn.NaN",
    "nn.Profile",
    "nn.GPU",
    "nn.Maxout",
    "nn.CReLU",
    "nn.SpatialLPPooling",
    "nn.Inception",  # dpnn
    "nn.FireModule",
    "nn.Serial",
    "cudnn.BatchBRNNReLU",
    "w2nn.AuxiliaryLossTable",
    children=modules,
    scratch="inShape outShape module pool transfer squeeze expand timer",
)
# CRNN: one module for every element of a table.
register_layer("nn.SharedParallelTable", children=named_modules("unit"))
register_layer("nn.Convert", children=modules, scratch="converter")
# Older files hold the copies that Lua made for the elements of the last input; cunn writes only the first replica
# since class version 2, and all of them before.
register_layer(
    "nn.MapTable",
    "nn.DataParallelTable",
    "nn.DataParallel",
    children=first_module,
    scratch="flattenedParams inputGpu outputGpu impl",
)


def graph_modules(obj: TorchObject) -> Iterator[Child]:
    """The modules of a graph in the order of execution: `modules`, or as nngraph fills it from the forward nodes.

    Source: nngraph 3ed3b9b `gmodule.lua` `__init`; files before 2015-10-16 have no `modules`.
    """
    found = False
    for child in modules(obj):
        found = True
        yield child
    if found:
        return
    position = 0
    for number, node in enumerate(items_of(obj.get("forwardnodes")) or (), 1):
        module = lookup(node, "data.module")
        if module is not None:
            yield Child(str(position), f".forwardnodes[{number}].data.module", module)
            position += 1


register_layer("nn.gModule", children=graph_modules, scratch="fg bg innode outnode forwardnodes backwardnodes")


def _normalized_weight(fields: Fields) -> Tensor | None:
    """The weight that the file leaves out: g * v / sqrt(|v|² + 1e-4), with the dimensions put back.

    Source: nn 8726825 `WeightNorm.lua` `updateWeight`, `permuteOut`.
    """
    import numpy as np

    v, g = fields.tensor("v"), fields.tensor("g")
    wide = elements(v).astype("f8")
    norm = np.sqrt((wide**2).sum(1) + 10e-5)
    weight = wide * (elements(g).astype("f8").reshape(-1) / norm)[:, None]
    weight = weight.reshape(fields.sizes("viewOut"))
    # The output dimension was moved to the front; the others kept their order.
    weight = np.moveaxis(weight, 0, fields.index0("outputDim", 1))
    return copied(v, weight.astype(elements(v).dtype))


def _wrapped_weight(fields: Fields) -> tuple[Param, ...]:
    kept = (param("g"), param("v"))
    # Before Lua left the weight out of the file it was an ordinary field of the child.
    if fields.find_tensor("modules.1.weight") is not None:
        return kept
    rebuilt = Param(
        "0.weight",
        (Source("weight"),),
        "derived",
        _normalized_weight,
        "the file leaves the weight out: rebuilt from v and g",
    )
    return (*kept, rebuilt)


register_layer(
    "nn.WeightNorm", params=_wrapped_weight, children=modules, scratch="weight bias", defaults={"outputDim": 1.0}
)
