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
import sys
import traceback
import warnings
from collections.abc import Collection, Iterator
from functools import cache, partial
from importlib.resources import files
from typing import Any

import sympy
import torch
from attrs import field
from torch import nn
from torch.autograd.function import Function
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental import _config as symbolic_config
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ...data import define
from ...errors import ModelError, UnsupportedError
from ...text import counted, listed
from .sizes import Extent, Shape, Sizes


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
        drawn = all(self.args[name] for name in ("train", "training", "dropout_p") if name in self.args)
        return drawn and torch.Tag.nondeterministic_seeded in getattr(self.target, "tags", ())


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
        changed: texts of what `forward` changes beside its outputs: buffers and parameters.
        sizes: what is known of the sizes of the inputs.
        texts: the sizes of the inputs that the Lua model takes: `any x 3 x 32 x 32`.
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
    changed: list[str] = field(factory=list)
    sizes: Sizes = field(factory=Sizes)
    texts: list[str] = field(factory=list)
    modules: dict[str, nn.Module] = field(factory=dict)
    notes: list[tuple[str, str, str]] = field(factory=list)

    @property
    def is_double(self) -> bool:
        """Whether the Lua model has doubles: its type is that of all parts, whatever they are converted to."""
        kinds = {_dtype(tensor) for tensor in self.state.values()}
        return "float64" in kinds.union(self.dtypes[name] for name in self.inputs)

    def settle(self) -> None:
        """Restate all extents by what is known of the sizes by now."""
        self.sizes.settle()
        self.inputs = mapped(_now, self.inputs)
        for call in self.calls:
            call.shape, call.args = mapped(_now, (call.shape, call.args))


mapped, leaves = pytree.tree_map, pytree.tree_leaves


def _now(value: Any) -> Any:
    return value.now() if isinstance(value, Extent) else value


# Tracing


def trace(
    module: Any,
    inputs: tuple[Any, ...],
    known: Collection[str] = (),
    fixed: int = 0,
) -> Program:
    """Trace a module in evaluation mode. The module is not changed.

    Args:
        module: any module that `torch.export` takes, a script module, or an exported program, which is traced again
            only if other extents than the batch are open.
        inputs: example inputs. A program needs none if it is not traced.
        known: operations that are not decomposed: `aten.relu.default`.
        fixed: 1 if all extents but those of batches are the example's, 2 if all are.

    Raises:
        UnsupportedError: the module has control flow that depends on data, or cannot be exported otherwise.
        ModelError: the inputs are not those of a program.
    """
    inputs = tuple(value.detach().cpu() if isinstance(value, torch.Tensor) else value for value in inputs)
    called: list[str] = []
    readers: set[str] = set()
    exported = None
    has_modes = not isinstance(module, (ExportedProgram, torch.jit.ScriptModule))
    if isinstance(module, ExportedProgram):
        if _check_inputs(module, inputs):
            exported, module = _copied_program(module), None
        else:
            module = module.module()
    else:
        module = _copied(module)
    with _open_sizes():
        if exported is None:
            with _reads_of_mode(readers):
                exported = _exported(module, inputs, called, fixed)
        # The graph of training is made only if the source, apart from torch.nn's, reads the mode.
        evaluated = _computation(exported) if has_modes and readers else None
        exported, texts = _functional(exported, known)
        program = _program(exported, module, known, inputs)
        program.changed += texts
    if has_modes:
        program.notes += _mode_notes(module, inputs, evaluated)
    text = "has its own backward, which is not carried to Lua: gradients there are those of its forward"
    program.notes += [("", name, f"{name} {text}") for name in dict.fromkeys(called)]
    return program


