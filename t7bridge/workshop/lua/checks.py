"""Layers that raise an error in Lua for inputs of other sizes than the model can take."""

from __future__ import annotations

from typing import Any

import sympy

from ...data import define, np
from .layers import LuaLayer, LuaNode, make, row, sequential
from .sizes import Shape, Sizes

Place = tuple[int, int]
"""An input and one of its dimensions, both 0-based."""

_OF_LAST = ("nn.Linear", "nn.TemporalConvolution", "nn.SeqLSTM")
"""Layers that check the extent of the last dimension themselves."""
_OF_CHANNELS = tuple(
    f"nn.{space}{kind}"
    for space in ("Spatial", "Volumetric", "")
    for kind in ("Convolution", "DilatedConvolution", "FullConvolution", "BatchNormalization")
)
"""Layers that check the extent of the second dimension, the channels, themselves."""
_KEEPING = (
    "nn.Copy",
    "nn.MulConstant",
    "nn.AddConstant",
    "nn.ReLU",
    "nn.Identity",
    "nn.Contiguous",
    "nn.SpatialZeroPadding",
    "nn.SpatialMaxPooling",
    "nn.SpatialAveragePooling",
    "nn.SpatialReflectionPadding",
    "nn.SpatialReplicationPadding",
    "nn.Unsqueeze",
)
"""Layers that keep the dimensions that others check."""


def checked_by_layers(input: LuaNode, steps: list[LuaNode]) -> set[int]:
    """Return the dimensions of an input whose extent the layers that take it check themselves."""
    rank = len(input.shape)
    checked: set[int] = set()
    same = [input]  # steps whose values have the dimensions of the input that others check
    for step in steps:
        if step.layer is None or not any(source in same for source in step.inputs):
            continue
        layer = step.layer
        if layer.name in ("nn.Bottle", "nn.Sequential"):
            layer = layer.children[0]
        if layer.name in _OF_CHANNELS:
            checked.add(1)
        elif layer.name in _OF_LAST and len(step.inputs[0].shape) == rank:
            checked.add(rank - 1)
        elif step.layer.name in _KEEPING and not _moves_channels(step.layer):
            same.append(step)
    return checked


def _moves_channels(layer: LuaLayer) -> bool:
    """Return whether a layer inserts a dimension before the third, 1-based."""
    return layer.name == "nn.Unsqueeze" and layer.args[0] <= 2


@define(eq=False)
class Check:
    """The sizes that one dimension of an input may have: `step * n + rest`, from `low` to `high`.

    Attributes:
        place: the dimension, 0-based.
        step: 0 if the size is fixed.
        rest: the size, if it is fixed.
        low: the least size, 1 if any will do.
        high: the largest size; `None` if there is none.
        equal: the first dimension of any input with the same size, if this is another.
    """

    place: int
    step: int
    rest: int
    low: int = 1
    high: int | None = None
    equal: Place | None = None

    @property
    def is_free(self) -> bool:
        """Whether any size will do."""
        return self.step == 1 and self.low <= 1 and self.high is None and self.equal is None

    def layers(self, rank: int) -> list[LuaLayer]:
        """Return layers of an input of some dimensions that raise an error for other sizes."""
        if not self.step:
            return [row(rank, self.place) >> make("nn.Reshape", self.rest, False)]
        layers = []
        if self.step > 1:
            # A view as rows of the step, to which the row is padded if there is a rest.
            whole = make("nn.View", -1, self.step)
            if self.rest:
                whole = make("nn.Padding", 1, self.step - self.rest) >> whole
            layers.append(row(rank, self.place) >> whole)
        if self.low > max(self.step, 1):
            layers.append(row(rank, self.place) >> make("nn.Narrow", 1, self.low, 1))
        if self.high is not None:
            layers.append(_at_most(row(rank, self.place), self.high))
        return layers

    def text(self, name: str) -> str:
        """Return the sizes, with a name for the number that is free: `2n+1`, `n<=512`."""
        if not self.step:
            return str(self.rest)
        if not name:
            return "any"
        body = name
        if self.step > 1:
            body = f"{self.step}{name}"
        if self.rest:
            body = f"{body}+{self.rest}"
        has_low = self.low > max(self.step, 1)
        if self.high is not None:
            return f"{self.low}<={body}<={self.high}" if has_low else f"{body}<={self.high}"
        return f"{body}>={self.low}" if has_low else body


def _at_most(first: LuaLayer, most: int) -> LuaLayer:
    """Return layers that count the elements of a row and take as many of a tensor, which is an error beyond it."""
    ones = [make("nn.Constant", np.ones(1, "f4"), 0), make("nn.Select", 2, 1)]
    count = sequential(*ones, make("nn.Sum", 1), make("nn.Copy", "torch.FloatTensor", "torch.LongTensor", False, True))
    pair = LuaLayer("nn.ConcatTable", children=[make("nn.Constant", np.zeros(most, "f4")), count])
    return first >> pair >> make("nn.Index", 1)


