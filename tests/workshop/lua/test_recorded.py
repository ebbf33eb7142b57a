"""Recorded results of stock Lua Torch on models written by `save_module`: outputs, gradients of inputs and weights."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from helpers import TESTFILES, read
from lua_nets import NETS, flat, loaded_with_same_outputs, module_of
from lua_operations import CASES, case_of
from lua_styles import STYLES, style_of
from runtime_helpers import as_torch

import t7bridge


@cache
def cases(kind):
    """All of Lua's recordings of a kind, by name; the files stay open, and are read where a tensor is asked for."""
    files = sorted((TESTFILES / "lua").glob(f"{kind}_*.t7"))
    return {str(name): case for path in files for name, case in read(path).items()}


def recorded(name):
    """Return Lua's recording for a network or an operation."""
    if name in NETS:
        return read(TESTFILES / "lua" / f"{name}.t7")
    recordings = cases("operations" if name in CASES else "styles")
    assert name in recordings, f"Lua has not recorded {name}: run testfiles/gen/lua_models.py and lua_models.lua for it"
    return recordings[name]


def made(name):
    """A network, a case of an operation, or a network in another style."""
    return module_of(name) if name in NETS else case_of(name) if name in CASES else style_of(name)


def filled(name, case):
    """The network or case with the recorded weights."""
    module, _ = made(name)
    state = {str(key): as_torch(value) for key, value in case["weights"].items()}
    shapes = {key: value.shape for key, value in module.state_dict().items()}
    module.load_state_dict({key: value.view(shapes[key]) for key, value in state.items()})
    return module


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", [*NETS, *CASES, *STYLES])
def test_lua_computed_what_pytorch_does(name):
    """Outputs are equal within 1e-5 and gradients within 1e-4, relative to their size."""
    case = recorded(name)
    module = filled(name, case)
    inputs = [value.requires_grad_(value.is_floating_point()) for value in flat(as_torch(case["input"]))]
    outputs = flat(module(*inputs))
    for mine, lua in zip(outputs, flat(as_torch(case["output"])), strict=True):
        assert (mine - lua.view(mine.shape)).abs().max() <= 1e-5 * max(1, float(lua.abs().max()))
    if "gradInput" not in case or not outputs[0].requires_grad:  # SpatialDropout goes back in training only
        return
    slopes = [slope.view(mine.shape) for mine, slope in zip(outputs, flat(as_torch(case["gradOutput"])), strict=True)]
    torch.autograd.backward(outputs, slopes)
    found = [value.grad for value in inputs if value.is_floating_point()]
    wanted = flat(as_torch(case["gradInput"])) if found else []
    for key, parameter in module.named_parameters():
        if parameter.grad is not None and (key in case["gradients"] or parameter.grad.any()):
            found.append(parameter.grad)
            wanted.append(as_torch(case["gradients"][key]))
    for mine, lua in zip(found, wanted, strict=True):
        assert (mine - lua.view(mine.shape)).abs().max() <= 1e-4 * max(1, float(lua.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NETS, *STYLES])
def test_loaded_models_compute_what_lua_did(name, tmp_path):
    """A module loaded from a saved network computes the same, has its state dict, loads another, and is Lua's.

    Some networks are written with their source, which is readable.
    """
    module, inputs = made(name)
    path = tmp_path / "model.t7"
    if name in NETS:
        t7bridge.write_lua(module, tmp_path, inputs)
        assert_readable((tmp_path / "model.lua").read_text())
    else:
        t7bridge.save_module(module, path, example_inputs=inputs)
    again = loaded_with_same_outputs(module, path, inputs)
    for count in (1, 5) if name in ANY_BATCH else ():
        more = torch.randn(count, *inputs[0].shape[1:])
        with torch.no_grad():
            torch.testing.assert_close(again(more), module(more), rtol=1e-4, atol=1e-5)
    want, got = module.state_dict(), again.state_dict()
    assert list(got) == list(want)
    assert all(torch.equal(got[key], value) for key, value in want.items())

    case = recorded(name)
    changed = filled(name, case).state_dict()
    again.load_state_dict(changed)
    assert all(torch.equal(value, changed[key]) for key, value in again.state_dict().items())
    inputs = flat(as_torch(case["input"]))
    with torch.no_grad():
        outputs = flat(again(inputs[0] if len(inputs) == 1 else inputs))
    for mine, lua in zip(outputs, flat(as_torch(case["output"])), strict=True):
        torch.testing.assert_close(mine, lua.view(mine.shape), rtol=1e-4, atol=1e-5)
    if name in BOTH_WAYS:
        assert_weights_go_both_ways(*made(name), path)


ANY_BATCH = {"mlp", "resnet", "squeeze"}
"""Networks that are run with batches of other sizes than the example, also of one, too."""
BOTH_WAYS = {"resnet", "gru", "transformer", "squeeze", "free"}
"""Networks whose state dict `convert` carries there and back, too."""


def assert_readable(text):
    """Assert that the source of a model builds it by constructors, repeats no block, and writes each line short."""
    assert "function M.build()" in text
    assert "function M.load(weights)" in text
    bodies = [part.partition("\n")[2] for part in text.split("\nlocal function ")[2:]]
    assert len(bodies) == len(set(bodies))
    assert max(map(len, text.splitlines())) <= 100
    assert "@" not in text
    assert "\1" not in text


def assert_weights_go_both_ways(module, inputs, path):
    """Assert that `convert` returns the state dict of a saved network, and puts a tuned one into it."""
    folder = path.parent
    report = t7bridge.convert(path, folder / "m.pt")
    assert [note for note in report.notes if note.level == "warning"] == []
    got = torch.load(folder / "m.pt", weights_only=True)
    want = module.state_dict()
    assert list(got) == list(want)
    assert all(torch.equal(got[key], value) for key, value in want.items())
    for parameter in module.parameters():
        parameter.data.mul_(0.9)
    torch.save(module.state_dict(), folder / "tuned.pt")
    t7bridge.convert(folder / "tuned.pt", folder / "tuned.t7", template=path)
    again = t7bridge.load_module(folder / "tuned.t7")
    with torch.no_grad():
        wanted = flat(module(*inputs))
        got_outputs = flat(again(inputs[0] if len(inputs) == 1 else list(inputs)))
    for mine, theirs in zip(got_outputs, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
