"""The progress of a run: how many files and bytes are done, at which rates."""

from __future__ import annotations

import time
from collections import Counter, deque

from attrs import field

from ..data import define
from .journal import STATUSES

_WINDOW_SECONDS = 10.0
"""Seconds over which rates are averaged."""


@define
class Progress:
    """Progress of a run.

    Attributes:
        files: number of files in this run.
        bytes: their total size.
        counts: number of finished ones by status: `done`, `failed`, `nothing`, `foreign`.
        done_bytes: size of the finished ones.
        current: names of the files in progress, as far as known.
        started: start of the conversion, on the clock of `time.monotonic`.
    """

    files: int
    bytes: int
    counts: Counter[str] = field(factory=Counter)
    done_bytes: int = 0
    current: list[str] = field(factory=list)
    started: float = field(factory=time.monotonic)
    _marks: deque[tuple[float, int, int]] = field(factory=deque, repr=False)
    """Samples of the last seconds: time, finished files, and their bytes."""

    @property
    def finished(self) -> int:
        """Number of files that are finished."""
        return sum(self.counts[status] for status in STATUSES)

    @property
    def seconds(self) -> float:
        """Seconds since the conversion began."""
        return time.monotonic() - self.started

    def add(self, status: str, size: int) -> None:
        """Count a finished file."""
        self.counts[status] += 1
        self.done_bytes += size

    def mark(self) -> None:
        """Sample the progress, for the rates; to be called a few times a second."""
        now = time.monotonic()
        self._marks.append((now, self.finished, self.done_bytes))
        while True:
            oldest, _, _ = self._marks[0]  # at the latest the one of now
            if now - oldest <= _WINDOW_SECONDS:
                return
            self._marks.popleft()

    @property
    def rates(self) -> tuple[float, float]:
        """Return files and bytes a second, over the last ten seconds; 0 before there are two samples."""
        if len(self._marks) < 2:
            return 0.0, 0.0
        start, files_at_start, bytes_at_start = self._marks[0]
        end, files, size = self._marks[-1]
        seconds = max(end - start, 1e-6)
        return (files - files_at_start) / seconds, (size - bytes_at_start) / seconds

    @property
    def seconds_left(self) -> float | None:
        """Return an estimate, by files or by bytes, whichever is longer: each misjudges what files of other sizes take.

        `None` while nothing is finished, and when nothing is left.
        """
        files_a_second, bytes_a_second = self.rates
        estimates: list[float] = []
        if files_a_second > 0 and self.files > self.finished:
            estimates.append((self.files - self.finished) / files_a_second)
        if bytes_a_second > 0 and self.bytes > self.done_bytes:
            estimates.append((self.bytes - self.done_bytes) / bytes_a_second)
        return max(estimates, default=None)
