"""Recurrent cells that rnn builds from many small modules, recognized as a few matrices.

Source: rnn 83a5f17 `LSTM.lua`, `FastLSTM.lua`, `GRU.lua`, of Element-Research and of torch. A modified cell, or one
that drops connections in training, keeps its modules. May import graph and errors.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ..fields import Fields, items_of, lookup
from ..registry import Child, Param, modules, param
from ..weights.layouts import BlockOrder

_TRANSPARENT = ("nn.Sequential", "nn.ConcatTable", "nn.ParallelTable", "nn.gModule")
_MOST = 200
"""Maximum number of modules searched in a cell; those of rnn have up to 70."""

# The modules without children, in walk order. Of the LSTM: forget gate, input gate, cell candidate, output gate; a gate
# that does not see the cell selects its inputs first and has no CMul.
_GATE = "Linear Linear CMul CAddTable Sigmoid"
_BLIND_GATE = "NarrowTable Linear Linear CAddTable Sigmoid"
_LSTM = (
    "NarrowTable {gate} SelectTable CMulTable {gate} NarrowTable Linear Linear CAddTable Tanh CMulTable CAddTable "
    "FlattenTable {gate} SelectTable Tanh CMulTable SelectTable"
)
_FAST_LSTM = (
    "NarrowTable Linear Linear CAddTable Reshape SplitTable Sigmoid Tanh Sigmoid Sigmoid SelectTable FlattenTable "
    "NarrowTable CMulTable SelectTable SelectTable CMulTable CAddTable SelectTable FlattenTable SelectTable Tanh "
    "SelectTable CMulTable SelectTable"
)
_GRU = (
    "Linear Linear CAddTable Reshape SplitTable Sigmoid Sigmoid FlattenTable NarrowTable SelectTable FlattenTable "
    "SelectTable Linear NarrowTable CMulTable Linear CAddTable Tanh SelectTable SAdd CMulTable NarrowTable CMulTable "
    "CAddTable"
)
# The modules that nngraph runs in a FastLSTM, sorted; its Identity modules are not counted.
_GRAPH = (
    "CAddTable CAddTable CMulTable CMulTable CMulTable Linear Linear Reshape Sigmoid Sigmoid Sigmoid SplitTable "
    "Tanh Tanh"
)
# Lua's gates of a FastLSTM are i, g, f, o; PyTorch's i, f, g, o.
_GATES = BlockOrder((0, 2, 1, 3))

_LSTM_NAMES = (
    *("weight_if", "bias_f", "weight_hf", "weight_cf", "weight_ii", "bias_i", "weight_hi", "weight_ci"),
    *("weight_ig", "bias_g", "weight_hg", "weight_io", "bias_o", "weight_ho", "weight_co"),
)
LSTM_KEYS = (
    *("weight_ii", "bias_i", "weight_hi", "weight_ci", "weight_if", "bias_f", "weight_hf", "weight_cf"),
    *("weight_ig", "bias_g", "weight_hg", "weight_io", "bias_o", "weight_ho", "weight_co"),
)
MUFURU_KEYS = tuple(
    f"{layer}.{name}" for layer in ("input_reset", "output_reset", "new", "shares") for name in ("weight", "bias")
)
_OPERATIONS = {"max", "keep", "replace", "mul", "min", "diff", "forget", "sqrt_diff"}
FAST_LSTM_KEYS = ("weight_ih", "bias", "weight_hh")
GRU_KEYS = ("weight_ih", "bias_ih", "weight_hh", "weight_in", "bias_in", "weight_hn")


def masks_rows(obj: TorchObject) -> bool:
    """Return whether the cell of an object is inside a MaskZero or TrimZero that detects the zero vectors itself."""
    step = lookup(obj, "modules.1")
    if not isinstance(step, TorchObject) or step.class_name not in ("nn.MaskZero", "nn.TrimZero"):
        return False
    if step.get("nInputDim") is not None:  # of Element-Research
        return bool(step.get("nInputDim") == 1.0)
    told, inputs, outputs = (step.get(name) for name in ("v2", "maskinput", "maskoutput"))
    return told is False and inputs in (None, False) and outputs is not False


def operations(obj: TorchObject) -> tuple[str, ...]:
    """Return the operations of a MuFuRu, all of which must be known."""
    names = [name.decode("utf-8", "replace") for name in items_of(obj.get("ops")) or () if isinstance(name, bytes)]
    return tuple(names) if set(names) <= _OPERATIONS else ()


def cell_params(obj: TorchObject) -> tuple[Param, ...]:
    """Return the tensors of an LSTM, FastLSTM, GRU or MuFuRu of rnn that can be computed at once, else nothing."""
    start = "modules.1.modules.1" if masks_rows(obj) else "modules.1"
    leaves = list(_leaves(lookup(obj, start), start))
    names = " ".join(name for name, _, _ in leaves)
    tensors = [found for name, path, leaf in leaves if name in ("Linear", "CMul") for found in _tensors(leaf, path)]
    if obj.class_name == "nn.LSTM" and names in (_LSTM.format(gate=_GATE), _LSTM.format(gate=_BLIND_GATE)):
        wanted = tuple(name for name in _LSTM_NAMES if "CMul" in names or not name.startswith("weight_c"))
        found = _named(obj, wanted, tensors)
        return tuple(param(name, field=found[name]) for name in LSTM_KEYS if name in found)
    if obj.class_name == "nn.FastLSTM" and (names == _FAST_LSTM or " ".join(sorted(names.split())) == _GRAPH):
        found = _named(obj, FAST_LSTM_KEYS, _with_bias_first(tensors))
        return tuple(param(name, _GATES, field=path) for name, path in found.items())
    if obj.class_name == "nn.MuFuRu" and names.split().count("Linear") == 4 and operations(obj):
        return tuple(param(name, field=path) for name, path in _named(obj, MUFURU_KEYS, tensors).items())
    if obj.class_name == "nn.GRU" and names == _GRU:
        return tuple(param(name, field=path) for name, path in _named(obj, GRU_KEYS, tensors).items())
    return ()


def cell_children(obj: TorchObject) -> Iterator[Child]:
    """Return the modules of a cell that cannot be computed at once."""
    if not cell_params(obj):
        yield from modules(obj)


def _leaves(value: object, path: str) -> Iterator[tuple[str, str, TorchObject]]:
    """Yield name, path and object of the modules without children; those that pass their input through are skipped."""
    stack = [(value, path)]
    for _ in range(_MOST):
        if not stack:
            return
        value, path = stack.pop()
        if not isinstance(value, TorchObject):
            continue
        inside = items_of(value.get("modules")) if value.class_name in _TRANSPARENT else None
        if inside:
            stack += [(item, f"{path}.modules.{number}") for number, item in enumerate(inside, 1)][::-1]
            continue
        name = value.class_name.partition(".")[2].replace("LinearNoBias", "Linear")
        if name != "Identity" and not (name == "Dropout" and value.get("p") == 0.0):
            yield name, path, value
    yield "", "", TorchObject("", 0)  # more modules than any cell has


def _tensors(leaf: TorchObject, path: str) -> Iterator[tuple[str, Tensor]]:
    for name in ("weight", "bias"):
        tensor = leaf.get(name)
        if isinstance(tensor, Tensor) and tensor.numel:
            yield f"{path}.{name}", tensor


def _with_bias_first(tensors: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Return the matrix of the input, which has a bias, before that of the output; a graph may have any order."""
    if len(tensors) == 3 and tensors[2][0].endswith(".bias"):
        return [tensors[1], tensors[2], tensors[0]]
    return tensors


