"""Lua modules as data: constructor calls, weights, children and graphs, from which objects and source are made.

`structured` combines the steps of a program: chains become nn.Sequential along PyTorch's modules, the rest nn.gModule.
The table of classes has the fields of a freshly constructed module, one row a class: the arguments of the constructor,
stored under the same names, then the other fields. Sources: the `__init` functions of nn 8726825 and nngraph 3ed3b9b.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from math import prod
from typing import Any, Generic, TypeVar

from attrs import field

from ...data import define, np
from ...errors import UnsupportedError
from ...graph.dtypes import ELEMENT_TYPES, FLOAT32, INT64, ElementType
from ...graph.lua import Table
from ...graph.lua import Value as LuaValue
from ...graph.storage import Storage
from ...graph.tensor import Tensor

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
        label: the name of its function in the source, if it came from none.
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
    label: str = ""

    @property
    def inside(self) -> list[LuaLayer]:
        """The modules that it contains, in order."""
        return [step.layer for step in self.steps if step.layer is not None] or self.children

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


def row(rank: int, place: int) -> LuaLayer:
    """Return layers that take the first row along a dimension, 0-based."""
    return sequential(*(make("nn.Select", 1 if index < place else 2, 1) for index in range(rank - 1)))


def expand_as(rank: int, places: list[int]) -> LuaLayer:
    """Return a graph of {value, other} that repeats a value along dimensions, 0-based, to the extents of another.

    Args:
        rank: the number of dimensions of the other.
        places: the dimensions, in which the value has an extent of 1.
    """
    inputs = [LuaNode(None, index=index) for index in range(2)]
    made, other = inputs
    for place in places:
        ones = [make("nn.Constant", np.ones(1, "f4"), 0), make("nn.Select", 2, 1)]
        positions = make("nn.Copy", "torch.FloatTensor", "torch.LongTensor", False, True)
        made = LuaNode(make("nn.Index", place + 1), [made, other >> (row(rank, place) >> sequential(*ones, positions))])
    graph = graph_of(inputs, made)
    graph.label = "ExpandAs"
    return graph


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
        found.append(stack.pop())
        stack.extend(reversed(found[-1].inside))
    return found


def structure_of(
    root: LuaLayer, settings: Callable[[LuaLayer], Any], form: Callable[[WeightRef], Any]
) -> tuple[Any, ...]:
    """Return what is equal for layers of one structure: classes, children and graphs, and what is made of the rest.

    Args:
        root: the outermost layer.
        settings: what counts of the arguments and the methods called.
        form: what counts of a tensor of the state dict.
    """
    found = []
    for layer in walk(root):
        places = {id(step): number for number, step in enumerate(layer.steps)}
        steps = tuple((step.layer is None, *(places[id(source)] for source in step.inputs)) for step in layer.steps)
        outputs = tuple(places[id(step)] for step in layer.outputs)
        weights = tuple((name, form(ref)) for name, ref in layer.weights.items())
        found.append((layer.name, settings(layer), weights, steps, outputs, len(layer.children)))
    return tuple(found)


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
    users: dict[int, list[int]] = {id(step): [0] for step in outputs}  # by the id of a step; 0 is the caller
    used = []
    for step in reversed(steps):
        if id(step) in users:
            used.append(step)
            for source in step.inputs:
                users.setdefault(id(source), []).append(id(step))
    steps = used[::-1]
    for step in inputs if len(inputs) > 1 else ():
        if id(step) not in users:  # nngraph refuses unused inputs
            outputs[0] = LuaNode(make("nn.SelectTable", 1), [outputs[0], step], outputs[0].shape)
            steps.append(outputs[0])
            users[id(outputs[0])] = [0]
    return _assemble(inputs, _group(steps, 0, users), outputs)


def _group(steps: list[LuaNode], depth: int, users: dict[int, list[int]]) -> list[LuaNode]:
    """Replace the runs of one PyTorch module's call that have one input and one output by single steps.

    A first step that joins several values stays apart.
    """
    result: list[LuaNode] = []
    for call, group in groupby(steps, lambda step: step.stack[depth] if len(step.stack) > depth else ""):
        run = list(group)
        is_block = bool(call) and len(run) > 1 and _is_block(run, users)
        if call and not is_block and len(run) > 2 and len(run[0].inputs) > 1 and _is_block(run[1:], users):
            is_block, first = True, run.pop(0)
            first.stack = first.stack[:depth]
            if first.layer is not None:
                first.layer.path = call.partition("|")[2].rpartition(".")[0]
            result.append(first)
        sources = _sources(run)
        inner = _group(run, depth + 1, users) if call else run
        if not is_block:
            result.extend(inner)
            continue
        source, step = sources[0], run[-1]
        gate, last = LuaNode(None, [], source.shape), LuaNode(step.layer, step.inputs, step.shape, step.stack)
        # The last step, which others refer to, becomes the step of them all.
        step.layer = _assemble([gate], [*inner[:-1], last], [last], {id(source): gate})
        step.layer.path = call.partition("|")[2]
        step.inputs, step.stack = [source], step.stack[:depth]
        result.append(step)
    return result


def _sources(run: list[LuaNode]) -> list[LuaNode]:
    """Return the steps outside of a run that its steps take."""
    inside = {id(step) for step in run}
    return [*{id(source): source for step in run for source in step.inputs if id(source) not in inside}.values()]


def _is_block(run: list[LuaNode], users: dict[int, list[int]]) -> bool:
    """Return whether a run takes one value and returns one, its last."""
    inside = {id(step) for step in run}
    leaving = [step for step in run if any(user not in inside for user in users.get(id(step), ()))]
    return len(_sources(run)) == 1 and leaving == run[-1:]


def _assemble(
    inputs: list[LuaNode], steps: list[LuaNode], outputs: list[LuaNode], gates: dict[int, LuaNode] | None = None
) -> LuaLayer:
    """Combine steps into an nn.Sequential if they form a chain, else into an nn.gModule."""
    for step in steps:
        step.inputs = [(gates or {}).get(id(source), source) for source in step.inputs]
    chain = [*inputs, *steps]
    if len(inputs) == 1 and outputs == chain[-1:]:
        if not steps:
            return make("nn.Identity")
        if all(step.inputs == [before] for step, before in zip(steps, chain)):
            return sequential(*(step.layer for step in steps if step.layer is not None))
    nodes = list(inputs)
    for step in steps:
        step.inputs = _apart(step.inputs, nodes)
        nodes.append(step)
    return LuaLayer("nn.gModule", inputs=len(inputs), outputs=_apart(outputs, nodes), steps=nodes)


def _apart(sources: list[LuaNode], nodes: list[LuaNode]) -> list[LuaNode]:
    """Return the sources of a node, with an nn.Identity before each further use of one, which nngraph refuses."""
    taken: list[LuaNode] = []
    for source in sources:
        if source in taken:
            source = LuaNode(make("nn.Identity"), [source], source.shape)
            nodes.append(source)
        taken.append(source)
    return taken


# The fields of new modules


@define(frozen=True)
class LuaClass:
    """Fields stored by a constructor.

    Attributes:
        args: names of its arguments; `-` for one that is not stored.
        defaults: of the last arguments, for shorter source.
        fields: other fields, as text.
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
VolumetricDilatedMaxPooling (kT kW kH dT dW dH padT=0 padW=0 padH=0 dilationT=1 dilationW=1 dilationH=1) \
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


