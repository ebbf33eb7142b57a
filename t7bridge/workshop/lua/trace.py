"""PyTorch modules, script modules and exported programs as lists of ATen calls, by `torch.export`; operations that Lua
lacks are decomposed by PyTorch.
"""

from __future__ import annotations

import operator
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from attrs import field
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from ...data import define
from ...formats.pt.file import PtReader
from .exporting import (
    Freedom,
    check_program_inputs,
    conditions_of,
    copy_for_evaluation,
    copy_program,
    environment_of,
    example_of,
    export_module,
    has_fixed_examples,
    open_sizes,
    stated_ranges,
)
from .functional import decompose, make_functional, operation_of
from .layers import ModuleCall
from .sizes import Extent, Relation, Shape, Sizes
from .training import (
    Computation,
    NoteOfClass,
    computation_of,
    notes_on_gradients,
    notes_on_modes,
    reads_of_mode,
    sets_modes,
)

tree_map = pytree.tree_map
tree_leaves = pytree.tree_leaves


@define(frozen=True)
class CallRef:
    """An argument that is the value of another call, of an input, or of a tensor of the program, by its name.

    Attributes:
        name: of the value, as `TracedCall.name`, and as the keys of `Program.inputs`, `stored` and `constants`.
    """

    name: str


@define(eq=False)
class TracedCall:
    """One call of an operation of ATen in a traced program.

    Attributes:
        name: of its value, which is unique in the program.
        op: the name of the operation, `aten.relu.default`, `operator.getitem`.
        target: the operation itself, to fold constants.
        args: all arguments of its schema by name, defaults included, with `CallRef` and `Extent` inside; those of a
            function of Python by their positions, `"0"`.
        shape: of its value; a tuple of shapes where it returns several; empty for what is not a tensor.
        stack: the module calls it belongs to, outermost first; empty for the outermost module itself.
        line: where the user's source calls it, `net.py:12: x = x.sort()`; empty if that is not known.
        origin: the operation that the source calls, if this is a part of its decomposition; else empty.
    """

    name: str
    op: str
    target: Any = field(repr=False)
    args: dict[str, Any] = field(factory=dict)
    shape: Any = ()
    stack: tuple[ModuleCall, ...] = ()
    line: str = ""
    origin: str = ""

    @property
    def is_random(self) -> bool:
        """Whether its value depends on chance, by PyTorch: that of a dropout in training only."""
        # The arguments of dropouts by which they do nothing, if they are 0 or false.
        is_active = all(self.args[name] for name in ("train", "training", "dropout_p") if name in self.args)
        return is_active and torch.Tag.nondeterministic_seeded in getattr(self.target, "tags", ())

    @property
    def is_elementwise(self) -> bool:
        """Whether it computes each element of its value from one of each argument, by PyTorch."""
        return torch.Tag.pointwise in getattr(self.target, "tags", ())


