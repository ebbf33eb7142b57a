"""Checkpoint tables, and what state dicts leave out of them."""

from __future__ import annotations

import numpy as np
import torch
from helpers import TESTFILES, read

import t7bridge
from t7bridge import Table, Tensor, TorchObject, convert

CHECKPOINT = TESTFILES / "models/training_checkpoint.t7"


def numbers(*size: int) -> Tensor:
    """The numbers from 0 on."""
    return Tensor.from_numpy(np.arange(np.prod(size), dtype="f4").reshape(size))


def test_checkpoint_table(tmp_path):
    """Each module of a checkpoint table is replaced by its state dict; all else is unchanged."""
    target = tmp_path / "c.pt"
    convert(CHECKPOINT, target)
    lua, state = read(str(CHECKPOINT)), torch.load(target, weights_only=True)
    assert set(state) == {key.decode() for key in lua.raw_keys}
    assert list(state["model"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    weight = lua["model"]["modules"][1]["weight"].numpy()
    np.testing.assert_array_equal(state["model"]["0.weight"].numpy(), weight)
    for key, value in zip(lua.raw_keys, lua.raw_values):
        if isinstance(value, float):
            assert state[key.decode()] == value


def test_several_models(tmp_path):
    """Several modules, in tables too, are state dicts at their own paths; the same one twice is one dict."""
    one = TorchObject("nn.Linear", 1, Table.of({"weight": numbers(2, 3)}))
    other = TorchObject("nn.Linear", 1, Table.of({"weight": numbers(4, 2)}))
    value = Table.of({"protos": Table.of({"rnn": one, "list": Table.from_list([other, one])}), "epoch": 2.0})
    source, target = tmp_path / "c.t7", tmp_path / "c.pt"
    t7bridge.save(value, source)
    convert(source, target)
    state = torch.load(target, weights_only=True)
    assert state["protos"]["rnn"]["weight"].shape == (2, 3)
    assert [list(item) for item in state["protos"]["list"]] == [["weight"], ["weight"]]
    assert state["protos"]["list"][1]["weight"].data_ptr() == state["protos"]["rnn"]["weight"].data_ptr()


def test_what_is_left_out_is_counted(tmp_path):
    """Gradients and buffers of all modules are in one note, with their number, bytes and fields."""
    fields = {
        "weight": numbers(2, 3),
        "gradWeight": numbers(2, 3),
        "output": numbers(4),
        "gradInput": Tensor.from_numpy(np.zeros((0,), "f4")),
    }
    layers = [TorchObject("nn.Linear", 1, Table.of({**fields, "gradWeight": numbers(2, 3)})) for _ in range(2)]
    source = tmp_path / "c.t7"
    value = Table.of(
        {"a": layers[0], "b": TorchObject("nn.Sequential", 1, Table.of({"modules": Table.from_list(layers[1:])}))}
    )
    t7bridge.save(value, source)
    notes = [note for note in convert(source, tmp_path / "c.pt").notes if note.code == "left-out"]
    assert [(note.level, note.count) for note in notes] == [("info", 3)]
    assert notes[0].message == (
        "not part of a state dict: gradients: 2 tensors; outputs: 1 tensor (64 bytes); --mode tree keeps them"
    )


def test_nothing_left_out_is_no_news(tmp_path):
    """A model that holds nothing else causes no note; in tree mode there is none either."""
    source = tmp_path / "m.t7"
    t7bridge.save(TorchObject("nn.Linear", 1, Table.of({"weight": numbers(2, 3)})), source)
    assert not convert(source, tmp_path / "m.pt").notes
    assert not convert(CHECKPOINT, tmp_path / "c.pt", "tree").notes


def test_the_corpus_says_what_it_leaves_out(tmp_path):
    """A trained model of the corpus names its gradients."""
    notes = [note.message for note in convert(CHECKPOINT, tmp_path / "c.pt").notes if note.code == "left-out"]
    assert len(notes) == 1
    assert "gradients: 4 tensors" in notes[0]
