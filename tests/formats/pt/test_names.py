"""The table of PyTorch's safe loader is that of the installed release, and names that run code are known as such."""

from __future__ import annotations

import importlib

import pytest
from helpers import TESTFILES

from t7bridge.formats import SAFE, is_forbidden

DOCS = TESTFILES.parent / "docs"


@pytest.mark.slow
def test_the_table_is_that_of_the_installed_release(monkeypatch):
    """`docs/generate_weights_only.py` writes this table: PyTorch takes no name or operation more, or less."""
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith("2.13."):
        pytest.skip("each release has another table; ours is that of 2.13")
    monkeypatch.syspath_prepend(str(DOCS))
    generator = importlib.import_module("generate_weights_only")
    assert generator.TABLE.read_text() == generator.text()


def test_names_that_run_code():
    """Modules, functions, and paths through modules; no name that the safe loader takes is one."""
    for module, name in (
        ("posix", "system"),
        ("torch._utils", "os.system"),
        ("__builtin__", "eval"),
        ("numpy.f2py.crackfortran", "myeval"),
        ("torch.hub", "load"),
        ("commands", "getoutput"),
        ("six.moves.builtins", "eval"),
        ("six.moves", "getoutput"),
        ("sklearn.externals.six", "moves.builtins.exec"),
    ):
        assert is_forbidden(module, name), (module, name)
    for path in SAFE.names:
        module, _, name = path.rpartition(".")
        assert not is_forbidden(module, name), path
    assert not is_forbidden("torch.nn.modules.linear", "Linear")
    assert not is_forbidden("mysix.moves", "Knight")
