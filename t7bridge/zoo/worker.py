"""A worker process: reads settings and jobs as lines of JSON, answers with outcomes as lines of JSON.

It ends when its input is closed, even in the middle of a job: the parent process is gone then.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

from ..io import copy as transfer
from .job import Job, Settings
from .one_file import convert_one, warm_up

READY = b"ready"


def main() -> None:
    """Work until the input ends."""
    lines = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not write between the answers
    settings = Settings.from_json(lines.readline())
    warm_up(settings)
    answers.write(READY + b"\n")
    answers.flush()
    transfer.MAX_THREADS = 1  # there is a worker for each core
    jobs: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()

    def listen() -> None:
        for line in lines:
            for job in json.loads(line):
                jobs.put(job)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        job = Job(*jobs.get())
        with memory_limit(settings.memory):
            outcome = convert_one(job, settings)
        answers.write(outcome.as_json().encode() + b"\n")
        answers.flush()


@contextlib.contextmanager
def memory_limit(allowed: int | None) -> Iterator[None]:
    """Limit further memory allocation of this process to a number of bytes, where the system supports it.

    On Linux that is `RLIMIT_DATA`, which counts allocations and not mapped files; elsewhere `RLIMIT_AS`, which counts
    both.
    """
    if allowed is None:
        yield
        return
    try:
        import resource
    except ImportError:  # Windows has no such limits
        yield
        return
    kind, used = resource.RLIMIT_AS, 0
    with contextlib.suppress(OSError), open("/proc/self/statm", "rb") as file:
        kind, used = resource.RLIMIT_DATA, int(file.read().split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(kind)
    wanted = used + allowed
    resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
