"""Inputs of a model guessed from the layers that they enter, through containers of Lua and of users."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from bounds import bounded

from t7bridge import Table, Tensor, TorchObject, register_module
from t7bridge.layers import Traits, modules, unregister_layer
from t7bridge.nn.output_shapes import Example
from t7bridge.torchmodules import live_module
from t7bridge.workshop.prove.inputs import fitting_inputs, guess_inputs


def obj(name: str, *inside: TorchObject, **fields: Any) -> TorchObject:
    """A module of Lua; numbers become doubles."""
    named: dict[str, Any] = {}
    for key, value in fields.items():
        named[key] = float(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if inside:
        named["modules"] = Table.from_list(list(inside))
    return TorchObject(name, 1, Table.of(named))


def linear(inputs: int, outputs: int = 2) -> TorchObject:
    """A linear layer."""
    weight = Tensor.from_numpy(np.ones((outputs, inputs), "f4"))
    return obj("nn.Linear", weight=weight, bias=Tensor.from_numpy(np.zeros(outputs, "f4")))


def conv(planes: int) -> TorchObject:
    """A convolution with a kernel of 3 x 3."""
    weight = Tensor.from_numpy(np.ones((2, planes, 3, 3), "f4"))
    sizes = {"kW": 3, "kH": 3, "dW": 1, "dH": 1, "padW": 0, "padH": 0}
    return obj("nn.SpatialConvolution", weight=weight, nInputPlane=planes, nOutputPlane=2, **sizes)


def sizes_of(spec: Any) -> Any:
    """The sizes of an input, in lists as its tensors."""
    return spec.shape if isinstance(spec, Example) else spec and [sizes_of(item) for item in spec]


TWO = obj("nn.ParallelTable", linear(3), linear(4))
CASES = {
    "the first layer": (obj("nn.Sequential", linear(5), linear(2)), (2, 5)),
    "behind layers that keep the shape": (obj("nn.Sequential", obj("nn.ReLU"), linear(5)), (2, 5)),
    "behind a padding": (
        obj("nn.Sequential", obj("nn.SpatialZeroPadding", pad_l=1, pad_r=1, pad_t=1, pad_b=1), conv(3)),
        (2, 3, 32, 32),
    ),
    "a branch": (obj("nn.Concat", obj("nn.Identity"), linear(5), dimension=2), (2, 5)),
    "a list": (obj("nn.Sequential", TWO, obj("nn.CAddTable"), linear(2)), [(2, 3), (2, 4)]),
    "a list in a list": (obj("nn.ParallelTable", TWO, conv(1)), [[(2, 3), (2, 4)], (2, 1, 32, 32)]),
    "one element": (
        obj("nn.ConcatTable", obj("nn.Sequential", obj("nn.SelectTable", index=2), linear(4)), TWO),
        [(2, 3), (2, 4)],
    ),
    "a part of a list": (obj("nn.Sequential", obj("nn.NarrowTable", offset=1, length=2), TWO), [(2, 3), (2, 4)]),
    "a list of any length": (obj("nn.Sequential", obj("nn.CAddTable"), linear(3)), None),
    "steps": (obj("nn.Sequencer", linear(3), module=linear(3)), [(2, 3)] * 3),
    "slices of a tensor": (obj("nn.Parallel", linear(3), inputDimension=2, outputDimension=2), None),
}


@pytest.mark.parametrize("name", CASES)
def test_guesses(name: str) -> None:
    """An input has what each layer that it enters takes, and no other; what nothing decides is not guessed."""
    model, sizes = CASES[name]
    assert sizes_of(guess_inputs(model)) == sizes


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (_, sizes) in CASES.items() if sizes is not None])
def test_guesses_are_accepted(name: str) -> None:
    """The live module takes what was guessed."""
    model = CASES[name][0]
    spec = fitting_inputs(model, "root")
    value = drawn(spec)
    live_module(model, "root").eval()(value)


def drawn(spec: Any) -> Any:
    """Random values of the sizes of an input."""
    return torch.rand(spec.shape) if isinstance(spec, Example) else [drawn(item) for item in spec]


def crossed(spec: Any, value: Any, d: Any) -> Any:
    """Pass the second element to the first module, and the first to the second."""
    first, second = spec.children
    return d.items([d.call(spec, first, d.item(value, 1)), d.call(spec, second, d.item(value, 0))])


class Crossed(torch.nn.Sequential):
    """A container of a user."""


def test_own_containers() -> None:
    """A container of a user is followed as its flow says."""
    register_module("my.Crossed", children=modules, traits=Traits(flow=crossed))(Crossed)
    try:
        assert sizes_of(guess_inputs(obj("my.Crossed", linear(7), conv(2)))) == [(2, 2, 32, 32), (2, 7)]
    finally:
        unregister_layer("my.Crossed")


def test_hostile_models() -> None:
    """Elements far behind, and sums of elements of sums, take no time and no memory."""
    far = obj("nn.Sequential", obj("nn.SelectTable", index=10**9), linear(3))
    assert guess_inputs(far) is None
    level = obj("nn.Identity")
    for _ in range(300):
        halves = [obj("nn.SelectTable", index=number) for number in (1, 2)]
        level = obj("nn.Sequential", obj("nn.ConcatTable", *halves), obj("nn.CAddTable"), level)
    with bounded():
        assert guess_inputs(level) is None


def test_a_damaged_number_of_planes_is_no_input():
    """A damaged field asks for any number of planes: an input of more than a GiB is not guessed."""
    damaged = conv(3)
    damaged["nInputPlane"] = 1e9
    assert guess_inputs(damaged) is None


def test_sides_of_too_large_inputs_are_left_out() -> None:
    """Of 1024 planes an image of ImageNet's largest size is more than a GiB; the smaller ones behind it are tried."""
    example = Tensor.from_numpy(np.array([200], "i8")).storage  # 2 planes of 10 x 10
    model = obj("nn.Sequential", conv(1024), obj("nn.Reshape", size=example, batchMode=True))
    assert guess_inputs(model, side=299) is None
    assert sizes_of(fitting_inputs(model, "root")) == (2, 1024, 12, 12)
