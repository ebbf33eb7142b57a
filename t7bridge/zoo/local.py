"""The engine for this machine: worker processes, each of which may die or hang at the cost of its current file only.

Workers are spawned, not forked, and read their jobs from a pipe some files ahead, so that a small file costs no wait.
Jobs are done in order, so the first one without an answer is the one a dead worker was working on.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator

from ..errors import T7BridgeError
from .filesystems import local_path
from .job import FAILED, FileOutcome, Job, Settings, as_line
from .worker import READY

_START = "import sys; sys.path[:] = sys.argv[1:]; from t7bridge.zoo.worker import main; main()"
_AHEAD_JOBS, _AHEAD_BYTES = 48, 4 << 20
_TICK_SECONDS = 0.1
_PAUSE_SECONDS = 0.01
"""Seconds for which answers are collected: waking up for each of a thousand a second would take a core."""

Inbox = queue.SimpleQueue["tuple[_Worker, list[bytes] | None]"]
"""Lines from a worker; `None` is its end."""


def _weight(job: Job) -> int:
    """Return the weight of a job for queuing ahead. A small remote file may take long too: few queue behind it."""
    is_remote = local_path(job.source) is None or local_path(job.target) is None
    return job.bytes + (_AHEAD_BYTES // 4 if is_remote else 0)


class _Worker:
    """A worker process as its supervisor sees it.

    Attributes:
        jobs: jobs assigned and not yet answered, in order.
        weight: their total weight.
        began: when the first of them began; `None` before the worker is ready.
        late: whether it was killed because a file took too long.
    """

    def __init__(self, settings: Settings, inbox: Inbox) -> None:
        self.jobs: deque[Job] = deque()
        self.weight = 0
        self.began: float | None = None
        self.late = False
        quiet = None if os.environ.get("T7BRIDGE_TRACEBACK") else subprocess.DEVNULL
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=quiet,
            start_new_session=True,  # Ctrl-C goes to the supervisor only
        )
        assert self._process.stdin is not None
        self._input = self._process.stdin
        self.send(settings.as_json())
        threading.Thread(target=self._listen, args=(inbox,), daemon=True).start()

    def _listen(self, inbox: Inbox) -> None:
        assert self._process.stdout is not None
        rest = b""
        with self._process.stdout as answers:
            while piece := os.read(answers.fileno(), 1 << 20):
                *lines, rest = (rest + piece).split(b"\n")
                inbox.put((self, lines))
                time.sleep(_PAUSE_SECONDS)
        inbox.put((self, None))

    def send(self, line: str) -> None:
        """Send a line; a dead worker is noticed elsewhere."""
        with contextlib.suppress(OSError):
            self._input.write(line.encode() + b"\n")
            self._input.flush()

    def give(self, jobs: list[Job], weight: int) -> None:
        """Assign it more jobs."""
        if self.began is not None and not self.jobs:
            self.began = time.monotonic()
        self.jobs += jobs
        self.weight += weight
        self.send(as_line(jobs))

    def answered(self) -> Job:
        """Mark the first of its jobs as done."""
        job = self.jobs.popleft()
        self.weight -= _weight(job)
        return job

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def end(self) -> str:
        """Wait for its end, and return a description of the cause."""
        with contextlib.suppress(OSError):
            self._input.close()
        code = self._process.wait()
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"


class LocalEngine:
    """Converts files in worker processes on this machine.

    Args:
        settings: settings of each conversion.
        workers: number of processes.
        timeout: time limit for one file, in seconds.
    """

    def __init__(self, settings: Settings, workers: int, timeout: float | None = None) -> None:
        self._settings = settings
        self._timeout = timeout
        self._inbox: Inbox = queue.SimpleQueue()
        self._workers = [_Worker(settings, self._inbox) for _ in range(workers)]

    def current(self) -> list[Job]:
        """Return the jobs in progress."""
        return [worker.jobs[0] for worker in self._workers if worker.jobs and worker.began is not None]

    def run(self, jobs: Iterable[Job]) -> Generator[FileOutcome | None, None, None]:
        """Convert files; yield outcomes as they arrive, and `None` now and then when there are none.

        Raises:
            T7BridgeError: no worker can be started.
        """
        waiting = iter(jobs)
        returned: deque[Job] = deque()
        looked = time.monotonic()
        hungry = self._workers
        while True:
            for worker in hungry:
                self._feed(worker, waiting, returned)
            hungry = []
            if not any(worker.jobs for worker in self._workers):
                return
            if time.monotonic() - looked > _TICK_SECONDS:
                self._end_late()
                looked = time.monotonic()
            try:
                worker, lines = self._inbox.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                yield None
                continue
            if lines is None:
                if worker in self._workers:
                    yield self._replace(worker, returned)
                    hungry = self._workers
                continue
            worker.began, hungry = time.monotonic(), [worker]
            for outcome in json.loads(b"[%b]" % b",".join(line for line in lines if line != READY)):
                worker.answered()
                yield FileOutcome(*outcome)

    @staticmethod
    def _feed(worker: _Worker, waiting: Iterator[Job], returned: deque[Job]) -> None:
        """Refill a worker when half of its queue is done, or at once with a large file."""
        if len(worker.jobs) > _AHEAD_JOBS // 2:
            return
        room = _AHEAD_BYTES - worker.weight
        more: list[Job] = []
        while room > 0 and len(worker.jobs) + len(more) < _AHEAD_JOBS:
            job = returned.popleft() if returned else next(waiting, None)
            if job is None:
                break
            weight = _weight(job)
            if weight > room and (worker.jobs or more):
                returned.appendleft(job)  # a large file waits for an idle worker
                break
            more.append(job)
            room -= weight
        if more:
            worker.give(more, _AHEAD_BYTES - worker.weight - room)

    def _end_late(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if self._timeout and worker.jobs and worker.began is not None and now - worker.began > self._timeout:
                worker.late = True
                worker.kill()

    def _replace(self, worker: _Worker, returned: deque[Job]) -> FileOutcome | None:
        """Replace a dead worker, and mark the file that it was working on as failed."""
        how = worker.end()
        if worker.began is None:
            raise T7BridgeError(
                f"a worker process cannot be started: it ended with {how}",
                hint="T7BRIDGE_TRACEBACK=1 in the environment shows why.",
            )
        self._workers[self._workers.index(worker)] = _Worker(self._settings, self._inbox)
        if not worker.jobs:
            return None
        job = worker.answered()
        returned.extendleft(reversed(worker.jobs))
        if worker.late:
            reason = f"took longer than the {self._timeout:g} seconds of --timeout"
            return FileOutcome(job.number, FAILED, "Timeout", "took longer than --timeout", reason)
        reason = f"the process that worked on it ended with {how}"
        if how == "signal SIGKILL":
            reason += ", possibly out of memory"
        return FileOutcome(job.number, FAILED, "WorkerDied", reason, reason)

    def close(self) -> None:
        """Kill all workers."""
        for worker in self._workers:
            worker.kill()
            worker.end()
        self._workers = []


class InlineEngine:
    """Converts files one after another in this process: no startup cost, but no isolation either."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._job: Job | None = None

    def current(self) -> list[Job]:
        """Return the jobs in progress."""
        return [self._job] if self._job else []

    def run(self, jobs: Iterable[Job]) -> Generator[FileOutcome | None, None, None]:
        """Convert files; yield each outcome when it is complete."""
        from .one_file import convert_one

        for job in jobs:
            self._job = job
            yield convert_one(job, self._settings)

    def close(self) -> None:
        """Do nothing."""
