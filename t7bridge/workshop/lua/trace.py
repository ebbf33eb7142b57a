"""PyTorch modules, script modules and exported programs as lists of ATen calls, by `torch.export`; operations that Lua
lacks are decomposed by PyTorch.
"""

from __future__ import annotations

import operator
from functools import cached_property
from typing import Any

import torch
from attrs import field
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from ...data import define
from .exporting import (
    Freedom,
    check_program_inputs,
    copy_for_evaluation,
    copy_program,
    export_module,
    open_sizes,
    sizes_of,
)
from .functional import decompose, make_functional, operation_of
from .sizes import Extent, Shape, Sizes
from .training import Computation, NoteOfClass, computation_of, notes_on_gradients, notes_on_modes, reads_of_mode

tree_map = pytree.tree_map
tree_leaves = pytree.tree_leaves


@define(frozen=True)
class CallRef:
    """The value of another call, by its name."""

    name: str


@define(eq=False)
class TracedCall:
    """One operation.

    Attributes:
        name: of its value.
        op: `aten.relu.default`, `operator.getitem`.
        target: the operation itself, to fold constants.
        args: all arguments of its schema by name, defaults included, with `CallRef` and `Extent` inside.
        shape: of its value; a tuple of shapes where it returns several.
        stack: the module calls it belongs to, outermost first: key of the call and path of the module.
        line: where the user's source calls it.
        origin: the operation that the source calls, if this is a part of its decomposition.
    """

    name: str
    op: str
    target: Any = field(repr=False)
    args: dict[str, Any] = field(factory=dict)
    shape: Any = ()
    stack: tuple[str, ...] = ()
    line: str = ""
    origin: str = ""

    @property
    def is_random(self) -> bool:
        """Whether its value depends on chance, by PyTorch: that of a dropout in training only."""
        # The arguments of dropouts by which they do nothing, if they are 0 or false.
        is_active = all(self.args[name] for name in ("train", "training", "dropout_p") if name in self.args)
        return is_active and torch.Tag.nondeterministic_seeded in getattr(self.target, "tags", ())


@define(eq=False)
class Program:
    """A traced module.

    Attributes:
        inputs: name and shape of each input.
        stored: name of a value → key in the state dict, and whether it is a parameter and not a buffer.
        constants: name of a value → tensor, of other constants, and of buffers that are not floating or not saved.
        calls: in order.
        dtypes: name of a value → its element type: `float32`, empty where it is not a tensor.
        outputs: names of the values returned; anything but a tensor is stored itself.
        output_names: keys of a returned dict; none if it returns anything else.
        state: the state dict: key → tensor, in order; tied tensors under their first key.
        order: all keys of the state dict, in order.
        aliases: other keys of tied tensors → first key.
        changed: texts of what `forward` changes beside its outputs: buffers and parameters.
        sizes: what is known of the sizes of the inputs.
        texts: the sizes of the inputs that the Lua model takes: `any x 3 x 32 x 32`.
        modules: by their paths.
        notes: path, class and text of what Lua does otherwise.
    """

    inputs: dict[str, Shape] = field(factory=dict)
    stored: dict[str, tuple[str, bool]] = field(factory=dict)
    constants: dict[str, Any] = field(factory=dict)
    calls: list[TracedCall] = field(factory=list)
    dtypes: dict[str, str] = field(factory=dict)
    outputs: list[Any] = field(factory=list)
    output_names: list[str] = field(factory=list)
    state: dict[str, Any] = field(factory=dict)
    order: list[str] = field(factory=list)
    aliases: dict[str, str] = field(factory=dict)
    changed: list[str] = field(factory=list)
    sizes: Sizes = field(factory=Sizes)
    texts: list[str] = field(factory=list)
    modules: dict[str, nn.Module] = field(factory=dict)
    notes: list[NoteOfClass] = field(factory=list)

    @cached_property
    def is_double(self) -> bool:
        """Whether the Lua model has doubles: its type is that of all parts, whatever they are converted to."""
        dtypes = {_dtype(tensor) for tensor in self.state.values()}
        dtypes.update(self.dtypes[name] for name in self.inputs)
        return "float64" in dtypes

    def settle(self) -> None:
        """Restate all extents by what is known of the sizes by now."""
        self.sizes.settle()
        self.inputs = tree_map(_restated, self.inputs)
        for call in self.calls:
            call.shape = tree_map(_restated, call.shape)
            call.args = tree_map(_restated, call.args)


