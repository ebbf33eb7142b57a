"""One file to another: the one place where a format meets a mapping.

It asks what a format can hold, never which one it is: values of Lua, values of Python, or tensors under names. Only the
records, each of which is in files of one kind and restores one of another, know `.t7` and `.pt`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from attrs import evolve, field

from .. import formats
from ..data import define
from ..errors import FormatError, ModelError, WriteError
from ..formats import LUA, NAMED
from ..graph.lua import COMPOSITE, TorchObject, Value
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..io.output import FileOutput, Output
from ..io.source import PathLike
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Report
from .options import check_choices, note_ignored
from .pt_values import note_foreign, note_target, with_state_dicts
from .strictness import check_strict

if TYPE_CHECKING:
    from ..formats.document import Document
    from ..formats.named import NamedTensors
    from ..formats.pt.legacy_writer import LegacyPtWriter
    from ..formats.pt.locations import MapLocation
    from ..formats.pt.writer import PtWriter
    from ..formats.t7.file import T7File
    from ..formats.t7.layout import T7Layout
    from ..formats.t7.writer import T7Writer
    from ..nn.weights.state_dict import StateDict


@define(frozen=True)
class Options:
    """Options of one conversion; see `convert`.

    Attributes:
        layout: the stated parts of a `.t7`'s layout.
        template: the Lua model that a state dict is put into, open.
    """

    mode: str = "auto"
    layout: dict[str, Any] = field(factory=dict)
    keep_device: bool = False
    record: bool = True
    nested: bool = False
    pt_format: str = "zip"
    limits: Limits = DEFAULT_LIMITS
    template: Document | None = None
    partial: bool = False
    compact: bool = False
    allow_foreign: bool = False
    map_location: MapLocation = None


def convert(
    src: PathLike,
    dst: PathLike,
    mode: str = "auto",
    *,
    to: str | None = None,
    force: bool = False,
    encoding: str | None = None,
    byte_order: str | None = None,
    long_size: int | None = None,
    keep_device: bool = False,
    map_location: MapLocation = None,
    record: bool = True,
    nested: bool = False,
    pt_format: str = "zip",
    template: PathLike | None = None,
    partial: bool = False,
    compact: bool = False,
    classes: PathLike | None = None,
    strict: bool = False,
    sync: bool = False,
    allow_foreign: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Report:
    """Convert a file of any format to any other, or a `.t7` to another encoding.

    Weights go from file to file without being loaded, whatever the formats.

    Args:
        src: the file to read; its format is told by its content.
        dst: the file to write; its format is told by its suffix: `.t7`, `.pt`, `.safetensors`, `.h5` or `.npz`.
        mode: what becomes of nn modules on the way from a `.t7`: `auto` puts each module's state dict under PyTorch's
            names in its place, `tree` a dict that keeps class, version and every field.
        to: the format to write, `t7`, `pt`, `safetensors`, `hdf5` or `npz`, whatever the suffix.
        force: replace an existing file.
        encoding: of a `.t7` that is written: `binary` or `ascii`; that of the source where not stated.
        byte_order: likewise: `little` or `big`.
        long_size: likewise: bytes of a C long, 4 or 8.
        keep_device: keep CUDA tensors on `cuda:0` in a `.pt`, and of Cuda classes in a `.t7` made from a
            `.pt`; otherwise they are on the CPU.
        map_location: the device that tensors in a `.pt` name: one for all (`"cuda:1"`), `"cuda:0=cuda:1,ipu=cpu"` or
            the same as a mapping, or a function of the name in the source. What it does not cover is as without it.
        record: write the record from which the source can be made again into the target, and use the record of a
            source.
        nested: write `t.conv1.weight` instead of `t["conv1.weight"]` in a `.t7` made from another format.
        pt_format: of a `.pt` that is written: `zip`, `legacy` for PyTorch 0.2 to 1.5, or
            `torchscript` for `torch.jit.load` and C++, which holds named tensors only.
        template: for a `.t7` made from another format: the `.t7` whose models get the state dicts of the source, under
            the keys that `auto` mode assigns. All else, its encoding too, is taken from it; the file stays as it is.
        partial: allow a state dict to lack keys of the template, and to have keys that the template does not.
        compact: write to a `.pt` made in `auto` mode of each storage only what tensors use: views become tensors of
            their own, and what overlaps or is tied stays so. The record is left out then.
        classes: a Python program of the caller's that registers classes, see `docs/own-layers.md`; it is run.
        strict: fail if the target holds less than the source: a type that it does not have, numbers
            that lose precision, memory that is shared no more, or anything else of which the report would warn.
        sync: return only when the target is on the disk, so that it survives a power cut; one that replaces
            a file always is by then.
        allow_foreign: name classes and functions of other packages in a `.pt` as the source does; otherwise objects of
            such classes become plain data that names the class.
        limits: resource limits for the source.

    Returns:
        What was done, and what the user should know about it. A format that holds named tensors only gets what it can
        hold; the notes name the rest.

    Raises:
        FormatError: the source is damaged, or is something else.
        ModelError: the state dict does not fit the template; the message lists every key that does not.
        TargetExistsError: the target exists and `force` is not set, or it is the source or the template.
        WriteError: the target cannot hold the value, or the disk refuses; no file is left behind.
        StrictError: with `strict`: the target would hold less; the error has all the notes.
    """
    if classes is not None:
        from ..nn.own_classes import load_classes

        load_classes(classes)
    layout = {"encoding": encoding, "byte_order": byte_order, "long_size": long_size}
    given: dict[str, Any] = {
        **layout, "mode": mode, "to": to, "pt_format": pt_format, "keep_device": keep_device,
        "map_location": map_location, "record": record,
        "nested": nested, "template": template, "partial": partial, "compact": compact,
        "allow_foreign": allow_foreign,
    }  # fmt: skip
    check_choices(given)
    goal = formats.format_for(dst, to)
    if partial and template is None:
        raise ModelError("partial says how a template is filled, and there is none", expected="template=…")
    with (
        formats.open(src, limits=limits) as document,
        nullcontext() if template is None else formats.open(template, limits=limits) as model,
    ):
        chosen = {name: choice for name, choice in layout.items() if choice is not None}
        options = Options(
            mode,
            chosen,
            keep_device,
            record,
            nested,
            pt_format,
            limits,
            model,
            partial,
            compact,
            allow_foreign,
            map_location,
        )
        report = Report(document.path, str(dst), document.format, goal.name, source_bytes=document.source.size)
        if model is not None and (document.spec.values == LUA or goal.values != LUA):
            raise ModelError(
                "a template is filled with a .pt to make a .t7",
                expected="from pt to t7",
                found=f"from {document.format} to {goal.name}",
            )
        note_ignored(given, report)
        inputs = (document.source,) if model is None else (document.source, model.source)
        with FileOutput(dst, force=force, inputs=inputs, sync=sync) as output:
            if goal.values == NAMED:
                _to_named(document, output, goal, options, report)
            elif goal.values == LUA:
                _to_lua(document, output, options, report)
            else:
                _to_python(document, output, options, report)
            check_strict(report, strict)
        report.target_bytes = os.path.getsize(output.path)
    return report


# To a format of Lua's values


def _to_lua(document: Document, output: Output, options: Options, report: Report) -> None:
    if document.spec.values == LUA:
        report.tensors, report.storages = document.content.tensors, document.content.storages
        _copy_t7(document.content, output, options, report)
    elif options.template is not None:
        _fill_template(document, options.template, output, options, report)
    elif not (options.record and not options.nested and _restore_t7(document, output, options, report)):
        _write_tables(document, output, options, report)


def _copy_t7(content: T7File, output: Output, options: Options, report: Report) -> None:
    from ..formats.t7.writer import T7Writer

    report.mode = "copy"
    layout = evolve(content.layout, **options.layout)
    if options.layout and layout.vintage:
        from ..graph.walk import walk

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
                f"{len(content.trailing)} bytes behind the last value are not values, and cannot be re-encoded",
                file=report.source,
                hint="Convert without changing encoding, byte order or size of long.",
            )
        output.write(content.trailing)
        report.note("warning", f"{content.message}; they are copied")


def _note_plain_nans(writer: T7Writer, report: Report) -> None:
    if writer.plain_nans:
        what = f"{writer.plain_nans} NaNs have bits that text does not show"
        report.note("info", f"{what}; they are written as nan", loss="precision")


def _write_tables(document: Document, output: Output, options: Options, report: Report) -> None:
    """Write Python's values as Lua tables, with the record that restores them."""
    from ..formats.t7.layout import T7Layout
    from ..formats.t7.writer import T7Writer
    from .lua_tree import to_lua
    from .pt_record import write_pt_record

    value = _value_of(document, report)
    tree = to_lua(value, nested=options.nested, keep_device=options.keep_device, limits=options.limits)
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


