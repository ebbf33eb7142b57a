"""Lua modules as data: constructor calls, weights, children and graphs, from which objects and source are made.

`structured` combines the steps of a program: chains become nn.Sequential along PyTorch's modules, the rest nn.gModule.
The table of classes has the fields of a freshly constructed module, one row a class: the arguments of the constructor,
stored under the same names, then the other fields. Sources: the `__init` functions of nn 8726825 and nngraph 3ed3b9b.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from math import prod
from typing import Any, Generic, TypeVar

from attrs import field

from ..data import define
from ..errors import UnsupportedError
from ..graph.dtypes import ELEMENT_TYPES, INT64, ElementType
from ..graph.lua import Table
from ..graph.lua import Value as LuaValue
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..lazy import np

Value = TypeVar("Value", bound="Arithmetic[Any]")


class Arithmetic(Generic[Value]):
    """Operators of values and of layers: `x * y + 1` is the layers that compute it; `x >> layer` applies a layer."""

    @property
    def _value(self) -> Value:
        return self  # type: ignore[return-value]

    def __rshift__(self, layer: LuaLayer) -> Value:
        """Apply a layer."""
        raise NotImplementedError

    def joined(self, name: str, other: Any, swapped: bool = False) -> Value:
        """Apply a layer that takes a table of two: this and another value, or the other first."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Value:
        if not isinstance(other, (int, float)):
            return self.joined("nn.CAddTable", other)
        return self >> make("nn.AddConstant", other) if other else self._value

    def __mul__(self, other: Any) -> Value:
        if not isinstance(other, (int, float)):
            return self.joined("nn.CMulTable", other)
        return self >> make("nn.MulConstant", other) if other != 1 else self._value

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Value:
        return self * -1

    def __sub__(self, other: Any) -> Value:
        return self + -other if isinstance(other, (int, float)) else self.joined("nn.CSubTable", other)

    def __rsub__(self, other: Any) -> Value:
        return -self + other if isinstance(other, (int, float)) else self.joined("nn.CSubTable", other, True)

    def __truediv__(self, other: Any) -> Value:
        return self * (1 / other) if isinstance(other, (int, float)) else self.joined("nn.CDivTable", other)

    def __rtruediv__(self, other: Any) -> Value:
        return self**-1 * other if isinstance(other, (int, float)) else self.joined("nn.CDivTable", other, True)

    def __pow__(self, exponent: float) -> Value:
        if exponent == 1:
            return self._value
        return self >> {2: make("nn.Square"), 0.5: make("nn.Sqrt")}.get(exponent, make("nn.Power", exponent))


@define(frozen=True)
class WeightRef:
    """A part of a tensor of the PyTorch state dict, as a field of a Lua module holds it.

    Attributes:
        key: the key in the state dict.
        start: of the first element in the tensor, in elements, 0-based.
        size: the shape in Lua; the elements are a contiguous run.
        transposed: whether the last two dimensions of the tensor are exchanged in Lua.
    """

    key: str
    start: int
    size: tuple[int, ...]
    transposed: bool = False

    def resized(self, size: tuple[int, ...]) -> WeightRef:
        """Return the same elements in another shape."""
        return WeightRef(self.key, self.start, tuple(size), self.transposed)


@define(eq=False)
class LuaLayer(Arithmetic["LuaLayer"]):
    """One nn module: a constructor call, methods called on the result, weights and children.

    Attributes:
        name: the Lua class, `nn.Linear`.
        args: arguments of the constructor: numbers, booleans, strings, `None`, tuples (Lua tables), arrays (tensors).
        calls: methods called after construction: name and arguments.
        weights: the fields that come from the state dict.
        children: the modules added, in order.
        inputs: the number of inputs of an `nn.gModule`.
        steps: the nodes of an `nn.gModule`, in order; empty for other classes.
        outputs: the nodes whose values an `nn.gModule` returns.
        path: the PyTorch module that it came from, `layer1.0.conv1`; for comments.
    """

    name: str
    args: tuple[Any, ...] = ()
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    weights: dict[str, WeightRef] = field(factory=dict)
    children: list[LuaLayer] = field(factory=list)
    inputs: int = 0
    steps: list[LuaNode] = field(factory=list)
    outputs: list[LuaNode] = field(factory=list)
    path: str = ""

    def __rshift__(self, layer: LuaLayer) -> LuaLayer:
        """Return a chain of both."""
        return layer if self.name == "nn.Identity" else sequential(*_chain(self), *_chain(layer))

    def joined(self, name: str, other: Any, swapped: bool = False) -> LuaLayer:
        """Return the layers that apply both to one input and join their outputs."""
        pair = [other, self] if swapped else [self, other]
        return LuaLayer("nn.ConcatTable", children=pair) >> make(name)


