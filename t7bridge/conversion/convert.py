"""`convert`: the one place where a format meets a mapping.

It asks what a format can hold, never which one it is: Lua values, Python values, or named tensors; each has a module
here. Only the records, each stored in files of one kind to restore another, know `.t7` and `.pt`.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING

from attrs import evolve

from .. import formats
from ..data import collector_paused
from ..errors import ModelError, RecordError, about_file
from ..formats import LUA, NAMED, FormatSpec
from ..graph.walk import Path
from ..io.output import FileOutput
from ..io.source import inputs_protected
from ..report import Report, check_strict
from .options import takes
from .request import Convert, note_ignored

if TYPE_CHECKING:
    from ..formats.document import Document


@takes(Convert)
@inputs_protected()
def convert(request: Convert) -> Report:
    """Convert a file of any format to any other, or a `.t7` to another encoding.

    Weights go from file to file without being loaded, whatever the formats.

    Args:
        source: the file to read; its format is detected by content.
        target: the file to write; its suffix selects the format.
        mode: how nn modules of a `.t7` are converted: `auto` replaces each module by its state dict with PyTorch's
            names, `tree` by a dict that keeps class, version and every field.
        to: the name of the format to write, one of those of `--to`, regardless of the suffix.
        encoding: of the `.t7` written: `binary` or `ascii`; that of the source by default.
        byte_order: of the `.t7` written: `little` or `big`.
        long_size: of the `.t7` written: bytes of a C long, 4 or 8.
        keep_device: keep CUDA tensors on `cuda:0` in a `.pt`, and of Cuda classes in a `.t7` made from a
            `.pt`; otherwise they are on the CPU.
        map_location: the device of tensors in a `.pt`: one for all (`"cuda:1"`), `"cuda:0=cuda:1,ipu=cpu"` or the same
            as a mapping, or a function of the name in the source. Devices not covered are treated as without it.
        record: write the round-trip record, from which the source can be restored, into the target, and use that of the
            source.
        nested: write `t.conv1.weight` instead of `t["conv1.weight"]` in a `.t7` made from another format.
        pt_format: of the `.pt` written: `zip`, `legacy` for PyTorch 0.2 to 1.5, or `torchscript` for `torch.jit.load`
            and C++, which holds named tensors only.
        template: for a `.t7` made from another format: the `.t7` whose models receive the state dicts of the source,
            under the keys that `auto` mode assigns. Everything else, including its encoding, is copied from it.
        partial: allow missing and extra keys in the state dict.
        at: the path of the part to convert, as `inspect` and the notes show it, `root.model`; the target holds nothing
            else, and no records are used.
        compact: write to a `.pt` made in `auto` mode only the part of each storage that tensors use: views become
            tensors of their own; overlapping and tied tensors stay so. The record is omitted.
        strict: fail if the target would hold less than the source: an element type that it does not have, lost
            precision, lost sharing, or anything else that would be a warning in the report.
        sync: return only when the target is on the disk, so that it survives a power cut; a target that replaces a file
            always is.
        allow_foreign: name classes and functions of other packages in a `.pt` as the source does; otherwise objects of
            such classes become plain data that names the class.

    Returns:
        The report, with notes for the user. A format that holds named tensors only receives those; the notes name the
        rest.

    Raises:
        FormatError: the source is damaged, or in no supported format.
        ModelError: the state dict does not fit the template; the message lists every key that does not.
        TargetExistsError: the target exists and `force` is not set, or it is the source or the template.
        WriteError: the target cannot hold the value, or the disk refuses; no file is left behind.
        StrictError: with `strict`: the target would hold less; the error lists all notes.
    """
    if request.classes is not None:
        from ..nn.registry import load_classes

        load_classes(request.classes)
    goal = formats.format_for(request.target, request.to)
    template, limits = request.template, request.limits
    if request.partial and template is None:
        raise ModelError("partial requires a template", expected="template=…")
    with (
        formats.open(request.source, limits=limits) as document,
        nullcontext() if template is None else formats.open(template, limits=limits) as model,
        about_file(document.path),
    ):
        request.model = model
        if request.at is not None:
            document.narrow(Path.parse(request.at).get(document.value))
            request.record = False
        if model is not None and (document.spec.values == LUA or goal.values != LUA):
            raise ModelError(
                "a template requires a conversion from .pt to .t7",
                expected="from pt to t7",
                found=f"from {document.format} to {goal.name}",
            )
        with FileOutput(request.target, force=request.force, sync=request.sync) as output, collector_paused():
            name = str(request.target)
            report = Report(document.path, name, document.format, goal.name, source_bytes=document.source.size)
            note_ignored(request, report)
            try:
                _write(document, output, goal, request, report)
            except RecordError as error:
                output.restart()
                report = evolve(report, mode="", notes=[])
                note_ignored(request, report)
                request.believed = False
                _write(document, output, goal, request, report)
                if not any(note.code == "record" for note in report.notes):
                    report.note("warning", f"{error.message}: its record is not used", code="record")
            check_strict(report, request.strict)
        report.target_bytes = os.path.getsize(output.path)
    return report


def _write(document: Document, output: FileOutput, goal: FormatSpec, request: Convert, report: Report) -> None:
    """Write the values of a file in a format.

    Raises:
        RecordError: a record in the source contradicts what the source shows; the output is not usable.
    """
    if goal.values == LUA:
        from .into_lua import write_lua_values

        write_lua_values(document, output, request, report)
        return
    from .targets import write_named_tensors, write_python_values

    if goal.values == NAMED:
        write_named_tensors(document, output, goal, request, report)
    else:
        write_python_values(document, output, request, report)
