"""The state dict of a match as a file."""

from __future__ import annotations

from contextlib import ExitStack

from ...conversion.strictness import check_strict
from ...errors import ModelError
from ...formats import format_for
from ...io.output import FileOutput
from ...io.source import ByteSource, PathLike
from .result import Match


def write_match(
    found: Match,
    path: PathLike,
    inputs: tuple[PathLike, ...] = (),
    *,
    partial: bool = False,
    compact: bool = False,
    force: bool = False,
    strict: bool = False,
    sync: bool = False,
) -> None:
    """Write a `.pt` with exactly the target's keys, in its order and with its shapes; completes the report.

    Args:
        found: the match.
        path: of the file to write.
        inputs: files that it may not replace.
        partial: see `Match.state_dict`.
        compact: whether only what tensors use of their storages is written.
        force: whether an existing file is replaced.
        strict: whether anything of which the report would warn is an error.
        sync: whether to return only when the file is on the disk, so that it survives a power cut; one that replaces
            another always is by then.

    Raises:
        ModelError: the match is not complete, or the path names no `.pt`.
        TargetExistsError: the file exists and `force` is not set, or it is one of the inputs.
        StrictError: with `strict`: the file would lose something; the error has the notes.
    """
    from ...formats.pt.writer import PtWriter
    from ...nn.weights.compact import compacted, note_excess

    if format_for(path).name != "pt":
        raise ModelError("a match is written as a .pt", file=str(path))
    state = found.state_dict(partial)
    if compact:
        state = compacted(state)
    else:
        note_excess(state, found.report)
    check_strict(found.report, strict)
    with ExitStack() as stack:
        sources = tuple(stack.enter_context(ByteSource.from_path(each)) for each in inputs)
        output = stack.enter_context(FileOutput(path, force=force, inputs=sources, sync=sync))
        writer = PtWriter(output)
        writer.write(state)
        writer.finish()
    found.report.target, found.report.target_bytes = str(path), output.position
    found.report.tensors, found.report.storages = writer.tensors, writer.storages
