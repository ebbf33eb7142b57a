"""Lua models as ONNX and .pt2: what the exported file computes is what Lua computed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from helpers import TESTFILES

import t7bridge
from t7bridge.cli import main
from t7bridge.errors import ModelError, TargetExistsError, UnsupportedError
from t7bridge.torchmodules.export import Input, export_onnx

MODEL = TESTFILES / "models" / "resnet_small.t7"


def lua(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The input and output that Lua Torch recorded for a model."""
    record = t7bridge.load(str(path).replace(".t7", ".io.t7"))
    return record["input"].numpy(), record["output"].numpy()


@pytest.mark.parametrize("name", ["models/resnet_small.t7", "models/dcgan_generator.t7", "nn/SpatialConvolution.t7"])
def test_onnx_computes_what_lua_computed(name, tmp_path):
    """onnxruntime gives Lua's output, for another batch size too, under the names that were given."""
    path = TESTFILES / name
    if not path.exists():
        pytest.fail(f"{name} is not in testfiles")
    given, wanted = lua(path)
    shape = "x".join(map(str, given.shape))
    report = t7bridge.export(path, tmp_path / "x.onnx", input=f"image={shape}", output=["scores"], dynamic=["batch"])

    session = onnxruntime.InferenceSession(str(tmp_path / "x.onnx"), providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == report.inputs == ["image"]
    assert [each.name for each in session.get_outputs()] == report.outputs == ["scores"]
    np.testing.assert_allclose(session.run(None, {"image": given})[0], wanted, rtol=1e-4, atol=1e-5)
    twice = session.run(None, {"image": np.concatenate([given, given, given])})[0]
    np.testing.assert_allclose(twice, np.concatenate([wanted, wanted, wanted]), rtol=1e-4, atol=1e-5)


def test_pt2_computes_what_lua_computed(tmp_path):
    """PyTorch loads the archive, and it computes what Lua computed."""
    given, wanted = lua(MODEL)
    t7bridge.export(MODEL, tmp_path / "x.pt2", input=given.shape)

    program = torch.export.load(tmp_path / "x.pt2").module()
    np.testing.assert_allclose(program(torch.from_numpy(given.copy())).detach(), wanted, rtol=1e-4, atol=1e-5)


def test_command_line(tmp_path, capsys):
    """The verb prints the names and the difference; an existing file needs --force."""
    shape = "x".join(map(str, lua(MODEL)[0].shape))
    command = ["export", str(MODEL), str(tmp_path / "x.onnx"), "--input", shape]
    assert main(command) == 0
    assert "largest difference" in capsys.readouterr().out
    before = (tmp_path / "x.onnx").read_bytes()
    assert main(command) != 0
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "x.onnx").read_bytes() == before
    assert main([*command, "--force"]) == 0
    assert os.listdir(tmp_path) == ["x.onnx"]


@pytest.mark.parametrize(
    ("shape", "message"),
    [("1x3x16", "cannot compute"), ("1x3xa", "not a shape"), ("0x3", "not a shape"), (["a=1x2", "a=1x2"], "one name")],
)
def test_wrong_shapes(shape, message, tmp_path):
    """A shape that cannot be read or computed is an error, and nothing is left on the disk."""
    with pytest.raises(ModelError, match=message):
        t7bridge.export(MODEL, tmp_path / "x.onnx", input=shape)
    assert not list(tmp_path.iterdir())


def test_unknown_suffix_and_existing_files(tmp_path):
    """The suffix names the format; what exists is kept."""
    with pytest.raises(ModelError, match=r"\.onnx or \.pt2"):
        t7bridge.export(MODEL, tmp_path / "x.tflite", input="1x3x16x16")
    (tmp_path / "x.onnx").write_bytes(b"mine")
    with pytest.raises(TargetExistsError):
        t7bridge.export(MODEL, tmp_path / "x.onnx", input="1x3x16x16")
    assert (tmp_path / "x.onnx").read_bytes() == b"mine"


class Refused(torch.nn.Module):
    """A layer whose result depends on the data in a way that no exporter follows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(x.sum()) > 0 else x * 2


def test_refused_layer_is_named(tmp_path):
    """A model that the exporter refuses says which layer it is."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sequential(Refused())).eval()
    with pytest.raises(UnsupportedError, match=r"1\.0 \(Refused\)"):
        export_onnx(model, [Input("x", (2, 3))], str(tmp_path / "x.onnx"))
