"""The work on one file, and the engines: sets of processes that do it.

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
from typing import Any

from ..conversion.convert import convert
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
from ..report import Note
from .journal import DONE, FOREIGN, NOTHING, Record, from_line, to_line
from .places import as_local_input, as_local_output, is_in_memory, join, local_path, scratch_output
from .plan import Settings, fail_foreign

NO_PICTURE = "no picture: "
"""Prefix of the note on a file that cannot be drawn."""
READY = b"ready"
_START = "import sys; sys.path[:] = sys.argv[1:]; from t7bridge.zoo.workers import main; main()"
_NOTES_KEPT = 50
"""Notes of a file that the journal has."""
_AHEAD_JOBS = 48
"""Files in the queue of a worker, so that it never waits for the next."""
_AHEAD_BYTES = 4 << 20
"""Bytes of these files: the rest of a queue waits for its worker at the end of a run."""
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
    """Convert one file, and store the outcome in its record; any error becomes part of it."""
    began = time.perf_counter()
    try:
        with as_local_input(record.place) as source:
            record.hash, size = digest(source)
            record.bytes = max(record.bytes, size)
            _convert(record, settings, source)
    except T7BridgeError as error:
        _explain(record, error)
    except MemoryError:
        _fail_for_memory(record, settings)
    except OSError as error:
        record.fail(type(error).__name__, f"cannot be read or written: {error.strerror or error}")
    except Exception as error:  # one file must never stop the others
        record.fail("InternalError", f"internal error: {type(error).__name__}: {error}")
    record.seconds = time.perf_counter() - began
    return record


def _convert(record: Record, settings: Settings, source: str) -> None:
    """Convert a local file, and do what else the settings ask for; the record gets the outcome."""
    place = join(settings.folder, record.output)
    with as_local_output(place) if record.ours else scratch_output(place) as target:
        _write(record, settings, source, target)
        if settings.verify:
            _verify(settings, source, target)
        if settings.prove:
            _prove(record, settings, source)
        hash_and_size = digest(target)
        if not record.ours:  # a file of that name exists: it is adopted if it is this output, and never replaced
            with as_local_input(place, may_be_folder=settings.module) as existing:
                if digest(existing) != hash_and_size:
                    fail_foreign(record)
                    return
            record.ours = True
        if settings.draw:
            _draw(record, settings, source, picture_of(place))
        if settings.flush:
            flush_to_disk(target)
    record.output_hash, record.output_bytes = hash_and_size
    record.status = DONE


def _fail_for_memory(record: Record, settings: Settings) -> Record:
    """Mark a file as failed that needs too much memory; return it."""
    limit = f"{settings.memory / (1 << 20):,.0f} MiB of memory" if settings.memory else "memory"
    return record.fail("OutOfMemory", f"needs more than the {limit} available")


def _write(record: Record, settings: Settings, source: str, target: str) -> None:
    """Write the output in the requested format. An existing file under its name is an earlier attempt of ours."""
    if settings.module:
        from ..tools.write_module import write_module

        with open_document(source, limits=settings.limits) as document:
            if document.spec.values != LUA:
                raise NoModuleError(f"is {document.title}: modules are made of Lua's layers, and it has none")
        report = write_module(source, target, force=True, limits=settings.limits, **settings.options)
    else:
        options = {**settings.options, "force": True, "limits": settings.limits}
        if format_for(target, settings.to).values == PYTHON:
            # One output a file: one that stands beside it is not in the journal, and could replace another program's.
            options["config"] = False
        report = convert(source, target, to=settings.to, **options)
    record.mode, record.tensors = report.mode, report.tensors
    record.layers = [[note.path, note.class_name, note.message] for note in report.notes if note.code == "unmapped"]
    _keep_notes(record, report.notes)


def picture_of(target: str) -> str:
    """Return the path or URL of the picture next to an output."""
    return f"{target}.html"


def _draw(record: Record, settings: Settings, source: str, place: str) -> None:
    """Draw a model. A failure is noted, and does not affect the conversion."""
    from ..workshop.draw import draw, is_page

    try:
        with as_local_output(place) as target:
            if os.path.exists(target) and not is_page(target):
                raise T7BridgeError("a foreign file has the name of the picture")
            draw(source, target, force=True, limits=settings.limits)
            if settings.flush:
                flush_to_disk(target)
    except (T7BridgeError, MemoryError) as error:
        reason = error.message if isinstance(error, T7BridgeError) else "out of memory"
        record.notes.append(["info", "", NO_PICTURE + reason, ""])


def _prove(record: Record, settings: Settings, source: str) -> None:
    """Add the result of `prove`, which applies to `.t7` only."""
    from ..workshop.prove import NOTE, try_proof

    record.proof = "not recorded"
    try:
        proof = try_proof(source, limits=settings.limits)
        note = proof.note()
        record.notes.append([note.level, note.path, note.message, note.loss])
        if proof.exit_code:
            record.proof = "differs"
        elif proof.agreeing():
            record.proof = "agrees"
    except MemoryError:
        record.notes.append(["info", "", f"{NOTE}not possible: out of memory", ""])


_EDITS = frozenset(("rename", "strip", "dtype"))
"""Options by which names and types of an output differ from those of its input."""


def _are_lua(source: str, target: str, limits: Limits) -> bool:
    """Return whether both files have Lua values, which are copied without changes."""
    for path in (source, target):
        with open_document(path, limits=limits) as document:
            if document.spec.values != LUA:
                return False
    return True


def _verify(settings: Settings, source: str, target: str) -> None:
    """Refuse an output that does not hold what its input holds."""
    if settings.to is not None and hasattr(home(settings.to), "differences"):  # read by its owner's library
        from ..conversion.targets import differences

        texts = differences(source, target, settings.limits, **settings.options)
    elif not _EDITS.isdisjoint(settings.options) and not _are_lua(source, target, settings.limits):
        from ..conversion.targets import edited_differences

        texts = edited_differences(source, target, settings.limits, **settings.options)
    else:
        from ..tools.verify import verify

        compact = settings.options.get("compact", False)
        report = verify(source, target, independent=True, compact=compact, limits=settings.limits)
        texts = [str(difference) for difference in report.differences]
    if texts:
        raise VerifyError("the output differs from the input", found="; ".join(texts[:3]))


def _keep_notes(record: Record, notes: list[Note]) -> None:
    record.notes = [[note.level, note.path, note.message, note.loss] for note in notes[:_NOTES_KEPT]]
    if len(notes) > _NOTES_KEPT:
        record.notes.append(["info", "", f"{len(notes) - _NOTES_KEPT} more notes", ""])


def _explain(record: Record, error: T7BridgeError) -> None:
    """Put an error into the record, without names of files: the record names the file."""
    if isinstance(error, (NoModuleError, NoTensorError)):
        record.status = NOTHING
        record.reason = error.message
        return
    if isinstance(error, UnknownFormatError) and not record.claimed:
        record.status = FOREIGN
        record.reason = error.message
        return
    error.file = ""
    record.fail(type(error).__name__, error.message, str(error))
    if isinstance(error, StrictError):
        _keep_notes(record, list(error.notes))
    if isinstance(error, UnsupportedLayerError):
        record.layers = [list(layer) for layer in error.layers]


# A worker process: settings and jobs are lines of JSON on its input, outcomes lines of JSON on its output


def main() -> None:
    """Work until the input ends."""
    lines = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not write between the answers
    settings = Settings.from_json(lines.readline())
    _warm_up(settings)
    gc.freeze()  # what is loaded stays: no collection has to look at it
    answers.write(READY + b"\n")
    answers.flush()
    transfer.MAX_THREADS = 1  # there is a worker for each core
    jobs: queue.SimpleQueue[Record] = queue.SimpleQueue()

    def listen() -> None:
        """Read jobs ahead, and end the process with its input, even in the middle of a file: its supervisor is gone."""
        try:
            for line in lines:
                for job in from_line(line):
                    jobs.put(job)
        except MemoryError:
            os._exit(_NO_MEMORY)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        job = jobs.get()
        try:
            with memory_limit(settings.memory):
                convert_one(job, settings)
        except MemoryError:  # while another was handled
            _fail_for_memory(job, settings)
        answers.write(to_line([job]).encode() + b"\n")
        answers.flush()


def _warm_up(settings: Settings) -> None:
    """Import what the work needs, so that the first file does not pay for it in time or memory."""
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
    """Converts files in some set of processes."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run(self, jobs: Iterable[Record]) -> Outcomes:
        """Convert files; yield each when its record has the outcome.

        Raises:
            T7BridgeError: there is no process to work, and none can be started.
        """
        waiting = iter(jobs)
        while self._feed(waiting):
            try:
                answer = self._answers.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                yield None
            else:
                yield from self._take(answer)

    def _feed(self, waiting: Iterator[Record]) -> bool:
        """Hand out files that wait; return whether any are in progress."""
        raise NotImplementedError

    def _take(self, answer: Any) -> Iterable[Record | None]:
        """Return the files that an answer finishes."""
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
        places: of inputs and outputs.
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
        """See `Engine`."""
        return self._current

    def run(self, jobs: Iterable[Record]) -> Outcomes:
        """See `Engine`."""
        for job in jobs:
            self._current = [job]
            yield convert_one(job, self._settings)


