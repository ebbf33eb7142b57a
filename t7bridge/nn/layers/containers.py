"""Containers: their state is in their children. Sources: nn 8726825, nngraph 3ed3b9b, cunn 64224a6, dpnn, rnn."""

from __future__ import annotations

from ...graph.dtypes import LUA_CLASSES
from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ..fields import Fields
from ..mapping import LAYERS, Call, Lua, Mapped, NotMappedError, becomes, dim, integer, of_runtime, of_torch
from ..registry import (
    Param,
    Source,
    first_module,
    graph_modules,
    keeps,
    layer_of,
    modules,
    named_modules,
    param,
    register_layer,
)
from ..traits import Traits
from ..weights.layouts import Layout, Permute, Reshape, apply_layout, copied, elements
from .shape import dpnn_convert

# Containers that only call their children.
_SEQUENTIAL = (
    "nn.Sequential",
    "nn.Decorator",
    "nn.NaN",
    "nn.Profile",
    "nn.GPU",
    "nn.Maxout",
    "nn.SpatialLPPooling",
    "nn.Serial",
    "nn.FireModule",
)


@becomes("torch.nn.Sequential", "containers.DontCast")
def _dont_cast(lua: Lua) -> Call:
    """Map a container that does not cast its content; types are named as in `torch.FloatTensor`."""
    inside = lua.text("moduleType") if lua.flag("castin") else ""
    outside = lua.text("_type") if lua.flag("castout") else ""
    names = {"inside": _dtype(inside), "outside": _dtype(outside)}
    kwargs = {name: dtype for name, dtype in names.items() if dtype}
    return Call(f"{LAYERS}containers.DontCast" if kwargs else "torch.nn.Sequential", (), kwargs)


def _dtype(class_name: str) -> str | None:
    known = LUA_CLASSES.get(class_name)
    return known[0].name if known else None


_MODULES: dict[str, Mapped] = {
    **dict.fromkeys(_SEQUENTIAL, of_torch("Sequential")),
    "nn.Concat": of_runtime("containers.Concat", dim=dim("dimension")),
    "nn.DepthConcat": of_runtime("containers.DepthConcat", dim=dim("dimension")),
    "nn.ConcatTable": of_runtime("containers.ConcatTable"),
    "nn.Parallel": of_runtime(
        "containers.Parallel", input_dim=dim("inputDimension"), output_dim=dim("outputDimension")
    ),
    "nn.ParallelTable": of_runtime("containers.ParallelTable"),
    "nn.Bottle": of_runtime(
        "containers.Bottle", n_input_dims=integer("nInputDim", 2), n_output_dims=integer("nOutputDim", 2)
    ),
    "nn.DontCast": _dont_cast,
    "nn.Inception": of_runtime("containers.Batched"),  # dpnn
}
register_layer(
    "nn.Container",
    children=modules,
    scratch="inShape outShape module pool transfer squeeze expand timer kernelSize kernelStride outputSize reduceSize",
    module=_MODULES,
    traits={
        "containers.Concat": Traits(written=("concat",), block="Branches"),
        "containers.ConcatTable": Traits(returns_list=True, written=("branches",), block="Branches"),
        "containers.ParallelTable": Traits(takes_list=True, returns_list=True, written=("parallel",), block="Block"),
    },
)
# CRNN: one module for every element of a table.
register_layer(
    "nn.SharedParallelTable",
    children=named_modules("unit"),
    module=of_runtime("containers.SharedParallelTable"),
    traits={"containers.SharedParallelTable": Traits(takes_list=True, returns_list=True, written=("map",))},
)
register_layer(
    "nn.Convert",
    children=modules,
    scratch="converter",
    module=dpnn_convert,
    traits={"shape.Convert": Traits(shares_memory=True)},
)
# Older files hold the copies that Lua made for the elements of the last input; cunn writes only the first replica
# since class version 2, and all of them before.
register_layer(
    "nn.MapTable",
    "nn.DataParallelTable",
    "nn.DataParallel",
    children=first_module,
    scratch="flattenedParams inputGpu outputGpu impl sharedparams",
    module={
        "nn.MapTable": of_runtime("containers.MapTable"),
        "nn.DataParallelTable": of_torch("Sequential"),
        "nn.DataParallel": of_torch("Sequential"),
    },
    traits={"containers.MapTable": Traits(takes_list=True, returns_list=True, written=("map",))},
)


register_layer(
    "nn.gModule",
    children=graph_modules,
    scratch="fg bg innode outnode forwardnodes backwardnodes",
    module=of_runtime("graph.Graph"),
    traits={"graph.Graph": Traits(written=("graph",), block="Graph", is_graph=True)},
)


def _normalized_weight(fields: Fields) -> Tensor | None:
    """Return the weight that the file omits: g * v / sqrt(|v|² + 1e-4), with the dimensions put back.

    Source: nn 8726825 `WeightNorm.lua` `updateWeight`, `permuteOut`.
    """
    import numpy as np

    v, g = fields.tensor("v"), fields.tensor("g")
    with np.errstate(all="ignore"):
        wide = elements(v).astype("f8")
        norm = np.sqrt((wide**2).sum(1) + 10e-5)
        weight = wide * (elements(g).astype("f8").reshape(-1) / norm)[:, None]
    weight = weight.reshape(fields.sizes("viewOut"))
    # The output dimension was moved to the front; the others kept their order.
    weight = np.moveaxis(weight, 0, fields.index0("outputDim", 1))
    rebuilt = copied(v, weight.astype(elements(v).dtype))
    child = fields.get("modules.1")
    return apply_layout(_layout_of_weight(child), rebuilt, Fields(child)) if isinstance(child, TorchObject) else rebuilt


def _layout_of_weight(child: TorchObject) -> Layout:
    """Return the layout of the weight of the layer inside."""
    layer = layer_of(child.class_name)
    params = layer.params_of(Fields(child, "", layer.defaults)) if layer else ()
    return next((param.sources[0].layout for param in params if param.name == "weight" and param.sources), ())


@keeps("0.weight", "g", "v")
def _wrapped_weight(fields: Fields) -> tuple[Param, ...]:
    kept = (param("g"), param("v"))
    # Before Lua omitted the weight from the file it was an ordinary field of the child.
    if fields.find_tensor("modules.1.weight") is not None:
        return kept
    rebuilt = Param(
        "0.weight",
        (Source("weight"),),
        "derived",
        _normalized_weight,
        "the weight is not in the file: rebuilt from v and g",
    )
    return (*kept, rebuilt)


@becomes("containers.WeightNorm")
def _weight_norm(lua: Lua) -> Call:
    """Map weight normalization: Lua normalizes its own layout of the weight, which is not always PyTorch's."""
    kwargs: dict[str, object] = {
        "dim": lua.index0("outputDim", 1),
        "length_shape": lua.shape("g"),
        "direction_shape": lua.shape("v"),
    }
    child = lua.get("modules.1")
    layout = _layout_of_weight(child) if isinstance(child, TorchObject) else ()
    if layout:
        kwargs["lua_shape"] = lua.sizes("weightSize")
        *views, last = layout
        if isinstance(last, Permute):
            kwargs["order"] = last.order
        else:
            views.append(last)
        if not all(isinstance(step, Reshape) for step in views):
            raise NotMappedError(f"normalizes the weight of a {child.class_name}", path=lua.path)
    return Call(f"{LAYERS}containers.WeightNorm", (), kwargs)


register_layer(
    "nn.WeightNorm",
    params=_wrapped_weight,
    children=modules,
    scratch="weight bias",
    defaults={"outputDim": 1.0},
    module=_weight_norm,
)
