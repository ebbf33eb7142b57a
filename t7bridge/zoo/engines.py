"""The interface of engines, and the table of them."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from typing import Protocol

from ..errors import ModelError
from .filesystems import is_in_memory
from .job import FileOutcome, Job, Settings

ENGINES = ("local", "dask")


class Engine(Protocol):
    """Converts files in some set of processes."""

    def run(self, jobs: Iterable[Job]) -> Generator[FileOutcome | None, None, None]:
        """Convert files; yield outcomes in any order, and `None` now and then when there are none."""

    def current(self) -> list[Job]:
        """Return the jobs in progress, as far as they are known."""

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
        ModelError: the engine does not exist, or does not support the request.
        UnsupportedError: its library is not installed.
    """
    if name not in ENGINES:
        raise ModelError(f"unknown engine {name!r}", expected=" or ".join(ENGINES))
    in_memory = is_in_memory(places)
    if name == "dask":
        if in_memory:
            raise ModelError("other processes cannot access memory://", hint="Use the local engine.")
        from .dask import DaskEngine

        return DaskEngine(settings, scheduler, workers, timeout)
    if scheduler is not None:
        raise ModelError("only the Dask engine has a scheduler", expected="engine='dask'")
    if workers == 0 or in_memory:
        if timeout or settings.memory:
            raise ModelError(
                "time and memory limits need worker processes",
                hint="Use --workers 1 or more, and no memory:// URLs.",
            )
        from .local import InlineEngine

        return InlineEngine(settings)
    from .local import LocalEngine

    return LocalEngine(settings, workers or cores(), timeout)


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
