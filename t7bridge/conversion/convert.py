"""One file to another: the one place where a format meets a mapping.

It asks what a format can hold, never which one it is: values of Lua, values of Python, or tensors under names, each of
which has a module here. Only the records, each of which is in files of one kind and restores one of another, know
`.t7` and `.pt`.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from .. import formats
from ..errors import ModelError, about_file
from ..formats import LUA, NAMED
from ..io.output import FileOutput
from ..io.source import PathLike
from ..limits import DEFAULT_LIMITS, Limits
from ..report import Report
from .options import check_choices, note_ignored
from .request import Options

if TYPE_CHECKING:
    from ..formats.pt.locations import MapLocation


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
        about_file(document.path),
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
                from .into_named import write_named_tensors

                write_named_tensors(document, output, goal, options, report)
            elif goal.values == LUA:
                from .into_lua import write_lua_values

                write_lua_values(document, output, options, report)
            else:
                from .into_python import write_python_values

                write_python_values(document, output, options, report)
            if strict:
                from .strictness import check_strict

                check_strict(report, strict)
        report.target_bytes = os.path.getsize(output.path)
    return report
