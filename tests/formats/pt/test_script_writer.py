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
from t7bridge import PtReader
from t7bridge.errors import ModelError, UnsupportedError
from t7bridge.formats import ScriptWriter

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated")

TYPES = "float64 float32 float16 bfloat16 uint8 int8 int16 int32 int64 bool complex64 complex128".split()  # noqa: SIM905


def archive(value: Any) -> bytes:
    """Return a value saved by PyTorch as an archive of ours."""
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
    """Names that are not identifiers are preserved."""
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
    """Anything but a tree of named tensors is refused with its path."""
    with pytest.raises(error, match=r"root|name"):
        archive(value)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [torch.optim.Adadelta, torch.optim.NAdam, torch.optim.Rprop])
def test_optimizers_that_cpp_does_not_have(cls):
    """The state dict of an optimizer that C++ does not have, or an option that it does not know, is refused."""
    with pytest.raises(UnsupportedError, match=r"C\+\+"):
        archive(cls([torch.nn.Parameter(torch.ones(2))]).state_dict())
    state = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, maximize=True).state_dict()
    with pytest.raises(UnsupportedError, match="maximize"):
        archive(state)


@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad])
def test_other_optimizers_are_readable(cls):
    """Archives of other optimizers have PyTorch's tensors under the names of C++."""
    torch.manual_seed(1)
    parameters = [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(3))]
    optimizer = cls(parameters)
    step(optimizer, parameters, 3)
    found = PtReader(archive(optimizer.state_dict())).read()
    wanted = optimizer.state_dict()["state"]

    assert found["pytorch_version"] == "1.5.0"
    assert found["state.1.step"] == found["state.2.step"] == 3
    for number, state in wanted.items():
        for name, value in state.items():
            if name != "step":
                assert np.array_equal(found[f"state.{number + 1}.{name}"].numpy(), value.numpy())


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
#include <torch/csrc/jit/serialization/import.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>
#include <torch/serialize.h>
#include <iostream>
struct Net : torch::nn::Module {
  torch::nn::Linear a{register_module("a", torch::nn::Linear(4, 3))};
  torch::nn::BatchNorm1d b{register_module("b", torch::nn::BatchNorm1d(3))};
  torch::nn::Sequential s{register_module("s", torch::nn::Sequential(torch::nn::Linear(2, 2)))};
  torch::Tensor scale{register_buffer("scale", torch::zeros({1}))};
};
template <typename Optimizer, typename Options>
void check(std::string name, const char* path) {
  std::vector<torch::Tensor> parameters{
      torch::ones({3, 4}, torch::requires_grad()), torch::ones({3}, torch::requires_grad())};
  Optimizer optimizer(parameters, Options(9.0));
  torch::load(optimizer, path);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    for (auto& each : parameters) (each * each * each).sum().backward();
    optimizer.step();
  }
  int number = 0;
  for (auto& each : parameters)
    std::cout << name << number++ << " " << each.sum().template item<double>() << "\\n";
}
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
  check<torch::optim::Adam, torch::optim::AdamOptions>("adam", argv[3]);
  check<torch::optim::AdamW, torch::optim::AdamWOptions>("adamw", argv[4]);
  check<torch::optim::SGD, torch::optim::SGDOptions>("sgd", argv[5]);
  check<torch::optim::RMSprop, torch::optim::RMSpropOptions>("rmsprop", argv[6]);
  check<torch::optim::Adagrad, torch::optim::AdagradOptions>("adagrad", argv[7]);
  auto script = torch::jit::load(argv[1]);
  for (const auto& each : script.named_parameters())
    std::cout << "script:" << each.name << " " << each.value.sum().item<double>() << "\\n";
  torch::serialize::InputArchive archive, inner;
  archive.load_from(argv[1]);
  archive.read("a", inner);
  torch::Tensor weight;
  inner.read("weight", weight);
  std::cout << "archive:a.weight " << weight.sum().item<double>() << "\\n";
}
"""


def step(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], count: int) -> None:
    """Take steps, as the program does."""
    for _ in range(count):
        optimizer.zero_grad()
        sum((each**3).sum() for each in parameters).backward()
        optimizer.step()


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"lr": 0.02, "weight_decay": 0.1, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.02, "weight_decay": 0.3}),
    "sgd": (torch.optim.SGD, {"lr": 0.03, "momentum": 0.8, "nesterov": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.02, "momentum": 0.7, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05, "lr_decay": 0.1, "initial_accumulator_value": 0.2}),
}
"""In the order of the program's arguments."""


