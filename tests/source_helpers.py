"""Shared helpers for generated source: a model's source, run as a module of its own."""

from __future__ import annotations

import types
from pathlib import Path

import torch

from t7bridge import TorchObject
from t7bridge.codegen import Generated
from t7bridge.codegen.generate import generate
from t7bridge.torchmodules import materialize


def run_source(
    value: TorchObject, folder: Path, path: str = "root", **options: int
) -> tuple[Generated, torch.nn.Module]:
    """Write the source of a module and load its model, with its weights, strictly."""
    made = generate(value, path, **options)
    torch.save(materialize(made.tensors), folder / "model.pt")
    (folder / "model.py").write_text(made.text)
    module = types.ModuleType("model")
    module.__file__ = str(folder / "model.py")
    exec(compile(made.text, "model.py", "exec", dont_inherit=True), module.__dict__)
    return made, module.load()
