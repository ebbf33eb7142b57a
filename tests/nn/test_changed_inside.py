"""Layers that Lua computes by modules inside, which somebody changed: refused, or computed; never as they were."""

from __future__ import annotations

import pytest
import torch
from helpers import TESTFILES

import t7bridge
from t7bridge import Table, TorchObject
from t7bridge.errors import T7BridgeError
from t7bridge.nn import lookup
from t7bridge.torchmodules import live_module

CHANGES = {
    "nn/TanhShrink.t7": ("tanh", "class_name", "nn.Sigmoid"),
    "nn/PartialLinear.t7": ("network.modules.2", "transB", False),
    "nn/SpatialSubtractiveNormalization.t7": ("meanestimator.modules.2", "weight", None),
    "nn/SpatialDivisiveNormalization.t7": ("stdestimator.modules.3", "bias", None),
    "nn/SpatialContrastiveNormalization.t7": ("normalizer.modules.1.meanestimator.modules.2", "weight", None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_modules_are_refused(name):
    """The file loads as Lua wrote it, and not after an option or a class of a module inside changed."""
    path, field, value = CHANGES[name]
    module = t7bridge.T7Reader(TESTFILES / name).read_object()
    live_module(module, "root")
    inside = lookup(module, path)
    if field == "class_name":
        inside.class_name = value
    elif value is None:
        changed = inside[field].numpy().copy()
        changed.flat[-1] += 0.5
        inside[field] = t7bridge.Tensor.from_numpy(changed)
    else:
        inside[field] = value
    with pytest.raises(T7BridgeError, match="modules inside were changed"):
        live_module(module, "root")


def _torch(value):
    if isinstance(value, float):
        return torch.tensor(value)
    return value.torch().clone() if isinstance(value, t7bridge.Tensor) else [_torch(each) for each in value.as_list()]


def _flat(value):
    return [value] if isinstance(value, torch.Tensor) else [part for each in value for part in _flat(each)]


def _counting(value):
    """Return the gradient with which Lua Torch was called."""
    return (torch.arange(1, value.numel() + 1, dtype=value.dtype) / value.numel()).reshape(value.shape)


RECORDS = t7bridge.load(TESTFILES / "changed_inside.t7").as_list()
NAMES = sorted({record["name"].decode() for record in RECORDS})


@pytest.mark.parametrize("name", NAMES)
def test_changes_are_computed_or_refused(name):
    """What Lua Torch computed after a change in a module inside is computed, or the layer is refused."""
    for record in RECORDS:
        if record["name"].decode() != name:
            continue
        change = record["change"].decode()
        try:
            module = live_module(record["module"], "root").train()
        except T7BridgeError:
            assert change, "as Lua made it"
            continue
        given = _torch(record["input"])
        for each in _flat(given):
            each.requires_grad_()
        target = [] if record.get("target") is None else [_torch(record["target"])]
        outputs = _flat(module(given, *target))
        torch.autograd.backward(outputs, [torch.ones_like(each) if target else _counting(each) for each in outputs])
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in _flat(given)]
        for found, wanted in ((outputs, record["output"]), (gradients, record["gradInput"])):
            for one, other in zip(found, _flat(_torch(wanted)), strict=True):
                one, other = one.detach().double().reshape(-1), other.double().reshape(-1)
                assert torch.allclose(one, other, rtol=1e-4, atol=2e-5), change


def test_a_glimpse_that_resamples_otherwise_is_refused():
    """A glimpse whose crops are pooled in another way, or by another factor, is none of ours."""
    for record in t7bridge.load(TESTFILES / "rnn2_options.t7").raw_values:
        module = record["module"]
        if module.class_name == "nn.SpatialGlimpse":
            break
    live_module(module, "root")
    module["module"]["kW"] = 3.0
    with pytest.raises(T7BridgeError, match="modules inside were changed"):
        live_module(module, "root")
    module["module"]["kW"] = 2.0
    module["scale"] = 3.0
    with pytest.raises(T7BridgeError, match="another factor than 2"):
        live_module(module, "root")


def test_a_normalization_inside_an_instance_normalization():
    """The batch normalization that is kept for the next batch of its size is used as it is."""
    inside = TorchObject("nn.SpatialBatchNormalization", 1, Table.of({"eps": 1e-5, "train": True}))
    module = TorchObject("nn.InstanceNormalization", 1, Table.of({"nOutput": 2.0, "eps": 1e-5, "bn": inside}))
    live_module(module, "root")
    for field, value in (("eps", 1e-2), ("train", False)):
        before = inside[field]
        inside[field] = value
        with pytest.raises(T7BridgeError, match="modules inside were changed"):
            live_module(module, "root")
        inside[field] = before


def test_fields_that_lua_sets_in_any_module_are_no_change():
    """`share` of Lua marks a module as shared, and not its clone for the first step of an `nn.Recurrent`."""
    module = t7bridge.load(TESTFILES / "rnn/Recurrent.t7")
    module["module"]["inputModule"]["shared"] = True
    live_module(module, "root")
