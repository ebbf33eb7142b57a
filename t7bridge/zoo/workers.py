"""The work on one file, and the engines: sets of processes that do it. A job is the record of a file to convert.

The engine for this machine has worker processes, each of which may die or hang at the cost of its current file only.
They are spawned, not forked, and read their jobs from a pipe some files ahead, so that a small file costs no wait.
Jobs are done in order, so the first one without an answer is the one a dead worker was working on. A worker ends when
its input is closed, even in the middle of a job: the parent process is gone then.

To a Dask cluster, an existing one or one on this machine, files go in groups. Each of its threads has a worker process
of our own, which does the work under the same protection as on one machine. If a machine of the cluster is lost, Dask
reassigns its groups. This is the only importer of Dask.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import IO, Any

from ..conversion.convert import convert_as
from ..conversion.request import Convert
from ..errors import (
    ModelError,
    NoModuleError,
    NoTensorError,
    StrictError,
    T7BridgeError,
    UnknownFormatError,
    UnsupportedError,
    UnsupportedLayerError,
)
from ..formats import LUA, PYTHON, format_for, home
from ..formats import open as open_document
from ..io import copy as transfer
from ..io.copy import digest
from ..io.output import flush_to_disk
from ..io.platform import ALONE, MemoryWatch, cores, kill, memory_limit
from ..limits import Limits
from ..report import Note, Report
from .journal import DONE, FOREIGN, NOTHING, Record, from_line, to_line
from .places import as_local_input, as_local_output, head_if_exists, is_in_memory, join, local_path, scratch_output
from .plan import Settings, fail_foreign

NO_PICTURE = "no picture: "
"""Prefix of the note on a file that cannot be drawn."""
READY = b"ready"
# The program of a worker process: it finds modules where this one does.
_START = "import sys; sys.path[:] = sys.argv[1:]; from t7bridge.zoo.workers import main; main()"
_NOTES_KEPT = 50
"""Notes of a file that the journal has."""
_AHEAD_JOBS = 48
"""Files in the queue of a worker, so that it never waits for the next."""
_AHEAD_BYTES = 4 << 20
"""Bytes of these files, at most: at the end of a run, a queue waits for its worker while others are idle."""
_TICK_SECONDS = 0.1
"""Seconds after which an engine returns even without an outcome."""
_NO_MEMORY = 12
"""Exit code of a worker whose file left no memory for anything else: ENOMEM."""
_PAUSE_SECONDS = 0.01
"""Seconds for which answers are collected: waking up for each of a thousand a second would take a core."""
_GROUP_JOBS = 32
"""Files that are sent to a cluster together: each message takes milliseconds."""
_GROUP_BYTES = 16 << 20
"""Bytes from which on no more files are added to a group."""
_GROUPS_A_THREAD = 3
"""Groups that are sent for each thread of the cluster, so that it never waits for the next."""
_NO_WORKER_SECONDS = 30.0
"""Seconds that a cluster may be without workers."""

Outcomes = Generator["Record | None", None, None]
"""The finished files in any order, and `None` now and then when there are none."""


# One file, in any process: fetch, convert, verify, hash, store. What only some settings need is imported for them: the
# planner, which converts nothing itself, would wait for it, and so would the help.


class VerifyError(T7BridgeError):
    """An output differs from its input."""


def convert_one(record: Record, settings: Settings) -> Record:
    """Convert one file, and store the outcome in its record, which is returned; any error becomes part of it.

    Args:
        record: as the plan has made it: place of the input, and path of the output.
        settings: of each conversion.
    """
    began = time.perf_counter()
    try:
        with as_local_input(record.place) as source:
            record.hash, size = digest(source)
            record.bytes = max(record.bytes, size)  # a server may not have told it
            _convert(record, settings, source)
    except T7BridgeError as error:
        _set_outcome_of_error(record, error)
    except MemoryError:
        _fail_for_memory(record, settings)
    except OSError as error:
        record.fail(type(error).__name__, f"cannot be read or written: {error.strerror or error}")
    except Exception as error:  # one file must never stop the others
        record.fail("InternalError", f"internal error: {type(error).__name__}: {error}")
    record.seconds = time.perf_counter() - began
    return record


def _convert(record: Record, settings: Settings, source: str) -> None:
    """Convert a local file, and do what else the settings ask for; the record gets the outcome.

    If a file is at the place of the output that may be foreign, the output is compared with it, and dropped: an
    interrupted run may have written it.

    Args:
        record: as the plan has made it; `ours` is false if a foreign file may be at the place of the output.
        settings: of each conversion.
        source: the path of the local file.
    """
    place = join(settings.folder, record.output)
    is_compared = not record.ours
    with scratch_output(place) if is_compared else as_local_output(place) as target:
        _write(record, settings, source, target)
        if settings.verify:
            _verify(settings, source, target)
        if settings.prove:
            _prove(record, settings, source)
        hash_and_size = digest(target)
        if is_compared:
            if not _is_existing_output(place, hash_and_size, settings):
                fail_foreign(record)
                return
            record.ours = True
        elif settings.flush:
            flush_to_disk(target)
        if settings.draw:
            # Before an output in a store is uploaded: an input that fails, as when drawing it takes too long, uploads
            # none.
            _draw(record, settings, source, picture_of(place))
    # Here an output in a store is uploaded.
    record.output_hash, record.output_bytes = hash_and_size
    record.status = DONE


def _is_existing_output(place: str, hash_and_size: tuple[str, int], settings: Settings) -> bool:
    """Return whether the existing file or folder at the place of an output is that output.

    If it is, it stays as the output, and is flushed to the disk where the settings ask for that.

    Args:
        place: path or URL of the output.
        hash_and_size: SHA-256 and bytes of the output that was made now; of a folder, of all in it.
        settings: of each conversion.
    """
    with as_local_input(place, may_be_folder=settings.module) as existing:
        if digest(existing) != hash_and_size:
            return False
        if settings.flush:
            flush_to_disk(existing)
    return True


def _fail_for_memory(record: Record, settings: Settings) -> Record:
    """Mark the record of a file as failed because the work on it needs too much memory; return the record."""
    limit = f"{settings.memory / (1 << 20):,.0f} MiB of memory" if settings.memory else "memory"
    return record.fail("OutOfMemory", f"needs more than the {limit} available")


def _write(record: Record, settings: Settings, source: str, target: str) -> None:
    """Write the output in the requested format, and note in the record how.

    What exists under its name is replaced: by `make_plan` it is an output of an earlier run, or a file that the option
    `force` of the zoo replaces.

    Args:
        record: receives mode, number of tensors, layers without a counterpart in PyTorch, and notes.
        settings: of the conversion.
        source: path of the input.
        target: path of the output.
    """
    report = _written_module(settings, source, target) if settings.module else _converted(settings, source, target)
    record.mode = report.mode
    record.tensors = report.tensors
    record.layers = [[note.path, note.class_name, note.message] for note in report.notes if note.code == "unmapped"]
    _keep_notes(record, report.notes)


def _written_module(settings: Settings, source: str, target: str) -> Report:
    """Write a model as a module; return the report.

    Raises:
        NoModuleError: the file has no layers of Lua, of which modules are made.
    """
    from ..tools.write_module import write_module

    with open_document(source, limits=settings.limits) as document:
        if document.spec.values != LUA:
            raise NoModuleError(f"is {document.title}: modules are made of Lua's layers, and it has none")
    return write_module(source, target, force=True, limits=settings.limits, **settings.options)


def _converted(settings: Settings, source: str, target: str) -> Report:
    """Convert a file; return the report. An option that does not fit it is a note: the files of a zoo differ."""
    options = {**settings.options, "force": True, "limits": settings.limits}
    # One output a file: a configuration beside it is not in the journal, and could replace another program's. Only
    # formats of Python's values have one, and the option.
    if format_for(target, settings.to).values == PYTHON:
        options["config"] = False
    return convert_as(Convert(source, target, to=settings.to, **options), must_fit=False)


def picture_of(target: str) -> str:
    """Return the path or URL of the drawing next to an output, by that of the output."""
    return f"{target}.html"


def _draw(record: Record, settings: Settings, source: str, place: str) -> None:
    """Draw a model into `place`. A failure is noted in the record, and does not affect the conversion.

    Args:
        record: receives the note.
        settings: of the conversion.
        source: path of the model.
        place: path or URL of the drawing.
    """
    from ..workshop.draw import HEAD_OF_PAGE, draw, is_page

    try:
        # The plan knows only the names of outputs: a file with that of a drawing may be anyone's.
        head = head_if_exists(place, HEAD_OF_PAGE)
        if head is not None and not is_page(head):
            raise T7BridgeError("a foreign file has the name of the picture")
        with as_local_output(place) as target:
            draw(source, target, force=True, limits=settings.limits)
            if settings.flush:
                flush_to_disk(target)
    except T7BridgeError as error:
        _add_note(record, NO_PICTURE + error.message)
    except MemoryError:
        _add_note(record, f"{NO_PICTURE}out of memory")
    except OSError as error:  # of what has its name: a folder, say
        _add_note(record, f"{NO_PICTURE}cannot be written: {error.strerror or error}")


def _prove(record: Record, settings: Settings, source: str) -> None:
    """Compare layers with what Lua Torch recorded in a file, and add the result to the record, and a note of it.

    Where nothing is recorded, as in a file of another format, that is the result.

    Args:
        record: its `proof` becomes `agrees`, `differs` or `not recorded`.
        settings: of the conversion.
        source: path of the file.
    """
    from ..workshop.prove import NOTE, try_proof

    record.proof = "not recorded"
    try:
        proof = try_proof(source, limits=settings.limits)
        note = proof.note()
        record.notes.append([note.level, note.path, note.message, note.loss])
        if proof.unexplained:  # layers differ that no update of the weights explains
            record.proof = "differs"
        elif proof.agreeing():  # empty if no layer could be compared
            record.proof = "agrees"
    except MemoryError:
        _add_note(record, f"{NOTE}not possible: out of memory")


_EDITS = frozenset(("rename", "strip", "dtype"))
"""Options by which names and types of tensors in an output differ from those in its input."""


def _are_lua(source: str, target: str, limits: Limits) -> bool:
    """Return whether both files have Lua values: then the output is a copy, without the changes of `_EDITS`."""
    for path in (source, target):
        with open_document(path, limits=limits) as document:
            if document.spec.values != LUA:
                return False
    return True


def _verify(settings: Settings, source: str, target: str) -> None:
    """Compare an output with its input.

    Args:
        settings: of the conversion, by which the output may differ from the input.
        source: path of the input.
        target: path of the output.

    Raises:
        VerifyError: the two differ.
    """
    differences = _differences(settings, source, target)
    if differences:
        raise VerifyError("the output differs from the input", found="; ".join(differences[:3]))


def _differences(settings: Settings, source: str, target: str) -> list[str]:
    """Return how an output differs from what is to be made of its input, in words.

    Args:
        settings: of the conversion; its `options` are those that differ from their defaults.
        source: path of the input.
        target: path of the output.
    """
    if _is_read_by_own_library(settings.to):
        from ..conversion.targets import differences

        return differences(source, target, settings.limits, **settings.options)
    has_edits = not _EDITS.isdisjoint(settings.options)
    if has_edits and not _are_lua(source, target, settings.limits):
        # The tensors of the input, with the new names and types, are compared with those of the output.
        from ..conversion.targets import edited_differences

        return edited_differences(source, target, settings.limits, **settings.options)
    # The whole values are compared, as other readers than ours see them.
    from ..tools.verify import verify

    compact = settings.options.get("compact", False)
    report = verify(source, target, independent=True, compact=compact, limits=settings.limits)
    return [str(difference) for difference in report.differences]


def _is_read_by_own_library(target_format: str | None) -> bool:
    """Return whether outputs are verified with the library of those who define their format.

    The module of such a format has a function `differences`; see `formats/table.py`.

    Args:
        target_format: the name of the format; `None` if it follows from each input: `.pt` and `.t7` have none.
    """
    return target_format is not None and hasattr(home(target_format), "differences")


def _add_note(record: Record, message: str) -> None:
    """Add a note about the whole file, without a loss, to a record."""
    record.notes.append(["info", "", message, ""])


def _keep_notes(record: Record, notes: list[Note]) -> None:
    """Store the first notes in a record, as lists for its line of JSON, and how many more there are."""
    record.notes = [[note.level, note.path, note.message, note.loss] for note in notes[:_NOTES_KEPT]]
    if len(notes) > _NOTES_KEPT:
        _add_note(record, f"{len(notes) - _NOTES_KEPT} more notes")


def _set_outcome_of_error(record: Record, error: T7BridgeError) -> None:
    """Store the outcome of a conversion that an error ended.

    A file without anything to write, and one that does not claim to be a model and is none, are no failures.

    Args:
        record: receives status and reason; of a failure also the class of the error, and notes or layers that it has.
        error: what ended the conversion; its `file` is emptied.
    """
    if isinstance(error, (NoModuleError, NoTensorError)):
        record.status = NOTHING
        record.reason = error.message
        return
    if isinstance(error, UnknownFormatError) and not record.claimed:
        record.status = FOREIGN
        record.reason = error.message
        return
    error.file = ""  # the record names the file, and a temporary copy has another name
    record.fail(type(error).__name__, error.message, str(error))
    if isinstance(error, StrictError):
        _keep_notes(record, list(error.notes))
    if isinstance(error, UnsupportedLayerError):
        record.layers = [list(layer) for layer in error.layers]


# A worker process: settings and jobs are lines of JSON on its input, outcomes lines of JSON on its output


def main() -> None:
    """Work as a worker process, until the input ends.

    The first line of the input has the settings, each later one jobs. The first line of the output is `READY`, each
    later one a job with its outcome, in the order of the jobs.
    """
    lines = sys.stdin.buffer
    answers = _answers_to_parent()
    settings = Settings.from_json(lines.readline())
    _warm_up(settings)
    gc.freeze()  # what is loaded stays: no collection has to look at it
    answers.write(READY + b"\n")
    answers.flush()
    transfer.MAX_THREADS = 1  # there is a worker for each core
    jobs: queue.SimpleQueue[Record] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(lines, jobs), daemon=True).start()
    while True:  # `_read_jobs` ends the process
        job = jobs.get()
        try:
            with memory_limit(settings.memory):
                convert_one(job, settings)
        except MemoryError:  # `convert_one` had no memory left to handle the first one
            _fail_for_memory(job, settings)
        answers.write(to_line([job]).encode() + b"\n")
        answers.flush()


def _answers_to_parent() -> IO[bytes]:
    """Return what writes to the standard output of this process, which gets nothing else from now on.

    A library that prints must not write between the answers: what it prints goes to standard error.
    """
    stdout, stderr = 1, 2
    answers = os.fdopen(os.dup(stdout), "wb")
    os.dup2(stderr, stdout)
    return answers


def _read_jobs(lines: Iterable[bytes], jobs: queue.SimpleQueue[Record]) -> None:
    """Read jobs ahead, and end the process with its input, even in the middle of a file: its parent is gone.

    `os._exit` ends it from this thread, whatever the others do.

    Args:
        lines: the input.
        jobs: gets the jobs.
    """
    try:
        for line in lines:
            for job in from_line(line):
                jobs.put(job)
    except MemoryError:  # the limit holds for all threads: the file that is worked on has taken it all
        os._exit(_NO_MEMORY)
    os._exit(0)


def _warm_up(settings: Settings) -> None:
    """Import what the settings need, so that the limits of time and memory of the first file do not include it."""
    modules = [
        "conversion.convert",
        "conversion.targets",
        "conversion.records",
        "conversion.tree",
        "nn.state_dict",
        "formats.pt.file",
        "formats.pt.writer",
        "graph.decimals",
    ]
    if settings.module:
        modules += ["tools.write_module", "codegen.generate"]
    if settings.draw:
        modules += ["workshop.draw.drawing"]
    if settings.prove:
        modules += ["workshop.prove"]
    if settings.verify:
        modules += ["tools.verify", "formats.torchfile"]
    for name in modules:
        importlib.import_module(f"t7bridge.{name}")


# Engines


class Engine:
    """Converts files in some set of processes, or in this one.

    A subclass hands out files in `_assign_jobs`; what a process sends back comes through a queue, and `_outcomes_of`
    makes outcomes of it.
    """

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """What processes have sent back, put there by other threads."""

    def run(self, jobs: Iterable[Record]) -> Outcomes:
        """Convert files; yield each when its record has the outcome, and `None` now and then when none has.

        Raises:
            T7BridgeError: there is no process to work, and none can be started.
        """
        waiting = iter(jobs)
        while self._assign_jobs(waiting):
            try:
                answer = self._answers.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                yield None
            else:
                yield from self._outcomes_of(answer)

    def _assign_jobs(self, waiting: Iterator[Record]) -> bool:
        """Hand out as many of the waiting files as there is room for; return whether any are in progress."""
        raise NotImplementedError

    def _outcomes_of(self, answer: Any) -> Iterable[Record | None]:
        """Return the files that an answer from the queue finishes, with their outcomes; `None` for no file."""
        raise NotImplementedError

    def current(self) -> list[Record]:
        """Return the files in progress, as far as they are known."""
        raise NotImplementedError

    def close(self) -> None:
        """End all processes that were started."""


def open_engine(
    name: str,
    settings: Settings,
    places: Iterable[str],
    *,
    workers: int | None,
    timeout: float | None,
    scheduler: str | None,
) -> Engine:
    """Start an engine.

    Args:
        name: `local` or `dask`.
        settings: settings of each conversion.
        places: paths and URLs of inputs and outputs.
        workers: number of processes; 0 for none but this one, `None` for one a core.
        timeout: time limit for one file, in seconds.
        scheduler: address of a Dask scheduler.

    Raises:
        ModelError: the engine does not support the request.
        UnsupportedError: its library is not installed.
    """
    in_memory = is_in_memory(places)
    if name == "dask":
        if in_memory:
            raise ModelError("other processes cannot access memory://", hint="Use the local engine.")
        return DaskEngine(settings, scheduler, workers, timeout)
    if in_memory and (timeout or settings.memory):
        raise ModelError("time and memory limits need worker processes", hint="Use no memory:// URLs.")
    if workers == 0 or in_memory:
        return InlineEngine(settings)
    return LocalEngine(settings, workers or cores(), timeout)


class InlineEngine(Engine):
    """Converts files one after another in this process: no startup cost, but no isolation either."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._current: list[Record] = []

    def current(self) -> list[Record]:
        """Return the file in progress, in a list; empty before the first."""
        return self._current

    def run(self, jobs: Iterable[Record]) -> Outcomes:
        """Convert files one by one; yield each when its record has the outcome."""
        for job in jobs:
            self._current = [job]
            yield convert_one(job, self._settings)