@define(eq=False)
class LuaNode(Arithmetic["LuaNode"]):
    """A node of a graph: a layer applied to the values of other nodes.

    Attributes:
        layer: the layer; `None` for an input of the graph.
        inputs: the nodes whose values it uses, in order.
        shape: of its value: integers, and text for the extent of the batch.
        stack: the PyTorch module calls it belongs to, outermost first.
        index: of an input node, its index among the inputs, 0-based.
    """

    layer: LuaLayer | None
    inputs: list[LuaNode] = field(factory=list)
    shape: tuple[int | str, ...] = ()
    stack: tuple[str, ...] = ()
    index: int = 0

    def __rshift__(self, layer: LuaLayer) -> LuaNode:
        """Return a node that applies a layer to this one."""
        return LuaNode(layer, [self])

    def joined(self, name: str, other: Any, swapped: bool = False) -> LuaNode:
        """Return a node of both."""
        return LuaNode(make(name), [other, self] if swapped else [self, other])


def make(name: str, *args: Any, calls: Any = (), **weights: WeightRef | None) -> LuaLayer:
    """Return a layer without children.

    Args:
        name: of the class.
        args: of the constructor.
        calls: methods with their arguments.
        weights: fields of the state dict; those that are `None` are left out.
    """
    return LuaLayer(name, args, calls, {field: ref for field, ref in weights.items() if ref is not None})


def same() -> LuaLayer:
    """Return an `nn.Identity`, where the formula of a layer begins: `same() * make("nn.Sigmoid")`."""
    return make("nn.Identity")


def sequential(*layers: LuaLayer) -> LuaLayer:
    """Return an `nn.Sequential`; a single layer is returned unchanged."""
    return layers[0] if len(layers) == 1 else LuaLayer("nn.Sequential", children=list(layers))


def _chain(layer: LuaLayer) -> list[LuaLayer]:
    return layer.children if layer.name == "nn.Sequential" else [layer]


def graph_of(inputs: list[LuaNode], *outputs: LuaNode) -> LuaLayer:
    """Return an `nn.gModule` of the nodes that lead from the inputs to the outputs."""
    steps = {id(node): node for node in inputs}
    stack = [*reversed(outputs)]
    while stack:
        node = stack[-1]
        waiting = [source for source in node.inputs if id(source) not in steps]
        stack.extend(reversed(waiting))
        if not waiting:
            steps[id(stack.pop())] = node
    return LuaLayer("nn.gModule", inputs=len(inputs), steps=list(steps.values()), outputs=list(outputs))


def walk(layer: LuaLayer) -> list[LuaLayer]:
    """Return a layer and all layers inside it, parents first, in the order of Lua's `listModules`."""
    found: list[LuaLayer] = []
    stack = [layer]
    while stack:
        item = stack.pop()
        found.append(item)
        inside = [step.layer for step in item.steps if step.layer is not None] or item.children
        stack.extend(reversed(inside))
    return found


# From steps to nested modules


def structured(inputs: list[LuaNode], steps: list[LuaNode], outputs: list[LuaNode]) -> LuaLayer:
    """Combine a whole program into one layer.

    Args:
        inputs: the input steps.
        steps: all other steps, in order.
        outputs: the steps whose values are returned.

    Raises:
        UnsupportedError: the program returns nothing that depends on its inputs.
    """
    if not outputs:
        raise UnsupportedError("the module returns no tensor")
    steps = _needed(steps, outputs)
    unused = [step for step in inputs if step not in outputs and not any(step in other.inputs for other in steps)]
    if len(inputs) > 1:
        for step in unused:  # nngraph refuses unused inputs
            outputs[0] = LuaNode(make("nn.SelectTable", 1), [outputs[0], step], outputs[0].shape)
            steps.append(outputs[0])
    users = _users(steps, outputs)
    replaced: dict[int, LuaNode] = {}
    grouped = _group(steps, 0, users, replaced)
    return _assemble(inputs, grouped, [_final(step, replaced) for step in outputs], replaced)