def _fill_template(document: Document, template: Document, output: Output, options: Options, report: Report) -> None:
    """Write a template with the weights of a state dict; what else is in its file, a record too, does not matter."""
    from .template import fill_template

    if template.spec.values != LUA:
        raise FormatError("is no .t7, as a template must be", file=template.path)
    content = template.content
    if content.message:
        report.note("warning", f"of the template, {content.message}")
    value = _value_of(document, report)
    try:
        report.notes += fill_template(content.roots, value, options.partial)
    except ModelError as error:
        error.file = error.file or report.source
        raise
    report.tensors, report.storages = content.tensors, content.storages
    _copy_t7(content, output, options, report)
    report.mode = "template"


def _restore_t7(document: Document, output: Output, options: Options, report: Report) -> bool:
    """Write the `.t7` that a `.pt` was made from, unless there was none or the `.pt` was changed since."""
    if document.format != "pt":
        return False
    from .t7_record import original_t7

    restored, has_record = original_t7(document.content, options.limits)
    if restored is None:
        if has_record:
            report.note("warning", "the .pt was changed since it was made from a .t7: its record is not used")
        return False
    report.tensors, report.storages = restored.tensors, restored.storages
    _copy_t7(restored, output, options, report)
    report.mode = "record"
    return True


# To a format of Python's values


