"""Long fuzzing is run only where it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parent
CONFIG = HOME.parent / "pyproject.toml"
FUZZED = """
import pytest

@pytest.mark.fuzz
def test_long() -> None:
    pass

def test_short() -> None:
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "run"),
    [((), {"short"}), (("-k", "test"), {"short"}), (("-m", "not fuzz"), {"short"}), (("-m", "fuzz"), {"long"})],
    ids=["plain", "by name", "not fuzz", "fuzz"],
)
def test_fuzzing_is_asked_for(options: tuple[str, ...], run: set[str], tmp_path: Path) -> None:
    """Of a long and a short test, plain pytest runs the short one, `-m fuzz` the long one."""
    (tmp_path / "conftest.py").write_text((HOME / "conftest.py").read_text())
    (tmp_path / "test_both.py").write_text(FUZZED)
    command = [sys.executable, "-m", "pytest", "-c", str(CONFIG), "-p", "no:cacheprovider", "-v", *options]
    printed = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=True, timeout=100).stdout
    passed = {name for name in ("long", "short") if f"test_{name} PASSED" in printed}
    assert passed == run, printed
