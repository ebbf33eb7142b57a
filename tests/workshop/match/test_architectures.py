"""Lua's weights under the keys of PyTorch models written by hand: the models then compute the same as Lua."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TESTFILES, read
from match_nets import (
    VGG,
    AllLinear,
    Basic,
    Bottleneck,
    FlatBasic,
    Generator,
    Language,
    ResNet,
    SameLayers,
    Siamese,
    UNet,
)
from torch import nn

import t7bridge
from t7bridge import match
from t7bridge.cli import main


@cache
def models() -> Any:
    """Models with other names for the same layers, by name."""
    return read(str(TESTFILES / "match_models.t7"))


WIDE = {"widths": (8, 16, 16)}


def value_of(value):
    """A Lua value of an input or output as PyTorch has it."""
    items = getattr(value, "as_list", lambda: None)()
    return [value_of(item) for item in items] if items is not None else torch.from_numpy(value.numpy().copy())


def check(tmp_path: Path, source: str, case, net: nn.Module, *options: str) -> dict:
    """Match with a state dict on the command line, load strictly, and compare both results; return the match."""
    target, out = tmp_path / "target.pt", tmp_path / "out.pt"
    torch.save(net.state_dict(), target)
    assert main(["match", source, str(target), "-o", str(out), *options]) == 0
    state = torch.load(out, weights_only=True)
    assert list(state) == list(net.state_dict())
    compare(net, state, case)
    return state


def check_graphs(source: str, case, net: nn.Module) -> None:
    """Match with a module, whose graph is known, and compare both results."""
    state = match(source, net).state_dict()
    compare(net, {key: torch.from_numpy(value.numpy().copy()) for key, value in state.items()}, case)


def compare(net: nn.Module, state: dict, case) -> None:
    """The module computes what Lua did."""
    net.load_state_dict(state, strict=True)
    net.eval()
    with torch.no_grad():
        output = net(value_of(case["input"]))
    torch.testing.assert_close(output, value_of(case["output"]), rtol=1e-4, atol=1e-5)


def saved(tmp_path: Path, name: str) -> str:
    """One of the models in a file of its own."""
    path = tmp_path / f"{name}.t7"
    t7bridge.save(models()[name]["module"], path)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("head_first", [False, True], ids=["in order", "head first"])
@pytest.mark.parametrize("grouped", [False, True], ids=["in turn", "norms last"])
@pytest.mark.parametrize("first", [False, True], ids=["shortcut last", "shortcut first"])
@pytest.mark.parametrize("name", ["resnet", "resnet_swapped", "resnet_graph"])
def test_resnet(tmp_path, name, first, grouped, head_first):
    """Residual networks match, however each side orders shortcuts, normalizations and the classifier.

    Of a state dict alone, numbers and containers tell layers apart, unless Lua's layers are in one graph.
    """
    net = ResNet(Basic, head_first=head_first, first=first, grouped=grouped)
    source = saved(tmp_path, name)
    check_graphs(source, models()[name], net)
    found = match(source, ResNet(Basic, head_first=head_first, first=first, grouped=grouped).state_dict())
    if name == "resnet" and not grouped:
        check(tmp_path, source, models()[name], ResNet(Basic, head_first=head_first, first=first))
    elif found.complete:
        state = found.state_dict()
        compare(net, {key: torch.from_numpy(value.numpy().copy()) for key, value in state.items()}, models()[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "resnet_swapped", "resnet_graph"])
def test_flat_blocks(tmp_path, name):
    """Shortcuts without a container of their own are found by both graphs, and by nothing else."""
    source = saved(tmp_path, name)
    check_graphs(source, models()[name], ResNet(FlatBasic))
    assert match(source, ResNet(FlatBasic).state_dict()).ambiguous


@pytest.mark.parametrize("first", [False, True])
def test_bottlenecks(tmp_path, first):
    """A shortcut that looks like the convolution before it is distinguished by the ends of containers."""
    name = "resnet_bottleneck"
    check(tmp_path, saved(tmp_path, name), models()[name], ResNet(Bottleneck, **WIDE, first=first))


@pytest.mark.parametrize("convolutional", [False, True], ids=["linear", "convolutional"])
def test_vgg(tmp_path, capsys, convolutional):
    """Linear layers become convolutions of the same elements, each with a note."""
    state = check(tmp_path, saved(tmp_path, "vgg"), models()["vgg"], VGG(convolutional))
    if convolutional:
        assert state["classifier.0.weight"].shape == (8, 6, 2, 2)
        assert "12.weight as classifier.0.weight: [8, 24] becomes [8, 6, 2, 2]" in capsys.readouterr().err


def test_convolutions_as_linear_layers(tmp_path):
    """The way back: kernels become matrices."""
    check(tmp_path, saved(tmp_path, "all_conv"), models()["all_conv"], AllLinear())


@pytest.mark.parametrize("cells", [False, True], ids=["one module", "two modules"])
def test_lstm(tmp_path, cells):
    """Two Lua LSTMs are the two layers of one of PyTorch's, or two modules."""
    check(tmp_path, saved(tmp_path, "lstm"), models()["lstm"], Language(cells))


