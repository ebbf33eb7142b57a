"""Selection of tests: long fuzzing only on request, and none skipped for lack of a package."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import PATIENCE

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
    printed = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, check=True, timeout=PATIENCE
    ).stdout
    passed = {name for name in ("long", "short") if f"test_{name} PASSED" in printed}
    assert passed == run, printed


@pytest.mark.slow
def test_packages_that_tests_ask_for_are_installed() -> None:
    """Packages of `importorskip` come with the extra `test`: with it, no test is skipped for lack of them."""
    asked = {
        node.args[0].value
        for path in HOME.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "importorskip"
        if isinstance(node.args[0], ast.Constant)
    }
    assert len(asked) > 8
    missing = {name for name in asked if importlib.util.find_spec(str(name).partition(".")[0]) is None}
    assert not missing, "pip install '.[test]'"
