"""Layers that raise an error in Lua for inputs of other sizes than the model can take."""

from __future__ import annotations

from typing import Any

import sympy

from ...data import define, np
from .layers import LuaLayer, LuaNode, as_indices, first_row_along, make, one_for_each_element
from .sizes import Extent, Shape, Sizes, is_static

InputAxis = tuple[int, int]
"""An input and one of its dimensions, both 0-based."""

_CHECK_LAST = ("nn.Linear", "nn.TemporalConvolution", "nn.SeqLSTM")
"""Layers that check the extent of the last dimension themselves."""
_CHECK_CHANNELS = tuple(
    f"nn.{space}{kind}"
    for space in ("Spatial", "Volumetric", "")
    for kind in ("Convolution", "DilatedConvolution", "FullConvolution", "BatchNormalization")
)
"""Layers that check the extent of the second dimension, the channels, themselves."""
_KEEP_LAST = (
    "nn.Copy",
    "nn.MulConstant",
    "nn.AddConstant",
    "nn.ReLU",
    "nn.Identity",
    "nn.Contiguous",
    "nn.SpatialZeroPadding",
    "nn.SpatialReflectionPadding",
    "nn.SpatialReplicationPadding",
)
"""Layers of whose input and output the last extents tell each other, also those of them that pad."""
_KEEP_CHANNELS = (*_KEEP_LAST, "nn.SpatialMaxPooling", "nn.SpatialAveragePooling", "nn.Unsqueeze")
"""Layers that keep the channels; a pooling makes one extent of several."""
_CHANNELS = 1
"""The dimension of the channels, 0-based, in a batch."""


def checked_by_layers(input: LuaNode, steps: list[LuaNode]) -> set[int]:
    """Return the dimensions of an input, 0-based, whose extents Lua's layers compare with their weights anyway.

    Only sure cases count: a dimension that is missing here gets a guard, which at worst checks a size twice.

    Args:
        input: the input.
        steps: those of the model, in order.
    """
    rank = len(input.shape)
    checked: set[int] = set()
    # The input, and what layers make of it that keep its channels, and its last dimension.
    with_channels = [input]
    with_last = [input]
    for step in steps:
        if step.layer is None:
            continue
        name = _layer_that_takes(step).name
        if any(source in with_channels for source in step.inputs):
            if name in _CHECK_CHANNELS:
                checked.add(_CHANNELS)
            elif step.layer.name in _KEEP_CHANNELS and not _moves_channels(step.layer):
                with_channels.append(step)
        if any(source in with_last for source in step.inputs):
            if name in _CHECK_LAST:
                checked.add(rank - 1)
            elif step.layer.name in _KEEP_LAST:
                with_last.append(step)
    return checked


def _layer_that_takes(step: LuaNode) -> Any:
    """Return the layer that could check the extents of a step's input: the step's own, or the first in its container.

    In an nn.Bottle only the last dimension is that of the input; the builders put no layer of `_CHECK_CHANNELS` into
    one. A container that is first in a container is returned itself: at worst, a size is then checked twice.
    """
    layer: Any = step.layer
    return layer.children[0] if layer.name in ("nn.Bottle", "nn.Sequential") else layer


def _moves_channels(layer: LuaLayer) -> bool:
    """Return whether a layer inserts a dimension before the channels, or in their place."""
    if layer.name != "nn.Unsqueeze":
        return False
    position, *_ = layer.args
    return bool(position - 1 <= _CHANNELS)  # Lua counts from 1


@define(eq=False)
class Check:
    """The sizes that one dimension of an input may have: `step * n + rest` from `low` to `high`, or one that is fixed.

    Attributes:
        axis: the dimension, 0-based.
        step: the difference of two sizes; 0 if the size is fixed.
        rest: the rest of each size divided by `step`; the size itself, if it is fixed.
        low: the least size, 1 or more; not used if the size is fixed.
        high: the largest size; `None` if there is none, or the size is fixed.
        equal: the first dimension of any input whose size this one has to equal; `None` if this is the first itself,
            there is no other, or both are batches. `checks_of` sets it.
    """

    axis: int
    step: int
    rest: int
    low: int = 1
    high: int | None = None
    equal: InputAxis | None = None

    @property
    def is_free(self) -> bool:
        """Whether any size will do."""
        return self.step == 1 and self.low <= 1 and self.high is None and self.equal is None

    @property
    def is_fixed(self) -> bool:
        """Whether there is only one size, `rest`."""
        return self.step == 0

    @property
    def _has_low(self) -> bool:
        """Whether a size of the form `step * n + rest`, of which the least is at most `step`, may be too small."""
        return self.low > max(self.step, 1)

    def layers(self, rank: int) -> list[LuaLayer]:
        """Return layers of an input of `rank` dimensions that raise an error for other sizes, whatever they return.

        That the size equals another one, `equal`, is not checked by these: see `guard`.
        """
        row = first_row_along(rank, self.axis)  # a vector whose length is the size
        if self.is_fixed:
            # With batchMode false, nn.Reshape takes exactly as many elements.
            return [row >> make("nn.Reshape", self.rest, False)]
        layers = []
        if self.step > 1:
            # nn.View takes only a multiple of `step` elements. A size with a rest becomes one by further zeros.
            view = make("nn.View", -1, self.step)
            if self.rest:
                count_of_zeros = self.step - self.rest
                view = make("nn.Padding", 1, count_of_zeros) >> view
            layers.append(row >> view)
        if self._has_low:
            # nn.Narrow takes the element number `low` alone, which a vector of fewer does not have.
            layers.append(row >> make("nn.Narrow", 1, self.low, 1))
        if self.high is not None:
            layers.append(row >> _at_most(self.high))
        return layers

    def text(self, name: str) -> str:
        """Return the sizes as text: `2n+1`, `n<=512`, `224`, or `any`.

        Args:
            name: of the number that is free; empty for a size without limits that no other has to equal.
        """
        if self.is_fixed:
            return str(self.rest)
        if not name:
            return "any"
        body = name
        if self.step > 1:
            body = f"{self.step}{name}"
        if self.rest:
            body = f"{body}+{self.rest}"
        if self.high is None:
            return f"{body}>={self.low}" if self._has_low else body
        least = f"{self.low}<=" if self._has_low else ""
        return f"{least}{body}<={self.high}"


