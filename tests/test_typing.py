"""Types that a user's program finds: a checker sees what a loaded value and a generated model hold."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, TESTFILES, read
from source_helpers import generate
from test_pages import PAGES, blocks

SCRIPT = """
import numpy as np
import t7bridge

model = t7bridge.load("model.t7")
reveal_type(model.modules[1].weight.numpy())  # numpy.ndarray[tuple[Any, ...], numpy.dtype[Any]]
reveal_type(model.modules[1].weight.shape)  # tuple[int, ...]
reveal_type(model["modules"].as_list()[0].bias.torch())  # torch._tensor.Tensor
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
PYRIGHT = shutil.which("pyright") or shutil.which("basedpyright")


def mypy(folder: Path, *files: Path) -> str:
    """Return what `mypy --strict` prints, with the project's settings; it begins with what an earlier run has kept."""
    cache = folder / "cache"
    with contextlib.suppress(FileNotFoundError):
        shutil.copytree(ROOT / ".mypy_cache", cache)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", cache, *files]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "MYPYPATH": "."})
    return run.stdout + run.stderr


def sources_of_pages(folder: Path) -> list[Path]:
    """Write the Python of each page of the documents, and of each of their files, as a program; return the paths.

    Blocks that do not run are no programs. A page may import what its commands write.
    """
    paths = []
    for page in PAGES:
        programs: dict[str, list[str]] = {}
        for block in blocks(page):
            if block.kind == "python" and not block.reason:
                programs.setdefault(block.title or "page.py", []).append(f"# {block.where}\n{block.text}")
        for name, texts in programs.items():
            path = folder / re.sub(r"\W", "_", f"{page}_{name.removesuffix('.py')}")
            path = path.with_suffix(".py")
            # `Tensor.backward` of PyTorch has no types.
            allowed = '# mypy: disable-error-code="import-not-found,no-untyped-call"\n'
            path.write_text(allowed + "\n".join(texts), "utf-8")
            paths.append(path)
    return paths


@pytest.mark.slow
@pytest.mark.skipif(PYRIGHT is None, reason="neither pyright nor basedpyright, which brings its own node, is installed")
def test_types_of_pyright(tmp_path: Path) -> None:
    """pyright accepts the programs of the documents, and a script that walks a model."""
    (tmp_path / "walk.py").write_text(SCRIPT)
    sources_of_pages(tmp_path)
    # What commands of a page write is not there.
    settings = {"extraPaths": [str(ROOT)], "reportMissingImports": False, "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    assert PYRIGHT is not None
    command = [PYRIGHT, "--pythonpath", sys.executable]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


@pytest.mark.slow
def test_types(tmp_path: Path) -> None:
    """mypy accepts a script that walks a model, the programs of the documents and the generated sources of networks.

    It finds the script's types. Sources in which one layer is made another's from outside are left out.
    """
    pytest.importorskip("mypy")
    script = tmp_path / "walk.py"
    script.write_text(SCRIPT)
    pages = []
    for name, case in read(TESTFILES / "architectures.t7").raw_items():
        if name not in (b"enet", b"tied"):
            pages.append(tmp_path / f"{name.decode()}.py")
            text = generate(case[b"module"], name.decode()).text
            # What a module returns is Any for PyTorch itself.
            pages[-1].write_text(f"# mypy: no-warn-return-any\n{text}")
    assert len(pages) > 10
    documents = sources_of_pages(tmp_path)
    assert len(documents) > 10
    printed = mypy(tmp_path, script, *documents, *pages)
    found = dict(re.findall(r":(\d+): note: Revealed type is \"(.*)\"", printed))
    wanted = {
        str(number): line.partition("# ")[2]
        for number, line in enumerate(SCRIPT.splitlines(), 1)
        if "reveal_type" in line
    }
    assert "Success" in printed, printed
    assert found == wanted