class _Worker:
    """A worker process as its parent sees it.

    Args:
        settings: settings of each conversion.
        answers: gets pairs of the worker and the lines that it wrote, or `None` at its end.
    """

    def __init__(self, settings: Settings, answers: queue.SimpleQueue[Any]) -> None:
        self.jobs: deque[Record] = deque()
        """Those assigned and not yet answered, in order: the worker is at the first."""
        self.began: float | None = None
        """When it began with the first job, on the clock of `time.monotonic`; `None` before it is ready."""
        self.late_file: Record | None = None
        """The file that took too long, for which it was killed; `None` if it was not."""
        is_shown = bool(os.environ.get("T7BRIDGE_TRACEBACK"))
        stderr = None if is_shown else subprocess.DEVNULL  # `None`: it shares ours
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            **ALONE,  # Ctrl-C reaches the parent only, which ends it
        )
        self.memory = MemoryWatch(self._process.pid)
        """Raises its limit of memory a little where it is stuck at it."""
        assert self._process.stdin is not None
        self._input = self._process.stdin
        self._send(settings.as_json())
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    def _listen(self, answers: queue.SimpleQueue[tuple[_Worker, list[bytes] | None]]) -> None:
        """Put the lines that the process writes into the queue, and `None` when it ends; runs in a thread."""
        assert self._process.stdout is not None
        rest = b""
        with self._process.stdout as output:
            while piece := os.read(output.fileno(), 1 << 20):
                *lines, rest = (rest + piece).split(b"\n")
                answers.put((self, lines))
                time.sleep(_PAUSE_SECONDS)  # what comes meanwhile is read together
        answers.put((self, None))

    def _send(self, line: str) -> None:
        """Send a line. If the worker is dead, nothing happens: the thread that listens to it notices."""
        with contextlib.suppress(OSError):
            self._input.write(line.encode() + b"\n")
            self._input.flush()

    def assign(self, jobs: list[Record]) -> None:
        """Assign it more jobs."""
        is_idle = self.began is not None and not self.jobs
        if is_idle:  # it begins now
            self.began = time.monotonic()
        self.jobs += jobs
        self._send(to_line(jobs))

    def kill(self) -> None:
        """Kill it; its end is noticed when it has ended, like any other."""
        kill(self._process)

    def end(self) -> str:
        """Close its input, wait for its end, and return the cause: `signal SIGKILL` or `exit code 1`."""
        with contextlib.suppress(OSError):
            self._input.close()
        code = self._process.wait()
        if code < 0:  # a signal ended it
            with contextlib.suppress(ValueError):  # one without a name
                return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"


