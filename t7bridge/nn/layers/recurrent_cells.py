"""Recurrent cells that rnn builds from many small modules, recognized as a few matrices.

Source: rnn 83a5f17 `LSTM.lua`, `FastLSTM.lua`, `GRU.lua`, of Element-Research and of torch. A modified cell, or one
that drops connections in training, keeps its modules. May import graph and errors.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.lua import TorchObject
from ...graph.tensor import Tensor
from ..compounds import Expression, Node, node, recognized
from ..fields import items_of, lookup
from ..registry import Child, Param, modules, param
from ..weights.layouts import BlockOrder

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
