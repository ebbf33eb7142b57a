"""`export`: Lua models for other programs, as ONNX or `.pt2`."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from attrs import asdict, field

from ...conversion.inputs import Inputs, parse_inputs
from ...conversion.options import (
    AT,
    FORCE,
    INDEX_BASE,
    INPUT,
    JSON,
    LIMITS,
    option,
    takes,
    verb,
)
from ...data import define
from ...errors import ModelError, OptionError, WriteError, about_file
from ...io.output import check_replaceable, local_target
from ...io.source import ByteSource, PathLike, inputs_protected
from ...limits import Budget, Limits
from ...report import Printed
from ...tools.inspect import inspect
from ...tools.modules import load_module, one_module

DYNAMIC = ("batch", "height", "width")
"""Names of dimensions that may be dynamic."""
SUFFIXES = (".onnx", ".pt2")
_STEPS_PER_CALL = 2000
"""Steps that tracing one call of a module costs: about 5 ms."""
_CALLS = 700
"""Calls that any model may have besides those of `Limits.work`."""
_BYTES_PER_CALL = 1 << 10
"""Bytes of the file that account for one more."""


@define(frozen=True)
class ExportReport(Printed):
    """The result of an export.

    Attributes:
        source: path of the Lua model.
        target: path of the file written.
        inputs: names of its inputs.
        outputs: names of its outputs.
        difference: largest absolute difference between its outputs and the live module's, for the example inputs.
        runner: the program that ran the file.
        target_bytes: size of the files written.
        files: their names.
    """

    source: str
    target: str
    inputs: list[str]
    outputs: list[str]
    difference: float
    runner: str
    target_bytes: int
    files: list[str] = field(factory=list)

    def lines(self) -> list[str]:
        """Return one line: the file, its inputs and outputs, and how near it is to the live module."""
        return [
            f"{self.target}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}, {self.target_bytes:,} bytes; "
            f"run by {self.runner}, largest difference {self.difference:.2g}"
        ]


@verb
class Export:
    """Export a Lua model as ONNX or a .pt2 archive, checked against the model."""

    COMMON = ("input", "dynamic", "at", "force")
    EXAMPLES = (
        "t7bridge export model.t7 model.onnx --input 1x3x224x224",
        "t7bridge export model.t7 model.pt2 --input 1x3x224x224 --dynamic batch",
    )
    OLD_NAMES: ClassVar = {"path": "source", "dst": "target"}
    source: PathLike = option(".t7 file to read", kw_only=False, metavar="SRC", stdin=True)
    target: PathLike = option("file to write: X.onnx or X.pt2", kw_only=False, metavar="DST")
    input: Inputs = INPUT
    output: Sequence[str] = option(
        "name of an output in ONNX; may be repeated", default=(), flags=("--output-name",), metavar="NAME"
    )
    dynamic: Sequence[str] = option(
        "let dimensions of the inputs have other sizes: batch, or batch,height,width", default=(), metavar="NAMES"
    )
    at: str | None = AT
    index_base: int = INDEX_BASE
    force: bool = FORCE
    json = JSON
    limits: Limits = LIMITS


@takes(Export)
@inputs_protected()
def export(request: Export) -> ExportReport:
    """Export a Lua model as ONNX (`.onnx`) or as a `.pt2` archive of torch.export, by PyTorch's own exporters.

    The file is run immediately, by onnxruntime or by PyTorch, and compared with the live module on seeded inputs of the
    given shapes. A file with different results is deleted.

    Args:
        source: the `.t7` file.
        target: the file to write; its suffix selects the format.
        input: the input, `(1, 3, 224, 224)` or any form of `t7bridge.conversion.inputs`; a list of such texts for a
            model with a table as input.
        output: names for the first outputs of an ONNX file; the others have the exporter's.
        dynamic: the dimensions that may have other sizes: `("batch",)`, the first of every input; `("batch", "height",
            "width")`, the last two of inputs with four or more as well. The file is compared at another size, too.

    Raises:
        FormatError: the file is damaged, or in no supported format.
        ModelError: no input is given, a shape is invalid or does not fit, or the exported model computes something
            else, or fixes a dimension that should be dynamic.
        UnsupportedError: a package is missing, or the exporter refuses a layer; the message names it.
        OptionError: there are names for the outputs of a `.pt2`, which has no place for them.
        TargetExistsError: the file exists and `force` is not set.
    """
    if not request.input:
        raise _no_input(request)
    target = _checked_target(request)
    inputs = parse_inputs(request.input, limits=request.limits)
    dynamic = _dynamic_names(request.dynamic)
    module = load_module(request.source, request.at, index_base=request.index_base, limits=request.limits)
    from .exporters import export_onnx, export_pt2

    with about_file(os.fspath(request.source)), ByteSource.from_path(request.source) as source:
        _check_calls(module, source.size, request.limits)
    with _appearing_together(target, request.force) as (temporary, sizes), about_file(os.fspath(request.source)):
        if _suffix_of(target) == ".onnx":
            result = export_onnx(module, inputs, temporary, request.output, dynamic)
        else:
            result = export_pt2(module, inputs, temporary, dynamic)
    return ExportReport(
        os.fspath(request.source),
        target,
        **asdict(result),
        target_bytes=sum(sizes.values()),
        files=list(sizes),
    )


def _checked_target(request: Export) -> str:
    """Return the path of the file to write, which has the suffix of a format, and may be replaced if it exists.

    Raises:
        ModelError: the suffix is that of no format.
        OptionError: an option does not apply to the format.
        TargetExistsError: the file exists and `force` is not set.
    """
    target = local_target(request.target)
    suffix = _suffix_of(target)
    if suffix not in SUFFIXES:
        raise ModelError("unknown format", file=target, expected=" or ".join(SUFFIXES), found=suffix or "no suffix")
    if request.output and suffix != ".onnx":
        raise OptionError(problems=(("output", f"does not apply to {suffix}: only outputs of ONNX have names"),))
    check_replaceable(os.path.realpath(target), request.force)
    return target


def _suffix_of(path: str) -> str:
    """Return the suffix of a path, `.onnx`; empty without one."""
    return os.path.splitext(path)[1].lower()


def _no_input(request: Export) -> ModelError:
    """Return the error that no input is given, with the shape that the file records, if it does.

    Raises:
        ModelError: the file holds no module, or several, which is the first thing to say.
    """
    one_module(request.source, request.at, request.limits)
    shape_in_file = inspect(request.source, at=request.at, limits=request.limits).header.get("input", "")
    return ModelError(
        "no input is given",
        expected="the shape of the input: --input 1x3x224x224 (input=…)",
        hint=f"The file has {shape_in_file.replace('×', 'x')}." if shape_in_file else "",
    )


def _dynamic_names(dynamic: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the dynamic dimensions, which may be separated by commas.

    Raises:
        ModelError: one is unknown.
    """
    texts = [dynamic] if isinstance(dynamic, str) else dynamic
    names = tuple(dict.fromkeys(name.strip() for text in texts for name in text.split(",")))
    unknown = [name for name in names if name not in DYNAMIC]
    if unknown:
        raise ModelError("a dimension cannot be dynamic", expected=", ".join(DYNAMIC), found=", ".join(unknown))
    return names