def _restated(value: Any) -> Any:
    return value.now() if isinstance(value, Extent) else value


# Tracing


def trace(
    module: Any,
    inputs: tuple[Any, ...],
    operations: frozenset[str] = frozenset(),
    freedom: Freedom = Freedom.ALL,
) -> Program:
    """Trace a module in evaluation mode. The module is not changed.

    Args:
        module: any module that `torch.export` takes, a script module, or an exported program, which is traced again
            only if other extents than the batch are open.
        inputs: example inputs. A program needs none if it is not traced.
        operations: those that are not decomposed: `aten.relu.default`.
        freedom: the extents that may be open.

    Raises:
        UnsupportedError: the module has control flow that depends on data, or cannot be exported otherwise.
        ModelError: the inputs are not those of a program.
    """
    inputs = tuple(value.detach().cpu() if isinstance(value, torch.Tensor) else value for value in inputs)
    has_modes = not isinstance(module, (ExportedProgram, torch.jit.ScriptModule))
    exported: ExportedProgram | None = None
    if not isinstance(module, ExportedProgram):
        module = copy_for_evaluation(module)
    elif check_program_inputs(module, inputs):
        exported = copy_program(module)
        module = None
    else:
        module = module.module()
    own_backwards: list[str] = []
    evaluated: Computation | None = None
    with open_sizes():
        if exported is None:
            with reads_of_mode() as readers:
                exported = export_module(module, inputs, own_backwards, freedom)
            # The graph of training is made only if the source, apart from torch.nn's, reads the mode.
            if has_modes and readers:
                evaluated = computation_of(exported)
        exported, texts = make_functional(exported, operations)
        program = _program_of(exported, module, operations, inputs)
    program.changed += texts
    if has_modes:
        program.notes += notes_on_modes(module, inputs, evaluated)
    for name in dict.fromkeys(own_backwards):
        text = f"{name} has its own backward, which is not carried to Lua: gradients there are those of its forward"
        program.notes.append(("", name, text))
    return program


def _program_of(
    exported: ExportedProgram, module: nn.Module | None, operations: frozenset[str], inputs: tuple[Any, ...]
) -> Program:
    """Read an exported program, of a module if there is one."""
    is_ours = module is not None
    program = Program()
    program.sizes.example.update(sizes_of(exported, inputs, is_ours).example)
    state = exported.state_dict if module is None else module.state_dict(keep_vars=True)
    keys = _add_state(program, state)
    learned = set(exported.graph_signature.parameters)
    if module is not None:
        learned = {key for key, _ in module.named_parameters(remove_duplicate=False)}
        if not isinstance(module, torch.jit.ScriptModule):
            program.modules = dict(module.named_modules())
        elif not learned:
            learned = _add_frozen_weights(program, exported, keys)
    _add_inputs(program, exported, keys, learned)
    computed = {*program.stored, *program.inputs}
    results = _GraphReader(program, operations, exported.graph_module, computed).read()
    for result, spec in zip(results, exported.graph_signature.output_specs):
        if spec.kind == OutputKind.USER_OUTPUT:
            program.outputs.append(result)
        if spec.kind in _CHANGES:
            program.changed.append(f"forward {_CHANGES[spec.kind]} {spec.target}, which stays as it is in Lua")
    # Decompositions may add conditions: they are read last.
    program.sizes.conditions += sizes_of(exported, inputs, is_ours).conditions
    names = exported.call_spec.out_spec.context
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        program.output_names = list(names)
    program.dtypes.update((name, _dtype(value)) for name, value in program.constants.items())
    parameters = {key: program.state[key] for key, is_learned in program.stored.values() if is_learned}
    program.notes += notes_on_gradients(program.modules, parameters)
    return program


_CHANGES = {
    OutputKind.BUFFER_MUTATION: "updates the buffer",
    OutputKind.PARAMETER_MUTATION: "changes the parameter",
}
"""Kinds of results of a program that are new values of what it holds."""


def _add_state(program: Program, state: dict[str, Any]) -> dict[Any, str]:
    """Add a state dict, tied tensors once; return the key of each tensor by its identity."""
    keys: dict[Any, str] = {}
    for key, tensor in state.items():
        program.order.append(key)
        first_key = keys.setdefault(_identity(tensor), key)
        if first_key == key:
            program.state[key] = tensor
        else:
            program.aliases[key] = first_key
    return keys


