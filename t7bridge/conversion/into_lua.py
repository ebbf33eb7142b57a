"""Write a file of Lua values: a copy, a filled template, the original of a record, or tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from ..errors import FormatError, ModelError, WriteError
from ..formats import LUA
from ..formats.t7.layout import T7Layout
from ..formats.t7.writer import T7Writer
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import walk
from ..io.output import FileOutput, Output
from ..report import Report
from .request import Convert

if TYPE_CHECKING:
    from ..formats.document import Document
    from ..formats.t7.file import T7File
    from ..graph.storage import Storage
    from .request import Convert


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
    from .lua_tree import note_nones, to_lua
    from .records import Hashed, pickle_of, structure_hash, write_pt_record
    from .request import value_of

    value = value_of(document, request, report)
    pickled = pickle_of(value) if request.record else None  # before the tree is there: its writer knows every list
    tree = to_lua(value, nested=request.nested, keep_device=request.keep_device, limits=request.limits)
    del value
    document.forget()
    report.notes += tree.notes
    report.mode = "tree"
    hashed, layout = Hashed(output), T7Layout(**request.layout)
    writer = T7Writer(hashed, layout)
    writer.write_object(tree.value)
    hashed.flush()
    _note_plain_nans(writer, report)
    storages = [found for found in writer.objects if isinstance(found, Storage)]
    report.storages = len(storages)
    report.tensors = sum(isinstance(found, Tensor) for found in writer.objects)
    del writer  # before the record is written: it knows every table
    if pickled is not None:
        structure = hashed.digest.hexdigest() if layout == T7Layout() else structure_hash(tree.value)
        write_pt_record(
            output, *pickled, structure, tree, {id(storage): place for place, storage in enumerate(storages)}
        )
    else:
        note_nones(tree, report)


def _fill_template(document: Document, template: Document, output: Output, request: Convert, report: Report) -> None:
    """Write a template with the weights of a state dict; other content of the source, such as a record, is ignored."""
    from .request import value_of
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
    places, layout = writer.places, writer.layout
    del writer, restored  # the file written is read as a whole again
    check_t7(output, places, layout, document.content, request.limits)
    return True
