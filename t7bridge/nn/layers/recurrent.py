"""Recurrent layers. Sources: rnn 83a5f17 of torch and its predecessor of Element-Research, torch-rnn.

cuDNN's: one flat vector holds all matrices, then all biases. Sources: cudnn.torch `RNN.lua`; the cuDNN documentation of
`cudnnGetRNNLinLayerMatrixParams`. PyTorch has cuDNN's order of the gates, so every tensor is a view of the vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from attrs import evolve

from ...data import define, np
from ...graph.lua import TorchObject, Value
from ...graph.storage import Storage
from ...graph.tensor import Tensor
from .. import walk
from ..compounds import Expression, Node, node, part, recognized, require
from ..fields import Fields, items_of, lookup, path_steps
from ..layouts import REST, BlockOrder, Extent, Layout, Narrow, Permute, Reshape, copied, elements, nested
from ..mapping import (
    LAYERS,
    Call,
    Choice,
    Literal,
    Lua,
    NotMappedError,
    Row,
    becomes,
    either,
    extent,
    flag,
    has,
    integer,
    made,
    number,
    of_runtime,
    of_torch,
    optional,
    sizes,
)
from ..output_shapes import Arguments
from ..registry import (
    Child,
    Param,
    Recording,
    RecurrentLayer,
    Source,
    Traits,
    add_traits,
    declare_recordings,
    keeps,
    listed_modules,
    modules,
    param,
    register_layer,
    run_elsewhere,
    run_from,
)
from ..torch_nn import Refused, Tensors, constructed, positive
from .containers import are_clones

# Cells that rnn builds from many small modules are recognized as a few matrices. A modified cell, or one that drops
# connections in training, keeps its modules.

_MUFURU_OPERATIONS = {"max", "keep", "replace", "mul", "min", "diff", "forget", "sqrt_diff"}
"""Operations of a MuFuRu that its class in PyTorch has too."""


def gates(order: str) -> BlockOrder:
    """Return the step from Lua's order of the gates in one tensor to PyTorch's, which is i f g o."""
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
    sizes = {"i": inputs, "h": hidden, "j": inputs + hidden, "s": operations * hidden, "p": projected or hidden}
    if projected:
        sizes["r"] = projected
    shapes: Tensors = {}
    for row in rows.split(", "):
        description, extents = row.split(": ")
        name = description.split()[0]
        factors = [(int(extent[:-1] or 1), extent[-1]) for extent in extents.split()]
        if all(letter in sizes for _, letter in factors):
            shapes[name] = tuple(count * sizes[letter] for count, letter in factors)
    return shapes


def masks_rows(obj: TorchObject) -> bool:
    """Return whether the cell of an object is inside a MaskZero or TrimZero that detects the zero vectors itself."""
    step = lookup(obj, _step_path(obj))
    if not isinstance(step, TorchObject) or step.class_name not in ("nn.MaskZero", "nn.TrimZero"):
        return False
    # Element-Research's class has the dimensions of an example: 1 for vectors.
    if step.get("nInputDim") is not None:
        return bool(step.get("nInputDim") == 1.0)
    # torch's can receive the mask (v2), or mask only one of input and output.
    receives_mask = step.get("v2") is not False
    masks_input = step.get("maskinput") not in (None, False)
    masks_output = step.get("maskoutput") is not False
    return not receives_mask and not masks_input and masks_output


def operations(obj: TorchObject) -> tuple[str, ...]:
    """Return the operations of a MuFuRu; none if one of them is not `_MUFURU_OPERATIONS`."""
    names = [name.decode("utf-8", "replace") for name in items_of(obj.get("ops")) or () if isinstance(name, bytes)]
    if not set(names) <= _MUFURU_OPERATIONS:
        return ()
    return tuple(names)


def _gate(name: str, *inputs: str, transfer: str = "nn.Sigmoid") -> Node:
    """Return a gate: the sum of two products with matrices, and of the cell with a vector if it sees that."""
    layers = [node("nn.CMul" if value == "c" else "nn.Linear", value, path=f"{value}{name}") for value in inputs]
    return node(transfer, node("nn.CAddTable", layers))


def _product(*factors: Expression) -> Node:
    return node("nn.CMulTable", list(factors))


def _lstm(cell: str = "c") -> Expression:
    """Return output and cell of an LSTM; with an empty name of the cell its gates do not see it."""
    inputs = ("x", "h", *cell)
    forgotten = _product(_gate("f", *inputs), "c")
    # The candidate g never sees the cell.
    added = _product(_gate("i", *inputs), _gate("g", "x", "h", transfer="nn.Tanh"))
    new_cell = node("nn.CAddTable", [forgotten, added])
    # The output gate sees the new cell, the others the last one.
    output_layers = [node("nn.Linear", "x", path="xo"), node("nn.Linear", "h", path="ho")]
    if cell:
        output_layers.append(node("nn.CMul", new_cell, path="co"))
    output_gate = node("nn.Sigmoid", node("nn.CAddTable", output_layers))
    return [_product(output_gate, node("nn.Tanh", new_cell)), new_cell]


def _parts(count: int, size: float) -> list[Expression]:
    """Return the parts of a sum of two products with matrices."""
    total = node("nn.CAddTable", [node("nn.Linear", "x", path="x"), node("nn.Linear", "h", path="h")])
    reshaped = node("nn.Reshape", total, (count, size))
    return [part(reshaped, at) for at in range(count)]


def _fast_lstm(size: float) -> Expression:
    # i g f o in Lua, whose candidate is the second of the four parts; i f g o in PyTorch.
    i, g, f, o = _parts(4, size)
    i = node("nn.Sigmoid", i)
    f = node("nn.Sigmoid", f)
    o = node("nn.Sigmoid", o)
    g = node("nn.Tanh", g)
    new_cell = node("nn.CAddTable", [_product(i, g), _product(f, "c")])
    return [_product(o, node("nn.Tanh", new_cell)), new_cell]


def _gru(size: float) -> Expression:
    # r z in Lua as in PyTorch; the candidate n has matrices of its own.
    r, z = (node("nn.Sigmoid", gate) for gate in _parts(2, size))
    # h is reset before the product, in PyTorch's GRU after it.
    sums = [node("nn.Linear", "x", path="xn"), node("nn.Linear", _product("h", r), path="hn")]
    n = node("nn.Tanh", node("nn.CAddTable", sums))
    one_minus_z = node("nn.SAdd", z, -1.0, True)
    return node("nn.CAddTable", [_product(n, one_minus_z), _product(z, "h")])


def _operation(name: str, new: Expression) -> Expression:
    """Return one of the operations of a MuFuRu, on its last output and a new value."""
    both = ["h", new]
    if name in ("max", "min"):
        rows = [node("nn.Unsqueeze", value, 1.0, None) for value in both]
        return node("nn.Max" if name == "max" else "nn.Min", node("nn.JoinTable", rows, 1.0, None), 1.0, None)
    difference = node("nn.CSubTable", both)
    return {
        "keep": "h",
        "replace": new,
        "mul": _product(*both),
        "diff": difference,
        "forget": node("nn.MulConstant", "h", 0.0, None),
        "sqrt_diff": node("nn.MulConstant", node("nn.Sqrt", node("nn.Abs", difference)), 0.25, None),
    }[name]


def _mufuru(size: float, names: tuple[str, ...]) -> Expression:
    reset_layers = [node("nn.Linear", "x", path="xr"), node("nn.Linear", "h", path="hr")]
    reset = node("nn.Sigmoid", node("nn.CAddTable", reset_layers))
    joined = node("nn.JoinTable", ["x", _product(reset, "h")], 2.0, None)
    new = node("nn.Sigmoid", node("nn.Linear", joined, path="xn"))
    # How much of the result of each operation is used.
    shares: Expression = node("nn.Linear", node("nn.JoinTable", ["x", "h"], 2.0, None), path="xs")
    shares = node("nn.View", shares, (len(names), int(size)), 1.0)
    shares = node("nn.SoftMax", node("nn.Transpose", shares, ((1.0, 2.0),), None))
    rows = [node("nn.Unsqueeze", _operation(name, new), 1.0, None) for name in names]
    return node("nn.Sum", _product(node("nn.JoinTable", rows, 1.0, 3.0), shares), 1.0, 3.0, None)


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
"""The tensors of a gate of an LSTM."""
_PEEPHOLE = ", weight_c{0} c{0}: h"
"""The vector of a gate that sees the cell: all but the candidate g."""


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
        # i g f o in Lua; i f g o in PyTorch.
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


def _step_path(obj: TorchObject) -> str:
    """Return the path of the module of a step of a cell."""
    path = next((child.path for child in modules(obj)), ".modules[1]")
    return "modules.1" if path == ".modules[1]" else path.removeprefix(".")


def cell_params(obj: TorchObject) -> tuple[Param, ...]:
    """Return the tensors of a cell, or nothing if its modules compute something else."""
    cell = CELLS.get(obj.class_name)
    inputs = obj.get("inputSize")
    outputs = obj.get("outputSize")
    if cell is None or not _is_size(inputs) or not _is_size(outputs):
        return ()
    names = operations(obj)
    start = _step_path(obj)
    if masks_rows(obj):
        start += ".modules.1"
    paths: dict[str, str] = {}
    for pattern in cell.patterns(outputs, names):
        matched = recognized(obj, start, [*cell.inputs], pattern)
        if matched is not None:
            paths = matched
            break
    fields = _fields_of(Fields(obj), cell, paths, tensors(cell.rows, int(inputs), int(outputs), len(names)))
    steps = (gates(cell.order),) if cell.order else ()
    return tuple(param(name, *steps, field=path) for name, path in fields.items())


def _is_size(value: Value) -> bool:
    return isinstance(value, float) and value.is_integer() and value > 0


def _fields_of(fields: Fields, cell: Cell, paths: dict[str, str], shapes: Tensors) -> dict[str, str]:
    """Return the fields of a cell's tensors by their names; none if one has another shape, or there are more biases.

    Args:
        fields: of the cell.
        cell: its description.
        paths: of the modules that have tensors, by their names in the pattern.
        shapes: of its tensors.
    """
    tensor_paths: dict[str, str] = {}
    for row, (name, shape) in zip(cell.rows.split(", "), shapes.items()):
        module_name = row.partition(":")[0].split()[1]
        path = paths.get(module_name)
        if path is None:
            continue
        tensor_paths[name] = f"{path}.{'bias' if 'bias' in name else 'weight'}"
        tensor = fields.find_tensor(tensor_paths[name])
        if tensor is None or tensor.shape != shape:
            return {}
    # Of the layers, those on the cell (c) are vectors without a bias.
    biases = {f"{path}.bias" for module_name, path in paths.items() if module_name[0] != "c"}
    other_biases = biases.difference(tensor_paths.values())
    if any(fields.find_tensor(path) is not None for path in other_biases):
        return {}
    return tensor_paths


def cell_children(obj: TorchObject) -> Iterator[Child]:
    """Yield the modules of a cell that is not recognized."""
    if not cell_params(obj):
        yield from modules(obj)


# States


_ALWAYS_FORGET = ("nn.Repeater", "nn.RecurrentAttention")
"""Containers that make the modules inside forget at each call."""
_MAX_DEPTH = 20
"""Maximum nesting of lists in a state."""
_MOST_ELEMENTS = 1 << 22
"""Maximum number of elements of a state that becomes an argument of a constructor."""
_LIST_ELEMENTS = 64
"""Elements for which a list, or an element of one, counts."""


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
    if step <= 1 or not all(_lets_resume(obj) for obj in lua.above):
        return None
    # Lua stores each step's state under its number, and `step` is the next one's.
    return together([values(lua.get(f"{path}.{step - 1}")) for path in paths])


def begin(lua: Lua, *paths: str) -> Literal:
    """Return the initial state of every sequence of a cell; `None` for zeros.

    Args:
        lua: the cell.
        paths: where it may be, for each part of the state; alternatives are separated by `|`.
    """
    return together([_first_values(lua, path.split("|")) for path in paths])


def _first_values(lua: Lua, paths: list[str]) -> Literal:
    """Return the elements of the first of several fields that has some."""
    for path in paths:
        elements = values(lua.get(path))
        if elements is not None:
            return elements
    return None


def last_of(lua: Lua, states: tuple[str, ...], before: tuple[str, ...], initial: tuple[str, ...]) -> Literal:
    """Return the state after the last sequence of a layer for whole sequences; `None` if the next starts from zeros.

    Args:
        lua: the layer.
        states: fields of the states of all steps, time first; alternatives are separated by `|`.
        before: fields of the states before the first step, which are emptied when the layer forgets.
        initial: fields with the initial state of the next sequence only.
    """
    given = [values(lua.get(path)) for path in initial]
    if any(part is not None for part in given):
        return given[0] if len(given) == 1 else tuple(given)
    if remembered(lua.obj) not in ("eval", "both") or lua.get("train") is not False:
        return None
    if not all(_lets_resume(obj) for obj in lua.above) or any(lua.find_tensor(path) is None for path in before):
        return None
    return together([_last_step(lua, path.split("|")) for path in states])


def _last_step(lua: Lua, paths: list[str]) -> Literal:
    """Return the last row of the first of several fields that is a tensor, time first; `None` if none is."""
    for path in paths:
        tensor = lua.find_tensor(path)
        if tensor is not None:
            return nested(elements(tensor)[-1].tolist())
    return None


def last_column(lua: Lua, *states: str) -> Literal:
    """Return the state after the last sequence of a layer of torch-rnn, which is batch-first; `None` without one.

    Args:
        lua: the layer; it empties `h0` when it forgets.
        states: fields of the states of all steps.
    """
    if not lua.flag("remember_states") or lua.find_tensor("h0") is None:
        return None
    parts: list[Literal] = []
    for path in states:
        tensor = lua.find_tensor(path)
        if tensor is None or len(tensor.shape) != 3:
            return None
        parts.append(nested(elements(tensor)[:, -1].tolist()))
    return together(parts)


def _lists(value: Value, leaf: Callable[[Value, list[Value] | None], Literal]) -> Any:
    """Return nested lists of what a function makes of values and their elements; `None` if it makes nothing of one.

    Raises:
        NotMappedError: there are too many, as in a list that holds another many times.
    """
    remaining = _MOST_ELEMENTS

    def inside(value: Value, depth: int) -> Any:
        nonlocal remaining
        items = items_of(value) if depth < _MAX_DEPTH else None
        remaining -= value.numel if isinstance(value, Tensor) else _LIST_ELEMENTS * (1 + len(items or ()))
        if remaining < 0:
            raise NotMappedError("holds a state with too many elements")
        literal = leaf(value, items)
        if literal is not None or not items:
            return literal
        parts = [inside(item, depth + 1) for item in items]
        return None if None in parts else parts

    return inside(value, 0)


def values(value: Value) -> Literal:
    """Return the elements of a tensor as nested tuples; a table of tensors as a list of these; else `None`."""

    def numbers(value: Value, _: list[Value] | None) -> Literal:
        return nested(elements(value).tolist()) if isinstance(value, Tensor) and value.numel else None

    return _lists(value, numbers)


def nested_sizes(value: Value) -> Any:
    """Return the sizes of an output: a tuple of numbers, or for a table of outputs a tuple of these; else `None`."""

    def size(value: Value, items: list[Value] | None) -> Literal:
        if isinstance(value, Storage):
            return tuple(map(int, value.array))
        extents = [value] if isinstance(value, float) else items
        if not extents or not all(isinstance(extent, float) and extent.is_integer() for extent in extents):
            return None
        return tuple(map(int, extents))

    return nested(_lists(value, size))


def _lets_resume(obj: TorchObject) -> bool:
    """Return whether a module lets its children resume when it is called in evaluation mode."""
    if obj.class_name == "nn.Sequencer":
        return remembered(obj) in ("eval", "both") and obj.get("train") is False
    return obj.class_name not in _ALWAYS_FORGET


def _zeros(value: Any) -> Literal:
    """Return nested tuples of the same sizes, of zeros."""
    return tuple(_zeros(item) for item in value) if isinstance(value, tuple) else 0.0


def together(parts: list[Literal]) -> Literal:
    """Return a single part, or several as a tuple; `None` if there is none, and zeros for a missing one of two."""
    given = [part for part in parts if part is not None]
    if not given:
        return None
    if len(parts) == 1:
        return given[0]
    return tuple(_zeros(given[0]) if part is None else part for part in parts)


# Entries


_MOST = 10_000
"""Maximum number of modules searched for one that needs to know about zeros."""
_STATE = (
    "outputs cells hiddens gradCells gradHiddens gradOutputs gradInputs gradActions actions cell hidden zeroTensor "
    "typeTensor tableoutput tablegradInput sharedClones recurrentModule rnn action module forwardModule backwardModule "
    "mergeModule merge fwdSeq bwdSeq mergeSeq inputModule feedbackModule transferModule initialModule startModule "
    "inputGate forgetGate outputGate hiddenLayer cellLayer cellGate i2g o2g zeroMask userPrevOutput userPrevCell "
    "userNextGradCell userNextGradOutput userGradPrevOutput userGradPrevCell prevOutput prevCell startState "
    "operations zeroOutput zeroCell indexes mappedLengths temp"
)
"""State that the classes keep of the last sequence, and aliases of modules inside `modules`."""


# Cells: one step of a sequence at each call.


def _positive_sizes(lua: Lua) -> tuple[int, int]:
    inputs = lua.integer("inputSize|inputsize")
    outputs = lua.integer("outputSize|outputsize")
    for name, size in (("inputSize", inputs), ("outputSize", outputs)):
        if size < 1:
            raise lua.wrong(name, "a positive number", float(min(inputs, outputs)))
    return inputs, outputs


_CARRIED = made(lambda lua: carried(lua, "outputs"))
_OUTPUT: dict[str, Any] = {
    "start": lambda lua: begin(lua, "userPrevOutput|outputs.0|startState"),
    "state": _CARRIED,
}
"""The output before the first step, and after the last one."""
_BOTH_CARRIED = made(lambda lua: carried(lua, "outputs", "cells"))
_OUTPUT_AND_CELL: dict[str, Any] = {
    "start": lambda lua: begin(lua, "userPrevOutput|outputs.0", "userPrevCell|cells.0"),
    "state": _BOTH_CARRIED,
}
_REC_STATE: dict[str, Any] = {
    "start": lambda lua: begin(lua, "startState.1", "startState.2"),
    "state": _BOTH_CARRIED,
}
_SIZE = integer("outputSize|outputsize")
_REC_GRU = of_runtime("recurrent.RecGRU", _SIZE, **_OUTPUT)


def _cell(class_name: str, *args: Any, **kwargs: Any) -> Choice:
    """Return the class of a recognized cell; otherwise its modules are applied to the input and the last state."""
    cell = CELLS[class_name]
    has_cell_state = "c" in cell.inputs
    state = _OUTPUT_AND_CELL if has_cell_state else _OUTPUT
    kwargs = {"mask_zero": made(lambda lua: masks_rows(lua.obj)).unless(False), **state, **kwargs}
    as_class = of_runtime(cell.target, made(_positive_sizes).each, *args, **kwargs)
    as_modules = of_runtime("recurrent.RecLSTM", _SIZE, _SIZE, **state) if has_cell_state else _REC_GRU
    return either(lambda lua: cell_params(lua.obj), as_class, as_modules)


def _output_size(lua: Lua) -> Any:
    size = nested_sizes(lua.get("outputSize|outputsize"))
    if size is None:
        raise lua.wrong("outputSize", "sizes, or a table of sizes", lua.get("outputSize|outputsize"))
    return size


_RECURRENCE = of_runtime("recurrent.Recurrence", _output_size, integer("nInputDim"), **_OUTPUT)


_RECURRENT = (
    "initialModule.modules.2",
    "recurrentModule.modules.1.modules.1",
    "recurrentModule.modules.1.modules.2",
    "recurrentModule.modules.3",
    "recurrentModule.modules.2",
)
"""Where Lua runs the modules of a Recurrent: start, input, feedback, transfer and merge, as `modules` has them."""
_FIRST_STEP = {"initialModule.modules.1": 1, "initialModule.modules.3": 3}
"""Clones of the input and the transfer for the first step, and their places in `modules`."""


def _parts_of_recurrent(obj: TorchObject) -> Iterator[Child]:
    """Yield the modules of a Recurrent, those that Lua runs where others were put into `modules`."""
    listed = list(listed_modules(obj))
    for place, path in enumerate(_RECURRENT):
        child = listed[place] if place < len(listed) else None
        running = lookup(obj, path)
        if isinstance(running, TorchObject) and (child is None or running is not child.value):
            child = Child(str(place), path_steps(path), running)
        if child is not None:
            yield child


@becomes("recurrent.Recurrent")
def _recurrent(lua: Lua) -> Call:
    """Map a Recurrent, whose first step has clones of its modules.

    Raises:
        NotMappedError: the first step or the others run something else than its constructor made them run.
    """
    parts = [child.value for child in _parts_of_recurrent(lua.obj)]
    for path, place in _FIRST_STEP.items():
        first = lua.get(path)
        if first is not None and place < len(parts) and not are_clones(first, parts[place], sharing=False):
            raise NotMappedError("its modules inside were changed", path=f"{lua.path}.initialModule")
    for name, form in _FORMS_OF_RECURRENT.items():
        if _form(lua.get(name)) not in (None, form):
            raise NotMappedError("its modules inside were changed", path=f"{lua.path}.{name}")
    return of_runtime("recurrent.Recurrent", state=_CARRIED)(lua)


_FORMS_OF_RECURRENT = {
    "initialModule": ("nn.Sequential", 3),
    "recurrentModule": ("nn.Sequential", 3),
    "recurrentModule.modules.1": ("nn.ParallelTable", 2),
}
"""The containers that the constructor of a Recurrent makes, with the number of modules in each."""


def _form(value: Value) -> tuple[str, int] | None:
    """Return the class of a container and the number of modules in it."""
    return (value.class_name, len(list(modules(value)))) if isinstance(value, TorchObject) else None


_MASK_ZERO = of_runtime(
    "recurrent.MaskZero",
    n_input_dims=optional("nInputDim"),  # Element-Research's; torch's uses batches, or receives the mask
    mask_input=flag("maskinput").unless(False),
    zero_mask=flag("v2").unless(False),
    mask_output=flag("maskoutput", True).unless(True),
)
_SEQUENCERS = ("nn.Sequencer", "nn.Repeater", "nn.RecurrentAttention")


def _needs_mask(obj: TorchObject) -> bool:
    """Return whether something inside a module of torch's rnn needs the mask of steps that are zeros."""
    stack: list[Value] = [obj]
    for _ in range(_MOST):
        if not stack:
            return False
        module = stack.pop()
        if isinstance(module, TorchObject):
            masks = module.class_name == "nn.MaskZero" or module.get("maskzero") is True
            if masks and module.get("v2") is True:
                return True
            stack += items_of(module.get("modules")) or []
    return False


