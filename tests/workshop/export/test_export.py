"""Lua models as ONNX and .pt2: what the exported file computes is what Lua computed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from helpers import TESTFILES

import t7bridge
from t7bridge import Table
from t7bridge.cli import main
from t7bridge.errors import LimitError, ModelError, T7BridgeError, TargetExistsError, UnsupportedError
from t7bridge.nn import Example
from t7bridge.workshop.export.exporters import export_onnx, export_pt2
from t7bridge.workshop.export.exporting import _check_calls

MODEL = TESTFILES / "models" / "resnet_small.t7"


def lua(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The input and output that Lua Torch recorded for a model."""
    record = t7bridge.load(str(path).replace(".t7", ".io.t7"))
    return record["input"].numpy(), record["output"].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["models/resnet_small.t7", "models/dcgan_generator.t7", "nn/SpatialConvolution.t7"])
def test_onnx_computes_what_lua_computed(name, tmp_path):
    """onnxruntime returns Lua's output, for another batch size too, under the given names."""
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


@pytest.mark.slow
def test_pt2_computes_what_lua_computed(tmp_path):
    """PyTorch loads the archive, and it computes what Lua computed."""
    given, wanted = lua(MODEL)
    t7bridge.export(MODEL, tmp_path / "x.pt2", input=given.shape)

    program = torch.export.load(tmp_path / "x.pt2").module()
    np.testing.assert_allclose(program(torch.from_numpy(given.copy())).detach(), wanted, rtol=1e-4, atol=1e-5)


