"""State dicts that `loader.lua` puts into Lua models by name: stock Lua Torch recorded what they then compute."""

from __future__ import annotations

import pytest
import torch
from helpers import ROOT, TESTFILES, read
from lua_loading import net_of
from runtime_helpers import as_torch

import t7bridge
from t7bridge.cli import main
from t7bridge.workshop.lua.save import loader_source

CASES = read(TESTFILES / "lua" / "loader.t7")
LOADED = sorted(str(name) for name in CASES if "output" in CASES[name])
REFUSED = {
    "too_few": ["no module takes fc.weight", "no module takes fc.bias", "has nothing for weight of nn.Linear"],
    "sizes": ["0.weight is 4 x 3, and weight of nn.Linear is 5 x 3", "0.bias is 4"],
    "gru": ["nn.SeqGRU resets the state before it is multiplied, PyTorch after"],
    "transposed": ["0.weight is 3 x 4, and weight of nn.Linear is 4 x 3"],
    "one_column": ["1.1.weight is 20 x 1, and weight of nn.Linear is 5 x 4"],
    "tied": ["0.weight and 1.1.weight are different, and go to the same memory"],
    "no_gates": ["the order of the gates is not named", 'gates = "ifgo"'],
}


def text_of(value):
    """A string of Lua as text."""
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LOADED)
def test_lua_computes_what_pytorch_does(name):
    """Gates, sums of biases, fused and old batch normalizations: Lua's model returns what the PyTorch module does."""
    case = CASES[name]
    module, value = net_of(text_of(case["net"]))
    state = {str(key): as_torch(tensor) for key, tensor in case["weights"].items()}
    shapes = {key: tensor.shape for key, tensor in module.state_dict().items()}
    module.load_state_dict({key: tensor.view(shapes[key]) for key, tensor in state.items()})
    with torch.no_grad():
        want = module(as_torch(case["input"]).view(value.shape))
    torch.testing.assert_close(as_torch(case["output"]).view(want.shape), want, rtol=1e-5, atol=1e-5)


def test_enough_is_recorded():
    """Every kind of target is among the cases."""
    wanted = {
        "names",
        "own_names",
        "annotations",
        "places",
        "fused",
        "running_std",
        "seq_lstm",
        "fast_lstm",
        "char_rnn",
        "prefix",
        "prefix_names",
    }
    assert wanted <= set(LOADED)


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_listed(name):
    """Lua's error names every tensor and module that is left, and every other size."""
    text = text_of(CASES[name]["error"])
    for part in REFUSED[name]:
        assert part in text


def test_verb_writes_the_loader(tmp_path, capsys):
    """`lua --loader` writes the file, and with a state dict its table; a second run needs --force."""
    torch.save({"a.weight": torch.ones(2, 3)}, tmp_path / "w.pt")
    args = ["lua", "--loader", str(tmp_path / "w.pt"), "-o", str(tmp_path / "out")]
    assert main(args) == 0
    assert "loader.lua" in capsys.readouterr().out
    assert (tmp_path / "out" / "loader.lua").read_text() == loader_source()
    assert t7bridge.load(tmp_path / "out" / "weights.t7")["a.weight"].shape == (2, 3)
    assert main(args) != 0
    assert main([*args, "--force"]) == 0
    assert main(["lua", "--loader", "-o", str(tmp_path / "alone")]) == 0
    assert sorted(path.name for path in (tmp_path / "alone").iterdir()) == ["loader.lua"]


def test_the_loader_is_that_of_the_package():
    """The file needs torch and nn only, and is the one that was recorded."""
    text = loader_source()
    assert text == (ROOT / "t7bridge" / "workshop" / "lua" / "loader.lua").read_text()
    assert "require" not in text


def test_a_factory_is_needed_without_loader(tmp_path, capsys):
    """Without --loader the verb asks for a factory and an input."""
    assert main(["lua", "-o", str(tmp_path / "out")]) == 2
    assert "PACKAGE:FACTORY" in capsys.readouterr().err