def _at_most(most: int) -> LuaLayer:
    """Return layers that raise an error for a vector of more elements, whatever they return.

    They take element number n of `most` zeros, where n is the number of its elements.
    """
    count = one_for_each_element() >> make("nn.Sum", 1) >> as_indices()
    pair = LuaLayer("nn.ConcatTable", children=[make("nn.Constant", np.zeros(most, "f4")), count])
    return pair >> make("nn.Index", 1)


def checks_of(shapes: list[Shape], sizes: Sizes) -> list[list[Check]] | None:
    """Return the sizes that each dimension of each input may have; `None` if no layers can check those of one.

    That is so if they are not a progression, or depend on those of another dimension in another way than that both are
    equal. Then conditions that fix them as in the example are added to `sizes`, and the program has to be built again.

    Args:
        shapes: of the inputs.
        sizes: what is known of the symbols of their extents; may receive conditions.
    """
    checks: list[list[Check]] = []
    first_axes: dict[Any, InputAxis] = {}  # the symbols of an extent → the first dimension of any input with them
    for number, shape in enumerate(shapes):
        checks.append([])
        for axis, extent in enumerate(shape):
            if isinstance(extent, int):
                checks[number].append(Check(axis, step=0, rest=extent))
                continue
            symbols = extent.expr.free_symbols
            first_number, first_axis = first_axes.setdefault(frozenset(symbols), (number, axis))
            is_equal_to_first = shapes[first_number][first_axis] == extent  # n, and not 2n where the first is n
            check = _linear_check(axis, extent.expr, sizes)
            if check is None or not is_equal_to_first:
                sizes.conditions += [sympy.Eq(symbol, sizes.example[symbol]) for symbol in symbols]
                return None
            is_first = (number, axis) == (first_number, first_axis)
            are_batches = axis == first_axis == 0  # `inputs_of_other_batches` has them compared
            if not is_first and not are_batches:
                check.equal = (first_number, first_axis)
            checks[number].append(check)
    return checks


def _linear_check(axis: int, expr: Any, sizes: Sizes) -> Check | None:
    """Return the sizes of a dimension whose extent is a multiple of one symbol plus a rest; `None` if it is not.

    Args:
        axis: the dimension, 0-based.
        expr: its extent, with one symbol or several.
        sizes: what is known of the symbols.
    """
    symbol, *others = expr.free_symbols
    if others:
        return None
    rest = expr.xreplace({symbol: sympy.Integer(0)})
    step = sympy.expand(expr - rest).coeff(symbol)
    is_linear = step.is_Integer and step > 0 and sympy.expand(step * symbol + rest - expr) == 0
    if not is_linear:
        return None
    check = Check(axis, int(step), int(rest), low=int(step * sizes.low_of(symbol) + rest))
    if symbol in sizes.high:
        check.high = int(step * sizes.high[symbol] + rest)
    return check


def texts_of(checks: list[list[Check]]) -> list[str]:
    """Return the sizes of each input by the checks of its dimensions: `any x 3 x 224 x 224`, `any x 3 x n x n`."""
    names = iter("nmkpqrstuvwxyzabcdefghijl" * 9)  # without o, which looks like 0; more than a model has sizes
    equal_to_others = {check.equal for dimensions in checks for check in dimensions}
    name_of: dict[InputAxis, str] = {}
    texts = []
    for number, dimensions in enumerate(checks):
        extents = []
        for check in dimensions:
            dimension = (number, check.axis)
            is_any = check.is_free and dimension not in equal_to_others
            if check.equal is not None:
                name_of[dimension] = name_of[check.equal]  # of an earlier dimension
            elif check.is_fixed or is_any:
                name_of[dimension] = ""  # a number, or `any`, needs no name
            else:
                name_of[dimension] = next(names)
            extents.append(check.text(name_of[dimension]))
        texts.append(" x ".join(extents))
    return texts