def _exported(module: Any, inputs: tuple[Any, ...], called: list[str], fixed: int) -> Any:
    """Return a module as a program, for inputs of any size if it allows that, else of any batch, else of the example's.

    Args:
        module: the module.
        inputs: example inputs.
        called: receives the names of classes with a backward of their own.
        fixed: see `trace`.

    Raises:
        UnsupportedError: it cannot be exported.
    """
    runner = module
    ways = [partial(_with_any_size, module)]
    if isinstance(module, torch.jit.ScriptModule):
        runner = _Script(module)
        ways = [partial(_with_any_size, runner), partial(_converted, module)]
    of_one_batch: Any = None
    if any(is_tensor(value) and value.dim() for value in inputs):
        for only_batch in (False, True)[fixed:]:
            for way in ways:
                exported = way(inputs, called, only_batch)
                if exported is not None and _has_batch(exported):
                    return exported
                of_one_batch = of_one_batch or exported
    if of_one_batch is not None:
        return of_one_batch
    called.clear()
    try:
        return _export(runner, inputs, None, called)
    except Exception as error:
        raise _refused(error) from error


def _check_inputs(exported: Any, inputs: tuple[Any, ...]) -> bool:
    """Return whether all extents of a program but the batch are known.

    Raises:
        ModelError: the inputs have other sizes than the program, or are missing and its sizes are open.
    """
    shapes = [tuple(map(_text, value.shape)) for value in _inputs_of(exported) if isinstance(value, torch.Tensor)]
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


def _has_batch(exported: Any) -> bool:
    """Return whether the first extent of every input stayed open."""
    firsts = [value.shape[0] for value in _inputs_of(exported) if is_tensor(value) and value.dim()]
    return all(isinstance(_text(extent), str) for extent in firsts)


def _converted(script: Any, inputs: tuple[Any, ...], called: list[str], only_batch: bool) -> Any:
    """Return a script module converted for inputs of other sizes, `None` if its code does not allow that.

    Unlike a run, PyTorch's converter keeps sizes open where the code reads them.
    """
    with _quiet():
        try:
            from torch._export.converter import TS2EPConverter  # private: not in every release

            class Converter(TS2EPConverter):
                def retrace_as_exported_program(self, gm: Any, name_to_constant: Any) -> Any:
                    return _with_any_size(gm, self.sample_args, called, only_batch)

            return Converter(script, inputs).convert()
        except Exception:
            return None


def _with_any_size(module: nn.Module, inputs: tuple[Any, ...], called: list[str], only_batch: bool) -> Any:
    """Return a module exported for inputs of other sizes than the example, `None` if it does not allow that.

    Extents of 1 are fixed, but for that of the batch: PyTorch repeats what has an extent of 1 where another is longer,
    and a module may mean that.
    """
    doubled = tuple(
        torch.cat([value, value]) if is_tensor(value) and value.dim() and value.shape[0] == 1 else value
        for value in inputs
    )
    shapes: Any = tuple(_open_extents(value, only_batch) for value in doubled)
    kinds = [one.kind for one in inspect.signature(module.forward).parameters.values()]
    try:
        exported = _export(
            module, doubled, (shapes,) if kinds == [inspect.Parameter.VAR_POSITIONAL] else shapes, called
        )
    except Exception:
        return None
    # A branch for a batch of one is not in the graph of two examples.
    return exported if _sizes_of(exported, inputs, True).holds() else None


def _open_extents(value: Any, only_batch: bool) -> dict[int, Any] | None:
    """Return the dimensions of an input that may have other extents; `None` if it is not a tensor."""
    if not is_tensor(value):
        return None
    places = range(min(value.dim(), 1)) if only_batch else range(value.dim())
    return {place: Dim.AUTO for place in places if place == 0 or value.shape[place] > 1}