def test_same_layers(tmp_path):
    """Layers of the same size are told apart by graphs, not by the order of their keys."""
    source = saved(tmp_path, "same_layers")
    check_graphs(source, models()["same_layers"], SameLayers())
    assert match(source, SameLayers().state_dict()).ambiguous


CORPUS = {
    "unet_nngraph": UNet,
    "dcgan_generator": Generator,
}


@pytest.mark.parametrize("name", CORPUS)
def test_corpus(tmp_path, name):
    """Models of the corpus match their twins."""
    path = TESTFILES / "models" / f"{name}.t7"
    case = read(str(path.with_suffix(".io.t7")))
    check_graphs(str(path), case, CORPUS[name]())
    if name != "unet_nngraph":  # its layers of one shape have names without numbers
        check(tmp_path, str(path), case, CORPUS[name]())


@pytest.mark.parametrize("twice", [False, True])
def test_siamese(tmp_path, twice):
    """Branches that share weights are one module or two tied ones."""
    path = TESTFILES / "models/siamese_shared.t7"
    state = check(tmp_path, str(path), read(str(path.with_suffix(".io.t7"))), Siamese(twice))
    if twice:
        assert state["left.0.weight"].data_ptr() == state["right.0.weight"].data_ptr()


def test_tied_weights_into_separate_ones():
    """A module shared in Lua fills two separate modules of PyTorch with the same tensor."""
    net = nn.ModuleList([nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)) for _ in range(2)])
    state = match(str(TESTFILES / "models/siamese_shared.t7"), net).state_dict()
    assert state["0.0.weight"].storage is state["1.0.weight"].storage
    assert state["0.2.bias"].storage is state["1.2.bias"].storage


class LearnedState(nn.LSTM):
    """Two layers, with a parameter before theirs or behind."""

    def __init__(self, is_first: bool) -> None:
        super().__init__(4, 4, 2)
        layers = self._parameters.copy()
        if is_first:
            self._parameters.clear()
        self.state = nn.Parameter(torch.zeros(4))
        self._parameters.update(layers)


class RowOfLayers(nn.Module):
    """A recurrent layer, and two others that only its graph tells apart."""

    def __init__(self, is_first: bool, *names: str) -> None:
        super().__init__()
        self.names = names
        for name, layer in zip(names, (LearnedState(is_first), nn.Linear(4, 4), nn.Linear(4, 4))):
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        recurrent, *others = (self.get_submodule(name) for name in self.names)
        x, _ = recurrent(x)
        for layer in others:
            x = layer(x)
        return x


@pytest.mark.parametrize("is_first", [False, True])
def test_recurrent_module_with_a_parameter_of_its_own(is_first):
    """The graph tells its layers and those behind it apart, wherever the parameter is among the keys."""
    found = match(RowOfLayers(False, "rnn", "hidden", "out"), RowOfLayers(is_first, "a", "c", "b"))
    assert found.complete
    modules = {"a": "rnn", "c": "hidden", "b": "out"}
    for pair in found.pairs:
        module, _, name = pair.target.partition(".")
        assert pair.source == f"{modules[module]}.{name}"


def test_python_api():
    """The Python function accepts paths and live modules and returns a state dict of ours."""
    found = t7bridge.match(
        str(TESTFILES / "models/lenet_mm.t7"),
        nn.Sequential(nn.Conv2d(1, 6, 5), nn.Conv2d(6, 8, 5), nn.Linear(200, 20), nn.Linear(20, 10)),
    )
    assert found.complete
    assert [(pair.source, pair.target, pair.why) for pair in found.pairs][:2] == [
        ("0.weight", "0.weight", "shape"),
        ("0.bias", "0.bias", "shape"),
    ]
    assert found.state_dict()["2.weight"].shape == (20, 200)
