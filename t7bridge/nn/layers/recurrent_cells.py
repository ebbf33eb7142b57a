"""Recurrent cells that rnn builds from many small modules, recognized as a few matrices.

Source: rnn 83a5f17 `LSTM.lua`, `FastLSTM.lua`, `GRU.lua`, of Element-Research and of torch. A modified cell, or one
that drops connections in training, keeps its modules. May import graph and errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...graph.lua import TorchObject, Value
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from ..compounds import Expression, Node, node, recognized
from ..fields import items_of, lookup
from ..layouts import BlockOrder, elements
from ..mapping import Literal, Lua, NotMappedError
from ..registry import Child, Param, modules, param

# Lua's gates of a FastLSTM are i, g, f, o; PyTorch's i, f, g, o.
_GATES = BlockOrder((0, 2, 1, 3))

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


def _gate(name: str, *inputs: str, transfer: str = "Sigmoid") -> Node:
    """Return a gate: the sum of two products with matrices, and of the cell with a vector if it sees that."""
    layers = [node("CMul" if x == "c" else "Linear", x, path=f"{x}{name}") for x in inputs]
    return node(transfer, node("CAddTable", layers))


def _product(*factors: Expression) -> Node:
    return node("CMulTable", list(factors))


def _lstm(cell: str = "c") -> Expression:
    """Return output and cell of an LSTM; with an empty name of the cell its gates do not see it."""
    sees = ("x", "h", *cell)
    new = node(
        "CAddTable",
        [_product(_gate("f", *sees), "c"), _product(_gate("i", *sees), _gate("g", "x", "h", transfer="Tanh"))],
    )
    # The output gate sees the new cell.
    seen = [node("Linear", x, path=f"{x}o") for x in "xh"] + [node("CMul", new, path="co")] * bool(cell)
    return [_product(node("Sigmoid", node("CAddTable", seen)), node("Tanh", new)), new]


def _parts(count: int, size: float) -> list[Expression]:
    """Return the parts of a sum of two products with matrices."""
    total = node("CAddTable", [node("Linear", "x", path="x"), node("Linear", "h", path="h")])
    reshaped = node("Reshape", total, (count, size))
    return [node("part", reshaped, at) for at in range(count)]


def _fast_lstm(size: float) -> Expression:
    i, g, f, o = (node(name, part) for name, part in zip(("Sigmoid", "Tanh", "Sigmoid", "Sigmoid"), _parts(4, size)))
    new = node("CAddTable", [_product(i, g), _product(f, "c")])
    return [_product(o, node("Tanh", new)), new]


def _gru(size: float) -> Expression:
    r, z = (node("Sigmoid", part) for part in _parts(2, size))
    sums = [node("Linear", "x", path="xn"), node("Linear", _product("h", r), path="hn")]
    new = node("Tanh", node("CAddTable", sums))
    return node("CAddTable", [_product(new, node("SAdd", z, -1.0, True)), _product(z, "h")])


def _operation(name: str, new: Expression) -> Expression:
    """Return one of the operations of a MuFuRu, on its last output and a new value."""
    both = ["h", new]
    if name in ("max", "min"):
        rows = [node("Unsqueeze", each, 1.0, None) for each in both]
        return node(name.capitalize(), node("JoinTable", rows, 1.0, None), 1.0, None)
    difference = node("CSubTable", both)
    return {
        "keep": "h",
        "replace": new,
        "mul": _product(*both),
        "diff": difference,
        "forget": node("MulConstant", "h", 0.0, None),
        "sqrt_diff": node("MulConstant", node("Sqrt", node("Abs", difference)), 0.25, None),
    }[name]


def _mufuru(size: float, names: tuple[str, ...]) -> Expression:
    reset = node("Sigmoid", node("CAddTable", [node("Linear", x, path=f"{x}r") for x in "xh"]))
    joined = node("JoinTable", ["x", _product(reset, "h")], 2.0, None)
    new = node("Sigmoid", node("Linear", joined, path="xn"))
    shares: Expression = node("Linear", node("JoinTable", ["x", "h"], 2.0, None), path="xs")
    shares = node("View", shares, (len(names), int(size)), 1.0)
    shares = node("SoftMax", node("Transpose", shares, ((1.0, 2.0),), None))
    rows = [node("Unsqueeze", _operation(name, new), 1.0, None) for name in names]
    return node("Sum", _product(node("JoinTable", rows, 1.0, 3.0), shares), 1.0, 3.0, None)


_MODULES: dict[str, dict[str, tuple[str, str]]] = {
    "nn.LSTM": {
        f"{x}{gate}": (f"weight_{'i' if x == 'x' else x}{gate}", f"bias_{gate}" if x == "x" else "")
        for gate in "ifgo"
        for x in "xhc"
    },
    "nn.FastLSTM": {"x": ("weight_ih", "bias"), "h": ("weight_hh", "")},
    "nn.GRU": {
        "x": ("weight_ih", "bias_ih"),
        "h": ("weight_hh", ""),
        "xn": ("weight_in", "bias_in"),
        "hn": ("weight_hn", ""),
    },
    "nn.MuFuRu": {
        key: (f"{layer}.weight", f"{layer}.bias")
        for key, layer in zip(("xr", "hr", "xn", "xs"), ("input_reset", "output_reset", "new", "shares"))
    },
}
"""The tensors of the modules that have a name in the patterns: weight and bias, which is empty if there is none."""


def cell_params(obj: TorchObject) -> tuple[Param, ...]:
    """Return the tensors of an LSTM, FastLSTM, GRU or MuFuRu of rnn that computes what its class says, else nothing."""
    start = "modules.1.modules.1" if masks_rows(obj) else "modules.1"
    size = obj.get("outputSize")
    if not isinstance(size, float) or obj.class_name not in _MODULES:
        return ()
    patterns: list[Expression] = {
        "nn.LSTM": lambda: [_lstm(), _lstm("")],
        "nn.FastLSTM": lambda: [_fast_lstm(size)],
        "nn.GRU": lambda: [_gru(size)],
        "nn.MuFuRu": lambda: [_mufuru(size, operations(obj))] if operations(obj) else [],
    }[obj.class_name]()
    inputs = ["x", "h", "c"] if obj.class_name in ("nn.LSTM", "nn.FastLSTM") else ["x", "h"]
    tried = (recognized(obj, start, inputs, pattern) for pattern in patterns)
    paths = next((each for each in tried if each is not None), None)
    found = {} if paths is None else _named(obj, paths)
    steps = (_GATES,) if obj.class_name == "nn.FastLSTM" else ()
    keys = {"nn.LSTM": LSTM_KEYS, "nn.FastLSTM": FAST_LSTM_KEYS, "nn.GRU": GRU_KEYS, "nn.MuFuRu": MUFURU_KEYS}
    return tuple(param(name, *steps, field=found[name]) for name in keys[obj.class_name] if name in found)


def cell_children(obj: TorchObject) -> Iterator[Child]:
    """Return the modules of a cell that cannot be computed at once."""
    if not cell_params(obj):
        yield from modules(obj)


def _named(obj: TorchObject, paths: dict[str, str]) -> dict[str, str]:
    """Return the paths of tensors by their names, if all have the required sizes."""
    inputs, outputs = obj.get("inputSize"), obj.get("outputSize")
    if not isinstance(inputs, float) or not isinstance(outputs, float):
        return {}
    found: dict[str, str] = {}
    for key, path in paths.items():
        weight, bias = _MODULES[obj.class_name][key]
        for name, field in ((weight, "weight"), (bias, "bias")):
            tensor = lookup(obj, f"{path}.{field}")
            there = isinstance(tensor, Tensor) and bool(tensor.numel)
            if there != bool(name) and not (field == "bias" and key[0] == "c"):
                return {}
            if there and isinstance(tensor, Tensor):
                if tensor.shape != _shape(obj, name, inputs, outputs):
                    return {}
                found[name] = f"{path}.{field}"
    return found


def _shape(obj: TorchObject, name: str, inputs: float, outputs: float) -> tuple[float, ...]:
    """Return the shape of a tensor of a cell by its name."""
    if obj.class_name == "nn.MuFuRu":
        layer, _, field = name.partition(".")
        rows = outputs * (len(operations(obj)) if layer == "shares" else 1)
        columns = {"input_reset": inputs, "output_reset": outputs}.get(layer, inputs + outputs)
        return (rows,) if field == "bias" else (rows, columns)
    gates = {"weight_ih": 4, "weight_hh": 4, "bias": 4, "bias_ih": 2}.get(name, 1)
    if obj.class_name == "nn.GRU" and gates == 4:
        gates = 2
    if name.startswith(("bias", "weight_c")):
        return (gates * outputs,)
    return (gates * outputs, inputs if name[7] == "i" else outputs)


_ALWAYS_FORGET = ("nn.Repeater", "nn.RecurrentAttention")
_MAX_DEPTH = 20
_MOST = 1 << 22
"""Maximum number of elements of a state that becomes an argument of a constructor."""


def remembered(obj: TorchObject) -> str:
    """Return when a sequence resumes from the last: `train`, `eval`, `both` or `neither`."""
    value = obj.get("_remember")
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
    return text if text in ("train", "eval", "both") else "neither"


def carried(lua: Lua, *paths: str) -> Literal:
    """Return the state after the last step of a cell, or `None` if the next call starts a sequence.

    Args:
        lua: the cell.
        paths: the lists of states by step, such as `outputs` and `cells`.
    """
    step = lua.integer("step", 1)
    if step <= 1 or not all(_goes_on(obj) for obj in lua.above):
        return None
    return _together([values(lua.get(f"{path}.{step - 1}")) for path in paths])


def begin(lua: Lua, *paths: str) -> Literal:
    """Return the initial state of every sequence of a cell; `None` for zeros.

    Args:
        lua: the cell.
        paths: where it may be, for each part of the state; alternatives are separated by `|`.
    """
    found = [[values(lua.get(one)) for one in path.split("|")] for path in paths]
    return _together([next((value for value in some if value is not None), None) for some in found])


def last_of(lua: Lua, states: tuple[str, ...], kept: tuple[str, ...], given: tuple[str, ...]) -> Literal:
    """Return the state after the last sequence of a layer for whole sequences; `None` if the next one starts anew.

    Args:
        lua: the layer.
        states: fields of the states of all steps, time first; alternatives are separated by `|`.
        kept: fields of the states before the first step, which are emptied when the layer forgets.
        given: fields with the initial state of the next sequence only.
    """
    on = [values(lua.get(path)) for path in given]
    if any(value is not None for value in on):
        return on[0] if len(on) == 1 else tuple(on)
    if remembered(lua.obj) not in ("eval", "both") or lua.get("train") is not False:
        return None
    if not all(_goes_on(obj) for obj in lua.above) or any(lua.find_tensor(path) is None for path in kept):
        return None
    tensors = [next(filter(None, map(lua.find_tensor, path.split("|"))), None) for path in states]
    return _together([_values(elements(tensor)[-1].tolist()) if tensor is not None else None for tensor in tensors])


def last_column(lua: Lua, states: tuple[str, ...], kept: str) -> Literal:
    """Return the state after the last sequence of a layer of torch-rnn, which is batch-first.

    Args:
        lua: a layer that remembers its states.
        states: fields of the states of all steps.
        kept: the field of the state before the first step, which is emptied when the layer forgets.
    """
    tensors = [lua.find_tensor(path) for path in states]
    if lua.find_tensor(kept) is None or any(tensor is None or len(tensor.shape) != 3 for tensor in tensors):
        return None
    return _together([_values(elements(tensor)[:, -1].tolist()) for tensor in tensors if tensor is not None])


def values(value: Value, depth: int = 0) -> Literal:
    """Return the elements of a tensor as nested tuples; a table of tensors as a list of these; else `None`."""
    if isinstance(value, Tensor):
        if value.numel > _MOST:
            raise NotMappedError("holds a state with too many elements", found=f"{value.numel}")
        return _values(elements(value).tolist()) if value.numel else None
    items = items_of(value) if depth < _MAX_DEPTH else None
    if not items:
        return None
    inside: list[Literal] = [values(item, depth + 1) for item in items]
    return None if any(item is None for item in inside) else inside


def nested_sizes(value: Value, depth: int = 0) -> Any:
    """Return the sizes of an output: a tuple of numbers, or for a table of outputs a tuple of these; else `None`."""
    if isinstance(value, Storage):
        return tuple(int(extent) for extent in value.array)
    if isinstance(value, float):
        return (int(value),)
    items = items_of(value)
    if not items or depth > _MAX_DEPTH:
        return None
    if all(isinstance(item, float) and item.is_integer() for item in items):
        return tuple(int(item) for item in items)
    inside = tuple(nested_sizes(item, depth + 1) for item in items)
    return None if None in inside else inside


def _goes_on(obj: TorchObject) -> bool:
    """Return whether a module lets its children resume when it is called in evaluation mode."""
    if obj.class_name == "nn.Sequencer":
        return remembered(obj) in ("eval", "both") and obj.get("train") is False
    return obj.class_name not in _ALWAYS_FORGET


def _values(value: Any) -> Literal:
    return tuple(_values(item) for item in value) if isinstance(value, list) else value


def _zeros(value: Any) -> Literal:
    return tuple(_zeros(item) for item in value) if isinstance(value, tuple) else 0.0


def _together(parts: list[Literal]) -> Literal:
    """Return a single part, or several as a tuple; `None` if there is none, and zeros for a missing one of two."""
    there = [part for part in parts if part is not None]
    if not there:
        return None
    if len(parts) == 1:
        return there[0]
    return tuple(_zeros(there[0]) if part is None else part for part in parts)
