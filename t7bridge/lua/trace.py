"""PyTorch modules as lists of ATen calls, by `torch.export`. The only module of this package that imports torch."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from attrs import field
from torch import nn
from torch.export import Dim
from torch.export.graph_signature import InputKind

from ..data import define
from ..errors import UnsupportedError

Shape = tuple[Any, ...]


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
        args: arguments by position, with `CallRef` and `DynamicExtent` inside.
        kwargs: arguments by keyword.
        shape: of its value; a tuple of shapes where it returns several.
        dtype: of its value: `float32`, empty where it is not a tensor.
        stack: the module calls it belongs to, outermost first: key of the call and path of the module.
        line: where the user's source calls it.
    """

    name: str
    op: str
    target: Any = field(repr=False)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(factory=dict)
    shape: Any = ()
    dtype: str = ""
    stack: tuple[str, ...] = ()
    line: str = ""


@define(eq=False)
class Program:
    """A traced module.

    Attributes:
        inputs: name, shape and element type of each input.
        parameters: name of a value → key in the state dict, of parameters.
        constants: name of a value → tensor, of buffers and other constants.
        buffers: name of a value → key in the state dict, of the buffers among them.
        calls: in order.
        outputs: names of the values returned; anything but a tensor is stored itself.
        returns: how the outputs were packed: `one`, `list` or `dict`.
        output_names: keys of a returned dict.
        state: the state dict: key → array, in order; tied tensors under their first key.
        order: all keys of the state dict, in order.
        aliases: other keys of tied tensors → first key.
        static: whether the size of the batch is fixed.
        classes: path of a module → its class.
        dropouts: path of a module that drops out inside one operation → its class and probability.
        left_out: paths and classes of modules that only act in training and left nothing in evaluation.
        branching: paths and classes of modules whose `forward` branches on `self.training`.
    """

    inputs: list[tuple[str, Shape, str]] = field(factory=list)
    parameters: dict[str, str] = field(factory=dict)
    constants: dict[str, Any] = field(factory=dict)
    buffers: dict[str, str] = field(factory=dict)
    calls: list[TracedCall] = field(factory=list)
    outputs: list[Any] = field(factory=list)
    returns: str = "one"
    output_names: list[str] = field(factory=list)
    state: dict[str, Any] = field(factory=dict)
    order: list[str] = field(factory=list)
    aliases: dict[str, str] = field(factory=dict)
    static: bool = False
    classes: dict[str, str] = field(factory=dict)
    dropouts: dict[str, tuple[str, float]] = field(factory=dict)
    left_out: list[tuple[str, str]] = field(factory=list)
    branching: list[tuple[str, str]] = field(factory=list)


def trace(module: nn.Module, inputs: tuple[Any, ...], fixed: bool = False) -> Program:
    """Trace a module in evaluation mode. The module is not changed.

    Args:
        module: any module that `torch.export` takes.
        inputs: example inputs; their first dimension is treated as the batch if the module allows it.
        fixed: whether all extents are those of the example.

    Raises:
        UnsupportedError: the module has control flow that depends on data, or cannot be exported otherwise.
    """
    module = _copied(module).eval().cpu()
    inputs = tuple(value.detach().cpu() if isinstance(value, torch.Tensor) else value for value in inputs)
    exported = static = None
    if not fixed and inputs and all(isinstance(value, torch.Tensor) and value.dim() for value in inputs):
        doubled = tuple(value if value.shape[0] > 1 else torch.cat([value, value]) for value in inputs)
        try:
            exported = _export(module, doubled, tuple({0: Dim.AUTO} for _ in doubled))
        except Exception:
            exported = None
        if exported is not None and not _has_batch(exported):
            exported = None
    if exported is None:
        static = True
        try:
            exported = _export(module, inputs, None)
        except Exception as error:
            raise _refused(error) from error
    program = _program(exported, module)
    program.static = bool(static)
    return program