@define(eq=False)
class Program:
    """A traced PyTorch module: its inputs, state dict, and calls of ATen's operations in order.

    Attributes:
        inputs: name of each input that is a tensor, in order → its shape.
        stored: name of a value → key in the state dict, and whether it is a parameter and not a buffer.
        constants: name of a value → tensor, of other constants, and of buffers that are not floating or not saved.
        calls: in order; each takes values of earlier ones.
        dtypes: name of a value → its element type: `float32`, empty where it is not a tensor.
        outputs: the values returned, in order: a `CallRef` for a tensor; others, as numbers, comparisons of sizes and
            `None`, themselves.
        output_names: keys of a returned dict; none if it returns anything else.
        state: the state dict: key → tensor, in order; tied tensors under their first key.
        order: all keys of the state dict, in order.
        aliases: other keys of tied tensors → first key.
        changed: texts of what `forward` changes beside its outputs: buffers and parameters.
        sizes: what is known of the sizes of the inputs.
        texts: the sizes of the inputs that the Lua model takes: `any x 3 x 32 x 32`.
        modules: by their paths; empty for a program of the user and a script module, whose modules are not in Python.
        notes: what Lua does otherwise.
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
        """Simplify all extents of inputs and calls, in place, by what is known of the sizes by now."""
        self.sizes.settle()
        self.inputs = tree_map(_simplified, self.inputs)
        for call in self.calls:
            call.shape = tree_map(_simplified, call.shape)
            call.args = tree_map(_simplified, call.args)


def _simplified(value: Any) -> Any:
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
    if isinstance(module, ExportedProgram):
        return _trace_program(module, inputs, operations, freedom)
    has_modes = not isinstance(module, torch.jit.ScriptModule)  # whose code has the graph of one mode only
    return _trace_module(copy_for_evaluation(module), inputs, operations, freedom, has_modes)


def _trace_program(
    exported: ExportedProgram, inputs: tuple[Any, ...], operations: frozenset[str], freedom: Freedom
) -> Program:
    """Read a program of the user as it is, or trace the module that runs it if other extents than the batch are open.

    Such a program may only be expressed with fewer of them open, as `freedom` says; a trace leaves no more open.

    Args:
        exported: the program, which is not changed.
        inputs: see `trace`; on the CPU.
        operations: see `trace`.
        freedom: see `trace`; it does not matter where the program is read as it is.

    Raises:
        ModelError: see `check_program_inputs`.
        UnsupportedError: see `trace`.
    """
    check_program_inputs(exported, inputs)
    if not has_fixed_examples(exported):  # besides their number
        return _trace_module(exported.module(), inputs, operations, freedom, has_modes=False)
    with open_sizes():  # for the calls that are decomposed
        return _read_functional(copy_program(exported), module=None, operations=operations, inputs=inputs)


def _trace_module(
    module: Any, inputs: tuple[Any, ...], operations: frozenset[str], freedom: Freedom, has_modes: bool
) -> Program:
    """Trace a module in evaluation mode, and note what it does in training that Lua does not.

    Args:
        module: the module, or a script module, on the CPU and in evaluation mode; in which it is left.
        inputs: example inputs, on the CPU.
        operations: see `trace`.
        freedom: see `trace`.
        has_modes: whether it may be traced in training mode, too.
    """
    own_backwards: list[str] = []
    with open_sizes():  # for the export, and for reading it, which traces the calls that are decomposed
        with reads_of_mode() as readers:
            exported = export_module(module, inputs, own_backwards, freedom)
        # Only if the user's source reads the mode, or gives one to an operation, the graph of training is made, and
        # compared with this one.
        evaluated: Computation | None = None
        if has_modes and (readers or sets_modes(exported)):
            evaluated = computation_of(exported)  # before the program is read, which rewrites its operations
        program = _read_functional(exported, module, operations, inputs)
    if has_modes:
        program.notes += notes_on_modes(module, inputs, evaluated)
    for name in dict.fromkeys(own_backwards):  # each once
        text = f"{name} has its own backward, which is not carried to Lua: gradients there are those of its forward"
        program.notes.append(NoteOfClass("", name, text))
    return program


def _read_functional(
    exported: ExportedProgram, module: nn.Module | None, operations: frozenset[str], inputs: tuple[Any, ...]
) -> Program:
    """Read an exported program, whose graph is rewritten so that nothing in it changes a value in place.

    Args:
        exported: the program, which is changed.
        module: the module that it was exported from; `None` for a program of the user.
        operations: those that are not decomposed.
        inputs: example inputs.
    """
    exported, notes_on_changes = make_functional(exported, operations)
    program = _program_of(exported, module, operations, inputs)
    program.changed += notes_on_changes
    return program


def _program_of(
    exported: ExportedProgram, module: nn.Module | None, operations: frozenset[str], inputs: tuple[Any, ...]
) -> Program:
    """Read an exported program.

    Args:
        exported: the program.
        module: the module that it was exported from; `None` for a program of the user, which has no module.
        operations: those that are not decomposed.
        inputs: example inputs.
    """
    program = Program()
    environment = environment_of(exported)
    # Before anything is read: shapes become `Extent`s of these symbols.
    if environment is not None:
        program.sizes.example.update(example_of(exported, environment, inputs))
    _add_inputs_and_state(program, exported, module)
    _add_calls(program, exported, operations)
    # After the calls, whose decompositions may add conditions, and even fix all extents.
    if environment is not None:
        program.sizes.conditions += conditions_of(environment)
        if module is None:  # a user may have stated ranges; what is exported here has none
            program.sizes.conditions += stated_ranges(exported, program.sizes)
    program.dtypes.update((name, _dtype(value)) for name, value in program.constants.items())
    used_parameters = {key: program.state[key] for key, is_learned in program.stored.values() if is_learned}
    program.notes += notes_on_gradients(program.modules, used_parameters)
    return program


def _add_inputs_and_state(program: Program, exported: ExportedProgram, module: nn.Module | None) -> None:
    """Add to a program its inputs, its state dict, and the modules inside its module; see `_program_of`."""
    # The module's own state dict also has the buffers and the names of tied tensors that the graph does not use.
    state = exported.state_dict if module is None else module.state_dict(keep_vars=True)
    keys = _add_state(program, state)
    parameters = _add_module(program, exported, module, keys)
    _add_inputs(program, exported, keys, parameters)


def _add_calls(program: Program, exported: ExportedProgram, operations: frozenset[str]) -> None:
    """Add the calls of a graph to a program that has its inputs; then what they return, and what they change.

    Args:
        program: receives the calls, the outputs and their names, the texts of changes, and further constants.
        exported: the program.
        operations: those that are not decomposed.
    """
    computed = {*program.stored, *program.inputs}
    results = _GraphReader(program, operations, exported.graph_module, computed).read()
    for result, spec in zip(results, exported.graph_signature.output_specs):
        if spec.kind == OutputKind.USER_OUTPUT:
            program.outputs.append(result)
        elif spec.kind in _CHANGES:
            program.changed.append(f"forward {_CHANGES[spec.kind]} {spec.target}, which stays as it is in Lua")
    names = exported.call_spec.out_spec.context  # the keys, where the output is a dict
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        program.output_names = list(names)


def _add_module(
    program: Program, exported: ExportedProgram, module: nn.Module | None, keys: dict[Any, str]
) -> set[str]:
    """Add to a program what its module knows beside the graph; return the keys of the parameters, and not of buffers.

    Args:
        program: receives the modules inside, and the weights of a frozen script module.
        exported: the program as it was exported.
        module: the module; `None` for a program of the user.
        keys: identity of a tensor → its key; receives those of the frozen weights.
    """
    if module is None:
        return set(exported.graph_signature.parameters)
    parameters = {key for key, _ in module.named_parameters(remove_duplicate=False)}
    is_script = isinstance(module, torch.jit.ScriptModule)
    is_frozen = is_script and not parameters  # freezing makes constants of all of them
    if is_frozen:
        return _add_frozen_weights(program, exported, module, keys)
    if not is_script:  # whose modules are not in Python
        program.modules = dict(module.named_modules())
    return parameters


_CHANGES = {
    OutputKind.BUFFER_MUTATION: "updates the buffer",
    OutputKind.PARAMETER_MUTATION: "changes the parameter",
}
"""Kinds of results of a program that are new values of what it holds."""


def _add_state(program: Program, state: dict[str, Any]) -> dict[Any, str]:
    """Add a state dict to a program, tied tensors under their first key; return identity of a tensor → its key.

    See `_identity`.
    """
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
    """Return a key that is equal for tensors of the same elements in memory, which are tied."""
    if isinstance(value, torch.Tensor) and value.numel():
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    return id(value)  # tensors without elements may all have the address 0


def _held_value(spec: Any, exported: ExportedProgram) -> Any:
    """Return the parameter, buffer or constant that is an input of a program."""
    return exported.constants.get(spec.target, exported.state_dict.get(spec.target))


def _add_frozen_weights(program: Program, exported: ExportedProgram, script: Any, keys: dict[Any, str]) -> set[str]:
    """Add the weights of a frozen script module, which are constants of its code, under the keys that `convert` writes.

    Args:
        program: receives the weights in its state dict, in the order of their numbers in the file.
        exported: the program.
        script: the script module.
        keys: identity of a tensor → its key; receives those of the weights.

    Returns:
        The keys of the weights, which count as parameters.
    """
    numbers = _numbers_of_constants(script)
    # Inputs of the user have no target.
    values = [_held_value(spec, exported) for spec in exported.graph_signature.input_specs if spec.target]
    tensors = {_identity(value): value for value in values if isinstance(value, torch.Tensor)}
    identities: dict[int, Any] = {}
    for identity, tensor in tensors.items():
        number = numbers.get(_content(tensor))
        # Numbers, such as a factor, stay constants, and so do whole numbers and masks, which Lua's layers cannot hold.
        is_weight = identity not in keys and tensor.is_floating_point() and tensor.dim() > 0
        if is_weight and number is not None:
            identities[number] = identity
    for number, identity in sorted(identities.items()):
        key = f"constants.{number}"
        keys[identity] = key
        program.state[key] = tensors[identity]
        program.order.append(key)
    return {f"constants.{number}" for number in identities}


def _numbers_of_constants(script: Any) -> dict[Any, int]:
    """Return the numbers that the tensors in the code of a script module have in its file, by what they hold.

    Freezing makes one constant of tensors that hold the same.
    """
    prefix = "constants."
    numbers: dict[Any, int] = {}
    with PtReader(script.save_to_buffer()) as reader:
        for key, tensor in reader.read().items():
            if key.startswith(prefix):
                numbers.setdefault(_content(tensor.torch()), int(key.removeprefix(prefix)))
    return numbers


def _content(tensor: torch.Tensor) -> Any:
    """Return a key that is equal for tensors of the same type, shape and elements."""
    elements = tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
    return tensor.dtype, tensor.shape, sha256(elements.numpy().data).digest()


def _add_inputs(program: Program, exported: ExportedProgram, keys: dict[Any, str], parameters: set[str]) -> None:
    """Add the inputs of the graph: those of the user, tensors of the state dict, and constants.

    Args:
        program: receives them.
        exported: the program.
        keys: identity of a tensor of the state dict → its key.
        parameters: keys of those that are not buffers.
    """
    specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    for node in exported.graph.nodes:
        if node.op != "placeholder":
            continue
        spec = specs[node.name]
        if spec.kind == InputKind.USER_INPUT:
            _add_user_input(program, node)
            continue
        value = _held_value(spec, exported)
        if not isinstance(value, torch.Tensor):
            program.constants[node.name] = value
            continue
        # If the program has another object of the tensor than the state dict, its name tells the key.
        key_by_name = program.aliases.get(spec.target, spec.target)
        key = keys.get(_identity(value), key_by_name)
        # Layers hold floats: whole numbers and masks of the state dict are constants of the graph.
        if key in program.state and value.is_floating_point():
            program.stored[node.name] = (key, key in parameters)
        else:
            program.constants[node.name] = value.detach().clone()


def _add_user_input(program: Program, node: Any) -> None:
    """Add an input of the user to a program: a tensor to its inputs, with its type; other values to its constants."""
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
    """Return the element type of a tensor, `float32`; empty for anything else."""
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else ""


# Calls


@define(eq=False)
class _GraphReader:
    """Reads the calls of a graph into a program; each call that is decomposed is a graph with a reader of its own.

    Attributes:
        program: receives the calls, their element types, and constants.
        operations: those that are not decomposed.
        module: the graph's.
        computed: names of the values that depend on inputs or weights, and so are not constants; receives those of
            calls.
        prefix: of the names of the values: `name of the call.` in a decomposition, else empty.
        values: name of a node → its value, a `CallRef` or a number or a list of these, of nodes that are no calls of
            the program: the inputs of a decomposition, and calls that were decomposed. Others are `CallRef`s to
            themselves.
        outer: the call that a decomposition belongs to; `None` for the program's own graph.
    """

    program: Program
    operations: frozenset[str]
    module: Any
    computed: set[str]
    prefix: str = ""
    values: dict[str, Any] = field(factory=dict)
    outer: TracedCall | None = None

    def read(self) -> list[Any]:
        """Read all calls; return the graph's outputs, flat: values of calls as `CallRef`s, and numbers."""
        outputs: list[Any] = []
        for node in self.module.graph.nodes:
            if node.op == "get_attr":
                value = getattr(self.module, node.target)
                if not isinstance(value, nn.Module):  # else a graph that a call takes, such as a branch
                    self.program.constants[self.prefix + node.name] = value
            elif node.op == "call_function":
                self._read_call(node)
            elif node.op == "output":  # the last one
                outputs = [self._argument(item) for item in tree_leaves(node.args[0])]
        return outputs

    def _read_call(self, node: Any) -> None:
        """Add a call to the program, or the calls that PyTorch decomposes it to."""
        if node.target is operator.getitem:
            source, number = node.args
            results = self.values.get(source.name)
            if isinstance(results, list):  # of a call that was decomposed, and is not in the program
                self.values[node.name] = results[number]
                return
        call = self._call_of(node)
        decomposition = decompose(node, self.operations) if self._is_to_be_decomposed(call) else None
        if decomposition is None:
            self.program.calls.append(call)
            return
        graph_module, inputs = decomposition
        results = self._read_decomposition(call, graph_module, inputs)
        has_several = isinstance(node.meta.get("val"), (list, tuple))
        self.values[node.name] = results if has_several else results[0]

    def _read_decomposition(self, call: TracedCall, graph_module: Any, inputs: list[Any]) -> list[Any]:
        """Add the calls that a call is decomposed to; return their results, see `read`.

        Args:
            call: the call, which is not added.
            graph_module: the graph of its decomposition.
            inputs: the nodes of this graph that are the inputs of that one, in the order of its placeholders.
        """
        names = [inner.name for inner in graph_module.graph.nodes if inner.op == "placeholder"]
        reader = _GraphReader(
            self.program,
            operations=frozenset(),  # not asked for: what has an `outer` call is not decomposed again
            module=graph_module,
            computed=self.computed,
            prefix=f"{call.name}.",
            values={name: self._argument(value) for name, value in zip(names, inputs)},
            outer=call,
        )
        return reader.read()

    def _is_to_be_decomposed(self, call: TracedCall) -> bool:
        """Return whether a call is one of tensors that no operation of the table builds.

        Calls on constants are computed instead, and PyTorch decomposes to the end.
        """
        is_on_tensors = call.name in self.computed and not call.op.startswith("operator.")
        return self.outer is None and is_on_tensors and call.op not in self.operations

    def _call_of(self, node: Any) -> TracedCall:
        """Return a node as a call.

        The element type of its value is added to the program, and its name to `computed` if it is not constant.
        """
        value = node.meta.get("val")  # a tensor without elements
        target = operation_of(node)
        op, args = _name_and_args(node, target)
        call = TracedCall(
            name=self.prefix + node.name,
            op=op,
            target=target,
            args=self._argument(args),
            shape=_shape(value, self.program.sizes),
        )
        self._set_source(call, node)
        self.program.dtypes[call.name] = _dtype(value)
        if any(isinstance(item, CallRef) and item.name in self.computed for item in tree_leaves(call.args)):
            self.computed.add(call.name)
        return call

    def _set_source(self, call: TracedCall, node: Any) -> None:
        """Set the `stack`, `line` and `origin` of the call of a node: where the user's source makes it."""
        if self.outer is not None:  # the nodes of a decomposition have no source of their own
            call.stack = self.outer.stack
            call.line = self.outer.line
            call.origin = self.outer.op
            return
        modules = node.meta.get("nn_module_stack") or {}  # key of a module's call → path and class, outermost first
        call.stack = tuple(ModuleCall(key, path) for key, (path, _) in modules.items() if path)
        call.line = _source_line(node.meta.get("stack_trace") or "")

    def _argument(self, value: Any) -> Any:
        """Return an argument with nodes and symbols replaced."""
        return tree_map(self._item, value)

    def _item(self, item: Any) -> Any:
        """Return an argument as a `TracedCall` has it: a node as a number or a `CallRef`, others unchanged."""
        if not isinstance(item, torch.fx.Node):
            return item
        value = item.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return _extent(value, self.program.sizes)
        if isinstance(value, torch.SymBool):
            return Relation(value.node.expr, self.program.sizes)
        if isinstance(value, (int, float, bool)):
            return value
        if item.name in self.values:  # it is no call of the program
            return self.values[item.name]
        return CallRef(self.prefix + item.name)


