"""Linear layers, lookup tables, scales, offsets and distances to learned points.

Sources: nn 8726825, one Lua file a class; rnn `LookupTableMaskZero.lua`, fbcunn.
"""

from __future__ import annotations

from typing import Any

from ...data import np
from ...graph.tensor import Tensor
from .. import walk
from ..compounds import node, require
from ..fields import Fields
from ..layouts import REST, Reshape, copied, elements
from ..mapping import (
    BASE,
    INPLACE,
    LAYERS,
    Call,
    Lua,
    Read,
    becomes,
    either,
    extent,
    flag,
    has,
    made,
    number,
    of_runtime,
    of_torch,
    optional,
    shape,
)
from ..output_shapes import same, unknown
from ..registry import InLua, Param, Recording, Traits, add_traits, buffer, declare_recordings, param, register_layer
from ..torch_nn import Refused, Tensors, constructed

WEIGHT = param("weight")
BIAS = param("bias")

# weight (out, in), bias (out): torch.nn.Linear.
_COLUMNS = extent("weight", 1)
_ROWS = extent("weight", 0)
register_layer(
    "nn.Linear",
    "nn.LinearNoBias",
    params=(WEIGHT, BIAS),
    scratch="addBuffer",
    module=of_torch("Linear", _COLUMNS, _ROWS, bias=has("bias")),
    text={"nn.Linear": "({weight:2} -> {weight:1}){without}"},
    traits=Traits(polynomial=("linear",), features=1),
    in_lua={"nn.LinearNoBias": InLua(like="nn.Linear")},
)
register_layer(
    "nn.SparseLinear",
    params=(WEIGHT, BIAS),
    scratch="lastInput formatted_input shardBuffer",
    module=of_runtime("linear.SparseLinear", _COLUMNS, _ROWS, index_base=BASE),
    traits=Traits(like="Linear", output=unknown),
)


_INDEX_LINEAR = of_runtime(
    "linear.IndexLinear",
    extent("weight"),
    extent("bias"),
    # The field is added to 1-based keys: -1 by default.
    index_base=lambda lua: -lua.integer("offset", -1) - 1 + lua.index_base,
    normalize=lambda lua: lua.shape("weight")[1] > lua.shape("bias")[0],
)


def _index_shapes(in_features: int, out_features: int, index_base: int = 1, normalize: bool = False) -> Tensors:
    return {"weight": (in_features, out_features + 4 * normalize), "bias": (out_features,)}


# One row of (in, out) for each key: torch.nn.EmbeddingBag's layout. With normalize, 4 columns of statistics lead.
register_layer(
    "nn.IndexLinear",
    params=(WEIGHT, BIAS),
    scratch="gradWeightBuffer valuesBuffer normalizedValues cumSumSizes cumSumSizesCache sizes sizesCache "
    "keys values lkeys lvalues running",
    module=_INDEX_LINEAR,
    traits=Traits(takes_list=True, shapes=_index_shapes),  # keys and values
)


@becomes("linear.PartialLinear", "torch.nn.Linear")
def _partial_linear(lua: Lua) -> Call:
    """Map a linear layer of which only some rows are computed; to torch.nn.Linear if all are, in their order.

    Raises:
        NotMappedError: a program changed the modules inside, which look up rows r and multiply x by them, transposed.
    """
    product = node("nn.MM", ["x", node("nn.LookupTable", "r")], transB=True)
    require(lua, "network", pattern=product, inputs=["x", "r"])
    rows, columns = lua.shape("weight")
    kwargs = {"bias": "bias" in lua.shapes}
    all_rows = tuple(range(rows))
    partition = all_rows
    if lua.find_tensor("partition") is not None:
        partition = tuple(row - 1 for row in lua.sizes("partition"))  # Lua counts from 1
    if partition == all_rows:
        return Call("torch.nn.Linear", (columns, rows), kwargs)
    return Call(f"{LAYERS}linear.PartialLinear", (columns, rows), {**kwargs, "partition": partition})


def _partial_shapes(in_features: int, out_features: int, bias: bool = True, *, partition: tuple[int, ...]) -> Tensors:
    if not isinstance(partition, (tuple, str)):
        raise Refused("the partition is not a list")
    return constructed("Linear", (in_features, out_features, bias), {})


