"""The fields that the constructors of nn's classes set: a table of the classes.

The table of classes has one row a class: the arguments of the constructor, stored under the same names, then the other
fields. Sources: the `__init` functions of nn 8726825 and nngraph 3ed3b9b.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Any

from ...data import define, np
from ...graph.dtypes import ELEMENT_TYPES, FLOAT32, INT64, ElementType
from ...graph.lua import Table
from ...graph.lua import Value as LuaValue
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from .layers import LuaLayer

CONTAINERS = frozenset({"nn.Sequential", "nn.ConcatTable", "nn.Concat", "nn.Bottle", "nn.gModule"})


@define(frozen=True)
class LuaClass:
    """A class of nn: the arguments of its constructor, and the fields that this sets.

    Attributes:
        args: names of its arguments; `-` for one that is not stored.
        defaults: name → default of the last arguments, which are left out of the source where they have it.
        fields: name → value of other fields, as text, see `_new_value`.
        version: of the class in files.
    """

    args: tuple[str, ...]
    defaults: dict[str, Any]
    fields: dict[str, str]
    version: int


# Names, version if it is not 1, arguments with defaults, and other fields with their values.
_TABLE = """
Abs Exp Identity Log LogSigmoid LogSoftMax Sigmoid SoftMax SpatialSoftMax Square Tanh Contiguous Sequential ZeroGrad
CAdd CMul Copy PReLU PixelShuffle Reshape Transpose View Bottle
AddConstant MulConstant (constant_scalar inplace=false)
BatchNormalization SpatialBatchNormalization VolumetricBatchNormalization 2 \
    (- eps=0.00001 momentum=0.1 affine=true) train=true
Bilinear (- - -) gradInput={Tensor,Tensor}
CAddTable (inplace=nil) gradInput={}
CDivTable CMulTable CSubTable gradInput={}
CMaxTable gradInput={} maxIdx=Tensor mask=Tensor maxVals=Tensor gradMaxVals=Tensor
CMinTable gradInput={} minIdx=Tensor mask=Tensor minVals=Tensor gradMaxVals=Tensor
Concat (dimension) outputSize=LongStorage0
ConcatTable output={}
Constant (value nInputDim=nil)
Dropout (p) train=true stochastic_inference=false v2=true noise=Tensor
SpatialDropout VolumetricDropout (p) train=true stochastic_inference=false noise=Tensor
ELU (alpha=1 inplace=false)
HardShrink SoftShrink (lambda=0.5)
HardTanh (min_val=-1 max_val=1 inplace=false)
Index (dimension) gradInput={Tensor,Tensor}
JoinTable (dimension nInputDims=nil) size=LongStorage0 gradInput={}
LeakyReLU (negval inplace=false)
Linear (- -)
LookupTable 4 (- - paddingValue=0 maxNorm=nil normType=nil) _count=IntTensor _input=LongTensor
MM (transA=false transB=false) gradInput={Tensor,Tensor}
Max Min (dimension)
Mean (dimension) sizeAverage=true squeeze=true
Sum (dimension) sizeAverage=false squeeze=true
Narrow (dimension index length)
Padding (dim pad nInputDim=nil value=0) index=1 outputSize=LongStorage0
Power (pow)
RReLU (lower upper) noise=Tensor train=true inplace=false
ReLU (inplace=false) threshold=0 val=0
Replicate (nfeatures dim ndim=nil)
Select (dimension index)
SelectTable (index) gradInput={}
SeqLSTM cell=Tensor gates=Tensor buffer1=Tensor buffer2=Tensor buffer3=Tensor grad_a_buffer=Tensor h0=Tensor c0=Tensor \
    grad_c0=Tensor grad_h0=Tensor grad_x=Tensor gradInput={} _remember=neither batchfirst=false maskzero=false