_REMEMBER = made(lambda lua: remembered(lua.obj)).unless("neither")
_SEQUENCER = either(
    lambda lua: _needs_mask(lua.obj),
    of_runtime("sequence.MaskedSequencer", remember=_REMEMBER),
    of_runtime("sequence.Sequencer", remember=_REMEMBER),
)
_RECURSOR = either(
    # Containers of a Recursor make all modules forget, so that it adds nothing.
    lambda lua: lua.above and lua.above[0].class_name in _SEQUENCERS,
    of_torch("Sequential"),
    of_runtime("recurrent.Recursor"),
)
_MASKED = either(
    lambda lua: _needs_mask(lua.obj), of_runtime("sequence.MaskedSequential"), of_runtime("recurrent.Recursor")
)

_OWN_STEPS = (
    *("nn.BiSequencer", "nn.BiSequencerLM", "nn.RecurrentAttention", "nn.Recurrent", "nn.Recurrence", "nn.LinearRNN"),
    *("nn.LookupRNN", "nn.RecLSTM", "nn.RecGRU", "nn.LSTM", "nn.FastLSTM", "nn.GRU", "nn.MuFuRu", "nn.NormStabilizer"),
)
"""Classes whose `maxBPTTstep` does not pass the number of steps on to the modules inside."""


