"""Times and memory of commands, taken in turns, so that a machine that slows down slows all of them."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import define


@define(frozen=True)
class Result:
    """What several runs of one thing took.

    Attributes:
        seconds: of each run.
        peak_mib: the largest resident memory of a run, in MiB; 0 where it was not a process of its own.
    """

    seconds: tuple[float, ...]
    peak_mib: float = 0.0

    @property
    def median(self) -> float:
        """The median of the times, in seconds."""
        return statistics.median(self.seconds)


def commands(runs: int, **named: Sequence[object]) -> dict[str, Result]:
    """Run commands in turns. One that begins with a path to remove (`-path`) starts without that file.

    Args:
        runs: how often each.
        named: command lines by name.

    Raises:
        SystemExit: a command fails.
    """
    seconds: dict[str, list[float]] = {name: [] for name in named}
    peaks = dict.fromkeys(named, 0.0)
    for _ in range(runs):
        for name, (target, *command) in named.items():
            Path(str(target)).unlink(missing_ok=True)
            start = time.perf_counter()
            process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            _, status, usage = os.wait4(process.pid, 0)
            seconds[name].append(time.perf_counter() - start)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                assert process.stderr is not None
                raise SystemExit(f"{name} fails: {process.stderr.read().decode()[-500:]}")
            assert process.stderr is not None
            process.stderr.close()
            peaks[name] = max(peaks[name], usage.ru_maxrss / 1024)
    return {name: Result(tuple(seconds[name]), peaks[name]) for name in named}


def calls(runs: int, **named: Callable[[], object]) -> dict[str, Result]:
    """Call functions in turns, each once beforehand."""
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
