"""The work on one file, in any process: fetch, convert, verify, hash, store. Errors become outcomes."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import time

from ..errors import StrictError, T7BridgeError, UnknownFormatError, UnsupportedLayerError
from ..formats import FORMATS, NAMED
from ..io.disk import flush_to_disk
from ..report import Note, Report
from .filesystems import as_local_input, as_local_output
from .job import DONE, FAILED, FOREIGN, NO_PICTURE, FileOutcome, Job, Settings, digest, picture_of

_NOTES_KEPT = 50


class VerifyError(T7BridgeError):
    """An output differs from its input."""


def convert_one(job: Job, settings: Settings) -> FileOutcome:
    """Convert one file; any error becomes part of the outcome."""
    outcome = FileOutcome(job.number)
    began = time.perf_counter()
    try:
        with as_local_input(job.source) as source:
            outcome.input_hash, outcome.input_bytes = digest(source)
            _convert_local(job, settings, source, outcome)
        outcome.status = DONE
    except T7BridgeError as error:
        _explain(outcome, error, job)
    except MemoryError:
        limit = f"{settings.memory / (1 << 20):,.0f} MiB of memory" if settings.memory else "memory"
        _fail(outcome, "OutOfMemory", f"needs more than the {limit} available")
    except OSError as error:
        _fail(outcome, type(error).__name__, f"cannot be read or written: {error.strerror or error}")
    except Exception as error:  # one file must never stop the others
        _fail(outcome, "InternalError", f"internal error: {type(error).__name__}: {error}")
    outcome.seconds = time.perf_counter() - began
    return outcome


def _convert_local(job: Job, settings: Settings, source: str, outcome: FileOutcome) -> None:
    with as_local_output(job.target) as target:
        try:
            _take(outcome, _write(settings, source, target))
            if settings.verify:
                _verify(settings, source, target)
            if settings.prove:
                _prove(settings, source, outcome)
            if settings.draw:
                _draw(settings, source, picture_of(job.target), outcome)
        except BaseException:
            _remove(target)  # an older or faulty output of ours: a failed file has none
            raise
        if settings.flush:
            flush_to_disk(target)
        outcome.output_hash, outcome.output_bytes = digest(target)


def _remove(target: str) -> None:
    """Remove an output."""
    names = ("model.py", "model.pt") if os.path.isdir(target) else ("",)
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(target, name) if name else target)
    with contextlib.suppress(OSError):
        os.rmdir(target)


def _write(settings: Settings, source: str, target: str) -> Report:
    """Write the output in the requested format. An existing file under its name is an earlier attempt of ours."""
    if settings.module:
        from ..tools.export_module import write_module

        return write_module(source, target, force=True, limits=settings.limits, **settings.options)
    from ..conversion.convert import convert

    return convert(source, target, to=settings.to, force=True, limits=settings.limits, **settings.options)


def _draw(settings: Settings, source: str, place: str, outcome: FileOutcome) -> None:
    """Draw a model. A failure is noted, and does not affect the conversion."""
    from ..tools.draw.draw import draw
    from ..tools.draw.page import is_page

    try:
        with as_local_output(place) as target:
            if os.path.exists(target) and not is_page(target):
                raise T7BridgeError("a foreign file has the name of the picture")
            draw(source, target, force=True, limits=settings.limits)
            if settings.flush:
                flush_to_disk(target)
    except (T7BridgeError, MemoryError) as error:
        reason = error.message if isinstance(error, T7BridgeError) else "out of memory"
        outcome.notes.append(["info", "", NO_PICTURE + reason, ""])


def _prove(settings: Settings, source: str, outcome: FileOutcome) -> None:
    """Add the result of `prove`, which applies to `.t7` only."""
    from ..tools.prove.note import BEGIN, prove_note

    try:
        note = prove_note(source, limits=settings.limits)
        outcome.notes.append([note.level, note.path, note.message, note.loss])
    except MemoryError:
        outcome.notes.append(["info", "", f"{BEGIN}not possible: out of memory", ""])


def _verify(settings: Settings, source: str, target: str) -> None:
    if settings.to is not None and FORMATS[settings.to].values == NAMED:
        from ..conversion.into_named import differences

        found = differences(source, target, settings.limits)
    else:
        from ..tools.verify import verify

        found = [str(difference) for difference in verify(source, target, limits=settings.limits).differences]
    if found:
        raise VerifyError("the output differs from the input", found="; ".join(found[:3]))


def _take(outcome: FileOutcome, report: Report) -> None:
    outcome.mode, outcome.tensors = report.mode, report.tensors
    for note in report.notes:
        if note.code == "unmapped":
            outcome.layers.append([note.path, note.class_name, note.message])
    _keep_notes(outcome, report.notes)


def _keep_notes(outcome: FileOutcome, notes: list[Note]) -> None:
    outcome.notes = [[note.level, note.path, note.message, note.loss] for note in notes[:_NOTES_KEPT]]
    if len(notes) > _NOTES_KEPT:
        outcome.notes.append(["info", "", f"{len(notes) - _NOTES_KEPT} more notes", ""])


def _explain(outcome: FileOutcome, error: T7BridgeError, job: Job) -> None:
    """Put an error into the outcome, without names of files: the row names the file."""
    if isinstance(error, UnknownFormatError) and not job.claimed:
        outcome.status = FOREIGN
        outcome.kind, outcome.message, outcome.reason = "", "", error.message
        return
    error.file = ""
    _fail(outcome, type(error).__name__, error.message, str(error))
    if isinstance(error, StrictError):
        _keep_notes(outcome, list(error.notes))
    if isinstance(error, UnsupportedLayerError):
        outcome.layers = [list(layer) for layer in error.layers]


def _fail(outcome: FileOutcome, kind: str, message: str, reason: str = "") -> None:
    outcome.status, outcome.kind = FAILED, kind
    # Numbers and names differ between files; the text by which failures are grouped must not.
    outcome.message = re.sub(r"'[^']*'|(?<![A-Za-z0-9])-?\d(?:[\d ,.]*\d)?", "…", message)
    outcome.reason = reason or message


def warm_up(settings: Settings) -> None:
    """Import what the work needs, so that the first file does not pay for it in time or memory."""
    wanted = [
        "conversion.convert",
        "conversion.into_python",
        "conversion.t7_record",
        "conversion.tree",
        "nn.weights.state_dict",
        "formats.pt.reader",
        "formats.pt.writer",
        "graph.arrays",
    ]
    wanted += ["tools.export_module", "codegen.generate"] if settings.module else []
    wanted += ["tools.draw.draw"] if settings.draw else []
    wanted += ["tools.prove.prove"] if settings.prove else []
    wanted += ["tools.verify", "formats.torchfile"] if settings.verify else []
    for name in wanted:
        importlib.import_module(f"t7bridge.{name}")
