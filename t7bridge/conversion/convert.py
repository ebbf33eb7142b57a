"""One file to another: the one place where a format meets a mapping."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from attrs import evolve

from ..errors import FormatError, ModelError, WriteError
from ..formats.t7.file import T7File, read_t7, source_format, target_format
from ..formats.t7.layout import T7Layout
from ..formats.t7.writer import T7Writer
from ..graph.lua import COMPOSITE, TorchObject, Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..graph.walk import walk
from ..io.output import FileOutput, Output
from ..io.source import ByteSource, PathLike
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Report
from .options import Options, check_choices, note_ignored
from .strictness import check_strict

if TYPE_CHECKING:
    from ..formats.pt.legacy_writer import LegacyPtWriter
    from ..formats.pt.reader import PtReader
    from ..formats.pt.writer import PtWriter
    from ..nn.weights.state_dict import StateDict


def convert(
    src: PathLike,
    dst: PathLike,
    as_: str = "auto",
    *,
    to: str | None = None,
    force: bool = False,
    encoding: str | None = None,
    byte_order: str | None = None,
    long_size: int | None = None,
    keep_device: bool = False,
    record: bool = True,
    nested: bool = False,
    pt_format: str = "zip",
    template: PathLike | None = None,
    partial: bool = False,
    compact: bool = False,
    strict: bool = False,
    sync: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Report:
    """Convert a `.t7` or `.pt` file to the other format, or a `.t7` to another encoding.

    Args:
        src: the file to read; its format is told by its content.
        dst: the file to write; its format is told by its suffix.
        as_: what becomes of nn modules on the way to `.pt`: `auto` gives each module's state dict under PyTorch's
            names in its place, `tree` a dict that keeps class, version and every field.
        to: the format to write, `t7` or `pt`, whatever the suffix.
        force: whether an existing file is replaced.
        encoding: of a `.t7` that is written: `binary` or `ascii`; that of the source where not stated.
        byte_order: likewise: `little` or `big`.
        long_size: likewise: bytes of a C long, 4 or 8.
        keep_device: whether CUDA tensors stay on `cuda:0` in a `.pt`, and of Cuda classes in a `.t7` made from a
            `.pt`; otherwise they are on the CPU.
        record: whether the target gets the record from which the source can be made again, and whether the record
            of a source is used.
        nested: whether a `.t7` made from a `.pt` has `t.conv1.weight` instead of `t["conv1.weight"]`.
        pt_format: of a `.pt` that is written: `zip`, `legacy` for PyTorch 0.2 to 1.5, or
            `torchscript` for `torch.jit.load` and C++, which holds named tensors only.
        template: of a `.t7` made from a `.pt`: the `.t7` whose models get the state dicts of the `.pt`, under the keys
            that `auto` mode gives them. All else, its encoding too, is taken from it; the file stays as it is.
        partial: whether a state dict may lack keys of the template, and have keys that the template does not.
        compact: whether a `.pt` made in `auto` mode gets of each storage only what tensors use: views become tensors of
            their own, and what overlaps or is tied stays so. The record is left out then.
        strict: whether it is an error if the target holds less than the source: a type that it does not have, numbers
            that lose precision, memory that is shared no more, or anything else of which the report would warn.
        sync: whether to return only when the target is on the disk, so that it survives a power cut; one that replaces
            a file always is by then.
        limits: what the source may cost.

    Returns:
        What was done, and what the user should know about it.

    Raises:
        FormatError: the source is damaged, or is something else.
        ModelError: the state dict does not fit the template; the message lists every key that does not.
        TargetExistsError: the target exists and `force` is not set, or it is the source or the template.
        WriteError: the target cannot hold the value, or the disk refuses; no file is left behind.
        StrictError: with `strict`: the target would hold less; the error has all the notes.
    """
    layout = {"encoding": encoding, "byte_order": byte_order, "long_size": long_size}
    check_choices({"mode": as_, "format": to, ".pt format": pt_format, **layout})
    goal = to or target_format(dst)
    chosen = {name: choice for name, choice in layout.items() if choice is not None}
    if partial and template is None:
        raise ModelError("partial says how a template is filled, and there is none", expected="template=…")
    with (
        ByteSource.from_path(src) as source,
        nullcontext() if template is None else ByteSource.from_path(template) as model,
    ):
        options = Options(as_, chosen, keep_device, record, nested, pt_format, limits, model, partial, compact)
        report = Report(source.name, str(dst), source_format(source), goal, source_bytes=source.size)
        if model is not None and (report.source_format, goal) != ("pt", "t7"):
            raise ModelError(
                "a template is filled with a .pt to make a .t7",
                expected="from pt to t7",
                found=f"from {report.source_format} to {goal}",
            )
        note_ignored(options, report)
        inputs = (source,) if model is None else (source, model)
        with FileOutput(dst, force=force, inputs=inputs, sync=sync) as output:
            if report.source_format == "pt":
                (_pt_to_t7 if goal == "t7" else _pt_to_pt)(source, output, options, report)
            else:
                content = read_t7(source, limits)
                report.tensors, report.storages = content.tensors, content.storages
                (_copy_t7 if goal == "t7" else _t7_to_pt)(content, output, options, report)
            check_strict(report, strict)
        report.target_bytes = output.position
    return report


def write_t7(output: Output, value: Value, layout: T7Layout) -> None:
    """Write a Lua value, or a Python-side one as Lua tables, as a `.t7`."""
    if not isinstance(value, (*COMPOSITE, type(None), bool, float, bytes)):
        from .lua_tree import to_lua

        value = to_lua(value).value
    T7Writer(output, layout).write_object(value)


def write_pt(output: Output, value: Any) -> None:
    """Write a value as a `.pt`; a Lua value in `tree` mode."""
    from ..formats.pt.writer import PtWriter
    from .tree import to_python

    writer = PtWriter(output)
    writer.write(to_python(value) if isinstance(value, COMPOSITE) else value)
    writer.finish()


def _copy_t7(content: T7File, output: Output, options: Options, report: Report) -> None:
    report.mode = "copy"
    layout = evolve(content.layout, **options.layout)
    if options.layout and layout.vintage:
        report.note("info", f"the objects of {layout.vintage} are written as today's Lua Torch reads them")
        layout = evolve(layout, vintage="", headless=False, unowned=())
        for visit in walk(content.roots):
            if isinstance(visit.value, (Tensor, Storage)):
                visit.value.alias = None
    writer = T7Writer(output, layout)
    for root in content.roots:
        writer.write_object(root)
    _note_plain_nans(writer, report)
    if content.has_pt_record:
        if options.record:
            output.write(content.trailing)
    elif content.trailing:
        if layout != content.layout:
            raise WriteError(
                f"{len(content.trailing)} bytes behind the last value are no values, and cannot be encoded anew",
                file=report.source,
                hint="Convert without changing encoding, byte order or size of long.",
            )
        output.write(content.trailing)
        report.note("warning", f"{content.message}; they are copied")


def _note_plain_nans(writer: T7Writer, report: Report) -> None:
    if writer.plain_nans:
        what = f"{writer.plain_nans} NaNs have bits that text does not show"
        report.note("info", f"{what}; they are written as nan", loss="precision")


def _t7_to_pt(content: T7File, output: Output, options: Options, report: Report) -> None:
    from ..formats.pt.writer import PtWriter
    from .t7_record import encode_record, take_skeleton
    from .tree import to_python

    writer = _pt_writer(output, options)
    if options.record and options.as_ == "auto" and content.has_pt_record:
        from .pt_record import original_pt

        original = original_pt(content, options.limits)
        if original is not None:
            value, foreign = original
            _note_foreign(foreign, report)
            report.mode = "record"
            _finish_pt(writer, value, report)
            return
        report.note("warning", "the .t7 was changed since it was made from a .pt: its record is not used")
    # What layers mean is not even loaded for a file without objects.
    has_objects = any(isinstance(found, TorchObject) for found in content.objects)
    modules = _Modules(content.roots, report) if options.as_ == "auto" and has_objects else None
    roots = [to_python(root, modules.replace if modules else None) for root in content.roots]
    if len(roots) > 1:
        report.note("warning", f"the file holds {len(roots)} values; the .pt holds them as a list")
    has_modules = modules is not None and bool(modules.found)
    report.mode = "state dict" if has_modules else "tree"
    if content.trailing and not content.has_pt_record:
        report.note("warning", f"{content.message}; the .pt does not show them")
    result: Any = roots if len(roots) > 1 else roots[0]
    compact = options.compact and options.as_ == "auto"
    if compact:
        from ..nn.weights.compact import compact_in

        result = compact_in(result)
    if modules is not None and has_modules:
        modules.note_rest(result, compact)
    writer.write(result)
    report.tensors, report.storages = writer.tensors, writer.storages
    if options.record and not (has_modules or compact) and isinstance(writer, PtWriter):
        skeleton = take_skeleton(content.roots, content.layout, writer.storage_key, content.trailing)
        writer.finish(lambda content_id: encode_record(skeleton, content_id))
        return
    # A state dict leaves out what only Lua needs, so there is nothing to give the same bytes back from.
    writer.finish()


def _note_foreign(foreign: list[str], report: Report) -> None:
    for name in foreign:
        report.note("warning", f"the pickle names {name}, which is no part of PyTorch; nothing was called")


def _pt_writer(output: Output, options: Options) -> PtWriter | LegacyPtWriter:
    if options.pt_format == "legacy":
        from ..formats.pt.legacy_writer import LegacyPtWriter

        return LegacyPtWriter(output, keep_device=options.keep_device)
    if options.pt_format == "torchscript":
        from ..formats.pt.script_writer import ScriptWriter

        return ScriptWriter(output, keep_device=options.keep_device, limits=options.limits)
    from ..formats.pt.writer import PtWriter

    return PtWriter(output, keep_device=options.keep_device)


def _finish_pt(writer: PtWriter | LegacyPtWriter, value: Any, report: Report) -> None:
    writer.write(value)
    report.tensors, report.storages = writer.tensors, writer.storages
    writer.finish()


class _Modules:
    """Gives the state dict of each outermost nn module, once for a module that is met twice."""

    def __init__(self, roots: list[Value], report: Report) -> None:
        from ..nn.weights.state_dict import find_modules

        self._report = report
        self._trails = {id(module): trail for root in roots for trail, module in find_modules(root)}
        self.found: list[tuple[TorchObject, StateDict]] = []

    def replace(self, obj: TorchObject) -> Any:
        from ..nn.weights.state_dict import is_module, state_dict

        if not is_module(obj):
            return None
        result = state_dict(obj, self._trails.get(id(obj), "root"))
        self._report.notes += result.notes
        self.found.append((obj, result))
        return OrderedDict(result.tensors)

    def note_rest(self, value: Any, compact: bool) -> None:
        """Note what the state dicts leave out, and what the storages hold beside what is used."""
        from ..nn.weights.compact import note_excess
        from ..nn.weights.left_out import note_left_out
        from ..nn.weights.lost_sharing import note_lost_sharing

        note_left_out(self.found, self._report)
        note_lost_sharing([state for _, state in self.found], self._report)
        if not compact:
            note_excess(value, self._report)


def state_dict_of(
    obj: TorchObject, report: Report | None = None, trail: str = "root"
) -> OrderedDict[str, Tensor] | None:
    """The state dict of an nn module as `auto` mode writes it; `None` for an object of another kind.

    Args:
        obj: any Torch object.
        report: takes the notes.
        trail: path of the object, for the notes.
    """
    from ..nn.weights.state_dict import is_module, state_dict

    if not is_module(obj):
        return None
    result = state_dict(obj, trail)
    if report is not None:
        report.notes.extend(result.notes)
    return OrderedDict(result.tensors)


def _pt_to_pt(source: ByteSource, output: Output, options: Options, report: Report) -> None:
    from ..formats.pt.reader import PtReader

    reader = PtReader(source, limits=options.limits)
    writer = _pt_writer(output, options)
    report.mode = "copy"
    value = reader.read()
    _note_foreign(reader.foreign, report)
    _finish_pt(writer, value, report)


def _pt_to_t7(source: ByteSource, output: Output, options: Options, report: Report) -> None:
    from ..formats.pt.reader import PtReader
    from .lua_tree import to_lua
    from .pt_record import write_pt_record

    reader = PtReader(source, limits=options.limits)
    if options.template is not None:
        _fill_template(reader, options.template, output, options, report)
        return
    if options.record and not options.nested and _restore_t7(reader, output, options, report):
        return
    value = reader.read()
    _note_foreign(reader.foreign, report)
    tree = to_lua(value, nested=options.nested, keep_device=options.keep_device)
    report.notes += tree.notes
    report.mode = "tree"
    writer = T7Writer(output, T7Layout(**options.layout))
    writer.write_object(tree.value)
    _note_plain_nans(writer, report)
    storages = [found for found in writer.objects if isinstance(found, Storage)]
    report.storages = len(storages)
    report.tensors = sum(isinstance(found, Tensor) for found in writer.objects)
    if options.record:
        write_pt_record(output, value, tree, {id(storage): place for place, storage in enumerate(storages)})


def _fill_template(reader: PtReader, template: ByteSource, output: Output, options: Options, report: Report) -> None:
    """Write a template with the weights of a `.pt`; what else is in the `.pt`, a record too, does not matter."""
    from .template import fill_template

    if source_format(template) != "t7":
        raise FormatError("is no .t7, as a template must be", file=template.name)
    content = read_t7(template, options.limits)
    if content.message:
        report.note("warning", f"of the template, {content.message}")
    value = reader.read()
    _note_foreign(reader.foreign, report)
    try:
        report.notes += fill_template(content.roots, value, options.partial)
    except ModelError as error:
        error.file = error.file or report.source
        raise
    report.tensors, report.storages = content.tensors, content.storages
    _copy_t7(content, output, options, report)
    report.mode = "template"


def _restore_t7(reader: PtReader, output: Output, options: Options, report: Report) -> bool:
    """Write the `.t7` that a `.pt` was made from, unless there was none or the `.pt` was changed since."""
    from .t7_record import original_t7

    restored, has_record = original_t7(reader, options.limits)
    if restored is None:
        if has_record:
            report.note("warning", "the .pt was changed since it was made from a .t7: its record is not used")
        return False
    report.tensors, report.storages = restored.tensors, restored.storages
    _copy_t7(restored, output, options, report)
    report.mode = "record"
    return True
