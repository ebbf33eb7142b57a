"""Calls of `torch.export`: programs of PyTorch modules with sizes as open as the modules allow, and their errors.

A module is exported first for inputs of any size, then of any batch, then of the example's sizes.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from importlib.resources import files
from itertools import zip_longest
from typing import Any

import sympy
import torch
from torch import nn
from torch.autograd.function import Function
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental import _config as symbolic_config
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ...errors import ModelError, UnsupportedError
from ...torchmodules.build import copy_module
from .sizes import Sizes


class Freedom(IntEnum):
    """Which extents of the inputs may differ from the example's, from most to least."""

    ALL = 0
    BATCH = 1
    NONE = 2


TORCH_FOLDER = os.path.dirname(torch.__file__)
_FOLDERS = (
    TORCH_FOLDER,
    str(files(__package__.partition(".")[0])),
    contextlib.__file__,
    inspect.__file__,
    "<",
)
"""Beginnings of the paths of code that is not the user's; `<` is that of generated code."""


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of PyTorch."""
    return isinstance(value, torch.Tensor)


# Modules to programs


def export_module(
    module: Any, inputs: tuple[Any, ...], own_backwards: list[str], freedom: Freedom = Freedom.ALL
) -> Any:
    """Export a module for inputs of any size if it allows that, else of any batch, else of the example's sizes.

    Args:
        module: the module, or a script module.
        inputs: example inputs.
        own_backwards: receives the names of the user's classes of `torch.autograd.Function`, which have a backward of
            their own, as often as they are applied.
        freedom: the extents that may be open at most.

    Raises:
        UnsupportedError: it cannot be exported.
    """
    is_script = isinstance(module, torch.jit.ScriptModule)
    runner = _ScriptRunner(module) if is_script else module
    exporters = [partial(export_open, runner)]
    if is_script:  # to export a run of it fixes the sizes that the code reads, where the converter may not
        exporters.append(partial(_convert_script, module))
    has_extents = any(is_tensor(value) and value.dim() for value in inputs)
    if has_extents:
        exported = _most_open(exporters, inputs, own_backwards, freedom)
        if exported is not None:
            return exported
    own_backwards.clear()  # the attempts that failed have added names, which this one adds again
    try:
        return export_plainly(runner, inputs, dynamic_shapes=None, own_backwards=own_backwards)
    except Exception as error:
        raise untraceable(error) from error


def _most_open(
    exporters: Sequence[Callable[..., Any]], inputs: tuple[Any, ...], own_backwards: list[str], freedom: Freedom
) -> Any:
    """Return the first program whose batch is open, else the first of others; `None` if all attempts fail.

    Each exporter is asked with all dimensions open, and then each with the batch alone.

    Args:
        exporters: take the following arguments, and return a program or `None`.
        inputs: example inputs.
        own_backwards: see `export_module`.
        freedom: the extents that may be open at most.
    """
    with_fixed_batch: Any = None
    for level in (Freedom.ALL, Freedom.BATCH):
        if level < freedom:  # more extents open than may be
            continue
        for export in exporters:
            exported = export(inputs, own_backwards, level)
            if exported is None:
                continue
            if _has_open_batch(exported):
                return exported
            if with_fixed_batch is None:
                with_fixed_batch = exported
    return with_fixed_batch


class _ScriptRunner(nn.Module):
    """Runs the code of a script module, which `torch.export` does not trace itself."""

    def __init__(self, script: Any) -> None:
        super().__init__()
        self.code = script._c._get_method("forward")

    def forward(self, *args: Any) -> Any:
        return self.code(*args)


def _has_open_batch(exported: ExportedProgram) -> bool:
    """Return whether the first extent of every input stayed open."""
    tensors = [value for value in inputs_of(exported) if is_tensor(value) and value.dim()]
    return all(_is_open(tensor.shape[0]) for tensor in tensors)


def _convert_script(script: Any, inputs: tuple[Any, ...], own_backwards: list[str], freedom: Freedom) -> Any:
    """Return a script module converted for inputs of other sizes, `None` if its code does not allow that.

    Unlike a run, PyTorch's converter keeps sizes open where the code reads them.

    Args:
        script: the script module.
        inputs: example inputs.
        own_backwards: receives names of classes, see `export_module`.
        freedom: the extents that may be open.
    """
    with quiet():
        try:
            from torch._export.converter import TS2EPConverter  # private: not in every release

            class OpenConverter(TS2EPConverter):
                """Exports the module that the code is converted to with open sizes, where PyTorch's fixes them."""

                def retrace_as_exported_program(self, gm: Any, name_to_constant: Any) -> Any:
                    """Export the converted module, `gm`; PyTorch's method of this name does so with fixed sizes."""
                    return export_open(gm, self.sample_args, own_backwards, freedom)

            return OpenConverter(script, inputs).convert()
        except Exception:  # what a private interface raises is not known
            return None