def _to_python(document: Document, output: Output, options: Options, report: Report) -> None:
    from ..formats.pt.file import writer as pt_writer

    writer = pt_writer(
        output,
        options.pt_format,
        keep_device=options.keep_device,
        map_location=options.map_location,
        allow_foreign=options.allow_foreign,
        limits=options.limits,
    )
    if document.spec.values != LUA:
        report.mode = "copy"
        value = _value_of(document, report)
        if options.mode == "auto":
            value = with_state_dicts(value, report, options.limits)
        _finish_pt(writer, value, report)
        return
    made = python_value(document.content, options, report)
    compact = options.compact and options.mode == "auto" and report.mode != "record"
    value = made.value
    if compact:
        from ..nn.weights.compact import compact_in

        value = compact_in(value)
    if made.modules is not None:
        made.modules.note_rest(value, compact)
    # A state dict leaves out what only Lua needs, so the same bytes cannot be restored.
    whole = options.record and options.pt_format == "zip" and made.modules is None and report.mode != "record"
    if not whole or compact:
        _finish_pt(writer, value, report)
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
    note_target(writer, value, report)
    writer.finish()


@define(eq=False)
class Made:
    """The Python-side value of a `.t7`.

    Attributes:
        value: the value.
        modules: the modules that were replaced by their state dicts; `None` where there are none.
    """

    value: Any
    modules: _Modules | None = None


def python_value(content: T7File, options: Options, report: Report) -> Made:
    """The Python-side value of a `.t7`: by its record, or with state dicts in the place of modules, or as a tree.

    Args:
        content: the file.
        options: what was asked for.
        report: gets the mode, and notes.
    """
    if options.record and options.mode == "auto" and content.has_pt_record:
        from .pt_record import original_pt

        original = original_pt(content, options.limits)
        if original is not None:
            value, foreign = original
            note_foreign(foreign, report)
            report.mode = "record"
            return Made(value)
        report.note("warning", "the .t7 was changed since it was made from a .pt: its record is not used")
    from .tree import to_python

    # What layers mean is not even loaded for a file without objects.
    has_objects = any(isinstance(found, TorchObject) for found in content.objects)
    modules = _Modules(content.roots, report) if options.mode == "auto" and has_objects else None
    roots = [to_python(root, modules.replace if modules else None) for root in content.roots]
    target = formats.FORMATS[report.target_format].suffix if report.target_format else "target"
    if len(roots) > 1:
        report.note("warning", f"the file holds {len(roots)} values; the {target} holds them as a list")
    has_modules = modules is not None and bool(modules.found)
    report.mode = "state dict" if has_modules else "tree"
    if content.trailing and not content.has_pt_record:
        report.note("warning", f"{content.message}; the {target} does not show them")
    return Made(roots if len(roots) > 1 else roots[0], modules if has_modules else None)


