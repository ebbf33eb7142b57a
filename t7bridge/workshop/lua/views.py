"""Layers that give values another shape, and whether these need values that are contiguous in memory."""

from __future__ import annotations

from math import prod

from .layers import LuaLayer, LuaNode, make, sequential
from .sizes import Extent, Shape, is_known
from .values import with_extents

VIEWS = ("nn.View", "nn.Unsqueeze", "nn.Squeeze")
_STRIDED = ("nn.ZeroGrad", "nn.Identity", "nn.Squeeze", "nn.Unsqueeze")
"""Layers whose output has the strides of their input."""
_OF_CONTIGUOUS = ("nn.Bottle", "nn.View", "nn.Squeeze", "nn.Unsqueeze", "nn.PixelShuffle")
"""Layers that view their input, or the gradient of it, in another shape."""


def view_layer(before: Shape, after: Shape) -> LuaLayer | None:
    """Return the layer that gives a value another shape; `None` if it would have to infer more than one extent."""
    place = _place_of_one(after, before)
    if place is not None:
        return make("nn.Unsqueeze", place + 1)
    place = _place_of_one(before, after)
    if place is not None:
        return make("nn.Squeeze", place + 1)
    added = len(after) - len(before)
    if before and not is_known(after) and after == (*(1,) * added, *before):
        return sequential(*(make("nn.Unsqueeze", 1) for _ in range(added)))
    rank = _rank_of_examples(before, after)
    if rank is not None and _count_open(after[1:]) < 2:
        # nn.View infers the first extent if it is told how many dimensions an example has.
        return _view_of_examples(after[1:], rank)
    if _count_open(after) < 2:
        return make("nn.View", *(_inferred(after) or (1,)))
    first = _first_difference(before, after)
    if first > 1 and _count_open(after[first:]) < 2:
        # nn.Bottle merges the dimensions in front, which stay as they are.
        view = _view_of_examples(after[first:], len(before) - first)
        return LuaLayer("nn.Bottle", (len(before) - first + 1, len(after) - first + 1), children=[view])
    return None


def _place_of_one(longer: Shape, shorter: Shape) -> int | None:
    """Return the dimension of extent 1 without which a shape is another; `None` if there is none."""
    if not shorter:
        return None
    for place, extent in enumerate(longer):
        if extent == 1 and with_extents(longer, place) == shorter:
            return place
    return None


def _rank_of_examples(before: Shape, after: Shape) -> int | None:
    """Return the number of dimensions behind those that become the first one, which depends on the inputs.

    `None` if there are no such.
    """
    if len(after) > 1 and isinstance(after[0], Extent):
        for count in range(1, len(before)):
            if after[0] == prod(before[:count]):
                return len(before) - count
    return None


def _count_open(shape: Shape) -> int:
    """Return the number of extents that depend on the inputs."""
    return sum(isinstance(extent, Extent) for extent in shape)


def _inferred(shape: Shape) -> Shape:
    """Return a shape as nn.View takes it, with -1 for an extent that it infers."""
    return tuple(-1 if isinstance(extent, Extent) else extent for extent in shape)


def _view_of_examples(shape: Shape, rank: int) -> LuaLayer:
    """Return an nn.View of examples that have some dimensions before it."""
    return make("nn.View", *_inferred(shape), calls=(("setNumInputDims", (rank,)),))


def _first_difference(before: Shape, after: Shape) -> int:
    """Return the first dimension in which shapes differ, at most the last, as a view has dimensions."""
    last = min(len(before), len(after)) - 1
    for place in range(last):
        if before[place] != after[place]:
            return place
    return last


def is_repeated(step: LuaNode) -> bool:
    """Return whether a value is an nn.Replicate's, whose repeated elements are in memory once, or a view of one."""
    while step.layer is not None:
        layers = step.layer.children if step.layer.name == "nn.Sequential" else [step.layer]
        # From the last layer back to the first that does more than pass the strides on.
        for layer in reversed(layers):
            if layer.name not in _STRIDED:
                return layer.name == "nn.Replicate"
        step = step.inputs[0]
    return False


def from_contiguous(layer: LuaLayer) -> LuaLayer:
    """Return a layer of a value with repeated elements, made contiguous if the layer needs that."""
    layers = layer.children if layer.name == "nn.Sequential" else [layer]
    for first in layers:
        if first.name in _OF_CONTIGUOUS:
            return make("nn.Contiguous") >> layer
        if first.name not in _STRIDED:
            break
    return layer
