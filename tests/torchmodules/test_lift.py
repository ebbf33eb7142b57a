"""Recognized cells: the lifted module, its page and the way back, against the layers that Lua has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import TESTFILES, corpus, read
from runtime_helpers import as_torch
from source_helpers import run_source

import t7bridge
from t7bridge.codegen.generate import Generated, generate
from t7bridge.nn.pieces import undo
from t7bridge.nn.places import find_modules
from t7bridge.torchmodules import live_module

CHAR_LSTM = TESTFILES / "models" / "char_lstm_nngraph.t7"


def _inputs() -> list[torch.Tensor]:
    return [torch.randint(1, 10, (3,)), *(torch.randn(3, 6) for _ in range(4))]


def test_cells_are_classes_of_torch():
    """Layers of a stacked LSTM become two cells; the page calls them as PyTorch's users do."""
    page = generate(read(CHAR_LSTM))
    assert "self.lstm2 = nn.LSTMCell(6, 6)" in page.text
    assert "h2, c2 = self.lstm2(self.dropout(h1), (h2, c2))" in page.text
    assert [note.code for note in page.notes] == ["lift"]
    assert "nn.LSTMCell" not in generate(read(CHAR_LSTM), lift=False).text


def test_lifted_modules_compute_the_same(tmp_path):
    """To the last digits of float64; the page loads the same state dict."""
    plain = t7bridge.load_module(CHAR_LSTM).double()
    lifted = t7bridge.load_module(CHAR_LSTM, lift=True).double()
    made, page = run_source(read(CHAR_LSTM), tmp_path)
    lifted.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True), strict=True)
    assert list(lifted.state_dict()) == list(page.state_dict()) == list(made.tensors)
    inputs = [each.double() if each.is_floating_point() else each for each in _inputs()]
    for model in (lifted.double(), page.double()):
        for output, wanted in zip(model(inputs), plain(inputs), strict=True):
            torch.testing.assert_close(output, wanted, rtol=1e-12, atol=1e-12)


def test_template_takes_cells_back(tmp_path):
    """Bit for bit where nothing changed; with weights that were trained, the live module agrees."""
    t7bridge.write_module(CHAR_LSTM, tmp_path / "page")
    weights = tmp_path / "page" / "model.pt"
    t7bridge.convert(weights, tmp_path / "back.t7", template=CHAR_LSTM)
    assert (tmp_path / "back.t7").read_bytes() == CHAR_LSTM.read_bytes()
    model = t7bridge.load_module(CHAR_LSTM, lift=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)
    torch.save(model.state_dict(), weights)
    t7bridge.convert(weights, tmp_path / "trained.t7", template=CHAR_LSTM)
    inputs = _inputs()
    for output, wanted in zip(t7bridge.load_module(tmp_path / "trained.t7")(inputs), model(inputs), strict=True):
        torch.testing.assert_close(output, wanted)


def test_an_lstm_whose_gates_see_different_values_stays_as_it_is():
    """It has no cell in PyTorch: a note says which gate is in the way, and the module computes what Lua did."""
    case = read(TESTFILES / "found_gates.t7")
    page = generate(case["model"])
    notes = [note.message for note in page.notes if note.code == "lift"]
    assert notes == ["LSTM stays as it is: the input gate does not see both the input and the last output"]
    outputs = live_module(case["model"], "root", lift=True)(as_torch(case["inputs"]))
    for output, wanted in zip(outputs, as_torch(case["output"]), strict=True):
        torch.testing.assert_close(output, wanted, rtol=1e-12, atol=1e-12)


def _same_bits(page: Generated) -> bool:
    back = undo(page.pieces, page.tensors, page.state)
    return all(page.state[key].numpy().tobytes() == tensor.numpy().tobytes() for key, tensor in back.items())


@pytest.mark.slow
def test_pages_of_the_corpus_give_their_tensors_back(subtests):
    """Every cell that is recognized in a test file has pieces that make its layers' tensors again."""
    lifted = 0
    for path in corpus("*.t7", "models/*.t7", "prove/*.t7"):
        if b"gModule" not in Path(path).read_bytes():
            continue
        for place, module in find_modules(read(path)):
            try:
                page = generate(module, place, only_keys=True)
            except t7bridge.T7BridgeError:
                continue
            with subtests.test(file=path.name, place=place):
                if page.pieces:
                    lifted += 1
                    assert _same_bits(page)
                    live_module(module, lift=True)
    assert lifted >= 5