class _Modules:
    """Makes the state dict of each outermost nn module, once for a module that is met twice."""

    def __init__(self, roots: list[Value], report: Report) -> None:
        from ..nn.weights.state_dict import find_modules

        self._report = report
        self._paths = {id(module): path for root in roots for path, module in find_modules(root)}
        self.found: list[tuple[TorchObject, StateDict]] = []

    def replace(self, obj: TorchObject) -> Any:
        from ..nn.weights.state_dict import is_module, state_dict

        if not is_module(obj):
            return None
        result = state_dict(obj, self._paths.get(id(obj), "root"))
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


# To a format of named tensors


def _to_named(
    document: Document, output: FileOutput, goal: formats.FormatSpec, options: Options, report: Report
) -> None:
    named = named_value(document, goal, options, report)
    report.mode = "tensors"
    written = formats.home(goal.name).write(output, named)
    report.tensors, report.storages = written.tensors, written.storages


def named_value(document: Document, goal: formats.FormatSpec, options: Options, report: Report) -> NamedTensors:
    """The tensors of a file as a format of named tensors gets them, with notes about the rest."""
    from .named_tensors import name_tensors

    if document.spec.values == LUA:
        made = python_value(document.content, options, report)
        value = made.value
        if made.modules is not None:
            made.modules.note_rest(value, True)
    else:
        value = with_state_dicts(_value_of(document, report), report, options.limits)
    return name_tensors(value, goal, report, document.metadata)


# Values


def differences(source: str, target: str, limits: Limits) -> list[str]:
    """Return the differences of an output from its input, as the format's own library reads it.

    Args:
        source: the input.
        target: a file of a format of named tensors that was made of it.
        limits: resource limits for both.

    Raises:
        UnsupportedError: the library is not installed.
    """
    with formats.open(target, limits=limits) as written, formats.open(source, limits=limits) as document:
        report = Report(document.path, target, document.format, written.format)
        named = named_value(document, written.spec, Options(limits=limits), report)
        found: list[str] = formats.home(written.format).differences(target, named)
        return found


def _value_of(document: Document, report: Report) -> Any:
    """The value of a file that holds Python's values, or tensors under names."""
    value = document.value
    note_foreign(document.foreign, report)
    report.notes += document.notes
    if document.metadata and formats.FORMATS[report.target_format].values != NAMED:
        names = ", ".join(list(document.metadata)[:5]) + (", …" if len(document.metadata) > 5 else "")
        report.note("info", f"{len(document.metadata)} strings of the file's metadata are left out: {names}")
    return value


def state_dict_of(
    obj: TorchObject, report: Report | None = None, path: str = "root"
) -> OrderedDict[str, Tensor] | None:
    """The state dict of an nn module as `auto` mode writes it; `None` for an object of another kind.

    Args:
        obj: any Torch object.
        report: takes the notes.
        path: path of the object, for the notes.
    """
    from ..nn.weights.state_dict import is_module, state_dict

    if not is_module(obj):
        return None
    result = state_dict(obj, path)
    if report is not None:
        report.notes.extend(result.notes)
    return OrderedDict(result.tensors)


def _mixed(root: Any) -> bool:
    """Tell whether Lua's objects are in dicts, lists or tuples of Python's."""
    seen: set[int] = set()
    waiting = [root] if isinstance(root, (dict, list, tuple)) else []
    while waiting:
        value = waiting.pop()
        if isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, COMPOSITE) and not isinstance(value, (Tensor, Storage)):
            return True
    return False


def write_value(output: FileOutput, value: Any, goal: formats.FormatSpec, layout: T7Layout | None = None) -> Report:
    """Write a value of any kind in a format: Lua's as Python's where need be, and the other way round.

    Args:
        output: the file.
        value: what `load` returns, or builtins with tensors in them.
        goal: the format.
        layout: of a `.t7`.

    Returns:
        What the format could not hold, in its notes.
    """
    report = Report(target=output.path, target_format=goal.name)
    if _mixed(value) or (goal.values == LUA and not isinstance(value, (*COMPOSITE, type(None), bool, float, bytes))):
        from .lua_tree import to_lua

        tree = to_lua(value)
        value = tree.value
        report.notes += tree.notes
    is_lua = isinstance(value, COMPOSITE)
    if goal.values == LUA:
        formats.home(goal.name).write(output, value, layout)
        return report
    if is_lua:
        from .tree import to_python

        replace = (lambda obj: state_dict_of(obj, report)) if goal.values == NAMED else None
        value = to_python(value, replace)
    if goal.values == NAMED:
        from .named_tensors import name_tensors

        value = name_tensors(value, goal, report)
    formats.home(goal.name).write(output, value)
    return report