def _zeroes_rows(arguments: Arguments) -> bool:
    """Return whether a MaskZero masks the output for rows that are zeros, and receives no mask."""
    return arguments.kwargs.get("n_input_dims") == 1 and not arguments.kwargs.get("zero_mask")


@becomes("recurrent.NormStabilizer")
def _norm_stabilizer(lua: Lua) -> Call:
    """Map a NormStabilizer, whose module inside returns its input, as do its copies for further steps."""
    for place in range(1, 1 + len(items_of(lua.get("sharedClones")) or ())):
        require(lua, f"sharedClones.{place}", "x")
    require(lua, "recurrentModule", "x")
    return Call(f"{LAYERS}recurrent.NormStabilizer", (float(lua.number("beta", 1.0)),), childless=True)


def _is_sequence(lua: Lua) -> bool:
    """Return whether a Sequencer sets the steps of a Repeater, which it reaches through containers, to its own."""
    for obj in lua.above:
        if obj.class_name == "nn.Sequencer":
            return True
        if obj.class_name in _OWN_STEPS:
            return False
    return False


# Element-Research's classes hold the modules that they run in fields, too.
run_elsewhere(
    {
        **dict.fromkeys(("nn.Recursor", "nn.Recurrence", *CELLS), run_from("recurrentModule")),
        **dict.fromkeys(("nn.Sequencer", "nn.Repeater"), run_from("module|rnn")),
        "nn.SeqBRNN": run_from("module"),
        "nn.BiSequencerLM": run_from("_fwd", "_bwd", "_merge"),
        "nn.RecurrentAttention": run_from("rnn", "action"),
        "nn.Recurrent": _parts_of_recurrent,
    }
)
_OUTPUTS = ("outputs", "userPrevOutput")
_CELLS_BEFORE = ("cells", "userPrevCell")
declare_recordings(
    {
        **dict.fromkeys(("nn.LSTM", "nn.FastLSTM"), Recording(states=(_OUTPUTS, _CELLS_BEFORE))),
        **dict.fromkeys(("nn.GRU", "nn.Recurrence"), Recording(states=(_OUTPUTS,))),
        "nn.Recursor": Recording(states=()),
        "nn.Recurrent": Recording(
            states=(_OUTPUTS,),
            first_step="initialModule",
            places={
                **{path: place + 1 for place, path in enumerate(_RECURRENT)},
                **{path: place + 1 for path, place in _FIRST_STEP.items()},
            },
        ),
        **dict.fromkeys(
            ("nn.Sequencer", "nn.Repeater", "nn.BiSequencer", "nn.SeqBRNN", "nn.SeqLSTM", "nn.SeqLSTMP", "nn.SeqGRU"),
            Recording(over_sequences=True),
        ),
        "nn.BiSequencerLM": Recording(flow=walk.both_ways, inputs={"2": "_mergeInput"}, over_sequences=True),
        # It removes the examples that are zeros before it runs the module inside.
        "nn.TrimZero": Recording(flow=walk.unknown),
    }
)
register_layer(
    "nn.AbstractRecurrent",
    "nn.AbstractSequencer",
    children=modules,
    scratch=_STATE,
    module={
        "nn.Recursor": _RECURSOR,
        **dict.fromkeys(("nn.BiSequencer", "nn.SeqBRNN", "nn.SeqBLSTM", "nn.SeqBGRU", "nn.BLSTM", "nn.BGRU"), _MASKED),
        "nn.ReverseUnreverse": of_runtime("sequence.Reversed"),
        **dict.fromkeys(("nn.Recurrence", "nn.LinearRNN", "nn.LookupRNN"), _RECURRENCE),
        "nn.Recurrent": _recurrent,
        "nn.RecLSTM": of_runtime("recurrent.RecLSTM", integer("outputsize"), integer("hiddensize"), **_REC_STATE),
        "nn.RecGRU": _REC_GRU,
        "nn.MaskZero": _MASK_ZERO,
        "nn.TrimZero": _MASK_ZERO,
        "nn.NormStabilizer": _norm_stabilizer,
        "nn.Sequencer": _SEQUENCER,
        "nn.Repeater": of_runtime(
            "sequence.Repeater", integer("rho|seqlen"), as_sequence=made(_is_sequence).unless(False)
        ),
        "nn.BiSequencerLM": of_runtime("sequence.BiSequencerLM"),
        "nn.RecurrentAttention": of_runtime(
            "sequence.RecurrentAttention",
            integer("nStep"),
            sizes("hiddenSize"),
            returns_actions=flag("forwardActions"),
        ),
        "nn.VariableLength": of_runtime("sequence.VariableLength", last_only=flag("lastOnly").unless(False)),
    },
    traits={
        "recurrent.Recursor": Traits(flow=walk.sequence, by_step=True),
        "recurrent.MaskZero": Traits(flow=walk.sequence, by_step=True, zeroes_rows=_zeroes_rows),
        "recurrent.Recurrence": Traits(flow=walk.recurrence, by_step=True),
        "recurrent.Recurrent": Traits(by_step=True),
        "recurrent.NormStabilizer": Traits(by_step=True),
        "recurrent.RecLSTM": Traits(by_step=True, recurrent=RecurrentLayer("LSTM")),
        "recurrent.RecGRU": Traits(by_step=True),
        "sequence.MaskedSequential": Traits(flow=walk.sequence),
        "sequence.Reversed": Traits(flow=walk.sequence),
        "sequence.MaskedSequencer": Traits(flow=walk.stepped, not_in_torch=lambda arguments: "it skips steps of zeros"),
        "sequence.VariableLength": Traits(flow=walk.unknown),
        "sequence.Sequencer": Traits(flow=walk.stepped, stacking="sequence.Steps"),
        "sequence.Steps": Traits(takes_list=True, returns_list=True, flow=walk.stacked, transparent=True),
        "sequence.Repeater": Traits(flow=walk.repeated),
        "sequence.BiSequencerLM": Traits(flow=walk.unknown),
        "sequence.RecurrentAttention": Traits(flow=walk.unknown),
    },
)
register_layer(
    module={"nn.ReverseSequence": of_runtime("sequence.ReverseSequence")},
    traits=Traits(flow=walk.turned),
)