def _name_and_args(node: Any, target: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of the operation that a node calls, and its arguments, as `TracedCall` has them.

    Args:
        node: the node, whose arguments are nodes and other values.
        target: the operation.
    """
    schema = getattr(target, "_schema", None)
    if schema is None:  # a function of Python, whose arguments by position are named by numbers
        args = {str(number): argument for number, argument in enumerate(node.args)}
        return f"operator.{getattr(target, '__name__', target)}", args | node.kwargs
    names_by_position = [argument.name for argument in schema.arguments]
    stated = dict(zip(names_by_position, node.args)) | node.kwargs
    args = {argument.name: stated.get(argument.name, argument.default_value) for argument in schema.arguments}
    return str(target), args


def _source_line(stack_trace: str) -> str:
    """Return the innermost line of a stack trace that is not PyTorch's own: `net.py:12: x = x.sort()`.

    A line of torch.nn counts only if it is the outermost: the user's module is then a layer itself.

    Args:
        stack_trace: as Python writes it, outermost frame first, each with a line of its place and one of its code.
    """
    lines = stack_trace.splitlines()
    source_line = ""
    for number, line in enumerate(lines):
        frame = line.strip()
        if not frame.startswith('File "') or "/torch/_" in frame:  # of its private packages, which trace
            continue
        if source_line and "/torch/nn/" in frame:
            continue
        path, _, rest = frame.removeprefix('File "').partition('"')
        # `, line 12, in forward`
        line_number = rest.split(",")[1].strip().removeprefix("line ") if "," in rest else "?"
        code = lines[number + 1].strip() if number + 1 < len(lines) else ""
        source_line = f"{path}:{line_number}: {code}"
    return source_line


def fold(call: TracedCall, args: dict[str, Any]) -> Any:
    """Compute an operation on constants by PyTorch, now.

    Args:
        call: the call.
        args: name → value, which is a tensor or a plain value, in the order of the operation's schema.
    """
    schema = getattr(call.target, "_schema", None)
    if schema is None:  # a function of Python, such as `operator.add`, which takes no keywords
        return call.target(*args.values())
    keyword_only = {argument.name for argument in schema.arguments if argument.kwarg_only}
    positional = [value for name, value in args.items() if name not in keyword_only]
    named = {name: value for name, value in args.items() if name in keyword_only}
    with torch.no_grad():
        return call.target(*positional, **named)


# Tensors and arrays


def state_arrays(program: Program) -> dict[str, Any]:
    """Return the state dict as numpy arrays; bfloat16 becomes float32, which holds it exactly."""
    return {key: to_array(tensor) for key, tensor in program.state.items()}


def to_array(tensor: Any) -> Any:
    """Return a tensor as a contiguous numpy array; it may be a view of the tensor's memory."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # which numpy does not have
        tensor = tensor.float()
    if tensor.dtype == torch.bool:  # masks are numbers in Lua
        tensor = tensor.to(torch.uint8)
    return tensor.contiguous().numpy()


def to_tensor(array: Any) -> torch.Tensor:
    """Return a numpy array as a tensor of PyTorch."""
    return torch.from_numpy(array)
