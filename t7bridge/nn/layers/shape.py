"""Layers that move, select, combine or compare values: no state. Sources: nn 8726825, dpnn, rnn, zoo code."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from ...graph.lua import TorchObject
from .. import output_shapes as out
from .. import walk
from ..compounds import Expression, Node, row_of
from ..fields import Fields, items_of
from ..mapping import (
    BASE,
    INPLACE,
    LAYERS,
    Call,
    Lua,
    NotMappedError,
    Read,
    Row,
    becomes,
    dim,
    either,
    flag,
    integer,
    made,
    number,
    of_runtime,
    of_torch,
    optional,
    optional_dim,
    same_names,
    sizes,
)
from ..registry import InLua, Traits, register_layer

_DIMS = optional("nInputDims")


def _pairs(lua: Lua) -> tuple[tuple[int, int], ...]:
    """Return the pairs of dimensions that a Transpose exchanges, 0-based; see `_transposed` for negative ones."""
    count = len(items_of(lua.get("permutations")) or ())
    pairs = []
    for place_in_lua in range(1, count + 1):
        path = f"permutations.{place_in_lua}"
        pairs.append((_transposed(lua, f"{path}.1"), _transposed(lua, f"{path}.2")))
    return tuple(pairs)


def _transposed(lua: Lua, path: str) -> int:
    """Return one dimension that a Transpose exchanges: 0-based; with `numInputDims` -1 is the one before an example's.

    Raises:
        ModelError: it is below 1 without `numInputDims`, where Lua raises an error, or is no whole number.
    """
    dim_in_lua = lua.integer(path)
    if dim_in_lua < 1 and not lua.has("numInputDims"):
        raise lua.wrong(path, "a dimension from 1", float(dim_in_lua))
    return dim_in_lua - 1


def _output_type(default: str | None = None) -> Read:
    """Read the element type of the last output; without one a default."""
    return made(lambda lua: lua.dtype("output") or default)


_CONVERTERS = ("nn.Identity", "nn.Transpose", "nn.Reshape", "nn.Select", "nn.Sequential")
"""What dpnn's conversion builds with its first input."""


@becomes("shape.Convert")
def dpnn_convert(lua: Lua) -> Call:
    """Map dpnn's conversion from one order of dimensions to another, such as `bchw` to `bf`.

    Raises:
        ModelError: dpnn has no such conversion.
        NotMappedError: a program changed the module that converts.
    """
    before = lua.text("inputShape", "b*")  # a batch of anything, as in dpnn
    after = lua.text("outputShape", "b*")
    if not _is_conversion_of_dpnn(before, after):
        raise lua.wrong("outputShape", "a conversion that dpnn knows", f"{before} to {after}")
    converter = lua.get("converter")
    if isinstance(converter, TorchObject) and converter.class_name not in _CONVERTERS:
        raise NotMappedError("its converter was changed", path=lua.path)
    return Call(f"{LAYERS}shape.Convert", (before, after), {"dtype": lua.dtype("output")}, childless=True)


def _is_conversion_of_dpnn(before: str, after: str) -> bool:
    """Return whether dpnn converts one order of dimensions to another, by its own rules.

    Args:
        before: the order of the input, a letter for each dimension: b for the batch, f for features, t for time, h and
            w for the sides of images, and others.
        after: that of the output, likewise.
    """
    if sorted(before) == sorted(after):  # a permutation
        return True
    if after == "bf":  # all but the batch as one dimension
        return before != "bt"  # which dpnn refuses
    if after == "b":  # the first element of the other dimension
        return before in ("bt", "tb", "bf", "fb")
    return (before, after) == ("b", "bt")


def _arg_max_input_dims(lua: Lua) -> int | None:
    """Return the dimensions of an example of an ArgMax; `None` if any input is one.

    That is so where the field is missing, or larger than the dimensions of any input.
    """
    input_dims = lua.integer("nInputDim", _MORE_THAN_ANY_INPUT)
    return None if input_dims >= _MORE_THAN_ANY_INPUT else input_dims


_ONE_HOT = of_runtime("shape.OneHot", integer("outputSize"), index_base=BASE, dtype=_output_type("float32"))


def _sum(average: bool) -> Row:
    """Map sums and means.

    Args:
        average: whether a layer without the field `sizeAverage` is a mean, as `nn.Mean` was while it was no `nn.Sum`.
    """
    return of_runtime(
        "shape.Sum",
        dim("dimension", 1),
        n_input_dims=_DIMS,
        average=flag("sizeAverage", average),
        squeeze=flag("squeeze", True),
    )