def _needed(steps: list[LuaNode], outputs: list[LuaNode]) -> list[LuaNode]:
    wanted = {id(step) for step in outputs}
    kept = []
    for step in reversed(steps):
        if id(step) in wanted:
            kept.append(step)
            wanted.update(id(source) for source in step.inputs)
    return kept[::-1]


def _users(steps: list[LuaNode], outputs: list[LuaNode]) -> dict[int, list[int]]:
    """Return for each step the ids of the steps that use its value; 0 is the caller."""
    users: dict[int, list[int]] = {}
    for step in steps:
        for source in step.inputs:
            users.setdefault(id(source), []).append(id(step))
    for step in outputs:
        users.setdefault(id(step), []).append(0)
    return users


def _final(step: LuaNode, replaced: dict[int, LuaNode]) -> LuaNode:
    while id(step) in replaced:
        step = replaced[id(step)]
    return step


def _group(
    steps: list[LuaNode], depth: int, users: dict[int, list[int]], replaced: dict[int, LuaNode]
) -> list[LuaNode]:
    """Replace the runs of one PyTorch module's call that have one input and one output by single steps."""
    result: list[LuaNode] = []
    for call, group in groupby(steps, lambda step: step.stack[depth] if len(step.stack) > depth else ""):
        run = list(group)
        inner = _group(run, depth + 1, users, replaced) if call else run
        inside = {id(step) for step in run}
        sources = {id(source): source for step in run for source in step.inputs if id(source) not in inside}
        leaving = [step for step in run if any(user not in inside for user in users.get(id(step), ()))]
        if not call or len(run) == 1 or len(sources) != 1 or leaving != run[-1:]:
            result.extend(inner)
            continue
        (source,) = sources.values()
        last = _final(run[-1], replaced)
        gate = LuaNode(None, [], source.shape)
        layer = _assemble([gate], inner, [last], replaced, {id(_final(source, replaced)): gate})
        layer.path = call.partition("|")[2]
        replaced[id(last)] = LuaNode(layer, [source], run[-1].shape, run[-1].stack[:depth])
        result.append(replaced[id(last)])
    return result


def _assemble(
    inputs: list[LuaNode],
    steps: list[LuaNode],
    outputs: list[LuaNode],
    replaced: dict[int, LuaNode],
    gates: dict[int, LuaNode] | None = None,
) -> LuaLayer:
    """Combine steps into an nn.Sequential if they form a chain, else into an nn.gModule."""
    gates = gates or {}
    inside = {id(step): step for step in steps}

    def resolved(step: LuaNode) -> LuaNode:
        while id(step) not in inside and id(step) in replaced:
            step = replaced[id(step)]
        return gates.get(id(step), step)

    links = {id(step): [resolved(source) for source in step.inputs] for step in steps}
    outputs = [resolved(step) for step in outputs]
    chain = len(inputs) == len(outputs) == 1 and steps and outputs[0] is steps[-1]
    if chain and all(links[id(step)] == [before] for step, before in zip(steps, [inputs[0], *steps])):
        return sequential(*(step.layer for step in steps if step.layer is not None))
    if not steps and len(inputs) == 1 and outputs == inputs:
        return make("nn.Identity")
    nodes = list(inputs)
    made: dict[int, LuaNode] = {}
    for step in steps:
        made[id(step)] = LuaNode(step.layer, _apart(links[id(step)], made, nodes), step.shape, step.stack)
        nodes.append(made[id(step)])
    return LuaLayer("nn.gModule", inputs=len(inputs), steps=nodes, outputs=_apart(outputs, made, nodes))


