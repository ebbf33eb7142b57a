"""Further options, sizes, unbatched inputs and nngraph graphs against Lua: what gen/nn_options.lua recorded."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from helpers import TESTFILES, read
from runtime_helpers import as_torch, difference, gradient_difference, run

from t7bridge import Table, TorchObject
from t7bridge.torchmodules import live_module
from t7bridge.torchmodules.layers.pooling import FractionalMaxPool
from t7bridge.torchmodules.layers.resample import SpatialGlimpse


@cache
def cases() -> dict[str, dict[str, Any]]:
    """Return Lua's recordings, by the name of the case."""
    table = read(TESTFILES / "nn_options.t7")
    return {name.decode(): {key.decode(): value for key, value in case.raw_items()} for name, case in table.raw_items()}


_ONE = "Lua lists the gradients of one module at two places twice"
# Gradients that cannot agree, each with the reason.
UNEQUAL_GRADIENTS = {
    "elu.in": "PyTorch changes no leaf in place",
    "il.batch": "Lua gives the gradient of the weight in a form of its own",
    "il.flat": "Lua gives the gradient of the weight in a form of its own",
    "map.batch": "Lua writes the gradient of the input with wrong strides, where strides do not divide the image",
    "par.less": "Lua lists zeros for modules that were not used",
    "share.double": _ONE,
    "sl.batch": "Lua leaves the gradient of the input uninitialized",
}


def names(*kinds: str) -> list[str]:
    """The names of the cases with recordings of these kinds."""
    return sorted(name for name, case in cases().items() if all(kind in case for kind in kinds))


def gradients(name: str) -> str:
    """Return how gradients differ from Lua's, or nothing."""
    case = cases()[name]
    module = live_module(case["module"], name)
    return gradient_difference(module, as_torch(case["input"]), {key: as_torch(value) for key, value in case.items()})


@pytest.mark.slow
def test_output_is_that_of_lua(subtests):
    """The live module returns what Lua's returned."""
    for name in names():
        with subtests.test(name=name):
            case = {key: as_torch(value) for key, value in cases()[name].items()}
            with torch.no_grad():
                assert not difference(run(live_module(case["module"], name), case), case["output"])


@pytest.mark.slow
def test_gradients_are_those_of_lua(subtests):
    """Backward returns Lua's gradients, of inputs and parameters."""
    for name in [name for name in names("gradOutput") if name not in UNEQUAL_GRADIENTS]:
        with subtests.test(name=name):
            assert not gradients(name)


@pytest.mark.parametrize("name", UNEQUAL_GRADIENTS)
def test_exceptions_are_still_needed(name):
    """A case that is named as unequal is."""
    if name == "elu.in":
        with pytest.raises(RuntimeError, match="in-place"):
            gradients(name)
    else:
        assert gradients(name)


def test_fractional_pooling_draws_once(subtests):
    """The random numbers of windows are the next ones of the generator, drawn once a call, or once if they are kept."""
    image = torch.arange(162, dtype=torch.float64).sin().reshape(1, 2, 9, 9)
    for keep in (False, True):
        with subtests.test(keep=keep):
            layer = FractionalMaxPool((2, 2), output_size=(4, 4), keep=keep)
            torch.manual_seed(11)
            outputs = [layer(image), layer(image)]
            torch.manual_seed(11)
            draws = [torch.rand((1, 2, 2), dtype=torch.float64) for _ in outputs]
            if keep:
                draws[1] = draws[0]
            for output, samples in zip(outputs, draws):
                expected = torch.nn.functional.fractional_max_pool2d(image, 2, 4, _random_samples=samples)
                assert torch.equal(output, expected)


def test_glimpse_ignores_further_coordinates():
    """Of a place, y and x are read, as in Lua."""
    images = torch.arange(50.0).reshape(2, 1, 5, 5)
    layer = SpatialGlimpse((2, 2))
    places = torch.tensor([[0.5, -0.5], [-1, 1]])
    further = torch.nn.functional.pad(places, (0, 1))
    assert torch.equal(layer([images, further]), layer([images, places]))
    assert torch.equal(layer([images[0], further[0]]), layer([images[0], places[0]]))


@pytest.mark.parametrize(("index", "length", "kept"), [(-1, -5, 2), (-2, -5, 1), (-1, 3, 7), (3, -2, 7)])
def test_narrow_by_negative_numbers(index, length, kept):
    """A part is as long as in Lua, also where both its start and its length are negative; what Lua returned of 10."""
    options = {"dimension": 1.0, "index": float(index), "length": float(length)}
    module = live_module(TorchObject("nn.Narrow", 1, Table.of(options)), "root")
    input = torch.arange(10.0)
    first = max(index - 1, 0)
    assert torch.equal(module(input), input[first : first + kept])