def _new(text: str, element: ElementType) -> LuaValue:
    """Return the value of a field as the table has it: tensors and tables are new ones, numbers doubles."""
    if text.startswith("{"):
        return Table.from_list([_new(part, element) for part in text[1:-1].split(",") if part])
    if text.startswith("LongStorage"):
        return long_storage(*(0,) * int(text.removeprefix("LongStorage")))
    if text.endswith("Tensor"):
        return Tensor({"IntTensor": ELEMENT_TYPES["int32"], "LongTensor": INT64}.get(text, element), None)
    known = {"true": True, "false": False, "nil": None, "neither": "neither"}
    return known[text] if text in known else float(text)


def _classes(table: str) -> Iterator[tuple[str, LuaClass]]:
    """Read the table of classes."""
    pattern = re.compile(r"([A-Z][\w ]*?)(?: (\d))?(?: +\((.*?)\))?((?: +\w+=\S+)*)")
    for line in table.replace("\\\n", "").strip().splitlines():
        row = pattern.fullmatch(line)
        assert row is not None, line
        names, version, args, fields = row.groups("")
        words = [word.partition("=")[::2] for word in args.split()]
        defaults = {name: _new(default, FLOAT32) for name, default in words if default}
        others = dict(word.split("=") for word in fields.split())
        made = LuaClass(tuple(name for name, _ in words), defaults, others, int(version or 1))
        yield from ((name, made) for name in names.split())