def _apart(sources: list[LuaNode], made: dict[int, LuaNode], nodes: list[LuaNode]) -> list[LuaNode]:
    """Return the nodes made of some steps, with an nn.Identity before each further use, which nngraph refuses."""
    taken: list[LuaNode] = []
    for source in (made.get(id(each), each) for each in sources):
        if any(source is known for known in taken):
            nodes.append(LuaNode(make("nn.Identity"), [source], source.shape))
            source = nodes[-1]
        taken.append(source)
    return taken


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
    special: Callable[[tuple[Any, ...]], dict[str, LuaValue]] | None = None


def long_storage(*values: int) -> Storage:
    """Return a LongStorage of the values."""
    return Storage.from_array(np.array(values, dtype="i8"))


def _view(args: tuple[Any, ...]) -> dict[str, LuaValue]:
    return {"size": long_storage(*args), "numElements": float(prod(extent for extent in args if extent >= 0))}


def _reshape(args: tuple[Any, ...]) -> dict[str, LuaValue]:
    sizes, batch = (args[:-1], args[-1]) if isinstance(args[-1], bool) else (args, None)
    found = {
        "size": long_storage(*sizes),
        "batchsize": long_storage(0, *sizes),
        "nelement": float(prod(sizes)),
    }
    return found if batch is None else {**found, "batchMode": batch}


def _sizes(args: tuple[Any, ...]) -> dict[str, LuaValue]:
    return {"size": long_storage(*args)}


def _transpose(args: tuple[Any, ...]) -> dict[str, LuaValue]:
    return {"permutations": Table.from_list([Table.from_list([float(a), float(b)]) for a, b in args])}


def _prelu(args: tuple[Any, ...]) -> dict[str, LuaValue]:
    return {"nOutputPlane": float(args[0]) if args else 0.0}


def _copy(args: tuple[Any, ...]) -> dict[str, LuaValue]:
    types = {"torch.LongTensor": "int64", "torch.HalfTensor": "float16", "torch.FloatTensor": "float32"}
    taken, returned = (Tensor(ELEMENT_TYPES[types[name]], None) for name in args[:2])
    if args[3:]:
        return {"gradInput": taken, "output": returned, "dontCast": args[3]}
    return {"gradInput": taken}


def _seq_lstm(args: tuple[Any, ...]) -> dict[str, LuaValue]:
    width, hidden = map(float, args)
    return {"inputsize": width, "hiddensize": hidden, "outputsize": hidden}


def _bilinear(args: tuple[Any, ...]) -> dict[str, LuaValue]:
    sizes = dict(args[0])
    return {name: float(value) for name, value in sizes.items()}


def _pixel_shuffle(args: tuple[Any, ...]) -> dict[str, LuaValue]:
    return {"upscaleFactor": float(args[0]), "upscaleFactorSquared": float(args[0] ** 2)}


def _bottle(args: tuple[Any, ...]) -> dict[str, LuaValue]:
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


def _special(make: Callable[[tuple[Any, ...]], dict[str, LuaValue]], **fields: Any) -> LuaClass:
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
METHODS: dict[str, Callable[..., dict[str, LuaValue]]] = {
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


def fields_of(layer: LuaLayer, element: ElementType) -> dict[str, LuaValue]:
    """Return the fields set by a constructor call and the methods called after it.

    Args:
        layer: the call.
        element: of the tensors.
    """
    row = class_of(layer.name)
    found: dict[str, LuaValue] = {name: fresh(value, element) for name, value in row.fields.items()}
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


def fresh(value: Any, element: ElementType) -> LuaValue:
    """Return a new value for a marker, anything else unchanged."""

    makers: dict[Any, Callable[[], LuaValue]] = {
        EMPTY: lambda: Tensor(element, None),
        LONG_EMPTY: lambda: Tensor(INT64, None),
        INT_EMPTY: lambda: Tensor(ELEMENT_TYPES["int32"], None),
        TABLE: Table,
        SIZES: lambda: long_storage(),
        SIZES_4: lambda: long_storage(0, 0, 0, 0),
        "<two tensors>": lambda: Table.from_list([Tensor(element, None), Tensor(element, None)]),
    }
    return makers[value]() if isinstance(value, str) and value in makers else value


def lua_value(value: Any, element: ElementType) -> LuaValue:
    """Return a Python value as Lua has it: numbers are doubles, arrays tensors of an element type."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return float(value)
    return Tensor.from_numpy(value.astype(element.code))
