"""Python's search for garbage while files are read: less of it, and as before when they are."""

from __future__ import annotations

import gc
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from helpers import PATIENCE, ROOT

import t7bridge
from t7bridge.data import collector_paused


@pytest.fixture(autouse=True)
def search_as_it_is():
    """After any test, the collector is configured as before."""
    before, enabled = gc.get_threshold(), gc.isenabled()
    yield
    gc.set_threshold(*before)
    (gc.enable if enabled else gc.disable)()


def state() -> tuple[bool, tuple[int, int, int]]:
    """Return whether the garbage collector is enabled, and its thresholds."""
    return gc.isenabled(), gc.get_threshold()


def test_as_before_afterwards():
    """After the context, with an error in it too, and after one inside another."""
    before = state()
    with collector_paused():
        inside = state()
        assert inside != before
        with collector_paused():
            assert state() == inside
        assert state() == inside
    assert state() == before
    with pytest.raises(ValueError, match="wrong"), collector_paused():
        raise ValueError("wrong")
    assert state() == before


def test_threads():
    """The last thread that leaves restores the collector's original state."""
    before, inside, leave = state(), threading.Barrier(4), threading.Event()

    def read() -> None:
        with collector_paused():
            inside.wait(PATIENCE)
            leave.wait(PATIENCE)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    with collector_paused():
        inside.wait(PATIENCE)
    assert state() != before
    leave.set()
    for thread in threads:
        thread.join()
    assert state() == before


def test_search_that_is_off_stays_off():
    """A program that has switched it off knows why."""
    gc.disable()
    before = state()
    with collector_paused():
        assert state() == before
    assert state() == before


@pytest.mark.slow
def test_what_a_program_has_frozen_stays_frozen(tmp_path):
    """A server that freezes what it has before it forks keeps that."""
    path = cyclic(tmp_path, 60_000)
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        t7bridge.load(path)
        assert gc.get_freeze_count() >= frozen - 100  # what is dropped is not frozen any more
    finally:
        gc.unfreeze()


def cyclic(folder, count: int):
    """A file of many tables of which each holds itself and the root."""
    number = struct.Struct("<id")
    root = struct.pack("<ii", 3, 1)
    entries = b"".join(
        number.pack(1, place + 1)
        + struct.pack("<iii", 3, place + 2, 2)
        + number.pack(1, 1)
        + struct.pack("<ii", 3, place + 2)
        + number.pack(1, 2)
        + root
        for place in range(count)
    )
    path = folder / "cyclic.t7"
    path.write_bytes(root + struct.pack("<i", count) + entries)
    return path


# In a process of its own: to look through all that the tests have loaded would take a second for each file.
CIRCLES = """
import gc, sys, warnings
import t7bridge
warnings.simplefilter("ignore")  # a file of the corpus has more behind its values
READERS = {"T7Reader", "ObjectReader", "BinaryInput", "TextInput", "Alike", "PtReader", "PtArchive", "PickleContext"}
gc.freeze()  # the modules: each search looks through the values of a file alone
for path in sys.argv[1:]:
    t7bridge.load(path)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    t7bridge.load(path)
    gc.collect()
    kept = {type(each).__name__ for each in gc.garbage} & READERS
    gc.set_debug(0)
    gc.garbage.clear()
    if kept:
        print(path, kept)
"""
PILES = """
import gc, sys, weakref
import t7bridge
gc.collect()
graphs, most = [], 0
for _ in range(25):
    value = t7bridge.load(sys.argv[1])
    graphs.append(weakref.ref(value))
    del value
    most = max(most, sum(graph() is not None for graph in graphs))
print(most)
"""
LOOP = """
import gc, resource, sys
import t7bridge
gc.disable()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
for path in sys.argv[1:]:
    for _ in range(100):
        try:
            t7bridge.load(path)
        except t7bridge.T7BridgeError as error:
            if "Too many" in str(error):
                sys.exit(f"{path}: {error}")
"""


def run(program: str, *paths: Path) -> str:
    """Return the output and the final statistics of a program for some files."""
    done = subprocess.run([sys.executable, "-c", program, *map(str, paths)], capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_memory_of_earlier_files_is_given_back(tmp_path):
    """Graphs that hold themselves, which only the search finds, do not pile up however many are read."""
    most = int(run(PILES, cyclic(tmp_path, 10_000)))
    assert 2 <= most <= 13  # the second generation is collected when ten more have come


@pytest.mark.slow
def test_nobody_keeps_what_was_read() -> None:
    """Unused values are freed at once: readers are not in a cycle with their values.

    A value that refers to itself is a circle, and its weights are in it; those who read it must not be.
    """
    paths = [
        path
        for pattern in ("format/*.t7", "models/*.t7", "legacy/*.t7", "pt/*.pt")
        for path in sorted((ROOT / "testfiles").glob(pattern))
        if not path.name.startswith("object_custom_write")  # its class must be registered first
    ]
    assert len(paths) > 300
    assert run(CIRCLES, *paths) == ""


@pytest.mark.slow
def test_files_are_closed_at_once() -> None:
    """Thousands of files can be loaded in a loop, damaged ones too: each is closed when its value goes."""
    pytest.importorskip("resource")
    bad = sorted((ROOT / "testfiles/bad").glob("tar_*.pt")) + sorted((ROOT / "testfiles/bad").glob("*.t7"))[:20]
    good = [
        ROOT / "testfiles" / name for name in ("models/lenet_mm.t7", "pt/state_dict_tied.pt", "pt/tar_checkpoint.pt")
    ]
    assert len(bad) > 20
    assert run(LOOP, *good, *bad) == ""