def export_open(module: nn.Module, inputs: tuple[Any, ...], own_backwards: list[str], freedom: Freedom) -> Any:
    """Return a module exported for inputs of other sizes than the example, `None` if it does not allow that.

    Extents of 1 are fixed, but for that of the batch: PyTorch repeats what has an extent of 1 where another is longer,
    and a module may mean that.

    Args:
        module: the module.
        inputs: example inputs.
        own_backwards: receives names of classes, see `export_module`.
        freedom: the extents that may be open.
    """
    # torch.export would fix a batch of one.
    batches = tuple(_as_batch_of_two(value) for value in inputs)
    exported = _export_with_open_extents(module, batches, own_backwards, freedom)
    if exported is not None and not _has_fixed_sizes_of(exported, inputs):
        # The code fixes the batch, and two examples are not the one to convert for.
        exported = _export_with_open_extents(module, inputs, own_backwards, freedom)
    # The code may have a branch for a batch of one, which is not in the graph of two examples.
    return exported if exported is not None and _takes(exported, inputs) else None


def _export_with_open_extents(
    module: nn.Module, inputs: tuple[Any, ...], own_backwards: list[str], freedom: Freedom
) -> Any:
    """Return a module exported for any extents that may be open; `None` if it raises an error. See `export_open`."""
    dynamic_shapes: Any = tuple(_open_extents(value, freedom) for value in inputs)
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    if kinds == [inspect.Parameter.VAR_POSITIONAL]:  # forward(*args): torch.export takes these for one argument
        dynamic_shapes = (dynamic_shapes,)
    try:
        return export_plainly(module, inputs, dynamic_shapes, own_backwards)
    except Exception:  # the user's code may raise any
        return None


def _has_fixed_sizes_of(exported: ExportedProgram, inputs: tuple[Any, ...]) -> bool:
    """Return whether the inputs of a program have the sizes of an example, as far as they are not open."""
    for value, example in zip(inputs_of(exported), pytree.tree_leaves(inputs)):  # an input may be a list of tensors
        if is_tensor(value) and is_tensor(example) and not _fits(tuple(example.shape), _shape_for_message(value)):
            return False
    return True


def _takes(exported: ExportedProgram, inputs: tuple[Any, ...]) -> bool:
    """Return whether a program that was exported with open extents takes an example of these sizes."""
    environment = environment_of(exported)
    if environment is None:  # no extent is open
        return True
    sizes = Sizes(example=example_of(exported, environment, inputs))
    sizes.conditions += conditions_of(environment)
    # Extents that were equal in the trace are one symbol, and may not be equal in the example.
    for extent, size in _sizes_of_open_extents(exported, inputs):
        if size is not None and sizes.in_example(extent.node.expr) != size:
            return False
    return sizes.holds()


def _as_batch_of_two(value: Any) -> Any:
    """Return a tensor whose first extent is 1 with its example twice; any other input unchanged."""
    if is_tensor(value) and value.dim() and value.shape[0] == 1:
        return torch.cat([value, value])
    return value


def _open_extents(value: Any, freedom: Freedom) -> dict[int, Any] | None:
    """Return the dimensions of an input that may have other extents, for `torch.export`; `None` if it is no tensor."""
    if not is_tensor(value):
        return None
    rank = value.dim()
    if freedom == Freedom.BATCH:
        rank = min(rank, 1)
    # The first dimension is the batch, and open even if it is 1; see `export_open`.
    return {axis: Dim.AUTO for axis in range(rank) if axis == 0 or value.shape[axis] > 1}