CLASSES = dict(_classes(_TABLE))


def long_storage(*values: int) -> Storage:
    """Return a LongStorage of the values."""
    return Storage.from_array(np.array(values, dtype="i8"))


def _copy(taken: str, returned: str, _: None = None, dont_cast: bool = False) -> dict[str, LuaValue]:
    types = {"torch.LongTensor": "int64", "torch.HalfTensor": "float16", "torch.FloatTensor": "float32"}
    first, second = (Tensor(ELEMENT_TYPES[types[name]], None) for name in (taken, returned))
    return {"gradInput": first, **({"output": second, "dontCast": True} if dont_cast else {})}


def _bottle(n_in: int, n_out: int) -> dict[str, LuaValue]:
    shapes = {name: Tensor.from_numpy(np.zeros(rank, "f4")) for name, rank in (("inShape", n_in), ("outShape", n_out))}
    return {"nInputDim": float(n_in), "nOutputDim": float(n_out), "dimDelta": float(n_in - n_out), **shapes}


# Fields that are computed from the arguments.
_COMPUTED: dict[str, Callable[..., dict[str, LuaValue]]] = {
    "Bottle": _bottle,
    "CAdd": lambda *sizes: {"size": long_storage(*sizes)},
    "CMul": lambda *sizes: {"size": long_storage(*sizes)},
    "Copy": _copy,
    "PReLU": lambda count=0: {"nOutputPlane": float(count)},
    "PixelShuffle": lambda factor: {"upscaleFactor": float(factor), "upscaleFactorSquared": float(factor**2)},
    "Reshape": lambda *sizes: {
        "size": long_storage(*sizes[:-1]),
        "batchsize": long_storage(0, *sizes[:-1]),
        "nelement": float(prod(sizes[:-1])),
        "batchMode": sizes[-1],
    },
    "SeqLSTM": lambda width, hidden: dict(
        zip(("inputsize", "hiddensize", "outputsize"), map(float, (width, hidden, hidden)))
    ),
    "SpatialUpSamplingBilinear": lambda sizes: {name: float(value) for name, value in sizes},
    "Transpose": lambda *swaps: {
        "permutations": Table.from_list([Table.from_list(list(map(float, swap))) for swap in swaps])
    },
    "View": lambda *sizes: {
        "size": long_storage(*sizes),
        "numElements": float(prod(extent for extent in sizes if extent >= 0)),
    },
}

# Methods called after construction: the fields that they set.
METHODS: dict[str, Callable[..., dict[str, LuaValue]]] = {
    "noBias": dict,
    "ceil": lambda: {"ceil_mode": True},
    "setCountExcludePad": lambda: {"count_include_pad": False},
    "setNumInputDims": lambda count: {"numInputDims": float(count)},
    "scaleGradByFreq": lambda: {"shouldScaleGradByFreq": True},
}
CONTAINERS = frozenset({"nn.Sequential", "nn.ConcatTable", "nn.Concat", "nn.Bottle", "nn.gModule"})


def fields_of(layer: LuaLayer, element: ElementType) -> dict[str, LuaValue]:
    """Return the fields set by a constructor call and the methods called after it.

    Args:
        layer: the call.
        element: of the tensors.
    """
    name = layer.name.partition(".")[2]
    row = CLASSES[name]
    found = {word: _new(text, element) for word, text in row.fields.items()}
    if name in _COMPUTED:
        found.update(_COMPUTED[name](*layer.args))
    arguments = {**row.defaults, **dict(zip(row.args, layer.args))}
    for word in row.args:
        if word != "-" and arguments[word] is not None:
            found[word] = lua_value(arguments[word], element)
    for method, args in layer.calls:
        found.update(METHODS[method](*args))
    return found


def lua_value(value: Any, element: ElementType) -> LuaValue:
    """Return a Python value as Lua has it: numbers are doubles, arrays tensors of an element type."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return float(value)
    return Tensor.from_numpy(value.astype(element.code))