def _identity(value: Any) -> Any:
    """Return what distinguishes a tensor from all that do not have its elements in memory."""
    if isinstance(value, torch.Tensor) and value.numel():
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    return id(value)


def _held_value(spec: Any, exported: ExportedProgram) -> Any:
    """Return the parameter, buffer or constant that is an input of a program."""
    return exported.constants.get(spec.target, exported.state_dict.get(spec.target))


def _add_frozen_weights(program: Program, exported: ExportedProgram, keys: dict[Any, str]) -> set[str]:
    """Name the weights of a frozen script module, which are constants of its code: `constants.0`, as in its file.

    Returns:
        The names.
    """
    values = [_held_value(spec, exported) for spec in exported.graph_signature.input_specs if spec.target]
    tensors = {_identity(value): value for value in values if isinstance(value, torch.Tensor)}
    learned = set()
    for number, (identity, tensor) in enumerate(tensors.items()):
        if identity not in keys and tensor.is_floating_point() and tensor.dim():
            key = f"constants.{number}"
            keys[identity] = key
            program.state[key] = tensor
            program.order.append(key)
            learned.add(key)
    return learned


def _add_inputs(program: Program, exported: ExportedProgram, keys: dict[Any, str], learned: set[str]) -> None:
    """Add the inputs of the graph: those of the user, tensors of the state dict, and constants."""
    specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    for node in exported.graph.nodes:
        if node.op != "placeholder":
            continue
        spec = specs[node.name]
        if spec.kind == InputKind.USER_INPUT:
            _add_user_input(program, node)
            continue
        value = _held_value(spec, exported)
        key = keys.get(_identity(value), program.aliases.get(spec.target, spec.target))
        if key in program.state and value.is_floating_point():
            program.stored[node.name] = (key, key in learned)
        elif isinstance(value, torch.Tensor):
            program.constants[node.name] = value.detach().clone()
        else:
            program.constants[node.name] = value


def _add_user_input(program: Program, node: Any) -> None:
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        program.inputs[node.name] = _shape(value, program.sizes)
        program.dtypes[node.name] = _dtype(value)
    else:
        program.constants[node.name] = value


def _shape(value: Any, sizes: Sizes) -> Any:
    """Return the extents of a tensor, or of each of several, by what is known of the sizes."""
    if isinstance(value, torch.Tensor):
        return tuple(_extent(extent, sizes) for extent in value.shape)
    if isinstance(value, (list, tuple)):
        return tuple(_shape(item, sizes) for item in value)
    return ()


def _extent(value: Any, sizes: Sizes) -> Any:
    """Return a number of PyTorch's, perhaps a symbolic one, as a number or an `Extent`."""
    return sizes.of(value.node.expr) if isinstance(value, (torch.SymInt, torch.SymFloat)) else value


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else ""


# Calls


