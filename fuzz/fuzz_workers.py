"""Child processes for inputs that may never end, or end the process; all other results are returned.

A child processes a block of numbers and writes one result for each into a pipe. If an input takes too much CPU, the
system ends the child (`ITIMER_PROF`), and the next child resumes after that input. A block starts from the memory of
the parent, so that nothing adds up.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_HEAD = struct.Struct("<qI")


def in_workers(
    count: int, work: Callable[[int], str], *, first: int = 0, block: int = 2000, seconds: float = 10.0, nbytes: int = 0
) -> Iterator[tuple[int, str]]:
    """Call a function with each number, in one child process at a time.

    Args:
        count: number of numbers.
        work: returns the result for a number, in the child. Exceptions end the child.
        first: the first number.
        block: numbers per child.
        seconds: CPU time for one number.
        nbytes: address space that a child may use beyond the parent's; unlimited if 0.

    Yields:
        Each number with its result, in order; `killed by …` if a child ended before it had one.
    """
    number, end = first, first + count
    while number < end:
        stop = min(end, number + block)
        for done, answer in _child(range(number, stop), work, seconds, nbytes):
            yield done, answer
            number = done + 1
        if number < stop:
            status = os.waitstatus_to_exitcode(os.wait()[1])
            yield number, f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
            number += 1
        else:
            os.wait()


def _child(numbers: range, work: Callable[[int], str], seconds: float, nbytes: int) -> Iterator[tuple[int, str]]:
    reading, writing = os.pipe()
    if not os.fork():
        code = 1
        try:
            os.close(reading)
            if nbytes:
                with open("/proc/self/statm") as file:
                    most = int(file.read().split()[0]) * resource.getpagesize() + nbytes
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            for number in numbers:
                signal.setitimer(signal.ITIMER_PROF, seconds)
                answer = work(number).encode()[:60_000]
                os.write(writing, _HEAD.pack(number, len(answer)) + answer)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        while len(head := pipe.read(_HEAD.size)) == _HEAD.size:
            number, length = _HEAD.unpack(head)
            answer = pipe.read(length)
            if len(answer) < length:
                break
            yield number, answer.decode()


def tally(
    title: str,
    answers: Iterable[tuple[int, str]],
    store: Callable[[int], Path],
    *,
    seconds: float = math.inf,
    every: int = 0,
) -> dict[str, int]:
    """Count the results of `in_workers` by their kind, the text before a colon, and store the inputs of findings.

    Args:
        title: of the printed counts.
        answers: each number with its result.
        store: writes the input of a number to a file, and returns its path.
        seconds: time after which no more results are awaited.
        every: how many inputs pass between two lines of progress; none if 0.
    """
    counts: dict[str, int] = {}
    stop = time.monotonic() + seconds
    for number, answer in answers:
        kind = answer.partition(":")[0]
        if is_finding(kind):
            print(f"{store(number)}: {answer}", file=sys.stderr, flush=True)
        counts[kind] = counts.get(kind, 0) + 1
        if every and (number + 1) % every == 0:
            print(number + 1, counts, flush=True)
        if time.monotonic() > stop:
            break
    print(title, sum(counts.values()), counts, flush=True)
    return counts


def is_finding(kind: str) -> bool:
    """Return whether a result of this kind is a difference, or the end of a child."""
    return kind == "DIFFERENT" or kind.startswith(("killed", "ended"))


def write_finding(folder: Path, name: str, data: bytes) -> Path:
    """Write the input of a finding to a folder, which is made if there is none; return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    return path
