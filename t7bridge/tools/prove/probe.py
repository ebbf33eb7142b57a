"""A Lua script that makes Lua Torch record the results of a model's layers: `probe`.

The script is ours; from the file it contains only numbers and the keys to the model, escaped byte by byte.
May import formats, graph, io and nn.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from attrs import evolve

from ... import formats
from ...conversion.inputs import Inputs, parse_inputs
from ...errors import ModelError, UnsupportedError
from ...graph.lua import Table, TorchObject, Value
from ...graph.tensor import Tensor
from ...graph.walk import Path
from ...io.output import FileOutput
from ...io.source import Readable
from ...limits import DEFAULT_LIMITS, Limits
from ...nn.fields import items_of, lookup
from ...nn.output_shapes import Example
from ...nn.places import Places, module_at
from ...nn.state_dict import find_modules
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


def need_torch() -> None:
    """Check that PyTorch is installed.

    Raises:
        UnsupportedError: it is not.
    """
    if find_spec("torch") is None:
        raise UnsupportedError("PyTorch is not installed", hint="pip install 't7bridge[torch]'")


def lua_value(source: Readable | Value, limits: Limits) -> tuple[Value, str]:
    """Return the first value of a `.t7` file, and the file's name.

    Raises:
        FormatError: the file is damaged, or of another format.
        UnsupportedError: it is of another format.
    """
    if isinstance(source, (Table, TorchObject)):
        return source, ""
    document = formats.open(source, limits=limits)
    if document.spec.values != formats.LUA:
        raise UnsupportedError("only .t7 files hold values recorded by Lua Torch", file=document.path)
    return document.first, document.path


def chosen(value: Value, name: str, at: str | None) -> list[tuple[str, TorchObject]]:
    """Return the selected models of a value, with their paths.

    Raises:
        ModelError: there is none.
    """
    found = find_modules(value)
    if not found:
        raise ModelError("the file holds no module", file=name)
    if at is None:
        return found
    module = module_at(value, at)
    if module is None:
        listed = ", ".join(path for path, _ in found[:50])
        raise ModelError(f"the file holds no module at {at}", file=name, hint=f"There are: {listed}.")
    return [(at, module)]


def one_module(value: Value, name: str, at: str | None) -> tuple[str, TorchObject]:
    """Return the only selected model of a value, with its path.

    Raises:
        ModelError: there is none, or several.
    """
    found = chosen(value, name, at)
    if len(found) > 1:
        paths = ", ".join(path for path, _ in found[:50])
        raise ModelError("the file holds several modules", file=name, hint=f"Name one with --at: {paths}.")
    return found[0]


def probe(
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
    need_torch()
    document = formats.open(source, limits=limits)
    if document.spec.values != formats.LUA:
        raise ModelError("Lua Torch reads .t7 files", file=document.path)
    path, model = one_module(document.first, document.path, at)
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


def guess_inputs(model: TorchObject, side: int = 32) -> Spec:
    """Return an input that a model may accept, according to its first layers; `None` if these do not determine one.

    Args:
        model: the model.
        side: height and width of images.
    """
    return _Guess(side).of(model, 0)


class _Guess:
    """Inputs of modules, each visited once: a module may stand at several places, and in itself.

    Args:
        side: height and width of images.
    """

    def __init__(self, side: int) -> None:
        self._side = side
        self._known: dict[int, Spec] = {}

    def of(self, obj: TorchObject, depth: int) -> Spec:
        """Return the input of a module at a depth of nesting."""
        if id(obj) not in self._known:
            self._known[id(obj)] = None  # while it is visited
            self._known[id(obj)] = self._visit(obj, depth) if depth <= MOST_DEPTH else None
        return self._known[id(obj)]

    def _visit(self, obj: TorchObject, depth: int) -> Spec:
        name = base_name(obj.class_name)
        inside = [item for item in items_of(obj.get("modules")) or [] if isinstance(item, TorchObject)]
        recorded_input = _from_record(recorded(obj.get("gradInput")))
        if name == "gModule":
            return self._graph(obj, depth)
        if name == "ParallelTable":
            found = [self.of(item, depth + 1) for item in inside]
            return None if None in found else found
        if name in ("Sequencer", "BiSequencer", "MapTable"):
            one = self.of(inside[0], depth + 1) if inside else None
            return [one, one, one] if one is not None else None
        if name == "Recurrent":
            first = obj.get("inputModule")
            return self.of(first, depth + 1) if isinstance(first, TorchObject) else None
        shape = _leaf_shape(obj, name, self._side)
        if shape is not None:
            return shape
        if name == "Sequential":
            inside = inside[:1]
        for item in inside:
            spec = self.of(item, depth + 1)
            if spec is not None:
                return spec
        return None if inside and name != "Sequential" else recorded_input

    def _graph(self, obj: TorchObject, depth: int) -> Spec:
        """Return the inputs of a graph: of each input node that of the first module which reads it."""
        begin = lookup(obj, "innode.data")
        readers: dict[int, list[Table]] = {}
        for node in items_of(obj.get("forwardnodes")) or []:
            data = lookup(node, "data")
            if isinstance(data, Table):
                for item in {id(one): one for one in items_of(data.get("mapindex")) or []}.values():
                    readers.setdefault(id(item), []).append(data)
        sources = readers.get(id(begin), [])
        if len(sources) == 1:
            selected = readers.get(id(sources[0]), [])
            sources = selected if any(data.get("selectindex") is not None for data in selected) else sources
        sources = sorted(sources, key=lambda data: data.get("selectindex") or 0.0)
        found = [self._first_reader(source, readers, depth) for source in sources]
        if None in found:
            return _from_record(recorded(begin.get("input"))) if isinstance(begin, Table) else None
        return found[0] if len(found) == 1 else found or None

    def _first_reader(self, source: Table, readers: dict[int, list[Table]], depth: int) -> Spec:
        waiting, seen = [source], {id(source)}
        for data in waiting:  # which grows
            module = data.get("module")
            alone = len(items_of(data.get("mapindex")) or []) <= 1
            if isinstance(module, TorchObject) and base_name(module.class_name) != "Identity":
                spec = self.of(module, depth + 1) if alone else None
                if spec is not None:
                    return spec
            for one in readers.get(id(data), []):
                if id(one) not in seen:
                    seen.add(id(one))
                    waiting.append(one)
        return None


def _from_record(value: Any) -> Spec:
    if isinstance(value, Tensor):
        return Example("", value.size)
    if isinstance(value, list) and value:
        found = [_from_record(item) for item in value]
        return None if None in found else found
    return None


def _leaf_shape(obj: TorchObject, name: str, side: int) -> Spec:
    weight, planes = obj.get("weight"), obj.get("nInputPlane")
    if name in ("LookupTable", "LookupTableMaskZero"):
        rows = weight.size[0] - int(name != "LookupTable") if isinstance(weight, Tensor) else 0
        return Example("", (2, 5), bounds=(1, rows)) if rows > 0 else None
    count = obj.get("inputSize") or obj.get("inputsize")
    if name in ("SeqLSTM", "SeqLSTMP", "SeqGRU", "LSTM", "FastLSTM", "GRU") and isinstance(count, float):
        return Example("", (3, 2, int(count)) if name.startswith("Seq") else (2, int(count)))
    if name.startswith("Spatial") and isinstance(planes, float):
        return Example("", (2, int(planes), side, side))
    if name.startswith("Volumetric") and isinstance(planes, float):
        return Example("", (2, int(planes), min(side, 16), min(side, 16), min(side, 16)))
    if name.startswith("Temporal") and isinstance(obj.get("inputFrameSize"), float):
        return Example("", (2, 24, int(obj.get("inputFrameSize"))))
    if name in ("Linear", "LinearNoBias") and isinstance(weight, Tensor) and len(weight.size) == 2:
        return Example("", (2, weight.size[1]))
    mean = obj.get("running_mean")
    if isinstance(mean, Tensor) and mean.numel:
        rest = {"SpatialBatchNormalization": (side, side), "VolumetricBatchNormalization": (8, 8, 8)}.get(name, ())
        return Example("", (2, mean.numel, *rest))
    return None


def fitting_inputs(model: TorchObject, path: str, limits: Limits = DEFAULT_LIMITS) -> Spec:
    """Return an input that a model accepts; sizes of images are tried until the live module accepts one.

    Raises:
        ModelError: the model's layers do not determine its input.
    """
    from .layer import LiveLayer, drawn

    first = guess_inputs(model)
    if first is None:
        raise ModelError(
            "the layers do not determine the model's input", path=path, hint="Specify it: --shape 2x3x224x224."
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
            if layer.shapes(drawn(variant, 1)) is not None:
                return variant
    return first


def _one_word_each(spec: Spec) -> Spec:
    """Return integers as a vector, one per example, not as sequences."""
    if isinstance(spec, list):
        return [_one_word_each(item) for item in spec]
    return evolve(spec, shape=spec.shape[:1]) if spec.bounds else spec


def keys_to(value: Value, path: str, name: str = "root") -> list[Value]:
    """Return the keys from a value to the object at a path.

    Raises:
        ModelError: a key is neither a string nor a number.
    """
    keys = [at.key for at in Path.parse(path, name).follow(value)]
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


def probe_source(packages: list[str], keys: list[Value], spec: Spec, seed: int = 1, ascii_file: bool = False) -> str:
    """Return the script.

    Args:
        packages: Lua packages required by the model.
        keys: the keys to the model.
        spec: its input.
        seed: of all random numbers.
        ascii_file: whether the model is in an ascii file.
    """
    lines = [f"require '{name}'" for name in packages]
    steps = ", ".join(lua_literal(key) for key in keys)
    text = _SCRIPT.replace("@REQUIRE@", "\n".join(lines)).replace("@KEYS@", steps).replace("@SEED@", str(int(seed)))
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

torch.manualSeed(@SEED@)
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
local proof = {model = model, input = kept, seed = @SEED@}
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
