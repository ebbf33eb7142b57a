"""The three kinds of targets: files of Python values, of named tensors, and of Lua values.

Python values have state dicts in place of modules, or are a tree; of named tensors the rest is noted; Lua values are a
copy, a filled template, the original of a record, or tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve

from ..data import define
from ..errors import FormatError, ModelError, RecordError, WriteError
from ..formats import FORMATS, LUA, FormatSpec, home
from ..formats import open as open_document
from ..formats.t7.writer import T7Writer
from ..graph.lua import TorchObject
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..io.output import FileOutput, Output
from ..limits import Limits
from ..report import Report
from .named_tensors import name_tensors
from .request import Convert, note_foreign_names, value_of
from .state_dicts import note_texts

if TYPE_CHECKING:
    from ..formats.document import Document
    from ..formats.named import NamedTensors
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
        from ..nn.named import compact_in

        value = compact_in(value)
    if made.modules is not None:
        made.modules.note_rest(value)
    # A state dict leaves out what only Lua needs, so the same bytes cannot be restored.
    whole = request.record and request.pt_format == "zip" and made.modules is None and report.mode != "record"
    if not whole or compact:
        _finish_pt(writer, value, report)
        if made.sources is not None and request.pt_format != "torchscript":  # which has named tensors only
            from .records import check_pt

            check_pt(output, writer, made.sources, document.content, request.limits)
        return
    from .records import encode_record, take_skeleton

    content = document.content
    writer.write(value)
    report.tensors, report.storages = writer.tensors, writer.storages
    skeleton = take_skeleton(content.roots, content.layout, writer.storage_key, content.trailing)
    writer.finish(lambda content_id: encode_record(skeleton, content_id))  # type: ignore[call-arg]


def _finish_pt(writer: PtWriter | LegacyPtWriter, value: Any, report: Report) -> None:
    writer.write(value)
    report.tensors, report.storages = writer.tensors, writer.storages
    if writer.plain or writer.blocking:
        from .request import note_target

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
        from .records import original_pt

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


def write_named_tensors(
    document: Document, output: FileOutput, goal: FormatSpec, request: Convert, report: Report
) -> None:
    """Write the tensors of a file under names."""
    named = named_value(document, goal, request, report)
    report.mode = "tensors"
    written = home(goal.name).write(output, named)
    report.tensors, report.storages = written.tensors, written.storages
    note_texts(written, named, goal, report)


def named_value(document: Document, goal: FormatSpec, request: Convert, report: Report) -> NamedTensors:
    """Return the tensors of a file as a format of named tensors receives them, with notes about the rest."""
    return name_tensors(plain_value(document, request, report), goal, report, document.metadata, request.limits)


def plain_value(document: Document, request: Convert, report: Report, *, with_data: bool = True) -> Any:
    """Return the value of a file as builtins with tensors in them, with notes about the rest.

    Args:
        document: the file.
        request: of the conversion.
        report: receives the notes.
        with_data: whether the tables of data of a module that is the whole value are in its state dict.
    """
    if document.spec.values == LUA:
        made = python_value(document.content, request, report)
        if made.modules is not None:
            value = made.modules.with_data(made.value) if with_data else made.value
            made.modules.note_rest(value)
            return value
        return made.value
    from .simplified import simplified

    return simplified(value_of(document, request, report), report, request.limits, with_data=with_data)


def differences(source: str, target: str, limits: Limits) -> list[str]:
    """Return the differences between an input and its output, as read by the format's own library.

    Args:
        source: the input.
        target: a file made from it, in a format of named tensors.
        limits: resource limits for both.

    Raises:
        UnsupportedError: the library is not installed.
    """
    with open_document(target, limits=limits) as written, open_document(source, limits=limits) as document:
        for believed in (True, False):
            report = Report(document.path, target, document.format, written.format)
            request = Convert(source, target, limits=limits)
            request.believed = believed
            named = named_value(document, written.spec, request, report)
            try:
                found: list[str] = home(written.format).differences(target, named)
                break
            except RecordError:
                if not believed:
                    raise
        return found


def write_lua_values(document: Document, output: FileOutput, request: Convert, report: Report) -> None:
    """Write the values of a file as Lua values."""
    if document.spec.values == LUA:
        report.tensors, report.storages = document.content.tensors, document.content.storages
        _copy_t7(document.content, output, request, report)
    elif request.model is not None:
        _fill_template(document, request.model, output, request, report)
    elif not (
        request.record and request.believed and not request.nested and _restore_t7(document, output, request, report)
    ):
        _write_tables(document, output, request, report)


def _copy_t7(content: T7File, output: Output, request: Convert, report: Report) -> T7Writer:
    report.mode = "copy"
    layout = evolve(content.layout, **request.layout)
    if request.layout and layout.vintage:
        from ..graph.walk import walk

        report.note(
            "info", f"the objects of {layout.vintage} are written as today's Lua Torch reads them", code="vintage"
        )
        layout = evolve(layout, vintage="", headless=False, unowned=())
        for visit in walk(content.roots):
            if isinstance(visit.value, (Tensor, Storage)):
                visit.value.alias = None
    writer = T7Writer(output, layout)
    for root in content.roots:
        writer.write_object(root)
    _note_plain_nans(writer, report)
    if content.has_pt_record:
        if request.record:
            output.write(content.trailing)
    elif content.trailing:
        if layout != content.layout:
            raise WriteError(
                f"{len(content.trailing)} bytes after the last value are not a value, and cannot be re-encoded",
                file=report.source,
                hint="Convert without changing encoding, byte order or size of long.",
            )
        output.write(content.trailing)
        report.note("warning", f"{content.message}; they are copied", code="trailing")
    return writer


def _note_plain_nans(writer: T7Writer, report: Report) -> None:
    if writer.plain_nans:
        what = f"{writer.plain_nans} NaNs have bits that text cannot express"
        report.note(
            "info", f"{what}; they are written as nan", loss="precision", code="precision", count=writer.plain_nans
        )


def _write_tables(document: Document, output: Output, request: Convert, report: Report) -> None:
    """Write Python values as Lua tables, with the record that restores them."""
    from ..formats.t7.layout import T7Layout
    from .lua_tree import note_nones, to_lua
    from .records import write_pt_record

    value = value_of(document, request, report)
    tree = to_lua(value, nested=request.nested, keep_device=request.keep_device, limits=request.limits)
    report.notes += tree.notes
    report.mode = "tree"
    writer = T7Writer(output, T7Layout(**request.layout))
    writer.write_object(tree.value)
    _note_plain_nans(writer, report)
    storages = [found for found in writer.objects if isinstance(found, Storage)]
    report.storages = len(storages)
    report.tensors = sum(isinstance(found, Tensor) for found in writer.objects)
    if request.record:
        write_pt_record(output, value, tree, {id(storage): place for place, storage in enumerate(storages)})
    else:
        note_nones(tree, report)


def _fill_template(document: Document, template: Document, output: Output, request: Convert, report: Report) -> None:
    """Write a template with the weights of a state dict; other content of the source, such as a record, is ignored."""
    from .template import fill_template

    if template.spec.values != LUA:
        raise FormatError("is not a .t7, which a template must be", file=template.path)
    content = template.content
    if content.message:
        report.note("warning", f"of the template, {content.message}", code="trailing")
    value = value_of(document, request, report)
    try:
        report.notes += fill_template(content.roots, value, request.partial)
    except ModelError as error:
        error.file = error.file or report.source
        raise
    report.tensors, report.storages = content.tensors, content.storages
    _copy_t7(content, output, request, report)
    report.mode = "template"


def _restore_t7(document: Document, output: FileOutput, request: Convert, report: Report) -> bool:
    """Write the `.t7` that a `.pt` was made from, unless there was none or the `.pt` was changed since."""
    if document.format != "pt":
        return False
    from .records import check_t7, original_t7

    restored, has_record = original_t7(document.content, request.limits)
    if restored is None:
        if has_record:
            report.note(
                "warning", "the .pt was changed since it was made from a .t7: its record is not used", code="record"
            )
        return False
    report.tensors, report.storages = restored.tensors, restored.storages
    writer = _copy_t7(restored, output, request, report)
    report.mode = "record"
    check_t7(output, writer, document.content, request.limits)
    return True
