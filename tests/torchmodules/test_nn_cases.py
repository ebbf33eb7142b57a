"""Every class of nn against what Lua computed: outputs, keys, and what a live module must keep."""

from __future__ import annotations

import pytest
import torch
from helpers import corpus, name_of, read
from runtime_helpers import difference, recorded, run

import t7bridge
from t7bridge import state_dict

CASES = [path for path in corpus("nn/*.t7") if not path.name.endswith((".io.t7", ".grad.t7"))]

_RANDOM = "the output depends on random numbers that Lua drew and that are not in the file"
# What cannot agree, each with the reason.
UNEQUAL = {
    "nn/SpatialFractionalMaxPooling.t7": _RANDOM,
    "nn/VolumetricFractionalMaxPooling.t7": _RANDOM,
}


def agreement(path):
    """Return how the output differs from Lua's, or nothing."""
    case = recorded(path, "io")
    torch.manual_seed(0)
    return difference(run(t7bridge.load_module(path), case), case["output"])


def test_output_is_that_of_lua(subtests):
    """The live module returns what Lua's returned."""
    for path in [path for path in CASES if name_of(path) not in UNEQUAL]:
        with subtests.test(name_of(path)):
            assert not agreement(path)


@pytest.mark.parametrize("path", [path for path in CASES if name_of(path) in UNEQUAL], ids=name_of)
def test_exceptions_are_still_needed(path):
    """A case that is named as unequal is; but it has the right shape."""
    assert agreement(path).startswith("off by")


def test_keys_and_types_are_those_of_the_file(subtests):
    """The keys, shapes and element types of `state_dict()` are those that `convert` writes; nothing trains yet."""
    for path in CASES:
        with subtests.test(name_of(path)):
            module = t7bridge.load_module(path)
            wanted = state_dict(read(path)).tensors
            found = module.state_dict()
            assert sorted(found) == sorted(wanted)
            for key, tensor in wanted.items():
                assert (tuple(found[key].shape), str(found[key].dtype)) == (
                    tensor.shape,
                    f"torch.{tensor.element.name}",
                ), key
            assert not any(part.training for part in module.modules())
