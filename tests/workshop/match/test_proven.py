"""What `match` says of models that it runs: before it writes, of several candidates, and of recurrent models."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from fuzz_networks import records
from helpers import TESTFILES, written
from torch import nn

import t7bridge
from t7bridge.cli import main

NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, ceil=False, swapped=False, soft=False):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.stem, self.fc = nn.Conv2d(3, 8, 1), nn.Linear(8, 5)
        self.pool, self.swapped, self.soft = nn.MaxPool2d(2, ceil_mode=ceil), swapped, soft
    def forward(self, x):
        if x.shape[0] > 1 << 20:  # no symbol knows
            raise ValueError("too many")
        x = self.a(self.b(x).relu()) if self.swapped else self.b(self.a(x).relu())
        x = self.fc(self.pool(self.stem(x).relu()).mean((2, 3)))
        return x.softmax(1) if self.soft else x

def both(ceil=True, soft=True) -> nn.Module: return Net(ceil, soft=soft)
def net() -> nn.Module: return Net(swapped=True)
def nett() -> nn.Module: return Net(ceil=True)
def right() -> nn.Module: return Net()
"""
RECURRENT = """
from torch import nn

class Net(nn.Module):
    def __init__(self, kind, tokens, inputs, features, layers=1, **options):
        super().__init__()
        self.turns = options.pop("turns", False)
        self.embed = nn.Embedding(tokens, inputs) if inputs else None
        self.rnn = getattr(nn, kind)(inputs or tokens, features, layers, **options)
        self.out = nn.Linear(features, tokens)
    def forward(self, x):
        x = self.embed(x) if self.embed else x
        y, state = self.rnn(x.transpose(0, 1) if self.turns else x)
        y = self.out(y.transpose(0, 1) if self.turns else y)
        return y.log_softmax(-1), state

class Layers(nn.Module):
    def __init__(self, layers, outputs):
        super().__init__()
        self.rnn, self.out = nn.LSTM(5, 4, layers), nn.Linear(4, outputs)
    def forward(self, x):
        return self.out(self.rnn(x)[0])

class Scores(Layers):
    def forward(self, x):
        return super().forward(x).log_softmax(-1)
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of models, and `model.t7`, one of them as a Lua model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "recurrent.py").write_text(RECURRENT)
    spaces: dict[str, type[nn.Module]] = {}
    exec(NETS, spaces)
    torch.manual_seed(25)
    t7bridge.write_lua(spaces["Net"]().eval(), tmp_path / "lua", example_inputs=["2x3x16x16"])
    (tmp_path / "lua" / "model.t7").rename(tmp_path / "model.t7")
    return tmp_path


@pytest.mark.slow
def test_wrong_pairs_are_not_written(nets: Path, capsys: pytest.CaptureFixture[str]):
    """Layers that look alike and run in another order than they are defined in: the run shows it first."""
    out = nets / "out.pt"
    asked = ["match", str(nets / "model.t7"), f"{nets}/nets.py:net", "-o", str(out)]
    assert main(asked) == 1
    error = capsys.readouterr().err
    assert "not proven: " in error
    assert f"{out} is not written: layers may have the weights of others; --no-run writes it" in error
    assert not out.exists()
    assert main([*asked, "--no-run"]) == 0
    assert out.exists()


@pytest.mark.slow
def test_into_lua(nets: Path, capsys: pytest.CaptureFixture[str]):
    """A Lua model gets the weights of a factory only if it then computes the same, and it does."""
    model, out = str(nets / "model.t7"), nets / "out.t7"
    assert main(["match", f"{nets}/nets.py:net", model, "-o", str(out)]) == 1
    assert not out.exists()
    assert main(["match", f"{nets}/nets.py:right", model, "-o", str(out)]) == 0
    assert "proven against 4 layers" in capsys.readouterr().err
    assert (nets / "model.t7").read_bytes() != out.read_bytes()


@pytest.mark.slow
def test_another_size_shows_what_one_does_not(nets: Path, capsys: pytest.CaptureFixture[str]):
    """Of an even size ceil mode makes no difference; the file is written, and the exit code is that of a difference."""
    asked = ["match", str(nets / "model.t7"), f"{nets}/nets.py:nett", "-o", str(nets / "out.pt")]
    assert main(asked) == 1
    text = "in 2x3x19x10, ceil_mode of max_pool2d is False in the .t7 and True in"
    assert text in capsys.readouterr().err
    assert (nets / "out.pt").exists()
    assert main([*asked, "--force", "--input", "2x3x16x16"]) == 0
    assert main([asked[0], asked[1], f"{nets}/nets.py:both"]) == 1
    found = capsys.readouterr().err
    assert "at the end, " in found.partition(text)[0]
    assert text in found


@pytest.mark.slow
def test_the_proven_candidate_is_named(nets: Path, capsys: pytest.CaptureFixture[str]):
    """Of models with the same layers the one that computes the same, and then those that differ least."""
    assert main(["match", str(nets / "model.t7"), "--among", f"{nets}/nets.py"]) == 0
    printed = capsys.readouterr()
    assert [line.rpartition(":")[2] for line in printed.out.splitlines()] == [
        "right, complete, proven",
        "nett, complete, not proven",
        "both, complete, not proven",
        "net, complete, not proven",
    ]
    assert "nets.py:right -o right.pt" in printed.err
    assert "warning" not in printed.err
    (nets / "nets.py").write_text(NETS.replace("def right", "def _right"))
    assert main(["match", str(nets / "model.t7"), "--among", f"{nets}/nets.py"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{nets}/nets.py:nett, complete, not proven\n")
    assert "ceil_mode" in printed.err


@cache
def models(name: str) -> dict[str, t7bridge.TorchObject]:
    """The models of a file with records, by name."""
    return {record["name"].decode(): record["model"] for record in records(TESTFILES / name)}


TEXTS = {
    "charrnn_lstm_2": ("2-layer LSTM language model, 8 features, 13 tokens", "'LSTM', 13, 0, 8, 2"),
    "charrnn_gru_1": ("1-layer GRU language model, 8 features, 11 tokens", ""),
    "charrnn_rnn_1": ("1-layer RNN language model, 8 features, 11 tokens", "'RNN', 11, 0, 8"),
    "torch_rnn_stateful_lstm": (
        "2-layer LSTM language model, 9 features, 11 tokens",
        "'LSTM', 11, 8, 9, 2, turns=True",
    ),
    "zaremba": ("2-layer LSTM language model, 8 features, 14 tokens", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_a_language_model(name: str, nets: Path, capsys: pytest.CaptureFixture[str]):
    """It is named without asking libraries, and proven against a user's own model, which Lua's outputs agree with."""
    sentence, arguments = TEXTS[name]
    model = nets / "text.t7"
    model.write_bytes(written(models("cells.t7")[name]))
    assert main(["match", str(model)]) == 0
    printed = capsys.readouterr()
    assert printed.out == sentence + "\n"
    assert f"t7bridge module {model} -o text" in printed.err
    if name != "zaremba":  # its lists of lists have to be specified
        t7bridge.write_module(model, nets / "page")
        proof = t7bridge.prove(model, against=nets / "page")
        assert proof.sentence().startswith("proven against"), proof.sentence()
    if arguments:
        asked = ["match", str(model), f"{nets}/recurrent.py:Net({arguments})", "-o", str(nets / "out.pt")]
        logs = "torch_rnn" not in name
        assert main(asked) == (not logs)
        error = capsys.readouterr().err
        proven = "proven against 7 steps of" if logs else "the .t7 does not"
        assert proven in error, error


@pytest.mark.slow
def test_masks_are_named(nets: Path, capsys: pytest.CaptureFixture[str]):
    """What returns zeros for steps of zeros differs from what does not, though the weights belong together."""
    model, out = nets / "masked.t7", nets / "out.pt"
    model.write_bytes(written(models("sequences.t7")["masked outputs"]))
    assert main(["match", str(model), f"{nets}/recurrent.py:Scores(1, 2)", "-o", str(out)]) == 1
    assert "for steps that are zeros, the .t7 returns zeros, and " in capsys.readouterr().err
    assert sorted(torch.load(out)) == sorted(
        ["rnn.weight_ih_l0", "rnn.weight_hh_l0", "rnn.bias_ih_l0", "rnn.bias_hh_l0", "out.weight", "out.bias"]
    )