SeqReverseSequence (dim)
SoftPlus (beta=1) threshold=20
SpatialAdaptiveAveragePooling SpatialAdaptiveMaxPooling (W H)
SpatialAveragePooling (kW kH dW=1 dH=1 padW=0 padH=0) ceil_mode=false count_include_pad=true divide=true
SpatialConvolution SpatialDepthWiseConvolution (nInputPlane nOutputPlane kW kH dW=1 dH=1 padW=0 padH=0)
SpatialDilatedConvolution (nInputPlane nOutputPlane kW kH dW=1 dH=1 padW=0 padH=0 dilationW=1 dilationH=1)
SpatialFullConvolution (nInputPlane nOutputPlane kW kH dW=1 dH=1 padW=0 padH=0 adjW=0 adjH=0) ones=Tensor
SpatialMaxPooling (kW kH dW dH padW=0 padH=0) ceil_mode=false indices=LongTensor
SpatialDilatedMaxPooling (kW kH dW dH padW=0 padH=0 dilationW=1 dilationH=1) ceil_mode=false indices=LongTensor
SpatialReflectionPadding SpatialReplicationPadding SpatialZeroPadding (pad_l pad_r pad_t pad_b)
SpatialUpSamplingBilinear inputSize=LongStorage4 outputSize=LongStorage4
SpatialUpSamplingNearest (scale_factor) inputSize=LongStorage4 outputSize=LongStorage4
Sqrt (eps=0)
Squeeze (dim)
Threshold (threshold val inplace=false)
Unsqueeze (pos)
VolumetricAveragePooling (kT kW kH dT dW dH)
VolumetricConvolution (nInputPlane nOutputPlane kT kW kH dT=1 dW=1 dH=1 padT=0 padW=0 padH=0)
VolumetricDilatedConvolution (nInputPlane nOutputPlane kT kW kH dT=1 dW=1 dH=1 padT=0 padW=0 padH=0 dilationT=1 \
    dilationW=1 dilationH=1)
VolumetricFullConvolution (nInputPlane nOutputPlane kT kW kH dT=1 dW=1 dH=1 padT=0 padW=0 padH=0 adjT=0 adjW=0 adjH=0) \
    ones=Tensor finput=Tensor fgradInput=Tensor
VolumetricMaxPooling 2 (kT kW kH dT dW dH padT=0 padW=0 padH=0) ceil_mode=false indices=LongTensor
VolumetricDilatedMaxPooling 2 (kT kW kH dT dW dH padT=0 padW=0 padH=0 dilationT=1 dilationW=1 dilationH=1) \
    ceil_mode=false indices=LongTensor
