"""Imports of loading a live module."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers import TESTFILES

from t7bridge.cli import main


@pytest.mark.slow
def test_an_embedding_imports_no_more_of_pytorch():
    """A LookupTable is built without the decompositions of `normal_`, which import sympy and hundreds of modules."""
    code = (
        "import sys, torch, t7bridge\n"
        "from t7bridge.torchmodules import build\n"
        "t7bridge.load_module(sys.argv[1])\n"
        "before = set(sys.modules)\n"
        "t7bridge.load_module(sys.argv[2])\n"
        "print(len(set(sys.modules) - before), 'sympy' in sys.modules, 'torch._dynamo' in sys.modules)"
    )
    files = [TESTFILES / "nn" / f"{name}.t7" for name in ("Linear", "LookupTable")]
    run = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=True)
    added, sympy, dynamo = run.stdout.split()
    assert int(added) <= 5
    assert (sympy, dynamo) == ("False", "False")


def test_a_missing_file_is_told_before_pytorch_is_imported(monkeypatch, capsys):
    """Its import takes seconds."""
    monkeypatch.setitem(sys.modules, "torch", None)
    for verb, *options in (
        ("prove",),
        ("lua", "-o", "out"),
        ("export", "out.onnx", "--input", "1x3"),
        ("module", "-o", "out"),
    ):
        assert main([verb, "missing.pt2", *options]) == 2
        assert "missing.pt2: cannot be read: No such file" in capsys.readouterr().err, verb
    model = str(TESTFILES / "models/lenet_mm.t7")
    for verb, *options in (
        ("prove", model, "missing.pt2"),
        ("prove", model, "--with", "missing.pt2"),
        ("lua", "net.py:Net", "missing.pt2", "--input", "1x3", "-o", "out"),
        ("export", model, "out.onnx", "--input", "x=missing.pt2"),
    ):
        assert main([verb, *options]) == 2
        assert "missing.pt2: cannot be read: No such file" in capsys.readouterr().err, verb
