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


@define(eq=False)
class Exported:
    """An exported model.

    Attributes:
        inputs: names of the inputs, in order.
        outputs: names of the outputs, in order.
        difference: largest absolute difference between the outputs of the file and of the live module; NaN only
            if one of them is NaN.
        runner: the program that ran the exported file: `onnxruntime 1.31.1`, `torch 2.13.0`.
    """

    inputs: list[str]
    outputs: list[str]
    difference: float
    runner: str


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
        dynamic: `batch` if the first dimension of every input may have any size.

    Raises:
        UnsupportedError: onnx, onnxscript or onnxruntime is not installed, or PyTorch's exporter refuses the model;
            the message names the layer.
        ModelError: the module cannot compute the example, or the outputs of the file differ.

    Source: https://docs.pytorch.org/docs/2.13/onnx_export.html.
    """
    try:
        import onnxruntime
        from onnxscript import opset18  # PyTorch's exporter needs it too
    except ImportError as error:
        hint = "pip install onnx onnxscript onnxruntime"
        raise UnsupportedError(f"{error.name} is not installed", hint=hint) from error
    values, arguments, wanted = _prepared(module, inputs, dynamic)
    module = _replaced(module)
    table = _translations(opset18)
    names = [each.name for each in _flat(inputs)]
    with _quiet():
        program = _exported(
            lambda part, args, shapes: torch.onnx.export(
                part,
                args,
                dynamo=True,
                opset_version=OPSET,
                input_names=names if part is module else None,
                output_names=list(outputs) if outputs and part is module else None,
                dynamic_shapes=shapes,
                custom_translation_table=table,
                verbose=False,
            ),
            module,
            arguments,
            _shapes(arguments, dynamic),
        )
        entering = {id(value) for value in program.model.graph.inputs}
        for value in program.model.graph.outputs:
            # The exporter gives an output that is an input the name of the argument of `forward`.
            if value.name in names and id(value) not in entering:
                value.name += "_out"
        program.save(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        found = session.run(None, {name: value.numpy() for name, value in zip(names, _flat(values))})
    except Exception as error:  # onnxruntime raises classes of its own, without a common base
        raise ModelError(f"onnxruntime cannot run the exported model: {_first_line(error)}", file=path) from error
    difference = _difference([torch.from_numpy(each) for each in found], wanted, path)
    made = [each.name for each in session.get_outputs()]
    return Exported(names, made, difference, f"onnxruntime {onnxruntime.__version__}")


def export_pt2(module: nn.Module, inputs: Examples, path: str, dynamic: Sequence[str] = ()) -> Exported:
    """Write a module as a `.pt2` archive of torch.export, load it, and compare the outputs.

    Args:
        module: in evaluation mode.
        inputs: the example inputs, in lists if the model takes tables.
        path: the file, which must not exist.
        dynamic: `batch` if the first dimension of every input may have any size.

    Raises:
        UnsupportedError: torch.export refuses the model; the message names the layer.
        ModelError: the module cannot compute the example, or the outputs of the file differ.
    """
    _, arguments, wanted = _prepared(module, inputs, dynamic)
    with _quiet():
        program = _exported(
            lambda part, args, shapes: torch.export.export(part, args, dynamic_shapes=shapes),
            module,
            arguments,
            _shapes(arguments, dynamic),
        )
        try:
            torch.export.save(program, path)
            again = torch.export.load(path)
            with torch.no_grad():
                found = again.module()(*arguments)
        except Exception as error:  # any exception of PyTorch's writer or reader
            raise ModelError(
                f"PyTorch cannot write and run the exported model: {_first_line(error)}", file=path
            ) from error
    difference = _difference(_leaves(found), wanted, path)
    names = [spec.arg.name for spec in program.graph_signature.output_specs]
    return Exported([each.name for each in _flat(inputs)], names, difference, f"torch {torch.__version__}")


def _flat(tree: Any) -> list[Any]:
    return [leaf for each in tree for leaf in _flat(each)] if isinstance(tree, list) else [tree]


def _two(example: Example) -> Example:
    """Return the input with at least two examples: torch.export treats a size of 1 as a constant."""
    if example.shape[0] != 1:
        return example
    shape, value = (2, *example.shape[1:]), example.value
    if value is not None:
        value = evolve(value, size=shape, stride=(0, *value.stride[1:]))
    return evolve(example, shape=shape, value=value)


def _prepared(
    module: nn.Module, inputs: Examples, dynamic: Sequence[str]
) -> tuple[Any, tuple[Any, ...], list[torch.Tensor]]:
    """Return the example inputs, the corresponding arguments of the module, and its outputs."""
    unknown = set(dynamic) - {"batch"}
    if unknown:
        raise ModelError("a dimension cannot be dynamic", found=", ".join(sorted(unknown)), expected="batch")
    if dynamic and not all(each.shape for each in _flat(inputs)):
        raise ModelError(
            "an input without dimensions has no batch", expected="inputs with one, or no dynamic dimension"
        )
    if dynamic:
        inputs = each_input(_two, inputs)
    failed: ModelError | None = None
    for indices in (False, True):
        values = example(module, inputs, indices)
        arguments = tuple(values) if _takes_target(module) and isinstance(values, list) else (values,)
        try:
            return values, arguments, _computed(module, arguments)
        except ModelError as error:
            failed = failed or error
    assert failed is not None
    raise failed


def _takes_target(module: nn.Module) -> bool:
    """Return whether a module is a criterion: input and target are two arguments of its `forward`."""
    return list(inspect.signature(module.forward).parameters)[1:2] in (["target"], ["targets"])


def _shapes(arguments: tuple[Any, ...], dynamic: Sequence[str]) -> Any:
    """Return the dynamic dimensions: inputs with the same number of examples share one batch, others have their own."""
    if not dynamic:
        return None
    batches: dict[int, Any] = {}
    for value in _flat(list(arguments)):
        count = len(batches)
        batches.setdefault(len(value), torch.export.Dim(f"batch{count + 1}" if count else "batch"))
    return tuple(each_input(lambda value: {0: batches[len(value)]}, each) for each in arguments)


def _computed(module: nn.Module, arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the outputs of the live module."""
    try:
        with torch.no_grad():
            return _leaves(copy.deepcopy(module)(*arguments))
    except Exception as error:  # any exception of a layer for an unsuitable shape
        raise ModelError(
            f"the model cannot compute inputs of these shapes: {_first_line(error)}",
            hint="Give the shape of its input with --input 1x3x224x224 (input=…), one for each input.",
        ) from error


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, Mapping) else value
    return [leaf for each in values for leaf in _leaves(each)] if not isinstance(value, (int, float)) else []


