"""Export of live modules through PyTorch's own exporters, and checks of the result against the module.

The only importer of onnx and onnxruntime.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from attrs import evolve
from torch import nn

from ...data import define
from ...errors import ModelError, UnsupportedError
from ...nn.output_shapes import Example, Examples
from ...torchmodules.build import each_input, example
from ...torchmodules.layers.linear import LookupTableMaskZero
from ...torchmodules.layers.sequence import SeqLSTM, SteppedLSTM

OPSET = 18
"""Version of ONNX's operators (`onnxscript.opset18`): the default of PyTorch 2.13, supported by runtimes since 2023."""
_RTOL = 1e-3
_ATOL = 1e-4
"""Relative and absolute difference allowed between the outputs of a file and of the module, in single precision."""
_ONLY_ERRORS = 3
"""Least severity of what onnxruntime logs."""


@define(eq=False)
class Exported:
    """An exported model.

    Attributes:
        inputs: names of the inputs, in order, those in nested lists as well.
        outputs: names of the outputs, in order.
        difference: largest absolute difference between the outputs of the file and of the live module, both of which
            may be NaN, or the same infinity, at the same places.
        runner: the program that ran the exported file: `onnxruntime 1.31.1`, `torch 2.13.0`.
    """

    inputs: list[str]
    outputs: list[str]
    difference: float
    runner: str


@define(eq=False)
class _Call:
    """A call of the live module, whose outputs those of the file are compared with.

    Attributes:
        arguments: of the module, the inputs, in lists if it takes tables.
        outputs: the tensors that it returned, in order.
    """

    arguments: tuple[Any, ...]
    outputs: list[torch.Tensor]


def export_onnx(
    module: nn.Module, inputs: Examples, path: str, outputs: Sequence[str] = (), dynamic: Sequence[str] = ()
) -> Exported:
    """Write a module as ONNX and compare onnxruntime's outputs with the module's.

    Weights beyond 1.5 GB are written to a file beside `path`, as ONNX files have at most 2 GB.

    Args:
        module: in evaluation mode.
        inputs: the example inputs, in lists if the model takes tables.
        path: the file, which must not exist.
        outputs: names of the outputs; the exporter's names for the rest.
        dynamic: names of the dimensions that may have other sizes: `batch`, `height`, `width`.

    Raises:
        UnsupportedError: onnx, onnxscript or onnxruntime is not installed, or PyTorch's exporter refuses the model;
            the message names the layer.
        ModelError: the module cannot compute the example, has fewer outputs than names, fixes a dimension that should
            be dynamic, or the outputs of the file differ.

    Source: https://docs.pytorch.org/docs/2.13/onnx_export.html.
    """
    onnxruntime, operators = _onnx_packages()
    example = _example_call(module, inputs, dynamic)
    output_count = len(example.outputs)
    if len(outputs) > output_count:
        raise ModelError("there are more names than outputs", expected=f"{output_count}", found=f"{len(outputs)}")
    module_for_onnx = _with_layers_of_onnx(module)
    dynamic_shapes = _dynamic_shapes(example.arguments, dynamic)
    others = _arguments_of_other_images(module_for_onnx, example.arguments, dynamic_shapes, dynamic)
    names = [item.name for item in _flat(inputs)]
    to_onnx = _onnx_exporter(module_for_onnx, names, list(outputs), _translations(operators))
    with _quiet():
        onnx_program = _exported(to_onnx, module_for_onnx, example.arguments, dynamic_shapes)
        _rename_outputs(onnx_program.model.graph, names_of_inputs=names)
        onnx_program.save(path)  # with a second file for weights beyond 1.5 GB
    names_of_outputs, results = _results_of_onnx(onnxruntime, path, names, [example.arguments, *others])
    difference = _checked_difference(module, example, others, results, path)
    return Exported(names, names_of_outputs, difference, f"onnxruntime {onnxruntime.__version__}")