@contextmanager
def _appearing_together(target: str, force: bool) -> Iterator[tuple[str, dict[str, int]]]:
    """Provide a path for a file that may have others beside it, and a dict that gets the sizes of all of them by name.

    When the context ends without an error, they get their names, the file that refers to the others last, and the dict
    is filled; otherwise they are removed.

    Args:
        target: the file that is to appear, and whose folder the others appear in.
        force: whether files of the same names are replaced.

    Raises:
        WriteError: the folder cannot be written.
        TargetExistsError: a file is there, and `force` is not set.
    """
    folder = os.path.dirname(os.path.abspath(target))
    try:
        scratch = tempfile.mkdtemp(prefix=".t7bridge-", dir=folder)
    except OSError as error:
        raise WriteError(f"the folder cannot be written: {error.strerror}", file=folder) from error
    try:
        files: dict[str, int] = {}
        # Files of ONNX name the file with the weights that is next to them: all have their final names already.
        name_of_target = os.path.basename(target)
        yield os.path.join(scratch, name_of_target), files
        for name in sorted(os.listdir(scratch), key=lambda name: name == name_of_target):
            files[name] = os.path.getsize(os.path.join(scratch, name))
            check_replaceable(os.path.realpath(os.path.join(folder, name)), force)
        for name in files:
            os.replace(os.path.join(scratch, name), os.path.join(folder, name))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check_calls(module: Any, nbytes: int, limits: Limits) -> None:
    """Charge the call of each module, at each of its places, before the exporter traces them.

    A module without weights takes some 100 bytes of a file and 5 ms of the exporter, so that the size of the file
    bounds them: 1 200 calls, and one more for each KiB. The layers of real models have weights.

    Args:
        module: the live module.
        nbytes: size of its file.
        limits: resource limits.

    Raises:
        LimitError: there are far more calls than the size of the file accounts for.
    """
    free_calls = _CALLS + nbytes // _BYTES_PER_CALL
    budget = Budget(limits, "exporting a model of so many modules", _STEPS_PER_CALL * free_calls)
    for _ in module.named_modules(remove_duplicate=False):
        budget.spend(_STEPS_PER_CALL)
