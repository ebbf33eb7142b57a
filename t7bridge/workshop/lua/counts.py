"""Numbers that depend on the sizes of the inputs, counted when the model runs."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...data import np
from .layers import LuaLayer, first_row_along, make, one_for_each_element, sequential
from .sizes import Extent, Shape, evaluate
from .values import OpenRange
from .wires import Emitter, Wire

MOST_COUNTED = 1 << 12
"""Positions that are counted when the model runs; more are refused. A power of two, for `positions_from_1`."""


def extent_at_runtime(b: Emitter, extent: Extent) -> Wire | None:
    """Return a number that depends on the sizes of the inputs as a tensor of one element, computed when the model runs.

    `None` if it is not made of extents of the inputs by sums, products, quotients and roots.
    """
    number: Wire | None = evaluate(extent.expr, partial(_value_at_runtime, b))
    return number


def _value_at_runtime(b: Emitter, symbol: Any) -> Wire | None:
    """Return the value of a symbol of the sizes as a tensor of one element, counted along a dimension of an input.

    `None` if no dimension has an extent of `step * symbol + rest`, with `step` and `rest` being numbers.

    Args:
        b: the builder, whose inputs have values already.
        symbol: sympy's, of an extent.
    """
    for name, shape in b.program.inputs.items():
        for axis, extent in enumerate(shape):
            # More may be known of the sizes than when the inputs were traced.
            current = extent.now() if isinstance(extent, Extent) else extent
            if not isinstance(current, Extent):
                continue
            step = current.expr.coeff(symbol)
            rest = current.expr - step * symbol
            if step.is_Integer and step != 0 and rest.is_Integer:
                # The sum of a vector is a tensor of one element in Lua.
                count = b.emit(make("nn.Sum", 1), _ones_along(b, b.env[name], axis), shape=(1,))
                return (count - float(rest)) / float(step)
    return None


def _ones_along(b: Emitter, wire: Wire, axis: int) -> Wire:
    """Return a vector of as many ones as a value has elements along a dimension."""
    rank = len(wire.shape)
    row = first_row_along(rank, axis) if rank > 1 else make("nn.Identity")
    return b.emit(row >> one_for_each_element(), wire, shape=(wire.shape[axis],))


def positions_from_1(b: Emitter, extent: Extent) -> Wire | None:
    """Return a vector of 1, 2, … n, where n is an extent; `None` if no input has a dimension of it, or it is too large.

    That n is at most `MOST_COUNTED` becomes a condition of the model, unless `None` is returned.
    """
    if extent.in_example > MOST_COUNTED:
        return None
    for name, shape in b.program.inputs.items():
        if extent in shape:
            # A comparison of an extent is a condition. It holds in the example, as is known from above.
            if not extent <= MOST_COUNTED:
                return None
            ones = _ones_along(b, b.env[name], axis=shape.index(extent))
            return b.emit(_count_from_1(), ones, shape=(extent,))
    return None


def _count_from_1() -> LuaLayer:
    """Return layers that make 1, 2, … n of a vector of n ones, at most `MOST_COUNTED`.

    They pad it with zeros before the ones, and average the windows that end at each of the ones. An average times the
    size of the window is the number of ones in it: exactly, as the size is a power of two.
    """
    padding = MOST_COUNTED - 1  # the first window has one of the ones
    count = sequential(
        # An image of one channel and of height 1.
        make("nn.Unsqueeze", 1),
        make("nn.Unsqueeze", 1),
        make("nn.Padding", 3, -padding),  # a negative number pads before
        make("nn.SpatialAveragePooling", MOST_COUNTED, 1, 1, 1),  # width, height, and steps of 1
        make("nn.MulConstant", MOST_COUNTED),
        # A vector again.
        make("nn.Select", 1, 1),
        make("nn.Select", 1, 1),
    )
    count.label = "CountFrom1"
    return count


def range_at_runtime(b: Emitter, numbers: OpenRange) -> Any:
    """Return the numbers of a range, counted when the model runs if layers can, or else those of the example."""
    numbers_from_1 = positions_from_1(b, numbers.shape[0])
    if numbers_from_1 is None:
        return b.constant(numbers.array())
    return (numbers_from_1 - 1) * numbers.step


def lower_triangle(b: Emitter, shape: Shape, diagonal: int) -> Wire:
    """Return a matrix that is 1 up to a diagonal and 0 above it, whose extents depend on the inputs.

    Args:
        b: the builder.
        shape: of the matrix.
        diagonal: as `torch.tril` counts it: 0 for the main one.
    """
    # The numbers of rows and columns, from 1.
    rows, columns = (_numbers_up_to(b, extent) for extent in shape)
    # Products of a column and a row: the number of its row at each element, and that of its column.
    rows_as_column = b.reshape(rows, (shape[0], 1))
    row_of_ones = b.reshape(_ones_like(columns), (1, shape[1]))
    row_numbers = b.emit(make("nn.MM"), rows_as_column, row_of_ones, shape=shape)
    column_of_ones = b.reshape(_ones_like(rows), (shape[0], 1))
    columns_as_row = b.reshape(columns, (1, shape[1]))
    column_numbers = b.emit(make("nn.MM"), column_of_ones, columns_as_row, shape=shape)
    # The difference is at least 1 up to the diagonal, and at most 0 above it.
    difference = row_numbers - column_numbers + float(diagonal + 1)
    return difference >> make("nn.HardTanh", 0, 1)


def _numbers_up_to(b: Emitter, extent: Any) -> Any:
    """Return 1, 2, … up to an extent."""
    numbers = positions_from_1(b, extent) if isinstance(extent, Extent) else None
    if numbers is None:
        return b.wire(b.constant(np.arange(1, int(extent) + 1, dtype="f4")))
    return numbers


def _ones_like(numbers: Wire) -> Wire:
    """Return a vector of as many ones as another has elements, which are at least 1."""
    return numbers >> make("nn.HardTanh", 0, 1)