def _copied(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose attributes may be computed tensors, as with an old `weight_norm`."""
    memo = {
        id(value): value.detach().clone()
        for inner in module.modules()
        for value in vars(inner).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }
    return copy.deepcopy(module, memo)


def _export(module: nn.Module, inputs: tuple[Any, ...], shapes: Any) -> Any:
    with warnings.catch_warnings(), _plain_attention():
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
        except Exception:
            with torch.no_grad():  # custom autograd functions may only export without gradients
                return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)


@contextmanager
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


def _has_batch(exported: Any) -> bool:
    """Return whether the first extent of every input stayed open, and is the same for all."""
    names = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT}
    firsts = [
        node.meta["val"].shape[0] for node in exported.graph.nodes if node.op == "placeholder" and node.name in names
    ]
    return all(not isinstance(extent, int) for extent in firsts) and len({str(extent) for extent in firsts}) == 1


def _refused(error: Exception) -> UnsupportedError:
    """Return the error for a module that cannot be traced, with the line that PyTorch names."""
    text = str(error)
    reason = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    lines = [line.strip() for line in text.splitlines()]
    places = [line for line in lines if line.startswith("File ") and "site-packages/torch" not in line]
    if "data-dependent" in text.lower() or "GuardOnDataDependent" in type(error).__name__:
        reason = f"control flow depends on data: {reason}"
    return UnsupportedError(
        "the module cannot be traced", found=reason[:400], hint=f"At {places[-1]}." if places else ""
    )


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


def _program(exported: Any, module: nn.Module) -> Program:
    program = Program()
    first: dict[int, str] = {}
    for key, tensor in _named_state(module):
        program.order.append(key)
        if id(tensor) in first:
            program.aliases[key] = first[id(tensor)]
        else:
            first[id(tensor)] = key
            program.state[key] = tensor
    specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            _add_input(program, node, specs[node.name], exported)
        elif node.op == "call_function" and _is_region(node):
            program.calls += _inlined(node, exported)
        elif node.op == "call_function":
            program.calls.append(_call(node))
        elif node.op == "output":
            _add_outputs(program, node, exported)
        elif node.op == "get_attr" and not isinstance(getattr(exported.graph_module, node.target), nn.Module):
            program.constants[node.name] = getattr(exported.graph_module, node.target)
    for path, inner in module.named_modules():
        program.classes[path] = type(inner).__name__
        chance = getattr(inner, "dropout", None)
        if isinstance(chance, float) and chance:
            program.dropouts[path] = (type(inner).__name__, chance)
    program.left_out = _silent_modules(module, program)
    program.branching = _branching_modules(module)
    return program


def _named_state(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the state dict's keys and tensors, in order."""
    return list(module.state_dict(keep_vars=True).items())


def _add_input(program: Program, node: Any, spec: Any, exported: Any) -> None:
    if spec.kind == InputKind.USER_INPUT:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            program.constants[node.name] = value
            return
        program.inputs.append((node.name, _shape(value), str(value.dtype).removeprefix("torch.")))
        return
    key = program.aliases.get(spec.target, spec.target)
    if spec.kind == InputKind.PARAMETER:
        program.parameters[node.name] = key
    elif spec.kind == InputKind.BUFFER:
        program.buffers[node.name] = key
        tensor = exported.state_dict[spec.target] if spec.persistent else exported.constants[spec.target]
        program.constants[node.name] = tensor.detach().clone()
    else:
        value = exported.constants.get(spec.target)
        program.constants[node.name] = value.detach().clone() if isinstance(value, torch.Tensor) else value


def _add_outputs(program: Program, node: Any, exported: Any) -> None:
    program.outputs = [CallRef(item.name) if isinstance(item, torch.fx.Node) else item for item in node.args[0]]
    spec = exported.call_spec.out_spec
    kind = spec.type
    if kind is None:
        program.returns = "one"
    elif isinstance(spec.context, list) and all(isinstance(name, str) for name in spec.context):
        program.returns, program.output_names = "dict", list(spec.context)
    else:
        program.returns = "list"


def _plain(value: Any) -> Any:
    """Return an argument with nodes and symbols replaced."""
    if isinstance(value, torch.fx.Node):
        held = value.meta.get("val")
        if isinstance(held, (torch.SymInt, torch.SymFloat)):
            text = _text(held)
            return text if isinstance(text, int) else DynamicExtent(text)
        if isinstance(held, (int, float, bool)):
            return held
        return CallRef(value.name)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, slice):
        return slice(_plain(value.start), _plain(value.stop), _plain(value.step))
    return value


