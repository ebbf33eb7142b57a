"""Extents of the inputs: which are free, found by building the model for others; the rest is checked when Lua runs it.

An extent is free if the model is the same for examples of other extents. Layers such as `nn.Linear` refuse another
number of features themselves, which needs no check.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, partial
from typing import Any

from ..data import define
from .layers import LuaLayer, LuaNode, graph_of, make, row, structure_of

Place = tuple[int, int]
"""An input and one of its dimensions, both 0-based."""
Build = Callable[[Callable[[int, Any], Any]], Any]
"""Builds the model for other examples, which a function makes of each input's number and example; returns the
`signature`, `None` if PyTorch does not take them."""

_CHECKED = {
    **dict.fromkeys(["nn.Linear", "nn.TemporalConvolution", "nn.SeqLSTM"], -1),
    **{
        f"nn.{space}{kind}": 1
        for space in ("Spatial", "Volumetric", "")
        for kind in ("Convolution", "DilatedConvolution", "FullConvolution", "BatchNormalization")
    },
}
"""The dimension whose extent a layer checks itself."""
_KEEPING = {
    *("nn.Copy", "nn.MulConstant", "nn.AddConstant", "nn.ReLU", "nn.Identity", "nn.Contiguous"),
    *("nn.SpatialZeroPadding", "nn.SpatialMaxPooling", "nn.SpatialAveragePooling"),
    *("nn.SpatialReflectionPadding", "nn.SpatialReplicationPadding", "nn.Unsqueeze"),
}
"""Layers that keep the dimensions that others check."""

_GROWN: tuple[Callable[[int, int], int], ...] = (
    lambda extent, place: extent + 1 + place,
    lambda extent, place: extent * (2 + place % 2),
)
"""Other extents of a dimension: even and odd ones, and multiples, which networks of several scales need."""


@define(eq=False)
class Sizes:
    """What is known of the extents of the inputs.

    Attributes:
        fixed: those that must be the example's, and that no layer checks.
        square: pairs of extents that must be equal.
        checked: the dimensions of each input whose extents layers check.
        is_known: whether only batches are free.
    """

    fixed: list[Place]
    square: list[tuple[Place, Place]]
    checked: list[set[int]]
    is_known: bool

    def text(self, number: int, shape: tuple[int | str, ...]) -> str:
        """Return the sizes of an input: `any x 3 x 224 x 224`, `any x 3 x n x n`."""
        equal = {place for pair in self.square for input, place in pair if input == number}
        return " x ".join(
            str(extent)
            if (number, place) in self.fixed or place in self.checked[number]
            else "n"
            if place in equal
            else "any"
            for place, extent in enumerate(shape)
        )


def signature(inputs: list[LuaNode], outputs: list[LuaNode]) -> Any:
    """Return what two models have in common if and only if they are the same but for their weights' elements."""

    def settings(layer: LuaLayer) -> Any:
        args = [(arg.shape, arg.tobytes()) if hasattr(arg, "tobytes") else arg for arg in layer.args]
        return args, layer.calls

    return structure_of(graph_of(inputs, *outputs), settings, lambda ref: ref)


def checked_by_layers(input: LuaNode, steps: list[LuaNode]) -> set[int]:
    """Return the dimensions of an input whose extent the layers that take it check themselves."""
    found, same = set(), [input]
    for step in steps:
        if step.layer is None or not any(source in same for source in step.inputs):
            continue
        layer = step.layer.children[0] if step.layer.name in ("nn.Bottle", "nn.Sequential") else step.layer
        place, rank = _CHECKED.get(layer.name), len(step.inputs[0].shape)
        if place is not None and (place > 0 or rank == len(input.shape)):
            found.add(place % rank)
        elif step.layer.name in _KEEPING and (step.layer.name != "nn.Unsqueeze" or step.layer.args[0] > 2):
            same.append(step)
    return found


def _larger(free: frozenset[Place], as_square: bool, grow: Callable[[int, int], int], number: int, example: Any) -> Any:
    """Return the example of an input with larger extents in the dimensions that are free."""
    for place, extent in enumerate(example.shape):
        if (number, place) in free:
            items = [index % extent for index in range(grow(extent, 0 if as_square else place))]
            example = example[(slice(None),) * place + (items,)]
    return example


def find_sizes(inputs: list[LuaNode], checked: list[set[int]], reference: Any, build: Build) -> Sizes:
    """Return which extents must be checked.

    Args:
        inputs: the input steps.
        checked: the dimensions of each that need no check.
        reference: the signature of the model.
        build: see `Build`.
    """

    @cache
    def is_same(free: frozenset[Place], as_square: bool = False) -> bool:
        """Return whether the model is the same with larger extents, which differ if they need not be equal."""
        taken = False
        for grow in _GROWN:
            other = build(partial(_larger, free, as_square, grow))
            if other not in (None, reference):
                return False
            taken |= other is not None
        return taken

    places = [
        (number, place)
        for number, step in enumerate(inputs)
        for place, extent in enumerate(step.shape)
        if isinstance(extent, int) and place not in checked[number]
    ]
    free = frozenset[Place]()
    square: list[tuple[Place, Place]] = []
    dimensions = [[place for place in places if place[1] == index] for index in sorted({index for _, index in places})]
    for group in [places, *dimensions, *([place] for place in places)]:
        if not free.issuperset(group) and is_same(free.union(group)):
            free = free.union(group)
    pairs = [((number, 2), (number, 3)) for number, step in enumerate(inputs) if step.shape[2:3] == step.shape[3:]]
    for pair in pairs:
        if free.isdisjoint(pair) and set(pair) <= set(places) and is_same(free.union(pair), as_square=True):
            free = free.union(pair)
            square.append(pair)
    fixed = [place for place in places if place not in free]
    return Sizes(fixed, square, checked, not free)


def guard(rank: int, fixed: dict[int, int], square: Collection[tuple[int, int]]) -> LuaLayer:
    """Return a layer that returns its input, and raises an error in Lua for other extents.

    Args:
        rank: the number of dimensions.
        fixed: dimension → extent.
        square: pairs of dimensions of equal extents.
    """
    checks = [row(rank, place) >> make("nn.Reshape", extent, False) for place, extent in fixed.items()]
    for pair in square:
        both = LuaLayer("nn.ConcatTable", children=[row(rank, place) for place in pair])
        checks.append(both >> make("nn.CSubTable"))
    children = [LuaLayer("nn.ConcatTable", children=[make("nn.Identity"), *checks]), make("nn.SelectTable", 1)]
    return LuaLayer("nn.Sequential", children=children, label="checkSizes")