@contextlib.contextmanager
def _open_sizes() -> Iterator[None]:
    """Let sizes of 0 and 1 count as any other, and remember what Python code asks of sizes.

    PyTorch's functions in C++ ask, too, at the line of the source that calls them, but not by these objects.
    """
    config: Any = symbolic_config
    before: Any = torch.SymBool.__bool__

    def asked(answer: Any) -> bool:
        environment = getattr(answer.node, "shape_env", None)
        is_internal = sys._getframe(1).f_code.co_filename.startswith(_FOLDERS[0])
        if environment is not None and not is_internal:
            expr = answer.node.expr
            vars(environment).setdefault(_ASKED, set()).update((str(expr), str(sympy.Not(expr))))
        return bool(before(answer))

    torch.SymBool.__bool__ = asked  # type: ignore[method-assign]
    try:
        with _quiet(), config.patch(backed_size_oblivious=True):
            yield
    finally:
        torch.SymBool.__bool__ = before  # type: ignore[method-assign]


_ASKED = "asked_by_python"
"""Attribute of an environment of symbols: texts of the relations that Python code asked for, and of their opposites."""


def _sizes_of(exported: Any, inputs: tuple[Any, ...], is_ours: bool) -> Sizes:
    """Return the symbols of a program with their values in the example, and the conditions of its source.

    Args:
        exported: the program.
        inputs: the example, whose sizes may be others than those of the trace.
        is_ours: whether it was exported here, and not by the user, who may have stated ranges.
    """
    sizes = Sizes()
    examples = [*inputs, *(None for _ in range(len(_inputs_of(exported))))]
    environment: Any = None
    for value, example in zip(_inputs_of(exported), examples):
        for place, extent in enumerate(value.shape if is_tensor(value) else ()):
            if not isinstance(extent, torch.SymInt) or extent.node.maybe_as_int() is not None:
                continue
            environment = extent.node.shape_env
            own = example.shape[place] if is_tensor(example) else extent.node.hint
            if extent.node.expr.is_Symbol and own is not None:
                sizes.example.setdefault(extent.node.expr, int(own))
    if environment is None:
        return sizes
    for symbol, value in getattr(environment, "var_to_val", getattr(environment, "backed_var_to_val", {})).items():
        sizes.example.setdefault(symbol, int(value))
    for symbol, other in environment.replacements.items():
        sizes.conditions.append(sympy.Eq(symbol, other))
    for guard in environment.guards:
        condition = environment.replace(guard.expr)
        is_asked = str(guard.expr) in vars(environment).get(_ASKED, ())
        if condition.free_symbols and not _is_internal(guard, condition, is_asked):
            sizes.conditions.append(condition)
    if not is_ours:
        for symbol, limits in exported.range_constraints.items():
            if symbol in sizes.example and limits.lower > 2:
                sizes.conditions.append(symbol >= limits.lower)
            if symbol in sizes.example and limits.upper < 1 << 30:
                sizes.conditions.append(symbol <= limits.upper)
    return sizes


_COUNTING = (
    ("_prims_common/__init__.py", "infer_size"),
    ("fake_impls.py", "_view_unbacked_meta"),
    ("_refs/__init__.py", "_reshape_view_helper"),
    ("_ops.py", "__call__"),
)
"""Functions of PyTorch that compare numbers of elements, as Lua's views do."""


def _is_internal(guard: Any, condition: Any, is_asked: bool) -> bool:
    """Return whether a condition was made by PyTorch itself, for the layout of memory or to refuse what is too small.

    Lua's layers refuse that too. Comparisons for equality of extents count wherever they are made.
    """
    place: Any = getattr(guard.sloc, "framework_loc", None)
    path = getattr(place, "filename", "")
    if not path.startswith((_FOLDERS[0], "<")):  # or in a graph that PyTorch runs
        return not is_asked and isinstance(condition, sympy.Ne)
    if not isinstance(condition, sympy.Eq):
        return True
    several = len(condition.free_symbols) > 1
    return several and any(path.endswith(file) and place.name == name for file, name in _COUNTING)


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
    with _quiet(), _plain_attention(), _watched(called), _Traceable():
        try:
            return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
        except Exception:
            with torch.no_grad():  # custom autograd functions may only export without gradients
                return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)


