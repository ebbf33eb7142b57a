"""Containers: their state is in their children. Sources: nn 8726825, nngraph 3ed3b9b, cunn 64224a6, dpnn, rnn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import evolve

from ...data import np
from ...graph.dtypes import LUA_CLASSES
from ...graph.lua import TorchObject, Value
from ...graph.tensor import Tensor
from .. import walk
from ..fields import Fields, lookup
from ..graphs import graph_modules
from ..layouts import Layout, Permute, Reshape, apply_layout, copied, elements
from ..mapping import (
    LAYERS,
    Call,
    Lua,
    Mapped,
    NotMappedError,
    becomes,
    dim,
    flag,
    integer,
    of_runtime,
    of_torch,
    same_names,
    shape,
)
from ..places import is_scratch
from ..registry import (
    Child,
    Layer,
    Param,
    Recording,
    Traits,
    children_at,
    declare_recordings,
    first_module,
    keeps,
    layer_of,
    modules,
    named_modules,
    own_names,
    param,
    register_layer,
    run_elsewhere,
    run_from,
)
from ..texts import Printed
from ..torch_nn import Refused, Tensors
from .conv import Turn
from .shape import dpnn_convert

# Lua runs the module in the field `module`, also if a program put another one into `modules`.
run_elsewhere(dict.fromkeys(("nn.Profile", "nn.MapTable"), run_from("module")))
declare_recordings(
    {
        # Each element has a copy of the module, which keeps its own output.
        "nn.MapTable": Recording(flow=walk.parallel, transparent=True),
        # The weight of the module inside is not in the file.
        "nn.WeightNorm": Recording(flow=walk.unknown),
    }
)

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
    """Map a container whose content keeps its element type: it may cast its input, its output, both or nothing."""
    type_inside = _element_type(lua.text("moduleType")) if lua.flag("castin") else None
    type_outside = _element_type(lua.text("_type")) if lua.flag("castout") else None
    kwargs = {}
    if type_inside:
        kwargs["inside"] = type_inside
    if type_outside:
        kwargs["outside"] = type_outside
    casts = bool(kwargs)
    return Call(f"{LAYERS}containers.DontCast" if casts else "torch.nn.Sequential", kwargs=kwargs)


def _element_type(class_name: str) -> str | None:
    """Return the element type of a class of tensors, `float32` for `torch.FloatTensor`; `None` for any other class."""
    if class_name not in LUA_CLASSES:
        return None
    element, _ = LUA_CLASSES[class_name]
    return element.name


_MODULES: dict[str, Mapped] = {
    **dict.fromkeys(_SEQUENTIAL, of_torch("Sequential")),
    "nn.Concat": of_runtime("containers.Concat", dim=dim("dimension")),
    "nn.DepthConcat": of_runtime("containers.DepthConcat", dim=dim("dimension")),
    **same_names("containers", "ConcatTable ParallelTable"),
    "nn.Parallel": of_runtime(
        "containers.Parallel", input_dim=dim("inputDimension"), output_dim=dim("outputDimension")
    ),
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
        "containers.Concat": Traits(
            flow=walk.concatenated,
            transparent=True,
            block="Branches",
            typed="containers.TypedConcat",
        ),
        "containers.TypedConcat": Traits(flow=walk.concatenated),
        "containers.DepthConcat": Traits(flow=walk.padded, typed="containers.DepthConcat"),
        "containers.Bottle": Traits(flow=walk.bottled, transparent=True),
        "containers.Batched": Traits(flow=walk.sequence),
        "containers.ConcatTable": Traits(returns_list=True, flow=walk.branches, transparent=True, block="Branches"),
        "containers.ParallelTable": Traits(
            takes_list=True,
            returns_list=True,
            flow=walk.parallel,
            transparent=True,
            block="Block",
        ),
        "containers.DontCast": Traits(flow=walk.sequence, casts=True),
        "containers.Parallel": Traits(flow=walk.sliced, typed="containers.Parallel"),
        "torch.nn.Sequential": Traits(flow=walk.sequence, transparent=True),
    },
    text={
        **dict.fromkeys(("nn.Sequential", "nn.Maxout", "nn.SpatialLPPooling"), Printed("sequential")),
        **dict.fromkeys(
            ("nn.Concat", "nn.DepthConcat", "nn.ConcatTable", "nn.Parallel", "nn.ParallelTable"), Printed("branches")
        ),
        **dict.fromkeys(("nn.Decorator", "nn.Bottle", "nn.DontCast", "nn.Profile"), Printed("decorator")),
        "nn.GPU": Printed("decorator", "({device:s})"),
        "nn.NaN": Printed("decorator", "({id:s})"),
    },
)
_MAPPED = Traits(takes_list=True, returns_list=True, flow=walk.mapped, written=("flow",))
# CRNN: one module for every element of a table.
register_layer(
    "nn.SharedParallelTable",
    children=named_modules("unit"),
    module=of_runtime("containers.SharedParallelTable"),
    traits=evolve(_MAPPED, transparent=True, written=()),
)
register_layer(
    "nn.Convert",
    children=modules,
    scratch="converter",
    module=dpnn_convert,
    traits=Traits(shares_memory=True, casts=True),
)


def _options(obj: TorchObject, layer: Layer, common: frozenset[str]) -> dict[bytes, Value]:
    """Return the fields of an object that are numbers, texts and truth values, but for temporary ones.

    Args:
        obj: the object.
        layer: the entry of its class.
        common: the names of fields that every module has, which are left out.
    """
    options: dict[bytes, Value] = {}
    if obj.fields is None:
        return options
    for key, value in obj.fields.raw_items():
        if not isinstance(key, bytes) or not isinstance(value, (bool, float, bytes)):
            continue
        name = key.decode("utf-8", "replace")
        if not is_scratch(name) and name not in common and name not in layer.scratch:
            options[key] = value
    return options


def are_clones(first: Value, *others: Value, sharing: bool = True) -> bool:
    """Return whether modules are of the same classes with the same options, and so are the modules inside them.

    Args:
        first: a module.
        *others: those to be compared with it.
        sharing: whether they must also share all their tensors.

    Returns:
        False also if there are too many modules to compare.
    """
    common = own_names("nn.Module")
    stack = [(first, other) for other in others]
    compared: set[tuple[int, int]] = set()
    while stack and len(compared) < _MOST_COMPARED:
        one, other = stack.pop()
        if one is other or (id(one), id(other)) in compared:
            continue
        compared.add((id(one), id(other)))
        inside = _pairs_inside_clones(one, other, sharing, common)
        if inside is None:
            return False
        stack += inside
    return not stack  # pairs that are left were not compared


def _pairs_inside_clones(
    one: Value, other: Value, sharing: bool, common: frozenset[str]
) -> list[tuple[Value, Value]] | None:
    """Return the pairs of values inside two modules; the modules are clones if those of each pair are, too.

    Args:
        one: a module.
        other: another one.
        sharing: whether they must also share all their tensors.
        common: the names of fields that every module has, which are not compared.

    Returns:
        `None` if the two are no clones, whatever is inside.
    """
    if not isinstance(one, TorchObject) or not isinstance(other, TorchObject):
        return None
    layer = layer_of(one.class_name)
    if one.class_name != other.class_name or layer is None:
        return None
    if _options(one, layer, common) != _options(other, layer, common):
        return None
    if sharing and not _share_tensors(one, other, layer):
        return None
    inside_one = _values_inside(one, layer)
    inside_other = _values_inside(other, layer)
    if len(inside_one) != len(inside_other):
        return None
    return list(zip(inside_one, inside_other))


def _values_inside(obj: TorchObject, layer: Layer) -> list[Value]:
    """Return what an object holds as the modules inside it, by the entry of its class."""
    if layer.children is None:
        return []
    return [child.value for child in layer.children(obj)]


def _share_tensors(one: TorchObject, other: TorchObject, layer: Layer) -> bool:
    """Return whether the tensors of two objects of one class are the same."""
    for declared in layer.params_of(Fields(one, path="", defaults=layer.defaults)):
        for source in declared.sources:
            if not _are_one_tensor(lookup(one, source.path), lookup(other, source.path)):
                return False
    return True


def _are_one_tensor(one: Value, other: Value) -> bool:
    """Return whether two fields, each a tensor or nil, are the same elements in memory, or both empty or both nil."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other)
    if one.size != other.size:
        return False
    is_same_view = one.storage is other.storage and (one.offset, one.stride) == (other.offset, other.stride)
    return is_same_view or not one.numel


