"""Times and memory of commands, run alternately, so that a machine that slows down affects all of them."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import define


@define(frozen=True)
class Result:
    """Measurements of several runs.

    Attributes:
        seconds: of each run.
        peak_mib: the largest resident memory of a run, in MiB; 0 if it was not a process of its own.
    """

    seconds: tuple[float, ...]
    peak_mib: float = 0.0

    @property
    def median(self) -> float:
        """The median of the times, in seconds."""
        return statistics.median(self.seconds)


# A process is charged the memory of its parent at its start; so a small one starts it.
_LAUNCHER = """
import os, sys, time
start = time.perf_counter()
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
child = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(child, 0)
sys.stdout.write(f"{time.perf_counter() - start} {usage.ru_maxrss / 1024}")
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


def commands(runs: int, **named: Sequence[object]) -> dict[str, Result]:
    """Run commands alternately.

    Args:
        runs: number of runs of each.
        named: by name a file to remove beforehand, and the command line.

    Raises:
        SystemExit: a command fails.
    """
    seconds: dict[str, list[float]] = {name: [] for name in named}
    peaks = dict.fromkeys(named, 0.0)
    for _ in range(runs):
        for name, (target, *command) in named.items():
            Path(str(target)).unlink(missing_ok=True)
            os.sync()  # earlier writes must not go to the disk during this run
            launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, *map(str, command)]
            run = subprocess.run(launcher, capture_output=True, text=True)
            if run.returncode:
                raise SystemExit(f"{name} fails: {run.stderr[-500:]}")
            elapsed, peak = map(float, run.stdout.split())
            seconds[name].append(elapsed)
            peaks[name] = max(peaks[name], peak)
    return {name: Result(tuple(seconds[name]), peaks[name]) for name in named}


def calls(runs: int, **named: Callable[[], object]) -> dict[str, Result]:
    """Call functions alternately, each once beforehand."""
    seconds: dict[str, list[float]] = {name: [] for name in named}
    for function in named.values():
        function()
    for _ in range(runs):
        for name, function in named.items():
            start = time.perf_counter()
            value = function()
            seconds[name].append(time.perf_counter() - start)
            del value
    return {name: Result(tuple(times)) for name, times in seconds.items()}
