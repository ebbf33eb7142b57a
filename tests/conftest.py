"""Fixtures and settings of all tests."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Before anything loads torch or numpy: threads that wait for one another spin, and beside other workers of pytest, or
# on a machine that does something else, the tests then take up to six times as long. Processes of tests inherit it.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
# Thousands of small files in memory and not on a disk, where there is room for the large ones: a tenth of the CPU time,
# and no waiting for what `fsync` asks for.
_MEMORY = "/dev/shm"
_ROOM_BYTES = 4 << 30
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)
# What this user's libraries have is not part of any test.
os.environ["XDG_CACHE_HOME"] = os.devnull

# Tests of processes and terminals of POSIX, by their imports.
if os.name == "nt":
    POSIX = re.compile(r"^(import|from) (fcntl|pty|resource|termios|test_every_verb)\b", re.MULTILINE)
    collect_ignore = [
        str(path) for path in Path(__file__).parent.rglob("*.py") if POSIX.search(path.read_text("utf-8"))
    ]

# A busy machine is no finding, and nothing is written beside the tests.
settings.register_profile("tests", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker more than processors, as slow tests wait for processes: on two, all take 476 s so, 572 s without."""
    return (os.cpu_count() or 1) + ("not slow" not in config.option.markexpr)


@pytest.fixture(scope="session", autouse=True)
def signals_as_in_a_terminal() -> None:
    """Processes that tests start hear Ctrl-C and a closed terminal, even where pytest itself runs under nohup."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Subtests:
    """Pytest's own subtests, but that only those that do not pass are reported.

    A report of each, which workers of xdist send as text, costs more than most of the subtests do.
    """

    def __init__(self, real: pytest.Subtests) -> None:
        self._real = real
        self.begun = 0

    @contextmanager
    def test(self, msg: str | None = None, **kwargs: Any) -> Iterator[None]:
        """Run a part of a test; where it fails or is skipped, pytest's own subtest reports that."""
        self.begun += 1
        try:
            yield
        except BaseException as error:
            failure = error
        else:
            return
        with self._real.test(msg, **kwargs):
            raise failure


@pytest.fixture
def subtests(subtests: pytest.Subtests) -> Iterator[Subtests]:
    """Subtests; a loop over no cases asserts nothing, so it fails."""
    parts = Subtests(subtests)
    yield parts
    assert parts.begun, "a loop over no cases asserts nothing"


def pytest_collection_finish() -> None:
    """Keep all modules and collected tests out of the search for garbage, which takes a tenth of the time with them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Keep what the tests of a module have left out of the search for garbage, too.

    That is what they cache, and what PyTorch does: at the end of a run a search through it took two seconds.
    """
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """Nothing is kept out of the search for garbage: the number of what is, falls as some of it is freed."""
    gc.unfreeze()
    yield
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long fuzzing out unless `-m` names it, whatever else `-m` asks for, and begin with slow tests.

    At the end workers share out what is left, which should be short.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if "fuzz" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("fuzz")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("fuzz")]