def inputs_of_other_batches(inputs: list[LuaNode], steps: list[LuaNode]) -> list[tuple[LuaNode, LuaNode]]:
    """Return the inputs that Lua would take with another number of examples than an earlier input, each with that one.

    The module requires equal numbers. Layers that take examples of both refuse others, but some inputs never meet.

    Args:
        inputs: the inputs.
        steps: those of the model, in order.
    """
    groups = _compared_batches(inputs, steps)
    pairs = []
    for number, step in enumerate(inputs):
        is_open = bool(step.shape) and not is_static(step.shape[:1])
        same_batch = [other for other in range(number) if inputs[other].shape[:1] == step.shape[:1]]
        if is_open and same_batch and groups[number].isdisjoint(same_batch):
            pairs.append((step, inputs[same_batch[0]]))
    return pairs


def _has_parts_of_examples(shape: Shape, input_shape: Shape) -> bool:
    """Return whether a value has one or several parts for each example of an input, along any dimension.

    Several are the heads of an attention, which are merged with the batch. A batch that is fixed does not count.
    """
    batch, *_ = input_shape or (0,)
    extents = [extent for extent in shape if isinstance(extent, Extent)]
    return isinstance(batch, Extent) and any((extent.expr / batch.expr).is_Integer for extent in extents)


def _refuses_unequal_numbers(step: LuaNode, input_shape: Shape) -> bool:
    """Return whether the layer of a step refuses values with other numbers of examples than an input has."""
    if step.layer is None or step.layer.name == "nn.Index":  # which takes any number of indices
        return False
    if step.layer.name == "nn.JoinTable":  # unless it joins the examples
        dimension, *_ = step.layer.args
        return not _has_parts_of_examples((step.shape[dimension - 1],), input_shape)
    return True


def _compared_batches(inputs: list[LuaNode], steps: list[LuaNode]) -> list[set[int]]:
    """Return for each input, by their numbers, the inputs whose batches layers compare with its own; itself is one."""
    groups = [{number} for number in range(len(inputs))]
    owners = {id(step): {number} for number, step in enumerate(inputs)}  # the inputs whose examples a value is made of
    for step in steps:
        numbers: set[int] = set()
        for source in step.inputs:
            numbers |= owners.get(id(source), set())
        numbers = {number for number in numbers if _has_parts_of_examples(step.shape, inputs[number].shape)}
        owners[id(step)] = numbers
        if not all(_refuses_unequal_numbers(step, inputs[number].shape) for number in numbers):
            continue
        merged = set().union(*(groups[number] for number in numbers))
        for number in merged:
            groups[number] = merged
    return groups


def guard(dimensions: list[Check], number: int, checked: set[int]) -> LuaLayer | None:
    """Return a layer that returns its input, and raises an error in Lua for other sizes; `None` if it needs none.

    Sizes of two inputs that have to be equal are compared by `guard_of_pair`.

    Args:
        dimensions: the sizes of the input, for each dimension.
        number: of the input, 0-based.
        checked: dimensions whose sizes the model's layers compare with their weights, 0-based.
    """
    rank = len(dimensions)
    layers = []
    for check in dimensions:
        if check.axis not in checked and not check.is_free:
            layers += check.layers(rank)
        if check.equal is None:
            continue
        number_of_equal, axis_of_equal = check.equal
        if number_of_equal == number:
            rows = [first_row_along(rank, axis_of_equal), first_row_along(rank, check.axis)]
            layers.append(_equal_lengths(rows))
    if not layers:
        return None
    return _first_output([make("nn.Identity"), *layers], label="checkSizes")


def guard_of_pair(rank: int, axis: int, other_rank: int, other_axis: int) -> LuaLayer:
    """Return a layer of {input, other} that returns the input, and raises an error unless two extents are equal.

    Args:
        rank: the number of dimensions of the input.
        axis: the dimension of the input, 0-based.
        other_rank: the number of dimensions of the other input.
        other_axis: its dimension, 0-based.
    """
    row = make("nn.SelectTable", 1) >> first_row_along(rank, axis)
    other_row = make("nn.SelectTable", 2) >> first_row_along(other_rank, other_axis)
    return _first_output([make("nn.SelectTable", 1), _equal_lengths([row, other_row])], label="checkPair")


def _equal_lengths(rows: list[LuaLayer]) -> LuaLayer:
    """Return a layer that raises an error unless two rows are of equal length, as Lua cannot subtract others."""
    return LuaLayer("nn.ConcatTable", children=rows) >> make("nn.CSubTable")


def _first_output(layers: list[LuaLayer], label: str) -> LuaLayer:
    """Return a layer that applies all layers to its input and returns the output of the first one."""
    outputs = LuaLayer("nn.ConcatTable", children=layers)
    return LuaLayer("nn.Sequential", children=[outputs, make("nn.SelectTable", 1)], label=label)