def _index(lua: Lua) -> int | str:
    """Return the index of a SelectTable: a key of a table of names, or a position, 0-based."""
    named = isinstance(lua.get("index"), (bytes, str))
    return lua.text("index") if named else lua.index0("index")


def _position(name: str) -> Read:
    """Read a position, 0-based, for a layer of Lua that does not count negative ones from the end; they are refused."""

    def position_from_0(lua: Lua) -> int:
        position = lua.index0(name)
        if position < 0:
            raise lua.wrong(name, "a position from 1", float(position))
        return position

    return Read("dim", position_from_0, (name,))


def _unsqueezed(fields: Fields, output: Node) -> Expression:
    """Return the output of an Unsqueeze in a compound, without the number of dimensions of its input.

    Lua's layer remembers that number from its first input, which in a compound is a batch of vectors, of 2.
    """
    if output.options.get("numInputDims") != 2:
        return output
    return evolve(output, options={"pos": output.options.get("pos")})


def _averaged(fields: Fields, output: Node) -> Expression:
    """Return the output of an nn.Mean in a compound layer, which is recognized by the expression of its output.

    Only later releases have `sizeAverage`. It is no option of the node, so that the means of all releases are equal.

    Raises:
        LookupError: it is false, which makes the layer a sum: no compound layer is recognized then.
    """
    if fields.get("sizeAverage") is False:
        raise LookupError("a sum")
    return output


def _rows(fields: Fields, output: Node) -> Expression:
    """Return the rows of a value that an nn.SplitTable in a compound splits, after an nn.Reshape into a few rows.

    Args:
        fields: those of the nn.SplitTable, which are not needed.
        output: what it returns, as a node with its options and its input.

    Raises:
        LookupError: it splits something else, or there are too many rows.
    """
    value = output.input
    size: tuple[Any, ...] = ()
    if isinstance(value, Node) and value.layer == "nn.Reshape":
        size = value.options.get("size", ())
    # The rows are the first dimension of an example of 2, or the second where the dimension of batches is counted.
    splits_rows = output.options in ({"dimension": 1, "nInputDims": 2}, {"dimension": 2})
    if not splits_rows or len(size) != 2 or size[0] > _MOST_ROWS:
        raise LookupError("splits something else")
    return [row_of(value, row) for row in range(size[0])]


