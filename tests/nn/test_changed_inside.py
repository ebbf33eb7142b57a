"""Layers that Lua computes by modules inside, which somebody changed: refused, or computed; never as they were."""

from __future__ import annotations

import pytest
from helpers import TESTFILES

import t7bridge
from t7bridge.errors import T7BridgeError
from t7bridge.nn.fields import lookup
from t7bridge.torchmodules.build import live_module

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