class LocalEngine(Engine):
    """Converts files in worker processes on this machine.

    Args:
        settings: settings of each conversion.
        workers: number of processes.
        timeout: time limit for one file, in seconds.
    """

    def __init__(self, settings: Settings, workers: int, timeout: float | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._timeout = timeout
        self._next_jobs: deque[Record] = deque()
        """Jobs to give before those that wait: one for which a worker had no room, and what workers that died had."""
        self._workers = [_Worker(settings, self._answers) for _ in range(workers)]

    def current(self) -> list[Record]:
        """Return the file that each worker is at."""
        return [worker.jobs[0] for worker in self._workers if worker.jobs and worker.began is not None]

    def _assign_jobs(self, waiting: Iterator[Record]) -> bool:
        """Give the waiting files to workers that have room, and watch over all workers.

        Returns:
            Whether any worker has jobs: one that was killed has, until `_outcomes_of` gets its end and replaces it.
        """
        for worker in self._workers:
            self._refill(worker, waiting)
            self._watch(worker)
        return any(worker.jobs for worker in self._workers)

    def _watch(self, worker: _Worker) -> None:
        """Raise the limit of memory of a worker that hangs at it, and kill one that is late with its file.

        `_replace` marks the file as failed when the end of the process is noticed.
        """
        if not worker.jobs or worker.began is None:  # idle, or not ready
            return
        if self._settings.memory:
            worker.memory.raise_limit_if_stuck()
        if self._timeout and time.monotonic() - worker.began > self._timeout:
            worker.late_file = worker.jobs[0]
            worker.kill()

    def _refill(self, worker: _Worker, waiting: Iterator[Record]) -> None:
        """Give a worker more jobs when half of its queue is done, up to a number of jobs and of bytes.

        A file of more bytes than that is given to an idle worker only.

        Args:
            worker: the worker.
            waiting: the files that no worker has had yet; those given are taken from it.
        """
        if len(worker.jobs) > _AHEAD_JOBS // 2:
            return
        room = _AHEAD_BYTES - sum(map(self._weight, worker.jobs))
        more: list[Record] = []
        while room > 0 and len(worker.jobs) + len(more) < _AHEAD_JOBS:
            job = self._next_job(waiting)
            if job is None:
                break
            is_idle = not worker.jobs and not more
            if self._weight(job) > room and not is_idle:
                self._next_jobs.appendleft(job)
                break
            more.append(job)
            room -= self._weight(job)
        if more:
            worker.assign(more)

    def _next_job(self, waiting: Iterator[Record]) -> Record | None:
        """Return the next file to give to a worker; `None` when all were given."""
        if self._next_jobs:
            return self._next_jobs.popleft()
        return next(waiting, None)

    def _weight(self, job: Record) -> int:
        """Return the bytes that a job takes of `_AHEAD_BYTES` in the queue of a worker.

        A small remote file may take long, too: a queue has at most four.
        """
        is_remote = local_path(job.place) is None or local_path(self._settings.folder) is None
        if is_remote:
            return job.bytes + _AHEAD_BYTES // 4
        return job.bytes

    def _outcomes_of(self, answer: tuple[_Worker, list[bytes] | None]) -> Iterator[Record | None]:
        """Yield the files that an answer finishes: those in the lines of a worker, or the one at which it died.

        Args:
            answer: the worker, and the lines; `None` at its end.
        """
        worker, lines = answer
        if lines is None:
            if worker in self._workers:  # otherwise `close` has ended it
                yield self._replace(worker)
            return
        # Each answer, `READY` too, means that it begins with the next job.
        worker.began = time.monotonic()
        for line in lines:
            if line != READY:
                (outcome,) = from_line(line)
                yield worker.jobs.popleft().copy_values_of(outcome)

    def _replace(self, worker: _Worker) -> Record | None:
        """Replace a dead worker, and mark the file that it was working on as failed; the others it had are given again.

        Returns:
            The file; `None` if it had none, or if it was killed for a file that took too long, but just finished it.

        Raises:
            T7BridgeError: the worker died before it was ready, as every other would.
        """
        cause = worker.end()
        if worker.began is None:
            raise T7BridgeError(
                f"a worker process cannot be started: it ended with {cause}",
                hint="T7BRIDGE_TRACEBACK=1 in the environment shows why.",
            )
        self._workers[self._workers.index(worker)] = _Worker(self._settings, self._answers)
        if not worker.jobs:
            return None
        was_killed_as_late = worker.late_file is not None
        has_finished_late_file = was_killed_as_late and worker.late_file is not worker.jobs[0]
        failed = None if has_finished_late_file else worker.jobs.popleft()
        self._next_jobs.extendleft(reversed(worker.jobs))  # `extendleft` reverses them again
        if failed is None:
            return None
        return self._fail(failed, cause, was_late=was_killed_as_late)

    def _fail(self, job: Record, cause: str, *, was_late: bool) -> Record:
        """Mark the file at which a worker died as failed; return it.

        Args:
            job: the file.
            cause: how the process ended: `signal SIGKILL` or `exit code 1`.
            was_late: whether the worker was killed since the file took too long.
        """
        if was_late:
            reason = f"took longer than the {self._timeout:g} seconds of --timeout"
            return job.fail("Timeout", "took longer than --timeout", reason)
        if cause == f"exit code {_NO_MEMORY}":
            return _fail_for_memory(job, self._settings)
        reason = f"the process that worked on it ended with {cause}"
        if cause == "signal SIGKILL":
            reason += ", possibly out of memory"
        return job.fail("WorkerDied", reason)

    def close(self) -> None:
        """Kill all workers."""
        for worker in self._workers:
            worker.kill()
            worker.end()
        self._workers = []


_engines: dict[int, tuple[tuple[str, float | None], LocalEngine]] = {}
"""On a machine of a cluster: by thread, the settings and the timeout of its engine, and the engine."""


def convert_group(settings: str, timeout: float | None, jobs: str) -> str:
    """Convert a group of files on a machine of the cluster, in the worker process of the thread that it runs in.

    Args:
        settings: of each conversion, as a line of JSON.
        timeout: time limit for one file, in seconds.
        jobs: the files, as a line of `to_line`.

    Returns:
        The files with their outcomes, as such a line.
    """
    engine = _engine_of_this_thread(settings, timeout)
    # The engine yields `None`, too, while nothing is finished.
    outcomes = [job for job in engine.run(from_line(jobs)) if job is not None]
    return to_line(outcomes)


def _engine_of_this_thread(settings: str, timeout: float | None) -> LocalEngine:
    """Return the engine with one worker process that earlier groups have left, or a new one for other settings."""
    thread = threading.get_ident()
    needed = (settings, timeout)
    existing, engine = _engines.get(thread, (None, None))
    if engine is not None and existing == needed:
        return engine
    if engine is not None:
        engine.close()
    engine = LocalEngine(Settings.from_json(settings), workers=1, timeout=timeout)
    _engines[thread] = needed, engine
    return engine


def end_workers() -> None:
    """End the idle worker processes of this machine."""
    for thread, (_, engine) in list(_engines.items()):
        if not engine.current():
            del _engines[thread]
            engine.close()


class DaskEngine(Engine):
    """Converts files on a Dask cluster.

    Args:
        settings: settings of each conversion.
        scheduler: address of the scheduler, `tcp://host:8786`; without one a cluster is started on this machine.
        workers: number of processes of the local cluster; by default one a core.
        timeout: time limit for one file, in seconds.

    Raises:
        UnsupportedError: Dask is not installed.
        T7BridgeError: the scheduler cannot be reached, for as long as Dask's configuration allows.
    """

    def __init__(self, settings: Settings, scheduler: str | None, workers: int | None, timeout: float | None) -> None:
        try:
            import distributed
        except ImportError as error:
            raise UnsupportedError("Dask is not installed", hint="pip install 'dask[distributed]'") from error
        super().__init__()
        self._settings = settings.as_json()
        self._timeout = timeout
        library: Any = distributed  # partly untyped
        self._cluster: Any = None
        """The cluster that was started here; `None` for an existing one."""
        try:
            if scheduler is None:
                self._cluster = library.LocalCluster(
                    n_workers=workers or None, threads_per_worker=1, dashboard_address=None
                )
            self._client: Any = library.Client(self._cluster or scheduler)
        except (OSError, ValueError) as error:
            raise T7BridgeError(f"the Dask scheduler cannot be reached: {error}", file=scheduler or "") from error
        self._running: dict[Any, list[Record]] = {}
        """The files of each group, by its future."""
        self._threads = 1
        """Threads of all workers of the cluster; as if it had one before they are first counted."""
        self._had_worker_at = time.monotonic()
        """When the cluster had a worker last, on the clock of `time.monotonic`."""

    def current(self) -> list[Record]:
        """Return the first files of the oldest groups; only the cluster knows which are in progress."""
        return [jobs[0] for jobs in islice(self._running.values(), self._threads)]

    def _assign_jobs(self, waiting: Iterator[Record]) -> bool:
        """Send groups of the waiting files, a few for each thread of the cluster; return whether any are in progress.

        Raises:
            T7BridgeError: the cluster has no worker for too long.
        """
        self._threads = sum(self._client.nthreads().values())
        if self._threads:
            self._had_worker_at = time.monotonic()
        elif time.monotonic() - self._had_worker_at > _NO_WORKER_SECONDS:
            raise T7BridgeError("the Dask cluster has no worker", hint="Start some with `dask worker ADDRESS`.")
        while len(self._running) < _GROUPS_A_THREAD * max(1, self._threads):
            group = _next_group(waiting)
            if not group:
                break
            self._submit(group)
        return bool(self._running)

    def _submit(self, jobs: list[Record]) -> None:
        """Send a group to the cluster; when it is done, its future comes through the queue of answers.

        Without `pure=False`, Dask would answer a group that is sent again from its cache.
        """
        future = self._client.submit(convert_group, self._settings, self._timeout, to_line(jobs), pure=False)
        self._running[future] = jobs
        future.add_done_callback(self._answers.put)

    def _outcomes_of(self, answer: Any) -> Iterator[Record]:
        """Yield the files of a group with their outcomes.

        If a group could not be converted, its files are sent again, each as a group of its own: one of them may have
        ended the processes of the cluster. A file that was a group of its own has failed.

        Args:
            answer: the future of the group.
        """
        jobs = self._running.pop(answer)
        if answer.status == "finished":
            by_number = {job.number: job for job in jobs}
            for result in from_line(answer.result()):
                yield by_number[result.number].copy_values_of(result)
        elif len(jobs) > 1:
            for job in jobs:
                self._submit([job])
        else:
            (job,) = jobs
            yield _fail_on_cluster(job, answer)

    def close(self) -> None:
        """Cancel pending work, and end the cluster if it was started here."""
        for future in self._running:
            future.cancel()
        with contextlib.suppress(Exception):  # the cluster may already be gone
            self._client.run(end_workers)
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def _fail_on_cluster(job: Record, future: Any) -> Record:
    """Mark a file as failed that could not be converted on a cluster; return it.

    Args:
        job: the file, which was a group of its own.
        future: Dask's, of the group.
    """
    message = "could not be converted on the cluster"
    if future.status != "error":
        return job.fail("ClusterError", message, reason=future.status)  # cancelled or lost, say
    error = future.exception()
    name = type(error).__name__
    # Dask's error for a task whose processes died each time. By its name, so that it need not be imported.
    kind = "WorkerDied" if name == "KilledWorker" else "ClusterError"
    return job.fail(kind, message, f"{message}: {name}: {error}")


def _next_group(waiting: Iterator[Record]) -> list[Record]:
    """Return the next files, up to the number or the bytes of a group; none when all were handed out."""
    group: list[Record] = []
    for job in waiting:
        group.append(job)
        if len(group) >= _GROUP_JOBS or sum(job.bytes for job in group) >= _GROUP_BYTES:
            break
    return group
