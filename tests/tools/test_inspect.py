"""Summaries of files: numbers that Lua and PyTorch have too, in a screenful, whatever the format."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bounds import bounded
from helpers import ROOT

import t7bridge
from t7bridge import Table, Tensor, TorchObject
from t7bridge.cli import main
from t7bridge.errors import ModelError
from t7bridge.torchmodules import build

FILES = ROOT / "testfiles"


def test_header_and_layers() -> None:
    """The header has format, encoding and counts; the table both classes, parameters and shared weights."""
    summary = t7bridge.inspect(FILES / "models" / "siamese_shared.t7")
    assert summary.header["encoding"] == "binary, little-endian, long of 8 bytes"
    assert (summary.header["modules"], summary.header["parameters"]) == (11, 43)
    assert summary.header["bytes"] == (FILES / "models" / "siamese_shared.t7").stat().st_size
    rows = {row.key: row for row in summary.layers}
    assert (rows["0.0.0"].class_name, rows["0.0.0"].torch) == ("nn.Linear", "Linear(6 → 4)")
    assert rows["0.1.0"].shared == "0.0.0.weight"
    assert len(str(summary).splitlines()) < 40
    assert "<table>" in summary._repr_html_()
    assert f">{summary.header['bytes']:,}<" in summary._repr_html_()


def test_tables_fit_a_terminal() -> None:
    """Where columns are cut to the width of a terminal, that of the parameters is whole."""
    summary = t7bridge.inspect(FILES / "tutorials" / "char_rnn.t7")
    lines = list(summary.lines(80))
    table = lines[lines.index("") + 1 :]
    table = table[: table.index("")][:-1]
    assert max(map(len, summary.lines())) > 100
    assert all(len(line) <= 80 for line in table)
    assert any(line.startswith("  h2h_1 ") and line.endswith(" 4,224") for line in table)


def test_parameters_are_those_of_pytorch() -> None:
    """The number of parameters is that of the live module, shared ones once."""
    for name in ("resnet_small", "lenet_mm", "unet_nngraph", "char_lstm_nngraph"):
        live = t7bridge.load_module(FILES / "models" / f"{name}.t7")
        expected = sum(each.numel() for each in live.parameters())
        assert t7bridge.inspect(FILES / "models" / f"{name}.t7").header["parameters"] == expected


def test_shapes_by_running() -> None:
    """Output shapes of `input_shape` are those that PyTorch computes."""
    path = FILES / "models" / "resnet_small.t7"
    live = t7bridge.load_module(path)
    channels = next(each for each in live.modules() if isinstance(each, torch.nn.Conv2d)).in_channels
    shape = (2, channels, 16, 16)
    summary = t7bridge.inspect(path, input_shape=shape)
    found: dict[str, tuple[tuple[int, ...], ...]] = {}
    for name, each in live.named_modules():
        if name and not list(each.children()):
            each.register_forward_hook(lambda _, __, out, name=name: found.update({name: (tuple(out.shape),)}))
    live(torch.randn(shape))
    rows = {row.key: row.output for row in summary.layers if row.key in found}
    assert rows
    assert rows == {key: found[key] for key in rows}
    assert "2×" in summary.shapes
    with pytest.raises(ModelError):
        t7bridge.inspect(path, input_shape=(1, channels + 1, 16, 16))
    assert "guess" in t7bridge.inspect(FILES / "models" / "autoencoder_flat.t7", input_shape="guess").shapes


def test_shapes_of_models_of_doubles(tmp_path: Path) -> None:
    """A model of doubles gets an input of doubles where it has to be run."""
    kernel = Tensor.from_numpy(np.ones((4, 3, 3, 3)))
    sizes = {"nInputPlane": 3.0, "nOutputPlane": 4.0, "kW": 3.0, "kH": 3.0, "dW": 1.0, "dH": 1.0}
    layers = [
        TorchObject("nn.Clip", 1, Table.of({"minval": -1.0, "maxval": 1.0})),  # no rule says what it returns
        TorchObject("nn.SpatialConvolution", 1, Table.of({**sizes, "weight": kernel})),
    ]
    t7bridge.save(TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list(layers)})), tmp_path / "x.t7")
    rows = t7bridge.inspect(tmp_path / "x.t7", input_shape=(1, 3, 8, 8)).layers
    assert [row.output for row in rows] == [((1, 4, 6, 6),), ((1, 3, 8, 8),), ((1, 4, 6, 6),)]


def test_declared_rules_are_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the rules of all layers are known, a stated input needs no PyTorch; where one is not, it is run."""
    run: list[str] = []
    real = build.output_shapes

    def output_shapes(*args: Any) -> Any:
        run.append(args[1])
        return real(*args)

    monkeypatch.setattr(build, "output_shapes", output_shapes)
    for name, shape, times in (
        ("lenet_mm", (3, 1, 32, 32), 0),
        ("resnet_small", (2, 3, 16, 16), 0),
        ("dcgan_generator", (2, 8, 1, 1), 0),
    ):
        summary = t7bridge.inspect(FILES / "models" / f"{name}.t7", input_shape=shape)
        assert all(row.output for row in summary.layers)
        assert len(run) == times
    with pytest.raises(ModelError, match="cannot be run to find its shapes"):
        t7bridge.inspect(FILES / "models" / "lenet_mm.t7", input_shape=(3, 2, 32, 32))
    assert len(run) == 1