class _Traceable(TorchFunctionMode):
    """Runs by operations that `torch.export` can trace for any size what it cannot trace, or for one size only."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            return args[0].detach()
        if function == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
            return args[0].detach().copy_(args[1])
        if function in (torch.max_pool1d, nn.functional.max_pool1d) and not kwargs.pop("return_indices", False):
            return _pool_of_signals(*args, **kwargs)
        return function(*args, **kwargs)


def _pool_of_signals(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """Pool signals as images of height 1: PyTorch's own function fixes their length."""
    options = (kernel_size, stride or kernel_size, padding, dilation)
    size, step, pad, apart = (value if isinstance(value, int) else value[0] for value in options)
    images = input.unsqueeze(-2)
    pooled = torch.max_pool2d(images, (1, size), (1, step), (0, pad), (1, apart), ceil_mode)
    return pooled.squeeze(-2)


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


def _text(value: Any) -> int | str:
    """Return an extent for a message: a number, or the expression of its symbols."""
    number = value if isinstance(value, int) else value.node.maybe_as_int()
    return str(value) if number is None else number


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


def _program(exported: Any, module: nn.Module | None, known: Collection[str], inputs: tuple[Any, ...]) -> Program:
    """Read an exported program, of a module if there is one."""
    program = Program()
    program.sizes.example.update(_sizes_of(exported, inputs, module is not None).example)
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
    specs_out = exported.graph_signature.output_specs
    program.outputs = [item for item, spec in zip(results, specs_out) if spec.kind == OutputKind.USER_OUTPUT]
    for spec in specs_out:
        if spec.kind in _CHANGES:
            program.changed.append(f"forward {_CHANGES[spec.kind]} {spec.target}, which stays as it is in Lua")
    # Decompositions may add conditions: they are read last.
    program.sizes.conditions += _sizes_of(exported, inputs, module is not None).conditions
    names = exported.call_spec.out_spec.context
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        program.output_names = list(names)
    program.dtypes.update((name, _dtype(value)) for name, value in program.constants.items())
    program.notes += _training_notes(program)
    return program


_CHANGES = {
    OutputKind.BUFFER_MUTATION: "updates the buffer",
    OutputKind.PARAMETER_MUTATION: "changes the parameter",
}
"""Kinds of results of a program that are new values of what it holds."""


def _identity(value: Any) -> Any:
    """Return what distinguishes a tensor from all that do not have its elements in memory."""
    if isinstance(value, torch.Tensor) and value.numel():
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    return id(value)


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
            program.inputs[node.name], program.dtypes[node.name] = _shape(value, program.sizes), _dtype(value)
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