def _difference(found: list[torch.Tensor], wanted: list[torch.Tensor], path: str) -> float:
    """Return the largest difference, or refuse outputs that differ from the module's."""
    shapes = [[tuple(each.shape) for each in outputs] for outputs in (found, wanted)]
    if shapes[0] != shapes[1]:
        raise ModelError(
            "the exported model has outputs of other shapes", file=path, expected=str(shapes[1]), found=str(shapes[0])
        )
    largest = 0.0
    for mine, theirs in zip(found, wanted):
        if not mine.numel():
            continue
        distance = (mine.double() - theirs.double()).abs()
        same = torch.isclose(mine.double(), theirs.double(), rtol=1e-3, atol=1e-4, equal_nan=True)
        if not same.all():
            raise ModelError(
                "the exported model computes something else",
                file=path,
                found=f"off by {distance.nan_to_num().max():.3g}",
            )
        largest = max(largest, float(distance.nan_to_num().max()))
    return largest


def _exported(exporter: Any, module: nn.Module, arguments: tuple[Any, ...], shapes: Any) -> Any:
    try:
        with torch.no_grad():  # exporters do not follow in-place layers that record gradients
            return exporter(module, arguments, shapes)
    except Exception as error:  # PyTorch's exporters raise many classes
        layer = _refused(exporter, module, arguments)
        where = f"layer {layer[0]} ({layer[1]})" if layer else "the model"
        raise UnsupportedError(
            f"PyTorch's exporter refuses {where}: {_first_line(layer[2] if layer else error)}",
            path=layer[0] if layer else "",
        ) from error


