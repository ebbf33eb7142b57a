"""The examples run and print what stands beside them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    """An example prints what `expected/` says."""
    run = subprocess.run([sys.executable, path], cwd=ROOT, capture_output=True, text=True, check=False)

    assert run.stderr == ""
    assert (path.parent / "expected" / f"{path.stem}.txt").read_text() == run.stdout


def test_readme_lists_all() -> None:
    """The examples' own README names each of them."""
    text = (ROOT / "examples/README.md").read_text()
    assert EXAMPLES
    assert all(f"`{path.name}`" in text for path in EXAMPLES)