@define(eq=False)
class _Reader:
    """Reads the calls of a graph into a program.

    Attributes:
        program: receives the calls and constants.
        known: operations that are not decomposed.
        module: the graph's.
        computed: names of the values that are not constants.
        prefix: of the names of the values, in a decomposition.
        bound: values of nodes that are not calls of the program: of the graph's inputs, and of decompositions.
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
                return _extent(held, self.program.sizes)
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
        shape = _shape(value, self.program.sizes)
        call = TracedCall(self.prefix + node.name, op, target, self.plain(args), shape, stack, line)
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
        call = self._call(node, _original(node.target))
        final = self.outer or call.op.startswith("operator.") or call.name not in self.computed
        made = None
        if not final and call.op not in self.known:
            made = _decomposition(node, frozenset(self.known))
        if made is None:
            self.program.calls.append(call)
            return
        graph, inputs = made
        names = [inner.name for inner in graph.graph.nodes if inner.op == "placeholder"]
        bound = dict(zip(names, map(self.plain, inputs)))
        results = _Reader(self.program, (), graph, self.computed, f"{call.name}.", bound, call).read()
        self.bound[node.name] = results if isinstance(node.meta.get("val"), (list, tuple)) else results[0]


# Functional graphs: changes in place are PyTorch's work


def _functional(exported: Any, known: Collection[str]) -> tuple[Any, list[str]]:
    """Return a program without changes in place, and texts of what Lua does otherwise.

    Most are changes of a value that only they use, as by `ReLU(inplace=True)`: the same operation that returns a new
    value will do. PyTorch rewrites the others, and views of what is changed, with the whole program.
    """
    graph = exported.graph
    _inline_blocks(exported.graph_module)
    _keep_learned(exported)
    sources = [node.args[0] for node in graph.nodes if _is_change(node)]
    by_data = any(node.target is torch.ops.aten.detach.default for node in sources)
    texts = ["forward changes values by their data: these have no gradient in Lua"] * by_data
    for node in [*graph.nodes]:
        if _is_change(node):
            _replace_change(node)
    graph.eliminate_dead_code(lambda node: bool(node.users) or node.op != "call_function" or _is_change(node))
    if any(map(_is_change, graph.nodes)):
        for node in graph.nodes:
            node.target = _KEPT.get(node.target, node.target)
        exported.graph_module.recompile()
        exported = exported.run_decompositions(_table(frozenset(known)))
    return exported, texts


def _keep_learned(exported: Any) -> None:
    """Let parameters whose `data` is changed, as by a mask, have their gradients: what is changed is not detached."""
    learned = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.PARAMETER}
    detached = [node for node in exported.graph.nodes if node.target is torch.ops.aten.detach.default]
    changed = {node.args[0] for node in exported.graph.nodes if _is_change(node)}
    for source in {node.args[0] for node in detached if node in changed}:
        for node in detached:
            if node.args[0] is source and source.name in learned:
                node.replace_all_uses_with(source)
                exported.graph.erase_node(node)


def _is_change(node: Any) -> bool:
    """Return whether a node changes its first argument in place."""
    schema = getattr(node.target, "_schema", None)
    return bool(node.op == "call_function" and schema is not None and schema.is_mutable)


def _replace_change(node: Any) -> None:
    """Replace a change of a value without views by the operation that returns a new one."""
    changed = node.args[0] if node.args else None
    packet, _, overload = str(node.target).removeprefix("aten.").partition(".")
    other = getattr(getattr(torch.ops.aten, packet.removesuffix("_"), None), overload, None)
    if other is None or not isinstance(changed, torch.fx.Node) or changed.op != "call_function":
        return
    before: set[Any] = set()
    for earlier in node.graph.nodes:
        if earlier is node:
            break
        before.add(earlier)
    if _may_share(changed) or any(_may_share(user) for user in changed.users if user in before):
        return
    node.target = other
    for user in [*changed.users]:
        if user is not node and user not in before:
            user.replace_input_with(changed, node)


def _may_share(node: Any) -> bool:
    """Return whether a value may share memory with an argument of its operation."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return bool(node.op != "output")
    if any(result.alias_info is not None for result in schema.returns):
        return True
    # Operations that PyTorch composes of others may return their argument, as dropout in evaluation does.
    is_composed = torch._C._dispatch_has_kernel_for_dispatch_key(node.target.name(), "CompositeImplicitAutograd")
    return bool(is_composed) and str(node.target) not in _FRESH


_FRESH = frozenset(
    {
        *("aten.batch_norm.default", "aten.layer_norm.default", "aten.group_norm.default", "aten.linear.default"),
        *("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default", "aten.conv_transpose2d.input"),
        *("aten.matmul.default", "aten.max_pool2d.default", "aten.softmax.int", "aten.log_softmax.int"),
    }
)
"""Composed operations that return a new value always."""