def _shapes(rows: str) -> Any:
    """Return the shapes of the tensors of a layer by its sizes, and the outputs of its projection if it has one."""

    def shapes(inputs: int, hidden: int, proj_size: int = 0, *_: Any, **__: Any) -> Tensors:
        return tensors(rows, inputs, positive(hidden), projected=proj_size)

    return shapes


def _mufuru_shapes(input_size: int, hidden_size: int, operations: tuple[str, ...], *_: Any, **__: Any) -> Tensors:
    return tensors(CELLS["nn.MuFuRu"].rows, input_size, hidden_size, len(operations))


def _is_layer(kind: str, *rows: tuple[str, ...]) -> RecurrentLayer:
    """Return what is said of a layer of torch.nn without its state, or of a cell, whose rows it has."""
    return RecurrentLayer(kind, f"sequence.Outputs{kind}", f"sequence.Stateful{kind}", rows)


_FAST_LSTM = _is_layer("LSTM", ("weight_ih",), ("weight_hh",), ("bias",))
for _name, _args, _facts in (
    ("nn.FastLSTM", (), Traits(shapes=_shapes(CELLS["nn.FastLSTM"].rows), by_step=True, recurrent=_FAST_LSTM)),
    ("nn.GRU", (), Traits(shapes=_shapes(CELLS["nn.GRU"].rows), by_step=True, recurrent=RecurrentLayer("GRU"))),
    ("nn.MuFuRu", (lambda lua: operations(lua.obj),), Traits(shapes=_mufuru_shapes, by_step=True)),
):
    register_layer(
        _name,
        params=keeps(*CELLS[_name].names)(lambda fields: cell_params(fields.obj)),
        children=cell_children,
        scratch=_STATE,
        kind="layer",
        module=_cell(_name, *_args),
        traits={CELLS[_name].target: _facts},
    )


