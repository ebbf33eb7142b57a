"""A Lua script that makes Lua Torch record the results of a model's layers: `write_probe`.

The script is ours; from the file it contains only numbers and the keys to the model, escaped byte by byte.
May import formats, graph, io and nn.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from attrs import evolve

from ... import formats
from ...conversion.inputs import Inputs, parse_inputs
from ...errors import ModelError
from ...graph.lua import TorchObject, Value
from ...graph.tensor import Tensor
from ...graph.walk import Path
from ...io.output import FileOutput
from ...io.source import Readable
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.fields import items_of, lookup
from ...nn.graphs import graph_modules, graph_spec
from ...nn.mapping import GraphNode
from ...nn.output_shapes import Example
from ...nn.places import Places, choose_module
from .runs import base_name, recorded

Spec = Any
"""Example inputs as `nn.example` has them, or `None` where they are not known."""

_RNN_NAMES = """
AbstractRecurrent AbstractSequencer BiSequencer BiSequencerLM FastLSTM GRU LSTM LinearNoBias LinearRNN
LookupTableMaskZero LookupRNN MaskZero MaskZeroCriterion MuFuRu NormStabilizer RecGRU RecLSTM Recurrence Recurrent
RecurrentAttention Recursor Repeater RepeaterCriterion SAdd SeqBRNN SeqGRU SeqLSTM SeqLSTMP SeqReverseSequence Sequencer
SequencerCriterion TrimZero VariableLength
"""
_RNN = frozenset(_RNN_NAMES.split())
_DPNN_NAMES = "ArgMax Clip Constant Convert DontCast Inception Kmeans ReverseTable Serial SpatialGlimpse"
_DPNN = frozenset(_DPNN_NAMES.split())
SIDES = (32, 28, 16, 8, 64, 96, 128, 224, 227, 231, 256, 299, 12, 24, 48, 40)
"""Heights and widths tried for images."""
MOST_DEPTH = 64
"""Deepest nesting of containers that is followed."""


def write_probe(
    source: Readable,
    out: str,
    at: str | None = None,
    *,
    inputs: Inputs = (),
    force: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> None:
    """Write a Lua script that records the output of every layer of a model.

    Args:
        source: the model, a `.t7`.
        out: the script.
        at: the path of the model if the file contains several.
        inputs: shapes, types and ranges of the inputs, which the script draws; inferred from the layers if empty.
        force: replace the script if it exists.
        limits: resource limits.

    Raises:
        ModelError: the inputs of the model cannot be inferred.
        TargetExistsError: the script exists.
    """
    document = formats.open(source, limits=limits)
    if document.spec.values != formats.LUA:
        raise ModelError("Lua Torch reads .t7 files", file=document.path)
    path, model = choose_module(document.first, at, document.path)
    spec = parse_inputs(inputs, limits=limits) if inputs else fitting_inputs(model, path, limits)
    text = document.layout is not None and getattr(document.layout, "encoding", "") == "ascii"
    keys = keys_to(document.first, path)
    with FileOutput(out, force=force) as output:
        output.write(probe_source(packages_of(model, path, limits), keys, spec, ascii_file=text).encode())


def packages_of(model: TorchObject, path: str, limits: Limits) -> list[str]:
    """Return the Lua packages required by a model."""
    needed = {"nn"}
    for place in Places(model, path, limits):
        name = place.obj.class_name
        base = base_name(name)
        if base == "gModule":
            needed.add("nngraph")
        if base in _RNN:
            needed.add("rnn")
        elif base in _DPNN:
            needed.add("dpnn")
        if name.startswith("cudnn."):
            needed.add("cudnn")
    # rnn loads dpnn.
    return [name for name in ("nn", "nngraph", "dpnn", "rnn", "cudnn") if name in needed]


def guess_inputs(model: TorchObject, side: int = 32, known: dict[int, Spec] | None = None, depth: int = 0) -> Spec:
    """Return an input that a model may accept, according to its first layers; `None` if these do not determine one.

    Args:
        model: the model.
        side: height and width of images.
        known: the inputs of modules by their ids: a module may stand at several places, and in itself.
        depth: of nesting.
    """
    known = {} if known is None else known
    if id(model) not in known:
        known[id(model)] = None  # while it is visited
        inner = partial(guess_inputs, side=side, known=known, depth=depth + 1)
        known[id(model)] = _guess(model, side, inner) if depth <= MOST_DEPTH else None
    return known[id(model)]


def _guess(obj: TorchObject, side: int, inner: Callable[[TorchObject], Spec]) -> Spec:
    name, first = base_name(obj.class_name), obj.get("inputModule")
    inside = [item for item in items_of(obj.get("modules")) or [] if isinstance(item, TorchObject)]
    if name == "gModule":
        return _graph(obj, inner)
    if name == "ParallelTable":
        found = list(map(inner, inside))
        return None if None in found else found
    if name in ("Sequencer", "BiSequencer", "MapTable"):
        one = inner(inside[0]) if inside else None
        return [one, one, one] if one is not None else None
    if name == "Recurrent":
        return inner(first) if isinstance(first, TorchObject) else None
    shape = _leaf_shape(obj, name, side)
    if shape is None:
        others = map(inner, inside[:1] if name == "Sequential" else inside)
        shape = next((spec for spec in others if spec is not None), None)
    if shape is None and (not inside or name == "Sequential"):
        shape = _from_record(recorded(obj.get("gradInput")))
    return shape


def _graph(obj: TorchObject, inner: Callable[[TorchObject], Spec]) -> Spec:
    """Return the inputs of a graph: of each element that of the first module behind it which reads nothing else."""
    children = {child.name: child.value for child in graph_modules(obj)}
    nodes: tuple[GraphNode, ...] = ()
    with suppress(ModelError):
        nodes = graph_spec(obj, "root").nodes

    found: dict[tuple[int, ...], Spec] = {}
    reached: list[set[tuple[int, ...]]] = [set()]
    for node in nodes:
        taken = [reached[at] if at else {indices[:1]} for at, indices in node.takes]
        reached.append(set().union(*taken))
        module = children.get(node.module or "")
        is_layer = isinstance(module, TorchObject) and base_name(module.class_name) != "Identity"
        spec: Spec = inner(module) if len(taken) == 1 and is_layer else None  # type: ignore[arg-type]
        found.update({origin: found.get(origin) or spec for origin in reached[-1]})
    specs = [found[origin] for origin in sorted(found)]
    if None in specs or not specs:
        return _from_record(recorded(lookup(obj, "innode.data.input")))
    return specs if min(found) else specs[0]


def _from_record(value: Any) -> Spec:
    if isinstance(value, Tensor):
        return Example("", value.size)
    if isinstance(value, list) and value:
        found = [_from_record(item) for item in value]
        return None if None in found else found
    return None


def _leaf_shape(obj: TorchObject, name: str, side: int) -> Spec:
    weight, mean = (obj.get(field) for field in ("weight", "running_mean"))
    rows, width = weight.size if isinstance(weight, Tensor) and weight.ndim == 2 else (0, 0)
    if name in _WORDS:
        tokens = _size(obj.get("outputSize") if name == "OneHot" else rows - (name != "LookupTable"))
        return Example("", (2, 5), bounds=(1, tokens)) if tokens else None
    if name == "IndexLinear":  # takes keys and values
        return None
    counts = [_size(obj.get(field)) for field in ("nInputPlane", "inputSize", "inputsize", "inputFrameSize")]
    counts += [width if name in ("Linear", "LinearNoBias") else 0, mean.numel if isinstance(mean, Tensor) else 0]
    front, rest = next((sizes for prefix, sizes in _SIZES.items() if name.startswith(prefix)), ((2,), ()))
    return Example("", (*front, max(counts), *(min(side, most) for most in rest))) if any(counts) else None


_WORDS = ("LookupTable", "LookupTableMaskZero", "OneHot")
"""Layers that take numbers of tokens."""
_SIZES = {
    "Spatial": ((2,), (299, 299)),
    "Inception": ((2,), (299, 299)),
    "Volumetric": ((2,), (16, 16, 16)),
    "Temporal": ((2, 24), ()),
    "Seq": ((3, 2), ()),
}
"""Sizes of an input before its features, and the largest sizes after them, by the beginning of a class."""


def _size(value: Any) -> int:
    """Return a positive number of features, rows or tokens; 0 if it is none."""
    return int(value) if isinstance(value, (int, float)) and 0 < value < 1 << 31 else 0


def fitting_inputs(model: TorchObject, path: str, limits: Limits = DEFAULT_LIMITS) -> Spec:
    """Return an input that a model accepts; sizes of images are tried until the live module accepts one.

    Raises:
        ModelError: the model's layers do not determine its input.
    """
    from .layer import LiveLayer

    first = guess_inputs(model)
    if first is None:
        raise ModelError(
            "the layers do not determine the model's input", path=path, hint="Specify it: --input 2x3x224x224."
        )
    try:
        layer = LiveLayer.build(model, path, 2.0**-24, limits)
    except Exception:  # the model has no live module: the script may still run in Lua
        return first
    for side in SIDES:
        spec = guess_inputs(model, side)
        if spec == first and side != SIDES[0]:
            break
        for variant in (spec, _one_word_each(spec)):
            if layer.shapes(variant) is not None:
                return variant
    return first


def _one_word_each(spec: Spec) -> Spec:
    """Return integers as a vector, one per example, not as sequences."""
    if isinstance(spec, list):
        return [_one_word_each(item) for item in spec]
    return evolve(spec, shape=spec.shape[:1]) if spec.bounds else spec


def keys_to(value: Value, path: str) -> list[Value]:
    """Return the keys from a value to the object at a path.

    Raises:
        ModelError: a key is neither a string nor a number.
    """
    keys = [at.key for at in Path.parse(path).follow(value)]
    if not all(isinstance(key, (bytes, float)) for key in keys):
        raise ModelError("no key in Lua leads to the model", path=path)
    return keys


def lua_literal(key: Value) -> str:
    """Return a key as Lua source; strings byte by byte."""
    if isinstance(key, bytes):
        return '"' + "".join(f"\\{byte:03d}" for byte in key) + '"'
    return repr(float(key)) if isinstance(key, float) else "nil"


def _lua_spec(spec: Spec) -> str:
    if isinstance(spec, list):
        return "{" + ", ".join(_lua_spec(item) for item in spec) + "}"
    if spec.value is not None or (spec.bounds and spec.bounds[0] != 1):
        raise ModelError("a probe draws normal numbers, or whole numbers from 1", found=spec.name[:60])
    sizes = ", ".join(str(int(extent)) for extent in spec.shape)
    return f"whole({spec.bounds[1]}, {sizes})" if spec.bounds else f"normal({sizes})"


def probe_source(packages: list[str], keys: list[Value], spec: Spec, ascii_file: bool = False) -> str:
    """Return the script.

    Args:
        packages: Lua packages required by the model.
        keys: the keys to the model.
        spec: its input.
        ascii_file: whether the model is in an ascii file.
    """
    lines = [f"require '{name}'" for name in packages]
    steps = ", ".join(lua_literal(key) for key in keys)
    text = _SCRIPT.replace("@REQUIRE@", "\n".join(lines)).replace("@KEYS@", steps)
    text = text.replace("@MODE@", "training" if "rnn" in packages else "evaluate")
    return text.replace("@FORMAT@", "ascii" if ascii_file else "binary").replace("@INPUT@", _lua_spec(spec))


_SCRIPT = """\
-- th probe.lua MODEL.t7 proof.t7
-- Runs a model on seeded inputs and saves it with the results of its layers.
-- Written by t7bridge prove --probe; t7bridge prove MODEL.t7 --with proof.t7 reads the result.
@REQUIRE@

