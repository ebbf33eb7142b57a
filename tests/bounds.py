"""Bounds on work, by CPU time as a multiple of a small reference's: a slow or a busy machine needs more for both.

Or by the count of calls.
"""

from __future__ import annotations

import cProfile
import functools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

LIMIT = 600
"""References that any small input may take: half a minute of CPU where the reference takes 50 ms.

Work that is exponential in a small file does not come to an end; what is sound takes less than 40 (2 s).
"""


def _reference_seconds() -> float:
    """CPU seconds of some 50 ms of dicts, texts and numbers, which is the kind of work that the package does."""
    begin = time.process_time()
    counts: dict[str, int] = {}
    for number in range(350_000):
        key = str(number % 1000)
        counts[key] = counts.get(key, 0) + number
    return time.process_time() - begin


@functools.cache
def reference() -> float:
    """CPU seconds of the reference in this process, measured once; the first round warms up."""
    _reference_seconds()
    return _reference_seconds()


class OutOfProportionError(AssertionError):
    """Work that takes far more than its input explains."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise OutOfProportionError("stopped after twice the CPU time that is allowed")


@contextmanager
def bounded(references: float = LIMIT) -> Iterator[None]:
    """Fail if a block takes more CPU time than so many references.

    The limit of a block that takes less time than any small input may is at least ten times what the block needs, and
    well below what the fault costs that it is there to find. Where the system has timers of CPU time, a block without
    end is stopped. Blocks are not nested.
    """
    allowed = references * reference()
    has_timer = hasattr(signal, "SIGPROF")
    if has_timer:
        before = signal.signal(signal.SIGPROF, _stop)
        # Code that catches every error is stopped again, each second.
        signal.setitimer(signal.ITIMER_PROF, 2 * allowed, 1)
    begin = time.process_time()
    try:
        yield
    finally:
        seconds = time.process_time() - begin
        if has_timer:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
    if seconds > allowed:
        # The machine may have become busier since the reference was measured.
        allowed = references * _reference_seconds()
    assert seconds <= allowed, f"{seconds:.2f} s of CPU, {references} references take {allowed:.2f} s"


def calls_of(work: Callable[[], object]) -> int:
    """Return how many calls of functions a piece of work makes: the same on every machine, however busy."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())