# Whole sequences.


def _inputs(*steps: BlockOrder) -> Layout:
    """Return the rows of a weight (in + hidden, gates * hidden) for the input, as (gates * hidden, in)."""
    return (Narrow(0, 0, _INPUT_SIZE), Permute((1, 0)), *steps)


def _hiddens(*steps: BlockOrder) -> Layout:
    """Return the rows for the last output, as (gates * hidden, out)."""
    return (Narrow(0, _INPUT_SIZE, REST), Permute((1, 0)), *steps)


_INPUT_SIZE: Extent = "inputsize|inputSize|input_dim|input_size"
# i f o g in Lua; i f g o in PyTorch.
_GATES = gates("ifog")


def _mask(lua: Lua) -> str:
    """Return whether examples that are zeros ("zeros"), or are marked ("mask"), return zeros, as in torch's rnn."""
    if not lua.flag("maskzero"):
        return ""
    return "mask" if lua.flag("v2") else "zeros"


_MASK = made(_mask).unless("")


def _zeros_like_bias(fields: Fields) -> Tensor | None:
    """Return a zero bias: PyTorch adds two biases, Lua has one."""
    bias = fields.find_tensor("bias")
    return None if bias is None else copied(bias, np.zeros_like(elements(bias)))


def _rnn(*steps: BlockOrder) -> tuple[Param, ...]:
    """Return the parameters of a one-layer torch.nn.LSTM or torch.nn.RNN, from a weight (in + out, gates * hidden)."""
    return (
        Param("weight_ih_l0", (Source("weight", _inputs(*steps)),)),
        Param("weight_hh_l0", (Source("weight", _hiddens(*steps)),)),
        param("bias_ih_l0", *steps, field="bias"),
        Param("bias_hh_l0", (), "derived", _zeros_like_bias, adds_to="bias_ih_l0"),
    )