def test_sharing_with_a_tensor_of_the_whole(tmp_path: Path) -> None:
    """A layer that shares a tensor that no layer has is listed with the tensor's key."""
    weight = torch.ones(2, 2)
    torch.save({"weight": weight, "sub.weight": weight}, tmp_path / "a.pt")
    assert t7bridge.inspect(tmp_path / "a.pt").header["shared"] == "1: sub = weight"


def test_header_answers(tmp_path: Path) -> None:
    """Input, output, parameters, skips, branches and sharing are in the header, and a guess is marked as one."""
    expected = {
        "unet_nngraph": {"input": "1×1×", "output": "1×2×", "parameters": 802, "skips": "1: 3 → 9"},
        "siamese_shared": {"input": "1×6, 1×6", "shared": "2: 0.1.0 = 0.0.0, 0.1.2 = 0.0.2", "branches": "1: 0 "},
        "resnet_small": {"output": "1×5", "branches": "2: "},
        "char_lstm_nngraph": {"input": "1, 1×6, 1×6, 1×6, 1×6 (a guess", "output": "1×6, 1×6, 1×6, 1×6, 1×9"},
    }
    for name, facts in expected.items():
        header = t7bridge.inspect(FILES / "models" / f"{name}.t7").header
        assert "guess" in header["input"]
        assert {
            key: header[key] if isinstance(fact, int) else header[key][: len(fact)] for key, fact in facts.items()
        } == (facts)
    header = t7bridge.inspect(FILES / "models" / "lenet_mm.t7", input_shape=(3, 1, 32, 32)).header
    assert (header["input"], header["output"]) == ("3×1×32×32", "3×10")  # no guess


def test_rest_of_a_checkpoint() -> None:
    """Options, vocabularies and optimizer state are listed next to the model, which is not repeated."""
    summary = t7bridge.inspect(FILES / "models" / "training_checkpoint.t7")
    others = dict(summary.others)
    assert others["root.epoch"] == "12"
    assert others["root.optimState.momentum"] == "0.9"
    assert others["root.classes"] == "table of 2: [1]='cat', [2]='dog'"
    assert not [path for path in others if "modules" in path]


def test_paths_in_a_list_of_one(tmp_path: Path) -> None:
    """What is inside its only element has a path through the list, whether the root is named or not."""
    torch.save([{"weight": torch.zeros(2), "epoch": 3}], tmp_path / "x.pt")
    for at in (None, "root"):
        assert t7bridge.inspect(tmp_path / "x.pt", at=at).others == [("root[0]", "dict of 2"), ("root[0].epoch", "3")]


def test_statistics(tmp_path: Path) -> None:
    """Statistics are those of numpy; NaN and infinities are counted, and do not spoil the others."""
    values = np.array([[1.0, -3.0, 0.0], [float("nan"), float("inf"), 2.0]], np.float32)
    t7bridge.save({"a": {"weight": values}}, tmp_path / "x.pt")
    (row,) = t7bridge.inspect(tmp_path / "x.pt", statistics=True).tensors
    finite = values[np.isfinite(values)]
    assert (row.key, row.shape, row.type) == ("a.weight", (2, 3), "float32")
    assert row.numbers["mean"] == pytest.approx(finite.mean())
    assert row.numbers["std"] == pytest.approx(finite.std())
    assert [row.numbers[name] for name in ("min", "max", "zeros", "nan", "inf")] == [-3, 2, 1, 1, 1]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".h5", ".npz"])
def test_any_format(suffix: str, tmp_path: Path) -> None:
    """State dicts of any format have the same parameters and keys."""
    t7bridge.convert(FILES / "models" / "unet_nngraph.t7", tmp_path / f"x{suffix}")
    summary = t7bridge.inspect(tmp_path / f"x{suffix}")
    assert summary.header["parameters"] == 802
    assert "1" in {row.key for row in summary.layers}


