"""Tensors that do not fit their layer are refused with their path, before a module or its source is made."""

from __future__ import annotations

import pytest
import torch
from helpers import TESTFILES, corpus, name_of, read, written
from looping import for_each

import t7bridge
from t7bridge.errors import ModelError
from t7bridge.graph.tensor import Tensor
from t7bridge.nn.plan.build_spec import build_plan
from t7bridge.nn.traits import traits_of
from t7bridge.torchmodules.build import construct

CASES = [path for path in corpus("nn/*.t7", "rnn/*.t7") if not path.name.endswith((".io.t7", ".grad.t7"))]


@for_each("path", [path for path in CASES if path.name != "Serial.t7"], ids=name_of)
def test_declared_shapes_agree_with_pytorch(path):
    """The shapes that an entry declares are those of the tensors that PyTorch's own constructor makes."""
    stack = [build_plan(read(path)).root]
    while stack:
        spec = stack.pop()
        stack += spec.children.values()
        wanted = traits_of(spec.target).shapes_by(spec.args, spec.kwargs)
        if not wanted:
            continue
        made = construct(spec)
        own = {**dict(made.named_parameters(recurse=False)), **dict(made.named_buffers(recurse=False))}
        for name, tensor in own.items():
            assert tuple(tensor.shape) == wanted.get(name, tuple(tensor.shape)), (spec.target, name)


def damaged(name: str, field: str, size: int) -> bytes:
    """A case whose field is replaced by zeros of another size, as a file."""
    root = read(TESTFILES / f"nn/{name}.t7")
    root.fields[field.encode()] = Tensor.from_numpy(torch.zeros(size).numpy())
    return written(root)


@pytest.mark.parametrize(
    ("name", "field", "size"),
    [
        ("Linear", "bias", 7),
        ("SpatialConvolution", "bias", 9),
        ("BatchNormalization", "bias", 2),
        ("SpatialFullConvolution", "bias", 11),
        ("TemporalConvolution", "bias", 1),
    ],
)
def test_other_sizes_are_refused(name, field, size, tmp_path):
    """`load_module` and `write_module` name the tensor, the shape it should have and the one it has."""
    path = tmp_path / "model.t7"
    path.write_bytes(damaged(name, field, size))
    for action in (lambda: t7bridge.load_module(path), lambda: t7bridge.write_module(path, tmp_path / "out")):
        with pytest.raises(ModelError, match="does not match") as caught:
            action()
        assert f"root.{field}" in str(caught.value)
        assert f"[{size}]" in str(caught.value)
    assert not (tmp_path / "out" / "model.py").exists()
