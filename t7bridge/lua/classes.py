"""The fields of a freshly constructed module of each nn class: one row a class.

A row names the arguments of the constructor, stored under the same names, then the other fields. Sources: the `__init`
functions of nn 8726825 and nngraph 3ed3b9b.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from attrs import field

from ..data import define
from ..errors import UnsupportedError
from ..graph.dtypes import ELEMENT_TYPES, INT64, ElementType
from ..graph.lua import Table, Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..lazy import np
from .layers import LuaLayer

EMPTY, INT_EMPTY, LONG_EMPTY, TABLE, SIZES, SIZES_4 = (
    "<tensor>",
    "<IntTensor>",
    "<LongTensor>",
    "<table>",
    "<LongStorage>",
    "<LongStorage(4)>",
)


@define(frozen=True)
class LuaClass:
    """Fields stored by a constructor.

    Attributes:
        args: names of its arguments; `None` for one that is not stored.
        defaults: of the last arguments, for shorter source.
        fields: other fields with their values; markers like `EMPTY` are created anew for each module.
        version: of the class in files.
        special: sets the fields that a row cannot express.
    """

    args: tuple[str, ...] = ()
    defaults: tuple[Any, ...] = ()
    fields: dict[str, Any] = field(factory=dict)
    version: int = 1
    special: Callable[[tuple[Any, ...]], dict[str, Value]] | None = None


def long_storage(*values: int) -> Storage:
    """Return a LongStorage of the values."""
    return Storage.from_array(np.array(values, dtype="i8"))


def _view(args: tuple[Any, ...]) -> dict[str, Value]:
    return {"size": long_storage(*args), "numElements": float(prod(extent for extent in args if extent >= 0))}


def _reshape(args: tuple[Any, ...]) -> dict[str, Value]:
    sizes, batch = (args[:-1], args[-1]) if isinstance(args[-1], bool) else (args, None)
    found = {
        "size": long_storage(*sizes),
        "batchsize": long_storage(0, *sizes),
        "nelement": float(prod(sizes)),
    }
    return found if batch is None else {**found, "batchMode": batch}


def _sizes(args: tuple[Any, ...]) -> dict[str, Value]:
    return {"size": long_storage(*args)}


def _transpose(args: tuple[Any, ...]) -> dict[str, Value]:
    return {"permutations": Table.from_list([Table.from_list([float(a), float(b)]) for a, b in args])}


def _prelu(args: tuple[Any, ...]) -> dict[str, Value]:
    return {"nOutputPlane": float(args[0]) if args else 0.0}


def _copy(args: tuple[Any, ...]) -> dict[str, Value]:
    types = {"torch.LongTensor": "int64", "torch.HalfTensor": "float16", "torch.FloatTensor": "float32"}
    taken, returned = (Tensor(ELEMENT_TYPES[types[name]], None) for name in args[:2])
    if args[3:]:
        return {"gradInput": taken, "output": returned, "dontCast": args[3]}
    return {"gradInput": taken}


def _seq_lstm(args: tuple[Any, ...]) -> dict[str, Value]:
    width, hidden = map(float, args)
    return {"inputsize": width, "hiddensize": hidden, "outputsize": hidden}


def _bilinear(args: tuple[Any, ...]) -> dict[str, Value]:
    sizes = dict(args[0])
    return {name: float(value) for name, value in sizes.items()}


def _pixel_shuffle(args: tuple[Any, ...]) -> dict[str, Value]:
    return {"upscaleFactor": float(args[0]), "upscaleFactorSquared": float(args[0] ** 2)}


def _bottle(args: tuple[Any, ...]) -> dict[str, Value]:
    n_in, n_out = args
    return {
        "nInputDim": float(n_in),
        "nOutputDim": float(n_out),
        "dimDelta": float(n_in - n_out),
        "inShape": Tensor.from_numpy(np.zeros(n_in, dtype="f4")),
        "outShape": Tensor.from_numpy(np.zeros(n_out, dtype="f4")),
    }


def _row(args: str = "", version: int = 1, /, **fields: Any) -> LuaClass:
    """Parse a row: `kW kH dW=1` names arguments with defaults."""
    names, defaults = [], []
    for word in args.split():
        name, _, default = word.partition("=")
        names.append(name)
        if default:
            known = {"true": True, "false": False, "nil": None}
            defaults.append(known[default] if default in known else float(default))
    return LuaClass(tuple(names), tuple(defaults), fields, version)


def _special(make: Callable[[tuple[Any, ...]], dict[str, Value]], **fields: Any) -> LuaClass:
    return LuaClass(special=make, fields=fields)


_PLAIN = (
    *("Abs", "Exp", "Identity", "Log", "LogSigmoid", "LogSoftMax", "Sigmoid", "SoftMax", "SoftSign", "SpatialSoftMax"),
    *("Square", "Tanh", "Contiguous", "Sequential", "ZeroGrad"),
)
_TABLE_OUT = {"gradInput": TABLE}
_NORM = "nOutput eps=0.00001 momentum=0.1 affine=true"

# Of Element-Research's rnn ba937a0, `SeqLSTM.lua`.
_SEQUENCE: dict[str, Any] = dict.fromkeys(
    (
        *("cell", "gates", "buffer1", "buffer2", "buffer3", "grad_a_buffer", "h0", "c0", "grad_c0", "grad_h0"),
        "grad_x",
    ),
    EMPTY,
)

CLASSES: dict[str, LuaClass] = {
    **dict.fromkeys(_PLAIN, _row()),
    "AddConstant": _row("constant_scalar inplace=false"),
    "MulConstant": _row("constant_scalar inplace=false"),
    "BatchNormalization": _row(_NORM, 2, train=True),
    "SpatialBatchNormalization": _row(_NORM, 2, train=True),
    "VolumetricBatchNormalization": _row(_NORM, 2, train=True),
    "Bilinear": _row("- - -", gradInput="<two tensors>"),
    "Bottle": _special(_bottle),
    "CAdd": _special(_sizes),
    "CMul": _special(_sizes),
    "CAddTable": _row("inplace=nil", gradInput=TABLE),
    "CDivTable": _row(**_TABLE_OUT),
    "CMulTable": _row(**_TABLE_OUT),
    "CSubTable": _row(**_TABLE_OUT),
    "CMaxTable": _row(**_TABLE_OUT, maxIdx=EMPTY, mask=EMPTY, maxVals=EMPTY, gradMaxVals=EMPTY),
    "CMinTable": _row(**_TABLE_OUT, minIdx=EMPTY, mask=EMPTY, minVals=EMPTY, gradMaxVals=EMPTY),
    "Clamp": _row("min_val max_val", inplace=False),
    "Concat": _row("dimension", outputSize=SIZES),
    "ConcatTable": _row(output=TABLE),
    "ParallelTable": _row(output=TABLE, gradInput=TABLE),
    "Constant": _row("value nInputDim=nil"),
    "Copy": _special(_copy),
    "Dropout": _row("p", train=True, stochastic_inference=False, v2=True, noise=EMPTY),
    "SpatialDropout": _row("p", train=True, stochastic_inference=False, noise=EMPTY),
    "VolumetricDropout": _row("p", train=True, stochastic_inference=False, noise=EMPTY),
    "ELU": _row("alpha=1 inplace=false"),
    "HardShrink": _row("lambda=0.5"),
    "SoftShrink": _row("lambda=0.5"),
    "HardTanh": _row("min_val=-1 max_val=1 inplace=false"),
    "JoinTable": _row("dimension nInputDims=nil", size=SIZES, gradInput=TABLE),
    "LeakyReLU": _row("negval inplace=false"),
    "Linear": _row("- -"),
    "LookupTable": _row("- - paddingValue=0 maxNorm=nil normType=nil", 4, _count=INT_EMPTY, _input=LONG_EMPTY),
    "MM": _row("transA=false transB=false", gradInput="<two tensors>"),
    "Max": _row("dimension"),
    "Min": _row("dimension"),
    "Mean": _row("dimension", sizeAverage=True, squeeze=True),
    "Sum": _row("dimension", sizeAverage=False, squeeze=True),
    "Mul": _row(),
    "Narrow": _row("dimension index length"),
    "PReLU": _special(_prelu),
    "Padding": _row("dim pad nInputDim=nil value=0", index=1.0, outputSize=SIZES),
    "PixelShuffle": _special(_pixel_shuffle),
    "Power": _row("pow"),
    "RReLU": _row("lower upper", noise=EMPTY, train=True, inplace=False),
    "ReLU": _row("inplace=false", threshold=0.0, val=0.0),
    "ReLU6": _row("inplace=false"),
    "Replicate": _row("nfeatures dim ndim=nil"),
    "Reshape": _special(_reshape),
    "Select": _row("dimension index"),
    "SelectTable": _row("index", gradInput=TABLE),
    "SeqLSTM": _special(_seq_lstm, **_SEQUENCE, gradInput=TABLE, _remember="neither", batchfirst=False, maskzero=False),
    "SeqReverseSequence": _row("dim"),
    "SoftPlus": _row("beta=1", threshold=20.0),
    "SpatialAdaptiveAveragePooling": _row("W H"),
    "SpatialAdaptiveMaxPooling": _row("W H"),
    "SpatialAveragePooling": _row(
        "kW kH dW=1 dH=1 padW=0 padH=0", ceil_mode=False, count_include_pad=True, divide=True
    ),
    "SpatialConvolution": _row("nInputPlane nOutputPlane kW kH dW=1 dH=1 padW=0 padH=0"),
    "SpatialDepthWiseConvolution": _row("nInputPlane nOutputPlane kW kH dW=1 dH=1 padW=0 padH=0"),
    "SpatialDilatedConvolution": _row("nInputPlane nOutputPlane kW kH dW=1 dH=1 padW=0 padH=0 dilationW=1 dilationH=1"),
    "SpatialFullConvolution": _row("nInputPlane nOutputPlane kW kH dW=1 dH=1 padW=0 padH=0 adjW=0 adjH=0", ones=EMPTY),
    "SpatialCrossMapLRN": _row("size alpha beta k"),
    "SpatialMaxPooling": _row("kW kH dW dH padW=0 padH=0", ceil_mode=False, indices=LONG_EMPTY),
    "SpatialDilatedMaxPooling": _row(
        "kW kH dW dH padW=0 padH=0 dilationW=1 dilationH=1", ceil_mode=False, indices=LONG_EMPTY
    ),
    "SpatialReflectionPadding": _row("pad_l pad_r pad_t pad_b"),
    "SpatialReplicationPadding": _row("pad_l pad_r pad_t pad_b"),
    "SpatialUpSamplingBilinear": _special(_bilinear, inputSize=SIZES_4, outputSize=SIZES_4),
    "SpatialUpSamplingNearest": _row("scale_factor", inputSize=SIZES_4, outputSize=SIZES_4),
    "SpatialZeroPadding": _row("pad_l pad_r pad_t pad_b"),
    "Sqrt": _row("eps=0"),
    "Threshold": _row("threshold val inplace=false"),
    "Transpose": _special(_transpose),
    "View": _special(_view),
    "VolumetricAveragePooling": _row("kT kW kH dT dW dH"),
    "VolumetricConvolution": _row("nInputPlane nOutputPlane kT kW kH dT=1 dW=1 dH=1 padT=0 padW=0 padH=0"),
    "VolumetricDilatedConvolution": _row(
        "nInputPlane nOutputPlane kT kW kH dT=1 dW=1 dH=1 padT=0 padW=0 padH=0 dilationT=1 dilationW=1 dilationH=1"
    ),
    "VolumetricFullConvolution": _row(
        "nInputPlane nOutputPlane kT kW kH dT=1 dW=1 dH=1 padT=0 padW=0 padH=0 adjT=0 adjW=0 adjH=0",
        ones=EMPTY,
        finput=EMPTY,
        fgradInput=EMPTY,
    ),
    "VolumetricMaxPooling": _row("kT kW kH dT dW dH padT=0 padW=0 padH=0", 2, ceil_mode=False, indices=LONG_EMPTY),
    "VolumetricDilatedMaxPooling": _row(
        "kT kW kH dT dW dH padT=0 padW=0 padH=0 dilationT=1 dilationW=1 dilationH=1",
        ceil_mode=False,
        indices=LONG_EMPTY,
    ),
    "VolumetricReplicationPadding": _row("pleft pright ptop pbottom pfront pback"),
}

# Methods called after construction: the fields that they set.
METHODS: dict[str, Callable[..., dict[str, Value]]] = {
    "noBias": dict,
    "ceil": lambda: {"ceil_mode": True},
    "setCountExcludePad": lambda: {"count_include_pad": False},
    "setNumInputDims": lambda count: {"numInputDims": float(count)},
    "scaleGradByFreq": lambda: {"shouldScaleGradByFreq": True},
}
CONTAINERS = frozenset({"nn.Sequential", "nn.ConcatTable", "nn.ParallelTable", "nn.Concat", "nn.Bottle", "nn.gModule"})


def class_of(name: str) -> LuaClass:
    """Return the row of a Lua class.

    Raises:
        UnsupportedError: the table has none.
    """
    row = CLASSES.get(name.partition(".")[2])
    if row is None:
        raise UnsupportedError(f"the fields of a new {name} are not known")
    return row


def fields_of(layer: LuaLayer, element: ElementType) -> dict[str, Value]:
    """Return the fields set by a constructor call and the methods called after it.

    Args:
        layer: the call.
        element: of the tensors.
    """
    row = class_of(layer.name)
    found: dict[str, Value] = {name: fresh(value, element) for name, value in row.fields.items()}
    if row.special is not None:
        found.update(row.special(layer.args))
    else:
        given = dict(zip(row.args, layer.args))
        missing = row.args[len(layer.args) :]
        given.update(zip(missing, row.defaults[len(row.defaults) - len(missing) :]))
        for name, value in given.items():
            if name != "-" and value is not None:
                found[name] = lua_value(value, element)
        if layer.name.endswith("BatchNormalization"):
            del found["nOutput"]
    for name, args in layer.calls:
        found.update(METHODS[name](*args))
    return found


def fresh(value: Any, element: ElementType) -> Value:
    """Return a new value for a marker, anything else unchanged."""

    makers: dict[Any, Callable[[], Value]] = {
        EMPTY: lambda: Tensor(element, None),
        LONG_EMPTY: lambda: Tensor(INT64, None),
        INT_EMPTY: lambda: Tensor(ELEMENT_TYPES["int32"], None),
        TABLE: Table,
        SIZES: lambda: long_storage(),
        SIZES_4: lambda: long_storage(0, 0, 0, 0),
        "<two tensors>": lambda: Table.from_list([Tensor(element, None), Tensor(element, None)]),
    }
    return makers[value]() if isinstance(value, str) and value in makers else value


def lua_value(value: Any, element: ElementType) -> Value:
    """Return a Python value as Lua has it: numbers are doubles, arrays tensors of an element type."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return float(value)
    return Tensor.from_numpy(value.astype(element.code))