def _projected(name: str) -> Any:
    """Return the number of projected outputs."""
    return made(lambda lua: lua.shape(name)[0] if name in lua.shapes else 0).unless(0)


def _quarter(name: str) -> Any:
    """Return the hidden size of a weight with four gates."""
    return made(lambda lua: lua.shape(name)[0] // 4)


_LSTM_SIZES = (extent("weight_ih_l0", 1), _quarter("weight_ih_l0"))
_SEQUENCE_LSTM: dict[str, Any] = {
    "proj_size": _projected("weight_hr_l0"),
    "batch_first": flag("batchfirst").unless(False),
    "remember": _REMEMBER,
    "state": lambda lua: last_of(lua, ("_output|output", "cell"), ("h0", "c0"), ("userPrevOutput", "userPrevCell")),
}


def _is_lstm_of_torch(lua: Lua) -> bool:
    """Return whether torch.nn.LSTM computes a layer: it masks nothing, and projects to fewer outputs only."""
    projected = _SEQUENCE_LSTM["proj_size"].get(lua)
    _, hidden = _LSTM_SIZES
    return not _MASK.get(lua) and projected < hidden.get(lua)


_SEQ_LSTM = either(
    _is_lstm_of_torch,
    of_runtime("sequence.SeqLSTM", *_LSTM_SIZES, **_SEQUENCE_LSTM),
    of_runtime("sequence.SteppedLSTM", *_LSTM_SIZES, **_SEQUENCE_LSTM, mask_zero=_MASK),
)


def _why_stepped(arguments: Arguments) -> str:
    """Return what `_is_lstm_of_torch` found."""
    if arguments.kwargs.get("mask_zero"):
        return "it skips steps of zeros"
    return "its projection is not smaller than its cell"


def _last_hidden(lua: Lua) -> Literal:
    """Return the state of torch.nn.RNN, a tuple of one tensor of one layer."""
    state = last_column(lua, "output")
    return None if state is None else (state,)


# torch-rnn's layers of whole sequences.
_TORCH_RNN_LSTM = of_runtime(
    "sequence.SeqLSTM",
    *_LSTM_SIZES,
    batch_first=True,
    remember=made(lambda lua: "always" if lua.flag("remember_states") else "").unless(""),
    state=lambda lua: last_column(lua, "output", "cell"),
)
_VANILLA_RNN = of_runtime(
    "sequence.OutputsRNN",
    extent("weight_ih_l0", 1),
    extent("weight_ih_l0"),
    batch_first=True,
    remember=flag("remember_states").unless(False),
    hidden=_last_hidden,
)


def _reset_gru(name: str, **kwargs: Any) -> Row:
    """Map a GRU that resets its state before the product; its weight is (in + hidden, 3 * hidden)."""

    def sizes_of(lua: Lua) -> tuple[int, int]:
        rows, columns = lua.shape("weight")[:2]
        hidden = columns // 3
        return rows - hidden, hidden

    return of_runtime(name, made(sizes_of).each, **kwargs)


_BUFFERS = (
    "cell gates next_h next_c buffer1 buffer2 buffer3 grad_a_buffer h0 c0 grad_h0 grad_c0 grad_x gradWeightO hidden "
    "remember_states userPrevOutput userPrevCell userGradPrevOutput userGradPrevCell userNextGradCell zeroMask "
    "grad_next_h"
)
_PROJECTION = param("weight_hr_l0", Permute((1, 0)), field="weightO")


register_layer(
    params=(*_rnn(_GATES), _PROJECTION),
    scratch=_BUFFERS,
    module=dict.fromkeys(("nn.SeqLSTM", "nn.SequenceLSTM", "nn.SeqLSTMP"), _SEQ_LSTM),
    traits={
        "sequence.SeqLSTM": Traits(like="LSTM", written=("outputs",), recurrent=_is_layer("LSTM")),
        "sequence.SteppedLSTM": Traits(
            shapes=_shapes("weight_ih_l0: 4h i, weight_hh_l0: 4h p, bias_ih_l0: 4h, bias_hh_l0: 4h, weight_hr_l0: r h"),
            recurrent=RecurrentLayer("LSTM"),
            not_in_torch=_why_stepped,
        ),
    },
)
# torch.nn.RNN.
register_layer("nn.VanillaRNN", "nn.VanillaRnn", params=_rnn(), scratch=_BUFFERS, module=_VANILLA_RNN)
# Lua resets the hidden state before it is multiplied, torch.nn.GRU after: another function, so Lua's layout is kept.
_NOT_TORCH = "is not the function of torch.nn.GRU"
# weight (in + hidden, 3 * hidden), bias (3 * hidden); r z n in Lua as in PyTorch.
_JOINED_GATES = Traits(shapes=_shapes("weight: j 3h, bias: 3h"), recurrent=RecurrentLayer("GRU"))
register_layer(
    "nn.SeqGRU",
    params=(param("weight"), param("bias")),
    scratch=_BUFFERS,
    note=_NOT_TORCH,
    module=_reset_gru(
        "sequence.SeqGRU",
        batch_first=flag("batchfirst").unless(False),
        mask_zero=_MASK,
        remember=_REMEMBER,
        state=lambda lua: last_of(lua, ("_output|output",), ("h0",), ("userPrevOutput",)),
    ),
    traits=_JOINED_GATES,
)


@keeps(*CELLS["nn.LSTM"].names, *(sequence_param.name for sequence_param in _rnn(_GATES)))
def _lstm_or_sequence(fields: Fields) -> tuple[Param, ...]:
    return cell_params(fields.obj) if fields.find_tensor("weight") is None else _rnn(_GATES)


def _lstm_shapes(input_size: int, hidden_size: int, peephole: bool = True, *_: Any, **__: Any) -> Tensors:
    shapes = tensors(CELLS["nn.LSTM"].rows, input_size, positive(hidden_size))
    return {name: shape for name, shape in shapes.items() if peephole or not name.startswith("weight_c")}


# The order of the rows in PyTorch: i f g o.
_ROWS_OF_LSTM = (
    ("weight_ii", "weight_if", "weight_ig", "weight_io"),
    ("weight_hi", "weight_hf", "weight_hg", "weight_ho"),
    ("bias_i", "bias_f", "bias_g", "bias_o"),
)


def _has_peepholes(arguments: Arguments) -> str:
    """Return what torch.nn.LSTM does not have."""
    return "" if arguments.kwargs.get("peephole") is False else "its gates see the cell"


# rnn's LSTM has modules, torch-rnn's of the same name has a weight of its own.
register_layer(
    "nn.LSTM",
    params=_lstm_or_sequence,
    children=cell_children,
    scratch=f"{_STATE} {_BUFFERS}",
    module=either(
        lambda lua: lua.find_tensor("weight") is None,
        _cell("nn.LSTM", peephole=has("weight_ci").unless(True)),
        _TORCH_RNN_LSTM,
    ),
    traits=Traits(
        shapes=_lstm_shapes,
        by_step=True,
        recurrent=_is_layer("LSTM", *_ROWS_OF_LSTM),
        not_in_torch=_has_peepholes,
    ),
)


# One step of SeqLSTM and SeqGRU.


register_layer(
    "nn.StepLSTM",
    params=(
        Param("weight_ih", (Source("weight", _inputs(_GATES)),)),
        Param("weight_hh", (Source("weight", _hiddens(_GATES)),)),
        param("bias", _GATES),
        param("weight_hr", Permute((1, 0)), field="weightO"),
    ),
    scratch=_BUFFERS,
    module=of_runtime(
        "recurrent.StepLSTM",
        extent("weight_ih", 1),
        _quarter("weight_ih"),
        proj_size=_projected("weight_hr"),
        mask_zero=_MASK,
    ),
    traits=Traits(
        flow=walk.tensors,
        shapes=_shapes("weight_ih: 4h i, weight_hh: 4h p, bias: 4h, weight_hr: r h"),
        by_step=True,
        recurrent=RecurrentLayer("LSTM"),
    ),
)
register_layer(
    "nn.StepGRU",
    params=(param("weight"), param("bias")),
    scratch=_BUFFERS,
    note=_NOT_TORCH,
    module=_reset_gru("recurrent.StepGRU", mask_zero=_MASK),
    traits=evolve(_JOINED_GATES, by_step=True),
)


def _peephole_shapes(input_size: int, hidden_size: int, bias: bool = True) -> Tensors:
    shapes = constructed("LSTMCell", (input_size, positive(hidden_size), bias), {})
    return {**shapes, **{f"weight_c{gate}": (hidden_size,) for gate in "ifo"}}


# Cells recognized in graphs, and layers that return their state (`workshop/cells`); no class of Lua is one.
def _cell_of_torch(kind: str, **facts: Any) -> Traits:
    """Return the traits of a cell that takes and returns its state."""
    step: Any = {"takes_list": True, "by_step": True, "recurrent": RecurrentLayer(kind), **facts}
    if kind == "LSTM":
        return Traits(returns_list=True, flow=walk.pair, written=("cell", "hc"), **step)
    return Traits(written=("cell", "h"), **step)


add_traits(
    {
        **{
            f"sequence.Stateful{kind}": Traits(
                takes_list=True,
                returns_list=True,
                flow=walk.with_state,
                like=kind,
                written=("recurrent",),
                recurrent=RecurrentLayer(kind),
            )
            for kind in ("LSTM", "GRU", "RNN")
        },
        "recurrent.LSTMCell": _cell_of_torch("LSTM", like="LSTMCell"),
        "recurrent.PeepholeLSTMCell": _cell_of_torch("LSTM", shapes=_peephole_shapes),
        "recurrent.GRUCell": _cell_of_torch("GRU", like="GRUCell"),
        "recurrent.ResetGRUCell": _cell_of_torch("GRU", like="GRUCell"),
        "recurrent.RNNCell": _cell_of_torch("RNN", like="RNNCell"),
    }
)


_KINDS = {
    **dict.fromkeys(("cudnn.LSTM", "cudnn.BLSTM"), "LSTM"),
    **dict.fromkeys(("cudnn.GRU", "cudnn.BGRU"), "GRU"),
    **dict.fromkeys(("cudnn.RNN", "cudnn.RNNReLU", "cudnn.RNNTanh"), "RNN"),
}


def _kind(fields: Fields) -> str:
    """Return the class of torch.nn of a layer. A cudnn.RNN may be any of them, according to its mode."""
    if fields.obj.class_name == "cudnn.RNN":
        mode = fields.text("mode")
        return {"CUDNN_LSTM": "LSTM", "CUDNN_GRU": "GRU"}.get(mode, "RNN")
    return _KINDS.get(fields.obj.class_name, "RNN")


def _skips_input(fields: Fields) -> bool:
    """Return whether the input of the first layer is added to all gates directly, without matrices."""
    return fields.text("inputMode") == "CUDNN_SKIP_INPUT"


def _tensors(fields: Fields) -> Tensors:
    """Return the shapes of the tensors of torch.nn's layer, in its order; none for impossible sizes."""
    sizes = (fields.integer("inputSize", 0), fields.integer("hiddenSize", 0), fields.integer("numLayers", 1))
    directions = fields.integer("numDirections", 1)
    try:
        shapes = constructed(_kind(fields), sizes, {"bidirectional": directions == 2})
    except Refused:
        return {}
    if directions not in (1, 2):
        return {}
    if _skips_input(fields):
        for name in ("weight_ih_l0", "weight_ih_l0_reverse"):
            shapes.pop(name, None)
    return shapes


@keeps("weight_ih_l*", "weight_hh_l*", "bias_ih_l*", "bias_hh_l*", "weight")
def _params(fields: Fields) -> tuple[Param, ...]:
    """Return the parameters of torch.nn.LSTM, GRU or RNN, or the flat vector if it has another length."""
    flat = fields.find_tensor("weight")
    if flat is None:
        return ()
    shapes = _tensors(fields)
    # The vector holds all matrices, then all biases. i f g o, and r z n of a GRU, in cuDNN as in PyTorch.
    matrices = [name for name, shape in shapes.items() if len(shape) > 1]
    biases = [name for name, shape in shapes.items() if len(shape) == 1]
    layouts: dict[str, Layout] = {}
    start = 0
    for name in matrices + biases:
        count = prod(shapes[name])
        layouts[name] = (Narrow(0, start, count),)
        if name in matrices:
            layouts[name] += (Reshape(shapes[name]),)
        start += count
    if flat.numel != start:
        note = "the flat weights of a cuDNN layer do not have the length that its fields imply: left as they are"
        return (param("weight", note=note),)
    return tuple(Param(name, (Source("weight", layouts[name]),)) for name in shapes)


def _state(lua: Lua) -> Any:
    """Return the initial state of the next sequence: that of the file, or the last one's final state if it is kept."""
    when = "Output" if lua.flag("rememberStates") else "Input"
    output = lua.find_tensor(f"hidden{when}")
    cell = lua.find_tensor(f"cell{when}")
    layers = lua.integer("numLayers", 1) * lua.integer("numDirections", 1)
    if output is None or output.shape[:1] != (layers,) or len(output.shape) != 3:
        return None
    if _kind(lua) != "LSTM":
        return values(output)
    has_cell = cell is not None and cell.shape == output.shape
    return together([values(output), values(cell) if has_cell else None])


def _nonlinearity(lua: Lua) -> str:
    is_relu = _kind(lua) == "RNN" and lua.text("mode", "CUDNN_RNN_RELU") != "CUDNN_RNN_TANH"
    return "relu" if is_relu else "tanh"


_OPTIONS: dict[str, Any] = {
    "bidirectional": made(lambda lua: lua.integer("numDirections", 1) == 2).unless(False),
    "batch_first": flag("batchFirst").unless(False),
    "nonlinearity": made(_nonlinearity).unless("tanh"),
}
_ROWS = {
    kind: of_runtime(
        f"sequence.Outputs{kind}",
        integer("inputSize"),
        integer("hiddenSize"),
        num_layers=integer("numLayers", 1).unless(1),
        dropout=number("dropout", 0.0).unless(0.0),
        remember=flag("rememberStates").unless(False),
        hidden=_state,
        **_OPTIONS,
    )
    for kind in ("LSTM", "GRU", "RNN")
}
# Without matrices for its input, as in DeepSpeech after a batch normalization.
_BARE = of_runtime("sequence.BareRNN", integer("hiddenSize"), **_OPTIONS)


@becomes(*(f"sequence.Outputs{kind}" for kind in _ROWS), "sequence.BareRNN")
def _module(lua: Lua) -> Call:
    """Map to torch.nn.LSTM, GRU or RNN, returning the outputs only."""
    if "weight_hh_l0" not in lua.shapes:
        raise NotMappedError("its flat weights do not have the length that its fields imply", path=lua.path)
    if not _skips_input(lua):
        return _ROWS[_kind(lua)](lua)
    remembers = lua.flag("rememberStates") or lua.find_tensor("hiddenInput") is not None
    if _kind(lua) != "RNN" or lua.integer("numLayers", 1) != 1 or remembers:
        raise NotMappedError("has no weights for its input", path=lua.path)
    return _BARE(lua)


def _outputs(kind: str) -> Traits:
    """Return the traits of a layer of torch.nn that returns its outputs only."""

    def shapes(*sizes: int, remember: bool = False, hidden: Any = None, **options: Any) -> Tensors:
        return constructed(kind, sizes, options)

    return Traits(shapes=shapes, written=("outputs",), recurrent=_is_layer(kind))


def _bare_shapes(hidden_size: int, nonlinearity: str = "", bidirectional: bool = False, *_: Any, **__: Any) -> Tensors:
    shapes = tensors("weight_hh_l0: h h, bias_ih_l0: h, bias_hh_l0: h", 0, positive(hidden_size))
    if not bidirectional:
        return shapes
    return {**shapes, **{f"{name}_reverse": shape for name, shape in shapes.items()}}


register_layer(
    params=_params,
    module=dict.fromkeys(_KINDS, _module),
    traits={
        **{f"sequence.Outputs{kind}": _outputs(kind) for kind in _ROWS},
        "sequence.BareRNN": Traits(shapes=_bare_shapes),
    },
    scratch="reserve hiddenOutput cellOutput hiddenInput cellInput gradHiddenInput gradCellInput gradHiddenOutput "
    "gradCellOutput dropoutStates dropoutStatesSize workspace",
)

# DeepSpeech: a linear layer and a batch normalization over all steps together, then the recurrent layer.
register_layer(
    children=modules,
    scratch="view_in view_out rnn",
    module=dict.fromkeys(("cudnn.BatchBRNN", "cudnn.BatchBRNNReLU"), of_runtime("sequence.BatchRNN")),
)
