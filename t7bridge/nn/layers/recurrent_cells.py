"""Recurrent cells that rnn builds from many small modules, recognized as a few matrices.

Source: rnn 83a5f17 `LSTM.lua`, `FastLSTM.lua`, `GRU.lua`, of Element-Research and of torch. A modified cell, or one
that drops connections in training, keeps its modules. May import graph and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...data import define
from ...graph.lua import TorchObject, Value
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from ..compounds import Expression, Node, node, recognized
from ..fields import items_of, lookup
from ..layouts import BlockOrder, elements
from ..mapping import Literal, Lua, NotMappedError
from ..registry import Child, Param, modules, param
from ..torch_nn import Tensors

_OPERATIONS = {"max", "keep", "replace", "mul", "min", "diff", "forget", "sqrt_diff"}
"""Known operations of a MuFuRu."""


def gates(order: str) -> BlockOrder:
    """Return the step from Lua's order of the gates in one tensor to PyTorch's, which is i, f, g, o."""
    return BlockOrder(tuple(map(order.index, "ifgo")))


def tensors(rows: str, inputs: int, hidden: int, operations: int = 0, projected: int = 0) -> Tensors:
    """Return the shapes of the tensors of a recurrent layer, by name.

    Args:
        rows: `name: extents`, separated by commas; what is between the name and the colon is ignored. An extent is a
            number and a letter: i for inputs, h for the hidden size, j for both, s for a hidden size of each operation,
            r for the projected outputs, p for the outputs, projected or not.
        inputs: the number of inputs.
        hidden: the hidden size.
        operations: the number of operations of a MuFuRu.
        projected: the number of outputs of a projection; without one, its tensor does not exist.
    """
    sizes = {"i": inputs, "h": hidden, "j": inputs + hidden, "s": operations * hidden}
    sizes |= {"r": projected, "p": projected} if projected else {"p": hidden}
    found: Tensors = {}
    for row in rows.split(", "):
        name, extents = row.split(": ")
        if all(each[-1] in sizes for each in extents.split()):
            found[name.split()[0]] = tuple(int(each[:-1] or 1) * sizes[each[-1]] for each in extents.split())
    return found


def masks_rows(obj: TorchObject) -> bool:
    """Return whether the cell of an object is inside a MaskZero or TrimZero that detects the zero vectors itself."""
    step = lookup(obj, "modules.1")
    if not isinstance(step, TorchObject) or step.class_name not in ("nn.MaskZero", "nn.TrimZero"):
        return False
    if step.get("nInputDim") is not None:  # of Element-Research
        return bool(step.get("nInputDim") == 1.0)
    masked, inputs, outputs = (step.get(name) for name in ("v2", "maskinput", "maskoutput"))
    return masked is False and inputs in (None, False) and outputs is not False


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


@define(frozen=True)
class Cell:
    """A cell that rnn builds from small modules.

    Attributes:
        target: its class in `torchmodules/layers`.
        inputs: the input x, the last output h, the cell c.
        rows: its tensors: the name, the module in the pattern that has it, and the shape as in `tensors`.
        patterns: what its modules compute, in each of its forms: by the size of the output and the operations.
        order: Lua's order of gates in one tensor, if that is not PyTorch's.
    """

    target: str
    inputs: str
    rows: str
    patterns: Callable[[float, tuple[str, ...]], list[Expression]]
    order: str = ""

    @property
    def names(self) -> list[str]:
        """The names of its tensors."""
        return [row.split()[0] for row in self.rows.split(", ")]


_GATE = "weight_i{0} x{0}: h i, bias_{0} x{0}: h, weight_h{0} h{0}: h h"
_PEEPHOLE = ", weight_c{0} c{0}: h"
CELLS = {
    "nn.LSTM": Cell(
        "recurrent.LSTM",
        "xhc",
        ", ".join((_GATE + _PEEPHOLE * (gate != "g")).format(gate) for gate in "ifgo"),
        lambda size, _: [_lstm(), _lstm("")],
    ),
    "nn.FastLSTM": Cell(
        "recurrent.FastLSTM",
        "xhc",
        "weight_ih x: 4h i, bias x: 4h, weight_hh h: 4h h",
        lambda size, _: [_fast_lstm(size)],
        "igfo",
    ),
    "nn.GRU": Cell(
        "recurrent.GRU",
        "xh",
        "weight_ih x: 2h i, bias_ih x: 2h, weight_hh h: 2h h, weight_in xn: h i, bias_in xn: h, weight_hn hn: h h",
        lambda size, _: [_gru(size)],
    ),
    "nn.MuFuRu": Cell(
        "recurrent.MuFuRu",
        "xh",
        "input_reset.weight xr: h i, input_reset.bias xr: h, output_reset.weight hr: h h, output_reset.bias hr: h, "
        "new.weight xn: h j, new.bias xn: h, shares.weight xs: s j, shares.bias xs: s",
        lambda size, names: [_mufuru(size, names)] if names else [],
    ),
}
"""The cells by their Lua classes."""


def cell_params(obj: TorchObject) -> tuple[Param, ...]:
    """Return the tensors of a cell, or nothing if its modules compute something else."""
    inputs, size, cell = obj.get("inputSize"), obj.get("outputSize"), CELLS.get(obj.class_name)
    if cell is None or not all(isinstance(each, float) and each.is_integer() and each > 0 for each in (inputs, size)):
        return ()
    names = operations(obj)
    start = "modules.1.modules.1" if masks_rows(obj) else "modules.1"
    tried = (recognized(obj, start, [*cell.inputs], pattern) for pattern in cell.patterns(size, names))
    paths = next((each for each in tried if each is not None), {})
    found = _fields_of(obj, cell, paths, tensors(cell.rows, int(inputs), int(size), len(names)))
    steps = (gates(cell.order),) if cell.order else ()
    return tuple(param(name, *steps, field=path) for name, path in found.items())


def _fields_of(obj: TorchObject, cell: Cell, paths: dict[str, str], shapes: Tensors) -> dict[str, str]:
    """Return the fields of a cell's tensors by their names; none if one has another shape, or there are more biases."""
    found: dict[str, str] = {}
    for row, (name, shape) in zip(cell.rows.split(", "), shapes.items()):
        path = paths.get(row.partition(":")[0].split()[1])
        if path is None:
            continue
        found[name] = f"{path}.{'bias' if 'bias' in name else 'weight'}"
        tensor = _tensor(obj, found[name])
        if tensor is None or tensor.shape != shape:
            return {}
    biases = {f"{path}.bias" for key, path in paths.items() if key[0] != "c"}
    return {} if any(_tensor(obj, path) is not None for path in biases.difference(found.values())) else found