def _call(node: Any) -> TracedCall:
    target = node.target
    op = str(target) if hasattr(target, "_schema") else f"operator.{getattr(target, '__name__', target)}"
    value = node.meta.get("val")
    stack = tuple(f"{key}|{path}" for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items() if path)
    dtype = str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else ""
    return TracedCall(
        node.name,
        op,
        target,
        tuple(_plain(item) for item in node.args),
        {name: _plain(item) for name, item in node.kwargs.items()},
        _shape(value),
        dtype,
        stack,
        _line(node.meta.get("stack_trace") or ""),
    )


_REGIONS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def _is_region(node: Any) -> bool:
    """Return whether a node is a block of the source, such as `with torch.no_grad()`."""
    return getattr(node.target, "__name__", "") in _REGIONS


def _inlined(node: Any, exported: Any) -> list[TracedCall]:
    """Return the calls of a block, and one for the list of its results, detached if the block disables gradients."""
    place = next(number for number, item in enumerate(node.args) if getattr(item, "op", "") == "get_attr")
    graph = getattr(exported.graph_module, node.args[place].target).graph
    given = iter(node.args[place + 1 :])
    renamed: dict[str, Any] = {}
    calls: list[TracedCall] = []
    silent = node.target.__name__ == "wrap_with_set_grad_enabled" and not node.args[0]
    for inner in graph.nodes:
        if inner.op == "placeholder":
            renamed[inner.name] = _plain(next(given))
        elif inner.op == "call_function":
            call = _call(inner)
            call.name = f"{node.name}.{inner.name}"
            call.args, call.kwargs = _with_names(call.args, renamed), _with_names(call.kwargs, renamed)
            renamed[inner.name] = CallRef(call.name)
            calls.append(call)
        elif inner.op == "output":
            results = []
            for item in inner.args[0]:
                value = renamed[item.name]
                held = item.meta.get("val")
                if (
                    silent
                    and isinstance(value, CallRef)
                    and isinstance(held, torch.Tensor)
                    and held.is_floating_point()
                ):
                    dtype = str(held.dtype).removeprefix("torch.")
                    detached = f"{node.name}.{item.name}.detach"
                    target = torch.ops.aten.detach.default
                    calls.append(TracedCall(detached, "aten.detach.default", target, (value,), {}, _shape(held), dtype))
                    value = CallRef(detached)
                results.append(value)
            calls.append(TracedCall(node.name, "operator.list", None, (results,), {}, _shape(node.meta.get("val"))))
    return calls


def _with_names(value: Any, renamed: dict[str, Any]) -> Any:
    if isinstance(value, CallRef):
        return renamed.get(value.name, value)
    if isinstance(value, (list, tuple)):
        return type(value)(_with_names(item, renamed) for item in value)
    if isinstance(value, dict):
        return {name: _with_names(item, renamed) for name, item in value.items()}
    return value


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


_SILENT = ("StochasticDepth", "DropPath", "RReLU", "GaussianNoise")


def _silent_modules(module: nn.Module, program: Program) -> list[tuple[str, str]]:
    """Return modules that act in training only and left no call in evaluation."""
    seen = {entry.partition("|")[2] for call in program.calls for entry in call.stack}
    return [
        (path, type(inner).__name__)
        for path, inner in module.named_modules()
        if type(inner).__name__ in _SILENT and path not in seen
    ]


def _branching_modules(module: nn.Module) -> list[tuple[str, str]]:
    """Return modules, not of PyTorch itself, that compute something else in training."""
    return [
        (path, type(inner).__name__)
        for path, inner in module.named_modules()
        if not type(inner).__module__.startswith("torch.")
        and type(inner).__name__ not in _SILENT
        and _branches_on_training(type(inner).forward)
    ]


@cache
def _branches_on_training(forward: Any) -> bool:
    """Return whether the source of a function, if available, has a condition on `.training`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(forward)))
    except (OSError, TypeError, SyntaxError):
        return False
    conditions = (node.test for node in ast.walk(tree) if isinstance(node, (ast.If, ast.IfExp)))
    asked = (part for condition in conditions for part in ast.walk(condition))
    return any(isinstance(part, ast.Attribute) and part.attr == "training" for part in asked)


def fold(call: TracedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operation on constants."""
    with torch.no_grad():
        return call.target(*args, **kwargs)


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
