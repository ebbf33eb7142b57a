"""docs/layers.md agrees with the registry."""

from __future__ import annotations

import pytest
from forked import run_python
from helpers import ROOT, module_of

from t7bridge.layers import registered_layers

GENERATOR = ROOT / "docs" / "generate_layers.py"
DOCUMENT = ROOT / "docs" / "layers.md"


@pytest.fixture(scope="module")
def generator():
    """The script as a module."""
    return module_of(GENERATOR)


@pytest.mark.slow
def test_layers_are_documented():
    """The page is the generator's current output, in a process without further registrations."""
    code = f"import runpy; print(runpy.run_path({str(GENERATOR)!r})['page'](), end='')"
    page = run_python("-c", code)
    assert page.returncode == 0, page.stderr
    assert page.stdout == DOCUMENT.read_text(encoding="utf-8"), "run `python docs/generate_layers.py`"


def test_every_class_has_one_row(generator):
    """Each class of the registry is in one table, and none is among the others."""
    rows = [line.split("|")[1].split("`")[1] for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(registered_layers())
    homes = ("t7bridge.nn.layers.", "t7bridge.workshop.packages.")
    assert all(home.startswith(homes) for home in generator.families())


@pytest.mark.parametrize(
    ("name", "operation"),
    [("nn.Linear", "`linear`"), ("nn.Power", "`rsqrt`"), ("nn.SpatialFullConvolution", "`conv_transpose2d`")],
)
def test_rows_say_what_a_class_comes_from(name, operation):
    """The direction back is that of the table of operations."""
    row = next(line for line in DOCUMENT.read_text().splitlines() if line.startswith(f"| `{name}`"))
    assert operation in row.replace("\\|", "").split("|")[4]


def test_tables_are_whole():
    """Every row of a table has five columns."""
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("|"):
            assert line.replace("\\|", "").count("|") == 6, line


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("nn.LeakyReLU", "`nn.LeakyReLU(negval \\| negative_scale = 0.01, inplace=inplace)`"),
        ("nn.Linear", "`nn.Linear(weight.shape[1], weight.shape[0], bias=has bias)`"),
        ("nn.SpatialConvolution", "`nn.Conv2d`"),
        ("nn.CAdd", "`linear.CAdd(*bias.shape)`: Adds learned offsets of any shape."),
    ],
)
def test_rows_say_what_becomes_of_a_class(name, shown):
    """Declarative entries are shown as calls; functions by the classes that they declare."""
    row = next(line for line in DOCUMENT.read_text().splitlines() if line.startswith(f"| `{name}`"))
    assert shown in row