def _tensor(obj: TorchObject, path: str) -> Tensor | None:
    tensor = lookup(obj, path)
    return tensor if isinstance(tensor, Tensor) and tensor.numel else None


def cell_children(obj: TorchObject) -> Iterator[Child]:
    """Yield the modules of a cell that is not recognized."""
    if not cell_params(obj):
        yield from modules(obj)


# States


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
    return together([values(lua.get(f"{path}.{step - 1}")) for path in paths])


def begin(lua: Lua, *paths: str) -> Literal:
    """Return the initial state of every sequence of a cell; `None` for zeros.

    Args:
        lua: the cell.
        paths: where it may be, for each part of the state; alternatives are separated by `|`.
    """
    found = [[values(lua.get(one)) for one in path.split("|")] for path in paths]
    return together([next((value for value in some if value is not None), None) for some in found])


def last_of(lua: Lua, states: tuple[str, ...], kept: tuple[str, ...], given: tuple[str, ...]) -> Literal:
    """Return the state after the last sequence of a layer for whole sequences; `None` if the next starts from zeros.

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
    return together([_values(elements(tensor)[-1].tolist()) if tensor is not None else None for tensor in tensors])


def last_column(lua: Lua, *states: str) -> Literal:
    """Return the state after the last sequence of a layer of torch-rnn, which is batch-first.

    Args:
        lua: a layer that remembers its states; it empties `h0` when it forgets.
        states: fields of the states of all steps.
    """
    tensors = [lua.find_tensor(path) for path in states]
    if lua.find_tensor("h0") is None or any(tensor is None or len(tensor.shape) != 3 for tensor in tensors):
        return None
    return together([_values(elements(tensor)[:, -1].tolist()) for tensor in tensors if tensor is not None])


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


def together(parts: list[Literal]) -> Literal:
    """Return a single part, or several as a tuple; `None` if there is none, and zeros for a missing one of two."""
    there = [part for part in parts if part is not None]
    if not there:
        return None
    if len(parts) == 1:
        return there[0]
    return tuple(_zeros(there[0]) if part is None else part for part in parts)