def checks_of(shapes: list[Shape], sizes: Sizes) -> list[list[Check]] | None:
    """Return the sizes of each dimension of each input.

    `None` if the sizes of a dimension are no progression, or depend on those of another in another way than that both
    are equal: its symbols are then fixed.
    """
    checks: list[list[Check]] = []
    first_places: dict[Any, Place] = {}  # of each symbol
    for number, shape in enumerate(shapes):
        checks.append([])
        for place, extent in enumerate(shape):
            if isinstance(extent, int):
                checks[number].append(Check(place, 0, extent))
                continue
            symbols = extent.expr.free_symbols
            symbol = next(iter(symbols))
            first_number, first_place = first_places.setdefault(symbol, (number, place))
            check = _linear_check(place, extent.expr, symbol, sizes) if len(symbols) == 1 else None
            if check is None or shapes[first_number][first_place] != extent:
                sizes.conditions += [sympy.Eq(symbol, sizes.example[symbol]) for symbol in symbols]
                return None
            # Batches of several inputs need no check: no layer takes examples of one kind and of unequal numbers.
            are_batches = place == first_place == 0
            if (first_number, first_place) != (number, place) and not are_batches:
                check.equal = (first_number, first_place)
            checks[number].append(check)
    return checks


def _linear_check(place: int, expr: Any, symbol: Any, sizes: Sizes) -> Check | None:
    """Return the sizes of a dimension that is a multiple of a symbol plus a rest; `None` if it is anything else."""
    rest = expr.xreplace({symbol: sympy.Integer(0)})
    step = sympy.expand(expr - rest).coeff(symbol)
    is_linear = step.is_Integer and step > 0 and sympy.expand(step * symbol + rest - expr) == 0
    if not is_linear:
        return None
    check = Check(place, int(step), int(rest), int(step * sizes.low.get(symbol, 1) + rest))
    if symbol in sizes.high:
        check.high = int(step * sizes.high[symbol] + rest)
    return check


def texts_of(checks: list[list[Check]]) -> list[str]:
    """Return the sizes of each input: `any x 3 x 224 x 224`, `any x 3 x n x n`."""
    names = iter("nmkpqrstuvwxyzabcdefghijl" * 9)  # without o, which looks like 0; more than a model has sizes
    equal = {check.equal for dimensions in checks for check in dimensions}
    name_of: dict[Place, str] = {}
    texts = []
    for number, dimensions in enumerate(checks):
        extents = []
        for check in dimensions:
            place = (number, check.place)
            if check.equal is not None:
                name_of[place] = name_of[check.equal]
            elif check.step and (place in equal or not check.is_free):
                name_of[place] = next(names)
            else:
                name_of[place] = ""
            extents.append(check.text(name_of[place]))
        texts.append(" x ".join(extents))
    return texts


def guard(dimensions: list[Check], number: int, checked: set[int]) -> LuaLayer | None:
    """Return a layer that returns its input, and raises an error in Lua for other sizes; `None` if all are right.

    Args:
        dimensions: of the input.
        number: of the input.
        checked: dimensions that layers check.
    """
    rank = len(dimensions)
    checks = []
    for check in dimensions:
        if check.place not in checked and not check.is_free:
            checks += check.layers(rank)
        if check.equal is not None and check.equal[0] == number:
            both = LuaLayer("nn.ConcatTable", children=[row(rank, check.equal[1]), row(rank, check.place)])
            checks.append(both >> make("nn.CSubTable"))
    if not checks:
        return None
    children = [LuaLayer("nn.ConcatTable", children=[make("nn.Identity"), *checks]), make("nn.SelectTable", 1)]
    return LuaLayer("nn.Sequential", children=children, label="checkSizes")


def guard_of_pair(rank: int, place: int, other_rank: int, other_place: int) -> LuaLayer:
    """Return a layer of {input, other} that returns the input, and raises an error unless two extents are equal."""
    first_row = make("nn.SelectTable", 1) >> row(rank, place)
    second_row = make("nn.SelectTable", 2) >> row(other_rank, other_place)
    both = LuaLayer("nn.ConcatTable", children=[first_row, second_row])
    # The difference of rows of other lengths is an error.
    children = [make("nn.SelectTable", 1), both >> make("nn.CSubTable")]
    first = LuaLayer("nn.ConcatTable", children=children)
    return LuaLayer("nn.Sequential", children=[first, make("nn.SelectTable", 1)], label="checkPair")