class _Worker:
    """A worker process as its supervisor sees it.

    Attributes:
        jobs: jobs assigned and not yet answered, in order.
        began: when the first of them began; `None` before the worker is ready.
        late: whether it was killed because a file took too long.
        memory: gives it a little more where it is stuck at its limit.
    """

    def __init__(self, settings: Settings, answers: queue.SimpleQueue[Any]) -> None:
        self.jobs: deque[Record] = deque()
        self.began: float | None = None
        self.late = False
        quiet = None if os.environ.get("T7BRIDGE_TRACEBACK") else subprocess.DEVNULL
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=quiet,
            **ALONE,
        )
        self.memory = MemoryWatch(self._process.pid)
        assert self._process.stdin is not None
        self._input = self._process.stdin
        self._send(settings.as_json())
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    def _listen(self, answers: queue.SimpleQueue[tuple[_Worker, list[bytes] | None]]) -> None:
        """Pass on the lines of the process; `None` is its end."""
        assert self._process.stdout is not None
        rest = b""
        with self._process.stdout as output:
            while piece := os.read(output.fileno(), 1 << 20):
                *lines, rest = (rest + piece).split(b"\n")
                answers.put((self, lines))
                time.sleep(_PAUSE_SECONDS)
        answers.put((self, None))

    def _send(self, line: str) -> None:
        """Send a line; a dead worker is noticed elsewhere."""
        with contextlib.suppress(OSError):
            self._input.write(line.encode() + b"\n")
            self._input.flush()

    def give(self, jobs: list[Record]) -> None:
        """Assign it more jobs."""
        if self.began is not None and not self.jobs:
            self.began = time.monotonic()
        self.jobs += jobs
        self._send(to_line(jobs))

    def kill(self) -> None:
        """Kill it."""
        kill(self._process)

    def end(self) -> str:
        """Wait for its end, and return a description of the cause."""
        with contextlib.suppress(OSError):
            self._input.close()
        code = self._process.wait()
        if code < 0:
            with contextlib.suppress(ValueError):
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
        self._returned: deque[Record] = deque()
        """Jobs of workers that died."""
        self._workers = [_Worker(settings, self._answers) for _ in range(workers)]

    def current(self) -> list[Record]:
        """See `Engine`."""
        return [worker.jobs[0] for worker in self._workers if worker.jobs and worker.began is not None]

    def _feed(self, waiting: Iterator[Record]) -> bool:
        """See `Engine`; watch the memory and the time of each worker, too."""
        now = time.monotonic()
        for worker in self._workers:
            self._refill(worker, waiting)
            if not worker.jobs or worker.began is None:
                continue
            if self._settings.memory:
                worker.memory.relieve()
            if self._timeout and now - worker.began > self._timeout:
                worker.late = True
                worker.kill()
        return any(worker.jobs for worker in self._workers)

    def _refill(self, worker: _Worker, waiting: Iterator[Record]) -> None:
        """Refill a worker when half of its queue is done, or at once with a large file."""
        if len(worker.jobs) > _AHEAD_JOBS // 2:
            return
        room = _AHEAD_BYTES - sum(map(self._weight, worker.jobs))
        more: list[Record] = []
        while room > 0 and len(worker.jobs) + len(more) < _AHEAD_JOBS:
            if not self._returned:
                self._returned.extend(islice(waiting, 1))
            if not self._returned:
                break
            weight = self._weight(self._returned[0])
            is_idle = not worker.jobs and not more
            if weight > room and not is_idle:
                break  # a large file waits for an idle worker
            more.append(self._returned.popleft())
            room -= weight
        if more:
            worker.give(more)

    def _weight(self, job: Record) -> int:
        """Return the weight of a job for queuing ahead. A small remote file may take long too: few queue behind it."""
        is_remote = local_path(job.place) is None or local_path(self._settings.folder) is None
        if is_remote:
            return job.bytes + _AHEAD_BYTES // 4
        return job.bytes

    def _take(self, answer: tuple[_Worker, list[bytes] | None]) -> Iterator[Record | None]:
        """See `Engine`: an answer is a worker, and the lines that it wrote."""
        worker, lines = answer
        if lines is None:  # its end
            if worker in self._workers:
                yield self._replace(worker)
            return
        worker.began = time.monotonic()
        for line in lines:
            if line != READY:
                (outcome,) = from_line(line)
                yield worker.jobs.popleft().take(outcome)

    def _replace(self, worker: _Worker) -> Record | None:
        """Replace a dead worker, and mark the file that it was working on as failed."""
        cause = worker.end()
        if worker.began is None:
            raise T7BridgeError(
                f"a worker process cannot be started: it ended with {cause}",
                hint="T7BRIDGE_TRACEBACK=1 in the environment shows why.",
            )
        self._workers[self._workers.index(worker)] = _Worker(self._settings, self._answers)
        if not worker.jobs:
            return None
        job = worker.jobs.popleft()
        self._returned.extendleft(reversed(worker.jobs))
        if worker.late:
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
"""The engine of each thread of this machine of a cluster, and its settings."""


