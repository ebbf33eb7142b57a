"""PyTorch modules, script modules and exported programs as lists of ATen calls, by `torch.export`; operations that Lua
lacks are decomposed by PyTorch.

With `convert`, the only module of this package that imports torch.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import operator
import os
import re
import traceback
import warnings
from collections.abc import Collection, Iterator, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any

import torch
from attrs import field
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.autograd.function import Function
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..data import define
from ..errors import ModelError, UnsupportedError
from ..text import counted, listed

Shape = tuple[Any, ...]
"""Extents: integers, and text for those that depend on the batch size."""


@define(frozen=True)
class CallRef:
    """The value of another call, by its name."""

    name: str


@define(frozen=True)
class DynamicExtent:
    """An integer that depends on the inputs: the batch size, or a number computed from it."""

    text: str


@define(eq=False)
class TracedCall:
    """One operation.

    Attributes:
        name: of its value.
        op: `aten.relu.default`, `operator.getitem`.
        target: the operation itself, to fold constants.
        args: all arguments of its schema by name, defaults included, with `CallRef` and `DynamicExtent` inside.
        shape: of its value; a tuple of shapes where it returns several.
        stack: the module calls it belongs to, outermost first: key of the call and path of the module.
        line: where the user's source calls it.
        origin: the operation that the source calls, if this is a part of its decomposition.
        node: its node in the graph, `None` for one that the graph does not contain.
    """

    name: str
    op: str
    target: Any = field(repr=False)
    args: dict[str, Any] = field(factory=dict)
    shape: Any = ()
    stack: tuple[str, ...] = ()
    line: str = ""
    origin: str = ""
    node: Any = field(default=None, repr=False)

    @property
    def inplace(self) -> bool:
        """Whether it changes its first argument: its name ends in one underscore."""
        base = self.op.split(".")[1]
        return self.op.startswith("aten.") and base.endswith("_") and not base.endswith("__")

    @property
    def is_random(self) -> bool:
        """Whether its value depends on chance, by PyTorch: that of a dropout in training only."""
        drawn = all(self.args[name] for name in ("train", "training", "dropout_p") if name in self.args)
        return drawn and torch.Tag.nondeterministic_seeded in getattr(self.target, "tags", ())

    @property
    def table_name(self) -> str:
        """The name of the operation that computes the same, and changes nothing in place."""
        return self.op.replace("_.", ".", 1) if self.inplace else self.op

    @property
    def source(self) -> str:
        """The name of the first argument, if it is the value of another call."""
        first = next(iter(self.args.values()), None)
        return first.name if isinstance(first, CallRef) else ""

    @property
    def is_view(self) -> bool:
        """Whether its result shares the memory of its first argument, by PyTorch; so does that of a change in place."""
        if self.node is None or self.inplace or self.op == "operator.getitem":
            return True
        with torch.no_grad(), _quiet():
            args, kwargs = mapped(_example_of, (self.node.args, self.node.kwargs))
            first: Any = next(iter(leaves(args)), None)
            try:
                made = leaves(self.target(*args, **kwargs)) if is_tensor(first) else []
            except Exception:  # it may need values that only a run has
                return True
        shared = [each.untyped_storage()._cdata == first.untyped_storage()._cdata for each in made if is_tensor(each)]
        return any(shared)


@define(eq=False)
class Program:
    """A traced module.

    Attributes:
        inputs: name and shape of each input.
        stored: name of a value → key in the state dict, and whether it is a parameter and not a buffer.
        buffers: name of a value → name of the buffer, of all buffers.
        constants: name of a value → tensor, of other constants, and of buffers that are not floating or not saved.
        calls: in order.
        dtypes: name of a value → its element type: `float32`, empty where it is not a tensor.
        outputs: names of the values returned; anything but a tensor is stored itself.
        output_names: keys of a returned dict; none if it returns anything else.
        state: the state dict: key → array, in order; tied tensors under their first key.
        order: all keys of the state dict, in order.
        aliases: other keys of tied tensors → first key.
        static: whether the size of the batch is fixed.
        single: whether the example is a batch of one.
        sizes: of the inputs that the Lua model takes: `any x 3 x 32 x 32`.
        modules: by their paths.
        notes: path, class and text of what Lua does otherwise.
    """

    inputs: dict[str, Shape] = field(factory=dict)
    stored: dict[str, tuple[str, bool]] = field(factory=dict)
    buffers: dict[str, str] = field(factory=dict)
    constants: dict[str, Any] = field(factory=dict)
    calls: list[TracedCall] = field(factory=list)
    dtypes: dict[str, str] = field(factory=dict)
    outputs: list[Any] = field(factory=list)
    output_names: list[str] = field(factory=list)
    state: dict[str, Any] = field(factory=dict)
    order: list[str] = field(factory=list)
    aliases: dict[str, str] = field(factory=dict)
    static: bool = False
    single: bool = False
    sizes: list[str] = field(factory=list)
    modules: dict[str, nn.Module] = field(factory=dict)
    notes: list[tuple[str, str, str]] = field(factory=list)

    @property
    def is_double(self) -> bool:
        """Whether the Lua model has doubles: its type is that of all parts, whatever they are converted to."""
        kinds = {_dtype(tensor) for tensor in self.state.values()}
        return "float64" in kinds.union(self.dtypes[name] for name in self.inputs)


mapped, leaves = pytree.tree_map, pytree.tree_leaves

# Tracing


def trace(
    module: Any,
    inputs: tuple[Any, ...],
    known: Collection[str] = (),
    fixed: bool = False,
    compare_modes: bool = True,
) -> Program:
    """Trace a module in evaluation mode. The module is not changed.

    Args:
        module: any module that `torch.export` takes, a script module, or an exported program, which is traced again
            only if other extents than the batch are open.
        inputs: example inputs; their first dimension is treated as the batch if the module allows it. A program needs
            none if it is not traced.
        known: operations that are not decomposed: `aten.relu.default`.
        fixed: whether all extents are those of the example.
        compare_modes: whether to note what is computed otherwise in training.

    Raises:
        UnsupportedError: the module has control flow that depends on data, or cannot be exported otherwise.
        ModelError: the inputs are not those of a program.
    """
    inputs = tuple(value.detach().cpu() if isinstance(value, torch.Tensor) else value for value in inputs)
    original = module
    called: list[str] = []
    exported = None
    has_modes = compare_modes and not isinstance(module, (ExportedProgram, torch.jit.ScriptModule))
    if isinstance(module, ExportedProgram):
        if _check_inputs(module, inputs) and not (fixed and inputs):
            exported, module = module, None
        else:
            module = module.module()
    else:
        module = _copied(module)
    if exported is None:
        exported = _exported(module, inputs, called, fixed)
    extents = [_shape(value) for value in _inputs_of(exported)]
    program = _program(exported, module, known)
    if not fixed and extents != [_shape(value) for value in _inputs_of(exported)]:  # which a decomposition has fixed
        return trace(original, inputs, known, True, compare_modes=compare_modes)
    program.static = not _has_batch(exported)
    program.single = not program.static and bool(inputs) and inputs[0].shape[0] == 1
    if has_modes:
        program.notes += _mode_notes(module, inputs, exported)
    text = "has its own backward, which is not carried to Lua: gradients there are those of its forward"
    program.notes += [("", name, f"{name} {text}") for name in dict.fromkeys(called)]
    return program


def _exported(module: Any, inputs: tuple[Any, ...], called: list[str], fixed: bool) -> Any:
    """Return a module as a program, for any batch if it allows that and its extents are not `fixed`.

    Raises:
        UnsupportedError: it cannot be exported.
    """
    several = bool(inputs) and all(isinstance(value, torch.Tensor) and value.dim() for value in inputs)
    runner = _Script(module) if isinstance(module, torch.jit.ScriptModule) else module
    if several and not fixed:
        exported = _with_any_batch(runner, inputs, called)
        if exported is None and runner is not module:
            exported = _converted(module, inputs)
        if exported is not None:
            return exported
    called.clear()
    try:
        return _export(runner, inputs, None, called)
    except Exception as error:
        raise _refused(error) from error


def accepts(module: Any, inputs: tuple[Any, ...]) -> bool:
    """Return whether a module runs with inputs of such sizes; nothing is computed. Graphs are not asked."""
    if isinstance(module, (ExportedProgram, torch.jit.ScriptModule)):
        return True
    copied = _copied(module)
    with _quiet(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        try:
            copied(*mapped(lambda value: mode.from_tensor(value) if is_tensor(value) else value, inputs))
        except Exception:
            return False
    return True


def _check_inputs(exported: Any, inputs: tuple[Any, ...]) -> bool:
    """Return whether all extents of a program but the batch are known.

    Raises:
        ModelError: the inputs have other sizes than the program, or are missing and its sizes are open.
    """
    shapes = [_shape(value) for value in _inputs_of(exported) if isinstance(value, torch.Tensor)]
    text = ", ".join("x".join(map(str, shape)) for shape in shapes)
    sizes = [tuple(value.shape) for value in inputs if isinstance(value, torch.Tensor)]
    if sizes and [len(shape) for shape in sizes] != [len(shape) for shape in shapes]:
        raise ModelError("the program has other inputs", expected=text, found=f"{sizes}")
    for shape, own in zip(sizes, shapes):
        if any(isinstance(extent, int) and extent != size for size, extent in zip(shape, own)):
            raise ModelError("the sizes of the program's inputs are fixed", expected=text, found=f"{sizes}")
    is_known = all(isinstance(extent, int) for shape in shapes for extent in shape[1:])
    if not is_known and not sizes:
        raise ModelError("the sizes of the program's inputs are open", found=text, hint="State them: --input SIZES.")
    return is_known


def _inputs_of(exported: Any) -> list[Any]:
    """Return what a program has for the inputs of its user: tensors without elements, and other values."""
    names = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT}
    return [node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder" and node.name in names]


class _Script(nn.Module):
    """Runs the code of a script module, which `torch.export` does not trace itself."""

    def __init__(self, script: Any) -> None:
        super().__init__()
        self.code = script._c._get_method("forward")

    def forward(self, *args: Any) -> Any:
        return self.code(*args)


def _converted(script: Any, inputs: tuple[Any, ...]) -> Any:
    """Return a script module converted for batches of any size, `None` if its code does not allow that.

    Unlike a run, PyTorch's converter keeps the batch open where the code reads its size.
    """
    with _quiet():
        try:
            from torch._export.converter import TS2EPConverter  # private: not in every release

            class Converter(TS2EPConverter):
                def retrace_as_exported_program(self, gm: Any, name_to_constant: Any) -> Any:
                    return _with_any_batch(gm, self.sample_args, [])

            return Converter(script, inputs).convert()
        except Exception:
            return None


def _with_any_batch(module: nn.Module, inputs: tuple[Any, ...], called: list[str]) -> Any:
    """Return a module exported for batches of any size, `None` if it does not allow that."""
    doubled = tuple(value if value.shape[0] > 1 else torch.cat([value, value]) for value in inputs)
    shapes: Any = tuple({0: Dim.AUTO} for _ in doubled)
    kinds = [one.kind for one in inspect.signature(module.forward).parameters.values()]
    try:
        exported = _export(
            module, doubled, (shapes,) if kinds == [inspect.Parameter.VAR_POSITIONAL] else shapes, called
        )
    except Exception:
        return None
    return exported if _has_batch(exported) else None


def _copied(module: nn.Module) -> nn.Module:
    """Return a copy for evaluation of a module whose attributes may be computed tensors, as by an old `weight_norm`."""
    memo = {
        id(value): value.detach().clone()
        for inner in module.modules()
        for value in vars(inner).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of gradients of script modules
        return copy.deepcopy(module, memo).eval().cpu()


def _export(module: nn.Module, inputs: tuple[Any, ...], shapes: Any, called: list[str]) -> Any:
    with _quiet(), _plain_attention(), _watched(called), _TracedData():
        try:
            return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
        except Exception:
            with torch.no_grad():  # custom autograd functions may only export without gradients
                return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)


class _TracedData(TorchFunctionMode):
    """Reads and sets `tensor.data` by operations that `torch.export` can trace."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            return args[0].detach()
        if function == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
            return args[0].detach().copy_(args[1])
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Prevent PyTorch from warning of attempts to trace, and from logging and printing what fails."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Prevent PyTorch from using fused attention kernels, and from checking a mask's values for causality."""
    home = torch.nn.modules.transformer
    fast, detect = torch.backends.mha.get_fastpath_enabled(), home._detect_is_causal_mask
    torch.backends.mha.set_fastpath_enabled(False)
    home._detect_is_causal_mask = lambda mask, is_causal=None, size=None: False
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        home._detect_is_causal_mask = detect


