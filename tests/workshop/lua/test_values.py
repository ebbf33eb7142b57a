"""NaN, infinities, quotients and whole numbers: real Lua computed what PyTorch does, or the module is refused."""

from __future__ import annotations

import pytest
import torch
from helpers import TESTFILES, read
from lua_values import REFUSED, VALUES, Of
from runtime_helpers import as_torch

import t7bridge
from t7bridge.errors import UnsupportedError
from t7bridge.nn.places import Places


@pytest.mark.slow
def test_lua_computed_what_pytorch_does(subtests, tmp_path):
    """The model that is written now has the layers of the one that Lua ran, whose values are PyTorch's."""
    recorded = {str(name): case for name, case in read(TESTFILES / "lua" / "values.t7").items()}
    assert set(recorded) == set(VALUES)
    for name, (function, inputs) in VALUES.items():
        with subtests.test(name):
            wanted = function(*inputs)
            found = as_torch(recorded[name]["output"]).reshape(wanted.shape)
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7, equal_nan=True, check_dtype=False)
            path = tmp_path / "m.t7"
            t7bridge.save_module(Of(function).eval(), path, inputs, allow=("layers",), force=True)
            classes = [place.obj.class_name for place in Places(t7bridge.load(path))]
            assert sorted(classes) == sorted(recorded[name]["classes"].decode().split())


@pytest.mark.parametrize("name", ["rounded_down", "rounded_to_zero"])
def test_rounded_quotients_are_loaded_again(name, tmp_path):
    """The class that Lua divides by is known to `load_module` with each way to round."""
    function, inputs = VALUES[name]
    t7bridge.save_module(Of(function).eval(), tmp_path / "m.t7", inputs, allow=("layers",))
    again = t7bridge.load_module(tmp_path / "m.t7")
    own = [value.clone().requires_grad_() for value in inputs]
    quotients = again(own)
    torch.testing.assert_close(quotients, function(*inputs))
    quotients.sum().backward()
    assert not any(value.grad.any() for value in own)


@pytest.mark.parametrize("name", REFUSED)
def test_whole_numbers_that_floats_do_not_hold_are_refused(name, tmp_path):
    """Products beyond 2^24, and bytes that wrap around."""
    function, inputs = REFUSED[name]
    with pytest.raises(UnsupportedError, match=r"product of whole numbers|wraps around"):
        t7bridge.save_module(Of(function).eval(), tmp_path / "m.t7", inputs, allow=("layers",))


def test_element_types_and_missing_outputs_are_noted(tmp_path):
    """Floats that become doubles or the reverse, and outputs that are `None`."""
    x = torch.ones(2, 3)
    cases = {
        "float32 parts are computed as float64": (lambda x, y: x + y, x, x.double()),
        "float64 parts are computed as float32": (lambda x: (x.double() * 2).float(), x),
        "an output that is None is left out": (lambda x: [x + 1, None, x], x),
        "its values in order: a, c": (lambda x: {"a": x + 1, "b": None, "c": x}, x),
    }
    for text, (function, *inputs) in cases.items():
        report = t7bridge.save_module(Of(function).eval(), tmp_path / "m.t7", tuple(inputs), force=True)
        assert any(text in note.message for note in report.notes), text


class Early(torch.nn.Module):
    """Returns two outputs in training."""

    def __init__(self):
        super().__init__()
        self.body, self.first, self.second = (torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        outputs = self.first(self.body(x)), self.second(self.body(x))
        return outputs if self.training else outputs[1]


def test_one_trace_and_other_outputs_in_training(tmp_path, monkeypatch):
    """A module is exported once, and again in training only if its source reads the mode."""
    calls = []
    export = torch.export.export
    monkeypatch.setattr("torch.export.export", lambda *args, **options: calls.append(1) or export(*args, **options))
    plain = Of(lambda x: torch.relu(x).flatten(1))
    t7bridge.save_module(plain.eval(), tmp_path / "m.t7", torch.ones(1, 3, 4, 4))
    assert len(calls) == 1
    report = t7bridge.save_module(Early(), tmp_path / "n.t7", torch.ones(2, 4))
    assert len(calls) == 3
    assert any("returns other outputs in training" in note.message for note in report.notes)