def _named(obj: TorchObject, names: tuple[str, ...], tensors: list[tuple[str, Tensor]]) -> dict[str, str]:
    """Return paths by the names of tensors, if there is one for each and all have the required sizes."""
    sizes = Fields(obj)
    if len(names) != len(tensors) or not (sizes.has("inputSize") and sizes.has("outputSize")):
        return {}
    inputs, outputs = obj.get("inputSize"), obj.get("outputSize")
    if not isinstance(inputs, float) or not isinstance(outputs, float):
        return {}
    if obj.class_name == "nn.MuFuRu":
        wide, count = inputs + outputs, len(operations(obj)) * outputs
        shapes = [(outputs, inputs), (outputs, outputs), (outputs, wide), (count, wide)]
        fits = [tensor.shape for _, tensor in tensors] == [one for shape in shapes for one in (shape, shape[:1])]
        return {name: path for name, (path, _) in zip(names, tensors)} if fits else {}
    for name, (_, tensor) in zip(names, tensors):
        gates = {"weight_ih": 4, "weight_hh": 4, "bias": 4, "bias_ih": 2}.get(name, 1)
        if obj.class_name == "nn.GRU" and gates == 4:
            gates = 2
        columns = () if name.startswith(("bias", "weight_c")) else (inputs if name[7] == "i" else outputs,)
        if tensor.shape != (gates * outputs, *columns):
            return {}
    return {name: path for name, (path, _) in zip(names, tensors)}
