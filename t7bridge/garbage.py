"""Python's search for cyclic garbage, while the objects of a file are made and none of them is dropped."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = (2000, 1, 1 << 30)
"""After so many new objects they are looked through, while the processor's cache has them, and are old then; old ones
are never looked through again."""

_MOST_OWED = 250
"""Searches among new objects, of about 4000 each, before there is one among all."""

_lock = threading.Lock()
_readers = _owed = 0
_before = gc.get_threshold()


@contextmanager
def young_only() -> Iterator[None]:
    """Look for garbage among new objects only, as long as the context lasts.

    Python would look through all objects again and again while many are made, which took half the time; and with no
    search at all it would look through all of them at the end, out of its cache. A program that has switched the
    search off, or frozen what it has, is left alone. Several threads may be inside.
    """
    global _readers, _before
    if not gc.isenabled() or not gc.get_threshold()[0]:
        yield
        return
    with _lock:
        if not _readers:
            _before = gc.get_threshold()
            if _GENERATIONS:
                gc.set_threshold(*_YOUNG)
            else:
                gc.disable()
        _readers += 1
    try:
        yield
    finally:
        with _lock:
            _readers -= 1
            if not _readers:
                _end()


def _end() -> None:
    global _owed
    if not _GENERATIONS:
        gc.enable()
        return
    gc.set_threshold(*_before)
    aged = gc.get_count()[2]
    if aged <= _before[2] or gc.get_freeze_count():
        return
    # So many objects are old now that the next new one would have Python look through everything. To freeze and
    # unfreeze begins its counts anew. What earlier files left as garbage is found all the same, when it may be much.
    if _owed > _MOST_OWED:
        gc.collect()
        _owed = 0
    else:
        gc.freeze()
        gc.unfreeze()
        _owed += aged


_GENERATIONS = sys.version_info < (3, 14)
"""Since Python 3.14 the thresholds mean something else, as old objects are looked through in small steps."""