def _kept(name: str) -> Any:
    """Return an operation of evaluation that PyTorch does not compose of others, and that stands for a dropout."""

    def forward(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        return input.clone()

    made = torch.library.custom_op(f"t7bridge::{name}", forward, mutates_args=())
    made.register_fake(lambda input, p, train: torch.empty_like(input))
    return made._opoverload


_KEPT = {getattr(torch.ops.aten, name).default: _kept(name) for name in ("dropout", "feature_dropout", "alpha_dropout")}
"""Dropouts, which PyTorch leaves out of evaluation → what they are while it rewrites a program."""
_ORIGINALS = {kept: original for original, kept in _KEPT.items()}


def _original(target: Any) -> Any:
    return _ORIGINALS.get(target, target)


def _inline_blocks(module: Any) -> None:
    """Put blocks such as `with torch.no_grad()` into the graph; what one without gradients returns is detached."""
    for node in [*module.graph.nodes]:
        if node.op != "call_function" or getattr(node.target, "__name__", "") not in _BLOCKS:
            continue
        place = next(number for number, item in enumerate(node.args) if getattr(item, "op", "") == "get_attr")
        inner = getattr(module, node.args[place].target)
        _inline_blocks(inner)
        values: dict[Any, Any] = {}
        arguments = iter(node.args[place + 1 :])
        with module.graph.inserting_before(node):
            for part in inner.graph.nodes:
                if part.op == "placeholder":
                    values[part] = next(arguments)
                elif part.op == "get_attr":
                    name = f"{node.name}_{part.target}"
                    setattr(module, name, getattr(inner, part.target))
                    values[part] = module.graph.get_attr(name)
                    values[part].meta = dict(part.meta)
                elif part.op == "output":
                    results = [values.get(item, item) for item in part.args[0]]
                else:
                    values[part] = module.graph.node_copy(part, values.__getitem__)
            if node.target.__name__ == _BLOCKS[0] and not node.args[0]:
                results = [_detached(module.graph, item) for item in results]
        for user in [*node.users]:
            user.replace_all_uses_with(results[user.args[1]])
            module.graph.erase_node(user)
        module.graph.erase_node(node)


_BLOCKS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def _detached(graph: Any, value: Any) -> Any:
    """Return a value of a graph without a gradient."""
    held = value.meta.get("val")
    if not is_tensor(held) or not held.is_floating_point():
        return value
    made = graph.call_function(torch.ops.aten.detach.default, (value,))
    made.meta = dict(value.meta)
    return made


def _copied_program(exported: Any) -> Any:
    """Return a copy of a program whose graph may be changed; its tensors are the same."""
    tensors = [*exported.state_dict.values(), *exported.constants.values()]
    copied = copy.deepcopy(exported, {id(value): value for value in tensors if is_tensor(value)})
    names = iter(spec.arg.name for spec in copied.graph_signature.input_specs)
    for node in copied.graph.nodes:
        if node.op == "placeholder":
            node.name = next(names)  # a copy of a graph gives other names to inputs called as functions of Python
    return copied


@cache
def _table(known: frozenset[str]) -> dict[Any, Any]:
    """Return PyTorch's decompositions of the operations that are not known."""
    table = torch.export.default_decompositions().materialize()
    return {target: rule for target, rule in table.items() if str(target) not in known}


def _decomposition(node: Any, known: frozenset[str]) -> Any:
    """Return a call as a graph of other calls, and the nodes that are its inputs; `None` if PyTorch has none."""
    target = node.target
    flat, spec = pytree.tree_flatten((node.args, node.kwargs))
    places = [place for place, item in enumerate(flat) if isinstance(item, torch.fx.Node)]

    def run(*values: Any) -> Any:
        items = [*flat]
        for place, value in zip(places, values):
            items[place] = value
        args, kwargs = pytree.tree_unflatten(items, spec)
        return target(*args, **kwargs)

    values = [flat[place].meta["val"] for place in places]
    made: Any = None
    for _ in range(2):  # PyTorch 2.13's transforms fail where they limit a size for the first time, and work then
        try:
            with torch.no_grad(), _quiet():
                made = make_fx(run, decomposition_table=_table(known))(*values)
            break
        except Exception:  # a rule may need values that only a run has; the operation is then named itself
            continue
    if made is None:
        return None
    for inner in [*made.graph.nodes]:
        if _is_change(inner):
            _replace_change(inner)
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


@contextlib.contextmanager
def _reads_of_mode(readers: set[str]) -> Iterator[None]:
    """Collect the names of the functions outside of torch.nn that read the attribute `training` of a module."""

    def read(module: nn.Module) -> bool:
        code = sys._getframe(1).f_code
        if not code.co_filename.startswith(_FOLDERS[0]):
            readers.add(code.co_name)
        return bool(vars(module).get("training"))

    def write(module: nn.Module, value: bool) -> None:
        vars(module)["training"] = value

    before = vars(nn.Module).get("training")
    nn.Module.training = property(read, write)  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is None:
            del nn.Module.training
        else:
            nn.Module.training = before


def _mode_notes(module: nn.Module, inputs: tuple[Any, ...], evaluated: Any) -> list[tuple[str, str, str]]:
    """Compare a module in evaluation with the same in training; return what is not written, for each class.

    Args:
        module: in evaluation mode, in which it is left.
        inputs: the example inputs.
        evaluated: what it computes; `None` if training cannot differ.
    """
    module.train()
    kept = [path for path, inner in module.named_modules() if not inner.training and isinstance(inner, _MODAL)]
    module.eval()
    modules = dict(module.named_modules())
    notes = [] if evaluated is None else _differences_in_training(module, inputs, evaluated)
    if kept:
        count = counted(len(kept), "layer")
        text = f"Lua's training() changes {count} that train() leaves in evaluation: {listed(kept, 1)}"
        notes.append((kept[0], type(modules[kept[0]]).__name__, text))
    return notes


def _differences_in_training(module: nn.Module, inputs: tuple[Any, ...], evaluated: Any) -> list[tuple[str, str, str]]:
    """Return which classes compute, or return, otherwise in training."""
    module.train()
    try:
        with _open_sizes():
            trained = _with_any_size(module, inputs, [], False) or _export(module, inputs, None, [])
    except Exception as error:
        text = "the graph of training cannot be traced; that of evaluation is written"
        return [("", type(module).__name__, f"{text} ({_refused(error).found[:200]})")]
    finally:
        module.eval()
    (ours, our_outputs), (theirs, their_outputs) = evaluated, _computation(trained)
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
    if not notes and our_outputs != their_outputs:
        kind = type(module).__name__
        text = f"the forward of {kind} returns other outputs in training; those of evaluation are written"
        notes.append(("", kind, text))
    return notes


_MODAL = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
"""Layers that compute otherwise in training."""


_MODES = re.compile("dropout|norm|lstm|gru|rnn_")
"""Names of operations that Lua's layers, too, compute otherwise in training."""


def _computation(exported: Any) -> tuple[dict[str, list[Any]], list[Any]]:
    """Return the operations of each module of a program, and which of them it returns."""
    return _operations_of(exported), _outputs_of(exported)


def _outputs_of(exported: Any) -> list[Any]:
    """Return where outputs come from: module, operation, and its number among its like; and their form."""
    counts: dict[Any, int] = {}
    places: dict[Any, Any] = {}
    for node in exported.graph.nodes:
        name = _MODES.sub("mode", str(node.target)) if node.op == "call_function" else node.name
        place = _path_of(node), name
        counts[place] = counts.get(place, 0) + 1
        places[node] = (*place, counts[place])
    returned = next(node.args[0] for node in exported.graph.nodes if node.op == "output")
    kinds = [spec.kind for spec in exported.graph_signature.output_specs]
    found = [places.get(item, item) for item, kind in zip(returned, kinds) if kind == OutputKind.USER_OUTPUT]
    return [*found, str(exported.call_spec.out_spec)]


def _path_of(node: Any) -> str:
    """Return the path of the module that a node belongs to; a second call is `conv@1` in PyTorch's."""
    stack = node.meta.get("nn_module_stack") or {"": ("", "")}
    return str([*stack.values()][-1][0]).partition("@")[0]


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
            found.setdefault(_path_of(node), []).append((name, numbers))
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