def _onnx_packages() -> tuple[Any, Any]:
    """Return onnxruntime, and onnxscript's operators of version `OPSET`; PyTorch's exporter needs these too.

    Raises:
        UnsupportedError: one of them, or onnx, is not installed.
    """
    try:
        import onnxruntime
        from onnxscript import opset18
    except ImportError as error:
        hint = "pip install onnx onnxscript onnxruntime"
        raise UnsupportedError(f"{error.name} is not installed", hint=hint) from error
    return onnxruntime, opset18


def _arguments_of_other_images(
    module: nn.Module, arguments: tuple[Any, ...], shapes: Any, dynamic: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Return the arguments of a call with other heights and widths that a module takes; none if these are not dynamic.

    With them the exported file is compared with the module a second time.

    Args:
        module: the module.
        arguments: its example arguments.
        shapes: their dynamic dimensions, as torch.export takes them.
        dynamic: the names of these.

    Raises:
        ModelError: it takes no other sizes.
    """
    if _OF_IMAGES.keys().isdisjoint(dynamic):
        return []
    # A program of torch.export checks which sizes it is for; what becomes of it in ONNX does not.
    with _quiet():
        program = _exported(_to_program, module, arguments, shapes)
        return _arguments_of_other_sizes(program, arguments, dynamic)


def _results_of_onnx(
    onnxruntime: Any, path: str, names: list[str], arguments_of_calls: list[tuple[Any, ...]]
) -> tuple[list[str], list[list[torch.Tensor]]]:
    """Return the names of the outputs of an ONNX file, and what onnxruntime computes in each call.

    Args:
        onnxruntime: the package.
        path: of the file.
        names: of the inputs.
        arguments_of_calls: of each call.

    Raises:
        ModelError: onnxruntime cannot run the file.
    """
    try:
        session = _session_of(onnxruntime, path)
        results = [_computed_by_onnx(session, names, arguments) for arguments in arguments_of_calls]
    except Exception as error:  # onnxruntime raises classes of its own, without a common base
        raise ModelError(f"onnxruntime cannot run the exported model: {_first_line(error)}", file=path) from error
    return [output.name for output in session.get_outputs()], results


def _session_of(onnxruntime: Any, path: str) -> Any:
    """Return a session that runs an ONNX file on the CPU, and logs errors alone."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ONLY_ERRORS
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _rename_outputs(graph: Any, names_of_inputs: list[str]) -> None:
    """Rename those outputs of an ONNX graph that have the name of an input, and are another value.

    The exporter gives an output that is an input the name of the argument of `forward`.

    Args:
        graph: the graph, which is changed.
        names_of_inputs: the names of the inputs.
    """
    ids_of_inputs = {id(value) for value in graph.inputs}
    for value in graph.outputs:
        if value.name in names_of_inputs and id(value) not in ids_of_inputs:
            value.name += "_out"


def _computed_by_onnx(session: Any, names: list[str], arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the outputs that onnxruntime computes.

    Args:
        session: of onnxruntime.
        names: of the inputs.
        arguments: of the module, the inputs, in lists if the model takes tables.
    """
    arrays = session.run(None, {name: value.numpy() for name, value in zip(names, _flat(list(arguments)))})
    return [torch.from_numpy(array) for array in arrays]


def _onnx_exporter(
    module: nn.Module, names: list[str], output_names: list[str], table: dict[Any, Callable[..., Any]]
) -> _Exporter:
    """Return a function that exports a module, or a part of it, as ONNX, as `_exported` calls it.

    Args:
        module: the whole.
        names: of its inputs.
        output_names: of its outputs; empty for the exporter's names.
        table: the ONNX nodes of operations that the exporter lacks.
    """

    def to_onnx(part: nn.Module, arguments: tuple[Any, ...], dynamic_shapes: Any) -> Any:
        """Return a module exported as ONNX, for arguments and dynamic shapes in the form of torch.export."""
        # Of a part of the module, which is exported to find what is refused, names do not matter.
        is_whole = part is module
        return torch.onnx.export(
            part,
            arguments,
            dynamo=True,
            opset_version=OPSET,
            input_names=names if is_whole else None,
            output_names=output_names if output_names and is_whole else None,
            dynamic_shapes=dynamic_shapes,
            custom_translation_table=table,
            verbose=False,
        )

    return to_onnx


def export_pt2(module: nn.Module, inputs: Examples, path: str, dynamic: Sequence[str] = ()) -> Exported:
    """Write a module as a `.pt2` archive of torch.export, load it, and compare the outputs.

    Args:
        module: in evaluation mode.
        inputs: the example inputs, in lists if the model takes tables.
        path: the file, which must not exist.
        dynamic: names of the dimensions that may have other sizes: `batch`, `height`, `width`.

    Raises:
        UnsupportedError: torch.export refuses the model; the message names the layer.
        ModelError: the module cannot compute the example, fixes a dimension that should be dynamic, or the outputs of
            the file differ.
    """
    example = _example_call(module, inputs, dynamic)
    with _quiet():
        program = _exported(_to_program, module, example.arguments, _dynamic_shapes(example.arguments, dynamic))
        try:
            torch.export.save(program, path)
            program_of_file = torch.export.load(path)
            results = [_computed_by_program(program_of_file, example.arguments)]
            others = _arguments_of_other_sizes(program_of_file, example.arguments, dynamic)
            results += [_computed_by_program(program_of_file, arguments) for arguments in others]
        except ModelError:  # the program takes no other sizes
            raise
        except Exception as error:  # any exception of PyTorch's writer or reader
            raise ModelError(
                f"PyTorch cannot write and run the exported model: {_first_line(error)}", file=path
            ) from error
    difference = _checked_difference(module, example, others, results, path)
    names_of_outputs = [spec.arg.name for spec in program.graph_signature.output_specs]
    names = [item.name for item in _flat(inputs)]
    return Exported(names, names_of_outputs, difference, f"torch {torch.__version__}")


def _computed_by_program(program: Any, arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the outputs that a program of torch.export computes."""
    with torch.no_grad():
        return _tensors_in(program.module()(*arguments))


def _flat(tree: Any) -> list[Any]:
    """Return what nested lists hold, in order."""
    if not isinstance(tree, list):
        return [tree]
    return [leaf for item in tree for leaf in _flat(item)]


def _with_two_examples(example: Example) -> Example:
    """Return the input with at least two examples: torch.export treats a size of 1 as a constant."""
    if example.shape[0] != 1:
        return example
    shape = (2, *example.shape[1:])
    value = example.value
    if value is not None:
        # The same example twice.
        value = evolve(value, size=shape, stride=(0, *value.stride[1:]))
    return evolve(example, shape=shape, value=value)


def _check_dimensions(inputs: Examples, dynamic: Sequence[str]) -> None:
    """Refuse inputs that do not have the dimensions that are dynamic; see `_example_call`."""
    if "batch" in dynamic and not all(item.shape for item in _flat(inputs)):
        raise ModelError(
            "an input without dimensions has no batch", expected="inputs with one, or no dynamic dimension"
        )
    images = [name for name in dynamic if name in _OF_IMAGES]
    if images and not any(len(item.shape) >= _IMAGE_DIMENSIONS for item in _flat(inputs)):
        raise ModelError(
            f"no input has a {' or '.join(images)}",
            expected="an input of (batch, channels, height, width), or of more dimensions",
        )


def _example_call(module: nn.Module, inputs: Examples, dynamic: Sequence[str]) -> _Call:
    """Return the call of a module with the example inputs.

    Without values or a type that the user states, an input has numbers, or indices if the module accepts no numbers.

    Args:
        module: in evaluation mode.
        inputs: the example inputs.
        dynamic: names of the dimensions that may have other sizes.

    Raises:
        ModelError: the module does not accept the inputs, or these have no such dynamic dimension.
    """
    _check_dimensions(inputs, dynamic)
    if "batch" in dynamic:
        inputs = each_input(_with_two_examples, inputs)
    problem: ModelError | None = None
    for are_indices in (False, True):
        values = example(module, inputs, are_indices)
        # A criterion takes the items of the list as two arguments, other modules take it as one.
        arguments = tuple(values) if _takes_target(module) and isinstance(values, list) else (values,)
        try:
            return _Call(arguments, _computed(module, arguments))
        except ModelError as error:
            # What a module says of numbers, the first, is clearer than what it says of indices.
            if problem is None:
                problem = error
    assert problem is not None
    raise problem


def _takes_target(module: nn.Module) -> bool:
    """Return whether a module is a criterion: input and target are two arguments of its `forward`."""
    second_argument = list(inspect.signature(module.forward).parameters)[1:2]  # empty for one argument
    return second_argument in (["target"], ["targets"])


_OF_IMAGES = {"height": -2, "width": -1}
"""The dimensions of images, from the end."""
_IMAGE_DIMENSIONS = 4
"""Dimensions of a batch of images; of volumes there are five."""


def _dynamic_shapes(arguments: tuple[Any, ...], dynamic: Sequence[str]) -> Any:
    """Return the dynamic dimensions, as torch.export takes them; `None` if all sizes are fixed.

    Inputs with the same number of examples share one batch, others have their own. Heights and widths that the layers
    allow are found by PyTorch: multiples of 8, for example.
    """
    if not dynamic:
        return None
    batches: dict[int, Any] = {}
    """The dynamic dimension for each number of examples; empty if the batch is not dynamic."""
    if "batch" in dynamic:
        for count in dict.fromkeys(len(value) for value in _flat(list(arguments))):
            name = f"batch{len(batches) + 1}" if batches else "batch"
            batches[count] = torch.export.Dim(name)

    def dynamic_dims(value: torch.Tensor) -> dict[int, Any]:
        """Return how each dynamic dimension of an input may vary, by the dimension."""
        dims: dict[int, Any] = {}
        if batches:
            dims[0] = batches[len(value)]
        for dim in _open_dims(value, dynamic):
            dims[dim] = torch.export.Dim.AUTO
        return dims

    return tuple(each_input(dynamic_dims, argument) for argument in arguments)


def _open_dims(value: torch.Tensor, dynamic: Sequence[str]) -> list[int]:
    """Return the dimensions of an input that are a dynamic height or width; none if it is no image."""
    if value.dim() < _IMAGE_DIMENSIONS:
        return []
    return [value.dim() + place for name, place in _OF_IMAGES.items() if name in dynamic]


_INCREASES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 128, 256)
"""Pixels that are added to heights and widths to find other sizes that a program takes."""


def _arguments_of_other_sizes(
    program: Any, arguments: tuple[Any, ...], dynamic: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Return the arguments of a call with other heights and widths that a program takes; none if these are not dynamic.

    Args:
        program: of torch.export.
        arguments: of a call that it takes.
        dynamic: names of the dimensions that may have other sizes.

    Raises:
        ModelError: the program takes no other sizes.
    """
    inputs = _flat(list(arguments))
    if not any(_open_dims(value, dynamic) for value in inputs):
        return []
    module = program.module()
    for increase in _INCREASES:
        enlarge = partial(_enlarged, dynamic=dynamic, increase=increase)
        enlarged = tuple(each_input(enlarge, argument) for argument in arguments)
        try:
            with torch.no_grad():
                module(*enlarged)
        except Exception:  # the program's own checks of its sizes, or a layer's
            continue
        return [enlarged]
    sizes = [f"{value.shape[-2]}x{value.shape[-1]}" for value in inputs if _open_dims(value, dynamic)]
    raise ModelError(
        f"the model fixes the {' and '.join(name for name in dynamic if name in _OF_IMAGES)} of its input",
        found=f"{', '.join(sizes)}, and no other near it",
        hint="A layer after the image, such as a view before a linear one, needs as many elements: --dynamic batch.",
    )


def _enlarged(value: torch.Tensor, dynamic: Sequence[str], increase: int) -> torch.Tensor:
    """Return an input whose dynamic heights and widths are larger, filled with its own rows and columns in turn."""
    for dim in _open_dims(value, dynamic):
        indices = torch.arange(value.shape[dim] + increase) % value.shape[dim]
        value = value.index_select(dim, indices)
    return value


def _computed(module: nn.Module, arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the outputs of the live module.

    Raises:
        ModelError: it does not accept the arguments.
    """
    try:
        with torch.no_grad():
            # Of a copy, as some layers keep a state.
            return _tensors_in(copy.deepcopy(module)(*arguments))
    except Exception as error:  # any exception of a layer for an unsuitable shape
        raise ModelError(
            f"the model cannot compute inputs of these shapes: {_first_line(error)}",
            hint="Give the shape of its input with --input 1x3x224x224 (input=…), one for each input.",
        ) from error


def _tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of an output, in order; numbers are none."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (int, float)):
        return []
    values = value.values() if isinstance(value, Mapping) else value
    return [tensor for item in values for tensor in _tensors_in(item)]


def _checked_difference(
    module: nn.Module,
    example: _Call,
    others: list[tuple[Any, ...]],
    results: list[list[torch.Tensor]],
    path: str,
) -> float:
    """Return the largest difference between the outputs of a file and of the live module, in all calls.

    Args:
        module: the live module.
        example: its call with the example inputs.
        others: the arguments of other calls.
        results: the outputs of the file, first those for the example, then those of the other calls.
        path: of the file.

    Raises:
        ModelError: outputs differ, or the module does not accept the arguments of another call.
    """
    of_example, *of_others = results
    difference = _largest_difference(of_example, example.outputs, path)
    for arguments, computed in zip(others, of_others):
        difference = max(difference, _largest_difference(computed, _computed(module, arguments), path))
    return difference


def _largest_difference(computed: list[torch.Tensor], wanted: list[torch.Tensor], path: str) -> float:
    """Return the largest difference, or refuse outputs that differ from the module's.

    Args:
        computed: the outputs of the file.
        wanted: those of the module.
        path: of the file.

    Raises:
        ModelError: they differ.
    """
    shapes = [tuple(item.shape) for item in computed]
    wanted_shapes = [tuple(item.shape) for item in wanted]
    if shapes != wanted_shapes:
        raise ModelError(
            "the exported model has outputs of other shapes",
            file=path,
            expected=str(wanted_shapes),
            found=str(shapes),
        )
    largest = 0.0
    for one, other in zip(computed, wanted):
        if one.numel():  # nothing has no maximum
            largest = max(largest, _difference(one.double(), other.double(), path))
    return largest


def _difference(computed: torch.Tensor, wanted: torch.Tensor, path: str) -> float:
    """Return the largest difference of two outputs of one shape that have elements; see `_largest_difference`."""
    # NaN minus NaN, and infinity minus infinity, are NaN here, but equal values: that counts as 0.
    largest = float((computed - wanted).abs().nan_to_num().max())
    are_close = torch.isclose(computed, wanted, rtol=_RTOL, atol=_ATOL, equal_nan=True)
    if not are_close.all():
        raise ModelError("the exported model computes something else", file=path, found=f"off by {largest:.3g}")
    return largest


def _to_program(module: nn.Module, arguments: tuple[Any, ...], shapes: Any) -> Any:
    """Return the program of a module, by torch.export."""
    return torch.export.export(module, arguments, dynamic_shapes=shapes)


_Exporter = Callable[[nn.Module, tuple[Any, ...], Any], Any]
"""Exports a module for arguments, with the dynamic shapes of these, or raises any exception."""


def _exported(exporter: _Exporter, module: nn.Module, arguments: tuple[Any, ...], shapes: Any) -> Any:
    """Return the result of an exporter; if it refuses the module, the error names the layer.

    Args:
        exporter: of the file's format.
        module: the module.
        arguments: its arguments.
        shapes: the dynamic shapes of these; `None` if all sizes are fixed.

    Raises:
        UnsupportedError: it refuses the module.
    """
    try:
        with torch.no_grad():  # exporters do not follow in-place layers that record gradients
            return exporter(module, arguments, shapes)
    except Exception as error:  # PyTorch's exporters raise many classes
        layer = _refused(exporter, module, arguments)
        if layer is None:
            raise UnsupportedError(f"PyTorch's exporter refuses the model: {_first_line(error)}") from error
        path, class_name, reason = layer
        raise UnsupportedError(
            f"PyTorch's exporter refuses layer {path} ({class_name}): {_first_line(reason)}", path=path
        ) from error


def _refused(exporter: _Exporter, module: nn.Module, arguments: tuple[Any, ...]) -> tuple[str, str, Exception] | None:
    """Return the first innermost module that cannot be exported alone: path, class and error; `None` if all can be.

    Args:
        exporter: has refused the whole.
        module: the whole.
        arguments: its arguments, by which those of the modules inside are determined.
    """
    for name, part, arguments_of_part in _calls_of_innermost(module, arguments):
        try:
            no_dynamic_shapes = None
            with torch.no_grad():
                exporter(part, arguments_of_part, no_dynamic_shapes)
        except Exception as error:
            return name, type(part).__name__, error
    return None


def _calls_of_innermost(module: nn.Module, arguments: tuple[Any, ...]) -> list[tuple[str, nn.Module, tuple[Any, ...]]]:
    """Return the calls of modules without modules inside, in their order: path, module and arguments.

    If the module fails, the calls up to there.

    Args:
        module: the whole, which is called.
        arguments: its arguments.
    """
    calls: list[tuple[str, nn.Module, tuple[Any, ...]]] = []

    def note(part: nn.Module, arguments_of_part: tuple[Any, ...], name: str) -> None:
        calls.append((name, part, arguments_of_part))

    hooks = []
    for name, part in module.named_modules():
        is_innermost = not list(part.children())
        if part is not module and is_innermost:
            hooks.append(part.register_forward_pre_hook(partial(note, name=name)))
    try:
        with torch.no_grad(), contextlib.suppress(Exception):
            module(*arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' progress and warnings off the terminal: errors are raised."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)


def _first_line(error: Exception) -> str:
    """Return the first line of the message of an error's first cause."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause).strip() or str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


# Operations that the exporter or onnxruntime lacks, expressed in ONNX's own or by other layers.

_INT64 = 7
"""ONNX's number of the type, in `onnx.TensorProto`."""


def _whole_numbers(op: Any, *values: int) -> Any:
    """Return an ONNX node of constant whole numbers."""
    return op.Constant(value_ints=list(values))


def _largest_of_windows(op: Any, image: Any, output_size: Sequence[int]) -> Any:
    """Return the ONNX node of the maximum of each window of an image.

    Args:
        op: onnxscript's operators.
        image: the node of the image, whose last two dimensions, height and width, are numbers.
        output_size: the number of windows in each of these.
    """
    height, width = image.shape[-2:]
    rows_of_windows, windows_of_row = output_size
    rows_of_output = []
    for rows in _windows(height, rows_of_windows):
        maxima = [_largest_of_window(op, image, rows, columns) for columns in _windows(width, windows_of_row)]
        rows_of_output.append(op.Concat(*maxima, axis=-1))
    return op.Concat(*rows_of_output, axis=-2)


def _windows(size: int, count: int) -> list[tuple[int, int]]:
    """Return the first element of each window of a dimension, and the one behind its last.

    Args:
        size: number of elements.
        count: number of windows.
    """
    # As PyTorch, from floor(i·size/n) to ceil((i+1)·size/n); -(-a // b) rounds up.
    return [(index * size // count, -(-(index + 1) * size // count)) for index in range(count)]


def _largest_of_window(op: Any, image: Any, rows: tuple[int, int], columns: tuple[int, int]) -> Any:
    """Return the ONNX node of the maximum of a window, which keeps its two dimensions with an extent of 1.

    Args:
        op: onnxscript's operators.
        image: the node of the image.
        rows: the first row, and the one behind the last.
        columns: likewise.
    """
    first_row, end_row = rows
    first_column, end_column = columns
    starts = _whole_numbers(op, first_row, first_column)
    ends = _whole_numbers(op, end_row, end_column)
    window = op.Slice(image, starts, ends, _whole_numbers(op, -2, -1))
    return op.ReduceMax(window, _whole_numbers(op, -2, -1), keepdims=1)


def _translations(op: Any) -> dict[Any, Callable[..., Any]]:
    """Return the ONNX nodes of operations, for `torch.onnx.export`'s `custom_translation_table`.

    Args:
        op: onnxscript's operators of one version.

    Source: https://onnx.ai/onnx/operators; https://docs.pytorch.org/docs/2.13/onnx_export.html.
    """

    def masked_select(self: Any, mask: Any) -> Any:
        """Keep the elements of a mask, in order: (count of them)."""
        # Both have the shape of the two broadcast, and then one dimension.
        values = op.Reshape(op.Expand(self, op.Shape(mask)), _whole_numbers(op, -1))
        conditions = op.Reshape(op.Expand(mask, op.Shape(self)), _whole_numbers(op, -1))
        return op.Compress(values, conditions)

    def adaptive_max_pool2d(self: Any, output_size: Any) -> Any:
        """Return the maximum of each window, and the second output, its indices, which nothing uses."""
        output = _largest_of_windows(op, self, output_size)
        return output, op.Cast(output, to=_INT64)

    aten = torch.ops.aten
    return {
        aten.masked_select.default: masked_select,
        aten.adaptive_max_pool2d.default: adaptive_max_pool2d,
    }


def _with_layers_of_onnx(module: nn.Module) -> nn.Module:
    """Return a module for evaluation with layers known to ONNX; the module itself is unchanged."""
    if not any(type(part) in _REPLACEMENTS for part in module.modules()):
        return module
    module = copy.deepcopy(module)
    if type(module) in _REPLACEMENTS:
        return _REPLACEMENTS[type(module)](module)
    for owner in list(module.modules()):
        for name, part in list(owner.named_children()):
            if type(part) in _REPLACEMENTS:
                setattr(owner, name, _REPLACEMENTS[type(part)](part))
    return module


def _leaky_relu_of(layer: Any) -> nn.Module:
    """Return a LeakyReLU in place of an RReLU: in evaluation the slope is the mean of the bounds."""
    slope = (layer.lower + layer.upper) / 2
    return nn.LeakyReLU(slope, inplace=layer.inplace).train(layer.training)


def _stepped_lstm_of(layer: Any) -> nn.Module:
    """Return an LSTM that runs step by step in place of one with a projection, which ONNX lacks; others as they are."""
    if not layer.proj_size:
        return layer  # type: ignore[no-any-return]
    stepped: nn.Module = SteppedLSTM(
        layer.input_size,
        layer.hidden_size,
        layer.proj_size,
        layer.batch_first,
        mask_zero="",  # which an LSTM of torch.nn has not
        remember=layer.remember,
        state=layer.state,
    )
    stepped.load_state_dict(layer.state_dict())
    return stepped.to(layer.weight_ih_l0.dtype).train(layer.training)


def _embedding_of(layer: Any) -> nn.Module:
    """Return an embedding in place of a LookupTableMaskZero: row 0 is set to zero once, not by each call."""
    embedding = _EmbeddingOfAnyNumbers(layer.num_embeddings, layer.embedding_dim)
    embedding.weight = nn.Parameter(layer.weight.detach().clone())
    embedding.weight.data[0] = 0
    return embedding.train(layer.training)


class _EmbeddingOfAnyNumbers(nn.Embedding):
    """torch.nn.Embedding whose rows are indexed by numbers of any type, as in Lua."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.long())


_REPLACEMENTS: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.RReLU: _leaky_relu_of,
    SeqLSTM: _stepped_lstm_of,
    LookupTableMaskZero: _embedding_of,
}
"""By the class of a layer, what ONNX has for it."""
