"""The result of a match as a file: a state dict, or the target's Lua model with other weights."""

from __future__ import annotations

from ...conversion.strictness import check_strict
from ...conversion.template import fill_template
from ...errors import ModelError
from ...formats import LUA, format_for
from ...io.inputs import inputs_protected
from ...io.output import FileOutput
from ...io.source import ByteSource, PathLike
from .parts import BATCHES
from .result import Match


@inputs_protected()
def write_match(
    found: Match,
    path: PathLike,
    *,
    partial: bool = False,
    compact: bool = False,
    force: bool = False,
    strict: bool = False,
    sync: bool = False,
) -> None:
    """Write a `.pt` with exactly the target's keys, in its order and with its shapes; complete the report.

    If the target is a model in a `.t7`, a `.t7` can be written: the target's file with the weights of the source.

    Args:
        found: the match.
        path: of the file to write.
        partial: see `Match.state_dict`.
        compact: whether to write only the used part of each storage.
        force: whether an existing file is replaced.
        strict: whether to fail instead of warning in the report.
        sync: whether to return only when the file is on the disk, so that it survives a power cut; one that replaces
            another always is by then.

    Raises:
        ModelError: the match is incomplete; or the path is not a `.pt`, nor a `.t7` for a target that is one.
        TargetExistsError: the file exists and `force` is not set, or it is one of the inputs.
        StrictError: with `strict`: the file would lose something; the error has the notes.
    """
    from ...formats.pt.writer import PtWriter
    from ...nn.weights.compact import compacted

    for side in (found.source_side, found.target_side):
        if side.document is not None:
            ByteSource.open(side.document.source)
    goal = format_for(path)
    if goal.values == LUA and found.target_side.module is not None and found.target_side.document is not None:
        _write_model(found, path, partial, force, strict, sync)
        return
    if goal.name != "pt":
        raise ModelError(
            "a match is written as a .pt, or as a .t7 if the target is a model in a .t7",
            file=str(path),
            found=f"a target that is {found.target_side.format or 'in memory'}",
        )
    state = found.state_dict(partial)
    if compact:
        state = compacted(state)
    check_strict(found.report, strict)
    with FileOutput(path, force=force, sync=sync) as output:
        writer = PtWriter(output)
        writer.write(state)
        writer.finish()
    found.report.target, found.report.target_bytes = str(path), output.position
    found.report.tensors, found.report.storages = writer.tensors, writer.storages


def _write_model(
    found: Match,
    path: PathLike,
    partial: bool,
    force: bool,
    strict: bool,
    sync: bool,
) -> None:
    """Write the target's `.t7` with the weights of the source in its model."""
    from ...formats.t7.writer import T7Writer

    side, report = found.target_side, found.report
    assert side.document is not None
    state = {key: value for key, value in found.state_dict(partial).items() if key.rpartition(".")[2] != BATCHES}
    report.notes += fill_template([side.module], state)
    report.target_format, report.mode = "t7", "template"
    check_strict(report, strict)
    content = side.document.content
    with FileOutput(path, force=force, sync=sync) as output:
        writer = T7Writer(output, content.layout)
        for root in content.roots:
            writer.write_object(root)
    report.target, report.target_bytes = str(path), output.position
    report.tensors, report.storages = content.tensors, content.storages