def test_names_of_outputs_that_have_no_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A .pt2 has no names for its outputs, and no file has more names than outputs: neither is left out silently."""
    command = ["export", str(MODEL), str(tmp_path / "x.pt2"), "--input", "1x3x8x8", "--output-name", "scores"]
    assert main(command) == 2
    assert "--output-name does not apply to .pt2" in capsys.readouterr().err
    inputs = Example("input", (1, 2))
    with pytest.raises(ModelError, match=r"more names than outputs.*expected 1; found 2"):
        export_onnx(torch.nn.Identity(), inputs, str(tmp_path / "x.onnx"), outputs=["scores", "more"])


@pytest.mark.slow
def test_command_line(tmp_path, capsys):
    """The verb prints the names and the difference; an existing file needs --force."""
    layer = TESTFILES / "nn" / "SpatialConvolution.t7"
    shape = "x".join(map(str, lua(layer)[0].shape))
    command = ["export", str(layer), str(tmp_path / "x.onnx"), "--input", shape]
    assert main(command) == 0
    assert "largest difference" in capsys.readouterr().out
    before = (tmp_path / "x.onnx").read_bytes()
    assert main(command) != 0
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "x.onnx").read_bytes() == before
    assert main([*command, "--force"]) == 0
    assert os.listdir(tmp_path) == ["x.onnx"]


def test_no_input(tmp_path, capsys):
    """The shape that the layers imply is offered; a file without a model is refused for that."""
    assert main(["export", str(MODEL), str(tmp_path / "x.onnx")]) == 2
    assert "--input 1x3x224x224" in capsys.readouterr().err
    assert main(["export", str(TESTFILES / "format/nil.t7"), str(tmp_path / "x.onnx")]) == 2
    assert "holds no module" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "message"),
    [("1x3x16", "cannot compute"), ("1x3xa", "not a shape"), ("0x3", "not a shape"), (["a=1x2", "a=1x2"], "one name")],
)
def test_wrong_shapes(shape, message, tmp_path):
    """A shape that cannot be read or computed is an error, and nothing is left on the disk."""
    with pytest.raises(ModelError, match=message):
        t7bridge.export(MODEL, tmp_path / "x.onnx", input=shape)
    assert not list(tmp_path.iterdir())


def test_batches_of_inputs_without_dimensions(tmp_path):
    """A tensor without dimensions, as a file may hold, has no batch to be dynamic."""
    with pytest.raises(ModelError, match="has no batch"):
        export_pt2(torch.nn.Identity(), Example("x", ()), str(tmp_path / "x.pt2"), ("batch",))


@pytest.mark.slow
def test_any_height_and_width(tmp_path):
    """The file computes what the module does at sizes that it was not told; batch, height and width are open."""
    path = TESTFILES / "models/unet_nngraph.t7"
    module = t7bridge.load_module(path)
    images = torch.randn(3, 1, 20, 12)
    with torch.no_grad():
        wanted = module(images.clone())
    t7bridge.export(path, tmp_path / "x.onnx", input="2x1x8x8", dynamic="batch,height,width")
    session = onnxruntime.InferenceSession(str(tmp_path / "x.onnx"), providers=["CPUExecutionProvider"])
    assert [isinstance(size, str) for size in session.get_inputs()[0].shape] == [True, False, True, True]
    found = session.run(None, {"input": images.numpy()})[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    t7bridge.export(path, tmp_path / "x.pt2", input="2x1x8x8", dynamic=["height", "width"])
    program = torch.export.load(tmp_path / "x.pt2").module()
    np.testing.assert_allclose(program(images[:2]).detach(), wanted[:2], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_sizes_that_a_model_fixes(tmp_path):
    """A view before a linear layer: the model is refused, not exported for one size in silence; names are checked."""
    for suffix in ("onnx", "pt2"):
        with pytest.raises(ModelError, match="the model fixes the height and width of its input; found 16x16"):
            t7bridge.export(MODEL, tmp_path / f"x.{suffix}", input="2x3x16x16", dynamic=["batch,height", "width"])
    with pytest.raises(ModelError, match=r"cannot be dynamic; expected batch, height, width; found depth"):
        t7bridge.export(MODEL, tmp_path / "x.pt2", input="2x3x16x16", dynamic=["batch", "depth"])
    with pytest.raises(ModelError, match="no input has a height"):
        export_pt2(torch.nn.Identity(), Example("x", (2, 3)), str(tmp_path / "x.pt2"), ("height",))
    assert not list(tmp_path.iterdir())


def test_more_modules_than_the_file_explains(tmp_path):
    """Thousands of modules without weights are refused before the exporter follows each; a thousand are not."""
    module = torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(3000)))
    with pytest.raises(LimitError, match="so many modules"):
        _check_calls(module, 300 * 1024, t7bridge.Limits())
    _check_calls(module[:1000], 100 * 1024, t7bridge.Limits())
    _check_calls(module, 3000 * 1024, t7bridge.Limits())


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


@pytest.mark.slow
def test_refused_layer_is_named(tmp_path):
    """For a model that the exporter refuses, the error names the layer."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sequential(Refused())).eval()
    with pytest.raises(UnsupportedError, match=r"1\.0 \(Refused\)"):
        export_onnx(model, Example("x", (2, 3)), str(tmp_path / "x.onnx"))


NO_ONNX = {
    "SpatialFractionalMaxPooling": "each call draws new windows",
    "VolumetricFractionalMaxPooling": "likewise",
    "MultiLabelMarginCriterion": "the exported file computes something else",
}
"""Layers that do not become ONNX; docs/export.md has the same."""
SAMPLE = [
    *("nn/MaskedSelect", "nn/RReLU", "nn/SparseLinear", "nn/SpatialAdaptiveMaxPooling", "nn/MixtureTable", "nn/Index"),
    *("nn/Identity", "nn/LookupTable", "rnn/LookupTableMaskZero", "rnn/SeqLSTMP", "models/char_lstm_nngraph"),
]
"""Of each kind one: operations that the exporter lacks, tables in tables, other batches, indices, recurrent ones."""


