"""LSTMs as nn.SeqLSTM where the package rnn is allowed. What Lua Torch computes of it is in testfiles/rnn."""

from __future__ import annotations

import pytest
import torch
from lua_nets import module_of
from torch import nn

import t7bridge
from t7bridge.errors import ModelError
from t7bridge.nn import Places


class Language(nn.Module):
    """The outputs and the last hidden state of stacked layers."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, 2, dropout=0.2, **options)

    def forward(self, x):
        y, (h, _) = self.rnn(x)
        return y, h[-1]


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x):
        y, (_, c) = self.rnn(x)
        return y[:, -1] + c[0]


def classes_in(path):
    """The classes of the modules in a file."""
    return {place.obj.class_name for place in Places(t7bridge.load(path))}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"batch_first": True}, {"bidirectional": True}, {"bias": False}], ids=["", "batch", "both", "plain"]
)
def test_seq_lstm(options, tmp_path):
    """Gates and both biases are those of PyTorch, and so are the keys of the state dict."""
    torch.manual_seed(1)
    module, value = Language(**options).eval(), torch.randn(3, 2, 4)
    t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=value, allow=("rnn",))
    assert "nn.SeqLSTM" in classes_in(tmp_path / "m.t7")
    again = t7bridge.load_module(tmp_path / "m.t7")
    with torch.no_grad():
        for mine, want in zip(again(value), module(value), strict=True):
            torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-5)
    own, wanted = again.state_dict(), module.state_dict()
    assert list(own) == list(wanted)
    assert all(torch.equal(own[key], tensor) for key, tensor in wanted.items() if "weight" in key)


@pytest.mark.slow
@pytest.mark.parametrize("allow", [(), ("rnn",)])
def test_unrolled_where_not_allowed_or_not_possible(allow, tmp_path):
    """Without --allow rnn, and where the last cells are used, LSTMs are unrolled cells of nn."""
    module, value = Cells().eval(), torch.randn(2, 3, 4)
    t7bridge.save_module(module, tmp_path / "m.t7", example_inputs=value, allow=allow)
    assert not any("Seq" in name and name != "nn.Sequential" for name in classes_in(tmp_path / "m.t7"))


@pytest.mark.slow
def test_model_lua_requires_rnn(tmp_path):
    """The source of such a model requires rnn and fills the gates; a GRU has no class that computes the same."""
    for name, needs in (("lstm", True), ("gru", False)):
        module, inputs = module_of(name)
        t7bridge.write_lua(module, tmp_path / name, inputs, allow=("rnn",))
        text = (tmp_path / name / "model.lua").read_text()
        assert ("require 'rnn'" in text) is needs
        assert ("fill_lstm" in text) is needs


def test_other_packages_are_refused(tmp_path):
    """A package that no operation uses is an error that names those which are."""
    with pytest.raises(ModelError, match="rnn"):
        t7bridge.save_module(nn.Linear(2, 2), tmp_path / "m.t7", example_inputs=torch.randn(1, 2), allow=("cudnn",))