_MOST_COMPARED = 100_000
"""Maximum number of pairs of modules compared in the clones of one `nn.MapTable`."""


def clones(obj: TorchObject) -> Iterator[Child]:
    """Yield the module of an `nn.MapTable`, and its clones for other elements if they have tensors of their own.

    The first is the field `module`, which Lua uses for the first element, whatever is first in `modules`.
    """
    elements = list(modules(obj))
    if elements and are_clones(*(child.value for child in elements)):
        elements = elements[:1]
    yield from elements


register_layer(
    "nn.MapTable",
    children=clones,
    scratch="sharedparams",
    remark="in training each element has statistics of batch normalization of its own, as in Lua; those of elements "
    "without a module of their own in the file are not in the state dict",
    module=of_runtime("containers.MapTable"),
    traits=_MAPPED,
    text=Printed("map"),
)
# Older files hold the copies that Lua made for other devices; cunn writes only the first replica since class version 2,
# and all of them before.
register_layer(
    "nn.DataParallelTable",
    "nn.DataParallel",
    children=first_module,
    scratch="flattenedParams inputGpu outputGpu impl",
    module=of_torch("Sequential"),
)


_GRAPH = Traits(flow=walk.graph, block="Graph", is_graph=True)
register_layer(
    "nn.gModule",
    children=graph_modules,
    scratch="fg bg innode outnode forwardnodes backwardnodes",
    module=of_runtime("containers.Graph"),
    traits={
        "containers.Graph": evolve(_GRAPH, transparent=True),
        "containers.Stateful": evolve(
            _GRAPH, written=("flow",)
        ),  # it takes and returns states as arguments of their own
    },
)


