"""The engine for a Dask cluster, an existing one or one on this machine. The only importer of Dask.

Files go to the cluster in groups. Each of its threads has a worker process of our own, which does the work under the
same protection as on one machine: a file that hangs or exhausts memory loses only itself. If a machine of the cluster
is lost, Dask reassigns its groups.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from itertools import count
from typing import Any

from ..errors import T7BridgeError, UnsupportedError
from .job import FAILED, FileOutcome, Job, Settings, as_line
from .local import LocalEngine

_GROUP_JOBS, _GROUP_BYTES = 32, 16 << 20
_GROUPS_A_THREAD = 3
_TICK_SECONDS = 0.25
_PATIENCE_SECONDS = 30.0

_engines: dict[int, tuple[tuple[str, float | None], LocalEngine]] = {}
"""The engine of each thread of this machine, and its settings."""


def convert_group(settings: str, timeout: float | None, jobs: str) -> list[str]:
    """Convert a group of files on a machine of the cluster. Inputs and outputs are JSON text."""
    wanted, thread = (settings, timeout), threading.get_ident()
    made_for, engine = _engines.get(thread, (None, None))
    if engine is None or made_for != wanted:
        if engine is not None:
            engine.close()
        engine = LocalEngine(Settings.from_json(settings), 1, timeout)
        _engines[thread] = wanted, engine
    outcomes = engine.run(Job(*job) for job in json.loads(jobs))
    return [outcome.as_json() for outcome in outcomes if outcome is not None]


def end_workers() -> None:
    """End the idle worker processes of this machine."""
    for thread in list(_engines):
        _, engine = _engines[thread]
        if not engine.current():
            _engines.pop(thread)[1].close()


class DaskEngine:
    """Converts files on a Dask cluster.

    Args:
        settings: settings of each conversion.
        scheduler: address of the scheduler, `tcp://host:8786`; without one a cluster is started on this machine.
        workers: number of processes of the local cluster; by default one a core.
        timeout: time limit for one file, in seconds.

    Raises:
        UnsupportedError: Dask is not installed.
        T7BridgeError: the scheduler cannot be reached.
    """

    def __init__(self, settings: Settings, scheduler: str | None, workers: int | None, timeout: float | None) -> None:
        try:
            import distributed
        except ImportError as error:
            raise UnsupportedError("Dask is not installed", hint="pip install 't7bridge[dask]'") from error
        self._settings = settings.as_json()
        self._timeout = timeout
        library: Any = distributed  # partly untyped
        self._cluster: Any = None
        try:
            if scheduler is None:
                self._cluster = library.LocalCluster(
                    n_workers=workers or None, threads_per_worker=1, dashboard_address=None
                )
            self._client: Any = library.Client(self._cluster or scheduler, timeout=_PATIENCE_SECONDS)
        except (OSError, ValueError) as error:
            raise T7BridgeError(f"the Dask scheduler cannot be reached: {error}", file=scheduler or "") from error
        self._running: dict[int, tuple[Any, list[Job]]] = {}
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._numbers = count()
        self._name = f"t7bridge-zoo-{os.urandom(6).hex()}"
        self._threads = 1

    def current(self) -> list[Job]:
        """Return the first files of the oldest groups; only the cluster knows which are in progress."""
        return [jobs[0] for _, jobs in list(self._running.values())[: self._threads]]

    def run(self, jobs: Iterable[Job]) -> Generator[FileOutcome | None, None, None]:
        """Convert files; yield their outcomes by groups, and `None` now and then when there are none.

        Raises:
            T7BridgeError: the cluster has had no worker for a while, or has disappeared.
        """
        waiting, lonely = iter(jobs), time.monotonic()
        while True:
            self._threads = sum(self._client.nthreads().values())
            if self._threads:
                lonely = time.monotonic()
            elif time.monotonic() - lonely > _PATIENCE_SECONDS:
                raise T7BridgeError("the Dask cluster has no worker", hint="Start some with `dask worker ADDRESS`.")
            while len(self._running) < _GROUPS_A_THREAD * max(1, self._threads):
                group = _next_group(waiting)
                if not group:
                    break
                self._submit(group)
            if not self._running:
                return
            try:
                number = self._done.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                yield None
                continue
            yield from self._take(number)

    def _submit(self, jobs: list[Job]) -> None:
        number = next(self._numbers)
        key = f"{self._name}-{number}"
        future = self._client.submit(convert_group, self._settings, self._timeout, as_line(jobs), key=key, pure=False)
        self._running[number] = (future, jobs)
        future.add_done_callback(lambda _: self._done.put(number))

    def _take(self, number: int) -> Iterator[FileOutcome]:
        future, jobs = self._running.pop(number)
        if future.status == "finished":
            yield from (FileOutcome(*json.loads(line)) for line in future.result())
            return
        error = future.exception() if future.status == "error" else None
        if len(jobs) > 1:  # one of them kills machines: isolate it
            for job in jobs:
                self._submit([job])
            return
        reason = f"could not be converted on the cluster: {type(error).__name__}: {error}" if error else future.status
        kind = "WorkerDied" if type(error).__name__ == "KilledWorker" else "ClusterError"
        yield FileOutcome(jobs[0].number, FAILED, kind, "could not be converted on the cluster", reason)

    def close(self) -> None:
        """Cancel pending work, and end the cluster if it was started here."""
        for future, _ in self._running.values():
            future.cancel()
        with contextlib.suppress(Exception):  # the cluster may already be gone
            self._client.run(end_workers)
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def _next_group(waiting: Iterator[Job]) -> list[Job]:
    """Return the next files, up to the size of a group."""
    group: list[Job] = []
    for job in waiting:
        group.append(job)
        if len(group) >= _GROUP_JOBS or sum(job.bytes for job in group) >= _GROUP_BYTES:
            break
    return group