def exported(name: str, folder: Path, dynamic: tuple[str, ...] = ("batch",)) -> None:
    """Export a model for the input that Lua recorded, run it on that, and compare with what Lua computed."""
    record = t7bridge.load(TESTFILES / f"{name}.io.t7")
    given = record["input"]
    if "target" in record:
        target = record["target"]
        given = [given, np.float32([target]) if isinstance(target, float) else target]
    t7bridge.save(given, folder / "in.t7", force=True)
    given = t7bridge.load(folder / "in.t7")
    t7bridge.export(
        TESTFILES / f"{name}.t7", folder / "x.onnx", input=str(folder / "in.t7"), dynamic=dynamic, force=True
    )
    session = onnxruntime.InferenceSession(str(folder / "x.onnx"), providers=["CPUExecutionProvider"])
    feed = {each.name: value for each, value in zip(session.get_inputs(), arrays(given))}
    found, wanted = session.run(None, feed), list(arrays(record["output"]))
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5, err_msg=name)


def arrays(value: Any) -> Iterator[np.ndarray]:
    """The tensors of a recorded value, in order."""
    if isinstance(value, Table):
        for each in value.as_list():
            yield from arrays(each)
    else:
        yield np.asarray(value) if isinstance(value, float) else value.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nn/ClassNLLCriterion", "nn/ParallelCriterion", "nn/MSECriterion"])
def test_criterions_compute_what_lua_computed(name, tmp_path):
    """A criterion has its target as a second input."""
    exported(name, tmp_path, ())


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_any_batch_computes_what_lua_computed(name, tmp_path):
    """The file accepts batches of any size, and computes Lua's output for Lua's input."""
    exported(name, tmp_path)


@pytest.mark.fuzz
def test_all_models(tmp_path):
    """Every model of the corpus becomes ONNX, with a dynamic batch but for criterions; those listed do not."""
    refused = {}
    for path in sorted(each for folder in ("models", "nn", "rnn") for each in (TESTFILES / folder).glob("*.t7")):
        name = f"{path.parent.name}/{path.stem}"
        record = path.with_suffix(".io.t7")
        if path.stem.endswith((".io", ".grad")) or not record.exists():
            continue
        try:
            exported(name, tmp_path, () if "Criterion" in name else ("batch",))
        except T7BridgeError as error:
            refused[path.stem] = str(error)
    assert set(refused) == set(NO_ONNX), refused


class Nothing(torch.nn.Module):
    """A model without outputs, which PyTorch exports and cannot write."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return []


def test_what_pytorch_cannot_write(tmp_path):
    """Exceptions of PyTorch while writing an archive become errors that quote them."""
    with pytest.raises(ModelError, match="PyTorch cannot write and run"):
        export_pt2(Nothing(), Example("x", (2, 3)), str(tmp_path / "x.pt2"))


def test_tables_in_tables_as_pt2(tmp_path):
    """A .pt2 accepts nested tables, given as shapes in brackets."""
    source = TESTFILES / "nn" / "CAddTensorTable.t7"
    given = t7bridge.load(source.with_suffix(".io.t7"))["input"]
    first, rest = given[1].shape, given[2]
    shapes = ",".join("x".join(map(str, each.shape)) for each in rest.as_list())
    t7bridge.export(source, tmp_path / "x.pt2", input=f"[{'x'.join(map(str, first))},[{shapes}]]")
    program = torch.export.load(tmp_path / "x.pt2").module()
    found = program([given[1].torch(), [each.torch() for each in rest.as_list()]])
    wanted = t7bridge.load_module(source)([given[1].torch(), [each.torch() for each in rest.as_list()]])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))


def test_modules_at_many_places_are_refused(tmp_path, capsys):
    """A kilobyte whose modules are at thousands of places is refused before an exporter traces each of them."""
    bomb = TESTFILES / "hostile" / "double_concat.t7"
    assert main(["export", str(bomb), str(tmp_path / "x.pt2"), "--input", "2x3"]) == 2
    assert "--limit work=N" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    report = t7bridge.export(TESTFILES / "models" / "siamese_shared.t7", tmp_path / "x.pt2", input="[2x6,2x6]")
    assert report.difference == 0