def convert_group(settings: str, timeout: float | None, jobs: str) -> str:
    """Convert a group of files on a machine of the cluster. Inputs and outputs are JSON text."""
    thread = threading.get_ident()
    key = (settings, timeout)
    key_of_engine, engine = _engines.get(thread, (None, None))
    if engine is None or key_of_engine != key:
        if engine is not None:
            engine.close()
        engine = LocalEngine(Settings.from_json(settings), 1, timeout)
        _engines[thread] = key, engine
    return to_line(filter(None, engine.run(from_line(jobs))))


def end_workers() -> None:
    """End the idle worker processes of this machine."""
    for thread in list(_engines):
        _, engine = _engines[thread]
        if not engine.current():
            _engines.pop(thread)[1].close()


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
        self._seen = time.monotonic()
        """When the cluster had a worker."""

    def current(self) -> list[Record]:
        """Return the first files of the oldest groups; only the cluster knows which are in progress."""
        return [jobs[0] for jobs in islice(self._running.values(), self._threads)]

    def _feed(self, waiting: Iterator[Record]) -> bool:
        """See `Engine`; raise an error if the cluster has no worker for too long."""
        self._threads = sum(self._client.nthreads().values())
        if self._threads:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > _NO_WORKER_SECONDS:
            raise T7BridgeError("the Dask cluster has no worker", hint="Start some with `dask worker ADDRESS`.")
        while len(self._running) < _GROUPS_A_THREAD * max(1, self._threads):
            group = _next_group(waiting)
            if not group:
                break
            self._submit(group)
        return bool(self._running)

    def _submit(self, jobs: list[Record]) -> None:
        """Send a group to the cluster; its answer is the future."""
        future = self._client.submit(convert_group, self._settings, self._timeout, to_line(jobs), pure=False)
        self._running[future] = jobs
        future.add_done_callback(self._answers.put)

    def _take(self, answer: Any) -> Iterator[Record]:
        """See `Engine`: an answer is the future of a group."""
        jobs = self._running.pop(answer)
        if answer.status == "finished":
            by_number = {job.number: job for job in jobs}
            for result in from_line(answer.result()):
                yield by_number[result.number].take(result)
            return
        error = answer.exception() if answer.status == "error" else None
        if len(jobs) > 1:  # one of them kills machines: isolate it
            for job in jobs:
                self._submit([job])
            return
        reason = answer.status
        if error:
            reason = f"could not be converted on the cluster: {type(error).__name__}: {error}"
        # By its name: Dask may not be installed.
        kind = "WorkerDied" if type(error).__name__ == "KilledWorker" else "ClusterError"
        yield jobs[0].fail(kind, "could not be converted on the cluster", reason)

    def close(self) -> None:
        """Cancel pending work, and end the cluster if it was started here."""
        for future in self._running:
            future.cancel()
        with contextlib.suppress(Exception):  # the cluster may already be gone
            self._client.run(end_workers)
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def _next_group(waiting: Iterator[Record]) -> list[Record]:
    """Return the next files, up to the size of a group."""
    group: list[Record] = []
    for job in waiting:
        group.append(job)
        if len(group) >= _GROUP_JOBS or sum(job.bytes for job in group) >= _GROUP_BYTES:
            break
    return group