def test_large_files_are_summarized_at_once(tmp_path: Path) -> None:
    """Ten gigabytes of weights are not read, which would take seconds."""
    path = tmp_path / "x.t7"
    t7bridge.save(t7bridge.load(FILES / "models" / "lenet_mm.t7"), path)
    header = b'{"w":{"dtype":"F32","shape":[2684354560],"data_offsets":[0,10737418240]}}'
    with open(tmp_path / "x.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 10737418240)
    t7bridge.inspect(path)
    with bounded(20):
        assert t7bridge.inspect(tmp_path / "x.safetensors").header["bytes of tensors"] == 10737418240


@pytest.mark.slow
def test_start_is_light(tmp_path: Path) -> None:
    """A summary loads neither numpy nor PyTorch: small storages of sizes and tables of numbers are decoded without."""
    model = t7bridge.load(FILES / "models" / "char_lstm_nngraph.t7")
    losses = [float(number) for number in range(5000)]
    t7bridge.save(Table.of({"protos": Table.of({"rnn": model}), "losses": Table.from_list(losses)}), tmp_path / "x.t7")
    code = (
        "import sys, t7bridge; text = str(t7bridge.inspect(sys.argv[1]));"
        "assert 'losses' in text and 'nn.Reshape' in text; print({'numpy', 'torch'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path / "x.t7"], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("set()\n", "")


def test_parts_and_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """`--at` shows a part, `--json` is data, `--all` the outline; a wrong path names the steps there are."""
    path = str(FILES / "models" / "training_checkpoint.t7")
    part = t7bridge.inspect(path, at="root.optimState")
    assert ("root.optimState.momentum", "0.9") in part.others
    with pytest.raises(ModelError, match="optimState"):
        t7bridge.inspect(path, at="root.optimstate")
    assert main(["inspect", path, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["layers"][1]["class_name"] == "nn.Linear"
    assert main(["inspect", path, "--all", "--at", "root.optimState"]) == 0
    assert "momentum: 0.9" in capsys.readouterr().out
    assert main(["inspect", path, "--stats"]) == 0
    assert "0.weight" in capsys.readouterr().out


def test_tensors_without_statistics_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many tensors the table has the first, and the header says how many it has not."""
    tensors = {str(number): t7bridge.Tensor.from_numpy(np.zeros(1, "f4")) for number in range(5)}
    t7bridge.save(tensors, tmp_path / "x.pt")
    assert "tensors without statistics" not in t7bridge.inspect(tmp_path / "x.pt", statistics=True).header
    monkeypatch.setattr(sys.modules["t7bridge.tools.inspect"], "_MOST_STATISTICS", 2)
    summary = t7bridge.inspect(tmp_path / "x.pt", statistics=True)
    assert (len(summary.tensors), summary.header["tensors without statistics"]) == (2, 3)


def test_outline_of_a_part_of_several_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--all --at` takes the paths that the summary of a file with several values shows."""
    with t7bridge.T7Writer(tmp_path / "two.t7") as writer:
        writer.write({"epoch": 1})
        writer.write({"options": {"rate": 0.5}})
    assert ("root[1].options.rate", "0.5") in t7bridge.inspect(tmp_path / "two.t7").others
    assert main(["inspect", str(tmp_path / "two.t7"), "--all", "--at", "root[1].options"]) == 0
    assert "rate: 0.5" in capsys.readouterr().out


def test_shapes_of_tables(subtests):
    """A table of inputs, in brackets, has the output shapes that Lua Torch computed for such inputs."""
    for name in ["gmodule_two_in_two_out", "siamese_shared", "char_lstm_nngraph"]:
        with subtests.test(name=name):
            case = t7bridge.load(FILES / "models" / f"{name}.io.t7")
            shapes = ["x".join(map(str, tensor.shape)) for tensor in case.input.as_list()]
            summary = t7bridge.inspect(FILES / "models" / f"{name}.t7", input_shape=f"[{','.join(shapes)}]")
            wanted = case.output.as_list() if isinstance(case.output, t7bridge.Table) else [case.output]
            assert summary.header["output"] == ", ".join("×".join(map(str, tensor.shape)) for tensor in wanted)
            with pytest.raises(t7bridge.errors.ModelError, match=r"The input was \[2x3, 1x2:int64\]"):
                t7bridge.inspect(FILES / "models" / f"{name}.t7", input_shape="[2x3,1x2:int64]")


def test_a_layer_that_cannot_compute_is_an_error_of_the_model(tmp_path):
    """Whatever a module raises for an input, here of a shape without elements, is an error of its model."""
    size = t7bridge.Storage.from_array(np.array([0, 3]))
    view = t7bridge.TorchObject("nn.View", 1, Table.of({"size": size}))
    model = t7bridge.TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list([view])}))
    t7bridge.save(model, tmp_path / "m.t7")
    with pytest.raises(ModelError, match="cannot be run to find its shapes"):
        t7bridge.inspect(tmp_path / "m.t7", input_shape=(2, 3))


def test_a_number_of_elements_is_no_argument() -> None:
    """Also if there is one: `nn.Mul` has one weight and takes no arguments."""
    (row,) = t7bridge.inspect(FILES / "nn/Mul.t7").layers
    assert (row.torch, row.parameters) == ("Mul", 1)


@pytest.mark.parametrize("room", [40, 50, 60, 80])
@pytest.mark.parametrize("name", ["resnet_small", "unet_nngraph", "text_cnn", "char_lstm_nngraph"])
def test_narrow_terminals_show_parameters(name: str, room: int) -> None:
    """The table of layers keeps its counts of parameters: columns are cut, and others left out."""
    summary = t7bridge.inspect(FILES / f"models/{name}.t7")
    lines = list(summary.lines(room))
    start = next(number for number, line in enumerate(lines) if line.startswith("layer "))
    table = lines[start : start + 1 + len(summary.layers)]
    assert "parameters" in table[0][:room]
    for line, row in zip(table[1:], summary.layers):
        assert f"{row.parameters:,}" in line[:room] or not row.parameters