def test_a_group_of_adam_may_say_that_there_is_no_momentum():
    """PyTorch keeps options of groups that its optimizer does not have; this one is off, and left out."""
    parameters = [torch.nn.Parameter(torch.ones(2))]
    without = archive(torch.optim.Adam(parameters).state_dict())

    assert archive(torch.optim.Adam([{"params": parameters, "momentum": 0.0}]).state_dict()) == without
    with pytest.raises(UnsupportedError, match="cannot hold this"):
        archive(torch.optim.Adam([{"params": parameters, "momentum": 0.9}]).state_dict())


@pytest.mark.parametrize("steps", [float("inf"), float("nan"), 1.5])
def test_steps_that_are_not_whole(steps):
    """A number of steps that is not a whole number is refused."""
    parameters = [torch.nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.Adam(parameters)
    step(optimizer, parameters, 1)
    state = optimizer.state_dict()
    state["state"][0]["step"] = steps

    with pytest.raises(ModelError, match="does not have the type"):
        archive(state)


def test_a_key_that_cannot_be_printed():
    """Names are text; the error about another key says its class, whatever its `__repr__` does."""

    class Key:
        def __repr__(self):
            raise RuntimeError

    with pytest.raises(ModelError, match="is not the name of a tensor; found a Key"):
        ScriptWriter(io.BytesIO()).write({Key(): t7bridge.Tensor.from_numpy(np.ones(2))})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_cpp_loads_modules_tensors_and_optimizers(tmp_path):
    """C++ loads a tensor, nested modules (as a module, an archive and TorchScript), and its optimizers, which go on."""
    torch.manual_seed(2)
    net = torch.nn.ModuleDict(
        {"a": torch.nn.Linear(4, 3), "b": torch.nn.BatchNorm1d(3), "s": torch.nn.Sequential(torch.nn.Linear(2, 2))}
    )
    state = {**net.state_dict(), "scale": torch.tensor([2.5])}
    (tmp_path / "net.pt").write_bytes(archive(state))
    (tmp_path / "one.pt").write_bytes(archive(torch.arange(5.0)))
    trained = {}
    for name, (cls, options) in OPTIMIZERS.items():
        parameters = [torch.nn.Parameter(torch.ones(3, 4)), torch.nn.Parameter(torch.ones(3))]
        optimizer = cls([{"params": parameters}], **options)
        step(optimizer, parameters, 3)
        (tmp_path / f"{name}.pt").write_bytes(archive(optimizer.state_dict()))
        with torch.no_grad():
            for parameter in parameters:
                parameter.fill_(1.0)
        step(optimizer, parameters, 2)
        trained |= {f"{name}{number}": float(each.detach().double().sum()) for number, each in enumerate(parameters)}
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
        [tmp_path / "load", "net.pt", "one.pt", *(f"{name}.pt" for name in OPTIMIZERS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = {name: float(total) for name, total in map(str.split, output.splitlines())}

    for name, wanted in trained.items():
        np.testing.assert_allclose(found.pop(name), wanted, rtol=1e-5)
    assert found.pop("archive:a.weight") == found["a.weight"]
    scripted = {name: found.pop(name) for name in list(found) if name.startswith("script:")}
    # A state dict does not say which of its tensors are buffers.
    assert {name for name, _ in net.named_parameters()} <= {name.removeprefix("script:") for name in scripted}
    assert all(total == found[name.removeprefix("script:")] for name, total in scripted.items())
    assert set(found) == {*state, "one"}
    for name, tensor in state.items():
        np.testing.assert_allclose(found[name], float(tensor.double().sum()), rtol=1e-6)
    assert found["one"] == 10
