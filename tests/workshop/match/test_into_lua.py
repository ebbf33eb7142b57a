"""A PyTorch state dict in a Lua model by `match -o x.t7`: the model then computes what the PyTorch module does."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from helpers import TESTFILES, read
from match_nets import Basic, Bottleneck, Language, ResNet, UNet
from torch import nn

import t7bridge
from t7bridge import match
from t7bridge.cli import main
from t7bridge.errors import ModelError
from t7bridge.nn import Places
from t7bridge.workshop.match import write_match


@cache
def models() -> Any:
    """Models with other names for the same layers, by name."""
    return read(str(TESTFILES / "match_models.t7"))


NETS = {
    "resnet": lambda: ResNet(Basic),
    "resnet_graph": lambda: ResNet(Basic),
    "resnet_bottleneck": lambda: ResNet(Bottleneck, widths=(8, 16, 16)),
    "lstm": lambda: Language(False),
}


def randomized(net: nn.Module) -> nn.Module:
    """The module in evaluation mode with weights and moving means of its own."""
    torch.manual_seed(11)
    for parameter in net.parameters():
        parameter.data.uniform_(-0.3, 0.3)
    for inner in net.modules():
        if isinstance(inner, nn.modules.batchnorm._BatchNorm):
            inner.running_mean.uniform_(-0.2, 0.2)
            inner.running_var.uniform_(0.5, 2)
    return net.eval()


def check(tmp_path, target: str, net: nn.Module, value, graphs: bool = False) -> None:
    """Fill a model on the command line, or from the live module where graphs are needed; compare what both compute."""
    torch.save(net.state_dict(), tmp_path / "net.pt")
    if graphs:
        write_match(match(net, target), tmp_path / "filled.t7")
    else:
        assert main(["match", str(tmp_path / "net.pt"), target, "-o", str(tmp_path / "filled.t7")]) == 0
    filled = t7bridge.load_module(tmp_path / "filled.t7").eval()
    with torch.no_grad():
        torch.testing.assert_close(filled(value), net(value), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_models_take_the_weights_of_pytorch(name, tmp_path):
    """Residual networks as Sequential and as graph, and stacked LSTMs, compute what the PyTorch module does."""
    t7bridge.save(models()[name]["module"], tmp_path / "model.t7")
    value = torch.from_numpy(models()[name]["input"].numpy().copy())
    check(tmp_path, str(tmp_path / "model.t7"), randomized(NETS[name]()), value, name == "resnet_graph")


def test_the_rest_of_the_file_stays(tmp_path):
    """Only weights change: classes, options and fields of the file are those of the target."""
    path = TESTFILES / "models" / "unet_nngraph.t7"
    value = torch.from_numpy(read(str(path.with_suffix(".io.t7")))["input"].numpy().copy())
    check(tmp_path, str(path), randomized(UNet()), value, graphs=True)
    before, after = path.read_bytes(), (tmp_path / "filled.t7").read_bytes()
    assert len(before) == len(after)
    kinds = [[place.obj.class_name for place in Places(t7bridge.load(file))] for file in (path, tmp_path / "filled.t7")]
    assert kinds[0] == kinds[1]


@pytest.mark.slow
def test_a_bias_that_pytorch_lacks_is_zero(tmp_path, capsys):
    """A convolution without bias fills one with a bias, which becomes zero; a note says so."""
    lua = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    t7bridge.save_module(lua, tmp_path / "model.t7", example_inputs=torch.randn(1, 3, 5, 5))
    net = randomized(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)))
    check(tmp_path, str(tmp_path / "model.t7"), net, torch.randn(2, 3, 5, 5))
    assert "1 biases are zero, as the source has none: 0.bias" in capsys.readouterr().err


def test_gates_go_into_the_order_of_lua(tmp_path):
    """Rows of PyTorch's i f g o become Lua's i f o g where a line of the mapping names them."""
    lstm = nn.LSTM(3, 5)
    cell = nn.ModuleDict({"i2h": nn.Linear(3, 20), "h2h": nn.Linear(5, 20)})
    pairs = [
        (f"{part}_{side}_l0", f"{name}.{part} ifog")
        for side, name in (("ih", "i2h"), ("hh", "h2h"))
        for part in ("weight", "bias")
    ]
    (tmp_path / "map").write_text("\n".join(f"{one} {other}" for one, other in pairs))
    found = match(lstm, cell, tmp_path / "map")
    assert found.complete
    order = torch.cat([torch.arange(5) + 5 * block for block in (0, 1, 3, 2)])
    state = {key: torch.from_numpy(value.numpy().copy()) for key, value in found.state_dict().items()}
    for one, other in pairs:
        assert torch.equal(state[other.split()[0]], lstm.state_dict()[one][order])


def test_a_t7_needs_a_model_to_fill(tmp_path):
    """A state dict alone cannot become a .t7: the message names the possible outputs."""
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "a.pt")
    found = match(tmp_path / "a.pt", tmp_path / "a.pt")
    with pytest.raises(ModelError, match=r"\.t7 if the target is a model"):
        write_match(found, tmp_path / "out.t7")
