"""Layers that move, select, combine or compare values: no state. Sources: nn 8726825, dpnn, rnn, zoo code."""

from __future__ import annotations

from typing import Any

from .. import flows
from .. import output_shapes as out
from ..fields import items_of
from ..mapping import (
    BASE,
    INPLACE,
    LAYERS,
    Call,
    Lua,
    Row,
    becomes,
    dim,
    flag,
    integer,
    number,
    of_runtime,
    of_torch,
    optional,
)
from ..registry import Traits, register_layer

_SHAPE = f"{LAYERS}shape."
_DIMS = optional("nInputDims")


@becomes("shape.View")
def _view(lua: Lua) -> Call:
    kwargs = {"n_input_dims": lua.integer("numInputDims")} if lua.has("numInputDims") else {}
    return Call(f"{_SHAPE}View", lua.sizes("size"), kwargs)


@becomes("shape.Reshape")
def _reshape(lua: Lua) -> Call:
    kwargs = {"batch_mode": lua.flag("batchMode")} if lua.has("batchMode") else {}
    return Call(f"{_SHAPE}Reshape", lua.sizes("size"), kwargs)


@becomes("shape.Squeeze")
def _squeeze(lua: Lua) -> Call:
    at = lua.index0("dim") if lua.has("dim") else None
    return Call(f"{_SHAPE}Squeeze", (at,), {"n_input_dims": lua.optional("numInputDims")})


@becomes("shape.Transpose")
def _transpose(lua: Lua) -> Call:
    pairs: list[tuple[int, int]] = []
    for at, _ in enumerate(items_of(lua.get("permutations")) or (), 1):
        place = f"permutations.{at}"
        pairs.append((lua.integer(f"{place}.1") - 1, lua.integer(f"{place}.2") - 1))
    kwargs = {"n_input_dims": lua.integer("numInputDims")} if lua.has("numInputDims") else {}
    return Call(f"{_SHAPE}Transpose", tuple(pairs), kwargs)


@becomes("shape.Cast", "torch.nn.Identity")
def _copy(lua: Lua) -> Call:
    """Map nn.Copy: the output has the type that it copies to."""
    dtype = lua.dtype("output")
    return Call(f"{_SHAPE}Cast", (dtype,)) if dtype else Call("torch.nn.Identity")


@becomes("shape.Convert")
def dpnn_convert(lua: Lua) -> Call:
    """Map dpnn's conversion from one order of dimensions to another."""
    before, after = lua.text("inputShape", "b*"), lua.text("outputShape", "b*")
    ways = (
        sorted(before) == sorted(after)
        or after == "bf"
        or (after == "b" and len(before) == 2)
        or (before, after) == ("b", "bt")
    )
    if not ways:
        raise lua.wrong("outputShape", "a conversion that dpnn knows", f"{before} to {after}")
    return Call(f"{_SHAPE}Convert", (before, after), {"dtype": lua.dtype("output")}, childless=True)


@becomes("shape.OneHot")
def _one_hot(lua: Lua) -> Call:
    kwargs = {"index_base": lua.index_base, "dtype": lua.dtype("output") or "float32"}
    return Call(f"{LAYERS}shape.OneHot", (lua.integer("outputSize"),), kwargs)


@becomes("shape.ArgMax")
def _arg_max(lua: Lua) -> Call:
    dims = lua.integer("nInputDim") if lua.has("nInputDim") else 9
    kwargs = {
        "n_input_dims": dims if dims < 9 else None,
        "index_base": lua.index_base,
        "dtype": lua.dtype("output") or "int64",
    }
    return Call(f"{LAYERS}shape.ArgMax", (lua.index0("dim", 1),), kwargs)


def _sum(average: bool) -> Row:
    """Map sums: `nn.Mean` had no `sizeAverage` while it was a class of its own."""
    return of_runtime(
        "shape.Sum",
        dim("dimension", 1),
        n_input_dims=_DIMS,
        average=flag("sizeAverage", average),
        squeeze=flag("squeeze", True),
    )


@becomes("table.SelectTable")
def _select_table(lua: Lua) -> Call:
    index: Any = lua.get("index")
    index = lua.text("index") if isinstance(index, (bytes, str)) else lua.index0("index")
    return Call(f"{LAYERS}table.SelectTable", (index,))


