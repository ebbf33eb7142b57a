"""Cells that rnn builds from many small modules, recognized as a few matrices by what the modules compute.

A modified cell, or one that drops connections in training, keeps its modules. Source: rnn 83a5f17 of torch and its
predecessor of Element-Research.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ...data import define
from ...graph.lua import TorchObject, Value
from ..compounds import Expression, Node, node, recognized, row_of
from ..fields import Fields, items_of, lookup
from ..layouts import BlockOrder
from ..registry import Child, Param, modules, param
from ..torch_nn import Tensors

_MUFURU_OPERATIONS = {"max", "keep", "replace", "mul", "min", "diff", "forget", "sqrt_diff"}
"""Operations of a MuFuRu that its class in PyTorch has too."""


def gates_to_torch(lua_order: str) -> BlockOrder:
    """Return the step from Lua's order of the gates in one tensor, such as `igfo`, to PyTorch's, which is i f g o."""
    return BlockOrder(tuple(map(lua_order.index, "ifgo")))


def shapes_by_extents(
    extents: Mapping[str, str], inputs: int, hidden: int, operation_count: int = 0, projected: int = 0
) -> Tensors:
    """Return the shapes of the tensors of a recurrent layer, by name.

    Args:
        extents: those of each tensor, by its name: `4h i` is (4 * hidden, inputs). Letters are i for inputs, h for the
            hidden size, j for both, s for a hidden size of each operation, r for the projected outputs, p for the
            outputs, projected or not.
        inputs: the number of inputs.
        hidden: the hidden size.
        operation_count: the number of operations of a MuFuRu.
        projected: the number of outputs of a projection; 0 without one, whose tensor is then left out.
    """
    sizes = {"i": inputs, "h": hidden, "j": inputs + hidden, "s": operation_count * hidden, "p": projected or hidden}
    if projected:
        sizes["r"] = projected
    shapes: Tensors = {}
    for name, text in extents.items():
        factors = [(int(extent[:-1] or 1), extent[-1]) for extent in text.split()]  # "4h" is (4, "h")
        if all(letter in sizes for _, letter in factors):
            shapes[name] = tuple(count * sizes[letter] for count, letter in factors)
    return shapes


def masks_rows(obj: TorchObject) -> bool:
    """Return whether the cell of an object is inside a MaskZero or TrimZero, so that it returns zeros for zero vectors.

    Only one that detects the zero vectors itself, and masks the output alone, counts.
    """
    step = lookup(obj, _step_path(obj))
    if not isinstance(step, TorchObject) or step.class_name not in ("nn.MaskZero", "nn.TrimZero"):
        return False
    # Element-Research's class has the dimensions of an example: 1 for vectors.
    example_dims = step.get("nInputDim")
    if example_dims is not None:
        return bool(example_dims == 1.0)
    # torch's can receive the mask (v2, which is the default), or mask only one of input and output.
    receives_mask = step.get("v2") is not False
    masks_input = step.get("maskinput") not in (None, False)
    masks_output = step.get("maskoutput") is not False
    return not receives_mask and not masks_input and masks_output


def mufuru_operations(obj: TorchObject) -> tuple[str, ...]:
    """Return the operations of a MuFuRu; none if one of them is not in `_MUFURU_OPERATIONS`."""
    names = [name.decode("utf-8", "replace") for name in items_of(obj.get("ops")) or () if isinstance(name, bytes)]
    if not set(names) <= _MUFURU_OPERATIONS:
        return ()
    return tuple(names)


def _gate(name: str, *inputs: str, transfer: str = "nn.Sigmoid") -> Node:
    """Return the expression of a gate: a function of the sum of its inputs, each times weights of its own.

    Args:
        name: its letter, i, f or g; a layer is named by input and gate: `xi`.
        *inputs: those that it sees: the input x, the last output h, the cell c.
        transfer: the class of the function.
    """
    layers = []
    for value in inputs:
        # The cell is multiplied by a vector (a peephole), the others by a matrix.
        layer = "nn.CMul" if value == "c" else "nn.Linear"
        layers.append(node(layer, value, name=f"{value}{name}"))
    return node(transfer, node("nn.CAddTable", layers))


def _product(*factors: Expression) -> Node:
    return node("nn.CMulTable", list(factors))


def _lstm(peepholes: bool) -> Expression:
    """Return the expressions of output and cell of an LSTM, whose gates see the cell if it has peepholes.

    Inputs are x, the last output h and the cell c. A layer is named by input and gate: `xo` of x and the output gate.
    """
    inputs = ("x", "h", "c") if peepholes else ("x", "h")
    forgotten = _product(_gate("f", *inputs), "c")
    # The candidate g never sees the cell.
    added = _product(_gate("i", *inputs), _gate("g", "x", "h", transfer="nn.Tanh"))
    new_cell = node("nn.CAddTable", [forgotten, added])
    # The output gate sees the new cell, the others the last one.
    output_layers = [node("nn.Linear", "x", name="xo"), node("nn.Linear", "h", name="ho")]
    if peepholes:
        output_layers.append(node("nn.CMul", new_cell, name="co"))
    output_gate = node("nn.Sigmoid", node("nn.CAddTable", output_layers))
    return [_product(output_gate, node("nn.Tanh", new_cell)), new_cell]


def _joined_gates(count: int, size: float) -> list[Expression]:
    """Return the expressions of gates, before their functions, that have one matrix for x and one for h together.

    The sum of both products is reshaped to a row for each gate.

    Args:
        count: number of gates.
        size: of the output, as Lua's field has it.
    """
    total = node("nn.CAddTable", [node("nn.Linear", "x", name="x"), node("nn.Linear", "h", name="h")])
    rows = node("nn.Reshape", total, size=(count, size))
    return [row_of(rows, number) for number in range(count)]


def _fast_lstm(size: float) -> Expression:
    """Return the expressions of output and cell of an LSTM with one matrix for all gates."""
    # i g f o in Lua, whose candidate is the second of the four parts; i f g o in PyTorch.
    i, g, f, o = _joined_gates(4, size)
    i = node("nn.Sigmoid", i)
    f = node("nn.Sigmoid", f)
    o = node("nn.Sigmoid", o)
    g = node("nn.Tanh", g)
    new_cell = node("nn.CAddTable", [_product(i, g), _product(f, "c")])
    return [_product(o, node("nn.Tanh", new_cell)), new_cell]


def _gru(size: float) -> Expression:
    """Return the expression of the output of a GRU: (1 - z) n + z h."""
    # r z in Lua as in PyTorch; the candidate n has matrices of its own.
    r, z = (node("nn.Sigmoid", gate) for gate in _joined_gates(2, size))
    # h is reset before its product with a matrix, in PyTorch's GRU after it.
    sums = [node("nn.Linear", "x", name="xn"), node("nn.Linear", _product("h", r), name="hn")]
    n = node("nn.Tanh", node("nn.CAddTable", sums))
    one_minus_z = node("nn.SAdd", z, addend=-1.0, negate=True)  # it is added before the sum is negated
    return node("nn.CAddTable", [_product(n, one_minus_z), _product(z, "h")])


def _operation(name: str, new: Expression) -> Expression:
    """Return the expression of one of the operations of a MuFuRu, on its last output and a new value.

    Args:
        name: one of `_MUFURU_OPERATIONS`.
        new: the expression of the new value.
    """
    both = ["h", new]
    if name in ("max", "min"):
        rows = [node("nn.Unsqueeze", value, pos=1.0) for value in both]
        joined = node("nn.JoinTable", rows, dimension=1.0)
        return node("nn.Max" if name == "max" else "nn.Min", joined, dimension=1.0)
    difference = node("nn.CSubTable", both)
    return {
        "keep": "h",
        "replace": new,
        "mul": _product(*both),
        "diff": difference,
        "forget": node("nn.MulConstant", "h", constant_scalar=0.0),
        "sqrt_diff": node("nn.MulConstant", node("nn.Sqrt", node("nn.Abs", difference)), constant_scalar=0.25),
    }[name]


def _mufuru(size: float, names: tuple[str, ...]) -> Expression:
    """Return the expression of the output of a MuFuRu: a weighted sum of operations on its last output and a new value.

    Args:
        size: of the output, as Lua's field has it.
        names: of the operations, in Lua's order.
    """
    reset_layers = [node("nn.Linear", "x", name="xr"), node("nn.Linear", "h", name="hr")]
    reset = node("nn.Sigmoid", node("nn.CAddTable", reset_layers))
    # Inputs are batches of vectors: their features are dimension 2.
    joined = node("nn.JoinTable", ["x", _product(reset, "h")], dimension=2.0)
    new = node("nn.Sigmoid", node("nn.Linear", joined, name="xn"))
    # How much of the result of each operation is used.
    shares: Expression = node("nn.Linear", node("nn.JoinTable", ["x", "h"], dimension=2.0), name="xs")
    shares = node("nn.View", shares, size=(len(names), int(size)), numInputDims=1.0)
    shares = node("nn.SoftMax", node("nn.Transpose", shares, permutations=((1.0, 2.0),)))
    # The results of the operations become one tensor, with a first dimension of as many elements.
    rows = [node("nn.Unsqueeze", _operation(name, new), pos=1.0) for name in names]
    results = node("nn.JoinTable", rows, dimension=1.0, nInputDims=3.0)
    return node("nn.Sum", _product(results, shares), dimension=1.0, nInputDims=3.0)


@define(frozen=True)
class Cell:
    """A class of cells that rnn builds from small modules.

    Attributes:
        target: its class in `torchmodules/layers`.
        inputs: of the patterns, a letter each: the input x, the last output h, the cell c.
        tensors: by their names: the module in the pattern that has the tensor, and its extents as in
            `shapes_by_extents`.
        patterns: returns the expressions of its output, one for each of its forms, by the size of the output and the
            operations of a MuFuRu.
        order: Lua's order of gates in one tensor, if that is not PyTorch's.
    """

    target: str
    inputs: str
    tensors: dict[str, tuple[str, str]]
    patterns: Callable[[float, tuple[str, ...]], list[Expression]]
    order: str = ""

    @property
    def extents(self) -> dict[str, str]:
        """The extents of its tensors, by name."""
        return {name: extents for name, (_, extents) in self.tensors.items()}


def _lstm_tensors() -> dict[str, tuple[str, str]]:
    """Return the tensors of an LSTM, gate by gate, as in `Cell.tensors`: module in the pattern, extents.

    A name with `bias` is the bias of that module, any other its weight. Lua's layers for the last output have no bias.
    """
    tensors: dict[str, tuple[str, str]] = {}
    for gate in "ifgo":  # PyTorch's order
        tensors[f"weight_i{gate}"] = (f"x{gate}", "h i")
        tensors[f"bias_{gate}"] = (f"x{gate}", "h")
        tensors[f"weight_h{gate}"] = (f"h{gate}", "h h")
        if gate != "g":  # the candidate does not see the cell
            tensors[f"weight_c{gate}"] = (f"c{gate}", "h")
    return tensors


CELLS = {
    "nn.LSTM": Cell(
        target="recurrent.LSTM",
        inputs="xhc",
        tensors=_lstm_tensors(),
        patterns=lambda size, _: [_lstm(peepholes=True), _lstm(peepholes=False)],
    ),
    "nn.FastLSTM": Cell(
        target="recurrent.FastLSTM",
        inputs="xhc",
        tensors={"weight_ih": ("x", "4h i"), "bias": ("x", "4h"), "weight_hh": ("h", "4h h")},
        patterns=lambda size, _: [_fast_lstm(size)],
        order="igfo",  # in PyTorch i f g o
    ),
    "nn.GRU": Cell(
        target="recurrent.GRU",
        inputs="xh",
        tensors={
            "weight_ih": ("x", "2h i"),  # r z; the candidate n has matrices of its own
            "bias_ih": ("x", "2h"),
            "weight_hh": ("h", "2h h"),
            "weight_in": ("xn", "h i"),
            "bias_in": ("xn", "h"),
            "weight_hn": ("hn", "h h"),
        },
        patterns=lambda size, _: [_gru(size)],
    ),
    "nn.MuFuRu": Cell(
        target="recurrent.MuFuRu",
        inputs="xh",
        tensors={
            "input_reset.weight": ("xr", "h i"),
            "input_reset.bias": ("xr", "h"),
            "output_reset.weight": ("hr", "h h"),
            "output_reset.bias": ("hr", "h"),
            "new.weight": ("xn", "h j"),
            "new.bias": ("xn", "h"),
            "shares.weight": ("xs", "s j"),
            "shares.bias": ("xs", "s"),
        },
        patterns=lambda size, names: [_mufuru(size, names)] if names else [],
    ),
}
"""The cells by their Lua classes."""


def _step_path(obj: TorchObject) -> str:
    """Return the path of the module that a cell runs for a step: the first one, or one in another field."""
    first = next(modules(obj), None)
    if first is None or first.path == ".modules[1]":
        return "modules.1"
    return first.path.removeprefix(".")


def cell_params(obj: TorchObject) -> tuple[Param, ...]:
    """Return the tensors of a cell; none if its modules compute something else, or it has impossible sizes."""
    cell = CELLS.get(obj.class_name)
    inputs = obj.get("inputSize")
    outputs = obj.get("outputSize")
    if cell is None or not _is_size(inputs) or not _is_size(outputs):
        return ()
    operations = mufuru_operations(obj)
    start = _step_path(obj)
    if masks_rows(obj):
        start += ".modules.1"  # the cell inside the mask
    shapes = shapes_by_extents(cell.extents, int(inputs), int(outputs), len(operations))
    steps = (gates_to_torch(cell.order),) if cell.order else ()
    # Each pattern is one form of the cell: with and without peepholes, for example.
    for pattern in cell.patterns(outputs, operations):
        module_paths = recognized(obj, start, [*cell.inputs], pattern)
        if module_paths is not None:
            tensor_paths = _tensor_paths(Fields(obj), cell, module_paths, shapes)
            return tuple(param(name, *steps, field=path) for name, path in tensor_paths.items())
    return ()


def _is_size(value: Value) -> bool:
    """Return whether the value of a field is a positive whole number."""
    return isinstance(value, float) and value.is_integer() and value > 0


def _tensor_paths(fields: Fields, cell: Cell, module_paths: dict[str, str], shapes: Tensors) -> dict[str, str]:
    """Return the paths of a cell's tensors by their names; none if one has another shape, or there are more biases.

    Args:
        fields: of the cell.
        cell: its class.
        module_paths: of the modules that have tensors, by their names in the pattern; those of another form are
            missing.
        shapes: of its tensors.
    """
    tensor_paths: dict[str, str] = {}
    for name, (module_name, _) in cell.tensors.items():  # `weight_ii` is that of the module `xi`
        path = module_paths.get(module_name)
        if path is None:
            continue
        tensor_paths[name] = f"{path}.{'bias' if 'bias' in name else 'weight'}"
        tensor = fields.find_tensor(tensor_paths[name])
        if tensor is None or tensor.shape != shapes[name]:
            return {}
    # PyTorch's class has no place for a second bias of a gate. Layers of the cell (c) are vectors, which have none.
    biases = {f"{path}.bias" for module_name, path in module_paths.items() if not module_name.startswith("c")}
    other_biases = biases.difference(tensor_paths.values())
    if any(fields.find_tensor(path) is not None for path in other_biases):
        return {}
    return tensor_paths


def cell_children(obj: TorchObject) -> Iterator[Child]:
    """Yield the modules of a cell that is not recognized; a recognized one has tensors of its own instead."""
    if not cell_params(obj):
        yield from modules(obj)