_MORE_THAN_ANY_INPUT = 9
"""Number of dimensions that no input of an ArgMax has."""
_MOST_ROWS = 64
"""Maximum number of rows of an expression; an LSTM has four gates."""
_IDENTITY = of_torch("Identity")
register_layer(
    "nn.Module",
    scratch="eye outputIndices",
    module={
        "nn.Identity": _IDENTITY,
        "nn.PrintSize": _IDENTITY,
        "nn.CopyGrad": _IDENTITY,
        # Its output has the type that it copies to.
        "nn.Copy": either(lambda lua: lua.dtype("output"), of_runtime("shape.Cast", _output_type()), _IDENTITY),
        **same_names("shape", "Contiguous ExpandAs MaskedSelect"),
        "nn.Collapse": of_runtime("shape.Collapse", integer("nInputDim")),
        "nn.Reshape": of_runtime(
            "shape.Reshape",
            sizes("size").each,
            batch_mode=lambda lua: lua.flag("batchMode") if lua.has("batchMode") else None,
        ),
        "nn.View": of_runtime("shape.View", sizes("size").each, n_input_dims=optional("numInputDims")),
        "nn.Squeeze": of_runtime("shape.Squeeze", optional_dim("dim"), n_input_dims=optional("numInputDims")),
        "nn.Unsqueeze": of_runtime("shape.Unsqueeze", _position("pos"), n_input_dims=optional("numInputDims")),
        "nn.Transpose": of_runtime("shape.Transpose", made(_pairs).each, n_input_dims=optional("numInputDims")),
        "nn.Replicate": of_runtime(
            "shape.Replicate", integer("nfeatures"), dim("dim", 1), n_input_dims=optional("ndim")
        ),
        "nn.Select": of_runtime("shape.Select", dim("dimension"), dim("index")),
        "nn.Narrow": of_runtime("shape.Narrow", dim("dimension"), dim("index"), integer("length", 1)),
        "nn.Index": of_runtime("shape.Index", dim("dimension"), index_base=BASE),
        "nn.OneHot": _ONE_HOT,
        "OneHot": _ONE_HOT,  # char-rnn
        "nn.ArgMax": of_runtime(
            "shape.ArgMax",
            dim("dim", 1),
            n_input_dims=_arg_max_input_dims,
            index_base=BASE,
            dtype=_output_type("int64"),
        ),
        "nn.SAdd": of_runtime("linear.SAdd", number("addend"), negate=flag("negate")),
        "nn.SeqReverseSequence": of_runtime("shape.Reverse", dim("dim")),
        "nn.Sum": _sum(average=False),
        "nn.Mean": _sum(average=True),
        **same_names("shape", "Max Min", dim("dimension", 1), n_input_dims=_DIMS),
    },
    traits={
        "torch.nn.Identity": Traits(shares_memory=True, is_identity=True, flow=walk.unchanged, transparent=True),
        "shape.Cast": Traits(shares_memory=True, written=("cast",), output=out.same, casts=True),
        "shape.Contiguous": Traits(
            shares_memory=True,
            written=("expression", "x.contiguous()"),
            polynomial=("identity",),
            output=out.same,
        ),
        "shape.Collapse": Traits(shares_memory=True, loses_batch=True),
        "shape.Reshape": Traits(
            shares_memory=True,
            loses_batch=True,
            keeps_batch_if="batch_mode",
            written=("reshape",),
            polynomial=("reshaped",),
            output=out.reshape,
        ),
        "shape.View": Traits(
            shares_memory=True,
            loses_batch=True,
            keeps_batch_if="n_input_dims",
            written=("view",),
            polynomial=("viewed",),
            output=out.view,
        ),
        "shape.Squeeze": Traits(shares_memory=True, loses_batch=True, written=("squeeze",), output=out.squeeze),
        "shape.Unsqueeze": Traits(shares_memory=True, written=("unsqueeze",), output=out.unsqueeze),
        "shape.Transpose": Traits(copies=True, written=("transpose",), output=out.transpose),
        # Source: nn 8726825 `Replicate.lua`: its output has the storage of its input and a stride of 0.
        "shape.Replicate": Traits(shares_memory=True, repeats=True, written=("replicate",), output=out.replicate),
        "shape.ExpandAs": Traits(takes_list=True, shares_memory=True, repeats=True),
        # They copy in Lua; that makes a difference only for in-place changes.
        "shape.Select": Traits(
            shares_memory=True,
            copies=True,
            written=("expression", "x.select(dim, index)", False),
            polynomial=("selected",),
            output=out.select,
        ),
        "shape.Narrow": Traits(
            shares_memory=True, copies=True, written=("narrow",), polynomial=("narrowed",), output=out.narrow
        ),
        "shape.OneHot": Traits(output=out.one_hot, features=0, takes_tokens=True),
        "linear.SAdd": Traits(output=out.same),
        "shape.Index": Traits(takes_list=True),
        "shape.MaskedSelect": Traits(takes_list=True),
        "shape.Reverse": Traits(written=("expression", "x.flip(dim)"), output=out.same),
        "shape.Sum": Traits(written=("reduce", "sum"), output=out.reduced),
        "shape.Max": Traits(written=("reduce", "max", "values"), output=out.reduced),
        "shape.Min": Traits(written=("reduce", "min", "values"), output=out.reduced),
    },
    text={"nn.Reshape": "({size:*x})", "nn.View": "({size:*, })", "nn.Unsqueeze": "(dim {pos:s})"},
    in_lua={
        "nn.Reshape": InLua(options=("size",)),
        "nn.View": InLua(options=("size", "numInputDims")),
        "nn.Unsqueeze": InLua(options=("pos", "numInputDims"), expressed=_unsqueezed),
        "nn.Transpose": InLua(options=("permutations", "numInputDims")),
        "nn.Replicate": InLua(options=("nfeatures", "dim", "ndim")),
        "nn.SAdd": InLua(options=("addend", "negate")),
        "nn.Sum": InLua(options=("dimension", "nInputDims", "sizeAverage")),
        "nn.Mean": InLua(options=("dimension", "nInputDims"), expressed=_averaged),
        **dict.fromkeys(("nn.Max", "nn.Min"), InLua(options=("dimension", "nInputDims"))),
    },
)
register_layer(
    scratch="maxIdx minIdx maxVals minVals gradMaxVals maskByteTensor w w1 w22 w32 ones diff input_map",
    module={
        "nn.CAddTable": of_runtime("table.CAddTable", inplace=INPLACE),
        **same_names(
            "table", "CAddTensorTable CSubTable CMulTable CDivTable CMaxTable CMinTable FlattenTable ReverseTable"
        ),
        **same_names("table", "ZipTable ZipTableOneToMany"),
        **same_names("linear", "DotProduct CosineDistance"),
        **same_names("table", "JoinTable SplitTable", dim("dimension"), n_input_dims=_DIMS),
        "nn.SelectTable": of_runtime("table.SelectTable", _index),
        "nngraph.JustElement": of_runtime("table.SelectTable", 0),
        "nngraph.JustTable": of_runtime("table.JustTable"),
        "nn.NarrowTable": of_runtime("table.NarrowTable", _position("offset"), integer("length", 1)),
        "nn.MixtureTable": of_runtime(
            "table.MixtureTable", made(lambda lua: (lua.index0("dim"),) if lua.has("dim") else ()).each
        ),
        "nn.PairwiseDistance": of_runtime("linear.PairwiseDistance", number("norm", 2.0)),
        "nn.MM": of_runtime("linear.MM", flag("transA"), flag("transB")),
        "nn.MV": of_runtime("linear.MV", flag("trans")),
    },
    traits={
        **{
            f"table.C{name}Table": Traits(takes_list=True, written=written, polynomial=polynomial, output=out.fold)
            for name, written, polynomial in (
                ("Add", ("fold", "+"), ("combined", "add")),
                ("Sub", ("fold", "-"), ("combined", "subtract")),
                ("Mul", ("fold", "*"), ("combined", "multiply")),
                ("Div", ("fold", "/"), ()),
                ("Max", ("extreme", "gt"), ()),
                ("Min", ("extreme", "lt"), ()),
            )
        },
        "table.CAddTensorTable": Traits(takes_list=True, returns_list=True, flow=walk.tensors),
        "table.JoinTable": Traits(
            takes_list=True,
            written=("join",),
            polynomial=("joined",),
            output=out.join,
            typed="table.TypedJoinTable",
        ),
        "table.TypedJoinTable": Traits(takes_list=True, output=out.join),
        "table.SplitTable": Traits(
            returns_list=True,
            shares_memory=True,
            written=("split",),
            polynomial=("split",),
            output=out.split,
            flow=walk.tensors,
        ),
        "table.SelectTable": Traits(
            takes_list=True,
            shares_memory=True,
            flow=walk.element,
            transparent=True,
            connecting="table.ConnectedSelectTable",
        ),
        "table.ConnectedSelectTable": Traits(takes_list=True, shares_memory=True, flow=walk.element),
        "table.NarrowTable": Traits(
            takes_list=True,
            returns_list=True,
            shares_memory=True,
            flow=walk.narrowed,
            transparent=True,
            connecting="table.ConnectedNarrowTable",
        ),
        "table.ConnectedNarrowTable": Traits(
            takes_list=True, returns_list=True, shares_memory=True, flow=walk.narrowed
        ),
        "table.JustTable": Traits(returns_list=True, shares_memory=True, flow=walk.wrapped, transparent=True),
        **{
            f"table.{name}Table": Traits(
                takes_list=True,
                returns_list=True,
                shares_memory=True,
                flow=flow,
                transparent=True,
            )
            for name, flow in (
                ("Flatten", walk.flattened),
                ("Reverse", walk.turned),
                ("Zip", walk.zipped),
            )
        },
        "table.ZipTableOneToMany": Traits(
            takes_list=True, returns_list=True, shares_memory=True, flow=walk.paired, transparent=True
        ),
        "table.MixtureTable": Traits(takes_list=True),
        **dict.fromkeys(
            ("linear.DotProduct", "linear.CosineDistance", "linear.PairwiseDistance"),
            Traits(takes_list=True, output=out.pairs),
        ),
        "linear.MM": Traits(takes_list=True, written=("product",), output=out.product),
        "linear.MV": Traits(takes_list=True),
    },
    text={"nn.SelectTable": "({index:s})"},
    in_lua={
        **dict.fromkeys(("nn.CAddTable", "nn.CMulTable"), InLua(commutes=True)),
        "nn.JoinTable": InLua(options=("dimension", "nInputDims")),
        "nn.SplitTable": InLua(options=("dimension", "nInputDims"), expressed=_rows),
        "nn.MM": InLua(options=("transA", "transB")),
    },
)