@contextlib.contextmanager
def _watched(called: list[str]) -> Iterator[None]:
    """Collect the names of the user's classes with a backward of their own."""
    apply: Any = Function.__dict__["apply"]

    def watched(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith("torch."):
            called.append(cls.__name__)
        return apply.__get__(None, cls)(*args, **kwargs)

    Function.apply = classmethod(watched)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Function.apply = apply  # type: ignore[method-assign]


def _has_batch(exported: Any) -> bool:
    """Return whether the first extent of every input stayed open, and is the same for all."""
    firsts = {_shape(value)[:1] for value in _inputs_of(exported)}
    return len(firsts) == 1 and all(isinstance(extent, str) for first in firsts for extent in first or (0,))


def _refused(error: Exception) -> UnsupportedError:
    """Return the error for a module that cannot be traced, with the innermost line that is not PyTorch's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = ": ".join([type(error).__name__, *lines[:1]]).partition(" (unhinted")[0].rstrip(".")
    if "data-dependent" in str(error).lower() or "GuardOnDataDependent" in type(error).__name__:
        reason = f"control flow depends on data: {reason}"
    raised = [f'File "{place.filename}", line {place.lineno}' for place in traceback.extract_tb(error.__traceback__)]
    named = [line for line in lines if line.startswith("File ")]
    places = [line for line in [*raised, *named] if not any(f'"{folder}' in line for folder in _FOLDERS)]
    return UnsupportedError(
        "the module cannot be traced", found=reason[:400], hint=f"At {places[-1]}." if places else ""
    )


_FOLDERS = (
    os.path.dirname(torch.__file__),
    str(files(__package__.partition(".")[0])),
    contextlib.__file__,
    inspect.__file__,
    "<",
)
"""Files whose lines are not the user's."""


def _shape(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(extent if isinstance(extent, int) else _text(extent) for extent in value.shape)
    if isinstance(value, (list, tuple)):
        return tuple(_shape(item) for item in value)
    return ()


def _text(value: Any) -> int | str:
    """Return a symbolic integer: an int if it is known."""
    known = value.node.maybe_as_int() if hasattr(value, "node") else None
    return known if isinstance(known, int) else str(value)


def _program(exported: Any, module: nn.Module | None, known: Collection[str]) -> Program:
    """Read an exported program, of a module if there is one."""
    program = Program()
    named: dict[Any, str] = {}
    state = exported.state_dict if module is None else module.state_dict(keep_vars=True)
    for key, tensor in state.items():
        program.order.append(key)
        first = named.setdefault(_identity(tensor), key)
        if first == key:
            program.state[key] = tensor
        else:
            program.aliases[key] = first
    learned = set(exported.graph_signature.parameters)
    if module is not None:
        learned = {key for key, _ in module.named_parameters(remove_duplicate=False)}
        if not isinstance(module, torch.jit.ScriptModule):
            program.modules = dict(module.named_modules())
        elif not learned:
            _add_constants(program, exported, named, learned)
    specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            _add_input(program, node, specs[node.name], exported, named, learned)
    computed = {*program.stored, *program.inputs}
    results = _Reader(program, known, exported.graph_module, computed).read()
    kinds = [spec.kind for spec in exported.graph_signature.output_specs]
    program.outputs = [item for item, kind in zip(results, kinds) if kind == OutputKind.USER_OUTPUT]
    names = exported.call_spec.out_spec.context
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        program.output_names = list(names)
    program.dtypes.update((name, _dtype(value)) for name, value in program.constants.items())
    program.notes += _training_notes(program) + _range_notes(exported, program)
    return program


def _identity(value: Any) -> Any:
    """Return what distinguishes a tensor from all that do not have its elements in memory."""
    if isinstance(value, torch.Tensor) and value.numel():
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    return id(value)


def _example_of(value: Any) -> Any:
    """Return what a graph has for the value of a node: a tensor without elements."""
    return value.meta["val"] if isinstance(value, torch.fx.Node) else value


def _value_of(spec: Any, exported: Any) -> Any:
    return exported.constants.get(spec.target, exported.state_dict.get(spec.target))


def _add_constants(program: Program, exported: Any, named: dict[Any, str], learned: set[str]) -> None:
    """Name the weights of a frozen script module, which are constants of its code: `constants.0`, as in its file."""
    values = [_value_of(spec, exported) for spec in exported.graph_signature.input_specs if spec.target]
    tensors = {_identity(value): value for value in values if isinstance(value, torch.Tensor)}
    for number, (identity, value) in enumerate(tensors.items()):
        if identity not in named and value.is_floating_point() and value.dim():
            key = named[identity] = f"constants.{number}"
            program.state[key] = value
            program.order.append(key)
            learned.add(key)


def _add_input(program: Program, node: Any, spec: Any, exported: Any, named: dict[Any, str], learned: set[str]) -> None:
    if spec.kind == InputKind.USER_INPUT:
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            program.inputs[node.name], program.dtypes[node.name] = _shape(value), _dtype(value)
        else:
            program.constants[node.name] = value
        return
    value = _value_of(spec, exported)
    key = named.get(_identity(value), program.aliases.get(spec.target, spec.target))
    if spec.kind == InputKind.BUFFER:
        program.buffers[node.name] = key
    if key in program.state and value.is_floating_point():
        program.stored[node.name] = key, key in learned
    else:
        program.constants[node.name] = value.detach().clone() if isinstance(value, torch.Tensor) else value


_REGIONS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Blocks of the source, such as `with torch.no_grad()`."""


@define(eq=False)
class _Reader:
    """Reads the calls of a graph into a program.

    Attributes:
        program: receives the calls and constants.
        known: operations that are not decomposed.
        module: the graph's.
        computed: names of the values that are not constants.
        prefix: of the names of the values, in a block or a decomposition.
        bound: values of nodes that are not calls of the program: of the graph's inputs, of decompositions and blocks.
        outer: the call that a decomposition belongs to.
    """

    program: Program
    known: Collection[str]
    module: Any
    computed: set[str]
    prefix: str = ""
    bound: dict[str, Any] = field(factory=dict)
    outer: TracedCall | None = None

    def read(self) -> list[Any]:
        """Read all calls; return the graph's outputs."""
        for node in self.module.graph.nodes:
            if node.op == "get_attr":
                value = getattr(self.module, node.target)
                if not isinstance(value, nn.Module):
                    self.program.constants[self.prefix + node.name] = value
            elif node.op == "output":
                return [self.plain(item) for item in pytree.tree_leaves(node.args[0])]
            elif node.op == "call_function" and getattr(node.target, "__name__", "") in _REGIONS:
                self._read_block(node)
            elif node.op == "call_function":
                self._read_call(node)
        return []

    def plain(self, value: Any) -> Any:
        """Return an argument with nodes and symbols replaced."""

        def one(item: Any) -> Any:
            if not isinstance(item, torch.fx.Node):
                return item
            held = item.meta.get("val")
            if isinstance(held, (torch.SymInt, torch.SymFloat)):
                text = _text(held)
                return text if isinstance(text, int) else DynamicExtent(text)
            if isinstance(held, (int, float, bool)):
                return held
            return self.bound.get(item.name, CallRef(self.prefix + item.name))

        return mapped(one, value)

    def _call(self, node: Any, target: Any) -> TracedCall:
        value = node.meta.get("val")
        outer = self.outer
        stack = tuple(f"{key}|{path}" for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items() if path)
        schema = getattr(target, "_schema", None)
        op = str(target) if schema else f"operator.{getattr(target, '__name__', target)}"
        names = [one.name for one in schema.arguments] if schema else map(str, range(len(node.args)))
        args = {**dict(zip(names, node.args)), **node.kwargs}
        if schema:
            args = {one.name: args.get(one.name, one.default_value) for one in schema.arguments}
        line = outer.line if outer else _line(node.meta.get("stack_trace") or "")
        call = TracedCall(self.prefix + node.name, op, target, self.plain(args), _shape(value), stack, line, node=node)
        self.program.dtypes[call.name] = _dtype(value)
        if outer:
            call.stack, call.origin = outer.stack, outer.op
        if any(isinstance(item, CallRef) and item.name in self.computed for item in leaves(call.args)):
            self.computed.add(call.name)
        return call

    def _read_call(self, node: Any) -> None:
        several = self.bound.get(node.args[0].name) if node.target is operator.getitem else None
        if isinstance(several, list):
            self.bound[node.name] = several[node.args[1]]
            return
        call = self._call(node, node.target)
        final = self.outer or call.op.startswith("operator.") or call.name not in self.computed
        made = None
        if not final and call.table_name not in self.known:
            made = _decomposition(node, call, frozenset(self.known))
        if made is None:
            self.program.calls.append(call)
            return
        graph, inputs = made
        results = self._read_inside(graph, inputs, (), f"{call.name}.", call)
        if call.inplace:
            target = torch.ops.aten.copy_.default
            args = {"self": call.args["self"], "src": results[0], "non_blocking": False}
            results = [self._add("copy", target, args, call, node.meta["val"])]
        self.bound[node.name] = results if isinstance(node.meta.get("val"), (list, tuple)) else results[0]

    def _read_inside(
        self, module: Any, inputs: Sequence[Any], known: Collection[str], prefix: str, outer: TracedCall | None
    ) -> list[Any]:
        """Read all calls of another graph, with the values of its inputs; return its outputs."""
        names = [inner.name for inner in module.graph.nodes if inner.op == "placeholder"]
        bound = dict(zip(names, map(self.plain, inputs)))
        return _Reader(self.program, known, module, self.computed, prefix, bound, outer).read()

    def _read_block(self, node: Any) -> None:
        """Read a block; its results are a list, detached if the block disables gradients."""
        place = next(number for number, item in enumerate(node.args) if getattr(item, "op", "") == "get_attr")
        call = self._call(node, node.target)
        module, prefix = getattr(self.module, node.args[place].target), f"{self.prefix}{node.name}."
        results = self._read_inside(module, node.args[place + 1 :], self.known, prefix, self.outer)
        if node.target.__name__ == _REGIONS[0] and not node.args[0]:
            for number, (value, held) in enumerate(zip(results, node.meta["val"])):
                if isinstance(value, CallRef) and isinstance(held, torch.Tensor) and held.is_floating_point():
                    target = torch.ops.aten.detach.default
                    results[number] = self._add(f"detach{number}", target, {"self": value}, call, held)
        self.bound[node.name] = results

    def _add(self, name: str, target: Any, args: Any, outer: TracedCall, value: Any) -> CallRef:
        """Add a call that the graph does not contain, with a value like another, after those inside of a call."""
        made = TracedCall(f"{outer.name}.{name}", str(target), target, args, _shape(value), outer.stack, outer.line)
        self.computed.add(made.name)
        self.program.dtypes[made.name] = _dtype(value)
        self.program.calls.append(made)
        return CallRef(made.name)


@cache
def _table(known: frozenset[str]) -> dict[Any, Any]:
    """Return PyTorch's decompositions of the operations that are not known."""
    table = torch.export.default_decompositions().materialize()
    return {target: rule for target, rule in table.items() if str(target) not in known}


def _decomposition(node: Any, call: TracedCall, known: frozenset[str]) -> Any:
    """Return a call as a graph of other calls, and the nodes that are its inputs; `None` if PyTorch has none."""
    target = node.target
    if call.inplace:
        packet, _, overload = call.table_name.removeprefix("aten.").partition(".")
        target = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if target is None:
            return None
    flat, spec = pytree.tree_flatten((node.args, node.kwargs))
    places = [place for place, item in enumerate(flat) if isinstance(item, torch.fx.Node)]

    def run(*values: Any) -> Any:
        items = [*flat]
        for place, value in zip(places, values):
            items[place] = value
        args, kwargs = pytree.tree_unflatten(items, spec)
        return target(*args, **kwargs)

    try:
        with torch.no_grad(), _quiet():
            made = make_fx(run, decomposition_table=_table(known))(*(flat[place].meta["val"] for place in places))
    except Exception:  # a rule may need values that only a run has; the operation is then named itself
        return None
    calls = [inner for inner in made.graph.nodes if inner.op == "call_function"]
    same = any(inner.target is target for inner in calls)
    return None if same else (made, [flat[place] for place in places])


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else ""


def _line(trace_text: str) -> str:
    """Return the innermost line of a stack trace that is not PyTorch's own: `net.py:12: x = x.sort()`."""
    lines = trace_text.splitlines()
    found = ""
    for number, line in enumerate(lines):
        text = line.strip()
        if not text.startswith('File "') or (found and "/torch/nn/" in text) or "/torch/_" in text:
            continue
        path, _, rest = text[6:].partition('"')
        where = rest.split(",")[1].strip().removeprefix("line ") if "," in rest else "?"
        code = lines[number + 1].strip() if number + 1 < len(lines) else ""
        found = f"{path}:{where}: {code}"
    return found


def _training_notes(program: Program) -> list[tuple[str, str, str]]:
    """Return what Lua trains otherwise."""
    found = []
    for path, inner in program.modules.items():
        if inner._backward_hooks or inner._backward_pre_hooks:
            kind = type(inner).__name__
            found.append((path, kind, f"the backward hooks of a {kind} are not carried to Lua"))
    trained = [key for key, learned in program.stored.values() if learned]
    frozen = [key for key in dict.fromkeys(trained) if not program.state[key].requires_grad]
    if frozen:
        text = (
            f"{len(frozen)} parameters with requires_grad=False are trained in Lua, which has no such mark: {frozen[0]}"
        )
        found.append(("", "", text + (", …" if len(frozen) > 1 else "")))
    return found


def _mode_notes(module: nn.Module, inputs: tuple[Any, ...], evaluated: Any) -> list[tuple[str, str, str]]:
    """Compare the graph of a module in evaluation with that in training; return what is not written, for each class.

    Args:
        module: in evaluation mode, in which it is left.
        inputs: the example inputs.
        evaluated: its exported program.
    """
    kinds = {type(inner) for inner in module.modules()}
    if all(kind.__module__.startswith("torch.nn.modules.") for kind in kinds - {nn.RReLU, nn.MultiheadAttention}):
        return []
    module.train()
    kept = [path for path, inner in module.named_modules() if not inner.training and isinstance(inner, _MODAL)]
    try:
        trained = (_with_any_batch(module, inputs, []) if _has_batch(evaluated) else None) or _export(
            module, inputs, None, []
        )
    except Exception as error:
        text = "the graph of training cannot be traced; that of evaluation is written"
        return [("", type(module).__name__, f"{text} ({_refused(error).found[:200]})")]
    finally:
        module.eval()
    ours, theirs = _operations_of(evaluated), _operations_of(trained)
    modules = dict(module.named_modules())
    differing: dict[str, list[str]] = {}
    left_out: list[str] = []
    for path in sorted({**theirs, **ours}):
        if ours.get(path) != theirs.get(path) and not path.startswith(tuple(left_out)):
            left_out += [] if path in ours else [f"{path}."]
            differing.setdefault(type(modules.get(path, module)).__name__, []).append(path)
    text = "computes otherwise in training; the graph of evaluation is written"
    notes = [
        (paths[0], kind, f"the forward of {kind} {text}" + f" (at {len(paths)} places)" * (len(paths) > 1))
        for kind, paths in differing.items()
    ]
    if kept:
        count = counted(len(kept), "layer")
        text = f"Lua's training() changes {count} that train() leaves in evaluation: {listed(kept, 1)}"
        notes.append((kept[0], type(modules[kept[0]]).__name__, text))
    return notes


_MODAL = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
"""Layers that compute otherwise in training."""


_MODES = re.compile("dropout|norm|lstm|gru|rnn_")
"""Names of operations that Lua's layers, too, compute otherwise in training."""


def _operations_of(exported: Any) -> dict[str, list[Any]]:
    """Return the operations on tensors of each module, by its path, with their numbers, without sizes."""
    found: dict[str, list[Any]] = {}
    graphs = [inner.graph for inner in exported.graph_module.modules() if isinstance(inner, torch.fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes if node.op == "call_function"):
        value, name = node.meta.get("val"), str(node.target)
        is_count = isinstance(value, torch.Tensor) and value.dtype == torch.int64 and not value.dim()
        if isinstance(value, (torch.Tensor, tuple, list)) and not is_count:
            kinds = (float,) if _MODES.search(name) else (float, bool)
            numbers = [item for item in leaves((node.args, node.kwargs)) if isinstance(item, kinds)]
            stack = node.meta.get("nn_module_stack") or {"": ("", "")}
            path = [*stack.values()][-1][0].partition("@")[0]  # a second call is `conv@1`
            found.setdefault(path, []).append((name, numbers))
    return found


def _range_notes(exported: Any, program: Program) -> list[tuple[str, str, str]]:
    """Return which batches the traced branch of the source is for, if not all."""
    found = []
    for symbol, limits in exported.range_constraints.items():
        low, high = limits.lower, limits.upper
        if any(str(symbol) in shape[:1] for shape in program.inputs.values()) and (low > 2 or high < 1 << 30):
            text = f"the module branches on the size of the batch: this one is for {low}"
            found.append(("", "", f"{text} to {high} examples" if high < 1 << 30 else f"{text} examples or more"))
    return found


def fold(call: TracedCall, args: dict[str, Any]) -> Any:
    """Compute an operation on constants."""
    if call.target is operator.getitem or not hasattr(call.target, "_schema"):
        return call.target(*args.values())
    names = {one.name for one in call.target._schema.arguments if one.kwarg_only}
    with torch.no_grad():
        plain = [value for name, value in args.items() if name not in names]
        return call.target(*plain, **{name: value for name, value in args.items() if name in names})


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of PyTorch."""
    return isinstance(value, torch.Tensor)


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


def load_graph(path: str, script: bool) -> Any:
    """Load a TorchScript file or a `.pt2` archive by PyTorch, which runs what is in it: it was judged before.

    Raises:
        UnsupportedError: PyTorch cannot load it.
    """
    load: Any = partial(torch.jit.load, map_location="cpu") if script else torch.export.load
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated
            return load(path)
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UnsupportedError("PyTorch cannot load the program", file=path, found=reason[:200]) from error