# The weight (out, in) is that of a LookupTable inside; bias (1, out): torch.nn.Linear.
register_layer(
    "nn.PartialLinear",
    params=(
        param("weight", field="network.modules.1.modules.2.weight"),
        param("bias", Reshape((REST,))),
    ),
    scratch="network allcolumns partition addBuffer buffer",
    module=_partial_linear,
    traits=Traits(like="Linear", shapes=_partial_shapes),
    text="({inputsize} -> {outputsize}){without}",
)


def _effective_weight(fields: Fields) -> Tensor | None:
    """Return the weight g * v / |v|, as nn 8726825 `LinearWeightNorm.lua` `updateWeightMatrix` computes it.

    The field `weight` has that of the last pass; it counts only if `g` or `v` is missing. `None` if that is missing,
    too.
    """
    v = fields.find_tensor("v")
    g = fields.find_tensor("g")
    if v is None or g is None:
        return fields.find_tensor("weight")
    directions = elements(v).astype("f8")
    lengths = elements(g).astype("f8").reshape(-1, 1)
    with np.errstate(all="ignore"):
        norms = np.sqrt((directions**2).sum(1, keepdims=True))
        norms = np.maximum(norms, fields.number("eps", 1e-16))
        weight = directions * (lengths / norms)
        return copied(v, weight.astype(elements(v).dtype))


def _weight_norm_shapes(in_features: int, out_features: int, bias: bool = True, *_: Any, **__: Any) -> Tensors:
    shapes: Tensors = {"weight": (out_features, in_features)}
    if bias:
        shapes["bias"] = (out_features,)
    shapes["weight_g"] = (out_features, 1)
    shapes["weight_v"] = (out_features, in_features)
    return shapes


# v (out, in) and g (out, 1) are what is learned: the names and shapes of torch.nn.utils.weight_norm(Linear).
register_layer(
    "nn.LinearWeightNorm",
    params=(
        Param("weight", kind="derived", make=_effective_weight),
        BIAS,
        param("weight_g", field="g"),
        param("weight_v", field="v"),
    ),
    scratch="weight norm scale addBuffer",
    module=of_runtime(
        "linear.LinearWeightNorm",
        extent("weight_v", 1),
        extent("weight_v", 0),
        bias=has("bias"),
        eps=number("eps", 1e-16),
    ),
    traits=Traits(shapes=_weight_norm_shapes),
    text="({inputSize} -> {outputSize}){without}",
)
# weight (out, in1, in2), bias (out): torch.nn.Bilinear.
register_layer(
    "nn.Bilinear",
    params=(WEIGHT, BIAS),
    scratch="buff1 buff2",
    module=of_runtime("linear.Bilinear", _COLUMNS, extent("weight", 2), _ROWS, bias=has("bias")),
    traits=Traits(takes_list=True, like="Bilinear"),
    text="({weight:2}x{weight:3} -> {weight:1}) {without}",
)

# bias (n), or (1) if one number is added to everything.
register_layer(
    "nn.Add",
    params=(BIAS,),
    module=of_runtime("linear.Add", extent("bias"), scalar=flag("scalar")),
    traits=Traits(polynomial=("learned", "add"), output=same, shapes=lambda size, *_, **__: {"bias": (size,)}),
)
# With the sizes given to the layer, which broadcast as in PyTorch.
register_layer(
    "nn.CAdd",
    params=(BIAS,),
    module=of_runtime("linear.CAdd", shape("bias").each),
    traits=Traits(output=same, shapes=lambda *shape: {"bias": shape}),
)
register_layer(
    "nn.CMul",
    params=(WEIGHT,),
    module=of_runtime("linear.CMul", shape("weight").each),
    traits=Traits(polynomial=("learned", "multiply"), output=same, shapes=lambda *shape: {"weight": shape}),
)
register_layer(
    "nn.Mul",
    params=(WEIGHT,),
    module=of_runtime("linear.Mul"),
    traits=Traits(output=same, shapes=lambda: {"weight": (1,)}),
)


register_layer(
    "nn.Constant",
    params=(buffer("value"),),
    module=of_runtime("shape.Constant", shape("value").each, n_input_dims=optional("nInputDim")),
    traits=Traits(flow=walk.constant, shapes=lambda *shape, n_input_dims=None: {"value": shape}),
)


def _addend(lua: Lua) -> float | tuple[float, ...]:
    """Return the constant of an AddConstant: a number, or one for each feature."""
    if lua.find_tensor("constant_scalar") is None:
        return lua.number("constant_scalar")
    return tuple(map(float, lua.numbers("constant_scalar")))