@becomes("table.MixtureTable")
def _mixture(lua: Lua) -> Call:
    return Call(f"{LAYERS}table.MixtureTable", (lua.index0("dim"),) if lua.has("dim") else ())


_IDENTITY = of_torch("Identity")
register_layer(
    "nn.Module",
    scratch="eye outputIndices",
    module={
        "nn.Identity": _IDENTITY,
        "nn.PrintSize": _IDENTITY,
        "nn.CopyGrad": _IDENTITY,
        "nn.Copy": _copy,
        "nn.Contiguous": of_runtime("shape.Contiguous"),
        "nn.Collapse": of_runtime("shape.Collapse", integer("nInputDim")),
        "nn.Reshape": _reshape,
        "nn.View": _view,
        "nn.Squeeze": _squeeze,
        "nn.Unsqueeze": of_runtime("shape.Unsqueeze", dim("pos"), n_input_dims=optional("numInputDims")),
        "nn.Transpose": _transpose,
        "nn.Replicate": of_runtime(
            "shape.Replicate", integer("nfeatures"), dim("dim", 1), n_input_dims=optional("ndim")
        ),
        "nn.ExpandAs": of_runtime("shape.ExpandAs"),
        "nn.Select": of_runtime("shape.Select", dim("dimension"), dim("index")),
        "nn.Narrow": of_runtime("shape.Narrow", dim("dimension"), dim("index"), integer("length", 1)),
        "nn.Index": of_runtime("shape.Index", dim("dimension"), index_base=BASE),
        "nn.MaskedSelect": of_runtime("shape.MaskedSelect"),
        "nn.OneHot": _one_hot,
        "OneHot": _one_hot,  # char-rnn
        "nn.ArgMax": _arg_max,
        "nn.SAdd": of_runtime("linear.SAdd", number("addend"), negate=flag("negate")),
        "nn.SeqReverseSequence": of_runtime("shape.Reverse", dim("dim")),
        "nn.Sum": _sum(False),
        "nn.Mean": _sum(True),
        "nn.Max": of_runtime("shape.Max", dim("dimension", 1), n_input_dims=_DIMS),
        "nn.Min": of_runtime("shape.Min", dim("dimension", 1), n_input_dims=_DIMS),
    },
    traits={
        "torch.nn.Identity": Traits(shares_memory=True, is_identity=True, flow=flows.unchanged),
        "shape.Cast": Traits(shares_memory=True, written=("cast",), output=out.same),
        "shape.Contiguous": Traits(shares_memory=True, written=("expression", "x.contiguous()"), output=out.same),
        "shape.Collapse": Traits(shares_memory=True, loses_batch=True),
        "shape.Reshape": Traits(
            shares_memory=True, loses_batch=True, keeps_batch_if="batch_mode", written=("reshape",), output=out.reshape
        ),
        "shape.View": Traits(
            shares_memory=True, loses_batch=True, keeps_batch_if="n_input_dims", written=("view",), output=out.view
        ),
        "shape.Squeeze": Traits(shares_memory=True, loses_batch=True, output=out.squeeze),
        "shape.Unsqueeze": Traits(shares_memory=True, written=("unsqueeze",), output=out.unsqueeze),
        "shape.Transpose": Traits(copies=True, written=("transpose",), output=out.transpose),
        # Source: nn 8726825 `Replicate.lua`: its output has the storage of its input and a stride of 0.
        "shape.Replicate": Traits(shares_memory=True, repeats=True, output=out.replicate),
        "shape.ExpandAs": Traits(takes_list=True, shares_memory=True, repeats=True),
        # They copy in Lua; that makes a difference only for in-place changes.
        "shape.Select": Traits(
            shares_memory=True, copies=True, written=("expression", "x.select(dim, index)", False), output=out.select
        ),
        "shape.Narrow": Traits(shares_memory=True, copies=True, written=("narrow",), output=out.narrow),
        "shape.OneHot": Traits(output=out.one_hot),
        "linear.SAdd": Traits(output=out.same),
        "shape.Index": Traits(takes_list=True),
        "shape.MaskedSelect": Traits(takes_list=True),
        "shape.Reverse": Traits(written=("expression", "x.flip(dim)"), output=out.same),
        "shape.Sum": Traits(written=("reduce", "sum"), output=out.reduced),
        "shape.Max": Traits(written=("reduce", "max", "values"), output=out.reduced),
        "shape.Min": Traits(written=("reduce", "min", "values"), output=out.reduced),
    },
)
register_layer(
    scratch="maxIdx minIdx maxVals minVals gradMaxVals maskByteTensor w w1 w22 w32 ones diff input_map",
    module={
        "nn.CAddTable": of_runtime("table.CAddTable", inplace=INPLACE),
        "nn.CAddTensorTable": of_runtime("table.CAddTensorTable"),
        "nn.CSubTable": of_runtime("table.CSubTable"),
        "nn.CMulTable": of_runtime("table.CMulTable"),
        "nn.CDivTable": of_runtime("table.CDivTable"),
        "nn.CMaxTable": of_runtime("table.CMaxTable"),
        "nn.CMinTable": of_runtime("table.CMinTable"),
        "nn.JoinTable": of_runtime("table.JoinTable", dim("dimension"), n_input_dims=_DIMS),
        "nn.SplitTable": of_runtime("table.SplitTable", dim("dimension"), n_input_dims=_DIMS),
        "nn.SelectTable": _select_table,
        "nngraph.JustElement": of_runtime("table.SelectTable", 0),
        "nngraph.JustTable": of_runtime("table.JustTable"),
        "nn.NarrowTable": of_runtime("table.NarrowTable", dim("offset"), integer("length", 1)),
        "nn.FlattenTable": of_runtime("table.FlattenTable"),
        "nn.ReverseTable": of_runtime("table.ReverseTable"),
        "nn.MixtureTable": _mixture,
        "nn.ZipTable": of_runtime("table.ZipTable"),
        "nn.ZipTableOneToMany": of_runtime("table.ZipTableOneToMany"),
        "nn.DotProduct": of_runtime("distance.DotProduct"),
        "nn.CosineDistance": of_runtime("distance.CosineDistance"),
        "nn.PairwiseDistance": of_runtime("distance.PairwiseDistance", number("norm", 2.0)),
        "nn.MM": of_runtime("distance.MM", flag("transA"), flag("transB")),
        "nn.MV": of_runtime("distance.MV", flag("trans")),
    },
    traits={
        "table.CAddTable": Traits(takes_list=True, written=("fold", "+"), output=out.fold),
        "table.CSubTable": Traits(takes_list=True, written=("fold", "-", 2), output=out.fold),
        "table.CMulTable": Traits(takes_list=True, written=("fold", "*"), output=out.fold),
        "table.CDivTable": Traits(takes_list=True, written=("fold", "/", 2), output=out.fold),
        "table.CMaxTable": Traits(takes_list=True, written=("extreme", "gt"), output=out.fold),
        "table.CMinTable": Traits(takes_list=True, written=("extreme", "lt"), output=out.fold),
        "table.CAddTensorTable": Traits(takes_list=True, returns_list=True, flow=flows.tensors),
        "table.JoinTable": Traits(takes_list=True, written=("join",), output=out.join),
        "table.SplitTable": Traits(
            returns_list=True, shares_memory=True, written=("split",), output=out.split, flow=flows.tensors
        ),
        "table.SelectTable": Traits(takes_list=True, shares_memory=True, written=("element",), flow=flows.element),
        "table.JustTable": Traits(returns_list=True, shares_memory=True, written=("list_of_one",), flow=flows.wrapped),
        "table.NarrowTable": Traits(
            flow=flows.narrowed,
            takes_list=True,
            returns_list=True,
            shares_memory=True,
            written=("slice",),
        ),
        "table.FlattenTable": Traits(
            flow=flows.flattened,
            takes_list=True,
            returns_list=True,
            shares_memory=True,
            written=("flat",),
        ),
        "table.ReverseTable": Traits(
            takes_list=True, returns_list=True, shares_memory=True, written=("reversed",), flow=flows.turned
        ),
        "table.ZipTable": Traits(takes_list=True, returns_list=True, shares_memory=True, flow=flows.zipped),
        "table.ZipTableOneToMany": Traits(takes_list=True, returns_list=True, shares_memory=True, flow=flows.paired),
        "table.MixtureTable": Traits(takes_list=True),
        "distance.DotProduct": Traits(takes_list=True, output=out.pairs),
        "distance.CosineDistance": Traits(takes_list=True, output=out.pairs),
        "distance.PairwiseDistance": Traits(takes_list=True, output=out.pairs),
        "distance.MM": Traits(takes_list=True, output=out.product),
        "distance.MV": Traits(takes_list=True),
    },
)
