"""Types that a user's program finds: a checker sees what a loaded value holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

SCRIPT = """
import numpy as np
import t7bridge

model = t7bridge.load("model.t7")
reveal_type(model.modules[1].weight.numpy())  # numpy.ndarray[tuple[Any, ...], numpy.dtype[Any]]
reveal_type(model.modules[1].weight.shape)  # tuple[int, ...]
reveal_type(model["modules"].as_list()[0].bias.torch())  # Any
for number, layer in model.modules.items():
    if isinstance(layer, t7bridge.TorchObject):
        reveal_type(layer.class_name)  # str
        reveal_type(layer.bias.numpy())  # numpy.ndarray[tuple[Any, ...], numpy.dtype[Any]]
        reveal_type(layer["weight"].dtype)  # str
    elif isinstance(layer, t7bridge.Tensor):
        reveal_type(layer.storage)  # t7bridge.graph.storage.Storage | None
channels: int = int(model.modules[1].nInputPlane)
assert model.modules[1].nInputPlane == channels
total: float = float(np.asarray(model.modules[1].weight).sum())
for key, value in model.items():
    lua_key: t7bridge.Key = key
    if isinstance(value, t7bridge.Tensor):
        reveal_type(value.shape)  # tuple[int, ...]
assert isinstance(model, t7bridge.TorchObject)
for name, tensor in t7bridge.state_dict(model).items():
    reveal_type(tensor)  # t7bridge.graph.tensor.Tensor
with t7bridge.open("x.pt") as document:
    reveal_type(document.format)  # str
report = t7bridge.convert("model.t7", "model.pt")
reveal_type([note.code for note in report.notes])  # list[str]
"""


@pytest.mark.slow
def test_a_walk_over_a_model_has_types(tmp_path: Path) -> None:
    """`mypy --strict` accepts a script that walks a model, and finds the types named in its comments."""
    pytest.importorskip("mypy")
    script = tmp_path / "walk.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--ignore-missing-imports"]
    cache = ["--config-file", os.devnull, "--cache-dir", str(tmp_path / "cache")]
    run = subprocess.run(
        [*command, *cache, script], capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(ROOT)}
    )
    found = dict(re.findall(r":(\d+): note: Revealed type is \"(.*)\"", run.stdout))
    wanted = {
        str(number): line.partition("# ")[2]
        for number, line in enumerate(SCRIPT.splitlines(), 1)
        if "reveal_type" in line and not line.endswith("# Any")  # PyTorch itself is not looked into here
    }
    assert "Success" in run.stdout, run.stdout
    assert {number: found.get(number) for number in wanted} == wanted