def _normalized_weight(fields: Fields) -> Tensor:
    """Return the weight that the file omits: g * v / sqrt(|v|² + 1e-4), with the dimensions put back.

    It is in PyTorch's layout; in Lua's if the layer inside, which determines the layout, is missing.

    Source: nn 8726825 `WeightNorm.lua` `updateWeight`, `permuteOut`.
    """
    v = fields.tensor("v")
    g = fields.tensor("g")
    with np.errstate(all="ignore"):
        directions = elements(v).astype("f8")
        lengths = elements(g).astype("f8").reshape(-1)
        norms = np.sqrt((directions**2).sum(1) + 1e-4)
        rows = directions * (lengths / norms)[:, None]
    # The output dimension was moved to the front; the others kept their order.
    output_first = rows.reshape(fields.sizes("viewOut"))
    output_dim = fields.index0("outputDim", 1)  # 0-based; the default, as the field, is Lua's number
    weight = np.moveaxis(output_first, 0, output_dim)
    rebuilt = copied(v, weight.astype(elements(v).dtype))
    # So far it is the field of the layer inside, in Lua's layout.
    child = fields.get("modules.1")
    if not isinstance(child, TorchObject):
        return rebuilt
    return apply_layout(_layout_of_weight(child), rebuilt, Fields(child))


def _layout_of_weight(child: TorchObject) -> Layout:
    """Return the layout of the weight of a layer, as its entry has it; no steps for a layer without one."""
    layer = layer_of(child.class_name)
    if layer is None:
        return ()
    for entry in layer.params_of(Fields(child, path="", defaults=layer.defaults)):
        if entry.name == "weight" and entry.sources:
            return entry.sources[0].layout
    return ()


@keeps("0.weight", "g", "v")
def _weight_norm_params(fields: Fields) -> tuple[Param, ...]:
    """Return the tensors of a WeightNorm, and the weight of the layer inside it if Lua left that out of the file."""
    learned = (param("g"), param("v"))
    # Before Lua omitted the weight from the file it was an ordinary field of the child.
    if fields.find_tensor("modules.1.weight") is not None:
        return learned
    rebuilt = Param(
        "0.weight",
        kind="derived",
        make=_normalized_weight,
        note="the weight is not in the file: rebuilt from v and g",
    )
    return (*learned, rebuilt)


def _layout_inside(lua: Lua) -> Layout:
    """Return the layout of the weight of the layer inside, whose Lua layout is what Lua normalizes.

    Raises:
        NotMappedError: the runtime's class cannot follow it: it has steps other than reshapes and, as the last one,
            another order of dimensions.
    """
    child = lua.get("modules.1")
    if not isinstance(child, TorchObject):
        return ()
    layout = _layout_of_weight(child)
    reshapes = layout[:-1] if layout and isinstance(layout[-1], Permute) else layout
    if not all(isinstance(step, (Reshape, Turn)) for step in reshapes):
        raise NotMappedError(f"normalizes the weight of a {child.class_name}", path=lua.path)
    return layout


def _shape_in_lua(lua: Lua) -> tuple[int, ...] | None:
    """Return the shape of Lua's weight; `None` if it is that of PyTorch."""
    return lua.sizes("weightSize") if _layout_inside(lua) else None


def _order_in_torch(lua: Lua) -> tuple[int, ...] | None:
    """Return the order of the dimensions of Lua's weight in PyTorch; `None` if it is the same."""
    layout = _layout_inside(lua)
    return layout[-1].order if layout and isinstance(layout[-1], Permute) else None


def _weight_norm_shapes(
    module: Any, dim: int, length_shape: tuple[int, ...], direction_shape: tuple[int, ...], *_: Any
) -> Tensors:
    """Return the shapes of a WeightNorm's own tensors, which are those of its arguments."""
    if "weight" not in module.tensors:
        raise Refused("the module inside has no weight")
    return {"g": length_shape, "v": direction_shape}


register_layer(
    "nn.WeightNorm",
    params=_weight_norm_params,
    children=modules,
    scratch="weight bias",
    module=of_runtime(
        "containers.WeightNorm",
        dim=dim("outputDim", 1),
        length_shape=shape("g"),
        direction_shape=shape("v"),
        lua_shape=_shape_in_lua,
        order=_order_in_torch,
    ),
    traits=Traits(flow=walk.sequence, shapes=_weight_norm_shapes),
    text=Printed("decorator"),
)


# `modules` was added later than `classifier`.
register_layer(
    "nn.SpatialClassifier",
    children=children_at("modules", "classifier"),
    scratch="classifier inputF inputT outputF outputT gradOutputF gradOutputT gradInputF gradInputT",
    module=of_runtime("containers.SpatialClassifier", spatial=flag("spatialOutput", True)),
)