declare_recordings(dict.fromkeys(("nn.MulConstant", "nn.AddConstant"), Recording(restores_input=True)))
register_layer(
    module={
        "nn.MulConstant": of_runtime("linear.MulConstant", number("constant_scalar"), inplace=INPLACE),
        "nn.AddConstant": of_runtime("linear.AddConstant", _addend, inplace=INPLACE),
    },
    traits={
        "linear.MulConstant": Traits(written=("operator", "*"), polynomial=("constant", "multiply"), output=same),
        "linear.AddConstant": Traits(written=("operator", "+"), polynomial=("constant", "add"), output=same),
    },
    in_lua=dict.fromkeys(("nn.MulConstant", "nn.AddConstant"), InLua(options=("constant_scalar", "inplace"))),
)


def _highway_shapes(size: int, nonlinearity: str = "relu", gate_bias: float = 0.0, bias: bool = True) -> Tensors:
    shapes: Tensors = {}
    for layer in ("transform", "gate"):
        for name, extents in constructed("Linear", (size, size, bias), {}).items():
            shapes[f"{layer}.{name}"] = extents
    return shapes


add_traits({"linear.Highway": Traits(shapes=_highway_shapes, output=same)})  # recognized by `workshop/cells`

# weight (out, in).
register_layer(
    "nn.Cosine",
    params=(WEIGHT,),
    module=of_runtime("linear.Cosine", _COLUMNS, _ROWS),
    traits=Traits(shapes=lambda inputs, outputs: {"weight": (outputs, inputs)}),
)
# weight (in, out): one column for each point.
register_layer(
    "nn.Euclidean",
    params=(WEIGHT,),
    module=of_runtime("linear.Euclidean", _ROWS, _COLUMNS),
    traits=Traits(shapes=lambda *sizes: {"weight": sizes}),
)
register_layer(
    "nn.WeightedEuclidean",
    params=(WEIGHT, param("diagCov")),
    scratch="gradDiagCov",
    module=of_runtime("linear.WeightedEuclidean", _ROWS, _COLUMNS),
    traits=Traits(shapes=lambda *sizes: {"weight": sizes, "diagCov": sizes}),
)
# weight (k, dim): the centres.
register_layer(
    "nn.Kmeans",
    params=(WEIGHT,),
    scratch="clusterSampleCount",
    module=of_runtime("linear.Kmeans", _ROWS, _COLUMNS, scale=number("scale", 1.0), index_base=BASE),
    traits=Traits(shapes=lambda k, features, *_, **__: {"weight": (k, features)}),
)


def _padding(lua: Lua) -> int | None:
    """Return the row without gradient, 0-based; `None` for Lua's 0."""
    row = lua.integer("paddingValue", 0)
    return row - 1 if row >= 1 else None


def _norm(field: str, default: float | None = None) -> Read:
    """Read an option of the limit of the norms, which does not apply if there is none."""
    return made(lambda lua: lua.number(field, default) if lua.flag("maxNorm") else None).unless(None)


_OPTIONS: dict[str, Any] = {
    "padding_idx": made(_padding).unless(None),
    "max_norm": _norm("maxNorm"),
    "norm_type": _norm("normType", 2.0),
    "scale_grad_by_freq": flag("shouldScaleGradByFreq").unless(False),
}
_LOOK_UP = either(
    lambda lua: lua.index_base,
    of_runtime("linear.LookupTable", shape("weight").each, **_OPTIONS, index_base=BASE),
    of_torch("Embedding", shape("weight").each, **_OPTIONS),
)
# weight (n, dim): torch.nn.Embedding, with 0-based indices. LookupTableMaskZero has an extra first row, which is zero
# and has index 0. Before 2015-06 the sizes were in the field size. `Embedding` is a class of many programs of 2015,
# among them relatives of char-rnn.
register_layer(
    "nn.LookupTable",
    "nn.LookupTableGPU",
    "nn.Dictionary",
    "nn.Embedding",
    "Embedding",
    params=(param("weight"),),
    scratch="inputs size batchSize",
    module=_LOOK_UP,
    traits={
        "linear.LookupTable": Traits(written=("look_up",), like="Embedding", features=1, takes_tokens=True),
        "torch.nn.Embedding": Traits(features=1, takes_tokens=True),
    },
    in_lua={"nn.LookupTable": InLua(first_row=1)},
)
