"""Layers that give values another shape, and whether these need values that are contiguous in memory.

An extent is *open* if it depends on the inputs. An nn.View cannot hold one. It infers one extent of its sizes by the
number of elements, and the batch in front of these if it is told the rank of an example.
"""

from __future__ import annotations

from math import prod

from .layers import LuaLayer, LuaNode, make, sequential
from .sizes import Extent, Shape, is_static
from .values import without_axis

VIEWS = ("nn.View", "nn.Unsqueeze", "nn.Squeeze")
_KEEP_STRIDES = ("nn.ZeroGrad", "nn.Identity", "nn.Squeeze", "nn.Unsqueeze")
"""Layers whose output has the strides of their input."""
_NEED_CONTIGUOUS = ("nn.Bottle", "nn.View", "nn.Squeeze", "nn.Unsqueeze", "nn.PixelShuffle")
"""Layers that view their input, or the gradient of it, in another shape: both have to be contiguous in memory."""


def view_layer(before: Shape, after: Shape) -> LuaLayer | None:
    """Return the plainest layer that gives a value another shape; `None` if none can leave its open extents open.

    Args:
        before: the shape of the value: numbers, and `Extent`s that depend on the inputs.
        after: the shape that it gets, another one with as many elements.
    """
    axis = _axis_of_one(longer=after, shorter=before)
    if axis is not None:
        return make("nn.Unsqueeze", axis + 1)
    axis = _axis_of_one(longer=before, shorter=after)
    if axis is not None:
        return make("nn.Squeeze", axis + 1)
    count_added = len(after) - len(before)
    if after == (*(1,) * count_added, *before) and not is_static(after):
        # Two or more dimensions in front. An nn.View adds all at once, but may have to infer too many extents.
        return sequential(*(make("nn.Unsqueeze", 1) for _ in range(count_added)))
    # An nn.View infers one extent, and the number of examples besides if it is told their rank.
    rank = _rank_of_examples(before, after)
    if rank is not None and _count_open(after[1:]) < 2:
        return _view_of_examples(after[1:], rank)
    if _count_open(after) < 2:
        return make("nn.View", *(_as_view_sizes(after) or (1,)))  # Lua has no tensor without dimensions
    return _view_in_bottle(before, after)


def _view_in_bottle(before: Shape, after: Shape) -> LuaLayer | None:
    """Return a view of all dimensions but the first ones, which shapes have in common, and of which any may be open.

    An nn.Bottle merges these into one, a batch for the view, and splits them again. `None` if there are fewer than two,
    or several of the other extents are open.
    """
    first_viewed = _first_difference(before, after)
    if first_viewed < 2 or _count_open(after[first_viewed:]) > 1:
        return None
    rank_of_examples = len(before) - first_viewed
    view = _view_of_examples(after[first_viewed:], rank_of_examples)
    # nn.Bottle counts the merged dimension, too.
    rank_before = rank_of_examples + 1
    rank_after = len(after) - first_viewed + 1
    return LuaLayer("nn.Bottle", (rank_before, rank_after), children=[view])


def _axis_of_one(longer: Shape, shorter: Shape) -> int | None:
    """Return the dimension of extent 1 without which the longer shape is the shorter one; `None` if there is none."""
    if not shorter:  # Lua cannot remove the only dimension
        return None
    for axis, extent in enumerate(longer):
        if extent == 1 and without_axis(longer, axis) == shorter:
            return axis
    return None


def _rank_of_examples(before: Shape, after: Shape) -> int | None:
    """Return how many dimensions an example has before a view whose first extent is the number of examples.

    The first dimensions of `before`, one or several, count the examples: those whose product is the first extent of
    `after`. `None` if there are none, that extent is not open, or it is the only one.
    """
    if len(after) < 2 or not isinstance(after[0], Extent):
        return None
    for count in range(1, len(before)):
        if prod(before[:count]) == after[0]:
            return len(before) - count
    return None


def _count_open(shape: Shape) -> int:
    """Return the number of extents that depend on the inputs."""
    return sum(isinstance(extent, Extent) for extent in shape)


def _as_view_sizes(shape: Shape) -> Shape:
    """Return a shape as nn.View takes it, with -1 for an extent that it infers."""
    return tuple(-1 if isinstance(extent, Extent) else extent for extent in shape)


def _view_of_examples(shape: Shape, rank: int) -> LuaLayer:
    """Return an nn.View of each example of a batch of any size.

    Args:
        shape: of an example after it, with one open extent at most.
        rank: the number of dimensions of an example before it.
    """
    return make("nn.View", *_as_view_sizes(shape), calls=(("setNumInputDims", (rank,)),))


def _first_difference(before: Shape, after: Shape) -> int:
    """Return the first dimension in which shapes differ, but no later one than the last of the shorter shape."""
    last = min(len(before), len(after)) - 1
    for axis in range(last):
        if before[axis] != after[axis]:
            return axis
    return last


def is_repeated(step: LuaNode) -> bool:
    """Return whether a value is the output of an nn.Replicate, or a view of it.

    Its elements are in memory once, however often they are repeated: by strides of 0, which layers of `_KEEP_STRIDES`
    pass on.
    """
    while step.layer is not None:  # back to an input of the graph
        layers = step.layer.children if step.layer.name == "nn.Sequential" else [step.layer]
        for layer in reversed(layers):
            if layer.name not in _KEEP_STRIDES:
                return layer.name == "nn.Replicate"
        step = step.inputs[0]  # the only one of such layers
    return False


def on_contiguous(layer: LuaLayer) -> LuaLayer:
    """Return a layer that can be applied to a repeated value, see `is_repeated`: behind an nn.Contiguous if needed.

    It is needed if the layer, or one of a sequence, takes the value's own elements and has to view them.
    """
    layers = layer.children if layer.name == "nn.Sequential" else [layer]
    for inner in layers:
        if inner.name in _NEED_CONTIGUOUS:
            return make("nn.Contiguous") >> layer
        if inner.name not in _KEEP_STRIDES:  # it makes new elements, for those after it
            break
    return layer