local file, out = assert(arg[1], 'name the model'), arg[2] or 'proof.t7'
local loaded = torch.load(file, '@FORMAT@')
local model = loaded
for _, key in ipairs{@KEYS@} do model = model[key] end
local kind = torch.type(model:parameters() and model:parameters()[1] or torch.Tensor())
if kind:find('Cuda') and not cutorch then model:float(); kind = 'torch.FloatTensor' end

torch.manualSeed(1)
local function normal(...) return torch.randn(...):type(kind) end
local function whole(highest, ...) return torch.rand(...):mul(highest):floor():add(1):clamp(1, highest):type(kind) end
local function copy(value)
   if torch.isTensor(value) then return value:clone() end
   if type(value) ~= 'table' then return value end
   local made = {}
   for key, item in pairs(value) do made[key] = copy(item) end
   return made
end
local function like(value)
   if torch.isTensor(value) then return torch.randn(value:size()):typeAs(value) end
   local made = {}
   for key, item in pairs(value) do made[key] = like(item) end
   return made
end

-- The model's input: change it if the model expects another.
local input = @INPUT@

model:@MODE@()
if model.forget then model:forget() end
local kept = copy(input)
local proof = {model = model, input = kept, seed = 1}
local output = model:forward(input)
proof.output = copy(output)
if model.zeroGradParameters then
   model:zeroGradParameters()
   local gradOutput = like(output)
   local before = copy(gradOutput)
   local ok = pcall(function() model:backward(input, gradOutput) end)
   if ok then proof.gradOutput = before end
end
torch.save(out, proof)
"""