VolumetricReplicationPadding (pleft pright ptop pbottom pfront pback)
Function (name)
Binary (name) gradInput={}
CumProd (dim)
Sort (dim descending=false)
ArgMax (dim smallest=false)
Gather (dim) gradInput={}
Scatter (dim adds=false) gradInput={}
Fold (height width kH kW dH dW padH padW dilationH dilationW)
GridSample (mode padding align) gradInput={}
Convolution (dW dH padW padH dilationW dilationH) gradInput={}
MaxPlaces (kW kH dW dH padW padH dilationW dilationH ceil_mode)
"""


_WORDS = {"true": True, "false": False, "nil": None, "neither": "neither"}
"""Values of the table that are neither numbers nor objects."""


def _new_value(text: str, element: ElementType) -> LuaValue:
    """Return the value of a field from its text in the table of classes: tensors and tables are new, numbers doubles.

    Args:
        text: as in the table: `{Tensor,Tensor}`, `LongStorage4`, `true`, `0.1`.
        element: of a `Tensor`.
    """
    if text.startswith("{"):
        return Table.from_list([_new_value(part, element) for part in text[1:-1].split(",") if part])
    if text.startswith("LongStorage"):
        count = int(text.removeprefix("LongStorage"))
        zeros = [0] * count
        return long_storage(*zeros)
    if text == "IntTensor":
        return Tensor(ELEMENT_TYPES["int32"], None)
    if text == "LongTensor":
        return Tensor(INT64, None)
    if text == "Tensor":
        return Tensor(element, None)
    if text in _WORDS:
        return _WORDS[text]
    return float(text)


_ROW = re.compile(r"(?P<names>[A-Z][\w ]*?)(?: (?P<version>\d))?(?: +\((?P<args>.*?)\))?(?P<fields>(?: +\w+=\S+)*)")
"""A row of the table: names, a version, arguments in parentheses, fields."""


def _read_classes(table: str) -> dict[str, LuaClass]:
    """Return the classes of a table such as `_TABLE`: name without `nn.` or `pt.` → the class.

    A row is `Max Min 2 (dimension squeeze=true) train=true`: names of classes that are equal, their version, their
    arguments, of which those with a default are the last, and their other fields, whose values stay texts, see
    `_new_value`.
    """
    classes = {}
    for line in table.replace("\\\n", "").strip().splitlines():
        row = _ROW.fullmatch(line)
        assert row is not None, line
        args = []
        defaults = {}
        for word in (row["args"] or "").split():
            name, _, default = word.partition("=")
            args.append(name)
            if default:  # a number, a boolean or nil, and no tensor: the element type does not matter
                defaults[name] = _new_value(default, FLOAT32)
        fields = dict(word.split("=") for word in row["fields"].split())
        for name in row["names"].split():
            classes[name] = LuaClass(tuple(args), defaults, fields, int(row["version"] or 1))
    return classes


CLASSES = _read_classes(_TABLE)


def long_storage(*values: int) -> Storage:
    """Return a LongStorage of the values."""
    return Storage.from_array(np.array(values, dtype="i8"))


# Fields that are computed from the arguments


def _bottle(n_in: int, n_out: int) -> dict[str, LuaValue]:
    """Return the fields of an nn.Bottle, from the numbers of dimensions that its layer takes and returns.

    The batch is one of them.
    """
    return {
        "nInputDim": float(n_in),
        "nOutputDim": float(n_out),
        "dimDelta": float(n_in - n_out),
        "inShape": Tensor.from_numpy(np.zeros(n_in, "f4")),
        "outShape": Tensor.from_numpy(np.zeros(n_out, "f4")),
    }


_COPIED = {"torch.LongTensor": INT64, "torch.HalfTensor": ELEMENT_TYPES["float16"], "torch.FloatTensor": FLOAT32}
"""Types of tensors that an nn.Copy takes and returns."""


def _copy(source: str, target: str, force_copy: None = None, dont_cast: bool = False) -> dict[str, LuaValue]:
    """Return the fields of an nn.Copy from one type of tensors to another, `torch.LongTensor`.

    `force_copy` is not stored: it only matters where both types are equal. With `dont_cast`, the layer keeps its types
    when the model is cast to another. Without it, the target is the type of the model: the output is that which every
    layer has, and no field of this class.
    """
    fields: dict[str, LuaValue] = {"gradInput": Tensor(_COPIED[source], None)}
    if dont_cast:
        fields["output"] = Tensor(_COPIED[target], None)
        fields["dontCast"] = True
    return fields


def _reshape(*args: Any) -> dict[str, LuaValue]:
    """Return the fields of an nn.Reshape, from sizes and, last, whether its input has a batch."""
    *sizes, batch_mode = args
    return {
        "size": long_storage(*sizes),
        "batchsize": long_storage(0, *sizes),  # 0 until the first batch comes
        "nelement": float(prod(sizes)),
        "batchMode": batch_mode,
    }


def _seq_lstm(width: int, hidden: int) -> dict[str, LuaValue]:
    """Return the fields of an nn.SeqLSTM, from the numbers of its inputs and of its hidden units."""
    return {"inputsize": float(width), "hiddensize": float(hidden), "outputsize": float(hidden)}


def _transpose(*swaps: tuple[int, int]) -> dict[str, LuaValue]:
    """Return the fields of an nn.Transpose, from pairs of dimensions that it exchanges, 1-based."""
    pairs = [Table.from_list([float(place) for place in swap]) for swap in swaps]
    return {"permutations": Table.from_list(pairs)}


def _view(*sizes: int) -> dict[str, LuaValue]:
    """Return the fields of an nn.View, from its sizes."""
    count = prod(extent for extent in sizes if extent >= 0)  # -1 is inferred
    return {"size": long_storage(*sizes), "numElements": float(count)}


_COMPUTED: dict[str, Callable[..., dict[str, LuaValue]]] = {
    "Bottle": _bottle,
    "CAdd": lambda *sizes: {"size": long_storage(*sizes)},
    "CMul": lambda *sizes: {"size": long_storage(*sizes)},
    "Copy": _copy,
    "PReLU": lambda count=0: {"nOutputPlane": float(count)},
    "PixelShuffle": lambda factor: {"upscaleFactor": float(factor), "upscaleFactorSquared": float(factor**2)},
    "Reshape": _reshape,
    "SeqLSTM": _seq_lstm,
    "SpatialUpSamplingBilinear": lambda sizes: {name: float(value) for name, value in sizes},
    "Transpose": _transpose,
    "View": _view,
}
"""Classes → the fields that their arguments become."""
METHODS: dict[str, Callable[..., dict[str, LuaValue]]] = {
    "noBias": dict,
    "ceil": lambda: {"ceil_mode": True},
    "setCountExcludePad": lambda: {"count_include_pad": False},
    "setNumInputDims": lambda count: {"numInputDims": float(count)},
    "scaleGradByFreq": lambda: {"shouldScaleGradByFreq": True},
}
"""Methods called after construction → the fields that they set."""


def fields_of(layer: LuaLayer, element: ElementType) -> dict[str, LuaValue]:
    """Return the fields set by a constructor call and by the methods called after it: name → value.

    Those that depend on no argument are first, then those that are computed from some, and those that hold one.

    Args:
        layer: the call, of a class in the table, with all arguments that have no default.
        element: of the tensors.
    """
    lua_class = CLASSES[layer.kind]
    fields = {name: _new_value(text, element) for name, text in lua_class.fields.items()}
    if layer.kind in _COMPUTED:
        fields.update(_COMPUTED[layer.kind](*layer.args))
    arguments = {**lua_class.defaults, **dict(zip(lua_class.args, layer.args))}
    for name in lua_class.args:
        if name == "-":  # an argument that is not stored
            continue
        if arguments[name] is not None:  # nil in Lua: there is no field
            fields[name] = lua_value(arguments[name], element)
    for method, args in layer.calls:
        fields.update(METHODS[method](*args))
    return fields


def constructor_values(layer: LuaLayer) -> tuple[list[Any], int]:
    """Return all arguments of a constructor, defaults included, and how many there are without trailing defaults.

    Of a class that is not in the table, or takes any number of arguments, as nn.View does, those of the layer.
    """
    values = list(layer.args)
    lua_class = CLASSES.get(layer.kind)
    if lua_class is None or len(values) > len(lua_class.args):
        return values, len(values)
    count_written = _count_without_defaults(values, lua_class)
    values += [lua_class.defaults[name] for name in lua_class.args[len(values) :]]
    return values, count_written


def _count_without_defaults(values: list[Any], lua_class: LuaClass) -> int:
    """Return how many arguments of a constructor are written: all but those at the end that have their defaults."""
    has_padding = any(value for name, value in zip(lua_class.args, values) if name.startswith("pad"))
    for count_written in range(len(values), 0, -1):
        last_value = values[count_written - 1]
        name = lua_class.args[count_written - 1]
        if name not in lua_class.defaults or last_value != lua_class.defaults[name]:
            return count_written
        # The default of padH is padW, and not the 0 that it is here: if any pads, both are written.
        if name.startswith("pad") and has_padding:
            return count_written
    return 0


def lua_value(value: Any, element: ElementType) -> LuaValue:
    """Return a Python value as Lua has it: numbers are doubles, arrays tensors of an element type."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return float(value)
    return Tensor.from_numpy(value.astype(element.code))
