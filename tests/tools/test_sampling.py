"""Checkpoints of language models: what `module` writes beside the model, and text from it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import run_python

import t7bridge
from t7bridge import T7Writer, Table, Tensor, TorchObject

MODEL = Path(__file__).parents[2] / "testfiles/models/char_lstm_nngraph.t7"
LETTERS = "abcdefgh\u00e9"


def checkpoint(path: Path, **beside: Any) -> str:
    """Write a checkpoint as char-rnn does, with the model under `protos.rnn`."""
    with path.open("wb") as file:
        T7Writer(file).write_object(Table.of({"protos": Table.of({"rnn": t7bridge.load(MODEL)}), **beside}))
    return str(path)


def vocabulary(letters: str) -> Table:
    """Return a vocabulary as char-rnn has it: numbers by letters."""
    return Table.of({letter: number for number, letter in enumerate(letters, 1)})


@pytest.mark.slow
def test_a_checkpoint_talks(tmp_path: Path) -> None:
    """`sample.py` chooses the letters that the model finds most likely, one after another, and names those it lacks."""
    opt = Table.of({"rnn_size": 6, "model": "lstm"})
    path = checkpoint(tmp_path / "c.t7", vocab=vocabulary(LETTERS), opt=opt, losses=Table.from_list([1.0, 2.0]))
    t7bridge.write_module(path, tmp_path / "m")
    run = run_python(tmp_path / "m/sample.py", "aXbX", "--length", "20", "--temperature", "0")
    assert run.returncode == 0
    assert run.stderr.splitlines() == ["not in the vocabulary, left out: 'X'"]
    text = run.stdout
    model = t7bridge.load_module(path)
    state, wanted = [torch.zeros(1, 6) for _ in range(4)], "ab"
    number = 1
    for place in range(21):
        *state, scores = model([torch.tensor([number]), *state])
        number = int(scores.argmax()) + 1 if place else 2
        wanted += LETTERS[number - 1] * bool(place)
    assert text == wanted + "\n"
    config = json.loads((tmp_path / "m/config.json").read_text())
    assert config["checkpoint"] == {
        "vocab": {letter: number for number, letter in enumerate(LETTERS, 1)},
        "opt": {"rnn_size": 6, "model": "lstm"},
    }
    assert config["sampling"] == {"tokens": [*LETTERS], "index_base": 1, "states": [[6]] * 4}


@pytest.mark.slow
def test_a_model_of_many_states_talks(tmp_path: Path) -> None:
    """Nine states, as in networks of more than three layers: the summary has the shape of each, and there is text."""

    def layer(name: str, **fields: Any) -> TorchObject:
        """Return a layer of nn."""
        return TorchObject(f"nn.{name}", 1, Table.of(fields))

    def container(name: str, *modules: TorchObject) -> TorchObject:
        """Return a container of nn."""
        return layer(name, modules=Table.from_list(list(modules)))

    def ones(*size: int) -> Tensor:
        """Return weights."""
        return Tensor.from_numpy(np.ones(size, np.float32))

    states = 9
    norm = {"running_mean": ones(6), "running_var": ones(6), "weight": ones(6), "bias": ones(6), "eps": 1e-5}
    scores = container("Sequential", layer("OneHot", outputSize=4.0), layer("Linear", weight=ones(4, 4)))
    step = container("ParallelTable", scores, *[layer("BatchNormalization", **norm) for _ in range(states)])
    # The scores, which are the first output of the steps, become the last.
    order = container("ConcatTable", *[layer("SelectTable", index=float(number)) for number in (*range(2, 11), 1)])
    model = container("Sequential", step, order)
    t7bridge.save(Table.of({"net": model, "vocab": vocabulary("abcd")}), tmp_path / "c.t7")
    assert t7bridge.inspect(tmp_path / "c.t7").sizes["output"] == [*[[1, 6]] * states, [1, 4]]
    t7bridge.write_module(tmp_path / "c.t7", tmp_path / "m")
    assert json.loads((tmp_path / "m/config.json").read_text())["sampling"]["states"] == [[6]] * states
    assert (tmp_path / "m/sample.py").is_file()


def test_the_command_that_samples_is_of_a_shell(tmp_path: Path) -> None:
    """A folder whose name has a space is quoted in it."""
    path = checkpoint(tmp_path / "c.t7", vocab=vocabulary(LETTERS))
    report = t7bridge.write_module(path, tmp_path / "a b")
    (message,) = [note.message for note in report.notes if note.message.startswith("sample.py generates text")]
    _, _, command = message.partition("tokens: ")
    assert shlex.split(command) == ["python", str(tmp_path / "a b" / "sample.py")]


@pytest.mark.parametrize(
    "vocab",
    [vocabulary("abc"), Table.of(dict.fromkeys(LETTERS, 1)), Table.from_list([1.0] * 9)],
    ids=["another size", "one number", "numbers"],
)
def test_no_vocabulary(vocab: Table, tmp_path: Path) -> None:
    """A table that does not number as many texts as the model has classes is no vocabulary of it."""
    t7bridge.write_module(checkpoint(tmp_path / "c.t7", vocab=vocab), tmp_path / "m")
    assert not (tmp_path / "m/sample.py").exists()


def test_bytes(tmp_path: Path) -> None:
    """Tokens may be bytes of UTF-8, as in char-rnn, or a list of texts, as in torch-rnn."""
    halves = Table.from_list([b"a", b"\xc3", b"\xa9", b"b", b"c", b"d", b"e", b"f", b"g"])
    t7bridge.write_module(checkpoint(tmp_path / "c.t7", words=halves), tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    assert config["sampling"]["tokens"][:3] == ["a", "\udcc3", "\udca9"]


def test_another_model_in_the_same_folder(tmp_path: Path) -> None:
    """What only the former model has is removed with `force`, where the folder is one of ours."""
    target = tmp_path / "m"
    path = checkpoint(tmp_path / "c.t7", vocab=vocabulary(LETTERS))
    t7bridge.write_module(path, target)
    assert {"config.json", "sample.py"} <= {each.name for each in target.iterdir()}
    t7bridge.write_module(MODEL, target, force=True)
    assert {each.name for each in target.iterdir()} == {"model.py", "model.pt"}
    (target / "model.py").write_text("mine = 1\n")
    (target / "config.json").write_text("{}")
    t7bridge.write_module(MODEL, target, force=True)
    assert (target / "config.json").read_text() == "{}"
