"""Fixtures and settings of all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Before anything loads torch or numpy: threads that wait for one another spin, and beside other workers of pytest, or
# on a machine that does something else, the tests then take up to six times as long. Processes of tests inherit it.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# A busy machine is no finding, and nothing is written beside the tests.
settings.register_profile("tests", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def signals_as_in_a_terminal() -> None:
    """Processes that tests start hear Ctrl-C and a closed terminal, even where pytest itself runs under nohup."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def subtests(subtests: pytest.Subtests) -> Iterator[pytest.Subtests]:
    """Pytest's own subtests; a loop over no cases asserts nothing, so it fails."""
    begun = 0
    test = subtests.test

    def counted(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        nonlocal begun
        begun += 1
        return test(*args, **kwargs)

    subtests.test = counted  # type: ignore[method-assign]
    yield subtests
    assert begun, "a loop over no cases asserts nothing"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long fuzzing out unless `-m` names it, whatever else `-m` asks for."""
    if "fuzz" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("fuzz")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("fuzz")]
