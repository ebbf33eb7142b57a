"""Times and memory of commands, run alternately, so that a machine that slows down affects all of them."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from attrs import define


@define(frozen=True)
class Result:
    """Measurements of several runs.

    Attributes:
        seconds: of each run.
        cpu_seconds: processor time of each run, of all threads together: what other programs change least.
        peak_mib: the largest resident memory of a run, in MiB; 0 where it was not a process of its own.
    """

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    peak_mib: float = 0.0

    @classmethod
    def of(cls, results: Sequence[Result]) -> Result:
        """Return the runs of several measurements as those of one."""
        seconds = tuple(one for result in results for one in result.seconds)
        cpu_seconds = tuple(one for result in results for one in result.cpu_seconds)
        return cls(seconds, cpu_seconds, max(result.peak_mib for result in results))

    @property
    def median(self) -> float:
        """The median of the times, in seconds."""
        return statistics.median(self.seconds)

    @property
    def cpu(self) -> float:
        """The median of the processor times, in seconds."""
        return statistics.median(self.cpu_seconds)

    def over(self, other: Result) -> tuple[float, float]:
        """Ratios of these times to those of another, by the clock and of processor time."""
        return self.median / other.median, self.cpu / other.cpu


# A process is charged the memory of its parent at its start; so a small one starts it.
_LAUNCHER = """
import os, sys, time
start = time.perf_counter()
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
child = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(child, 0)
elapsed = time.perf_counter() - start
sys.stdout.write(f"{elapsed} {usage.ru_utime + usage.ru_stime} {usage.ru_maxrss / 1024}")
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


def commands(runs: int, named: Mapping[str, Sequence[object]], may_fail: Collection[str] = ()) -> dict[str, Result]:
    """Run commands alternately, each once beforehand.

    Args:
        runs: number of runs of each.
        named: by name a file to remove beforehand, and the command line.
        may_fail: names of commands that have no result if they fail.

    Raises:
        SystemExit: another command fails.
    """
    candidates = dict(named)
    seconds: dict[str, list[float]] = {name: [] for name in named}
    cpu: dict[str, list[float]] = {name: [] for name in named}
    peaks = dict.fromkeys(named, 0.0)
    for turn in range(runs + 1):
        for name, (_, *command) in list(candidates.items()):
            # What the one before has written is removed, and its memory serves the next: were it left, the next would
            # get other memory, which a virtual machine may first have to fetch from its host.
            for target, *_ in named.values():
                Path(str(target)).unlink(missing_ok=True)
            os.sync()  # earlier writes must not go to the disk during this run
            launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, *map(str, command)]
            run = subprocess.run(launcher, capture_output=True, text=True)
            if run.returncode and name in may_fail:
                del candidates[name]
                continue
            if run.returncode:
                raise SystemExit(f"{name} fails: {run.stderr[-500:]}")
            elapsed, used, peak = map(float, run.stdout.split())
            if turn:
                seconds[name].append(elapsed)
                cpu[name].append(used)
            peaks[name] = max(peaks[name], peak)
    return {name: Result(tuple(seconds[name]), tuple(cpu[name]), peaks[name]) for name in candidates}


def work(python: str | Path, operation: str, path: Path) -> Result:
    """Run an operation of `work.py` in a process.

    Args:
        python: the interpreter, whose t7bridge does it.
        operation: its name.
        path: the file that it reads.

    Raises:
        SystemExit: it fails.
    """
    script = Path(__file__).with_name("work.py")
    run = subprocess.run([python, script, operation, path], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{operation} fails: {run.stderr[-500:]}")
    seconds, cpu_seconds = map(float, run.stdout.split())
    return Result((seconds,), (cpu_seconds,))


def call(function: Callable[[], object]) -> Result:
    """Run a function in this process, once beforehand and once."""
    function()
    start = time.perf_counter()
    used = time.process_time()
    value = function()
    elapsed = time.perf_counter() - start
    result = Result((elapsed,), (time.process_time() - used,))
    del value  # after the measurement, as it takes time
    return result