def export_plainly(module: nn.Module, inputs: tuple[Any, ...], dynamic_shapes: Any, own_backwards: list[str]) -> Any:
    """Call `torch.export.export`, first with gradients, then without; raise what the second call raises.

    Args:
        module: the module.
        inputs: example inputs.
        dynamic_shapes: in the form of `torch.export.export`; `None` fixes all sizes.
        own_backwards: receives the names of classes, see `export_module`; of both calls, where there are two.
    """
    with quiet(), _plain_attention(), _watch_backwards(own_backwards), _Traceable():
        try:
            return torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes, strict=False)
        except Exception:
            with torch.no_grad():  # custom autograd functions may only export without gradients
                return torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes, strict=False)


def copy_for_evaluation(module: nn.Module) -> nn.Module:
    """Return a copy on the CPU in evaluation mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of gradients of script modules
        return copy_module(module).eval().cpu()


# Programs of the user


def copy_program(exported: ExportedProgram) -> ExportedProgram:
    """Return a copy of a program whose graph may be changed; its tensors are the same."""
    values = [*exported.state_dict.values(), *exported.constants.values()]
    copied_already = {id(value): value for value in values if is_tensor(value)}
    copied = copy.deepcopy(exported, copied_already)
    # A copy of a graph has other names for inputs called as functions of Python, such as `input`. Both have them in one
    # order.
    placeholders = [node for node in copied.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(placeholders, copied.graph_signature.input_specs):
        node.name = spec.arg.name
    return copied


def check_program_inputs(exported: ExportedProgram, inputs: tuple[Any, ...]) -> None:
    """Check example inputs against those of a program.

    Args:
        exported: the program.
        inputs: example inputs; none to use the fixed sizes of the program.

    Raises:
        ModelError: the inputs have other sizes than the program, or are missing and its sizes are open.
    """
    # Inputs that are not tensors have no sizes to check. Extents are numbers, or texts if they are open.
    shapes = [_shape_for_message(value) for value in inputs_of(exported) if is_tensor(value)]
    example_shapes = [tuple(value.shape) for value in inputs if is_tensor(value)]
    text = ", ".join("x".join(map(str, shape)) for shape in shapes)
    if example_shapes and [len(shape) for shape in example_shapes] != [len(shape) for shape in shapes]:
        raise ModelError("the program has other inputs", expected=text, found=f"{example_shapes}")
    if not all(_fits(example, shape) for example, shape in zip(example_shapes, shapes)):
        raise ModelError("the sizes of the program's inputs are fixed", expected=text, found=f"{example_shapes}")
    if not example_shapes and not has_fixed_examples(exported):
        raise ModelError("the sizes of the program's inputs are open", found=text, hint="State them: --input SIZES.")


def has_fixed_examples(exported: ExportedProgram) -> bool:
    """Return whether all extents of a program's inputs are numbers, but perhaps those of the batch."""
    extents_of_examples: list[Any] = []
    for value in inputs_of(exported):
        if is_tensor(value):
            extents_of_examples += value.shape[1:]
    return not any(map(_is_open, extents_of_examples))


def _shape_for_message(value: Any) -> tuple[int | str, ...]:
    """Return the extents of an input of a program: numbers, or expressions of symbols as text."""
    return tuple(str(extent) if _is_open(extent) else int(extent) for extent in value.shape)


def _fits(example: tuple[int, ...], shape: tuple[int | str, ...]) -> bool:
    """Return whether an input has the extents of a program's that are numbers."""
    return all(isinstance(wanted, str) or wanted == extent for extent, wanted in zip(example, shape))


