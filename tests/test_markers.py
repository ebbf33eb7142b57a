"""Selection of tests: long fuzzing only on request, and none skipped for lack of a package."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
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


ASKED = {"": "short", "-k test": "short", "-m not_fuzz": "short", "-m fuzz": "long"}
"""Options of pytest, with the one test of the two that it then runs."""
RUNS = """
import json, pytest, sys
for options in json.loads(sys.argv[1]):
    print("run", flush=True)
    assert pytest.main([*sys.argv[2:], *(word.replace("_", " ") for word in options.split())]) == 0
"""


@pytest.mark.slow
def test_fuzzing_is_asked_for(tmp_path: Path) -> None:
    """Of a long and a short test, plain pytest runs the short one, `-m fuzz` the long one."""
    (tmp_path / "conftest.py").write_text((HOME / "conftest.py").read_text())
    (tmp_path / "test_both.py").write_text(FUZZED)
    command = [sys.executable, "-c", RUNS, json.dumps([*ASKED])]
    command += ["-c", str(CONFIG), "-p", "no:cacheprovider", "-v", str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    runs = printed.split("run\n")[1:]
    for (options, wanted), run in zip(ASKED.items(), runs, strict=True):
        assert re.findall(r"test_(\w+) PASSED", run) == [wanted], options


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


CLOCKS = re.compile(r"\b(process_time|perf_counter|thread_time)\(")
MEASURES = {"bounds.py", "cost_worker.py", "browser.py", "zoo_acceptance.py"}
"""Helpers that measure: the first two for bounds, the others for reports."""


def test_no_test_counts_seconds() -> None:
    """Work is bounded by counts or by `bounds.py`: seconds alone say more of the machine."""
    sources = {path.name for path in HOME.rglob("*.py") if CLOCKS.search(path.read_text(encoding="utf-8"))}
    assert sources == MEASURES
