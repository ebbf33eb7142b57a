"""The table of names: those that the installed PyTorch and numpy have exist, and are of their kind."""

from __future__ import annotations

import importlib
import inspect
import sys

import pytest
from helpers import TESTFILES

from t7bridge.formats import CALL, FILL, FOREIGN, GLOBALS, SAFE, STATE, VALUE, may_call, standing
from t7bridge.formats.pt.pickle.names import _table
from t7bridge.graph import TorchConstant

DOCS = TESTFILES.parent / "docs"


@pytest.mark.slow
def test_the_table_is_made_from_the_installed_releases(monkeypatch):
    """`docs/generate_names.py` writes this table: no class gained a method that loading runs."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(DOCS))
    generator = importlib.import_module("generate_names")
    assert generator.TABLE.read_text() == generator.text(generator.collect())


@pytest.mark.slow
def test_classes_of_plain_state_run_nothing():
    """No class of the table that exists is a module, a function, or has a destructor."""
    pytest.importorskip("torch")
    found = 0
    for path, kind in _table().items():
        module, _, name = path.rpartition(".")
        if kind != STATE or module.startswith("torch.legacy"):
            continue
        try:
            value = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        assert inspect.isclass(value), path
        assert not hasattr(value, "__del__"), path
        found += 1
    assert found > 500
    assert "torch.utils.data.datapipes" not in {path.rpartition(".")[0] for path in _table()} | set(sys.path)


def test_every_name_with_a_meaning_is_in_the_table():
    """What readers compute from a call may be called."""
    constants = {path for path, known in GLOBALS.items() if isinstance(known, TorchConstant)}
    classes = {path for path in GLOBALS if path.endswith(("Tensor", "Storage")) and path.startswith("torch.")}
    assert len(set(GLOBALS) - constants - classes) > 40
    for path in set(GLOBALS) - constants - classes:
        module, _, name = path.rpartition(".")
        assert standing(module, name) in (SAFE, CALL, FILL), path


def test_uses():
    """A class of plain state may be made, not called; a value may only be named; dots in a name reach nothing."""
    assert standing("torch.nn.modules.linear", "Linear") == STATE
    assert may_call(STATE, "newobj", ())
    assert may_call(STATE, "inst", ())
    assert not may_call(STATE, "inst", (3, 4))
    assert not may_call(STATE, "reduce", ())
    assert standing("torch.nn.functional", "relu") == VALUE
    assert not may_call(VALUE, "reduce", (1,))
    assert standing("torch", "nn.modules.linear.Linear") == FOREIGN
    assert standing("torch.legacy.nn.Linear", "Linear") == STATE
    for module, name in (
        ("torch.utils.data.datapipes.dataframe.dataframes", "CaptureVariable"),
        ("torch.utils.data.dataloader", "DataLoader"),
        ("torch.cuda.memory", "CUDAPluggableAllocator"),
        ("torch.cuda.gds", "GdsFile"),
        ("torch.serialization", "load"),
        ("torch.utils.data.datapipes.iter.fileopener", "FileOpenerIterDataPipe"),
    ):
        assert standing(module, name) not in (SAFE, STATE, CALL, FILL, VALUE)
