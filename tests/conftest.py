"""What every test may count on."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def signals_as_in_a_terminal() -> None:
    """Processes that tests start hear Ctrl-C and a closed terminal, even where pytest itself runs under nohup."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
