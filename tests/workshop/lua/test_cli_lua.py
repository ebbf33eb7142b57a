"""`t7bridge lua`, `model.lua`, and the page of operations."""

from __future__ import annotations

import re
import runpy

import numpy as np
import pytest
import torch
from forked import run_python
from helpers import ROOT

import t7bridge
from t7bridge.cli import main
from t7bridge.workshop.lua.literals import lua_string, lua_text

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.a, self.b = nn.Linear(3, width), nn.Linear(width, 2)

    def forward(self, x):
        return self.b(torch.relu(self.a(x))) + x[:, :2]
"""


@pytest.mark.slow
def test_verb(tmp_path, capsys):
    """The verb writes model.t7 with the given weights, and model.lua; a second run needs --force."""
    (tmp_path / "net.py").write_text(NET)
    code = f"import sys, torch; sys.path.insert(0, {str(tmp_path)!r}); import net; torch.manual_seed(1); "
    code += f"torch.save(net.Net(5).state_dict(), {str(tmp_path / 'w.pt')!r})"
    assert run_python("-c", code).returncode == 0
    args = ["lua", f"{tmp_path}/net.py:Net(5)", f"{tmp_path}/w.pt", "--input", "2x3", "-o", str(tmp_path / "out")]
    assert main(args) == 0
    assert "4 tensors" in capsys.readouterr().out
    weights = torch.load(tmp_path / "w.pt", weights_only=True)
    got = t7bridge.load_module(tmp_path / "out" / "model.t7").state_dict()
    assert all(torch.equal(got[key], value) for key, value in weights.items())
    assert "nn.Linear(3, 5)" in (tmp_path / "out" / "model.lua").read_text()
    assert main(args) != 0
    assert main([*args, "--force"]) == 0


@pytest.mark.slow
def test_inputs(tmp_path):
    """Several inputs are a table in brackets or one option each; a file and a range of whole numbers are inputs too."""
    torch.save(torch.ones(2, 3), tmp_path / "x.pt")
    for number, words in enumerate([["[2x3,2x3]"], ["2x3", "b=2x3"], [f"{tmp_path}/x.pt", "2x3:float32:1..9"]]):
        inputs = [word for text in words for word in ("--input", text)]
        assert main(["lua", "torch.nn:CosineSimilarity", *inputs, "-o", str(tmp_path / str(number))]) == 0
        (text,) = {(tmp_path / str(each) / "model.lua").read_text() for each in (0, number)}
        assert "CosineDistance" in text or "CMulTable" in text


@pytest.mark.parametrize(
    ("factory", "sizes"),
    [("nothing", "2x3"), ("no_such_package:Net", "2x3"), ("torch.nn:ReLU", "2by3"), ("math:sqrt(4)", "2x3")],
)
def test_wrong_arguments_are_messages(factory, sizes, tmp_path, capsys):
    """A missing or invalid factory, and invalid sizes, are errors with a message."""
    assert main(["lua", factory, "--input", sizes, "-o", str(tmp_path / "out")]) != 0
    assert "t7bridge: error:" in capsys.readouterr().err


class Block(torch.nn.Module):
    """A residual block, whose width and stride vary."""

    def __init__(self, width, stride):
        super().__init__()
        self.first = torch.nn.Conv2d(width, 2 * width, 3, stride, 1)
        self.second = torch.nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.shortcut = torch.nn.Conv2d(width, 2 * width, 1, stride)
        self.act = torch.nn.GELU()

    def forward(self, x):
        return self.act(self.second(self.act(self.first(x))) + self.shortcut(x))


@pytest.mark.slow
def test_repeated_blocks_are_one_function(tmp_path):
    """The source of more blocks, of other widths and strides, has equally many constructors; nodes have their names."""
    counts = []
    for number in (2, 5):
        net = torch.nn.Sequential(*(Block(2**i, 1 + i % 2) for i in range(number)))
        t7bridge.write_lua(net, tmp_path / str(number), torch.randn(2, 1, 32, 32))
        text = (tmp_path / str(number) / "model.lua").read_text()
        counts.append((text.count("nn.SpatialConvolution("), text.count("nn.Exp(")))
        assert all(re.search(rf"local {name}\b", text) for name in ("first", "second", "shortcut", "act"))
        assert not re.search(r"\btie\b", text)
    assert counts == [(3, 1)] * 2


class Tied(torch.nn.Module):
    """Two layers with one weight, and a third with it that computes nothing."""

    def __init__(self, unused):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = torch.nn.Linear(3, 3)
        if unused:
            self.unused = torch.nn.Linear(3, 3, bias=False)
            self.unused.weight = self.first.weight
        else:
            self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).tanh())


@pytest.mark.slow
@pytest.mark.parametrize(("unused", "key"), [(False, "second.weight"), (True, "unused.weight")])
def test_all_keys_of_a_tied_tensor_are_compared(unused, key, tmp_path):
    """`load` knows each key of a tensor: Lua refuses weights in which they differ."""
    t7bridge.write_lua(Tied(unused), tmp_path, torch.randn(2, 3))
    text = (tmp_path / "model.lua").read_text()
    assert f"local tied = {{\n   ['{key}'] = 'first.weight'\n}}" in text
    assert "\n   check_tied(weights)\n   for _, module" in text


class Dense(torch.nn.Module):
    """Each layer takes what all before returned, joined inside it."""

    def __init__(self, width, count):
        super().__init__()
        self.layers = torch.nn.ModuleList(Joining((place + 1) * width, width) for place in range(count))

    def forward(self, x):
        found = [x]
        for layer in self.layers:
            found.append(layer(*found))
        return torch.cat(found, 1)


class Joining(torch.nn.Module):
    """Joins its arguments first."""

    def __init__(self, width, out):
        super().__init__()
        self.norm, self.linear = torch.nn.BatchNorm1d(width), torch.nn.Linear(width, out)

    def forward(self, *values):
        return self.linear(self.norm(torch.cat(values, 1)).relu())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "size", "word"),
    [
        (lambda: torch.nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True), (2, 3, 3), "nn.Tanh()(sum2)"),
        (lambda: Dense(3, 4), (2, 3), "nn.BatchNormalization("),
    ],
)
def test_alike_parts_are_one_function(make, size, word, tmp_path):
    """So are the cells of all layers and directions, and blocks that join their inputs, but for the join."""
    t7bridge.write_lua(make(), tmp_path, torch.randn(size))
    assert (tmp_path / "model.lua").read_text().count(word) == 1


@pytest.mark.slow
def test_chains_are_not_nested(tmp_path):
    """A chain of chains that is used once is one nn.Sequential."""
    inner = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Identity(), torch.nn.ReLU())
    net = torch.nn.Sequential(inner, torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh()))
    t7bridge.save_module(net, tmp_path / "m.t7", torch.randn(2, 3))
    model = t7bridge.load_module(tmp_path / "m.t7")
    assert [type(layer).__name__ for layer in model.children()] == ["Linear", "ReLU", "Linear", "Tanh"]


def test_names_are_escaped():
    """Keys become string literals of Lua that cannot end early."""
    assert lua_string("a']] os.exit() --\n\\") == "'a\\039\\093\\093 os.exit\\040\\041 --\\010\\092'"


def test_zeros_keep_their_sign():
    """A quotient by -0 is minus infinity, also of elements that are equal to 0."""
    assert lua_text(-0.0) == "-0"
    assert lua_text(np.array([-0.0, -0.0])) == "torch.Tensor(2):fill(-0)"
    assert lua_text(np.array([0.0, -0.0, 1.5, 1.5, np.nan], "f4")) == "numbers({5}, '0 -0 1.5*2 nan')"


def test_page_of_operations_is_current():
    """docs/lua-operations.md is what its generator writes."""
    made = runpy.run_path(str(ROOT / "docs" / "generate_lua_operations.py"))["document"]()
    assert (ROOT / "docs" / "lua-operations.md").read_text() == made, "run `python docs/generate_lua_operations.py`"