def inputs_of(exported: ExportedProgram) -> list[Any]:
    """Return what a program has for the inputs of its user: tensors without elements, and other values."""
    names = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT}
    return [node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder" and node.name in names]


def _is_open(extent: Any) -> bool:
    """Return whether an extent of a program depends on its inputs."""
    return isinstance(extent, torch.SymInt) and extent.node.maybe_as_int() is None


def load_program(path: str, script: bool) -> Any:
    """Load a TorchScript file or a `.pt2` archive by PyTorch, which runs what is in it: the caller has judged it.

    Args:
        path: of the file.
        script: whether it is a TorchScript file.

    Raises:
        UnsupportedError: PyTorch cannot load it.
    """
    load: Any = partial(torch.jit.load, map_location="cpu") if script else torch.export.load
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated
            return load(path)
    except Exception as error:
        first_line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UnsupportedError("PyTorch cannot load the program", file=path, found=first_line[:200]) from error


# Sizes


@contextlib.contextmanager
def open_sizes() -> Iterator[None]:
    """Have `torch.export` treat sizes of 0 and 1 as any other, and note which relations of sizes the user's code reads.

    Python reads one, as in `if x.shape[0] > 4`, by converting a `torch.SymBool` to a boolean: its method for that is
    replaced meanwhile. PyTorch's functions in C++ read relations otherwise, but at the same lines of the user's code,
    those that call them. `conditions_of` tells both apart by the notes.
    """
    config: Any = symbolic_config
    original: Any = torch.SymBool.__bool__

    def noted(condition: Any) -> bool:
        """Return a relation of sizes, a `torch.SymBool`, as a boolean; note it if the user's code asks for that."""
        environment = getattr(condition.node, "shape_env", None)
        frame: Any = sys._getframe(1)
        # Of `if x.shape[0] % 2`, where PyTorch compares the number with 0
        if frame.f_code is torch.SymInt.__bool__.__code__:
            frame = frame.f_back
        if environment is not None and not frame.f_code.co_filename.startswith(TORCH_FOLDER):
            relation = condition.node.expr
            texts = vars(environment).setdefault(_READ_BY_USER, set())
            # The program has a condition that the relation holds, or one that it does not.
            texts.add(str(relation))
            texts.add(str(sympy.Not(relation)))
        return bool(original(condition))

    torch.SymBool.__bool__ = noted  # type: ignore[method-assign]
    try:
        with quiet(), config.patch(backed_size_oblivious=True):  # PyTorch's name for 0 and 1 as any other size
            yield
    finally:
        torch.SymBool.__bool__ = original  # type: ignore[method-assign]


_READ_BY_USER = "relations_read_by_user"
"""Attribute of an environment of symbols: texts of the relations that the user's code reads, and of their opposites."""


def environment_of(exported: ExportedProgram) -> Any:
    """Return PyTorch's `ShapeEnv`, which all open extents of a program's inputs have in common; `None` if none is open.

    A decomposition of the program may fix extents, and add conditions to the environment.
    """
    for value in inputs_of(exported):
        if not is_tensor(value):
            continue
        for extent in value.shape:
            if _is_open(extent):
                return extent.node.shape_env
    return None


def example_of(exported: ExportedProgram, environment: Any, inputs: tuple[Any, ...]) -> dict[Any, int]:
    """Return the values of the symbols of a program in the example.

    Args:
        exported: the program.
        environment: see `environment_of`.
        inputs: the example, whose sizes may be others than those of the trace; none for a program of the user that is
            not traced again.
    """
    values: dict[Any, int] = {}
    # First of the example, whose sizes tell the values of extents that are a symbol alone.
    for extent, size in _sizes_of_open_extents(exported, inputs):
        if extent.node.expr.is_Symbol and size is not None:
            values.setdefault(extent.node.expr, int(size))
    # Symbols that PyTorch found to be others, or functions of these, are so in the example, too.
    for symbol in environment.replacements:
        expr = environment.replace(symbol)
        if expr.free_symbols and expr.free_symbols <= values.keys():
            values.setdefault(symbol, int(expr.xreplace(values)))
    # Then of the trace, for all other symbols.
    for symbol, size in _sizes_in_trace(environment).items():
        values.setdefault(symbol, int(size))
    return values


def _sizes_of_open_extents(exported: ExportedProgram, inputs: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """Return the open extents of a program's inputs, each with its size in the example.

    Of an input without an example, which a program of the user need not have, it is the size in the user's own trace;
    `None` if PyTorch does not know that.
    """
    sizes: list[tuple[Any, Any]] = []
    for value, example in zip_longest(inputs_of(exported), inputs):
        if not is_tensor(value):
            continue
        for axis, extent in enumerate(value.shape):
            if not _is_open(extent):
                continue
            size_in_trace = extent.node.hint
            sizes.append((extent, example.shape[axis] if is_tensor(example) else size_in_trace))
    return sizes


def _sizes_in_trace(environment: Any) -> dict[Any, Any]:
    """Return the value of each symbol in the trace.

    It is an attribute of PyTorch's `ShapeEnv`, with another name in newer releases.
    """
    for name in ("var_to_val", "backed_var_to_val"):
        if hasattr(environment, name):
            return dict(getattr(environment, name))
    return {}


def conditions_of(environment: Any) -> list[Any]:
    """Return the relations of symbols that the source of a program, and not PyTorch itself, needs.

    Args:
        environment: PyTorch's `ShapeEnv`, whose guards are what was read of sizes during the trace.
    """
    # Symbols that PyTorch found to be equal to others, and replaced, are relations of sizes as well.
    conditions: list[Any] = [sympy.Eq(symbol, other) for symbol, other in environment.replacements.items()]
    read_by_user = vars(environment).get(_READ_BY_USER, ())  # there only if any was read, see `open_sizes`
    for guard in environment.guards:
        condition = environment.replace(guard.expr)
        is_read_by_user = str(guard.expr) in read_by_user
        if condition.free_symbols and not _is_internal(guard, condition, is_read_by_user):
            conditions.append(condition)
    return conditions


_NO_LIMIT = 1 << 30
"""Largest sizes from this one on are PyTorch's own, and not stated by a user."""


def stated_ranges(exported: ExportedProgram, sizes: Sizes) -> list[Any]:
    """Return the ranges that the user stated for the symbols of a program, as relations: `s0 >= 4`, `s0 <= 16`.

    Args:
        exported: the program.
        sizes: whose `example` has the symbols; ranges of others are left out.
    """
    conditions = []
    for symbol, limits in exported.range_constraints.items():
        if symbol not in sizes.example:
            continue
        # PyTorch's own limits, which nobody stated, are at most 2 below and above far beyond any extent.
        if limits.lower > 2:
            conditions.append(symbol >= limits.lower)
        if limits.upper < _NO_LIMIT:
            conditions.append(symbol <= limits.upper)
    return conditions


_COMPARE_NUMBERS_OF_ELEMENTS = (
    ("_prims_common/__init__.py", "infer_size"),
    ("fake_impls.py", "_view_unbacked_meta"),
    ("_refs/__init__.py", "_reshape_view_helper"),
    ("_ops.py", "__call__"),
)
"""Functions of PyTorch that compare numbers of elements, as Lua's views do."""


def _is_internal(guard: Any, condition: Any, is_read_by_user: bool) -> bool:
    """Return whether a condition was made by PyTorch itself, and is not needed in Lua.

    PyTorch makes some for the layout of memory, others to refuse what is too small, as Lua's layers do too, and it
    compares numbers of elements, as Lua's views do. Any other equation of extents is needed wherever it is made.

    Args:
        guard: PyTorch's, with the line that made it.
        condition: its relation, simplified.
        is_read_by_user: whether the user's code read the relation.
    """
    frame: Any = getattr(guard.sloc, "framework_loc", None)
    path = getattr(frame, "filename", "")
    is_in_torch = path.startswith((TORCH_FOLDER, "<"))  # `<` for a graph that PyTorch runs
    if not is_in_torch:
        # At a line of the user, functions of PyTorch in C++ that it calls make conditions, too. Those that two extents
        # differ are theirs, unless the user's code reads them.
        return isinstance(condition, sympy.Ne) and not is_read_by_user
    if not isinstance(condition, sympy.Eq):  # of the layout of memory, or of what is too small
        return True
    if len(condition.free_symbols) < 2:  # that an extent equals a number: needed
        return False
    return any(path.endswith(file) and frame.name == name for file, name in _COMPARE_NUMBERS_OF_ELEMENTS)


# What PyTorch does while it exports


class _Traceable(TorchFunctionMode):
    """While it is active, functions that `torch.export` cannot trace for any size run as others that it can."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch, or others that compute the same: PyTorch calls this in place of any function.

        An exported graph cannot have `tensor.data`, and has `max_pool1d` for one length only.

        Args:
            function: the function, or the getter or setter of an attribute.
            types: the classes of its arguments, which do not matter here.
            args: its arguments by position.
            kwargs: those by keyword; `None` for none.
        """
        kwargs = kwargs or {}
        if function == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            (tensor,) = args
            return tensor.detach()
        if function == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
            tensor, value = args
            return tensor.detach().copy_(value)
        if function in (torch.max_pool1d, nn.functional.max_pool1d):
            kwargs.pop("return_indices", None)  # it is false: PyTorch has another function for these
            return _pool_signals(*args, **kwargs)
        return function(*args, **kwargs)


def _pool_signals(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """Compute `max_pool1d` of signals as `max_pool2d` of images of height 1, which leaves their length open.

    The parameters and their defaults are those of `torch.nn.functional.max_pool1d`.
    """

    def of_image(value: Any, for_height: int) -> tuple[int, int]:
        """Return an option for the height and the width: of a signal, it is a number or a list of one."""
        return (for_height, value if isinstance(value, int) else value[0])

    images = input.unsqueeze(-2)
    pooled = torch.max_pool2d(
        images,
        kernel_size=of_image(kernel_size, for_height=1),
        stride=of_image(stride or kernel_size, for_height=1),
        padding=of_image(padding, for_height=0),
        dilation=of_image(dilation, for_height=1),
        ceil_mode=ceil_mode,
    )
    return pooled.squeeze(-2)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Prevent PyTorch from warning of attempts to trace, and from logging and printing what fails."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Prevent PyTorch from using fused attention kernels, and from checking a mask's values for causality.

    Lua has no layer for a fused kernel, and values of a mask cannot be read in a trace.
    """
    transformer = torch.nn.modules.transformer
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    original = transformer._detect_is_causal_mask
    torch.backends.mha.set_fastpath_enabled(False)
    # False even if `is_causal` is true: that is a hint on the mask, which is then applied as it is given.
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: False
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)
        transformer._detect_is_causal_mask = original


@contextlib.contextmanager
def _watch_backwards(names: list[str]) -> Iterator[None]:
    """Collect the names of the user's classes of `torch.autograd.Function` that are applied, in a list."""
    original: Any = Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply a class as PyTorch does, and note its name if it is the user's."""
        if not cls.__module__.startswith("torch."):
            names.append(cls.__name__)
        return original.__get__(None, cls)(*args, **kwargs)

    Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Function.apply = original  # type: ignore[method-assign]


def untraceable(error: Exception) -> UnsupportedError:
    """Return the error for a module that cannot be traced, with the innermost line that is not PyTorch's."""
    kind = type(error).__name__
    message_lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = ": ".join([kind, *message_lines[:1]])
    reason = reason.partition(" (unhinted")[0].rstrip(".")  # behind which PyTorch repeats its expression
    if "data-dependent" in str(error).lower() or "GuardOnDataDependent" in kind:
        reason = f"control flow depends on data: {reason}"
    frames = [f'File "{frame.filename}", line {frame.lineno}' for frame in traceback.extract_tb(error.__traceback__)]
    frames += [line for line in message_lines if line.startswith("File ")]  # of a trace that the message quotes
    frames_of_user = [frame for frame in frames if not _is_in_library(frame)]
    hint = f"At {frames_of_user[-1]}." if frames_of_user else ""
    return UnsupportedError("the module cannot be traced", found=reason[:400], hint=hint)


def _is_in_library(frame: str) -> bool:
    """Return whether a line of a trace, `File "…", line 3`, is not in code of the user."""
    return any(f'"{folder}' in frame for folder in _FOLDERS)
