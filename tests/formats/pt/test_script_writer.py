"""Archives for `torch.jit.load` and C++: both see every tensor, under its name and with its sharing."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TESTFILES
from pt_helpers import saved

import t7bridge
from t7bridge.errors import ModelError, UnsupportedError
from t7bridge.formats.pt.reader import PtReader
from t7bridge.formats.pt.script_writer import ScriptWriter

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated")

TYPES = "float64 float32 float16 bfloat16 uint8 int8 int16 int32 int64 bool complex64 complex128".split()  # noqa: SIM905


def archive(value: Any) -> bytes:
    """What PyTorch saved, as an archive of ours."""
    file = io.BytesIO()
    writer = ScriptWriter(file)
    writer.write(PtReader(saved(value)).read())
    writer.finish()
    return file.getvalue()


def test_pytorch_loads_every_type():
    """`torch.jit.load` sees the values, sizes and strides of all types of numbers, in nested modules."""
    torch.manual_seed(1)
    state = {f"block.{number}.{name}": (torch.randn(3, 4) * 9).abs().to(getattr(torch, name)).t()
             for number, name in enumerate(TYPES)}  # fmt: skip
    state["scalar"] = torch.tensor(3.5)
    state["empty"] = torch.zeros(0, 4)
    found = torch.jit.load(io.BytesIO(archive(state))).state_dict()

    assert set(found) == set(state)
    for name, wanted in state.items():
        assert torch.equal(found[name], wanted)
        assert found[name].stride() == wanted.stride()


def test_sharing_and_kinds():
    """Tied weights share memory; running statistics and integers are buffers, the rest are parameters."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    state = dict(net.state_dict())
    state["tied.weight"] = state["0.weight"]
    module = torch.jit.load(io.BytesIO(archive(state)))

    assert module.state_dict()["tied.weight"].data_ptr() == module.state_dict()["0.weight"].data_ptr()
    assert {name for name, _ in module.named_buffers()} == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert {name for name, _ in module.named_parameters(remove_duplicate=False)} == {
        "0.weight", "0.bias", "1.weight", "1.bias", "tied.weight"
    }  # fmt: skip


@pytest.mark.parametrize("name", ['say "hi"', "back\\slash", "täglich", "a b", "class", "0", "line\nfeed", "self"])
def test_odd_names(name):
    """Names that are no identifiers stay what they are."""
    found = torch.jit.load(io.BytesIO(archive({name: torch.arange(3.0), f"m.{name}": torch.ones(2)}))).state_dict()
    assert set(found) == {name, f"m.{name}"}
    assert torch.equal(found[name], torch.arange(3.0))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"a": torch.ones(1), "a.b": torch.ones(1)}, ModelError),
        ({"a..b": torch.ones(1)}, ModelError),
        ({"": torch.ones(1)}, ModelError),
        ({1: torch.ones(1)}, ModelError),
        ({"a": [torch.ones(1)]}, UnsupportedError),
        ({"epoch": 3}, UnsupportedError),
        ({"esc\x1b]0;x": torch.ones(1)}, UnsupportedError),
    ],
    ids=str,
)
def test_refused(value, error):
    """What is no tree of named tensors is refused with its path."""
    with pytest.raises(error, match=r"root|name"):
        archive(value)


def test_convert(tmp_path):
    """A Lua model's state dict becomes an archive that PyTorch loads, with the numbers of the plain .pt."""
    source = TESTFILES / "models" / "resnet_small.t7"
    t7bridge.convert(source, tmp_path / "plain.pt")
    t7bridge.convert(source, tmp_path / "script.pt", pt_format="torchscript")

    plain = torch.load(tmp_path / "plain.pt", weights_only=True)
    script = torch.jit.load(tmp_path / "script.pt").state_dict()
    assert set(plain) == set(script)
    assert all(torch.equal(script[name], plain[name]) for name in plain)


PROGRAM = """
#include <torch/torch.h>
#include <iostream>
struct Net : torch::nn::Module {
  torch::nn::Linear a{register_module("a", torch::nn::Linear(4, 3))};
  torch::nn::BatchNorm1d b{register_module("b", torch::nn::BatchNorm1d(3))};
  torch::nn::Sequential s{register_module("s", torch::nn::Sequential(torch::nn::Linear(2, 2)))};
  torch::Tensor scale{register_buffer("scale", torch::zeros({1}))};
};
int main(int, char** argv) {
  auto net = std::make_shared<Net>();
  torch::load(net, argv[1]);
  torch::Tensor one;
  torch::load(one, argv[2]);
  std::cout.precision(9);
  for (auto& each : net->named_parameters())
    std::cout << each.key() << " " << each.value().sum().item<double>() << "\\n";
  for (auto& each : net->named_buffers())
    std::cout << each.key() << " " << each.value().sum().item<double>() << "\\n";
  std::cout << "one " << one.sum().item<double>() << "\\n";
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_cpp_loads_modules_and_tensors(tmp_path):
    """A program of the C++ API loads a module with nested modules and buffers, and a single tensor."""
    torch.manual_seed(2)
    net = torch.nn.ModuleDict(
        {"a": torch.nn.Linear(4, 3), "b": torch.nn.BatchNorm1d(3), "s": torch.nn.Sequential(torch.nn.Linear(2, 2))}
    )
    state = {**net.state_dict(), "scale": torch.tensor([2.5])}
    (tmp_path / "net.pt").write_bytes(archive(state))
    (tmp_path / "one.pt").write_bytes(archive(torch.arange(5.0)))
    (tmp_path / "load.cpp").write_text(PROGRAM)
    home = Path(torch.__file__).parent
    subprocess.run(
        [
            "g++", "-std=c++20", "-O0", f"-I{home}/include", f"-I{home}/include/torch/csrc/api/include", "load.cpp",
            "-o", "load", f"-L{home}/lib", f"-Wl,-rpath,{home}/lib", "-ltorch", "-ltorch_cpu", "-lc10",
        ],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    output = subprocess.run(
        [tmp_path / "load", "net.pt", "one.pt"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    found = {name: float(total) for name, total in map(str.split, output.splitlines())}

    assert set(found) == {*state, "one"}
    for name, tensor in state.items():
        np.testing.assert_allclose(found[name], float(tensor.double().sum()), rtol=1e-6)
    assert found["one"] == 10
