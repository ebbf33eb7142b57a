"""Pause Python's cyclic garbage collector while the objects of a file are created."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0
"""Number of open contexts that share one pause."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector for the duration of the context; it would scan all new objects again and again.

    Several threads may be inside; the last one resumes it. It stays off where the program had disabled it.
    """
    global _inside
    with _lock:
        paused = _inside > 0 or gc.isenabled()
        if paused:
            _inside += 1
            gc.disable()
    try:
        yield
    finally:
        if paused:
            with _lock:
                _inside -= 1
                if not _inside:
                    gc.enable()
