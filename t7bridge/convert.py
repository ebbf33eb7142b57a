"""One file to another: the one place where a format meets a mapping."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from attrs import evolve

from .binio.output import FileOutput, Output
from .binio.source import ByteSource, PathLike
from .errors import ModelError, UnsupportedError, WriteError
from .files import T7File, read_t7, source_format, target_format
from .graph.objects import COMPOSITE, TorchObject, Value
from .graph.storage import Storage
from .graph.tensor import Tensor
from .graph.walk import walk
from .limits import DEFAULT_LIMITS, Limits
from .report import Report
from .t7.layout import T7Layout
from .t7.writer import T7Writer

MODES = ("auto", "tree")


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
        keep_device: whether CUDA tensors stay `cuda:0` in a `.pt`; otherwise they are on the CPU.
        record: whether a `.pt` gets the record from which the same `.t7` can be made again.
        limits: what the source may cost.

    Returns:
        What was done, and what the user should know about it.

    Raises:
        FormatError: the source is damaged, or is something else.
        TargetExistsError: the target exists and `force` is not set, or it is the source.
        WriteError: the target cannot hold the value, or the disk refuses; no file is left behind.
    """
    if as_ not in MODES:
        raise ModelError(f"there is no mode {as_!r}", expected=" or ".join(MODES))
    goal = to or target_format(dst)
    if goal not in ("t7", "pt"):
        raise ModelError(f"there is no format {goal!r}", expected="t7 or pt")
    with ByteSource.from_path(src) as source:
        report = Report(source.name, str(dst), source_format(source), goal, source_bytes=source.size)
        wanted = {
            name: choice
            for name, choice in (("encoding", encoding), ("byte_order", byte_order), ("long_size", long_size))
            if choice is not None
        }
        if report.source_format == "t7":
            content = read_t7(source, limits)
            report.tensors, report.storages = content.tensors, content.storages
            with FileOutput(dst, force=force, inputs=(source,)) as output:
                if goal == "t7":
                    _copy_t7(content, output, wanted, report)
                else:
                    _t7_to_pt(content, output, as_, keep_device, record, report)
        elif goal == "t7":
            with FileOutput(dst, force=force, inputs=(source,)) as output:
                _pt_to_t7(source, output, wanted, limits, report)
        else:
            raise UnsupportedError("a .pt cannot be converted to a .pt", file=source.name)
        report.target_bytes = output.position
    return report


def write_t7(output: Output, value: Value, layout: T7Layout) -> None:
    """Write a Lua value as a `.t7`."""
    T7Writer(output, layout).write_object(value)


def write_pt(output: Output, value: Any) -> None:
    """Write a value as a `.pt`; a Lua value in `tree` mode."""
    from .pt.writer import PtWriter
    from .tree import to_python

    writer = PtWriter(output)
    writer.write(to_python(value) if isinstance(value, COMPOSITE) else value)
    writer.finish()


def _copy_t7(content: T7File, output: Output, wanted: dict[str, Any], report: Report) -> None:
    report.mode = "copy"
    layout = evolve(content.layout, **wanted)
    if wanted and layout.vintage:
        report.note("info", f"the objects of {layout.vintage} are written as today's Lua Torch reads them")
        layout = evolve(layout, vintage="", headless=False, unowned=())
        for visit in walk(content.roots):
            if isinstance(visit.value, (Tensor, Storage)):
                visit.value.alias = None
    writer = T7Writer(output, layout)
    for root in content.roots:
        writer.write_object(root)
    if content.trailing:
        if layout != content.layout:
            raise WriteError(
                f"{len(content.trailing)} bytes behind the last value are no values, and cannot be encoded anew",
                file=report.source,
                hint="Convert without changing encoding, byte order or size of long.",
            )
        output.write(content.trailing)
        report.note("info", f"{len(content.trailing)} bytes behind the last value are no values; they are copied")


def _t7_to_pt(content: T7File, output: Output, as_: str, keep_device: bool, record: bool, report: Report) -> None:
    from .pt.writer import PtWriter
    from .record import encode_record, take_skeleton
    from .tree import to_python

    modules = _Modules(report) if as_ == "auto" else None
    roots = [to_python(root, modules.replace if modules else None) for root in content.roots]
    if len(roots) > 1:
        report.note("info", f"the file holds {len(roots)} values; the .pt holds them as a list")
    has_modules = modules is not None and modules.found
    report.mode = "state dict" if has_modules else "tree"
    writer = PtWriter(output, keep_device=keep_device)
    writer.write(roots if len(roots) > 1 else roots[0])
    # A state dict leaves out what only Lua needs, so there is nothing to give the same bytes back from.
    skeleton = None
    if record and not has_modules:
        skeleton = take_skeleton(content.roots, content.layout, writer.storage_key, content.trailing)
    elif content.trailing:
        report.note("warning", f"{len(content.trailing)} bytes behind the last value are no values; they are left out")
    writer.finish((lambda content: encode_record(skeleton, content)) if skeleton else None)


class _Modules:
    """Gives the state dict of each outermost nn module, once for a module that is met twice."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.found = 0

    def replace(self, obj: TorchObject) -> Any:
        found = state_dict_of(obj, self._report)
        self.found += found is not None
        return found


def state_dict_of(obj: TorchObject, report: Report | None = None) -> OrderedDict[str, Tensor] | None:
    """The state dict of an nn module as `auto` mode writes it; `None` for an object of another kind.

    Args:
        obj: any Torch object.
        report: takes the notes.
    """
    from .nn.state_dict import is_module, state_dict

    if not is_module(obj):
        return None
    result = state_dict(obj)
    if report is not None:
        report.notes.extend(result.notes)
    return OrderedDict(result.tensors)


def _pt_to_t7(source: ByteSource, output: Output, wanted: dict[str, Any], limits: Limits, report: Report) -> None:
    from .pt.layout import RECORD_MEMBER
    from .pt.reader import PtReader
    from .record import decode_record, read_skeleton

    reader = PtReader(source, limits=limits)
    data = reader.extra(RECORD_MEMBER)
    if data is None:
        raise UnsupportedError("a .pt that was not made from a .t7 cannot be converted yet", file=source.name)
    skeleton, content = decode_record(data)
    if content != reader.content_id:
        raise UnsupportedError("a .pt that was changed since it was made cannot be converted yet", file=source.name)
    restored = read_skeleton(skeleton, reader.storage, limits)
    report.tensors, report.storages = restored.tensors, restored.storages
    _copy_t7(restored, output, wanted, report)
    report.mode = "record"