def _refused(exporter: Any, module: nn.Module, arguments: tuple[Any, ...]) -> tuple[str, str, Exception] | None:
    """Return the first innermost module that cannot be exported alone: path, class and error."""
    calls: list[tuple[str, nn.Module, tuple[Any, ...]]] = []
    hooks = [
        part.register_forward_pre_hook(lambda part, args, name=name: calls.append((name, part, args)))
        for name, part in module.named_modules()
        if name and not list(part.children())
    ]
    try:
        with torch.no_grad(), contextlib.suppress(Exception):
            module(*arguments)
    finally:
        for hook in hooks:
            hook.remove()
    for name, part, args in calls:
        try:
            with torch.no_grad():
                exporter(part, args, None)
        except Exception as error:
            return name, type(part).__name__, error
    return None


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
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause).strip() or str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


# Operations that the exporter or onnxruntime lacks, expressed in ONNX's own or by other layers.

_INT64 = 7
"""ONNX's number of the type, in `onnx.TensorProto`."""


def _translations(op: Any) -> dict[Any, Callable[..., Any]]:
    """Return the ONNX nodes of operations, for `torch.onnx.export`'s `custom_translation_table`.

    Args:
        op: onnxscript's operators of one version.

    Source: https://onnx.ai/onnx/operators; https://docs.pytorch.org/docs/2.13/onnx_export.html.
    """

    def ints(*values: int) -> Any:
        return op.Constant(value_ints=list(values))

    def masked_select(self: Any, mask: Any) -> Any:
        """Keep the elements of a mask, in order: (count of them)."""
        flat = [
            op.Reshape(op.Expand(value, op.Shape(other)), ints(-1)) for value, other in ((self, mask), (mask, self))
        ]
        return op.Compress(*flat)

    def adaptive_max_pool2d(self: Any, output_size: Any) -> Any:
        """Return the maximum of each window; window i of n from floor(i·size/n) to ceil((i+1)·size/n)."""
        windows = [
            [(index * size // count, -(-(index + 1) * size // count)) for index in range(count)]
            for size, count in zip(self.shape[-2:], output_size)
        ]

        def window(rows: tuple[int, int], columns: tuple[int, int]) -> Any:
            part = op.Slice(self, ints(rows[0], columns[0]), ints(rows[1], columns[1]), ints(-2, -1))
            return op.ReduceMax(part, ints(-2, -1), keepdims=1)

        made = [op.Concat(*(window(rows, columns) for columns in windows[1]), axis=-1) for rows in windows[0]]
        output = op.Concat(*made, axis=-2)
        return output, op.Cast(output, to=_INT64)  # the indices, the second output, are unused

    aten = torch.ops.aten
    return {
        aten.masked_select.default: masked_select,
        aten.adaptive_max_pool2d.default: adaptive_max_pool2d,
    }


def _replaced(module: nn.Module) -> nn.Module:
    """Return a module for evaluation with layers known to ONNX; the module itself is unchanged."""
    if not any(type(part) in _LAYERS for part in module.modules()):
        return module
    module = copy.deepcopy(module)
    if type(module) in _LAYERS:
        return _LAYERS[type(module)](module)
    for owner in list(module.modules()):
        for name, part in list(owner.named_children()):
            if type(part) in _LAYERS:
                setattr(owner, name, _LAYERS[type(part)](part))
    return module


def _leaky(layer: Any) -> nn.Module:
    """Replace RReLU: in evaluation the slope is the mean of the bounds."""
    return nn.LeakyReLU((layer.lower + layer.upper) / 2, inplace=layer.inplace).train(layer.training)


def _stepped(layer: Any) -> nn.Module:
    """Replace projected LSTMs, which ONNX lacks, by steps."""
    if not layer.proj_size:
        return layer  # type: ignore[no-any-return]
    made: nn.Module = SteppedLSTM(
        layer.input_size, layer.hidden_size, layer.proj_size, layer.batch_first, "", layer.remember, layer.state
    )
    made.load_state_dict(layer.state_dict())
    made.to(layer.weight_ih_l0.dtype).train(layer.training)
    return made


def _with_zeros(layer: Any) -> nn.Module:
    """Replace LookupTableMaskZero: row 0 is set to zero once, not by each call."""
    made = _Rows(layer.num_embeddings, layer.embedding_dim)
    made.weight = nn.Parameter(layer.weight.detach().clone())
    made.weight.data[0] = 0
    return made.train(layer.training)


class _Rows(nn.Embedding):
    """torch.nn.Embedding whose rows are indexed by numbers of any type."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.long())


_LAYERS: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.RReLU: _leaky,
    SeqLSTM: _stepped,
    LookupTableMaskZero: _with_zeros,
}