@define(eq=False)
class _GraphReader:
    """Reads the calls of a graph into a program.

    Attributes:
        program: receives the calls and constants.
        operations: those that are not decomposed.
        module: the graph's.
        computed: names of the values that are not constants.
        prefix: of the names of the values, in a decomposition.
        values: values of nodes that are not calls of the program: of a decomposition's inputs, and of what was
            decomposed.
        outer: the call that a decomposition belongs to.
    """

    program: Program
    operations: frozenset[str]
    module: Any
    computed: set[str]
    prefix: str = ""
    values: dict[str, Any] = field(factory=dict)
    outer: TracedCall | None = None

    def read(self) -> list[Any]:
        """Read all calls; return the graph's outputs."""
        for node in self.module.graph.nodes:
            if node.op == "get_attr":
                value = getattr(self.module, node.target)
                if not isinstance(value, nn.Module):
                    self.program.constants[self.prefix + node.name] = value
            elif node.op == "output":
                return [self._argument(item) for item in tree_leaves(node.args[0])]
            elif node.op == "call_function":
                self._read_call(node)
        return []

    def _read_call(self, node: Any) -> None:
        """Add a call to the program, or the calls of which it is composed."""
        if node.target is operator.getitem:
            results = self.values.get(node.args[0].name)
            if isinstance(results, list):  # of an operation that was decomposed
                self.values[node.name] = results[node.args[1]]
                return
        call = self._call_of(node)
        parts = None
        if self._is_decomposed(call):
            parts = decompose(node, self.operations)
        if parts is None:
            self.program.calls.append(call)
            return
        graph_module, inputs = parts
        names = [inner.name for inner in graph_module.graph.nodes if inner.op == "placeholder"]
        values = {name: self._argument(value) for name, value in zip(names, inputs)}
        reader = _GraphReader(
            self.program, frozenset(), graph_module, self.computed, prefix=f"{call.name}.", values=values, outer=call
        )
        results = reader.read()
        has_several = isinstance(node.meta.get("val"), (list, tuple))
        self.values[node.name] = results if has_several else results[0]

    def _is_decomposed(self, call: TracedCall) -> bool:
        """Return whether a call is one of tensors that no operation of the table builds.

        Calls on constants are computed instead, and decompositions are complete.
        """
        is_on_tensors = call.name in self.computed and not call.op.startswith("operator.")
        return self.outer is None and is_on_tensors and call.op not in self.operations

    def _call_of(self, node: Any) -> TracedCall:
        value = node.meta.get("val")
        target = operation_of(node)
        schema = getattr(target, "_schema", None)
        if schema is None:
            op = f"operator.{getattr(target, '__name__', target)}"
            args = {str(number): argument for number, argument in enumerate(node.args)} | node.kwargs
        else:
            op = str(target)
            stated = dict(zip([argument.name for argument in schema.arguments], node.args)) | node.kwargs
            args = {argument.name: stated.get(argument.name, argument.default_value) for argument in schema.arguments}
        call = TracedCall(self.prefix + node.name, op, target, self._argument(args), _shape(value, self.program.sizes))
        if self.outer is None:
            modules = node.meta.get("nn_module_stack") or {}
            call.stack = tuple(f"{key}|{path}" for key, (path, _) in modules.items() if path)
            call.line = _source_line(node.meta.get("stack_trace") or "")
        else:
            call.stack = self.outer.stack
            call.line = self.outer.line
            call.origin = self.outer.op
        self.program.dtypes[call.name] = _dtype(value)
        if any(isinstance(item, CallRef) and item.name in self.computed for item in tree_leaves(call.args)):
            self.computed.add(call.name)
        return call

    def _argument(self, value: Any) -> Any:
        """Return an argument with nodes and symbols replaced."""
        return tree_map(self._item, value)

    def _item(self, item: Any) -> Any:
        if not isinstance(item, torch.fx.Node):
            return item
        value = item.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return _extent(value, self.program.sizes)
        if isinstance(value, (int, float, bool)):
            return value
        return self.values.get(item.name, CallRef(self.prefix + item.name))


def _source_line(stack_trace: str) -> str:
    """Return the innermost line of a stack trace that is not PyTorch's own: `net.py:12: x = x.sort()`.

    A line of torch.nn counts only if it is the outermost.
    """
    lines = stack_trace.splitlines()
    source_line = ""
    for number, line in enumerate(lines):
        frame = line.strip()
        if not frame.startswith('File "') or "/torch/_" in frame:
            continue
        if source_line and "/torch/nn/" in frame:
            continue
        path, _, rest = frame.removeprefix('File "').partition('"')
        place = rest.split(",")[1].strip().removeprefix("line ") if "," in rest else "?"
        code = lines[number + 1].strip() if number + 1 < len(lines) else ""
        source_line = f"{path}:{place}: {code}"
    return source_line


def fold(call: TracedCall, args: dict[str, Any]) -> Any:
    """Compute an operation on constants."""
    schema = getattr(call.target, "_schema", None)
    if call.target is operator.getitem or schema is None:
        return call.target(*args.values())
    keywords = {argument.name for argument in schema.arguments if argument.kwarg_only}
    positional = [value for name, value in args.items() if name not in keywords]
    named = {name: value for name, value in args.items() if name in keywords}
    with torch.no_grad():
        return call.target(*positional, **named)


# Tensors and arrays


def state_arrays(program: Program) -> dict[str, Any]:
    """Return the state dict as numpy arrays; bfloat16 becomes float32, which holds it exactly."""
    return {key: to_array(tensor) for key, tensor in program.state.items()}


def to_array(tensor: Any) -> Any:
    """Return a tensor as a contiguous numpy array in memory of its own."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    if tensor.dtype == torch.bool:
        tensor = tensor.to(torch.uint8)
    return tensor.contiguous().numpy()


def to_tensor(array: Any) -> torch.Tensor:
    """Return a numpy array as a tensor of PyTorch."""
    return torch.from_numpy(array)
