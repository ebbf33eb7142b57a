"""Write a file of Python values: with state dicts in place of modules, or as a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..data import define
from ..formats import FORMATS, LUA
from ..graph.lua import TorchObject
from ..io.output import FileOutput
from ..report import Report
from .source_value import note_foreign_names, value_of

if TYPE_CHECKING:
    from ..formats.document import Document
    from ..formats.pt.writer import LegacyPtWriter, PtWriter
    from ..formats.t7.file import T7File
    from ..graph.storage import Storage
    from .request import Convert
    from .state_dicts import StateDicts


def write_python_values(document: Document, output: FileOutput, request: Convert, report: Report) -> None:
    """Write the values of a file as Python values."""
    from ..formats.pt.file import writer as pt_writer

    writer = pt_writer(
        output,
        request.pt_format,
        keep_device=request.keep_device,
        map_location=request.map_location,
        allow_foreign=request.allow_foreign,
        limits=request.limits,
    )
    if document.spec.values != LUA:
        report.mode = "copy"
        value = value_of(document, request, report)
        if request.mode == "auto":
            from .simplified import simplified

            value = simplified(value, report, request.limits, keep_classes=request.allow_foreign)
        _finish_pt(writer, value, report)
        return
    made = python_value(document.content, request, report)
    compact = request.compact and request.mode == "auto" and report.mode != "record"
    value = made.value
    if compact:
        from ..nn.compact import compact_in

        value = compact_in(value)
    if made.modules is not None:
        made.modules.note_rest(value)
    # A state dict leaves out what only Lua needs, so the same bytes cannot be restored.
    whole = request.record and request.pt_format == "zip" and made.modules is None and report.mode != "record"
    if not whole or compact:
        _finish_pt(writer, value, report)
        if made.sources is not None and request.pt_format != "torchscript":  # which has named tensors only
            from .pt_record import check_pt

            check_pt(output, writer, made.sources, document.content, request.limits)
        return
    from .t7_record import encode_record, take_skeleton

    content = document.content
    writer.write(value)
    report.tensors, report.storages = writer.tensors, writer.storages
    skeleton = take_skeleton(content.roots, content.layout, writer.storage_key, content.trailing)
    writer.finish(lambda content_id: encode_record(skeleton, content_id))  # type: ignore[call-arg]


def _finish_pt(writer: PtWriter | LegacyPtWriter, value: Any, report: Report) -> None:
    writer.write(value)
    report.tensors, report.storages = writer.tensors, writer.storages
    if writer.plain or writer.blocking:
        from .pt_values import note_target

        note_target(writer, value, report)
    writer.finish()


@define(eq=False)
class PythonValue:
    """The Python-side value of a `.t7`.

    Attributes:
        value: the value.
        modules: the modules that were replaced by their state dicts; `None` if there are none.
        sources: of a value from a record: for its storages, by identity, those of the `.t7` with their elements.
    """

    value: Any
    modules: StateDicts | None = None
    sources: dict[int, Storage] | None = None


def python_value(content: T7File, request: Convert, report: Report) -> PythonValue:
    """Return the Python-side value of a `.t7`: from its record, with state dicts in place of modules, or as a tree.

    Args:
        content: the file.
        request: of the conversion.
        report: receives the mode and notes.
    """
    if request.record and request.believed and request.mode == "auto" and content.has_pt_record:
        from .pt_record import original_pt

        original = original_pt(content, request.limits)
        if original is not None:
            note_foreign_names(original.foreign, report)
            report.mode = "record"
            return PythonValue(original.value, sources=original.sources)
        report.note(
            "warning", "the .t7 was changed since it was made from a .pt: its record is not used", code="record"
        )
    from .tree import to_python

    # The meaning of layers is not even loaded for a file without objects.
    has_objects = any(isinstance(found, TorchObject) for found in content.objects)
    modules: StateDicts | None = None
    if request.mode == "auto" and has_objects:
        from . import state_dicts

        modules = state_dicts.StateDicts(content.roots, report)
    roots = [to_python(root, modules.replace if modules else None) for root in content.roots]
    target = FORMATS[report.target_format].suffix if report.target_format else "target"
    if len(roots) > 1:
        report.note(
            "warning",
            f"the file holds {len(roots)} values; the {target} holds them as a list",
            code="several-values",
            count=len(roots),
        )
    has_modules = modules is not None and bool(modules.found)
    report.mode = "state dict" if has_modules else "tree"
    if content.trailing and not content.has_pt_record:
        report.note("warning", f"{content.message}; the {target} does not show them", code="trailing")
    return PythonValue(roots if len(roots) > 1 else roots[0], modules if has_modules else None)
